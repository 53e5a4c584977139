"""Declarations of triggers: sources, argument templates, options, and the commands in their inbox. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import msgspec

from holdfast.effects.canonical import canonical, digest_of_bytes
from holdfast.effects.canonical import check as check_json
from holdfast.errors import InvalidArgument, RecordUnreadable
from holdfast.errors.caller import ScheduleInvalid, TemplateInvalid, TriggerInvalid
from holdfast.errors.world import TemplateUnfilled
from holdfast.names import MAX_INT, TRIGGER_NAME, TRIGGER_PREFIX, check_choice, check_id, check_int, check_string
from holdfast.triggers import schedules

Misfire = Literal["skip", "once", "all"]
Scheme = Literal["github", "stripe", "slack", "standard", "generic"]
Identity = Literal["stat", "content"]
GRACE: Final = timedelta(minutes=1)
"""Moments up to this age are on time."""
CATCH_UP: Final = 100
"""Default limit of missed moments to run."""
MAX_CATCH_UP: Final = 150
MIN_SPAN_MS: Final = 1_000
MAX_SPAN_MS: Final = 10 * 366 * 86_400_000
MAX_FILES: Final = 10_000
TOLERANCE: Final = timedelta(minutes=5)
_WILDCARDS: Final = frozenset("*?[")


class _TimedSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    misfire: Misfire = "once"
    """Policy for missed moments: skip them, run once, or run each."""
    grace_ms: int = 60_000
    catch_up: int = CATCH_UP


class CronSource(_TimedSource, frozen=True, omit_defaults=True, tag="cron"):
    """The moments of a cron expression."""

    expression: str
    tz: str = "UTC"

    def describe(self) -> str:
        return f"cron {self.expression} {self.tz}"


class IntervalSource(_TimedSource, frozen=True, omit_defaults=True, tag="interval"):
    """Moments at a fixed interval."""

    every_ms: int
    anchor: int | None = None
    """Start of the count in wall milliseconds; None for the time of the declaration."""

    def describe(self) -> str:
        return f"every {timedelta(milliseconds=self.every_ms)}"


class WatchSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="watch"):
    """Files that appear or change beneath a folder."""

    folder: str
    pattern: str
    """Relative to the folder."""
    settle_ms: int = 1_000
    """A file is complete when it has not changed for this long."""
    poll_ms: int = 1_000
    most: int = MAX_FILES
    identity: Identity = "stat"

    def describe(self) -> str:
        return f"watch {self.folder.rstrip('/')}/{self.pattern}"


class WebhookSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="webhook"):
    """Signed requests from another service."""

    scheme: Scheme
    secret: str
    """Reference to the secret, never the secret itself."""
    tolerance_ms: int = 300_000
    signature_header: str = ""
    id_header: str = ""

    def describe(self) -> str:
        return f"webhook {self.scheme}"


class EventSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="event"):
    """Events that the host emits."""

    name: str

    def describe(self) -> str:
        return f"event {self.name}"


Source: TypeAlias = CronSource | IntervalSource | WatchSource | WebhookSource | EventSource


def cron(
    expression: str,
    *,
    tz: str = "UTC",
    misfire: Misfire = "once",
    grace: timedelta | float = GRACE,
    catch_up: int = CATCH_UP,
) -> CronSource:
    """The minutes of a cron expression, in a time zone.

    A local time skipped by a clock change runs once, at the first minute after the gap; a repeated one runs once.
    `misfire` is the policy for times missed by more than `grace`: ``skip`` them, run ``once`` for all of them, or run
    ``all`` of them, at most `catch_up`.
    """
    schedules.parse_cron(expression)
    schedules.check_zone(tz)
    _check_misfire(misfire, catch_up)
    written, grace_ms = " ".join(expression.split()), span_ms("grace", grace, 0)
    return CronSource(expression=written, tz=tz, misfire=misfire, grace_ms=grace_ms, catch_up=catch_up)


def interval(
    every: timedelta | float,
    *,
    anchor: datetime | None = None,
    misfire: Misfire = "once",
    grace: timedelta | float = GRACE,
    catch_up: int = CATCH_UP,
) -> IntervalSource:
    """Moments at a fixed interval from `anchor`, or from the declaration: the first one period later."""
    _check_misfire(misfire, catch_up)
    if anchor is not None and (not isinstance(anchor, datetime) or anchor.tzinfo is None):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise ScheduleInvalid(anchor, "an anchor is a datetime that has a time zone")
    return IntervalSource(
        every_ms=span_ms("interval", every, MIN_SPAN_MS),
        anchor=None if anchor is None else schedules.to_wall(anchor),
        misfire=misfire,
        grace_ms=span_ms("grace", grace, 0),
        catch_up=catch_up,
    )


def watch(
    pattern: str,
    *,
    settle: timedelta | float = timedelta(seconds=1),
    poll: timedelta | float = timedelta(seconds=1),
    most: int = MAX_FILES,
    identity: Identity = "stat",
) -> WatchSource:
    """Files that match a pattern such as ``inbox/*.pdf`` or ``inbox/**/*.csv``: each once, and again when it changes.

    A file counts when it has not changed for `settle`. Its identity is path, size and time of change; with
    ``identity="content"``, path and content. Symbolic links are not followed.
    """
    folder, rest = _split_pattern(check_string("pattern", pattern))
    check_choice("identity", identity, get_args(Identity))
    return WatchSource(
        folder=folder,
        pattern=rest,
        settle_ms=span_ms("settle", settle, 0),
        poll_ms=span_ms("poll", poll, 10),
        most=check_int("most", most, least=1, most=100_000),
        identity=identity,
    )


def webhook(
    scheme: Scheme,
    *,
    secret: str | None = None,
    tolerance: timedelta | float = TOLERANCE,
    signature_header: str = "",
    id_header: str = "",
) -> WebhookSource:
    """Requests signed as by GitHub, Stripe, Slack, Standard Webhooks or plain HMAC-SHA256 (``generic``).

    `secret` refers to the secret (``env:NAME``); by default ``env:GITHUB_WEBHOOK_SECRET`` and so on. `tolerance` is the
    greatest age of a request; where a scheme signs no time, it is the window in which the same content again is a
    replay. The headers are for ``generic``.
    """
    check_choice("webhook scheme", scheme, get_args(Scheme))
    place = f"env:{scheme.upper()}_WEBHOOK_SECRET" if secret is None else check_string("secret", secret)
    if not place.startswith(("env:", "keyring:")) or len(place) > 300:
        # The invalid reference may be the secret itself, so the error does not show it.
        raise TriggerInvalid(f"webhook {scheme}", "its secret is a reference such as env:NAME, never the secret itself")
    if scheme != "generic" and (signature_header or id_header):
        raise TriggerInvalid(f"webhook {scheme}", "only 'generic' has headers to choose")
    return WebhookSource(
        scheme=scheme,
        secret=place,
        tolerance_ms=span_ms("tolerance", tolerance, 1_000),
        signature_header=check_string("header", signature_header).lower(),
        id_header=check_string("header", id_header).lower(),
    )


def event(name: str) -> EventSource:
    """Events of this name from ``runtime.emit_event``."""
    return EventSource(name=check_id("event", name))


def _check_misfire(misfire: object, catch_up: object) -> None:
    check_choice("misfire policy", misfire, get_args(Misfire))
    check_int("catch_up", catch_up, least=1, most=MAX_CATCH_UP)


def span_ms(what: str, span: object, least: int, most: int = MAX_SPAN_MS) -> int:
    """A timedelta, or seconds, in milliseconds."""
    if isinstance(span, bool) or not isinstance(span, int | float | timedelta):
        raise InvalidArgument(what, span, "a timedelta or a number of seconds")
    try:
        whole = span if isinstance(span, timedelta) else timedelta(seconds=span)
    except (ValueError, OverflowError):
        raise InvalidArgument(what, span, "a timedelta or a number of seconds") from None
    return check_int(f"{what} in milliseconds", whole // timedelta(milliseconds=1), least=least, most=most)


def _split_pattern(pattern: str) -> tuple[str, str]:
    """The folder before the first wildcard, and the rest."""
    parts = pattern.replace("\\", "/").split("/")
    if ".." in parts or "\0" in pattern or len(pattern) > 1_000:
        raise TriggerInvalid(pattern, "a pattern has no '..', and at most 1,000 characters")
    if parts.count("**") > 1 or parts[-1] == "**":
        raise TriggerInvalid(pattern, "a pattern has one '**' at the most, and the name of files behind it")
    at = next((number for number, part in enumerate(parts) if _WILDCARDS & set(part)), len(parts) - 1)
    rest = [part for part in parts[at:] if part not in {"", "."}]
    if not rest:
        raise TriggerInvalid(pattern, "a pattern ends with the name of files, such as *.pdf")
    folder = "/".join(parts[:at])
    return (folder or "/") if pattern.startswith("/") else (folder or "."), "/".join(rest)


def source_schedule(source: Source, since: int) -> schedules.Schedule | None:
    """The schedule of a trigger declared at `since`; None for sources without a clock."""
    if isinstance(source, CronSource):
        return _calendar(source.expression, source.tz)
    if isinstance(source, IntervalSource):
        return schedules.IntervalSchedule(source.every_ms, since if source.anchor is None else source.anchor)
    return None


def source_zone(source: Source) -> tzinfo:
    """The time zone for dates in templates."""
    return schedules.check_zone(source.tz) if isinstance(source, CronSource) else schedules.check_zone("UTC")


@lru_cache(maxsize=256)
def _calendar(expression: str, tz: str) -> schedules.CronSchedule:
    return schedules.CronSchedule(schedules.parse_cron(expression), schedules.check_zone(tz))


PAYLOAD: Final = "payload"
_VALUES: Final = ("trigger", "occurrence", "revision", "date", "time", "datetime", "timestamp", PAYLOAD)
TEMPLATE_NAMES: Final = frozenset(_VALUES)
FILE_NAMES: Final = frozenset(("path", "file"))
"""Only for watched files."""
_OUTSIDE_NAMES: Final = frozenset((PAYLOAD, "occurrence", *FILE_NAMES))
MAX_ARGUMENTS: Final = 256 * 1024
"""Longest filled text, in characters."""
_PLACEHOLDER: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_PATH: Final = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+)*", re.ASCII)


def check_template(template: object, words: frozenset[str] = TEMPLATE_NAMES) -> None:
    """Raise `TemplateInvalid` for the first unknown placeholder at any depth."""
    for text, found in _placeholders(template):
        whole, place = found.group(0), found.group(1)
        if whole in {"{{", "}}"}:
            continue
        if place is None or not _PATH.fullmatch(place):
            raise TemplateInvalid(text, f"{whole!r} is no place")
        word, dot, _ = place.partition(".")
        if word not in words:
            raise TemplateInvalid(text, f"there is no {{{word}}}; there are {', '.join(sorted(words))}")
        if dot and word != PAYLOAD:
            raise TemplateInvalid(text, f"{{{word}}} has no parts")


def uses_outside_values(template: object) -> bool:
    """True if the template uses values written by outsiders."""
    return any((found.group(1) or "").partition(".")[0] in _OUTSIDE_NAMES for _, found in _placeholders(template))


def _placeholders(template: object) -> Iterator[tuple[str, re.Match[str]]]:
    """Each text of a template with one of its placeholders or double braces."""
    if isinstance(template, str):
        yield from ((template, found) for found in _PLACEHOLDER.finditer(template))
    elif isinstance(template, dict):
        yield from _placeholders(list(cast("dict[str, object]", template).values()))
    elif isinstance(template, list | tuple):
        for inner in cast("list[object]", template):
            yield from _placeholders(inner)


def fill_template(template: Any, values: Mapping[str, Any]) -> Any:  # any JSON value
    """Fill the placeholders; `TemplateUnfilled` for a missing value or a text that is too long."""
    if isinstance(template, str):
        return _fill_text(template, values)
    if isinstance(template, dict):
        return {key: fill_template(inner, values) for key, inner in cast("dict[str, Any]", template).items()}
    if isinstance(template, list | tuple):
        return [fill_template(inner, values) for inner in cast("list[Any]", template)]
    return template


def _fill_text(template: str, values: Mapping[str, Any]) -> Any:
    alone = _PLACEHOLDER.fullmatch(template)
    if alone is not None and alone.group(1) is not None:
        return _placeholder_value(alone.group(1), values)

    def render(found: re.Match[str]) -> str:
        if found.group(1) is None:
            return found.group(0)[0]
        value = _placeholder_value(found.group(1), values)
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()

    filled = _PLACEHOLDER.sub(render, template)
    if len(filled) > MAX_ARGUMENTS:
        reason = f"the text becomes {len(filled):,} characters long, the limit is {MAX_ARGUMENTS:,}"
        raise TemplateUnfilled(PAYLOAD, reason)
    return filled


def _placeholder_value(place: str, values: Mapping[str, Any]) -> Any:
    value: Any = values
    for part in place.split("."):
        if isinstance(value, list) and part.isdigit() and int(part) < len(cast("list[Any]", value)):
            value = cast("list[Any]", value)[int(part)]
        elif isinstance(value, dict) and part in value:
            value = cast("dict[str, Any]", value)[part]
        else:
            raise TemplateUnfilled(place, f"there is no {part!r}")
    return value


def template_values(
    *, trigger: str, revision: int, occurrence: str, at: int, where: tzinfo, payload: object
) -> dict[str, Any]:
    """The placeholder values of an occurrence. Dates and times are in the trigger's time zone."""
    moment = schedules.to_datetime(at, where)
    found: dict[str, Any] = {
        "trigger": trigger,
        "revision": revision,
        "occurrence": occurrence,
        "date": moment.date().isoformat(),
        "time": moment.strftime("%H:%M"),
        "datetime": moment.isoformat(timespec="seconds"),
        "timestamp": at // 1000,
        PAYLOAD: payload,
    }
    if isinstance(payload, dict):
        given = cast("dict[str, Any]", payload)
        found |= {"path": given.get("path"), "file": given.get("name")}
    return found


TRIGGER_ROLE: Final = "trigger"
"""The role of the journal of a trigger."""
MAX_DEFINITION: Final = 128 * 1024
"""Longest definition, in bytes."""
MAX_AT_ONCE: Final = 100
MAX_PER_WINDOW: Final = 200
Overflow = Literal["wait", "skip"]


class TriggerOptions(msgspec.Struct, frozen=True):
    """The owner and the limits of a trigger."""

    owner: str = "host"
    """Only this owner may change it."""
    concurrency: int | None = None
    """Most runs at once."""
    per_window: int | None = None
    """Most starts in `window`."""
    window: timedelta | float = timedelta(minutes=1)
    overflow: Overflow = "wait"
    """The treatment of an occurrence at a limit: wait, or skip it."""


class StartLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """`TriggerOptions` in their recorded form."""

    owner: str = "host"
    concurrency: int | None = None
    per_window: int | None = None
    window_ms: int = 60_000
    overflow: Overflow = "wait"


class TargetName(msgspec.Struct, frozen=True):
    """The target of a trigger by kind and name."""

    kind: str
    name: str

    def describe(self) -> str:
        return f"{self.kind} {self.name}"


class TriggerDefinition(msgspec.Struct, frozen=True):
    """A trigger: source, target, and arguments, whose texts are templates."""

    name: str
    source: Source
    target: TargetName
    arguments: dict[str, Any]
    terms: StartLimits = StartLimits()

    def fingerprint(self) -> str:
        """The digest that identifies the definition."""
        return digest_of_bytes("trigger", canonical(msgspec.to_builtins(self)))[:32]

    def source_print(self) -> str:
        """The digest that identifies the source."""
        return digest_of_bytes("source", canonical(msgspec.to_builtins(self.source)))[:32]


class DefineCommand(msgspec.Struct, frozen=True, tag_field="t", tag="define"):
    """Define the trigger."""

    definition: TriggerDefinition


class SwitchCommand(msgspec.Struct, frozen=True, tag_field="t", tag="switch", omit_defaults=True):
    """Switch the trigger on or off."""

    enabled: bool
    by: str = ""


class RemoveCommand(msgspec.Struct, frozen=True, tag_field="t", tag="remove", omit_defaults=True):
    """Remove the trigger."""

    by: str = ""


class OccurCommand(msgspec.Struct, frozen=True, tag_field="t", tag="occur", omit_defaults=True):
    """An occurrence; its input key identifies it."""

    payload: Any = None


TriggerCommand: TypeAlias = DefineCommand | SwitchCommand | RemoveCommand | OccurCommand
_decoder: Final = msgspec.json.Decoder(TriggerCommand)


def decode_command(body: bytes) -> TriggerCommand:
    """Decode a command from the inbox."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise RecordUnreadable(f"what was said to a trigger: {error}") from error


def check_trigger(name: object) -> str:
    """Return the name, or raise `TriggerInvalid`."""
    if not isinstance(name, str) or not TRIGGER_NAME.fullmatch(name):
        reason = "a name has letters, digits, '.', '-' and '_', at most 100, and begins with a letter or digit"
        raise TriggerInvalid(name, reason)
    return name


def trigger_journal(name: str) -> str:
    """The id of the journal of a trigger."""
    return TRIGGER_PREFIX + check_trigger(name)


def trigger_name(id: str) -> str:
    """The trigger whose journal has this id."""
    return id.removeprefix(TRIGGER_PREFIX)


def check_options(options: object) -> StartLimits:
    """Check options; answers their recorded form."""
    if options is None:
        return StartLimits()
    if not isinstance(options, TriggerOptions):
        raise InvalidArgument("options", options, "TriggerOptions")
    check_choice("overflow", options.overflow, get_args(Overflow))
    if options.concurrency is not None:
        check_int("concurrency", options.concurrency, least=1, most=MAX_AT_ONCE)
    if options.per_window is not None:
        check_int("per_window", options.per_window, least=1, most=MAX_PER_WINDOW)
    window = span_ms("window", options.window, 1, MAX_INT)
    owner = check_id("owner", options.owner)
    return StartLimits(owner, options.concurrency, options.per_window, window, options.overflow)


def make_definition(
    name: object, source: object, target: TargetName, arguments: dict[str, Any], options: object = None
) -> TriggerDefinition:
    """Make a definition; `TriggerInvalid` for wrong values."""
    named = check_trigger(name)
    if not isinstance(source, get_args(Source)):
        raise InvalidArgument("source", source, "hf.cron, hf.interval, hf.watch, hf.webhook or hf.event")
    words = TEMPLATE_NAMES | FILE_NAMES if isinstance(source, WatchSource) else TEMPLATE_NAMES
    check_json(arguments)
    check_template(arguments, words)
    found = TriggerDefinition(named, cast("Source", source), target, arguments, check_options(options))
    size = len(canonical(msgspec.to_builtins(found)))
    if size > MAX_DEFINITION:
        raise TriggerInvalid(named, f"it has {size:,} bytes, the limit is {MAX_DEFINITION:,}")
    return found
