"""The drive of one trigger: take its inbox, reserve due occurrences, start them.

Each round writes its inputs, a reservation for each occurrence and the new state in one commit. Only then does it start
anything, under a key of trigger, revision and occurrence. After an interruption the round repeats, and the same key is
the same start. A trigger without work parks with one timer and leaves nothing in memory.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from holdfast import errors, records
from holdfast.agent import Agent
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import canonical, digest_of_bytes
from holdfast.effects.keys import segment
from holdfast.engine.embedded import TRANSIENT_ERRORS
from holdfast.eventloop import cancel_all, spawn
from holdfast.logs import log_event
from holdfast.names import check_id, check_string
from holdfast.processes.definition import AnyProcess, ProcessDefinition
from holdfast.runtime.deferrals import Resolve, ResolveTarget
from holdfast.runtime.drive import JournalDrive
from holdfast.runtime.session import Session
from holdfast.secrets.logs import safe_trace
from holdfast.store.lease import LeaseHolder
from holdfast.triggers import definition as definitions
from holdfast.triggers import state as trigger_state
from holdfast.triggers.state import Reservation, RunningStart, TriggerState, decode_state, needed_definitions, start_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.processes.service import Processes
    from holdfast.runtime.context import RuntimeContext
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.turn import Turn
    from holdfast.store import Store
    from holdfast.store.contract import Lease


_END_STATUSES: Final = frozenset(("completed", "failed", "cancelled", "limit", "abandoned"))
PROMPT: Final = "prompt"
SESSION: Final = "session"


class PromptTarget:
    """Sends a prompt: to one session, or to an agent, in a new session for each occurrence or in a named one."""

    def __init__(self, runtime: Runtime, target_name: definitions.TargetName, session: Session | None = None) -> None:
        self.target_name = target_name
        self._runtime = runtime
        self._session = session

    def check(self, arguments: Mapping[str, Any]) -> None:
        name, prompt = self.target_name.name, arguments.get(PROMPT)
        if not isinstance(prompt, str) or not prompt.strip():
            raise errors.TriggerInvalid(name, "an agent or a session needs a prompt: every(..., prompt='...')")
        known = (PROMPT, SESSION) if self._session is None else (PROMPT,)
        if unknown := sorted(set(arguments) - set(known)):
            raise errors.TriggerInvalid(name, f"it takes {' and '.join(known)}, not {', '.join(unknown)}")
        if (session := arguments.get(SESSION)) is not None:
            check_string(SESSION, session)

    async def start(self, key: str, arguments: Mapping[str, Any], *, untrusted: bool) -> str:
        """Send the prompt, once for each key; answers a reference to the turn."""
        session, prompt = self._session, arguments[PROMPT]
        if session is None:
            chosen = check_id(SESSION, arguments.get(SESSION) or key)
            session = self._runtime.session(chosen, agent=self.target_name.name)
        if not isinstance(prompt, str):  # a template of a single placeholder gives the value itself
            prompt = canonical(prompt).decode()
        turn = await session.send(prompt, key=key, untrusted=untrusted)
        return f"{turn.session}/{turn.id}"


class ProcessTarget:
    """Starts a durable function."""

    def __init__(self, processes: Processes, definition: AnyProcess) -> None:
        self.target_name = definitions.TargetName("process", definition.name)
        self._processes = processes
        self._definition = definition

    def check(self, arguments: Mapping[str, Any]) -> None:
        self._definition.bind(**arguments)

    async def start(self, key: str, arguments: Mapping[str, Any], *, untrusted: bool) -> str:
        """Start the process with the id `key`, once; answers its id."""
        await self._processes.start(self._definition, (), dict(arguments), id=key, untrusted=untrusted)
        return key


Target: TypeAlias = PromptTarget | ProcessTarget | ResolveTarget


class Targets:
    """The targets known in this process, and their started work."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._known: dict[definitions.TargetName, Target] = {}

    def bind(self, given: object) -> Target:
        match given:
            case Agent():
                name = definitions.TargetName("agent", self._runtime.register(cast("Agent", given)).name)
                target: Target = PromptTarget(self._runtime, name)
            case Session():
                target = PromptTarget(
                    self._runtime, definitions.TargetName("session", given.id), cast("Session", given)
                )
            case ProcessDefinition():
                target = ProcessTarget(self._runtime.processes, cast("AnyProcess", given))
            case Resolve():
                target = ResolveTarget(self._runtime)
            case _:
                raise errors.InvalidArgument("target", given, "an agent, a session or a process")
        self._known[target.target_name] = target
        return target

    def find(self, name: definitions.TargetName) -> Target | None:
        if name not in self._known and name.kind == "agent" and name.name in self._runtime.agents:
            return PromptTarget(self._runtime, name)
        return self._known.get(name)

    async def is_over(self, target: definitions.TargetName, ref: str) -> bool:
        """True if the work started as `ref` has ended. An answer ends at once."""
        if target.kind == "process":
            return await self._runtime.processes.handle(ref).status() in _END_STATUSES
        return target.kind == "resolve" or await self._turn(ref).status() in _END_STATUSES

    async def wait_for_end(self, target: definitions.TargetName, ref: str) -> None:
        if target.kind != "process":
            await self._turn(ref).outcome()
            return
        try:
            await self._runtime.processes.handle(ref).result()
        except errors.HoldfastError:
            if not await self.is_over(target, ref):
                raise

    def _turn(self, ref: str) -> Turn:
        session, _, turn = ref.rpartition("/")
        return self._runtime.session(session).turn(turn)


_log: Final = logging.getLogger("holdfast.triggers")
RUN: Final = records.TRIGGER_RUN
"""The run of a trigger's journal. No turn has this name."""
UNKNOWN_TARGET_MS: Final = 60_000
"""Delay of a start with a target unknown to this process, in milliseconds."""
ALARM_PREFIX: Final = f"{RUN}/alarm."
"""Prefix of the waits that wake a trigger."""
_STATE_KEY: Final = f"{RUN}/books"
LAST_RECORDS: Final = 3
"""The last records that hold the state. Each commit ends with it, or with it and a `Parked`."""
_LOOK_INTERVAL: Final = 30.0
"""Interval of checks of work in other processes, in seconds."""
_STORE_TROUBLE: Final = (*TRANSIENT_ERRORS, errors.StoreClosed, errors.RuntimeStopped)
"""Errors of the store: the drive ends and is tried again."""
_OUTSIDE_SOURCES: Final = (definitions.EventSource, definitions.WatchSource, definitions.WebhookSource)
"""Sources whose occurrences carry content from outsiders."""
_REFUSED_FOR_NOW: Final = (errors.InboxFull, errors.RateExceeded)
"""Refusals that are retried later."""


async def read_trigger(store: Store, id: str) -> tuple[TriggerState, bool]:
    """The state of a trigger, and whether it is parked; `JournalMissing` without one."""
    line = await store.journal(id)
    entries = await store.tail(id, LAST_RECORDS)
    for entry in reversed(entries):
        if isinstance(entry.record, records.Done) and entry.record.key.startswith(_STATE_KEY):
            return decode_state(bytes(entry.record.value)), isinstance(entries[-1].record, records.Parked)
    if line.head > 1:
        raise errors.RecordUnreadable(f"the journal {id!r} has no trigger state at its end")
    return TriggerState(), False


async def read_definition(store: Store, id: str, number: int) -> definitions.TriggerDefinition:
    """Read a definition from an input of a trigger."""
    found = await store.input(id, number)
    command = None if found is None else definitions.decode_command(found.body)
    if not isinstance(command, definitions.DefineCommand):
        raise errors.RecordUnreadable(f"input {number} of {id!r} defines nothing")
    return command.definition


class TriggerDrive(JournalDrive):
    """One drive of one trigger."""

    def __init__(self, context: RuntimeContext, id: str, targets: Targets) -> None:
        super().__init__(context, id)
        self._targets = targets
        self._name = definitions.trigger_name(id)
        self._came = asyncio.Event()
        self._state = TriggerState()
        self._parked = False
        self._definitions: dict[int, definitions.TriggerDefinition] = {}
        self._lost: asyncio.Future[errors.HoldfastError]
        """Done with the error if this drive has lost its lease."""

    def _on_news(self) -> None:
        self._came.set()

    def _on_loss(self, error: errors.HoldfastError) -> None:
        self._came.set()

    def stop(self) -> None:
        """Stop after this round."""
        super().stop()
        self._came.set()

    async def _drive(self, lease: Lease, lost: asyncio.Future[errors.HoldfastError]) -> None:
        self._lost = lost
        self._state, self._parked = await read_trigger(self._store, self.session)
        while not self._stopping:
            self._came.clear()
            self._check_lease()
            seen = self._heard = (await self._store.wakes([self.session])).get(self.session, 0)
            more = await self._take()
            blocked = await self._start()
            if more or self._stopping:
                continue
            if blocked:
                await self._wait_for_slot()
                continue
            await self._park()
            self._seen = seen
            if not self._came.is_set():
                return

    def _check_lease(self) -> None:
        if self._lost.done():
            raise self._lost.result()

    def _now(self) -> int:
        return self._store.clock.read().wall

    async def _write(self, state: TriggerState, added: Sequence[records.Record], *parked: records.Parked) -> None:
        after = replace(state, number=self._state.number + 1)
        body = msgspec.json.encode(after)
        ask = records.EffectRequest("checkpoint", self._name, digest_of_bytes("books", body))
        kept = records.Done(at=self._now(), key=f"{_STATE_KEY}.{after.number}", ask=ask, value=msgspec.Raw(body))
        crash_point("trigger.before_books")
        await self._ledger.append([*added, kept, *parked])
        self._state, self._parked = after, bool(parked)
        crash_point("trigger.after_books")

    # ---- taking in ----

    async def _take(self) -> bool:
        """Take inbox and due moments; True if there is more."""
        state, more = self._state, False
        added: list[records.Record] = []
        reserved: list[Reservation] = []
        pending = await self._store.pending(self.session)
        for found in pending:
            command = definitions.decode_command(found.body)
            if isinstance(command, definitions.OccurCommand) and not trigger_state.queue_room(state):
                break  # this input and all after it wait: the order counts
            step = trigger_state.take_command(state, found.input, found.key, found.at, command)
            state = step.state
            reserved += step.reserved
            # Its body stays in the inbox as long as the journal exists.
            added.append(records.Admitted(at=self._now(), input=found.input, key=found.key, run=RUN))
            for dropped in step.dropped:
                if dropped in reserved:
                    reserved.remove(dropped)  # it came in this round
                else:
                    added.append(records.Cancelled(at=self._now(), key=self._key(dropped)))
        else:
            more = len(pending) >= self._store.limits.page
        needed = needed_definitions(state)
        for number in needed - self._definitions.keys():
            self._definitions[number] = await read_definition(self._store, self.session, number)
        for number in self._definitions.keys() - needed:
            del self._definitions[number]
        if state.definition:
            step = trigger_state.reserve_due(state, self._definitions[state.definition], self._now())
            state = step.state
            reserved += step.reserved
        added += [self._intended_record(one) for one in reserved]
        if added or state != self._state:
            await self._write(state, added)
        return more

    def _intended_record(self, one: Reservation) -> records.Record:
        body, cause = msgspec.json.encode(one), records.Cause("trigger", start_key(self._name, one))
        content = digest_of_bytes("occurrence", body)
        ask = records.EffectRequest("process", self._name, content, msgspec.Raw(body), cause=cause)
        return records.Intended(at=self._now(), key=self._key(one), ask=ask)

    def _key(self, one: Reservation) -> str:
        return f"{RUN}/{one.revision}/{segment(one.id)}"

    # ---- starting ----

    async def _start(self) -> bool:
        """Start occurrences; True if one waits for a running one."""
        state = self._state
        if state.queue:  # an occurrence waits for room
            state = trigger_state.after_ends(state, [one.ref for one in state.running if await self._is_over(one)])
        choice = trigger_state.choose_starts(state, self._definitions, self._now())
        outcomes: list[records.Record] = []
        for found in choice.start:
            if self._lost.done() or self._stopping:
                break
            crash_point("trigger.before_start")
            state, outcome = await self._start_one(state, found)
            crash_point("trigger.after_start")
            outcomes += outcome
        for found, why in choice.skip:
            state = trigger_state.after_skip(state, found, why, self._now())
            outcomes.append(records.Cancelled(at=self._now(), key=self._key(found)))
        self._check_lease()
        if state != self._state:
            await self._write(state, outcomes)
        return choice.blocked

    async def _start_one(self, state: TriggerState, found: Reservation) -> tuple[TriggerState, list[records.Record]]:
        definition, now = self._definitions[found.definition], self._now()
        target = self._targets.find(definition.target)
        if target is None:
            _log.warning("%s of %r is not known here", definition.target.describe(), self._name)
            later = replace(found, not_before=now + UNKNOWN_TARGET_MS)
            return replace(state, queue=tuple(later if one == found else one for one in state.queue)), []
        try:
            arguments = await self._arguments(definition, found)
            key = start_key(self._name, found)
            # Outsiders write the content of events, requests and files.
            outside = isinstance(definition.source, _OUTSIDE_SOURCES)
            untrusted = outside and definitions.uses_outside_values(definition.arguments)
            ref = await target.start(key, arguments, untrusted=untrusted)
        except _STORE_TROUBLE:
            raise
        except _REFUSED_FOR_NOW as error:
            after, given_up = trigger_state.after_refusal(state, found, str(error), now)
            return after, [self._failed_record(found, error)] if given_up else []
        except Exception as error:  # one failure must not stop the others
            fields = {"trigger": self._name, "occurrence": found.id, "error": f"{type(error).__name__}: {error}"}
            log_event(_log, logging.WARNING, "trigger failed", raised=error, **fields)
            why = self._store.redactor.text(f"{type(error).__name__}: {error}")[:1_000]
            return trigger_state.after_failure(state, found, why, now), [self._failed_record(found, error)]
        terms = self._definitions[state.definition].terms
        body = msgspec.json.encode({"started": ref})
        done = records.Done(at=self._now(), key=self._key(found), value=msgspec.Raw(body))
        return trigger_state.after_start(state, found, ref, terms, self._now()), [done]

    def _failed_record(self, found: Reservation, error: Exception) -> records.Record:
        said = self._store.redactor.text(str(error))[:1_000]
        info, trace = records.ErrorInfo(type(error).__name__, said), safe_trace(error, self._store.redactor)
        return records.Failed(at=self._now(), key=self._key(found), error=info, trace=trace)

    async def _arguments(self, definition: definitions.TriggerDefinition, found: Reservation) -> dict[str, Any]:
        given = await self._store.input(self.session, found.input) if found.input else None
        command = None if given is None else definitions.decode_command(given.body)
        values = definitions.template_values(
            trigger=self._name,
            revision=found.revision,
            occurrence=found.id,
            at=found.at,
            where=definitions.source_zone(definition.source),
            payload=command.payload if isinstance(command, definitions.OccurCommand) else None,
        )
        return definitions.fill_template(definition.arguments, values)

    # ---- running starts ----

    async def _is_over(self, one: RunningStart) -> bool:
        try:
            return await self._targets.is_over(self._definitions[one.definition].target, one.ref)
        except _STORE_TROUBLE:
            raise
        except Exception as error:  # an unreadable run counts as ended
            _log.warning("%s of %r can't be looked at: %s", one.ref, self._name, error)
            return True

    async def _wait_for_slot(self) -> None:
        """Wait until a run ends, an input arrives, or a moment is due."""

        async def wait_for_end(one: RunningStart) -> None:
            with suppress(errors.HoldfastError):
                await self._targets.wait_for_end(self._definitions[one.definition].target, one.ref)
                return
            await asyncio.sleep(_LOOK_INTERVAL)

        tasks: list[asyncio.Task[Any]] = [
            spawn(self._came.wait()),
            *(spawn(wait_for_end(one)) for one in self._state.running),
        ]
        due = self._alarm_at()
        left = _LOOK_INTERVAL if due is None else min(max((due - self._now()) / 1000, 0.0), _LOOK_INTERVAL)
        try:
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(tasks)

    # ---- parking ----

    def _alarm_at(self) -> int | None:
        """Time of the next moment or delayed start."""
        state, now = self._state, self._now()
        choice = trigger_state.choose_starts(state, self._definitions, now)
        # A reservation became ready during this round: the next round starts at once.
        again = now if choice.start or choice.skip else choice.again
        # A due moment without room waits until a run ends.
        waits = state.next is not None and state.next <= now and not trigger_state.queue_room(state)
        return min((at for at in (None if waits else state.next, again) if at is not None), default=None)

    async def _park(self) -> None:
        due = self._alarm_at()
        if self._parked and self._state.alarm_at == due:
            wait = None if due is None else await self._store.wait(self.session, _alarm_name(self._state.alarm))
            if due is None or (wait is not None and wait.state == "open" and wait.deadline == due):
                return
        number = self._state.alarm if due is None else await self._set_alarm(self._state.alarm, due)
        state = replace(self._state, alarm=number, alarm_at=due)
        waits = () if due is None else (_alarm_name(number),)
        crash_point("trigger.before_park")
        await self._write(state, (), records.Parked(at=self._now(), run=RUN, waits=waits))

    async def _set_alarm(self, number: int, due: int) -> int:
        """Open an alarm for this time; answers its number. An interrupted round may have left one for another time."""
        while True:
            wait = await self._store.open_wait(self.session, _alarm_name(number), deadline=due)
            if wait.state == "open" and wait.deadline == due:
                return number
            if wait.state == "open":
                await self._store.cancel_wait(self.session, wait.name)
            number += 1


def _alarm_name(number: int) -> str:
    return f"{ALARM_PREFIX}{number}"


class PrunedTrigger(msgspec.Struct, frozen=True):
    """The result of pruning one trigger, or of a dry run."""

    name: str
    records: int = 0
    payloads: int = 0
    """Emptied inputs, of which only the key is left."""
    alarms: int = 0
    dry_run: bool = False
    problem: str = ""
    """The error that prevented pruning."""


async def prune_trigger(store: Store, id: str, before: int, lease_ms: int, *, dry_run: bool) -> PrunedTrigger:
    """Prune old records of one trigger; skips one that is being driven."""
    name = definitions.trigger_name(id)
    try:
        if dry_run:
            state, _ = await read_trigger(store, id)
            first = (await store.read(id, limit=1))[0].seq
            seq = await _last_prunable(store, id, before, (await store.journal(id)).head)
            inputs, waits = await store.count_old(id, before, _needed_inputs(state), ALARM_PREFIX)
            return PrunedTrigger(name, max(seq - first + 1, 0), inputs, waits, dry_run=True)
        async with LeaseHolder(store, id, lease_ms) as held:
            lease = held.lease
            state, _ = await read_trigger(store, id)
            seq = await _last_prunable(store, id, before, lease.head)
            crash_point("trigger.before_prune")
            trimmed = await store.trim_journal(lease, seq)
            crash_point("trigger.trimmed")
            inputs = await store.empty_inputs(lease, before, _needed_inputs(state))
            waits = await store.remove_waits(lease, ALARM_PREFIX, before)
            crash_point("trigger.after_prune")
        return PrunedTrigger(name, trimmed, inputs, waits)
    except errors.JournalMissing:
        raise errors.TriggerUnknown(name) from None
    except errors.HoldfastError as error:
        return PrunedTrigger(name, dry_run=dry_run, problem=str(error))


def _needed_inputs(state: TriggerState) -> list[int]:
    """The inputs whose content is still needed."""
    return sorted({*needed_definitions(state), *(one.input for one in state.queue if one.input)})


async def _last_prunable(store: Store, id: str, before: int, head: int) -> int:
    """The last record to prune: all up to it are old and settled. 0 for none."""
    last, opened = 0, set[str]()
    async for entry in store.read_all(id):
        record = entry.record
        if record.at >= before or entry.seq > head - LAST_RECORDS:
            break
        if isinstance(record, records.Intended):
            opened.add(record.key)
        elif isinstance(record, records.Done | records.Failed | records.Cancelled):
            opened.discard(record.key)
        if not opened:
            last = entry.seq
    return last
