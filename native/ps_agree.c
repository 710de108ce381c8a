/* How far a draft and its companion agree: S, A and what belongs to them, one pass over both rows once their sums are known. */
#include <math.h>

#include "ps_kernel.h"

/* Sum of min(Pd, Pc) over a stretch: one exp of the smaller log-probability. */
PS_INLINE float stretch_overlap(const float *d, const float *c, int32_t n, float lse_d, float lse_c) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int32_t i = 0; i < n; i++) {
        const float log_d = d[i] - lse_d, log_c = c[i] - lse_c;
        sum += ps_exp(log_d < log_c ? log_d : log_c);
    }
    return sum;
}

PS_CLONES(float, stretch_overlap, (const float *d, const float *c, int32_t n, float lse_d, float lse_c),
          (d, c, n, lse_d, lse_c));

static float overlap(const float *d, const float *c, int32_t n_vocab, float lse_d, float lse_c) {
    const int32_t level = ps_simd();
    double sum = 0;
    for (int32_t i = 0, n; i < n_vocab; i += n) {
        n = n_vocab - i < PS_BLOCK ? n_vocab - i : PS_BLOCK;
        sum += (double)stretch_overlap_at[level](d + i, c + i, n, lse_d, lse_c);
    }
    return sum < 1 ? (float)sum : 1;
}

/* min(1, Pc / Pd) from log-probabilities, so that two tiny ones still have a ratio; a token neither can give counts 0. */
static float ratio(float log_d, float log_c) {
    if (log_c == -INFINITY) return 0;
    return log_c >= log_d ? 1 : expf(log_c - log_d);
}

static ps_status agree(const float *d, const float *c, int32_t n_vocab, int32_t drafted, ps_agreement *out) {
    if (drafted < 0 || drafted >= n_vocab) return PS_E_ARG;
    ps_row draft, companion;
    ps_status status = ps_scan(d, n_vocab, PS_SCAN_LSE, &draft);
    if (status == PS_OK) status = ps_scan(c, n_vocab, PS_SCAN_LSE, &companion);
    if (status != PS_OK) return status;
    const float log_d = d[drafted] - draft.lse, log_c = c[drafted] - companion.lse;
    *out = (ps_agreement){
        .s = overlap(d, c, n_vocab, draft.lse, companion.lse),
        .a = ratio(log_d, log_c),
        .pd = expf(log_d),
        .pc = expf(log_c),
        .top = companion.first,
    };
    return PS_OK;
}

ps_status ps_agree(const float *draft, const float *companion, int32_t n_rows, int32_t n_vocab, const int32_t *drafted,
                   ps_agreement *out) {
    if (!draft || !companion || !drafted || !out || n_rows < 0 || n_vocab < 1) return PS_E_ARG;
    for (int32_t i = 0; i < n_rows; i++) {
        const size_t at = (size_t)i * (size_t)n_vocab;
        const ps_status status = agree(draft + at, companion + at, n_vocab, drafted[i], &out[i]);
        if (status != PS_OK) return status;
    }
    return PS_OK;
}
