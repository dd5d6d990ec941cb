import errno
import json
import os
import shutil

import numpy as np
import pytest
from conftest import changed, clustered_vectors, dense

import hybrid_gpu as hg
from hybrid_gpu import evaluation
from hybrid_gpu.files import writing
from hybrid_gpu.files.folder_lock import LOCK
from hybrid_gpu.index import precompute as module
from hybrid_gpu.index.precompute import remove_columns
from hybrid_gpu.ranking import local_ranking
from hybrid_gpu.ranking import state as states


@pytest.fixture
def index(backend):
    vectors = clustered_vectors(np.random.default_rng(51), n=90)
    return hg.build_index(vectors, neighbors=6, dtype="float64", backend=backend)


@pytest.fixture
def queries():
    return clustered_vectors(np.random.default_rng(53), n=5)


def test_whole_columns_give_the_exact_answer(index, queries):
    stored = index.precompute(keep=90, rtol=1e-12)
    exact = index.search(queries, k=90, method="temporal", rtol=1e-12)
    ranking = stored.search(queries, k=90, method="precomputed")
    np.testing.assert_allclose(ranking.scores, exact.scores, atol=1e-9)
    assert ranking.report.steps == 0


def test_short_columns_keep_the_best_entries(backend, index):
    stored = index.precompute(keep=7, rtol=1e-12)
    exact = index.search_items(np.arange(90), k=7, method="temporal", rtol=1e-12)
    scores = backend.to_numpy(stored.columns.scores)
    np.testing.assert_allclose(scores, np.maximum(exact.scores, 0), atol=1e-10)
    assert np.all((backend.to_numpy(stored.columns.ids) < 0) == (scores == 0))
    assert stored.memory["columns"] == 90 * 7 * 12


def test_interrupted_work_goes_on_where_it_was(backend, index, tmp_path):
    def interrupt(stage, done, total):
        if done >= 50:
            raise KeyboardInterrupt

    folder = tmp_path / "columns"
    with pytest.raises(KeyboardInterrupt):
        index.precompute(keep=9, folder=folder, batch=10, progress=interrupt)
    assert json.loads((folder / "progress.json").read_text())["done"] == 50
    seen = []
    resumed = index.precompute(
        keep=9, folder=folder, batch=10, progress=lambda *state: seen.append(state)
    )
    assert seen[0] == ("precompute", 50, 90)
    assert seen[-1] == ("precompute", 90, 90)
    whole = index.precompute(keep=9, batch=10)
    np.testing.assert_array_equal(
        backend.to_numpy(resumed.columns.ids), backend.to_numpy(whole.columns.ids)
    )
    np.testing.assert_array_equal(
        backend.to_numpy(resumed.columns.scores), backend.to_numpy(whole.columns.scores)
    )


def test_columns_of_another_index_or_setting_are_not_continued(index, tmp_path):
    index.precompute(keep=9, folder=tmp_path)
    with pytest.raises(hg.IndexFileError, match="other settings"):
        index.precompute(keep=8, folder=tmp_path)
    (tmp_path / "progress.json").write_text("{")
    with pytest.raises(hg.IndexFileError, match="damaged"):
        index.precompute(keep=9, folder=tmp_path)


def contents(folder):
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}


@pytest.fixture
def plain():
    """An index on the host, for what is about files only."""
    vectors = clustered_vectors(np.random.default_rng(57), n=40)
    return hg.build_index(vectors, neighbors=5, backend="numpy")


@pytest.fixture
def half_done(plain, tmp_path):
    """A folder in which 20 of 40 rows are done."""

    def interrupt(stage, done, total):
        if done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plain.precompute(keep=9, folder=tmp_path / "half", batch=10, progress=interrupt)
    return tmp_path / "half"


def no_work(*state):
    raise AssertionError("work began")


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside columns"])
@pytest.mark.parametrize("name", ["cat.jpg", "ids.npy", "scores.npy", "ids.01234567.npy", "a.tmp"])
def test_folder_with_a_file_of_the_users_is_refused_and_left_alone(
    plain, half_done, tmp_path, name, beside
):
    folder = half_done if beside else tmp_path / "mine"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"mine")
    before = contents(folder)
    with pytest.raises(hg.IndexFileError, match="other files"):
        plain.precompute(keep=9, folder=folder, batch=10, progress=no_work)
    with pytest.raises(hg.IndexFileError, match="other files"):
        remove_columns(folder)
    assert contents(folder) == before


def test_state_of_somebody_else_is_left_alone(plain, tmp_path):
    (tmp_path / "progress.json").write_text('{"done": 3}')
    with pytest.raises(hg.IndexFileError, match="not a state of this library"):
        plain.precompute(keep=9, folder=tmp_path)
    assert contents(tmp_path) == {"progress.json": b'{"done": 3}'}


def test_index_is_no_folder_for_columns_and_columns_none_for_an_index(plain, half_done, tmp_path):
    plain.save(tmp_path / "index")
    with pytest.raises(hg.IndexFileError, match="other files"):
        plain.precompute(keep=9, folder=tmp_path / "index")
    with pytest.raises(hg.IndexFileError, match="other files"):
        plain.save(half_done)
    assert hg.load_index(tmp_path / "index").n == 40
    plain.precompute(keep=9, folder=half_done)


def test_columns_that_are_stored_are_those_that_are_computed(plain, half_done):
    stored, whole = plain.precompute(keep=9, folder=half_done), plain.precompute(keep=9)
    np.testing.assert_array_equal(stored.columns.ids, whole.columns.ids)
    np.testing.assert_allclose(stored.columns.scores, whole.columns.scores, atol=1e-6)
    for part in ("ids", "scores"):
        (file,) = half_done.glob(f"{part}.*.npy")
        np.testing.assert_array_equal(np.load(file), getattr(stored.state.columns, part))


def _cut(file):
    os.truncate(file, file.stat().st_size - 8)


def _flip(file):
    content = bytearray(file.read_bytes())
    content[140] ^= 1
    file.write_bytes(content)


def _foreign(file):
    np.save(file, np.zeros((40, 9), np.int64))


def _other_shape(file):
    content = file.read_bytes()
    file.write_bytes(content.replace(b"(40, 9), }", b"(90, 4), }"))


@pytest.mark.parametrize("part", ["ids", "scores"])
@pytest.mark.parametrize("damage", [_cut, _flip, _foreign, _other_shape, os.unlink])
def test_damaged_columns_are_not_gone_on_with(plain, half_done, part, damage):
    (file,) = half_done.glob(f"{part}.*.npy")
    damage(file)
    with pytest.raises(hg.IndexFileError, match=f"{file.name}: damaged"):
        plain.precompute(keep=9, folder=half_done, progress=no_work)


@pytest.mark.parametrize("part", ["ids", "scores", "progress"])
def test_planted_link_is_not_followed(plain, half_done, tmp_path, part):
    mine = tmp_path / "mine"
    if part == "progress":
        (ids,) = half_done.glob("ids.*.npy")
        planted = half_done / f"progress.json.{ids.name.split('.')[1]}.tmp"
        mine.write_bytes(b"mine")
    else:
        (planted,) = half_done.glob(f"{part}.*.npy")
        shutil.move(planted, mine)
    before = mine.read_bytes()
    planted.symlink_to(mine)
    if part == "progress":
        plain.precompute(keep=9, folder=half_done, batch=10)
    else:
        with pytest.raises(hg.IndexFileError, match=f"{planted.name}: damaged"):
            plain.precompute(keep=9, folder=half_done, batch=10)
    assert mine.read_bytes() == before


@pytest.mark.parametrize(
    "change", [{"done": 41}, {"done": -1}, {"done": True}, {"mark": "../../x"}, {"checksums": [0]}]
)
def test_state_that_cannot_be_is_refused_although_its_checksum_is_right(plain, half_done, change):
    state = json.loads((half_done / "progress.json").read_text()) | change
    del state["checksum"]
    told = module.checksum(json.dumps(state, sort_keys=True).encode())
    (half_done / "progress.json").write_text(json.dumps({**state, "checksum": told}))
    with pytest.raises(hg.IndexFileError, match="damaged"):
        plain.precompute(keep=9, folder=half_done)


def test_second_process_is_told_that_the_first_is_at_work(plain, tmp_path):
    told = []

    def meanwhile(stage, done, total):
        if not told:
            with pytest.raises(hg.IndexFileError, match="another process or thread") as caught:
                plain.precompute(keep=9, folder=tmp_path)
            told.append(caught)

    plain.precompute(keep=9, folder=tmp_path, progress=meanwhile)
    assert told


@pytest.mark.parametrize("fallocate", [True, False])
def test_space_is_reserved_before_the_work_begins(plain, tmp_path, monkeypatch, fallocate):
    if not fallocate:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    taken = []

    def look(stage, done, total):
        taken.append([one.stat().st_blocks * 512 for one in sorted(tmp_path.glob("*.npy"))])

    plain.precompute(keep=9, folder=tmp_path, progress=look)
    assert all(size >= 40 * 9 * 4 for size in taken[0])
    assert len(taken[0]) == 2


def test_full_disk_is_told_before_the_work_begins_and_leaves_nothing(plain, tmp_path, monkeypatch):
    def full(file, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "reserve_space", full)
    with pytest.raises(OSError, match="No space left"):
        plain.precompute(keep=9, folder=tmp_path / "new" / "columns", progress=no_work)
    assert not contents(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        plain.precompute(keep=9, folder=tmp_path, progress=no_work)
    assert not contents(tmp_path)
    monkeypatch.undo()
    plain.precompute(keep=9, folder=tmp_path)


def test_copy_without_hidden_files_can_be_killed_and_gone_on_with_too(
    plain, half_done, tmp_path, monkeypatch
):
    (half_done / LOCK).unlink()
    real = writing._rename

    def copy_first(*arguments):
        if not (tmp_path / "killed").exists():
            shutil.copytree(half_done, tmp_path / "killed")
        return real(*arguments)

    monkeypatch.setattr(writing, "_rename", copy_first)
    plain.precompute(keep=9, folder=half_done, batch=10)
    monkeypatch.undo()
    assert len(contents(tmp_path / "killed")) == 5  # the state is there twice
    plain.precompute(keep=9, folder=tmp_path / "killed", batch=10)
    assert len(contents(tmp_path / "killed")) == 4


@pytest.mark.parametrize(
    ("place", "moment"),
    [
        (module, "reserve_space"),
        (module, "write_all"),
        (module, "replacing"),
        (writing, "sync_file"),
        (writing, "_rename"),
    ],
)
def test_work_that_is_killed_goes_on_and_gives_the_same_columns(
    plain, tmp_path, monkeypatch, place, moment
):
    killed = []
    real = getattr(place, moment)

    def copy_first(*arguments, **options):
        killed.append(tmp_path / f"killed-{len(killed)}")
        shutil.copytree(tmp_path / "columns", killed[-1])
        return real(*arguments, **options)

    monkeypatch.setattr(place, moment, copy_first)
    whole = plain.precompute(keep=9, folder=tmp_path / "columns", batch=20)
    monkeypatch.undo()
    assert killed
    for folder in killed:
        again = plain.precompute(keep=9, folder=folder, batch=20)
        np.testing.assert_array_equal(again.columns.scores, whole.columns.scores)
        assert len(contents(folder)) == 4
        remove_columns(folder)
        # Of one that was killed before its first state, nobody knows who made the folder.
        assert not folder.exists() or not contents(folder)


def test_empty_folder_of_the_users_outlasts_the_columns_and_one_of_ours_does_not(
    plain, half_done, tmp_path
):
    (tmp_path / "mine").mkdir()
    for folder, stays in ((tmp_path / "mine", True), (half_done, False)):
        plain.precompute(keep=9, folder=folder, batch=10)
        remove_columns(folder)
        assert folder.exists() == stays
        assert not contents(tmp_path / "mine")


def test_estimate_tells_bytes_and_seconds(index):
    estimate = hg.estimate_precompute(index, keep=10)
    assert estimate.bytes == 90 * 10 * 12
    assert estimate.seconds > 0
    assert repr(estimate).startswith("Estimate(")


def test_columns_answer_their_own_filter_only(index, queries):
    with pytest.raises(ValueError, match=r"index\.precompute"):
        index.search(queries, k=5, method="precomputed")
    stored = index.precompute(keep=5)
    with pytest.raises(ValueError, match="stored columns are those of"):
        stored.search(queries, k=5, method="precomputed", filter=hg.PageRank(0.5))


@pytest.mark.parametrize("keep", [0, 91])
def test_impossible_numbers_of_entries_are_refused(index, keep):
    with pytest.raises(ValueError, match="keep must be at"):
        index.precompute(keep=keep)


def test_another_working_directory_does_not_lead_to_another_folder(tmp_path, monkeypatch):
    index = hg.build_index(
        np.random.default_rng(37).standard_normal((60, 4)), neighbors=4, backend="numpy"
    )
    here, there = tmp_path / "here", tmp_path / "there"
    (there / "columns").mkdir(parents=True)
    (there / "columns" / "progress.json").write_text("mine")
    here.mkdir()
    monkeypatch.chdir(here)
    index.precompute(
        keep=5, folder="columns", batch=20, progress=lambda *_: monkeypatch.chdir(there)
    )
    assert (there / "columns" / "progress.json").read_text() == "mine"
    assert (here / "columns" / "progress.json").is_file()


def test_a_run_that_ends_before_its_first_row_can_be_removed_with_its_folder(plain, tmp_path):
    def interrupt(stage, done, total):
        if stage == "precompute":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plain.precompute(keep=9, folder=tmp_path / "columns", progress=interrupt)
    assert json.loads((tmp_path / "columns" / "progress.json").read_text())["done"] == 0
    remove_columns(tmp_path / "columns")
    assert not (tmp_path / "columns").exists()


def test_columns_of_the_version_before_are_not_gone_on_with(plain, half_done):
    # They were numbered by ids, and those of now are by places.
    path = half_done / "progress.json"
    state = json.loads(path.read_text())
    del state["numbered"], state["checksum"]
    state["checksum"] = module.checksum(json.dumps(state, sort_keys=True).encode())
    path.write_text(json.dumps(state))
    with pytest.raises(hg.IndexFileError, match="another index or with other settings"):
        plain.precompute(keep=9, folder=half_done)


@pytest.fixture
def local(backend, monkeypatch):
    """An index that is searched locally, whatever its size and backend."""
    monkeypatch.setattr(states, "_ITEMS_WORTH", 1)
    monkeypatch.setattr(states, "_ITEMS_WORTH_OF_ENTRY", 1)
    monkeypatch.setattr(local_ranking, "_PART_OF_ITEMS", 10)
    monkeypatch.setattr(type(backend), "searches_locally", True)
    vectors = clustered_vectors(np.random.default_rng(59), n=400, clusters=10)
    return hg.build_index(vectors, neighbors=8, alpha=0.9, backend=backend)


def dense_columns(index):
    system = np.eye(index.n) - 0.9 * dense(index.state.backend, index.graph.adjacency)
    return 0.1 * np.linalg.inv(system)


def test_columns_are_searched_locally_by_the_rule_of_auto(local):
    def rtol(index, **options):
        request = module.column_request(index.state, options.pop("keep", 40), width=8, **options)
        return request.method.name, request.stop.tolerance if request.stop.insists else None

    assert rtol(local, rtol=None) == ("local", None)
    assert rtol(local, rtol=None, keep=41) == ("hybrid", 1e-3)  # more than a tenth of all items
    assert rtol(local, rtol=1e-4) == ("hybrid", 1e-4)
    assert rtol(changed(local, basis=None), rtol=None) == ("hybrid", 1e-3)


@pytest.mark.parametrize("rooms", [None, (8, 16)], ids=["settled", "left to hybrid"])
def test_local_columns_are_those_of_a_dense_solve(backend, local, monkeypatch, rooms):
    if rooms is not None:
        monkeypatch.setattr(local_ranking, "ROOMS", rooms)
    stored = local.precompute(keep=30)
    exact = dense_columns(local)
    ids, scores = (backend.to_numpy(part) for part in (stored.columns.ids, stored.columns.scores))
    own = np.where(ids < 0, 0, np.take_along_axis(exact, np.maximum(ids, 0), axis=1))
    scale = exact.max(axis=1, keepdims=True)
    assert np.max(np.abs(scores - own) / scale) < 0.05
    best = -np.sort(-exact, axis=1)[:, :30]
    assert np.max(np.abs(-np.sort(-own, axis=1) - best) / scale) < 2e-3


def test_queries_rank_by_local_columns_as_by_a_solve(local):
    queries = clustered_vectors(np.random.default_rng(59), n=400, clusters=10)[::9] + 0.05
    stored = local.precompute(keep=40)
    found = stored.search(queries, k=10, method="precomputed")
    exact = local.search(queries, k=10, method="hybrid", accuracy=1e-6)
    whole = local.precompute(keep=40, rtol=1e-5).search(queries, k=10, method="precomputed")
    right, possible = (evaluation.agreement(ranking.ids, exact.ids) for ranking in (found, whole))
    assert right > possible - 0.01


def test_interrupted_local_work_gives_the_same_bits(backend, local, tmp_path, monkeypatch):
    # Little room: some columns settle in it, and the others are solved whole.
    monkeypatch.setattr(local_ranking, "ROOMS", (48,))
    settled = local.search_items(np.arange(400), k=20).report.local.settled
    assert 0 < np.mean(settled) < 1

    def interrupt(stage, done, total):
        if done >= 200:
            raise KeyboardInterrupt

    folder = tmp_path / "columns"
    with pytest.raises(KeyboardInterrupt):
        local.precompute(keep=20, folder=folder, batch=50, progress=interrupt)
    written = json.loads((folder / "progress.json").read_text())
    assert (written["done"], written["rtol"]) == (200, None)
    with pytest.raises(hg.IndexFileError, match="other settings"):
        local.precompute(keep=20, rtol=1e-3, folder=folder, batch=50)
    resumed = local.precompute(keep=20, folder=folder, batch=50).columns
    whole = local.precompute(keep=20, batch=50).columns
    for part in ("ids", "scores"):
        one, other = (backend.to_numpy(getattr(columns, part)) for columns in (resumed, whole))
        np.testing.assert_array_equal(one, other)
