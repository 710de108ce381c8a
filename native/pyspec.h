/*
 * pyspec: the C side of speculative decoding on llama.cpp.
 *
 * Layers, each knowing only those before it:
 *   kernels   arithmetic on logit rows; includes nothing of llama.cpp (ps_scan.c, ps_noise.c, ps_draw.c, ps_agree.c, ps_gate.c)
 *   binding   llama.cpp's functions, resolved by Python from the library llama_cpp has loaded (ps_api.c)
 *   index     earlier texts and what followed them (ps_index.c)
 *   engine    prefill, draft, score, verify, accept, roll back, for many sequences (ps_engine.c, ps_ctx.c, ...)
 *
 * Every function returns a ps_status and reports through out-parameters. Nothing prints, exits, or installs a signal handler.
 * Global state is limited to the binding table, the limit of the kernels' instruction set and, in a debug build, the place of a
 * thread's last error, which ps_status_str reports. One engine belongs to one thread at a time: a second caller gets PS_E_BUSY.
 * Rows are float32 logits, n_vocab long. Times are microseconds, gaps nats.
 */
#ifndef PYSPEC_H
#define PYSPEC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ps_status {
    PS_OK = 0,
    PS_E_ARG = 1,       /* an argument outside its range */
    PS_E_NOMEM = 2,     /* an allocation failed */
    PS_E_BUSY = 3,      /* another thread is inside this engine */
    PS_E_UNBOUND = 4,   /* a llama.cpp function has not been bound */
    PS_E_DECODE = 5,    /* llama_decode failed; see ps_counters.last_decode */
    PS_E_NOSLOT = 6,    /* llama_decode found no room in the KV cache */
    PS_E_CANCELLED = 7, /* the cancel flag was raised */
    PS_E_NUMERIC = 8,   /* a logit is NaN or all are -inf */
    PS_E_STATE = 9,     /* calls out of order (accept without verify ...) */
    PS_E_SAMPLER = 10   /* the sampler chain selected nothing */
} ps_status;

const char *ps_status_str(ps_status status);
const char *ps_key(void); /* of this header: made by cdef.py */

/* ---------------------------------------------------------------- kernels */

typedef struct ps_row {
    int32_t first;  /* argmax; the lowest id among equals, as in llama.cpp's greedy sampler */
    int32_t second; /* argmax of the rest; -1 if n_vocab is 1 */
    float z1;       /* raw logit of first */
    float z2;       /* raw logit of second; -INFINITY if there is none */
    float lse;      /* log-sum-exp of the row; set by PS_SCAN_LSE */
} ps_row;

/* Instruction sets. The kernels use the best one available, up to a limit that tests and benchmarks may lower. */
enum { PS_SIMD_BASE = 0, PS_SIMD_AVX2 = 1, PS_SIMD_AVX512 = 2 };
int32_t ps_simd_limit(int32_t level); /* returns the level now in use; an unknown level changes nothing */

enum { PS_SCAN_TOP2 = 0, PS_SCAN_LSE = 1 };

/* Top-2 of a row and, if asked, its log-sum-exp. PS_E_NUMERIC on NaN, +inf or a row of -inf only. */
ps_status ps_scan(const float *row, int32_t n_vocab, int32_t what, ps_row *out);

/*
 * How tokens are drawn above temperature 0: the token at a position is the argmax of logit / temperature + G, where G is standard
 * Gumbel noise of (seed, position, id). A draft takes the argmax of its own logits with the same G (Daliri, Musco, Suresh, arXiv
 * 2408.07978). Its row is cut like the target's, as ps_draw_cut says; a first token that reaches top_p is the only one left.
 * Positions count tokens of the sequence, from 0.
 */
typedef struct ps_coupling {
    uint64_t seed;
    float temperature; /* above 0 */
    float min_p;       /* for a whole row: ids less than this many times as likely as the first are left out; 0 for none */
    float top_p;       /* for a draft's row: what is left after top_k is cut by it; 0 or 1 for not */
    int32_t top_k;     /* the target's chain begins with keeping so many ids of a row, and need not see others; 0: it sees all. A
                        * draft's row is cut likewise */
    int32_t tempered;  /* non-zero: the draft's temperature is learned; 0 where the text depends on the draft */
} ps_coupling;

/* G of n ids at a position, the same on every machine. */
ps_status ps_noise(uint64_t seed, int64_t position, const int32_t *ids, int32_t n, double *out);

/* The two best ids of a row with noise; the first is the one drawn. z is logit + temperature * G. Errors as ps_scan's. */
ps_status ps_draw(const float *row, int32_t n_vocab, const ps_coupling *how, int64_t position, ps_row *out);

/*
 * The share of the first token's probability below which a draft's row is cut, so that there is left what the target's chain would
 * leave of it by top_k, then top_p, and min_p. most: the row's largest logit. PS_E_ARG as ps_draw's.
 */
ps_status ps_draw_cut(const float *row, int32_t n_vocab, const ps_coupling *how, float most, float *share);

typedef struct ps_agreement {
    float s;     /* sum over the vocabulary of min(Pd, Pc), in 0..1 */
    float a;     /* min(1, Pc(d) / Pd(d)) */
    float pd;    /* draft's probability of the drafted token */
    float pc;    /* companion's probability of the drafted token */
    int32_t top; /* companion's argmax */
} ps_agreement;

/* S, A, Pd(d), Pc(d) and the companion's argmax for n_rows pairs of rows, n_vocab floats each. */
ps_status ps_agree(const float *draft, const float *companion, int32_t n_rows, int32_t n_vocab, const int32_t *drafted,
                   ps_agreement *out);

enum { PS_MAX_CONFIRM = 16 };

/* The margin gate. All limits are checked; a closed gate (theta >= 1, budget 0) never opens. */
typedef struct ps_gate {
    float theta;     /* open when z2 / z1 > theta, raw logits, z1 > 0 */
    float gap;       /* and the gap in force <= gap, nats; INFINITY is the paper's rule */
    float budget;    /* nats that relaxed tokens may cost the answer in total; INFINITY for no limit, 0 is strict */
    int32_t sampled; /* 1 above temperature 0: either of the top two may be taken */
    int32_t confirm; /* so many drafted tokens after it must be the target's choices, at most PS_MAX_CONFIRM; 0 for none */
} ps_gate;

typedef struct ps_gate_state {
    float spent; /* nats used of the budget */
} ps_gate_state;

/* What is known about a drafted token that the target did not choose, besides its row. */
typedef struct ps_evidence {
    float gap;      /* how far the second is behind the first in the distribution in force, nats; INFINITY if one was cut */
    float missing;  /* if tokens are sampled, -log of the first's probability there, else 0 */
    int32_t behind; /* consecutive drafted tokens after it that are the target's choices */
} ps_evidence;

enum { PS_REJECTED = 0, PS_EXACT = 1, PS_RELAXED = 2 };

/*
 * The acceptance rule for one row: exact match first, then the margin gate (MARS, arXiv 2601.15498, with a gap in nats).
 *
 * `chosen` is what the target's sampler chose (its argmax when greedy), `drafted` the draft's token. `barred` is non-zero when
 * either is an end-of-generation or control token. The gap in force is z1 - z2 for a greedy choice, (z1 - z2) / T at temperature
 * T, and INFINITY if truncation (top-k, top-p, min-p ...) removed one of the two.
 *
 * *verdict is PS_REJECTED, PS_EXACT or PS_RELAXED; *nats is how far a relaxed token is behind the first: the gap for the second,
 * and 0 otherwise. The budget is charged *nats plus `missing`, together -log of the token's probability: by that much,
 * taking it whatever was drawn makes the text likelier. Updates *state.
 */
ps_status ps_gate_decide(const ps_gate *gate, ps_gate_state *state, const ps_row *row, const ps_evidence *seen,
                         int32_t chosen, int32_t drafted, int32_t barred, int32_t *verdict, float *nats);

/* Whether the row alone lets the gate take a drafted token that was not chosen; only then is other evidence needed. */
int32_t ps_gate_may(const ps_gate *gate, const ps_row *row, float gap, int32_t drafted);

/* ------------------------------------------------------------------ index */

/*
 * Texts, and how often each continuation followed each of their parts. A place stands for a whole text; texts grow in any order,
 * and those with the same beginning share it, counted once. The same calls give the same places. One index belongs to one thread
 * at a time.
 */
typedef struct ps_index ps_index;

enum { PS_INDEX_EMPTY = 1 }; /* the place of the empty text */

typedef struct ps_found {
    int32_t n;     /* tokens */
    int32_t match; /* tokens that they continue */
} ps_found;

ps_status ps_index_open(ps_index **out);
void ps_index_close(ps_index *index); /* accepts NULL */

/* Add n tokens to the text at *place, which becomes the new text's place. After PS_E_NOMEM some of them may be in it. */
ps_status ps_index_add(ps_index *index, const int32_t *tokens, int32_t n, int32_t *place);

/* What followed the end of the text at `place`, `length` tokens long: each time the token that most often followed the longest
 * known end, the newest among equals, if that end has `least` tokens. At most `limit` tokens. */
ps_status ps_index_next(const ps_index *index, int32_t place, int32_t length, int32_t least, int32_t limit, int32_t *tokens,
                        ps_found *out);

ps_status ps_index_size(const ps_index *index, int64_t *n_tokens, int64_t *n_bytes);

/* ---------------------------------------------------------------- binding */

const char *ps_api_name(int32_t index); /* NULL past the end */
ps_status ps_api_bind(int32_t index, void *function);

/* Compiled sizes and offsets for the import handshake: {name, value} pairs. */
ps_status ps_abi_entry(int32_t index, const char **name, int32_t *value);

/* ------------------------------------------------------------- vocabulary */

/* Ids of the tokens that have one of these attributes (llama_vocab_get_attr's bits), the first `room` of them; *n is their
 * total number. `vocab` is a llama_vocab. */
ps_status ps_vocab_with(const void *vocab, uint32_t attributes, int32_t *ids, int32_t room, int32_t *n);

/* ----------------------------------------------------------------- engine */

typedef struct ps_engine ps_engine;

enum { PS_TARGET = 0, PS_DRAFT = 1, PS_COMPANION = 2, PS_N_ROLES = 3 };
enum { PS_MAX_DRAFT = 64, PS_TABLE_SIZE = 32 };

/* n_seq sequences, n_vocab logits per row. The engine owns no llama.cpp object. */
ps_status ps_engine_open(int32_t n_seq, int32_t n_vocab, ps_engine **out);
void ps_engine_close(ps_engine *engine); /* accepts NULL */

/* Attach (or with ctx NULL detach) a llama_context and its llama_model to a role. Its KV is assumed to be empty. */
ps_status ps_engine_attach(ps_engine *engine, int32_t role, void *ctx, const void *model);

/*
 * A draft that reads the target's states. PS_EAGLE3: the inputs of some of the target's layers, -1 for the output of the last
 * one. PS_MTP: the target's own next-token heads in a context of their own. PS_ASSISTANT: a head whose context reads the target's
 * KV and has none of its own (Gemma 4). PS_DFLASH: layers as for PS_EAGLE3, and one decode for a block of tokens (DFlash,
 * DSpark).
 */
enum { PS_EAGLE3 = 1, PS_MTP = 2, PS_ASSISTANT = 3, PS_DFLASH = 4, PS_MOST_LAYERS = 16 };

typedef struct ps_reading {
    int32_t kind;
    int32_t n_hidden; /* floats of one state; of all layers together if layers are read */
    int32_t width;    /* floats of one input of the draft; for PS_DFLASH, of one of its own states */
    int32_t window;   /* how far back it begins to read a sequence; at least as many states are kept for it */
    int32_t n_layers;
    int32_t layer[PS_MOST_LAYERS];
    int32_t block; /* most rows of a block, the first of which is the last committed token */
    int32_t mask;  /* the token of its other rows */
    int32_t first; /* the row that predicts its first token: 0 or 1 */
    int32_t sure;  /* non-zero: a row's output state says how likely its token is accepted (DSpark's confidence) */
    int32_t heads; /* PS_MTP: above 1, trained heads, of which the i-th predicts the i-th drafted token */
} ps_reading;

/* Make the attached draft one that reads the target's states; call it last. PS_E_UNBOUND if this llama.cpp exposes none. */
ps_status ps_engine_read_states(ps_engine *engine, const ps_reading *reading);

void ps_engine_cancel(ps_engine *engine, int32_t raised); /* safe from any thread and from a signal handler */

/* Make tokens[0..n) the committed tokens of a sequence; every KV is rolled back to the common prefix. `*n_kept` is how many
 * leading tokens the target's KV holds already. If others used the target's context meanwhile, `n_held` says how many of these
 * tokens its KV begins with; -1: nobody did. */
ps_status ps_seq_set(ps_engine *engine, int32_t seq, const int32_t *tokens, int32_t n, int32_t n_held, int32_t *n_kept);

/* Draw a sequence's tokens this way from now on, the draft's too; NULL: draft greedily, and let the sampler choose. */
ps_status ps_seq_couple(ps_engine *engine, int32_t seq, const ps_coupling *how);

/* Give sequence `to` the first n committed tokens of `from`, KV included, without decoding. */
ps_status ps_seq_copy(ps_engine *engine, int32_t from, int32_t to, int32_t n);

/* Others put back what a role's KV, not the target's, held of a sequence: at most its first n committed tokens stay. */
ps_status ps_seq_put_back(ps_engine *engine, int32_t role, int32_t seq, int32_t n);

/* One llama_decode on a role's context that brings its KV up to `upto` committed tokens, at most `chunk` tokens. *n_kv is
 * where it stands afterwards. */
ps_status ps_prefill(ps_engine *engine, int32_t role, int32_t seq, int32_t upto, int32_t chunk, int32_t *n_kv);

/* When drafting stops: the length is reached, or after token i the product of table[bin(p)] is under floors[i]. bin = logit(p)
 * in 32 equal steps over [-8, 8]. */
typedef struct ps_stop {
    float floors[PS_MAX_DRAFT];
    float table[PS_TABLE_SIZE];
} ps_stop;

typedef struct ps_draft {
    int32_t n;
    int32_t scored; /* non-zero if `agreement` holds the companion's view */
    int32_t fed;    /* rows that the draft model decoded before these, to catch up with the sequence */
    int32_t kept;   /* tokens of these drafted by an earlier call, which took no decode in this one */
    int32_t token[PS_MAX_DRAFT];
    float p[PS_MAX_DRAFT]; /* how sure it is: full-softmax probability, but see ps_draft_run; 0 if unknown (lookup) */
    ps_agreement agreement[PS_MAX_DRAFT];
} ps_draft;

/*
 * Draft on n sequences in lock-step, at most max_len[i] tokens each: greedily, or by draws if a sequence is coupled. keep_rows
 * keeps the rows for the companion. For a draw, the target's agreement is predicted by
 * how far the draw was ahead with its noise and by the token's probability without it: p then has the logit gap +
 * logit(probability) / 2.
 */
ps_status ps_draft_run(ps_engine *engine, int32_t n, const int32_t *seqs, const int32_t *max_len, const ps_stop *stop,
                       int32_t keep_rows);

/* Set a draft from elsewhere (lookup, Python), replacing what the sequence has; n 0 clears it. */
ps_status ps_draft_put(ps_engine *engine, int32_t seq, const int32_t *tokens, int32_t n);

/* The sequence's draft. The address is valid for the engine's life, the contents until the next call. */
ps_status ps_draft_get(ps_engine *engine, int32_t seq, const ps_draft **out);

/* One companion decode over the drafts of n sequences; fills their agreement. */
ps_status ps_score(ps_engine *engine, int32_t n, const int32_t *seqs);

typedef struct ps_work {
    int32_t seq;
    int32_t n_prefill; /* committed tokens to decode without logits; then n_draft is -1 */
    int32_t n_draft;   /* drafted tokens to verify after the last committed token; -1 for prefill only; -2: decode the
                        * committed tokens that the KV lacks; their rows can be read, nothing is accepted */
} ps_work;

/* One llama_decode on the target over all work items. */
ps_status ps_verify(ps_engine *engine, int32_t n, const ps_work *work);

enum { PS_FROM_TARGET = 0, PS_FROM_DRAFT = 1, PS_FROM_RELAXED = 2 };

typedef struct ps_verdict {
    int32_t n;                            /* emitted tokens: accepted or relaxed ones, then one of the target's own */
    int32_t n_verified;                   /* drafted tokens that went to the target */
    int32_t n_accepted;                   /* of them, accepted or relaxed */
    int32_t n_relaxed;
    int32_t n_foreseen;                   /* leading emitted tokens that equal the draft, the target's own included */
    int32_t ended;                        /* non-zero: the last emitted token ends the generation */
    int32_t next;                         /* would the first drafted token left out have been accepted: 1, 0; -1 if unknown */
    int32_t token[PS_MAX_DRAFT + 1];
    int32_t source[PS_MAX_DRAFT + 1];
    int32_t preferred[PS_MAX_DRAFT + 1];  /* what the target chose there */
    float gap[PS_MAX_DRAFT + 1];          /* nats, 0 unless relaxed */
    ps_evidence seen[PS_MAX_DRAFT + 1];   /* of relaxed tokens: the evidence that the gate saw */
} ps_verdict;

/*
 * Row by row: choose, accept, commit; then roll every KV back. Relaxation needs a gate. The sampler chain chooses, or the argmax
 * when NULL; if the sequence is coupled, the chain only truncates and scales the row (the whole row when NULL).
 */
ps_status ps_accept(ps_engine *engine, int32_t seq, void *sampler, const ps_gate *gate, ps_gate_state *state,
                    ps_verdict *out);

/* Logits of row i of the sequence's last verify (row 0 belongs to the last committed token), valid until the next decode. */
ps_status ps_target_row(ps_engine *engine, int32_t seq, int32_t i, const float **row);

typedef struct ps_counters {
    int64_t decodes[PS_N_ROLES]; /* llama_decode calls */
    int64_t rows[PS_N_ROLES];    /* tokens decoded */
    int64_t us[PS_N_ROLES];      /* time in llama_decode and waiting for its result */
    int64_t refed;               /* rows decoded again with the target's true states */
    int32_t last_decode;         /* last non-zero result of llama_decode */
} ps_counters;

enum { PS_N_TEMPERS = 4 }; /* factors of the target's temperature at which a draft may draw: 1, 0.8, 0.65, 0.5 */

/* The factor that drafts draw at, by its place in this list; `which` takes it first, -1 leaves it. */
ps_status ps_engine_temper(ps_engine *engine, int32_t which, int32_t *chosen);

/* Safe from any thread; each number is whole, and they may be of different moments. */
ps_status ps_counters_get(const ps_engine *engine, ps_counters *out);

/* Where the KV of a role stands for a sequence: tokens held, and committed tokens. */
ps_status ps_seq_state(const ps_engine *engine, int32_t role, int32_t seq, int32_t *n_kv, int32_t *n_committed);

#ifdef __cplusplus
}
#endif

#endif /* PYSPEC_H */
