"""Diffusion of many observations at once, by any filter and with the help of any basis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hybrid_gpu.backends import Array, Backend, SparseMatrix, on_device, select_backend
from hybrid_gpu.backends.generic import over_rows, power_of_two
from hybrid_gpu.choices import Accuracy, BackendName
from hybrid_gpu.diffusion.basis import Basis
from hybrid_gpu.diffusion.chebyshev import filtered_by_series
from hybrid_gpu.diffusion.conjugate_gradients import conjugate_gradients
from hybrid_gpu.diffusion.descent import system_of
from hybrid_gpu.diffusion.filters import Filter, PageRank, as_filter
from hybrid_gpu.diffusion.observation import Observation
from hybrid_gpu.diffusion.solution import (
    Solution,
    Stopping,
    check_alpha_resolved,
    check_stopping,
    not_converged,
)
from hybrid_gpu.graph.affinity import Graph
from hybrid_gpu.graph.csr import same_matrix
from hybrid_gpu.validation import DTYPES, check_finite, check_kind, dtype_name, shown


@on_device(lambda graph: getattr(graph, "degrees", None), stays=True)
def diffuse(
    graph: Graph,
    observation: Observation | Array,
    *,
    filter: Filter | Callable[..., Any] | None = None,
    basis: Basis | None = None,
    accuracy: Accuracy | None = None,
    steps: int | None = None,
    rtol: float | None = None,
    backend: BackendName | Backend = "auto",
) -> Solution:
    """Spread observations over the graph.

    Parameters
    ----------
    observation : Observation, or float array of shape (n, m)
        One column per query.
    filter
        ``PageRank()`` if None, which is solved by conjugate gradients; any other filter, or
        function of frequencies, is expanded in Chebyshev polynomials.
    basis
        Vectors to deflate, made for this graph. The answer that the steps converge to is the same
        for every basis.
    accuracy
        The relative residual at which each column stops; ``"ranking"``, the default, is 3e-3. For
        expansions, the truncation error; 1e-5 by default. ``Solution.residuals`` tells what was
        reached.
    steps
        Steps of conjugate gradients, exactly so many, or the degree of the expansion. With
        ``accuracy`` or ``rtol``, the most steps.
    rtol
        The same as ``accuracy``, but to miss it is an error.

    Raises
    ------
    ConvergenceError
        If ``rtol`` was given and not reached; its ``result`` is the ``Solution``.
    ValueError
        For a basis of another graph, whose items may be others or in another order.

    Examples
    --------
    Along a path, the middle gets most, because it has two neighbors:

    >>> import hybrid_gpu as hg
    >>> from scipy.sparse import csr_array
    >>> graph = hg.graph_from_affinity(csr_array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]))
    >>> observation = hg.observe([[0]], [[1.0]], n=3)
    >>> solution = hg.diffuse(graph, observation, filter=hg.PageRank(0.9), rtol=1e-5)
    >>> print(solution.values[:, 0].round(3))
    [0.313 0.335 0.213]
    """
    check_kind(graph, "graph", Graph, "Pass index.graph, or make one with graph_from_affinity.")
    device = select_backend(backend, like=graph.degrees)
    if basis is not None:
        _check_basis(basis, graph, device)
    chosen = PageRank() if filter is None else as_filter(filter)
    if isinstance(observation, Observation):
        if observation.n != graph.n:
            raise ValueError(
                f"observation must be one of the graph's {graph.n} items; got one of "
                f"{observation.n}."
            )
        right_side = observation.dense(device)
    else:
        right_side = observation
        if dtype_name(getattr(right_side, "dtype", None)) not in DTYPES:
            raise TypeError(
                f"observation must be an Observation, or an array (n, m) in float32 or float64; "
                f"got {shown(observation)}."
            )
        if right_side.ndim != 2 or right_side.shape[0] != graph.n:
            raise ValueError(
                f"observation must have shape (n, m) with n = {graph.n}; got "
                f"{tuple(right_side.shape)}."
            )
        check_finite(right_side, "observation", device)
    check_alpha_resolved(chosen, dtype_name(right_side.dtype))
    stop = check_stopping(chosen, steps=steps, rtol=rtol, accuracy=accuracy)
    # The square of a number below 1e-23 is zero in float32, and that of one above 1e19 infinite.
    largest = over_rows(device.xp.max, device.xp.abs(right_side), device.xp)[None, :]
    scale = power_of_two(largest, device.xp)
    solution = diffused(graph.adjacency, right_side / scale, basis, chosen, stop, device)
    solution = replace(solution, values=solution.values * scale)
    if stop.insists and not solution.converged:
        raise not_converged(solution.steps, rtol, result=solution)
    return solution


def diffused(
    adjacency: SparseMatrix,
    observation: Array,
    basis: Basis | None,
    filter: Filter,
    stop: Stopping,
    backend: Backend,
    *,
    watched: Array | None = None,
    roots: Array | None = None,
) -> Solution:
    """Diffuse scaled observations (n, m), with everything checked.

    ``watched`` (n, m) are the items whose ranking shall be right; None: all of them. ``roots``
    (n, 1) are what the caller makes scores of the values by, if these are not the scores.

    Departs from the paper: eq. (h-temporal) multiplies with the basis in every step. Eigenvectors
    are projected out once instead, because diffusion leaves their span in place; after the same
    number of steps the error is the same to three digits (Fashion-MNIST, rank 100 and 400), at the
    cost of plain conjugate gradients. Other vectors are projected out in every step, exactly.
    """
    alpha = filter.resolvent
    if alpha is None:
        # Eigenpairs are not exact, and what they leave of themselves the series would raise: with
        # residuals of 1e-3, fifty of them made an error of 2e-7 one of 2e-4.
        return filtered_by_series(adjacency, observation, filter, stop, backend)
    system = system_of(
        adjacency, observation, alpha, backend, tolerance=stop.tolerance, roots=roots
    )
    if watched is not None:
        system = replace(system, watched=watched)
    return conjugate_gradients(system, stop, basis)


def _check_basis(basis: Any, graph: Graph, backend: Backend) -> None:
    """Refuse what is no basis, and a basis of another graph."""
    if not hasattr(basis, "coarse_inverse"):
        raise TypeError(
            f"basis must be a basis or None; got {shown(basis)}. Make one with aggregate_basis, "
            "eigen_basis or given_basis."
        )
    if not same_matrix(basis.adjacency, graph.adjacency, backend):
        raise ValueError(
            f"basis must be one of this graph of {graph.n} items; got one of another graph, or of "
            "the same items in another order. Make it with this graph, or pass index.graph and "
            "index.basis of the same index."
        )
