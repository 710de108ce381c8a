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

/*
 * Four conditions on a relaxed token, in any combination.
 *
 * By what follows (FLy, arXiv 2511.22972): the target agrees with the draft again at once, for this many tokens.
 */
static bool rejoined(const ps_gate *gate, const ps_evidence *seen) { return seen->behind >= gate->confirm; }

/* By the shapes of both rows (arXiv 2601.04766, whose judge is a bound on this divergence). */
static bool alike(const ps_gate *gate, const ps_evidence *seen) {
    return gate->kl == INFINITY || (seen->kl < INFINITY && seen->kl <= gate->kl);
}

/* By the draft's own doubt: near a tie its preference says least. */
static bool doubted(const ps_gate *gate, const ps_evidence *seen) { return seen->doubt >= gate->doubt; }

/* By what the last tokens have cost. */
static bool within(const ps_gate *gate, const ps_gate_state *state, const ps_evidence *seen, float charge) {
    if (gate->span <= 0) return true;
    float recent = charge;
    const int32_t held = state->n < PS_MAX_SPAN ? state->n : PS_MAX_SPAN;
    for (int32_t i = 0; i < held; i++) {
        if (state->position[i] > seen->position - gate->span) recent += state->charge[i];
    }
    return recent <= gate->window;
}

static bool confirmed(const ps_gate *gate, const ps_gate_state *state, const ps_evidence *seen, float charge) {
    return rejoined(gate, seen) && alike(gate, seen) && doubted(gate, seen) && within(gate, state, seen, charge);
}

static void spend(ps_gate_state *state, const ps_evidence *seen, float charge) {
    const int32_t at = state->n % PS_MAX_SPAN;
    state->position[at] = seen->position;
    state->charge[at] = charge;
    state->n = state->n < 2 * PS_MAX_SPAN - 1 ? state->n + 1 : PS_MAX_SPAN; /* never back below a full ring */
    state->spent += charge;
}

ps_status ps_gate_decide(const ps_gate *gate, ps_gate_state *state, const ps_row *row, const ps_evidence *seen,
                         int32_t chosen, int32_t drafted, int32_t barred, int32_t *verdict, float *nats) {
    PS_FAIL_IF(!state || !row || !seen || !verdict || !nats || state->n < 0, PS_E_ARG);
    PS_FAIL_IF(gate && (gate->span > PS_MAX_SPAN || gate->confirm > PS_MAX_CONFIRM), PS_E_ARG);
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
    if (!(state->spent + charge <= gate->budget) || !confirmed(gate, state, seen, charge)) return PS_OK;
    *verdict = PS_RELAXED;
    *nats = behind;
    spend(state, seen, charge);
    return PS_OK;
}
