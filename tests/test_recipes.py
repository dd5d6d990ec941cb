"""The recipes of ``docs/recipes`` are run, each against the package that it is for."""

import re

import numpy as np
import pytest
from pages import ROOT, blocks_of, run

import hybrid_gpu as hg

RECIPES = ROOT / "docs" / "recipes"
TEXT = (RECIPES / "first-stages.md").read_text(encoding="utf-8")
# By section: what all share comes first.
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
SHARED = blocks_of(TEXT.split("\n## ")[0])
PACKAGES = {
    "FAISS": "faiss",
    "usearch": "usearch.index",
    "hnswlib": "hnswlib",
    "Qdrant": "qdrant_client",
    "LanceDB": "lancedb",
}


@pytest.fixture(autouse=True)
def on_numpy(monkeypatch):
    monkeypatch.setenv("HYBRID_GPU_BACKEND", "numpy")


def needs(*packages):
    for package in packages:
        # A package that is there, but lacks one of its own, is to be seen.
        pytest.importorskip(package, exc_type=ModuleNotFoundError)


def recipes_of(section):
    """The lines that make an engine, and those that take its results, by turns."""
    blocks = blocks_of(SECTIONS[section])
    return list(zip(blocks[::2], blocks[1::2], strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("section", "number"),
    [(section, n) for section in PACKAGES for n in range(len(recipes_of(section)))],
)
def test_a_recipe_gives_what_a_search_gives(section, number):
    needs(PACKAGES[section])
    names = run(SHARED, {})
    recipes = recipes_of(section)
    taken = recipes[number][1]
    run([*(made for made, _ in recipes[: number + 1]), taken], names)
    ranking, exact = names["ranking"], names["index"].search(names["queries"], k=10)
    assert isinstance(ranking, hg.Ranking)
    # The engines miss some items, and with them scores of a query; which ones is chance where they
    # build in threads. Distances that are read wrongly change every score.
    same = ranking.ids == exact.ids
    assert np.mean(same) > 0.9
    assert np.mean(np.isclose(ranking.scores[same], exact.scores[same], rtol=0.02)) > 0.8
    if "named.rerank" in taken[0]:
        np.testing.assert_array_equal(ranking.keys, names["keys"][ranking.ids])


def test_recipes_are_of_three_lines_at_most():
    recipes = [taken for section in PACKAGES for _, (taken, _) in recipes_of(section)]
    assert len(recipes) == 8
    for taken in recipes:
        assert len(taken.splitlines()) <= 3
        assert max(map(len, taken.splitlines())) <= 100
        assert taken.count(".rerank(") == 1


def test_other_lists_are_taken_as_the_page_says():
    run([*SHARED, *blocks_of(SECTIONS["Anything else"])], {})


def test_every_metric_of_the_page_is_what_its_engine_returns():
    """By the nearest vector of a query, whose cosine is known."""
    items = np.eye(4, dtype=np.float32)[:3]
    query = np.array([[0.8, 0.6, 0, 0]], dtype=np.float32)
    rows = re.findall(r"^\| (\w+) \| ([^|]+) \| [^|]+ \| `\"([^`]+)\"` \|$", TEXT, re.MULTILINE)
    told = {(engine, one): metric for engine, of, metric in rows for one in of.split(", ")}
    assert len(told) == 14
    tried = 0
    for (engine, name), metric in told.items():
        try:
            value = NEAREST[engine](items, query, name)
        except ModuleNotFoundError:
            continue
        tried += 1
        observation = hg.observe([[0]], [[value]], n=3, gamma=1.0, metric=metric)
        assert observation.weights[0, 0] == pytest.approx(0.8, abs=0.005), (engine, name)
    if not tried:
        pytest.skip("no engine is installed")


def nearest_of_faiss(items, query, name):
    import faiss

    kind = {"inner product": faiss.IndexFlatIP, "L2": faiss.IndexFlatL2}[name]
    engine = kind(items.shape[1])
    engine.add(items)
    return float(engine.search(query, 1)[0][0, 0])


def nearest_of_usearch(items, query, name):
    from usearch.index import Index

    engine = Index(ndim=items.shape[1], metric=name, dtype="f32")
    engine.add(np.arange(len(items)), items)
    return float(engine.search(query[0], 1).distances[0])


def nearest_of_hnswlib(items, query, name):
    import hnswlib

    engine = hnswlib.Index(space=name, dim=items.shape[1])
    engine.init_index(max_elements=len(items))
    engine.add_items(items)
    return float(engine.knn_query(query, 1)[1][0, 0])


def nearest_of_qdrant(items, query, name):
    from qdrant_client import QdrantClient, models

    client = QdrantClient(":memory:")
    size = items.shape[1]
    client.create_collection("x", models.VectorParams(size=size, distance=models.Distance(name)))
    client.upload_collection("x", vectors=items, ids=list(range(len(items))))
    score = client.query_points("x", query=query[0].tolist(), limit=1).points[0].score
    client.close()
    return score


def nearest_of_lancedb(items, query, name):
    import lancedb

    rows = [{"name": number, "vector": vector} for number, vector in enumerate(items)]
    table = lancedb.connect("memory://").create_table("x", rows)
    return table.search(query[0]).distance_type(name).limit(1).to_list()[0]["_distance"]


NEAREST = {
    "FAISS": nearest_of_faiss,
    "usearch": nearest_of_usearch,
    "hnswlib": nearest_of_hnswlib,
    "Qdrant": nearest_of_qdrant,
    "LanceDB": nearest_of_lancedb,
}


@pytest.mark.parametrize(
    ("page", "packages"),
    [("feedback", ()), ("torch", ("torch",)), ("scikit-learn", ("sklearn", "pandas"))],
)
def test_pages_print_what_they_say(page, packages):
    needs(*packages)
    blocks = blocks_of((RECIPES / f"{page}.md").read_text(encoding="utf-8"))
    assert len(blocks) >= 3
    run(blocks, {})
