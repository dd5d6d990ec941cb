from concurrent.futures import ThreadPoolExecutor

import array_api_strict
import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import (
    METHODS_OF_EIGENVECTORS,
    clustered_vectors,
    dense,
    path,
    random_affinity,
    two_cliques,
)
from strict_backend import StrictBackend

import hybrid_gpu as hg
from hybrid_gpu import reference
from hybrid_gpu.diffusion import coarse_inverse
from hybrid_gpu.diffusion.galerkin_basis import GalerkinBasis
from hybrid_gpu.index import queries as query_sets


@pytest.fixture
def index(backend):
    """An index that every method can be asked of."""
    vectors = clustered_vectors(np.random.default_rng(31))
    index = hg.build_index(vectors, neighbors=6, basis="eigen", rank=10, backend=backend)
    return index.precompute(keep=120)


@pytest.fixture
def queries():
    return clustered_vectors(np.random.default_rng(37), n=4)


def first_stage(index, queries, k):
    ranking = index.search(queries, k=k, method="nn")
    return ranking.ids, np.maximum(ranking.scores, 0)


def test_default_search_is_hybrid_and_returns_numpy_for_numpy(index, queries):
    ranking = index.search(queries.astype("float32"), k=7)
    assert isinstance(ranking.ids, np.ndarray)
    assert (ranking.ids.dtype, ranking.scores.dtype) == (np.int64, np.float32)
    assert ranking.ids.shape == ranking.scores.shape == (4, 7)
    assert np.all(np.diff(ranking.scores, axis=1) <= 0)
    report = ranking.report
    assert (report.method, report.accuracy, report.batch) == ("hybrid", 3e-3, 4)
    assert report.residuals.max() <= 3e-3
    assert report.backend == index.backend.name
    assert set(report.seconds) == {"observe", "solve", "rank"}
    assert report.residuals.shape == (4,)
    assert repr(ranking) == "Ranking(4 queries, top 7, hybrid)"


def test_results_live_where_the_query_lived(backend, index, queries):
    there = index.search(backend.asarray(queries), k=3)
    assert type(there.ids) is type(backend.asarray(queries))
    here = index.search(queries, k=3)
    np.testing.assert_array_equal(backend.to_numpy(there.ids), here.ids)


def test_rerank_of_own_results_is_search(index, queries):
    ids, similarities = first_stage(index, queries, 5)
    for method in ("temporal", "fsr", "hybrid-paper", "shybrid"):
        again = index.rerank(ids, similarities, k=30, method=method)
        whole = index.search(queries, k=30, method=method)
        np.testing.assert_allclose(again.scores, whole.scores, atol=1e-6)


def dense_scores(index, ids, similarities, alpha):
    """``(1 - alpha) (I - alpha W)^-1 y`` of first-stage results, by a dense solve."""
    adjacency = dense(index.backend, index.graph.adjacency).astype("float64")
    observation = np.zeros((index.n, len(ids)))
    for query, (items, values) in enumerate(zip(ids, similarities, strict=True)):
        observation[items, query] = values.astype("float64") ** index.gamma
    system = np.eye(index.n) - alpha * adjacency
    return (1 - alpha) * np.linalg.solve(system, observation).T


def test_rerank_finds_items_that_the_first_stage_missed(index, queries):
    ids, similarities = first_stage(index, queries, 5)
    ranking = index.rerank(ids, similarities, k=10, rtol=1e-5)
    exact = dense_scores(index, ids, similarities, index.alpha)
    best = np.sort(exact, axis=1)[:, ::-1][:, :10]
    np.testing.assert_allclose(np.take_along_axis(exact, ranking.ids, 1), best, atol=1e-5)
    for found, first in zip(ranking.ids.tolist(), ids.tolist(), strict=True):
        assert len(set(found)) == 10
        assert len(set(found) - set(first)) >= 5
    assert np.all(ranking.scores > 0)


def test_rerank_with_nn_keeps_the_first_stage_order(index, queries):
    ids, similarities = first_stage(index, queries, 9)
    ranking = index.rerank(ids, similarities, k=9, method="nn")
    np.testing.assert_array_equal(ranking.ids, ids)


def test_rerank_truncates_to_the_given_results(index, queries):
    ids, similarities = first_stage(index, queries, 30)
    ranking = index.rerank(ids, similarities, k=30, method="truncated")
    same = index.search(queries, k=30, method="truncated", shortlist=30)
    np.testing.assert_allclose(ranking.scores, same.scores, atol=1e-6)
    for line, allowed in zip(ranking.ids, ids, strict=True):
        assert set(line) == set(allowed)


@pytest.mark.parametrize("method", METHODS_OF_EIGENVECTORS)
def test_a_query_without_any_result_gets_no_invented_ones(index, method):
    # Beside one with results, which must not notice it.
    ids, similarities = np.array([[-1] * 3, [4, 9, 11]]), np.array([[np.nan] * 3, [0.9, 0.8, 0.7]])
    ranking = index.rerank(ids, similarities, k=120, method=method)
    assert np.all(ranking.ids[0] == -1)
    assert np.all(ranking.scores[0] == -np.inf)
    alone = index.rerank(ids[1:], similarities[1:], k=120, method=method)
    np.testing.assert_array_equal(ranking.ids[1], alone.ids[0])
    assert sorted(ranking.ids[1]) == list(range(120))


def test_behind_an_isolated_hit_come_the_list_and_then_what_looks_like_the_hits(backend):
    # A graph without edges: diffusion reaches the hits and nothing else.
    angles = np.array([0.0, 0.1, 0.3, 0.6, 1.0, 1.5])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    empty = sparse.csr_array((6, 6))
    index = hg.build_index_from_graph(empty, descriptors=vectors, dtype="float64", backend=backend)
    ids, similarities = np.array([[3, 5, 2]]), np.array([[0.9, 0.3, -0.1]])
    for method in ("temporal", "hybrid", "truncated", "nn"):
        ranking = index.rerank(ids, similarities, k=9, query_neighbors=1, method=method)
        # 3 by diffusion, 5 and 2 by the list, the others by the angle to 3.
        assert ranking.ids.tolist() == [[3, 5, 2, 4, 1, 0]], method
        assert np.all(ranking.scores[0, 3:] == 0)
        assert np.all(np.diff(ranking.scores) <= 0)
    searched = index.search(vectors[3:4], k=6, query_neighbors=1)
    assert searched.ids.tolist() == [[3, 2, 4, 1, 0, 5]]


def test_unreached_results_come_by_their_similarity_however_close_they_are(backend, dtype):
    index = hg.build_index_from_graph(sparse.csr_array((9, 9)), dtype=dtype, backend=backend)
    ids = np.array([[4, 8, 7, 3, 2, 6, 7, -1]])
    # 7 stands twice, with a mean of 3, and so beside 2: the lower id comes first.
    small = 2.0**-27 * np.array([4, 2, 3.5, 3, -1, 4, 0])
    cosines = np.concatenate([[0.9], small])[None, :]
    ranking = index.rerank(ids, cosines, k=8, query_neighbors=1)
    assert ranking.ids.tolist() == [[4, 8, 3, 2, 7, 6, -1, -1]]


@pytest.mark.parametrize("gamma", [300.0, 1e5])
def test_weights_beyond_the_range_of_floats_still_rank(backend, gamma):
    index = hg.build_index_from_graph(two_cliques(3), gamma=gamma, backend=backend)
    # Twice as much weight on the second clique as on the first, both too small for float64.
    cosines = np.array([[0.05 * 2 ** (1 / gamma), 0.05]])
    ranking = index.rerank([[4, 1]], cosines, k=6, method="temporal")
    assert ranking.ids.tolist() == [[4, 3, 5, 1, 0, 2]]


def test_without_descriptors_the_list_is_followed_by_nothing(backend):
    index = hg.build_index_from_graph(two_cliques(3), dtype="float64", backend=backend)
    ranking = index.rerank([[4, 1]], np.array([[0.5, 0.0]]), k=6, query_neighbors=1)
    assert ranking.ids.tolist() == [[4, 3, 5, 1, -1, -1]]
    assert ranking.scores[0, 3:].tolist() == [0, -np.inf, -np.inf]
    own = index.search_items([1], k=6)
    assert own.ids.tolist() == [[1, 0, 2, -1, -1, -1]]


def test_a_count_may_be_a_number_of_numpy(backend, rng):
    # One byte holds it, but not what is computed from it.
    vectors = clustered_vectors(rng)
    small = hg.build_index(vectors, neighbors=np.int8(7), backend=backend)
    assert repr(small) == repr(hg.build_index(vectors, neighbors=7, backend=backend))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_labels_across_components_make_up_no_results(backend, dtype):
    labels = np.array([0, 0, 1, 1, 1, 2])  # 1 is in both cliques
    index = hg.build_index_from_graph(two_cliques(3), basis=labels, dtype=dtype, backend=backend)
    ranking = index.search_items([4], k=6, method="hybrid", steps=3)
    assert sorted(ranking.ids[0, :3]) == [3, 4, 5]
    assert ranking.ids[0, 3:].tolist() == [-1, -1, -1]


def test_hits_that_weigh_nothing_are_listed_and_stand_for_no_query(index):
    ranking = index.rerank([[7, 3]], np.array([[0.0, -0.4]]), k=4, method="hybrid")
    assert ranking.ids.tolist() == [[7, 3, -1, -1]]
    assert ranking.scores.tolist() == [[0, 0, -np.inf, -np.inf]]


def test_a_missing_result_is_replaced_by_the_next_one(index):
    gaps = index.rerank(
        [[-1, 4, -1, 9, 30]], np.array([[5.0, 0.9, 3.4e38, 0.8, 0.7]]), k=20, query_neighbors=2
    )
    plain = index.rerank([[4, 9, 30]], np.array([[0.9, 0.8, 0.7]]), k=20, query_neighbors=2)
    np.testing.assert_array_equal(gaps.ids, plain.ids)
    np.testing.assert_array_equal(gaps.scores, plain.scores)


def test_more_results_than_items_are_all_items(index, queries):
    assert index.search(queries, k=500).ids.shape == (4, 120)
    assert index.search_items([3], k=500).ids.shape == (1, 120)
    assert index.rerank([[3]], np.array([[0.5]]), k=500).ids.shape == (1, 120)


def test_own_neighbors_can_be_reranked_as_they_are(backend, index, rng):
    # They end with negative cosines, which weigh nothing.
    vectors = clustered_vectors(np.random.default_rng(31))
    found = hg.nearest_neighbors(vectors, queries=vectors[:3], k=120, backend=backend)
    ids, cosines = backend.to_numpy(found.ids), backend.to_numpy(found.similarities)
    assert cosines.min() < 0
    raw = index.rerank(ids, cosines, k=30, query_neighbors=None)
    clipped = index.rerank(ids, np.maximum(cosines, 0), k=30, query_neighbors=None)
    np.testing.assert_array_equal(raw.scores, clipped.scores)
    again = index.rerank(ids, cosines, k=120, method="nn")
    np.testing.assert_array_equal(again.ids, ids)


@pytest.mark.parametrize("metric", ["cosine-distance", "l2", "squared-l2"])
def test_distances_rank_as_the_cosines_that_they_stand_for(backend, index, queries, metric):
    vectors = clustered_vectors(np.random.default_rng(31))
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    own = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    ids, cosines = first_stage(index, queries, 12)
    squared = ((own[:, None, :] - units[ids]) ** 2).sum(axis=2)
    distances = {"cosine-distance": 1 - cosines, "l2": np.sqrt(squared), "squared-l2": squared}
    one = index.rerank(ids, distances[metric], metric=metric, k=30, rtol=1e-5)
    other = index.rerank(ids, cosines, k=30, rtol=1e-5)
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4)
    lists = hg.nearest_neighbors(vectors, k=6, backend=backend)
    near = backend.to_numpy(lists.ids)
    squared = ((units[:, None, :] - units[near]) ** 2).sum(axis=2)
    cosines = backend.to_numpy(lists.similarities)
    distances = {"cosine-distance": 1 - cosines, "l2": np.sqrt(squared), "squared-l2": squared}
    built = hg.build_index_from_neighbors(
        near, distances[metric], metric=metric, basis="none", backend=backend
    )
    np.testing.assert_allclose(
        backend.to_numpy(built.graph.degrees),
        backend.to_numpy(index.graph.degrees),
        rtol=1e-4,
        atol=1e-6,
    )


def test_isolated_items_and_small_components_are_still_ranked(backend):
    # Items 0 to 2 look alike, 3 and 4 are a pair, 5 is alone, 6 is a zero vector.
    vectors = np.array(
        [[1, 0.1, 0], [1, 0.2, 0], [1, 0.3, 0], [0, 1, 0.1], [0, 1, 0.2], [0, 0.1, 1], [0, 0, 0]],
    )
    index = hg.build_index(vectors, neighbors=2, basis="eigen", backend=backend)
    index = index.precompute(keep=7)
    for method in METHODS_OF_EIGENVECTORS:
        ranking = index.search(vectors, k=7, method=method)
        assert np.all(np.isfinite(ranking.scores)), method
        assert all(sorted(line) == list(range(7)) for line in ranking.ids.tolist()), method
    assert set(index.search_items([0], k=3, method="temporal").ids[0].tolist()) == {0, 1, 2}
    assert index.search_items([6], k=7, method="temporal").ids[0, 0] == 6


def test_items_that_few_steps_do_not_reach_come_by_similarity(backend):
    # Along a line of items one step reaches the next one only; the rest is ranked by the angle.
    angles = np.linspace(0, 1.2, 13)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    index = hg.build_index(vectors, neighbors=2, basis="none", dtype="float64", backend=backend)
    ranking = index.search(vectors[:1], k=13, method="temporal", steps=1, query_neighbors=1)
    assert ranking.ids[0].tolist() == list(range(13))
    assert np.count_nonzero(ranking.scores) < 6


def test_duplicates_and_more_of_them_than_neighbors(backend, rng):
    vectors = np.concatenate([np.ones((15, 4)), clustered_vectors(rng, n=20, d=4)])
    index = hg.build_index(vectors, neighbors=4, backend=backend)
    ranking = index.search(np.ones((1, 4)), k=15, method="temporal")
    assert set(ranking.ids[0].tolist()) >= set(range(5))
    assert np.all(np.isfinite(ranking.scores))


def test_identical_database_of_equal_items(backend):
    index = hg.build_index(np.ones((8, 3)), neighbors=7, backend=backend)
    ranking = index.search(np.ones((1, 3)), k=8)
    assert sorted(ranking.ids[0].tolist()) == list(range(8))


def test_own_lists_give_the_same_index(backend, rng, queries):
    vectors = clustered_vectors(rng)
    direct = hg.build_index(
        vectors, neighbors=6, basis="eigen", rank=8, knn="exact", backend=backend
    )
    found = hg.nearest_neighbors(vectors, k=6, knn="exact", backend=backend)
    lists = hg.build_index_from_neighbors(
        backend.to_numpy(found.ids),
        np.maximum(backend.to_numpy(found.similarities), 0),
        descriptors=vectors,
        basis="eigen",
        rank=8,
        backend=backend,
    )
    one, other = direct.search(queries, k=20), lists.search(queries, k=20)
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-5)


def test_own_affinity_is_diffused_as_it_is(backend):
    index = hg.build_index_from_graph(path(6), alpha=0.5, rank=2, dtype="float64", backend=backend)
    ranking = index.rerank([[0]], np.array([[1.0]]), k=6, method="temporal", rtol=1e-12)
    assert ranking.ids.tolist() == [[0, 1, 2, 3, 4, 5]]
    laplacian = np.eye(6) - 0.5 * _normalized(path(6).toarray())
    expected = 0.5 * np.linalg.solve(laplacian, np.eye(6)[0])
    np.testing.assert_allclose(ranking.scores[0], expected, atol=1e-10)


def _normalized(affinity):
    root = np.sqrt(affinity.sum(axis=1))
    return affinity / np.outer(root, root)


def test_index_without_descriptors_says_so(backend):
    index = hg.build_index_from_graph(two_cliques(4), rank=2, backend=backend)
    with pytest.raises(ValueError, match=r"needs descriptors.*use rerank"):
        index.search(np.ones((1, 2)))
    with pytest.raises(ValueError, match="needs descriptors"):
        index.rerank([[0]], np.array([[1.0]]), k=3, method="alpha-qe")
    assert index.search_items([2], k=8).ids[0, 0] == 2


def test_index_without_eigenvectors_says_so(backend, rng, queries):
    index = hg.build_index(clustered_vectors(rng), neighbors=5, basis="none", backend=backend)
    report = index.search(queries, k=3).report
    assert (report.method, report.accuracy) == ("hybrid", 3e-3)
    with pytest.raises(ValueError, match="basis='eigen'"):
        index.search(queries, method="fsr")


def test_another_filter_can_be_asked_for(index, queries):
    ids, similarities = first_stage(index, queries, 5)
    for alpha in (0.5, 0.9):
        ranking = index.rerank(
            ids, similarities, k=120, filter=hg.PageRank(alpha), method="temporal", rtol=1e-5
        )
        exact = dense_scores(index, ids, similarities, alpha)
        scores = np.take_along_axis(exact, ranking.ids, axis=1)
        np.testing.assert_allclose(ranking.scores, scores, atol=2e-5 * exact.max())


def test_missed_tolerance_carries_the_ranking(index, queries):
    with pytest.raises(hg.ConvergenceError, match="Allow more steps") as caught:
        index.search(queries, k=5, rtol=1e-5, steps=2, method="temporal")
    assert caught.value.result.ids.shape == (4, 5)


def test_large_query_sets_come_back_in_order(backend, rng):
    index = hg.build_index(clustered_vectors(rng, n=40), neighbors=4, rank=3, backend=backend)
    each = index.search_items(np.arange(40), k=1, method="temporal")
    items = rng.integers(0, 40, 1000)
    seen = []
    ranking = index.search_items(
        items, k=1, method="temporal", progress=lambda *state: seen.append(state)
    )
    assert ranking.ids[:, 0].tolist() == each.ids[items, 0].tolist()
    assert seen[0] == ("search", 0, 1000)
    assert seen[-1] == ("search", 1000, 1000)
    assert ranking.report.batch < 1000


def test_batch_shrinks_to_the_memory_at_hand(backend, index, queries, monkeypatch):
    plenty = index.search(queries, k=5)
    monkeypatch.setattr(type(backend), "available_bytes", lambda self: 1)
    scarce = index.search(queries, k=5)
    assert scarce.report.batch == 1
    np.testing.assert_allclose(scarce.scores, plenty.scores, atol=1e-6)


def test_lack_of_memory_halves_the_batch_and_is_noted(backend, index, queries, monkeypatch):
    whole = index.search(queries, k=5)
    step = type(backend).laplacian_step

    def scarce(self, matrix, direction, alpha, **options):
        if direction.shape[1] > 1:
            raise MemoryError
        return step(self, matrix, direction, alpha, **options)

    monkeypatch.setattr(type(backend), "laplacian_step", scarce)
    ranking = index.search(queries, k=5)
    np.testing.assert_allclose(ranking.scores, whole.scores, atol=1e-6)
    assert ranking.report.batch == 1
    assert ranking.report.notes[-2:] == (
        "out of memory with 4 queries at once: went on with 2",
        "out of memory with 2 queries at once: went on with 1",
    )


def test_memory_for_not_even_one_query_is_said_plainly(backend, index, queries, monkeypatch):
    def none(self, matrix, direction, alpha, **options):
        raise MemoryError

    monkeypatch.setattr(type(backend), "laplacian_step", none)
    with pytest.raises(MemoryError, match="for one query on 120 items"):
        index.search(queries, k=5)


def test_moving_to_another_backend_keeps_the_answer(index, queries):
    for target in (StrictBackend(), "numpy"):
        moved = index.to(target)
        np.testing.assert_allclose(
            moved.search(queries, k=9).scores, index.search(queries, k=9).scores, atol=1e-6
        )
    assert index.to(index.backend) is index


def test_repr_and_memory_tell_the_size(index):
    assert "120 items" in repr(index)
    assert "10 eigenvectors" in repr(index)
    assert index.memory["descriptors"] == 120 * 8 * 4
    assert index.memory["basis"] == 121 * 10 * 4
    assert index.memory["graph"] > 0


def test_half_precision_and_lists_are_taken(backend, queries):
    vectors = clustered_vectors(np.random.default_rng(31), n=30)
    index = hg.build_index(vectors.astype("float16"), neighbors=3, backend=backend)
    assert index.dtype == "float32"
    assert index.search(queries.tolist(), k=2).ids.shape == (4, 2)


VECTORS = clustered_vectors(np.random.default_rng(41), n=20)


def _with(value):
    spoiled = VECTORS.copy()
    spoiled[3, 2] = value
    return spoiled


@pytest.mark.parametrize(
    ("descriptors", "options", "kind", "message"),
    [
        (VECTORS[0], {}, ValueError, r"2-D \(n, d\); got shape \(8,\).*\[None, :\]"),
        (VECTORS[None], {}, ValueError, "2-D"),
        (VECTORS[:0], {}, ValueError, "at least one vector"),
        (VECTORS[:, :0], {}, ValueError, "at least one vector"),
        (VECTORS.astype(int), {}, TypeError, r"got dtype int64.*astype\('float32'\)"),
        (VECTORS.astype(object), {}, TypeError, "got dtype object"),
        (VECTORS * 1j, {}, TypeError, "got dtype complex128"),
        (_with(np.nan), {}, ValueError, "NaN or infinity"),
        (_with(np.inf), {}, ValueError, "NaN or infinity"),
        (VECTORS, {"neighbors": 20}, ValueError, "neighbors must be at most 19; got 20"),
        (VECTORS, {"neighbors": 0}, ValueError, "neighbors must be at least 1"),
        (VECTORS, {"neighbors": -4}, ValueError, "neighbors must be at least 1"),
        (VECTORS, {"neighbors": 2.5}, TypeError, "neighbors must be an integer"),
        (VECTORS, {"neighbors": True}, TypeError, "neighbors must be an integer"),
        (VECTORS, {"alpha": 1.0}, ValueError, r"alpha must lie in \[0, 1\)"),
        (VECTORS, {"alpha": -0.1}, ValueError, r"alpha must lie in \[0, 1\)"),
        (VECTORS, {"alpha": "big"}, TypeError, "alpha must be a number"),
        (VECTORS, {"gamma": 0}, ValueError, "gamma must be positive"),
        (VECTORS, {"gamma": np.nan}, ValueError, "gamma must be finite"),
        (VECTORS, {"basis": "wavelets"}, ValueError, "basis must be one of"),
        (VECTORS, {"rank": 99}, ValueError, "rank must be at most"),
        (VECTORS, {"dtype": "float16"}, ValueError, "dtype must be"),
        (VECTORS, {"knn": "Nonsense"}, ValueError, "FAISS factory string"),
        (VECTORS[:1], {"neighbors": 1}, ValueError, "at least two items"),
    ],
)
def test_bad_descriptors_and_settings_are_refused(backend, descriptors, options, kind, message):
    with pytest.raises(kind, match=message):
        hg.build_index(descriptors, **{"neighbors": 3, **options}, backend=backend)


@pytest.mark.parametrize(
    ("queries", "options", "kind", "message"),
    [
        (np.ones(8), {}, ValueError, r"queries\[None, :\]"),
        (np.ones((0, 8)), {}, ValueError, "at least one vector"),
        (np.ones((2, 5)), {}, ValueError, "8 dimensions; got 5"),
        (np.full((2, 8), np.nan), {}, ValueError, "finite"),
        (np.ones((2, 8), int), {}, TypeError, "floating point"),
        (np.ma.ones((2, 8)), {}, TypeError, r"queries must not be a masked.*queries.filled\(0\)"),
        (np.ones((2, 8)), {"k": 0}, ValueError, "k must be at least 1"),
        (np.ones((2, 8)), {"k": -1}, ValueError, "k must be at least 1"),
        (np.ones((2, 8)), {"k": 1.5}, TypeError, "k must be an integer"),
        (np.ones((2, 8)), {"method": "magic"}, ValueError, "method must be one of auto, nn"),
        (np.ones((2, 8)), {"steps": -1}, ValueError, "steps must be at least 0"),
        (np.ones((2, 8)), {"rtol": -1.0}, ValueError, "rtol must be positive"),
        (np.ones((2, 8)), {"batch": 0}, ValueError, "batch must be at least 1"),
        (np.ones((2, 8)), {"query_neighbors": 0}, ValueError, "query_neighbors must be at least"),
        (np.ones((2, 8)), {"shortlist": 121}, ValueError, "shortlist must be at most 120"),
        (np.ones((2, 8)), {"method": "shybrid", "sparsity": 1.0}, ValueError, "sparsity must lie"),
    ],
)
def test_bad_queries_and_options_are_refused(index, queries, options, kind, message):
    with pytest.raises(kind, match=message):
        index.search(queries, **options)


@pytest.mark.parametrize(
    ("ids", "similarities", "message"),
    [
        ([[120]], [[0.5]], r"ids must lie in \[0, 119\].*got values from 120 to 120"),
        ([[-2]], [[0.5]], r"ids must lie in \[0, 119\]"),
        ([[1]], [[-1.5]], r"must be cosines.*in \[-1, 1\]; got -1.5"),
        ([[1]], [[np.inf]], "finite"),
        ([[1, 2]], [[0.5, 0.5, 0.5]], "same shape"),
        ([[1], [2]], [[0.5]], "same shape"),
        ([[]], [[]], "non-empty"),
    ],
)
def test_bad_first_stage_results_are_refused(index, ids, similarities, message):
    with pytest.raises(ValueError, match=message):
        index.rerank(np.array(ids, dtype=int), np.array(similarities), k=3)


@pytest.mark.parametrize("ids", [[], [[]], [120], [-1]])
def test_bad_items_are_refused(index, ids):
    with pytest.raises(ValueError, match="ids must"):
        index.search_items(np.array(ids, dtype=int), k=3)


def test_descriptors_of_another_length_are_refused(backend):
    with pytest.raises(ValueError, match="one row for each of the 8 items; got 5"):
        hg.build_index_from_graph(two_cliques(4), descriptors=np.ones((5, 2)), backend=backend)


def test_lists_of_own_engine_are_checked(backend):
    with pytest.raises(ValueError, match=r"ids must lie in \[0, 1\]"):
        hg.build_index_from_neighbors(np.array([[1], [5]]), np.ones((2, 1)), backend=backend)


def test_graph_without_edges_still_answers(backend):
    empty = sparse.csr_array((4, 4))
    index = hg.build_index_from_graph(empty, backend=backend)
    ranking = index.search_items([2], k=4)
    assert ranking.ids[0].tolist() == [2, -1, -1, -1]


def test_array_of_the_other_strict_device_is_never_taken_silently():
    backend = StrictBackend()
    elsewhere = array_api_strict.asarray(VECTORS)
    with pytest.raises(AssertionError, match="other device"):
        hg.build_index(elsewhere, neighbors=3, backend=backend)


def test_what_cannot_fit_into_memory_is_refused_before_the_work(backend, monkeypatch):
    monkeypatch.setattr(type(backend), "available_bytes", lambda self: 5_000)
    with pytest.raises(MemoryError, match=r"takes about 0 MB.*Take fewer neighbors"):
        hg.build_index(VECTORS, neighbors=10, backend=backend)
    ids = np.tile(np.arange(10), (len(VECTORS), 1))
    with pytest.raises(MemoryError, match="Take fewer neighbors"):
        hg.build_index_from_neighbors(ids, np.ones(ids.shape), backend=backend)


@pytest.mark.parametrize(
    ("options", "lists", "beside"),
    [
        ({}, 120 * 5, 0),
        ({"query_neighbors": None}, 120 * 20, 0),
        ({"k": 20}, 120 * 20, 0),
        # The shortlist of each query, and the graph that is cut out for one at a time.
        ({"method": "truncated"}, 120 * 5 + 16 * 20, 120 * 2 * 33),
        ({"method": "truncated", "shortlist": 10}, 120 * 5 + 16 * 10, 120 * 33),
    ],
)
def test_a_search_takes_at_most_half_of_the_memory(backend, monkeypatch, options, lists, beside):
    index = hg.build_index(VECTORS, neighbors=5, backend=backend)
    assert index.graph.edges == 33
    room = 7 * (10 * index.n * 4 + lists) + beside
    options = {"k": 3, **options}
    for available, batch in ((2 * room, 7), (2 * room - 2, 6)):
        monkeypatch.setattr(type(backend), "available_bytes", lambda self, a=available: a)
        assert index.search(VECTORS[:20], **options).report.batch == batch


def test_an_inverse_that_cannot_fit_into_memory_is_refused(backend, monkeypatch):
    vectors = np.random.default_rng(9).standard_normal((80, 3))
    index = hg.build_index(vectors, neighbors=10, rank=8, backend=backend)
    monkeypatch.setattr(coarse_inverse, "available_host_bytes", lambda: 200)
    assert index.search(vectors[:2], k=3).ids.shape == (2, 3)  # it is there already
    with pytest.raises(MemoryError, match="not enough memory"):
        index.search(vectors[:2], k=3, filter=hg.PageRank(0.8))
    with pytest.raises(MemoryError, match="to invert the system of"):
        hg.build_index(vectors, neighbors=10, rank=8, backend=backend)


# One order inside, the user's outside -------------------------------------------------------------

OWN_BASES = {
    "aggregate": {},
    "eigen": {"rank": 12},
    "sparse-eigen": {"rank": 12, "sparsity": hg.Sparsity(0.6, "filtered")},
    "none": {},
    "labels": {},
    "vectors": {},
}


def shuffled_index(backend, rng, basis, dtype="float64"):
    """An index of a graph whose items lie in memory in quite another order, and its affinity."""
    affinity = random_affinity(rng, n=90)
    options = OWN_BASES[basis]
    own = {"labels": np.arange(90) % 7, "vectors": rng.standard_normal((90, 4))}.get(basis, basis)
    index = hg.build_index_from_graph(affinity, basis=own, dtype=dtype, backend=backend, **options)
    order = backend.to_numpy(index.state.numbering.order)
    assert np.mean(order != np.arange(90)) > 0.9
    return index, affinity


@pytest.mark.parametrize("basis", OWN_BASES)
def test_what_an_index_shows_fits_together_by_the_user_s_ids(backend, rng, basis):
    index, affinity = shuffled_index(backend, rng, basis)
    graph = index.graph
    np.testing.assert_allclose(
        dense(backend, graph.adjacency), reference.normalize(affinity).toarray(), atol=1e-12
    )
    observation = rng.random((90, 3)) * (rng.random((90, 3)) < 0.1)
    solution = hg.diffuse(
        graph, backend.asarray(observation), basis=index.basis, rtol=1e-10, backend=backend
    )
    system = np.eye(90) - 0.9 * reference.normalize(affinity).toarray()
    truth = np.linalg.solve(system, 0.1 * observation)
    np.testing.assert_allclose(backend.to_numpy(solution.values), truth, atol=1e-7)
    # Few steps, too: a basis in another order would be a poor one.
    few = hg.diffuse(
        graph, backend.asarray(observation), basis=index.basis, steps=6, backend=backend
    )
    places = backend.to_numpy(index.state.numbering.order)
    inside = hg.diffuse(
        index.state.graph,
        backend.asarray(observation[places]),
        basis=index.state.basis,
        steps=6,
        backend=backend,
    )
    np.testing.assert_allclose(
        backend.to_numpy(few.values)[places], backend.to_numpy(inside.values), atol=1e-9
    )


def test_what_an_index_shows_is_made_once(backend, rng):
    vectors = clustered_vectors(rng, n=60)
    index = hg.build_index(vectors, neighbors=6, backend=backend).precompute(keep=4)
    for part in ("graph", "basis", "descriptors", "neighbors", "columns"):
        assert getattr(index, part) is getattr(index, part)
    host = backend.to_numpy
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(host(index.descriptors), units, atol=1e-6)
    lists = hg.nearest_neighbors(vectors, k=6, knn="exact", backend=backend)
    np.testing.assert_array_equal(host(index.neighbors.ids), host(lists.ids))
    columns = index.search_items(np.arange(60), k=4, rtol=1e-3)
    reached = columns.scores > 0
    np.testing.assert_array_equal(host(index.columns.ids)[reached], columns.ids[reached])


def test_a_basis_of_another_graph_is_refused(backend, rng):
    index, _ = shuffled_index(backend, rng, "aggregate")
    other, _ = shuffled_index(backend, rng, "aggregate")
    signal = backend.asarray(np.ones((90, 1)))
    # The same items in another order, and another graph of as many items.
    for wrong in (index.state.basis, other.basis):
        with pytest.raises(ValueError, match="basis must be one of this graph"):
            hg.diffuse(index.graph, signal, basis=wrong, backend=backend)
    with pytest.raises(ValueError, match="basis must be one of this index's graph"):
        hg.with_basis(index, other.basis)


@pytest.mark.parametrize("kind", ["aggregate", "eigen", "given"])
def test_an_index_takes_a_basis_that_was_made_for_its_graph(backend, rng, kind):
    index, _ = shuffled_index(backend, rng, "none")
    graph = index.graph
    if kind == "aggregate":
        groups = hg.aggregate(graph, groups=9, backend=backend)
        basis = hg.aggregate_basis(graph, groups, backend=backend)
    elif kind == "eigen":
        spectrum = hg.leading_eigenpairs(graph, rank=9, backend=backend)
        basis = hg.eigen_basis(spectrum, graph, backend=backend)
    else:
        basis = hg.given_basis(graph, rng.standard_normal((90, 5)), backend=backend)
    with_it = hg.with_basis(index, basis)
    assert with_it.basis.rank == basis.rank
    items = np.arange(0, 90, 7)
    plain = index.search_items(items, k=9, rtol=1e-10)
    np.testing.assert_allclose(
        with_it.search_items(items, k=9, rtol=1e-10).scores, plain.scores, atol=1e-9
    )
    few = hg.diffuse(
        graph,
        hg.observe([[3]], [[1.0]], 90, dtype="float64", backend=backend),
        basis=basis,
        steps=4,
        backend=backend,
    )
    found = with_it.search_items([3], k=90, steps=4, method="hybrid")
    scores = np.zeros(91)
    scores[found.ids[0]] = np.where(found.ids[0] < 0, 0, found.scores[0])
    # Vectors across components are kept from handing scores over by search alone.
    seen = scores[:90] > 0 if kind == "given" else slice(None)
    np.testing.assert_allclose(scores[:90][seen], backend.to_numpy(few.values)[seen, 0], atol=1e-9)


@pytest.mark.parametrize("method", ["nn", "temporal", "hybrid", "precomputed"])
def test_ties_go_to_the_lower_id_wherever_items_lie_in_memory(backend, rng, method):
    # Every vector six times: their scores are equal, or nearly so.
    few = clustered_vectors(rng, n=20, d=4)
    which = rng.permutation(np.repeat(np.arange(20), 6))
    index = hg.build_index(few[which], neighbors=12, dtype="float64", backend=backend)
    index = index.precompute(keep=120, rtol=1e-12)
    assert np.any(np.diff(backend.to_numpy(index.state.numbering.order)) < 0)
    ranking = index.search(few, k=40, method=method)
    for ids, scores in zip(ranking.ids, ranking.scores, strict=True):
        same = (scores[1:] == scores[:-1]) & (scores[1:] > 0)  # zeros come by similarity
        assert np.all(ids[1:][same] > ids[:-1][same])
    if method == "nn":
        # The first ones are the query itself six times over, by their ids.
        for query, ids in enumerate(ranking.ids):
            np.testing.assert_array_equal(ids[:6], np.flatnonzero(which == query))


def test_one_inverse_serves_all_threads_and_several_alphas(rng, monkeypatch):
    index = hg.build_index(clustered_vectors(rng, n=200), neighbors=8, backend="numpy")
    made, inverted = [], GalerkinBasis._inverted

    def counted(self, alpha):
        made.append(alpha)
        return inverted(self, alpha)

    monkeypatch.setattr(GalerkinBasis, "_inverted", counted)
    alphas = [0.9, 0.95, 0.99, 0.9, 0.95, 0.99] * 4
    with ThreadPoolExecutor(8) as pool:
        searches = [
            pool.submit(index.search_items, [5], k=3, filter=hg.PageRank(alpha)) for alpha in alphas
        ]
    assert all(search.result().ids.shape == (1, 3) for search in searches)
    # That of 0.9 was made when the index was built.
    assert sorted(made) == [0.95, 0.99]


def test_sparse_eigenvectors_and_row_norms_are_made_once(backend, rng, monkeypatch):
    vectors = clustered_vectors(rng, n=80)
    index = hg.build_index(vectors, neighbors=8, basis="eigen", rank=6, backend=backend)
    made, dense_of = [], hg.EigenBasis.dense
    monkeypatch.setattr(hg.EigenBasis, "dense", lambda self: made.append(1) or dense_of(self))
    for _ in range(3):
        index.search(vectors[:9], k=5, method="shybrid", batch=2)
        index.search(vectors[:9], k=5, method="fsrw", batch=2)
    assert len(made) == 2


@pytest.mark.parametrize("method", ["nn", "hybrid"])
def test_the_top_k_is_the_head_of_the_full_ranking_at_every_k(backend, rng, method):
    # One-hot descriptors: nearly everything ties.
    vectors = np.eye(5)[rng.integers(0, 5, 40)]
    index = hg.build_index(vectors, neighbors=6, dtype="float64", backend=backend)
    queries = np.eye(5)[[0, 3, 4]]
    whole = index.search(queries, k=40, method=method, steps=4)
    for k in range(1, 40):
        part = index.search(queries, k=k, method=method, steps=4)
        np.testing.assert_array_equal(part.ids, whole.ids[:, :k])


def test_what_a_basis_keeps_is_its_own(backend, rng):
    vectors = clustered_vectors(rng, n=80)
    index = hg.build_index(vectors, neighbors=8, basis="eigen", rank=6, backend=backend)
    for method in ("fsrw", "shybrid"):  # they make the norms, and the sparse vectors, by places
        index.search(vectors[:3], k=5, method=method)
    host, basis = backend.to_numpy, index.basis
    norms = np.linalg.norm(host(basis.vectors), axis=1, keepdims=True)
    np.testing.assert_allclose(host(basis.row_norms()), norms, atol=1e-6)
    sparse_vectors = dense(backend, basis.sparsified(0.99).vectors)
    kept = sparse_vectors != 0
    np.testing.assert_allclose(sparse_vectors[kept], host(basis.vectors)[kept], atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.dtype("float32"), "float64"])
def test_a_dtype_may_be_one_of_numpy(rng, dtype):
    vectors = clustered_vectors(rng, n=30)
    lists = hg.nearest_neighbors(vectors, k=5, backend="numpy")
    for index in (
        hg.build_index(vectors, neighbors=5, dtype=dtype, backend="numpy"),
        hg.build_index_from_neighbors(lists.ids, lists.similarities, dtype=dtype, backend="numpy"),
        hg.build_index_from_graph(path(30), dtype=dtype, backend="numpy"),
    ):
        assert index.dtype == np.dtype(dtype).name


def test_vectors_that_overflow_are_refused_with_what_to_do(backend, rng):
    index = hg.build_index(clustered_vectors(rng, n=30), neighbors=5, backend=backend)
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(ValueError, match="Divide each vector by its norm"),
    ):
        hg.with_basis(index, np.full((30, 3), 1e30))


def test_queries_are_checked_where_they_live(backend, index, queries, monkeypatch):
    # A large query set on a device is not brought to the host and back.
    ids, similarities = first_stage(index, queries, 5)
    monkeypatch.setattr(query_sets, "select_backend", lambda name: pytest.fail(f"moved to {name}"))
    assert index.search(backend.asarray(queries, "float32"), k=3).ids.shape[1] == 3
    there = backend.asarray(ids), backend.asarray(similarities, "float32")
    assert index.rerank(*there, k=3).ids.shape[1] == 3
    assert index.search_items(backend.asarray(np.array([0, 4])), k=3).ids.shape == (2, 3)
