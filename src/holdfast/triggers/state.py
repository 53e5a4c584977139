"""The state of a trigger: cursor, reserved occurrences, and running starts. Pure.

Each change is a step from state to state. The state, the inputs that led to it and its reservations are written
together. An occurrence is reserved once: a moment because the state has a cursor, any other because the inbox accepts
its key once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.effects.canonical import digest
from holdfast.errors import RecordUnreadable
from holdfast.triggers import definition as definitions
from holdfast.triggers.definition import CronSource, IntervalSource, StartLimits, TriggerCommand, TriggerDefinition
from holdfast.triggers.schedules import Schedule, moments_between, to_datetime

MAX_QUEUE: Final = 200
"""Most reserved occurrences that are not started. Others wait in the inbox."""
MAX_COUNTED: Final = 1_000
"""Most missed moments that are counted."""
MAX_RECENT: Final = 20
"""Recent ends kept in the state. The journal has them all."""
RETRY_DELAYS_MS: Final = (1_000, 5_000, 30_000, 60_000, 300_000)
"""Delays before the retries of a refused start, in milliseconds."""
MAX_TRIES: Final = 20
"""Most attempts of a refused start."""
_LONG_KEY: Final = 150
"""Longest key of a start, in characters: it becomes the id of a session or a process."""


class Reservation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reserved occurrence, which will be started."""

    id: str
    at: int
    definition: int
    """The input with the definition that applies."""
    revision: int
    input: int = 0
    """The input that brought it; 0 for a moment."""
    tries: int = 0
    not_before: int = 0


class RunningStart(msgspec.Struct, frozen=True):
    """A start that may still run."""

    id: str
    ref: str
    definition: int


class OccurrenceEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of an occurrence, or of several that were skipped together."""

    id: str
    at: int
    what: str
    """started, skipped or failed."""
    why: str = ""
    """The reference of the start, or the reason why there was none."""
    count: int = 1
    due: int = 0
    """The time when it was due or accepted; `at` is the time of this end."""


class TriggerState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a trigger, as recorded in its journal."""

    number: int = 0
    taken: int = 0
    """The last input in this state."""
    definition: int = 0
    """The input with its definition; 0 before the first one."""
    revision: int = 0
    print: str = ""
    source_print: str = ""
    owner: str = ""
    enabled: bool = True
    since: int = 0
    """The time since which its source is unchanged."""
    cursor: int = 0
    """The last handled moment. It never goes back, even if the clock does."""
    next: int | None = None
    alarm: int = 0
    """The number of the wait that wakes it."""
    alarm_at: int | None = None
    queue: tuple[Reservation, ...] = ()
    running: tuple[RunningStart, ...] = ()
    starts: tuple[int, ...] = ()
    last: OccurrenceEnd | None = None
    """The last occurrence that started or failed."""
    recent: tuple[OccurrenceEnd, ...] = ()
    started: int = 0
    failed: int = 0
    skipped: int = 0


_decoder: Final = msgspec.json.Decoder(TriggerState)


def decode_state(body: bytes) -> TriggerState:
    """Decode a state; `RecordUnreadable` if it is damaged."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise RecordUnreadable(f"the state of a trigger: {error}") from error


class StateChange(NamedTuple):
    """A new state, with its reserved and dropped occurrences."""

    state: TriggerState
    reserved: tuple[Reservation, ...] = ()
    dropped: tuple[Reservation, ...] = ()


def take_command(state: TriggerState, number: int, key: str, at: int, command: TriggerCommand) -> StateChange:
    """Apply the command of input `number`, accepted under `key` at the time `at`."""
    state = replace(state, taken=number)
    match command:
        case definitions.DefineCommand(definition):
            return StateChange(_define(state, number, at, definition))
        case definitions.SwitchCommand(enabled):
            # Moments during the pause do not count as missed.
            return StateChange(replace(state, enabled=enabled, cursor=max(state.cursor, at)))
        case definitions.RemoveCommand():
            return _remove(state, at)
        case definitions.OccurCommand():
            if not state.definition:
                return StateChange(_skip(state, key, at, at, "the trigger was not declared yet"))
            if not state.enabled:
                return StateChange(_skip(state, key, at, at, "the trigger was disabled"))
            return _reserve(state, [Reservation(key, at, state.definition, state.revision, number)])


def _define(state: TriggerState, number: int, at: int, definition: TriggerDefinition) -> TriggerState:
    """An unchanged schedule continues; a new one begins now."""
    if definition.fingerprint() == state.print:
        return state
    source = definition.source_print()
    again = source == state.source_print
    return replace(
        state,
        definition=number,
        revision=state.revision + 1,
        print=definition.fingerprint(),
        source_print=source,
        owner=definition.terms.owner,
        since=state.since if again else at,
        cursor=state.cursor if again else at,
    )


def _remove(state: TriggerState, at: int) -> StateChange:
    """Revisions count on after a removal, so that a start is never taken for an earlier one."""
    dropped = state.queue
    for found in dropped:
        state = _skip(state, found.id, at, found.at, "the trigger was removed")
    bare = replace(state, definition=0, print="", source_print="", owner="", enabled=True, next=None)
    return StateChange(replace(bare, queue=(), running=(), starts=()), dropped=dropped)


def queue_room(state: TriggerState) -> int:
    """The number of occurrences that may still be reserved."""
    return max(MAX_QUEUE - len(state.queue), 0)


def reserve_due(state: TriggerState, definition: TriggerDefinition, now: int) -> StateChange:
    """Reserve or skip the moments up to `now`, and compute the next one."""
    source = definition.source
    schedule = definitions.source_schedule(source, state.since)
    if schedule is None or not isinstance(source, CronSource | IntervalSource) or not state.enabled:
        return StateChange(replace(state, next=None))
    step = _reserve_moments(state, source, schedule, now)
    return step._replace(state=replace(step.state, next=schedule.after(step.state.cursor)))


def _reserve_moments(
    state: TriggerState, source: CronSource | IntervalSource, schedule: Schedule, now: int
) -> StateChange:
    newest = schedule.until(now)
    most = min(source.catch_up, queue_room(state))
    if newest is None or newest <= state.cursor or not most:  # no room in the queue: moments wait
        return StateChange(state)
    kept = _moments_to_keep(source, schedule, state.cursor, now, most)
    missed = len(moments_between(schedule, state.cursor, now, MAX_COUNTED)) - len(kept)
    due = [Reservation(moment_id(at), at, state.definition, state.revision) for at in kept]
    step = _reserve(replace(state, cursor=newest), due)
    if missed <= 0:
        return step
    first = schedule.after(state.cursor) or now
    known = f"at least {missed:,}" if missed >= MAX_COUNTED - len(kept) else f"{missed:,}"
    why = f"{known} missed since {moment_id(first).partition('/')[2]}; misfire is {source.misfire!r}"
    return step._replace(state=_skip(step.state, moment_id(first), now, first, why, missed))


def _moments_to_keep(
    source: CronSource | IntervalSource, schedule: Schedule, cursor: int, now: int, most: int
) -> list[int]:
    """The moments to run: those on time, and missed ones by the policy."""
    on_time = moments_between(schedule, max(cursor, now - source.grace_ms - 1), now, most)
    if source.misfire == "all":
        return moments_between(schedule, cursor, now, most)
    if source.misfire == "once" and not on_time:
        return moments_between(schedule, cursor, now, 1)
    return on_time


def moment_id(at: int) -> str:
    """The occurrence id of a moment."""
    text = to_datetime(at).isoformat(timespec="milliseconds")
    return f"at/{text.removesuffix('+00:00').removesuffix('.000')}Z"


class StartChoice(NamedTuple):
    """The reservations to start and to skip now."""

    start: tuple[Reservation, ...] = ()
    skip: tuple[tuple[Reservation, str], ...] = ()
    again: int | None = None
    """Time of the next check if nothing else happens."""
    blocked: bool = False
    """A reservation waits for a running start."""


def choose_starts(state: TriggerState, definitions: Mapping[int, TriggerDefinition], now: int) -> StartChoice:
    """Choose the reservations that may start now, in order."""
    current = definitions.get(state.definition)
    terms = None if current is None else current.terms
    if terms is None:
        return StartChoice()
    free = _free_slots(terms.concurrency, len(state.running))
    within = [at for at in state.starts if abs(now - at) < terms.window_ms]
    left = _free_slots(terms.per_window, len(within))
    start: list[Reservation] = []
    skip: list[tuple[Reservation, str]] = []
    again: list[int] = []
    blocked = False
    for found in state.queue:
        if found.not_before > now:
            again.append(found.not_before)
        elif len(start) < min(free, left):
            start.append(found)
        elif terms.overflow == "skip":
            full = "too many are under way" if free <= left else "too many in this time"
            skip.append((found, full))
        elif len(start) >= free:
            blocked = True
        else:
            again.append(min(within, default=now) + terms.window_ms)
    return StartChoice(tuple(start), tuple(skip), min(again, default=None), blocked)


def _free_slots(most: int | None, used: int) -> int:
    return MAX_QUEUE if most is None else max(most - used, 0)


def after_start(state: TriggerState, found: Reservation, ref: str, terms: StartLimits, now: int) -> TriggerState:
    """The state after an occurrence started as `ref`."""
    told = OccurrenceEnd(found.id, now, "started", ref, due=found.at)
    running = (*state.running, RunningStart(found.id, ref, found.definition)) if terms.concurrency is not None else ()
    starts = (*state.starts, now)[-terms.per_window :] if terms.per_window is not None else ()
    rest = _without_reservation(state, found)
    return _add_recent(replace(rest, running=running, starts=starts, started=state.started + 1, last=told), told)


def after_refusal(state: TriggerState, found: Reservation, why: str, now: int) -> tuple[TriggerState, bool]:
    """The state after a refused start, and True if no retry is left."""
    if found.tries + 1 >= MAX_TRIES:
        return after_failure(state, found, f"{why} ({MAX_TRIES} tries)", now), True
    wait = RETRY_DELAYS_MS[min(found.tries, len(RETRY_DELAYS_MS) - 1)]
    later = replace(found, tries=found.tries + 1, not_before=now + wait)
    return replace(state, queue=tuple(later if one == found else one for one in state.queue)), False


def after_failure(state: TriggerState, found: Reservation, why: str, now: int) -> TriggerState:
    """The state after an occurrence failed to start."""
    told = OccurrenceEnd(found.id, now, "failed", why, due=found.at)
    return _add_recent(replace(_without_reservation(state, found), failed=state.failed + 1, last=told), told)


def after_skip(state: TriggerState, found: Reservation, why: str, now: int) -> TriggerState:
    """The state after a reservation was skipped."""
    return _skip(_without_reservation(state, found), found.id, now, found.at, why)


def after_ends(state: TriggerState, refs: Iterable[str]) -> TriggerState:
    """The state after some starts have ended."""
    ended = frozenset(refs)
    return replace(state, running=tuple(one for one in state.running if one.ref not in ended))


def start_key(name: str, found: Reservation) -> str:
    """The key of a start: trigger, revision and occurrence."""
    key = f"trigger/{name}/{found.revision}/{found.id}"
    if len(key) <= _LONG_KEY:
        return key
    return f"trigger/{name[:80]}/{found.revision}/{digest('occurrence', [name, found.id])[:40]}"


def needed_definitions(state: TriggerState) -> set[int]:
    """The inputs with definitions to which the state refers."""
    used = {state.definition, *(one.definition for one in state.queue), *(one.definition for one in state.running)}
    return used - {0}


def _reserve(state: TriggerState, found: list[Reservation]) -> StateChange:
    return StateChange(replace(state, queue=(*state.queue, *found)), tuple(found))


def _skip(state: TriggerState, id: str, now: int, due: int, why: str, count: int = 1) -> TriggerState:
    end = OccurrenceEnd(id, now, "skipped", why, count, due)
    return _add_recent(replace(state, skipped=state.skipped + count), end)


def _add_recent(state: TriggerState, told: OccurrenceEnd) -> TriggerState:
    return replace(state, recent=(*state.recent, told)[-MAX_RECENT:])


def _without_reservation(state: TriggerState, found: Reservation) -> TriggerState:
    return replace(state, queue=tuple(one for one in state.queue if one != found))
