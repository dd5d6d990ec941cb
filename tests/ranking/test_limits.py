"""Allowed, excluded, good enough: against a ranking of everything that is cut afterwards."""

import numpy as np
import pytest
from conftest import TOLERANCE, clustered_vectors, dense, path, two_cliques

import hybrid_gpu as hg
from hybrid_gpu.ranking import local_ranking
from hybrid_gpu.ranking import state as states

N, K, QUERIES = 120, 9, 4
EXACT = [name for name, method in hg.METHODS.items() if method.exact and method.steps is None]


@pytest.fixture
def vectors(rng):
    return clustered_vectors(rng, n=N)


@pytest.fixture
def queries(rng):
    return clustered_vectors(rng, n=QUERIES)


def built(vectors, backend, method="hybrid"):
    """An index for a method."""
    basis = "eigen" if hg.METHODS[method].needs_eigenvectors else "aggregate"
    options = {"rank": 8} if basis == "eigen" else {}
    index = hg.build_index(
        vectors, neighbors=6, alpha=0.9, basis=basis, dtype="float64", backend=backend, **options
    )
    return index.precompute(keep=20) if method == "precomputed" else index


def how(method):
    """Options with which a ranking does not depend on k, which decides when solvers stop."""
    return {"steps": 12} if method in ("temporal", "truncated") else {}


def cut(whole, permitted, k):
    """The first k of a ranking of everything that are permitted (m, n)."""
    ids, scores = np.full((len(whole.ids), k), -1), np.full((len(whole.ids), k), -np.inf)
    for row, (items, values) in enumerate(zip(whole.ids, whole.scores, strict=True)):
        good = [at for at, item in enumerate(items) if item >= 0 and permitted[row, item]][:k]
        ids[row, : len(good)], scores[row, : len(good)] = items[good], values[good]
    return ids, scores


def check_equal(found, whole, permitted, method):
    """Equal to what is left of a ranking of everything.

    Local search guesses what arrives from far away, a little differently for another k.
    """
    ids, scores = cut(whole, permitted, found.ids.shape[1])
    assert np.array_equal(found.ids < 0, ids < 0)
    assert np.array_equal(np.isneginf(found.scores), found.ids < 0)
    for row, items in enumerate(found.ids):
        assert all(permitted[row, item] for item in items[items >= 0])
    if method == "local":
        known = ids >= 0
        np.testing.assert_allclose(found.scores[known], scores[known], atol=5e-3)
        return
    tolerance = 5e-3 if method in EXACT else TOLERANCE["float64"]
    np.testing.assert_allclose(found.scores, scores, rtol=tolerance, atol=tolerance)
    if method not in EXACT:
        np.testing.assert_array_equal(found.ids, ids)


def masks(rng):
    """Allowed items: a share of them, a few (2 %), nearly all, one, none, all."""
    few = np.zeros(N, bool)
    few[rng.choice(N, 3, replace=False)] = True
    one, nearly = np.zeros(N, bool), np.ones(N, bool)
    one[rng.integers(N)], nearly[rng.integers(N, size=2)] = True, False
    return (rng.random(N) < 0.3, few, nearly, one, np.zeros(N, bool), np.ones(N, bool))


@pytest.mark.parametrize("method", hg.METHODS)
def test_limits_leave_what_brute_force_leaves(backend, rng, vectors, queries, method):
    index = built(vectors, backend, method)
    whole = index.search(queries, k=N, method=method, **how(method))
    for mask in masks(rng):
        each = np.tile(mask, (QUERIES, 1))
        ways = [{"allowed": mask}, {"exclude": ~mask}, {"allowed": np.flatnonzero(mask)}]
        ways += [{"allowed": each}, {"exclude": [np.flatnonzero(~mask).tolist()] * QUERIES}]
        for way in ways:
            found = index.search(queries, k=K, method=method, **how(method), **way)
            assert found.report.method == method
            check_equal(found, whole, each, method)


@pytest.mark.parametrize("method", hg.METHODS)
@pytest.mark.parametrize("batch", [1, 3])
def test_every_query_has_limits_of_its_own(backend, rng, vectors, queries, method, batch):
    index = built(vectors, backend, method)
    whole = index.search(queries, k=N, method=method, **how(method))
    permitted = rng.random((QUERIES, N)) < np.array([[0.02], [0.1], [0.5], [0.98]])
    excluded = rng.integers(-1, N, (QUERIES, 7))
    for row in range(QUERIES):
        permitted[row, excluded[row][excluded[row] >= 0]] = False
    lists = [np.flatnonzero(row).tolist() for row in permitted]
    for way in ({"allowed": permitted}, {"allowed": lists}, {"allowed": lists, "exclude": []}):
        found = index.search(
            queries, k=K, method=method, exclude=way.pop("exclude", excluded), batch=batch,
            **how(method), **way,
        )  # fmt: skip
        check_equal(found, whole, permitted, method)


@pytest.mark.parametrize("method", ["nn", "hybrid", "local", "truncated", "temporal"])
@pytest.mark.parametrize("bare", [False, True])
def test_lists_of_another_engine_and_own_items_have_limits_too(backend, rng, vectors, method, bare):
    index = built(vectors, backend)
    if bare:  # nothing fills a ranking up where diffusion ends
        index = hg.build_index_from_neighbors(
            index.neighbors.ids, index.neighbors.similarities, alpha=0.9, backend=backend
        )
    ids = np.stack([rng.choice(N, 6, replace=False) for _ in range(QUERIES)])
    cosines = -np.sort(-rng.uniform(0.3, 1, ids.shape), axis=1)
    permitted = rng.random((QUERIES, N)) < 0.2
    for ask in (
        lambda **options: index.rerank(ids, cosines, method=method, **how(method), **options),
        lambda **options: index.search_items(ids[:, 0], method=method, **how(method), **options),
    ):
        check_equal(ask(k=K, allowed=permitted), ask(k=N), permitted, method)
        nothing = ask(k=K, allowed=[])
        assert "allowed and exclude leave no item" in nothing.report.notes
        assert np.all(nothing.ids == -1)
        assert np.all(np.isneginf(nothing.scores))


def test_two_percent_allowed_still_give_k_results(backend, rng, vectors, queries):
    index = built(vectors, backend)
    mask = np.zeros(N, bool)
    mask[rng.choice(N, K, replace=False)] = True
    for method in ("auto", "hybrid", "local", "nn"):
        found = index.search(queries, k=K, method=method, allowed=mask)
        for row in found.ids:
            assert sorted(row.tolist()) == np.flatnonzero(mask).tolist()


def test_ranking_of_allowed_items_is_right_where_their_scores_are_tiny(backend):
    # A long path, asked at one end: items at the other end are far below the residual of 3e-3.
    n = 60
    index = hg.build_index_from_graph(
        path(n), alpha=0.9, basis="none", dtype="float64", backend=backend
    )
    system = np.eye(n) - 0.9 * dense(index.backend, index.graph.adjacency)
    exact = 0.1 * np.linalg.solve(system, np.eye(n)[0])
    mask = np.arange(n) >= 35
    found = index.search_items([0], k=5, allowed=mask)
    assert found.ids[0].tolist() == [35, 36, 37, 38, 39]
    np.testing.assert_allclose(found.scores[0], exact[35:40], rtol=0.05)
    # Without the mask, nobody asks for them: the steps end before.
    assert index.search_items([0], k=5).report.steps < found.report.steps


def test_scores_spread_over_items_that_are_not_allowed(backend):
    index = hg.build_index_from_graph(path(7), alpha=0.9, dtype="float64", backend=backend)
    found = index.search_items([0], k=7, allowed=[6])  # through five items in between
    assert found.ids[0].tolist() == [6] + [-1] * 6
    assert found.scores[0, 0] > 0


def test_best_scores_only(backend, vectors, queries):
    index = built(vectors, backend)
    whole = index.search(queries, k=N, method="nn")
    least = float(np.sort(whole.scores[0])[-5])
    found = index.search(queries, k=20, method="nn", min_score=least)
    assert np.sum(found.ids[0] >= 0) == 5
    for row in range(QUERIES):
        good = whole.scores[row][:20] >= least
        np.testing.assert_array_equal(found.ids[row][good], whole.ids[row][:20][good])
        assert np.all(found.ids[row][~good] == -1)
        assert np.all(np.isneginf(found.scores[row][~good]))
    for method in ("hybrid", "local"):
        scores = index.search(queries, k=K, method=method).scores
        some = index.search(queries, k=K, method=method, min_score=float(scores[0, 3]))
        assert np.all(np.isneginf(some.scores) == (scores < scores[0, 3]))
    # Beyond float32: all, and none.
    assert np.all(index.search(queries, k=3, min_score=-1e300).ids >= 0)
    assert np.all(index.search(queries, k=3, min_score=1e300).ids == -1)
    with pytest.raises(ValueError, match="min_score must be finite"):
        index.search(queries, min_score=float("nan"))


def test_local_search_asks_for_more_and_leaves_the_rest_to_hybrid(
    backend, rng, vectors, queries, monkeypatch
):
    index = built(vectors, backend)
    asked = []
    local_search = type(index.backend).local_search

    def counted(self, problem, places, weights, k, effort):
        asked.append(k)
        return local_search(self, problem, places, weights, k, effort)

    monkeypatch.setattr(type(index.backend), "local_search", counted)
    own = index.search_items([3, 4], k=5, method="local", exclude=[[3], [4]])
    assert set(asked) == {6}
    assert 3 not in own.ids[0]
    assert 3 in own.ids[1] or 4 not in own.ids[1]
    asked.clear()
    monkeypatch.setattr(local_ranking, "_MOST_RANKED", 20)
    found = index.search(queries, k=5, method="local", allowed=np.arange(N) % 40 == 0)
    assert not asked
    assert not np.any(found.report.local.settled)
    assert "4 of 4 queries did not settle locally: hybrid solved them" in found.report.notes
    found = index.search(queries, k=2, method="local", allowed=np.arange(N) % 3 == 0)
    assert set(asked) == {12}


@pytest.mark.parametrize("seed", [19, 37])
def test_what_a_local_search_may_miss_is_counted_by_what_is_kept(seed, monkeypatch):
    # One in a hundred of 610 may be wrong, and all of them may be among the ten that are kept.
    rng = np.random.default_rng(seed)
    side, n = 20, 20**3
    corner = np.stack(np.unravel_index(np.arange(n), 3 * (side,)), axis=1)
    beside = [(corner + step) % side for step in np.eye(3, dtype=np.int64)]
    ends = [np.ravel_multi_index(tuple(near.T), 3 * (side,)) for near in beside]
    edges = np.stack([np.tile(np.arange(n), 3), np.concatenate(ends)], axis=1)
    index = hg.build_index_from_graph(
        edges, weights=rng.uniform(0.5, 1, len(edges)), n=n, alpha=0.99, backend="numpy"
    )
    items = rng.integers(0, n, 40)
    exact = index.search_items(items, k=610, method="hybrid", accuracy=1e-6).ids
    efforts, effort_for = [], local_ranking.effort_for

    def noted(*settings, **more):
        efforts.append(effort_for(*settings, **more))
        return efforts[-1]

    monkeypatch.setattr(local_ranking, "effort_for", noted)
    found = index.search_items(items, k=10, method="local", exclude=list(exact[:, :600]))
    assert {(effort.spare, effort.few, effort.changes) for effort in efforts} == {(0, 0, 1)}
    assert {effort.watched for effort in efforts} == {610}
    settled = np.asarray(found.report.local.settled)
    right = [np.isin(a, b).mean() for a, b in zip(found.ids, exact[:, 600:], strict=True)]
    assert np.all(np.asarray(right)[settled] >= 0.8)
    efforts.clear()
    index.search_items(items[:2], k=610, method="local")
    assert {effort.spare for effort in efforts} == {6}


def test_auto_takes_local_only_where_limits_close_few_items(vectors, monkeypatch):
    monkeypatch.setattr(states, "_ITEMS_WORTH", 50)
    monkeypatch.setattr(states, "_ITEMS_WORTH_OF_ENTRY", 1)
    monkeypatch.setattr(local_ranking, "_PART_OF_ITEMS", 10)
    index = hg.build_index(vectors, neighbors=6, alpha=0.9, backend="numpy")
    if not index.state.local:
        pytest.skip("no native core")

    def method(**limits):
        return index.search(vectors[:3], k=5, **limits).report.method

    assert method() == "local"
    assert method(exclude=[1, 2, 3]) == "local"
    assert method(exclude=[[1, 2], [3], []]) == "local"
    assert method(allowed=np.arange(N) > 5) == "local"
    assert method(exclude=np.arange(N) < 9) == "hybrid"
    assert method(allowed=[1, 2, 3]) == "hybrid"
    assert method(exclude=[[1] * 8, [], []]) == "hybrid"


def test_keys_name_what_is_allowed(backend, vectors, queries):
    keys = [f"item {number}" for number in range(N)]
    plain = built(vectors, backend)
    named = hg.build_index(
        vectors, neighbors=6, alpha=0.9, dtype="float64", keys=keys, backend=backend
    )
    items = [7, 11, 30, 55]
    for ids in (items, {*items}, [items] * QUERIES, [[], [7], items, [11, 30]]):
        if ids and isinstance(ids, list) and isinstance(ids[0], list):
            by_key = [[keys[item] for item in row] for row in ids]
        else:
            by_key = type(ids)(keys[item] for item in ids)
        for word in ("allowed", "exclude"):
            one = plain.search(queries, k=K, **{word: ids})
            other = named.search(queries, k=K, **{word: by_key})
            np.testing.assert_array_equal(one.ids, other.ids)
    with pytest.raises(
        ValueError, match="exclude must be keys of the index, which has no 'nobody'"
    ):
        named.search(queries, exclude=["nobody"])
    mask = np.arange(N) % 2 == 0
    assert np.all(named.search(queries, k=K, allowed=mask).ids % 2 == 0)


def test_masks_come_from_anywhere(backend, vectors, queries):
    index = built(vectors, backend)
    mask = np.arange(N) % 4 == 1
    expected = index.search(queries, k=K, allowed=mask).ids
    ways = [mask.tolist(), backend.asarray(mask), np.tile(mask, (QUERIES, 1)).tolist()]
    ways += [range(1, N, 4), set(range(1, N, 4)), np.arange(1, N, 4, dtype=np.uint8)]
    try:
        import pandas
    except ImportError:
        pass
    else:
        ways += [pandas.Series(mask, index=range(5, 5 + N)), pandas.Index(range(1, N, 4))]
    for way in ways:
        if way is ways[1] and backend.name == "strict":
            continue  # its arrays have no way to the host but one
        np.testing.assert_array_equal(index.search(queries, k=K, allowed=way).ids, expected)


def test_results_stay_where_the_queries_were(backend, vectors, queries):
    index = built(vectors, backend)
    permitted = np.random.default_rng(77).random((QUERIES, N)) < 0.3
    here = index.search(backend.asarray(queries), k=K, allowed=permitted)
    there = index.search(queries, k=K, allowed=permitted)
    np.testing.assert_array_equal(backend.to_numpy(here.ids), there.ids)


def test_replicas_take_limits(backend, rng, vectors):
    index = built(vectors, backend)
    permitted, queries = rng.random((30, N)) < 0.3, clustered_vectors(rng, n=30)
    together = hg.Replicas(index, [backend, backend])
    for options in ({"allowed": permitted}, {"allowed": permitted[0]}, {"min_score": 0.02}):
        one = index.search(queries, k=K, **options)
        other = together.search(queries, k=K, batch=4, **options)
        np.testing.assert_array_equal(one.ids < 0, other.ids < 0)
        np.testing.assert_allclose(one.scores, other.scores, atol=5e-3)
        if "allowed" in options:
            rows = np.broadcast_to(options["allowed"], (30, N))
            assert np.all(np.take_along_axis(rows, other.ids, axis=1))


@pytest.mark.parametrize(
    ("given", "fault", "message"),
    [
        (np.ones(N - 1, bool), ValueError, rf"a mask of shape \({N},\), or \(m, {N}\)"),
        (np.ones((QUERIES, N - 1), bool), ValueError, "a mask of shape"),
        (np.ones((2, 2, N), bool), ValueError, "a mask of shape"),
        (np.ones((3, N), bool), ValueError, "a row for each of the 4 queries.*got 3 rows"),
        ([[1], [2]], ValueError, "a row for each of the 4 queries.*got 2 rows"),
        ([N], ValueError, rf"ids in \[0, {N - 1}\], or -1 for none; got values from {N} to {N}"),
        ([-2], ValueError, "got values from -2 to -2"),
        ([1.5], TypeError, "dtype float64"),
        (["a"], TypeError, "a mask over the items, or a list of them"),
        ("a", TypeError, "got 'a'"),
        (3, TypeError, "got 3"),
        ({3: True}, TypeError, "a mask over the items"),
        (np.zeros((1, 1, 1), int), ValueError, r"got shape \(1, 1, 1\)"),
        ([[True] * N, [False]], ValueError, "rows of the same length"),
        (np.ma.masked_array(np.ones(N, bool)), TypeError, "masked array"),
    ],
)
def test_what_cannot_be_limits_is_refused(backend, vectors, queries, given, fault, message):
    index = built(vectors, backend)
    for word in ("allowed", "exclude"):
        with pytest.raises(fault, match=message):
            index.search(queries, k=3, **{word: given})


def test_memory_for_limits_is_asked_for(backend, vectors, queries, monkeypatch):
    index = built(vectors, backend)
    n, value = N, 8
    # Room for three queries at once without limits, half of what is available.
    monkeypatch.setattr(
        type(index.backend), "available_bytes", lambda self: 2 * 3 * (10 * n * value + 120 * K)
    )
    assert index.search(queries, k=K, method="hybrid").report.batch == 3
    mask = np.ones((QUERIES, N), bool)
    assert index.search(queries, k=K, method="hybrid", allowed=mask).report.batch == 2


def test_items_beside_allowed_ones_are_never_made_up(backend):
    index = hg.build_index_from_graph(two_cliques(4), alpha=0.9, backend=backend)
    found = index.search_items([0], k=5, allowed=[1, 2, 6])
    assert found.ids[0].tolist() == [1, 2, -1, -1, -1]  # 6 is in the other clique


@pytest.mark.parametrize(
    "made", [np.asarray, lambda one: np.asarray(one, "uint8"), list, lambda one: [one.tolist()] * 2]
)
def test_masks_of_integers_are_refused(vectors, made):
    index = hg.build_index(vectors, neighbors=6, backend="numpy")
    mask = np.zeros(index.n, int)
    mask[[3, 7]] = 1
    with pytest.raises(ValueError, match=r"all 0 or 1, as a mask has.*astype\(bool\)"):
        index.search(vectors[:2], k=3, allowed=made(mask))


@pytest.mark.parametrize("given", [[True, 2], [[True, False], [7, 8]]])
def test_masks_and_ids_are_not_mixed(vectors, given):
    with pytest.raises(TypeError, match="got both of them"):
        hg.build_index(vectors, neighbors=6, backend="numpy").search(
            vectors[:2], k=3, exclude=given
        )


def test_tables_are_read_by_their_rows(vectors):
    pandas = pytest.importorskip("pandas")
    index = hg.build_index(vectors, neighbors=6, backend="numpy")
    mask = np.zeros((2, index.n), bool)
    mask[:, [7, 8]] = True
    for given in (mask, np.array([[7, 8], [9, 3]])):
        found = index.search(vectors[:2], k=3, allowed=pandas.DataFrame(given))
        plain = index.search(vectors[:2], k=3, allowed=given)
        np.testing.assert_array_equal(found.ids, plain.ids)


def test_what_is_excluded_for_all_is_excluded_from_what_each_query_may_have(backend, vectors):
    index = hg.build_index(vectors, neighbors=6, backend=backend)
    each = [[1, 2, 3, 4], [2, 9]]
    found = index.search(vectors[:2], k=4, allowed=each, exclude=[2, 5], method="hybrid")
    ids = [set(row[row >= 0].tolist()) for row in backend.to_numpy(backend.asarray(found.ids))]
    assert ids == [{1, 3, 4}, {9}]
