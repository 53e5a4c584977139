"""Values on their way into a journal and back.

What a caller gets from an effect is what every replay will get: the value after its way through JSON, also the first
time.
"""

from __future__ import annotations

import dataclasses
import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, cast, get_args
from uuid import UUID

import msgspec

from holdfast.effects.canonical import MAX_DEPTH, check, fits, shown_key
from holdfast.errors import InvalidArgument, InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


def encode_value(value: object) -> bytes:
    """The JSON of a result, keys in their own order; `InvalidValue` when it has none."""
    if not fits(value):
        value = plain(value)
        check(value)
    return _encode(value)


def decode_value(body: bytes, returns: type[Any] | None = None) -> Any:  # noqa: ANN401
    """The value in `body`, as `returns` if that is given: a pydantic model, a dataclass, a struct or a built-in."""
    try:
        return check_returns(returns)(body)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise InvalidValue("$", f"the recorded value does not fit {returns!r}: {error}") from error


def check_returns(returns: type[Any] | None) -> Callable[[bytes], Any]:
    """What decodes a recorded value as `returns`; a type that can't be decoded is refused before anything is done."""
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
    """Whether there is a type of pydantic's in it: msgspec takes such a one, and then finds that no value fits."""
    return hasattr(returns, "__pydantic_core_schema__") or any(map(_needs_pydantic, get_args(returns)))


def plain(value: object, path: str = "$", depth: int = 0) -> object:  # noqa: PLR0911  one line per kind of value
    """`value` in the words of JSON, where its type has an obvious form. Sets and bytes have none."""
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
