"""How near to the speed of its memory a GPU runs each operation, beside what our model says.

The model (``bench/gpu_model.py``) was never held against a GPU of ours: its figures come with the
package, so that whoever has one sees where it is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from hybrid_gpu.backends import Backend
from hybrid_gpu.progress import Progress

# What the model is of.
ITEMS, COLUMNS = 1_000_000, (16, 64, 128)
_ENTRIES, _WINDOW = 24, 128  # of a row, and how far away its neighbors are
_GROUP, _GROUPS_OF_A_ROW = 256, 8
_BEST = 100
_RUNS = 5  # the fastest counts
_COPIED = 1 << 28


@dataclass(frozen=True, slots=True)
class KernelSpeed:
    """One operation on arrays of some columns.

    Attributes
    ----------
    operation : str
    columns : int
    least_bytes : int
        What it must read and write, each byte once.
    milliseconds : float
        Of the fastest run, by CUDA events.
    of_copy, of_stated : float
        ``least_bytes`` in that time, as a part of what a copy reaches, and of what the memory has
        on paper; NaN if that is not told.
    modelled : mapping of str to float
        The part of the bandwidth on paper that the model says, by GPU.
    """

    operation: str
    columns: int
    least_bytes: int
    milliseconds: float
    of_copy: float
    of_stated: float
    modelled: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """A device, the bandwidths of its memory in bytes per second, and its operations.

    ``stated`` is NaN where the device does not tell; ``is_gpu`` is False on the stand-in.
    """

    device: str
    is_gpu: bool
    items: int
    copied: float
    stated: float
    operations: tuple[KernelSpeed, ...]


def model_table() -> dict[str, Any]:
    """The figures of the model that come with the package: see ``bench/gpu_model_package.py``."""
    text = (files("hybrid_gpu.lab") / "gpu_model.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def modelled_parts(operation: str, columns: int, name: str) -> dict[str, float]:
    """The model's part of the bandwidth by GPU: for the device of this name, or for all."""
    parts = {
        row["device"]: float(row["of_bandwidth"])
        for row in model_table()["rows"]
        if (row["kernel"], row["columns"]) == (operation, columns)
    }
    own = {gpu: part for gpu, part in parts.items() if re.search(rf"\b{gpu}\b", name)}
    return own or parts


def device_speed(backend: Backend, *, size: int, progress: Progress | None = None) -> DeviceSpeed:
    """Measure the operations of a search on the GPU of a backend.

    On a million items, or fewer if its memory is small; on the stand-in, on ``size`` of them.
    """
    # Imports CuPy, which is there if the backend is.
    from hybrid_gpu.backends import device_speed as speed

    name = speed.device_name(backend.device)
    is_gpu = speed.STANDIN not in name
    columns = COLUMNS if is_gpu else COLUMNS[:1]
    room = backend.available_bytes() // 2
    items = min(ITEMS, room // (24 * max(columns) + 16 * _ENTRIES)) if is_gpu else size
    copied = speed.copy_bandwidth(backend.device, min(_COPIED, room // 2), _RUNS)
    stated = speed.stated_bandwidth(backend.device) or float("nan")
    found, matrices = [], _matrices(backend, int(items))
    for number, m in enumerate(columns):
        if progress:
            progress("speed", number, len(columns))
        for operation, least, run in _operations(backend, matrices, m):
            ms = speed.fastest_ms(run, backend.device, _RUNS)
            rate = least / max(ms / 1e3, 1e-9)
            modelled = modelled_parts(operation, m, name)
            found.append(
                KernelSpeed(operation, m, least, ms, rate / copied, rate / stated, modelled)
            )
    if progress:
        progress("speed", len(columns), len(columns))
    return DeviceSpeed(name, is_gpu, int(items), copied, stated, tuple(found))


@dataclass(frozen=True, slots=True, eq=False)
class _Matrices:
    """A ring whose items list some near them, as in an index's own order, and groups of them.

    ``restrict`` (groups, n) adds up a group, ``spread`` (n, 2 groups) lists the groups around an
    item, as the two matrices of a basis of groups do.
    """

    adjacency: Any
    restrict: Any
    spread: Any


def _matrices(backend: Backend, n: int) -> _Matrices:
    rng, items = np.random.default_rng(103), np.arange(n)[:, None]
    near = np.sort((items + rng.integers(-_WINDOW, _WINDOW + 1, (n, _ENTRIES))) % n, axis=1)
    groups, own = -(-n // _GROUP), items // _GROUP
    members = np.minimum(np.arange(groups * _GROUP), n - 1).reshape(groups, _GROUP)
    around = np.sort((own + rng.integers(-4, 5, (n, _GROUPS_OF_A_ROW))) % groups, axis=1)
    return _Matrices(
        adjacency=_csr(backend, near, n),
        restrict=_csr(backend, members, n),
        spread=_csr(backend, np.concatenate([own, groups + around], axis=1), 2 * groups),
    )


def _operations(
    backend: Backend, matrices: _Matrices, m: int
) -> Iterator[tuple[str, int, Callable[[], Any]]]:
    """Operations on (n, m) arrays of float32: the model's name, the least bytes, and the work."""
    adjacency, restrict, spread = matrices.adjacency, matrices.restrict, matrices.spread
    (groups, n), rng = restrict.shape, np.random.default_rng(107)
    x, r, p, q = (backend.asarray(rng.random((n, m), dtype=np.float32)) for _ in range(4))
    both = backend.asarray(rng.random((2 * groups, m), dtype=np.float32))
    step, dense, coarse = backend.asarray(rng.random(m)), 4 * n * m, 4 * groups * m
    k = min(_BEST, n)
    product, added, taken_off = (_csr_bytes(one) for one in (adjacency, restrict, spread))
    yield (
        "laplacian_step",
        product + 2 * dense,
        lambda: backend.laplacian_step(adjacency, p, 0.9),
    )
    yield "cg_update", 6 * dense, lambda: backend.cg_update(x, r, p, q, step)
    yield "cg_direction", 3 * dense, lambda: backend.cg_direction(r, p, step)
    yield "csr_spmm, restrict", added + dense + coarse, lambda: backend.spmm(restrict, r)
    yield (
        "csr_spmm, subtract",
        taken_off + 2 * dense + 2 * coarse,
        lambda: backend.subtract_spmm(q, spread, both),
    )
    yield "top-k", dense + 12 * m * k, lambda: backend.top_k(x.T, k)


def _csr(backend: Backend, columns: Any, width: int) -> Any:
    """A matrix of weights 1 / count whose rows list the given columns."""
    n, count = columns.shape
    data = backend.asarray(np.full(n * count, 1 / count, np.float32))
    indices = backend.asarray(columns.reshape(-1).astype(np.int32))
    indptr = backend.asarray(np.arange(0, n * count + 1, count, dtype=np.int32))
    return backend.csr(data, indices, indptr, (n, width))


def _csr_bytes(matrix: Any) -> int:
    return 8 * int(matrix.data.shape[0]) + 4 * int(matrix.indptr.shape[0])
