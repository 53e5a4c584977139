"""The effect boundary: the one way in which driven code touches the world.

Recorded? The journal answers. Not yet? Intent (where a repetition would do harm), perform, outcome. After a crash the
same code runs again from the top and meets its own answers until it gets to where it was.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.effects.envelope import Envelope
from holdfast.effects.groups import Group
from holdfast.effects.replay import Repeat
from holdfast.effects.return_types import as_declared, return_type
from holdfast.errors import InvalidArgument
from holdfast.names import check_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.effects.performer import Performer
    from holdfast.effects.retracing import Drift
    from holdfast.effects.scopes import Place
    from holdfast.records import EffectKind, Wake


class EffectContext:
    """What the code that performs an effect may use."""

    __slots__ = ("_boundary", "key")

    def __init__(self, boundary: Boundary, key: str) -> None:
        self._boundary = boundary
        self.key = key

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt and every re-drive of this effect, and for no other effect of any store."""
        return self._boundary.performer.idempotency_key(self.key)

    async def step(self, name: str, function: Callable[..., Any], *args: object, **options: Any) -> Any:  # noqa: ANN401
        """A sub-step that is recorded once, under a key that does not depend on the attempt."""
        return await self._boundary.step(name, function, *args, **options)


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect of a group: what to do, and what may happen to it after a crash."""

    name: str
    run: Callable[[EffectContext], Awaitable[Any]]
    kind: EffectKind = "step"
    target: str | None = None
    body: object = None
    repeat: Repeat = Repeat.NEVER


class Boundary:
    """What driven code is given: ask it for effects, one after the other, or several at once."""

    def __init__(self, performer: Performer) -> None:
        self.performer = performer
        """The machinery; not for driven code."""

    @property
    def drifts(self) -> Sequence[Drift]:
        """Effects so far whose content differs from their record, and whose kind keeps what was recorded."""
        return self.performer.drifts

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: object,
        repeat: Repeat = Repeat.FREE,
        returns: type[Any] | None = None,
    ) -> Any:  # noqa: ANN401  whatever the function gives, after its way through JSON
        """Call `function(*args)` once and remember what it gave; after a crash the recorded value is the answer.

        A step that was interrupted runs again, from its beginning, unless `repeat` is `Repeat.NEVER`. The function
        can't see an idempotency key: for what must not happen twice in the world, use `effect`. A plain function runs
        in a thread. The value is of the type `returns`, or else of the one that the function declares to return.
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

    async def effect(  # noqa: PLR0913
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
        """Perform an effect under a key of the caller's own choice, which begins with the name of the run.

        Such effects may run at once and in any order; on replay their keys and contents are compared.
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
        place: Place | None,
    ) -> Any:  # noqa: ANN401
        if not callable(run):
            raise InvalidArgument("effect", run, "something to call")
        return await self.performer.perform(envelope, lambda key: run(EffectContext(self, key)), repeat, returns, place)

    async def all(self, name: str, effects: Sequence[Effect]) -> list[Any]:
        """Perform all at once; their values in the order given. If some fail, the first to have failed is raised."""
        return await self._group("all", name, effects)

    async def any(self, name: str, effects: Sequence[Effect]) -> Any:  # noqa: ANN401
        """Perform all at once; the value of the first that succeeds. The others are cancelled."""
        return await self._group("any", name, effects)

    async def race(self, name: str, effects: Sequence[Effect]) -> Any:  # noqa: ANN401
        """Perform all at once; how the first one ended. The others are cancelled."""
        return await self._group("race", name, effects)

    async def _group(self, wake: Wake, name: str, effects: Sequence[Effect]) -> Any:  # noqa: ANN401
        members = _members(effects)
        await self.performer.admit()
        return await Group(self.performer, wake, name, members, lambda key: EffectContext(self, key)).run()


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
