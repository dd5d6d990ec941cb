// The k largest scores of each row, best first, by their place in it; ties go to the lower place, or,
// if `number_of` is given, to the lower number of the item that lies there. Two launches:
//
//   top_k_part   each block reads a part of the items for `width` rows at once, and keeps, for each
//                row, a list of what may be among the k best. A part may be read by several launches
//                (`resume`), of items that follow each other: then scores of all items need never be
//                there at the same time.
//   top_k_merge  each block puts the lists of one row together and sorts the k best of them.
//
// Strides are in elements. The columns of a row-major (n, m) solution are read in place (row stride
// 1, item stride m): then `width` neighboring rows are neighbors in memory.
//
// grid    top_k_part: parts * ceil(rows / width) blocks; top_k_merge: one block for each row
// block   a power of two from 32 to 512. A list has room for 8 * threads / width entries
//         (8 * threads in a merge), and k is at most half of it; width is a power of two, at most
//         threads / 32
// shared  less than 1 KiB in a part; 17 KiB (float) or 25 KiB (double) in a merge, static
// types   HG_VALUE float or double (both zeros are equal, NaN comes first); Key unsigned int or
//         unsigned long long; number_of, ids long long, its values below 2^31
// result  exact and deterministic: lists are sets, and the order of (score, number) is total
// limits  1 <= k <= 2048 (HG_LIMIT); n < 2^31 - 16384
// memory  reads each score once, by runs of `width` neighbors: whole sectors of 32 bytes from a width
//         of 8 floats or 4 doubles on, or in rows that are contiguous. For columns, the backend
//         takes 8 for k up to 170; blocks of neighboring columns share a sector in L2 beyond. An
//         entry of a list has 8 bytes (12 for double). Of L items in any order, about
//         k (1 + ln(L / k)) come onto the list of a part, which lies in the L2 cache: for k = 100
//         of a million items, 128 columns and 132 multiprocessors 740 of 62,500, or 2 % of the
//         bytes read. If each score is better than all before, each is written and read once more.
//         The merge reads k entries per part: 0.3 % there.
//
// A score comes onto the list if it beats the k-th best so far, as it was when the list was last cut.
// When the next round might overrun a list, all lists of the block are cut to their k best: the bits
// of the k-th key are found from the highest on, by counting.
#ifndef HG_VALUE
#define HG_VALUE float
#endif

#define HG_THREADS 512
#define HG_LIMIT 2048
#define HG_ROWS 16
#define HG_WARP 32
#define HG_HELD 8
#define HG_ROUND (16 / (int)sizeof(HG_VALUE))
#define HG_TURNS 3
#define HG_LAST 0x7fffffff

// By bits, not by arithmetic: -ftz=true would make zeros of the smallest scores. No key is 0.
template <class Bits>
static __device__ __forceinline__ Bits in_order(Bits bits, const Bits infinity)
{
    const Bits sign = ~(~(Bits)0 >> 1);
    if (bits == sign) bits = 0;  // -0 equals 0
    if ((bits & ~sign) > infinity) return ~(Bits)0;
    return bits & sign ? ~bits : bits | sign;
}

__device__ __forceinline__ unsigned int ordered(const float score)
{
    return in_order(__float_as_uint(score), 0x7f800000u);
}

__device__ __forceinline__ unsigned long long ordered(const double score)
{
    return in_order((unsigned long long)__double_as_longlong(score), 0x7ff0000000000000ull);
}

// The score of a key.
__device__ __forceinline__ float score_of(const unsigned int key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

__device__ __forceinline__ double score_of(const unsigned long long key)
{
    return __longlong_as_double(
        (long long)(key & 0x8000000000000000ull ? key & 0x7fffffffffffffffull : ~key));
}

typedef decltype(ordered(HG_VALUE(0))) Key;

// The lists of a block, one for each of its rows. What is on them lies in memory, how they stand in
// shared memory: an item comes on if its key is above `least`, or equal and its number below `bound`.
struct Lists {
    int k, width;
    Key* keys;
    int* places;
    int stride;  // from list to list
    const long long* number_of;
    int* counts;
    Key* least;
    int* bounds;
    int* totals;  // HG_TURNS for each row; those of the next turn are 0
};

static __device__ __forceinline__ int number(const long long* __restrict__ number_of,
                                             const int place)
{
    return number_of ? (int)number_of[place] : place;
}

// Adds a number of each thread for its team (the same for all threads of a warp), and waits for all;
// false if no thread is open. A turn cleans up for the next one.
static __device__ __forceinline__ bool add_up(const Lists& lists, const int row, const int found,
                                              const bool open, int* turn, int* total)
{
    int sum = found;
    for (int offset = HG_WARP / 2; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % HG_WARP == 0) atomicAdd(&lists.totals[*turn * HG_ROWS + row], sum);
    const int next = (*turn + 1) % HG_TURNS;
    if (threadIdx.x < HG_ROWS) lists.totals[next * HG_ROWS + threadIdx.x] = 0;
    const bool any = __syncthreads_or(open);
    *total = lists.totals[*turn * HG_ROWS + row];
    *turn = next;
    return any;
}

// Cuts every list to its k best. A team of threads has a list, and each of them up to HG_HELD of its
// entries: every team-th, from its own number on. Call it after a barrier; it ends with one.
static __device__ void cut(const Lists& lists, int* turn)
{
    const int k = lists.k, team = blockDim.x / lists.width;
    const int row = threadIdx.x / team, member = threadIdx.x % team;
    Key* keys = lists.keys + row * lists.stride;
    int* places = lists.places + row * lists.stride;
    const int count = lists.counts[row];

    // The largest value that k keys reach, or a smaller one that is reached by k and no more.
    Key least = 0;
    int reaching = count, total;
    for (int bit = 8 * sizeof(Key); bit-- > 0;) {
        const Key trial = least | (Key)1 << bit;
        int found = 0;
#pragma unroll 1
        for (int slot = member; slot < count; slot += team) found += keys[slot] >= trial;
        if (!add_up(lists, row, found, reaching > k, turn, &total)) break;
        if (total >= k) {
            least = trial;
            reaching = total;
        }
    }
    // Too many: of those at `least`, only the lowest numbers stay, up to that of the k-th best.
    const bool tied = reaching > k;
    int bound = HG_LAST;
    if (__syncthreads_or(tied)) {
        int last = 0;
        for (int bit = 31; bit-- > 0;) {
            const int trial = last | 1 << bit;
            int found = 0;
#pragma unroll 1
            for (int slot = member; slot < count; slot += team)
                found += keys[slot] > least ||
                         (keys[slot] == least && number(lists.number_of, places[slot]) < trial);
            add_up(lists, row, found, true, turn, &total);
            if (total < k) last = trial;
        }
        if (tied) bound = last;
    }

    const bool shorter = count > k;
    if (shorter && member == 0) {
        lists.counts[row] = 0;
        lists.least[row] = least;
        lists.bounds[row] = bound;
    }
    // What stays moves up, into slots whose entries all teams have read.
#pragma unroll 1
    for (int base = 0; base < HG_HELD * team; base += team) {
        const bool there = shorter && base + member < count;
        const Key key = there ? keys[base + member] : 0;
        const int place = there ? places[base + member] : 0;
        __syncthreads();
        if (!there || key < least) continue;
        if (key == least && number(lists.number_of, place) > bound) continue;
        const int slot = atomicAdd(&lists.counts[row], 1);
        keys[slot] = key;
        places[slot] = place;
    }
    __syncthreads();
}

// Scores of one row in memory; `first` is the place of the first of them.
struct Scores {
    typedef HG_VALUE Raw;
    const HG_VALUE* __restrict__ values;
    long long stride;
    int first;
    __device__ __forceinline__ Raw read(const int item) const { return values[item * stride]; }
    __device__ __forceinline__ Key key(const Raw raw) const { return ordered(raw); }
    __device__ __forceinline__ int place(const int item) const { return first + item; }
};

// The lists of the parts of one row, each cut to k entries or less.
struct Parts {
    typedef Key Raw;
    const Key* __restrict__ keys;
    const int* __restrict__ places;
    const int* __restrict__ counts;
    int k, room;
    __device__ __forceinline__ long long slot(const int item) const
    {
        return (long long)(item / k) * room + item % k;
    }
    __device__ __forceinline__ Raw read(const int item) const
    {
        return item % k < counts[item / k] ? keys[slot(item)] : 0;
    }
    __device__ __forceinline__ Key key(const Raw raw) const { return raw; }
    __device__ __forceinline__ int place(const int item) const { return places[slot(item)]; }
};

// Reads the items from `begin` on, up to `end` (for this thread's row: up to `own_end`), and leaves
// on the lists the k best of them and of what was there. Call it after a barrier; it ends with one.
template <class Source>
static __device__ void gather(const Lists& lists, const Source& source, const int row,
                              const int begin, const int end, const int own_end)
{
    typedef typename Source::Raw Raw;
    const int team = blockDim.x / lists.width, member = threadIdx.x / lists.width;
    const int room = (HG_HELD - HG_ROUND) * team, soon = 2 * lists.k + 2 * HG_WARP;
    const int enough = soon < room ? soon : room;  // from there on, a list is cut
    Key least = lists.least[row];
    int bound = lists.bounds[row], turn = 0;
    // A round ahead, so that the memory works while a round is looked at.
    Raw ahead[HG_ROUND];
#pragma unroll
    for (int i = 0; i < HG_ROUND; ++i) {
        const int item = begin + i * team + member;
        ahead[i] = item < own_end ? source.read(item) : Raw(0);
    }
    for (int base = begin; base < end; base += HG_ROUND * team) {
        Raw raw[HG_ROUND];
#pragma unroll
        for (int i = 0; i < HG_ROUND; ++i) {
            raw[i] = ahead[i];
            const int item = base + (HG_ROUND + i) * team + member;
            ahead[i] = item < own_end ? source.read(item) : Raw(0);
        }
        bool full = false;
#pragma unroll
        for (int i = 0; i < HG_ROUND; ++i) {
            const int item = base + i * team + member;
            const Key key = item < own_end ? source.key(raw[i]) : 0;
            if (key < least) continue;
            const int place = source.place(item);
            if (key == least && number(lists.number_of, place) >= bound) continue;
            const int slot = atomicAdd(&lists.counts[row], 1);
            lists.keys[row * lists.stride + slot] = key;
            lists.places[row * lists.stride + slot] = place;
            full |= slot >= enough;
        }
        // Every thread has to reach the barrier, so it stands first.
        if (__syncthreads_or(full) || end - base <= HG_ROUND * team) {
            cut(lists, &turn);
            least = lists.least[row];
            bound = lists.bounds[row];
        }
    }
}

extern "C" __global__ void __launch_bounds__(HG_THREADS, 2)
top_k_part(const int m, const int n, const int k, const int width, const int parts,
           const int first, const int resume, const HG_VALUE* __restrict__ scores,
           const long long row_stride, const long long item_stride,
           const long long* __restrict__ number_of, Key* __restrict__ keys,
           int* __restrict__ places, int* __restrict__ counts, Key* __restrict__ least,
           int* __restrict__ bounds)
{
    __shared__ int own_counts[HG_ROWS], own_bounds[HG_ROWS], totals[HG_TURNS * HG_ROWS];
    __shared__ Key own_least[HG_ROWS];
    const int tiles = (m - 1) / width + 1;
    const int part = blockIdx.x / tiles, first_row = blockIdx.x % tiles * width;
    const int length = (n - 1) / parts + 1, begin = part * length;
    const int end = n - begin < length ? n : begin + length;
    const int room = HG_HELD * blockDim.x / width;
    const long long list = (long long)first_row * parts + part;

    const int thread = threadIdx.x, row = thread % width;
    const bool exists = first_row + row < m;
    // Where this thread's list stands among all.
    const long long standing = list + (long long)row * parts;
    for (int i = thread; i < HG_TURNS * HG_ROWS; i += blockDim.x) totals[i] = 0;
    if (thread < width) {
        own_counts[row] = exists && resume ? counts[standing] : 0;
        own_least[row] = exists && resume ? least[standing] : 1;
        own_bounds[row] = exists && resume ? bounds[standing] : HG_LAST;
    }
    __syncthreads();
    const Lists lists = {k, width, keys + list * room, places + list * room, parts * room,
                         number_of, own_counts, own_least, own_bounds, totals};
    const Scores source = {scores + (first_row + row) * row_stride, item_stride, first};
    gather(lists, source, row, begin, end, exists ? end : begin);
    if (thread < width && exists) {
        counts[standing] = own_counts[row];
        least[standing] = own_least[row];
        bounds[standing] = own_bounds[row];
    }
}

extern "C" __global__ void __launch_bounds__(HG_THREADS, 2)
top_k_merge(const int k, const int parts, const int room, const Key* __restrict__ keys,
            const int* __restrict__ places, const int* __restrict__ counts,
            const long long* __restrict__ number_of, Key* __restrict__ merged_keys,
            int* __restrict__ merged_places, HG_VALUE* __restrict__ best,
            long long* __restrict__ ids)
{
    __shared__ int count, bound, totals[HG_TURNS * HG_ROWS];
    __shared__ Key least;
    __shared__ Key sorted[HG_LIMIT];
    __shared__ int at[HG_LIMIT];
    const int thread = threadIdx.x, threads = blockDim.x;
    const long long row = blockIdx.x, own_room = HG_HELD * threads;
    for (int i = thread; i < HG_TURNS * HG_ROWS; i += threads) totals[i] = 0;
    if (thread == 0) {
        count = 0;
        least = 1;
        bound = HG_LAST;
    }
    __syncthreads();
    const Lists lists = {k, 1, merged_keys + row * own_room, merged_places + row * own_room, 0,
                         number_of, &count, &least, &bound, totals};
    const long long list = row * parts;
    const Parts source = {keys + list * room, places + list * room, counts + list, k, room};
    gather(lists, source, 0, 0, parts * k, parts * k);

    // Bitonic sort, padded to a power of two with what comes last.
    int size = 1;
    while (size < k) size *= 2;
    for (int i = thread; i < size; i += threads) {
        sorted[i] = i < k ? lists.keys[i] : 0;
        at[i] = i < k ? lists.places[i] : 0;
    }
    __syncthreads();
    for (int span = 2; span <= size; span *= 2) {
        for (int step = span / 2; step > 0; step /= 2) {
            for (int i = thread; i < size / 2; i += threads) {
                const int left = 2 * i - (i & (step - 1)), right = left + step;
                const bool in_order =
                    sorted[left] > sorted[right] ||
                    (sorted[left] == sorted[right] &&
                     number(number_of, at[left]) < number(number_of, at[right]));
                if (in_order != ((left & span) == 0)) {
                    const Key key = sorted[left];
                    const int place = at[left];
                    sorted[left] = sorted[right];
                    at[left] = at[right];
                    sorted[right] = key;
                    at[right] = place;
                }
            }
            __syncthreads();
        }
    }
    for (int i = thread; i < k; i += threads) {
        best[row * k + i] = score_of(sorted[i]);
        ids[row * k + i] = at[i];
    }
}
