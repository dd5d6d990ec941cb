"""The reader of .mat files beside SciPy's, and on files that are made to break it."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sparse

from hybrid_gpu.files.array_files import load_array
from hybrid_gpu.files.ground_truth import load_ground_truth
from hybrid_gpu.files.matlab_files import DamagedFileError, read_values, read_variables

DTYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8", "?")
both_ways = pytest.mark.parametrize("compressed", [False, True])


@both_ways
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_are_those_that_scipy_reads(tmp_path, rng, dtype, order, compressed):
    arrays = {
        f"shape{number}": np.asarray(rng.standard_normal(shape) * 100, order=order).astype(dtype)
        for number, shape in enumerate([(1, 1), (3, 5), (7, 1), (1, 4), (0, 3), (2, 3, 4)])
    }
    scipy.io.savemat(tmp_path / "a.mat", arrays, do_compression=compressed)
    read = read_values(tmp_path / "a.mat", arrays)
    expected = scipy.io.loadmat(tmp_path / "a.mat")
    for name in arrays:
        np.testing.assert_array_equal(read[name], expected[name], strict=True)
        np.testing.assert_array_equal(read[name], arrays[name])


@both_ways
def test_variables_are_those_that_scipy_lists(tmp_path, rng, compressed):
    content = {
        "number": rng.standard_normal((3, 2)),
        "truth": np.array([[True, False]]),
        "cell": np.array([["a", 2.0]], dtype=object),
        "struct": {"field": 3},
        "thin": sparse.csc_array(np.eye(3)),
        "complex": np.array([[1 + 2j]]),
    }
    scipy.io.savemat(tmp_path / "a.mat", content, do_compression=compressed)
    read = [(one.name, one.shape, one.kind) for one in read_variables(tmp_path / "a.mat")]
    assert read == scipy.io.whosmat(tmp_path / "a.mat")


@both_ways
def test_texts_cells_and_structs_are_plain_values(tmp_path, compressed):
    cell = np.empty((2, 2), dtype=object)
    cell[:] = [["a", "b"], ["c", np.array([[1.0, 2.0]])]]
    records = np.zeros((1, 2), dtype=[("name", object), ("ids", object)])
    records[0, 0] = ("one", np.array([[4.0]]))
    records[0, 1] = ("zwölf", np.zeros((0, 0)))
    content = {"cell": cell, "records": records, "rows": np.array(["ab", "c"])}
    content["none"] = sparse.eye_array(2).tocsc()
    scipy.io.savemat(tmp_path / "a.mat", content, do_compression=compressed)
    read = read_values(tmp_path / "a.mat", content)
    assert read["cell"][:3] == ["a", "c", "b"]  # column by column
    np.testing.assert_array_equal(read["cell"][3], [[1.0, 2.0]])
    assert [one["name"] for one in read["records"]] == ["one", "zwölf"]
    assert [one["ids"].size for one in read["records"]] == [1, 0]
    assert read["rows"] == ["ab", "c"]
    assert read["none"] is None


def element(kind, data, order="<"):
    return struct.pack(f"{order}II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(shape, data, *, kind=9, flags=6, name=b"X", order="<"):
    """A variable of doubles, or of whatever the numbers say."""
    content = element(6, struct.pack(f"{order}II", flags, 0), order)
    content += element(5, struct.pack(f"{order}{len(shape)}i", *shape), order)
    return element(14, content + element(1, name, order) + element(kind, data, order), order)


def write(path, *elements, order="<"):
    end = b"IM" if order == "<" else b"MI"
    header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(f"{order}H", 0x0100) + end
    path.write_bytes(header + b"".join(elements))
    return path


def test_files_of_big_endian_machines_are_read(tmp_path):
    data = np.arange(6, dtype=">f8")
    path = write(tmp_path / "a.mat", matrix((2, 3), data.tobytes(), order=">"), order=">")
    read = load_array(path)
    np.testing.assert_array_equal(read, [[0, 2, 4], [1, 3, 5]])
    assert read.dtype == np.dtype("f8")
    assert read.dtype.isnative


def packed(content):
    # Not padded, unlike all others.
    short = zlib.compress(content, 1)
    return struct.pack("<II", 15, len(short)) + short


def nested(depth):
    inner = matrix((1, 1), bytes(8))
    for _ in range(depth):
        content = element(6, struct.pack("<II", 1, 0)) + element(5, struct.pack("<ii", 1, 1))
        inner = element(14, content + element(1, b"gnd") + inner)
    return inner


GOOD = matrix((2, 2), bytes(32))
DAMAGED = {
    "more bytes than its shape": matrix((2, 2), bytes(40)),
    "a shape that overflows": matrix((2**31 - 1, 2**31 - 1, 2**31 - 1), bytes(8)),
    "a shape whose product wraps to its size": matrix((2**16, 2**16, 2**16, 2**16), bytes(0)),
    "a negative shape": matrix((-2, -2), bytes(32)),
    "one dimension": matrix((4,), bytes(32)),
    "a thousand dimensions": matrix((1,) * 1000, bytes(8)),
    "numbers of an unknown type": matrix((2, 2), bytes(32), kind=77),
    "an element that is too long": GOOD[:56] + struct.pack("<II", 9, 4096) + GOOD[64:],
    "a variable that is longer than the file": struct.pack("<II", 14, 2**32 - 8) + GOOD[8:],
    "a variable of an unknown type": struct.pack("<II", 99, 8) + bytes(8),
    "a variable that is cut off": GOOD[:-8],
    "a tag that is cut off": GOOD + b"abc",
    "the same name twice": GOOD + GOOD,
    "compressed bytes that are none": struct.pack("<II", 15, 16) + b"x" * 16,
    "compressed bytes that are cut off": struct.pack("<II", 15, 20) + zlib.compress(GOOD)[:20],
    "a wrong sum": packed(GOOD)[:-1] + b"\0",
    "compressed: more than is there": packed(struct.pack("<II", 14, 4096) + GOOD[8:]),
    "compressed: terabytes": packed(struct.pack("<II", 14, 2**32 - 8) + GOOD[8:]),
    "compressed: less than is there": packed(GOOD + bytes(800)),
    "compressed twice": packed(packed(GOOD)),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGED)
def test_what_a_file_makes_up_is_refused(tmp_path, what):
    path = write(tmp_path / "a.mat", DAMAGED[what])
    with pytest.raises(ValueError, match=r"a\.mat: a damaged \.mat file, or cut short"):
        load_array(path, name="X")


def test_cells_in_cells_without_end_are_refused(tmp_path):
    with pytest.raises(DamagedFileError, match="too deep"):
        read_values(write(tmp_path / "a.mat", nested(5000)), ["gnd"])
    with pytest.raises(ValueError, match="damaged"):
        load_ground_truth(write(tmp_path / "b.mat", nested(5000)))


def test_more_cells_than_there_is_room_for_are_refused_at_once(tmp_path):
    content = element(6, struct.pack("<II", 1, 0))
    content += element(5, struct.pack("<ii", 2**30, 2**30)) + element(1, b"gnd")
    with pytest.raises(DamagedFileError, match="more than there is room for"):
        read_values(write(tmp_path / "a.mat", element(14, content)), ["gnd"])


def test_a_small_file_does_not_fill_the_memory(tmp_path):
    # 68 MB of empty cells in 70 kB: each would become an array.
    content = element(6, struct.pack("<II", 1, 0)) + element(5, struct.pack("<ii", 1, 8_500_000))
    content += element(1, b"gnd") + struct.pack("<II", 14, 0) * 8_500_000
    path = write(tmp_path / "a.mat", packed(element(14, content)))
    del content
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="too large to be unpacked"):
            load_ground_truth(path)
        with pytest.raises(ValueError, match="'gnd' is cell"):
            load_array(path, name="gnd")
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


@both_ways
def test_whatever_is_changed_in_a_file_only_a_value_error_comes_of_it(tmp_path, compressed):
    rng = np.random.default_rng(31)
    truth = {"imlist": np.array([["a", "b"]], dtype=object), "gnd": {"easy": [1.0], "hard": [2.0]}}
    content = {"X": rng.standard_normal((6, 4)), "Q": rng.standard_normal((2, 4)), **truth}
    scipy.io.savemat(tmp_path / "whole.mat", content, do_compression=compressed)
    whole = np.frombuffer((tmp_path / "whole.mat").read_bytes(), np.uint8)
    path = tmp_path / "a.mat"
    for _ in range(300):
        changed = whole.copy()
        places = rng.integers(100, changed.size, rng.integers(1, 6))
        changed[places] = rng.choice([0, 1, 14, 15, 127, 128, 255], places.size)
        path.write_bytes(changed.tobytes())
        for read in (lambda: load_array(path, name="X"), lambda: load_ground_truth(path)):
            with contextlib.suppress(ValueError):
                read()


def test_scipys_reader_is_never_called(tmp_path, monkeypatch):
    scipy.io.savemat(tmp_path / "a.mat", {"X": np.eye(3)})

    def crash(*arguments, **options):
        raise AssertionError("a damaged file crashes the process in here")

    monkeypatch.setattr(scipy.io, "loadmat", crash)
    monkeypatch.setattr(scipy.io, "whosmat", crash)
    np.testing.assert_array_equal(load_array(tmp_path / "a.mat"), np.eye(3))
