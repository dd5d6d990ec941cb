// One step of conjugate gradients on many right-hand sides: Q = (I - alpha W) P, and the dot product
// of each column of P with its column of Q. P and Q are row-major (n, m); W is CSR (n, n).
//
// grid    laplacian_step: (any number of row blocks, ceil(m / 32)); column_sums: ceil(m / 128)
// block   laplacian_step: (32, 8), a warp along the columns of one row; column_sums: 128
// shared  laplacian_step: 2 KiB, static; column_sums: none
// types   HG_VALUE float or double; HG_INDEX int or long long; dot products always double
// result  deterministic: sums are taken in an order that depends on the launch shape alone
//
// Rows are read with a stride of the grid, so the number of row blocks bounds the partial sums
// (row blocks, m) that column_sums adds up. A row of W is read once for 32 columns, and the 32 values
// of P behind each of its entries are neighbors in memory.
#ifndef HG_VALUE
#define HG_VALUE float
#endif
#ifndef HG_INDEX
#define HG_INDEX int
#endif

#define HG_ROWS 8
#define HG_COLUMNS 32

extern "C" __global__ void __launch_bounds__(HG_ROWS * HG_COLUMNS)
laplacian_step(const long long n, const int m, const HG_VALUE alpha,
               const HG_INDEX* __restrict__ indptr, const HG_INDEX* __restrict__ indices,
               const HG_VALUE* __restrict__ data, const HG_VALUE* __restrict__ direction,
               HG_VALUE* __restrict__ product, double* __restrict__ partial)
{
    __shared__ double dots[HG_ROWS][HG_COLUMNS];
    const int column = blockIdx.y * HG_COLUMNS + threadIdx.x;
    double dot = 0.0;
    if (column < m) {
        for (long long row = (long long)blockIdx.x * HG_ROWS + threadIdx.y; row < n;
             row += (long long)gridDim.x * HG_ROWS) {
            HG_VALUE sum = 0;
            const HG_INDEX end = indptr[row + 1];
            for (HG_INDEX entry = indptr[row]; entry < end; ++entry)
                sum += data[entry] * direction[(long long)indices[entry] * m + column];
            const HG_VALUE own = direction[row * m + column];
            const HG_VALUE value = own - alpha * sum;
            product[row * m + column] = value;
            dot += (double)own * (double)value;
        }
    }
    dots[threadIdx.y][threadIdx.x] = dot;
    __syncthreads();
    if (threadIdx.y == 0 && column < m) {
        for (int line = 1; line < HG_ROWS; ++line) dot += dots[line][threadIdx.x];
        partial[(long long)blockIdx.x * m + column] = dot;
    }
}

extern "C" __global__ void __launch_bounds__(128)
column_sums(const int blocks, const int m, const double* __restrict__ partial,
            double* __restrict__ sums)
{
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= m) return;
    double sum = 0.0;
    for (int block = 0; block < blocks; ++block) sum += partial[(long long)block * m + column];
    sums[column] = sum;
}
