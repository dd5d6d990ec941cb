"""Keys through an index: every way in, every way out, and its files."""

import json

import numpy as np
import pytest
from conftest import clustered_vectors, two_cliques

import hybrid_gpu as hg
from hybrid_gpu.index import storage

N = 60
TEXT = ["", "ä", "日本", "🙂\0"] + [f"item {number}" for number in range(N - 4)]
INTEGERS = np.random.default_rng(91).permutation(N) * 10**15 + 5
UNSIGNED = np.array([*range(2**64 - 1 - N, 2**64 - 1)], dtype=np.uint64)
KINDS = {"text": TEXT, "integers": INTEGERS, "unsigned": UNSIGNED}


@pytest.fixture(params=KINDS)
def keys(request):
    return np.array(KINDS[request.param], dtype=object if request.param == "text" else None)


@pytest.fixture
def vectors(rng):
    return clustered_vectors(rng, n=N)


def build(vectors, keys, backend):
    return hg.build_index(vectors, neighbors=6, alpha=0.9, keys=keys, backend=backend)


@pytest.fixture
def pair(vectors, keys, backend):
    """The same index without keys and with them."""
    return build(vectors, None, backend), build(vectors, keys, backend)


def same(named, plain, keys):
    """The same results, one by keys."""
    np.testing.assert_array_equal(named.ids, plain.ids)
    # Another batch rounds in another way.
    np.testing.assert_allclose(named.scores, plain.scores, rtol=1e-5)
    assert named.keys.tolist() == np.asarray(keys)[plain.ids].tolist()


def test_results_have_their_keys_and_go_in_again(pair, vectors, keys):
    plain, named = pair
    queries = vectors[:3] + 0.1
    same(named.search(queries, k=9), plain.search(queries, k=9), keys)
    first = named.search(queries, k=9, method="nn")
    same(
        named.rerank(*first, k=7), plain.rerank(*plain.search(queries, k=9, method="nn"), k=7), keys
    )
    assert list(first[1]) == first.keys[1].tolist()
    assert plain.search(queries, k=9).keys.dtype == np.int64
    assert plain.keys is None
    assert named.keys.tolist() == keys.tolist()
    assert f"with {'strings' if keys.dtype == object else 'integers'} for keys" in repr(named)
    assert named.memory["keys"] > plain.memory["keys"] == 0


def test_items_are_asked_for_by_their_keys(pair, vectors, keys):
    plain, named = pair
    queries = vectors[:2]
    items = np.array([3, 59, 0])
    same(named.search_items(keys[items], k=5), plain.search_items(items, k=5), keys)
    same(named.search_items(keys[items].tolist(), k=5), plain.search_items(items, k=5), keys)
    named.warm_up()
    stored = [one.precompute(keep=9).search(queries, method="precomputed", k=5) for one in pair]
    same(stored[1], stored[0], keys)
    plan = hg.plan(named, queries=3, k=5, eigenvectors=())
    assert plan.best.agreement == hg.plan(plain, queries=3, k=5, eigenvectors=()).best.agreement


def test_nothing_found_goes_in_and_comes_out(keys, backend):
    affinity = two_cliques(N // 2)
    named = hg.build_index_from_graph(affinity, keys=keys, alpha=0.9, backend=backend)
    found = named.search_items(keys[:2], k=N)
    assert np.all(found.ids[:, N // 2 :] == -1)
    assert len(found[0]) == N // 2
    again = named.rerank(found.keys, np.maximum(found.scores, 0), k=4, query_neighbors=None)
    assert np.all(again.ids < N // 2)
    nothing = {"O": None, "i": -1, "u": 2**64 - 1}[keys.dtype.kind]
    assert found.keys[0, -1] == nothing


def test_lists_of_neighbors_are_given_by_keys(vectors, keys, backend):
    lists = hg.nearest_neighbors(vectors, k=6, backend="numpy")
    plain = hg.build_index_from_neighbors(lists.ids, lists.similarities, backend=backend)
    named = hg.build_index_from_neighbors(
        keys[lists.ids], lists.similarities, keys=keys, backend=backend
    )
    same(named.search_items(keys[:4], k=9), plain.search_items(np.arange(4), k=9), keys)
    with pytest.raises(ValueError, match=f"one for each of the {N - 1} items; got {N}"):
        hg.build_index_from_neighbors(
            keys[lists.ids][:-1], lists.similarities[:-1], keys=keys, backend=backend
        )


def test_files_keep_keys(pair, vectors, keys, tmp_path, backend):
    plain, named = pair
    named.save(tmp_path / "index")
    for verify in (True, False):
        again = hg.load_index(tmp_path / "index", verify=verify, backend=backend)
        assert again.keys.tolist() == keys.tolist()
        assert again.keys.dtype == named.keys.dtype
        same(again.search(vectors[:2], k=5), plain.search(vectors[:2], k=5), keys)
    assert named.to("numpy").keys.tolist() == keys.tolist()


def test_items_come_and_go_by_keys(pair, vectors, keys, rng):
    plain, named = pair
    more = clustered_vectors(rng, n=20)
    new = np.array([f"new {i}" for i in range(20)], object)
    if keys.dtype != object:
        new = np.arange(1000, 1020)
    grown, other = named.add(more, keys=new), plain.add(more)
    every = np.array([*keys.tolist(), *new.tolist()], object)
    assert grown.keys.tolist() == every.tolist()
    same(grown.search(vectors[:3], k=9), other.search(vectors[:3], k=9), every)
    gone = np.array([5, 60, 2])
    shrunk, fewer = grown.remove(every[gone]), other.remove(gone)
    left = np.delete(every, gone)
    assert shrunk.keys.tolist() == left.tolist()
    same(shrunk.search(vectors[:3], k=9), fewer.search(vectors[:3], k=9), left)


def test_new_items_have_keys_if_the_old_ones_do(vectors, backend):
    plain, named = build(vectors, None, backend), build(vectors, TEXT, backend)
    with pytest.raises(ValueError, match="pass keys= for the 2 new items too"):
        named.add(vectors[:2])
    with pytest.raises(ValueError, match="Leave keys out, or build the index with keys="):
        plain.add(vectors[:2], keys=["a", "b"])
    with pytest.raises(ValueError, match="one for each of the 2 items; got 1"):
        named.add(vectors[:2], keys=["a"])
    with pytest.raises(ValueError, match="'ä' came more than once"):
        named.add(vectors[:1], keys=["ä"])
    with pytest.raises(ValueError, match="has no 'nobody'"):
        named.remove(["nobody"])


def test_replicas_give_keys(pair, vectors, keys, backend):
    plain, named = pair
    together = hg.Replicas(named, [backend, backend])
    same(together.search(vectors, k=4, batch=7), plain.search(vectors, k=4), keys)
    same(together.search_items(keys[:5], k=4), plain.search_items(np.arange(5), k=4), keys)


def test_keys_cost_no_hours_before_they_are_refused(vectors, backend):
    def search(stage, done, total):
        raise AssertionError("the work began")

    with pytest.raises(ValueError, match="keys must be different"):
        hg.build_index(vectors, keys=["x"] * N, progress=search, backend=backend)


def put_section(folder, arrays=None, **facts):
    """Other arrays and facts of the keys, with every checksum as it should be."""
    header = json.loads((folder / "header.json").read_text())
    section = header["sections"]["keys"]
    section["parameters"].update(facts)
    for name, array in (arrays or {}).items():
        path = folder / section["arrays"][name]["file"]
        path.unlink()
        section["arrays"][name] = {"file": path.name, **storage.write_array(path, array)}
    header.pop("checksum")
    header["checksum"] = storage._header_checksum(header)
    (folder / "header.json").write_text(json.dumps(header))


def starts(*values):
    return {"starts": np.array(values, np.int64)}


BAD_TEXT = {
    "too few": starts(0, 1, 2, 3),
    "too many": starts(0, 1, 2, 3, 4, 4),
    "backwards": starts(0, 2, 1, 3, 4),
    "gigantic": starts(0, 1, 2, 3, 2**62),
    "negative": starts(0, -1, 2, 3, 4),
    "not all bytes": starts(0, 1, 2, 3, 3),
    "a late start": starts(1, 1, 2, 3, 4),
    "twice": {"bytes": np.frombuffer(b"abca", np.int8)},
    "no UTF-8": {"bytes": np.frombuffer(b"ab\xffd", np.int8)},
    "half a character": {"bytes": np.frombuffer("aäd".encode(), np.int8)},
    "a surrogate": {"bytes": np.frombuffer(b"\xed\xa0\x80a", np.int8), **starts(0, 3, 4, 4, 4)},
    "of another type": {"bytes": np.frombuffer(b"abcd", np.int8).astype(np.int16)},
    "starts of another type": {"starts": np.array([0, 1, 2, 3, 4], np.int32)},
    "two axes": {"bytes": np.frombuffer(b"abcd", np.int8).reshape(2, 2)},
}


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", BAD_TEXT)
def test_strings_that_cannot_be_keys_are_an_index_file_error(tmp_path, name, verify):
    folder = tmp_path / "index"
    hg.build_index_from_graph(two_cliques(2), keys=list("abcd")).save(folder)
    put_section(folder, BAD_TEXT[name])
    with pytest.raises(hg.IndexFileError, match="section_keys_"):
        hg.load_index(folder, verify=verify)


BAD_INTEGERS = {
    "too few": np.array([1, 2, 3]),
    "twice": np.array([1, 2, 3, 1]),
    "nothing found": np.array([1, 2, 3, -1]),
    "floats": np.array([1.0, 2.0, 3.0, 4.0]),
    "short": np.array([1, 2, 3, 4], np.int32),
    "two axes": np.array([[1, 2], [3, 4]]),
}


@pytest.mark.parametrize("kind", ["int64", "uint64"])
@pytest.mark.parametrize("name", BAD_INTEGERS)
def test_integers_that_cannot_be_keys_are_an_index_file_error(tmp_path, name, kind):
    folder = tmp_path / "index"
    hg.build_index_from_graph(two_cliques(2), keys=[4, 5, 6, 7]).save(folder)
    put_section(folder, {"numbers": BAD_INTEGERS[name]}, kind=kind)
    with pytest.raises(hg.IndexFileError, match="section_keys_numbers"):
        hg.load_index(folder)


@pytest.mark.parametrize("kind", ["text", "float64", 3, None, ["int64"]])
def test_keys_of_an_unknown_kind_are_an_index_file_error(tmp_path, kind):
    folder = tmp_path / "index"
    hg.build_index_from_graph(two_cliques(2), keys=[4, 5, 6, 7]).save(folder)
    put_section(folder, kind=kind)
    with pytest.raises(hg.IndexFileError, match="keys of no kind that is known"):
        hg.load_index(folder)


def test_keys_are_plain_files_and_no_reader_may_skip_them(tmp_path):
    folder = tmp_path / "index"
    hg.build_index_from_graph(two_cliques(2), keys=["", "é", "c", "d"]).save(folder)
    (path,) = folder.glob("section_keys_bytes.*.npy")
    assert np.load(path, allow_pickle=False).tobytes() == "écd".encode()
    header = json.loads((folder / "header.json").read_text())
    assert header["sections"]["keys"]["required"] is True


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_unsigned_keys_are_integers_whatever_their_width(dtype):
    items = [[5.0, 0], [5, 1], [0, 5], [1, 5]]
    keys = np.array([7, 9, 200, 201], dtype)
    index = hg.build_index(items, neighbors=1, keys=keys, backend="numpy")
    # Those of 64 bits stay as they are: they may be larger than any int64.
    assert index.search_items(keys[:1], k=2).keys.dtype == ("uint64" if dtype == "uint64" else int)
    for asked in (keys[2:3], [200], np.array([200])):
        assert index.search_items(asked, k=2).keys.tolist() == [[200, 201]]
