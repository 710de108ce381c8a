/* pyspec.h as cffi reads it: no preprocessor. tests/native/test_cdef.py fails when the two differ. */

typedef enum ps_status {
    PS_OK = 0,
    PS_E_ARG = 1,
    PS_E_NOMEM = 2,
    PS_E_BUSY = 3,
    PS_E_UNBOUND = 4,
    PS_E_DECODE = 5,
    PS_E_NOSLOT = 6,
    PS_E_CANCELLED = 7,
    PS_E_ROLLBACK = 8,
    PS_E_NUMERIC = 9,
    PS_E_STATE = 10,
    PS_E_SAMPLER = 11
} ps_status;

const char *ps_status_str(ps_status status);
const char *ps_version(void);

typedef struct ps_row {
    int32_t first;
    int32_t second;
    float z1;
    float z2;
    float lse;
} ps_row;

enum { PS_SIMD_BASE = 0, PS_SIMD_AVX2 = 1, PS_SIMD_AVX512 = 2 };
int32_t ps_simd_limit(int32_t level);

enum { PS_SCAN_TOP2 = 0, PS_SCAN_LSE = 1 };

ps_status ps_scan(const float *row, int32_t n_vocab, int32_t what, ps_row *out);

typedef struct ps_coupling {
    uint64_t seed;
    float temperature;
    float min_p;
} ps_coupling;

ps_status ps_noise(uint64_t seed, int64_t position, const int32_t *ids, int32_t n, double *out);

ps_status ps_draw(const float *row, int32_t n_vocab, const ps_coupling *how, int64_t position, ps_row *out);

typedef struct ps_agreement {
    float s;
    float a;
    float pd;
    float pc;
    int32_t top;
} ps_agreement;

ps_status ps_agree(const float *draft, const float *companion, int32_t n_rows, int32_t n_vocab, const int32_t *drafted,
                   ps_agreement *out);

typedef struct ps_gate {
    float theta;
    float gap;
    float budget;
    int32_t sampled;
} ps_gate;

typedef struct ps_gate_state {
    float spent;
} ps_gate_state;

enum { PS_REJECTED = 0, PS_EXACT = 1, PS_RELAXED = 2 };

ps_status ps_gate_decide(const ps_gate *gate, ps_gate_state *state, const ps_row *row, float gap, float missing,
                         int32_t chosen, int32_t drafted, int32_t barred, int32_t *verdict, float *nats);

const char *ps_api_name(int32_t index);
ps_status ps_api_bind(int32_t index, void *function);

ps_status ps_abi_entry(int32_t index, const char **name, int32_t *value);

ps_status ps_vocab_with(const void *vocab, uint32_t attributes, int32_t *ids, int32_t room, int32_t *n);

typedef struct ps_engine ps_engine;

enum { PS_TARGET = 0, PS_DRAFT = 1, PS_COMPANION = 2, PS_N_ROLES = 3 };
enum { PS_MAX_DRAFT = 64, PS_TABLE_SIZE = 32 };

ps_status ps_engine_open(int32_t n_seq, int32_t n_vocab, ps_engine **out);
void ps_engine_close(ps_engine *engine);

ps_status ps_engine_attach(ps_engine *engine, int32_t role, void *ctx, const void *model);

enum { PS_EAGLE3 = 1, PS_MTP = 2, PS_N_LAYERS = 3 };

typedef struct ps_reading {
    int32_t kind;
    int32_t n_hidden;
    int32_t width;
    int32_t window;
    int32_t layer[PS_N_LAYERS];
} ps_reading;

ps_status ps_engine_read_states(ps_engine *engine, const ps_reading *reading);

void ps_engine_cancel(ps_engine *engine, int32_t raised);

ps_status ps_seq_set(ps_engine *engine, int32_t seq, const int32_t *tokens, int32_t n, int32_t n_held, int32_t *n_kept);

ps_status ps_seq_couple(ps_engine *engine, int32_t seq, const ps_coupling *how);

ps_status ps_seq_copy(ps_engine *engine, int32_t from, int32_t to, int32_t n);

ps_status ps_prefill(ps_engine *engine, int32_t role, int32_t seq, int32_t upto, int32_t chunk, int32_t *n_kv);

typedef struct ps_stop {
    float floors[PS_MAX_DRAFT];
    float table[PS_TABLE_SIZE];
} ps_stop;

typedef struct ps_draft {
    int32_t n;
    int32_t scored;
    int32_t fed;
    int32_t kept;
    int32_t token[PS_MAX_DRAFT];
    float p[PS_MAX_DRAFT];
    ps_agreement agreement[PS_MAX_DRAFT];
} ps_draft;

ps_status ps_draft_run(ps_engine *engine, int32_t n, const int32_t *seqs, const int32_t *max_len, const ps_stop *stop,
                       int32_t keep_rows);

ps_status ps_draft_put(ps_engine *engine, int32_t seq, const int32_t *tokens, int32_t n);

ps_status ps_draft_get(ps_engine *engine, int32_t seq, const ps_draft **out);

ps_status ps_score(ps_engine *engine, int32_t n, const int32_t *seqs);

typedef struct ps_work {
    int32_t seq;
    int32_t n_prefill;
    int32_t n_draft;
} ps_work;

ps_status ps_verify(ps_engine *engine, int32_t n, const ps_work *work);

enum { PS_FROM_TARGET = 0, PS_FROM_DRAFT = 1, PS_FROM_RELAXED = 2 };

typedef struct ps_verdict {
    int32_t n;
    int32_t n_verified;
    int32_t n_accepted;
    int32_t n_relaxed;
    int32_t n_foreseen;
    int32_t ended;
    int32_t next;
    int32_t token[PS_MAX_DRAFT + 1];
    int32_t source[PS_MAX_DRAFT + 1];
    int32_t preferred[PS_MAX_DRAFT + 1];
    float gap[PS_MAX_DRAFT + 1];
} ps_verdict;

ps_status ps_accept(ps_engine *engine, int32_t seq, void *sampler, const ps_gate *gate, ps_gate_state *state,
                    ps_verdict *out);

ps_status ps_target_row(ps_engine *engine, int32_t seq, int32_t i, const float **row);

typedef struct ps_counters {
    int64_t decodes[PS_N_ROLES];
    int64_t rows[PS_N_ROLES];
    int64_t us[PS_N_ROLES];
    int64_t refed;
    int32_t last_decode;
} ps_counters;

ps_status ps_counters_get(const ps_engine *engine, ps_counters *out);

ps_status ps_seq_state(const ps_engine *engine, int32_t role, int32_t seq, int32_t *n_kv, int32_t *n_committed);
