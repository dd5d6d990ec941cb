"""The native core: one shared library, loaded by ctypes when it is first asked for.

``setup.py`` builds it from ``kernels/cpu`` where there is a compiler. ``HYBRID_GPU_NATIVE=0``
switches it off, ``HYBRID_GPU_NATIVE=1`` refuses to go on without it; whatever it says, what runs
afterwards keeps to it. ctypes releases the GIL during a call.
"""

from __future__ import annotations

import ctypes
import os
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.errors import BackendUnavailableError

INTEGER, REAL, POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
_ENDING = ".dll" if sys.platform == "win32" else ".so"
_LIBRARY = Path(__file__).with_name(f"libhybrid_gpu{_ENDING}")
# By what hg_cpu_level returns; a level that the compiler did not know is not in the library.
_LEVELS = ("plain", "avx2", "avx512")
_BUILD = "with a C compiler installed, in a clone of hybrid-gpu: pip install -e ."
# How types are written in the names of functions.
_SHORT = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64"}


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """The library, at the best level that this processor has.

    Attributes
    ----------
    level : str
        ``"plain"``, ``"avx2"`` or ``"avx512"``.
    """

    library: ctypes.CDLL
    level: str

    def function(
        self, name: str, signature: Sequence[type], *arrays: HostArray
    ) -> Callable[..., Any]:
        """A function of the library, for the types of some arrays, which end its name.

        Parameters
        ----------
        signature
            The types of its arguments: ``INTEGER``, ``REAL`` or ``POINTER``. It returns int64, or
            nothing that is looked at.
        """
        return _function(
            self.library,
            "_".join([name, *(_SHORT[array.dtype.name] for array in arrays), self.level]),
            tuple(signature),
        )


@dataclass(frozen=True, slots=True, eq=False)
class CoreState:
    """Whether the native core is in use: the core, or the reason why not and what to do."""

    core: Core | None
    reason: str = ""
    advice: str = ""


def core_level() -> str:
    """The level of the native core, or ``"none"``: what figures of speed are recorded with."""
    core = native_core()
    return "none" if core is None else core.level


def native_core() -> Core | None:
    """The native core, or None where NumPy does its work."""
    return core_state().core


@cache
def core_state() -> CoreState:
    """What there is of the native core; looked for once.

    Raises
    ------
    BackendUnavailableError
        If ``HYBRID_GPU_NATIVE`` is 1 and it cannot be used.
    """
    wish = os.environ.get("HYBRID_GPU_NATIVE", "")
    if wish == "0":
        return CoreState(None, "switched off by HYBRID_GPU_NATIVE=0", "unset HYBRID_GPU_NATIVE")
    state = _loaded(_LIBRARY)
    if state.core is None and wish == "1":
        raise BackendUnavailableError(
            f"HYBRID_GPU_NATIVE=1 asks for the native core, which is {state.reason}. "
            f"To get it: {state.advice}"
        )
    return state


def _loaded(path: Path) -> CoreState:
    """The library of a file, if it was built from the sources that are installed with it."""
    if not path.is_file():
        return CoreState(None, "not built", _BUILD)
    try:
        library = ctypes.CDLL(str(path))
        sources, level = library.hg_sources, library.hg_cpu_level
    except (OSError, AttributeError) as fault:
        return CoreState(None, f"not to be loaded ({fault})", _BUILD)
    sources.restype = ctypes.c_uint32
    if sources() != source_checksum():
        # Its functions may take other arguments.
        return CoreState(None, "built from other sources than are installed", _BUILD)
    return CoreState(Core(library, _best_level(library, int(level()))))


def source_checksum() -> int:
    """The checksum of the sources that are installed; ``setup.py`` has the same."""
    sources = (files("hybrid_gpu.kernels") / "cpu").iterdir()
    named = {path.name: path for path in sources if path.name.endswith((".c", ".h"))}
    value = 0
    for name in sorted(named):
        value = zlib.crc32(named[name].read_bytes(), value)
    return value


def _best_level(library: ctypes.CDLL, most: int) -> str:
    built = [level for level in _LEVELS if hasattr(library, f"hg_spmm_f32_i32_{level}")]
    return max(built, key=lambda level: (_LEVELS.index(level) <= most, _LEVELS.index(level)))


@cache
def _function(library: ctypes.CDLL, name: str, signature: tuple[type, ...]) -> Callable[..., Any]:
    # Not library.<name>: that would be one object, and its signature the last one that was set.
    found: Any = library[name]
    found.argtypes, found.restype = signature, ctypes.c_int64
    return found  # type: ignore[no-any-return]


def address(array: HostArray, name: str, like: str, shape: tuple[int, ...]) -> int:
    """Where an array begins, for a function that reads ``shape`` numbers of a type there.

    Raises
    ------
    TypeError, ValueError
        If it has another type or shape, or gaps: native code would read beyond its end.
    """
    if array.dtype != like:
        raise TypeError(f"{name} must be {like}; got {array.dtype}.")
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}; got {array.shape}.")
    if not array.flags.c_contiguous or not array.flags.aligned:
        raise ValueError(
            f"{name} must be row-major without gaps. Pass numpy.ascontiguousarray({name})."
        )
    return int(array.ctypes.data)


def written(array: HostArray, name: str, like: str, shape: tuple[int, ...]) -> int:
    """Where an array begins, for a function that writes there."""
    if not array.flags.writeable:
        raise ValueError(f"{name} is read-only. Pass a copy.")
    return address(array, name, like, shape)


def lie_apart(*arrays: HostArray) -> bool:
    """Whether no two of some arrays share memory."""
    return not any(
        np.may_share_memory(first, second)
        for place, first in enumerate(arrays)
        for second in arrays[:place]
    )
