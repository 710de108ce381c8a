/* Decoding on the target: prefill in chunks, and the verify batch of a round. */
#include "ps_internal.h"

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

static ps_status prefill(ps_engine *engine, int32_t role, int32_t index, int32_t upto, int32_t chunk) {
    ps_ctx *const ctx = &engine->role[role];
    const ps_seq *const seq = &engine->seq[index];
    PS_FAIL_UNLESS(ctx->ctx, PS_E_STATE);
    const int32_t from = ctx->n_kv[index];
    const int32_t end = least(least(upto, seq->n - 1), from + least(chunk, ctx->n_batch));
    if (end <= from) return PS_OK;
    engine->rows.n = 0;
    for (int32_t pos = from; pos < end; pos++) PS_TRY(ps_rows_add(&engine->rows, index, pos, seq->token[pos], false));
    PS_TRY(ps_ctx_decode(engine, role));
    if (role == PS_TARGET && ps_reads_states(engine)) ps_draft_keep_states(engine, index, from, 0, end - from);
    return PS_OK;
}

ps_status ps_prefill(ps_engine *engine, int32_t role, int32_t seq, int32_t upto, int32_t chunk, int32_t *n_kv) {
    PS_FAIL_IF(!engine || role < 0 || role >= PS_N_ROLES || !ps_seq_valid(engine, seq), PS_E_ARG);
    PS_FAIL_IF(upto < 0 || chunk < 1 || (role == PS_DRAFT && ps_reads_states(engine)), PS_E_ARG);
    PS_FAIL_UNLESS(ps_lock(engine), PS_E_BUSY);
    const ps_status status = prefill(engine, role, seq, upto, chunk);
    if (n_kv) *n_kv = engine->role[role].n_kv[seq];
    ps_unlock(engine);
    return status;
}

enum { ALL_ROWS = -2 }; /* as in ps_work */

/* How many rows one work item needs, or -1 if it cannot be done. */
static int32_t rows_needed(const ps_engine *engine, const ps_work *work) {
    const ps_seq *const seq = &engine->seq[work->seq];
    const ps_ctx *const ctx = &engine->role[PS_TARGET];
    const int32_t missing = seq->n - ctx->n_kv[work->seq];
    if (seq->n < 1 || missing < 1) return -1;
    if (work->n_draft == ALL_ROWS) return missing;
    const bool fits = work->n_draft == -1 && work->n_prefill > 0 && work->n_prefill < missing;
    if (work->n_draft < 0) return fits ? work->n_prefill : -1;
    if (work->n_draft > seq->draft.n || seq->n + work->n_draft > ctx->n_ctx) return -1;
    if (ctx->recurrent && work->n_draft > ctx->n_rs) return -1;
    return missing + work->n_draft;
}

static ps_status add_work(ps_engine *engine, const ps_work *work, int32_t n_rows) {
    ps_seq *const seq = &engine->seq[work->seq];
    const int32_t from = engine->role[PS_TARGET].n_kv[work->seq];
    const int32_t first = work->n_draft == ALL_ROWS ? from : seq->n - 1; /* wanted row */
    for (int32_t pos = from; pos < from + n_rows; pos++) {
        const int32_t token = pos < seq->n ? seq->token[pos] : seq->draft.token[pos - seq->n];
        const bool wanted = work->n_draft != -1 && pos >= first;
        if (pos == first) seq->row = engine->rows.n;
        PS_TRY(ps_rows_add(&engine->rows, work->seq, pos, token, wanted));
    }
    seq->rows = from + n_rows - first;
    seq->verified = work->n_draft < 0 ? -1 : work->n_draft;
    return PS_OK;
}

/* Keep the states of committed rows before the last one; later ones wait for acceptance. */
static void keep_states(ps_engine *engine, const ps_work *work, int32_t from, int32_t row) {
    const int32_t n = work->n_draft == -1 ? work->n_prefill : engine->seq[work->seq].n - 1 - from;
    if (n > 0) ps_draft_keep_states(engine, work->seq, from, row, n);
}

/* If a memory was emptied, all rows may not fit one batch: read those sequences up to their last token first. */
static ps_status catch_up(ps_engine *engine, int32_t n, const ps_work *work) {
    ps_ctx *const ctx = &engine->role[PS_TARGET];
    int64_t rows = 0;
    for (int32_t i = 0; i < n; i++) rows += rows_needed(engine, &work[i]);
    for (int32_t i = 0; rows > ctx->n_batch && i < n; i++) {
        const int32_t seq = work[i].seq, end = engine->seq[seq].n - 1;
        if (work[i].n_draft < 0 || ctx->n_kv[seq] > 0) continue;
        while (ctx->n_kv[seq] < end) PS_TRY(prefill(engine, PS_TARGET, seq, end, ctx->n_batch));
    }
    return PS_OK;
}

static ps_status verify(ps_engine *engine, int32_t n, const ps_work *work) {
    ps_ctx *const ctx = &engine->role[PS_TARGET];
    PS_FAIL_UNLESS(ctx->ctx, PS_E_STATE);
    ps_slot *const slots = engine->slot;
    int32_t room = ctx->n_batch;
    ps_begin(engine);
    for (int32_t i = 0; i < n; i++) PS_TRY(ps_seq_claim(engine, work[i].seq));
    PS_TRY(catch_up(engine, n, work));
    for (int32_t i = 0; i < n; i++) {
        slots[i] = (ps_slot){.n_rows = rows_needed(engine, &work[i]), .from = ctx->n_kv[work[i].seq]};
        PS_FAIL_IF(slots[i].n_rows < 1 || slots[i].n_rows > room, PS_E_ARG);
        room -= slots[i].n_rows;
    }
    engine->rows.n = 0;
    for (int32_t s = 0; s < engine->n_seq; s++) engine->seq[s].row = -1;
    for (int32_t i = 0; i < n; i++) {
        slots[i].row = engine->rows.n;
        PS_TRY(add_work(engine, &work[i], slots[i].n_rows));
    }
    const ps_status status = ps_ctx_decode(engine, PS_TARGET);
    for (int32_t i = 0; status != PS_OK && i < n; i++) engine->seq[work[i].seq].row = -1;
    PS_TRY(status);
    for (int32_t i = 0; ps_reads_states(engine) && i < n; i++) keep_states(engine, &work[i], slots[i].from, slots[i].row);
    return PS_OK;
}

ps_status ps_verify(ps_engine *engine, int32_t n, const ps_work *work) {
    PS_FAIL_IF(!engine || !work || n < 1 || n > engine->n_seq, PS_E_ARG);
    PS_FAIL_UNLESS(ps_lock(engine), PS_E_BUSY);
    const ps_status status = verify(engine, n, work);
    ps_unlock(engine);
    return status;
}

ps_status ps_target_row(ps_engine *engine, int32_t seq, int32_t i, const float **row) {
    PS_FAIL_IF(!engine || !row || !ps_seq_valid(engine, seq), PS_E_ARG);
    const ps_seq *const s = &engine->seq[seq];
    PS_FAIL_IF(s->row < 0 || i < 0 || i >= s->rows, PS_E_STATE);
    *row = ps_ctx_logits(&engine->role[PS_TARGET], s->row + i);
    PS_FAIL_UNLESS(*row, PS_E_DECODE);
    return PS_OK;
}
