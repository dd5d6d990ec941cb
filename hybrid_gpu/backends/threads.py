"""Threads of the host: how many there are, work shared among them, and BLAS kept out of it.

A process may fork, may call us from many threads of its own, and may go on in one of them after
its main thread has ended: in all of these, work is done, by the caller alone if need be.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import threadpoolctl

K = TypeVar("K")
T = TypeVar("T")

# Threads that are in for_each now.
_callers: set[int] = set()


# What this process was told to keep to; None: nothing.
_limit: int | None = None


def thread_count() -> int:
    """Threads that this process may run at once: its cores, or fewer if it was told so."""
    if _limit is not None:
        return _limit
    return min(core_count(), told_threads() or core_count())


@cache
def core_count() -> int:
    """Cores that the system gives to this process."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows
        return os.cpu_count() or 1


@cache
def told_threads() -> int | None:
    """What ``HYBRID_GPU_THREADS`` says; None if it says nothing."""
    told = os.environ.get("HYBRID_GPU_THREADS", "")
    if not told:
        return None
    if not told.isdecimal() or int(told) < 1:
        raise ValueError(f"HYBRID_GPU_THREADS must be a number of at least 1; got {told!r}.")
    return int(told)


def limit_threads(count: int | None) -> None:
    """Hold this process to so many threads; None: to its cores.

    For processes that share a machine: with more threads than cores, they push each other aside.
    """
    global _limit
    _limit = count


def for_each(function: Callable[[T], Any], items: Iterable[T]) -> None:
    """Call a function for every item, on several threads.

    The caller works too and waits for nobody who has not begun, so that it gets done whatever has
    become of the other threads.
    """
    work, own = _Work(function, items), threading.get_ident()
    _callers.add(own)
    try:
        # Callers share the cores: more threads than cores would only push each other aside.
        share = thread_count() // len(_callers)
        _call_helpers(work, min(share, len(work.items)) - 1)
        work.finish()
    finally:
        _callers.discard(own)


class _Work(Generic[T]):
    """Items that several threads take from, one by one."""

    def __init__(self, function: Callable[[T], Any], items: Iterable[T]) -> None:
        self.items = deque(items)
        self._function = function
        self._helpers = 0
        self._changed = threading.Condition()
        self._fault: BaseException | None = None

    def help(self) -> None:
        """Take part, if there is anything left."""
        with self._changed:
            if not self.items:
                return
            self._helpers += 1
        try:
            self._take_all()
        except BaseException as fault:
            self._fault = fault
        finally:
            with self._changed:
                self._helpers -= 1
                self._changed.notify_all()

    def finish(self) -> None:
        """Do what is left, and wait for those who are at it."""
        try:
            self._take_all()
        finally:
            self._wait()
        if self._fault is not None:
            raise self._fault

    def _wait(self) -> None:
        """Wait until nobody is at it, whatever comes in between."""
        # Native code reads the caller's arrays, which may go as soon as the caller does.
        interrupt: BaseException | None = None
        while True:
            try:
                with self._changed:
                    self._changed.wait_for(lambda: self._helpers == 0)
                break
            except BaseException as fault:
                interrupt = fault
                self.items.clear()
        if interrupt is not None:
            raise interrupt

    def _take_all(self) -> None:
        try:
            while True:
                try:
                    item = self.items.popleft()
                except IndexError:
                    return
                self._function(item)
        except BaseException:
            self.items.clear()  # nobody goes on with what has failed or was interrupted
            raise


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, thread_count() - 1), thread_name_prefix="hybrid_gpu")


def _call_helpers(work: _Work[Any], count: int) -> None:
    # RuntimeError: the interpreter is ending, or the system gives no more threads. The caller alone
    # is enough then.
    with suppress(RuntimeError):
        for _ in range(count):
            _pool().submit(work.help)


@dataclass(frozen=True, slots=True, eq=False)
class _Blas:
    """How to ask and tell a BLAS library how many threads it takes for a product."""

    threads: Callable[[], int]
    take: Callable[[int], object]
    per_thread: bool


class _SingleThreadedBlas:
    """BLAS on one thread, as long as any thread asks for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Not a number: Ctrl-C between two steps must not leave it one too high for ever.
        self._asking: set[int] = set()
        self._before: tuple[int, ...] = ()

    def __enter__(self) -> None:
        try:
            with self._lock:
                self._asking.add(threading.get_ident())
                if not self._before:
                    self._before = tuple(library.threads() for library in _blas_of_process())
                    _tell(_blas_of_process(), (1,) * len(self._before))
        except BaseException:
            self._release()
            raise

    def __exit__(self, *_: object) -> None:
        # Ctrl-C during a product is noticed right after it, which is here: then once more, or
        # the user's own products would stay on one thread.
        try:
            self._release()
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        with self._lock:
            self._asking.discard(threading.get_ident())
            if not self._asking:
                self.restore()

    def restore(self) -> None:
        """BLAS as the user has it."""
        _tell(_blas_of_process() if self._before else (), self._before)
        self._before = ()


_held = _SingleThreadedBlas()


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Hold BLAS to one thread while this thread multiplies.

    BLAS would take all threads for every product, whoever else is at work. Most libraries have one
    setting for the process: products of the user's own are held too while one of ours runs.
    """
    own = _blas_of_thread()
    before = tuple(library.threads() for library in own)
    with _held:
        try:
            _tell(own, (1,) * len(before))
            yield
        finally:
            _tell(own, before)


def _tell(libraries: tuple[_Blas, ...], threads: tuple[int, ...]) -> None:
    for library, count in zip(libraries, threads, strict=True):
        library.take(count)


@cache
def _blas_of_process() -> tuple[_Blas, ...]:
    return tuple(library for library in _all_blas() if not library.per_thread)


@cache
def _blas_of_thread() -> tuple[_Blas, ...]:
    return tuple(library for library in _all_blas() if library.per_thread)


@cache
def _all_blas() -> tuple[_Blas, ...]:
    """The libraries that are loaded; to look for them takes milliseconds, so once."""
    found = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    return tuple(_blas_of(library) for library in found)


def _blas_of(library: Any) -> _Blas:
    """How to ask a BLAS for its number of threads, and how to set it."""
    if library.internal_api == "mkl" or getattr(library, "threading_layer", "") == "openmp":
        return _Blas(library.get_num_threads, library.set_num_threads, per_thread=True)
    if library.internal_api == "openblas":
        # threadpoolctl lets only one thread of the process change the setting, without a word to
        # the others: ask the library itself. PyDLL keeps the GIL, for calls of a few instructions.
        loaded = ctypes.PyDLL(library.filepath)
        for name in ("", "64_", "_64"):
            for prefix in ("", "scipy_"):
                take = getattr(loaded, f"{prefix}openblas_set_num_threads{name}", None)
                if take is not None:
                    threads = getattr(loaded, f"{prefix}openblas_get_num_threads{name}")
                    return _Blas(threads, take, per_thread=False)
    return _Blas(library.get_num_threads, library.set_num_threads, per_thread=False)


class Kept(Generic[K, T]):
    """Values by key: made when first asked for, by one thread however many ask, and kept.

    Parameters
    ----------
    most
        Values to keep; what was asked for longest ago goes first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[K, T] = {}
        # The thread that makes a value may ask for another one on its way.
        self._lock = threading.RLock()
        _all_kept.add(self)

    def get(self, key: K, make: Callable[[], T]) -> T:
        """The value of a key; ``make`` is called if there is none."""
        with self._lock:
            value = self._values.pop(key) if key in self._values else make()
            self._values[key] = value  # at the end: the last to go
            for oldest in list(self._values)[: -self._most]:
                del self._values[oldest]
            return value

    def find(self, key: K) -> T | None:
        """The value of a key if it is there."""
        return self._values.get(key)

    def unlock(self) -> None:
        """Begin with a lock that nobody holds: the thread that held it is not in this process."""
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of its owner makes its own.
        return type(self), (self._most,)


_all_kept: WeakSet[Kept[Any, Any]] = WeakSet()


def _begin_anew() -> None:
    """In a forked child: threads stay behind, and locks as they were at that moment."""
    global _held
    _pool.cache_clear()
    _callers.clear()
    for kept in list(_all_kept):
        kept.unlock()
    _held.restore()
    _held = _SingleThreadedBlas()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_begin_anew)
