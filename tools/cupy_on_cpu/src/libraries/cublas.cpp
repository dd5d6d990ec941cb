// The cuBLAS functions that CuPy needs, on the BLAS of the host. Mixed types are in
// cublas_mixed.cpp.
#include "cublas_common.h"

using namespace standin;

namespace {

template <class T>
T dot(int n, const T* x, int incx, const T* y, int incy, bool conjugated) {
    // A negative increment runs from the far end, as in BLAS.
    if (incx < 0) x -= static_cast<long>(n - 1) * incx;
    if (incy < 0) y -= static_cast<long>(n - 1) * incy;
    T sum = 0;
    for (long i = 0; i < n; i++) {
        const T factor = conjugated ? host::conjugate(x[i * incx]) : x[i * incx];
        sum += factor * y[i * incy];
    }
    return sum;
}

float dot(int n, const float* x, int incx, const float* y, int incy, bool) {
    return HOST_BLAS(sdot, n, x, incx, y, incy);
}

double dot(int n, const double* x, int incx, const double* y, int incy, bool) {
    return HOST_BLAS(ddot, n, x, incx, y, incy);
}

// C = alpha op(A) + beta op(B); a matrix with a factor of zero is not read.
template <class T>
void geam(cublasOperation_t ta, cublasOperation_t tb, int m, int n, T alpha, const T* a, int lda,
          T beta, const T* b, int ldb, T* c, int ldc) {
    auto element = [](const T* matrix, int ld, cublasOperation_t op, long i, long j) {
        if (op == CUBLAS_OP_N) return matrix[i + j * ld];
        return op == CUBLAS_OP_T ? matrix[j + i * ld] : host::conjugate(matrix[j + i * ld]);
    };
    for (int j = 0; j < n; j++) {
        for (int i = 0; i < m; i++) {
            T value = 0;
            if (alpha != T(0)) value += alpha * element(a, lda, ta, i, j);
            if (beta != T(0)) value += beta * element(b, ldb, tb, i, j);
            c[i + static_cast<long>(j) * ldc] = value;
        }
    }
}

// C = A diag(x) or diag(x) A.
template <class T>
void dgmm(cublasSideMode_t side, int m, int n, const T* a, int lda, const T* x, int incx, T* c,
          int ldc) {
    for (long j = 0; j < n; j++)
        for (long i = 0; i < m; i++)
            c[i + j * ldc] = a[i + j * lda] * x[(side == CUBLAS_SIDE_LEFT ? i : j) * incx];
}

// Results of reductions go to the host unless the pointer mode is device: then the host waits.
void count_reduction(cublasHandle_t handle) {
    if (own(handle).pointer_mode == PointerMode::host) count(kBlockingLibraryCalls);
}

}  // namespace

extern "C" {

// ---- handles

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
    *handle = reinterpret_cast<cublasHandle_t>(new LibraryHandle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    delete &own(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
    *version = 120900;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    own(handle).stream = stream_of_calls = stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
    *stream = own(handle).stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
    own(handle).pointer_mode = static_cast<PointerMode>(mode);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
    *mode = static_cast<cublasPointerMode_t>(own(handle).pointer_mode);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    own(handle).math_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
    *mode = static_cast<cublasMath_t>(own(handle).math_mode);
    return CUBLAS_STATUS_SUCCESS;
}

// ---- products

#define DEFINE_GEMM(L, CudaT, T)                                                                   \
    cublasStatus_t cublas##L##gemm_v2(cublasHandle_t handle, cublasOperation_t ta,                 \
                                      cublasOperation_t tb, int m, int n, int k,                   \
                                      const CudaT* alpha, const CudaT* a, int lda, const CudaT* b, \
                                      int ldb, const CudaT* beta, CudaT* c, int ldc) {             \
        CHECK_SCALAR(handle, alpha)                                                                \
        const Scalar<T> scale(own(handle), alpha), keep(own(handle), beta);                        \
        late_call(own(handle).stream, [=] {                                                        \
            host::gemm(transpose(ta), transpose(tb), m, n, k, scale.address(), (const T*)a, lda,   \
                       (const T*)b, ldb, keep.address(), (T*)c, ldc);                              \
        });                                                                                        \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }                                                                                              \
    cublasStatus_t cublas##L##gemmStridedBatched(                                                  \
        cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,    \
        const CudaT* alpha, const CudaT* a, int lda, long long stride_a, const CudaT* b, int ldb,  \
        long long stride_b, const CudaT* beta, CudaT* c, int ldc, long long stride_c, int batch) { \
        BEGIN_CALL(handle, alpha)                                                                  \
        for (int i = 0; i < batch; i++)                                                            \
            host::gemm(transpose(ta), transpose(tb), m, n, k, (const T*)alpha,                     \
                       (const T*)a + stride_a * i, lda, (const T*)b + stride_b * i, ldb,           \
                       (const T*)beta, (T*)c + stride_c * i, ldc);                                 \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }                                                                                              \
    cublasStatus_t cublas##L##gemmBatched(                                                         \
        cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,    \
        const CudaT* alpha, const CudaT* const a[], int lda, const CudaT* const b[], int ldb,      \
        const CudaT* beta, CudaT* const c[], int ldc, int batch) {                                 \
        BEGIN_CALL(handle, alpha)                                                                  \
        for (int i = 0; i < batch; i++)                                                            \
            host::gemm(transpose(ta), transpose(tb), m, n, k, (const T*)alpha, (const T*)a[i],     \
                       lda, (const T*)b[i], ldb, (const T*)beta, (T*)c[i], ldc);                   \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }
FOR_EACH_TYPE(DEFINE_GEMM)

#define DEFINE_GEMV(L, CudaT, T)                                                                   \
    cublasStatus_t cublas##L##gemv_v2(cublasHandle_t handle, cublasOperation_t ta, int m, int n,   \
                                      const CudaT* alpha, const CudaT* a, int lda, const CudaT* x, \
                                      int incx, const CudaT* beta, CudaT* y, int incy) {           \
        CHECK_SCALAR(handle, alpha)                                                                \
        const Scalar<T> scale(own(handle), alpha), keep(own(handle), beta);                        \
        late_call(own(handle).stream, [=] {                                                        \
            host::gemv(transpose(ta), m, n, scale.address(), (const T*)a, lda, (const T*)x, incx,  \
                       keep.address(), (T*)y, incy);                                               \
        });                                                                                        \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }
FOR_EACH_TYPE(DEFINE_GEMV)

#define DEFINE_SYRK(L, CudaT, T)                                                             \
    cublasStatus_t cublas##L##syrk_v2(                                                       \
        cublasHandle_t handle, cublasFillMode_t uplo, cublasOperation_t t, int n, int k,     \
        const CudaT* alpha, const CudaT* a, int lda, const CudaT* beta, CudaT* c, int ldc) { \
        BEGIN_CALL(handle, alpha)                                                            \
        host::syrk(triangle(uplo), transpose(t), n, k, (const T*)alpha, (const T*)a, lda,    \
                   (const T*)beta, (T*)c, ldc);                                              \
        return CUBLAS_STATUS_SUCCESS;                                                        \
    }
FOR_EACH_TYPE(DEFINE_SYRK)

#define DEFINE_TRSM(L, CudaT, T)                                                                   \
    cublasStatus_t cublas##L##trsm_v2(cublasHandle_t handle, cublasSideMode_t side_,               \
                                      cublasFillMode_t uplo, cublasOperation_t t,                  \
                                      cublasDiagType_t diag, int m, int n, const CudaT* alpha,     \
                                      const CudaT* a, int lda, CudaT* b, int ldb) {                \
        BEGIN_CALL(handle, alpha)                                                                  \
        host::trsm(side(side_), triangle(uplo), transpose(t), diagonal(diag), m, n,                \
                   (const T*)alpha, (const T*)a, lda, (T*)b, ldb);                                 \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }                                                                                              \
    cublasStatus_t cublas##L##trsmBatched(                                                         \
        cublasHandle_t handle, cublasSideMode_t side_, cublasFillMode_t uplo, cublasOperation_t t, \
        cublasDiagType_t diag, int m, int n, const CudaT* alpha, const CudaT* const a[], int lda,  \
        CudaT* const b[], int ldb, int batch) {                                                    \
        BEGIN_CALL(handle, alpha)                                                                  \
        for (int i = 0; i < batch; i++)                                                            \
            host::trsm(side(side_), triangle(uplo), transpose(t), diagonal(diag), m, n,            \
                       (const T*)alpha, (const T*)a[i], lda, (T*)b[i], ldb);                       \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }
FOR_EACH_TYPE(DEFINE_TRSM)

#define DEFINE_GEAM_DGMM(L, CudaT, T)                                                           \
    cublasStatus_t cublas##L##geam(cublasHandle_t handle, cublasOperation_t ta,                 \
                                   cublasOperation_t tb, int m, int n, const CudaT* alpha,      \
                                   const CudaT* a, int lda, const CudaT* beta, const CudaT* b,  \
                                   int ldb, CudaT* c, int ldc) {                                \
        BEGIN_CALL(handle, alpha)                                                               \
        geam<T>(ta, tb, m, n, *(const T*)alpha, (const T*)a, lda, *(const T*)beta, (const T*)b, \
                ldb, (T*)c, ldc);                                                               \
        return CUBLAS_STATUS_SUCCESS;                                                           \
    }                                                                                           \
    cublasStatus_t cublas##L##dgmm(cublasHandle_t, cublasSideMode_t side, int m, int n,         \
                                   const CudaT* a, int lda, const CudaT* x, int incx, CudaT* c, \
                                   int ldc) {                                                   \
        begin_call();                                                                           \
        dgmm<T>(side, m, n, (const T*)a, lda, (const T*)x, incx, (T*)c, ldc);                   \
        return CUBLAS_STATUS_SUCCESS;                                                           \
    }
FOR_EACH_TYPE(DEFINE_GEAM_DGMM)

// ---- vectors

#define DEFINE_AXPY_SCAL(L, CudaT, T)                                                             \
    cublasStatus_t cublas##L##axpy_v2(cublasHandle_t handle, int n, const CudaT* alpha,           \
                                      const CudaT* x, int incx, CudaT* y, int incy) {             \
        BEGIN_CALL(handle, alpha)                                                                 \
        host::axpy(n, (const T*)alpha, (const T*)x, incx, (T*)y, incy);                           \
        return CUBLAS_STATUS_SUCCESS;                                                             \
    }                                                                                             \
    cublasStatus_t cublas##L##scal_v2(cublasHandle_t handle, int n, const CudaT* alpha, CudaT* x, \
                                      int incx) {                                                 \
        BEGIN_CALL(handle, alpha)                                                                 \
        host::scal(n, (const T*)alpha, (T*)x, incx);                                              \
        return CUBLAS_STATUS_SUCCESS;                                                             \
    }
FOR_EACH_TYPE(DEFINE_AXPY_SCAL)

cublasStatus_t cublasCsscal_v2(cublasHandle_t handle, int n, const float* alpha, cuComplex* x,
                               int incx) {
    BEGIN_CALL(handle, alpha)
    HOST_BLAS(csscal, n, *alpha, x, incx);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasZdscal_v2(cublasHandle_t handle, int n, const double* alpha,
                               cuDoubleComplex* x, int incx) {
    BEGIN_CALL(handle, alpha)
    HOST_BLAS(zdscal, n, *alpha, x, incx);
    return CUBLAS_STATUS_SUCCESS;
}

#define DEFINE_DOT(name, CudaT, T, conjugated)                                                  \
    cublasStatus_t name(cublasHandle_t handle, int n, const CudaT* x, int incx, const CudaT* y, \
                        int incy, CudaT* result) {                                              \
        BEGIN_CALL(handle, result)                                                              \
        count_reduction(handle);                                                                \
        *(T*)result = dot(n, (const T*)x, incx, (const T*)y, incy, conjugated);                 \
        return CUBLAS_STATUS_SUCCESS;                                                           \
    }
DEFINE_DOT(cublasSdot_v2, float, float, false)
DEFINE_DOT(cublasDdot_v2, double, double, false)
DEFINE_DOT(cublasCdotu_v2, cuComplex, host::complex64, false)
DEFINE_DOT(cublasCdotc_v2, cuComplex, host::complex64, true)
DEFINE_DOT(cublasZdotu_v2, cuDoubleComplex, host::complex128, false)
DEFINE_DOT(cublasZdotc_v2, cuDoubleComplex, host::complex128, true)

#define DEFINE_NORM(name, CudaT, Result, function)                                                \
    cublasStatus_t name(cublasHandle_t handle, int n, const CudaT* x, int incx, Result* result) { \
        BEGIN_CALL(handle, result)                                                                \
        count_reduction(handle);                                                                  \
        *result = HOST_BLAS(function, n, x, incx);                                                \
        return CUBLAS_STATUS_SUCCESS;                                                             \
    }
DEFINE_NORM(cublasSnrm2_v2, float, float, snrm2)
DEFINE_NORM(cublasDnrm2_v2, double, double, dnrm2)
DEFINE_NORM(cublasScnrm2_v2, cuComplex, float, scnrm2)
DEFINE_NORM(cublasDznrm2_v2, cuDoubleComplex, double, dznrm2)
DEFINE_NORM(cublasSasum_v2, float, float, sasum)
DEFINE_NORM(cublasDasum_v2, double, double, dasum)
DEFINE_NORM(cublasScasum_v2, cuComplex, float, scasum)
DEFINE_NORM(cublasDzasum_v2, cuDoubleComplex, double, dzasum)

// Fortran's indices: the first is 1, and 0 stands for an empty vector.
#define DEFINE_INDEX(name, CudaT, function)                                                    \
    cublasStatus_t name(cublasHandle_t handle, int n, const CudaT* x, int incx, int* result) { \
        BEGIN_CALL(handle, result)                                                             \
        count_reduction(handle);                                                               \
        *result = n > 0 ? 1 + static_cast<int>(HOST_BLAS(function, n, x, incx)) : 0;           \
        return CUBLAS_STATUS_SUCCESS;                                                          \
    }
DEFINE_INDEX(cublasIsamax_v2, float, isamax)
DEFINE_INDEX(cublasIdamax_v2, double, idamax)
DEFINE_INDEX(cublasIcamax_v2, cuComplex, icamax)
DEFINE_INDEX(cublasIzamax_v2, cuDoubleComplex, izamax)
DEFINE_INDEX(cublasIsamin_v2, float, isamin)
DEFINE_INDEX(cublasIdamin_v2, double, idamin)
DEFINE_INDEX(cublasIcamin_v2, cuComplex, icamin)
DEFINE_INDEX(cublasIzamin_v2, cuDoubleComplex, izamin)

#define DEFINE_GER(name, CudaT, T, function)                                                      \
    cublasStatus_t name(cublasHandle_t handle, int m, int n, const CudaT* alpha, const CudaT* x,  \
                        int incx, const CudaT* y, int incy, CudaT* a, int lda) {                  \
        BEGIN_CALL(handle, alpha)                                                                 \
        HOST_BLAS(function, CblasColMajor, m, n, host::scalar((const T*)alpha), x, incx, y, incy, \
                  a, lda);                                                                        \
        return CUBLAS_STATUS_SUCCESS;                                                             \
    }
DEFINE_GER(cublasSger_v2, float, float, sger)
DEFINE_GER(cublasDger_v2, double, double, dger)
DEFINE_GER(cublasCgeru_v2, cuComplex, host::complex64, cgeru)
DEFINE_GER(cublasCgerc_v2, cuComplex, host::complex64, cgerc)
DEFINE_GER(cublasZgeru_v2, cuDoubleComplex, host::complex128, zgeru)
DEFINE_GER(cublasZgerc_v2, cuDoubleComplex, host::complex128, zgerc)

// ---- batched factorizations

#define DEFINE_BATCHED_LU(L, CudaT, T)                                                             \
    cublasStatus_t cublas##L##getrfBatched(cublasHandle_t, int n, CudaT* const a[], int lda,       \
                                           int* pivots, int* info, int batch) {                    \
        begin_call();                                                                              \
        std::vector<int> unwanted(n);                                                              \
        for (int i = 0; i < batch; i++)                                                            \
            info[i] =                                                                              \
                host::getrf(n, n, (T*)a[i], lda, pivots ? pivots + (long)i * n : unwanted.data()); \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }                                                                                              \
    cublasStatus_t cublas##L##getrsBatched(                                                        \
        cublasHandle_t, cublasOperation_t t, int n, int columns, const CudaT* const a[], int lda,  \
        const int* pivots, CudaT* const b[], int ldb, int* info, int batch) {                      \
        begin_call();                                                                              \
        *info = 0;                                                                                 \
        for (int i = 0; i < batch; i++)                                                            \
            host::getrs("NTC"[t], n, columns, (const T*)a[i], lda, pivots + (long)i * n, (T*)b[i], \
                        ldb);                                                                      \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }                                                                                              \
    cublasStatus_t cublas##L##getriBatched(cublasHandle_t, int n, const CudaT* const a[], int lda, \
                                           const int* pivots, CudaT* const c[], int ldc,           \
                                           int* info, int batch) {                                 \
        begin_call();                                                                              \
        for (int i = 0; i < batch; i++) {                                                          \
            for (long j = 0; j < n; j++)                                                           \
                std::copy_n((const T*)a[i] + j * lda, n, (T*)c[i] + j * ldc);                      \
            info[i] = host::getri(n, (T*)c[i], ldc, pivots + (long)i * n);                         \
        }                                                                                          \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }
FOR_EACH_TYPE(DEFINE_BATCHED_LU)
}
