/* From k-NN lists to a graph: mutual edges, connected components, rows in another order.
 *
 * Lists are (n, k) with n below 2^31. Functions with `first` and `last` do the rows of one tile.
 */
#include "hybrid_gpu.h"

#include <stdlib.h>

#define HG_PASTE_(a, b) a##_##b
#define HG_PASTE(a, b) HG_PASTE_(a, b)

/* Lists longer than this are sorted by a heap: insertion takes the square of their length. */
#define HG_SHORT 96

HG_INLINE void hg_sift_keys(uint64_t *keys, int64_t root, int64_t count) {
    const uint64_t key = keys[root];
    for (int64_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && keys[child + 1] > keys[child]) child++;
        if (keys[child] <= key) break;
        keys[root] = keys[child];
        keys[child] = key;
    }
}

/* Sort in place; no two keys are equal. */
static void hg_sort_keys(uint64_t *keys, int64_t count) {
    if (count > HG_SHORT) {
        for (int64_t root = count / 2 - 1; root >= 0; root--) hg_sift_keys(keys, root, count);
        for (int64_t last = count - 1; last > 0; last--) {
            const uint64_t largest = keys[0];
            keys[0] = keys[last];
            keys[last] = largest;
            hg_sift_keys(keys, 0, last);
        }
        return;
    }
    for (int64_t i = 1; i < count; i++) {
        const uint64_t key = keys[i];
        int64_t place = i;
        for (; place > 0 && keys[place - 1] > key; place--) keys[place] = keys[place - 1];
        keys[place] = key;
    }
}

#define REAL float
#define REAL_NAME f32
#include "graph_lists.h"
#define INDEX int32_t
#define INDEX_NAME i32
#include "graph_rows.h"
#undef INDEX
#undef INDEX_NAME
#define INDEX int64_t
#define INDEX_NAME i64
#include "graph_rows.h"
#undef INDEX
#undef INDEX_NAME
#undef REAL
#undef REAL_NAME

#define REAL double
#define REAL_NAME f64
#include "graph_lists.h"
#define INDEX int32_t
#define INDEX_NAME i32
#include "graph_rows.h"
#undef INDEX
#undef INDEX_NAME
#define INDEX int64_t
#define INDEX_NAME i64
#include "graph_rows.h"
#undef INDEX
#undef INDEX_NAME

/* The node that stands for the part of a node, by halving the way to it. */
HG_INLINE int32_t hg_root(int32_t *parents, int32_t node) {
    while (parents[node] != node) node = parents[node] = parents[parents[node]];
    return node;
}

/* Labels (n,) of the connected parts, in the order of their first nodes; how many there are. */
#define COMPONENTS(type_name, type)                                                                \
    HG_EXPORT int64_t HG_NAME(HG_PASTE(hg_components, type_name))(                                 \
        int64_t n, const type *indptr, const type *indices, int32_t *labels) {                     \
        for (int64_t i = 0; i < n; i++) labels[i] = (int32_t)i;                                    \
        for (int64_t i = 0; i < n; i++)                                                            \
            for (int64_t p = indptr[i]; p < indptr[i + 1]; p++) {                                  \
                const int32_t one = hg_root(labels, (int32_t)i);                                   \
                const int32_t other = hg_root(labels, (int32_t)indices[p]);                        \
                /* The first node of a part stands for it. */                                      \
                if (one < other) labels[other] = one;                                              \
                else labels[one] = other;                                                          \
            }                                                                                      \
        int32_t count = 0;                                                                         \
        for (int64_t i = 0; i < n; i++) /* what a node points to comes before it */                \
            labels[i] = labels[i] == i ? count++ : labels[labels[i]];                              \
        return count;                                                                              \
    }

COMPONENTS(i32, int32_t)
COMPONENTS(i64, int64_t)
