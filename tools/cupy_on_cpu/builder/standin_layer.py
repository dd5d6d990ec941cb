"""The quick layer: the stand-in CUDA libraries, all of them one shared library."""

from __future__ import annotations

import ctypes
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from builder.layout import SOURCES, TOOL, Layout
from builder.steps import run, step
from builder.stubs import missing_functions, stub_source

# The names under which CuPy and cuda-pathfinder look for NVIDIA's libraries.
ALIASES = (
    "libcuda.so.1",
    "libcudart.so.12",
    "libnvrtc.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcusparse.so.12",
    "libcusolver.so.11",
    "libcurand.so.10",
    "libcufft.so.11",
    "libnvJitLink.so.12",
)
# Headers that are precompiled, because every kernel begins with one of them.
PRECOMPILED = ("standin_device.h", "standin_cupy.h")


def build(where: Layout, jobs: int, log: Path) -> None:
    """Fill the empty folder ``where.standin``."""
    with step("stand-in libraries"):
        compile_library(where, jobs, log)
    with step("precompiled headers"):
        shutil.copytree(SOURCES / "device", where.standin / "device")
        (where.standin / "nvidia").symlink_to(where.nvidia_headers)
        precompile(where, jobs, log)
    shutil.copytree(TOOL / "python", where.standin / "python")


def compile_library(where: Layout, jobs: int, log: Path) -> None:
    """Compile our sources and the stubs, and link them under the names of NVIDIA's libraries."""
    objects = where.standin / "objects"
    objects.mkdir()

    def compiled(source: Path) -> Path:
        target = objects / f"{source.parent.name}_{source.stem}.o"
        include = (SOURCES, where.nvidia_headers, where.openblas / "include")
        flags = ("-std=c++17", "-O2", "-fPIC", "-Wno-deprecated-declarations")
        run(
            ["g++", *flags, *(f"-I{folder}" for folder in include), "-c", source, "-o", target], log
        )
        return target

    with ThreadPoolExecutor(jobs) as pool:
        made = list(pool.map(compiled, sorted(SOURCES.glob("*/*.cpp"))))
    stubs = objects / "stubs.cpp"
    needed = where.needed_symbols.read_text().split()
    stubs.write_text(stub_source(missing_functions(needed, made)))
    made.append(compiled(stubs))

    folder = where.library.parent
    folder.mkdir()
    openblas = where.openblas / "lib"
    # Symbolic: the library's own cudaMalloc must win over any other in the process.
    run(
        [
            "g++", "-shared", "-o", where.library, *made, f"-Wl,-soname,{where.library.name}",
            "-Wl,-Bsymbolic-functions", f"-L{openblas}", "-lscipy_openblas",
            f"-Wl,-rpath,{openblas}", "-ldl", "-lpthread",
        ],
        log,
    )  # fmt: skip
    for alias in ALIASES:
        (folder / alias).symlink_to(where.library.name)
    shutil.rmtree(objects)


def precompile(where: Layout, jobs: int, log: Path) -> None:
    """Precompile the device headers, without and with bounds checks."""
    library = ctypes.CDLL(str(where.library))
    library.standin_compiler_flags.restype = ctypes.c_char_p
    of_cupy = where.cupy_packages / "cupy" / "_core" / "include"
    cccl = of_cupy / "cupy" / "_cccl"
    include = (
        where.standin / "device", cccl / "cub", cccl / "thrust", cccl / "libcudacxx", of_cupy,
        where.nvidia_headers,
    )  # fmt: skip

    all_flags = [library.standin_compiler_flags(check).decode().split() for check in (0, 1)]

    def precompiled(header: str, check_bounds: int) -> None:
        # A folder named .gch may hold several variants; g++ takes the one whose flags fit.
        folder = where.standin / "pch" / f"{header}.gch"
        folder.mkdir(parents=True, exist_ok=True)
        source = where.standin / "device" / header
        run(
            [
                "g++", *all_flags[check_bounds], *(f"-I{path}" for path in include),
                "-x", "c++-header", source,
                "-o", folder / ("bounds" if check_bounds else "plain"),
            ],
            log,
        )  # fmt: skip

    variants = [(header, check) for header in PRECOMPILED for check in (0, 1)]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda variant: precompiled(*variant), variants))
