"""Kernels on arrays of more than 2^31 entries, where a place counted in 32 bits is a wrong one.

Nobody waits for billions of entries here. The arrays are addresses without memory, of which only
the pages that are written to exist, and the stand-in runs one block of the launch: the one that
has the last row.
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import contextmanager

import numpy as np
import pytest

from hybrid_gpu import kernels

# Block (128, 2) and 1024 row blocks: the last row is one of the last block.
M, N = 128, 2048 * 8193
assert N * M > 2**31
FLOAT32, FLOAT64, INT32 = np.dtype("float32"), np.dtype("float64"), np.dtype("int32")


@pytest.fixture
def kernel(gpu, standin):
    from hybrid_gpu.backends import cuda_launch

    return cuda_launch.compiled


@contextmanager
def only_block(standin, number):
    """One block of what is launched, and of nothing else: streams may run late."""
    import cupy

    cupy.cuda.Device().synchronize()
    with standin.only_block(number):
        yield
        cupy.cuda.Device().synchronize()


def large(shape, dtype):
    """Zeros, as the device and as the host sees them; pages that nobody writes are not there."""
    import cupy

    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    pages = mmap.mmap(-1, count * dtype.itemsize, flags=flags)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    memory = cupy.cuda.UnownedMemory(address, count * dtype.itemsize, pages, 0)
    there = cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))
    return there, np.frombuffer(pages, dtype).reshape(shape)


def one_entry():
    """A matrix whose last row lists the row before it, with a weight of 0.5."""
    import cupy

    indptr, seen = large((N + 1,), INT32)
    seen[N] = 1
    return indptr, cupy.asarray([N - 2], INT32), cupy.asarray([0.5], FLOAT32)


def test_laplacian_step(kernel, standin):
    import cupy

    direction, seen = large((N, M), FLOAT32)
    product, made = large((N, M), FLOAT32)
    seen[N - 1], seen[N - 2] = 1, np.arange(M)
    made[N - 1] = 99
    arguments = (np.int64(N), np.int32(M), np.float32(0.5), *one_entry(), direction, product)
    partial = cupy.zeros((1024, M), FLOAT64)
    with only_block(standin, 1023):
        kernel("laplacian_step", "laplacian_step", FLOAT32, INT32)(
            (1024, 1), (128, 2), (*arguments, partial, None)
        )
    np.testing.assert_array_equal(made[N - 1], 1 - 0.25 * np.arange(M))
    # The block has the row before the last one as well, whose own row is empty.
    np.testing.assert_array_equal(made[N - 2], np.arange(M))
    dots = (1 - 0.25 * np.arange(M)) + np.arange(M) ** 2.0
    np.testing.assert_allclose(cupy.asnumpy(partial[1023]), dots)


class Copied:
    """The last row of a product once more, times 3: what kernels are told, and what they wrote."""

    def __init__(self):
        import cupy

        there, self.made = large((N, M), FLOAT32)
        self.made[N - 2 :] = 5
        # No column is folded, and the last row alone is copied.
        unfolded = (np.int32(N), np.float32(1))
        self.arguments = (*unfolded, np.int64(N - 1), cupy.full(1, 3, FLOAT32), there)

    def check(self, product):
        np.testing.assert_array_equal(self.made[N - 1], 3 * product)
        np.testing.assert_array_equal(self.made[N - 2], 5)


@pytest.mark.parametrize(
    ("name", "block", "tile"), [("csr_spmm", (128, 2), 128), ("csr_spmm_long_rows", (256, 1), 32)]
)
@pytest.mark.parametrize("subtract", [0, 1])
def test_csr_spmm(kernel, standin, name, block, tile, subtract):
    dense, seen = large((N, M), FLOAT32)
    result, made = large((N, M), FLOAT32)
    seen[N - 2], made[N - 1] = np.arange(M), 7
    copied = Copied()
    arrays = (*one_entry(), dense, result, *copied.arguments)
    blocks = N // block[1]
    with only_block(standin, blocks - 1):
        kernel("csr_spmm", name, FLOAT32, INT32)(
            (blocks, M // tile), block, (np.int64(N), np.int32(M), np.int32(subtract), *arrays)
        )
    expected = 0.5 * np.arange(M)
    np.testing.assert_array_equal(made[N - 1], 7 - expected if subtract else expected)
    copied.check(expected)


def test_csr_spmm_counts_entries_in_64_bits(gpu, standin):
    import cupy

    count = 2**31 + 3
    data, values = large((count,), FLOAT32)
    indices, columns = large((count,), "int64")
    values[-3:], columns[-3:] = [1, 2, 3], [0, 1, 0]
    indptr = cupy.asarray([2**31, count])
    dense = cupy.asarray([[1, 10], [100, 1000]], FLOAT32)
    for rows in (1, 2**24):  # long rows, and as many rows as make them short
        matrix = gpu.csr(data, indices, indptr, (rows, 2))
        if rows > 1:
            from hybrid_gpu.backends import cuda_launch

            result = cupy.empty((1, 2), FLOAT32)
            parts = (matrix.indptr, matrix.indices, matrix.data, dense, result)
            # No column is folded, and no row copied.
            whole = (np.int64(2), np.float32(1), np.int64(1), None, None)
            arguments = (np.int64(1), np.int32(2), np.int32(0), *parts, *whole)
            run = cuda_launch.compiled("csr_spmm", "csr_spmm", FLOAT32, np.dtype("int64"))
            run((1, 1), (32, 8), arguments)
        else:
            result = gpu.spmm(matrix, dense)
        assert gpu.to_numpy(result).tolist() == [[204.0, 2040.0]]


def test_wide_laplacian(kernel, standin):
    import cupy

    direction, seen = large((N, M), FLOAT32)
    product, made = large((N, M), FLOAT32)
    seen[N - 1], seen[N - 2] = 1, np.arange(M)
    made[N - 1] = 99
    shape = kernels.wide_shape(M, 4)
    grid = shape.grid(N, M)
    partial, sums = large((grid[0], M), FLOAT64)
    arguments = (np.int64(N), np.int32(M), np.int32(shape.passes), np.float32(0.5), *one_entry())
    run = kernel("wide_product", "wide_laplacian", FLOAT32, INT32, shape.defines)
    with only_block(standin, grid[0] - 1):
        run(grid, (shape.lanes, shape.rows), (*arguments, direction, product, partial, None))
    np.testing.assert_array_equal(made[N - 1], 1 - 0.25 * np.arange(M))
    np.testing.assert_array_equal(made[N - 2], np.arange(M))
    dots = (1 - 0.25 * np.arange(M)) + np.arange(M) ** 2.0
    cupy.cuda.Device().synchronize()
    np.testing.assert_allclose(sums[-1], dots)


@pytest.mark.parametrize("subtract", [0, 1])
def test_wide_spmm(kernel, standin, subtract):
    dense, seen = large((N, M), FLOAT32)
    result, made = large((N, M), FLOAT32)
    seen[N - 2], made[N - 1] = np.arange(M), 7
    shape = kernels.wide_shape(M, 4)
    grid = shape.grid(N, M)
    sizes = (np.int64(N), np.int32(M), np.int32(shape.passes), np.int32(subtract))
    copied = Copied()
    # Kept until the stream has run: this memory is not CuPy's, and goes back at once.
    arguments = (*sizes, *one_entry(), dense, result, *copied.arguments)
    run = kernel("wide_product", "wide_spmm", FLOAT32, INT32, shape.defines)
    with only_block(standin, grid[0] - 1):
        run(grid, (shape.lanes, shape.rows), arguments)
    expected = 0.5 * np.arange(M)
    np.testing.assert_array_equal(made[N - 1], 7 - expected if subtract else expected)
    copied.check(expected)


def test_column_dots(kernel, standin):
    (left, one), (right, other) = (large((N, M), FLOAT32) for _ in range(2))
    one[N - 1], other[N - 1] = 2, np.arange(M)
    shape = kernels.tile_shape(M, 4)
    grid = shape.grid(N, M)
    partial, sums = large((grid[0], M), FLOAT64)
    sizes = (np.int64(N), np.int32(M), np.int32(shape.passes))
    run = kernel("columns", "column_dots", FLOAT32, None, shape.defines)
    with only_block(standin, grid[0] - 1):
        run(grid, shape.block, (*sizes, left, right, partial))
    np.testing.assert_array_equal(sums[-1], 2.0 * np.arange(M))


def test_cg_update(kernel, standin):
    import cupy

    pairs = [large((N, M), FLOAT32) for _ in range(4)]
    (direction, p), (product, q), (solution, x), (residual, r) = pairs
    p[N - 1], q[N - 1], x[N - 1], r[N - 1] = 1, 2, 10, np.arange(M)
    shape = kernels.tile_shape(M, 4)
    grid = shape.grid(N, M)
    partial, sums = large((grid[0], M), FLOAT64)
    sizes = (np.int64(N), np.int32(M), np.int32(shape.passes), cupy.full(M, 3.0))
    run = kernel("cg_update", "cg_update", FLOAT32, None, shape.defines)
    with only_block(standin, grid[0] - 1):
        run(grid, shape.block, (*sizes, direction, product, solution, residual, partial))
    np.testing.assert_array_equal(x[N - 1], np.full(M, 13.0))
    np.testing.assert_array_equal(r[N - 1], np.arange(M) - 6.0)
    np.testing.assert_array_equal(sums[-1], (np.arange(M) - 6.0) ** 2)


def test_cg_direction(kernel, standin):
    import cupy

    (residual, r), (direction, p) = (large((N, M), FLOAT32) for _ in range(2))
    r[N - 1], p[N - 1] = 1, np.arange(M)
    shape = kernels.tile_shape(M, 4)
    grid = shape.grid(N, M)
    sizes = (np.int64(N), np.int32(M), np.int32(shape.passes), cupy.full(M, 3.0))
    run = kernel("cg_direction", "cg_direction", FLOAT32, None, shape.defines)
    with only_block(standin, grid[0] - 1):
        run(grid, shape.block, (*sizes, residual, direction))
    np.testing.assert_array_equal(p[N - 1], 1 + 3.0 * np.arange(M))


def test_cg_residual(kernel, standin):
    import cupy

    from hybrid_gpu.backends import cuda_steps

    (product, q), (residual, r) = (large((N, M), FLOAT32) for _ in range(2))
    q[N - 1], r[N - 1] = 2, np.arange(M)
    shape = kernels.tile_shape(M, 4)
    grid = shape.grid(N, M)
    groups = -(-grid[0] // cuda_steps._GROUP)
    partial, sums = large((grid[0] + groups, M), FLOAT64)
    # All others have ended: this block is the last of its group, and its group the last.
    tickets = np.zeros((grid[1], groups + 1), INT32)
    tickets[:, groups - 1] = (grid[0] - 1) % cuda_steps._GROUP
    tickets[:, groups] = groups - 1
    moving, fresh = cupy.ones(M, bool), cupy.zeros(M, bool)
    state = (moving, fresh, *(cupy.ones(M) for _ in range(3)))
    turn = (*(cupy.zeros(M) for _ in range(4)), cupy.zeros(M, bool))
    sizes = (np.int64(N), np.int32(M), np.int32(shape.passes), cupy.full(M, 3.0))
    places = (product, residual, partial, cupy.asarray(tickets), np.int32(0))
    run = kernel("columns", "cg_residual", FLOAT32, None, shape.defines)
    with only_block(standin, grid[0] - 1):
        run(grid, shape.block, (*sizes, *places, *state, *turn))
    np.testing.assert_array_equal(r[N - 1], np.arange(M) - 6.0)
    np.testing.assert_array_equal(sums[grid[0] - 1], (np.arange(M) - 6.0) ** 2)
    np.testing.assert_array_equal(sums[-1], (np.arange(M) - 6.0) ** 2)
    np.testing.assert_array_equal(cupy.asnumpy(turn[1]), (np.arange(M) - 6.0) ** 2)


def test_cg_solution(kernel, standin):
    import cupy

    pairs = [large((N, M), FLOAT32) for _ in range(3)]
    (residual, r), (solution, x), (direction, p) = pairs
    r[N - 1], x[N - 1], p[N - 1] = 1, 10, np.arange(M)
    shape = kernels.tile_shape(M, 4)
    grid = shape.grid(N, M)
    sizes = (np.int64(N), np.int32(M), np.int32(shape.passes), cupy.full(M, 2.0), cupy.full(M, 3.0))
    run = kernel("cg_direction", "cg_solution", FLOAT32, None, shape.defines)
    with only_block(standin, grid[0] - 1):
        run(grid, shape.block, (*sizes, residual, solution, direction))
    np.testing.assert_array_equal(x[N - 1], 10 + 2.0 * np.arange(M))
    np.testing.assert_array_equal(p[N - 1], 1 + 3.0 * np.arange(M))


def test_top_k_reads_far_apart(gpu, standin):
    import cupy

    row, item = 2**31 + 64, 2**30 + 16
    there, seen = large((row + 2 * item + 1,), FLOAT32)
    seen[[0, item, 2 * item]] = 1, 3, 2
    seen[[row, row + item, row + 2 * item]] = 7, 5, 6
    scores = cupy.lib.stride_tricks.as_strided(there, (2, 3), (4 * row, 4 * item))
    best = gpu.top_k(scores, 2)
    assert gpu.to_numpy(best.ids).tolist() == [[1, 2], [0, 2]]
    assert gpu.to_numpy(best.scores).tolist() == [[3, 2], [7, 6]]


def test_top_k_keeps_lists_far_behind(kernel, standin):
    import cupy

    rows, n, k, room = 2**20 + 1, 3000, 5, 2048
    assert rows * room > 2**31
    (keys, _), (places, listed) = (large((rows, room), kind) for kind in ("uint32", "int32"))
    (counts, count), (bounds, _) = (large((rows,), INT32) for _ in range(2))
    least, _ = large((rows,), "uint32")
    # Every row is the same one: a stride of 0.
    scores = cupy.arange(n, dtype=FLOAT32)
    arguments = (*map(np.int32, (rows, n, k, 1, 1, 7, 0)), scores, np.int64(0), np.int64(1), None)
    with only_block(standin, rows - 1):
        kernel("top_k", "top_k_part", FLOAT32)(
            (rows,), (256,), (*arguments, keys, places, counts, least, bounds)
        )
    assert count[-1] == k
    assert sorted(listed[-1, :k].tolist()) == list(range(n - k + 7, n + 7))
    assert not listed[0].any()


def test_top_k_merges_and_writes_far_behind(kernel, standin):
    rows, k, room = 2**21 + 1, 2048, 4096
    keys, given = large((rows, room), "uint32")
    places, listed = large((rows, room), INT32)
    counts, count = large((rows,), INT32)
    (more_keys, _), (more_places, _) = (large((rows, room), kind) for kind in ("uint32", "int32"))
    best, values = large((rows, k), FLOAT32)
    ids, found = large((rows, k), "int64")
    given[-1, :k] = np.arange(1, k + 1).astype(FLOAT32).view("uint32") | 0x80000000
    listed[-1, :k], count[-1] = np.arange(k), k
    arguments = (*map(np.int32, (k, 1, room)), keys, places, counts, None)
    with only_block(standin, rows - 1):
        kernel("top_k", "top_k_merge", FLOAT32)(
            (rows,), (512,), (*arguments, more_keys, more_places, best, ids)
        )
    np.testing.assert_array_equal(found[-1], np.arange(k)[::-1])
    np.testing.assert_array_equal(values[-1], np.arange(k)[::-1] + 1)
    assert not found[0].any()


def test_mutual(kernel, standin):
    n, k = 65_536 * 8 * 65, 64
    assert n * k > 2**31
    ids, lists = large((n, k), "int64")
    similarities, given = large((n, k), FLOAT32)
    result, made = large((n, k), FLOAT32)
    lists[n - 1, 0], given[n - 1, 0] = n - 2, 0.5
    lists[n - 2, 63], given[n - 2, 63] = n - 1, 0.25
    with only_block(standin, 65_535):
        kernel("mutual", "mutual", FLOAT32)(
            (65_536,), (32, 8), (np.int64(n), np.int32(k), ids, similarities, result)
        )
    assert made[n - 1, 0] == 0.25
    assert made[n - 2, 63] == 0.5
    assert not made[n - 1, 1:].any()
