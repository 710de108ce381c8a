/* Drafting: lock-step steps over sequences, or blocks at once, greedy or drawn, and drafts from elsewhere. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ps_internal.h"

enum { ROWS_WITH_LOGITS = 8 }; /* usually enough for a round's accepted tokens */
static const float LEAST_P = 1e-6f; /* 0 means "unknown" */

static int32_t table_bin(float p) {
    const float logit = p <= 0 ? -8.0f : p >= 1 ? 8.0f : logf(p / (1 - p));
    const int32_t bin = (int32_t)floorf((logit + 8.0f) * ((float)PS_TABLE_SIZE / 16.0f));
    return bin < 0 ? 0 : bin >= PS_TABLE_SIZE ? PS_TABLE_SIZE - 1 : bin;
}

/*
 * How likely the target is to draw the same token. On a good and a poor draft of SmolLM2 at temperature 0.8, a table of this
 * value lost 0.390 and 0.563 nats per token, one of the drawn token's probability 0.416 and 0.581, of the largest probability
 * 0.431 and 0.603.
 */
static float surety(float log_p, float gap) {
    enum { MOST = 16 };
    const float p = fminf(expf(log_p), 1.0f - 1e-7f);
    const float z = fminf(gap, MOST) + 0.5f * (logf(p) - log1pf(-p));
    return 1.0f / (1.0f + expf(-fmaxf(fminf(z, MOST), -MOST))); /* never 0: that means "unknown" */
}

static bool ends(const ps_engine *engine, int32_t token) {
    return ps_api.vocab_is_eog(engine->role[PS_TARGET].vocab, token);
}

/* Whether to draft on after the tokens so far. */
static bool goes_on(const ps_engine *engine, const ps_slot *step, const ps_stop *stop) {
    const ps_draft *const draft = &engine->seq[step->seq].draft;
    if (draft->n >= step->limit) return false;
    if (draft->n == 0) return true;
    return step->survival >= stop->floors[draft->n - 1] && !ends(engine, draft->token[draft->n - 1]);
}

static ps_status keep_row(ps_engine *engine, ps_seq *seq, int32_t at, const float *row) {
    const size_t n_vocab = (size_t)engine->n_vocab;
    if (!seq->kept) seq->kept = malloc(PS_MAX_DRAFT * n_vocab * sizeof *seq->kept);
    PS_FAIL_UNLESS(seq->kept, PS_E_NOMEM);
    memcpy(seq->kept + (size_t)at * n_vocab, row, (size_t)engine->role[PS_DRAFT].n_vocab * sizeof *row); /* none is read beyond */
    seq->has_row[at] = true;
    return PS_OK;
}

/* Whether top-p leaves only a row's first token, which needs no draw. */
static bool alone(const ps_coupling *how, const ps_row *row) {
    return how->top_p > 0 && row->z1 - row->lse >= logf(how->top_p);
}

/* The draft's choice at a row, as token i, and how sure it is of it. */
static ps_status choose(const ps_engine *engine, ps_seq *seq, const float *row, int32_t i) {
    int32_t *const token = &seq->draft.token[i];
    float *const p = &seq->draft.p[i];
    const int32_t n_vocab = engine->role[PS_DRAFT].n_vocab;
    ps_row found;
    PS_TRY(ps_scan(row, n_vocab, PS_SCAN_LSE, &found));
    if (!ps_coupled(seq) || alone(&seq->coupling, &found)) {
        *token = found.first;
        *p = expf(found.z1 - found.lse);
        return PS_OK;
    }
    float cut;
    PS_TRY(ps_draw_cut(row, n_vocab, &seq->coupling, found.z1, &cut));
    const ps_row drawn = ps_temper_draw(engine, seq, i, row, n_vocab, &found, cut);
    *token = drawn.first;
    *p = surety(row[drawn.first] - found.lse, drawn.z1 - drawn.z2);
    return PS_OK;
}

/* Read the draft's row: the next drafted token. */
static ps_status take_token(ps_engine *engine, ps_slot *step, const ps_stop *stop, bool keep) {
    ps_seq *const seq = &engine->seq[step->seq];
    ps_draft *const draft = &seq->draft;
    const float *const row = ps_ctx_logits(&engine->role[PS_DRAFT], step->row);
    PS_FAIL_UNLESS(row, PS_E_DECODE);
    PS_TRY(choose(engine, seq, row, draft->n));
    seq->has_row[draft->n] = false;
    if (ps_inputs_has_own(engine)) PS_TRY(ps_inputs_keep_own(engine, step->seq, step->row));
    /* it says nothing about a draw */
    if (engine->reading.sure && !ps_coupled(seq)) draft->p[draft->n] = fminf(fmaxf(seq->own[0], LEAST_P), 1.0f);
    if (keep) PS_TRY(keep_row(engine, seq, draft->n, row));
    step->survival *= stop->table[table_bin(draft->p[draft->n])];
    draft->n++;
    return PS_OK;
}

/* How many rows add_missing adds. */
static int32_t n_missing(const ps_engine *engine, const ps_slot *step) {
    const ps_seq *const seq = &engine->seq[step->seq];
    const ps_ctx *const ctx = &engine->role[PS_DRAFT];
    return ctx->shared && seq->draft.n > 0 ? 1 : seq->n + seq->draft.n - ctx->n_kv[step->seq];
}

/* Add the rows that a sequence's draft context lacks; the last of them is wanted. */
static ps_status add_missing(ps_engine *engine, const ps_slot *step) {
    const ps_seq *const seq = &engine->seq[step->seq];
    const int32_t from = engine->role[PS_DRAFT].n_kv[step->seq];
    const int32_t end = seq->n + seq->draft.n;
    if (engine->role[PS_DRAFT].shared && seq->draft.n > 0) {
        return ps_inputs_own_row(engine, step->seq, seq->n - 1, seq->draft.n - 1, true);
    }
    for (int32_t pos = from; pos < end; pos++) {
        const bool wanted = pos == end - 1 || ps_inputs_wants_all(engine);
        const int32_t token = pos < seq->n ? seq->token[pos] : seq->draft.token[pos - seq->n];
        if (!ps_reads_states(engine)) PS_TRY(ps_rows_add(&engine->rows, step->seq, pos, token, wanted));
        else if (pos < seq->n) PS_TRY(ps_inputs_true_row(engine, step->seq, pos, wanted));
        else PS_TRY(ps_inputs_own_row(engine, step->seq, pos, pos - seq->n, wanted));
    }
    return PS_OK;
}

static int32_t longest(const ps_reading *reading) {
    const int32_t n = reading->kind == PS_DFLASH ? reading->block - reading->first : reading->heads;
    return (reading->kind == PS_DFLASH || n > 1) && n < PS_MAX_DRAFT ? n : PS_MAX_DRAFT;
}

/* Prepare a sequence: drop what cannot be kept, and compute the survival of tokens already drafted. */
static ps_status begin(ps_engine *engine, ps_slot *step, const ps_stop *stop) {
    ps_seq *const seq = &engine->seq[step->seq];
    ps_ctx *const ctx = &engine->role[PS_DRAFT];
    PS_FAIL_IF(seq->n < 1, PS_E_STATE);
    const int32_t most = longest(&engine->reading);
    if (step->limit > most) step->limit = most;
    if (step->limit > ctx->n_ctx - seq->n) step->limit = ctx->n_ctx - seq->n;
    if (ps_reads_states(engine)) {
        /* its inputs are states of the target, so what it drafted with its own is drafted again */
        seq->draft.n = 0;
        if (!ps_inputs_begin(engine, step->seq)) step->limit = 0; /* the next verify brings the states */
    }
    seq->draft.scored = 0;
    seq->draft.kept = seq->draft.n;
    /* the row that predicts the next token has to be decoded now, even if the KV holds it from a longer draft */
    ps_ctx_roll_back(engine, PS_DRAFT, step->seq, seq->n + seq->draft.n - 1);
    ps_ctx_save(engine, PS_DRAFT, step->seq);
    seq->draft.fed = step->limit > seq->draft.n ? seq->n + seq->draft.n - 1 - ctx->n_kv[step->seq] : 0;
    step->survival = 1;
    for (int32_t i = 0; i < seq->draft.n; i++) step->survival *= stop->table[table_bin(seq->draft.p[i])];
    return PS_OK;
}

/* Decode committed tokens without logits up to `end`, at most a batch of them, with one head. */
static ps_status fill_one(ps_engine *engine, int32_t seq, int32_t end, int32_t head) {
    ps_ctx *const ctx = &engine->role[PS_DRAFT];
    const int32_t from = ctx->n_kv[seq], upto = from + ctx->n_batch < end ? from + ctx->n_batch : end;
    ps_inputs_ask(engine, head);
    engine->rows.n = 0;
    for (int32_t pos = from; pos < upto; pos++) {
        if (ps_reads_states(engine)) PS_TRY(ps_inputs_true_row(engine, seq, pos, false));
        else PS_TRY(ps_rows_add(&engine->rows, seq, pos, engine->seq[seq].token[pos], false));
    }
    return ps_inputs_decode(engine);
}

/* The same with every head: each reads again what the one before has read, into the same cells of its own layer. */
static ps_status fill(ps_engine *engine, int32_t seq, int32_t end) {
    const int32_t from = engine->role[PS_DRAFT].n_kv[seq];
    for (int32_t head = 0; head + 1 < engine->reading.heads; head++) {
        PS_TRY(fill_one(engine, seq, end, head));
        ps_ctx_roll_back(engine, PS_DRAFT, seq, from);
    }
    return fill_one(engine, seq, end, ps_chains(engine) ? engine->reading.heads - 1 : 0);
}

/*
 * Keep the target's states of n rows of its last decode, which stand at positions pos, pos + 1, ... If that fails there are none:
 * the draft sits out until the next verify brings states, and generation goes on.
 */
void ps_draft_keep_states(ps_engine *engine, int32_t seq, int32_t pos, int32_t row, int32_t n) {
    if (ps_states_place(engine, seq, pos, n)) ps_states_forget(engine, seq);
    if (ps_states_keep(engine, seq, row, n) != PS_OK) engine->seq[seq].states.n = 0;
}

/* Long gaps (a prompt, a stretch of lookup drafts) are decoded separately, so that one batch holds the rest of every sequence. */
static ps_status catch_up(ps_engine *engine, int32_t seq, int32_t room) {
    if (engine->reading.kind == PS_DFLASH) return ps_inputs_catch_up(engine, seq);
    const int32_t end = engine->seq[seq].n;
    while (end - engine->role[PS_DRAFT].n_kv[seq] > room) PS_TRY(fill(engine, seq, end - 1));
    return PS_OK;
}

/*
 * Rows of a sequence that one batch may hold before the drafted ones. If logits are wanted for only some rows, the graphs of
 * drafts that read states return those of the first rows, so all or none must be wanted: EAGLE-3 computes all in any case, others
 * only the last. With several heads, what a head reads for its own token has been read by no other.
 */
static int32_t room_of(const ps_engine *engine, int32_t n) {
    const int32_t share = engine->role[PS_DRAFT].n_batch / n - PS_MAX_DRAFT;
    const int32_t most = !ps_reads_states(engine) ? share : engine->reading.kind == PS_EAGLE3 ? ROWS_WITH_LOGITS : 1;
    return share < 1 ? 1 : share < most ? share : most;
}

/* With several heads, each reads the drafted tokens itself. */
static void drop_drafted(ps_engine *engine, int32_t seq) {
    if (ps_chains(engine)) ps_ctx_roll_back(engine, PS_DRAFT, seq, engine->seq[seq].n - 1);
}

/*
 * One decode over the leading sequences that are still drafting and fit into it, one more token for each, the i-th. *done is how
 * many sequences that were, *active grows by how many took part.
 */
static ps_status step_some(ps_engine *engine, int32_t n, ps_slot *steps, const ps_stop *stop, bool keep, int32_t i_token,
                           int32_t *active, int32_t *done) {
    const int32_t room = engine->role[PS_DRAFT].n_batch;
    engine->rows.n = 0;
    for (*done = 0; *done < n; ++*done) {
        ps_slot *const step = &steps[*done];
        step->row = -1;
        if (!goes_on(engine, step, stop)) continue;
        const int32_t more = n_missing(engine, step);
        PS_FAIL_IF(more > room, PS_E_ARG);
        if (engine->rows.n + more > room) break;
        PS_TRY(add_missing(engine, step));
        step->row = engine->rows.n - 1;
        ++*active;
    }
    if (engine->rows.n == 0) return PS_OK;
    ps_inputs_ask(engine, i_token);
    PS_TRY(ps_inputs_decode(engine));
    for (int32_t i = 0; i < *done; i++) {
        if (steps[i].row < 0) continue;
        ps_ctx_save(engine, PS_DRAFT, steps[i].seq);
        PS_TRY(take_token(engine, &steps[i], stop, keep));
        drop_drafted(engine, steps[i].seq);
    }
    return PS_OK;
}

/* The same for all sequences, in as many decodes as it takes. */
static ps_status step_all(ps_engine *engine, int32_t n, ps_slot *steps, const ps_stop *stop, bool keep, int32_t i_token,
                          int32_t *active) {
    *active = 0;
    for (int32_t i = 0, done = 0; i < n; i += done) {
        PS_TRY(step_some(engine, n - i, steps + i, stop, keep, i_token, active, &done));
    }
    return PS_OK;
}

static bool lacks_row(const ps_seq *seq) {
    int32_t i = 0;
    while (i < seq->draft.n && seq->has_row[i]) i++;
    return i < seq->draft.n;
}

/* Draft blocks, in one decode, for the leading sequences that want as many tokens as the first one and fit into it; all their
 * tokens come from it. *done is how many sequences those were. DSpark's graph needs blocks of one size. */
static ps_status run_blocks(ps_engine *engine, int32_t n, ps_slot *steps, const ps_stop *stop, bool keep, int32_t *done) {
    const ps_reading *const c = &engine->reading;
    const int32_t limit = steps[0].limit, n_rows = limit + c->first, room = engine->role[PS_DRAFT].n_batch;
    *done = 0;
    PS_FAIL_IF(n_rows > room, PS_E_ARG); /* reading.block is at most a batch, and the limit at most a block */
    engine->rows.n = 0;
    for (*done = 0; *done < n && steps[*done].limit == limit && engine->rows.n + n_rows <= room; ++*done) {
        if (limit == 0) continue;
        steps[*done].row = engine->rows.n + c->first;
        PS_TRY(ps_inputs_block(engine, steps[*done].seq, n_rows));
    }
    if (limit == 0) return PS_OK;
    PS_TRY(ps_inputs_decode(engine));
    for (int32_t i = 0; i < *done; i++) {
        ps_ctx_roll_back(engine, PS_DRAFT, steps[i].seq, engine->seq[steps[i].seq].n - 1); /* a block's KV belongs to no text */
    }
    for (int32_t i = 0; i < *done; i++) {
        for (; goes_on(engine, &steps[i], stop); steps[i].row++) PS_TRY(take_token(engine, &steps[i], stop, keep));
    }
    return PS_OK;
}

static ps_status draft_run(ps_engine *engine, int32_t n, const int32_t *seqs, const int32_t *max_len, const ps_stop *stop,
                           bool keep) {
    const ps_ctx *const ctx = &engine->role[PS_DRAFT];
    PS_FAIL_UNLESS(ctx->ctx, PS_E_STATE);
    ps_slot *const steps = engine->slot;
    const int32_t room = room_of(engine, n), in_batch = ctx->n_batch / n;
    ps_begin(engine);
    for (int32_t i = 0; i < n; i++) {
        PS_TRY(ps_seq_claim(engine, seqs[i]));
        steps[i] = (ps_slot){.seq = seqs[i], .limit = ps_chains(engine) && max_len[i] > in_batch ? in_batch : max_len[i]};
        ps_seq *const seq = &engine->seq[seqs[i]];
        if (keep && lacks_row(seq)) seq->draft.n = 0; /* every token's row is wanted */
        PS_TRY(begin(engine, &steps[i], stop));
        if (steps[i].limit > 0) PS_TRY(catch_up(engine, seqs[i], room));
    }
    int32_t active = n;
    for (int32_t i = 0, done = 0; engine->reading.kind == PS_DFLASH && i < n; i += done) {
        PS_TRY(run_blocks(engine, n - i, steps + i, stop, keep, &done));
        active = 0;
    }
    for (int32_t i = 0; active > 0; i++) PS_TRY(step_all(engine, n, steps, stop, keep, i, &active));
    return PS_OK;
}

ps_status ps_draft_run(ps_engine *engine, int32_t n, const int32_t *seqs, const int32_t *max_len, const ps_stop *stop,
                       int32_t keep_rows) {
    PS_FAIL_IF(!engine || n < 1 || n > engine->n_seq || !seqs || !max_len || !stop, PS_E_ARG);
    PS_FAIL_UNLESS(ps_lock(engine), PS_E_BUSY);
    const ps_status status = draft_run(engine, n, seqs, max_len, stop, keep_rows != 0);
    ps_unlock(engine);
    return status;
}

static ps_status draft_put(ps_engine *engine, int32_t index, const int32_t *tokens, int32_t n) {
    ps_draft *const draft = &engine->seq[index].draft;
    for (int32_t i = 0; i < n; i++) PS_FAIL_IF(tokens[i] < 0 || tokens[i] >= engine->n_vocab, PS_E_ARG);
    /* a draft model's KV may hold other drafted tokens: keep what agrees */
    int32_t same = 0;
    while (same < n && same < draft->n && draft->token[same] == tokens[same]) same++;
    for (int32_t r = PS_DRAFT; r < PS_N_ROLES; r++) {
        ps_ctx_roll_back(engine, r, index, engine->seq[index].n + same);
    }
    memset(draft, 0, offsetof(ps_draft, agreement));
    memset(engine->seq[index].has_row, 0, sizeof engine->seq[index].has_row);
    draft->n = n;
    if (n > 0) memcpy(draft->token, tokens, (size_t)n * sizeof *tokens);
    return PS_OK;
}

ps_status ps_draft_put(ps_engine *engine, int32_t seq, const int32_t *tokens, int32_t n) {
    PS_FAIL_IF(!engine || !ps_seq_valid(engine, seq) || n < 0 || n > PS_MAX_DRAFT || (n > 0 && !tokens), PS_E_ARG);
    PS_FAIL_UNLESS(ps_lock(engine), PS_E_BUSY);
    const ps_status status = draft_put(engine, seq, tokens, n);
    ps_unlock(engine);
    return status;
}

ps_status ps_draft_get(ps_engine *engine, int32_t seq, const ps_draft **out) {
    PS_FAIL_IF(!engine || !out || !ps_seq_valid(engine, seq), PS_E_ARG);
    *out = &engine->seq[seq].draft;
    return PS_OK;
}
