"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Write some files, none of which is ever seen half-written.

    All of them are written under temporary names first: if that fails, nothing has changed.
    """
    temporary = {
        path: path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
        for path in contents
    }
    try:
        for path, content in contents.items():
            temporary[path].write_bytes(content)
        for path, name in temporary.items():
            os.replace(name, path)
    finally:
        for name in temporary.values():
            name.unlink(missing_ok=True)
