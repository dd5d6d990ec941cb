"""Index files: the only module that touches them.

An index is a folder. Each array is a plain ``.npy`` file, read by ``numpy.load`` without pickle;
``header.json`` names the files, their checksums and the index's parameters. Array files of every
save have names of their own, and the header is put in place last, in one step: a crash at any
moment leaves the folder at the old index or at the new one.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_gpu.backends import Backend, SparseMatrix, select_backend
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.basis import EigenBasis, GalerkinBasis
from hybrid_gpu.columns import Columns
from hybrid_gpu.errors import IndexFileError
from hybrid_gpu.graph import Graph, Layout
from hybrid_gpu.index import DiffusionIndex, Grouping
from hybrid_gpu.neighbors import Neighbors

FORMAT = "hybrid-gpu index"
VERSION = 1
HEADER = "header.json"


def save_index(index: DiffusionIndex, path: str | os.PathLike[str]) -> None:
    """Write an index to the folder ``path``, replacing an index that is there.

    Raises
    ------
    IndexFileError
        If ``path`` is a file, or a folder with anything but an index in it.
    """
    folder = Path(path)
    check_target(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save = secrets.token_hex(4)
    arrays = {}
    try:
        for name, array in _arrays_of(index).items():
            file = f"{name}.{save}.npy"
            arrays[name] = {"file": file, **_write_array(folder / file, array)}
        body = {"parameters": _parameters_of(index), "arrays": arrays}
        header = {
            "format": FORMAT,
            "version": VERSION,
            "checksum": _checksum(_canonical(body)),
            **body,
        }
        temporary = folder / f"{HEADER}.{save}.tmp"
        write_synced(temporary, json.dumps(header, indent=2).encode())
        os.replace(temporary, folder / HEADER)
    except BaseException:
        for leftover in folder.glob(f"*.{save}.*"):
            leftover.unlink()
        raise
    # Only now nothing refers to the files of the earlier save. Open maps of them stay valid.
    current = {entry["file"] for entry in arrays.values()}
    for old in folder.glob("*.npy"):
        if old.name not in current:
            old.unlink()
    for interrupted in folder.glob(f"{HEADER}.*.tmp"):
        interrupted.unlink()


def load_index(
    path: str | os.PathLike[str], *, verify: bool = True, backend: str | Backend = "auto"
) -> DiffusionIndex:
    """Open an index; no GPU is needed to open one that was built on a GPU.

    Parameters
    ----------
    path
        The folder that ``index.save`` wrote.
    verify
        Compare every array with its checksum, which reads the whole index once. Without it, arrays
        are mapped into memory and read when they are used.
    backend
        Where the index shall live.

    Raises
    ------
    IndexFileError
        If there is no index, or it is damaged, cut short, or of a newer format; names the file.
    """
    device = select_backend(backend)
    folder = Path(path)
    header = _read_header(folder)
    arrays = {
        name: _read_array(folder / str(entry["file"]), entry, verify)
        for name, entry in header["arrays"].items()
    }
    try:
        with device.annotate("load"):
            return _assemble(arrays, header["parameters"], device)
    except (KeyError, TypeError, ValueError, IndexError) as fault:
        raise IndexFileError(
            f"{folder / HEADER}: the parts of the index do not fit together ({fault!r})."
        ) from fault


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
    parts = (adjacency.data, adjacency.indices, index.layout.order)
    return "-".join(_array_checksum(host(part)) for part in parts)


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
    n = int(parameters["n"])
    for name in ("degrees", "components", "order"):
        if arrays[name].shape != (n,):
            raise ValueError(f"{name} of {n} items has shape {arrays[name].shape}")
    xp = backend.xp
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


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuse a path that an index cannot be saved to, before hours of building it."""
    folder = Path(path)
    if folder.is_file():
        raise IndexFileError(f"{folder}: an index is a folder, and this is a file.")
    if not folder.is_dir() or (folder / HEADER).exists():
        return
    # Array files without a header are what an interrupted first save leaves.
    strangers = [
        one.name
        for one in folder.iterdir()
        if one.suffix != ".npy" and not one.name.startswith(HEADER)
    ]
    if strangers:
        raise IndexFileError(
            f"{folder}: the folder holds other files ({strangers[0]}); choose an empty or new one."
        )


def _write_array(path: Path, array: HostArray) -> dict[str, Any]:
    # Without this, a 0-d or Fortran-ordered array would not come back in the order it is used in.
    array = np.ascontiguousarray(array)
    with open(path, "wb") as file:
        np.lib.format.write_array(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    return {"checksum": _array_checksum(array), "bytes": path.stat().st_size}


def write_synced(path: Path, content: bytes) -> None:
    """Write a small file and wait until it is on disk."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _read_header(folder: Path) -> dict[str, Any]:
    path = folder / HEADER
    if not folder.exists():
        raise IndexFileError(f"{folder}: no such index.")
    if not path.is_file():
        raise IndexFileError(
            f"{folder}: not an index, or one whose first save was interrupted: it has no {HEADER}."
        )
    try:
        header = json.loads(path.read_bytes())
    except ValueError as fault:
        raise IndexFileError(f"{path}: damaged, it is not JSON ({fault}).") from fault
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise IndexFileError(f"{path}: not a header of this library.")
    version = header.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise IndexFileError(
            f"{path}: format version {version!r}, and this version of hybrid-gpu reads up to "
            f"{VERSION}. Upgrade with pip install -U hybrid-gpu."
        )
    body = {"parameters": header.get("parameters"), "arrays": header.get("arrays")}
    if header.get("checksum") != _checksum(_canonical(body)):
        raise IndexFileError(f"{path}: damaged, its checksum does not match.")
    return header


def _read_array(path: Path, entry: dict[str, Any], verify: bool) -> HostArray:
    if not path.is_file():
        raise IndexFileError(f"{path}: missing.")
    size = path.stat().st_size
    if size != entry["bytes"]:
        raise IndexFileError(f"{path}: {size} bytes where {entry['bytes']} were written.")
    try:
        array: HostArray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as fault:
        # NumPy maps no empty array: read it.
        try:
            array = np.load(path, allow_pickle=False)
        except (ValueError, OSError, EOFError):
            raise IndexFileError(f"{path}: damaged ({fault}).") from fault
    if verify and _array_checksum(array) != entry["checksum"]:
        raise IndexFileError(f"{path}: damaged, its checksum does not match.")
    return array


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def _array_checksum(array: HostArray) -> str:
    return _checksum(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _checksum(content: Any) -> str:
    return f"{zlib.crc32(content):08x}"
