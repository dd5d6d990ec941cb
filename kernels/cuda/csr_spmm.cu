// Sparse times dense, row-major: Y = A X with A CSR (n, p), X (p, m), Y (n, m); or, if subtract is not
// 0, Y -= A X. Also restricts to and prolongs from an aggregate basis, whose matrices have rows of one
// entry or of thousands, and takes the span of such a basis off a signal.
//
// csr_spmm: rows up to a few hundred entries
//   block   (x, y), at most 256 threads: x of them work on one row, y rows at a time.
//           m > 16:  x = ceil(m / ceil(m / 128)), y = 256 / x: each thread has one column.
//           m <= 16: x a power of two up to 32, y = 256 / x: the columns take the power of two w
//                    not below m (but at most x), and x / w threads share the entries of a row. Take
//                    x = w times the power of two near the mean row length, but at most 32: 1 for
//                    rows of one entry and m = 1, a warp for each row of 25 entries and m = 1.
//   grid    (row blocks, ceil(m / x)); rows have a stride of the grid, so any number is right
//   shared  none
// csr_spmm_long_rows: a mean row length above about 256
//   block   256: one row and up to 32 columns; all threads share its entries
//   grid    (row blocks, ceil(m / 32)); one row block for each row, up to 2^31 - 1
//   shared  256 values, static
//
// fold    entries in columns from here on are those of column - fold, times `times`; p: there are none.
//         So [Z, W Z] (n, 2 r) times c and -alpha c one below the other is a product with c alone
// alone   rows from here on are written to `scaled` too, times scale[row - alone]; n: there are none
// types   HG_VALUE float or double; HG_INDEX int or long long
// result  deterministic: sums are taken in an order that depends on the launch shape alone
// limits  m >= 1; ceil(m / x) < 65536; with HG_INDEX int at most 2^31 - 256 entries. A few rows with
//         10^5 entries and more leave most of a GPU idle.
// memory  reads A once for each ceil(m / x) (mostly from the cache), a row of X for each entry of A
//         (from the cache where neighbors share it), writes Y once; to subtract, reads it once too.
//         At least: nnz (value + index) + n indices + (p + n) m values. Restrict and prolong of an
//         aggregate basis reach it: every row of the long side is touched once.
#ifndef HG_VALUE
#define HG_VALUE float
#endif
#ifndef HG_INDEX
#define HG_INDEX int
#endif

#define HG_THREADS 256
#define HG_TILE 32

// An entry times a column of the dense matrix.
static __device__ __forceinline__ HG_VALUE folded(HG_INDEX row, HG_VALUE weight, const HG_INDEX fold,
                                                  const HG_VALUE times,
                                                  const HG_VALUE* __restrict__ dense, const int m)
{
    if (row >= fold) {
        row -= fold;
        weight *= times;
    }
    return weight * dense[(long long)row * m];
}

extern "C" __global__ void __launch_bounds__(HG_THREADS)
csr_spmm(const long long n, const int m, const int subtract,
         const HG_INDEX* __restrict__ indptr, const HG_INDEX* __restrict__ indices,
         const HG_VALUE* __restrict__ data, const HG_VALUE* __restrict__ dense,
         HG_VALUE* __restrict__ result, const HG_INDEX fold, const HG_VALUE times,
         const long long alone, const HG_VALUE* __restrict__ scale,
         HG_VALUE* __restrict__ scaled)
{
    const int lanes = blockDim.x;
    int width = lanes;
    while (width / 2 >= m) width /= 2;
    const int share = threadIdx.x / width;   // which of the entries of a row
    const int shares = lanes / width;
    const int column = blockIdx.y * lanes + threadIdx.x % width;
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
                sum += folded(indices[entry], data[entry], fold, times, dense + column, m);
        }
        for (int offset = lanes / 2; offset >= width; offset /= 2)
            sum += __shfl_down_sync(0xffffffffu, sum, offset, lanes);
        if (live && share == 0) {
            HG_VALUE* const place = result + row * m + column;
            *place = subtract ? *place - sum : sum;
            if (row >= alone) scaled[row * m + column] = scale[row - alone] * sum;
        }
    }
}

extern "C" __global__ void __launch_bounds__(HG_THREADS)
csr_spmm_long_rows(const long long n, const int m, const int subtract,
                   const HG_INDEX* __restrict__ indptr, const HG_INDEX* __restrict__ indices,
                   const HG_VALUE* __restrict__ data, const HG_VALUE* __restrict__ dense,
                   HG_VALUE* __restrict__ result, const HG_INDEX fold, const HG_VALUE times,
                   const long long alone, const HG_VALUE* __restrict__ scale,
                   HG_VALUE* __restrict__ scaled)
{
    __shared__ HG_VALUE parts[HG_THREADS];
    const int thread = threadIdx.x;
    int width = HG_TILE;
    while (width / 2 >= m) width /= 2;
    const int column = blockIdx.y * HG_TILE + thread % width;
    for (long long row = blockIdx.x; row < n; row += gridDim.x) {
        HG_VALUE sum = 0;
        if (column < m) {
            const HG_INDEX end = indptr[row + 1];
#pragma unroll 2
            for (HG_INDEX entry = indptr[row] + thread / width; entry < end;
                 entry += HG_THREADS / width)
                sum += folded(indices[entry], data[entry], fold, times, dense + column, m);
        }
        parts[thread] = sum;
        __syncthreads();
        for (int half = HG_THREADS / 2; half >= width; half /= 2) {
            if (thread < half) parts[thread] += parts[thread + half];
            __syncthreads();
        }
        // Each thread reads its own part, which it alone overwrites: no barrier is due.
        if (thread < width && column < m) {
            HG_VALUE* const place = result + row * m + column;
            *place = subtract ? *place - parts[thread] : parts[thread];
            if (row >= alone) scaled[row * m + column] = scale[row - alone] * parts[thread];
        }
    }
}
