/* Passes over dense (rows, m) arrays of REAL; included by step.c for each type.
 *
 * With few columns, several rows are taken as one wide row: a period of `wide` numbers, a multiple
 * of m, after which the columns repeat. */

#define DENSE(name) HG_NAME(HG_PASTE(name, REAL_NAME))

/* Numbers until the columns repeat: m, or a multiple of it that fills the local sums. */
HG_INLINE int64_t DENSE(hg_period)(int64_t m) {
    return m < HG_NARROW && m > 0 ? HG_NARROW / m * m : m;
}

/* A value for each column, repeated to fill a period. */
HG_INLINE const REAL *DENSE(hg_repeated)(const REAL *values, int64_t m, int64_t wide, REAL *local) {
    if (wide == m) return values;
    for (int64_t c = 0; c < wide; c++) local[c] = values[c % m];
    return local;
}

/* The sums of a period as those of the columns. */
HG_INLINE void DENSE(hg_folded)(const double *sums, int64_t m, int64_t wide, double *result) {
    if (wide == m) return;
    for (int64_t c = 0; c < m; c++) result[c] = 0;
    for (int64_t c = 0; c < wide; c++) result[c % m] += sums[c];
}

/* Dots (m,) of the columns of two arrays (rows, m), added up in double. */
HG_EXPORT void DENSE(hg_column_dots)(int64_t rows, int64_t m, const REAL *left, const REAL *right,
                                     double *dots) {
    const int64_t wide = DENSE(hg_period)(m), size = rows * m;
    double local[HG_NARROW], *sums = wide == m ? dots : local;
    for (int64_t c = 0; c < wide; c++) sums[c] = 0;
    for (int64_t i = 0; i < size; i += wide) {
        const int64_t some = size - i < wide ? size - i : wide;
        for (int64_t c = 0; c < some; c++) sums[c] += (double)(left[i + c] * right[i + c]);
    }
    DENSE(hg_folded)(sums, m, wide, dots);
}

/* solution += direction * step, residual -= product * step, and the residual's squares (m,). */
HG_EXPORT void DENSE(hg_cg_update)(int64_t rows, int64_t m, REAL *restrict solution,
                                   REAL *restrict residual, const REAL *direction,
                                   const REAL *product, const REAL *step, double *squares) {
    const int64_t wide = DENSE(hg_period)(m), size = rows * m;
    REAL repeated[HG_NARROW];
    double local[HG_NARROW], *restrict sums = wide == m ? squares : local;
    const REAL *by = DENSE(hg_repeated)(step, m, wide, repeated);
    for (int64_t c = 0; c < wide; c++) sums[c] = 0;
    for (int64_t i = 0; i < size; i += wide) {
        const int64_t some = size - i < wide ? size - i : wide;
        for (int64_t c = 0; c < some; c++) {
            solution[i + c] += direction[i + c] * by[c];
            const REAL left = residual[i + c] - product[i + c] * by[c];
            residual[i + c] = left;
            sums[c] += (double)(left * left);
        }
    }
    DENSE(hg_folded)(sums, m, wide, squares);
}

/* direction = residual + direction * ratio. */
HG_EXPORT void DENSE(hg_cg_direction)(int64_t rows, int64_t m, const REAL *residual,
                                      REAL *restrict direction, const REAL *ratio) {
    const int64_t wide = DENSE(hg_period)(m), size = rows * m;
    REAL repeated[HG_NARROW];
    const REAL *by = DENSE(hg_repeated)(ratio, m, wide, repeated);
    for (int64_t i = 0; i < size; i += wide) {
        const int64_t some = size - i < wide ? size - i : wide;
        for (int64_t c = 0; c < some; c++)
            direction[i + c] = residual[i + c] + direction[i + c] * by[c];
    }
}

/* Vectors that may stand anywhere in memory. */
#if HG_VECTOR_BYTES
#define VECTOR(bytes) __attribute__((vector_size(bytes), aligned(sizeof(REAL)), may_alias))
typedef REAL DENSE(hg_whole) VECTOR(HG_VECTOR_BYTES);
typedef REAL DENSE(hg_bytes32) VECTOR(32);
typedef REAL DENSE(hg_bytes16) VECTOR(16);
#undef VECTOR
#else
typedef REAL DENSE(hg_whole);
#endif
