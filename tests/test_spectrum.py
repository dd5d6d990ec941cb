import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import dense, path, random_affinity, two_cliques

import hybrid_gpu as hg


@pytest.mark.parametrize("rank", [1, 5, 18, 50])
def test_eigenpairs_are_those_of_a_dense_decomposition(backend, rng, dtype, rank):
    graph = hg.graph_from_affinity(random_affinity(rng), dtype=dtype, backend=backend)
    spectrum = hg.leading_eigenpairs(graph, rank=rank, seed=3, backend=backend)
    matrix = dense(backend, graph.adjacency).astype("float64")
    # The last five items are isolated: they add zeros to the whole graph's spectrum.
    expected = np.sort(np.linalg.eigvalsh(matrix[:55, :55]))[::-1][:rank]
    loose = 1e-5 if dtype == "float32" else 1e-9
    np.testing.assert_allclose(backend.to_numpy(spectrum.eigenvalues), expected, atol=loose)
    vectors = backend.to_numpy(spectrum.eigenvectors).astype("float64")
    np.testing.assert_allclose(matrix @ vectors, vectors * expected, atol=loose)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(rank), atol=loose)
    assert backend.to_numpy(spectrum.eigenvectors).dtype == dtype
    assert spectrum.residuals.shape == (rank,)
    assert spectrum.residuals.max() < 1e-8
    assert spectrum.orthogonality < 1e-8


def test_only_the_largest_component_is_looked_at(backend):
    blocks = sparse.csr_array(sparse.block_diag([two_cliques(3), path(9)]))
    graph = hg.graph_from_affinity(blocks, backend=backend)
    spectrum = hg.leading_eigenpairs(graph, rank=2, backend=backend)
    assert spectrum.items == 9
    vectors = backend.to_numpy(spectrum.eigenvectors)
    assert not np.any(vectors[:6])
    # The normalized path has the eigenvalues cos(pi j / (n - 1)).
    np.testing.assert_allclose(
        backend.to_numpy(spectrum.eigenvalues), np.cos(np.pi * np.arange(2) / 8), atol=1e-6
    )


def test_rank_zero_is_an_empty_spectrum(backend):
    graph = hg.graph_from_affinity(path(5), backend=backend)
    spectrum = hg.leading_eigenpairs(graph, rank=0, backend=backend)
    assert spectrum.rank == 0
    assert tuple(spectrum.eigenvectors.shape) == (5, 0)
    assert repr(spectrum) == "Spectrum(rank 0 of 5 items, worst residual 0.0e+00)"


def test_same_seed_gives_the_same_eigenvectors(backend, rng):
    graph = hg.graph_from_affinity(random_affinity(rng), backend=backend)
    one, other = (hg.leading_eigenpairs(graph, rank=4, seed=9, backend=backend) for _ in range(2))
    np.testing.assert_array_equal(
        backend.to_numpy(one.eigenvectors), backend.to_numpy(other.eigenvectors)
    )


def test_rank_beyond_the_component_is_refused(backend):
    graph = hg.graph_from_affinity(path(5), backend=backend)
    with pytest.raises(ValueError, match="rank must be at most 5; got 6"):
        hg.leading_eigenpairs(graph, rank=6, backend=backend)
