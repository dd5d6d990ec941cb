"""From scores to rankings: the best items of each query, and an answer for every item."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends import Array, Backend, on_device, select_backend
from hybrid_gpu.backends.numpy_backend import host_copy
from hybrid_gpu.backends.protocol import Numbering, TopK
from hybrid_gpu.choices import BackendName
from hybrid_gpu.diffusion.solution import Solution
from hybrid_gpu.errors import HybridGpuError
from hybrid_gpu.ranking.conversions import as_frame, as_tensor
from hybrid_gpu.ranking.keys import Keys
from hybrid_gpu.validation import DTYPES, check_count, dtype_name, shown


@dataclass(frozen=True, slots=True, eq=False)
class LocalFacts:
    """How far each of m queries went in a local search.

    Attributes
    ----------
    settled : bool array of shape (m,)
        Whether its best items were found to rest; the others were solved by ``hybrid``.
    rounds, visited : int64 arrays of shape (m,)
        Rounds, and items that were visited.
    """

    settled: Array
    rounds: Array
    visited: Array


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """The best items of a batch, and how they were found.

    Attributes
    ----------
    best : TopK
        Of shape (m, k), by the user's ids.
    residuals, steps, converged, truncation, resolved
        As in a ``Solution``.
    local : LocalFacts or None
        How far each query went, where a method searched locally.
    """

    best: TopK
    residuals: Array | None
    steps: int
    converged: bool
    truncation: float | None = None
    local: LocalFacts | None = None
    resolved: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """How a ranking came about.

    Attributes
    ----------
    method : str
        The method that ran; never ``"auto"``.
    steps : int
        The most solver steps that a batch took.
    residuals : float64 array of shape (m,), or None
        Relative residual of each query's linear system; None for methods that solve none.
    accuracy : float or None
        The relative residual that was asked for; None where a number of steps was. Queries that
        missed it are those with ``residuals > accuracy``. To tell their best items apart, queries
        may have gone further.
    truncation : float or None
        Bound on the error of a filter's expansion; None where none was used, or none is known.
    seconds : mapping of str to float
        Time of each stage: ``observe``, ``solve``, ``rank``.
    backend : str
        Where it ran.
    batch : int
        Queries that were solved side by side.
    local : LocalFacts or None
        How far each query went, for ``method="local"``.
    notes : tuple of str
        What a user may want to know: items that diffusion cannot reach, queries that missed their
        accuracy, rankings that end in rounding, a batch that was halved for lack of memory.
    """

    method: str
    steps: int
    residuals: Array | None
    accuracy: float | None
    truncation: float | None
    seconds: Mapping[str, float]
    backend: str
    batch: int
    notes: tuple[str, ...] = ()
    local: LocalFacts | None = None

    @property
    def total_seconds(self) -> float:
        """Time of all stages together."""
        return sum(self.seconds.values())

    def __repr__(self) -> str:
        time = f"{self.total_seconds:.3f} s"
        return f"Report({self.method}, {self.steps} steps, {time} on {self.backend})"


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """The best items of m queries, best first.

    ``keys, scores = ranking`` takes it apart; ``ranking[3]`` is the result of one query. Where an
    index has no keys, the ids are their keys: whatever comes apart so can go in again.

    Attributes
    ----------
    ids : int64 array of shape (m, k)
        Database items. Of equal scores, the lower id comes first; items that diffusion did not
        reach, with a score of 0, come by their similarity. -1 where there was nothing more to
        find: ids are never made up. They count the items, and so are the places in any other array
        of the items: ``labels[ranking.ids]``.
    scores : float array of shape (m, k)
        Their scores; 0 for items that diffusion did not reach, -inf beside an id of -1.
    report : Report
    known : Keys or None
        The keys of the index, of which ``keys`` are some.
    """

    ids: NDArray[np.int64]
    scores: NDArray[Any]
    report: Report
    known: Keys | None = field(default=None, repr=False)

    @property
    def keys(self) -> NDArray[Any]:
        """The user's own names of the items, (m, k); ``ids`` if the index has no keys.

        On the host. Beside an id of -1 stands None among strings, and -1 among integers, which is
        2**64 - 1 in uint64.
        """
        return self.ids if self.known is None else self.known.of(np.asarray(host_copy(self.ids)))

    def __repr__(self) -> str:
        m, k = self.ids.shape
        return f"Ranking({m} queries, top {k}, {self.report.method})"

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return iter((self.keys, self.scores))

    def __getitem__(self, query: int) -> dict[Any, float]:
        """The scores of a query's results by their keys, best first, without those of -1."""
        if not hasattr(query, "__index__"):
            raise TypeError(
                f"ranking[3] is the result of one query; got {shown(query)}. Take several out of "
                "ranking.ids and ranking.scores."
            )
        ids, scores = (np.asarray(host_copy(part[query, ...])) for part in (self.ids, self.scores))
        keys, found = (ids if self.known is None else self.known.of(ids)), ids >= 0
        return dict(zip(keys[found].tolist(), scores[found].tolist(), strict=True))

    def to_dicts(self) -> list[dict[Any, float]]:
        """The results of every query, each as in ``ranking[query]``.

        Examples
        --------
        >>> import hybrid_gpu as hg
        >>> index = hg.build_index([[3.0, 4], [4, 3], [-1, 1]], neighbors=1, dtype="float64")
        >>> index.search([[3.0, 4]], k=2, method="nn").to_dicts()
        [{0: 1.0, 1: 0.96}]
        """
        return [self[query] for query in range(self.ids.shape[0])]

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with a line for each result: query, place, key and score.

        The column is called ``id`` if the index has no keys. Places count from 1. What was not
        found has no line.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        name = "id" if self.known is None else "key"
        return as_frame(host_copy(self.ids), self.keys, host_copy(self.scores), name)

    def to_torch(self, device: Any = None) -> tuple[Any, Any]:
        """The ids and scores as ``torch`` tensors: int64 and float, of shape (m, k).

        They share the memory of the ranking where they can.

        Parameters
        ----------
        device
            Where to have them. None: where they are, which is where the queries were.

        Raises
        ------
        ImportError
            If torch is not installed.
        DeviceMismatchError
            If the ranking is on a GPU that this torch does not reach.
        """
        return as_tensor(self.ids, device), as_tensor(self.scores, device)


@on_device(lambda scores: scores, stays=True)
def top_items(
    scores: Array,
    *,
    k: int,
    similarities: Callable[[], Array] | None = None,
    backend: BackendName | Backend = "auto",
) -> TopK:
    """The ``k`` best items of each column of scores.

    Parameters
    ----------
    scores : float array of shape (n, m)
        One column per query.
    k
        Items per query; all n if it is larger.
    similarities : callable that returns a float array of shape (m, n), optional
        Asked for only if a query wants more items than diffusion reached: items of a score of
        exactly 0 come in the order of their similarity instead of that of their ids.
        One of -inf says that nothing is known of the item: it is left out.

    Returns
    -------
    TopK
        ``ids`` and ``scores`` of shape (m, k): positive scores, then zeros by similarity, then
        negative scores, then ids of -1 with scores of -inf for items that are left out.

    Raises
    ------
    HybridGpuError
        If there is a NaN among the best scores.

    Examples
    --------
    >>> import numpy as np
    >>> import hybrid_gpu as hg
    >>> best = hg.top_items(np.array([[0.1], [0.7], [0.2]]), k=2)
    >>> best.ids.tolist(), best.scores.tolist()
    ([[1, 2]], [[0.7, 0.2]])
    """
    device = select_backend(backend, like=scores)
    floats = dtype_name(getattr(scores, "dtype", None)) in DTYPES and not hasattr(scores, "tocsr")
    if not floats or len(scores.shape) != 2 or 0 in scores.shape:
        raise ValueError(
            f"scores must be an array of shape (n, m) in float32 or float64; got {shown(scores)}."
        )
    if similarities is not None and not callable(similarities):
        raise TypeError(
            f"similarities must be a function that returns them; got {shown(similarities)}. Pass "
            "lambda: similarities."
        )
    k = min(check_count(k, "k"), scores.shape[0])
    return best_items(scores, Wanted(k, similarities), device)


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """What is asked of scores (n, m).

    Attributes
    ----------
    k : int
        Items per query.
    similarities : callable or None
        Gives what orders items of a score of 0, (m, n).
    permitted : bool array of shape (n, m) or (n, 1), or None
        The items that a ranking may have; None for all.
    filled : int
        So many scores of each query, or more, are known to be positive, and none to be NaN.
    """

    k: int
    similarities: Callable[[], Array] | None = None
    permitted: Array | None = None
    filled: int = 0


def best_items(
    scores: Array, wanted: Wanted, backend: Backend, numbering: Numbering | None = None
) -> TopK:
    """``top_items`` of checked scores; with a numbering, ids and ties are those of the user."""
    xp, similarities = backend.xp, wanted.similarities
    if wanted.permitted is not None:
        # Before the best are taken, not after: they are k that are permitted.
        nothing = xp.asarray(-xp.inf, dtype=scores.dtype, device=backend.device)
        scores = xp.where(wanted.permitted, scores, nothing)
    rows = scores.T
    best = backend.top_k(rows, wanted.k, numbering)
    if wanted.permitted is not None:
        known = best.scores > nothing
        best = TopK(scores=best.scores, ids=xp.where(known, best.ids, -xp.ones_like(best.ids)))
    elif wanted.filled >= wanted.k:
        # To ask waits for the device.
        return _named(best, numbering, xp)
    short = best.scores[:, -1] <= 0
    # Both at once: to ask waits for the device.
    asked = xp.stack([xp.any(xp.isnan(best.scores)), xp.any(short)])
    damaged, some_short = backend.to_numpy(asked).tolist()
    if damaged:
        raise nan_error()
    if similarities is not None and some_short:
        (fine,), (wanting,) = xp.nonzero(~short), xp.nonzero(short)
        filled = _fill(
            xp.take(rows, wanting, axis=0),
            xp.take(similarities(), wanting, axis=0),
            TopK(xp.take(best.scores, wanting, axis=0), xp.take(best.ids, wanting, axis=0)),
            numbering,
            backend,
        )
        back = xp.argsort(xp.concat([fine, wanting]))
        ids = xp.concat([xp.take(best.ids, fine, axis=0), filled.ids])
        values = xp.concat([xp.take(best.scores, fine, axis=0), filled.scores])
        best = TopK(scores=xp.take(values, back, axis=0), ids=xp.take(ids, back, axis=0))
    return _named(best, numbering, xp)


def _named(best: TopK, numbering: Numbering | None, xp: Any) -> TopK:
    """The best with the ids of the user."""
    if numbering is None:
        return best
    return TopK(scores=best.scores, ids=numbering.to_ids(best.ids, xp))


def ranked_solution(
    solution: Solution, wanted: Wanted, backend: Backend, numbering: Numbering
) -> Ranked:
    """The best items of a solution, with their scores in the units of the observation."""
    wanted = replace(wanted, filled=solution.filled)
    best = best_items(solution.values, wanted, backend, numbering)
    if solution.scale is not None:
        # Not before they are ranked: tiny scores would all become zero.
        scores = backend.xp.astype(best.scores * solution.scale, best.scores.dtype)
        best = TopK(scores=scores, ids=best.ids)
    how = (solution.residuals, solution.steps, solution.converged, solution.truncation)
    return Ranked(best, *how, resolved=solution.resolved)


def refuse_nan(best: Array, backend: Backend) -> None:
    """Raise an error if there is a NaN among the best scores, where ``top_k`` puts it."""
    if bool(backend.xp.any(backend.xp.isnan(best))):
        raise nan_error()


def nan_error() -> HybridGpuError:
    """The error for scores that no input of a user can bring about."""
    return HybridGpuError(
        "the scores to be ranked hold NaN. If the index was opened with verify=False, its "
        "file is damaged: load_index(path) without it names the part."
    )


def _fill(
    rows: Array, similarities: Array, best: TopK, numbering: Numbering | None, backend: Backend
) -> TopK:
    """Positive scores as they are, zeros by similarity, the negative ones, and nothing (-1)."""
    xp = backend.xp
    k = best.ids.shape[1]
    nothing = xp.asarray(-xp.inf, dtype=rows.dtype, device=backend.device)
    # Each kind is ordered apart: on one scale, scores or similarities would lose their last digits.
    zeros = backend.top_k(xp.where(rows == 0, similarities, nothing), k, numbering)
    refuse_nan(zeros.scores, backend)
    place = xp.arange(k, dtype=xp.int64, device=backend.device)[None, :]
    behind = place - _counted(best.scores > 0, xp)
    fallback, known = _at(zeros.ids, behind, xp), _at(zeros.scores, behind, xp)
    if bool(xp.any(rows < 0)):  # hardly ever: the third top_k is worth a look
        negative = backend.top_k(xp.where(rows < 0, rows, nothing), k, numbering)
        last = behind - _counted(zeros.scores > nothing, xp)
        fallback = xp.where(last < 0, fallback, _at(negative.ids, last, xp))
        known = xp.where(last < 0, known, _at(negative.scores, last, xp))
    fallback = xp.where(known > nothing, fallback, -xp.ones_like(fallback))
    ids = xp.where(behind < 0, best.ids, fallback)
    scores = xp.take_along_axis(rows, xp.where(ids < 0, xp.zeros_like(ids), ids), axis=1)
    return TopK(scores=xp.where(ids < 0, nothing, scores), ids=ids)


def _counted(chosen: Array, xp: Any) -> Array:
    """How many of each row are chosen, (m, 1)."""
    return xp.sum(xp.astype(chosen, xp.int64), axis=1, keepdims=True)


def _at(values: Array, place: Array, xp: Any) -> Array:
    """The values at a place of their row; the first where the place is before it."""
    return xp.take_along_axis(values, xp.clip(place, min=0), axis=1)
