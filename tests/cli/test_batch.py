"""The command ``batch``: exit codes, what it prints, and the options of a search."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from conftest import clustered_vectors
from typer.testing import CliRunner

import hybrid_gpu as hg
from hybrid_gpu.cli import app


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYBRID_GPU_BACKEND", "numpy")
    rng = np.random.default_rng(51)
    hg.build_index(clustered_vectors(rng), neighbors=6, keys=list(map(str, range(120)))).save(
        "index"
    )
    for name in ("a", "b"):
        np.save(f"{name}.npy", clustered_vectors(rng, n=4))
    return tmp_path


def batch(*words):
    return CliRunner().invoke(app, ["batch", "index", *words, "-o", "answers"])


def test_answers_are_written_and_the_summary_is_told(place):
    done = batch("a.npy", "b.npy", "-k", "5")
    assert done.exit_code == 0, done.output
    assert "8 queries in 2 files" in done.output
    assert "slowest files" in done.output
    again = batch("a.npy", "b.npy", "-k", "5")
    assert again.exit_code == 0
    assert "2 files had been answered before" in again.output
    with np.load("answers/a.npz") as answers:
        expected = hg.load_index("index").search(np.load("a.npy"), k=5)
        assert np.array_equal(answers["keys"], expected.keys.astype("U"))


def test_a_bad_file_is_named_and_the_exit_code_is_1(place):
    np.save("bad.npy", np.zeros((2, 3)))
    done = batch("bad.npy", "a.npy")
    assert done.exit_code == 1
    assert "bad.npy: queries must have the index's 8 dimensions" in done.stderr
    assert (place / "answers" / "a.npz").exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_names_of_files_tell_the_terminal_nothing(place):
    np.save("red \x1b[31m\nline.npy", np.load("a.npy"))
    np.save("\x1b[2Jbad.npy", np.zeros((2, 3)))
    done = batch("red \x1b[31m\nline.npy", "\x1b[2Jbad.npy")
    assert "\x1b" not in done.output
    assert r"\x1b[2Jbad.npy: queries must" in done.stderr


def test_json_is_one_object_with_every_file(place):
    np.save("bad.npy", np.zeros((2, 3)))
    done = batch("a.npy", "bad.npy", "-k", "3", "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert (told["done"], told["failed"], told["queries"]) == (1, 1, 4)
    assert [shard["state"] for shard in told["shards"]] == ["done", "failed"]


def test_the_options_of_a_search_reach_it(place):
    (place / "some.txt").write_text("3\n5\n8\n13\n")
    options = ("--method", "temporal", "--steps", "7", "--alpha", "0.8", "--allowed", "some.txt")
    done = batch("a.npy", "-k", "3", *options, "--query-neighbors", "0", "--min-score", "0")
    assert done.exit_code == 0, done.output
    expected = hg.load_index("index").search(
        np.load("a.npy"),
        k=3,
        method="temporal",
        steps=7,
        alpha=0.8,
        allowed=["3", "5", "8", "13"],
        query_neighbors=None,
        min_score=0.0,
    )
    with np.load("answers/a.npz") as answers:
        assert np.array_equal(answers["scores"], expected.scores)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("a.npy", "--engine", "spark"), "engine must be one of"),
        (("a.npy", "--workers", "0"), "workers must be at least 1"),
        (("a.npy", "--method", "best"), "method must be one of"),
        (("a.npy", "--lists", "ids"), "lists must be two columns"),
        (("a.npy", "--backend", "tpu"), "backend must be one of"),
        ((), "Missing argument"),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_2(place, words, told):
    done = batch(*words)
    assert done.exit_code == 2
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (place / "answers").exists()


def test_changed_options_are_told_and_nothing_changes(place):
    batch("a.npy", "-k", "5")
    before = (place / "answers" / "a.npz").read_bytes()
    done = batch("a.npy", "-k", "6")
    assert done.exit_code == 2
    assert "k was 5 and is 6" in done.stderr
    assert (place / "answers" / "a.npz").read_bytes() == before
