"""What a client is told when there is no answer: a status, what is wrong, and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from starlette.responses import Response

from hybrid_gpu.errors import ConvergenceError

JSON_TYPE = "application/json"
# The statuses that a client may meet, and what they mean.
MEANINGS: Mapping[int, str] = {
    400: "The request is wrong; the error says where.",
    401: "The token is missing or wrong.",
    404: "There is no such page.",
    405: "The page takes another method.",
    406: "The answer cannot be had in that form.",
    408: "The body took too long to arrive.",
    413: "The request is larger than this server takes.",
    415: "The body is of a type that is not read.",
    421: "The server is not called by that name.",
    422: "The accuracy that was asked for was not reached.",
    500: "The server failed; its log says why.",
    503: "The server is busy, warming up or stopping; try again later.",
    504: "The answer took too long.",
}


class Refusal(Exception):
    """A request that is not answered.

    Attributes
    ----------
    status : int
        Of HTTP.
    error, hint : str
        What is wrong, and what to do about it.
    retry_after : int or None
        Seconds after which it may go better.
    """

    def __init__(
        self, status: int, error: str, hint: str = "", *, retry_after: int | None = None
    ) -> None:
        super().__init__(error)
        self.status, self.error, self.hint = status, error, hint
        self.retry_after = retry_after

    @property
    def response(self) -> Response:
        """The refusal as the client gets it."""
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return json_response({"error": self.error, "hint": self.hint}, self.status, headers)


def refusal_of(fault: BaseException) -> Refusal | None:
    """The refusal for a fault that is the client's own; None for one of the server."""
    if isinstance(fault, Refusal):
        return fault
    if isinstance(fault, (ValueError, TypeError)):
        return Refusal(400, *said_and_advised(str(fault)))
    if isinstance(fault, ConvergenceError):
        return Refusal(422, *said_and_advised(str(fault)))
    if isinstance(fault, MemoryError):
        return Refusal(
            503, "not enough memory for this request.", "Ask for fewer queries.", retry_after=1
        )
    return None


def said_and_advised(message: str) -> tuple[str, str]:
    """The first sentence of a message of the library, and the rest, which says what to do."""
    said, _, advice = message.partition(". ")
    return (said if said.endswith(".") else f"{said}."), advice


def failed() -> Refusal:
    """What a client is told of a fault of the server: nothing of its inside."""
    return Refusal(500, "the server failed to answer.", "Its log says why.")


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON answer. In ASCII: a key may hold what UTF-8 cannot."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Response(text, status, headers, media_type=JSON_TYPE)


def printable(text: str, most: int = 80) -> str:
    """A client's own words, for a message: short, and on one line."""
    return re.sub(r"[^ -~]", "?", text[:most])
