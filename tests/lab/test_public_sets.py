"""The digits, MNIST and Fashion-MNIST: whole, and with faults."""

from __future__ import annotations

import gzip
import hashlib

import numpy as np
import pytest

from hybrid_gpu.lab.public_sets import digits, fashion_mnist, mnist

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
    split = fashion_mnist(idx_folder)
    images = np.random.default_rng(71).integers(0, 256, (9, 3, 2))
    assert (split.database.n, split.queries.n) == (9, 4)
    np.testing.assert_array_equal(split.database.images, images)
    assert split.database.descriptors.dtype == np.float32


def test_mnist_is_read_from_idx_files_with_either_spelling(idx_folder):
    first = mnist(idx_folder)
    assert repr(first) == "Split(MNIST, 9 items, 4 queries)"
    labels = idx_folder / "train-labels-idx1-ubyte"
    labels.rename(idx_folder / "train-labels.idx1-ubyte")
    second = mnist(idx_folder)
    np.testing.assert_array_equal(first.database.labels, second.database.labels)


def test_missing_mnist_is_told_without_a_package_that_does_not_exist(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Pass the folder of the four IDX files \(train-"):
        mnist(tmp_path)


def test_missing_idx_files_are_named_with_the_way_to_get_them(tmp_path):
    with pytest.raises(FileNotFoundError, match="dataset-fashion-mnist, or pass the folder"):
        fashion_mnist(tmp_path)


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
        fashion_mnist(idx_folder)
