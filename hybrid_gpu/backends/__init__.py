"""Choosing where the work is done."""

from __future__ import annotations

import os
from typing import Any

import array_api_compat

from hybrid_gpu.backends.numpy_backend import NumpyBackend
from hybrid_gpu.backends.protocol import Array, Backend, SparseMatrix
from hybrid_gpu.errors import BackendUnavailableError

__all__ = ["Array", "Backend", "SparseMatrix", "backend_of", "select_backend"]

_NUMPY = NumpyBackend()


def select_backend(backend: str | Backend = "auto", *, like: Any = None) -> Backend:
    """The backend of a name.

    Parameters
    ----------
    backend
        ``"numpy"``, ``"cupy"``, ``"cupy:1"``, or ``"auto"``: the device of ``like`` if that is a
        CuPy array, else what ``HYBRID_GPU_BACKEND`` names, else NumPy. A ``Backend`` is returned as
        it is.
    like
        The array that ``"auto"`` looks at.

    Raises
    ------
    BackendUnavailableError
        If the backend was asked for by name and cannot run here.
    """
    if not isinstance(backend, str):
        return backend
    name = backend
    if name == "auto":
        if like is not None and array_api_compat.is_cupy_array(like):
            name = f"cupy:{like.device.id}"
        else:
            name = os.environ.get("HYBRID_GPU_BACKEND", "numpy")
    if name == "numpy":
        return _NUMPY
    if name == "cupy" or name.startswith("cupy:"):
        raise BackendUnavailableError(
            f"backend {name!r} is not part of this version: it runs on NumPy/SciPy. "
            "Use backend='numpy' (or leave it at 'auto')."
        )
    raise ValueError(f"backend must be 'auto', 'numpy', 'cupy' or 'cupy:<device>'; got {name!r}.")


def backend_of(array: Any) -> Backend:
    """The backend of the device that an array lives on."""
    if array_api_compat.is_cupy_array(array):
        return select_backend(f"cupy:{array.device.id}")
    return _NUMPY
