"""Run CUDA kernels on NumPy arrays, without CuPy: needs g++ and NumPy, nothing else.

For hard tests of one kernel: any order of the threads, shared memory that begins as NaN, red zones
around every array, and on request a check of every single load and store. To import this module,
put its folder on ``sys.path``.

Examples
--------
>>> source = '''
... extern "C" __global__ void scale(float* x, float factor, int n) {
...     int i = blockIdx.x * blockDim.x + threadIdx.x;
...     if (i < n) x[i] *= factor;
... }
... '''
>>> x = np.ones(5, dtype=np.float32)
>>> scale = Kernel(source, "scale")
>>> scale.launch(1, 32, (x, np.float32(3), np.int32(5)), order=7, sanitize=True)
>>> x
array([3., 3., 3., 3., 3.], dtype=float32)
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from builder.layout import SOURCES, cache_folder

ENGINE_SOURCES = (
    "settings", "fibers", "executor", "memory_map", "bounds", "kernel_source", "compiler",
    "launch_limits", "runner_api",
)  # fmt: skip
MESSAGE_BYTES = 1 << 16


class KernelCompileError(Exception):
    """g++ refused a kernel; the message is g++'s."""


class KernelLaunchError(Exception):
    """A launch was refused, or a kernel was stopped: the message says why, and in which thread."""


class Kernel:
    """One kernel of a CUDA source.

    Parameters
    ----------
    source : str
        The text of a .cu file. The kernel must be ``extern "C"`` or have a unique name.
    name : str
        The name of the kernel.
    defines : mapping of str to object, optional
        Macros, as after ``-D``: ``{"HG_VALUE": "double"}``.
    """

    def __init__(self, source: str, name: str, defines: Mapping[str, object] | None = None) -> None:
        self.source = source
        self.name = name
        self.defines = dict(defines or {})
        self._variants: dict[bool, _Compiled] = {}

    def __repr__(self) -> str:
        return f"Kernel({self.name!r}, defines={self.defines})"

    @property
    def signature(self) -> list[str]:
        """The parameters: ``"f4"`` a float, ``"*f4"`` a pointer to float, ``"&f4"`` to const."""
        return self._compiled(sanitize=False).signature

    def launch(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        arguments: Sequence[object],
        *,
        shared_bytes: int = 0,
        order: int = 0,
        sanitize: bool = False,
    ) -> None:
        """Run the kernel; arrays behind pointers to non-const are changed in place.

        Parameters
        ----------
        grid, block : int or sequence of up to three ints
            The number of blocks, and of threads in a block.
        arguments : sequence
            NumPy arrays for pointers (or None for a null pointer), NumPy scalars for the rest.
        shared_bytes : int, optional
            The size of the dynamic shared memory.
        order : int, optional
            0 runs threads and blocks forward, 1 backward, any other number in an order drawn from
            it.
        sanitize : bool, optional
            Check every load and store. Without it, only writes close to an array are noticed.

        Raises
        ------
        TypeError
            If an argument does not have exactly the type that the kernel declares.
        KernelLaunchError
            If a limit is exceeded, or if the kernel fails an assertion, accesses memory that is not
            its own, or has threads that wait for each other forever.
        """
        compiled = self._compiled(sanitize)
        buffers, values = [], []
        try:
            codes = self._checked(arguments, compiled.signature)
            for argument, code in zip(arguments, codes, strict=True):
                if code[0] not in "*&":
                    values.append(np.asarray(argument).reshape(1).copy())
                    continue
                buffer = _Buffer(argument, copy_back=code[0] == "*")
                buffers.append(buffer)
                values.append(np.array([buffer.address or 0], dtype=np.uintp))
            addresses = (ctypes.c_void_p * max(1, len(values)))(*(v.ctypes.data for v in values))
            compiled.run(_size(grid), _size(block), shared_bytes, addresses, order)
            for buffer in buffers:
                buffer.copy_to_array()
        finally:
            for buffer in buffers:
                buffer.free()

    def _compiled(self, sanitize: bool) -> _Compiled:
        if sanitize not in self._variants:
            self._variants[sanitize] = _Compiled(self.source, self.name, self.defines, sanitize)
        return self._variants[sanitize]

    def _checked(self, arguments: Sequence[object], signature: list[str]) -> list[str]:
        if len(arguments) != len(signature):
            raise TypeError(
                f"{self.name} takes {len(signature)} arguments ({', '.join(signature)}); "
                f"got {len(arguments)}."
            )
        for number, (argument, code) in enumerate(zip(arguments, signature, strict=True)):
            problem = _mismatch(argument, code)
            if problem:
                raise TypeError(f"argument {number} of {self.name}: {problem}")
        return signature


def _mismatch(argument: object, code: str) -> str:
    """What is wrong with an argument for a parameter; empty if nothing is."""
    if code[0] in "*&":
        if argument is None:
            return ""
        if not isinstance(argument, np.ndarray):
            return f"a pointer takes a NumPy array; got {type(argument).__name__}."
        if code[1:] != "v" and code[1] != "x" and argument.dtype != _dtype(code[1:]):
            return f"expected an array of {_dtype(code[1:])}; got {argument.dtype}."
        if not argument.flags.c_contiguous and not argument.flags.f_contiguous:
            return "the array must be contiguous; pass a copy."
        if code[0] == "*" and not argument.flags.writeable:
            return "the kernel may write to this array, and it is read-only."
        return ""
    if code[0] == "x":
        if not isinstance(argument, np.generic) or argument.dtype.itemsize != int(code[1:]):
            return f"expected a NumPy scalar of {code[1:]} bytes; got {type(argument).__name__}."
        return ""
    wanted = _dtype(code)
    if not isinstance(argument, np.generic) or argument.dtype != wanted:
        # CuPy passes a Python float as a double and a Python int as a long long.
        return f"expected np.{wanted}(...); got {type(argument).__name__}."
    return ""


def _dtype(code: str) -> np.dtype:
    return np.dtype(np.bool_ if code == "b1" else code)


def _size(size: int | Sequence[int]) -> ctypes.Array[ctypes.c_uint]:
    numbers = [size] if isinstance(size, int) else list(size)
    if not 1 <= len(numbers) <= 3 or any(number < 0 for number in numbers):
        raise ValueError(f"a grid or a block has one to three sizes, none negative; got {size}.")
    return (ctypes.c_uint * 3)(*numbers, *[1] * (3 - len(numbers)))


class _Buffer:
    """A copy of an array in memory with red zones, for the length of a launch."""

    def __init__(self, array: object, *, copy_back: bool) -> None:
        self.array = array if isinstance(array, np.ndarray) and array.nbytes else None
        self.copy_back = copy_back
        self.address = None
        if self.array is not None:
            self.address = _engine().standin_runner_allocate(self.array.nbytes)
            ctypes.memmove(self.address, self.array.ctypes.data, self.array.nbytes)

    def copy_to_array(self) -> None:
        if self.array is not None and self.copy_back:
            ctypes.memmove(self.array.ctypes.data, self.address, self.array.nbytes)

    def free(self) -> None:
        if self.address is not None:
            _engine().standin_runner_free(self.address)


class _Compiled:
    """A kernel in a shared library that is loaded."""

    def __init__(
        self, source: str, name: str, defines: Mapping[str, object], sanitize: bool
    ) -> None:
        library = ctypes.CDLL(str(_kernel_library(source, name, tuple(defines.items()), sanitize)))
        names = _text_function(library, "standin_kernel_names").rstrip(",").split(",")
        if name not in names:
            raise KernelCompileError(f"no kernel {name} in the source; it has {', '.join(names)}.")
        self.name = name
        self.entry = ctypes.cast(getattr(library, f"standin_kernel_{name}"), ctypes.c_void_p)
        codes = _text_function(library, f"standin_signature_{name}").rstrip(",")
        self.signature = codes.split(",") if codes else []
        bound = getattr(library, f"standin_bound_{name}", None)
        self.launch_bound = bound() if bound else 0
        self.shared = ctypes.c_void_p(), ctypes.c_void_p()
        library.standin_shared_section(*(ctypes.byref(pointer) for pointer in self.shared))

    def run(
        self,
        grid: ctypes.Array[ctypes.c_uint],
        block: ctypes.Array[ctypes.c_uint],
        shared_bytes: int,
        addresses: ctypes.Array[ctypes.c_void_p],
        order: int,
    ) -> None:
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        status = _engine().standin_runner_launch(
            self.name.encode(), self.entry, grid, block, ctypes.c_uint(shared_bytes), *self.shared,
            self.launch_bound, addresses, order, message, ctypes.c_size_t(MESSAGE_BYTES),
        )  # fmt: skip
        if status:
            raise KernelLaunchError(f"{self.name}: {message.value.decode(errors='replace')}")


def _text_function(library: ctypes.CDLL, name: str) -> str:
    function = getattr(library, name)
    function.restype = ctypes.c_char_p
    return function().decode()


@functools.cache
def _engine() -> ctypes.CDLL:
    """The part of the stand-in that runs kernels; compiled when it is first used."""
    sources = [SOURCES / "engine" / f"{name}.cpp" for name in ENGINE_SOURCES]
    headers = [*(SOURCES / "engine").glob("*.h"), *(SOURCES / "device").glob("*.h")]
    contents = b"".join(path.read_bytes() for path in [*sources, *sorted(headers)])
    folder = cache_folder() / f"engine-{hashlib.sha256(contents).hexdigest()[:12]}"
    library = folder / "libstandin_engine.so"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            unfinished = folder / "unfinished.so"
            flags = ("-std=c++17", "-O2", "-fPIC", "-shared", f"-Wl,-soname,{library.name}")
            subprocess.run(["g++", *flags, "-o", unfinished, *sources, "-ldl"], check=True)
            unfinished.rename(library)
    engine = ctypes.CDLL(str(library))
    engine.folder = folder
    engine.standin_runner_allocate.restype = ctypes.c_void_p
    engine.standin_runner_allocate.argtypes = [ctypes.c_size_t]
    engine.standin_runner_free.argtypes = [ctypes.c_void_p]
    return engine


@functools.cache
def _kernel_library(
    source: str, name: str, defines: tuple[tuple[str, object], ...], sanitize: bool
) -> Path:
    """The path of the compiled source; compiled once, and kept in the cache folder."""
    engine = _engine()
    options = "\n".join(f"-D{macro}={value}" for macro, value in defines)
    flags = os.environ.get("STANDIN_CXXFLAGS", "")
    key = hashlib.sha256(repr((source, options, sanitize, flags)).encode()).hexdigest()[:24]
    library = engine.folder / "kernels" / f"{key}.so"
    if library.exists():
        return library
    library.parent.mkdir(exist_ok=True)
    unfinished = library.with_suffix(f".{os.getpid()}.so")
    log = ctypes.create_string_buffer(MESSAGE_BYTES)
    compiled = engine.standin_runner_compile(
        source.encode(), f"{name}.cu".encode(), options.encode(), int(sanitize),
        str(SOURCES / "device").encode(), str(engine.folder).encode(), str(unfinished).encode(),
        log, ctypes.c_size_t(MESSAGE_BYTES),
    )  # fmt: skip
    if not compiled:
        raise KernelCompileError(log.value.decode(errors="replace"))
    unfinished.rename(library)
    return library
