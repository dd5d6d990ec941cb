"""The real Dask, with processes of its own: the same answers, and nothing lost or done twice."""

from __future__ import annotations

import os
import subprocess
import threading

import numpy as np
import pytest
from made_up_queries import (
    K,
    allow_deaths,
    computed,
    contents,
    deadly,
    names,
    reranker,
    same_answers,
    save_index,
    vectors,
    write_sets,
)

import hybrid_gpu as hg

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
pandas = pytest.importorskip("pandas")
dask_array = pytest.importorskip("dask.array")
dask_frame = pytest.importorskip("dask.dataframe")
# Warnings of Dask are not ours.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

QUERIES = vectors(40, seed=67)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two workers on this machine; ``deadly`` kills them while there is a file in ``deaths``."""
    deaths = tmp_path_factory.mktemp("dask") / "deaths"
    with pytest.MonkeyPatch.context() as patch:
        allow_deaths(patch, deaths, 0)
        with started(2) as cluster:
            cluster.deaths = deaths
            yield cluster


def started(workers, **options):
    return distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs="CRITICAL",
        **options,
    )


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster) as client:
        yield client


@pytest.fixture
def place(tmp_path):
    save_index(tmp_path / "index")
    save_index(tmp_path / "keyed", keys=names())
    return tmp_path


def test_partitions_of_frames_empty_ones_too(place, client):
    frame = pandas.DataFrame({"query": np.arange(40), "vector": list(QUERIES)})
    frame.index = np.arange(40) * 2
    text = dask_frame.from_pandas(frame, npartitions=4)  # Dask makes text of vectors
    with pytest.raises(Exception, match="convert-string"):
        reranker(place / "index", descriptors="vector")(text.compute())
    with dask.config.set({"dataframe.convert-string": False}):
        collection = dask_frame.from_pandas(frame, npartitions=4)
        collection = dask_frame.concat([collection, collection[collection["query"] < 0]])
    for folder, title in (("index", "ids"), ("keyed", "keys")):
        rerank = reranker(place / folder)
        answers = collection.map_partitions(rerank, meta=rerank.meta(collection)).compute()
        assert list(answers.columns) == ["query", title, "scores"]
        assert list(answers.index) == list(frame.index)
        expected = hg.load_index(place / folder, backend="numpy").search(QUERIES, k=K)
        np.testing.assert_allclose(
            np.stack(list(answers["scores"])), expected.scores, rtol=2e-5, atol=1e-7
        )
        asked = collection.map_partitions(rerank)  # Dask asks with rows that it made up
        assert list(asked.columns) == list(answers.columns)
        assert len(asked.compute()) == 40


def test_frames_with_a_column_for_each_dimension_need_no_meta(place, client):
    frame = pandas.DataFrame(QUERIES, columns=[f"x{number}" for number in range(QUERIES.shape[1])])
    collection = dask_frame.from_pandas(frame, npartitions=3)
    rerank = reranker(place / "index", descriptors="x*")
    answers = collection.map_partitions(rerank).compute()
    parts = [rerank(part) for part in (frame[:14], frame[14:27], frame[27:])]
    assert len(answers) == 40
    assert list(answers.columns) == list(parts[0].columns)


def test_blocks_of_arrays(place, client):
    queries = dask_array.from_array(QUERIES, chunks=(16, -1))
    for folder, title in (("index", "ids"), ("keyed", "keys")):
        rerank = reranker(place / folder)
        chunks = (queries.chunks[0], (rerank.k,))
        answers = queries.map_blocks(rerank, dtype=rerank.dtype, chunks=chunks)
        found = answers.compute()
        expected = np.concatenate([rerank(QUERIES[start : start + 16]) for start in (0, 16, 32)])
        assert np.array_equal(found, expected)
        assert np.array_equal(answers[title].compute(), expected[title])
    first = hg.nearest_neighbors(built_items(place), QUERIES, k=5, backend="numpy")
    ids = dask_array.from_array(first.ids, chunks=(16, -1))
    cosines = dask_array.from_array(first.similarities, chunks=(16, -1))
    rerank = reranker(place / "index")
    found = dask_array.map_blocks(rerank, ids, cosines, chunks=(ids.chunks[0], (K,))).compute()
    assert same_answers(
        found[:16], rerank.index.rerank(first.ids[:16], first.similarities[:16], k=K)
    )


def built_items(place):
    return hg.load_index(place / "index", backend="numpy").descriptors


def test_threads_and_devices_are_those_of_the_worker(client, monkeypatch):
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    tasks = [client.submit(_told, workers=[worker], pure=False) for worker in workers]
    told = client.gather(tasks)
    assert [threads for threads, _ in told] == [1] * len(workers)
    names = [info["name"] for info in client.scheduler_info(n_workers=-1)["workers"].values()]
    assert sorted(number for _, number in told) == sorted(names)


def _told():
    from hybrid_gpu.distributed.process_index import device_number, own_threads

    return own_threads(), device_number(4)


def test_the_same_bits_and_bad_files_alone(place, cluster):
    sets, rerank = write_sets(place / "queries", count=6), reranker(place / "keyed")
    np.save(place / "queries" / "bad.npy", np.full((3, 6), np.inf))
    hg.rerank_files(rerank, sets, place / "local")
    address = cluster.scheduler_address
    report = hg.rerank_files(
        rerank, place / "queries", place / "answers", engine="dask", scheduler=address
    )
    assert [os.path.basename(shard.input) for shard in report.failed] == ["bad.npy"]
    assert contents(place / "answers") == contents(place / "local")
    again = hg.rerank_files(rerank, sets, place / "answers", engine="dask", scheduler=address)
    assert len(again.of("kept")) == 6


def test_workers_that_are_killed_lose_nothing(place, cluster, monkeypatch):
    monkeypatch.setenv("TEST_DEATHS", str(cluster.deaths))
    monkeypatch.setenv("TEST_SURVIVOR", str(os.getpid()))
    sets = write_sets(place / "queries", count=8)
    rerank = reranker(place / "index", filter=deadly)
    hg.rerank_files(rerank, sets, place / "local")
    (cluster.deaths / "first").touch()
    report = hg.rerank_files(
        rerank, sets, place / "answers", engine="dask", scheduler=cluster.scheduler_address
    )
    assert os.listdir(cluster.deaths) == []
    assert report.complete
    assert contents(place / "answers") == contents(place / "local")
    assert set(computed(place / "answers").values()) == {1}
    assert not list((place / "answers").glob("*.tmp"))


def test_a_scheduler_that_comes_late(place):
    sets, rerank = write_sets(place / "queries"), reranker(place / "index")
    with distributed_port() as port:
        address = f"tcp://127.0.0.1:{port}"
    reports = []

    def run():
        options = {"engine": "dask", "scheduler": address, "patience": 120}
        reports.append(hg.rerank_files(rerank, sets, place / "answers", **options))

    late = threading.Thread(target=run)
    late.start()
    with started(1, scheduler_port=port):
        late.join(120)
        assert reports
        assert reports[0].complete


def test_no_scheduler_at_all_is_told(place):
    sets, rerank = write_sets(place / "queries"), reranker(place / "index")
    with distributed_port() as port:
        address = f"tcp://127.0.0.1:{port}"
    with pytest.raises(hg.HybridGpuError, match="no Dask scheduler answers"):
        hg.rerank_files(
            rerank, sets, place / "answers", engine="dask", scheduler=address, patience=0.5
        )
    assert hg.rerank_files(rerank, sets, place / "answers").complete


class distributed_port:
    """A port of this machine that nobody has."""

    def __enter__(self):
        import socket

        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        return self._socket.getsockname()[1]

    def __exit__(self, *_):
        self._socket.close()


def test_a_cluster_that_goes_away_is_told_and_the_rest_is_done_later(place):
    sets, rerank = write_sets(place / "queries", count=40), reranker(place / "index")
    hg.rerank_files(rerank, sets, place / "local")
    cluster = started(1)

    def leave(stage, done, total):
        if done:
            cluster.close()

    with pytest.raises(hg.HybridGpuError, match="Run again to go on"):
        hg.rerank_files(
            rerank,
            sets,
            place / "answers",
            engine="dask",
            scheduler=cluster.scheduler_address,
            patience=2,
            progress=leave,
        )
    before = len(contents(place / "answers"))
    assert before
    report = hg.rerank_files(rerank, sets, place / "answers")
    assert len(report.of("kept")) == before
    assert contents(place / "answers") == contents(place / "local")


def test_two_runs_into_one_folder(place, cluster):
    sets, rerank = write_sets(place / "queries", count=6), reranker(place / "index")
    outcomes = []

    def run():
        options = {"engine": "dask", "scheduler": cluster.scheduler_address}
        try:
            outcomes.append(hg.rerank_files(rerank, sets, place / "answers", **options).complete)
        except hg.IndexFileError as told:
            outcomes.append(str(told))

    runs = [threading.Thread(target=run) for _ in range(2)]
    for one in runs:
        one.start()
    for one in runs:
        one.join()
    assert True in outcomes
    assert all(one is True or "is writing to the folder" in one for one in outcomes)
    assert set(computed(place / "answers").values()) == {1}
    assert len(contents(place / "answers")) == 6


def test_a_full_disk(place, cluster):
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = place / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=60k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no small disk can be mounted here")
    options = {"engine": "dask", "scheduler": cluster.scheduler_address}
    try:
        sets, rerank = write_sets(place / "many", count=16, size=60), reranker(place / "index")
        report = hg.rerank_files(rerank, sets, disk / "answers", **options)
        assert "No space left" in report.failed[0].error
        subprocess.run(["mount", "-o", "remount,size=4096k", str(disk)], check=True)
        assert hg.rerank_files(rerank, sets, disk / "answers", **options).complete
        hg.rerank_files(rerank, sets, place / "local")
        assert contents(disk / "answers") == contents(place / "local")
        assert set(computed(disk / "answers").values()) == {1}
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_a_cluster_for_one_run(place):
    sets, rerank = write_sets(place / "queries"), reranker(place / "index")
    report = hg.rerank_files(rerank, sets, place / "answers", engine="dask", workers=2)
    assert report.complete
    assert (report.engine, report.workers) == ("dask", 2)
