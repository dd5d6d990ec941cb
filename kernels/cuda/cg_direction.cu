// The next direction of conjugate gradients on many right-hand sides: P = R + P ratio, column by
// column, in place. P and R are row-major (n, m).
//
// grid    (row blocks, ceil(m / x)); rows have a stride of the grid, so any number is right
// block   (x, y), at most 256 threads: x columns and y rows at a time; any x and y are right. Take
//         x = ceil(m / ceil(m / 128)), y = 256 / x: neighboring threads have neighboring entries.
// shared  none
// types   HG_VALUE float or double; ratio (m,) always double, rounded to HG_VALUE before it
//         multiplies, as in the generic backend
// result  deterministic: no sums
// memory  reads R and P, writes P, each once: 3 n m values, the minimum
#ifndef HG_VALUE
#define HG_VALUE float
#endif

#define HG_THREADS 256

extern "C" __global__ void __launch_bounds__(HG_THREADS)
cg_direction(const long long n, const int m, const double* __restrict__ ratio,
             const HG_VALUE* __restrict__ residual, HG_VALUE* __restrict__ direction)
{
    const int column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= m) return;
    const HG_VALUE own_ratio = (HG_VALUE)ratio[column];
#pragma unroll 4
    for (long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y; row < n;
         row += (long long)gridDim.x * blockDim.y) {
        const long long place = row * m + column;
        direction[place] = residual[place] + direction[place] * own_ratio;
    }
}
