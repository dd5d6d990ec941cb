"""The native core: the same as the generic versions, whatever the width, the tile, the level."""

from __future__ import annotations

import ctypes
import pickle
from pathlib import Path

import array_api_compat.numpy as xp
import numpy as np
import pytest
import scipy.sparse as sparse
import scipy.sparse.csgraph

import hybrid_gpu as hg
from hybrid_gpu.backends import native, native_graph, native_products, native_steps, threads
from hybrid_gpu.backends.generic import GenericBackend
from hybrid_gpu.backends.native_backend import NativeBackend, host_backend
from hybrid_gpu.backends.native_groups import NativeEdgeLoops
from hybrid_gpu.backends.numpy_backend import NumpyBackend
from hybrid_gpu.graph import aggregation, edge_loops
from hybrid_gpu.graph.affinity import numbering_of

LEVELS = ("plain", "avx2", "avx512")
WIDTHS = [*range(1, 20), 24, 31, 32, 33, 47, 48, 63, 64, 65, 96, 100, 127, 128, 129, 130, 200]


class Generic(GenericBackend):
    """What every backend inherits, on NumPy arrays and SciPy's product of whole matrices."""

    xp, device = xp, "cpu"

    def asarray(self, values, dtype=None):
        return np.asarray(values, dtype=dtype)

    def to_numpy(self, values):
        return values

    def csr(self, data, indices, indptr, shape):
        return NumpyBackend().csr(data, indices, indptr, shape)

    def spmm(self, matrix, dense):
        whole = sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), matrix.shape)
        return whole @ dense

    def available_bytes(self):
        return NumpyBackend().available_bytes()


@pytest.fixture(scope="module", params=LEVELS)
def core(request):
    """The core at every level that was built and that this processor has."""
    found = native.native_core()
    if found is None:
        pytest.skip(f"the native core is {native.core_state().reason}")
    most = LEVELS[found.library.hg_cpu_level()]
    if LEVELS.index(request.param) > LEVELS.index(most):
        pytest.skip(f"this processor has {most} at most")
    if not hasattr(found.library, f"hg_spmm_f32_i32_{request.param}"):
        pytest.skip(f"the compiler does not know {request.param}")
    return native.Core(found.library, request.param)


@pytest.fixture
def backend(core):
    return NativeBackend(core)


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(native_steps, "_TILE_WORK", 1 << 9)
    monkeypatch.setattr(native_steps, "_TILE_NUMBERS", 1 << 7)
    monkeypatch.setattr(native_graph, "_TILE_ROWS", 16)


def threads_of(monkeypatch, count):
    """A pool of so many threads, whatever the machine has."""
    monkeypatch.setattr(threads, "thread_count", lambda: count)
    threads._pool.cache_clear()


def matrix_of(rng, shape, dtype, index="int32", longest=40):
    """A random matrix with empty rows, and a row with an entry in nearly every column."""
    n, p = shape
    parts = [np.zeros(0, np.int64)] * n
    for row in range(n):
        length = min(p, int(rng.integers(0, longest)) if row % 5 else 0)
        parts[row] = np.sort(rng.choice(p, length, replace=False)) if p else parts[row]
    if n and p:
        parts[n // 2] = np.arange(p // 8, p)
    indices = np.concatenate([*parts, np.zeros(0, np.int64)]).astype(index)
    indptr = np.cumsum([0, *(part.size for part in parts)]).astype(index)
    data = rng.standard_normal(indices.size).astype(dtype)
    return NumpyBackend().csr(data, indices, indptr, shape)


def assert_close(found, expected, dtype, scale=1.0):
    tolerance = {"float32": 2e-5, "float64": 1e-10}[np.dtype(dtype).name]
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("m", WIDTHS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_products_are_the_generic_ones(backend, m, dtype, index):
    rng = np.random.default_rng(100 + m)
    matrix = matrix_of(rng, (37, 29), dtype, index)
    dense, values = (rng.standard_normal((rows, m)).astype(dtype) for rows in (29, 37))
    assert_close(backend.spmm(matrix, dense), Generic().spmm(matrix, dense), dtype, 30)
    expected = Generic().subtract_spmm(values, matrix, dense)
    taken = values.copy()
    found = backend.subtract_spmm(taken, matrix, dense)
    assert np.shares_memory(found, taken)
    assert_close(found, expected, dtype, 30)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("m", WIDTHS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_step_is_the_generic_one(backend, m, dtype, index):
    rng = np.random.default_rng(200 + m)
    n = 41
    matrix = matrix_of(rng, (n, n), dtype, index)
    solution, residual, direction, product = rng.standard_normal((4, n, m)).astype(dtype)
    step = rng.standard_normal(m)
    plain = Generic()
    expected = plain.laplacian_step(matrix, direction, 0.9)
    found = backend.laplacian_step(matrix, direction, 0.9)
    assert_close(found.values, expected.values, dtype, 30)
    assert_close(found.curvature, expected.curvature, dtype, 300)
    wanted = plain.cg_update(solution, residual, direction, product, step)
    made = backend.cg_update(solution.copy(), residual.copy(), direction, product, step)
    assert_close(made.solution, wanted.solution, dtype, 3)
    assert_close(made.residual, wanted.residual, dtype, 3)
    assert_close(made.squared_norm, wanted.squared_norm, dtype, 100)
    turned = backend.cg_direction(residual, direction.copy(), step)
    assert_close(turned, plain.cg_direction(residual, direction, step), dtype, 3)
    dots = backend.column_dots(residual, direction)
    assert_close(dots, plain.column_dots(residual, direction), dtype, 100)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("m", [2, 8, 15, 16, 32, 64, 100, 128, 136, 144])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("skip", [0, 16])
def test_products_past_the_cache_have_the_same_bits(core, monkeypatch, m, dtype, skip):
    rng, n = np.random.default_rng(300 + m), 41
    matrix = matrix_of(rng, (n, n), dtype)
    direction = rng.standard_normal((n, m)).astype(dtype)
    memory = np.zeros(direction.nbytes + 128, np.uint8)
    # Rows of whole lines of the cache, and such that are not.
    first = -memory.ctypes.data % 64 + skip
    product = memory[first : first + direction.nbytes].view(dtype).reshape(n, m)
    made = []
    for large in (0, 1 << 60):
        monkeypatch.setattr(native_steps, "_LARGE", large)
        product[:] = np.nan
        dots = native_steps.laplacian_step(core, matrix, direction, 0.9, product)
        made.append((product.tobytes(), dots.tobytes()))
    assert made[0] == made[1]
    # Nothing beside it is written to.
    assert not memory[:first].any()
    assert not memory[first + direction.nbytes :].any()


# One row less and one more than a tile, and many tiles.
@pytest.mark.parametrize("n", [0, 1, 2, 63, 64, 65, 127, 128, 129, 1000])
@pytest.mark.parametrize("m", [1, 3, 64])
def test_rows_at_the_edge_of_a_tile(backend, monkeypatch, n, m):
    monkeypatch.setattr(native_steps, "_TILE_NUMBERS", 64 * m)
    monkeypatch.setattr(native_steps, "_TILE_WORK", 64 * 7 * m)
    rng = np.random.default_rng(7)
    indices = rng.integers(0, max(n, 1), 5 * n).astype(np.int32)
    matrix = NumpyBackend().csr(
        rng.random(5 * n, np.float32), indices, np.arange(0, 5 * n + 1, 5, np.int32), (n, n)
    )
    direction = rng.standard_normal((n, m)).astype(np.float32)
    found, expected = (
        one.laplacian_step(matrix, direction, 0.5) for one in (backend, NumpyBackend())
    )
    assert_close(found.values, expected.values, "float32", 30)
    assert_close(found.curvature, expected.curvature, "float32", 300)
    dots = backend.column_dots(direction, direction)
    np.testing.assert_allclose(dots, np.sum(direction.astype(float) ** 2, axis=0), rtol=1e-5)


@pytest.mark.parametrize("m", [1, 2, 5, 16, 64, 70])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_no_number_is_kept(backend, m, dtype):
    rng = np.random.default_rng(5)
    matrix = matrix_of(rng, (30, 30), dtype)
    direction = rng.standard_normal((30, m)).astype(dtype)
    direction[3, 0], direction[4, m - 1], direction[5, m // 2] = np.nan, np.inf, -np.inf
    matrix.data[7] = np.nan
    with np.errstate(invalid="ignore"):
        expected = Generic().laplacian_step(matrix, direction, 0.9)
    found = backend.laplacian_step(matrix, direction, 0.9)
    for one, other in ((found.values, expected.values), (found.curvature, expected.curvature)):
        assert np.array_equal(np.isnan(one), np.isnan(other))
        assert np.array_equal(np.isposinf(one), np.isposinf(other))
        assert np.array_equal(np.isneginf(one), np.isneginf(other))
    assert np.isnan(backend.column_dots(direction, direction)[0])
    with_nan = np.full(m, np.nan)
    residual = np.ones((30, m), dtype)
    assert np.isnan(backend.cg_direction(residual, residual.copy(), with_nan)).all()


def test_zero_times_infinity_is_not_zero(backend):
    matrix = NumpyBackend().csr(
        np.zeros(1, np.float32), np.zeros(1, np.int32), np.array([0, 1], np.int32), (1, 1)
    )
    for m in (1, 7, 64):
        assert np.isnan(backend.spmm(matrix, np.full((1, m), np.inf, np.float32))).all()


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("m", [1, 5, 64])
def test_bits_do_not_depend_on_the_number_of_threads(backend, monkeypatch, m):
    rng = np.random.default_rng(17)
    n = 500
    matrix = matrix_of(rng, (n, n), "float32")
    given = rng.standard_normal((4, n, m)).astype(np.float32)
    lists = rng.integers(-1, n, (n, 9)), rng.random((n, 9), np.float32)
    made = []
    for count in (1, 2, 3, 7):
        threads_of(monkeypatch, count)
        solution, residual, direction, values = given.copy()
        product = backend.laplacian_step(matrix, direction, 0.99)
        update = backend.cg_update(solution, residual, direction, product.values, np.full(m, 0.3))
        turned = backend.cg_direction(residual, direction, np.full(m, 0.7))
        taken = backend.subtract_spmm(values, matrix, turned)
        edges = backend.mutual_edges(*lists)
        parts = (product.values, product.curvature, update.solution, update.residual, taken)
        more = (update.squared_norm, backend.column_dots(turned, taken), edges.indices, edges.data)
        made.append(b"".join(part.tobytes() for part in (*parts, *more)))
    threads._pool.cache_clear()
    assert made[0] == made[1] == made[2] == made[3]


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (3, 4)])
@pytest.mark.parametrize("m", [0, 1, 6])
def test_empty_matrices_and_arrays(backend, shape, m):
    n, p = shape
    matrix = NumpyBackend().csr(
        np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(n + 1, np.int32), shape
    )
    product = backend.spmm(matrix, np.ones((p, m), np.float32))
    assert product.shape == (n, m)
    assert not product.any()
    assert backend.column_dots(product, product).shape == (m,)


def lists_of(rng, n, k, dtype):
    """Lists with repeated ids, ids of -1, the item itself, and similarities of every kind."""
    ids = rng.integers(-1, n, (n, k))
    ids[:, 0] = np.arange(n)
    similarities = rng.uniform(-0.2, 1, (n, k)).astype(dtype)
    similarities[rng.random((n, k)) < 0.05] = 0
    similarities[rng.random((n, k)) < 0.05] = np.nan
    return ids, similarities


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (30, 3), (40, 40), (60, 150), (200, 97)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_mutual_edges_are_the_generic_ones(backend, n, k, dtype):
    ids, similarities = lists_of(np.random.default_rng(n + k), n, k, dtype)
    expected = Generic().mutual_edges(ids, similarities)
    found = backend.mutual_edges(ids, similarities)
    for name in ("indptr", "indices", "data"):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    assert n < 30 or found.data.size


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("degree", [0, 0.3, 0.7, 1.5, 6])
def test_components_are_numbered_by_their_first_items(backend, index, degree):
    rng = np.random.default_rng(23)
    n, count = 300, int(300 * degree)
    pairs = rng.integers(0, n, (2, count))
    one = sparse.coo_array((np.ones(count), pairs), shape=(n, n)).tocsr()
    matrix = NumpyBackend().csr(
        one.data, one.indices.astype(index), one.indptr.astype(index), (n, n)
    )
    expected = scipy.sparse.csgraph.connected_components(one, directed=False)[1]
    found = backend.connected_components(matrix)
    assert found.dtype == np.int32
    assert np.array_equal(found, expected)


def test_long_chain_is_one_component(backend):
    n = 50_000
    order = np.random.default_rng(3).permutation(n)
    chain = sparse.coo_array((np.ones(n - 1), (order[:-1], order[1:])), shape=(n, n)).tocsr()
    matrix = NumpyBackend().csr(chain.data, chain.indices, chain.indptr, (n, n))
    assert not backend.connected_components(matrix).any()


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("n", [1, 40, 400])
def test_reordered_rows_are_the_generic_ones(backend, dtype, index, n):
    rng = np.random.default_rng(n)
    matrix = matrix_of(rng, (n, n), dtype, index)
    numbering = numbering_of(rng.permutation(n), Generic())
    found, expected = (one.reordered(matrix, numbering) for one in (backend, Generic()))
    for name in ("data", "indices", "indptr"):
        assert getattr(found, name).dtype == getattr(expected, name).dtype
        assert np.array_equal(getattr(found, name), getattr(expected, name))


def scores_of(rng, m, n, kind):
    """Scores of one kind: all different, few different ones, or with what is no number."""
    if kind == "different":
        return rng.standard_normal((m, n))
    scores = rng.integers(0, 4, (m, n)) * 0.5
    if kind == "special":
        scores[rng.random((m, n)) < 0.05] = np.inf
        scores[rng.random((m, n)) < 0.05] = -np.inf
        scores[rng.random((m, n)) < 0.2] = -0.0
    return scores


@pytest.mark.parametrize("kind", ["different", "equal", "special"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 16, 1), (3, 100, 6), (16, 400, 25), (37, 333, 20)])
def test_best_entries_are_the_generic_ones(backend, kind, dtype, by_columns, m, n, k):
    rng = np.random.default_rng(m * n)
    scores = scores_of(rng, m, n, kind).astype(dtype)
    scores = np.asfortranarray(scores) if by_columns else scores
    for numbering in (None, numbering_of(rng.permutation(n), Generic())):
        found, expected = (one.top_k(scores, k, numbering) for one in (backend, Generic()))
        assert found.ids.dtype == np.int64
        assert np.array_equal(found.ids, expected.ids)
        assert found.scores.dtype == scores.dtype
        assert np.array_equal(found.scores, expected.scores)


@pytest.mark.parametrize("place", [0, 5, 300])
@pytest.mark.parametrize("by_columns", [False, True])
def test_nan_is_among_the_best(backend, place, by_columns):
    scores = np.random.default_rng(13).random((20, 500)).astype(np.float32)
    scores[:, place] = np.nan
    scores = np.asfortranarray(scores) if by_columns else scores
    best = backend.top_k(scores, 10)
    assert np.isnan(best.scores[:, 0]).all()
    assert (best.ids[:, 0] == place).all()
    assert not np.isnan(best.scores[:, 1:]).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("n", "block", "k"), [(64, 32, 4), (135, 33, 3), (190, 40, 11), (1290, 600, 51), (2077, 512, 9)]
)
def test_largest_products_are_the_generic_ones(backend, monkeypatch, dtype, n, block, k):
    monkeypatch.setattr(native_products, "_BLOCK", block)
    monkeypatch.setattr(native_products, "_LEAST_BLOCKS", 1)
    rng = np.random.default_rng(n + k)
    # Small integers: their products are exact, and many of them are equal.
    rows = rng.integers(-2, 3, (n, 6)).astype(dtype)
    assert native_products.suits(rows, k)
    told = []
    for numbering in (None, numbering_of(rng.permutation(n), Generic())):
        expected = Generic().top_k(rows @ rows.T, k, numbering)
        found = backend.largest_products(rows, rows, k, numbering, told.append)
        assert (found.ids.dtype, found.scores.dtype) == (np.int64, rows.dtype)
        assert np.array_equal(found.ids, expected.ids)
        assert np.array_equal(found.scores, expected.scores)
        # Other rows, if only by their address: not by halves.
        again = backend.largest_products(rows[5:], rows, k, numbering)
        assert np.array_equal(again.ids, expected.ids[5:])
    assert told[0] == 0
    assert max(told) < n


def test_products_that_are_no_number_come_first(backend, monkeypatch):
    monkeypatch.setattr(native_products, "_BLOCK", 16)
    monkeypatch.setattr(native_products, "_LEAST_BLOCKS", 1)
    rows = np.random.default_rng(17).standard_normal((80, 4))
    rows[[7, 60]] = np.nan
    best = backend.largest_products(rows, rows, 5)
    assert best.ids[:7, :2].tolist() == [[7, 60]] * 7
    assert np.isnan(best.scores[:7, :2]).all()
    assert not np.isnan(best.scores[:7, 2:]).any()
    assert np.isnan(best.scores[[7, 60]]).all()


@pytest.mark.parametrize("count", [1, 2, 3, 8, 11])
def test_every_pair_of_blocks_meets_once_and_none_is_twice_in_a_round(count):
    rounds = list(native_products._rounds(count))
    pairs = [tuple(sorted(pair)) for pairs in rounds for pair in pairs]
    assert sorted(pairs) == [(one, other) for one in range(count) for other in range(one, count)]
    for pairs in rounds[1:]:
        blocks = [block for pair in pairs for block in pair]
        assert len(set(blocks)) == len(blocks)


def level_of(rng, nodes, edges, weights):
    ends = rng.integers(0, nodes, (2, edges))
    ends = np.unique(np.sort(ends[:, ends[0] != ends[1]], axis=0), axis=1)
    low, high = ends.astype(np.int32, order="C")
    chosen = rng.choice(weights, low.size).astype(np.float32)
    return low, high, chosen, rng.integers(1, 9, nodes)


@pytest.mark.parametrize("weights", [[1.0], [0.1, 0.5, 2.0], np.geomspace(1e-4, 1, 999)])
@pytest.mark.parametrize(("nodes", "edges"), [(2, 9), (50, 20), (300, 4000)])
def test_loops_over_edges_are_those_of_numpy(core, weights, nodes, edges):
    rng = np.random.default_rng(nodes)
    low, high, values, sizes = level_of(rng, nodes, edges, weights)
    roots = rng.random(nodes, np.float32)
    names = rng.permutation(nodes).astype(np.uint32)
    marked = rng.random(nodes) < 0.5
    parent = rng.permutation(nodes) // 2
    width = max(1, int(parent.max()).bit_length())
    own = np.arange(nodes)  # no edge is left out: the last one ends its array
    results = []
    for loops in (edge_loops.NumpyEdgeLoops(), NativeEdgeLoops(core)):
        priority = loops.priorities(low, high, values, roots, names)
        fitting = loops.fitting(low, high, priority, sizes, 9)
        pairs = loops.best_pairs(*fitting, nodes)
        free = loops.free(*(part.copy() for part in fitting), marked)
        loose = loops.loose(low, high, marked)
        for spare in (31, 64 - 2 * width if 64 - 2 * width < 31 else 24):
            free += loops.added_up(low, high, values, parent, width, spare)
        free += loops.added_up(low, high, values, own, 9, 31)
        results.append([priority, *fitting, pairs, *free, loose])
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


@pytest.mark.parametrize("seed", [3, 19])
def test_groups_are_those_of_numpy(core, monkeypatch, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((30, 6))[rng.integers(0, 30, 900)] * 2
    vectors += rng.standard_normal((900, 6))
    graph = hg.reciprocal_graph(hg.nearest_neighbors(vectors, k=9, backend="numpy"))
    made = []
    for loops in (edge_loops.NumpyEdgeLoops(), NativeEdgeLoops(core)):
        monkeypatch.setattr(aggregation, "edge_loops", lambda loops=loops: loops)
        made.append(hg.aggregate(graph, groups=40, seed=seed))
    assert np.array_equal(made[0].labels, made[1].labels)
    assert np.array_equal(made[0].order, made[1].order)


def good_matrix(**parts):
    given = {
        "data": np.ones(3, np.float32),
        "indices": np.array([0, 1, 2], np.int32),
        "indptr": np.array([0, 1, 2, 3], np.int32),
        "shape": (3, 3),
    }
    return NumpyBackend().csr(**(given | parts))


@pytest.mark.parametrize(
    "parts",
    [
        {"indices": np.array([0, 1, 3], np.int32)},
        {"indices": np.array([0, -1, 2], np.int32)},
        {"indices": np.array([0, 1], np.int32)},
        {"indptr": np.array([0, 2, 1, 3], np.int32)},
        {"indptr": np.array([0, 1, 2, 4], np.int32)},
        {"indptr": np.array([-1, 1, 2, 3], np.int32)},
        {"indptr": np.array([0, 1, 3], np.int32)},
        {"indices": np.array([0, 1, 2, 0], np.int32)},
    ],
)
def test_matrix_that_points_outside_is_refused(backend, parts):
    matrix = good_matrix(**parts)
    ones = np.ones((3, 2), np.float32)
    for call in (
        lambda: backend.spmm(matrix, ones),
        lambda: backend.laplacian_step(matrix, ones, 0.9),
        lambda: backend.subtract_spmm(ones.copy(), matrix, ones),
        lambda: backend.connected_components(matrix),
    ):
        with pytest.raises(ValueError, match=r"indices|row bounds"):
            call()


def test_wrong_arrays_are_refused(core, backend):
    matrix, ones = good_matrix(), np.ones((3, 2), np.float32)
    with pytest.raises(ValueError, match=r"dense must have shape \(3, 2\); got \(4, 2\)"):
        backend.spmm(matrix, np.ones((4, 2), np.float32))
    with pytest.raises(ValueError, match="the adjacency must be square"):
        native_steps.laplacian_step(core, good_matrix(shape=(3, 4)), ones, 0.9, ones.copy())
    with pytest.raises(ValueError, match=r"product must have shape \(3, 2\)"):
        native_steps.laplacian_step(core, matrix, ones, 0.9, np.ones((2, 3), np.float32))
    with pytest.raises(TypeError, match="right must be float32; got float64"):
        native_steps.column_dots(core, ones, ones.astype(float))
    with pytest.raises(ValueError, match="without gaps"):
        native_steps.column_dots(core, ones, np.ones((3, 4), np.float32)[:, ::2])
    with pytest.raises(ValueError, match=r"step must have shape \(2,\)"):
        native_steps.cg_update(core, *(ones.copy() for _ in range(4)), np.ones(3, np.float32))
    fixed = ones.copy()
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="direction is read-only"):
        native_steps.cg_direction(core, ones, fixed, np.ones(2, np.float32))
    with pytest.raises(ValueError, match="ids must be below the number of lists, 3"):
        native_graph.mutual_edges(core, np.array([[1, 2], [0, 2], [0, 3]]), ones)
    low, high = np.array([0], np.int32), np.array([5], np.int32)
    with pytest.raises(ValueError, match="edges must join nodes from 0 to 4"):
        NativeEdgeLoops(core).loose(low, high, np.ones(5, bool))
    order = np.array([0, 1, 3])
    with pytest.raises(ValueError, match="order must hold numbers from 0 to 2"):
        native_graph.reordered(core, matrix, hg.backends.protocol.Numbering(order, order))
    repeated = np.array([0, 1, 1])
    with pytest.raises(ValueError, match="permutations"):
        native_graph.reordered(core, matrix, hg.backends.protocol.Numbering(repeated, repeated))


def test_what_does_not_suit_is_done_by_numpy(backend):
    rng = np.random.default_rng(29)
    matrix = matrix_of(rng, (20, 20), "float32")
    wide = rng.standard_normal((20, 8))
    for dense in (wide, wide.astype(np.float32)[:, ::2], wide.astype(np.float32).T[:4].T):
        np.testing.assert_allclose(
            backend.spmm(matrix, dense), NumpyBackend().spmm(matrix, dense), rtol=1e-4, atol=1e-4
        )
    same = wide.astype(np.float32)
    copy, half = same.copy(), np.full(8, 0.5)
    # The direction is the residual itself: native code takes it that the two lie apart.
    expected = NumpyBackend().cg_direction(copy, copy, half)
    assert np.array_equal(backend.cg_direction(same, same, half), expected)


def test_core_is_switched_off_and_insisted_on(monkeypatch):
    native.core_state.cache_clear()
    try:
        monkeypatch.setenv("HYBRID_GPU_NATIVE", "0")
        assert native.native_core() is None
        assert type(host_backend()) is NumpyBackend
        assert native.core_level() == "none"
        native.core_state.cache_clear()
        monkeypatch.setenv("HYBRID_GPU_NATIVE", "1")
        monkeypatch.setattr(native, "_LIBRARY", Path("nowhere.so"))
        with pytest.raises(hg.BackendUnavailableError, match="native core, which is not built"):
            native.native_core()
    finally:
        native.core_state.cache_clear()


def test_library_of_other_sources_is_not_used(core, monkeypatch, tmp_path):
    monkeypatch.setattr(native, "source_checksum", lambda: core.library.hg_sources() ^ 1)
    state = native._loaded(Path(core.library._name))
    assert state.core is None
    assert "other sources" in state.reason
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    assert "not to be loaded" in native._loaded(broken).reason
    assert native._loaded(tmp_path / "none.so").reason == "not built"


def test_backend_and_matrix_can_be_sent_to_another_process(backend):
    matrix = matrix_of(np.random.default_rng(31), (30, 30), "float32")
    assert matrix.sound
    assert matrix.tiles
    there, copy = pickle.loads(pickle.dumps((backend, matrix)))
    assert there.name == backend.name
    assert not {"blocks", "tiles", "sound"} & set(vars(copy))
    ones = np.ones((30, 3), np.float32)
    assert np.allclose(there.spmm(copy, ones), backend.spmm(matrix, ones), atol=1e-5)


def test_level_is_the_best_that_is_built_and_that_the_processor_has():
    class Library:
        hg_spmm_f32_i32_plain = hg_spmm_f32_i32_avx512 = None

    assert native._best_level(Library(), 0) == "plain"
    assert native._best_level(Library(), 1) == "plain"
    assert native._best_level(Library(), 2) == "avx512"


def test_signatures_of_a_function_do_not_mix(core):
    first = core.function("hg_priorities", (ctypes.c_int64,))
    second = core.function("hg_priorities", (ctypes.c_void_p,))
    assert first.argtypes != second.argtypes


def test_rows_at_odd_addresses_are_left_to_numpy(rng):
    rows = rng.standard_normal((2048, 3)).astype(np.float32)
    memory = np.zeros(rows.nbytes + 1, np.uint8)
    odd = memory[1:].view(np.float32).reshape(rows.shape)
    odd[:] = rows
    assert native_products.suits(rows, 3)
    assert not native_products.suits(odd, 3)


def test_products_of_other_types_are_left_to_numpy():
    rows = np.zeros((4096, 8), "float32")
    assert native_products.suits(rows, 5)
    assert not native_products.suits(rows.astype("float16"), 5)
    assert not native_products.suits(rows.astype("int32"), 5)
    assert not native_products.suits(np.asfortranarray(rows), 5)
