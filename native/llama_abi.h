/*
 * The part of llama.cpp's binary interface that pyspec calls, declared here: the build needs no llama.h and links no libllama. A
 * test compiles this file with the llama.h from the llama-cpp-python wheel and asserts equal sizes and offsets; pyspec/_lib.py
 * checks the same numbers against llama_cpp's ctypes at import.
 */
#ifndef PS_LLAMA_ABI_H
#define PS_LLAMA_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct llama_context;
struct llama_memory_i;
struct llama_model;
struct llama_sampler;
struct llama_vocab;

struct llama_batch {
    int32_t n_tokens;
    int32_t *token; /* NULL if only embd is given */
    float *embd;    /* NULL if only token is given */
    int32_t *pos;
    int32_t *n_seq_id;
    int32_t **seq_id;
    int8_t *logits; /* non-zero: this row's logits are wanted */
};

struct llama_token_data {
    int32_t id;
    float logit;
    float p;
};

struct llama_token_data_array {
    struct llama_token_data *data;
    size_t size;
    int64_t selected; /* index into data, not a token id */
    bool sorted;
};

/* Called between graph nodes; true stops the decode, which then returns 2. */
typedef bool (*ps_abort_callback)(void *data);

/* Every llama.cpp function pyspec calls: X(return type, name without llama_, parameters). */
#define PS_LLAMA_API(X)                                                                                                  \
    X(int32_t, decode, (struct llama_context * ctx, struct llama_batch batch))                                           \
    X(int32_t, encode, (struct llama_context * ctx, struct llama_batch batch))                                           \
    X(float *, get_logits_ith, (struct llama_context * ctx, int32_t i))                                                  \
    X(void, set_embeddings, (struct llama_context * ctx, bool embeddings))                                               \
    X(struct llama_memory_i *, get_memory, (const struct llama_context *ctx))                                            \
    X(bool, memory_seq_rm, (struct llama_memory_i * mem, int32_t seq_id, int32_t p0, int32_t p1))                        \
    X(void, memory_seq_cp, (struct llama_memory_i * mem, int32_t seq_id_src, int32_t seq_id_dst, int32_t p0, int32_t p1)) \
    X(int32_t, memory_seq_pos_min, (struct llama_memory_i * mem, int32_t seq_id))                                        \
    X(int32_t, memory_seq_pos_max, (struct llama_memory_i * mem, int32_t seq_id))                                        \
    X(uint32_t, n_ctx_seq, (const struct llama_context *ctx))                                                            \
    X(uint32_t, n_batch, (const struct llama_context *ctx))                                                              \
    X(uint32_t, n_ubatch, (const struct llama_context *ctx))                                                             \
    X(uint32_t, n_seq_max, (const struct llama_context *ctx))                                                            \
    X(uint32_t, n_rs_seq, (const struct llama_context *ctx))                                                             \
    X(void, synchronize, (struct llama_context * ctx))                                                                   \
    X(void, set_abort_callback, (struct llama_context * ctx, ps_abort_callback callback, void *data))                    \
    X(const struct llama_vocab *, model_get_vocab, (const struct llama_model *model))                                    \
    X(bool, model_is_recurrent, (const struct llama_model *model))                                                       \
    X(bool, model_is_hybrid, (const struct llama_model *model))                                                          \
    X(int32_t, model_n_embd, (const struct llama_model *model))                                                          \
    X(int32_t, model_n_embd_out, (const struct llama_model *model))                                                      \
    X(int32_t, model_n_swa, (const struct llama_model *model))                                                           \
    X(int32_t, vocab_n_tokens, (const struct llama_vocab *vocab))                                                        \
    X(uint32_t, vocab_get_attr, (const struct llama_vocab *vocab, int32_t token))                                        \
    X(bool, vocab_is_eog, (const struct llama_vocab *vocab, int32_t token))                                              \
    X(bool, vocab_is_control, (const struct llama_vocab *vocab, int32_t token))                                          \
    X(void, sampler_apply, (struct llama_sampler * smpl, struct llama_token_data_array * cur_p))                         \
    X(void, sampler_accept, (struct llama_sampler * smpl, int32_t token))

/*
 * Functions that llama.cpp exports under C++ names, without promises: bound if present, and needed only for drafts that read the
 * target's states (EAGLE-3, MTP). pyspec/_lib.py has their names by compiler.
 */
#define PS_LLAMA_EXT_API(X)                                                                      \
    X(void, set_embeddings_layer_inp, (struct llama_context * ctx, uint32_t layer, bool wanted)) \
    X(float *, get_embeddings_layer_inp, (struct llama_context * ctx, uint32_t layer))           \
    X(void, set_embeddings_nextn, (struct llama_context * ctx, bool wanted, bool masked))        \
    X(float *, get_embeddings_nextn, (struct llama_context * ctx))                               \
    X(float *, get_embeddings_nextn_ith, (struct llama_context * ctx, int32_t i))                \
    X(void, set_nextn_layer_offset, (struct llama_context * ctx, int32_t offset))

#endif /* PS_LLAMA_ABI_H */
