"""Commands that make or describe an index: ``build``, ``precompute``, ``plan``, ``info``."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import rich.filesize
import typer

import hybrid_gpu
from hybrid_gpu.backends import select_backend
from hybrid_gpu.choices import NeighborCount
from hybrid_gpu.cli.common import (
    NEIGHBORS,
    Device,
    IndexFolder,
    Json,
    Width,
    neighbor_count,
    open_index,
    print_json,
    print_pairs,
    progress_bars,
    refuse_inside_index,
)
from hybrid_gpu.diffusion.eigen_basis import EigenBasis
from hybrid_gpu.diffusion.filters import DEFAULT_ALPHA
from hybrid_gpu.files.array_files import load_array
from hybrid_gpu.files.item_lists import load_items
from hybrid_gpu.graph.neighbor_count import AUTO
from hybrid_gpu.index.build import BASES
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.factory import PAPER, build_index, load_index
from hybrid_gpu.index.plan import estimate_precompute
from hybrid_gpu.index.plan import plan as make_plan
from hybrid_gpu.index.precompute import check_columns_folder, remove_columns
from hybrid_gpu.index.storage import check_target
from hybrid_gpu.ranking.query_expansion import Expansion, augment_database

_OPTIONAL_PACKAGES = (
    *("faiss-cpu", "faiss-gpu", "cupy-cuda12x", "cupy-cuda13x"),
    *("matplotlib", "jinja2"),
)


def build(
    descriptors: Annotated[
        Path, typer.Argument(metavar="DESCRIPTORS", help="Array of shape (n, d), .npy or .npz.")
    ],
    index: IndexFolder,
    *,
    neighbors: Annotated[str | None, NEIGHBORS] = None,
    gamma: Annotated[float, typer.Option(help="Exponent of the similarities.")] = 3.0,
    alpha: Annotated[
        float | None, typer.Option(help=f"Restart parameter, in [0, 1); {DEFAULT_ALPHA}.")
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's 50 neighbors and alpha of 0.99.")
    ] = False,
    basis: Annotated[str, typer.Option(help=f"Basis to keep: {', '.join(BASES)}.")] = "auto",
    rank: Annotated[int | None, typer.Option(help="Groups or eigenvectors to keep.")] = None,
    precision: Annotated[
        str, typer.Option(help="Type of stored eigenvectors: float32, float16 or int8.")
    ] = "float32",
    knn: Annotated[
        str, typer.Option(help="k-NN search: auto, exact, faiss, cuvs or a FAISS factory.")
    ] = "auto",
    augment: Annotated[
        int, typer.Option(help="Neighbors that are added to each descriptor; 0: none.")
    ] = 0,
    dtype: Annotated[str, typer.Option(help="Type of numbers: float32 or float64.")] = "float32",
    backend: Device = "auto",
    keys: Annotated[
        Path | None,
        typer.Option(help="Your names of the items: text, one a line, or integers as .npy."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    as_json: Json = False,
) -> None:
    """Index a database of descriptors."""
    check_target(index)
    refuse_inside_index(index)
    count, restart = _graph_options(neighbors, alpha, paper)
    start = time.perf_counter()
    vectors = load_array(descriptors)
    names = None if keys is None else load_items(keys, text=True)
    # Whatever was typed: the library checks it.
    words: dict[str, Any] = {"knn": knn, "dtype": dtype, "backend": backend}
    basis_words: dict[str, Any] = {"basis": basis, "precision": precision}
    with progress_bars() as progress:
        if augment:
            vectors = augment_database(
                vectors,
                expansion=Expansion(neighbors=augment),
                progress=progress,
                **words,
            )
        built = build_index(
            vectors,
            neighbors=count,
            gamma=gamma,
            alpha=restart,
            rank=rank,
            keys=names,
            seed=seed,
            progress=progress,
            **basis_words,
            **words,
        )
        progress("saving", 0, 1)
        built.save(index)
    seconds = time.perf_counter() - start
    if as_json:
        print_json(index=str(index), seconds=seconds, **_describe(built))
        return
    typer.echo(f"{built}\nSaved to {index} after {seconds:.1f} s.")


def _graph_options(
    neighbors: str | None, alpha: float | None, paper: bool
) -> tuple[NeighborCount, float]:
    """Neighbors and alpha: what was given, else the paper's or our own."""
    own: dict[str, Any] = {"neighbors": AUTO, "alpha": DEFAULT_ALPHA}
    default = PAPER if paper else own
    count = default["neighbors"] if neighbors is None else neighbor_count(neighbors)
    return count, default["alpha"] if alpha is None else alpha


def precompute(
    index: IndexFolder,
    *,
    keep: Annotated[int, typer.Option(help="Entries to store for each item.")] = 1000,
    rtol: Annotated[
        float | None,
        typer.Option(help="Relative residual of each column; by default, local search or 1e-3."),
    ] = None,
    batch: Width = None,
    backend: Device = "auto",
    as_json: Json = False,
) -> None:
    """Diffuse every item once, for search --method precomputed.

    Call it again after an interruption, and it continues where it was.
    """
    work = Path(f"{os.path.abspath(index)}.columns")  # '.' has no name of its own
    with progress_bars() as progress:
        opened = open_index(index, backend, progress)
        check_target(index)
        check_columns_folder(work)
        expected = estimate_precompute(opened, keep=keep, rtol=rtol, batch=batch)
        if not as_json:
            typer.echo(
                f"About {expected.seconds / 60:.1f} minutes and "
                f"{rich.filesize.decimal(expected.bytes)}."
            )
        start = time.perf_counter()
        stored = opened.precompute(
            keep=keep, rtol=rtol, folder=work, batch=batch, progress=progress
        )
        progress("saving", 0, 1)
        stored.save(index)
    remove_columns(work)
    seconds = time.perf_counter() - start
    if as_json:
        print_json(index=str(index), seconds=seconds, **_describe(stored))
        return
    typer.echo(f"{stored}\nSaved to {index} after {seconds:.1f} s.")


def plan(
    index: IndexFolder,
    *,
    target: Annotated[float, typer.Option(help="Agreement with the exact ranking.")] = 0.99,
    k: Annotated[int, typer.Option("--k", "-k", help="Results that are compared.")] = 100,
    queries: Annotated[int, typer.Option(help="Items that serve as queries.")] = 64,
    eigenvectors: Annotated[
        list[int] | None, typer.Option(help="Rank of an eigenvector basis to try; repeatable.")
    ] = None,
    backend: Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure which method, basis, rank and steps reach a target at the least cost."""
    with progress_bars() as progress:
        opened = open_index(index, backend, progress)
        proposal = make_plan(
            opened,
            target=target,
            k=min(k, opened.n),
            queries=queries,
            eigenvectors=eigenvectors or (),
            progress=progress,
        )
    if as_json:
        best = None if proposal.best is None else asdict(proposal.best)
        print_json(
            target=target,
            best=best,
            candidates=[asdict(candidate) for candidate in proposal.candidates],
        )
        return
    typer.echo(repr(proposal))


def info(
    index: Annotated[
        Path | None, typer.Argument(metavar="INDEX", help="Folder of an index.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Describe an index; without one, describe this installation."""
    if index is None:
        facts = _installation()
        if as_json:
            print_json(**facts)
        else:
            print_pairs({name: value or "not installed" for name, value in facts.items()})
        return
    # Works without a GPU, and does not read all of a large index.
    opened = load_index(index, verify=False, backend="numpy")
    if as_json:
        print_json(**_describe(opened))
        return
    typer.echo(repr(opened))
    print_pairs({name: _readable(name, value) for name, value in _describe(opened).items()})


def _describe(index: DiffusionIndex) -> dict[str, Any]:
    """Facts about an index, by names that serve as JSON keys."""
    # The state, not the index's own attributes, which would copy it into the order of the ids.
    state = index.state
    graph, basis = state.graph, state.basis
    sizes = np.bincount(graph.components)
    facts: dict[str, Any] = {
        "items": index.n,
        "dimensions": None if state.descriptors is None else int(state.descriptors.shape[1]),
        "neighbors": state.origin.neighbors,
        "neighbors chosen": state.origin.chosen,
        "neighbor recall": state.origin.recall,
        "edges": graph.edges,
        "components": sizes.size,
        "largest component": int(sizes.max()),
        "isolated items": graph.isolated,
        "alpha": index.alpha,
        "gamma": index.gamma,
        "dtype": index.dtype,
        "basis": None if basis is None else basis.kind,
        "rank": 0 if basis is None else basis.rank,
        "stored columns": 0 if state.columns is None else state.columns.keep,
    }
    if isinstance(basis, EigenBasis) and basis.rank:
        facts |= {
            "largest eigenvalue": float(basis.eigenvalues[0]),
            "smallest eigenvalue": float(basis.eigenvalues[-1]),
            "worst residual": float(np.max(basis.residuals)),
            "orthogonality": basis.orthogonality,
        }
    facts |= {f"{part} bytes": size for part, size in index.memory.items()}
    return {name.replace(" ", "_"): value for name, value in facts.items()}


def _readable(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return rich.filesize.decimal(value)
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _installation() -> dict[str, str | None]:
    facts: dict[str, str | None] = {
        "hybrid-gpu": hybrid_gpu.__version__,
        "python": platform.python_version(),
    }
    packages = ("numpy", "scipy", "array-api-compat", *_OPTIONAL_PACKAGES)
    facts |= {package: _version_of(package) for package in packages}
    return facts | {"auto_backend": select_backend().name}


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
