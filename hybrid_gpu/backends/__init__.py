"""Choosing where the work is done."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import Any

import array_api_compat

from hybrid_gpu.backends.numpy_backend import NumpyBackend
from hybrid_gpu.backends.protocol import Array, Backend, SparseMatrix
from hybrid_gpu.errors import BackendUnavailableError

__all__ = ["Array", "Backend", "SparseMatrix", "backend_of", "select_backend"]

INSTALL_CUPY = "pip install 'hybrid-gpu[cuda12]'"

_NUMPY = NumpyBackend()


def select_backend(backend: str | Backend = "auto", *, like: Any = None) -> Backend:
    """The backend of a name.

    Parameters
    ----------
    backend
        ``"numpy"``, ``"cupy"``, ``"cupy:1"``, or ``"auto"``: the device of ``like`` if that is a
        CuPy array, else what ``HYBRID_GPU_BACKEND`` names, else a GPU that answers, else NumPy. A
        ``Backend`` is returned as it is.
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
        name = os.environ.get("HYBRID_GPU_BACKEND") or _best_name()
    if name == "numpy":
        return _NUMPY
    kind, _, number = name.partition(":")
    if kind == "cupy" and (number.isdecimal() or name == "cupy"):
        return _cupy(int(number or 0))
    raise ValueError(f"backend must be 'auto', 'numpy', 'cupy' or 'cupy:<device>'; got {name!r}.")


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
    return _NUMPY


def _best_name() -> str:
    """A GPU that really answers, or NumPy: an installed CuPy alone says nothing."""
    if importlib.util.find_spec("cupy") is None:
        return "numpy"
    try:
        from hybrid_gpu.backends.cupy_backend import device_count
    except ImportError:  # CuPy without the CUDA libraries that it needs
        return "numpy"
    return "cupy" if device_count() else "numpy"


@cache
def _cupy(number: int) -> Backend:
    try:
        from hybrid_gpu.backends.cupy_backend import open_device
    except ImportError as missing:
        raise BackendUnavailableError(
            f"backend 'cupy' needs CuPy ({missing}). Install it with {INSTALL_CUPY}, or use "
            "backend='numpy'."
        ) from missing
    return open_device(number)
