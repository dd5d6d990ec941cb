"""An index as named arrays and JSON, and back: what files hold, and what travels to a device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from hybrid_gpu.backends import Backend, select_backend
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.diffusion.basis import Basis
from hybrid_gpu.diffusion.basis_kinds import check_kind_known, restored_basis
from hybrid_gpu.files.stored_arrays import array_checksum
from hybrid_gpu.graph.affinity import Graph, numbering_of
from hybrid_gpu.graph.neighbors import Neighbors
from hybrid_gpu.index.key_arrays import packed_keys, unpacked_keys
from hybrid_gpu.ranking.columns import Columns
from hybrid_gpu.ranking.state import Grouping, IndexState, Origin

MATRIX_PARTS = ("data", "indices", "indptr")
INVERSE, WALK, KEYS = "inverse", "walk", "keys"


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """A part that an index can do without, or that not every version of the library knows.

    Attributes
    ----------
    required : bool
        Whether a reader that does not know the section must refuse the index.
    """

    arrays: Mapping[str, HostArray]
    parameters: Mapping[str, Any]
    required: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """The parts of an index on the host."""

    arrays: Mapping[str, HostArray]
    parameters: Mapping[str, Any]
    sections: Mapping[str, Section] = field(default_factory=dict)


def packed(state: IndexState) -> Packed:
    """An index as arrays of the host and JSON; ``unpacked`` is the way back."""
    host, graph = state.backend.to_numpy, state.graph
    parts: dict[str, Any] = {
        "adjacency": graph.adjacency,
        "degrees": graph.degrees,
        "order": state.numbering.order,
    }
    parameters: dict[str, Any] = {
        "n": state.n,
        "alpha": state.alpha,
        "gamma": state.gamma,
        "grouping": asdict(state.grouping),
        "origin": asdict(state.origin),
    }
    if state.descriptors is not None:
        parts["descriptors"] = state.descriptors
    if state.neighbors is not None:
        parts["neighbor_ids"] = state.neighbors.ids
        parts["neighbor_similarities"] = state.neighbors.similarities
    if state.columns is not None:
        parts["column_ids"] = state.columns.ids
        parts["column_scores"] = state.columns.scores
        parameters["columns_alpha"] = state.columns.alpha
    basis, sections = state.basis, {}
    if state.keys is not None:
        # Who does not know keys would take ids for them.
        sections[KEYS] = Section(*packed_keys(state.keys), required=True)
    if basis is not None:
        check_kind_known(basis.kind)
        parts |= {f"basis_{name}": part for name, part in basis.arrays().items()}
        parameters["basis"] = {"kind": basis.kind, "rank": basis.rank, **basis.facts()}
        inverse = basis.kept_inverse(state.alpha)
        if inverse is not None and math.isfinite(inverse.norm):
            sections[INVERSE] = Section(
                {"together": host(inverse.together)}, {"alpha": state.alpha, "norm": inverse.norm}
            )
        walk = basis.kept_walk(state.alpha)
        if walk is not None and walk.inverse.together is not None:
            sections[WALK] = Section(
                {"together": host(walk.inverse.together)},
                {"alpha": state.alpha, "slowdown": walk.slowdown},
            )
    arrays = {"components": graph.components}
    for name, part in parts.items():
        if hasattr(part, "indptr"):
            arrays |= {f"{name}_{piece}": host(getattr(part, piece)) for piece in MATRIX_PARTS}
        else:
            arrays[name] = part if isinstance(part, np.ndarray) else host(part)
    return Packed(arrays, parameters, sections)


def unpacked(parts: Packed, backend: Backend) -> IndexState:
    """The index of packed parts, on a backend."""
    parameters, n = parts.parameters, int(parts.parameters["n"])
    device = {name: backend.asarray(array) for name, array in parts.arrays.items()}
    matrices = _matrices(device, backend, n, parameters)
    graph = Graph(matrices["adjacency"], device["degrees"], parts.arrays["components"])
    neighbors = columns = None
    if "neighbor_ids" in device:
        neighbors = Neighbors(device["neighbor_ids"], device["neighbor_similarities"])
    if "column_ids" in device:
        columns = Columns(
            device["column_ids"], device["column_scores"], float(parameters["columns_alpha"])
        )
    facts = parameters.get("basis")
    basis = None if facts is None else _basis({**device, **matrices}, facts, graph, backend)
    inverse = parts.sections.get(INVERSE)
    if inverse is not None and basis is not None:
        basis.keep_inverse(
            float(inverse.parameters["alpha"]),
            backend.asarray(inverse.arrays["together"]),
            float(inverse.parameters["norm"]),
        )
    walk = parts.sections.get(WALK)
    if walk is not None and basis is not None:
        basis.keep_walk(
            float(walk.parameters["alpha"]),
            float(walk.parameters["slowdown"]),
            backend.asarray(walk.arrays["together"]),
        )
    keys = parts.sections.get(KEYS)
    return IndexState(
        graph=graph,
        numbering=numbering_of(device["order"], backend),
        descriptors=device.get("descriptors"),
        neighbors=neighbors,
        basis=basis,
        columns=columns,
        alpha=float(parameters["alpha"]),
        gamma=float(parameters["gamma"]),
        backend=backend,
        grouping=_grouping(parameters.get("grouping"), n, basis),
        origin=_origin(parameters.get("origin"), neighbors),
        keys=None if keys is None else unpacked_keys(keys.arrays, keys.parameters),
    )


def in_memory_order(arrays: Mapping[str, HostArray]) -> dict[str, HostArray]:
    """The arrays of an index whose descriptors, lists and columns are numbered by the user's ids.

    That was so before version 3 of the format.
    """
    order = np.asarray(arrays["order"])
    places = np.empty(order.size + 1, np.int64)
    places[order], places[-1] = np.arange(order.size), -1
    moved = dict(arrays)
    for name in ("descriptors", "neighbor_similarities", "column_scores"):
        if name in arrays:
            moved[name] = np.asarray(arrays[name])[order]
    for name in ("neighbor_ids", "column_ids"):
        if name in arrays:
            ids = np.asarray(arrays[name])[order]
            # Columns of a file that is opened without verify were not looked at before.
            known = (ids >= 0) & (ids < order.size)
            moved[name] = places[np.where(known, ids, -1)].astype(ids.dtype)
    return moved


def moved(state: IndexState, backend: str | Backend) -> IndexState:
    """The same index on another backend: packed and unpacked, without a file between."""
    target = select_backend(backend)
    if target is state.backend:
        return state
    with target.annotate("move"):
        return unpacked(packed(state), target)


def graph_checksum(state: IndexState) -> str:
    """A name for the graph of an index, that another graph will hardly have."""
    host, adjacency = state.backend.to_numpy, state.graph.adjacency
    parts = (adjacency.data, adjacency.indices, adjacency.indptr, state.numbering.order)
    return "-".join(array_checksum(host(part)) for part in parts)


def _matrices(
    device: Mapping[str, Any], backend: Backend, n: int, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """The sparse matrices whose three arrays are there, by name."""
    rank = int((parameters.get("basis") or {}).get("rank", 0))
    columns = {
        "adjacency": n,
        "basis_vectors": rank,
        "basis_transposed": n,
        "basis_spread": 2 * rank,
    }
    found = {}
    for name in (key.removesuffix("_indptr") for key in device if key.endswith("_indptr")):
        data, indices, indptr = (device[f"{name}_{piece}"] for piece in MATRIX_PARTS)
        rows = int(indptr.shape[0]) - 1
        found[name] = backend.csr(data, indices, indptr, (rows, columns.get(name, rows)))
    return found


def _basis(
    parts: Mapping[str, Any], facts: Mapping[str, Any], graph: Graph, backend: Backend
) -> Basis:
    own = {
        name.removeprefix("basis_"): part
        for name, part in parts.items()
        if name.startswith("basis_")
    }
    return restored_basis(str(facts["kind"]), own, facts, graph, backend)


def _origin(facts: Mapping[str, Any] | None, lists: Neighbors | None) -> Origin:
    if facts is None:
        # Files did not tell before the number of neighbors could be chosen.
        return Origin(None if lists is None else int(lists.ids.shape[1]))
    count, recall = facts["neighbors"], facts["recall"]
    return Origin(
        None if count is None else int(count),
        bool(facts["chosen"]),
        None if recall is None else float(recall),
    )


def _grouping(facts: Mapping[str, Any] | None, n: int, basis: Basis | None) -> Grouping:
    if facts is None:
        # A file of the first version does not tell: groups are taken for those of the library.
        grouped = basis is not None and basis.kind == "aggregates"
        return Grouping(n, share=1.0 if grouped else None)
    share = None if facts["share"] is None else float(facts["share"])
    return Grouping(int(facts["items"]), int(facts["changed"]), share)
