"""Diffusing every item once, so that a query becomes a sum of a few stored columns.

In a folder, ``progress.json`` says how many rows of the two array files are done, and their
checksums: what an interrupted run left is looked at before it is gone on with.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.errors import ConvergenceError, IndexFileError
from hybrid_gpu.files.folder_lock import own_folder, refuse_strangers
from hybrid_gpu.files.stored_arrays import (
    ArrayFile,
    checksum,
    file_checksum,
    mapped_array,
    read_head,
    read_json,
    write_head,
)
from hybrid_gpu.files.writing import replacing, reserve_space, sync_file, write_all
from hybrid_gpu.index.packing import graph_checksum
from hybrid_gpu.index.search import batch_width, search_own_items
from hybrid_gpu.progress import ProgressOption, as_progress
from hybrid_gpu.ranking.asking import requested
from hybrid_gpu.ranking.columns import Columns
from hybrid_gpu.ranking.request import Request
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.validation import check_count, check_positive

# The residual of columns that are solved whole: several of them are added up for a query.
_RESIDUAL = 1e-3
_FORMAT, _STATE = "hybrid-gpu columns", "progress.json"


def precomputed_columns(
    state: IndexState,
    *,
    keep: int,
    rtol: float | None,
    folder: str | os.PathLike[str] | None,
    batch: int | None,
    progress: ProgressOption,
) -> Columns:
    """The best ``keep`` entries of every item's column; see ``DiffusionIndex.precompute``."""
    progress = as_progress(progress)
    n = state.n
    keep = check_count(keep, "keep", high=n)
    width = batch_width(state, batch, n)
    order = state.backend.to_numpy(state.numbering.order)
    request = column_request(state, keep, rtol, width)
    columns_of = column_maker(state, request)
    # Once: with a relative path, a change of the working directory would lead elsewhere.
    place = None if folder is None else Path(folder).absolute()
    with _opened(state, request, place) as store:
        for start in range(store.done, n, width):
            if progress:
                progress("precompute", start, n)
            stop = min(start + width, n)
            store.put(*columns_of(order[start:stop]))
        if progress:
            progress("precompute", n, n)
        ids, scores = store.arrays()
    device = state.backend
    return Columns(device.asarray(ids), device.asarray(scores), state.alpha)


def check_columns_folder(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder that columns cannot be stored in, before anything is computed."""
    refuse_strangers(Path(folder).absolute(), _named_files)


def remove_columns(folder: str | os.PathLike[str]) -> None:
    """Remove what ``precompute`` stored, and the folder if it made that and it holds no more."""
    place = Path(folder).absolute()
    with own_folder(place, _named_files, patience=0.0) as own:
        state = _read_state(place) if os.path.lexists(place / _STATE) else {}
        ours = own.is_new or state.get("own_folder") is True
        own.dissolve(keep_folder=not ours)


def column_request(state: IndexState, keep: int, rtol: float | None, width: int) -> Request:
    """What is asked for the columns of some items: a residual, or, without one, what suits.

    That is a local search where one for so many items would be, and a residual elsewhere.
    """
    if rtol is None:
        request = requested(state, k=keep, batch=width, fill=False)
        if request.method.rank is not None:
            return request
        rtol = _RESIDUAL
    return requested(state, k=keep, rtol=check_positive(rtol, "rtol"), batch=width, fill=False)


def column_maker(
    state: IndexState, request: Request
) -> Callable[[HostArray], tuple[HostArray, HostArray]]:
    """What gives the best entries of the columns of some items: places and scores, (m, keep).

    Places are -1 where diffusion reaches no more.
    """
    places = state.backend.to_numpy(state.numbering.places)
    if state.keys is not None:
        state = replace(state, keys=None)  # items are asked for by ids

    def columns_of(items: HostArray) -> tuple[HostArray, HostArray]:
        try:
            ranking = search_own_items(state, items, request)
        except ConvergenceError as missed:
            # The last digits of single columns are no reason to throw hours of work away.
            ranking = missed.result
        reached = ranking.scores > 0
        stored = np.where(reached, places[ranking.ids], -1).astype(np.int32)
        return stored, np.where(reached, ranking.scores, 0)

    return columns_of


class _Store(Protocol):
    """Two arrays whose rows are filled from the first to the last."""

    @property
    def done(self) -> int:
        """How many rows are filled."""

    def put(self, ids: HostArray, scores: HostArray) -> None:
        """Fill the next rows."""

    def arrays(self) -> tuple[HostArray, HostArray]:
        """Both arrays."""


@contextmanager
def _opened(state: IndexState, request: Request, folder: Path | None) -> Iterator[_Store]:
    """Where rows are put: in memory, or in a folder that is owned until the work is done."""
    keep, stop = request.k, request.stop
    shape, dtypes = (state.n, keep), (np.dtype(np.int32), np.dtype(state.dtype))
    if folder is None:
        yield _Memory(np.empty(shape, dtypes[0]), np.empty(shape, dtypes[1]))
        return
    settings = {
        "format": _FORMAT,
        "n": state.n,
        "keep": keep,
        # No residual stands for columns that were searched locally.
        "rtol": stop.tolerance if stop.insists else None,
        "alpha": state.alpha,
        "dtype": state.dtype,
        "graph": graph_checksum(state),
        # Columns were stored by the user's ids before.
        "numbered": "by places",
    }
    # The other process may take hours: nobody wants to wait for that in silence.
    with own_folder(folder, _named_files, patience=0.0) as own, ExitStack() as stack:
        mark = own.begin()
        if (folder / _STATE).exists():
            written = _read_state(folder)
            if {part: written.get(part) for part in settings} != settings:
                raise IndexFileError(
                    f"{folder}: holds columns of another index or with other settings. Choose "
                    "another folder, or delete this one."
                )
        else:
            # Remembered from run to run: an empty folder that the user made is not removed.
            made = {"own_folder": own.is_new}
            written = {**settings, **made, "done": 0, "mark": mark, "checksums": [0, 0]}
            try:
                _reserve(folder, mark, shape, dtypes)
                _write_state(folder, written)
            except BaseException:
                own.sweep()
                raise
        paths = [folder / name for name in _array_files(written["mark"])]
        files = [stack.enter_context(_open_to_fill(path)) for path in paths]
        yield _Files(folder, written, paths, files, shape, dtypes)


@dataclass(slots=True, eq=False)
class _Memory:
    ids: HostArray
    scores: HostArray
    done: int = 0

    def put(self, ids: HostArray, scores: HostArray) -> None:
        rows = slice(self.done, self.done + len(ids))
        self.ids[rows], self.scores[rows] = ids, scores
        self.done = rows.stop

    def arrays(self) -> tuple[HostArray, HostArray]:
        return self.ids, self.scores


class _Files:
    """Two files of which the first rows are filled, and the state that says how many.

    Rows are written, not stored through a map of the file: a full or broken disk is an error then,
    where a map would end the process.
    """

    def __init__(
        self,
        folder: Path,
        state: dict[str, Any],
        paths: list[Path],
        files: list[FileIO],
        shape: tuple[int, int],
        dtypes: tuple[np.dtype[Any], np.dtype[Any]],
    ) -> None:
        self.done: int = state["done"]
        self._folder, self._state, self._files = folder, state, files
        self._sums: list[int] = state["checksums"]
        self._heads = [read_head(file, path) for file, path in zip(files, paths, strict=True)]
        for path, file, head, dtype, expected in zip(
            paths, files, self._heads, dtypes, self._sums, strict=True
        ):
            if (head.dtype, head.shape) != (dtype.str, shape):
                raise _damaged(path, f"{head.dtype} of shape {head.shape}, not {dtype.str} {shape}")
            stop = head.offset + self.done * shape[1] * dtype.itemsize
            if file_checksum(file, path, head.offset, stop) != f"{expected:08x}":
                raise _damaged(path, "the checksum of the rows that are done does not match")

    def put(self, ids: HostArray, scores: HostArray) -> None:
        done, sums = self.done + len(ids), []
        parts = zip(self._files, self._heads, (ids, scores), self._sums, strict=True)
        for file, head, rows, before in parts:
            content = np.ascontiguousarray(rows, head.dtype).reshape(-1).view(np.uint8).data
            file.seek(head.offset + self.done * content.nbytes // len(ids))
            write_all(file, content)
            os.fsync(file.fileno())
            sums.append(zlib.crc32(content, before))
        # The rows are on disk: now it may be said that they are.
        _write_state(self._folder, {**self._state, "done": done, "checksums": sums})
        self.done, self._sums = done, sums

    def arrays(self) -> tuple[HostArray, HostArray]:
        ids, scores = (
            mapped_array(file, head) for file, head in zip(self._files, self._heads, strict=True)
        )
        return ids, scores


def _reserve(
    folder: Path,
    mark: str,
    shape: tuple[int, int],
    dtypes: tuple[np.dtype[Any], np.dtype[Any]],
) -> None:
    """Files of the full size for columns to come, so that the disk cannot fill up on the way."""
    for name, dtype in zip(_array_files(mark), dtypes, strict=True):
        with open(folder / name, "xb") as file:
            head = write_head(file, dtype, shape)
            file.flush()
            reserve_space(file, ArrayFile(dtype.str, shape, head).size)
            sync_file(file)


def _open_to_fill(path: Path) -> FileIO:
    # A link that somebody planted could lead to a file of the user's.
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        if path.is_symlink() or not path.is_file():
            raise _damaged(path, "missing, or not a plain file")
        return FileIO(os.open(path, flags), "r+b")
    except OSError as fault:
        raise _damaged(path, str(fault.strerror)) from fault


def _array_files(mark: str) -> tuple[str, str]:
    return f"ids.{mark}.npy", f"scores.{mark}.npy"


def _named_files(folder: Path) -> frozenset[str]:
    """The files that the folder's state names, and the state; none if there is no state."""
    if not os.path.lexists(folder / _STATE):
        return frozenset()
    return frozenset({_STATE, *_array_files(_read_state(folder)["mark"])})


def _read_state(folder: Path) -> dict[str, Any]:
    """What ``progress.json`` says, if its checksum and its numbers are right."""
    path = folder / _STATE
    state = read_json(path)
    expected = state.pop("checksum", None)
    if state.get("format") != _FORMAT:
        raise IndexFileError(f"{path}: not a state of this library. Nothing was changed.")
    if expected != checksum(json.dumps(state, sort_keys=True).encode()):
        raise _damaged(path, "its checksum does not match")
    sums = state.get("checksums")
    counts = [state.get("n"), state.get("done"), *(sums if isinstance(sums, list) else [])]
    if (
        [type(count) for count in counts] != [int] * 4
        or not 0 <= counts[1] <= counts[0]
        or not re.fullmatch("[0-9a-f]{8}", str(state.get("mark")))
    ):
        raise _damaged(path, "it is not a state of this library")
    return state


def _write_state(folder: Path, state: dict[str, Any]) -> None:
    content = {**state, "checksum": checksum(json.dumps(state, sort_keys=True).encode())}
    temporary = folder / f"{_STATE}.{state['mark']}.tmp"
    with replacing(folder / _STATE, temporary=temporary, sync=True) as file:
        file.write(json.dumps(content).encode())


def _damaged(path: Path, reason: str) -> IndexFileError:
    return IndexFileError(f"{path}: damaged ({reason}). Delete the folder to begin anew.")
