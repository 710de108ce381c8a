/* Drafts that read the target's states, of each kind, and the margin gate inside the engine, on the toy model. */
#include <math.h>
#include <string.h>

#include "../pyspec.h"
#include "check.h"
#include "fake_llama.h"

enum { N_VOCAB = 60, N_CTX = 256, N_BATCH = 64, N_UBATCH = 16, WIDTH = 8, N_HIDDEN = 12, N_PROMPT = 30, N_TEXT = 80, N_LAYERS = 3 };

static int32_t kind, heads; /* of the reading under test */

typedef struct fixture {
    struct llama_model model[PS_N_ROLES];
    struct llama_context *ctx[PS_N_ROLES];
    ps_engine *engine;
    ps_gate gate;
    ps_gate_state state;
    int32_t text[N_CTX + PS_MAX_DRAFT];
    int32_t n;
} fixture;

static void start(fixture *w) {
    memset(w, 0, sizeof *w);
    w->gate.theta = 1.0f;
    CHECK(ps_engine_open(1, N_VOCAB, &w->engine) == PS_OK);
    for (int32_t r = 0; r < PS_N_ROLES; r++) {
        w->model[r] = (struct llama_model){
            .vocab = {N_VOCAB}, .seed = 1, .n_embd = r == PS_TARGET ? N_HIDDEN : WIDTH, .endless = true};
        if (r == PS_DRAFT) w->model[r].pairs = true;
        if (r == PS_DRAFT && kind == PS_EAGLE3) w->model[r].n_encoded = N_HIDDEN * N_LAYERS;
        if (r == PS_DRAFT && kind == PS_MTP) w->model[r].n_embd = N_HIDDEN, w->model[r].heads = heads;
        w->ctx[r] = fake_open(&w->model[r], N_CTX, N_BATCH, 1);
        w->ctx[r]->memory.n_ubatch = N_UBATCH;
        CHECK(ps_engine_attach(w->engine, r, w->ctx[r], &w->model[r]) == PS_OK);
    }
    for (int32_t i = 0; i < N_PROMPT; i++) w->text[i] = 2 + (i * 7) % (N_VOCAB - 2);
    w->n = N_PROMPT;
    fake_breaches = 0;
}

static void read_states(fixture *w, int32_t window) {
    ps_reading reading = {.kind = kind, .n_hidden = N_HIDDEN, .width = WIDTH, .window = window, .layer = {0, 2, -1}, .n_layers = kind == PS_EAGLE3 ? N_LAYERS : 0};
    if (kind == PS_EAGLE3) reading.n_hidden *= N_LAYERS;
    if (kind == PS_MTP) reading.width = N_HIDDEN, reading.heads = heads;
    CHECK(ps_engine_read_states(w->engine, &reading) == PS_OK);
}

static void stop(fixture *w) {
    ps_engine_close(w->engine);
    for (int32_t r = 0; r < PS_N_ROLES; r++) fake_close(w->ctx[r]);
    CHECK(fake_breaches == 0);
}

static ps_status read_prompt(fixture *w) {
    ps_status status = ps_seq_set(w->engine, 0, w->text, w->n, -1, NULL);
    int32_t held = 0;
    for (int32_t i = 0; status == PS_OK && held < w->n - 1 && i < w->n; i++) {
        status = ps_prefill(w->engine, PS_TARGET, 0, w->n - 1, 16, &held);
    }
    return status;
}

static ps_status verify(fixture *w, int32_t n_draft, ps_verdict *out) {
    const ps_work work = {.seq = 0, .n_draft = n_draft};
    ps_status status = ps_verify(w->engine, 1, &work);
    if (status == PS_OK) status = ps_accept(w->engine, 0, NULL, &w->gate, &w->state, out);
    if (status != PS_OK) return status;
    memcpy(w->text + w->n, out->token, (size_t)out->n * sizeof *out->token);
    w->n += out->n;
    return PS_OK;
}

static ps_status round_of(fixture *w, int32_t k, bool companion) {
    const int32_t seq = 0;
    ps_stop rule = {.floors = {0}};
    for (int32_t i = 0; i < PS_TABLE_SIZE; i++) rule.table[i] = 1;
    ps_verdict verdict;
    ps_status status = k > 0 ? ps_draft_run(w->engine, 1, &seq, &k, &rule, companion) : PS_OK;
    if (status == PS_OK && k > 0 && companion) status = ps_score(w->engine, 1, &seq);
    return status == PS_OK ? verify(w, heads > 0 && heads < k ? heads : k, &verdict) : status;
}

static ps_status go_on(fixture *w, bool companion) {
    ps_status status = PS_OK;
    for (int32_t k = 1; status == PS_OK && w->n < N_TEXT; k = (k + 1) % 6) status = round_of(w, k, companion);
    return status;
}

static bool is_the_targets(const fixture *w) {
    for (int32_t i = N_PROMPT; i < w->n; i++) {
        if (w->text[i] != fake_next(&w->model[PS_TARGET], w->text, i)) return false;
    }
    return w->n >= N_TEXT;
}

static void test_text_is_the_targets(void) {
    for (int32_t window = 1; window <= 64; window *= 2) {
        fixture w;
        start(&w);
        read_states(&w, window);
        CHECK(read_prompt(&w) == PS_OK);
        CHECK(go_on(&w, window == 4) == PS_OK);
        CHECK(is_the_targets(&w));
        stop(&w);
    }
}

/* It reads nothing before it drafts, however long the prompt, and then no further back than its window. */
static void test_reads_the_window(void) {
    for (int32_t window = 1; window <= 64; window *= 2) {
        fixture w;
        start(&w);
        read_states(&w, window);
        CHECK(read_prompt(&w) == PS_OK && round_of(&w, 0, false) == PS_OK);
        CHECK(w.ctx[PS_DRAFT]->n_decodes == 0);
        const int32_t n = w.n;
        CHECK(round_of(&w, 2, false) == PS_OK);
        CHECK(w.ctx[PS_DRAFT]->memory.seq[0].first == (window < n - 1 ? n - window : 1));
        CHECK(go_on(&w, false) == PS_OK && is_the_targets(&w));
        stop(&w);
    }
}

/* A sliding window has not forgotten what was never read: nothing is read again for it. */
static void test_begins_with_a_sliding_window(void) {
    ps_counters plain, windowed;
    for (int32_t n_swa = 0; n_swa < 100; n_swa += 64) {
        fixture w;
        start(&w);
        w.model[PS_DRAFT].n_swa = n_swa;
        CHECK(ps_engine_attach(w.engine, PS_DRAFT, w.ctx[PS_DRAFT], &w.model[PS_DRAFT]) == PS_OK);
        read_states(&w, 16);
        CHECK(read_prompt(&w) == PS_OK && go_on(&w, false) == PS_OK && is_the_targets(&w));
        CHECK(ps_counters_get(w.engine, n_swa > 0 ? &windowed : &plain) == PS_OK);
        stop(&w);
    }
    CHECK(windowed.rows[PS_DRAFT] == plain.rows[PS_DRAFT]);
}

/* Texts one after the other, each going back into the one before: as far as the states are kept it drafts at once ... */
static void test_going_back(void) {
    fixture w;
    start(&w);
    read_states(&w, N_TEXT);
    for (int32_t n = N_TEXT; n > N_PROMPT; n -= 7) {
        CHECK(read_prompt(&w) == PS_OK);
        CHECK(go_on(&w, false) == PS_OK);
        CHECK(is_the_targets(&w));
        w.n = n;
    }
    stop(&w);
}

/* ... and further back, after one round of the target alone. */
static void test_going_back_past_the_states(void) {
    fixture w;
    start(&w);
    read_states(&w, 4);
    CHECK(read_prompt(&w) == PS_OK);
    CHECK(go_on(&w, false) == PS_OK);
    w.n = N_PROMPT;
    CHECK(read_prompt(&w) == PS_OK);
    CHECK(round_of(&w, 0, false) == PS_OK);
    CHECK(go_on(&w, false) == PS_OK);
    CHECK(is_the_targets(&w));
    stop(&w);
}

static void look(fixture *w, int32_t n, int32_t *drafted) {
    const int32_t seq = 0;
    ps_stop rule = {.floors = {0}};
    for (int32_t i = 0; i < PS_TABLE_SIZE; i++) rule.table[i] = 1;
    const ps_draft *view;
    CHECK(ps_draft_put(w->engine, seq, NULL, 0) == PS_OK);
    CHECK(ps_draft_run(w->engine, 1, &seq, &n, &rule, false) == PS_OK);
    CHECK(ps_draft_get(w->engine, seq, &view) == PS_OK);
    CHECK(view->n == (heads > 0 && heads < n ? heads : n));
    memset(drafted, 0, (size_t)n * sizeof *drafted);
    memcpy(drafted, view->token, (size_t)view->n * sizeof *drafted);
}

/* What is drafted is a function of the text where the window holds it: the same after rounds that accepted, refused and went back, and read afresh. */
static void test_drafts_have_no_history(void) {
    for (int32_t window = 1; window <= N_CTX; window *= 4) {
        fixture old, new;
        start(&old);
        read_states(&old, window);
        CHECK(read_prompt(&old) == PS_OK && go_on(&old, false) == PS_OK);
        old.n = N_TEXT - 20;
        CHECK(read_prompt(&old) == PS_OK && round_of(&old, 0, false) == PS_OK && go_on(&old, false) == PS_OK);
        start(&new);
        read_states(&new, N_CTX);
        memcpy(new.text, old.text, sizeof new.text);
        new.n = old.n - 1;
        CHECK(read_prompt(&new) == PS_OK && round_of(&new, 0, false) == PS_OK);
        CHECK(new.n == old.n && new.text[new.n - 1] == old.text[old.n - 1]);
        int32_t found[6], wanted[6];
        look(&old, 6, found);
        look(&new, 6, wanted);
        CHECK(window < old.n || !memcmp(found, wanted, sizeof found));
        stop(&old);
        stop(&new);
    }
}

/* Detached, the target's context shows nothing more, and another draft drafts. */
static void test_another_draft_after_it(void) {
    fixture w;
    start(&w);
    read_states(&w, 16);
    CHECK(read_prompt(&w) == PS_OK && go_on(&w, false) == PS_OK);
    CHECK(ps_engine_attach(w.engine, PS_DRAFT, w.ctx[PS_COMPANION], &w.model[PS_COMPANION]) == PS_OK);
    CHECK(!w.ctx[PS_TARGET]->nextn && !w.ctx[PS_TARGET]->shows[0] && !w.ctx[PS_DRAFT]->nextn);
    w.n = N_PROMPT;
    CHECK(read_prompt(&w) == PS_OK && go_on(&w, false) == PS_OK);
    CHECK(is_the_targets(&w));
    stop(&w);
}

/* A file may say that its model's output is of another width than its states: rows would be read beyond their end. */
static void test_states_of_another_width_are_refused(void) {
    for (int32_t role = PS_TARGET; role <= PS_DRAFT; role++) {
        fixture w;
        start(&w);
        CHECK(ps_engine_attach(w.engine, role, NULL, NULL) == PS_OK);
        fake_close(w.ctx[role]);
        w.model[role].n_out = 2;
        w.ctx[role] = fake_open(&w.model[role], N_CTX, N_BATCH, 1);
        CHECK(ps_engine_attach(w.engine, role, w.ctx[role], &w.model[role]) == PS_OK);
        ps_reading reading = {.kind = kind, .n_hidden = N_HIDDEN, .width = N_HIDDEN, .window = 64, .layer = {0, 2, -1}, .n_layers = kind == PS_EAGLE3 ? N_LAYERS : 0};
        if (kind == PS_EAGLE3) reading.n_hidden = N_HIDDEN * N_LAYERS, reading.width = WIDTH;
        const ps_status status = ps_engine_read_states(w.engine, &reading);
        CHECK(status == PS_E_ARG);
        if (status == PS_OK) CHECK(read_prompt(&w) == PS_OK && go_on(&w, false) == PS_OK);
        stop(&w);
    }
}

/* Whichever decode fails, the next text comes out right. */
static void test_failing_decodes(void) {
    for (int32_t role = PS_TARGET; role <= PS_DRAFT; role++) {
        for (int32_t at = 1; at <= 10; at++) {
            fixture w;
            start(&w);
            read_states(&w, 16);
            w.ctx[role]->fail_at = at;
            w.ctx[role]->fail_with = at % 2 ? 2 : -3;
            ps_status status = read_prompt(&w);
            if (status == PS_OK) status = go_on(&w, false);
            CHECK(status == (at % 2 ? PS_E_CANCELLED : PS_E_DECODE));
            CHECK(read_prompt(&w) == PS_OK);
            CHECK(go_on(&w, false) == PS_OK);
            CHECK(is_the_targets(&w));
            stop(&w);
        }
    }
}

/* The target's first and second choices in turn. */
static void propose(const fixture *w, int32_t n, int32_t *draft) {
    int32_t text[N_CTX + PS_MAX_DRAFT];
    float logits[N_VOCAB];
    memcpy(text, w->text, sizeof text);
    for (int32_t i = 0; i < n; i++) {
        ps_row row;
        fake_row(&w->model[PS_TARGET], text, w->n + i, logits);
        CHECK(ps_scan(logits, N_VOCAB, PS_SCAN_TOP2, &row) == PS_OK);
        text[w->n + i] = draft[i] = i % 2 ? row.second : row.first;
    }
}

static void test_margin_marks_what_it_takes(void) {
    fixture w;
    start(&w);
    w.gate = (ps_gate){.theta = 0.9f, .gap = INFINITY, .budget = 8.0f};
    CHECK(read_prompt(&w) == PS_OK);
    int32_t n_relaxed = 0;
    float spent = 0;
    for (int32_t round = 0; round < 40; round++) {
        const int32_t before = w.n;
        int32_t draft[6];
        ps_verdict verdict;
        propose(&w, 6, draft);
        CHECK(ps_draft_put(w.engine, 0, draft, 6) == PS_OK);
        const ps_status status = verify(&w, 6, &verdict);
        CHECK(status == PS_OK);
        if (status != PS_OK) break;
        for (int32_t i = 0; i < verdict.n; i++) {
            const bool relaxed = verdict.source[i] == PS_FROM_RELAXED;
            CHECK(verdict.preferred[i] == fake_next(&w.model[PS_TARGET], w.text, before + i));
            CHECK((verdict.token[i] != verdict.preferred[i]) == relaxed);
            CHECK(!relaxed || (verdict.token[i] != FAKE_CONTROL && verdict.preferred[i] != FAKE_CONTROL));
            CHECK(relaxed || verdict.gap[i] == 0.0f);
            n_relaxed += relaxed;
            spent += verdict.gap[i];
        }
    }
    CHECK(n_relaxed > 2 && spent <= 8.0f && fabsf(w.state.spent - spent) < 1e-4f);
    stop(&w);
}

/* The draft's own drafts under a gate: what was relaxed had what the gate asks for, and the text's own rows say so. */
static void confirmed_text(ps_gate gate, int32_t *n_relaxed, int32_t *n_open) {
    fixture w;
    start(&w);
    w.gate = gate;
    w.model[PS_DRAFT].pairs = false;
    w.model[PS_DRAFT].blur = 2;
    CHECK(read_prompt(&w) == PS_OK);
    for (int32_t round = 0; round < 60 && w.n < N_CTX - 10; round++) {
        const int32_t seq = 0, k = 5, before = w.n;
        ps_stop rule = {.floors = {0}};
        for (int32_t i = 0; i < PS_TABLE_SIZE; i++) rule.table[i] = 1;
        CHECK(ps_draft_run(w.engine, 1, &seq, &k, &rule, false) == PS_OK);
        int32_t drafted[PS_MAX_DRAFT];
        const ps_draft *draft;
        CHECK(ps_draft_get(w.engine, 0, &draft) == PS_OK);
        const int32_t n = round % 3 ? draft->n : draft->n - 2; /* what is left over begins the next draft */
        memcpy(drafted, draft->token, sizeof drafted);
        ps_verdict verdict;
        CHECK(verify(&w, n, &verdict) == PS_OK);
        for (int32_t i = 0; i < verdict.n; i++) {
            float row[N_VOCAB];
            ps_row found;
            fake_row(&w.model[PS_TARGET], w.text, before + i, row);
            if (verdict.source[i] == PS_FROM_TARGET && i < n) {
                CHECK(ps_scan(row, N_VOCAB, PS_SCAN_TOP2, &found) == PS_OK);
                *n_open += found.second == drafted[i];
            }
            if (verdict.source[i] != PS_FROM_RELAXED) continue;
            ++*n_relaxed;
            CHECK(verdict.seen[i].behind >= gate.confirm);
            for (int32_t j = 1; j <= gate.confirm; j++) {
                CHECK(i + j < n && drafted[i + j] == verdict.token[i + j] && verdict.source[i + j] == PS_FROM_DRAFT);
            }
        }
    }
    stop(&w);
}

static void test_confirmed_by_what_follows(void) {
    ps_gate gates[] = {
        {.theta = 0, .gap = INFINITY, .budget = INFINITY},
        {.theta = 0, .gap = INFINITY, .budget = INFINITY, .confirm = 1},
    };
    int32_t n_relaxed[2] = {0}, n_open[2] = {0};
    for (int32_t i = 0; i < 2; i++) confirmed_text(gates[i], &n_relaxed[i], &n_open[i]);
    CHECK(n_relaxed[0] > 0 && n_relaxed[1] > 0);
    CHECK(n_open[1] > 0); /* refused, though the row alone would have let it pass */
}

int main(void) {
    fake_bind();
    for (int32_t i = 0; i < 3; i++) {
        kind = i ? PS_MTP : PS_EAGLE3;
        heads = i == 2 ? FAKE_MAX_HEADS : 0;
        RUN(test_text_is_the_targets);
        RUN(test_reads_the_window);
        RUN(test_begins_with_a_sliding_window);
        RUN(test_going_back);
        RUN(test_going_back_past_the_states);
        RUN(test_drafts_have_no_history);
        RUN(test_another_draft_after_it);
        RUN(test_failing_decodes);
        RUN(test_states_of_another_width_are_refused);
    }
    RUN(test_margin_marks_what_it_takes);
    RUN(test_confirmed_by_what_follows);
    return REPORT();
}
