"""Diffusing every item once, so that a query becomes a sum of a few stored columns."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.columns import Columns
from hybrid_gpu.errors import ConvergenceError, IndexFileError
from hybrid_gpu.index import DiffusionIndex
from hybrid_gpu.progress import Progress
from hybrid_gpu.searching import Options, batch_width, search_own_items
from hybrid_gpu.storage import graph_checksum, write_synced
from hybrid_gpu.validation import check_count, check_positive

_STATE = "progress.json"


@dataclass(frozen=True, slots=True)
class Estimate:
    """What storing the columns will take: seconds of work, and bytes of memory or disk."""

    seconds: float
    bytes: int

    def __repr__(self) -> str:
        return f"Estimate({self.seconds / 60:.1f} minutes, {self.bytes / 1e6:.0f} MB)"


def estimate_precompute(
    index: DiffusionIndex, *, keep: int = 1000, rtol: float = 1e-3, batch: int | None = None
) -> Estimate:
    """What ``index.precompute`` will take, by the time of one batch."""
    keep = check_count(keep, "keep", high=index.n)
    width = batch_width(index, batch, index.n)
    # Items spread over the database: neighbors in it may all be of one easy kind.
    items = np.linspace(0, index.n - 1, width).astype(np.int64)
    start = time.perf_counter()
    _columns_of(index, items, keep, rtol, width)
    seconds = (time.perf_counter() - start) * index.n / width
    return Estimate(seconds, index.n * keep * (4 + np.dtype(index.dtype).itemsize))


def precompute(
    index: DiffusionIndex,
    *,
    keep: int = 1000,
    rtol: float = 1e-3,
    folder: str | os.PathLike[str] | None = None,
    batch: int | None = None,
    progress: Progress | None = None,
) -> DiffusionIndex:
    """The index with the best ``keep`` entries of every item's column; see the method."""
    keep = check_count(keep, "keep", high=index.n)
    rtol = check_positive(rtol, "rtol")
    width = batch_width(index, batch, index.n)
    store = _Store.open(index, keep, rtol, None if folder is None else Path(folder))
    for start in range(store.done, index.n, width):
        if progress:
            progress("precompute", start, index.n)
        stop = min(start + width, index.n)
        store.put(start, *_columns_of(index, np.arange(start, stop), keep, rtol, width))
        store.note(stop)
    if progress:
        progress("precompute", index.n, index.n)
    device = index.backend
    columns = Columns(device.asarray(store.ids), device.asarray(store.scores), index.alpha)
    return replace(index, columns=columns)


def _columns_of(
    index: DiffusionIndex, items: HostArray, keep: int, rtol: float, width: int
) -> tuple[HostArray, HostArray]:
    options = Options(k=keep, method="auto", rtol=rtol, batch=width, fill=False)
    try:
        ranking = search_own_items(index, items, options)
    except ConvergenceError as missed:
        # The last digits of single columns are no reason to throw hours of work away.
        ranking = missed.result
    reached = ranking.scores > 0
    return np.where(reached, ranking.ids, -1).astype(np.int32), np.where(reached, ranking.scores, 0)


@dataclass(slots=True)
class _Store:
    """Two arrays, in memory or in a folder, and how many of their rows are done."""

    ids: HostArray
    scores: HostArray
    done: int
    folder: Path | None
    settings: dict[str, object]

    @classmethod
    def open(cls, index: DiffusionIndex, keep: int, rtol: float, folder: Path | None) -> _Store:
        shape, dtype = (index.n, keep), np.dtype(index.dtype)
        settings: dict[str, object] = {
            "n": index.n,
            "keep": keep,
            "rtol": rtol,
            "alpha": index.alpha,
            "dtype": index.dtype,
            "graph": graph_checksum(index),
        }
        if folder is None:
            return cls(np.empty(shape, np.int32), np.empty(shape, dtype), 0, None, settings)
        folder.mkdir(parents=True, exist_ok=True)
        done = _rows_done(folder, settings)
        mode = "r+" if done else "w+"
        files = np.lib.format.open_memmap
        ids = files(folder / "ids.npy", mode=mode, dtype=np.int32, shape=shape)
        scores = files(folder / "scores.npy", mode=mode, dtype=dtype, shape=shape)
        return cls(ids, scores, done, folder, settings)

    def put(self, start: int, ids: HostArray, scores: HostArray) -> None:
        self.ids[start : start + len(ids)] = ids
        self.scores[start : start + len(ids)] = scores

    def note(self, done: int) -> None:
        """Say that so many rows are done, once they are on disk."""
        self.done = done
        if self.folder is None:
            return
        for array in (self.ids, self.scores):
            assert isinstance(array, np.memmap)
            array.flush()
        temporary = self.folder / f"{_STATE}.tmp"
        write_synced(temporary, json.dumps({**self.settings, "done": done}).encode())
        os.replace(temporary, self.folder / _STATE)


def _rows_done(folder: Path, settings: dict[str, object]) -> int:
    path = folder / _STATE
    if not path.is_file():
        strangers = [one.name for one in folder.iterdir() if one.suffix not in (".npy", ".tmp")]
        if strangers:
            raise IndexFileError(
                f"{folder}: the folder holds other files ({strangers[0]}); choose an empty one."
            )
        return 0
    try:
        state = json.loads(path.read_bytes())
        done = int(state.pop("done"))
    except (ValueError, KeyError, AttributeError, TypeError) as fault:
        raise IndexFileError(f"{path}: damaged ({fault!r}). Delete the folder.") from fault
    if state != settings:
        raise IndexFileError(
            f"{folder}: holds columns of another index or with other settings. Choose another "
            "folder, or delete this one."
        )
    return done
