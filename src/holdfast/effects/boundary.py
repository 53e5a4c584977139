"""The effect boundary: the only way in which driven code touches the world.

If the journal has an outcome, it is the answer. If not: record an intent (if the effect must not be repeated), perform
it, record the outcome. After a crash the same code runs again from the top and gets its recorded answers until it
reaches the point of the crash.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.crashpoints import crash_point
from holdfast.effects.envelope import Envelope, segment
from holdfast.effects.replay import Decision, Perform, Repeat, UseRecorded, diverge
from holdfast.effects.values import as_declared, return_type
from holdfast.errors import GroupInvalid, Halted, InvalidArgument, NoneSucceeded, ReplayMismatch, WorldError
from holdfast.names import check_id
from holdfast.records import Cancelled, Done, EffectRequest, Grouped, Outcome, Record, Unknown, Wake

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from holdfast.effects.performer import EffectScope, Performer
    from holdfast.effects.replay import Drift
    from holdfast.records import EffectKind


MAX_MEMBERS: Final = 1_000


class _Member:
    """One effect of a group while the group runs."""

    __slots__ = ("ask", "decision", "effect", "key", "outcome", "seq")

    def __init__(self, effect: Effect, key: str, ask: EffectRequest, decision: Decision) -> None:
        self.effect = effect
        self.key = key
        self.ask = ask
        self.decision = decision
        self.outcome: Outcome | None = None
        self.seq = 0


class EffectGroup:
    """One group of effects of a run."""

    def __init__(
        self,
        performer: Performer,
        wake: Wake,
        name: str,
        effects: Sequence[Effect],
        context: Callable[[str], EffectContext],
    ) -> None:
        self._performer = performer
        self._context = context
        self._wake: Wake = wake
        self._place = performer.place()
        self._key = self._place.next(check_id("group name", name))
        self._check_shape(effects)
        self._prelude: list[Record] = []
        self._durable = -1  # recorded outcomes rank below zero, new ones by their sequence
        self._tasks: dict[asyncio.Task[None], _Member] = {}
        self._members = [self._prepare(index, effect) for index, effect in enumerate(effects)]

    def _check_shape(self, effects: Sequence[Effect]) -> None:
        if not effects:
            raise GroupInvalid(self._key, "it has no effects")
        if len(effects) > MAX_MEMBERS:
            raise GroupInvalid(self._key, f"it has {len(effects):,} effects, the limit is {MAX_MEMBERS:,}")

    def _prepare(self, index: int, effect: Effect) -> _Member:
        name = check_id("effect name", effect.name)
        key = f"{self._key}/{index}.{segment(name)}"
        target = name if effect.target is None else effect.target
        envelope = self._performer.envelope(key, effect.kind, name, target, effect.body)
        ask = envelope.ask()
        return _Member(effect, key, ask, self._performer.decide(envelope.key, ask, effect.repeat))

    async def run(self) -> Any:  # noqa: ANN401  the value depends on the kind of group
        """Perform the members without an outcome, and answer."""
        with self._performer.occupied(self._place):
            self._performer.ask_group(self._place, self._key)
            if self._key in self._performer.past.abandoned:
                await self._performer.until_cancelled()
            try:
                await self._open()
                self._recall()
                if self._decided() is None:
                    await self._drive()
                await self._dismiss()
            except asyncio.CancelledError:
                self._abandon()
                raise
            return await self._answer()

    def _abandon(self) -> None:
        """The caller was cancelled: intended members without an outcome become unknown."""
        at = self._performer.now()
        open_intents = [m for m in self._members if m.outcome is None and self._has_intent(m)]
        unknown = [Unknown(at=at, key=member.key) for member in open_intents]
        self._performer.abandon([*self._prelude, *unknown, Cancelled(at=at, key=self._key)])

    # ---- opening ----

    async def _open(self) -> None:
        members = tuple(member.key for member in self._members)
        recorded = self._performer.past.groups.get(self._key)
        opened: list[Record] = []
        if self._performer.recorded(self._key) is not None:
            raise self._mismatch({"effect": "a single one"}, {"effect": "a group"})
        if recorded is None:
            opened.append(Grouped(at=self._performer.now(), key=self._key, wake=self._wake, members=members))
        elif (recorded.wake, recorded.members) != (self._wake, members):
            before = {"wake": recorded.wake, "members": recorded.members}
            raise self._mismatch(before, {"wake": self._wake, "members": members})
        intents = [m for m in self._members if isinstance(m.decision, Perform) and m.decision.intent]
        if not intents:
            self._prelude = opened  # it shares the commit of the first outcome
            return
        opened.extend(self._performer.intention(member.key, member.ask) for member in intents)
        await self._performer.record(opened)
        crash_point("group.opened")

    def _mismatch(self, recorded: Mapping[str, object], asked: Mapping[str, object]) -> Halted:
        return self._performer.halt(ReplayMismatch(self._key, diverge(dict(recorded), dict(asked))))

    def _recall(self) -> None:
        """Take recorded outcomes, ranked in their order and before all new ones."""
        for member in self._members:
            if isinstance(member.decision, UseRecorded):
                member.outcome = member.decision.outcome
                member.seq = self._performer.past.settled[member.key] - len(self._performer.past.settled)

    # ---- running ----

    async def _drive(self) -> None:
        loop = asyncio.get_running_loop()
        for member in self._members:
            if member.outcome is None:
                # Without the task factory of the loop: the scope of a member is its key, not a branch.
                task = asyncio.Task(self._perform(member), loop=loop, context=contextvars.copy_context())
                self._tasks[task] = member
        try:
            while self._tasks and self._decided() is None:
                done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del self._tasks[task]
                    task.result()
        except BaseException:
            await self._stop()
            raise

    async def _perform(self, member: _Member) -> None:
        """Perform a member, submit its outcome at once, and wait until it is durable."""
        run, context = member.effect.run, self._context
        outcome = await self._performer.outcome(member.decision, member.key, member.ask, lambda key: run(context(key)))
        crash_point("group.before_outcome")
        added, self._prelude = [*self._prelude, outcome], []
        seq, durable = self._performer.submit(added)
        member.seq, member.outcome = seq, outcome
        await self._performer.durable(durable)
        self._durable = max(self._durable, seq)
        crash_point("group.after_outcome")

    # ---- deciding ----

    def _ranked(self) -> list[_Member]:
        """Members with a durable outcome, in order.

        A journal is written in order: when one outcome is durable, so are all before it.
        """
        settled = [m for m in self._members if m.outcome is not None and m.seq and not isinstance(m.outcome, Cancelled)]
        return sorted((m for m in settled if m.seq <= self._durable), key=lambda member: member.seq)

    def _decided(self) -> _Member | None:
        """The member that decides the group; None while it is undecided."""
        ranked = self._ranked()
        if self._wake == "all":
            return ranked[-1] if len(ranked) == len(self._members) else None
        if self._wake == "any":
            winner = next((member for member in ranked if isinstance(member.outcome, Done)), None)
            return winner or (ranked[-1] if len(ranked) == len(self._members) else None)
        return ranked[0] if ranked else None

    async def _dismiss(self) -> None:
        """Cancel the members that lost, and record it."""
        await self._stop()
        self._performer.check_halted()  # a member may have lost the lease
        losers = [member for member in self._members if member.outcome is None]
        if not losers:
            return
        cancelled: list[Record] = []
        for member in losers:
            at = self._performer.now()
            # An intended member may have taken effect before it was stopped.
            intended = self._has_intent(member)
            member.outcome = (
                Unknown(at=at, key=member.key) if intended else Cancelled(at=at, key=member.key, ask=member.ask)
            )
            cancelled.append(member.outcome)
        await self._performer.record([*self._prelude, *cancelled])
        self._prelude = []

    def _has_intent(self, member: _Member) -> bool:
        recorded = self._performer.recorded(member.key)
        if recorded is not None and recorded.intent is not None:
            return True
        return isinstance(member.decision, Perform) and member.decision.intent

    async def _stop(self) -> None:
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    # ---- answering ----

    async def _answer(self) -> Any:  # noqa: ANN401
        if self._wake == "all":
            for member in self._ranked():
                if not isinstance(member.outcome, Done):
                    await self._value(member)
            return [await self._value(member) for member in self._members]
        winner = self._decided()
        if winner is None or (self._wake == "any" and not isinstance(winner.outcome, Done)):
            raise NoneSucceeded(self._key, [await self._failure(member) for member in self._ranked()])
        return await self._value(winner)

    async def _value(self, member: _Member) -> Any:  # noqa: ANN401
        assert member.outcome is not None  # noqa: S101  settled, or the group would not answer
        return await self._performer.unwrap(member.outcome, member.ask, None)

    async def _failure(self, member: _Member) -> WorldError:
        try:
            await self._value(member)
        except WorldError as error:
            return error
        message = "it did not fail"
        raise GroupInvalid(member.key, message)


class EffectContext:
    """The context of the code that performs an effect."""

    __slots__ = ("_boundary", "key")

    def __init__(self, boundary: Boundary, key: str) -> None:
        self._boundary = boundary
        self.key = key

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt of this effect, and different from every other effect of any store."""
        return self._boundary.performer.idempotency_key(self.key)

    async def step(self, name: str, function: Callable[..., Any], *args: object, **options: Any) -> Any:  # noqa: ANN401
        """Run a sub-step once, under a key that does not depend on the attempt."""
        return await self._boundary.step(name, function, *args, **options)


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect of a group: the function to run, and if it may be repeated after a crash."""

    name: str
    run: Callable[[EffectContext], Awaitable[Any]]
    kind: EffectKind = "step"
    target: str | None = None
    body: object = None
    repeat: Repeat = Repeat.NEVER


class Boundary:
    """Performs effects for driven code, one after the other or several at once."""

    def __init__(self, performer: Performer) -> None:
        self.performer = performer
        """Internal; not for driven code."""

    @property
    def drifts(self) -> Sequence[Drift]:
        """Effects so far whose content differs from their record; their kinds keep the recorded outcome."""
        return self.performer.drifts

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: object,
        repeat: Repeat = Repeat.FREE,
        returns: type[Any] | None = None,
    ) -> Any:  # noqa: ANN401  whatever the function gives, after its way through JSON
        """Call `function(*args)` once and record its value; after a crash the recorded value is the answer.

        An interrupted step runs again from its beginning, unless `repeat` is `Repeat.NEVER`. The function gets no
        idempotency key: use `effect` for what must not happen twice in the world. A plain function runs in a thread.
        The value has the type `returns`, or the declared return type of the function.
        """
        if not callable(function):
            raise InvalidArgument("function", function, "something to call")

        async def call(_: EffectContext) -> Any:  # noqa: ANN401
            if inspect.iscoroutinefunction(function):
                return await function(*args)
            value = await asyncio.to_thread(function, *args)
            return await value if inspect.isawaitable(value) else value

        value = await self.effect("step", name, call, body=list(args), repeat=repeat, returns=returns)
        wanted = None if returns is not None else return_type(function)
        return value if wanted is None else as_declared(value, wanted)

    async def effect(
        self,
        kind: EffectKind,
        name: str,
        run: Callable[[EffectContext], Awaitable[Any]],
        *,
        target: str | None = None,
        body: object = None,
        repeat: Repeat = Repeat.NEVER,
        returns: type[Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Perform the next effect called `name` in the scope of the running code."""
        place = self.performer.place()
        key = place.next(check_id("effect name", name))
        envelope = self.performer.envelope(key, kind, name, name if target is None else target, body)
        return await self._perform(envelope, run, repeat, returns, place)

    async def perform(
        self,
        envelope: Envelope,
        run: Callable[[EffectContext], Awaitable[Any]],
        *,
        repeat: Repeat = Repeat.NEVER,
        returns: type[Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Perform an effect under a key that the caller chose; it begins with the name of the run.

        Such effects may run concurrently and in any order; a replay compares their keys and contents.
        """
        if not isinstance(envelope, Envelope):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("envelope", envelope, "an Envelope")
        return await self._perform(envelope, run, repeat, returns, None)

    async def _perform(
        self,
        envelope: Envelope,
        run: Callable[[EffectContext], Awaitable[Any]],
        repeat: Repeat,
        returns: type[Any] | None,
        place: EffectScope | None,
    ) -> Any:  # noqa: ANN401
        if not callable(run):
            raise InvalidArgument("effect", run, "something to call")
        return await self.performer.perform(envelope, lambda key: run(EffectContext(self, key)), repeat, returns, place)

    async def all(self, name: str, effects: Sequence[Effect]) -> list[Any]:
        """Perform all concurrently; their values in the order given. Raises the first failure."""
        return await self._group("all", name, effects)

    async def any(self, name: str, effects: Sequence[Effect]) -> Any:  # noqa: ANN401
        """Perform all concurrently; the value of the first success. The others are cancelled."""
        return await self._group("any", name, effects)

    async def race(self, name: str, effects: Sequence[Effect]) -> Any:  # noqa: ANN401
        """Perform all concurrently; the value or error of the first that ends. The others are cancelled."""
        return await self._group("race", name, effects)

    async def _group(self, wake: Wake, name: str, effects: Sequence[Effect]) -> Any:  # noqa: ANN401
        members = _members(effects)
        await self.performer.admit()
        return await EffectGroup(self.performer, wake, name, members, lambda key: EffectContext(self, key)).run()


def _members(effects: Sequence[Effect]) -> list[Effect]:
    try:
        members = list(effects)
    except TypeError:
        raise InvalidArgument("effects", effects, "a list of effects") from None
    for effect in members:
        if not isinstance(effect, Effect):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("member", effect, "an Effect")
        if not callable(effect.run):
            raise InvalidArgument("effect", effect.run, "something to call")
    return members
