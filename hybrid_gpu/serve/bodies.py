"""Bodies of requests: JSON, ``.npy`` and ``.npz``, read without trust in a word of them."""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request

from hybrid_gpu.serve.refusals import JSON_TYPE, Refusal, printable
from hybrid_gpu.serve.settings import ServerSettings

NPY_TYPE, NPZ_TYPE = "application/x-npy", "application/x-npz"
# Bytes of the header of a .npy file; that of a plain array has 118.
_LONGEST_HEADER = 1_000
_MOST_ARRAYS = 8
# What may stand in an array: bool, integers, floats, and text for keys.
_KINDS = "biufU"
_JSON_VALUE = re.compile(r'[\[{"0-9-]|(?:true|false|null)$')


class Intake:
    """The room for bodies, which all requests share."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self.held = 0

    @contextmanager
    def place(self) -> Iterator[_Place]:
        """A place for one body; what it held is free afterwards."""
        place = _Place(self, self._settings)
        try:
            yield place
        finally:
            self.held -= place.size


class _Place:
    """Bytes of one body, counted while they come in."""

    def __init__(self, intake: Intake, settings: ServerSettings) -> None:
        self._intake, self._settings = intake, settings
        self.size = 0

    def take(self, count: int) -> None:
        """Count more bytes, or refuse them."""
        self.size += count
        self._intake.held += count
        self.check(self.size)
        if self._intake.held > self._settings.max_bodies:
            raise Refusal(
                503, "too many large requests at the same time.", "Try again.", retry_after=1
            )

    def check(self, size: int) -> None:
        """Refuse a body of more bytes than are taken."""
        if size > self._settings.max_body:
            raise Refusal(
                413,
                f"the body must have at most {self._settings.max_body} bytes.",
                "Send fewer queries in a request, or start the server with --max-body.",
            )

    async def read(self, request: Request, deadline: float) -> bytes:
        """The whole body, if it is small enough and comes in time."""
        told = request.headers.get("content-length", "")
        if told.isdecimal():
            # Nothing of a body that is too long is read. One that lies is counted all the same.
            self.check(int(told[:20]))
        chunks = []
        try:
            with anyio.fail_after(deadline - anyio.current_time()):
                async for chunk in request.stream():
                    self.take(len(chunk))
                    chunks.append(chunk)
        except TimeoutError:
            raise Refusal(408, "the body took too long to arrive.", "Send it faster.") from None
        except ClientDisconnect:
            raise Refusal(408, "the client went away.") from None
        return b"".join(chunks)


def fields_of(body: bytes, content_type: str, parameters: QueryParams) -> dict[str, Any]:
    """The fields of a request by name: those of its body, and those of its address.

    Raises
    ------
    Refusal
        For anything that is not such a body; nothing of it was believed.
    """
    given = _from_address(parameters)
    kind = content_type.partition(";")[0].strip().lower()
    if kind == JSON_TYPE:
        fields = _from_json(body)
    elif kind == NPY_TYPE:
        fields = {"": _array(body)}
    elif kind == NPZ_TYPE:
        fields = _from_npz(body)
    else:
        raise Refusal(
            415,
            f"the body must be of type {JSON_TYPE}, {NPY_TYPE} or {NPZ_TYPE}; got "
            f"{printable(kind) or 'none'!r}.",
            f"Send the header 'Content-Type: {JSON_TYPE}'.",
        )
    for name in given:
        if name in fields:
            raise Refusal(
                400,
                f"{printable(name)!r} stands in the body and in the address.",
                "Leave one of them out.",
            )
    return {**given, **fields}


def _from_address(parameters: QueryParams) -> dict[str, Any]:
    """The options of an address: JSON values, or bare words."""
    given: dict[str, Any] = {}
    for name, text in parameters.multi_items():
        if name in given:
            raise Refusal(400, f"{printable(name)!r} stands twice in the address.")
        given[name] = _parsed(text, f"the value of {printable(name)!r}") if _value(text) else text
    return given


def _value(text: str) -> bool:
    return _JSON_VALUE.match(text) is not None


def _from_json(body: bytes) -> dict[str, Any]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise Refusal(400, "the body must be JSON in UTF-8.") from None
    value = _parsed(text, "the body")
    if not isinstance(value, dict):
        raise Refusal(
            400,
            f"the body must be a JSON object; got {_json_kind(value)}.",
            'Send fields by name: {"queries": [[0.1, 0.2]], "k": 10}.',
        )
    return value


def _parsed(text: str, what: str) -> Any:
    """A JSON value; NaN, the infinities and names that come twice, which Python takes, are none."""

    def refuse(word: str) -> Any:
        raise Refusal(
            400, f"{what} has the number {word}, which JSON does not have.", "Send finite numbers."
        )

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, value in pairs:
            if name in fields:
                raise Refusal(400, f"{printable(name)!r} stands twice in {what}.", "Send it once.")
            fields[name] = value
        return fields

    try:
        return json.loads(text, parse_constant=refuse, object_pairs_hook=once)
    except json.JSONDecodeError as fault:
        raise Refusal(400, f"{what} must be JSON: {fault.msg} at character {fault.pos}.") from None
    except (ValueError, RecursionError):  # numbers of thousands of digits, lists in lists in lists
        raise Refusal(400, f"{what} has numbers or lists that are too long or deep.") from None


def _from_npz(body: bytes) -> dict[str, Any]:
    """The arrays of an archive as ``numpy.savez`` writes it: stored, not packed."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            members = archive.infolist()
            if len(members) > _MOST_ARRAYS:
                raise Refusal(400, f"the archive has {len(members)} arrays.", "Send a few.")
            return {
                member.filename.removesuffix(".npy"): _array(_member(archive, member, len(body)))
                for member in members
            }
    except Refusal:
        raise
    except Exception:  # of zipfile, which raises many kinds
        raise _damaged("an archive of numpy.savez") from None


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, most: int) -> bytes:
    # What is stored cannot be larger than the archive; what is packed can be, a thousand times.
    if member.compress_type != zipfile.ZIP_STORED or member.file_size > most:
        raise Refusal(400, "the archive must not be compressed.", "Write it with numpy.savez.")
    with archive.open(member) as stream:
        return stream.read(most)


def _array(body: bytes) -> NDArray[Any]:
    """The array of a ``.npy`` file, whose header is checked before anything is allocated."""
    try:
        stream = io.BytesIO(body)
        version = np.lib.format.read_magic(stream)
        width = {1: 2, 2: 4}[version[0]]
        length = int.from_bytes(stream.read(width), "little")
        if length > _LONGEST_HEADER:
            raise _damaged("an array of numpy.save")
        stream.seek(-width, io.SEEK_CUR)
        reader = (np.lib.format.read_array_header_1_0, np.lib.format.read_array_header_2_0)
        shape, _, dtype = reader[version[0] - 1](stream)
    except Refusal:
        raise
    except Exception:  # of NumPy, which raises what its parser of headers does
        raise _damaged("an array of numpy.save") from None
    if dtype.kind not in _KINDS:
        raise Refusal(
            400,
            f"arrays must hold numbers, booleans or text; got dtype {printable(str(dtype))}.",
            "Pickled Python objects are not read.",
        )
    sizes = [int(size) for size in shape]
    rest = len(body) - stream.tell()
    if min(sizes, default=0) < 0 or math.prod(sizes) * dtype.itemsize != rest:
        raise _damaged("an array of numpy.save")
    stream.seek(0)
    try:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
    except Exception:
        raise _damaged("an array of numpy.save") from None


def _damaged(what: str) -> Refusal:
    return Refusal(400, f"the body must be {what}; it is damaged, cut short or none.")


def _json_kind(value: object) -> str:
    names = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
