// Sums over the rows of tall row-major arrays, in two stages: many blocks first, then one for a few
// columns; and what conjugate gradients make of these sums, column by column.
//
// column_dots: for each row block, the dot products of its columns of two arrays (n, m)
//   macros  HG_PACK  columns of a thread, next to each other: 1, 2 or 4, a divisor of m; at most 16
//                    bytes. Arrays of m columns must begin at a multiple of the bytes of a pack.
//   block   (x, y), at most 256 threads: x packs and y rows at a time; any x and y are right
//   grid    (row blocks, ceil(m / (x * HG_PACK))); each row block takes y rows, passes times, and
//           row blocks times y times passes are at least n
//   shared  2 KiB for each column of a pack, static
//   needs   partial, double (row blocks, m), every entry of which is written
// column_sums: adds up partial sums (rows, m) of any kernel
// cg_pace: adds up the curvature of a product, and how far each column goes that is not at its target:
//         where the curvature is above least times its length. With a rank, less the column dots of
//         restricted and coefficients (rank, m), and 0 if that is not above noise times the squares
//         of restricted. Also sets the tickets that the next cg_residual takes to 0
// cg_turn: adds up the squares of a residual, and where each column is after an update
//   block   (4, y), y a power of two up to 128; grid ceil(m / 4): 4 columns for each block
//   shared  4 KiB, static
// cg_residual: R -= Q step with R and Q (n, m), and what cg_turn makes of the squares of the new R.
//         Row blocks are in groups of 128: the last of a group to end adds up those of the group, and
//         the last of these the groups. Which one is last changes nothing: sums are taken by number
//   macros, block, grid, shared as column_dots
//   needs   partial, double (row blocks + groups, m); tickets, int (grid.y, groups + 1), all 0
//
// types   HG_VALUE float or double; sums and numbers of columns always double, flags bool
// result  deterministic: sums are taken in an order that depends on n, passes and the shape of the
//         block alone
// memory  column_dots reads both arrays once (one of them, if they are the same), and writes m doubles
//         for each row block; column_sums reads those. cg_residual reads R and Q and writes R, each
//         once: 3 n m values, the minimum; and writes and reads m doubles for each row block
#ifndef HG_VALUE
#define HG_VALUE float
#endif
#ifndef HG_PACK
#define HG_PACK 4
#endif

#define HG_THREADS 256
#define HG_SLICE 4                                        // columns of a block: a sector of doubles
#define HG_LINES 128
#define HG_FLIGHT 4                                       // loads that are under way together
#define HG_GROUP 128                                      // row blocks that are added up together
#define HG_INFINITE __longlong_as_double(0x7ff0000000000000ll)

struct __align__(sizeof(HG_VALUE) * HG_PACK) Pack { HG_VALUE at[HG_PACK]; };

extern "C" __global__ void __launch_bounds__(HG_THREADS, 4)
column_dots(const long long n, const int m, const int passes, const HG_VALUE* __restrict__ left,
            const HG_VALUE* __restrict__ right, double* __restrict__ partial)
{
    __shared__ double dots[HG_PACK][HG_THREADS];
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * HG_PACK;
    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
    double dot[HG_PACK] = {};
    if (column < m) {
        const long long first = (long long)blockIdx.x * passes * blockDim.y + threadIdx.y;
        const long long last = min(n, first + (long long)passes * blockDim.y);
#pragma unroll 1
        for (long long row = first; row < last; row += blockDim.y) {
            const Pack one = *(const Pack*)(left + row * m + column);
            const Pack other = *(const Pack*)(right + row * m + column);
#pragma unroll
            for (int c = 0; c < HG_PACK; ++c) dot[c] += (double)one.at[c] * (double)other.at[c];
        }
    }
#pragma unroll
    for (int c = 0; c < HG_PACK; ++c) dots[c][thread] = dot[c];
    __syncthreads();
    if (threadIdx.y == 0 && column < m) {
#pragma unroll
        for (int c = 0; c < HG_PACK; ++c) {
            for (int line = 1; line < blockDim.y; ++line)
                dot[c] += dots[c][line * blockDim.x + threadIdx.x];
            partial[(long long)blockIdx.x * m + column + c] = dot[c];
        }
    }
}

// The sum over rows of what `term` gives for each, known to the first line of threads, which are those
// of one column each. The whole block is here.
template <class Term>
static __device__ __forceinline__ double column_total(double (*parts)[HG_SLICE],
                                                      const long long rows, const bool inside,
                                                      const Term term)
{
    const int line = threadIdx.y, lines = blockDim.y;
    double sum = 0.0;
    if (inside) {
        // Each of these sums has its own load under way.
        double some[HG_FLIGHT] = {};
        long long row = line;
        for (; row + (HG_FLIGHT - 1) * lines < rows; row += HG_FLIGHT * lines)
#pragma unroll
            for (int j = 0; j < HG_FLIGHT; ++j) some[j] += term(row + j * lines);
        for (; row < rows; row += lines) sum += term(row);
#pragma unroll
        for (int j = 0; j < HG_FLIGHT; ++j) sum += some[j];
    }
    parts[line][threadIdx.x] = sum;
    __syncthreads();
    for (int half = lines / 2; half > 0; half /= 2) {
        if (line < half) parts[line][threadIdx.x] += parts[line + half][threadIdx.x];
        __syncthreads();
    }
    // The first line alone writes there again.
    return line == 0 ? parts[0][threadIdx.x] : 0.0;
}

extern "C" __global__ void __launch_bounds__(HG_SLICE * HG_LINES, 2)
column_sums(const long long rows, const int m, const double* __restrict__ partial,
            double* __restrict__ sums)
{
    __shared__ double parts[HG_LINES][HG_SLICE];
    const int column = blockIdx.x * HG_SLICE + threadIdx.x;
    const double total = column_total(parts, rows, column < m, [=](const long long row) {
        return partial[row * m + column];
    });
    if (threadIdx.y == 0 && column < m) sums[column] = total;
}

extern "C" __global__ void __launch_bounds__(HG_SLICE * HG_LINES, 2)
cg_pace(const long long rows, const int m, const double* __restrict__ partial, const long long rank,
        const HG_VALUE* __restrict__ restricted, const HG_VALUE* __restrict__ coefficients,
        const double noise, const double least, const double* __restrict__ squared,
        const double* __restrict__ length, const double* __restrict__ target,
        double* __restrict__ step, bool* __restrict__ moving, const int ticket_count,
        int* __restrict__ tickets)
{
    __shared__ double parts[HG_LINES][HG_SLICE];
    const int column = blockIdx.x * HG_SLICE + threadIdx.x;
    const bool inside = column < m;
    for (int mine = column * blockDim.y + threadIdx.y; mine < ticket_count;
         mine += gridDim.x * HG_SLICE * blockDim.y)
        tickets[mine] = 0;
    double curvature = column_total(parts, rows, inside, [=](const long long row) {
        return partial[row * m + column];
    });
    if (rank > 0) {
        const double share = column_total(parts, rank, inside, [=](const long long row) {
            return (double)restricted[row * m + column] * (double)coefficients[row * m + column];
        });
        const double squares = column_total(parts, rank, inside, [=](const long long row) {
            return (double)restricted[row * m + column] * (double)restricted[row * m + column];
        });
        curvature -= share;
        if (!(curvature > noise * squares)) curvature = 0.0;
    }
    if (threadIdx.y != 0 || !inside) return;
    const double left = squared[column];
    const bool moves = left > target[column] && curvature > least * length[column];
    step[column] = moves ? left / curvature : 0.0;
    moving[column] = moves;
}

// Where columns are, and where they go from there.
struct Standing {
    const bool* __restrict__ moving;
    const bool* __restrict__ fresh;
    const double* __restrict__ squared;
    const double* __restrict__ length;
    const double* __restrict__ target;
};

struct Turn {
    double* __restrict__ ratio;
    double* __restrict__ squared;
    double* __restrict__ length;
    double* __restrict__ target;
    bool* __restrict__ fresh;
};

static __device__ __forceinline__ void turn_column(const int column, const double left,
                                                   const int stop_early, const Standing& before,
                                                   const Turn& after)
{
    const bool moved = before.moving[column];
    const double squared = before.squared[column], target = before.target[column];
    const double kept = moved ? left / squared : 0.0;
    const bool stuck = stop_early && !moved && before.fresh[column] && squared > target;
    after.ratio[column] = kept;
    after.squared[column] = left;
    // The old direction is orthogonal to the new residual.
    after.length[column] = left + kept * kept * before.length[column];
    after.target[column] = stuck ? HG_INFINITE : target;
    after.fresh[column] = !moved;
}

extern "C" __global__ void __launch_bounds__(HG_SLICE * HG_LINES, 2)
cg_turn(const long long rows, const int m, const double* __restrict__ partial,
        const int stop_early, const bool* __restrict__ moving, const bool* __restrict__ fresh,
        const double* __restrict__ squared, const double* __restrict__ length,
        const double* __restrict__ target, double* __restrict__ ratio,
        double* __restrict__ new_squared, double* __restrict__ new_length,
        double* __restrict__ new_target, bool* __restrict__ new_fresh)
{
    __shared__ double parts[HG_LINES][HG_SLICE];
    const int column = blockIdx.x * HG_SLICE + threadIdx.x;
    const double left = column_total(parts, rows, column < m, [=](const long long row) {
        return partial[row * m + column];
    });
    if (threadIdx.y != 0 || column >= m) return;
    turn_column(column, left, stop_early, {moving, fresh, squared, length, target},
                {ratio, new_squared, new_length, new_target, new_fresh});
}

// The sums of all lines of a block, known to its first line. The whole block is here.
static __device__ __forceinline__ void add_lines(double (&sum)[HG_PACK],
                                                 double (*lines)[HG_THREADS])
{
    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
    for (int c = 0; c < HG_PACK; ++c) lines[c][thread] = sum[c];
    __syncthreads();
    if (threadIdx.y != 0) return;
#pragma unroll
    for (int c = 0; c < HG_PACK; ++c)
        for (int line = 1; line < blockDim.y; ++line)
            sum[c] += lines[c][line * blockDim.x + threadIdx.x];
}

// Stores the sums of a block's columns, takes a ticket, and tells the whole block if it is the last.
static __device__ __forceinline__ bool is_last(const double (&sum)[HG_PACK], double* place,
                                               const bool inside, int* ticket, const int takers)
{
    // Not "last": shared memory that nobody has written reads as true in hard mode, and a thread that
    // does not wait for this would be right by chance.
    __shared__ bool more;
    if (threadIdx.y == 0 && inside) {
#pragma unroll
        for (int c = 0; c < HG_PACK; ++c) place[c] = sum[c];
        // They are there for everybody before the ticket is taken.
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) more = atomicAdd(ticket, 1) != takers - 1;
    __syncthreads();
    __threadfence();
    return !more;
}

// The sums of some rows of partial sums, known to the first line. The whole block is here.
static __device__ __forceinline__ void add_rows(double (&sum)[HG_PACK], const double* partial,
                                                const int rows, const int m, const bool inside,
                                                double (*lines)[HG_THREADS])
{
#pragma unroll
    for (int c = 0; c < HG_PACK; ++c) sum[c] = 0.0;
    if (inside)
#pragma unroll 4
        for (int row = threadIdx.y; row < rows; row += blockDim.y)
#pragma unroll
            for (int c = 0; c < HG_PACK; ++c)
                // Other blocks have written them: from L2, whatever L1 has of them.
                sum[c] += __ldcg(partial + (long long)row * m + c);
    add_lines(sum, lines);
}

extern "C" __global__ void __launch_bounds__(HG_THREADS)
cg_residual(const long long n, const int m, const int passes, const double* __restrict__ step,
            const HG_VALUE* __restrict__ product, HG_VALUE* __restrict__ residual,
            double* partial, int* tickets, const int stop_early, const bool* __restrict__ moving,
            const bool* __restrict__ fresh, const double* __restrict__ squared,
            const double* __restrict__ length, const double* __restrict__ target,
            double* __restrict__ ratio, double* __restrict__ new_squared,
            double* __restrict__ new_length, double* __restrict__ new_target,
            bool* __restrict__ new_fresh)
{
    __shared__ double lines[HG_PACK][HG_THREADS];
    const int column = (blockIdx.y * blockDim.x + threadIdx.x) * HG_PACK;
    const bool inside = column < m;
    double square[HG_PACK] = {};
    if (inside) {
        HG_VALUE by[HG_PACK];
#pragma unroll
        for (int c = 0; c < HG_PACK; ++c) by[c] = (HG_VALUE)step[column + c];
        const long long first = (long long)blockIdx.x * passes * blockDim.y + threadIdx.y;
        const long long last = min(n, first + (long long)passes * blockDim.y);
#pragma unroll 2
        for (long long row = first; row < last; row += blockDim.y) {
            const long long place = row * m + column;
            Pack left = *(const Pack*)(residual + place);
            const Pack taken = *(const Pack*)(product + place);
#pragma unroll
            for (int c = 0; c < HG_PACK; ++c) {
                left.at[c] = left.at[c] - taken.at[c] * by[c];
                square[c] += (double)left.at[c] * (double)left.at[c];
            }
            *(Pack*)(residual + place) = left;
        }
    }
    add_lines(square, lines);
    const int groups = (gridDim.x - 1) / HG_GROUP + 1, group = blockIdx.x / HG_GROUP;
    const int start = group * HG_GROUP, members = min(HG_GROUP, (int)gridDim.x - start);
    int* const own = tickets + (long long)blockIdx.y * (groups + 1);
    double* const sums = partial + column;
    double* const totals = sums + (long long)gridDim.x * m;
    if (!is_last(square, sums + (long long)blockIdx.x * m, inside, own + group, members)) return;
    add_rows(square, sums + (long long)start * m, members, m, inside, lines);
    if (!is_last(square, totals + (long long)group * m, inside, own + groups, groups)) return;
    add_rows(square, totals, groups, m, inside, lines);
    if (threadIdx.y != 0 || !inside) return;
#pragma unroll
    for (int c = 0; c < HG_PACK; ++c)
        turn_column(column + c, square[c], stop_early, {moving, fresh, squared, length, target},
                    {ratio, new_squared, new_length, new_target, new_fresh});
}
