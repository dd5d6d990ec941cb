/* The conjugate gradient step for the columns of row-major (n, m) arrays: sparse products with
 * their dots, the update with its norms, the direction. One call does the rows of one tile.
 *
 * Traffic at the least, in units of n * m numbers: product 2 (and the matrix), update 6,
 * direction 3. Gathered rows come from the cache where the order of items is a good one.
 */
#include "hybrid_gpu.h"

/* Columns of one row that are added up in local sums before they go to the caller's. */
#define HG_NARROW 64
/* Entries of the matrix ahead of which gathered rows are asked for. */
#ifndef HG_AHEAD
#define HG_AHEAD 16
#endif

/* Numbers of a row that goes past the cache, at most. */
#define HG_STREAMED 128

/* Stores that go past the cache, a line of 64 bytes at a time. */
#if defined(__GNUC__) && defined(__AVX512F__) && !defined(HG_PLAIN_C)
#include <immintrin.h>
#define HG_STREAM_BYTES 64
#define HG_STREAM_ONE(to, from) _mm512_stream_si512((void *)(to), _mm512_load_si512(from))
#elif defined(__GNUC__) && defined(__AVX2__) && !defined(HG_PLAIN_C)
#include <immintrin.h>
#define HG_STREAM_BYTES 32
#define HG_STREAM_ONE(to, from)                                                                    \
    _mm256_stream_si256((__m256i *)(to), _mm256_load_si256((const __m256i *)(from)))
#endif

#ifdef HG_STREAM_BYTES
#define HG_ALIGNED __attribute__((aligned(64)))
HG_INLINE int hg_whole_lines(const void *rows, size_t bytes) {
    return (uintptr_t)rows % 64 == 0 && bytes % 64 == 0;
}
HG_INLINE void hg_stream(void *to, const void *from, size_t bytes) {
    for (size_t b = 0; b < bytes; b += HG_STREAM_BYTES)
        HG_STREAM_ONE((char *)to + b, (const char *)from + b);
}
/* Others may read what was streamed after this. */
HG_INLINE void hg_streamed(void) { _mm_sfence(); }
#else
#define HG_ALIGNED
HG_INLINE int hg_whole_lines(const void *rows, size_t bytes) {
    return (void)rows, (void)bytes, 0;
}
HG_INLINE void hg_stream(void *to, const void *from, size_t bytes) {
    (void)to, (void)from, (void)bytes;
}
HG_INLINE void hg_streamed(void) {}
#endif

#define HG_PASTE_(a, b) a##_##b
#define HG_PASTE(a, b) HG_PASTE_(a, b)

#define REAL float
#define REAL_NAME f32
#include "step_dense.h"
#define INDEX int32_t
#define INDEX_NAME i32
#include "step_sparse.h"
#undef INDEX
#undef INDEX_NAME
#define INDEX int64_t
#define INDEX_NAME i64
#include "step_sparse.h"
#undef INDEX
#undef INDEX_NAME
#undef REAL
#undef REAL_NAME

#define REAL double
#define REAL_NAME f64
#include "step_dense.h"
#define INDEX int32_t
#define INDEX_NAME i32
#include "step_sparse.h"
#undef INDEX
#undef INDEX_NAME
#define INDEX int64_t
#define INDEX_NAME i64
#include "step_sparse.h"
