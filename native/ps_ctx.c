/* One llama_context: building rows, decoding them, rolling its KV back. */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ps_internal.h"

ps_status ps_grow(void *pointer, int32_t *cap, int32_t need, size_t size) {
    if (need <= *cap) return PS_OK;
    PS_FAIL_IF(need > INT32_MAX / 2, PS_E_NOMEM);
    int32_t grown = *cap > 0 ? *cap : 64;
    while (grown < need) grown *= 2;
    PS_FAIL_IF((size_t)grown > SIZE_MAX / size, PS_E_NOMEM);
    void **const slot = pointer;
    void *const moved = realloc(*slot, (size_t)grown * size);
    PS_FAIL_UNLESS(moved, PS_E_NOMEM);
    *slot = moved;
    *cap = grown;
    return PS_OK;
}

void ps_rows_free(ps_rows *rows) {
    free(rows->token);
    free(rows->pos);
    free(rows->n_seq_id);
    free(rows->seq);
    free(rows->seq_id);
    free(rows->wanted);
    free(rows->embd);
    free(rows->state);
    memset(rows, 0, sizeof *rows);
}

ps_status ps_rows_reserve(ps_rows *rows, int32_t cap, int32_t width) {
    if (width > 0) {
        float *const embd = realloc(rows->embd, (size_t)cap * (size_t)width * sizeof *embd);
        PS_FAIL_UNLESS(embd, PS_E_NOMEM);
        rows->embd = embd;
        rows->n_vectors = cap;
    }
    if (cap <= rows->cap) return PS_OK;
    PS_FAIL_IF(rows->embd && width == 0, PS_E_STATE); /* read states last: vectors are sized with the rows */
    const size_t n = (size_t)cap;
    ps_rows next = {.cap = cap, .embd = rows->embd, .n_vectors = rows->n_vectors};
    rows->embd = NULL;
    next.token = malloc(n * sizeof *next.token);
    next.pos = malloc(4 * n * sizeof *next.pos);
    next.n_seq_id = malloc(n * sizeof *next.n_seq_id);
    next.seq = malloc(n * sizeof *next.seq);
    next.seq_id = malloc(n * sizeof *next.seq_id);
    next.wanted = malloc(n);
    next.state = malloc(n * sizeof *next.state);
    if (!next.token || !next.pos || !next.n_seq_id || !next.seq || !next.seq_id || !next.wanted || !next.state) {
        rows->embd = next.embd;
        next.embd = NULL;
        ps_rows_free(&next);
        return PS_ERROR(PS_E_NOMEM);
    }
    for (size_t i = 0; i < n; i++) {
        next.n_seq_id[i] = 1;
        next.seq_id[i] = &next.seq[i];
    }
    ps_rows_free(rows);
    *rows = next;
    return PS_OK;
}

ps_status ps_rows_add(ps_rows *rows, int32_t seq, int32_t pos, int32_t token, bool wanted) {
    PS_FAIL_IF(rows->n >= rows->cap, PS_E_ARG);
    const int32_t i = rows->n++;
    rows->token[i] = token;
    rows->pos[i] = pos;
    rows->seq[i] = seq;
    rows->wanted[i] = wanted;
    return PS_OK;
}

/* Time since some moment; changing the machine's clock does not affect it. */
static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/*
 * A draft model decodes one token after the other, and llama.cpp keeps states of the last decode only, which do not help to roll
 * it back. So it returns to the state that ps_ctx_save left in a sequence of its own, and reads what follows again.
 */
static void go_back(ps_ctx *ctx, int32_t seq, int32_t n) {
    struct llama_memory_i *const memory = ps_api.get_memory(ctx->ctx);
    if (ctx->saved[seq] > n) ctx->saved[seq] = 0;
    ps_api.memory_seq_rm(memory, seq, -1, -1);
    if (ctx->saved[seq] > 0) ps_api.memory_seq_cp(memory, seq + ctx->spare, seq, -1, -1);
    ctx->n_kv[seq] = ctx->saved[seq];
    ctx->tail[seq] = 0;
}

/* While a context holds only committed tokens, keep its state of them. Copies share cells until one of them goes on. */
void ps_ctx_save(ps_engine *engine, int32_t role, int32_t seq) {
    ps_ctx *const ctx = &engine->role[role];
    const int32_t held = ctx->n_kv[seq];
    if (!ctx->spare || held == 0 || held > engine->seq[seq].n || held == ctx->saved[seq]) return;
    struct llama_memory_i *const memory = ps_api.get_memory(ctx->ctx);
    ps_api.memory_seq_rm(memory, seq + ctx->spare, -1, -1);
    ps_api.memory_seq_cp(memory, seq, seq + ctx->spare, -1, -1);
    ctx->saved[seq] = held;
}

/* After a failed decode llama.cpp may have dropped positions: trust its memory, not our count. */
static void resync(ps_ctx *ctx, const ps_rows *rows) {
    struct llama_memory_i *const memory = ps_api.get_memory(ctx->ctx);
    for (int32_t i = 0; i < rows->n; i++) {
        const int32_t seq = rows->seq[i];
        if (ctx->shared) {
            ctx->n_kv[seq] = 0;
            continue;
        }
        if (ctx->spare) {
            go_back(ctx, seq, ctx->n_kv[seq]);
            continue;
        }
        /* a state that some layers have passed belongs to no position */
        const int32_t held = ctx->recurrent ? 0 : ps_api.memory_seq_pos_max(memory, seq) + 1;
        if (held < ctx->n_kv[seq]) ctx->n_kv[seq] = held;
        ps_api.memory_seq_rm(memory, seq, ctx->n_kv[seq], -1);
    }
}

static ps_status decode_status(int32_t answer) {
    switch (answer) {
        case 0: return PS_OK;
        case 1: return PS_ERROR(PS_E_NOSLOT);
        case 2: return PS_ERROR(PS_E_CANCELLED);
        default: return PS_ERROR(PS_E_DECODE);
    }
}

static struct llama_batch batch_of(const ps_rows *rows, bool tokens, bool vectors) {
    return (struct llama_batch){
        .n_tokens = rows->n,
        .token = tokens ? rows->token : NULL,
        .embd = vectors ? rows->embd : NULL,
        .pos = rows->pos,
        .n_seq_id = rows->n_seq_id,
        .seq_id = rows->seq_id,
        .logits = rows->wanted,
    };
}

/* Run llama_decode or llama_encode, timed and counted. */
static ps_status run(ps_engine *engine, int32_t role, int32_t (*function)(struct llama_context *, struct llama_batch),
                     struct llama_batch batch) {
    PS_FAIL_IF(atomic_load_explicit(&engine->cancelled, memory_order_relaxed), PS_E_CANCELLED);
    struct llama_context *const ctx = engine->role[role].ctx;
    const int64_t start = now_us();
    const int32_t answer = function(ctx, batch);
    if (answer == 0) ps_api.synchronize(ctx);
    ps_count(&engine->tally.us[role], now_us() - start);
    if (answer != 0) atomic_store_explicit(&engine->tally.last_decode, answer, memory_order_relaxed);
    return decode_status(answer);
}

/* A sequence may hold ids that a smaller vocabulary lacks: this model reads its own last token instead, and drafts on. */
static void replace_unknown(const ps_ctx *ctx, ps_rows *rows) {
    for (int32_t i = 0; i < rows->n; i++) {
        if (rows->token[i] >= ctx->n_vocab) rows->token[i] = ctx->n_vocab - 1;
    }
}

static ps_status decode(ps_engine *engine, int32_t role, bool tokens, bool vectors) {
    ps_ctx *const ctx = &engine->role[role];
    ps_rows *const rows = &engine->rows;
    PS_FAIL_IF(rows->n < 1 || rows->n > ctx->n_batch, PS_E_ARG);
    replace_unknown(ctx, rows);
    const ps_status status = run(engine, role, ps_api.decode, batch_of(rows, tokens, vectors));
    ps_count(&engine->tally.decodes[role], 1);
    if (status != PS_OK) {
        resync(ctx, rows);
        return status;
    }
    ps_count(&engine->tally.rows[role], rows->n);
    for (int32_t i = 0; i < rows->n; i++) ctx->tail[rows->seq[i]] = rows->pos[i] - ctx->n_kv[rows->seq[i]];
    for (int32_t i = 0; i < rows->n; i++) ctx->n_kv[rows->seq[i]] = rows->pos[i] + 1;
    return PS_OK;
}

/* Decode engine->rows on a role; on success n_kv of each sequence covers its rows. The rows stay readable. */
ps_status ps_ctx_decode(ps_engine *engine, int32_t role) {
    const bool vectors = role == PS_DRAFT && ps_reads_states(engine) && engine->reading.kind != PS_DFLASH;
    return decode(engine, role, true, vectors);
}

/* The same for rows of vectors only, on the draft. Position sections of text are equal except the last, which is for images. */
ps_status ps_ctx_inject(ps_engine *engine) {
    int32_t *const pos = engine->rows.pos;
    const size_t n = (size_t)engine->rows.n;
    for (size_t j = 1; j < 4; j++) {
        for (size_t i = 0; i < n; i++) pos[j * n + i] = j < 3 ? pos[i] : 0;
    }
    return decode(engine, PS_DRAFT, false, true);
}

ps_status ps_ctx_encode(ps_engine *engine, const ps_rows *rows) {
    return run(engine, PS_DRAFT, ps_api.encode, batch_of(rows, false, true));
}

/*
 * Keep the first n tokens of a sequence, which is never an error: a memory that cannot drop its tail is emptied, and its tokens
 * are read again when next used.
 */
void ps_ctx_roll_back(ps_engine *engine, int32_t role, int32_t seq, int32_t n) {
    ps_ctx *const ctx = &engine->role[role];
    if (!ctx->ctx || n >= ctx->n_kv[seq]) return;
    if (n < 0) n = 0; /* llama.cpp would take a negative position for "everything" */
    if (ctx->shared) {
        ctx->n_kv[seq] = n;
        return;
    }
    if (ctx->spare) {
        go_back(ctx, seq, n);
        return;
    }
    struct llama_memory_i *const memory = ps_api.get_memory(ctx->ctx);
    /* a sliding window may have lost what the kept tail still needs to see, but not what the last decode saw, which is as far
     * back as states go; a memory that also has states reports the state's position as the oldest */
    const int32_t begun = role == PS_DRAFT ? engine->seq[seq].begun : 0;
    const int32_t needed = n - ctx->n_swa > begun ? n - ctx->n_swa : begun;
    const bool forgotten = ctx->n_swa > 0 && n > 0 && !ctx->recurrent && ps_api.memory_seq_pos_min(memory, seq) > needed;
    /* llama.cpp counts states it has overwritten or never had as kept: it drops n_rs tokens whatever was decoded last */
    const int32_t gone = ctx->n_kv[seq] - n;
    const bool overwritten = ctx->recurrent && n > 0 && (gone > ctx->tail[seq] || gone > ctx->n_rs);
    if (!forgotten && !overwritten && ps_api.memory_seq_rm(memory, seq, n, -1)) {
        ctx->n_kv[seq] = n;
        ctx->tail[seq] = -1;
        return;
    }
    ps_api.memory_seq_rm(memory, seq, -1, -1);
    ctx->n_kv[seq] = 0;
}

const float *ps_ctx_logits(const ps_ctx *ctx, int32_t row) { return ps_api.get_logits_ith(ctx->ctx, row); }
