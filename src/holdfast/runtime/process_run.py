"""One run of a durable function: what its context stands for, and what it waits for while it is in memory."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import secrets as chance
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from holdfast.effects.envelope import segment
from holdfast.effects.performer import Performer
from holdfast.effects.replay import Answer, Begin, Repeat, fold
from holdfast.effects.scopes import Place, current
from holdfast.effects.values import check_returns, decode_value, encode_value
from holdfast.errors import Halted, InvalidArgument, RunEnded, StoreError, WaitEnded, WaitExpired
from holdfast.errors.processes import (
    AgentTurnFailed,
    ProcessAbandoned,
    ProcessCancelled,
    ProcessFailed,
    ProcessInvalid,
    ProcessUnknown,
)
from holdfast.names import check_id, check_string
from holdfast.policy.spans import milliseconds
from holdfast.processes.ids import (
    check_process_id,
    child_id,
    external_wait,
    journal_of,
    number_of,
    run_of,
    signal_of,
    signal_prefix,
    signal_wait,
    timer_wait,
)
from holdfast.processes.state import Registration
from holdfast.records import Cancelled, Done, Failed, Intended
from holdfast.runtime.completing import NAME, Completing, Question
from holdfast.runtime.parking import about_to, settled
from holdfast.runtime.seeking import Awaited, AwaitedTurn, ChildEnded, TurnEnd
from holdfast.spawning import spawn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from datetime import timedelta

    from holdfast.agent import Agent
    from holdfast.effects.performer import Ledger
    from holdfast.models import Model
    from holdfast.processes.context import Child
    from holdfast.processes.definition import AnyProcedure
    from holdfast.processes.state import ProcessState
    from holdfast.processes.timeline import ProcessLine
    from holdfast.records import Ask, EffectKind, Outcome
    from holdfast.runtime.seeking import Found, Sought
    from holdfast.runtime.surroundings import Surround

LOOK: Final = 0.5
"""How often what is waited for is looked at while other branches of the function work, in seconds."""
MAX_DEPTH: Final = 16
"""How many processes may stand above one another."""

_step: Final[contextvars.ContextVar[str | None]] = contextvars.ContextVar("holdfast_step", default=None)


class Registry(Protocol):
    """The processes of a runtime, as far as one that runs needs them."""

    def procedure(self, given: AnyProcedure | str) -> AnyProcedure: ...
    def known(self, name: str) -> AnyProcedure | None: ...
    def leave(self, journal: str) -> None: ...
    async def end_child(self, id: str, reason: str) -> None: ...
    async def stop_turn(self, session: str, number: int, reason: str) -> None: ...
    async def register(self, id: str, made: Registration, session: str | None) -> str: ...
    async def send_signal(self, id: str, name: str, value: object) -> None: ...
    async def request_cancel(self, id: str, reason: str) -> object: ...
    async def line(self, id: str) -> ProcessLine: ...
    async def read(self, journal: str) -> ProcessState: ...
    async def send(
        self, agent: Agent | str, session: str, prompt: str, key: str, deadline: timedelta | float | None
    ) -> AwaitedTurn: ...
    def watch_turn(self, journal: str, wait: str, turn: AwaitedTurn) -> None: ...


@dataclass(slots=True)
class _Pending:
    sought: Sought
    came: asyncio.Future[Found]
    alarm: asyncio.TimerHandle | None = None


class ProcessRun:
    """One run of a durable function, as its context sees it."""

    def __init__(self, around: Surround, registry: Registry, state: ProcessState, ledger: Ledger) -> None:
        self.id = state.id
        self.attempt = state.attempt
        self.run = run_of(state.attempt)
        self.secrets = around.lender
        self.performer = Performer(ledger, fold(state.records), self.run)
        self._around = around
        self._store = around.store
        self._registry = registry
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._completing = Completing(self.performer, around.prices)
        self._pending: dict[str, _Pending] = {}
        self._busy = 0
        self._moved = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._asked: set[str] = set()
        self._versions: dict[str, bool] = {}
        self._slots = self._recorded_slots()

    # ---- what it waits for -------------------------------------------------------------------------------------------

    @property
    def waits(self) -> tuple[str, ...]:
        """What the function waits for now."""
        return tuple(pending.sought.label for pending in self._pending.values())

    @property
    def quiet(self) -> bool:
        """Whether the function does nothing but wait, at this very moment."""
        if not self._pending or self._busy or any(pending.came.done() for pending in self._pending.values()):
            return False
        return about_to(self.performer) is None

    async def idle(self) -> None:
        """Return when the function does nothing but wait. Meanwhile, see whether what it waits for has come."""
        while True:
            self._moved.clear()
            if self._pending and not self._busy:
                if await settled(self.performer) and self.quiet:
                    return
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), LOOK if self._pending else None)
            self.look()

    def look(self) -> None:
        """Something may have come."""
        if self._pending and (self._looking is None or self._looking.done()):
            self._looking = spawn(self._look())

    async def _look(self) -> None:
        for pending in list(self._pending.values()):
            try:
                found = await pending.sought.look()
            except StoreError:
                return  # it is looked at again
            if found is not None and not pending.came.done():
                pending.came.set_result(found)

    async def close(self) -> None:
        """The function is not in memory any more."""
        for pending in self._pending.values():
            if pending.alarm is not None:
                pending.alarm.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    @contextmanager
    def _at_work(self) -> Generator[None]:
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._moved.set()

    async def _seek(self, place: Place, key: str, ask: Ask, sought: Sought, *, intend: bool = False) -> Outcome:
        """The outcome of waiting: the recorded one, or what comes."""
        performer = self.performer
        with performer.occupied(place), self._at_work():
            decision = performer.decide(key, ask, Repeat.FREE)
            performer.check_order(place, key)
            if isinstance(decision, Answer):
                if isinstance(decision.outcome, Cancelled):
                    await performer.until_cancelled()
                return decision.outcome
            if intend and isinstance(decision, Begin):
                performer.submit([Intended(at=performer.now(), key=key, ask=ask)], patient=True)
            asked = None if intend else ask
            try:
                begun = self._loop.time()
                found = await self._guarded(sought.begin())
                if found is None:
                    found = await self._come(key, sought)
                if found.error is not None:
                    outcome: Outcome = Failed(at=performer.now(), key=key, ask=asked, error=found.error)
                else:
                    outcome = await performer.succeeded(key, asked, found.body, begun)
                await performer.record([outcome])
            except asyncio.CancelledError:
                await self._withdrawn(sought, Cancelled(at=performer.now(), key=key, ask=asked))
                raise
            return outcome

    async def _guarded(self, work: Awaitable[Any]) -> Any:  # noqa: ANN401
        """A store that fails is no failure of what is waited for."""
        try:
            return await work
        except StoreError as error:
            raise self.performer.halt(error) from error

    async def _come(self, key: str, sought: Sought) -> Found:
        pending = self._pending[key] = _Pending(sought, self._loop.create_future())
        if sought.due is not None:
            delay = max(0.0, (sought.due - self.performer.now()) / 1000)
            pending.alarm = self._loop.call_later(min(delay, 30.0), self.look, context=contextvars.Context())
        self._busy -= 1
        self._moved.set()
        try:
            return await pending.came
        finally:
            self._busy += 1
            del self._pending[key]
            if pending.alarm is not None:
                pending.alarm.cancel()

    async def _withdrawn(self, sought: Sought, cancelled: Cancelled) -> None:
        """The code that waited was cancelled, and may go on without it. When the whole run is, nothing is withdrawn."""
        try:
            self.performer.check_running()
        except (Halted, RunEnded, asyncio.CancelledError):
            return
        self.performer.abandon([cancelled])
        with suppress(StoreError):
            await asyncio.shield(sought.withdraw())

    async def _value(self, outcome: Outcome, returns: type[Any] | None = None) -> Any:  # noqa: ANN401
        if isinstance(outcome, Done):
            body = bytes(outcome.value) if outcome.blob is None else await self.performer.large(outcome.blob)
            return decode_value(body, returns)
        error = outcome.error.kind if isinstance(outcome, Failed) else "cancelled"
        raise WaitEnded(outcome.key, error)

    def _next(self, name: str) -> tuple[Place, str]:
        place = self.performer.place()
        key = place.next(check_id("effect name", name))
        self._asked.add(key)
        return place, key

    def _ask(self, key: str, kind: EffectKind, name: str, target: str, body: object) -> Ask:
        return self.performer.envelope(key, kind, name, target, body).ask()

    # ---- steps -------------------------------------------------------------------------------------------------------

    def idempotency_key(self) -> str:
        return self.performer.idempotency_key(_step.get() or segment(self.run))

    async def step(  # noqa: PLR0913, PLR0917
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        repeat: Repeat,
        returns: type[Any] | None,
    ) -> Any:  # noqa: ANN401
        if not callable(function):
            raise InvalidArgument("function", function, "something to call")

        async def call(key: str) -> Any:  # noqa: ANN401
            _step.set(key)
            if inspect.iscoroutinefunction(function):
                return await function(*args, **kwargs)
            value = await asyncio.to_thread(function, *args, **kwargs)
            return await value if inspect.isawaitable(value) else value

        body: object = {"args": list(args), "kwargs": kwargs} if kwargs else list(args)
        return await self._effect("step", name, name, body, call, repeat, returns)

    async def _effect(  # noqa: PLR0913, PLR0917
        self,
        kind: EffectKind,
        name: str,
        target: str,
        body: object,
        call: Callable[[str], Awaitable[Any]],
        repeat: Repeat = Repeat.KEYED,
        returns: type[Any] | None = None,
        at: tuple[Place, str] | None = None,
    ) -> Any:  # noqa: ANN401
        place, key = self._next(name) if at is None else at
        envelope = self.performer.envelope(key, kind, name, target, body)
        outer = _step.get()
        with self._at_work():
            try:
                return await self.performer.perform(envelope, call, repeat, returns, place)
            finally:
                _step.set(outer)

    async def sample(self, what: str) -> Any:  # noqa: ANN401
        async def call(_: str) -> Any:  # noqa: ANN401
            match what:
                case "now":
                    return self.performer.now()
                case "random":
                    return chance.randbits(53) / 2**53
                case _:
                    return str(uuid.uuid4())

        value = await self._effect("sample", what, what, None, call, Repeat.FREE)
        match what:
            case "now":
                return datetime.fromtimestamp(value / 1000, UTC)
            case "random":
                return value
            case _:
                return uuid.UUID(value)

    async def version(self, name: str) -> bool:
        place = self.performer.place()
        key = f"{place.path}/~version.{segment(check_id('version', name))}"
        known = self._versions.get(key)
        if known is not None:
            return known
        recorded = self.performer.recorded(key)
        if recorded is None and not place.inside and self._goes_on_behind(place):
            self._versions[key] = False  # it has passed here before this was in its code
            return False

        async def call(_: str) -> bool:
            return True

        self._asked.add(key)
        self._versions[key] = True
        return await self._effect("sample", name, name, None, call, Repeat.FREE, at=(place, key))

    def _goes_on_behind(self, place: Place) -> bool:
        """Whether the journal has more of this scope than was asked for so far."""
        return any(key not in self._asked for key in self.performer.past.order.get(place.path, ()))

    # ---- waiting -----------------------------------------------------------------------------------------------------

    async def sleep(self, span: timedelta | float) -> None:
        ms = milliseconds(span)
        place, key = self._next("sleep")
        ask = self._ask(key, "sleep", "sleep", "sleep", {"ms": ms})
        deadline = self.performer.now() + ms
        await self._seek(place, key, ask, Awaited(self._store, self._state.journal, timer_wait(key), deadline))

    async def wait(self, name: str, timeout: timedelta | float | None, returns: type[Any] | None) -> Any:  # noqa: ANN401
        deadline = None if timeout is None else self.performer.now() + milliseconds(timeout)
        check_returns(returns)
        place, key = self._next(name)
        slot = self._slot(key, name)
        ask = self._ask(key, "await_event", name, slot, None)
        outcome = await self._seek(place, key, ask, self._signal(slot, name, deadline), intend=True)
        if isinstance(outcome, Failed) and outcome.error.kind == "expired":
            raise WaitExpired(name)
        return await self._value(outcome, returns)

    def _signal(self, slot: str, name: str, deadline: int | None) -> Awaited:
        async def resend(payload: bytes) -> None:
            await self._registry.send_signal(self.id, name, decode_value(payload))

        return Awaited(self._store, self._state.journal, slot, deadline, resend)

    def _slot(self, key: str, name: str) -> str:
        """Which signal a wait takes: the one that it took before, or the next of that name."""
        recorded = self.performer.recorded(key)
        prefix = signal_prefix(self.run, name)
        if recorded is not None and recorded.ask().target.startswith(prefix):
            return recorded.ask().target
        number = self._slots[prefix] = self._slots.get(prefix, 0) + 1
        return signal_wait(self.run, name, number)

    def _recorded_slots(self) -> dict[str, int]:
        """The highest number of a wait that was given out, by the name of the signal."""
        slots: dict[str, int] = {}
        for recorded in self.performer.past.effects.values():
            asked = recorded.ask()
            if asked.kind == "await_event":
                prefix = asked.target.rpartition("/")[0] + "/"
                slots[prefix] = max(slots.get(prefix, 0), number_of(asked.target))
        return slots

    async def outside(self) -> Any:  # noqa: ANN401
        """The end of a process that is carried out elsewhere."""
        place, key = self._next("outside")
        ask = self._ask(key, "process", "outside", "outside", None)
        sought = Awaited(self._store, self._state.journal, external_wait(self.run), None, _dropped)
        told = cast("dict[str, Any]", await self._value(await self._seek(place, key, ask, sought)))
        if "error" in told:
            raise ProcessFailed(self.id, "outside", str(told["error"]))
        return told.get("value")

    # ---- several at once ---------------------------------------------------------------------------------------------

    async def gather(self, work: tuple[Awaitable[Any], ...]) -> list[Any]:
        tasks = _tasks(work)
        try:
            if tasks:
                await asyncio.wait(tasks)
        except asyncio.CancelledError:
            await _stop(tasks)
            raise
        self.performer.check_halted()
        return [task.result() for task in tasks]

    async def race(self, work: tuple[Awaitable[Any], ...]) -> tuple[int, Any]:
        if not work:
            raise InvalidArgument("race", work, "one or more things to wait for")
        performer = self.performer
        place, key = self._next("race")
        ask = self._ask(key, "process", "race", "race", {"of": len(work)})
        with performer.occupied(place):
            decision = performer.decide(key, ask, Repeat.FREE)
            performer.check_order(place, key)
            if isinstance(decision, Answer):
                _unused(work)
                await self._withdraw_below(key)
                if isinstance(decision.outcome, Cancelled):
                    await performer.until_cancelled()
                outcome = decision.outcome
            else:
                outcome = await self._raced(key, ask, work)
            index, value = await performer.unwrap(outcome, ask, None)
            return index, value

    async def _raced(self, key: str, ask: Ask, work: tuple[Awaitable[Any], ...]) -> Outcome:
        performer = self.performer
        token = current.set(Place(performer, key))  # its branches hang below it: once it has an outcome, none is asked
        try:
            tasks = _tasks(work)
        finally:
            current.reset(token)
        begun = self._loop.time()
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            with self._at_work():
                performer.check_halted()
                outcome = await self._first(key, ask, tasks, begun)
                await performer.record([outcome])
                await _stop(tasks)
        except asyncio.CancelledError:
            await _stop(tasks)
            performer.abandon([Cancelled(at=performer.now(), key=key, ask=ask)])
            raise
        performer.check_halted()
        return outcome

    async def _first(self, key: str, ask: Ask, tasks: list[asyncio.Future[Any]], begun: float) -> Outcome:
        index, first = next((index, task) for index, task in enumerate(tasks) if task.done())
        if first.cancelled():
            return self.performer.failed(key, ask, RuntimeError("the first branch was cancelled"), begun)
        error = first.exception()
        if error is None:
            body = self.performer.redactor.bytes(encode_value([index, first.result()]))
            return await self.performer.succeeded(key, ask, body, begun)
        if isinstance(error, Exception):
            return self.performer.failed(key, ask, error, begun)
        raise error

    async def _withdraw_below(self, key: str) -> None:
        """Waits of branches that lost, where a crash came before they could be withdrawn."""
        prefix = f"{key}/"
        for name, recorded in self.performer.past.effects.items():
            if name.startswith(prefix) and recorded.intent is not None and recorded.outcome is None:
                asked = recorded.intent.ask
                if asked.kind == "await_event":
                    await self._guarded(self._signal(asked.target, signal_of(asked.target), None).withdraw())

    # ---- other processes, and agents ---------------------------------------------------------------------------------

    async def start(
        self, procedure: AnyProcedure | str, args: tuple[Any, ...], kwargs: dict[str, Any], id: str | None
    ) -> Child:
        made = self._registry.procedure(procedure)
        depth = 1 + (0 if self._state.registration is None else self._state.registration.depth)
        if depth > MAX_DEPTH:
            raise ProcessInvalid(
                made.name, f"it would be the {depth}th process above one another, {MAX_DEPTH} are allowed"
            )
        arguments = made.stored(args, kwargs)
        place, key = self._next(made.name)
        child = child_id(made.name, self._state.journal, key) if id is None else check_process_id(id)
        registration = Registration(
            made.name, arguments, made.recovery, made.on_parent_end, self._state.journal, key, depth
        )

        async def call(_: str) -> dict[str, str]:
            return {"id": await self._registry.register(child, registration, self._state.session)}

        body = {"id": child, "name": made.name, "arguments": arguments}
        told = await self._effect("process", made.name, "start", body, call, at=(place, key))
        return _Child(self, told["id"])

    async def ended(self, id: str) -> Any:  # noqa: ANN401  what the child gave
        """What a child gave, when it has ended."""
        place, key = self._next("result")
        ask = self._ask(key, "process", "result", "await", {"id": id})
        sought = ChildEnded(self._store, journal_of(id), self._registry.read)
        outcome = await self._seek(place, key, ask, sought)
        if isinstance(outcome, Failed):
            raise ProcessUnknown(id)
        told = cast("dict[str, Any]", await self._value(outcome))
        raise_unless_completed(id, told)
        return told["value"]

    async def signal(self, id: str, name: str, value: object) -> None:
        signal_prefix(self.run, name)

        async def call(_: str) -> None:
            await self._registry.send_signal(id, name, value)

        await self._effect("process", f"signal {name}", "signal", {"id": id, "name": name, "value": value}, call)

    async def cancel(self, id: str, reason: str) -> None:
        """Ask for a child to be cancelled."""

        async def call(_: str) -> None:
            await self._registry.request_cancel(id, reason)

        await self._effect("process", "cancel", "cancel", {"id": id, "reason": reason}, call)

    async def glance(self, id: str) -> ProcessLine:
        """How a child stands."""
        from holdfast.processes.timeline import ProcessLine  # noqa: PLC0415

        async def call(_: str) -> Any:  # noqa: ANN401
            return msgspec.to_builtins(await self._registry.line(id))

        told = await self._effect("process", "status", "status", {"id": id}, call, Repeat.FREE)
        return msgspec.convert(told, ProcessLine)

    async def run_agent(
        self, agent: Agent | str, prompt: str, session: str | None, deadline: timedelta | float | None
    ) -> Any:  # noqa: ANN401
        name = agent if isinstance(agent, str) else agent.name
        check_string("prompt", prompt)
        place, key = self._next(f"agent {name}"[:200])
        known = self.performer.idempotency_key(key)
        asked = f"{self.id}.{known[:12]}" if session is None else check_id("session", session)

        async def call(_: str) -> Any:  # noqa: ANN401
            return msgspec.to_builtins(await self._registry.send(agent, asked, prompt, f"process/{known}", deadline))

        body = {"agent": name, "prompt": prompt, "session": session}
        sent = msgspec.convert(
            await self._effect("process", f"agent {name}"[:200], "agent", body, call, at=(place, key)), AwaitedTurn
        )
        place, key = self._next("answer")
        ask = self._ask(key, "process", "answer", "turn", {"session": sent.session, "input": sent.input})
        sought = TurnEnd(self._store, self._state.journal, key, sent, self._registry.watch_turn)
        told = cast("dict[str, Any]", await self._value(await self._seek(place, key, ask, sought)))
        if told["status"] != "completed":
            raise AgentTurnFailed(sent.session, told["turn"], told["status"], told["message"])
        return told["value"] if told["typed"] else told["text"]

    async def complete(self, model: Model | str, prompt: str, output: Any, instructions: str) -> Any:  # noqa: ANN401
        question = Question(model, prompt, output, instructions)
        place, key = self._next(NAME)
        with self._at_work():
            return await self._completing.answer(place, key, question)


class _Child:
    """A process that this one started."""

    __slots__ = ("_run", "id")

    def __init__(self, run: ProcessRun, id: str) -> None:
        self._run = run
        self.id = id

    def __repr__(self) -> str:
        return f"Child({self.id!r})"

    async def result(self) -> Any:  # noqa: ANN401
        return await self._run.ended(self.id)

    async def status(self) -> ProcessLine:
        return await self._run.glance(self.id)

    async def signal(self, name: str, value: object = None) -> None:
        await self._run.signal(self.id, name, value)

    async def cancel(self, reason: str = "") -> None:
        await self._run.cancel(self.id, reason)


def raise_unless_completed(id: str, told: dict[str, Any]) -> None:
    """Raise what stands for the end of a process that did not complete."""
    match told["status"]:
        case "completed":
            return
        case "cancelled":
            raise ProcessCancelled(id, told["message"])
        case "abandoned":
            raise ProcessAbandoned(id, told["message"])
        case _:
            raise ProcessFailed(id, told["kind"], told["message"])


async def _dropped(payload: bytes) -> None:
    """An answer that nobody waits for any more."""


def _tasks(work: tuple[Awaitable[Any], ...]) -> list[asyncio.Future[Any]]:
    return [asyncio.ensure_future(each) for each in work]


def _unused(work: tuple[Awaitable[Any], ...]) -> None:
    """Coroutines that will never run, and must not complain that they were never awaited."""
    for each in work:
        if inspect.iscoroutine(each):
            each.close()


async def _stop(tasks: list[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
