"""What an index is built from, and the choices that are made for the user."""

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import path

import hybrid_gpu as hg
from hybrid_gpu.building import default_groups


def clique(size):
    return sparse.csr_array(np.ones((size, size)) - np.eye(size))


@pytest.mark.parametrize(
    ("affinity", "groups"),
    [
        (path(4000), 126),  # the root of twice its 7,998 entries
        (path(80), 10),  # one group for eight items
        (clique(47), 5),
        (path(7), 1),
        (sparse.csr_array((100, 100)), 1),
    ],
)
def test_groups_are_as_many_as_keep_a_step_cheap(affinity, groups, backend):
    graph = hg.graph_from_affinity(affinity, backend=backend)
    assert default_groups(graph) == groups


@pytest.mark.parametrize("basis", ["auto", "aggregate"])
def test_index_has_the_default_number_of_groups(basis, backend):
    index = hg.build_index_from_graph(path(4000), basis=basis, backend=backend)
    assert index.basis.rank == 126
    assert hg.build_index_from_graph(path(4000), rank=9, backend=backend).basis.rank == 9
