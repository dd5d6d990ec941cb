import json

import numpy as np
import pytest
from conftest import clustered_vectors

import hybrid_gpu as hg


@pytest.fixture
def index(backend):
    vectors = clustered_vectors(np.random.default_rng(51), n=90)
    return hg.build_index(vectors, neighbors=6, dtype="float64", backend=backend)


@pytest.fixture
def queries():
    return clustered_vectors(np.random.default_rng(53), n=5)


def test_whole_columns_give_the_exact_answer(index, queries):
    stored = index.precompute(keep=90, rtol=1e-12)
    exact = index.search(queries, k=90, method="temporal", rtol=1e-12)
    ranking = stored.search(queries, k=90, method="precomputed")
    np.testing.assert_allclose(ranking.scores, exact.scores, atol=1e-9)
    assert ranking.report.steps == 0


def test_short_columns_keep_the_best_entries(backend, index):
    stored = index.precompute(keep=7, rtol=1e-12)
    exact = index.search_items(np.arange(90), k=7, method="temporal", rtol=1e-12)
    scores = backend.to_numpy(stored.columns.scores)
    np.testing.assert_allclose(scores, np.maximum(exact.scores, 0), atol=1e-10)
    assert np.all((backend.to_numpy(stored.columns.ids) < 0) == (scores == 0))
    assert stored.memory["columns"] == 90 * 7 * 12


def test_interrupted_work_goes_on_where_it_was(backend, index, tmp_path):
    def interrupt(stage, done, total):
        if done >= 50:
            raise KeyboardInterrupt

    folder = tmp_path / "columns"
    with pytest.raises(KeyboardInterrupt):
        index.precompute(keep=9, folder=folder, batch=10, progress=interrupt)
    assert json.loads((folder / "progress.json").read_text())["done"] == 50
    seen = []
    resumed = index.precompute(
        keep=9, folder=folder, batch=10, progress=lambda *state: seen.append(state)
    )
    assert seen[0] == ("precompute", 50, 90)
    assert seen[-1] == ("precompute", 90, 90)
    whole = index.precompute(keep=9, batch=10)
    np.testing.assert_array_equal(
        backend.to_numpy(resumed.columns.ids), backend.to_numpy(whole.columns.ids)
    )
    np.testing.assert_array_equal(
        backend.to_numpy(resumed.columns.scores), backend.to_numpy(whole.columns.scores)
    )


def test_columns_of_another_index_or_setting_are_not_continued(index, tmp_path):
    index.precompute(keep=9, folder=tmp_path)
    with pytest.raises(hg.IndexFileError, match="other settings"):
        index.precompute(keep=8, folder=tmp_path)
    (tmp_path / "progress.json").write_text("{")
    with pytest.raises(hg.IndexFileError, match="damaged"):
        index.precompute(keep=9, folder=tmp_path)


def test_folder_with_other_files_is_refused(index, tmp_path):
    (tmp_path / "cat.jpg").write_text("x")
    with pytest.raises(hg.IndexFileError, match=r"cat\.jpg"):
        index.precompute(keep=9, folder=tmp_path)


def test_estimate_tells_bytes_and_seconds(index):
    estimate = hg.estimate_precompute(index, keep=10)
    assert estimate.bytes == 90 * 10 * 12
    assert estimate.seconds > 0
    assert repr(estimate).startswith("Estimate(")


def test_columns_answer_their_own_filter_only(index, queries):
    with pytest.raises(ValueError, match=r"index\.precompute"):
        index.search(queries, k=5, method="precomputed")
    stored = index.precompute(keep=5)
    with pytest.raises(ValueError, match="stored columns are those of"):
        stored.search(queries, k=5, method="precomputed", filter=hg.PageRank(0.5))


@pytest.mark.parametrize("keep", [0, 91])
def test_impossible_numbers_of_entries_are_refused(index, keep):
    with pytest.raises(ValueError, match="keep must be at"):
        index.precompute(keep=keep)
