"""A re-ranker that travels: a path and options, which any process can make an open index of."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_gpu.choices import Accuracy, BackendName, MethodName, MetricName
from hybrid_gpu.diffusion.filters import Filter
from hybrid_gpu.diffusion.sparsity import PAPER_SPARSITY, Sparsity
from hybrid_gpu.distributed.batch_columns import ColumnOptions
from hybrid_gpu.distributed.batches import (
    Answers,
    answered_dict,
    answered_frame,
    answered_table,
    kind_of,
)
from hybrid_gpu.distributed.process_index import WantedIndex, opened
from hybrid_gpu.distributed.settings import SearchSettings
from hybrid_gpu.errors import IndexFileError
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.facts import IndexFacts, index_facts
from hybrid_gpu.ranking.query_expansion import Expansion
from hybrid_gpu.ranking.top_items import Ranking, Report
from hybrid_gpu.validation import check_choice, check_count, check_flag, shown

_BACKENDS = ("auto", "numpy", "cupy")
_FORMS = {"dict": answered_dict, "frame": answered_frame, "table": answered_table}


class Reranker:
    """Ranks batches of queries in whatever process it comes to.

    It holds a path and options, and nothing else, so that pickling it costs nothing. A process
    opens the index when it is first asked, and keeps it: mapped from the files on a CPU, so that
    all processes of a machine share its memory, or on a GPU of its own. A process that was forked
    opens its own. Any number of threads may ask.

    Call it with descriptors (m, d), or with ids (m, q) and similarities (m, q). The answer is an
    array (m, k) with two fields, ``ids`` and ``scores``; ``keys`` in the place of ``ids`` if the
    index has keys. Or call it with a dict of arrays, a data frame of pandas or a table of pyarrow:
    the answer is one of the same kind, with columns ``ids`` or ``keys``, and ``scores``, in the
    place of the columns of queries; all others are handed on. Batches may be empty.

    That is what ``concurrent.futures``, Dask (``map_partitions``, ``map_blocks``) and Ray Data
    (``map_batches``, with the object or with the class) need; see docs/recipes/query-sets.md.

    Parameters
    ----------
    path
        The folder of the index, as the processes see it.
    k, method, accuracy, steps, rtol, alpha, filter, degree_correction, query_neighbors
        As in ``index.search``. What is wrong without any index is refused here and now.
    shortlist, sparsity, expansion, min_score, batch
        As in ``index.search``.
    allowed, exclude
        As in ``index.search``, for all queries.
    metric
        What similarities are, as in ``index.rerank``.
    backend
        ``"auto"``, ``"numpy"``, ``"cupy"`` or ``"cupy:1"``. The first three leave it to each
        process to take a GPU of its own: that of ``HYBRID_GPU_WORKER``, else the first of
        ``CUDA_VISIBLE_DEVICES``, else one by the number of the process.
    threads
        Threads that a process takes; it holds for all of the process. None: those of its Dask
        worker or Ray task, or ``HYBRID_GPU_THREADS``, or all cores. Where several processes share
        a machine, its cores divided by their number.
    descriptors
        The column of descriptors in batches with columns; or the columns of all dimensions, as a
        sequence, or by a pattern such as ``"x*"``. None: the column of that name, or the only one
        with vectors.
    lists
        The two columns of ids and similarities in the place of descriptors. None: those of these
        names, if there are both.
    identity
        Which index it must be, as ``reranker.identity`` tells. ``"auto"``: the one that is there
        now; any process that finds another one refuses it, so that answers of two indexes are not
        mixed. None: whichever is there when a process opens it, where only the workers see the
        folder.
    verify
        Compare the index with its checksums when it is opened, as ``load_index`` does.

    Raises
    ------
    IndexFileError
        If there is no index; on a call, if it was replaced by another one.

    Examples
    --------
    >>> import tempfile
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> import hybrid_gpu as hg
    >>> items = [[5.0, 0], [5, 1], [4, 1], [0, 5], [1, 5], [1, 4]]
    >>> folder = tempfile.mkdtemp() + "/index"
    >>> hg.build_index(items, neighbors=2, alpha=0.9, keys=list("abcdef")).save(folder)
    >>> rerank = hg.Reranker(folder, k=3)
    >>> with ThreadPoolExecutor() as pool:  # or processes
    ...     for answers in pool.map(rerank, [[[5.0, 0.2]], [[0.2, 5.0]]]):
    ...         print(sorted(answers["keys"][0]))
    ['a', 'b', 'c']
    ['d', 'e', 'f']
    """

    __slots__ = ("_columns", "_settings", "_wanted")

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        k: int = 100,
        method: MethodName = "auto",
        accuracy: Accuracy | None = None,
        steps: int | None = None,
        rtol: float | None = None,
        alpha: float | None = None,
        filter: Filter | Callable[..., Any] | None = None,
        degree_correction: bool = False,
        query_neighbors: int | None = 5,
        shortlist: int | None = None,
        sparsity: float | Sparsity = PAPER_SPARSITY,
        expansion: Expansion | None = None,
        allowed: Any = None,
        exclude: Any = None,
        min_score: float | None = None,
        batch: int | None = None,
        metric: MetricName = "cosine",
        backend: BackendName = "auto",
        threads: int | None = None,
        descriptors: str | Sequence[str] | None = None,
        lists: Sequence[str] | None = None,
        identity: str | None = "auto",
        verify: bool = True,
    ) -> None:
        self._settings = SearchSettings(
            k=k,
            method=method,
            accuracy=accuracy,
            steps=steps,
            rtol=rtol,
            alpha=alpha,
            filter=filter,
            degree_correction=degree_correction,
            query_neighbors=query_neighbors,
            shortlist=shortlist,
            sparsity=sparsity,
            expansion=expansion,
            allowed=allowed,
            exclude=exclude,
            min_score=min_score,
            batch=batch,
            metric=metric,
        )
        self._columns = ColumnOptions.of(descriptors, lists)
        self._wanted = _wanted(path, identity, backend, threads, verify)

    @property
    def path(self) -> str:
        """The folder of the index."""
        return self._wanted.path

    @property
    def identity(self) -> str | None:
        """Sixteen hex digits that tell the index from any other; None if any will do."""
        return self._wanted.identity

    @property
    def index(self) -> DiffusionIndex:
        """The index as it is open in this process; it is opened if it is not."""
        return opened(self._wanted)

    @property
    def k(self) -> int:
        """Results per query; as many as the index has items, if those are fewer."""
        return min(self._settings.k, self._facts().n)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the answers to arrays, as Dask's ``map_blocks`` wants to know it."""
        return self._no_answers().record.dtype

    def meta(self, collection: Any) -> Any:
        """The empty answer to batches of a kind, as Dask's ``map_partitions`` wants to know it.

        Parameters
        ----------
        collection
            A Dask data frame, or a batch of any kind.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> import hybrid_gpu as hg
        >>> folder = tempfile.mkdtemp() + "/index"
        >>> hg.build_index([[5.0, 0], [5, 1], [0, 5], [1, 5]], neighbors=1).save(folder)
        >>> rerank = hg.Reranker(folder, k=2)
        >>> {name: part.shape for name, part in rerank.meta({"x": np.ones((7, 2))}).items()}
        {'ids': (0, 2), 'scores': (0, 2)}
        """
        batch = getattr(collection, "_meta", collection)
        if kind_of(batch) == "dict":
            return self({name: column[:0] for name, column in batch.items()})
        return self(batch[:0])

    def __call__(self, batch: Any, similarities: Any = None) -> Any:
        """The answers to a batch of queries, in its own form."""
        return self.with_report(batch, similarities)[0]

    def with_report(self, batch: Any, similarities: Any = None) -> tuple[Any, Report | None]:
        """The answers to a batch, and the report of how they came about; None if it is empty.

        Examples
        --------
        >>> import tempfile
        >>> import hybrid_gpu as hg
        >>> folder = tempfile.mkdtemp() + "/index"
        >>> hg.build_index([[5.0, 0], [5, 1], [0, 5], [1, 5]], neighbors=1).save(folder)
        >>> answers, report = hg.Reranker(folder, k=2).with_report([[3]], [[0.9]])
        >>> answers["ids"].tolist(), report.method
        ([[3, 2]], 'hybrid')
        """
        reports: list[Report] = []

        def ask(given: tuple[Any, ...]) -> Answers:
            if not _count(given[0]):
                return self._no_answers()
            ranking = self._ranking(*given)
            reports.append(ranking.report)
            keyed = ranking.known is not None
            return Answers(np.asarray(ranking.keys), np.asarray(ranking.scores), keyed)

        answered = _FORMS.get(kind_of(batch))
        if answered is None:
            answer = ask((batch,) if similarities is None else (batch, similarities)).record
        elif similarities is None:
            answer = answered(batch, self._columns, ask)
        else:
            raise TypeError(
                f"similarities go with an array of ids; a {type(batch).__name__} has them in a "
                "column of its own: lists=('ids', 'similarities')."
            )
        return answer, next(iter(reports), None)

    def described(self) -> dict[str, Any]:
        """What answers depend on, beside the index: the options, in words and numbers of JSON."""
        columns = {"descriptors": self._columns.descriptors, "lists": self._columns.lists}
        told = {name: list(one) if isinstance(one, tuple) else one for name, one in columns.items()}
        return {**self._settings.described(), **told}

    def with_threads(self, threads: int) -> Reranker:
        """The same for processes of so many threads, unless it says itself how many."""
        return self._changed(threads=self._wanted.threads or threads)

    def pinned(self) -> Reranker:
        """The same for the index that is there now, unless it says itself which one."""
        return self._changed(identity=self.identity or index_facts(self.path).identity)

    def _changed(self, **changes: Any) -> Reranker:
        made = Reranker.__new__(Reranker)
        made.__setstate__((self._wanted._replace(**changes), self._settings, self._columns))
        return made

    def __repr__(self) -> str:
        return f"Reranker({self.path!r}, k={self._settings.k}, method={self._settings.method!r})"

    def __getstate__(self) -> tuple[WantedIndex, SearchSettings, ColumnOptions]:
        return self._wanted, self._settings, self._columns

    def __setstate__(self, state: tuple[WantedIndex, SearchSettings, ColumnOptions]) -> None:
        self._wanted, self._settings, self._columns = state

    def _facts(self) -> IndexFacts:
        facts = index_facts(self.path)
        if self.identity not in (None, facts.identity):
            self.index  # noqa: B018, which says what has happened
        return facts

    def _ranking(self, batch: Any, similarities: Any = None) -> Ranking:
        if similarities is None:
            return self.index.search(batch, **self._settings.keywords(lists=False))
        return self.index.rerank(batch, similarities, **self._settings.keywords(lists=True))

    def _no_answers(self) -> Answers:
        """The answers to no queries: what the header of the index tells is enough."""
        facts = self._facts()
        kind = {None: np.int64, "text": object}.get(facts.keys, facts.keys)
        shape = (0, min(self._settings.k, facts.n))
        return Answers(np.empty(shape, kind), np.empty(shape, facts.dtype), facts.keys is not None)


def _count(queries: Any) -> int:
    """The number of queries in an array; 1 for what is none, of which the search will tell."""
    shape = getattr(queries, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    return len(queries) if hasattr(queries, "__len__") else 1


def _wanted(path: Any, identity: Any, backend: Any, threads: Any, verify: Any) -> WantedIndex:
    """What to open, checked as far as that can be without opening it."""
    if not isinstance(path, (str, os.PathLike)) or isinstance(path, bytes):
        raise TypeError(
            f"path must be the folder of a saved index; got {shown(path)}. Save one with "
            "index.save(folder)."
        )
    folder = os.fspath(Path(path).absolute())
    kind, _, number = str(backend).partition(":")
    if not (kind == "cupy" and number.isdecimal()):
        check_choice(backend, "backend", (*_BACKENDS, "cupy:<device>"))
    if threads is not None:
        threads = check_count(threads, "threads")
    if identity is not None and not isinstance(identity, str):
        raise TypeError(f"identity must be 'auto', None or a text; got {shown(identity)}.")
    if identity == "auto":
        try:
            identity = index_facts(folder).identity
        except IndexFileError as fault:
            raise IndexFileError(
                f"{fault} If only the workers see the folder, pass identity=None."
            ) from fault
    return WantedIndex(folder, identity, backend, threads, check_flag(verify, "verify"))
