/* The loops of heavy-edge matching (graph/aggregation.py) over the edges of one level, low < high.
 *
 * Integers, and float products without a sum: results do not depend on the level or on how the
 * edges are cut. Only hg_unpack_edges adds, in double. */
#include "hybrid_gpu.h"

#include <string.h>

/* Priority of an edge: the bits of its strength, then the two nodes' names, which no two edges of a
 * node share. */
HG_EXPORT void HG_NAME(hg_priorities)(int64_t first, int64_t last, const int32_t *low,
                                      const int32_t *high, const float *weights,
                                      const float *roots, const uint32_t *names,
                                      uint64_t *priority) {
    for (int64_t e = first; e < last; e++) {
        const float strength = weights[e] * (roots[low[e]] * roots[high[e]]);
        uint32_t bits;
        memcpy(&bits, &strength, sizeof bits);
        priority[e] = (uint64_t)bits << 32 | (names[low[e]] ^ names[high[e]]);
    }
}

/* Copy the edges whose ends fit together into one group; how many they are. */
HG_EXPORT int64_t HG_NAME(hg_fitting_edges)(int64_t count, const int32_t *low, const int32_t *high,
                                            const uint64_t *priority, const int64_t *sizes,
                                            int64_t bound, int32_t *kept_low, int32_t *kept_high,
                                            uint64_t *kept_priority) {
    int64_t kept = 0;
    for (int64_t e = 0; e < count; e++) {
        kept_low[kept] = low[e];
        kept_high[kept] = high[e];
        kept_priority[kept] = priority[e];
        kept += sizes[low[e]] + sizes[high[e]] <= bound;
    }
    return kept;
}

/* Keep, in place, the edges both of whose ends are free; how many they are. */
HG_EXPORT int64_t HG_NAME(hg_free_edges)(int64_t count, int32_t *low, int32_t *high,
                                         uint64_t *priority, const uint8_t *free) {
    int64_t kept = 0;
    for (int64_t e = 0; e < count; e++) {
        const int stays = free[low[e]] & free[high[e]];
        low[kept] = low[e];
        high[kept] = high[e];
        priority[kept] = priority[e];
        kept += stays;
    }
    return kept;
}

/* Raise the best (nodes,) of both ends of each edge to its priority. */
HG_EXPORT void HG_NAME(hg_best_edges)(int64_t count, const int32_t *low, const int32_t *high,
                                      const uint64_t *priority, uint64_t *best) {
    for (int64_t e = 0; e < count; e++) {
        if (priority[e] > best[low[e]]) best[low[e]] = priority[e];
        if (priority[e] > best[high[e]]) best[high[e]] = priority[e];
    }
}

/* The numbers of the edges that are the best of both ends; how many they are. */
HG_EXPORT int64_t HG_NAME(hg_best_pairs)(int64_t count, const int32_t *low, const int32_t *high,
                                         const uint64_t *priority, const uint64_t *best,
                                         int64_t most, int64_t *pairs) {
    int64_t found = 0;
    for (int64_t e = 0; e < count; e++)
        if (best[low[e]] == priority[e] && best[high[e]] == priority[e]) {
            if (found == most) return -1;
            pairs[found++] = e;
        }
    return found;
}

/* The numbers of the edges with one end of two in a pair; how many they are. */
HG_EXPORT int64_t HG_NAME(hg_loose_edges)(int64_t count, const int32_t *low, const int32_t *high,
                                          const uint8_t *paired, int64_t *edges) {
    int64_t found = 0;
    for (int64_t e = 0; e < count; e++) {
        edges[found] = e;
        found += paired[low[e]] != paired[high[e]];
    }
    return found;
}

/* Edges between different parents as one number each: the lower parent, the higher one in `width`
 * bits, the first `spare` digits of the weight. How many they are. */
HG_EXPORT int64_t HG_NAME(hg_pack_edges)(int64_t count, const int32_t *low, const int32_t *high,
                                         const float *weights, const uint32_t *parents,
                                         int64_t width, int64_t spare, uint64_t *packed) {
    int64_t kept = 0;
    for (int64_t e = 0; e < count; e++) {
        const uint32_t left = parents[low[e]], right = parents[high[e]];
        const uint64_t lower = left < right ? left : right, higher = left < right ? right : left;
        uint32_t bits;
        memcpy(&bits, weights + e, sizeof bits);
        packed[kept] = (lower << width | higher) << spare | bits >> (31 - spare);
        kept += left != right;
    }
    return kept;
}

/* The edges of sorted packed ones, with the weights of equal ends added up; how many they are. */
HG_EXPORT int64_t HG_NAME(hg_unpack_edges)(int64_t count, const uint64_t *packed, int64_t width,
                                           int64_t spare, int32_t *low, int32_t *high,
                                           float *weights) {
    const uint64_t digits = ((uint64_t)1 << spare) - 1, higher = ((uint64_t)1 << width) - 1;
    int64_t found = 0;
    for (int64_t e = 0; e < count; found++) {
        const uint64_t ends = packed[e] >> spare;
        double sum = 0;
        for (; e < count && packed[e] >> spare == ends; e++) {
            const uint32_t bits = (uint32_t)(packed[e] & digits) << (31 - spare);
            float weight;
            memcpy(&weight, &bits, sizeof weight);
            sum += weight;
        }
        low[found] = (int32_t)(ends >> width);
        high[found] = (int32_t)(ends & higher);
        weights[found] = (float)sum;
    }
    return found;
}
