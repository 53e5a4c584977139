"""The redactor of a runtime: replaces the values of secrets by their names."""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakSet

from holdfast.errors import SecretExposed, SecretNameInvalid, SecretTooCommon, SecretTooLong, SecretTooShort
from holdfast.names import check_string
from holdfast.secrets.documents import is_json, redact_json, redact_value
from holdfast.secrets.forms import MIN_SECRET, make_finder, replace_spans, secret_forms, secret_marker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.secrets.forms import SecretFinder, SecretForms, SecretSpan

T = TypeVar("T")
MAX_LENGTH: Final = 65_536
"""Longest value, in characters."""
MAX_VALUES: Final = 64
"""Most values of one secret. If it changes more often, the oldest are forgotten."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,63}", re.ASCII)
_log: Final = logging.getLogger("holdfast.secrets")


class Redactor:
    """Replaces registered values, in all their forms, by their names.

    It is thread-safe. A value without secrets comes back as the same object. `reserved` are words of our own data: a
    secret that is a part of one of them is `SecretTooCommon`.
    """

    __slots__ = ("__weakref__", "_finder", "_lock", "_reserved", "_values", "_warned", "active")

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._reserved = frozenset(reserved)
        self._finder: SecretFinder | None = None
        self.active = False
        """True if a value is registered."""
        self._lock = threading.Lock()
        self._values: dict[str, dict[str, SecretForms]] = {}
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        return f"Redactor({', '.join(sorted(self._values))})"

    @property
    def names(self) -> tuple[str, ...]:
        """The secrets with a registered value."""
        return tuple(self._values)

    def reserve(self, words: Iterable[str]) -> None:
        """Add reserved words."""
        self._reserved |= frozenset(words)

    @property
    def finder(self) -> SecretFinder | None:
        """The finder of all registered values; replaced when a value is registered."""
        return self._finder

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
        forms = secret_forms(name, checked, short=short)
        with self._lock:
            values = {key: dict(forms) for key, forms in self._values.items()}
            own = values.setdefault(name, {})
            own[value] = forms
            forgotten = len(own) > MAX_VALUES
            if forgotten:
                del own[next(iter(own))]
            self._values = values
            self._finder = make_finder(values)
            self.active = True
            _redactors.add(self)
        if forgotten and name not in self._warned:
            self._warned.add(name)
            _log.warning(
                "the secret %s has had more than %d values; the oldest are not hidden any more", name, MAX_VALUES
            )

    def text(self, text: str) -> str:
        """Redact a text."""
        finder = self._finder
        return text if finder is None else replace_spans(text, finder.spans(text))

    def bytes(self, body: bytes, *, numbers: bool = True) -> bytes:
        """Redact bytes. JSON stays JSON, text stays text; in other data a secret becomes asterisks.

        In JSON, a number that is a secret becomes a text. Records set `numbers=False`: their own numbers must stay.
        """
        finder = self._finder
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
        return value if self._finder is None else redact_value(value, self.text, self.bytes)

    def spans(self, text: str) -> list[SecretSpan]:
        """Find the secrets in a text, from the left."""
        finder = self._finder
        return [] if finder is None else finder.spans(text)

    def find(self, text: str) -> str | None:
        """Return the name of the first secret in a text."""
        spans = self.spans(text)
        return spans[0].name if spans else None

    def find_in_json(self, body: bytes) -> str | None:
        """Return the name of the first secret in the texts of some JSON."""
        finder = self._finder
        names: list[str] = []

        def look(text: str) -> str:
            names.extend(span.name for span in self.spans(text))
            return text

        if finder is not None and finder.may_match(body):
            redact_json(body, look, numbers=False)
        return names[0] if names else None

    def check(self, what: str, text: str | None) -> None:
        """Raise `SecretExposed` if a name, which can't be redacted, holds a secret."""
        name = None if text is None else self.find(text)
        if name is not None:
            raise SecretExposed(what, name)

    def check_json(self, what: str, body: bytes) -> None:
        """Raise `SecretExposed` if JSON that can't be redacted holds a secret."""
        name = self.find_in_json(body)
        if name is not None:
            raise SecretExposed(what, name)

    def stream(self) -> StreamRedactor:
        """Return a redactor of one text that comes in pieces."""
        return StreamRedactor(lambda: self._finder)


class StreamRedactor:
    """Redacts one text that comes in pieces. It holds back an end that may be the beginning of a secret.

    It never holds back more than the longest form of a secret.
    """

    __slots__ = ("_covered", "_finder", "_held")

    def __init__(self, finder: Callable[[], SecretFinder | None]) -> None:
        self._finder = finder
        self._held = ""
        self._covered = 0
        """Number of held characters whose marker was shown already."""

    def feed(self, piece: str) -> str:
        """Add a piece; return the text that can be shown now."""
        finder = self._finder()
        if finder is None:
            return piece
        text = self._held + piece
        return self._show(finder, text, finder.begin_of_partial(text))

    def end(self) -> str:
        """Return the text that was held back."""
        finder = self._finder()
        return "" if finder is None else self._show(finder, self._held, len(self._held))

    def _show(self, finder: SecretFinder, text: str, safe: int) -> str:
        """The text up to `safe`, where a secret may begin. One that reaches beyond is hidden as far as it reaches."""
        shown: list[str] = []
        at = self._covered
        for span in finder.spans(text):
            if span.start >= safe:
                break
            if span.start >= at:
                shown += (text[at : span.start], secret_marker(span.name))
            at = max(at, span.end)
        if at < safe:
            shown.append(text[at:safe])
        self._held = text[safe:]
        self._covered = max(at - safe, 0)
        return "".join(shown)


_redactors: Final[WeakSet[Redactor]] = WeakSet()


def active_redactors() -> list[Redactor]:
    """Return the redactors of this process with a secret: for files that belong to no runtime."""
    return list(_redactors)


def check_secret_name(name: object) -> str:
    """Check a name. The error does not show an invalid name, which may be a secret."""
    if not isinstance(name, str):
        raise SecretNameInvalid(f"a {type(name).__name__} is none")
    if not _NAME.fullmatch(name):
        raise SecretNameInvalid(f"one of {len(name):,} characters was given that is none")
    return name


def _check_value(name: str, value: object, *, short: bool) -> str:
    if type(value) is not str or not value.strip():
        raise SecretTooShort(name, MIN_SECRET)
    check_string(f"the value of the secret {name}", value)
    if len(value.strip()) < MIN_SECRET and not short:
        raise SecretTooShort(name, MIN_SECRET)
    if len(value) > MAX_LENGTH:
        raise SecretTooLong(name, len(value), MAX_LENGTH)
    return value
