// cuSPARSE: products of sparse matrices with vectors and matrices, triangular solves.
#include <map>
#include <utility>
#include <vector>

#include "cusparse_types.h"

using namespace standin;

namespace {

// The product of two sparse matrices, between compute and copy.
struct SparseProduct {
    std::vector<int64_t> offsets;
    std::vector<int64_t> indices;
    std::vector<complex128> values;
};

bool transposed(cusparseOperation_t operation) {
    return operation != CUSPARSE_OPERATION_NON_TRANSPOSE;
}

template <class T>
T applied(cusparseOperation_t operation, T value) {
    return operation == CUSPARSE_OPERATION_CONJUGATE_TRANSPOSE ? conjugate(value) : value;
}

// y = beta y; a factor of zero does not read y, which may be uninitialized.
template <class T>
void scale(T& y, T beta) {
    y = beta == T(0) ? T(0) : beta * y;
}

template <class T>
void multiply_vector(cusparseOperation_t operation, T alpha, const SparseMatrix& a, const T* x,
                     T* y) {
    if (operation == CUSPARSE_OPERATION_NON_TRANSPOSE && a.format == CUSPARSE_FORMAT_CSR) {
        // Sums a row before it scales it, as one expects of a row-wise product.
        const T* values = static_cast<const T*>(a.values);
        for (int64_t row = 0; row < a.rows; row++) {
            T sum = 0;
            for (int64_t k = a.offsets[row] - a.base; k < a.offsets[row + 1] - a.base; k++)
                sum += values[k] * x[a.indices[k] - a.base];
            y[row] += alpha * sum;
        }
        return;
    }
    for_each_element<T>(a, [&](int64_t i, int64_t j, T value) {
        if (transposed(operation)) std::swap(i, j);
        y[i] += alpha * applied(operation, value) * x[j];
    });
}

template <class T>
void multiply_matrix(cusparseOperation_t op_a, cusparseOperation_t op_b, T alpha,
                     const SparseMatrix& a, const DenseMatrix& b, const DenseMatrix& c) {
    const bool turned_b = transposed(op_b);
    const int64_t step_b = turned_b ? b.at(1, 0) : b.at(0, 1), step_c = c.at(0, 1);
    for_each_element<T>(a, [&](int64_t i, int64_t j, T value) {
        if (transposed(op_a)) std::swap(i, j);
        const T factor = alpha * applied(op_a, value);
        const T* from = static_cast<const T*>(b.values) + (turned_b ? b.at(0, j) : b.at(j, 0));
        T* to = static_cast<T*>(c.values) + c.at(i, 0);
        for (int64_t k = 0; k < c.columns; k++)
            to[k * step_c] += factor * applied(op_b, from[k * step_b]);
    });
}

complex128 element(const void* values, cudaDataType type, int64_t i) {
    complex128 result;
    with_value_type(type, [&](auto zero) {
        result = complex128(static_cast<const decltype(zero)*>(values)[i]);
    });
    return result;
}

void set_element(void* values, cudaDataType type, int64_t i, complex128 value) {
    with_value_type(type, [&](auto zero) {
        using T = decltype(zero);
        if constexpr (std::is_floating_point_v<T>)
            static_cast<T*>(values)[i] = static_cast<T>(value.real());
        else
            static_cast<T*>(values)[i] = T(value);
    });
}

void multiply_sparse(complex128 alpha, const SparseMatrix& a, const SparseMatrix& b,
                     SparseProduct& product) {
    product = {{0}, {}, {}};
    for (int64_t i = 0; i < a.rows; i++) {
        std::map<int64_t, complex128> row;  // by column, so that the result is sorted
        for (int64_t k = a.offsets[i] - a.base; k < a.offsets[i + 1] - a.base; k++) {
            const int64_t j = a.indices[k] - a.base;
            const complex128 factor = element(a.values, a.type, k);
            for (int64_t l = b.offsets[j] - b.base; l < b.offsets[j + 1] - b.base; l++)
                row[b.indices[l] - b.base] += factor * element(b.values, b.type, l);
        }
        for (const auto& [column, value] : row) {
            product.indices.push_back(column);
            product.values.push_back(alpha * value);
        }
        product.offsets.push_back(product.indices.size());
    }
}

// The triangle of op(A) that a solve uses, row by row.
template <class T>
std::vector<std::vector<std::pair<int64_t, T>>> triangle_rows(cusparseOperation_t operation,
                                                              const SparseMatrix& a) {
    std::vector<std::vector<std::pair<int64_t, T>>> rows(a.rows);
    for_each_element<T>(a, [&](int64_t i, int64_t j, T value) {
        const bool outside = a.fill == CUSPARSE_FILL_MODE_LOWER ? j > i : j < i;
        if (outside) return;
        if (transposed(operation)) std::swap(i, j);
        rows[i].push_back({j, applied(operation, value)});
    });
    return rows;
}

template <class T>
void solve_triangle(cusparseOperation_t op_a, cusparseOperation_t op_b, T alpha,
                    const SparseMatrix& a, const DenseMatrix& b, const DenseMatrix& c) {
    const auto rows = triangle_rows<T>(op_a, a);
    const bool forward = (a.fill == CUSPARSE_FILL_MODE_LOWER) != transposed(op_a);
    const bool unit = a.diagonal == CUSPARSE_DIAG_TYPE_UNIT;
    const T* from = static_cast<const T*>(b.values);
    T* x = static_cast<T*>(c.values);
    for (int64_t column = 0; column < c.columns; column++) {
        for (int64_t step = 0; step < a.rows; step++) {
            const int64_t i = forward ? step : a.rows - 1 - step;
            const T right = from[transposed(op_b) ? b.at(column, i) : b.at(i, column)];
            T value = alpha * applied(op_b, right), pivot = 1;
            for (const auto& [j, factor] : rows[i]) {
                if (j != i)
                    value -= factor * x[c.at(j, column)];
                else if (!unit)
                    pivot = factor;
            }
            x[c.at(i, column)] = value / pivot;
        }
    }
}

}  // namespace

extern "C" {

// ---- sparse times vector

cusparseStatus_t cusparseSpMV_bufferSize(cusparseHandle_t, cusparseOperation_t, const void*,
                                         cusparseConstSpMatDescr_t, cusparseConstDnVecDescr_t,
                                         const void*, cusparseDnVecDescr_t, cudaDataType,
                                         cusparseSpMVAlg_t, size_t* bytes) {
    *bytes = kWorkspaceBytes;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSpMV(cusparseHandle_t, cusparseOperation_t operation, const void* alpha,
                              cusparseConstSpMatDescr_t matrix, cusparseConstDnVecDescr_t vector,
                              const void* beta, cusparseDnVecDescr_t result, cudaDataType compute,
                              cusparseSpMVAlg_t, void* workspace) {
    begin_call();
    const SparseMatrix& a = *own(matrix);
    const DenseVector &x = *own(vector), &y = *own(result);
    if (!workspace) return refuse("SpMV: no workspace");
    if (a.type != x.type || x.type != y.type || y.type != compute)
        return refuse("SpMV: the value types differ");
    const bool turned = transposed(operation);
    if (x.size != (turned ? a.rows : a.columns) || y.size != (turned ? a.columns : a.rows))
        return refuse("SpMV: the sizes do not fit");
    return with_value_type(a.type, [&](auto zero) {
        using T = decltype(zero);
        T* to = static_cast<T*>(y.values);
        for (int64_t i = 0; i < y.size; i++)
            scale(to[i], *static_cast<const T*>(beta));
        multiply_vector<T>(operation, *static_cast<const T*>(alpha), a,
                           static_cast<const T*>(x.values), to);
    });
}

// ---- sparse times dense

cusparseStatus_t cusparseSpMM_bufferSize(cusparseHandle_t, cusparseOperation_t, cusparseOperation_t,
                                         const void*, cusparseConstSpMatDescr_t,
                                         cusparseConstDnMatDescr_t, const void*,
                                         cusparseDnMatDescr_t, cudaDataType, cusparseSpMMAlg_t,
                                         size_t* bytes) {
    *bytes = kWorkspaceBytes;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSpMM(cusparseHandle_t, cusparseOperation_t op_a, cusparseOperation_t op_b,
                              const void* alpha, cusparseConstSpMatDescr_t sparse,
                              cusparseConstDnMatDescr_t dense, const void* beta,
                              cusparseDnMatDescr_t result, cudaDataType compute, cusparseSpMMAlg_t,
                              void* workspace) {
    begin_call();
    const SparseMatrix& a = *own(sparse);
    const DenseMatrix &b = *own(dense), &c = *own(result);
    if (!workspace) return refuse("SpMM: no workspace");
    if (a.type != b.type || b.type != c.type || c.type != compute)
        return refuse("SpMM: the value types differ");
    const bool turned_a = transposed(op_a), turned_b = transposed(op_b);
    if ((turned_a ? a.columns : a.rows) != c.rows || (turned_b ? b.rows : b.columns) != c.columns ||
        (turned_a ? a.rows : a.columns) != (turned_b ? b.columns : b.rows))
        return refuse("SpMM: the sizes do not fit");
    return with_value_type(a.type, [&](auto zero) {
        using T = decltype(zero);
        T* to = static_cast<T*>(c.values);
        for (int64_t j = 0; j < c.columns; j++)
            for (int64_t i = 0; i < c.rows; i++)
                scale(to[c.at(i, j)], *static_cast<const T*>(beta));
        multiply_matrix<T>(op_a, op_b, *static_cast<const T*>(alpha), a, b, c);
    });
}

// ---- sparse times sparse

cusparseStatus_t cusparseSpGEMM_createDescr(cusparseSpGEMMDescr_t* descriptor) {
    *descriptor = reinterpret_cast<cusparseSpGEMMDescr_t>(new SparseProduct);
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSpGEMM_destroyDescr(cusparseSpGEMMDescr_t descriptor) {
    delete reinterpret_cast<SparseProduct*>(descriptor);
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSpGEMM_workEstimation(cusparseHandle_t, cusparseOperation_t,
                                               cusparseOperation_t, const void*,
                                               cusparseConstSpMatDescr_t, cusparseConstSpMatDescr_t,
                                               const void*, cusparseSpMatDescr_t, cudaDataType,
                                               cusparseSpGEMMAlg_t, cusparseSpGEMMDescr_t,
                                               size_t* bytes, void*) {
    *bytes = kWorkspaceBytes;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSpGEMM_compute(cusparseHandle_t, cusparseOperation_t op_a,
                                        cusparseOperation_t op_b, const void* alpha,
                                        cusparseConstSpMatDescr_t left,
                                        cusparseConstSpMatDescr_t right, const void*,
                                        cusparseSpMatDescr_t result, cudaDataType compute,
                                        cusparseSpGEMMAlg_t, cusparseSpGEMMDescr_t descriptor,
                                        size_t* bytes, void* workspace) {
    if (!workspace) {  // the first of two calls asks for the size
        *bytes = kWorkspaceBytes;
        return CUSPARSE_STATUS_SUCCESS;
    }
    begin_call();
    const SparseMatrix &a = *own(left), &b = *own(right);
    const bool supported = !transposed(op_a) && !transposed(op_b) &&
                           a.format == CUSPARSE_FORMAT_CSR && b.format == CUSPARSE_FORMAT_CSR;
    if (!supported) return CUSPARSE_STATUS_NOT_SUPPORTED;
    auto& product = *reinterpret_cast<SparseProduct*>(descriptor);
    multiply_sparse(element(alpha, compute, 0), a, b, product);
    own(result)->nonzeros = product.indices.size();
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSpGEMM_copy(cusparseHandle_t, cusparseOperation_t, cusparseOperation_t,
                                     const void*, cusparseConstSpMatDescr_t,
                                     cusparseConstSpMatDescr_t, const void*,
                                     cusparseSpMatDescr_t result, cudaDataType, cusparseSpGEMMAlg_t,
                                     cusparseSpGEMMDescr_t descriptor) {
    begin_call();
    const SparseMatrix& c = *own(result);
    const auto& product = *reinterpret_cast<SparseProduct*>(descriptor);
    for (size_t i = 0; i < product.offsets.size(); i++)
        c.offsets.set(i, product.offsets[i] + c.base);
    for (size_t k = 0; k < product.indices.size(); k++) {
        c.indices.set(k, product.indices[k] + c.base);
        set_element(c.values, c.type, k, product.values[k]);
    }
    return CUSPARSE_STATUS_SUCCESS;
}

// ---- triangular solves

cusparseStatus_t cusparseSpSM_createDescr(cusparseSpSMDescr_t* descriptor) {
    *descriptor = reinterpret_cast<cusparseSpSMDescr_t>(new LibraryHandle);
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSpSM_destroyDescr(cusparseSpSMDescr_t descriptor) {
    delete reinterpret_cast<LibraryHandle*>(descriptor);
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSpSM_bufferSize(cusparseHandle_t, cusparseOperation_t, cusparseOperation_t,
                                         const void*, cusparseConstSpMatDescr_t,
                                         cusparseConstDnMatDescr_t, cusparseDnMatDescr_t,
                                         cudaDataType, cusparseSpSMAlg_t, cusparseSpSMDescr_t,
                                         size_t* bytes) {
    *bytes = kWorkspaceBytes;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSpSM_analysis(cusparseHandle_t, cusparseOperation_t, cusparseOperation_t,
                                       const void*, cusparseConstSpMatDescr_t,
                                       cusparseConstDnMatDescr_t, cusparseDnMatDescr_t,
                                       cudaDataType, cusparseSpSMAlg_t, cusparseSpSMDescr_t,
                                       void*) {
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSpSM_solve(cusparseHandle_t, cusparseOperation_t op_a,
                                    cusparseOperation_t op_b, const void* alpha,
                                    cusparseConstSpMatDescr_t matrix,
                                    cusparseConstDnMatDescr_t right, cusparseDnMatDescr_t result,
                                    cudaDataType, cusparseSpSMAlg_t, cusparseSpSMDescr_t) {
    begin_call();
    return with_value_type(own(matrix)->type, [&](auto zero) {
        using T = decltype(zero);
        solve_triangle<T>(op_a, op_b, *static_cast<const T*>(alpha), *own(matrix), *own(right),
                          *own(result));
    });
}

cusparseStatus_t cusparseGather(cusparseHandle_t, cusparseConstDnVecDescr_t dense,
                                cusparseSpVecDescr_t sparse) {
    begin_call();
    const DenseVector& y = *own(dense);
    const SparseVector& x = *own(sparse);
    return with_value_type(x.type, [&](auto zero) {
        using T = decltype(zero);
        for (int64_t k = 0; k < x.nonzeros; k++)
            static_cast<T*>(x.values)[k] = static_cast<const T*>(y.values)[x.indices[k] - x.base];
    });
}
}
