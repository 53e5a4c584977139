"""Values on their way into a journal and back.

What a caller gets from an effect is what every replay will get: the value after its way through JSON, also the first
time.
"""

from __future__ import annotations

import dataclasses
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from holdfast.effects.canonical import canonical, check
from holdfast.errors import InvalidValue

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


def encode_value(value: object) -> bytes:
    """The JSON of a result, keys in their own order; `InvalidValue` when it has none."""
    try:
        check(value)
    except InvalidValue:
        value = plain(value)
        check(value)
    try:
        return _encode(value)
    except OverflowError as error:
        raise InvalidValue("$", "an integer is outside the 64-bit range") from error
    except UnicodeEncodeError as error:
        raise InvalidValue("$", "a string holds a lone surrogate") from error


def decode_value(body: bytes, returns: type[Any] | None = None) -> Any:  # noqa: ANN401
    """The value in `body`, as `returns` if that is given: a pydantic model, a dataclass, a struct or a built-in."""
    if returns is None:
        return _decode(body)
    validate = getattr(returns, "model_validate_json", None)
    if validate is not None:
        return validate(body)
    return msgspec.json.decode(body, type=returns)


def plain(value: object, path: str = "$") -> object:  # noqa: PLR0911  one line per kind of value
    """`value` in the words of JSON, where its type has an obvious form. Sets and bytes have none."""
    match value:
        case None | bool() | int() | float() | str() if not isinstance(value, Enum):
            return value
        case dict():
            items = cast("dict[object, object]", value).items()
            return {key: plain(item, f"{path}.{key}") for key, item in items}
        case list() | tuple():
            return [plain(item, f"{path}[{n}]") for n, item in enumerate(cast("list[object]", value))]
        case Enum():
            return plain(value.value, path)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID() | Decimal() | PurePath():
            return str(value)
        case _:
            return _plain_object(value, path)


def _plain_object(value: object, path: str) -> object:
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.structs.asdict(value), path)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return plain(fields, path)
    dump = getattr(value, "model_dump", None)
    if dump is not None and not isinstance(value, type):
        return dump(mode="json")
    raise InvalidValue(path, f"a {type(value).__name__} has no JSON form")


def canonical_value(value: object) -> bytes:
    """Canonical JSON of a value that may hold models, dataclasses and the like."""
    try:
        return canonical(value)
    except InvalidValue:
        return canonical(plain(value))
