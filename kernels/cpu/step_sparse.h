/* Products of a sparse matrix with a dense (columns, m) array of REAL; included by step.c for each
 * type and each type of INDEX. Rows `first` to `last` of the matrix are done.
 *
 * The columns of a row are done in blocks, widest first, whose sums stay in registers while the
 * entries of the row go by; what is left over is done in narrower ones, down to a single column. */

#define SPARSE(name) HG_NAME(HG_PASTE(HG_PASTE(name, REAL_NAME), INDEX_NAME))
#define WHOLE DENSE(hg_whole)

/* One row of the matrix, and where the entries of the tile end: prefetches stop there. */
typedef struct {
    const INDEX *indices;
    const REAL *data;
    int64_t begin, end, tile_end;
} SPARSE(hg_row);

/* y = start + scale * sums, or the sums themselves if there is no start. */
#define ROW_BLOCK(name, vector, count)                                                             \
    HG_INLINE void SPARSE(name)(SPARSE(hg_row) row, const REAL *dense, int64_t m,                  \
                                const REAL *start, REAL scale, REAL *y) {                          \
        enum { lanes = sizeof(vector) / sizeof(REAL) };                                            \
        vector sums[count];                                                                        \
        for (int v = 0; v < count; v++) sums[v] = (vector){0};                                     \
        for (int64_t p = row.begin; p < row.end; p++) {                                              \
            if (p + HG_AHEAD < row.tile_end) {                                                     \
                const char *later = (const char *)(dense + row.indices[p + HG_AHEAD] * m);         \
                for (size_t b = 0; b < sizeof(sums); b += 64) HG_PREFETCH(later + b);              \
            }                                                                                      \
            const REAL *x = dense + row.indices[p] * m, weight = row.data[p];                      \
            for (int v = 0; v < count; v++)                                                        \
                sums[v] += weight * *(const vector *)(x + v * lanes);                              \
        }                                                                                          \
        for (int v = 0; v < count; v++) {                                                          \
            if (start) sums[v] = *(const vector *)(start + v * lanes) + scale * sums[v];           \
            *(vector *)(y + v * lanes) = sums[v];                                                  \
        }                                                                                          \
    }

ROW_BLOCK(hg_block8, WHOLE, 8)
ROW_BLOCK(hg_block4, WHOLE, 4)
ROW_BLOCK(hg_block2, WHOLE, 2)
ROW_BLOCK(hg_block1, WHOLE, 1)
#if HG_VECTOR_BYTES > 32
ROW_BLOCK(hg_block32, DENSE(hg_bytes32), 1)
#endif
#if HG_VECTOR_BYTES > 16
ROW_BLOCK(hg_block16, DENSE(hg_bytes16), 1)
#endif
#if HG_VECTOR_BYTES
ROW_BLOCK(hg_pair, REAL, 2)
ROW_BLOCK(hg_single, REAL, 1)
#endif
#undef ROW_BLOCK

/* A single column, in a loop of its own that needs few registers: y = start + scale * sums, or the
 * sums. One sum for a row: the processor is in the next rows already while it waits for additions. */
HG_SCALAR static void SPARSE(hg_column)(int64_t first, int64_t last, const INDEX *indptr,
                                        const INDEX *indices, const REAL *data, const REAL *dense,
                                        const REAL *start, REAL scale, REAL *y) {
    for (int64_t i = first; i < last; i++) {
        const INDEX end = indptr[i + 1];
        REAL sum = 0;
        for (INDEX p = indptr[i]; p < end; p++) sum += data[p] * dense[indices[p]];
        y[i] = start ? start[i] + scale * sum : sum;
    }
}

/* All m columns of one row. */
HG_INLINE void SPARSE(hg_row_product)(SPARSE(hg_row) row, const REAL *dense, int64_t m,
                                      const REAL *start, REAL scale, REAL *y) {
    enum { lanes = sizeof(WHOLE) / sizeof(REAL) };
    int64_t c = 0;
#define BLOCK(name, width)                                                                         \
    {                                                                                              \
        SPARSE(name)(row, dense + c, m, start ? start + c : start, scale, y + c);                  \
        c += width;                                                                                \
    }
    while (m - c >= 8 * lanes) BLOCK(hg_block8, 8 * lanes)
    if (m - c >= 4 * lanes) BLOCK(hg_block4, 4 * lanes)
    if (m - c >= 2 * lanes) BLOCK(hg_block2, 2 * lanes)
    if (m - c >= lanes) BLOCK(hg_block1, lanes)
#if HG_VECTOR_BYTES > 32
    if (m - c >= lanes / 2) BLOCK(hg_block32, lanes / 2)
#endif
#if HG_VECTOR_BYTES > 16
    if (m - c >= (int)(16 / sizeof(REAL))) BLOCK(hg_block16, 16 / sizeof(REAL))
#endif
#if HG_VECTOR_BYTES
    if (m - c >= 2) BLOCK(hg_pair, 2)
    if (m - c >= 1) BLOCK(hg_single, 1)
#endif
#undef BLOCK
}

#define ROW(i)                                                                                     \
    (SPARSE(hg_row)) { indices, data, indptr[i], indptr[i + 1], indptr[last] }

/* result = matrix * dense. */
HG_EXPORT void SPARSE(hg_spmm)(int64_t first, int64_t last, int64_t m, const INDEX *indptr,
                               const INDEX *indices, const REAL *data, const REAL *dense,
                               REAL *result) {
    if (m == 1) {
        SPARSE(hg_column)(first, last, indptr, indices, data, dense, NULL, 1, result);
        return;
    }
    for (int64_t i = first; i < last; i++)
        SPARSE(hg_row_product)(ROW(i), dense, m, NULL, 1, result + i * m);
}

/* values -= matrix * dense. */
HG_EXPORT void SPARSE(hg_subtract_spmm)(int64_t first, int64_t last, int64_t m,
                                        const INDEX *indptr, const INDEX *indices,
                                        const REAL *data, const REAL *dense, REAL *values) {
    if (m == 1) {
        SPARSE(hg_column)(first, last, indptr, indices, data, dense, values, -1, values);
        return;
    }
    for (int64_t i = first; i < last; i++)
        SPARSE(hg_row_product)(ROW(i), dense, m, values + i * m, -1, values + i * m);
}

/* product = (I - alpha W) direction, and the dots (m,) of its columns with those of direction. A
 * `large` product will not be in the cache when it is read again: where rows are whole lines of the
 * cache, these go past it. */
HG_EXPORT void SPARSE(hg_laplacian_step)(int64_t first, int64_t last, int64_t m,
                                         const INDEX *indptr, const INDEX *indices,
                                         const REAL *data, const REAL *direction, double alpha,
                                         int64_t large, REAL *product, double *restrict dots) {
    if (m == 1) {
        SPARSE(hg_column)
        (first, last, indptr, indices, data, direction, direction, (REAL)-alpha, product);
        DENSE(hg_column_dots)(last - first, 1, direction + first, product + first, dots);
        return;
    }
    REAL row[HG_STREAMED] HG_ALIGNED;
    const int past = large && m <= HG_STREAMED && hg_whole_lines(product, m * sizeof(REAL));
    for (int64_t c = 0; c < m; c++) dots[c] = 0;
    for (int64_t i = first; i < last; i++) {
        const REAL *x = direction + i * m;
        REAL *y = past ? row : product + i * m;
        SPARSE(hg_row_product)(ROW(i), direction, m, x, (REAL)-alpha, y);
        for (int64_t c = 0; c < m; c++) dots[c] += (double)(x[c] * y[c]);
        if (past) hg_stream(product + i * m, row, m * sizeof(REAL));
    }
    if (past) hg_streamed();
}

#undef ROW
#undef WHOLE
#undef SPARSE
