/*
 * The engine on a toy llama.cpp, under the sanitizers: the text is compared to the model's own after good rounds, after every decode
 * that can fail has failed, and after every allocation that can fail has failed.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../pyspec.h"
#include "check.h"
#include "fake_llama.h"

enum { N_VOCAB = 61, N_CTX = 256, N_BATCH = 256, N_SEQ = 4, N_PROMPT = 9, N_TEXT = 90, CHUNK = 4 };

/* ------------------------------------------------- allocations that fail */

static int64_t n_allocations, refused_at = -1; /* -1: none is refused */

static bool refuse(void) { return n_allocations++ == refused_at; }

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);

void *__wrap_malloc(size_t size) { return refuse() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t n, size_t size) { return refuse() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *old, size_t size) { return refuse() ? NULL : __real_realloc(old, size); }

static void refuse_allocation(int64_t k) {
    n_allocations = 0;
    refused_at = k;
}

/* ------------------------------------------------------------------ world */

typedef struct world {
    struct llama_model target, draft, companion;
    struct llama_context *ctx[PS_N_ROLES];
    ps_engine *engine;
} world;

/* How a text is made: what drafts, how far, who judges, who chooses. */
typedef struct way {
    int32_t length;    /* drafted tokens a round; 0 for plain decoding */
    bool companion;
    int32_t trim;      /* verify that many fewer than drafted */
    struct llama_sampler *sampler;
} way;

static ps_stop free_running(void) {
    ps_stop stop = {.floors = {0}};
    for (int32_t i = 0; i < PS_TABLE_SIZE; i++) stop.table[i] = 1.0f;
    return stop;
}

static const struct llama_model *model_of(const world *w, int32_t role) {
    return role == PS_TARGET ? &w->target : role == PS_DRAFT ? &w->draft : &w->companion;
}

static world make(int32_t noise) {
    const struct llama_model target = {.vocab = {N_VOCAB}, .seed = 7, .n_embd = 8, .endless = true};
    world w = {.target = target, .draft = target, .companion = target};
    w.draft.noise = w.companion.noise = noise;
    return w;
}

static void open_contexts(world *w) {
    for (int32_t r = 0; r < PS_N_ROLES; r++) w->ctx[r] = fake_open(model_of(w, r), N_CTX, N_BATCH, N_SEQ);
}

static ps_status open_engine(world *w) {
    ps_status status = ps_engine_open(N_SEQ, N_VOCAB, &w->engine);
    for (int32_t r = 0; status == PS_OK && r < PS_N_ROLES; r++) {
        status = ps_engine_attach(w->engine, r, w->ctx[r], model_of(w, r));
    }
    return status;
}

static void begin(world *w) {
    open_contexts(w);
    CHECK(open_engine(w) == PS_OK);
}

static void end(world *w) {
    ps_engine_close(w->engine);
    for (int32_t r = 0; r < PS_N_ROLES; r++) fake_close(w->ctx[r]);
    CHECK(fake_breaches == 0);
    fake_breaches = 0;
}

static void write_prompt(int32_t *text, int32_t seq) {
    for (int32_t i = 0; i < N_PROMPT; i++) text[i] = 2 + (i * i + 5 * seq) % (N_VOCAB - 2);
}

/* ----------------------------------------------------------------- rounds */

static ps_status read_prompt(world *w, int32_t seq, const int32_t *text, int32_t n) {
    ps_status status = ps_seq_set(w->engine, seq, text, n, -1, NULL);
    int32_t held = -1, before = -2;
    while (status == PS_OK && held > before) {
        before = held;
        status = ps_prefill(w->engine, PS_TARGET, seq, n - 1, CHUNK, &held);
    }
    return status;
}

static ps_status draft(world *w, int32_t seq, const way *how, int32_t room, int32_t *n) {
    const ps_stop stop = free_running();
    const int32_t length = how->length < room ? how->length : room;
    *n = 0;
    if (length < 1) return PS_OK;
    ps_status status = ps_draft_run(w->engine, 1, &seq, &length, &stop, how->companion);
    if (status == PS_OK && how->companion) status = ps_score(w->engine, 1, &seq);
    if (status != PS_OK) return status;
    const ps_draft *view;
    CHECK(ps_draft_get(w->engine, seq, &view) == PS_OK);
    CHECK(view->n >= 1 && view->n <= length && view->scored == how->companion);
    *n = view->n > how->trim ? view->n - how->trim : 0;
    return PS_OK;
}

/* One round; the text grows by the verdict's tokens. */
static ps_status round_of(world *w, int32_t seq, const way *how, int32_t *text, int32_t *n, int32_t most, ps_verdict *out) {
    int32_t n_draft;
    ps_status status = draft(w, seq, how, most - *n - 1, &n_draft);
    if (status != PS_OK) return status;
    const ps_work work = {seq, 0, n_draft};
    status = ps_verify(w->engine, 1, &work);
    ps_gate_state state = {0};
    if (status == PS_OK) status = ps_accept(w->engine, seq, how->sampler, NULL, &state, out);
    if (status != PS_OK) return status;
    CHECK(out->n >= 1 && out->n_verified == n_draft && out->n_accepted <= n_draft);
    memcpy(text + *n, out->token, (size_t)out->n * sizeof *text);
    *n += out->n;
    return PS_OK;
}

/* A whole text of N_TEXT tokens, or less where it ends. */
static ps_status answer(world *w, int32_t seq, const way *how, int32_t *text, int32_t *n) {
    write_prompt(text, seq);
    *n = N_PROMPT;
    ps_status status = read_prompt(w, seq, text, *n);
    ps_verdict verdict = {0};
    while (status == PS_OK && *n < N_TEXT && !verdict.ended) status = round_of(w, seq, how, text, n, N_TEXT, &verdict);
    return status;
}

/* What the target says by itself. */
static int32_t truth(const world *w, int32_t seq, struct llama_sampler *sampler, int32_t *text) {
    write_prompt(text, seq);
    for (int32_t n = N_PROMPT; n < N_TEXT; n++) {
        text[n] = sampler ? fake_sampled(&w->target, sampler, text, n) : fake_next(&w->target, text, n);
        if (sampler) sampler->n_accepted++;
        if (text[n] == FAKE_EOG) return n + 1;
    }
    return N_TEXT;
}

static void check_answer(world *w, int32_t seq, const way *how) {
    int32_t found[N_TEXT + PS_MAX_DRAFT], wanted[N_TEXT], n;
    struct llama_sampler copy = how->sampler ? *how->sampler : (struct llama_sampler){0};
    CHECK(answer(w, seq, how, found, &n) == PS_OK);
    const int32_t n_wanted = truth(w, seq, how->sampler ? &copy : NULL, wanted);
    CHECK(n == n_wanted && !memcmp(found, wanted, (size_t)n_wanted * sizeof *found));
    int32_t held, committed;
    CHECK(ps_seq_state(w->engine, PS_TARGET, seq, &held, &committed) == PS_OK);
    CHECK(committed == n && held == n - 1);
}

static const int32_t LENGTHS[] = {0, 1, 2, 5, 16, 64};
enum { N_LENGTHS = sizeof LENGTHS / sizeof LENGTHS[0] };

static void test_text_is_the_targets(void) {
    for (int32_t noise = 0; noise <= 1000; noise += 250) {
        for (int32_t i = 0; i < N_LENGTHS; i++) {
            for (int32_t trim = 0; trim < 3; trim++) {
                world w = make(noise);
                begin(&w);
                const way how = {.length = LENGTHS[i], .trim = trim};
                const way judged = {.length = LENGTHS[i], .trim = trim, .companion = true};
                check_answer(&w, 0, &how);
                check_answer(&w, 1, &judged);
                end(&w);
            }
        }
    }
}

static void test_text_is_the_samplers(void) {
    for (uint32_t seed = 0; seed < 20; seed++) {
        world w = make(200);
        begin(&w);
        struct llama_sampler sampler = {.seed = seed};
        check_answer(&w, 0, &(way){.length = 5, .sampler = &sampler});
        end(&w);
    }
}

static void test_text_ends_at_an_end(void) {
    for (uint32_t seed = 1; seed < 30; seed++) {
        world w = make(0);
        w.target.seed = w.draft.seed = seed;
        w.target.endless = w.draft.endless = false;
        begin(&w);
        check_answer(&w, 0, &(way){.length = 16});
        end(&w);
    }
}

static void test_nothing_is_decoded_twice(void) {
    world w = make(0);
    begin(&w);
    int32_t text[N_TEXT + PS_MAX_DRAFT], n;
    CHECK(answer(&w, 0, &(way){.length = 4}, text, &n) == PS_OK);
    ps_counters counters;
    CHECK(ps_counters_get(w.engine, &counters) == PS_OK);
    CHECK(counters.rows[PS_TARGET] == N_TEXT - 1);
    int32_t held;
    CHECK(ps_seq_state(w.engine, PS_DRAFT, 0, &held, NULL) == PS_OK && held > N_TEXT - 5);
    CHECK(counters.rows[PS_DRAFT] == held && counters.rows[PS_COMPANION] == 0);
    end(&w);
}

static void test_companion_sees_its_own_rows(void) {
    world w = make(300);
    w.companion.seed = 19;
    begin(&w);
    int32_t text[N_TEXT + PS_MAX_DRAFT], n = N_PROMPT;
    write_prompt(text, 0);
    CHECK(read_prompt(&w, 0, text, n) == PS_OK);
    ps_verdict verdict = {0};
    while (n < N_TEXT) {
        int32_t n_draft;
        CHECK(draft(&w, 0, &(way){.length = 6, .companion = true}, N_TEXT - n, &n_draft) == PS_OK);
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
    world w = make(0);
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
        if (round % 3 == 0) CHECK(draft(&w, 0, &(way){.length = 3}, 9, &(int32_t){0}) == PS_OK); /* replaced by the next line */
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
    world w = make(200);
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
    world w = make(200);
    begin(&w);
    int32_t text[N_TEXT + PS_MAX_DRAFT], wanted[N_TEXT], n, held;
    CHECK(answer(&w, 0, &(way){.length = 5, .companion = true}, text, &n) == PS_OK);
    check_answer(&w, 2, &(way){.length = 3});
    CHECK(ps_seq_copy(w.engine, 0, 2, 40) == PS_OK);
    CHECK(ps_seq_state(w.engine, PS_TARGET, 2, &held, NULL) == PS_OK && held == 40);
    CHECK(ps_seq_set(w.engine, 2, text, 40, -1, &held) == PS_OK && held == 39);
    n = 40;
    ps_verdict verdict = {0};
    while (n < N_TEXT) CHECK(round_of(&w, 2, &(way){.length = 5, .companion = true}, text, &n, N_TEXT, &verdict) == PS_OK);
    truth(&w, 0, NULL, wanted);
    CHECK(!memcmp(text, wanted, sizeof wanted));
    CHECK(ps_seq_copy(w.engine, 0, 0, 3) == PS_E_ARG && ps_seq_copy(w.engine, 0, 1, N_CTX) == PS_E_ARG);
    CHECK(ps_seq_copy(w.engine, 0, N_SEQ, 3) == PS_E_ARG && ps_seq_copy(w.engine, 0, 1, -1) == PS_E_ARG);
    end(&w);
}

/* ---------------------------------------------------------- other memories */

static void test_sliding_window(void) {
    for (int32_t window = 4; window <= 32; window *= 2) {
        world w = make(300);
        w.target.n_swa = w.draft.n_swa = w.companion.n_swa = window;
        begin(&w);
        for (int32_t r = 0; r < PS_N_ROLES; r++) w.ctx[r]->memory.n_ubatch = 8; /* what is kept beside the window */
        check_answer(&w, 0, &(way){.length = 5});
        check_answer(&w, 1, &(way){.length = 7, .companion = true});
        check_answer(&w, 0, &(way){.length = 7}); /* back to the prompt, which the window has forgotten */
        end(&w);
    }
}

static void test_recurrent_memory(void) {
    world w = make(0);
    w.target.recurrent = true;
    begin(&w);
    check_answer(&w, 0, &(way){.length = 0});
    check_answer(&w, 0, &(way){.length = 0});
    int32_t text[N_TEXT], n = N_PROMPT, held;
    write_prompt(text, 0);
    CHECK(ps_seq_set(w.engine, 0, text, n, -1, &held) == PS_OK && held == 0);
    CHECK(read_prompt(&w, 0, text, n) == PS_OK);
    ps_verdict verdict;
    ps_gate_state state = {0};
    CHECK(ps_draft_put(w.engine, 0, (int32_t[]){2, 2}, 2) == PS_OK);
    CHECK(ps_verify(w.engine, 1, &(ps_work){0, 0, 2}) == PS_OK);
    CHECK(ps_accept(w.engine, 0, NULL, NULL, &state, &verdict) == PS_E_ROLLBACK);
    check_answer(&w, 0, &(way){.length = 0});
    end(&w);
}

static void test_last_position_of_the_context(void) {
    world w = make(0);
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

/* ----------------------------------------------------------------- faults */

static ps_status expected_of(int32_t answered) {
    return answered == 1 ? PS_E_NOSLOT : answered == 2 ? PS_E_CANCELLED : PS_E_DECODE;
}

/* Every decode of every role fails once, in each of llama.cpp's ways; the next request is right. */
static void test_failing_decodes(void) {
    static const int32_t ways[] = {1, 2, -1, -3};
    const way how = {.length = 5, .companion = true};
    for (int32_t role = 0; role < PS_N_ROLES; role++) {
        for (int32_t i = 0; i < 4; i++) {
            ps_status status = PS_E_DECODE;
            for (int32_t k = 1; status != PS_OK; k++) {
                world w = make(300);
                begin(&w);
                w.ctx[role]->fail_at = k;
                w.ctx[role]->fail_with = ways[i];
                int32_t text[N_TEXT + PS_MAX_DRAFT], n;
                status = answer(&w, 0, &how, text, &n);
                CHECK(status == PS_OK ? w.ctx[role]->n_decodes < k : status == expected_of(ways[i]));
                ps_counters counters;
                CHECK(ps_counters_get(w.engine, &counters) == PS_OK && counters.last_decode == (status == PS_OK ? 0 : ways[i]));
                w.ctx[role]->fail_at = 0;
                check_answer(&w, k % 2, &how);
                end(&w);
            }
        }
    }
}

/* The same, but the answer itself goes on after the failure. */
static void test_going_on_after_a_failing_decode(void) {
    const way how = {.length = 5, .companion = true};
    for (int32_t role = 0; role < PS_N_ROLES; role++) {
        for (int32_t k = 4; k < 40; k++) {
            world w = make(300);
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
    const way how = {.length = 5, .companion = true};
    for (int32_t role = 0; role < PS_N_ROLES; role++) {
        for (int32_t k = 3; k < 12; k++) {
            world w = make(300);
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
    world w = make(0);
    begin(&w);
    struct llama_sampler sampler = {.stuck = true};
    int32_t text[N_TEXT + PS_MAX_DRAFT], n;
    CHECK(answer(&w, 0, &(way){.length = 3, .sampler = &sampler}, text, &n) == PS_E_SAMPLER);
    sampler.stuck = false;
    check_answer(&w, 0, &(way){.length = 3, .sampler = &sampler});
    end(&w);
}

/* Every allocation fails once: opening, attaching, and a whole answer. Leaks are the sanitizer's to find. */
static void test_failing_allocations(void) {
    const way how = {.length = 5, .companion = true, .sampler = &(struct llama_sampler){.seed = 3}};
    ps_status status = PS_E_NOMEM;
    for (int64_t k = 0; status != PS_OK; k++) {
        world w = make(300);
        open_contexts(&w);
        refuse_allocation(k);
        status = open_engine(&w);
        int32_t text[N_TEXT + PS_MAX_DRAFT], n;
        const bool opened = status == PS_OK;
        if (opened) status = answer(&w, 0, &how, text, &n);
        CHECK(status == PS_OK ? n_allocations <= k : status == PS_E_NOMEM);
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
    world w = make(0);
    begin(&w);
    int32_t text[N_TEXT + PS_MAX_DRAFT], n;
    meddler m = {w.engine, 20, PS_OK};
    w.ctx[PS_TARGET]->abort = meddle;
    w.ctx[PS_TARGET]->abort_data = &m;
    CHECK(answer(&w, 0, &(way){.length = 5}, text, &n) == PS_OK);
    CHECK(m.seen == PS_E_BUSY);
    end(&w);
}

static bool cancel_now(void *data) {
    meddler *const m = data;
    if (--m->countdown == 0) ps_engine_cancel(m->engine, 1);
    return m->countdown <= 0;
}

static void test_cancel(void) {
    for (int32_t at = 1; at < 60; at += 3) {
        world w = make(300);
        begin(&w);
        void *const own = w.ctx[PS_TARGET]->abort_data;
        bool (*const callback)(void *) = w.ctx[PS_TARGET]->abort;
        meddler m = {w.engine, at, PS_OK};
        w.ctx[PS_TARGET]->abort = cancel_now;
        w.ctx[PS_TARGET]->abort_data = &m;
        int32_t text[N_TEXT + PS_MAX_DRAFT], n;
        CHECK(answer(&w, 0, &(way){.length = 5}, text, &n) == PS_E_CANCELLED);
        w.ctx[PS_TARGET]->abort = callback;
        w.ctx[PS_TARGET]->abort_data = own;
        CHECK(ps_verify(w.engine, 1, &(ps_work){0, 0, 0}) == PS_E_CANCELLED || n == 0); /* it holds until it is cleared */
        ps_engine_cancel(w.engine, 0);
        check_answer(&w, 0, &(way){.length = 5});
        end(&w);
    }
    ps_engine_cancel(NULL, 1);
}

static void test_arguments(void) {
    world w = make(0);
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
    check_answer(&w, 0, &(way){.length = 0});
    end(&w);
}

static void test_others_use_the_context(void) {
    world w = make(0);
    begin(&w);
    check_answer(&w, 0, &(way){.length = 5});
    /* somebody drops the tail of the KV: seven tokens of the text are left, and the caller knows */
    struct llama_memory_i *const memory = &w.ctx[PS_TARGET]->memory;
    memory->seq[0].n = 7;
    int32_t text[N_TEXT], n;
    write_prompt(text, 0);
    CHECK(ps_seq_set(w.engine, 0, text, N_PROMPT, 7, &n) == PS_OK && n == 7);
    check_answer(&w, 0, &(way){.length = 5});
    memory->seq[0].n = 0;
    CHECK(ps_seq_set(w.engine, 0, text, N_PROMPT, 0, &n) == PS_OK && n == 0);
    check_answer(&w, 0, &(way){.length = 5});
    end(&w);
}

int main(void) {
    fake_bind();
    RUN(test_text_is_the_targets);
    RUN(test_text_is_the_samplers);
    RUN(test_text_ends_at_an_end);
    RUN(test_nothing_is_decoded_twice);
    RUN(test_companion_sees_its_own_rows);
    RUN(test_drafts_from_elsewhere);
    RUN(test_sequences_in_one_batch);
    RUN(test_shared_prefix);
    RUN(test_sliding_window);
    RUN(test_recurrent_memory);
    RUN(test_last_position_of_the_context);
    RUN(test_failing_decodes);
    RUN(test_going_on_after_a_failing_decode);
    RUN(test_damaged_logits);
    RUN(test_stuck_sampler);
    RUN(test_failing_allocations);
    RUN(test_second_caller_is_busy);
    RUN(test_cancel);
    RUN(test_arguments);
    RUN(test_others_use_the_context);
    return REPORT();
}
