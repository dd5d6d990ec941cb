"""The CUDA kernels, hard mode: the very ``.cu`` files, compiled by g++, against NumPy.

``tools/cupy_on_cpu/kernel_runner.py`` runs the threads of a block as fibers, in any order. Every
launch here is made in several orders and must give the same bits in each; shared memory begins as
NaN; every array has red zones; and one variant of each file has every load and store checked, on
small cases, because that is slow.

``HYBRID_GPU_KERNELS`` names another folder of ``.cu`` files, for ``tools/mutate_kernels.py``: then
float and int are the only types.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

if shutil.which("g++") is None:
    pytest.skip("the kernels are compiled with g++, which is not here", allow_module_level=True)

ROOT = Path(__file__).parents[2]
MUTATED = os.environ.get("HYBRID_GPU_KERNELS")
FOLDER = Path(MUTATED or ROOT / "kernels" / "cuda")
ORDERS = (0, 1, 2, 12345)
CHECKED_ORDERS = (0, 3)
DTYPES = {"float": np.float32, "double": np.float64, "int": np.int32, "long long": np.int64}


def _module(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look their module up
    # On the path for the length of the import only: the folder has a build.py.
    sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


runner = _module("kernel_runner", ROOT / "tools" / "cupy_on_cpu" / "kernel_runner.py")
# By path, because a mutation run starts often and importing hybrid_gpu takes longer than a kernel.
shapes = _module("kernel_shapes", ROOT / "kernels" / "__init__.py")


@dataclass(frozen=True)
class Types:
    """What HG_VALUE and HG_INDEX stand for, and whether every load and store is checked.

    ``shape`` are other macros of a kernel: how many columns a thread has, and threads a row.
    """

    value: str
    index: str = "int"
    checked: bool = False
    shape: tuple[str, ...] = ()

    @property
    def eps(self):
        return np.finfo(DTYPES[self.value]).eps

    @property
    def defines(self):
        shape = (define.split("=") for define in self.shape)
        return {"HG_VALUE": self.value, "HG_INDEX": self.index, **dict(shape)}

    def shaped(self, shape):
        """The same for a kernel that is compiled for a shape."""
        return replace(self, shape=shape.defines)

    def values(self, array):
        return np.ascontiguousarray(array, dtype=DTYPES[self.value])

    def indices(self, array):
        return np.ascontiguousarray(array, dtype=DTYPES[self.index])

    def __str__(self):
        text = f"{self.value}-{self.index}".replace(" ", "")
        return f"{text}-checked" if self.checked else text


FLOAT, CHECKED = Types("float"), Types("float", checked=True)
VALUES = [FLOAT] if MUTATED else [FLOAT, Types("double")]
VALUES_AND_INDICES = [*VALUES, *(Types(one.value, "long long") for one in VALUES if not MUTATED)]
KERNELS = {
    "csr_spmm": ("csr_spmm", "csr_spmm_long_rows"),
    "laplacian_step": ("laplacian_step",),
    "wide_product": ("wide_spmm", "wide_laplacian"),
    "columns": ("column_dots", "column_sums", "cg_pace", "cg_turn", "cg_residual"),
    "cg_update": ("cg_update",),
    "cg_direction": ("cg_direction", "cg_solution"),
    "top_k": ("top_k_part", "top_k_merge"),
    "mutual": ("mutual",),
}


def cases(names, sizes, types, *, checked):
    """One test for each size and types; and for some sizes one with loads and stores checked."""
    rows = [(*size, one) for one in types for size in sizes] + [
        (*size, CHECKED) for size in checked
    ]
    return pytest.mark.parametrize((*names.split(), "types"), rows, ids=str)


@functools.cache
def kernels_of(file):
    """The kernels of a file by name and types, compiled; g++ runs in two threads at a time."""
    source = (FOLDER / f"{file}.cu").read_text(encoding="utf-8")
    variants = [*(VALUES_AND_INDICES if "HG_INDEX" in source else VALUES), CHECKED]
    if "#define HG_PACK" in source:
        return Variants(source)
    found = {}
    for types, name in itertools.product(variants, KERNELS[file]):
        found[name, types] = kernel_of(source, name, types)
    # Most mutants are noticed before the checked variant is needed.
    early = [FLOAT] if MUTATED else variants
    for name in KERNELS[file]:  # one library has all kernels of a file: the first name compiles it
        compile_all(found[name, types] for types in early)
    return found


class Variants(dict):
    """Kernels that are compiled for shapes: each when it is asked for."""

    def __init__(self, source):
        self.source = source

    def __missing__(self, wanted):
        self[wanted] = kernel_of(self.source, *wanted)
        compile_all([self[wanted]])
        return self[wanted]


def kernel_of(source, name, types):
    kernel = runner.Kernel(source, name, types.defines)
    kernel.checked = types.checked
    return kernel


def compile_all(kernels):
    """Run g++ in two threads. At an index outside of a fixed-size array the process will end."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setenv("STANDIN_CXXFLAGS", "-fsanitize=bounds -fsanitize-undefined-trap-on-error")
        list(pool.map(lambda kernel: kernel._compiled(kernel.checked), kernels))


def run(file, name, types, grid, block, arguments):
    """Launch on copies in every order; the arguments of the first, after the same bits in all."""
    kernel = kernels_of(file)[name, types]
    if MUTATED and types.checked:
        compile_all([kernel])
    first = None
    for order in CHECKED_ORDERS if types.checked else ORDERS:
        copies = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
        kernel.launch(grid, block, copies, order=order, sanitize=types.checked)
        first = first or copies
        for here, there in zip(first, copies, strict=True):
            assert np.asarray(here).tobytes() == np.asarray(there).tobytes(), (
                f"{name} gives other bits with the threads in order {order}"
            )
    return first


def nans(*shape, like):
    return np.full(shape, np.nan, dtype=like.dtype)


# Sparse products ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """A CSR matrix with p columns, and as a dense float64 one."""

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    dense: np.ndarray

    def arrays(self, types):
        return types.indices(self.indptr), types.indices(self.indices), types.values(self.data)


def matrix(lengths, p, *, whole, seed=0):
    """Rows of the given lengths at random places; ``whole`` numbers add up without rounding."""
    rng = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    places = [np.sort(rng.choice(p, size, replace=size > p)) for size in lengths]
    indices = np.concatenate([*places, np.zeros(0, np.int64)]).astype(np.int64)
    data = numbers(rng, (indices.size,), whole)
    dense = np.zeros((len(lengths), p))
    np.add.at(dense, (np.repeat(np.arange(len(lengths)), lengths), indices), data)
    return Rows(indptr, indices, data, dense)


def numbers(rng, shape, whole):
    if whole:
        return rng.integers(-4, 5, shape).astype(np.float32)
    return rng.standard_normal(shape).astype(np.float32)


def mixed_lengths(n):
    """No entry, one, a few, and more than a warp or a tile has threads."""
    return [(0, 1, 3, 7, 33, 2, 0, 16, 70, 5)[row % 10] for row in range(n)]


def assert_sum_of_products(result, expected, sizes, types, *, whole):
    """Exact for whole numbers; else within what rounding adds to a sum of this absolute size."""
    if whole:
        np.testing.assert_array_equal(result, expected)
    else:
        assert np.all(np.abs(result - expected) <= 32 * types.eps * (sizes + 1))


def product_and_difference(rows, dense, whole):
    """What the flag makes of the product: over what was there, or taken off it."""
    product = rows.dense @ dense
    there = numbers(np.random.default_rng(5), product.shape, whole).astype(dense.dtype)
    yield np.int32(0), nans(*product.shape, like=dense), product
    yield np.int32(1), there, there - product


def plain(types, rows, p):
    """The last arguments of a product that folds nothing and writes no second result."""
    return (types.indices([p])[0], types.values([1])[0], np.int64(rows), None, None)


def folded_and_scaled(types, rows, dense, whole):
    """The last columns of a matrix are folded onto the first, and its last rows written twice."""
    n, p = rows.dense.shape
    fold, alone = 29, n // 2
    times = types.values([0.5 if whole else 0.7])[0]
    narrow = rows.dense[:, :fold].copy()
    narrow[:, : p - fold] += float(times) * rows.dense[:, fold:]
    scale = types.values(numbers(np.random.default_rng(6), (n - alone, 1), whole))
    product = narrow @ dense[:fold]
    sizes = np.abs(rows.dense).sum(axis=1, keepdims=True) * 20 + 5
    second = nans(*product.shape, like=dense)
    tail = (types.indices([fold])[0], times, np.int64(alone), scale, second)

    def check(got):
        result, scaled = got[-6], got[-1]
        assert_sum_of_products(result, product, sizes, types, whole=whole)
        expected = scale * product[alone:]
        assert_sum_of_products(scaled[alone:], expected, 5 * sizes[alone:], types, whole=whole)
        assert np.isnan(scaled[:alone]).all()

    return dense[:fold].copy(), nans(*product.shape, like=dense), tail, check


COLUMNS = (1, 2, 3, 8, 16, 17, 32, 33, 65, 129, 257)
SPARSE_CASES = [(41, m) for m in COLUMNS] + [(0, 1), (0, 40), (1, 1), (1, 257), (600, 1), (9, 5)]
SPARSE_CHECKED = [(9, 1), (9, 5), (19, 33), (0, 40), (1, 257)]


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "real"])
@cases("n m", SPARSE_CASES, VALUES_AND_INDICES, checked=SPARSE_CHECKED)
def test_csr_spmm_multiplies_rows_of_every_length(n, m, whole, types):
    rows = matrix(mixed_lengths(n), 53, whole=whole)
    dense = types.values(numbers(np.random.default_rng(1), (53, m), whole))
    sizes = np.abs(rows.dense) @ np.abs(dense)
    # What the backend takes, what is right for every m, and what rows of one entry get.
    for x, y in {shapes.row_block(m, 25.0), (32, 8), shapes.row_block(m, 1.0)}:
        grid = (3, -(-m // x))
        for subtract, result, expected in product_and_difference(rows, dense, whole):
            arguments = (np.int64(n), np.int32(m), subtract, *rows.arrays(types), dense, result)
            arguments += plain(types, n, 53)
            got = run("csr_spmm", "csr_spmm", types, grid, (x, y), arguments)[-6]
            assert_sum_of_products(got, expected, sizes + 5, types, whole=whole)
        few, result, tail, check = folded_and_scaled(types, rows, dense, whole)
        arguments = (np.int64(n), np.int32(m), np.int32(0), *rows.arrays(types), few, result, *tail)
        check(run("csr_spmm", "csr_spmm", types, grid, (x, y), arguments))


@pytest.mark.parametrize("types", VALUES_AND_INDICES, ids=str)
def test_csr_spmm_prolongs_and_restricts_an_aggregate_basis(types):
    group = np.random.default_rng(2).integers(0, 5, 300)
    prolong = matrix([1] * 300, 5, whole=True)
    up = types.indices(np.arange(301)), types.indices(group), types.values(prolong.data)
    coarse = types.values(numbers(np.random.default_rng(3), (5, 3), True))
    arguments = (np.int64(300), np.int32(3), np.int32(0), *up, coarse, nans(300, 3, like=coarse))
    arguments += plain(types, 300, 5)
    x, y = shapes.row_block(3, 1.0)
    fine = run("csr_spmm", "csr_spmm", types, (2, 1), (x, y), arguments)[-6]
    np.testing.assert_array_equal(fine, prolong.data[:, None] * coarse[group])

    order = np.argsort(group, kind="stable")
    indptr = np.searchsorted(group[order], np.arange(6))
    down = types.indices(indptr), types.indices(order), types.values(prolong.data[order])
    arguments = (np.int64(5), np.int32(3), np.int32(0), *down, fine, nans(5, 3, like=coarse))
    arguments += plain(types, 5, 300)
    got = run("csr_spmm", "csr_spmm_long_rows", types, (4, 1), 256, arguments)[-6]
    expected = np.zeros((5, 3))
    np.add.at(expected, group, prolong.data[:, None] * fine)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "real"])
@cases("m", [(1,), (3,), (32,), (33,), (70,)], VALUES_AND_INDICES, checked=[(1,), (33,)])
def test_csr_spmm_long_rows_multiplies_rows_of_every_length(m, whole, types):
    lengths = (0, 1, 300, 4096 if m < 4 else 513, 8, 0, 255)
    rows = matrix(lengths, 600, whole=whole)
    dense = types.values(numbers(np.random.default_rng(1), (600, m), whole))
    sizes = np.abs(rows.dense) @ np.abs(dense)
    grid = (3, -(-m // 32))
    for subtract, result, expected in product_and_difference(rows, dense, whole):
        arguments = (np.int64(7), np.int32(m), subtract, *rows.arrays(types), dense, result)
        arguments += plain(types, 7, 600)
        got = run("csr_spmm", "csr_spmm_long_rows", types, grid, 256, arguments)[-6]
        assert_sum_of_products(got, expected, sizes + 5, types, whole=whole)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "real"])
@cases("m", [(1,), (33,)], VALUES_AND_INDICES, checked=[(1,)])
def test_csr_spmm_long_rows_folds_columns_and_writes_rows_twice(m, whole, types):
    rows = matrix((0, 1, 300, 8, 255), 53, whole=whole)
    dense = types.values(numbers(np.random.default_rng(1), (53, m), whole))
    few, result, tail, check = folded_and_scaled(types, rows, dense, whole)
    arguments = (np.int64(5), np.int32(m), np.int32(0), *rows.arrays(types), few, result, *tail)
    check(run("csr_spmm", "csr_spmm_long_rows", types, (3, -(-m // 32)), 256, arguments))


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "real"])
@cases("n m", SPARSE_CASES, VALUES_AND_INDICES, checked=SPARSE_CHECKED)
def test_laplacian_step_gives_the_product_and_its_column_dots(n, m, whole, types):
    rows = matrix(mixed_lengths(n), max(n, 1), whole=whole)
    direction = types.values(numbers(np.random.default_rng(1), (n, m), whole))
    alpha = DTYPES[types.value](0.5 if whole else 0.99)
    expected = direction - float(alpha) * (rows.dense[:, :n] @ direction)
    sizes = np.abs(direction) + np.abs(rows.dense[:, :n]) @ np.abs(direction)
    for x, y in {shapes.row_block(m, 25.0), (32, 8), shapes.row_block(m, 1.0)}:
        partial = np.full((3, m), np.nan)
        arguments = (np.int64(n), np.int32(m), alpha, *rows.arrays(types), direction)
        arguments += (nans(n, m, like=direction), partial)
        grid = (3, -(-m // x))
        for wanted in wanted_columns(m):
            launch = ("laplacian_step", "laplacian_step", types, grid, (x, y))
            *_, product, partial, _ = run(*launch, (*arguments, wanted))
            assert_sum_of_products(product, expected, sizes, types, whole=whole)
            dots = np.sum(direction.astype(np.float64) * product, axis=0)
            np.testing.assert_allclose(partial.sum(axis=0), dots, rtol=0 if whole else 1e-11)
        *_, product, partial, _ = run(*launch, (*arguments, np.zeros(m, bool)))
        assert np.isnan(product).all()
        assert np.isnan(partial).all()


def wanted_columns(m):
    """Nobody asks, or only the first or the last of the columns is wanted."""
    yield None
    for column in {0, m - 1}:
        yield np.arange(m) == column


WIDE_COLUMNS = (16, 20, 32, 36, 64, 100, 128, 132)
WIDE_CASES = [(85, m) for m in WIDE_COLUMNS] + [(41, 17), (41, 18), (41, 130), (41, 33), (0, 20)]
WIDE_CASES += [(1, 16), (300, 16), (1, 257)]
WIDE_CHECKED = [(41, 16), (19, 36), (9, 33), (0, 40), (1, 132)]


def wide_shapes(m, types):
    """The shape of aligned arrays, and that of arrays which are not."""
    size = DTYPES[types.value]().itemsize
    found = {shapes.wide_shape(m, size), shapes.wide_shape(m, size, size)} - {None}
    # Fewer rows at a time, and another number of passes, are as right.
    return found | {replace(one, rows=32 // one.lanes, passes=3) for one in found}


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "real"])
@cases("n m", WIDE_CASES, VALUES_AND_INDICES, checked=WIDE_CHECKED)
def test_wide_product_multiplies_rows_of_every_length(n, m, whole, types):
    rows = matrix(mixed_lengths(n), 53, whole=whole)
    dense = types.values(numbers(np.random.default_rng(1), (53, m), whole))
    sizes = np.abs(rows.dense) @ np.abs(dense)
    for shape in wide_shapes(m, types):
        sizes_of, grid = (np.int64(n), np.int32(m), np.int32(shape.passes)), shape.grid(n, m)
        launch = ("wide_product", "wide_spmm", types.shaped(shape), grid, shape.block)
        for subtract, result, expected in product_and_difference(rows, dense, whole):
            arguments = (*sizes_of, subtract, *rows.arrays(types), dense, result)
            got = run(*launch, (*arguments, *plain(types, n, 53)))[-6]
            assert_sum_of_products(got, expected, sizes + 5, types, whole=whole)
        few, result, tail, check = folded_and_scaled(types, rows, dense, whole)
        check(run(*launch, (*sizes_of, np.int32(0), *rows.arrays(types), few, result, *tail)))


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "real"])
@cases("n m", WIDE_CASES, VALUES_AND_INDICES, checked=WIDE_CHECKED)
def test_wide_product_gives_the_laplacian_and_its_column_dots(n, m, whole, types):
    rows = matrix(mixed_lengths(n), max(n, 1), whole=whole)
    direction = types.values(numbers(np.random.default_rng(1), (n, m), whole))
    alpha = DTYPES[types.value](0.5 if whole else 0.99)
    expected = direction - float(alpha) * (rows.dense[:, :n] @ direction)
    sizes = np.abs(direction) + np.abs(rows.dense[:, :n]) @ np.abs(direction)
    for shape in wide_shapes(m, types):
        block, grid = (shape.lanes, shape.rows), shape.grid(n, m)
        arguments = (np.int64(n), np.int32(m), np.int32(shape.passes), alpha)
        arguments += (*rows.arrays(types), direction, nans(n, m, like=direction))
        arguments += (np.full((grid[0], m), np.nan),)
        shaped = types.shaped(shape)
        launch = ("wide_product", "wide_laplacian", shaped, grid, block)
        for wanted in wanted_columns(m):
            *_, product, partial, _ = run(*launch, (*arguments, wanted))
            assert_sum_of_products(product, expected, sizes, types, whole=whole)
            dots = np.sum(direction.astype(np.float64) * product, axis=0)
            np.testing.assert_allclose(partial.sum(axis=0), dots, rtol=0 if whole else 1e-11)
        *_, product, partial, _ = run(*launch, (*arguments, np.zeros(m, bool)))
        assert np.isnan(product).all()
        assert np.isnan(partial).all()


def test_wide_shapes_cover_every_column_with_whole_warps():
    for m, size in itertools.product([*range(1, 300), 1000, 4096], (4, 8)):
        for alignment in (16, 8, 4):
            shape = shapes.wide_shape(m, size, alignment)
            if shape is None:
                assert m <= 16
                continue
            assert m % shape.pack == 0
            assert shape.pack * size <= max(alignment, size)
            assert shape.lanes * shape.rows == 512
            few = shapes.wide_shape(m, size, alignment, n=100)
            assert few == replace(shape, rows=128 // shape.lanes, passes=1)
            assert shape.grid(7, m)[1] * shape.columns >= m
            assert shape.lanes == 32 or shape.columns >= m
    assert shapes.wide_shape(128, 4).pack == 4
    assert shapes.wide_shape(128, 8).pack == 2


NARROW = shapes.TileShape(1, (1, 1))


@pytest.mark.parametrize("lines", [1, 16, 128])
@cases(
    "rows m",
    [(rows, m) for rows in (1, 7, 300, 1100) for m in (1, 3, 4, 5, 33)],
    [FLOAT],
    checked=[(7, 1), (300, 9)],
)
def test_columns_adds_every_partial_sum_once(rows, m, lines, types):
    partial = np.random.default_rng(0).integers(-99, 99, (rows, m)).astype(np.float64)
    arguments = (np.int64(rows), np.int32(m), partial, np.full(m, np.nan))
    grid, types = -(-m // 4), types.shaped(NARROW)
    sums = run("columns", "column_sums", types, grid, (4, lines), arguments)[-1]
    np.testing.assert_array_equal(sums, partial.sum(axis=0))


def progress_of(rng, m):
    """Squares, lengths and targets of columns: some at their target, some with a long direction."""
    squared, length = rng.integers(1, 9, m) / 4, rng.choice([1.0, 2.0, 64.0], m)
    return squared, length, rng.choice([0.0, 1.0, np.inf], m)


@cases(
    "rows rank m",
    [(1, 0, 6), (40, 0, 5), (300, 9, 33), (1, 300, 4), (3, 1, 7)],
    VALUES,
    checked=[(3, 2, 5), (2, 0, 3)],
)
def test_columns_tells_how_far_columns_go(rows, rank, m, types):
    rng = np.random.default_rng(9)
    partial = rng.integers(-3, 9, (rows, m)).astype(np.float64)
    restricted, solved = (types.values(rng.integers(-2, 3, (rank, m))) for _ in range(2))
    if rank:
        # At the border of the noise, below it, and above.
        dots = np.sum(restricted * solved, axis=0)
        squares = np.sum(restricted**2, axis=0)
        partial[0] += dots + 0.5 * squares + rng.integers(-1, 2, m) - partial.sum(axis=0)
    squared, length, target = progress_of(rng, m)
    curvature = partial.sum(axis=0)
    if rank:
        left = curvature - dots
        curvature = np.where(left > 0.5 * squares, left, 0.0)
    # Some lie at the border.
    length = np.where(np.arange(m) % 3 == 0, 4 * curvature, length)
    moves = (squared > target) & (curvature > 0.25 * length)
    state = (squared, length, target)
    pair = (restricted, solved) if rank else (None, None)
    arguments = (np.int64(rows), np.int32(m), partial, np.int64(rank), *pair)
    arguments += (np.float64(0.5), np.float64(0.25), *state, np.full(m, np.nan), np.ones(m, bool))
    tickets = np.full(5 + 300 * (rank > 0), 7, np.int32)
    arguments += (np.int32(tickets.size - 1), tickets)
    shaped, grid = types.shaped(NARROW), -(-m // 4)
    *_, step, moving, _, tickets = run("columns", "cg_pace", shaped, grid, (4, 32), arguments)
    assert not tickets[:-1].any()
    assert tickets[-1] == 7
    np.testing.assert_array_equal(moving, moves)
    expected = np.divide(squared, curvature, out=np.zeros(m), where=moves)
    np.testing.assert_array_equal(step, expected)


@pytest.mark.parametrize("stop_early", [0, 1])
@cases("rows m", [(1, 1), (1, 6), (40, 33), (300, 4)], [FLOAT], checked=[(3, 5)])
def test_columns_tells_where_columns_are_after_an_update(rows, m, stop_early, types):
    rng = np.random.default_rng(10)
    partial = rng.integers(0, 9, (rows, m)).astype(np.float64)
    squared, length, target = progress_of(rng, m)
    target = np.where(np.arange(m) % 4 == 1, squared, target)
    moving, fresh = rng.random(m) < 0.5, rng.random(m) < 0.5
    arguments = (np.int64(rows), np.int32(m), partial, np.int32(stop_early), moving, fresh)
    arguments += (squared, length, target, *(np.full(m, np.nan) for _ in range(4)), ~moving)
    shaped, grid = types.shaped(NARROW), -(-m // 4)
    *_, ratio, left, long, goal, anew = run("columns", "cg_turn", shaped, grid, (4, 32), arguments)
    np.testing.assert_array_equal(left, partial.sum(axis=0))
    before = (squared, length, target, moving, fresh)
    assert_turned((ratio, long, goal, anew), left, before, stop_early)


def assert_turned(after, left, before, stop_early):
    """Ratio, length, target and who is fresh, for columns that leave these squares."""
    ratio, long, goal, anew = after
    squared, length, target, moving, fresh = before
    kept = np.where(moving, left / squared, 0.0)
    stuck = (stop_early > 0) & (squared > target) & ~moving & fresh
    np.testing.assert_array_equal(ratio, kept)
    np.testing.assert_allclose(long, left + kept**2 * length, rtol=1e-15)
    np.testing.assert_array_equal(goal, np.where(stuck, np.inf, target))
    np.testing.assert_array_equal(anew, ~moving)


# Steps of conjugate gradients ---------------------------------------------------------------------

DENSE_CASES = [(41, m) for m in COLUMNS] + [(0, 3), (1, 1), (1, 257), (2500, 1), (85, 3)]
DENSE_CASES += [(150, 128), (97, 36), (70, 6)]
DENSE_CHECKED = [(0, 3), (1, 1), (41, 3), (1, 257), (41, 36)]


def tile_shapes(m, types):
    """The shape of aligned arrays, that of arrays which are not, and another block."""
    size = DTYPES[types.value]().itemsize
    found = {shapes.tile_shape(m, size), shapes.tile_shape(m, size, size)}
    return found | {replace(one, block=(32, 4), passes=3) for one in found}


@cases("n m", DENSE_CASES, VALUES, checked=DENSE_CHECKED)
def test_columns_gives_dots_of_columns(n, m, types):
    rng = np.random.default_rng(8)
    left, right = (types.values(rng.standard_normal((n, m))) for _ in range(2))
    for shape in tile_shapes(m, types):
        grid = shape.grid(n, m)
        arguments = (np.int64(n), np.int32(m), np.int32(shape.passes), left, right)
        arguments += (np.full((grid[0], m), np.nan),)
        shaped = types.shaped(shape)
        partial = run("columns", "column_dots", shaped, grid, shape.block, arguments)[-1]
        dots = np.sum(left.astype(np.float64) * right, axis=0)
        np.testing.assert_allclose(partial.sum(axis=0), dots, rtol=1e-12, atol=1e-12)


@cases("n m", DENSE_CASES, VALUES, checked=DENSE_CHECKED)
def test_cg_update_moves_both_arrays_and_gives_squared_norms(n, m, types):
    rng = np.random.default_rng(4)
    step = rng.standard_normal(m)
    direction, product, solution, residual = (
        types.values(rng.standard_normal((n, m))) for _ in range(4)
    )
    own_step = types.values(step)
    for shape in tile_shapes(m, types):
        grid = shape.grid(n, m)
        arguments = (np.int64(n), np.int32(m), np.int32(shape.passes), step)
        arguments += (direction, product, solution, residual, np.full((grid[0], m), np.nan))
        shaped = types.shaped(shape)
        *_, moved, left, partial = run(
            "cg_update", "cg_update", shaped, grid, shape.block, arguments
        )
        np.testing.assert_array_equal(moved, solution + direction * own_step)
        np.testing.assert_array_equal(left, residual - product * own_step)
        squares = np.sum(left.astype(np.float64) ** 2, axis=0)
        np.testing.assert_allclose(partial.sum(axis=0), squares, rtol=1e-12)


@cases("n m", DENSE_CASES, VALUES, checked=DENSE_CHECKED)
def test_cg_direction_adds_the_old_direction_to_the_residual(n, m, types):
    rng = np.random.default_rng(5)
    ratio = rng.standard_normal(m)
    residual, direction = (types.values(rng.standard_normal((n, m))) for _ in range(2))
    for shape in tile_shapes(m, types):
        arguments = (np.int64(n), np.int32(m), np.int32(shape.passes), ratio, residual, direction)
        grid, shaped = shape.grid(n, m), types.shaped(shape)
        got = run("cg_direction", "cg_direction", shaped, grid, shape.block, arguments)[-1]
        np.testing.assert_array_equal(got, residual + direction * types.values(ratio))


@cases("n m", DENSE_CASES, VALUES, checked=DENSE_CHECKED)
def test_cg_direction_moves_the_solution_along_the_old_direction(n, m, types):
    rng = np.random.default_rng(6)
    step, ratio = rng.standard_normal((2, m))
    residual, solution, direction = (types.values(rng.standard_normal((n, m))) for _ in range(3))
    for shape in tile_shapes(m, types):
        arguments = (np.int64(n), np.int32(m), np.int32(shape.passes), step, ratio, residual)
        arguments += (solution, direction)
        grid, shaped = shape.grid(n, m), types.shaped(shape)
        *_, moved, turned = run("cg_direction", "cg_solution", shaped, grid, shape.block, arguments)
        np.testing.assert_array_equal(moved, solution + direction * types.values(step))
        np.testing.assert_array_equal(turned, residual + direction * types.values(ratio))


def residual_step(n, m, types, shape, stop_early):
    """What cg_residual gives for numbers whose squares add up without rounding."""
    rng = np.random.default_rng(12)
    product, residual = (types.values(rng.integers(-3, 4, (n, m))) for _ in range(2))
    step = rng.choice([0.0, 0.5, 1.0, -2.0], m)
    squared, length, target = progress_of(rng, m)
    moving, fresh = rng.random(m) < 0.5, rng.random(m) < 0.5
    grid = shape.grid(n, m)
    groups = -(-grid[0] // 128)
    arguments = (np.int64(n), np.int32(m), np.int32(shape.passes), step, product, residual)
    arguments += (np.full((grid[0] + groups, m), np.nan),)
    arguments += (np.zeros((grid[1], groups + 1), np.int32), np.int32(stop_early), moving, fresh)
    arguments += (squared, length, target, *(np.full(m, np.nan) for _ in range(4)), ~moving)
    launch = ("columns", "cg_residual", types.shaped(shape), grid, shape.block)
    got = run(*launch, arguments)
    moved = residual - product * types.values(step)
    np.testing.assert_array_equal(got[5], moved)
    ratio, left, long, goal, anew = got[-5:]
    np.testing.assert_array_equal(left, np.sum(moved.astype(np.float64) ** 2, axis=0))
    before = (squared, length, target, moving, fresh)
    assert_turned((ratio, long, goal, anew), left, before, stop_early)


@cases("n m", DENSE_CASES, VALUES, checked=DENSE_CHECKED)
def test_columns_moves_residuals_and_tells_where_columns_are(n, m, types):
    for number, shape in enumerate(sorted(tile_shapes(m, types), key=str)):
        residual_step(n, m, types, shape, number % 2)


@pytest.mark.parametrize("blocks", [1, 2, 127, 128, 129, 256, 257, 400])
def test_columns_adds_up_groups_of_row_blocks(blocks):
    # Few threads: what is tried here is how blocks add up what others have left.
    residual_step(2 * blocks - 1, 3, FLOAT, shapes.TileShape(1, (2, 2), 1), 1)
    residual_step(blocks, 8, FLOAT, shapes.TileShape(4, (1, 1), 1), 1)


def test_blocks_have_at_most_256_threads_and_cover_every_column():
    for m, row_length in itertools.product(
        [*range(1, 300), 1000, 4096], [0.0, 1.0, 4.5, 25.0, 1e6]
    ):
        for x, y in (shapes.tile_block(m), shapes.row_block(m, row_length)):
            assert x >= 1
            assert 128 < x * y <= 256
            assert x <= m or (x & (x - 1) == 0 and x <= 32)


# Top-k --------------------------------------------------------------------------------------------


def scores_of_kind(kind, rows, n):
    rng = np.random.default_rng(6)
    if kind == "real":
        return rng.standard_normal((rows, n))
    if kind == "ties":
        return rng.integers(-2, 3, (rows, n)).astype(np.float64)
    if kind == "one value":
        return np.full((rows, n), 0.25)
    if kind == "rising":  # each beats all before
        return np.arange(rows * n).reshape(rows, n) / 8.0
    if kind == "falling":
        return -np.arange(rows * n).reshape(rows, n) / 8.0
    if kind == "close":  # the same first digits: only the last pass tells them apart
        return np.nextafter(1.0, 2.0) + rng.integers(0, 60, (rows, n)) * 2.0**-23
    assert kind == "special"
    special = [-np.inf, np.inf, 0.0, -0.0, 1e-42, -1e-42, 3e38, -3e38, 1e-40, 1.0]
    return rng.choice(special, (rows, n))


def best_of(scores, k):
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, ids, axis=1), ids


def launch_top_k(types, shape, k, tiles, strides, numbers, order=0):
    """The two kernels: ``tiles`` of scores, each (rows, items) with its memory, come in turn."""
    kernels, keys = kernels_of("top_k"), np.uint32 if types.value == "float" else np.uint64
    m, first = tiles[0][0].shape[0], 0
    lists = m * shape.parts
    # What is there before must not matter: keys above that of every score.
    most = np.iinfo(keys).max
    state = [np.full(lists * shape.room, most, keys), np.full(lists * shape.room, -7, np.int32)]
    state += [np.full(lists, 9, np.int32), np.full(lists, 5, keys), np.full(lists, 3, np.int32)]
    for scores, memory in tiles:
        n = scores.shape[1]
        numbers_of = (m, n, k, shape.width, shape.parts, first, first > 0)
        arguments = (*map(np.int32, numbers_of), memory, *map(np.int64, strides), numbers, *state)
        grid = shape.parts * -(-m // shape.width)
        part = kernels["top_k_part", types]
        part.launch(grid, shape.threads, arguments, order=order, sanitize=types.checked)
        first += n
    merged = shape.merge_room * m
    best, ids = nans(m, k, like=scores), np.full((m, k), -7)
    arguments = (*map(np.int32, (k, shape.parts, shape.room)), *state[:3], numbers)
    arguments += (np.full(merged, 7, keys), np.full(merged, -7, np.int32), best, ids)
    merge = kernels["top_k_merge", types]
    merge.launch(m, shape.merge_threads, arguments, order=order, sanitize=types.checked)
    return best, ids


def run_top_k(types, *arguments):
    """The same bits in every order of the threads; which entry of a list is where may change."""
    if MUTATED and types.checked:
        compile_all([kernels_of("top_k")["top_k_part", types]])
    orders = CHECKED_ORDERS if types.checked else ORDERS
    results = [launch_top_k(types, *arguments, order) for order in orders]
    for best, ids in results[1:]:
        assert best.tobytes() == results[0][0].tobytes()
        assert ids.tobytes() == results[0][1].tobytes()
    return results[0]


def in_layout(scores, layout):
    """Memory that holds scores (rows, n), the strides of rows and items, and numbers of items."""
    rows, n = scores.shape
    if layout == "rows":
        return scores, (n, 1), None
    if layout == "columns":
        return np.ascontiguousarray(scores.T), (1, rows), None
    if layout == "renumbered":
        numbers = np.random.default_rng(n).permutation(n)
        return np.ascontiguousarray(scores.T), (1, rows), numbers
    # Larger than every score, so that a read outside of the row shows.
    memory = np.full((rows, n + 3, 2), np.inf, dtype=scores.dtype)
    memory[:, :n, 0] = scores
    return memory, (2 * (n + 3), 2), None


def best_by_numbers(scores, k, numbers):
    """Scores and places of a stable sort by the numbers of items, cut off."""
    if numbers is None:
        return best_of(scores, k)
    place_of = np.argsort(numbers)
    best, found = best_of(scores[:, place_of], k)
    return best, place_of[found]


def shape_of(width, threads, parts, merge_threads):
    return shapes.TopKShape(width, threads, parts, merge_threads)


TOP_K_CASES = [
    # rows, n, k, (width, threads, parts, threads of a merge), kind
    (1, 1, 1, (1, 32, 1, 32), "real"),
    (2, 31, 31, (1, 32, 1, 32), "ties"),
    (3, 129, 7, (2, 64, 2, 32), "ties"),
    (1, 32, 5, (1, 32, 3, 32), "special"),
    (1, 128, 9, (1, 32, 2, 64), "one value"),
    # More than a part has room for, so that lists are cut on the way.
    (3, 900, 64, (2, 64, 1, 64), "real"),
    (3, 700, 65, (2, 64, 2, 64), "special"),
    (5, 600, 100, (4, 128, 1, 32), "close"),
    (2, 1000, 33, (2, 64, 3, 32), "one value"),
    (2, 800, 40, (1, 32, 2, 32), "rising"),
    (2, 800, 40, (2, 64, 2, 32), "falling"),
    (17, 600, 5, (16, 512, 2, 32), "ties"),
    (1, 700, 700, (1, 256, 1, 256), "ties"),
    # The last part of 9 is empty, and the one before it short.
    (1, 57, 50, (1, 64, 9, 64), "real"),
    (1, 2500, 1024, (1, 256, 2, 256), "close"),
    (1, 5000, 2048, (1, 512, 1, 512), "special"),
    (1, 2048, 2048, (1, 512, 2, 512), "one value"),
]


@pytest.mark.parametrize("layout", ["rows", "columns", "padded", "renumbered"])
@cases("rows n k shape kind", TOP_K_CASES, VALUES, checked=TOP_K_CASES[:4])
def test_top_k_is_a_stable_sort_cut_off(rows, n, k, shape, kind, layout, types):
    scores = types.values(scores_of_kind(kind, rows, n))
    memory, strides, numbers = in_layout(scores, layout)
    tiles = [(scores, memory)]
    best, ids = run_top_k(types, shape_of(*shape), k, tiles, strides, numbers)
    expected, places = best_by_numbers(scores, k, numbers)
    np.testing.assert_array_equal(ids, places)
    assert best.tobytes() == (expected + 0.0).tobytes()  # of two zeros, the one without a sign


@pytest.mark.parametrize("types", VALUES, ids=str)
def test_top_k_takes_every_number_of_results(types):
    scores = types.values(scores_of_kind("ties", 1, 70))
    for k in range(1, 71):
        tiles = [(scores, scores)]
        ids = run_top_k(types, shape_of(1, 64, 2, 32), k, tiles, (70, 1), None)[1]
        np.testing.assert_array_equal(ids, best_of(scores, k)[1])


@pytest.mark.parametrize("kind", ["real", "ties", "rising", "one value"])
@pytest.mark.parametrize("parts", [1, 2])
@cases("rows k", [(3, 5), (2, 60)], VALUES, checked=[(3, 5)])
def test_top_k_of_items_that_come_in_turn(rows, k, parts, kind, types):
    counts, n = (40, 300, 1, 129), 470
    scores = types.values(scores_of_kind(kind, rows, n))
    for numbers in (None, np.random.default_rng(9).permutation(n)):
        best, places = best_by_numbers(scores, k, numbers)
        for width in (1, 2):
            ends = np.cumsum((0, *counts))
            tiles = [scores[:, first:last] for first, last in itertools.pairwise(ends)]
            tiles = [(tile, np.ascontiguousarray(tile.T)) for tile in tiles]
            shape = shape_of(width, 64, parts, 32)
            found, ids = run_top_k(types, shape, k, tiles, (1, rows), numbers)
            np.testing.assert_array_equal(ids, places)
            np.testing.assert_array_equal(found, best)


@pytest.mark.parametrize("types", VALUES, ids=str)
def test_top_k_cuts_lists_before_they_overrun(types):
    # With 32 threads a list has room for 256. 127 of 256 items stay; of the next 128 two come on,
    # which leaves no room for 128 that are all better: the list must be cut before them.
    scores = np.random.default_rng(8).random((1, 512))
    scores[0, 256:384], scores[0, 300:302] = -1, 2
    scores[0, 384:] = np.arange(3, 131)
    scores = types.values(scores)
    ids = run_top_k(types, shape_of(1, 32, 1, 32), 127, [(scores, scores)], (512, 1), None)[1]
    np.testing.assert_array_equal(ids, best_of(scores, 127)[1])


@pytest.mark.parametrize("types", VALUES, ids=str)
def test_top_k_puts_every_nan_first(types):
    scores = types.values(scores_of_kind("special", 2, 50))
    scores[0, 7], scores[0, 3], scores[1, 49] = np.nan, -np.nan, np.copysign(np.nan, -1.0)
    best, ids = run_top_k(types, shape_of(1, 32, 2, 32), 3, [(scores, scores)], (50, 1), None)
    assert ids[0, :2].tolist() == [3, 7]
    assert ids[1, 0] == 49
    assert np.isnan(best).tolist() == [[True, True, False], [True, False, False]]


def test_top_k_shapes_are_within_the_limits_of_the_kernels():
    counts = [*range(1, 130), 500, 513, 1024, 1025, 2047, 2048]
    sizes = itertools.product((1, 2, 3, 16, 128, 1000), (50, 16_385, 10**6), counts, (1, 58, 132))
    for (m, n, k, multiprocessors), columns in itertools.product(sizes, (False, True)):
        shape = shapes.top_k_shape(m, n, k, columns=columns, multiprocessors=multiprocessors)
        width, threads, parts, merge_threads = shape
        for power in (width, threads, merge_threads):
            assert power & (power - 1) == 0
        assert 1 <= width <= threads // 32 <= 16
        assert 2 * k <= shape.room
        assert 2 * k <= shape.merge_room
        assert 32 <= merge_threads <= 512
        assert columns or width == 1
        assert parts == 1 or parts * -(-m // width) <= 8 * multiprocessors
        assert parts == 1 or parts * 16 * k <= n


def test_top_k_of_few_rows_has_blocks_for_every_multiprocessor():
    for m, columns in itertools.product((1, 16, 64, 128), (False, True)):
        shape = shapes.top_k_shape(m, 10**6, 100, columns=columns, multiprocessors=132)
        assert shape.parts * -(-m // shape.width) * shape.threads > 0.9 * 132 * 1024


# Reciprocal neighbors -----------------------------------------------------------------------------


def mutual_by_the_book(ids, similarities):
    result = np.zeros_like(similarities)
    lists = ids.tolist()
    for row, own in enumerate(lists):
        for place, item in enumerate(own):
            if not 0 <= item < len(lists) or item == row or item in own[:place]:
                continue
            if row in lists[item] and similarities[row, place] > 0:
                back = similarities[item, lists[item].index(row)]
                result[row, place] = back if back > 0 else 0
    return result


@cases(
    "n k",
    [(0, 3), (1, 1), (2, 1), (30, 5), (45, 31), (29, 32), (29, 33), (20, 70), (9, 64)],
    VALUES,
    checked=[(0, 3), (1, 1), (12, 5), (3, 33)],
)
def test_mutual_gives_what_the_other_list_says(n, k, types):
    rng = np.random.default_rng(7)
    # Sometimes no item, the item itself, repetitions, and an id that is too high.
    ids = rng.integers(-1, n + 1, (n, k))
    similarities = types.values(rng.choice([-1.0, 0.0, np.nan, 0.5, 1.0, 2.0, 3.0], (n, k)))
    similarities += types.values(rng.random((n, k)) / 4) * (similarities > 0)
    expected = mutual_by_the_book(ids, similarities)
    assert n < 30 or np.any(expected > 0)
    for y in (1, 8):
        arguments = (np.int64(n), np.int32(k), ids, similarities, nans(n, k, like=similarities))
        got = run("mutual", "mutual", types, 2, (32, y), arguments)[-1]
        np.testing.assert_array_equal(got, expected)


# Mistakes of a caller -----------------------------------------------------------------------------


def arguments_of(file, types):
    """Right arguments of the first kernel of a file, for n = 2 and m = k = 1."""
    n, m, two = np.int64(2), np.int32(1), types.values(np.ones((2, 1)))
    csr = Rows(np.arange(3), np.arange(2), np.ones(2), np.eye(2)).arrays(types)
    keys = np.uint32 if types.value == "float" else np.uint64
    second = [csr[1][1], two[0, 0], np.int64(1), two[:1].copy(), two.copy()]
    wanted = np.ones(1, bool)
    return {
        "csr_spmm": [n, m, np.int32(0), *csr, two, two.copy(), *second],
        "laplacian_step": [n, m, two[0, 0], *csr, two, two.copy(), np.ones((1, 1)), wanted],
        "wide_product": [n, m, m, np.int32(0), *csr, two, two.copy(), *second],
        "columns": [n, m, m, two, two.copy(), np.ones((1, 1))],
        "cg_update": [n, m, m, np.ones(1), *(two.copy() for _ in range(4)), np.ones((1, 1))],
        "cg_direction": [n, m, m, np.ones(1), two, two.copy()],
        "top_k": [
            *map(np.int32, (1, 2, 1, 1, 1, 0, 0)),
            two,
            n,
            np.int64(1),
            np.arange(2),
            np.zeros(256, keys),
            np.zeros(256, np.int32),
            np.zeros(1, np.int32),
            np.zeros(1, keys),
            np.zeros(1, np.int32),
        ],
        "mutual": [n, m, np.ones((2, 1), np.int64), two, two.copy()],
    }[file]


def narrow(file, types):
    """The types for a kernel with one column for each thread."""
    shape = {"wide_product": ("HG_PACK=1", "HG_LANES=32")}
    packed = file in ("wide_product", "columns", "cg_update", "cg_direction")
    return replace(types, shape=shape.get(file, ("HG_PACK=1",) if packed else ()))


@pytest.mark.parametrize("file", KERNELS)
def test_wrong_argument_types_are_refused(file):
    other = {np.float32: np.float64, np.float64: np.float32, np.int32: np.int64, np.int64: np.int32}
    sparse = ("csr_spmm", "laplacian_step", "wide_product")
    for types in VALUES_AND_INDICES if file in sparse else VALUES:
        kernel = kernels_of(file)[KERNELS[file][0], narrow(file, types)]
        right = arguments_of(file, types)
        kernel.launch(1, (32, 1), right)
        for number, argument in enumerate(right):
            cast = argument.astype(other.get(argument.dtype.type, np.int16))  # keys are unsigned
            with pytest.raises(TypeError, match=f"argument {number} of"):
                kernel.launch(1, 32, [*right[:number], cast, *right[number + 1 :]])
        # CuPy would pass a Python number as 8 bytes, whatever the kernel declares.
        with pytest.raises(TypeError, match="argument 1 of"):
            kernel.launch(1, 32, [right[0], 1, *right[2:]])
        with pytest.raises(TypeError, match="takes"):
            kernel.launch(1, 32, right[:-1])


@pytest.mark.parametrize("file", KERNELS)
def test_larger_blocks_than_stated_are_refused(file):
    threads = {"top_k": 1056, "wide_product": (32, 17)}.get(file, 288)
    kernel = kernels_of(file)[KERNELS[file][0], narrow(file, FLOAT)]
    with pytest.raises(runner.KernelLaunchError):
        kernel.launch(1, threads, arguments_of(file, FLOAT))


def test_every_kernel_file_is_tested_and_states_what_it_needs():
    assert {path.stem for path in FOLDER.glob("*.cu")} == set(KERNELS)
    for path in FOLDER.glob("*.cu"):
        head = path.read_text(encoding="utf-8").split("#ifndef")[0]
        for word in ("grid ", "block ", "shared ", "types ", "result ", "memory "):
            assert word in head, (path.name, word)


def test_what_blocks_one_after_another_cannot_show_stands_in_the_text():
    # Here blocks run one after another, and warps stop at every shuffle. On a GPU they do not:
    # sums must be seen by other blocks before the ticket is, and a warp may be a turn ahead.
    text = (FOLDER / "columns.cu").read_text(encoding="utf-8")
    (body,) = re.findall(r"bool is_last\(.*?\n}", text, re.DOTALL)
    order = r"(place\[c\] = sum\[c\]|__threadfence\(\)|__syncthreads\(\)|atomicAdd\(ticket)"
    assert re.findall(order, body) == [
        "place[c] = sum[c]",
        "__threadfence()",
        "__syncthreads()",
        "atomicAdd(ticket",
        "__syncthreads()",
        "__threadfence()",
    ]
    text = (FOLDER / "top_k.cu").read_text(encoding="utf-8")
    assert re.findall(r"#define HG_TURNS (\d+)", text) == ["3"]
