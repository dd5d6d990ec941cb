"""Vectors that lean towards their neighbors: query expansion and database-side augmentation.

Both add to a vector its nearest items, each weighted by ``(similarity)_+ ** alpha``, and scale the
sum back to unit length. They are the baselines that diffusion has to beat: one round along the
neighbors, where diffusion takes all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_gpu.backends import Array, Backend, on_device, select_backend
from hybrid_gpu.choices import ArrayInput, BackendName, DtypeName
from hybrid_gpu.graph.neighbors import Neighbors, nearest_neighbors
from hybrid_gpu.graph.vectors import unit_rows, vectors_of
from hybrid_gpu.progress import ProgressOption
from hybrid_gpu.result_lists import check_neighbor_lists
from hybrid_gpu.validation import (
    check_count,
    check_dtype,
    check_kind,
    check_number,
    item_bytes,
)


@dataclass(frozen=True, slots=True)
class Expansion:
    """Which neighbors a query takes on, for ``method="alpha-qe"``.

    Attributes
    ----------
    neighbors : int
        The nearest items that are added to the query; n in the literature.
    alpha : float
        Exponent of their similarities: 0 weighs all of them alike (average query expansion), and
        the larger it is, the less the far ones count. Not the alpha of diffusion.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> index = hg.build_index([[5.0, 0], [5, 1], [0, 5], [1, 5]], neighbors=1, alpha=0.9)
    >>> few = hg.Expansion(neighbors=1)
    >>> index.search([[5.0, 2]], k=2, method="alpha-qe", expansion=few).ids.tolist()
    [[1, 0]]
    """

    neighbors: int = 10
    alpha: float = 3.0

    def __post_init__(self) -> None:
        check_count(self.neighbors, "neighbors")
        if check_number(self.alpha, "alpha") < 0:
            raise ValueError(f"alpha must not be negative; got {self.alpha}.")


@on_device(lambda descriptors: descriptors, stays=False)
def augment_database(
    descriptors: ArrayInput,
    *,
    expansion: Expansion | None = None,
    lists: Neighbors | None = None,
    knn: str = "auto",
    dtype: DtypeName = "float32",
    progress: ProgressOption = None,
    backend: BackendName | Backend = "auto",
) -> Array:
    """Database-side augmentation: every item plus its weighted neighbors, at unit length.

    Build an index on the result, and every method searches the augmented database.

    Parameters
    ----------
    descriptors : float array of shape (n, d)
    expansion
        Neighbors to add and the exponent of their similarities; ``Expansion()`` by default.
    lists : Neighbors, optional
        k-NN lists of the items that are there already, with at least ``expansion.neighbors``
        neighbors each; the first ones are used. Without them they are computed.
    knn
        How they are computed; see ``nearest_neighbors``.

    Returns
    -------
    float array of shape (n, d)
        On the backend's device.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> pair = hg.augment_database([[1.0, 0], [3, 4]], expansion=hg.Expansion(neighbors=1, alpha=0))
    >>> print(pair.round(3))
    [[0.894 0.447]
     [0.894 0.447]]
    """
    device = select_backend(backend, like=descriptors)
    dtype = check_dtype(dtype)
    wanted = Expansion() if expansion is None else expansion
    check_kind(wanted, "expansion", Expansion, "Pass Expansion(neighbors=10, alpha=3).")
    if lists is not None:
        check_kind(lists, "lists", Neighbors, "Make them with nearest_neighbors.")
    units = vectors_of(descriptors, "descriptors", dtype=dtype, backend=device).units()
    n = units.shape[0]
    count = check_count(wanted.neighbors, "expansion.neighbors", high=n - 1)
    if lists is None:
        lists = nearest_neighbors(
            units, k=count, knn=knn, dtype=dtype, progress=progress, backend=device
        )
    if lists.ids.shape[0] != n or lists.ids.shape[1] < count:
        raise ValueError(
            f"lists must hold {count} or more neighbors of each of the {n} items; got shape "
            f"{tuple(lists.ids.shape)}."
        )
    ids, similarities = check_neighbor_lists(
        lists.ids[:, :count], lists.similarities[:, :count], n, dtype=dtype, backend=device
    )
    tile = max(1, device.available_bytes() // (4 * count * units.shape[1] * item_bytes(units)))
    parts = [
        expanded(
            units[rows, :],
            units,
            Neighbors(ids[rows, :], similarities[rows, :]),
            wanted.alpha,
            device,
        )
        for rows in (slice(start, min(start + tile, n)) for start in range(0, n, tile))
    ]
    return device.xp.concat(parts)


def expanded(
    vectors: Array, items: Array, lists: Neighbors, alpha: float, backend: Backend
) -> Array:
    """Vectors (m, d) plus the weighted items of their lists (m, q), at unit length."""
    xp, ids, similarities = backend.xp, lists.ids, lists.similarities
    m, q = ids.shape
    nothing = xp.zeros_like(similarities)
    # 0 ** 0 is 1: what is not there, or points away, must weigh nothing for any exponent.
    positive = xp.clip(similarities, min=0)
    weights = xp.where((ids < 0) | (positive == 0), nothing, positive**alpha)
    rows = xp.reshape(xp.where(ids < 0, xp.zeros_like(ids), ids), (-1,))
    neighbors = xp.reshape(xp.take(items, rows, axis=0), (m, q, -1))
    return unit_rows(vectors + xp.sum(neighbors * weights[:, :, None], axis=1), backend)
