/* The best entries of lines of REAL; included by select.c for each type. */

#define BEST(name) HG_NAME(HG_PASTE(name, REAL_NAME))

/* A heap of the best entries so far, with the worst of them at the root. */
typedef struct {
    REAL *values;
    int64_t *places, k;
    const int64_t *order;
} BEST(hg_heap);

/* NaN compares with nothing: it counts as infinite, and is seen at the top. */
HG_INLINE REAL BEST(hg_key)(REAL value) { return value != value ? (REAL)INFINITY : value; }

/* Whether an entry comes behind another: smaller, or equal with a higher id. */
HG_INLINE int BEST(hg_behind)(const int64_t *order, REAL value, int64_t place, REAL other,
                              int64_t other_place) {
    const REAL one = BEST(hg_key)(value), two = BEST(hg_key)(other);
    if (one != two) return one < two;
    /* A place of -1 is one that no entry has taken yet. */
    if (place < 0 || other_place < 0) return place < other_place;
    return order ? order[place] > order[other_place] : place > other_place;
}

/* Put an entry where it belongs below a root that is free, in a heap of `count` entries. */
static void BEST(hg_sift)(BEST(hg_heap) heap, int64_t root, int64_t count, REAL value,
                          int64_t place) {
    for (int64_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count &&
            BEST(hg_behind)(heap.order, heap.values[child + 1], heap.places[child + 1],
                            heap.values[child], heap.places[child]))
            child++;
        if (!BEST(hg_behind)(heap.order, heap.values[child], heap.places[child], value, place))
            break;
        heap.values[root] = heap.values[child];
        heap.places[root] = heap.places[child];
    }
    heap.values[root] = value;
    heap.places[root] = place;
}

/* Take the entries of a heap out, worst first, so that they stand best first. */
HG_INLINE void BEST(hg_unwind)(BEST(hg_heap) heap) {
    for (int64_t last = heap.k - 1; last > 0; last--) {
        const REAL value = heap.values[last], worst = heap.values[0];
        const int64_t place = heap.places[last], worst_place = heap.places[0];
        BEST(hg_sift)(heap, 0, last, value, place);
        heap.values[last] = worst;
        heap.places[last] = worst_place;
    }
}

/* Whether any entry of a block of rows of HG_TOGETHER is not below its limit, as NaN is not. */
HG_INLINE int BEST(hg_any_reaches)(const REAL *values, int64_t stride, const REAL *limits) {
    int32_t reach[HG_TOGETHER] = {0}, any = 0;
    for (int64_t row = 0; row < HG_ROWS; row++) {
        /* Of rows far apart, processors guess too late where the next one is. */
        HG_PREFETCH(values + (row + 8 * HG_ROWS) * stride);
        for (int64_t c = 0; c < HG_TOGETHER; c++)
            reach[c] |= !(values[row * stride + c] < limits[c]);
    }
    for (int64_t c = 0; c < HG_TOGETHER; c++) any |= reach[c];
    return any;
}

/* Take an entry into a heap if it belongs there; the limit below which none does. */
HG_INLINE REAL BEST(hg_taken)(BEST(hg_heap) heap, REAL value, int64_t place) {
    if (BEST(hg_behind)(heap.order, heap.values[0], heap.places[0], value, place))
        BEST(hg_sift)(heap, 0, heap.k, value, place);
    return BEST(hg_key)(heap.values[0]);
}

/* Whether any of HG_LOOK entries is not below its limit, as NaN is not. */
HG_INLINE int BEST(hg_reaches)(const REAL *values, const REAL *limits) {
    int32_t any = 0;
    for (int64_t c = 0; c < HG_LOOK; c++) any |= !(values[c] < limits[c]);
    return any;
}

/* More entries of one line, whose first has the place `first`. */
static void BEST(hg_more_of_line)(BEST(hg_heap) heap, int64_t n, const REAL *scores,
                                  int64_t first) {
    REAL limits[HG_LOOK];
    for (int64_t c = 0; c < HG_LOOK; c++) limits[c] = BEST(hg_key)(heap.values[0]);
    for (int64_t i = 0; i < n; i += HG_LOOK) {
        const int64_t stop = n - i < HG_LOOK ? n : i + HG_LOOK;
        if (stop - i == HG_LOOK && !BEST(hg_reaches)(scores + i, limits)) continue;
        REAL limit = limits[0];
        for (int64_t j = i; j < stop; j++)
            if (!(scores[j] < limit)) limit = BEST(hg_taken)(heap, scores[j], first + j);
        for (int64_t c = 0; c < HG_LOOK; c++) limits[c] = limit;
    }
}

/* More entries of up to HG_WIDE columns, in the order in which they lie in memory. */
static void BEST(hg_more_of_columns)(BEST(hg_heap) heap, int64_t n, int64_t width, int64_t stride,
                                     const REAL *scores, int64_t first) {
    const int64_t k = heap.k;
    REAL limits[HG_WIDE];
    for (int64_t c = 0; c < width; c++) limits[c] = BEST(hg_key)(heap.values[c * k]);
    for (int64_t i = 0; i < n; i++) {
        const REAL *row = scores + i * stride;
        for (int64_t start = 0; start < width; start += HG_LOOK) {
            const int64_t stop = width - start < HG_LOOK ? width : start + HG_LOOK;
            if (stop - start == HG_LOOK && !BEST(hg_reaches)(row + start, limits + start)) continue;
            for (int64_t c = start; c < stop; c++) {
                if (row[c] < limits[c]) continue;
                const BEST(hg_heap) own = {heap.values + c * k, heap.places + c * k, k, heap.order};
                limits[c] = BEST(hg_taken)(own, row[c], first + i);
            }
        }
    }
}

/* More entries for heaps of k: of `rows` lines of `columns` entries, `stride` numbers apart, whose
 * places begin at `first`; or, `across` them, of the columns, for each of which there is a heap
 * then. `values` and `places` are the heaps', of -infinity and -1 before their first entries. */
HG_EXPORT void BEST(hg_top_k_more)(int64_t rows, int64_t columns, int64_t stride, int64_t across,
                                   const REAL *scores, const int64_t *order, int64_t first,
                                   int64_t k, REAL *values, int64_t *places) {
    if (!across) {
        for (int64_t row = 0; row < rows; row++) {
            const BEST(hg_heap) heap = {values + row * k, places + row * k, k, order};
            BEST(hg_more_of_line)(heap, columns, scores + row * stride, first);
        }
        return;
    }
    for (int64_t c = 0; c < columns; c += HG_WIDE) {
        const int64_t width = columns - c < HG_WIDE ? columns - c : HG_WIDE;
        const BEST(hg_heap) heap = {values + c * k, places + c * k, k, order};
        BEST(hg_more_of_columns)(heap, rows, width, stride, scores + c, first);
    }
}

/* The entries of `count` heaps of k, best first. */
HG_EXPORT void BEST(hg_top_k_sorted)(int64_t count, const int64_t *order, int64_t k, REAL *values,
                                     int64_t *places) {
    for (int64_t c = 0; c < count; c++)
        BEST(hg_unwind)((BEST(hg_heap)){values + c * k, places + c * k, k, order});
}

/* The best k of n entries for each of `width` <= HG_TOGETHER columns that lie side by side, with
 * `stride` numbers from one entry to the next; or of one line of entries, with a stride of 1.
 * `values` and `places` (width, k) are theirs. `order` (n,) gives ids to places, or is NULL. */
HG_EXPORT void BEST(hg_top_k)(int64_t n, int64_t width, int64_t stride, const REAL *scores,
                              const int64_t *order, int64_t k, REAL *values, int64_t *places) {
    REAL limits[HG_TOGETHER];
    for (int64_t c = 0; c < width; c++) {
        const BEST(hg_heap) heap = {values + c * k, places + c * k, k, order};
        for (int64_t i = 0; i < k; i++) {
            heap.values[i] = scores[i * stride + c];
            heap.places[i] = i;
        }
        for (int64_t root = k / 2 - 1; root >= 0; root--)
            BEST(hg_sift)(heap, root, k, heap.values[root], heap.places[root]);
        limits[c] = BEST(hg_key)(heap.values[0]);
    }
    /* A single line is looked at as rows of its own. */
    const int one_line = width == 1 && stride == 1;
    const int64_t apart = one_line ? HG_TOGETHER : stride;
    const int64_t skipped = one_line ? HG_ROWS * HG_TOGETHER : HG_ROWS;
    int64_t looked_at = 0; /* what is before it has to be gone through */
    for (int64_t i = k; i < n; i++) {
        if (i >= looked_at && (one_line || width == HG_TOGETHER)) {
            for (int64_t c = 1; one_line && c < HG_TOGETHER; c++) limits[c] = limits[0];
            while (n - i >= skipped && !BEST(hg_any_reaches)(scores + i * stride, apart, limits))
                i += skipped;
            if (i == n) break;
            looked_at = i + skipped;
        }
        for (int64_t c = 0; c < width; c++) {
            const REAL value = scores[i * stride + c];
            const BEST(hg_heap) heap = {values + c * k, places + c * k, k, order};
            if (value < limits[c] ||
                !BEST(hg_behind)(order, heap.values[0], heap.places[0], value, i))
                continue;
            BEST(hg_sift)(heap, 0, k, value, i);
            limits[c] = BEST(hg_key)(heap.values[0]);
        }
    }
    for (int64_t c = 0; c < width; c++)
        BEST(hg_unwind)((BEST(hg_heap)){values + c * k, places + c * k, k, order});
}

#undef BEST
