"""From the fields of a request to a question that the index can take, alone or with others.

Everything is checked here, for each request by itself: what is wrong with one is told to its client
alone, and never to those whose queries are solved beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.index.queries import Queries, descriptor_queries, item_queries, list_queries
from hybrid_gpu.ranking.asking import requested
from hybrid_gpu.ranking.limits import Limits
from hybrid_gpu.ranking.query_expansion import Expansion
from hybrid_gpu.ranking.request import Request
from hybrid_gpu.ranking.seeds import seeds_of
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.serve.refusals import Refusal, printable
from hybrid_gpu.serve.settings import ServerSettings
from hybrid_gpu.validation import check_count, check_number, shown

_OPTIONS = (
    *("k", "method", "accuracy", "steps", "rtol", "alpha", "degree_correction", "sparsity"),
    *("expansion", "allowed", "exclude", "min_score"),
)
# The array that a body of one array is, the arrays, and the options beside those of all.
FIELDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "search": (("queries",), (*_OPTIONS, "query_neighbors", "shortlist")),
    "rerank": (("ids", "similarities"), (*_OPTIONS, "query_neighbors", "metric")),
    "search_items": (("ids", "weights"), (*_OPTIONS, "shortlist")),
}
DEFAULT_K = 100
# Neighbors that alpha-qe adds to a query: their vectors are held side by side.
MOST_EXPANSION = 256
# Options that are integers; JSON does not tell 3 and 3.0 apart.
_COUNTS = ("k", "steps", "query_neighbors", "shortlist")
# Lists of items up to this length become a row for each query: requests whose lists differ can be
# solved together. Longer ones are a mask, and join only requests with the same one.
_SHORT_LIST = 256
# Entries of lists of unequal lengths, filled up to the longest.
_MOST_CELLS = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """The queries of a request, checked.

    Attributes
    ----------
    queries : Queries
    request : Request
    group : tuple
        Equal for questions that can be solved together: each gets the answer that it gets alone.
    """

    queries: Queries
    request: Request
    group: tuple[Any, ...]

    @property
    def count(self) -> int:
        """Number of queries."""
        return self.queries.count


def question_of(
    endpoint: str, fields: Mapping[str, Any], state: IndexState, settings: ServerSettings
) -> Question:
    """What the fields of a request ask of an index.

    Raises
    ------
    Refusal, ValueError, TypeError
        For fields that nobody knows, and for whatever the library refuses.
    """
    fields = _known(endpoint, fields)
    arrays, names = FIELDS[endpoint]
    options = {name: fields[name] for name in names if name in fields}
    options.update({name: _whole(options[name]) for name in _COUNTS if name in options})
    metric = options.pop("metric", "cosine")
    options["k"] = _checked_k(options.get("k", min(DEFAULT_K, settings.max_k)), state.n, settings)
    _limit_work(options, state, settings)
    if endpoint != "search_items":
        options.setdefault("query_neighbors", 5)
    if options.get("expansion") is not None:
        options["expansion"] = _expansion(options["expansion"])
    given = {name: _as_array(fields.get(name), name, state) for name in arrays}
    count = _checked_count(given[arrays[0]], arrays[0], settings)
    for name in ("allowed", "exclude"):
        if options.get(name) is not None:
            options[name] = _filter(options[name], name)
    if endpoint == "search_items":
        seeds = seeds_of(state, given["ids"], given["weights"])
        signed = seeds is not None and seeds.signed
        request = _for_all(requested(state, **options, signed=signed), count, state.n)
        queries = item_queries(state, given["ids"], request, seeds)
    elif endpoint == "rerank":
        request = _for_all(requested(state, **options), count, state.n)
        queries = list_queries(state, given["ids"], given["similarities"], metric, request)
    else:
        request = _for_all(requested(state, **options), count, state.n)
        queries = descriptor_queries(state, given["queries"], request)
    return Question(queries, request, _group(endpoint, queries, request))


def _known(endpoint: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, if all of them have a meaning, and none is missing."""
    arrays, options = FIELDS[endpoint]
    known = dict(fields)
    if "" in known:  # a body of one array
        known[arrays[0]] = known.pop("")
    strange = [name for name in known if name not in (*arrays, *options)]
    if strange:
        raise Refusal(
            400,
            f"there is no field {printable(strange[0])!r}.",
            f"Fields of {endpoint} are {', '.join((*arrays, *options))}.",
        )
    needed = arrays if endpoint == "rerank" else arrays[:1]
    for name in needed:
        if known.get(name) is None:
            raise Refusal(400, f"the field {name!r} is missing.", "See /openapi.json.")
    return known


def _checked_k(k: Any, n: int, settings: ServerSettings) -> int:
    if min(check_count(k, "k"), n) > settings.max_k:
        raise Refusal(
            400,
            f"k must be at most {settings.max_k}; got {shown(k)}.",
            "Ask for fewer results, or start the server with --max-k.",
        )
    return int(k)


def _limit_work(options: dict[str, Any], state: IndexState, settings: ServerSettings) -> None:
    """Refuse searches that would take very long; nobody can stop one that has begun."""
    steps = options.get("steps")
    if steps is not None and check_count(steps, "steps", low=0) > settings.max_steps:
        raise Refusal(
            400,
            f"steps must be at most {settings.max_steps}; got {shown(steps)}.",
            "Ask for fewer.",
        )
    if steps is None and options.get("accuracy") not in (None, "ranking"):
        options["steps"] = settings.max_steps
    if steps is None and options.get("rtol") is not None:
        options["steps"] = settings.max_steps
    limit_alpha(options.get("alpha"), state, settings)


def limit_alpha(alpha: Any, state: IndexState, settings: ServerSettings) -> None:
    """Refuse an alpha so close to 1 that a search would take very long."""
    most = max(settings.max_alpha, state.alpha)
    if alpha is not None and check_number(alpha, "alpha") > most:
        raise Refusal(400, f"alpha must be at most {most}; got {alpha}.", "Ask for a smaller one.")


def _checked_count(values: Any, name: str, settings: ServerSettings) -> int:
    """The number of queries, if they are not too many, nor their lists too long."""
    count = len(values)
    if count > settings.max_queries:
        raise Refusal(
            400,
            f"a request must have at most {settings.max_queries} queries; got {count}.",
            "Send several requests, or start the server with --max-queries.",
        )
    if name == "ids":
        lists = (row for row in values if not isinstance(row, str) and hasattr(row, "__len__"))
        longest = max(map(len, lists), default=0)
        if longest > settings.max_list:
            raise Refusal(
                400,
                f"a query must name at most {settings.max_list} items; got {longest}.",
                "Send the best of them.",
            )
        _check_cells(count, longest, name)
    return count


def _check_cells(rows: int, longest: int, name: str) -> None:
    if rows * longest > _MOST_CELLS:
        raise Refusal(
            400,
            f"{name} must have at most {_MOST_CELLS} entries with every row as long as the "
            f"longest; got {rows} rows of up to {longest}.",
            "Send several requests.",
        )


def _expansion(given: Any) -> Expansion:
    if not isinstance(given, dict) or set(given) - {"neighbors", "alpha"}:
        raise Refusal(
            400,
            f"expansion must be an object; got {shown(given)}.",
            'Send {"neighbors": 10, "alpha": 3}.',
        )
    expansion = Expansion(**{name: _whole(value) for name, value in given.items()})
    if expansion.neighbors > MOST_EXPANSION:
        raise Refusal(400, f"expansion must be by at most {MOST_EXPANSION} neighbors.")
    return expansion


def _whole(value: Any) -> Any:
    """An integer that was written as a float; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _whole_list(values: list[Any]) -> list[Any]:
    """A list, and lists in it, with integers for floats that are whole."""
    return [_whole_list(one) if isinstance(one, list) else _whole(one) for one in values]


def _as_array(value: Any, name: str, state: IndexState) -> Any:
    """A field as the library takes it: arrays as they are, lists of JSON checked."""
    if value is None or isinstance(value, np.ndarray):
        if value is not None and value.ndim == 0:
            raise Refusal(400, f"{name} must be an array; got a single value.")
        return value
    if not isinstance(value, list):
        raise Refusal(400, f"{name} must be a list; got {shown(value)}.")
    if not value:
        raise Refusal(400, f"{name} must not be empty.")
    if name in ("queries", "similarities"):
        return _matrix(value, name)
    if name == "weights":
        return value
    if state.keys is not None:
        return value if state.keys.text else _whole_list(value)
    return _ids(_whole_list(value), name)


def _matrix(rows: list[Any], name: str) -> NDArray[np.float64]:
    """Rows of numbers; JSON tells integers and floats not apart."""
    if not all(isinstance(row, list) for row in rows):
        raise Refusal(
            400,
            f"{name} must be a list of lists of numbers; got {shown(rows)}.",
            f"Wrap what belongs to one query: {name}: [[0.1, 0.2]].",
        )
    if not all(set(map(type, row)) <= {int, float} for row in rows):
        raise Refusal(400, f"{name} must hold numbers and nothing else.")
    if len(set(map(len, rows))) != 1:
        raise Refusal(400, f"the rows of {name} must be of the same length.")
    try:
        return np.array(rows, np.float64)
    except OverflowError:
        raise Refusal(400, f"{name} must be finite; got hundreds of digits.") from None


def _ids(values: list[Any], name: str) -> Any:
    """Ids, or lists of ids of any length."""
    rows = values if isinstance(values[0], list) else [values]
    for row in rows:
        if not isinstance(row, list) or not set(map(type, row)) <= {int}:
            raise Refusal(400, f"{name} must be integers, or lists of integers; got {shown(row)}.")
        if row and not -(2**63) <= min(row) <= max(row) < 2**63:
            raise Refusal(400, f"{name} must be integers of 64 bits.")
    return values


def _filter(given: Any, name: str) -> Any:
    """What is allowed or excluded; a short list as a row, which stands for every query."""
    if isinstance(given, np.ndarray):
        if given.dtype.kind == "f":
            raise Refusal(400, f"{name} must be a mask of bool, or ids.")
        short = given.ndim == 1 and given.dtype.kind != "b" and given.size <= _SHORT_LIST
        return given[None] if short and given.size else given
    if not isinstance(given, list):
        raise Refusal(400, f"{name} must be a list of items; got {shown(given)}.")
    given = _whole_list(given)
    if any(isinstance(one, list) for one in given):
        longest = max(len(one) if isinstance(one, list) else 1 for one in given)
        _check_cells(len(given), longest, name)
        return given
    if any(isinstance(one, (dict, float)) or one is None for one in given):
        raise Refusal(400, f"{name} must be a list of items; got {shown(given)}.")
    return [given] if len(given) <= _SHORT_LIST else given


def _for_all(request: Request, count: int, n: int) -> Request:
    """A request whose lists of items have a row for each query, of lengths that others have too."""
    limits = request.limits
    if limits is None:
        return request
    rows = []
    for part in limits.rows:
        values = part.values
        if not part.is_mask:
            width = _power_of_two(values.shape[1])
            values = np.pad(values, ((0, 0), (0, width - values.shape[1])), constant_values=-1)
        if len(values) == 1:
            values = np.broadcast_to(values, (count, values.shape[1]))
        rows.append(replace(part, values=values))
    # How far a local search looks depends on it: a question alone looks as far as in company.
    closed = min(_power_of_two(limits.closed), n)
    return replace(request, limits=Limits(limits.shared, tuple(rows), closed))


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length() if size else 0


def _group(endpoint: str, queries: Queries, request: Request) -> tuple[Any, ...]:
    """What two questions must have in common to be solved together."""
    limits: tuple[Any, ...] = ()
    if request.limits is not None:
        shared = request.limits.shared
        mask = None if shared is None else hashlib.sha256(np.packbits(shared).tobytes()).digest()
        kinds = tuple(
            (part.what, part.values.dtype.kind, part.values.shape[1])
            for part in request.limits.rows
        )
        limits = (mask, kinds, request.limits.closed)
    stop, expansion = request.stop, request.expansion
    return (
        endpoint,
        tuple(array.shape[1:] for array in queries.arrays),
        (queries.observed, queries.shortlist, request.query_neighbors, request.shortlist),
        (request.k, request.method.name, request.filter.resolvent, request.degree_correction),
        (stop.steps, stop.tolerance, stop.insists, stop.best),
        (request.sparsity.fraction, expansion.neighbors, expansion.alpha),
        (request.min_score, request.signed),
        limits,
    )
