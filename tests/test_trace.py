"""The walk of a build and of a search through the modules stays as straight as it is."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
from conftest import clustered_vectors, needs_python_311

import hybrid_gpu as hg

BENCH = Path(__file__).parents[1] / "bench"


def walk(work):
    """What ``bench/trace.py`` counts: calls, functions, modules, changes of module."""
    spec = importlib.util.spec_from_file_location("trace_of_a_walk", BENCH / "trace.py")
    trace = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = trace
    spec.loader.exec_module(trace)
    return trace.walk(work)


@needs_python_311
def test_a_build_and_a_search_change_the_module_seldom():
    vectors = clustered_vectors(np.random.default_rng(29), n=300, clusters=12)
    lists = hg.nearest_neighbors(vectors, k=8, backend="numpy")
    made = []

    def build():
        made.append(
            hg.build_index_from_neighbors(
                lists.ids, lists.similarities, neighbors=8, descriptors=vectors, backend="numpy"
            )
        )

    # Lists come from any engine: what they hold is read and checked in modules of their own.
    assert walk(build)["changes of module"] <= 130
    queries = vectors[::40].astype(np.float32)
    assert walk(lambda: made[0].search(queries, k=20, steps=5))["changes of module"] <= 82
    # Asked for all items, some of which diffusion does not reach, with scores below zero: the
    # longest way.
    assert walk(lambda: made[0].search(queries, k=300, steps=5))["changes of module"] <= 88
    found = walk(lambda: made[0].search(queries, k=300, steps=5, method="temporal"))
    assert 10 < found["modules"] <= found["functions"] <= found["calls"]
