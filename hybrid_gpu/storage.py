"""Index files: the only module that touches them.

An index is a folder. Each array is a plain ``.npy`` file, read by ``numpy.load`` without pickle;
``header.json`` names the files, their checksums and the index's parameters. Array files of every
save have names of their own, and the header is put in place last, in one step: a crash at any
moment leaves the folder at the old index or at the new one.
"""

from __future__ import annotations

import json
import os
import secrets
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_gpu.backends import Backend, select_backend
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.errors import IndexFileError
from hybrid_gpu.graph import Graph
from hybrid_gpu.index import DiffusionIndex
from hybrid_gpu.spectrum import Spectrum

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
        _write_synced(temporary, json.dumps(header, indent=2).encode())
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
        return _assemble(arrays, header["parameters"], device)
    except (KeyError, TypeError, ValueError, IndexError) as fault:
        raise IndexFileError(
            f"{folder / HEADER}: the parts of the index do not fit together ({fault!r})."
        ) from fault


def _arrays_of(index: DiffusionIndex) -> dict[str, HostArray]:
    adjacency, spectrum = index.graph.adjacency, index.spectrum
    host = index.backend.to_numpy
    arrays = {
        "adjacency_data": host(adjacency.data),
        "adjacency_indices": host(adjacency.indices),
        "adjacency_indptr": host(adjacency.indptr),
        "degrees": host(index.graph.degrees),
        "components": index.graph.components,
    }
    if index.descriptors is not None:
        arrays["descriptors"] = host(index.descriptors)
    if spectrum is not None:
        arrays["eigenvalues"] = host(spectrum.eigenvalues)
        arrays["eigenvectors"] = host(spectrum.eigenvectors)
        arrays["eigen_residuals"] = spectrum.residuals
    return arrays


def _parameters_of(index: DiffusionIndex) -> dict[str, Any]:
    parameters: dict[str, Any] = {"n": index.n, "alpha": index.alpha, "gamma": index.gamma}
    if index.spectrum is not None:
        parameters["eigen_items"] = index.spectrum.items
        parameters["eigen_orthogonality"] = index.spectrum.orthogonality
    return parameters


def _assemble(
    arrays: dict[str, HostArray], parameters: dict[str, Any], backend: Backend
) -> DiffusionIndex:
    def device(name: str) -> Any:
        return backend.asarray(arrays[name])

    n = int(parameters["n"])
    if arrays["degrees"].shape != (n,) or arrays["components"].shape != (n,):
        raise ValueError(f"expected arrays of {n} items")
    adjacency = backend.csr(
        device("adjacency_data"), device("adjacency_indices"), device("adjacency_indptr"), (n, n)
    )
    spectrum = None
    if "eigenvectors" in arrays:
        spectrum = Spectrum(
            eigenvalues=device("eigenvalues"),
            eigenvectors=device("eigenvectors"),
            residuals=arrays["eigen_residuals"],
            orthogonality=float(parameters["eigen_orthogonality"]),
            items=int(parameters["eigen_items"]),
        )
    return DiffusionIndex(
        graph=Graph(adjacency, device("degrees"), arrays["components"]),
        descriptors=device("descriptors") if "descriptors" in arrays else None,
        spectrum=spectrum,
        alpha=float(parameters["alpha"]),
        gamma=float(parameters["gamma"]),
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


def _write_synced(path: Path, content: bytes) -> None:
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
