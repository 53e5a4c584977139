"""The triggers of a runtime: declare, list, fire, enable, remove, prune, and receive webhooks and events.

Every command goes through the inbox of the trigger's journal, so any process may send one, whichever process drives the
trigger. It is durable when the call returns, and commands apply in the order of acceptance.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast import errors
from holdfast.eventloop import cancel_all, spawn
from holdfast.names import check_id, check_text
from holdfast.policy.rules import milliseconds
from holdfast.processes.lists import journal_pages
from holdfast.profiles import parse_reference
from holdfast.runtime.context import RuntimeContext, hide_secret
from holdfast.secrets.sources import make_secrets
from holdfast.store.inbox import AdmissionWindow
from holdfast.triggers import definition as definitions
from holdfast.triggers import signatures
from holdfast.triggers.definition import OccurCommand, TriggerDefinition, WatchSource, trigger_journal, trigger_name
from holdfast.triggers.driver import PrunedTrigger, Targets, TriggerDrive, prune_trigger, read_definition, read_trigger
from holdfast.triggers.folders import FolderWatcher
from holdfast.triggers.state import OccurrenceEnd, RunningStart, TriggerState, reserve_due, take_command

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from datetime import timedelta

    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Store


_log: Final = logging.getLogger("holdfast.triggers")
MAX_TRIGGERS: Final = 1_000
"""Most triggers in one store."""
_DEFINE_TRIES: Final = 8
"""Attempts to write a definition while other processes write."""


class TriggerView(NamedTuple):
    """The state of a trigger with the commands in its inbox."""

    state: TriggerState
    definition: TriggerDefinition | None
    waiting: int
    """Occurrences in the inbox."""


class TriggerStatus(msgspec.Struct, frozen=True):
    """The status of a trigger."""

    name: str
    source: str
    target: str
    revision: int
    enabled: bool
    owner: str
    last: OccurrenceEnd | None
    """The last occurrence that started or failed."""
    next: int | None
    """The next moment in wall milliseconds."""
    reserved: int
    """Reserved occurrences that are not started."""
    running: int
    started: int
    failed: int
    skipped: int
    recent: tuple[OccurrenceEnd, ...]
    """The last ends of occurrences, with reasons."""
    problem: str = ""


class Delivery(msgspec.Struct, frozen=True):
    """The result of a webhook. Answer it with the HTTP status `code` and the body `reply`."""

    status: Literal["accepted", "duplicate", "refused", "answered"]
    code: int
    occurrence: str = ""
    reason: str = ""
    reply: str = ""


class EventReceipt(msgspec.Struct, frozen=True):
    """The receipt of an event."""

    event: str
    key: str
    triggers: tuple[str, ...]
    """The triggers that took the event."""
    fresh: bool
    """False if all of them had it before."""


class Trigger:
    """A declared trigger. Await it until the declaration is durable."""

    def __init__(self, triggers: Triggers, name: str, declared: asyncio.Task[int]) -> None:
        self.name = name
        self._triggers = triggers
        self._declared = declared

    def __repr__(self) -> str:
        return f"Trigger({self.name!r})"

    def __await__(self) -> Generator[Any, None, Trigger]:
        yield from asyncio.shield(self._declared).__await__()
        return self

    async def status(self) -> TriggerStatus:
        await self
        return await self._triggers.get(self.name)

    async def fire(self, payload: object = None, *, key: str | None = None) -> str:
        """Fire it by hand."""
        await self
        return await self._triggers.fire(self.name, payload, key=key)


class Triggers:
    """The triggers of a store, for one runtime."""

    def __init__(self, runtime: Runtime, context: RuntimeContext) -> None:
        self._store: Store = runtime.store
        self._context = context
        self.targets = Targets(runtime)
        self._here: set[str] = set()
        """Triggers declared in this process; it drives only those."""
        self._lookouts: dict[str, tuple[FolderWatcher, asyncio.Task[None]]] = {}
        self._declaring: set[asyncio.Task[int]] = set()
        self._views: dict[str, tuple[int, int, TriggerView]] = {}
        self._closed = False

    # ---- declaring ----

    def every(
        self,
        name: str,
        source: definitions.Source,
        target: object,
        arguments: dict[str, Any],
        options: definitions.TriggerOptions | None = None,
    ) -> Trigger:
        """Declare a trigger: the same definition again changes nothing, another one is its next revision."""
        if self._closed:
            raise errors.RuntimeStopped
        bound = self.targets.bind(target)
        bound.check(arguments)
        if isinstance(source, WatchSource):  # the current directory may change
            source = replace(source, folder=os.path.abspath(source.folder))  # noqa: PTH100  links stay as they are
        definition = definitions.make_definition(name, source, bound.target_name, arguments, options)
        if isinstance(definition.source, definitions.WebhookSource):
            parse_reference(definition.source.secret)
        task = spawn(self._declare(definition))
        self._declaring.add(task)
        task.add_done_callback(self._on_declared)
        return Trigger(self, definition.name, task)

    def _on_declared(self, task: asyncio.Task[int]) -> None:
        self._declaring.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a trigger could not be declared: %s", error)

    async def _declare(self, definition: TriggerDefinition) -> int:
        """Write the definition; answers its revision."""
        revision = await self._write_definition(definition)
        self._here.add(definition.name)
        if self._context.engine is not None:
            self._context.poke(trigger_journal(definition.name))
            if isinstance(definition.source, WatchSource) and definition.name not in self._lookouts:
                lookout = FolderWatcher(definition.name, self, lambda: self._store.clock.read().mono)
                self._lookouts[definition.name] = (lookout, spawn(lookout.run()))
        return revision

    async def _write_definition(self, definition: TriggerDefinition) -> int:
        id, content = trigger_journal(definition.name), msgspec.to_builtins(definitions.DefineCommand(definition))
        for _ in range(_DEFINE_TRIES):
            state = (await self._found(id)).state
            full = not state.definition and len(await self._ids()) >= MAX_TRIGGERS
            if full and len(await self.list()) >= MAX_TRIGGERS:  # removed ones do not count
                raise errors.TriggersFull(MAX_TRIGGERS)
            if state.print == definition.fingerprint():
                return state.revision
            if state.definition and state.owner != definition.terms.owner:
                raise errors.TriggerConflict(definition.name, f"it belongs to {state.owner!r}; use another name")
            key = f"define/{state.revision + 1}"
            try:
                await self._store.accept_into(id, "process", None, content, key=key, role=definitions.TRIGGER_ROLE)
            except errors.KeyConflict:
                continue  # another process changed it meanwhile
            return state.revision + 1
        raise errors.TriggerConflict(definition.name, "others change it all the time; declare it in one place")

    # ---- reading ----

    async def list(self) -> list[TriggerStatus]:
        """All triggers, by name."""
        found = [await self._status(id) for id in await self._ids()]
        return sorted((status for status in found if status.source or status.problem), key=lambda status: status.name)

    async def get(self, name: str) -> TriggerStatus:
        """One trigger; `TriggerUnknown` without one."""
        await self._view(name)
        return await self._status(trigger_journal(name))

    async def _status(self, id: str) -> TriggerStatus:
        name = trigger_name(id)
        try:
            view = await self._found(id)
        except errors.HoldfastError as error:
            return TriggerStatus(name, "", "", 0, False, "", None, None, 0, 0, 0, 0, 0, (), problem=str(error))
        state, definition, waiting = view
        running = [one for one in state.running if not await self._is_over(id, one)]
        return TriggerStatus(
            name,
            "" if definition is None else definition.source.describe(),
            "" if definition is None else definition.target.describe(),
            state.revision,
            state.enabled,
            state.owner,
            state.last,
            state.next if state.enabled else None,
            len(state.queue) + waiting,
            len(running),
            state.started,
            state.failed,
            state.skipped,
            state.recent,
            self._problem(name),
        )

    async def _is_over(self, id: str, one: RunningStart) -> bool:
        """True if a start has ended. The trigger's journal records that only when another occurrence waits for room."""
        try:
            definition = await read_definition(self._store, id, one.definition)
            return await self.targets.is_over(definition.target, one.ref)
        except errors.HoldfastError:  # it is unreadable
            return True

    def _problem(self, name: str) -> str:
        if (stuck := self._context.sessions.stuck(trigger_journal(name))) is not None:
            return str(stuck)
        return self._lookouts[name][0].problem if name in self._lookouts else ""

    async def _ids(self) -> list[str]:
        return [line.id async for page in journal_pages(self._store, definitions.TRIGGER_ROLE) for line in page]

    async def _view(self, name: str) -> TriggerView:
        view = await self._found(trigger_journal(name))
        if not view.state.definition:
            raise errors.TriggerUnknown(name, [status.name for status in await self.list()])
        return view

    async def _found(self, id: str) -> TriggerView:
        """The view of a trigger, cached until its journal changes; an empty one without a journal."""
        wakes, heads = await self._store.wakes([id]), await self._store.heads([id])
        if id not in wakes:
            return TriggerView(TriggerState(), None, 0)
        known = self._views.get(id)
        if known is not None and known[:2] == (wakes[id], heads.get(id, 0)):
            return known[2]
        view = await self._read(id)
        self._views[id] = (wakes[id], heads.get(id, 0), view)
        return view

    async def _read(self, id: str) -> TriggerView:
        # Read the inbox first: an input that is taken between the two reads is then in the state too.
        pending = await self._store.pending(id)
        state, _ = await read_trigger(self._store, id)
        definition = await read_definition(self._store, id, state.definition) if state.definition else None
        waiting, changed = 0, False
        for found in pending:
            if found.input <= state.taken:
                continue
            command = definitions.decode_command(found.body)
            if isinstance(command, OccurCommand):
                waiting += 1
                continue
            state, changed = take_command(state, found.input, found.key, found.at, command).state, True
            if isinstance(command, definitions.DefineCommand | definitions.RemoveCommand):
                definition = command.definition if isinstance(command, definitions.DefineCommand) else None
        if changed and definition is not None:
            # The next moment is known; the drive handles moments that are due now.
            state = replace(state, next=reserve_due(state, definition, state.cursor).state.next)
        return TriggerView(state, definition, waiting)

    # ---- commands to a trigger ----

    async def fire(self, name: str, payload: object = None, *, key: str | None = None) -> str:
        """Fire a trigger by hand, once for each `key`; answers the occurrence. `TriggerDisabled` if it is off."""
        view = await self._view(name)
        if not view.state.enabled:
            raise errors.TriggerDisabled(name)
        occurrence = f"fire/{secrets.token_hex(8) if key is None else check_id('key', key)}"
        await self._say(name, OccurCommand(payload), occurrence)
        return occurrence

    async def enable(self, name: str, *, by: str = "") -> TriggerStatus:
        """Enable a trigger. It skips moments missed while it was off, but not files."""
        return await self._switch(name, enabled=True, by=by)

    async def disable(self, name: str, *, by: str = "") -> TriggerStatus:
        """Disable a trigger. Reserved occurrences still start."""
        return await self._switch(name, enabled=False, by=by)

    async def remove(self, name: str, *, by: str = "") -> None:
        """Remove a trigger and drop its reserved occurrences; started work continues.

        Declared again, it gets its next revision and remembers its earlier occurrences.
        """
        await self._view(name)
        await self._say(name, definitions.RemoveCommand(check_text("by", by)), None)
        looking = self._lookouts.pop(name, None)
        if looking is not None:
            looking[1].cancel()

    async def prune(
        self, name: str | None = None, *, older_than: timedelta | float, dry_run: bool = False
    ) -> list[PrunedTrigger]:
        """Prune old records of one trigger or of all, including removed ones.

        The state and all used keys stay, so repeated occurrences are still recognised.
        """
        if name is not None:
            definitions.check_trigger(name)
        before = self._store.clock.read().wall - milliseconds(older_than)
        ids = await self._ids() if name is None else [trigger_journal(name)]
        return [
            await prune_trigger(self._store, id, before, self._context.lease_ms, dry_run=bool(dry_run))
            for id in sorted(ids)
        ]

    async def _switch(self, name: str, *, enabled: bool, by: str) -> TriggerStatus:
        view = await self._view(name)
        if view.state.enabled != enabled:
            await self._say(name, definitions.SwitchCommand(enabled, check_text("by", by)), None)
        return await self.get(name)

    async def _say(
        self, name: str, command: definitions.TriggerCommand, key: str | None, admission: AdmissionWindow | None = None
    ) -> bool:
        """Put a command into the inbox of a trigger; True if it is new."""
        if self._closed:
            raise errors.RuntimeStopped
        id = trigger_journal(name)
        receipt = await self._store.accept(id, msgspec.to_builtins(command), key=key, admission=admission)
        if receipt.fresh and name in self._here:
            self._context.poke(id)
        return receipt.fresh

    # ---- files ----

    async def enabled_source(self, name: str) -> definitions.Source | None:
        """The source of a trigger; None while it is off."""
        view = await self._found(trigger_journal(name))
        return view.definition.source if view.definition is not None and view.state.enabled else None

    async def occurred(self, name: str, key: str, payload: object) -> bool:
        """Accept a file; True if it is new. A known file costs no write."""
        if await self._store.find_input(trigger_journal(name), key) is not None:
            return False
        return await self._say(name, OccurCommand(payload), key)

    # ---- webhooks ----

    async def deliver_webhook(self, name: str, headers: Mapping[str, str], body: bytes) -> Delivery:
        """Accept a webhook if it is signed, recent and new."""
        if not isinstance(body, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise errors.InvalidArgument("body", body, "the bytes as they came")
        view = await self._view(name)
        source = None if view.definition is None else view.definition.source
        if not isinstance(source, definitions.WebhookSource):
            raise errors.TriggerInvalid(name, "it is no webhook; declare it with hf.webhook")
        if not view.state.enabled:
            return Delivery("refused", 503, reason="the trigger is disabled")
        given = signatures.lower_headers(headers)
        secret = await asyncio.to_thread(self._secret, source)
        if not signatures.has_key(source, secret):
            reason = f"its secret ({source.secret}) holds no key, so anybody could sign; set it"
            raise errors.TriggerInvalid(name, reason)
        verdict = signatures.check_signature(source, secret, given, body, self._store.clock.read().wall)
        if verdict.refusal:
            return Delivery("refused", 413 if len(body) > signatures.MAX_BODY else 401, reason=verdict.refusal)
        payload = signatures.webhook_payload(given, body)
        challenge = signatures.challenge_reply(source, payload)
        if challenge is not None:
            return Delivery("answered", 200, reply=challenge)
        return await self._delivered(name, source, verdict, payload)

    async def _delivered(
        self, name: str, source: definitions.WebhookSource, verdict: signatures.SignatureVerdict, payload: object
    ) -> Delivery:
        # Without a signed time, the same content within the window is the same delivery, even under another id.
        window = AdmissionWindow(duplicates="same_turn", duplicate_window_ms=source.tolerance_ms)
        replays = None if verdict.timed else window
        occurrence = f"hook/{verdict.delivery}"
        try:
            fresh = await self._say(name, OccurCommand(payload), occurrence, replays)
        except errors.KeyConflict:
            return Delivery("refused", 409, occurrence, "another request came under the same delivery id")
        except errors.InboxFull:
            return Delivery("refused", 429, occurrence, "too many wait already; send it again later")
        except (errors.InvalidValue, errors.PayloadTooLarge) as error:
            return Delivery("refused", 422, occurrence, str(error))
        return Delivery("accepted", 202, occurrence) if fresh else Delivery("duplicate", 200, occurrence)

    def _secret(self, source: definitions.WebhookSource) -> str:
        """Read the secret; from now on it is redacted everywhere."""
        reference = parse_reference(source.secret)
        label = reference.name if reference.place == "env" else "WEBHOOK_SECRET"
        value = make_secrets({label: source.secret}).fetch(label)
        hide_secret(self._store, label, value)
        return value

    # ---- events ----

    async def emit_event(self, name: str, payload: object = None, *, key: str | None = None) -> EventReceipt:
        """Pass an event to all triggers of its name; it is durable for each when this returns.

        With a `key` it may be sent again: each trigger takes it once.
        """
        check_id("event", name)
        known = secrets.token_hex(8) if key is None else check_id("key", key)
        told: list[str] = []
        fresh = False
        for id in sorted(await self._ids()):
            source = await self.enabled_source(trigger_name(id))
            if isinstance(source, definitions.EventSource) and source.name == name:
                fresh |= await self._say(trigger_name(id), OccurCommand(payload), f"event/{known}")
                told.append(trigger_name(id))
        return EventReceipt(name, known, tuple(told), fresh)

    # ---- for the runtime ----

    def drive_of(self, id: str) -> TriggerDrive | None:
        """A drive of a trigger declared in this process, else None."""
        if trigger_name(id) not in self._here:
            return None
        return TriggerDrive(self._context, id, self.targets)

    async def stop(self) -> None:
        self._closed = True
        await cancel_all([*self._declaring, *(task for _, task in self._lookouts.values())])
