"""Results in the hands of other libraries: a table of pandas, tensors of torch."""

from __future__ import annotations

import importlib
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends import Array
from hybrid_gpu.backends.numpy_backend import host_copy
from hybrid_gpu.errors import DeviceMismatchError


def as_frame(ids: NDArray[np.int64], keys: NDArray[Any], scores: NDArray[Any], name: str) -> Any:
    """Results (m, k) as a ``pandas.DataFrame`` with a line for each; ids of -1 have none.

    ``name`` is that of the column of keys. Places count from 1.
    """
    pandas = _needed("pandas", "to_pandas")
    found = queries, places = np.nonzero(ids >= 0)
    columns = {
        "query": queries,
        "place": places + 1,
        name: np.asarray(host_copy(keys))[found],
        "score": scores[found],
    }
    return pandas.DataFrame(columns)


def as_tensor(values: Array, device: Any = None) -> Any:
    """An array as a ``torch.Tensor``, on a device or where it is."""
    torch = _needed("torch", "to_torch")
    stays = device is None or torch.device(device).type == "cuda"
    if array_api_compat.is_cupy_array(values) and stays:
        try:
            tensor = torch.from_dlpack(values)
        except (
            AssertionError,
            RuntimeError,
            BufferError,
        ) as fault:  # built without CUDA: the first
            raise DeviceMismatchError(
                f"the ranking is on the GPU {values.device.id}, which this torch does not reach: "
                f"{fault}. Copy it to the host with ranking.to_torch(device='cpu')."
            ) from fault
    else:
        array = np.asarray(host_copy(values))
        # torch has no tensors that may not be written to.
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor if device is None else tensor.to(device)


def _needed(name: str, method: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        raise ImportError(f"{method} needs {name}: pip install {name}") from missing
