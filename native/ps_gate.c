/* The acceptance rule: a pure function of one row, the gate and its state. */
#include <math.h>
#include <stdbool.h>

#include "pyspec.h"

/*
 * MARS (arXiv 2601.15498) takes the runner-up where z2 / z1 > theta, raw logits. For z1 <= 0 that ratio means nothing (two
 * negative logits far apart would always open the gate), and what it means for z1 > 0 varies from model to model, so a
 * gap in nats bounds it: the runner-up is at least exp(-gap) times as likely as the first. Comparisons are written
 * so that a NaN closes the gate.
 */
static bool open(const ps_gate *gate, const ps_row *row) {
    return gate->theta < 1 && row->z1 > 0 && row->z2 / row->z1 > gate->theta && row->z1 - row->z2 <= gate->gap;
}

/* The token's logit, if it is one the gate may take. Above temperature 0 the sampler may have chosen past the first. */
static bool candidate(const ps_gate *gate, const ps_row *row, int32_t token, float *z) {
    *z = token == row->first ? row->z1 : row->z2;
    return token >= 0 && (token == row->second || (gate->sampled && token == row->first));
}

static bool within(const ps_gate *gate, const ps_gate_state *state, float nats) {
    return (gate->cap < 0 || state->in_row < gate->cap) && state->spent + nats <= gate->budget;
}

ps_status ps_gate_decide(const ps_gate *gate, ps_gate_state *state, const ps_row *row, int32_t chosen, int32_t drafted,
                         int32_t barred, int32_t *verdict, float *nats) {
    if (!state || !row || !verdict || !nats) return PS_E_ARG;
    *verdict = PS_REJECTED;
    *nats = 0;
    if (drafted == chosen) {
        *verdict = PS_EXACT;
        state->in_row = 0;
        return PS_OK;
    }
    float z;
    if (!gate || barred || !open(gate, row) || !candidate(gate, row, drafted, &z)) return PS_OK;
    const float gap = row->z1 - z > 0 ? row->z1 - z : 0;
    if (!within(gate, state, gap)) return PS_OK;
    *verdict = PS_RELAXED;
    *nats = gap;
    state->spent += gap;
    state->in_row++;
    return PS_OK;
}
