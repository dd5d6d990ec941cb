import numpy as np
import pytest
from conftest import clustered_vectors, dense, two_cliques

import hybrid_gpu as hg

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
    """The lists are those of an exact search on all that is there now."""
    k = index.neighbors.ids.shape[1]
    found = hg.nearest_neighbors(vectors, k=k, knn="exact", dtype="float64", backend=index.backend)
    host = index.backend.to_numpy
    np.testing.assert_allclose(
        host(index.neighbors.similarities), host(found.similarities), atol=1e-12
    )


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


def test_added_items_are_found_under_their_new_ids(backend, rng):
    vectors = clustered_vectors(rng, n=40)
    index = hg.build_index(vectors, neighbors=5, backend=backend).add(vectors[:3] * 2)
    ranking = index.search(vectors[:3], k=2, method="nn")
    assert [set(line) for line in ranking.ids.tolist()] == [{0, 40}, {1, 41}, {2, 42}]


def test_removed_items_close_the_ranks(backend, rng):
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
    grown = index.add(vectors[:5])
    assert grown.columns is None
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
