// BLAS and LAPACK of the host, overloaded on the element type. Matrices are column-major, as in
// CUDA.
#pragma once

#include <algorithm>
#include <complex>
#include <vector>

#define lapack_complex_float std::complex<float>
#define lapack_complex_double std::complex<double>
#include <cblas.h>
#include <lapacke.h>

// The wheel scipy-openblas32 puts a prefix before every name.
#define HOST_BLAS(name, ...) scipy_cblas_##name(__VA_ARGS__)
#define HOST_LAPACK(name, ...) scipy_LAPACKE_##name(__VA_ARGS__)

namespace host {

using complex64 = std::complex<float>;
using complex128 = std::complex<double>;

template <class T>
struct RealOf {
    using type = T;
};
template <class T>
struct RealOf<std::complex<T>> {
    using type = T;
};
template <class T>
using Real = typename RealOf<T>::type;

inline float conjugate(float x) { return x; }
inline double conjugate(double x) { return x; }
inline complex64 conjugate(complex64 x) { return std::conj(x); }
inline complex128 conjugate(complex128 x) { return std::conj(x); }

// CBLAS takes real scalars by value and complex ones by address.
inline float scalar(const float* x) { return *x; }
inline double scalar(const double* x) { return *x; }
inline const void* scalar(const complex64* x) { return x; }
inline const void* scalar(const complex128* x) { return x; }

#define HOST_DEFINE_BLAS(l, T)                                                                     \
    inline void gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n, int k, const T* alpha,  \
                     const T* a, int lda, const T* b, int ldb, const T* beta, T* c, int ldc) {     \
        if (m > 0 && n > 0)                                                                        \
            HOST_BLAS(l##gemm, CblasColMajor, ta, tb, m, n, k, scalar(alpha), a, lda, b, ldb,      \
                      scalar(beta), c, ldc);                                                       \
    }                                                                                              \
    inline void gemv(CBLAS_TRANSPOSE ta, int m, int n, const T* alpha, const T* a, int lda,        \
                     const T* x, int incx, const T* beta, T* y, int incy) {                        \
        HOST_BLAS(l##gemv, CblasColMajor, ta, m, n, scalar(alpha), a, lda, x, incx, scalar(beta),  \
                  y, incy);                                                                        \
    }                                                                                              \
    inline void axpy(int n, const T* alpha, const T* x, int incx, T* y, int incy) {                \
        HOST_BLAS(l##axpy, n, scalar(alpha), x, incx, y, incy);                                    \
    }                                                                                              \
    inline void scal(int n, const T* alpha, T* x, int incx) {                                      \
        HOST_BLAS(l##scal, n, scalar(alpha), x, incx);                                             \
    }                                                                                              \
    inline void syrk(CBLAS_UPLO uplo, CBLAS_TRANSPOSE t, int n, int k, const T* alpha, const T* a, \
                     int lda, const T* beta, T* c, int ldc) {                                      \
        HOST_BLAS(l##syrk, CblasColMajor, uplo, t, n, k, scalar(alpha), a, lda, scalar(beta), c,   \
                  ldc);                                                                            \
    }                                                                                              \
    inline void trsm(CBLAS_SIDE side, CBLAS_UPLO uplo, CBLAS_TRANSPOSE t, CBLAS_DIAG diag, int m,  \
                     int n, const T* alpha, const T* a, int lda, T* b, int ldb) {                  \
        HOST_BLAS(l##trsm, CblasColMajor, side, uplo, t, diag, m, n, scalar(alpha), a, lda, b,     \
                  ldb);                                                                            \
    }
HOST_DEFINE_BLAS(s, float)
HOST_DEFINE_BLAS(d, double)
HOST_DEFINE_BLAS(c, complex64)
HOST_DEFINE_BLAS(z, complex128)
#undef HOST_DEFINE_BLAS

#define HOST_DEFINE_LU(l, T)                                                                   \
    inline int getrf(int m, int n, T* a, int lda, int* pivots) {                               \
        return HOST_LAPACK(l##getrf, LAPACK_COL_MAJOR, m, n, a, lda, pivots);                  \
    }                                                                                          \
    inline int getrs(char t, int n, int columns, const T* a, int lda, const int* pivots, T* b, \
                     int ldb) {                                                                \
        return HOST_LAPACK(l##getrs, LAPACK_COL_MAJOR, t, n, columns, a, lda, pivots, b, ldb); \
    }                                                                                          \
    inline int getri(int n, T* a, int lda, const int* pivots) {                                \
        return HOST_LAPACK(l##getri, LAPACK_COL_MAJOR, n, a, lda, pivots);                     \
    }                                                                                          \
    inline int potrf(char uplo, int n, T* a, int lda) {                                        \
        return HOST_LAPACK(l##potrf, LAPACK_COL_MAJOR, uplo, n, a, lda);                       \
    }                                                                                          \
    inline int potrs(char uplo, int n, int columns, const T* a, int lda, T* b, int ldb) {      \
        return HOST_LAPACK(l##potrs, LAPACK_COL_MAJOR, uplo, n, columns, a, lda, b, ldb);      \
    }                                                                                          \
    inline int geqrf(int m, int n, T* a, int lda, T* tau) {                                    \
        return HOST_LAPACK(l##geqrf, LAPACK_COL_MAJOR, m, n, a, lda, tau);                     \
    }
HOST_DEFINE_LU(s, float)
HOST_DEFINE_LU(d, double)
HOST_DEFINE_LU(c, complex64)
HOST_DEFINE_LU(z, complex128)
#undef HOST_DEFINE_LU

// q: the prefix of the functions on Q (sor..., cun...); eigen: the symmetric eigenvalue function.
#define HOST_DEFINE_ORTHOGONAL(l, T, q, eigen)                                                     \
    inline int orgqr(int m, int n, int k, T* a, int lda, const T* tau) {                           \
        return HOST_LAPACK(q##gqr, LAPACK_COL_MAJOR, m, n, k, a, lda, tau);                        \
    }                                                                                              \
    inline int ormqr(char side, char t, int m, int n, int k, const T* a, int lda, const T* tau,    \
                     T* c, int ldc) {                                                              \
        return HOST_LAPACK(q##mqr, LAPACK_COL_MAJOR, side, t, m, n, k, a, lda, tau, c, ldc);       \
    }                                                                                              \
    inline int syevd(char job, char uplo, int n, T* a, int lda, Real<T>* w) {                      \
        return HOST_LAPACK(eigen, LAPACK_COL_MAJOR, job, uplo, n, a, lda, w);                      \
    }                                                                                              \
    inline int gesvd(char job_u, char job_vt, int m, int n, T* a, int lda, Real<T>* s, T* u,       \
                     int ldu, T* vt, int ldvt) {                                                   \
        std::vector<Real<T>> superdiagonal(std::max(1, std::min(m, n)));                           \
        return HOST_LAPACK(l##gesvd, LAPACK_COL_MAJOR, job_u, job_vt, m, n, a, lda, s, u, ldu, vt, \
                           ldvt, superdiagonal.data());                                            \
    }
HOST_DEFINE_ORTHOGONAL(s, float, sor, ssyevd)
HOST_DEFINE_ORTHOGONAL(d, double, dor, dsyevd)
HOST_DEFINE_ORTHOGONAL(c, complex64, cun, cheevd)
HOST_DEFINE_ORTHOGONAL(z, complex128, zun, zheevd)
#undef HOST_DEFINE_ORTHOGONAL

}  // namespace host

// Applies a macro to each letter of BLAS, with CUDA's element type and ours.
#define FOR_EACH_TYPE(DEFINE)                 \
    DEFINE(S, float, float)                   \
    DEFINE(D, double, double)                 \
    DEFINE(C, cuComplex, std::complex<float>) \
    DEFINE(Z, cuDoubleComplex, std::complex<double>)
