// What cublas.cpp and cublas_mixed.cpp share.
#pragma once

#include <cublas_v2.h>

#include "handles.h"
#include "host_lapack.h"

inline standin::LibraryHandle& own(cublasHandle_t handle) {
    return *reinterpret_cast<standin::LibraryHandle*>(handle);
}

inline CBLAS_TRANSPOSE transpose(cublasOperation_t operation) {
    if (operation == CUBLAS_OP_N) return CblasNoTrans;
    return operation == CUBLAS_OP_T ? CblasTrans : CblasConjTrans;
}

inline CBLAS_UPLO triangle(cublasFillMode_t mode) {
    return mode == CUBLAS_FILL_MODE_LOWER ? CblasLower : CblasUpper;
}

inline CBLAS_SIDE side(cublasSideMode_t mode) {
    return mode == CUBLAS_SIDE_LEFT ? CblasLeft : CblasRight;
}

inline CBLAS_DIAG diagonal(cublasDiagType_t type) {
    return type == CUBLAS_DIAG_UNIT ? CblasUnit : CblasNonUnit;
}

// Refuses a scalar (alpha, or a result) that is not where the pointer mode says.
#define CHECK_SCALAR(handle, scalar)                                 \
    if (standin::scalar_is_misplaced(own(handle), scalar, __func__)) \
        return CUBLAS_STATUS_EXECUTION_FAILED;

// For a call that runs at once.
#define BEGIN_CALL(handle, scalar) \
    CHECK_SCALAR(handle, scalar)   \
    standin::begin_call();
