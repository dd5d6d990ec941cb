"""Operations of a backend where kernels and libraries take other ways: sizes, orders, types, ties.

What is compared with is NumPy in float64, never the backend itself.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sparse

from hybrid_gpu.backends import select_backend
from hybrid_gpu.backends.step_records import Course, Product, Standing
from hybrid_gpu.graph.affinity import numbering_of


@pytest.fixture
def rng():
    return np.random.default_rng(221)


# Copies: some operations write over what they get.
def c_order(backend, values):
    return backend.asarray(np.array(values, order="C"))


def f_order(backend, values):
    """The same array, column after column in memory."""
    if values.ndim == 1:
        return c_order(backend, values)
    return backend.asarray(np.array(values.T, order="C")).T


def part_of_more(backend, values):
    """The same array as every other row and column of a larger one."""
    wide = np.full([2 * size for size in values.shape], 99, values.dtype)
    places = tuple(slice(None, None, 2) for _ in values.shape)
    wide[places] = values
    return backend.asarray(wide)[places]


def behind_one(backend, values):
    """The same array one entry into memory, where loads of several entries are not aligned."""
    flat = backend.asarray(np.concatenate([np.zeros(1, values.dtype), values.ravel()]))
    return backend.xp.reshape(flat[1:], values.shape)


ORDERS = [c_order, f_order, part_of_more, behind_one]


def csr(backend, dense, index_dtype="int32", order=c_order):
    one = sparse.csr_array(dense)
    parts = one.data, one.indices.astype(index_dtype), one.indptr.astype(index_dtype)
    return backend.csr(*(order(backend, part) for part in parts), one.shape)


def close(backend, found, expected, tolerance):
    found = backend.to_numpy(found)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=50 * tolerance, atol=50 * tolerance)


def sparse_matrix(rng, n, p, density, dtype):
    return (rng.standard_normal((n, p)) * (rng.random((n, p)) < density)).astype(dtype)


# 128 columns are one block of threads; 129 and more take several. Up to 16 share the entries of a
# row among threads; rows of more than 256 entries have a kernel of their own, in tiles of 32.
WIDTHS = [1, 3, 16, 17, 32, 33, 64, 128, 129, 200, 257]


@pytest.mark.parametrize("m", [1, 4, 17, 64, 128])
def test_rows_without_an_entry_for_an_item_never_read_its_values(backend, rng, dtype, m):
    # Rows of every length up to 40: kernels fill the last of their loads up, with the first item.
    n = 41
    matrix = np.zeros((n, n), dtype)
    for row in range(1, n):
        matrix[row, rng.choice(np.arange(1, n), row - 1, replace=False)] = 1 / n
    right = rng.standard_normal((n, m)).astype(dtype)
    for damage in (np.inf, np.nan):
        right[0] = damage
        there, given = csr(backend, matrix), c_order(backend, right)
        product = backend.to_numpy(backend.spmm(there, given))
        step = backend.to_numpy(backend.laplacian_step(there, given, 0.5).values)
        assert np.all(np.isfinite(product))
        assert np.all(np.isfinite(step[1:]))


@pytest.mark.parametrize("m", WIDTHS)
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_sparse_products_of_every_width(backend, rng, dtype, tolerance, m, index_dtype):
    matrix, right = sparse_matrix(rng, 61, 47, 0.2, dtype), rng.standard_normal((47, m))
    right, values = right.astype(dtype), rng.standard_normal((61, m)).astype(dtype)
    there, expected = csr(backend, matrix, index_dtype), matrix.astype("float64") @ right
    close(backend, backend.spmm(there, c_order(backend, right)), expected, tolerance)
    left = backend.subtract_spmm(c_order(backend, values), there, c_order(backend, right))
    close(backend, left, values - expected, tolerance)


@pytest.mark.parametrize("m", [1, 5, 32, 33, 64, 129])
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_long_rows_of_every_width(backend, rng, dtype, tolerance, m, index_dtype):
    matrix, right = sparse_matrix(rng, 9, 600, 0.7, dtype), rng.standard_normal((600, m))
    matrix[4] = 0
    assert np.count_nonzero(matrix) / 9 > 256
    right, values = right.astype(dtype), rng.standard_normal((9, m)).astype(dtype)
    there, expected = csr(backend, matrix, index_dtype), matrix.astype("float64") @ right
    close(backend, backend.spmm(there, c_order(backend, right)), expected, tolerance)
    left = backend.subtract_spmm(c_order(backend, values), there, c_order(backend, right))
    close(backend, left, values - expected, tolerance)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("m", [1, 7, 129, 200])
@pytest.mark.parametrize(
    ("index_dtype", "step_dtype"), [("int32", "float64"), ("int64", "float32")]
)
def test_steps_of_conjugate_gradients(
    backend, rng, dtype, tolerance, m, order, index_dtype, step_dtype
):
    n, alpha = 53, 0.9
    matrix = sparse_matrix(rng, n, n, 0.2, dtype)
    x, r, p, q = (rng.standard_normal((n, m)).astype(dtype) for _ in range(4))
    step = rng.random(m).astype(step_dtype)

    def there(values):
        return order(backend, values)

    adjacency = csr(backend, matrix, index_dtype, order)
    made = backend.laplacian_step(adjacency, there(p), alpha)
    product = p - alpha * (matrix.astype("float64") @ p)
    close(backend, made.values, product, tolerance)
    close(backend, made.curvature, (p * product).sum(axis=0), 20 * tolerance)
    moved = backend.cg_update(there(x), there(r), there(p), there(q), there(step))
    close(backend, moved.solution, x + p * step, tolerance)
    close(backend, moved.residual, r - q * step, tolerance)
    close(backend, moved.squared_norm, ((r - q * step) ** 2).sum(axis=0), 20 * tolerance)
    turned = backend.cg_direction(there(r), there(p), there(step))
    close(backend, turned, r + p * step, tolerance)
    dots = backend.column_dots(there(r), there(p))
    close(backend, dots, (r.astype("float64") * p).sum(axis=0), 20 * tolerance)


@pytest.mark.parametrize("order", ORDERS)
def test_products_take_any_order(backend, rng, dtype, tolerance, order):
    matrix, right = sparse_matrix(rng, 30, 20, 0.4, dtype), rng.standard_normal((20, 9))
    right, values = right.astype(dtype), rng.standard_normal((30, 9)).astype(dtype)
    there, expected = csr(backend, matrix, order=order), matrix.astype("float64") @ right
    close(backend, backend.spmm(there, order(backend, right)), expected, tolerance)
    left = backend.subtract_spmm(order(backend, values), there, order(backend, right))
    close(backend, left, values - expected, tolerance)
    close(
        backend, backend.matmul(order(backend, matrix), order(backend, right)), expected, tolerance
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("q", [3, 70])
def test_places_take_any_order(backend, rng, dtype, tolerance, order, q):
    ids, values = rng.integers(-1, 30, (6, q)), rng.random((6, q)).astype(dtype)
    expected = np.zeros((30, 6))
    for column, (row, entries) in enumerate(zip(ids, values, strict=True)):
        np.add.at(expected[:, column], row[row >= 0], entries[row >= 0])
    found = backend.place(order(backend, ids), order(backend, values), 30)
    close(backend, found, expected, tolerance)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("id_dtype", ["int32", "int64"])
def test_mutual_edges_take_any_order_and_both_widths_of_ids(backend, order, id_dtype):
    # 0 and 1 list each other, and so do 1 and 2; 3 lists whom nobody gives back.
    ids = np.array([[1, 3], [0, 2], [1, -1], [0, 1]])
    similarities = np.array([[0.5, 0.25], [1.0, 0.5], [0.75, 0.0], [0.5, 0.5]])
    edges = backend.mutual_edges(order(backend, ids.astype(id_dtype)), order(backend, similarities))
    # 3 lists 0, and 0 lists 3.
    assert backend.to_numpy(edges.indptr).tolist() == [0, 2, 4, 5, 6]
    assert backend.to_numpy(edges.indices).tolist() == [1, 3, 0, 2, 1, 0]
    assert backend.to_numpy(edges.data).tolist() == [0.75, 0.375, 0.75, 0.625, 0.625, 0.375]


# ---- top-k


def best(scores, k):
    """A stable sort, by the highest first; -0 and 0 are the same."""
    ids = np.argsort(-(scores + 0.0), axis=1, kind="stable")[:, :k]
    return ids, np.take_along_axis(scores, ids, axis=1)


def special(rng, kind, shape):
    if kind == "equal":
        return np.full(shape, 0.25)
    if kind == "zeros":
        return np.where(rng.random(shape) < 0.5, 0.0, -0.0)
    if kind == "infinite":
        return rng.choice([np.inf, -np.inf, 1.0, -0.0, 0.0, 5e-324, -1.0], shape)
    return rng.standard_normal(shape)


@pytest.mark.parametrize("kind", ["equal", "zeros", "infinite", "any"])
@pytest.mark.parametrize("k", [1, 2, 31, 256, 2047, 2048, 2049, 2299, 2300])
@pytest.mark.parametrize("turned", [False, True])
def test_top_k_of_special_scores_at_every_k(backend, rng, dtype, kind, k, turned):
    scores = special(rng, kind, (3, 2300)).astype(dtype)
    there = f_order(backend, scores) if turned else c_order(backend, scores)
    ids, values = best(scores, k)
    found = backend.top_k(there, k)
    np.testing.assert_array_equal(backend.to_numpy(found.ids), ids)
    np.testing.assert_array_equal(backend.to_numpy(found.scores), values)


@pytest.mark.parametrize("kind", ["equal", "zeros", "infinite", "any"])
@pytest.mark.parametrize("k", [1, 300, 2048, 2049, 2300])
def test_top_k_by_a_numbering_of_special_scores(backend, rng, dtype, kind, k):
    scores, order = special(rng, kind, (2, 2300)).astype(dtype), rng.permutation(2300)
    numbering = numbering_of(order, backend)
    found = backend.top_k(f_order(backend, scores), k, numbering)
    # In the user's numbers, ties go to the lower one.
    users = np.empty_like(scores)
    users[:, order] = scores
    ids, values = best(users, k)
    np.testing.assert_array_equal(order[backend.to_numpy(found.ids)], ids)
    np.testing.assert_array_equal(backend.to_numpy(found.scores), values)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_top_k_finds_nan_of_either_sign(backend, rng, dtype, sign):
    scores = special(rng, "any", (2, 300)).astype(dtype)
    scores[0, 211] = np.copysign(np.nan, sign)
    for there in (c_order(backend, scores), f_order(backend, scores)):
        found = np.isnan(backend.to_numpy(backend.top_k(there, 3).scores))
        assert found.any(axis=1).tolist() == [True, False]


def test_every_k_of_one_row(backend, rng):
    scores = rng.integers(0, 3, (1, 70)).astype("float32")
    for k in range(1, 71):
        found = backend.top_k(backend.asarray(scores), k)
        np.testing.assert_array_equal(backend.to_numpy(found.ids), best(scores, k)[0])


def test_no_columns(backend, dtype):
    matrix = csr(backend, np.eye(5, dtype=dtype))

    def none():
        return backend.asarray(np.zeros((5, 0), dtype))

    nothing = backend.asarray(np.zeros(0))
    assert backend.spmm(matrix, none()).shape == (5, 0)
    assert backend.subtract_spmm(none(), matrix, none()).shape == (5, 0)
    product = backend.laplacian_step(matrix, none(), 0.5)
    assert product.values.shape == (5, 0)
    assert product.curvature.shape == (0,)
    update = backend.cg_update(none(), none(), none(), none(), nothing)
    assert update.residual.shape == (5, 0)
    assert update.squared_norm.shape == (0,)
    assert backend.cg_direction(none(), none(), nothing).shape == (5, 0)
    assert backend.column_dots(none(), none()).shape == (0,)
    best = backend.top_k(none().T, 2)
    assert best.ids.shape == best.scores.shape == (0, 2)


@pytest.mark.parametrize("m", [4, 64])
@pytest.mark.parametrize("shifted", range(4))
def test_every_operand_may_stand_between_the_others(backend, rng, dtype, tolerance, m, shifted):
    # Loads of several entries must be aligned, whichever of the arrays is not.
    given = rng.standard_normal((4, 37, m)).astype(dtype)
    step = rng.random(m)
    matrix = sparse_matrix(rng, 37, 37, 0.2, dtype)
    there, wide = csr(backend, matrix), matrix.astype("float64")

    def placed(count):
        ways = [behind_one if place == shifted else c_order for place in range(count)]
        return [way(backend, values) for way, values in zip(ways, given, strict=False)]

    solution, residual, direction, product = given.astype("float64")
    update = backend.cg_update(*placed(4), backend.asarray(step))
    close(backend, update.solution, solution + direction * step, tolerance)
    close(backend, update.residual, residual - product * step, tolerance)
    turned = backend.cg_direction(*placed(2), backend.asarray(step))
    close(backend, turned, solution + residual * step, tolerance)
    close(backend, backend.column_dots(*placed(2)), np.sum(solution * residual, axis=0), tolerance)
    left = backend.subtract_spmm(*_between(placed(2), there))
    close(backend, left, solution - wide @ residual, tolerance)


def _between(pair, matrix):
    return pair[0], matrix, pair[1]


@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize("m", [16, 32, 48, 128])
def test_products_of_every_number_of_lanes(backend, rng, dtype, tolerance, m, index_dtype):
    # 16 columns of float32 are four lanes a row, whose entries with 64-bit indices fill the memory.
    matrix = sparse_matrix(rng, 150, 150, 0.3, dtype)
    right = rng.standard_normal((150, m)).astype(dtype)
    there, wide = csr(backend, matrix, index_dtype), matrix.astype("float64")
    close(backend, backend.spmm(there, c_order(backend, right)), wide @ right, tolerance)
    product = backend.laplacian_step(there, c_order(backend, right), 0.5)
    close(backend, product.values, right - 0.5 * (wide @ right), tolerance)


def whole_step(backend, dtype, n, m, *, shifted=None, order=c_order):
    """All that a step leaves, of one array behind one entry, and of numbers in any order."""
    rng = np.random.default_rng(223)
    ways = [behind_one if place == shifted else c_order for place in range(4)]
    arrays = [way(backend, rng.standard_normal((n, m)).astype(dtype)) for way in ways]
    product, residual, solution, direction = arrays
    # Columns that have arrived, that go on, and that stand still because rounding hides their step.
    numbers = [rng.random(m) + 1, rng.random(m) + 1, np.where(rng.random(m) < 0.3, 5.0, 0.1)]
    numbers += [np.arange(m) % 3 > 0, np.where(np.arange(m) % 4 == 3, 0.0, 3.0)]
    squared, length, target, fresh, curvature = (order(backend, number) for number in numbers)
    standing = Standing(squared, length, target, fresh)
    moves = backend.cg_pace(Product(product, curvature), standing, 1e-3)
    course = Course(solution, residual, direction, standing)
    after = backend.cg_advance(course, product, moves, stop_early=True)
    left = after.standing
    found = (after.solution, after.residual, after.direction)
    return [backend.to_numpy(part) for part in (*found, left.squared, left.length, left.fresh)]


def same_step(found, expected, tolerance):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            np.asarray(one, "float64"), np.asarray(other, "float64"), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("shifted", range(4))
@pytest.mark.parametrize(("n", "m"), [(40, 64), (6000, 64)])
def test_whole_steps_at_odd_addresses(backend, dtype, tolerance, n, m, shifted):
    # Columns one by one take more blocks than packs of them do, and with them more counters.
    expected = whole_step(select_backend("numpy"), "float64", n, m)
    same_step(whole_step(backend, dtype, n, m, shifted=shifted), expected, 100 * tolerance)


def test_whole_steps_take_numbers_in_any_order(backend, dtype, tolerance):
    expected = whole_step(select_backend("numpy"), "float64", 40, 17)
    same_step(whole_step(backend, dtype, 40, 17, order=every_other), expected, 100 * tolerance)


def every_other(backend, values):
    """The same values, each followed by one that is not theirs."""
    wide = np.zeros(2 * len(values), values.dtype)
    wide[::2] = values
    return backend.asarray(wide)[::2]


def test_columns_that_are_wanted_may_be_told_in_any_order(backend, rng, dtype, tolerance):
    matrix = sparse_matrix(rng, 50, 50, 0.2, dtype)
    right = rng.standard_normal((50, 5)).astype(dtype)
    wanted = every_other(backend, np.array([False, False, False, False, True]))
    there = csr(backend, matrix)
    product = backend.laplacian_step(there, c_order(backend, right), 0.9, wanted=wanted)
    wide = right - 0.9 * (matrix.astype("float64") @ right)
    close(backend, product.values[:, 4], wide[:, 4], tolerance)
