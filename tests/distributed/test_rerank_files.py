"""Query sets in many files: each answered once, whole or not at all, whatever happens."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import types
import zipfile

import numpy as np
import pytest
from conftest import TOLERANCE
from made_up_queries import (
    DIMENSIONS,
    ITEMS,
    K,
    allow_deaths,
    computed,
    contents,
    deadly,
    names,
    reranker,
    save_index,
    vectors,
    write_sets,
)

import hybrid_gpu as hg
from hybrid_gpu.backends import threads
from hybrid_gpu.distributed import (
    answer_files,
    engines,
    files_job,
    local_workers,
    manifest,
    shards,
)
from hybrid_gpu.files.folder_lock import LOCK


@pytest.fixture
def place(tmp_path):
    save_index(tmp_path / "index")
    return tmp_path


@pytest.fixture(autouse=True)
def all_threads():
    yield
    threads.limit_threads(None)


@pytest.fixture
def sets(place):
    return write_sets(place / "queries")


@pytest.fixture
def rerank(place):
    return reranker(place / "index")


@pytest.fixture
def expected(place, sets, rerank):
    """What an undisturbed run writes."""
    hg.rerank_files(rerank, sets, place / "undisturbed")
    return contents(place / "undisturbed")


def in_child(work):
    """Run something in a forked process; how that ended."""
    number = os.fork()
    if number == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def test_each_file_gets_the_answers_of_the_index(place, sets, rerank):
    report = hg.rerank_files(rerank, sets, place / "answers")
    index = hg.load_index(place / "index", backend="numpy")
    for path in sets:
        ranking = index.search(np.load(path), k=K)
        with np.load(place / "answers" / f"{path.stem}.npz") as answers:
            assert set(answers) == {"ids", "scores"}
            assert np.array_equal(answers["ids"], ranking.ids)
            assert np.array_equal(answers["scores"], ranking.scores)
    assert report.complete
    assert (len(report.of("done")), report.queries) == (4, 20)
    assert [shard.input for shard in report.shards] == [str(path) for path in sets]
    assert repr(report).startswith("FilesReport(4 done: 20 queries, ")
    assert len(report.slowest(2)) == 2


def test_columns_and_keys_go_through_archives(place):
    save_index(place / "keyed", keys=names())
    queries = vectors(6, seed=71)
    first = hg.nearest_neighbors(vectors(ITEMS), queries, k=4, backend="numpy")
    found = np.array(names())[first.ids]
    np.savez(place / "vectors.npz", descriptors=queries, query=np.array(list("abcdef")))
    np.savez(place / "only.npz", whatever=queries)
    np.savez(place / "lists.npz", ids=found, similarities=first.similarities, user=np.arange(6))
    sources = [place / f"{name}.npz" for name in ("vectors", "only", "lists")]
    rerank = reranker(place / "keyed", allowed=names()[:5])
    assert hg.rerank_files(rerank, sources, place / "answers").complete
    index = hg.load_index(place / "keyed", backend="numpy")
    by_vector = index.search(queries, k=K, allowed=names()[:5])
    by_list = index.rerank(found.astype(object), first.similarities, k=K, allowed=names()[:5])
    for name, ranking, kept in (
        ("vectors", by_vector, {"query"}),
        ("only", by_vector, set()),
        ("lists", by_list, {"user"}),
    ):
        with np.load(place / "answers" / f"{name}.npz") as answers:
            assert set(answers) == {"keys", "scores", *kept}
            told = np.where(ranking.ids < 0, "", ranking.keys)  # without pickle: no None
            assert np.array_equal(answers["keys"], told)
            assert np.array_equal(answers["scores"], ranking.scores)


def test_parquet_comes_out_as_parquet(place):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    queries = vectors(11, seed=71)
    fixed = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(queries.reshape(-1)), DIMENSIONS)
    table = pyarrow.table({"query": [f"q{number}" for number in range(11)], "vector": fixed})
    parquet.write_table(table, place / "lists.parquet")
    columns = {f"x{number}": queries[:, number] for number in range(DIMENSIONS)}
    parquet.write_table(pyarrow.table({"query": table["query"], **columns}), place / "wide.parquet")
    parquet.write_table(table.slice(0, 0), place / "empty.parquet")
    (place / "junk.parquet").write_bytes(b"PAR1 no table at all PAR1")
    (place / "cut.parquet").write_bytes((place / "lists.parquet").read_bytes()[:-40])
    rerank = reranker(place / "index")
    some = [place / f"{name}.parquet" for name in ("lists", "empty", "junk", "cut")]
    report = hg.rerank_files(rerank, some, place / "answers")
    assert [shard.state for shard in report.shards] == ["done", "done", "failed", "failed"]
    assert all("damaged or cut short" in shard.error for shard in report.failed)
    wide = reranker(place / "index", descriptors="x*")
    assert hg.rerank_files(wide, place / "wide.parquet", place / "wide").complete
    ranking = hg.load_index(place / "index", backend="numpy").search(queries, k=K)
    for folder, name in (("answers", "lists"), ("wide", "wide")):
        answers = parquet.read_table(place / folder / f"{name}.parquet")
        assert answers.schema.names == ["query", "ids", "scores"]
        assert answers["query"].to_pylist() == table["query"].to_pylist()
        assert np.array_equal(np.array(answers["ids"].to_pylist()), ranking.ids)
    empty = parquet.read_table(place / "answers" / "empty.parquet")
    assert empty.schema.field("ids").type == pyarrow.list_(pyarrow.int64(), K)
    assert empty.num_rows == 0


def test_processes_write_the_same_bits(place, sets, rerank, expected):
    report = hg.rerank_files(rerank, sets, place / "answers", workers=2)
    assert contents(place / "answers") == expected
    lines = (place / "answers" / "manifest.jsonl").read_text().splitlines()
    workers = {line["done"]["worker"] for line in map(json.loads, lines) if "done" in line}
    assert f":{os.getpid()}" not in str(workers)
    assert report.workers == 2


def test_other_shard_sizes_agree_to_the_tolerance_table(place, rerank, monkeypatch):
    queries = vectors(60, seed=71)
    monkeypatch.setattr(shards, "PART", 16)
    scores = []
    for size in (60, 17, 1):
        folder = place / f"by {size}"
        folder.mkdir()
        for start in range(0, 60, size):
            np.save(folder / f"{start:02}.npy", queries[start : start + size])
        hg.rerank_files(rerank, folder, folder / "answers")
        files = sorted((folder / "answers").glob("*.npz"))
        scores.append(np.concatenate([np.load(file)["scores"] for file in files]))
    for other in scores[1:]:
        np.testing.assert_allclose(other, scores[0], rtol=TOLERANCE["float32"], atol=1e-7)


def test_files_are_mapped_and_read_part_by_part(place, rerank, monkeypatch):
    np.save(place / "large.npy", vectors(50, seed=71))
    monkeypatch.setattr(shards, "PART", 20)
    seen, real = [], hg.Reranker.with_report

    def watched(self, part, similarities=None):
        seen.append(part["descriptors"])
        return real(self, part, similarities)

    monkeypatch.setattr(hg.Reranker, "with_report", watched)
    hg.rerank_files(rerank, place / "large.npy", place / "answers")
    assert [len(part) for part in seen] == [20, 20, 10]
    assert all(isinstance(part, np.memmap) for part in seen)
    expected = hg.load_index(place / "index", backend="numpy").search(
        np.load(place / "large.npy"), k=K
    )
    with np.load(place / "answers" / "large.npz") as answers:
        np.testing.assert_allclose(answers["scores"], expected.scores, rtol=TOLERANCE["float32"])


def test_names_that_collide_get_numbers_and_keep_them(place, rerank):
    sources = []
    for number, folder in enumerate(("a", "b", "c")):
        (place / folder).mkdir()
        sources.append(place / folder / "x.npy")
        np.save(sources[-1], vectors(3, seed=200 + number))
    np.savez(place / "x.npz", vectors(3, seed=203))
    first = hg.rerank_files(rerank, sources[1:], place / "answers")
    assert [shard.output for shard in first.shards] == ["x.npz", "x-2.npz"]
    second = hg.rerank_files(rerank, [*sources, sources[0], place / "x.npz"], place / "answers")
    assert [shard.output for shard in second.shards] == ["x-3.npz", "x.npz", "x-2.npz", "x-4.npz"]
    assert [shard.state for shard in second.shards] == ["done", "kept", "kept", "done"]
    with np.load(place / "answers" / "x-3.npz") as answers:
        assert np.array_equal(answers["scores"], rerank(np.load(sources[0]))["scores"])


KILLS = {
    "at the first file": (shards, "sync_file"),
    "before it is told": (files_job.ManifestWriter, "finish"),
    "before the name": (files_job, "take_name"),
    "in a second part": (shards._Tally, "take"),
}


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("moment", KILLS)
@pytest.mark.parametrize("after", [0, 2])
def test_a_run_that_is_killed_is_finished_by_the_next(
    place, sets, rerank, expected, moment, after, monkeypatch
):
    owner, name = KILLS[moment]
    real, calls = getattr(owner, name), []

    def deadly_call(*args, **options):
        calls.append(1)
        return die() if len(calls) > after else real(*args, **options)

    def work():
        setattr(owner, name, deadly_call)
        hg.rerank_files(rerank, sets, place / "answers")

    assert in_child(work) == -signal.SIGKILL
    before = contents(place / "answers")
    assert len(before) == after
    stamps = {file: os.stat(place / "answers" / file).st_mtime_ns for file in before}
    report = hg.rerank_files(rerank, sets, place / "answers")
    assert (len(report.of("kept")), len(report.of("done"))) == (after, 4 - after)
    assert contents(place / "answers") == expected
    assert stamps == {file: os.stat(place / "answers" / file).st_mtime_ns for file in before}
    own = {LOCK, "manifest.jsonl", *expected}
    assert set(os.listdir(place / "answers")) == own


def test_every_line_is_on_disk_before_a_file_gets_its_name(place, sets, rerank, monkeypatch):
    path, synced, named = place / "answers" / "manifest.jsonl", [0], []
    real_sync, real_name = os.fsync, files_job.take_name

    def sync(descriptor):
        real_sync(descriptor)
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            synced[0] = path.stat().st_size

    def take_name(temporary, place):
        named.append(place.name)
        assert synced[0] == path.stat().st_size
        assert place.name in path.read_text().splitlines()[-1]
        real_name(temporary, place)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(files_job, "take_name", take_name)
    assert hg.rerank_files(rerank, sets, place / "answers").complete
    assert len(named) == 4


def test_half_a_line_of_the_manifest_is_dropped(place, sets, rerank, expected):
    hg.rerank_files(rerank, sets[:2], place / "answers")
    path = place / "answers" / "manifest.jsonl"
    whole = path.read_bytes()
    for half in (b'{"done": {"out', b'{"planned": 3}', b"\0\0\0\0", b'{"run": "0badcafe"}\n'):
        path.write_bytes(whole + half)
        assert len(hg.rerank_files(rerank, sets[:2], place / "answers").of("kept")) == 2
    hg.rerank_files(rerank, sets, place / "answers")
    assert contents(place / "answers") == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no whole line"),
        (b"{}\n", "no whole line"),
        (b"my own notes\nof two lines\n", "no line of ours"),
        (manifest._line({"format": "other"}), "not a manifest"),
        (manifest._line({"format": "hybrid-gpu answers", "version": 2}), "not a manifest"),
    ],
)
def test_a_manifest_that_is_none_of_ours_is_refused(place, sets, rerank, content, message):
    (place / "answers").mkdir()
    (place / "answers" / "manifest.jsonl").write_bytes(content)
    with pytest.raises(hg.IndexFileError, match=message):
        hg.rerank_files(rerank, sets, place / "answers")
    assert os.listdir(place / "answers") == ["manifest.jsonl"]
    assert (place / "answers" / "manifest.jsonl").read_bytes() == content


@pytest.mark.parametrize(
    "line",
    [
        {"planned": {"input": "a", "output": "../escaped.npz"}},
        {"planned": {"input": "a", "output": "inside/a.npz"}},
        {"planned": {"input": "a", "output": ".hidden"}},
        {"planned": {"input": 3, "output": "a.npz"}},
        {"planned": "a"},
        {"done": {"output": "a.npz"}},
        {"run": "not a mark"},
        {"run": ["01234567"]},
        {"planned": {"input": "another", "output": "set0.npz"}},
        {"else": 1},
    ],
)
def test_lines_that_no_run_writes_are_refused(place, sets, rerank, line):
    hg.rerank_files(rerank, sets[:1], place / "answers")
    with open(place / "answers" / "manifest.jsonl", "ab") as file:
        file.write(manifest._line(line))
    with pytest.raises(hg.IndexFileError, match="damaged"):
        hg.rerank_files(rerank, sets, place / "answers")


def test_changed_queries_are_told_and_not_mixed(place, sets, rerank, expected):
    hg.rerank_files(rerank, sets, place / "answers")
    np.save(sets[1], vectors(5, seed=999))
    report = hg.rerank_files(rerank, sets, place / "answers")
    assert [shard.state for shard in report.shards] == ["kept", "failed", "kept", "kept"]
    assert "has changed since" in report.failed[0].error
    assert contents(place / "answers") == expected
    (place / "answers" / "set1.npz").rename(place / "old.npz")  # as the message says
    assert hg.rerank_files(rerank, sets, place / "answers").complete
    assert contents(place / "answers")["set1.npz"] != expected["set1.npz"]


def test_changed_answers_are_told_and_stay(place, sets, rerank, expected):
    hg.rerank_files(rerank, sets, place / "answers")
    same_size = expected["set3.npz"][:-1] + b"!"
    (place / "answers" / "set3.npz").write_bytes(same_size)
    (place / "answers" / "set2.npz").write_bytes(b"the user's own")
    report = hg.rerank_files(rerank, sets, place / "answers")
    assert [shard.state for shard in report.shards] == ["kept", "kept", "failed", "failed"]
    assert (place / "answers" / "set3.npz").read_bytes() == same_size
    (place / "answers" / "set3.npz").write_bytes(expected["set3.npz"])
    assert (place / "answers" / "set2.npz").read_bytes() == b"the user's own"
    (place / "answers" / "set2.npz").unlink()
    hg.rerank_files(rerank, sets, place / "answers")
    assert contents(place / "answers") == expected
    assert max(computed(place / "answers").values()) == 2  # that one alone


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"k": K + 1}, "k was 7 and is 8"),
        ({"method": "temporal"}, "method was 'auto' and is 'temporal'"),
        ({"allowed": [1, 2]}, "allowed was None"),
        ({"filter": hg.HeatKernel(2.0)}, "filter was None"),
        ({"descriptors": "x"}, "descriptors was None"),
    ],
)
def test_other_options_are_refused(place, sets, rerank, expected, options, told):
    hg.rerank_files(rerank, sets, place / "answers")
    with pytest.raises(hg.IndexFileError, match=told):
        hg.rerank_files(reranker(place / "index", **options), sets, place / "answers")
    assert contents(place / "answers") == expected
    assert hg.rerank_files(rerank, sets, place / "answers").complete


def test_the_same_said_in_two_ways_is_the_same(place, sets, rerank):
    hg.rerank_files(rerank, sets, place / "answers")
    same = reranker(
        place / "index", expansion=hg.Expansion(), sparsity=hg.Sparsity(0.99), threads=1
    )
    assert len(hg.rerank_files(same, sets, place / "answers").of("kept")) == 4


def test_another_index_is_refused(place, sets, rerank, expected):
    hg.rerank_files(rerank, sets[:2], place / "answers")
    save_index(place / "index", seed=73)
    with pytest.raises(hg.IndexFileError, match="index was"):
        hg.rerank_files(reranker(place / "index"), sets, place / "answers")
    # Who still has the old one in mind is told too.
    report = hg.rerank_files(rerank, sets, place / "answers")
    assert [shard.state for shard in report.shards] == ["kept", "kept", "failed", "failed"]
    assert "replaced by another one" in report.failed[0].error
    save_index(place / "index")
    hg.rerank_files(rerank, sets, place / "answers")
    assert contents(place / "answers") == expected


def test_folders_of_the_user_are_refused_as_they_are(place, sets, rerank):
    (place / "mine").mkdir()
    (place / "mine" / "notes.txt").write_text("my own")
    with pytest.raises(hg.IndexFileError, match="other files"):
        hg.rerank_files(rerank, sets, place / "mine")
    assert os.listdir(place / "mine") == ["notes.txt"]
    with pytest.raises(hg.IndexFileError, match="other files"):
        hg.rerank_files(rerank, sets, place / "index")
    with pytest.raises(ValueError, match="holds its own files only"):
        hg.rerank_files(rerank, sets, place / "index" / "answers")
    with pytest.raises(ValueError, match="a file; answers go to a folder"):
        hg.rerank_files(rerank, sets, sets[0])
    assert sorted(os.listdir(place)) == ["index", "mine", "queries"]


def test_a_file_that_comes_in_between_is_not_overwritten(place, sets, rerank, monkeypatch):
    real = files_job.ManifestWriter.finish

    def finish(self, shard):
        if shard.output == "set1.npz":
            (self.folder / shard.output).write_bytes(b"the user's own")
        real(self, shard)

    monkeypatch.setattr(files_job.ManifestWriter, "finish", finish)
    report = hg.rerank_files(rerank, sets, place / "answers")
    assert [shard.state for shard in report.shards] == ["done", "failed", "done", "done"]
    assert (place / "answers" / "set1.npz").read_bytes() == b"the user's own"


def test_what_a_late_worker_leaves_behind_is_removed_by_the_next_run(place, sets, rerank):
    hg.rerank_files(rerank, sets[:1], place / "answers")
    (mark,) = manifest.read_manifest(place / "answers").marks
    late = place / "answers" / f"shard_3.{mark}.01234567.tmp"
    late.write_bytes(b"half of a file")
    hg.rerank_files(rerank, sets, place / "answers")
    assert not late.exists()
    stranger = place / "answers" / "shard_3.deadbeef.01234567.tmp"
    stranger.write_bytes(b"of nobody that is known")
    with pytest.raises(hg.IndexFileError, match="other files"):
        hg.rerank_files(rerank, sets, place / "answers")
    assert stranger.exists()


def test_two_runs_into_one_folder_take_turns(place, sets, rerank, expected):
    told = []

    def second(stage, done, total):
        if not told:
            told.append("")
            with pytest.raises(hg.IndexFileError, match="another process or thread is writing"):
                hg.rerank_files(rerank, sets, place / "answers")

    hg.rerank_files(rerank, sets, place / "answers", progress=second)
    assert told
    assert contents(place / "answers") == expected
    assert set(computed(place / "answers").values()) == {1}


def test_bad_files_fail_alone(place, sets, rerank, expected):
    bad = place / "bad"
    bad.mkdir()
    np.save(bad / "objects.npy", np.array([{"a": 1}], object), allow_pickle=True)
    np.save(bad / "nan.npy", np.full((2, DIMENSIONS), np.nan))
    np.save(bad / "wide.npy", np.zeros((2, DIMENSIONS + 1)))
    np.save(bad / "flat.npy", np.zeros(3))
    np.savez(bad / "uneven.npz", descriptors=np.zeros((2, DIMENSIONS)), query=np.zeros(3))
    (bad / "text.npy").write_text("not an array")
    (bad / "cut.npy").write_bytes(sets[0].read_bytes()[:-30])
    np.save(bad / "none.npy", np.empty((0, DIMENSIONS)))
    report = hg.rerank_files(rerank, [bad, *sets, place / "missing.npy"], place / "answers")
    states = {os.path.basename(shard.input): shard for shard in report.shards}
    assert not report.complete
    assert len(report.failed) == 8
    assert states["none.npy"].state == "done"
    assert "Python objects" in states["objects.npy"].error
    assert "no such file" in states["missing.npy"].error
    assert "row for each query" in states["uneven.npz"].error
    assert "finite" in states["nan.npy"].error
    answers = contents(place / "answers")
    assert {name: answers[name] for name in expected} == expected
    assert set(answers) == {*expected, "none.npz"}
    with np.load(place / "answers" / "none.npz") as none:
        assert (none["ids"].shape, none["ids"].dtype) == ((0, K), np.int64)


def test_lists_of_single_values_are_no_list_of_one_query(place, rerank):
    np.savez(place / "flat.npz", ids=np.arange(5), similarities=np.ones(5), user=np.arange(5))
    report = hg.rerank_files(rerank, place / "flat.npz", place / "answers")
    assert "a list in each row" in report.failed[0].error
    assert contents(place / "answers") == {}


def test_a_file_that_nobody_may_read_fails_alone(place, sets, rerank, expected, monkeypatch):
    real = files_job.is_parquet

    def is_parquet(path):
        if path == sets[1]:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path)

    monkeypatch.setattr(files_job, "is_parquet", is_parquet)
    report = hg.rerank_files(rerank, sets, place / "answers")
    assert [shard.state for shard in report.shards] == ["done", "failed", "done", "done"]
    assert report.failed[0].error == f"{sets[1]}: Permission denied."
    monkeypatch.undo()
    assert hg.rerank_files(rerank, sets, place / "answers").complete
    assert contents(place / "answers") == expected


def test_a_disk_that_is_full_before_anything_is_answered_ends_the_run(
    place, sets, rerank, expected, monkeypatch
):
    real, calls = manifest.write_all, []

    def write(file, content):
        calls.append(1)
        if len(calls) > 2:  # the plan of the second file
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file, content)

    monkeypatch.setattr(manifest, "write_all", write)
    with pytest.raises(OSError, match=r"No space left on device: .*manifest\.jsonl"):
        hg.rerank_files(rerank, sets, place / "answers")
    monkeypatch.undo()
    assert hg.rerank_files(rerank, sets, place / "answers").complete
    assert contents(place / "answers") == expected


def test_a_file_that_becomes_parquet_later_gets_parquet_answers(place, sets, rerank):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    late = place / "late.parquet"
    late.touch()  # somebody is about to write it
    report = hg.rerank_files(rerank, [late, *sets], place / "answers")
    assert [shard.input for shard in report.failed] == [str(late)]
    parquet.write_table(pyarrow.table({"vector": list(vectors(3, seed=71))}), late)
    assert hg.rerank_files(rerank, [late, *sets], place / "answers").complete
    assert parquet.read_table(place / "answers" / "late.parquet").num_rows == 3
    assert len(hg.rerank_files(rerank, [late, *sets], place / "answers").of("kept")) == 5


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_pipes_in_the_place_of_files_are_told_and_not_waited_for(place, sets, rerank):
    hg.rerank_files(rerank, sets, place / "answers")
    for path in (sets[0], place / "answers" / "set1.npz"):
        path.unlink()
        os.mkfifo(path)
    report = hg.rerank_files(rerank, sets, place / "answers")
    assert [shard.state for shard in report.shards] == ["failed", "failed", "kept", "kept"]
    assert all("not a plain file" in shard.error for shard in report.failed)


def test_a_shard_that_fails_leaves_no_file_behind(place, rerank):
    np.save(place / "bad.npy", np.full((2, DIMENSIONS), np.nan))
    (place / "answers").mkdir()
    folder = str(place / "answers")
    shard = shards.Shard(0, str(place / "bad.npy"), "bad.npz", folder, "01234567", rerank)
    assert "finite" in shards.answer_shard(shard).error
    assert os.listdir(folder) == []  # while others go on, the disk has its room back


def test_queries_that_change_while_they_are_read_are_no_answers(place, sets, rerank, monkeypatch):
    real = shards._Tally.take

    def take(self, part, report):
        os.utime(sets[0], ns=(1, 1))
        real(self, part, report)

    monkeypatch.setattr(shards._Tally, "take", take)
    report = hg.rerank_files(rerank, sets[:1], place / "answers")
    assert "changed while it was read" in report.failed[0].error
    assert contents(place / "answers") == {}


def test_a_worker_that_dies_gets_a_successor(place, sets, monkeypatch):
    allow_deaths(monkeypatch, place / "none", 0)
    rerank = reranker(place / "index", filter=deadly, threads=1)
    hg.rerank_files(rerank, sets, place / "undisturbed")
    allow_deaths(monkeypatch, place / "deaths", 2)
    report = hg.rerank_files(rerank, sets, place / "answers", workers=2)
    assert os.listdir(place / "deaths") == []
    assert report.complete
    assert contents(place / "answers") == contents(place / "undisturbed")
    assert set(computed(place / "answers").values()) == {1}


def test_a_worker_whose_run_is_gone_ends_without_a_word():
    command = [sys.executable, "-c", local_workers._START, json.dumps(sys.path), "0" * 32]
    out, into = os.pipe()
    os.close(out)  # nobody will read what it says
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=into, stderr=subprocess.PIPE
    ) as worker:
        os.close(into)
        _, said = worker.communicate(timeout=60)
    assert (worker.returncode, said) == (0, b"")


def test_each_worker_is_told_its_number(monkeypatch):
    told = []
    monkeypatch.setattr(local_workers.subprocess, "Popen", lambda *_, env, **__: told.append(env))
    for number in (0, 3):
        local_workers._Worker(number)._running()
    assert [env["HYBRID_GPU_WORKER"] for env in told] == ["0", "3"]


def test_what_a_start_up_file_prints_is_no_answer(place, sets, rerank, expected, monkeypatch):
    (place / "start").mkdir()
    (place / "start" / "sitecustomize.py").write_text("print('welcome to this machine' * 9)")
    monkeypatch.setenv("PYTHONPATH", str(place / "start"))
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    assert hg.rerank_files(rerank, sets, place / "answers", workers=2).complete
    assert contents(place / "answers") == expected


@pytest.mark.slow
def test_a_file_that_kills_every_worker_is_given_up(place, sets, monkeypatch):
    monkeypatch.setattr(engines, "RETRIES", 0)
    allow_deaths(monkeypatch, place / "deaths", 1)
    rerank = reranker(place / "index", filter=deadly, threads=1)
    report = hg.rerank_files(rerank, sets, place / "answers", workers=2)
    assert len(report.failed) == 1
    assert "died 1 times, the last time by signal 9" in report.failed[0].error
    assert len(report.of("done")) == 3


@pytest.mark.slow
def test_an_error_of_this_process_ends_the_workers(place, sets, rerank):
    class StopError(Exception):
        pass

    def stop(stage, done, total):
        if done:
            raise StopError

    with pytest.raises(StopError):
        hg.rerank_files(rerank, sets, place / "answers", workers=2, progress=stop)
    assert not list((place / "answers").glob("*.tmp"))
    assert hg.rerank_files(rerank, sets, place / "answers").complete
    assert set(computed(place / "answers").values()) == {1}


def test_a_full_disk_ends_the_run_and_loses_nothing(place, sets, rerank, expected, monkeypatch):
    real, room = shards.sync_file, [2]

    def sync(file):
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
        real(file)

    monkeypatch.setattr(shards, "sync_file", sync)
    report = hg.rerank_files(rerank, sets, place / "answers")
    assert [shard.state for shard in report.shards] == ["done", "done", "failed", "left"]
    assert "No space left" in report.failed[0].error
    left = dataclasses.replace(report, shards=report.of("left"))
    assert not left.complete
    room[0] = 9
    assert hg.rerank_files(rerank, sets, place / "answers").complete
    assert contents(place / "answers") == expected
    assert set(computed(place / "answers").values()) == {1}


@pytest.mark.parametrize(
    ("number", "states"),
    [
        (errno.ENOSPC, ["done", "failed", "left", "left"]),
        (errno.EIO, ["done", "failed", "done", "done"]),
    ],
)
def test_a_manifest_that_cannot_be_written_is_cut_back_to_whole_lines(
    place, sets, rerank, expected, monkeypatch, number, states
):
    real, calls = manifest.write_all, []

    def write(file, content):
        calls.append(1)
        if len(calls) == 7:  # the line of the second file
            real(file, content[:20])
            raise OSError(number, os.strerror(number))
        real(file, content)

    monkeypatch.setattr(manifest, "write_all", write)
    report = hg.rerank_files(rerank, sets, place / "answers")
    assert [shard.state for shard in report.shards] == states
    assert hg.rerank_files(rerank, sets, place / "answers").complete
    assert contents(place / "answers") == expected


def test_a_run_leaves_no_unfinished_file_behind(place, sets, rerank, monkeypatch):
    def take_name(temporary, place):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(place))

    monkeypatch.setattr(files_job, "take_name", take_name)
    assert len(hg.rerank_files(rerank, sets, place / "answers").failed) == 4
    assert set(os.listdir(place / "answers")) == {LOCK, "manifest.jsonl"}


def test_texts_of_later_parts_may_be_longer(tmp_path):
    parts = [["a", None], ["as long as it takes", "b"]]
    with (
        open(tmp_path / "answers.npz", "wb") as file,
        answer_files.answer_file(file, tmp_path / "scratch.", parquet=False) as answers,
    ):
        for part in parts:
            answers.put({"keys": np.array([part], object)})
    with np.load(tmp_path / "answers.npz") as found:
        assert found["keys"].tolist() == [["a", ""], ["as long as it takes", "b"]]


def test_what_parts_tell_is_added_up():
    tally = shards._Tally()
    for residuals in ([0.5, 0.1], [0.3, 0.2], [0.0]):
        report = types.SimpleNamespace(
            method="hybrid", backend="numpy", notes=(), steps=3, accuracy=0.15, residuals=residuals
        )
        tally.take({"descriptors": residuals}, report)
    assert tally.queries == 5
    assert (tally.facts["missed"], tally.facts["worst_residual"]) == (3, 0.5)


def test_a_real_disk_that_is_full(place, rerank):
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = place / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        sources = write_sets(place / "many", count=12, size=60)
        report = hg.rerank_files(rerank, sources, disk / "answers")
        assert report.of("done")
        assert len(report.failed) == 1
        assert "No space left" in report.failed[0].error
        subprocess.run(["mount", "-o", "remount,size=4096k", str(disk)], check=True)
        assert hg.rerank_files(rerank, sources, disk / "answers").complete
        hg.rerank_files(rerank, sources, place / "undisturbed")
        assert contents(disk / "answers") == contents(place / "undisturbed")
        assert set(computed(disk / "answers").values()) == {1}
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_names_of_files_may_be_anything(place, rerank):
    names = ("a\\b.npy", ".hidden.npy", "-o.npy", "caf\u00e9 \U0001f600.npy", "x.tar.npy")
    odd = [place / name for name in names]
    odd.append(place / os.fsdecode(b"\xff\xfe.npy"))
    for number, path in enumerate(odd):
        np.save(path, vectors(3, seed=300 + number))
    assert hg.rerank_files(rerank, odd, place / "answers").complete
    report = hg.rerank_files(rerank, odd, place / "answers")
    assert len(report.of("kept")) == len(odd)
    assert len(contents(place / "answers")) == len(odd)


def test_names_as_long_as_names_can_be_are_cut(place, rerank):
    odd = []
    for folder, name in (("a", "x" * 251), ("b", "x" * 251), ("a", "\u00e9" * 125)):
        (place / folder).mkdir(exist_ok=True)
        odd.append(place / folder / f"{name}.npy")
        np.save(odd[-1], vectors(3, seed=300 + len(odd)))
    report = hg.rerank_files(rerank, odd, place / "answers")
    assert report.complete
    assert report.shards[1].output == "x" * 249 + "-2.npz"
    assert len(hg.rerank_files(rerank, odd, place / "answers").of("kept")) == 3


def test_names_of_arrays_lead_nowhere(place, rerank):
    with zipfile.ZipFile(place / "evil.npz", "w") as archive:
        for name in ("descriptors", "../../escaped"):
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, vectors(3, seed=301))
    report = hg.rerank_files(rerank, place / "evil.npz", place / "answers")
    assert "name of a column" in report.failed[0].error


def test_an_index_that_only_workers_see_is_pinned_by_the_run(place, sets, rerank, expected):
    late = reranker(place / "index", identity=None)
    hg.rerank_files(late, sets[:2], place / "answers")
    hg.rerank_files(rerank, sets, place / "answers")
    assert contents(place / "answers") == expected


def test_progress_is_one_for_all_files(place, sets, rerank):
    seen = []
    hg.rerank_files(rerank, sets, place / "answers", progress=lambda *now: seen.append(now))
    assert {stage for stage, _, _ in seen} == {"batch"}
    assert {total for _, _, total in seen} == {20}
    done = [now for _, now, _ in seen]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, 20)


def test_workers_share_the_cores(place, sets, rerank, monkeypatch):
    taken = []
    monkeypatch.setattr(files_job, "core_count", lambda: 8)

    class Watching:
        def answer(self, shards, told):
            taken.extend(shard.reranker._wanted.threads for shard in shards)
            yield from ()

    monkeypatch.setattr(files_job, "engine_of", lambda *_: Watching())
    hg.rerank_files(rerank, sets[:1], place / "a", workers=3)
    hg.rerank_files(rerank, sets[:1], place / "b", workers=20)
    hg.rerank_files(rerank, sets[:1], place / "c", workers=1)
    hg.rerank_files(reranker(place / "index", threads=5), sets[:1], place / "d", workers=2)
    hg.rerank_files(rerank, sets[:1], place / "e", workers=1, engine="dask")
    hg.rerank_files(rerank, sets[:1], place / "f", workers=1, engine="dask", scheduler="there")
    assert taken == [2, 1, None, 5, 8, None]
    assert threads.thread_count() == threads.core_count()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "spark"}, "engine must be one of local, dask, ray"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"scheduler": "tcp://127.0.0.1:1"}, "leave it out for local"),
        ({"patience": -1}, "patience must be positive"),
    ],
)
def test_wrong_words_are_refused(place, sets, rerank, options, message):
    with pytest.raises(ValueError, match=message):
        hg.rerank_files(rerank, sets, place / "answers", **options)
    assert not (place / "answers").exists()


def test_query_sets_that_are_none_are_refused(place, rerank):
    (place / "empty").mkdir()
    for queries in (place / "empty", []):
        with pytest.raises(ValueError, match=r"folder without|at least one file"):
            hg.rerank_files(rerank, queries, place / "answers")


def test_an_engine_that_is_missing_names_the_install_line(place, sets, rerank, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(engines.importlib, "import_module", missing)
    for engine in ("dask", "ray"):
        with pytest.raises(ImportError, match=rf'pip install -e ".\[{engine}\]"'):
            hg.rerank_files(rerank, sets, place / "answers", engine=engine)
