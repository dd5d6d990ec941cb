// The dense cuSOLVER functions that CuPy needs, on the LAPACK of the host.
#include <cusolverDn.h>
#include <cusolverSp.h>

#include "handles.h"
#include "host_lapack.h"

using namespace standin;

namespace {

// LAPACKE refuses NaN; cuSOLVER does not look, and orgqr may be given uninitialized columns.
__attribute__((constructor)) void allow_nan() { HOST_LAPACK(set_nancheck, 0); }

char triangle(cublasFillMode_t mode) { return mode == CUBLAS_FILL_MODE_LOWER ? 'L' : 'U'; }
char transpose(cublasOperation_t operation) { return "NTC"[operation]; }
char job(cusolverEigMode_t mode) { return mode == CUSOLVER_EIG_MODE_VECTOR ? 'V' : 'N'; }

// LAPACKE brings its own workspace. The size that bufferSize names is asked for at the call, so
// that a caller who forgets the workspace is noticed.
int workspace(int n) { return std::max(1, n); }

// cuSOLVER's Jacobi method returns V, LAPACK its adjoint.
template <class T>
int gesvdj(cusolverEigMode_t mode, int economic, int m, int n, T* a, int lda, host::Real<T>* s,
           T* u, int ldu, T* v, int ldv) {
    const bool vectors = mode == CUSOLVER_EIG_MODE_VECTOR;
    const char job = !vectors ? 'N' : economic ? 'S' : 'A';
    const int rows = economic ? std::min(m, n) : n, ldvt = std::max(1, rows);
    std::vector<T> vt(static_cast<size_t>(ldvt) * std::max(1, n));
    const int info = host::gesvd(job, job, m, n, a, lda, s, u, std::max(1, ldu), vt.data(), ldvt);
    if (vectors)
        for (long i = 0; i < rows; i++)
            for (long j = 0; j < n; j++)
                v[j + i * ldv] = host::conjugate(vt[i + j * ldvt]);
    return info;
}

template <class Handle>
cusolverStatus_t create(Handle* handle) {
    *handle = reinterpret_cast<Handle>(new LibraryHandle);
    return CUSOLVER_STATUS_SUCCESS;
}

template <class Handle>
cusolverStatus_t destroy(Handle handle) {
    delete reinterpret_cast<LibraryHandle*>(handle);
    return CUSOLVER_STATUS_SUCCESS;
}

template <class Handle>
cusolverStatus_t set_stream(Handle handle, cudaStream_t stream) {
    reinterpret_cast<LibraryHandle*>(handle)->stream = stream_of_calls = stream;
    return CUSOLVER_STATUS_SUCCESS;
}

template <class Handle>
cusolverStatus_t get_stream(Handle handle, cudaStream_t* stream) {
    *stream = reinterpret_cast<LibraryHandle*>(handle)->stream;
    return CUSOLVER_STATUS_SUCCESS;
}

}  // namespace

#define REQUIRE_WORKSPACE(given, n) \
    begin_call();                   \
    if ((given) < workspace(n)) return CUSOLVER_STATUS_INVALID_VALUE;

extern "C" {

// ---- handles and parameters

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* handle) { return create(handle); }
cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle) { return destroy(handle); }
cusolverStatus_t cusolverSpCreate(cusolverSpHandle_t* handle) { return create(handle); }
cusolverStatus_t cusolverSpDestroy(cusolverSpHandle_t handle) { return destroy(handle); }
cusolverStatus_t cusolverDnCreateParams(cusolverDnParams_t* params) { return create(params); }
cusolverStatus_t cusolverDnDestroyParams(cusolverDnParams_t params) { return destroy(params); }
cusolverStatus_t cusolverDnCreateSyevjInfo(syevjInfo_t* info) { return create(info); }
cusolverStatus_t cusolverDnDestroySyevjInfo(syevjInfo_t info) { return destroy(info); }
cusolverStatus_t cusolverDnCreateGesvdjInfo(gesvdjInfo_t* info) { return create(info); }
cusolverStatus_t cusolverDnDestroyGesvdjInfo(gesvdjInfo_t info) { return destroy(info); }

cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream) {
    return set_stream(handle, stream);
}
cusolverStatus_t cusolverDnGetStream(cusolverDnHandle_t handle, cudaStream_t* stream) {
    return get_stream(handle, stream);
}
cusolverStatus_t cusolverSpSetStream(cusolverSpHandle_t handle, cudaStream_t stream) {
    return set_stream(handle, stream);
}
cusolverStatus_t cusolverSpGetStream(cusolverSpHandle_t handle, cudaStream_t* stream) {
    return get_stream(handle, stream);
}

cusolverStatus_t cusolverGetProperty(libraryPropertyType property, int* value) {
    *value = property == MAJOR_VERSION ? 11 : property == MINOR_VERSION ? 7 : 5;
    return CUSOLVER_STATUS_SUCCESS;
}

// LAPACK iterates until it has converged, and sorts.
cusolverStatus_t cusolverDnXsyevjSetTolerance(syevjInfo_t, double) {
    return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnXsyevjSetMaxSweeps(syevjInfo_t, int) { return CUSOLVER_STATUS_SUCCESS; }
cusolverStatus_t cusolverDnXsyevjSetSortEig(syevjInfo_t, int) { return CUSOLVER_STATUS_SUCCESS; }
cusolverStatus_t cusolverDnXgesvdjSetTolerance(gesvdjInfo_t, double) {
    return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnXgesvdjSetMaxSweeps(gesvdjInfo_t, int) {
    return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnXgesvdjSetSortEig(gesvdjInfo_t, int) { return CUSOLVER_STATUS_SUCCESS; }

// ---- Cholesky

#define DEFINE_CHOLESKY(L, CudaT, T)                                                               \
    cusolverStatus_t cusolverDn##L##potrf_bufferSize(cusolverDnHandle_t, cublasFillMode_t, int n,  \
                                                     CudaT*, int, int* size) {                     \
        *size = workspace(n);                                                                      \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    cusolverStatus_t cusolverDn##L##potrf(cusolverDnHandle_t, cublasFillMode_t uplo, int n,        \
                                          CudaT* a, int lda, CudaT*, int size, int* info) {        \
        REQUIRE_WORKSPACE(size, n)                                                                 \
        *info = host::potrf(triangle(uplo), n, (T*)a, lda);                                        \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    cusolverStatus_t cusolverDn##L##potrs(cusolverDnHandle_t, cublasFillMode_t uplo, int n,        \
                                          int columns, const CudaT* a, int lda, CudaT* b, int ldb, \
                                          int* info) {                                             \
        begin_call();                                                                              \
        *info = host::potrs(triangle(uplo), n, columns, (const T*)a, lda, (T*)b, ldb);             \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    cusolverStatus_t cusolverDn##L##potrfBatched(cusolverDnHandle_t, cublasFillMode_t uplo, int n, \
                                                 CudaT* a[], int lda, int* info, int batch) {      \
        begin_call();                                                                              \
        for (int i = 0; i < batch; i++)                                                            \
            info[i] = host::potrf(triangle(uplo), n, (T*)a[i], lda);                               \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    cusolverStatus_t cusolverDn##L##potrsBatched(cusolverDnHandle_t, cublasFillMode_t uplo, int n, \
                                                 int columns, CudaT* a[], int lda, CudaT* b[],     \
                                                 int ldb, int* info, int batch) {                  \
        begin_call();                                                                              \
        *info = 0;                                                                                 \
        for (int i = 0; i < batch; i++)                                                            \
            host::potrs(triangle(uplo), n, columns, (const T*)a[i], lda, (T*)b[i], ldb);           \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }
FOR_EACH_TYPE(DEFINE_CHOLESKY)

// ---- LU

#define DEFINE_LU(L, CudaT, T)                                                                     \
    cusolverStatus_t cusolverDn##L##getrf_bufferSize(cusolverDnHandle_t, int, int n, CudaT*, int,  \
                                                     int* size) {                                  \
        *size = workspace(n);                                                                      \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    cusolverStatus_t cusolverDn##L##getrf(cusolverDnHandle_t, int m, int n, CudaT* a, int lda,     \
                                          CudaT*, int* pivots, int* info) {                        \
        begin_call();                                                                              \
        std::vector<int> unwanted(std::max(1, std::min(m, n)));                                    \
        *info = host::getrf(m, n, (T*)a, lda, pivots ? pivots : unwanted.data());                  \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    cusolverStatus_t cusolverDn##L##getrs(cusolverDnHandle_t, cublasOperation_t t, int n,          \
                                          int columns, const CudaT* a, int lda, const int* pivots, \
                                          CudaT* b, int ldb, int* info) {                          \
        begin_call();                                                                              \
        *info = host::getrs(transpose(t), n, columns, (const T*)a, lda, pivots, (T*)b, ldb);       \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }
FOR_EACH_TYPE(DEFINE_LU)

// ---- QR; complex Q is called un..., real Q or...

#define DEFINE_QR(L, CudaT, T, MakeQ, ApplyQ)                                                     \
    cusolverStatus_t cusolverDn##L##geqrf_bufferSize(cusolverDnHandle_t, int, int n, CudaT*, int, \
                                                     int* size) {                                 \
        *size = workspace(n);                                                                     \
        return CUSOLVER_STATUS_SUCCESS;                                                           \
    }                                                                                             \
    cusolverStatus_t cusolverDn##L##geqrf(cusolverDnHandle_t, int m, int n, CudaT* a, int lda,    \
                                          CudaT* tau, CudaT*, int size, int* info) {              \
        REQUIRE_WORKSPACE(size, n)                                                                \
        *info = host::geqrf(m, n, (T*)a, lda, (T*)tau);                                           \
        return CUSOLVER_STATUS_SUCCESS;                                                           \
    }                                                                                             \
    cusolverStatus_t cusolverDn##L##MakeQ##_bufferSize(                                           \
        cusolverDnHandle_t, int, int n, int, const CudaT*, int, const CudaT*, int* size) {        \
        *size = workspace(n);                                                                     \
        return CUSOLVER_STATUS_SUCCESS;                                                           \
    }                                                                                             \
    cusolverStatus_t cusolverDn##L##MakeQ(cusolverDnHandle_t, int m, int n, int k, CudaT* a,      \
                                          int lda, const CudaT* tau, CudaT*, int size,            \
                                          int* info) {                                            \
        REQUIRE_WORKSPACE(size, n)                                                                \
        *info = host::orgqr(m, n, k, (T*)a, lda, (const T*)tau);                                  \
        return CUSOLVER_STATUS_SUCCESS;                                                           \
    }                                                                                             \
    cusolverStatus_t cusolverDn##L##ApplyQ##_bufferSize(                                          \
        cusolverDnHandle_t, cublasSideMode_t, cublasOperation_t, int, int n, int, const CudaT*,   \
        int, const CudaT*, const CudaT*, int, int* size) {                                        \
        *size = workspace(n);                                                                     \
        return CUSOLVER_STATUS_SUCCESS;                                                           \
    }                                                                                             \
    cusolverStatus_t cusolverDn##L##ApplyQ(cusolverDnHandle_t, cublasSideMode_t side,             \
                                           cublasOperation_t t, int m, int n, int k,              \
                                           const CudaT* a, int lda, const CudaT* tau, CudaT* c,   \
                                           int ldc, CudaT*, int size, int* info) {                \
        REQUIRE_WORKSPACE(size, n)                                                                \
        *info = host::ormqr(side == CUBLAS_SIDE_LEFT ? 'L' : 'R', transpose(t), m, n, k,          \
                            (const T*)a, lda, (const T*)tau, (T*)c, ldc);                         \
        return CUSOLVER_STATUS_SUCCESS;                                                           \
    }
DEFINE_QR(S, float, float, orgqr, ormqr)
DEFINE_QR(D, double, double, orgqr, ormqr)
DEFINE_QR(C, cuComplex, host::complex64, ungqr, unmqr)
DEFINE_QR(Z, cuDoubleComplex, host::complex128, ungqr, unmqr)

// ---- symmetric and Hermitian eigenvalues: divide and conquer, and Jacobi

#define DEFINE_EIGEN(L, CudaT, T, Divide, Jacobi)                                               \
    cusolverStatus_t cusolverDn##L##Divide##_bufferSize(cusolverDnHandle_t, cusolverEigMode_t,  \
                                                        cublasFillMode_t, int n, const CudaT*,  \
                                                        int, const host::Real<T>*, int* size) { \
        *size = workspace(n);                                                                   \
        return CUSOLVER_STATUS_SUCCESS;                                                         \
    }                                                                                           \
    cusolverStatus_t cusolverDn##L##Divide(cusolverDnHandle_t, cusolverEigMode_t mode,          \
                                           cublasFillMode_t uplo, int n, CudaT* a, int lda,     \
                                           host::Real<T>* w, CudaT*, int size, int* info) {     \
        REQUIRE_WORKSPACE(size, n)                                                              \
        *info = host::syevd(job(mode), triangle(uplo), n, (T*)a, lda, w);                       \
        return CUSOLVER_STATUS_SUCCESS;                                                         \
    }                                                                                           \
    cusolverStatus_t cusolverDn##L##Jacobi##_bufferSize(                                        \
        cusolverDnHandle_t, cusolverEigMode_t, cublasFillMode_t, int n, const CudaT*, int,      \
        const host::Real<T>*, int* size, syevjInfo_t) {                                         \
        *size = workspace(n);                                                                   \
        return CUSOLVER_STATUS_SUCCESS;                                                         \
    }                                                                                           \
    cusolverStatus_t cusolverDn##L##Jacobi(                                                     \
        cusolverDnHandle_t, cusolverEigMode_t mode, cublasFillMode_t uplo, int n, CudaT* a,     \
        int lda, host::Real<T>* w, CudaT*, int size, int* info, syevjInfo_t) {                  \
        REQUIRE_WORKSPACE(size, n)                                                              \
        *info = host::syevd(job(mode), triangle(uplo), n, (T*)a, lda, w);                       \
        return CUSOLVER_STATUS_SUCCESS;                                                         \
    }                                                                                           \
    cusolverStatus_t cusolverDn##L##Jacobi##Batched_bufferSize(                                 \
        cusolverDnHandle_t, cusolverEigMode_t, cublasFillMode_t, int n, const CudaT*, int,      \
        const host::Real<T>*, int* size, syevjInfo_t, int) {                                    \
        *size = workspace(n);                                                                   \
        return CUSOLVER_STATUS_SUCCESS;                                                         \
    }                                                                                           \
    cusolverStatus_t cusolverDn##L##Jacobi##Batched(                                            \
        cusolverDnHandle_t, cusolverEigMode_t mode, cublasFillMode_t uplo, int n, CudaT* a,     \
        int lda, host::Real<T>* w, CudaT*, int size, int* info, syevjInfo_t, int batch) {       \
        REQUIRE_WORKSPACE(size, n)                                                              \
        for (long i = 0; i < batch; i++)                                                        \
            info[i] =                                                                           \
                host::syevd(job(mode), triangle(uplo), n, (T*)a + i * lda * n, lda, w + i * n); \
        return CUSOLVER_STATUS_SUCCESS;                                                         \
    }
DEFINE_EIGEN(S, float, float, syevd, syevj)
DEFINE_EIGEN(D, double, double, syevd, syevj)
DEFINE_EIGEN(C, cuComplex, host::complex64, heevd, heevj)
DEFINE_EIGEN(Z, cuDoubleComplex, host::complex128, heevd, heevj)

cusolverStatus_t cusolverDnXsyevd_bufferSize(cusolverDnHandle_t, cusolverDnParams_t,
                                             cusolverEigMode_t, cublasFillMode_t, int64_t n,
                                             cudaDataType, const void*, int64_t, cudaDataType,
                                             const void*, cudaDataType, size_t* device_bytes,
                                             size_t* host_bytes) {
    *device_bytes = 16 * std::max<int64_t>(1, n);
    *host_bytes = 0;
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnXsyevd(cusolverDnHandle_t, cusolverDnParams_t, cusolverEigMode_t mode,
                                  cublasFillMode_t uplo, int64_t n, cudaDataType type, void* a,
                                  int64_t lda, cudaDataType, void* w, cudaDataType, void*, size_t,
                                  void*, size_t, int* info) {
    begin_call();
    switch (type) {
    case CUDA_R_32F:
        *info = host::syevd(job(mode), triangle(uplo), n, (float*)a, lda, (float*)w);
        break;
    case CUDA_R_64F:
        *info = host::syevd(job(mode), triangle(uplo), n, (double*)a, lda, (double*)w);
        break;
    case CUDA_C_32F:
        *info = host::syevd(job(mode), triangle(uplo), n, (host::complex64*)a, lda, (float*)w);
        break;
    case CUDA_C_64F:
        *info = host::syevd(job(mode), triangle(uplo), n, (host::complex128*)a, lda, (double*)w);
        break;
    default: return CUSOLVER_STATUS_NOT_SUPPORTED;
    }
    return CUSOLVER_STATUS_SUCCESS;
}

// ---- singular values: QR, and Jacobi

#define DEFINE_SVD(L, CudaT, T)                                                                    \
    cusolverStatus_t cusolverDn##L##gesvd_bufferSize(cusolverDnHandle_t, int, int n, int* size) {  \
        *size = workspace(n);                                                                      \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    cusolverStatus_t cusolverDn##L##gesvd(cusolverDnHandle_t, signed char job_u,                   \
                                          signed char job_vt, int m, int n, CudaT* a, int lda,     \
                                          host::Real<T>* s, CudaT* u, int ldu, CudaT* vt,          \
                                          int ldvt, CudaT*, int size, host::Real<T>*, int* info) { \
        REQUIRE_WORKSPACE(size, n)                                                                 \
        if (m < n) return CUSOLVER_STATUS_INVALID_VALUE;                                           \
        *info = host::gesvd(job_u, job_vt, m, n, (T*)a, lda, s, (T*)u, std::max(1, ldu), (T*)vt,   \
                            std::max(1, ldvt));                                                    \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    cusolverStatus_t cusolverDn##L##gesvdj_bufferSize(                                             \
        cusolverDnHandle_t, cusolverEigMode_t, int, int, int n, const CudaT*, int,                 \
        const host::Real<T>*, const CudaT*, int, const CudaT*, int, int* size, gesvdjInfo_t) {     \
        *size = workspace(n);                                                                      \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    cusolverStatus_t cusolverDn##L##gesvdj(cusolverDnHandle_t, cusolverEigMode_t mode,             \
                                           int economic, int m, int n, CudaT* a, int lda,          \
                                           host::Real<T>* s, CudaT* u, int ldu, CudaT* v, int ldv, \
                                           CudaT*, int size, int* info, gesvdjInfo_t) {            \
        REQUIRE_WORKSPACE(size, n)                                                                 \
        *info = gesvdj(mode, economic, m, n, (T*)a, lda, s, (T*)u, ldu, (T*)v, ldv);               \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    cusolverStatus_t cusolverDn##L##gesvdjBatched_bufferSize(                                      \
        cusolverDnHandle_t, cusolverEigMode_t, int, int n, const CudaT*, int,                      \
        const host::Real<T>*, const CudaT*, int, const CudaT*, int, int* size, gesvdjInfo_t,       \
        int) {                                                                                     \
        *size = workspace(n);                                                                      \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }                                                                                              \
    cusolverStatus_t cusolverDn##L##gesvdjBatched(                                                 \
        cusolverDnHandle_t, cusolverEigMode_t mode, int m, int n, CudaT* a, int lda,               \
        host::Real<T>* s, CudaT* u, int ldu, CudaT* v, int ldv, CudaT*, int size, int* info,       \
        gesvdjInfo_t, int batch) {                                                                 \
        REQUIRE_WORKSPACE(size, n)                                                                 \
        if (m > 32 || n > 32) return CUSOLVER_STATUS_INVALID_VALUE;                                \
        for (long i = 0; i < batch; i++)                                                           \
            info[i] = gesvdj(mode, 0, m, n, (T*)a + i * lda * n, lda, s + i * std::min(m, n),      \
                             (T*)u + i * ldu * m, ldu, (T*)v + i * ldv * n, ldv);                  \
        return CUSOLVER_STATUS_SUCCESS;                                                            \
    }
FOR_EACH_TYPE(DEFINE_SVD)
}
