"""Data to rank: the digits that come with the package, public sets, and the user's own files."""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.files.array_files import (
    GroundTruth,
    array_names,
    benchmark_files,
    by_rows,
    load_array,
    load_ground_truth,
    read_idx,
)
from hybrid_gpu.lab.warps import leading_directions, random_warps, warped
from hybrid_gpu.progress import Progress
from hybrid_gpu.validation import check_count

__all__ = [
    "Benchmark",
    "Dataset",
    "GroundTruth",
    "Split",
    "augmented",
    "benchmark_of",
    "digits",
    "fashion_mnist",
    "load_array",
    "load_folder",
    "load_ground_truth",
    "mnist",
    "revisited",
    "split_queries",
    "warped",
    "with_distractors",
]

_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
_MNIST = Path("/usr/share/datasets/mnist")
_JUDGMENTS = ("easy", "hard", "junk")
# Pictures warped at a time: their positions and weights stay in the cache of a core.
_CHUNK = 256


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

    Either both labels or the ground truth is given: an item is right for a query of its own class,
    or if the ground truth says so.

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
        Ids of each query's ``"easy"``, ``"hard"`` and ``"junk"`` items, as int64 arrays; what
        ``evaluation.revisited_protocol`` takes.
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
        far = f" ({self.distractors} distractors)" if self.distractors else ""
        truth = "ground truth"
        if self.labels is not None:
            truth = f"{np.unique(self.labels[: self.n - self.distractors]).size} classes"
        d = self.queries.shape[1]
        items = f"{self.n} items{far}, {self.m} queries"
        return f"Benchmark({self.name}, {items}, {d} dimensions, {truth})"


def digits() -> Dataset:
    """1,797 handwritten digits of 8 x 8 pixels in 10 classes, shipped with the package.

    The test-set part of the UCI data set (E. Alpaydin and C. Kaynak, CC BY 4.0); descriptors are
    the pixels, from 0 to 16.
    """
    resource = importlib.resources.files("hybrid_gpu.data").joinpath("digits.npz")
    with resource.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        return Dataset(
            name="digits",
            descriptors=archive["images"].astype(np.float32),
            labels=archive["labels"].astype(np.int64),
            image_shape=(8, 8),
        )


def fashion_mnist(folder: str | os.PathLike[str] | None = None) -> Split:
    """Fashion-MNIST: 60,000 pictures of clothes to search in, 10,000 as queries, 10 classes.

    Parameters
    ----------
    folder
        Where the four IDX files are, compressed or not; None looks where Debian's package
        ``dataset-fashion-mnist`` puts them.

    Raises
    ------
    FileNotFoundError
        If they are not there; says how to get them.
    """
    advice = (
        "Install Debian's package dataset-fashion-mnist, or pass the folder of the four IDX files"
    )
    return _from_idx_folder("Fashion-MNIST", _FASHION_MNIST if folder is None else folder, advice)


def mnist(folder: str | os.PathLike[str] | None = None) -> Split:
    """MNIST: 60,000 handwritten digits to search in, 10,000 as queries, 10 classes.

    Parameters
    ----------
    folder
        Where the four IDX files are, compressed or not; None looks into
        ``/usr/share/datasets/mnist``.

    Raises
    ------
    FileNotFoundError
        If they are not there; says which files are meant.
    """
    advice = "Pass the folder of the four IDX files"
    return _from_idx_folder("MNIST", _MNIST if folder is None else folder, advice)


def split_queries(dataset: Dataset, count: int, seed: int) -> Split:
    """Hold ``count`` random items out of a data set, to be its queries.

    Parameters
    ----------
    dataset
    count
        Number of queries; at least one item stays in the database.
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
        How many random items of the query part become queries. The rest of it joins the database,
        behind the items that are there already.
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
    """A benchmark with more items behind its own, which are right for no query.

    Parameters
    ----------
    benchmark
        If it has labels, the new items get one that no query has: -1 for numbers (unsigned ones
        and booleans become int64), the empty text for text.
    descriptors : array of shape (k, d)

    Raises
    ------
    ValueError
        If the dimensions differ, or some query has the label -1 or the empty text itself.
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


def augmented(
    dataset: Dataset,
    n: int,
    seed: int,
    *,
    dimensions: int | None = 64,
    progress: Progress | None = None,
) -> Dataset:
    """The pictures of a data set and random affine warps of them, ``n`` items in all.

    Item i is picture i; behind the pictures, each pass over them warps every one once: rotated by
    up to 15 degrees, scaled by 0.9 to 1.1, sheared by up to 0.1 and shifted by up to 2 pixels.
    An item depends on the data set, on ``seed`` and on its own position, not on ``n``, so a
    smaller set is the head of a larger one. Labels follow the pictures.

    Parameters
    ----------
    dataset
        Of gray pictures: ``image_shape`` is (height, width).
    n
        Number of items, at least that of the data set.
    seed
    dimensions
        Descriptors are the pictures, projected onto the leading eigenvectors of the second moments
        of the data set's own pictures. Nothing is centered, so that cosines stay close to those of
        the pictures. None keeps the pixels.
    progress
        Called as ``progress("warps", done, total)`` with the number of items.

    Raises
    ------
    ValueError
        If the items are not gray pictures, or ``n`` is smaller than their number.
    """
    n = check_count(n, "n", low=dataset.n)
    seed = check_count(seed, "seed", low=0)
    shape = dataset.image_shape
    if shape is None or len(shape) != 2:
        raise ValueError(
            f"{dataset.name} must hold gray pictures to be warped, with image_shape (height, "
            f"width); got {shape}."
        )
    pixels = dataset.descriptors.shape[1]
    basis = None
    if dimensions is not None:
        dimensions = check_count(dimensions, "dimensions", high=pixels)
        basis = leading_directions(dataset.descriptors, dimensions)
    descriptors = np.empty((n, dimensions or pixels), dtype=np.float32)
    for start, pictures in _picture_chunks(dataset, n, seed):
        flat = pictures.reshape(len(pictures), -1)
        rows = descriptors[start : start + len(flat)]
        # The last chunk is projected whole and cut afterwards: how BLAS rounds depends on the size
        # of a product, and an item must not depend on n.
        rows[:] = (flat if basis is None else flat @ basis)[: len(rows)]
        if progress:
            progress("warps", start + len(rows), n)
    return Dataset(
        name=f"{dataset.name} and warps" if n > dataset.n else dataset.name,
        descriptors=descriptors,
        labels=dataset.labels[np.arange(n) % dataset.n],
        image_shape=shape if basis is None else None,
    )


def load_folder(folder: str | os.PathLike[str]) -> Benchmark:
    """A benchmark from a folder of array files.

    Parameters
    ----------
    folder
        With these files; arrays are ``.npy``, ``.npz`` or ``.mat``, one item per row (per column
        if only that fits the number of labels or of pictures):

        - ``descriptors``, of shape (n, d), and ``queries``, of shape (m, d);
        - ``labels`` and ``query_labels``, of length n and m; or else a ground truth that
          ``load_ground_truth`` reads, called ``ground_truth`` or ``gnd_...`` and ending in
          ``.json``, ``.pkl`` or ``.mat``;
        - ``distractors``, of shape (k, d), if there are any.

    Raises
    ------
    ValueError
        If a part is missing, or there twice; says what was found and what was expected.
    """
    files = benchmark_files(folder)
    truth = files.pop("ground_truth", None)
    given = {part: load_array(path, name=part) for part, path in files.items()}
    if truth is not None:
        answers = load_ground_truth(truth)
        n, m = len(answers.images), len(answers.query_images)
        known: dict[str, Any] = {"ground_truth": answers.queries}
    else:
        known = {part: _as_vector(given[part], files[part]) for part in ("labels", "query_labels")}
        n, m = len(known["labels"]), len(known["query_labels"])
    items = by_rows(given["descriptors"], files["descriptors"], items=n, square=True)
    d = items.shape[1]
    queries = by_rows(given["queries"], files["queries"], items=m, dimensions=d, square=True)
    name = Path(folder).resolve().name
    benchmark = Benchmark(name, _as_float32(items), _as_float32(queries), **known)
    if "distractors" not in given:
        return benchmark
    added = by_rows(given["distractors"], files["distractors"], dimensions=d, square=True)
    return with_distractors(benchmark, added)


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
        ``gnd_roxford5k.pkl``, ``gnd_rparis6k.pkl``, or what else ``load_ground_truth`` reads.
    queries
        Array file of the queries; None if they are ``Q`` in the file of the descriptors.
    distractors
        Descriptors of pictures that are right for no query (the million of ``revisitop1m``): an
        array, or its file. They are copied, 8 GB for a million of 2,048 dimensions.
    name
        None: that of the ground truth, ``roxford5k`` for ``gnd_roxford5k.pkl``.

    Returns
    -------
    Benchmark
        With one item per row, in whichever orientation the files have them: the numbers of pictures
        and of queries in the ground truth tell.

    Raises
    ------
    ValueError
        If a file cannot be read, or an array fits the ground truth in no way or in both.
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
    place = descriptors if queries is None else queries
    wanted = by_rows(load_array(place, name="Q"), place, items=m, dimensions=d)
    benchmark = Benchmark(
        name=Path(ground_truth).stem.removeprefix("gnd_") if name is None else name,
        descriptors=_as_float32(items),
        queries=_as_float32(wanted),
        ground_truth=answers.queries,
    )
    if distractors is None:
        return benchmark
    if isinstance(distractors, np.ndarray):
        added = by_rows(distractors, "distractors", dimensions=d)
    else:
        added = by_rows(load_array(distractors, name="X"), distractors, dimensions=d)
    return with_distractors(benchmark, added)


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
                raise ValueError(f"{what} must be an int64 array of shape (number of ids,).")
            if ids.size and not 0 <= ids.min() <= ids.max() < items:
                raise ValueError(
                    f"{what} must hold ids in [0, {items - 1}], distractors left out; got values "
                    f"from {ids.min()} to {ids.max()}."
                )


def _with_foreign_labels(
    labels: NDArray[Any], query_labels: NDArray[Any], count: int
) -> NDArray[Any]:
    """Labels, and ``count`` more that no query has."""
    foreign: Any = {"U": "", "S": b""}.get(labels.dtype.kind, -1)
    if np.any(query_labels == foreign):
        raise ValueError(
            f"some query has the label {foreign!r}, which distractors would get. Give its class "
            "another label."
        )
    if labels.dtype.kind in "bu":
        if labels.max() > np.iinfo(np.int64).max:
            raise ValueError("labels must fit into int64 beside the -1 of distractors.")
        labels = labels.astype(np.int64)
    return np.concatenate([labels, np.full(count, foreign, dtype=labels.dtype)])


def _from_idx_folder(name: str, folder: str | os.PathLike[str], advice: str) -> Split:
    place = Path(folder)
    parts = []
    for part in ("train", "t10k"):
        images = read_idx(_idx_file(place, f"{part}-images", "idx3-ubyte", advice), dimensions=3)
        labels = read_idx(_idx_file(place, f"{part}-labels", "idx1-ubyte", advice), dimensions=1)
        if len(images) != len(labels):
            raise ValueError(f"{place}: {len(images)} {part} images and {len(labels)} labels.")
        parts.append(
            Dataset(
                name=name,
                descriptors=images.reshape(len(images), -1).astype(np.float32),
                labels=labels.astype(np.int64),
                image_shape=images.shape[1:],
            )
        )
    return Split(database=parts[0], queries=parts[1])


def _idx_file(folder: Path, stem: str, ending: str, advice: str) -> Path:
    # Some copies of these files have a dot where the published ones have a hyphen.
    for name in (f"{stem}-{ending}", f"{stem}.{ending}"):
        for candidate in (folder / f"{name}.gz", folder / name):
            if candidate.is_file():
                return candidate
    raise FileNotFoundError(
        f"{folder / f'{stem}-{ending}'}: not found, compressed or not. {advice} (train-images-idx3-"
        "ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte)."
    )


def _picture_chunks(
    dataset: Dataset, n: int, seed: int
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """The pictures, then pass after pass of warps, each chunk with the id of its first item."""
    for repetition in range(-(-n // dataset.n)):
        warps = random_warps(dataset.n, seed, repetition) if repetition else None
        for low in range(0, min(dataset.n, n - repetition * dataset.n), _CHUNK):
            part = slice(low, low + _CHUNK)
            images = np.asarray(dataset.images[part], dtype=np.float32)
            if warps is not None:
                images = warped(images, **{name: values[part] for name, values in warps.items()})
            yield repetition * dataset.n + low, images


def _as_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    if array.dtype.kind not in "iuf":
        raise ValueError(f"descriptors must be numbers; got {array.dtype}.")
    return np.ascontiguousarray(array, dtype=np.float32)


def _as_vector(array: NDArray[Any], place: Path) -> NDArray[Any]:
    # MATLAB has no vectors, only matrices of one row or column.
    if array.size != max(array.shape, default=0):
        raise ValueError(f"{place}: shape {array.shape}; expected one label for each item.")
    return array.reshape(-1)
