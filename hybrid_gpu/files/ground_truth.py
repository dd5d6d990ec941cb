"""The right answers of the revisited Oxford and Paris benchmarks, from the published files.

Nothing here runs code from a file; pickles are read by ``plain_pickle``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.files.matlab_files import damage_named, read_values
from hybrid_gpu.files.plain_pickle import PlainArray, read_plain_pickle
from hybrid_gpu.files.recognition import MAT_MAGIC, read_start, web_page_note

# The published ground truths are below 1 MB.
_LARGEST_GROUND_TRUTH = 64 * 2**20
_JUDGMENTS = ("easy", "hard", "junk")


@dataclass(frozen=True, slots=True, eq=False)
class GroundTruth:
    """The right answers of the revisited Oxford and Paris benchmarks.

    Attributes
    ----------
    images : tuple of str
        Names of the database pictures; an id is a position in this list.
    query_images : tuple of str
        Names of the query pictures.
    queries : tuple of mappings
        For each query, ``"easy"``, ``"hard"`` and ``"junk"``, each an int64 array of ids from 0.
    """

    images: tuple[str, ...]
    query_images: tuple[str, ...]
    queries: tuple[Mapping[str, NDArray[np.int64]], ...]

    def __repr__(self) -> str:
        return f"GroundTruth({len(self.images)} images, {len(self.queries)} queries)"


def load_ground_truth(path: str | os.PathLike[str]) -> GroundTruth:
    """The ground truth of revisited Oxford or Paris, as published or as JSON.

    Parameters
    ----------
    path
        A file such as ``gnd_roxford5k.pkl``: a dict of ``imlist``, ``qimlist`` and ``gnd``, which
        is a list with one dict of ``easy``, ``hard`` and ``junk`` for each query. The same as JSON,
        or as ``.mat`` with a struct array ``gnd``, is read too; the kind of file is recognized by
        its content. **Ids start at 0 in pickles and JSON, and at 1 in .mat files**, as Python and
        MATLAB count. The ids that are returned always start at 0.

    Raises
    ------
    ValueError
        If the file is not one of these, or if a pickle asks for anything but plain values and
        numeric NumPy arrays; its code is never run. The message names the file.

    References
    ----------
    F. Radenović, A. Iscen, G. Tolias, Y. Avrithis and O. Chum, "Revisiting Oxford and Paris:
    Large-Scale Image Retrieval Benchmarking", CVPR 2018.
    """
    file = Path(path)
    start = read_start(file, "a ground truth")
    size = file.stat().st_size
    if size > _LARGEST_GROUND_TRUTH:
        raise ValueError(
            f"{file}: {size} bytes; expected a ground truth of at most {_LARGEST_GROUND_TRUTH}."
        )
    if start.startswith(MAT_MAGIC):
        return _ground_truth(file, _mat_ground_truth(file), first=1)
    if web_page_note(start):
        raise ValueError(f"{file}: not a ground truth{web_page_note(start)}.")
    # No pickle starts with an opening brace. Editors on Windows put a byte order mark before it.
    is_json = start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
    reader = _from_json if is_json else _from_pickle
    return _ground_truth(file, reader(file), first=0)


def _mat_ground_truth(file: Path) -> dict[str, Any]:
    names = ("imlist", "qimlist", "gnd", "qidx")
    with damage_named(file):
        content = read_values(file, names, largest=_LARGEST_GROUND_TRUTH)
    for name in ("imlist", "qimlist", "gnd"):
        if isinstance(content.get(name), list):
            content[name] = [_innermost(cell) for cell in content[name]]
    return content


def _innermost(cell: Any) -> Any:
    """The content of a cell, taken out of any cells of one entry around it."""
    while isinstance(cell, list) and len(cell) == 1:
        cell = cell[0]
    return cell


def _from_json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as fault:
        raise ValueError(f"{file}: damaged JSON ({fault}).") from fault


def _from_pickle(file: Path) -> Any:
    try:
        return read_plain_pickle(file.read_bytes())
    except ValueError as fault:
        raise ValueError(
            f"{file}: {fault} Expected a ground truth as a pickle, JSON or .mat."
        ) from fault


def _ground_truth(file: Path, content: Any, *, first: int) -> GroundTruth:
    """Check the content of a file and make a ground truth of it.

    Parameters
    ----------
    file
        Named in error messages.
    content
        As the file holds it: anything at all.
    first
        The id of the first picture in this kind of file, 0 or 1.
    """
    if not isinstance(content, dict):
        raise ValueError(f"{file}: holds a {type(content).__name__}; expected a dict.")
    entries = _listed(file, content, "gnd")
    if "qidx" in content or any(isinstance(entry, dict) and "ok" in entry for entry in entries):
        raise ValueError(
            f"{file}: the ground truth of the original Oxford or Paris; expected that of the "
            "revisited benchmark (gnd_roxford5k or gnd_rparis6k), with easy, hard and junk."
        )
    images, query_images = (_names(file, content, name) for name in ("imlist", "qimlist"))
    if len(entries) != len(query_images):
        raise ValueError(
            f"{file}: 'gnd' has {len(entries)} entries and 'qimlist' {len(query_images)}; "
            "expected one for each query."
        )
    queries = []
    for position, entry in enumerate(entries):
        missing = [name for name in _JUDGMENTS if not isinstance(entry, dict) or name not in entry]
        if missing:
            raise ValueError(f"{file}: query {position} of 'gnd' has no {', '.join(missing)}.")
        queries.append(
            {
                name: _ids(f"{file}: {name} of query {position}", entry[name], first, len(images))
                for name in _JUDGMENTS
            }
        )
    return GroundTruth(images, query_images, tuple(queries))


def _listed(file: Path, content: dict[Any, Any], name: str) -> list[Any] | tuple[Any, ...]:
    values = content.get(name)
    if not isinstance(values, (list, tuple)) or not values:
        keys = ", ".join(sorted(str(key)[:40] for key in content if isinstance(key, str)))
        raise ValueError(
            f"{file}: no list {name!r} in it; expected imlist, qimlist and gnd, got "
            f"{keys or 'nothing'}."
        )
    return values


def _names(file: Path, content: dict[Any, Any], name: str) -> tuple[str, ...]:
    values = _listed(file, content, name)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{file}: {name!r} must be a list of names of pictures.")
    return tuple(values)


def _ids(what: str, values: Any, first: int, n: int) -> NDArray[np.int64]:
    values = values.values if isinstance(values, PlainArray) else values
    if isinstance(values, np.ndarray):
        values = values.ravel().tolist()
    # Flat lists of numbers only: NumPy would try to unfold whatever is nested in them.
    if not isinstance(values, (list, tuple)) or not all(map(_is_whole, values)):
        raise ValueError(f"{what} must be a list of ids, which are whole numbers.")
    low, high = min(values, default=first), max(values, default=first)
    if low < first or high >= first + n:
        note = " (in .mat files they start at 1)" if first else ""
        raise ValueError(
            f"{what}: ids must lie in [{first}, {first + n - 1}], for {n} pictures{note}; got "
            f"values from {int(low)} to {int(high)}."
        )
    return np.array([int(value) - first for value in values], dtype=np.int64)


def _is_whole(value: Any) -> bool:
    """Whether a value is a whole number that fits into 64 bits."""
    # MATLAB stores ids as floating point. Larger numbers may be too long to print.
    whole = type(value) is int or (type(value) is float and value.is_integer())
    return whole and -(2**63) <= value < 2**63
