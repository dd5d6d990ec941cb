"""Keys alone: what may be one, and the way from keys to ids and back."""

import pickle

import numpy as np
import pytest

import hybrid_gpu as hg
from hybrid_gpu.ranking.keys import as_keys

UNICODE = ["", "a", "a\0", "ä", "a\u0308", "日本", "🙂", " ", "\n"]


@pytest.mark.parametrize(
    "given",
    [
        UNICODE,
        tuple(UNICODE),
        np.array(UNICODE, dtype=object),
        [3, -5, 2**62, 0],
        np.array([7, 3, 5], dtype=np.int8),
        np.array([7, 3, 5], dtype=np.uint32),
        np.array([2**63, 1, 2**64 - 2], dtype=np.uint64),
        [2**63, 1],
        range(10, 20),
    ],
)
def test_keys_lead_to_ids_and_back(given):
    keys, ids = as_keys(given, len(given)), np.arange(len(given))
    np.testing.assert_array_equal(keys.ids_of(given, "ids"), ids)
    np.testing.assert_array_equal(keys.ids_of(given[::-1], "ids"), ids[::-1])
    assert keys.of(ids).tolist() == list(given)
    assert pickle.loads(pickle.dumps(keys)).of(ids).tolist() == list(given)


def test_keys_are_the_library_s_own():
    names = np.array([f"k{number}" for number in range(6)], dtype=object)
    index = hg.build_index(np.eye(6, dtype="float32"), neighbors=2, keys=names, backend="numpy")
    names[3] = "k0"
    assert list(index.keys) == [f"k{number}" for number in range(6)]


def test_arrays_of_numpys_strings_are_keys():
    for dtype in ("U3", np.dtypes.StringDType()):
        keys = as_keys(np.array(["ab", "c"], dtype=dtype), 2)
        assert keys.text
        assert keys.of(np.array([1, 0])).tolist() == ["c", "ab"]
        assert keys.ids_of(np.array([["c"], ["ab"]], dtype=dtype), "ids").tolist() == [[1], [0]]


def test_pandas_brings_keys():
    pandas = pytest.importorskip("pandas")
    for values in (["x", "y", "z"], [30, 10, 20]):
        for given in (pandas.Index(values), pandas.Series(values, index=[5, 6, 7])):
            assert as_keys(given, 3).ids_of(given[::-1], "ids").tolist() == [2, 1, 0]
    with pytest.raises(TypeError, match="got nan"):
        as_keys(pandas.Series(["x", None, "z"]), 3)


def test_nothing_found_is_no_key_and_has_none():
    ids = np.array([[1, -1], [-1, 0]])
    text, signed = as_keys(["p", "q"], 2), as_keys([4, 9], 2)
    unsigned = as_keys(np.array([4, 2**63], np.uint64), 2)
    assert text.of(ids).tolist() == [["q", None], [None, "p"]]
    assert signed.of(ids).tolist() == [[9, -1], [-1, 4]]
    assert unsigned.of(ids).tolist() == [[2**63, 2**64 - 1], [2**64 - 1, 4]]
    for keys in (text, signed, unsigned):
        np.testing.assert_array_equal(keys.ids_of(keys.of(ids), "ids", gaps=True), ids)
        with pytest.raises((TypeError, ValueError)):
            keys.ids_of(keys.of(ids), "ids")
        # Whatever engine it comes from: its own type says nothing.
        assert keys.ids_of([None, None], "ids", gaps=True).tolist() == [-1, -1]
        assert keys.ids_of(np.array([-1]), "ids", gaps=True).tolist() == [-1]
    assert signed.ids_of([[9, None]], "ids", gaps=True).tolist() == [[1, -1]]
    assert unsigned.ids_of(np.array([4, -1]), "ids", gaps=True).tolist() == [0, -1]
    with pytest.raises(ValueError, match="must not be -1"):
        as_keys([3, -1], 2)
    with pytest.raises(ValueError, match="must not be 18446744073709551615"):
        as_keys(np.array([3, 2**64 - 1], np.uint64), 2)


def test_integers_of_one_type_are_not_taken_for_others_of_the_same_bits():
    signed, unsigned = as_keys([-5, 3], 2), as_keys(np.array([2**64 - 5, 3], np.uint64), 2)
    assert signed.ids_of(np.array([3], np.uint64), "ids").tolist() == [1]
    assert unsigned.ids_of([3], "ids").tolist() == [1]
    with pytest.raises(ValueError, match="has no 18446744073709551611"):
        signed.ids_of(np.array([2**64 - 5], np.uint64), "ids")
    with pytest.raises(ValueError, match="has no -5"):
        unsigned.ids_of([-5], "ids")


def test_unknown_keys_are_named():
    keys = as_keys(["p", "q"], 2)
    with pytest.raises(ValueError, match=r"ids must be keys of the index, which has no 'x'\."):
        keys.ids_of(["p", "x", "x"], "ids")
    with pytest.raises(ValueError, match="has no 'u', 'v', 'w' and 2 more"):
        keys.ids_of(list("uvwxy"), "exclude")
    with pytest.raises(ValueError, match="has no 7"):
        as_keys([1, 2], 2).ids_of([7], "ids")
    with pytest.raises(TypeError, match=r"must be strings.*got 1\. .*index\.keys\[ids\]"):
        keys.ids_of([1], "ids")
    with pytest.raises(TypeError, match=r"must be integers.*got 'p'"):
        as_keys([1, 2], 2).ids_of(["p"], "ids")


@pytest.mark.parametrize(
    ("given", "fault", "message"),
    [
        (["a"], ValueError, "one for each of the 2 items; got 1"),
        ([["a", "b"]], ValueError, "must be 1-D"),
        (["a", "a"], ValueError, "'a' came more than once"),
        ([5, 5], ValueError, "5 came more than once"),
        ("ab", TypeError, "must be a sequence; got 'ab'"),
        (7, TypeError, "must be a sequence; got 7"),
        ({"a", "b"}, TypeError, "in the order of the items; got a set"),
        ({"a": 1, "b": 2}, TypeError, "in the order of the items; got a dict"),
        (["a", 1], TypeError, "all strings or all integers"),
        (["a", None], TypeError, "got None"),
        (["a", float("nan")], TypeError, "got nan"),
        ([True, False], TypeError, "got True"),
        (np.array([True, False]), TypeError, "dtype bool"),
        (np.array([1.0, 2.0]), TypeError, "dtype float64"),
        ([1.0, 2.0], TypeError, "got 1.0"),
        (np.array([b"a", b"b"]), TypeError, "Decode bytes with np.char.decode"),
        ([b"a", b"b"], TypeError, "got b'a'"),
        ([2**64, 1], ValueError, "integers of 64 bits; got values from 1 to 18446744073709551616"),
        ([-(2**63) - 1, 1], ValueError, "integers of 64 bits"),
        ([2**63, -2], ValueError, "integers of 64 bits"),
        (["a", "\ud800"], ValueError, "UTF-8"),
        (np.ma.masked_array([1, 2], [False, True]), TypeError, "masked array"),
    ],
)
def test_what_cannot_be_keys_is_refused(given, fault, message):
    with pytest.raises(fault, match=message):
        as_keys(given, 2)


def test_keys_do_not_follow_the_array_that_they_came_from():
    given = np.array([5, 6])
    keys = as_keys(given, 2)
    given[0] = 9
    assert keys.of(np.array([0])).tolist() == [5]
    keys.of(np.array([0]))[0] = 7
    assert keys.values.tolist() == [5, 6]


def test_more_keys_join_unless_they_are_there_already():
    keys = as_keys(["p", "q"], 2)
    assert keys.joined(as_keys(["r"], 1)).values.tolist() == ["p", "q", "r"]
    mixed = as_keys([-3, 4], 2).joined(as_keys(np.array([5], np.uint64), 1))
    assert mixed.values.tolist() == [-3, 4, 5]
    with pytest.raises(ValueError, match="'q' came more than once"):
        keys.joined(as_keys(["q"], 1))
    with pytest.raises(TypeError, match="must be strings, as those of the index are; got integers"):
        keys.joined(as_keys([1], 1))


def test_what_is_ignored_is_nothing_whatever_it_is():
    keys, ignored = as_keys(["a", "b"], 2), np.array([[False, True, True]])
    assert keys.ids_of([["b", "a", "no key"]], "ids", gaps=True, ignored=ignored).tolist() == [
        [1, -1, -1]
    ]
    with pytest.raises(ValueError, match="has no 'no key'"):
        keys.ids_of([["b", "a", "no key"]], "ids", gaps=True, ignored=~ignored)


def test_integers_on_both_sides_of_two_to_the_63_are_not_rounded():
    keys = [1, 2**63 + 5, 2**63 + 7]  # hashes of 64 bits; as floats, the last two are the same
    index = hg.build_index(np.eye(3, dtype="f") + 0.1, keys=keys, neighbors=1, backend="numpy")
    expected = index.rerank(np.array([keys[:2]], np.uint64), [[0.9, 0.8]], k=2)
    assert expected.keys.tolist() == [keys[:2]]
    for given in (
        ([{keys[0]: 0.9, keys[1]: 0.8}],),
        ([keys[:2], []], [[0.9, 0.8], []]),
        (keys[:2], [0.9, 0.8]),
        (keys[:2], np.array([0.9, 0.8])),
    ):
        np.testing.assert_array_equal(index.rerank(*given, k=2).keys[:1], expected.keys)
    pairs = [(1, keys[1]), (keys[1], keys[2])]
    graph = hg.build_index_from_graph(pairs, keys=keys, backend="numpy").graph
    assert graph.degrees.tolist() == [1, 2, 1]
    with pytest.raises(ValueError, match=r"got 1 to 9223372036854775815.*or keys= for names"):
        hg.build_index_from_graph(pairs, backend="numpy")
