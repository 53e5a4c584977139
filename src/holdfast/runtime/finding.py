"""Finding out what came of a call that was interrupted and must not be repeated: from the tool, or from a person."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from holdfast.effects.canonical import digest_of_bytes
from holdfast.effects.scopes import current
from holdfast.effects.values import encode_value
from holdfast.errors import Suspended, WaitEnded, WaitFailed
from holdfast.records import Ask, Cause, Done, Unknown
from holdfast.runtime.interrupted import ASK, is_finding, next_look
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

_log: Final = logging.getLogger("holdfast.tools")
_NULL: Final = b"null"


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
        ask = Ask("sample", "reconcile", digest_of_bytes("look", look.encode()), cause=Cause("call", call.key))
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
                if body == _NULL and not returns_none(tool):
                    said = "reconcile of %r gave None, which the tool does not return: what came of %s is not known"
                    _log.warning(said, tool.name, call.key)
                    return Unknown(at=self._performer.now(), key=call.key)
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
        """What a person says: ``{"done": RESULT}``, ``"not_done"`` or ``"unknown"``.

        An answer that is none of these, or whose result does not fit the tool, is not taken: the person is asked again.
        """
        occurrence = 1
        while True:
            try:
                answer = await self._caller.wait(look, ASK, occurrence, None)
            except (WaitEnded, WaitFailed):
                return Unknown(at=self._performer.now(), key=call.key)
            complaint = self._complaint(call, answer)
            if complaint is None:
                break
            _log.warning("the answer about %s is not taken, and asked for again: %s", call.key, complaint)
            occurrence += 1
        if answer in ("not_done", {"not_done": True}):
            return None
        if isinstance(answer, dict) and "done" in answer:
            given = cast("dict[str, Any]", answer)["done"]
            begun = asyncio.get_running_loop().time()
            return await self._performer.succeeded(call.key, None, encode_value(given), begun)
        return Unknown(at=self._performer.now(), key=call.key)

    def _complaint(self, call: Interrupted, answer: Any) -> str | None:  # noqa: ANN401  whatever was answered
        if not is_finding(answer):
            return 'it is not {"done": RESULT}, "not_done" or "unknown"'
        if call.tool is None or not isinstance(answer, dict) or "done" not in answer:
            return None
        from holdfast.tools.returning import complaint_about  # noqa: PLC0415  pydantic only when it is needed

        return complaint_about(call.tool.function, encode_value(cast("dict[str, Any]", answer)["done"]))


def returns_none(tool: AnyTool) -> bool:
    """Whether None is a result of the tool, by its annotation. A function without one says nothing of the kind."""
    from holdfast.tools.returning import complaint_about, is_annotated  # noqa: PLC0415  pydantic only when needed

    return is_annotated(tool.function) and complaint_about(tool.function, _NULL) is None
