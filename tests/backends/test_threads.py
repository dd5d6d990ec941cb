"""Threads: what forks, interrupts, many callers and the end of the main thread do to our work."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import hybrid_gpu as hg
from hybrid_gpu.backends import threads
from hybrid_gpu.backends.numpy_backend import NumpyBackend
from hybrid_gpu.backends.threads import Kept

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

PREPARED = """
    import os, sys, threading
    import numpy as np
    import hybrid_gpu as hg
    from hybrid_gpu.backends import threads
    threads.thread_count = lambda: 2  # on a machine with one core too
    vectors = np.random.default_rng(5).standard_normal((3000, 16)).astype("float32")
    index = hg.build_index(vectors, neighbors=10, knn="exact", backend="numpy")
    expected = index.search(vectors[:100], k=10)
    def same():
        found = index.search(vectors[:100], k=10)
        return (found.ids == expected.ids).all() and (found.scores == expected.scores).all()
    def in_child(work):
        child = os.fork()
        if child == 0:
            os._exit(0 if work() else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def run_script(body):
    """Run a program in a process of its own; a hang is a failure."""
    script = textwrap.dedent(PREPARED) + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_fork
def test_a_forked_child_searches_and_has_threads_of_its_own():
    run_script("""
        def child():
            alone = threading.active_count()
            return same() and alone == 1 and threading.active_count() == 2
        assert threading.active_count() == 2
        assert in_child(child) == 0
        assert same()
    """)


@needs_fork
def test_a_child_forked_while_another_thread_multiplies_gets_its_answer():
    run_script("""
        end = threading.Event()
        def busy():
            while not end.is_set():
                same()
        others = [threading.Thread(target=busy) for _ in range(2)]
        for one in others:
            one.start()
        held = threads._held._lock
        for moment in range(6):
            if moment % 2:
                with held:  # the worst moment: a lock that nobody in the child would give back
                    code = in_child(same)
            else:
                code = in_child(same)
            assert code == 0, code
        end.set()
        for one in others:
            one.join()
    """)


@needs_fork
def test_a_child_forked_during_a_product_has_blas_as_the_user_has_it():
    run_script("""
        (blas, *_) = threads._all_blas()
        blas.take(2)
        with threads.single_threaded_blas():
            assert blas.threads() == 1
            assert in_child(lambda: blas.threads() == 2) == 0
    """)


def test_a_thread_searches_after_the_main_thread_has_ended():
    out = run_script("""
        def late():
            threading.main_thread().join()
            print("right" if same() else "wrong")
        threads._pool.cache_clear()
        threading.Thread(target=late).start()
    """)
    assert out.strip() == "right"


@pytest.fixture
def four_threads(monkeypatch):
    monkeypatch.setattr(threads, "thread_count", lambda: 4)
    pool = threads._pool
    pool.cache_clear()
    yield
    pool.cache_clear()


def test_every_item_is_done_once(four_threads):
    done = []
    threads.for_each(done.append, range(1000))
    assert sorted(done) == list(range(1000))


def test_no_thread_is_needed_but_the_callers(four_threads, monkeypatch):
    def refused():
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "_pool", refused)
    done = []
    threads.for_each(done.append, range(10))
    assert done == list(range(10))


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt])
def test_a_fault_in_any_thread_reaches_the_caller_and_ends_the_work(four_threads, fault):
    done = []
    together = threading.Barrier(2)

    def work(item):
        if item < 2:
            together.wait(10)  # two threads have begun
        if item == 1:
            raise fault("on purpose")
        done.append(item)

    with pytest.raises(fault, match="on purpose"):
        threads.for_each(work, range(100_000))
    assert len(done) < 99_999


def test_the_caller_waits_for_those_who_are_at_it(four_threads):
    begun, leave, done = threading.Event(), threading.Event(), []

    def work(item):
        if threading.current_thread() is threading.main_thread():
            begun.wait(10)
            leave.set()
            return
        begun.set()
        leave.wait(10)
        done.append(item)

    threads.for_each(work, range(2))
    assert len(done) == 1


def test_ctrl_c_while_the_caller_waits_does_not_leave_helpers_behind(four_threads, monkeypatch):
    # Native code of a helper reads arrays that go when the caller does.
    begun, go_on, ended = threading.Event(), threading.Event(), []
    own = threading.get_ident()

    def work(item):
        if threading.get_ident() == own:
            assert begun.wait(60)
        else:
            begun.set()
            assert go_on.wait(60)
            ended.append(item)

    class Interrupted(threading.Condition):
        def wait_for(self, predicate, timeout=None):
            if not go_on.is_set():
                go_on.set()
                raise KeyboardInterrupt
            return super().wait_for(predicate, timeout)

    monkeypatch.setattr(threading, "Condition", Interrupted)
    job = threads._Work(work, range(2))
    monkeypatch.undo()
    helper = threading.Thread(target=job.help)
    helper.start()
    assert begun.wait(60)
    with pytest.raises(KeyboardInterrupt):
        job.finish()
    assert len(ended) == 1
    helper.join(60)


def test_callers_share_the_cores(four_threads, monkeypatch):
    called = []
    monkeypatch.setattr(threads, "_call_helpers", lambda work, count: called.append(count))
    inside, leave = threading.Semaphore(0), threading.Event()

    def hold(_):
        inside.release()
        leave.wait(10)

    others = []
    for _ in range(4):
        others.append(threading.Thread(target=threads.for_each, args=(hold, range(8))))
        others[-1].start()
        assert inside.acquire(timeout=10)
    leave.set()
    for other in others:
        other.join()
    # Alone all four cores, then half of them, then one each.
    assert called == [3, 1, 0, 0]


def blas_threads():
    return [one.threads() for one in threads._all_blas()]


@pytest.fixture
def two_blas_threads():
    before = blas_threads()
    for one in threads._all_blas():
        one.take(2)
    yield
    for one, count in zip(threads._all_blas(), before, strict=True):
        one.take(count)


def test_blas_is_found_where_numpy_uses_it():
    names = str(np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"])
    if not any(known in names for known in ("openblas", "mkl", "blis")):
        pytest.skip(f"NumPy was built with {names}, which has no number of threads to set")
    assert threads._all_blas()


def test_blas_is_held_in_any_thread_and_given_back_by_the_last(two_blas_threads):
    first, second, seen = threading.Event(), threading.Event(), []

    def other():
        with threads.single_threaded_blas():
            seen.append(blas_threads())
            first.set()
            second.wait(10)
            seen.append(blas_threads())

    thread = threading.Thread(target=other)
    with threads.single_threaded_blas():
        thread.start()
        assert first.wait(10)
    second.set()
    thread.join()
    ones, twos = [1] * len(blas_threads()), [2] * len(blas_threads())
    assert seen == [ones, ones]
    assert blas_threads() == twos


def test_ctrl_c_while_blas_is_held_gives_it_back(two_blas_threads):
    with pytest.raises(KeyboardInterrupt), threads.single_threaded_blas():
        raise KeyboardInterrupt
    assert set(blas_threads()) <= {2}


@pytest.mark.parametrize(
    ("n", "p", "m"),
    [(1, 64, 40_000), (1500, 1500, 16), (3, 40, 30_000), (2000, 300, 129), (100, 20_000, 60)],
)
def test_products_have_the_same_bits_on_any_number_of_threads(monkeypatch, n, p, m):
    rng = np.random.default_rng(13)
    left = rng.standard_normal((n, p)).astype("float32")
    right = rng.standard_normal((m, p)).astype("float32").T
    results = []
    for count in (1, 4):
        monkeypatch.setattr(threads, "thread_count", lambda count=count: count)
        threads._pool.cache_clear()
        results.append(NumpyBackend().matmul(left, right))
    threads._pool.cache_clear()
    assert np.array_equal(*results)
    exact = left.astype("float64") @ right.astype("float64")
    # The rounding of p products of about 1, whichever BLAS adds them up.
    np.testing.assert_allclose(results[0], exact, rtol=1e-4, atol=3e-6 * p**0.5)


def test_products_start_no_threads_of_blas(two_blas_threads, monkeypatch):
    seen = []
    whole = np.matmul

    def watched(*arguments, **options):
        seen.append(blas_threads())
        return whole(*arguments, **options)

    monkeypatch.setattr(np, "matmul", watched)
    ones = np.ones((600, 600), dtype="float32")
    NumpyBackend().matmul(ones, ones)
    assert len(seen) > 1
    assert all(set(one) <= {1} for one in seen)


def test_eigensolver_starts_no_threads_of_blas(two_blas_threads, monkeypatch):
    seen = []

    def watch(owner, name):
        whole = getattr(owner, name)

        def watched(*arguments, **options):
            seen.append((name, *blas_threads()))
            return whole(*arguments, **options)

        monkeypatch.setattr(owner, name, watched)

    watch(np, "matmul")
    watch(np.linalg, "eigh")
    vectors = np.random.default_rng(5).standard_normal((1000, 4)).astype("float32")
    graph = hg.reciprocal_graph(hg.nearest_neighbors(vectors, k=10, knn="exact", backend="numpy"))
    hg.leading_eigenpairs(graph, rank=20, backend="numpy")  # of a block
    hg.leading_eigenpairs(graph, rank=400, backend="numpy")  # of all
    assert {name for name, *_ in seen} == {"matmul", "eigh"}
    assert all(set(counts) <= {1} for _, *counts in seen)


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_ctrl_c_while_blas_is_told_leaves_it_as_the_user_has_it(monkeypatch, call):
    counts, calls = [2, 2], []

    def library(number):
        def take(count):
            calls.append(count)
            if len(calls) == call:
                raise KeyboardInterrupt
            counts[number] = count

        return threads._Blas(lambda: counts[number], take, per_thread=False)

    found = (library(0), library(1))
    monkeypatch.setattr(threads, "_held", threads._SingleThreadedBlas())
    monkeypatch.setattr(threads, "_blas_of_process", lambda: found)
    monkeypatch.setattr(threads, "_blas_of_thread", tuple)
    with pytest.raises(KeyboardInterrupt), threads.single_threaded_blas():
        pass
    assert counts == [2, 2]


# What is kept -------------------------------------------------------------------------------------


def test_a_value_is_made_once_however_many_threads_ask():
    kept, made, together = Kept(2), [], threading.Barrier(8)

    def make():
        made.append(threading.get_ident())
        return object()

    def ask(_):
        together.wait()
        return kept.get("key", make)

    with ThreadPoolExecutor(8) as pool:
        values = set(pool.map(ask, range(8)))
    assert len(made) == len(values) == 1


def test_the_value_that_was_asked_for_longest_ago_goes_first():
    kept = Kept(2)
    for key in (1, 2, 1, 3):
        kept.get(key, lambda key=key: f"made for {key}")
    assert kept.find(2) is None
    assert (kept.find(1), kept.find(3)) == ("made for 1", "made for 3")


def test_a_value_that_failed_is_made_by_the_next_who_asks():
    kept = Kept(1)
    with pytest.raises(MemoryError):
        kept.get("key", lambda: (_ for _ in ()).throw(MemoryError))
    assert kept.get("key", lambda: 7) == 7


def test_a_copy_of_what_is_kept_begins_empty():
    kept = Kept(3)
    kept.get("key", threading.Lock)
    again = pickle.loads(pickle.dumps(kept))
    assert again.find("key") is None
    assert again.get("key", lambda: 5) == 5


@needs_fork
def test_a_child_forked_while_a_value_is_made_makes_its_own():
    run_script(
        """
        kept, begun, done = threads.Kept(1), threading.Event(), threading.Event()
        def slow():
            begun.set()
            return done.wait(30)
        worker = threading.Thread(target=kept.get, args=("key", slow))
        worker.start()
        begun.wait(30)
        code = in_child(lambda: kept.get("key", lambda: 2) == 2)
        done.set()
        worker.join()
        sys.exit(code)
        """
    )
