from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kernel_runner import Kernel, KernelCompileError, KernelLaunchError

ORDERS = [0, 1, 2, 3, 12345]

SCALE = """
extern "C" __global__ void scale(float* x, const float factor, const int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}
"""

BLOCK_SUM = """
extern "C" __global__ void __launch_bounds__(WIDTH)
block_sum(const float* __restrict__ x, double* __restrict__ sums, const int n) {
    __shared__ double part[WIDTH];
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    part[t] = i < n ? x[i] : 0.0;
    FIRST_BARRIER
    for (int half = WIDTH / 2; half > 0; half /= 2) {
        if (t < half) part[t] += part[t + half];
        __syncthreads();
    }
    if (t == 0) sums[blockIdx.x] = part[0];
}
"""

WARP_SUM = """
extern "C" __global__ void warp_sum(const int* x, int* sum) {
    extern __shared__ int staged[];
    staged[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    int value = staged[blockDim.x - 1 - threadIdx.x];
    for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffffu, value, step);
    if (threadIdx.x % 32 == 0) atomicAdd(sum, value);
}
"""


def block_sums(x, *, barrier="__syncthreads();", order=0, sanitize=False, width=64):
    sums = np.zeros(-(-x.size // width))
    kernel = Kernel(BLOCK_SUM, "block_sum", {"WIDTH": width, "FIRST_BARRIER": barrier})
    arguments = (x, sums, np.int32(x.size))
    kernel.launch(sums.size, width, arguments, order=order, sanitize=sanitize)
    return sums


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=1000).astype(np.float32)


@pytest.mark.parametrize("sanitize", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_barriers_and_shared_memory_work_in_every_order(x, order, sanitize):
    padded = np.zeros(1024)
    padded[: x.size] = x
    expected = padded.reshape(-1, 64).sum(axis=1)
    np.testing.assert_allclose(block_sums(x, order=order, sanitize=sanitize), expected)


@pytest.mark.parametrize("sanitize", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_shuffles_atomics_and_dynamic_shared_memory(order, sanitize):
    values, total = np.arange(96, dtype=np.int32), np.zeros(1, dtype=np.int32)
    Kernel(WARP_SUM, "warp_sum").launch(
        1, 96, (values, total), shared_bytes=96 * 4, order=order, sanitize=sanitize
    )
    assert total[0] == values.sum()


MEETINGS = """
extern "C" __global__ void meetings(unsigned mask, int* turned, unsigned* votes, unsigned* sums) {
    const int lane = threadIdx.x;
    int value = lane;
    for (int turn = 0; turn < 5; ++turn) value = __shfl_xor_sync(mask, value, 1) + turn;
    turned[lane] = value;
    votes[lane] = __ballot_sync(mask, lane % 3 == 0);
    sums[lane] = __reduce_add_sync(mask, lane);  // the first lane ends before the others have read
}
"""


@pytest.mark.parametrize("order", [0, 1, 7])
@pytest.mark.parametrize("lanes", [32, 20])
def test_a_lane_that_goes_on_takes_nothing_from_those_that_have_yet_to_read(order, lanes):
    kernel, mask = Kernel(MEETINGS, "meetings"), np.uint32(0xFFFFFFFF)
    # Lanes that a short warp lacks do not vote, whatever those of the launch before did.
    for count in (32, lanes):
        turned, votes, sums = np.zeros(count, "i4"), np.zeros(count, "u4"), np.zeros(count, "u4")
        kernel.launch(1, count, (mask, turned, votes, sums), order=order)
    expected = np.arange(lanes)
    for turn in range(5):
        expected = expected[np.arange(lanes) ^ 1] + turn
    np.testing.assert_array_equal(turned, expected)
    assert set(votes) == {sum(1 << lane for lane in range(0, lanes, 3))}
    assert set(sums) == {lanes * (lanes - 1) // 2}


def test_a_process_that_checked_bounds_ends_in_order():
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
import numpy as np
from kernel_runner import Kernel
source = {SCALE!r}
Kernel(source, "scale").launch(1, 4, (np.ones(4, "f4"), np.float32(2), np.int32(4)), sanitize=True)
source = {WARP_SUM!r}
arguments = np.ones(32, "i4"), np.zeros(1, "i4")
Kernel(source, "warp_sum").launch(1, 32, arguments, shared_bytes=128, sanitize=True)
block_sum = Kernel({BLOCK_SUM!r}, "block_sum", {{"WIDTH": 64, "FIRST_BARRIER": ""}})
block_sum.launch(1, 64, (np.ones(64, "f4"), np.zeros(1), np.int32(64)), sanitize=True)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_barrier_shows_in_some_order(x):
    right = block_sums(x)
    wrong = [block_sums(x, barrier="", order=order) for order in ORDERS]
    assert any(not np.allclose(sums, right) for sums in wrong)


def test_static_shared_memory_does_not_keep_values_of_the_block_before():
    source = """
    extern "C" __global__ void leak(float* y) {
        __shared__ float value[1];
        if (blockIdx.x == 0) value[0] = 7;
        y[blockIdx.x] = value[0];
    }
    """
    y = np.zeros(2, dtype=np.float32)
    Kernel(source, "leak").launch(2, 1, (y,))
    assert y[0] == 7
    assert np.isnan(y[1])


def test_dynamic_shared_memory_begins_as_nan():
    source = """
    extern "C" __global__ void read(double* y) {
        extern __shared__ double value[];
        y[0] = value[3];
    }
    """
    y = np.zeros(1)
    Kernel(source, "read").launch(1, 1, (y,), shared_bytes=64)
    assert np.isnan(y[0])


@pytest.mark.parametrize("offset", [5, 6, -1])
def test_a_write_outside_of_an_array_is_noticed_without_checks(offset):
    source = 'extern "C" __global__ void poke(float* x, int at) { x[at] = 1; }'
    with pytest.raises(KernelLaunchError, match=r"wrote 4 bytes .* of an allocation of 20 bytes"):
        Kernel(source, "poke").launch(1, 1, (np.zeros(5, np.float32), np.int32(offset)))


@pytest.mark.parametrize("offset", [5, -1, 100_000])
def test_a_read_outside_of_an_array_is_noticed_with_checks(offset):
    source = 'extern "C" __global__ void peek(const int* x, int* y, int at) { y[0] = x[at]; }'
    arguments = (np.zeros(5, np.int32), np.zeros(1, np.int32), np.int32(offset))
    with pytest.raises(KernelLaunchError, match=r"peek: reads 4 bytes .*thread \(0, 0, 0\)"):
        Kernel(source, "peek").launch(1, 1, arguments, sanitize=True)


def test_a_write_past_a_shared_array_is_noticed_with_checks():
    source = """
    extern "C" __global__ void overrun(float* y, int at) {
        __shared__ float first[8];
        __shared__ float second[8];
        first[threadIdx.x] = second[threadIdx.x] = 0;
        first[threadIdx.x + at] = 1;
        y[threadIdx.x] = first[threadIdx.x] + second[threadIdx.x];
    }
    """
    with pytest.raises(KernelLaunchError, match="past the end of the variable 'first' of 32 bytes"):
        Kernel(source, "overrun").launch(
            1, 8, (np.zeros(8, np.float32), np.int32(1)), sanitize=True
        )


def test_dynamic_shared_memory_has_an_end_with_checks():
    source = """
    extern "C" __global__ void overrun(int at) {
        extern __shared__ float values[];
        values[at] = 1;
    }
    """
    kernel = Kernel(source, "overrun")
    kernel.launch(1, 1, (np.int32(7),), shared_bytes=32, sanitize=True)
    with pytest.raises(KernelLaunchError, match="writes 4 bytes"):
        kernel.launch(1, 1, (np.int32(8),), shared_bytes=32, sanitize=True)


def test_barriers_of_divergent_branches_are_an_error():
    source = """
    extern "C" __global__ void diverge(int* y) {
        if (threadIdx.x < 16) {
            __syncthreads();
        } else {
            __syncthreads();
        }
        y[0] = 1;
    }
    """
    with pytest.raises(KernelLaunchError, match=r"different barriers: diverge\.cu:4 and .*:6"):
        Kernel(source, "diverge").launch(1, 32, (np.zeros(1, np.int32),))


def test_a_barrier_that_some_threads_never_reach_is_an_error():
    source = """
    extern "C" __global__ void wait(int* y) {
        if (threadIdx.x < 16) __syncthreads();
        else y[0] = __shfl_sync(0xffffffffu, 1, 0);
    }
    """
    with pytest.raises(KernelLaunchError, match="wait for each other forever"):
        Kernel(source, "wait").launch(1, 32, (np.zeros(1, np.int32),))


def test_a_failed_assertion_names_line_and_thread():
    source = 'extern "C" __global__ void check(int n) {\n    assert(threadIdx.x < n);\n}'
    with pytest.raises(KernelLaunchError, match=r"failed at check\.cu:2, thread \(3, 0, 0\)"):
        Kernel(source, "check").launch(1, 8, (np.int32(3),))


def test_the_engine_still_works_after_a_failure(x):
    test_a_barrier_that_some_threads_never_reach_is_an_error()
    np.testing.assert_allclose(block_sums(x).sum(), x.sum(dtype=float))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(4), np.float32(2), np.int32(4)), "argument 0 .* array of float32; got float64"),
        ((np.zeros(4, "f4"), 2.0, np.int32(4)), r"argument 1 .* np\.float32\(\.\.\.\); got float"),
        ((np.zeros(4, "f4"), np.float64(2), np.int32(4)), "argument 1 .* got float64"),
        ((np.zeros(4, "f4"), np.float32(2), 4), "argument 2 .* got int"),
        ((np.zeros(4, "f4"), np.float32(2)), "takes 3 arguments .* got 2"),
        (([1.0], np.float32(2), np.int32(1)), "a pointer takes a NumPy array; got list"),
        ((np.zeros((4, 4), "f4")[:, 1], np.float32(2), np.int32(4)), "must be contiguous"),
    ],
)
def test_arguments_of_another_type_are_refused(arguments, message):
    with pytest.raises(TypeError, match=message):
        Kernel(SCALE, "scale").launch(1, 4, arguments)


def test_the_signature_follows_the_macros():
    source = 'extern "C" __global__ void f(const T* a, T* b, long long n, bool flag) {}'
    assert Kernel(source, "f", {"T": "double"}).signature == ["&f8", "*f8", "i8", "b1"]
    assert Kernel(source, "f", {"T": "int"}).signature == ["&i4", "*i4", "i8", "b1"]


@pytest.mark.parametrize(
    ("grid", "block", "shared", "message"),
    [
        (0, 32, 0, "a grid of"),
        (1, 2048, 0, "a block of"),
        ((1, 70000), 32, 0, "a grid of"),
        (1, 32, 1 << 20, "dynamic shared memory"),
    ],
)
def test_launches_beyond_the_limits_are_refused(grid, block, shared, message):
    arguments = (np.zeros(4, "f4"), np.float32(2), np.int32(4))
    with pytest.raises(KernelLaunchError, match=message):
        Kernel(SCALE, "scale").launch(grid, block, arguments, shared_bytes=shared)


def test_launch_bounds_are_kept(x):
    kernel = Kernel(BLOCK_SUM, "block_sum", {"WIDTH": 64, "FIRST_BARRIER": "__syncthreads();"})
    with pytest.raises(KernelLaunchError, match="__launch_bounds__ promised 64"):
        kernel.launch(1, 128, (x, np.zeros(16), np.int32(1000)))


def test_a_broken_source_says_what_is_wrong_and_where():
    with pytest.raises(KernelCompileError, match=r"broken\.cu:1:.*undeclared_name"):
        Kernel('extern "C" __global__ void broken() { undeclared_name = 1; }', "broken").launch(
            1, 1, ()
        )


def test_an_unknown_kernel_lists_those_there_are():
    with pytest.raises(KernelCompileError, match="no kernel shrink in the source; it has scale"):
        Kernel(SCALE, "shrink").launch(1, 1, ())


def test_a_grid_of_three_dimensions_visits_every_thread_once():
    source = """
    extern "C" __global__ void visit(int* count, int width, int height) {
        const int x = blockIdx.x * blockDim.x + threadIdx.x;
        const int y = blockIdx.y * blockDim.y + threadIdx.y;
        const int z = blockIdx.z * blockDim.z + threadIdx.z;
        count[(z * height + y) * width + x] += 1;
    }
    """
    for order in ORDERS:
        count = np.zeros((4, 6, 10), dtype=np.int32)
        Kernel(source, "visit").launch(
            (5, 2, 2), (2, 3, 2), (count, np.int32(10), np.int32(6)), order=order, sanitize=True
        )
        assert (count == 1).all()


SHARED = """
extern "C" __global__ void first(float* x) {
    __shared__ float part[COUNT];
    part[threadIdx.x] = x[threadIdx.x];
    x[0] = part[0] + 1;
}
extern "C" __global__ void second(float* x) {
    __shared__ float other[4000];
    other[threadIdx.x] = x[threadIdx.x];
    x[0] = other[0];
}
"""


HELPED = """
static __device__ KIND float& own(const int place) {
    __shared__ float part[COUNT];
    return part[place];
}
extern "C" __global__ void alone(float* x) {
    __shared__ float other[4000];
    other[threadIdx.x] = x[threadIdx.x];
    x[0] = other[0];
}
extern "C" __global__ void helped(float* x) {
    __shared__ float other[4000];
    other[threadIdx.x] = own(threadIdx.x) = x[threadIdx.x];
    x[0] = other[0] + own(0);
}
"""


@pytest.mark.parametrize("kind", ["__noinline__", "__forceinline__"])
def test_shared_memory_of_called_functions_counts_for_the_kernel(kind):
    # 4000 floats of its own and 8288 of a function that it calls are 48 KiB.
    x = np.ones(1, np.float32)
    Kernel(HELPED, "helped", {"COUNT": 8288, "KIND": kind}).launch(1, 1, (x,))
    assert x[0] == 2
    with pytest.raises(KernelCompileError, match=r"'helped.*too much shared data \(49156 bytes"):
        Kernel(HELPED, "helped", {"COUNT": 8289, "KIND": kind}).launch(1, 1, (x,))


@pytest.mark.parametrize("sanitize", [False, True])
def test_static_shared_memory_beyond_48_kib_is_refused_as_ptxas_does(sanitize):
    x = np.ones(1, np.float32)
    # 48 KiB in one kernel, and those of another one beside it.
    Kernel(SHARED, "first", {"COUNT": 12 * 1024}).launch(1, 1, (x,), sanitize=sanitize)
    assert x[0] == 2
    with pytest.raises(KernelCompileError, match=r"'first.*too much shared data \(49156 bytes"):
        Kernel(SHARED, "first", {"COUNT": 12 * 1024 + 1}).launch(1, 1, (x,), sanitize=sanitize)
