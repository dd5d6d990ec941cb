"""Pages whose code is run: every ``python`` block, and beside it what it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def blocks_of(text):
    """The Python of a page, each with what the ``text`` block below says that it prints."""
    return re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, re.DOTALL)


def printed_by(code, names):
    """What a block prints; ``names`` are those of the blocks before it."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue()


def without_times(text):
    """Seconds and devices differ from run to run; nothing else may."""
    return re.sub(r"\d+\.\d+ s\b", "TIME s", re.sub(r"on (numpy|cupy:\d)", "on X", text))


def run(blocks, names):
    """Run blocks one after the other; each must print what its page says."""
    for code, expected in blocks:
        assert without_times(printed_by(code, names)) == without_times(expected)
    return names
