/*
 * The engine when things fail: after every decode that can fail has failed, and after every allocation that can fail has failed, the
 * next text is the model's own.
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "fixture.h"
#include "refuse.h"

/* ----------------------------------------------------------------- faults */

static ps_status expected_of(int32_t answered) {
    return answered == 1 ? PS_E_NOSLOT : answered == 2 ? PS_E_CANCELLED : PS_E_DECODE;
}

/* Every decode of every role fails once, with each of llama.cpp's statuses; the next request is right. */
static void test_failing_decodes(void) {
    static const int32_t statuses[] = {1, 2, -1, -3};
    const mode how = {.length = 5, .companion = true};
    for (int32_t role = 0; role < PS_N_ROLES; role++) {
        for (int32_t i = 0; i < 4; i++) {
            ps_status status = PS_E_DECODE;
            for (int32_t k = 1; status != PS_OK; k++) {
                fixture w = make(300);
                begin(&w);
                w.ctx[role]->fail_at = k;
                w.ctx[role]->fail_with = statuses[i];
                int32_t text[N_TEXT + PS_MAX_DRAFT], n;
                status = answer(&w, 0, &how, text, &n);
                CHECK(status == PS_OK ? w.ctx[role]->n_decodes < k : status == expected_of(statuses[i]));
                ps_counters counters;
                CHECK(ps_counters_get(w.engine, &counters) == PS_OK && counters.last_decode == (status == PS_OK ? 0 : statuses[i]));
                w.ctx[role]->fail_at = 0;
                check_answer(&w, k % 2, &how);
                end(&w);
            }
        }
    }
}

/* The same, but the answer itself goes on after the failure. */
static void test_going_on_after_a_failing_decode(void) {
    const mode how = {.length = 5, .companion = true};
    for (int32_t role = 0; role < PS_N_ROLES; role++) {
        for (int32_t k = 4; k < 40; k++) {
            fixture w = make(300);
            begin(&w);
            int32_t text[N_TEXT + PS_MAX_DRAFT], wanted[N_TEXT], n = N_PROMPT, n_failed_rounds = 0;
            write_prompt(text, 0);
            CHECK(read_prompt(&w, 0, text, n) == PS_OK);
            w.ctx[role]->fail_at = k;
            w.ctx[role]->fail_with = 2;
            ps_verdict verdict;
            while (n < N_TEXT) n_failed_rounds += round_of(&w, 0, &how, text, &n, N_TEXT, &verdict) != PS_OK;
            CHECK(n_failed_rounds == (w.ctx[role]->n_decodes >= k));
            truth(&w, 0, NULL, wanted);
            CHECK(!memcmp(text, wanted, sizeof wanted));
            end(&w);
        }
    }
}

static void test_damaged_logits(void) {
    const mode how = {.length = 5, .companion = true};
    for (int32_t role = 0; role < PS_N_ROLES; role++) {
        for (int32_t k = 3; k < 12; k++) {
            fixture w = make(300);
            begin(&w);
            w.ctx[role]->nan_at = k;
            int32_t text[N_TEXT + PS_MAX_DRAFT], n;
            CHECK(answer(&w, 0, &how, text, &n) == PS_E_NUMERIC);
            w.ctx[role]->nan_at = 0;
            check_answer(&w, 0, &how);
            end(&w);
        }
    }
}

static void test_stuck_sampler(void) {
    fixture w = make(0);
    begin(&w);
    struct llama_sampler sampler = {.stuck = true};
    int32_t text[N_TEXT + PS_MAX_DRAFT], n;
    CHECK(answer(&w, 0, &(mode){.length = 3, .sampler = &sampler}, text, &n) == PS_E_SAMPLER);
    sampler = (struct llama_sampler){.barren = true};
    CHECK(answer(&w, 0, &(mode){.length = 3, .sampler = &sampler}, text, &n) == PS_E_SAMPLER);
    sampler.barren = false;
    check_answer(&w, 0, &(mode){.length = 3, .sampler = &sampler});
    end(&w);
}

/* Every allocation fails once: opening, attaching, and a whole answer. Leaks are the sanitizer's to find. */
static void test_failing_allocations(void) {
    const mode how = {.length = 5, .companion = true, .sampler = &(struct llama_sampler){.seed = 3}};
    ps_status status = PS_E_NOMEM;
    for (int64_t k = 0; status != PS_OK; k++) {
        fixture w = make(300);
        open_contexts(&w);
        refuse_allocation(k);
        status = open_engine(&w);
        int32_t text[N_TEXT + PS_MAX_DRAFT], n;
        const bool opened = status == PS_OK;
        if (opened) status = answer(&w, 0, &how, text, &n);
        CHECK(status == PS_OK ? allocations() <= k : status == PS_E_NOMEM);
        refuse_allocation(-1);
        if (opened) check_answer(&w, 0, &how);
        end(&w);
    }
}

/* ----------------------------------------------------------------- others */

typedef struct meddler {
    ps_engine *engine;
    int32_t countdown;
    ps_status seen;
} meddler;

/* Called from inside a decode, as llama.cpp's threads call the abort callback. */
static bool meddle(void *data) {
    meddler *const m = data;
    if (--m->countdown != 0) return false;
    m->seen = ps_seq_set(m->engine, 0, NULL, 0, -1, NULL);
    return false;
}

static void test_second_caller_is_busy(void) {
    fixture w = make(0);
    begin(&w);
    int32_t text[N_TEXT + PS_MAX_DRAFT], n;
    meddler m = {w.engine, 20, PS_OK};
    w.ctx[PS_TARGET]->abort = meddle;
    w.ctx[PS_TARGET]->abort_data = &m;
    CHECK(answer(&w, 0, &(mode){.length = 5}, text, &n) == PS_OK);
    CHECK(m.seen == PS_E_BUSY);
    end(&w);
}

static bool cancel_now(void *data) {
    meddler *const m = data;
    if (--m->countdown == 0) ps_engine_cancel(m->engine, 1);
    return m->countdown <= 0;
}

static void test_cancel(void) {
    for (int32_t at = 1; at < 60; at++) {
        fixture w = make(300);
        w.target.recurrent = at % 2;
        w.target.n_rs = 5;
        begin(&w);
        void *const own = w.ctx[PS_TARGET]->abort_data;
        bool (*const callback)(void *) = w.ctx[PS_TARGET]->abort;
        meddler m = {w.engine, at, PS_OK};
        w.ctx[PS_TARGET]->abort = cancel_now;
        w.ctx[PS_TARGET]->abort_data = &m;
        int32_t text[N_TEXT + PS_MAX_DRAFT], n;
        CHECK(answer(&w, 0, &(mode){.length = 5}, text, &n) == PS_E_CANCELLED);
        w.ctx[PS_TARGET]->abort = callback;
        w.ctx[PS_TARGET]->abort_data = own;
        const ps_status next = ps_verify(w.engine, 1, &(ps_work){0, 0, 0}); /* it holds until it is cleared */
        CHECK(next == PS_E_CANCELLED || (w.target.recurrent && next == PS_E_ARG));
        ps_engine_cancel(w.engine, 0);
        check_answer(&w, 0, &(mode){.length = 5});
        end(&w);
    }
    ps_engine_cancel(NULL, 1);
}

static void test_arguments(void) {
    fixture w = make(0);
    begin(&w);
    const ps_stop stop = free_running();
    const int32_t prompt[] = {2, 3, 4, 5}, seq = 0, twice[] = {1, 1}, far = N_SEQ, one = 1, two[] = {1, 1};
    ps_engine *other;
    int32_t n;
    const float *row;
    const ps_draft *view;
    ps_verdict verdict;
    ps_gate_state state = {0};
    CHECK(ps_engine_open(0, 5, &other) == PS_E_ARG && ps_engine_open(1, 0, &other) == PS_E_ARG);
    CHECK(ps_engine_open(1, 5, NULL) == PS_E_ARG && !other);
    ps_engine_close(NULL);
    CHECK(ps_engine_attach(w.engine, 3, w.ctx[0], &w.target) == PS_E_ARG);
    CHECK(ps_verify(w.engine, 1, &(ps_work){0, 0, 0}) == PS_E_ARG); /* no text yet */
    CHECK(ps_draft_run(w.engine, 1, &seq, &one, &stop, 0) == PS_E_STATE);
    CHECK(ps_seq_set(w.engine, far, prompt, 4, -1, &n) == PS_E_ARG && ps_seq_set(w.engine, -1, prompt, 4, -1, &n) == PS_E_ARG);
    CHECK(ps_seq_set(w.engine, 0, (int32_t[]){2, N_VOCAB}, 2, -1, &n) == PS_E_ARG);
    CHECK(ps_seq_set(w.engine, 0, (int32_t[]){2, -1}, 2, -1, &n) == PS_E_ARG);
    CHECK(ps_seq_set(w.engine, 0, NULL, 2, -1, &n) == PS_E_ARG && ps_seq_set(w.engine, 0, prompt, -1, -1, &n) == PS_E_ARG);
    CHECK(ps_seq_set(w.engine, 0, prompt, 4, -1, &n) == PS_OK && n == 0);
    CHECK(ps_seq_set(w.engine, 1, prompt, 4, -1, &n) == PS_OK);
    CHECK(ps_accept(w.engine, 0, NULL, NULL, &state, &verdict) == PS_E_STATE);
    CHECK(ps_target_row(w.engine, 0, 0, &row) == PS_E_STATE);
    CHECK(ps_prefill(w.engine, PS_TARGET, 0, 3, 0, &n) == PS_E_ARG && ps_prefill(w.engine, PS_TARGET, 0, -3, 1, &n) == PS_E_ARG);
    CHECK(ps_prefill(w.engine, 7, 0, 3, 1, &n) == PS_E_ARG && ps_prefill(w.engine, PS_TARGET, far, 3, 1, &n) == PS_E_ARG);
    CHECK(ps_prefill(w.engine, PS_TARGET, 0, 100, 100, &n) == PS_OK && n == 3); /* never past the last but one */
    CHECK(ps_verify(w.engine, 1, &(ps_work){0, 0, 1}) == PS_E_ARG); /* nothing drafted */
    CHECK(ps_verify(w.engine, 1, &(ps_work){0, 4, -1}) == PS_E_ARG && ps_verify(w.engine, 1, &(ps_work){far, 0, 0}) == PS_E_ARG);
    CHECK(ps_verify(w.engine, 2, (ps_work[]){{1, 0, 0}, {1, 0, 0}}) == PS_E_ARG);
    CHECK(ps_verify(w.engine, N_SEQ + 1, (ps_work[N_SEQ + 1]){{0}}) == PS_E_ARG);
    CHECK(ps_draft_run(w.engine, 2, twice, two, &stop, 0) == PS_E_ARG && ps_draft_run(w.engine, 1, &far, &one, &stop, 0) == PS_E_ARG);
    CHECK(ps_score(w.engine, 2, twice) == PS_E_ARG && ps_score(w.engine, 1, &far) == PS_E_ARG);
    CHECK(ps_draft_put(w.engine, 0, prompt, PS_MAX_DRAFT + 1) == PS_E_ARG && ps_draft_get(w.engine, far, &view) == PS_E_ARG);
    CHECK(ps_verify(w.engine, 1, &(ps_work){0, 0, 0}) == PS_OK);
    CHECK(ps_target_row(w.engine, 0, 0, &row) == PS_OK && ps_target_row(w.engine, 0, 1, &row) == PS_E_STATE);
    CHECK(ps_accept(w.engine, 0, NULL, NULL, &state, &verdict) == PS_OK && verdict.token[0] == fake_next(&w.target, prompt, 4));
    CHECK(ps_accept(w.engine, 0, NULL, NULL, &state, &verdict) == PS_E_STATE); /* once only */
    CHECK(ps_engine_attach(w.engine, PS_DRAFT, NULL, NULL) == PS_OK);
    CHECK(ps_draft_run(w.engine, 1, &seq, &one, &stop, 0) == PS_E_STATE);
    check_answer(&w, 0, &(mode){.length = 0});
    end(&w);
}

int main(void) {
    fake_bind();
    RUN(test_failing_decodes);
    RUN(test_going_on_after_a_failing_decode);
    RUN(test_damaged_logits);
    RUN(test_stuck_sampler);
    RUN(test_failing_allocations);
    RUN(test_second_caller_is_busy);
    RUN(test_cancel);
    RUN(test_arguments);
    return REPORT();
}
