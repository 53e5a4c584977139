"""Finding out what came of a call that was interrupted and must not be repeated: from the tool, or from a person."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from holdfast.effects.canonical import digest_of_bytes
from holdfast.effects.scopes import current
from holdfast.effects.values import encode_value
from holdfast.errors import Suspended, WaitEnded
from holdfast.records import Ask, Done, Unknown
from holdfast.runtime.interrupted import next_look
from holdfast.runtime.surroundings import passes
from holdfast.tools.context import Context
from holdfast.tools.definition import NotDone

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.effects.performer import Performer
    from holdfast.messages import ToolCall
    from holdfast.records import Outcome
    from holdfast.runtime.recording import Recorder
    from holdfast.tools.context import Caller
    from holdfast.tools.definition import AnyTool, Bound

ASK: Final = "ask"
"""The name of the wait with which a person is asked what came of a call."""


class Interrupted(Protocol):
    """A call that was begun and has no outcome."""

    call: ToolCall
    key: str
    tool: AnyTool | None
    bound: Bound | None
    idempotency: str | None


class Finder:
    """Finds out on behalf of one turn, or of one task."""

    def __init__(self, caller: Caller, performer: Performer, recorder: Recorder) -> None:
        self._caller = caller
        self._performer = performer
        self._recorder = recorder

    async def found(
        self, call: Interrupted, later: Callable[[], Awaitable[Outcome | None]] | None = None
    ) -> Outcome | None:
        """What came of it; None when it is certain that nothing did: then it is to be performed now.

        First `reconcile` of the tool is asked. If that can't tell, `later` may: the result may be given from outside.
        Then a person is asked, where the tool wants it so; otherwise nobody can say.
        """
        look = next_look(self._performer.past, call.key)
        outcome: Outcome | None = Unknown(at=self._performer.now(), key=call.key)
        if call.tool is not None and call.tool.reconcile is not None and call.bound is not None:
            outcome = await self._reconciled(call, call.tool, call.bound, look)
        if isinstance(outcome, Unknown) and later is not None:
            outcome = await later() or outcome
        if isinstance(outcome, Unknown) and call.tool is not None and call.tool.on_interrupt == "ask":
            outcome = await self._asked(call, look)
        if outcome is not None:
            return outcome
        # What was found is used up with the run that follows: if that is interrupted too, it is looked for anew.
        ask = Ask("sample", "reconcile", digest_of_bytes("look", look.encode()))
        self._recorder.submit([Done(at=self._performer.now(), key=look, ask=ask, value=msgspec.Raw(b"false"))])
        await self._recorder.settle()
        return None

    async def _reconciled(self, call: Interrupted, tool: AnyTool, bound: Bound, look: str) -> Outcome | None:
        context = Context(self._caller, call.key, call.call.id, tool.name, scope=look, idempotency=call.idempotency)
        begun = asyncio.get_running_loop().time()
        token = current.set(context.place)
        try:
            async with asyncio.timeout(tool.timeout):
                body = await tool.find_out(bound, context)
        except NotDone:
            return None
        except BaseException as error:
            if passes(error) or isinstance(error, Suspended):
                raise
            self._performer.check_halted()
            return Unknown(at=self._performer.now(), key=call.key)
        finally:
            current.reset(token)
        return await self._performer.succeeded(call.key, None, body, begun)

    async def _asked(self, call: Interrupted, look: str) -> Outcome | None:
        """What a person says: ``{"done": RESULT}``, ``"not_done"``, or anything else for somebody who can't tell."""
        try:
            answer = await self._caller.wait(look, ASK, 1, None)
        except WaitEnded:
            answer = None
        if answer in ("not_done", {"not_done": True}):
            return None
        if isinstance(answer, dict) and "done" in answer:
            given = cast("dict[str, Any]", answer)["done"]
            begun = asyncio.get_running_loop().time()
            return await self._performer.succeeded(call.key, None, encode_value(given), begun)
        return Unknown(at=self._performer.now(), key=call.key)
