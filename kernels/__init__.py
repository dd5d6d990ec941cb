"""C sources: CUDA kernels, compiled on first use, and the CPU's core, compiled at install."""

from __future__ import annotations

from importlib.resources import files
from typing import Any


def names() -> tuple[str, ...]:
    """The kernel files that come with the package, without their ending."""
    return tuple(
        sorted(file.name[:-3] for file in _folder().iterdir() if file.name.endswith(".cu"))
    )


def source(name: str) -> str:
    """The text of one kernel file."""
    return _folder().joinpath(f"{name}.cu").read_text(encoding="utf-8")


def _folder() -> Any:
    return files(__name__) / "cuda"


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
