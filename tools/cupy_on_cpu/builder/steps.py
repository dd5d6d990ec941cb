"""Running the commands of a build: quiet unless they fail, and never half done."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

LAST_LINES = 40


class BuildError(Exception):
    """A step of the build failed; the message ends with what the command printed last."""


def run(command: Sequence[str | Path], log: Path, **variables: str) -> None:
    """Run a command; what it prints goes to the log."""
    environment = {**os.environ, **variables}
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        environment.pop(name, None)
    words = [str(word) for word in command]
    with log.open("a") as file:
        file.write(f"\n$ {' '.join(words)}\n")
        file.flush()
        try:
            code = subprocess.call(words, stdout=file, stderr=file, env=environment)
        except FileNotFoundError as error:
            raise BuildError(f"{words[0]} is not installed; the build needs it.") from error
    if code:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
        raise BuildError(f"{words[0]} failed with code {code}; the log is {log}:\n{tail}")


@contextmanager
def step(name: str) -> Iterator[None]:
    """Say what is going on, and how long it took."""
    print(f"  {name} ...", end=" ", flush=True)
    start = time.monotonic()
    yield
    print(f"{time.monotonic() - start:.0f} s", flush=True)


def ensure(folder: Path, build: Callable[[Path], None], *, rebuild: bool = False) -> bool:
    """Fill a folder by ``build(log)`` unless that was done before; true if it had to be.

    A folder counts as done once its file ``complete`` exists. What an interrupted build left behind
    has none, and is removed: a build always starts in an empty folder.
    """
    done = folder / "complete"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists() and not rebuild:
            return False
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        log = folder / "build.log"
        print(f"building {folder}", flush=True)
        build(log)
        done.touch()
    return True
