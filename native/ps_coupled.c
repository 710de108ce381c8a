/*
 * A coupled draft's inputs: E[token] + W_h * (target's final state one position before) where the target has been, and
 * E[token] + W_s * (the draft's own state one position before) for the tokens it drafts on from there.
 */
#include <stdlib.h>
#include <string.h>

#include "ps_internal.h"

bool ps_coupled(const ps_engine *engine) { return engine->coupling.width > 0; }

static ps_status couple(ps_engine *engine, const ps_coupling *coupling) {
    ps_ctx *const draft = &engine->role[PS_DRAFT];
    PS_FAIL_UNLESS(draft->ctx && engine->role[PS_TARGET].ctx, PS_E_STATE);
    PS_TRY(ps_rows_reserve(&engine->rows, engine->rows.cap, coupling->width));
    for (int32_t s = 0; s < engine->n_seq; s++) {
        float *const own = realloc(engine->seq[s].own, (size_t)coupling->width * sizeof *own);
        PS_FAIL_UNLESS(own, PS_E_NOMEM);
        engine->seq[s].own = own;
    }
    engine->coupling = *coupling;
    ps_ctx_want_states(draft, true);
    return PS_OK;
}

ps_status ps_engine_couple(ps_engine *engine, const float *embeddings, const float *w_h, const float *w_s, int32_t n_hidden,
                           int32_t width, int32_t window) {
    PS_FAIL_IF(!engine || !embeddings || !w_h || !w_s || n_hidden < 1 || width < 1 || window < 1, PS_E_ARG);
    PS_FAIL_UNLESS(ps_lock(engine), PS_E_BUSY);
    const ps_coupling coupling = {embeddings, w_h, w_s, n_hidden, width, window};
    const ps_status status = couple(engine, &coupling);
    ps_unlock(engine);
    return status;
}

/* out += matrix[width][n] * vector[n]; eight partial sums so that the compiler may vectorise without reordering licence */
static void add_product(float *restrict out, const float *restrict matrix, const float *restrict vector, int32_t width,
                        int32_t n) {
    for (int32_t r = 0; r < width; r++) {
        const float *const restrict row = matrix + (size_t)r * (size_t)n;
        float sum[16] = {0};
        int32_t i = 0;
        for (; i + 16 <= n; i += 16) {
            for (int32_t k = 0; k < 16; k++) sum[k] += row[i + k] * vector[i + k];
        }
        for (; i < n; i++) sum[0] += row[i] * vector[i];
        for (int32_t k = 1; k < 16; k++) sum[0] += sum[k];
        out[r] += sum[0];
    }
}

static void add_row(ps_engine *engine, int32_t seq, int32_t pos, int32_t token, bool wanted, const float *matrix,
                    const float *state, int32_t n) {
    const ps_coupling *const c = &engine->coupling;
    float *const input = engine->rows.embd + (size_t)engine->rows.n * (size_t)c->width;
    memcpy(input, c->embeddings + (size_t)token * (size_t)c->width, (size_t)c->width * sizeof *input);
    if (n > 0) add_product(input, matrix, state, c->width, n);
    ps_rows_add(&engine->rows, seq, pos, token, wanted);
}

void ps_coupled_true_row(ps_engine *engine, int32_t seq, int32_t pos, bool wanted) {
    const ps_seq *const s = &engine->seq[seq];
    const int32_t n = engine->coupling.n_hidden;
    if (pos == 0) { /* nothing came before: the embedding alone */
        add_row(engine, seq, pos, s->token[pos], wanted, engine->coupling.w_h, NULL, 0);
        return;
    }
    const float *const state = s->states.data + (size_t)(pos - 1 - s->states.first) * (size_t)n;
    add_row(engine, seq, pos, s->token[pos], wanted, engine->coupling.w_h, state, n);
}

void ps_coupled_own_row(ps_engine *engine, int32_t seq, int32_t pos, int32_t token, bool wanted) {
    add_row(engine, seq, pos, token, wanted, engine->coupling.w_s, engine->seq[seq].own, engine->coupling.width);
}

ps_status ps_coupled_keep_own(ps_engine *engine, int32_t seq, int32_t row) {
    const float *const state = ps_api.get_embeddings_ith(engine->role[PS_DRAFT].ctx, row);
    PS_FAIL_UNLESS(state, PS_E_DECODE);
    memcpy(engine->seq[seq].own, state, (size_t)engine->coupling.width * sizeof *state);
    return PS_OK;
}

void ps_states_cut(ps_states *states, int32_t end) {
    if (end < states->first + states->n) states->n = end > states->first ? end - states->first : 0;
}

static void forget_before(ps_engine *engine, ps_states *states, int32_t first) {
    const int32_t gone = first - states->first;
    if (gone <= 0) return;
    const int32_t left = states->n > gone ? states->n - gone : 0;
    const size_t width = (size_t)engine->coupling.n_hidden;
    memmove(states->data, states->data + (size_t)gone * width, (size_t)left * width * sizeof *states->data);
    states->first = first;
    states->n = left;
}

/* Keep the target's states of n rows of its last decode, which stand at positions pos, pos + 1, ... */
ps_status ps_coupled_keep_states(ps_engine *engine, int32_t seq, int32_t pos, int32_t row, int32_t n) {
    ps_states *const states = &engine->seq[seq].states;
    const size_t width = (size_t)engine->coupling.n_hidden;
    if (states->n == 0 || pos > states->first + states->n || pos < states->first) {
        states->first = pos;
        states->n = 0;
    }
    ps_states_cut(states, pos);
    /* a later text may begin with this one, so old states are worth keeping; twice the window, to move them seldom */
    const int32_t window = engine->coupling.window;
    if (states->n + n > 2 * window) forget_before(engine, states, states->first + states->n - window);
    PS_TRY(ps_grow(&states->data, &states->cap, states->n + n, width * sizeof *states->data));
    for (int32_t i = 0; i < n; i++) {
        const float *const state = ps_api.get_embeddings_ith(engine->role[PS_TARGET].ctx, row + i);
        PS_FAIL_UNLESS(state, PS_E_DECODE);
        memcpy(states->data + (size_t)states->n++ * width, state, width * sizeof *state);
    }
    return PS_OK;
}

/* Before drafting: the KV must reach into the states that are there; if it does not, begin again at the oldest state. False
 * where the target's newest state is missing, as after a text that goes back further than the states kept. */
bool ps_coupled_begin(ps_engine *engine, int32_t seq) {
    const ps_seq *const s = &engine->seq[seq];
    ps_ctx *const draft = &engine->role[PS_DRAFT];
    const int32_t held = draft->n_kv[seq];
    const int32_t last = s->states.first + s->states.n; /* the newest position that can be fed */
    if (s->states.n == 0 || last != s->n - 1) return false;
    const int32_t oldest = s->states.first == 0 ? 0 : s->states.first + 1;
    if (held >= oldest && held <= last) return true;
    ps_api.memory_seq_rm(ps_api.get_memory(draft->ctx), seq, -1, -1);
    draft->n_kv[seq] = oldest;
    return true;
}
