"""``progress=True`` wherever a function takes ``progress``: a line on stderr, and nothing else."""

import inspect
import sys

import numpy as np
import pytest
from conftest import clustered_vectors, two_cliques

import hybrid_gpu as hg
from hybrid_gpu.progress import as_progress

RNG = np.random.default_rng(31)
VECTORS = clustered_vectors(RNG, n=80)


def asked(index, folder):
    graph = index.graph
    yield "aggregate", lambda **how: hg.aggregate(graph, groups=4, **how)
    yield "neighbors", lambda **how: hg.nearest_neighbors(VECTORS, k=3, **how)
    yield "neighbors", lambda **how: hg.augment_database(VECTORS, **how)
    yield "aggregate", lambda **how: hg.build_index(VECTORS, neighbors=5, **how)
    lists = index.neighbors
    yield (
        "aggregate",
        lambda **how: hg.build_index_from_neighbors(lists.ids, lists.similarities, **how),
    )
    yield "aggregate", lambda **how: hg.build_index_from_graph(two_cliques(9), **how)
    yield "aggregate", lambda **how: hg.with_basis(index, "aggregate", **how)
    yield "plan", lambda **how: hg.plan(index, queries=3, k=5, eigenvectors=(), **how)
    yield "tuning", lambda **how: hg.tune(VECTORS, neighbors=(5,), gammas=(), alphas=(), **how)
    yield "search", lambda **how: index.search(VECTORS[:3], k=2, **how)
    yield "search", lambda **how: index.rerank([[0]], [[0.9]], k=2, **how)
    yield "search", lambda **how: index.search_items([0], k=2, **how)
    yield "search", lambda **how: hg.Replicas(index, ["numpy"]).search_items([0], k=2, **how)
    yield "precompute", lambda **how: index.precompute(keep=2, **how)
    index.save(folder / "index")
    np.save(folder / "queries.npy", VECTORS[:3])
    answers = (folder / f"answers {number}" for number in range(9))
    yield (
        "batch",
        lambda **how: hg.rerank_files(
            folder / "index", folder / "queries.npy", next(answers), **how
        ),
    )


def test_true_writes_a_line_for_every_function(capsys, tmp_path):
    index = hg.build_index(VECTORS, neighbors=5, backend="numpy")
    for stage, call in asked(index, tmp_path):
        capsys.readouterr()
        call(progress=False)
        assert capsys.readouterr() == ("", "")
        call(progress=True)
        out, err = capsys.readouterr()
        assert not out
        assert f"\r{stage}: " in err, stage
        assert err.endswith("\n")


def test_no_function_with_progress_is_left_out():
    takes = {
        name
        for name in hg.__all__
        if inspect.isfunction(getattr(hg, name))
        and "progress" in inspect.signature(getattr(hg, name)).parameters
    }
    # Spectra of a small graph are dense: nothing to tell.
    assert takes - {"leading_eigenpairs"} == {
        *("aggregate", "augment_database", "build_index", "build_index_from_graph"),
        *("build_index_from_neighbors", "nearest_neighbors", "plan", "rerank_files", "tune"),
        "with_basis",
    }


def test_line_is_written_over_until_its_stage_is_done(capsys):
    tell = as_progress(True)
    for done in (0, 1000, 2000):
        tell("search", done, 2000)
    tell("next", 0, 5)
    tell("another", 5, 5)
    expected = (
        "\rsearch: 0 of 2,000\rsearch: 1,000 of 2,000\rsearch: 2,000 of 2,000\n"
        "\rnext: 0 of 5\n\ranother: 5 of 5\n"
    )
    assert capsys.readouterr().err == expected


def test_program_without_a_console_is_told_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    as_progress(True)("search", 1, 2)


def test_what_is_no_progress_is_refused():
    assert as_progress(None) is None
    with pytest.raises(TypeError, match="progress must be True, or a function"):
        hg.aggregate(hg.build_index(VECTORS, neighbors=5).graph, groups=4, progress="yes")
