import numpy as np
import pytest

import hybrid_gpu as hg


def observe(backend, ids, similarities, n=6, **options):
    return hg.observe(
        np.array(ids), np.array(similarities, dtype="float64"), n, backend=backend, **options
    )


def test_weights_are_powers_of_the_first_similarities(backend, dtype):
    seen = observe(
        backend, [[3, 0, 5]], [[0.9, 0.5, 0.1]], query_neighbors=2, gamma=2.0, dtype=dtype
    )
    column = backend.to_numpy(seen.dense(backend))
    np.testing.assert_allclose(column[:, 0], [0.25, 0, 0, 0.81, 0, 0], rtol=1e-6)
    assert column.dtype == dtype
    assert repr(seen) == "Observation(1 queries on 6 items)"


def test_missing_results_are_skipped_and_repeated_ids_add_up(backend):
    seen = observe(
        backend,
        [[2, 2, -1], [-1, -1, -1]],
        [[0.5, 0.5, np.nan], [0, 0, 0]],
        gamma=1.0,
        query_neighbors=None,
    )
    columns = backend.to_numpy(seen.dense(backend))
    assert columns.shape == (6, 2)
    assert columns[:, 0].tolist() == [0, 0, 1, 0, 0, 0]
    assert not np.any(columns[:, 1])


@pytest.mark.parametrize(("observed", "second"), [(1, 0), (2, 0.1**0.5), (3, 0.1**0.5)])
def test_the_best_valid_results_are_observed_and_negative_ones_weigh_nothing(
    backend, observed, second
):
    seen = observe(
        backend, [[-1, 2, -1, 4, 5]], [[9, 0.5, 0, -0.2, 0.1]], query_neighbors=observed, gamma=0.5
    )
    column = backend.to_numpy(seen.dense(backend))[:, 0]
    np.testing.assert_allclose(column, [0, 0, 0.5**0.5, 0, 0, second], rtol=1e-6)


def test_distances_weigh_what_their_cosines_do(backend):
    seen = observe(backend, [[1, 3]], [[0.6, 1.0]], metric="l2", gamma=1.0)
    column = backend.to_numpy(seen.dense(backend))[:, 0]
    np.testing.assert_allclose(column, [0, 0.82, 0, 0.5, 0, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("ids", "similarities", "message"),
    [
        ([[6]], [[0.5]], r"ids must lie in \[0, 5\]"),
        ([[-2]], [[0.5]], r"ids must lie in \[0, 5\]"),
        ([[1]], [[1.5]], "must be cosines"),
        ([[1]], [[np.nan]], "finite"),
        ([[1, 2]], [[0.5]], "same shape"),
        ([1, 2], [0.5, 0.5], "2-D"),
    ],
)
def test_bad_results_are_refused(backend, ids, similarities, message):
    with pytest.raises(ValueError, match=message):
        observe(backend, ids, similarities)


def test_ids_must_be_integers_and_similarities_floats(backend):
    with pytest.raises(TypeError, match=r"ids.astype\('int64'\)"):
        observe(backend, [[1.0]], [[0.5]])
    with pytest.raises(TypeError, match=r"similarities.astype\('float32'\)"):
        hg.observe(np.array([[1]]), np.array([[1]]), 6, backend=backend)
