/*
 * Standard Gumbel noise of (seed, position, id) from a counter-based hash. Nothing is kept between draws, so a draft, a verify in
 * another batch and another machine get the same noise. The hash uses only integers; the logarithm is plain IEEE double
 * arithmetic in a fixed order, independent of any libm's last bit. For the same reason this file is compiled without fused
 * multiply-add.
 */
#include <string.h>

#include "ps_noise.h"

#pragma STDC FP_CONTRACT OFF

/* The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014; constants: D. Stafford's variant 13). */
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

ps_noise_key ps_noise_at(uint64_t seed, int64_t position) {
    const uint64_t step = 0x9E3779B97F4A7C15u; /* 2^64 over the golden ratio */
    /* mixed before the position is added, or seeds that differ by `step` would share their noise, shifted by one position */
    const uint64_t key = mix(mix(seed + step) + step * ((uint64_t)position + 1));
    return (ps_noise_key){(uint32_t)key, (uint32_t)(key >> 32)};
}

/* log(x) of a normal x > 0 to a few ulps: the exponent, and the odd series in s = (m - 1) / (m + 1), |s| < .172. */
static double logarithm(double x) {
    static const double ODD[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1.0};
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t exponent = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent++;
    }
    const double s = (m - 1.0) / (m + 1.0), t = s * s;
    double series = 0;
    for (size_t i = 0; i < sizeof ODD / sizeof ODD[0]; i++) series = series * t + ODD[i];
    return (double)exponent * 0.6931471805599453 + 2.0 * s * series;
}

double ps_gumbel(uint32_t hash) {
    const double u = ((double)hash + 0.5) * (1.0 / 4294967296.0); /* in (0, 1), never 0 or 1 */
    return -logarithm(-logarithm(u));
}

ps_status ps_noise(uint64_t seed, int64_t position, const int32_t *ids, int32_t n, double *out) {
    if (position < 0 || n < 0 || (n > 0 && (!ids || !out))) return PS_E_ARG;
    const ps_noise_key key = ps_noise_at(seed, position);
    for (int32_t i = 0; i < n; i++) out[i] = ps_gumbel(ps_noise_hash(key, (uint32_t)ids[i]));
    return PS_OK;
}
