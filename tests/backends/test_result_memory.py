"""Memory of results that is used again: only when nobody has the result before any more."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from hybrid_gpu.backends import result_memory
from hybrid_gpu.backends.native import native_core
from hybrid_gpu.backends.native_backend import NativeBackend
from hybrid_gpu.backends.result_memory import ResultMemory


@pytest.fixture(autouse=True)
def worth_keeping(monkeypatch):
    """Small arrays are as large ones."""
    monkeypatch.setattr(result_memory, "_WORTH_KEEPING", 1)


@pytest.fixture
def source():
    return np.ones((50, 8), np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_result_is_like_the_source_and_begins_at_a_line_of_the_cache(dtype):
    result = ResultMemory().empty_like(np.ones((7, 5), dtype))
    assert result.shape == (7, 5)
    assert result.dtype == dtype
    assert result.flags.c_contiguous
    assert result.flags.writeable
    assert result.ctypes.data % 64 == 0


def test_memory_is_used_again_once_the_result_is_gone(source):
    memory = ResultMemory()
    result = memory.empty_like(source)
    place = result.ctypes.data
    del result
    assert memory.empty_like(source).ctypes.data == place


@pytest.mark.parametrize(
    "part",
    [
        lambda result: result,
        lambda result: result[3:9],
        lambda result: result.T[2:][::2],
        lambda result: result.view(np.int32)[10:],
        lambda result: memoryview(result)[1:],
        lambda result: np.asarray(memoryview(result))[4:],
        lambda result: np.from_dlpack(result),
    ],
    ids=["itself", "rows", "columns", "bits", "buffer", "array of a buffer", "dlpack"],
)
def test_memory_that_anybody_can_see_is_not_used_again(source, part):
    memory = ResultMemory()
    result = memory.empty_like(source)
    result[:] = 7
    seen = part(result)
    before = np.array(seen, copy=True)
    del result
    memory.empty_like(source)[:] = 9
    memory.empty_like(source)[:] = 9
    np.testing.assert_array_equal(np.asarray(seen), before)


def test_results_of_different_sources_never_share_memory(source):
    memory, other = ResultMemory(), source.copy()
    results = [memory.empty_like(array) for array in (source, other, source, other)]
    assert len({result.ctypes.data for result in results}) == 4
    for number, result in enumerate(results):
        result[:] = number
    assert [int(result[0, 0]) for result in results] == [0, 1, 2, 3]
    assert all(np.all(result == number) for number, result in enumerate(results))


def test_memory_goes_when_the_source_goes():
    memory, source = ResultMemory(), np.ones((50, 8), np.float32)
    memory.empty_like(source)[:] = 0  # a result that is gone at once
    assert len(memory._waiting) == 1
    del source
    gc.collect()
    assert not memory._waiting


def test_result_that_outlives_its_source_gives_its_memory_back():
    memory, source = ResultMemory(), np.ones((50, 8), np.float32)
    result = memory.empty_like(source)
    del source
    result[:] = 3
    del result
    assert not memory._waiting


def test_small_results_are_ordinary_arrays(monkeypatch, source):
    monkeypatch.setattr(result_memory, "_WORTH_KEEPING", source.nbytes + 1)
    assert ResultMemory().empty_like(source).flags.owndata
    monkeypatch.setattr(result_memory, "_WORTH_KEEPING", source.nbytes)
    assert not ResultMemory().empty_like(source).flags.owndata


@pytest.mark.skipif(native_core() is None, reason="there is no native core")
def test_products_of_the_same_direction_use_their_memory_again(source):
    backend = NativeBackend(native_core())
    matrix = backend.csr(np.ones(1, "f4"), np.zeros(1, "i4"), np.r_[0, np.ones(50, "i4")], (50, 50))
    first = backend.laplacian_step(matrix, source, 0.5).values
    place, kept = first.ctypes.data, first.copy()
    # Somebody still has the first.
    second = backend.laplacian_step(matrix, 2 * source, 0.5).values
    third = backend.laplacian_step(matrix, source, 0.5).values
    assert len({place, second.ctypes.data, third.ctypes.data}) == 3
    np.testing.assert_array_equal(first, kept)
    del first
    assert backend.laplacian_step(matrix, source, 0.5).values.ctypes.data == place
