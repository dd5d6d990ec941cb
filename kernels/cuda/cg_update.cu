// The update of conjugate gradients on many right-hand sides: X += P step and R -= Q step, column by
// column, and the squared norms of the new columns of R. All arrays are row-major (n, m).
//
// macros  HG_PACK  columns of a thread, next to each other: 1, 2 or 4, a divisor of m; at most 16
//                  bytes. Arrays of m columns must begin at a multiple of the bytes of a pack.
// block   (x, y), at most 256 threads: x packs and y rows at a time; any x and y are right
// grid    (row blocks, ceil(m / (x * HG_PACK))); each row block takes y rows, passes times, and row
//         blocks times y times passes are at least n
// shared  2 KiB for each column of a pack, static
// needs   partial, double (row blocks, m), every entry of which is written; columns.cu adds them up
// types   HG_VALUE float or double; step (m,) and the norms always double. The step is rounded to
//         HG_VALUE before it multiplies, as in the generic backend.
// result  deterministic: sums are taken in an order that depends on the shape of the block and on
//         passes alone, that of the partial sums on n as well
// memory  reads X, R, P, Q and writes X, R, each once: 6 n m values, the minimum; and m doubles for
//         each row block
#ifndef HG_VALUE
#define HG_VALUE float
#endif
#ifndef HG_PACK
#define HG_PACK 4
#endif

#define HG_THREADS 256

struct __align__(sizeof(HG_VALUE) * HG_PACK) Pack { HG_VALUE at[HG_PACK]; };

extern "C" __global__ void __launch_bounds__(HG_THREADS)
cg_update(const long long n, const int m, const int passes, const double* __restrict__ step,
          const HG_VALUE* __restrict__ direction, const HG_VALUE* __restrict__ product,
          HG_VALUE* __restrict__ solution, HG_VALUE* __restrict__ residual,
          double* __restrict__ partial)
{
    __shared__ double squares[HG_PACK][HG_THREADS];
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * HG_PACK;
    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
    double square[HG_PACK] = {};
    if (column < m) {
        HG_VALUE by[HG_PACK];
#pragma unroll
        for (int c = 0; c < HG_PACK; ++c) by[c] = (HG_VALUE)step[column + c];
        const long long first = (long long)blockIdx.x * passes * blockDim.y + threadIdx.y;
        const long long last = min(n, first + (long long)passes * blockDim.y);
#pragma unroll 1
        for (long long row = first; row < last; row += blockDim.y) {
            const long long place = row * m + column;
            // All loads before the first store, which might change what a later load reads.
            Pack moved = *(const Pack*)(solution + place), left = *(const Pack*)(residual + place);
            const Pack along = *(const Pack*)(direction + place);
            const Pack taken = *(const Pack*)(product + place);
#pragma unroll
            for (int c = 0; c < HG_PACK; ++c) {
                left.at[c] = left.at[c] - taken.at[c] * by[c];
                moved.at[c] += along.at[c] * by[c];
                square[c] += (double)left.at[c] * (double)left.at[c];
            }
            *(Pack*)(solution + place) = moved;
            *(Pack*)(residual + place) = left;
        }
    }
#pragma unroll
    for (int c = 0; c < HG_PACK; ++c) squares[c][thread] = square[c];
    __syncthreads();
    if (threadIdx.y == 0 && column < m) {
#pragma unroll
        for (int c = 0; c < HG_PACK; ++c) {
            for (int line = 1; line < blockDim.y; ++line)
                square[c] += squares[c][line * blockDim.x + threadIdx.x];
            partial[(long long)blockIdx.x * m + column + c] = square[c];
        }
    }
}
