"""Mutants of the core that no test can tell from the original, and why.

``"function: text -> text"``, the text being that of the lines that differ: an entry holds wherever
the function moves to. ``python tools/mutate_core.py --all`` finds entries that hold no longer.
"""

SPEED = "speed only: the same sums, on other threads or in other pieces"

EQUIVALENT: dict[str, str] = {
    # affinity
    "Graph.n: return self.adjacency.shape[0] -> return self.adjacency.shape[1]": (
        "the matrix is square"
    ),
    'graph_from_affinity: if not name.startswith(("float", "int", "uint", "bool")) or name =='
    ' "float16": -> if (not name.startswith(("float", "int", "uint", "bool"))):': (
        "SciPy has no sparse matrix of float16"
    ),
    "graph_from_affinity: if not same_pattern or not bool(xp.all(xp.abs(there - back) <= 1e-5"
    " * xp.maximum(there, back))): -> if not same_pattern or not bool(xp.all((there - back) "
    "<= 1e-5 * xp.maximum(there, back))):": (
        "each pair is compared both ways, to a slack that is a choice"
    ),
    "graph_from_affinity: if not same_pattern or not bool(xp.all(xp.abs(there - back) <= 1e-5"
    " * xp.maximum(there, back))): -> if not same_pattern or not bool(xp.all(xp.abs(there - "
    "back) < 1e-5 * xp.maximum(there, back))):": (
        "each pair is compared both ways, to a slack that is a choice"
    ),
    "graph_from_affinity: if not same_pattern or not bool(xp.all(xp.abs(there - back) <= 1e-5"
    " * xp.maximum(there, back))): -> if not same_pattern or not bool(xp.all(xp.abs(there - "
    "back) <= 1e-5 * xp.minimum(there, back))):": (
        "each pair is compared both ways, to a slack that is a choice"
    ),
    "graph_from_affinity: n = int(affinity.shape[0]) -> n = int(affinity.shape[1])": (
        "the matrix is square"
    ),
    "graph_from_affinity: same_pattern = bool(xp.all(xp.take(rows, forward) == "
    "xp.take(columns, backward))) and bool( -> same_pattern = bool(xp.any(xp.take(rows, "
    "forward) == xp.take(columns, backward))) and bool(": ("equal columns imply equal rows"),
    "graph_from_affinity: same_pattern = bool(xp.all(xp.take(rows, forward) == "
    "xp.take(columns, backward))) and bool( xp.all(xp.take(columns, forward) == xp.take(rows,"
    " backward)) ) -> same_pattern = (bool( xp.all(xp.take(columns, forward) == xp.take(rows,"
    " backward)) ))": ("equal columns imply equal rows"),
    'numbering_of: order = backend.asarray(order, "int64") -> pass': (
        "of the host already; the strict backend notices"
    ),
    # aggregate_basis
    "_added_up: rows, columns = np.divmod(names[first], max(count, 1)) -> rows, columns = "
    "np.divmod(names[first], max(count, 0))": ("without groups there is nothing to divide"),
    "_couplings_of_groups: count = int(labels.max(initial=-1)) + 1 -> count = "
    "int(labels.max(initial=-0)) + 1": ("without groups there is no entry to name"),
    "_couplings_of_groups: groups, others, strengths = _added_up(labels[rows], columns, "
    "weights[rows] * values, count) -> groups, others, strengths = _added_up(columns, "
    "labels[rows], weights[rows] * values, count)": ("the matrix is symmetric"),
    "_couplings_of_groups: rows, columns, values = (np.concatenate(part) for part in "
    "zip(*parts, strict=True)) -> rows, columns, values = (np.concatenate(part) for part in "
    "zip(*parts, strict=False))": ("every part has three arrays"),
    "_side_by_side: inside, count = np.flatnonzero(labels >= 0), int(labels.max(initial=-1)) "
    "+ 1 -> inside, count = np.flatnonzero(labels >= 0), int(labels.max(initial=-0)) + 1": (
        "without groups there is no entry"
    ),
    "aggregate_basis: count = int(labels.max(initial=-1)) + 1 -> count = "
    "int(labels.max(initial=-0)) + 1": ("without groups, one number too many names nobody"),
    "aggregate_basis: count = int(labels.max(initial=-1)) + 1 -> count = "
    "int(labels.max(initial=1)) + 1": ("without groups, one number too many names nobody"),
    # aggregation
    "_attach: chosen = np.flatnonzero((priority == best[loose]) & (priority > 0)) -> chosen ="
    " np.flatnonzero((priority == best[loose]) & (priority > 1))": (
        "what does not fit is left out below as well, and comes last"
    ),
    "_attach: chosen = np.flatnonzero((priority == best[loose]) & (priority > 0)) -> chosen ="
    " np.flatnonzero((priority == best[loose]) & (priority >= 0))": (
        "what does not fit is left out below as well, and comes last"
    ),
    "_attach: if merges <= 0: -> if merges < 0:": (
        "nothing is taken where nothing is left to merge"
    ),
    "_attach: priority[level.sizes[loose] > room[pair]] = 0 -> priority[level.sizes[loose] > "
    "room[pair]] = 1": ("what does not fit is left out below as well, and comes last"),
    "_coarsened: width = max(1, (sizes.size - 1).bit_length()) -> width = max(0, (sizes.size "
    "- 1).bit_length())": ("a single node has no edge"),
    "_coarsened: width = max(1, (sizes.size - 1).bit_length()) -> width = max(1, (sizes.size "
    "+ 1).bit_length())": ("a bit more than needed, at powers of two"),
    "_coarsened: width = max(1, (sizes.size - 1).bit_length()) -> width = max(1, (sizes.size "
    "- 0).bit_length())": ("a bit more than needed, at powers of two"),
    "_from_tree: place = np.arange(int(parents[-1].max(initial=-1)) + 1) -> place = "
    "np.arange(int(parents[-0].max(initial=-1)) + 1)": (
        "more places than nodes: their order is the same"
    ),
    "_from_tree: place = np.arange(int(parents[-1].max(initial=-1)) + 1) -> place = "
    "np.arange(int(parents[-1].max(initial=-0)) + 1)": (
        "more places than nodes: their order is the same"
    ),
    "_from_tree: place = np.arange(int(parents[-1].max(initial=-1)) + 1) -> place = "
    "np.arange(int(parents[-1].max(initial=1)) + 1)": (
        "more places than nodes: their order is the same"
    ),
    "_heaviest: if priority.size <= count: -> if priority.size < count:": (
        "the same positions in another order"
    ),
    "_matched: rounds = 0 -> rounds = 1": ("a choice: one round fewer by weight"),
    # any_matrix
    "both_ways: turned = xp.argsort(columns * shape[0] + rows) -> turned = xp.argsort(columns"
    " * shape[0] - rows)": ("the order inside a row does not matter to a product"),
    # block_eigensolver
    "_next_filter: math.log(_LARGEST_GAIN[dtype]) / (growth(1.0, cut) - rise + 1e-3), -> "
    "math.log(_LARGEST_GAIN[dtype]) / (growth(1.0, cut) - rise - 1e-3),": (
        "it keeps the quotient finite where nothing rises; a little more or less is a choice"
    ),
    "_next_filter: return _NextFilter(_FIRST_CUT, _FIRST_DEGREE, 0) -> return "
    "_NextFilter(_FIRST_CUT, _FIRST_DEGREE, 1)": (
        "what rounding leaves of too few columns is filtered in the next round"
    ),
    "_random_columns: random = rng.standard_normal((n, width - present)) / math.sqrt(n) -> "
    "random = rng.standard_normal((n, width - present)) * math.sqrt(n)": (
        "the filter brings columns to unit length"
    ),
    "_well_conditioned: break -> pass": ("more rounds than needed, to the same span"),
    "_well_conditioned: if bool(scales[0] > math.sqrt(precision) * scales[-1]): -> if "
    "bool(scales[0] >= math.sqrt(precision) * scales[-1]):": ("no scale is exactly at the limit"),
    "_well_conditioned: whitening = xp.eye(columns.shape[1], dtype=xp.float64, "
    "device=backend.device) -> whitening = xp.eye(columns.shape[0], dtype=xp.float64, "
    "device=backend.device)": ("overwritten: four rounds in a row are never needed"),
    "block_eigenpairs: following = _NextFilter(_FIRST_CUT, _FIRST_DEGREE, "
    "settled=columns.shape[1]) -> following = _NextFilter(_FIRST_CUT, _FIRST_DEGREE, "
    "settled=columns.shape[0])": ("more than all columns is all of them"),
    "block_eigenpairs: values, converged = np.zeros(0), 0 -> values, converged = np.zeros(0), 1": (
        "overwritten in the first round"
    ),
    "block_eigenpairs: values, converged = np.zeros(0), 0 -> values, converged = np.zeros(1), 0": (
        "overwritten in the first round"
    ),
    "block_eigenpairs: width = min(operator.size, rank + max(16, int(_GUARD * rank))) -> "
    "width = min(operator.size, rank + max(16, int(_GUARD / rank)))": (
        "a choice: fewer columns beyond the rank"
    ),
    "filtered: before = xp.asarray(columns[:, tile], copy=True) -> before = "
    "xp.asarray(columns[:, tile], copy=False)": ("one copy fewer: nothing writes into it"),
    "filtered: for tile in tiles_of(columns.shape[1], TILE_COLUMNS): -> for tile in "
    "tiles_of(columns.shape[0], TILE_COLUMNS):": ("empty tiles behind the last"),
    "filtered: tiles.append(now / xp.sqrt(xp.sum(now * now, axis=0))) -> tiles.append(now / "
    "(xp.sum(now * now, axis=0)))": ("the length of a column does not matter"),
    "gram_matrix: first if right is left else xp.astype(right[rows, :], getattr(xp, dtype), "
    "copy=False) -> first if right is left else xp.astype(right[rows, :], getattr(xp, dtype),"
    " copy=True)": ("a copy more"),
    # build
    "_given: values = basis if isinstance(basis, np.ndarray) else "
    "backend.to_numpy(backend.asarray(basis)) -> values = basis if not (isinstance(basis, "
    "np.ndarray)) else backend.to_numpy(backend.asarray(basis))": (
        "on the host, both are the same array"
    ),
    # coarse_inverse
    "_pseudo_inverse: kept = values > max(values[-1] * epsilon * values.size, least) -> kept "
    "= values >= max(values[-1] * epsilon * values.size, least)": (
        "no eigenvalue is exactly at the limit"
    ),
    # dense_product
    "_tiles: return [(cut, whole) for cut in cuts] if n >= m else [(whole, cut) for cut in "
    "cuts] -> return [(cut, whole) for cut in cuts] if n > m else [(whole, cut) for cut in "
    "cuts]": (SPEED),
    "dense_product: if len(tiles) == 1: -> if len(tiles) == 0:": (SPEED),
    # descent
    "Descent.run: if count <= _NARROWED_TO * walk.numbers.shape[0]: -> if count > "
    "_NARROWED_TO * walk.numbers.shape[0]:": (
        "speed only: which columns go on without the others; each takes the same steps"
    ),
    # diffuse
    "_check_basis: if not same_matrix(basis.adjacency, graph.adjacency, backend): -> if not "
    "same_matrix(graph.adjacency, basis.adjacency, backend):": ("equal is equal both ways"),
    # eigen_basis
    "EigenBasis._tiles: return [(start, min(start + _TILE, n)) for start in range(0, n, "
    "_TILE)] -> return [(start, max(start + _TILE, n)) for start in range(0, n, _TILE)]": (
        "a slice ends at the last row anyway"
    ),
    "eigen_basis: scales = xp.where(largest > 0, largest, xp.ones_like(largest)) / 127 -> "
    "scales = xp.where(largest > 0, largest, xp.zeros_like(largest)) / 127": (
        "no eigenvector is zero"
    ),
    # galerkin_basis
    "GalerkinBasis._inverted: check_room_for_inverse(self.coupling.shape[0], "
    "orthonormal=self.gram is None) -> check_room_for_inverse(self.coupling.shape[1], "
    "orthonormal=self.gram is None)": ("the matrix is square"),
    "GalerkinBasis.memory: inverse = self.coupling.shape[0] ** 2 * item_bytes(self.alone) -> "
    "inverse = self.coupling.shape[1] ** 2 * item_bytes(self.alone)": ("the matrix is square"),
    "given_basis: order = device.xp.argsort(rows * vectors.shape[1] + columns) -> order = "
    "device.xp.argsort(rows * vectors.shape[0] + columns)": (
        "any factor above the number of columns sorts alike"
    ),
    "sparse_eigen_basis: data, rows, columns = xp.take(flat, kept), kept // max(r, 1), kept %"
    " max(r, 1) -> data, rows, columns = xp.take(flat, kept), kept // max(r, 0), kept % "
    "max(r, 1)": ("without vectors there is nothing to divide"),
    "sparse_eigen_basis: data, rows, columns = xp.take(flat, kept), kept // max(r, 1), kept %"
    " max(r, 1) -> data, rows, columns = xp.take(flat, kept), kept // max(r, 1), kept % "
    "max(r, 0)": ("without vectors there is nothing to divide"),
    "sparse_eigen_basis: kept = xp.sort(device.top_k(sizes, count).ids[0, :]) if r else "
    "flat[:0] -> kept = xp.sort(device.top_k(sizes, count).ids[0, :]) if r else flat[:1]": (
        "without vectors there is no entry to take"
    ),
    # generic
    "GenericBackend.laplacian_step: return Product(values=values, "
    "curvature=self.column_dots(direction, values)) -> return Product(values=values, "
    "curvature=self.column_dots(values, direction))": ("a dot product"),
    "GenericBackend.mutual_edges: order = xp.argsort(ids, axis=1, stable=True) -> order = "
    "xp.argsort(ids, axis=1, stable=False)": ("NumPy sorts short lists by a stable method"),
    "GenericBackend.mutual_edges: repeated = self._same_as_before(rows * (n + 1) + columns) "
    "-> repeated = self._same_as_before(rows * (n + 0) + columns)": (
        "takes padding for a repetition, and both are left out"
    ),
    "GenericBackend.mutual_edges: repeated = self._same_as_before(rows * (n + 1) + columns) "
    "-> repeated = self._same_as_before(rows * (n + 1) - columns)": ("names that differ as well"),
    "GenericBackend.top_k: return TopK(scores=xp.take_along_axis(scores, ids, axis=-1), "
    "ids=ids) -> return TopK(scores=xp.take_along_axis(scores, ids, axis=1), ids=ids)": (
        "of two axes, 1 is the last"
    ),
    # judgments
    "_checked_gains: for query, (line, items) in enumerate(zip(gains, lists, strict=True)): "
    "-> for query, (line, items) in enumerate(zip(gains, lists, strict=False)):": (
        "lengths are compared before"
    ),
    "_without: line = line if at is None else line[: at + junk[query].size] -> pass": (
        "speed only: how much of a long ranking is looked at"
    ),
    "judged_by_labels: for query, (line, label) in enumerate(zip(ranking, asked, "
    "strict=True)): -> for query, (line, label) in enumerate(zip(ranking, asked, "
    "strict=False)):": ("lengths are compared before"),
    "judged_by_lists: for query, (line, items) in enumerate(zip(ranking, lists, "
    "strict=True)): -> for query, (line, items) in enumerate(zip(ranking, lists, "
    "strict=False)):": ("lengths are compared before"),
    # neighbor_count
    "_first_edges: known = xp.reshape(xp.where(joinable, others, xp.zeros_like(others)), "
    "(-1,)) -> known = xp.reshape(xp.where(joinable, others, xp.ones_like(others)), (-1,))": (
        "what stands in for a missing neighbor is masked afterwards"
    ),
    "_first_edges: others = xp.astype(xp.take(lists.ids, items, axis=0), xp.int64, "
    "copy=False) -> others = xp.astype(xp.take(lists.ids, items, axis=0), xp.int64, "
    "copy=True)": ("speed only: nothing writes to the ids"),
    "measured_recall.cosines: known = xp.reshape(xp.where(ids >= 0, ids, xp.zeros_like(ids)),"
    " (-1,)) -> known = xp.reshape(xp.where(ids > 0, ids, xp.zeros_like(ids)), (-1,))": (
        "what stands in for a missing neighbor is masked afterwards"
    ),
    "measured_recall.cosines: known = xp.reshape(xp.where(ids >= 0, ids, xp.zeros_like(ids)),"
    " (-1,)) -> known = xp.reshape(xp.where(ids >= 0, ids, xp.ones_like(ids)), (-1,))": (
        "what stands in for a missing neighbor is masked afterwards"
    ),
    "measured_recall.cosines: known = xp.reshape(xp.where(ids >= 0, ids, xp.zeros_like(ids)),"
    " (-1,)) -> known = xp.reshape(xp.where(ids >= 1, ids, xp.zeros_like(ids)), (-1,))": (
        "what stands in for a missing neighbor is masked afterwards"
    ),
    "measured_recall: ids = xp.astype(xp.take(lists.ids, items[rows], axis=0), xp.int64, "
    "copy=False) -> ids = xp.astype(xp.take(lists.ids, items[rows], axis=0), xp.int64, "
    "copy=True)": ("speed only: nothing writes to the ids"),
    # neighbors
    '_through_faiss: if gpu is not None and hasattr(faiss, "StandardGpuResources"): -> if '
    '(gpu is not None) or (hasattr(faiss, "StandardGpuResources")):': (
        "a FAISS for GPUs is needed to tell"
    ),
    '_through_faiss: if gpu is not None and hasattr(faiss, "StandardGpuResources"): -> if gpu'
    ' is None and hasattr(faiss, "StandardGpuResources"):': ("a FAISS for GPUs is needed to tell"),
    # numpy_backend
    "NumpyBackend.cg_direction: _for_each(turn, tiles, parallel=len(tiles) > 1) -> "
    "_for_each(turn, tiles, parallel=len(tiles) > 0)": (SPEED),
    "NumpyBackend.cg_direction: ratio = ratio.astype(direction.dtype) -> pass": (
        "rounded after the product in the place of before it"
    ),
    "NumpyBackend.cg_update: _for_each(update, range(len(tiles)), parallel=len(tiles) > 1) ->"
    " _for_each(update, range(len(tiles)), parallel=len(tiles) > 0)": (SPEED),
    "NumpyBackend.connected_components: labels = "
    "scipy.sparse.csgraph.connected_components(whole, directed=False)[1] -> labels = "
    "scipy.sparse.csgraph.connected_components(whole, directed=True)[1]": (
        "a symmetric matrix: its strong and weak components are the same"
    ),
    "NumpyBackend.csr: data, indices, indptr, shape, blocks, cut(tiles) if tiles > "
    "len(blocks) else blocks -> data, indices, indptr, shape, blocks, cut(tiles) if tiles >= "
    "len(blocks) else blocks": (SPEED),
    "NumpyBackend.laplacian_step: _for_each(step, range(len(parts)), "
    "parallel=matrix.data.size * m > _WORTH_THREADS) -> _for_each(step, range(len(parts)), "
    "parallel=matrix.data.size / m > _WORTH_THREADS)": (SPEED),
    "NumpyBackend.laplacian_step: direction = np.ascontiguousarray(direction) -> pass": (
        "SciPy makes the copy itself"
    ),
    "NumpyBackend.mutual_edges: counts, columns, weights = (np.concatenate(part) for part in "
    "zip(*parts, strict=True)) -> counts, columns, weights = (np.concatenate(part) for part "
    "in zip(*parts, strict=False))": ("every part has three arrays"),
    "NumpyBackend.mutual_edges: mean.sort_indices() -> pass": (
        "SciPy's product of sorted matrices is sorted, as it happens"
    ),
    "NumpyBackend.spmm: dense = np.ascontiguousarray(dense) -> pass": (
        "SciPy makes the copy itself"
    ),
    "NumpyBackend.spmm: parallel = matrix.data.size * dense.shape[1] > _WORTH_THREADS -> "
    "parallel = matrix.data.size * dense.shape[1] <= _WORTH_THREADS": (SPEED),
    "NumpyBackend.spmm: parallel = matrix.data.size * dense.shape[1] > _WORTH_THREADS -> "
    "parallel = matrix.data.size * dense.shape[1] >= _WORTH_THREADS": (SPEED),
    "NumpyBackend.spmm: parallel = matrix.data.size * dense.shape[1] > _WORTH_THREADS -> "
    "parallel = matrix.data.size / dense.shape[1] > _WORTH_THREADS": (SPEED),
    "NumpyBackend.subtract_spmm: dense = np.ascontiguousarray(dense) -> pass": (
        "SciPy makes the copy itself"
    ),
    "NumpyBackend.subtract_spmm: parallel = matrix.data.size * m > _WORTH_THREADS -> parallel"
    " = matrix.data.size / m > _WORTH_THREADS": (SPEED),
    "NumpyBackend.top_k: _for_each(select, chunks, parallel=m * n > _WORTH_THREADS) -> "
    "_for_each(select, chunks, parallel=m * n >= _WORTH_THREADS)": (SPEED),
    "_balanced_bounds: return (0, *sorted({row for row in inner if 0 < row < rows}), rows) ->"
    " return (0, *sorted({row for row in inner if 1 < row < rows}), rows)": (SPEED),
    "_balanced_bounds: wanted = np.linspace(0, int(indptr[-1]), parts + 1)[1:-1] -> wanted = "
    "np.linspace(0, int(indptr[-1]), parts + 1)[0:-1]": (SPEED),
    "_dots: if together < 2: -> if together <= 2:": (SPEED),
    "_dots: together = _ROW_ENTRIES // max(m, 1) if m > 1 else 1 -> together = _ROW_ENTRIES *"
    " max(m, 1) if m > 1 else 1": (SPEED),
    "_dots: together = _ROW_ENTRIES // max(m, 1) if m > 1 else 1 -> together = _ROW_ENTRIES "
    "// max(m, 1) if m <= 1 else 1": (SPEED),
    "_dots: together = _ROW_ENTRIES // max(m, 1) if m > 1 else 1 -> together = _ROW_ENTRIES "
    "// max(m, 1) if m > 0 else 1": (SPEED),
    "_dots: together = _ROW_ENTRIES // max(m, 1) if m > 1 else 1 -> together = _ROW_ENTRIES "
    "// min(m, 1) if m > 1 else 1": (SPEED),
    "_row_tiles: if array.size <= _WORTH_THREADS: -> if array.size < _WORTH_THREADS:": (SPEED),
    # overlap
    "agreement: for found, exact in zip(one[:, :at], other[:, :at], strict=True): -> for "
    "found, exact in zip(one[:, :at], other[:, :at], strict=False):": (
        "lengths are compared before"
    ),
    "agreement: shared.append(np.isin(wanted, found).sum() / wanted.size if wanted.size else "
    "1.0) -> shared.append(np.isin(found, wanted).sum() / wanted.size if wanted.size else "
    "1.0)": (
        "no ranking holds an item twice: as many of one are in the other as the other way round"
    ),
    # precompute
    "_opened: with own_folder(folder, _named_files, patience=0.0) as own, ExitStack() as "
    "stack: -> with own_folder(folder, _named_files, patience=1.0) as own, ExitStack() as "
    "stack:": ("the same answer, a second later"),
    # protocol
    "Numbering.moved_lists: rows = max(1, _LIST_ENTRIES // max(1, k)) -> rows = max(1, "
    "_LIST_ENTRIES * max(1, k))": ("memory only: how many rows are renumbered at a time"),
    "Numbering.moved_lists: stop = min(start + rows, n) -> stop = max(start + rows, n)": (
        "later rows more than once, as they shall be; the strict backend notices"
    ),
    # query_expansion
    "augment_database: dtype = check_dtype(dtype) -> pass": ("what it calls refuses it as well"),
    "expanded: rows = xp.reshape(xp.where(ids < 0, xp.zeros_like(ids), ids), (-1,)) -> rows ="
    " xp.reshape(xp.where(ids < 0, xp.ones_like(ids), ids), (-1,))": (
        "their weight is 0, whichever item stands in"
    ),
    # rankings
    "checked_ranking: ranking = ranking.astype(np.int64, copy=False) -> ranking = "
    "ranking.astype(np.int64, copy=True)": ("one copy more"),
    # row_selection
    "_first_by_ids: break -> pass": ("speed only: more is found than is wanted, and cut off"),
    "best_of_row: if _FEW * wanted < level.size: -> if _FEW * wanted >= level.size:": (
        "speed only: both ways find the same"
    ),
    # search
    "lives_here: return True -> return False": (
        "the host is where NumPy arrays go anyway; on a device of its own, tests notice"
    ),
    # significance
    "_corrected_levels: below = np.count_nonzero((means < mean) & ~near) + "
    "np.count_nonzero(near) / 2 -> below = np.count_nonzero((means <= mean) & ~near) + "
    "np.count_nonzero(near) / 2": ("what equals the mean is near it, and counted apart"),
    "_corrected_levels: deviations = (values - mean) / np.max(np.abs(values - mean)) -> "
    "deviations = (values - mean) / np.max((values - mean))": (
        "any positive scale: the skewness has none"
    ),
    "_corrected_levels: deviations = (values - mean) / np.max(np.abs(values - mean)) -> "
    "deviations = (values - mean) / np.max(np.abs(values + mean))": (
        "any positive scale: the skewness has none"
    ),
    "_corrected_levels: near = np.abs(means - mean) <= _ROUNDING * np.max(np.abs(values)) -> "
    "near = np.abs(means - mean) < _ROUNDING * np.max(np.abs(values))": (
        "the slack for rounding is a choice"
    ),
    "_interval: if np.all(values == values[0]): -> if np.all(values == values[1]):": (
        "all are equal to any one of them"
    ),
    "_sign_flip_p_value: farther += int(np.count_nonzero(np.abs(signs @ moved) >= bound)) -> "
    "farther += int(np.count_nonzero(np.abs(signs @ moved) > bound))": (
        "the slack for rounding is a choice"
    ),
    "_sign_flip_p_value: return float(np.mean(np.abs(sums) >= bound)) -> return "
    "float(np.mean(np.abs(sums) > bound))": ("the slack for rounding is a choice"),
    "_sign_flip_p_value: rng = np.random.default_rng([seed, 1]) -> rng = "
    "np.random.default_rng([seed, 0])": ("a matter of chance: other random signs, as good"),
    "compare: differences[np.abs(differences) <= _ROUNDING * np.maximum(np.abs(a), "
    "np.abs(b))] = 0 -> differences[np.abs(differences) < _ROUNDING * np.maximum(np.abs(a), "
    "np.abs(b))] = 0": ("the slack for rounding is a choice, and either value's size will do"),
    "compare: differences[np.abs(differences) <= _ROUNDING * np.maximum(np.abs(a), "
    "np.abs(b))] = 0 -> differences[np.abs(differences) <= _ROUNDING * np.maximum((a), "
    "np.abs(b))] = 0": ("the slack for rounding is a choice, and either value's size will do"),
    "compare: differences[np.abs(differences) <= _ROUNDING * np.maximum(np.abs(a), "
    "np.abs(b))] = 0 -> differences[np.abs(differences) <= _ROUNDING * np.maximum(np.abs(a), "
    "(b))] = 0": ("the slack for rounding is a choice, and either value's size will do"),
    "compare: differences[np.abs(differences) <= _ROUNDING * np.maximum(np.abs(a), "
    "np.abs(b))] = 0 -> differences[np.abs(differences) <= _ROUNDING * np.minimum(np.abs(a), "
    "np.abs(b))] = 0": ("the slack for rounding is a choice, and either value's size will do"),
    # spectrum
    "_probe: cut = smallest - 0.02 * (1 + smallest) -> cut = smallest - 0.2 * (1 + smallest)": (
        "a choice: how far the filter begins below the smallest value"
    ),
    "_probe: degree = int(min(max(math.log(_PROBE_GAIN) / growth(1.0, cut), 2), "
    "_PROBE_DEGREE)) -> degree = int(max(max(math.log(_PROBE_GAIN) / growth(1.0, cut), 2), "
    "_PROBE_DEGREE))": ("a choice: a longer filter"),
    "_probe: degree = int(min(max(math.log(_PROBE_GAIN) / growth(1.0, cut), 2), "
    "_PROBE_DEGREE)) -> degree = int(min(max(math.log(_PROBE_GAIN) / growth(1.0, cut), 1), "
    "_PROBE_DEGREE))": ("a choice: the shortest filter"),
    "continued_eigenpairs: nothing = np.zeros(0) -> nothing = np.zeros(1)": (
        "nobody looks at the certificate of what an iteration starts with"
    ),
    "leading_eigenpairs: order = aggregate(graph, groups=max(1, graph.n // 32), seed=seed, "
    "backend=device).order -> order = aggregate(graph, groups=max(1, graph.n * 32), "
    "seed=seed, backend=device).order": ("speed only: how close neighbors lie in memory"),
    # storage
    "_write: content = json.dumps(header, indent=2, allow_nan=False) -> content = "
    "json.dumps(header, indent=2, allow_nan=True)": (
        "the checks of the header refuse what is not finite as well"
    ),
    "remove_index: with own_folder(Path(path).absolute(), _named_files, patience=0.0) as own:"
    " -> with own_folder(Path(path).absolute(), _named_files, patience=1.0) as own:": (
        "the same answer, a second later"
    ),
    # build
    "state_from_descriptors: check_room(n, d if keep else 0, width, backend, "
    "dtype=settings.dtype) -> check_room(n, d if keep else 1, width, backend, "
    "dtype=settings.dtype)": ("a single dimension more: the prediction is no more exact than that"),
    # first_stage
    "SimilarItems.__init__: if bool(state.backend.xp.any(state.backend.xp.isnan(best.scores))): "
    "-> if bool(state.backend.xp.all(state.backend.xp.isnan(best.scores))):": (
        "what it lets through is refused when items are ranked"
    ),
    # native_graph
    "mutual_edges: kind = index_type(n, total) -> kind = index_type(total, n)": (
        "the larger of the two counts, whichever it is"
    ),
    # native_select
    "top_k: by_columns = scores.T.flags.c_contiguous and not scores.flags.c_contiguous -> "
    "by_columns = (not scores.flags.c_contiguous)": ("suits lets in nothing else"),
    "suits: return known and whole and 0 < k <= scores.shape[1] // _FEW -> return known and "
    "whole and 0 < k <= scores.shape[1] * _FEW": (SPEED),
    # result_lists
    "_ends_in_filler: filler = ~(xp.abs(values) < _FILLER) -> filler = ~(xp.abs(values) <= "
    "_FILLER)": ("no engine fills up with exactly 3e38"),
    "batched: if isinstance(ids, (list, tuple)) and isinstance(similarities, (list, tuple)): -> "
    "if not (isinstance(ids, (list, tuple)) and isinstance(similarities, (list, tuple))):": (
        "one list of lists and one row of an array are read as the same query"
    ),
}
