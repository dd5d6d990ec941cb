import json
import os

import numpy as np
import pytest
from conftest import clustered_vectors, two_cliques

import hybrid_gpu as hg
from hybrid_gpu import storage


@pytest.fixture
def queries(rng):
    return clustered_vectors(rng, n=3)


@pytest.fixture
def index(backend, rng, dtype):
    index = hg.build_index(
        clustered_vectors(rng), neighbors=5, basis="eigen", rank=7, dtype=dtype, backend=backend
    )
    return index.precompute(keep=30)


@pytest.fixture
def small(tmp_path):
    """A saved index, its folder, and nothing else of interest."""
    index = hg.build_index_from_graph(two_cliques(4), basis="eigen", rank=2)
    index.save(tmp_path / "small")
    return tmp_path / "small"


def array_file(folder, name):
    return next(folder.glob(f"{name}.*.npy"))


def test_loading_changes_no_bit_of_the_answer(backend, index, queries, tmp_path):
    index.save(tmp_path / "index")
    again = hg.load_index(tmp_path / "index", backend=backend)
    for method in hg.METHODS:
        one = index.search(queries, k=50, method=method)
        other = again.search(queries, k=50, method=method)
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.scores, other.scores)
    assert (again.alpha, again.gamma, again.dtype) == (index.alpha, index.gamma, index.dtype)
    for name in ("items", "orthogonality", "missed"):
        assert getattr(again.basis, name) == getattr(index.basis, name)
    np.testing.assert_array_equal(again.basis.residuals, index.basis.residuals)
    assert repr(again) == repr(index)


def test_index_of_any_backend_opens_on_numpy(index, queries, tmp_path):
    index.save(tmp_path / "index")
    here = hg.load_index(tmp_path / "index", backend="numpy")
    assert here.backend.name == "numpy"
    np.testing.assert_allclose(
        here.search(queries, k=9).scores, index.search(queries, k=9).scores, atol=1e-6
    )


def test_index_without_eigenvectors_and_descriptors_is_saved_too(backend, tmp_path):
    index = hg.build_index_from_graph(two_cliques(4), basis="none", backend=backend)
    index.save(tmp_path / "index")
    again = hg.load_index(tmp_path / "index", backend=backend)
    assert again.basis is None
    assert again.descriptors is None


def test_arrays_are_plain_files_that_numpy_reads(small):
    header = json.loads((small / "header.json").read_text())
    assert header["version"] == storage.VERSION
    for entry in header["arrays"].values():
        np.load(small / entry["file"], allow_pickle=False)
    assert {one.suffix for one in small.iterdir()} == {".npy", ".json"}


def test_big_arrays_are_mapped_not_copied(small):
    index = hg.load_index(small, backend="numpy")  # a GPU has to have its copy
    base = index.basis.vectors
    while getattr(base, "base", None) is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


def test_saving_again_replaces_the_index_and_leaves_no_old_file(small):
    index = hg.build_index_from_graph(two_cliques(6), basis="eigen", rank=3)
    before = set(small.iterdir())
    opened = hg.load_index(small)
    index.save(small)
    assert hg.load_index(small).n == 12
    assert len(list(small.iterdir())) == len(before)
    # An index that was open during the save goes on working.
    assert opened.search_items([0], k=2).ids.shape == (1, 2)


@pytest.mark.parametrize("moment", ["array", "header"])
def test_crash_during_a_save_leaves_the_old_index_whole(small, monkeypatch, moment):
    before = sorted(one.name for one in small.iterdir())

    def crash(*_):
        raise KeyboardInterrupt

    if moment == "array":
        real, calls = storage._write_array, []

        def third_time_unlucky(path, array):
            calls.append(path)
            return crash() if len(calls) == 3 else real(path, array)

        monkeypatch.setattr(storage, "_write_array", third_time_unlucky)
    else:
        monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        hg.build_index_from_graph(two_cliques(6), basis="eigen", rank=3).save(small)
    monkeypatch.undo()
    assert hg.load_index(small).n == 8
    assert sorted(one.name for one in small.iterdir()) == before


def test_leftovers_of_a_killed_save_are_swept_up(small):
    (small / "degrees.deadbeef.npy").write_bytes(b"half an arr")
    (small / "header.json.deadbeef.tmp").write_bytes(b"{")
    index = hg.load_index(small)
    index.save(small)
    assert not list(small.glob("*deadbeef*"))


def test_interrupted_first_save_is_no_index_and_can_be_repeated(tmp_path):
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / "degrees.deadbeef.npy").write_bytes(b"half an arr")
    with pytest.raises(hg.IndexFileError, match="first save was interrupted"):
        hg.load_index(folder)
    hg.build_index_from_graph(two_cliques(4), rank=2).save(folder)
    assert hg.load_index(folder).n == 8


def test_truncated_array_is_named(small):
    file = array_file(small, "basis_vectors")
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(hg.IndexFileError, match=rf"{file.name}: \d+ bytes where \d+ were written"):
        hg.load_index(small)


def test_missing_array_is_named(small):
    file = array_file(small, "degrees")
    file.unlink()
    with pytest.raises(hg.IndexFileError, match=f"{file.name}: missing"):
        hg.load_index(small)


@pytest.mark.parametrize("place", [-1, 3, 20])
def test_every_flipped_byte_of_an_array_is_noticed(small, place):
    file = array_file(small, "adjacency_data")
    content = bytearray(file.read_bytes())
    content[place] ^= 0x40
    file.write_bytes(content)
    with pytest.raises(hg.IndexFileError, match=f"{file.name}: damaged"):
        hg.load_index(small)


def test_checking_can_be_left_out_for_a_quick_start(small):
    file = array_file(small, "adjacency_data")
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x01
    file.write_bytes(content)
    assert hg.load_index(small, verify=False).n == 8


def test_changed_parameter_in_the_header_is_noticed(small):
    header = small / "header.json"
    header.write_text(header.read_text().replace("0.99", "0.89"))
    with pytest.raises(hg.IndexFileError, match="checksum"):
        hg.load_index(small)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format": "hybrid-gpu ind', "not JSON"),
        ('{"format": "another library"}', "not a header of this library"),
        ("[1, 2]", "not a header of this library"),
        ('{"format": "hybrid-gpu index", "version": 999}', "format version 999.*Upgrade"),
        ('{"format": "hybrid-gpu index", "version": 1}', "checksum"),
    ],
)
def test_foreign_damaged_and_newer_headers_are_refused(small, content, message):
    (small / "header.json").write_text(content)
    with pytest.raises(hg.IndexFileError, match=message):
        hg.load_index(small)


def test_pickled_array_is_never_unpickled(small):
    file = array_file(small, "components")
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    header = json.loads((small / "header.json").read_text())
    header["arrays"]["components"]["bytes"] = file.stat().st_size
    body = {key: header[key] for key in ("parameters", "arrays")}
    header["checksum"] = storage._checksum(storage._canonical(body))
    (small / "header.json").write_text(json.dumps(header))
    with pytest.raises(hg.IndexFileError, match="damaged"):
        hg.load_index(small)


def test_parts_that_do_not_fit_together_are_refused(small):
    header = json.loads((small / "header.json").read_text())
    header["parameters"]["n"] = 5
    body = {key: header[key] for key in ("parameters", "arrays")}
    header["checksum"] = storage._checksum(storage._canonical(body))
    (small / "header.json").write_text(json.dumps(header))
    with pytest.raises(hg.IndexFileError, match="do not fit together"):
        hg.load_index(small)


def test_missing_index_and_wrong_targets_are_refused(tmp_path, small):
    with pytest.raises(hg.IndexFileError, match="no such index"):
        hg.load_index(tmp_path / "nowhere")
    index = hg.load_index(small)
    (tmp_path / "file").write_text("x")
    with pytest.raises(hg.IndexFileError, match="this is a file"):
        index.save(tmp_path / "file")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("x")
    with pytest.raises(hg.IndexFileError, match=r"other files \(cat.jpg\)"):
        index.save(tmp_path / "photos")
    assert [one.name for one in (tmp_path / "photos").iterdir()] == ["cat.jpg"]
