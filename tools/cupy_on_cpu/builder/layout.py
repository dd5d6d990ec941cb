"""Where everything is, and under which key: nothing here builds anything.

A build has two layers, each in a folder of its own below the cache folder:

``cupy-...``
    A virtual environment, NVIDIA's headers, and CuPy compiled from its source distribution. Takes
    minutes; depends on versions only.
``standin-...``
    The stand-in CUDA libraries. Takes seconds; depends on the sources next to this file as well.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

CUPY_VERSION = "14.2.0"
CUDA_VERSION = 12090  # of the headers in header_wheels.txt

TOOL = Path(__file__).resolve().parent.parent
BUILDER = TOOL / "builder"
SOURCES = TOOL / "src"

CACHE_VARIABLE = "CUPY_ON_CPU_CACHE"


def cache_folder(given: str | None = None) -> Path:
    """The folder for build products: the argument, the variable, or the user's cache."""
    chosen = given or os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hybrid-gpu" / "cupy-on-cpu"


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The two folders of a build, and what is in them."""

    cupy: Path
    standin: Path

    @property
    def python(self) -> Path:
        return self.cupy / "venv" / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.cupy / "venv" / "lib" / version / "site-packages"

    @property
    def openblas(self) -> Path:
        return self.site_packages / "scipy_openblas32"

    @property
    def nvidia_headers(self) -> Path:
        return self.cupy / "cuda" / "include"

    @property
    def cupy_packages(self) -> Path:
        return self.cupy / "packages"

    @property
    def cupy_tests(self) -> Path:
        return self.cupy / "source" / f"cupy-{CUPY_VERSION}" / "tests"

    @property
    def needed_symbols(self) -> Path:
        return self.cupy / "needed_symbols.txt"

    @property
    def library(self) -> Path:
        return self.standin / "lib" / "libcudastandin.so"


def layout(cache: Path) -> Layout:
    """The folders that belong to these sources, this Python, and these versions."""
    python = f"{sys.implementation.cache_tag}-{platform.python_version()}-{platform.machine()}"
    of_cupy = digest(
        python,
        BUILDER / "requirements.txt",
        BUILDER / "header_wheels.txt",
        BUILDER / "cupy_layer.py",
        BUILDER / "compile_cupy.py",
    )
    cupy = f"cupy-{CUPY_VERSION}-py{platform.python_version()}-numpy{pinned('numpy')}-{of_cupy}"
    of_standin = digest(
        cupy,
        TOOL / "python" / "standin.py",
        BUILDER / "standin_layer.py",
        BUILDER / "stubs.py",
        *sorted(path for path in SOURCES.rglob("*") if path.suffix in {".h", ".cpp"}),
    )
    return Layout(cache / cupy, cache / f"standin-{of_standin}")


def digest(*parts: str | Path) -> str:
    """A short hash of texts, and of the names and contents of files."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            total.update(str(part.relative_to(TOOL)).encode() + b"\0" + part.read_bytes())
        else:
            total.update(part.encode())
        total.update(b"\0")
    return total.hexdigest()[:12]


def pinned(package: str) -> str:
    """The version of a package in requirements.txt that holds for this Python."""
    newer = sys.version_info >= (3, 11)
    for line in (BUILDER / "requirements.txt").read_text().splitlines():
        found = re.fullmatch(rf"{package}==([\w.]+)(?:; python_version (>=|<) \"3.11\")?", line)
        if found and found[2] in (None, ">=" if newer else "<"):
            return found[1]
    raise LookupError(f"requirements.txt does not pin {package}")


def environment(where: Layout) -> dict[str, str]:
    """The environment variables in which commands see CuPy on the stand-in."""
    result = dict(os.environ)
    result.pop("PYTHONHOME", None)
    result["VIRTUAL_ENV"] = str(where.cupy / "venv")
    result["CUDA_PATH"] = result["CUDA_HOME"] = str(where.cupy / "cuda")
    result["CUPY_CACHE_DIR"] = str(where.standin / "kernel_cache")
    # CuPy's CUB reductions need nvcc.
    result["CUPY_ACCELERATORS"] = ""
    # One thread adds in one order, so that a test gives the same bits twice.
    result.setdefault("OPENBLAS_NUM_THREADS", "1")
    prepend(result, "PATH", where.cupy / "venv" / "bin")
    prepend(result, "LD_LIBRARY_PATH", where.library.parent)
    prepend(result, "PYTHONPATH", where.standin / "python")
    return result


def prepend(variables: dict[str, str], name: str, folder: Path) -> None:
    """Put a folder first in a variable that lists folders."""
    rest = variables.get(name)
    variables[name] = f"{folder}{os.pathsep}{rest}" if rest else str(folder)
