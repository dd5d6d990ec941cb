"""How a long computation reports how far it has come."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)`` from time to time."""

ProgressOption: TypeAlias = Progress | bool | None
"""What users may pass: a function of their own, or True for a line on stderr."""


def as_progress(progress: ProgressOption) -> Progress | None:
    """The function to call, or None if nobody wants to know."""
    if progress is None or progress is False:
        return None
    if progress is True:
        return _Line()
    if not callable(progress):
        raise TypeError(
            f"progress must be True, or a function of stage, done and total; got {progress!r}."
        )
    return progress


class _Line:
    """Writes ``stage: done of total`` to stderr, over itself until the stage is done."""

    def __init__(self) -> None:
        self._open = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        if sys.stderr is None:  # a program without a console
            return
        over = done >= total
        begin = "\n" if self._open not in ("", stage) else ""
        end = "\n" if over else ""
        sys.stderr.write(f"{begin}\r{stage}: {done:,} of {total:,}{end}")
        sys.stderr.flush()
        self._open = "" if over else stage
