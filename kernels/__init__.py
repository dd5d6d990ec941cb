"""C sources: CUDA kernels, compiled on first use, and the CPU's core, compiled at install."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

# Threads of a block of the wide kernels, and bytes of their widest load.
_WIDE_THREADS, _WIDEST = 512, 16
# Blocks that fill any GPU, and the least threads of a block where rows are too few for that.
_WIDE_BLOCKS, _WIDE_LEAST = 1024, 128
# Fewer columns than this leave threads of a row over, which share its entries instead.
_WIDE_COLUMNS = 16


def names() -> tuple[str, ...]:
    """The kernel files that come with the package, without their ending."""
    return tuple(
        sorted(file.name[:-3] for file in _folder().iterdir() if file.name.endswith(".cu"))
    )


def source(name: str) -> str:
    """The text of one kernel file."""
    return _folder().joinpath(f"{name}.cu").read_text(encoding="utf-8")


# HG_HELD of top_k.cu: entries of a list for each of the threads that have it.
ROOM_OF_A_THREAD = 8


class TopKShape(NamedTuple):
    """How the two kernels of ``top_k.cu`` are launched.

    A block of ``threads`` reads one of ``parts`` of the items for ``width`` rows; then one of
    ``merge_threads`` merges the parts of a row.
    """

    width: int
    threads: int
    parts: int
    merge_threads: int

    @property
    def room(self) -> int:
        """Entries of the list of a part."""
        return ROOM_OF_A_THREAD * self.threads // self.width

    @property
    def merge_room(self) -> int:
        """Entries of the list of a merge."""
        return ROOM_OF_A_THREAD * self.merge_threads


def top_k_shape(m: int, n: int, k: int, *, columns: bool, multiprocessors: int) -> TopKShape:
    """The shape for the ``k`` best (up to 2048) of ``n`` items, for ``m`` rows.

    ``columns``: neighboring rows are neighbors in memory, and are read together. Few rows are cut
    into parts, so that every multiprocessor has blocks.
    """
    threads, width = 256 if columns else 128, 1
    if n > 16_384 and (columns or m < multiprocessors):
        threads = 512
    # With room for less than 3 k, lists are cut too often.
    while threads < 512 and ROOM_OF_A_THREAD * threads < 3 * k:
        threads *= 2
    widest = min(threads // 32, ROOM_OF_A_THREAD * threads // (3 * k)) if columns else 1
    while width < m and 2 * width <= widest:
        width *= 2
    tiles = -(-m // width)
    blocks = multiprocessors * (1024 // threads)
    # A part keeps k items: it should read many more.
    parts = max(1, min(blocks // tiles, n // max(4096, 16 * k)))
    merge_threads = 256 if parts > 1 else 32
    while merge_threads < 512 and ROOM_OF_A_THREAD * merge_threads < 2 * k:
        merge_threads *= 2
    return TopKShape(width, threads, parts, merge_threads)


def _folder() -> Any:
    return files(__name__) / "cuda"


@dataclass(frozen=True)
class TileShape:
    """How a pass over row-major (n, m) arrays lies on threads.

    Attributes
    ----------
    pack : int
        Columns of a thread.
    block : (int, int)
        Threads (x, y): x packs and y rows at a time.
    passes : int
        How often a block takes y rows.
    """

    pack: int
    block: tuple[int, int]
    passes: int = 8

    @property
    def defines(self) -> tuple[str, ...]:
        """What the source is compiled with."""
        return (f"HG_PACK={self.pack}",)

    def grid(self, n: int, m: int) -> tuple[int, int]:
        """Blocks over n rows and m columns."""
        x, y = self.block
        return max(1, -(-n // (y * self.passes))), -(-m // (x * self.pack))


def tile_shape(m: int, value_bytes: int, alignment: int = _WIDEST) -> TileShape:
    """The shape for ``m`` columns in arrays that begin at a multiple of ``alignment`` bytes."""
    pack = _pack(m, value_bytes, alignment)
    return TileShape(pack, tile_block(m // pack))


def _pack(m: int, value_bytes: int, alignment: int) -> int:
    """Columns that one load can take."""
    pack = 1
    while m % (2 * pack) == 0 and 2 * pack * value_bytes <= min(alignment, _WIDEST):
        pack *= 2
    return pack


def tile_block(m: int) -> tuple[int, int]:
    """Threads (x, y) for ``m`` columns, x of them on one row: every thread has one column."""
    tiles = -(-m // 128)
    x = -(-m // tiles)
    return x, 256 // x


def row_block(m: int, row_length: float) -> tuple[int, int]:
    """Threads (x, y) of a sparse product with ``m`` columns and rows of this mean length.

    Up to 16 columns leave threads over, which share the entries of a row.
    """
    if m > 16:
        return tile_block(m)
    x = 1 << (m - 1).bit_length()
    while x < 32 and x < m * row_length:
        x *= 2
    return x, 256 // x


@dataclass(frozen=True)
class WideShape:
    """How a wide sparse product lies on threads.

    Attributes
    ----------
    pack, lanes : int
        Columns of a thread, and threads of a row.
    rows : int
        Rows of a block side by side.
    passes : int
        How often a block takes so many rows: more of them would meet less often in L2.
    """

    pack: int
    lanes: int
    rows: int
    passes: int

    @property
    def block(self) -> tuple[int, int]:
        """Threads (x, y) of a block."""
        return self.lanes, self.rows

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.lanes * self.pack

    @property
    def defines(self) -> tuple[str, ...]:
        """What the source is compiled with."""
        return (f"HG_PACK={self.pack}", f"HG_LANES={self.lanes}")

    def grid(self, n: int, m: int) -> tuple[int, int]:
        """Blocks over n rows and m columns."""
        return max(1, -(-n // (self.rows * self.passes))), -(-m // self.columns)


def wide_shape(
    m: int, value_bytes: int, alignment: int = _WIDEST, *, n: int = 1 << 20
) -> WideShape | None:
    """The shape for ``m`` columns in arrays that begin at a multiple of ``alignment`` bytes.

    Few rows get smaller blocks, so that there is one for every multiprocessor of any GPU. None: too
    few columns.
    """
    pack = _pack(m, value_bytes, alignment)
    if m < _WIDE_COLUMNS or (m == _WIDE_COLUMNS and pack == 1):
        return None
    lanes = next((lanes for lanes in (4, 8, 16) if lanes * pack >= m), 32)
    rows, passes = _WIDE_THREADS // lanes, 2
    if n < _WIDE_BLOCKS * rows * passes:
        passes = 1
    while n < _WIDE_BLOCKS * rows and rows * lanes > _WIDE_LEAST:
        rows //= 2
    return WideShape(pack, lanes, rows, passes)
