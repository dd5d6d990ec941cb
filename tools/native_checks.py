"""Checks of the native core that need a compiler: sanitizers, threads, and another processor.

    python tools/native_checks.py             # all of them that can be had here
    python tools/native_checks.py sanitize    # its tests, with AddressSanitizer and UBSan in it
    python tools/native_checks.py threads     # a driver in C, with ThreadSanitizer
    python tools/native_checks.py arm         # the driver for aarch64, run by qemu-user
    python tools/native_checks.py bare        # the driver in plain C, as MSVC compiles it
    python tools/native_checks.py warnings    # every warning of the compiler is an error

What is missing (a cross compiler, qemu) is told and skipped; with ``--all`` that is a failure.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "kernels" / "cpu"
DRIVER = Path(__file__).with_name("native_driver.c")
TESTS = ["tests/backends/test_native.py", "tests/backends/test_local_search.py"]
RUN_TESTS = """
import pathlib, sys, pytest
from hybrid_gpu.backends import native
native._LIBRARY = pathlib.Path(sys.argv[1])
assert native.native_core() is not None, native.core_state()
raise SystemExit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


class Missing(Exception):
    """A tool that is not installed here."""


def build_script():
    """``setup.py`` as a module, for its flags."""
    os.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("native_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiler(name: str) -> str:
    """Where a program is."""
    found = shutil.which(name)
    if found is None:
        raise Missing(name)
    return found


def run(*command: object, **options) -> None:
    """Run a command that has to succeed."""
    subprocess.run([str(part) for part in command], check=True, **options)


def objects(gcc: str, flags: Sequence[str], folder: Path, levels: Sequence[str]) -> list[Path]:
    """Every source at some levels, compiled with flags of ours beside those of the build."""
    script, made = build_script(), []
    jobs = [(script.BASE, "base", [f"-DHG_SOURCES={script.checksum()}u"])]
    for level in levels:
        more = [f"-DHG_LEVEL={level}", *script.UNIX_LEVELS[level]]
        names = [path for path in sorted(SOURCES.glob("*.c")) if path.name != script.BASE.name]
        jobs += [(path, level, more) for path in names]
    for path, level, more in jobs:
        made.append(folder / f"{path.stem}-{level}.o")
        run(gcc, "-c", ROOT / path, "-o", made[-1], *script.UNIX_FLAGS, *more, *flags)
    return made


def sanitize(folder: Path) -> None:
    """The tests of the core on a library that watches memory and undefined behavior."""
    gcc = compiler("gcc")
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g"]
    flags += ["-fno-omit-frame-pointer"]
    library = folder / "libhybrid_gpu.so"
    levels = list(build_script().UNIX_LEVELS) if os.uname().machine == "x86_64" else ["plain"]
    parts = objects(gcc, flags, folder, levels)
    run(gcc, "-shared", "-fsanitize=address,undefined", "-o", library, *parts, "-lm")
    runtime = subprocess.run(
        [gcc, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    environment = os.environ | {
        "LD_PRELOAD": runtime,
        "HYBRID_GPU_TEST_BACKENDS": "numpy",
        # Python itself keeps memory until the end.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    run(sys.executable, "-c", RUN_TESTS, library, *TESTS, env=environment, cwd=ROOT)


def threads(folder: Path) -> None:
    """The driver with ThreadSanitizer."""
    gcc, flags = compiler("gcc"), ["-fsanitize=thread", "-O1", "-g"]
    parts = objects(gcc, flags, folder, ["plain"])
    run(gcc, *flags, DRIVER, *parts, "-o", folder / "driver", "-pthread", "-lm")
    run(folder / "driver", env=os.environ | {"TSAN_OPTIONS": "halt_on_error=1"})


def arm(folder: Path) -> None:
    """The driver for another processor."""
    gcc, qemu = compiler("aarch64-linux-gnu-gcc"), compiler("qemu-aarch64")
    parts = objects(gcc, [], folder, ["plain"])
    run(gcc, "-O2", "-static", DRIVER, *parts, "-o", folder / "driver", "-pthread", "-lm")
    run(qemu, folder / "driver")


def bare(folder: Path) -> None:
    """The driver without the vectors of GCC and Clang: what MSVC compiles."""
    gcc = compiler("gcc")
    parts = objects(gcc, ["-DHG_PLAIN_C", "-Wall", "-Wextra", "-Werror"], folder, ["plain"])
    run(gcc, "-O2", DRIVER, *parts, "-o", folder / "driver", "-pthread", "-lm")
    run(folder / "driver")


def warnings(folder: Path) -> None:
    """All compilers that are here, with every warning an error."""
    levels = list(build_script().UNIX_LEVELS) if os.uname().machine == "x86_64" else ["plain"]
    strict = ["-Wall", "-Wextra", "-Werror", "-Wpedantic", "-Wshadow", "-Wno-psabi"]
    found = [name for name in ("gcc", "clang") if shutil.which(name)]
    if not found:
        raise Missing("gcc or clang")
    for name in found:
        objects(name, strict, folder, levels)


CHECKS = {"warnings": warnings, "bare": bare, "sanitize": sanitize, "threads": threads, "arm": arm}


def main() -> None:
    """Run the checks that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checks", nargs="*", metavar="check", help=", ".join(CHECKS))
    parser.add_argument("--all", action="store_true", help="fail where a tool is missing")
    options = parser.parse_args()
    for name in options.checks or CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                CHECKS[name](Path(folder))
                print(f"{name}: passed", flush=True)
            except Missing as tool:
                print(f"{name}: skipped, {tool} is not installed", flush=True)
                if options.all:
                    raise SystemExit(1) from tool


if __name__ == "__main__":
    main()
