"""Requests that arrive together are solved together, and nobody notices but the clock.

A gate holds the thread that solves, so that the tests know what waits behind it: no sleeps.
"""

import asyncio
import threading
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from conftest import TOLERANCE
from serve_client import LiveApp, planted

import hybrid_gpu as hg
from hybrid_gpu.errors import ConvergenceError
from hybrid_gpu.index.search import ranked
from hybrid_gpu.serve.answers import rows_of
from hybrid_gpu.serve.batching import Batcher, Waiting
from hybrid_gpu.serve.questions import question_of
from hybrid_gpu.serve.refusals import Refusal
from hybrid_gpu.serve.settings import ServerSettings

ITEMS, QUERIES = planted()
INDEX = hg.build_index(ITEMS, neighbors=6, backend="numpy")
POISON = 7.5


@dataclass
class Solver:
    """Solves as the server does, after its gate opens, and remembers what it was given."""

    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    batches: list = field(default_factory=list)

    def __call__(self, queries, request):
        self.batches.append(queries.arrays[0].copy())
        self.entered.set()
        assert self.gate.wait(60)
        if queries.arrays[0].dtype.kind == "f" and np.any(queries.arrays[0] == POISON):
            raise RuntimeError("poisoned")
        return ranked(INDEX.state, queries, request)

    @property
    def sizes(self):
        return [len(one) for one in self.batches]

    async def begun(self):
        """Wait until a batch is at work, and everything behind it waits."""
        await asyncio.get_running_loop().run_in_executor(None, self.entered.wait, 60)


def question(endpoint="search", settings=None, **fields):
    return question_of(endpoint, fields, INDEX.state, settings or ServerSettings())


def vector(number, **options):
    return question(queries=[QUERIES[number % len(QUERIES)].tolist()], **{"k": 5, **options})


def gated(test, **settings):
    """Run a test with a batcher whose first batch is held at the gate."""

    async def run():
        solver, chosen = Solver(), ServerSettings(**settings)
        batcher = Batcher(solver, chosen)
        try:
            await test(batcher, solver)
        finally:
            solver.gate.set()
            await batcher.close()
        await asyncio.sleep(0)  # those who leave are counted at the end of the loop's round
        assert batcher.waiting == 0
        assert batcher.waiting_queries == 0

    asyncio.run(asyncio.wait_for(run(), 60))


def later(seconds=60.0):
    return asyncio.get_running_loop().time() + seconds


def assert_same(rows, ranking):
    assert np.array_equal(rows.ids, ranking.ids)
    np.testing.assert_allclose(rows.scores, ranking.scores, rtol=TOLERANCE["float32"])


def test_requests_that_wait_are_solved_together_and_each_gets_its_own_answer():
    async def test(batcher, solver):
        first = batcher.submit(vector(0), later())
        await solver.begun()
        others = [batcher.submit(vector(number), later()) for number in range(1, 9)]
        assert batcher.waiting == 9
        solver.gate.set()
        answers = await asyncio.gather(first, *others)
        assert solver.sizes == [1, 8]
        for number, rows in enumerate(answers):
            assert_same(rows, INDEX.search(QUERIES[number][None], k=5))

    gated(test)


def test_without_batching_each_is_solved_alone():
    async def test(batcher, solver):
        some = [batcher.submit(vector(number), later()) for number in range(4)]
        solver.gate.set()
        await asyncio.gather(*some)
        assert solver.sizes == [1, 1, 1, 1]

    gated(test, batching=False)


def test_requests_of_several_queries_come_apart_again():
    async def test(batcher, solver):
        first = batcher.submit(vector(0), later())
        await solver.begun()
        parts = [QUERIES[:3], QUERIES[3:4], QUERIES[4:]]
        others = [batcher.submit(question(queries=part.tolist(), k=4), later()) for part in parts]
        solver.gate.set()
        await first
        for part, rows in zip(parts, await asyncio.gather(*others), strict=True):
            assert_same(rows, INDEX.search(part, k=4))
        assert solver.sizes == [1, 9]

    gated(test)


# Each of them alone makes another question of the same query.
KINDS = [
    {"k": 5},
    {"k": 6},
    {"alpha": 0.5},
    {"method": "nn"},
    {"min_score": 0.01},
    {"steps": 3},
    {"steps": 4},
    {"accuracy": 1e-5},
    {"rtol": 1e-5},
    {"degree_correction": True},
    {"query_neighbors": 2},
    {"method": "alpha-qe"},
    {"method": "alpha-qe", "expansion": {"neighbors": 2}},
    {"method": "alpha-qe", "expansion": {"neighbors": 2, "alpha": 1.0}},
    {"method": "truncated", "shortlist": 10},
    {"method": "truncated", "shortlist": 20},
    {"exclude": [1]},
    {"allowed": list(range(20))},
]


def test_requests_with_other_options_wait_for_their_own_turn():
    async def test(batcher, solver):
        first = batcher.submit(vector(0), later())
        await solver.begun()
        others = [batcher.submit(vector(1, **options), later()) for options in KINDS * 2]
        solver.gate.set()
        await asyncio.gather(first, *others)
        # In the order in which they came, two of each kind together.
        assert solver.sizes == [1] + len(KINDS) * [2]
        for options, future in zip(KINDS * 2, others, strict=True):
            called = {"k": 5, **options}
            if "expansion" in called:
                called["expansion"] = hg.Expansion(**called["expansion"])
            assert_same(future.result(), INDEX.search(QUERIES[1][None], **called))

    gated(test)


THIRTY = list(range(30))
# Pairs whose arrays have the same shapes, and that mean something else.
UNLIKE = [
    ({"allowed": THIRTY}, {"exclude": THIRTY}),
    ({"allowed": THIRTY[:27]}, {"allowed": THIRTY[:28]}),  # a local search looks further for one
]


@pytest.mark.parametrize(("one", "other"), UNLIKE)
def test_requests_of_equal_shapes_and_other_meanings_are_not_mixed(one, other):
    async def test(batcher, solver):
        first = batcher.submit(vector(0), later())
        await solver.begun()
        both = [batcher.submit(vector(1, method="local", **some), later()) for some in (one, other)]
        solver.gate.set()
        await asyncio.gather(first, *both)
        assert solver.sizes == [1, 1, 1]

    gated(test)


def test_signed_weights_are_solved_with_their_like():
    async def test(batcher, solver):
        first = batcher.submit(vector(0), later())
        await solver.begun()
        weights = ([[1.0, 0.5]], [[1.0, -0.5]], [[0.3, -0.9]])
        some = [
            batcher.submit(question("search_items", ids=[[3, 8]], weights=one, k=60), later())
            for one in weights
        ]
        solver.gate.set()
        await asyncio.gather(first, *some)
        assert solver.sizes == [1, 1, 2]
        for one, future in zip(weights, some, strict=True):
            assert_same(future.result(), INDEX.search_items([[3, 8]], weights=one, k=60))

    gated(test)


def test_parts_of_a_request_may_be_done_in_any_order():
    async def test(batcher, solver):
        whole = INDEX.search(QUERIES[:3], k=5)
        asked = question(queries=QUERIES[:3].tolist(), k=5)
        waiting = Waiting(asked, later(), asyncio.get_running_loop().create_future())
        waiting.give(1, rows_of(whole, 1, 3))
        assert not waiting.future.done()
        waiting.give(0, rows_of(whole, 0, 1))
        assert_same(waiting.future.result(), whole)

    gated(test)


def test_rows_of_a_batch_have_their_own_marks():
    whole = INDEX.search(QUERIES[:3], k=5, method="local")
    settled = np.array([True, False, True])
    local = replace(whole.report.local, settled=settled)
    marked = replace(whole, report=replace(whole.report, local=local))
    assert [rows_of(marked, row, row + 1).settled.tolist() for row in range(3)] == [
        *([True], [False], [True])
    ]


def test_groups_take_turns():
    async def test(batcher, solver):
        first = batcher.submit(vector(0), later())
        await solver.begun()
        many = [batcher.submit(vector(0), later()) for _ in range(6)]
        few = batcher.submit(vector(1, k=3), later())
        solver.gate.set()
        await asyncio.gather(first, *many, few)
        # Two of the many, then the one of the other kind, then the rest of the many.
        assert solver.sizes == [1, 2, 1, 2, 2]
        assert np.array_equal(solver.batches[2], QUERIES[1][None])

    gated(test, batch=2)


def test_small_request_does_not_wait_for_all_of_a_large_one():
    rng = np.random.default_rng(41)
    many, one = rng.standard_normal((72, 8)), rng.standard_normal((1, 8))

    async def test(batcher, solver):
        large = batcher.submit(question(queries=many.tolist(), k=5), later())
        await solver.begun()
        small = batcher.submit(question(queries=one.tolist(), k=5), later())
        solver.gate.set()
        await small
        assert not large.done()
        # It was in the very next batch, beside a part of the large one.
        assert one.astype(np.float32)[0].tolist() in solver.batches[1].tolist()
        assert solver.sizes[1] == 8
        assert_same(small.result(), INDEX.search(one, k=5))
        assert_same(await large, INDEX.search(many, k=5))
        assert max(solver.sizes) == 8
        assert sum(solver.sizes) == 73

    gated(test, batch=8)


def test_poisoned_request_fails_alone():
    async def test(batcher, solver):
        first = batcher.submit(vector(0), later())
        await solver.begun()
        good = [batcher.submit(vector(number), later()) for number in (1, 2)]
        bad = batcher.submit(question(queries=[[POISON] * 8], k=5), later())
        good.append(batcher.submit(vector(3), later()))
        solver.gate.set()
        answers = await asyncio.gather(first, *good, bad, return_exceptions=True)
        assert solver.sizes == [1, 4, 1, 1, 1, 1]
        assert isinstance(answers.pop(), RuntimeError)
        for number, rows in enumerate(answers):
            assert_same(rows, INDEX.search(QUERIES[number][None], k=5))

    gated(test)


def test_request_that_misses_its_tolerance_fails_alone():
    alone = int(np.flatnonzero(INDEX.graph.degrees == 0)[0])  # solved in no step at all
    linked = int(np.flatnonzero(INDEX.graph.degrees > 0)[0])
    options = {"rtol": 1e-6, "steps": 1, "k": 2, "method": "temporal"}

    async def test(batcher, solver):
        first = batcher.submit(vector(0), later())
        await solver.begun()
        easy, hard = (
            batcher.submit(question("search_items", ids=[item], **options), later())
            for item in (alone, linked)
        )
        solver.gate.set()
        await first
        assert (await easy).ids[0, 0] == alone
        with pytest.raises(ConvergenceError):
            await hard
        assert solver.sizes == [1, 2]

    gated(test)


def test_request_that_nobody_waits_for_is_not_begun_and_takes_no_other_along():
    async def test(batcher, solver):
        first = batcher.submit(vector(0), later())
        await solver.begun()
        gone, stays = (batcher.submit(vector(number), later()) for number in (1, 2))
        gone.cancel()
        solver.gate.set()
        await asyncio.gather(first, stays)
        assert_same(stays.result(), INDEX.search(QUERIES[2][None], k=5))
        assert [one.tolist() for one in solver.batches[1:]] == [[QUERIES[2].tolist()]]

    gated(test)


def test_client_that_leaves_while_its_batch_is_at_work_takes_no_other_along():
    async def test(batcher, solver):
        first = batcher.submit(vector(0), later())
        await solver.begun()
        both = [batcher.submit(vector(number), later()) for number in (1, 2)]
        solver.entered.clear()
        # The gate stays open from here; the second batch is caught as it begins.
        solver.gate.set()
        await solver.begun()
        both[0].cancel()
        await asyncio.gather(first, both[1])
        assert_same(both[1].result(), INDEX.search(QUERIES[2][None], k=5))

    gated(test)


def test_queue_is_bounded_and_says_when_to_come_again():
    async def test(batcher, solver):
        some = [batcher.submit(vector(number), later()) for number in range(3)]
        await solver.begun()
        with pytest.raises(Refusal) as refused:
            batcher.submit(vector(3), later())
        assert refused.value.status == 503
        assert refused.value.response.headers["retry-after"] == "1"
        solver.gate.set()
        await asyncio.gather(*some)
        await batcher.submit(vector(3), later())  # there is room again

    gated(test, max_waiting=3)


def test_request_whose_time_is_over_is_refused_and_not_begun():
    async def test(batcher, solver):
        first = batcher.submit(vector(0), later())
        await solver.begun()
        late, early = batcher.submit(vector(1), later(-1)), batcher.submit(vector(2), later())
        solver.gate.set()
        await asyncio.gather(first, early)
        with pytest.raises(Refusal) as refused:
            await late
        assert refused.value.status == 503
        assert sum(solver.sizes) == 2

    gated(test)


def test_stopping_answers_what_has_begun_and_refuses_the_rest():
    async def test(batcher, solver):
        first = batcher.submit(vector(0), later())
        await solver.begun()
        waiting = batcher.submit(vector(1), later())
        closing = asyncio.ensure_future(batcher.close())
        with pytest.raises(Refusal) as refused:
            await waiting
        assert refused.value.status == 503
        with pytest.raises(Refusal):
            batcher.submit(vector(2), later())
        assert not closing.done()
        solver.gate.set()
        await closing
        assert_same(first.result(), INDEX.search(QUERIES[0][None], k=5))

    gated(test)


def test_lists_that_differ_are_solved_together():
    async def test(batcher, solver):
        first = batcher.submit(vector(0), later())
        await solver.begun()
        chosen = [[1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
        others = [batcher.submit(vector(1, exclude=items), later()) for items in chosen]
        solver.gate.set()
        await asyncio.gather(first, *others)
        assert solver.sizes == [1, 3]
        for items, future in zip(chosen, others, strict=True):
            assert_same(future.result(), INDEX.search(QUERIES[1][None], k=5, exclude=items))

    gated(test)


def test_masks_are_solved_together_only_with_the_same():
    odd = np.arange(60) % 2 == 1

    async def test(batcher, solver):
        first = batcher.submit(vector(0), later())
        await solver.begun()
        masks = [odd, ~odd, odd]
        others = [batcher.submit(vector(1, allowed=mask), later()) for mask in masks]
        solver.gate.set()
        await asyncio.gather(first, *others)
        assert solver.sizes == [1, 2, 1]
        for mask, future in zip(masks, others, strict=True):
            assert_same(future.result(), INDEX.search(QUERIES[1][None], k=5, allowed=mask))

    gated(test)


def test_lists_that_are_fine_alone_are_fine_together():
    # Each rises once, which chance does; together they would look like distances.
    async def test(batcher, solver):
        first = batcher.submit(vector(0), later())
        await solver.begun()
        others = [
            batcher.submit(question("rerank", ids=[[one, 9]], similarities=[[0.5, 0.9]]), later())
            for one in (1, 2, 3)
        ]
        solver.gate.set()
        await asyncio.gather(first, *others)
        assert solver.sizes == [1, 3]

    gated(test)


def test_answers_do_not_depend_on_company():
    rng = np.random.default_rng(37)
    asked = []
    for _ in range(60):
        options = {"k": int(rng.integers(3, 6)), "method": str(rng.choice(["hybrid", "temporal"]))}
        if rng.random() < 0.3:
            options["exclude"] = rng.integers(0, 60, rng.integers(1, 6)).tolist()
        if rng.random() < 0.3:
            options["allowed"] = rng.integers(0, 60, 20).tolist()
        count = int(rng.integers(1, 4))
        asked.append((rng.standard_normal((count, 8)).tolist(), options))

    async def test(batcher, solver):
        first = batcher.submit(vector(0), later())
        await solver.begun()
        futures = [
            batcher.submit(question(queries=queries, **options), later())
            for queries, options in asked
        ]
        solver.gate.set()
        await asyncio.gather(first, *futures)
        assert len(solver.batches) < 40
        for (queries, options), future in zip(asked, futures, strict=True):
            assert_same(future.result(), INDEX.search(queries, **options))

    gated(test)


def test_several_threads_solve_side_by_side():
    async def test(batcher, solver):
        some = [batcher.submit(vector(0, k=k), later()) for k in (3, 4)]
        while len(solver.batches) < 2:  # both are at the gate, which is closed
            await asyncio.sleep(0)
        solver.gate.set()
        await asyncio.gather(*some)

    gated(test, threads=2)


# The same through the whole app.


class Held:
    """An app whose searches wait at a gate."""

    def __init__(self, monkeypatch, **settings):
        self.solver = Solver()
        self.live = LiveApp(INDEX, ServerSettings(**settings))
        monkeypatch.setattr(self.live.service.batcher, "_solve", self.solver)

    async def post(self, **options):
        fields = {"queries": [QUERIES[0].tolist()], "k": 5, **options}
        return await self.live.client.post("/search", json=fields)


def test_clients_of_the_app_are_solved_together(monkeypatch):
    held = Held(monkeypatch)

    async def test():
        first = asyncio.ensure_future(held.post())
        await held.solver.begun()
        others = [asyncio.ensure_future(held.post()) for _ in range(7)]
        while held.live.service.batcher.waiting < 8:
            await asyncio.sleep(0)
        held.solver.gate.set()
        return await asyncio.gather(first, *others)

    with held.live as live:
        answers = live.portal.call(test)
        assert held.solver.sizes == [1, 7]
        assert len({answer.text for answer in answers[1:]}) == 1
        assert 'batch_queries_bucket{le="8"} 2' in live.get("/metrics").text
        assert 'batch_queries_bucket{le="4"} 1' in live.get("/metrics").text


def test_client_that_waits_too_long_is_told(monkeypatch):
    held = Held(monkeypatch, timeout=0.05)

    async def test():
        begun = asyncio.ensure_future(held.post())
        await held.solver.begun()
        start = asyncio.get_running_loop().time()
        answers = await asyncio.gather(begun, held.post(k=4))
        assert asyncio.get_running_loop().time() - start < 5  # a hundred times its time
        held.solver.gate.set()
        return answers

    with held.live as live:
        begun, waiting = live.portal.call(test)
        assert begun.status_code == 504
        assert waiting.status_code == 503
        assert waiting.headers["retry-after"] == "1"
    assert held.solver.sizes == [1]  # what nobody waited for was never begun


def test_client_that_hangs_up_is_not_served(monkeypatch):
    held = Held(monkeypatch)
    body = b'{"ids": [3], "k": 4}'
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/search_items",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }

    async def test():
        first = asyncio.ensure_future(held.post())
        await held.solver.begun()
        left, sent = asyncio.Event(), []
        parts = [{"type": "http.request", "body": body}]

        async def receive():
            if parts:
                return parts.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        leaving = asyncio.ensure_future(held.live.app(scope, receive, send))
        while held.live.service.batcher.waiting < 2:
            await asyncio.sleep(0)
        left.set()
        await leaving
        held.solver.gate.set()
        assert (await first).status_code == 200
        return sent

    with held.live as live:
        sent = live.portal.call(test)
        assert sent[0]["status"] == 499
    assert held.solver.sizes == [1]


def test_full_queue_is_told_before_the_body_is_read(monkeypatch):
    held = Held(monkeypatch, max_waiting=1)

    async def test():
        first = asyncio.ensure_future(held.post())
        await held.solver.begun()

        async def endless():
            raise AssertionError("the body was read")
            yield b""

        headers = {"Content-Type": "application/json"}
        refused = await held.live.client.post("/search", content=endless(), headers=headers)
        held.solver.gate.set()
        return refused, await first

    with held.live as live:
        refused, first = live.portal.call(test)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert first.status_code == 200
