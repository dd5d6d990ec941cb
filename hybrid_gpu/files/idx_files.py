"""Files in the IDX format, in which MNIST and its relatives are published."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.files.recognition import LARGEST_PACKING


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """The array of bytes in an IDX file: a magic number, the sizes, then the values.

    Parameters
    ----------
    path
        A file whose name ends in ``.gz`` is unpacked.
    dimensions
        How many the array must have.

    Raises
    ------
    ValueError
        If it is another file, damaged or cut short; the message names it.
    """
    size = path.stat().st_size
    packed = path.suffix == ".gz"
    header = 4 * (dimensions + 1)
    refusal = f"{path}: not an IDX file of {dimensions} dimensions, or cut short."
    try:
        with gzip.open(path) if packed else open(path, "rb") as stream:
            sizes = np.frombuffer(stream.read(header).ljust(header, b"\0"), dtype=">u4").tolist()
            expected = math.prod(sizes[1:])
            # The third byte of the magic number says 'bytes', the fourth how many dimensions.
            # Sizes that the file cannot hold are refused before anything is allocated.
            most = size * (LARGEST_PACKING if packed else 1)
            if sizes[0] != 0x800 + dimensions or expected > most:
                raise ValueError(refusal)
            content = stream.read(expected + 1)
    except (OSError, EOFError, zlib.error) as fault:
        raise ValueError(f"{path}: damaged ({fault}).") from fault
    if len(content) != expected:
        raise ValueError(refusal)
    return np.frombuffer(content, dtype=np.uint8).reshape(sizes[1:])
