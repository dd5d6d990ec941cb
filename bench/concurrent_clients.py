"""Do many clients of one index get in each other's way?

    python bench/concurrent_clients.py [--seconds 2]

Client threads ask an index for the top 100 of random queries, one request after the other, as the
threads of a web service do: on handwritten digits and on clustered random vectors, with 1, 2 and 8
clients, 1 and 16 queries a request. Once as a user finds the library, once with BLAS held to one
thread from outside, in turns. Beside every speed: whether all answers were those of a client alone,
to the last bit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import typer
from batch_throughput import clustered
from common import record, show
from threadpoolctl import threadpool_limits

import hybrid_gpu as hg
from hybrid_gpu import datasets


def main(
    seconds: Annotated[float, typer.Option(help="Seconds of each of three turns.")] = 2.0,
    items: Annotated[int, typer.Option(help="Items of the larger database.")] = 50_000,
) -> None:
    databases = {
        "digits": datasets.digits().descriptors,
        f"clusters {items:,}": clustered(items, 64, seed=17),
    }
    rows = []
    for name, vectors in databases.items():
        index = hg.build_index(vectors, **hg.PAPER)
        print(index)
        rng = np.random.default_rng(29)
        noise = rng.standard_normal((64, vectors.shape[1])).astype(np.float32)
        queries = vectors[rng.integers(0, len(vectors), 64)] + np.float32(0.1) * noise
        for batch in (1, 16):
            rows += [
                {"data": name, "queries a request": batch, **measured(index, queries, batch, *how)}
                for how in ((1, seconds), (2, seconds), (8, seconds))
            ]
    show("Requests a second, by clients", rows)
    print(record("concurrent_clients", {"items": items, "seconds": seconds, "k": 100}, rows))


def measured(
    index: hg.DiffusionIndex, queries: np.ndarray, batch: int, clients: int, seconds: float
) -> dict[str, Any]:
    """The better of three turns, the default and the held one in turns."""
    parts = [queries[start : start + batch] for start in range(0, len(queries), batch)]
    alone = [index.search(part, k=100) for part in parts]
    rates: dict[str, list[float]] = {"default": [], "held": []}
    same = True
    for _ in range(3):
        for way, limits in (("default", None), ("held", 1)):
            with threadpool_limits(limits, user_api="blas"):
                rate, right = requests_per_second(index, parts, alone, clients, seconds)
            rates[way].append(rate)
            same &= right or way == "held"
    default, held = max(rates["default"]), max(rates["held"])
    return {
        "clients": clients,
        "requests/s": default,
        "requests/s, BLAS held": held,
        "ratio": default / held,
        "same answers": same,
    }


def requests_per_second(
    index: hg.DiffusionIndex,
    parts: list[np.ndarray],
    alone: list[hg.Ranking],
    clients: int,
    seconds: float,
) -> tuple[float, bool]:
    """How many requests the clients got answered together, and whether all were right."""
    done, right = [0] * clients, [True] * clients
    end = time.perf_counter() + seconds

    def client(number: int) -> Callable[[], None]:
        def ask() -> None:
            while time.perf_counter() < end:
                one = (number * 7 + done[number]) % len(parts)
                found = index.search(parts[one], k=100)
                right[number] &= np.array_equal(found.scores, alone[one].scores)
                done[number] += 1

        return ask

    start = time.perf_counter()
    threads = [threading.Thread(target=client(number)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - start), all(right)


if __name__ == "__main__":
    typer.run(main)
