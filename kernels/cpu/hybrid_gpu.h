/* The native core of hybrid_gpu: plain C11 behind a C ABI, called from Python by ctypes.
 *
 * setup.py compiles every file but cpu.c once for each instruction set ("level") that the compiler
 * knows, and links all of them into one library. HG_NAME(hg_spmm) is hg_spmm_plain, hg_spmm_avx2 or
 * hg_spmm_avx512; Python asks cpu.c what the processor can do and takes the functions of that name.
 * So there is no ifunc and no table: glibc, musl, macOS and Windows are served in the same way.
 *
 * Rules for every function here:
 * - No threads, no allocation that is not given back, no global state: Python's threads call the
 *   same function for other rows at the same time.
 * - How work is cut does not depend on the number of threads; each call writes its own part of the
 *   result, and its partial sums where the caller adds them up in a fixed order.
 * - Arrays are row-major and without gaps. Python checks shapes, types and index ranges before.
 * - NaN and infinity go through as IEEE 754 says: no -ffast-math, no shortcut for zeros.
 */
#ifndef HYBRID_GPU_H
#define HYBRID_GPU_H

#include <stddef.h>
#include <stdint.h>

#ifndef HG_LEVEL
#define HG_LEVEL plain
#endif

#define HG_JOIN_(a, b) a##_##b
#define HG_JOIN(a, b) HG_JOIN_(a, b)
/* The name of a function at this level. */
#define HG_NAME(name) HG_JOIN(name, HG_LEVEL)

#if defined(_WIN32)
#define HG_EXPORT __declspec(dllexport)
#elif defined(__GNUC__)
#define HG_EXPORT __attribute__((visibility("default")))
#else
#define HG_EXPORT
#endif

/* A loop that GCC at -O3 makes slower by vectors: sums in order, of entries from all over memory. */
#if defined(__GNUC__) && !defined(__clang__)
#define HG_SCALAR __attribute__((noinline, optimize("no-tree-vectorize")))
#else
#define HG_SCALAR
#endif

#if defined(__GNUC__) && !defined(HG_PLAIN_C) /* which tools/native_checks.py defines */
#define HG_INLINE static inline __attribute__((always_inline))
#define HG_PREFETCH(address) __builtin_prefetch(address)
/* Bytes of a vector register; arrays of vectors that fill a few of them stay in registers. */
#if defined(__AVX512F__)
#define HG_VECTOR_BYTES 64
#elif defined(__AVX__)
#define HG_VECTOR_BYTES 32
#else
#define HG_VECTOR_BYTES 16
#endif
#else
/* Compilers without vectors in C (MSVC): blocks of plain numbers. */
#if defined(_MSC_VER)
#define HG_INLINE static __forceinline
#else
#define HG_INLINE static inline
#endif
#define HG_PREFETCH(address) ((void)(address))
#define HG_VECTOR_BYTES 0
#endif

#endif
