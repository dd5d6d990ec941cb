"""Explanations of ranks, against dense solves and sums over all walks."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import clustered_vectors, dense, path, random_affinity, two_cliques

import hybrid_gpu as hg
from hybrid_gpu.index.explain import Asked, explain_items

ALPHA = 0.8


@pytest.fixture
def vectors(rng):
    return clustered_vectors(rng, n=90)


def build(vectors, backend, dtype="float64", **options):
    options = {"neighbors": 5, "alpha": ALPHA, "dtype": dtype, "backend": backend, **options}
    return hg.build_index(vectors, **options)


def matrix_of(index):
    return dense(index.backend, index.graph.adjacency).astype(float)


def observation_of(explanation, n):
    observed = np.zeros(n)
    for hit in explanation.hits:
        observed[hit.id] += hit.weight
    return observed


def brute_force(matrix, observed, goal, alpha=ALPHA):
    """The largest contribution of a route to an item, from each start."""
    n, best = len(matrix), {}
    others = [one for one in range(n) if one != goal]
    for length in range(n):
        for middle in itertools.permutations(others, length):
            places = (*middle, goal)
            factors = [alpha * matrix[a, b] for a, b in itertools.pairwise(places)]
            value = (1 - alpha) * observed[places[0]] * math.prod(factors)
            if value > best.get(places[0], (0, None))[0]:
                best[places[0]] = (value, places)
    return best


def test_score_is_the_sum_over_all_walks(backend, dtype, tolerance, vectors):
    index = build(vectors, backend, dtype)
    query = vectors[3] + 0.2
    found = hg.explain(index, query, 3)
    matrix, observed = matrix_of(index), observation_of(found, index.n)
    # Walks of every length, added up one by one: (1 - alpha) alpha^t W^t y.
    spread, total = observed, np.zeros(index.n)
    for _ in range(200):
        total += (1 - ALPHA) * spread
        spread = ALPHA * (matrix @ spread)
    for item in (3, 0, 17, int(np.argmin(total))):
        one = hg.explain(index, query, item)
        np.testing.assert_allclose(one.score, total[item], atol=max(one.error, tolerance))
        assert one.reached == (total[item] > 0)


def test_contributions_of_the_hits_add_up_to_the_score(backend, dtype, tolerance, vectors):
    index = build(vectors, backend, dtype)
    matrix = matrix_of(index)
    solved = (1 - ALPHA) * np.linalg.inv(np.eye(index.n) - ALPHA * matrix)
    for item in (2, 40, 89):
        one = hg.explain(index, vectors[40], item, query_neighbors=7)
        assert len(one.hits) == 7
        assert sum(hit.contribution for hit in one.hits) == pytest.approx(one.score, rel=1e-12)
        for hit in one.hits:
            expected = hit.weight * solved[item, hit.id]
            np.testing.assert_allclose(hit.contribution, expected, atol=tolerance)
            assert hit.weight == pytest.approx(hit.similarity**index.gamma, rel=1e-5)
        if one.score:
            assert sum(hit.share for hit in one.hits) == pytest.approx(1)


@pytest.mark.parametrize("seed", [31, 32, 33, 34])
def test_path_is_the_best_of_all_routes(backend, dtype, seed):
    rng = np.random.default_rng(seed)
    dense_affinity = np.triu(rng.random((6, 6)) * (rng.random((6, 6)) < 0.5), 1)
    affinity = sparse.csr_array(dense_affinity + dense_affinity.T)
    index = hg.build_index_from_graph(affinity, alpha=ALPHA, dtype=dtype, backend=backend)
    matrix, ids, cosines = matrix_of(index), [1, 4, 5], [0.9, 0.7, 0.2]
    for item in range(6):
        one = hg.explain(index, ids, item, similarities=cosines, paths=3)
        best = brute_force(matrix, observation_of(one, 6), item)
        expected = sorted((value for value, _ in best.values()), reverse=True)
        got = [shown.contribution for shown in one.paths]
        np.testing.assert_allclose(got, expected, rtol=1e-5)
        for shown in one.paths:
            assert shown.ids[-1] == item
            assert best[shown.ids[0]][0] == pytest.approx(shown.contribution, rel=1e-5)
            weights = [matrix[a, b] for a, b in itertools.pairwise(shown.ids)]
            np.testing.assert_allclose(shown.weights, weights, rtol=1e-6)
            affinities = [dense_affinity[min(p), max(p)] for p in itertools.pairwise(shown.ids)]
            np.testing.assert_allclose(shown.affinities, affinities, rtol=1e-5)
            assert shown.share == pytest.approx(shown.contribution / one.score)


def test_ranks_are_those_of_a_search(backend, vectors):
    index = build(vectors, backend)
    query = vectors[8] * 1.5
    plain = index.search([query], k=90, method="nn").ids[0].tolist()
    diffused = index.search([query], k=90, method="hybrid", accuracy=1e-12).ids[0].tolist()
    corrected = index.search([query], k=90, method="hybrid", accuracy=1e-12, degree_correction=True)
    order = corrected.ids[0].tolist()
    items = list(range(0, 90, 4))
    pairs = zip(
        explain_items(index, Asked(query), items),
        explain_items(index, Asked(query, degree_correction=True), items),
        strict=True,
    )
    for item, (one, two) in zip(items, pairs, strict=True):
        assert (one.plain_rank, one.rank) == (plain.index(item) + 1, diffused.index(item) + 1)
        assert two.rank == order.index(item) + 1
        np.testing.assert_allclose(two.score, corrected.scores[0, two.rank - 1], atol=1e-9)
        assert two.paths == () or two.paths[0].share == pytest.approx(one.paths[0].share)


def test_of_equal_items_the_lower_id_has_the_better_rank(backend):
    vectors = [[1.0, 0.0], [0.0, 1.0]] * 4
    index = hg.build_index(vectors, neighbors=1, alpha=ALPHA, backend=backend)
    order = index.search([[1.0, 0.0]], k=8, method="nn").ids[0].tolist()
    assert order == [0, 2, 4, 6, 1, 3, 5, 7]
    every = explain_items(index, Asked([1.0, 0.0]), range(8))
    assert [one.plain_rank for one in every] == [order.index(item) + 1 for item in range(8)]
    assert sorted(one.rank for one in every) == list(range(1, 9))


def test_items_behind_every_reached_one_are_ranked_by_similarity(backend, rng):
    index = build(np.vstack([clustered_vectors(rng, n=40), -10 * np.ones((1, 8))]), backend)
    order = index.search(np.ones((1, 8)), k=41, accuracy=1e-12).ids[0].tolist()
    every = explain_items(index, Asked(np.ones(8)), range(41))
    unreached = [one for one in every if not one.reached]
    assert unreached
    for one in unreached:
        assert (one.score, one.paths, one.rank) == (0.0, (), order.index(one.id) + 1)
        assert "diffusion does not reach it" in one.notes[0]
        assert "not reached" in repr(one)
        assert all(hit.contribution == 0 == hit.share for hit in one.hits)


def test_hits_of_another_engine_are_taken_as_rerank_takes_them(backend, vectors):
    index = build(vectors, backend)
    ids, values = [5, 9, -1, 30, 5], [0.9, 0.8, 0.7, 0.6, 0.5]
    ranking = index.rerank([ids], [values], k=90, query_neighbors=None, accuracy=1e-12)
    for item in (5, 9, 30, 77):
        one = hg.explain(index, ids, item, similarities=values, query_neighbors=None)
        place = ranking.ids[0].tolist().index(item)
        assert one.rank == place + 1
        np.testing.assert_allclose(one.score, ranking.scores[0, place], atol=1e-9)
        assert [hit.id for hit in one.hits] == [5, 9, 30]  # one that comes twice is one hit
        assert (one.plain_rank is None) == (item == 77) == (one.similarity is None)
    distances = hg.explain(index, [5], 9, similarities=[0.5], metric="cosine-distance")
    assert distances.hits[0].similarity == pytest.approx(0.5)


def test_an_item_is_its_own_only_hit(backend, vectors):
    index = build(vectors, backend)
    ranking = index.search_items([4], k=90, accuracy=1e-12)
    one = hg.explain(index, 4, 4)
    assert ([hit.id for hit in one.hits], one.paths[0].ids, one.rank) == ([4], (4,), 1)
    second = int(ranking.ids[0, 1])
    other = hg.explain(index, np.int64(4), second)
    assert (other.rank, other.paths[0].ids[0]) == (2, 4)
    assert other.hits[0].share == pytest.approx(1)


def test_negative_weights_push_down_along_their_own_path(backend):
    index = hg.build_index_from_graph(path(5), alpha=ALPHA, dtype="float64", backend=backend)
    one = hg.explain(index, {0: 1.0, 4: -0.5}, 3, paths=2)
    ranking = index.search_items([{0: 1.0, 4: -0.5}], k=5, accuracy=1e-12)
    assert one.rank == ranking.ids[0].tolist().index(3) + 1
    assert one.score == pytest.approx(dict(ranking[0])[3], abs=1e-9)
    assert [hit.contribution > 0 for hit in one.hits] == [True, False]
    assert {shown.ids: shown.contribution > 0 for shown in one.paths} == {
        (4, 3): False,
        (0, 1, 2, 3): True,
    }


def test_no_order_of_the_items_changes_an_explanation(backend, rng):
    affinity = random_affinity(rng, n=40)
    order = rng.permutation(40)
    moved = sparse.csr_array(affinity[order][:, order])
    options = {"alpha": ALPHA, "dtype": "float64", "backend": backend}
    index, other = (hg.build_index_from_graph(one, **options) for one in (affinity, moved))
    place = np.argsort(order)
    hits, cosines = [3, 20, 11], [0.9, 0.8, 0.5]
    for item in (0, 3, 17, 39):
        one = hg.explain(index, hits, item, similarities=cosines, paths=2)
        two = hg.explain(other, place[hits], int(place[item]), similarities=cosines, paths=2)
        assert two.score == pytest.approx(one.score, abs=1e-10)
        assert (one.reached, one.plain_rank) == (two.reached, two.plain_rank)
        shown = [order[list(path.ids)].tolist() for path in two.paths]
        assert shown == [list(path.ids) for path in one.paths]


def test_components_never_explain_each_other(backend):
    index = hg.build_index_from_graph(two_cliques(), alpha=ALPHA, backend=backend)
    one = hg.explain(index, [0, 5], 6, similarities=[0.9, 0.5], paths=2)
    assert [hit.contribution > 0 for hit in one.hits] == [False, True]
    assert [shown.ids for shown in one.paths] == [(5, 6)]
    assert not hg.explain(index, 0, 6).reached
    # A hit without weight gives nothing, whatever edges lead from it.
    assert not hg.explain(index, [0, 5], 6, similarities=[0.9, -0.5]).reached
    assert hg.explain(index, 0, 6).rank is None  # nothing is known of it


def test_keys_go_in_and_come_out(backend, vectors):
    names = [f"<b>{i}</b>" for i in range(90)]
    index, plain = build(vectors, backend, keys=names), build(vectors, backend)
    item = int(plain.search_items([4], k=3).ids[0, 2])
    one, two = hg.explain(index, names[4], names[item]), hg.explain(plain, 4, item)
    assert (one.key, one.id) == (names[item], item)
    assert one.paths[0].keys == tuple(names[i] for i in two.paths[0].ids)
    assert [hit.key for hit in one.hits] == [names[4]]
    lists = hg.explain(index, names[:2], names[9], similarities=[0.9, 0.8])
    assert [hit.key for hit in lists.hits] == names[:2]
    with pytest.raises(ValueError, match="has no 'unheard'"):
        hg.explain(index, names[4], "unheard")


def test_another_alpha_gives_other_shares(backend, vectors):
    index = build(vectors, backend)
    near, far = (hg.explain(index, vectors[4], 4, alpha=alpha) for alpha in (0.1, 0.99))
    assert (near.alpha, far.alpha) == (0.1, 0.99)
    assert near.paths[0].share > far.paths[0].share


@pytest.mark.parametrize("own", [0.1, 0.2, 0.25, 0.28])
def test_a_near_hit_of_little_weight_does_not_hide_a_better_one(backend, own):
    index = hg.build_index_from_graph(path(60), alpha=0.9, dtype="float64", backend=backend)
    best = 0.9**2 * 0.5**0.5 * 0.5  # of the weight of item 2, by the edges 2-1 and 1-0
    first, second = hg.explain(index, {0: own, 2: 1.0}, 0, paths=2).paths
    assert (first.ids, second.ids) == ((2, 1, 0), (0,))
    assert second.contribution / first.contribution == pytest.approx(own / best, rel=1e-9)


def test_a_score_that_is_small_beside_its_error_is_told(backend):
    index = hg.build_index_from_graph(path(60), alpha=0.5, dtype="float32", backend=backend)
    far, near = hg.explain(index, 0, 40), hg.explain(index, 0, 1)
    assert 100 * far.error > far.score
    assert any("the score is small" in note for note in far.notes)
    assert near.notes == ()


def test_signs_of_weights_do_not_cancel_in_the_error(backend, vectors):
    index = build(vectors, backend)
    plain, signed = (hg.explain(index, {3: 1.0, 8: weight}, 3).error for weight in (1.0, -1.0))
    assert signed == pytest.approx(plain, rel=1e-6)
    assert plain > 0


def test_distances_of_another_engine_are_taken_by_their_metric(backend, vectors):
    index = build(vectors, backend)
    cosines, distances = np.array([0.95, 0.7]), np.array([0.1, 0.6])  # of unit vectors: 2 - 2 c
    one = hg.explain(index, [3, 8], 5, similarities=cosines)
    two = hg.explain(index, [3, 8], 5, similarities=distances, metric="squared-l2")
    assert [hit.weight for hit in two.hits] == pytest.approx([hit.weight for hit in one.hits])
    assert two.score == pytest.approx(one.score)


def test_items_that_are_pushed_down_stand_behind_those_not_reached(backend, rng):
    # Two groups that no edges join; the query is against an item of the first.
    centers = np.repeat([[9.0, 0, 0], [0, 9.0, 0]], 10, axis=0)
    index = build(centers + rng.standard_normal((20, 3)), backend, neighbors=4)
    found = index.search_items([[0]], weights=[[-1.0]], k=20, accuracy=1e-10, method="temporal")
    for place, item in enumerate(found.ids[0].tolist(), 1):
        why = hg.explain(index, {0: -1.0}, item)
        assert why.rank == place
        assert (why.score < 0) == why.reached
        assert item < 10 or not why.reached


def test_with_an_alpha_of_0_every_hit_keeps_what_it_has(backend, vectors):
    index = build(vectors, backend)
    near = int(index.search_items([4], k=2).ids[0, 1])
    hit, other = (hg.explain(index, 4, item, alpha=0) for item in (4, near))
    assert hit.score == pytest.approx(1, abs=1e-6)
    assert [path.ids for path in hit.paths] == [(4,)]
    assert (other.score, other.paths) == (0, ())
    assert "no path carried anything" in repr(other)


def test_a_cut_search_is_told(backend):
    index = hg.build_index_from_graph(path(60), alpha=ALPHA, dtype="float64", backend=backend)
    assert "cut after 3 items" in hg.explain(index, 0, 50, most_visits=3).notes[0]


def test_several_items_at_once_are_explained_as_one_by_one(backend, vectors):
    index = build(vectors, backend)
    asked = Asked(vectors[1])
    for one in explain_items(index, asked, [1, 5, 60], paths=2):
        alone = hg.explain(index, vectors[1], one.id, paths=2)
        assert one.score == pytest.approx(alone.score, abs=1e-9)
        assert (one.rank, one.plain_rank) == (alone.rank, alone.plain_rank)
        assert [p.ids for p in one.paths] == [p.ids for p in alone.paths]


def test_the_graph_moves_to_the_host_once(backend, vectors):
    index = build(vectors, backend)
    assert index.state.host_edges() is index.state.host_edges()


@pytest.mark.parametrize(
    ("query", "item", "options", "message"),
    [
        (np.ones(8), [3], {}, "item must be one item"),
        (np.ones(8), True, {}, "item must be one item"),
        (np.ones(8), 90, {}, r"must lie in \[0, 89\]"),
        (np.ones(7), 3, {}, "8 dimensions; got 7"),
        (np.ones((2, 8)), 3, {}, "query must be a vector"),
        (True, 3, {}, "query must be a vector"),
        ([3, 4], 3, {}, "query|float"),
        (np.ones(8) * np.nan, 3, {}, "finite"),
        ([3, 4], 3, {"similarities": [0.5]}, "shape"),
        (3, 3, {"alpha": 1.5}, "alpha"),
        (3, 3, {"paths": 0}, "paths"),
        (3, 3, {"most_visits": 0}, "most_visits"),
        ({3: 0.0}, 3, {}, "some weight"),
    ],
)
def test_what_cannot_be_explained_is_refused(vectors, query, item, options, message):
    index = build(vectors, "numpy")
    with pytest.raises((ValueError, TypeError), match=message):
        hg.explain(index, query, item, **options)


def test_an_index_is_needed():
    with pytest.raises(TypeError, match="index must be"):
        hg.explain(np.ones((3, 3)), 0, 1)
