import functools
import json
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import (
    METHODS_OF_EIGENVECTORS,
    changed,
    clustered_vectors,
    needs_python_311,
    two_cliques,
)

import hybrid_gpu as hg
from hybrid_gpu.diffusion.galerkin_basis import GalerkinBasis
from hybrid_gpu.files import writing as file_writing
from hybrid_gpu.files.folder_lock import LOCK, own_folder
from hybrid_gpu.files.stored_arrays import open_plain_file, read_head, write_head
from hybrid_gpu.index import storage
from hybrid_gpu.index.packing import packed, unpacked

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def queries(rng):
    return clustered_vectors(rng, n=3)


@functools.cache
def with_columns(backend, dtype):
    vectors = clustered_vectors(np.random.default_rng(31))
    index = hg.build_index(
        vectors, neighbors=5, basis="eigen", rank=7, dtype=dtype, backend=backend
    )
    return index.precompute(keep=30)


@pytest.fixture
def index(backend, dtype):
    """An index that has everything; it never changes, so it is made once."""
    return with_columns(backend, dtype)


@pytest.fixture
def small(tmp_path):
    """A saved index, its folder, and nothing else of interest."""
    index = hg.build_index_from_graph(two_cliques(4), basis="eigen", rank=2)
    index.save(tmp_path / "small")
    return tmp_path / "small"


@pytest.fixture
def larger():
    """Another index than the small one."""
    return hg.build_index_from_graph(two_cliques(6), basis="eigen", rank=3)


def array_file(folder, name):
    return next(folder.glob(f"{name}.*.npy"))


def contents(folder):
    """Everything below a folder: what files hold, where links lead."""
    return {
        str(one.relative_to(folder)): os.readlink(one)
        if one.is_symlink()
        else one.read_bytes()
        if one.is_file()
        else "a folder"
        for one in sorted(folder.rglob("*"))
    }


def put_header(folder, header):
    """A header with the checksum that it should have."""
    header.pop("checksum", None)
    header["checksum"] = storage._header_checksum(header)
    (folder / "header.json").write_text(json.dumps(header))


def edit_header(folder, change):
    header = json.loads((folder / "header.json").read_text())
    change(header)
    put_header(folder, header)


def put_array(folder, name, array):
    """Another array in the place of one, with everything in the header as it should be."""
    header = json.loads((folder / "header.json").read_text())
    entry = header["arrays"][name]
    file = folder / entry["file"]
    file.unlink()
    header["arrays"][name] = {"file": file.name, **storage.write_array(file, array)}
    put_header(folder, header)


def snapshots(monkeypatch, folder, target, moment):
    """Copies of a folder at every call of a function: what a kill at that moment leaves behind."""
    taken = []

    def copy_first(*arguments, **options):
        taken.append(folder.with_name(f"{folder.name}-{moment}-{len(taken)}"))
        shutil.copytree(folder, taken[-1])
        return original(*arguments, **options)

    original = getattr(target, moment)
    monkeypatch.setattr(target, moment, copy_first)
    return taken


def test_loading_changes_no_bit_of_the_answer(backend, index, queries, tmp_path):
    index.save(tmp_path / "index")
    again = hg.load_index(tmp_path / "index", backend=backend)
    for method in METHODS_OF_EIGENVECTORS:
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
    named = {entry["file"] for entry in header["arrays"].values()}
    assert {one.name for one in small.iterdir()} == named | {"header.json", LOCK}


def test_big_arrays_are_mapped_not_copied(small):
    index = hg.load_index(small, backend="numpy")  # a GPU has to have its copy
    base = index.state.basis.vectors
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
def test_interrupted_save_leaves_the_old_index_whole(small, larger, monkeypatch, moment):
    before = contents(small)

    def interrupt(*_):
        raise KeyboardInterrupt

    if moment == "array":
        real, calls = storage.write_array, []

        def third_time_unlucky(path, array):
            calls.append(path)
            return interrupt() if len(calls) == 3 else real(path, array)

        monkeypatch.setattr(storage, "write_array", third_time_unlucky)
    else:
        monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        larger.save(small)
    monkeypatch.undo()
    assert hg.load_index(small).n == 8
    assert contents(small) == before


@pytest.mark.parametrize(
    ("module", "moment"),
    [
        (storage, "write_array"),
        (storage, "sync_folder"),
        (storage, "replacing"),
        (file_writing, "sync_file"),
        (file_writing, "_rename"),
    ],
)
def test_save_that_is_killed_leaves_the_old_index_and_nothing_for_long(
    small, larger, monkeypatch, module, moment
):
    files = len(contents(small))
    killed = snapshots(monkeypatch, small, module, moment)
    larger.save(small)
    monkeypatch.undo()
    assert killed
    for folder in killed[::4]:
        assert hg.load_index(folder).n == 8
        # A second save that is killed at its first file finds the leftovers gone.
        again = snapshots(monkeypatch, folder, storage, "write_array")
        larger.save(folder)
        monkeypatch.undo()
        assert len(contents(again[0])) == files
        assert hg.load_index(folder).n == 12
        assert len(contents(folder)) == files


def test_save_that_is_killed_between_the_header_and_the_old_files_is_the_new_index(
    small, larger, monkeypatch
):
    files = len(contents(small))
    taken = snapshots(monkeypatch, small, os, "unlink")
    larger.save(small)
    monkeypatch.undo()
    killed = [folder for folder in taken if hg.load_index(folder).n == 12]
    assert len(contents(killed[0])) == 2 * files - 2  # both indexes; one header, one lock
    for folder in killed[::4]:
        larger.save(folder)
        assert len(contents(folder)) == files


def test_first_save_that_is_killed_is_no_index_and_can_be_repeated(tmp_path, larger, monkeypatch):
    killed = snapshots(monkeypatch, tmp_path / "new", storage, "write_array")
    larger.save(tmp_path / "new")
    monkeypatch.undo()
    files = len(contents(tmp_path / "new"))
    for folder in killed[::4]:
        with pytest.raises(hg.IndexFileError, match="first save was interrupted"):
            hg.load_index(folder)
        larger.save(folder)
        assert hg.load_index(folder).n == 12
        assert len(contents(folder)) == files


def test_new_names_are_on_disk_before_old_files_go(small, larger, monkeypatch):
    events = []

    def watch(owner, name):
        original = getattr(owner, name)

        def noted(path, *more):
            if name != "unlink" or os.path.lexists(path):
                events.append(name)
            return original(path, *more)

        monkeypatch.setattr(owner, name, noted)

    watch(file_writing, "sync_folder")
    monkeypatch.setattr(storage, "sync_folder", file_writing.sync_folder)
    watch(os, "replace")
    watch(os, "unlink")
    larger.save(small)
    replaced = events.index("replace")
    assert events[replaced - 1] == "sync_folder"
    assert events[replaced + 1] == "sync_folder"
    assert "unlink" in events[replaced + 2 :]


USERS_FILES = {
    "descriptors.npy": b"the user's vectors",
    "labels.npy": b"the user's labels",
    "degrees.deadbeef.npy": b"an array of the user's, by chance called so",
    "header.json.deadbeef.tmp": b"x",
    "ids.npy": b"",
    ".hidden": b"x",
    "cat.jpg": b"x",
    "folder/file": b"x",
    "empty folder/": b"",
}
FOREIGN_HEADERS = [
    b"",
    b"{}",
    b"[1]",
    b'{"format": "hybrid-gpu index"}',
    b'{"arrays": {}}',
    b"\xff",
]


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside an index"])
@pytest.mark.parametrize("name", USERS_FILES)
def test_folder_with_a_file_of_the_users_is_refused_and_left_alone(
    tmp_path, small, larger, name, beside
):
    folder = small if beside else tmp_path / "mine"
    (folder / name).parent.mkdir(exist_ok=True, parents=True)
    if name.endswith("/"):
        (folder / name).mkdir()
    else:
        (folder / name).write_bytes(USERS_FILES[name])
    before = contents(folder)
    with pytest.raises(hg.IndexFileError, match="other files"):
        larger.save(folder)
    with pytest.raises(hg.IndexFileError, match="other files"):
        storage.check_target(folder)
    assert contents(folder) == before


@pytest.mark.parametrize("content", FOREIGN_HEADERS)
def test_folder_with_another_header_is_refused_and_left_alone(tmp_path, larger, content):
    (tmp_path / "header.json").write_bytes(content)
    before = contents(tmp_path)
    with pytest.raises(hg.IndexFileError, match=r"header\.json"):
        larger.save(tmp_path)
    assert contents(tmp_path) == before


def test_header_cannot_make_a_save_remove_files_of_the_users(small, larger):
    (small / "mine.npy").write_bytes(b"mine")
    edit_header(small, lambda header: header["arrays"]["degrees"].update(file="mine.npy"))
    with pytest.raises(hg.IndexFileError, match="list of arrays"):
        larger.save(small)
    assert (small / "mine.npy").read_bytes() == b"mine"


def test_what_a_desktop_puts_into_every_folder_does_not_count(small, larger):
    (small / ".DS_Store").write_bytes(b"x")
    larger.save(small)
    assert (small / ".DS_Store").read_bytes() == b"x"


def test_second_thread_waits_until_the_first_has_saved(small, larger, monkeypatch):
    others = []
    real = storage.write_array

    def meanwhile(path, array):
        if not others:
            others.append(threading.Thread(target=another.save, args=(small,)))
            others[0].start()
        return real(path, array)

    another = hg.load_index(small)
    monkeypatch.setattr(storage, "write_array", meanwhile)
    larger.save(small)
    others[0].join()
    assert hg.load_index(small).n == 8
    assert (
        len(contents(small)) == len(json.loads((small / "header.json").read_text())["arrays"]) + 2
    )


def test_writer_that_has_waited_long_enough_is_told(small, larger, monkeypatch):
    before = contents(small)
    monkeypatch.setattr(storage, "_PATIENCE", 0.0)
    with (
        own_folder(small, storage._named_files, patience=0.0),
        pytest.raises(hg.IndexFileError, match="another process or thread is writing"),
    ):
        larger.save(small)
    assert contents(small) == before
    larger.save(small)


def test_reader_that_is_overtaken_by_a_save_reads_the_new_index(small, larger, monkeypatch):
    real, saves = storage.read_header, []

    def save_meanwhile(folder):
        header = real(folder)
        if not saves:
            saves.append(larger)
            larger.save(small)
        return header

    monkeypatch.setattr(storage, "read_header", save_meanwhile)
    assert hg.load_index(small).n == 12


def test_reader_that_is_overtaken_without_end_is_told(small, larger, monkeypatch):
    def overtaken(folder, header, verify):
        larger.save(folder)
        raise hg.IndexFileError("missing")

    monkeypatch.setattr(storage, "_MOST_TRIES", 3)
    monkeypatch.setattr(storage, "_read_parts", overtaken)
    with pytest.raises(hg.IndexFileError, match="saves to it without a pause"):
        hg.load_index(small)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", ["eigen", "aggregates"])
def test_index_of_an_earlier_version_gives_the_answers_of_a_new_one(name, version, tmp_path):
    folder = tmp_path / name
    shutil.copytree(DATA / f"version_{version}_{name}", folder)
    assert json.loads((folder / "header.json").read_text())["version"] == version
    vectors = clustered_vectors(np.random.default_rng(77), n=24, d=4, clusters=3)
    fresh = hg.build_index(vectors, neighbors=5, alpha=0.99, dtype="float64", backend="numpy")
    queries = clustered_vectors(np.random.default_rng(79), n=3, d=4)
    for verify in (True, False):
        old = hg.load_index(folder, verify=verify, backend="numpy")
        one, other = (each.search(queries, k=9, rtol=1e-11) for each in (old, fresh))
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-9)
        np.testing.assert_array_equal(one.ids, other.ids)
        # Descriptors, lists and columns were numbered by ids, and are by places now.
        np.testing.assert_allclose(old.descriptors, fresh.descriptors, atol=1e-12)
        np.testing.assert_array_equal(old.neighbors.ids, fresh.neighbors.ids)
        similarities = (index.neighbors.similarities for index in (old, fresh))
        np.testing.assert_allclose(*similarities, atol=1e-12)
        one, other = (
            changed(index, columns=None).add(queries).search_items([25], k=9, rtol=1e-9)
            for index in (old, fresh)
        )
        np.testing.assert_array_equal(one.ids, other.ids)
    if old.columns is not None:
        stored = old.search_items(range(24), k=5, method="precomputed")
        exact = fresh.search_items(range(24), k=5, rtol=1e-11)
        np.testing.assert_allclose(stored.scores, exact.scores, atol=1e-3)
        agree = np.isclose(stored.scores, exact.scores, atol=1e-9)
        np.testing.assert_array_equal(stored.ids[agree], exact.ids[agree])
        assert version == 1 or agree.all()
    old.save(folder)
    assert json.loads((folder / "header.json").read_text())["version"] == storage.VERSION
    assert hg.load_index(folder).n == 24


def test_bytes_in_another_order_are_noticed_in_version_1_too(tmp_path):
    folder = tmp_path / "index"
    shutil.copytree(DATA / "version_1_eigen", folder)
    file = array_file(folder, "adjacency_data")
    file.write_bytes(file.read_bytes().replace(b"'<f8'", b"'>f8'"))
    with pytest.raises(hg.IndexFileError, match=f"{file.name}: damaged"):
        hg.load_index(folder)


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
    content[-4] ^= 0x01
    file.write_bytes(content)
    assert hg.load_index(small, verify=False).n == 8


def test_changed_parameter_in_the_header_is_noticed(small):
    header = small / "header.json"
    header.write_text(header.read_text().replace('"alpha": 0.9', '"alpha": 0.8'))
    with pytest.raises(hg.IndexFileError, match="checksum"):
        hg.load_index(small)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format": "hybrid-gpu ind', "not JSON"),
        ('{"format": "another library"}', "not a header of this library"),
        ("[1, 2]", "not a header of this library"),
        ('{"format": "hybrid-gpu index", "version": 999}', "format version 999.*Upgrade"),
        ('{"format": "hybrid-gpu index", "version": 0}', "format version 0"),
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
    size = file.stat().st_size
    edit_header(small, lambda header: header["arrays"]["components"].update(bytes=size))
    with pytest.raises(hg.IndexFileError, match="damaged"):
        hg.load_index(small)


def _deep(header):
    header["parameters"]["more"] = json.loads("[" * 50 + "]" * 50)


HEADER_EDITS = {
    "n is another": lambda header: header["parameters"].update(n=5),
    "n is text": lambda header: header["parameters"].update(n="8"),
    "n is true": lambda header: header["parameters"].update(n=True),
    "n is huge": lambda header: header["parameters"].update(n=10**200),
    "n is not there": lambda header: header["parameters"].pop("n"),
    "no parameters": lambda header: header.update(parameters=None),
    "alpha of 1": lambda header: header["parameters"].update(alpha=1.0),
    "alpha is text": lambda header: header["parameters"].update(alpha="0.9"),
    "alpha is huge": lambda header: header["parameters"].update(alpha=10**400),
    "gamma below 0": lambda header: header["parameters"].update(gamma=-3),
    "unknown basis": lambda header: header["parameters"]["basis"].update(kind="new"),
    "basis is a list": lambda header: header["parameters"].update(basis=[1]),
    "another rank": lambda header: header["parameters"]["basis"].update(rank=1),
    "no basis": lambda header: header["parameters"].pop("basis"),
    "columns without columns": lambda header: header["parameters"].update(columns_alpha=0.5),
    "no arrays": lambda header: header.update(arrays={}),
    "arrays are a list": lambda header: header.update(arrays=[1]),
    "an array too few": lambda header: header["arrays"].pop("order"),
    "an array too much": lambda header: header["arrays"].update(
        more={**header["arrays"]["order"], "file": "more.01234567.npy"}
    ),
    "a file elsewhere": lambda header: header["arrays"]["order"].update(file="../order.npy"),
    "an absolute file": lambda header: header["arrays"]["order"].update(file="/dev/zero"),
    "a file without a name": lambda header: header["arrays"]["order"].update(file=None),
    "a shape of another": lambda header: header["arrays"]["order"].update(shape=[4, 2]),
    "a dtype of another": lambda header: header["arrays"]["order"].update(dtype="<f8"),
    "deep": _deep,
}


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("edit", HEADER_EDITS)
def test_header_that_cannot_be_is_refused_although_its_checksum_is_right(small, edit, verify):
    edit_header(small, HEADER_EDITS[edit])
    shutil.copy(array_file(small, "order"), small / "more.01234567.npy")
    with pytest.raises(hg.IndexFileError, match=str(small)):
        hg.load_index(small, verify=verify)


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"format": "hybrid-gpu index", "format": "hybrid-gpu index"}',
        '{"format": NaN}',
        '{"format": 1' + "0" * 5000 + "}",
        " " * (1 << 21),
        "\ud800",
        "\0" * 50,
    ],
)
def test_json_that_would_break_a_reader_is_refused(small, content):
    (small / "header.json").write_text(content, errors="surrogatepass")
    with pytest.raises(hg.IndexFileError, match=r"header\.json"):
        hg.load_index(small)


def test_name_that_stands_twice_in_a_header_is_refused(small):
    header = (small / "header.json").read_text()
    (small / "header.json").write_text(header.replace("{", '{"version": 9,', 1))
    with pytest.raises(hg.IndexFileError, match="stands twice"):
        hg.load_index(small)


def _with(place, value):
    def change(array):
        array = array.copy()
        array.reshape(-1)[place] = value
        return array

    return change


ARRAY_EDITS = {
    "pointer beyond the entries": ("adjacency_indptr", _with(3, 10**6)),
    "negative pointer": ("adjacency_indptr", _with(3, -1)),
    "first pointer": ("adjacency_indptr", _with(0, 1)),
    "last pointer": ("adjacency_indptr", _with(-1, 5)),
    "pointers that fall": ("adjacency_indptr", lambda array: array[[0, 2, 1, *range(3, 9)]]),
    "too few pointers": ("adjacency_indptr", lambda array: array[:-1]),
    "pointers of another kind": ("adjacency_indptr", lambda array: array.astype(np.float32)),
    "column beyond": ("adjacency_indices", _with(3, 8)),
    "negative column": ("adjacency_indices", _with(3, -1)),
    "too few columns": ("adjacency_indices", lambda array: array[:-1]),
    "columns of another kind": ("adjacency_indices", lambda array: array.astype(np.int64)),
    "too few weights": ("adjacency_data", lambda array: array[:-1]),
    "weights of another kind": ("adjacency_data", lambda array: array.astype(np.float64)),
    "weights in two dimensions": ("adjacency_data", lambda array: array[:, None]),
    "weight above 1": ("adjacency_data", _with(0, 1.5)),
    "negative weight": ("adjacency_data", _with(0, -0.5)),
    "weight that is no number": ("adjacency_data", _with(0, np.nan)),
    "negative degree": ("degrees", _with(0, -1)),
    "infinite degree": ("degrees", _with(0, np.inf)),
    "degrees of integers": ("degrees", lambda array: array.astype(np.int32)),
    "component beyond": ("components", _with(0, 10**6)),
    "negative component": ("components", _with(0, -1)),
    "item twice": ("order", lambda array: array[[0, 0, *range(2, 8)]]),
    "item beyond": ("order", _with(0, 8)),
    "negative item": ("order", _with(0, -1)),
    "order of 32 bits": ("order", lambda array: array.astype(np.int32)),
    "eigenvalue above 1": ("basis_eigenvalues", _with(0, 2)),
    "eigenvalue too much": ("basis_eigenvalues", lambda array: np.append(array, array[:1])),
    "vectors in another shape": ("basis_vectors", lambda array: array.reshape(2, 8)),
    "vectors without scales": ("basis_vectors", lambda array: array.astype(np.int8)),
}


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("edit", ARRAY_EDITS)
def test_array_that_cannot_be_is_refused_although_its_checksum_is_right(small, edit, verify):
    name, change = ARRAY_EDITS[edit]
    put_array(small, name, change(np.load(array_file(small, name))))
    # Of a sparse matrix, any of its three arrays may be the one that does not fit the others.
    with pytest.raises(hg.IndexFileError, match=rf"{name.split('_')[0]}\w*\.[0-9a-f]{{8}}\.npy: "):
        hg.load_index(small, verify=verify)


MORE_EDITS = {
    "neighbor beyond": ("neighbor_ids", _with(0, 24)),
    "neighbor below -1": ("neighbor_ids", _with(0, -2)),
    "too few similarities": ("neighbor_similarities", lambda array: array[:, :-1]),
    "group beyond": ("basis_vectors_indices", _with(0, 3)),
    "item of a group beyond": ("basis_transposed_indices", _with(0, 24)),
    "group of a neighbor beyond": ("basis_spread_indices", _with(0, 6)),
    "share of a group that is no number": ("basis_vectors_data", _with(0, np.nan)),
    "coupling beyond": ("basis_coupling_indptr", _with(-1, 99)),
    "more couplings than groups": ("basis_coupling_indptr", lambda array: np.zeros(9, np.int32)),
    "no coupling": ("basis_coupling_indptr", lambda array: array[:0]),
    "too many groups of their own": ("basis_alone", lambda array: np.ones((7, 1))),
    "item in two groups": (
        "basis_vectors_indptr",
        lambda array: np.concatenate([[0], np.full(23, array[-1]), array[-1:]]).astype(np.int32),
    ),
}


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("edit", MORE_EDITS)
def test_list_or_group_that_cannot_be_is_refused(tmp_path, edit, verify):
    folder = tmp_path / "index"
    hg.load_index(DATA / "version_1_aggregates").save(folder)
    name, change = MORE_EDITS[edit]
    put_array(folder, name, change(np.load(array_file(folder, name))))
    with pytest.raises(hg.IndexFileError, match=f"{name.rsplit('_', 1)[0]}.*: "):
        hg.load_index(folder, verify=verify)


LARGE_EDITS = {
    "descriptor that is no number": ("descriptors", _with(5, np.nan)),
    "descriptor far from unit length": ("descriptors", _with(5, 1e30)),
    "similarity that is no number": ("neighbor_similarities", _with(5, np.nan)),
    "column beyond": ("column_ids", _with(5, 24)),
    "score that is no number": ("column_scores", _with(5, np.inf)),
}


@pytest.mark.parametrize("edit", LARGE_EDITS)
def test_values_of_large_arrays_are_looked_at_if_asked(tmp_path, edit):
    folder = tmp_path / "index"
    hg.load_index(DATA / "version_1_eigen").save(folder)
    name, change = LARGE_EDITS[edit]
    put_array(folder, name, change(np.load(array_file(folder, name))))
    assert hg.load_index(folder, verify=False).n == 24
    with pytest.raises(hg.IndexFileError, match=f"{name}.*out of range"):
        hg.load_index(folder)


def test_column_that_names_no_item_is_skipped_where_nothing_was_verified(
    backend, tmp_path, monkeypatch
):
    def watched(self, ids, values, n):
        # A sparse matrix on a GPU may read beyond its rows if it has entries for more.
        assert int(self.xp.max(ids)) < n
        return place(self, ids, values, n)

    place = type(backend).place
    monkeypatch.setattr(type(backend), "place", watched)
    folder = tmp_path / "index"
    hg.load_index(DATA / "version_1_eigen").save(folder)
    good = hg.load_index(folder, backend=backend).search_items([3], k=5, method="precomputed")
    columns = np.load(array_file(folder, "column_ids"))
    columns[np.load(array_file(folder, "order")) == 7] = 2**31 - 1
    put_array(folder, "column_ids", columns)
    index = hg.load_index(folder, verify=False, backend=backend)
    np.testing.assert_array_equal(
        index.search_items([3], k=5, method="precomputed").scores, good.scores
    )
    assert np.all(index.search_items([7], k=5, method="precomputed").scores == 0)
    assert np.all(backend.to_numpy(index.columns.ids)[7] == -1)


@pytest.mark.parametrize(
    ("part", "method"),
    [
        ("descriptors", "nn"),
        ("descriptors", "hybrid"),
        ("column_scores", "precomputed"),
        ("basis_vectors", "hybrid"),
        ("basis_vectors", "fsr"),
    ],
)
def test_nan_that_was_not_looked_for_is_told_by_a_search(
    backend, index, queries, tmp_path, part, method
):
    index.save(tmp_path)
    array = np.load(array_file(tmp_path, part))
    array[:, 0] = np.nan
    put_array(tmp_path, part, array)
    damaged = hg.load_index(tmp_path, verify=False, backend=backend)
    for k in (5, index.n):
        with pytest.raises(hg.HybridGpuError, match=r"NaN.*verify=False"):
            damaged.search(queries, k=k, method=method)


def test_arrays_behind_links_are_read(small, tmp_path):
    # As caches of downloaded models keep their files.
    for file in small.glob("*.npy"):
        shutil.move(file, tmp_path / file.name)
        file.symlink_to(tmp_path / file.name)
    assert hg.load_index(small).n == 8


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are a thing of Unix")
def test_pipe_in_the_place_of_a_file_does_not_stop_a_reader(small):
    for name in (array_file(small, "order").name, "header.json"):
        (small / name).unlink()
        os.mkfifo(small / name)
        with pytest.raises(hg.IndexFileError, match=f"{name}: not a plain file"):
            hg.load_index(small)


def test_version_is_covered_by_the_checksum(small):
    header = (small / "header.json").read_text()
    (small / "header.json").write_text(header.replace('"version": 3', '"version": 2'))
    with pytest.raises(hg.IndexFileError, match="checksum"):
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


def _no_paths(folder):
    """Paths at which no index can be, and a word of what is wrong with each."""
    (folder / "file").write_text("x")
    (folder / "loop").symlink_to(folder / "loop")
    return {
        folder / ("x" * 5000): "too long",
        folder / "new" / ("x" * 300): "too long",
        folder / "nul\0byte": "null",
        folder / "file": "this is a file",
        folder / "file" / "below": "Not a directory",
        folder / "loop": "symbolic links",
        folder / "loop" / "below": "symbolic links",
    }


def test_path_at_which_no_index_can_be_is_named(tmp_path, small):
    index = hg.load_index(small)
    (tmp_path / "there").mkdir()
    for path, fault in _no_paths(tmp_path / "there").items():
        told = "no such index" if path.parent.name == "new" else fault
        with pytest.raises(hg.IndexFileError, match=told) as caught:
            hg.load_index(path)
        assert path.name.split("\0")[0] in str(caught.value)
        for write in (index.save, lambda path: index.precompute(keep=2, folder=path)):
            with pytest.raises(hg.IndexFileError, match=fault):
                write(path)
        assert contents(tmp_path / "there").keys() == {"file", "loop"}


@needs_python_311
@pytest.mark.parametrize("call", ["stat", "lstat", "listdir"])
def test_folder_that_may_not_be_read_is_named(small, larger, monkeypatch, call):
    real = getattr(os, call)

    # Not by a mode of the folder: root may read everything.
    def refuse(path, *arguments, **options):
        if str(small) in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    before = contents(small)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(hg.IndexFileError, match=r"small.*Permission denied"):
            larger.save(small) if call == "listdir" else hg.load_index(small)
    assert contents(small) == before


def test_an_array_without_entries_cannot_claim_any_shape(tmp_path):
    path = tmp_path / "array.npy"
    for shape in ((0, 9_999_999_999_999_999_999), (9_999_999_999_999_999_999, 0), (0, 2**62)):
        with open(path, "wb") as file:
            write_head(file, "<f8", shape)
        with open_plain_file(path) as file, pytest.raises(hg.IndexFileError, match="cannot have"):
            read_head(file, path)


# Sections and inverses ----------------------------------------------------------------------------


def edited_header(folder, change):
    """Change the header of an index and give it its checksum."""
    path = folder / "header.json"
    header = json.loads(path.read_text())
    change(header)
    header["checksum"] = storage._header_checksum(header)
    path.write_text(json.dumps(header))


@pytest.fixture
def grouped(tmp_path, backend):
    vectors = clustered_vectors(np.random.default_rng(83), n=60, d=4, clusters=2)
    index = hg.build_index(vectors, neighbors=8, rank=9, backend=backend)
    index.save(tmp_path / "grouped")
    return index, tmp_path / "grouped"


def test_a_loaded_index_has_the_inverse_that_the_build_made(grouped, backend, monkeypatch):
    index, folder = grouped
    made = []

    def inverted(self, alpha):
        made.append(alpha)
        raise AssertionError("made once more")

    monkeypatch.setattr(GalerkinBasis, "_inverted", inverted)
    loaded = hg.load_index(folder, backend=backend)
    expected = index.search_items(np.arange(9), k=7)
    np.testing.assert_array_equal(loaded.search_items(np.arange(9), k=7).scores, expected.scores)
    assert not made
    size = index.state.basis.coupling.shape[0]
    assert loaded.state.basis.kept_inverse(index.alpha).together.shape == (size, size)
    assert loaded.state.basis.kept_inverse(0.5) is None


def test_an_index_without_its_inverse_makes_it_when_asked_or_warmed_up(grouped, backend):
    index, folder = grouped
    edited_header(folder, lambda header: header["sections"].clear())
    loaded = hg.load_index(folder, backend=backend)
    assert loaded.state.basis.kept_inverse(0.9) is None
    loaded.warm_up()
    kept = loaded.state.basis.kept_inverse(0.9)
    expected = index.state.basis.kept_inverse(0.9)
    np.testing.assert_allclose(
        backend.to_numpy(kept.together), backend.to_numpy(expected.together), rtol=1e-5
    )
    assert loaded.warm_up() is None
    assert loaded.state.basis.kept_inverse(0.9) is kept


def add_section(header, name, required):
    mark = header["arrays"]["order"]["file"].split(".")[1]
    entry = {**header["arrays"]["order"], "file": f"section_{name}_parts.{mark}.npy"}
    header["sections"][name] = {"required": required, "parameters": {}, "arrays": {"parts": entry}}
    return entry["file"]


def test_a_section_of_a_later_version_is_skipped_unless_it_is_required(grouped, backend):
    index, folder = grouped
    for required in (False, True):
        edited_header(folder, lambda header, r=required: add_section(header, "tags", r))
        header = json.loads((folder / "header.json").read_text())
        file = folder / header["sections"]["tags"]["arrays"]["parts"]["file"]
        shutil.copy(folder / header["arrays"]["order"]["file"], file)
        if required:
            with pytest.raises(hg.IndexFileError, match=r"a part 'tags' that .* Upgrade"):
                hg.load_index(folder, backend=backend)
        else:
            loaded = hg.load_index(folder, backend=backend)
            assert loaded.search_items([3], k=4).ids.shape == (1, 4)
    # The files of a section are the index's own: a save replaces them too.
    edited_header(folder, lambda header: header["sections"]["tags"].update(required=False))
    index.save(folder)
    assert not file.exists()
    assert hg.load_index(folder, backend=backend).n == 60


SECTION_EDITS = {
    "no basis": lambda header: header["parameters"].pop("basis"),
    "alpha": lambda header: header["sections"]["inverse"]["parameters"].update(alpha=2.0),
    "no alpha": lambda header: header["sections"]["inverse"]["parameters"].pop("alpha"),
    "norm": lambda header: header["sections"]["inverse"]["parameters"].update(norm=-1.0),
    "norm kind": lambda header: header["sections"]["inverse"]["parameters"].update(norm="1"),
    "no arrays": lambda header: header["sections"]["inverse"]["arrays"].clear(),
    "array": lambda header: header["sections"]["inverse"].update(arrays=[]),
    "no parameters": lambda header: header["sections"]["inverse"].pop("parameters"),
    "required": lambda header: header["sections"]["inverse"].update(required="yes"),
    "a list": lambda header: header.update(sections=[]),
    "a name": lambda header: header["sections"].update({"../x": header["sections"]["inverse"]}),
    "a file elsewhere": lambda header: header["sections"]["inverse"]["arrays"]["together"].update(
        file="../together.00000000.npy"
    ),
    "a core file": lambda header: header["sections"]["inverse"]["arrays"]["together"].update(
        file=header["arrays"]["degrees"]["file"]
    ),
    "version 2": lambda header: header.update(version=2),
}


@pytest.mark.parametrize("edit", SECTION_EDITS)
def test_a_section_that_does_not_fit_is_an_index_file_error(tmp_path, edit):
    vectors = clustered_vectors(np.random.default_rng(83), n=60, d=4, clusters=2)
    hg.build_index(vectors, neighbors=8, rank=9, backend="numpy").save(tmp_path / "index")
    edited_header(tmp_path / "index", SECTION_EDITS[edit])
    for verify in (True, False):
        with pytest.raises(hg.IndexFileError, match=r"header\.json|section_inverse_together"):
            hg.load_index(tmp_path / "index", verify=verify, backend="numpy")


def test_an_inverse_of_another_shape_or_with_nan_is_refused(tmp_path):
    vectors = clustered_vectors(np.random.default_rng(83), n=60, d=4, clusters=2)
    index = hg.build_index(vectors, neighbors=8, rank=9, backend="numpy")
    for change in (lambda a: a[:-1, :-1], lambda a: a.astype(np.float64), lambda a: a * np.nan):
        folder = tmp_path / "index"
        shutil.rmtree(folder, ignore_errors=True)
        index.save(folder)
        (path,) = folder.glob("section_inverse_together.*.npy")
        array = np.ascontiguousarray(change(np.load(path)))
        path.unlink()
        entry = storage.write_array(path, array)
        edited_header(
            folder,
            lambda header, e=entry: header["sections"]["inverse"]["arrays"]["together"].update(e),
        )
        with pytest.raises(hg.IndexFileError, match="section_inverse_together"):
            hg.load_index(folder, backend="numpy")


WALK_EDITS = {
    "alpha": lambda walk: walk["parameters"].update(alpha=-1.0),
    "slowdown": lambda walk: walk["parameters"].update(slowdown=0.5),
    "slowdown kind": lambda walk: walk["parameters"].update(slowdown=[2]),
    "no slowdown": lambda walk: walk["parameters"].pop("slowdown"),
    "no arrays": lambda walk: walk["arrays"].clear(),
}


@pytest.mark.parametrize("edit", WALK_EDITS)
def test_a_walk_that_does_not_fit_is_an_index_file_error(tmp_path, edit):
    vectors = clustered_vectors(np.random.default_rng(83), n=60, d=4, clusters=2)
    index = hg.build_index(vectors, neighbors=8, rank=9, backend="numpy")
    index.search_items([3], k=4, method="local")
    index.save(tmp_path / "index")
    edited_header(tmp_path / "index", lambda header: WALK_EDITS[edit](header["sections"]["walk"]))
    with pytest.raises(hg.IndexFileError, match=r"header\.json|section_walk_together"):
        hg.load_index(tmp_path / "index", backend="numpy")


def test_where_an_index_goes_its_inverse_goes_too(grouped, backend):
    index, _ = grouped
    other = hg.DiffusionIndex(unpacked(packed(index.state), backend))
    assert other.state.basis.kept_inverse(index.alpha) is not None


def test_a_basis_of_a_stranger_s_kind_is_refused_before_anything_is_written(grouped, backend):
    index, folder = grouped

    class Mine(GalerkinBasis):
        @property
        def kind(self):
            return "mine"

    parts = {name: getattr(index.basis, name) for name in ("vectors", "transposed", "spread")}
    parts |= {name: getattr(index.basis, name) for name in ("gram", "coupling", "alone")}
    mine = Mine(**parts, adjacency=index.graph.adjacency, backend=backend)
    strange = hg.with_basis(index, mine)
    assert strange.search_items([3], k=4).ids.shape == (1, 4)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match="of the kind 'mine' can be searched with, but not"):
        strange.save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    index.save(folder)
    assert hg.load_index(folder, backend=backend).n == 60


NOTHING = {
    "zeros": np.zeros((24, 2)),
    "no vectors": np.zeros((24, 0)),
    "sparse zeros": sparse.csr_array((24, 3)),
    "tiny": np.full((24, 1), 1e-25),
    "tinier": np.full((24, 1), 1e-160),
}


@pytest.mark.parametrize("basis", NOTHING)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_basis_that_spans_nothing_is_saved_and_comes_back(tmp_path, basis, dtype):
    vectors = clustered_vectors(np.random.default_rng(77), n=24, d=4, clusters=3)
    good = hg.build_index(vectors, neighbors=5, dtype=dtype, backend="numpy")
    good.save(tmp_path / "index")
    odd = hg.with_basis(good, NOTHING[basis])
    odd.save(tmp_path / "index")
    loaded = hg.load_index(tmp_path / "index", backend="numpy")
    assert loaded.state.basis.rank == NOTHING[basis].shape[1]
    expected = good.search_items([3], k=5, rtol=1e-3)
    found = loaded.search_items([3], k=5, rtol=1e-3)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=2e-2)
    good.save(tmp_path / "index")
    assert hg.load_index(tmp_path / "index", backend="numpy").n == 24


def test_a_header_that_could_not_be_read_takes_no_good_one_s_place(small, larger, monkeypatch):
    before = (small / "header.json").read_bytes()
    real = storage.packed
    for wrong in (float("inf"), float("nan"), -1.0):

        def broken(state, wrong=wrong):
            parts = real(state)
            return replace(parts, parameters={**parts.parameters, "gamma": wrong})

        monkeypatch.setattr(storage, "packed", broken)
        with pytest.raises((hg.IndexFileError, ValueError)):
            larger.save(small)
        assert (small / "header.json").read_bytes() == before
        assert hg.load_index(small).n == 8
