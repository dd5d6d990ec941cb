"""What holds for every graph: random ones, and those that are all corner case."""

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hybrid_gpu as hg
from hybrid_gpu import reference

RTOL = 1e-11


@st.composite
def affinities(draw):
    """Symmetric weights of up to 24 items: any pattern, equal weights or not."""
    n = draw(st.integers(1, 24))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    kind = draw(st.sampled_from(["random", "equal", "bipartite", "complete", "edge", "pieces"]))
    weights = rng.random((n, n)) + 0.1
    if kind in ("equal", "complete", "edge"):
        weights = np.ones((n, n))
    pattern = rng.random((n, n)) < draw(st.floats(0, 0.6))
    if kind == "complete":
        pattern[:] = True
    elif kind == "edge":
        pattern = np.zeros((n, n), bool)
        pattern[0, -1] = True
    elif kind == "bipartite":
        side = np.arange(n) % 2
        pattern &= side[:, None] != side
    elif kind == "pieces":
        piece = np.arange(n) // 3
        pattern &= piece[:, None] == piece
    upper = np.triu(weights * pattern, 1)
    return sparse.csr_array(upper + upper.T)


def solved(graph, observation, basis, alpha, backend):
    solution = hg.diffuse(
        graph,
        backend.asarray(observation),
        filter=hg.PageRank(alpha),
        basis=basis,
        rtol=RTOL,
        backend=backend,
    )
    return backend.to_numpy(solution.values)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(affinity=affinities(), alpha=st.sampled_from([0.0, 0.5, 0.99]), data=st.data())
def test_hybrid_is_the_exact_solve_on_any_graph(backend, affinity, alpha, data):
    n = affinity.shape[0]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    graph = hg.graph_from_affinity(affinity, dtype="float64", backend=backend)
    observation = rng.random((n, 3)) * (rng.random((n, 3)) < 0.5)
    laplacian = np.eye(n) - alpha * reference.normalize(affinity).toarray()
    truth = (1 - alpha) * np.linalg.solve(laplacian, observation)

    component = np.bincount(graph.components).max()
    spectrum = hg.leading_eigenpairs(
        graph, rank=data.draw(st.integers(0, int(component))), tolerance=1e-8, backend=backend
    )
    groups = hg.aggregate(graph, groups=data.draw(st.integers(1, n)), seed=n, backend=backend)
    bases = (
        None,
        hg.eigen_basis(spectrum, graph, backend=backend),
        hg.aggregate_basis(graph, groups, backend=backend),
        hg.aggregate_basis(graph, rng.integers(-1, 4, n), backend=backend),
        hg.given_basis(graph, rng.integers(-1, 2, (n, 4)).astype(float), backend=backend),
    )
    for basis in bases:
        values = solved(graph, observation, basis, alpha, backend)
        np.testing.assert_allclose(values, truth, atol=1e-8)
        assert values.min() >= -1e-8


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(affinity=affinities())
def test_groups_cover_connected_items_within_their_component(backend, affinity):
    graph = hg.graph_from_affinity(affinity, backend=backend)
    groups = hg.aggregate(graph, groups=3, seed=5, backend=backend)
    isolated = affinity.sum(axis=1) == 0
    assert np.all((groups.labels < 0) == isolated)
    for label in range(groups.count):
        assert len(set(graph.components[groups.labels == label].tolist())) == 1
    assert sorted(groups.order.tolist()) == list(range(graph.n))


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(affinity=affinities(), k=st.integers(1, 24))
def test_every_index_ranks_the_items_of_the_component_once_and_no_others(backend, affinity, k):
    n = affinity.shape[0]
    index = hg.build_index_from_graph(affinity, dtype="float64", backend=backend)
    ranking = index.search_items(np.arange(n), k=k)
    components = index.graph.components
    for item, line in enumerate(ranking.ids):
        found = line[line >= 0]
        assert np.all(components[found] == components[item])
        assert len(set(found)) == found.size == min(k, np.sum(components == components[item]))
    np.testing.assert_array_equal(ranking.scores == -np.inf, ranking.ids < 0)
    # Numbers inside the index are its own affair: its graph is the user's.
    np.testing.assert_allclose(
        index.backend.to_numpy(index.graph.degrees), affinity.sum(axis=1), rtol=1e-12
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_observations_that_are_not_finite_are_refused(backend, bad):
    graph = hg.graph_from_affinity(sparse.csr_array(np.ones((2, 2))), backend=backend)
    with pytest.raises(ValueError, match="finite"):
        solved(graph, np.full((2, 1), bad), None, 0.9, backend)
