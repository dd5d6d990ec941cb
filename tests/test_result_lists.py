"""What comes out of other people's engines: taken as it is meant, or refused with what to write."""

import numpy as np
import pytest
import scipy.sparse as sparse

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
