"""Files of answers, written part by part: ``.npz`` for arrays, Parquet for tables.

The same answers make the same bytes: no file has a date in it.
"""

from __future__ import annotations

import importlib
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol

import numpy as np

from hybrid_gpu.backends.protocol import HostArray


class AnswerFile(Protocol):
    """A file that takes the answers to one part of its queries after the other."""

    def put(self, answers: Any) -> None:
        """Take the answers to the next part."""


@contextmanager
def answer_file(file: BinaryIO, scratch: Path, *, parquet: bool) -> Iterator[AnswerFile]:
    """Write answers to an open file; ``scratch`` begins the path of what is on its way there."""
    if parquet:
        written = _ParquetAnswers(file)
        try:
            yield written
        finally:
            written.close()
        return
    with ExitStack() as stack:
        archive = _ArchiveAnswers(scratch, stack)
        yield archive
        archive.write(file)


class _ParquetAnswers:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._writer: Any = None

    def put(self, answers: Any) -> None:
        if self._writer is None:
            parquet = importlib.import_module("pyarrow.parquet")
            self._writer = parquet.ParquetWriter(self._file, answers.schema)
        self._writer.write_table(answers)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _ArchiveAnswers:
    """A ``.npz`` archive; its arrays come part by part, side by side, and stand one by one."""

    def __init__(self, scratch: Path, stack: ExitStack) -> None:
        self._scratch, self._stack = scratch, stack
        self._spools: dict[str, IO[bytes]] = {}
        self._rows: dict[str, int] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._widths: dict[str, tuple[int, ...]] = {}
        self._parts = 0

    def put(self, answers: dict[str, HostArray]) -> None:
        self._parts += 1
        for name, values in answers.items():
            array = _plain(values)
            if name not in self._spools:
                self._spools[name] = self._spool()
                self._rows[name], self._dtypes[name] = 0, array.dtype
                self._widths[name] = array.shape[1:]
            self._rows[name] += len(array)
            # Texts are as wide as the widest.
            self._dtypes[name] = np.promote_types(self._dtypes[name], array.dtype)
            np.lib.format.write_array(self._spools[name], array, allow_pickle=False)

    def _spool(self) -> IO[bytes]:
        # It has no name, or one for a moment only: nothing is left of it, whatever happens.
        folder, prefix = self._scratch.parent, self._scratch.name
        spool = tempfile.TemporaryFile(dir=folder, prefix=prefix, suffix=".tmp")  # noqa: SIM115
        return self._stack.enter_context(spool)

    def write(self, file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
            for name, spool in self._spools.items():
                spool.seek(0)
                entry = zipfile.ZipInfo(f"{name}.npy")  # which has a date of its own: 1980
                with archive.open(entry, "w", force_zip64=True) as member:
                    self._write_array(name, spool, member)

    def _write_array(self, name: str, spool: IO[bytes], member: IO[bytes]) -> None:
        dtype, shape = self._dtypes[name], (self._rows[name], *self._widths[name])
        descr = np.lib.format.dtype_to_descr(dtype)
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, header)
        for _ in range(self._parts):
            part = np.lib.format.read_array(spool, allow_pickle=False)
            content = np.ascontiguousarray(part, dtype).reshape(-1)
            if content.size:
                member.write(content.view(np.uint8).data)


def _plain(values: HostArray) -> HostArray:
    """Values as NumPy stores them without pickle: texts of one width, empty where there is none."""
    array = np.asarray(values)
    if array.dtype.kind != "O":
        return array
    flat = ["" if value is None else value for value in array.reshape(-1)]
    return np.array(flat, "U").reshape(array.shape)
