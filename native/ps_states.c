/*
 * The target's hidden states, kept for a draft that reads them: the inputs of some layers side by side (EAGLE-3, DFlash), or
 * those that its next-token heads read (MTP).
 */
#include <string.h>

#include "ps_internal.h"

/* Make the target's context output, or no longer output, what the draft reads. */
void ps_states_want(ps_engine *engine, bool wanted) {
    const ps_reading *const c = &engine->reading;
    struct llama_context *const target = engine->role[PS_TARGET].ctx;
    bool nextn = c->n_layers == 0;
    for (int32_t k = 0; k < c->n_layers; k++) {
        if (c->layer[k] < 0) nextn = true;
        else ps_api.set_embeddings_layer_inp(target, (uint32_t)c->layer[k], wanted);
    }
    if (nextn) ps_api.set_embeddings_nextn(target, wanted, false);
}

/* Copy n rows of one layer, from `first` on, to their places between those of the other layers. */
static ps_status read_layer(const ps_engine *engine, int32_t k, int32_t first, int32_t n, float *out) {
    struct llama_context *const target = engine->role[PS_TARGET].ctx;
    const int32_t layer = engine->reading.layer[k];
    const float *const rows =
        layer < 0 ? ps_api.get_embeddings_nextn(target) : ps_api.get_embeddings_layer_inp(target, (uint32_t)layer);
    PS_FAIL_UNLESS(rows, PS_E_DECODE);
    const size_t n_layers = (size_t)engine->reading.n_layers, width = (size_t)engine->reading.n_hidden / n_layers;
    for (size_t i = 0; i < (size_t)n; i++) {
        memcpy(out + (i * n_layers + (size_t)k) * width, rows + ((size_t)first + i) * width, width * sizeof *out);
    }
    return PS_OK;
}

/* Copy the states of n rows of the target's last decode, from row `first` on. */
static ps_status read_states(const ps_engine *engine, int32_t first, int32_t n, float *out) {
    const ps_reading *const c = &engine->reading;
    struct llama_context *const target = engine->role[PS_TARGET].ctx;
    const size_t width = (size_t)c->n_hidden;
    for (int32_t k = 0; k < c->n_layers; k++) PS_TRY(read_layer(engine, k, first, n, out));
    for (int32_t i = 0; c->n_layers == 0 && i < n; i++) {
        const float *const row = ps_api.get_embeddings_nextn_ith(target, first + i);
        PS_FAIL_UNLESS(row, PS_E_DECODE);
        memcpy(out + (size_t)i * width, row, width * sizeof *out);
    }
    return PS_OK;
}

const float *ps_states_at(const ps_engine *engine, int32_t seq, int32_t pos) {
    const ps_states *const states = &engine->seq[seq].states;
    return states->data + (size_t)(pos - states->first) * (size_t)engine->reading.n_hidden;
}

void ps_states_cut(ps_states *states, int32_t end) {
    if (end < states->first + states->n) states->n = end > states->first ? end - states->first : 0;
}

/* Prepare for states from position pos on; true if older ones must go to make room for n. A later text may begin like this
 * one, so old states are worth keeping: up to four windows of them. */
bool ps_states_place(ps_engine *engine, int32_t seq, int32_t pos, int32_t n) {
    ps_states *const states = &engine->seq[seq].states;
    if (states->n == 0 || pos > states->first + states->n || pos < states->first) {
        states->first = pos;
        states->n = 0;
    }
    ps_states_cut(states, pos);
    return states->n + n > 4 * engine->reading.window;
}

/* Forget all but two windows of states: dropping few at a time would move the others often. */
void ps_states_forget(ps_engine *engine, int32_t seq) {
    ps_states *const states = &engine->seq[seq].states;
    const int32_t gone = states->n - 2 * engine->reading.window;
    if (gone <= 0) return;
    const size_t width = (size_t)engine->reading.n_hidden;
    states->first += gone;
    states->n -= gone;
    memmove(states->data, states->data + (size_t)gone * width, (size_t)states->n * width * sizeof *states->data);
}

/* Append the target's states of n rows of its last decode, from `row` on. */
ps_status ps_states_keep(ps_engine *engine, int32_t seq, int32_t row, int32_t n) {
    ps_states *const states = &engine->seq[seq].states;
    const size_t width = (size_t)engine->reading.n_hidden;
    PS_TRY(ps_grow(&states->data, &states->cap, states->n + n, width * sizeof *states->data));
    PS_TRY(read_states(engine, row, n, states->data + (size_t)states->n * width));
    states->n += n;
    return PS_OK;
}

ps_status ps_states_copy(ps_engine *engine, int32_t from, int32_t to, int32_t n) {
    const ps_states *const source = &engine->seq[from].states;
    ps_states *const states = &engine->seq[to].states;
    const size_t width = (size_t)engine->reading.n_hidden;
    PS_TRY(ps_grow(&states->data, &states->cap, source->n, width * sizeof *states->data));
    if (source->n > 0) memcpy(states->data, source->data, (size_t)source->n * width * sizeof *states->data);
    states->first = source->first;
    states->n = source->n;
    ps_states_cut(states, n);
    return PS_OK;
}
