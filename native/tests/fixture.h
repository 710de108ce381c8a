/* A target, a draft and a companion on the toy llama.cpp, with an engine over them, and what their texts must be. */
#ifndef FIXTURE_H
#define FIXTURE_H

#include "../pyspec.h"
#include "fake_llama.h"

enum { N_VOCAB = 61, N_CTX = 256, N_BATCH = 256, N_SEQ = 4, N_PROMPT = 9, N_TEXT = 90, CHUNK = 4 };

typedef struct fixture {
    struct llama_model target, draft, companion;
    struct llama_context *ctx[PS_N_ROLES];
    ps_engine *engine;
} fixture;

/* How a text is made: what drafts, how far, who judges, who chooses. */
typedef struct mode {
    int32_t length;    /* drafted tokens a round; 0 for plain decoding */
    bool companion;
    int32_t trim;      /* verify that many fewer than drafted */
    struct llama_sampler *sampler;
    ps_coupling coupling; /* temperature 0 for none */
} mode;

ps_stop free_running(void);
void write_prompt(int32_t *text, int32_t seq);

/* `make` the models, `begin` opens contexts and engine, `end` closes them; the two steps of `begin` where they may fail. */
fixture make(int32_t noise);
void begin(fixture *w);
void end(fixture *w);
void open_contexts(fixture *w);
ps_status open_engine(fixture *w);

ps_status read_prompt(fixture *w, int32_t seq, const int32_t *text, int32_t n);
/* What a round drafts, and scores; *n is how much of it goes to the target. */
ps_status draft(fixture *w, int32_t seq, const mode *how, int32_t room, int32_t *n);
/* One round; the text grows by the verdict's tokens. */
ps_status round_of(fixture *w, int32_t seq, const mode *how, int32_t *text, int32_t *n, int32_t most, ps_verdict *out);
/* A whole text of N_TEXT tokens, or less where it ends. */
ps_status answer(fixture *w, int32_t seq, const mode *how, int32_t *text, int32_t *n);
/* What the target says by itself; returns its length. */
int32_t truth(const fixture *w, int32_t seq, struct llama_sampler *sampler, int32_t *text);
/* An answer, which must be the truth. */
void check_answer(fixture *w, int32_t seq, const mode *how);

#endif /* FIXTURE_H */
