"""Processes that fork, run many threads, are interrupted, or are allowed little memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl
from children import Child, Ended
from common import Failure, Kind, Tally

import hybrid_gpu as hg
from hybrid_gpu.diffusion.spectrum import leading_eigenpairs
from hybrid_gpu.graph.neighbors import nearest_neighbors

try:
    import faiss  # its threads do not live on in a forked child
except ImportError:
    faiss = None
try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_ITEMS, _DIMENSIONS, _K = 1_500, 16, 10
_FORKS_PER_TRIAL = 5
_NO_FORK = "" if hasattr(os, "fork") else "this system has no fork"
# The lists of a database that is large for the memory that is allowed.
_MANY, _LIST, _ASKED = 12_000, 30, 128
_MB = 1 << 20
# In so much memory a search gets through: all queries at once would take more.
_ENOUGH_TO_SEARCH = 16 * _MB
_MMAP_THRESHOLD = -3  # the name of glibc's mallopt


@cache
def _vectors() -> np.ndarray:
    rng = np.random.default_rng(19)
    centers = rng.standard_normal((30, _DIMENSIONS))
    noise = rng.standard_normal((_ITEMS, _DIMENSIONS))
    return (centers[rng.integers(0, 30, _ITEMS)] + 0.4 * noise).astype(np.float32)


@cache
def _index() -> hg.DiffusionIndex:
    return _built()


def _built() -> hg.DiffusionIndex:
    return hg.build_index(_vectors(), neighbors=_K, backend="numpy")


@cache
def _known(work: str, part: int) -> bytes:
    """What a piece of work gives when nothing else goes on."""
    return _WORK[work](part, Path())


def _answer(index: hg.DiffusionIndex, queries: Any) -> bytes:
    found = index.search(queries, k=_K)
    return np.asarray(found.ids).tobytes() + np.asarray(found.scores).tobytes()


def _search(part: int, folder: Path) -> bytes:
    # One query, and so many that their products are shared among threads.
    return _answer(_index(), _vectors()[part * 64 : part * 64 + (1, 16, 64)[part % 3]])


def _search_items(part: int, folder: Path) -> bytes:
    found = _index().search_items(np.arange(part, _ITEMS, 40), k=_K)
    return np.asarray(found.ids).tobytes() + np.asarray(found.scores).tobytes()


def _add(part: int, folder: Path) -> bytes:
    more = _index().add(_vectors()[part : part + 3] + np.float32(0.01))
    return _answer(more, _vectors()[:4])


def _build(part: int, folder: Path) -> bytes:
    return _answer(_built(), _vectors()[:4])


def _neighbors(part: int, folder: Path) -> bytes:
    knn = "exact" if faiss is None else "faiss"
    found = nearest_neighbors(_vectors()[:400], k=5, knn=knn, backend="numpy")
    return np.asarray(found.ids).tobytes()


@cache
def _cloud() -> hg.DiffusionIndex:
    """Items in one component, too many of them for a dense decomposition."""
    vectors = np.random.default_rng(29).standard_normal((_ITEMS, 6)).astype(np.float32)
    return hg.build_index(vectors, neighbors=20, backend="numpy")


def _eigenvalues() -> np.ndarray:
    return np.asarray(leading_eigenpairs(_cloud().state.graph, rank=12, seed=5).eigenvalues)


_known_eigenvalues = cache(_eigenvalues)


def _eigenpairs(part: int, folder: Path) -> bytes:
    # Not to the last bit: LAPACK rounds otherwise when it has fewer threads.
    found = _eigenvalues()
    return b"" if np.allclose(found, _known_eigenvalues(), rtol=0, atol=1e-5) else found.tobytes()


def _save(part: int, folder: Path) -> bytes:
    """An index that is saved and loaded again; nothing is written to answer what is known."""
    if folder == Path():
        return _search(part, folder)
    place = folder / f"index-{os.getpid()}-{threading.get_ident()}"
    _index().save(place)
    loaded = hg.load_index(place, backend="numpy")
    return _answer(loaded, _vectors()[part * 64 : part * 64 + (1, 16, 64)[part % 3]])


_WORK: dict[str, Callable[[int, Path], bytes]] = {
    "search": _search,
    "search_items": _search_items,
    "add": _add,
    "save": _save,
    "build": _build,
    "neighbors": _neighbors,
    "eigenpairs": _eigenpairs,
}
_PARTS = 6


def _warm() -> None:
    """Everything that is compared with, made before children are forked."""
    for work in _WORK:
        for part in range(_PARTS):
            _known(work, part)


def _faults_of(work: list[tuple[str, int]], folder: Path) -> list[tuple[str, str]]:
    """What is wrong with pieces of work, done one after the other."""
    found = []
    for name, part in work:
        try:
            if _WORK[name](part, folder) != _known(name, part):
                found.append(("wrong", f"{name} {part} gives another answer"))
        except Exception as fault:
            found.append(("foreign error", f"{name} {part}: {type(fault).__name__}: {fault}"))
    return found


def _drawn(rng: np.random.Generator, count: int, names: tuple[str, ...]) -> list[tuple[str, int]]:
    return [(str(rng.choice(names)), int(rng.integers(_PARTS))) for _ in range(count)]


def _failures(ended: Ended, told: str) -> list[Failure]:
    if ended.fault:
        return [Failure(ended.fault, f"{told}: {ended.detail}")]
    return [Failure(fault, f"{told}: {detail}") for fault, detail in ended.value]


# -- forks


def _forked(work: list[tuple[str, int]], folder: Path, generations: int) -> list[tuple[str, str]]:
    found = _faults_of(work, folder)
    if generations > 1:
        ended = Child(lambda: _forked(work, folder, generations - 1)).wait(50)
        found += [(one.fault, one.detail) for one in _failures(ended, "child of a child")]
    return found


def _forks(seed: int, folder: Path) -> Tally:
    if _NO_FORK:
        return Tally(0, skipped=_NO_FORK)
    _warm()
    rng = np.random.default_rng(seed)
    stop = threading.Event()
    found: list[tuple[str, str]] = []

    def search_on(work: list[tuple[str, int]]) -> None:
        while not stop.is_set():
            found.extend(_faults_of(work, folder))

    parents = ("search", "search_items", "neighbors")
    threads = [
        threading.Thread(target=search_on, args=(_drawn(rng, 3, parents),))
        for _ in range(int(rng.integers(1, 4)))
    ]
    for thread in threads:
        thread.start()
    failures = []
    try:
        for _ in range(_FORKS_PER_TRIAL):
            stop.wait(float(rng.uniform(0, 0.05)))
            work = _drawn(rng, 2, tuple(_WORK))
            generations = 2 if rng.random() < 0.2 else 1
            child = Child(lambda work=work, g=generations: _forked(work, folder, g))
            failures += _failures(child.wait(60), f"child that does {work}")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    failures += [Failure(fault, f"beside the forks: {detail}") for fault, detail in found]
    return Tally(_FORKS_PER_TRIAL, tuple(failures))


# -- threads


def _at_once(works: list[list[tuple[str, int]]], folder: Path) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    blas = _blas_threads()
    threads = [
        threading.Thread(target=lambda work=work: found.extend(_faults_of(work, folder)))
        for work in works
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if _blas_threads() != blas:
        found.append(("wrong", f"BLAS has {_blas_threads()} threads, and had {blas}"))
    return found


def _blas_threads() -> list[int]:
    loaded = threadpoolctl.threadpool_info()
    return [one["num_threads"] for one in loaded if one["user_api"] == "blas"]


def _threads(seed: int, folder: Path) -> Tally:
    if _NO_FORK:
        return Tally(0, skipped=_NO_FORK)
    _warm()
    rng = np.random.default_rng(seed)
    # Searches above all: that is what a service does.
    names = ("search", "search", "search", "search_items", "add", "save", "eigenpairs")
    works = [_drawn(rng, 3, names) for _ in range(int(rng.integers(2, 9)))]
    ended = Child(lambda: _at_once(works, folder)).wait(90)
    return Tally(1, tuple(_failures(ended, f"{len(works)} threads")))


# -- interrupts


def _build_eigen(part: int, folder: Path) -> bytes:
    index = hg.with_basis(_cloud(), "eigen", rank=20)
    return np.asarray(index.search_items([3, 7], k=_K).ids).tobytes()


def _save_over(part: int, folder: Path) -> bytes:
    _index().save(folder / "index")
    return b""


def _command(part: int, folder: Path) -> bytes:
    from typer.testing import CliRunner

    from hybrid_gpu.cli import app

    words = ["search", folder / "index", folder / "queries.npy", "--k", 5]
    ended = CliRunner().invoke(app, [str(word) for word in words])
    # Before the command itself begins, typer ends with the same code and no line; after the answer
    # is printed, the line stands below it.
    told = ended.output.endswith("interrupted.\n") and "Traceback" not in ended.output
    if ended.exit_code == 130 and (told or not ended.output):
        raise KeyboardInterrupt
    if ended.exit_code:
        raise RuntimeError(f"exit code {ended.exit_code}: {ended.output} {ended.exception!r}")
    return b""


_INTERRUPTED: dict[str, Callable[[int, Path], bytes]] = {
    **{name: _WORK[name] for name in ("search", "search_items", "build", "eigenpairs")},
    "build with eigenvectors": _build_eigen,
    "save": _save_over,
    "command": _command,
}


def _interrupted(name: str, seconds: float, folder: Path) -> list[tuple[str, str]]:
    """Do something again and again until a signal comes; then see whether all still works."""
    blas, found = _blas_threads(), []
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        # A second one, should Python have lost the first in a callback of its own.
        signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
        while True:
            _INTERRUPTED[name](2, folder)
    except KeyboardInterrupt:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    except Exception as fault:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        found.append(("foreign error", f"{name}: {type(fault).__name__}: {fault}"))
    if _blas_threads() != blas:
        found.append(("wrong", f"BLAS has {_blas_threads()} threads, and had {blas}"))
    found += _faults_of([("search", 2), ("search_items", 1)], folder)
    try:
        if _answer(hg.load_index(folder / "index", backend="numpy"), _vectors()[:1]) != _known(
            "search", 0
        ):
            found.append(("wrong", "the index in the folder answers otherwise"))
    except hg.HybridGpuError as fault:
        found.append(("lost", str(fault)))
    return found


def _interrupts(seed: int, folder: Path) -> Tally:
    if _NO_FORK:
        return Tally(0, skipped=_NO_FORK)
    _warm()
    rng = np.random.default_rng(seed)
    _index().save(folder / "index")
    np.save(folder / "queries.npy", _vectors()[:40])
    name = str(rng.choice(list(_INTERRUPTED)))
    seconds = float(rng.uniform(0.001, 0.3))
    ended = Child(lambda: _interrupted(name, seconds, folder)).wait(60)
    return Tally(1, tuple(_failures(ended, f"{name}, interrupted after {seconds:.3f} s")))


# -- memory


@cache
def _lists() -> tuple[np.ndarray, np.ndarray]:
    """k-NN lists of items on a ring, which nobody has to search for."""
    steps = np.concatenate([np.arange(1, _LIST // 2 + 1), -np.arange(1, _LIST // 2 + 1)])
    ids = (np.arange(_MANY)[:, None] + steps[np.argsort(np.abs(steps), kind="stable")]) % _MANY
    noise = np.random.default_rng(23).uniform(0, 0.01, ids.shape)
    return ids, (1 / (1 + np.arange(_LIST) // 2) - noise).astype(np.float32)


@cache
def _large_index() -> hg.DiffusionIndex:
    # glibc keeps what was freed once, and a child would live on that whatever its limit is: arrays
    # shall come from the system and go back to it.
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 17)
    return hg.build_index_from_neighbors(*_lists(), backend="numpy")


def _large_answer(index: hg.DiffusionIndex) -> np.ndarray:
    asked = np.linspace(0, _MANY - 1, _ASKED).astype(int)
    return np.asarray(index.search_items(asked, k=_K, steps=3).scores)


@cache
def _large_known() -> np.ndarray:
    return _large_answer(_large_index())


def _with_little_memory(build: bool, room: int) -> list[tuple[str, str]]:
    """Build or search: right, or a MemoryError where there is too little for any batch."""
    try:
        index = hg.build_index_from_neighbors(*_lists(), backend="numpy") if build else None
        found = _large_answer(index or _large_index())
    except MemoryError as fault:
        enough = not build and room >= _ENOUGH_TO_SEARCH
        return [("wrong", f"no smaller batch was tried: {fault}")] if enough else []
    except Exception as fault:
        return [("foreign error", f"{type(fault).__name__}: {fault}")]
    # A narrower batch may round otherwise.
    if not np.allclose(found, _large_known(), rtol=1e-3, atol=1e-6):
        return [("wrong", "other scores in little memory")]
    return []


def _ulimits(seed: int, folder: Path) -> Tally:
    if _NO_FORK or resource is None or not os.path.exists("/proc/self/statm"):
        return Tally(0, skipped=_NO_FORK or "needs Linux to tell what is taken")
    rng = np.random.default_rng(seed)
    _large_known()
    build, room = bool(rng.random() < 0.5), int(rng.integers(1, 80)) * _MB

    def work() -> list[tuple[str, str]]:
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + room,) * 2)
        return _with_little_memory(build, room)

    what = "build" if build else "search"
    ended = Child(work).wait(90)
    return Tally(1, tuple(_failures(ended, f"{what} with {room // _MB} MB of address space")))


@contextlib.contextmanager
def _memory_group(bytes_at_most: int) -> Iterator[Path]:
    """A control group below our own, with a limit of memory; a skip is a PermissionError."""
    from hybrid_gpu.backends.host_memory import _group_folders, _text

    groups = _group_folders(_text("/proc/self/cgroup"), _text("/proc/self/mountinfo"))
    for version, own in groups:
        limit = "memory.max" if version == "cgroup2" else "memory.limit_in_bytes"
        group = Path(own) / f"hybrid-gpu-campaign-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if not (group / limit).exists():
                continue  # version 2 gives no limits below a group that has processes
            (group / limit).write_text(str(bytes_at_most))
            yield group
            return
        finally:
            group.rmdir()
    raise PermissionError("no control group of memory can be made here")


def _cgroups(seed: int, folder: Path) -> Tally:
    if _NO_FORK or not os.path.exists("/proc/self/cgroup"):
        return Tally(0, skipped=_NO_FORK or "this system has no control groups")
    rng = np.random.default_rng(seed)
    _large_known()
    # Below this, Python itself does not fit.
    build, room = bool(rng.random() < 0.5), int(rng.integers(24, 160)) * _MB
    what = "build" if build else "search"
    try:
        with _memory_group(room) as group:

            def work() -> list[tuple[str, str]]:
                (group / "cgroup.procs").write_text(str(os.getpid()))
                return _with_little_memory(build, room)

            failures = _failures(Child(work).wait(90), f"{what} in a group of {room // _MB} MB")
    except OSError as fault:
        return Tally(0, skipped=f"a control group needs root: {fault}")
    return Tally(1, tuple(failures))


KINDS = (
    Kind(
        name="forks",
        promise="A forked child searches, builds and saves as its parent does, whatever the "
        "parent's threads were at.",
        unit="forks",
        short=10,
        long=50,
        trial=_forks,
    ),
    Kind(
        name="threads",
        promise="Threads that search, add and save at once get, to the last bit, the answers that "
        "one alone gets.",
        unit="runs",
        short=6,
        long=200,
        trial=_threads,
    ),
    Kind(
        name="interrupts",
        promise="Ctrl-C is a KeyboardInterrupt at once; what is saved stays whole, and the "
        "process can go on.",
        unit="interrupts",
        short=20,
        long=200,
        trial=_interrupts,
    ),
    Kind(
        name="ulimits",
        promise="A process with a limit of address space works in smaller batches, or raises "
        "MemoryError.",
        unit="limits",
        short=12,
        long=50,
        trial=_ulimits,
    ),
    Kind(
        name="cgroups",
        promise="A process in a control group with little memory works in smaller batches, or "
        "raises MemoryError; it is never killed.",
        unit="limits",
        short=12,
        long=50,
        trial=_cgroups,
    ),
)
