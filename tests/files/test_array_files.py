"""Arrays of users: .npy, .npz and .mat files, whole and with faults."""

from __future__ import annotations

import contextlib
import io
import zipfile

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from hybrid_gpu.files import array_files
from hybrid_gpu.files.array_files import array_names, load_array


def test_npy_file_is_mapped_and_not_read(tmp_path):
    array = np.arange(12.0).reshape(3, 4)
    np.save(tmp_path / "a.npy", array)
    loaded = load_array(tmp_path / "a.npy")
    assert isinstance(loaded, np.memmap)
    np.testing.assert_array_equal(loaded, array)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archive_of_one_array_needs_no_name(tmp_path, save):
    save(tmp_path / "a.npz", anything=np.arange(5))
    np.testing.assert_array_equal(load_array(tmp_path / "a.npz", name="ids"), np.arange(5))
    np.testing.assert_array_equal(load_array(tmp_path / "a.npz"), np.arange(5))


def test_named_array_is_taken_from_an_archive_of_several(tmp_path):
    np.savez(tmp_path / "a.npz", ids=np.arange(5), scores=np.ones(5))
    np.testing.assert_array_equal(load_array(tmp_path / "a.npz", name="scores"), np.ones(5))


def test_empty_array_is_loaded(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((0, 4)))
    assert load_array(tmp_path / "a.npy").shape == (0, 4)


def _no_file(path):
    pass


def _folder(path):
    path.mkdir()


def _text(path):
    path.write_text("1,2,3\n")


def _nothing(path):
    path.write_bytes(b"")


def _write(path, save, *arrays, **named):
    with open(path, "wb") as file:  # NumPy adds an ending to a bare name
        save(file, *arrays, **named)


def _half_npy(path):
    _write(path, np.save, np.arange(1000.0))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _npy_cut_in_its_header(path):
    _write(path, np.save, np.arange(1000.0))
    path.write_bytes(path.read_bytes()[:20])


def _half_archive(path):
    _write(path, np.savez, ids=np.arange(1000))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flipped_archive(path):
    _write(path, np.savez_compressed, ids=np.random.default_rng(5).integers(0, 99, 5000))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def _objects(path):
    _write(path, np.save, np.array([{"a": 1}, None], dtype=object))


def _archived_objects(path):
    _write(path, np.savez, ids=np.array([{"a": 1}, None], dtype=object))


def _several(path):
    _write(path, np.savez, a=np.arange(3), b=np.arange(3))


def _archive_of_text(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_no_file, "no such file"),
        (_folder, "a folder"),
        (_text, "not an array file"),
        (_nothing, "not an array file"),
        (_half_npy, "damaged or cut short"),
        (_npy_cut_in_its_header, "damaged or cut short"),
        (_half_archive, "damaged or cut short"),
        (_flipped_archive, "damaged or cut short"),
        (_objects, "Python objects"),
        (_archived_objects, "Python objects"),
        (_several, r"holds 2 arrays \(a, b\); expected exactly one"),
        (_archive_of_text, "is not an array"),
    ],
)
def test_bad_file_is_refused_by_name(tmp_path, make, reason):
    path = tmp_path / "given"
    make(path)
    with pytest.raises(ValueError, match=f"given: .*{reason}"):
        load_array(path)


# Arrays of .mat files


def cells(names):
    column = np.empty((len(names), 1), dtype=object)
    column[:, 0] = names
    return column


@pytest.mark.parametrize("compressed", [False, True])
def test_mat_file_of_one_matrix_needs_no_name(tmp_path, compressed):
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    others = {"note": "text", "names": cells(["x"]), "s": {"field": np.ones((2, 2))}}
    scipy.io.savemat(tmp_path / "a.mat", {"X": matrix, **others}, do_compression=compressed)
    for name in (None, "X", "unknown"):
        loaded = load_array(tmp_path / "a.mat", name=name)
        assert loaded.dtype == np.float32
        np.testing.assert_array_equal(loaded, matrix)


def test_named_matrix_is_taken_from_a_mat_file_of_several(tmp_path):
    scipy.io.savemat(tmp_path / "a.mat", {"X": np.ones((2, 3)), "Q": np.zeros((2, 1)), "s": "t"})
    assert load_array(tmp_path / "a.mat", name="Q").shape == (2, 1)
    assert array_names(tmp_path / "a.mat") == ("X", "Q")
    with pytest.raises(ValueError, match=r"2 numeric matrices \(X: 2x3 double, Q: 2x1 double, "):
        load_array(tmp_path / "a.mat")


def test_names_of_archives_and_of_plain_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.ones(2), Q=np.ones(3))
    np.save(tmp_path / "a.npy", np.ones(2))
    assert array_names(tmp_path / "a.npz") == ("X", "Q")
    assert array_names(tmp_path / "a.npy") == ()


def npz(path, content, packing=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", packing) as archive:
        archive.writestr("x.npy", content)
    return path


def plain_npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def test_archives_that_unpack_to_far_more_than_they_are_are_refused(tmp_path, monkeypatch):
    zeros = plain_npy(np.zeros((50, 40)))
    assert load_array(npz(tmp_path / "plain.npz", zeros)).shape == (50, 40)
    odd = npz(tmp_path / "odd.npz", zeros, zipfile.ZIP_BZIP2)
    with pytest.raises(ValueError, match=r"odd\.npz: packed in a way"):
        load_array(odd)
    # A header of a gigabyte would be unpacked before anybody reads its length.
    length = (1 << 30).to_bytes(4, "little")
    long = npz(tmp_path / "long.npz", b"\x93NUMPY\x02\x00" + length + b" " * 5000)
    with pytest.raises(ValueError, match=r"long\.npz: damaged.*header of 1073741824 bytes"):
        load_array(long)
    # Both sizes of the member, as the archive tells them.
    told = bytearray((tmp_path / "plain.npz").read_bytes())
    place = told.rindex(b"PK\x01\x02") + 20
    told[place : place + 8] = 2 * (1 << 30).to_bytes(4, "little")
    (tmp_path / "told.npz").write_bytes(told)
    monkeypatch.setattr(array_files, "available_host_bytes", lambda: 10_000)
    with pytest.raises(ValueError, match=r"told\.npz: damaged, \d+ bytes cannot hold 1073741824"):
        load_array(tmp_path / "told.npz")
    with pytest.raises(MemoryError, match=r"plain\.npz: its array takes"):
        load_array(tmp_path / "plain.npz")
    monkeypatch.setattr(array_files, "LARGEST_PACKING", 2)
    with pytest.raises(ValueError, match=r"plain\.npz: damaged, \d+ bytes cannot hold"):
        load_array(tmp_path / "plain.npz")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"field": np.ones((2, 2))}, "struct"),
        (cells(["a", "b"]), "cell"),
        ("text", "char"),
        (np.array([[1 + 2j]]), "complex"),
        (scipy.sparse.csc_array(np.eye(3)), "sparse"),
    ],
)
def test_what_is_no_matrix_is_not_taken_for_one(tmp_path, value, kind):
    scipy.io.savemat(tmp_path / "a.mat", {"v": value})
    with pytest.raises(ValueError, match=rf"a\.mat: 'v' is {kind}"):
        load_array(tmp_path / "a.mat", name="v")
    if kind != "complex":  # which only shows when it is read
        with pytest.raises(ValueError, match=r"a\.mat: holds 0 numeric matrices"):
            load_array(tmp_path / "a.mat")


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_mat_files_are_named_whatever_is_wrong(tmp_path, compressed):
    noise = np.random.default_rng(23).integers(0, 9, (30, 40))
    scipy.io.savemat(tmp_path / "whole.mat", {"X": noise}, do_compression=compressed)
    content = (tmp_path / "whole.mat").read_bytes()
    path = tmp_path / "given.mat"
    for length in (30, 128, 140, 180, len(content) // 2, len(content) - 5):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"given\.mat: "):
            load_array(path)
    for place in range(124, 200, 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        # One byte is not always missed; but nothing else than a ValueError ever comes out.
        with contextlib.suppress(ValueError):
            load_array(path)
