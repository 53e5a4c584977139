"""Values as JSON for the journal, and back.

The caller of an effect gets the value after its way through JSON, the first time and in every replay.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID
from weakref import WeakKeyDictionary

import msgspec

from holdfast.effects.canonical import MAX_DEPTH, check, fits, shown_key
from holdfast.errors import InvalidArgument, InvalidValue
from holdfast.records import ErrorInfo

if TYPE_CHECKING:
    from pydantic import TypeAdapter


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


def encode_value(value: object) -> bytes:
    """The JSON of a result, keys in their own order; `InvalidValue` if it has no JSON form."""
    if not fits(value):
        value = plain(value)
        check(value)
    return _encode(value)


def json_of(value: object) -> bytes | None:
    """The JSON of a value of plain JSON types; None for any other."""
    return _encode(value) if fits(value) else None


def decode_value(body: bytes, returns: type[Any] | None = None) -> Any:  # noqa: ANN401
    """The value in `body`, as `returns` if given: a pydantic model, a dataclass, a struct or a built-in."""
    try:
        return check_returns(returns)(body)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise InvalidValue("$", f"the recorded value does not fit {returns!r}: {error}") from error


def check_returns(returns: type[Any] | None) -> Callable[[bytes], Any]:
    """A decoder of recorded values as `returns`; raises for a type that can't be read from JSON."""
    if returns is None:
        return _decode
    try:
        return _decoder_of(returns)
    except TypeError:
        raise InvalidArgument("returns", returns, "a type that can be read from JSON") from None


@lru_cache(maxsize=256)
def _decoder_of(returns: type[Any]) -> Callable[[bytes], Any]:
    pydantic = sys.modules.get("pydantic")  # a type made with pydantic needs pydantic, which is then loaded
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


def _needs_pydantic(returns: object) -> bool:
    """True if the type has a pydantic type in it: msgspec accepts such a type, but no value fits it."""
    return hasattr(returns, "__pydantic_core_schema__") or any(map(_needs_pydantic, get_args(returns)))


def plain(value: object, path: str = "$", depth: int = 0) -> object:
    """`value` as plain JSON types, if its type has an obvious JSON form. Sets and bytes have none."""
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
        case _:
            return _plain_object(value, path, depth)


def _plain_object(value: object, path: str, depth: int) -> object:
    if isinstance(value, msgspec.Struct):
        # Names and tags as the struct declares them, so that it can be read back; bytes are left for us to refuse.
        return plain(msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview)), path, depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return plain(fields, path, depth)
    dump = getattr(value, "model_dump", None)
    if dump is not None and not isinstance(value, type):
        return dump(mode="json", by_alias=True)
    raise InvalidValue(path, f"a {type(value).__name__} has no JSON form")


MAX_ERROR: Final = 4_096
"""Longest error message that is recorded, in characters."""


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
    except Exception as trouble:  # noqa: BLE001  an error that can't say what it is must still be recorded
        message = f"(its message can't be read: {type(trouble).__name__})"
    return ErrorInfo(type(error).__name__, bounded(message))


_PLAIN: Final[frozenset[object]] = frozenset((None, type(None), str, int, float, bool, list, dict, Any, object))
_PLAIN_NAMES: Final = frozenset(("None", "str", "int", "float", "bool", "list", "dict", "Any", "object"))
_resolved: Final[WeakKeyDictionary[types.CodeType, Any]] = WeakKeyDictionary()


def return_type(function: Callable[..., Any]) -> Any:  # noqa: ANN401  annotations are of any type
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


def _resolve(function: Callable[..., Any], annotation: str) -> Any:  # noqa: ANN401
    inner = getattr(function, "__func__", function)
    code = getattr(inner, "__code__", None)
    if code is None:
        return None
    if code not in _resolved:
        holder = types.SimpleNamespace(__annotations__={"return": annotation})
        try:
            hints = get_type_hints(holder, getattr(inner, "__globals__", {}), include_extras=True)
        except Exception:  # noqa: BLE001  what a function returns need not be there at run time
            hints = {}
        _resolved[code] = hints.get("return")
    return _resolved[code]


def _is_plain(wanted: Any) -> bool:  # noqa: ANN401
    """True if JSON gives values of this type back without a decoder."""
    origin, args = get_origin(wanted), get_args(wanted)
    if origin is None:
        return wanted is None or wanted is Any or (isinstance(wanted, type) and wanted in _PLAIN)
    if origin in {list, Union, types.UnionType}:
        return all(map(_is_plain, args))
    return origin is dict and args[0] is str and _is_plain(args[1])


def as_declared(value: Any, wanted: Any) -> Any:  # noqa: ANN401
    """A recorded value as the declared type; unchanged if it does not fit."""
    body = encode_value(value)
    for read in (decode_value, _read_with_pydantic):
        with suppress(Exception):  # a type without a JSON form, a value that does not fit, a validator that raises
            return read(body, wanted)
    return value


def _read_with_pydantic(body: bytes, wanted: Any) -> Any:  # noqa: ANN401
    """Pydantic knows types that msgspec does not, such as paths."""
    return _adapter(wanted).validate_json(body)


@lru_cache(maxsize=256)
def _adapter(wanted: Any) -> TypeAdapter[Any]:  # noqa: ANN401
    from pydantic import TypeAdapter  # noqa: PLC0415  only where it is needed

    return TypeAdapter(wanted)
