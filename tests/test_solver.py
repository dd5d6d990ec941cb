import numpy as np
import pytest
from conftest import TOLERANCE, path, random_affinity, two_cliques

import hybrid_gpu as hg
from hybrid_gpu import reference

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
        basis = hg.eigen_basis(
            hg.leading_eigenpairs(graph, rank=rank, backend=backend), backend=backend
        )
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


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("rank", [1, 7, 30])
def test_hybrid_steps_are_the_paper_s(backend, rng, dtype, tolerance, steps, rank):
    affinity, observation = problem(rng)
    solution = solve(backend, affinity, observation, dtype, rank, steps=steps)
    adjacency = reference.normalize(affinity)
    values, vectors = reference.leading_eigenpairs(adjacency, rank)
    expected = [
        reference.hybrid(adjacency, values, vectors, y, ALPHA, steps) for y in observation.T
    ]
    np.testing.assert_allclose(
        backend.to_numpy(solution.values), np.transpose(expected), atol=10 * tolerance
    )


def test_hybrid_steps_equal_conjugate_gradients_by_hand(backend, rng):
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
    solution = solve(backend, affinity, observation, rank=9, steps=4)
    np.testing.assert_allclose(
        backend.to_numpy(solution.values)[:, 0], spectral + x, atol=TOLERANCE["float64"]
    )


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
    assert solve(backend, affinity, observation, rtol=0.1).steps < 40
    assert solve(backend, affinity, observation, rtol=0.1).steps % 4 == 0


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
