"""The words that users choose from, as types: a type checker finds a word that is none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from numpy.typing import ArrayLike

MethodName: TypeAlias = Literal[
    "auto",
    "nn",
    "alpha-qe",
    "temporal",
    "truncated",
    "fsr",
    "fsrw",
    "fsr-similarity",
    "hybrid-paper",
    "shybrid",
    "hybrid",
    "local",
    "precomputed",
]
MetricName: TypeAlias = Literal[
    "cosine", "inner-product", "ip", "cosine-distance", "l2", "squared-l2"
]
BackendName: TypeAlias = Literal[
    "auto",
    "numpy",
    "cupy",
    "cupy:0",
    "cupy:1",
    "cupy:2",
    "cupy:3",
    "cupy:4",
    "cupy:5",
    "cupy:6",
    "cupy:7",
]
"""A name that a program makes itself is any text: pass ``select_backend(f"cupy:{number}")``."""

BasisName: TypeAlias = Literal["auto", "aggregate", "eigen", "sparse-eigen", "none"]
NormalizationName: TypeAlias = Literal["symmetric", "random-walk"]
PrecisionName: TypeAlias = Literal["float32", "float16", "int8"]
DtypeName: TypeAlias = Literal["float32", "float64"]
Accuracy: TypeAlias = Literal["ranking"] | float
NeighborCount: TypeAlias = Literal["auto"] | int


class SpeaksDlpack(Protocol):
    """An array of another library, on any device."""

    def __dlpack__(self, *args: Any, **options: Any) -> Any: ...


class SparseInput(Protocol):
    """A sparse matrix of SciPy or CuPy."""

    def tocsr(self) -> Any: ...


class LibraryGraph(Protocol):
    """A graph of networkx or igraph."""

    def is_directed(self) -> bool: ...


ArrayInput: TypeAlias = ArrayLike | SpeaksDlpack
"""Whatever becomes an array: lists, NumPy's, CuPy's and torch's arrays, pandas' columns."""

ListInput: TypeAlias = (
    ArrayInput | Sequence[ArrayInput] | Mapping[Any, float] | Sequence[Mapping[Any, float]]
)
"""Results of a search engine: an array, lists of any lengths, or dicts."""

GraphInput: TypeAlias = SparseInput | LibraryGraph | ArrayInput
"""A sparse matrix, a graph of networkx or igraph, or an edge list (e, 2)."""
