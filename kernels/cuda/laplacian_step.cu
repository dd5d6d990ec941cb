// One step of conjugate gradients on many right-hand sides: Q = (I - alpha W) P, and the dot product
// of each column of P with its column of Q. P and Q are row-major (n, m); W is CSR (n, n). For few
// columns; wide_product.cu is for many.
//
// laplacian_step
//   block   (x, y), at most 256 threads: x of them work on one row of Q, y rows at a time.
//           m > 16:  x = ceil(m / ceil(m / 128)), y = 256 / x: each thread has one column.
//           m <= 16: x a power of two up to 32, y = 256 / x: the columns take the power of two w
//                    not below m (but at most x), and x / w threads share the entries of a row. Take
//                    x = w times the power of two near the mean row length, but at most 32.
//           (32, 8) is right, if not best, for every m.
//   grid    (row blocks, ceil(m / x)); rows are read with a stride of the grid, so any number of row
//           blocks is right. min(ceil(n / y), 1024) keeps the partial sums small.
//   shared  2 KiB, static
//   needs   partial, double (row blocks, m), every entry of which is written; columns.cu adds them up
//
// wanted  (m,), or null: if none of the columns is wanted, nothing is written
// types   HG_VALUE float or double; HG_INDEX int or long long; dot products always double
// result  deterministic: sums are taken in an order that depends on the launch shape alone
// limits  m >= 1; ceil(m / x) < 65536; with HG_INDEX int at most 2^31 - 256 entries
// memory  reads W once and P once if the caches hold the rows of P that neighbors share, else P once
//         for each entry of W; writes Q once, and m doubles for each row block.
//         At least: nnz (value + index) + 2 n m values + n indices.
#ifndef HG_VALUE
#define HG_VALUE float
#endif
#ifndef HG_INDEX
#define HG_INDEX int
#endif

#define HG_THREADS 256

extern "C" __global__ void __launch_bounds__(HG_THREADS)
laplacian_step(const long long n, const int m, const HG_VALUE alpha,
               const HG_INDEX* __restrict__ indptr, const HG_INDEX* __restrict__ indices,
               const HG_VALUE* __restrict__ data, const HG_VALUE* __restrict__ direction,
               HG_VALUE* __restrict__ product, double* __restrict__ partial,
               const bool* __restrict__ wanted)
{
    __shared__ double dots[HG_THREADS];
    if (wanted) {
        bool some = false;
        for (int mine = threadIdx.y * blockDim.x + threadIdx.x; mine < m; mine += blockDim.x * blockDim.y)
            some = some || wanted[mine];
        if (!__syncthreads_or(some)) return;
    }
    const int lanes = blockDim.x;
    int width = lanes;
    while (width / 2 >= m) width /= 2;
    const int share = threadIdx.x / width;   // which of the entries of a row
    const int shares = lanes / width;
    const int column = blockIdx.y * lanes + threadIdx.x % width;
    double dot = 0.0;
    // The loop ends for the whole block at once: every lane is there for the shuffles.
    for (long long base = (long long)blockIdx.x * blockDim.y; base < n;
         base += (long long)gridDim.x * blockDim.y) {
        const long long row = base + threadIdx.y;
        const bool live = row < n && column < m;
        HG_VALUE sum = 0;
        if (live) {
            const HG_INDEX end = indptr[row + 1];
#pragma unroll 2
            for (HG_INDEX entry = indptr[row] + share; entry < end; entry += shares)
                sum += data[entry] * direction[(long long)indices[entry] * m + column];
        }
        for (int offset = lanes / 2; offset >= width; offset /= 2)
            sum += __shfl_down_sync(0xffffffffu, sum, offset, lanes);
        if (live && share == 0) {
            const HG_VALUE own = direction[row * m + column];
            const HG_VALUE value = own - alpha * sum;
            product[row * m + column] = value;
            dot += (double)own * (double)value;
        }
    }
    dots[threadIdx.y * lanes + threadIdx.x] = dot;
    __syncthreads();
    if (threadIdx.y == 0 && share == 0 && column < m) {
        for (int line = 1; line < blockDim.y; ++line) dot += dots[line * lanes + threadIdx.x];
        partial[(long long)blockIdx.x * m + column] = dot;
    }
}
