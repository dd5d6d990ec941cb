import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import dense, path, random_affinity, two_cliques

import hybrid_gpu as hg
from hybrid_gpu import reference
from hybrid_gpu.diffusion import aggregate_basis, coarse_inverse
from hybrid_gpu.diffusion import galerkin_basis as module


def graph_of(backend, rng, dtype="float64"):
    return hg.graph_from_affinity(random_affinity(rng), dtype=dtype, backend=backend)


def vectors_of(backend, basis):
    """Z as a NumPy array, by prolonging every unit of the coefficients."""
    identity = np.eye(
        basis.rank,
        dtype=backend.to_numpy(
            basis.prolong(backend.asarray(np.zeros((basis.rank, 1), "float32")))
        ).dtype,
    )
    return backend.to_numpy(basis.prolong(backend.asarray(identity)))


def check_operations(backend, basis, graph, vectors, rng, dtype, loose):
    """Restrict, prolong and deflate are products with Z, and with (I - W) Z and E^-1."""
    n, r = vectors.shape
    adjacency = dense(backend, graph.adjacency).astype("float64")
    signal = rng.standard_normal((n, 3)).astype(dtype)
    coefficients = rng.standard_normal((r, 3)).astype(dtype)

    def close(ours, expected):
        np.testing.assert_allclose(backend.to_numpy(ours), expected, atol=loose)

    close(basis.restrict(backend.asarray(signal)), vectors.T @ signal)
    close(basis.prolong(backend.asarray(coefficients)), vectors @ coefficients)
    image = vectors - 0.9 * adjacency @ vectors
    small, restricted = vectors.T @ image, vectors.T @ signal
    solved = np.linalg.solve(small, restricted)
    taken = basis.deflation(0.9)(backend.asarray(signal.copy()))
    close(taken.coefficients, solved)
    close(taken.values, signal - image @ solved)
    close(taken.share, np.sum(restricted * solved, axis=0))
    assert str(taken.share.dtype).endswith("float64")
    norm = basis.coarse_inverse(0.9).norm
    largest = 1 / np.linalg.eigvalsh(small)[0]
    assert largest * (1 - 10 * loose) <= norm <= max(largest, 1 / (1 - 0.9)) * (1 + 10 * loose)
    np.testing.assert_allclose(
        backend.to_numpy(taken.rounding), norm * np.sum(restricted**2, axis=0), rtol=10 * loose
    )


def test_eigenvectors_as_a_basis(backend, rng, dtype):
    graph = graph_of(backend, rng, dtype)
    spectrum = hg.leading_eigenpairs(graph, rank=6, tolerance=1e-6, backend=backend)
    basis = hg.eigen_basis(spectrum, graph, backend=backend)
    vectors = backend.to_numpy(spectrum.eigenvectors)
    loose = {"float32": 1e-4, "float64": 1e-8}[dtype]
    check_operations(backend, basis, graph, vectors, rng, dtype, loose)
    assert basis.memory == 61 * 6 * np.dtype(dtype).itemsize
    assert (basis.rank, basis.precision, basis.invariant) == (6, dtype, True)


def test_int8_eigenvectors_are_off_by_half_a_unit_at_most(backend, rng):
    graph = graph_of(backend, rng, "float32")
    spectrum = hg.leading_eigenpairs(graph, rank=6, backend=backend)
    basis = hg.eigen_basis(spectrum, graph, precision="int8", backend=backend)
    vectors = backend.to_numpy(spectrum.eigenvectors)
    units = np.abs(vectors).max(axis=0) / 127
    assert np.all(np.abs(backend.to_numpy(basis.dense()) - vectors) <= 0.501 * units)
    assert basis.memory == 60 * 6 + 2 * 6 * 4
    signal = rng.standard_normal((60, 2)).astype("float32")
    np.testing.assert_allclose(
        backend.to_numpy(basis.restrict(backend.asarray(signal))),
        backend.to_numpy(basis.dense()).T @ signal,
        atol=1e-5,
    )


def test_half_precision_is_a_half_or_a_clear_refusal(backend, rng):
    graph = graph_of(backend, rng, "float32")
    spectrum = hg.leading_eigenpairs(graph, rank=6, backend=backend)
    if not hasattr(backend.xp, "float16"):
        with pytest.raises(ValueError, match="has no float16"):
            hg.eigen_basis(spectrum, graph, precision="float16", backend=backend)
        return
    basis = hg.eigen_basis(spectrum, graph, precision="float16", backend=backend)
    np.testing.assert_allclose(
        backend.to_numpy(basis.dense()), backend.to_numpy(spectrum.eigenvectors), atol=5e-4
    )
    assert basis.memory == 60 * 6 * 2 + 6 * 4


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.7])
def test_sparse_eigenvectors_drop_the_smallest_entries(backend, rng, dtype, sparsity):
    graph = graph_of(backend, rng, dtype)
    eigenvectors = hg.leading_eigenpairs(graph, rank=6, backend=backend).eigenvectors
    basis = hg.sparse_eigen_basis(eigenvectors, graph, sparsity=sparsity, backend=backend)
    kept = reference.sparsify(backend.to_numpy(eigenvectors), sparsity).toarray()
    loose = {"float32": 1e-4, "float64": 1e-9}[dtype]
    check_operations(backend, basis, graph, kept, rng, dtype, loose)
    assert basis.vectors.data.shape[0] == 360 - int(sparsity * 360)


def test_weights_choose_the_entries_and_change_none(backend, rng, dtype):
    graph = graph_of(backend, rng, dtype)
    eigenvectors = hg.leading_eigenpairs(graph, rank=6, backend=backend).eigenvectors
    weights = np.array([3.0, 2.0, 1.5, 1.2, 1.0, 0.7])
    basis = hg.sparse_eigen_basis(
        eigenvectors, graph, sparsity=0.6, weights=weights, backend=backend
    )
    kept = reference.sparsify(backend.to_numpy(eigenvectors), 0.6, weights).toarray()
    assert np.count_nonzero(kept[:, 0]) > 2 * np.count_nonzero(kept[:, 5]) > 0
    loose = {"float32": 1e-4, "float64": 1e-9}[dtype]
    check_operations(backend, basis, graph, kept, rng, dtype, loose)
    np.testing.assert_allclose(backend.to_numpy(basis.weights), weights, rtol=1e-6)


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        (np.ones(3), r"weights must be an array of shape \(2,\)"),
        (3.0, r"weights must be an array of shape \(2,\)"),
        (np.array([1.0, -1.0]), "weights must be finite and not negative"),
        (np.array([1.0, np.nan]), "weights must be finite and not negative"),
        (np.array([1.0, np.inf]), "weights must be finite and not negative"),
    ],
)
def test_impossible_weights_are_refused(backend, rng, weights, told):
    graph = graph_of(backend, rng)
    eigenvectors = hg.leading_eigenpairs(graph, rank=2, backend=backend).eigenvectors
    with pytest.raises(ValueError, match=told):
        hg.sparse_eigen_basis(eigenvectors, graph, weights=weights, backend=backend)


@pytest.mark.parametrize("sparsity", [1.0, -0.1])
def test_impossible_sparsity_is_refused(backend, rng, sparsity):
    graph = graph_of(backend, rng)
    eigenvectors = hg.leading_eigenpairs(graph, rank=2, backend=backend).eigenvectors
    with pytest.raises(ValueError, match=r"sparsity must lie in \[0, 1\)"):
        hg.sparse_eigen_basis(eigenvectors, graph, sparsity=sparsity, backend=backend)


def test_aggregates_have_the_root_of_the_degree_inside_their_group(backend, rng, dtype):
    graph = graph_of(backend, rng, dtype)
    labels = rng.integers(-1, 5, 60)
    basis = hg.aggregate_basis(graph, labels, backend=backend)
    degrees = backend.to_numpy(graph.degrees).astype("float64")
    inside = (labels[:, None] == np.arange(5)) & (degrees > 0)[:, None]
    expected = np.where(inside, np.sqrt(degrees)[:, None], 0)
    expected = expected / np.linalg.norm(expected, axis=0)
    loose = {"float32": 1e-4, "float64": 1e-9}[dtype]
    check_operations(backend, basis, graph, expected, rng, dtype, loose)


def test_a_whole_component_is_solved_by_a_division(backend):
    blocks = sparse.csr_array(sparse.block_diag([path(6), two_cliques(3), np.zeros((2, 2))]))
    graph = hg.graph_from_affinity(blocks, dtype="float64", backend=backend)
    # The second clique is the group 0: it is numbered behind those that couple.
    labels = np.array([1, 1, 1, 2, 2, 2, 3, 3, 3, 0, 0, 0, 4, -1])
    basis = hg.aggregate_basis(graph, labels, backend=backend)
    assert basis.rank == 4
    assert tuple(basis.coupling.shape) == (2, 2)
    np.testing.assert_allclose(backend.to_numpy(basis.alone)[:, 0], [1, 1], atol=1e-12)
    check_operations(
        backend, basis, graph, vectors_of(backend, basis), np.random.default_rng(3), "float64", 1e-9
    )


def test_own_vectors_dense_or_sparse_are_the_same_basis(backend, rng, dtype):
    graph = graph_of(backend, rng, dtype)
    vectors = (rng.standard_normal((60, 5)) * (rng.random((60, 5)) < 0.4)).astype(dtype)
    loose = {"float32": 1e-4, "float64": 1e-9}[dtype]
    for given in (vectors, sparse.csr_array(vectors), sparse.csc_array(vectors)):
        basis = hg.given_basis(graph, given, backend=backend)
        check_operations(backend, basis, graph, vectors, rng, dtype, loose)


def test_vectors_that_depend_on_each_other_are_solved_on_their_span(backend, rng):
    graph = graph_of(backend, rng)
    once = rng.standard_normal((60, 3))
    basis = hg.given_basis(graph, np.concatenate([once, once @ once.T[:, :3]], 1), backend=backend)
    signal = rng.standard_normal((60, 2))
    single = hg.given_basis(graph, once, backend=backend)
    solved, expected = (
        backend.to_numpy(each.prolong(each.deflation(0.9)(backend.asarray(signal)).coefficients))
        for each in (basis, single)
    )
    assert np.all(np.isfinite(solved))
    np.testing.assert_allclose(solved, expected, atol=1e-6)


def test_memory_counts_every_array(backend, rng):
    graph = graph_of(backend, rng, "float32")
    basis = hg.given_basis(graph, np.ones((60, 4)), backend=backend)
    assert basis.memory == 4 * (60 * 4 + 3 * 16)
    assert repr(basis) == "GalerkinBasis(given, dense, rank 4, 0.0 MB)"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.ones((59, 2)), r"shape \(n, r\) with n = 60"),
        (np.full((60, 2), np.nan), "finite"),
        (sparse.csr_array(np.full((60, 2), np.inf)), "finite"),
    ],
)
def test_bad_vectors_are_refused(backend, rng, given, message):
    with pytest.raises(ValueError, match=message):
        hg.given_basis(graph_of(backend, rng), given, backend=backend)


@pytest.mark.parametrize(
    "labels", [np.zeros(59, int), np.zeros(60), np.full(60, -2), np.arange(60) - 2]
)
def test_bad_labels_are_refused(backend, rng, labels):
    with pytest.raises(ValueError, match="labels must be"):
        hg.aggregate_basis(graph_of(backend, rng), labels, backend=backend)


def test_one_group_is_one_vector_and_none_is_none(backend, rng):
    graph = graph_of(backend, rng)
    one = hg.aggregate_basis(graph, np.zeros(60, int), backend=backend)
    assert (one.rank, tuple(one.vectors.shape)) == (1, (60, 1))
    check_operations(backend, one, graph, vectors_of(backend, one), rng, "float64", 1e-9)
    none = hg.aggregate_basis(graph, np.full(60, -1), backend=backend)
    assert none.rank == 0
    right = backend.asarray(rng.random((60, 2)))
    plain = hg.diffuse(graph, right, steps=7, backend=backend)
    same = hg.diffuse(graph, right, basis=none, steps=7, backend=backend)
    np.testing.assert_array_equal(backend.to_numpy(same.values), backend.to_numpy(plain.values))


def test_one_vector_of_the_user_is_a_basis(backend, rng, dtype):
    graph = graph_of(backend, rng, dtype)
    vector = rng.standard_normal((60, 1)).astype(dtype)
    basis = hg.given_basis(graph, vector, backend=backend)
    loose = {"float32": 1e-3, "float64": 1e-9}[dtype]
    check_operations(backend, basis, graph, vector, rng, dtype, loose)


def test_no_eigenvectors_are_no_sparse_eigenvectors(backend, rng):
    graph = graph_of(backend, rng)
    nothing = backend.asarray(np.zeros((60, 0)))
    assert hg.sparse_eigen_basis(nothing, graph, backend=backend).rank == 0


def test_more_vectors_than_a_block_are_coupled_alike(backend, rng, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 2)
    graph = graph_of(backend, rng)
    vectors = rng.standard_normal((60, 5))
    basis = hg.given_basis(graph, vectors, backend=backend)
    check_operations(backend, basis, graph, vectors, rng, "float64", 1e-8)


def test_groups_couple_alike_however_many_rows_are_added_up_at_a_time(backend, rng, monkeypatch):
    graph, labels = graph_of(backend, rng, "float32"), rng.integers(-1, 6, 60)

    def parts():
        basis = hg.aggregate_basis(graph, labels, backend=backend)
        matrices = (basis.spread, basis.coupling)
        arrays = [(one.data, one.indices, one.indptr) for one in matrices]
        return [backend.to_numpy(array) for three in arrays for array in three]

    whole = parts()
    for rows in (1, 7, 30):
        monkeypatch.setattr(aggregate_basis, "_ROWS", rows)
        for one, other in zip(whole, parts(), strict=True):
            np.testing.assert_array_equal(one, other, strict=True)


def test_inverse_of_groups_needs_less_room_than_that_of_other_vectors(backend, rng, monkeypatch):
    graph = graph_of(backend, rng)
    groups = hg.aggregate_basis(graph, rng.integers(0, 6, 60), backend=backend)
    others = hg.given_basis(graph, rng.standard_normal((60, 6)), backend=backend)
    for basis, arrays in ((groups, 2), (others, 6)):
        room = arrays * 8 * basis.coupling.shape[0] ** 2
        monkeypatch.setattr(coarse_inverse, "available_host_bytes", lambda room=room: room - 1)
        with pytest.raises(MemoryError, match="to invert the system"):
            basis.coarse_inverse(0.9)
        monkeypatch.setattr(coarse_inverse, "available_host_bytes", lambda room=room: room)
        assert basis.coarse_inverse(0.9).together.shape == basis.coupling.shape


def test_memory_of_groups_counts_every_array_and_the_inverse(backend, rng):
    graph = graph_of(backend, rng, "float32")
    basis = hg.aggregate_basis(graph, rng.integers(0, 6, 60), backend=backend)
    matrices = (basis.vectors, basis.transposed, basis.spread, basis.coupling)
    arrays = [part for one in matrices for part in (one.data, one.indices, one.indptr)]
    stored = sum(backend.to_numpy(part).nbytes for part in (*arrays, basis.alone))
    assert basis.memory == stored + 4 * basis.coupling.shape[0] ** 2


def test_precision_that_there_is_not_is_refused(backend, rng):
    graph = graph_of(backend, rng)
    spectrum = hg.leading_eigenpairs(graph, rank=3, backend=backend)
    with pytest.raises(ValueError, match="precision must be one of"):
        hg.eigen_basis(spectrum, graph, precision="float8", backend=backend)


def test_groups_without_items_have_no_vector(backend, rng):
    graph = graph_of(backend, rng)
    labels = 7 * rng.integers(0, 3, 60) + 2
    basis = hg.aggregate_basis(graph, labels, backend=backend)
    assert basis.rank == 3
    check_operations(backend, basis, graph, vectors_of(backend, basis), rng, "float64", 1e-9)
