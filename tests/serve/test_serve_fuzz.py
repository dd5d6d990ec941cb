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
from hybrid_gpu.serve.settings import ServerSettings

ITEMS, _ = planted(n=24, d=3)
KEYS = [f"k{number}" for number in range(len(ITEMS))]
LIMITS = ServerSettings(max_queries=8, max_k=10, max_list=12, max_body=1 << 20, timeout=5)
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
    with LiveApp(index, LIMITS) as live:
        yield live


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", ["/search", "/rerank", "/search_items"])
def test_every_answer_is_one_that_the_document_announces(server, path, mode):
    schema = schemathesis.openapi.from_dict(server.get("/openapi.json").json())
    fuzz(server, schema[path]["POST"].as_strategy(mode), REQUESTS)


@pytest.mark.parametrize("path", ["/info", "/metrics", "/healthz", "/readyz"])
def test_pages_answer_as_the_document_announces(server, path):
    schema = schemathesis.openapi.from_dict(server.get("/openapi.json").json())
    fuzz(server, schema[path]["GET"].as_strategy(), 2)


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
