/* The kernels under the sanitizers: rows of exactly their size, so that a read past an end is seen, at every level. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../ps_kernel.h"
#include "../pyspec.h"
#include "check.h"

static float *random_row(int32_t n, uint32_t seed) {
    float *const row = malloc((size_t)n * sizeof *row);
    for (int32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        row[i] = (float)(seed >> 8) / 524288.0f - 16.0f;
    }
    return row;
}

static void compare(const float *row, int32_t n) {
    int32_t first = 0, second = -1;
    for (int32_t i = 1; i < n; i++) first = row[i] > row[first] ? i : first;
    for (int32_t i = 0; i < n; i++) {
        if (i != first && (second < 0 || row[i] > row[second])) second = i;
    }
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += exp((double)row[i] - (double)row[first]);
    }
    ps_row out;
    CHECK(ps_scan(row, n, PS_SCAN_LSE, &out) == PS_OK);
    CHECK(out.first == first && out.second == second);
    CHECK(fabs((double)out.lse - ((double)row[first] + log(sum))) < 4e-6);
}

static void test_scan_every_length(void) {
    for (int32_t n = 1; n < 200; n++) {
        float *const row = random_row(n, (uint32_t)n);
        compare(row, n);
        free(row);
    }
    const int32_t edges[] = {1023, 1024, 1025, 2047, 2048, 2049, 49152};
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        float *const row = random_row(edges[i], 9);
        compare(row, edges[i]);
        free(row);
    }
}

static void test_scan_extremes(void) {
    const float values[] = {-INFINITY, -3.4e38f, 3.4e38f, 0.0f, -0.0f, 1e-45f, 88.0f};
    const int32_t n = sizeof values / sizeof values[0];
    float *const row = random_row(n, 1);
    ps_row out;
    for (int32_t shift = 0; shift < n; shift++) {
        for (int32_t i = 0; i < n; i++) row[i] = values[(i + shift) % n];
        CHECK(ps_scan(row, n, PS_SCAN_LSE, &out) == PS_OK);
        CHECK(out.z1 == 3.4e38f && out.z2 == 88.0f && out.lse == 3.4e38f);
    }
    free(row);
}

static void test_scan_refuses(void) {
    const float bad[] = {NAN, -NAN, INFINITY};
    for (int32_t n = 1; n < 70; n += 4) {
        for (int32_t at = 0; at < n; at++) {
            float *const row = random_row(n, 3);
            row[at] = bad[at % 3];
            ps_row out;
            CHECK(ps_scan(row, n, PS_SCAN_TOP2, &out) == PS_E_NUMERIC);
            free(row);
        }
    }
}

static void test_agree_every_length(void) {
    for (int32_t n = 1; n < 130; n++) {
        float *const draft = random_row(2 * n, 1), *const companion = random_row(2 * n, 2);
        const int32_t drafted[] = {n - 1, 0};
        ps_agreement out[2];
        CHECK(ps_agree(draft, companion, 2, n, drafted, out) == PS_OK);
        for (int32_t i = 0; i < 2; i++) {
            CHECK(out[i].s > 0 && out[i].s <= 1 && out[i].a > 0 && out[i].a <= 1);
            CHECK(out[i].top >= 0 && out[i].top < n);
            CHECK(fabsf(out[i].a - fminf(1.0f, out[i].pc / out[i].pd)) < 1e-5f);
        }
        CHECK(ps_agree(draft, companion, 2, n, (const int32_t[]){0, n}, out) == PS_E_ARG);
        free(draft);
        free(companion);
    }
}

static void test_gate(void) {
    const ps_gate gate = {.theta = 0.9f, .gap = 1.0f, .budget = INFINITY};
    const ps_row row = {.first = 4, .second = 6, .z1 = 12.0f, .z2 = 11.5f};
    const ps_evidence seen = {.gap = 0.5f};
    ps_gate_state state = {0};
    int32_t verdict;
    float nats;
    CHECK(ps_gate_decide(&gate, &state, &row, &seen, 4, 6, 0, &verdict, &nats) == PS_OK && verdict == PS_RELAXED && nats == 0.5f);
    CHECK(ps_gate_decide(&gate, &state, &row, &seen, 4, 6, 1, &verdict, &nats) == PS_OK && verdict == PS_REJECTED && nats == 0.0f);
    CHECK(ps_gate_decide(NULL, &state, &row, &seen, 4, 4, 1, &verdict, &nats) == PS_OK && verdict == PS_EXACT);
    CHECK(ps_gate_decide(&gate, &state, NULL, &seen, 4, 4, 1, &verdict, &nats) == PS_E_ARG);
    CHECK(ps_gate_decide(&gate, &state, &row, NULL, 4, 4, 1, &verdict, &nats) == PS_E_ARG);
    const ps_gate far = {.theta = 0.9f, .confirm = PS_MAX_CONFIRM + 1};
    CHECK(ps_gate_decide(&far, &state, &row, &seen, 4, 6, 0, &verdict, &nats) == PS_E_ARG);
    CHECK(state.spent == 0.5f);
}

static void test_draw_every_length(void) {
    for (int32_t n = 1; n < 400; n += 7) {
        float *const row = random_row(n, (uint32_t)n);
        int32_t *const ids = malloc((size_t)n * sizeof *ids);
        double *const g = malloc((size_t)n * sizeof *g);
        for (int32_t i = 0; i < n; i++) ids[i] = i;
        CHECK(ps_noise(9, n, ids, n, g) == PS_OK);
        int32_t best = 0;
        for (int32_t i = 1; i < n; i++) best = (double)row[i] + g[i] > (double)row[best] + g[best] ? i : best;
        ps_row out;
        CHECK(ps_draw(row, n, &(ps_coupling){9, 1.0f, 0.0f, 0.0f, 0, 0}, n, &out) == PS_OK && out.first == best);
        free(row);
        free(ids);
        free(g);
    }
    CHECK(ps_noise(9, -1, NULL, 0, NULL) == PS_E_ARG && ps_noise(9, 1, NULL, 1, NULL) == PS_E_ARG);
}

static void test_so_many_are_not_below_the_least(void) {
    const int32_t level = ps_simd();
    for (int32_t n = 1; n < 70 * PS_STRETCH; n += 997) {
        float *const row = random_row(n, (uint32_t)n);
        for (int32_t k = 0; k < 60; k += 3) {
            const float least = ps_scan_least(row, n, k, level);
            int32_t above = 0;
            for (int32_t i = 0; i < n; i++) above += row[i] >= least;
            CHECK(k < 1 || n / PS_STRETCH < k ? above == n : above >= k && above < n);
        }
        CHECK(ps_scan_least(row, n, PS_MOST_TOP + 1, level) == -INFINITY);
        free(row);
    }
}

static void test_errors_say_where(void) {
    ps_row out;
    CHECK(ps_scan(NULL, 1, PS_SCAN_TOP2, &out) == PS_E_ARG);
#ifndef NDEBUG /* which zig's compiler defines where it optimises */
    CHECK(strstr(ps_status_str(PS_E_ARG), "range (ps_scan.c:") != NULL);
#endif
    CHECK(strchr(ps_status_str(PS_E_ARG), ':') == NULL); /* told once: it is not the next error's place */
}

int main(void) {
    for (int32_t level = ps_simd_limit(PS_SIMD_AVX512); level >= PS_SIMD_BASE; level--) {
        CHECK(ps_simd_limit(level) == level);
        RUN(test_scan_every_length);
        RUN(test_scan_extremes);
        RUN(test_scan_refuses);
        RUN(test_agree_every_length);
        RUN(test_draw_every_length);
        RUN(test_so_many_are_not_below_the_least);
    }
    RUN(test_errors_say_where);
    RUN(test_gate);
    return REPORT();
}
