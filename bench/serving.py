"""What does a server gain by solving the requests of many clients together?

    python bench/serving.py [--data fashion] [--seconds 5] [--no-record]
    python bench/serving.py --soak 600 [--no-record]
    python bench/serving.py --memory [--no-record]

``hybrid-gpu serve`` on one index, with micro-batching and without, asked by 1, 8 and 64 clients at
the same time, each of which sends its next request when it has the answer to the last: one query in
JSON, the best 10 items back. Without batching, requests run one after the other, and also on as
many threads as the machine has cores; the ratio is to the better of the two. The servers are asked
in turns, and the clients run on the same machine; the CPU time is the server's alone. Beside every
speed: the part of the best 10 that a search in Python finds too, and how far scores are apart.

``--soak`` is another question: do memory and answers stay as they are? 16 clients send requests of
all kinds, some of them wrong on purpose, for so many seconds. ``--memory``: how much memory do
several processes take that map the same index, all of them asked before? Resident memory counts
what they share once for each; the proportional one counts it once.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from batch_throughput import clustered
from common import record, show

import hybrid_gpu as hg
from hybrid_gpu import datasets

K, SEED = 10, 23
CLIENTS = (1, 8, 64)
METHODS = ("auto", "hybrid")
TURNS = 3


def main(
    data: Annotated[str, typer.Option(help="fashion, or clusters.")] = "fashion",
    items: Annotated[int, typer.Option(help="Items of the clusters.")] = 50_000,
    seconds: Annotated[float, typer.Option(help="Seconds of each of three turns.")] = 5.0,
    soak: Annotated[float, typer.Option(help="Seconds of mixed requests, and nothing else.")] = 0,
    memory: Annotated[bool, typer.Option("--memory", help="Memory of processes only.")] = False,
    method: Annotated[list[str] | None, typer.Option(help="Methods; auto and hybrid.")] = None,
    recorded: Annotated[bool, typer.Option("--record/--no-record")] = True,
) -> None:
    vectors, queries = database(data, items)
    index = hg.build_index(vectors)
    print(index)
    settings = {"data": data, "items": index.n, "dimensions": vectors.shape[1], "k": K}
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "index")
        if soak:
            rows, more = soaked(Path(folder) / "index", index, queries, soak)
            question, settings["seconds"] = "serving_soak", soak
        elif memory:
            rows, more = shared_memory(Path(folder) / "index", index), {}
            question = "serving_memory"
        else:
            names = tuple(method or METHODS)
            rows, more = compared(Path(folder) / "index", index, queries, names, seconds), {}
            question, settings["seconds"] = "serving", seconds
    show("Requests to a server", rows)
    if recorded:
        print(record(question, settings, rows, **more))


def database(data: str, items: int) -> tuple[np.ndarray, np.ndarray]:
    """Items, and 256 queries that are none of them."""
    if data == "fashion":
        split = datasets.fashion_mnist()
        rng = np.random.default_rng(SEED)
        chosen = rng.permutation(len(split.queries.descriptors))[:256]
        return split.database.descriptors, split.queries.descriptors[chosen]
    vectors = clustered(items + 256, 128, seed=SEED)
    return vectors[:items], vectors[items:]


@dataclass(frozen=True, slots=True)
class Server:
    """A server at work: its port and its process."""

    port: int
    process: int

    def processor_ms(self) -> int:
        """Milliseconds of processor time that it has taken so far, by all of its threads."""
        words = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) * 1000 // os.sysconf("SC_CLK_TCK")

    def resident(self) -> float:
        """Megabytes of memory that it holds now."""
        status = Path(f"/proc/{self.process}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) / 1000 if found else float("nan")


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    """A server of its own process, from the moment it is warm."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "hybrid_gpu.cli", "serve", str(folder), "--port", str(port)]
    with subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL) as process:
        try:
            while not warm(port):
                if process.poll() is not None:
                    raise RuntimeError("the server ended at once")
                time.sleep(0.1)
            yield Server(port, process.pid)
        finally:
            process.terminate()
            process.wait(60)


def warm(port: int) -> bool:
    async def ask() -> int:
        client = await Client.connected(port)
        status, _ = await client.ask(message("GET", "/readyz"))
        client.close()
        return status

    try:
        return asyncio.run(ask()) == 200
    except OSError:
        return False


def message(method: str, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """A request as it goes over the wire."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Client:
    """A connection that is kept; leaner than any library, for it shares the machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connected(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 22))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        body = await self._reader.readexactly(int(length[1])) if length else b""
        return int(head[9:12]), body

    def close(self) -> None:
        self._writer.close()


def compared(
    folder: Path,
    index: hg.DiffusionIndex,
    queries: np.ndarray,
    methods: tuple[str, ...],
    seconds: float,
) -> list[dict[str, Any]]:
    """Every method and number of clients, with micro-batching and without."""
    cores = os.cpu_count() or 1
    rows = []
    with (
        serving(folder) as together,
        serving(folder, "--no-batching") as alone,
        serving(folder, "--no-batching", "--threads", str(cores)) as threads,
    ):
        for method in methods:
            requests = [
                message(
                    "POST",
                    "/search",
                    json.dumps({"queries": [query], "k": K, "method": method}).encode(),
                )
                for query in queries.tolist()
            ]
            expected = index.search(queries, k=K, method=method)
            for clients in CLIENTS:
                runs: dict[str, list[Run]] = {"together": [], "alone": [], "threads": []}
                for _ in range(TURNS):
                    for name, server in (
                        ("together", together),
                        ("alone", alone),
                        ("threads", threads),
                    ):
                        runs[name].append(asyncio.run(measured(server, requests, clients, seconds)))
                row = {"method": expected.report.method, "clients": clients}
                rows.append({**row, **summed_up(runs, expected)})
                print(rows[-1])
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A turn: requests a second, seconds of each, CPU milliseconds of each, answers by query."""

    rate: float
    times: list[float]
    processor: float
    answers: list[tuple[int, dict[str, Any]]]


async def measured(server: Server, requests: list[bytes], clients: int, seconds: float) -> Run:
    """Clients that ask one request after the other."""
    times: list[float] = []
    raw: list[tuple[int, bytes]] = []
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        connection = await Client.connected(server.port)
        asked = number * 7
        while time.perf_counter() < end:
            start = time.perf_counter()
            status, body = await connection.ask(requests[asked % len(requests)])
            times.append(time.perf_counter() - start)
            if status != 200:
                raise RuntimeError(f"{status}: {body.decode()}")
            raw.append((asked % len(requests), body))
            asked += 1
        connection.close()

    start, before = time.perf_counter(), server.processor_ms()
    await asyncio.gather(*(client(number) for number in range(clients)))
    rate = len(times) / (time.perf_counter() - start)
    processor = (server.processor_ms() - before) / len(times)
    return Run(rate, times, processor, [(query, json.loads(body)) for query, body in raw])


def summed_up(runs: dict[str, list[Run]], expected: hg.Ranking) -> dict[str, Any]:
    """The best turn of each way, and how well all answers agree with a search in Python."""
    best = {name: max(some, key=lambda run: run.rate) for name, some in runs.items()}
    other = max(best["alone"], best["threads"], key=lambda run: run.rate)
    overlap, apart = [], 0.0
    for some in runs.values():
        for run in some:
            for query, answer in run.answers:
                ids, scores = expected.ids[query], expected.scores[query]
                overlap.append(len(set(answer["ids"][0]) & set(ids.tolist())) / K)
                apart = max(
                    apart, float(np.max(np.abs(np.array(answer["scores"][0]) - scores) / scores[0]))
                )

    def milliseconds(run: Run, percentile: float) -> float:
        return 1e3 * float(np.percentile(run.times, percentile))

    return {
        "requests/s": best["together"].rate,
        "p50 (ms)": milliseconds(best["together"], 50),
        "p99 (ms)": milliseconds(best["together"], 99),
        "CPU (ms/request)": best["together"].processor,
        "without batching: requests/s": best["alone"].rate,
        "on threads": best["threads"].rate,
        "better one's p50 (ms)": milliseconds(other, 50),
        "better one's p99 (ms)": milliseconds(other, 99),
        "better one's CPU (ms/request)": other.processor,
        "ratio": best["together"].rate / other.rate,
        "agreement@10": float(np.mean(overlap)),
        "scores apart": apart,
    }


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of the soak, and what its answer should be."""

    kind: str
    sent: bytes
    status: int = 200
    shape: tuple[int, int] = (0, 0)

    def right(self, status: int, body: bytes) -> bool:
        if status != self.status:
            return False
        ids = json.loads(body)["ids"] if status == 200 else []
        return status != 200 or (len(ids), len(ids[0])) == self.shape


def mixture(queries: np.ndarray, n: int) -> list[Asked]:
    """Requests of all kinds."""

    def good(kind: str, path: str, fields: dict[str, Any]) -> Asked:
        shape = (len(fields.get("queries", fields.get("ids"))), fields["k"])
        return Asked(kind, message("POST", path, json.dumps(fields).encode()), shape=shape)

    def bad(kind: str, path: str, body: bytes, status: int, form: str = "") -> Asked:
        return Asked(kind, message("POST", path, body, form or "application/json"), status)

    found = [good("search", "/search", {"queries": [one], "k": K}) for one in queries[:32].tolist()]
    one, few = queries[:1].tolist(), queries[:20].tolist()
    found += [
        good("batch", "/search", {"queries": few, "k": 50}),
        good("hybrid", "/search", {"queries": one, "k": K, "method": "hybrid"}),
        good("alpha", "/search", {"queries": one, "k": K, "alpha": 0.8}),
        *(
            good("items", "/search_items", {"ids": [item], "k": K, "exclude": [item, 0]})
            for item in range(0, n, n // 16)
        ),
        good("sets", "/search_items", {"ids": [[1, 2, 3]], "weights": [[1, 0.5, -0.2]], "k": K}),
        good("rerank", "/rerank", {"ids": [[5, 6, 7]], "similarities": [[0.9, 0.8, 0.7]], "k": K}),
        bad("no JSON", "/search", b"{", 400),
        bad("NaN", "/search", b'{"queries": [[NaN]]}', 400),
        bad("short", "/search", b'{"queries": [[1.0]]}', 400),
        bad("unknown", "/search_items", b'{"ids": [999999999]}', 400),
        bad("method", "/search_items", b'{"ids": [1], "method": "magic"}', 400),
        bad("type", "/search", b"x" * 1000, 415, "text/plain"),
        bad("array", "/search", b"\x93NUMPY\x01\x00" + b"\xff" * 200, 400, "application/x-npy"),
        bad("large", "/search", b" " * (17 << 20), 413),
        bad("nowhere", "/nowhere", b"{}", 404),
    ]
    return found


def soaked(
    folder: Path, index: hg.DiffusionIndex, queries: np.ndarray, seconds: float
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Mixed requests for a long time: what was answered, and the server's memory on the way."""
    requests = mixture(queries, index.n)
    with serving(folder) as server:
        outcome = asyncio.run(soak_clients(server, requests, seconds))
        after = [server.resident()]
    memory = outcome["memory"] + after
    settled = memory[len(memory) // 5 :]
    drift = float(np.polyfit(np.arange(len(settled)), settled, 1)[0] * len(settled))
    good, bad = (
        {one.kind for one in requests if (one.status == 200) == wanted} for wanted in (True, False)
    )
    sent, wrong = outcome["sent"], outcome["wrong"]
    told = {
        "good requests": sum(sent[kind] for kind in good),
        "good requests that failed": sum(wrong[kind] for kind in good),
        "wrong requests": sum(sent[kind] for kind in bad),
        "wrong requests that were not refused as they should be": sum(wrong[kind] for kind in bad),
        "resident memory after a fifth of the time (MB)": settled[0],
        "resident memory at the end (MB)": memory[-1],
        "drift of the memory since (MB)": drift,
    }
    more = {"resident MB": memory, "sent": dict(sent), "wrong": dict(wrong)}
    return [{"what": what, "value": value} for what, value in told.items()], more


def shared_memory(folder: Path, index: hg.DiffusionIndex) -> list[dict[str, Any]]:
    """What processes that share an index hold, after each of them was asked."""
    rows = []
    for processes in (1, 2, 4):
        with serving(folder, "--processes", str(processes)) as server:
            answering = asyncio.run(all_asked(server, processes, index.n))
        rows.append(
            {
                "processes": processes,
                "index (MB)": sum(index.memory.values()) / 1e6,
                "resident, added up (MB)": sum(one[0] for one in answering),
                "proportional, added up (MB)": sum(one[1] for one in answering),
            }
        )
    return rows


async def all_asked(server: Server, processes: int, n: int) -> list[tuple[float, float]]:
    """Resident and proportional megabytes of each process, when all are warm and were asked."""
    ready = False
    while not ready:
        client = await Client.connected(server.port)
        _, text = await client.ask(message("GET", "/metrics"))
        client.close()
        ready = f"hybrid_gpu_ready {processes}\n".encode() in text
    for number in range(50 * processes):  # a new connection each: any process may take it
        client = await Client.connected(server.port)
        fields = {"ids": [number * 97 % n], "k": K}
        await client.ask(message("POST", "/search_items", json.dumps(fields).encode()))
        client.close()
    children = Path(f"/proc/{server.process}/task/{server.process}/children").read_text().split()
    workers = [
        child for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()
    ]
    return [smaps(worker) for worker in workers if processes > 1] or [smaps(str(server.process))]


def smaps(process: str) -> tuple[float, float]:
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    resident, proportional = (
        int(re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)[1]) / 1000
        for name in ("Rss", "Pss")
    )
    return resident, proportional


async def soak_clients(server: Server, requests: list[Asked], seconds: float) -> dict[str, Any]:
    sent: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    memory: list[float] = []
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        rng = np.random.default_rng([SEED, number])
        connection = await Client.connected(server.port)
        while time.perf_counter() < end:
            asked = requests[rng.integers(len(requests))]
            status = 0
            try:
                status, body = await connection.ask(asked.sent)
                failed = not asked.right(status, body)
            except (OSError, asyncio.IncompleteReadError):
                # A server that refuses a body before it has come may close the connection.
                failed = asked.kind != "large"
            sent[asked.kind] += 1
            wrong[asked.kind] += failed
            if status in (0, 413) or rng.random() < 0.01:
                connection.close()
                connection = await Client.connected(server.port)
        connection.close()

    async def watch() -> None:
        while time.perf_counter() < end:
            memory.append(server.resident())
            await asyncio.sleep(min(10, seconds / 12))

    await asyncio.gather(watch(), *(client(number) for number in range(16)))
    return {"sent": sent, "wrong": +wrong, "memory": memory}


if __name__ == "__main__":
    typer.run(main)
