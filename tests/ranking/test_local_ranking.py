"""Local rankings, through the index, against a dense solve by the user's ids."""

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import clustered_vectors, dense, path, two_cliques

import hybrid_gpu as hg
from hybrid_gpu.diffusion import local
from hybrid_gpu.ranking import local_ranking
from hybrid_gpu.ranking import state as states

N, NEIGHBORS = 600, 8


def exact_scores(index, observation, alpha):
    """The diffusion (m, n) of observations (m, n), by a dense solve."""
    n = observation.shape[1]
    system = np.eye(n) - alpha * dense(index.state.backend, index.graph.adjacency)
    return (1 - alpha) * np.linalg.solve(system, observation.T).T


def observed(index, ids, similarities):
    observation = np.zeros((len(ids), index.n))
    for row, (items, values) in enumerate(zip(ids, similarities, strict=True)):
        for item, value in zip(items, values, strict=True):
            if item >= 0:
                observation[row, item] += max(value, 0) ** 3
    return observation


def first_stage(rng, n, queries=6, width=5):
    ids = np.stack([rng.choice(n, width, replace=False) for _ in range(queries)])
    return ids, -np.sort(-rng.uniform(0.3, 1, (queries, width)), axis=1)


@pytest.fixture
def vectors(rng):
    return clustered_vectors(rng, n=N, clusters=30)


def mean_row(index):
    return index.graph.adjacency.data.shape[0] / index.n


def build(vectors, backend, **options):
    return hg.build_index(vectors, neighbors=NEIGHBORS, backend=backend, **options)


@pytest.mark.parametrize("alpha", [0.5, 0.9, 0.99, 0.999])
def test_local_rankings_are_those_of_a_dense_solve(backend, rng, vectors, dtype, alpha):
    index = build(vectors, backend, alpha=alpha, dtype=dtype)
    ids, similarities = first_stage(rng, N)
    found = index.rerank(ids, similarities, k=20, method="local")
    exact = exact_scores(index, observed(index, ids, similarities), alpha)
    own = np.take_along_axis(exact, found.ids, axis=1)
    scale = exact.max(axis=1, keepdims=True)
    # What arrives from far away is a guess, the same for all items that are near each other: scores
    # are off by up to some percent, all in the same direction, and their order is right.
    assert np.max(np.abs(found.scores - own) / scale) < 0.05
    best = -np.sort(-exact, axis=1)[:, :20]
    assert np.max(np.abs(-np.sort(-own, axis=1) - best) / scale) < 2e-3
    assert found.report.method == "local"
    assert found.report.residuals is None


@pytest.mark.parametrize("k", [1, 7, N])
def test_every_item_is_ranked_if_all_are_asked_for(backend, rng, vectors, k):
    index = build(vectors, backend, alpha=0.9)
    ids, similarities = first_stage(rng, N)
    found = index.rerank(ids, similarities, k=k, method="local")
    whole = index.rerank(ids, similarities, k=k, method="hybrid", accuracy=1e-6)
    assert found.ids.shape == (6, k)
    assert all(len(set(row)) == k for row in found.ids.tolist())
    np.testing.assert_allclose(found.scores, whole.scores, atol=2e-3 * whole.scores.max())
    # What diffusion does not reach comes behind the rest, in the same order.
    labels = index.graph.components
    for row, items in enumerate(ids):
        unreached = set(np.flatnonzero(~np.isin(labels, labels[items])).tolist())
        behind, expected = (
            [item for item in ranking.ids[row].tolist() if item in unreached]
            for ranking in (found, whole)
        )
        assert behind == expected
        assert np.all(found.scores[row][np.isin(found.ids[row], list(unreached))] == 0)


def test_a_query_gets_the_same_answer_in_any_company(backend, rng, vectors):
    index = build(vectors, backend, alpha=0.95, dtype="float64")
    ids, similarities = first_stage(rng, N, queries=9)
    whole = index.rerank(ids, similarities, k=30, method="local")
    for batch in (1, 4):
        parts = index.rerank(ids, similarities, k=30, method="local", batch=batch)
        np.testing.assert_allclose(parts.scores, whole.scores, rtol=1e-6)
        np.testing.assert_array_equal(parts.report.local.settled, whole.report.local.settled)


def test_isolated_hits_small_components_and_nothing_found(backend):
    # Two cliques of five, a path of four, and an isolated item, in a random order.
    rng = np.random.default_rng(71)
    parts = [two_cliques(5), path(4), np.zeros((1, 1))]
    affinity = sparse.block_diag([sparse.csr_array(part) for part in parts]).toarray()
    order = rng.permutation(len(affinity))
    affinity = affinity[np.ix_(order, order)]
    index = hg.build_index_from_graph(
        sparse.csr_array(affinity), alpha=0.9, dtype="float64", backend=backend
    )
    n, alone = len(affinity), int(np.flatnonzero(order == len(affinity) - 1)[0])
    ids = np.array([[alone, -1], [alone, 0], [-1, -1], [0, 0]])
    similarities = np.array([[0.9, 0.0], [0.9, 0.5], [0.0, 0.0], [0.8, 0.8]])
    found = index.rerank(ids, similarities, k=n, method="local")
    exact = exact_scores(index, observed(index, ids, similarities), 0.9)
    for row in range(4):
        reached = np.flatnonzero(exact[row] > 0)
        told = found.ids[row][found.scores[row] > 0]
        assert set(told) == set(reached)
        np.testing.assert_allclose(found.scores[row][: told.size], exact[row][told], rtol=1e-3)
    # Nothing was found for the third query, and nothing is made up.
    assert np.all(found.ids[2] == -1)
    assert bool(np.all(found.report.local.settled))


def test_equal_scores_go_to_the_lower_id(backend):
    # A star: all leaves but the observed one have the same score.
    n = 40
    rows = np.concatenate([np.zeros(n - 1, int), np.arange(1, n)])
    columns = np.concatenate([np.arange(1, n), np.zeros(n - 1, int)])
    star = sparse.csr_array((np.ones(2 * n - 2), (rows, columns)), shape=(n, n))
    index = hg.build_index_from_graph(star, alpha=0.9, dtype="float64", backend=backend)
    found = index.rerank([[7]], [[1.0]], k=12, method="local")
    others = [item for item in range(1, n) if item != 7]
    assert set(found.ids[0, :2]) == {0, 7}
    assert found.ids[0, 2:].tolist() == others[:10]


def test_duplicates_are_all_found(backend, rng):
    vectors = np.concatenate(
        [np.repeat(rng.standard_normal((1, 8)), 12, axis=0), clustered_vectors(rng, n=200)]
    )
    index = build(vectors, backend, alpha=0.9)
    found = index.search(vectors[:1], k=8, method="local")
    whole = index.search(vectors[:1], k=8, method="hybrid", accuracy=1e-6)
    np.testing.assert_allclose(found.scores, whole.scores, rtol=5e-3)


def test_queries_that_do_not_settle_are_solved_whole(backend, rng, vectors, monkeypatch):
    index = build(vectors, backend, alpha=0.99)
    ids, similarities = first_stage(rng, N)
    monkeypatch.setattr(local_ranking, "ROOMS", (8, 16))
    found = index.rerank(ids, similarities, k=15, method="local")
    assert not np.any(found.report.local.settled)
    assert any("6 of 6 queries did not settle locally" in note for note in found.report.notes)
    whole = index.rerank(ids, similarities, k=15, method="hybrid")
    np.testing.assert_array_equal(found.ids, whole.ids)
    assert found.report.steps >= whole.report.steps
    np.testing.assert_allclose(found.scores, whole.scores, rtol=1e-5)


def test_more_room_is_tried_before_that(backend, rng, vectors, monkeypatch):
    index = build(vectors, backend, alpha=0.9)
    ids, similarities = first_stage(rng, N)
    usual = index.rerank(ids, similarities, k=15, method="local")
    monkeypatch.setattr(local_ranking, "ROOMS", (8, N))
    again = index.rerank(ids, similarities, k=15, method="local")
    assert np.all(again.report.local.settled)
    np.testing.assert_array_equal(again.ids, usual.ids)


def test_auto_takes_local_by_the_index_and_the_request_alone(rng, vectors, monkeypatch):
    monkeypatch.setattr(states, "_ITEMS_WORTH", N)
    monkeypatch.setattr(states, "_ITEMS_WORTH_OF_ENTRY", 1)
    index = build(vectors, "numpy", alpha=0.9)
    ids, similarities = first_stage(rng, N)
    expected = "local" if index.state.backend.searches_locally else "hybrid"

    def method(**options):
        return index.rerank(ids, similarities, **{"k": 3, **options}).report.method

    assert method() == method(batch=1) == method(accuracy="ranking") == expected
    assert method(k=4) == "hybrid"  # more than a two-hundredth of all items
    with monkeypatch.context() as patch:
        patch.setattr(local_ranking, "_MOST_RANKED", 2)
        assert method(k=3) == "hybrid"
        assert method(k=2) == expected
    for options in ({"steps": 5}, {"rtol": 1e-3}, {"accuracy": 1e-3}):
        assert method(**options) == "hybrid"
    assert method(degree_correction=True) == method(filter=hg.HeatKernel(2.0)) == "hybrid"
    # Dense graphs are solved whole: rows of more than one item in so many.
    for worth, expected_then in ((N / mean_row(index) - 1, expected), (N, "hybrid")):
        monkeypatch.setattr(states, "_ITEMS_WORTH_OF_ENTRY", worth)
        dense_index = build(vectors, "numpy", alpha=0.9)
        assert dense_index.rerank(ids, similarities, k=3).report.method == expected_then
    eigen = hg.with_basis(index, "eigen", rank=5)
    assert eigen.rerank(ids, similarities, k=3).report.method == "hybrid"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 5}, "neither steps nor rtol"),
        ({"rtol": 1e-4}, "neither steps nor rtol"),
        ({"accuracy": 1e-4}, "neither steps nor rtol"),
        ({"filter": hg.HeatKernel(2.0)}, "Use method='hybrid'"),
        ({"degree_correction": True}, "Leave degree_correction out"),
    ],
)
def test_what_local_cannot_do_is_refused(vectors, options, words):
    index = build(vectors, "numpy")
    with pytest.raises(ValueError, match=words):
        index.search(vectors[:2], k=5, method="local", **options)


def test_local_needs_groups(vectors):
    index = build(vectors, "numpy", basis="eigen", rank=5)
    with pytest.raises(ValueError, match="needs groups of items, and the index has eigenvectors"):
        index.search(vectors[:2], k=5, method="local")


def test_walk_is_stored_with_the_index(backend, rng, vectors, tmp_path, monkeypatch):
    index = build(vectors, backend, alpha=0.9)
    ids, similarities = first_stage(rng, N)
    found = index.rerank(ids, similarities, k=15, method="local")
    index.save(tmp_path / "index")

    def made_anew(*_):
        raise AssertionError("the walk is not made a second time")

    monkeypatch.setattr(local, "_paced_walk", made_anew)
    again = hg.load_index(tmp_path / "index", backend=backend)
    same = again.rerank(ids, similarities, k=15, method="local")
    np.testing.assert_array_equal(same.ids, found.ids)
    np.testing.assert_array_equal(same.scores, found.scores)


def test_a_saved_index_has_its_walk_before_any_search(vectors, tmp_path, monkeypatch):
    monkeypatch.setattr(states, "_ITEMS_WORTH", N)
    monkeypatch.setattr(states, "_ITEMS_WORTH_OF_ENTRY", 1)
    index = build(vectors, "numpy", alpha=0.9)
    assert index.state.basis.kept_walk(0.9) is None  # a build does not wait for it
    index.save(tmp_path / "index")
    loaded = hg.load_index(tmp_path / "index", backend="numpy")
    made = loaded.state.basis.kept_walk(0.9) is not None
    assert made == index.state.backend.searches_locally


def test_index_that_grew_is_searched_locally(backend, rng, vectors):
    index = build(vectors[: N // 2], backend, alpha=0.9).add(vectors[N // 2 :]).remove([3, 5])
    ids, similarities = first_stage(rng, index.n)
    found = index.rerank(ids, similarities, k=15, method="local")
    whole = index.rerank(ids, similarities, k=15, method="hybrid", accuracy=1e-6)
    np.testing.assert_allclose(found.scores, whole.scores, atol=2e-3 * whole.scores.max())


def test_effort_is_what_the_docs_say():
    usual = local.effort_for(100, 0.99, 65_536)
    assert usual.fewest == pytest.approx(3000, abs=1)
    limits = (usual.drift, usual.calm, usual.tolerance, usual.gap, usual.watched)
    assert limits == pytest.approx((0.0025, 0.0005, 5e-4, 3, 100))
    # Of fewer than a hundred, none may be wrong.
    short = local.effort_for(99, 0.99, 65_536)
    assert (short.gap, short.tolerance, short.watched) == pytest.approx((2, 2.5e-4, 100))
    lengths = (1, 99, 100, 199, 200, 399, 400, 1000)
    efforts = [local.effort_for(k, 0.99, 65_536) for k in lengths]
    assert [effort.spare for effort in efforts] == [0, 0, 1, 1, 2, 3, 4, 10]
    assert [effort.gap for effort in efforts] == [2, 2, 3, 3, 3, 3, 2, 2]
    # What comes from far away arrives slowly.
    patient = local.effort_for(100, 0.999, 65_536)
    assert (patient.drift, patient.calm) == pytest.approx((0.00025, 0.00005))
    assert patient.fewest == pytest.approx(usual.fewest, abs=1)
    assert local.effort_for(100, 0.9, 65_536).fewest == pytest.approx(3000 / 10**0.5, abs=1)
    assert local.effort_for(100, 0.99, 9000).fewest == 900
    assert [local.most_room(n) for n in (50, 20_000, 22_000, 100_000)] == [
        *(50, 20_000, 20_000, 75_000)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["random", "hubs"])
def test_graphs_without_near_and_far_are_ranked_right_where_they_settle(rng, kind):
    n, degree = 8000, 12
    low = np.repeat(np.arange(1, n), degree // 2)
    # Joined to anybody, or to whoever came early: the earliest have the most neighbors.
    share = rng.random(low.size) ** (1 if kind == "random" else 3)
    edges = low, (share * low).astype(np.int64)
    weights = sparse.csr_array((np.ones(low.size), edges), (n, n))
    affinity = sparse.csr_array(weights + weights.T)
    index = hg.build_index_from_graph(affinity, alpha=0.99, backend="numpy")
    precise = hg.build_index_from_graph(affinity, alpha=0.99, dtype="float64", backend="numpy")
    items = rng.choice(n, 60, replace=False)
    for k in (50, 100, 400):
        found = index.search_items(items, k=k, method="local")
        exact = precise.search_items(items, k=k, method="hybrid", rtol=1e-7)
        own = precise.search_items(items, k=n, method="hybrid", rtol=1e-7)
        settled = np.asarray(found.report.local.settled)
        assert settled.any()
        for row in np.flatnonzero(settled):
            scores = np.empty(n)
            scores[own.ids[row]] = own.scores[row]
            # Who is beside the last within one part in ten thousand is as good as it.
            enough = scores[found.ids[row]] >= exact.scores[row, -1] * (1 - 1e-4)
            assert np.mean(enough) >= 0.99


def test_few_changes_are_within_three_roots_of_a_percent():
    for k in (1, 99, 100, 399, 400, 401, 999, 1000, 5000, 10**6):
        few = local.effort_for(k, 0.9, 10**6).few
        assert few + 3 * few**0.5 <= k / 100 + 1e-9
        assert few + 1 + 3 * (few + 1) ** 0.5 > k / 100
    # Rankings of up to a few hundred items are held to the same limits as before.
    assert local.effort_for(100, 0.9, 10**6).drift == local.effort_for(399, 0.9, 10**6).drift


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.9, 0.99])
def test_long_rankings_that_settle_are_right(rng, alpha):
    vectors = clustered_vectors(rng, n=40_000, d=12, clusters=200).astype("float32")
    index = hg.build_index(vectors, neighbors=20, alpha=alpha, basis="aggregate", backend="numpy")
    items = rng.choice(index.n, 48, replace=False)
    found = index.search_items(items, k=1000, method="local")
    exact = index.search_items(items, k=1000, method="hybrid", rtol=1e-5)
    right = [np.isin(a, b).mean() for a, b in zip(exact.ids, found.ids, strict=True)]
    settled = np.asarray(found.report.local.settled)
    assert settled.sum() >= 12
    assert np.mean(np.asarray(right)[settled] >= 0.99) >= 0.97


def test_pace_of_a_line_is_found():
    # On a line, a group of s items in a row hands on s times too fast: the cut between two groups
    # is one edge of 2 s, and what takes a step there takes s steps on the items.
    n, size, alpha = 6000, 10, 0.999
    index = hg.build_index_from_graph(
        line(n),
        alpha=alpha,
        rank=n // size,
        dtype="float64",
        backend="numpy",
    )
    index.rerank([[n // 2]], [[1.0]], k=5, method="local")
    assert size / 3 < index.state.basis.walks.find(alpha).slowdown < 3 * size


def line(n):
    ones = np.ones(n - 1)
    return sparse.csr_array(sparse.diags_array([ones, ones], offsets=[-1, 1]))


@pytest.mark.parametrize("seed", [23, 41])
def test_wrong_items_of_settled_queries_are_nearly_right(seed):
    # Random graphs of equal degrees: no near and far, and scores that are nearly the same.
    rng, n = np.random.default_rng(seed), 24_000
    rounds = [rng.permutation(n) for _ in range(3)]
    edges = np.concatenate([np.stack([one, np.roll(one, 1)], axis=1) for one in rounds])
    index = hg.build_index_from_graph(edges, n=n, alpha=0.9, backend="numpy")
    items, k = rng.integers(0, n, 40), 100
    exact = index.search_items(items, k=n, method="hybrid", accuracy=1e-6)
    scores = np.zeros((len(items), n))
    np.put_along_axis(scores, exact.ids, exact.scores, axis=1)
    found = index.search_items(items, k=k, method="local")
    settled = np.asarray(found.report.local.settled)
    worst = np.take_along_axis(scores, found.ids, axis=1).min(axis=1)
    assert settled.any()
    assert np.all((worst >= 0.99 * exact.scores[:, k - 1])[settled])
    close = index.search_items(items, k=k, method="hybrid", accuracy=1e-5)
    agreed = [np.isin(a, b).mean() for a, b in zip(close.ids, exact.ids[:, :k], strict=True)]
    assert np.min(agreed) >= 0.99
