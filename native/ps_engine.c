/* Opening, closing, attaching; the lock and the cancel flag. */
#include <stdlib.h>
#include <string.h>

#include "ps_internal.h"

bool ps_lock(ps_engine *engine) { return !atomic_flag_test_and_set_explicit(&engine->busy, memory_order_acquire); }

void ps_unlock(ps_engine *engine) { atomic_flag_clear_explicit(&engine->busy, memory_order_release); }

bool ps_seq_valid(const ps_engine *engine, int32_t seq) { return seq >= 0 && seq < engine->n_seq; }

void ps_begin(ps_engine *engine) { engine->mark++; }

ps_status ps_seq_claim(ps_engine *engine, int32_t seq) {
    PS_FAIL_UNLESS(ps_seq_valid(engine, seq) && engine->seq[seq].mark != engine->mark, PS_E_ARG);
    engine->seq[seq].mark = engine->mark;
    return PS_OK;
}

ps_status ps_engine_open(int32_t n_seq, int32_t n_vocab, ps_engine **out) {
    PS_FAIL_UNLESS(out, PS_E_ARG);
    *out = NULL;
    PS_FAIL_IF(n_seq < 1 || n_seq > 4096 || n_vocab < 1, PS_E_ARG);
    PS_FAIL_UNLESS(ps_api_ready(), PS_E_UNBOUND);
    ps_engine *const engine = calloc(1, sizeof *engine);
    PS_FAIL_UNLESS(engine, PS_E_NOMEM);
    engine->n_seq = n_seq;
    engine->n_vocab = n_vocab;
    engine->seq = calloc((size_t)n_seq, sizeof *engine->seq);
    engine->slot = calloc((size_t)n_seq, sizeof *engine->slot);
    bool complete = engine->seq && engine->slot;
    for (int32_t r = 0; r < PS_N_ROLES; r++) {
        engine->role[r].n_kv = calloc((size_t)n_seq, sizeof *engine->role[r].n_kv);
        engine->role[r].tail = calloc((size_t)n_seq, sizeof *engine->role[r].tail);
        engine->role[r].saved = calloc((size_t)n_seq, sizeof *engine->role[r].saved);
        complete = complete && engine->role[r].n_kv && engine->role[r].tail && engine->role[r].saved;
    }
    if (!complete) {
        ps_engine_close(engine);
        return PS_ERROR(PS_E_NOMEM);
    }
    for (int32_t s = 0; s < n_seq; s++) engine->seq[s].row = engine->seq[s].tempered_at = -1;
    atomic_flag_clear(&engine->busy);
    *out = engine;
    return PS_OK;
}

static void detach(ps_ctx *ctx) {
    if (ctx->ctx) ps_api.set_abort_callback(ctx->ctx, NULL, NULL);
    ctx->ctx = NULL;
}

void ps_engine_close(ps_engine *engine) {
    if (!engine) return;
    if (engine->seq) ps_inputs_end(engine);
    for (int32_t r = 0; r < PS_N_ROLES; r++) {
        detach(&engine->role[r]);
        free(engine->role[r].n_kv);
        free(engine->role[r].tail);
        free(engine->role[r].saved);
    }
    for (int32_t s = 0; engine->seq && s < engine->n_seq; s++) {
        free(engine->seq[s].token);
        free(engine->seq[s].kept);
        free(engine->seq[s].own);
        free(engine->seq[s].states.data);
    }
    ps_rows_free(&engine->rows);
    ps_rows_free(&engine->encoded);
    free(engine->candidates);
    free(engine->slot);
    free(engine->seq);
    free(engine);
}

/* llama.cpp calls this between graph nodes, from its own threads. */
static bool cancelled(void *engine) {
    return atomic_load_explicit(&((ps_engine *)engine)->cancelled, memory_order_relaxed) != 0;
}

static ps_status attach(ps_engine *engine, int32_t role, struct llama_context *ctx, const struct llama_model *model) {
    ps_ctx *const slot = &engine->role[role];
    if (role != PS_COMPANION) ps_inputs_end(engine);
    detach(slot);
    memset(slot->n_kv, 0, (size_t)engine->n_seq * sizeof *slot->n_kv);
    memset(slot->saved, 0, (size_t)engine->n_seq * sizeof *slot->saved);
    if (!ctx) return PS_OK;
    PS_FAIL_UNLESS(model, PS_E_ARG);
    const struct llama_vocab *const vocab = ps_api.model_get_vocab(model);
    const int32_t n_vocab = ps_api.vocab_n_tokens(vocab);
    PS_FAIL_IF(n_vocab < 1 || (role == PS_TARGET && n_vocab != engine->n_vocab), PS_E_ARG);
    slot->n_vocab = n_vocab < engine->n_vocab ? n_vocab : engine->n_vocab; /* some families pad theirs differently */
    PS_FAIL_IF((int32_t)ps_api.n_seq_max(ctx) < engine->n_seq, PS_E_ARG);
    slot->n_batch = (int32_t)ps_api.n_batch(ctx);
    slot->n_ubatch = (int32_t)ps_api.n_ubatch(ctx);
    slot->n_ctx = (int32_t)ps_api.n_ctx_seq(ctx);
    slot->n_swa = ps_api.model_n_swa(model);
    slot->n_embd = ps_api.model_n_embd(model);
    slot->n_out = ps_api.model_n_embd_out(model);
    const bool states = ps_api.model_is_recurrent(model) || ps_api.model_is_hybrid(model);
    /* MTP heads belong to a hybrid model, but their context has no states and no spare sequences */
    slot->spare = role != PS_TARGET && states && (int32_t)ps_api.n_seq_max(ctx) >= 2 * engine->n_seq ? engine->n_seq : 0;
    slot->recurrent = role == PS_TARGET ? states : slot->spare > 0;
    slot->shared = false;
    slot->n_rs = (int32_t)ps_api.n_rs_seq(ctx);
    slot->vocab = vocab;
    slot->ctx = ctx;
    ps_api.set_embeddings(ctx, false);
    ps_api.set_abort_callback(ctx, cancelled, engine);
    return ps_rows_reserve(&engine->rows, slot->n_batch, 0);
}

ps_status ps_engine_attach(ps_engine *engine, int32_t role, void *ctx, const void *model) {
    PS_FAIL_IF(!engine || role < 0 || role >= PS_N_ROLES, PS_E_ARG);
    PS_FAIL_UNLESS(ps_lock(engine), PS_E_BUSY);
    const ps_status status = attach(engine, role, ctx, model);
    if (status != PS_OK) detach(&engine->role[role]);
    ps_unlock(engine);
    return status;
}

void ps_engine_cancel(ps_engine *engine, int32_t raised) {
    if (engine) atomic_store_explicit(&engine->cancelled, raised, memory_order_relaxed);
}

ps_status ps_counters_get(const ps_engine *engine, ps_counters *out) {
    PS_FAIL_UNLESS(engine && out, PS_E_ARG);
    const ps_tally *const t = &engine->tally;
    for (int32_t r = 0; r < PS_N_ROLES; r++) {
        out->decodes[r] = atomic_load_explicit(&t->decodes[r], memory_order_relaxed);
        out->rows[r] = atomic_load_explicit(&t->rows[r], memory_order_relaxed);
        out->us[r] = atomic_load_explicit(&t->us[r], memory_order_relaxed);
    }
    out->refed = atomic_load_explicit(&t->refed, memory_order_relaxed);
    out->last_decode = atomic_load_explicit(&t->last_decode, memory_order_relaxed);
    return PS_OK;
}

ps_status ps_engine_temper(ps_engine *engine, int32_t which, int32_t *chosen) {
    PS_FAIL_IF(!engine || !chosen || which >= PS_N_TEMPERS, PS_E_ARG);
    PS_FAIL_UNLESS(ps_lock(engine), PS_E_BUSY);
    if (which >= 0) engine->temper = (ps_temper){.chosen = which};
    *chosen = engine->temper.chosen;
    ps_unlock(engine);
    return PS_OK;
}

ps_status ps_seq_state(const ps_engine *engine, int32_t role, int32_t seq, int32_t *n_kv, int32_t *n_committed) {
    PS_FAIL_IF(!engine || role < 0 || role >= PS_N_ROLES || !ps_seq_valid(engine, seq), PS_E_ARG);
    if (n_kv) *n_kv = engine->role[role].n_kv[seq];
    if (n_committed) *n_committed = engine->seq[seq].n;
    return PS_OK;
}

ps_status ps_engine_read_states(ps_engine *engine, const ps_reading *reading) {
    PS_FAIL_IF(!engine || !reading, PS_E_ARG);
    PS_FAIL_UNLESS(ps_lock(engine), PS_E_BUSY);
    const ps_status status = ps_inputs_read(engine, reading);
    ps_unlock(engine);
    return status;
}
