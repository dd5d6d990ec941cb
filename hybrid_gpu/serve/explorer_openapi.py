"""What the OpenAPI document tells of the explorer's own pages."""

from __future__ import annotations

from collections.abc import Sequence

from hybrid_gpu.explore.answers import MOST_RESULTS
from hybrid_gpu.explore.live import LONGEST_WORDS
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.serve.openapi import Schema, refused
from hybrid_gpu.serve.refusals import JSON_TYPE

_BUSY = (401, 421, 500, 503, 504)
_READ = (400, 408, 413, 415)
_PICTURE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_NUMBER: Schema = {"type": "number"}
_ITEM: Schema = {"type": "integer", "minimum": 0}


def operations(state: IndexState, methods: Sequence[str]) -> dict[str, Schema]:
    """The operations of the pages that answer the explorer, by name."""
    return {
        "start": {
            "summary": "What the explorer's page knows before any query.",
            "operationId": "explore_start",
            "responses": {
                "200": _json("The index and its first items.", _START),
                **refused(*_BUSY),
            },
        },
        "items": {
            "summary": "The items whose key or text contains some words.",
            "operationId": "explore_items",
            "parameters": [
                _parameter("words", "query", _text("Words, whatever their case; none: all items."))
            ],
            "responses": {
                "200": _json("The first of them, and how many there are.", _FOUND),
                **refused(400, *_BUSY),
            },
        },
        "pictures": {
            "summary": "The picture of an item.",
            "operationId": "explore_picture",
            "parameters": [
                _parameter(
                    "item", "path", {**_ITEM, "maximum": state.n - 1, "description": "Its id."}
                )
            ],
            "responses": {
                "200": {
                    "description": "The picture.",
                    "content": {
                        kind: {"schema": {"type": "string", "format": "binary"}}
                        for kind in _PICTURE_TYPES
                    },
                },
                **refused(404, *_BUSY),
            },
        },
        "answer": {
            "summary": "Both rankings of a query, and why each item is where it is.",
            "description": "One of item, vector and words is the query.",
            "operationId": "explore_answer",
            "requestBody": {
                "required": True,
                "content": {JSON_TYPE: {"schema": _question(state, methods)}},
            },
            "responses": {
                "200": _json("What the page shows.", _ANSWER),
                **refused(*_READ, *_BUSY),
            },
        },
    }


def _json(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {JSON_TYPE: {"schema": schema}}}


def _text(description: str) -> Schema:
    return {"type": "string", "maxLength": LONGEST_WORDS, "description": description}


def _parameter(name: str, where: str, schema: Schema) -> Schema:
    described = {"name": name, "in": where, "required": where == "path"}
    return {**described, "description": schema["description"], "schema": schema}


def _question(state: IndexState, methods: Sequence[str]) -> Schema:
    d = 1 if state.descriptors is None else int(state.descriptors.shape[1])
    return {
        "type": "object",
        "properties": {
            "item": {**_ITEM, "maximum": state.n - 1, "description": "An item as the query."},
            "vector": {
                "type": "array",
                "items": _NUMBER,
                "minItems": d,
                "maxItems": d,
                "description": "A vector as the query.",
            },
            "words": _text("A text as the query, where the server has an encoder."),
            "label": _text("What the page calls a vector."),
            "alpha": {**_NUMBER, "minimum": 0, "description": "How far scores spread."},
            "k": {
                "type": "integer",
                "minimum": 1,
                "maximum": MOST_RESULTS,
                "default": 20,
                "description": "Results.",
            },
            "method": {
                "type": "string",
                "enum": list(methods),
                "default": "auto",
                "description": "How items are scored.",
            },
            "contains": {
                "type": ["string", "null"],
                "maxLength": LONGEST_WORDS,
                "description": "Results whose key or text does not contain it are left out.",
            },
        },
        "required": [],
        "additionalProperties": False,
        "examples": [{"item": 0, "k": 10}],
    }


def _record(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_RANKED = _list(_list(_NUMBER))
_NOTES = _list({"type": "string"})
_FOUND = _record(items=_list(_record(item=_ITEM, label={"type": "string"})), count=_ITEM)
_START = _record(
    title={"type": "string"},
    n=_ITEM,
    count=_ITEM,
    queries=_FOUND["properties"]["items"],
    methods=_NOTES,
    alpha=_NUMBER,
    vectors={"type": "boolean"},
    encodes={"type": "boolean"},
)
_PATH = _record(items=_list(_ITEM), weights=_list(_NUMBER), share=_NUMBER)
_WHY = _record(
    plainRank={"type": ["integer", "null"]},
    similarity={"type": ["number", "null"]},
    rank={"type": ["integer", "null"]},
    score=_NUMBER,
    reached={"type": "boolean"},
    hits=_RANKED,
    paths=_list(_PATH),
    notes=_NOTES,
)
_ANSWER = _record(
    query=_record(item={"type": ["integer", "null"]}, label={"type": "string"}),
    settings=_record(alpha=_NUMBER, method={"type": "string"}, exact={"type": "boolean"}, k=_ITEM),
    plain=_RANKED,
    diffused=_RANKED,
    why={"type": "object", "additionalProperties": _WHY},
    graph=_record(nodes=_RANKED, edges=_RANKED),
    items={"type": "object", "additionalProperties": _record(label={"type": "string"})},
    notes=_NOTES,
)
