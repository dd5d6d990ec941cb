"""Where a sparse product on a GPU finds the rows that it gathers: L1, L2 or memory."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from gpu_graphs import Csr

SOURCE = Path(__file__).with_suffix(".cpp")
# The smallest piece that caches fetch.
SECTOR = 32


@dataclass(frozen=True)
class Schedule:
    """How a kernel walks through the rows of a matrix.

    Attributes
    ----------
    blocks : int
        Blocks on a multiprocessor at a time.
    at_once, visit : int
        Rows that a block works on side by side, and rows until it moves on.
    turn : int
        Entries of a row that are gathered together.
    one_visit : bool
        Whether the hardware gives the next rows to a new block; else blocks stay and stride.
    own : bool
        Whether the row of the row's own number is read, too.
    """

    blocks: int
    at_once: int
    visit: int
    turn: int
    one_visit: bool
    own: bool


@dataclass(frozen=True)
class Found:
    """Gathers of whole rows of the dense matrix, and the parts found in L1 and L2."""

    gathers: int
    in_l1: float
    in_l2: float
    unit_bytes: int

    @property
    def missed(self) -> float:
        """The part that comes from memory."""
        return 1 - self.in_l1 - self.in_l2

    @property
    def l2_bytes(self) -> float:
        """Bytes that L2 hands to L1."""
        return self.gathers * (1 - self.in_l1) * self.unit_bytes

    @property
    def memory_bytes(self) -> float:
        """Bytes that memory hands to L2."""
        return self.gathers * self.missed * self.unit_bytes


class Replay:
    """The replayer, compiled, with the arrays of one matrix in files."""

    def __init__(self, matrix: Csr) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._rows, self._columns = matrix.rows, matrix.columns
        folder = Path(self._folder.name)
        self._files = [str(folder / name) for name in ("indptr", "indices")]
        matrix.indptr.astype(np.int64).tofile(self._files[0])
        matrix.indices.astype(np.int32).tofile(self._files[1])

    def run(
        self, schedule: Schedule, row_bytes: int, *, sms: int, l1_bytes: int, l2_bytes: int
    ) -> Found:
        """Replay a product with a dense matrix of rows of so many bytes."""
        unit = max(SECTOR, row_bytes)
        numbers = (
            *(self._rows, self._columns, sms, schedule.blocks, schedule.at_once, schedule.visit),
            *(schedule.turn, int(schedule.one_visit), max(1, SECTOR // row_bytes)),
            *(max(1, l1_bytes // unit), max(1, l2_bytes // unit), int(schedule.own)),
        )
        command = [replayer(), *self._files, *map(str, numbers)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        read, in_l1, in_l2 = map(int, told.split())
        return Found(read, in_l1 / max(read, 1), in_l2 / max(read, 1), unit)


_COMPILED = tempfile.TemporaryDirectory()


@cache
def replayer() -> str:
    """The program, compiled on first use."""
    path = str(Path(_COMPILED.name) / "gpu_replay")
    subprocess.run(["g++", "-O2", "-std=c++17", str(SOURCE), "-o", path], check=True)
    return path
