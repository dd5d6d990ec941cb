"""The number of neighbors that is chosen, and the recall of those that an engine found."""

import numpy as np
import pytest

import hybrid_gpu as hg
from hybrid_gpu.graph import neighbor_count
from hybrid_gpu.graph.neighbor_count import (
    best_first,
    chosen_count,
    measured_recall,
    widest_choice,
)
from hybrid_gpu.graph.neighbors import Neighbors
from hybrid_gpu.graph.vectors import unit_rows


def lists_of(ids, similarities, backend):
    return Neighbors(backend.asarray(ids), backend.asarray(similarities))


def isolated_with(lists, count, backend):
    """Items without an edge, by the graph itself."""
    graph = hg.reciprocal_graph(lists.cut(count), backend=backend)
    return graph.isolated


def rule(lists, backend):
    """The rule as docs/choosing.md writes it: graph after graph."""
    n, width = lists.ids.shape
    most = min(width, 50, max(10, int(n**0.5)))
    for count in range(min(15, most), most + 1):
        if isolated_with(lists, count, backend) <= 0.01 * n:
            return count
    return most


@pytest.mark.parametrize(
    ("n", "d", "hubs"), [(900, 3, 0), (700, 40, 0), (1200, 12, 30), (90, 5, 0)]
)
def test_the_rule_is_that_of_the_graphs_themselves(backend, rng, n, d, hubs):
    vectors = rng.standard_normal((n, d))
    if hubs:
        vectors[:hubs] = 0.1 * vectors[:hubs] + vectors.mean(axis=0) + 1
        vectors += 0.7
    lists = hg.nearest_neighbors(vectors, k=min(50, n - 1), knn="exact", backend=backend)
    assert chosen_count(lists, backend) == rule(lists, backend)


def test_what_is_chosen_lies_between_its_bounds():
    assert [widest_choice(n) for n in (2, 5, 11, 12, 99, 225, 400, 2499, 2500, 10**7)] == [
        1, 4, 10, 10, 10, 15, 20, 49, 50, 50
    ]  # fmt: skip


def pairs(n, width, backend, far):
    """Items 2i and 2i + 1 list each other at place ``far``; nothing else is mutual.

    The last 1 % of the items list nobody, and nobody lists them.
    """
    joined = n - n // 100
    assert joined % 2 == 0
    # Everybody lists others less than half way around, so that none of them lists it back.
    ahead = np.random.default_rng(31).choice(np.arange(2, joined // 2), width, replace=False)
    ids = np.full((n, width), -1)
    items = np.arange(joined)
    ids[:joined] = (items[:, None] + ahead) % joined
    ids[items, far[:joined] - 1] = items ^ 1
    similarities = np.tile(np.linspace(0.9, 0.5, width), (n, 1))
    similarities[joined:] = 0
    return lists_of(ids, similarities, backend)


def test_the_first_number_that_leaves_one_percent_alone_is_taken(backend):
    # 26 items of 2,600 are alone whatever the number: just 1 %.
    n, width = 2600, 50
    for far, expected in ((3, 15), (15, 15), (16, 16), (50, 50)):
        lists = pairs(n, width, backend, np.full(n, far))
        assert chosen_count(lists, backend) == expected
    far = np.full(n, 20)
    far[:2] = 40  # one pair too many that waits for a longer list
    assert chosen_count(pairs(n, width, backend, far), backend) == 40
    # An edge needs both ends: the later of the two places counts.
    for first, second in ((3, 31), (31, 3)):
        far = np.where(np.arange(n) % 2 == 0, first, second)
        assert chosen_count(pairs(n, width, backend, far), backend) == 31


def test_large_databases_are_looked_at_in_a_sample(backend, monkeypatch):
    monkeypatch.setattr(neighbor_count, "_SAMPLE", 100)
    n, width = 6000, 50
    # Half of the items are joined early; in whatever turns they come, a sample has both kinds.
    for late in (np.arange(n) >= n // 2, np.arange(n) % 4 < 2, np.arange(n) % 120 < 60):
        lists = pairs(n, width, backend, np.where(late, 44, 20))
        assert chosen_count(lists, backend) >= 44
    # Some 3 % of the items have their edge late: more than 1 % of the sample.
    monkeypatch.setattr(neighbor_count, "_SAMPLE", 1000)
    far = np.where(np.arange(n) < 200, 33, 18)
    assert chosen_count(pairs(n, width, backend, far), backend) >= 33


def test_a_single_item_has_nothing_to_choose(backend):
    index = hg.build_index_from_neighbors([[-1]], [[0.0]], backend=backend)
    assert index.search_items([0], k=1).ids.tolist() == [[0]]


def test_items_that_cannot_be_joined_do_not_count_as_joined(backend):
    n = 400
    ids = np.tile(np.arange(20), (n, 1))
    ids[:] = (np.arange(n)[:, None] + np.arange(1, 21)) % n
    back = (np.arange(n)[:, None] - np.arange(1, 21)) % n
    ids[:, 1::2] = back[:, :10]
    close = np.full((n, 20), 0.5)
    assert chosen_count(lists_of(ids, close, backend), backend) == 15
    # The same lists between items that point away from each other: no edge, and so the widest.
    assert chosen_count(lists_of(ids, -close, backend), backend) == 20
    assert chosen_count(lists_of(ids, 0 * close, backend), backend) == 20
    # An item that lists itself is not its own neighbor.
    own = np.tile(np.arange(n)[:, None], (1, 20))
    assert chosen_count(lists_of(own, close, backend), backend) == 20


@pytest.mark.parametrize("n", [2, 3, 12, 17])
def test_small_databases_take_what_there_is(backend, n):
    vectors = np.random.default_rng(7).standard_normal((n, 4))
    index = hg.build_index(vectors, backend=backend)
    assert index.state.origin.neighbors == min(n - 1, 10)
    assert index.search(vectors[:2], k=2).ids.shape == (2, 2)


def test_a_build_tells_what_it_chose(backend, rng):
    vectors = rng.standard_normal((400, 6))
    lists = hg.nearest_neighbors(vectors, k=20, knn="exact", backend=backend)
    expected = chosen_count(lists, backend)
    index = hg.build_index(vectors, knn="exact", backend=backend)
    assert index.neighbors.ids.shape == (400, expected)
    assert f"{expected} neighbors (chosen)" in repr(index)
    typed = hg.build_index(vectors, neighbors=expected, knn="exact", backend=backend)
    np.testing.assert_array_equal(
        backend.to_numpy(typed.neighbors.ids), backend.to_numpy(index.neighbors.ids)
    )
    assert "(chosen)" not in repr(typed)
    assert f"{expected} neighbors" in repr(typed)
    own = hg.build_index_from_neighbors(lists.ids, lists.similarities, backend=backend)
    assert own.neighbors.ids.shape == (400, expected)


def test_the_paper_s_settings_in_one_word(backend, rng):
    vectors = rng.standard_normal((120, 6))
    index = hg.build_index(vectors, **hg.PAPER, backend=backend)
    assert (index.state.origin.neighbors, index.gamma, index.alpha) == (50, 3.0, 0.99)
    with pytest.raises(TypeError):
        hg.PAPER["alpha"] = 0.5


@pytest.mark.parametrize("wrong", ["many", "", "15"])
def test_a_word_that_is_no_number_is_refused(wrong):
    with pytest.raises(ValueError, match="neighbors must be a number or 'auto'"):
        hg.build_index(np.eye(5), neighbors=wrong)


def test_own_lists_are_cut_by_similarity_not_by_place(backend, rng, monkeypatch):
    monkeypatch.setattr(neighbor_count, "_SORTED_TOGETHER", 128)
    vectors = rng.standard_normal((300, 5))
    found = hg.nearest_neighbors(vectors, k=30, knn="exact", backend=backend)
    ids, similarities = backend.to_numpy(found.ids), backend.to_numpy(found.similarities)
    # As FAISS gives them: the item itself first; and then in no order at all.
    ids = np.concatenate([np.arange(300)[:, None], ids], axis=1)
    similarities = np.concatenate([np.ones((300, 1), similarities.dtype), similarities], axis=1)
    order = np.stack([rng.permutation(31) for _ in range(300)])
    order[:, :2] = np.sort(order[:, :2], axis=1)
    expected = hg.build_index_from_neighbors(
        found.ids, found.similarities, neighbors=12, backend=backend
    )
    for places in (np.tile(np.arange(31), (300, 1)), order):
        index = hg.build_index_from_neighbors(
            np.take_along_axis(ids, places, 1),
            np.take_along_axis(similarities, places, 1),
            neighbors=12,
            backend=backend,
        )
        np.testing.assert_allclose(
            backend.to_numpy(index.graph.degrees), backend.to_numpy(expected.graph.degrees)
        )
        assert index.graph.edges == expected.graph.edges


def test_best_first_leaves_out_the_item_itself_and_what_is_missing(backend):
    lists = lists_of(
        np.array([[0, 2, 1, -1], [2, -1, 0, 1], [1, 0, 2, -1]]),
        np.array([[1.0, 0.2, 0.7, 0.0], [0.4, 0.0, -0.3, 1.0], [0.4, 0.4, 1.0, 0.0]]),
        backend,
    )
    # A repeated id counts once, with its best similarity; equals come by their ids.
    repeated = lists_of(
        np.array([[2, 1, 2, 1], [0, 0, 2, 2], [1, 0, 1, 0]]),
        np.array([[0.5, 0.6, 0.7, 0.1], [0.3, 0.3, 0.3, 0.2], [0.4, 0.4, 0.4, 0.4]]),
        backend,
    )
    once = best_first(repeated, backend)
    assert backend.to_numpy(once.ids).tolist() == [[2, 1, -1, -1], [0, 2, -1, -1], [0, 1, -1, -1]]
    assert backend.to_numpy(once.similarities)[:, 0].tolist() == pytest.approx([0.7, 0.3, 0.4])
    found = best_first(lists, backend)
    assert backend.to_numpy(found.ids).tolist() == [[1, 2, -1, -1], [2, 0, -1, -1], [0, 1, -1, -1]]
    np.testing.assert_allclose(
        backend.to_numpy(found.similarities),
        [[0.7, 0.2, 0, 0], [0.4, -0.3, 0, 0], [0.4, 0.4, 0, 0]],
    )


# Recall of approximate neighbors ------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_recall_is_the_part_that_was_found(backend, rng, missing):
    n, k = 700, 8
    units = unit_rows(backend.asarray(rng.standard_normal((n, 6)), "float32"), backend)
    true = hg.nearest_neighbors(units, k=k, knn="exact", backend=backend)
    ids = backend.to_numpy(true.ids).copy()
    # The farthest item in place of some neighbors, and nothing in place of one.
    far = backend.to_numpy(hg.nearest_neighbors(units, k=n - 1, knn="exact", backend=backend).ids)
    ids[:, :missing] = far[:, -missing or n :]
    if missing:
        ids[:, 0] = -1
    # An engine may list them in any order.
    ids = rng.permuted(ids, axis=1)
    lists = lists_of(ids, backend.to_numpy(true.similarities), backend)
    if missing:
        with pytest.warns(UserWarning, match=r"found .* % of the true neighbors"):
            recall = measured_recall(lists, units, "IVF4,Flat", backend)
    else:
        recall = measured_recall(lists, units, "IVF4,Flat", backend)
    assert recall == pytest.approx(1 - missing / k)


def test_one_of_twenty_may_be_missed_without_a_warning(backend, rng, recwarn):
    n, k = 300, 20
    units = unit_rows(backend.asarray(rng.standard_normal((n, 6)), "float32"), backend)
    ids = backend.to_numpy(hg.nearest_neighbors(units, k=k, knn="exact", backend=backend).ids)
    fewer = np.where(np.arange(k) == 4, -1, ids)
    assert measured_recall(lists_of(fewer, 0.0 * ids, backend), units, "PQ4", backend) == 0.95
    assert not recwarn.list
    # 256 of the 300 are asked, wherever the mistakes are.
    half = np.where(np.arange(n)[:, None] < 150, -1, ids)
    with pytest.warns(UserWarning, match="of the true neighbors"):
        found = measured_recall(lists_of(half, 0.0 * ids, backend), units, "PQ4", backend)
    assert found == pytest.approx(0.5, abs=0.05)
    assert found * 256 == pytest.approx(round(found * 256))


def test_recall_tells_apart_descriptors_of_one_direction(backend, rng):
    vectors = backend.asarray(rng.standard_normal((400, 16)) + 300, "float64")
    units = unit_rows(vectors, backend)
    near = hg.nearest_neighbors(units, k=399, knn="exact", dtype="float64", backend=backend)
    far = backend.to_numpy(near.ids)[:, 100:110]
    with pytest.warns(UserWarning, match=r"found 0.0 % of the true neighbors"):
        assert measured_recall(lists_of(far, 0.0 * far, backend), units, "PQ4", backend) == 0


def test_any_of_equal_items_is_a_true_neighbor(backend):
    vectors = np.repeat(np.eye(6), 20, axis=0)
    units = unit_rows(backend.asarray(vectors, "float32"), backend)
    # Each item lists the last ones of its 20 equals, where the exact search lists the first.
    ids = np.array([[20 * (i // 20) + 19 - j for j in range(6)] for i in range(120)])
    ids[ids == np.arange(120)[:, None]] -= 6
    lists = lists_of(ids, np.ones((120, 6)), backend)
    assert measured_recall(lists, units, "IVF4,Flat", backend) == 1.0


def test_a_build_with_an_approximate_engine_shows_its_recall(rng, tmp_path):
    pytest.importorskip("faiss")
    vectors = rng.standard_normal((3000, 16)).astype(np.float32)
    with pytest.warns(UserWarning, match="knn='PQ4x4' found"):
        rough = hg.build_index(vectors, neighbors=10, knn="PQ4x4", backend="numpy")
    assert rough.state.origin.recall < 0.95
    assert f"at recall {rough.state.origin.recall:.3f}" in repr(rough)
    rough.save(tmp_path / "index")
    assert hg.load_index(tmp_path / "index").state.origin == rough.state.origin
    fine = hg.build_index(vectors, neighbors=10, knn="IVF16,Flat", backend="numpy")
    assert fine.state.origin.recall > 0.95  # 16 lists, and all of them are probed
    assert hg.build_index(vectors, neighbors=10, backend="numpy").state.origin.recall is None


# Notes on the graph -------------------------------------------------------------------------------


def test_isolated_items_and_many_components_are_noted(backend):
    rng = np.random.default_rng(19)
    centers = 10 * np.eye(8)
    clusters = np.repeat(centers, 30, axis=0) + rng.standard_normal((240, 8))
    index = hg.build_index(clusters, neighbors=5, backend=backend)
    (note,) = [note for note in index.state.notes if "components" in note]
    assert note in repr(index)
    assert note in index.search(clusters[:2], k=3).report.notes
    assert note not in index.search(clusters[:2], k=3, method="nn").report.notes
    alone = np.concatenate([clusters, -clusters[:7]])
    graph = hg.build_index_from_graph(np_ring(100, alone=4), backend=backend)
    assert graph.state.notes == ("4 items (4 %) have no edge: diffusion does not reach them",)
    assert hg.build_index_from_graph(np_ring(100, alone=1), backend=backend).state.notes == ()
    assert len(alone) == 247


def np_ring(n, alone):
    import scipy.sparse as sparse

    joined = n - alone
    rows, columns = np.arange(joined), (np.arange(joined) + 1) % joined
    one = sparse.csr_array((np.ones(joined), (rows, columns)), shape=(n, n))
    return sparse.csr_array(one + one.T)
