/* The acceptance rule: a pure function of one row, the gate and its state. */
#include <math.h>
#include <stdbool.h>

#include "pyspec.h"

/*
 * MARS (arXiv 2601.15498) takes the runner-up where z2 / z1 > theta, raw logits. For z1 <= 0 that ratio means nothing (two
 * negative logits far apart would always open the gate), and what it means for z1 > 0 varies from model to model, so a
 * gap in nats bounds it: the runner-up is at least exp(-gap) times as likely as the first, where it counts: in the
 * distribution that is sampled from. Comparisons are written so that a NaN closes the gate.
 */
static bool open(const ps_gate *gate, const ps_row *row, float gap) {
    return gate->theta < 1 && gate->budget > 0 && row->z1 > 0 && row->z2 / row->z1 > gate->theta && gap < INFINITY &&
           gap <= gate->gap;
}

/* Above temperature 0 the sampler may have chosen past the first. */
static bool candidate(const ps_gate *gate, const ps_row *row, int32_t token) {
    return token >= 0 && (token == row->second || (gate->sampled && token == row->first));
}

ps_status ps_gate_decide(const ps_gate *gate, ps_gate_state *state, const ps_row *row, float gap, float missing,
                         int32_t chosen, int32_t drafted, int32_t barred, int32_t *verdict, float *nats) {
    if (!state || !row || !verdict || !nats) return PS_E_ARG;
    *verdict = PS_REJECTED;
    *nats = 0;
    if (drafted == chosen) {
        *verdict = PS_EXACT;
        return PS_OK;
    }
    if (!gate || barred || !open(gate, row, gap) || !candidate(gate, row, drafted)) return PS_OK;
    const float behind = drafted == row->first || gap < 0 ? 0 : gap;
    /* -log of its probability: by so much the text is likelier at this place than one that is drawn */
    const float charge = behind + (gate->sampled && missing > 0 ? missing : 0);
    if (!(state->spent + charge <= gate->budget)) return PS_OK;
    *verdict = PS_RELAXED;
    *nats = behind;
    state->spent += charge;
    return PS_OK;
}
