"""Build the real CuPy over the stand-in CUDA libraries, once: a second call returns at once.

Examples
--------
python tools/cupy_on_cpu/build.py
python tools/cupy_on_cpu/build.py --install ".[faiss,test]"
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from builder import cupy_layer, standin_layer
from builder.layout import (
    BUILDER,
    CACHE_VARIABLE,
    CUPY_VERSION,
    Layout,
    cache_folder,
    environment,
    layout,
)
from builder.steps import BuildError, ensure, step


def built(cache: Path, *, jobs: int | None = None, rebuild: bool = False) -> Layout:
    """The layout of a finished build; builds what is missing."""
    where = layout(cache)
    # An exception ends a running compiler or pip along with this process; the default action of the
    # signal would leave it behind, writing into a folder that the next build empties.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    workers = jobs or os.cpu_count() or 1
    new_cupy = ensure(
        where.cupy, lambda log: cupy_layer.build(where, workers, log), rebuild=rebuild
    )
    ensure(
        where.standin,
        lambda log: standin_layer.build(where, workers, log),
        rebuild=rebuild or new_cupy,
    )
    return where


def install(where: Layout, requirement: str) -> None:
    """Install a project into the environment; a folder is installed as an editable project."""
    command = [str(where.python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    # The versions that CuPy was compiled with stay as they are.
    command += ["-c", str(BUILDER / "requirements.txt")]
    folder = requirement.partition("[")[0]
    command += ["-e", requirement] if Path(folder).is_dir() else [requirement]
    if os.spawnve(os.P_WAIT, command[0], command, environment(where)):
        raise BuildError(f"pip could not install {requirement}; its message is above.")


def main() -> int:
    """Build, and install what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", help=f"folder for build products (or set {CACHE_VARIABLE})")
    parser.add_argument(
        "--install",
        action="append",
        default=[],
        metavar="REQUIREMENT",
        help='install into the environment: a folder (".[faiss,test]") or a package',
    )
    parser.add_argument(
        "--jobs", type=int, help="number of compilers at a time; all cores if absent"
    )
    parser.add_argument("--rebuild", action="store_true", help="build again from scratch")
    options = parser.parse_args()

    start = time.monotonic()
    try:
        where = built(cache_folder(options.cache), jobs=options.jobs, rebuild=options.rebuild)
        for requirement in options.install:
            with step(f"install {requirement}"):
                install(where, requirement)
    except BuildError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    print(
        f"CuPy {CUPY_VERSION} on a CPU is ready ({time.monotonic() - start:.1f} s) in {where.cupy}"
    )
    print("run a command in it: python tools/cupy_on_cpu/run.py python -c 'import cupy'")
    return 0


if __name__ == "__main__":
    sys.exit(main())
