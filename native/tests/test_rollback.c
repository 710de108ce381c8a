/* What contexts hold after a round is the text and nothing else: draft and companion are asked what they say next. */
#include <math.h>
#include <string.h>

#include "check.h"
#include "fixture.h"

enum { MOST = N_TEXT + PS_MAX_DRAFT };

static const ps_gate WIDE = {.gap = INFINITY, .budget = INFINITY}; /* theta 0: every runner-up is taken */

/* The draft's next tokens must be its own after this text alone. */
static void check_draft(fixture *w, int32_t seq, const int32_t *text, int32_t n, int32_t length) {
    const ps_stop stop = free_running();
    int32_t whole[MOST];
    memcpy(whole, text, (size_t)n * sizeof *text);
    CHECK(ps_draft_run(w->engine, 1, &seq, &length, &stop, 1) == PS_OK);
    const ps_draft *view;
    CHECK(ps_draft_get(w->engine, seq, &view) == PS_OK && view->n == length);
    for (int32_t i = 0; i < view->n; i++) {
        CHECK(view->token[i] == fake_next(&w->draft, whole, n + i));
        whole[n + i] = view->token[i];
    }
}

/* The same of the companion, which judges what was drafted. */
static void check_companion(fixture *w, int32_t seq, const int32_t *text, int32_t n) {
    int32_t whole[MOST];
    memcpy(whole, text, (size_t)n * sizeof *text);
    CHECK(ps_score(w->engine, 1, &seq) == PS_OK);
    const ps_draft *view;
    CHECK(ps_draft_get(w->engine, seq, &view) == PS_OK && view->n > 0);
    for (int32_t i = 0; i < view->n; i++) {
        CHECK(view->agreement[i].top == fake_next(&w->companion, whole, n + i));
        whole[n + i] = view->token[i];
    }
}

/* Verify the first n_draft drafted tokens; the text grows by what is emitted. */
static ps_verdict verify(fixture *w, int32_t *text, int32_t *n, int32_t n_draft, const ps_gate *gate, ps_gate_state *state) {
    ps_verdict out = {0};
    CHECK(ps_verify(w->engine, 1, &(ps_work){0, 0, n_draft}) == PS_OK);
    CHECK(ps_accept(w->engine, 0, NULL, gate, state, &out) == PS_OK && out.n > 0);
    memcpy(text + *n, out.token, (size_t)out.n * sizeof *text);
    *n += out.n;
    return out;
}

static void begin_text(fixture *w, int32_t *text, int32_t *n) {
    begin(w);
    *n = N_PROMPT;
    write_prompt(text, 0);
    CHECK(read_prompt(w, 0, text, *n) == PS_OK);
}

static ps_row scanned(const struct llama_model *model, const int32_t *text, int32_t n) {
    float row[N_VOCAB];
    ps_row found;
    fake_row(model, text, n, row);
    CHECK(ps_scan(row, N_VOCAB, PS_SCAN_TOP2, &found) == PS_OK);
    return found;
}

/* A draft that is put in place of the model's is read by the model, where it had read its own. */
static void test_a_draft_put_in_place_of_the_models(void) {
    fixture w = make(1000);
    int32_t text[MOST], n, wanted[2];
    begin_text(&w, text, &n);
    for (int32_t round = 0; round < 8; round++) {
        check_draft(&w, 0, text, n, 4);
        for (int32_t i = 0; i < 2; i++) wanted[i] = text[n + i] = fake_next(&w.target, text, n + i);
        CHECK(ps_draft_put(w.engine, 0, wanted, 2) == PS_OK);
        ps_gate_state state = {0};
        CHECK(verify(&w, text, &n, 2, NULL, &state).n_accepted == 2);
    }
    check_draft(&w, 0, text, n, 4);
    end(&w);
}

/* What a companion read of refused tokens is gone, though rounds pass in which it is not asked. */
static void test_a_companion_after_plain_rounds(void) {
    fixture w = make(1000);
    w.companion.seed = 19;
    int32_t text[MOST], n;
    ps_gate_state state = {0};
    begin_text(&w, text, &n);
    for (int32_t plain = 0; plain < 4; plain++) {
        check_draft(&w, 0, text, n, 3);
        check_companion(&w, 0, text, n);
        CHECK(verify(&w, text, &n, 3, NULL, &state).n_accepted < 3);
        for (int32_t i = 0; i < plain; i++) {
            CHECK(ps_draft_put(w.engine, 0, NULL, 0) == PS_OK);
            verify(&w, text, &n, 0, NULL, &state);
        }
    }
    end(&w);
}

/* Whether the first token left out would have been relaxed is told, and costs nothing of the budget. */
static void test_what_is_not_verified_spends_nothing(void) {
    fixture w = make(0);
    int32_t text[MOST], n, drafted[2];
    begin_text(&w, text, &n);
    drafted[0] = text[n] = fake_next(&w.target, text, n);
    drafted[1] = scanned(&w.target, text, n + 1).second;
    CHECK(ps_draft_put(w.engine, 0, drafted, 2) == PS_OK);
    ps_gate_state state = {0};
    const ps_verdict out = verify(&w, text, &n, 1, &WIDE, &state);
    CHECK(out.n_accepted == 1 && out.n_relaxed == 0 && out.next == 1);
    CHECK(state.spent == 0);
    end(&w);
}

/* A companion would never propose a token that it lacks. */
static void test_a_token_that_the_companion_lacks(void) {
    fixture w = make(0);
    w.companion.vocab.n_tokens = N_VOCAB / 2;
    int32_t text[MOST], n, lacked = 0;
    begin_text(&w, text, &n);
    for (int32_t round = 0; round < 20; round++) {
        check_draft(&w, 0, text, n, 2);
        CHECK(ps_score(w.engine, 1, &(int32_t){0}) == PS_OK);
        const ps_draft *view;
        CHECK(ps_draft_get(w.engine, 0, &view) == PS_OK);
        for (int32_t i = 0; i < view->n; i++) {
            const bool lacks = view->token[i] >= N_VOCAB / 2;
            CHECK((view->agreement[i].top == -1) == lacks);
            if (lacks) CHECK(view->agreement[i].pd == view->p[i] && view->agreement[i].pc == 0);
            lacked += lacks;
        }
        ps_gate_state state = {0};
        verify(&w, text, &n, 2, NULL, &state);
    }
    CHECK(lacked > 0);
    end(&w);
}

/* A copied beginning may hold the last token already; a draft of it needs that token's row again. */
static void test_a_draft_of_a_copied_beginning(void) {
    fixture w = make(300);
    int32_t text[MOST], n;
    begin_text(&w, text, &n);
    check_draft(&w, 0, text, n, 5);
    CHECK(ps_seq_copy(w.engine, 0, 1, n) == PS_OK);
    check_draft(&w, 1, text, n, 3);
    end(&w);
}

/* A memory that was emptied is read again with the draft, in one decode if that holds all. */
static void test_an_emptied_memory_is_read_with_the_draft(void) {
    fixture w = make(0);
    int32_t text[MOST], n;
    ps_counters before, after;
    ps_gate_state state = {0};
    begin_text(&w, text, &n);
    w.ctx[PS_TARGET]->memory.stubborn = true;
    const int32_t wrong = scanned(&w.target, text, n).second;
    CHECK(ps_draft_put(w.engine, 0, &wrong, 1) == PS_OK);
    verify(&w, text, &n, 1, NULL, &state); /* the refused token cannot be dropped alone */
    int32_t held;
    CHECK(ps_seq_state(w.engine, PS_TARGET, 0, &held, NULL) == PS_OK && held == 0);
    CHECK(ps_counters_get(w.engine, &before) == PS_OK);
    verify(&w, text, &n, 0, NULL, &state);
    CHECK(ps_counters_get(w.engine, &after) == PS_OK);
    CHECK(after.decodes[PS_TARGET] == before.decodes[PS_TARGET] + 1);
    end(&w);
}

int main(void) {
    fake_bind();
    RUN(test_a_draft_put_in_place_of_the_models);
    RUN(test_a_companion_after_plain_rounds);
    RUN(test_what_is_not_verified_spends_nothing);
    RUN(test_a_token_that_the_companion_lacks);
    RUN(test_a_draft_of_a_copied_beginning);
    RUN(test_an_emptied_memory_is_read_with_the_draft);
    return REPORT();
}
