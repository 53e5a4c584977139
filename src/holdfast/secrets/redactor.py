"""The redactor of one runtime: knows the values that were lent out, and puts their names in their place."""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakSet

from holdfast.errors.caller import SecretExposed, SecretNameInvalid, SecretTooCommon, SecretTooLong, SecretTooShort
from holdfast.names import check_string
from holdfast.secrets.documents import clean_json, clean_value, is_json
from holdfast.secrets.forms import SHORTEST, forms_of, known_of, marker, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.secrets.forms import Forms, Known, Span


class RedactedStream:
    """Shows the pieces of one text, and holds back what may be the beginning of a secret.

    It never holds back more than the longest form of a secret, and nothing of a text that does not end like one begins.
    """

    __slots__ = ("_covered", "_held", "_known")

    def __init__(self, known: Callable[[], Known | None]) -> None:
        self._known = known
        self._held = ""
        self._covered = 0
        """So many characters of what is held have had their marker already."""

    def feed(self, piece: str) -> str:
        """What may be shown now that this piece has come."""
        known = self._known()
        if known is None:
            return piece
        text = self._held + piece
        return self._show(known, text, known.begun(text))

    def end(self) -> str:
        """What was held back: nothing more comes."""
        known = self._known()
        return "" if known is None else self._show(known, self._held, len(self._held))

    def _show(self, known: Known, text: str, safe: int) -> str:
        """The text up to `safe`, where a secret may begin. One that reaches beyond is hidden as far as it reaches."""
        shown: list[str] = []
        at = self._covered
        for span in known.spans(text):
            if span.start >= safe:
                break
            if span.start >= at:
                shown += (text[at : span.start], marker(span.name))
            at = max(at, span.end)
        if at < safe:
            shown.append(text[at:safe])
        self._held = text[safe:]
        self._covered = max(at - safe, 0)
        return "".join(shown)


T = TypeVar("T")
LONGEST: Final = 65_536
"""The longest value, in characters."""
MAX_VALUES: Final = 64
"""So many values of one name are known at once. Of a secret that changes more often, the oldest are forgotten."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,63}", re.ASCII)
_log: Final = logging.getLogger("holdfast.secrets")


def check_secret_name(name: object) -> str:
    """The name itself, or `SecretNameInvalid`. What is no name may be a secret, so it is not shown."""
    if not isinstance(name, str):
        raise SecretNameInvalid(f"a {type(name).__name__} is none")
    if not _NAME.fullmatch(name):
        raise SecretNameInvalid(f"one of {len(name):,} characters was given that is none")
    return name


class Redactor:
    """Replaces the values that were registered by their names, in all the forms that they may have.

    Any thread may use it. What has no secret in it comes back as the same object. `reserved` are words that data of
    our own is made of: a value that is a part of one of them is `SecretTooCommon`.
    """

    __slots__ = ("__weakref__", "_known", "_lock", "_reserved", "_values", "_warned", "active")

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._reserved = frozenset(reserved)
        self._known: Known | None = None
        self.active = False
        """Whether there is anything to hide."""
        self._lock = threading.Lock()
        self._values: dict[str, dict[str, Forms]] = {}
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        return f"Redactor({', '.join(sorted(self._values))})"

    @property
    def names(self) -> tuple[str, ...]:
        """The secrets of which a value is known."""
        return tuple(self._values)

    def reserve(self, words: Iterable[str]) -> None:
        """More words that data of our own is made of."""
        self._reserved |= frozenset(words)

    @property
    def known(self) -> Known | None:
        """All that is looked for; another object after a value was registered."""
        return self._known

    def register(self, name: str, value: str, *, short: bool = False) -> None:
        """From now on `value` is hidden; values that were registered before stay hidden.

        A value of fewer than six characters is `SecretTooShort`, unless `short` says that it may be: then it is hidden
        where no letter or digit stands beside it.
        """
        check_secret_name(name)
        if type(value) is str and value in self._values.get(name, ()):
            return
        checked = _checked(name, value, short=short)
        if any(checked.strip() in word for word in self._reserved):
            raise SecretTooCommon(name)
        forms = forms_of(name, checked, short=short)
        with self._lock:
            values = {key: dict(known) for key, known in self._values.items()}
            own = values.setdefault(name, {})
            own[value] = forms
            forgotten = len(own) > MAX_VALUES
            if forgotten:
                del own[next(iter(own))]
            self._values = values
            self._known = known_of(values)
            self.active = True
            _in_use.add(self)
        if forgotten and name not in self._warned:
            self._warned.add(name)
            _log.warning(
                "the secret %s has had more than %d values; the oldest are not hidden any more", name, MAX_VALUES
            )

    def text(self, text: str) -> str:
        """A text without secrets."""
        known = self._known
        return text if known is None else replaced(text, known.spans(text))

    def bytes(self, body: bytes, *, numbers: bool = True) -> bytes:
        """Bytes without secrets. JSON stays JSON, text stays text; in anything else a secret becomes stars.

        In JSON, a number that is a secret becomes a text, unless `numbers` is False: for records, whose own numbers
        must stay numbers.
        """
        known = self._known
        if known is None or not known.in_bytes(body):
            return body
        if is_json(body):
            clean = clean_json(body, self.text, numbers=numbers)
        elif b"\0" in body:  # UTF-16, or no text at all
            clean = known.masked(body)
        else:
            try:
                clean = self.text(body.decode()).encode()
            except UnicodeDecodeError:
                clean = known.masked(body)
        return body if clean == body else clean

    def value(self, value: T) -> T:
        """A value of lists, dicts, texts and bytes without secrets."""
        return value if self._known is None else clean_value(value, self.text, self.bytes)

    def spans(self, text: str) -> list[Span]:
        """Where secrets stand in a text, from the left."""
        known = self._known
        return [] if known is None else known.spans(text)

    def found(self, text: str) -> str | None:
        """The name of a secret that stands in a text, if one does."""
        known = self._known
        spans = [] if known is None else known.spans(text)
        return spans[0].name if spans else None

    def found_in(self, body: bytes) -> str | None:
        """The name of a secret that stands in a text of some JSON, if one does."""
        known = self._known
        names: list[str] = []
        if known is not None and known.in_bytes(body):
            clean_json(
                body, lambda text: (names.extend(span.name for span in known.spans(text)), text)[1], numbers=False
            )
        return names[0] if names else None

    def check(self, what: str, text: str | None) -> None:
        """Raise `SecretExposed` when a name, which is kept as it is, holds a secret."""
        name = None if text is None else self.found(text)
        if name is not None:
            raise SecretExposed(what, name)

    def check_json(self, what: str, body: bytes) -> None:
        """Raise `SecretExposed` when some JSON that must stay as it is holds a secret."""
        name = self.found_in(body)
        if name is not None:
            raise SecretExposed(what, name)

    def stream(self) -> RedactedStream:
        """For a text that comes in pieces: a secret that is cut over two of them is not shown."""
        return RedactedStream(self._now)

    def _now(self) -> Known | None:
        return self._known


_in_use: Final[WeakSet[Redactor]] = WeakSet()


def redactors_in_use() -> list[Redactor]:
    """The redactors of this process that know a secret: for files that belong to no runtime."""
    return list(_in_use)


def _checked(name: str, value: object, *, short: bool) -> str:
    if type(value) is not str or not value.strip():
        raise SecretTooShort(name, SHORTEST)
    check_string(f"the value of the secret {name}", value)
    if len(value.strip()) < SHORTEST and not short:
        raise SecretTooShort(name, SHORTEST)
    if len(value) > LONGEST:
        raise SecretTooLong(name, len(value), LONGEST)
    return value
