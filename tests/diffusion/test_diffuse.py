from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import TOLERANCE, changed, path, random_affinity, two_cliques
from scipy.sparse.linalg import splu

import hybrid_gpu as hg
from hybrid_gpu import reference
from hybrid_gpu.backends.step_records import Product
from hybrid_gpu.diffusion import conjugate_gradients as module
from hybrid_gpu.diffusion.descent import Look
from hybrid_gpu.diffusion.filters import as_filter
from hybrid_gpu.diffusion.paper_hybrid import hybrid_as_in_paper
from hybrid_gpu.diffusion.solution import Stopping

ALPHA = 0.95


def problem(rng, m=5, n=60):
    """A graph and non-negative sparse observations, one of them all zero."""
    affinity = random_affinity(rng, n=n)
    observation = rng.random((n, m)) * (rng.random((n, m)) < 0.1)
    observation[:, 1] = 0
    return affinity, observation


def solve(backend, affinity, observation, dtype="float64", rank=None, **options):
    graph = hg.graph_from_affinity(affinity, dtype=dtype, backend=backend)
    basis = None
    if rank is not None:
        spectrum = hg.leading_eigenpairs(graph, rank=rank, tolerance=1e-6, backend=backend)
        basis = hg.eigen_basis(spectrum, graph, backend=backend)
    return hg.diffuse(
        graph,
        backend.asarray(observation, dtype),
        filter=hg.PageRank(ALPHA),
        basis=basis,
        backend=backend,
        **options,
    )


def exact(affinity, observation):
    adjacency = reference.normalize(affinity)
    columns = [reference.exact(adjacency, y, ALPHA) for y in observation.T]
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("rank", [None, 0, 4, 20, 54])
def test_converged_scores_are_the_dense_solve_for_every_rank(backend, rng, dtype, rank):
    affinity, observation = problem(rng)
    rtol = {"float32": 1e-5, "float64": 1e-12}[dtype]
    solution = solve(backend, affinity, observation, dtype, rank, rtol=rtol)
    values = backend.to_numpy(solution.values)
    assert values.dtype == dtype
    # An error is at most the condition number, about 40 here, times the residual.
    np.testing.assert_allclose(values, exact(affinity, observation), atol=40 * rtol)
    assert np.all(backend.to_numpy(solution.residuals) <= 1.1 * rtol)


@pytest.mark.parametrize("steps", [0, 1, 3, 10])
def test_temporal_steps_are_those_of_scipy(backend, rng, dtype, tolerance, steps):
    affinity, observation = problem(rng)
    solution = solve(backend, affinity, observation, dtype, steps=steps)
    adjacency = reference.normalize(affinity)
    expected = [reference.temporal(adjacency, y, ALPHA, steps) for y in observation.T]
    if steps == 0:
        expected = np.zeros_like(observation.T)
    np.testing.assert_allclose(
        backend.to_numpy(solution.values), np.transpose(expected), atol=10 * tolerance
    )
    assert solution.steps == steps


def as_in_paper(backend, affinity, observation, dtype, rank, steps):
    graph = hg.graph_from_affinity(affinity, dtype=dtype, backend=backend)
    spectrum = hg.leading_eigenpairs(graph, rank=rank, tolerance=1e-6, backend=backend)
    solution = hybrid_as_in_paper(
        hg.eigen_basis(spectrum, graph, backend=backend),
        spectrum.eigenvalues,
        backend.asarray(observation, dtype),
        hg.PageRank(ALPHA),
        Stopping(steps, None),
    )
    return backend.to_numpy(solution.values)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("rank", [1, 7, 30])
def test_paper_s_steps_are_the_reference_s(backend, rng, dtype, tolerance, steps, rank):
    affinity, observation = problem(rng)
    adjacency = reference.normalize(affinity)
    values, vectors = reference.leading_eigenpairs(adjacency, rank)
    expected = [
        reference.hybrid(adjacency, values, vectors, y, ALPHA, steps) for y in observation.T
    ]
    np.testing.assert_allclose(
        as_in_paper(backend, affinity, observation, dtype, rank, steps),
        np.transpose(expected),
        atol=10 * tolerance,
    )


def test_paper_s_steps_equal_conjugate_gradients_by_hand(backend, rng):
    affinity, observation = problem(rng)
    observation = observation[:, :1]
    adjacency = reference.normalize(affinity).toarray()
    values, vectors = reference.leading_eigenpairs(reference.normalize(affinity), 9)
    matrix = (np.eye(60) - ALPHA * (adjacency - (vectors * values) @ vectors.T)) / (1 - ALPHA)
    y = observation[:, 0]
    x, residual = np.zeros(60), y.copy()
    direction = residual
    for _ in range(4):
        length = residual @ residual / (direction @ matrix @ direction)
        x = x + length * direction
        after = residual - length * (matrix @ direction)
        direction = after + (after @ after) / (residual @ residual) * direction
        residual = after
    spectral = vectors @ ((reference.transfer(values, ALPHA) - (1 - ALPHA)) * (vectors.T @ y))
    np.testing.assert_allclose(
        as_in_paper(backend, affinity, observation, "float64", 9, 4)[:, 0],
        spectral + x,
        atol=TOLERANCE["float64"],
    )


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_projecting_once_errs_as_the_paper_s_operator_does(backend, rng, steps):
    # The two differ inside a step; what is left after it is the same to a few percent.
    affinity, observation = problem(rng)
    truth = exact(affinity, observation)
    once = backend.to_numpy(solve(backend, affinity, observation, rank=9, steps=steps).values)
    every = as_in_paper(backend, affinity, observation, "float64", 9, steps)
    errors = [np.linalg.norm(scores - truth) for scores in (once, every)]
    assert errors[0] == pytest.approx(errors[1], rel=0.1)


def sparse_columns(rng, n=60, r=7):
    return rng.standard_normal((n, r)) * (rng.random((n, r)) < 0.2)


BASES = {
    "eigen": lambda graph, rng, backend: hg.eigen_basis(
        hg.leading_eigenpairs(graph, rank=9, backend=backend), graph, backend=backend
    ),
    "eigen, int8": lambda graph, rng, backend: hg.eigen_basis(
        hg.leading_eigenpairs(graph, rank=9, backend=backend),
        graph,
        precision="int8",
        backend=backend,
    ),
    "sparse eigen": lambda graph, rng, backend: hg.sparse_eigen_basis(
        hg.leading_eigenpairs(graph, rank=9, backend=backend).eigenvectors,
        graph,
        sparsity=0.8,
        backend=backend,
    ),
    "aggregates": lambda graph, rng, backend: hg.aggregate_basis(
        graph, hg.aggregate(graph, groups=8, seed=3, backend=backend), backend=backend
    ),
    "labels": lambda graph, rng, backend: hg.aggregate_basis(
        graph, rng.integers(-1, 6, graph.n), backend=backend
    ),
    "dense": lambda graph, rng, backend: hg.given_basis(
        graph, rng.standard_normal((graph.n, 5)), backend=backend
    ),
    "sparse": lambda graph, rng, backend: hg.given_basis(
        graph, sparse.csr_array(sparse_columns(rng, graph.n)), backend=backend
    ),
    "twice the same": lambda graph, rng, backend: hg.given_basis(
        graph, np.repeat(rng.standard_normal((graph.n, 3)), 2, axis=1), backend=backend
    ),
    "zero column": lambda graph, rng, backend: hg.given_basis(
        graph, np.eye(graph.n)[:, :4] * [1, 0, 1, 0], backend=backend
    ),
    "rank 0": lambda graph, rng, backend: hg.given_basis(
        graph, np.zeros((graph.n, 0)), backend=backend
    ),
}


@pytest.mark.parametrize("kind", BASES)
def test_converged_scores_do_not_depend_on_the_basis(backend, rng, dtype, kind):
    affinity, observation = problem(rng)
    graph = hg.graph_from_affinity(affinity, dtype=dtype, backend=backend)
    rtol = {"float32": 1e-5, "float64": 1e-12}[dtype]
    solution = hg.diffuse(
        graph,
        backend.asarray(observation, dtype),
        filter=hg.PageRank(ALPHA),
        basis=BASES[kind](graph, rng, backend),
        rtol=rtol,
        backend=backend,
    )
    np.testing.assert_allclose(
        backend.to_numpy(solution.values), exact(affinity, observation), atol=40 * rtol
    )
    assert backend.to_numpy(solution.residuals).max() <= rtol


@pytest.mark.parametrize("kind", ["eigen", "aggregates"])
def test_a_basis_makes_few_steps_better(backend, rng, kind):
    # A ring is slow for plain steps: every one of them only reaches the next item.
    affinity = path(200).tolil()
    affinity[0, 199] = affinity[199, 0] = 1
    graph = hg.graph_from_affinity(affinity.tocsr(), dtype="float64", backend=backend)
    observation = np.zeros((200, 1))
    observation[17] = 1
    slow = hg.PageRank(0.999)
    truth = reference.exact(reference.normalize(affinity.tocsr()), observation[:, 0], 0.999)

    def error(basis):
        solution = hg.diffuse(
            graph,
            backend.asarray(observation),
            filter=slow,
            basis=basis,
            steps=4,
            backend=backend,
        )
        return np.linalg.norm(backend.to_numpy(solution.values)[:, 0] - truth)

    assert error(BASES[kind](graph, rng, backend)) < 0.8 * error(None)


def test_reported_residual_is_the_true_one(backend, rng, dtype):
    affinity, observation = problem(rng)
    graph = hg.graph_from_affinity(affinity, dtype=dtype, backend=backend)
    laplacian = np.eye(60) - ALPHA * reference.normalize(affinity).toarray()
    for kind in ("eigen", "aggregates"):
        solution = hg.diffuse(
            graph,
            backend.asarray(observation, dtype),
            filter=hg.PageRank(ALPHA),
            basis=BASES[kind](graph, rng, backend),
            steps=3,
            backend=backend,
        )
        left = (1 - ALPHA) * observation - laplacian @ backend.to_numpy(solution.values)
        norms = np.linalg.norm((1 - ALPHA) * observation, axis=0)
        expected = np.linalg.norm(left, axis=0) / np.where(norms > 0, norms, 1)
        np.testing.assert_allclose(backend.to_numpy(solution.residuals), expected, atol=1e-5)


FILTERS = {
    "heat": (hg.HeatKernel(5.0), lambda x: np.exp(5 * (x - 1))),
    "polynomial": (hg.Polynomial((0.5, 0.2, 0, 0.3)), lambda x: 0.5 + 0.2 * x + 0.3 * x**3),
    "callable": (lambda x: np.cos(2 * x), lambda x: np.cos(2 * x)),
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("kind", [None, "eigen", "eigen, int8", "aggregates"])
def test_any_filter_equals_its_dense_function(backend, rng, dtype, name, kind):
    affinity, observation = problem(rng)
    graph = hg.graph_from_affinity(affinity, dtype=dtype, backend=backend)
    given, function = FILTERS[name]
    solution = hg.diffuse(
        graph,
        backend.asarray(observation, dtype),
        filter=given,
        basis=None if kind is None else BASES[kind](graph, rng, backend),
        rtol=1e-7,
        backend=backend,
    )
    values, vectors = np.linalg.eigh(reference.normalize(affinity).toarray())
    truth = vectors @ (function(values)[:, None] * (vectors.T @ observation))
    errors = np.linalg.norm(backend.to_numpy(solution.values) - truth, axis=0)
    # The bound holds for every column, whatever basis is at hand, and it is not idle.
    assert np.all(errors <= solution.truncation * np.linalg.norm(observation, axis=0))
    assert solution.truncation <= {"float32": 2e-4, "float64": 1.1e-7}[dtype]
    assert solution.residuals is None


@pytest.mark.parametrize("name", FILTERS)
def test_decomposition_of_theorem_two_holds_for_any_filter(backend, rng, name):
    affinity, observation = problem(rng)
    graph = hg.graph_from_affinity(affinity, dtype="float64", backend=backend)
    spectrum = hg.leading_eigenpairs(graph, rank=9, tolerance=1e-9, backend=backend)
    given, function = FILTERS[name]
    solution = hybrid_as_in_paper(
        hg.eigen_basis(spectrum, graph, backend=backend),
        spectrum.eigenvalues,
        backend.asarray(observation),
        as_filter(given),
        Stopping(None, 1e-10),
    )
    values, vectors = np.linalg.eigh(reference.normalize(affinity).toarray())
    truth = vectors @ (function(values)[:, None] * (vectors.T @ observation))
    np.testing.assert_allclose(backend.to_numpy(solution.values), truth, atol=1e-8)


def test_rank_zero_is_temporal(backend, rng, dtype):
    affinity, observation = problem(rng)
    one = solve(backend, affinity, observation, dtype, None, steps=6)
    other = solve(backend, affinity, observation, dtype, 0, steps=6)
    np.testing.assert_array_equal(backend.to_numpy(one.values), backend.to_numpy(other.values))


def test_full_rank_needs_a_single_step(backend, rng):
    # Only the component of 55 items has eigenvectors; the five isolated ones solve themselves.
    affinity, observation = problem(rng)
    solution = solve(backend, affinity, observation, rank=55, steps=1)
    np.testing.assert_allclose(
        backend.to_numpy(solution.values), exact(affinity, observation), atol=1e-9
    )


def test_zero_observation_gives_zero_and_nothing_is_nan(backend, rng, dtype):
    affinity, observation = problem(rng)
    for steps in (1, 200):
        solution = solve(backend, affinity, observation, dtype, steps=steps)
        values = backend.to_numpy(solution.values)
        assert np.all(np.isfinite(values))
        assert not np.any(values[:, 1])
        assert backend.to_numpy(solution.residuals)[1] == 0


def test_converged_columns_stop_moving(backend, rng, dtype):
    affinity, observation = problem(rng)
    many = solve(backend, affinity, observation, dtype, steps=150)
    more = solve(backend, affinity, observation, dtype, steps=400)
    np.testing.assert_array_equal(backend.to_numpy(many.values), backend.to_numpy(more.values))


def test_an_easy_column_does_not_wait_for_a_hard_one(backend):
    # An observation on a pair of items is solved in two steps, one at the end of a path is not.
    affinity = two_cliques(2).tolil()
    affinity.resize((40, 40))
    affinity[4:, 4:] = path(36)
    observation = np.zeros((40, 2))
    observation[0, 0] = observation[4, 1] = 1
    together = solve(backend, affinity.tocsr(), observation, rtol=1e-9)
    alone = solve(backend, affinity.tocsr(), observation[:, :1], rtol=1e-9)
    np.testing.assert_array_equal(
        backend.to_numpy(together.values)[:, 0], backend.to_numpy(alone.values)[:, 0]
    )


@pytest.mark.parametrize("kind", [None, "eigen", "aggregates"])
def test_columns_that_go_on_alone_come_back_to_their_places(backend, rng, kind):
    # Pairs and a triangle are solved in a step or two, a path of 60 items takes many.
    pairs = sparse.block_diag([two_cliques(2), np.ones((3, 3)) - np.eye(3), path(60)])
    graph = hg.graph_from_affinity(sparse.csr_array(pairs), dtype="float64", backend=backend)
    basis = None if kind is None else BASES[kind](graph, rng, backend)
    items = rng.permutation([0, 3, 5, 7, 20, 40, 66, 2, 6, 30])

    def solution(chosen):
        given = backend.asarray(np.eye(67)[:, chosen])
        options = {"filter": hg.PageRank(ALPHA), "basis": basis, "rtol": 1e-8}
        return hg.diffuse(graph, given, backend=backend, **options)

    together = solution(items)
    truth = exact(sparse.csr_array(pairs), np.eye(67)[:, items])
    np.testing.assert_allclose(backend.to_numpy(together.values), truth, atol=4e-7)
    for column, item in enumerate(items):
        alone = backend.to_numpy(solution([item]).values)[:, 0]
        np.testing.assert_allclose(
            backend.to_numpy(together.values)[:, column], alone, atol=1e-12, rtol=0
        )
    assert backend.to_numpy(together.residuals).max() <= 1e-8


def test_a_batch_gives_what_single_columns_give(backend, rng, dtype, tolerance):
    affinity, observation = problem(rng, m=7)
    batch = backend.to_numpy(solve(backend, affinity, observation, dtype, 5, steps=4).values)
    for column in range(7):
        single = solve(backend, affinity, observation[:, column : column + 1], dtype, 5, steps=4)
        np.testing.assert_allclose(
            backend.to_numpy(single.values)[:, 0], batch[:, column], atol=tolerance
        )


def test_sum_of_observations_gives_sum_of_scores(backend, rng, dtype):
    affinity, observation = problem(rng)
    both = np.concatenate([observation, observation.sum(axis=1, keepdims=True)], axis=1)
    rtol = {"float32": 1e-5, "float64": 1e-12}[dtype]
    values = backend.to_numpy(solve(backend, affinity, both, dtype, rtol=rtol).values)
    np.testing.assert_allclose(values[:, -1], values[:, :-1].sum(axis=1), atol=100 * rtol)


def test_observations_that_are_not_negative_give_scores_that_are_not(backend, rng):
    affinity, observation = problem(rng)
    values = backend.to_numpy(solve(backend, affinity, observation, rtol=1e-12).values)
    assert values.min() >= -1e-12


def test_components_never_see_each_other(backend, dtype):
    observation = np.zeros((8, 2))
    observation[1, 0] = 1
    observation[6, 1] = 1
    for rank in (None, 2):
        solution = solve(backend, two_cliques(4), observation, dtype, rank, steps=30)
        values = backend.to_numpy(solution.values)
        assert not np.any(values[4:, 0])
        assert not np.any(values[:4, 1])


def test_answer_of_a_clique_is_known(backend, dtype, tolerance):
    # On a complete graph W = (J - I) / (n - 1): two eigenvalues, so two steps are exact.
    n, a = 4, ALPHA
    observation = np.eye(8)[:, :1]
    flat = 1 / n
    rest = (1 - a) / (1 + a / (n - 1))
    expected = np.where(np.arange(8) < 4, flat - rest / n, 0)
    expected[0] += rest
    solution = solve(backend, two_cliques(n), observation, dtype, steps=2)
    np.testing.assert_allclose(
        backend.to_numpy(solution.values)[:, 0], expected, atol=10 * tolerance
    )


def test_isolated_item_keeps_its_own_observation(backend):
    affinity = two_cliques(2).tolil()
    affinity.resize((5, 5))
    observation = np.zeros((5, 1))
    observation[4] = 0.7
    values = backend.to_numpy(solve(backend, affinity.tocsr(), observation, steps=9).values)
    np.testing.assert_allclose(values[:, 0], [0, 0, 0, 0, 0.7 * (1 - ALPHA)], atol=1e-12)


def test_missed_tolerance_raises_and_carries_the_solution(backend, rng):
    affinity, observation = problem(rng)
    with pytest.raises(hg.ConvergenceError, match=r"rtol=1e-12 in 3 steps") as caught:
        solve(backend, affinity, observation, rtol=1e-12, steps=3)
    assert caught.value.result.steps == 3
    assert backend.to_numpy(caught.value.result.values).shape == observation.shape


def test_tolerance_stops_early(backend, rng):
    affinity, observation = problem(rng)
    found = solve(backend, affinity, observation, rtol=1e-3)
    assert backend.to_numpy(found.residuals).max() <= 1e-3
    # The residuals are looked at every other step: two steps earlier, it was not there yet.
    before = solve(backend, affinity, observation, steps=found.steps - 2)
    assert backend.to_numpy(before.residuals).max() > 1e-3


def test_callers_array_is_not_overwritten(backend, rng):
    affinity, observation = problem(rng)
    graph = hg.graph_from_affinity(affinity, dtype="float64", backend=backend)
    mine = backend.asarray(observation.copy())
    hg.diffuse(graph, mine, steps=3, filter=hg.PageRank(0.0), backend=backend)
    np.testing.assert_array_equal(backend.to_numpy(mine), observation)


def test_alpha_zero_returns_the_observation(backend, rng, dtype, tolerance):
    affinity, observation = problem(rng)
    graph = hg.graph_from_affinity(affinity, dtype=dtype, backend=backend)
    solution = hg.diffuse(
        graph, backend.asarray(observation, dtype), filter=hg.PageRank(0.0), backend=backend
    )
    np.testing.assert_allclose(backend.to_numpy(solution.values), observation, atol=tolerance)


def test_impossible_requests_are_refused(backend, rng):
    affinity, observation = problem(rng)
    with pytest.raises(ValueError, match="shape"):
        solve(backend, affinity, observation[:10])
    with pytest.raises(ValueError, match="finite"):
        solve(backend, affinity, np.where(observation > 0, np.nan, 0.0))
    with pytest.raises(ValueError, match="rtol must be positive"):
        solve(backend, affinity, observation, rtol=0.0)
    with pytest.raises(ValueError, match="steps must be at least 0"):
        solve(backend, affinity, observation, steps=-1)
    with pytest.raises(TypeError, match="steps must be an integer"):
        solve(backend, affinity, observation, steps=2.5)


@pytest.mark.parametrize("items", [150, 2000])
def test_steps_beyond_convergence_do_no_harm(backend, items):
    # A ring with chords, deflated by groups: rounding leaks into their span, step by step.
    rng = np.random.default_rng(items + 1)
    rows = np.concatenate([np.arange(items), rng.integers(0, items, 2 * items)])
    columns = np.concatenate([(np.arange(items) + 1) % items, rng.integers(0, items, 2 * items)])
    one = sparse.csr_array((rng.random(rows.size) + 0.1, (rows, columns)), shape=(items, items))
    affinity = sparse.csr_array(one + one.T)
    affinity.setdiag(0)
    affinity.eliminate_zeros()
    index = hg.build_index_from_graph(affinity, rank=items // 16, alpha=0.99, backend=backend)
    ids, similarities = np.array([[3, 8, 20], [1, 2, 140]]), np.full((2, 3), 0.9)
    system = np.eye(items) - 0.99 * reference.normalize(affinity).toarray()
    observed = np.zeros((2, items))
    np.put_along_axis(observed, ids, 0.9**3, axis=1)
    exact = 0.01 * np.linalg.solve(system, observed.T).T
    for steps in (20, 60, 150):
        ranking = index.rerank(ids, similarities, k=items, method="hybrid", steps=steps)
        scores = np.empty_like(exact)
        np.put_along_axis(scores, ranking.ids, ranking.scores, axis=1)
        error = np.linalg.norm(scores - exact, axis=1) / np.linalg.norm(exact, axis=1)
        # Single precision times a condition number of 200, with room.
        assert error.max() < 2e-5


def rings(rng, count=20, points=70, d=16):
    """Closed curves, far from each other: small components, in which few steps are exact."""
    turn = np.linspace(0, 2 * np.pi, points, endpoint=False)[:, None]
    parts = []
    for _ in range(count):
        center, one, other = rng.standard_normal((3, d)) * [[3], [0.7], [0.7]]
        curve = center + np.cos(turn) * one + np.sin(turn) * other
        parts.append(curve + 0.02 * rng.standard_normal((points, d)))
    return np.concatenate(parts)


@pytest.mark.parametrize("alpha", [0.99, 0.9999])
def test_small_components_do_not_run_away_in_single_precision(backend, rng, alpha):
    index = hg.build_index(rings(rng), neighbors=50, alpha=alpha, backend=backend)
    items = np.arange(0, 1400, 31)
    system = sparse.eye_array(1400) - alpha * reference.normalize(affinity_of(index, backend))
    exact = (1 - alpha) * splu(system.tocsc()).solve(np.eye(1400)[:, items])
    for steps in (7, 15, 40):
        found = index.search_items(items, k=1400, method="hybrid", steps=steps)
        scores = np.empty((items.size, 1400))
        np.put_along_axis(scores, found.ids, found.scores, 1)
        error = np.linalg.norm(scores - exact.T, axis=1) / np.linalg.norm(exact, axis=0)
        # A few roundings of 6e-8 times the condition number.
        assert error.max() < 4e-7 * 2 / (1 - alpha)
        # What float32 can leave: roundings of scores that are up to 1 / (1 - alpha) larger.
        assert found.report.residuals.max() < 2e-7 / (1 - alpha)


def affinity_of(index, backend):
    graph = index.graph
    parts = [
        backend.to_numpy(part)
        for part in (graph.adjacency.data, graph.adjacency.indices, graph.adjacency.indptr)
    ]
    matrix = sparse.csr_array(tuple(parts), shape=(graph.n, graph.n)).astype(np.float64).tocoo()
    roots = np.sqrt(backend.to_numpy(graph.degrees).astype(np.float64))
    weights = matrix.data * roots[matrix.row] * roots[matrix.col]
    return sparse.csr_array((weights, (matrix.row, matrix.col)), shape=matrix.shape)


def test_answers_do_not_depend_on_the_batch(backend, rng):
    index = hg.build_index(rings(rng, count=3), neighbors=50, alpha=0.99, backend=backend)
    items = np.arange(0, 210, 29)
    for options in ({"steps": 15}, {"rtol": 1e-4}, {}):
        together = index.search_items(items, k=20, **options)
        alone = index.search_items(items, k=20, batch=3, **options)
        np.testing.assert_array_equal(together.ids[:, :5], alone.ids[:, :5])
        np.testing.assert_allclose(together.scores, alone.scores, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("basis", ["eigen", "aggregate", "none"])
def test_rare_restarts_give_numbers_or_a_refusal(backend, rng, basis):
    vectors = rings(rng, count=3)
    settings = {"neighbors": 20, "basis": basis, "rank": 9, "backend": backend}
    index = hg.build_index(vectors, **settings)
    for alpha in (1 - 1e-8, 0.9999999):
        with pytest.raises(ValueError, match=r"alpha must be at most 0\.999999 in float32"):
            hg.build_index(vectors, alpha=alpha, **settings)
        # Files of earlier versions may hold such an index.
        with pytest.raises(ValueError, match=r"alpha must be at most 0\.999999 in float32"):
            changed(index, alpha=alpha).search_items(np.arange(4), k=5)
        precise = hg.build_index(vectors, alpha=alpha, dtype="float64", **settings)
        found = precise.search_items(np.arange(4), k=50)
        assert np.all(np.isfinite(found.scores))
        assert found.report.residuals.max() <= 3e-3
    with pytest.raises(ValueError, match="alpha must be at most"):
        precise.search_items(np.arange(4), k=5, filter=hg.PageRank(1 - 1e-15))


def test_rounding_in_the_projection_does_not_stop_a_tolerance(backend, rng):
    # In float32 at 1 - alpha = 1e-5, deflated steps end at 2e-3 or above here; plain ones go on.
    index = hg.build_index(
        rings(rng, count=8), neighbors=50, alpha=0.99999, rank=40, backend=backend
    )
    found = index.search_items(np.arange(0, 560, 20), k=10, accuracy=1e-3)
    plain = index.search_items(np.arange(0, 560, 20), k=10, method="temporal", accuracy=1e-3)
    worst = found.report.residuals.max()
    assert worst <= max(1e-3, 2 * plain.report.residuals.max())
    # Neither goes on for the thousand steps that are allowed.
    assert found.report.steps < 200


def test_plain_steps_go_on_where_the_projection_stops_them(backend):
    # One of these columns ends at 2e-3 with deflated steps alone; plain ones bring it to the goal.
    index = hg.build_index_from_graph(path(3000), alpha=0.99999, backend=backend)
    found = index.search_items(np.arange(90, 3000, 190), k=10, accuracy=3e-4)
    assert found.report.residuals.max() <= 1e-3


def uneven_path(n, weak):
    """A path whose edges weigh 1 and little in turn: pairs that hardly know each other."""
    weights = np.where(np.arange(n - 1) % 2, weak, 1.0)
    return sparse.diags_array([weights, weights], offsets=[-1, 1]).tocsr()


@pytest.mark.parametrize(
    ("n", "weak", "alpha", "dtype"),
    [(20, 1e-3, 0.9999, "float32"), (50, 1e-3, 0.9999, "float32"), (200, 1e-6, 1 - 1e-10, None)],
)
def test_modes_that_the_groups_miss_are_left_to_the_steps(backend, n, weak, alpha, dtype):
    # Far more slow modes than groups: every step has little curvature, and none is rounding.
    index = hg.build_index_from_graph(
        uneven_path(n, weak), alpha=alpha, dtype=dtype or "float64", backend=backend
    )
    found = index.rerank([[0, 1, 2, 3], [9, 8, 11, 12]], [[0.9, 0.8, 0.7, 0.6]] * 2, k=n)
    assert found.report.residuals.max() <= 3e-3
    assert found.report.steps <= 60


@pytest.mark.parametrize("kind", ["labels", "dense", "sparse"])
@pytest.mark.parametrize(("alpha", "dtype"), [(1 - 1e-10, "float64"), (0.9999, "float32")])
def test_a_poor_basis_of_the_users_own_stops_no_step(backend, rng, kind, alpha, dtype):
    affinity = path(300)
    basis = {
        "labels": rng.integers(0, 20, 300),
        "dense": rng.standard_normal((300, 8)),
        "sparse": sparse.random_array((300, 8), density=0.1, rng=rng),
    }[kind]
    index = hg.build_index_from_graph(
        affinity, alpha=alpha, basis=basis, dtype=dtype, backend=backend
    )
    found = index.rerank([[0, 1, 2, 3], [9, 8, 11, 12]], [[0.9, 0.8, 0.7, 0.6]] * 2, k=300)
    assert found.report.residuals.max() <= 3e-3


def test_a_basis_without_the_slow_mode_costs_no_steps(backend, rng):
    # Three eigenvalues, so a few steps do. The small matrix is well conditioned, however rare the
    # restart: what is left of the curvature is small, and no rounding.
    ends = np.concatenate([np.zeros(199, int), np.arange(1, 200)])
    star = sparse.csr_array((np.ones(398), (ends, np.roll(ends, 199))))
    basis = sparse.random_array((200, 8), density=0.1, rng=rng)
    index = hg.build_index_from_graph(star, alpha=0.9999, basis=basis, backend=backend)
    found = index.rerank([[0, 1, 2, 3]], [[0.9, 0.8, 0.7, 0.6]], k=200)
    assert found.report.residuals.max() <= 3e-3
    assert found.report.steps <= 20


@pytest.mark.parametrize("n", [301, 600])
def test_reported_residuals_are_those_of_the_scores_that_are_returned(backend, n):
    # So rare a restart shows the rounding of a single multiplication of the scores.
    alpha = 1 - 1e-6
    affinity = path(n).tolil()
    affinity[0, n - 1] = affinity[n - 1, 0] = 1
    index = hg.build_index_from_graph(affinity.tocsr(), alpha=alpha, backend=backend)
    items, values = np.array([[0, 1, 2, 3], [9, 90, 170, 290]]), np.array([[0.9, 0.8, 0.7, 0.6]])
    found = index.rerank(items, np.repeat(values, 2, axis=0), k=n, accuracy=1e-2)
    adjacency = index.graph.adjacency
    stored = (adjacency.data, adjacency.indices, adjacency.indptr)
    matrix = sparse.csr_array(tuple(backend.to_numpy(part).copy() for part in stored))
    matrix = matrix.astype(np.float64)
    for row in range(2):
        observation = np.zeros(n)
        observation[items[row]] = np.float64(values[0]) ** 3
        scores = np.zeros(n)
        scores[np.asarray(found.ids[row])] = np.asarray(found.scores[row], np.float64)
        left = (1 - alpha) * observation - (scores - alpha * (matrix @ scores))
        true = np.linalg.norm(left) / np.linalg.norm((1 - alpha) * observation)
        assert true == pytest.approx(float(found.report.residuals[row]), rel=0.02)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e13, 1e30])
@pytest.mark.parametrize("filter", [hg.PageRank(ALPHA), hg.HeatKernel(3.0)])
def test_scaled_observations_give_scaled_scores(backend, rng, dtype, filter, scale):
    affinity, observation = problem(rng)
    graph = hg.graph_from_affinity(affinity, dtype=dtype, backend=backend)
    plain, scaled = (
        hg.diffuse(
            graph, backend.asarray(factor * observation, dtype), filter=filter, backend=backend
        )
        for factor in (1.0, scale)
    )
    np.testing.assert_allclose(
        backend.to_numpy(scaled.values) / scale, backend.to_numpy(plain.values), atol=1e-5
    )
    if plain.residuals is not None:
        assert backend.to_numpy(plain.residuals).max() > 1e-6
        np.testing.assert_allclose(
            backend.to_numpy(scaled.residuals), backend.to_numpy(plain.residuals), rtol=1e-2
        )


@pytest.mark.parametrize("method", ["hybrid", "temporal", "fsr", "fsrw", "hybrid-paper"])
def test_small_similarities_rank_as_large_ones_do(backend, rng, method):
    index = hg.build_index(
        rings(rng, count=1, points=120), neighbors=10, basis="eigen", rank=30, backend=backend
    )
    ids, similarities = np.array([[3, 7, 9], [50, 52, 110]]), np.array([[0.9, 0.8, 0.7]] * 2)
    expected = index.rerank(ids, similarities, k=20, method=method)
    for scale in (1e-7, 1e-13):
        found = index.rerank(ids, scale * similarities, k=20, method=method)
        np.testing.assert_array_equal(found.ids, expected.ids)
        if found.report.residuals is not None:
            np.testing.assert_allclose(
                found.report.residuals,
                expected.report.residuals,
                rtol=1e-2,
                atol=2e-6,
            )


def test_default_accuracy_is_reached_where_five_steps_are_not_enough(backend, rng):
    # One group for 400 items of a path: the basis is of little help.
    index = hg.build_index_from_graph(path(400), rank=4, alpha=0.99, backend=backend)
    found = index.search_items([7, 250], k=30)
    assert found.report.accuracy == 3e-3
    assert found.report.residuals.max() <= 3e-3
    assert found.report.notes == ()
    five = index.search_items([7, 250], k=30, steps=5)
    assert five.report.accuracy is None
    assert five.report.steps == 5
    assert five.report.residuals.min() > 3e-3


def test_a_missed_accuracy_is_noted_and_no_error(backend, rng):
    index = hg.build_index_from_graph(path(400), rank=4, alpha=0.99, backend=backend)
    found = index.search_items([7, 250, 399], k=30, accuracy=1e-3, steps=6)
    assert found.report.steps == 6
    assert "3 of 3 queries missed the accuracy 0.001; the worst" in found.report.notes[0]
    with pytest.raises(hg.ConvergenceError, match="accuracy="):
        index.search_items([7], k=30, rtol=1e-3, steps=6)
    with pytest.raises(ValueError, match="exclude each other"):
        index.search_items([7], k=30, rtol=1e-3, accuracy=1e-3)
    with pytest.raises(ValueError, match="'ranking' or a relative residual"):
        index.search_items([7], k=30, accuracy="good")


@pytest.mark.parametrize("method", ["hybrid-paper", "shybrid"])
def test_paper_s_methods_report_the_residual_of_the_diffusion(backend, rng, dtype, method):
    affinity, _ = problem(rng)
    index = hg.build_index_from_graph(
        affinity, alpha=ALPHA, basis="eigen", rank=9, dtype=dtype, backend=backend
    )
    items = np.arange(6)
    found = index.search_items(items, k=60, method=method, sparsity=0.7)
    # The last column is for ids of -1, of items that nothing speaks for.
    scores = np.zeros((6, 61))
    np.put_along_axis(scores, found.ids, found.scores, axis=1)
    scores = scores[:, :60]
    observed = (1 - ALPHA) * np.eye(60)[items]
    left = observed - (scores - ALPHA * scores @ reference.normalize(affinity).toarray())
    np.testing.assert_allclose(
        found.report.residuals,
        np.linalg.norm(left, axis=1) / (1 - ALPHA),
        rtol=1e-3,
        atol=1e-4,
    )
    for asked in ({"rtol": 1e-4}, {"accuracy": "ranking"}):
        with pytest.raises(ValueError, match="neither rtol nor accuracy"):
            index.search_items(items, k=9, method=method, **asked)


@dataclass(frozen=True)
class Diagonal(module.System):
    """A system of any operator."""

    apply: Any = None

    def product(self, direction, wanted=None):
        return self.apply(direction)


def test_so_many_positive_scores_are_known_as_were_reached(backend, dtype):
    # Two cliques of six: from an item of the first, six scores are positive; from none, none. Not
    # all of their edges weigh the same, or steps would leave nothing at all.
    block = np.random.default_rng(23).uniform(0.5, 1.5, (6, 6))
    block = block + block.T - 2 * np.diag(np.diag(block))
    cliques = sparse.csr_array(sparse.block_diag([block, block]))
    graph = hg.graph_from_affinity(cliques, dtype=dtype, backend=backend)
    one, none = np.eye(12)[:, :1].astype(dtype), np.zeros((12, 1), dtype)

    def filled(observed, k, steps=None):
        system = module.System(
            graph.adjacency,
            backend.asarray(0.2 * observed),
            backend.asarray(np.sum(0.04 * observed.astype("float64") ** 2, axis=0)),
            0.8,
            None,
            backend,
        )
        return module.conjugate_gradients(system, Stopping(steps, 1e-3, best=k)).filled

    assert filled(one, 5) == 5
    assert filled(one, 7) == 0
    assert filled(none, 3) == 0
    assert filled(np.hstack([one, one]), 4) == 4
    assert filled(np.hstack([one, none]), 4) == 0
    # All items are ranked: nobody counts. And nothing is known of what was not solved.
    assert filled(one, 12) == 0
    assert filled(one, 5, steps=0) == 0


def test_each_column_keeps_its_best_values(backend, monkeypatch):
    # What each look finds: the first column gets worse, the second better and then worse.
    found = iter([[0.5, 0.9], [0.8, 0.5], [0.7, 0.6]])
    seen = []

    def look(system, span, solution):
        seen.append(backend.to_numpy(solution).copy())
        residual = system.right_side * backend.asarray([next(found)])
        return Look(solution, residual, backend.column_dots(residual, residual))

    monkeypatch.setattr(module, "look_at", look)
    weights = backend.asarray(np.linspace(0.1, 1.9, 30)[:, None])

    def apply(direction):
        values = direction * weights
        return Product(values, backend.column_dots(direction, values))

    right_side = backend.asarray(np.ones((30, 2)))
    start = backend.column_dots(right_side, right_side)
    system = Diagonal(None, right_side, start, 0.9, None, backend, apply=apply)
    solution = module.conjugate_gradients(system, Stopping(400, 1e-3))
    values = backend.to_numpy(solution.values)
    np.testing.assert_array_equal(values[:, 0], seen[0][:, 0])
    np.testing.assert_array_equal(values[:, 1], seen[1][:, 1])
    np.testing.assert_allclose(backend.to_numpy(solution.residuals), [0.5, 0.5])
    assert not solution.converged
    assert len(seen) == 3


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_system_that_is_not_finite_ends(backend, bad):
    def apply(direction):
        values = direction * bad
        return Product(values, backend.column_dots(direction, direction))

    for observed in (1.0, bad):
        right_side = backend.asarray(np.full((5, 2), observed))
        stop = Stopping(50, 1e-3)
        with np.errstate(invalid="ignore"):
            start = backend.column_dots(right_side, right_side)
            system = Diagonal(None, right_side, start, 0.9, None, backend, apply=apply)
            solution = module.conjugate_gradients(system, stop)
        assert not solution.converged
        assert solution.steps <= 50


def test_the_span_is_projected_out_of_the_residual_every_eight_steps(backend, rng):
    affinity, observation = problem(rng)
    graph = hg.graph_from_affinity(affinity, dtype="float64", backend=backend)
    counted = Counted(BASES["aggregates"](graph, rng, backend))

    def restrictions(steps):
        counted.restrictions = 0
        given = backend.asarray(observation)
        hg.diffuse(graph, given, basis=counted, steps=steps, backend=backend)
        return counted.restrictions

    # One at the start, one at the end, and one for every step.
    assert restrictions(7) == 9
    assert restrictions(8) == 11
    assert restrictions(17) == 21


class Counted:
    """A basis that counts how often its span is taken out."""

    def __init__(self, basis):
        self.basis, self.restrictions = basis, 0

    def __getattr__(self, name):
        return getattr(self.basis, name)

    def deflation(self, alpha):
        taken_out = self.basis.deflation(alpha)

        def counted(signal):
            self.restrictions += 1
            return taken_out(signal)

        return counted


def test_the_paper_s_steps_go_on_to_the_last_digits(backend, rng):
    affinity, observation = problem(rng)
    every = as_in_paper(backend, affinity, observation, "float64", 20, 60)
    np.testing.assert_allclose(every, exact(affinity, observation), atol=1e-13, rtol=0)


@pytest.mark.parametrize(("leaves", "alpha"), [(300, 0.9999), (7000, 0.99)])
@pytest.mark.parametrize("basis", ["auto", "none"])
def test_residuals_of_stars_are_the_true_ones_in_single_precision(backend, leaves, alpha, basis):
    hub = np.zeros(leaves, np.int64)
    edges = (np.ones(leaves), (hub, np.arange(1, leaves + 1)))
    star = sparse.csr_array(edges, shape=(leaves + 1, leaves + 1))
    star = sparse.csr_array(star + star.T)
    index = hg.build_index_from_graph(star, alpha=alpha, basis=basis, rank=8, backend=backend)
    for options in ({}, {"steps": 4}, {"method": "temporal"}):
        found = index.search_items([0, 5], k=leaves + 1, **options)
        scores = np.zeros((2, leaves + 2))
        np.put_along_axis(scores, found.ids, found.scores, axis=1)
        x = scores[:, :-1].T
        left = (1 - alpha) * np.eye(leaves + 1)[:, [0, 5]] - x
        left += alpha * (reference.normalize(star) @ x)
        true = np.linalg.norm(left, axis=0) / (1 - alpha)
        # Weights of the graph are rounded too, each by half of 1.2e-7.
        np.testing.assert_allclose(found.report.residuals, true, atol=1e-7 / (1 - alpha), rtol=0.1)


@pytest.mark.parametrize("gain", [0.3, 1 / 3, 1e-3])
def test_the_bound_of_an_expansion_of_one_term_includes_its_rounding(backend, rng, gain):
    affinity, observation = problem(rng)
    graph = hg.graph_from_affinity(affinity, backend=backend)
    given = observation.astype(np.float32)
    solution = hg.diffuse(
        graph, backend.asarray(given), filter=hg.Polynomial((gain,)), steps=0, backend=backend
    )
    exact = gain * given.astype(np.float64)
    lengths = np.linalg.norm(given, axis=0)
    errors = np.linalg.norm(backend.to_numpy(solution.values) - exact, axis=0)
    assert errors.max() > 0
    assert np.all(errors <= solution.truncation * lengths)


def test_negative_observations_are_scaled_by_their_size(backend, rng):
    affinity, observation = problem(rng)
    graph = hg.graph_from_affinity(affinity, backend=backend)
    plain = hg.diffuse(graph, backend.asarray(observation.astype(np.float32)), backend=backend)
    tiny = (-1e-30 * observation).astype(np.float32)
    solution = hg.diffuse(graph, backend.asarray(tiny), backend=backend)
    np.testing.assert_allclose(
        backend.to_numpy(solution.values) / np.float32(-1e-30),
        backend.to_numpy(plain.values),
        rtol=1e-2,
        atol=1e-4,
    )
    assert backend.to_numpy(solution.residuals).max() <= 3e-3


def test_an_expansion_that_is_cut_short_misses_its_tolerance(backend, rng):
    affinity, observation = problem(rng)
    graph = hg.graph_from_affinity(affinity, dtype="float64", backend=backend)
    given, heat = backend.asarray(observation), hg.HeatKernel(30.0)
    enough = hg.diffuse(graph, given, filter=heat, rtol=1e-6, backend=backend)
    assert enough.converged
    # As many terms as the tolerance takes, however many are allowed.
    allowed = hg.diffuse(graph, given, filter=heat, rtol=1e-6, steps=500, backend=backend)
    assert allowed.steps == enough.steps
    few = hg.diffuse(graph, given, filter=heat, accuracy=1e-6, steps=4, backend=backend)
    assert (few.steps, few.converged) == (4, False)
    assert few.truncation > 1e-6
    with pytest.raises(hg.ConvergenceError, match="did not reach rtol=1e-06 in 4 steps"):
        hg.diffuse(graph, given, filter=heat, rtol=1e-6, steps=4, backend=backend)
    index = hg.build_index_from_graph(affinity, dtype="float64", backend=backend)
    with pytest.raises(hg.ConvergenceError):
        index.search_items([3], k=5, filter=heat, rtol=1e-6, steps=4)
    notes = index.search_items([3], k=5, filter=heat, accuracy=1e-6, steps=4).report.notes
    assert "above the accuracy 1e-06" in notes[-1]


def test_an_observation_of_other_items_is_refused(backend):
    graph = hg.graph_from_affinity(path(7), backend=backend)
    observation = hg.observe([[3]], [[1.0]], 8, backend=backend)
    with pytest.raises(ValueError, match="one of the graph's 7 items; got one of 8"):
        hg.diffuse(graph, observation, backend=backend)


def test_the_paper_s_hybrid_tells_whether_its_expansion_reached_a_tolerance(backend, rng):
    affinity, _ = problem(rng)
    index = hg.build_index_from_graph(
        affinity, basis="eigen", rank=9, dtype="float64", backend=backend
    )
    options = {"k": 5, "method": "hybrid-paper", "filter": hg.HeatKernel(30.0), "rtol": 1e-6}
    assert index.search_items([3], **options).ids.shape == (1, 5)
    with pytest.raises(hg.ConvergenceError, match="in 4 steps"):
        index.search_items([3], steps=4, **options)
