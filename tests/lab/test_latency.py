"""The benchmark of latency, on a database small enough to know the answers."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import hybrid_gpu as hg
from hybrid_gpu import reference

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import latency


@pytest.fixture
def lists():
    vectors = np.random.default_rng(79).standard_normal((400, 4)).astype(np.float32)
    found = hg.nearest_neighbors(vectors, k=12, knn="exact", backend="numpy")
    return {"ids": np.asarray(found.ids), "similarities": np.asarray(found.similarities)}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in (("NEIGHBORS", 12), ("RANKINGS", (5, 20)), ("BATCHES", (1, 4))):
        monkeypatch.setattr(latency, name, value)


def test_agreement_leaves_out_what_the_exact_ranking_does_not_have():
    found = np.array([[3, 4, 7], [1, 2, -1]])
    exact = np.array([[4, 3, 9], [2, -1, -1]])
    np.testing.assert_allclose(latency.agreements(found, exact), [2 / 3, 1])


def test_only_settled_queries_count_as_told_to_be_right():
    exact = np.arange(40).reshape(4, 10)
    found = exact.copy()
    found[1:3, 0] = 99
    local = SimpleNamespace(
        settled=np.array([True, True, False, True]), visited=np.array([10, 20, 30, 60])
    )
    ranking = SimpleNamespace(ids=found, report=SimpleNamespace(local=local))
    told = latency.accuracy(ranking, exact)
    assert (told["visited"], told["most visited"], told["settled"]) == (30, 60, 0.75)
    assert told["agreement"] == pytest.approx(0.95)
    assert told["settled, right"] == pytest.approx(2 / 3)


def test_queries_are_timed_batch_by_batch_as_long_as_there_is_time():
    sizes = []
    index = SimpleNamespace(rerank=lambda ids, similarities, **request: sizes.append(len(ids)))
    seen = np.zeros((50, 5)), np.zeros((50, 5))
    assert latency.waits(index, seen, 4, 1e9).size == 12
    assert sizes == [4] * 13  # and one that does not count
    assert latency.waits(index, seen, 4, 0.0).size == latency.FEWEST // 4


def test_exact_ranking_is_that_of_a_dense_solve(lists):
    index = latency.built(lists, "float64")[0]
    ids, similarities = latency.observed(index, lists, 3)
    observations = np.zeros((3, 400))
    np.put_along_axis(observations, ids, similarities.astype(np.float64) ** 3, axis=1)
    graph = index.graph.adjacency
    adjacency = reference.sparse.csr_array(
        (graph.data, graph.indices, graph.indptr), shape=graph.shape
    )
    scores = np.stack([reference.exact(adjacency, y, latency.ALPHA) for y in observations])
    found = latency.exact_ranking(lists, (ids, similarities), 20)
    np.testing.assert_array_equal(found, np.argsort(-scores, axis=1, kind="stable")[:, :20])


def test_every_row_has_its_accuracy_beside_its_speed(lists):
    *rows, peer = latency.rows_of(400, lists, queries=8, judged=6, seconds=0.0)
    # Its 100 best are judged by the exact ranking, which has 20 here.
    assert (peer["method"], peer["k"], list(peer)) == ("SciPy cg, 20 steps", 100, list(rows[0]))
    assert peer["agreement"] > 0.95
    assert peer["ms per query"] > 0
    assert [(row["k"], row["method"], row["batch"]) for row in rows] == [
        (k, method, batch) for k in (5, 20) for method in ("local", "hybrid") for batch in (1, 4)
    ]
    for row in rows:
        assert row["agreement"] > 0.95
        assert row["p50 ms"] > 0
        assert (row["visited"] is None) == (row["method"] == "hybrid")
        assert row["timed"] == 8
