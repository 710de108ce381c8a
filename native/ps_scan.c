/* Top-2 and log-sum-exp of one row, in one pass over memory. */
#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "ps_kernel.h"

/* The largest of a stretch; *bad is set when one is NaN or +inf. -inf passes.
   The lanes are by hand: a maximum is no reduction that clang reorders while NaN keeps its meaning. */
PS_INLINE float stretch_max(const float *x, int32_t n, int32_t *bad) {
    enum { LANES = 32 };
    float most[LANES];
    int32_t wrong[LANES], i = 0;
    for (int32_t j = 0; j < LANES; j++) {
        most[j] = -INFINITY;
        wrong[j] = 0;
    }
    for (; i + LANES <= n; i += LANES)
        for (int32_t j = 0; j < LANES; j++) {
            most[j] = x[i + j] > most[j] ? x[i + j] : most[j];
            wrong[j] |= x[i + j] <= FLT_MAX ? 0 : 1;
        }
    for (; i < n; i++) {
        most[0] = x[i] > most[0] ? x[i] : most[0];
        wrong[0] |= x[i] <= FLT_MAX ? 0 : 1;
    }
    for (int32_t j = 1; j < LANES; j++) {
        most[0] = most[j] > most[0] ? most[j] : most[0];
        wrong[0] |= wrong[j];
    }
    *bad |= wrong[0];
    return most[0];
}

/* Sum of exp(x - most). */
PS_INLINE float stretch_sum(const float *x, int32_t n, float most) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int32_t i = 0; i < n; i++) sum += ps_exp(x[i] - most);
    return sum;
}

PS_CLONES(float, stretch_max, (const float *x, int32_t n, int32_t *bad), (x, n, bad));
PS_CLONES(float, stretch_sum, (const float *x, int32_t n, float most), (x, n, most));

float ps_scan_max(const float *x, int32_t n, int32_t level) {
    int32_t bad = 0;
    return stretch_max_at[level](x, n, &bad);
}

float ps_scan_least(const float *x, int32_t n, int32_t k, int32_t level) {
    if (k < 1 || k > PS_MOST_TOP || n / PS_STRETCH < k) return -INFINITY;
    float best[PS_MOST_TOP]; /* the largest so far, in order */
    int32_t held = 0;
    for (int32_t i = 0; i + PS_STRETCH <= n; i += PS_STRETCH) {
        const float most = ps_scan_max(x + i, PS_STRETCH, level);
        if (held == k && most <= best[k - 1]) continue;
        int32_t at = held < k ? held++ : k - 1;
        for (; at > 0 && best[at - 1] < most; at--) best[at] = best[at - 1];
        best[at] = most;
    }
    return best[k - 1];
}

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

/* Search a block that holds a new first or second, again skipping parts that do not. */
static void search(ps_row *out, const float *row, int32_t from, int32_t end, int32_t level) {
    for (int32_t i = from, n; i < end; i += n) {
        n = end - i < PS_STRETCH ? end - i : PS_STRETCH;
        int32_t bad = 0;
        if (stretch_max_at[level](row + i, n, &bad) > out->z2) take_top2(out, row, i, i + n);
    }
}

/* A sum relative to the running maximum, in double, so that a long row adds no error of its own. */
typedef struct total {
    double most, exp;
} total;

static void add_block(total *s, const float *x, int32_t n, float most, int32_t level) {
    if (most == -INFINITY) return;
    if ((double)most > s->most) {
        if (s->exp > 0) s->exp *= exp(s->most - (double)most);
        s->most = (double)most;
    }
    s->exp += (double)stretch_sum_at[level](x, n, (float)s->most);
}

static double finish(ps_row *out, const total *s) {
    const double log_sum = log(s->exp);
    out->lse = (float)(s->most + log_sum);
    return log_sum;
}

static ps_status scan(const float *row, int32_t n_vocab, int32_t what, ps_row *out, total *s) {
    const int32_t level = ps_simd();
    for (int32_t i = 0, n; i < n_vocab; i += n) {
        n = n_vocab - i < PS_BLOCK ? n_vocab - i : PS_BLOCK;
        int32_t bad = 0;
        const float most = stretch_max_at[level](row + i, n, &bad);
        PS_FAIL_IF(bad, PS_E_NUMERIC);
        if (most > out->z2) search(out, row, i, i + n, level);
        if (what != PS_SCAN_TOP2) add_block(s, row + i, n, most, level);
    }
    PS_FAIL_IF(out->first < 0, PS_E_NUMERIC);
    return PS_OK;
}

ps_status ps_scan_sum(const float *row, int32_t n_vocab, int32_t what, ps_row *out, double *log_sum) {
    PS_FAIL_IF(!row || !out || n_vocab < 1, PS_E_ARG);
    PS_FAIL_IF(what != PS_SCAN_TOP2 && what != PS_SCAN_LSE, PS_E_ARG);
    *out = (ps_row){.first = -1, .second = -1, .z1 = -INFINITY, .z2 = -INFINITY};
    total s = {.most = -INFINITY};
    const ps_status status = scan(row, n_vocab, what, out, &s);
    if (status != PS_OK) return status;
    if (out->second < 0 && n_vocab > 1) out->second = out->first == 0; /* all others are -inf: take the lowest id */
    *log_sum = what != PS_SCAN_TOP2 ? finish(out, &s) : 0;
    return PS_OK;
}

ps_status ps_scan(const float *row, int32_t n_vocab, int32_t what, ps_row *out) {
    double log_sum;
    return ps_scan_sum(row, n_vocab, what, out, &log_sum);
}
