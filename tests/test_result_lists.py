"""What comes out of other people's engines: taken as it is meant, or refused with what to write."""

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import changed, clustered_vectors, dense

import hybrid_gpu as hg
from hybrid_gpu.ranking.keys import as_keys
from hybrid_gpu.result_lists import check_neighbor_lists


def checked(backend, ids, values, n=50, **options):
    ids, cosines = check_neighbor_lists(
        np.asarray(ids), np.asarray(values), n, dtype="float64", backend=backend, **options
    )
    return backend.to_numpy(ids), backend.to_numpy(cosines)


def test_missing_entries_go_to_the_end_and_are_not_looked_at(backend):
    ids, cosines = checked(
        backend,
        [[-1, 4, -1, 2], [7, 8, 9, 1]],
        [[np.nan, 0.5, 3.4e38, 0.5], [0.9, 0.8, 0.7, -0.6]],
    )
    assert ids.tolist() == [[4, 2, -1, -1], [7, 8, 9, 1]]
    assert cosines.tolist() == [[0.5, 0.5, 0, 0], [0.9, 0.8, 0.7, -0.6]]


def test_what_was_found_stays_in_its_order(backend, rng):
    # Long lists of equal cosines: nothing but their places tells them apart.
    given = np.stack([rng.permutation(500) for _ in range(3)])
    given[rng.random(given.shape) < 0.5] = -1
    ids, _ = checked(backend, given, np.full(given.shape, 0.5), n=500)
    for row, expected in zip(ids, given, strict=True):
        assert row[row >= 0].tolist() == expected[expected >= 0].tolist()


@pytest.mark.parametrize(
    ("metric", "distances"),
    [
        ("cosine-distance", [0, 0.2, 1.4, 2.0]),
        ("l2", [0, 0.4**0.5, 2.8**0.5, 2.0]),
        ("squared-l2", [0, 0.4, 2.8, 4.0]),
    ],
)
def test_distances_of_unit_vectors_become_cosines(backend, metric, distances):
    _, cosines = checked(backend, [[1, 2, 3, 4]], [distances], metric=metric)
    np.testing.assert_allclose(cosines, [[1, 0.8, -0.4, -1]], atol=1e-15)
    # What was not found has no distance, and no cosine of 1 either.
    _, cosines = checked(backend, [[1, -1]], [[0.3, 0.0]], metric=metric)
    assert cosines[0, 1] == 0


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_rounded_values_of_unit_vectors_are_taken(backend, rng, precision):
    vectors = rng.standard_normal((40, 24))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(precision)
    # Rounded vectors are not quite of unit length.
    vectors = vectors.astype("float64")
    cosines = np.sort(vectors @ vectors.T, axis=1)[:, ::-1]
    assert cosines.max() > 1
    ids = np.tile(np.arange(40), (40, 1))
    checked(backend, ids, cosines)
    checked(backend, ids, 1 - cosines, metric="cosine-distance")
    checked(backend, ids, 2 - 2 * cosines, metric="squared-l2")


@pytest.mark.parametrize(
    ("metric", "value", "told"),
    [
        ("cosine", 1.02, r"in \[-1, 1\]; got 1.02.*inner products.*np.linalg.norm.*FAISS's L2"),
        ("cosine", -1.02, r"got -1.02"),
        ("cosine-distance", 2.02, r"in \[0, 2\]; got 2.02"),
        ("cosine-distance", -0.02, r"in \[0, 2\]; got -0.02"),
        ("l2", 2.02, r"in \[0, 2\]; got 2.02.*squared: metric='squared-l2'"),
        ("l2", -0.02, "got -0.02"),
        ("squared-l2", 4.03, r"in \[0, 4\]; got 4.03.*np.linalg.norm"),
        ("cosine", np.nan, "NaN"),
        ("l2", np.inf, "infinity"),
    ],
)
def test_values_that_unit_vectors_cannot_have_are_refused(backend, metric, value, told):
    with pytest.raises(ValueError, match=told):
        checked(backend, [[3, 4]], [[value, value]], metric=metric)


def test_an_unknown_metric_is_refused(backend):
    for metric, told in (("manhattan", ""), ("l2sq", r"\. Pass 'squared-l2'\.$"), (None, "")):
        with pytest.raises(ValueError, match=f"metric must be one of cosine, .*; got.*{told}"):
            checked(backend, [[3]], [[0.5]], metric=metric)


RISING = np.array([[0.1, 0.4, 0.4, 0.9], [0.2, 0.2, 0.3, 0.3]])


def test_lists_that_only_rise_are_refused(backend):
    ids = [[1, 2, 3, 4], [5, 6, 7, 8]]
    with pytest.raises(ValueError, match=r"only rise.*'squared-l2'.*ids\[:, ::-1\]"):
        checked(backend, ids, RISING)
    for metric in ("cosine-distance", "l2", "squared-l2"):
        checked(backend, ids, RISING, metric=metric)
        with pytest.raises(ValueError, match=r"only fall.*metric='cosine'"):
            checked(backend, ids, RISING[:, ::-1], metric=metric)
    checked(backend, ids, RISING[:, ::-1])


def test_missing_entries_hide_no_rise(backend):
    with pytest.raises(ValueError, match="only rise"):
        checked(backend, [[1, -1, 2, 3, -1]], [[0.1, 0.0, 0.5, 0.9, 0.0]])


def test_lists_in_no_order_are_taken(backend, rng):
    # Of 2,000 lists of four, about 80 rise by chance.
    checked(backend, rng.integers(0, 50, (2000, 4)), rng.random((2000, 4)))


@pytest.mark.parametrize(
    "values",
    [
        [[0.2, 0.9]],  # two results tell nothing
        [[0.9, 0.9, 0.9]],
        [[0.9, 0.9002, 0.9004]],  # equal to rounding
        [[0.1, 0.5, 0.9], [0.9, 0.5, 0.1]],
        [[0.1, 0.5, 0.4995, 0.9]],  # a fall, however small, is no order
    ],
)
def test_lists_that_may_be_in_order_are_taken(backend, values):
    values = np.array(values)
    checked(backend, np.arange(values.size).reshape(values.shape), values)


def test_one_long_list_that_rises_is_refused_among_others(backend, rng):
    values = np.sort(rng.random((30, 10)), axis=1)[:, ::-1].copy()
    ids = np.tile(np.arange(10), (30, 1))
    checked(backend, ids, values)
    values[17] = values[17, ::-1]
    with pytest.raises(ValueError, match="only rise"):
        checked(backend, ids, values)


def test_masked_arrays_are_refused_with_what_to_write(backend):
    ids, values = np.ma.array([[1, 2]]), np.ma.array([[0.5, 0.4]])
    settings = {"dtype": "float32", "backend": backend}
    with pytest.raises(TypeError, match=r"ids must not be a masked array.*ids.filled\(-1\)"):
        check_neighbor_lists(ids, values.data, 5, **settings)
    with pytest.raises(TypeError, match=r"similarities.filled\(0\)"):
        check_neighbor_lists(ids.data, values, 5, **settings)


def test_what_is_no_dense_array_is_refused_with_what_to_write(backend):
    settings = {"dtype": "float32", "backend": backend}
    with pytest.raises(TypeError, match=r"ids must be a dense array.*ids.toarray\(\)"):
        check_neighbor_lists(sparse.csr_array([[1]]), np.array([[0.5]]), 5, **settings)


def test_values_beyond_the_precision_are_refused_as_infinite(backend):
    with pytest.raises(ValueError, match="finite in float32"):
        check_neighbor_lists(
            np.array([[1]]), np.array([[1e300]]), 5, dtype="float32", backend=backend
        )


def test_anything_that_speaks_dlpack_is_taken(backend):
    class Foreign:
        """An array of a library that has no dtype of its own."""

        def __init__(self, values):
            self._values = values

        def __dlpack__(self, **options):
            return self._values.__dlpack__(**options)

        def __dlpack_device__(self):
            return self._values.__dlpack_device__()

    ids, cosines = check_neighbor_lists(
        Foreign(np.array([[2, 1]])),
        Foreign(np.array([[0.5, 0.25]])),
        5,
        dtype="float32",
        backend=backend,
    )
    assert backend.to_numpy(ids).tolist() == [[2, 1]]
    assert backend.to_numpy(cosines).tolist() == [[0.5, 0.25]]


# Lists as engines give them: ragged, padded, unsigned, dicts, one query alone --------------------

ITEMS, KEYS = 24, np.array([f"item-{number}" for number in range(24)], dtype=object)
NUMBERS = 5_000_000_000 + np.arange(24)


@pytest.fixture
def index(backend, rng):
    return hg.build_index(clustered_vectors(rng, ITEMS), neighbors=4, backend=backend)


@pytest.fixture
def lists(rng):
    """Ids (3, 6) and cosines, best first."""
    ids = np.stack([rng.permutation(ITEMS)[:6] for _ in range(3)])
    return ids, np.sort(rng.uniform(0.3, 0.99, (3, 6)))[:, ::-1].copy()


def named(index, keys):
    return changed(index, keys=as_keys(keys, ITEMS))


def same(ranking, expected):
    np.testing.assert_array_equal(ranking.ids, expected.ids)
    np.testing.assert_array_equal(ranking.scores, expected.scores)


def padded(index, lists, lengths):
    ids, cosines = (array.copy() for array in lists)
    for row, length in enumerate(lengths):
        ids[row, length:] = -1
    return index.rerank(ids, cosines, k=8)


@pytest.mark.parametrize("lengths", [(6, 6, 6), (2, 6, 1), (3, 0, 4)])
def test_lists_of_any_lengths_are_those_that_are_filled_up(index, lists, lengths):
    expected = padded(index, lists, lengths)
    ids, cosines = (
        [row[:length] for row, length in zip(array, lengths, strict=True)] for array in lists
    )
    plain = [[row.tolist() for row in rows] for rows in (ids, cosines)]
    unsigned = [row.astype("uint64") for row in ids]
    dicts = [dict(zip(*rows, strict=True)) for rows in zip(*plain, strict=True)]
    for ranking in (
        index.rerank(ids, cosines, k=8),
        index.rerank(*plain, k=8),
        index.rerank(tuple(unsigned), tuple(cosines), k=8),
        index.rerank(dicts, k=8),
        index.rerank(ids, [1 - row for row in cosines], metric="cosine-distance", k=8),
    ):
        np.testing.assert_array_equal(ranking.ids, expected.ids)
    for keys in (KEYS, NUMBERS, NUMBERS.astype("uint64") + np.uint64(2**63)):
        other = named(index, keys)
        rows = [[keys[one] for one in row] for row in ids]
        same(other.rerank(rows, cosines, k=8), expected)
        given = [dict(zip(*both, strict=True)) for both in zip(rows, plain[1], strict=True)]
        same(other.rerank(given, k=8), expected)


def test_signed_and_unsigned_lists_go_together(index, lists):
    expected = padded(index, lists, (2, 6, 1))
    ids = [lists[0][0, :2].astype("uint64"), lists[0][1], np.array([lists[0][2, 0], -1])]
    cosines = [lists[1][0, :2], lists[1][1], lists[1][2, :2]]
    np.testing.assert_array_equal(index.rerank(ids, cosines, k=8).ids, expected.ids)


def test_nothing_found_for_any_query_is_no_error(index):
    for found in (index.rerank([[], []], [[], []], k=3), index.rerank([{}, {}], k=3)):
        assert found.ids.tolist() == [[-1] * 3] * 2


def test_one_query_may_come_alone(index, lists):
    ids, cosines = (array[0] for array in lists)
    expected = index.rerank(ids[None, :], cosines[None, :], k=8)
    one = dict(zip(ids.tolist(), cosines.tolist(), strict=True))
    keyed = named(index, KEYS)
    for ranking in (
        index.rerank(ids, cosines, k=8),
        index.rerank(ids.tolist(), cosines, k=8),
        index.rerank(ids.tolist(), cosines.tolist(), k=8),
        index.rerank(one, k=8),
        keyed.rerank(KEYS[ids], cosines, k=8),
        keyed.rerank(KEYS[ids].tolist(), cosines.tolist(), k=8),
        keyed.rerank(dict(zip(KEYS[ids], cosines, strict=True)), k=8),
    ):
        same(ranking, expected)


@pytest.mark.parametrize("filler", [np.nan, np.inf, 3.4028235e38])
@pytest.mark.parametrize("garbage", [0, 7, 2**40])
def test_the_end_of_distances_that_are_none_is_nothing_found(index, lists, filler, garbage):
    lengths = (2, 6, 0)
    expected = padded(index, lists, lengths)
    ids, distances = lists[0].astype("uint64"), 1 - lists[1]
    for row, length in enumerate(lengths):
        ids[row, length:], distances[row, length:] = garbage, filler
    ranking = index.rerank(ids, distances, metric="cosine-distance", k=8)
    np.testing.assert_array_equal(ranking.ids, expected.ids)
    # An engine with keys fills up with what is no key.
    keys = np.where(distances < 3, NUMBERS[np.minimum(ids, ITEMS - 1).astype(int)], garbage)
    found = named(index, NUMBERS).rerank(
        keys.astype("uint64"), distances, metric="cosine-distance", k=8
    )
    np.testing.assert_array_equal(found.ids, expected.ids)


@pytest.mark.parametrize("filler", [np.nan, np.inf])
@pytest.mark.parametrize("keys", [None, NUMBERS])
def test_a_gap_in_the_midst_of_distances_is_refused(index, lists, keys, filler):
    distances = 1 - lists[1]
    distances[1, 2] = filler
    ids, searched = lists[0], index
    if keys is not None:
        ids, searched = keys[lists[0]], named(index, keys)
    with pytest.raises(ValueError, match="finite"):
        searched.rerank(ids, distances, metric="cosine-distance")
    with pytest.raises(ValueError, match="finite"):  # and so it is where nothing else is
        searched.rerank(ids, np.full_like(distances, filler), metric="l2")


def test_the_end_of_cosines_that_are_none_is_refused(index, lists):
    lists[1][1, 4:] = np.nan
    with pytest.raises(ValueError, match="finite"):
        index.rerank(*lists)


@pytest.mark.parametrize("kind", ["uint32", "uint64"])
def test_the_largest_unsigned_number_is_nothing_found(index, lists, kind):
    expected = padded(index, lists, (2, 6, 1))
    ids = lists[0].astype(kind)
    ids[0, 2:] = ids[2, 1:] = np.iinfo(kind).max
    np.testing.assert_array_equal(index.rerank(ids, lists[1], k=8).ids, expected.ids)
    with pytest.raises(ValueError, match=r"below 2\*\*63|must lie in"):
        index.search_items(ids[0])
    # In lists of different lengths, beside signed ones, and among keys, too.
    ragged, cosines = [ids[0, :4], ids[1], ids[2, :2]], [lists[1][0, :4], lists[1][1]]
    cosines.append(lists[1][2, :2])
    np.testing.assert_array_equal(index.rerank(ragged, cosines, k=8).ids, expected.ids)
    beside = [ragged[0], lists[0][1], ragged[2]]
    if kind == "uint32":
        np.testing.assert_array_equal(index.rerank(beside, cosines, k=8).ids, expected.ids)
    keyed = named(index, np.arange(100, 100 + ITEMS))
    keys = np.where(ids == np.iinfo(kind).max, ids, ids + np.array(100, kind))
    np.testing.assert_array_equal(keyed.rerank(keys, lists[1], k=8).ids, expected.ids)
    rows = [keys[0, :4], keys[1], keys[2, :2]]
    np.testing.assert_array_equal(keyed.rerank(rows, cosines, k=8).ids, expected.ids)


def test_inner_products_of_unit_vectors_are_cosines(index, lists):
    for metric in ("ip", "inner-product"):
        same(index.rerank(*lists, metric=metric, k=8), index.rerank(*lists, k=8))
        with pytest.raises(ValueError, match=r"unit length before searching, x = x / np\.linalg"):
            index.rerank(lists[0], lists[1] * 57, metric=metric)
        with pytest.raises(ValueError, match=r"metric='cosine-distance' \(also for hnswlib's"):
            index.rerank(lists[0], 1 - lists[1], metric=metric)


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ("cos", "'cosine-distance' for usearch"),
        ("dot", "'inner-product', or 'cosine-distance' for LanceDB"),
        ("Euclid", "'l2'"),
        ("euclidean", "'l2'"),
        ("sqeuclidean", "'squared-l2'"),
    ],
)
def test_names_of_other_engines_are_answered_by_ours(index, lists, metric, told):
    with pytest.raises(ValueError, match=f"; got '{metric}'. Pass {told}"):
        index.rerank(*lists, metric=metric)


@pytest.mark.parametrize(
    ("given", "fault", "told"),
    [
        (([[1], [2, 3]], [[0.5], [0.5]]), ValueError, "query 1 has 2 ids and 1 similarities"),
        (([[1, 2], [3, 4]], [[0.5], [0.5, 0.4]]), ValueError, "query 0 has 2 ids and 1 simil"),
        (([[1], [2, 3]], [[0.5]]), ValueError, "2 and 1 lists"),
        (([[1], [2, 3]], [["a"], [1, 2]]), TypeError, "lists of numbers"),
        (([{1: 0.5}, [2]],), TypeError, "got both"),
        (([{1: 0.5}], [[0.5]]), ValueError, "leave similarities out"),
        (([[1]],), TypeError, "similarities of the ids are missing"),
        (([[1], ["a", "b"]], [[0.5], [0.5, 0.4]]), TypeError, "ids must be integers.*with keys="),
        (([["a", "b"]], [[0.5, 0.4]]), TypeError, "ids must be integers.*built with keys="),
        (([[1], [2]], ([0.5] for _ in range(2))), TypeError, "similarities must be floating"),
        (([[1], [2.5, 3]], [[0.5], [0.5, 0.4]]), TypeError, "ids must be integers"),
        (
            ([[1, 99], [2]], [[0.5, 0.4], [0.4]]),
            ValueError,
            r"\[0, 23\].*with keys=",
        ),
        (([[[1]]], [[[0.5]]]), ValueError, "2-D"),
        (([], []), ValueError, "non-empty"),
    ],
)
def test_lists_that_do_not_fit_are_refused_by_name(index, given, fault, told):
    with pytest.raises(fault, match=told):
        index.rerank(*given)


def test_lists_of_all_items_come_in_the_same_forms(backend, rng):
    vectors = clustered_vectors(rng, ITEMS)
    lists = hg.nearest_neighbors(vectors, k=5, dtype="float64", backend="numpy")
    expected = hg.build_index_from_neighbors(
        lists.ids, lists.similarities, neighbors=5, dtype="float64", backend=backend
    )
    dicts = [
        dict(zip(*row, strict=True))
        for row in zip(KEYS[lists.ids].tolist(), lists.similarities.tolist(), strict=True)
    ]
    made = hg.build_index_from_neighbors(
        dicts, neighbors=5, keys=KEYS, dtype="float64", backend=backend
    )
    np.testing.assert_array_equal(
        dense(backend, made.graph.adjacency), dense(backend, expected.graph.adjacency)
    )
    with pytest.raises(ValueError, match="2-D"):
        hg.build_index_from_neighbors([1, 0], [0.5, 0.5], backend=backend)


def test_lists_of_the_device_are_taken_as_those_of_the_host(index, backend, lists):
    ids, distances = lists[0].astype("uint64"), 1 - lists[1]
    distances[0, 2:], distances[2, 5:] = np.nan, np.inf
    expected = index.rerank(ids, distances, metric="cosine-distance", k=8)
    here = backend.asarray(ids), backend.asarray(distances)
    found = index.rerank(*here, metric="cosine-distance", k=8)
    np.testing.assert_array_equal(backend.to_numpy(found.ids), expected.ids)
    alone = index.rerank(here[0][1, :], here[1][1, :], metric="cosine-distance", k=8)
    np.testing.assert_array_equal(backend.to_numpy(alone.ids), expected.ids[1:2])


def test_one_query_alone_may_name_integers_on_both_sides_of_2_63():
    keys = [1, 2**63 + 5, 2**63 + 7]
    vectors = np.eye(3, dtype=np.float32) + 0.1
    index = hg.build_index(vectors, keys=keys, neighbors=1, backend="numpy")
    found = index.rerank([keys[1], keys[0]], [0.9, 0.1], k=1)
    assert found.keys.tolist() == [[keys[1]]]


@pytest.mark.parametrize("metric", ["cosine", "squared-l2"])
def test_lists_in_no_order_are_seen_by_their_most_similar_items(backend, metric):
    rng = np.random.default_rng(71)
    vectors = clustered_vectors(rng, n=90).astype("float32")
    index = hg.build_index(vectors, neighbors=6, backend=backend)
    ids = np.stack([rng.choice(90, 12, replace=False) for _ in range(7)])
    cosines = -np.sort(-rng.uniform(0.2, 0.9, ids.shape), axis=1)
    ids[3, 9:], ids[5, 4:] = -1, -1
    mixed = rng.permuted(np.tile(np.arange(12), (7, 1)), axis=1)
    values = cosines if metric == "cosine" else 2 - 2 * cosines
    given = np.take_along_axis(ids, mixed, axis=1), np.take_along_axis(values, mixed, axis=1)
    expected = index.rerank(ids, cosines, k=20)
    found = index.rerank(*given, metric=metric, k=20)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)
    seen = hg.observe(*given, 90, metric=metric, query_neighbors=3, backend=backend)
    np.testing.assert_array_equal(backend.to_numpy(seen.ids), ids[:, :3])


def test_equally_similar_items_stay_in_their_order(backend):
    ids, cosines = np.array([[4, 2, 7, 1, -1]]), np.array([[0.5, 0.5, 0.9, 0.5, 0.7]])
    seen = hg.observe(ids, cosines, 9, query_neighbors=3, backend=backend)
    assert backend.to_numpy(seen.ids).tolist() == [[7, 4, 2]]
