/* Mutual edges of k-NN lists with similarities of REAL; included by graph.c for each type. */

#define LISTS(name) HG_NAME(HG_PASTE(name, REAL_NAME))

/* The lists of some items by column: without ids below 0, the item's own, what is not positive, and
 * all but the first of a repeated id. Rows of `columns` and `weights` (n, k) begin with them, as
 * many as `counts` (n,) tells. `ids` and `similarities` begin with the first of these items. Not 0:
 * there is no memory. */
HG_EXPORT int64_t LISTS(hg_sorted_lists)(int64_t first, int64_t last, int64_t k, const int64_t *ids,
                                         const REAL *similarities, int32_t *columns, REAL *weights,
                                         int32_t *counts) {
    uint64_t *keys = malloc((size_t)(k > 0 ? k : 1) * sizeof(uint64_t));
    if (!keys) return -1;
    for (int64_t i = first; i < last; i++) {
        const int64_t *row = ids + (i - first) * k;
        const REAL *values = similarities + (i - first) * k;
        int64_t known = 0, kept = 0, before = -1;
        /* The place in the list rides along: equal ids stay in their order. */
        for (int64_t s = 0; s < k; s++)
            if (row[s] >= 0) keys[known++] = (uint64_t)row[s] << 32 | (uint64_t)s;
        hg_sort_keys(keys, known);
        for (int64_t s = 0; s < known; s++) {
            const int64_t id = (int64_t)(keys[s] >> 32);
            const REAL value = values[keys[s] & 0xffffffffu];
            if (id != before && id != i && value > 0) {
                columns[i * k + kept] = (int32_t)id;
                weights[i * k + kept++] = value;
            }
            before = id;
        }
        counts[i] = (int32_t)kept;
    }
    free(keys);
    return 0;
}

/* Find the edges that both ends list: the weight that the other end gives to an entry of the sorted
 * lists goes to its place in `back` (n, k), which is 0 before. Every edge is looked for once, by its
 * lower end, which writes for both: no two calls write to the same place. */
HG_EXPORT void LISTS(hg_listed_back)(int64_t first, int64_t last, int64_t k, const int32_t *columns,
                                     const REAL *weights, const int32_t *counts, REAL *back) {
    for (int64_t i = first; i < last; i++) {
        const int32_t *row = columns + i * k;
        int32_t start = 0;
        while (start < counts[i] && row[start] < i) start++;
        /* Lists lie anywhere: ask for all of them before the first is read. */
        for (int32_t s = start; s < counts[i]; s++)
            for (int64_t ahead = 0; ahead < counts[row[s]]; ahead += 16)
                HG_PREFETCH(columns + row[s] * k + ahead);
        for (int32_t s = start; s < counts[i]; s++) {
            const int64_t other = row[s] * k, count = counts[row[s]];
            const int32_t *list = columns + other;
            int64_t low = 0, high = count;
            while (low < high) {
                const int64_t middle = (low + high) / 2;
                if (list[middle] < i) low = middle + 1;
                else high = middle;
            }
            if (low < count && list[low] == i) {
                back[i * k + s] = weights[other + low];
                back[other + low] = weights[i * k + s];
            }
        }
    }
}

/* How many entries of each list (n,) are listed back. */
HG_EXPORT void LISTS(hg_count_back)(int64_t first, int64_t last, int64_t k, const int32_t *counts,
                                    const REAL *back, int64_t *found) {
    for (int64_t i = first; i < last; i++) {
        int64_t both = 0;
        for (int32_t s = 0; s < counts[i]; s++) both += back[i * k + s] > 0;
        found[i] = both;
    }
}

#undef LISTS
