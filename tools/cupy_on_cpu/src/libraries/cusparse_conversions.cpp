// cuSPARSE: conversions between formats, sorts, sums of sparse matrices, removal of small values.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <numeric>
#include <vector>

#include "cusparse_types.h"

using namespace standin;

namespace {

size_t element_bytes(cudaDataType type) {
    switch (type) {
    case CUDA_R_8I: return 1;
    case CUDA_R_16F: return 2;
    case CUDA_R_32F: return 4;
    case CUDA_C_64F: return 16;
    default: return 8;  // double, complex of floats
    }
}

// Walks over the nonzero elements of a dense matrix in the order of a sparse format. visit takes
// the position among the nonzeros, the line (row, or column for CSC), the place in it, and the
// value. Writes the offsets of CSR and CSC on the way; returns the number of nonzeros.
template <class T, class Visit>
int64_t for_each_nonzero(const DenseMatrix& dense, const SparseMatrix& sparse, Visit visit) {
    const bool by_column = sparse.format == CUSPARSE_FORMAT_CSC;
    const bool compressed = sparse.format != CUSPARSE_FORMAT_COO;
    const int64_t lines = by_column ? dense.columns : dense.rows;
    const int64_t length = by_column ? dense.rows : dense.columns;
    const T* values = static_cast<const T*>(dense.values);
    int64_t found = 0;
    for (int64_t line = 0; line < lines; line++) {
        if (compressed) sparse.offsets.set(line, found + sparse.base);
        for (int64_t place = 0; place < length; place++) {
            const T value = values[by_column ? dense.at(place, line) : dense.at(line, place)];
            if (value != T(0)) visit(found++, line, place, value);
        }
    }
    if (compressed) sparse.offsets.set(lines, found + sparse.base);
    return found;
}

// values[k] = values[order[k]], for k from begin; null values are left alone.
void rearrange(int* values, int begin, const std::vector<int>& order) {
    if (!values) return;
    std::vector<int> sorted;
    for (int from : order)
        sorted.push_back(values[from]);
    std::copy(sorted.begin(), sorted.end(), values + begin);
}

// Sorts the indices of every line, and the permutation along with them.
void sort_lines(int lines, const int* offsets, int* indices, int* permutation) {
    const int base = offsets[0];
    for (int line = 0; line < lines; line++) {
        const int begin = offsets[line] - base, end = offsets[line + 1] - base;
        std::vector<int> order(end - begin);
        std::iota(order.begin(), order.end(), begin);
        std::stable_sort(order.begin(), order.end(),
                         [&](int a, int b) { return indices[a] < indices[b]; });
        rearrange(indices, begin, order);
        rearrange(permutation, begin, order);
    }
}

void sort_coordinates(int nonzeros, int* major, int* minor, int* permutation) {
    std::vector<int> order(nonzeros);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return major[a] != major[b] ? major[a] < major[b] : minor[a] < minor[b];
    });
    rearrange(major, 0, order);
    rearrange(minor, 0, order);
    rearrange(permutation, 0, order);
}

struct CsrPattern {
    const int *offsets, *indices;
};

// Merges two rows of sorted indices. visit takes the column and the positions in a and b, -1 where
// one has no element.
template <class Visit>
void merge_rows(const CsrPattern& a, const CsrPattern& b, int row, Visit visit) {
    int i = a.offsets[row], j = b.offsets[row];
    const int end_a = a.offsets[row + 1], end_b = b.offsets[row + 1];
    while (i < end_a || j < end_b) {
        const int column_a = i < end_a ? a.indices[i] : INT32_MAX;
        const int column_b = j < end_b ? b.indices[j] : INT32_MAX;
        visit(std::min(column_a, column_b), column_a <= column_b ? i++ : -1,
              column_b <= column_a ? j++ : -1);
    }
}

template <class T>
void add(int rows, T alpha, const T* values_a, const CsrPattern& a, T beta, const T* values_b,
         const CsrPattern& b, T* values, int* indices) {
    int at = 0;
    for (int row = 0; row < rows; row++) {
        merge_rows(a, b, row, [&](int column, int i, int j) {
            T sum = 0;
            if (i >= 0) sum += alpha * values_a[i];
            if (j >= 0) sum += beta * values_b[j];
            indices[at] = column;
            values[at++] = sum;
        });
    }
}

// Values at most as large as the tolerance go.
template <class T>
bool is_kept(T value, T tolerance) {
    return std::abs(value) > std::real(tolerance);
}

// CUDA's complex types and ours have the same layout.
template <class T, class CudaT>
T converted(CudaT value) {
    T result;
    memcpy(static_cast<void*>(&result), &value, sizeof result);
    return result;
}

}  // namespace

extern "C" {

// ---- sparse to dense and back

cusparseStatus_t cusparseSparseToDense_bufferSize(cusparseHandle_t, cusparseConstSpMatDescr_t,
                                                  cusparseDnMatDescr_t, cusparseSparseToDenseAlg_t,
                                                  size_t* bytes) {
    *bytes = kWorkspaceBytes;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSparseToDense(cusparseHandle_t, cusparseConstSpMatDescr_t from,
                                       cusparseDnMatDescr_t to, cusparseSparseToDenseAlg_t, void*) {
    begin_call();
    const SparseMatrix& sparse = *own(from);
    const DenseMatrix& dense = *own(to);
    return with_value_type(sparse.type, [&](auto zero) {
        using T = decltype(zero);
        T* values = static_cast<T*>(dense.values);
        for (int64_t j = 0; j < dense.columns; j++)
            for (int64_t i = 0; i < dense.rows; i++)
                values[dense.at(i, j)] = 0;
        for_each_element<T>(sparse,
                            [&](int64_t i, int64_t j, T value) { values[dense.at(i, j)] = value; });
    });
}

cusparseStatus_t cusparseDenseToSparse_bufferSize(cusparseHandle_t, cusparseConstDnMatDescr_t,
                                                  cusparseSpMatDescr_t, cusparseDenseToSparseAlg_t,
                                                  size_t* bytes) {
    *bytes = kWorkspaceBytes;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseDenseToSparse_analysis(cusparseHandle_t, cusparseConstDnMatDescr_t from,
                                                cusparseSpMatDescr_t to, cusparseDenseToSparseAlg_t,
                                                void*) {
    begin_call();
    return with_value_type(own(from)->type, [&](auto zero) {
        using T = decltype(zero);
        own(to)->nonzeros =
            for_each_nonzero<T>(*own(from), *own(to), [](int64_t, int64_t, int64_t, T) {});
    });
}

cusparseStatus_t cusparseDenseToSparse_convert(cusparseHandle_t, cusparseConstDnMatDescr_t from,
                                               cusparseSpMatDescr_t to, cusparseDenseToSparseAlg_t,
                                               void*) {
    begin_call();
    const SparseMatrix& sparse = *own(to);
    return with_value_type(sparse.type, [&](auto zero) {
        using T = decltype(zero);
        for_each_nonzero<T>(*own(from), sparse,
                            [&](int64_t at, int64_t line, int64_t place, T value) {
                                if (sparse.format == CUSPARSE_FORMAT_COO)
                                    sparse.offsets.set(at, line + sparse.base);
                                sparse.indices.set(at, place + sparse.base);
                                static_cast<T*>(sparse.values)[at] = value;
                            });
    });
}

// ---- between sparse formats

cusparseStatus_t cusparseCsr2cscEx2_bufferSize(cusparseHandle_t, int, int, int, const void*,
                                               const int*, const int*, void*, int*, int*,
                                               cudaDataType, cusparseAction_t, cusparseIndexBase_t,
                                               cusparseCsr2CscAlg_t, size_t* bytes) {
    *bytes = kWorkspaceBytes;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseCsr2cscEx2(cusparseHandle_t, int rows, int columns, int nonzeros,
                                    const void* csr_values, const int* row_offsets,
                                    const int* column_of, void* csc_values, int* column_offsets,
                                    int* row_of, cudaDataType type, cusparseAction_t action,
                                    cusparseIndexBase_t base, cusparseCsr2CscAlg_t, void*) {
    begin_call();
    const size_t bytes = element_bytes(type);
    std::vector<int> next(columns + 1, 0);  // where the next element of a column goes
    for (int k = 0; k < nonzeros; k++)
        next[column_of[k] - base + 1]++;
    std::partial_sum(next.begin(), next.end(), next.begin());
    for (int column = 0; column <= columns; column++)
        column_offsets[column] = next[column] + base;
    for (int row = 0; row < rows; row++) {
        for (int k = row_offsets[row] - base; k < row_offsets[row + 1] - base; k++) {
            const int to = next[column_of[k] - base]++;
            row_of[to] = row + base;
            if (action == CUSPARSE_ACTION_NUMERIC)
                memcpy(static_cast<char*>(csc_values) + to * bytes,
                       static_cast<const char*>(csr_values) + k * bytes, bytes);
        }
    }
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseXcoo2csr(cusparseHandle_t, const int* row_of, int nonzeros, int rows,
                                  int* offsets, cusparseIndexBase_t base) {
    begin_call();
    std::fill(offsets, offsets + rows + 1, 0);
    for (int k = 0; k < nonzeros; k++)
        offsets[row_of[k] - base + 1]++;
    std::partial_sum(offsets, offsets + rows + 1, offsets);
    for (int row = 0; row <= rows; row++)
        offsets[row] += base;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseXcsr2coo(cusparseHandle_t, const int* offsets, int, int rows, int* row_of,
                                  cusparseIndexBase_t base) {
    begin_call();
    for (int row = 0; row < rows; row++)
        std::fill(row_of + offsets[row] - base, row_of + offsets[row + 1] - base, row + base);
    return CUSPARSE_STATUS_SUCCESS;
}

// ---- sorts

cusparseStatus_t cusparseCreateIdentityPermutation(cusparseHandle_t, int n, int* permutation) {
    begin_call();
    std::iota(permutation, permutation + n, 0);
    return CUSPARSE_STATUS_SUCCESS;
}

#define DEFINE_SORT_BUFFER(name)                                                   \
    cusparseStatus_t name(cusparseHandle_t, int, int, int, const int*, const int*, \
                          size_t* bytes) {                                         \
        *bytes = kWorkspaceBytes;                                                  \
        return CUSPARSE_STATUS_SUCCESS;                                            \
    }
DEFINE_SORT_BUFFER(cusparseXcsrsort_bufferSizeExt)
DEFINE_SORT_BUFFER(cusparseXcscsort_bufferSizeExt)
DEFINE_SORT_BUFFER(cusparseXcoosort_bufferSizeExt)

cusparseStatus_t cusparseXcsrsort(cusparseHandle_t, int rows, int, int, const cusparseMatDescr_t,
                                  const int* offsets, int* indices, int* permutation, void*) {
    begin_call();
    sort_lines(rows, offsets, indices, permutation);
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseXcscsort(cusparseHandle_t, int, int columns, int, const cusparseMatDescr_t,
                                  const int* offsets, int* indices, int* permutation, void*) {
    begin_call();
    sort_lines(columns, offsets, indices, permutation);
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseXcoosortByRow(cusparseHandle_t, int, int, int nonzeros, int* row_of,
                                       int* column_of, int* permutation, void*) {
    begin_call();
    sort_coordinates(nonzeros, row_of, column_of, permutation);
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseXcoosortByColumn(cusparseHandle_t, int, int, int nonzeros, int* row_of,
                                          int* column_of, int* permutation, void*) {
    begin_call();
    sort_coordinates(nonzeros, column_of, row_of, permutation);
    return CUSPARSE_STATUS_SUCCESS;
}

// ---- C = alpha A + beta B

cusparseStatus_t cusparseXcsrgeam2Nnz(cusparseHandle_t, int rows, int, const cusparseMatDescr_t,
                                      int, const int* offsets_a, const int* indices_a,
                                      const cusparseMatDescr_t, int, const int* offsets_b,
                                      const int* indices_b, const cusparseMatDescr_t, int* offsets,
                                      int* nonzeros, void*) {
    begin_call();
    count(kBlockingLibraryCalls);  // the number comes back to the host
    int total = 0;
    offsets[0] = 0;
    for (int row = 0; row < rows; row++) {
        merge_rows({offsets_a, indices_a}, {offsets_b, indices_b}, row,
                   [&](int, int, int) { total++; });
        offsets[row + 1] = total;
    }
    *nonzeros = total;
    return CUSPARSE_STATUS_SUCCESS;
}

#define DEFINE_ADD(L, CudaT, T)                                                                   \
    cusparseStatus_t cusparse##L##csrgeam2_bufferSizeExt(                                         \
        cusparseHandle_t, int, int, const CudaT*, const cusparseMatDescr_t, int, const CudaT*,    \
        const int*, const int*, const CudaT*, const cusparseMatDescr_t, int, const CudaT*,        \
        const int*, const int*, const cusparseMatDescr_t, const CudaT*, const int*, const int*,   \
        size_t* bytes) {                                                                          \
        *bytes = kWorkspaceBytes;                                                                 \
        return CUSPARSE_STATUS_SUCCESS;                                                           \
    }                                                                                             \
    cusparseStatus_t cusparse##L##csrgeam2(                                                       \
        cusparseHandle_t, int rows, int, const CudaT* alpha, const cusparseMatDescr_t, int,       \
        const CudaT* values_a, const int* offsets_a, const int* indices_a, const CudaT* beta,     \
        const cusparseMatDescr_t, int, const CudaT* values_b, const int* offsets_b,               \
        const int* indices_b, const cusparseMatDescr_t, CudaT* values, int*, int* indices,        \
        void*) {                                                                                  \
        begin_call();                                                                             \
        add<T>(rows, *(const T*)alpha, (const T*)values_a, {offsets_a, indices_a},                \
               *(const T*)beta, (const T*)values_b, {offsets_b, indices_b}, (T*)values, indices); \
        return CUSPARSE_STATUS_SUCCESS;                                                           \
    }
DEFINE_ADD(S, float, float)
DEFINE_ADD(D, double, double)
DEFINE_ADD(C, cuComplex, complex64)
DEFINE_ADD(Z, cuDoubleComplex, complex128)

// ---- removal of small values

#define DEFINE_COMPRESS(L, CudaT, T)                                                          \
    cusparseStatus_t cusparse##L##nnz_compress(                                               \
        cusparseHandle_t, int rows, const cusparseMatDescr_t, const CudaT* values_,           \
        const int* offsets, int* per_row, int* total, CudaT tolerance_) {                     \
        begin_call();                                                                         \
        count(kBlockingLibraryCalls);                                                         \
        const T tolerance = converted<T>(tolerance_), *values = (const T*)values_;            \
        *total = 0;                                                                           \
        for (int row = 0; row < rows; row++) {                                                \
            per_row[row] = std::count_if(values + offsets[row], values + offsets[row + 1],    \
                                         [&](T value) { return is_kept(value, tolerance); }); \
            *total += per_row[row];                                                           \
        }                                                                                     \
        return CUSPARSE_STATUS_SUCCESS;                                                       \
    }                                                                                         \
    cusparseStatus_t cusparse##L##csr2csr_compress(                                           \
        cusparseHandle_t, int rows, int, const cusparseMatDescr_t, const CudaT* values_,      \
        const int* indices, const int* offsets, int, const int*, CudaT* kept_values,          \
        int* kept_indices, int* kept_offsets, CudaT tolerance_) {                             \
        begin_call();                                                                         \
        const T tolerance = converted<T>(tolerance_), *values = (const T*)values_;            \
        int kept = 0;                                                                         \
        kept_offsets[0] = 0;                                                                  \
        for (int row = 0; row < rows; row++) {                                                \
            for (int k = offsets[row]; k < offsets[row + 1]; k++) {                           \
                if (!is_kept(values[k], tolerance)) continue;                                 \
                kept_indices[kept] = indices[k];                                              \
                ((T*)kept_values)[kept++] = values[k];                                        \
            }                                                                                 \
            kept_offsets[row + 1] = kept;                                                     \
        }                                                                                     \
        return CUSPARSE_STATUS_SUCCESS;                                                       \
    }
DEFINE_COMPRESS(S, float, float)
DEFINE_COMPRESS(D, double, double)
DEFINE_COMPRESS(C, cuComplex, complex64)
DEFINE_COMPRESS(Z, cuDoubleComplex, complex128)
}
