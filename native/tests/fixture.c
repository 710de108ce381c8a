/* See fixture.h. */
#include "fixture.h"

#include <string.h>

#include "check.h"

ps_stop free_running(void) {
    ps_stop stop = {.floors = {0}};
    for (int32_t i = 0; i < PS_TABLE_SIZE; i++) stop.table[i] = 1.0f;
    return stop;
}

static const struct llama_model *model_of(const fixture *w, int32_t role) {
    return role == PS_TARGET ? &w->target : role == PS_DRAFT ? &w->draft : &w->companion;
}

fixture make(int32_t noise) {
    const struct llama_model target = {.vocab = {N_VOCAB}, .seed = 7, .n_embd = 8, .endless = true};
    fixture w = {.target = target, .draft = target, .companion = target};
    w.draft.noise = w.companion.noise = noise;
    return w;
}

void open_contexts(fixture *w) {
    for (int32_t r = 0; r < PS_N_ROLES; r++) w->ctx[r] = fake_open(model_of(w, r), N_CTX, N_BATCH, N_SEQ);
}

ps_status open_engine(fixture *w) {
    ps_status status = ps_engine_open(N_SEQ, N_VOCAB, &w->engine);
    for (int32_t r = 0; status == PS_OK && r < PS_N_ROLES; r++) {
        status = ps_engine_attach(w->engine, r, w->ctx[r], model_of(w, r));
    }
    return status;
}

void begin(fixture *w) {
    open_contexts(w);
    CHECK(open_engine(w) == PS_OK);
}

void end(fixture *w) {
    ps_engine_close(w->engine);
    for (int32_t r = 0; r < PS_N_ROLES; r++) fake_close(w->ctx[r]);
    CHECK(fake_breaches == 0);
    fake_breaches = 0;
}

void write_prompt(int32_t *text, int32_t seq) {
    for (int32_t i = 0; i < N_PROMPT; i++) text[i] = 2 + (i * i + 5 * seq) % (N_VOCAB - 2);
}

/* ----------------------------------------------------------------- rounds */

ps_status read_prompt(fixture *w, int32_t seq, const int32_t *text, int32_t n) {
    ps_status status = ps_seq_set(w->engine, seq, text, n, -1, NULL);
    int32_t held = -1, before = -2;
    while (status == PS_OK && held > before) {
        before = held;
        status = ps_prefill(w->engine, PS_TARGET, seq, n - 1, CHUNK, &held);
    }
    return status;
}

ps_status draft(fixture *w, int32_t seq, const mode *how, int32_t room, int32_t *n) {
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

ps_status round_of(fixture *w, int32_t seq, const mode *how, int32_t *text, int32_t *n, int32_t most, ps_verdict *out) {
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

ps_status answer(fixture *w, int32_t seq, const mode *how, int32_t *text, int32_t *n) {
    write_prompt(text, seq);
    *n = N_PROMPT;
    ps_status status = read_prompt(w, seq, text, *n);
    if (status == PS_OK) status = ps_seq_couple(w->engine, seq, how->coupling.temperature > 0 ? &how->coupling : NULL);
    ps_verdict verdict = {0};
    while (status == PS_OK && *n < N_TEXT && !verdict.ended) status = round_of(w, seq, how, text, n, N_TEXT, &verdict);
    return status;
}

int32_t truth(const fixture *w, int32_t seq, struct llama_sampler *sampler, int32_t *text) {
    write_prompt(text, seq);
    for (int32_t n = N_PROMPT; n < N_TEXT; n++) {
        text[n] = sampler ? fake_sampled(&w->target, sampler, text, n) : fake_next(&w->target, text, n);
        if (sampler) sampler->n_accepted++;
        if (text[n] == FAKE_EOG) return n + 1;
    }
    return N_TEXT;
}

void check_answer(fixture *w, int32_t seq, const mode *how) {
    int32_t found[N_TEXT + PS_MAX_DRAFT], wanted[N_TEXT], n;
    struct llama_sampler copy = how->sampler ? *how->sampler : (struct llama_sampler){0};
    CHECK(answer(w, seq, how, found, &n) == PS_OK);
    const int32_t n_wanted = truth(w, seq, how->sampler ? &copy : NULL, wanted);
    CHECK(n == n_wanted && !memcmp(found, wanted, (size_t)n_wanted * sizeof *found));
    int32_t held, committed;
    CHECK(ps_seq_state(w->engine, PS_TARGET, seq, &held, &committed) == PS_OK);
    CHECK(committed == n && held == n - 1);
}
