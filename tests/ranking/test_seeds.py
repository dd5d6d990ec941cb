"""Weighted sets of items as queries, against sums of the scores of their items."""

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import clustered_vectors, dense, two_cliques

import hybrid_gpu as hg

N = 80
SETS = [[3, 5, 9], [0], [79, 2]]
WEIGHTS = [[1.0, 0.5, 2.0], [3.0], [1.0, -0.4]]
# Their scores are sums of their items' own: diffusion is linear, and similarity to a mean is not.
LINEAR = ["temporal", "fsr", "hybrid-paper", "shybrid", "hybrid", "precomputed"]


@pytest.fixture
def vectors(rng):
    return clustered_vectors(rng, n=N)


def build(vectors, backend, **options):
    options = {"neighbors": 6, "alpha": 0.9, "dtype": "float64", "backend": backend, **options}
    return hg.build_index(vectors, **options)


def by_item(ranking):
    """Scores (m, n) by item; NaN for what is not there."""
    scores = np.full((len(ranking.ids), N), np.nan)
    for row, (ids, values) in enumerate(zip(ranking.ids, ranking.scores, strict=True)):
        scores[row, ids[ids >= 0]] = values[ids >= 0]
    return scores


def exact(index, sets, weights):
    observation = np.zeros((len(sets), N))
    for row, (items, values) in enumerate(zip(sets, weights, strict=True)):
        np.add.at(observation[row], items, values)
    system = np.eye(N) - 0.9 * dense(index.backend, index.graph.adjacency)
    return 0.1 * np.linalg.solve(system, observation.T).T


def forms(sets, weights):
    """The same in every form."""
    wide = max(map(len, sets))
    ids = np.array([row + [-1] * (wide - len(row)) for row in sets])
    values = np.array([row + [7.0] * (wide - len(row)) for row in weights])
    yield {"ids": sets, "weights": weights}
    yield {"ids": [dict(zip(*pair, strict=True)) for pair in zip(sets, weights, strict=True)]}
    yield {"ids": ids, "weights": values}
    yield {"ids": [np.array(row) for row in sets], "weights": [np.array(row) for row in weights]}


@pytest.mark.parametrize("bare", [False, True])
def test_scores_are_those_of_a_dense_solve(backend, vectors, bare):
    index = build(vectors, backend)
    if bare:
        index = hg.build_index_from_neighbors(
            index.neighbors.ids,
            index.neighbors.similarities,
            alpha=0.9,
            dtype="float64",
            backend=backend,
        )
    expected = exact(index, SETS, WEIGHTS)
    for form in forms(SETS, WEIGHTS):
        found = index.search_items(**form, k=N, method="hybrid", accuracy=1e-10)
        scores = by_item(found)
        known = ~np.isnan(scores)
        assert np.array_equal(known, np.isfinite(scores))
        np.testing.assert_allclose(scores[known], expected[known], atol=1e-8)
        # What is left out is what diffusion does not reach, and nothing orders it.
        assert np.all(np.abs(expected[~known]) < 1e-12)
        assert bare or np.all(known)


@pytest.mark.parametrize("method", LINEAR)
def test_scores_add_up(backend, vectors, method):
    index = build(vectors, backend, basis="eigen", rank=8)
    if method == "precomputed":
        index = index.precompute(keep=N, rtol=1e-10)
    options = {"steps": 200} if hg.METHODS[method].steps != 0 else {}
    whole = by_item(index.search_items(SETS, weights=WEIGHTS, k=N, method=method, **options))
    for row, (items, weights) in enumerate(zip(SETS, WEIGHTS, strict=True)):
        parts = by_item(index.search_items(items, k=N, method=method, **options))
        np.testing.assert_allclose(whole[row], np.array(weights) @ parts, atol=1e-6)


def test_one_item_in_a_set_is_that_item(backend, vectors):
    index = build(vectors, backend)
    for method in ("nn", "hybrid", "temporal", "truncated", "local", "alpha-qe"):
        one = index.search_items([4, 7], k=9, method=method)
        other = index.search_items([[4], [7]], k=9, method=method)
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_allclose(one.scores, other.scores, rtol=1e-9)


def test_similarity_is_that_to_the_weighted_mean(backend, vectors):
    index = build(vectors, backend)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = by_item(index.search_items(SETS, weights=WEIGHTS, k=N, method="nn"))
    for row, (items, weights) in enumerate(zip(SETS, WEIGHTS, strict=True)):
        mean = np.array(weights) @ units[items]
        np.testing.assert_allclose(found[row], units @ (mean / np.linalg.norm(mean)), atol=1e-9)


def test_what_is_not_liked_comes_last(backend):
    index = hg.build_index_from_graph(two_cliques(4), alpha=0.9, backend=backend)
    found = index.search_items([{1: 1.0, 6: -1.0}], k=8)
    assert set(found.ids[0, :4].tolist()) == {0, 1, 2, 3}
    assert found.ids[0, 0] == 1
    assert set(found.ids[0, 4:].tolist()) == {4, 5, 6, 7}
    assert found.ids[0, -1] == 6
    assert np.all(found.scores[0, 4:] < 0)
    assert found.report.method == "hybrid"


def test_local_search_takes_sets_of_positive_weights(backend, vectors):
    index = build(vectors, backend)
    sets, weights = [[3, 5, 9], [79, 2]], [[1.0, 0.5, 2.0], [1.0, 0.4]]
    found = index.search_items(sets, weights=weights, k=9, method="local")
    expected = exact(index, sets, weights)
    best = -np.sort(-expected, axis=1)[:, :9]
    own = np.take_along_axis(expected, found.ids, axis=1)
    assert np.max(np.abs(-np.sort(-own, axis=1) - best)) < 2e-3 * best.max()
    with pytest.raises(ValueError, match=r"takes no negative weights\. Use method='hybrid'"):
        index.search_items(SETS, weights=WEIGHTS, k=9, method="local")


def test_sets_have_limits_keys_batches_and_replicas(backend, vectors):
    keys = [f"item {number}" for number in range(N)]
    plain, named = build(vectors, backend), build(vectors, backend, keys=keys)
    liked = [{keys[i]: w for i, w in zip(*p, strict=True)} for p in zip(SETS, WEIGHTS, strict=True)]
    whole = plain.search_items(SETS, weights=WEIGHTS, k=9, exclude=SETS)
    for row, items in enumerate(SETS):
        assert not set(items) & set(whole.ids[row].tolist())
    for index in (named, hg.Replicas(named, [backend, backend])):
        found = index.search_items(liked, k=9, batch=2, exclude=[list(row) for row in liked])
        np.testing.assert_array_equal(found.ids, whole.ids)
    again = named.search_items(found.to_dicts(), k=3)  # what came out goes in
    assert again.ids.shape == (3, 3)
    with pytest.raises(ValueError, match="has no 'nobody'"):
        named.search_items([["nobody"]])


@pytest.mark.parametrize(
    ("ids", "weights", "fault", "message"),
    [
        ([3, 4], [1.0, 2.0], ValueError, "weights go with lists of items"),
        ([[3], 4], None, TypeError, "got both"),
        ([[3], []], None, ValueError, "an item of some weight for each query; 1 has none"),
        ([[3, 4]], [[0.0, 0.0]], ValueError, "0 has none"),
        ([[-1]], None, ValueError, "0 has none"),
        ([[3, 4]], [[1.0]], ValueError, "as many for each query as it has ids"),
        ([[3, 4]], [1.0, 2.0], ValueError, "weights must be a list for each query"),
        ([[3, 4]], [[1.0, float("nan")]], ValueError, "finite numbers"),
        ([[3, 4]], [["a", "b"]], ValueError, "finite numbers"),
        ([{3: 1.0}], [[1.0]], ValueError, "leave weights out"),
        ([[N]], None, ValueError, "ids must lie in"),
        ([[-2]], None, ValueError, "ids must lie in"),
        ([[1.5]], None, TypeError, "lists of integers"),
        ([["a"]], None, TypeError, "lists of integers"),
        ({3: 1.0}, None, TypeError, "ids"),
    ],
)
def test_what_cannot_be_sets_is_refused(backend, vectors, ids, weights, fault, message):
    with pytest.raises(fault, match=message):
        build(vectors, backend).search_items(ids, weights=weights)


@pytest.mark.parametrize(
    ("ids", "weights", "fault", "words"),
    [
        ([{0: 1.0, 1: -5.0}, [2]], None, TypeError, "lists, or dicts of weights; got both"),
        ([[0, 1]], [{0: 1.0, 1: -1.0}], ValueError, "weights must be a list for each query"),
        ([[0, 1]], [{2.0, 1.0}], ValueError, "weights must be a list for each query"),
        ([[0, 1]], 3, ValueError, "weights must be a list for each query"),
        ([[0, True]], None, TypeError, "lists of integers"),
        ([[0, 1]], [[1e300, 1]], ValueError, "finite numbers in float32"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(vectors, ids, weights, fault, words):
    index = build(vectors, "numpy", dtype="float32")
    with pytest.raises(fault, match=words):
        index.search_items(ids, weights=weights, k=3)


@pytest.mark.parametrize("given", [[3, 5], [[3, 5], [8, 2]]])
def test_arrays_that_only_speak_dlpack_are_read_as_lists_are(vectors, given):
    class Foreign:
        def __init__(self, values):
            self._values = np.array(values)

        def __dlpack__(self, **options):
            return self._values.__dlpack__(**options)

        def __dlpack_device__(self):
            return self._values.__dlpack_device__()

    index = build(vectors, "numpy")
    expected = index.search_items(given, k=5)
    found = index.search_items(Foreign(given), k=5)
    np.testing.assert_array_equal(found.ids, expected.ids)


@pytest.mark.parametrize("keys", [None, [f"item {i}" for i in range(N)]])
@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_masked_and_sparse_arrays_are_refused(vectors, keys, shape):
    index = build(vectors, "numpy", keys=keys)
    ids = np.array([1, 2, 3, 4]).reshape(shape)
    with pytest.raises(TypeError, match="masked array"):
        index.search_items(np.ma.array(ids, mask=ids == 2))
    with pytest.raises(TypeError, match="sparse"):
        index.search_items(sparse.csr_array(np.atleast_2d(ids)))
