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
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
    """What HG_VALUE and HG_INDEX stand for, and whether every load and store is checked."""

    value: str
    index: str = "int"
    checked: bool = False

    @property
    def eps(self):
        return np.finfo(DTYPES[self.value]).eps

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
    "laplacian_step": ("laplacian_step", "column_sums"),
    "cg_update": ("cg_update",),
    "cg_direction": ("cg_direction",),
    "top_k": ("top_k",),
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
    found = {}
    for types, name in itertools.product(variants, KERNELS[file]):
        defines = {"HG_VALUE": types.value, "HG_INDEX": types.index}
        found[name, types] = runner.Kernel(source, name, defines)
        found[name, types].checked = types.checked
    # Most mutants are noticed before the checked variant is needed.
    early = [FLOAT] if MUTATED else variants
    for name in KERNELS[file]:  # one library has all kernels of a file: the first name compiles it
        compile_all(found[name, types] for types in early)
    return found


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
            got = run("csr_spmm", "csr_spmm", types, grid, (x, y), arguments)[-1]
            assert_sum_of_products(got, expected, sizes + 5, types, whole=whole)


@pytest.mark.parametrize("types", VALUES_AND_INDICES, ids=str)
def test_csr_spmm_prolongs_and_restricts_an_aggregate_basis(types):
    group = np.random.default_rng(2).integers(0, 5, 300)
    prolong = matrix([1] * 300, 5, whole=True)
    up = types.indices(np.arange(301)), types.indices(group), types.values(prolong.data)
    coarse = types.values(numbers(np.random.default_rng(3), (5, 3), True))
    arguments = (np.int64(300), np.int32(3), np.int32(0), *up, coarse, nans(300, 3, like=coarse))
    x, y = shapes.row_block(3, 1.0)
    fine = run("csr_spmm", "csr_spmm", types, (2, 1), (x, y), arguments)[-1]
    np.testing.assert_array_equal(fine, prolong.data[:, None] * coarse[group])

    order = np.argsort(group, kind="stable")
    indptr = np.searchsorted(group[order], np.arange(6))
    down = types.indices(indptr), types.indices(order), types.values(prolong.data[order])
    arguments = (np.int64(5), np.int32(3), np.int32(0), *down, fine, nans(5, 3, like=coarse))
    got = run("csr_spmm", "csr_spmm_long_rows", types, (4, 1), 256, arguments)[-1]
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
        got = run("csr_spmm", "csr_spmm_long_rows", types, grid, 256, arguments)[-1]
        assert_sum_of_products(got, expected, sizes + 5, types, whole=whole)


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
        *_, product, partial = run(
            "laplacian_step", "laplacian_step", types, grid, (x, y), arguments
        )
        assert_sum_of_products(product, expected, sizes, types, whole=whole)
        dots = np.sum(direction.astype(np.float64) * product, axis=0)
        np.testing.assert_allclose(partial.sum(axis=0), dots, rtol=0 if whole else 1e-11)


@pytest.mark.parametrize("threads", [32, 256])
@cases(
    "blocks m",
    [(blocks, m) for blocks in (1, 7, 300) for m in (1, 2, 31, 32, 33, 257)],
    [FLOAT],
    checked=[(7, 1), (9, 33), (1, 2)],
)
def test_laplacian_step_column_sums_adds_every_partial_sum_once(blocks, m, threads, types):
    partial = np.random.default_rng(0).integers(-99, 99, (blocks, m)).astype(np.float64)
    for grid in {1, -(-m // 32)}:
        arguments = (np.int32(blocks), np.int32(m), partial, np.full(m, np.nan))
        sums = run("laplacian_step", "column_sums", types, grid, threads, arguments)[-1]
        np.testing.assert_array_equal(sums, partial.sum(axis=0))


# Steps of conjugate gradients ---------------------------------------------------------------------

DENSE_CASES = [(41, m) for m in COLUMNS] + [(0, 3), (1, 1), (1, 257), (1100, 1), (85, 3)]
DENSE_CHECKED = [(0, 3), (1, 1), (41, 3), (1, 257), (41, 33)]


@cases("n m", DENSE_CASES, VALUES, checked=DENSE_CHECKED)
def test_cg_update_moves_both_arrays_and_gives_squared_norms(n, m, types):
    rng = np.random.default_rng(4)
    step = rng.standard_normal(m)
    direction, product, solution, residual = (
        types.values(rng.standard_normal((n, m))) for _ in range(4)
    )
    own_step = types.values(step)
    for x, y in {shapes.tile_block(m), (32, 8)}:
        arguments = (np.int64(n), np.int32(m), step, direction, product, solution, residual)
        arguments += (np.full((3, m), np.nan),)
        grid = (3, -(-m // x))
        *_, moved, left, partial = run("cg_update", "cg_update", types, grid, (x, y), arguments)
        np.testing.assert_array_equal(moved, solution + direction * own_step)
        np.testing.assert_array_equal(left, residual - product * own_step)
        squares = np.sum(left.astype(np.float64) ** 2, axis=0)
        np.testing.assert_allclose(partial.sum(axis=0), squares, rtol=1e-12)


@cases("n m", DENSE_CASES, VALUES, checked=DENSE_CHECKED)
def test_cg_direction_adds_the_old_direction_to_the_residual(n, m, types):
    rng = np.random.default_rng(5)
    ratio = rng.standard_normal(m)
    residual, direction = (types.values(rng.standard_normal((n, m))) for _ in range(2))
    for x, y in {shapes.tile_block(m), (32, 8)}:
        arguments = (np.int64(n), np.int32(m), ratio, residual, direction)
        grid = (3, -(-m // x))
        got = run("cg_direction", "cg_direction", types, grid, (x, y), arguments)[-1]
        np.testing.assert_array_equal(got, residual + direction * types.values(ratio))


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
    if kind == "close":  # the same first digits: only the last pass tells them apart
        return np.nextafter(1.0, 2.0) + rng.integers(0, 60, (rows, n)) * 2.0**-23
    assert kind == "special"
    special = [-np.inf, np.inf, 0.0, -0.0, 1e-42, -1e-42, 3e38, -3e38, 1e-40, 1.0]
    return rng.choice(special, (rows, n))


def best_of(scores, k):
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, ids, axis=1), ids


TOP_K_CASES = [
    # rows, n, k, threads, kind
    (1, 1, 1, 32, "real"),
    (2, 31, 31, 32, "ties"),
    (1, 32, 5, 32, "real"),
    (2, 129, 7, 32, "ties"),
    (1, 128, 9, 32, "one value"),
    (3, 300, 64, 64, "real"),
    (3, 300, 65, 64, "special"),
    (2, 257, 100, 64, "close"),
    # The last items of the last batch are real, so that a warp that comes late is missed.
    (2, 512, 40, 64, "real"),
    (1, 1024, 50, 128, "close"),
    (2, 1000, 33, 96, "one value"),
    (1, 700, 700, 256, "ties"),
    (1, 1025, 1024, 256, "real"),
    (1, 5000, 300, 1024, "ties"),
    (1, 4500, 2048, 1024, "special"),
    (1, 2048, 2048, 1024, "real"),
]


@pytest.mark.parametrize("layout", ["rows", "columns", "padded", "renumbered"])
@cases("rows n k threads kind", TOP_K_CASES, VALUES, checked=TOP_K_CASES[:4])
def test_top_k_is_a_stable_sort_cut_off(rows, n, k, threads, kind, layout, types):
    scores = types.values(scores_of_kind(kind, rows, n))
    place_of = None
    if layout == "renumbered":
        place_of = np.random.default_rng(n + k).permutation(n)
        memory, strides = np.empty((n, rows), scores.dtype), (1, rows)
        memory[place_of] = scores.T
    elif layout == "rows":
        memory, strides = scores, (n, 1)
    elif layout == "columns":
        memory, strides = np.ascontiguousarray(scores.T), (1, rows)
    else:
        # Larger than every score, so that a read outside of the row shows.
        memory = np.full((rows, n + 3, 2), np.inf, dtype=scores.dtype)
        memory[:, :n, 0] = scores
        strides = (2 * (n + 3), 2)
    arguments = (np.int32(n), np.int32(k), memory, *map(np.int64, strides), place_of)
    arguments += (nans(rows, k, like=scores), np.full((rows, k), -7))
    *_, best, ids = run("top_k", "top_k", types, rows, threads, arguments)
    expected, expected_ids = best_of(scores, k)
    if place_of is not None:
        expected_ids = place_of[expected_ids]
    np.testing.assert_array_equal(ids, expected_ids)
    assert best.tobytes() == expected.tobytes()


@pytest.mark.parametrize("types", VALUES, ids=str)
def test_top_k_takes_every_number_of_results(types):
    scores = types.values(scores_of_kind("ties", 1, 70))
    for k in range(1, 71):
        arguments = (np.int32(70), np.int32(k), scores, np.int64(70), np.int64(1), None)
        arguments += (nans(1, k, like=scores), np.full((1, k), -7))
        ids = run("top_k", "top_k", types, 1, 64, arguments)[-1]
        np.testing.assert_array_equal(ids, best_of(scores, k)[1])


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
    return {
        "csr_spmm": [n, m, np.int32(0), *csr, two, two.copy()],
        "laplacian_step": [n, m, two[0, 0], *csr, two, two.copy(), np.ones((1, 1))],
        "cg_update": [n, m, np.ones(1), *(two.copy() for _ in range(4)), np.ones((1, 1))],
        "cg_direction": [n, m, np.ones(1), two, two.copy()],
        "top_k": [
            np.int32(2),
            m,
            two,
            n,
            n,
            np.arange(2),
            two[:1].copy(),
            np.ones((1, 1), np.int64),
        ],
        "mutual": [n, m, np.ones((2, 1), np.int64), two, two.copy()],
    }[file]


@pytest.mark.parametrize("file", KERNELS)
def test_wrong_argument_types_are_refused(file):
    other = {np.float32: np.float64, np.float64: np.float32, np.int32: np.int64, np.int64: np.int32}
    for types in VALUES_AND_INDICES if file in ("csr_spmm", "laplacian_step") else VALUES:
        kernel = kernels_of(file)[KERNELS[file][0], types]
        right = arguments_of(file, types)
        kernel.launch(1, (32, 1), right)
        for number, argument in enumerate(right):
            cast = argument.astype(other[argument.dtype.type])
            with pytest.raises(TypeError, match=f"argument {number} of"):
                kernel.launch(1, 32, [*right[:number], cast, *right[number + 1 :]])
        # CuPy would pass a Python number as 8 bytes, whatever the kernel declares.
        with pytest.raises(TypeError, match="argument 1 of"):
            kernel.launch(1, 32, [right[0], 1, *right[2:]])
        with pytest.raises(TypeError, match="takes"):
            kernel.launch(1, 32, right[:-1])


@pytest.mark.parametrize("file", KERNELS)
def test_larger_blocks_than_stated_are_refused(file):
    threads = 1056 if file == "top_k" else 288
    kernel = kernels_of(file)[KERNELS[file][0], FLOAT]
    with pytest.raises(runner.KernelLaunchError):
        kernel.launch(1, threads, arguments_of(file, FLOAT))


def test_every_kernel_file_is_tested_and_states_what_it_needs():
    assert {path.stem for path in FOLDER.glob("*.cu")} == set(KERNELS)
    for path in FOLDER.glob("*.cu"):
        head = path.read_text(encoding="utf-8").split("#ifndef")[0]
        for word in ("grid ", "block ", "shared ", "types ", "result ", "memory "):
            assert word in head, (path.name, word)
