/* Diffusion of one query after another, each on the few items that matter to it: local_query.h
 * tells how. Memory is the caller's, and bounds what a query may visit.
 */
#include "hybrid_gpu.h"

#include <math.h>

#define HG_PASTE_(a, b) a##_##b
#define HG_PASTE(a, b) HG_PASTE_(a, b)

/* The residual after push is large where it is above `push` times the largest observation. A queue
 * that is longer than this many times the room is that of a graph whose weights grow by diffusion,
 * which no graph of ours does. */
#define HG_PUSHES_PER_ROOM 256
/* Residuals of fewer roundings than these say nothing. */
#define HG_ROUNDINGS 8
/* A round aims at the goal of the one before, and its square may be so many times that of its own. */
#define HG_NEAR 4
/* All but one of so many parts of the items are most of them. */
#define HG_MOST 4
/* Whole components are solved to a square so many times smaller, from true residuals so often. */
#define HG_WHOLE 100
#define HG_TRIES 4
/* Neighbors of neighbors that come in during a round, at most, where there are too few of them. */
#define HG_RINGS 8
/* Scores from 0.7 to 1.5 times the k-th tell how much the ranking around it still moves. */
#define HG_BORDER_LOW 0.7
#define HG_BORDER_HIGH 1.5

/* Bytes of a line of cache, and how many of them to ask for of a row: 48 entries. */
#define HG_LINE 64
#define HG_LINES 3

/* What does not change from query to query; native_local.py has the same four records. */
typedef struct {
    int64_t items;   /* n */
    int64_t groups;  /* r */
    int64_t coupled; /* s: the first groups, whose inverse is dense */
    const void *indptr, *indices, *weights;                     /* W: INDEX, INDEX, REAL */
    const void *spread_indptr, *spread_groups, *spread_weights; /* Z and W Z side by side (n, 2 r) */
    const void *together; /* REAL (s, s): the inverse of the coupled groups */
    const void *alone;    /* REAL (r - s): that of the others */
    const void *roots;    /* REAL (n): roots of the degrees, about 1 */
    const int64_t *order; /* (n): the user's ids, for ties */
} hg_local_index;

/* How exact to be, and how far to go; see LocalEffort in local_records.py. */
typedef struct {
    double alpha, tolerance, push, growth, drift, calm, gap;
    int64_t spare, changes, few, watched, fewest, steps, rounds;
    int64_t rooted; /* 1: items rank by their scores times their roots */
} hg_local_settings;

/* Memory of one thread for `room` items and `entries` of their rows. `place` is -1 everywhere
 * between queries, and `sums` is zero. */
typedef struct {
    int64_t room, entries;
    int32_t *place;                       /* (n) */
    int32_t *node, *row, *member, *queue; /* (room) */
    int64_t *start;                       /* (room + 1) */
    int32_t *column;                      /* (entries) */
    void *weight;                         /* REAL (entries) */
    int64_t *inner_start;                 /* (room + 1) */
    int32_t *inner;                       /* (entries) */
    void *inner_weight;                   /* REAL (entries) */
    void *reals;                          /* REAL (13, room) */
    uint8_t *best;                        /* (room) */
    void *coefficients, *sums;            /* REAL (r) */
} hg_local_memory;

/* What is told of a query. */
typedef struct {
    int64_t found;   /* items with a score, at most k */
    int64_t settled; /* 1: the rule was met; 0: out of room or rounds */
    int64_t rounds, visited, steps;
    int64_t seen, entries; /* items and entries of rows that there had to be room for */
    double residual; /* relative, of the system on T */
} hg_local_report;

#define REAL float
#define REAL_NAME f32
#define HG_EPSILON 1.2e-7
#define INDEX int32_t
#define INDEX_NAME i32
#include "local_query.h"
#undef INDEX
#undef INDEX_NAME
#define INDEX int64_t
#define INDEX_NAME i64
#include "local_query.h"
#undef INDEX
#undef INDEX_NAME
#undef REAL
#undef REAL_NAME

#undef HG_EPSILON
#define REAL double
#define REAL_NAME f64
#define HG_EPSILON 2.3e-16
#define INDEX int32_t
#define INDEX_NAME i32
#include "local_query.h"
#undef INDEX
#undef INDEX_NAME
#define INDEX int64_t
#define INDEX_NAME i64
#include "local_query.h"
