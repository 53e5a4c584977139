"""A trigger as it is declared, and what may be said to one: what its inbox holds. Frozen data. Pure."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec

from holdfast.bounds import MAX_INT, check_int
from holdfast.effects.canonical import canonical, digest_of_bytes
from holdfast.effects.canonical import check as check_json
from holdfast.errors import InvalidArgument, RecordUnreadable
from holdfast.errors.triggers import TriggerInvalid
from holdfast.names import check_choice, check_id
from holdfast.triggers import templates
from holdfast.triggers.sources import SOURCES, Source, WatchSource, span_ms

PREFIX: Final = "trigger/"
"""What the ids of the journals of triggers begin with."""
ROLE: Final = "trigger"
"""The role of the journal of a trigger."""
MOST_BYTES: Final = 128 * 1024
"""The longest definition."""
MOST_AT_ONCE: Final = 100
MOST_PER_WINDOW: Final = 200
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)

Overflow = Literal["wait", "skip"]


class TriggerOptions(msgspec.Struct, frozen=True):
    """Who a trigger belongs to, and how much it may start."""

    owner: str = "host"
    """Nobody else changes it."""
    concurrency: int | None = None
    """How much of what it started may be under way at once."""
    per_window: int | None = None
    """How often it starts something in `window`."""
    window: timedelta | float = timedelta(minutes=1)
    overflow: Overflow = "wait"
    """What becomes of an occurrence when that is reached: it waits for its turn, or is skipped."""


class Terms(msgspec.Struct, frozen=True, omit_defaults=True):
    """`TriggerOptions`, as they are recorded."""

    owner: str = "host"
    concurrency: int | None = None
    per_window: int | None = None
    window_ms: int = 60_000
    overflow: Overflow = "wait"


class TargetName(msgspec.Struct, frozen=True):
    """What a trigger starts: an agent, a session or a process, by its name."""

    kind: str
    name: str

    def describe(self) -> str:
        return f"{self.kind} {self.name}"


class Definition(msgspec.Struct, frozen=True):
    """A trigger: what makes it go off, what it starts, with which arguments. Texts in them are templates."""

    name: str
    source: Source
    target: TargetName
    arguments: dict[str, Any]
    terms: Terms = Terms()

    def fingerprint(self) -> str:
        """What tells two definitions apart."""
        return digest_of_bytes("trigger", canonical(msgspec.to_builtins(self)))[:32]

    def source_print(self) -> str:
        """What tells two sources apart."""
        return digest_of_bytes("source", canonical(msgspec.to_builtins(self.source)))[:32]


# ---- what its inbox holds --------------------------------------------------------------------------------------------


class Define(msgspec.Struct, frozen=True, tag_field="t", tag="define"):
    """Be so from now on."""

    definition: Definition


class Switch(msgspec.Struct, frozen=True, tag_field="t", tag="switch", omit_defaults=True):
    """Go on, or stop."""

    enabled: bool
    by: str = ""


class Remove(msgspec.Struct, frozen=True, tag_field="t", tag="remove", omit_defaults=True):
    """Be no more."""

    by: str = ""


class Occur(msgspec.Struct, frozen=True, tag_field="t", tag="occur", omit_defaults=True):
    """Something happened. What names it is the key under which it was accepted."""

    payload: Any = None
    by: str = ""


Command: TypeAlias = Define | Switch | Remove | Occur

_decoder: Final = msgspec.json.Decoder(Command)


def decode(body: bytes) -> Command:
    """What was said to a trigger."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise RecordUnreadable(f"what was said to a trigger: {error}") from error


# ---- names and checks ------------------------------------------------------------------------------------------------


def check_trigger(name: object) -> str:
    """The name itself, or `TriggerInvalid`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise TriggerInvalid(
            name, "a name has letters, digits, '.', '-' and '_', at most 100, and begins with a letter or digit"
        )
    return name


def journal_of(name: str) -> str:
    """The id of the journal of a trigger."""
    return PREFIX + check_trigger(name)


def is_trigger_id(id: str) -> bool:
    """Whether a journal with this id is a trigger. No session is called like one."""
    return id.startswith(PREFIX) and _NAME.fullmatch(id.removeprefix(PREFIX)) is not None


def name_of(id: str) -> str:
    """The trigger whose journal has this id."""
    return id.removeprefix(PREFIX)


def terms_of(options: object) -> Terms:
    """Options as they are recorded; what is wrong with them is a named error."""
    if options is None:
        return Terms()
    if not isinstance(options, TriggerOptions):
        raise InvalidArgument("options", options, "TriggerOptions")
    check_choice("overflow", options.overflow, ("wait", "skip"))
    if options.concurrency is not None:
        check_int("concurrency", options.concurrency, least=1, most=MOST_AT_ONCE)
    if options.per_window is not None:
        check_int("per_window", options.per_window, least=1, most=MOST_PER_WINDOW)
    window = span_ms("window", options.window, 1, MAX_INT)
    owner = check_id("owner", options.owner)
    return Terms(owner, options.concurrency, options.per_window, window, options.overflow)


def define(
    name: object, source: object, target: TargetName, arguments: dict[str, Any], options: object = None
) -> Definition:
    """A definition that can be meant, or the error that says what is wrong with it."""
    named = check_trigger(name)
    if not isinstance(source, SOURCES):
        raise InvalidArgument("source", source, "hf.cron, hf.interval, hf.watch, hf.webhook or hf.event")
    words = templates.WORDS | templates.FILE_WORDS if isinstance(source, WatchSource) else templates.WORDS
    check_json(arguments)
    templates.check(arguments, words)
    found = Definition(named, cast("Source", source), target, arguments, terms_of(options))
    size = len(canonical(msgspec.to_builtins(found)))
    if size > MOST_BYTES:
        raise TriggerInvalid(named, f"it has {size:,} bytes, the limit is {MOST_BYTES:,}")
    return found
