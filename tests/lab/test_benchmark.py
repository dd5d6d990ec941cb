"""Data sets, held-out queries, benchmarks and distractors."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid_gpu.lab.benchmark import (
    Benchmark,
    Dataset,
    Split,
    benchmark_of,
    split_queries,
    with_distractors,
)
from hybrid_gpu.lab.public_sets import digits


def test_descriptors_that_are_no_pictures_say_so():
    data = Dataset("words", np.ones((3, 5), np.float32), np.arange(3))
    with pytest.raises(ValueError, match="words are not pictures"):
        _ = data.images


def test_split_holds_every_item_once_with_its_own_label():
    # Each item's descriptor names the item, and its label follows from the name.
    names = np.arange(50, dtype=np.float32)
    data = Dataset("numbers", names[:, None], (names.astype(int) * 7) % 5)
    split = split_queries(data, 12, seed=9)
    assert (split.queries.n, split.database.n) == (12, 38)
    both = np.concatenate([split.queries.descriptors, split.database.descriptors])[:, 0]
    assert sorted(both) == names.tolist()
    for part in (split.queries, split.database):
        np.testing.assert_array_equal(part.labels, (part.descriptors[:, 0].astype(int) * 7) % 5)
        assert np.all(np.diff(part.descriptors[:, 0]) > 0)


def test_split_depends_on_the_seed_and_on_nothing_else():
    chosen = [split_queries(digits(), 30, seed=seed).queries.descriptors for seed in (9, 9, 11)]
    np.testing.assert_array_equal(chosen[0], chosen[1])
    assert not np.array_equal(chosen[0], chosen[2])


@pytest.mark.parametrize("count", [0, -3, 1797])
def test_split_leaves_queries_and_database(count):
    with pytest.raises(ValueError, match="count must be at"):
        split_queries(digits(), count, seed=9)


def test_records_have_one_line_reprs():
    split = split_queries(digits(), 97, seed=9)
    assert repr(split) == "Split(digits, 1700 items, 97 queries)"
    assert repr(split.queries) == "Dataset(digits, 97 items, 64 dimensions, 10 classes)"


def numbers(count, start=0):
    """Items whose descriptor names them, and whose class follows from the name."""
    names = np.arange(start, start + count, dtype=np.float32)
    return Dataset("numbers", np.stack([names, -names], axis=1), names.astype(int) % 3, (1, 2))


def small_benchmark(**changes):
    values = {
        "name": "small",
        "descriptors": np.arange(10, dtype=np.float32).reshape(5, 2),
        "queries": np.ones((2, 2), np.float32),
        "labels": np.array([0, 1, 2, 0, 1]),
        "query_labels": np.array([1, 2]),
    }
    return Benchmark(**(values | changes))


def ids(*values):
    return np.array(values, dtype=np.int64)


def small_truth(last=4):
    return {
        "labels": None,
        "query_labels": None,
        "ground_truth": (
            {"easy": ids(0), "hard": ids(1, last), "junk": ids()},
            {"easy": ids(), "hard": ids(2), "junk": ids(0)},
        ),
    }


def test_benchmark_takes_its_queries_from_the_query_part_and_searches_in_all_others():
    split = Split(numbers(20), numbers(10, start=20))
    made = benchmark_of(split, queries=4, seed=9)
    assert (made.n, made.m) == (26, 4)
    assert made.queries[:, 0].min() >= 20
    both = np.concatenate([made.descriptors, made.queries])[:, 0]
    assert sorted(both) == list(range(30))
    np.testing.assert_array_equal(made.descriptors[:20], split.database.descriptors)
    np.testing.assert_array_equal(made.labels, made.descriptors[:, 0] % 3)
    np.testing.assert_array_equal(made.query_labels, made.queries[:, 0] % 3)
    assert np.all(np.diff(made.queries[:, 0]) > 0)
    np.testing.assert_array_equal(made.images[:, 0, 1], -made.descriptors[:, 0])
    assert made.query_images.shape == (4, 1, 2)


def test_benchmark_depends_on_the_seed_and_may_take_every_query():
    split = Split(numbers(20), numbers(10, start=20))
    chosen = [benchmark_of(split, queries=4, seed=seed).queries for seed in (9, 9, 11)]
    np.testing.assert_array_equal(chosen[0], chosen[1])
    assert not np.array_equal(chosen[0], chosen[2])
    assert benchmark_of(split, queries=10, seed=9).n == 20
    for queries in (0, 11):
        with pytest.raises(ValueError, match="queries must be at"):
            benchmark_of(split, queries=queries, seed=9)


def test_benchmarks_have_one_line_reprs():
    made = small_benchmark()
    assert repr(made) == "Benchmark(small, 5 items, 2 queries, 2 dimensions, 3 classes)"
    more = with_distractors(made, np.ones((3, 2)))
    expected = "Benchmark(small, 8 items (3 distractors), 2 queries, 2 dimensions, 3 classes)"
    assert repr(more) == expected
    assert repr(small_benchmark(**small_truth())).endswith("2 dimensions, ground truth)")


def test_benchmark_that_is_no_pictures_says_so():
    with pytest.raises(ValueError, match="small are not pictures"):
        _ = small_benchmark().query_images


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"queries": np.ones((2, 3), np.float32)}, r"same dimensions; got shapes \(5, 2\) and"),
        ({"queries": np.ones((2, 2))}, "queries must be a non-empty float32 array"),
        ({"descriptors": np.ones(5, np.float32)}, "descriptors must be a non-empty float32"),
        ({"labels": np.arange(4)}, r"labels must be \(5,\) and query_labels \(2,\)"),
        ({"query_labels": np.arange(3)}, r"got \(5,\) and \(3,\)"),
        ({"query_labels": None}, "either labels and query_labels, or ground_truth"),
        ({"labels": None}, "either labels and query_labels, or ground_truth"),
        ({"labels": None, "query_labels": None}, "either labels"),
        ({"ground_truth": small_truth()["ground_truth"]}, "either labels"),
        ({"query_labels": np.array(["1", "2"])}, "both be numbers or both be text"),
        ({"image_shape": (3, 1)}, "does not hold 2 dimensions"),
        ({"distractors": 5}, "distractors must be at most 4"),
        ({"distractors": 1}, "distractors, but some of them have the label of a query"),
        (small_truth() | {"ground_truth": small_truth()["ground_truth"][:1]}, "one entry for each"),
        (small_truth(last=5), r"\[0\]\['hard'\] must hold ids in \[0, 4\].* from 1 to 5"),
        (small_truth(last=-1), r"ids in \[0, 4\].* from -1 to 1"),
        (small_truth() | {"distractors": 1}, r"ids in \[0, 3\], distractors left out"),
        (small_truth() | {"ground_truth": ({"easy": ids()},) * 2}, r"\['hard'\] must be an int64"),
    ],
)
def test_benchmark_that_does_not_fit_together_is_refused(changes, reason):
    with pytest.raises(ValueError, match=reason):
        small_benchmark(**changes)


def test_distractors_lie_behind_the_items_and_are_right_for_no_query():
    made = small_benchmark()
    added = np.full((3, 2), 7, dtype=np.float16)
    more = with_distractors(with_distractors(made, added), added[:1])
    assert (more.n, more.m, more.distractors) == (9, 2, 4)
    assert more.descriptors.dtype == np.float32
    np.testing.assert_array_equal(more.descriptors[:5], made.descriptors)
    np.testing.assert_array_equal(more.descriptors[5:], np.full((4, 2), 7))
    assert more.labels.tolist() == [0, 1, 2, 0, 1, -1, -1, -1, -1]
    assert made.n == 5


def test_distractors_leave_a_ground_truth_as_it_is():
    made = small_benchmark(**small_truth())
    more = with_distractors(made, np.ones((3, 2)))
    assert more.ground_truth is made.ground_truth
    assert (more.n, more.distractors, more.labels) == (8, 3, None)


@pytest.mark.parametrize(
    ("labels", "query_labels", "expected"),
    [
        (np.array([0, 255], np.uint8), np.array([255], np.uint8), [0, 255, -1]),
        (np.array([0, 5], np.uint64), np.array([5], np.uint64), [0, 5, -1]),
        (np.array([True, False]), np.array([True]), [1, 0, -1]),
        (np.array([0.0, 5.0]), np.array([5.0]), [0, 5, -1]),
        (np.array([-1, 5], np.int8), np.array([5]), [-1, 5, -1]),
        (np.array(["cat", "dog"]), np.array(["dog"]), ["cat", "dog", ""]),
        (np.array([b"cat", b"dog"]), np.array([b"dog"]), [b"cat", b"dog", b""]),
    ],
)
def test_distractors_get_a_label_that_no_query_has(labels, query_labels, expected):
    rows = np.ones((2, 3), np.float32)
    made = Benchmark("small", rows, rows[:1], labels, query_labels)
    more = with_distractors(made, rows[:1])
    assert more.labels.tolist() == expected
    right = (labels == query_labels[0]).tolist()
    assert (more.labels == query_labels[0]).tolist() == [*right, False]


def test_distractors_that_do_not_fit_are_refused():
    for added in (np.ones((3, 3)), np.ones(2), np.array([["a", "b"]])):
        with pytest.raises(ValueError, match=r"numbers of shape \(k, 2\), like the descriptors of"):
            with_distractors(small_benchmark(), added)
    taken = small_benchmark(query_labels=np.array([-1, 2]))
    with pytest.raises(ValueError, match="a query has the label -1"):
        with_distractors(taken, np.ones((1, 2)))
    huge = np.array([2**63, 1, 1, 1, 1], np.uint64)
    with pytest.raises(ValueError, match="fit into int64"):
        with_distractors(small_benchmark(labels=huge), np.ones((1, 2)))
