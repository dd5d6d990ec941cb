"""Requests made of the OpenAPI document, right and wrong: every answer is one that it announces.

``HYBRID_GPU_FUZZ`` is the number of requests of each kind; 12 if nobody says otherwise.
"""

import os

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")
pytest.importorskip("schemathesis")

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from serve_client import JSON, NPY, NPZ, LiveApp, npy, npz, planted

import hybrid_gpu as hg
from hybrid_gpu.explore.collection import Collection
from hybrid_gpu.explore.pictures import ArrayPictures
from hybrid_gpu.serve.explorer import PUBLIC, explorer_routes
from hybrid_gpu.serve.settings import ServerSettings

ITEMS, _ = planted(n=24, d=3)
KEYS = [f"k{number}" for number in range(len(ITEMS))]
LIMITS = ServerSettings(max_queries=8, max_k=10, max_list=12, max_body=1 << 20, timeout=5)
EXPLORER = "/explore/api"
REQUESTS = int(os.environ.get("HYBRID_GPU_FUZZ", "12"))
# What the document allows may still be refused, by a rule that it cannot write: lists of equal
# lengths, options that exclude each other, methods that take no accuracy.
CHECKED = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]


@pytest.fixture(scope="module", params=["ids", "keys"])
def server(request):
    keys = KEYS if request.param == "keys" else None
    index = hg.build_index(ITEMS, neighbors=5, keys=keys, backend="numpy")
    pictures = ArrayPictures(np.zeros((24, 2, 2), np.uint8), 24)
    encode = {"encode": lambda words: np.ones(3) * len(words)} if keys else {}
    pages = explorer_routes(Collection(index, pictures=pictures, **encode))
    with LiveApp(index, LIMITS, routes=pages, public=PUBLIC) as live:
        yield live


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", ["/search", "/rerank", "/search_items", f"{EXPLORER}/answer"])
def test_every_answer_is_one_that_the_document_announces(server, path, mode):
    schema = schemathesis.openapi.from_dict(server.get("/openapi.json").json())
    fuzz(server, schema[path]["POST"].as_strategy(mode), REQUESTS)


@pytest.mark.parametrize("path", ["/info", "/metrics", "/healthz", "/readyz"])
def test_pages_answer_as_the_document_announces(server, path):
    schema = schemathesis.openapi.from_dict(server.get("/openapi.json").json())
    fuzz(server, schema[path]["GET"].as_strategy(), 2)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", ["start", "items", "pictures/{item}"])
def test_pages_of_the_explorer_answer_as_the_document_announces(server, name, mode):
    schema = schemathesis.openapi.from_dict(server.get("/openapi.json").json())
    if name == "start" and mode == GenerationMode.NEGATIVE:
        return  # it takes nothing that could be wrong
    fuzz(server, schema[f"{EXPLORER}/{name}"]["GET"].as_strategy(mode), REQUESTS)


def test_every_page_of_the_explorer_is_in_the_document(server):
    told = set(server.get("/openapi.json").json()["paths"])
    asked = {route.path for route in server.app.routes if route.path.startswith(EXPLORER)}
    assert len(asked) == 4
    assert asked <= told


def fuzz(server, cases, count):
    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def ask(case):
        sent = case.as_transport_kwargs()
        headers = {name: str(value) for name, value in sent["headers"].items()}
        content = {name: sent[name] for name in ("json", "data") if name in sent}
        if "data" in content:
            content = {"content": content["data"]}
        answer = server.ask(
            sent["method"], sent["url"], headers=headers, params=sent["params"], **content
        )
        case.validate_response(answer, checks=CHECKED)
        if answer.status_code >= 400:
            assert set(answer.json()) == {"error", "hint"}

    ask()


def test_most_of_what_is_right_is_answered():
    """The document says so much of a request that few of those made of it are refused."""
    statuses, refusals = [], []
    with LiveApp(hg.build_index(ITEMS, neighbors=5, backend="numpy"), LIMITS) as live:
        schema = schemathesis.openapi.from_dict(live.get("/openapi.json").json())

        @settings(max_examples=40, deadline=None, derandomize=True, database=None)
        @given(schema["/search_items"]["POST"].as_strategy(media_type=JSON))
        def ask(case):
            fields = {name: case.body[name] for name in ("ids", "k") if name in case.body}
            answer = live.post("/search_items", fields)
            statuses.append(answer.status_code)
            refusals.append(answer.text)

        ask()
    assert np.mean(np.array(statuses) == 200) > 0.9, refusals


@pytest.mark.parametrize("kind", [NPY, NPZ])
def test_arrays_that_are_changed_anywhere_are_answered_or_refused(server, kind):
    queries = ITEMS[:2]
    whole = npy(queries) if kind == NPY else npz(queries=queries)
    rng = np.random.default_rng(43)
    for _ in range(8 * REQUESTS):
        body = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            body[rng.integers(len(body))] = rng.integers(256)
        if rng.random() < 0.2:
            body = body[: rng.integers(len(body))]
        answer = server.post_bytes("/search?k=3", bytes(body), kind)
        assert answer.status_code in (200, 400, 413), answer.text
