"""What a server refuses: every fault of a client is told to it, none of the server's inside is."""

import asyncio
import io
import json
import re
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from serve_client import JSON, NPY, NPZ, LiveApp, npy, npz, planted
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import hybrid_gpu as hg
from hybrid_gpu.serve.questions import question_of
from hybrid_gpu.serve.settings import ServerSettings

ITEMS, QUERIES = planted()
SMALL = ServerSettings(max_body=20_000, max_queries=4, max_k=20, max_list=8, max_steps=30)
VECTOR = QUERIES[0].tolist()


@pytest.fixture(scope="module")
def index():
    return hg.build_index(ITEMS, neighbors=6, backend="numpy")


@pytest.fixture(scope="module")
def server(index):
    with LiveApp(index, SMALL) as live:
        yield live


def refused(answer, status, *words):
    """A refusal as it should be, whatever it is for."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == JSON
    told = answer.json()
    assert set(told) == {"error", "hint"}
    assert told["error"]
    for word in words:
        assert word in told["error"] + told["hint"], told
    assert "Traceback" not in answer.text
    assert str(Path(hg.__file__).parent) not in answer.text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ["'queries' is missing"]),
        ({"queries": None}, ["'queries' is missing"]),
        ({"queries": VECTOR}, ["list of lists", "[[0.1, 0.2]]"]),
        ({"queries": []}, ["empty"]),
        ({"queries": [[]]}, ["at least one vector"]),
        ({"queries": 3}, ["a list"]),
        ({"queries": [[1.0, 2.0]]}, ["8 dimensions; got 2"]),
        ({"queries": [VECTOR, VECTOR[:3]]}, ["same length"]),
        ({"queries": [["a"] * 8]}, ["numbers"]),
        ({"queries": [[True] * 8]}, ["numbers"]),
        ({"queries": [[None] * 8]}, ["numbers"]),
        ({"queries": [[[1.0]] * 8]}, ["numbers"]),
        ({"queries": [[1e39] * 8]}, ["finite"]),
        ({"queries": [[10**400] + [0] * 7]}, ["finite"]),
        ({"queries": [VECTOR], "k": 0}, ["at least 1"]),
        ({"queries": [VECTOR], "k": 2.5}, ["integer"]),
        ({"queries": [VECTOR], "k": True}, ["integer"]),
        ({"queries": [VECTOR], "K": 3}, ["no field 'K'", "min_score"]),
        ({"queries": [VECTOR], "filter": "heat"}, ["no field"]),
        ({"queries": [VECTOR], "progress": True}, ["no field"]),
        ({"queries": [VECTOR], "batch": 1}, ["no field"]),
        ({"queries": [VECTOR], "method": "magic"}, ["one of auto"]),
        ({"queries": [VECTOR], "method": ["nn"]}, ["one of auto"]),
        ({"queries": [VECTOR], "method": "fsr"}, ["eigenvectors"]),
        ({"queries": [VECTOR], "alpha": 1.0}, ["at most"]),
        ({"queries": [VECTOR], "alpha": 0.9999}, ["at most"]),
        ({"queries": [VECTOR], "alpha": "0.5"}, ["a number"]),
        ({"queries": [VECTOR], "rtol": 0}, ["positive"]),
        ({"queries": [VECTOR], "rtol": 0.1, "accuracy": 0.1}, ["exclude each other"]),
        ({"queries": [VECTOR], "accuracy": [1]}, ["a number"]),
        ({"queries": [VECTOR], "expansion": 3}, ["object"]),
        ({"queries": [VECTOR], "expansion": {"size": 3}}, ["object"]),
        ({"queries": [VECTOR], "expansion": {"neighbors": "x"}}, ["integer"]),
        ({"queries": [VECTOR], "expansion": {"neighbors": 257}}, ["at most 256"]),
        ({"queries": [VECTOR], "sparsity": 2}, ["[0, 1)"]),
        ({"queries": [VECTOR], "sparsity": {}}, ["a number"]),
        ({"queries": [VECTOR], "allowed": 3}, ["list"]),
        ({"queries": [VECTOR], "allowed": {"a": 1}}, ["list"]),
        ({"queries": [VECTOR], "allowed": [3.5]}, ["list"]),
        ({"queries": [VECTOR], "allowed": [None]}, ["list"]),
        ({"queries": [VECTOR], "allowed": [60]}, ["[0, 59]"]),
        ({"queries": [VECTOR], "exclude": [[1], [2]]}, ["a row for each"]),
        ({"queries": [VECTOR], "exclude": [1, [2]]}, []),
        ({"queries": [VECTOR], "exclude": [[[2]]]}, []),
        ({"queries": [VECTOR], "exclude": ["a"]}, []),
        ({"queries": [VECTOR], "exclude": [10**30]}, []),
        ({"queries": [VECTOR], "allowed": [True, False]}, ["mask"]),
        ({"queries": [VECTOR], "min_score": "a"}, ["a number"]),
    ],
)
def test_wrong_fields_of_a_search_are_told(server, fields, words):
    refused(server.post("/search", fields), 400, *words)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/search_items", {"ids": [60]}),
        ("/search_items", {"ids": [-1]}),
        ("/search_items", {"ids": ["a"]}),
        ("/search_items", {"ids": [1.5]}),
        ("/search_items", {"ids": [True]}),
        ("/search_items", {"ids": [[]]}),
        ("/search_items", {"ids": [[1], 2]}),
        ("/search_items", {"ids": [{"3": 1.0}]}),
        ("/search_items", {"ids": [10**30]}),
        ("/search_items", {"ids": [1], "weights": [1]}),
        ("/search_items", {"ids": [[1]], "weights": [[1, 2]]}),
        ("/search_items", {"ids": [[1]], "weights": [["a"]]}),
        ("/search_items", {"ids": [[1]], "weights": 3}),
        ("/search_items", {"ids": [[1]], "weights": [[10**400]]}),
        ("/rerank", {"ids": [[1]]}),
        ("/rerank", {"ids": [1], "similarities": [0.5]}),
        ("/rerank", {"ids": [[1]], "similarities": [[7.0]]}),
        ("/rerank", {"ids": [[1]], "similarities": [[0.5]], "metric": "hamming"}),
        ("/rerank", {"ids": [[1, 2]], "similarities": [[0.5]]}),
        ("/rerank", {"ids": [[1.5]], "similarities": [[0.5]]}),
    ],
)
def test_wrong_fields_of_other_searches_are_told(server, path, fields):
    refused(server.post(path, fields), 400)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", ["JSON"]),
        (b"{", ["JSON"]),
        (b"[1]", ["object", "a list"]),
        (b"null", ["null"]),
        (b"\xff\xfe", ["UTF-8"]),
        (b'{"queries": [[NaN]]}', ["NaN"]),
        (b'{"queries": [[-Infinity]]}', ["-Infinity", "finite"]),
        (b'{"k": ' + b"9" * 5000 + b"}", ["too long"]),
        (b"[" * 9000, ["too long or deep"]),
        (b'{"queries": [[1e999, 0, 0, 0, 0, 0, 0, 0]]}', ["finite"]),
        (b'{"min_score": 1e999, "queries": [[1, 0, 0, 0, 0, 0, 0, 0]]}', ["finite"]),
    ],
)
def test_body_that_is_no_json_is_told(server, body, words):
    refused(server.post_bytes("/search", body, JSON), 400, *words)


def header(text, version=1):
    """A .npy header that says what it likes."""
    width = 2 if version == 1 else 4
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(width, "little") + text


def packed():
    stream = io.BytesIO()
    np.savez_compressed(stream, queries=np.zeros((100_000, 8), np.float32))
    return stream.getvalue()


def many_members():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for number in range(20):
            archive.writestr(f"{number}.npy", b"")
    return stream.getvalue()


def lying_member():
    """An archive whose directory says that a member has terabytes."""
    whole = bytearray(npz(queries=QUERIES[:1]))
    place = whole.rindex(b"PK\x01\x02")
    whole[place + 24 : place + 28] = (2**32 - 2).to_bytes(4, "little")
    return bytes(whole)


SHAPE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", NPY),
        (b"nothing", NPY),
        (npy(QUERIES[:1])[:-1], NPY),
        (npy(QUERIES[:1]) + b"more", NPY),
        (header(SHAPE % b"1000000000, 1000000"), NPY),
        (header(SHAPE % b"-1, 8"), NPY),
        (header(SHAPE % b"99999999999999999999999, 8"), NPY),
        (header(SHAPE % b"'a',"), NPY),
        (header(b"__import__('os').getcwd()"), NPY),
        (header(b"(" * 900), NPY),
        (header(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }") + b"x" * 8, NPY),
        (header(b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }"), NPY),
        (header(b" " * 5000, 2), NPY),
        (header(SHAPE % b"1, 8", 3), NPY),
        (npy(np.array(3.0)), NPY),
        (npy(np.zeros((1, 8), complex)), NPY),
        (npy(np.zeros((1, 8), "M8[s]")), NPY),
        (npy(np.full((1, 8), np.nan)), NPY),
        (npy(np.zeros((0, 8))), NPY),
        (npy(np.zeros((1, 8), np.int64)), NPY),
        (npy(np.zeros((1, 2, 4))), NPY),
        (b"PK", NPZ),
        (npz(queries=QUERIES[:1])[:-9], NPZ),
        (packed(), NPZ),
        (many_members(), NPZ),
        (lying_member(), NPZ),
        (npz(strange=QUERIES[:1]), NPZ),
        (npz(queries=QUERIES[:1], allowed=np.zeros(60)), NPZ),
    ],
)
def test_hostile_arrays_are_refused(server, body, kind):
    refused(server.post_bytes("/search", body, kind), 400)


def test_pickles_are_not_opened(server):
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    refused(server.post_bytes("/search", stream.getvalue()), 400, "Pickled")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/search?k=2&k=3", ["twice"]),
        ("/search?kk=2", ["no field"]),
        ("/search?k=NaN", ["integer"]),
        ("/search?k=[1", ["JSON"]),
        ("/search?queries=[[1]]", ["dimensions"]),
        ("/search?alpha=-NaN", []),
    ],
)
def test_wrong_options_of_an_address_are_told(server, path, words):
    body = b"{}" if "queries" in path else npy(QUERIES[:1])
    kind = JSON if "queries" in path else NPY
    refused(server.post_bytes(path, body, kind), 400, *words)


def test_field_in_the_body_and_in_the_address_is_refused(server):
    fields = {"queries": [VECTOR], "k": 3}
    refused(server.post("/search?k=4", fields), 400, "in the body and in the address")


@pytest.mark.parametrize(
    "body", ['{"ids": [1], "k": 3, "k": 4}', '{"ids": [1], "expansion": {"alpha": 1, "alpha": 2}}']
)
def test_field_that_stands_twice_is_refused(server, body):
    refused(server.post_bytes("/search_items", body.encode(), JSON), 400, "twice")


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_other_types_are_refused_so_that_no_form_of_a_web_page_gets_in(server, kind):
    refused(server.post_bytes("/search", b"{}", kind), 415, "Content-Type")


def test_body_that_is_too_large_is_refused_unread(server):
    async def endless():
        raise AssertionError("the body was read")
        yield b""

    headers = {"Content-Type": JSON, "Content-Length": "20001"}
    refused(server.ask("POST", "/search", content=endless(), headers=headers), 413, "--max-body")


@pytest.mark.parametrize("told", [None, "10", "x", "-5", "9" * 5000])
def test_body_is_counted_whatever_its_header_says(server, told):
    sent = []

    async def chunks():
        for _ in range(1000):
            sent.append(1)
            yield b" " * 1000

    headers = {"Content-Type": JSON, **({} if told is None else {"Content-Length": told})}
    answer = server.ask("POST", "/search", content=chunks(), headers=headers)
    refused(answer, 413)
    assert answer.headers["connection"] == "close"
    assert len(sent) <= 21
    assert server.service.intake.held == 0


def test_many_large_bodies_at_the_same_time_are_refused(index):
    settings = ServerSettings(max_body=1000, max_bodies=1500)
    with LiveApp(index, settings) as live:
        live.service.intake.held = 1000  # as if another one were being read
        answer = live.post_bytes("/search", b" " * 900, JSON)
        refused(answer, 503)
        assert answer.headers["retry-after"] == "1"
        assert live.service.intake.held == 1000


def test_body_that_does_not_come_is_given_up(index):
    with LiveApp(index, ServerSettings(timeout=0.05)) as live:

        async def stuck():
            yield b"{"
            await live.client._stuck.wait()

        async def asked():
            import asyncio

            live.client._stuck = asyncio.Event()
            headers = {"Content-Type": JSON}
            return await live.client.post("/search", content=stuck(), headers=headers)

        refused(live.portal.call(asked), 408)


@pytest.mark.parametrize(
    ("path", "fields", "word"),
    [
        ("/search", {"queries": [VECTOR] * 5}, "--max-queries"),
        ("/search", {"queries": [VECTOR], "k": 21}, "--max-k"),
        ("/search", {"queries": [VECTOR], "k": 10**30}, "--max-k"),
        ("/search", {"queries": [VECTOR], "steps": 31}, "30"),
        ("/search_items", {"ids": [1] * 5}, "--max-queries"),
        ("/search_items", {"ids": [[1] * 9]}, "at most 8"),
        ("/rerank", {"ids": [[1] * 9], "similarities": [[0.5] * 9]}, "at most 8"),
    ],
)
def test_requests_beyond_the_limits_are_refused(server, path, fields, word):
    refused(server.post(path, fields), 400, word)


def test_lists_of_unequal_lengths_do_not_fill_the_memory(index):
    settings = ServerSettings(max_list=10**7)
    with LiveApp(index, settings) as live:
        ids = [[1] * 500_000, *([[1]] * 99)]
        refused(live.post("/search_items", {"ids": ids}), 400, "rows")
        exclude = [[1] * 500_000, *([[1]] * 99)]
        refused(live.post("/search_items", {"ids": [1] * 100, "exclude": exclude}), 400, "rows")


def test_a_key_may_be_longer_than_a_list(index):
    keys = [f"{'x' * 50}{number}" for number in range(60)]
    named = hg.build_index(ITEMS, neighbors=6, keys=keys, backend="numpy")
    with LiveApp(named, ServerSettings(max_list=8)) as live:
        assert live.post("/search_items", {"ids": keys[:2]}).status_code == 200
        assert live.post_bytes("/search_items", npy(np.array(keys[:2]))).status_code == 200


def test_large_bodies_are_read_one_at_a_time(index, monkeypatch):
    """What is made of hostile JSON takes twenty times its bytes."""
    monkeypatch.setattr("hybrid_gpu.serve.service._LARGE_BODY", 1)
    both, at_work, most = threading.Event(), [], []

    def slow(*given):
        at_work.append(1)
        most.append(len(at_work))
        both.wait(0.1)  # as long as a second one would take to come in
        at_work.pop()
        return question_of(*given)

    monkeypatch.setattr("hybrid_gpu.serve.service.question_of", slow)
    with LiveApp(index) as live:

        async def asked():
            some = [live.client.post("/search_items", json={"ids": [1]}) for _ in range(3)]
            return await asyncio.gather(*some)

        assert [answer.status_code for answer in live.portal.call(asked)] == [200, 200, 200]
    assert most == [1, 1, 1]


def test_all_items_may_be_asked_for_where_they_are_few(index):
    with LiveApp(index, ServerSettings(max_k=60)) as live:
        answer = live.post("/search", {"queries": [VECTOR], "k": 10**9})
        assert len(answer.json()["ids"][0]) == 60


def test_tolerance_that_is_missed_is_told(server):
    fields = {"queries": [VECTOR], "rtol": 1e-12, "k": 3}
    refused(server.post("/search", fields), 422, "did not reach rtol")


def test_accuracy_takes_no_more_steps_than_are_allowed(index):
    def steps(**options):
        fields = {"queries": [VECTOR], "k": 3, **options}
        return question_of("search", fields, index.state, SMALL).request.stop.steps

    assert steps(accuracy=1e-12) == steps(rtol=1e-12) == SMALL.max_steps
    assert steps(accuracy=1e-12, steps=3) == 3
    assert steps() is None  # until the ranking is right
    assert steps(accuracy="ranking") is None


def test_pages_that_are_not_there_are_refused(server):
    refused(server.get("/nowhere"), 404)
    refused(server.get("/../../etc/passwd"), 404)
    refused(server.get("/%2e%2e/%2e%2e/etc/passwd"), 404)
    answer = server.get("/search")
    refused(answer, 405)
    assert answer.headers["allow"] == "POST"


def test_faults_of_the_server_are_told_to_its_log_alone(index, monkeypatch, caplog):
    def fail(queries, request):
        raise RuntimeError("in /secret/place")

    with LiveApp(index) as live:
        monkeypatch.setattr(live.service.batcher, "_solve", fail)
        answer = live.post("/search", {"queries": [VECTOR]})
    refused(answer, 500, "log")
    assert "secret" not in answer.text
    assert "/secret/place" in caplog.text


def test_faults_of_an_added_page_are_told_to_the_log_alone(index, caplog):
    async def broken(request):
        raise KeyError("secret")

    with LiveApp(index, routes=[Route("/broken", broken)]) as live:
        answer = live.get("/broken")
        refused(answer, 500)
        assert "secret" not in answer.text
        assert "secret" in caplog.text


@pytest.mark.parametrize("fault", [MemoryError("in /secret"), OSError(2, "no", "/secret")])
def test_faults_of_the_system_tell_no_path(index, monkeypatch, fault):
    def fail(queries, request):
        raise fault

    with LiveApp(index) as live:
        monkeypatch.setattr(live.service.batcher, "_solve", fail)
        answer = live.post("/search", {"queries": [VECTOR]})
    assert answer.status_code in (500, 503)
    assert "secret" not in answer.text


# Who may ask.


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8000", "LOCALHOST", "[::1]:80", "[::1]"])
def test_own_names_are_known(server, host):
    assert server.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost:x", "", "127.0.0.1:80:80", "::1"]
)
def test_other_names_are_refused(server, host):
    refused(server.get("/healthz", headers={"Host": host}), 421, "--allowed-host")
    answer = server.post("/search", {"queries": [VECTOR]}, headers={"Host": host})
    refused(answer, 421)


def test_two_names_are_none(server):
    for hosts in (["localhost", "evil.example"], ["localhost", "localhost"]):
        refused(server.get("/healthz", headers=[("Host", host) for host in hosts]), 421)


def test_packed_archive_is_refused_whatever_its_size(server):
    stream = io.BytesIO()
    np.savez_compressed(stream, queries=QUERIES[:1])
    refused(server.post_bytes("/search", stream.getvalue(), NPZ), 400, "must not be compressed")


def test_names_can_be_allowed(index):
    for allowed in (("search.example",), ("*",)):
        with LiveApp(index, ServerSettings(allowed_hosts=allowed)) as live:
            headers = {"Host": "search.example:80"}
            assert live.get("/healthz", headers=headers).status_code == 200


def test_token_is_asked_for(index):
    async def hello(request):
        return PlainTextResponse("hello")

    routes = [Route("/hello", hello), Route("/page/a", hello), Route("/pages", hello)]
    settings = ServerSettings(token="s3cret")
    with LiveApp(index, settings, routes=routes, public=["/page/"]) as live:
        for path in ("/info", "/metrics", "/openapi.json", "/docs", "/hello", "/pages"):
            answer = live.get(path)
            refused(answer, 401, "Bearer")
            assert answer.headers["www-authenticate"] == "Bearer"
        for path in ("/healthz", "/page/a"):
            assert live.get(path).status_code == 200
        refused(live.post("/search", {"queries": [VECTOR]}), 401)
        for wrong in ("Bearer", "Bearer ", "Bearer s3cre", "Basic s3cret", "s3cret", "Bearer \xe9"):
            headers = {"Authorization": wrong.encode("latin1")}
            refused(live.get("/info", headers=headers), 401)
        for right in ("Bearer s3cret", "bearer s3cret", "Bearer  s3cret "):
            assert live.get("/info", headers={"Authorization": right}).status_code == 200
    assert "s3cret" not in repr(settings)


def test_pages_of_others_are_not_shared_unless_asked(index):
    origin = {"Origin": "https://app.example"}
    preflight = {**origin, "Access-Control-Request-Method": "POST"}
    with LiveApp(index) as live:
        answer = live.get("/info", headers=origin)
        assert not [name for name in answer.headers if name.startswith("access-control")]
        refused(live.ask("OPTIONS", "/search", headers=preflight), 405)
    settings = ServerSettings(cors_origins=("https://app.example",), token="t")
    with LiveApp(index, settings) as live:
        allowed = live.ask("OPTIONS", "/search", headers=preflight)
        assert allowed.status_code == 204
        assert allowed.headers["access-control-allow-origin"] == "https://app.example"
        assert "authorization" in allowed.headers["access-control-allow-headers"]
        answer = live.get("/info", headers=origin)
        refused(answer, 401)  # with the header, so that the page can read why
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        other = live.get("/info", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    "wrong",
    [{"token": ""}, {"token": "a b"}, {"token": "é"}, {"max_k": 0}, {"timeout": 0}, {"batch": 1.5}],
)
def test_settings_are_checked(wrong):
    with pytest.raises((ValueError, TypeError)):
        ServerSettings(**wrong)


# Pages.


def test_readiness_comes_with_the_warmth(index, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(hg.DiffusionIndex, "warm_up", lambda self: gate.wait(60))
    with LiveApp(index) as live:
        assert live.get("/healthz").status_code == 200
        refused(live.get("/readyz"), 503, "warming up")
        assert "hybrid_gpu_ready 0" in live.get("/metrics").text
        gate.set()
        # Behind the warm-up on the same thread: whoever is answered finds it done.
        live.portal.call(live.service.batcher.run, lambda: None)
        assert live.get("/readyz").status_code == 200
        assert "hybrid_gpu_ready 1" in live.get("/metrics").text


def test_index_that_cannot_be_warmed_up_is_never_ready(index, monkeypatch, caplog):
    def fail(self):
        raise RuntimeError("cold")

    monkeypatch.setattr(hg.DiffusionIndex, "warm_up", fail)
    with LiveApp(index) as live:
        live.portal.call(live.service.batcher.run, lambda: None)
        refused(live.get("/readyz"), 503)
    assert "cold" in caplog.text


def test_counters_are_in_the_format_of_prometheus_and_count(index):
    with LiveApp(index) as live:
        for _ in range(3):
            live.post("/search", {"queries": [VECTOR, VECTOR]})
        live.post("/search", {})
        live.get("/nowhere")
        answer = live.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values, described = {}, set()
    for line in answer.text.splitlines():
        if line.startswith("# TYPE"):
            name, kind = line.split()[2:]
            assert kind in ("counter", "gauge", "histogram")
            assert name not in described
            described.add(name)
        elif not line.startswith("#"):
            assert re.fullmatch(r'[a-z_]+(\{([a-z]+="[^"]+",?)+\})? [0-9.e+-]+', line), line
            series, value = line.rsplit(" ", 1)
            values[series] = float(value)
            family = re.sub(r"_(bucket|sum|count)$", "", series.partition("{")[0])
            assert {family, series.partition("{")[0]} & described
    assert values['hybrid_gpu_requests_total{page="search",status="200"}'] == 3
    assert values['hybrid_gpu_requests_total{page="search",status="400"}'] == 1
    assert values['hybrid_gpu_requests_total{page="other",status="404"}'] == 1
    assert values["hybrid_gpu_queries_total"] == 6
    assert values["hybrid_gpu_batch_queries_sum"] == 6
    assert values['hybrid_gpu_batch_queries_bucket{le="+Inf"}'] == 3
    assert values['hybrid_gpu_batch_queries_bucket{le="1"}'] == 0
    assert values['hybrid_gpu_batch_queries_bucket{le="2"}'] == 3
    assert values['hybrid_gpu_request_seconds_count{page="search"}'] == 4
    assert values["hybrid_gpu_search_seconds_total"] > 0


def test_processes_add_up_their_counters(tmp_path, monkeypatch):
    from hybrid_gpu.serve import counters

    made = []
    for process in (2**22 + 7, 1):  # one that cannot be, and one that always is
        monkeypatch.setattr(counters.os, "getpid", lambda process=process: process)
        made.append(counters.Counters(tmp_path))
        made[-1].add("queries_total", 3)
        made[-1].set("processes", 1)
    (tmp_path / "5.counters").write_bytes(b"")  # one that is just being made
    for one in made:
        assert "hybrid_gpu_queries_total 6" in one.text()
        assert "hybrid_gpu_processes 1" in one.text()


def test_any_process_tells_what_waits_in_the_others(index, tmp_path, monkeypatch):
    from hybrid_gpu.serve import counters

    mine = counters.Counters(tmp_path)
    monkeypatch.setattr(counters.os, "getpid", lambda: 1)
    other = counters.Counters(tmp_path)
    gate = threading.Event()
    with LiveApp(index, counters=mine) as live:

        def held(queries, request):
            told.append(other.text())
            gate.wait(60)
            return solve(queries, request)

        told, solve = [], live.service.batcher._solve
        monkeypatch.setattr(live.service.batcher, "_solve", held)
        gate.set()
        live.post("/search", {"queries": [VECTOR]})
        live.post_bytes("/search", b"{" + b" " * 500, JSON)
    assert "hybrid_gpu_waiting_requests 1" in told[0]
    assert re.search(r"hybrid_gpu_body_bytes [1-9]", told[0])
    assert "hybrid_gpu_waiting_requests 0" in other.text()
    assert "hybrid_gpu_body_bytes 0" in other.text()


def test_info_tells_what_the_index_is(server):
    told = server.get("/info").json()
    assert told["items"] == 60
    assert told["dimensions"] == 8
    assert "hybrid" in told["methods"]
    assert "fsr" not in told["methods"]
    assert told["limits"]["max_k"] == 20


def test_page_of_the_api_loads_nothing(server):
    page = server.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "<script" not in page.text
    assert not re.search(r'(src|href)="(https?:)?//', page.text)
    assert "@import" not in page.text
    for path in server.get("/openapi.json").json()["paths"]:
        assert path in page.text
    assert server.get("/").headers["location"] == "/docs"


def test_example_of_every_page_of_the_api_is_answered(server):
    text = server.get("/docs").text.replace("&quot;", '"').replace("&#x27;", "'")
    examples = re.findall(r"curl http://127.0.0.1:8000(/\w+) --json '([^']+)'", text)
    assert len(examples) == 3
    for path, body in examples:
        assert server.post(path, json.loads(body)).status_code == 200


def test_answers_are_not_guessed_framed_or_kept(server):
    for answer in (server.get("/docs"), server.get("/nowhere"), server.get("/info")):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"


def test_importing_the_library_imports_no_server():
    import subprocess
    import sys

    code = (
        "import sys, hybrid_gpu, hybrid_gpu.cli;"
        "print([name for name in sys.modules if name.split('.')[0] in ('starlette', 'uvicorn')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
