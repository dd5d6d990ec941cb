"""The inverse of the small system of a basis, and the memory that it takes."""

import numpy as np
import pytest

from hybrid_gpu.diffusion import coarse_inverse as module


def coupling_of(rng, size):
    """A symmetric matrix with eigenvalues in [-1, 1], as orthonormal vectors couple."""
    turned, _ = np.linalg.qr(rng.standard_normal((size, size)))
    matrix = turned * rng.uniform(-1, 1, size) @ turned.T
    return (matrix + matrix.T) / 2


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("order", ["C", "F"])
def test_inverse_is_that_of_the_whole_matrix(rng, size, order):
    coupling = coupling_of(rng, size)
    inverse, norm = module.inverted(np.array(coupling, order=order), None, 0.9, "float64")
    np.testing.assert_allclose(inverse @ (np.eye(size) - 0.9 * coupling), np.eye(size), atol=1e-12)
    assert np.array_equal(inverse, inverse.T)
    assert np.linalg.norm(inverse, 2) <= norm * (1 + 1e-12)


def test_inverse_with_a_gram_matrix_is_that_of_both(rng):
    vectors = rng.standard_normal((40, 6))
    gram, coupling = vectors.T @ vectors, vectors.T @ coupling_of(rng, 40) @ vectors
    inverse, norm = module.inverted(coupling.copy(), gram, 0.9, "float64")
    np.testing.assert_allclose(inverse @ (gram - 0.9 * coupling), np.eye(6), atol=1e-10)
    assert np.linalg.norm(inverse, 2) == pytest.approx(norm)


def test_result_has_the_dtype_that_is_asked_for(rng):
    inverse, _ = module.inverted(coupling_of(rng, 5), None, 0.9, "float32")
    assert inverse.dtype == np.float32


@pytest.mark.parametrize("gram", [None, np.zeros((0, 0))])
def test_basis_without_vectors_has_an_empty_inverse(gram):
    assert module.inverted(np.zeros((0, 0)), gram, 0.9, "float32")[0].shape == (0, 0)


@pytest.mark.parametrize("size", [0, 3])
def test_vectors_that_span_nothing_have_an_inverse_of_norm_zero(size):
    nothing = np.zeros((size, size))
    inverse, norm = module.inverted(nothing.copy(), nothing, 0.9, "float64")
    assert norm == 0
    assert not inverse.any()


# In one piece, in two, in two of which one is cut again, and down to single rows.
@pytest.mark.parametrize("leaf", [30, 15, 14, 1])
@pytest.mark.parametrize("order", ["C", "F"])
def test_matrix_is_inverted_where_it_lies(rng, monkeypatch, leaf, order):
    monkeypatch.setattr(module, "_LEAF", leaf)
    matrix = np.array(coupling_of(rng, 30) + 2 * np.eye(30), order=order)
    expected = np.linalg.inv(matrix)
    module._invert(matrix)
    np.testing.assert_allclose(matrix, expected, rtol=1e-9, atol=1e-12)


def test_singular_matrix_is_an_error():
    with pytest.raises(np.linalg.LinAlgError, match="singular"):
        module._invert(np.ones((3, 3)))


@pytest.mark.parametrize(("orthonormal", "arrays"), [(True, 2), (False, 6)])
def test_room_is_asked_for_as_many_arrays_as_it_takes(monkeypatch, orthonormal, arrays):
    monkeypatch.setattr(module, "available_host_bytes", lambda: arrays * 8 * 100)
    module.check_room_for_inverse(10, orthonormal=orthonormal)
    with pytest.raises(MemoryError, match="to invert the system of 11 basis vectors"):
        module.check_room_for_inverse(11, orthonormal=orthonormal)
