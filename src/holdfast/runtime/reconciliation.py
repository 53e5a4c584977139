"""Reconciliation: the outcome of an interrupted call that must not be repeated, from its tool or from a person.

Also the records that interrupted calls and programs leave in the journal, and the outcomes of abandoned ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.effects import canonical, scopes
from holdfast.errors import Suspended, WaitEnded, WaitFailed
from holdfast.policy.approvals import MARK
from holdfast.records import Cancelled, Cause, Done, EffectRequest, ErrorInfo, Failed, Outcome, Unknown
from holdfast.runtime.context import is_control_flow
from holdfast.tools.context import CallContext
from holdfast.tools.definition import AnyTool, Bound, NotDone
from holdfast.turns import keys, programs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Iterable, Iterator

    from holdfast.effects.replay import RecordedEffect, RunHistory
    from holdfast.runtime.tool_call import PreparedCall
    from holdfast.tools.context import CallHost


RECONCILE_PREFIX: Final = "%reconcile-"
"""Key prefix of the records of `reconcile` below a call. No step or wait can have such a name."""
ASK_WAIT: Final = "ask"
"""Name of the wait that asks a person for the outcome of a call."""
ATTEMPT_PREFIX: Final = "%attempt-"
"""Key prefix of the records of failed attempts below a call."""
DECISION_SUFFIXES: Final = ("/%approval-", "/%hook")
"""Key suffixes of decisions about a call before it began: approvals and hooks."""
_log: Final = logging.getLogger("holdfast.tools")
_NULL: Final = b"null"


class Reconciler:
    """Reconciles interrupted calls on behalf of one turn, or of one background task."""

    def __init__(self, caller: CallHost) -> None:
        self._caller = caller
        self._performer = caller.performer

    async def reconcile(
        self, call: PreparedCall, from_outside: Callable[[], Awaitable[Outcome | None]] | None = None
    ) -> Outcome | None:
        """The outcome of an interrupted call; None if it certainly did not take effect and must be performed now.

        Asks the tool's `reconcile` first, then `from_outside` (the answer to a deferral), then a person if the tool has
        ``on_interrupt="ask"``. If none of them knows, the outcome is `Unknown`.
        """
        number = 1
        while has_outcome(self._performer.past, f"{call.key}/{RECONCILE_PREFIX}{number}"):
            number += 1
        look = f"{call.key}/{RECONCILE_PREFIX}{number}"
        outcome: Outcome | None = Unknown(at=self._performer.now(), key=call.key)
        if call.tool is not None and call.tool.reconcile is not None and call.bound is not None:
            outcome = await self._reconcile_by_tool(call, call.tool, call.bound, look)
        if isinstance(outcome, Unknown) and from_outside is not None:
            outcome = await from_outside() or outcome
        if isinstance(outcome, Unknown) and call.tool is not None and call.tool.on_interrupt == "ask":
            outcome = await self._ask_person(call, look)
        if outcome is not None:
            return outcome
        # The run that follows uses up the finding: if it is interrupted too, the call is reconciled anew.
        ask = EffectRequest(
            "sample", "reconcile", canonical.digest_of_bytes("look", look.encode()), cause=Cause("call", call.key)
        )
        self._performer.submit([Done(at=self._performer.now(), key=look, ask=ask, value=msgspec.Raw(b"false"))])
        await self._performer.settle()
        return None

    async def _reconcile_by_tool(self, call: PreparedCall, tool: AnyTool, bound: Bound, look: str) -> Outcome | None:
        context = CallContext(
            self._caller, call.key, call.request.id, tool.name, scope=look, idempotency=call.idempotency
        )
        begun = asyncio.get_running_loop().time()
        token = scopes.current_scope.set(context.place)
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
            if is_control_flow(error) or isinstance(error, Suspended):
                raise
            self._performer.check_halted()
            return Unknown(at=self._performer.now(), key=call.key)
        finally:
            scopes.current_scope.reset(token)
        return await self._performer.succeeded(call.key, None, body, begun)

    async def _ask_person(self, call: PreparedCall, look: str) -> Outcome | None:
        """The outcome that a person answers: ``{"done": RESULT}``, ``"not_done"`` or ``"unknown"``.

        Any other answer, or a result that does not fit the tool, repeats the question.
        """
        occurrence = 1
        while True:
            try:
                answer = await self._caller.waits.wait(look, ASK_WAIT, occurrence, None)
            except (WaitEnded, WaitFailed):
                return Unknown(at=self._performer.now(), key=call.key)
            complaint = self._complaint(call, answer)
            if complaint is None:
                break
            _log.warning("the answer about %s is not accepted, and a person is asked again: %s", call.key, complaint)
            occurrence += 1
        if answer in ("not_done", {"not_done": True}):
            return None
        if isinstance(answer, dict) and "done" in answer:
            given = cast("dict[str, Any]", answer)["done"]
            return await self._performer.succeeded(call.key, None, canonical.encode_value(given))
        return Unknown(at=self._performer.now(), key=call.key)

    def _complaint(self, call: PreparedCall, answer: Any) -> str | None:  # any JSON value
        if not is_reconciliation_answer(answer):
            return 'it is not {"done": RESULT}, "not_done" or "unknown"'
        if call.tool is None or not isinstance(answer, dict) or "done" not in answer:
            return None
        from holdfast.tools.schema import check_result  # pydantic only when it is needed

        return check_result(call.tool.function, canonical.encode_value(cast("dict[str, Any]", answer)["done"]))


def returns_none(tool: AnyTool) -> bool:
    """True if the return annotation of the tool allows None. Without an annotation it does not."""
    from holdfast.tools.schema import check_result, has_result_type  # pydantic only when needed

    return has_result_type(tool.function) and check_result(tool.function, _NULL) is None


# ---- the records of a call ----


def is_reconciliation_wait(wait: str) -> bool:
    """True if a wait asks a person for the outcome of an interrupted call."""
    above, _, name = wait.rpartition("/")
    return name.partition("#")[0] == ASK_WAIT and above.rpartition("/")[2].startswith(RECONCILE_PREFIX)


def is_reconciliation_answer(answer: object) -> bool:
    """True if an answer to such a wait gives the outcome of the call, or says that it is unknown."""
    if isinstance(answer, dict):
        said = cast("dict[object, object]", answer)
        return set(said) == {"done"} or said in ({"not_done": True}, {"unknown": True})
    return answer in ("not_done", "unknown")


def has_outcome(past: RunHistory, key: str) -> bool:
    """True if the effect has a recorded outcome."""
    found = past.effects.get(key)
    return found is not None and found.outcome is not None


def was_suspended(past: RunHistory, key: str) -> bool:
    """True if the call was suspended at a wait: then it was not interrupted, and may run again."""
    waiting = False
    for name, found in _below(past, key):
        apart = (f"/{RECONCILE_PREFIX}", f"/{keys.DEFERRAL}", *DECISION_SUFFIXES)
        if not name.startswith(apart, len(key)) and found.ask().kind == "await_event":
            waiting = found.outcome is None
    return waiting


def has_only_waited(past: RunHistory, key: str) -> bool:
    """True if the call recorded only waits that are still open."""
    apart = (f"/{ATTEMPT_PREFIX}", *DECISION_SUFFIXES)
    below = {name: found for name, found in _below(past, key) if not name.startswith(apart, len(key))}
    if any(name.startswith((f"/{RECONCILE_PREFIX}", f"/{keys.DEFERRAL}"), len(key)) for name in below):
        return False  # it was interrupted and is being reconciled, or it was deferred
    waits = [found for found in below.values() if found.ask().kind == "await_event" and found.outcome is None]
    return bool(waits) and len(waits) == len(below)


def _below(past: RunHistory, key: str) -> Iterator[tuple[str, RecordedEffect]]:
    return ((name, found) for name, found in past.effects.items() if name.startswith(f"{key}/"))


# ---- programs that were stopped ----


def has_program_records(past: RunHistory, key: str) -> bool:
    """True if the call `key` has records below it that only a program makes."""
    return any(_is_below_program(name, key) for name in past.effects)


def open_program_outcomes(
    past: RunHistory, key: str, known: Container[str], now: int, *, reads: Container[str] = ()
) -> Iterator[Unknown | Cancelled]:
    """Outcomes for unfinished calls, questions and pauses of a program in an earlier process.

    `reads` are the names of read-only tools: their calls can't have taken effect.
    """
    for name, found in past.effects.items():
        if not _is_below_program(name, key) or found.outcome is not None or found.intent is None or name in known:
            continue
        call = _call_of(name, key)
        if call != name and (call in known or has_outcome(past, call)):
            continue  # a question or a wait of a call that has ended
        acts = found.intent.ask.kind == "tool_call" and found.intent.ask.target not in reads
        if MARK in name or not acts or has_only_waited(past, name):
            yield Cancelled(at=now, key=name)  # an open question, pause or wait
        else:
            yield Unknown(at=now, key=name)


def stopped_program_outcome(
    key: str, ask: EffectRequest | None, now: int, done: Iterable[str], unknown: Iterable[str], *, perhaps: bool = False
) -> Failed:
    """The outcome of a stopped program; `done` and `unknown` are the keys of its calls.

    `perhaps`: a call that is safe to repeat leaves no record before its end, and one may have been running.
    """
    said = ["The program was stopped before its end. Its variables are what they were before it."]
    if counts := _tool_counts(done):
        said.append(f"What it had done stays done: {counts}.")
    if counts := _tool_counts(unknown):
        said.append(f"Of these calls it is not known whether they took effect: {counts}.")
    if perhaps:
        said.append("The call that came next may have taken effect, too. Find out before you repeat it.")
    return Failed(at=now, key=key, ask=ask, error=ErrorInfo(programs.STOPPED, " ".join(said)))


def unknown_program_calls(left: Iterable[Unknown | Cancelled], key: str) -> list[str]:
    """The keys of the calls of a program that may have taken effect, by their outcomes.

    An older release may have recorded no more than the deferral of a call.
    """
    ended = {record.key: record for record in left}
    outside = f"/{keys.DEFERRAL}"
    found = (name for name, record in ended.items() if isinstance(record, Unknown) or name.endswith(outside))
    calls = dict.fromkeys(_call_of(name, key) for name in found)
    return [call for call in calls if not isinstance(ended.get(call), Cancelled)]


def finished_program_calls(past: RunHistory, key: str) -> list[str]:
    """The keys of the calls of a program that have an outcome."""
    calls = [name for name, found in past.effects.items() if found.outcome is not None]
    return [name for name in calls if name.startswith(f"{key}{keys.NESTED}") and _call_of(name, key) == name]


def _tool_counts(names: Iterable[str]) -> str:
    counted = Counter(map(keys.tool_in_key, names))
    return ", ".join(f"{name} ({count})" if count > 1 else name for name, count in sorted(counted.items()))


def _is_below_program(name: str, key: str) -> bool:
    """True if `name` is a host call of the program `key`, or below one."""
    if not name.startswith(f"{key}/%"):
        return False
    return name.startswith((f"{key}{keys.NESTED}", f"{key}/%now-", f"{key}/%sleep-", f"{key}/%finish-"))


def _call_of(name: str, key: str) -> str:
    """The key of the call that `name` is or belongs to; otherwise `name` itself."""
    return name[: len(key) + 1] + name[len(key) + 1 :].partition("/")[0]
