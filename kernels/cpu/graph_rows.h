/* Rows of a sparse matrix, made of lists of REAL or in another order; included by graph.c for each
 * type and INDEX. */

#define ROWS(name) HG_NAME(HG_PASTE(HG_PASTE(name, REAL_NAME), INDEX_NAME))

HG_INLINE void ROWS(hg_sift_entries)(INDEX *columns, REAL *values, int64_t root, int64_t count) {
    for (int64_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && columns[child + 1] > columns[child]) child++;
        if (columns[child] <= columns[root]) break;
        const INDEX column = columns[root];
        const REAL value = values[root];
        columns[root] = columns[child], values[root] = values[child];
        columns[child] = column, values[child] = value;
    }
}

/* Sort the entries of a row by their columns, no two of which are equal. */
static void ROWS(hg_sort_entries)(INDEX *columns, REAL *values, int64_t count) {
    if (count > HG_SHORT) {
        for (int64_t root = count / 2 - 1; root >= 0; root--)
            ROWS(hg_sift_entries)(columns, values, root, count);
        for (int64_t last = count - 1; last > 0; last--) {
            const INDEX column = columns[0];
            const REAL value = values[0];
            columns[0] = columns[last], values[0] = values[last];
            columns[last] = column, values[last] = value;
            ROWS(hg_sift_entries)(columns, values, 0, last);
        }
        return;
    }
    for (int64_t i = 1; i < count; i++) {
        const INDEX column = columns[i];
        const REAL value = values[i];
        int64_t place = i;
        for (; place > 0 && columns[place - 1] > column; place--) {
            columns[place] = columns[place - 1];
            values[place] = values[place - 1];
        }
        columns[place] = column, values[place] = value;
    }
}

/* Row p of the result is row order[p] of the matrix, with places[c] in the place of column c, by
 * column; `starts` (n + 1,) are the bounds of its rows. */
HG_EXPORT void ROWS(hg_reorder)(int64_t first, int64_t last, const int64_t *order,
                                const int64_t *places, const INDEX *indptr, const INDEX *indices,
                                const REAL *data, const INDEX *starts, INDEX *new_indices,
                                REAL *new_data) {
    for (int64_t p = first; p < last; p++) {
        const int64_t begin = indptr[order[p]], count = indptr[order[p] + 1] - begin;
        INDEX *columns = new_indices + starts[p];
        REAL *values = new_data + starts[p];
        for (int64_t e = 0; e < count; e++) {
            columns[e] = (INDEX)places[indices[begin + e]];
            values[e] = data[begin + e];
        }
        ROWS(hg_sort_entries)(columns, values, count);
    }
}

/* The edges that both ends of sorted lists (n, k) give, with the mean of their weights: those of row i
 * from `starts[i]` on, by column. */
HG_EXPORT void ROWS(hg_mutual_edges)(int64_t first, int64_t last, int64_t k, const int32_t *columns,
                                     const REAL *weights, const int32_t *counts, const REAL *back,
                                     const int64_t *starts, INDEX *others, double *means) {
    for (int64_t i = first; i < last; i++) {
        int64_t e = starts[i];
        for (int64_t s = i * k; s < i * k + counts[i]; s++)
            if (back[s] > 0) {
                others[e] = columns[s];
                means[e++] = ((double)weights[s] + (double)back[s]) / 2;
            }
    }
}

#undef ROWS
