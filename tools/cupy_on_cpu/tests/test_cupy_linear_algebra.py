"""CuPy's dense and sparse linear algebra against NumPy's and SciPy's."""

from __future__ import annotations

import cupy as cp
import cupyx.scipy.sparse as gpu_sparse
import numpy as np
import pytest
import scipy.sparse as cpu_sparse
import scipy.sparse.linalg as cpu_sparse_linalg
from cupyx import cusparse
from cupyx.scipy.linalg import solve_triangular
from cupyx.scipy.sparse import linalg as gpu_sparse_linalg

TOLERANCE = {np.float16: 2e-2, np.float32: 1e-4, np.float64: 1e-9, np.complex64: 1e-4, np.int32: 0}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def assert_close(gpu, cpu, dtype=np.float64):
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(cp.asnumpy(gpu), cpu, rtol=tolerance, atol=tolerance)


# ---- dense


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_matmul(rng, dtype):
    a, b = (rng.normal(size=(40, 30)) * 3).astype(dtype), (rng.normal(size=(30, 20))).astype(dtype)
    wide = np.complex128 if dtype == np.complex64 else np.float64
    product = (cp.asarray(a) @ cp.asarray(b)).get().astype(wide)
    assert_close(product, a.astype(wide) @ b.astype(wide), dtype)


def test_matmul_of_a_stack_and_other_layouts(rng):
    a, b = rng.normal(size=(5, 40, 30)), rng.normal(size=(5, 30, 4))
    assert_close(cp.asarray(a) @ cp.asarray(b), a @ b)
    assert_close(cp.asarray(a)[0].T @ cp.asarray(a)[1], a[0].T @ a[1])
    assert_close(cp.asarray(a)[0, ::2] @ cp.asarray(b)[0], a[0, ::2] @ b[0])
    assert_close(cp.einsum("ij,ij->i", *map(cp.asarray, a[:2])), (a[0] * a[1]).sum(axis=1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_qr(rng, dtype):
    a = rng.normal(size=(30, 8)).astype(dtype)
    q, r = cp.linalg.qr(cp.asarray(a))
    assert_close(q @ r, a, dtype)
    assert_close(q.T @ q, np.eye(8), dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_eigh(rng, dtype):
    a = rng.normal(size=(12, 12)).astype(dtype)
    a = a + a.T
    values, vectors = cp.linalg.eigh(cp.asarray(a))
    assert_close(values, np.linalg.eigvalsh(a), dtype)
    assert_close(cp.asarray(a) @ vectors, (vectors * values).get(), dtype)


def test_cholesky_and_triangular_solve(rng):
    a = rng.normal(size=(30, 8))
    gram = cp.asarray(a.T @ a)
    factor = cp.linalg.cholesky(gram)
    assert_close(factor @ factor.T, gram.get())
    assert_close(factor @ solve_triangular(factor, cp.asarray(a.T), lower=True), a.T)


def test_solve_inverse_and_svd(rng):
    a = rng.normal(size=(30, 8))
    gram = a.T @ a
    assert_close(cp.asarray(gram) @ cp.linalg.solve(cp.asarray(gram), cp.asarray(a.T)), a.T)
    assert_close(cp.linalg.inv(cp.asarray(gram)) @ cp.asarray(gram), np.eye(8))
    u, s, vt = cp.linalg.svd(cp.asarray(a), full_matrices=False)
    assert_close((u * s) @ vt, a)


# ---- sparse


@pytest.fixture(params=[np.float32, np.float64])
def matrix(request):
    return cpu_sparse.random(
        200, 150, density=0.05, format="csr", random_state=1, dtype=request.param
    )


def test_csr_products(rng, matrix):
    dtype = matrix.dtype.type
    dense = rng.normal(size=(150, 9)).astype(dtype)
    on_gpu = gpu_sparse.csr_matrix(matrix)
    assert_close(on_gpu @ cp.asarray(dense), matrix @ dense, dtype)
    assert_close(on_gpu @ cp.asarray(dense[:, 0]), matrix @ dense[:, 0], dtype)
    assert_close((on_gpu.T @ on_gpu).toarray(), (matrix.T @ matrix).toarray(), dtype)


def test_spmm_of_cusparse(rng, matrix):
    dtype = matrix.dtype.type
    on_gpu = gpu_sparse.csr_matrix(matrix)
    right = rng.normal(size=(150, 9)).astype(dtype)
    left = rng.normal(size=(200, 4)).astype(dtype)
    out = cp.zeros((200, 9), dtype=dtype, order="F")
    cusparse.spmm(on_gpu, cp.asarray(right, order="F"), out)
    assert_close(out, matrix @ right, dtype)
    product = cusparse.spmm(on_gpu, cp.asarray(left, order="F"), transa=True)
    assert_close(product, matrix.T @ left, dtype)


def test_sparse_sums_conversions_and_slices(matrix):
    dtype = matrix.dtype.type
    on_gpu = gpu_sparse.csr_matrix(matrix)
    assert_close((on_gpu + on_gpu).toarray(), 2 * matrix.toarray(), dtype)
    assert_close(on_gpu.tocsc().tocoo().tocsr().toarray(), matrix.toarray(), dtype)
    assert_close(on_gpu.sum(axis=0), matrix.sum(axis=0), dtype)
    assert_close(on_gpu[3:10].toarray(), matrix[3:10].toarray(), dtype)
    assert_close(on_gpu[cp.asarray([5, 2])].toarray(), matrix[[5, 2]].toarray(), dtype)
    assert_close(on_gpu.multiply(on_gpu).toarray(), matrix.multiply(matrix).toarray(), dtype)
    assert_close(gpu_sparse.csr_matrix(cp.asarray(matrix.toarray())).data, matrix.data, dtype)


@pytest.mark.parametrize("which", ["LA", "SA", "LM"])
def test_eigsh(which):
    half = cpu_sparse.random(300, 300, density=0.05, format="csr", random_state=1)
    symmetric = (half + half.T).tocsr()
    values, vectors = gpu_sparse_linalg.eigsh(gpu_sparse.csr_matrix(symmetric), k=6, which=which)
    expected = cpu_sparse_linalg.eigsh(symmetric, 6, which=which, return_eigenvectors=False)
    assert_close(cp.sort(values), np.sort(expected))
    assert_close(symmetric @ vectors.get(), (vectors * values).get())


def test_eigsh_of_an_operator():
    operator = gpu_sparse_linalg.LinearOperator(
        (50, 50), matvec=lambda x: cp.arange(50) * x, dtype=np.float64
    )
    values = gpu_sparse_linalg.eigsh(operator, k=3, which="LA", return_eigenvectors=False)
    assert_close(cp.sort(values), [47, 48, 49])
