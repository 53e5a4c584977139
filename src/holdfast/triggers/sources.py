"""What makes a trigger go off: a time, a file, a webhook, an event. Frozen data, as it is recorded. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from holdfast.bounds import check_int
from holdfast.errors import InvalidArgument
from holdfast.errors.triggers import ScheduleInvalid, TriggerInvalid
from holdfast.names import check_choice, check_id, check_string
from holdfast.triggers import expressions
from holdfast.triggers.schedules import Calendar, Every, Schedule, to_wall, zone

Misfire = Literal["skip", "once", "all"]
Scheme = Literal["github", "stripe", "slack", "standard", "generic"]
Identity = Literal["stat", "content"]

MISFIRES: Final[tuple[str, ...]] = get_args(Misfire)
SCHEMES: Final[tuple[str, ...]] = get_args(Scheme)
IDENTITIES: Final[tuple[str, ...]] = get_args(Identity)
GRACE: Final = timedelta(minutes=1)
"""A moment that is not older is on time."""
CATCH_UP: Final = 100
"""How many moments are made up for at once, at the most."""
MOST_CATCH_UP: Final = 150
SHORTEST_MS: Final = 1_000
LONGEST_MS: Final = 10 * 366 * 86_400_000
MOST_FILES: Final = 10_000
TOLERANCE: Final = timedelta(minutes=5)
_WILD: Final = frozenset("*?[")


class _Timed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    misfire: Misfire = "once"
    """What becomes of moments that were missed: nothing, one run for all of them, or one for each."""
    grace_ms: int = 60_000
    catch_up: int = CATCH_UP


class CronSource(_Timed, frozen=True, omit_defaults=True, tag="cron"):
    """The moments of a cron expression."""

    expression: str
    tz: str = "UTC"

    def describe(self) -> str:
        return f"cron {self.expression} {self.tz}"


class IntervalSource(_Timed, frozen=True, omit_defaults=True, tag="interval"):
    """A moment every so often."""

    every_ms: int
    anchor: int | None = None
    """Where counting begins, in wall milliseconds; None is when the trigger was declared."""

    def describe(self) -> str:
        return f"every {timedelta(milliseconds=self.every_ms)}"


class WatchSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="watch"):
    """Files that appear, or change, beneath a folder."""

    folder: str
    pattern: str
    """Relative to the folder."""
    settle_ms: int = 1_000
    """A file that was not touched for so long is not being written any more."""
    poll_ms: int = 1_000
    most: int = MOST_FILES
    identity: Identity = "stat"

    def describe(self) -> str:
        return f"watch {self.folder.rstrip('/')}/{self.pattern}"


class WebhookSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="webhook"):
    """Signed requests from another service."""

    scheme: Scheme
    secret: str
    """Where the secret is; never the secret."""
    tolerance_ms: int = 300_000
    signature_header: str = ""
    id_header: str = ""

    def describe(self) -> str:
        return f"webhook {self.scheme}"


class EventSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="event"):
    """Events that the host tells."""

    name: str

    def describe(self) -> str:
        return f"event {self.name}"


Source: TypeAlias = CronSource | IntervalSource | WatchSource | WebhookSource | EventSource
SOURCES: Final = get_args(Source)


# ---- what people write -----------------------------------------------------------------------------------------------


def cron(
    expression: str,
    *,
    tz: str = "UTC",
    misfire: Misfire = "once",
    grace: timedelta | float = GRACE,
    catch_up: int = CATCH_UP,
) -> CronSource:
    """At the minutes of a cron expression, in a time zone.

    A time that does not exist (the clocks go forward) runs once at the first minute that does; one that comes twice
    runs once. `misfire` says what becomes of times that were missed by more than `grace`: ``skip`` them, run ``once``
    for all of them, or run ``all`` of them, at most `catch_up`.
    """
    expressions.parse(expression)
    zone(tz)
    _check_misfire(misfire, catch_up)
    grace_ms = span_ms("grace", grace, 0)
    return CronSource(
        expression=" ".join(expression.split()), tz=tz, misfire=misfire, grace_ms=grace_ms, catch_up=catch_up
    )


def interval(
    every: timedelta | float,
    *,
    anchor: datetime | None = None,
    misfire: Misfire = "once",
    grace: timedelta | float = GRACE,
    catch_up: int = CATCH_UP,
) -> IntervalSource:
    """Every so often, counted from `anchor` or from when the trigger was declared: the first time one period later."""
    _check_misfire(misfire, catch_up)
    if anchor is not None and (not isinstance(anchor, datetime) or anchor.tzinfo is None):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise ScheduleInvalid(anchor, "an anchor is a datetime that has a time zone")
    return IntervalSource(
        every_ms=span_ms("interval", every, SHORTEST_MS),
        anchor=None if anchor is None else to_wall(anchor),
        misfire=misfire,
        grace_ms=span_ms("grace", grace, 0),
        catch_up=catch_up,
    )


def watch(
    pattern: str,
    *,
    settle: timedelta | float = timedelta(seconds=1),
    poll: timedelta | float = timedelta(seconds=1),
    most: int = MOST_FILES,
    identity: Identity = "stat",
) -> WatchSource:
    """Files that fit a pattern such as ``inbox/*.pdf`` or ``inbox/**/*.csv``: each once, and again when it changes.

    A file counts when it was not touched for `settle`. What tells two files apart is path, size and time of change;
    with ``identity="content"``, path and content. Symbolic links are not followed.
    """
    folder, rest = _split(check_string("pattern", pattern))
    check_choice("identity", identity, IDENTITIES)
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
    """Requests that are signed as GitHub, Stripe, Slack, Standard Webhooks or plain HMAC-SHA256 (``generic``) do.

    `secret` says where the secret is (``env:NAME``); without it, ``env:GITHUB_WEBHOOK_SECRET`` and so on. `tolerance`
    is how old a request may be, and how long the same content again is a replay where a scheme signs no time. The
    headers are for ``generic``.
    """
    check_choice("webhook scheme", scheme, SCHEMES)
    place = f"env:{scheme.upper()}_WEBHOOK_SECRET" if secret is None else check_string("secret", secret)
    if not place.startswith(("env:", "keyring:")) or len(place) > 300:
        # What was given may be the secret itself: it is not shown.
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
    """Events of this name, which the host tells with ``runtime.emit_event``."""
    return EventSource(name=check_id("event", name))


def _check_misfire(misfire: object, catch_up: object) -> None:
    check_choice("misfire policy", misfire, MISFIRES)
    check_int("catch_up", catch_up, least=1, most=MOST_CATCH_UP)


def span_ms(what: str, span: object, least: int, most: int = LONGEST_MS) -> int:
    """A span of time in milliseconds; seconds where it is a number."""
    try:
        whole = span if isinstance(span, timedelta) else timedelta(seconds=_number(span))
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(what, span, "a timedelta or a number of seconds") from None
    return check_int(f"{what} in milliseconds", whole // timedelta(milliseconds=1), least=least, most=most)


def _number(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(given)
    return given


def _split(pattern: str) -> tuple[str, str]:
    """The folder in front of the first part with a wildcard, and the rest."""
    parts = pattern.replace("\\", "/").split("/")
    if ".." in parts or "\0" in pattern or len(pattern) > 1_000:
        raise TriggerInvalid(pattern, "a pattern has no '..', and at most 1,000 characters")
    if parts.count("**") > 1 or parts[-1] == "**":
        raise TriggerInvalid(pattern, "a pattern has one '**' at the most, and the name of files behind it")
    at = next((number for number, part in enumerate(parts) if _WILD & set(part)), len(parts) - 1)
    rest = [part for part in parts[at:] if part not in {"", "."}]
    if not rest:
        raise TriggerInvalid(pattern, "a pattern ends with the name of files, such as *.pdf")
    folder = "/".join(parts[:at])
    return (folder or "/") if pattern.startswith("/") else (folder or "."), "/".join(rest)


# ---- what they mean --------------------------------------------------------------------------------------------------


def schedule_of(source: Source, since: int) -> Schedule | None:
    """When a trigger that was declared at `since` is due; None when it has nothing to do with time."""
    match source:
        case CronSource():
            return _calendar(source.expression, source.tz)
        case IntervalSource():
            return Every(source.every_ms, since if source.anchor is None else source.anchor)
        case _:
            return None


def zone_of(source: Source) -> tzinfo:
    """The zone in which dates are told."""
    return zone(source.tz) if isinstance(source, CronSource) else zone("UTC")


@lru_cache(maxsize=256)
def _calendar(expression: str, tz: str) -> Calendar:
    return Calendar(expressions.parse(expression), zone(tz))
