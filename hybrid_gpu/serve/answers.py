"""Answers: the rows of a ranking that belong to one request, as JSON, ``.npy`` or ``.npz``."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.index.search import missed_note, unsettled_note
from hybrid_gpu.ranking.keys import Keys
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.ranking.top_items import Ranking
from hybrid_gpu.serve.bodies import NPY_TYPE, NPZ_TYPE
from hybrid_gpu.serve.questions import Question
from hybrid_gpu.serve.refusals import JSON_TYPE, Refusal, printable


@dataclass(frozen=True, slots=True, eq=False)
class RankedRows:
    """What a batch found for some of its queries.

    Attributes
    ----------
    ids, scores : arrays of shape (m, k)
    residuals : float array of shape (m,), or None
    settled : bool array of shape (m,), or None
        Of a local search.
    method : str
    accuracy : float or None
        The relative residual that was asked for.
    """

    ids: NDArray[np.int64]
    scores: NDArray[Any]
    residuals: NDArray[np.float64] | None
    settled: NDArray[np.bool_] | None
    method: str
    accuracy: float | None

    @property
    def missed(self) -> bool:
        """Whether a query missed the residual that was asked for."""
        return (
            self.residuals is not None
            and self.accuracy is not None
            and bool(np.any(self.residuals > self.accuracy))
        )


def rows_of(ranking: Ranking, start: int, stop: int) -> RankedRows:
    """Some queries of a ranking, as copies: a client that reads slowly holds no others' rows."""
    report, part = ranking.report, slice(start, stop)
    residuals, local = report.residuals, report.local
    return RankedRows(
        ids=ranking.ids[part].copy(),
        scores=ranking.scores[part].copy(),
        residuals=None if residuals is None else np.array(residuals[part], np.float64),
        settled=None if local is None else np.array(local.settled[part], bool),
        method=report.method,
        accuracy=report.accuracy,
    )


def joined(parts: Sequence[RankedRows]) -> RankedRows:
    """The parts of a request, in the order of its queries."""
    first = parts[0]
    if len(parts) == 1:
        return first
    residuals = [part.residuals for part in parts if part.residuals is not None]
    settled = [part.settled for part in parts if part.settled is not None]
    return replace(
        first,
        ids=np.concatenate([part.ids for part in parts]),
        scores=np.concatenate([part.scores for part in parts]),
        residuals=np.concatenate(residuals) if residuals else None,
        settled=np.concatenate(settled) if settled else None,
    )


def notes_of(rows: RankedRows, question: Question, state: IndexState) -> list[str]:
    """What a user may want to know of his own queries; nothing of those solved beside them."""
    request = question.request
    notes = list(state.notes) if request.method.diffuses else []
    if request.limits is not None:
        notes.extend(request.limits.notes)
    if rows.residuals is not None and rows.accuracy is not None:
        notes.extend(missed_note(rows.residuals, rows.accuracy, np))
    if rows.settled is not None:
        notes.extend(unsettled_note(rows.settled, np))
    return notes


def encoded(rows: RankedRows, notes: Sequence[str], keys: Keys | None, media_type: str) -> bytes:
    """An answer in the form that the client asked for."""
    if media_type == NPZ_TYPE:
        return _npz(rows, keys)
    if media_type == NPY_TYPE:
        return _npy(rows)
    return _json(rows, notes, keys)


def _json(rows: RankedRows, notes: Sequence[str], keys: Keys | None) -> bytes:
    answer: dict[str, Any] = {"ids": rows.ids.tolist()}
    if keys is not None:
        answer["keys"] = keys.of(rows.ids).tolist()
        if not keys.text:
            # Whatever stands for 'nothing found' among integers: null is plainer.
            _blank(answer["keys"], rows.ids < 0)
    answer["scores"] = rows.scores.tolist()
    # JSON has no -inf, which stands beside an id of -1.
    _blank(answer["scores"], ~np.isfinite(rows.scores))
    answer["method"] = rows.method
    answer["residuals"] = None if rows.residuals is None else rows.residuals.tolist()
    answer["notes"] = list(notes)
    return json.dumps(answer, allow_nan=False, separators=(",", ":")).encode()


def _blank(table: list[list[Any]], where: NDArray[np.bool_]) -> None:
    for row, place in np.argwhere(where).tolist():
        table[row][place] = None


def _npz(rows: RankedRows, keys: Keys | None) -> bytes:
    arrays: dict[str, Any] = {"ids": rows.ids, "scores": rows.scores}
    if keys is not None:
        known = keys.of(rows.ids)
        # Text as NumPy's own, for np.load without pickles: nothing found is an empty string.
        arrays["keys"] = np.where(rows.ids < 0, "", known).astype(str) if keys.text else known
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def _npy(rows: RankedRows) -> bytes:
    """One array (m, k) of records with the fields ``id`` and ``score``."""
    table = np.empty(rows.ids.shape, [("id", "<i8"), ("score", rows.scores.dtype.str)])
    table["id"], table["score"] = rows.ids, rows.scores
    stream = io.BytesIO()
    np.save(stream, table)
    return stream.getvalue()


def negotiated(accept: str | None) -> str:
    """The form of an answer that a client asks for; JSON if it takes anything."""
    forms = (JSON_TYPE, NPZ_TYPE, NPY_TYPE)
    if accept is None or accept.strip() in ("", "*/*"):
        return JSON_TYPE
    best, weight = "", 0.0
    for entry in accept.split(",")[:20]:
        name, *parameters = (part.strip().lower() for part in entry.split(";"))
        quality = _quality(parameters)
        for form in forms:
            if name in (form, "*/*", "application/*") and quality > weight:
                best, weight = form, quality
    if not best:
        raise Refusal(
            406,
            f"answers come as {', '.join(forms)}; got {printable(accept)!r}.",
            f"Send the header 'Accept: {JSON_TYPE}'.",
        )
    return best


def _quality(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return min(max(float(parameter[2:]), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0
