"""What does the work: this process, others of this machine, a Dask cluster or Ray.

An engine takes shards and gives their outcomes, in whatever order they come. One that cannot go on
raises an error; what was finished by then is finished.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Protocol, TypeAlias

from hybrid_gpu.distributed.local_workers import answered_by_processes
from hybrid_gpu.distributed.shards import Outcome, Shard, answer_shard, error_line
from hybrid_gpu.errors import HybridGpuError, install_line

Told: TypeAlias = Callable[[int, int], None]
"""Called with the number of a shard and of its queries that are answered."""

ENGINES = ("local", "dask", "ray")
# How often a shard is begun again after its worker died.
RETRIES = 2
# Shards that wait at each worker for the one before to be finished.
_AHEAD = 2


class Engine(Protocol):
    """A way to have shards answered."""

    def answer(self, shards: Iterable[Shard], told: Told) -> Generator[Outcome, None, None]:
        """The outcome of each shard."""


class LocalEngine:
    """This process, or some others of this machine."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def answer(self, shards: Iterable[Shard], told: Told) -> Generator[Outcome, None, None]:
        """The outcome of each shard."""
        if self._workers > 1:
            yield from answered_by_processes(shards, self._workers, told, retries=RETRIES)
            return
        for shard in shards:
            yield answer_shard(shard, functools.partial(told, shard.number))


class DaskEngine:
    """The workers of a Dask cluster: that of an address, or one for this run on this machine."""

    def __init__(self, workers: int, scheduler: str | None, patience: float) -> None:
        self._workers, self._scheduler, self._patience = workers, scheduler, patience
        self._distributed = needed("distributed", "dask")

    def answer(self, shards: Iterable[Shard], told: Told) -> Generator[Outcome, None, None]:
        """The outcome of each shard."""
        with contextlib.ExitStack() as stack:
            client = self._client(stack)
            try:
                yield from self._answered(client, iter(shards))
            except OSError as fault:
                raise _gone() from fault

    def _answered(self, client: Any, waiting: Iterator[Shard]) -> Generator[Outcome, None, None]:
        running: dict[Any, Shard] = {}
        finished = self._distributed.as_completed()
        while True:
            # Asked each time: workers come and go.
            width = max(self._workers, sum(client.ncores().values())) * _AHEAD
            for shard in itertools.islice(waiting, max(0, width - len(running))):
                # Not pure: answers are in a file, and not what the task returns.
                task = client.submit(answer_shard, shard, pure=False)
                running[task] = shard
                finished.add(task)
            if not running:
                return
            task = next(finished)
            yield _outcome_of(task, running.pop(task))

    def _client(self, stack: contextlib.ExitStack) -> Any:
        distributed = self._distributed
        if self._scheduler is None:
            cluster = distributed.LocalCluster(
                n_workers=self._workers,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                silence_logs="ERROR",
            )
            return stack.enter_context(distributed.Client(stack.enter_context(cluster)))
        try:
            # It tries again until then: a scheduler may come late.
            client = distributed.Client(self._scheduler, timeout=self._patience)
        except (OSError, TimeoutError) as fault:
            raise HybridGpuError(
                f"no Dask scheduler answers at {self._scheduler} after {self._patience:g} s. Is "
                "it there? Its address is in its first lines: tcp://HOST:8786."
            ) from fault
        return stack.enter_context(client)


def _outcome_of(task: Any, shard: Shard) -> Outcome:
    """What became of a task of Dask."""
    try:
        outcome: Outcome = task.result()
    except Exception as fault:
        if task.status in ("cancelled", "lost"):
            raise _gone() from fault
        return Outcome(shard.number, error=_of_engine(fault))
    return outcome


def _gone() -> HybridGpuError:
    return HybridGpuError(
        "the Dask scheduler has gone, and with it what was not finished. Run again to go on."
    )


class RayEngine:
    """The workers of a Ray cluster: that of an address, or one for this run on this machine."""

    def __init__(self, workers: int, scheduler: str | None, patience: float) -> None:
        self._workers, self._scheduler, self._patience = workers, scheduler, patience
        self._ray = needed("ray", "ray")

    def answer(self, shards: Iterable[Shard], told: Told) -> Generator[Outcome, None, None]:
        """The outcome of each shard."""
        ray, waiting = self._ray, iter(shards)
        with self._connection():
            resources = ray.cluster_resources()
            # Ray gives each task a GPU of its own, where there are some.
            gpus = min(1, int(resources.get("GPU", 0)))
            remote = ray.remote(max_retries=RETRIES, num_gpus=gpus)(answer_shard)
            running: dict[Any, Shard] = {}
            width = max(self._workers, int(resources.get("CPU", 1))) * _AHEAD
            while True:
                for shard in itertools.islice(waiting, width - len(running)):
                    running[remote.remote(shard)] = shard
                if not running:
                    return
                (task, *_), _ = ray.wait(list(running), num_returns=1)
                shard = running.pop(task)
                try:
                    outcome: Outcome = ray.get(task)
                except Exception as fault:
                    outcome = Outcome(shard.number, error=_of_engine(fault))
                yield outcome

    @contextlib.contextmanager
    def _connection(self) -> Iterator[None]:
        ray = self._ray
        if ray.is_initialized():  # the user's own
            yield
            return
        try:
            if self._scheduler is None:
                # Not the cluster that RAY_ADDRESS names, or that somebody else has started here.
                ray.init(
                    address="local",
                    num_cpus=self._workers,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                )
            else:
                ray.init(address=self._scheduler, log_to_driver=False, logging_level="ERROR")
        except ConnectionError as fault:
            raise HybridGpuError(f"no Ray cluster at {self._scheduler}: {fault}") from fault
        try:
            yield
        finally:
            ray.shutdown()


def _of_engine(fault: BaseException) -> str:
    """What an engine says of a task that it gave up: in most cases, that its workers died."""
    return f"{type(fault).__name__}: {error_line(fault)}"[:500]


def engine_of(name: str, workers: int, scheduler: str | None, patience: float) -> Engine:
    """The engine of a name."""
    if name == "local":
        return LocalEngine(workers)
    kind = DaskEngine if name == "dask" else RayEngine
    return kind(workers, scheduler, patience)


def needed(module: str, extra: str) -> Any:
    """A module of an optional package; the error says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise ImportError(f"engine {extra!r} needs {module}; {install_line(extra)}") from missing
