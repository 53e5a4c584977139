"""Executing one tool call, in a turn or in the background: to its outcome, or to the wait at which it is suspended."""

from __future__ import annotations

import asyncio
import logging
import types
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast import errors
from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import decode_value, digest_of_bytes, json_of
from holdfast.effects.replay import PerformAgain, SettleAsUnknown
from holdfast.effects.scopes import current_scope, release_if_held
from holdfast.eventloop import cancel_and_wait
from holdfast.logs import log_event
from holdfast.media import FILES_DEPTH, File
from holdfast.messages import Attachment
from holdfast.records import ABSENT, Blob, Cause, Done, EffectRequest, ErrorInfo, Failed, Outcome, Unknown
from holdfast.runtime.context import is_control_flow
from holdfast.runtime.reconciliation import ATTEMPT_PREFIX, Reconciler
from holdfast.secrets.logs import safe_cause, safe_trace
from holdfast.tools import functions, results
from holdfast.tools.context import CallContext
from holdfast.tools.definition import AnyTool, Bound, Deferred, ToolRetry, ToolRetryPolicy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable

    from holdfast.runtime.deferrals import DeferralReply
    from holdfast.runtime.tool_call import PreparedCall
    from holdfast.tools.context import CallHost

    Began = Callable[[PreparedCall], None]
    Spill = Callable[["SpillableCall", float], Awaitable[Outcome | None]]


_log: Final = logging.getLogger("holdfast.tools")


@dataclass(slots=True)
class SpillableCall:
    """A call that runs in its own task, so that it can continue in the background."""

    call: PreparedCall
    tool: AnyTool
    context: CallContext
    task: asyncio.Task[object]
    begun: float
    handed_over: bool = False
    """A background task waits for it; the turn does not."""


class ToolExecutor:
    """Executes calls of one turn or one background task: to an outcome, or to `Suspended`."""

    def __init__(self, caller: CallHost) -> None:
        self._reads_on = caller.agent is not None and results.RESULT_READER in caller.agent.tools
        """True if the model has the tool that reads results too long to show."""
        self._caller = caller
        performer = self._performer = caller.performer
        self._past = performer.past
        self._clean = performer.redactor.text
        self._deferrals = caller.deferrals
        self._slots = functions.calls_here()
        self._reconciler = Reconciler(caller)
        self._failed_attempts: dict[str, int] = {}
        self.raised: dict[str, Exception] | None = None
        """The errors of failed calls, by key, for the hooks that see them; None if there are none."""
        self._loop = asyncio.get_running_loop()

    def execute(
        self, call: PreparedCall, begin: Began, budget: float | None = None, spill: Spill | None = None
    ) -> Coroutine[Any, Any, Outcome]:
        """The outcome of a call. `begin` is called before the tool.

        A call that takes longer than `budget` seconds goes to `spill`, unless it has recorded steps. If `spill` returns
        None, the call stays in the turn.
        """
        key, tool, bound = call.key, call.tool, call.bound
        # The tool may have returned its deferral: then only the answer is missing.
        has_returned = key in self._past.order and self._deferrals.has_returned(key)
        if has_returned or isinstance(call.decision, SettleAsUnknown) or call.refused is not None:
            return self._outcome_without_run(call, begin, budget, spill, has_returned=has_returned)
        if tool is None or bound is None:
            raise errors.InvariantBroken(f"{key!r} can't be performed")
        begin(call)
        begun = self._loop.time()
        crash_point("tool.before_run")
        spills = budget is not None and spill is not None
        if not spills and tool.accepts.context is None and tool.retry is None:
            # No steps can be recorded below it: it needs no scope for them.
            return self._settled(call, tool, begun, self._attempt(key, tool, bound, None))
        context = CallContext(self._caller, key, call.request.id, tool.name, idempotency=call.idempotency)
        retry = tool.retry
        if retry is None:
            running = self._attempt(key, tool, bound, context)
        else:
            running = self._retried(key, tool, bound, context, retry)
        if budget is None or spill is None:
            return _with_taint(context, self._settled(call, tool, begun, running))
        return self._in_time(SpillableCall(call, tool, context, asyncio.ensure_future(running), begun), budget, spill)

    def unrecorded_ask(self, call: PreparedCall) -> EffectRequest | None:
        """The ask that the outcome of a call must carry; None if its intent is recorded."""
        return None if call.intended or call.key in self._deferrals.intended else call.ask

    async def finish(self, work: SpillableCall) -> Outcome:
        """The outcome of a call that runs in its own task. Cancelling this cancels the call."""
        return await _with_taint(work.context, self._settled(work.call, work.tool, work.begun, work.task))

    async def _in_time(self, work: SpillableCall, budget: float, spill: Spill) -> Outcome:
        task, context = work.task, work.context
        try:
            await asyncio.wait({task}, timeout=budget)
            if task.done() or context.used:
                return await self.finish(work)
            context.hold()
            try:
                spilled = await spill(work, budget)
            except errors.PayloadTooLarge:
                spilled = None  # its arguments don't fit into a task
            if spilled is not None:
                return spilled
            context.release()
            return await self.finish(work)
        except BaseException:
            if not work.handed_over:
                await cancel_and_wait(task)
            raise

    # ---- calls that were refused, or began earlier ----

    async def _outcome_without_run(
        self, call: PreparedCall, begin: Began, budget: float | None, spill: Spill | None, *, has_returned: bool
    ) -> Outcome:
        if has_returned:
            begin(call)
            return await self._outcome_of_reply(call, await self._deferrals.reply(call.key))
        if isinstance(call.decision, SettleAsUnknown):
            found = await self._reconciled_outcome(call)
            if found is not None:
                return found
            call = msgspec.structs.replace(call, decision=PerformAgain())
        if call.refused is not None:
            return self._failed(call, ErrorInfo(call.refused.kind, self._clean(call.refused.message)))
        return await self.execute(call, begin, budget, spill)

    async def _reconciled_outcome(self, call: PreparedCall) -> Outcome | None:
        """The outcome of an interrupted call, possibly deferred by then; None if it did not take effect."""
        if call.key not in self._deferrals.deferred:
            return await self._reconciler.reconcile(call)
        if await self._deferrals.has_answer(call.key):
            return await self._outcome_of_reply(call, await self._deferrals.reply(call.key))

        async def answer_from_outside() -> Outcome | None:
            reply = await self._deferrals.reply(call.key)
            return await self._outcome_of_reply(call, reply) if reply.answered else None

        return await self._reconciler.reconcile(call, answer_from_outside)

    async def _outcome_of_reply(self, call: PreparedCall, reply: DeferralReply) -> Outcome:
        outcome = await self._untainted_outcome_of_reply(call, reply)
        if call.tool is None or call.tool.provided is None or not isinstance(outcome, Done | Failed):
            return outcome
        from holdfast.tools.providers import taint_of_listed  # only where agents have providers

        taint = taint_of_listed(call.tool.provided[1], self._caller.session, call.key)
        return msgspec.structs.replace(outcome, taint=taint)

    async def _untainted_outcome_of_reply(self, call: PreparedCall, reply: DeferralReply) -> Outcome:
        tool, ask = call.tool, self.unrecorded_ask(call)
        if reply.error is not None:
            message = results.shorten(self._clean(reply.error.message), results.MAX_TEXT)
            return self._failed(call, ErrorInfo(reply.error.kind, message))
        if tool is None:  # it is gone, and its last call has its answer all the same
            return await self._performer.succeeded(call.key, ask, reply.body)
        if reply.answered:
            from holdfast.tools.schema import check_result  # pydantic only when it is needed

            complaint = check_result(tool.function, reply.body)
            if complaint is not None:
                said = f"what was answered is no result of {tool.name}: {self._clean(complaint)}"
                return self._failed(call, ErrorInfo("AnswerInvalid", said))
        kept: list[Blob] = []
        body = await self._body(tool, decode_value(reply.body), kept, call.output_limit or tool.output_limit)
        return await self._performer.succeeded(call.key, ask, body, kept=tuple(kept))

    # ---- running ----

    async def _attempt(self, key: str, tool: AnyTool, bound: Bound, context: CallContext | None) -> object:
        with self._slots.place_now(tool) or await self._slots.place_for(tool), self._performer.spanning(key):
            seconds = tool.timeout  # without the time that it waited for its slot: it had not begun
            if seconds is not None:
                return await _call_with_timeout(tool, bound, context, seconds)
            if context is None:
                return await _drive(tool.call(bound), tool.name)
            return await _call_in_scope(tool, bound, context)

    async def _retried(
        self, span: str, tool: AnyTool, bound: Bound, context: CallContext, retry: ToolRetryPolicy
    ) -> object:
        attempt = 1
        while True:
            begun = self._loop.time()
            try:
                return await self._attempt(span, tool, bound, context)
            except Exception as error:
                pause = retry.pause_after(attempt, error)
                if pause is None:
                    raise
                await context.at_rest()  # on its way to the background: its attempts are recorded there
                key = context.key
                prefix = f"{key}/{ATTEMPT_PREFIX}"
                known = self._failed_attempts.get(key) or sum(name.startswith(prefix) for name in self._past.effects)
                self._failed_attempts[key] = number = known + 1
                content = digest_of_bytes("attempt", f"{key} {number}".encode())
                ask = EffectRequest("sample", "attempt", content, cause=Cause("call", key))
                info, ms = results.error_from_exception(error, self._clean), self._ms_since(begun)
                now = self._performer.now()
                trace = safe_trace(error, self._performer.redactor)
                context.caller.note(Failed(at=now, key=f"{prefix}{number}", ask=ask, error=info, ms=ms, trace=trace))
                said = results.describe_error(error, self._clean)
                context.progress(f"attempt {attempt} failed: {said}")
                fields = {"session": self._caller.session, "turn": self._caller.run, "call": key, "tool": tool.name}
                log_event(_log, logging.INFO, "tool attempt failed", **fields, attempt=attempt, error=said)
            await asyncio.sleep(pause)
            attempt += 1

    async def _settled(self, call: PreparedCall, tool: AnyTool, begun: float, running: Awaitable[object]) -> Outcome:
        refs: list[Blob] = []
        kept: list[Blob] = []
        try:
            value = await running
            crash_point("tool.after_run")
            limit = call.output_limit or tool.output_limit
            # Most results need no redaction, no conversion and no cut.
            plain = not self._performer.redactor.active and not (type(value) is str and len(value) > limit)
            body = json_of(value) if plain else None
            if body is None:
                if isinstance(value, Deferred):
                    deferred = cast("Deferred[Any]", value)
                    if deferred.call != call.key:
                        message = (
                            "it returned the deferral of another call; make one with `await ctx.defer()` in each call"
                        )
                        raise errors.InvalidArgument("result", deferred, message)  # an error of the tool
                    self._deferrals.tool_returned(call.key, deferred)
                    return await self._outcome_of_reply(call, await self._deferrals.reply(call.key))
                if _holds_file(value):
                    value = await self._with_files_kept(value, refs)
                body = await self._body(tool, value, kept, limit)
            elif len(body) > limit:
                body = await self._shown(tool, body, kept, limit)
        except ToolFailure as failure:
            error = ErrorInfo(failure.error.kind, self._clean(failure.error.message))
            detail = msgspec.Raw(failure.detail) if failure.detail else ABSENT
            return msgspec.structs.replace(self._failed(call, error, begun), detail=detail)
        except BaseExceptionGroup as group:
            self._performer.check_halted()
            for error in results.leaf_errors(group):  # a task group may have wrapped a suspension or an interrupt
                if isinstance(error, errors.Suspended | KeyboardInterrupt):
                    raise error from None
            return self._raised(call, group, begun)
        except BaseException as error:
            if is_control_flow(error):
                raise
            self._performer.check_halted()
            if isinstance(error, asyncio.CancelledError):
                info = ErrorInfo("CancelledError", self._clean(f"what it waited for was cancelled {error}".rstrip()))
                return self._failed(call, info, begun)
            if isinstance(error, ToolTimedOut):
                seconds = tool.timeout or 0
                if tool.read_only or tool.idempotent:
                    return self._failed(call, results.error_for_timeout(tool.name, seconds, left=error.left), begun)
                # It may have taken effect, and must not be repeated.
                why = f"{tool.name} did not finish within {seconds:g} s and was stopped."
                return Unknown(at=self._performer.now(), key=call.key, ask=self.unrecorded_ask(call), why=why)
            return self._raised(call, error, begun)
        key, ask = call.key, self.unrecorded_ask(call)
        blobs = tuple(refs), tuple(kept)
        done = self._performer.done_with(key, ask, body, begun, *blobs)
        return done or await self._performer.succeeded(key, ask, body, begun, *blobs)

    def _ms_since(self, begun: float) -> int:
        return round((self._loop.time() - begun) * 1000)

    # ---- results ----

    async def _body(self, tool: AnyTool, value: object, kept: list[Blob], limit: int) -> bytes:
        # Before it is cut: half a secret is a secret, too.
        value = self._performer.redactor.value(results.as_text(value))
        if type(value) is str and len(value) > limit:
            return await self._cut(tool, value, kept, limit)
        return await self._shown(tool, self._performer.redactor.bytes(tool.as_json(value)), kept, limit)

    async def _shown(self, tool: AnyTool, body: bytes, kept: list[Blob], limit: int) -> bytes:
        text = results.long_json(body, limit)
        return body if text is None else await self._cut(tool, text, kept, limit)

    async def _cut(self, tool: AnyTool, text: str, kept: list[Blob], limit: int) -> bytes:
        """Keep a result that is too long in a blob, and show the model its beginning and end."""
        try:
            # A character without an encoding is kept as its escape sequence.
            blob = await self._performer.keep(await asyncio.to_thread(text.encode, "utf-8", "backslashreplace"))
        except errors.PayloadTooLarge as error:
            return tool.as_json(results.cut_text(text, limit, results.OversizedResult(error.size, error.limit)))
        kept.append(blob)
        whole = results.KeptResult(blob.digest, results.RESULT_READER) if self._reads_on else None
        return tool.as_json(results.cut_text(text, limit, whole))

    async def _with_files_kept(self, value: object, refs: list[Blob], depth: int = 0) -> object:
        if isinstance(value, File):
            try:
                blob = await self._performer.keep(value.data)
            except errors.PayloadTooLarge as error:
                raise errors.ResultTooLarge(
                    f"a file ({value.name or value.media_type})", error.size, error.limit
                ) from None
            refs.append(blob)
            return Attachment(blob.digest, value.media_type, blob.size, value.name)
        if isinstance(value, Attachment):
            if self._caller.host is None:
                raise errors.AttachmentUnknown(value.digest, self._caller.session)
            found: Attachment = await self._caller.host.attached(value)  # a digest may come from the model
            refs.append(Blob(found.digest, found.size))
            return found
        if depth < FILES_DEPTH and isinstance(value, list | tuple):
            return [await self._with_files_kept(item, refs, depth + 1) for item in cast("list[object]", value)]
        if depth < FILES_DEPTH and type(value) is dict:
            items = cast("dict[object, object]", value).items()
            return {key: await self._with_files_kept(item, refs, depth + 1) for key, item in items}
        return value

    def _raised(self, call: PreparedCall, error: BaseException, begun: float) -> Failed:
        """The outcome of a call whose tool raised: the model reads the message, people the traceback."""
        info, redactor = results.error_from_exception(error, self._clean), self._performer.redactor
        meant = isinstance(error, ToolRetry) and error.__cause__ is None  # a sentence for the model, and no defect
        trace = "" if meant else safe_trace(error, redactor)
        fields = {"session": self._caller.session, "turn": self._caller.run, "call": call.key}
        # The error of a step was logged with the step.
        raised = error if trace and not isinstance(error, errors.EffectFailed) else None
        fields |= {"tool": call.request.name, "error": f"{info.kind}: {info.message}"}
        log_event(_log, logging.INFO if meant else logging.WARNING, "tool failed", raised=raised, **fields)
        if self.raised is not None and isinstance(error, Exception):
            self.raised[call.key] = safe_cause(error, redactor)
        return msgspec.structs.replace(self._failed(call, info, begun), trace=trace)

    def _failed(self, call: PreparedCall, error: ErrorInfo, begun: float = 0.0) -> Failed:
        ms = self._ms_since(begun) if begun else 0
        return Failed(at=self._performer.now(), key=call.key, ask=self.unrecorded_ask(call), error=error, ms=ms)


async def _with_taint(context: CallContext, settled: Awaitable[Outcome]) -> Outcome:
    outcome = await settled
    if context.taint is None or not isinstance(outcome, Done | Failed):
        return outcome
    return msgspec.structs.replace(outcome, taint=context.taint)


class ToolFailure(Exception):
    """The call failed with an error written for the model, which reads it unchanged."""

    def __init__(self, error: ErrorInfo, detail: bytes = b"") -> None:
        super().__init__(error.message)
        self.error = error
        self.detail = detail


class ToolTimedOut(Exception):
    """The tool took longer than its timeout."""

    def __init__(self, tool: str, *, left: bool) -> None:
        super().__init__(tool)
        self.left = left
        """The tool could not be stopped: its thread runs on, or its function swallows cancellation."""


@types.coroutine
def _drive(code: Coroutine[Any, Any, object], name: str) -> Generator[Any, Any, object]:
    """Run a tool to its result. It can't end its task, neither by cancelling it nor by `GeneratorExit`.

    A tool that continues after it was suspended ends with `SuspensionSwallowed`. The task is never kept in a variable:
    its traceback would hold this frame until the garbage collector runs.
    """
    own, before, closes = 0, _cancel_requests(), False
    try:
        pending = code.send(None)
        while True:
            own += _cancel_requests() - before  # cancellations by the tool itself
            release_if_held(pending, code, name)
            try:
                given = yield pending
            except BaseException as error:  # any exception is passed to the tool
                before, closes = _cancel_requests(), isinstance(error, GeneratorExit)
                pending = code.throw(error)
            else:
                before = _cancel_requests()
                pending = code.send(given)
    except StopIteration as ended:
        own += _cancel_requests() - before
        if own:
            yield from _take_back(own)
        return ended.value
    except GeneratorExit:
        if closes:
            raise
        raise ToolFailure(ErrorInfo("GeneratorExit", "the tool raised GeneratorExit")) from None
    except asyncio.CancelledError:
        own += _cancel_requests() - before
        if not own:
            raise
        yield from _take_back(own)
        raise ToolFailure(ErrorInfo("CancelledError", "the tool cancelled the task that ran it")) from None


async def _uncancel(own: int) -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # it may still be on its way
    task = asyncio.current_task()
    if task is not None:
        for _ in range(own):
            task.uncancel()
    if _cancel_requests():
        raise asyncio.CancelledError


def _take_back(own: int) -> Generator[Any, Any, None]:
    """Undo the cancellations that a tool requested of its own task; others stay."""
    return _uncancel(own).__await__()


def _cancel_requests() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def _call_in_scope(tool: AnyTool, bound: Bound, context: CallContext | None) -> object:
    token = current_scope.set(None if context is None else context.place)
    try:
        return await _drive(tool.call(bound, context), tool.name)
    finally:
        current_scope.reset(token)


async def _call_with_timeout(tool: AnyTool, bound: Bound, context: CallContext | None, seconds: float) -> object:
    """Run a call with a timeout. A call that does not end when cancelled is abandoned and logged."""
    with functions.CallProcesses(tool.name) as spawned:
        task = asyncio.ensure_future(_call_in_scope(tool, bound, context))
    try:
        await asyncio.wait({task}, timeout=seconds)
    except BaseException:
        if not await cancel_and_wait(task):
            spawned.stop()
        raise
    if task.done():
        return task.result()
    ended = await cancel_and_wait(task)
    if not ended:
        spawned.stop()
        _log.warning("the tool %r does not end although its time is up; it is left alone", tool.name)
    raise ToolTimedOut(tool.name, left=spawned.abandoned or not ended)


_NO_FILES: Final = frozenset((str, int, float, bool, bytes, type(None)))


def _holds_file(value: Any, depth: int = 0) -> bool:  # any result of a tool
    if type(value) in _NO_FILES:
        return False
    if isinstance(value, File | Attachment):
        return True
    if depth == FILES_DEPTH:
        return False
    items: Iterable[object]
    if isinstance(value, list | tuple):
        items = cast("list[object]", value)
    elif type(value) is dict:
        items = cast("dict[object, object]", value).values()
    else:
        return False
    for item in items:  # noqa: SIM110  a generator costs more than what it goes through
        if type(item) not in _NO_FILES and _holds_file(item, depth + 1):
            return True
    return False
