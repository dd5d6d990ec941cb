"""What a server answers is what the library answers, in every form of request and answer."""

import io

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from conftest import TOLERANCE
from serve_client import JSON, NPY, NPZ, LiveApp, npy, npz, planted

import hybrid_gpu as hg

ITEMS, QUERIES = planted()
NAMES = [f"item {number}" for number in range(len(ITEMS))]


@pytest.fixture(scope="module")
def index():
    return hg.build_index(ITEMS, neighbors=6, backend="numpy")


@pytest.fixture(scope="module")
def server(index):
    with LiveApp(index) as live:
        yield live


@pytest.fixture(scope="module")
def named():
    with LiveApp(hg.build_index(ITEMS, neighbors=6, keys=NAMES, backend="numpy")) as live:
        yield live


def same(answer, ranking):
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["ids"] == ranking.ids.tolist()
    scores = np.array(told["scores"], float)  # null becomes NaN
    expected = np.where(np.isfinite(ranking.scores), ranking.scores, np.nan)
    np.testing.assert_allclose(scores, expected, rtol=TOLERANCE["float32"])
    assert told["method"] == ranking.report.method


@pytest.mark.parametrize("method", ["auto", "nn", "alpha-qe", "temporal", "truncated", "hybrid"])
def test_search_is_the_library_s(server, index, method):
    answer = server.post("/search", {"queries": QUERIES.tolist(), "k": 7, "method": method})
    same(answer, index.search(QUERIES, k=7, method=method))


def test_search_runs_on_every_backend(backend):
    index = hg.build_index(ITEMS, neighbors=6, backend=backend)
    with LiveApp(index) as live:
        answer = live.post("/search", {"queries": QUERIES.tolist(), "k": 7})
        same(answer, index.search(QUERIES, k=7))


def test_replicas_answer_too(index):
    with LiveApp(hg.Replicas(index, ["numpy", "numpy"])) as live:
        same(live.post("/search", {"queries": QUERIES.tolist()}), index.search(QUERIES))


def test_rerank_is_the_library_s(server, index):
    ids, distances = [[3, 8, 11], [4, 1, -1]], [[0.1, 0.2, 0.4], [0.3, 0.5, 9]]
    fields = {"ids": ids, "similarities": distances, "metric": "squared-l2", "k": 9}
    same(server.post("/rerank", fields), index.rerank(ids, distances, metric="squared-l2", k=9))


def test_search_items_is_the_library_s(server, index):
    same(server.post("/search_items", {"ids": [5, 7], "k": 4}), index.search_items([5, 7], k=4))
    sets, weights = [[5, 7], [1]], [[1.0, -0.5], [2.0]]
    answer = server.post("/search_items", {"ids": sets, "weights": weights, "k": 4})
    same(answer, index.search_items(sets, weights=weights, k=4))


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 0.5},
        {"steps": 3},
        {"accuracy": 1e-5},
        {"rtol": 1e-3},
        {"accuracy": "ranking"},
        {"degree_correction": True},
        {"query_neighbors": None},
        {"query_neighbors": 2, "k": 60},
        {"method": "alpha-qe", "expansion": {"neighbors": 3, "alpha": 1}},
        {"method": "truncated", "shortlist": 10},
        {"min_score": 0.05, "k": 60},
        {"allowed": [1, 2, 3, 4], "k": 6},
        {"exclude": [0, 3, 6, 9]},
        {"allowed": list(range(40)), "exclude": list(range(20)), "k": 60},
        {"exclude": [[place] for place in range(9)]},
        {"allowed": [place % 2 == 0 for place in range(60)]},
        {"allowed": []},
    ],
)
def test_options_are_the_library_s(server, index, options):
    called = dict(options)
    if "expansion" in called:
        called["expansion"] = hg.Expansion(**called["expansion"])
    answer = server.post("/search", {"queries": QUERIES.tolist(), "k": 5, **options})
    same(answer, index.search(QUERIES, **{"k": 5, **called}))


def test_nothing_found_is_null(server):
    fields = {"queries": QUERIES[:1].tolist(), "k": 3, "allowed": [4]}
    told = server.post("/search", fields).json()
    assert told["ids"] == [[4, -1, -1]]
    assert told["scores"][0][1:] == [None, None]


def test_long_list_of_items_is_taken_as_well(monkeypatch, server, index):
    monkeypatch.setattr("hybrid_gpu.serve.questions._SHORT_LIST", 3)
    chosen = [8, 9, 10, 11, 30]
    fields = {"queries": QUERIES.tolist(), "k": 6, "allowed": chosen}
    same(server.post("/search", fields), index.search(QUERIES, k=6, allowed=chosen))


def test_integers_are_numbers(server, index):
    vector = [1, 0, 2, 0, 0, 0, 0, 1]
    ranking = index.search(np.array([vector], float), k=3)
    same(server.post("/search", {"queries": [vector], "k": 3}), ranking)


def test_whole_numbers_are_integers(server, index):
    fields = {"ids": [5.0, 7], "k": 4.0, "exclude": [3.0], "steps": 3.0}
    same(
        server.post("/search_items", fields),
        index.search_items([5, 7], k=4, exclude=[3], steps=3),
    )


def test_arrays_are_taken_as_bodies(server, index):
    ranking = index.search(QUERIES, k=4, alpha=0.7)
    same(server.post_bytes("/search?k=4&alpha=0.7", npy(QUERIES)), ranking)
    same(server.post_bytes("/search?k=4&alpha=0.7", npz(queries=QUERIES), NPZ), ranking)
    same(server.post_bytes("/search?k=4&alpha=0.7", npy(QUERIES.astype(">f8"))), ranking)
    same(server.post_bytes("/search?k=4&alpha=0.7", npy(np.asfortranarray(QUERIES))), ranking)


def test_options_of_an_address_are_json_or_words(server, index):
    path = "/search?k=4&method=hybrid&degree_correction=true&query_neighbors=null&exclude=[3,5]"
    options = {"degree_correction": True, "query_neighbors": None, "exclude": [3, 5]}
    ranking = index.search(QUERIES, k=4, method="hybrid", **options)
    same(server.post_bytes(path, npy(QUERIES)), ranking)


def test_arrays_of_other_searches_are_taken(server, index):
    same(server.post_bytes("/search_items?k=4", npy([5, 7])), index.search_items([5, 7], k=4))
    ids, cosines = np.array([[3, 8], [4, 1]]), np.array([[0.9, 0.8], [0.7, 0.5]])
    body = npz(ids=ids, similarities=cosines, exclude=np.array([9]))
    same(server.post_bytes("/rerank?k=4", body, NPZ), index.rerank(ids, cosines, k=4, exclude=[9]))


def test_masks_are_taken_as_arrays(server, index):
    mask = np.arange(60) % 3 == 1
    rows = np.arange(9)[:, None] % 3 == np.arange(60)[None] % 3
    for allowed in (mask, rows):
        body = npz(queries=QUERIES, allowed=allowed)
        ranking = index.search(QUERIES, k=30, allowed=allowed)
        same(server.post_bytes("/search?k=30", body, NPZ), ranking)


def test_answers_come_as_arrays(server, index):
    ranking = index.search(QUERIES, k=4, allowed=[1, 2])
    fields = {"queries": QUERIES.tolist(), "k": 4, "allowed": [1, 2]}
    answer = server.post("/search", fields, headers={"Accept": NPZ})
    assert answer.headers["content-type"] == NPZ
    with np.load(io.BytesIO(answer.content), allow_pickle=False) as told:
        assert np.array_equal(told["ids"], ranking.ids)
        np.testing.assert_allclose(told["scores"], ranking.scores, rtol=TOLERANCE["float32"])
        assert told["scores"].dtype == np.float32
    answer = server.post("/search", fields, headers={"Accept": f"{NPY}, {JSON};q=0.5"})
    told = np.load(io.BytesIO(answer.content), allow_pickle=False)
    assert np.array_equal(told["id"], ranking.ids)
    np.testing.assert_allclose(told["score"], ranking.scores, rtol=TOLERANCE["float32"])


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("*/*", JSON),
        ("application/*", JSON),
        ("text/html, */*;q=0.1", JSON),
        (f"{NPZ};q=0.2, {NPY};q=0.9, {JSON};q=0.5", NPY),
        (f"{NPZ}; q=nonsense, {JSON}", JSON),
    ],
)
def test_form_of_an_answer_is_negotiated(server, accept, form):
    answer = server.post("/search_items", {"ids": [1]}, headers={"Accept": accept})
    assert answer.headers["content-type"] == form


def test_form_that_is_not_there_is_refused(server):
    answer = server.post("/search_items", {"ids": [1]}, headers={"Accept": "image/png"})
    assert answer.status_code == 406
    assert "application/json" in answer.json()["hint"]


def test_keys_come_in_and_go_out(named):
    told = named.post("/search_items", {"ids": ["item 3"], "k": 3, "exclude": ["item 3"]}).json()
    assert [NAMES[one] for one in told["ids"][0]] == told["keys"][0]
    assert "item 3" not in told["keys"][0]
    told = named.post("/rerank", {"ids": [["item 4", None]], "similarities": [[0.9, 0]], "k": 2})
    assert told.json()["keys"][0][0] == "item 4"
    told = named.post("/search_items", {"ids": ["item 3"], "k": 2, "allowed": ["item 6"]}).json()
    assert told["keys"] == [["item 6", None]]
    refused = named.post("/search_items", {"ids": [3]})
    assert refused.status_code == 400
    assert "strings" in refused.json()["error"]


def test_keys_come_as_arrays_without_pickles(named):
    body, headers = npy(np.array(["item 3"])), {"Accept": NPZ}
    answer = named.post_bytes("/search_items?k=3", body, **headers)
    with np.load(io.BytesIO(answer.content), allow_pickle=False) as told:
        assert told["keys"][0].tolist() == [NAMES[one] for one in told["ids"][0]]
    answer = named.post_bytes('/search_items?k=3&allowed=["item 6"]', body, **headers)
    with np.load(io.BytesIO(answer.content), allow_pickle=False) as told:
        assert told["keys"].tolist() == [["item 6", "", ""]]  # nothing more was found


def test_integers_are_keys_too():
    numbers = np.arange(60, dtype=np.uint64) + np.uint64(2**63)
    index = hg.build_index(ITEMS, neighbors=6, keys=numbers, backend="numpy")
    with LiveApp(index) as live:
        told = live.post("/search_items", {"ids": [2**63 + 7], "k": 2, "allowed": [2**63]}).json()
    assert told["keys"] == [[2**63, None]]


def test_large_bodies_and_answers_go_beside_the_loop(monkeypatch, server, index):
    monkeypatch.setattr("hybrid_gpu.serve.service._LARGE_BODY", 10)
    monkeypatch.setattr("hybrid_gpu.serve.service._LARGE_ANSWER", 1)
    same(server.post("/search", {"queries": QUERIES.tolist()}), index.search(QUERIES))


def test_notes_are_those_of_the_request(server):
    told = server.post("/search_items", {"ids": [1], "accuracy": 1e-12, "k": 3}).json()
    assert any("1 of 1 queries missed the accuracy" in note for note in told["notes"])
    assert len(told["residuals"]) == 1
