"""IDX files: read as they were written, and refused when they cannot be whole."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from hybrid_gpu.files.idx_files import read_idx


def idx(array):
    sizes = np.array([0x800 + array.ndim, *array.shape], dtype=">u4").tobytes()
    return sizes + array.astype(np.uint8).tobytes()


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (0,), (3, 0)])
@pytest.mark.parametrize("packed", [False, True])
def test_array_comes_back_as_it_was(tmp_path, shape, packed):
    array = np.arange(np.prod(shape)).reshape(shape)
    path = tmp_path / ("a.gz" if packed else "a")
    path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    loaded = read_idx(path, dimensions=len(shape))
    assert loaded.dtype == np.uint8
    np.testing.assert_array_equal(loaded, array)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        idx(np.arange(6))[:-1],
        idx(np.arange(6)) + b"more",
        idx(np.arange(6).reshape(2, 3)),
        np.array([0x801, 2**32 - 1], dtype=">u4").tobytes(),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_file_that_is_no_vector_of_its_size_is_refused_by_name(tmp_path, content, packed):
    path = tmp_path / ("a.gz" if packed else "a")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(ValueError, match=r"not an IDX file of 1 dimensions, or cut short"):
        read_idx(path, dimensions=1)


def test_broken_packing_is_told(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx(np.arange(100)))[:-10])
    with pytest.raises(ValueError, match=r"a\.gz: damaged"):
        read_idx(tmp_path / "a.gz", dimensions=1)
