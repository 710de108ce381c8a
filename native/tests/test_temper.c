/* The draft's temperature: what is kept for each factor, and which of them is taken. */
#include <string.h>

#include "../ps_internal.h"
#include "check.h"

enum { N_VOCAB = 40 };

static ps_engine engine;
static ps_seq seq;

static void begin(void) {
    memset(&engine, 0, sizeof engine);
    memset(&seq, 0, sizeof seq);
    seq.coupling = (ps_coupling){.seed = 5, .temperature = 0.8f, .tempered = 1};
    seq.n = 7;
    seq.tempered_at = -1;
}

static void test_what_each_factor_would_draw(void) {
    begin();
    int32_t apart = 0;
    for (seq.n = 1; seq.n < 200; seq.n++) {
        float row[N_VOCAB];
        for (int32_t i = 0; i < N_VOCAB; i++) row[i] = (float)((i * 37 + seq.n * 11) % 23) / 5;
        ps_row found, drawn;
        CHECK(ps_scan(row, N_VOCAB, PS_SCAN_LSE, &found) == PS_OK);
        engine.temper.chosen = seq.n % PS_N_TEMPERS;
        const int32_t first = ps_temper_draw(&engine, &seq, 0, row, N_VOCAB, &found, 0).first;
        CHECK(first == seq.tempered[engine.temper.chosen]);
        CHECK(seq.tempered_at == seq.n && ps_tempered(&engine, &seq, 0).temperature == seq.coupling.temperature);
        for (int32_t i = 0; i < PS_N_TEMPERS; i++) {
            const ps_coupling how = ps_tempered(&engine, &seq, i);
            CHECK(ps_draw(row, N_VOCAB, &how, seq.n, &drawn) == PS_OK && drawn.first == seq.tempered[i]);
            apart += seq.tempered[i] != seq.tempered[0];
        }
    }
    CHECK(apart > 0);
}

static void learn(int32_t right, int32_t position) {
    for (int32_t i = 0; i < PS_N_TEMPERS; i++) seq.tempered[i] = i == right ? 3 : 4;
    seq.tempered_at = seq.n;
    ps_temper_learn(&engine, &seq, position, 3);
}

static void test_the_factor_that_agrees_is_taken(void) {
    begin();
    for (int32_t i = 0; i < 4; i++) learn(2, seq.n);
    CHECK(engine.temper.chosen == 0); /* so few may be chance */
    for (int32_t i = 0; i < 4; i++) learn(2, seq.n);
    CHECK(engine.temper.chosen == 2 && ps_tempered(&engine, &seq, -1).temperature == ps_tempered(&engine, &seq, 2).temperature);
    for (int32_t i = 0; i < 40; i++) learn(0, seq.n);
    CHECK(engine.temper.chosen == 0);
}

static void test_a_choice_counts_once_and_at_its_place(void) {
    begin();
    for (int32_t i = 0; i < 40; i++) learn(2, seq.n + 1);
    CHECK(engine.temper.chosen == 0 && engine.temper.agreed[2] == 0);
    learn(2, seq.n);
    ps_temper_learn(&engine, &seq, seq.n, 3);
    CHECK(engine.temper.agreed[2] == 1 && seq.tempered_at == -1);
}

static void test_under_a_margin_nothing_is_learned(void) {
    begin();
    engine.temper.chosen = 2;
    seq.coupling.tempered = 0;
    const float row[] = {0, 1, 2};
    const ps_row found = {.first = 2, .second = 1, .z1 = 2, .z2 = 1};
    ps_temper_draw(&engine, &seq, 0, row, 3, &found, 0);
    CHECK(seq.tempered_at == -1 && ps_tempered(&engine, &seq, -1).temperature == seq.coupling.temperature);
}

int main(void) {
    RUN(test_what_each_factor_would_draw);
    RUN(test_the_factor_that_agrees_is_taken);
    RUN(test_a_choice_counts_once_and_at_its_place);
    RUN(test_under_a_margin_nothing_is_learned);
    return REPORT();
}
