// cuBLAS products of mixed or narrow types: widen, multiply, narrow.
#include <array>
#include <cstdlib>
#include <cstring>

#include "cublas_common.h"

using namespace standin;
using host::complex128;
using host::complex64;

namespace {

size_t element_bytes(cudaDataType type) {
    switch (type) {
    case CUDA_R_8I: return 1;
    case CUDA_R_16F:
    case CUDA_R_16BF: return 2;
    case CUDA_R_32F:
    case CUDA_R_32I: return 4;
    case CUDA_R_64F:
    case CUDA_C_32F: return 8;
    case CUDA_C_64F: return 16;
    default: return 0;  // not supported
    }
}

float from_bfloat16(unsigned short half) {
    const unsigned bits = static_cast<unsigned>(half) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

unsigned short to_bfloat16(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // round to nearest, ties to even
}

complex128 load(const void* matrix, cudaDataType type, size_t i) {
    switch (type) {
    case CUDA_R_8I: return static_cast<const signed char*>(matrix)[i];
    case CUDA_R_16F: return static_cast<double>(static_cast<const _Float16*>(matrix)[i]);
    case CUDA_R_16BF: return from_bfloat16(static_cast<const unsigned short*>(matrix)[i]);
    case CUDA_R_32F: return static_cast<const float*>(matrix)[i];
    case CUDA_R_32I: return static_cast<const int*>(matrix)[i];
    case CUDA_R_64F: return static_cast<const double*>(matrix)[i];
    case CUDA_C_32F: return complex128(static_cast<const complex64*>(matrix)[i]);
    case CUDA_C_64F: return static_cast<const complex128*>(matrix)[i];
    default: abort();
    }
}

void store(void* matrix, cudaDataType type, size_t i, complex128 value) {
    const double real = value.real();
    switch (type) {
    case CUDA_R_8I: static_cast<signed char*>(matrix)[i] = static_cast<signed char>(real); break;
    case CUDA_R_16F:
        static_cast<_Float16*>(matrix)[i] = static_cast<_Float16>(static_cast<float>(real));
        break;
    case CUDA_R_16BF: static_cast<unsigned short*>(matrix)[i] = to_bfloat16(real); break;
    case CUDA_R_32F: static_cast<float*>(matrix)[i] = real; break;
    case CUDA_R_32I: static_cast<int*>(matrix)[i] = static_cast<int>(real); break;
    case CUDA_R_64F: static_cast<double*>(matrix)[i] = real; break;
    case CUDA_C_32F: static_cast<complex64*>(matrix)[i] = complex64(value); break;
    case CUDA_C_64F: static_cast<complex128*>(matrix)[i] = value; break;
    default: abort();
    }
}

struct Operand {
    cublasOperation_t operation;
    const void* matrix;
    cudaDataType type;
    int ld;

    complex128 at(size_t i, size_t j) const {
        if (operation == CUBLAS_OP_N) return load(matrix, type, i + j * ld);
        const complex128 value = load(matrix, type, j + i * ld);
        return operation == CUBLAS_OP_C ? std::conj(value) : value;
    }
};

struct Product {
    int m, n, k;
    const void *alpha, *beta;
    Operand a, b;
    void* c;
    cudaDataType c_type;
    int ldc;
    cudaDataType scalar_type;
};

template <class T>
void multiply_uniform(const Product& p) {
    host::gemm(transpose(p.a.operation), transpose(p.b.operation), p.m, p.n, p.k,
               static_cast<const T*>(p.alpha), static_cast<const T*>(p.a.matrix), p.a.ld,
               static_cast<const T*>(p.b.matrix), p.b.ld, static_cast<const T*>(p.beta),
               static_cast<T*>(p.c), p.ldc);
}

void multiply_mixed(const Product& p) {
    const complex128 alpha = load(p.alpha, p.scalar_type, 0), beta = load(p.beta, p.scalar_type, 0);
    std::vector<complex128> column(p.k);
    for (int j = 0; j < p.n; j++) {
        for (int l = 0; l < p.k; l++)
            column[l] = p.b.at(l, j);
        for (int i = 0; i < p.m; i++) {
            complex128 sum = 0;
            for (int l = 0; l < p.k; l++)
                sum += p.a.at(i, l) * column[l];
            const size_t at = i + static_cast<size_t>(j) * p.ldc;
            complex128 value = alpha * sum;
            if (beta != 0.0) value += beta * load(p.c, p.c_type, at);
            store(p.c, p.c_type, at, value);
        }
    }
}

bool is_supported(const Product& p) {
    return element_bytes(p.a.type) && element_bytes(p.b.type) && element_bytes(p.c_type);
}

void multiply(const Product& p) {
    const bool uniform = p.a.type == p.b.type && p.b.type == p.c_type && p.c_type == p.scalar_type;
    if (uniform && p.c_type == CUDA_R_32F)
        multiply_uniform<float>(p);
    else if (uniform && p.c_type == CUDA_R_64F)
        multiply_uniform<double>(p);
    else if (uniform && p.c_type == CUDA_C_32F)
        multiply_uniform<complex64>(p);
    else if (uniform && p.c_type == CUDA_C_64F)
        multiply_uniform<complex128>(p);
    else
        multiply_mixed(p);
}

// A scalar of the host as the call found it: it may be gone when the work runs.
using ScalarBytes = std::array<char, sizeof(complex128)>;

ScalarBytes copied(const void* scalar, cudaDataType type) {
    ScalarBytes bytes;
    memcpy(bytes.data(), scalar, element_bytes(type));
    return bytes;
}

cublasStatus_t multiply_late(cublasHandle_t handle, const Product& given) {
    if (!is_supported(given) || !element_bytes(given.scalar_type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const bool on_host = own(handle).pointer_mode == PointerMode::host;
    ScalarBytes alpha{}, beta{};
    if (on_host) {
        alpha = copied(given.alpha, given.scalar_type);
        beta = copied(given.beta, given.scalar_type);
    }
    late_call(own(handle).stream, [=] {
        Product product = given;
        if (on_host) {
            product.alpha = alpha.data();
            product.beta = beta.data();
        }
        multiply(product);
    });
    return CUBLAS_STATUS_SUCCESS;
}

// The type of alpha and beta.
cudaDataType scalar_type(cublasComputeType_t compute, cudaDataType c_type) {
    switch (compute) {
    case CUBLAS_COMPUTE_16F:
    case CUBLAS_COMPUTE_16F_PEDANTIC: return CUDA_R_16F;
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC: return c_type == CUDA_C_64F ? CUDA_C_64F : CUDA_R_64F;
    case CUBLAS_COMPUTE_32I:
    case CUBLAS_COMPUTE_32I_PEDANTIC: return CUDA_R_32I;
    default: return c_type == CUDA_C_32F ? CUDA_C_32F : CUDA_R_32F;
    }
}

}  // namespace

extern "C" {

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                            int m, int n, int k, const void* alpha, const void* a,
                            cudaDataType a_type, int lda, const void* b, cudaDataType b_type,
                            int ldb, const void* beta, void* c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
    CHECK_SCALAR(handle, alpha)
    return multiply_late(handle, {m,
                                  n,
                                  k,
                                  alpha,
                                  beta,
                                  {ta, a, a_type, lda},
                                  {tb, b, b_type, ldb},
                                  c,
                                  c_type,
                                  ldc,
                                  scalar_type(compute, c_type)});
}

cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                             int m, int n, int k, const float* alpha, const void* a,
                             cudaDataType a_type, int lda, const void* b, cudaDataType b_type,
                             int ldb, const float* beta, void* c, cudaDataType c_type, int ldc) {
    CHECK_SCALAR(handle, alpha)
    return multiply_late(handle, {m,
                                  n,
                                  k,
                                  alpha,
                                  beta,
                                  {ta, a, a_type, lda},
                                  {tb, b, b_type, ldb},
                                  c,
                                  c_type,
                                  ldc,
                                  CUDA_R_32F});
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t ta,
                                          cublasOperation_t tb, int m, int n, int k,
                                          const void* alpha, const void* a, cudaDataType a_type,
                                          int lda, long long stride_a, const void* b,
                                          cudaDataType b_type, int ldb, long long stride_b,
                                          const void* beta, void* c, cudaDataType c_type, int ldc,
                                          long long stride_c, int batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t) {
    CHECK_SCALAR(handle, alpha)
    auto shifted = [](const void* matrix, cudaDataType type, long long elements) {
        return static_cast<const char*>(matrix) +
               elements * static_cast<long long>(element_bytes(type));
    };
    for (int i = 0; i < batch; i++) {
        void* c_i = const_cast<char*>(shifted(c, c_type, stride_c * i));
        const cublasStatus_t status =
            multiply_late(handle, {m,
                                   n,
                                   k,
                                   alpha,
                                   beta,
                                   {ta, shifted(a, a_type, stride_a * i), a_type, lda},
                                   {tb, shifted(b, b_type, stride_b * i), b_type, ldb},
                                   c_i,
                                   c_type,
                                   ldc,
                                   scalar_type(compute, c_type)});
        if (status != CUBLAS_STATUS_SUCCESS) return status;
    }
    return CUBLAS_STATUS_SUCCESS;
}
}
