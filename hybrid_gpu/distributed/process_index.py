"""The indexes that this process has open: each is opened once, whoever asks, and stays the same."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hybrid_gpu.backends import Backend, all_devices, select_backend
from hybrid_gpu.backends.threads import Kept, limit_threads, told_threads
from hybrid_gpu.errors import IndexFileError
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.factory import load_index
from hybrid_gpu.index.facts import header_signature, index_facts

# Indexes that a process keeps open. Jobs use one; two at a time, say, while a new one takes over.
_MOST_OPEN = 2
# How often it is opened again if somebody saves to it meanwhile.
_MOST_TRIES = 100


class WantedIndex(NamedTuple):
    """An index to open, and how; ``identity`` is None if any index will do."""

    path: str
    identity: str | None
    backend: str
    threads: int | None
    verify: bool


@dataclass(slots=True, eq=False)
class _OpenIndex:
    """An open index, which one it is, and what its header looked like on disk."""

    index: DiffusionIndex
    identity: str
    signature: tuple[int, ...]


_open: Kept[WantedIndex, _OpenIndex] = Kept(_MOST_OPEN)


def opened(wanted: WantedIndex) -> DiffusionIndex:
    """The index, opened on first use in this process.

    Raises
    ------
    IndexFileError
        If it is not there or damaged, or if it is not the one that was wanted: answers of two
        indexes must not be mixed.
    """
    found = _open.get(wanted, lambda: _opened_now(wanted))
    folder = Path(wanted.path)
    signature = header_signature(folder)
    if signature != found.signature:
        identity = index_facts(folder).identity
        if identity != found.identity:
            raise _replaced(wanted.path, found.identity, identity)
        found.signature = signature  # the same index, saved again
    return found.index


def _opened_now(wanted: WantedIndex) -> _OpenIndex:
    folder = Path(wanted.path)
    threads = own_threads() if wanted.threads is None else wanted.threads
    if threads is not None:
        limit_threads(threads)
    device = own_device(wanted.backend)
    for _ in range(_MOST_TRIES):
        signature, identity = header_signature(folder), index_facts(folder).identity
        if wanted.identity not in (None, identity):
            raise _replaced(wanted.path, str(wanted.identity), identity)
        index = load_index(folder, verify=wanted.verify, backend=device)
        # A save in between would have put another index in its place.
        if header_signature(folder) == signature:
            return _OpenIndex(index, identity, signature)
    raise IndexFileError(f"{folder}: another process saves to it without a pause.")


def _replaced(path: str, before: str, now: str) -> IndexFileError:
    return IndexFileError(
        f"{path}: the index was replaced by another one (it was {before}, and is {now}). Answers "
        "of both must not be mixed: finish with the index that the work began with, or begin anew."
    )


def own_device(backend: str) -> Backend:
    """The device of this process: the one that is named, or one of its own where there are some.

    ``"auto"`` and ``"cupy"`` leave the choice open. ``HYBRID_GPU_WORKER`` is the number of this
    worker, if it is set. Else, where somebody has set ``CUDA_VISIBLE_DEVICES``, as Ray and
    dask-cuda do for each of their workers, it is the first of those. Else it is counted by the
    number that Dask or ``multiprocessing`` gave to this process.
    """
    if backend not in ("auto", "cupy"):
        return select_backend(backend)
    devices = all_devices()
    if devices[0].name == "numpy":
        return select_backend(backend)  # which says what is missing, if CuPy was asked for
    return devices[device_number(len(devices))]


def device_number(devices: int) -> int:
    """Which of several devices this process takes."""
    told = os.environ.get("HYBRID_GPU_WORKER", "")
    if told.isdecimal():
        return int(told) % devices
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        return 0
    worker = _dask_worker()
    name = str(getattr(worker, "name", ""))
    if name.isdecimal():
        return int(name) % devices
    # ("SpawnProcess-3", and so on): the pools of Python count from 1.
    number = multiprocessing.current_process().name.rpartition("-")[2]
    return (int(number) - 1) % devices if number.isdecimal() else 0


def own_threads() -> int | None:
    """Threads that this process may take, as its engine has it; None: all cores.

    A Dask worker has its number of threads, a task or an actor of Ray its cores.
    ``HYBRID_GPU_THREADS`` comes before both.
    """
    if told_threads() is not None:
        return None
    worker = _dask_worker()
    if worker is not None:
        return int(worker.state.nthreads)
    return _ray_cores()


def _dask_worker() -> Any:
    """The Dask worker that this thread works for; None if there is none."""
    if "distributed.worker" not in sys.modules:  # not to import Dask only to hear no
        return None
    try:
        return importlib.import_module("distributed.worker").get_worker()
    except ValueError:
        return None


def _ray_cores() -> int | None:
    """The cores of the Ray task that this process works for; None if there is none."""
    ray: Any = sys.modules.get("ray")
    worker = getattr(getattr(ray, "_private", None), "worker", None)
    if worker is None or worker.global_worker.mode != worker.WORKER_MODE:
        return None
    # Not by OMP_NUM_THREADS: a process that goes on to another task keeps that of its first one.
    cores = ray.get_runtime_context().get_assigned_resources().get("CPU")
    return None if cores is None else max(1, int(cores))


def _begin_anew() -> None:
    """In a forked child: it opens its own, for a device of its own."""
    global _open
    _open = Kept(_MOST_OPEN)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_begin_anew)
