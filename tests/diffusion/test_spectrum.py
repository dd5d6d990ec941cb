"""Eigenpairs against numpy.linalg.eigh, and a certificate that notices what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import dense

import hybrid_gpu as hg
from hybrid_gpu.backends.numpy_backend import NumpyBackend
from hybrid_gpu.backends.protocol import Eigenpairs
from hybrid_gpu.diffusion import block_eigensolver as solver
from hybrid_gpu.diffusion import spectrum as module
from hybrid_gpu.diffusion.spectrum import Spectrum, leading_eigenpairs


@pytest.fixture(autouse=True)
def _iterate_on_small_graphs(monkeypatch):
    monkeypatch.setattr(module, "_DENSE_ITEMS", 30)


def hypercube(dimensions):
    """Eigenvalues 1 - 2 k / dimensions, each as often as there are k-subsets."""
    edge = sparse.csr_array([[0.0, 1.0], [1.0, 0.0]])
    cube = edge
    for _ in range(dimensions - 1):
        cube = sparse.kron(cube, sparse.eye_array(2)) + sparse.kron(
            sparse.eye_array(cube.shape[0]), edge
        )
    return sparse.csr_array(cube)


def star_of_cliques(cliques, size):
    """Equal cliques, each tied to one hub: every eigenvalue of a clique repeats."""
    n = 1 + cliques * size
    whole = np.zeros((n, n))
    for first in range(1, n, size):
        whole[first : first + size, first : first + size] = 1
        whole[0, first] = whole[first, 0] = 0.1
    np.fill_diagonal(whole, 0)
    return sparse.csr_array(whole)


def complete_bipartite(left, right):
    whole = np.zeros((left + right, left + right))
    whole[:left, left:] = whole[left:, :left] = 1
    return sparse.csr_array(whole)


def path(n):
    ones = np.ones(n - 1)
    return sparse.csr_array(sparse.diags_array([ones, ones], offsets=[-1, 1]))


def random_affinity(n, degree, seed):
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(0, n, (2, n * degree))
    one = sparse.coo_array((rng.random(n * degree) + 0.1, (rows, columns)), shape=(n, n)).tocsr()
    both = sparse.csr_array(one + one.T)
    both.setdiag(0)
    both.eliminate_zeros()
    return both


GRAPHS = {
    "hypercube": hypercube(9),
    "star of cliques": star_of_cliques(30, 8),
    "complete": sparse.csr_array(np.ones((200, 200)) - np.eye(200)),
    "bipartite": complete_bipartite(90, 130),
    "path": path(300),
    "random": random_affinity(400, 4, seed=5),
    "components": sparse.csr_array(
        sparse.block_diag([np.zeros((2, 2)), path(5), hypercube(8), np.ones((2, 2))])
    ),
}


@pytest.fixture(params=GRAPHS)
def graph(request, backend):
    return hg.graph_from_affinity(GRAPHS[request.param], dtype="float64", backend=backend)


def dense_spectrum(graph, backend):
    """All eigenvalues of the largest component, descending, the adjacency, and the items."""
    label = np.argmax(np.bincount(graph.components))
    items = np.flatnonzero(graph.components == label)
    matrix = graph.adjacency
    parts = [backend.to_numpy(part) for part in (matrix.data, matrix.indices, matrix.indptr)]
    whole = sparse.csr_array(tuple(parts), shape=matrix.shape).toarray()
    return np.linalg.eigvalsh(whole[np.ix_(items, items)])[::-1], whole, items


@pytest.mark.parametrize(("rank", "tolerance"), [(1, 1e-3), (20, 1e-8), (33, 1e-3)])
def test_block_engine_finds_every_copy_of_an_eigenvalue(graph, rank, tolerance, backend):
    found = leading_eigenpairs(graph, rank=rank, tolerance=tolerance, seed=7, backend=backend)
    values, whole, items = dense_spectrum(graph, backend)
    assert found.rank == rank
    assert found.items == items.size
    eigenvalues, vectors = (
        backend.to_numpy(part) for part in (found.eigenvalues, found.eigenvectors)
    )
    np.testing.assert_allclose(eigenvalues, values[:rank], atol=tolerance)
    errors = whole @ vectors - vectors * eigenvalues
    np.testing.assert_allclose(np.linalg.norm(errors, axis=0), found.residuals, atol=1e-12)
    assert found.residuals.max() <= tolerance
    gram = vectors.T @ vectors
    np.testing.assert_allclose(np.abs(gram - np.eye(rank)).max(), found.orthogonality, atol=1e-12)
    outside = np.setdiff1d(np.arange(graph.n), items)
    assert not vectors[outside].any()
    # Ritz values come from below; the smallest kept one is itself a tolerance away from the truth.
    assert found.missed <= values[rank] - values[rank - 1] + 2 * tolerance


@pytest.mark.parametrize("rank", [0, 256])
def test_rank_may_be_nothing_or_everything(rank, backend):
    graph = hg.graph_from_affinity(hypercube(8), backend=backend)
    found = leading_eigenpairs(graph, rank=rank, seed=7, backend=backend)
    assert found.rank == rank
    assert found.missed == -np.inf
    assert found.holds(1e-5)


def test_dense_decomposition_knows_the_next_eigenvalue(backend):
    graph = hg.graph_from_affinity(path(25), dtype="float64", backend=backend)
    found = leading_eigenpairs(graph, rank=4, seed=7, backend=backend)
    values = dense_spectrum(graph, backend)[0]
    np.testing.assert_allclose(found.missed, values[4] - values[3], atol=1e-12)


def test_lanczos_and_block_span_the_same_space_below_a_gap(backend):
    affinity = random_affinity(400, 4, seed=5)
    graph = hg.graph_from_affinity(affinity, dtype="float64", backend=backend)
    one, other = (
        leading_eigenpairs(graph, rank=10, engine=engine, tolerance=1e-8, seed=7, backend=backend)
        for engine in ("block", "lanczos")
    )
    one, other = (backend.to_numpy(pairs.eigenvectors) for pairs in (one, other))
    cosines = np.linalg.svd(one.T @ other, compute_uv=False)
    np.testing.assert_allclose(cosines, 1, atol=1e-8)


class ForgetfulBackend(NumpyBackend):
    """An ``eigsh`` that returns good pairs and leaves out one copy of a repeated eigenvalue."""

    def eigsh(self, matrix, k, start):
        identity = np.eye(matrix.shape[0])
        values, vectors = np.linalg.eigh(self.spmm(matrix, identity))
        kept = np.delete(np.arange(values.size)[::-1], 3)[:k]
        return Eigenpairs(values=values[kept], vectors=np.ascontiguousarray(vectors[:, kept]))


def test_certificate_notices_a_missing_copy():
    backend = ForgetfulBackend()
    graph = hg.graph_from_affinity(hypercube(9), dtype="float64", backend=backend)
    with pytest.raises(hg.ConvergenceError, match="missed eigenvalue") as failure:
        leading_eigenpairs(graph, rank=20, engine="lanczos", seed=7, backend=backend)
    result = failure.value.result
    assert isinstance(result, Spectrum)
    assert result.residuals.max() < 1e-10
    np.testing.assert_allclose(result.missed, 2 / 9, atol=1e-3)
    kept = leading_eigenpairs(
        graph, rank=20, engine="lanczos", seed=7, on_failure="keep", backend=backend
    )
    assert not kept.holds(1e-3)


def test_too_few_rounds_raise_with_what_was_computed(backend, monkeypatch):
    monkeypatch.setattr(solver, "_ROUNDS_AT_MOST", 1)
    graph = hg.graph_from_affinity(path(300), dtype="float64", backend=backend)
    with pytest.raises(hg.ConvergenceError, match="worst residual") as failure:
        leading_eigenpairs(graph, rank=20, tolerance=1e-9, seed=7, backend=backend)
    assert failure.value.result.rank == 20


def interrupt_when_some_have_converged(stage, done, total):
    if 0 < done < total:
        raise KeyboardInterrupt


@pytest.fixture
def slow_graph(backend):
    return hg.graph_from_affinity(path(900), dtype="float64", backend=backend)


def test_ctrl_c_loses_no_converged_pair(slow_graph, backend):
    part = leading_eigenpairs(
        slow_graph,
        rank=40,
        tolerance=1e-7,
        seed=7,
        on_failure="keep",
        progress=interrupt_when_some_have_converged,
        backend=backend,
    )
    assert 0 < part.rank < 40
    assert part.holds(1e-7)
    np.testing.assert_allclose(
        backend.to_numpy(part.eigenvalues),
        dense_spectrum(slow_graph, backend)[0][: part.rank],
        atol=1e-9,
    )
    whole = leading_eigenpairs(
        slow_graph, rank=40, tolerance=1e-7, start=part, seed=7, backend=backend
    )
    values = dense_spectrum(slow_graph, backend)[0][:40]
    np.testing.assert_allclose(backend.to_numpy(whole.eigenvalues), values, atol=1e-9)


def test_ctrl_c_is_ctrl_c_for_who_did_not_ask_to_keep_anything(slow_graph, backend):
    with pytest.raises(KeyboardInterrupt):
        leading_eigenpairs(
            slow_graph,
            rank=40,
            tolerance=1e-7,
            seed=7,
            progress=interrupt_when_some_have_converged,
            backend=backend,
        )


def test_ctrl_c_before_anything_has_converged_stays_ctrl_c(slow_graph, backend):
    def interrupt(stage, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leading_eigenpairs(
            slow_graph,
            rank=40,
            tolerance=1e-12,
            seed=7,
            on_failure="keep",
            progress=interrupt,
            backend=backend,
        )


@pytest.mark.parametrize("name", GRAPHS)
def test_few_rounds_are_enough(name, backend):
    graph = hg.graph_from_affinity(GRAPHS[name], dtype="float64", backend=backend)
    rounds = []
    leading_eigenpairs(
        graph,
        rank=20,
        tolerance=1e-8,
        seed=7,
        progress=lambda *stage: rounds.append(stage),
        backend=backend,
    )
    assert len(rounds) <= 8


def ritz_pairs(values, residuals):
    return solver.RitzPairs(np.array(values), None, np.array(residuals))


def gain(value, cut, degree):
    """Of a Chebyshev polynomial that is at most 1 on [-1, cut], at a value above."""
    stretched = np.polynomial.chebyshev.Chebyshev.basis(degree, domain=[-1, cut])
    return float(stretched(value))


def test_filter_is_as_long_as_the_worst_pair_needs():
    # Far from the last pair that counts to the next: which of the two is raised can be seen.
    values = np.append(np.linspace(1, 0.8, 20), np.linspace(0.68, 0.6, 8))
    for worst in (1e-2, 1e-4, 1e-5):
        plan = solver._next_filter(ritz_pairs(values, [worst] * 28), 20, 1e-5, "float64")
        assert plan.cut == values[-1]
        assert plan.settled == 0
        # From the worst residual to a tenth of the tolerance, and not a degree more.
        needed = worst / 1e-6
        assert plan.degree == 6 or gain(0.8, plan.cut, plan.degree) <= needed
        assert gain(0.8, plan.cut, plan.degree + 2) >= needed


def test_filter_raises_the_first_pair_over_the_last_by_no_more_than_rounding_bears():
    values = np.append(np.linspace(1, 0.5, 20), np.linspace(0.49, 0.45, 8))
    for dtype, largest in (("float32", 1e6), ("float64", 1e12)):
        plan = solver._next_filter(ritz_pairs(values, [1.0] * 28), 20, 1e-12, dtype)
        degrees = [plan.degree, plan.degree + 2]
        ratios = [gain(1.0, plan.cut, one) / gain(0.5, plan.cut, one) for one in degrees]
        assert ratios[0] <= largest < ratios[1]


def test_filter_has_a_gap_to_work_with_where_an_eigenvalue_repeats():
    plan = solver._next_filter(ritz_pairs([1.0] + [0.97] * 27, [1e-3] * 28), 20, 1e-5, "float64")
    np.testing.assert_allclose(plan.cut, 0.97 - 0.005 * 1.97, rtol=1e-12)
    assert 1000 / 4 < gain(0.97, plan.cut, plan.degree) < 1000


def test_only_pairs_a_tenth_of_the_tolerance_from_the_truth_are_left_alone():
    residuals = [1e-7, 1e-6, 1.01e-6, 1e-7] + [1e-3] * 24
    plan = solver._next_filter(ritz_pairs(np.linspace(1, 0.6, 28), residuals), 20, 1e-5, "float64")
    assert plan.settled == 2


def test_what_is_left_without_some_vectors_is_orthogonal_to_them_to_rounding():
    rng = np.random.default_rng(5)
    vectors = np.linalg.qr(rng.standard_normal((50, 4)))[0]
    # Columns that lie in the span but for one part in 1e7.
    columns = vectors @ rng.standard_normal((4, 3)) + 1e-7 * rng.standard_normal((50, 3))
    left = module._without(columns, vectors, hg.select_backend("numpy"))
    assert np.abs(vectors.T @ left).max() < 1e-14
    np.testing.assert_allclose(np.linalg.norm(left, axis=0), 1, rtol=1e-14)


def test_same_seed_gives_the_same_bits(backend):
    graph = hg.graph_from_affinity(random_affinity(400, 4, seed=5), backend=backend)
    one, other = (leading_eigenpairs(graph, rank=12, seed=9, backend=backend) for _ in range(2))
    one, other = (backend.to_numpy(pairs.eigenvectors) for pairs in (one, other))
    assert np.array_equal(one, other)


@pytest.mark.parametrize(
    "wrong", [{"rank": 301}, {"engine": "power"}, {"tolerance": 0.0}, {"on_failure": "ignore"}]
)
def test_wrong_arguments_are_refused(wrong, backend):
    graph = hg.graph_from_affinity(path(300), backend=backend)
    with pytest.raises(ValueError, match=next(iter(wrong))):
        leading_eigenpairs(graph, **{"rank": 5, "backend": backend, **wrong})


def test_pairs_are_counted_up_to_the_first_that_is_not_good_enough():
    for residuals, count in (
        ([], 0),
        ([1e-3], 1),
        ([1.1e-3], 0),
        ([1e-4, np.nan, 1e-4], 1),
        ([1e-4, 1e-4, 1.0, 1e-4], 2),
    ):
        assert solver._leading_below(np.array(residuals), 1e-3) == count


@pytest.mark.parametrize(
    ("residuals", "orthogonality", "missed", "holds"),
    [
        ([0.0, 1e-4], 1e-4, 1e-4, True),
        ([0.0, 2e-4], 0.0, -1.0, False),
        ([0.0, 0.0], 2e-4, -1.0, False),
        ([0.0, 0.0], 0.0, 2e-4, False),
        ([], 0.0, -np.inf, True),
    ],
)
def test_a_certificate_holds_if_every_part_does(residuals, orthogonality, missed, holds):
    pairs = Spectrum(None, None, np.array(residuals), orthogonality, missed, 5)
    assert pairs.holds(1e-4) is holds


def test_more_columns_and_rows_than_a_tile_change_nothing(backend, monkeypatch):
    monkeypatch.setattr(solver, "_TILE_ROWS", 100)
    graph = hg.graph_from_affinity(GRAPHS["random"], dtype="float64", backend=backend)
    found = leading_eigenpairs(graph, rank=80, tolerance=1e-6, seed=7, backend=backend)
    values = dense_spectrum(graph, backend)[0][:80]
    np.testing.assert_allclose(backend.to_numpy(found.eigenvalues), values, atol=1e-6)
    assert found.residuals.shape == (80,)


def test_a_start_may_have_more_pairs_than_are_asked_for(backend):
    graph = hg.graph_from_affinity(GRAPHS["random"], dtype="float64", backend=backend)
    start = leading_eigenpairs(graph, rank=60, seed=7, backend=backend)
    found = leading_eigenpairs(graph, rank=5, start=start, seed=7, backend=backend)
    values = dense_spectrum(graph, backend)[0][:5]
    np.testing.assert_allclose(backend.to_numpy(found.eigenvalues), values, atol=1e-5)


def test_operator_is_shifted_scaled_and_of_the_precision_asked_for(backend, dtype):
    graph = hg.graph_from_affinity(path(6), dtype="float64", backend=backend)
    order = np.array([3, 1, 0, 2, 5, 4])
    operator = solver.operator_of(graph, order, backend)
    matrix = solver.shifted(operator, 2.0, 0.25, dtype, backend)
    whole = dense_spectrum(graph, backend)[1][np.ix_(order, order)]
    np.testing.assert_allclose(dense(backend, matrix), 2 * (whole - 0.25 * np.eye(6)), rtol=1e-6)
    assert backend.to_numpy(matrix.data).dtype == dtype


@pytest.mark.parametrize(
    "order", [np.arange(10), np.arange(1, 31), np.zeros(30, int), np.arange(30.0), "order", 3]
)
def test_an_order_that_leaves_items_out_is_refused(backend, order):
    graph = hg.graph_from_affinity(path(30), backend=backend)
    with pytest.raises(ValueError, match="order must hold each of the 30 items once"):
        leading_eigenpairs(graph, rank=3, order=order, backend=backend)
    with pytest.raises(TypeError, match="start must be of type Spectrum"):
        leading_eigenpairs(graph, rank=3, start=order, backend=backend)


def test_any_order_gives_the_same_eigenvalues(backend, rng):
    graph = hg.graph_from_affinity(path(30), dtype="float64", backend=backend)
    orders = (None, list(range(30)), rng.permutation(30))
    first, *others = (
        backend.to_numpy(leading_eigenpairs(graph, rank=3, order=o, backend=backend).eigenvalues)
        for o in orders
    )
    for values in others:
        np.testing.assert_allclose(values, first, atol=1e-8)
