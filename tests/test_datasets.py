"""The digits, held-out queries, and array files of users, good and bad."""

from __future__ import annotations

import gzip
import hashlib
import zipfile

import numpy as np
import pytest

from hybrid_gpu import datasets
from hybrid_gpu.datasets import Dataset, digits, load_array, split_queries

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
