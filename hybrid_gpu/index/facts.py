"""What the header of an index tells without its arrays: size, keys, and which index it is."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybrid_gpu.errors import IndexFileError
from hybrid_gpu.files.stored_arrays import open_plain_file, read_head
from hybrid_gpu.index.packing import KEYS
from hybrid_gpu.index.storage import HEADER, read_header

_DTYPES = {"<f4": "float32", "<f8": "float64"}
_KEYS = ("text", "int64", "uint64")


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """What the header of an index tells.

    Attributes
    ----------
    n : int
        Number of items.
    dtype : str
        Of its scores.
    keys : str or None
        What the keys of its items are: ``"text"``, ``"int64"`` or ``"uint64"``; None: no keys.
    identity : str
        Sixteen hex digits. Another index has others; the same one that is saved again has the same.
    """

    n: int
    dtype: str
    keys: str | None
    identity: str


def index_facts(path: str | os.PathLike[str]) -> IndexFacts:
    """What the header of an index tells.

    Raises
    ------
    IndexFileError
        If there is no index, or its header is damaged.
    """
    folder = Path(path).absolute()
    header = read_header(folder)
    keys = header.get("sections", {}).get(KEYS)
    kind = None if keys is None else keys["parameters"].get("kind")
    if kind not in (None, *_KEYS):
        raise IndexFileError(f"{folder / HEADER}: damaged, keys of no kind that is known.")
    return IndexFacts(
        int(header["parameters"]["n"]), _dtype(folder, header), kind, _identity(header)
    )


def header_signature(path: Path) -> tuple[int, ...]:
    """What changes whenever another header is put in its place; cheap to ask for."""
    try:
        status = os.stat(path / HEADER)
    except OSError as fault:
        raise IndexFileError(f"{path}: no such index any more ({fault.strerror}).") from fault
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _dtype(folder: Path, header: Mapping[str, Any]) -> str:
    """The dtype of scores, which is that of the graph."""
    entry = header["arrays"].get("degrees", {})
    dtype = entry.get("dtype")
    if dtype is None and "file" in entry:  # version 1 has no dtypes in the header
        with open_plain_file(folder / entry["file"]) as file:
            dtype = read_head(file, folder / entry["file"]).dtype
    if dtype not in _DTYPES:
        raise IndexFileError(f"{folder / HEADER}: damaged, degrees of dtype {dtype!r}.")
    return _DTYPES[dtype]


def _identity(header: Mapping[str, Any]) -> str:
    """A checksum of what answers depend on: no names of files, nothing that can be made anew."""

    def values(arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {name: (entry["checksum"], entry.get("bytes")) for name, entry in arrays.items()}

    needed = {
        name: (section["parameters"], values(section["arrays"]))
        for name, section in header.get("sections", {}).items()
        if section["required"]
    }
    content = (header["parameters"], values(header["arrays"]), needed)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
