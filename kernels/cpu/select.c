/* The k largest entries of columns or rows, in one pass over them, ties to the lower id. */
#include "hybrid_gpu.h"

#include <math.h>

#define HG_PASTE_(a, b) a##_##b
#define HG_PASTE(a, b) HG_PASTE_(a, b)

/* Columns that are looked at together: those of a cache line in float. */
#define HG_TOGETHER 16
/* Rows of them that are passed over at once if nothing in them is large enough. */
#define HG_ROWS 8

#define REAL float
#define REAL_NAME f32
#include "select_best.h"
#undef REAL
#undef REAL_NAME

#define REAL double
#define REAL_NAME f64
#include "select_best.h"
