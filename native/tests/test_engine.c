/* The engine on a toy llama.cpp, under the sanitizers: whatever drafts and however far, the text is the model's own. */
#include <math.h>
#include <string.h>

#include "../ps_internal.h"
#include "check.h"
#include "fixture.h"

static const int32_t LENGTHS[] = {0, 1, 2, 5, 16, 64};
enum { N_LENGTHS = sizeof LENGTHS / sizeof LENGTHS[0] };

static void test_text_is_the_targets(void) {
    for (int32_t noise = 0; noise <= 1000; noise += 250) {
        for (int32_t i = 0; i < N_LENGTHS; i++) {
            for (int32_t trim = 0; trim < 3; trim++) {
                fixture w = make(noise);
                begin(&w);
                const mode how = {.length = LENGTHS[i], .trim = trim};
                const mode judged = {.length = LENGTHS[i], .trim = trim, .companion = true};
                check_answer(&w, 0, &how);
                check_answer(&w, 1, &judged);
                end(&w);
            }
        }
    }
}

static void test_text_is_the_samplers(void) {
    for (uint32_t seed = 0; seed < 20; seed++) {
        fixture w = make(200);
        begin(&w);
        struct llama_sampler sampler = {.seed = seed};
        check_answer(&w, 0, &(mode){.length = 5, .sampler = &sampler});
        end(&w);
    }
}

/* Coupled texts are the draws of the target's own rows, whatever drafts; and a draft of the same rows is never refused. */
static void test_text_is_drawn(void) {
    for (int32_t noise = 0; noise <= 600; noise += 300) {
        for (int32_t i = 0; i < N_LENGTHS; i++) {
            fixture w = make(noise);
            begin(&w);
            const mode how = {.length = LENGTHS[i], .companion = i % 2 == 1, .coupling = {.seed = 5u + (uint32_t)i, .temperature = 0.9f, .min_p = 0.3f * (float)(i % 3 == 2)}};
            ps_coupling whole = how.coupling; /* min_p is the draft's: without a chain nothing truncates the target's row */
            whole.min_p = 0;
            int32_t text[N_TEXT + PS_MAX_DRAFT], n;
            CHECK(answer(&w, 0, &how, text, &n) == PS_OK);
            for (int32_t at = N_PROMPT; at < n; at++) {
                float row[N_VOCAB];
                ps_row drawn;
                fake_row(&w.target, text, at, row);
                CHECK(ps_draw(row, N_VOCAB, &whole, at, &drawn) == PS_OK && drawn.first == text[at]);
            }
            ps_counters counters;
            CHECK(ps_counters_get(w.engine, &counters) == PS_OK);
            if (noise == 0 && how.coupling.min_p <= 0) CHECK(counters.rows[PS_TARGET] == n - 1);
            end(&w);
        }
    }
}

static void test_coupling_is_checked(void) {
    fixture w = make(0);
    begin(&w);
    CHECK(ps_seq_couple(w.engine, 0, &(ps_coupling){1, 0.0f, 0.0f, 0.0f, 0, 0}) == PS_E_ARG);
    CHECK(ps_seq_couple(w.engine, 0, &(ps_coupling){1, 1.0f, -0.5f, 0.0f, 0, 0}) == PS_E_ARG);
    CHECK(ps_seq_couple(w.engine, 0, &(ps_coupling){1, NAN, 0.0f, 0.0f, 0, 0}) == PS_E_ARG);
    CHECK(ps_seq_couple(w.engine, 0, &(ps_coupling){1, 1.0f, 0.0f, 1.5f, 0, 0}) == PS_E_ARG);
    CHECK(ps_seq_couple(w.engine, 0, &(ps_coupling){1, 1.0f, 0.0f, NAN, 0, 0}) == PS_E_ARG);
    CHECK(ps_seq_couple(w.engine, N_SEQ, NULL) == PS_E_ARG && ps_seq_couple(NULL, 0, NULL) == PS_E_ARG);
    end(&w);
}

static void test_text_ends_at_an_end(void) {
    for (uint32_t seed = 1; seed < 30; seed++) {
        fixture w = make(0);
        w.target.seed = w.draft.seed = seed;
        w.target.endless = w.draft.endless = false;
        begin(&w);
        check_answer(&w, 0, &(mode){.length = 16});
        end(&w);
    }
}

static void test_nothing_is_decoded_twice(void) {
    fixture w = make(0);
    begin(&w);
    int32_t text[N_TEXT + PS_MAX_DRAFT], n;
    CHECK(answer(&w, 0, &(mode){.length = 4}, text, &n) == PS_OK);
    ps_counters counters;
    CHECK(ps_counters_get(w.engine, &counters) == PS_OK);
    CHECK(counters.rows[PS_TARGET] == N_TEXT - 1);
    int32_t held;
    CHECK(ps_seq_state(w.engine, PS_DRAFT, 0, &held, NULL) == PS_OK && held > N_TEXT - 5);
    CHECK(counters.rows[PS_DRAFT] == held && counters.rows[PS_COMPANION] == 0);
    end(&w);
}

static void test_companion_sees_its_own_rows(void) {
    fixture w = make(300);
    w.companion.seed = 19;
    begin(&w);
    int32_t text[N_TEXT + PS_MAX_DRAFT], n = N_PROMPT;
    write_prompt(text, 0);
    CHECK(read_prompt(&w, 0, text, n) == PS_OK);
    ps_verdict verdict = {0};
    while (n < N_TEXT) {
        int32_t n_draft;
        CHECK(draft(&w, 0, &(mode){.length = 6, .companion = true}, N_TEXT - n, &n_draft) == PS_OK);
        const ps_draft *view;
        CHECK(ps_draft_get(w.engine, 0, &view) == PS_OK);
        for (int32_t i = 0; i < view->n; i++) {
            const ps_agreement *const seen = &view->agreement[i];
            memcpy(text + n, view->token, (size_t)i * sizeof *text);
            CHECK(seen->top == fake_next(&w.companion, text, n + i) && view->token[i] == fake_next(&w.draft, text, n + i));
            CHECK(seen->s >= 0 && seen->s <= 1 && seen->a >= 0 && seen->a <= 1 && seen->pc >= 0 && seen->pc <= 1);
            CHECK(fabsf(seen->pd - view->p[i]) < 1e-5f);
        }
        ps_gate_state state = {0};
        CHECK(ps_verify(w.engine, 1, &(ps_work){0, 0, n_draft}) == PS_OK);
        CHECK(ps_accept(w.engine, 0, NULL, NULL, &state, &verdict) == PS_OK);
        memcpy(text + n, verdict.token, (size_t)verdict.n * sizeof *text);
        n += verdict.n;
    }
    end(&w);
}

static void test_drafts_from_elsewhere(void) {
    fixture w = make(0);
    begin(&w);
    int32_t wanted[N_TEXT], text[N_TEXT + PS_MAX_DRAFT], n = N_PROMPT;
    truth(&w, 0, NULL, wanted);
    write_prompt(text, 0);
    CHECK(read_prompt(&w, 0, text, n) == PS_OK);
    for (int32_t round = 0; n < N_TEXT - 12; round++) {
        int32_t drafted[8];
        memcpy(drafted, wanted + n, sizeof drafted);
        const int32_t good = round % 9; /* the first `good` tokens are right */
        if (good < 8) drafted[good] = drafted[good] == 5 ? 6 : 5;
        if (round % 3 == 0) CHECK(draft(&w, 0, &(mode){.length = 3}, 9, &(int32_t){0}) == PS_OK); /* replaced by the next line */
        CHECK(ps_draft_put(w.engine, 0, drafted, 8) == PS_OK);
        ps_verdict verdict;
        ps_gate_state state = {0};
        CHECK(ps_verify(w.engine, 1, &(ps_work){0, 0, 8}) == PS_OK);
        CHECK(ps_accept(w.engine, 0, NULL, NULL, &state, &verdict) == PS_OK);
        CHECK(verdict.n_accepted >= good && (good == 8) == (verdict.n_accepted == 8));
        memcpy(text + n, verdict.token, (size_t)verdict.n * sizeof *text);
        n += verdict.n;
    }
    CHECK(!memcmp(text, wanted, (size_t)n * sizeof *text));
    CHECK(ps_draft_put(w.engine, 0, &(int32_t){N_VOCAB}, 1) == PS_E_ARG);
    CHECK(ps_draft_put(w.engine, 0, &(int32_t){-1}, 1) == PS_E_ARG);
    CHECK(ps_draft_put(w.engine, 0, NULL, 0) == PS_OK);
    end(&w);
}

static void test_sequences_in_one_batch(void) {
    fixture w = make(200);
    begin(&w);
    int32_t text[N_SEQ][N_TEXT + PS_MAX_DRAFT], wanted[N_TEXT], n[N_SEQ], seqs[N_SEQ], limits[N_SEQ];
    const ps_stop stop = free_running();
    for (int32_t s = 0; s < N_SEQ; s++) {
        write_prompt(text[s], s);
        n[s] = N_PROMPT;
        CHECK(ps_seq_set(w.engine, s, text[s], N_PROMPT, -1, NULL) == PS_OK);
    }
    /* the last sequence reads its prompt in the batches of the others */
    CHECK(ps_verify(w.engine, 2, (ps_work[]){{0, 0, 0}, {3, 4, -1}}) == PS_OK);
    ps_verdict verdict;
    ps_gate_state state = {0};
    CHECK(ps_accept(w.engine, 3, NULL, NULL, &state, &verdict) == PS_E_STATE);
    CHECK(ps_accept(w.engine, 0, NULL, NULL, &state, &verdict) == PS_OK && verdict.n == 1);
    text[0][n[0]++] = verdict.token[0];
    for (;;) {
        int32_t active = 0;
        ps_work work[N_SEQ];
        for (int32_t s = 0; s < N_SEQ; s++) {
            if (n[s] >= N_TEXT - 8 * s) continue; /* they end one after the other */
            seqs[active] = s;
            limits[active++] = 1 + s;
        }
        if (active == 0) break;
        CHECK(ps_draft_run(w.engine, active, seqs, limits, &stop, 1) == PS_OK);
        CHECK(ps_score(w.engine, active, seqs) == PS_OK);
        for (int32_t i = 0; i < active; i++) work[i] = (ps_work){seqs[i], 0, limits[i] - (n[seqs[i]] % 2)};
        CHECK(ps_verify(w.engine, active, work) == PS_OK);
        for (int32_t i = active - 1; i >= 0; i--) {
            const int32_t s = seqs[i];
            CHECK(ps_accept(w.engine, s, NULL, NULL, &state, &verdict) == PS_OK);
            memcpy(text[s] + n[s], verdict.token, (size_t)verdict.n * sizeof **text);
            n[s] += verdict.n;
        }
    }
    for (int32_t s = 0; s < N_SEQ; s++) {
        truth(&w, s, NULL, wanted);
        CHECK(!memcmp(text[s], wanted, (size_t)(n[s] < N_TEXT ? n[s] : N_TEXT) * sizeof *wanted));
    }
    end(&w);
}

static void test_shared_prefix(void) {
    fixture w = make(200);
    begin(&w);
    int32_t text[N_TEXT + PS_MAX_DRAFT], wanted[N_TEXT], n, held;
    CHECK(answer(&w, 0, &(mode){.length = 5, .companion = true}, text, &n) == PS_OK);
    check_answer(&w, 2, &(mode){.length = 3});
    CHECK(ps_seq_copy(w.engine, 0, 2, 40) == PS_OK);
    CHECK(ps_seq_state(w.engine, PS_TARGET, 2, &held, NULL) == PS_OK && held == 40);
    CHECK(ps_seq_set(w.engine, 2, text, 40, -1, &held) == PS_OK && held == 39);
    n = 40;
    ps_verdict verdict = {0};
    while (n < N_TEXT) CHECK(round_of(&w, 2, &(mode){.length = 5, .companion = true}, text, &n, N_TEXT, &verdict) == PS_OK);
    truth(&w, 0, NULL, wanted);
    CHECK(!memcmp(text, wanted, sizeof wanted));
    CHECK(ps_seq_copy(w.engine, 0, 0, 3) == PS_E_ARG && ps_seq_copy(w.engine, 0, 1, N_CTX) == PS_E_ARG);
    CHECK(ps_seq_copy(w.engine, 0, N_SEQ, 3) == PS_E_ARG && ps_seq_copy(w.engine, 0, 1, -1) == PS_E_ARG);
    end(&w);
}

/* What a draft's memory held is put back by others: it counts as far as it is the sequence's text. */
static void test_a_memory_put_back(void) {
    fixture w = make(200);
    begin(&w);
    int32_t text[N_TEXT + PS_MAX_DRAFT], n, held;
    CHECK(answer(&w, 0, &(mode){.length = 5}, text, &n) == PS_OK);
    CHECK(ps_seq_set(w.engine, 1, text, 40, -1, NULL) == PS_OK);
    struct llama_memory_i *const memory = ps_api.get_memory((struct llama_context *)w.ctx[PS_DRAFT]);
    ps_api.memory_seq_cp(memory, 0, 1, -1, -1);
    CHECK(ps_seq_state(w.engine, PS_DRAFT, 1, &held, NULL) == PS_OK && held == 0);
    CHECK(ps_seq_put_back(w.engine, PS_DRAFT, 1, 30) == PS_OK);
    CHECK(ps_seq_state(w.engine, PS_DRAFT, 1, &held, NULL) == PS_OK && held == 30);
    CHECK(ps_api.memory_seq_pos_max(memory, 1) == 29);
    CHECK(ps_seq_put_back(w.engine, PS_TARGET, 1, 30) == PS_E_ARG && ps_seq_put_back(w.engine, PS_DRAFT, 1, -1) == PS_E_ARG);
    CHECK(ps_seq_put_back(w.engine, PS_DRAFT, N_SEQ, 3) == PS_E_ARG && ps_seq_put_back(w.engine, PS_N_ROLES, 1, 3) == PS_E_ARG);
    end(&w);
}

/* ---------------------------------------------------------- other memories */

static void test_sliding_window(void) {
    for (int32_t window = 4; window <= 32; window *= 2) {
        fixture w = make(300);
        w.target.n_swa = w.draft.n_swa = w.companion.n_swa = window;
        begin(&w);
        for (int32_t r = 0; r < PS_N_ROLES; r++) w.ctx[r]->memory.n_ubatch = 8; /* what is kept beside the window */
        check_answer(&w, 0, &(mode){.length = 5});
        check_answer(&w, 1, &(mode){.length = 7, .companion = true});
        check_answer(&w, 0, &(mode){.length = 7}); /* back to the prompt, which the window has forgotten */
        end(&w);
    }
}

/* Whoever cannot drop its tail reads its text again; no token is lost, none is another one. */
static void test_memories_that_drop_nothing(void) {
    for (int32_t who = 0; who < 1 << PS_N_ROLES; who++) {
        fixture w = make(300);
        open_contexts(&w);
        w.ctx[PS_TARGET]->n_batch = 24; /* so that a text is read again in pieces */
        CHECK(open_engine(&w) == PS_OK);
        for (int32_t r = 0; r < PS_N_ROLES; r++) w.ctx[r]->memory.stubborn = who >> r & 1;
        check_answer(&w, 0, &(mode){.length = 5});
        check_answer(&w, 1, &(mode){.length = 7, .companion = true});
        check_answer(&w, 0, &(mode){.length = 3});
        end(&w);
    }
}

static void test_recurrent_memory(void) {
    fixture w = make(0);
    w.target.recurrent = true;
    begin(&w);
    check_answer(&w, 0, &(mode){.length = 0});
    check_answer(&w, 0, &(mode){.length = 0});
    int32_t text[N_TEXT], n = N_PROMPT, held;
    write_prompt(text, 0);
    CHECK(ps_seq_set(w.engine, 0, text, n, -1, &held) == PS_OK && held == 0);
    CHECK(read_prompt(&w, 0, text, n) == PS_OK);
    CHECK(ps_draft_put(w.engine, 0, (int32_t[]){2, 2}, 2) == PS_OK);
    CHECK(ps_verify(w.engine, 1, &(ps_work){0, 0, 2}) == PS_E_ARG); /* it could not be rolled back */
    check_answer(&w, 0, &(mode){.length = 0});
    end(&w);
}

/* Memory that keeps the states of its last decode: drafts as long as that, and never a state of another position. */
static void test_kept_states(void) {
    for (int32_t noise = 0; noise <= 1000; noise += 250) {
        fixture w = make(noise);
        w.target.recurrent = true;
        w.target.n_rs = 5;
        begin(&w);
        check_answer(&w, 0, &(mode){.length = 5});
        check_answer(&w, 0, &(mode){.length = 3, .companion = true}); /* back to the prompt */
        int32_t text[N_TEXT + PS_MAX_DRAFT], n, held;
        CHECK(answer(&w, 1, &(mode){.length = 4}, text, &n) == PS_OK);
        for (int32_t back = 1; back < 8; back++) { /* as far as is kept, and further */
            CHECK(ps_seq_set(w.engine, 1, text, n - back, -1, &held) == PS_OK && held < n - back);
            CHECK(ps_prefill(w.engine, PS_TARGET, 1, n - back - 1, N_BATCH, &held) == PS_OK);
            int32_t again = n - back;
            ps_verdict verdict;
            while (again < n) CHECK(round_of(&w, 1, &(mode){.length = 4}, text, &again, n, &verdict) == PS_OK);
            CHECK(text[again - 1] == fake_next(&w.target, text, again - 1));
        }
        CHECK(ps_seq_copy(w.engine, 1, 2, n - 1) == PS_OK);
        check_answer(&w, 2, &(mode){.length = 5});
        check_answer(&w, 1, &(mode){.length = 5});
        CHECK(ps_draft_put(w.engine, 0, text, 6) == PS_OK);
        CHECK(ps_verify(w.engine, 1, &(ps_work){0, 0, 6}) == PS_E_ARG); /* more than is kept */
        end(&w);
    }
}

static void test_last_position_of_the_context(void) {
    fixture w = make(0);
    begin(&w);
    int32_t text[N_CTX + 2], n = N_CTX - 6;
    for (int32_t i = 0; i < n; i++) text[i] = 2 + i % 50;
    CHECK(read_prompt(&w, 0, text, n) == PS_OK);
    const ps_stop stop = free_running();
    ps_verdict verdict;
    ps_gate_state state = {0};
    while (n <= N_CTX) {
        const int32_t seq = 0, length = 4;
        CHECK(ps_draft_run(w.engine, 1, &seq, &length, &stop, 0) == PS_OK); /* shrinks to what there is room for */
        const ps_draft *view;
        CHECK(ps_draft_get(w.engine, 0, &view) == PS_OK && view->n <= N_CTX - n);
        CHECK(ps_verify(w.engine, 1, &(ps_work){0, 0, view->n}) == PS_OK);
        CHECK(ps_accept(w.engine, 0, NULL, NULL, &state, &verdict) == PS_OK);
        memcpy(text + n, verdict.token, (size_t)verdict.n * sizeof *text);
        n += verdict.n;
    }
    CHECK(n == N_CTX + 1);
    for (int32_t i = N_CTX - 6; i < n; i++) CHECK(text[i] == fake_next(&w.target, text, i));
    CHECK(ps_verify(w.engine, 1, &(ps_work){0, 0, 0}) == PS_E_ARG);
    end(&w);
}

static void test_others_use_the_context(void) {
    fixture w = make(0);
    begin(&w);
    check_answer(&w, 0, &(mode){.length = 5});
    /* somebody drops the tail of the KV: seven tokens of the text are left, and the caller knows */
    struct llama_memory_i *const memory = &w.ctx[PS_TARGET]->memory;
    memory->seq[0].n = 7;
    int32_t text[N_TEXT], n;
    write_prompt(text, 0);
    CHECK(ps_seq_set(w.engine, 0, text, N_PROMPT, 7, &n) == PS_OK && n == 7);
    check_answer(&w, 0, &(mode){.length = 5});
    memory->seq[0].n = 0;
    CHECK(ps_seq_set(w.engine, 0, text, N_PROMPT, 0, &n) == PS_OK && n == 0);
    check_answer(&w, 0, &(mode){.length = 5});
    end(&w);
}

static void test_tokens_by_attribute(void) {
    const struct llama_vocab vocab = {.n_tokens = 9};
    int32_t ids[9], n;
    CHECK(ps_vocab_with(&vocab, 8, ids, 9, &n) == PS_OK && n == 2 && ids[0] == FAKE_EOG && ids[1] == FAKE_CONTROL);
    CHECK(ps_vocab_with(&vocab, 4 | 8, ids, 1, &n) == PS_OK && n == 9 && ids[0] == 0);
    CHECK(ps_vocab_with(&vocab, 64, NULL, 0, &n) == PS_OK && n == 0);
    CHECK(ps_vocab_with(NULL, 8, ids, 9, &n) == PS_E_ARG);
    CHECK(ps_vocab_with(&vocab, 8, NULL, 9, &n) == PS_E_ARG);
}

int main(void) {
    fake_bind();
    RUN(test_text_is_the_targets);
    RUN(test_text_is_the_samplers);
    RUN(test_text_is_drawn);
    RUN(test_coupling_is_checked);
    RUN(test_text_ends_at_an_end);
    RUN(test_nothing_is_decoded_twice);
    RUN(test_companion_sees_its_own_rows);
    RUN(test_drafts_from_elsewhere);
    RUN(test_sequences_in_one_batch);
    RUN(test_shared_prefix);
    RUN(test_a_memory_put_back);
    RUN(test_sliding_window);
    RUN(test_memories_that_drop_nothing);
    RUN(test_recurrent_memory);
    RUN(test_kept_states);
    RUN(test_last_position_of_the_context);
    RUN(test_others_use_the_context);
    RUN(test_tokens_by_attribute);
    return REPORT();
}
