"""Eigenpairs against numpy.linalg.eigh, and a certificate that notices what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sparse

import hybrid_gpu as hg
from hybrid_gpu import spectrum as module
from hybrid_gpu.backends.numpy_backend import NumpyBackend
from hybrid_gpu.backends.protocol import Eigenpairs
from hybrid_gpu.spectrum import Spectrum, leading_eigenpairs


@pytest.fixture(autouse=True)
def _iterate_on_small_graphs(monkeypatch):
    monkeypatch.setattr(module, "_DENSE_ITEMS", 30)


def hypercube(dimensions):
    """Eigenvalues 1 - 2 k / dimensions, each as often as there are k-subsets."""
    edge = sparse.csr_array([[0.0, 1.0], [1.0, 0.0]])
    cube = edge
    for _ in range(dimensions - 1):
        cube = sparse.kron(cube, sparse.eye_array(2)) + sparse.kron(
            sparse.eye_array(cube.shape[0]), edge
        )
    return sparse.csr_array(cube)


def star_of_cliques(cliques, size):
    """Equal cliques, each tied to one hub: every eigenvalue of a clique repeats."""
    n = 1 + cliques * size
    whole = np.zeros((n, n))
    for first in range(1, n, size):
        whole[first : first + size, first : first + size] = 1
        whole[0, first] = whole[first, 0] = 0.1
    np.fill_diagonal(whole, 0)
    return sparse.csr_array(whole)


def complete_bipartite(left, right):
    whole = np.zeros((left + right, left + right))
    whole[:left, left:] = whole[left:, :left] = 1
    return sparse.csr_array(whole)


def path(n):
    ones = np.ones(n - 1)
    return sparse.csr_array(sparse.diags_array([ones, ones], offsets=[-1, 1]))


def random_affinity(n, degree, seed):
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(0, n, (2, n * degree))
    one = sparse.coo_array((rng.random(n * degree) + 0.1, (rows, columns)), shape=(n, n)).tocsr()
    both = sparse.csr_array(one + one.T)
    both.setdiag(0)
    both.eliminate_zeros()
    return both


GRAPHS = {
    "hypercube": hypercube(9),
    "star of cliques": star_of_cliques(30, 8),
    "complete": sparse.csr_array(np.ones((200, 200)) - np.eye(200)),
    "bipartite": complete_bipartite(90, 130),
    "path": path(300),
    "random": random_affinity(400, 4, seed=5),
    "components": sparse.csr_array(
        sparse.block_diag([np.zeros((2, 2)), path(5).toarray(), hypercube(8), np.ones((2, 2))])
    ),
}


@pytest.fixture(params=GRAPHS)
def graph(request, backend):
    return hg.graph_from_affinity(GRAPHS[request.param], dtype="float64", backend=backend)


def dense_spectrum(graph, backend):
    """All eigenvalues of the largest component, descending, the adjacency, and the items."""
    label = np.argmax(np.bincount(graph.components))
    items = np.flatnonzero(graph.components == label)
    matrix = graph.adjacency
    parts = [backend.to_numpy(part) for part in (matrix.data, matrix.indices, matrix.indptr)]
    whole = sparse.csr_array(tuple(parts), shape=matrix.shape).toarray()
    return np.linalg.eigvalsh(whole[np.ix_(items, items)])[::-1], whole, items


@pytest.mark.parametrize("rank", [1, 20, 33])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-8])
def test_block_engine_finds_every_copy_of_an_eigenvalue(graph, rank, tolerance, backend):
    found = leading_eigenpairs(graph, rank=rank, tolerance=tolerance, seed=7, backend=backend)
    values, whole, items = dense_spectrum(graph, backend)
    assert found.rank == rank
    assert found.items == items.size
    eigenvalues, vectors = (
        backend.to_numpy(part) for part in (found.eigenvalues, found.eigenvectors)
    )
    np.testing.assert_allclose(eigenvalues, values[:rank], atol=tolerance)
    errors = whole @ vectors - vectors * eigenvalues
    np.testing.assert_allclose(np.linalg.norm(errors, axis=0), found.residuals, atol=1e-12)
    assert found.residuals.max() <= tolerance
    gram = vectors.T @ vectors
    np.testing.assert_allclose(np.abs(gram - np.eye(rank)).max(), found.orthogonality, atol=1e-12)
    outside = np.setdiff1d(np.arange(graph.n), items)
    assert not vectors[outside].any()
    # Ritz values come from below; the smallest kept one is itself a tolerance away from the truth.
    assert found.missed <= values[rank] - values[rank - 1] + 2 * tolerance


@pytest.mark.parametrize("rank", [0, 256])
def test_rank_may_be_nothing_or_everything(rank, backend):
    graph = hg.graph_from_affinity(hypercube(8), backend=backend)
    found = leading_eigenpairs(graph, rank=rank, seed=7, backend=backend)
    assert found.rank == rank
    assert found.missed == -np.inf
    assert found.holds(1e-5)


def test_dense_decomposition_knows_the_next_eigenvalue(backend):
    graph = hg.graph_from_affinity(path(25), dtype="float64", backend=backend)
    found = leading_eigenpairs(graph, rank=4, seed=7, backend=backend)
    values = dense_spectrum(graph, backend)[0]
    np.testing.assert_allclose(found.missed, values[4] - values[3], atol=1e-12)


def test_lanczos_and_block_span_the_same_space_below_a_gap(backend):
    affinity = random_affinity(400, 4, seed=5)
    graph = hg.graph_from_affinity(affinity, dtype="float64", backend=backend)
    one, other = (
        leading_eigenpairs(graph, rank=10, engine=engine, tolerance=1e-8, seed=7, backend=backend)
        for engine in ("block", "lanczos")
    )
    one, other = (backend.to_numpy(pairs.eigenvectors) for pairs in (one, other))
    cosines = np.linalg.svd(one.T @ other, compute_uv=False)
    np.testing.assert_allclose(cosines, 1, atol=1e-8)


class ForgetfulBackend(NumpyBackend):
    """An ``eigsh`` that returns good pairs and leaves out one copy of a repeated eigenvalue."""

    def eigsh(self, matrix, k, start):
        identity = np.eye(matrix.shape[0])
        values, vectors = np.linalg.eigh(self.spmm(matrix, identity))
        kept = np.delete(np.arange(values.size)[::-1], 3)[:k]
        return Eigenpairs(values=values[kept], vectors=np.ascontiguousarray(vectors[:, kept]))


def test_certificate_notices_a_missing_copy():
    backend = ForgetfulBackend()
    graph = hg.graph_from_affinity(hypercube(9), dtype="float64", backend=backend)
    with pytest.raises(hg.ConvergenceError, match="missed eigenvalue") as failure:
        leading_eigenpairs(graph, rank=20, engine="lanczos", seed=7, backend=backend)
    result = failure.value.result
    assert isinstance(result, Spectrum)
    assert result.residuals.max() < 1e-10
    np.testing.assert_allclose(result.missed, 2 / 9, atol=1e-3)
    kept = leading_eigenpairs(
        graph, rank=20, engine="lanczos", seed=7, on_failure="keep", backend=backend
    )
    assert not kept.holds(1e-3)


def test_too_few_rounds_raise_with_what_was_computed(backend, monkeypatch):
    monkeypatch.setattr(module, "_ROUNDS_AT_MOST", 1)
    graph = hg.graph_from_affinity(path(300), dtype="float64", backend=backend)
    with pytest.raises(hg.ConvergenceError, match="worst residual") as failure:
        leading_eigenpairs(graph, rank=20, tolerance=1e-9, seed=7, backend=backend)
    assert failure.value.result.rank == 20


def interrupt_when_some_have_converged(stage, done, total):
    if 0 < done < total:
        raise KeyboardInterrupt


@pytest.fixture
def slow_graph(backend):
    return hg.graph_from_affinity(path(900), dtype="float64", backend=backend)


def test_ctrl_c_loses_no_converged_pair(slow_graph, backend):
    part = leading_eigenpairs(
        slow_graph,
        rank=40,
        tolerance=1e-7,
        seed=7,
        on_failure="keep",
        progress=interrupt_when_some_have_converged,
        backend=backend,
    )
    assert 0 < part.rank < 40
    assert part.holds(1e-7)
    np.testing.assert_allclose(
        backend.to_numpy(part.eigenvalues),
        dense_spectrum(slow_graph, backend)[0][: part.rank],
        atol=1e-9,
    )
    whole = leading_eigenpairs(
        slow_graph, rank=40, tolerance=1e-7, start=part, seed=7, backend=backend
    )
    values = dense_spectrum(slow_graph, backend)[0][:40]
    np.testing.assert_allclose(backend.to_numpy(whole.eigenvalues), values, atol=1e-9)


def test_ctrl_c_is_ctrl_c_for_who_did_not_ask_to_keep_anything(slow_graph, backend):
    with pytest.raises(KeyboardInterrupt):
        leading_eigenpairs(
            slow_graph,
            rank=40,
            tolerance=1e-7,
            seed=7,
            progress=interrupt_when_some_have_converged,
            backend=backend,
        )


def test_ctrl_c_before_anything_has_converged_stays_ctrl_c(slow_graph, backend):
    def interrupt(stage, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leading_eigenpairs(
            slow_graph,
            rank=40,
            tolerance=1e-12,
            seed=7,
            on_failure="keep",
            progress=interrupt,
            backend=backend,
        )


def test_same_seed_gives_the_same_bits(backend):
    graph = hg.graph_from_affinity(random_affinity(400, 4, seed=5), backend=backend)
    one, other = (leading_eigenpairs(graph, rank=12, seed=9, backend=backend) for _ in range(2))
    one, other = (backend.to_numpy(pairs.eigenvectors) for pairs in (one, other))
    assert np.array_equal(one, other)


@pytest.mark.parametrize(
    "wrong", [{"rank": 301}, {"engine": "power"}, {"tolerance": 0.0}, {"on_failure": "ignore"}]
)
def test_wrong_arguments_are_refused(wrong, backend):
    graph = hg.graph_from_affinity(path(300), backend=backend)
    with pytest.raises(ValueError, match=next(iter(wrong))):
        leading_eigenpairs(graph, **{"rank": 5, "backend": backend, **wrong})
