/*
 * A toy llama.cpp for the engine's tests: logits are a hash of everything the KV holds, so one wrong position shows at once.
 * It keeps llama.cpp's contracts (consecutive positions, batch and vocabulary bounds, rows without logits) and counts each breach in
 * `fake_breaches` where the real one would abort the process.
 */
#ifndef FAKE_LLAMA_H
#define FAKE_LLAMA_H

#include "../llama_abi.h"

enum { FAKE_EOG = 0, FAKE_CONTROL = 1, FAKE_MAX_SEQ = 8, FAKE_MAX_POS = 512, FAKE_N_LAYERS = 4, FAKE_MAX_HEADS = 3 };

struct llama_vocab {
    int32_t n_tokens;
};

struct llama_model {
    struct llama_vocab vocab;
    uint32_t seed;
    int32_t n_embd;
    int32_t n_out; /* floats of a state that is shown, 0 for n_embd */
    int32_t n_swa;
    int32_t noise;  /* of 1000 rows, how many are hashed with another seed */
    float blur;     /* each logit is more by 0 to so much, its own amount: a draft that is near the target */
    int32_t n_encoded; /* an EAGLE-3 draft's: floats that its encoder takes */
    bool pairs;        /* a row is a token and a vector */
    int32_t heads;     /* next-token heads, 0 for none: layers of which each sees what it has read itself */
    bool recurrent; /* memory of states: it cannot drop its tail, but for ... */
    int32_t n_rs;   /* ... that many tokens of its last decode */
    bool endless;   /* the end-of-generation token is never likely */
};

typedef struct fake_seq {
    int32_t first, n; /* positions [first, first + n) */
    int32_t kept;     /* oldest position a sliding window still holds */
    int32_t decode, fresh; /* the last decode, and tokens of it but the first */
    bool dropped;          /* since then */
    uint32_t token[FAKE_MAX_HEADS][FAKE_MAX_POS]; /* what each head has read there; a model without heads is the first */
} fake_seq;

struct llama_memory_i {
    const struct llama_model *model;
    int32_t n_seq, n_ubatch;
    bool stubborn; /* no tail can be dropped */
    fake_seq seq[FAKE_MAX_SEQ];
};

struct llama_context {
    const struct llama_model *model;
    struct llama_memory_i memory;
    int32_t n_ctx, n_batch;
    bool embeddings;
    bool nextn, masked;            /* llama_set_embeddings_nextn as it stands */
    bool shows[FAKE_N_LAYERS];     /* llama_set_embeddings_layer_inp as it stands, by layer */
    float *layers[FAKE_N_LAYERS];  /* [n_batch][n_embd] */
    bool (*abort)(void *);
    void *abort_data;
    int32_t n_rows;   /* of the last batch */
    bool *has_logits; /* [n_batch] */
    float *logits;    /* [n_batch][n_tokens] */
    float *states;    /* [n_batch][n_embd] */
    int32_t head;     /* llama_set_nextn_layer_offset as it stands */
    int32_t n_decodes;
    int32_t fail_at;   /* this decode (1 = first) fails half-way with ... */
    int32_t fail_with; /* ... this answer */
    int32_t nan_at;    /* rows of this decode hold a NaN */
};

struct llama_sampler {
    uint32_t seed;
    int32_t n_accepted;
    bool stuck;  /* selects nothing */
    bool barren; /* a grammar that allows nothing more: selects what has no logit, and dies where that is accepted */
};

extern int32_t fake_breaches;

void fake_bind(void); /* fills ps_api */
struct llama_context *fake_open(const struct llama_model *model, int32_t n_ctx, int32_t n_batch, int32_t n_seq);
void fake_close(struct llama_context *ctx);

/* What the model says next, without any context: the truth the engine is compared to. */
int32_t fake_next(const struct llama_model *model, const int32_t *tokens, int32_t n);

/* Its logits there. */
void fake_row(const struct llama_model *model, const int32_t *tokens, int32_t n, float *logits);

/* What the sampler would choose there. */
int32_t fake_sampled(const struct llama_model *model, const struct llama_sampler *sampler, const int32_t *tokens, int32_t n);

#endif /* FAKE_LLAMA_H */
