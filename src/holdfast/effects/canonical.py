"""One value, one sequence of bytes, one digest.

Canonical JSON: object keys are strings and sorted by code point, no white space, non-ASCII kept as it is, no NaN or
infinity, and nothing that JSON has no word for (bytes, sets, objects). The same value gives the same bytes in every
process, under every PYTHONHASHSEED.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Final, cast

import msgspec

from holdfast.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_DEPTH: Final = 64
"""How deep lists and objects may be nested."""

_encoder: Final = msgspec.json.Encoder(order="sorted")
_SCALARS: Final = frozenset((str, int, bool, type(None)))


def canonical(value: object) -> bytes:
    """The canonical JSON bytes of `value`; `InvalidValue` names the place that has none."""
    check(value)
    try:
        return _encoder.encode(value)
    except OverflowError as error:
        raise InvalidValue("$", "an integer is outside the 64-bit range") from error
    except UnicodeEncodeError as error:
        raise InvalidValue("$", "a string holds a lone surrogate") from error


def digest(domain: str, value: object) -> str:
    """SHA-256 of `value` in canonical form, apart from all other domains."""
    return digest_of_bytes(domain, canonical(value))


def digest_of_bytes(domain: str, body: bytes) -> str:
    """SHA-256 of bytes that are canonical already, apart from all other domains."""
    return hashlib.sha256(b"holdfast:1:%b\n%b" % (domain.encode(), body)).hexdigest()


def check(value: object, path: str = "$", depth: int = 0) -> None:
    """Raise `InvalidValue` for the first place in `value` that JSON has no word for."""
    kind = type(value)
    if kind in _SCALARS:
        return
    if kind is float:
        if not math.isfinite(cast("float", value)):
            raise InvalidValue(path, f"{value} is not a JSON number")
        return
    if depth >= MAX_DEPTH:
        raise InvalidValue(path, f"it is nested deeper than {MAX_DEPTH} levels")
    if kind is dict:
        _check_object(cast("Mapping[object, object]", value), path, depth)
    elif kind is list or kind is tuple:
        for index, item in enumerate(cast("Sequence[object]", value)):
            if type(item) not in _SCALARS:
                check(item, f"{path}[{index}]", depth + 1)
    else:
        raise InvalidValue(path, f"a {kind.__name__} has no JSON form")


def _check_object(value: Mapping[object, object], path: str, depth: int) -> None:
    for key, item in value.items():
        if type(key) is not str:
            raise InvalidValue(path, f"the key {key!r} is not a string")
        if type(item) not in _SCALARS:
            check(item, f"{path}.{key}", depth + 1)
