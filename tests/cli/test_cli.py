"""The command line: what it prints, what it writes, and one clear line for every mistake."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import needs_faiss
from typer.testing import CliRunner

import hybrid_gpu as hg
from hybrid_gpu import cli, evaluation
from hybrid_gpu.cli import common, demo, indexes, paper, searches
from hybrid_gpu.cli.exploring import EXPLORER_LINE
from hybrid_gpu.files.folder_lock import LOCK
from hybrid_gpu.lab import comparison, experiments

HALF = 30  # items of each class


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def run_well(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def run_json(*arguments):
    """The one object on stdout; ``json.loads`` refuses anything beside it."""
    return json.loads(run_well(*arguments, "--json"))


def assert_refused(result, reason):
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)  # not the fault itself: no traceback
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert reason in lines[0]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two classes that have no direction in common: a right ranking puts one before the other."""
    folder = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(23)

    def two_classes(count):
        vectors = np.zeros((2 * count, 8), np.float32)
        vectors[:count, :4] = 0.2 + rng.random((count, 4))
        vectors[count:, 4:] = 0.2 + rng.random((count, 4))
        return vectors, np.repeat([0, 1], count)

    paths = SimpleNamespace(folder=folder)
    for vectors, labels in (("descriptors", "labels"), ("queries", "query_labels")):
        values = two_classes(HALF if vectors == "descriptors" else 3)
        for name, array in zip((vectors, labels), values, strict=True):
            setattr(paths, name, folder / f"{name}.npy")
            np.save(folder / f"{name}.npy", array)
    paths.index = folder / "index"
    run_well(
        "build", paths.descriptors, paths.index, "--neighbors", 8, "--basis", "eigen", "--rank", 5
    )
    paths.ranking = folder / "ranking.npz"
    run_well("search", paths.index, paths.queries, "--output", paths.ranking, "-k", 2 * HALF)
    paths.relevant = folder / "relevant.json"
    members = [list(range(HALF)), list(range(HALF, 2 * HALF))]
    paths.relevant.write_text(json.dumps([members[0]] * 3 + [members[1]] * 3))
    return paths


def test_version_is_the_packages_own():
    assert run_well("--version") == f"hybrid-gpu {hg.__version__}\n"


def test_entry_point_runs_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hybrid-gpu", "--version"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert hg.__version__ in capsys.readouterr().out


def test_package_runs_as_a_module():
    command = [sys.executable, "-m", "hybrid_gpu.cli", "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == f"hybrid-gpu {hg.__version__}\n"


def test_help_lists_every_command_from_the_first_look_to_the_last_resort():
    told = [line.split()[1] for line in run_well("--help").splitlines() if line.startswith("│ ")]
    listed = [name for name in told if name.isalpha()]
    every = ["demo", "build", "search", "rerank", "evaluate", "precompute", "plan", "info"]
    assert [name for name in listed if name in every] == every
    assert {"doctor", "selfcheck"} <= set(listed)


def test_library_imports_nothing_of_the_command_line():
    code = (
        "import sys, hybrid_gpu;"
        "print([name for name in ('typer', 'rich', 'matplotlib', 'jinja2') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_build_passes_its_options_on(files, tmp_path):
    options = ("--neighbors", 6, "--gamma", 2, "--alpha", 0.9, "--dtype", "float64")
    options += ("--basis", "eigen", "--rank", 4)
    facts = run_json("build", files.descriptors, tmp_path / "index", *options, "--knn", "exact")
    index = hg.load_index(tmp_path / "index")
    same = hg.build_index(
        np.load(files.descriptors),
        neighbors=6,
        gamma=2,
        alpha=0.9,
        basis="eigen",
        rank=4,
        dtype="float64",
    )
    assert (index.alpha, index.gamma, index.dtype) == (0.9, 2.0, "float64")
    assert (facts["alpha"], facts["gamma"], facts["dtype"]) == (0.9, 2.0, "float64")
    assert facts["edges"] == index.graph.edges == same.graph.edges
    assert facts["rank"] == 4


def test_build_says_what_was_built(files, tmp_path):
    told = run_well("build", files.descriptors, tmp_path / "index", "--basis", "none")
    assert repr(hg.load_index(tmp_path / "index")) in told
    assert "no basis" in told


def test_search_writes_what_the_library_returns(files, tmp_path):
    out = tmp_path / "out.npz"
    options = ("--k", 7, "--method", "temporal", "--steps", 9, "--query-neighbors", 3)
    run_well("search", files.index, files.queries, "-o", out, *options, "--batch", 2)
    expected = hg.load_index(files.index).search(
        np.load(files.queries), k=7, method="temporal", steps=9, query_neighbors=3, batch=2
    )
    with np.load(out) as written:
        np.testing.assert_array_equal(written["ids"], expected.ids)
        np.testing.assert_array_equal(written["scores"], expected.scores)


def test_zero_query_neighbors_means_all(files):
    told = run_json("search", files.index, files.queries, "--query-neighbors", 0)
    expected = hg.load_index(files.index).search(
        np.load(files.queries), k=2 * HALF, query_neighbors=None
    )
    assert told["ids"] == expected.ids.tolist()


def test_search_as_json_holds_the_ranking_and_its_report(files):
    told = run_json("search", files.index, files.queries, "--k", 4, "--rtol", 1e-3)
    assert (told["queries"], told["k"]) == (6, 4)
    assert np.shape(told["ids"]) == np.shape(told["scores"]) == (6, 4)
    assert told["report"]["method"] == "hybrid"
    assert told["report"]["worst_residual"] <= 1.1e-3


def test_several_devices_are_named_with_commas(files):
    single = run_json("search", files.index, files.queries, "-k", 5, "--backend", "numpy")
    several = ("-k", 5, "--batch", 2, "--backend", "numpy,numpy")
    told = run_json("search", files.index, files.queries, *several)
    assert told["ids"] == single["ids"]
    # Which of them took the parts is up to them.
    assert set(told["report"]["backend"].split(",")) == {"numpy"}
    lists = run_json("rerank", files.index, files.ranking, files.ranking, *several)
    assert lists["queries"] == single["queries"]
    assert_refused(
        run("search", files.index, files.queries, "--backend", "numpy,"), "backend must be"
    )


def test_search_as_json_with_an_output_names_the_file_only(files, tmp_path):
    told = run_json("search", files.index, files.queries, "-o", tmp_path / "out.npz")
    assert told["output"] == str(tmp_path / "out.npz")
    assert "ids" not in told


def test_search_without_an_output_shows_the_first_results(files):
    told = run_well("search", files.index, files.queries)
    first = hg.load_index(files.index).search(np.load(files.queries), k=1)
    assert str(first.ids[0, 0]) in told
    assert f"{first.scores[0, 0]:.4g}" in told
    assert f"6 queries, top 60 by hybrid: {first.report.steps} steps, residuals up to" in told


def test_rerank_takes_the_output_of_search(files, tmp_path):
    found, out = tmp_path / "found.npz", tmp_path / "out.npz"
    run_well("search", files.index, files.queries, "--method", "nn", "-k", 5, "-o", found)
    run_well("rerank", files.index, found, found, "-o", out, "--k", 12)
    whole = run_json("search", files.index, files.queries, "--k", 12)
    with np.load(out) as written:
        # Its five observed items are what search itself starts from.
        np.testing.assert_allclose(written["scores"], whole["scores"], rtol=1e-4)


def test_rerank_takes_plain_arrays(files, tmp_path):
    np.save(tmp_path / "ids.npy", [[2, 5, -1]])
    np.save(tmp_path / "similarities.npy", [[0.9, 0.8, np.nan]])
    told = run_json("rerank", files.index, tmp_path / "ids.npy", tmp_path / "similarities.npy")
    assert sorted(told["ids"][0]) == list(range(2 * HALF))
    assert set(told["ids"][0][:2]) <= set(range(HALF))


def test_rerank_takes_distances_and_refuses_them_as_cosines(files, tmp_path):
    ids, distances = tmp_path / "ids.npy", tmp_path / "distances.npy"
    np.save(ids, [[2, 5, 7]])
    np.save(distances, [[0.2, 0.4, 0.6]])
    assert_refused(run("rerank", files.index, ids, distances), "'squared-l2'")
    told = run_json("rerank", files.index, ids, distances, "--metric", "squared-l2")
    np.save(tmp_path / "cosines.npy", [[0.9, 0.8, 0.7]])
    same = run_json("rerank", files.index, ids, tmp_path / "cosines.npy")
    assert told["ids"] == same["ids"]


def test_a_query_without_results_is_shown_as_such(files, tmp_path):
    ids, cosines = tmp_path / "ids.npy", tmp_path / "cosines.npy"
    np.save(ids, [[-1]])
    np.save(cosines, [[0.0]])
    told = run_json("rerank", files.index, ids, cosines, "-k", 2)
    assert (told["ids"], told["scores"]) == ([[-1, -1]], [[None, None]])
    assert "inf" not in run_well("rerank", files.index, ids, cosines, "-k", 2)


def test_evaluate_by_labels_finds_the_classes_apart(files):
    told = run_json(
        "evaluate", files.ranking, "--labels", files.labels, "--query-labels", files.query_labels,
        "--at", 10, "--at", HALF,
    )  # fmt: skip
    assert told["mAP"] == 1
    assert told["precision@10"] == told[f"precision@{HALF}"] == 1
    assert told["recall@10"] == pytest.approx(10 / HALF)
    assert told[f"recall@{HALF}"] == 1


def test_evaluate_by_lists_gives_what_labels_give(files):
    labels = ("--labels", files.labels, "--query-labels", files.query_labels)
    by_labels = run_json("evaluate", files.ranking, *labels)
    assert run_json("evaluate", files.ranking, "--relevant", files.relevant) == by_labels
    at_depths = {
        f"{name}@{depth}" for name in ("recall", "ndcg", "success") for depth in (1, 10, 60)
    }
    figures = {"mAP", "MRR"} | at_depths
    assert set(by_labels) == {"queries", "k", "confidence", "intervals"} | figures
    assert set(by_labels["intervals"]) == figures
    deep = ("--at", 7)
    by_lists = run_json("evaluate", files.ranking, "--relevant", files.relevant, *deep)
    assert by_lists == run_json("evaluate", files.ranking, *labels, *deep)
    assert "precision@7" in by_lists


def test_precision_falls_behind_the_last_of_a_class(files):
    labels = ("--labels", files.labels, "--query-labels", files.query_labels)
    told = run_json("evaluate", files.ranking, *labels, "--at", 2 * HALF)
    assert told[f"precision@{2 * HALF}"] == 0.5
    assert f"precision@{2 * HALF}" in run_well("evaluate", files.ranking, *labels, "--at", 2 * HALF)


@pytest.fixture
def revisited(tmp_path):
    """Two rankings of six images and their ground truth, the second without a hard image."""
    np.save(tmp_path / "ids.npy", [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]])
    judged = [{"easy": [1, 5], "hard": [3], "junk": [4]}, {"easy": [5], "hard": [], "junk": []}]
    content = {
        "imlist": [f"image{item}" for item in range(6)],
        "qimlist": ["one", "other"],
        "gnd": [{"bbx": [0, 0, 10, 10], **one} for one in judged],
    }
    (tmp_path / "truth.json").write_text(json.dumps(content))
    return "evaluate", tmp_path / "ids.npy", "--ground-truth", tmp_path / "truth.json"


def test_evaluate_by_ground_truth_tells_the_three_setups(revisited):
    told = run_json(*revisited)
    assert (told["queries"], told["k"]) == (2, 6)
    # Of the first query, by hand: Easy ranks 1 and 3 of four, Medium 1, 3 and 4 of five, Hard 2
    # of three. The second has its only positive in front, in Easy and Medium.
    first = {"easy": (1 / 4 + 5 / 12) / 2, "medium": (1 / 4 + 5 / 12 + 11 / 20) / 3, "hard": 1 / 6}
    for setup in ("easy", "medium"):
        assert told[setup]["mAP"] == pytest.approx((first[setup] + 1) / 2)
        assert told[setup]["queries"] == 2
    assert told["easy"]["mP@1"] == pytest.approx((0 + 1) / 2)
    assert told["easy"]["mP@5"] == pytest.approx((2 / 4 + 1) / 2)
    assert told["medium"]["mP@10"] == pytest.approx((3 / 5 + 1) / 2)
    assert told["hard"] == pytest.approx(
        {"mAP": 1 / 6, "mP@1": 0, "mP@5": 1 / 3, "mP@10": 1 / 3, "queries": 1}
    )


def test_query_expansion_takes_its_options(files, tmp_path):
    options = ("--method", "alpha-qe", "--expansion-neighbors", 3, "--expansion-alpha", 0.5)
    run_well("search", files.index, files.queries, "-o", tmp_path / "x.npz", "-k", 9, *options)
    index = hg.load_index(files.index, backend="numpy")
    expected = index.search(
        np.load(files.queries), k=9, method="alpha-qe", expansion=hg.Expansion(3, 0.5)
    )
    with np.load(tmp_path / "x.npz") as ranking:
        np.testing.assert_allclose(ranking["scores"], expected.scores, atol=1e-6)


def test_build_augments_the_database_if_asked(files, tmp_path):
    run_well("build", files.descriptors, tmp_path / "x", "--neighbors", 8, "--augment", 4)
    stored = hg.load_index(tmp_path / "x", backend="numpy").descriptors
    expected = hg.augment_database(
        np.load(files.descriptors), expansion=hg.Expansion(neighbors=4), backend="numpy"
    )
    np.testing.assert_allclose(stored, expected, atol=1e-6)


def test_evaluate_by_ground_truth_prints_a_table(revisited, tmp_path):
    told = run_well(*revisited, "--at", 2, "--at", 3, "--exact", tmp_path / "ids.npy")
    rows = [[cell.strip() for cell in line.split("│")] for line in told.splitlines()]
    assert told.splitlines()[2].replace("┃", "").split() == ["Easy", "Medium", "Hard"]
    # Hard: the third of three is the only positive.
    assert ["", "mAP", "66.67 %", "70.28 %", "16.67 %", ""] in rows
    assert ["", "mP@2", "75.00 %", "75.00 %", "0.00 %", ""] in rows
    assert ["", "mP@3", "66.67 %", "66.67 %", "33.33 %", ""] in rows
    assert ["", "queries", "2", "2", "1", ""] in rows
    assert ["", "agreement@2", "100.00 %", "100.00 to 100.00", ""] in rows
    # One query alone tells nothing of others.
    assert [row[-2] for row in rows if row[1:2] == ["95 % interval"]] == ["none"]


def test_setup_without_positives_is_none(revisited, tmp_path):
    content = json.loads((tmp_path / "truth.json").read_text())
    content["gnd"][0] |= {"hard": []}
    (tmp_path / "truth.json").write_text(json.dumps(content))
    hard = run_json(*revisited)["hard"]
    assert hard == {"mAP": None, "mP@1": None, "mP@5": None, "mP@10": None, "queries": 0}
    assert "none" in run_well(*revisited)


def test_ground_truth_of_other_queries_is_refused(revisited, tmp_path):
    np.save(tmp_path / "ids.npy", [[0, 1, 2]])
    assert_refused(run(*revisited), "one mapping for each of the 1 queries; got 2")
    assert_refused(run(*revisited, "--relevant", tmp_path / "x.json"), "give one of --labels")


def test_evaluate_against_an_exact_ranking(files, tmp_path):
    with np.load(files.ranking) as ranking:
        shuffled = ranking["ids"].copy()
    # Half of the first ten give way to the last five.
    shuffled[:, 5:10], shuffled[:, -5:] = shuffled[:, -5:].copy(), shuffled[:, 5:10].copy()
    np.save(tmp_path / "ids.npy", shuffled)
    told = run_json("evaluate", tmp_path / "ids.npy", "--exact", files.ranking)
    assert told["agreement@1"] == 1
    assert told["agreement@10"] == pytest.approx(0.5)
    assert "50.00 %" in run_well("evaluate", tmp_path / "ids.npy", "--exact", files.ranking)


@pytest.fixture
def small(tmp_path):
    """Three rankings of five items, another one, labels, relevant items, gains and junk."""
    np.save(tmp_path / "ids.npy", [[0, 1, 2, 3, 4], [3, 0, 4, 1, 2], [2, 4, 1, 0, 3]])
    np.save(tmp_path / "other.npy", [[4, 3, 2, 1, 0], [2, 1, 0, 3, 4], [2, 4, 1, 0, 3]])
    np.save(tmp_path / "labels.npy", [5, 6, 5, 6, 6])
    np.save(tmp_path / "wanted.npy", [5, 6, 5])
    contents = {
        "relevant": [[0, 2], [1, 3, 4], [0, 2]],
        "gains": [[1, 2], [0, 1, 3.5], [1, 1]],
        "junk": [[0], [4, 3], []],
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return SimpleNamespace(
        ids=np.load(tmp_path / "ids.npy"),
        other=np.load(tmp_path / "other.npy"),
        folder=tmp_path,
        run=("evaluate", tmp_path / "ids.npy"),
        labels=("--labels", tmp_path / "labels.npy", "--query-labels", tmp_path / "wanted.npy"),
        lists=("--relevant", tmp_path / "relevant.json"),
        **contents,
    )


def test_evaluate_tells_the_measures_of_the_library(small):
    told = run_json(*small.run, *small.lists, "--at", 2)
    given = (small.ids, small.relevant)
    assert told["MRR"] == evaluation.mean_reciprocal_rank_of_lists(*given)
    assert told["ndcg@2"] == evaluation.ndcg_of_lists(*given, at=2)
    assert told["success@2"] == evaluation.success_of_lists(*given, at=2)
    assert told["precision@2"] == evaluation.precision_of_lists(*given, at=2)
    values = evaluation.per_query(evaluation.ndcg_of_lists, *given, at=2)
    interval = evaluation.bootstrap(values)
    assert told["intervals"]["ndcg@2"] == [interval.low, interval.high]
    assert told["confidence"] == 0.95
    narrow = run_json(*small.run, *small.lists, "--at", 2, "--confidence", 0.5)
    interval = evaluation.bootstrap(values, confidence=0.5)
    assert narrow["intervals"]["ndcg@2"] == [interval.low, interval.high]
    graded = run_json(*small.run, *small.lists, "--gains", small.folder / "gains.json", "--at", 2)
    assert graded["ndcg@2"] == evaluation.ndcg_of_lists(*given, gains=small.gains, at=2)
    assert {name for name in graded if graded[name] != told[name]} == {"ndcg@2", "intervals"}


@pytest.mark.parametrize("truth", ["labels", "lists"])
def test_evaluate_takes_junk_out(small, truth):
    given = (small.ids, small.relevant)
    told = run_json(*small.run, *getattr(small, truth), "--ignore", small.folder / "junk.json")
    junk = {"ignore": small.junk}
    assert told["mAP"] == evaluation.mean_average_precision_of_lists(*given, **junk)
    # The second ranking holds three items beside its junk: it cannot be looked at deeper.
    assert told["recall@3"] == evaluation.recall(*given, at=3, **junk)
    assert told["success@1"] == evaluation.success_of_lists(*given, at=1, **junk)
    assert "recall@5" not in told
    np.save(small.folder / "own.npy", [0, 3, 2])
    told = run_json(*small.run, *getattr(small, truth), "--ignore", small.folder / "own.npy")
    assert told["ndcg@4"] == evaluation.ndcg_of_lists(*given, at=4, ignore=[0, 3, 2])


def test_evaluate_against_another_ranking_tells_who_wins(small):
    options = (*small.labels, "--against", small.folder / "other.npy", "--at", 2)
    told = run_json(*small.run, *options)["against"]
    values = [
        evaluation.per_query(evaluation.success_of_lists, ids, small.relevant, at=2)
        for ids in (small.ids, small.other)
    ]
    expected = evaluation.compare(*values)
    assert told["success@2"] == {
        "difference": expected.difference.mean,
        "interval": [expected.difference.low, expected.difference.high],
        "wins": expected.wins,
        "losses": expected.losses,
        "ties": expected.ties,
        "p_value": expected.p_value,
    }
    rows = [
        [cell.strip() for cell in line.split("│")]
        for line in run_well(*small.run, *options).splitlines()
    ]
    shown = next(row for row in rows if row[1:2] == ["mAP"] and len(row) == 7)
    wins = told["mAP"]
    assert shown[4:6] == [
        f"{wins['wins']}/{wins['losses']}/{wins['ties']}",
        f"{wins['p_value']:.2g}",
    ]
    assert shown[2].startswith("+")
    assert "against" not in run_json(*small.run, *small.labels)


def test_evaluate_of_one_query_has_no_interval(small):
    np.save(small.folder / "ids.npy", small.ids[:1])
    (small.folder / "relevant.json").write_text("[[0, 2]]")
    told = run_json(*small.run, *small.lists, "--against", small.folder / "ids.npy")
    assert set(told["intervals"].values()) == {None}
    assert told["against"] == {}
    assert "none" in run_well(*small.run, *small.lists)


def test_setups_are_compared_by_average_precision(revisited, tmp_path):
    told = run_json(*revisited, "--against", tmp_path / "ids.npy")
    assert set(told["intervals"]) == {"easy mAP", "medium mAP", "hard mAP"}
    assert told["intervals"]["hard mAP"] is None  # one query has a hard image
    assert set(told["against"]) == {"easy mAP", "medium mAP"}
    assert told["against"]["easy mAP"]["p_value"] == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("{labels}", "--gains", "gains.json"), "give --relevant too"),
        (("--exact", "ids.npy", "--ignore", "junk.json"), "goes with --labels or --relevant"),
        (("{lists}", "--gains", "names.json"), "expected a list of lists of numbers"),
        (("{lists}", "--gains", "junk.json"), "gains must have a number for each of the 2"),
        (("{lists}", "--ignore", "names.json"), "expected a list of lists of ids"),
        (("{lists}", "--ignore", "none.json"), "none.json: no such file"),
        (("{lists}", "--ignore", "all.json"), "nothing but ignored items"),
        (("{lists}", "--ignore", "junk.json", "--at", "4"), "at must be at most 3, what a"),
        (("{lists}", "--confidence", "95"), "confidence must lie between 0 and 1; got 95"),
        (("{lists}", "--against", "wanted.npy"), "ids must be a non-empty integer array"),
    ],
)
def test_wrong_options_of_evaluate_are_refused(small, options, reason):
    (small.folder / "names.json").write_text('[["a"], [], []]')
    (small.folder / "all.json").write_text("[[0, 1, 2, 3, 4], [], []]")
    given = []
    for option in options:
        if option.startswith("{"):
            given += getattr(small, option.strip("{}"))
        else:
            given.append(small.folder / option if "." in option else option)
    assert_refused(run(*small.run, *given), reason)


def test_info_tells_what_the_index_holds(files):
    index = hg.load_index(files.index, backend="numpy")  # info needs no GPU
    facts = run_json("info", files.index)
    assert (facts["items"], facts["dimensions"], facts["rank"]) == (2 * HALF, 8, 5)
    assert facts["edges"] == index.graph.edges
    assert facts["components"] == len(set(index.graph.components.tolist()))
    assert {part: facts[f"{part}_bytes"] for part in index.memory} == index.memory
    assert facts["worst_residual"] == index.basis.residuals.max()
    told = run_well("info", files.index)
    assert repr(index) in told
    assert "worst residual" in told


def test_info_counts_components_and_isolated_items(files, tmp_path):
    # With one neighbor each, only pairs that choose each other are joined.
    facts = run_json(
        "build", files.descriptors, tmp_path / "x", "--neighbors", 1, "--basis", "none"
    )
    pairs = facts["edges"]
    assert 0 < pairs < HALF
    assert facts["isolated_items"] == 2 * HALF - 2 * pairs
    assert facts["components"] == 2 * HALF - pairs
    assert facts["largest_component"] == 2
    assert facts == facts | run_json("info", tmp_path / "x")


def test_info_without_an_index_tells_the_versions_and_the_backend():
    facts = run_json("info")
    assert facts["hybrid-gpu"] == hg.__version__
    assert facts["numpy"] == np.__version__
    assert facts["auto_backend"] == hg.select_backend().name
    assert "auto backend" in run_well("info")


@pytest.fixture
def short_demo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparison, "_MOST_RUNS", 1)
    monkeypatch.setattr(comparison, "_FEWEST_RUNS", 1)
    # Every method on every query: minutes on the stand-in, and nothing that other tests leave out.
    monkeypatch.setenv("HYBRID_GPU_BACKEND", "numpy")
    return ("demo", "--queries", 12, "--rank", 20)


def test_demo_compares_every_method_and_draws_a_picture(short_demo, tmp_path):
    told = run_well(*short_demo)
    for method in (*hg.METHODS, "exact"):
        assert f"│ {method} " in told
    assert "hybrid-gpu build" in told
    assert "Picture: hybrid-gpu-demo.png" in told
    assert [file.name for file in tmp_path.iterdir()] == ["hybrid-gpu-demo.png"]
    assert (tmp_path / "hybrid-gpu-demo.png").read_bytes().startswith(b"\x89PNG")
    assert max(map(len, told.splitlines())) <= 80
    # The last line opens the explorer (tests/explore/test_explorer_docs.py types it).
    assert told.splitlines()[-1].endswith(EXPLORER_LINE)


def test_demo_as_json_measures_memory_and_accuracy(short_demo, tmp_path):
    told = run_json(*short_demo, "--no-plot")
    lines = {line["method"]: line for line in told["methods"]}
    assert list(lines) == [*hg.METHODS, "exact"]
    memory = {method: line["memory_bytes"] for method, line in lines.items()}
    graph, eigenvectors = memory["temporal"], memory["fsr"]
    assert memory["nn"] == memory["alpha-qe"] == 0
    assert memory["truncated"] == graph
    assert memory["fsrw"] == eigenvectors == (told["items"] + 1) * 20 * 4
    assert memory["hybrid-paper"] == graph + eigenvectors
    assert graph < memory["shybrid"] < graph + eigenvectors
    assert lines["exact"]["agreement_at_100"] == 1
    # What the library is for, with room: 66 and 87 on these data by the design's own figures.
    accuracy = {method: line["mean_average_precision"] for method, line in lines.items()}
    assert accuracy["exact"] > accuracy["nn"] + 0.1
    assert all(line["milliseconds_per_query"] > 0 for line in lines.values())
    assert told["picture"] is None
    assert not list(tmp_path.iterdir())


def nothing_measured(benchmark, **options):
    """A comparison for those to whom only its picture counts."""
    index = hg.build_index(benchmark.descriptors, neighbors=10, backend="numpy")
    return comparison.MethodComparison(index, {})


def test_demo_without_matplotlib_says_how_to_get_it(short_demo, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(demo, "compare_methods", nothing_measured)
    result = run(*short_demo, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["picture"] is None
    hint = 'For a picture of it, in a clone of hybrid-gpu: pip install -e ".[plots]"'
    assert result.stderr == hint + "\n"
    assert not list(tmp_path.iterdir())
    # Who asks for a picture by name is told that it cannot be had.
    insisting = run(*short_demo, "--json", "--plot", "wanted.png")
    assert_refused(insisting, 'pip install -e ".[plots]"')


def test_demo_refuses_a_picture_of_no_format_before_the_work(short_demo, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "compare_methods", None)  # no work
    assert_refused(run(*short_demo, "--plot", "a.xyz"), "a.xyz: pictures are written as")
    assert not list(tmp_path.iterdir())


def test_demo_draws_a_picture_whose_name_has_no_ending(short_demo, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "compare_methods", nothing_measured)
    run_well(*short_demo, "--plot", "picture")
    assert (tmp_path / "picture").read_bytes().startswith(b"\x89PNG")


def _cut_in_half(source, target):
    content = source.read_bytes()
    target.write_bytes(content[: len(content) // 2])
    return target


MISTAKES = {
    "missing queries": (("search", "{index}", "{folder}/none.npy"), "none.npy: no such file"),
    "missing index": (("search", "{folder}/none", "{queries}"), "none: no such index"),
    "array that is no index": (("info", "{queries}"), "queries.npy: an index is a folder"),
    "index that is no array": (("search", "{index}", "{index}"), "a folder, not an array file"),
    "text for an array": (("build", "{relevant}", "{folder}/new"), "not an array file"),
    "integers for vectors": (("build", "{labels}", "{folder}/new"), "astype('float32')"),
    "other dimensions": (("search", "{index}", "{narrow}"), "must have the index's 8 dimensions"),
    "unknown method": (("search", "{index}", "{queries}", "--method", "x"), "method must be one"),
    "no results": (("search", "{index}", "{queries}", "-k", "0"), "k must be at least 1"),
    "tolerance out of reach": (
        ("search", "{index}", "{queries}", "--rtol", "1e-14"),
        "did not reach rtol",
    ),
    "alpha of one": (("build", "{descriptors}", "{folder}/new", "--alpha", "1"), "alpha must lie"),
    "absent backend": (("search", "{index}", "{queries}", "--backend", "x"), "backend must be"),
    "output in no folder": (
        ("search", "{index}", "{queries}", "-o", "{folder}/no/out.npz"),
        "there is no folder",
    ),
    "output that is a folder": (("search", "{index}", "{queries}", "-o", "{index}"), "a folder"),
    "index over a file": (("build", "{descriptors}", "{queries}"), "an index is a folder"),
    "unequal lists": (("rerank", "{index}", "{ranking}", "{queries}"), "the same shape"),
    "nothing to compare with": (("evaluate", "{ranking}"), "nothing to compare with"),
    "labels alone": (("evaluate", "{ranking}", "--labels", "{labels}"), "go together"),
    "labels of other queries": (
        ("evaluate", "{ranking}", "--labels", "{labels}", "--query-labels", "{labels}"),
        "query_labels (6,)",
    ),
    "relevance that is no JSON": (
        ("evaluate", "{ranking}", "--relevant", "{labels}"),
        "labels.npy: not JSON",
    ),
    "missing relevance": (
        ("evaluate", "{ranking}", "--relevant", "{folder}/none.json"),
        "none.json: no such file.",
    ),
    "relevance that is a folder": (
        ("evaluate", "{ranking}", "--relevant", "{index}"),
        "a folder, not a JSON file",
    ),
    "relevance of names": (("evaluate", "{ranking}", "--relevant", "{names}"), "list of lists"),
    "more queries than digits": (("demo", "--queries", "1797"), "queries must be at most 1796"),
    "report that is a file": (("paper", "digits", "-o", "{queries}"), "a report is a folder"),
    "picture and no picture": (("demo", "--plot", "a.png", "--no-plot"), "not both"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_told_in_one_line(files, tmp_path, mistake):
    names = tmp_path / "names.json"
    names.write_text('[["a"], ["b"], [], [], [], []]')
    np.save(tmp_path / "narrow.npy", np.ones((2, 3), np.float32))
    places = vars(files) | {"names": names, "narrow": tmp_path / "narrow.npy"}
    arguments, reason = MISTAKES[mistake]
    assert_refused(run(*(argument.format(**places) for argument in arguments)), reason)


@pytest.mark.parametrize("part", ["queries", "ranking", "descriptors"])
def test_file_cut_in_half_is_refused_by_name(files, tmp_path, part):
    half = _cut_in_half(getattr(files, part), tmp_path / "half")
    command = {
        "queries": ("search", files.index, half),
        "ranking": ("evaluate", half, "--exact", files.ranking),
        "descriptors": ("build", half, tmp_path / "new"),
    }
    assert_refused(run(*command[part]), "half: damaged or cut short")
    assert not (tmp_path / "new").exists()


def test_index_with_a_file_cut_in_half_is_refused(files, tmp_path):
    index = tmp_path / "index"
    run_well("build", files.descriptors, index, "--neighbors", 8, "--basis", "none")
    (array,) = index.glob("descriptors*.npy")
    _cut_in_half(array, array)
    assert_refused(run("search", index, files.queries), array.name)
    assert_refused(run("info", index), array.name)


def test_unknown_option_ends_with_the_same_code(files):
    result = run("search", files.index, files.queries, "--nonsense")
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_interrupt_ends_with_one_line(files, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(common, "load_index", interrupted)
    result = run("search", files.index, files.queries)
    assert result.exit_code == 130
    assert result.output == "interrupted.\n"


def test_interrupted_write_keeps_the_old_output(files, tmp_path, monkeypatch):
    def full_disk(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    out = tmp_path / "out.npz"
    run_well("search", files.index, files.queries, "-o", out)
    before = out.read_bytes()
    monkeypatch.setattr(np, "savez", full_disk)
    assert_refused(run("search", files.index, files.queries, "-o", out), "No space left")
    assert out.read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("command", ["search", "info", "evaluate", "against", "versions"])
def test_tables_fit_into_80_columns(files, command):
    commands = {
        "search": ("search", files.index, files.queries),
        "info": ("info", files.index),
        "evaluate": ("evaluate", files.ranking, "--relevant", files.relevant),
        "against": (
            "evaluate",
            files.ranking,
            "--relevant",
            files.relevant,
            "--against",
            files.ranking,
        ),
        "versions": ("info",),
    }
    lines = [line for line in run_well(*commands[command]).splitlines() if line[0] in "┏┃┡│┌└"]
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_drawn_for_a_terminal(monkeypatch):
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with common.progress_bars() as progress:
        progress("neighbors", 0, 4)
        progress("neighbors", 4, 4)
        progress("eigenvectors", 0, 1)
    assert "neighbors" in terminal.getvalue()
    assert "100%" in terminal.getvalue()


def test_progress_is_not_drawn_into_a_file(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with common.progress_bars() as progress:
        progress("neighbors", 0, 4)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("command", ["build", "search", "rerank"])
def test_long_commands_report_their_progress(files, tmp_path, monkeypatch, command):
    stages = []

    class Recorder:
        def __enter__(self):
            return lambda stage, done, total: stages.append(stage)

        def __exit__(self, *fault):
            return None

    for module in (indexes, searches):
        monkeypatch.setattr(module, "progress_bars", Recorder)
    commands = {
        "build": ("build", files.descriptors, tmp_path / "new", "--neighbors", 8, "--rank", 5),
        "search": ("search", files.index, files.queries),
        "rerank": ("rerank", files.index, files.ranking, files.ranking, "--method", "temporal"),
    }
    run(*commands[command])
    expected = {"neighbors", "aggregate", "saving"} if command == "build" else {"opening", "search"}
    assert set(stages) == expected


@pytest.mark.parametrize(
    "arguments",
    [("search", "--k", "many", "a", "b"), ("build",), ("info", "--wrong")],
)
def test_wrong_usage_is_one_line_too(arguments):
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert f"hybrid-gpu {arguments[0]} --help" in done.stderr


def test_bad_target_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("x")
    done = run("build", tmp_path / "no-such-descriptors.npy", tmp_path / "file")
    assert done.exit_code == 2
    assert "this is a file" in done.stderr


def test_precompute_stores_columns_and_says_what_it_takes(files, tmp_path):
    shutil.copytree(files.index, tmp_path / "index")
    told = run_well("precompute", tmp_path / "index", "--keep", 20)
    assert told.startswith("About 0.0 minutes and ")
    facts = run_json("info", tmp_path / "index")
    assert facts["stored_columns"] == 20
    ranking = run_json("search", tmp_path / "index", files.queries, "--method", "precomputed")
    assert ranking["report"]["method"] == "precomputed"
    assert [one.name for one in tmp_path.iterdir()] == ["index"]


def test_build_leaves_a_folder_with_files_of_the_users_alone(files, tmp_path, monkeypatch):
    shutil.copy(files.descriptors, tmp_path / "descriptors.npy")
    (tmp_path / "labels.npy").write_bytes(b"mine")
    monkeypatch.chdir(tmp_path)
    assert_refused(run("build", "descriptors.npy", "."), "other files (descriptors.npy)")
    assert {one.name for one in tmp_path.iterdir()} == {"descriptors.npy", "labels.npy"}


@pytest.mark.parametrize("where", ["index.columns", "index"])
def test_precompute_leaves_files_of_the_users_alone(files, tmp_path, where):
    shutil.copytree(files.index, tmp_path / "index")
    (tmp_path / where).mkdir(exist_ok=True)
    (tmp_path / where / "ids.npy").write_bytes(b"mine")
    assert_refused(run("precompute", tmp_path / "index", "--keep", 20), "other files (ids.npy)")
    assert (tmp_path / where / "ids.npy").read_bytes() == b"mine"
    assert run_json("info", tmp_path / "index")["stored_columns"] == 0


def test_precompute_leaves_an_empty_folder_of_the_users(files, tmp_path):
    shutil.copytree(files.index, tmp_path / "index")
    (tmp_path / "index.columns").mkdir()
    run_well("precompute", tmp_path / "index", "--keep", 20)
    assert list((tmp_path / "index.columns").iterdir()) == []


def test_precompute_works_on_the_index_of_the_current_folder(files, tmp_path, monkeypatch):
    shutil.copytree(files.index, tmp_path / "index")
    monkeypatch.chdir(tmp_path / "index")
    run_well("precompute", ".", "--keep", 20)
    assert run_json("info", ".")["stored_columns"] == 20
    assert [one.name for one in tmp_path.iterdir()] == ["index"]


def test_plan_prints_a_table_and_names_the_best(files):
    told = run_json("plan", files.index, "--queries", 8, "-k", 10, "--target", 0.9)
    assert told["best"] in told["candidates"]
    assert told["best"]["agreement"] >= 0.9
    assert "* the fastest that reaches 0.9" in run_well(
        "plan", files.index, "--queries", 8, "-k", 10, "--target", 0.9, "--eigenvectors", 4
    )


@pytest.fixture
def own_data(tmp_path):
    """A folder of descriptors, queries and labels, as the user would have it."""
    rng = np.random.default_rng(29)
    labels = rng.integers(0, 3, 110)
    vectors = (3 * np.eye(6)[labels] + rng.standard_normal((110, 6))).astype(np.float32)
    folder = tmp_path / "own"
    folder.mkdir()
    np.save(folder / "descriptors.npy", vectors[:100])
    np.save(folder / "queries.npy", vectors[100:])
    np.save(folder / "labels.npy", labels[:100])
    np.save(folder / "query_labels.npy", labels[100:])
    return folder


@pytest.fixture
def few_trials(monkeypatch):
    """Fewer measurements than --quick makes, and each of them once."""
    monkeypatch.setattr(comparison, "_MOST_RUNS", 1)
    monkeypatch.setattr(comparison, "_FEWEST_RUNS", 1)
    small = {
        "rank": 5,
        "spectral_rank": 8,
        "ranks": (5,),
        "steps": (5,),
        "sparsities": (0.9,),
        "shortlists": (0.5,),
        "items_per_group": (50,),
    }
    monkeypatch.setattr(
        experiments.ExperimentSettings, "quick", lambda self: replace(self, **small)
    )


def paper_command(folder, output, *more):
    return ("paper", folder, "-o", output, "--quick", "--neighbors", 8, "--backend", "numpy", *more)


@pytest.mark.slow
def test_paper_writes_a_report_and_goes_on_where_it_was(
    own_data, few_trials, tmp_path, monkeypatch
):
    output = tmp_path / "out"
    told = run_well(*paper_command(own_data, output))
    assert "own: 100 items, 10 queries." in told
    for method in ("alpha-qe", "fsrw", "hybrid-paper", "shybrid", "hybrid", "exact"):
        assert f"│ {method} " in told
    assert max(len(line) for line in told.splitlines() if "│" in line) <= 80
    names = {file.name for file in output.iterdir()}
    pictures = {f"figure-{n}.{ending}" for n in range(1, 6) for ending in ("csv", "png", "svg")}
    assert names == pictures | {
        *(f"{name}.csv" for name in ("table-1", "table-2", "components")),
        *("report.md", "report.html", "run"),
    }
    # A second time, nothing is left to measure, and the answer is the same.
    monkeypatch.setattr(experiments, "measure", None)
    again = run_json(*paper_command(own_data, output, "--no-plots"))
    assert again["run"]["benchmark"]["items"] == 100
    assert again["report"] == str(output / "report.html")


@pytest.mark.slow
def test_paper_draws_results_of_pictures(few_trials, tmp_path):
    run_well(*paper_command("digits", tmp_path / "out", "--queries", 4))
    picture = (tmp_path / "out" / "results.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    # It stands on the first page, below the table of the result.
    page = (tmp_path / "out" / "report.html").read_text()
    head = page[: page.index('id="components"')]
    assert base64.b64encode(picture).decode() in head
    assert head.index("hybrid-paper") < head.index("data:image/png")
    text = (tmp_path / "out" / "report.md").read_text()
    assert "(results.png)" in text[: text.index("## Components of the graph")]


def test_paper_on_the_revisited_benchmark_tells_medium_and_hard(few_trials, tmp_path, monkeypatch):
    rng = np.random.default_rng(37)
    np.save(tmp_path / "items.npy", rng.standard_normal((60, 7)).astype(np.float32))
    np.save(tmp_path / "queries.npy", rng.standard_normal((3, 7)).astype(np.float32))
    np.save(tmp_path / "far.npy", rng.standard_normal((30, 7)).astype(np.float32))
    truth = {
        "imlist": [f"image{n}" for n in range(60)],
        "qimlist": ["a", "b", "c"],
        "gnd": [{"easy": [n], "hard": [n + 9, n + 20], "junk": [n + 40]} for n in range(3)],
    }
    (tmp_path / "gnd_roxford5k.json").write_text(json.dumps(truth))
    given = ("--descriptors", "items.npy", "--query-descriptors", "queries.npy")
    more = ("--ground-truth", "gnd_roxford5k.json", "--distractors", "far.npy", "--no-plots")
    monkeypatch.chdir(tmp_path)
    command = [str(one) for one in paper_command("fashion-mnist", tmp_path / "out")]
    told = run_json(*command, *given, *more)
    known = told["run"]["benchmark"]
    assert (known["items"], known["distractors"], known["queries"]) == (90, 30, 3)
    assert {"mAP easy", "mAP medium", "mAP hard"} <= told["run"]["exact"]["quality"].keys()
    assert "paper: medium" in (tmp_path / "out" / "table-2.csv").read_text()
    assert not list((tmp_path / "out").glob("*.png"))


def test_paper_refuses_before_any_work(own_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_refused(run("paper", "nowhere"), "DATA must be one of fashion-mnist, mnist, digits")
    assert_refused(run("paper", "mnist", "--folder", own_data), "hybrid-gpu paper digits")
    assert_refused(run("paper", "digits", "--folder", own_data), "--folder is for")
    assert_refused(run("paper", "--descriptors", "x.npy"), "go together")
    assert_refused(run("paper", "digits", "--queries", 0), "queries must be at least 1; got 0")
    assert_refused(run("paper", "digits", "--queries", 99999), "at most")
    assert_refused(run("paper", "digits", "--rank", -1), "rank must be at least 1; got -1")
    assert_refused(run("paper", "digits", "--seed", -1), "seed must be at least 0; got -1")
    monkeypatch.setattr(paper.importlib.util, "find_spec", lambda name: None)
    assert_refused(run("paper", "digits"), "--no-plots")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    refused = run("paper", "digits", "--no-plots")
    assert_refused(
        refused, 'reports need Jinja2; in a clone of hybrid-gpu: pip install -e ".[plots]"'
    )
    assert [one.name for one in tmp_path.iterdir()] == ["own"]


def npy(told, data=b""):
    """A .npy file with a header of one's own."""
    text = told.encode("latin1").ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def header(dtype, shape):
    return f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"


FLOATS = "{'descr': '<f4', 'fortran_order': False, 'shape': "
DAMAGED_ARRAYS = {
    "a header that is no Python": npy(FLOATS + "(3, 4"),
    "a header of open brackets": npy("(" * 100),
    "a header without a shape": npy("{'descr': '<f4', 'fortran_order': False}"),
    "a type that does not exist": npy(FLOATS.replace("f4", "q9") + "(3,), }"),
    "petabytes": npy(FLOATS + "(99999999, 9999999), }"),
    "a shape beyond 64 bits": npy(FLOATS + f"({10**30},), }}"),
    "a negative shape": npy(FLOATS + "(-3, -3), }", bytes(36)),
    "less than it says": npy(FLOATS + "(3, 4), }", bytes(9)),
    "a future version": b"\x93NUMPY\x09\x00" + bytes(200),
    "nothing but the magic": b"\x93NUMPY",
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("what", DAMAGED_ARRAYS)
def test_damaged_arrays_are_one_line(files, tmp_path, what, packed):
    path = tmp_path / "given"
    if packed:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", DAMAGED_ARRAYS[what])
    else:
        path.write_bytes(DAMAGED_ARRAYS[what])
    assert_refused(run("search", files.index, path), "given: damaged or cut short")


def test_json_without_end_is_one_line(files, tmp_path):
    path = tmp_path / "deep.json"
    path.write_text("[" * 200_000)
    told = run("evaluate", files.ranking, "--relevant", path)
    assert_refused(told, "deep.json: not JSON, or damaged")
    path.write_text('{"gnd": ' * 200_000)
    assert_refused(
        run("evaluate", files.ranking, "--ground-truth", path), "deep.json: damaged JSON"
    )
    path.write_text(f"[[{10**40}]]")
    assert_refused(run("evaluate", files.ranking, "--relevant", path), "a list of lists of ids")


def test_an_unknown_command_is_sent_to_the_list_of_commands():
    assert_refused(run("bogus"), "bogus")
    assert "See hybrid-gpu --help." in run("bogus").stderr


@needs_faiss
def test_too_few_items_for_faiss_is_one_line(files, tmp_path):
    told = run(
        "build", files.descriptors, tmp_path / "i", "--knn", "IVF4096,Flat", "--neighbors", 5
    )
    assert_refused(told, "Use 'faiss' or 'exact'")


def test_one_item_has_no_neighbors(tmp_path):
    np.save(tmp_path / "one.npy", np.ones((1, 4), np.float32))
    assert_refused(run("build", tmp_path / "one.npy", tmp_path / "i"), "at least two items")


def test_results_are_not_written_under_the_name_of_another_format(files, tmp_path):
    told = run("search", files.index, files.queries, "-o", tmp_path / "r.csv")
    assert_refused(told, "written as .npz, not .csv. Name a file such as r.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (MemoryError(), "not enough memory"),
        (MemoryError("Unable to allocate 7 TiB"), "Unable to allocate 7 TiB"),
        (RecursionError("maximum recursion depth exceeded"), "maximum recursion depth"),
        (PermissionError(13, "Permission denied", "x"), "x: Permission denied."),
        (OverflowError("too large"), "too large"),
    ],
)
def test_what_the_system_refuses_is_one_line(files, monkeypatch, fault, line):
    def refuse(*arguments, **options):
        raise fault

    monkeypatch.setattr(common, "load_index", refuse)
    assert_refused(run("search", files.index, files.queries), line)


def test_a_reader_that_goes_away_is_no_fault(files):
    command = [sys.executable, "-m", "hybrid_gpu.cli", "info", str(files.index)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ran:
        ran.stdout.close()
        told = ran.stderr.read()
    assert told == b""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with a name")
def test_an_output_that_is_no_plain_file_is_refused_and_stays(files, tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "link.npz").symlink_to(tmp_path / "elsewhere.npz")
    for name in ("pipe.npz", "link.npz"):
        before = os.lstat(tmp_path / name)
        result = run("search", files.index, files.queries, "-o", tmp_path / name)
        assert result.exit_code != 0
        assert "not a plain file" in result.output
        assert os.lstat(tmp_path / name).st_mode == before.st_mode


def test_paper_writes_over_reports_of_its_own_only(tmp_path):
    mine = tmp_path / "report.md"
    mine.write_text("mine")
    result = run("paper", "digits", "--quick", "--no-plots", "-o", tmp_path)
    assert_refused(result, "holds other things than a report of ours")
    assert mine.read_text() == "mine"
    assert [one.name for one in tmp_path.iterdir()] == ["report.md"]


@pytest.mark.parametrize("hidden", [True, False], ids=["as saved", "without hidden files"])
def test_nothing_is_written_into_an_index_but_its_own(files, tmp_path, monkeypatch, hidden):
    index = tmp_path / "index"
    shutil.copytree(files.index, index)
    if not hidden:
        (index / LOCK).unlink()
    (tmp_path / "link").symlink_to(index)
    before = sorted(index.iterdir())
    for command in (
        ("search", index, files.queries, "-o", index / "answer.npz"),
        ("search", index, files.queries, "-o", tmp_path / "link" / "answer.npz"),
        ("rerank", index, files.ranking, files.ranking, "-o", index / "answer.npz"),
        ("demo", "--plot", index / "picture.png"),
        ("paper", "digits", "-o", index / "report"),
        ("build", files.descriptors, index / "new" / "another"),
    ):
        assert_refused(run(*command), "is an index, and holds its own files only")
    monkeypatch.chdir(index)
    assert_refused(run("demo"), "is an index, and holds its own files only")
    assert sorted(index.iterdir()) == before


def test_output_beside_a_header_of_the_users_is_written(files, tmp_path):
    (tmp_path / "header.json").write_text("{}")
    run_well("search", files.index, files.queries, "-o", tmp_path / "answer.npz")
    assert (tmp_path / "answer.npz").is_file()


def test_output_may_have_the_longest_name_that_there_is(files, tmp_path):
    longest = tmp_path / ("x" * 251 + ".npz")
    run_well("search", files.index, files.queries, "-o", longest)
    assert [one.name for one in tmp_path.iterdir()] == [longest.name]


def test_what_the_system_says_of_a_file_begins_with_its_name(files, tmp_path):
    too_long = tmp_path / ("x" * 300)
    refused = run("search", files.index, files.queries, "-o", too_long)
    assert_refused(refused, "xxx: File name too long.")
    assert "Errno" not in refused.stderr


# Tuning -------------------------------------------------------------------------------------------


def test_tune_prints_a_table_and_the_lines_to_type(files, tmp_path):
    done = run_well("tune", files.descriptors, "--labels", files.labels)
    assert "hg.build_index(descriptors" in done
    command = next(line for line in done.splitlines() if line.startswith("hybrid-gpu build"))
    _, build, vectors, _, *options = command.split()
    run_well(build, vectors, tmp_path / "index", *options)
    search = next(line for line in done.splitlines() if line.startswith("hybrid-gpu search"))
    run_well("search", tmp_path / "index", files.queries, *search.split()[4:])


def test_tune_by_lists_and_as_json(files, tmp_path):
    np.save(tmp_path / "items.npy", np.array([0, 1, 2, HALF, HALF + 1, HALF + 2]))
    told = run_json(
        "tune", files.descriptors, "--queries", tmp_path / "items.npy",
        "--relevant", files.relevant, "--measure", "MRR", "--plot", tmp_path / "tuning.png",
    )  # fmt: skip
    assert told["measure"] == "MRR"
    assert told["source"] == "6 queries with lists of relevant items"
    assert set(told["best"]) == {"method", "neighbors", "gamma", "alpha", "degree_correction"}
    assert len(told["settings"]) > 50
    assert (tmp_path / "tuning.png").stat().st_size > 1000
    assert run_json("tune", files.descriptors)["picture"] is None


def test_tune_refuses_what_cannot_be_tuned(files, tmp_path):
    assert_refused(run("tune", files.descriptors, "--labels", files.query_labels), "one for each")
    assert_refused(run("tune", files.descriptors, "--queries", files.labels), "go together")
    assert_refused(run("tune", files.descriptors, "--plot", tmp_path / "no" / "p.png"), "no folder")
    assert_refused(run("tune", files.descriptors, "--measure", "best"), "measure must be one of")


# The graph's options ------------------------------------------------------------------------------


def test_build_takes_the_paper_s_settings_or_chooses(files, tmp_path):
    chosen = run_json("build", files.descriptors, tmp_path / "a")
    assert (chosen["neighbors_chosen"], chosen["alpha"]) == (True, 0.9)
    auto = run_json("build", files.descriptors, tmp_path / "b", "--neighbors", "auto")
    assert auto["neighbors"] == chosen["neighbors"]
    paper = run_json("build", files.descriptors, tmp_path / "c", "--paper")
    assert (paper["neighbors"], paper["alpha"], paper["neighbors_chosen"]) == (50, 0.99, False)
    mixed = run_json("build", files.descriptors, tmp_path / "d", "--paper", "--neighbors", "7")
    assert (mixed["neighbors"], mixed["alpha"]) == (7, 0.99)
    assert_refused(
        run("build", files.descriptors, tmp_path / "e", "--neighbors", "many"),
        "--neighbors must be a number or auto; got 'many'",
    )


def test_search_takes_alpha_and_the_degree_correction(files):
    index = hg.load_index(files.index)
    queries = np.load(files.queries)
    for options, keywords in (
        (["--alpha", 0.5], {"alpha": 0.5}),
        (["--degree-correction"], {"degree_correction": True}),
    ):
        told = run_json("search", files.index, files.queries, "-k", 7, *options)
        np.testing.assert_allclose(
            told["scores"], index.search(queries, k=7, **keywords).scores, rtol=1e-4
        )


def test_keys_allowed_and_excluded_items_come_from_files(files, tmp_path):
    vectors, queries = np.load(files.descriptors), np.load(files.queries)
    keys = ["", "[red]ü[/red]", *(f"item {number}" for number in range(2, len(vectors)))]
    (tmp_path / "keys.txt").write_text("\n".join(keys) + "\n", encoding="utf-8")
    named = tmp_path / "named"
    run_well("build", files.descriptors, named, "--keys", tmp_path / "keys.txt")
    index = hg.load_index(named)
    assert index.keys.tolist() == keys
    mask, gone = np.arange(len(vectors)) % 3 == 0, [keys[0], keys[3]]
    np.save(tmp_path / "mask.npy", mask)
    (tmp_path / "gone.txt").write_text("\n".join(gone), encoding="utf-8")
    options = ("--allowed", tmp_path / "mask.npy", "--exclude", tmp_path / "gone.txt", "-k", 25)
    told = run_json("search", named, files.queries, *options)
    expected = index.search(queries, k=25, allowed=mask, exclude=gone)
    assert told["ids"] == expected.ids.tolist()
    assert told["keys"] == expected.keys.tolist()
    assert None in told["keys"][0]
    (tmp_path / "one.txt").write_text(keys[1], encoding="utf-8")
    shown = run_well("search", named, files.queries, "--allowed", tmp_path / "one.txt")
    assert "[red]ü[/red]" in shown
    # What was written goes in again, with its gaps.
    out = tmp_path / "found.npz"
    run_well("search", named, files.queries, *options, "--method", "nn", "-o", out)
    again = run_json("rerank", named, out, out, "-k", 5)
    first = index.search(queries, k=25, allowed=mask, exclude=gone, method="nn")
    expected = index.rerank(first.keys, np.maximum(first.scores, 0).clip(max=1), k=5)
    assert again["ids"] == expected.ids.tolist()


def test_ids_and_least_scores_on_the_command_line(files, tmp_path):
    (tmp_path / "few.txt").write_text("3\n4\n35\n")
    index, queries = hg.load_index(files.index), np.load(files.queries)
    options = ("--allowed", tmp_path / "few.txt", "-k", 3, "--method", "nn", "--min-score", 0.5)
    told = run_json("search", files.index, files.queries, *options)
    expected = index.search(queries, k=3, allowed=[3, 4, 35], method="nn", min_score=0.5)
    assert told["ids"] == expected.ids.tolist()
    assert "keys" not in told
    assert -1 in told["ids"][0]
    (tmp_path / "few.txt").write_text("3\nfour\n")
    assert_refused(
        run("search", files.index, files.queries, *options), "line 2 must be an integer; got 'four'"
    )
