import numpy as np
from conftest import path, random_affinity, two_cliques

from hybrid_gpu import reference


def test_temporal_and_hybrid_reach_the_direct_solution(rng):
    adjacency = reference.normalize(random_affinity(rng))
    y = rng.random(60)
    truth = reference.exact(adjacency, y, 0.9)
    np.testing.assert_allclose(reference.temporal(adjacency, y, 0.9, 200), truth, atol=1e-10)
    values, vectors = reference.leading_eigenpairs(adjacency, 8)
    np.testing.assert_allclose(
        reference.hybrid(adjacency, values, vectors, y, 0.9, 200), truth, atol=1e-10
    )


def test_direct_solution_is_the_series_of_the_random_walk():
    adjacency = reference.normalize(path(5)).toarray()
    y = np.eye(5)[2]
    series = sum(0.1 * 0.9**i * np.linalg.matrix_power(adjacency, i) @ y for i in range(400))
    np.testing.assert_allclose(reference.exact(reference.normalize(path(5)), y, 0.9), series)


def test_decomposition_of_theorem_one_holds(rng):
    # h(W) = U1 g(L1) U1^T + h(W - U1 L1 U1^T), for any number of leading eigenpairs.
    adjacency = reference.normalize(random_affinity(rng)).toarray()
    values, vectors = np.linalg.eigh(adjacency)
    for rank in (1, 7, 40):
        kept, basis = values[-rank:], vectors[:, -rank:]

        def h(matrix):
            return 0.05 * np.linalg.inv(np.eye(60) - 0.95 * matrix)

        g = 0.05 * 0.95 * kept / (1 - 0.95 * kept)
        right = (basis * g) @ basis.T + h(adjacency - (basis * kept) @ basis.T)
        np.testing.assert_allclose(h(adjacency), right, atol=1e-12)


def test_normalization_leaves_isolated_items_alone():
    affinity = two_cliques(3).tolil()
    affinity.resize((7, 7))
    adjacency = reference.normalize(affinity.tocsr()).toarray()
    assert np.all(np.isfinite(adjacency))
    assert not np.any(adjacency[6])


def test_threads_return_results_in_order(rng):
    adjacency = reference.normalize(random_affinity(rng))
    observations = list(rng.random((9, 60)))
    one = reference.for_each_query(
        lambda y: reference.temporal(adjacency, y, 0.9, 5), observations, threads=4
    )
    for y, x in zip(observations, one, strict=True):
        np.testing.assert_array_equal(x, reference.temporal(adjacency, y, 0.9, 5))
