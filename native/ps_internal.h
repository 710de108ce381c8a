/* What the engine's own files share; nothing outside native/ sees it. */
#ifndef PS_INTERNAL_H
#define PS_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "ps_api.h"
#include "ps_noise.h"
#include "pyspec.h"

/* A llama_context in one role, and how many leading committed tokens its KV holds for each sequence. */
typedef struct ps_ctx {
    struct llama_context *ctx;       /* NULL when the role is empty */
    const struct llama_vocab *vocab;
    int32_t n_vocab;                 /* logits of a row that the target has too */
    int32_t n_batch;                 /* rows one llama_decode accepts */
    int32_t n_ubatch;                /* rows one llama_encode accepts: it aborts the process on more */
    int32_t n_ctx;                   /* positions one sequence may use */
    int32_t n_swa;                   /* sliding window, 0 for none */
    int32_t n_embd, n_out;           /* floats of a state inside the model, and of an output state */
    bool recurrent;                  /* its memory holds states; the target's keeps the last n_rs before the newest */
    int32_t n_rs;
    bool shared;                     /* it reads the target's KV: n_kv is only a count, its memory is never touched */
    int32_t spare;                   /* side model with states: sequence s keeps its committed state in s + spare; 0: none */
    int32_t *saved;                  /* [n_seq] tokens in that state, at most n_kv */
    int32_t *n_kv;                   /* [n_seq] tokens held */
    int32_t *tail;                   /* [n_seq] if recurrent: tokens that can be dropped now; -1 after a drop */
} ps_ctx;

/* Rows for one llama_decode: tokens, and input vectors for a draft that reads states. */
typedef struct ps_rows {
    int32_t n, cap;
    int32_t *token, *n_seq_id, *seq;
    int32_t *pos; /* [4][cap]: rows of vectors need four where positions have sections (M-RoPE) */
    int32_t **seq_id;
    int8_t *wanted; /* non-zero: logits of this row are read */
    float *embd;         /* [n_vectors][width of an input], only for a draft that reads states */
    int32_t n_vectors;   /* the draft's n_batch; other models' batches may be larger */
    const float **state; /* [cap] EAGLE-3: the target's state to be encoded for this row, or NULL */
} ps_rows;

/* The target's states of consecutive positions [first, first + n), kept for a draft that reads them. */
typedef struct ps_states {
    int32_t first, n, cap;
    float *data; /* [cap][n_hidden] */
} ps_states;

/* How a draft's temperature compares with the target's: what is learned of some factors, and the one in force. */
typedef struct ps_temper {
    float agreed[PS_N_TEMPERS]; /* decayed count of the target's choices that each would have drawn */
    int32_t chosen;
} ps_temper;

typedef struct ps_seq {
    int32_t *token; /* committed tokens */
    int32_t n, cap;
    ps_draft draft;
    ps_coupling coupling; /* temperature 0: not coupled */
    int32_t tempered_at;  /* position of the choices in `tempered`, -1 for none */
    int32_t tempered[PS_N_TEMPERS];
    int32_t row;      /* first row of the last verify in the target's output, -1 for none */
    int32_t rows;     /* how many of its rows can be read */
    int32_t verified; /* drafted tokens in that verify, -1 if nothing can be accepted */
    float *kept;      /* [PS_MAX_DRAFT][n_vocab] the draft's rows, if a companion needs them */
    bool has_row[PS_MAX_DRAFT]; /* whether `kept` has the drafted token's row */
    float *own;       /* [heads, or 1][width] own states of a draft that reads states: after its last row, or one per head */
    ps_states states;
    int32_t begun;    /* where such a draft's KV begins: it reads only the end of a long prompt */
    uint32_t mark; /* the last call that named this sequence */
} ps_seq;

/* One sequence's place in the call that is running. */
typedef struct ps_slot {
    int32_t seq;
    int32_t limit;  /* drafted tokens wanted */
    int32_t row;    /* its row in the running batch, -1 for none */
    int32_t from;   /* tokens its KV held before the batch */
    int32_t n_rows;
    float survival; /* product of calibrated acceptance over its draft */
} ps_slot;

/* ps_counters, which other threads may read while one decodes. */
typedef struct ps_tally {
    _Atomic int64_t decodes[PS_N_ROLES], rows[PS_N_ROLES], us[PS_N_ROLES], refed;
    atomic_int last_decode;
} ps_tally;

static inline void ps_count(_Atomic int64_t *tally, int64_t n) { atomic_fetch_add_explicit(tally, n, memory_order_relaxed); }

struct ps_engine {
    int32_t n_seq, n_vocab;
    ps_ctx role[PS_N_ROLES];
    ps_seq *seq;
    ps_slot *slot; /* [n_seq] */
    uint32_t mark; /* of the running call */
    ps_rows rows;
    ps_rows encoded;      /* of an EAGLE-3 draft's encoder */
    ps_reading reading; /* kind 0 when the draft is independent */
    struct llama_token_data *candidates; /* [n_vocab] for the sampler chain */
    ps_temper temper;
    ps_tally tally;
    atomic_int cancelled;
    atomic_flag busy;
};

static inline bool ps_coupled(const ps_seq *seq) { return seq->coupling.temperature > 0; }

/* Whether each drafted token comes from another head, a separate layer in the draft's context. */
static inline bool ps_chains(const ps_engine *engine) { return engine->reading.heads > 1; }

/* Whether the draft reads the target's states. */
static inline bool ps_reads_states(const ps_engine *engine) { return engine->reading.kind != 0; }

/* ps_engine.c */
bool ps_lock(ps_engine *engine);
void ps_unlock(ps_engine *engine);
bool ps_seq_valid(const ps_engine *engine, int32_t seq);
ps_status ps_seq_claim(ps_engine *engine, int32_t seq); /* PS_E_ARG if out of range or named twice since ps_begin */
void ps_begin(ps_engine *engine);

/* ps_ctx.c */
ps_status ps_grow(void *pointer, int32_t *cap, int32_t need, size_t size); /* doubles; overflow is PS_E_NOMEM */
ps_status ps_rows_reserve(ps_rows *rows, int32_t cap, int32_t width);
void ps_rows_free(ps_rows *rows);
ps_status ps_rows_add(ps_rows *rows, int32_t seq, int32_t pos, int32_t token, bool wanted); /* PS_E_ARG if they are full */
ps_status ps_ctx_decode(ps_engine *engine, int32_t role);
ps_status ps_ctx_inject(ps_engine *engine); /* rows of vectors only, on the draft */
ps_status ps_ctx_encode(ps_engine *engine, const ps_rows *rows); /* on the draft */
void ps_ctx_roll_back(ps_engine *engine, int32_t role, int32_t seq, int32_t n);
void ps_ctx_save(ps_engine *engine, int32_t role, int32_t seq);
const float *ps_ctx_logits(const ps_ctx *ctx, int32_t row);

/* ps_seq.c */
ps_status ps_seq_append(ps_seq *seq, const int32_t *tokens, int32_t n);
void ps_seq_drop_draft(ps_seq *seq, int32_t n_matched, int32_t n_vocab);

/* ps_temper.c */
ps_coupling ps_tempered(const ps_engine *engine, const ps_seq *seq, int32_t which); /* which: a factor, -1 for the one in force */
/* Draw drafted token `at` from its row; for the first, keep what each factor would draw. found: of the row, by ps_scan; cut: by
 * ps_draw_cut. */
ps_row ps_temper_draw(const ps_engine *engine, ps_seq *seq, int32_t at, const float *row, int32_t n_vocab, const ps_row *found,
                      float cut);
void ps_temper_learn(ps_engine *engine, ps_seq *seq, int32_t position, int32_t chosen);

/* ps_draft.c */
void ps_draft_keep_states(ps_engine *engine, int32_t seq, int32_t pos, int32_t row, int32_t n);

/* ps_states.c */
void ps_states_want(ps_engine *engine, bool wanted);
bool ps_states_place(ps_engine *engine, int32_t seq, int32_t pos, int32_t n);
void ps_states_forget(ps_engine *engine, int32_t seq);
ps_status ps_states_keep(ps_engine *engine, int32_t seq, int32_t row, int32_t n);
ps_status ps_states_copy(ps_engine *engine, int32_t from, int32_t to, int32_t n);
const float *ps_states_at(const ps_engine *engine, int32_t seq, int32_t pos);
void ps_states_cut(ps_states *states, int32_t end);

/* ps_inputs.c */
bool ps_inputs_has_own(const ps_engine *engine); /* whether it has an own state after each row */
bool ps_inputs_wants_all(const ps_engine *engine); /* whether logits of every row in a batch must be wanted */
bool ps_inputs_begin(ps_engine *engine, int32_t seq);
ps_status ps_inputs_read(ps_engine *engine, const ps_reading *reading);
void ps_inputs_end(ps_engine *engine);
ps_status ps_inputs_true_row(ps_engine *engine, int32_t seq, int32_t pos, bool wanted);
ps_status ps_inputs_own_row(ps_engine *engine, int32_t seq, int32_t pos, int32_t i, bool wanted); /* drafted token i's */
ps_status ps_inputs_keep_own(ps_engine *engine, int32_t seq, int32_t row);
ps_status ps_inputs_decode(ps_engine *engine);
ps_status ps_inputs_catch_up(ps_engine *engine, int32_t seq);
ps_status ps_inputs_block(ps_engine *engine, int32_t seq, int32_t n);
void ps_inputs_ask(ps_engine *engine, int32_t head); /* which head the next decode runs */

#endif /* PS_INTERNAL_H */
