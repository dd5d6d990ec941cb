"""The keys of an index as plain arrays of numbers, for files, and back.

Integers are stored as they are. Strings are one run of UTF-8 bytes, and where each of them begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.ranking.keys import Keys, repeated

_TEXT, _SIGNED, _UNSIGNED = "text", "int64", "uint64"
_ARRAYS = {_TEXT: {"bytes", "starts"}, _SIGNED: {"numbers"}, _UNSIGNED: {"numbers"}}


def packed_keys(keys: Keys) -> tuple[dict[str, HostArray], dict[str, Any]]:
    """Keys as arrays of signed integers, and what else is to know of them."""
    if not keys.text:
        kind = _SIGNED if keys.values.dtype.kind == "i" else _UNSIGNED
        return {"numbers": keys.values.view(np.int64)}, {"kind": kind}
    encoded = [key.encode() for key in keys.values]
    starts = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(key) for key in encoded], out=starts[1:])
    return {"bytes": np.frombuffer(b"".join(encoded), np.int8), "starts": starts}, {"kind": _TEXT}


def unpacked_keys(arrays: Mapping[str, HostArray], facts: Mapping[str, Any]) -> Keys:
    """The keys of checked arrays."""
    if facts["kind"] == _TEXT:
        return Keys(_texts(arrays))
    return Keys(np.array(arrays["numbers"]).view(facts["kind"]))


def wrong_keys(arrays: Mapping[str, HostArray], facts: Mapping[str, Any], n: int) -> str | None:
    """What is wrong with arrays that shall be the keys of n items; None if they are."""
    kind = facts.get("kind")
    if not isinstance(kind, str) or set(arrays) != _ARRAYS.get(kind):
        return "keys of no kind that is known"
    if kind != _TEXT:
        return _wrong_integers(arrays["numbers"], n)
    starts, text = arrays["starts"], arrays["bytes"]
    if starts.dtype.str != "<i8" or starts.shape != (n + 1,):
        return f"{starts.dtype.str} of shape {starts.shape} where <i8 of shape ({n + 1},) belongs"
    if text.dtype.str != "|i1" or text.ndim != 1:
        return f"{text.dtype.str} of shape {text.shape} where the bytes of keys belong"
    if starts[0] != 0 or starts[-1] != text.size or np.any(starts[1:] < starts[:-1]):
        return f"the starts of keys do not divide {text.size} bytes"
    try:
        keys = _texts(arrays)
    except UnicodeDecodeError as fault:
        return f"keys are not UTF-8 ({fault.reason})"
    return "a key stands twice" if repeated(keys) else None


def _wrong_integers(numbers: HostArray, n: int) -> str | None:
    if numbers.dtype.str != "<i8" or numbers.shape != (n,):
        return f"{numbers.dtype.str} of shape {numbers.shape} where <i8 of shape ({n},) belongs"
    if np.any(numbers == -1):
        return "a key of -1, which stands for 'nothing found'"
    return "a key stands twice" if repeated(numbers) else None


def _texts(arrays: Mapping[str, HostArray]) -> HostArray:
    """The strings; where they begin is checked."""
    text, starts = arrays["bytes"].tobytes(), arrays["starts"].tolist()
    keys = np.empty(len(starts) - 1, object)
    for number in range(len(keys)):
        keys[number] = text[starts[number] : starts[number + 1]].decode()
    return keys
