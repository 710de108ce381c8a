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

enum { N = 4, MANY = 20000 };

/* Token 3 is under the first row's floor; the second row is flat. */
static float kept[2 * N] = {0.0f, 1.0f, 2.0f, -1.0f, 0.5f, 0.5f, 0.5f, 0.5f};
static const struct llama_token_data P[] = {{3, -0.6931472f, 0}, {2, -1.3862944f, 0}, {0, -1.3862944f, 0}}; /* 1/2, 1/4, 1/4 */
static const ps_candidates TARGET = {P, 3};

/* A draft of tokens 2 and 0, and the engine over it. */
static ps_seq drafted(ps_engine *engine) {
    *engine = (ps_engine){.n_vocab = N};
    engine->role[PS_DRAFT].n_vocab = N;
    ps_seq seq = {.n = 3, .kept = kept, .verified = 2, .coupling = {.seed = 1, .temperature = 1.0f, .block = 1}};
    seq.draft.n = 2;
    seq.draft.token[0] = 2;
    seq.drawn[0] = (ps_drawn){.floor = 0.0f, .log_mass = log(1 + exp(1) + exp(2)), .n = PS_FEW + 1};
    seq.drawn[1] = (ps_drawn){.floor = -INFINITY, .log_mass = log(4) + 0.5, .n = PS_FEW + 1};
    return seq;
}

static bool near(double a, double b) { return fabs(a - b) < 1e-6; }

static void test_weights(void) {
    ps_engine engine;
    ps_seq seq = drafted(&engine);
    const double q0 = 1 / (1 + exp(1) + exp(2)), weight = 0.25 / (exp(2) * q0); /* of one token; the second has the target's share */
    double left, next;
    ps_block_weigh(&engine, &seq, 0, TARGET, 1, &left, &next);
    CHECK(near(left, 0.75 - q0) && near(next, weight));
    ps_block_weigh(&engine, &seq, 1, TARGET, weight, &left, &next);
    CHECK(near(left, fmax(0, 0.5 * weight - 0.25)) && near(next, weight));
    ps_block_weigh(&engine, &seq, 1, TARGET, 0.8, &left, &next);
    CHECK(near(left, 0.15) && near(next, 0.8));
    seq.drawn[1] = (ps_drawn){.alone = true, .n = 1};
    ps_block_weigh(&engine, &seq, 1, TARGET, 0.5, &left, &next);
    CHECK(near(left, 0.375) && near(next, 0.125));
}

/* How often a token comes behind i accepted ones of this weight, less how often it should, in standard deviations. */
static double excess(const ps_engine *engine, ps_seq *seq, int32_t i, double weight, int32_t token, double share) {
    int32_t n = 0;
    for (seq->n = 0; seq->n < MANY; seq->n++) {
        ps_race race = ps_race_begin(&seq->coupling, seq->n + i);
        ps_block_race(engine, seq, i, TARGET, weight, &race);
        n += race.first == token;
    }
    const double due = (double)MANY * share;
    return (n - due) / sqrt(due * (1 - share) + 1e-9);
}

static void test_what_is_drawn_behind_accepted_tokens(void) {
    ps_engine engine;
    ps_seq seq = drafted(&engine);
    const double q0 = 1 / (1 + exp(1) + exp(2));
    CHECK(fabs(excess(&engine, &seq, 0, 1, 3, 0.5 / (0.75 - q0))) < 4); /* the rest is token 0's; token 2 was too likely */
    CHECK(excess(&engine, &seq, 0, 1, 2, 0) == 0);
    seq.drawn[1].log_mass = log(8) + 0.5; /* 1/8 each, as if it had more tokens */
    CHECK(fabs(excess(&engine, &seq, 1, 0.8, 3, 0.275 / 0.425)) < 4);
    seq.drawn[2] = (ps_drawn){.alone = true, .n = 1}; /* left by another draft */
    seq.draft.token[2] = 3;
    CHECK(fabs(excess(&engine, &seq, 2, 0.3, 3, 0.5)) < 4); /* behind the whole draft the target's own row */
    CHECK(fabs(excess(&engine, &seq, 1, 0.1, 3, 0.5)) < 4); /* nothing is left */
}

/* A round's noise is its own: no other round, position or decision has it, nor what target and draft share elsewhere. */
static void test_noise_is_fresh(void) {
    ps_engine engine;
    ps_seq seq = drafted(&engine);
    int32_t accepted = 0, both = 0, first = 0, same = 0, shared = 0, before = 0;
    float row[N_VOCAB] = {0};
    ps_row found, drawn, other;
    CHECK(ps_scan(row, N_VOCAB, PS_SCAN_LSE, &found) == PS_OK);
    for (seq.n = 0; seq.n < MANY; seq.n++) {
        accepted += ps_block_accepts(&seq, 1, 0.3);
        both += ps_block_accepts(&seq, 1, 0.5) && ps_block_accepts(&seq, 2, 0.5);
        drawn = ps_block_draw(&seq, 0, row, N_VOCAB, &found, 0);
        CHECK(ps_draw(row, N_VOCAB, &seq.coupling, seq.n, &other) == PS_OK);
        same += drawn.first == before;
        shared += drawn.first == other.first;
        first += drawn.first == 0;
        before = ps_block_draw(&seq, 1, row, N_VOCAB, &found, 0).first;
    }
    const double many = (double)MANY, due = many / (double)N_VOCAB, most = 4 * sqrt(due);
    CHECK(fabs(accepted - 0.3 * many) < 4 * sqrt(0.21 * many) && fabs(both - 0.25 * many) < 4 * sqrt(0.19 * many));
    CHECK(fabs(same - due) < most && fabs(shared - due) < most && fabs(first - due) < most);
    CHECK(ps_block_accepts(&seq, 0, 1) && !ps_block_accepts(&seq, 0, 0));
}

/* A list of few ids says of each what the whole row does, and draws the same. */
static void test_few_ids_are_listed(void) {
    enum { WIDE = 300 };
    float row[WIDE], whole[WIDE];
    ps_engine engine = {.n_vocab = WIDE};
    engine.role[PS_DRAFT].n_vocab = WIDE;
    for (int32_t i = 0; i < WIDE; i++) row[i] = whole[i] = (float)((i * 37) % 211) / 40;
    const struct llama_token_data all[] = {{5, 0.0f, 0}, {57, 0.5f, 0}, {131, 1.0f, 0}};
    const float cuts[] = {0.05f, 0.5f, 1};
    int32_t listed = 0;
    for (int32_t n = 0; n < 200; n++) {
        ps_seq seq = {.n = n, .kept = whole, .verified = 1, .coupling = {.seed = 1, .temperature = 0.7f, .block = 1}};
        const float cut = cuts[n % 3];
        ps_row found;
        CHECK(ps_scan(row, WIDE, PS_SCAN_LSE, &found) == PS_OK);
        seq.draft.n = 1;
        seq.draft.token[0] = ps_block_draw(&seq, 0, row, WIDE, &found, cut).first;
        listed += seq.drawn[0].n <= PS_FEW;
        CHECK(row[seq.draft.token[0]] >= seq.drawn[0].floor && (seq.drawn[0].n <= PS_FEW) == (n % 3 > 0));
        double left, next, left_of_row, next_of_row;
        ps_block_weigh(&engine, &seq, 0, (ps_candidates){all, 3}, 0.9, &left, &next);
        seq.drawn[0].n = PS_FEW + 1; /* as if there were more */
        ps_block_weigh(&engine, &seq, 0, (ps_candidates){all, 3}, 0.9, &left_of_row, &next_of_row);
        CHECK(left == left_of_row && next == next_of_row && left > 0);
    }
    CHECK(listed == 133);
}

int main(void) {
    fake_bind();
    RUN(test_drafts_are_verified_whole);
    RUN(test_weights);
    RUN(test_what_is_drawn_behind_accepted_tokens);
    RUN(test_noise_is_fresh);
    RUN(test_few_ids_are_listed);
    return REPORT();
}
