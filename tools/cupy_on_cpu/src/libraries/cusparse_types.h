// What the descriptors of cuSPARSE hold, and how their elements are reached.
#pragma once

#include <cusparse.h>

#include <complex>
#include <cstdint>
#include <cstdio>
#include <type_traits>

#include "handles.h"

namespace standin {

using complex64 = std::complex<float>;
using complex128 = std::complex<double>;

// The workspace that every function asks for; none is used, but a null one is refused.
constexpr size_t kWorkspaceBytes = 512;

struct IndexArray {
    void* data;
    cusparseIndexType_t type;

    int64_t operator[](int64_t i) const {
        if (type == CUSPARSE_INDEX_64I) return static_cast<int64_t*>(data)[i];
        if (type == CUSPARSE_INDEX_16U) return static_cast<uint16_t*>(data)[i];
        return static_cast<int32_t*>(data)[i];
    }
    void set(int64_t i, int64_t value) const {
        if (type == CUSPARSE_INDEX_64I)
            static_cast<int64_t*>(data)[i] = value;
        else
            static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value);
    }
};

struct SparseMatrix {
    cusparseFormat_t format;  // CSR, CSC or COO
    int64_t rows, columns, nonzeros;
    IndexArray offsets;  // row offsets (CSR), column offsets (CSC), or row of each value (COO)
    IndexArray indices;  // column of each value, or its row (CSC)
    void* values;
    cusparseIndexBase_t base;
    cudaDataType type;
    cusparseFillMode_t fill = CUSPARSE_FILL_MODE_LOWER;
    cusparseDiagType_t diagonal = CUSPARSE_DIAG_TYPE_NON_UNIT;
};

struct DenseMatrix {
    int64_t rows, columns, ld;
    void* values;
    cudaDataType type;
    cusparseOrder_t order;

    int64_t at(int64_t i, int64_t j) const {
        return order == CUSPARSE_ORDER_COL ? i + j * ld : i * ld + j;
    }
};

struct DenseVector {
    int64_t size;
    void* values;
    cudaDataType type;
};

struct SparseVector {
    int64_t size, nonzeros;
    IndexArray indices;
    void* values;
    cusparseIndexBase_t base;
    cudaDataType type;
};

// The descriptor of the functions that came before the generic ones.
struct LegacyDescriptor {
    cusparseMatrixType_t type = CUSPARSE_MATRIX_TYPE_GENERAL;
    cusparseFillMode_t fill = CUSPARSE_FILL_MODE_LOWER;
    cusparseDiagType_t diagonal = CUSPARSE_DIAG_TYPE_NON_UNIT;
    cusparseIndexBase_t base = CUSPARSE_INDEX_BASE_ZERO;
};

inline SparseMatrix* own(cusparseConstSpMatDescr_t d) {
    return const_cast<SparseMatrix*>(reinterpret_cast<const SparseMatrix*>(d));
}
inline DenseMatrix* own(cusparseConstDnMatDescr_t d) {
    return const_cast<DenseMatrix*>(reinterpret_cast<const DenseMatrix*>(d));
}
inline DenseVector* own(cusparseConstDnVecDescr_t d) {
    return const_cast<DenseVector*>(reinterpret_cast<const DenseVector*>(d));
}
inline SparseVector* own(cusparseConstSpVecDescr_t d) {
    return const_cast<SparseVector*>(reinterpret_cast<const SparseVector*>(d));
}
inline SparseMatrix* own(cusparseSpMatDescr_t d) { return reinterpret_cast<SparseMatrix*>(d); }
inline DenseMatrix* own(cusparseDnMatDescr_t d) { return reinterpret_cast<DenseMatrix*>(d); }
inline DenseVector* own(cusparseDnVecDescr_t d) { return reinterpret_cast<DenseVector*>(d); }
inline SparseVector* own(cusparseSpVecDescr_t d) { return reinterpret_cast<SparseVector*>(d); }

inline float conjugate(float x) { return x; }
inline double conjugate(double x) { return x; }
inline complex64 conjugate(complex64 x) { return std::conj(x); }
inline complex128 conjugate(complex128 x) { return std::conj(x); }

inline cusparseStatus_t refuse(const char* why) {
    fprintf(stderr, "[standin] cuSPARSE: %s\n", why);
    return CUSPARSE_STATUS_INVALID_VALUE;
}

// Calls function(T()) with the type that the values have.
template <class Function>
cusparseStatus_t with_value_type(cudaDataType type, Function function) {
    switch (type) {
    case CUDA_R_32F: function(float()); break;
    case CUDA_R_64F: function(double()); break;
    case CUDA_C_32F: function(complex64()); break;
    case CUDA_C_64F: function(complex128()); break;
    default:
        fprintf(stderr, "[standin] cuSPARSE: no values of cudaDataType %d\n",
                static_cast<int>(type));
        return CUSPARSE_STATUS_NOT_SUPPORTED;
    }
    return CUSPARSE_STATUS_SUCCESS;
}

// Calls visit(row, column, value) for every stored element.
template <class T, class Visit>
void for_each_element(const SparseMatrix& matrix, Visit visit) {
    const T* values = static_cast<const T*>(matrix.values);
    if (matrix.format == CUSPARSE_FORMAT_COO) {
        for (int64_t k = 0; k < matrix.nonzeros; k++)
            visit(matrix.offsets[k] - matrix.base, matrix.indices[k] - matrix.base, values[k]);
        return;
    }
    const bool by_row = matrix.format == CUSPARSE_FORMAT_CSR;
    const int64_t lines = by_row ? matrix.rows : matrix.columns;
    for (int64_t line = 0; line < lines; line++) {
        const int64_t end = matrix.offsets[line + 1] - matrix.base;
        for (int64_t k = matrix.offsets[line] - matrix.base; k < end; k++) {
            const int64_t other = matrix.indices[k] - matrix.base;
            if (by_row)
                visit(line, other, values[k]);
            else
                visit(other, line, values[k]);
        }
    }
}

}  // namespace standin
