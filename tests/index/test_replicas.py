"""One index on several devices: answers, order, reports, failures, threads.

Replicas of the ``backend`` fixture and of NumPy run everywhere. Two devices are those of the
stand-in, in a process of their own, or those of a server that has them.
"""

from __future__ import annotations

import _thread
import doctest
import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

import hybrid_gpu as hg
from hybrid_gpu.backends.numpy_backend import NumpyBackend
from hybrid_gpu.index import replicas as replicas_module
from hybrid_gpu.index import spreading

VECTORS = np.random.default_rng(71).standard_normal((150, 6)).astype("float32") + 0.5
QUERIES = VECTORS[:23] + np.float32(0.1)
# Rounding differs with the number of queries side by side.
CLOSE = {"rtol": 2e-4, "atol": 1e-6}
LATE_MODES = ("off", "side", "default", "both", "random:7")


class Second(NumpyBackend):
    """A device that is not the first one."""

    name = "second"


class Broken(NumpyBackend):
    """A device that takes an index and then fails."""

    name = "broken:1"

    def top_k(self, *_):
        raise RuntimeError("the bus is gone.")


def built(backend="numpy", **options):
    return hg.build_index(VECTORS, neighbors=6, knn="exact", backend=backend, **options)


@pytest.fixture(scope="module")
def index():
    return built()


def lists(count=23):
    return hg.nearest_neighbors(VECTORS, QUERIES[:count], k=9, knn="exact", backend="numpy")


def ways(count=23):
    """The three ways to ask, for an index or for replicas."""
    near = lists(count)
    return {
        "search": lambda one, **options: one.search(QUERIES[:count], **options),
        "rerank": lambda one, **options: one.rerank(near.ids, near.similarities, **options),
        "search_items": lambda one, **options: one.search_items(range(50, 50 + count), **options),
    }


def assert_same(found, expected):
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, **CLOSE)
    if expected.report.residuals is not None:
        assert found.report.residuals.shape == expected.report.residuals.shape


@contextmanager
def watched(monkeypatch, before):
    """Calls ``before(state, part)`` ahead of every part; gives the list of what was answered."""
    ranked, seen = spreading.ranked, []

    def told(state, part, request):
        before(state, part)
        answer = ranked(state, part, request)
        seen.append((state.backend.name, part.count))
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(spreading, "ranked", told)
        yield seen


def both_begin():
    """For ``watched``: the first part of each of two devices waits for the other's."""
    barrier, begun = threading.Barrier(2, timeout=300), set()

    def wait(state, part):
        if state.backend.name not in begun:
            begun.add(state.backend.name)
            barrier.wait()

    return wait


# ---- answers


@pytest.mark.parametrize("way", ["search", "rerank", "search_items"])
@pytest.mark.parametrize("batch", [None, 4])
def test_replicas_answer_as_one_index_does(backend, index, way, batch):
    replicas = hg.Replicas(index, [backend, Second(), backend])
    expected = ways()[way](built(backend), k=20, accuracy=1e-5)
    found = ways()[way](replicas, k=20, accuracy=1e-5, batch=batch)
    assert_same(found, expected)
    assert type(found.ids) is type(found.scores) is type(found.report.residuals) is np.ndarray


@pytest.mark.parametrize("method", ["nn", "temporal", "truncated", "alpha-qe", "hybrid"])
def test_every_keyword_arrives(backend, index, method):
    options = {"k": 7, "method": method, "query_neighbors": 3, "batch": 6}
    expected = built(backend).search(QUERIES, **options)
    found = hg.Replicas(index, [backend, Second()]).search(QUERIES, **options)
    assert_same(found, expected)
    assert found.report.method == method
    assert (found.report.residuals is None) == (expected.report.residuals is None)


def test_other_filters_and_their_truncation_arrive(index):
    options = {"filter": hg.HeatKernel(3.0), "k": 5}
    expected = index.search(QUERIES, **options)
    found = hg.Replicas(index, ["numpy", Second()]).search(QUERIES, **options, batch=5)
    assert_same(found, expected)
    assert found.report.truncation == expected.report.truncation > 0


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_fewer_queries_than_devices(backend, index, count):
    replicas = hg.Replicas(index, [backend, Second(), backend, Second()])
    for name, way in ways(count).items():
        assert_same(way(replicas, k=5), ways(count)[name](index, k=5))


def test_order_is_kept_if_a_device_is_slow(monkeypatch, index):
    replicas = hg.Replicas(index, ["numpy", Second()])
    begin = both_begin()

    def slow(state, part):
        begin(state, part)
        if state.backend.name == "second":
            time.sleep(0.3)

    with watched(monkeypatch, slow) as seen:
        found = replicas.search(QUERIES, k=20, batch=2, accuracy=1e-5)
    assert_same(found, index.search(QUERIES, k=20, accuracy=1e-5))
    counts = {name: sum(m for one, m in seen if one == name) for name in ("numpy", "second")}
    assert counts["numpy"] > 2 * counts["second"] > 0
    assert sum(counts.values()) == len(QUERIES)


@pytest.mark.parametrize("count", [1, 2, 5, 23, 128, 129, 300, 1000])
@pytest.mark.parametrize("width", [1, 3, 128])
@pytest.mark.parametrize("devices", [1, 2, 3, 8])
def test_parts_are_even_and_cover_every_query_once(count, width, devices):
    bounds = spreading._bounds(count, width, devices)
    sizes = [stop - start for start, stop in bounds]
    assert [row for bound in bounds for row in range(*bound)] == list(range(count))
    assert 0 < min(sizes) <= max(sizes) <= min(width, min(sizes) + 1)
    assert sizes == sorted(sizes, reverse=True)
    assert len(bounds) % devices == 0 or len(bounds) == count
    # Not more of them than that takes: the graph is read once for all queries of a part.
    assert len(bounds) < count / width + devices


# ---- what is asked for


@pytest.mark.parametrize("way", ["search", "rerank", "search_items", "warm_up"])
def test_parameters_are_those_of_an_index(way):
    ours, theirs = getattr(hg.Replicas, way), getattr(hg.DiffusionIndex, way)
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert ours.__doc__
    assert ours.__doc__ != theirs.__doc__


def test_mistakes_are_told_as_an_index_tells_them(index):
    replicas = hg.Replicas(index, ["numpy", Second()])
    bad = QUERIES.copy()
    bad[17] = np.nan
    for ask in (
        lambda one: one.search(bad),
        lambda one: one.search(QUERIES[:, :3]),
        lambda one: one.search(QUERIES, k=0),
        lambda one: one.search(QUERIES, method="fsr"),
        lambda one: one.search(QUERIES, filter=lambda x: 1j * x),
        lambda one: one.search_items([3, 150]),
        lambda one: one.rerank([[1, 2]], [[1.5, 0.9]]),
    ):
        with pytest.raises(Exception) as theirs:  # noqa: PT011
            ask(index)
        with pytest.raises(theirs.type) as ours:
            ask(replicas)
        assert str(ours.value) == str(theirs.value)
    with pytest.raises(TypeError, match="unexpected keyword argument 'kk'"):
        replicas.search(QUERIES, kk=3)
    with pytest.raises(TypeError, match="query_neighbors"):
        replicas.search_items([1], query_neighbors=3)


def test_metric_is_applied_once(index):
    near = lists()
    expected = index.rerank(near.ids, near.similarities, k=9)
    found = hg.Replicas(index, ["numpy", Second()]).rerank(
        near.ids, 2 - 2 * near.similarities, metric="squared-l2", k=9, batch=5
    )
    np.testing.assert_array_equal(found.ids, expected.ids)


def test_backends_are_checked(index):
    with pytest.raises(ValueError, match="at least one"):
        hg.Replicas(index, [])
    with pytest.raises(TypeError, match=r"Pass \['cupy:0', 'cupy:1'\]"):
        hg.Replicas(index, "cupy:0,cupy:1")
    with pytest.raises(ValueError, match="gpu"):
        hg.Replicas(index, ["numpy", "gpu"])


def test_a_device_named_twice_holds_one_copy(backend, index):
    replicas = hg.Replicas(index, [backend, backend, "numpy"])
    first, second, third = replicas.indexes
    assert first is second
    assert third is index
    assert replicas.n == 150
    assert repr(replicas) == f"Replicas(150 items on {backend.name},{backend.name},numpy)"


def test_without_names_it_is_every_gpu_or_numpy(monkeypatch, index):
    monkeypatch.delenv("HYBRID_GPU_BACKEND", raising=False)
    monkeypatch.setattr(hg.backends, "_gpu_count", lambda: 0)
    assert repr(hg.Replicas(index)) == "Replicas(150 items on numpy)"
    monkeypatch.setattr(hg.backends, "_gpu_count", lambda: 2)
    monkeypatch.setattr(hg.backends, "_cupy", [NumpyBackend(), Second()].__getitem__)
    assert repr(hg.Replicas(index)) == "Replicas(150 items on numpy,second)"
    monkeypatch.setenv("HYBRID_GPU_BACKEND", "numpy")
    assert repr(hg.Replicas(index)) == "Replicas(150 items on numpy)"


def test_queries_on_a_device_are_refused(gpu, index):
    replicas, there = hg.Replicas(index, [gpu, "numpy"]), gpu.asarray(QUERIES)
    with pytest.raises(hg.DeviceMismatchError, match=r"cupy\.asnumpy"):
        replicas.search(there)
    with pytest.raises(hg.DeviceMismatchError, match=r"cupy\.asnumpy"):
        replicas.rerank(lists().ids, gpu.asarray(lists().similarities))


def test_the_example_runs():
    assert doctest.testmod(replicas_module).failed == 0


# ---- reports


def test_report_is_of_the_whole_set(monkeypatch, index):
    one = index.search(QUERIES, accuracy=1e-6, steps=6)
    with watched(monkeypatch, both_begin()):
        many = hg.Replicas(index, ["numpy", Second()]).search(
            QUERIES, accuracy=1e-6, steps=6, batch=4
        )
    report = many.report
    assert report.backend == "numpy,second"
    assert report.batch == 4
    assert (report.method, report.accuracy, report.steps) == ("hybrid", 1e-6, 6)
    np.testing.assert_allclose(report.residuals, one.report.residuals, rtol=0.01)
    assert report.notes[:-1] == one.report.notes[:-1] == index.state.notes
    assert report.notes[-1].startswith(one.report.notes[-1].partition(";")[0])
    assert set(report.seconds) == {"observe", "solve", "rank"}
    assert report.total_seconds > 0


def test_only_devices_that_answered_are_named(index):
    ranking = hg.Replicas(index, ["numpy", Second()]).search(QUERIES[:1])
    assert ranking.report.backend == "numpy"


def test_steps_are_the_most_and_seconds_those_of_the_longest_device():
    def answer(replica, seconds, steps, notes=(), backend="a"):
        report = hg.Report("nn", steps, None, None, None, seconds, backend, 2, notes)
        return spreading._Answer(hg.Ranking(np.zeros((1, 1)), np.ones((1, 1)), report), replica, 0)

    states = [built(device).state for device in (NumpyBackend(), Second())]
    merged = spreading._merged(
        [
            answer(0, {"observe": 3.0, "solve": 1.0}, 4, ("shared", "only here")),
            answer(1, {"observe": 1.0, "solve": 2.0}, 9, ("shared",), "b"),
            answer(1, {"observe": 1.5, "solve": 2.0}, 2, (), "b"),
        ],
        states,
    ).report
    assert merged.seconds == {"observe": 2.5, "solve": 4.0}
    assert merged.steps == 9
    assert merged.notes == ("shared", "a: only here")
    assert merged.backend == "numpy,second"


def test_a_device_with_little_memory_halves_its_batch_once(monkeypatch, index):
    full, begin = [], both_begin()

    class Small(Second):
        def top_k(self, scores, k, numbering=None):
            if scores.shape[0] > 2:
                full.append(scores.shape)
                raise MemoryError
            return super().top_k(scores, k, numbering)

    def slow(state, part):
        begin(state, part)
        if state.backend.name == "numpy":  # so that the other one takes more than one part
            while not seen:
                time.sleep(0.01)

    with watched(monkeypatch, slow) as seen:
        found = hg.Replicas(index, ["numpy", Small()]).search(QUERIES, k=9, batch=4)
    np.testing.assert_array_equal(found.ids, index.search(QUERIES, k=9).ids)
    assert found.report.notes[-1:] == (
        "second: out of memory with 4 queries at once: went on with 2",
    )
    assert len(full) == 1


def test_progress_counts_the_whole_set_and_is_called_by_one_thread_at_a_time(backend, index):
    told, inside = [], threading.Lock()

    def progress(stage, done, total):
        assert inside.acquire(blocking=False)
        time.sleep(0.002)
        told.append((stage, done, total))
        inside.release()

    hg.Replicas(index, [backend, Second()]).search(QUERIES, batch=2, progress=progress)
    assert {(stage, total) for stage, _, total in told} == {("search", 23)}
    counts = [done for _, done, _ in told]
    assert counts[0] == 0
    assert counts[-1] == 23
    assert counts == sorted(set(counts))


# ---- failures


@pytest.mark.parametrize("place", [0, 1])
def test_a_device_that_fails_is_named_and_the_others_stop(monkeypatch, index, place):
    devices = [Second()]
    devices.insert(place, Broken())
    begin = both_begin()

    def slow(state, part):
        begin(state, part)
        time.sleep(0.05 * (state.backend.name == "second"))

    wording = r"^broken:1 failed on queries \d+ to"
    with (
        watched(monkeypatch, slow) as seen,
        pytest.raises(hg.ReplicaError, match=wording) as caught,
    ):
        hg.Replicas(index, devices).search(QUERIES, batch=1)
    fault = caught.value
    assert fault.backend == "broken:1"
    assert isinstance(fault.__cause__, RuntimeError)
    assert "RuntimeError: the bus is gone. Leave this device out" in str(fault)
    assert len(seen) < 5


@pytest.mark.parametrize("kind", [ValueError, TypeError])
def test_what_is_wrong_with_a_request_is_not_blamed_on_a_device(monkeypatch, index, kind):
    def refuse(state, part):
        raise kind("a filter of the user's own")

    with watched(monkeypatch, refuse), pytest.raises(kind, match=r"^a filter of the user's own$"):
        hg.Replicas(index, ["numpy", Second()]).search(QUERIES)


def test_a_device_that_cannot_take_the_index_is_named(index):
    class Full(Broken):
        def asarray(self, *_, **__):
            raise MemoryError

    with pytest.raises(hg.ReplicaError, match="broken:1 could not take the index: MemoryError"):
        hg.Replicas(index, ["numpy", Full()])


def test_a_device_that_fails_to_warm_up_is_named(backend, index):
    hg.Replicas(index, [backend, Second()]).warm_up()
    with pytest.raises(hg.ReplicaError, match="broken:1 failed: RuntimeError"):
        hg.Replicas(index, [backend, Broken()]).warm_up()


def test_a_missed_rtol_carries_the_whole_ranking(backend, index):
    with pytest.raises(hg.ConvergenceError) as theirs:
        index.search(QUERIES, k=20, rtol=1e-6, steps=3)
    with pytest.raises(hg.ConvergenceError) as ours:
        hg.Replicas(index, [backend, Second()]).search(QUERIES, k=20, rtol=1e-6, steps=3, batch=4)
    assert str(ours.value) == str(theirs.value)
    assert_same(ours.value.result, theirs.value.result)
    assert ours.value.result.report.residuals.shape == (23,)
    found = hg.Replicas(index, [backend, Second()]).search(QUERIES, k=20, rtol=1e-3, batch=4)
    assert_same(found, index.search(QUERIES, k=20, rtol=1e-3))


@pytest.mark.parametrize("fault", [KeyboardInterrupt, ZeroDivisionError])
def test_what_progress_raises_ends_the_search_as_it_is(monkeypatch, index, fault):
    def progress(stage, done, total):
        if done:
            raise fault

    with watched(monkeypatch, both_begin()) as seen, pytest.raises(fault):
        hg.Replicas(index, ["numpy", Second()]).search(QUERIES, batch=1, progress=progress)
    assert len(seen) <= 4


@pytest.fixture
def interrupts():
    """Ctrl-C as in a terminal: a process in the background of a script begins without it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_the_caller_waits_ends_all(monkeypatch, index, interrupts):
    begin, done = both_begin(), []

    def interrupting(state, part):
        begin(state, part)
        if state.backend.name == "second":
            while len(seen) < 3:  # the caller answers everything else, and then waits
                time.sleep(0.01)
            time.sleep(0.1)
            _thread.interrupt_main()
            time.sleep(0.1)
            done.append(part)

    with watched(monkeypatch, interrupting) as seen, pytest.raises(KeyboardInterrupt):
        hg.Replicas(index, ["numpy", Second()]).search(QUERIES, batch=6)
    assert len(done) == 1
    assert [name for name, _ in seen] == ["numpy"] * 3 + ["second"]  # it was waited for
    assert not [one for one in threading.enumerate() if "replica" in one.name]


def test_replicas_can_be_searched_after_a_failure(monkeypatch, index):
    replicas = hg.Replicas(index, ["numpy", Second()])
    with monkeypatch.context() as patched:
        patched.setattr(Second, "top_k", Broken.top_k)
        with watched(patched, both_begin()), pytest.raises(hg.ReplicaError):
            replicas.search(QUERIES)
    assert_same(replicas.search(QUERIES, k=5), index.search(QUERIES, k=5))


# ---- threads and processes


def test_many_threads_may_search(backend, index):
    replicas = hg.Replicas(index, [backend, Second()])
    expected = index.search(QUERIES, k=9, accuracy=1e-5)
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(replicas.search, QUERIES, k=9, accuracy=1e-5, batch=5) for _ in range(8)
        ]
        for one in asked:
            assert_same(one.result(), expected)


def test_the_caller_is_enough_if_the_system_gives_no_threads(monkeypatch, index):
    def refused(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    found = hg.Replicas(index, ["numpy", Second()]).search(QUERIES, k=9, batch=5)
    assert_same(found, index.search(QUERIES, k=9))
    assert found.report.backend == "numpy"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_replicas_work_in_a_forked_child_and_after_the_main_thread():
    script = """
        import os, threading
        import numpy as np
        import hybrid_gpu as hg
        vectors = np.random.default_rng(5).standard_normal((900, 16)).astype("float32")
        index = hg.build_index(vectors, neighbors=10, knn="exact", backend="numpy")
        replicas = hg.Replicas(index, ["numpy"] * 3)
        expected = index.search(vectors[:100], k=10)
        def same():
            return (replicas.search(vectors[:100], k=10, batch=10).ids == expected.ids).all()
        assert same()
        child = os.fork()
        if child == 0:
            os._exit(0 if same() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        def late():
            threading.main_thread().join()
            print("right" if same() else "wrong")
        threading.Thread(target=late).start()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "right"


# ---- two GPUs


def on_two_devices():
    """What runs in a process with two devices."""
    import cupy

    index, devices = built(), ["cupy:0", "cupy:1"]
    replicas, patches = hg.Replicas(index, devices), pytest.MonkeyPatch()
    assert repr(hg.Replicas(index)) == repr(replicas) == "Replicas(150 items on cupy:0,cupy:1)"
    replicas.warm_up()
    for way in ways().values():
        expected = way(index.to("cupy:0"), k=20, accuracy=1e-5)
        for batch in (None, 3):
            with watched(patches, both_begin()) as seen:
                found = way(replicas, k=20, accuracy=1e-5, batch=batch)
            assert_same(found, expected)
            assert found.report.backend == "cupy:0,cupy:1"
            assert {name for name, _ in seen} == set(devices)
    with ThreadPoolExecutor(3) as pool:
        many = [
            pool.submit(replicas.search_items, range(50, 73), k=20, accuracy=1e-5, batch=4)
            for _ in range(6)
        ]
        for one in many:
            assert_same(one.result(), expected)
    with pytest.raises(hg.ConvergenceError) as missed:
        replicas.search(QUERIES, k=20, rtol=1e-6, steps=3, batch=4)
    assert_same(missed.value.result, index.search(QUERIES, k=20, steps=3))

    def lost(*_):
        raise cupy.cuda.runtime.CUDARuntimeError(700)  # cudaErrorIllegalAddress

    with patches.context() as patched:
        patched.setattr(replicas.indexes[1].backend, "top_k", lost)
        with watched(patched, both_begin()), pytest.raises(hg.ReplicaError) as failed:
            replicas.search(QUERIES, batch=2)
    assert failed.value.backend == "cupy:1"
    assert isinstance(failed.value.__cause__, cupy.cuda.runtime.CUDARuntimeError)
    assert_same(replicas.search_items(range(50, 73), k=20, accuracy=1e-5), expected)
    assert cupy.cuda.Device().id == 0, "another device is current now"


@pytest.mark.parametrize("mode", LATE_MODES)
def test_two_devices_answer_as_one_does(mode):
    cupy = pytest.importorskip("cupy")
    variables = dict(os.environ)
    try:
        import standin

        variables |= {"STANDIN_DEVICES": "2", "STANDIN_LATE": mode}
        del standin
    except ImportError:
        if mode != "off":
            pytest.skip("late streams are the stand-in's")
        if cupy.cuda.runtime.getDeviceCount() < 2:
            pytest.skip("there is no second GPU")
    done = subprocess.run(
        [sys.executable, __file__],
        env=variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def main():
    try:
        import standin
    except ImportError:
        on_two_devices()
        return
    with standin.watched_pools():
        on_two_devices()
    assert standin.counters()["released_under_copies"] == 0


if __name__ == "__main__":
    main()
