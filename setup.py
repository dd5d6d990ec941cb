"""Builds the native core, one plain shared library that Python loads by ctypes.

It is optional: without a compiler, or with one that fails, the package installs all the same and
NumPy does the work; ``hybrid-gpu doctor`` tells. ``HYBRID_GPU_BUILD_NATIVE=0`` skips the core,
``HYBRID_GPU_BUILD_NATIVE=1`` fails where it cannot be built. Also turns the README into the page
of a package index. All else is in pyproject.toml.
"""

from __future__ import annotations

import os
import re
import sys
import zlib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# Where the files of the repository are read by anybody, with a slash at the end; no such place yet.
REPOSITORY = ""
CHOICE = os.environ.get("HYBRID_GPU_BUILD_NATIVE", "auto")
SOURCES = Path("kernels/cpu")
# Compiled once: it runs before an instruction set is chosen.
BASE = SOURCES / "cpu.c"
LIBRARY = "hybrid_gpu.backends.libhybrid_gpu"

# Every source is compiled for each of these; native.py takes the best that the processor has.
UNIX_LEVELS = {
    "plain": [],
    "avx2": ["-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt"],
    # GCC would take half registers by itself, for processors that slow down with whole ones.
    "avx512": [
        *("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mprefer-vector-width=512"),
        *("-mfma", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt"),
    ],
}
MSVC_LEVELS = {"plain": [], "avx2": ["/arch:AVX2"], "avx512": ["/arch:AVX512"]}
UNIX_FLAGS = [
    *("-std=c11", "-O3", "-g0", "-fPIC", "-fvisibility=hidden"),
    "-fno-fast-math",  # whatever CFLAGS says: NaN must be seen, sums keep their order
    "-ffp-contract=fast",  # a product and its sum in one rounding: more accurate, half the time
    "-fno-math-errno",  # nobody reads errno after a square root
    "-fno-trapping-math",  # nobody reads exception flags; values do not change by it
]
MSVC_FLAGS = ["/std:c11", "/O2", "/fp:precise"]


def index_page(readme: str, repository: str = REPOSITORY) -> str:
    """The README for a package index, where links between files would lead nowhere.

    They lead to the repository; while it has no address, files are named and pictures left out.
    """

    def turned(link: re.Match[str]) -> str:
        picture, label, target = link.groups()
        if target.startswith(("http", "#")):
            return link[0]
        if repository:
            return f"{picture}[{label}]({repository}{target})"
        return "" if picture else f"{label} (`{target.partition('#')[0]}`)"

    page = re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", turned, readme)
    return re.sub(r"<!--.*?-->\n", "", page, flags=re.DOTALL)


def checksum() -> int:
    """Of all sources: the library tells by it what it was built from (see native.py)."""
    value = 0
    for path in sorted(SOURCES.glob("*.[ch]"), key=lambda path: path.name):
        value = zlib.crc32(path.read_bytes(), value)
    return value


class BuildCore(build_ext):
    """One library of all sources, at all levels that the compiler knows."""

    def get_ext_filename(self, fullname: str) -> str:
        ending = ".dll" if sys.platform == "win32" else ".so"
        return str(Path(*fullname.split("."))) + ending

    def build_extension(self, ext: Extension) -> None:
        # What an earlier build left behind would go into the wheel of one that fails.
        Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
        try:
            self._build(self.get_ext_fullpath(ext.name))
        except Exception as fault:
            if CHOICE == "1":
                raise
            print(f"warning: the native core is not built, NumPy will do its work: {fault!r}")

    def _build(self, path: str) -> None:
        msvc = self.compiler.compiler_type == "msvc"
        flags = MSVC_FLAGS if msvc else UNIX_FLAGS
        levels = MSVC_LEVELS if msvc else UNIX_LEVELS
        x86 = self.plat_name.endswith(("x86_64", "amd64"))  # not universal2, which is ARM as well
        objects = self.compiler.compile(
            [str(BASE)],
            output_dir=self.build_temp,
            macros=[("HG_SOURCES", f"{checksum()}u")],
            extra_postargs=flags,
        )
        for level, more in levels.items() if x86 else [("plain", [])]:
            try:
                objects += self.compiler.compile(
                    [str(source) for source in sorted(SOURCES.glob("*.c")) if source != BASE],
                    output_dir=str(Path(self.build_temp, level)),
                    macros=[("HG_LEVEL", level)],
                    extra_postargs=[*flags, *more],
                )
            except Exception as fault:
                if level == "plain":
                    raise
                print(f"warning: the native core is built without {level}: {fault!r}")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        libraries = [] if msvc else ["m"]
        self.compiler.link_shared_object(objects, path, libraries=libraries)


class AnyPython(bdist_wheel):
    """The library knows nothing of Python: one wheel of a platform serves every version."""

    def get_tag(self) -> tuple[str, str, str]:
        core = self.get_finalized_command("build_ext")
        built = bool(core.extensions) and any(
            Path(path).is_file() for path in (core.get_ext_fullpath(LIBRARY), *core.get_outputs())
        )
        return "py3", "none", super().get_tag()[2] if built else "any"


if __name__ == "__main__":  # tools/native_checks.py takes the flags from here
    core = Extension(LIBRARY, sources=[], optional=CHOICE != "1")
    setup(
        long_description=index_page(Path("README.md").read_text(encoding="utf-8")),
        long_description_content_type="text/markdown",
        ext_modules=[] if CHOICE == "0" else [core],
        cmdclass={"build_ext": BuildCore, "bdist_wheel": AnyPython},
    )
