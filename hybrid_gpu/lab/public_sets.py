"""Public data sets: the digits that come with the package, MNIST and Fashion-MNIST."""

from __future__ import annotations

import importlib.resources
import os
from pathlib import Path

import numpy as np

from hybrid_gpu.files.idx_files import read_idx
from hybrid_gpu.lab.benchmark import Dataset, Split

_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
_MNIST = Path("/usr/share/datasets/mnist")


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
        The folder of the four IDX files, compressed or not. None takes the one of Debian's package
        ``dataset-fashion-mnist``.

    Raises
    ------
    FileNotFoundError
        If the files are not there; the message says how to get them.
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
        The folder of the four IDX files, compressed or not. None takes
        ``/usr/share/datasets/mnist``.

    Raises
    ------
    FileNotFoundError
        If the files are not there; the message names them.
    """
    advice = "Pass the folder of the four IDX files"
    return _from_idx_folder("MNIST", _MNIST if folder is None else folder, advice)


def _from_idx_folder(name: str, folder: str | os.PathLike[str], advice: str) -> Split:
    """The training part as database and the test part as queries, from four IDX files.

    Parameters
    ----------
    name
        Name of the data sets.
    folder
    advice
        How to get the files; part of the error if one is missing.
    """
    place = Path(folder)
    parts = []
    for part in ("train", "t10k"):
        images = read_idx(_idx_file(place, f"{part}-images", "idx3-ubyte", advice), dimensions=3)
        labels = read_idx(_idx_file(place, f"{part}-labels", "idx1-ubyte", advice), dimensions=1)
        if len(images) != len(labels):
            raise ValueError(
                f"{place}: {len(images)} {part} images and {len(labels)} labels; expected as many."
            )
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
    """The file of one part of a data set; an error with ``advice`` if it is not there."""
    # Some copies of these files have a dot where the published ones have a hyphen.
    for name in (f"{stem}-{ending}", f"{stem}.{ending}"):
        for candidate in (folder / f"{name}.gz", folder / name):
            if candidate.is_file():
                return candidate
    raise FileNotFoundError(
        f"{folder / f'{stem}-{ending}'}: not found, compressed or not. {advice} (train-images-idx3-"
        "ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte)."
    )
