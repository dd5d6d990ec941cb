"""The slow layer: a virtual environment with CuPy compiled from its source distribution."""

from __future__ import annotations

import platform
import shutil
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

from builder.layout import BUILDER, CUDA_VERSION, CUPY_VERSION, Layout
from builder.steps import BuildError, run, step


def build(where: Layout, jobs: int, log: Path) -> None:
    """Fill the empty folder ``where.cupy``."""
    require_machine()
    with step("virtual environment"):
        venv.create(where.cupy / "venv", with_pip=True)
        pip(where, log, "install", "-r", BUILDER / "requirements.txt")
    with step("NVIDIA's headers (large wheels)"):
        unpack_headers(where, log)
    with step("CuPy's source"):
        unpack_cupy(where, log)
    with step(f"compile CuPy with {jobs} jobs"):
        compile_cupy(where, jobs, log)


def require_machine() -> None:
    """Refuse a machine on which the build would fail later, after large downloads."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise BuildError("the stand-in switches stacks by hand: it runs on Linux on x86-64 only.")
    for tool, package in (("g++", "g++"), ("nm", "binutils"), ("c++filt", "binutils")):
        if shutil.which(tool) is None:
            raise BuildError(f"{tool} is not installed; the build needs it (Debian: {package}).")


def pip(where: Layout, log: Path, *arguments: str | Path) -> None:
    """Run pip in the environment."""
    # The source distribution of CuPy looks for CUDA even to tell its version.
    quiet = ("--disable-pip-version-check", "--no-input")
    run([where.python, "-m", "pip", *quiet, *arguments], log, CUPY_INSTALL_USE_STUB="1")


def unpack_headers(where: Layout, log: Path) -> None:
    """Take the headers out of NVIDIA's wheels, and throw the rest away."""
    wheels = where.cupy / "wheels"
    pip(where, log, "download", "--no-deps", "-d", wheels, "-r", BUILDER / "header_wheels.txt")
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                _, marker, inner = name.partition("/include/")
                if not marker or name.endswith("/"):
                    continue
                target = where.nvidia_headers / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
    shutil.rmtree(wheels)


def unpack_cupy(where: Layout, log: Path) -> None:
    """Unpack CuPy; its packages go to a folder that the environment imports from."""
    source = where.cupy / "source"
    pip(
        where, log, "download", "--no-deps", "--no-build-isolation", "--no-binary", "cupy",
        "-d", source, f"cupy=={CUPY_VERSION}",
    )  # fmt: skip
    [archive] = source.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        if sys.version_info >= (3, 12):
            tar.extractall(source, filter="data")
        else:
            tar.extractall(source)
    archive.unlink()
    where.cupy_packages.mkdir()
    for package in ("cupy", "cupyx", "cupy_backends"):
        (source / f"cupy-{CUPY_VERSION}" / package).rename(where.cupy_packages / package)
    (where.site_packages / "cupy_on_cpu.pth").write_text(f"{where.cupy_packages}\n")


def compile_cupy(where: Layout, jobs: int, log: Path) -> None:
    """Compile CuPy's extension modules; they link to a library that the other layer makes."""
    placeholder = where.cupy / "placeholder"
    placeholder.mkdir()
    (placeholder / "empty.c").write_text("")
    name = "libcudastandin.so"
    run(
        [
            "g++",
            "-shared",
            f"-Wl,-soname,{name}",
            "-o",
            placeholder / name,
            placeholder / "empty.c",
        ],
        log,
    )
    run(
        [
            where.python, BUILDER / "compile_cupy.py",
            "--source", where.cupy / "source" / f"cupy-{CUPY_VERSION}",
            "--packages", where.cupy_packages,
            "--include", where.nvidia_headers,
            "--library-folder", placeholder,
            "--cuda-version", str(CUDA_VERSION),
            "--symbols", where.needed_symbols,
            "--jobs", str(jobs),
        ],
        log,
    )  # fmt: skip
