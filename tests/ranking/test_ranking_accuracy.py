"""What ``hybrid`` does if nobody asks for an accuracy, against dense solves by the user's ids."""

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import clustered_vectors, dense

import hybrid_gpu as hg
from hybrid_gpu.diffusion import conjugate_gradients
from hybrid_gpu.diffusion.descent import system_of
from hybrid_gpu.diffusion.diffuse import diffused
from hybrid_gpu.diffusion.solution import RANKING_ACCURACY, Stopping

N = 400
QUERIES = 8


def weighted(edges, n, rng):
    """A graph of pairs (e, 2), with weights by chance: no two scores are equal."""
    weights = rng.uniform(0.2, 1, len(edges))
    one = sparse.coo_array((weights, tuple(edges.T)), shape=(n, n))
    return sparse.csr_array(one + one.T)


def grid(rng, backend, **options):
    numbers = np.arange(N).reshape(20, -1)
    across = np.stack([numbers[:, :-1].ravel(), numbers[:, 1:].ravel()], axis=1)
    down = np.stack([numbers[:-1].ravel(), numbers[1:].ravel()], axis=1)
    affinity = weighted(np.concatenate([across, down]), N, rng)
    return hg.build_index_from_graph(affinity, backend=backend, **options)


def line(rng, backend, **options):
    pairs = np.stack([np.arange(N - 1), np.arange(1, N)], axis=1)
    return hg.build_index_from_graph(weighted(pairs, N, rng), backend=backend, **options)


def points(rng, backend, **options):
    return hg.build_index(rng.standard_normal((N, 3)), neighbors=8, backend=backend, **options)


def clusters(rng, backend, **options):
    vectors = clustered_vectors(rng, n=N, clusters=5)
    return hg.build_index(vectors, neighbors=8, backend=backend, **options)


GRAPHS = {"grid": grid, "line": line, "points": points, "clusters": clusters}


def asked(rng):
    """First results of some queries: half of them observe one item only."""
    ids = np.stack([rng.choice(N, 3, replace=False) for _ in range(QUERIES)])
    ids[::2, 1:] = -1
    return ids, -np.sort(-rng.uniform(0.3, 1, ids.shape), axis=1)


def exact_scores(index, ids, similarities, alpha):
    """The diffusion (m, n) of first results, by a dense solve."""
    observation = np.zeros((len(ids), N))
    rows = np.broadcast_to(np.arange(len(ids))[:, None], ids.shape)
    np.add.at(observation, (rows[ids >= 0], ids[ids >= 0]), similarities[ids >= 0] ** 3)
    system = np.eye(N) - alpha * dense(index.state.backend, index.graph.adjacency)
    return (1 - alpha) * np.linalg.solve(system, observation.T).T


def agreement(found, exact, k, rounding):
    """The part of the found items that belong to the best k, or tie with the last of them."""
    last = -np.sort(-exact, axis=1)[:, k - 1 : k]
    limit = (1 - 1e-3) * last - rounding * exact.max(axis=1, keepdims=True)
    return np.mean(np.take_along_axis(exact, found, axis=1) >= limit)


# What is below the best score by more is rounding: on a line, the hundredth score is 1e-20.
ROUNDING = {"float32": 1e-6, "float64": 1e-14}
LOST = "below the error that rounding leaves"


@pytest.mark.parametrize(("seed", "dtype"), [(13, "float32"), (29, "float32"), (29, "float64")])
@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("alpha", [0.5, 0.8, 0.9, 0.99])
def test_default_rankings_are_those_of_a_dense_solve(backend, kind, alpha, seed, dtype):
    rng = np.random.default_rng(seed)
    index = GRAPHS[kind](rng, backend, alpha=alpha, dtype=dtype)
    ids, similarities = asked(rng)
    exact = exact_scores(index, ids, similarities, alpha)
    for k in (10, 100):
        found = index.rerank(ids, similarities, k=k, method="hybrid")
        assert agreement(found.ids, exact, k, ROUNDING[dtype]) >= 0.99
        assert np.all(found.report.residuals <= RANKING_ACCURACY)
        noted = tuple(note for note in found.report.notes if LOST not in note)
        assert noted == index.state.notes


@pytest.mark.parametrize("basis", ["none", "eigen", "aggregate"])
def test_it_holds_with_every_basis(backend, rng, basis):
    index = grid(rng, backend, alpha=0.5, basis=basis, rank=None if basis == "none" else 20)
    ids, similarities = asked(rng)
    exact = exact_scores(index, ids, similarities, 0.5)
    found = index.rerank(ids, similarities, k=100, method="hybrid")
    assert agreement(found.ids, exact, 100, ROUNDING["float32"]) >= 0.99


def test_a_residual_of_the_observation_alone_is_not_enough(backend, rng):
    # Otherwise the tests above would show nothing.
    index = grid(rng, backend, alpha=0.5)
    ids, similarities = asked(rng)
    exact = exact_scores(index, ids, similarities, 0.5)
    found = index.rerank(ids, similarities, k=100, method="hybrid", accuracy=RANKING_ACCURACY)
    assert agreement(found.ids, exact, 100, ROUNDING["float32"]) < 0.97


def test_what_a_user_asks_for_is_what_he_gets(backend, rng):
    index = grid(rng, backend, alpha=0.5)
    ids, similarities = asked(rng)

    def report(**options):
        return index.rerank(ids, similarities, method="hybrid", **options).report

    usual, own = report(k=100), report(k=100, accuracy=3e-3)
    assert usual.steps > own.steps
    assert np.max(usual.residuals) < np.max(own.residuals) / 3
    for options in ({"rtol": 3e-3}, {"steps": own.steps}, {"accuracy": "ranking", "steps": 4}):
        assert report(k=100, **options).steps <= own.steps
    # In a ranking of all items there is none to be told from the others.
    np.testing.assert_array_equal(report(k=N).residuals, own.residuals)
    assert report(k=100, accuracy="ranking").steps == usual.steps


def test_a_query_gets_the_same_answer_in_any_company(backend, rng):
    index = grid(rng, backend, alpha=0.5, dtype="float64")
    ids, similarities = asked(rng)
    ids[3] = -1  # nothing was found for it
    whole = index.rerank(ids, similarities, k=60, method="hybrid")
    for batch in (1, 3):
        parts = index.rerank(ids, similarities, k=60, method="hybrid", batch=batch)
        np.testing.assert_array_equal(parts.ids, whole.ids)
        np.testing.assert_allclose(parts.scores, whole.scores, rtol=1e-9)
        np.testing.assert_allclose(parts.report.residuals, whole.report.residuals, rtol=1e-5)


def test_residuals_are_those_of_the_values(backend, rng):
    index = clusters(rng, backend, alpha=0.5, dtype="float64")
    state = index.state
    observed = np.zeros((N, 5))
    observed[rng.choice(N, 5, replace=False), np.arange(5)] = (1, 0.1, 0, 1, 1)
    stop = Stopping(None, RANKING_ACCURACY, best=30)
    given = backend.asarray(observed)
    solution = diffused(
        state.graph.adjacency, given, state.basis, state.filter, stop, state.backend
    )
    values = backend.to_numpy(solution.values)
    left = 0.5 * observed - (values - 0.5 * dense(backend, state.graph.adjacency) @ values)
    size = np.linalg.norm(0.5 * observed, axis=0)
    true = np.linalg.norm(left, axis=0) / np.where(size > 0, size, 1)
    np.testing.assert_allclose(backend.to_numpy(solution.residuals), true, rtol=1e-6, atol=1e-15)
    # Each beside the last of the best scores of its own.
    last = -np.sort(-values, axis=0)[29]
    assert np.all(true * size <= 0.005 * np.sqrt(30) * np.where(size > 0, last, 1) + 1e-14)
    assert solution.converged


@pytest.mark.parametrize("kind", ["ball", "sphere"])
def test_long_rankings_of_data_without_structure_are_right(kind):
    rng, n, k = np.random.default_rng(631), 2000, 350
    vectors = rng.standard_normal((n, 12)).astype(np.float32)
    if kind == "sphere":
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    items = rng.choice(n, 48, replace=False)
    options = {"neighbors": 20, "alpha": 0.99, "backend": "numpy"}
    precise = hg.build_index(vectors, dtype="float64", **options)
    exact = precise.search_items(items, k=k, method="hybrid", rtol=1e-9).ids
    found = hg.build_index(vectors, **options).search_items(items, k=k, method="hybrid").ids
    right = [np.isin(one, other).mean() for one, other in zip(exact, found, strict=True)]
    assert np.mean(np.asarray(right) >= 0.99) > 0.97


def test_gaps_at_the_end_of_long_rankings_set_the_accuracy(backend):
    # Ten items, the best three of them asked for: what lies between the third and the fourth.
    ones = np.ones(9)
    ring = sparse.csr_array(sparse.diags_array([ones, ones], offsets=[-1, 1]))
    graph = hg.graph_from_affinity(ring, dtype="float64", backend=backend)
    observed = backend.asarray(np.ones((10, 1)))
    system = system_of(graph.adjacency, observed, 0.5, backend)

    def goal(fourth, k=3):
        scores = np.array([4, 3, 2, fourth, 1, 1, 1, 1, 1, 1], "float64")[:, None]
        found = conjugate_gradients._ranking_goal(system, backend.asarray(scores), k)
        return float(backend.to_numpy(found)[0]) ** 0.5 / (3**0.5 * 2)

    parts = [goal(2 - gap) for gap in (1.0, 0.011, 0.006, 0.003, 0.0)]
    np.testing.assert_allclose(parts, [0.005, 0.005, 0.003, 0.0015, 0.001], rtol=1e-6)


def test_short_rankings_are_told_apart_as_before(monkeypatch, rng):
    index = points(rng, "numpy", alpha=0.99)
    ids, similarities = asked(rng)
    usual = index.rerank(ids, similarities, k=N // 20, method="hybrid")
    monkeypatch.setattr(conjugate_gradients, "_LONG", 0)
    before = index.rerank(ids, similarities, k=N // 20, method="hybrid")
    assert usual.report.steps == before.report.steps
    np.testing.assert_array_equal(usual.scores, before.scores)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize(("alpha", "seed"), [(0.5, 17), (0.9, 31)])
def test_rankings_that_end_in_rounding_say_so(backend, kind, alpha, seed, dtype):
    rng = np.random.default_rng(seed)
    index = GRAPHS[kind](rng, backend, alpha=alpha, dtype=dtype)
    first = asked(rng)
    exact = exact_scores(index, *first, alpha)
    for k in (5, 100):
        ranking = index.rerank(*first, k=k, method="hybrid")
        lost = any(LOST in note for note in ranking.report.notes)
        # Whatever is wrong beyond a few ties is told; and nothing is, where all is well.
        if agreement(ranking.ids, exact, k, 0) < 0.98:
            assert lost, k
        best = -np.sort(-exact, axis=1)
        if np.all(best[:, k - 1] > 1e-3 * best[:, 0]):
            assert not lost, k


@pytest.mark.parametrize("method", ["hybrid", "local", "temporal"])
def test_what_rounding_hides_is_said_with_what_helps(backend, method, rng):
    # Half of the weight stays behind on each step: the hundredth score is 1e-20 of the first.
    options = {"accuracy": "ranking"} if method == "temporal" else {}
    for dtype, helps in (("float32", "dtype='float64'"), ("float64", "ask for fewer items")):
        index = line(rng, backend, alpha=0.5, dtype=dtype, rank=12)
        found = [
            index.search_items([3, 200], k=k, method=method, **options).report.notes
            for k in (5, 100)
        ]
        assert not any(LOST in note for note in found[0])
        (note,) = (note for note in found[1] if LOST in note)
        assert note.endswith((helps, f"the index with {helps}"))
        assert "best 100" in note
