"""Compile CuPy's extension modules with Cython and g++; runs inside the stand-in's environment.

CuPy's own build insists on a CUDA toolkit with its libraries; this one needs their headers only. It
also writes down which functions the modules expect from those libraries.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import Cython
import numpy
from Cython.Build import cythonize
from setuptools import Extension

# Modules of CuPy's optional features, besides the list of its feature "cuda".
OPTIONAL_MODULES = (
    "cupy_backends.cuda.libs.cusolver",
    "cupyx._cusolver",
    "cupy_backends.cuda.libs.nvtx",
    "cupy.fft._callback",
    "cupy.cuda.cub",
    "cupy.cuda.thrust",
    "cupy._core.dlpack",
    "cupy.random._bit_generator",
    "cupy.random._generator_api",
)
# CuPy finds the functions of these files with dlsym: the file, and the prefix of their names.
SOFT_LINKS = (
    ("cupy_backends/cuda/api/_driver_extern.pxi", "cu"),
    ("cupy_backends/cuda/api/_runtime_softlink.pxi", "cuda"),
    ("cupy_backends/cuda/libs/_cnvrtc.pxi", "nvrtc"),
    ("cupy_backends/cuda/libs/cusolver.pyx", "cusolver"),
    ("cupy_backends/cuda/libs/cusparse.pyx", "cusparse"),
)


def main() -> None:
    """Compile all modules, the largest first, and list the symbols that they need."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--include", type=Path, required=True)
    parser.add_argument("--library-folder", type=Path, required=True)
    parser.add_argument("--cuda-version", type=int, required=True)
    parser.add_argument("--symbols", type=Path, required=True)
    parser.add_argument("--jobs", type=int, required=True)
    options = parser.parse_args()

    modules = module_names(options.source)
    modules.sort(key=lambda name: -pyx(options, name).stat().st_size)
    needed = soft_linked(options.packages)
    # Asked for once, before the workers: the first call is slow, and must not be interrupted.
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    with ProcessPoolExecutor(options.jobs) as pool:
        for symbols in pool.map(partial(build_module, options, suffix), modules):
            needed |= symbols
    options.symbols.write_text("\n".join(sorted(needed)) + "\n")


def module_names(source: Path) -> list[str]:
    """The extension modules of CuPy's feature "cuda", and the optional ones."""
    features = (source / "install" / "cupy_builder" / "_features.py").read_text()
    listed = re.search(r"_cuda_files = \[(.*?)\]", features, re.DOTALL)
    if listed is None:
        raise LookupError("CuPy's list of modules (_cuda_files in _features.py) has moved.")
    return [*re.findall(r"'([\w.]+)'", listed[1]), *OPTIONAL_MODULES]


def soft_linked(packages: Path) -> set[str]:
    """The functions that CuPy looks up at run time."""
    names = set()
    for file, prefix in SOFT_LINKS:
        text = (packages / file).read_text()
        # get('Name'), or get(f'Name{version}') for a function of which CUDA has a second version.
        for name, versioned in re.findall(r"_(?:L|lib)\.get\(f?'(\w+)(\{version\})?'\)", text):
            names.add(prefix + name + ("_v2" if versioned else ""))
    return names


def pyx(options: argparse.Namespace, module: str) -> Path:
    """The Cython source of a module."""
    return options.packages / (module.replace(".", "/") + ".pyx")


def build_module(options: argparse.Namespace, suffix: str, module: str) -> set[str]:
    """Build one module, and return the symbols that it does not define."""
    source = pyx(options, module)
    translated, compiled = source.with_suffix(".cpp"), source.with_suffix(".o")
    translate(options, module, source)
    include = [
        options.packages / "cupy" / "_core" / "include",
        options.include,
        numpy.get_include(),
        sysconfig.get_path("include"),
    ]
    call(
        "g++", "-c", "-fPIC", "-O1", "-w", "-std=c++17", "-DNDEBUG", "-D_FORCE_INLINES=1",
        '-DCYTHON_EXTERN_C=extern "C"', "-DNPY_TARGET_VERSION=NPY_2_0_API_VERSION",
        "-DCUPY_CACHE_KEY=standin", *(f"-I{folder}" for folder in include),
        "-o", compiled, translated,
    )  # fmt: skip
    call(
        "g++", "-shared", "-Wl,--no-as-needed", "-o", source.with_name(source.stem + suffix),
        compiled, f"-L{options.library_folder}", "-lcudastandin",
    )  # fmt: skip
    symbols = {line.split()[-1] for line in call("nm", "-u", compiled).splitlines()}
    translated.unlink()
    compiled.unlink()
    print(module, flush=True)
    return symbols


def translate(options: argparse.Namespace, module: str, source: Path) -> None:
    """Translate Cython to C++, with the settings of CuPy's own build."""
    extension = Extension(module, [str(source.relative_to(options.packages))], language="c++")
    with working_folder(options.packages):
        cythonize(
            [extension],
            quiet=True,
            force=True,
            language_level=3,
            compiler_directives={
                "linetrace": False,
                "profile": False,
                "embedsignature": True,
                "c_api_binop_methods": True,
                "binding": False,
                "warn.deprecated.IF": False,
                "freethreading_compatible": True,
            },
            compile_time_env={
                "CUPY_USE_CUDA_PYTHON": False,
                "CUPY_CUFFT_STATIC": False,
                "CUPY_CYTHON_VERSION": Cython.__version__,
                "CUPY_CUDA_VERSION": options.cuda_version,
                "CUPY_HIP_VERSION": 0,
            },
        )


@contextmanager
def working_folder(folder: Path) -> Iterator[None]:
    """Change the working folder for the length of a block (contextlib.chdir, from Python 3.11)."""
    before = os.getcwd()
    os.chdir(folder)
    yield
    os.chdir(before)


def call(*command: str | Path) -> str:
    """Run a command; its output, or an error that ends with what it printed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}\n{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
