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
