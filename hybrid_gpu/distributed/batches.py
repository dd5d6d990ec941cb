"""Batches as engines hand them over, and answers in the same form.

A batch is a dict of arrays (Ray), a data frame of pandas (Dask), a table of pyarrow (Ray, Parquet),
or an array. Whatever it is, its answer has the columns ``ids`` (``keys``, if the index has keys)
and ``scores``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid_gpu.backends.numpy_backend import host_copy
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.distributed.batch_columns import IDS, KEYS, SCORES, ColumnOptions, check_free
from hybrid_gpu.errors import install_line
from hybrid_gpu.validation import shown


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """The best items of m queries.

    Attributes
    ----------
    names : array of shape (m, k)
        Ids, or keys: int64, uint64, or objects that are str, or None where nothing was found.
    scores : float array of shape (m, k)
    keyed : bool
        Whether they are keys.
    """

    names: HostArray
    scores: HostArray
    keyed: bool

    @property
    def title(self) -> str:
        """``"keys"`` or ``"ids"``."""
        return KEYS if self.keyed else IDS

    @property
    def record(self) -> HostArray:
        """Both as one array (m, k) with two fields."""
        fields = [(self.title, self.names.dtype), (SCORES, self.scores.dtype)]
        record = np.empty(self.names.shape, fields)
        record[self.title], record[SCORES] = self.names, self.scores
        return record


Ask = Callable[[tuple[HostArray, ...]], Answers]
"""From descriptors (m, d), or ids (m, q) and similarities (m, q), to answers."""


def answered_dict(batch: Mapping[str, Any], options: ColumnOptions, ask: Ask) -> dict[str, Any]:
    """A dict of arrays, each with a row for each query."""
    arrays = {name: np.asarray(host_copy(column)) for name, column in batch.items()}
    if len({array.shape[:1] for array in arrays.values()}) > 1:
        shapes = {name: array.shape for name, array in arrays.items()}
        raise ValueError(f"columns of a batch must have a row for each query; got shapes {shapes}.")
    chosen = options.chosen({name: _is_vectors(column) for name, column in arrays.items()})
    answers = ask(_given([stacked(arrays[name], name) for name in chosen.names], chosen.lists))
    kept = {name: column for name, column in arrays.items() if name not in chosen.names}
    check_free(list(kept), (answers.title, SCORES))
    return {**kept, answers.title: answers.names, SCORES: answers.scores}


def answered_frame(batch: Any, options: ColumnOptions, ask: Ask) -> Any:
    """A data frame of pandas: a row for each query, whose index it keeps."""
    names = {str(name): name for name in batch.columns}
    if len(names) < len(batch.columns):
        raise ValueError(
            f"columns of a frame must have names of their own; got {shown(list(batch.columns))}."
        )
    if _is_made_up(batch):
        batch = batch[:0]
    chosen = options.chosen({name: _holds_vectors(batch[own]) for name, own in names.items()})
    columns = [stacked(batch[names[name]].to_numpy(), name) for name in chosen.names]
    answers = ask(_given(columns, chosen.lists))
    kept = batch.drop(columns=[names[name] for name in chosen.names])
    check_free([str(name) for name in kept.columns], (answers.title, SCORES))
    return kept.assign(**{answers.title: _rows(answers.names), SCORES: _rows(answers.scores)})


def _is_made_up(batch: Any) -> bool:
    """Whether a frame is what Dask asks with to know the columns of the answers.

    It has the columns of a real one, and in those of objects nothing but ``object()``.
    """
    columns = [batch[name] for name in batch.columns if str(batch[name].dtype) == "object"]
    return any(len(column) and all(type(one) is object for one in column) for column in columns)


def answered_table(batch: Any, options: ColumnOptions, ask: Ask) -> Any:
    """A table of pyarrow; answers are lists of a fixed size."""
    pyarrow = arrow()
    if isinstance(batch, pyarrow.RecordBatch):
        batch = pyarrow.Table.from_batches([batch])
    chosen = options.chosen({field.name: _is_arrow_vectors(field.type) for field in batch.schema})
    columns = [_from_arrow(batch.column(name), name) for name in chosen.names]
    answers = ask(_given(columns, chosen.lists))
    kept = batch.drop_columns(list(chosen.names))
    check_free(kept.schema.names, (answers.title, SCORES))
    for name, values in ((answers.title, answers.names), (SCORES, answers.scores)):
        flat = pyarrow.array(values.reshape(-1), type=_arrow_type(values.dtype))
        fixed = pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
        kept = kept.append_column(name, fixed)
    # What pandas wrote there is of the columns that were.
    facts = {name: fact for name, fact in (kept.schema.metadata or {}).items() if name != b"pandas"}
    return kept.replace_schema_metadata(facts or None)


def kind_of(batch: Any) -> str:
    """``"dict"``, ``"frame"``, ``"table"``, or ``"array"`` for all that is none of them."""
    if isinstance(batch, Mapping):
        return "dict"
    pandas: Any = sys.modules.get("pandas")  # who has a frame has imported pandas
    if pandas is not None and isinstance(batch, pandas.DataFrame):
        return "frame"
    pyarrow: Any = sys.modules.get("pyarrow")
    if pyarrow is not None and isinstance(batch, (pyarrow.Table, pyarrow.RecordBatch)):
        return "table"
    return "array"


def arrow() -> Any:
    """The package pyarrow."""
    try:
        importlib.import_module("pyarrow.compute")  # which pyarrow does not import by itself
        return importlib.import_module("pyarrow")
    except ImportError as missing:
        raise ImportError(
            f"Parquet files and tables need pyarrow ({missing}); {install_line('parquet')}"
        ) from missing


def stacked(column: HostArray, name: str) -> HostArray:
    """A column as numbers, (m,) or (m, d); of objects, each of which is a vector, as (m, d)."""
    if column.dtype != object or column.ndim != 1:
        return column
    if not len(column):
        return np.empty((0, 0), np.float32)
    strange = [
        row for row in column if isinstance(row, (str, bytes)) or not hasattr(row, "__len__")
    ]
    if strange:
        raise TypeError(
            f"column {name!r} must hold a vector in each row; got {shown(strange[0])}. With Dask, "
            "pass meta=rerank.meta(frame), or it asks with rows of its own; and dask.config.set("
            "{'dataframe.convert-string': False}) before from_pandas, or it makes text of vectors."
        )
    lengths = {len(row) for row in column}
    if len(lengths) > 1:
        raise ValueError(
            f"column {name!r} must hold rows of one length; got lengths from {min(lengths)} to "
            f"{max(lengths)}. Fill lists with ids of -1."
        )
    return np.stack([np.asarray(row) for row in column])


def _given(columns: list[HostArray], lists: tuple[str, ...]) -> tuple[HostArray, ...]:
    """Descriptors as one array, or both lists."""
    if lists:
        for name, column in zip(lists, columns, strict=True):
            if column.ndim < 2:  # which would be the only list of a single query
                raise ValueError(
                    f"column {name!r} must hold a list in each row; got single values of "
                    f"{column.dtype}. Lists of one result are of shape (m, 1)."
                )
        return tuple(columns)
    if len(columns) == 1 and columns[0].ndim != 1:
        return (columns[0],)
    return (np.stack(columns, axis=1),)


def _is_vectors(column: HostArray) -> bool:
    """Whether an array has a vector of floats in each row."""
    if column.dtype == object and column.ndim == 1 and len(column):
        first = column[0]
        return not isinstance(first, str) and np.asarray(first).dtype.kind == "f"
    return column.ndim == 2 and column.dtype.kind == "f"


def _holds_vectors(column: Any) -> bool:
    """Whether a column of a frame has, or may have, a vector in each row."""
    if str(column.dtype) == "object":
        return not len(column) or _is_vectors(column.to_numpy())
    return "list" in str(column.dtype)


def _rows(values: HostArray) -> Any:
    """An array (m, k) as m arrays, which pandas takes for the entries of a column."""
    rows = np.empty(len(values), object)
    for number, row in enumerate(values):
        rows[number] = row
    return rows


def _is_arrow_vectors(kind: Any) -> bool:
    types = arrow().types
    if hasattr(kind, "storage_type"):  # Ray's tensors
        kind = kind.storage_type
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_list and types.is_floating(kind.value_type))


def _from_arrow(column: Any, name: str) -> HostArray:
    """A column of numbers (m,), or of lists of one length (m, d)."""
    types, pyarrow = arrow().types, arrow()
    whole = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
    if isinstance(whole, pyarrow.ChunkedArray):  # none or several chunks
        whole = pyarrow.concat_arrays(whole.chunks) if whole.num_chunks else _no_rows(whole.type)
    if hasattr(whole, "to_numpy_ndarray"):  # pyarrow's tensors
        return np.asarray(whole.to_numpy_ndarray())
    if whole.null_count:
        raise ValueError(
            f"column {name!r} must have no gaps; {whole.null_count} of its rows are null."
        )
    if hasattr(whole.type, "storage_type"):
        return stacked(whole.to_numpy(zero_copy_only=False), name)
    if not types.is_nested(whole.type):
        return np.asarray(whole.to_numpy(zero_copy_only=False))
    lengths = np.unique(np.asarray(arrow().compute.list_value_length(whole))) if len(whole) else [0]
    if len(lengths) > 1:
        raise ValueError(
            f"column {name!r} must hold rows of one length; got lengths from {lengths[0]} to "
            f"{lengths[-1]}. Fill lists with ids of -1."
        )
    flat = whole.flatten()
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(whole), int(lengths[0]))


def _no_rows(kind: Any) -> Any:
    return arrow().array([], type=kind)


def _arrow_type(dtype: np.dtype[Any]) -> Any:
    pyarrow = arrow()
    return pyarrow.string() if dtype.kind == "O" else pyarrow.from_numpy_dtype(dtype)
