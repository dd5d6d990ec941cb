"""The real Ray, with processes of its own: the same answers, and nothing lost or done twice."""

from __future__ import annotations

import os

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
    save_index,
    vectors,
    write_sets,
)

import hybrid_gpu as hg

ray = pytest.importorskip("ray")
ray_data = pytest.importorskip("ray.data")
pyarrow = pytest.importorskip("pyarrow")
# Warnings of Ray are not ours.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

QUERIES = vectors(40, seed=67).astype(np.float32)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Ray on this machine; ``deadly`` kills its workers while there is a file in ``deaths``."""
    deaths = tmp_path_factory.mktemp("ray") / "deaths"
    here = os.path.dirname(__file__)
    with pytest.MonkeyPatch.context() as patch:
        allow_deaths(patch, deaths, 0)
        patch.setenv("PYTHONPATH", here, prepend=os.pathsep)
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(num_cpus=2, **options)
        yield deaths
        ray.shutdown()


@pytest.fixture
def place(tmp_path):
    save_index(tmp_path / "index")
    save_index(tmp_path / "keyed", keys=names())
    return tmp_path


def expected_of(folder):
    """The scores of each query, whatever block it comes in."""
    return hg.load_index(folder, backend="numpy").search(QUERIES, k=K)


def check(rows, ranking, title):
    rows = sorted(rows, key=lambda row: row["query"])
    assert [row["query"] for row in rows] == list(range(40))
    scores = np.array([row["scores"] for row in rows])
    np.testing.assert_allclose(scores, ranking.scores, rtol=2e-5, atol=1e-7)
    found = np.array([list(row[title]) for row in rows], object)
    assert (
        np.mean(found == ranking.keys) > 0.95
    )  # neighbors of nearly equal scores may change places


@pytest.mark.parametrize("folder", ["index", "keyed"])
@pytest.mark.parametrize("form", ["numpy", "pyarrow", "pandas"])
def test_batches_in_every_form(place, cluster, folder, form):
    dataset = ray_data.from_items(
        [{"query": number, "vector": vector} for number, vector in enumerate(QUERIES)]
    )
    rerank = reranker(place / folder)
    answers = dataset.map_batches(rerank, batch_format=form, batch_size=16).take_all()
    check(answers, expected_of(place / folder), "ids" if folder == "index" else "keys")


def test_actors_are_made_of_the_class(place, cluster):
    dataset = ray_data.from_items(
        [{"query": number, "vector": vector} for number, vector in enumerate(QUERIES)]
    )
    answers = dataset.map_batches(
        hg.Reranker,
        fn_constructor_args=(str(place / "index"),),
        fn_constructor_kwargs={"k": K, "backend": "numpy"},
        batch_size=16,
        concurrency=2,
    ).take_all()
    check(answers, expected_of(place / "index"), "ids")


def test_threads_are_those_of_the_task(cluster):
    told = ray.remote(_threads)
    assert ray.get(told.options(num_cpus=1).remote()) == 1
    assert ray.get(told.options(num_cpus=2).remote()) == 2


def _threads():
    from hybrid_gpu.distributed.process_index import own_threads

    return own_threads()


def test_the_same_bits_and_bad_files_alone(place, cluster):
    sets, rerank = write_sets(place / "queries", count=6), reranker(place / "keyed")
    np.save(place / "queries" / "bad.npy", np.full((3, 6), np.inf))
    hg.rerank_files(rerank, sets, place / "local")
    report = hg.rerank_files(rerank, place / "queries", place / "answers", engine="ray")
    assert [os.path.basename(shard.input) for shard in report.failed] == ["bad.npy"]
    assert contents(place / "answers") == contents(place / "local")
    assert ray.is_initialized()  # it is the user's own
    again = hg.rerank_files(rerank, sets, place / "answers", engine="ray")
    assert len(again.of("kept")) == 6


def test_workers_that_are_killed_lose_nothing(place, cluster, monkeypatch):
    monkeypatch.setenv("TEST_DEATHS", str(cluster))
    monkeypatch.setenv("TEST_SURVIVOR", str(os.getpid()))
    sets = write_sets(place / "queries", count=8)
    rerank = reranker(place / "index", filter=deadly)
    hg.rerank_files(rerank, sets, place / "local")
    (cluster / "first").touch()
    report = hg.rerank_files(rerank, sets, place / "answers", engine="ray")
    assert os.listdir(cluster) == []
    assert report.complete
    assert contents(place / "answers") == contents(place / "local")
    assert set(computed(place / "answers").values()) == {1}


def test_a_run_of_its_own_joins_no_other_cluster(place, monkeypatch):
    if ray.is_initialized():
        ray.shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    sets, rerank = write_sets(place / "queries"), reranker(place / "index")
    assert hg.rerank_files(rerank, sets, place / "answers", engine="ray", workers=2).complete
    assert not ray.is_initialized()


def test_no_cluster_at_an_address_is_told(place, monkeypatch):
    if ray.is_initialized():
        ray.shutdown()
    sets, rerank = write_sets(place / "queries"), reranker(place / "index")
    monkeypatch.setenv("RAY_NUM_REDIS_GET_RETRIES", "1")
    with pytest.raises(hg.HybridGpuError, match="no Ray cluster"):
        hg.rerank_files(rerank, sets, place / "answers", engine="ray", scheduler="auto")
