// Sparse times dense, row-major, for dense matrices of many columns: several columns in one load, and
// entries of a row that are loaded once for all of its threads.
//
// wide_spmm: Y = A X with A CSR (n, p), X (p, m), Y (n, m); or, if subtract is not 0, Y -= A X
// wide_laplacian: Q = (I - alpha W) P with W CSR (n, n), P and Q (n, m), and for each block of rows the
//         dot products of its columns of P and Q
//
// macros  HG_PACK   columns of a thread, next to each other: 1, 2 or 4, a divisor of m; at most 16
//                   bytes. Arrays of m columns must begin at a multiple of the bytes of a pack.
//         HG_LANES  threads of a row: 4, 8, 16 or 32. Take the first not below m / HG_PACK, or 32.
// block   (HG_LANES, y), HG_LANES * y a multiple of 32, at most 512: y consecutive rows at a time
// grid    (ceil(n / (y * passes)), ceil(m / (HG_LANES * HG_PACK))): each block takes y rows, passes
//         times. The hardware starts blocks in order, so that rows in flight lie near each other and
//         meet in L2; blocks that stay and stride over the rows would drift apart.
// shared  static: the entries, for float and int 4 KiB with 32 lanes to 18 KiB with 4; and
//         wide_laplacian 512 HG_PACK doubles
// needs   partial, double (blocks of rows, m), every entry of which is written; columns.cu adds them
//         up
// fold    wide_spmm: entries in columns from here on are those of column - fold, times `times`; p: there
//         are none. So [Z, W Z] (n, 2 r) times c and -alpha c one below the other is a product with c alone
// alone   rows from here on are written to `scaled` too, times scale[row - alone]; n: there are none
// wanted  wide_laplacian: (m,), or null: if none of the columns is wanted, nothing is written
// types   HG_VALUE float or double; HG_INDEX int or long long; dot products always double
// result  deterministic: sums are taken in an order that depends on the shape of the block alone, and
//         that of the partial sums on n and passes
// limits  m >= 1; m * sizeof(HG_VALUE) < 2^31; rows of fewer than 2^31 - 32 entries; with HG_INDEX int
//         at most 2^31 - 32 entries
// memory  reads A once for each ceil(m / (HG_LANES * HG_PACK)), a row of X for each entry of A (from
//         the caches where neighbors share it), writes the result once; to subtract, reads it too.
//         At least: nnz (value + index) + n indices + (p + n) m values
#ifndef HG_VALUE
#define HG_VALUE float
#endif
#ifndef HG_INDEX
#define HG_INDEX int
#endif
#ifndef HG_PACK
#define HG_PACK 4
#endif
#ifndef HG_LANES
#define HG_LANES 32
#endif

#define HG_THREADS 512
#define HG_RESIDENT 2                                     // 64 registers: with fewer it would spill
#define HG_ALL 0xffffffffu
#define HG_FLIGHT 4                                       // gathers that are under way together
// Entries of a row at hand. Those with 64-bit indices take twice the room: fewer, where rows are many.
#define HG_CHUNK (HG_LANES > 16 ? HG_LANES : HG_LANES == 4 && sizeof(HG_INDEX) > 4 ? 8 : 16)
#define HG_LINE (HG_CHUNK + (HG_LANES < 32 ? 2 : 0))      // two more: rows of a warp in other banks

static_assert(HG_LANES == 4 || HG_LANES == 8 || HG_LANES == 16 || HG_LANES == 32, "lanes of a row");

struct __align__(sizeof(HG_VALUE) * HG_PACK) Pack { HG_VALUE at[HG_PACK]; };
struct __align__(sizeof(HG_INDEX) + sizeof(HG_VALUE) > 8 ? 16 : 8) Entry { HG_INDEX row; HG_VALUE weight; };
struct __align__(16) Pair { Entry at[2]; };

// The entries at hand and the sums of wide_laplacian: 48 KiB are what every GPU has without asking.
#define HG_ENTRIES (HG_THREADS / HG_LANES * (HG_LINE / 2) * sizeof(Pair))
#define HG_FITS (HG_ENTRIES + HG_THREADS * HG_PACK * sizeof(double) <= 48 * 1024)
static_assert(HG_FITS, "shared memory of a block");

// Unsigned, so that 32 by 32 bits plus a pointer is one instruction.
template <class Index> struct Unsigned { typedef unsigned long long type; };
template <> struct Unsigned<int> { typedef unsigned type; };

struct Matrix {
    const HG_INDEX* __restrict__ indptr;
    const HG_INDEX* __restrict__ indices;
    const HG_VALUE* __restrict__ data;
    HG_INDEX fold;
    HG_VALUE times;
};

// Four entries from `next` on: loads first, then sums. Guarded: those not below `own` are left out.
template <bool Guarded>
static __device__ __forceinline__ void add_some(Pack& sum, const int next, const int own,
                                                const char* __restrict__ source, const int stride,
                                                const Pair* line)
{
    Pack got[HG_FLIGHT];
    HG_VALUE weight[HG_FLIGHT];
#pragma unroll
    for (int j = 0; j < HG_FLIGHT; ++j) {
        const Entry entry = line[next / 2 + j / 2].at[j % 2];
        const unsigned long long place =
            (unsigned long long)(Unsigned<HG_INDEX>::type)entry.row * (unsigned)stride;
        weight[j] = entry.weight;
        if (Guarded) got[j] = Pack{};
        if (!Guarded || next + j < own) got[j] = *(const Pack*)(source + place);
    }
#pragma unroll
    for (int j = 0; j < HG_FLIGHT; ++j)
#pragma unroll
        for (int c = 0; c < HG_PACK; ++c) sum.at[c] += weight[j] * got[j].at[c];
}

// The sum of the entries of a row times rows of `source`, in the columns of a thread; `line` is room for
// entries. All threads of a warp are here together, those of rows and columns that are not there as well.
template <bool Folded>
static __device__ __forceinline__ Pack row_sum(const Matrix& matrix, const long long row,
                                               const bool there, const char* __restrict__ source,
                                               const int stride, Pair* line)
{
    Entry* const places = (Entry*)line;
    HG_INDEX first = 0;
    int length = 0;
    if (there) {
        first = matrix.indptr[row];
        length = (int)(matrix.indptr[row + 1] - first);
    }
    int longest = length, shortest = length;
    for (int offset = HG_LANES; offset < 32; offset *= 2) {
        longest = max(longest, __shfl_xor_sync(HG_ALL, longest, offset));
        shortest = min(shortest, __shfl_xor_sync(HG_ALL, shortest, offset));
    }
    Pack sum = {};
    for (int done = 0; done < longest; done += HG_CHUNK) {
        __syncwarp();
#pragma unroll
        for (int part = 0; part < HG_CHUNK; part += HG_LANES) {
            const int entry = done + part + threadIdx.x;
            const bool own = entry < length;
            Entry one = {own ? matrix.indices[first + entry] : 0,
                         own ? matrix.data[first + entry] : 0};
            if (Folded && one.row >= matrix.fold) {
                one.row -= matrix.fold;
                one.weight *= matrix.times;
            }
            places[part + threadIdx.x] = one;
        }
        __syncwarp();
        const int all = min(shortest - done, HG_CHUNK) / HG_FLIGHT * HG_FLIGHT;
        const int some = min(longest - done, HG_CHUNK), own = length - done;
        int next = 0;
#pragma unroll 1
        for (; next < all; next += HG_FLIGHT)
            add_some<false>(sum, next, own, source, stride, line);
#pragma unroll 1
        for (; next < some; next += HG_FLIGHT)
            add_some<true>(sum, next, own, source, stride, line);
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(HG_THREADS, HG_RESIDENT)
wide_spmm(const long long n, const int m, const int passes, const int subtract,
          const HG_INDEX* __restrict__ indptr, const HG_INDEX* __restrict__ indices,
          const HG_VALUE* __restrict__ data, const HG_VALUE* __restrict__ dense,
          HG_VALUE* __restrict__ result, const HG_INDEX fold, const HG_VALUE times,
          const long long alone, const HG_VALUE* __restrict__ scale, HG_VALUE* __restrict__ scaled)
{
    __shared__ Pair staged[HG_THREADS / HG_LANES * (HG_LINE / 2)];
    Pair* const line = &staged[threadIdx.y * (HG_LINE / 2)];
    const int column = (blockIdx.y * HG_LANES + threadIdx.x) * HG_PACK;
    const bool inside = column < m;
    const int stride = m * (int)sizeof(HG_VALUE);
    const char* const source = (const char*)(dense + (inside ? column : 0));
    const Matrix matrix = {indptr, indices, data, fold, times};
    long long row = (long long)blockIdx.x * passes * blockDim.y + threadIdx.y;
    for (int pass = 0; pass < passes; ++pass, row += blockDim.y) {
        Pack sum = row_sum<true>(matrix, row, row < n, source, stride, line);
        if (row < n && inside) {
            Pack* const place = (Pack*)((char*)(result + column) + row * stride);
            Pack value = sum;
            if (subtract) {
                value = *place;
#pragma unroll
                for (int c = 0; c < HG_PACK; ++c) value.at[c] -= sum.at[c];
            }
            *place = value;
            if (row >= alone) {
                const HG_VALUE by = scale[row - alone];
#pragma unroll
                for (int c = 0; c < HG_PACK; ++c) sum.at[c] *= by;
                *(Pack*)((char*)(scaled + column) + row * stride) = sum;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(HG_THREADS, HG_RESIDENT)
wide_laplacian(const long long n, const int m, const int passes, const HG_VALUE alpha,
               const HG_INDEX* __restrict__ indptr, const HG_INDEX* __restrict__ indices,
               const HG_VALUE* __restrict__ data, const HG_VALUE* __restrict__ direction,
               HG_VALUE* __restrict__ product, double* __restrict__ partial,
               const bool* __restrict__ wanted)
{
    __shared__ double dots[HG_THREADS * HG_PACK];
    if (wanted) {
        bool some = false;
        for (int mine = threadIdx.y * HG_LANES + threadIdx.x; mine < m; mine += blockDim.y * HG_LANES)
            some = some || wanted[mine];
        if (!__syncthreads_or(some)) return;
    }
    __shared__ Pair staged[HG_THREADS / HG_LANES * (HG_LINE / 2)];
    Pair* const line = &staged[threadIdx.y * (HG_LINE / 2)];
    const int column = (blockIdx.y * HG_LANES + threadIdx.x) * HG_PACK;
    const bool inside = column < m;
    const int stride = m * (int)sizeof(HG_VALUE);
    const char* const source = (const char*)(direction + (inside ? column : 0));
    const Matrix matrix = {indptr, indices, data, 0, 0};
    double dot[HG_PACK] = {};
    long long row = (long long)blockIdx.x * passes * blockDim.y + threadIdx.y;
    for (int pass = 0; pass < passes; ++pass, row += blockDim.y) {
        const Pack sum = row_sum<false>(matrix, row, row < n, source, stride, line);
        if (row < n && inside) {
            const Pack own = *(const Pack*)(source + row * stride);
            Pack value;
#pragma unroll
            for (int c = 0; c < HG_PACK; ++c) {
                value.at[c] = own.at[c] - alpha * sum.at[c];
                dot[c] += (double)own.at[c] * (double)value.at[c];
            }
            *(Pack*)((char*)(product + column) + row * stride) = value;
        }
    }
    // A thread for each column adds up the rows, always in the same order.
#pragma unroll
    for (int c = 0; c < HG_PACK; ++c)
        dots[(threadIdx.y * HG_LANES + threadIdx.x) * HG_PACK + c] = dot[c];
    __syncthreads();
    const int width = HG_LANES * HG_PACK, left = min(width, m - (int)blockIdx.y * width);
    for (int mine = threadIdx.y * HG_LANES + threadIdx.x; mine < left;
         mine += blockDim.y * HG_LANES) {
        double total = dots[mine];
        for (int other = 1; other < blockDim.y; ++other) total += dots[other * width + mine];
        partial[(long long)blockIdx.x * m + blockIdx.y * width + mine] = total;
    }
}
