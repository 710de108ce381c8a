/*
 * What the kernels share: an exp that vectorises, and the choice of instruction set.
 *
 * A kernel's inner loop is written once, in plain C, as PS_INLINE. PS_CLONES makes one function from it per level, which the
 * compiler vectorises for that level, and a table of them; ps_simd() is the level to use. Dispatching by hand instead of by ifunc
 * works on every system and under the sanitizers, and lets tests run each level on one machine.
 */
#ifndef PS_KERNEL_H
#define PS_KERNEL_H

#include <stdint.h>
#include <string.h>

#include "ps_error.h"

/* Floats processed at a time: two rows of them stay in the first-level cache between passes. */
enum { PS_BLOCK = 1024 };

#if defined(__GNUC__)
#define PS_INLINE static inline __attribute__((always_inline))
#else
#define PS_INLINE static inline
#endif

#if defined(__GNUC__) && defined(__x86_64__)
#define PS_AVX2 __attribute__((target("avx2,fma")))
#define PS_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#else
#define PS_AVX2
#define PS_AVX512
#endif

#define PS_CLONES(result, name, parameters, arguments)                        \
    static result name##_base parameters { return name arguments; }           \
    PS_AVX2 static result name##_avx2 parameters { return name arguments; }   \
    PS_AVX512 static result name##_avx512 parameters { return name arguments; } \
    static result(*const name##_at[]) parameters = {name##_base, name##_avx2, name##_avx512}

int32_t ps_simd(void); /* the best PS_SIMD_ level of this machine, within the limit */

/* ps_scan, plus *log_sum, the logarithm of the sum of exp(x - z1): next to a large z1, lse has lost its last digits. */
ps_status ps_scan_sum(const float *row, int32_t n_vocab, int32_t what, ps_row *out, double *log_sum);

/* The largest of n numbers that ps_scan has checked. */
float ps_scan_max(const float *x, int32_t n, int32_t level);

/* A number that k or more of n are not below: the k-th largest of their stretches' largest. -INFINITY for k < 1, for more than
 * PS_MOST_TOP, and if there are fewer stretches. */
enum { PS_STRETCH = 64, PS_MOST_TOP = 256 };
float ps_scan_least(const float *x, int32_t n, int32_t k, int32_t level);

/*
 * exp(x) for x <= 0, relative error under 5e-7; anything below -87 gives exp(-87), too little to matter in a row's sum. 2^t is
 * split into 2^n, built from bits, and 2^r with |r| <= 1/2, a polynomial fitted for the least relative error.
 */
PS_INLINE float ps_exp(float x) {
    const float rounder = 12582912.0f; /* 1.5 * 2^23: a sum with it has n in its low bits */
    const float t = (x < -87.0f ? -87.0f : x) * 1.44269504f;
    const float shifted = t + rounder;
    const float r = t - (shifted - rounder);
    float p = 1.326472731e-3f;
    p = p * r + 9.671512991e-3f;
    p = p * r + 5.550733581e-2f;
    p = p * r + 2.402224243e-1f;
    p = p * r + 6.931470037e-1f;
    p = p * r + 1.0f; /* fixed at 1: exp(0) is exact, and so is a row with one possible token */
    uint32_t n, bits;
    memcpy(&n, &shifted, sizeof n);
    memcpy(&bits, &p, sizeof bits);
    bits += n << 23;
    memcpy(&p, &bits, sizeof p);
    return p;
}

#endif /* PS_KERNEL_H */
