"""Getting the CUDA kernels of ``hybrid_gpu.kernels`` compiled, and arrays ready for them.

Every scalar is passed as a NumPy scalar of the kernel's own type: CuPy hands a Python float over as
a double, which a kernel that expects a float would read as garbage.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cupy

from hybrid_gpu import kernels  # type: ignore[attr-defined]  # stands beside, see pyproject
from hybrid_gpu.backends.protocol import Array

_C_NAMES = {"float32": "float", "float64": "double", "int32": "int", "int64": "long long"}


def same_types(*arrays: Array) -> tuple[Array, ...]:
    """The arrays, if all of them have one type: a kernel is compiled for that one."""
    types = {str(array.dtype) for array in arrays}
    if len(types) > 1:
        raise TypeError(
            f"arrays of one kernel must have one dtype; got {', '.join(sorted(types))}."
        )
    return arrays


def alignment(*arrays: Array) -> int:
    """The largest number of bytes, up to 16, at a multiple of which all arrays begin."""
    together = 16
    for array in arrays:
        together |= array.data.ptr
    return int(together & -together)


@cache
def _module(file: str, value: str, index: str | None, defines: tuple[str, ...]) -> Any:
    options = ["-std=c++17", f"-DHG_VALUE={_C_NAMES[value]}"]
    if index is not None:
        options.append(f"-DHG_INDEX={_C_NAMES[index]}")
    options += [f"-D{define}" for define in defines]
    return cupy.RawModule(code=kernels.source(file), options=tuple(options), backend="nvrtc")


@cache
def _function(
    file: str, name: str, value: str, index: str | None, defines: tuple[str, ...], device: int
) -> Any:
    """A kernel, compiled on first use; CuPy keeps the result on disk as well."""
    return _module(file, value, index, defines).get_function(name)


def compiled(
    file: str, name: str, value: Any, index: Any = None, defines: tuple[str, ...] = ()
) -> Any:
    """A kernel of a file for types of values and indices, on the current device."""
    types = (str(value), None if index is None else str(index))
    return _function(file, name, *types, defines, cupy.cuda.Device().id)
