"""A stub for every CUDA function that CuPy can call and the stand-in does not have.

A stub says its name and fails, so that nothing missing can pass unnoticed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

# The status "not supported" of each library, by the prefix of its functions; longest first.
NOT_SUPPORTED = (
    ("cusolver", 9),
    ("cusparse", 10),
    ("cublas", 15),
    ("curand", 999),
    ("cufft", 16),
    ("nvrtc", 11),
    ("cuda", 801),
    ("cu", 801),
)


def missing_functions(needed: Iterable[str], objects: Iterable[Path]) -> list[str]:
    """The needed symbols that neither the stand-in's objects nor the system define."""
    known = set(system_symbols())
    for path in objects:
        known |= set(defined_symbols(path))
    return sorted(name for name in set(needed) - known if is_cuda(name))


def is_cuda(name: str) -> bool:
    """Whether a symbol belongs to a CUDA library, or to code that CuPy compiles with nvcc."""
    return name.startswith("_Z") or any(name.startswith(prefix) for prefix, _ in NOT_SUPPORTED)


def defined_symbols(path: Path, *options: str) -> list[str]:
    """The symbols that a file defines, without versions."""
    command = ["nm", "--defined-only", *options, str(path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split()[-1].partition("@")[0] for line in lines.splitlines() if line.strip()]


def system_symbols() -> list[str]:
    """What the C++ library defines; other system libraries have no C++ names."""
    command = ["g++", "-print-file-name=libstdc++.so"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return defined_symbols(Path(path), "-D")


def stub_source(names: Iterable[str]) -> str:
    """C++ source with a stub for every name."""
    lines = ['#include "cuda/missing.h"', ""]
    for number, name in enumerate(names):
        if name.startswith("_Z"):
            readable = subprocess.run(
                ["c++filt", name], capture_output=True, text=True, check=True
            ).stdout.strip()
            body = f'standin_missing_throw("{readable}"); return 0;'
        else:
            status = next(code for prefix, code in NOT_SUPPORTED if name.startswith(prefix))
            body = f'return standin_missing_status("{name}", {status});'
        # The label keeps the name as it is; a function that ignores its parameters needs none.
        lines.append(f'extern "C" int stub_{number}() __asm__("{name}");')
        lines.append(f'extern "C" int stub_{number}() {{ {body} }}')
    return "\n".join(lines) + "\n"
