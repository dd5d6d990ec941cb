"""What the parts of an index file must be before native code may read them.

Sparse products, gathers and sorts take their indices on trust: one that is out of range reads
foreign memory. So every index is looked at here, once, when a file is opened: kinds and shapes of
all arrays, the pointers and the column numbers of every sparse matrix, permutations and labels,
and the values that the graph and the small matrices of a basis can have. What is consistent in
itself but was not made by this library cannot be told from an index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.errors import IndexFileError
from hybrid_gpu.index.key_arrays import wrong_keys
from hybrid_gpu.index.packing import INVERSE, KEYS, MATRIX_PARTS, WALK, Packed, Section
from hybrid_gpu.validation import check_alpha, check_count, check_flag, check_number, check_positive

Fault: TypeAlias = Callable[[str | None, str], IndexFileError]
"""Makes the error for a part (None: the header) and what is wrong with it."""

_FLOATS = ("<f4", "<f8")
_INTEGERS = ("<i4", "<i8")
# Weights, cosines and eigenvalues of float32 may lie so far beyond what they can be in theory.
_SLACK = 1e-2
# Numbers beyond this are not even printed by Python when they have thousands of digits.
_MOST_ITEMS = 1 << 48
_LARGEST = float(np.finfo(np.float64).max)
# What is told of the sections with an inverse, beside their alpha, and between which numbers.
_FACTS = {INVERSE: ("norm", 0, _LARGEST), WALK: ("slowdown", 1, 1e6)}
_INVERSE_PARTS = {"together"}


def array_names(parameters: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[str]]:
    """The arrays that an index of such parameters must have, and those that it may have."""
    needed = _matrix("adjacency") | {"degrees", "order", "components"}
    optional = {"descriptors", "neighbor_ids", "neighbor_similarities"}
    if "columns_alpha" in parameters:
        needed |= {"column_ids", "column_scores"}
    basis = parameters.get("basis")
    if basis is not None:
        needed |= _BASES[basis["kind"]].needed
        optional |= _BASES[basis["kind"]].optional
    return frozenset(needed), frozenset(optional)


def _matrix(*names: str) -> set[str]:
    """The arrays of sparse matrices."""
    return {f"{name}_{part}" for name in names for part in MATRIX_PARTS}


def check_parameters(parameters: Any, fault: Fault) -> None:
    """Refuse parameters that no index has."""
    try:
        _check_values_of(parameters)
    except (KeyError, TypeError, ValueError, OverflowError) as wrong:
        reason = f"{wrong} is missing" if isinstance(wrong, KeyError) else str(wrong).rstrip(".")
        raise fault(None, f"damaged, its parameters are not those of an index: {reason}") from wrong


def _check_values_of(parameters: Any) -> None:
    """Refuse parameters of a header that no index can have."""
    check_count(_object(parameters, "parameters")["n"], "n", high=_MOST_ITEMS)
    check_alpha(parameters["alpha"])
    check_positive(parameters["gamma"], "gamma")
    if "columns_alpha" in parameters:
        check_alpha(parameters["columns_alpha"])
    grouping = parameters.get("grouping")
    if grouping is not None:
        check_count(_object(grouping, "grouping")["items"], "items", low=0, high=_MOST_ITEMS)
        check_count(grouping["changed"], "changed", low=0, high=_MOST_ITEMS)
        if grouping["share"] is not None:
            if check_positive(grouping["share"], "share") > _MOST_ITEMS:
                raise ValueError(f"share must be a part of the groups; got {grouping['share']}.")
    if parameters.get("origin") is not None:
        _check_origin(_object(parameters["origin"], "origin"))
    basis = parameters.get("basis")
    if basis is None:
        return
    kind = _object(basis, "basis")["kind"]
    if not isinstance(kind, str) or kind not in _BASES:
        raise ValueError(f"basis must be one of {', '.join(_BASES)}; got {kind!r}.")
    check_count(basis["rank"], "rank", low=0, high=_MOST_ITEMS)
    _BASES[kind].check_facts(basis, parameters["n"])


def _check_origin(origin: Mapping[str, Any]) -> None:
    if origin["neighbors"] is not None:
        check_count(origin["neighbors"], "neighbors", low=0, high=_MOST_ITEMS)
    check_flag(origin["chosen"], "chosen")
    if origin["recall"] is not None and not 0 <= check_number(origin["recall"], "recall") <= 1:
        raise ValueError(f"recall must lie in [0, 1]; got {origin['recall']}.")


def check_section(name: str, section: Section, parts: Packed, verify: bool, fault: Fault) -> None:
    """Refuse a section, of those that are known, which does not fit the index."""
    if name == KEYS:
        wrong_key = wrong_keys(section.arrays, section.parameters, parts.parameters["n"])
        if wrong_key is not None:
            raise fault(next(iter(section.arrays), None), f"damaged, {wrong_key}")
    if name not in _FACTS:
        return
    basis = parts.parameters.get("basis")
    try:
        check_alpha(section.parameters["alpha"])
        fact, low, high = _FACTS[name]
        if not low <= check_number(section.parameters[fact], fact) <= high:
            raise ValueError(f"{fact} must lie in [{low}, {high:g}]")
    except (KeyError, TypeError, ValueError, OverflowError) as wrong:
        reason = str(wrong).rstrip(".")
        raise fault(None, f"damaged, the inverse of its basis is not told: {reason}") from wrong
    coupled = None if basis is None else _BASES[basis["kind"]].coupled
    if set(section.arrays) != _INVERSE_PARTS or coupled is None:
        raise fault(None, "the parts of the index do not fit together: an inverse of no basis")
    size = coupled(parts.arrays)
    checks = _Checks(section.arrays, verify, fault)
    checks.shape("together", (parts.arrays["degrees"].dtype.str,), (size, size))
    checks.large_values("together", -_LARGEST, _LARGEST)


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{what} must be an object; got {type(value).__name__}.")
    return value


def check_arrays(
    arrays: Mapping[str, HostArray], parameters: Mapping[str, Any], verify: bool, fault: Fault
) -> None:
    """Refuse arrays that are not those of an index with these parameters.

    Without ``verify``, the values of the large arrays are not looked at: descriptors, dense
    eigenvectors, similarities of lists, and stored columns. None of them is ever used as an index
    unchecked.
    """
    needed, optional = array_names(parameters)
    for name in sorted(needed ^ arrays.keys()):
        if name in needed:
            raise fault(None, f"the parts of the index do not fit together: no array {name}")
        if name not in optional:
            raise fault(None, f"the parts of the index do not fit together: {name} is too much")
    checks = _Checks(arrays, verify, fault)
    n = parameters["n"]
    checks.shape("degrees", _FLOATS, (n,))
    floats = checks.floats
    checks.values("degrees", 0, _LARGEST)
    checks.matrix("adjacency", floats, (n, n))
    checks.values("adjacency_data", 0, 1 + _SLACK)
    checks.shape("order", ("<i8",), (n,))
    checks.permutation("order")
    checks.shape("components", ("<i4",), (n,))
    checks.values("components", 0, n - 1)
    _check_lists(checks, n, floats)
    basis = parameters.get("basis")
    if basis is not None:
        _BASES[basis["kind"]].check(checks, n, basis["rank"])


def _check_lists(checks: _Checks, n: int, floats: tuple[str, ...]) -> None:
    """Descriptors, k-NN lists and stored columns, each if it is there."""
    arrays = checks.arrays
    if "descriptors" in arrays:
        checks.shape("descriptors", floats, (n, None))
        checks.large_values("descriptors", -1 - _SLACK, 1 + _SLACK)
    if ("neighbor_ids" in arrays) != ("neighbor_similarities" in arrays):
        raise checks.fault(None, "the parts of the index do not fit together: half of its lists")
    if "neighbor_ids" in arrays:
        checks.shape("neighbor_ids", _INTEGERS, (n, None))
        checks.shape("neighbor_similarities", _FLOATS, arrays["neighbor_ids"].shape)
        # Not only with verify: add and remove use them as indices.
        checks.values("neighbor_ids", -1, n - 1)
        # Indexes of version 1 may hold inner products of any vectors; powers of them stay finite.
        checks.large_values("neighbor_similarities", -1e12, 1e12)
    if "column_ids" in arrays:
        checks.shape("column_ids", _INTEGERS, (n, None))
        checks.shape("column_scores", floats, arrays["column_ids"].shape)
        checks.large_values("column_ids", -1, n - 1)
        checks.large_values("column_scores", -_LARGEST, _LARGEST)


def _check_eigenvectors(checks: _Checks, n: int, rank: int) -> None:
    floats = checks.floats
    checks.shape("basis_eigenvalues", floats, (rank,))
    checks.values("basis_eigenvalues", -1 - _SLACK, 1 + _SLACK)
    checks.shape("basis_residuals", _FLOATS, (rank,))
    checks.values("basis_residuals", 0, _LARGEST)
    checks.shape("basis_vectors", (*floats, "<f2", "|i1"), (n, rank))
    short = checks.arrays["basis_vectors"].dtype.kind == "i"
    if short != ("basis_scales" in checks.arrays):
        raise checks.fault("basis_vectors", "damaged, its dtype does not fit the scales")
    if short:
        checks.shape("basis_scales", floats, (rank,))
        checks.values("basis_scales", 0, 1)
    else:
        checks.large_values("basis_vectors", -1 - _SLACK, 1 + _SLACK)


def _check_certificate(facts: Mapping[str, Any], n: int) -> None:
    check_count(facts["items"], "items", low=0, high=n)
    check_number(facts["orthogonality"], "orthogonality")
    if facts["missed"] is not None:
        check_number(facts["missed"], "missed")


def _check_aggregates(checks: _Checks, n: int, rank: int) -> None:
    coupled = _divided_groups(checks.arrays)
    if not 0 <= coupled <= rank:
        raise checks.fault("basis_coupling_indptr", f"damaged, {coupled} of {rank} groups")
    checks.matrix("basis_coupling", checks.floats, (coupled, coupled))
    if "basis_spread_data" in checks.arrays:
        checks.matrix("basis_spread", checks.floats, (n, 2 * rank))
    _check_sparse(checks, n, rank)
    if np.any(np.diff(checks.arrays["basis_vectors_indptr"]) > 1):
        raise checks.fault("basis_vectors_indptr", "damaged, an item is in several groups")
    _check_alone(checks, rank - coupled)


def _divided_groups(arrays: Mapping[str, HostArray]) -> int:
    return len(arrays["basis_coupling_indptr"]) - 1


def _check_sparse_vectors(checks: _Checks, n: int, rank: int) -> None:
    _check_small_matrices(checks, rank)
    _check_sparse(checks, n, rank)
    _check_alone(checks, 0)


def _check_sparse_eigenvectors(checks: _Checks, n: int, rank: int) -> None:
    _check_sparse_vectors(checks, n, rank)
    if "basis_weights" in checks.arrays:
        checks.shape("basis_weights", checks.floats, (rank,))
        checks.values("basis_weights", 0, _LARGEST)


def _check_dense_vectors(checks: _Checks, n: int, rank: int) -> None:
    _check_small_matrices(checks, rank)
    checks.shape("basis_vectors", checks.floats, (n, rank))
    checks.large_values("basis_vectors", -_LARGEST, _LARGEST)
    _check_alone(checks, 0)


def _check_small_matrices(checks: _Checks, rank: int) -> None:
    for name in ("basis_gram", "basis_coupling"):
        checks.shape(name, checks.floats, (rank, rank))
        checks.values(name, -_LARGEST, _LARGEST)


def _check_sparse(checks: _Checks, n: int, rank: int) -> None:
    checks.matrix("basis_vectors", checks.floats, (n, rank))
    checks.matrix("basis_transposed", checks.floats, (rank, n))


def _check_alone(checks: _Checks, count: int) -> None:
    checks.shape("basis_alone", checks.floats, (count, 1))
    checks.values("basis_alone", -_LARGEST, _LARGEST)


def _all_vectors(arrays: Mapping[str, HostArray]) -> int:
    return len(arrays["basis_gram"])


def _no_facts(facts: Mapping[str, Any], n: int) -> None:
    """A basis of which there is nothing else to know."""


@dataclass(frozen=True, slots=True)
class _BasisChecks:
    """What the file of a kind of basis must hold.

    ``coupled`` tells the size of its dense inverse; None if it has none.
    """

    needed: frozenset[str]
    check: Callable[[_Checks, int, int], None]
    optional: frozenset[str] = frozenset()
    check_facts: Callable[[Mapping[str, Any], int], None] = _no_facts
    coupled: Callable[[Mapping[str, HostArray]], int] | None = None


_SMALL = {"basis_alone", "basis_gram", "basis_coupling"}
_SPARSE_VECTORS = _BasisChecks(
    frozenset(_SMALL | _matrix("basis_vectors", "basis_transposed")),
    _check_sparse_vectors,
    coupled=_all_vectors,
)
_BASES = {
    "eigenvectors": _BasisChecks(
        frozenset({"basis_eigenvalues", "basis_vectors", "basis_residuals"}),
        _check_eigenvectors,
        optional=frozenset({"basis_scales"}),
        check_facts=_check_certificate,
    ),
    "aggregates": _BasisChecks(
        frozenset({"basis_alone"} | _matrix("basis_vectors", "basis_transposed", "basis_coupling")),
        _check_aggregates,
        # Indexes of the first days have none, and are searched a little slower.
        optional=frozenset(_matrix("basis_spread")),
        coupled=_divided_groups,
    ),
    "sparse eigenvectors": replace(
        _SPARSE_VECTORS, check=_check_sparse_eigenvectors, optional=frozenset({"basis_weights"})
    ),
    "given, sparse": _SPARSE_VECTORS,
    "given, dense": _BasisChecks(
        frozenset(_SMALL | {"basis_vectors"}), _check_dense_vectors, coupled=_all_vectors
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class _Checks:
    """The checks of single arrays, each an error that names the array."""

    arrays: Mapping[str, HostArray]
    verify: bool
    fault: Fault

    @property
    def floats(self) -> tuple[str, ...]:
        """The dtype of the index."""
        return (self.arrays["degrees"].dtype.str,)

    def shape(self, name: str, dtypes: tuple[str, ...], shape: tuple[int | None, ...]) -> None:
        """Dtype and shape; None is any number but 0."""
        array = self.arrays[name]
        fits = len(array.shape) == len(shape) and all(
            got == expected_size or (expected_size is None and got > 0)
            for got, expected_size in zip(array.shape, shape, strict=True)
        )
        if not fits or array.dtype.str not in dtypes:
            expected = ", ".join("any" if size is None else str(size) for size in shape)
            raise self.fault(
                name,
                f"does not fit together with the header: {array.dtype.str} of shape {array.shape} "
                f"where {' or '.join(dtypes)} of shape ({expected}) belongs",
            )

    def values(self, name: str, low: float, high: float) -> None:
        """Everything between two bounds, both included; NaN is not between any."""
        array = self.arrays[name]
        if array.size == 0:
            return
        with np.errstate(invalid="ignore"):
            smallest, largest = array.min().item(), array.max().item()
        if not (low <= smallest and largest <= high):
            raise self.fault(name, f"damaged, values from {smallest} to {largest}, out of range")

    def large_values(self, name: str, low: float, high: float) -> None:
        if self.verify:
            self.values(name, low, high)

    def permutation(self, name: str) -> None:
        array = self.arrays[name]
        self.values(name, 0, array.size - 1)
        if np.bincount(array, minlength=array.size).max() != 1:
            raise self.fault(name, "damaged, an item stands at two places")

    def matrix(self, name: str, dtypes: tuple[str, ...], shape: tuple[int, int]) -> None:
        """A sparse matrix whose pointers and column numbers stay inside of it."""
        data, indices, indptr = (f"{name}_{part}" for part in MATRIX_PARTS)
        for part in (data, indices, indptr):
            if part not in self.arrays:
                raise self.fault(None, f"the parts of the index do not fit together: no {part}")
        entries = self.arrays[data].size
        self.shape(data, dtypes, (entries,))
        self.shape(indptr, _INTEGERS, (shape[0] + 1,))
        self.shape(indices, (self.arrays[indptr].dtype.str,), (entries,))
        pointers = self.arrays[indptr]
        if pointers[0] != 0 or pointers[-1] != entries or np.any(pointers[1:] < pointers[:-1]):
            raise self.fault(indptr, f"damaged, it does not divide {entries} entries into rows")
        self.values(indices, 0, shape[1] - 1)
        self.values(data, -_LARGEST, _LARGEST)
