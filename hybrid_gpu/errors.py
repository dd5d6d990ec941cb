"""The exceptions of the library, all of them a ``HybridGpuError``, and what messages share."""

from __future__ import annotations

import sys
import warnings
from types import FrameType
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


class ReplicaError(HybridGpuError):
    """One of several devices failed; its own exception is the ``__cause__``.

    Attributes
    ----------
    backend : str
        The device: ``"cupy:1"``.
    """

    def __init__(self, message: str, *, backend: str = "") -> None:
        super().__init__(message)
        self.backend = backend


class IndexFileError(HybridGpuError):
    """An index on disk is missing, damaged, foreign, or of a newer format."""


def install_line(extra: str) -> str:
    """How to get an optional part of the library; for the end of a message.

    In a clone, because the package is not published yet. Editable, because Python takes the clone's
    own folder when it is started there, and the kernels are elsewhere in it.
    """
    return f'in a clone of hybrid-gpu: pip install -e ".[{extra}]"'


def warn_caller(message: str) -> None:
    """Warn of something at the line outside of this package that called it."""
    frame, level = sys._getframe(1), 3  # the line that called the caller of this
    package = __name__.partition(".")[0]
    while frame.f_back is not None and _package_of(frame.f_back) == package:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
