"""What a type checker tells users: good code passes, and each wrong word is found.

mypy runs once for all lines, on a page of user code in strict mode.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import hybrid_gpu as hg
from hybrid_gpu import choices
from hybrid_gpu.diffusion.eigen_basis import PRECISIONS
from hybrid_gpu.index.build import BASES
from hybrid_gpu.validation import DTYPES, METRICS

GOOD = """
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hybrid_gpu as hg

x: NDArray[np.float32] = np.zeros((9, 4), np.float32)
names = ["a", "b", "c"]
index = hg.build_index(x, neighbors="auto", basis="eigen", dtype="float64", keys=names)
index = hg.build_index(x, neighbors=5, basis=np.zeros(9, int), knn="IVF16,Flat", backend="cupy:1")
index = hg.build_index([[1.0, 2.0], [2.0, 1.0]], backend=hg.select_backend(f"cupy:{len(x)}"))
other: hg.DiffusionIndex = hg.with_basis(index, index.basis or "none", precision="int8")
other = hg.build_index_from_neighbors([[1], [0]], [[0.5], [0.5]], metric="squared-l2")
other = index.add(x, keys=np.arange(9)).remove(["a"]).to("cupy:0")
ranking: hg.Ranking = index.search(
    x, k=3, method="local", accuracy="ranking", allowed=x[:, 0] > 0, exclude=[["a"], []],
    min_score=0.1, progress=True,
)
ranking = index.search(x.tolist(), accuracy=1e-4, filter=hg.HeatKernel(3))
ranking = index.rerank(ranking.keys, ranking.scores, metric="l2", method="precomputed")
ranking = index.rerank([["a"], ["b", "c"]], [[0.5], [0.6, 0.5]], metric="ip")
ranking = index.rerank([{"a": 0.5}, {"b": 0.6, "c": 0.5}])
ranking = index.search_items(["a", "b"], progress=lambda stage, done, total: None)
ranking = index.search_items([{"a": 1.0}], normalization="random-walk", alpha=0.85)
other = hg.build_index_from_graph(np.zeros((3, 2), int), weights=[1.0, 2.0, 3.0], n=9)
other = hg.build_index_from_graph([(0, 1), (1, 2)], weights=None)
ids: NDArray[np.int64] = ranking.ids
keys, scores = ranking
best: dict[Any, float] = ranking[0]
every: list[dict[Any, float]] = ranking.to_dicts()
size: int = len(index)
together: hg.Ranking = hg.Replicas(index, ["cupy:0", "cupy:1"]).search(x, method="hybrid")
loaded = hg.load_index("folder", backend="numpy")
lists = hg.nearest_neighbors(x, k=3, dtype="float32")
"""
# A line each, behind the good ones; every one must be found.
BAD = [
    'index.search(x, method="hybird")',
    'index.search(x, accuracy="rankings")',
    "index.search(x, k=2.5)",
    "index.search(x, neighbours=3)",
    'index.rerank([[0]], [[0.5]], metric="euclidean")',
    'index.search_items([0], method="loca")',
    'index.search_items([0], normalization="walk")',
    'index.search([[0.0]], normalization="random-walk")',
    'hg.Replicas(index).search(x, method="hybird")',
    'hg.build_index(x, basis="egien")',
    'hg.build_index(x, neighbors="all")',
    'hg.build_index(x, dtype="float16")',
    'hg.build_index(x, precision="float64")',
    'hg.build_index(x, backend="cuda")',
    'hg.build_index_from_neighbors([[1]], [[0.5]], metric="dot")',
    'hg.with_basis(index, "eigenvectors")',
    'hg.load_index("folder", backend="gpu")',
    'hg.nearest_neighbors(x, k=3, dtype="double")',
    "index.search(x, progress=3)",
    "text: str = ranking.ids",
    "hg.build_index(x).keys.tolist()",  # there may be none
]


def test_types_name_what_there_is():
    assert get_args(choices.MethodName) == ("auto", *hg.METHODS)
    assert get_args(choices.MetricName) == tuple(METRICS)
    assert get_args(choices.BasisName) == BASES
    assert get_args(choices.PrecisionName) == PRECISIONS
    assert get_args(choices.DtypeName) == DTYPES


@pytest.mark.slow
def test_strict_mypy_passes_good_code_and_finds_every_wrong_word(tmp_path):
    pytest.importorskip("mypy")
    page, good = tmp_path / "page.py", GOOD.strip().splitlines()
    page.write_text("\n".join([*good, *BAD]) + "\n")
    told = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), page],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        # mypy does not follow an editable install.
        env={**os.environ, "MYPYPATH": str(Path(hg.__file__).parents[1])},
    ).stdout
    # Of the page alone: what is missing of SciPy's types is none of the user's business.
    found = {int(line) for line in re.findall(r"^page\.py:(\d+): error", told, re.M)}
    assert {line for line in found if line <= len(good)} == set(), told
    missed = [text for number, text in enumerate(BAD, len(good) + 1) if number not in found]
    assert missed == [], told
