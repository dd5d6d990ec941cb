"""The files of the page itself, and data in a form that a script can hold."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping
from typing import Any

PAGE = (
    *("index.html", "style.css", "icon.svg"),
    *("source.js", "items.js", "drawing.js", "reason.js", "npy.js", "app.js"),
)
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"} | {
    ".svg": "image/svg+xml"
}


def page_file(name: str) -> bytes:
    """A file of the page."""
    if name not in PAGE:
        raise ValueError(f"the page has no file {name!r}.")
    return importlib.resources.files("hybrid_gpu.explore").joinpath("page", name).read_bytes()


def media_type(name: str) -> str:
    """The type of a file of the page."""
    return _MEDIA_TYPES[name[name.rindex(".") :]]


def as_script(function: str, *values: Any) -> bytes:
    """A script that hands values to a function of the page."""
    return f"explorer.{function}({', '.join(map(as_json, values))});\n".encode("ascii")


def as_json(value: Any) -> str:
    """JSON in ASCII that stays data wherever it is put: nothing in it ends a script or a tag."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def total_bytes(files: Mapping[str, bytes]) -> int:
    """The size of some files."""
    return sum(map(len, files.values()))
