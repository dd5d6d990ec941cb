"""Data to rank: the digits that come with the package, public sets, and the user's own files."""

from __future__ import annotations

import gzip
import importlib.resources
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.validation import check_count

_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
_NPY_MAGIC = b"\x93NUMPY"
_ZIP_MAGIC = b"PK"
# What NumPy and zipfile raise for a file that is cut short, damaged, or holds Python objects.
_UNREADABLE = (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error, NotImplementedError)


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
        if self.image_shape is None:
            raise ValueError(f"the descriptors of {self.name} are not pictures.")
        return self.descriptors.reshape(self.n, *self.image_shape)

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
    return _from_idx_folder("Fashion-MNIST", folder, _FASHION_MNIST, "dataset-fashion-mnist")


def _from_idx_folder(
    name: str, folder: str | os.PathLike[str] | None, usual: Path, package: str
) -> Split:
    place = usual if folder is None else Path(folder)
    parts = []
    for part in ("train", "t10k"):
        images = _read_idx(_idx_file(place, f"{part}-images-idx3-ubyte", package), dimensions=3)
        labels = _read_idx(_idx_file(place, f"{part}-labels-idx1-ubyte", package), dimensions=1)
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


def _idx_file(folder: Path, name: str, package: str) -> Path:
    for candidate in (folder / f"{name}.gz", folder / name):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(
        f"{folder / name}: not found, compressed or not. Install Debian's package {package}, or "
        "pass the folder of the four IDX files."
    )


def _read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """An array of bytes in the IDX format: a magic number, the sizes, the values."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except _UNREADABLE as fault:
        raise ValueError(f"{path}: damaged ({fault}).") from fault
    header = 4 * (dimensions + 1)
    sizes = np.frombuffer(content[:header].ljust(header, b"\0"), dtype=">u4")
    # The third byte of the magic number says 'bytes', the fourth how many dimensions.
    if sizes[0] != 0x800 + dimensions or len(content) != header + int(np.prod(sizes[1:])):
        raise ValueError(f"{path}: not an IDX file of {dimensions} dimensions, or cut short.")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(*sizes[1:].tolist())


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


def load_array(path: str | os.PathLike[str], *, name: str | None = None) -> NDArray[Any]:
    """The array of a ``.npy`` file, mapped into memory, or of a ``.npz`` archive.

    Parameters
    ----------
    path
        Recognized by its content. Files of pickled Python objects are never opened.
    name
        The array to take from an archive of several; an archive of one array needs no name.

    Raises
    ------
    ValueError
        If there is no such file, or it is not one array; the message names the file.
    """
    file = Path(path)
    if not file.is_file():
        reason = "a folder, not an array file" if file.is_dir() else "no such file"
        raise ValueError(f"{file}: {reason}.")
    with open(file, "rb") as stream:
        magic = stream.read(len(_NPY_MAGIC))
    if magic == _NPY_MAGIC:
        return _from_npy(file)
    if magic.startswith(_ZIP_MAGIC):
        return _from_npz(file, name)
    raise ValueError(f"{file}: not an array file. Write one with numpy.save or numpy.savez.")


def _subset(dataset: Dataset, rows: NDArray[np.int64]) -> Dataset:
    return Dataset(
        dataset.name, dataset.descriptors[rows], dataset.labels[rows], dataset.image_shape
    )


def _from_npy(file: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(file, mode="r")
    except _UNREADABLE as fault:
        # NumPy maps neither empty arrays nor Python objects: reading tells the one from the other.
        try:
            array = np.load(file, allow_pickle=False)
        except _UNREADABLE:
            raise _unreadable(file, fault) from fault
    return array


def _from_npz(file: Path, name: str | None) -> NDArray[Any]:
    try:
        # Given a path, NumPy would leave the file of a damaged archive open.
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
            names = archive.files
            chosen = name if name in names else names[0] if len(names) == 1 else None
            if chosen is not None:
                array = archive[chosen]
    except _UNREADABLE as fault:
        raise _unreadable(file, fault) from fault
    if chosen is None:
        wanted = "exactly one" if name is None else f"one, or one called {name!r}"
        raise ValueError(
            f"{file}: holds {len(names)} arrays ({', '.join(names)}); expected {wanted}."
        )
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{file}: {chosen!r} is not an array. Write one with numpy.savez.")
    return array


def _unreadable(file: Path, fault: Exception) -> ValueError:
    if isinstance(fault, ValueError) and "object" in str(fault).lower():
        return ValueError(
            f"{file}: an array of Python objects, which is not read. Save numbers, not objects."
        )
    return ValueError(f"{file}: damaged or cut short ({fault}).")
