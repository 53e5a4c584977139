"""One program of a turn: run, or replayed from what is recorded below its call, and driven on to its end.

Whatever it asks for is recorded before it is told, and it is told in the order in which it was recorded. That order is
in the journal, so a program that is run again comes to the same place and makes the same calls.

Calls that only read run side by side, and the program goes on as soon as one of them has ended. Any other call runs
alone, in its place, as it would in a batch. Calls that wait for a person hold up nobody; when nothing else is left to
do, the turn is parked and nothing of the program stays in memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import canonical_json
from holdfast.effects.envelope import MAX_ASK_BODY
from holdfast.effects.replay import Answer, Repeat
from holdfast.effects.scopes import current
from holdfast.errors import HoldfastError, InvalidArgument, InvariantBroken, StoreError, Suspended
from holdfast.errors.programs import ProgramDiverged, ProgramOver, SandboxFull, WorkerFailed
from holdfast.messages import ToolCall
from holdfast.policy.approvals import MARK
from holdfast.records import ABSENT, Ask, Cancelled, Done, ErrorInfo, Failed, Unknown
from holdfast.runtime.amending import EDITED
from holdfast.runtime.decided import recall
from holdfast.runtime.invoking import Told
from holdfast.runtime.program_pauses import SHORT_MS, Pauses
from holdfast.runtime.program_words import broken, given_to, left_no_room, told_of, told_of_finish
from holdfast.runtime.stopped import left_in_program, stopped_program
from holdfast.runtime.surroundings import Stopping
from holdfast.sandbox import Calls, Ended, Raised, Result, Returned, call_id, call_number
from holdfast.spawning import spawn
from holdfast.tools.crowding import step_aside
from holdfast.turns import keys
from holdfast.turns.answers import result_of
from holdfast.turns.programs import (
    FAILED,
    FINISH,
    KEPT,
    answer_text,
    aside_key,
    decode_left,
    finish_of,
    is_finish,
    left,
    number_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from holdfast.messages import ToolResult
    from holdfast.policy.limits import OutOf
    from holdfast.records import Outcome, Record
    from holdfast.runtime.invoking import Call
    from holdfast.runtime.programs import Means, Programs
    from holdfast.sandbox import HostCall, Kept, Program, Step
    from holdfast.sandbox.steps import Outcome as Given

STARTS: Final = 3
"""How often a worker that does not come up is started."""
CROWDED: Final = 0.05
"""How long to wait for a place in a sandbox that is full, in seconds."""


@dataclass(slots=True)
class _Asked:
    """Something that the program has asked for, on its way to an answer."""

    host: HostCall
    call: Call | None = None
    """The call of a tool; None for what is none."""
    given: Given | None = None
    """The answer, where it is not that of a tool."""


class ProgramRun:
    """One program, from its beginning or from where its records end, to its end or to where it waits."""

    def __init__(self, means: Means, programs: Programs, call: Call, source: str) -> None:
        self._means = means
        self._programs = programs
        self._call = call
        self._source = source
        self._performer = means.performer
        self._key = call.key
        self._pauses = Pauses(call.key, means.around, means.performer, means.recorder)
        self._queue: deque[_Asked] = deque()
        """Calls that have not begun, in their order."""
        self._running: dict[asyncio.Task[None], _Asked] = {}
        self._under_way: Call | None = None
        """The only call that runs, where that is one."""
        self._waiting: list[Call] = []
        """Calls that wait for somebody."""
        self._recorded: deque[_Asked] = deque()
        """What has its place in the journal and was not told to the program yet, in the order of the journal."""
        self._made: list[str] = []
        self._unknown: list[str] = []
        self._notes: list[str] = []
        self._out: OutOf | None = None
        self._end: tuple[HostCall, str] | None = None
        """The call with which it ends the turn, and the words."""

    async def run(self) -> object:
        """What the model reads of it. Raises `Suspended` when it waits, `Told` when it did not come to its end."""
        step_aside()  # its calls need places of their own
        token = current.set(None)  # and do nothing in the place of the program
        try:
            program, step = await self._begun()
            try:
                return await self._driven(program, step)
            finally:
                await self._unwind(program)
        except (StoreError, InvariantBroken) as error:  # not the program's failure, but ours
            raise self._performer.halt(error) from error
        finally:
            current.reset(token)

    # ---- the beginning ----

    async def _begun(self) -> tuple[Program, Step]:
        """The program at the first step that its records have no answer for."""
        agent, failures = self._means.agent, 0
        sandbox = self._means.around.sandbox(agent.sandbox)
        results: list[Result] | None = None
        while True:
            try:
                program = await sandbox.start(
                    self._source,
                    tools=agent.stubs,
                    globals=self._programs.variables,
                    limits=agent.program_limits,
                    seed=f"{self._means.around.session}/{self._key}",
                )
            except InvalidArgument as error:  # variables of a time when more of them were allowed
                raise Told(ErrorInfo(FAILED, f"The program was not run: {error}")) from error
            except ProgramOver as over:
                raise Stopping from over
            if results is None:
                results = await self._recalled(program.digest)
            try:
                crash_point("program.before_run")
                return program, await self._stepped(program.run(results))
            except SandboxFull:
                await program.close()
                await asyncio.sleep(CROWDED)
            except WorkerFailed as error:
                await program.close()
                failures += 1
                if failures == STARTS:
                    raise Told(ErrorInfo(FAILED, f"The program was not run: {error}")) from error
            except BaseException:
                await program.close()
                raise

    async def _recalled(self, program: str) -> list[Result]:
        """What is recorded of it, in the order in which it was recorded."""
        results: list[Result] = []
        for key, found in self._performer.settled_below(self._key):
            number, outcome = number_of(key), found.outcome
            if not number or outcome is None or (is_finish(key) and isinstance(outcome, Done)):
                continue
            self._performer.took((key,))
            parsed = keys.parse(key)
            if parsed is not None and parsed.nested:
                call = ToolCall("", keys.tool_of(key), {})
                result = result_of(call, outcome)
                given = given_to(result, outcome)
                self._heard(key, result, outcome)
                decided = await recall(self._performer, key)
                if decided.edited:
                    self._note_edited(decided.call(call))
            else:
                given = _aside(outcome)
            results.append(Result(call_id(program, number - 1), given, found.ask().content))
        return results

    async def _stepped(self, step: Awaitable[Step]) -> Step:
        try:
            return await step
        except ProgramDiverged as error:
            number = call_number(error.call) + 1
            known = {number_of(name): name for name, _ in self._performer.settled_below(self._key)}
            recorded = known.get(number, f"{self._key}: nothing as number {number}")
            asked = {"call": f"number {number}: {error.asked}"}
            raise self._performer.mismatch(self._key, {"call": f"{recorded}: {error.recorded}"}, asked) from error
        except ProgramOver as error:  # the runtime is being closed
            raise Stopping from error

    # ---- on and on ----

    async def _driven(self, program: Program, step: Step) -> object:
        while isinstance(step, Calls):
            await self._take(step.calls)
            results = await self._next()
            if not results:
                return await self._ended_here(program)
            crash_point("program.before_answer")
            step = await self._stepped(program.answer(results))
        await self._done_with_all()
        return await self._told(step)

    async def _take(self, hosts: tuple[HostCall, ...]) -> None:
        """Calls that the program makes: hooks, the policy and people decide about them at once, in their order."""
        numbered = [(host, call_number(host.id) + 1) for host in hosts]
        tools = [(host, self._nested_key(host, number)) for host, number in numbered if _is_tool(host)]
        fresh = [key for _, key in tools if self._performer.recorded(key) is None]
        if fresh and self._out is None:
            pending = len(self._queue) + len(self._running) + len(self._waiting)
            self._out = await self._programs.room(pending + len(fresh))
        carrying = self._means.carrying
        await carrying.recall(key for _, key in tools)
        left_out = {*fresh} if self._out is not None else set[str]()
        calls = {host.id: self._prepared(host, key) for host, key in tools if key not in left_out}
        await carrying.authorise(list(calls.values()), self._programs.taint)
        for host, number in numbered:
            call = calls.get(host.id)
            if call is not None and call.waits:
                self._waiting.append(call)
            elif call is not None or (host.kind == "tool" and host.name == FINISH):
                self._queue.append(_Asked(host, call))
            elif host.kind == "clock":
                self._recorded.append(_Asked(host, given=Returned(self._pauses.now(host, number))))
            elif host.kind == "sleep":
                await self._pauses.begin(host, number)

    def _nested_key(self, host: HostCall, number: int) -> str:
        return keys.nested_key(self._key, number, host.name)

    def _prepared(self, host: HostCall, key: str) -> Call:
        agent = self._means.agent
        name = f"{self._call.name}.{number_of(key)}"
        body = canonical_json(self._performer.redactor.value(host.arguments))
        ask = Ask("tool_call", host.name, host.digest, msgspec.Raw(body) if len(body) <= MAX_ASK_BODY else ABSENT)
        sent = ToolCall(name, host.name, host.arguments)
        call = self._means.carrying.prepare(sent, name, key, ask, agent.tools.get(host.name), agent.tools)
        call.nested = True
        call.room = agent.program_limits.value
        return call

    async def _next(self) -> list[Result]:
        """The next answers for the program, in the order in which they were recorded; none when the turn ends here."""
        while self._out is None:
            for host in self._pauses.over():
                self._recorded.append(_Asked(host, given=Returned(None)))
            if results := self._answers():
                return results
            if await self._begin():
                if self._end is not None:
                    break
                continue
            if self._running:
                await self._until_one()
                continue
            seconds = self._pauses.seconds
            if seconds is not None and seconds * 1000 <= SHORT_MS:
                await asyncio.sleep(seconds)
                continue
            waits = (*(wait for call in self._waiting for wait in call.waits), *self._pauses.waits)
            crash_point("program.before_wait")
            raise Suspended(*waits)
        return []

    def _answers(self) -> list[Result]:
        results: list[Result] = []
        while self._recorded:
            asked = self._recorded[0]
            given = asked.given
            if asked.call is not None:
                outcome, result = asked.call.outcome, asked.call.result
                if outcome is None or result is None:
                    break  # its value is being read; what was recorded after it comes after it
                given = given_to(result, outcome)
                self._heard(asked.call.key, result, outcome)
                if asked.call.edited:
                    self._note_edited(asked.call.call)
            self._recorded.popleft()
            if given is not None:
                results.append(Result(asked.host.id, given, asked.host.digest))
        return results

    async def _begin(self) -> bool:
        """Begin what may run now; whether anything was."""
        todo: list[_Asked] = []
        while self._queue:
            head = self._queue[0]
            alone = head.call is None or head.call.alone
            if alone and (self._running or todo):
                break
            todo.append(self._queue.popleft())
            if alone:
                break
        if not todo:
            return False
        calls = [asked.call for asked in todo if asked.call is not None]
        if not calls:
            await self._finish(todo[0].host)
            return True
        carrying = self._means.carrying
        await carrying.begin(calls)
        for asked, call in zip(todo, calls, strict=True):
            call.recorded = partial(self._recorded.append, asked)
        if len(calls) == 1 and not self._running and self._pauses.seconds is None:
            # Nothing else can happen before it has ended: it needs no task of its own.
            self._under_way = calls[0]
            await carrying.perform(calls[0])
            self._ended(calls[0])
            self._under_way = None
            return True
        for asked, call in zip(todo, calls, strict=True):
            self._running[spawn(carrying.perform(call))] = asked
        return True

    def _ended(self, call: Call) -> None:
        if call.waits:
            self._waiting.append(call)

    async def _until_one(self) -> None:
        """Wait until a call has ended, or a pause is over."""
        done, _ = await asyncio.wait(self._running, timeout=self._pauses.seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            asked = self._running.pop(task)
            if task.cancelled():
                raise asyncio.CancelledError
            task.result()
            if asked.call is not None:
                self._ended(asked.call)

    # ---- what came of it ----

    def _heard(self, key: str, result: ToolResult, outcome: Outcome) -> None:
        self._programs.heard(result)
        (self._unknown if isinstance(outcome, Unknown) else self._made).append(key)

    def _note_edited(self, call: ToolCall) -> None:
        self._notes.append(f"{call.name}: {EDITED} {msgspec.json.encode(call.arguments).decode()[:2_000]}")

    async def _finish(self, host: HostCall) -> None:
        """The program ends the turn with a value; one that does not have the right shape is an error of the program."""
        key = aside_key(self._key, call_number(host.id) + 1, "finish")
        ask = Ask("sample", FINISH, host.digest)
        decision = self._performer.decide(key, ask, Repeat.FREE)
        if isinstance(decision, Answer) and isinstance(decision.outcome, Done):
            self._end = host, finish_of(decision.outcome)
            return
        output = self._means.agent.output
        text = answer_text(host.arguments["value"], typed=output is not None)
        complaint = "the answer is empty" if not text.strip() else None if output is None else output.complaint(text)
        now = self._performer.now()
        if complaint is not None:
            failed = Failed(at=now, key=key, ask=ask, error=ErrorInfo("ValueError", complaint))
            self._means.recorder.submit([failed], patient=True)
            self._recorded.append(_Asked(host, given=_aside(failed)))
            return
        outcome = await self._performer.succeeded(
            key, ask, msgspec.json.encode(text), asyncio.get_running_loop().time()
        )
        crash_point("program.before_finish")
        self._means.recorder.submit([outcome], patient=True)
        self._end = host, finish_of(await self._whole(outcome))

    async def _whole(self, outcome: Outcome) -> Done:
        if not isinstance(outcome, Done):
            said = outcome.error.message if isinstance(outcome, Failed) else ""
            raise Told(ErrorInfo(FAILED, f"What the program left can't be kept. {said}".rstrip()))
        if outcome.blob is None:
            return outcome
        body = await self._performer.large(outcome.blob)
        return msgspec.structs.replace(outcome, value=msgspec.Raw(body), blob=None)

    # ---- the end ----

    async def _ended_here(self, program: Program) -> object:
        """The turn ends in the middle of the program: it said so, or a limit leaves no room."""
        await self._done_with_all()
        if self._out is not None:
            self._programs.out = self._out
            error, detail = left_no_room(self._out)
            raise Told(error, detail)
        if self._end is None:
            message = "a program has no answers to go on with, and no end"
            raise InvariantBroken(message)
        host, self._programs.answer = self._end
        printed = ""
        with suppress(HoldfastError):
            last = await program.answer([Result(host.id, Raised("", "SystemExit"), host.digest)])
            if not isinstance(last, Calls):  # else it wants more, and gets nothing any more
                printed = last.printed
                await self._keep(getattr(last, "kept", None))
        return told_of_finish(printed, self._notes)

    async def _done_with_all(self) -> None:
        """Calls that are under way come to their end; those that were not begun are dropped, and so are questions."""
        while self._running:
            await asyncio.wait(self._running)
            await self._until_one()
        self._answers()
        carrying, now = self._means.carrying, self._performer.now()
        dropped: list[Record] = [*self.unanswered(now), *carrying.given_up(self._waiting, now)]
        known = {*carrying.settled, *(getattr(record, "key", "") for record in dropped)}
        dropped += left_in_program(self._performer.past, self._key, known, now)
        self._unknown += [record.key for record in dropped if isinstance(record, Unknown)]
        self._performer.took(getattr(record, "key", "") for record in dropped)
        if dropped:
            self._means.recorder.submit(dropped, patient=True)
        waits = (*(wait for call in self._waiting for wait in call.waits), *self._pauses.waits)
        self._waiting.clear()
        self._pauses.clear()
        for wait in waits:
            await self._means.around.drop_wait(wait)

    async def _told(self, step: Step) -> object:
        kept = getattr(step, "kept", None)
        await self._keep(kept)
        notes = self._notes
        if self._unknown and not isinstance(step, Ended):
            named = ", ".join(sorted({keys.tool_of(key) for key in self._unknown}))
            notes = [*notes, f"Of these calls it is not known whether they took effect: {named}."]
        if isinstance(step, Ended):
            return told_of(step, notes)
        if isinstance(step, Calls):
            message = f"{step!r} is no end"
            raise InvariantBroken(message)
        raise Told(broken(step, self._programs.variables, notes))

    async def _keep(self, kept: Kept | None) -> None:
        """The variables live on: what has changed is recorded together with the end of the program."""
        if kept is None:
            return
        changed = left(self._programs.variables, kept.values)
        if not changed.set and not changed.gone:
            return
        ask = Ask("sample", "variables", self._call.ask.content)
        key = f"{self._key}{KEPT}"
        outcome = await self._performer.succeeded(key, ask, msgspec.json.encode(changed), 0.0)
        done = await self._whole(outcome)
        self._call.beside.append(msgspec.structs.replace(outcome, ms=0) if isinstance(outcome, Done) else outcome)
        # As they are recorded: what is hidden there is hidden from the next program as well.
        self._programs.variables = decode_left(bytes(done.value)).after(self._programs.variables)

    async def _unwind(self, program: Program) -> None:
        """Nothing of it is left when it is over, however it ended."""
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        try:
            await program.close()
        finally:
            if tasks:
                await asyncio.gather(*tasks, return_exceptions=True)

    # ---- when the turn is stopped ----

    def stopped(self, now: int) -> Record:
        """Its outcome when it is stopped now."""
        under_way = [asked.call for asked in self._running.values() if asked.call is not None]
        if self._under_way is not None:
            under_way.append(self._under_way)
        unknown = [call.key for call in under_way if call.begun and call.alone]
        asked = self._call.asked
        return stopped_program(self._key, asked, now, self._made, [*self._unknown, *unknown])

    def unanswered(self, now: int) -> Iterator[Record]:
        """Records for questions and pauses that nobody waits for any more."""
        for call in self._waiting:
            yield from (Cancelled(at=now, key=wait) for wait in call.waits if MARK in wait)
        yield from self._pauses.dropped(now)


def _is_tool(host: HostCall) -> bool:
    return host.kind == "tool" and host.name != FINISH


def _aside(outcome: Outcome) -> Given:
    """What a program gets of something that is no call of a tool."""
    if isinstance(outcome, Failed):
        return Raised(outcome.error.message, "ValueError")
    if isinstance(outcome, Done):
        return Returned(msgspec.json.decode(bytes(outcome.value)))
    return Returned(None)
