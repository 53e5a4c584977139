"""Redaction of JSON, values and records. Everything else stays as it was, byte for byte. Pure."""

from __future__ import annotations

import re
from operator import is_
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast import records
from holdfast.records import ABSENT, EffectRequest, ErrorInfo, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.secrets.redactor import Redactor

MAX_DEPTH: Final = 200
"""Depth to which values are searched."""
TOO_DEEP: Final = "[too deep to be looked through]"
_REDACTED_FIELDS: Final = ("value", "body", "detail", "error", "ask", "note")
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?[0-9][0-9.eE+-]*', re.DOTALL)
_decode_text: Final = msgspec.json.Decoder(str).decode
_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(msgspec.Raw)


def redact_record(record: Record, body: bytes, redactor: Redactor) -> tuple[Record, bytes]:
    """Redact the content of a record, and its bytes.

    Raises `SecretExposed` if a key, a run or another name holds a secret: replay compares names, so they can't change.
    """
    if redactor.bytes(body, numbers=False) is body:
        return record, body
    fields: dict[str, Any] = {name: getattr(record, name, None) for name in _REDACTED_FIELDS}
    cleaned = {name: _redact_field(value, redactor) for name, value in fields.items()}
    changed = {name: value for name, value in cleaned.items() if value is not fields[name]}
    if changed:
        record = msgspec.structs.replace(record, **changed)
        body = records.encode(record)
    redactor.check_json("name of an effect, a run or a journal", body)
    return record, body


def redact_error_info(info: ErrorInfo, redactor: Redactor) -> ErrorInfo:
    """Redact a recorded error."""
    kind, message = redactor.text(info.kind), redactor.text(info.message)
    return info if kind is info.kind and message is info.message else ErrorInfo(kind, message)


def redact_raw(raw: msgspec.Raw, redactor: Redactor, *, numbers: bool = False) -> msgspec.Raw:
    """Redact JSON inside a record."""
    if raw is ABSENT:
        return raw
    body = bytes(raw)
    clean = redactor.bytes(body, numbers=numbers)
    return raw if clean is body else msgspec.Raw(clean)


def _redact_field(value: Any, redactor: Redactor) -> Any:  # noqa: ANN401  a field of a record
    match value:
        case msgspec.Raw():
            return redact_raw(value, redactor)
        case ErrorInfo():
            return redact_error_info(value, redactor)
        case EffectRequest():
            body = redact_raw(value.body, redactor)
            return value if body is value.body else msgspec.structs.replace(value, body=body)
        case str():
            return redactor.text(value)
        case _:
            return value


def redact_json(body: bytes, clean: Callable[[str], str], *, numbers: bool) -> bytes:
    """Apply `clean` to each text of some JSON, also to field names; with `numbers` also to each number.

    A number that is a secret becomes a text with its marker.
    """

    def redact_token(found: re.Match[bytes]) -> bytes:
        token = found[0]
        if not token.startswith(b'"'):
            return _redact_number(token, clean) if numbers else token
        try:
            text = _decode_text(token)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return token
        kept = clean(text)
        return token if kept is text else _encode(kept)

    return _TOKEN.sub(redact_token, body)


def _redact_number(token: bytes, clean: Callable[[str], str]) -> bytes:
    # Only a number that is a secret as a whole; one with the same digits in it is another number.
    digits = token.decode().lstrip("-")
    kept = clean(digits)
    whole = kept is not digits and kept[0] == "[" and kept[-1] == "]"
    return _encode(kept) if whole else token


def is_json(body: bytes) -> bool:
    """True if these bytes are one JSON value."""
    try:
        _decoder.decode(body)
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def redact_value(value: Any, text: Callable[[str], str], data: Callable[[bytes], bytes], depth: int = 0) -> Any:  # noqa: ANN401
    """Redact a value of plain lists, dicts, texts and bytes. A value without secrets stays the same object."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, bytes):
        return data(value)
    if type(value) not in {list, tuple, dict}:
        return value
    if depth > MAX_DEPTH:
        return TOO_DEEP
    parts = list(cast("Iterable[object]", value))
    if type(value) is dict:
        parts += cast("dict[object, object]", value).values()
    kept = [redact_value(part, text, data, depth + 1) for part in parts]
    if all(map(is_, kept, parts)):
        return cast("object", value)
    kind = type(cast("object", value))
    if kind is dict:  # its keys, then its values
        half = len(kept) // 2
        return dict(zip(kept[:half], kept[half:], strict=True))
    return tuple(kept) if kind is tuple else kept
