"""Checks of ids, names, texts, numbers, lists of words and options."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from typing import Final, TypeVar, cast

from holdfast.errors import InvalidArgument, InvalidId, InvalidNumber

T = TypeVar("T")
STORE_FOLDER = ".holdfast"
"""Default folder of stores; no toolkit reaches it."""
MAX_ID = 256
"""Longest id of a journal, an input key, a wait, a step or an agent, in characters."""
MAX_NAME = 200
"""Longest name of a scope or a key of memory, in characters."""
_PLAIN = re.compile(r"[A-Za-z0-9_]+(?:[-/:@][A-Za-z0-9_]+)*").fullmatch
"""Matches nearly all ids; these are valid without a look at each character."""
_NO_PATH_PARTS = frozenset(("", ".", ".."))


def check_id(what: str, value: object) -> str:
    """Return the id, or raise `InvalidId` with the reason.

    An id is 1 to 256 characters without control characters. It may have slashes, but no parts that leave a folder
    (``..``), so that an id can safely become a file name in an export.
    """
    if not isinstance(value, str):
        raise InvalidId(what, value, f"it is a {type(value).__name__}, not a string")
    if not value:
        raise InvalidId(what, value, "it is empty")
    if len(value) > MAX_ID:
        raise InvalidId(what, value, f"it has {len(value):,} characters, the limit is {MAX_ID}")
    if _PLAIN(value):
        return value
    for character in value:
        # Cc control, Cf format (bidi overrides), Cs lone surrogates, Co private, Cn unassigned, Zl and Zp line breaks
        category = unicodedata.category(character)
        if category.startswith("C") or category in {"Zl", "Zp"}:
            raise InvalidId(what, value, f"it has the character U+{ord(character):04X}")
    if value != value.strip():
        raise InvalidId(what, value, "it begins or ends with white space")
    if any(part in _NO_PATH_PARTS for part in value.replace("\\", "/").split("/")):
        raise InvalidId(what, value, "it has an empty, '.' or '..' part")
    return value


def check_name(what: str, value: object) -> str:
    """Return the name, or raise `InvalidId` with the reason.

    A name is an id that works as one file name everywhere: at most 200 characters, no separators, no dot at its ends,
    and in the normal form NFC, which gives the same word the same characters.
    """
    name = check_id(what, value)
    if len(name) > MAX_NAME:
        raise InvalidId(what, value, f"it has {len(name):,} characters, the limit is {MAX_NAME}")
    if "/" in name or "\\" in name:
        raise InvalidId(what, value, "it has a separator (/ or \\)")
    if name[0] == "." or name[-1] == ".":
        raise InvalidId(what, value, "it begins or ends with a dot")
    if not unicodedata.is_normalized("NFC", name):
        raise InvalidId(what, value, "it is not in the normal form NFC")
    return name


def check_choice(what: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise `InvalidId` unless `value` is one of a few words."""
    if type(value) is not str or value not in choices:
        raise InvalidId(what, value, f"it is one of {', '.join(choices)}")


def check_text(what: str, value: object, limit: int = 1_000) -> str:
    """Return a text, cut to `limit` characters; raises `InvalidId` for any other value."""
    return check_string(what, value)[:limit]


def check_string(what: str, value: object) -> str:
    """Return a text of any length that can be stored as UTF-8; raises `InvalidId` for any other value."""
    if not isinstance(value, str):
        raise InvalidId(what, value, f"it is a {type(value).__name__}, not a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidId(what, value, "it holds a lone surrogate") from None
    return value


def check_line(what: str, value: object) -> str:
    """Return a text of one line, which may be empty; raises `InvalidId` for any other value."""
    text = check_string(what, value)
    for character in text:
        if unicodedata.category(character) in {"Cc", "Zl", "Zp"}:
            raise InvalidId(what, value, f"it has the character U+{ord(character):04X}, and one line is wanted")
    if text != text.strip():
        raise InvalidId(what, value, "it begins or ends with white space")
    return text


MAX_INT: Final = 2**62
"""Larger than any time, size, position or count, and safe in every store."""


def check_int(what: str, value: object, *, least: int = 0, most: int = MAX_INT) -> int:
    """Return the integer, or raise `InvalidNumber` with the reason."""
    if type(value) is not int:
        raise InvalidNumber(what, value, f"it is a {type(value).__name__}, not an integer")
    if not least <= value <= most:
        raise InvalidNumber(what, value, f"it must be from {least:,} to {most:,}")
    return value


def check_number(what: str, value: object, *, above: bool = False, most: float = math.inf) -> float:
    """Return a finite number from 0 to `most`, with `above` not zero; raises `InvalidNumber` for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidNumber(what, value, "it must be a finite number")
    if value < 0 or (above and value == 0):
        raise InvalidNumber(what, value, "it must be above 0" if above else "it must be 0 or more")
    if value > most:
        raise InvalidNumber(what, value, f"it must be at most {most:,}")
    return value


def check_words(what: str, value: object, wanted: str = "a list of words") -> tuple[str, ...]:
    """Return the texts in a list, or raise `InvalidArgument`. One text alone is no list."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        given = tuple(cast("Iterable[object]", value))
        words = tuple(word for word in given if isinstance(word, str))
        if len(words) == len(given):
            return words
    raise InvalidArgument(what, cast("object", value), wanted)


def default_or_given(what: str, kind: type[T], given: object, wanted: str) -> T:
    """Return an option of the type `kind`, by default `kind()`."""
    made = kind() if given is None else given
    if not isinstance(made, kind):
        raise InvalidArgument(what, given, wanted)
    return made


PROCESS_PREFIX: Final = "process/"
TRIGGER_PREFIX: Final = "trigger/"
PUMP_PREFIX: Final = "pump/"
TRIGGER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
_AGENT_SESSION: Final = re.compile(r"(.+)\.[0-9a-f]{12}", re.DOTALL)
_PUMP_ID: Final = re.compile(r"pump/[0-9a-f]{20}")
_TASK_ID: Final = re.compile(r"task-[0-9a-f]{20}")


def is_task_id(id: str) -> bool:
    """True for the journal of a task. No session has such an id."""
    return _TASK_ID.fullmatch(id) is not None


def is_process_journal(journal: str) -> bool:
    """True for the journal of a durable function. No session has such an id."""
    return journal.startswith(PROCESS_PREFIX)


def is_trigger_id(id: str) -> bool:
    """True for the journal of a trigger. No session has such an id."""
    return id.startswith(TRIGGER_PREFIX) and TRIGGER_NAME.fullmatch(id.removeprefix(TRIGGER_PREFIX)) is not None


def is_pump_id(id: str) -> bool:
    """True for the journal of a pump of notifications. No session has such an id."""
    return _PUMP_ID.fullmatch(id) is not None


def agent_session(process: str, key: str) -> str:
    """The id of the session in which a process asks an agent; `key` is the idempotency key of the effect."""
    return f"{process}.{key[:12]}"


def agent_session_process(id: str) -> str | None:
    """The process that made the session with this id to ask an agent; None for the ids of other sessions."""
    found = _AGENT_SESSION.fullmatch(id)
    return None if found is None else found[1]


def is_turn_id(id: str) -> bool:
    """True for the id of a turn: ``t`` and the number of the input that began it."""
    number = id[1:]
    return id[:1] == "t" and id[1:2] != "0" and len(number) <= 18 and number.isascii() and number.isdigit()


def is_session_id(id: str) -> bool:
    """True for the id of a session: not of a task, a process, a trigger or a pump."""
    return not (is_task_id(id) or is_process_journal(id) or is_trigger_id(id) or is_pump_id(id))
