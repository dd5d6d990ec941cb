"""Index files: the only module that knows what is in them.

An index is a folder. Each array is a plain ``.npy`` file that ``numpy.load`` reads without pickle;
``header.json`` names the files, their dtypes, shapes and checksums, and the index's parameters.
Array files of every save have names of their own, and the header is put in place last, in one
step: a crash at any moment leaves the folder at the old index or at the new one. ``folder_lock``
keeps a second writer out, and everything that is not the index's own.

Version 1 of the format had no dtypes and shapes in the header; it is read as well.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hybrid_gpu.backends import Backend, SparseMatrix, select_backend
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.diffusion.basis import EigenBasis, GalerkinBasis
from hybrid_gpu.errors import IndexFileError
from hybrid_gpu.files.folder_lock import LOCK, is_folder, own_folder, refuse_strangers, unreachable
from hybrid_gpu.files.stored_arrays import (
    array_checksum,
    checksum,
    file_checksum,
    mapped_array,
    open_plain_file,
    read_head,
    read_json,
    write_array,
)
from hybrid_gpu.files.writing import put_in_place, sync_folder, write_synced
from hybrid_gpu.graph.affinity import Graph, Layout
from hybrid_gpu.graph.neighbors import Neighbors
from hybrid_gpu.index.diffusion_index import DiffusionIndex, Grouping
from hybrid_gpu.index.file_checks import check_arrays, check_parameters
from hybrid_gpu.ranking.columns import Columns

FORMAT = "hybrid-gpu index"
VERSION = 2
HEADER = "header.json"

# Seconds that a save waits for another one to the same folder: longer than any index takes.
_PATIENCE = 600.0
# A reader that was overtaken by a save begins again. Each time, a whole save went by.
_MOST_TRIES = 1000
_CHECKSUM = re.compile(r"[0-9a-f]{8}")


def save_index(index: DiffusionIndex, path: str | os.PathLike[str]) -> None:
    """Write an index to the folder ``path``, replacing an index that is there.

    While another process or thread saves to the same folder, this waits, for ten minutes at most.

    Raises
    ------
    IndexFileError
        If ``path`` is a file, or a folder with anything in it that its own header does not name,
        or another process is still writing to it. Nothing has changed then.
    OSError
        If the disk is full or cannot be written. The index that was there is still there.
    """
    # Once: with a relative path, a change of the working directory would lead elsewhere.
    folder = Path(path).absolute()
    with own_folder(folder, _named_files, patience=_PATIENCE) as own:
        mark = own.begin()
        try:
            _write(index, folder, mark)
        finally:
            # Whatever happened, the header tells which files are in use. Open maps of the others
            # stay valid.
            own.sweep()


def _write(index: DiffusionIndex, folder: Path, mark: str) -> None:
    arrays = {}
    for name, array in _arrays_of(index).items():
        file = f"{name}.{mark}.npy"
        arrays[name] = {"file": file, **write_array(folder / file, array)}
    header = {
        "format": FORMAT,
        "version": VERSION,
        "parameters": _parameters_of(index),
        "arrays": arrays,
    }
    header["checksum"] = _header_checksum(header)
    temporary = folder / f"{HEADER}.{mark}.tmp"
    write_synced(temporary, json.dumps(header, indent=2).encode())
    # The arrays' names are on disk before the header that names them, and the header before the
    # old arrays go.
    sync_folder(folder)
    put_in_place(temporary, folder / HEADER)


def load_index(
    path: str | os.PathLike[str], *, verify: bool = True, backend: str | Backend = "auto"
) -> DiffusionIndex:
    """Open an index; no GPU is needed to open one that was built on a GPU.

    Arrays are mapped into memory, not copied. A save to the same folder does not disturb an index
    that is open; but a file that somebody cuts short while it is mapped ends the process.

    Parameters
    ----------
    path
        The folder that ``index.save`` wrote.
    verify
        Compare every array with its checksum, which reads the whole index once. Without it, sizes,
        dtypes and shapes are still compared with the header, and all indices checked, so that a
        damaged index cannot crash the process; but a damaged value can give a wrong answer.
    backend
        Where the index shall live.

    Raises
    ------
    IndexFileError
        If there is no index, or it is damaged, cut short, or of a newer format; names the file.
    """
    device = select_backend(backend)
    # Once: with a relative path, a change of the working directory would lead elsewhere.
    folder = Path(path).absolute()
    header = _read_header(folder)
    for _ in range(_MOST_TRIES):
        try:
            arrays = _read_arrays(folder, header, verify)
            break
        except IndexFileError:
            # Files go when another process has put a new header in place.
            before, header = header, _read_header(folder)
            if header == before:
                raise
    else:
        raise IndexFileError(
            f"{folder}: another process saves to it without a pause. Load it when that is done."
        )
    parameters = header["parameters"]
    check_arrays(arrays, parameters, verify, _faults(folder, header))
    with device.annotate("load"):
        return _assemble(arrays, parameters, device)


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuse a path that an index cannot be saved to, before hours of building it."""
    refuse_strangers(Path(path).absolute(), _named_files)


def has_index(path: str | os.PathLike[str]) -> bool:
    """Whether a folder has the header of an index, as one whose first save was killed has not."""
    return os.path.lexists(Path(path) / HEADER)


def is_ours(path: Path) -> bool:
    """Whether a folder is one that this library writes to, and that is for its own files only."""
    if os.path.lexists(path / LOCK):
        return True
    try:  # a copy without hidden files has no lock
        return has_index(path) and bool(_read_header(path))
    except IndexFileError:
        return False


def remove_index(path: str | os.PathLike[str]) -> None:
    """Remove an index and its folder.

    Raises
    ------
    IndexFileError
        If the folder holds anything else, or somebody is writing to it. Nothing has changed then.
    """
    if os.path.lexists(path):
        with own_folder(Path(path).absolute(), _named_files, patience=0.0) as own:
            own.dissolve()


def moved(index: DiffusionIndex, backend: str | Backend) -> DiffusionIndex:
    """The same index on another backend: packed and unpacked, without a file between."""
    target = select_backend(backend)
    if target is index.backend:
        return index
    with target.annotate("move"):
        return _assemble(_arrays_of(index), _parameters_of(index), target)


def graph_checksum(index: DiffusionIndex) -> str:
    """A name for the graph of an index, that another graph will hardly have."""
    host = index.backend.to_numpy
    adjacency = index.layout.graph.adjacency
    parts = (adjacency.data, adjacency.indices, adjacency.indptr, index.layout.order)
    return "-".join(array_checksum(host(part)) for part in parts)


def _arrays_of(index: DiffusionIndex) -> dict[str, HostArray]:
    host, graph = index.backend.to_numpy, index.layout.graph
    arrays: dict[str, Any] = {
        **_csr_arrays("adjacency", graph.adjacency),
        "degrees": graph.degrees,
        "order": index.layout.order,
    }
    if index.descriptors is not None:
        arrays["descriptors"] = index.descriptors
    if index.neighbors is not None:
        arrays["neighbor_ids"] = index.neighbors.ids
        arrays["neighbor_similarities"] = index.neighbors.similarities
    if index.columns is not None:
        arrays["column_ids"] = index.columns.ids
        arrays["column_scores"] = index.columns.scores
    basis = index.basis
    if isinstance(basis, EigenBasis):
        arrays["basis_eigenvalues"] = basis.eigenvalues
        arrays["basis_vectors"] = basis.vectors
        if basis.scales is not None:
            arrays["basis_scales"] = basis.scales
    elif basis is not None:
        for name in ("vectors", "transposed", "spread", "gram", "coupling", "alone"):
            part = getattr(basis, name)
            if hasattr(part, "indptr"):
                arrays.update(_csr_arrays(f"basis_{name}", part))
            elif part is not None and name != "transposed":  # dense: a view of the vectors
                arrays[f"basis_{name}"] = part
    on_host = {name: host(array) for name, array in arrays.items()}
    on_host["components"] = graph.components
    if isinstance(basis, EigenBasis):
        on_host["basis_residuals"] = basis.residuals
    return on_host


def _csr_arrays(name: str, matrix: SparseMatrix) -> dict[str, Any]:
    return {
        f"{name}_data": matrix.data,
        f"{name}_indices": matrix.indices,
        f"{name}_indptr": matrix.indptr,
    }


def _parameters_of(index: DiffusionIndex) -> dict[str, Any]:
    parameters: dict[str, Any] = {"n": index.n, "alpha": index.alpha, "gamma": index.gamma}
    basis = index.basis
    if basis is not None:
        parameters["basis"] = {"kind": basis.kind, "rank": basis.rank}
    if isinstance(basis, EigenBasis):
        # JSON has no infinity: a missing figure stands for 'nothing else was there to miss'.
        missed = basis.missed if math.isfinite(basis.missed) else None
        parameters["basis"] |= {
            "items": basis.items,
            "orthogonality": basis.orthogonality,
            "missed": missed,
        }
    if index.grouping is not None:
        parameters["grouping"] = asdict(index.grouping)
    if index.columns is not None:
        parameters["columns_alpha"] = index.columns.alpha
    return parameters


def _assemble(
    arrays: dict[str, HostArray], parameters: dict[str, Any], backend: Backend
) -> DiffusionIndex:
    n, xp = int(parameters["n"]), backend.xp
    device = {name: backend.asarray(array) for name, array in arrays.items()}
    graph = Graph(
        _csr("adjacency", device, (n, n), backend), device["degrees"], arrays["components"]
    )
    places = xp.astype(xp.argsort(device["order"]), xp.int64)
    neighbors = columns = None
    if "neighbor_ids" in device:
        neighbors = Neighbors(device["neighbor_ids"], device["neighbor_similarities"])
    if "column_ids" in device:
        columns = Columns(
            device["column_ids"], device["column_scores"], float(parameters["columns_alpha"])
        )
    return DiffusionIndex(
        layout=Layout(graph, device["order"], places),
        descriptors=device.get("descriptors"),
        neighbors=neighbors,
        basis=_basis(device, arrays, parameters.get("basis"), graph, backend),
        columns=columns,
        alpha=float(parameters["alpha"]),
        gamma=float(parameters["gamma"]),
        backend=backend,
        grouping=_grouping(parameters.get("grouping")),
    )


def _grouping(told: dict[str, Any] | None) -> Grouping | None:
    if told is None:  # an index of an earlier version
        return None
    share = None if told["share"] is None else float(told["share"])
    return Grouping(int(told["items"]), int(told["changed"]), share)


def _csr(
    name: str, device: dict[str, Any], shape: tuple[int, int], backend: Backend
) -> SparseMatrix:
    data, indices, indptr = (device[f"{name}_{part}"] for part in ("data", "indices", "indptr"))
    return backend.csr(data, indices, indptr, shape)


def _basis(
    device: dict[str, Any],
    arrays: dict[str, HostArray],
    told: dict[str, Any] | None,
    graph: Graph,
    backend: Backend,
) -> EigenBasis | GalerkinBasis | None:
    if told is None:
        return None
    if "basis_eigenvalues" in device:
        return EigenBasis(
            eigenvalues=device["basis_eigenvalues"],
            vectors=device["basis_vectors"],
            scales=device.get("basis_scales"),
            residuals=arrays["basis_residuals"],
            orthogonality=float(told["orthogonality"]),
            missed=-math.inf if told["missed"] is None else float(told["missed"]),
            items=int(told["items"]),
            adjacency=graph.adjacency,
            backend=backend,
        )
    shape = (graph.n, int(told["rank"]))
    if "basis_vectors" in device:
        vectors = device["basis_vectors"]
        transposed = vectors.T
    else:
        vectors = _csr("basis_vectors", device, shape, backend)
        transposed = _csr("basis_transposed", device, shape[::-1], backend)
    spread, coupling = None, device.get("basis_coupling")
    if "basis_spread_data" in device:
        spread = _csr("basis_spread", device, (shape[0], 2 * shape[1]), backend)
    if "basis_coupling_data" in device:
        size = len(arrays["basis_coupling_indptr"]) - 1
        coupling = _csr("basis_coupling", device, (size, size), backend)
    return GalerkinBasis(
        kind=str(told["kind"]),
        vectors=vectors,
        transposed=transposed,
        spread=spread,
        gram=device.get("basis_gram"),
        coupling=coupling,
        alone=device["basis_alone"],
        adjacency=graph.adjacency,
        backend=backend,
    )


def _named_files(folder: Path) -> frozenset[str]:
    """The files that the folder's header names, and the header; none if there is no header."""
    if not os.path.lexists(folder / HEADER):
        return frozenset()
    arrays = _read_header(folder)["arrays"].values()
    return frozenset({HEADER, *(entry["file"] for entry in arrays)})


def _read_header(folder: Path) -> dict[str, Any]:
    path = folder / HEADER
    if not is_folder(folder):
        raise IndexFileError(f"{folder}: no such index.")
    try:
        os.lstat(path)
    except FileNotFoundError as fault:
        raise IndexFileError(
            f"{folder}: not an index, or one whose first save was interrupted: it has no {HEADER}."
        ) from fault
    except OSError as fault:
        raise unreachable(path, fault) from fault
    header = read_json(path)
    if header.get("format") != FORMAT:
        raise IndexFileError(f"{path}: not a header of this library.")
    version = header.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= VERSION:
        raise IndexFileError(
            f"{path}: format version {version!r}, and this version of hybrid-gpu reads up to "
            f"{VERSION}. Upgrade with pip install -U hybrid-gpu."
        )
    if header.get("checksum") != _header_checksum(header):
        raise IndexFileError(f"{path}: damaged, its checksum does not match.")
    arrays = header.get("arrays")
    if not isinstance(arrays, dict) or not all(
        _is_entry(name, entry, version) for name, entry in arrays.items()
    ):
        raise IndexFileError(f"{path}: damaged, its list of arrays is not one of this library.")
    check_parameters(header.get("parameters"), _faults(folder, header))
    return header


def _is_entry(name: str, entry: Any, version: int) -> bool:
    """Whether an entry of the header names a file as a save does, in this folder and no other."""
    if not isinstance(entry, dict):
        return False
    pattern = re.escape(name) + r"\.[0-9a-f]{8}\.npy"
    named = re.fullmatch("[a-z_]+", name) and re.fullmatch(pattern, str(entry.get("file")))
    told = version == 1 or ("dtype" in entry and "shape" in entry)
    return bool(named and told and _CHECKSUM.fullmatch(str(entry.get("checksum"))))


def _header_checksum(header: Mapping[str, Any]) -> str:
    # Version 1 left its format and version out.
    first = () if header["version"] == 1 else ("format", "version")
    covered = (*first, "parameters", "arrays")
    body = {part: header.get(part) for part in covered}
    return checksum(json.dumps(body, sort_keys=True).encode())


def _read_arrays(folder: Path, header: Mapping[str, Any], verify: bool) -> dict[str, HostArray]:
    """All arrays, mapped; opened before any is read, because an open file cannot go away."""
    arrays = {}
    with contextlib.ExitStack() as stack:
        files = {
            name: stack.enter_context(open_plain_file(folder / entry["file"]))
            for name, entry in header["arrays"].items()
        }
        for name, file in files.items():
            entry = header["arrays"][name]
            path = folder / entry["file"]
            size = os.fstat(file.fileno()).st_size
            if size != entry.get("bytes"):
                raise IndexFileError(
                    f"{path}: {size} bytes where {entry.get('bytes')!r} were written."
                )
            head = read_head(file, path)
            told = (entry.get("dtype", head.dtype), entry.get("shape", list(head.shape)))
            if told != (head.dtype, list(head.shape)):
                raise IndexFileError(
                    f"{path}: damaged, {head.dtype} of shape {head.shape} where the header says "
                    f"{told[0]!r} of shape {told[1]!r}."
                )
            if verify and file_checksum(file, path, head.offset, size) != entry["checksum"]:
                raise IndexFileError(f"{path}: damaged, its checksum does not match.")
            try:
                arrays[name] = mapped_array(file, head)
            except OSError as fault:  # too many maps or files of this process
                raise IndexFileError(f"{path}: cannot be mapped ({fault.strerror}).") from fault
    return arrays


def _faults(folder: Path, header: Mapping[str, Any]) -> Any:
    def fault(name: str | None, wrong: str) -> IndexFileError:
        file = HEADER if name is None else header["arrays"][name]["file"]
        return IndexFileError(f"{folder / file}: {wrong}.")

    return fault
