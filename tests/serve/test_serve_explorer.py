"""The explorer on a server: its page for everybody, its data for those who may ask."""

import asyncio
import threading

import numpy as np
import pytest

pytest.importorskip("starlette", reason="Starlette is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

import httpx
from serve_client import JSON, LiveApp, planted
from starlette.applications import Starlette
from starlette.routing import Mount

import hybrid_gpu as hg
from hybrid_gpu.explore.answers import PageQuestion, answer
from hybrid_gpu.explore.collection import Collection
from hybrid_gpu.explore.page_files import PAGE, page_file
from hybrid_gpu.explore.pictures import ArrayPictures, FolderPictures
from hybrid_gpu.serve.app import create_app
from hybrid_gpu.serve.bodies import fields_of
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
        f"{API}/pictures/{'9' * 5000}",
        f"{API}/pictures/\u0663",
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


def test_bodies_share_the_room_of_all_others(collection):
    with live(collection, max_body=1000, max_bodies=1500) as app:
        app.service.intake.held = 1400  # as if others were being read
        assert app.post_bytes(f"{API}/answer", b" " * 900, JSON).status_code == 503
        assert app.service.intake.held == 1400


def test_bodies_are_read_beside_the_loop_which_serves_the_others(collection, monkeypatch):
    threads = []

    def watched(*given):
        threads.append(threading.current_thread().name)
        return fields_of(*given)

    monkeypatch.setattr("hybrid_gpu.serve.explorer.fields_of", watched)
    with live(collection) as app:
        assert app.post(f"{API}/answer", {"item": 1}).status_code == 200
    assert [name.startswith("hybrid_gpu_explore") for name in threads] == [True]


def test_alpha_is_limited_as_in_a_search(collection):
    with live(collection) as app:
        got = app.post(f"{API}/answer", {"item": 1, "alpha": 0.999})
        assert got.status_code == 400
        assert "at most 0.995" in got.json()["error"]
        assert app.post(f"{API}/answer", {"item": 1, "alpha": 0}).status_code == 200


def test_a_picture_that_cannot_be_read_tells_the_log_alone(collection, tmp_path, caplog):
    for item in range(60):
        (tmp_path / f"{item:02}.png").write_bytes(b"no picture at all")
    pictures = FolderPictures(tmp_path, 60, None)
    (tmp_path / "01.png").unlink()
    with live(Collection(collection.index, pictures=pictures)) as app:
        for item in (0, 1):
            got = app.get(f"{API}/pictures/{item}")
            assert got.status_code == 404
            assert str(tmp_path) not in got.text
    assert str(tmp_path) in caplog.text


def test_room_is_free_again_after_every_answer(collection, monkeypatch):
    monkeypatch.setattr("hybrid_gpu.serve.explorer._MOST_WAITING", 1)
    with live(collection) as app:
        for path in ("start", "pictures/99", "items", "pictures/3"):
            assert app.get(f"{API}/{path}").status_code in (200, 404)


def test_work_that_nobody_waits_for_keeps_its_place(collection):
    gate, at_work, most = threading.Event(), [], []

    class Slow:
        pixelated = False

        def picture(self, item):
            at_work.append(item)
            most.append(len(at_work))
            gate.wait(20)
            at_work.remove(item)
            return collection.pictures.picture(item)

    try:
        with live(Collection(collection.index, pictures=Slow()), timeout=0.1) as app:
            statuses = [app.get(f"{API}/pictures/{item}").status_code for item in (1, 2, 3)]
    finally:
        gate.set()
    assert statuses == [504, 503, 503]  # the first has begun, and the others never will
    assert most == [1]


def test_an_app_that_is_mounted_is_the_same_below_its_path(collection):
    settings = ServerSettings(token="open")
    inner = create_app(
        collection.index, settings, routes=explorer_routes(collection), public=PUBLIC
    )
    outer = Starlette(routes=[Mount("/rank", app=inner)])
    right = {"Authorization": "Bearer open"}

    async def asked():
        transport = httpx.ASGITransport(outer)
        async with (
            inner.router.lifespan_context(inner),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/rank") as client,
        ):
            for path in ("/healthz", "/explore/page/", "/explore/page/app.js"):
                assert (await client.get(path)).status_code == 200
            for path in ("/info", "/docs", "/explore/api/start", "/healthz/x"):
                assert (await client.get(path)).status_code == 401
            assert (await client.get("/")).headers["location"] == "/rank/docs"
            assert (await client.get("/explore")).headers["location"] == "/rank/explore/page/"
            told = (await client.get("/openapi.json", headers=right)).json()
            assert told["servers"] == [{"url": "/rank"}]
            found = await client.post("/search_items", json={"ids": [1]}, headers=right)
            assert found.status_code == 200
            counted = (await client.get("/metrics", headers=right)).text
            assert 'requests_total{page="search_items",status="200"} 1' in counted

    asyncio.run(asked())


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
