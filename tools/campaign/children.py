"""Forked children: work that may crash, hang or be killed without taking the campaign along."""

from __future__ import annotations

import json
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: with a value, or with a fault and what is known of it."""

    value: Any
    fault: str = ""
    detail: str = ""


class Child:
    """A fork of this process that runs a function and sends its value back as JSON.

    Forking a process that has everything loaded takes a millisecond; starting Python anew takes
    half a second.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._reader, writer = os.pipe()
        with warnings.catch_warnings():
            # Python 3.12 warns of threads; the campaign starts none that hold a lock.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.number = os.fork()
        if self.number == 0:
            os.close(self._reader)
            _run(function, writer)
        os.close(writer)

    def kill(self) -> None:
        """End it as a power cut would: without a chance to clean up."""
        os.kill(self.number, signal.SIGKILL)

    def wait(self, seconds: float = 60.0) -> Ended:
        """Its value; a fault if it died without one, or took longer than that."""
        content, deadline, late = b"", time.monotonic() + seconds, False
        while True:
            left = max(0.0, deadline - time.monotonic())
            if not late and not select.select([self._reader], [], [], left)[0]:
                late = True
                self.kill()
            part = os.read(self._reader, 1 << 16)
            if not part:
                break
            content += part
        os.close(self._reader)
        status = os.waitstatus_to_exitcode(os.waitpid(self.number, 0)[1])
        if late:
            return Ended(None, "hang", f"no answer after {seconds:.0f} s")
        if status:
            return Ended(None, "crash", f"ended with {status}")
        sent = json.loads(content)
        if "error" in sent:
            return Ended(None, "foreign error", sent["error"])
        return Ended(sent["value"])


def _run(function: Callable[[], Any], writer: int) -> None:
    try:
        sent = {"value": function()}
    except BaseException as fault:
        sent = {"error": f"{type(fault).__name__}: {fault}"}
    try:
        with os.fdopen(writer, "w") as pipe:
            json.dump(sent, pipe)
    finally:
        os._exit(0)  # nothing of the parent's is closed or flushed twice
