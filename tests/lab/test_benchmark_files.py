"""Benchmarks from folders, and from the files of revisited Oxford and Paris."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import scipy.io

from hybrid_gpu import evaluation
from hybrid_gpu.lab.benchmark_files import by_rows, load_folder, revisited

N, M, D = 6, 3, 4
ITEMS = np.arange(N * D, dtype=np.float64).reshape(N, D)
QUERIES = np.arange(M * D, dtype=np.float64).reshape(M, D) / 8
TRUTH = {
    "imlist": [f"picture_{i}" for i in range(N)],
    "qimlist": [f"query_{i}" for i in range(M)],
    "gnd": [
        {"bbx": [0.0, 1.0, 2.0, 3.0], "easy": [i], "hard": [i + 3], "junk": [i + 2, i + 1]}
        for i in range(M)
    ],
}


def save(path, array, name="anything"):
    if path.suffix == ".mat":
        scipy.io.savemat(path, {name: array})
    elif path.suffix == ".npz":
        np.savez(path, **{name: array})
    else:
        np.save(path, array)


def assert_is_the_small_one(made, distractors=0):
    assert (made.n, made.m, made.distractors) == (N + distractors, M, distractors)
    assert made.descriptors.dtype == made.queries.dtype == np.float32
    assert made.descriptors.flags.c_contiguous
    assert made.queries.flags.c_contiguous
    np.testing.assert_array_equal(made.descriptors[:N], ITEMS)
    np.testing.assert_array_equal(made.queries, QUERIES)
    if made.ground_truth is not None:
        for entry, expected in zip(made.ground_truth, TRUTH["gnd"], strict=True):
            for judgment in ("easy", "hard", "junk"):
                assert entry[judgment].tolist() == expected[judgment]


@pytest.mark.parametrize("ending", [".npy", ".npz", ".mat"])
@pytest.mark.parametrize("turned", [False, True])
def test_folder_of_arrays_and_labels_is_a_benchmark(tmp_path, ending, turned):
    for part, array in (("descriptors", ITEMS), ("queries", QUERIES)):
        save(tmp_path / f"{part}{ending}", array.T if turned else array)
    save(tmp_path / f"labels{ending}", np.array([0, 1, 2, 0, 1, 2]))
    save(tmp_path / f"query_labels{ending}", np.array([2, 1, 0]))
    made = load_folder(tmp_path)
    assert_is_the_small_one(made)
    assert made.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert made.query_labels.tolist() == [2, 1, 0]
    assert made.name == tmp_path.name


def save_parts(folder, truth="gnd_small.pkl"):
    save(folder / "descriptors.npy", ITEMS)
    save(folder / "queries.mat", QUERIES)
    if truth.endswith(".json"):
        (folder / truth).write_text(json.dumps(TRUTH))
    else:
        (folder / truth).write_bytes(pickle.dumps(TRUTH))


@pytest.mark.parametrize("truth", ["gnd_small.pkl", "ground_truth.json", "ground_truth.pkl"])
@pytest.mark.parametrize("turned", [False, True])
def test_folder_with_a_ground_truth_and_distractors_is_a_benchmark(tmp_path, truth, turned):
    save_parts(tmp_path, truth)
    assert_is_the_small_one(load_folder(tmp_path))
    far = np.full((5, D), 9.0)
    save(tmp_path / "distractors.npz", far.T if turned else far)
    made = load_folder(str(tmp_path))
    assert_is_the_small_one(made, distractors=5)
    np.testing.assert_array_equal(made.descriptors[N:], far)


def test_square_arrays_of_a_folder_have_items_as_rows(tmp_path):
    square = np.arange(9.0).reshape(3, 3)
    for part in ("descriptors", "queries", "distractors"):
        save(tmp_path / f"{part}.npy", square)
    for part in ("labels", "query_labels"):
        save(tmp_path / f"{part}.npy", np.array(["a", "b", "c"]))
    made = load_folder(tmp_path)
    np.testing.assert_array_equal(made.queries, square)
    np.testing.assert_array_equal(made.descriptors, np.concatenate([square, square]))


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ([], "missing descriptors, queries, labels and query_labels, or a ground truth; found not"),
        (["descriptors.npy", "labels.npy"], "missing queries, query_labels; found .*split_queries"),
        (
            ["descriptors.npy", "labels.npy", "query_labels.npy"],
            "missing queries; found descriptors.npy, labels.npy, query_labels.npy.*split_queries",
        ),
        (["descriptors.npy", "queries.npy", "labels.npy"], "missing query_labels; found"),
        (["descriptors.csv", "queries.npy", "gnd_x.pkl"], "missing descriptors; found desc.*csv"),
        (["roxford5k_gem.mat", "gnd_roxford5k.pkl"], r"revisited\(\) reads the published"),
        (["descriptors.npy", "descriptors.mat"], "has descriptors 2 times"),
        (["gnd_x.pkl", "gnd_x.mat"], r"has ground_truth 2 times \(gnd_x.mat, gnd_x.pkl\)"),
        (["descriptors.npy", "queries.npy", "labels.npy", "gnd_x.pkl"], "labels and a ground"),
    ],
)
def test_folder_with_missing_or_doubled_parts_is_refused(tmp_path, files, reason):
    for name in files:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=reason):
        load_folder(tmp_path)


def test_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        load_folder(tmp_path / "absent")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match="not a folder"):
        load_folder(tmp_path / "file")


def test_folder_whose_parts_do_not_fit_is_refused(tmp_path):
    save_parts(tmp_path)
    save(tmp_path / "distractors.npy", np.ones((5, 7)))
    with pytest.raises(
        ValueError, match=r"distractors\.npy: shape \(5, 7\); expected \(items, 4\)"
    ):
        load_folder(tmp_path)
    (tmp_path / "distractors.npy").unlink()
    save(tmp_path / "descriptors.npy", ITEMS[1:])
    with pytest.raises(ValueError, match=r"descriptors\.npy: shape \(5, 4\); expected \(6, dim"):
        load_folder(tmp_path)
    (tmp_path / "gnd_small.pkl").unlink()
    save(tmp_path / "labels.npy", np.ones((2, 3)))
    save(tmp_path / "query_labels.npy", np.ones(3))
    with pytest.raises(ValueError, match=r"labels\.npy: shape \(2, 3\); expected one label"):
        load_folder(tmp_path)


@pytest.fixture
def published(tmp_path):
    """As the published files are: pictures in columns of X and Q, and a pickle."""
    scipy.io.savemat(tmp_path / "roxford5k_gem.mat", {"X": ITEMS.T, "Q": QUERIES.T})
    (tmp_path / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(TRUTH, protocol=2))
    return tmp_path


def test_published_files_are_turned_so_that_rows_are_pictures(published):
    made = revisited(published / "roxford5k_gem.mat", published / "gnd_roxford5k.pkl")
    assert_is_the_small_one(made)
    assert made.name == "roxford5k"
    named = revisited(
        str(published / "roxford5k_gem.mat"), str(published / "gnd_roxford5k.pkl"), name="Oxford"
    )
    assert named.name == "Oxford"


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("ending", [".npy", ".npz", ".mat"])
def test_revisited_queries_and_distractors_may_have_their_own_files(published, ending, turned):
    far = np.full((5, D), 9, dtype=np.float32)
    parts = {"items": ITEMS, "queries": QUERIES, "far": far}
    paths = {part: published / f"{part}{ending}" for part in parts}
    for part, array in parts.items():
        save(paths[part], array.T if turned else array)
    truth = published / "gnd_roxford5k.pkl"
    for distractors in (paths["far"], far, far.T):
        made = revisited(paths["items"], truth, queries=paths["queries"], distractors=distractors)
        assert_is_the_small_one(made, distractors=5)
        np.testing.assert_array_equal(made.descriptors[N:], far)


def test_revisited_without_queries_asks_for_them(published):
    np.save(published / "x.npy", ITEMS)
    np.savez(published / "x.npz", X=ITEMS, other=QUERIES)
    truth = published / "gnd_roxford5k.pkl"
    with pytest.raises(
        ValueError, match=r"x\.npy: no array 'Q' .* got one array\. Pass .*queries="
    ):
        revisited(published / "x.npy", truth)
    with pytest.raises(ValueError, match=r"x\.npz: no array 'Q' .* got X, other\."):
        revisited(published / "x.npz", truth)


def test_revisited_files_that_do_not_belong_together_are_refused(published):
    truth = published / "gnd_roxford5k.pkl"
    for x, q, reason in (
        (ITEMS[1:], QUERIES, r"x\.mat: shape \(5, 4\); expected \(6, dimensions\) or the tr"),
        (ITEMS, QUERIES[1:], r"x\.mat: shape \(2, 4\); expected \(3, 4\) or the transpose"),
        (ITEMS, QUERIES[:, 1:], r"x\.mat: shape \(3, 3\); expected \(3, 4\) or the transpose"),
        (np.ones((N, N)), np.ones((M, N)), r"shape \(6, 6\); both ways round fit"),
        (ITEMS[:, :3], QUERIES[:, :3], r"shape \(3, 3\); both ways round fit"),
    ):
        scipy.io.savemat(published / "x.mat", {"X": x, "Q": q})
        with pytest.raises(ValueError, match=reason):
            revisited(published / "x.mat", truth)
    good = published / "roxford5k_gem.mat"
    with pytest.raises(ValueError, match=r"distractors: shape \(4, 4\); both ways round fit"):
        revisited(good, truth, distractors=np.ones((4, 4)))
    with pytest.raises(ValueError, match=r"distractors: shape \(5, 3\); expected \(items, 4\)"):
        revisited(good, truth, distractors=np.ones((5, 3)))


def test_revisited_benchmark_is_what_its_evaluation_takes(published):
    made = revisited(published / "roxford5k_gem.mat", published / "gnd_roxford5k.pkl")
    # Easy item first, then the hard one, then the rest, which holds the junk.
    ranking = np.array(
        [[i, i + 3, *(j for j in range(N) if j not in (i, i + 3))] for i in range(M)]
    )
    result = evaluation.revisited_protocol(ranking, made.ground_truth)
    assert result.easy.mean_average_precision == pytest.approx(1)
    assert result.hard.mean_average_precision == pytest.approx(1)
    result = evaluation.revisited_protocol(ranking[:, ::-1], made.ground_truth)
    assert result.medium.mean_average_precision < 1


# Orientation


def test_items_become_rows_by_the_sizes_that_are_known():
    array = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(by_rows(array, "x", items=2), array)
    np.testing.assert_array_equal(by_rows(array, "x", items=3), array.T)
    np.testing.assert_array_equal(by_rows(array, "x", dimensions=2), array.T)
    with pytest.raises(ValueError, match=r"x: shape \(2, 3\); expected \(4, dimensions\) or"):
        by_rows(array, "x", items=4)
    with pytest.raises(ValueError, match=r"expected \(2, 4\) or the transpose"):
        by_rows(array, "x", items=2, dimensions=4)
    with pytest.raises(ValueError, match=r"shape \(6,\)"):
        by_rows(array.ravel(), "x", items=6)


def test_square_array_is_ambiguous_unless_rows_are_agreed():
    array = np.arange(9).reshape(3, 3)
    with pytest.raises(ValueError, match="both ways round fit"):
        by_rows(array, "x", items=3)
    np.testing.assert_array_equal(by_rows(array, "x", items=3, square=True), array)
