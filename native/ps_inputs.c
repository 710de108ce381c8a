/*
 * The inputs of a draft that reads the target's states. At position t it gets token t and a state of position t - 1: the target's
 * where the target has been, its own for the tokens it drafts beyond that.
 *   PS_EAGLE3  the target's three states go through the draft's encoder first (arXiv 2503.01840)
 *   PS_MTP     the target's state as it is; several heads are layers with a KV each, and all of them read what is committed
 *   PS_ASSISTANT  the same, and every token has the last committed one's position: it sees the target's KV
 * PS_DFLASH gets the target's states at their own positions, which become its KV; then only tokens: the last committed one and
 * masks, which see each other and all of the KV (DFlash, arXiv 2602.06036).
 * llama.cpp's EAGLE-3 counts positions from the state, one lower; rotary embeddings see only differences.
 */
#include <stdlib.h>
#include <string.h>

#include "ps_internal.h"

/* llama.cpp allocates logits for every row it encodes, though none are made: few rows at a time. */
enum { ENCODED_ROWS = 64 };

bool ps_inputs_wants_all(const ps_engine *engine) { return engine->reading.kind == PS_EAGLE3 || ps_chains(engine); }

bool ps_inputs_has_own(const ps_engine *engine) {
    return ps_reads_states(engine) && (engine->reading.kind != PS_DFLASH || engine->reading.sure);
}

static bool bound(void) {
    return ps_api.set_embeddings_layer_inp && ps_api.get_embeddings_layer_inp && ps_api.set_embeddings_nextn &&
           ps_api.get_embeddings_nextn && ps_api.get_embeddings_nextn_ith;
}

static bool sound(const ps_reading *c) {
    if (c->n_hidden < 1 || c->width < 1 || c->window < 1) return false;
    if (c->heads < 0 || c->heads > PS_MAX_DRAFT || (c->heads > 1 && c->kind != PS_MTP)) return false;
    if (c->kind == PS_MTP || c->kind == PS_ASSISTANT) return c->n_layers == 0 && c->n_hidden == c->width;
    if (c->n_layers < 1 || c->n_layers > PS_MOST_LAYERS || c->n_hidden % c->n_layers != 0) return false;
    if (c->kind == PS_EAGLE3) return true;
    if (c->kind != PS_DFLASH || c->mask < 0 || (c->first & ~1) != 0) return false;
    return c->n_hidden == c->n_layers * c->width && c->block > c->first;
}

/* Floats of one row that is decoded or, for EAGLE-3, comes from the encoder. */
static int32_t width_of(const ps_reading *c) { return c->kind == PS_DFLASH ? c->n_hidden : c->width; }

/* llama.cpp's rows are as wide as the file says its model's output is: a copy must be no wider. */
static bool fits(const ps_reading *c, const ps_ctx *target, const ps_ctx *draft) {
    const int32_t n_layers = c->n_layers > 0 ? c->n_layers : 1;
    return target->n_embd == target->n_out && target->n_out * n_layers == c->n_hidden && draft->n_out == c->width;
}

void ps_inputs_end(ps_engine *engine) {
    if (!ps_reads_states(engine)) return;
    if (engine->role[PS_TARGET].ctx) ps_states_want(engine, false);
    if (engine->role[PS_DRAFT].ctx) ps_api.set_embeddings_nextn(engine->role[PS_DRAFT].ctx, false, false);
    ps_inputs_ask(engine, 0);
    engine->role[PS_DRAFT].shared = false;
    memset(&engine->reading, 0, sizeof engine->reading);
    free(engine->rows.embd);
    engine->rows.embd = NULL;
    for (int32_t s = 0; s < engine->n_seq; s++) engine->seq[s].states.n = engine->seq[s].begun = 0;
}

ps_status ps_inputs_read(ps_engine *engine, const ps_reading *reading) {
    PS_FAIL_UNLESS(sound(reading), PS_E_ARG);
    ps_ctx *const draft = &engine->role[PS_DRAFT];
    PS_FAIL_UNLESS(draft->ctx && engine->role[PS_TARGET].ctx, PS_E_STATE);
    PS_FAIL_UNLESS(fits(reading, &engine->role[PS_TARGET], draft), PS_E_ARG);
    PS_FAIL_IF(reading->kind == PS_DFLASH && (reading->mask >= draft->n_vocab || reading->block > draft->n_batch), PS_E_ARG);
    PS_FAIL_UNLESS(bound() && (reading->heads < 2 || ps_api.set_nextn_layer_offset), PS_E_UNBOUND);
    ps_inputs_end(engine);
    PS_TRY(ps_rows_reserve(&engine->rows, draft->n_batch, width_of(reading))); /* no others have vectors */
    if (reading->kind == PS_EAGLE3) PS_TRY(ps_rows_reserve(&engine->encoded, ENCODED_ROWS, reading->n_hidden));
    for (int32_t s = 0; s < engine->n_seq; s++) {
        const size_t n_own = reading->heads > 1 ? (size_t)reading->heads : 1;
        float *const own = realloc(engine->seq[s].own, n_own * (size_t)reading->width * sizeof *own);
        PS_FAIL_UNLESS(own, PS_E_NOMEM);
        engine->seq[s].own = own;
        engine->seq[s].states.cap = 0; /* rows have another width now */
        free(engine->seq[s].states.data);
        engine->seq[s].states.data = NULL;
    }
    engine->reading = *reading;
    ps_states_want(engine, true);
    draft->shared = reading->kind == PS_ASSISTANT;
    if (reading->kind != PS_DFLASH || reading->sure) ps_api.set_embeddings_nextn(draft->ctx, true, true); /* rows with logits */
    return PS_OK;
}

/* Where the next row's vector goes, NULL if there is no room for one. */
static float *next_input(const ps_engine *engine) {
    if (engine->rows.n >= engine->rows.n_vectors || engine->rows.n >= engine->rows.cap) return NULL;
    return engine->rows.embd + (size_t)engine->rows.n * (size_t)width_of(&engine->reading);
}

ps_status ps_inputs_true_row(ps_engine *engine, int32_t seq, int32_t pos, bool wanted) {
    const ps_reading *const c = &engine->reading;
    const float *const state = ps_states_at(engine, seq, pos - 1);
    float *const input = next_input(engine);
    PS_FAIL_UNLESS(input, PS_E_ARG);
    engine->rows.state[engine->rows.n] = c->kind == PS_EAGLE3 ? state : NULL; /* to be encoded */
    if (c->kind != PS_EAGLE3) memcpy(input, state, (size_t)c->width * sizeof *state);
    return ps_rows_add(&engine->rows, seq, pos, engine->seq[seq].token[pos], wanted);
}

/* The state from which token i was drafted: the last one, or with several heads that of token i. */
static float *own_state(const ps_engine *engine, int32_t seq, int32_t i) {
    return engine->seq[seq].own + (ps_chains(engine) ? (size_t)i * (size_t)engine->reading.width : 0);
}

ps_status ps_inputs_own_row(ps_engine *engine, int32_t seq, int32_t pos, int32_t i, bool wanted) {
    const float *const own = own_state(engine, seq, i);
    float *const input = next_input(engine);
    PS_FAIL_UNLESS(input, PS_E_ARG);
    engine->rows.state[engine->rows.n] = NULL;
    memcpy(input, own, (size_t)engine->reading.width * sizeof *own);
    return ps_rows_add(&engine->rows, seq, pos, engine->seq[seq].draft.token[i], wanted);
}

ps_status ps_inputs_keep_own(ps_engine *engine, int32_t seq, int32_t row) {
    const float *const state = ps_api.get_embeddings_nextn_ith(engine->role[PS_DRAFT].ctx, row);
    PS_FAIL_UNLESS(state, PS_E_DECODE);
    memcpy(own_state(engine, seq, engine->seq[seq].draft.n), state, (size_t)engine->reading.width * sizeof *state);
    return PS_OK;
}

/* Encode the next states from *at on, as many as fit in one call, and put the results into their rows. */
static ps_status encode_some(ps_engine *engine, int32_t *at) {
    ps_rows *const rows = &engine->rows, *const encoded = &engine->encoded;
    const size_t width = (size_t)engine->reading.width, n_hidden = (size_t)engine->reading.n_hidden;
    struct llama_context *const draft = engine->role[PS_DRAFT].ctx;
    /* an encoder has no memory, but llama.cpp wants positions that continue after sequence 0 */
    const int32_t first = ps_api.memory_seq_pos_max(ps_api.get_memory(draft), 0) + 1;
    const int32_t accepted = engine->role[PS_DRAFT].n_ubatch, most = accepted < ENCODED_ROWS ? accepted : ENCODED_ROWS;
    int32_t place[ENCODED_ROWS], *const next = at;
    encoded->n = 0;
    for (; *next < rows->n && encoded->n < most; ++*next) { /* encoded has room for ENCODED_ROWS */
        if (!rows->state[*next]) continue;
        memcpy(encoded->embd + (size_t)encoded->n * n_hidden, rows->state[*next], n_hidden * sizeof(float));
        place[encoded->n] = *next;
        PS_TRY(ps_rows_add(encoded, 0, first + encoded->n, 0, true));
    }
    if (encoded->n == 0) return PS_OK;
    PS_TRY(ps_ctx_encode(engine, encoded));
    const float *const out = ps_api.get_embeddings_nextn(draft);
    PS_FAIL_UNLESS(out, PS_E_DECODE);
    for (int32_t i = 0; i < encoded->n; i++) {
        memcpy(rows->embd + (size_t)place[i] * width, out + (size_t)i * width, width * sizeof(float));
    }
    return PS_OK;
}

void ps_inputs_ask(ps_engine *engine, int32_t head) {
    if (ps_chains(engine) && engine->role[PS_DRAFT].ctx) ps_api.set_nextn_layer_offset(engine->role[PS_DRAFT].ctx, head);
}

ps_status ps_inputs_decode(ps_engine *engine) {
    int32_t at = engine->reading.kind == PS_EAGLE3 ? 0 : engine->rows.n;
    while (at < engine->rows.n) PS_TRY(encode_some(engine, &at));
    return ps_ctx_decode(engine, PS_DRAFT);
}

/* Before drafting: the tokens that the KV lacks must have stored states and lie within the window; otherwise start again at
 * the oldest such token. False if the target's newest state is missing, as after a sequence was cut back beyond the states
 * kept. */
bool ps_inputs_begin(ps_engine *engine, int32_t seq) {
    const ps_seq *const s = &engine->seq[seq];
    ps_ctx *const draft = &engine->role[PS_DRAFT];
    const int32_t held = draft->n_kv[seq];
    const int32_t last = s->states.first + s->states.n; /* the newest position that can be fed */
    if (s->states.n == 0 || last != s->n - 1) return false;
    const int32_t kept = s->states.first + (engine->reading.kind != PS_DFLASH), near = last + 1 - engine->reading.window;
    const int32_t oldest = kept > near ? kept : near;
    if (draft->shared) {
        draft->n_kv[seq] = last; /* the target's KV has all that it reads */
        return true;
    }
    if (held >= oldest && held <= last) return true;
    ps_api.memory_seq_rm(ps_api.get_memory(draft->ctx), seq, -1, -1);
    draft->n_kv[seq] = engine->seq[seq].begun = oldest;
    return true;
}

/* Turn the target's states into the KV of a block draft, up to the last committed token. */
ps_status ps_inputs_catch_up(ps_engine *engine, int32_t seq) {
    ps_ctx *const draft = &engine->role[PS_DRAFT];
    const int32_t end = engine->seq[seq].n - 1;
    const size_t width = (size_t)engine->reading.n_hidden;
    while (draft->n_kv[seq] < end) {
        const int32_t from = draft->n_kv[seq], n = end - from < draft->n_batch ? end - from : draft->n_batch;
        engine->rows.n = 0;
        for (int32_t pos = from; pos < from + n; pos++) {
            float *const input = next_input(engine);
            PS_FAIL_UNLESS(input, PS_E_ARG);
            memcpy(input, ps_states_at(engine, seq, pos), width * sizeof(float));
            PS_TRY(ps_rows_add(&engine->rows, seq, pos, 0, false));
        }
        PS_TRY(ps_ctx_inject(engine));
    }
    return PS_OK;
}

/* Add a block of n rows. */
ps_status ps_inputs_block(ps_engine *engine, int32_t seq, int32_t n) {
    const ps_seq *const s = &engine->seq[seq];
    for (int32_t i = 0; i < n; i++) {
        const int32_t token = i == 0 ? s->token[s->n - 1] : engine->reading.mask;
        PS_TRY(ps_rows_add(&engine->rows, seq, s->n - 1 + i, token, true));
    }
    return PS_OK;
}
