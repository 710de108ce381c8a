/* Top-2, log-sum-exp and entropy of one row, in one pass over memory. */
#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "ps_kernel.h"

/* The largest of a stretch; *bad is set when one is NaN or +inf. -inf passes. */
PS_INLINE float stretch_max(const float *x, int32_t n, int32_t *bad) {
    float most = -INFINITY;
    int32_t wrong = 0;
#pragma omp simd reduction(max : most) reduction(| : wrong)
    for (int32_t i = 0; i < n; i++) {
        most = x[i] > most ? x[i] : most;
        wrong |= x[i] <= FLT_MAX ? 0 : 1;
    }
    *bad |= wrong;
    return most;
}

/* Sum of exp(x - most). */
PS_INLINE float stretch_sum(const float *x, int32_t n, float most) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int32_t i = 0; i < n; i++) sum += ps_exp(x[i] - most);
    return sum;
}

/* The same, and *weighted the sum of exp(x - most) * (x - most). */
PS_INLINE float stretch_sums(const float *x, int32_t n, float most, float *weighted) {
    float sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
    for (int32_t i = 0; i < n; i++) {
        const float d = x[i] - most < -87.0f ? -87.0f : x[i] - most; /* -inf times 0 would be NaN */
        const float e = ps_exp(d);
        sum += e;
        product += e * d;
    }
    *weighted = product;
    return sum;
}

PS_CLONES(float, stretch_max, (const float *x, int32_t n, int32_t *bad), (x, n, bad));
PS_CLONES(float, stretch_sum, (const float *x, int32_t n, float most), (x, n, most));
PS_CLONES(float, stretch_sums, (const float *x, int32_t n, float most, float *weighted), (x, n, most, weighted));

static void take_top2(ps_row *out, const float *row, int32_t from, int32_t end) {
    for (int32_t i = from; i < end; i++) {
        if (row[i] > out->z1) {
            out->second = out->first;
            out->z2 = out->z1;
            out->first = i;
            out->z1 = row[i];
        } else if (row[i] > out->z2) {
            out->second = i;
            out->z2 = row[i];
        }
    }
}

/* Look closer at a block that holds a new first or second, again skipping what does not. */
static void search(ps_row *out, const float *row, int32_t from, int32_t end, int32_t level) {
    enum { STEP = 64 };
    for (int32_t i = from, n; i < end; i += n) {
        n = end - i < STEP ? end - i : STEP;
        int32_t bad = 0;
        if (stretch_max_at[level](row + i, n, &bad) > out->z2) take_top2(out, row, i, i + n);
    }
}

/* Sums relative to the running maximum, in double so that a long row adds no error of its own. */
typedef struct sums {
    double most, exp, weighted;
} sums;

/* With a new maximum every d = x - most shrinks by `rise`: exp scales by its exponential, exp * d follows. */
static void rebase(sums *s, double most) {
    if (s->exp > 0) {
        const double rise = most - s->most, scale = exp(-rise);
        s->weighted = scale * (s->weighted - rise * s->exp);
        s->exp *= scale;
    }
    s->most = most;
}

static void add_block(sums *s, const float *x, int32_t n, float most, int32_t what, int32_t level) {
    if (most == -INFINITY) return;
    if ((double)most > s->most) rebase(s, (double)most);
    float weighted = 0;
    if (what == PS_SCAN_ENTROPY) {
        s->exp += (double)stretch_sums_at[level](x, n, (float)s->most, &weighted);
        s->weighted += (double)weighted;
    } else {
        s->exp += (double)stretch_sum_at[level](x, n, (float)s->most);
    }
}

/* H = log(sum of exp d) - (sum of exp d * d) / (sum of exp d), d relative to the maximum. */
static double finish(ps_row *out, const sums *s) {
    const double log_sum = log(s->exp), entropy = log_sum - s->weighted / s->exp;
    out->lse = (float)(s->most + log_sum);
    out->entropy = entropy > 0 ? (float)entropy : 0;
    return log_sum;
}

static ps_status scan(const float *row, int32_t n_vocab, int32_t what, ps_row *out, sums *s) {
    const int32_t level = ps_simd();
    for (int32_t i = 0, n; i < n_vocab; i += n) {
        n = n_vocab - i < PS_BLOCK ? n_vocab - i : PS_BLOCK;
        int32_t bad = 0;
        const float most = stretch_max_at[level](row + i, n, &bad);
        if (bad) return PS_E_NUMERIC;
        if (most > out->z2) search(out, row, i, i + n, level);
        if (what != PS_SCAN_TOP2) add_block(s, row + i, n, most, what, level);
    }
    return out->first < 0 ? PS_E_NUMERIC : PS_OK;
}

ps_status ps_scan_sum(const float *row, int32_t n_vocab, int32_t what, ps_row *out, double *log_sum) {
    if (!row || !out || n_vocab < 1) return PS_E_ARG;
    if (what != PS_SCAN_TOP2 && what != PS_SCAN_LSE && what != PS_SCAN_ENTROPY) return PS_E_ARG;
    *out = (ps_row){.first = -1, .second = -1, .z1 = -INFINITY, .z2 = -INFINITY};
    sums s = {.most = -INFINITY};
    const ps_status status = scan(row, n_vocab, what, out, &s);
    if (status != PS_OK) return status;
    if (out->second < 0 && n_vocab > 1) out->second = out->first == 0; /* all others are -inf: the lowest of them */
    *log_sum = what != PS_SCAN_TOP2 ? finish(out, &s) : 0;
    if (what != PS_SCAN_ENTROPY) out->entropy = 0;
    return PS_OK;
}

ps_status ps_scan(const float *row, int32_t n_vocab, int32_t what, ps_row *out) {
    double log_sum;
    return ps_scan_sum(row, n_vocab, what, out, &log_sum);
}
