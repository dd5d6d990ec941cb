"""Queries whose right answers are known: by labels, by lists, or by the descriptors themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid_gpu import evaluation
from hybrid_gpu.backends import Array, Backend
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.evaluation.rankings import id_lists, on_host
from hybrid_gpu.graph.neighbors import exact_neighbors
from hybrid_gpu.graph.vectors import unit_rows
from hybrid_gpu.validation import (
    check_choice,
    check_item_ids,
    check_vectors,
    dtype_name,
    refuse_masked,
    shown,
)

# By labels, which is faster, and by lists.
_AT_TEN = {"at": 10}
_MEASURES: dict[str, tuple[Any, Any, dict[str, int]]] = {
    "mAP": (evaluation.mean_average_precision, evaluation.mean_average_precision_of_lists, {}),
    "P@10": (evaluation.precision, evaluation.precision_of_lists, _AT_TEN),
    "nDCG@10": (evaluation.ndcg, evaluation.ndcg_of_lists, _AT_TEN),
    "MRR": (evaluation.mean_reciprocal_rank, evaluation.mean_reciprocal_rank_of_lists, {}),
}
MEASURES = tuple(_MEASURES)

# Without labels, an item's nearest ones in the other half of the dimensions are its right answers.
_RIGHT_IN_THE_OTHER_HALF = 10


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Queries and their relevant items.

    Attributes
    ----------
    source : str
        Where the right answers come from, in words.
    items : int64 array of shape (m,), or None
        The queries, if they are items of the database. They are then not among their own answers.
    vectors : float array of shape (m, d)
        The queries' descriptors.
    relevant : sequence of m int arrays, or None
        What each query should find; None: the items with its label.
    labels : int array of shape (n,), or None
        Labels as numbers from 0 up. Items of -1 do not count: they are taken out of rankings.
    """

    source: str
    items: HostArray | None
    vectors: Array
    relevant: Sequence[HostArray] | None = None
    labels: HostArray | None = None

    @property
    def count(self) -> int:
        """Number of queries."""
        return int(self.vectors.shape[0])

    @property
    def judged(self) -> int | None:
        """Items that a query's ranking has to be judged by; None: all of the database."""
        return None if self.labels is None else int(np.count_nonzero(self.labels >= 0)) - 1

    def part(self, rows: slice) -> Examples:
        """Some of the queries."""
        return Examples(
            self.source,
            None if self.items is None else self.items[rows],
            self.vectors[rows, :],
            None if self.relevant is None else self.relevant[rows],
            self.labels,
        )

    def values(self, ids: HostArray, measure: str) -> HostArray:
        """The value of a measure for every query, of rankings (m, n) of the whole database."""
        by_labels, by_lists, options = _MEASURES[measure]
        if self.relevant is not None:
            return evaluation.per_query(by_lists, ids, self.relevant, ignore=self.items, **options)
        labels = self.labels
        assert labels is not None
        if labels.min() < 0:
            # Every ranking holds all items, and so the same number of labeled ones.
            ids = ids[labels[ids] >= 0].reshape(len(ids), -1)
        return evaluation.per_query(
            by_labels, ids, labels, labels[self.items], ignore=self.items, **options
        )


def check_measure(measure: Any) -> str:
    """The name of a measure that is known here."""
    return check_choice(measure, "measure", MEASURES)


def check_depth(measure: str, examples: Examples, n: int) -> None:
    """Refuse a measure that looks further than there are items to judge."""
    depth = _MEASURES[measure][2].get("at", 1)
    judged = n - 1 if examples.judged is None else examples.judged
    if judged < depth:
        raise ValueError(
            f"measure {measure!r} looks at {depth} results, and only {judged} items are judged "
            "beside a query. Take 'mAP' or 'MRR', or label more items."
        )


def labeled_examples(labels: Any, units: Array, most: int, seed: int, backend: Backend) -> Examples:
    """Labeled items as queries; relevant are the other items with the same label."""
    n = int(units.shape[0])
    codes = _codes(labels, n)
    known = codes >= 0
    sizes = np.bincount(codes[known], minlength=1)
    askable = np.flatnonzero(known & (sizes[np.maximum(codes, 0)] > 1))
    if askable.size < 2 or sizes.size < 2:
        raise ValueError(
            "labels must be of two classes at least, and give at least two items a label that "
            f"another item has; got {np.count_nonzero(sizes)} classes, and {askable.size} such "
            f"items of {n}. Without labels, leave them out."
        )
    items = _drawn(askable, most, seed)
    vectors = backend.xp.take(units, backend.asarray(items), axis=0)
    source = f"{items.size} queries among {int(known.sum())} labeled items"
    return Examples(source, items, vectors, labels=codes)


def listed_examples(
    queries: Any, relevant: Any, units: Array, most: int, seed: int, backend: Backend
) -> Examples:
    """Queries with their relevant items: ids of items (m,), or descriptors (m, d)."""
    xp, (n, d) = backend.xp, units.shape
    array = on_host(queries, "queries") if not hasattr(queries, "ndim") else queries
    if array.ndim == 1 and "float" in str(array.dtype):
        raise ValueError(
            "queries must be ids of items (m,), or descriptors (m, d); got numbers with fractions "
            f"of shape {tuple(array.shape)}. Reshape one descriptor with queries[None, :]."
        )
    items = None
    if array.ndim == 1:
        items = backend.to_numpy(check_item_ids(array, n, backend=backend))
        if np.unique(items).size < items.size:
            raise ValueError(
                "queries must name each item once: join their lists of relevant items."
            )
        vectors = xp.take(units, backend.asarray(items), axis=0)
    else:
        vectors = check_vectors(array, "queries", dtype=dtype_name(units.dtype), backend=backend)
        if vectors.shape[1] != d:
            raise ValueError(
                f"queries must have the database's {d} dimensions; got {vectors.shape[1]}."
            )
        vectors = unit_rows(vectors, backend)
    lists = id_lists(relevant, "relevant", int(vectors.shape[0]))
    if max((int(ids.max()) for ids in lists if ids.size), default=-1) >= n:
        raise ValueError(f"relevant must be ids of the {n} items; got a larger one.")
    if items is not None:
        lists = [np.setdiff1d(ids, item) for ids, item in zip(lists, items, strict=True)]
    rows = np.flatnonzero([ids.size > 0 for ids in lists])
    if rows.size < 2:
        raise ValueError(f"relevant must be known for at least two queries; got {rows.size}.")
    rows = _drawn(rows, most, seed)
    return Examples(
        f"{rows.size} queries with lists of relevant items",
        None if items is None else items[rows],
        xp.take(vectors, backend.asarray(rows), axis=0),
        [lists[row] for row in rows],
    )


def _drawn(candidates: HostArray, most: int, seed: int) -> HostArray:
    """So many of the candidates, at most, in order."""
    if candidates.size <= most:
        return candidates
    return np.sort(np.random.default_rng(seed).choice(candidates, most, replace=False))


def halved_examples(units: Array, most: int, seed: int, backend: Backend) -> tuple[Array, Examples]:
    """Half of the dimensions as descriptors, and examples whose answers come from the other half.

    The two halves are those of a random rotation. Relevant are the ten items nearest to a query in
    the other half: what the halves agree on is not the noise of one of them.
    """
    xp, (n, d) = backend.xp, (int(size) for size in units.shape)
    if d < 2 or n < 2 + _RIGHT_IN_THE_OTHER_HALF:
        raise ValueError(
            f"without labels, tune needs at least 2 dimensions and 12 items; got {n} of {d}."
        )
    rng = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(rng.standard_normal((d, d)))
    turned = backend.matmul(units, xp.astype(backend.asarray(rotation), units.dtype))
    first, second = (
        unit_rows(half, backend) for half in (turned[:, : d // 2], turned[:, d // 2 :])
    )
    items = _drawn(np.arange(n), most, seed)
    places = backend.asarray(items)
    near = exact_neighbors(
        second,
        xp.take(second, places, axis=0),
        _RIGHT_IN_THE_OTHER_HALF,
        own=places,
        backend=backend,
    )
    source = f"{items.size} queries, answers from the other half of the dimensions"
    relevant = list(backend.to_numpy(near.ids))
    return first, Examples(source, items, xp.take(first, places, axis=0), relevant)


def _codes(labels: Any, n: int) -> HostArray:
    """Labels of any kind as numbers from 0 up; -1 for unknown ones."""
    refuse_masked(labels, "labels", "-1")
    # A list is read label by label: as an array, NaN among words would be a word.
    listed = labels if isinstance(labels, (list, tuple)) else on_host(labels, "labels")
    if np.ndim(listed) != 1 or len(listed) != n:
        raise ValueError(
            f"labels must be one for each of the {n} items; got shape {np.shape(listed)}. Give -1, "
            "NaN, None or '' to items without one."
        )
    numbers: dict[Any, int] = {}
    codes = np.empty(n, np.int64)
    for place, label in enumerate(listed):
        value = label.item() if isinstance(label, np.generic) else label
        if value is None or value in (-1, "", b"") or value != value:
            codes[place] = -1
        elif isinstance(value, (str, bytes, int, float)):
            codes[place] = numbers.setdefault(value, len(numbers))
        else:
            raise TypeError(f"labels must be numbers or words; got {shown(label)}.")
    return codes
