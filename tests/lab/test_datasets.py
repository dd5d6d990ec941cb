"""The digits, held-out queries, warped pictures, benchmarks, and files of users, good and bad."""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
import zipfile

import numpy as np
import pytest
import scipy.io

from hybrid_gpu import evaluation
from hybrid_gpu.lab import datasets
from hybrid_gpu.lab.datasets import (
    Benchmark,
    Dataset,
    Split,
    augmented,
    benchmark_of,
    digits,
    load_array,
    load_folder,
    revisited,
    split_queries,
    warped,
    with_distractors,
)

CSV_SHA256 = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"


def test_digits_are_the_published_test_set():
    data = digits()
    assert data.descriptors.shape == (1797, 64)
    assert data.descriptors.dtype == np.float32
    assert (data.descriptors.min(), data.descriptors.max()) == (0, 16)
    # Images of each digit, from the data set's own documentation (optdigits.names, testing).
    assert np.bincount(data.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_kept_every_value_of_the_original():
    data = digits()
    table = np.column_stack([data.descriptors, data.labels]).astype(np.uint8)
    text = "\n".join(",".join(map(str, row)) for row in table.tolist()) + "\n"
    # Of the unpacked digits.csv.gz in scikit-learn's distribution.
    assert hashlib.sha256(text.encode()).hexdigest() == CSV_SHA256


def test_first_digit_looks_like_a_zero():
    image = digits().images[0]
    assert image.shape == (8, 8)
    assert digits().labels[0] == 0
    assert image[3:5, 3:5].max() == 0  # the hole
    assert image[3:5, 1:3].max() > 8  # its left stroke


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


def test_npy_file_is_mapped_and_not_read(tmp_path):
    array = np.arange(12.0).reshape(3, 4)
    np.save(tmp_path / "a.npy", array)
    loaded = load_array(tmp_path / "a.npy")
    assert isinstance(loaded, np.memmap)
    np.testing.assert_array_equal(loaded, array)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archive_of_one_array_needs_no_name(tmp_path, save):
    save(tmp_path / "a.npz", anything=np.arange(5))
    np.testing.assert_array_equal(load_array(tmp_path / "a.npz", name="ids"), np.arange(5))
    np.testing.assert_array_equal(load_array(tmp_path / "a.npz"), np.arange(5))


def test_named_array_is_taken_from_an_archive_of_several(tmp_path):
    np.savez(tmp_path / "a.npz", ids=np.arange(5), scores=np.ones(5))
    np.testing.assert_array_equal(load_array(tmp_path / "a.npz", name="scores"), np.ones(5))


def test_empty_array_is_loaded(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((0, 4)))
    assert load_array(tmp_path / "a.npy").shape == (0, 4)


def _no_file(path):
    pass


def _folder(path):
    path.mkdir()


def _text(path):
    path.write_text("1,2,3\n")


def _nothing(path):
    path.write_bytes(b"")


def _write(path, save, *arrays, **named):
    with open(path, "wb") as file:  # NumPy adds an ending to a bare name
        save(file, *arrays, **named)


def _half_npy(path):
    _write(path, np.save, np.arange(1000.0))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _npy_cut_in_its_header(path):
    _write(path, np.save, np.arange(1000.0))
    path.write_bytes(path.read_bytes()[:20])


def _half_archive(path):
    _write(path, np.savez, ids=np.arange(1000))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flipped_archive(path):
    _write(path, np.savez_compressed, ids=np.random.default_rng(5).integers(0, 99, 5000))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def _objects(path):
    _write(path, np.save, np.array([{"a": 1}, None], dtype=object))


def _archived_objects(path):
    _write(path, np.savez, ids=np.array([{"a": 1}, None], dtype=object))


def _several(path):
    _write(path, np.savez, a=np.arange(3), b=np.arange(3))


def _archive_of_text(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_no_file, "no such file"),
        (_folder, "a folder"),
        (_text, "not an array file"),
        (_nothing, "not an array file"),
        (_half_npy, "damaged or cut short"),
        (_npy_cut_in_its_header, "damaged or cut short"),
        (_half_archive, "damaged or cut short"),
        (_flipped_archive, "damaged or cut short"),
        (_objects, "Python objects"),
        (_archived_objects, "Python objects"),
        (_several, r"holds 2 arrays \(a, b\); expected exactly one"),
        (_archive_of_text, "is not an array"),
    ],
)
def test_bad_file_is_refused_by_name(tmp_path, make, reason):
    path = tmp_path / "given"
    make(path)
    with pytest.raises(ValueError, match=f"given: .*{reason}"):
        load_array(path)


def write_idx(path, array, *, compressed=False):
    sizes = np.array([0x800 + array.ndim, *array.shape], dtype=">u4").tobytes()
    content = sizes + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if compressed else content)


@pytest.fixture
def idx_folder(tmp_path):
    rng = np.random.default_rng(71)
    for part, count in (("train", 9), ("t10k", 4)):
        images = rng.integers(0, 256, (count, 3, 2))
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", images, compressed=True)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", rng.integers(0, 10, count))
    return tmp_path


def test_fashion_mnist_is_read_from_idx_files(idx_folder):
    split = datasets.fashion_mnist(idx_folder)
    images = np.random.default_rng(71).integers(0, 256, (9, 3, 2))
    assert (split.database.n, split.queries.n) == (9, 4)
    np.testing.assert_array_equal(split.database.images, images)
    assert split.database.descriptors.dtype == np.float32


def test_mnist_is_read_from_idx_files_with_either_spelling(idx_folder):
    first = datasets.mnist(idx_folder)
    assert repr(first) == "Split(MNIST, 9 items, 4 queries)"
    labels = idx_folder / "train-labels-idx1-ubyte"
    labels.rename(idx_folder / "train-labels.idx1-ubyte")
    second = datasets.mnist(idx_folder)
    np.testing.assert_array_equal(first.database.labels, second.database.labels)


def test_missing_mnist_is_told_without_a_package_that_does_not_exist(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Pass the folder of the four IDX files \(train-"):
        datasets.mnist(tmp_path)


def test_missing_idx_files_are_named_with_the_way_to_get_them(tmp_path):
    with pytest.raises(FileNotFoundError, match="dataset-fashion-mnist, or pass the folder"):
        datasets.fashion_mnist(tmp_path)


@pytest.mark.parametrize("fault", ["cut", "foreign", "gzip", "lengths"])
def test_damaged_idx_files_are_named(idx_folder, fault):
    labels = idx_folder / "t10k-labels-idx1-ubyte"
    if fault == "cut":
        labels.write_bytes(labels.read_bytes()[:-1])
    elif fault == "foreign":
        labels.write_bytes(b"hello")
    elif fault == "gzip":
        (idx_folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"\x1f\x8bnot a gzip")
    else:
        write_idx(labels, np.arange(3))
    with pytest.raises(ValueError, match="t10k"):
        datasets.fashion_mnist(idx_folder)


# Benchmarks


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
    with pytest.raises(ValueError, match="some query has the label -1"):
        with_distractors(taken, np.ones((1, 2)))
    huge = np.array([2**63, 1, 1, 1, 1], np.uint64)
    with pytest.raises(ValueError, match="fit into int64"):
        with_distractors(small_benchmark(labels=huge), np.ones((1, 2)))


# Warps


def still(count, **changes):
    """Parameters that leave pictures as they are."""
    values = {
        "rotations": np.zeros(count),
        "scales": np.ones(count),
        "shears": np.zeros(count),
        "shifts": np.zeros((count, 2)),
    }
    return values | {name: np.array(value, dtype=float) for name, value in changes.items()}


@pytest.fixture
def pictures():
    return np.random.default_rng(37).uniform(1, 255, (3, 7, 6)).astype(np.float32)


def test_warp_by_nothing_changes_nothing(pictures):
    result = warped(pictures, **still(3))
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, pictures)


def test_shift_by_whole_pixels_shifts_and_fills_with_zeros(pictures):
    result = warped(pictures, **still(3, shifts=[[2, 0], [0, -1], [-9, 90]]))
    np.testing.assert_array_equal(result[0, 2:], pictures[0, :-2])
    np.testing.assert_array_equal(result[1, :, :-1], pictures[1, :, 1:])
    assert not result[0, :2].any()
    assert not result[1, :, -1].any()
    assert not result[2].any()


def test_half_a_pixel_is_the_mean_of_two(pictures):
    result = warped(pictures, **still(3, shifts=[[0.5, 0]] * 3))
    np.testing.assert_allclose(result[:, 1:], (pictures[:, 1:] + pictures[:, :-1]) / 2, rtol=1e-6)
    # Beyond the border lie zeros.
    np.testing.assert_allclose(result[:, 0], pictures[:, 0] / 2, rtol=1e-6)


def test_quarter_turn_is_that_of_numpy():
    square = np.random.default_rng(37).uniform(1, 255, (2, 6, 6)).astype(np.float32)
    result = warped(square, **still(2, rotations=[np.pi / 2, -np.pi / 2]))
    np.testing.assert_allclose(result[0], np.rot90(square[0], -1), rtol=1e-4)
    np.testing.assert_allclose(result[1], np.rot90(square[1]), rtol=1e-4)


def test_shear_moves_rows_sideways_in_proportion_to_their_height(pictures):
    result = warped(pictures, **still(3, shears=[1, 1, 1]))
    for row in range(7):
        offset = row - 3  # from the middle of 7 rows
        moved = warped(pictures, **still(3, shifts=[[0, offset]] * 3))
        np.testing.assert_allclose(result[:, row], moved[:, row], rtol=1e-6)


def test_scaling_by_two_spreads_every_pixel():
    image = np.zeros((1, 9, 9), np.float32)
    image[0, 4, 4], image[0, 2, 6] = 10, 20
    result = warped(image, **still(1, scales=[2]))
    assert (result[0, 4, 4], result[0, 0, 8]) == (10, 20)
    assert result[0, 4, 5] == 5


def test_affine_picture_is_warped_as_its_formula_says():
    # Bilinear interpolation is exact for brightness a*y + b*x + c: any warp can be worked out.
    y, x = np.mgrid[:25, :31].astype(np.float64)
    image = (100 + 2 * y - x).astype(np.float32)
    angle, scale, shear, (down, right) = 0.2, 1.1, -0.1, (1.3, -0.7)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])  # (y, x)
    forward = scale * turn @ np.array([[1, 0], [shear, 1]])
    middle = np.array([12, 15])[:, None]
    source = np.linalg.inv(forward) @ (np.stack([y.ravel() - down, x.ravel() - right]) - middle)
    expected = (100 + 2 * (source[0] + 12) - (source[1] + 15)).reshape(image.shape)
    result = warped(
        image[None],
        rotations=np.array([angle]),
        scales=np.array([scale]),
        shears=np.array([shear]),
        shifts=np.array([[down, right]]),
    )[0]
    inside = slice(8, -8)
    np.testing.assert_allclose(result[inside, inside], expected[inside, inside], rtol=1e-5)


def test_warps_that_do_not_fit_the_pictures_are_refused(pictures):
    with pytest.raises(ValueError, match=r"scales must be \(3,\)"):
        warped(pictures, **still(3, scales=[1, 1]))
    with pytest.raises(ValueError, match=r"shifts must be \(3, 2\)"):
        warped(pictures, **still(3, shifts=[1, 1, 1]))
    with pytest.raises(ValueError, match=r"images must be \(c, height, width\)"):
        warped(pictures[0], **still(3))


@pytest.fixture(scope="module")
def few_digits():
    data = digits()
    return Dataset("few", data.descriptors[:300], data.labels[:300], (8, 8))


@pytest.mark.parametrize("dimensions", [None, 10])
def test_smaller_augmented_set_is_the_head_of_a_larger_one(few_digits, dimensions):
    large = augmented(few_digits, 1000, 7, dimensions=dimensions)
    for n in (300, 301, 557, 900):
        small = augmented(few_digits, n, 7, dimensions=dimensions)
        np.testing.assert_array_equal(small.descriptors, large.descriptors[:n])
        np.testing.assert_array_equal(small.labels, large.labels[:n])


def test_warps_do_not_depend_on_the_chunks(few_digits, monkeypatch):
    usual = augmented(few_digits, 700, 7, dimensions=None)
    monkeypatch.setattr(datasets, "_CHUNK", 41)
    np.testing.assert_array_equal(
        augmented(few_digits, 700, 7, dimensions=None).descriptors, usual.descriptors
    )


def test_augmented_items_are_the_pictures_and_then_each_picture_warped_in_turn():
    # Each picture has a brightness of its own, which no warp changes in the middle.
    brightness = np.arange(1, 301, dtype=np.float32)
    flat = np.repeat(brightness[:, None], 12 * 12, axis=1)
    made = augmented(Dataset("flat", flat, np.arange(300) % 7, (12, 12)), 900, 7, dimensions=None)
    assert made.name == "flat and warps"
    assert made.image_shape == (12, 12)
    assert made.descriptors.dtype == np.float32
    np.testing.assert_array_equal(made.descriptors[:300], flat)
    np.testing.assert_array_equal(made.images[:, 6, 6], np.tile(brightness, 3))
    np.testing.assert_array_equal(made.labels, np.tile(np.arange(300) % 7, 3))
    # Zeros came in from somewhere, with very few exceptions.
    assert np.mean(made.descriptors[300:].min(axis=1) < made.images[300:, 6, 6]) > 0.95


def test_every_pass_and_every_seed_warps_differently(few_digits):
    first = augmented(few_digits, 900, 7, dimensions=None).descriptors
    second = augmented(few_digits, 900, 8, dimensions=None).descriptors
    assert not np.any(np.all(first[300:600] == first[600:], axis=1))
    assert not np.any(np.all(first[300:] == second[300:], axis=1))
    np.testing.assert_array_equal(first[:300], second[:300])


def test_warps_are_small(monkeypatch, few_digits):
    seen = []

    def spy(images, **parameters):
        seen.append(parameters)
        return images

    monkeypatch.setattr(datasets, "warped", spy)
    augmented(few_digits, 1500, 7, dimensions=None)
    for name, low, high in (
        ("rotations", -np.pi / 12, np.pi / 12),
        ("scales", 0.9, 1.1),
        ("shears", -0.1, 0.1),
        ("shifts", -2, 2),
    ):
        values = np.concatenate([parameters[name] for parameters in seen])
        assert len(values) == 1200
        # 1,200 even draws come within 5 % of both ends, and do not pass them.
        assert low <= values.min() < low + 0.05 * (high - low)
        assert high - 0.05 * (high - low) < values.max() <= high


def test_projection_is_the_best_one_of_the_originals_without_centering(few_digits):
    made = augmented(few_digits, 700, 7, dimensions=10)
    assert made.descriptors.shape == (700, 10)
    assert made.descriptors.dtype == np.float32
    assert made.image_shape is None
    assert made.name == "few and warps"
    # Their Gram matrix is the best approximation of rank 10 to that of the pictures.
    left, values, _ = np.linalg.svd(few_digits.descriptors.astype(np.float64), full_matrices=False)
    best = (left[:, :10] * values[:10] ** 2) @ left[:, :10].T
    own = made.descriptors[:300].astype(np.float64)
    np.testing.assert_allclose(own @ own.T, best, atol=1e-4 * best.max())
    np.testing.assert_allclose(np.linalg.norm(own, axis=0), values[:10], rtol=1e-4)


def test_projection_to_all_dimensions_keeps_every_inner_product(few_digits):
    whole = augmented(few_digits, 400, 7, dimensions=64).descriptors.astype(np.float64)
    pixels = augmented(few_digits, 400, 7, dimensions=None).descriptors.astype(np.float64)
    gram = pixels @ pixels.T
    np.testing.assert_allclose(whole @ whole.T, gram, atol=1e-5 * gram.max())


def test_augmenting_tells_how_far_it_is(few_digits):
    calls = []
    augmented(few_digits, 700, 7, progress=lambda *call: calls.append(call))
    assert calls[-1] == ("warps", 700, 700)
    assert [done for _, done, _ in calls] == [256, 300, 556, 600, 700]


def test_what_cannot_be_augmented_is_refused(few_digits):
    with pytest.raises(ValueError, match="n must be at least 300"):
        augmented(few_digits, 299, 7)
    with pytest.raises(ValueError, match="dimensions must be at most 64"):
        augmented(few_digits, 300, 7, dimensions=65)
    for shape in (None, (4, 4, 4)):
        data = Dataset("words", few_digits.descriptors, few_digits.labels, shape)
        with pytest.raises(ValueError, match="words must hold gray pictures"):
            augmented(data, 400, 7)


# Folders and the revisited benchmarks

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
