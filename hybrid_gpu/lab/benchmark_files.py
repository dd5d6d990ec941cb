"""Benchmarks from the files of users: a folder of arrays, or revisited Oxford and Paris."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.files.array_files import array_names, load_array
from hybrid_gpu.files.ground_truth import load_ground_truth
from hybrid_gpu.lab.benchmark import Benchmark, with_distractors

_ARRAY_ENDINGS = (".npy", ".npz", ".mat")
_TRUTH_ENDINGS = (".json", ".pkl", ".mat")


def load_folder(folder: str | os.PathLike[str]) -> Benchmark:
    """A benchmark from a folder of array files.

    Parameters
    ----------
    folder
        A folder with the files below. Arrays are ``.npy``, ``.npz`` or ``.mat`` files with one item
        per row, or per column if only that fits the number of labels or of pictures.

        - ``descriptors``, of shape (n, d), and ``queries``, of shape (m, d);
        - ``labels`` and ``query_labels``, of length n and m; or else a ground truth that
          ``load_ground_truth`` reads, called ``ground_truth`` or ``gnd_...`` and ending in
          ``.json``, ``.pkl`` or ``.mat``;
        - ``distractors``, of shape (k, d), if there are any.

    Raises
    ------
    ValueError
        If a part is missing or there twice. The message says what is there and what is expected.
    """
    files = _files_of(folder)
    truth = files.pop("ground_truth", None)
    arrays = {part: load_array(path, name=part) for part, path in files.items()}
    if truth is not None:
        answers = load_ground_truth(truth)
        n, m = len(answers.images), len(answers.query_images)
        right_items: dict[str, Any] = {"ground_truth": answers.queries}
    else:
        right_items = {
            part: _as_vector(arrays[part], files[part]) for part in ("labels", "query_labels")
        }
        n, m = len(right_items["labels"]), len(right_items["query_labels"])
    items = by_rows(arrays["descriptors"], files["descriptors"], items=n, square=True)
    d = items.shape[1]
    queries = by_rows(arrays["queries"], files["queries"], items=m, dimensions=d, square=True)
    name = Path(folder).resolve().name
    benchmark = Benchmark(name, _as_float32(items), _as_float32(queries), **right_items)
    if "distractors" not in arrays:
        return benchmark
    distractor_rows = by_rows(
        arrays["distractors"], files["distractors"], dimensions=d, square=True
    )
    return with_distractors(benchmark, distractor_rows)


def revisited(
    descriptors: str | os.PathLike[str],
    ground_truth: str | os.PathLike[str],
    *,
    queries: str | os.PathLike[str] | None = None,
    distractors: str | os.PathLike[str] | NDArray[Any] | None = None,
    name: str | None = None,
) -> Benchmark:
    """Revisited Oxford or Paris (Radenović et al., CVPR 2018), from the user's own download.

    Parameters
    ----------
    descriptors
        Array file of the database. The published ``.mat`` files hold the database as ``X`` and the
        queries as ``Q``, one picture per *column*.
    ground_truth
        ``gnd_roxford5k.pkl``, ``gnd_rparis6k.pkl``, or any other file that ``load_ground_truth``
        reads.
    queries
        Array file of the queries; None if they are ``Q`` in the file of the descriptors.
    distractors
        Descriptors of pictures that are right for no query (the million of ``revisitop1m``): an
        array, or its file. They are copied, 8 GB for a million of 2,048 dimensions.
    name
        Name of the benchmark. None takes it from the ground truth: ``roxford5k`` for
        ``gnd_roxford5k.pkl``.

    Returns
    -------
    Benchmark
        With one item per row. The files may have items as rows or as columns: the numbers of
        pictures and of queries in the ground truth decide.

    Raises
    ------
    ValueError
        If a file cannot be read, or if an array fits the ground truth neither way round, or both
        ways.
    """
    answers = load_ground_truth(ground_truth)
    if queries is None and "Q" not in array_names(descriptors):
        raise ValueError(
            f"{descriptors}: no array 'Q' of queries in it; got "
            f"{', '.join(array_names(descriptors)) or 'one array'}. Pass the file of the queries "
            "as queries=."
        )
    n, m = len(answers.images), len(answers.query_images)
    items = by_rows(load_array(descriptors, name="X"), descriptors, items=n)
    d = items.shape[1]
    query_file = descriptors if queries is None else queries
    query_rows = by_rows(load_array(query_file, name="Q"), query_file, items=m, dimensions=d)
    benchmark = Benchmark(
        name=Path(ground_truth).stem.removeprefix("gnd_") if name is None else name,
        descriptors=_as_float32(items),
        queries=_as_float32(query_rows),
        ground_truth=answers.queries,
    )
    if distractors is None:
        return benchmark
    if isinstance(distractors, np.ndarray):
        distractor_rows = by_rows(distractors, "distractors", dimensions=d)
    else:
        distractor_rows = by_rows(load_array(distractors, name="X"), distractors, dimensions=d)
    return with_distractors(benchmark, distractor_rows)


def _as_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    if array.dtype.kind not in "iuf":
        raise ValueError(f"descriptors must be numbers; got {array.dtype}.")
    return np.ascontiguousarray(array, dtype=np.float32)


def _as_vector(array: NDArray[Any], place: Path) -> NDArray[Any]:
    # MATLAB has no vectors, only matrices of one row or column.
    if array.size != max(array.shape, default=0):
        raise ValueError(f"{place}: shape {array.shape}; expected one label for each item.")
    return array.reshape(-1)


def _files_of(folder: str | os.PathLike[str]) -> dict[str, Path]:
    """The files in the folder of a benchmark, by the names that ``load_folder`` gives to them.

    A ground truth has the name ``"ground_truth"``, whatever its file is called.

    Raises
    ------
    ValueError
        If a part is missing or there twice.
    """
    place = Path(folder)
    if not place.is_dir():
        raise ValueError(f"{place}: {'not a folder' if place.exists() else 'no such folder'}.")
    names = sorted(path.name for path in place.iterdir() if path.is_file())
    candidates = {
        part: [name for name in names if name in {f"{part}{end}" for end in _ARRAY_ENDINGS}]
        for part in ("descriptors", "queries", "labels", "query_labels", "distractors")
    }
    candidates["ground_truth"] = [
        name
        for name in names
        if name.startswith(("ground_truth.", "gnd_")) and name.endswith(_TRUTH_ENDINGS)
    ]
    for part, files in candidates.items():
        if len(files) > 1:
            raise ValueError(f"{place}: has {part} {len(files)} times ({', '.join(files)}).")
    parts = {part: place / files[0] for part, files in candidates.items() if files}
    _check_parts(place, parts, names)
    return parts


def by_rows(
    array: NDArray[Any],
    place: str | os.PathLike[str],
    *,
    items: int | None = None,
    dimensions: int | None = None,
    square: bool = False,
) -> NDArray[Any]:
    """The array or its transpose, whichever has items as rows.

    Parameters
    ----------
    array
    place
        The file, or what else the array is called in error messages.
    items, dimensions
        The sizes that are known, at least one of the two.
    square
        True takes the items of a square array as its rows; False refuses a square array.

    Raises
    ------
    ValueError
        If neither way round fits the sizes, or both do.
    """

    def fits(shape: tuple[int, ...]) -> bool:
        return items in (None, shape[0]) and dimensions in (None, shape[1])

    rows, columns = (array.ndim == 2 and fits(shape) for shape in (array.shape, array.shape[::-1]))
    if rows and (square or not columns):
        return array
    if columns and not rows:
        return array.T
    expected = f"({items or 'items'}, {dimensions or 'dimensions'})"
    reason = "both ways round fit, so items may be rows or columns. Make a Benchmark of arrays."
    if not rows:
        reason = f"expected {expected} or the transpose. Do the files belong together?"
    raise ValueError(f"{place}: shape {array.shape}; {reason}")


def _check_parts(folder: Path, parts: Mapping[str, Path], names: list[str]) -> None:
    """Refuse a folder that lacks a part, or has both labels and a ground truth.

    Parameters
    ----------
    folder
        Named in error messages.
    parts
        The files of the benchmark, by the names of their parts.
    names
        All files in the folder.
    """
    labels = {"labels", "query_labels"}
    missing = sorted({"descriptors", "queries"} - parts.keys())
    if "ground_truth" not in parts:
        missing += sorted(labels - parts.keys()) if labels & parts.keys() else []
        missing += [] if labels & parts.keys() else ["labels and query_labels, or a ground truth"]
    elif labels & parts.keys():
        raise ValueError(f"{folder}: has labels and a ground truth; expected one of the two.")
    if not missing:
        return
    advice = ""
    if "queries" in missing and "labels" in parts:
        advice = " Give queries, or take some of the items as queries with split_queries."
    elif "ground_truth" in parts:
        advice = " revisited() reads the published files of revisited Oxford and Paris."
    raise ValueError(
        f"{folder}: missing {', '.join(missing)}; found {', '.join(names[:20]) or 'nothing'}. "
        "Expected descriptors, queries, and either labels and query_labels or a ground truth "
        f"(ground_truth.json, gnd_*.pkl, gnd_*.mat); arrays as .npy, .npz or .mat.{advice}"
    )
