// cuSPARSE: handles, descriptors, errors.
#include "cusparse_types.h"

using namespace standin;

namespace {

LibraryHandle& own_handle(cusparseHandle_t handle) {
    return *reinterpret_cast<LibraryHandle*>(handle);
}
LegacyDescriptor& own_legacy(cusparseMatDescr_t d) {
    return *reinterpret_cast<LegacyDescriptor*>(d);
}

}  // namespace

extern "C" {

// ---- handles and errors

cusparseStatus_t cusparseCreate(cusparseHandle_t* handle) {
    *handle = reinterpret_cast<cusparseHandle_t>(new LibraryHandle);
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseDestroy(cusparseHandle_t handle) {
    delete &own_handle(handle);
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseGetVersion(cusparseHandle_t, int* version) {
    *version = 12510;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseGetProperty(libraryPropertyType property, int* value) {
    *value = property == MAJOR_VERSION ? 12 : property == MINOR_VERSION ? 5 : 10;
    return CUSPARSE_STATUS_SUCCESS;
}

const char* cusparseGetErrorName(cusparseStatus_t status) {
    switch (status) {
    case CUSPARSE_STATUS_SUCCESS: return "CUSPARSE_STATUS_SUCCESS";
    case CUSPARSE_STATUS_INVALID_VALUE: return "CUSPARSE_STATUS_INVALID_VALUE";
    case CUSPARSE_STATUS_NOT_SUPPORTED: return "CUSPARSE_STATUS_NOT_SUPPORTED";
    default: return "CUSPARSE_STATUS_INTERNAL_ERROR";
    }
}

const char* cusparseGetErrorString(cusparseStatus_t status) {
    switch (status) {
    case CUSPARSE_STATUS_SUCCESS: return "success";
    case CUSPARSE_STATUS_INVALID_VALUE: return "invalid value";
    case CUSPARSE_STATUS_NOT_SUPPORTED: return "operation not supported";
    default: return "internal error";
    }
}

cusparseStatus_t cusparseSetStream(cusparseHandle_t handle, cudaStream_t stream) {
    own_handle(handle).stream = stream_of_calls = stream;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseGetStream(cusparseHandle_t handle, cudaStream_t* stream) {
    *stream = own_handle(handle).stream;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSetPointerMode(cusparseHandle_t handle, cusparsePointerMode_t mode) {
    own_handle(handle).pointer_mode = static_cast<PointerMode>(mode);
    return CUSPARSE_STATUS_SUCCESS;
}

// ---- legacy descriptors

cusparseStatus_t cusparseCreateMatDescr(cusparseMatDescr_t* descriptor) {
    *descriptor = reinterpret_cast<cusparseMatDescr_t>(new LegacyDescriptor);
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseDestroyMatDescr(cusparseMatDescr_t descriptor) {
    delete &own_legacy(descriptor);
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSetMatType(cusparseMatDescr_t descriptor, cusparseMatrixType_t type) {
    own_legacy(descriptor).type = type;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSetMatFillMode(cusparseMatDescr_t descriptor, cusparseFillMode_t fill) {
    own_legacy(descriptor).fill = fill;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSetMatDiagType(cusparseMatDescr_t descriptor,
                                        cusparseDiagType_t diagonal) {
    own_legacy(descriptor).diagonal = diagonal;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSetMatIndexBase(cusparseMatDescr_t descriptor, cusparseIndexBase_t base) {
    own_legacy(descriptor).base = base;
    return CUSPARSE_STATUS_SUCCESS;
}

// ---- sparse matrices

#define DEFINE_CREATE_COMPRESSED(name, format)                                                \
    cusparseStatus_t name(cusparseSpMatDescr_t* descriptor, int64_t rows, int64_t columns,    \
                          int64_t nonzeros, void* offsets, void* indices, void* values,       \
                          cusparseIndexType_t offsets_type, cusparseIndexType_t indices_type, \
                          cusparseIndexBase_t base, cudaDataType type) {                      \
        *descriptor =                                                                         \
            reinterpret_cast<cusparseSpMatDescr_t>(new SparseMatrix{format,                   \
                                                                    rows,                     \
                                                                    columns,                  \
                                                                    nonzeros,                 \
                                                                    {offsets, offsets_type},  \
                                                                    {indices, indices_type},  \
                                                                    values,                   \
                                                                    base,                     \
                                                                    type});                   \
        return CUSPARSE_STATUS_SUCCESS;                                                       \
    }
DEFINE_CREATE_COMPRESSED(cusparseCreateCsr, CUSPARSE_FORMAT_CSR)
DEFINE_CREATE_COMPRESSED(cusparseCreateCsc, CUSPARSE_FORMAT_CSC)

cusparseStatus_t cusparseCreateCoo(cusparseSpMatDescr_t* descriptor, int64_t rows, int64_t columns,
                                   int64_t nonzeros, void* row_of, void* column_of, void* values,
                                   cusparseIndexType_t index_type, cusparseIndexBase_t base,
                                   cudaDataType type) {
    *descriptor = reinterpret_cast<cusparseSpMatDescr_t>(new SparseMatrix{CUSPARSE_FORMAT_COO,
                                                                          rows,
                                                                          columns,
                                                                          nonzeros,
                                                                          {row_of, index_type},
                                                                          {column_of, index_type},
                                                                          values,
                                                                          base,
                                                                          type});
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseDestroySpMat(cusparseConstSpMatDescr_t descriptor) {
    delete own(descriptor);
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSpMatGetSize(cusparseConstSpMatDescr_t descriptor, int64_t* rows,
                                      int64_t* columns, int64_t* nonzeros) {
    const SparseMatrix& matrix = *own(descriptor);
    *rows = matrix.rows;
    *columns = matrix.columns;
    *nonzeros = matrix.nonzeros;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseCsrGet(cusparseSpMatDescr_t descriptor, int64_t* rows, int64_t* columns,
                                int64_t* nonzeros, void** offsets, void** indices, void** values,
                                cusparseIndexType_t* offsets_type,
                                cusparseIndexType_t* indices_type, cusparseIndexBase_t* base,
                                cudaDataType* type) {
    const SparseMatrix& matrix = *own(descriptor);
    cusparseSpMatGetSize(descriptor, rows, columns, nonzeros);
    *offsets = matrix.offsets.data;
    *indices = matrix.indices.data;
    *values = matrix.values;
    *offsets_type = matrix.offsets.type;
    *indices_type = matrix.indices.type;
    *base = matrix.base;
    *type = matrix.type;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseCooGet(cusparseSpMatDescr_t descriptor, int64_t* rows, int64_t* columns,
                                int64_t* nonzeros, void** row_of, void** column_of, void** values,
                                cusparseIndexType_t* index_type, cusparseIndexBase_t* base,
                                cudaDataType* type) {
    cusparseIndexType_t offsets_type;
    return cusparseCsrGet(descriptor, rows, columns, nonzeros, row_of, column_of, values,
                          &offsets_type, index_type, base, type);
}

cusparseStatus_t cusparseSpMatGetFormat(cusparseConstSpMatDescr_t descriptor,
                                        cusparseFormat_t* format) {
    *format = own(descriptor)->format;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSpMatGetIndexBase(cusparseConstSpMatDescr_t descriptor,
                                           cusparseIndexBase_t* base) {
    *base = own(descriptor)->base;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSpMatGetValues(cusparseSpMatDescr_t descriptor, void** values) {
    *values = own(descriptor)->values;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSpMatSetValues(cusparseSpMatDescr_t descriptor, void* values) {
    own(descriptor)->values = values;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSpMatGetStridedBatch(cusparseConstSpMatDescr_t, int* batch) {
    *batch = 1;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseCsrSetPointers(cusparseSpMatDescr_t descriptor, void* offsets,
                                        void* indices, void* values) {
    SparseMatrix& matrix = *own(descriptor);
    matrix.offsets.data = offsets;
    matrix.indices.data = indices;
    matrix.values = values;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSpMatSetAttribute(cusparseSpMatDescr_t descriptor,
                                           cusparseSpMatAttribute_t attribute, void* value,
                                           size_t) {
    if (attribute == CUSPARSE_SPMAT_FILL_MODE)
        own(descriptor)->fill = *static_cast<cusparseFillMode_t*>(value);
    else
        own(descriptor)->diagonal = *static_cast<cusparseDiagType_t*>(value);
    return CUSPARSE_STATUS_SUCCESS;
}

// ---- dense matrices

cusparseStatus_t cusparseCreateDnMat(cusparseDnMatDescr_t* descriptor, int64_t rows,
                                     int64_t columns, int64_t ld, void* values, cudaDataType type,
                                     cusparseOrder_t order) {
    if (ld < (order == CUSPARSE_ORDER_COL ? rows : columns))
        return refuse("the leading dimension of a dense matrix is too small");
    *descriptor = reinterpret_cast<cusparseDnMatDescr_t>(
        new DenseMatrix{rows, columns, ld, values, type, order});
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseDestroyDnMat(cusparseConstDnMatDescr_t descriptor) {
    delete own(descriptor);
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseDnMatGet(cusparseDnMatDescr_t descriptor, int64_t* rows, int64_t* columns,
                                  int64_t* ld, void** values, cudaDataType* type,
                                  cusparseOrder_t* order) {
    const DenseMatrix& matrix = *own(descriptor);
    *rows = matrix.rows;
    *columns = matrix.columns;
    *ld = matrix.ld;
    *values = matrix.values;
    *type = matrix.type;
    *order = matrix.order;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseDnMatGetValues(cusparseDnMatDescr_t descriptor, void** values) {
    *values = own(descriptor)->values;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseDnMatSetValues(cusparseDnMatDescr_t descriptor, void* values) {
    own(descriptor)->values = values;
    return CUSPARSE_STATUS_SUCCESS;
}

// ---- vectors

cusparseStatus_t cusparseCreateDnVec(cusparseDnVecDescr_t* descriptor, int64_t size, void* values,
                                     cudaDataType type) {
    *descriptor = reinterpret_cast<cusparseDnVecDescr_t>(new DenseVector{size, values, type});
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseDestroyDnVec(cusparseConstDnVecDescr_t descriptor) {
    delete own(descriptor);
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseDnVecGet(cusparseDnVecDescr_t descriptor, int64_t* size, void** values,
                                  cudaDataType* type) {
    const DenseVector& vector = *own(descriptor);
    *size = vector.size;
    *values = vector.values;
    *type = vector.type;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseDnVecGetValues(cusparseDnVecDescr_t descriptor, void** values) {
    *values = own(descriptor)->values;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseDnVecSetValues(cusparseDnVecDescr_t descriptor, void* values) {
    own(descriptor)->values = values;
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseCreateSpVec(cusparseSpVecDescr_t* descriptor, int64_t size,
                                     int64_t nonzeros, void* indices, void* values,
                                     cusparseIndexType_t index_type, cusparseIndexBase_t base,
                                     cudaDataType type) {
    *descriptor = reinterpret_cast<cusparseSpVecDescr_t>(
        new SparseVector{size, nonzeros, {indices, index_type}, values, base, type});
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseDestroySpVec(cusparseConstSpVecDescr_t descriptor) {
    delete own(descriptor);
    return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseSpVecGet(cusparseSpVecDescr_t descriptor, int64_t* size, int64_t* nonzeros,
                                  void** indices, void** values, cusparseIndexType_t* index_type,
                                  cusparseIndexBase_t* base, cudaDataType* type) {
    const SparseVector& vector = *own(descriptor);
    *size = vector.size;
    *nonzeros = vector.nonzeros;
    *indices = vector.indices.data;
    *values = vector.values;
    *index_type = vector.indices.type;
    *base = vector.base;
    *type = vector.type;
    return CUSPARSE_STATUS_SUCCESS;
}
}
