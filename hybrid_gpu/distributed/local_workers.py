"""Worker processes on this machine: one shard each at a time, and a new process for one that died.

They are started as ``python -c``, not forked: the user's program need not have a main guard, and
threads and devices of this process stay where they are. Shards and outcomes go through pipes. A
worker whose pipe is closed ends at once, so that none outlives this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import secrets
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from hybrid_gpu.distributed.shards import Outcome, Shard, answer_shard

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from hybrid_gpu.distributed.local_workers import main; main(sys.argv[2])"
)
_LENGTH = struct.Struct("<Q")
_STOPPED_WITHIN = 5.0


def answered_by_processes(
    shards: Iterable[Shard], workers: int, told: Callable[[int, int], None], *, retries: int
) -> Iterator[Outcome]:
    """The outcomes of shards, by so many processes.

    A shard whose process dies is given to a new one, so many times again.
    """
    waiting, lock = iter(shards), threading.Lock()
    outcomes: queue.Queue[Outcome | BaseException | None] = queue.Queue()
    stop = threading.Event()

    def next_shard() -> Shard | None:
        with lock:
            return None if stop.is_set() else next(waiting, None)

    def serve(number: int) -> None:
        try:
            with contextlib.closing(_Worker(number)) as worker:
                started.append(worker)
                while (shard := next_shard()) is not None:
                    outcomes.put(worker.outcome(shard, told, retries, stop))
        except BaseException as fault:
            outcomes.put(fault)
        outcomes.put(None)

    started: list[_Worker] = []
    threads = [threading.Thread(target=serve, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    try:
        left = workers
        while left:
            outcome = outcomes.get()
            if outcome is None:
                left -= 1
            elif isinstance(outcome, BaseException):
                raise outcome
            elif not stop.is_set():
                yield outcome
    finally:
        stop.set()
        for worker in started:
            worker.end()
        for thread in threads:
            thread.join()


class _Worker:
    """A process, which is started when there is something to do."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._process: subprocess.Popen[bytes] | None = None
        self._mark = b""

    def outcome(
        self,
        shard: Shard,
        told: Callable[[int, int], None],
        retries: int,
        stop: threading.Event,
    ) -> Outcome:
        """What became of a shard."""
        code: int | None = None
        for _ in range(retries + 1):
            if stop.is_set():
                break
            process = self._running()
            if stop.is_set():  # meanwhile: who stopped us has not seen this one
                process.kill()
            with contextlib.suppress(EOFError, BrokenPipeError):
                self._pass_over(process.stdout)
                send(process.stdin, shard)
                while True:
                    answer = receive(process.stdout)
                    if isinstance(answer, Outcome):
                        return answer
                    told(shard.number, answer)
            code = process.wait()
            self.close()
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return Outcome(
            shard.number,
            error=f"its process died {retries + 1} times, the last time by {how}. Killed by the "
            "system, perhaps, for lack of memory: take fewer workers, or a smaller batch.",
        )

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
            self._mark = secrets.token_hex(16).encode()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, path, self._mark.decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "HYBRID_GPU_WORKER": str(self._number)},
            )
        return self._process

    def _pass_over(self, pipe: Any) -> None:
        """Read up to the first word of a new worker: a start-up file may print before it."""
        mark, self._mark = self._mark, b""
        seen = b""
        while not seen.endswith(mark):
            seen = (seen + _exactly(pipe, 1))[-len(mark) :]

    def end(self) -> None:
        """End it now, whatever it is at."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()

    def close(self) -> None:
        """End it when it has nothing to do."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        try:
            process.wait(_STOPPED_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def send(pipe: Any, message: Any) -> None:
    """Write a message to a pipe between two processes of ours."""
    content = pickle.dumps(message)
    pipe.write(_LENGTH.pack(len(content)) + content)
    pipe.flush()


def receive(pipe: Any) -> Any:
    """Read a message; ``EOFError`` if there will be none."""
    return pickle.loads(_exactly(pipe, _LENGTH.unpack(_exactly(pipe, _LENGTH.size))[0]))


def _exactly(pipe: BinaryIO, count: int) -> bytes:
    content = pipe.read(count)
    if len(content) < count:
        raise EOFError
    return content


def main(mark: str) -> None:
    """What a worker does: answer shards from its standard input until that is closed."""
    # Ctrl-C goes to the whole group: the one who started us decides what becomes of the work.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints goes elsewhere
    shards: queue.Queue[Shard] = queue.Queue()

    def listen() -> None:
        try:
            while True:
                shards.put(receive(sys.stdin.buffer))
        except EOFError:
            os._exit(0)  # nobody wants the answers any more

    threading.Thread(target=listen, daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        answers.write(mark.encode())
        answers.flush()
        while True:
            shard = shards.get()
            send(answers, answer_shard(shard, lambda done: send(answers, done)))
    os._exit(0)  # the other thread may be in the middle of a read
