"""Choosing where the work is done."""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import array_api_compat

from hybrid_gpu.backends.native_backend import host_backend
from hybrid_gpu.backends.protocol import Array, Backend, SparseMatrix
from hybrid_gpu.errors import BackendUnavailableError, install_line

__all__ = [
    "Array",
    "Backend",
    "SparseMatrix",
    "all_devices",
    "backend_of",
    "on_device",
    "on_own_device",
    "select_backend",
    "settled",
]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# Runs with drivers for CUDA 13, too; docs/gpu.md tells who wants cuda13.
INSTALL_CUPY = install_line("cuda12")


def select_backend(backend: str | Backend = "auto", *, like: Any = None) -> Backend:
    """The backend of a name.

    Parameters
    ----------
    backend
        ``"numpy"``, ``"cupy"``, ``"cupy:1"``, or ``"auto"``: the device of ``like`` if that is a
        CuPy array, or a tensor on a GPU that CuPy reaches, else what ``HYBRID_GPU_BACKEND`` names,
        else a GPU that answers, else NumPy. A ``Backend`` is returned as it is.
    like
        The array that ``"auto"`` looks at.

    Raises
    ------
    BackendUnavailableError
        If the backend was asked for by name and cannot run here.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> hg.select_backend("numpy").name
    'numpy'
    """
    if not isinstance(backend, str):
        if isinstance(backend, type) or not hasattr(backend, "laplacian_step"):
            raise TypeError(
                f"backend must be 'auto', 'numpy', 'cupy', 'cupy:<device>' or a Backend; got a "
                f"{type(backend).__name__}."
            )
        return backend
    name = backend
    if name == "auto":
        if like is not None and array_api_compat.is_cupy_array(like):
            return _cupy(int(like.device.id))
        device = _cuda_device(like)
        if device is not None and device < _gpu_count():
            return _cupy(device)
        name = os.environ.get("HYBRID_GPU_BACKEND") or _best_name()
    if name == "numpy":
        return _numpy()
    kind, _, number = name.partition(":")
    if kind == "cupy" and (number.isdecimal() or name == "cupy"):
        return _cupy(int(number or 0))
    raise ValueError(f"backend must be 'auto', 'numpy', 'cupy' or 'cupy:<device>'; got {name!r}.")


def all_devices() -> tuple[Backend, ...]:
    """What ``"auto"`` is where several devices help: every GPU that answers, or NumPy.

    ``HYBRID_GPU_BACKEND`` names a single one.
    """
    if os.environ.get("HYBRID_GPU_BACKEND"):
        return (select_backend("auto"),)
    return tuple(_cupy(number) for number in range(_gpu_count())) or (_numpy(),)


def backend_of(array: Any) -> Backend:
    """The backend of the device that an array lives on.

    Examples
    --------
    >>> import numpy as np
    >>> import hybrid_gpu as hg
    >>> hg.backend_of(np.zeros(3)).name
    'numpy'
    """
    if array_api_compat.is_cupy_array(array):
        return _cupy(int(array.device.id))
    return _numpy()


def on_device(
    array_of: Callable[[Any], Any], *, stays: bool
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Let a function that takes ``backend`` run with its device as the current one.

    CuPy works on the current device only, which is device 0 until somebody says otherwise.

    Parameters
    ----------
    array_of
        Finds an array in the function's first argument: ``"auto"`` looks at it.
    stays
        Whether ``"auto"`` is where that array is, as for what was computed by us; else arrays of
        the host go to a GPU if there is one.
    """

    def decorated(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        name = next(iter(inspect.signature(function).parameters))

        @wraps(function)
        def entered(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
            backend: Any = options.get("backend", "auto")
            array = array_of(args[0] if args else options.get(name))
            if isinstance(backend, str) and backend == "auto" and stays and array is not None:
                device = backend_of(array)
            else:
                device = select_backend(backend, like=array)
            options["backend"] = device
            with device.annotate(function.__name__):
                return function(*args, **options)

        return entered

    return decorated


def on_own_device(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a method run with a device as the current one: of the backend it takes, or has."""
    names = list(inspect.signature(method).parameters)
    place = names.index("backend") if "backend" in names else None

    @wraps(method)
    def entered(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        backend: Any = options.get("backend")
        if backend is None:
            backend = args[0].backend if place is None else args[place]  # type: ignore[attr-defined]
        with backend.annotate(method.__name__):
            return method(*args, **options)

    return entered


def settled(make: Callable[[], Result], backend: Backend) -> Result:
    """What a function makes, once it is there: others may use it on streams of their own."""
    made = make()
    backend.synchronize()
    return made


def _cuda_device(array: Any) -> int | None:
    """The number of the CUDA device that a tensor is on; None for anything else."""
    if not array_api_compat.is_torch_array(array) or array.device.type != "cuda":
        return None
    return int(array.device.index or 0)


def _best_name() -> str:
    return "cupy" if _gpu_count() else "numpy"


def _gpu_count() -> int:
    """GPUs that really answer: an installed CuPy alone says nothing."""
    if importlib.util.find_spec("cupy") is None:
        return 0
    try:
        from hybrid_gpu.backends.devices import device_count
    except ImportError:  # CuPy without the CUDA libraries that it needs
        return 0
    return device_count()


# The native core is loaded when a backend is first asked for, not at import.
_numpy = cache(host_backend)


@cache
def _cupy(number: int) -> Backend:
    try:
        from hybrid_gpu.backends.devices import open_device
    except ImportError as missing:
        raise BackendUnavailableError(
            f"backend 'cupy' needs CuPy ({missing}). Use backend='numpy', or {INSTALL_CUPY}"
        ) from missing
    return open_device(number)
