"""The redactor of a runtime: replaces the values of secrets by their names, in texts, JSON, values and records."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable
from operator import is_
from typing import Any, Final, TypeVar, cast
from weakref import WeakSet

import msgspec

from holdfast import records
from holdfast.errors import SecretExposed, SecretNameInvalid, SecretTooCommon, SecretTooLong, SecretTooShort
from holdfast.names import check_string
from holdfast.secrets import forms

T = TypeVar("T")
MAX_LENGTH: Final = 65_536
"""Longest value, in characters."""
MAX_VALUES: Final = 64
"""Most values of one secret; the oldest are forgotten."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,63}", re.ASCII)
_log: Final = logging.getLogger("holdfast.secrets")


class Redactor:
    """Replaces registered values, in all their forms, by their names. Thread-safe.

    A value without secrets comes back as the same object. `reserved` are words of our own data: a secret that is a part
    of one of them is `SecretTooCommon`.
    """

    __slots__ = ("__weakref__", "_lock", "_reserved", "_values", "_warned", "active", "finder")

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._reserved = frozenset(reserved)
        self.finder: forms.SecretFinder | None = None
        """The finder of all registered values; replaced by each registration."""
        self.active = False
        """True if a value is registered."""
        self._lock = threading.Lock()
        self._values: dict[str, dict[str, forms.SecretForms]] = {}
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        return f"Redactor({', '.join(sorted(self._values))})"

    @property
    def names(self) -> tuple[str, ...]:
        """The secrets with a registered value."""
        return tuple(self._values)

    def reserve(self, words: Iterable[str]) -> None:
        self._reserved |= frozenset(words)

    def register(self, name: str, value: str, *, short: bool = False) -> None:
        """Redact `value` from now on, in addition to earlier values of the same secret.

        A value of fewer than six characters is `SecretTooShort`. With `short` it is allowed, and redacted only between
        characters that are no letters or digits.
        """
        check_secret_name(name)
        if type(value) is str and value in self._values.get(name, ()):
            return
        checked = _check_value(name, value, short=short)
        if any(checked.strip() in word for word in self._reserved):
            raise SecretTooCommon(name)
        found = forms.secret_forms(name, checked, short=short)
        with self._lock:
            values = {key: dict(known) for key, known in self._values.items()}
            own = values.setdefault(name, {})
            own[value] = found
            forgotten = len(own) > MAX_VALUES
            if forgotten:
                del own[next(iter(own))]
            self._values = values
            self.finder = forms.make_finder(values)
            self.active = True
            _redactors.add(self)
        if forgotten and name not in self._warned:
            self._warned.add(name)
            _log.warning(
                "the secret %s has had more than %d values; the oldest are not hidden any more", name, MAX_VALUES
            )

    def text(self, text: str) -> str:
        return forms.replace_spans(text, self.spans(text))

    def bytes(self, body: bytes, *, numbers: bool = True) -> bytes:
        """Redact bytes. JSON stays JSON, text stays text; in other data a secret becomes asterisks.

        In JSON, a number that is a secret becomes a text. Records set `numbers=False`: their own numbers must stay.
        """
        finder = self.finder
        if finder is None or not finder.may_match(body):
            return body
        if is_json(body):
            clean = redact_json(body, self.text, numbers=numbers)
        elif b"\0" in body:  # UTF-16, or no text at all
            clean = finder.mask(body)
        else:
            try:
                clean = self.text(body.decode()).encode()
            except UnicodeDecodeError:
                clean = finder.mask(body)
        return body if clean == body else clean

    def value(self, value: T) -> T:
        """Redact a value of lists, dicts, texts and bytes."""
        return value if self.finder is None else redact_value(value, self.text, self.bytes)

    def spans(self, text: str) -> list[forms.SecretSpan]:
        finder = self.finder
        return [] if finder is None else finder.spans(text)

    def find(self, text: str) -> str | None:
        """The name of the first secret in a text."""
        spans = self.spans(text)
        return spans[0].name if spans else None

    def check(self, what: str, text: str | None) -> None:
        """Raise `SecretExposed` if a name, which can't be redacted, holds a secret."""
        name = None if text is None else self.find(text)
        if name is not None:
            raise SecretExposed(what, name)

    def check_json(self, what: str, body: bytes) -> None:
        """Raise `SecretExposed` if a text in some JSON, or the name of a field, holds a secret."""

        def check_text(text: str) -> str:
            self.check(what, text)
            return text

        if self.finder is not None and self.finder.may_match(body):
            redact_json(body, check_text, numbers=False)

    def stream(self) -> StreamRedactor:
        return StreamRedactor(self)


class StreamRedactor:
    """Redacts one text that comes in pieces.

    It holds back an end that may begin a secret, never more than the longest form of a secret.
    """

    __slots__ = ("_covered", "_held", "_redactor")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""
        self._covered = 0
        """Number of held characters whose marker was shown already."""

    def feed(self, piece: str) -> str:
        """Add a piece; returns the text that can be shown now."""
        finder = self._redactor.finder
        if finder is None:
            return piece
        text = self._held + piece
        return self._show(finder, text, finder.begin_of_partial(text))

    def end(self) -> str:
        finder = self._redactor.finder
        return "" if finder is None else self._show(finder, self._held, len(self._held))

    def _show(self, finder: forms.SecretFinder, text: str, safe: int) -> str:
        """The text up to `safe`, where a secret may begin; redacts one that reaches beyond."""
        shown: list[str] = []
        at = self._covered
        for span in finder.spans(text):
            if span.start >= safe:
                break
            if span.start >= at:
                shown += (text[at : span.start], forms.secret_marker(span.name))
            at = max(at, span.end)
        if at < safe:
            shown.append(text[at:safe])
        self._held = text[safe:]
        self._covered = max(at - safe, 0)
        return "".join(shown)


_redactors: Final[WeakSet[Redactor]] = WeakSet()


def active_redactors() -> list[Redactor]:
    """The redactors of this process with a secret, for files that belong to no runtime."""
    return list(_redactors)


def check_secret_name(name: object) -> str:
    """Check a name. The error does not show an invalid one, which may be a secret."""
    if not isinstance(name, str):
        raise SecretNameInvalid(f"a {type(name).__name__} is none")
    if not _NAME.fullmatch(name):
        raise SecretNameInvalid(f"one of {len(name):,} characters was given that is none")
    return name


def _check_value(name: str, value: object, *, short: bool) -> str:
    if type(value) is not str or not value.strip():
        raise SecretTooShort(name, forms.MIN_SECRET)
    check_string(f"the value of the secret {name}", value)
    if len(value.strip()) < forms.MIN_SECRET and not short:
        raise SecretTooShort(name, forms.MIN_SECRET)
    if len(value) > MAX_LENGTH:
        raise SecretTooLong(name, len(value), MAX_LENGTH)
    return value


# ---- JSON, values and records: everything but secrets stays as it was, byte for byte ----

MAX_DEPTH: Final = 200
"""Depth to which values are searched."""
TOO_DEEP: Final = "[too deep to be looked through]"
_REDACTED_FIELDS: Final = ("value", "body", "detail", "error", "ask", "note", "trace")
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?[0-9][0-9.eE+-]*', re.DOTALL)
_decode_text: Final = msgspec.json.Decoder(str).decode
_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(msgspec.Raw)


def redact_record(record: records.Record, body: bytes, redactor: Redactor) -> tuple[records.Record, bytes]:
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


def _redact_raw(raw: msgspec.Raw, redactor: Redactor) -> msgspec.Raw:
    if raw is records.ABSENT:
        return raw
    body = bytes(raw)
    clean = redactor.bytes(body, numbers=False)
    return raw if clean is body else msgspec.Raw(clean)


def _redact_field(value: Any, redactor: Redactor) -> Any:  # a field of a record
    match value:
        case msgspec.Raw():
            return _redact_raw(value, redactor)
        case records.ErrorInfo():
            kind, message = redactor.text(value.kind), redactor.text(value.message)
            return value if kind is value.kind and message is value.message else records.ErrorInfo(kind, message)
        case records.EffectRequest():
            body = _redact_raw(value.body, redactor)
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
        if token.startswith(b'"'):
            try:
                text = _decode_text(token)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return token
            kept = clean(text)
            return token if kept is text else _encode(kept)
        # Only a whole number is a secret; one with the same digits in it is another number.
        digits = token.decode().lstrip("-")
        kept = clean(digits) if numbers else digits
        return _encode(kept) if kept is not digits and kept[0] == "[" and kept[-1] == "]" else token

    return _TOKEN.sub(redact_token, body)


def is_json(body: bytes) -> bool:
    """True if these bytes are one JSON value."""
    try:
        _decoder.decode(body)
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def redact_value(value: Any, text: Callable[[str], str], data: Callable[[bytes], bytes], depth: int = 0) -> Any:
    """Redact a value of plain lists, dicts, texts and bytes; without secrets it stays the same object."""
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
