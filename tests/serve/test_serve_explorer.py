"""The explorer on a server: its page for everybody, its data for those who may ask."""

import threading

import numpy as np
import pytest

pytest.importorskip("starlette", reason="Starlette is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from serve_client import JSON, LiveApp, planted

import hybrid_gpu as hg
from hybrid_gpu.explore.answers import PageQuestion, answer
from hybrid_gpu.explore.collection import Collection
from hybrid_gpu.explore.page_files import PAGE, page_file
from hybrid_gpu.explore.pictures import ArrayPictures
from hybrid_gpu.serve.explorer import PUBLIC, explorer_routes
from hybrid_gpu.serve.running import Launch, launched_app
from hybrid_gpu.serve.settings import ServerSettings

ITEMS, QUERIES = planted()
API = "/explore/api"


@pytest.fixture(scope="module")
def collection():
    index = hg.build_index(ITEMS, neighbors=5, alpha=0.9, backend="numpy")
    pictures = ArrayPictures(np.arange(240, dtype=np.uint8).reshape(60, 2, 2), 60)
    return Collection(index, pictures=pictures)


def live(collection, **settings):
    pages = explorer_routes(collection)
    chosen = ServerSettings(**settings)
    return LiveApp(collection.index, chosen, routes=pages, public=PUBLIC)


def test_the_page_and_its_files_are_served(collection):
    with live(collection) as app:
        assert app.get("/explore").headers["location"] == "/explore/page/"
        assert app.get("/explore/page/").content == page_file("index.html")
        for name in PAGE:
            got = app.get(f"/explore/page/{name}")
            assert got.content == page_file(name)
            assert got.headers["x-content-type-options"] == "nosniff"
        assert app.get("/explore/page/data/start.js").text == 'explorer.start({"live":true});\n'


@pytest.mark.parametrize(
    "path",
    [
        "/explore/page/../__init__.py",
        "/explore/page/..%2f__init__.py",
        "/explore/page/%2e%2e/live.py",
        "/explore/page/nothing.js",
        "/explore/page/data/0.js",
        f"{API}/pictures/60",
        f"{API}/pictures/-1",
        f"{API}/pictures/..%2f..%2fetc%2fpasswd",
        f"{API}/nothing",
    ],
)
def test_no_other_file_can_be_had(collection, path):
    with live(collection) as app:
        assert app.get(path).status_code == 404


def test_answers_are_those_of_the_library(collection):
    with live(collection) as app:
        start = app.get(f"{API}/start").json()
        assert (start["n"], len(start["queries"])) == (60, 60)
        got = app.post(f"{API}/answer", {"item": 4, "k": 6, "alpha": 0.8}).json()
        expected = answer(collection, PageQuestion(item=4, k=6, alpha=0.8))
        for name in ("plain", "diffused", "why", "graph", "settings"):
            assert got[name] == expected[name]
        assert got["items"]["4"]["picture"] == "../api/pictures/4"
        vector = QUERIES[0].tolist()
        by_vector = app.post(f"{API}/answer", {"vector": vector, "label": "mine"}).json()
        assert by_vector["query"] == {"item": None, "label": "mine"}
        found = app.get(f"{API}/items", params={"words": "#1"}).json()
        assert found["count"] == 11
        picture = app.get(f"{API}/pictures/7")
        assert picture.headers["content-type"] == "image/png"
        assert picture.content == collection.pictures.picture(7).content


def test_a_token_guards_the_data_and_not_the_page(collection):
    with live(collection, token="open") as app:
        assert app.get("/explore/page/").status_code == 200
        assert app.get("/explore/page/app.js").status_code == 200
        for path in ("start", "items", "pictures/3"):
            assert app.get(f"{API}/{path}").status_code == 401
        assert app.post(f"{API}/answer", {"item": 1}).status_code == 401
        right = {"Authorization": "Bearer open"}
        assert app.get(f"{API}/pictures/3", headers=right).status_code == 200


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"item": 99}, 400, "0 to 59"),
        ({"vector": [1.0]}, 400, "8 dimensions"),
        ({"words": "hello"}, 400, "no encoder"),
        ({"item": 1, "method": "precomputed"}, 400, "method must be one of"),
        ({"item": 1, "file": "/etc/passwd"}, 400, "no field"),
    ],
)
def test_wrong_questions_are_refused_with_a_reason(collection, fields, status, message):
    with live(collection) as app:
        got = app.post(f"{API}/answer", fields)
        assert got.status_code == status
        assert message in got.json()["error"] + got.json()["hint"]


def test_bodies_are_limited_and_read_without_trust(collection):
    with live(collection, max_body=1000) as app:
        assert app.post_bytes(f"{API}/answer", b"x" * 2000, JSON).status_code == 413
        assert app.post_bytes(f"{API}/answer", b"{", JSON).status_code == 400
        assert app.post_bytes(f"{API}/answer", b"[" * 900, JSON).status_code == 400
        assert app.post_bytes(f"{API}/answer", b"a=b", "text/plain").status_code == 415
        assert app.get(f"{API}/answer").status_code == 405


def test_a_server_of_an_index_has_the_explorer(tmp_path, collection):
    collection.index.save(tmp_path / "my index")
    app = launched_app(Launch(str(tmp_path / "my index"), "numpy", ServerSettings()))
    paths = [getattr(route, "path", "") for route in app.routes]
    assert "/explore" in paths


def test_answers_that_take_too_long_and_too_many_are_refused(collection):
    waits = threading.Event()

    class Slow:
        pixelated = False

        def picture(self, item):
            waits.wait(20)
            return collection.pictures.picture(item)

    slow = Collection(collection.index, pictures=Slow())
    try:
        with live(slow, timeout=0.2) as app:
            assert app.get(f"{API}/pictures/1").status_code == 504
            waits.set()
    finally:
        waits.set()
