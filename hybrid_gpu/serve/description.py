"""What a server tells of itself: a record for programs, and a page for people.

The page is made here, of the OpenAPI document alone: it loads nothing, from nowhere.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

import hybrid_gpu
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.serve.openapi import available_methods
from hybrid_gpu.serve.settings import ServerSettings

_LIMITS = (
    *("max_body", "max_queries", "max_k", "max_list", "max_steps", "max_alpha"),
    *("max_waiting", "timeout", "batching", "batch"),
)
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1a1a; background: #fff; }
code, pre { font: 14px/1.5 ui-monospace, monospace; }
pre { background: #f4f4f4; padding: .7rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0;
  border-bottom: 1px solid #ddd; }
h2 { margin-top: 2.5rem; }
@media (prefers-color-scheme: dark) {
  body { color: #e8e8e8; background: #161616; } pre { background: #262626; }
  td, th { border-color: #444; } a { color: #8ab4f8; } }
"""


def described(state: IndexState, settings: ServerSettings) -> dict[str, Any]:
    """What the index is, and what the server takes."""
    descriptors = state.descriptors
    return {
        "version": hybrid_gpu.__version__,
        "items": state.n,
        "dimensions": None if descriptors is None else int(descriptors.shape[1]),
        "dtype": state.dtype,
        "keys": None if state.keys is None else state.keys.kind,
        "alpha": state.alpha,
        "gamma": state.gamma,
        "edges": state.graph.edges,
        "methods": available_methods(state),
        "backend": state.backend.name,
        "notes": list(state.notes),
        "limits": {name: getattr(settings, name) for name in _LIMITS},
    }


def page(document: dict[str, Any]) -> str:
    """The OpenAPI document as a page."""
    info = document["info"]
    sections = "".join(
        _section(path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])}</h1><p>{escape(info['description'])} "
        'For programs: <a href="openapi.json">openapi.json</a>, <a href="info">info</a>, '
        '<a href="metrics">metrics</a>.</p>'
        f"{sections}</body></html>"
    )


def _section(path: str, method: str, operation: dict[str, Any]) -> str:
    parts = [
        f"<h2><code>{escape(method.upper())} {escape(path)}</code></h2>",
        f"<p>{escape(operation['summary'])}</p>",
    ]
    if "parameters" in operation:
        parts.append("<table><tr><th>Parameter</th><th>Type</th><th>Meaning</th></tr>")
        parts.extend(
            _row(one["name"], {**one["schema"], "description": one["description"]}, one["required"])
            for one in operation["parameters"]
        )
        parts.append("</table>")
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        parts.append(f"<p>{escape(operation['description'])}</p>")
        parts.append(f"<pre>{escape(_example(path, schema))}</pre>")
        parts.append("<table><tr><th>Field</th><th>Type</th><th>Meaning</th></tr>")
        parts.extend(
            _row(name, field, name in schema["required"])
            for name, field in schema["properties"].items()
        )
        parts.append("</table>")
    parts.append("<table><tr><th>Status</th><th>Meaning</th></tr>")
    parts.extend(
        f"<tr><td>{escape(status)}</td><td>{escape(answer['description'])}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    return "".join([*parts, "</table>"])


def _row(name: str, field: dict[str, Any], required: bool) -> str:
    meaning = field.get("description", "")
    if "enum" in field:
        meaning += " One of " + ", ".join(field["enum"]) + "."
    if field.get("default") is not None:
        meaning += f" Default: {json.dumps(field['default'])}."
    if required:
        meaning += " Required."
    return (
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(_kind(field))}</td>"
        f"<td>{escape(meaning)}</td></tr>"
    )


def _kind(field: dict[str, Any]) -> str:
    """The type of a field, in a few words."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(map(_kind, field["anyOf"])))
    if "const" in field:
        return json.dumps(field["const"])
    if field["type"] == "array":
        return f"list of ({_kind(field['items'])})"
    kinds = field["type"]
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


def _example(path: str, schema: dict[str, Any]) -> str:
    """A request that one can paste, cut short where vectors are long."""
    fields = schema["properties"]
    body: dict[str, Any] = {}
    if "examples" in schema:
        body.update(schema["examples"][0])
    elif path == "/search":
        size = fields["queries"]["items"]["minItems"]
        body["queries"] = [[round(0.1 * (place % 10), 1) for place in range(size)]]
    elif path == "/rerank":
        body.update(ids=[[_sample(fields["ids"]["items"]["items"])]], similarities=[[0.9]])
    else:
        body["ids"] = [_sample(fields["ids"]["anyOf"][0]["items"])]
    body.setdefault("k", 10)
    text = json.dumps(body)
    if len(text) > 200:
        text = f"{text[:100]} ... {text[-30:]}"
    return f"curl http://127.0.0.1:8000{path} --json '{text}'"


def _sample(item: dict[str, Any]) -> Any:
    return "a-key" if "string" in item["type"] else 0
