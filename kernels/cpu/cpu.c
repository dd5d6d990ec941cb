/* What the processor can do, and which sources the library was built from. Compiled once, without
 * any flag for an instruction set: this is what runs before one is chosen. */
#include "hybrid_gpu.h"

#ifndef HG_SOURCES
#define HG_SOURCES 0
#endif

/* The checksum of the sources. Python compares it with those beside it: a library of other sources
 * may have other arguments. */
HG_EXPORT uint32_t hg_sources(void) { return HG_SOURCES; }

#if defined(_MSC_VER) && defined(_M_X64)
#include <immintrin.h>
#include <intrin.h>

static int level(void) {
    int one[4], seven[4];
    __cpuid(one, 0);
    if (one[0] < 7) return 0;
    __cpuidex(one, 1, 0);
    __cpuidex(seven, 7, 0);
    const int fma = (one[2] >> 12) & 1, xsave = (one[2] >> 27) & 1, avx = (one[2] >> 28) & 1;
    if (!fma || !xsave || !avx) return 0;
    /* The system must save the wide registers, too. */
    const unsigned long long saved = _xgetbv(0);
    if ((saved & 0x6) != 0x6 || !((seven[1] >> 5) & 1)) return 0;
    const int f = (seven[1] >> 16) & 1, dq = (seven[1] >> 17) & 1, bw = (seven[1] >> 30) & 1;
    const int vl = (seven[1] >> 31) & 1;
    return f && dq && bw && vl && (saved & 0xe6) == 0xe6 ? 2 : 1;
}
#elif defined(__GNUC__) && defined(__x86_64__)
static int level(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    if (!__builtin_cpu_supports("bmi2")) return 0;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")
               ? 2
               : 1;
}
#else
static int level(void) { return 0; }
#endif

/* 0: plain; 1: avx2; 2: avx512. */
HG_EXPORT int32_t hg_cpu_level(void) { return level(); }
