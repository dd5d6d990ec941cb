/* The k largest entries of columns or rows, in one pass over them, ties to the lower id. */
#include "hybrid_gpu.h"

#include <math.h>

#define HG_PASTE_(a, b) a##_##b
#define HG_PASTE(a, b) HG_PASTE_(a, b)

/* Columns that are looked at together: those of a cache line in float. */
#define HG_TOGETHER 16
/* Rows of them that are passed over at once if nothing in them is large enough. */
#define HG_ROWS 8
/* Entries side by side that are passed over at once, and columns that are gone through together. */
#define HG_LOOK 32
#define HG_WIDE 512

#define REAL float
#define REAL_NAME f32
#include "select_best.h"
#undef REAL
#undef REAL_NAME

#define REAL double
#define REAL_NAME f64
#include "select_best.h"
