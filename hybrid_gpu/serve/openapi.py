"""The OpenAPI document of a server: written by hand, with the sizes of its index filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.routing import BaseRoute, Route

from hybrid_gpu.ranking.asking import requested
from hybrid_gpu.ranking.methods import METHODS
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.serve.bodies import NPY_TYPE, NPZ_TYPE
from hybrid_gpu.serve.questions import DEFAULT_K, FIELDS, MOST_EXPANSION
from hybrid_gpu.serve.refusals import JSON_TYPE, MEANINGS
from hybrid_gpu.serve.settings import ServerSettings
from hybrid_gpu.validation import METRICS

Schema = dict[str, Any]
_BINARY: Schema = {"type": "string", "format": "binary"}
_SUMMARIES = {
    "search": "Rank the items for query vectors.",
    "rerank": "Rank the items for the results of another search engine.",
    "search_items": "Rank the items for some of them, or for weighted sets of them.",
}
_FAULTS = {
    "search": (400, 401, 406, 408, 413, 415, 421, 422, 500, 503, 504),
    "page": (401, 421, 500),
}


def available_methods(state: IndexState) -> list[str]:
    """The methods that an index can take, ``"auto"`` first."""
    found = ["auto"]
    for name in METHODS:
        try:
            requested(state, k=1, method=name)  # type: ignore[arg-type]
        except ValueError:
            continue  # it lacks eigenvectors, columns, groups or descriptors
        found.append(name)
    return found


class DescribedRoute(Route):
    """A page that is added to a server, with what the document tells of it.

    Attributes
    ----------
    operation : dict
        Of OpenAPI.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        operation: Schema,
        *,
        methods: Sequence[str] = ("GET",),
    ) -> None:
        super().__init__(path, endpoint, methods=list(methods))
        self.operation, self.method = operation, methods[0].lower()


def document(
    state: IndexState, settings: ServerSettings, routes: Sequence[BaseRoute] = ()
) -> Schema:
    """The whole document, of OpenAPI 3.1; added pages are in it that describe themselves."""
    paths: Schema = {f"/{name}": {"post": _search(name, state, settings)} for name in FIELDS}
    paths["/info"] = {"get": _page("What the index is, and what the server takes.", JSON_TYPE)}
    paths["/metrics"] = {"get": _page("Counters for Prometheus.", "text/plain")}
    paths["/healthz"] = {"get": _page("Whether the server is alive.", JSON_TYPE, public=True)}
    ready = _page("Whether the index is warm.", JSON_TYPE, public=True)
    ready["responses"].update(refused(503))
    paths["/readyz"] = {"get": ready}
    for route in routes:
        if isinstance(route, DescribedRoute):
            paths[route.path] = {route.method: route.operation}
    secured: Schema = {"security": [{"token": []}]} if settings.token is not None else {}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "hybrid-gpu",
            "version": "1",
            "description": "Vector search, re-ranked by diffusion on the graph of the items.",
        },
        **secured,
        "paths": paths,
        "components": {
            "schemas": {"Refusal": _REFUSAL, "Ranking": _ranking(state)},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _search(name: str, state: IndexState, settings: ServerSettings) -> Schema:
    arrays, options = FIELDS[name]
    fields = {**_arrays(name, state, settings), **_options(state, settings)}
    properties = {field: fields[field] for field in (*arrays, *options)}
    needed = list(arrays) if name == "rerank" else [arrays[0]]
    bodies: Schema = {
        JSON_TYPE: {
            "schema": {
                "type": "object",
                "properties": properties,
                "required": needed,
                "additionalProperties": False,
            }
        },
        NPZ_TYPE: {"schema": _BINARY},
    }
    if name != "rerank":
        bodies[NPY_TYPE] = {"schema": _BINARY}
    ranking: Schema = {"$ref": "#/components/schemas/Ranking"}
    answers = {JSON_TYPE: ranking, NPZ_TYPE: _BINARY, NPY_TYPE: _BINARY}
    return {
        "summary": _SUMMARIES[name],
        "description": _description(name),
        "operationId": name,
        "requestBody": {"required": True, "content": bodies},
        "responses": {
            "200": {
                "description": "The best items of each query, best first.",
                "content": {form: {"schema": schema} for form, schema in answers.items()},
            },
            **refused(*_FAULTS["search"]),
        },
    }


def _description(name: str) -> str:
    arrays = " and ".join(FIELDS[name][0])
    one = f"Or one array of numpy.save ({NPY_TYPE}): {FIELDS[name][0][0]}. "
    return (
        f"Fields by name in a JSON object. {'' if name == 'rerank' else one}"
        f"Or arrays of numpy.savez by name ({NPZ_TYPE}): {arrays}, allowed, exclude. "
        "Beside arrays, the other fields stand in the address: ?k=10&method=hybrid."
    )


def _page(summary: str, media_type: str, *, public: bool = False) -> Schema:
    schema: Schema = {"type": "object" if media_type == JSON_TYPE else "string"}
    faults = [status for status in _FAULTS["page"] if not (public and status == 401)]
    return {
        "summary": summary,
        **({"security": []} if public else {}),
        "responses": {
            "200": {"description": summary, "content": {media_type: {"schema": schema}}},
            **refused(*faults),
        },
    }


def refused(*statuses: int) -> Schema:
    """The answers of some statuses, each with what is wrong."""
    content = {JSON_TYPE: {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    return {
        str(status): {"description": MEANINGS[status], "content": content} for status in statuses
    }


_REFUSAL: Schema = {
    "type": "object",
    "properties": {
        "error": {"type": "string", "description": "What is wrong."},
        "hint": {"type": "string", "description": "What to do about it; may be empty."},
    },
    "required": ["error", "hint"],
    "additionalProperties": False,
}


def _ranking(state: IndexState) -> Schema:
    def table(items: Schema, description: str) -> Schema:
        rows = {"type": "array", "items": {"type": "array", "items": items}}
        return {**rows, "description": description}

    properties: Schema = {
        "ids": table({"type": "integer"}, "Items of each query; -1 where nothing more was found."),
        "scores": table({"type": ["number", "null"]}, "Their scores; null beside an id of -1."),
        "method": {"type": "string", "description": "The method that ran; never auto."},
        "residuals": {
            "type": ["array", "null"],
            "items": {"type": "number"},
            "description": "How exactly each query was solved; null for methods that solve none.",
        },
        "notes": {"type": "array", "items": {"type": "string"}},
    }
    if state.keys is not None:
        kind = "string" if state.keys.text else "integer"
        properties["keys"] = table({"type": [kind, "null"]}, "The keys of the items.")
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _item(state: IndexState) -> Schema:
    """An item as clients name it: its key if there are keys, else its id."""
    if state.keys is None:
        return {"type": "integer", "minimum": 0, "maximum": state.n - 1}
    return {"type": "string" if state.keys.text else "integer"}


def _listed(
    items: Mapping[str, Any], most: int, description: str = "", *, least: int = 1
) -> Schema:
    told = {"description": description} if description else {}
    return {"type": "array", "items": dict(items), "minItems": 1, "maxItems": most, **told}


def _arrays(name: str, state: IndexState, settings: ServerSettings) -> Schema:
    """The arrays of a request, as JSON."""
    number: Schema = {"type": "number"}
    items = _listed(_item(state), settings.max_list)
    queries = settings.max_queries
    if name == "search":
        d = 1 if state.descriptors is None else int(state.descriptors.shape[1])
        vector = {"type": "array", "items": number, "minItems": d, "maxItems": d}
        return {"queries": _listed(vector, queries, f"Vectors of {d} numbers.")}
    if name == "rerank":
        found = "Items found for each query, best first; -1 (or null, among keys) for none."
        values = "Their cosines, or what metric says."
        lists = _listed({**_item(state)}, settings.max_list)
        if state.keys is None:
            lists["items"]["minimum"] = -1
        else:
            lists["items"]["type"] = [lists["items"]["type"], "null"]
        return {
            "ids": _listed(lists, queries, found),
            "similarities": _listed(_listed(number, settings.max_list), queries, values),
        }
    told = "An item for each query, or a list of items for each."
    either = {"anyOf": [_listed(_item(state), queries), _listed(items, queries)]}
    weights = _listed(_listed(number, settings.max_list), queries)
    return {
        "ids": {**either, "description": told},
        "weights": {
            "anyOf": [{"type": "null"}, weights],
            "description": "The weights of the items of each query; 1 if left out.",
        },
    }


def _options(state: IndexState, settings: ServerSettings) -> Schema:
    """The options of all searches."""

    def count(low: int, high: int | None, description: str, default: Any = None) -> Schema:
        bound = {} if high is None else {"maximum": high}
        kind = {"type": ["integer", "null"], "minimum": low, **bound}
        return {**kind, "default": default, "description": description}

    def number(description: str, **bounds: float) -> Schema:
        return {"type": ["number", "null"], **bounds, "description": description}

    n, most = state.n, max(settings.max_alpha, state.alpha)
    k = count(1, settings.max_k if n > settings.max_k else None, "Results of each query.")
    return {
        "k": {**k, "type": "integer", "default": min(DEFAULT_K, settings.max_k)},
        "method": {
            "type": "string",
            "enum": available_methods(state),
            "default": "auto",
            "description": "How items are scored.",
        },
        "accuracy": {
            "anyOf": [
                {"type": "null"},
                {"const": "ranking"},
                {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            ],
            "description": "The residual at which a query stops, or 'ranking'.",
        },
        "steps": count(0, settings.max_steps, "Solver steps; with an accuracy, the most."),
        "rtol": number("Like accuracy, but to miss it is a 422.", exclusiveMinimum=0, maximum=1),
        "alpha": number(f"How far scores spread; {state.alpha} here.", minimum=0, maximum=most),
        "degree_correction": {
            "type": "boolean",
            "default": False,
            "description": "Divide scores by the root of the items' degrees.",
        },
        "sparsity": {
            "type": "number",
            "minimum": 0,
            "exclusiveMaximum": 1,
            "description": "The part of the eigenvectors that shybrid drops.",
        },
        "expansion": {
            "type": ["object", "null"],
            "properties": {
                "neighbors": {"type": "integer", "minimum": 1, "maximum": MOST_EXPANSION},
                "alpha": {"type": "number", "minimum": 0},
            },
            "additionalProperties": False,
            "description": "The neighbors that alpha-qe adds to a query.",
        },
        "allowed": _choice(state, settings, "Items that results may be."),
        "exclude": _choice(state, settings, "Items that results may not be."),
        "min_score": number("Results that score less are left out."),
        "query_neighbors": count(1, None, "Items that diffusion starts from; null: all.", 5),
        "shortlist": count(1, n, "Items that truncated keeps."),
        "metric": {
            "type": "string",
            "enum": list(METRICS),
            "default": "cosine",
            "description": "What similarities are.",
        },
    }


def _choice(state: IndexState, settings: ServerSettings, description: str) -> Schema:
    """Some items: a list for all queries, a list for each, or a mask."""
    item, flag = _item(state), {"type": "boolean"}
    forms = [
        {"type": "null"},
        {"type": "array", "items": item},
        {"type": "array", "items": flag, "minItems": state.n, "maxItems": state.n},
        {"type": "array", "items": {"type": "array", "items": item}},
    ]
    told = f"{description} A list, a list for each query, or a mask of booleans."
    return {"anyOf": forms, "description": told}
