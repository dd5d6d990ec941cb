"""The exceptions of the library: every one of them is a ``HybridGpuError``."""

from __future__ import annotations

from typing import Any


class HybridGpuError(Exception):
    """Base of all errors that are not a plain ``ValueError`` or ``TypeError``."""


class BackendUnavailableError(HybridGpuError):
    """The backend that was asked for cannot run here; the message says what is missing."""


class DeviceMismatchError(HybridGpuError):
    """Arrays of two devices met; the message has the line that moves one of them."""


class ConvergenceError(HybridGpuError):
    """The accuracy that was asked for was not reached.

    Attributes
    ----------
    result
        What was computed all the same: a ``Ranking``, a ``Solution`` or a ``Spectrum``.
    """

    def __init__(self, message: str, *, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class IndexFileError(HybridGpuError):
    """An index on disk is missing, damaged, foreign, or of a newer format."""
