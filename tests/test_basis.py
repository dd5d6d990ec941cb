import numpy as np
import pytest
from conftest import random_affinity

import hybrid_gpu as hg
from hybrid_gpu import reference


def spectrum_of(backend, rng, dtype, rank=6):
    graph = hg.graph_from_affinity(random_affinity(rng), dtype=dtype, backend=backend)
    return hg.leading_eigenpairs(graph, rank=rank, backend=backend)


def test_dense_basis_restricts_and_prolongs(backend, rng, dtype, tolerance):
    spectrum = spectrum_of(backend, rng, dtype)
    basis = hg.eigen_basis(spectrum, backend=backend)
    vectors = backend.to_numpy(spectrum.eigenvectors)
    signal = rng.standard_normal((60, 3)).astype(dtype)
    coefficients = basis.restrict(backend.asarray(signal))
    np.testing.assert_allclose(backend.to_numpy(coefficients), vectors.T @ signal, atol=tolerance)
    np.testing.assert_allclose(
        backend.to_numpy(basis.prolong(coefficients)),
        vectors @ (vectors.T @ signal),
        atol=tolerance,
    )
    assert basis.memory == 61 * 6 * np.dtype(dtype).itemsize


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9, 0.99])
def test_sparse_basis_drops_the_smallest_entries(backend, rng, dtype, tolerance, sparsity):
    spectrum = spectrum_of(backend, rng, dtype)
    basis = hg.sparse_eigen_basis(spectrum, sparsity=sparsity, backend=backend)
    kept = reference.sparsify(backend.to_numpy(spectrum.eigenvectors), sparsity).toarray()
    signal = rng.standard_normal((60, 3)).astype(dtype)
    coefficients = basis.restrict(backend.asarray(signal))
    np.testing.assert_allclose(backend.to_numpy(coefficients), kept.T @ signal, atol=tolerance)
    np.testing.assert_allclose(
        backend.to_numpy(basis.prolong(coefficients)), kept @ (kept.T @ signal), atol=tolerance
    )
    assert basis.vectors.data.shape[0] == 360 - int(sparsity * 360)
    assert basis.memory < hg.eigen_basis(spectrum, backend=backend).memory or sparsity < 0.9


@pytest.mark.parametrize("sparsity", [1.0, -0.1])
def test_impossible_sparsity_is_refused(backend, rng, sparsity):
    with pytest.raises(ValueError, match=r"sparsity must lie in \[0, 1\)"):
        hg.sparse_eigen_basis(
            spectrum_of(backend, rng, "float64"), sparsity=sparsity, backend=backend
        )


def test_sparse_basis_of_rank_zero_is_empty(backend, rng):
    basis = hg.sparse_eigen_basis(spectrum_of(backend, rng, "float64", rank=0), backend=backend)
    signal = backend.asarray(np.ones((60, 2)))
    assert not np.any(backend.to_numpy(basis.prolong(basis.restrict(signal))))
