// The next direction of conjugate gradients on many right-hand sides, column by column, in place. All
// arrays are row-major (n, m).
//
// cg_direction: P = R + P ratio
// cg_solution: X += P step first, while P is at hand
//
// macros  HG_PACK  columns of a thread, next to each other: 1, 2 or 4, a divisor of m; at most 16
//                  bytes. Arrays of m columns must begin at a multiple of the bytes of a pack.
// block   (x, y), at most 256 threads: x packs and y rows at a time; any x and y are right
// grid    (row blocks, ceil(m / (x * HG_PACK))); each row block takes y rows, passes times, and row
//         blocks times y times passes are at least n
// shared  none
// types   HG_VALUE float or double; step and ratio (m,) always double, rounded to HG_VALUE before they
//         multiply, as in the generic backend
// result  deterministic: no sums
// memory  reads R and P, writes P, each once: 3 n m values, the minimum; cg_solution reads and writes
//         X as well: 5 n m
#ifndef HG_VALUE
#define HG_VALUE float
#endif
#ifndef HG_PACK
#define HG_PACK 4
#endif

#define HG_THREADS 256
#define HG_FLIGHT 2                                       // rows of a thread that are loaded together

struct __align__(sizeof(HG_VALUE) * HG_PACK) Pack { HG_VALUE at[HG_PACK]; };

extern "C" __global__ void __launch_bounds__(HG_THREADS)
cg_direction(const long long n, const int m, const int passes, const double* __restrict__ ratio,
             const HG_VALUE* __restrict__ residual, HG_VALUE* __restrict__ direction)
{
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * HG_PACK;
    if (column >= m) return;
    HG_VALUE by[HG_PACK];
#pragma unroll
    for (int c = 0; c < HG_PACK; ++c) by[c] = (HG_VALUE)ratio[column + c];
    const long long first = (long long)blockIdx.x * passes * blockDim.y + threadIdx.y;
    const long long last = min(n, first + (long long)passes * blockDim.y);
    const long long step = (long long)blockDim.y * m;
    for (long long row = first; row < last; row += HG_FLIGHT * blockDim.y) {
        const long long place = row * m + column;
        Pack left[HG_FLIGHT], turned[HG_FLIGHT];
#pragma unroll
        for (int j = 0; j < HG_FLIGHT; ++j)
            if (row + j * blockDim.y < last) {
                left[j] = *(const Pack*)(residual + place + j * step);
                turned[j] = *(const Pack*)(direction + place + j * step);
            }
#pragma unroll
        for (int j = 0; j < HG_FLIGHT; ++j)
            if (row + j * blockDim.y < last) {
#pragma unroll
                for (int c = 0; c < HG_PACK; ++c)
                    turned[j].at[c] = left[j].at[c] + turned[j].at[c] * by[c];
                *(Pack*)(direction + place + j * step) = turned[j];
            }
    }
}

extern "C" __global__ void __launch_bounds__(HG_THREADS)
cg_solution(const long long n, const int m, const int passes, const double* __restrict__ step,
            const double* __restrict__ ratio, const HG_VALUE* __restrict__ residual,
            HG_VALUE* __restrict__ solution, HG_VALUE* __restrict__ direction)
{
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * HG_PACK;
    if (column >= m) return;
    HG_VALUE far[HG_PACK], by[HG_PACK];
#pragma unroll
    for (int c = 0; c < HG_PACK; ++c) {
        far[c] = (HG_VALUE)step[column + c];
        by[c] = (HG_VALUE)ratio[column + c];
    }
    const long long first = (long long)blockIdx.x * passes * blockDim.y + threadIdx.y;
    const long long last = min(n, first + (long long)passes * blockDim.y);
#pragma unroll 1
    for (long long row = first; row < last; row += blockDim.y) {
        const long long place = row * m + column;
        // All loads before the first store, which might change what a later load reads.
        Pack moved = *(const Pack*)(solution + place), along = *(const Pack*)(direction + place);
        const Pack left = *(const Pack*)(residual + place);
#pragma unroll
        for (int c = 0; c < HG_PACK; ++c) {
            moved.at[c] += along.at[c] * far[c];
            along.at[c] = left.at[c] + along.at[c] * by[c];
        }
        *(Pack*)(solution + place) = moved;
        *(Pack*)(direction + place) = along;
    }
}
