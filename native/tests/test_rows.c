/* Batches smaller than what a call needs: the engine takes several decodes, or refuses before it writes. */
#include <string.h>

#include "check.h"
#include "fixture.h"

static const int32_t SEQS[N_SEQ] = {0, 1, 2, 3};

/* All three models with that many rows to a batch. */
static void open_narrow(fixture *w, int32_t n_batch) {
    w->ctx[PS_TARGET] = fake_open(&w->target, N_CTX, n_batch, N_SEQ);
    w->ctx[PS_DRAFT] = fake_open(&w->draft, N_CTX, n_batch, N_SEQ);
    w->ctx[PS_COMPANION] = fake_open(&w->companion, N_CTX, n_batch, N_SEQ);
    CHECK(open_engine(w) == PS_OK);
    int32_t text[N_PROMPT];
    for (int32_t s = 0; s < N_SEQ; s++) {
        write_prompt(text, s);
        CHECK(ps_seq_set(w->engine, s, text, N_PROMPT, -1, NULL) == PS_OK);
    }
}

static ps_status draft_all(fixture *w, int32_t length) {
    const ps_stop stop = free_running();
    const int32_t lengths[N_SEQ] = {length, length, length, length};
    return ps_draft_run(w->engine, N_SEQ, SEQS, lengths, &stop, 1);
}

/* Four sequences draft in batches of three rows what they draft in one batch, and are judged alike. */
static void test_more_sequences_than_rows(void) {
    fixture wide = make(300), narrow = make(300);
    open_narrow(&wide, N_BATCH);
    open_narrow(&narrow, 3);
    CHECK(draft_all(&wide, 3) == PS_OK && draft_all(&narrow, 3) == PS_OK);
    CHECK(ps_score(wide.engine, N_SEQ, SEQS) == PS_OK && ps_score(narrow.engine, N_SEQ, SEQS) == PS_OK);
    for (int32_t s = 0; s < N_SEQ; s++) {
        const ps_draft *a, *b;
        CHECK(ps_draft_get(wide.engine, s, &a) == PS_OK && ps_draft_get(narrow.engine, s, &b) == PS_OK);
        CHECK(a->n == 3 && b->n == 3 && a->scored && b->scored && !memcmp(a->token, b->token, 3 * sizeof *a->token));
        for (int32_t i = 0; i < 3; i++) CHECK(a->agreement[i].top == b->agreement[i].top);
    }
    end(&wide);
    end(&narrow);
}

/* A draft longer than a batch of the companion is refused, and the next one is judged. */
static void test_drafts_longer_than_a_batch(void) {
    fixture w = make(300);
    open_narrow(&w, 32);
    CHECK(draft_all(&w, 60) == PS_OK);
    CHECK(ps_score(w.engine, N_SEQ, SEQS) == PS_E_ARG);
    for (int32_t s = 0; s < N_SEQ; s++) CHECK(ps_draft_put(w.engine, s, NULL, 0) == PS_OK);
    CHECK(draft_all(&w, 32) == PS_OK && ps_score(w.engine, N_SEQ, SEQS) == PS_OK);
    end(&w);
}

/* What lookup proposed may be longer than a batch of the draft that goes on from it. */
static void test_going_on_from_a_draft_longer_than_a_batch(void) {
    fixture w = make(300);
    open_narrow(&w, 2);
    int32_t text[16];
    for (int32_t i = 0; i < 16; i++) text[i] = 2 + i;
    CHECK(ps_draft_put(w.engine, 0, text, 16) == PS_OK);
    const ps_stop stop = free_running();
    CHECK(ps_draft_run(w.engine, 1, SEQS, &(int32_t){17}, &stop, 0) == PS_E_ARG);
    CHECK(ps_draft_put(w.engine, 0, NULL, 0) == PS_OK && ps_draft_run(w.engine, 1, SEQS, &(int32_t){2}, &stop, 0) == PS_OK);
    end(&w);
}

static void test_rows_of_a_prompt(void) {
    fixture w = make(200);
    begin(&w);
    int32_t text[N_TEXT + PS_MAX_DRAFT];
    float said[N_VOCAB];
    const float *row;
    ps_verdict verdict;
    ps_gate_state state = {0};
    write_prompt(text, 0);
    for (int32_t from = 0; from < N_PROMPT; from += 3) {
        const int32_t n = from + 3;
        CHECK(ps_seq_set(w.engine, 0, text, n, from, NULL) == PS_OK);
        CHECK(ps_verify(w.engine, 1, &(ps_work){0, 0, -3}) == PS_E_ARG);
        CHECK(ps_verify(w.engine, 1, &(ps_work){0, 0, -2}) == PS_OK);
        for (int32_t i = 0; i < n - from; i++) {
            fake_row(&w.target, text, from + i + 1, said);
            CHECK(ps_target_row(w.engine, 0, i, &row) == PS_OK && !memcmp(row, said, sizeof said));
        }
        CHECK(ps_target_row(w.engine, 0, n - from, &row) == PS_E_STATE);
        CHECK(ps_accept(w.engine, 0, NULL, NULL, &state, &verdict) == PS_E_STATE);
    }
    /* the text goes on as if its prompt had been read without */
    CHECK(ps_seq_set(w.engine, 0, text, N_PROMPT, N_PROMPT - 1, NULL) == PS_OK);
    CHECK(ps_verify(w.engine, 1, &(ps_work){0, 0, 0}) == PS_OK);
    CHECK(ps_accept(w.engine, 0, NULL, NULL, &state, &verdict) == PS_OK);
    fake_row(&w.target, text, N_PROMPT, said);
    int32_t best = 0;
    for (int32_t v = 1; v < N_VOCAB; v++) best = said[v] > said[best] ? v : best;
    CHECK(verdict.n == 1 && verdict.token[0] == best);
    end(&w);
}

int main(void) {
    fake_bind();
    RUN(test_more_sequences_than_rows);
    RUN(test_drafts_longer_than_a_batch);
    RUN(test_going_on_from_a_draft_longer_than_a_batch);
    RUN(test_rows_of_a_prompt);
    return REPORT();
}
