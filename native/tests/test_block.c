/* Block verification on a toy llama.cpp, and its arithmetic against the paper's, arXiv 2403.10444. */
#include <math.h>

#include "../ps_internal.h"
#include "check.h"
#include "fixture.h"

/* A draft of the target's own rows is never refused, another one at times; and one that was drawn is verified whole. */
static void test_drafts_are_verified_whole(void) {
    const ps_coupling drawn = {.seed = 5, .temperature = 0.9f, .block = 1};
    const ps_coupling cut = {.seed = 5, .temperature = 0.9f, .min_p = 0.2f, .block = 1};
    for (int32_t noise = 0; noise <= 600; noise += 300) {
        for (int32_t length = 1; length <= 64; length *= 4) {
            fixture w = make(noise);
            w.draft.vocab.n_tokens = noise > 300 ? N_VOCAB - 8 : N_VOCAB; /* some pad theirs differently */
            begin(&w);
            int32_t text[N_TEXT + PS_MAX_DRAFT], n;
            CHECK(answer(&w, 0, &(mode){.length = length, .coupling = drawn}, text, &n) == PS_OK);
            ps_counters counters;
            CHECK(ps_counters_get(w.engine, &counters) == PS_OK);
            CHECK((counters.rows[PS_TARGET] == n - 1) == (noise == 0));
            CHECK(answer(&w, 1, &(mode){.length = length, .coupling = cut, .companion = length > 4}, text, &n) == PS_OK);
            CHECK(answer(&w, 2, &(mode){.length = length, .coupling = drawn, .trim = 1}, text, &n) == PS_E_STATE);
            end(&w);
        }
    }
}

/* Draws of one row come as often as it says, and the weights are those of the paper. */
static void test_weights(void) {
    enum { N = 4 };
    float kept[2 * N] = {0.0f, 1.0f, 2.0f, -1.0f, 0.5f, 0.5f, 0.5f, 0.5f};
    ps_engine engine = {.n_vocab = N};
    engine.role[PS_DRAFT].n_vocab = N;
    ps_seq seq = {.n = 3, .kept = kept, .verified = 2, .coupling = {.seed = 1, .temperature = 1.0f, .block = 1}};
    seq.draft = (ps_draft){.n = 2, .token = {2, 0}};
    seq.drawn[0] = (ps_drawn){.floor = 0.0f, .log_mass = log(1 + exp(1) + exp(2))}; /* token 3 is under the floor */
    seq.drawn[1] = (ps_drawn){.floor = -INFINITY, .log_mass = log(4) + 0.5};
    const struct llama_token_data p[] = {{3, logf(0.5f), 0}, {2, logf(0.25f), 0}, {0, logf(0.25f), 0}};
    const ps_candidates target = {p, 3};
    const double q0 = 1 / (1 + exp(1) + exp(2)), q2 = exp(2) * q0;
    double left, next;
    ps_block_weigh(&engine, &seq, 0, target, 1, &left, &next);
    CHECK(fabs(left - (0.5 + 0.25 - q0)) < 1e-6 && fabs(next - 0.25 / q2) < 1e-6);
    ps_block_weigh(&engine, &seq, 1, target, next, &left, &next);
    const double weight = 0.25 / q2; /* of one token; the second has the target's own probability */
    CHECK(fabs(left - fmax(0, 0.5 * weight - 0.25)) < 1e-6 && fabs(next - weight) < 1e-6);
    seq.drawn[1] = (ps_drawn){.alone = true};
    ps_block_weigh(&engine, &seq, 1, target, 0.5, &left, &next);
    CHECK(fabs(left - 0.375) < 1e-6 && fabs(next - 0.125) < 1e-6);
    int32_t accepted = 0;
    for (seq.n = 0; seq.n < 4000; seq.n++) accepted += ps_block_accepts(&seq, 1, 0.3);
    CHECK(accepted > 1100 && accepted < 1300 && ps_block_accepts(&seq, 0, 1) && !ps_block_accepts(&seq, 0, 0));
}

int main(void) {
    fake_bind();
    RUN(test_drafts_are_verified_whole);
    RUN(test_weights);
    return REPORT();
}
