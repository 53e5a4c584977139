"""Records without secrets. Pure: what is hidden is told by whoever calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from holdfast import records
from holdfast.records import ABSENT, Ask, ErrorInfo, Record

if TYPE_CHECKING:
    from holdfast.secrets.redactor import Redactor

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
        case Ask():
            body = clean_raw(value.body, redactor)
            return value if body is value.body else msgspec.structs.replace(value, body=body)
        case str():
            return redactor.text(value)
        case _:
            return value
