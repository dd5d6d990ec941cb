"""What came out of a run over many files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardReport:
    """One query set of a run.

    Attributes
    ----------
    input : str
        Its file.
    output : str
        The file of its answers; empty if none was planned.
    state : str
        ``"done"``; ``"kept"``, if an earlier run had done it; ``"failed"``; ``"left"``, if the run
        was over before it was begun.
    queries : int
    seconds : float
        The time that its worker took for it.
    missed : int
        Queries that missed their accuracy.
    error : str
        Why it failed.
    """

    input: str
    output: str
    state: str
    queries: int = 0
    seconds: float = 0.0
    missed: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class FilesReport:
    """What came out of a run over many files.

    Attributes
    ----------
    folder : str
        Of the answers, and their manifest.
    shards : tuple of ShardReport
        In the order of the query sets.
    seconds : float
        Of the whole run.
    engine : str
    workers : int
    """

    folder: str
    shards: tuple[ShardReport, ...]
    seconds: float
    engine: str
    workers: int

    def of(self, state: str) -> tuple[ShardReport, ...]:
        """The shards that are ``"done"``, ``"kept"``, ``"failed"`` or ``"left"``."""
        return tuple(shard for shard in self.shards if shard.state == state)

    @property
    def failed(self) -> tuple[ShardReport, ...]:
        """Those that failed, each with its error."""
        return self.of("failed")

    @property
    def queries(self) -> int:
        """Queries that this run answered."""
        return sum(shard.queries for shard in self.of("done"))

    @property
    def queries_per_second(self) -> float:
        """Over the whole run, with all that it takes beside searching."""
        return self.queries / self.seconds if self.seconds else 0.0

    @property
    def complete(self) -> bool:
        """Whether every query set has its answers."""
        return all(shard.state in ("done", "kept") for shard in self.shards)

    def slowest(self, count: int = 3) -> tuple[ShardReport, ...]:
        """The shards that took longest."""
        ordered = sorted(self.of("done"), key=lambda shard: -shard.seconds)
        return tuple(ordered[:count])

    def __repr__(self) -> str:
        states = ("done", "kept", "failed", "left")
        counts = [f"{len(self.of(state))} {state}" for state in states if self.of(state)]
        rate = f"{self.queries} queries, {self.queries_per_second:.0f} per second"
        return f"FilesReport({', '.join(counts) or 'nothing to do'}: {rate})"
