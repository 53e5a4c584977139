"""Canonical JSON and digests: the same value gives the same bytes in every process.

Object keys are strings sorted by code point; no white space; non-ASCII unescaped; integers of 64 bits. NaN, infinity,
and types without a JSON form (bytes, sets, objects) are refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import sys
import types
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Union, cast, get_args, get_origin, get_type_hints, is_typeddict
from uuid import UUID
from weakref import WeakKeyDictionary

import msgspec

from holdfast.errors import InvalidArgument, InvalidValue
from holdfast.records import ErrorInfo

if TYPE_CHECKING:
    from pydantic import TypeAdapter


MAX_DEPTH: Final = 64
"""Deepest nesting of lists and objects."""
_MIN_INT: Final = -(2**63)
_MAX_INT: Final = 2**64 - 1
_SHOWN_KEY: Final = 40
_encoder: Final = msgspec.json.Encoder(order="sorted")
_SAFE: Final = frozenset((bool, type(None)))


def canonical(value: object) -> bytes:
    """The canonical JSON of `value`; `InvalidValue` names the part without a JSON form."""
    check(value)
    return _encoder.encode(value)


canonical_json: Final = _encoder.encode
"""`canonical` without checks, for values read from JSON."""


def digest(domain: str, value: object) -> str:
    """SHA-256 of the canonical form of `value`, separate for each domain."""
    return digest_of_bytes(domain, canonical(value))


def digest_of_bytes(domain: str, body: bytes) -> str:
    """SHA-256 of a canonical form, separate for each domain."""
    return hashlib.sha256(b"holdfast:1:%b\n%b" % (domain.encode(), body)).hexdigest()


def check(value: object) -> None:
    """Raise `InvalidValue` for the first part of `value` without a JSON form."""
    if not fits(value):
        _blame(value, "$", 0)


def fits(value: Any, depth: int = 0) -> bool:  # callers may pass anything
    """True if all of `value` has a JSON form. The fast path: it builds no paths for errors."""
    kind: type[object] = type(value)  # pyright: ignore[reportUnknownVariableType]  # any type
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
        for item in value:  # noqa: SIM110  a generator is slower than the values
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


def _blame(value: Any, path: str, depth: int) -> None:  # callers may pass anything
    kind: type[object] = type(value)  # pyright: ignore[reportUnknownVariableType]  # any type
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
    elif kind is not dict and kind is not list and kind is not tuple:
        raise InvalidValue(path, f"a {kind.__name__} has no JSON form")
    elif depth >= MAX_DEPTH:
        raise InvalidValue(path, f"it is nested deeper than {MAX_DEPTH} levels")
    elif kind is dict:
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
    if not value.isascii() and not _encodes(value):
        raise InvalidValue(path, "the text holds a lone surrogate")


def shown_key(key: str) -> str:
    """A bounded and printable key for an error path."""
    short = key if len(key) <= _SHOWN_KEY else f"{key[:_SHOWN_KEY]}..."
    return short if short.isprintable() else ascii(short)[1:-1]


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


def encode_value(value: object) -> bytes:
    """The JSON of a result, with its order of keys; `InvalidValue` if it has no JSON form."""
    if not fits(value):
        value = plain(value)
        check(value)
    return _encode(value)


def json_of(value: object) -> bytes | None:
    """The JSON of plain JSON types; None for any other value."""
    return _encode(value) if fits(value) else None


def decode_value(body: bytes, returns: type[Any] | None = None) -> Any:
    """Decode a value as `returns`: a pydantic model, a dataclass, a struct or a built-in; by default as plain JSON."""
    try:
        return check_returns(returns)(body)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise InvalidValue("$", f"the recorded value does not fit {returns!r}: {error}") from error


def check_returns(returns: type[Any] | None) -> Callable[[bytes], Any]:
    """The decoder of recorded values as `returns`; raises for a type that can't be read from JSON."""
    if returns is None:
        return _decode
    try:
        return _decoder_of(returns)
    except TypeError:
        raise InvalidArgument("returns", returns, "a type that can be read from JSON") from None


@lru_cache(maxsize=256)
def _decoder_of(returns: type[Any]) -> Callable[[bytes], Any]:
    pydantic = sys.modules.get("pydantic")  # if the type needs pydantic, it is loaded already
    try:
        if pydantic is None or not _needs_pydantic(returns):
            return msgspec.json.Decoder(returns).decode
    except TypeError:
        if pydantic is None:
            raise
    try:
        return pydantic.TypeAdapter(returns).validate_json
    except pydantic.PydanticSchemaGenerationError as error:
        raise TypeError(str(error)) from error


def _needs_pydantic(returns: object, within: frozenset[object] = frozenset()) -> bool:
    """True if the type contains a pydantic type: msgspec accepts it, but then no value fits."""
    if hasattr(returns, "__pydantic_core_schema__"):
        return True
    parts: tuple[object, ...] = get_args(returns)
    if dataclasses.is_dataclass(returns) or is_typeddict(returns) or hasattr(returns, "_fields"):
        if returns in within:
            return False
        within |= {returns}
        with suppress(Exception):  # an annotation may not exist at run time
            parts += tuple(get_type_hints(returns).values())
    return any(_needs_pydantic(part, within) for part in parts)


def plain(value: object, path: str = "$", depth: int = 0) -> object:
    """`value` as plain JSON types, for types with an obvious JSON form. Sets and bytes have none."""
    if depth > MAX_DEPTH:
        raise InvalidValue(path, f"it is nested deeper than {MAX_DEPTH} levels")
    match value:
        case None | bool() | int() | float() | str() if not isinstance(value, Enum):
            return value
        case dict():
            items = cast("dict[object, object]", value).items()
            return {key: plain(item, f"{path}.{shown_key(str(key))}", depth + 1) for key, item in items}
        case list() | tuple():
            return [plain(item, f"{path}[{n}]", depth + 1) for n, item in enumerate(cast("list[object]", value))]
        case Enum():
            return plain(value.value, path, depth + 1)
        case datetime() | date() | time() | timedelta() | UUID() | Decimal():
            return msgspec.to_builtins(value)
        case PurePath():
            return str(value)
        case msgspec.Struct():
            # Keep the names and tags of the struct, so that it can be read back; `canonical` refuses bytes.
            return plain(msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview)), path, depth)
        case _:
            pass
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, path, depth)
    dump = getattr(value, "model_dump", None)
    if dump is not None and not isinstance(value, type):
        return dump(mode="json", by_alias=True)
    raise InvalidValue(path, f"a {type(value).__name__} has no JSON form")


MAX_ERROR: Final = 4_096
"""Longest recorded error message, in characters."""


def printable(text: str) -> str:
    """A text that can be encoded: lone surrogates become escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def bounded(message: str) -> str:
    """A message cut to the recorded length."""
    text = printable(message)
    return text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]}... ({len(text):,} characters)"


def error_info(error: BaseException, clean: Callable[[str], str] = str) -> ErrorInfo:
    """An error as recorded: its type and a bounded message."""
    try:
        message = clean(str(error))
    except Exception as trouble:  # record also an error whose `str` fails
        message = f"(its message can't be read: {type(trouble).__name__})"
    return ErrorInfo(type(error).__name__, bounded(message))


_PLAIN: Final[frozenset[object]] = frozenset((None, type(None), str, int, float, bool, list, dict, Any, object))
_PLAIN_NAMES: Final = frozenset(("None", "str", "int", "float", "bool", "list", "dict", "Any", "object"))
_resolved: Final[WeakKeyDictionary[types.CodeType, Any]] = WeakKeyDictionary()


def return_type(function: Callable[..., Any]) -> Any:  # annotations are of any type
    """The declared return type of a function; None for plain JSON types and unknown ones."""
    while isinstance(function, partial):
        function = cast("Callable[..., Any]", function.func)
    annotations: dict[str, Any] = getattr(function, "__annotations__", None) or {}
    wanted: Any = annotations.get("return")
    if isinstance(wanted, str):
        wanted = None if wanted in _PLAIN_NAMES else _resolve(function, wanted)
    if get_origin(wanted) in {Awaitable, Coroutine}:
        wanted = get_args(wanted)[-1]
    return None if _is_plain(wanted) else wanted


def _resolve(function: Callable[..., Any], annotation: str) -> Any:
    inner = getattr(function, "__func__", function)
    code = getattr(inner, "__code__", None)
    if code is None:
        return None
    if code not in _resolved:
        holder = types.SimpleNamespace(__annotations__={"return": annotation})
        try:
            hints = get_type_hints(holder, getattr(inner, "__globals__", {}), include_extras=True)
        except Exception:  # the annotation may not exist at run time
            hints = {}
        _resolved[code] = hints.get("return")
    return _resolved[code]


def _is_plain(wanted: Any) -> bool:
    """True if values of this type come out of JSON without a decoder."""
    origin, args = get_origin(wanted), get_args(wanted)
    if origin is None:
        return wanted is None or wanted is Any or (isinstance(wanted, type) and wanted in _PLAIN)
    if origin in {list, Union, types.UnionType}:
        return all(map(_is_plain, args))
    return origin is dict and args[0] is str and _is_plain(args[1])


def as_declared(value: Any, wanted: Any) -> Any:
    """A recorded value as the declared type; unchanged without one, or if it does not fit."""
    if wanted is None:
        return value
    body = encode_value(value)
    with suppress(Exception):  # no JSON form, a misfit, or a failing validator
        return decode_value(body, wanted)
    with suppress(Exception):  # pydantic knows types that msgspec lacks, such as paths
        return _adapter(wanted).validate_json(body)
    return value


@lru_cache(maxsize=256)
def _adapter(wanted: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # only if needed

    return TypeAdapter(wanted)
