from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import clustered_vectors, dense, two_cliques

import hybrid_gpu as hg
from hybrid_gpu import reference
from hybrid_gpu.diffusion.aggregate_basis import _joined
from hybrid_gpu.evaluation import agreement
from hybrid_gpu.index.packing import packed, unpacked

RTOL = 1e-11


def rebuilt(index):
    """The same lists, indexed from scratch."""
    host = index.backend.to_numpy
    return hg.build_index_from_neighbors(
        host(index.neighbors.ids).astype("int64"),
        np.maximum(host(index.neighbors.similarities), 0),
        descriptors=host(index.descriptors),
        basis="none",
        dtype="float64",
        backend=index.backend,
    )


def assert_same_answers(index, fresh, queries):
    k = index.n
    one = index.search(queries, k=k, method="hybrid", rtol=RTOL)
    other = fresh.search(queries, k=k, method="temporal", rtol=RTOL)
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-8)
    np.testing.assert_allclose(
        dense(index.backend, index.graph.adjacency),
        dense(fresh.backend, fresh.graph.adjacency),
        atol=1e-12,
    )


def assert_same_neighbors(index, vectors):
    """The lists are those of an exact search on all that is there now, with ends of -1 and 0."""
    k = index.neighbors.ids.shape[1]
    units = reference.unit(vectors)
    cosines = units @ units.T
    np.fill_diagonal(cosines, -np.inf)
    ids, similarities = np.full((len(vectors), k), -1), np.zeros((len(vectors), k))
    found = min(k, len(vectors) - 1)
    ids[:, :found] = np.argsort(-cosines, axis=1)[:, :found]
    similarities[:, :found] = np.take_along_axis(cosines, ids[:, :found], axis=1)
    host = index.backend.to_numpy
    np.testing.assert_array_equal(host(index.neighbors.ids), ids)
    np.testing.assert_allclose(host(index.neighbors.similarities), similarities, atol=1e-12)


@pytest.mark.parametrize("basis", ["aggregate", "eigen", "sparse-eigen", "none"])
def test_random_additions_and_removals_equal_a_new_index(backend, rng, basis):
    vectors = clustered_vectors(rng, n=70)
    queries = clustered_vectors(rng, n=4)
    index = hg.build_index(
        vectors, neighbors=5, basis=basis, rank=6, knn="exact", dtype="float64", backend=backend
    )
    for _ in range(4):
        if rng.random() < 0.5:
            more = clustered_vectors(rng, n=int(rng.integers(1, 15)))
            vectors = np.concatenate([vectors, more])
            index = index.add(more)
        else:
            gone = rng.choice(len(vectors), int(rng.integers(1, 15)), replace=False)
            vectors = np.delete(vectors, gone, axis=0)
            index = index.remove(gone)
        assert index.n == len(vectors)
        assert_same_neighbors(index, vectors)
        assert_same_answers(index, rebuilt(index), queries)


def test_lists_that_are_wider_than_the_database_fill_up_again(backend, rng):
    # Down to one item, whose list is empty, and up again: every old list has ends to fill.
    vectors = clustered_vectors(rng, n=8)
    index = hg.build_index(vectors, neighbors=6, dtype="float64", backend=backend)
    for gone in (4, 3):
        index, vectors = index.remove(np.arange(gone)), vectors[gone:]
        assert_same_neighbors(index, vectors)
    for count in (1, 2, 1, 3, 5):
        more = clustered_vectors(rng, n=count)
        index, vectors = index.add(more), np.concatenate([vectors, more])
        assert_same_neighbors(index, vectors)
        assert_same_answers(index, rebuilt(index), vectors)


def test_lists_of_another_engine_in_no_order_take_what_is_better_than_their_worst(backend):
    # Item 0 lists its far neighbor last, and its near one first, or the other way round.
    vectors = np.array([[1, 0, 0], [1, 0.2, 0], [1, 0, 1]], dtype="float64")
    ids = np.array([[2, 1], [0, 2], [0, 1]])
    cosines = np.take_along_axis(reference.unit(vectors) @ reference.unit(vectors).T, ids, axis=1)
    index = hg.build_index_from_neighbors(
        ids, cosines, descriptors=vectors, dtype="float64", backend=backend
    ).add(np.array([[1, 0, 0.4]]))
    assert backend.to_numpy(index.neighbors.ids)[0].tolist() == [1, 3]


def test_removing_the_first_item_is_no_exception(backend, rng):
    vectors = clustered_vectors(rng, n=12)
    index = hg.build_index(vectors, neighbors=3, dtype="float64", backend=backend)
    assert_same_neighbors(index.remove([0]), vectors[1:])
    # Lists of one entry: the two that remain find each other.
    index = hg.build_index(vectors[:3], neighbors=1, dtype="float64", backend=backend)
    for gone in range(3):
        assert_same_neighbors(index.remove([gone]), np.delete(vectors[:3], gone, axis=0))


def test_missing_entries_stay_missing(backend):
    ids = np.array([[1, -1], [2, 0], [1, -1], [-1, -1]])
    cosines = np.array([[0.9, 0.0], [0.8, 0.7], [0.8, 0.0], [0.0, 0.0]])
    index = hg.build_index_from_neighbors(ids, cosines, backend=backend).remove([0])
    assert backend.to_numpy(index.neighbors.ids).tolist() == [[1, -1], [0, -1], [-1, -1]]


def test_items_without_a_group_join_their_heaviest_neighbor(backend):
    # 0 and 3 have groups; 6 and 7, 8 and 9 know only each other; 10 knows nobody.
    pairs = {(0, 1): 1, (1, 2): 2, (2, 3): 3, (3, 4): 1, (4, 5): 1, (0, 3): 9, (6, 7): 1, (8, 9): 1}
    affinity = np.zeros((11, 11))
    for (one, other), weight in pairs.items():
        affinity[one, other] = affinity[other, one] = weight
    graph = hg.graph_from_affinity(sparse.csr_array(affinity), backend=backend)
    labels = np.full(11, -1)
    assert _joined(labels, graph, backend).tolist() == [0] * 6 + [1, 1, 2, 2, -1]
    labels[[0, 3]] = 0, 1
    assert _joined(labels, graph, backend).tolist() == [0, 0, 1, 1, 1, 1, 2, 2, 3, 3, -1]
    assert labels.tolist() == [0, -1, -1, 1] + 7 * [-1]


def test_a_group_that_a_removal_tears_apart_reaches_no_further_than_the_graph(backend):
    # A path of five, all of one group; without its middle, the ends do not know each other.
    ids = np.array([[1, -1], [0, 2], [1, 3], [2, 4], [3, -1]])
    index = hg.build_index_from_neighbors(
        ids, np.where(ids < 0, 0, 0.8), basis=np.zeros(5, int), backend=backend
    )
    torn = index.remove([2])
    assert torn.search_items([3, 0], k=4, method="hybrid", steps=3).ids.tolist() == [
        [3, 2, -1, -1],
        [0, 1, -1, -1],
    ]


def test_vectors_of_the_users_own_stay_and_new_items_take_their_neighbors_share(backend, rng):
    vectors = clustered_vectors(rng, n=40)
    basis = rng.standard_normal((37, 3))
    settings = {"neighbors": 5, "dtype": "float64", "backend": backend}
    grown = hg.build_index(vectors[:37], basis=basis, **settings).add(vectors[37:])
    host = backend.to_numpy
    found = host(grown.basis.vectors)
    np.testing.assert_allclose(found[:37], basis)
    adjacency = dense(backend, grown.graph.adjacency)
    np.testing.assert_allclose(found[37:], adjacency[37:, :37] @ basis, atol=1e-12)


@pytest.mark.parametrize(("basis", "share"), [("aggregate", 1.0), ("eigen", None)])
def test_an_index_of_an_earlier_version_is_taken_for_one_of_this_size(backend, rng, basis, share):
    vectors = clustered_vectors(rng, n=60)
    index = hg.build_index(vectors[:40], neighbors=5, basis=basis, rank=4, backend=backend)
    # Files of the first version say nothing of it.
    parts = packed(index.state)
    parameters = {name: value for name, value in parts.parameters.items() if name != "grouping"}
    index = hg.DiffusionIndex(unpacked(replace(parts, parameters=parameters), backend))
    grown = index.add(vectors[40:]).state.grouping
    assert (grown.items, grown.share) == (60, share)
    assert index.add(vectors[40:45]).state.grouping.changed == 5


def neighborhoods(rng, n, d=6, clusters=20):
    """Clusters that touch: a few steps need good groups to cross them."""
    centers = rng.standard_normal((clusters, d))
    return centers[rng.integers(0, clusters, n)] + 0.5 * rng.standard_normal((n, d))


def quality(index, queries):
    """Agreement of five steps with the exact top 100."""
    exact = index.search(queries, k=100, method="temporal", rtol=1e-5).ids
    return agreement(index.search(queries, k=100, method="hybrid", steps=5).ids, exact)


@pytest.mark.parametrize(("first", "step"), [(50, 50), (300, 300), (50, 550), (500, 20)])
def test_five_steps_are_as_good_after_growth_as_after_a_build(rng, first, step):
    vectors = neighborhoods(rng, 650)
    vectors, queries = vectors[:600], vectors[600:]
    built = hg.build_index(vectors, neighbors=10, backend="numpy")
    grown = hg.build_index(vectors[:first], neighbors=10, backend="numpy")
    for start in range(first, 600, step):
        grown = grown.add(vectors[start : start + step])
    assert grown.n == 600
    assert quality(grown, queries) > quality(built, queries) - 0.015


def test_five_steps_stay_good_while_all_items_are_replaced(rng):
    # The number of items stays the same, so that it cannot tell.
    vectors = neighborhoods(rng, 1250)
    index = hg.build_index(vectors[:400], neighbors=10, backend="numpy")
    for start in range(400, 1200, 80):
        index = index.add(vectors[start : start + 80]).remove(np.arange(80))
    built = hg.build_index(vectors[800:1200], neighbors=10, backend="numpy")
    assert quality(index, vectors[1200:]) > quality(built, vectors[1200:]) - 0.015


def test_an_outgrown_index_is_the_one_that_a_build_makes(backend, rng):
    vectors = clustered_vectors(rng, n=120)
    settings = {"neighbors": 5, "dtype": "float64", "knn": "exact", "backend": backend}
    for basis in ("aggregate", "none"):
        grown = hg.build_index(vectors[:80], basis=basis, **settings).add(vectors[80:])
        built = hg.build_index(vectors, basis=basis, **settings)
        host = backend.to_numpy
        np.testing.assert_array_equal(
            host(grown.state.numbering.order), host(built.state.numbering.order)
        )
        assert repr(grown) == repr(built)
        assert grown.state.grouping == built.state.grouping


def test_groups_grow_with_the_items_as_dense_as_they_were_asked_for(rng):
    vectors = clustered_vectors(rng, n=200, clusters=2)
    for rank, expected in ((None, 25), (50, 100)):
        index = hg.build_index(vectors[:100], neighbors=12, rank=rank, backend="numpy")
        grown = index.add(vectors[100:])
        assert grown.basis.coupling.shape[0] == pytest.approx(expected, abs=5)


def groups_of(index):
    """The group of each item; -1 for none."""
    host = index.backend.to_numpy
    groups = np.full(index.n, -1)
    groups[np.diff(host(index.basis.vectors.indptr)) > 0] = host(index.basis.vectors.indices)
    return groups


def test_groups_of_the_users_own_are_carried_over(backend, rng):
    vectors = clustered_vectors(rng, n=90)
    labels = np.arange(40) // 10
    index = hg.build_index(vectors[:40], neighbors=6, basis=labels, backend=backend)
    grown = index.add(vectors[40:])
    assert grown.basis.kind == "aggregates"
    before, after = groups_of(index), groups_of(grown)
    kept = np.flatnonzero((before >= 0) & (after[:40] >= 0))
    assert kept.size > 30
    # What was one group is one still, in each component of the new graph.
    was = list(zip(before[kept], grown.graph.components[kept], strict=True))
    now = list(zip(was, after[kept], strict=True))
    assert len(set(now)) == len(set(was)) == len(set(after[kept]))
    assert np.count_nonzero(after[40:] >= 0) > 40


def test_what_an_update_counts_is_saved(backend, rng, tmp_path):
    vectors = clustered_vectors(rng, n=100)
    index = hg.build_index(vectors, neighbors=5, rank=20, backend=backend)
    assert (index.state.grouping.items, index.state.grouping.changed) == (100, 0)
    changed = index.add(vectors[:12]).remove([3, 4, 5])
    assert (changed.state.grouping.items, changed.state.grouping.changed) == (100, 15)
    changed.save(tmp_path / "index")
    loaded = hg.load_index(tmp_path / "index", backend=backend)
    assert loaded.state.grouping == changed.state.grouping
    # Eleven more are a quarter and one.
    assert loaded.add(vectors[:10]).state.grouping.changed == 25
    anew = loaded.add(vectors[:11]).state.grouping
    assert (anew.items, anew.changed, anew.share) == (120, 0, changed.state.grouping.share)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_an_index_with_eigenvectors_keeps_its_methods(backend, rng, precision):
    vectors = clustered_vectors(rng, n=100)
    index = hg.build_index(
        vectors[:80], neighbors=6, basis="eigen", rank=9, precision=precision, backend=backend
    )
    grown = index.add(vectors[80:]).remove([7])
    built = hg.build_index(
        np.delete(vectors, 7, axis=0),
        neighbors=6,
        basis="eigen",
        rank=9,
        precision=precision,
        backend=backend,
    )
    assert repr(grown.basis) == repr(built.basis)
    for method in ("fsr", "fsrw", "hybrid-paper", "shybrid"):
        one, other = (each.search(vectors[:3], k=20, method=method) for each in (grown, built))
        np.testing.assert_allclose(one.scores, other.scores, atol=0.02 * other.scores.max())


def test_old_eigenvectors_are_where_the_new_ones_begin(rng):
    # Beyond the size that is decomposed densely.
    vectors = neighborhoods(rng, 1500)
    index = hg.build_index(vectors[:1480], neighbors=10, basis="eigen", rank=20, backend="numpy")
    grown = index.add(vectors[1480:])
    built = hg.build_index(vectors, neighbors=10, basis="eigen", rank=20, backend="numpy")
    np.testing.assert_allclose(grown.basis.eigenvalues, built.basis.eigenvalues, atol=2e-3)
    assert grown.basis.residuals.max() <= 1e-3


def test_an_index_with_sparse_eigenvectors_keeps_their_kind(backend, rng):
    vectors = clustered_vectors(rng, n=100)
    index = hg.build_index(
        vectors[:90], neighbors=6, basis="sparse-eigen", rank=9, sparsity=0.8, backend=backend
    )
    grown = index.add(vectors[90:])
    assert grown.basis.kind == "sparse eigenvectors"
    assert grown.basis.vectors.data.shape[0] == pytest.approx(0.2 * 900, abs=2)


def test_an_index_with_filtered_sparse_eigenvectors_stays_so(backend, rng, tmp_path):
    vectors = neighborhoods(rng, 150)
    options = {"neighbors": 8, "alpha": 0.9, "basis": "sparse-eigen", "rank": 9}
    filtered = hg.Sparsity(0.8, "filtered")
    index = hg.build_index(vectors[:140], sparsity=filtered, backend=backend, **options)
    host = backend.to_numpy
    index.save(tmp_path / "index")
    loaded = hg.load_index(tmp_path / "index", backend=backend)
    np.testing.assert_array_equal(host(loaded.basis.weights), host(index.basis.weights))
    grown = loaded.add(vectors[140:])
    built = hg.build_index(vectors, sparsity=filtered, backend=backend, **options)
    np.testing.assert_allclose(host(grown.basis.weights), host(built.basis.weights), rtol=0.1)
    # As many entries of each vector as in an index that was built at once, and not as many as
    # under a common threshold.
    counts = [
        np.diff(host(one.basis.transposed.indptr))
        for one in (grown, built, hg.build_index(vectors, sparsity=0.8, backend=backend, **options))
    ]
    assert abs(counts[0] - counts[1]).max() < abs(counts[0] - counts[2]).max() / 3


def test_dropped_columns_are_told_of(backend, rng):
    vectors = clustered_vectors(rng, n=30)
    index = hg.build_index(vectors, neighbors=4, backend=backend).precompute(keep=5)
    for change in (lambda: index.add(vectors[:2]), lambda: index.remove([3])):
        with pytest.warns(UserWarning, match=r"drops the stored columns.*precompute\(keep=5\)"):
            assert change().columns is None


def test_added_items_are_found_under_their_new_ids(backend, rng):
    vectors = clustered_vectors(rng, n=40)
    index = hg.build_index(vectors, neighbors=5, backend=backend).add(vectors[:3] * 2)
    ranking = index.search(vectors[:3], k=2, method="nn")
    assert [set(line) for line in ranking.ids.tolist()] == [{0, 40}, {1, 41}, {2, 42}]


def test_remaining_items_are_renumbered_in_order(backend, rng):
    vectors = clustered_vectors(rng, n=40)
    index = hg.build_index(vectors, neighbors=5, backend=backend).remove([0, 39, 7, 7])
    assert index.n == 37
    kept = np.delete(np.arange(40), [0, 7, 39])
    ranking = index.search(vectors[kept], k=1, method="nn")
    assert ranking.ids[:, 0].tolist() == list(range(37))


def test_a_new_cluster_gets_groups_of_its_own(backend):
    # The added items know only each other.
    old = np.concatenate([np.eye(6)[:1] + 0.01 * np.eye(6)[i : i + 1] for i in range(1, 4)])
    index = hg.build_index(old, neighbors=2, dtype="float64", backend=backend)
    new = np.concatenate([np.eye(6)[5:] + 0.01 * np.eye(6)[i : i + 1] for i in range(1, 4)])
    grown = index.add(new)
    assert grown.basis.rank == index.basis.rank + 1
    assert_same_answers(grown, rebuilt(grown), new)


def test_database_may_shrink_below_the_width_of_its_lists(backend, rng):
    vectors = clustered_vectors(rng, n=9)
    index = hg.build_index(vectors, neighbors=6, dtype="float64", backend=backend)
    small = index.remove(np.arange(5))
    assert small.search(vectors[5:], k=4).ids.shape == (4, 4)
    single = small.remove([0, 1, 2])
    assert single.search(vectors[8:], k=1).ids.tolist() == [[0]]
    grown = single.add(vectors[:8])
    assert_same_answers(grown, rebuilt(grown), vectors)


def test_lists_without_descriptors_lose_the_removed_and_no_more(backend, rng):
    vectors = clustered_vectors(rng, n=30)
    lists = hg.nearest_neighbors(vectors, k=4, knn="exact", backend=backend)
    host = backend.to_numpy
    index = hg.build_index_from_neighbors(
        host(lists.ids), np.maximum(host(lists.similarities), 0), backend=backend
    )
    smaller = index.remove([3])
    before = np.delete(host(lists.ids), 3, axis=0)
    expected = np.where(before == 3, -1, before - (before > 3))
    np.testing.assert_array_equal(host(smaller.neighbors.ids), expected)
    with pytest.raises(ValueError, match="add needs descriptors"):
        index.add(vectors[:1])


def test_updates_leave_the_old_index_as_it_was(backend, rng):
    vectors = clustered_vectors(rng, n=40)
    index = hg.build_index(vectors, neighbors=5, backend=backend).precompute(keep=5)
    before = index.search(vectors[:2], k=5)
    with pytest.warns(UserWarning, match="drops the stored columns") as told:
        index.add(vectors[:5])
    assert told[0].filename == __file__
    after = index.search(vectors[:2], k=5)
    np.testing.assert_array_equal(before.scores, after.scores)


def test_updated_index_can_be_saved(backend, rng, tmp_path):
    vectors = clustered_vectors(rng, n=40)
    for basis in ("aggregate", "eigen", "sparse-eigen"):
        index = hg.build_index(vectors, neighbors=5, basis=basis, rank=4, backend=backend)
        index = index.remove([3]).add(vectors[:2])
        index.save(tmp_path / basis)
        again = hg.load_index(tmp_path / basis, backend=backend)
        np.testing.assert_array_equal(
            again.search(vectors, k=5).scores, index.search(vectors, k=5).scores
        )
        assert again.add(vectors[:1]).n == 42


def test_impossible_updates_are_refused(backend, rng):
    vectors = clustered_vectors(rng, n=20)
    index = hg.build_index(vectors, neighbors=5, backend=backend)
    with pytest.raises(ValueError, match="8 dimensions; got 3"):
        index.add(vectors[:, :3])
    with pytest.raises(ValueError, match="finite"):
        index.add(vectors[:1] * np.nan)
    with pytest.raises(ValueError, match="ids must lie in"):
        index.remove([20])
    with pytest.raises(ValueError, match="all 20 items"):
        index.remove(np.arange(20))
    bare = hg.build_index(vectors, neighbors=5, keep_neighbors=False, backend=backend)
    with pytest.raises(ValueError, match="keep_neighbors=True"):
        bare.add(vectors)
    with pytest.raises(ValueError, match="keep_neighbors=True"):
        hg.build_index_from_graph(two_cliques(3), backend=backend).remove([1])


def test_an_item_that_is_named_many_times_is_removed_once(backend, rng):
    index = hg.build_index(clustered_vectors(rng, n=30), neighbors=5, backend=backend)
    assert index.remove([4] * 30).n == 29
