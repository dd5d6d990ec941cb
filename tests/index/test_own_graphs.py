"""Indexes of the user's own graph: edge lists, and what does what networkx and igraph do."""

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import dense

import hybrid_gpu as hg
from hybrid_gpu.diffusion.block_eigensolver import operator_of, shifted
from hybrid_gpu.graph.edge_lists import added_up, edges_of_igraph

EDGES = [(0, 1), (1, 2), (2, 0), (1, 0), (3, 2)]
WEIGHTS = [1.0, 2.0, 0.5, 3.0, 0.0]
AFFINITY = np.array([[0, 4, 0.5, 0], [4, 0, 2, 0], [0.5, 2, 0, 0], [0, 0, 0, 0]])


class Networkx:
    """What is asked of a networkx graph, by a dict from edges to weights."""

    def __init__(self, nodes, edges, directed=False):
        self.nodes, self._edges, self._directed = nodes, edges, directed

    def is_directed(self):
        return self._directed

    def adjacency(self):
        raise AssertionError("a graph is known by its names alone")

    def edges(self, data=None, default=None):
        if data is None:
            return [pair for pair, _ in self._edges]
        return [(*pair, attributes.get(data, default)) for pair, attributes in self._edges]


class Igraph:
    """What is asked of an igraph graph."""

    class Attributes(dict):
        def attributes(self):
            return list(self)

    def __init__(self, n, edges, directed=False, names=None, **attributes):
        self._n, self._edges, self._directed = n, edges, directed
        self.es = self.Attributes(attributes)
        self.vs = self.Attributes({} if names is None else {"name": names})

    def is_directed(self):
        return self._directed

    def get_edgelist(self):
        return self._edges

    def vcount(self):
        return self._n


def attributed(edges, weights):
    return [(pair, {"weight": weight}) for pair, weight in zip(edges, weights, strict=True)]


def graphs():
    """The same graph in every form."""
    letters = ["d", "c", "b", "a"]
    lettered = [(letters[one], letters[other]) for one, other in EDGES]
    yield "matrix", sparse.csr_array(AFFINITY), {}
    yield "list", EDGES, {"weights": WEIGHTS, "n": 4}
    yield "array", np.array(EDGES, np.uint8), {"weights": np.array(WEIGHTS, "f4")}
    yield "names", lettered, {"weights": WEIGHTS, "keys": letters}
    yield "networkx", Networkx(range(4), attributed(EDGES, WEIGHTS)), {}
    yield "networkx, named", Networkx(letters, attributed(lettered, WEIGHTS)), {}
    yield "igraph", Igraph(4, EDGES, weight=WEIGHTS), {}
    yield "igraph, numbers", Igraph(4, EDGES), {"weights": WEIGHTS}
    yield "igraph, named", Igraph(4, EDGES, names=letters, cost=WEIGHTS), {"weights": "cost"}


@pytest.mark.parametrize("form", list(graphs()), ids=lambda form: form[0])
def test_every_form_gives_the_same_graph(backend, form):
    name, given, options = form
    index = hg.build_index_from_graph(given, **options, dtype="float64", backend=backend)
    degrees = AFFINITY.sum(axis=1)
    roots = np.sqrt(np.where(degrees > 0, degrees, 1))
    np.testing.assert_allclose(backend.to_numpy(index.graph.degrees), degrees)
    np.testing.assert_allclose(
        dense(backend, index.graph.adjacency), AFFINITY / np.outer(roots, roots)
    )
    named = "name" in name
    assert (index.keys is not None) == named
    if named:
        assert index.keys.tolist() == ["d", "c", "b", "a"]


TABLES = {
    "pandas": lambda library, columns: library.DataFrame(columns),
    "pandas, nullable": lambda library, columns: library.DataFrame(columns).convert_dtypes(),
    "polars": lambda library, columns: library.DataFrame(columns),
    "pyarrow": lambda library, columns: library.table(columns),
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_a_list_of_its_rows(backend, kind):
    library = pytest.importorskip(kind.split(",")[0])
    # Two rows and two columns: as columns, they would be other edges.
    for columns, options in (
        ({"from": [0, 2], "to": [1, 3]}, {}),
        ({"from": [70, 50], "to": [60, 40]}, {"keys": [70, 60, 50, 40]}),
    ):
        table = TABLES[kind](library, columns)
        index = hg.build_index_from_graph(table, **options, dtype="float64", backend=backend)
        joined = np.argwhere(dense(backend, index.graph.adjacency))
        assert joined.tolist() == [[0, 1], [1, 0], [2, 3], [3, 2]]


def test_a_lazy_table_of_edges_is_refused_with_what_to_write():
    polars = pytest.importorskip("polars")
    with pytest.raises(TypeError, match=r"table\.collect\(\)"):
        hg.build_index_from_graph(polars.LazyFrame({"a": [0], "b": [1]}))


def test_weights_are_left_out_on_request_and_where_there_are_none(backend):
    ones = Networkx(range(3), [((0, 1), {"weight": 5.0}), ((1, 2), {})])
    options = {"dtype": "float64", "backend": backend}
    plain = hg.build_index_from_graph(ones, weights=None, **options)
    mixed = hg.build_index_from_graph(ones, **options)
    assert backend.to_numpy(plain.graph.degrees).tolist() == [1, 2, 1]
    assert backend.to_numpy(mixed.graph.degrees).tolist() == [5, 6, 1]
    costs = Networkx(range(3), [((0, 1), {"cost": 5.0}), ((1, 2), {})])
    priced = hg.build_index_from_graph(costs, weights="cost", **options)
    assert backend.to_numpy(priced.graph.degrees).tolist() == [5, 6, 1]
    both = hg.build_index_from_graph(
        Igraph(3, [(0, 1), (1, 2)], weight=[5, 1]), weights=None, **options
    )
    assert backend.to_numpy(both.graph.degrees).tolist() == [1, 2, 1]


def test_self_loops_count_as_in_their_library(backend):
    loops = [(0, 0), (0, 1)]
    once = Networkx(range(2), attributed(loops, [3.0, 1.0]))
    for graph, degree in ((once, 4), (Igraph(2, loops, weight=[3.0, 1.0]), 7)):
        index = hg.build_index_from_graph(graph, dtype="float64", backend=backend)
        assert backend.to_numpy(index.graph.degrees).tolist() == [degree, 1]
        expected = [[(degree - 1) / degree, degree**-0.5], [degree**-0.5, 0]]
        np.testing.assert_allclose(dense(backend, index.graph.adjacency), expected)


@pytest.mark.parametrize("basis", ["aggregate", "eigen", "none"])
def test_every_basis_takes_self_loops(backend, rng, basis):
    n = 240
    edges = np.concatenate([rng.integers(0, n, (900, 2)), np.arange(0, n, 3)[:, None] * [[1, 1]]])
    index = hg.build_index_from_graph(
        Igraph(n, edges.tolist()), basis=basis, rank=20, alpha=0.9, dtype="float64", backend=backend
    )
    matrix = dense(backend, index.graph.adjacency)
    assert np.trace(matrix) > 1
    found = index.search_items([5], k=n, method="hybrid", accuracy=1e-11)
    exact = 0.1 * np.linalg.solve(np.eye(n) - 0.9 * matrix, np.eye(n)[5])
    reached = found.ids[0] >= 0
    np.testing.assert_allclose(found.scores[0][reached], exact[found.ids[0][reached]], atol=1e-9)
    if basis == "eigen":
        values = np.sort(np.linalg.eigvalsh(matrix))[::-1]
        np.testing.assert_allclose(
            np.sort(np.ravel(backend.to_numpy(index.basis.eigenvalues)))[::-1],
            values[:20],
            atol=1e-5,
        )


def test_a_shift_is_taken_once_where_there_is_a_self_loop(backend):
    graph = hg.build_index_from_graph(
        Igraph(3, [(0, 0), (0, 1), (1, 2)]), dtype="float64", backend=backend
    ).graph
    operator = operator_of(graph, np.arange(3), backend)
    expected = 2 * (dense(backend, graph.adjacency) - 0.25 * np.eye(3))
    found = dense(backend, shifted(operator, 2.0, 0.25, "float64", backend))
    np.testing.assert_allclose(found, expected)


def test_an_index_with_self_loops_is_saved_and_loaded(backend, tmp_path):
    index = hg.build_index_from_graph(Igraph(3, [(0, 0), (0, 1), (2, 2)]), backend=backend)
    index.save(tmp_path / "index")
    opened = hg.load_index(tmp_path / "index", backend=backend)
    for one in (index, opened):
        found = one.search_items([0, 2], k=3, normalization="random-walk")
        assert found.ids[0, 0] == 0
        assert found.scores[1, 0] == pytest.approx(1)
    np.testing.assert_array_equal(
        dense(backend, opened.graph.adjacency), dense(backend, index.graph.adjacency)
    )


def test_sums_of_repeated_edges_are_the_same_both_ways():
    edges = edges_of_igraph(Igraph(2, [(0, 1), (1, 0), (0, 1)]), [0.1, 0.2, 0.3])
    rows, columns, weights = added_up(edges)
    assert rows.tolist() == [0, 1]
    assert columns.tolist() == [1, 0]
    assert weights[0] == weights[1] == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("nodes", "keys"),
    [
        (["x", "y", "z"], ["x", "y", "z"]),
        ([7, 5, 9], [7, 5, 9]),
        ([0, 1, 2], None),  # they count the items: ids do that too
        ([("a", 1), ("b", 2), "c"], None),
        ([1.5, 2.5, 3.5], None),
        ([True, False, 2], None),
    ],
)
def test_nodes_that_can_be_keys_are(nodes, keys):
    graph = Networkx(nodes, [((nodes[0], nodes[1]), {})])
    index = hg.build_index_from_graph(graph)
    assert (None if index.keys is None else index.keys.tolist()) == keys
    assert backend_degrees(index) == [1, 1, 0]
    own = hg.build_index_from_graph(graph, keys=["p", "q", "r"])
    assert own.keys.tolist() == ["p", "q", "r"]


def backend_degrees(index):
    return index.backend.to_numpy(index.graph.degrees).tolist()


@pytest.mark.parametrize(
    ("given", "options", "fault", "words"),
    [
        (Networkx([0, 1], [], directed=True), {}, ValueError, r"directed.* G\.to_undirected\(\)"),
        (
            Igraph(2, [(0, 1)], directed=True),
            {},
            ValueError,
            r"igraph graph is directed.*g\.as_undirected\(mode='each'\)",
        ),
        (Igraph(2, [(0, 1)], weight=[-1.0]), {}, ValueError, "that of edge 0 is -1"),
        (Igraph(2, [(0, 1)]), {"weights": "cost"}, ValueError, "must name an attribute"),
        (Igraph(2, [(0, 1)]), {"weights": [1, 2]}, ValueError, "one for each of the 1 edges"),
        (Igraph(2, [(0, 1)], names=["a", "a"]), {}, ValueError, r"del g\.vs\['name'\]"),
        (Igraph(2, [(0, 1)]), {"n": 3}, ValueError, "the graph has 2 items, not 3"),
        (Igraph(0, []), {}, ValueError, "at least one item"),
        (Networkx([0, 1], attributed([(0, 1)], [np.nan])), {}, ValueError, "finite"),
        (Networkx([0, 1], attributed([(0, 1)], ["x"])), {}, TypeError, "weights must be numbers"),
        (Networkx([0, 1], []), {"weights": [1]}, TypeError, "the name of an edge attribute"),
        (
            Networkx([0, 1], attributed([(0, 1)], [2.0])),
            {"weights": "cost"},
            ValueError,
            "no edge has 'cost'.*weights=None",
        ),
        (Networkx([0, 1], attributed([(0, 1)], [2.0])), {"weights": ""}, ValueError, "has ''"),
        ([(0, 1)], {"weights": "cost"}, ValueError, r"no attribute 'cost'.*weights=\[...\]"),
        (sparse.csr_array(AFFINITY), {"weights": "cost"}, ValueError, "go with an edge list"),
        (np.ones((2, 5), int), {}, ValueError, r"got \(2, 5\)\. Edges in columns.*edges\.T\.$"),
        (np.ones((2, 3), int), {}, ValueError, r"Weights go apart.*edges\.T\.$"),
        (np.ones((2, 5)), {}, ValueError, r"got \(2, 5\)\.$"),
        ([(0, 1)], {"weights": [np.inf]}, ValueError, "finite and not negative"),
        ([(0, 1)], {"weights": [[1]]}, ValueError, "one for each of the 1 edges"),
        ([(0, 1)], {"weights": 3}, TypeError, "weights must be numbers"),
        ([(0, 1), (2, 2)], {}, ValueError, r"self-loops; got 1.*edges\[:, 0\] != edges\[:, 1\]"),
        ([(0, 5)], {"n": 3}, ValueError, "ids from 0 to 2; got 0 to 5"),
        ([(0, -1)], {}, ValueError, "got -1 to 0"),
        ([(0, 1, 2)], {}, ValueError, r"got \(1, 3\)\. Weights go apart"),
        ([(0, 1), (2,)], {}, ValueError, "rows of another length"),
        (np.eye(3), {}, ValueError, r"scipy\.sparse\.csr_array\(matrix\)"),
        ([("a", "b")], {}, TypeError, r"keys=np\.unique\(edges\)"),
        ([("a", "c")], {"keys": ["a", "b"]}, ValueError, "has no 'c'"),
        ([(0.0, 1.0)], {}, TypeError, "must hold integers"),
        ([], {}, ValueError, "does not tell how many items"),
        ({0: 1}, {}, TypeError, "a sparse matrix, a graph of networkx or igraph"),
        ("graph.txt", {}, TypeError, "or an edge list"),
        (None, {}, TypeError, "or an edge list"),
        (sparse.csr_array(AFFINITY), {"weights": [1.0]}, ValueError, "go with an edge list"),
        (sparse.csr_array(AFFINITY), {"n": 4}, ValueError, "go with an edge list"),
        (np.ma.array([[0, 1]], mask=[[0, 1]]), {}, TypeError, "masked"),
    ],
)
def test_what_is_no_undirected_graph_is_refused(given, options, fault, words):
    with pytest.raises(fault, match=words):
        hg.build_index_from_graph(given, **options)


def test_real_graphs_are_known(rng):
    networkx, igraph = pytest.importorskip("networkx"), pytest.importorskip("igraph")
    club = networkx.karate_club_graph()
    index = hg.build_index_from_graph(club)
    expected = networkx.to_numpy_array(club).sum(axis=1)
    np.testing.assert_allclose(backend_degrees(index), expected)
    other = igraph.Graph.from_networkx(club)
    np.testing.assert_allclose(backend_degrees(hg.build_index_from_graph(other)), expected)
    with pytest.raises(ValueError, match="directed"):
        hg.build_index_from_graph(networkx.DiGraph([(0, 1)]))
    directed = igraph.Graph([(0, 1), (1, 0)], directed=True)
    with pytest.raises(ValueError, match="directed"):
        hg.build_index_from_graph(directed)
    both = hg.build_index_from_graph(directed.as_undirected(mode="each"))
    assert backend_degrees(both) == [2, 2]
    named = igraph.Graph.TupleList([("a", "b", 2.0), ("b", "c", 1.0)], weights=True)
    assert hg.build_index_from_graph(named).keys.tolist() == ["a", "b", "c"]
