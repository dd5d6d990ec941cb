// The update of conjugate gradients on many right-hand sides: X += P step and R -= Q step, column by
// column, and the squared norms of the new columns of R. All arrays are row-major (n, m).
//
// grid    (row blocks, ceil(m / x)); rows have a stride of the grid, so any number of row blocks is
//         right. min(ceil(n / y), 1024) keeps the partial sums small.
// block   (x, y), at most 256 threads: x columns and y rows at a time; any x and y are right. Take
//         x = ceil(m / ceil(m / 128)), y = 256 / x: neighboring threads have neighboring entries.
// shared  2 KiB, static
// needs   partial, double (row blocks, m), every entry of which is written; column_sums in
//         laplacian_step.cu adds them up
// types   HG_VALUE float or double; step (m,) and the norms always double. The step is rounded to
//         HG_VALUE before it multiplies, as in the generic backend.
// result  deterministic: sums are taken in an order that depends on the launch shape alone
// memory  reads X, R, P, Q and writes X, R, each once: 6 n m values, the minimum; and m doubles for
//         each row block
#ifndef HG_VALUE
#define HG_VALUE float
#endif

#define HG_THREADS 256

extern "C" __global__ void __launch_bounds__(HG_THREADS)
cg_update(const long long n, const int m, const double* __restrict__ step,
          const HG_VALUE* __restrict__ direction, const HG_VALUE* __restrict__ product,
          HG_VALUE* __restrict__ solution, HG_VALUE* __restrict__ residual,
          double* __restrict__ partial)
{
    __shared__ double squares[HG_THREADS];
    const int column = blockIdx.y * blockDim.x + threadIdx.x;
    double square = 0.0;
    if (column < m) {
        const HG_VALUE own_step = (HG_VALUE)step[column];
#pragma unroll 2
        for (long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y; row < n;
             row += (long long)gridDim.x * blockDim.y) {
            const long long place = row * m + column;
            const HG_VALUE left = residual[place] - product[place] * own_step;
            solution[place] += direction[place] * own_step;
            residual[place] = left;
            square += (double)left * (double)left;
        }
    }
    squares[threadIdx.y * blockDim.x + threadIdx.x] = square;
    __syncthreads();
    if (threadIdx.y == 0 && column < m) {
        for (int line = 1; line < blockDim.y; ++line)
            square += squares[line * blockDim.x + threadIdx.x];
        partial[(long long)blockIdx.x * m + column] = square;
    }
}
