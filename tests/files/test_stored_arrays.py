import contextlib
import io

import numpy as np
import pytest

import hybrid_gpu as hg
from hybrid_gpu.files.stored_arrays import (
    file_checksum,
    mapped_array,
    open_plain_file,
    read_head,
    write_array,
)

ARRAYS = {
    "float32": np.arange(12, dtype=np.float32).reshape(3, 4),
    "float64": np.arange(3.0),
    "float16": np.arange(3, dtype=np.float16),
    "int8": np.arange(-3, 3, dtype=np.int8)[:, None],
    "int32": np.arange(5, dtype=np.int32),
    "int64": np.arange(2),
    "empty": np.empty((0, 1), np.float32),
    "turned": np.arange(12.0).reshape(3, 4).T,
}


def read(path):
    with open_plain_file(path) as file:
        return mapped_array(file, read_head(file, path))


@pytest.mark.parametrize("kind", ARRAYS)
def test_array_comes_back_as_it_was_and_numpy_reads_it_too(tmp_path, kind):
    told = write_array(tmp_path / "a.npy", ARRAYS[kind])
    for again in (read(tmp_path / "a.npy"), np.load(tmp_path / "a.npy", allow_pickle=False)):
        assert again.dtype == ARRAYS[kind].dtype
        np.testing.assert_array_equal(again, ARRAYS[kind])
    size = (tmp_path / "a.npy").stat().st_size
    assert (told["dtype"], told["shape"]) == (again.dtype.str, list(again.shape))
    assert told["bytes"] == size
    with open_plain_file(tmp_path / "a.npy") as file:
        start = read_head(file, tmp_path).offset
        assert file_checksum(file, tmp_path, start, size) == told["checksum"]


def test_existing_file_is_never_written_over(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        write_array(tmp_path / "a.npy", np.zeros(3))
    assert (tmp_path / "a.npy").read_bytes() == b"mine"


def test_every_flipped_bit_of_a_head_is_refused_or_changes_what_it_says(tmp_path):
    path = tmp_path / "a.npy"
    write_array(path, ARRAYS["float32"])
    content = path.read_bytes()
    with open_plain_file(path) as file:
        good = read_head(file, path)
    for place in range(0, 8 * good.offset, 5):  # every bit of a byte in turn
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        with open_plain_file(path) as file, contextlib.suppress(hg.IndexFileError):
            assert read_head(file, path) != good


@pytest.mark.parametrize(
    "head",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999999999,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'shape': (3,), }",
        "{'descr': '<f4', 'fortran_order': True, 'shape': (3,), }",
        "{'descr': '>f4', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '|f4', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<f1', 'fortran_order': False, 'shape': (12,), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1, " * 200 + "3), }",
        "(" * 500,
        "__import__('os').abort()",
        "",
    ],
)
def test_head_that_numpy_does_not_write_is_refused(tmp_path, head):
    path = tmp_path / "a.npy"
    text = (head + "\n").encode()
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(12)
    path.write_bytes(content)
    with pytest.raises(hg.IndexFileError, match=r"a\.npy: damaged"):
        read(path)


@pytest.mark.parametrize("size", [0, 5, 9, 10, 100, 127])
def test_file_that_ends_in_its_head_is_refused(tmp_path, size):
    write_array(tmp_path / "a.npy", ARRAYS["float32"])
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:size])
    with pytest.raises(hg.IndexFileError, match=r"a\.npy: damaged"):
        read(tmp_path / "a.npy")


def test_file_that_is_cut_short_while_it_is_read_is_told(tmp_path):
    (tmp_path / "a").write_bytes(bytes(10))
    with io.FileIO(tmp_path / "a") as file, pytest.raises(hg.IndexFileError, match="cut short"):
        file_checksum(file, tmp_path / "a", 0, 11)
