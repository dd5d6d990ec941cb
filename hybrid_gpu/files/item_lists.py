"""Lists of items that users bring: an array file, or a text file with an item in each line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hybrid_gpu.backends.host_memory import available_host_bytes
from hybrid_gpu.files.array_files import load_array
from hybrid_gpu.files.recognition import MAT_MAGIC, NPY_MAGIC, ZIP_MAGIC, read_start, web_page_note

# What a line becomes in memory, at most, beside its own bytes.
_BYTES_PER_LINE = 100


def load_items(path: str | os.PathLike[str], *, text: bool) -> Any:
    """The array of an array file, or the lines of a text file.

    Parameters
    ----------
    path
        The kind of file is recognized by its content. Text is UTF-8; a line break at its end
        begins no other line.
    text
        Whether lines are strings; they are integers else.

    Raises
    ------
    ValueError
        If there is no such file, it is not text, or a line is not an integer that should be one.
    """
    file = Path(path)
    start = read_start(file, "a list of items")
    if start.startswith((NPY_MAGIC, ZIP_MAGIC, MAT_MAGIC)):
        return load_array(file)
    content = _content(file, start)
    lines = [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")]
    if not content:
        return []
    return lines if text else [_integer(line, number, file) for number, line in enumerate(lines, 1)]


def _content(file: Path, start: bytes) -> str:
    """The text of a file."""
    size = file.stat().st_size
    if (1 + _BYTES_PER_LINE) * size > available_host_bytes():
        raise MemoryError(f"{file}: {size / 1e6:.0f} MB of text are too much for the memory.")
    page = web_page_note(start)
    try:
        if not page:
            return file.read_bytes().removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError as fault:
        raise ValueError(
            f"{file}: neither an array file nor text in UTF-8 ({fault.reason} at byte "
            f"{fault.start})."
        ) from fault
    raise ValueError(f"{file}: not a list of items{page}.")


def _integer(line: str, number: int, file: Path) -> int:
    try:
        return int(line)
    except ValueError as fault:
        raise ValueError(f"{file}: line {number} must be an integer; got {line[:40]!r}.") from fault
