"""What a page shows, against searches and explanations of the index itself."""

import json

import numpy as np
import pytest
from conftest import clustered_vectors, two_cliques
from hostile import HOSTILE, hostile_index, texts

import hybrid_gpu as hg
from hybrid_gpu.explore.answers import PageQuestion, answer, moved_up
from hybrid_gpu.explore.collection import LONGEST_LABEL, Collection, digits_collection
from hybrid_gpu.explore.live import LiveForm
from hybrid_gpu.explore.page_files import PAGE, as_json, as_script, media_type, page_file


@pytest.fixture
def index(rng, backend):
    return hg.build_index(clustered_vectors(rng, n=70), neighbors=5, alpha=0.9, backend=backend)


def test_rankings_are_those_of_the_index(index):
    found = answer(Collection(index), PageQuestion(item=5, k=10))
    for name, method in (("plain", "nn"), ("diffused", "auto")):
        ranking = index.search_items([5], k=10, method=method, exclude=[5])
        assert [row[0] for row in found[name]] == ranking.ids[0].tolist()
        np.testing.assert_allclose([row[1] for row in found[name]], ranking.scores[0], rtol=1e-3)


def test_ranks_do_not_count_the_query_itself(index):
    found = answer(Collection(index), PageQuestion(item=5, k=10))
    for place, (item, _) in enumerate(found["plain"], 1):
        assert found["why"][str(item)]["plainRank"] == place
    by_rank = [found["why"][str(item)]["rank"] for item, _ in found["diffused"]]
    assert sorted(by_rank) == list(range(1, 11))


def test_reasons_are_those_of_explain(index):
    vector = np.asarray(index.backend.to_numpy(index.descriptors))[8]
    for question, query in ((PageQuestion(item=8), 8), (PageQuestion(vector=vector), vector)):
        found = answer(Collection(index), question)
        for item, why in found["why"].items():
            one = hg.explain(index, query, int(item), paths=3)
            assert why["reached"] == one.reached
            assert [path["items"] for path in why["paths"]] == [list(p.ids) for p in one.paths]
            np.testing.assert_allclose(
                [hit[2] for hit in why["hits"]], [hit.share for hit in one.hits], atol=2e-3
            )


def test_the_drawing_has_the_edges_of_the_graph(index):
    found = answer(Collection(index), PageQuestion(item=5))
    drawing, graph = found["graph"], index.graph.adjacency
    ids = [node[0] for node in drawing["nodes"]]
    assert ids[0] == 5
    assert len(set(ids)) == len(ids)
    bounds, columns = (index.backend.to_numpy(part) for part in (graph.indptr, graph.indices))
    expected = {
        (item, int(other))
        for item in ids
        for other in columns[bounds[item] : bounds[item + 1]]
        if item < other and int(other) in ids
    }
    assert {tuple(sorted((ids[a], ids[b]))) for a, b, _ in drawing["edges"]} == expected
    # Every path of a drawn result can be seen.
    for item, _ in found["diffused"]:
        for path in found["why"][str(item)]["paths"][:1]:
            assert set(path["items"]) <= set(ids) or item not in ids


def test_everything_named_is_described(index):
    found = answer(Collection(index, texts=[f"t{i}" for i in range(70)]), PageQuestion(item=5))
    named = {item for name in ("plain", "diffused") for item, _ in found[name]}
    named |= {node[0] for node in found["graph"]["nodes"]}
    for why in found["why"].values():
        named |= {hit[0] for hit in why["hits"]} | {i for p in why["paths"] for i in p["items"]}
    assert named <= set(map(int, found["items"]))
    assert found["items"]["5"] == {"label": "#5", "text": "t5"}


def test_an_index_without_descriptors_has_no_plain_ranking():
    index = hg.build_index_from_graph(two_cliques(), alpha=0.9, backend="numpy")
    found = answer(Collection(index), PageQuestion(item=1))
    assert found["plain"] == []
    assert sorted(row[0] for row in found["diffused"]) == [0, 2, 3]
    assert not LiveForm(Collection(index)).start()["vectors"]


def test_filters_leave_what_they_allow(index):
    collection = Collection(index)
    found = answer(collection, PageQuestion(item=5, k=5, allowed=[1, 2, 3]))
    assert sorted(row[0] for row in found["diffused"]) == [1, 2, 3]
    vector = np.asarray(index.backend.to_numpy(index.descriptors))[8]
    for empty in (PageQuestion(item=5, allowed=[]), PageQuestion(vector=vector, allowed=[])):
        found = answer(collection, empty)
        assert found["plain"] == found["diffused"] == []
        assert found["why"] == {}


def test_lists_by_other_methods_are_told_from_diffusion(rng):
    vectors = clustered_vectors(rng, n=70)
    index = hg.build_index(vectors, neighbors=5, basis="eigen", rank=8, backend="numpy")
    for method, exact in (("auto", True), ("temporal", True), ("fsr", False), ("alpha-qe", False)):
        found = answer(Collection(index), PageQuestion(item=5, method=method))
        assert found["settings"]["exact"] == exact


def test_a_page_begins_where_most_moved_up():
    places = {"5": 1, "6": 7, "7": 2, "8": None, "9": 900}
    found = {
        "diffused": [[int(item), 0.5] for item in places],
        "why": {item: {"plainRank": place} for item, place in places.items()},
    }
    # Five places for the second, none for one that fell or had no place, 100 at most for the last.
    assert moved_up(found) == 5 + 100


def test_data_never_end_a_script_or_a_tag():
    index, _ = hostile_index()
    collection = Collection(index, texts=texts())
    for item in range(len(HOSTILE)):
        found = answer(collection, PageQuestion(item=item))
        script = as_script("answered", item, found).decode("ascii")
        assert not set("<>&") & set(script)
        body = script.removeprefix(f"explorer.answered({item}, ").removesuffix(");\n")
        assert json.loads(body) == found
        assert all(len(about["label"]) <= LONGEST_LABEL for about in found["items"].values())
    assert as_json({"</script>": "\u2028"}) == '{"\\u003c/script\\u003e":"\\u2028"}'


def test_words_find_items_by_key_and_text():
    index, _ = hostile_index()
    collection = Collection(index, texts=texts())
    assert collection.containing("KEY 42") == [42]
    assert collection.containing("text 59") == [59]
    assert collection.containing("constructor")[0] == HOSTILE.index("constructor")
    with pytest.raises(ValueError, match="one for each of the 60 items; got 2"):
        Collection(index, texts=["a", "b"])


def test_the_digits_come_with_pictures_and_their_attribution():
    collection = digits_collection()
    assert "CC BY 4.0" in collection.attribution
    assert "10.24432/C50P49" in collection.attribution
    assert collection.pictures.picture(1596).content.startswith(b"\x89PNG")
    assert collection.text(0) == "a 0"


def test_every_file_of_the_page_is_there():
    for name in PAGE:
        assert page_file(name)
        assert media_type(name).startswith(("text/", "image/"))
    html = page_file("index.html").decode()
    for name in PAGE[1:]:
        assert f'"{name}"' in html
    with pytest.raises(ValueError, match="no file"):
        page_file("../__init__.py")


def test_the_page_puts_no_data_into_markup():
    for name in PAGE:
        if name.endswith(".js"):
            source = page_file(name).decode()
            for forbidden in (
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
            ):
                assert forbidden not in source, name
            assert "http://" not in source.replace("http://www.w3.org/2000/svg", ""), name
            assert "https://" not in source, name


@pytest.fixture
def form():
    index, _ = hostile_index()
    return LiveForm(Collection(index, texts=texts(), encode=lambda words: np.ones(12) * len(words)))


def test_a_live_page_takes_items_vectors_and_words(form):
    assert form.answer({"item": 3, "k": 5})["query"]["item"] == 3
    assert form.answer({"vector": [1.0] * 12, "label": "mine"})["query"]["label"] == "mine"
    by_words = form.answer({"words": "hello", "alpha": 0.5})
    assert by_words["settings"]["alpha"] == 0.5
    assert by_words["query"] == {"item": None, "label": "hello"}
    found = form.answer({"item": 3, "contains": "text 4", "method": "temporal"})
    assert all("text 4" in found["items"][str(item)]["text"] for item, _ in found["diffused"])
    start = form.start()
    assert (start["n"], start["encodes"], start["vectors"]) == (60, True, True)
    assert "fsr" not in start["methods"]
    assert form.items("key 5")["count"] == 10
    assert form.picture(0) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "one of item, vector and words"),
        ({"item": 1, "vector": [1.0]}, "one of item, vector and words"),
        ({"item": 60}, "0 to 59"),
        ({"item": -1}, "0 to 59"),
        ({"item": True}, "0 to 59"),
        ({"item": "3"}, "0 to 59"),
        ({"vector": "abc"}, "list of numbers"),
        ({"vector": [[1.0]]}, "list of numbers"),
        ({"vector": [1.0]}, "12 dimensions"),
        ({"vector": [10**400] * 12}, "finite"),
        ({"vector": [1e400] * 12}, "finite"),
        ({"vector": []}, "vector|queries|dimensions"),
        ({"words": 3}, "a text of at most"),
        ({"words": "x" * 3000}, "a text of at most"),
        ({"item": 1, "k": 51}, "k must be"),
        ({"item": 1, "k": 0}, "k must be"),
        ({"item": 1, "alpha": 1.0}, "alpha"),
        ({"item": 1, "alpha": "0.5"}, "alpha"),
        ({"item": 1, "method": "fsr"}, "method must be one of"),
        ({"item": 1, "method": ["hybrid"]}, "method must be one of"),
        ({"item": 1, "contains": 5}, "contains must be"),
        ({"item": 1, "path": "/etc/passwd"}, "no field 'path'"),
    ],
)
def test_what_a_live_page_cannot_answer_is_refused(form, fields, message):
    with pytest.raises((ValueError, TypeError), match=message):
        form.answer(fields)
