"""Arrays and tables of other libraries: made readable, and spoken of in their own words.

Nothing here imports one of these libraries. A tensor is known by array-api-compat, a table of
pandas, polars or Arrow by being able to become a NumPy array.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """How users of a library write what a message asks for; ``{0}`` stands for their array."""

    floats: str
    integers: str
    not_finite: str
    units: str
    numbers_only: str


NUMPY = Words(
    floats="{0}.astype('float32')",
    integers="{0}.astype('int64')",
    not_finite="~np.isfinite({0}).all(axis=1)",
    units="{0} / np.linalg.norm({0}, axis=1, keepdims=True)",
    numbers_only="{0}.select_dtypes('number')",
)
_LISTS = Words(
    floats="np.asarray({0}, 'float32')",
    integers="np.asarray({0}, 'int64')",
    not_finite=NUMPY.not_finite,
    units=NUMPY.units,
    numbers_only=NUMPY.numbers_only,
)
_TORCH = Words(
    floats="{0}.float()",
    integers="{0}.long()",
    not_finite="~torch.isfinite({0}).all(dim=1)",
    units="torch.nn.functional.normalize({0})",
    numbers_only=NUMPY.numbers_only,
)
_POLARS = Words(
    floats="{0}.cast(polars.Float32)",
    integers="{0}.cast(polars.Int64)",
    not_finite=NUMPY.not_finite,
    units=NUMPY.units,
    numbers_only="{0}.select(polars.selectors.numeric())",
)
_ARROW = Words(
    floats=_LISTS.floats,
    integers=_LISTS.integers,
    not_finite=NUMPY.not_finite,
    units=NUMPY.units,
    numbers_only="{0}.drop_columns(names)",
)
_NUMBERS_OF_ARROW = ("int", "uint", "halffloat", "float", "double", "decimal")


def words_of(values: Any) -> Words:
    """The words of the library that an array is from."""
    if array_api_compat.is_torch_array(values):
        return _TORCH
    if isinstance(values, (list, tuple)):
        return _LISTS
    return {"polars": _POLARS, "pyarrow": _ARROW}.get(_library(values), NUMPY)


def readable(values: Any) -> Any:
    """The same values in a form that NumPy or CuPy reads, where they are.

    Tensors are taken out of the graph of gradients, and floats that NumPy does not have are widened
    to float32; so is each of a list of tensors. Tables become NumPy arrays, a column of vectors one
    of shape (n, d). Anything else is returned as it is.
    """
    if array_api_compat.is_torch_array(values):
        return _readable_tensor(values)
    if isinstance(values, np.ndarray) or array_api_compat.is_array_api_obj(values):
        return _widened(values)
    listed = isinstance(values, (list, tuple)) and len(values) > 0
    if listed and array_api_compat.is_torch_array(values[0]):
        return [readable(one) for one in values]
    if type(values).__name__ == "LazyFrame":
        raise TypeError("got a lazy table, which holds no values yet. Pass table.collect().")
    if hasattr(values, "__array__"):
        return _readable_table(values)
    return values


def as_array(values: Any) -> NDArray[Any]:
    """A list as NumPy reads it; but large integers stay integers, of which NumPy makes floats."""
    array = np.asarray(values)
    plain = array.dtype.kind == "f" and array.size and not hasattr(values, "dtype")
    if not plain or not _is_whole(values):
        return array
    objects = np.asarray(values, dtype=object)
    return whole_numbers(objects.ravel().tolist()).reshape(objects.shape)


def whole_numbers(flat: list[Any]) -> NDArray[Any]:
    """Integers as int64, or uint64 where these do not hold them; beyond both, as they are."""
    low, high = min(flat), max(flat)
    if low >= -(2**63) and high < 2**63:
        return np.array(flat, np.int64)
    if low >= 0 and high < 2**64:
        return np.array(flat, np.uint64)
    return np.array(flat, dtype=object)


def _is_whole(values: Any) -> bool:
    """Whether lists in lists hold nothing but integers."""
    return all(
        _is_whole(one)
        if isinstance(one, (list, tuple))
        else isinstance(one, (int, np.integer)) and not isinstance(one, bool)
        for one in values
    )


def odd_columns(table: Any) -> list[str]:
    """Names of the columns of a table that do not hold numbers; none for what has no columns."""
    if not hasattr(table, "__array__"):  # a lazy table would look for its columns now
        return []
    if _library(table) == "pyarrow":
        schema = getattr(table, "schema", None)
        columns, dtypes = getattr(schema, "names", None), getattr(schema, "types", None)
    else:
        columns, dtypes = getattr(table, "columns", None), getattr(table, "dtypes", None)
    if dtypes is None or columns is None:
        return []
    return [str(name) for name, kind in zip(columns, dtypes, strict=True) if not _is_number(kind)]


def _is_number(dtype: Any) -> bool:
    if hasattr(dtype, "is_numeric"):
        return bool(dtype.is_numeric())
    if _library(dtype) == "pyarrow":
        return str(dtype).startswith(_NUMBERS_OF_ARROW)
    return getattr(dtype, "kind", "O") in "fiu"


def _library(one: Any) -> str:
    """The package that an object is from."""
    return type(one).__module__.split(".")[0]


def _readable_tensor(tensor: Any) -> Any:
    if "strided" not in str(tensor.layout):
        raise TypeError("got a sparse tensor where a dense one is needed. Pass tensor.to_dense().")
    tensor = tensor.detach()
    kind = str(tensor.dtype).rsplit(".", 1)[-1]
    if kind == "bfloat16" or kind.startswith("float8"):
        tensor = tensor.float()
    # Conjugates and negatives that are only marked as such cannot be handed on.
    return tensor.resolve_conj().resolve_neg()


def _widened(array: Any) -> Any:
    """An array without bfloat16, which NumPy has only by the package ml_dtypes, as JAX does."""
    if isinstance(array, np.ndarray) and array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    return array


def _readable_table(table: Any) -> NDArray[Any]:
    array = np.asarray(table)
    if array.dtype != object:
        return array
    if array.ndim == 2 and not odd_columns(table):
        # Columns of numbers, some of them missing: libraries have objects of their own there.
        if array.size and _is_whole(array.ravel().tolist()):
            return whole_numbers(array.ravel().tolist()).reshape(array.shape)
        flat = [float(one) if hasattr(one, "__float__") else np.nan for one in array.flat]
        return np.array(flat).reshape(array.shape)
    rows = array.tolist() if array.ndim == 1 else []
    if rows and all(
        isinstance(row, Iterable) and not isinstance(row, (str, bytes)) for row in rows
    ):
        rows = [np.asarray(row) for row in rows]
        if len({row.shape for row in rows}) == 1:
            return np.stack(rows)
    return array
