// Reciprocal neighbors in k-NN lists: for each entry (i, s) of ids (n, k), the similarity that the
// listed item's own list gives back to i, where i first occurs in it. 0 if it does not list i; if the
// id is -1 (or any other that is no item), i itself, or stood earlier in the row; or if one of the
// two similarities is not positive.
//
// grid    any number of blocks; rows have a stride of the grid. min(ceil(n / y), 65536) will do.
// block   (32, y), y up to 8: a warp for each row
// shared  none
// types   ids long long; HG_VALUE float or double for similarities and result
// result  deterministic: each entry is found by comparisons alone
// memory  reads the list of every listed item: n k k ids, from the cache where items share neighbors;
//         at least n k (id + 2 values). Once for each graph, not for each query.
#ifndef HG_VALUE
#define HG_VALUE float
#endif

#define HG_WARP 32
#define HG_ROWS 8
#define HG_ALL 0xffffffffu

// Where an id first stands among the first k of a list, or -1; every lane of the warp gets it.
static __device__ int first_place(const long long* __restrict__ list, const int k,
                                  const long long id)
{
    for (int base = 0; base < k; base += HG_WARP) {
        const int place = base + threadIdx.x;
        const unsigned found = __ballot_sync(HG_ALL, place < k && list[place] == id);
        if (found != 0) return base + __ffs(found) - 1;
    }
    return -1;
}

extern "C" __global__ void __launch_bounds__(HG_WARP * HG_ROWS)
mutual(const long long n, const int k, const long long* __restrict__ ids,
       const HG_VALUE* __restrict__ similarities, HG_VALUE* __restrict__ result)
{
    const long long stride = (long long)gridDim.x * blockDim.y;
    for (long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y; row < n; row += stride) {
        const long long* own = ids + row * k;
        for (int place = 0; place < k; ++place) {
            // The whole warp works on one entry: these values are the same in every lane.
            const long long id = own[place];
            HG_VALUE back = 0;
            if (id >= 0 && id < n && id != row && similarities[row * k + place] > 0 &&
                first_place(own, place, id) < 0) {
                const int there = first_place(ids + id * k, k, row);
                if (there >= 0 && similarities[id * k + there] > 0)
                    back = similarities[id * k + there];
            }
            if (threadIdx.x == 0) result[row * k + place] = back;
        }
    }
}
