import numpy as np
import pytest

import hybrid_gpu as hg
from hybrid_gpu.ranking.top_items import Wanted, best_items


def rank(backend, scores, k, similarities=None):
    asked = []

    def give():
        asked.append(True)
        return backend.asarray(np.array(similarities, dtype="float64"))

    best = hg.top_items(
        backend.asarray(np.array(scores, dtype="float64")),
        k=k,
        similarities=None if similarities is None else give,
        backend=backend,
    )
    return backend.to_numpy(best.ids), backend.to_numpy(best.scores), bool(asked)


def test_best_items_come_first_and_ties_go_to_the_lower_id(backend):
    ids, scores, _ = rank(backend, np.array([[1.0, 2, 2, 0, 3]]).T, 4)
    assert ids.tolist() == [[4, 1, 2, 0]]
    assert scores.tolist() == [[3, 2, 2, 1]]


def test_unreached_items_come_by_similarity_before_negative_scores(backend):
    scores = np.array([[0, 0.5, 0, -0.1, 0, -0.2, 0.1]]).T
    similarities = [[0.2, 0.0, -0.9, 1.0, 0.7, 1.0, 0.0]]
    ids, values, _ = rank(backend, scores, 7, similarities)
    assert ids.tolist() == [[1, 6, 4, 0, 2, 3, 5]]
    assert values.tolist() == [[0.5, 0.1, 0, 0, 0, -0.1, -0.2]]


def test_similarities_are_asked_for_only_when_diffusion_fell_short(backend):
    scores = np.array([[0.5, 0.4, 0.0], [0.1, 0.2, 0.3]]).T
    similarities = [[0.0, 0.0, 0.9], [0.0, 0.0, 0.0]]
    assert not rank(backend, scores, 2, similarities)[2]
    assert rank(backend, scores, 3, similarities)[2]


def test_filled_queries_return_to_their_places(backend, rng):
    scores = np.maximum(rng.standard_normal((30, 11)) - 1, 0) * (np.arange(11) % 3 != 0)
    similarities = rng.uniform(-1, 1, (11, 30))
    ids, values, _ = rank(backend, scores, 12, similarities)
    for query in range(11):
        order = np.lexsort((np.arange(30), -similarities[query], -scores[:, query]))[:12]
        assert ids[query].tolist() == order.tolist()
        np.testing.assert_array_equal(values[query], scores[order, query])


def test_every_item_is_ranked_once(backend, rng):
    scores = rng.integers(-1, 2, (25, 4)).astype(float)
    ids, _, _ = rank(backend, scores, 25, rng.uniform(-1, 1, (4, 25)))
    assert all(sorted(line) == list(range(25)) for line in ids.tolist())


def test_items_that_nothing_speaks_for_are_left_out(backend):
    nothing = -np.inf
    scores = np.array([[0, 0.5, 0, -0.1, 0]]).T
    ids, values, _ = rank(backend, scores, 5, [[nothing, 0.0, -1.0, nothing, 0.3]])
    assert ids.tolist() == [[1, 4, 2, 3, -1]]
    assert values.tolist() == [[0.5, 0, 0, -0.1, nothing]]
    ids, values, _ = rank(backend, np.zeros((3, 1)), 2, [[nothing] * 3])
    assert (ids.tolist(), values.tolist()) == ([[-1, -1]], [[nothing, nothing]])


def test_more_items_than_there_are_is_all_of_them(backend):
    assert rank(backend, np.array([[1.0, 3, 2]]).T, 9)[0].tolist() == [[1, 2, 0]]


@pytest.mark.parametrize("k", [0, -3])
def test_impossible_k_is_refused(backend, k):
    with pytest.raises(ValueError, match="k must be at"):
        rank(backend, np.ones((5, 1)), k)


def test_negative_scores_keep_their_order_however_small_they_are(backend):
    # Apart by less than the rounding of the largest score, in the order opposite to their ids.
    scores = np.array([[-3e-20, -2e-20, -1e-20, 0, 1.0, -4.0]]).T
    ids, values, _ = rank(backend, scores, 6, [[0.0, 0, 0, -np.inf, 0, 0]])
    assert ids.tolist() == [[4, 2, 1, 0, 5, -1]]
    assert values.tolist() == [[1, -1e-20, -2e-20, -3e-20, -4, -np.inf]]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_nan_is_found_among_ties(backend, k):
    scores = backend.asarray(np.array([[np.nan], [0], [0], [0]], "float32"))
    with pytest.raises(hg.HybridGpuError, match="hold NaN"):
        hg.top_items(scores, k=k, backend=backend)


def test_nothing_is_asked_where_enough_positive_scores_are_known(backend):
    scores = backend.asarray(np.array([[0.5, 0.0], [0.2, 0.0], [0.0, 0.1]]))

    def similarities():
        return backend.asarray(np.array([[0.1, 0.2, 0.3], [0.9, 0.1, 0.2]]))

    def ids(k, filled):
        wanted = Wanted(k, similarities, filled=filled)
        return backend.to_numpy(best_items(scores, wanted, backend).ids).tolist()

    assert ids(1, 1) == ids(1, 0) == [[0], [2]]
    # Whoever says more than is true gets ties by number.
    assert ids(2, 1) == ids(2, 0) == [[0, 1], [2, 0]]
    assert ids(3, 2) == [[0, 1, 2], [2, 0, 1]]
