"""The command ``hybrid-gpu``, or ``python -m hybrid_gpu``; tells what to install for it."""

from __future__ import annotations

import sys

from hybrid_gpu.errors import install_line

# What the extra "cli" brings; the library itself needs neither.
_NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command, or tell the line that installs what it needs."""
    try:
        from hybrid_gpu.cli import main as run
    except ModuleNotFoundError as missing:
        name = (missing.name or "").partition(".")[0]
        if name not in _NEEDED:
            raise  # another package is missing, or a module of ours
        sys.exit(f"error: the command needs {name}; {install_line('cli')}")
    run()


if __name__ == "__main__":
    main()
