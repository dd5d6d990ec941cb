"""What every kind of trial in the campaign shares: its record, its verdicts, and a clean child."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FAULTS = ("lost", "wrong", "crash", "hang", "foreign error")
"""What can go wrong: data lost, a wrong answer, a dead process, one that never ends, and an error
that is not one of ours (a traceback where a ``HybridGpuError``, ``ValueError`` or ``TypeError``
with a sentence was promised)."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One promise broken; ``detail`` is enough to do it again."""

    fault: str
    detail: str

    def __post_init__(self) -> None:
        assert self.fault in FAULTS, self.fault


@dataclass(frozen=True, slots=True)
class Tally:
    """What one trial tried.

    Attributes
    ----------
    tried : int
        In the unit of its kind: answers, edits, kills.
    failures : tuple of Failure
    skipped : str
        Why nothing could be tried here; empty if it was.
    """

    tried: int
    failures: tuple[Failure, ...] = ()
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to attack the library.

    Attributes
    ----------
    name : str
        As the command line takes it.
    promise : str
        The sentence that is attacked.
    unit : str
        What is counted, in the plural.
    short, long : int
        How many of them the short form tries, and the long one.
    trial : callable
        Maps a seed and an empty folder to a ``Tally``. The seed decides everything but the clock.
        A trial takes from a fraction of a second to a few seconds, leaves no process behind, and
        writes nowhere but below the folder.
    """

    name: str
    promise: str
    unit: str
    short: int
    long: int
    trial: Callable[[int, Path], Tally]
