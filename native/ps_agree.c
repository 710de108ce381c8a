/* How far a draft and its companion agree: S, A and related figures, in one pass over both rows once their sums are known. */
#include <math.h>

#include "ps_kernel.h"

/* log P(x) = (x - most) - norm: kept apart, since their sum loses digits where logits are large. */
typedef struct scale {
    float most, norm;
} scale;

PS_INLINE float log_p(float x, scale s) { return (x - s.most) - s.norm; }

/* Sum of min(Pd, Pc) over a stretch: one exp of the smaller log-probability. */
PS_INLINE float stretch_overlap(const float *d, const float *c, int32_t n, scale in_d, scale in_c) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int32_t i = 0; i < n; i++) {
        const float log_d = log_p(d[i], in_d), log_c = log_p(c[i], in_c);
        sum += ps_exp(log_d < log_c ? log_d : log_c);
    }
    return sum;
}

PS_CLONES(float, stretch_overlap, (const float *d, const float *c, int32_t n, scale in_d, scale in_c), (d, c, n, in_d, in_c));

static float overlap(const float *d, const float *c, int32_t n_vocab, scale in_d, scale in_c) {
    const int32_t level = ps_simd();
    double sum = 0;
    for (int32_t i = 0, n; i < n_vocab; i += n) {
        n = n_vocab - i < PS_BLOCK ? n_vocab - i : PS_BLOCK;
        sum += (double)stretch_overlap_at[level](d + i, c + i, n, in_d, in_c);
    }
    return sum < 1 ? (float)sum : 1;
}

/* min(1, Pc / Pd) from log-probabilities, so that two tiny ones still have a ratio; a token impossible in both counts 0. */
static float ratio(double log_d, double log_c) {
    if (log_c == -INFINITY) return 0;
    return log_c >= log_d ? 1 : (float)exp(log_c - log_d);
}

/* What is known of one row: its scale, argmax, and log P of the drafted token in full precision. */
typedef struct side {
    scale scale;
    int32_t top;
    double log_p;
} side;

static ps_status measure(const float *row, int32_t n_vocab, int32_t drafted, side *out) {
    ps_row found;
    double log_sum;
    const ps_status status = ps_scan_sum(row, n_vocab, PS_SCAN_LSE, &found, &log_sum);
    if (status != PS_OK) return status;
    *out = (side){{found.z1, (float)log_sum}, found.first, ((double)row[drafted] - (double)found.z1) - log_sum};
    return PS_OK;
}

static ps_status agree(const float *draft, const float *companion, int32_t n_vocab, int32_t drafted, ps_agreement *out) {
    PS_FAIL_IF(drafted < 0 || drafted >= n_vocab, PS_E_ARG);
    side d, c;
    ps_status status = measure(draft, n_vocab, drafted, &d);
    if (status == PS_OK) status = measure(companion, n_vocab, drafted, &c);
    if (status != PS_OK) return status;
    *out = (ps_agreement){
        .s = overlap(draft, companion, n_vocab, d.scale, c.scale),
        .a = ratio(d.log_p, c.log_p),
        .pd = (float)exp(d.log_p),
        .pc = (float)exp(c.log_p),
        .top = c.top,
    };
    return PS_OK;
}

ps_status ps_agree(const float *draft, const float *companion, int32_t n_rows, int32_t n_vocab, const int32_t *drafted,
                   ps_agreement *out) {
    PS_FAIL_IF(!draft || !companion || !drafted || !out || n_rows < 0 || n_vocab < 1, PS_E_ARG);
    for (int32_t i = 0; i < n_rows; i++) {
        const size_t at = (size_t)i * (size_t)n_vocab;
        const ps_status status = agree(draft + at, companion + at, n_vocab, drafted[i], &out[i]);
        if (status != PS_OK) return status;
    }
    return PS_OK;
}
