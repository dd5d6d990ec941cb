// The k largest scores of each row, best first, by their index in it. The two strides, in elements,
// let it read the columns of a row-major (n, m) solution in place: row stride 1, item stride m.
// Ties go to the lower index, or, if `place_of` is given, to the lower of the items' own numbers:
// number i stands at place_of[i].
//
// grid    one block for each row, up to 2^31 - 1
// block   a multiple of 32, up to 1024: 1024 for rows above about 16,000 items, 256 below
// shared  8 KiB and 2048 (key + 4 bytes), static: 24 KiB for float, 32 KiB for double
// types   HG_VALUE float or double (-inf and both zeros included, NaN not); place_of, ids long long
// result  exact and deterministic: counts are integers, and the order of keys and indices is total
// limits  1 <= k <= 2048 (HG_LIMIT) and k <= n < 2^31 - 4096; a generic sort has to do the rest
// memory  reads the scores at most 4 times (float) or 7 times (double), at least once; a pass is
//         left out as soon as the digits seen tell the k best apart. Columns in place take 32 bytes
//         for each value, which the blocks of neighboring columns share in the L2 cache.
//
// Radix select: keys are unsigned integers in the order of the scores. Each pass counts the next 11
// bits of the keys that agree with the k-th largest so far, and finds its next digit. Then keys above
// it are gathered in any order, those equal to it in the order of their indices, and sorted.
#ifndef HG_VALUE
#define HG_VALUE float
#endif

#define HG_THREADS 1024
#define HG_LIMIT 2048
#define HG_DIGIT 11
#define HG_BINS (1 << HG_DIGIT)
#define HG_WARP 32
#define HG_ALL 0xffffffffu
#define HG_BATCH 4

// By bits, not by arithmetic: -ftz=true would make zeros of the smallest scores.
__device__ __forceinline__ unsigned int ordered(const float score)
{
    unsigned int bits = __float_as_uint(score);
    if (bits == 0x80000000u) bits = 0;  // -0 equals 0
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ unsigned long long ordered(const double score)
{
    unsigned long long bits = (unsigned long long)__double_as_longlong(score);
    if (bits == 0x8000000000000000ull) bits = 0;
    return bits & 0x8000000000000000ull ? ~bits : bits | 0x8000000000000000ull;
}

typedef decltype(ordered(HG_VALUE(0))) Key;

// One warp: the highest bin at which the counts from the top add up to at least `wanted`, how many
// are wanted of that bin, and how many there are in it.
static __device__ void find_bin(const int* counts, const int wanted, int* bin, int* wanted_there,
                                int* count_there)
{
    const int span = HG_BINS / HG_WARP, lane = threadIdx.x;
    // Lane 0 has the highest bins.
    const int top = HG_BINS - 1 - lane * span;
    int own = 0;
    for (int i = 0; i < span; ++i) own += counts[top - i];
    int above = own;
    for (int offset = 1; offset < HG_WARP; offset *= 2) {
        const int other = __shfl_up_sync(HG_ALL, above, offset);
        if (lane >= offset) above += other;
    }
    above -= own;
    if (above < wanted && above + own >= wanted) {
        int i = 0;
        while (above + counts[top - i] < wanted) above += counts[top - i++];
        *bin = top - i;
        *wanted_there = wanted - above;
        *count_there = counts[top - i];
    }
}

static __device__ __forceinline__ long long place(const long long* __restrict__ place_of,
                                                  const int item)
{
    return place_of ? place_of[item] : item;
}

// The keys of HG_BATCH items of this thread. Behind the end 0, which is below the key of every score
// and so never among the k best.
static __device__ __forceinline__ void read_batch(const HG_VALUE* __restrict__ row,
                                                  const long long item_stride,
                                                  const long long* __restrict__ place_of,
                                                  const int n, const int base,
                                                  Key (&batch)[HG_BATCH])
{
#pragma unroll
    for (int i = 0; i < HG_BATCH; ++i) {
        const int item = base + i * blockDim.x + threadIdx.x;
        batch[i] = item < n ? ordered(row[place(place_of, item) * item_stride]) : 0;
    }
}

extern "C" __global__ void __launch_bounds__(HG_THREADS)
top_k(const int n, const int k, const HG_VALUE* __restrict__ scores, const long long row_stride,
      const long long item_stride, const long long* __restrict__ place_of,
      HG_VALUE* __restrict__ best, long long* __restrict__ ids)
{
    __shared__ int counts[HG_BINS];
    __shared__ Key keys[HG_LIMIT];
    __shared__ int places[HG_LIMIT];
    __shared__ int ties_of_warp[HG_WARP];
    __shared__ int bin, wanted_there, count_there, taken;

    const int thread = threadIdx.x, threads = blockDim.x;
    const int lane = thread % HG_WARP, warp = thread / HG_WARP;
    const HG_VALUE* row = scores + blockIdx.x * row_stride;
    Key batch[HG_BATCH];  // read at once, so that the memory has several requests at a time

    if (thread == 0) taken = 0;
    Key prefix = 0, decided = 0;  // the digits of the k-th largest key that are known, and where
    int wanted = k;               // how many of the keys with these digits are among the k best
    for (int low = 8 * sizeof(Key); low > 0;) {
        const int digits = low < HG_DIGIT ? low : HG_DIGIT;
        low -= digits;
        for (int i = thread; i < HG_BINS; i += threads) counts[i] = 0;
        __syncthreads();
        // Most scores may be one value, such as zero: runs of a digit are added to its bin at once.
        int last = 0, run = 0;
        for (int base = 0; base < n; base += HG_BATCH * threads) {
            read_batch(row, item_stride, place_of, n, base, batch);
#pragma unroll
            for (int i = 0; i < HG_BATCH; ++i) {
                if ((batch[i] & decided) != prefix) continue;
                const int digit = (int)(batch[i] >> low) & ((1 << digits) - 1);
                if (digit != last) {
                    atomicAdd(&counts[last], run);
                    last = digit;
                    run = 0;
                }
                ++run;
            }
        }
        atomicAdd(&counts[last], run);
        __syncthreads();
        if (warp == 0) find_bin(counts, wanted, &bin, &wanted_there, &count_there);
        __syncthreads();
        prefix |= (Key)bin << low;
        decided |= (Key)((1 << digits) - 1) << low;
        wanted = wanted_there;
        // Every key of the bin is among the k best: no more digits are needed.
        if (count_there == wanted) break;
    }

    // Gather: the keys above the known digits, then as many ties as wanted, by their indices.
    const int above = k - wanted;
    int ties = 0;
    for (int base = 0; base < n; base += HG_BATCH * threads) {
        read_batch(row, item_stride, place_of, n, base, batch);
#pragma unroll
        for (int i = 0; i < HG_BATCH; ++i) {
            const int item = base + i * threads + thread;
            const bool tie = (batch[i] & decided) == prefix;
            int slot = -1;
            if ((batch[i] & decided) > prefix) slot = atomicAdd(&taken, 1);
            const int more = __syncthreads_count(tie);
            // The same for the whole block, and true at most k times.
            if (more > 0 && ties < wanted) {
                const unsigned votes = __ballot_sync(HG_ALL, tie);
                if (lane == 0) ties_of_warp[warp] = __popc(votes);
                __syncthreads();
                int rank = ties + __popc(votes & ((1u << lane) - 1));
                for (int other = 0; other < warp; ++other) rank += ties_of_warp[other];
                if (tie && rank < wanted) slot = above + rank;
            }
            ties += more;
            if (slot >= 0) {
                keys[slot] = batch[i];
                places[slot] = item;
            }
        }
    }

    // Bitonic sort of the candidates, padded to a power of two with what comes last.
    int size = 1;
    while (size < k) size *= 2;
    for (int i = k + thread; i < size; i += threads) {
        keys[i] = 0;
        places[i] = 0x7fffffff;
    }
    __syncthreads();
    for (int span = 2; span <= size; span *= 2) {
        for (int step = span / 2; step > 0; step /= 2) {
            for (int i = thread; i < size / 2; i += threads) {
                const int left = 2 * i - (i & (step - 1)), right = left + step;
                const bool in_order = keys[left] > keys[right] ||
                                      (keys[left] == keys[right] && places[left] < places[right]);
                if (in_order != ((left & span) == 0)) {
                    const Key key = keys[left];
                    const int place = places[left];
                    keys[left] = keys[right];
                    places[left] = places[right];
                    keys[right] = key;
                    places[right] = place;
                }
            }
            __syncthreads();
        }
    }
    for (int i = thread; i < k; i += threads) {
        const long long found = place(place_of, places[i]);
        best[(long long)blockIdx.x * k + i] = row[found * item_stride];
        ids[(long long)blockIdx.x * k + i] = found;
    }
}
