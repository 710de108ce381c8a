/* The acceptance rule: a pure function of one row, the gate and its state. */
#include <math.h>
#include <stdbool.h>

#include "ps_error.h"

/*
 * MARS (arXiv 2601.15498) takes the runner-up where z2 / z1 > theta, raw logits. For z1 <= 0 that ratio is meaningless (two
 * negative logits far apart would always open the gate), and for z1 > 0 its meaning varies from model to model. So a gap in nats
 * bounds it: in the distribution that is sampled from, the runner-up is at least exp(-gap) times as likely as the first.
 * Comparisons are written so that a NaN closes the gate.
 */
static bool open(const ps_gate *gate, const ps_row *row, float gap) {
    return gate->theta < 1 && gate->budget > 0 && row->z1 > 0 && row->z2 / row->z1 > gate->theta && gap < INFINITY &&
           gap <= gate->gap;
}

/* Above temperature 0 the sampler may have drawn another token than the first. */
static bool candidate(const ps_gate *gate, const ps_row *row, int32_t token) {
    return token >= 0 && (token == row->second || (gate->sampled && token == row->first));
}

int32_t ps_gate_may(const ps_gate *gate, const ps_row *row, float gap, int32_t drafted) {
    return gate && row && open(gate, row, gap) && candidate(gate, row, drafted);
}

/* FLy (arXiv 2511.22972) has such a condition: the target agrees with the draft again at once, for this many tokens. */
static bool rejoined(const ps_gate *gate, const ps_evidence *seen) { return seen->behind >= gate->confirm; }

ps_status ps_gate_decide(const ps_gate *gate, ps_gate_state *state, const ps_row *row, const ps_evidence *seen,
                         int32_t chosen, int32_t drafted, int32_t barred, int32_t *verdict, float *nats) {
    PS_FAIL_IF(!state || !row || !seen || !verdict || !nats, PS_E_ARG);
    PS_FAIL_IF(gate && gate->confirm > PS_MAX_CONFIRM, PS_E_ARG);
    *verdict = PS_REJECTED;
    *nats = 0;
    if (drafted == chosen) {
        *verdict = PS_EXACT;
        return PS_OK;
    }
    if (barred || !ps_gate_may(gate, row, seen->gap, drafted)) return PS_OK;
    const float behind = drafted == row->first || seen->gap < 0 ? 0 : seen->gap;
    /* -log of its probability: how much likelier the text is at this place than a drawn one */
    const float charge = behind + (gate->sampled && seen->missing > 0 ? seen->missing : 0);
    if (!(state->spent + charge <= gate->budget) || !rejoined(gate, seen)) return PS_OK;
    *verdict = PS_RELAXED;
    *nats = behind;
    state->spent += charge;
    return PS_OK;
}
