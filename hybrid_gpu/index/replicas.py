"""One index on several devices: a query set is spread over them and comes back in its order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from hybrid_gpu.backends import Backend, all_devices, select_backend
from hybrid_gpu.backends.numpy_backend import is_on_host
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.errors import DeviceMismatchError
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.queries import descriptor_queries, item_queries, list_queries
from hybrid_gpu.index.spreading import answered, device_names, named
from hybrid_gpu.ranking.asking import requested
from hybrid_gpu.ranking.request import Request
from hybrid_gpu.ranking.seeds import seeds_of
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.ranking.top_items import Ranking

Parameters = ParamSpec("Parameters")


def _like(
    method: Callable[Concatenate[DiffusionIndex, Parameters], Ranking],
) -> Callable[[Callable[..., Ranking]], Callable[Concatenate[Replicas, Parameters], Ranking]]:
    """Give a method the parameters of the index's own, which are then written down only once."""
    signature = inspect.signature(method)

    def decorated(
        answer: Callable[..., Ranking],
    ) -> Callable[Concatenate[Replicas, Parameters], Ranking]:
        @wraps(answer)
        def entered(
            self: Replicas, /, *args: Parameters.args, **options: Parameters.kwargs
        ) -> Ranking:
            given = signature.bind(self, *args, **options)
            given.apply_defaults()
            return answer(**given.arguments)

        entered.__signature__ = signature  # type: ignore[attr-defined]
        return entered

    return decorated


class Replicas:
    """One index on several devices, which answer a query set together.

    Each device holds the whole index. A query set is cut into parts of a batch or less, and
    whichever device is free takes the next one: a slower device answers fewer. Answers are those
    of the index on a single device, up to rounding, in the order of the queries.

    Like an index, replicas never change, and may be searched from any thread. The devices work on
    threads of one process, for the time of a call.

    Parameters
    ----------
    index
        An index on any backend; it is copied to each device that it is not on.
    backends : sequence of str or Backend, optional
        Such as ``["cupy:0", "cupy:1"]``. None: every GPU that answers, or NumPy if none does.

    Raises
    ------
    ReplicaError
        If a device cannot take the index.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> index = hg.build_index([[1.0, 0.1], [0.9, 0.1], [0.1, 1.0]], neighbors=1, backend="numpy")
    >>> replicas = hg.Replicas(index, ["numpy", "numpy"])
    >>> replicas
    Replicas(3 items on numpy,numpy)
    >>> replicas.search([[0.0, 1.0], [1.0, 0.0]], k=1).ids.tolist()
    [[2], [0]]
    """

    __slots__ = ("_indexes",)

    def __init__(
        self, index: DiffusionIndex, backends: Sequence[str | Backend] | None = None
    ) -> None:
        if isinstance(backends, str):
            raise TypeError(
                f"backends must be a sequence of names; got {backends!r}. Pass "
                f"{backends.split(',')!r}."
            )
        devices = (
            all_devices() if backends is None else [select_backend(backend) for backend in backends]
        )
        if not devices:
            raise ValueError(
                "backends must name at least one; got none. Leave it out for all GPUs."
            )
        copies: dict[Backend, DiffusionIndex] = {}
        for device in dict.fromkeys(devices):
            with named(device, "could not take the index"):
                copies[device] = index.to(device)
        self._indexes = tuple(copies[device] for device in devices)

    @property
    def indexes(self) -> tuple[DiffusionIndex, ...]:
        """The index of each device."""
        return self._indexes

    def __len__(self) -> int:
        return self.n

    @property
    def n(self) -> int:
        """Number of items."""
        return self._indexes[0].n

    def __repr__(self) -> str:
        return f"Replicas({self.n} items on {device_names(self._states)})"

    @_like(DiffusionIndex.search)
    def search(self, queries: Any, **options: Any) -> Ranking:
        """Rank the database for query descriptors of the host.

        Parameters, result and errors are those of ``DiffusionIndex.search``; arrays are NumPy's.
        ``batch`` is the most queries that a device solves side by side. ``progress`` is called by
        one thread at a time, not always the same, with counts over the whole set. Of the report,
        ``steps`` and ``batch`` are the largest of any part, ``seconds`` are those of the device
        that was at work longest, and ``backend`` names the devices that answered something.

        Raises
        ------
        ConvergenceError
            If ``rtol`` was given and a query missed it; its ``result`` is the whole ``Ranking``.
        DeviceMismatchError
            For queries on a GPU: they would have to go to the other devices by the host anyway.
        ReplicaError
            If a device failed. The others stop after the parts they are at.
        """
        _check_on_host(queries)
        state, request = self._asked(options)
        return answered(self._states, descriptor_queries(state, queries, request), request)

    @_like(DiffusionIndex.rerank)
    def rerank(self, ids: Any, similarities: Any, metric: str, **options: Any) -> Ranking:
        """Rank the database for the first-stage results of any search engine.

        Parameters are those of ``DiffusionIndex.rerank``, the rest is as in ``search``.
        """
        _check_on_host(ids, similarities)
        state, request = self._asked(options)
        lists = list_queries(state, ids, similarities, metric, request)
        return answered(self._states, lists, request)

    @_like(DiffusionIndex.search_items)
    def search_items(self, ids: Any, weights: Any, **options: Any) -> Ranking:
        """Rank the database for some of its own items.

        Parameters are those of ``DiffusionIndex.search_items``, the rest is as in ``search``.
        """
        _check_on_host(ids)
        seeds = seeds_of(self._indexes[0].state, ids, weights)
        signed = seeds is not None and seeds.signed
        state, request = self._asked({**options, "signed": signed})
        return answered(self._states, item_queries(state, ids, request, seeds), request)

    @property
    def keys(self) -> HostArray | None:
        """The user's own names (n,) of the items; None if there are none."""
        return self._indexes[0].keys

    def warm_up(self) -> None:
        """Make on each device what its first search would make."""
        for index in self._indexes:
            with named(index.backend, "failed"):
                index.warm_up()

    @property
    def _states(self) -> list[IndexState]:
        return [index.state for index in self._indexes]

    def _asked(self, options: dict[str, Any]) -> tuple[IndexState, Request]:
        """A state that knows what all of them know, and the request for it."""
        state = self._indexes[0].state
        return state, requested(state, **options)


def _check_on_host(*arrays: Any) -> None:
    if not all(is_on_host(array) for array in arrays):
        raise DeviceMismatchError(
            "replicas take queries from the host; got an array on a device. Pass "
            "cupy.asnumpy(array), or ask the index of that device alone: replicas.indexes[0]."
        )
