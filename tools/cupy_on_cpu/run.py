"""Run a command with the real CuPy on the stand-in CUDA libraries; builds them if need be.

Examples
--------
python tools/cupy_on_cpu/run.py python -m pytest tests
python tools/cupy_on_cpu/run.py pip install -e ".[faiss,test]"
"""

from __future__ import annotations

import argparse
import os
import sys

from build import built
from builder.layout import CACHE_VARIABLE, cache_folder, environment
from builder.steps import BuildError


def main() -> int:
    """Replace this process by the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", help=f"folder for build products (or set {CACHE_VARIABLE})")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    options = parser.parse_args()
    if not options.command:
        parser.error("say what to run, for example: python -m pytest tests")
    try:
        where = built(cache_folder(options.cache))
    except BuildError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    variables = environment(where)
    try:
        os.execvpe(options.command[0], options.command, variables)
    except FileNotFoundError:
        print(
            f"{options.command[0]}: not found, neither in {where.cupy} nor in PATH", file=sys.stderr
        )
        return 127


if __name__ == "__main__":
    sys.exit(main())
