"""Larger data sets for tests of scale: pictures, and random affine warps of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.lab.benchmark import Dataset
from hybrid_gpu.lab.warps import leading_directions, random_warps, warped
from hybrid_gpu.progress import ProgressOption, as_progress
from hybrid_gpu.validation import check_count

# Pictures warped at a time: their positions and weights stay in the cache of a core.
_CHUNK = 256


def augmented(
    dataset: Dataset,
    n: int,
    seed: int,
    *,
    dimensions: int | None = 64,
    progress: ProgressOption = None,
) -> Dataset:
    """The pictures of a data set and random affine warps of them, ``n`` items in all.

    The first items are the pictures themselves. Then come passes over all pictures, each of which
    warps every picture once: it is rotated by up to 15 degrees, scaled by 0.9 to 1.1, sheared by up
    to 0.1 and shifted by up to 2 pixels. A warped picture keeps its label. An item depends on the
    data set, on ``seed`` and on its own position, but not on ``n``: a smaller set is the beginning
    of a larger one.

    Parameters
    ----------
    dataset
        A set of gray pictures: its ``image_shape`` is (height, width).
    n
        Number of items, at least that of the data set.
    seed
    dimensions
        Size of the descriptors. They are the pictures, projected onto the leading eigenvectors of
        the second moments of the data set's own pictures. Nothing is centered, so that cosines stay
        close to those of the pictures. None keeps the pixels.
    progress
        Called as ``progress("warps", done, total)`` with the number of items.

    Raises
    ------
    ValueError
        If the items are not gray pictures, or ``n`` is smaller than their number.
    """
    told = as_progress(progress)
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
        if told:
            told("warps", start + len(rows), n)
    return Dataset(
        name=f"{dataset.name} and warps" if n > dataset.n else dataset.name,
        descriptors=descriptors,
        labels=dataset.labels[np.arange(n) % dataset.n],
        image_shape=shape if basis is None else None,
    )


def _picture_chunks(
    dataset: Dataset, n: int, seed: int
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """The pictures and then their warps, in chunks, each with the id of its first item."""
    for repetition in range(-(-n // dataset.n)):
        warps = random_warps(dataset.n, seed, repetition) if repetition else None
        for low in range(0, min(dataset.n, n - repetition * dataset.n), _CHUNK):
            part = slice(low, low + _CHUNK)
            images = np.asarray(dataset.images[part], dtype=np.float32)
            if warps is not None:
                images = warped(images, **{name: values[part] for name, values in warps.items()})
            yield repetition * dataset.n + low, images
