"""Query expansion and database-side augmentation, against sums written out by hand."""

import numpy as np
import pytest
from conftest import TOLERANCE, clustered_vectors

import hybrid_gpu as hg
from hybrid_gpu import reference
from hybrid_gpu.ranking import query_expansion as module


def by_hand(vectors, items, count, alpha, own=False):
    """One vector at a time: itself plus its weighted nearest items."""
    rows = []
    for place, vector in enumerate(reference.unit(vectors)):
        similarity = reference.unit(items) @ vector
        if own:
            similarity[place] = -np.inf
        nearest = np.argsort(-similarity, kind="stable")[:count]
        nearest = nearest[similarity[nearest] > 0]
        weighted = (similarity[nearest] ** alpha)[:, None] * reference.unit(items)[nearest]
        rows.append(vector + weighted.sum(axis=0))
    return reference.unit(np.array(rows))


@pytest.mark.parametrize(("count", "alpha"), [(1, 3.0), (4, 0.0), (7, 1.0), (119, 2.5)])
def test_every_item_takes_on_its_neighbors(backend, rng, dtype, count, alpha):
    vectors = clustered_vectors(rng)
    result = hg.augment_database(
        vectors,
        expansion=hg.Expansion(neighbors=count, alpha=alpha),
        dtype=dtype,
        backend=backend,
    )
    expected = by_hand(vectors, vectors, count, alpha, own=True)
    np.testing.assert_allclose(backend.to_numpy(result), expected, atol=10 * TOLERANCE[dtype])


def test_lists_that_are_there_already_are_used(backend, rng):
    vectors = clustered_vectors(rng)
    lists = hg.nearest_neighbors(vectors, k=30, dtype="float64", backend=backend)
    wanted = hg.Expansion(neighbors=6)
    one = hg.augment_database(
        vectors, expansion=wanted, lists=lists, dtype="float64", backend=backend
    )
    other = hg.augment_database(vectors, expansion=wanted, dtype="float64", backend=backend)
    np.testing.assert_allclose(backend.to_numpy(one), backend.to_numpy(other), atol=1e-14)


def test_missing_neighbors_add_nothing(backend):
    vectors = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    lists = hg.Neighbors(
        backend.asarray(np.array([[1, -1], [-1, -1], [1, -1]])),
        backend.asarray(np.array([[0.6, 7.0], [5.0, 5.0], [0.8, 5.0]])),
    )
    result = hg.augment_database(
        vectors,
        expansion=hg.Expansion(neighbors=2, alpha=0.0),
        lists=lists,
        dtype="float64",
        backend=backend,
    )
    expected = reference.unit(np.array([[1.6, 0.8], [0.6, 0.8], [0.6, 1.8]]))
    np.testing.assert_allclose(backend.to_numpy(result), expected, atol=1e-14)


def test_a_neighbor_that_points_away_weighs_nothing_even_at_exponent_zero(backend):
    vectors = np.array([[1.0, 0.0], [-1.0, 0.0]])
    result = hg.augment_database(
        vectors, expansion=hg.Expansion(neighbors=1, alpha=0.0), dtype="float64", backend=backend
    )
    np.testing.assert_array_equal(backend.to_numpy(result), vectors)


@pytest.mark.parametrize(("count", "alpha"), [(1, 3.0), (12, 0.0), (500, 2.0)])
def test_search_expands_queries_as_it_is_told(backend, rng, count, alpha):
    vectors, queries = clustered_vectors(rng), clustered_vectors(rng, n=4)
    index = hg.build_index(vectors, neighbors=6, basis="none", dtype="float64", backend=backend)
    ranking = index.search(
        queries, k=120, method="alpha-qe", expansion=hg.Expansion(neighbors=count, alpha=alpha)
    )
    expected = by_hand(queries, vectors, count, alpha) @ reference.unit(vectors).T
    np.testing.assert_allclose(
        ranking.scores, np.take_along_axis(expected, ranking.ids, axis=1), atol=1e-10
    )


def test_results_of_another_engine_stand_for_the_query(backend, rng):
    vectors = clustered_vectors(rng)
    index = hg.build_index(vectors, neighbors=6, basis="none", dtype="float64", backend=backend)
    ids, similarities = np.array([[3, 8, -1, 20]]), np.array([[0.9, 0.5, 0.0, 0.4]])
    ranking = index.rerank(
        ids,
        similarities,
        k=120,
        method="alpha-qe",
        expansion=hg.Expansion(neighbors=3, alpha=2.0),
    )
    units = reference.unit(vectors)
    # The three nearest are those that were found.
    expanded = reference.unit((0.81 * units[3] + 0.25 * units[8] + 0.16 * units[20])[None, :])
    expected = (expanded @ units.T)[0]
    np.testing.assert_allclose(ranking.scores[0], expected[ranking.ids[0]], atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"neighbors": 0}, "neighbors must be at least 1"),
        ({"alpha": -1.0}, "alpha must not be negative"),
        ({"alpha": float("nan")}, "alpha must be finite"),
    ],
)
def test_senseless_expansions_are_refused(settings, told):
    with pytest.raises(ValueError, match=told):
        hg.Expansion(**settings)


def test_more_neighbors_than_items_are_refused(backend, rng):
    vectors = clustered_vectors(rng, n=8)
    with pytest.raises(ValueError, match=r"expansion\.neighbors must be at most 7; got 10"):
        hg.augment_database(vectors, backend=backend)


def test_lists_of_another_database_are_refused(backend, rng):
    vectors = clustered_vectors(rng, n=30)
    lists = hg.nearest_neighbors(vectors, k=4, backend=backend)
    with pytest.raises(ValueError, match=r"10 or more neighbors of each of the 30 items"):
        hg.augment_database(vectors, lists=lists, backend=backend)


def test_tiles_do_not_change_the_augmented_database(backend, rng, monkeypatch):
    vectors = clustered_vectors(rng, n=30)
    settings = {"expansion": hg.Expansion(neighbors=3), "knn": "exact", "backend": backend}
    whole = hg.augment_database(vectors, **settings)
    sizes, once = [], module.expanded

    def counted(vectors, *given):
        sizes.append(vectors.shape[0])
        return once(vectors, *given)

    monkeypatch.setattr(module, "expanded", counted)
    # Room for nothing, and for seven items with three neighbors of eight dimensions each.
    for memory in (1, 7 * 4 * 3 * 8 * 4):
        monkeypatch.setattr(type(backend), "available_bytes", lambda self, memory=memory: memory)
        tiled = backend.to_numpy(hg.augment_database(vectors, **settings))
        np.testing.assert_allclose(tiled, backend.to_numpy(whole), atol=1e-6)
    assert sizes == [1] * 30 + [7, 7, 7, 7, 2]


def test_lists_of_fewer_items_and_unknown_precisions_are_refused(backend, rng):
    vectors = clustered_vectors(rng, n=30)
    lists = hg.nearest_neighbors(vectors[:20], k=12, backend=backend)
    with pytest.raises(ValueError, match="lists must hold"):
        hg.augment_database(vectors, lists=lists, backend=backend)
    with pytest.raises(ValueError, match="dtype must be"):
        hg.augment_database(vectors, dtype="float16", backend=backend)
