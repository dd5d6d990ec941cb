"""CuPy's array operations against NumPy's."""

from __future__ import annotations

import cupy as cp
import numpy as np
import pytest


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def assert_same(gpu, cpu, rtol=1e-7):
    np.testing.assert_allclose(cp.asnumpy(gpu), cpu, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64, np.int32])
def test_elementwise(rng, dtype):
    x = rng.integers(1, 9, size=(30, 17)).astype(dtype)
    assert_same(cp.asarray(x) * 2 + 1, x * 2 + 1)
    assert_same(cp.where(cp.asarray(x) == 3, 0, cp.asarray(x)), np.where(x == 3, 0, x))


def test_mathematical_functions(rng):
    x = rng.uniform(0.1, 3, size=1000)
    for name in ("sqrt", "exp", "log", "sin", "arctan", "cbrt", "expm1"):
        assert_same(getattr(cp, name)(cp.asarray(x)), getattr(np, name)(x), rtol=1e-14)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", ["sum", "max", "min", "argmax", "mean", "prod", "any"])
def test_reductions(rng, name, axis):
    x = rng.normal(size=(300, 70))
    assert_same(getattr(cp, name)(cp.asarray(x), axis=axis), getattr(np, name)(x, axis=axis))


def test_scans_and_norms(rng):
    x = rng.normal(size=(40, 30))
    assert_same(cp.cumsum(cp.asarray(x), axis=1), np.cumsum(x, axis=1))
    assert_same(cp.linalg.norm(cp.asarray(x), axis=1), np.linalg.norm(x, axis=1))


def test_indexing(rng):
    x = rng.normal(size=(50, 30))
    a, rows = cp.asarray(x), [3, 1, 4]
    assert_same(a[cp.asarray(rows)], x[rows])
    assert_same(cp.take(a, cp.asarray(rows), axis=1), x[:, rows])
    assert_same(a[a > 0], x[x > 0])
    a[cp.asarray(rows)] = 7
    x[rows] = 7
    assert_same(a[::-2, 3:], x[::-2, 3:])


def test_scattered_additions_add_up():
    total = cp.zeros(5)
    cp.add.at(total, cp.asarray([0, 0, 1]), cp.asarray([1.0, 2.0, 3.0]))
    assert total.get().tolist() == [3, 3, 0, 0, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.complex128])
def test_sorts(rng, dtype):
    x = rng.permutation(700).reshape(7, 100).astype(dtype)
    assert_same(cp.sort(cp.asarray(x), axis=0), np.sort(x, axis=0))
    assert_same(cp.argsort(cp.asarray(x), axis=1), np.argsort(x, axis=1))


def test_nan_sorts_last():
    x = np.array([2, np.nan, 1], dtype=np.float32)
    assert_same(cp.sort(cp.asarray(x)), np.sort(x))


@pytest.mark.parametrize("shape", [(7, 100), (3, 5000)])
@pytest.mark.parametrize("kth", [1, 10, 60])
def test_argpartition_finds_the_smallest(rng, shape, kth):
    x = rng.normal(size=shape).astype(np.float32)
    found = cp.argpartition(cp.asarray(x), kth, axis=1)[:, :kth].get()
    smallest = np.sort(np.take_along_axis(x, found, axis=1), axis=1)
    np.testing.assert_array_equal(smallest, np.sort(x, axis=1)[:, :kth])


def test_searches():
    assert cp.unique(cp.asarray([3, 1, 3, 2])).get().tolist() == [1, 2, 3]
    assert cp.lexsort(cp.asarray([[1, 2, 1], [2, 1, 2]])).get().tolist() == [1, 0, 2]
    assert cp.searchsorted(cp.asarray([1.0, 2, 3]), cp.asarray([2.5])).get().tolist() == [2]
    assert cp.bincount(cp.asarray([0, 1, 1])).get().tolist() == [1, 2]
    assert cp.nonzero(cp.asarray([0, 1, 1]))[0].get().tolist() == [1, 2]


def test_random_numbers():
    cp.random.seed(3)
    first = cp.random.random(1000)
    cp.random.seed(3)
    assert_same(cp.random.random(1000), first.get())
    assert 0.45 < float(first.mean()) < 0.55
    assert abs(float(cp.random.standard_normal(1001).mean())) < 0.15
    assert sorted(cp.random.permutation(10).get()) == list(range(10))


def test_uninitialized_memory_reads_as_nan():
    cp.get_default_memory_pool().free_all_blocks()
    assert cp.isnan(cp.empty(100_000, dtype=cp.float32)).all()
