"""Labeled data sets, and benchmarks: items, queries, and which items are right for which query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.validation import check_count

_JUDGMENTS = ("easy", "hard", "junk")


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Labeled descriptors.

    Attributes
    ----------
    name : str
    descriptors : float32 array of shape (n, d)
    labels : array of shape (n,)
        Class of each item.
    image_shape : tuple of int, or None
        The shape in which a row of ``descriptors`` is a picture; None if it is not one.
    """

    name: str
    descriptors: NDArray[np.float32]
    labels: NDArray[Any]
    image_shape: tuple[int, ...] | None = None

    @property
    def n(self) -> int:
        """Number of items."""
        return int(self.descriptors.shape[0])

    @property
    def images(self) -> NDArray[np.float32]:
        """The items as pictures, an array of shape (n, height, width)."""
        return _as_pictures(self.descriptors, self.image_shape, self.name)

    def __repr__(self) -> str:
        d, classes = self.descriptors.shape[1], np.unique(self.labels).size
        return f"Dataset({self.name}, {self.n} items, {d} dimensions, {classes} classes)"


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A data set in two parts: the items to search in, and the queries that were held out."""

    database: Dataset
    queries: Dataset

    def __repr__(self) -> str:
        return f"Split({self.database.name}, {self.database.n} items, {self.queries.n} queries)"


@dataclass(frozen=True, slots=True, eq=False)
class Benchmark:
    """Items, queries, and which items are right for which query.

    A benchmark has either labels of items and queries, or a ground truth. With labels, an item is
    right for every query of its own class.

    Attributes
    ----------
    name : str
    descriptors : float32 array of shape (n, d)
        The database, distractors last.
    queries : float32 array of shape (m, d)
    labels : array of shape (n,), or None
        Class of each item, numbers or text.
    query_labels : array of shape (m,), or None
    ground_truth : tuple of m mappings, or None
        Ids of each query's ``"easy"``, ``"hard"`` and ``"junk"`` items, as int64 arrays, in the
        form that ``evaluation.revisited_protocol`` takes.
    distractors : int
        How many of the last items are right for no query.
    image_shape : tuple of int, or None
        The shape in which a row of ``descriptors`` is a picture; None if it is not one.
    """

    name: str
    descriptors: NDArray[np.float32]
    queries: NDArray[np.float32]
    labels: NDArray[Any] | None = None
    query_labels: NDArray[Any] | None = None
    ground_truth: tuple[Mapping[str, NDArray[np.int64]], ...] | None = None
    distractors: int = 0
    image_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _check_descriptors(self.descriptors, "descriptors")
        _check_descriptors(self.queries, "queries")
        if self.descriptors.shape[1] != self.queries.shape[1]:
            raise ValueError(
                "descriptors and queries must have the same dimensions; got shapes "
                f"{self.descriptors.shape} and {self.queries.shape}."
            )
        check_count(self.distractors, "distractors", low=0, high=self.n - 1)
        if self.image_shape is not None and np.prod(self.image_shape) != self.queries.shape[1]:
            raise ValueError(
                f"image_shape {self.image_shape} does not hold {self.queries.shape[1]} dimensions."
            )
        if self.ground_truth is None and self.labels is not None and self.query_labels is not None:
            _check_labels(self, self.labels, self.query_labels)
        elif self.ground_truth is not None and self.labels is None and self.query_labels is None:
            _check_ground_truth(self, self.ground_truth)
        else:
            raise ValueError("give either labels and query_labels, or ground_truth.")

    @property
    def n(self) -> int:
        """Number of items, distractors included."""
        return int(self.descriptors.shape[0])

    @property
    def m(self) -> int:
        """Number of queries."""
        return int(self.queries.shape[0])

    @property
    def images(self) -> NDArray[np.float32]:
        """The items as pictures, an array of shape (n, height, width)."""
        return _as_pictures(self.descriptors, self.image_shape, self.name)

    @property
    def query_images(self) -> NDArray[np.float32]:
        """The queries as pictures, an array of shape (m, height, width)."""
        return _as_pictures(self.queries, self.image_shape, self.name)

    def __repr__(self) -> str:
        distractors = f" ({self.distractors} distractors)" if self.distractors else ""
        truth = "ground truth"
        if self.labels is not None:
            truth = f"{np.unique(self.labels[: self.n - self.distractors]).size} classes"
        d = self.queries.shape[1]
        items = f"{self.n} items{distractors}, {self.m} queries"
        return f"Benchmark({self.name}, {items}, {d} dimensions, {truth})"


def split_queries(dataset: Dataset, count: int, seed: int) -> Split:
    """Hold ``count`` random items out of a data set, to be its queries.

    Parameters
    ----------
    dataset
    count
        Number of queries; it must leave at least one item in the database.
    seed
        The same seed gives the same queries. Both parts keep the order of the data set.
    """
    count = check_count(count, "count", high=dataset.n - 1)
    order = np.random.default_rng(seed).permutation(dataset.n)
    return Split(
        database=_subset(dataset, np.sort(order[count:])),
        queries=_subset(dataset, np.sort(order[:count])),
    )


def benchmark_of(split: Split, *, queries: int, seed: int) -> Benchmark:
    """The standard experiment: a few queries, and every other item to search in.

    Parameters
    ----------
    split
    queries
        How many random items of the query part become queries. The others are appended to the
        database.
    seed
        The same seed gives the same queries. Both parts keep the order of the data set.
    """
    held_out, database = split.queries, split.database
    queries = check_count(queries, "queries", high=held_out.n)
    order = np.random.default_rng(seed).permutation(held_out.n)
    chosen, rest = np.sort(order[:queries]), np.sort(order[queries:])
    return Benchmark(
        name=database.name,
        descriptors=np.concatenate([database.descriptors, held_out.descriptors[rest]]),
        queries=held_out.descriptors[chosen],
        labels=np.concatenate([database.labels, held_out.labels[rest]]),
        query_labels=held_out.labels[chosen],
        image_shape=database.image_shape,
    )


def with_distractors(benchmark: Benchmark, descriptors: NDArray[Any]) -> Benchmark:
    """A benchmark with more items appended, which are right for no query.

    Parameters
    ----------
    benchmark
        If it has labels, the new items get a label that no query has: -1 if labels are numbers
        (unsigned numbers and booleans become int64), the empty text if they are texts.
    descriptors : array of shape (k, d)

    Raises
    ------
    ValueError
        If the dimensions differ, or if a query has the label -1 or the empty text.
    """
    added, (own, d) = np.asarray(descriptors), benchmark.descriptors.shape
    if added.ndim != 2 or added.shape[1] != d or added.dtype.kind not in "iuf":
        raise ValueError(
            f"distractors must be numbers of shape (k, {d}), like the descriptors of "
            f"{benchmark.name}; got {added.dtype} of shape {added.shape}."
        )
    labels = benchmark.labels
    if labels is not None:
        assert benchmark.query_labels is not None
        labels = _with_foreign_labels(labels, benchmark.query_labels, len(added))
    # Filled in place: a million distractors are copied and converted once.
    together = np.empty((own + len(added), d), dtype=np.float32)
    together[:own], together[own:] = benchmark.descriptors, added
    return replace(
        benchmark,
        descriptors=together,
        labels=labels,
        distractors=benchmark.distractors + len(added),
    )


def _subset(dataset: Dataset, rows: NDArray[np.int64]) -> Dataset:
    return Dataset(
        dataset.name, dataset.descriptors[rows], dataset.labels[rows], dataset.image_shape
    )


def _as_pictures(
    descriptors: NDArray[np.float32], shape: tuple[int, ...] | None, name: str
) -> NDArray[np.float32]:
    if shape is None:
        raise ValueError(f"the descriptors of {name} are not pictures.")
    return descriptors.reshape(len(descriptors), *shape)


def _check_descriptors(values: NDArray[Any], what: str) -> None:
    if values.ndim != 2 or 0 in values.shape or values.dtype != np.float32:
        raise ValueError(
            f"{what} must be a non-empty float32 array of shape (items, dimensions); got "
            f"{values.dtype} of shape {values.shape}. Cast with {what}.astype('float32')."
        )


def _check_labels(benchmark: Benchmark, labels: NDArray[Any], query_labels: NDArray[Any]) -> None:
    """Refuse labels of wrong shapes or kinds, and distractors with the label of a query."""
    n, m = benchmark.n, benchmark.m
    if labels.shape != (n,) or query_labels.shape != (m,):
        raise ValueError(
            f"labels must be ({n},) and query_labels ({m},), one for each item and query; got "
            f"{labels.shape} and {query_labels.shape}."
        )
    kinds = labels.dtype.kind, query_labels.dtype.kind
    # A text never equals a number, nor bytes a text: no item would be right.
    if not any(kinds[0] in family and kinds[1] in family for family in ("biuf", "U", "S")):
        raise ValueError(
            "labels and query_labels must both be numbers or both be text; got "
            f"{labels.dtype} and {query_labels.dtype}."
        )
    if np.isin(labels[n - benchmark.distractors :], query_labels).any():
        raise ValueError(
            f"the last {benchmark.distractors} items are distractors, but some of them have the "
            "label of a query."
        )


def _check_ground_truth(
    benchmark: Benchmark, truth: tuple[Mapping[str, NDArray[np.int64]], ...]
) -> None:
    """Refuse a ground truth of other queries, or with ids that are no items."""
    if len(truth) != benchmark.m:
        raise ValueError(
            f"ground_truth must have one entry for each of the {benchmark.m} queries; got "
            f"{len(truth)}."
        )
    items = benchmark.n - benchmark.distractors
    for position, entry in enumerate(truth):
        for judgment in _JUDGMENTS:
            what = f"ground_truth[{position}][{judgment!r}]"
            ids = entry.get(judgment)
            if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.ndim != 1:
                raise ValueError(
                    f"{what} must be an int64 array of one dimension. Convert it with "
                    "numpy.array(ids, dtype='int64')."
                )
            if ids.size and not 0 <= ids.min() <= ids.max() < items:
                raise ValueError(
                    f"{what} must hold ids in [0, {items - 1}], distractors left out; got values "
                    f"from {ids.min()} to {ids.max()}."
                )


def _with_foreign_labels(
    labels: NDArray[Any], query_labels: NDArray[Any], count: int
) -> NDArray[Any]:
    """Labels with ``count`` more appended, which no query has."""
    foreign: Any = {"U": "", "S": b""}.get(labels.dtype.kind, -1)
    if np.any(query_labels == foreign):
        raise ValueError(
            f"a query has the label {foreign!r}, which is that of distractors. Give its class "
            "another label."
        )
    if labels.dtype.kind in "bu":
        if labels.max() > np.iinfo(np.int64).max:
            raise ValueError(
                "labels must fit into int64, because distractors get the label -1; got "
                f"{labels.max()}."
            )
        labels = labels.astype(np.int64)
    return np.concatenate([labels, np.full(count, foreign, dtype=labels.dtype)])
