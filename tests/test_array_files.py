"""MATLAB files, ground truths of all kinds, and pickles that mean harm."""

from __future__ import annotations

import contextlib
import copyreg
import json
import os
import pickle
import struct

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from hybrid_gpu.array_files import array_names, by_rows, load_array, load_ground_truth

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


def cells(names):
    column = np.empty((len(names), 1), dtype=object)
    column[:, 0] = names
    return column


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


# Arrays of .mat files


@pytest.mark.parametrize("compressed", [False, True])
def test_mat_file_of_one_matrix_needs_no_name(tmp_path, compressed):
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    others = {"note": "text", "names": cells(["x"]), "s": {"field": np.ones((2, 2))}}
    scipy.io.savemat(tmp_path / "a.mat", {"X": matrix, **others}, do_compression=compressed)
    for name in (None, "X", "unknown"):
        loaded = load_array(tmp_path / "a.mat", name=name)
        assert loaded.dtype == np.float32
        np.testing.assert_array_equal(loaded, matrix)


def test_named_matrix_is_taken_from_a_mat_file_of_several(tmp_path):
    scipy.io.savemat(tmp_path / "a.mat", {"X": np.ones((2, 3)), "Q": np.zeros((2, 1)), "s": "t"})
    assert load_array(tmp_path / "a.mat", name="Q").shape == (2, 1)
    assert array_names(tmp_path / "a.mat") == ("X", "Q")
    with pytest.raises(ValueError, match=r"2 numeric matrices \(X: 2x3 double, Q: 2x1 double, "):
        load_array(tmp_path / "a.mat")


def test_names_of_archives_and_of_plain_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.ones(2), Q=np.ones(3))
    np.save(tmp_path / "a.npy", np.ones(2))
    assert array_names(tmp_path / "a.npz") == ("X", "Q")
    assert array_names(tmp_path / "a.npy") == ()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"field": np.ones((2, 2))}, "struct"),
        (cells(["a", "b"]), "cell"),
        ("text", "char"),
        (np.array([[1 + 2j]]), "complex"),
        (scipy.sparse.csc_array(np.eye(3)), "sparse"),
    ],
)
def test_what_is_no_matrix_is_not_taken_for_one(tmp_path, value, kind):
    scipy.io.savemat(tmp_path / "a.mat", {"v": value})
    with pytest.raises(ValueError, match=rf"a\.mat: 'v' is {kind}"):
        load_array(tmp_path / "a.mat", name="v")
    if kind != "complex":  # which only shows when it is read
        with pytest.raises(ValueError, match=r"a\.mat: holds 0 numeric matrices"):
            load_array(tmp_path / "a.mat")


@pytest.mark.parametrize("start", [b"", b"MATLAB 7.3 MAT-file, Platform: GLNXA64", b"Octave"])
@pytest.mark.parametrize("load", [load_array, load_ground_truth])
def test_hdf5_is_refused_with_the_way_out(tmp_path, start, load):
    start = start.ljust(512) if start else b""
    (tmp_path / "a.mat").write_bytes(start + b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(ValueError, match=r"a\.mat: .*-v7, or, .*numpy\.save"):
        load(tmp_path / "a.mat")


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_mat_files_are_named_whatever_is_wrong(tmp_path, compressed):
    noise = np.random.default_rng(23).integers(0, 9, (30, 40))
    scipy.io.savemat(tmp_path / "whole.mat", {"X": noise}, do_compression=compressed)
    content = (tmp_path / "whole.mat").read_bytes()
    path = tmp_path / "given.mat"
    for length in (30, 128, 140, 180, len(content) // 2, len(content) - 5):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"given\.mat: "):
            load_array(path)
    for place in range(124, 200, 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        # One byte is not always missed; but nothing else than a ValueError ever comes out.
        with contextlib.suppress(ValueError):
            load_array(path)


@pytest.mark.parametrize("load", [load_array, load_ground_truth])
def test_web_page_in_place_of_a_download_is_recognized(tmp_path, load):
    (tmp_path / "gnd.pkl").write_bytes(b"\n<!DOCTYPE html><html>404 Not Found</html>")
    with pytest.raises(ValueError, match=r"gnd\.pkl: .*a web page, so the download went wrong"):
        load(tmp_path / "gnd.pkl")


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


# Ground truths


def small_arrays(ids):
    return np.array(ids, dtype=">i2")


def scalars(ids):
    return [np.int64(value) for value in ids]


def floats(ids):
    return np.array(ids, dtype=np.float64)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("convert", [list, tuple, np.array, small_arrays, scalars, floats])
def test_pickles_of_every_protocol_are_read(tmp_path, protocol, convert):
    (tmp_path / "gnd.pkl").write_bytes(pickle.dumps(as_dict(convert), protocol=protocol))
    assert_is_the_truth(load_ground_truth(tmp_path / "gnd.pkl"))


@pytest.mark.parametrize("protocol", [2, 5])
def test_array_stored_by_columns_is_read_by_rows(tmp_path, protocol):
    content = with_easy(np.asfortranarray([[0, 1], [2, 3]]))
    (tmp_path / "gnd.pkl").write_bytes(pickle.dumps(content, protocol=protocol))
    assert load_ground_truth(tmp_path / "gnd.pkl").queries[1]["easy"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("protocol", [2, 4])
def test_names_that_numpy_1_wrote_are_known(tmp_path, protocol):
    content = pickle.dumps(as_dict(np.array), protocol=protocol)
    if protocol == 2:  # names end with a line, and may change their length
        content = content.replace(b"numpy._core.multiarray\n", b"numpy.core.multiarray\n")
    else:
        old, new = b"numpy.core.multiarray", b"numpy._core.multiarray"
        content = content.replace(bytes([len(new)]) + new, bytes([len(old)]) + old)
        content = content[:2] + content[11:]  # without the frame, whose length has changed
    assert b"numpy.core" in content
    (tmp_path / "gnd.pkl").write_bytes(content)
    assert_is_the_truth(load_ground_truth(tmp_path / "gnd.pkl"))


def test_pickle_of_python_2_is_read(tmp_path):
    # Written by hand: text and the bytes of arrays are both 'strings' there.
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntU\x01btR"
        b"(I1\n(I%d\ntcnumpy\ndtype\n(U\x02i8I0\nI1\ntR(I3\nU\x01<NNNI-1\nI-1\nI0\ntbI00\nU%c%stb"
    )

    def ids(*values):
        data = struct.pack(f"<{len(values)}q", *values)
        return array % (len(values), len(data), data)

    names = b"(lU\x06caf\xe9_1aU\x01ba"
    entry = b"(dU\x04easy" + ids(1) + b"sU\x04hard" + ids(0, 1) + b"sU\x04junk" + ids() + b"s"
    content = b"\x80\x02(dU\x06imlist" + names + b"sU\x07qimlist(lU\x01qasU\x03gnd(l"
    (tmp_path / "gnd.pkl").write_bytes(content + entry + b"as.")
    loaded = load_ground_truth(tmp_path / "gnd.pkl")
    assert loaded.images == ("caf\xe9_1", "b")
    assert {name: value.tolist() for name, value in loaded.queries[0].items()} == {
        "easy": [1],
        "hard": [0, 1],
        "junk": [],
    }


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


def test_pickle_cut_anywhere_is_named(tmp_path):
    content = pickle.dumps(as_dict(np.array), protocol=2)
    for length in range(0, len(content), 17):
        (tmp_path / "gnd.pkl").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"gnd\.pkl: .*cut short"):
            load_ground_truth(tmp_path / "gnd.pkl")


def test_file_of_absurd_size_is_not_read(tmp_path):
    with open(tmp_path / "gnd.pkl", "wb") as file:
        file.write(b"\x80\x04")
        file.truncate(64 * 2**20 + 1)  # a hole: it takes no space
    with pytest.raises(ValueError, match=r"gnd\.pkl: 67108865 bytes; expected .* at most"):
        load_ground_truth(tmp_path / "gnd.pkl")


# Pickles that mean harm. Each would create the file 'ran' if any code of its choice were run.


class Reduced:
    """Pickles as a call."""

    def __init__(self, call, *arguments):
        self.parts = (call, arguments)

    def __reduce__(self):
        return self.parts


def _text(value):
    data = value.encode()
    return b"\x8c" + bytes([len(data)]) + data


def _by_name(module, name, *arguments):
    """A call by STACK_GLOBAL, which takes dotted names too."""
    values = b"".join(_text(argument) for argument in arguments)
    return b"\x80\x04" + _text(module) + _text(name) + b"\x93(" + values + b"tR."


HARMFUL = {
    "os.system": lambda ran: pickle.dumps(Reduced(os.system, f"touch {ran}")),
    "os.system, protocol 0": lambda ran: pickle.dumps(
        Reduced(os.system, f"touch {ran}"), protocol=0
    ),
    "inside the truth": lambda ran: pickle.dumps(
        as_dict() | {"extra": Reduced(os.system, f"touch {ran}")}
    ),
    "eval": lambda ran: pickle.dumps(Reduced(eval, f"open({str(ran)!r}, 'w')")),
    "open": lambda ran: pickle.dumps(Reduced(open, str(ran), "w")),
    "posix by name": lambda ran: _by_name("posix", "system", f"touch {ran}"),
    "a dotted name": lambda ran: _by_name("array_files", "os.system", f"touch {ran}"),
    "a dotted known name": lambda ran: _by_name("numpy", "dtype.__init__", f"touch {ran}"),
    "getattr chain": lambda ran: (
        b"\x80\x04" + _text("builtins") + _text("getattr") + b"\x93("
        + _text("posix") + _text("system") + b"tR(" + _text(f"touch {ran}") + b"tR."
    ),
    "INST": lambda ran: b"(S'touch %s'\nios\nsystem\n." % str(ran).encode(),
    "OBJ": lambda ran: b"(cos\nsystem\nS'touch %s'\no." % str(ran).encode(),
    "NEWOBJ": lambda ran: b"\x80\x02cpathlib\nPath\n(S'%s'\nt\x81." % str(ran).encode(),
    "codecs with code": lambda ran: _by_name("_codecs", "decode", str(ran), "unicode_escape"),
    "numpy.load": lambda ran: _by_name("numpy", "load", str(ran)),
    "numpy testing": lambda ran: _by_name(
        "numpy.testing._private.utils", "runstring", f"open({str(ran)!r}, 'w')"
    ),
    "our own module": lambda ran: _by_name("hybrid_gpu.array_files", "_CALLS", str(ran)),
    "object array": lambda ran: pickle.dumps(
        with_easy(np.array([Reduced(os.system, f"touch {ran}")], dtype=object))
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HARMFUL)
def test_harmful_pickle_is_refused_and_does_not_run(tmp_path, case):
    ran = tmp_path / "ran"
    (tmp_path / "gnd.pkl").write_bytes(HARMFUL[case](ran))
    with pytest.raises(ValueError, match=r"gnd\.pkl: refused, because it asks for '|not numeric"):
        load_ground_truth(tmp_path / "gnd.pkl")
    assert not ran.exists()


def test_harm_in_these_tests_is_real(tmp_path):
    # Otherwise the test above would prove nothing.
    pickle.loads(HARMFUL["os.system"](tmp_path / "ran"))
    assert (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink()
    pickle.loads(HARMFUL["INST"](tmp_path / "ran"))
    assert (tmp_path / "ran").exists()


def test_refused_name_is_told(tmp_path):
    (tmp_path / "gnd.pkl").write_bytes(_by_name("builtins", "getattr", "x"))
    with pytest.raises(ValueError, match=r"it asks for 'builtins\.getattr'\. Only plain values"):
        load_ground_truth(tmp_path / "gnd.pkl")


def test_stand_ins_cannot_be_changed_by_a_pickle(tmp_path):
    # BUILD sets attributes of whatever lies on the stack; here of the functions that we lend.
    for name in (b"c_codecs\nencode\n", b"cnumpy\ndtype\n", b"cnumpy\nndarray\n"):
        for state in (b"}S'_call'\nNs", b"(N}S'_call'\nNst"):
            (tmp_path / "gnd.pkl").write_bytes(b"\x80\x02" + name + state + b"b.")
            with pytest.raises(ValueError, match="it changes a function"):
                load_ground_truth(tmp_path / "gnd.pkl")
    test_pickles_of_every_protocol_are_read(tmp_path, 2, np.array)


def test_memo_with_a_huge_number_is_refused(tmp_path):
    # The unpickler would fill a table of twice as many entries: 64 GB for a file of 8 bytes.
    (tmp_path / "gnd.pkl").write_bytes(b"\x80\x02}r\xff\xff\xff\xff.")
    with pytest.raises(ValueError, match="memo is numbered out of order"):
        load_ground_truth(tmp_path / "gnd.pkl")


def test_lists_that_hold_each_other_many_times_cost_nothing(tmp_path):
    bomb = []
    for _ in range(200):
        bomb = [bomb] * 10  # 10 ** 200 entries, if anything unfolded it
    for content in (bomb, with_easy(bomb), as_dict() | {"imlist": bomb}, as_dict() | {"gnd": bomb}):
        (tmp_path / "gnd.pkl").write_bytes(pickle.dumps(content))
        with pytest.raises(ValueError, match=r"gnd\.pkl: "):
            load_ground_truth(tmp_path / "gnd.pkl")


def test_registered_extension_is_refused_even_if_python_has_it_at_hand(tmp_path):
    # Once used, an extension comes from a cache, without being looked up by name.
    call = b"\x82\xfa(S'touch %s'\ntR." % str(tmp_path / "ran").encode()
    copyreg.add_extension("posix", "system", 250)
    try:
        pickle.loads(call)
        (tmp_path / "ran").unlink()
        (tmp_path / "gnd.pkl").write_bytes(call)
        with pytest.raises(ValueError, match=r"gnd\.pkl: refused.* a registered extension"):
            load_ground_truth(tmp_path / "gnd.pkl")
    finally:
        copyreg.remove_extension("posix", "system", 250)
        copyreg.clear_extension_cache()
    assert not (tmp_path / "ran").exists()


def test_references_to_what_is_outside_the_file_are_refused(tmp_path):
    for content in (b"Pname\n.", b"Nq\x00Q.", b"\x80\x05\x97.", b"\x83\x01\x01."):
        (tmp_path / "gnd.pkl").write_bytes(content)
        with pytest.raises(ValueError, match=r"gnd\.pkl: "):
            load_ground_truth(tmp_path / "gnd.pkl")


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"shape": (2,)}, "bytes do not fill its shape"),
        ({"data": bytes(9)}, "bytes do not fill its shape"),
        ({"data": bytes(16)}, "bytes do not fill its shape"),
        ({"shape": (2**62, 2**62)}, "bytes do not fill its shape"),
        ({"shape": (-1,)}, "proper shape"),
        ({"shape": ("1",)}, "proper shape"),
        ({"shape": 1}, "proper shape"),
        ({"data": [1]}, "not numeric"),
        ({"dtype": "O8"}, "not numeric"),
        ({"dtype": "V8"}, "not numeric"),
        ({"dtype": "U2"}, "not numeric"),
        ({"dtype": ["i8"]}, "not numeric"),
        ({"fields": (None, ("a",), {"a": 1})}, "not numeric"),
        ({"fields": (("i8", (2,)), None, None)}, "not numeric"),
        ({"order": "?"}, "unknown byte order"),
    ],
)
def test_array_whose_parts_do_not_fit_is_refused(tmp_path, state, reason):
    given = {"dtype": "i8", "order": "<", "fields": (None,) * 3, "shape": (1,), "data": bytes(8)}
    given |= state

    class Dtype:
        def __reduce__(self):
            rest = (3, given["order"], *given["fields"], -1, -1, 0)
            return np.dtype, (given["dtype"], False, True), rest

    class Array:
        def __reduce__(self):
            blank, arguments, _ = np.zeros(1).__reduce__()
            return blank, arguments, (1, given["shape"], Dtype(), False, given["data"])

    (tmp_path / "gnd.pkl").write_bytes(pickle.dumps(with_easy(Array())))
    with pytest.raises(ValueError, match=rf"gnd\.pkl: refused.*{reason}"):
        load_ground_truth(tmp_path / "gnd.pkl")


def test_array_put_together_in_the_test_above_is_read_where_it_fits(tmp_path):
    with pytest.raises(pytest.fail.Exception):
        test_array_whose_parts_do_not_fit_is_refused(tmp_path, {}, "anything")
    loaded = load_ground_truth(tmp_path / "gnd.pkl")
    assert loaded.queries[1]["easy"].tolist() == [0]
