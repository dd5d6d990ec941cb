"""Pickles: plain data is read, whoever wrote it, and what means harm is refused."""

from __future__ import annotations

import copyreg
import os
import pickle
import struct

import numpy as np
import pytest

from hybrid_gpu.files.plain_pickle import PlainArray, read_plain_pickle

PLAIN = {
    "names": ["a", "caf\xe9", ""],
    "numbers": (1, -(2**70), 2.5, True, None),
    "nested": [{"x": [], "y": ()}, {3: {1, 2}}],
    "bytes": [b"", b"\x00\xff"],
}


def arrays_of(value):
    """The same with NumPy's arrays in place of those that stand for them."""
    if isinstance(value, PlainArray):
        return value.values
    return [arrays_of(entry) for entry in value] if isinstance(value, list) else value


# What is read


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_come_back_from_every_protocol(protocol):
    # Before protocol 4 a set is written as a call, which is refused like all others.
    content = PLAIN if protocol > 3 else PLAIN | {"nested": []}
    assert read_plain_pickle(pickle.dumps(content, protocol=protocol)) == content


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("dtype", ["?", "i1", ">i2", "<i4", "u8", "f2", ">f8"])
def test_arrays_and_scalars_come_back_from_every_protocol(protocol, dtype):
    values = np.arange(6).astype(dtype)
    given = [values, values.reshape(2, 3), np.asfortranarray(values.reshape(2, 3)), values[:0]]
    content = pickle.dumps([*given, values[5]], protocol=protocol)
    *arrays, scalar = arrays_of(read_plain_pickle(content))
    for array, expected in zip(arrays, given, strict=True):
        np.testing.assert_array_equal(array, expected, strict=True)
    assert scalar == values[5]
    assert type(scalar) in (bool, int, float)


@pytest.mark.parametrize("protocol", [2, 4])
def test_names_that_numpy_1_wrote_are_known(protocol):
    content = pickle.dumps([np.arange(3)], protocol=protocol)
    if protocol == 2:  # names end with a line, and may change their length
        content = content.replace(b"numpy._core.multiarray\n", b"numpy.core.multiarray\n")
    else:
        old, new = b"numpy.core.multiarray", b"numpy._core.multiarray"
        content = content.replace(bytes([len(new)]) + new, bytes([len(old)]) + old)
        content = content[:2] + content[11:]  # without the frame, whose length has changed
    assert b"numpy.core" in content
    (array,) = arrays_of(read_plain_pickle(content))
    assert array.tolist() == [0, 1, 2]


def test_pickle_of_python_2_is_read():
    # Written by hand: text and the bytes of arrays are both 'strings' there.
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntU\x01btR"
        b"(I1\n(I%d\ntcnumpy\ndtype\n(U\x02i8I0\nI1\ntR(I3\nU\x01<NNNI-1\nI-1\nI0\ntbI00\nU%c%stb"
    )

    def ids(*values):
        data = struct.pack(f"<{len(values)}q", *values)
        return array % (len(values), len(data), data)

    content = b"\x80\x02(lU\x06caf\xe9_1a" + ids(1, 2**40) + b"a" + ids() + b"a."
    name, array, empty = arrays_of(read_plain_pickle(content))
    assert name == "caf\xe9_1"
    assert array.tolist() == [1, 2**40]
    assert empty.shape == (0,)


@pytest.mark.parametrize("content", [b"", b"hello", b"{broken", b"\x93NUMPY", b"\x80\x04", b"."])
def test_what_is_no_pickle_is_told(content):
    with pytest.raises(ValueError, match="not a pickle, damaged, or cut short"):
        read_plain_pickle(content)


def test_pickle_cut_anywhere_is_told():
    content = pickle.dumps([PLAIN["names"], np.arange(9)], protocol=2)
    for length in range(len(content)):
        with pytest.raises(ValueError, match="cut short"):
            read_plain_pickle(content[:length])


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
    "inside plain data": lambda ran: pickle.dumps(
        PLAIN | {"extra": [Reduced(os.system, f"touch {ran}")]}
    ),
    "eval": lambda ran: pickle.dumps(Reduced(eval, f"open({str(ran)!r}, 'w')")),
    "open": lambda ran: pickle.dumps(Reduced(open, str(ran), "w")),
    "posix by name": lambda ran: _by_name("posix", "system", f"touch {ran}"),
    "a dotted name": lambda ran: _by_name(
        "hybrid_gpu.files.array_files", "os.system", f"touch {ran}"
    ),
    "a dotted known name": lambda ran: _by_name("numpy", "dtype.__init__", f"touch {ran}"),
    "getattr chain": lambda ran: (
        b"\x80\x04" + _text("builtins") + _text("getattr") + b"\x93("
        + _text("shutil") + _text("os") + b"\x93" + _text("system") + b"tR("
        + _text(f"touch {ran}") + b"tR."
    ),
    "INST": lambda ran: b"(S'touch %s'\nios\nsystem\n." % str(ran).encode(),
    "OBJ": lambda ran: b"(cos\nsystem\nS'touch %s'\no." % str(ran).encode(),
    "NEWOBJ": lambda ran: b"\x80\x02cpathlib\nPath\n(S'%s'\nt\x81." % str(ran).encode(),
    "codecs with code": lambda ran: _by_name("_codecs", "decode", str(ran), "unicode_escape"),
    "numpy.load": lambda ran: _by_name("numpy", "load", str(ran)),
    "numpy testing": lambda ran: _by_name(
        "numpy.testing._private.utils", "runstring", f"open({str(ran)!r}, 'w')"
    ),
    "our own module": lambda ran: _by_name("hybrid_gpu.files.plain_pickle", "_CALLS", str(ran)),
    "object array": lambda ran: pickle.dumps(
        np.array([Reduced(os.system, f"touch {ran}")], dtype=object)
    ),
}  # fmt: skip


# These do run under Python's own unpickler; the others only try something unusual.
REAL = [
    *("os.system", "os.system, protocol 0", "inside plain data", "eval", "open", "posix by name"),
    *("a dotted name", "getattr chain", "INST", "OBJ", "object array"),
]


@pytest.mark.parametrize("case", HARMFUL)
def test_harmful_pickle_is_refused_and_does_not_run(tmp_path, case):
    ran = tmp_path / "ran"
    with pytest.raises(ValueError, match=r"^refused, because it (asks for '|.* not numeric)"):
        read_plain_pickle(HARMFUL[case](ran))
    assert not ran.exists()


@pytest.mark.parametrize("case", REAL)
def test_harm_in_these_tests_is_real(tmp_path, case):
    # Otherwise the test above would prove nothing.
    done = pickle.loads(HARMFUL[case](tmp_path / "ran"))
    if case in ("eval", "open"):
        done.close()
    assert (tmp_path / "ran").exists()


def test_refused_name_is_told():
    with pytest.raises(ValueError, match=r"it asks for 'builtins\.getattr'\. Only plain values"):
        read_plain_pickle(_by_name("builtins", "getattr", "x"))


def test_stand_ins_cannot_be_changed_by_a_pickle():
    # BUILD sets attributes of whatever lies on the stack; here of the functions that we lend.
    for name in (b"c_codecs\nencode\n", b"cnumpy\ndtype\n", b"cnumpy\nndarray\n"):
        for state in (b"}S'_call'\nNs", b"(N}S'_call'\nNst"):
            with pytest.raises(ValueError, match="it changes a function"):
                read_plain_pickle(b"\x80\x02" + name + state + b"b.")
    (array,) = arrays_of(read_plain_pickle(pickle.dumps([np.arange(3)], protocol=2)))
    assert array.tolist() == [0, 1, 2]


def test_memo_with_a_huge_number_is_refused():
    # The unpickler would fill a table of twice as many entries: 64 GB for a file of 8 bytes.
    with pytest.raises(ValueError, match="memo is numbered out of order"):
        read_plain_pickle(b"\x80\x02}r\xff\xff\xff\xff.")


def test_registered_extension_is_refused_even_if_python_has_it_at_hand(tmp_path):
    # Once used, an extension comes from a cache, without being looked up by name.
    call = b"\x82\xfa(S'touch %s'\ntR." % str(tmp_path / "ran").encode()
    copyreg.add_extension("posix", "system", 250)
    try:
        pickle.loads(call)
        (tmp_path / "ran").unlink()
        with pytest.raises(ValueError, match=r"refused.* a registered extension"):
            read_plain_pickle(call)
    finally:
        copyreg.remove_extension("posix", "system", 250)
        copyreg.clear_extension_cache()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"Pname\n.", b"Nq\x00Q.", b"\x80\x05\x97.", b"\x83\x01\x01."])
def test_references_to_what_is_outside_the_file_are_refused(content):
    with pytest.raises(ValueError, match=r"refused|not a pickle"):
        read_plain_pickle(content)


def pickled_array(**parts):
    """An array of one number, put together from parts that need not fit."""
    given = {"dtype": "i8", "order": "<", "fields": (None,) * 3, "shape": (1,), "data": bytes(8)}
    given |= parts

    class Dtype:
        def __reduce__(self):
            rest = (3, given["order"], *given["fields"], -1, -1, 0)
            return np.dtype, (given["dtype"], False, True), rest

    class Array:
        def __reduce__(self):
            blank, arguments, _ = np.zeros(1).__reduce__()
            return blank, arguments, (1, given["shape"], Dtype(), False, given["data"])

    return pickle.dumps(Array())


@pytest.mark.parametrize(
    ("parts", "reason"),
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
def test_array_whose_parts_do_not_fit_is_refused(parts, reason):
    with pytest.raises(ValueError, match=f"refused.*{reason}"):
        read_plain_pickle(pickled_array(**parts))


def test_array_put_together_for_the_test_above_is_read_where_it_fits():
    assert read_plain_pickle(pickled_array()).values.tolist() == [0]
