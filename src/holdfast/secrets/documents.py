"""JSON without secrets, otherwise byte for byte as it was. Pure."""

from __future__ import annotations

import re
from operator import is_
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from holdfast import records
from holdfast.records import ABSENT, EffectRequest, ErrorInfo, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.secrets.redactor import Redactor


MAX_DEPTH: Final = 200
"""How deep a value is looked through."""
DEEP: Final = "[too deep to be looked through]"
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?[0-9][0-9.eE+-]*', re.DOTALL)
_decode_text: Final = msgspec.json.Decoder(str).decode
_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(msgspec.Raw)


def is_json(body: bytes) -> bool:
    """Whether these bytes are one JSON value."""
    try:
        _decoder.decode(body)
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def clean_json(body: bytes, clean: Callable[[str], str], *, numbers: bool) -> bytes:
    """JSON in which `clean` has seen each text, also the names of fields; with `numbers`, also each number.

    A number that is a secret becomes the text that stands for it.
    """

    def token(found: re.Match[bytes]) -> bytes:
        said = found[0]
        if not said.startswith(b'"'):
            return _number(said, clean) if numbers else said
        try:
            text = _decode_text(said)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return said
        kept = clean(text)
        return said if kept is text else _encode(kept)

    return _TOKEN.sub(token, body)


def _number(said: bytes, clean: Callable[[str], str]) -> bytes:
    """A number that is a secret as a whole; one that only has the same digits in it is another number."""
    digits = said.decode().lstrip("-")
    kept = clean(digits)
    whole = kept is not digits and kept[0] == "[" and kept[-1] == "]"
    return _encode(kept) if whole else said


def clean_value(value: Any, text: Callable[[str], str], data: Callable[[bytes], bytes], depth: int = 0) -> Any:  # noqa: ANN401
    """A value of plain lists, dicts, texts and bytes without secrets; what has none in it stays the same object."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, bytes):
        return data(value)
    if type(value) not in {list, tuple, dict}:
        return value
    if depth > MAX_DEPTH:
        return DEEP
    parts = list(cast("Iterable[object]", value))
    if type(value) is dict:
        parts += cast("dict[object, object]", value).values()
    kept = [clean_value(part, text, data, depth + 1) for part in parts]
    return cast("object", value) if all(map(is_, kept, parts)) else _like(cast("object", value), kept)


def _like(value: object, parts: list[Any]) -> object:
    """A list, a tuple, or a dict with first its names and then what they stand for."""
    if type(value) is dict:
        half = len(parts) // 2
        return dict(zip(parts[:half], parts[half:], strict=True))
    return tuple(parts) if type(value) is tuple else parts


T = TypeVar("T")
_RAW: Final = ("value", "body", "detail")


def clean_record(record: Record, body: bytes, redactor: Redactor) -> tuple[Record, bytes]:
    """A record and its bytes without secrets: what it tells is cleaned, what it is called by is refused.

    Raises `SecretExposed` when a key, a run or another name holds a secret: names are compared on replay, and could
    not be found again under another one.
    """
    if redactor.bytes(body, numbers=False) is body:
        return record, body
    changed = _changes(record, redactor)
    if changed:
        record = msgspec.structs.replace(record, **changed)
        body = records.encode(record)
    redactor.check_json("name of an effect, a run or a journal", body)
    return record, body


def clean_error(info: ErrorInfo, redactor: Redactor) -> ErrorInfo:
    """An error as data, without secrets."""
    kind, message = redactor.text(info.kind), redactor.text(info.message)
    return info if kind is info.kind and message is info.message else ErrorInfo(kind, message)


def clean_raw(raw: msgspec.Raw, redactor: Redactor, *, numbers: bool = False) -> msgspec.Raw:
    """JSON that is in a record, without secrets."""
    if raw is ABSENT:
        return raw
    body = bytes(raw)
    clean = redactor.bytes(body, numbers=numbers)
    return raw if clean is body else msgspec.Raw(clean)


def _changes(record: Record, redactor: Redactor) -> dict[str, Any]:
    """The fields of a record that tell something, as far as they are to be told otherwise."""
    fields: dict[str, Any] = {name: getattr(record, name, None) for name in (*_RAW, "error", "ask", "note")}
    cleaned = {name: _cleaned(value, redactor) for name, value in fields.items()}
    return {name: value for name, value in cleaned.items() if value is not fields[name]}


def _cleaned(value: Any, redactor: Redactor) -> Any:  # noqa: ANN401  a field of a record
    match value:
        case msgspec.Raw():
            return clean_raw(value, redactor)
        case ErrorInfo():
            return clean_error(value, redactor)
        case EffectRequest():
            body = clean_raw(value.body, redactor)
            return value if body is value.body else msgspec.structs.replace(value, body=body)
        case str():
            return redactor.text(value)
        case _:
            return value
