/* The companion's view of the drafts: one decode over all of them, one fused pass over each pair of rows. */
#include "ps_internal.h"

static int32_t drafted_at(const ps_seq *seq, int32_t pos) {
    return pos < seq->n ? seq->token[pos] : seq->draft.token[pos - seq->n];
}

/* Rows that a sequence's draft takes; the last drafted token itself need not be decoded. */
static int32_t n_missing(const ps_engine *engine, int32_t index) {
    const ps_seq *const seq = &engine->seq[index];
    return seq->n + seq->draft.n - 1 - engine->role[PS_COMPANION].n_kv[index];
}

/* Add the companion's rows for a sequence. *first is the first row of its draft in engine->rows. */
static ps_status add_rows(ps_engine *engine, int32_t index, int32_t *first) {
    const ps_seq *const seq = &engine->seq[index];
    const int32_t from = engine->role[PS_COMPANION].n_kv[index], end = from + n_missing(engine, index);
    for (int32_t pos = from; pos < end; pos++) {
        PS_TRY(ps_rows_add(&engine->rows, index, pos, drafted_at(seq, pos), pos >= seq->n - 1));
    }
    *first = engine->rows.n - seq->draft.n;
    return PS_OK;
}

/* Fill the KV up to the last committed token, so that the drafts of all sequences fit one batch. */
static ps_status catch_up(ps_engine *engine, int32_t index, int32_t room) {
    ps_ctx *const ctx = &engine->role[PS_COMPANION];
    const ps_seq *const seq = &engine->seq[index];
    ps_ctx_roll_back(engine, PS_COMPANION, index, seq->n - 1);
    while (seq->n - ctx->n_kv[index] > room) {
        int32_t upto = ctx->n_kv[index] + ctx->n_batch;
        if (upto > seq->n - 1) upto = seq->n - 1;
        engine->rows.n = 0;
        for (int32_t pos = ctx->n_kv[index]; pos < upto; pos++) {
            PS_TRY(ps_rows_add(&engine->rows, index, pos, seq->token[pos], false));
        }
        PS_TRY(ps_ctx_decode(engine, PS_COMPANION));
    }
    ps_ctx_save(engine, PS_COMPANION, index);
    return PS_OK;
}

static ps_status agree(ps_engine *engine, int32_t index, int32_t first) {
    ps_seq *const seq = &engine->seq[index];
    const size_t stride = (size_t)engine->n_vocab;
    const int32_t n_draft = engine->role[PS_DRAFT].n_vocab, n_own = engine->role[PS_COMPANION].n_vocab;
    const int32_t shared = n_draft < n_own ? n_draft : n_own;
    for (int32_t i = 0; i < seq->draft.n; i++) {
        const float *const row = ps_ctx_logits(&engine->role[PS_COMPANION], first + i);
        PS_FAIL_UNLESS(row, PS_E_DECODE);
        if (seq->draft.token[i] >= shared) { /* the companion lacks this token and would never propose it */
            seq->draft.agreement[i] = (ps_agreement){.pd = seq->draft.p[i], .top = -1};
            continue;
        }
        PS_TRY(ps_agree(seq->kept + (size_t)i * stride, row, 1, shared, &seq->draft.token[i], &seq->draft.agreement[i]));
    }
    seq->draft.scored = 1;
    return PS_OK;
}

/* Score, in one decode, the drafts of the leading sequences that fit into it. *done is how many those were. */
static ps_status score_some(ps_engine *engine, int32_t n, const int32_t *seqs, int32_t *done) {
    const int32_t room = engine->role[PS_COMPANION].n_batch;
    ps_slot *const slots = engine->slot;
    engine->rows.n = 0;
    for (*done = 0; *done < n; ++*done) {
        const int32_t index = seqs[*done];
        slots[*done].row = -1;
        if (engine->seq[index].draft.n == 0) continue;
        const int32_t more = n_missing(engine, index);
        PS_FAIL_IF(more > room, PS_E_ARG);
        if (engine->rows.n + more > room) break;
        PS_TRY(add_rows(engine, index, &slots[*done].row));
    }
    if (engine->rows.n == 0) return PS_OK;
    PS_TRY(ps_ctx_decode(engine, PS_COMPANION));
    for (int32_t i = 0; i < *done; i++) {
        if (slots[i].row >= 0) PS_TRY(agree(engine, seqs[i], slots[i].row));
    }
    return PS_OK;
}

static ps_status score(ps_engine *engine, int32_t n, const int32_t *seqs) {
    const ps_ctx *const ctx = &engine->role[PS_COMPANION];
    PS_FAIL_UNLESS(ctx->ctx, PS_E_STATE);
    const int32_t share = ctx->n_batch / n - PS_MAX_DRAFT;
    ps_begin(engine);
    for (int32_t i = 0; i < n; i++) {
        PS_TRY(ps_seq_claim(engine, seqs[i]));
        const ps_seq *const seq = &engine->seq[seqs[i]];
        PS_FAIL_IF(seq->n < 1 || (seq->draft.n > 0 && !seq->kept), PS_E_STATE);
        if (seq->draft.n > 0) PS_TRY(catch_up(engine, seqs[i], share > 1 ? share : 1));
    }
    for (int32_t i = 0, done = 0; i < n; i += done) PS_TRY(score_some(engine, n - i, seqs + i, &done));
    return PS_OK;
}

ps_status ps_score(ps_engine *engine, int32_t n, const int32_t *seqs) {
    PS_FAIL_IF(!engine || n < 1 || n > engine->n_seq || !seqs, PS_E_ARG);
    PS_FAIL_UNLESS(ps_lock(engine), PS_E_BUSY);
    const ps_status status = score(engine, n, seqs);
    ps_unlock(engine);
    return status;
}
