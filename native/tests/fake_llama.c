/* The toy model behind the engine's tests; see fake_llama.h. */
#include "fake_llama.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../ps_api.h"

int32_t fake_breaches;

static bool breach(bool broken) {
    fake_breaches += broken;
    return broken;
}

/* ------------------------------------------------------------------ model */

static uint32_t mix(uint32_t h, uint32_t x) {
    h ^= x + 0x9E3779B9u + (h << 6) + (h >> 2);
    h *= 0x85EBCA6Bu;
    return h ^ (h >> 15);
}

static void say(const struct llama_model *model, uint32_t prefix, float *logits) {
    const bool noisy = (int32_t)(mix(prefix, 77u) % 1000u) < model->noise;
    const uint32_t h = mix(prefix, noisy ? model->seed + 1000u : model->seed);
    for (int32_t v = 0; v < model->vocab.n_tokens; v++) logits[v] = (float)(mix(h, (uint32_t)v) % 4096u) / 256.0f;
    for (int32_t v = 0; model->blur > 0 && v < model->vocab.n_tokens; v++) {
        logits[v] += model->blur * (float)(mix(h, (uint32_t)v + 5000u) % 4096u) / 4096.0f;
    }
    if (model->endless) logits[FAKE_EOG] = -INFINITY;
}

/* Tokens [from, end) as one number. */
static uint32_t fold(const struct llama_model *model, const uint32_t *token, int32_t first, int32_t end) {
    int32_t from = first;
    if (model->n_swa > 0 && end - model->n_swa > from) from = end - model->n_swa;
    uint32_t h = 1;
    for (int32_t pos = from; pos < end; pos++) h = mix(mix(h, (uint32_t)pos), token[pos - first]);
    return h;
}

static int32_t argmax(const float *logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

static int32_t choose(const struct llama_sampler *sampler, int32_t n_accepted, const float *logits, int32_t n) {
    const float top = logits[argmax(logits, n)];
    int32_t id = (int32_t)(mix(sampler->seed, (uint32_t)n_accepted) % (uint32_t)n);
    while (logits[id] < top - 2.0f) id = (id + 1) % n; /* somewhere among the likely ones */
    return id;
}

void fake_row(const struct llama_model *model, const int32_t *tokens, int32_t n, float *logits) {
    uint32_t ids[FAKE_MAX_POS];
    for (int32_t i = 0; i < n; i++) ids[i] = (uint32_t)tokens[i];
    say(model, fold(model, ids, 0, n), logits);
}

int32_t fake_next(const struct llama_model *model, const int32_t *tokens, int32_t n) {
    float logits[1024];
    fake_row(model, tokens, n, logits);
    return argmax(logits, model->vocab.n_tokens);
}

int32_t fake_sampled(const struct llama_model *model, const struct llama_sampler *sampler, const int32_t *tokens, int32_t n) {
    float logits[1024];
    fake_row(model, tokens, n, logits);
    return choose(sampler, sampler->n_accepted, logits, model->vocab.n_tokens);
}

/* ---------------------------------------------------------------- context */

static int32_t fake_model_n_embd(const struct llama_model *model) { return model->n_embd; }

static int32_t fake_model_n_embd_out(const struct llama_model *model) { return model->n_out > 0 ? model->n_out : model->n_embd; }

struct llama_context *fake_open(const struct llama_model *model, int32_t n_ctx, int32_t n_batch, int32_t n_seq) {
    struct llama_context *const ctx = calloc(1, sizeof *ctx);
    const size_t rows = (size_t)n_batch;
    ctx->model = ctx->memory.model = model;
    ctx->memory.n_seq = n_seq;
    ctx->memory.n_ubatch = n_batch;
    ctx->n_ctx = n_ctx;
    ctx->n_batch = n_batch;
    ctx->embeddings = true; /* so that an engine that trusts a default is found out */
    ctx->has_logits = calloc(rows, sizeof *ctx->has_logits);
    ctx->logits = calloc(rows * (size_t)model->vocab.n_tokens, sizeof *ctx->logits);
    ctx->states = calloc(rows * (size_t)fake_model_n_embd_out(model), sizeof *ctx->states);
    for (int32_t k = 0; k < FAKE_N_LAYERS; k++) {
        ctx->layers[k] = calloc(rows * (size_t)model->n_embd, sizeof *ctx->layers[k]);
    }
    return ctx;
}

void fake_close(struct llama_context *ctx) {
    free(ctx->has_logits);
    free(ctx->logits);
    free(ctx->states);
    for (int32_t k = 0; k < FAKE_N_LAYERS; k++) free(ctx->layers[k]);
    free(ctx);
}

static uint32_t hash_of(const float *vector, size_t width) {
    uint32_t h = 5;
    for (size_t k = 0; k < width; k++) {
        uint32_t bits;
        memcpy(&bits, vector + k, sizeof bits);
        h = mix(h, bits);
    }
    return h;
}

/* A row's input as a number: its token, its vector's bits, or both. */
static uint32_t input_of(const struct llama_context *ctx, const struct llama_batch *batch, int32_t i) {
    if (batch->token) breach(batch->token[i] < 0 || batch->token[i] >= ctx->model->vocab.n_tokens);
    if (!batch->embd) return (uint32_t)batch->token[i];
    const size_t width = (size_t)ctx->model->n_embd;
    const uint32_t h = hash_of(batch->embd + (size_t)i * width, width);
    return batch->token ? mix(h, (uint32_t)batch->token[i]) : h;
}

/* n floats that only this number gives. */
static void write_state(uint32_t number, float *out, int32_t n) {
    for (int32_t k = 0; k < n; k++) out[k] = (float)(mix(number, (uint32_t)k + 9u) % 256u) / 256.0f;
}

static bool decode_row(struct llama_context *ctx, const struct llama_batch *batch, int32_t i) {
    const int32_t id = batch->seq_id[i][0], pos = batch->pos[i];
    if (breach(batch->n_seq_id[i] != 1 || id < 0 || id >= ctx->memory.n_seq)) return false;
    fake_seq *const seq = &ctx->memory.seq[id];
    if (seq->n == 0) seq->first = seq->kept = pos;
    if (breach(pos != seq->first + seq->n || pos < 0 || pos >= ctx->n_ctx)) return false;
    seq->fresh = seq->decode == ctx->n_decodes && seq->n > 0 ? seq->fresh + 1 : 0;
    seq->decode = ctx->n_decodes;
    seq->dropped = false;
    const struct llama_model *const model = ctx->model;
    if (breach(ctx->head != 0 && ctx->head >= model->heads)) return false; /* llama.cpp ends the process */
    uint32_t *const token = seq->token[ctx->head];
    token[seq->n++] = input_of(ctx, batch, i);
    const uint32_t all = fold(model, token, seq->first, pos + 1), prefix = ctx->head > 0 ? mix(all, (uint32_t)ctx->head) : all;
    if (model->n_swa > 0) {
        breach(pos + 1 - model->n_swa > 0 && seq->kept > pos + 1 - model->n_swa && seq->kept > seq->first);
        const int32_t oldest = pos + 1 - model->n_swa - ctx->memory.n_ubatch;
        if (oldest > seq->kept) seq->kept = oldest;
    }
    ctx->has_logits[i] = ctx->embeddings || batch->logits[i];
    float *const logits = ctx->logits + (size_t)i * (size_t)model->vocab.n_tokens;
    say(model, prefix, logits);
    if (ctx->n_decodes == ctx->nan_at) logits[model->vocab.n_tokens - 1] = NAN;
    const size_t at = (size_t)i * (size_t)model->n_embd;
    const int32_t n_out = fake_model_n_embd_out(model);
    write_state(prefix, ctx->states + (size_t)i * (size_t)n_out, n_out);
    for (uint32_t k = 0; k < FAKE_N_LAYERS; k++) write_state(mix(prefix, 50u + k), ctx->layers[k] + at, model->n_embd);
    return true;
}

/* Its graph has a row of logits for each row, and llama.cpp takes the first ones: all must be asked for, or none. */
static bool all_or_none(const struct llama_batch *batch) {
    int32_t n = 0;
    for (int32_t i = 0; i < batch->n_tokens; i++) n += batch->logits[i] != 0;
    return n == 0 || n == batch->n_tokens;
}

static int32_t fake_encode(struct llama_context *ctx, struct llama_batch batch) {
    ctx->n_decodes++;
    const size_t width = (size_t)ctx->model->n_encoded;
    if (breach(width == 0 || batch.token || !batch.embd || batch.n_tokens < 1 || batch.n_tokens > ctx->memory.n_ubatch)) return -1;
    const int32_t first = ctx->memory.seq[0].n > 0 ? ctx->memory.seq[0].first + ctx->memory.seq[0].n : batch.pos[0];
    ctx->n_rows = batch.n_tokens;
    for (int32_t i = 0; i < batch.n_tokens; i++) {
        breach(batch.pos[i] != first + i || batch.seq_id[i][0] != 0);
        ctx->has_logits[i] = false;
        const uint32_t number = hash_of(batch.embd + (size_t)i * width, width);
        const int32_t n_out = fake_model_n_embd_out(ctx->model);
        write_state(number, ctx->states + (size_t)i * (size_t)n_out, n_out);
    }
    return ctx->n_decodes == ctx->fail_at ? ctx->fail_with : 0;
}

/* States that a decode left half-way belong to no text. */
static void spoil(struct llama_context *ctx, const struct llama_batch *batch) {
    for (int32_t i = 0; ctx->model->recurrent && i < batch->n_tokens; i++) {
        fake_seq *const seq = &ctx->memory.seq[batch->seq_id[i][0]];
        if (seq->n > 0) seq->token[0][0] = 0xBADu;
    }
}

static int32_t fake_decode(struct llama_context *ctx, struct llama_batch batch) {
    ctx->n_decodes++;
    if (breach(batch.n_tokens < 1 || batch.n_tokens > ctx->n_batch)) return -1;
    const bool pairs = ctx->model->pairs;
    if (breach(pairs ? !batch.token || !batch.embd : (batch.token == NULL) == (batch.embd == NULL))) return -1;
    breach(pairs && !all_or_none(&batch));
    ctx->n_rows = batch.n_tokens;
    const bool fails = ctx->n_decodes == ctx->fail_at;
    const int32_t n = fails ? batch.n_tokens / 2 : batch.n_tokens; /* what is done stays done, as in llama.cpp */
    for (int32_t i = 0; i < n; i++) {
        if (!decode_row(ctx, &batch, i)) return -1;
        if (ctx->abort && ctx->abort(ctx->abort_data)) return spoil(ctx, &batch), 2;
    }
    if (fails) spoil(ctx, &batch);
    return fails ? ctx->fail_with : 0;
}

static float *fake_get_logits_ith(struct llama_context *ctx, int32_t i) {
    if (breach(i < 0 || i >= ctx->n_rows || !ctx->has_logits[i])) return NULL;
    return ctx->logits + (size_t)i * (size_t)ctx->model->vocab.n_tokens;
}

static void fake_set_embeddings_layer_inp(struct llama_context *ctx, uint32_t layer, bool wanted) {
    if (!breach(layer >= FAKE_N_LAYERS)) ctx->shows[layer] = wanted;
}

static float *fake_get_embeddings_layer_inp(struct llama_context *ctx, uint32_t layer) {
    return breach(layer >= FAKE_N_LAYERS || !ctx->shows[layer]) ? NULL : ctx->layers[layer];
}

static void fake_set_embeddings_nextn(struct llama_context *ctx, bool wanted, bool masked) {
    ctx->nextn = wanted;
    ctx->masked = masked;
}

static void fake_set_nextn_layer_offset(struct llama_context *ctx, int32_t offset) { ctx->head = offset; }

static float *fake_get_embeddings_nextn(struct llama_context *ctx) { return breach(!ctx->nextn) ? NULL : ctx->states; }

static float *fake_get_embeddings_nextn_ith(struct llama_context *ctx, int32_t i) {
    if (breach(!ctx->nextn || i < 0 || i >= ctx->n_rows || (ctx->masked && !ctx->has_logits[i]))) return NULL;
    return ctx->states + (size_t)i * (size_t)fake_model_n_embd_out(ctx->model);
}

static void fake_set_embeddings(struct llama_context *ctx, bool embeddings) { ctx->embeddings = embeddings; }

static struct llama_memory_i *fake_get_memory(const struct llama_context *ctx) {
    return &((struct llama_context *)(uintptr_t)ctx)->memory;
}

static bool fake_memory_seq_rm(struct llama_memory_i *mem, int32_t id, int32_t p0, int32_t p1) {
    if (breach(id < 0 || id >= mem->n_seq || p1 >= 0)) return false;
    fake_seq *const seq = &mem->seq[id];
    const int32_t from = p0 < 0 ? 0 : p0;
    if (from <= seq->first) {
        seq->n = 0;
        return true;
    }
    if (from >= seq->first + seq->n) return true;
    if (mem->stubborn) return false;
    if (mem->model->recurrent) {
        const int32_t gone = seq->first + seq->n - from;
        if (seq->dropped || gone > mem->model->n_rs) return false;
        if (gone > seq->fresh) seq->token[0][0] ^= 0xBADu; /* llama.cpp says yes, and takes a state of something else */
        seq->dropped = true;
    }
    seq->n = from - seq->first;
    return true;
}

static void fake_memory_seq_cp(struct llama_memory_i *mem, int32_t from, int32_t to, int32_t p0, int32_t p1) {
    if (breach(from < 0 || from >= mem->n_seq || to < 0 || to >= mem->n_seq || p0 >= 0 || p1 >= 0)) return;
    if (breach(mem->seq[to].n > 0)) return; /* real cells would then belong to two texts */
    breach(mem->model->recurrent && mem->seq[from].dropped);
    mem->seq[to] = mem->seq[from];
}

static int32_t fake_memory_seq_pos_min(struct llama_memory_i *mem, int32_t id) {
    return mem->seq[id].n > 0 ? mem->seq[id].kept : -1;
}

static int32_t fake_memory_seq_pos_max(struct llama_memory_i *mem, int32_t id) {
    return mem->seq[id].n > 0 ? mem->seq[id].first + mem->seq[id].n - 1 : -1;
}

static uint32_t fake_n_ctx_seq(const struct llama_context *ctx) { return (uint32_t)ctx->n_ctx; }
static uint32_t fake_n_batch(const struct llama_context *ctx) { return (uint32_t)ctx->n_batch; }
static uint32_t fake_n_ubatch(const struct llama_context *ctx) { return (uint32_t)ctx->memory.n_ubatch; }
static uint32_t fake_n_seq_max(const struct llama_context *ctx) { return (uint32_t)ctx->memory.n_seq; }

static uint32_t fake_n_rs_seq(const struct llama_context *ctx) { return (uint32_t)ctx->model->n_rs; }

static void fake_synchronize(struct llama_context *ctx) { (void)ctx; }

static void fake_set_abort_callback(struct llama_context *ctx, ps_abort_callback callback, void *data) {
    ctx->abort = callback;
    ctx->abort_data = data;
}

static const struct llama_vocab *fake_model_get_vocab(const struct llama_model *model) { return &model->vocab; }
static bool fake_model_is_recurrent(const struct llama_model *model) { return model->recurrent; }

static bool fake_model_is_hybrid(const struct llama_model *model) {
    (void)model;
    return false;
}

static int32_t fake_model_n_swa(const struct llama_model *model) { return model->n_swa; }
static int32_t fake_vocab_n_tokens(const struct llama_vocab *vocab) { return vocab->n_tokens; }

static uint32_t fake_vocab_get_attr(const struct llama_vocab *vocab, int32_t token) {
    breach(token < 0 || token >= vocab->n_tokens);
    return token == FAKE_CONTROL || token == FAKE_EOG ? 8u : 4u; /* LLAMA_TOKEN_ATTR_CONTROL, _NORMAL */
}

static bool fake_vocab_is_eog(const struct llama_vocab *vocab, int32_t token) {
    breach(token < 0 || token >= vocab->n_tokens);
    return token == FAKE_EOG;
}

static bool fake_vocab_is_control(const struct llama_vocab *vocab, int32_t token) {
    breach(token < 0 || token >= vocab->n_tokens);
    return token == FAKE_CONTROL;
}

/* Like llama.cpp's samplers it may reorder the candidates: `selected` is an index, not an id. */
static void fake_sampler_apply(struct llama_sampler *sampler, struct llama_token_data_array *array) {
    if (sampler->stuck) return;
    float logits[1024];
    for (size_t i = 0; i < array->size; i++) logits[array->data[i].id] = array->data[i].logit;
    const int32_t id = choose(sampler, sampler->n_accepted, logits, (int32_t)array->size);
    const struct llama_token_data first = array->data[0];
    array->data[0] = array->data[id];
    array->data[id] = first;
    array->selected = 0;
    if (sampler->barren) array->data[0].logit = -INFINITY;
}

static void fake_sampler_accept(struct llama_sampler *sampler, int32_t token) {
    (void)token;
    breach(sampler->barren);
    sampler->n_accepted++;
}

void fake_bind(void) {
#define BIND(result, name, parameters) ps_api.name = fake_##name;
    PS_LLAMA_API(BIND)
    PS_LLAMA_EXT_API(BIND)
#undef BIND
}
