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
from hybrid_gpu.graph.neighbors import exact_neighbors, unit_rows
from hybrid_gpu.validation import check_choice, check_item_ids, check_vectors, refuse_masked, shown

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


def labeled_examples(labels: Any, units: Array, most: int, seed: int, backend: Backend) -> Examples:
    """Labeled items as queries; relevant are the other items with the same label."""
    n = int(units.shape[0])
    codes = _codes(labels, n)
    known = codes >= 0
    sizes = np.bincount(codes[known], minlength=1)
    askable = np.flatnonzero(known & (sizes[np.maximum(codes, 0)] > 1))
    if askable.size < 2:
        raise ValueError(
            "labels must give at least two items a label that another item has; got "
            f"{askable.size} of {n}. Without labels, leave them out."
        )
    rng = np.random.default_rng(seed)
    items = np.sort(rng.choice(askable, min(most, askable.size), replace=False))
    vectors = backend.xp.take(units, backend.asarray(items), axis=0)
    source = f"{items.size} queries among {int(known.sum())} labeled items"
    return Examples(source, items, vectors, labels=codes)


def listed_examples(queries: Any, relevant: Any, units: Array, backend: Backend) -> Examples:
    """Queries with their relevant items: ids of items (m,), or descriptors (m, d)."""
    xp, (n, d) = backend.xp, units.shape
    if np.ndim(queries) == 1:
        items = backend.to_numpy(check_item_ids(queries, n, backend=backend))
        vectors = xp.take(units, backend.asarray(items), axis=0)
    else:
        items = None
        dtype = str(units.dtype).rpartition(".")[2]
        vectors = check_vectors(queries, "queries", dtype=dtype, backend=backend)
        if vectors.shape[1] != d:
            raise ValueError(
                f"queries must have the database's {d} dimensions; got {vectors.shape[1]}."
            )
        vectors = unit_rows(vectors, backend)
    lists = id_lists(relevant, "relevant", int(vectors.shape[0]))
    if max((int(one.max()) for one in lists if one.size), default=-1) >= n:
        raise ValueError(f"relevant must be ids of the {n} items; got a larger one.")
    if items is not None:
        lists = [np.setdiff1d(one, item) for one, item in zip(lists, items, strict=True)]
    rows = np.flatnonzero([one.size > 0 for one in lists])
    if rows.size < 2:
        raise ValueError(f"relevant must be known for at least two queries; got {rows.size}.")
    return Examples(
        f"{rows.size} queries with lists of relevant items",
        None if items is None else items[rows],
        xp.take(vectors, backend.asarray(rows), axis=0),
        [lists[row] for row in rows],
    )


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
    items = np.sort(rng.choice(n, min(most, n), replace=False))
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
    array = on_host(labels, "labels")
    if array.ndim != 1 or array.size != n:
        raise ValueError(
            f"labels must be one for each of the {n} items; got shape {array.shape}. Give -1, NaN, "
            "None or '' to items without one."
        )
    if array.dtype.kind not in "biufUSO":
        raise TypeError(f"labels must be numbers or words; got {shown(labels)}.")
    numbers: dict[Any, int] = {}
    codes = np.empty(n, np.int64)
    for place, label in enumerate(array.tolist()):
        codes[place] = -1 if _is_unknown(label) else numbers.setdefault(label, len(numbers))
    return codes


def _is_unknown(label: Any) -> bool:
    if isinstance(label, (int, float)):
        return label != label or label < 0
    return label is None or label in ("", b"")
