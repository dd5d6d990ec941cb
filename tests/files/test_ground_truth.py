"""Ground truths of revisited Oxford and Paris, of all kinds and with all faults."""

from __future__ import annotations

import json
import os
import pickle

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from hybrid_gpu.files.ground_truth import load_ground_truth


def cells(names):
    column = np.empty((len(names), 1), dtype=object)
    column[:, 0] = names
    return column


IMAGES = ("a", "b", "c", "d", "e")
TRUTH = [
    {"easy": [0, 3], "hard": [4], "junk": []},
    {"easy": [], "hard": [1], "junk": [2, 0]},
]


def as_dict(convert=list):
    """The ground truth above, as the published pickles hold it."""
    boxes = [{"bbx": [1.5, 2.0, 30.0, 40.0]} for _ in TRUTH]
    entries = [
        box | {name: convert(ids) for name, ids in entry.items()}
        for box, entry in zip(boxes, TRUTH, strict=True)
    ]
    return {"imlist": list(IMAGES), "qimlist": ["q", "r"], "gnd": entries}


def save_mat_truth(path, first=1, names=("easy", "hard", "junk")):
    """A struct array with ids from 1, as MATLAB counts."""
    gnd = np.zeros((1, len(TRUTH)), dtype=[(name, "O") for name in ("bbx", *names)])
    for place, entry in enumerate(TRUTH):
        gnd[0, place]["bbx"] = np.array([[1.5, 2.0, 30.0, 40.0]])
        for name, ids in zip(names, entry.values(), strict=True):
            gnd[0, place][name] = np.array([ids], dtype=float).reshape(1, -1) + first
    content = {"imlist": cells(IMAGES), "qimlist": cells(["q", "r"]), "gnd": gnd}
    scipy.io.savemat(path, content)


def assert_is_the_truth(loaded):
    assert loaded.images == IMAGES
    assert loaded.query_images == ("q", "r")
    assert len(loaded.queries) == len(TRUTH)
    for entry, expected in zip(loaded.queries, TRUTH, strict=True):
        assert set(entry) == {"easy", "hard", "junk"}
        for name, ids in entry.items():
            assert ids.dtype == np.int64
            assert ids.tolist() == expected[name]


def small_arrays(ids):
    return np.array(ids, dtype=">i2")


def scalars(ids):
    return [np.int64(value) for value in ids]


def floats(ids):
    return np.array(ids, dtype=np.float64)


@pytest.mark.parametrize("convert", [list, tuple, np.array, small_arrays, scalars, floats])
def test_pickles_of_all_kinds_of_numbers_are_read(tmp_path, convert):
    (tmp_path / "gnd.pkl").write_bytes(pickle.dumps(as_dict(convert)))
    assert_is_the_truth(load_ground_truth(tmp_path / "gnd.pkl"))


def test_table_of_ids_is_read_by_rows(tmp_path):
    content = with_easy(np.asfortranarray([[0, 1], [2, 3]]))
    (tmp_path / "gnd.pkl").write_bytes(pickle.dumps(content))
    assert load_ground_truth(tmp_path / "gnd.pkl").queries[1]["easy"].tolist() == [0, 1, 2, 3]


def test_ids_of_mat_files_start_at_one(tmp_path):
    save_mat_truth(tmp_path / "gnd_roxford5k.mat")
    assert_is_the_truth(load_ground_truth(tmp_path / "gnd_roxford5k.mat"))
    save_mat_truth(tmp_path / "gnd_zero.mat", first=0)
    with pytest.raises(ValueError, match=r"gnd_zero\.mat: easy of query 0: .*start at 1\); got"):
        load_ground_truth(tmp_path / "gnd_zero.mat")


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf", b"\n  "])
def test_json_is_read(tmp_path, mark):
    (tmp_path / "truth.json").write_bytes(mark + json.dumps(as_dict()).encode())
    loaded = load_ground_truth(tmp_path / "truth.json")
    assert_is_the_truth(loaded)
    assert repr(loaded) == "GroundTruth(5 images, 2 queries)"


def without(name):
    return {key: value for key, value in as_dict().items() if key != name}


def with_easy(values):
    content = as_dict()
    content["gnd"][1]["easy"] = values
    return content


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([1, 2], "holds a list; expected a dict"),
        ({}, "no list 'gnd' in it; expected imlist, qimlist and gnd, got nothing"),
        (without("imlist"), "no list 'imlist' in it; .* got gnd, qimlist"),
        (as_dict() | {"qimlist": ["q"]}, "'gnd' has 2 entries and 'qimlist' 1"),
        (as_dict() | {"imlist": [1, 2]}, "'imlist' must be a list of names"),
        (as_dict() | {"gnd": [{"easy": [0]}, None]}, "query 0 of 'gnd' has no hard, junk"),
        (as_dict() | {"gnd": [3, 4]}, "query 0 of 'gnd' has no easy, hard, junk"),
        (as_dict() | {"gnd": [{"ok": [0], "junk": []}] * 2}, "the original Oxford or Paris"),
        (as_dict() | {"qidx": [0, 1]}, "the original Oxford or Paris"),
        (with_easy([5]), r"easy of query 1: ids must lie in \[0, 4\], for 5 pictures; got"),
        (with_easy([-1]), r"ids must lie in \[0, 4\].* from -1 to -1"),
        (with_easy([1.5]), "whole numbers"),
        (with_easy([True]), "whole numbers"),
        (with_easy([float("nan")]), "whole numbers"),
        (with_easy([float("inf")]), "whole numbers"),
        (with_easy([10**5000]), "whole numbers"),
        (with_easy([[1, 2]]), "whole numbers"),
        (with_easy("12"), "whole numbers"),
        (with_easy(None), "whole numbers"),
    ],
)
def test_ground_truth_with_a_fault_is_refused_by_name(tmp_path, content, reason):
    (tmp_path / "gnd.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match=rf"gnd\.pkl: .*{reason}"):
        load_ground_truth(tmp_path / "gnd.pkl")


def test_original_ground_truth_in_mat_form_is_told_apart(tmp_path):
    save_mat_truth(tmp_path / "gnd.mat", names=("ok", "hard", "junk"))
    with pytest.raises(ValueError, match="the original Oxford or Paris"):
        load_ground_truth(tmp_path / "gnd.mat")
    scipy.io.savemat(tmp_path / "gnd.mat", {"X": np.ones((2, 2))})
    with pytest.raises(ValueError, match=r"gnd\.mat: no list 'gnd' in it"):
        load_ground_truth(tmp_path / "gnd.mat")


def test_other_files_are_no_ground_truth(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        load_ground_truth(tmp_path / "gnd.pkl")
    with pytest.raises(ValueError, match="a folder, not a ground truth"):
        load_ground_truth(tmp_path)
    for content in (b"", b"hello", b"{broken", b'{"a":' * 100_000, b"\x93NUMPY", b"\x80\x04"):
        (tmp_path / "gnd.pkl").write_bytes(content)
        with pytest.raises(ValueError, match=r"gnd\.pkl: "):
            load_ground_truth(tmp_path / "gnd.pkl")


class Harmful:
    """Pickles as a call of os.system."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_harmful_pickle_is_refused_by_name_and_does_not_run(tmp_path):
    content = as_dict() | {"extra": Harmful(f"touch {tmp_path / 'ran'}")}
    (tmp_path / "gnd.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match=r"gnd\.pkl: refused, because it asks for '"):
        load_ground_truth(tmp_path / "gnd.pkl")
    assert not (tmp_path / "ran").exists()


def test_pickle_cut_short_is_named(tmp_path):
    (tmp_path / "gnd.pkl").write_bytes(pickle.dumps(as_dict())[:-20])
    with pytest.raises(ValueError, match=r"gnd\.pkl: .*cut short.* Expected a ground truth"):
        load_ground_truth(tmp_path / "gnd.pkl")


def test_file_of_absurd_size_is_not_read(tmp_path):
    with open(tmp_path / "gnd.pkl", "wb") as file:
        file.write(b"\x80\x04")
        file.truncate(64 * 2**20 + 1)  # a hole: it takes no space
    with pytest.raises(ValueError, match=r"gnd\.pkl: 67108865 bytes; expected .* at most"):
        load_ground_truth(tmp_path / "gnd.pkl")


def test_lists_that_hold_each_other_many_times_cost_nothing(tmp_path):
    bomb = []
    for _ in range(200):
        bomb = [bomb] * 10  # 10 ** 200 entries, if anything unfolded it
    for content in (bomb, with_easy(bomb), as_dict() | {"imlist": bomb}, as_dict() | {"gnd": bomb}):
        (tmp_path / "gnd.pkl").write_bytes(pickle.dumps(content))
        with pytest.raises(ValueError, match=r"gnd\.pkl: "):
            load_ground_truth(tmp_path / "gnd.pkl")
