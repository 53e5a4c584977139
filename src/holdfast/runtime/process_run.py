"""One run of a durable function: what its context stands for, and what it waits for while it is in memory."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import secrets as chance
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import msgspec

from holdfast.effects.canonical import digest
from holdfast.effects.envelope import segment
from holdfast.effects.performer import Performer
from holdfast.effects.replay import Answer, Repeat, fold
from holdfast.effects.return_types import as_declared, return_type
from holdfast.effects.scopes import Place, current
from holdfast.effects.values import check_returns, decode_value, encode_value
from holdfast.errors import HoldfastError, InvalidArgument, StopRequested, WaitEnded, WaitExpired
from holdfast.errors.processes import (
    AgentTurnFailed,
    ProcessFailed,
    ProcessInvalid,
    ProcessUnknown,
)
from holdfast.names import check_id, check_string
from holdfast.policy.hooks import HookTurn
from holdfast.policy.spans import milliseconds
from holdfast.processes.ids import (
    CANCEL,
    OWN_KEYS,
    check_process_id,
    child_id,
    external_wait,
    id_of,
    journal_of,
    number_of,
    run_of,
    signal_of,
    signal_prefix,
    signal_wait,
    timer_wait,
)
from holdfast.processes.state import Registration
from holdfast.records import Cancelled, Cause, Done, Failed
from holdfast.runtime.completing import NAME, Completing, Question
from holdfast.runtime.hooking import Hooked
from holdfast.runtime.process_children import Started, raise_unless_completed
from holdfast.runtime.process_deferrals import ANSWER, AwaitedAnswer, answer_in, opened
from holdfast.runtime.process_deferrals import NAME as DEFER
from holdfast.runtime.process_deferrals import name_of as deferral_name
from holdfast.runtime.process_waits import Waiting
from holdfast.runtime.seeking import Awaited, AwaitedTurn, ChildEnded, TurnEnd
from holdfast.spawning import spawn
from holdfast.turns.conversation import TRIGGERED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import timedelta

    from holdfast.agent import Agent
    from holdfast.effects.ledger import Ledger
    from holdfast.models import Model
    from holdfast.processes.context import Child
    from holdfast.processes.definition import AnyProcedure
    from holdfast.processes.state import ProcessState
    from holdfast.processes.timeline import ProcessLine
    from holdfast.records import Ask, EffectKind, Outcome
    from holdfast.runtime.surroundings import Surround

T = TypeVar("T")

MAX_DEPTH: Final = 16
"""How many processes may stand above one another."""

_step: Final[contextvars.ContextVar[str | None]] = contextvars.ContextVar("holdfast_step", default=None)


class Registry(Protocol):
    """The processes of a runtime, as far as one that runs needs them."""

    def procedure(self, given: AnyProcedure | str) -> AnyProcedure: ...
    def known(self, name: str) -> AnyProcedure | None: ...
    def leave(self, journal: str, wakes: int) -> None: ...
    async def end_child(self, id: str, reason: str) -> None: ...
    async def stop_turn(self, session: str, number: int, reason: str) -> None: ...
    async def stop_below(self, state: ProcessState, reason: str) -> None: ...
    async def register(self, id: str, made: Registration, session: str | None) -> str: ...
    async def send_signal(self, id: str, name: str, value: object, key: str | None = None) -> object: ...
    async def request_cancel(self, id: str, reason: str) -> object: ...
    async def line(self, id: str) -> ProcessLine: ...
    async def read(self, journal: str) -> ProcessState: ...
    async def send(  # noqa: PLR0913
        self,
        agent: Agent | str,
        session: str,
        prompt: str,
        key: str,
        deadline: timedelta | float | None,
        *,
        under: str,
        untrusted: bool = False,
    ) -> AwaitedTurn: ...
    def watch_turn(self, journal: str, wait: str, turn: AwaitedTurn) -> None: ...


def _origin(state: ProcessState) -> Cause:
    """What led to a process: another one, the occurrence of a trigger, or the input with which it was started."""
    made = state.registration
    if made is not None and made.parent is not None:
        return Cause("process", id_of(made.parent))
    return Cause("trigger", state.id) if state.id.startswith(TRIGGERED) else Cause("input", "1")


class ProcessRun:
    """One run of a durable function, as its context sees it."""

    def __init__(self, around: Surround, registry: Registry, state: ProcessState, ledger: Ledger) -> None:
        self.id = state.id
        self.attempt = state.attempt
        self.run = run_of(state.attempt)
        self.secrets = around.lender
        self.performer = Performer(ledger, fold(state.records), self.run)
        self.performer.iteration = state.attempt
        self.performer.cause = _origin(state)
        self._around = around
        self._store = around.store
        self._registry = registry
        self._state = state
        self._loop = asyncio.get_running_loop()
        turn, clean = HookTurn(state.session or "", "", ""), self.performer.redactor.text
        hooked = Hooked((), turn, guards=around.hooks, clean=clean)
        self._completing = Completing(self.performer, around.prices, hooked)
        self.waiting = Waiting(self.performer)
        self._asked: set[str] = set()
        self._versions: dict[str, bool] = {}
        self._slots = self._recorded_slots()

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
        value = await self._effect("step", name, name, body, call, repeat, returns)
        wanted = None if returns is not None else return_type(function)
        return value if wanted is None else as_declared(value, wanted)

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
        with self.waiting.at_work():
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
        await self.waiting.seek(place, key, ask, Awaited(self._store, self._state.journal, timer_wait(key), deadline))

    async def wait(self, name: str, timeout: timedelta | float | None, returns: type[Any] | None) -> Any:  # noqa: ANN401
        deadline = None if timeout is None else self.performer.now() + milliseconds(timeout)
        check_returns(returns)
        place, key = self._next(name)
        slot = self._slot(key, name)
        ask = self._ask(key, "await_event", name, slot, None)
        outcome = await self.waiting.seek(place, key, ask, self._signal(slot, name, deadline), intend=True)
        if isinstance(outcome, Failed) and outcome.error.kind == "expired":
            raise WaitExpired(name)
        self.performer.cause = Cause("signal", name)
        return await self._value(outcome, returns)

    def _signal(self, slot: str, name: str, deadline: int | None) -> Awaited:
        again = f"{OWN_KEYS}again/{digest('again', slot)[:40]}"

        async def resend(payload: bytes) -> None:
            # Under a key: whoever goes on after a crash gives it back again.
            await self._registry.send_signal(self.id, name, decode_value(payload), again)

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

    async def defer(self, timeout: timedelta | float) -> AwaitedAnswer:
        span, journal = milliseconds(timeout), self._state.journal
        place, key = self._next(DEFER)
        name = deferral_name(key)

        async def call(_: str) -> int:
            return await self.waiting.guarded(opened(self._store, journal, name, self.performer.now() + span))

        due: int = await self._effect("process", DEFER, DEFER, {"ms": span}, call, at=(place, key))
        return AwaitedAnswer(self._store.wait_token(journal, name), due, name, partial(self._answered, name, due))

    async def _answered(self, name: str, due: int, returns: type[Any] | None) -> Any:  # noqa: ANN401
        check_returns(returns)
        place, key = self._next(ANSWER)
        ask = self._ask(key, "process", ANSWER, name, None)
        sought = Awaited(self._store, self._state.journal, name, due, _dropped)
        return await answer_in(await self.waiting.seek(place, key, ask, sought), self.performer.large, returns)

    async def outside(self) -> Any:  # noqa: ANN401
        """The end of a process that is carried out elsewhere."""
        place, key = self._next("outside")
        ask = self._ask(key, "process", "outside", "outside", None)
        sought = Awaited(self._store, self._state.journal, external_wait(self.run), None, _dropped)
        told = cast("dict[str, Any]", await self._value(await self.waiting.seek(place, key, ask, sought)))
        if "error" in told:
            raise ProcessFailed(self.id, "outside", str(told["error"]))
        return told.get("value")

    # ---- several at once ---------------------------------------------------------------------------------------------

    async def gather(self, work: tuple[Awaitable[Any], ...]) -> list[Any]:
        await self._admit(work)
        tasks = _tasks(work)
        try:
            if tasks:
                await asyncio.wait(tasks)
        except asyncio.CancelledError:
            await _stop(tasks)
            raise
        self.performer.check_halted()
        return [task.result() for task in tasks]

    async def _admit(self, work: tuple[Awaitable[Any], ...]) -> None:
        try:
            await self.performer.admit()
        except BaseException:
            _unused(work)
            raise

    async def race(self, work: tuple[Awaitable[Any], ...]) -> tuple[int, Any]:
        if not work:
            raise InvalidArgument("race", work, "one or more things to wait for")
        await self._admit(work)
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
            with self.waiting.at_work():
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
                    await self.waiting.guarded(self._signal(asked.target, signal_of(asked.target), None).withdraw())

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
            *(made.name, arguments, made.recovery, made.on_parent_end, self._state.journal, key, depth),
            taint=None if self._state.registration is None else self._state.registration.taint,
        )

        async def stop(_: str) -> None:
            await self._registry.end_child(child, f"the process {self.id} was cancelled")

        async def call(_: str) -> dict[str, str]:
            registering = spawn(self._registry.register(child, registration, self._state.session))
            return {"id": await self._begun(registering, stop)}

        body = {"id": child, "name": made.name, "arguments": arguments}
        told = await self._effect("process", made.name, "start", body, call, at=(place, key))
        return Started(self, told["id"])

    async def _begun(self, beginning: asyncio.Task[T], stop: Callable[[T], Awaitable[None]]) -> T:
        """Begin something elsewhere. If this process is cancelled meanwhile so is that, though no record names it."""
        try:
            return await asyncio.shield(beginning)
        except StopRequested:
            await self.performer.until_cancelled()  # this process is being stopped
            raise
        except asyncio.CancelledError:
            spawn(self._stop_begun(beginning, stop))
            raise

    async def _stop_begun(self, beginning: asyncio.Task[T], stop: Callable[[T], Awaitable[None]]) -> None:
        with suppress(HoldfastError):
            begun = await beginning
            if await self._store.find_input(self._state.journal, CANCEL) is not None:
                await stop(begun)

    async def ended(self, id: str) -> Any:  # noqa: ANN401  what the child gave
        """What a child gave, when it has ended."""
        place, key = self._next("result")
        ask = self._ask(key, "process", "result", "await", {"id": id})
        sought = ChildEnded(self._store, journal_of(id), self._registry.read)
        outcome = await self.waiting.seek(place, key, ask, sought)
        if isinstance(outcome, Failed):
            raise ProcessUnknown(id)
        told = cast("dict[str, Any]", await self._value(outcome))
        raise_unless_completed(id, told)
        return told["value"]

    async def signal(self, id: str, name: str, value: object) -> None:
        signal_prefix(self.run, name)

        async def call(key: str) -> None:
            # Under a key: one that was sent and not recorded before a crash is not sent twice.
            await self._registry.send_signal(id, name, value, f"{OWN_KEYS}sent/{self.performer.idempotency_key(key)}")

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

        async def stop(sent: AwaitedTurn) -> None:
            await self._registry.stop_turn(sent.session, sent.input, f"the process {self.id} was cancelled")

        async def call(_: str) -> Any:  # noqa: ANN401
            journal = self._state.journal
            made = self._state.registration
            untrusted = made is not None and made.taint is not None
            sending = self._registry.send(
                agent, asked, prompt, f"process/{known}", deadline, under=journal, untrusted=untrusted
            )
            return msgspec.to_builtins(await self._begun(spawn(sending), stop))

        body = {"agent": name, "prompt": prompt, "session": session}
        sent = msgspec.convert(
            await self._effect("process", f"agent {name}"[:200], "agent", body, call, at=(place, key)), AwaitedTurn
        )
        place, key = self._next("answer")
        ask = self._ask(key, "process", "answer", "turn", {"session": sent.session, "input": sent.input})
        sought = TurnEnd(self._store, self._state.journal, key, sent, self._registry.watch_turn)
        told = cast("dict[str, Any]", await self._value(await self.waiting.seek(place, key, ask, sought)))
        if told["status"] != "completed":
            raise AgentTurnFailed(sent.session, told["turn"], told["status"], told["message"])
        return self._answer(agent, told) if told["typed"] else told["text"]

    def _answer(self, agent: Agent | str, told: dict[str, Any]) -> Any:  # noqa: ANN401  a value of the agent's output
        """The answer as the output type of the agent that gave it; plain JSON where that agent is not here."""
        given_by = told.get("agent") or (agent if isinstance(agent, str) else agent.name)
        known = self._around.agents.get(given_by)
        if known is None and not isinstance(agent, str) and agent.name == given_by:
            known = agent
        output = None if known is None else known.output
        if output is None or output.complaint(told["text"]) is not None:
            return told["value"]
        return output.load(told["text"])

    async def complete(self, model: Model | str, prompt: str, output: Any, instructions: str) -> Any:  # noqa: ANN401
        question = Question(model, prompt, output, instructions)
        place, key = self._next(NAME)
        with self.waiting.at_work():
            return await self._completing.answer(place, key, question)


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
