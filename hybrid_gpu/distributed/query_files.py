"""Query sets in files: ``.npy``, ``.npz`` and Parquet, read part by part and without trust."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.distributed.batch_columns import DESCRIPTORS
from hybrid_gpu.distributed.batches import arrow
from hybrid_gpu.files.array_files import array_names, array_shapes, load_array
from hybrid_gpu.files.recognition import read_start

_PARQUET_MAGIC = b"PAR1"
# What a folder of query sets is searched for.
SUFFIXES = (".npy", ".npz", ".parquet", ".pq")


def is_parquet(path: Path) -> bool:
    """Whether a file is one of Parquet, by its content; ``ValueError`` if there is none."""
    return read_start(path, "a query set").startswith(_PARQUET_MAGIC)


def count_queries(path: Path) -> int:
    """The number of queries in a file, from its head alone."""
    if is_parquet(path):
        with _parquet(path) as file:
            return int(file.metadata.num_rows)
    return _rows(path, array_shapes(path))


def query_parts(path: Path, size: int) -> Iterator[Any]:
    """The queries of a file, so many at a time: dicts of arrays, or tables of pyarrow.

    A file without queries has one part, which is empty. ``.npy`` and Parquet files may be larger
    than memory.

    Raises
    ------
    ValueError
        If there is no such file, or it is damaged or no query set; the message names the file.
    """
    if is_parquet(path):
        yield from _table_parts(path, size)
        return
    arrays = _arrays(path)
    count = _rows(path, {name: array.shape for name, array in arrays.items()})
    for start in range(0, max(count, 1), size):
        yield {name: array[start : start + size] for name, array in arrays.items()}


def _arrays(path: Path) -> dict[str, HostArray]:
    """The arrays of a file by name; an only one is of descriptors, whatever its name is."""
    names = array_names(path)
    strange = [name for name in names if "/" in name or "\\" in name]
    if strange:  # a name goes on to the answers, which somebody may unpack
        raise ValueError(f"{path}: an array must have the name of a column; got {strange[0]!r}.")
    if len(names) <= 1:
        return {DESCRIPTORS: load_array(path)}
    return {name: load_array(path, name=name) for name in names}


def _rows(path: Path, shapes: dict[str, tuple[int, ...]]) -> int:
    """The number of rows that all arrays have."""
    counts = {shape[0] if shape else 0 for shape in shapes.values()}
    if len(counts) != 1 or not all(shapes.values()):
        raise ValueError(
            f"{path}: arrays of a query set must have a row for each query; got shapes {shapes}."
        )
    return counts.pop()


def _table_parts(path: Path, size: int) -> Iterator[Any]:
    pyarrow, empty = arrow(), True
    with _parquet(path) as file:
        for batch in file.iter_batches(batch_size=size):
            empty = False
            yield pyarrow.Table.from_batches([batch])
        if empty:
            yield file.schema_arrow.empty_table()


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """An open Parquet file; what pyarrow finds wrong with it is an error that names it."""
    pyarrow = arrow()
    faults = (pyarrow.ArrowException, OSError, UnicodeDecodeError)
    try:
        file = importlib.import_module("pyarrow.parquet").ParquetFile(path)
    except faults as fault:
        raise _damaged(path, fault) from fault
    with file:
        try:
            yield file
        except faults as fault:
            raise _damaged(path, fault) from fault


def _damaged(path: Path, fault: BaseException) -> ValueError:
    reason = " ".join(str(fault).split())[:200]
    return ValueError(f"{path}: damaged or cut short ({reason}).")
