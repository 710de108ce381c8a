/* Which instruction set the kernels use. */
#include <stdatomic.h>

#include "ps_kernel.h"

static atomic_int limit = PS_SIMD_AVX512;

static int32_t best(void) {
#if defined(__GNUC__) && defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return PS_SIMD_BASE;
    const int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return wide ? PS_SIMD_AVX512 : PS_SIMD_AVX2;
#else
    return PS_SIMD_BASE;
#endif
}

int32_t ps_simd(void) {
    const int32_t most = atomic_load_explicit(&limit, memory_order_relaxed);
    if (most == PS_SIMD_BASE) return most;
    const int32_t have = best();
    return have < most ? have : most;
}

int32_t ps_simd_limit(int32_t level) {
    if (level >= PS_SIMD_BASE && level <= PS_SIMD_AVX512) atomic_store_explicit(&limit, level, memory_order_relaxed);
    return ps_simd();
}
