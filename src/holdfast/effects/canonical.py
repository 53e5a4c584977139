"""Canonical JSON and digests: the same value gives the same bytes in every process.

Object keys are strings sorted by code point, without white space, non-ASCII unescaped, integers of 64 bits, no NaN or
infinity, and no types without a JSON form (bytes, sets, objects).
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


MAX_DEPTH: Final = 64
"""Deepest nesting of lists and objects."""
_MIN_INT: Final = -(2**63)
_MAX_INT: Final = 2**64 - 1
_SHOWN_KEY: Final = 40
_encoder: Final = msgspec.json.Encoder(order="sorted")
_SAFE: Final = frozenset((bool, type(None)))


def canonical(value: object) -> bytes:
    """The canonical JSON bytes of `value`; `InvalidValue` names the part without a JSON form."""
    check(value)
    return _encoder.encode(value)


canonical_json: Final = _encoder.encode
"""`canonical` without checks, for a value that was read from JSON."""


def digest(domain: str, value: object) -> str:
    """SHA-256 of `value` in canonical form; each domain has its own digests."""
    return digest_of_bytes(domain, canonical(value))


def digest_of_bytes(domain: str, body: bytes) -> str:
    """SHA-256 of bytes in canonical form; each domain has its own digests."""
    return hashlib.sha256(b"holdfast:1:%b\n%b" % (domain.encode(), body)).hexdigest()


def check(value: object) -> None:
    """Raise `InvalidValue` for the first part of `value` without a JSON form."""
    if not fits(value):
        _blame(value, "$", 0)


def fits(value: Any, depth: int = 0) -> bool:  # noqa: ANN401  anything may come in
    """True if all of `value` has a JSON form. The fast path: it builds no paths for errors."""
    kind: type[object] = type(value)  # pyright: ignore[reportUnknownVariableType]  # of anything
    if kind is str:
        return value.isascii() or _encodes(value)
    if kind is int:
        return _MIN_INT <= value <= _MAX_INT
    if kind in _SAFE:
        return True
    if kind is float:
        return math.isfinite(value)
    if depth >= MAX_DEPTH:
        return False
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or not (key.isascii() or _encodes(key)) or not fits(item, depth + 1):
                return False
        return True
    if kind is list or kind is tuple:
        for item in value:  # noqa: SIM110  a generator costs more than what it goes through
            if not fits(item, depth + 1):
                return False
        return True
    return False


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _blame(value: Any, path: str, depth: int) -> None:  # noqa: ANN401  anything may come in
    kind: type[object] = type(value)  # pyright: ignore[reportUnknownVariableType]  # of anything
    if kind is str:
        _check_text(value, path)
    elif kind is int:
        if not _MIN_INT <= value <= _MAX_INT:
            raise InvalidValue(path, "the integer does not fit into 64 bits")
    elif kind in _SAFE:
        return
    elif kind is float:
        if not math.isfinite(value):
            raise InvalidValue(path, f"{value} is not a JSON number")
    else:
        _blame_nested(value, path, depth)


def _blame_nested(value: object, path: str, depth: int) -> None:
    kind = type(value)
    if kind is not dict and kind is not list and kind is not tuple:
        raise InvalidValue(path, f"a {kind.__name__} has no JSON form")
    if depth >= MAX_DEPTH:
        raise InvalidValue(path, f"it is nested deeper than {MAX_DEPTH} levels")
    if kind is dict:
        for key, item in cast("Mapping[object, object]", value).items():
            if type(key) is not str:
                raise InvalidValue(path, f"the key {shown_key(repr(key))} is not a string")
            here = f"{path}.{shown_key(key)}"
            _check_text(key, here)
            _blame(item, here, depth + 1)
    else:
        for index, item in enumerate(cast("Sequence[object]", value)):
            _blame(item, f"{path}[{index}]", depth + 1)


def _check_text(value: str, path: str) -> None:
    if value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidValue(path, "the text holds a lone surrogate") from error


def shown_key(key: str) -> str:
    """A key for an error path: bounded and printable."""
    short = key if len(key) <= _SHOWN_KEY else f"{key[:_SHOWN_KEY]}..."
    return short if short.isprintable() else ascii(short)[1:-1]
