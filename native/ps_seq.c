/* Committed tokens of a sequence: setting, appending, sharing a prefix. */
#include <string.h>

#include "ps_internal.h"

ps_status ps_seq_append(ps_seq *seq, const int32_t *tokens, int32_t n) {
    PS_TRY(ps_grow(&seq->token, &seq->cap, seq->n + n, sizeof *seq->token));
    if (n > 0) memcpy(seq->token + seq->n, tokens, (size_t)n * sizeof *tokens);
    seq->n += n;
    return PS_OK;
}

/* Drop the first n_matched drafted tokens, which were committed, and keep the rest as the beginning of the next draft. */
void ps_seq_drop_draft(ps_seq *seq, int32_t n_matched, int32_t n_vocab) {
    ps_draft *const draft = &seq->draft;
    const int32_t n = draft->n - n_matched;
    /* a draft from elsewhere has no probabilities to continue with: it is looked up again */
    if (n <= 0 || draft->p[n_matched] == 0.0f) {
        draft->n = draft->scored = 0;
        return;
    }
    memmove(draft->token, draft->token + n_matched, (size_t)n * sizeof *draft->token);
    memmove(draft->p, draft->p + n_matched, (size_t)n * sizeof *draft->p);
    for (int32_t i = 0; i < n; i++) {
        const size_t width = (size_t)n_vocab;
        seq->has_row[i] = seq->has_row[i + n_matched];
        if (seq->has_row[i] && n_matched > 0) {
            memcpy(seq->kept + (size_t)i * width, seq->kept + (size_t)(i + n_matched) * width, width * sizeof *seq->kept);
        }
    }
    draft->n = n;
    draft->scored = 0;
}

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

static int32_t common_prefix(const ps_seq *seq, const int32_t *tokens, int32_t n) {
    int32_t i = 0;
    while (i < n && i < seq->n && seq->token[i] == tokens[i]) i++;
    return i;
}

static bool ids_valid(const ps_engine *engine, const int32_t *tokens, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || tokens[i] >= engine->n_vocab) return false;
    }
    return true;
}

/* Others may have used a role's context: what its memory holds beyond `keep`, or beyond our count, is not ours. */
static void settle(ps_engine *engine, int32_t role, int32_t seq, int32_t keep) {
    ps_ctx *const ctx = &engine->role[role];
    if (!ctx->ctx) return;
    ctx->n_kv[seq] = ps_api.memory_seq_pos_max(ps_api.get_memory(ctx->ctx), seq) + 1;
    ctx->tail[seq] = -1; /* what they decoded last is unknown */
    ps_ctx_roll_back(engine, role, seq, keep);
}

static ps_status seq_set(ps_engine *engine, int32_t index, const int32_t *tokens, int32_t n, int32_t n_held,
                         int32_t *n_kept) {
    ps_seq *const seq = &engine->seq[index];
    PS_FAIL_UNLESS(ids_valid(engine, tokens, n), PS_E_ARG);
    /* the last token is always decoded in a verify, so that its logits are available */
    const int32_t most = n > 0 ? n - 1 : 0;
    const int32_t common = common_prefix(seq, tokens, n);
    const int32_t keep = least(common, most);
    ps_ctx *const target = &engine->role[PS_TARGET];
    const int32_t known = n_held < 0 ? least(keep, target->n_kv[index]) : least(n_held, most);
    settle(engine, PS_TARGET, index, known);
    if (n_held >= 0 && target->ctx) ps_api.set_embeddings(target->ctx, false); /* they may have switched them on */
    for (int32_t r = PS_DRAFT; r < PS_N_ROLES; r++) ps_ctx_roll_back(engine, r, index, keep);
    ps_states_cut(&seq->states, keep);
    seq->n = 0;
    seq->row = seq->tempered_at = -1;
    seq->draft.n = seq->draft.scored = 0;
    PS_TRY(ps_seq_append(seq, tokens, n));
    if (n_kept) *n_kept = engine->role[PS_TARGET].n_kv[index];
    return PS_OK;
}

ps_status ps_seq_set(ps_engine *engine, int32_t seq, const int32_t *tokens, int32_t n, int32_t n_held,
                     int32_t *n_kept) {
    PS_FAIL_IF(!engine || !ps_seq_valid(engine, seq) || n < 0 || (n > 0 && !tokens), PS_E_ARG);
    PS_FAIL_UNLESS(ps_lock(engine), PS_E_BUSY);
    const ps_status status = seq_set(engine, seq, tokens, n, n_held, n_kept);
    ps_unlock(engine);
    return status;
}

ps_status ps_seq_put_back(ps_engine *engine, int32_t role, int32_t seq, int32_t n) {
    PS_FAIL_IF(!engine || role <= PS_TARGET || role >= PS_N_ROLES || !ps_seq_valid(engine, seq), PS_E_ARG);
    PS_FAIL_IF(n < 0 || (role == PS_DRAFT && ps_reads_states(engine)), PS_E_ARG);
    PS_FAIL_UNLESS(ps_lock(engine), PS_E_BUSY);
    settle(engine, role, seq, least(n, engine->seq[seq].n));
    ps_unlock(engine);
    return PS_OK;
}

static ps_status seq_copy(ps_engine *engine, int32_t from, int32_t to, int32_t n) {
    const ps_seq *const source = &engine->seq[from];
    ps_seq *const target = &engine->seq[to];
    PS_FAIL_IF(n > source->n, PS_E_ARG);
    PS_TRY(seq_set(engine, to, NULL, 0, -1, NULL));
    PS_TRY(ps_seq_append(target, source->token, n));
    target->begun = source->begun;
    for (int32_t r = 0; r < PS_N_ROLES; r++) {
        ps_ctx *const ctx = &engine->role[r];
        if (!ctx->ctx) continue;
        const int32_t held = ctx->n_kv[from] < n ? ctx->n_kv[from] : n;
        if (held == 0 || ctx->shared || (ctx->recurrent && ctx->tail[from] < 0)) continue; /* a copy would be stale */
        /* whole sequences only: a KV with one stream per sequence aborts on a partial copy */
        ps_api.memory_seq_cp(ps_api.get_memory(ctx->ctx), from, to, -1, -1);
        ctx->n_kv[to] = ctx->n_kv[from];
        ctx->saved[to] = 0; /* seq_set above emptied it */
        ctx->tail[from] = ctx->tail[to] = 0; /* one state for both until either goes on */
        ps_ctx_roll_back(engine, r, to, held);
    }
    return ps_reads_states(engine) ? ps_states_copy(engine, from, to, engine->role[PS_TARGET].n_kv[to]) : PS_OK;
}

ps_status ps_seq_copy(ps_engine *engine, int32_t from, int32_t to, int32_t n) {
    PS_FAIL_IF(!engine || !ps_seq_valid(engine, from) || !ps_seq_valid(engine, to) || from == to || n < 0, PS_E_ARG);
    PS_FAIL_UNLESS(ps_lock(engine), PS_E_BUSY);
    const ps_status status = seq_copy(engine, from, to, n);
    ps_unlock(engine);
    return status;
}

ps_status ps_seq_couple(ps_engine *engine, int32_t seq, const ps_coupling *how) {
    PS_FAIL_IF(!engine || !ps_seq_valid(engine, seq) || (how && !ps_coupling_sound(how)), PS_E_ARG);
    PS_FAIL_UNLESS(ps_lock(engine), PS_E_BUSY);
    engine->seq[seq].coupling = how ? *how : (ps_coupling){0};
    engine->seq[seq].tempered_at = -1;
    engine->seq[seq].draft.n = engine->seq[seq].draft.scored = 0; /* the rest of the draft was drawn in another way */
    ps_unlock(engine);
    return PS_OK;
}
