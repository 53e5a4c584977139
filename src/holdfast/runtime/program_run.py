"""One program of a turn: run, or replayed from what is recorded below its call, and driven on to its end.

Whatever it asks for is recorded before it is told, and it is told in the order in which it was recorded. That order is
in the journal, so a program that is run again comes to the same place and makes the same calls.

Calls that only read run side by side, and the program goes on as soon as one of them has ended. Any other call runs
alone, in its place, as it would in a batch. Calls that wait for a person hold up nobody, and have their turn when the
answer is there; when nothing else is left to do, the turn is parked and nothing of the program stays in memory.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import canonical_json
from holdfast.effects.envelope import MAX_ASK_BODY
from holdfast.effects.replay import Repeat
from holdfast.effects.scopes import current
from holdfast.errors import HoldfastError, InvalidArgument, InvariantBroken, StoreError, Suspended
from holdfast.errors.programs import ProgramDiverged, ProgramOver, ProgramsUnavailable, SandboxFull, WorkerFailed
from holdfast.messages import ToolCall
from holdfast.policy.approvals import MARK
from holdfast.policy.limits import Used
from holdfast.records import ABSENT, Ask, Cancelled, Cause, Done, ErrorInfo, Failed, Unknown
from holdfast.runtime.amending import EDITED
from holdfast.runtime.decided import recall
from holdfast.runtime.invoking import Told
from holdfast.runtime.program_calls import Asked, CallQueue
from holdfast.runtime.program_pauses import SHORT_MS, Pauses
from holdfast.runtime.program_words import broken, given_to, left_no_room, told_of, told_of_finish
from holdfast.runtime.spending import spent_by
from holdfast.runtime.stopped import is_program, left_in_program, stopped_program
from holdfast.runtime.surroundings import Stopping
from holdfast.sandbox import Calls, Ended, Raised, Result, Returned, call_id, call_number
from holdfast.tools.crowding import step_aside
from holdfast.turns import keys
from holdfast.turns.answers import result_of
from holdfast.turns.background import started
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
    from holdfast.runtime.call import Call
    from holdfast.runtime.programs import Means, Programs
    from holdfast.sandbox import HostCall, Kept, Program, Step
    from holdfast.sandbox.steps import Outcome as Given

STARTS: Final = 3
"""How often a worker that does not come up is started."""
NOTES: Final = 10
"""How many calls that a person has changed are told at the end."""
CROWDED: Final = 0.05
"""How long to wait for a place in a sandbox that is full, in seconds."""


class ProgramRun:
    """One program, from its beginning or from where its records end, to its end or to where it waits."""

    def __init__(self, means: Means, programs: Programs, call: Call, source: str) -> None:
        self._means = means
        self._programs = programs
        self._call = call
        self._source = source
        self._performer = means.performer
        self._key = call.key
        self._pauses = Pauses(call.key, means.around, means.performer, means.recorder, means.carrying.settled)
        self._calls = CallQueue(means.carrying, means.performer, means.recorder, self._prepared, lambda: programs.taint)
        self._made: list[str] = []
        self._unknown: list[str] = []
        self._notes: list[str] = []
        self._edited = 0
        self._out: OutOf | None = None
        self._end: tuple[HostCall, str] | None = None
        """The call with which it ends the turn, and the words."""

    async def run(self) -> object:
        """What the model reads of it. Raises `Suspended` when it waits, `Told` when it did not come to its end."""
        step_aside()  # its calls need places of their own
        token = current.set(None)  # and do nothing in the place of the program
        self._means.around.listen(self._calls.heard)
        try:
            try:
                program, step = await self._begun()
            except Told as told:
                return await self._not_run_again(told)
            try:
                return await self._driven(program, step)
            finally:
                await self._unwind(program)
        except (StoreError, InvariantBroken) as error:  # not the program's failure, but ours
            raise self._performer.halt(error) from error
        finally:
            self._means.around.listen(None)
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
                if results is None:
                    await self._recalled("")  # what it had done before counts all the same
                raise Told(ErrorInfo(FAILED, f"The program was not run: {error}")) from error
            except ProgramOver as over:
                raise Stopping from over
            if results is None:
                results = await self._recalled(program.digest)
            try:
                crash_point("program.before_run")
                # One that only waits has no results yet; it was checked against the tools of its time.
                begun = not results and is_program(self._performer.past, self._key)
                run = program.run(results, begun=True) if begun else program.run(results)
                return program, await self._stepped(run)
            except SandboxFull:
                await program.close()
                await self._means.around.boundary()
                await asyncio.sleep(CROWDED)
            except (WorkerFailed, ProgramsUnavailable) as error:
                await program.close()
                failures += 1
                if failures == STARTS:
                    said = f"The program was not run: its worker did not start: {error.reason}"
                    raise Told(ErrorInfo(FAILED, said)) from error
            except BaseException:
                await program.close()
                raise

    async def _not_run_again(self, told: Told) -> object:
        """It can't be started. What it did in a process before this one stays done, and the model is told of it."""
        await self._done_with_all()
        if self._ended_before():
            return told_of_finish("", self._notes)
        if not self._made and not self._unknown:
            raise told
        said = stopped_program(self._key, None, 0, self._made, self._unknown).error.message
        why = told.error.message.removeprefix("The program was not run: ")
        raise Told(ErrorInfo(FAILED, f"{said} It could not be taken up again ({why}).")) from told

    def _ended_before(self) -> bool:
        """Whether it is recorded that it ended the turn: then it did, also where it does not come to that again."""
        for name, found in self._performer.settled_below(self._key):
            if is_finish(name) and isinstance(found.outcome, Done):
                self._programs.answer = finish_of(found.outcome)
        return self._programs.answer is not None

    async def _recalled(self, program: str) -> list[Result]:
        """What is recorded of it, in the order in which it was recorded."""
        results: list[Result] = []
        ended = False
        for key, found in self._performer.settled_below(self._key):
            number, outcome = number_of(key), found.outcome
            if not number or outcome is None:
                continue
            if is_finish(key) and isinstance(outcome, Done):
                ended = True  # what was recorded after its end, it was not told
                continue
            self._performer.took((key,))
            parsed = keys.parse(key)
            nested = parsed is not None and parsed.nested
            given = await self._recalled_call(key, outcome) if nested else _aside(outcome)
            if not ended:
                results.append(Result(call_id(program, number - 1), given, found.ask().content))
        return results

    async def _recalled_call(self, key: str, outcome: Outcome) -> Given:
        call = ToolCall("", keys.tool_of(key), {})
        result = result_of(call, outcome)
        self._heard(key, result, outcome)
        self._means.carrying.spilled += started(result)
        decided = await recall(self._performer, key)
        if decided.edited:
            self._note_edited(decided.call(call))
        return given_to(result, outcome)

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
            await self._means.recorder.keep_up()
            crash_point("program.before_answer")
            step = await self._stepped(program.answer(results))
        await self._done_with_all()
        if self._ended_before():
            return told_of_finish("", self._notes)
        return await self._told(step)

    async def _take(self, hosts: tuple[HostCall, ...]) -> None:
        """What the program asks for. Where it has ended the turn already, it gets nothing any more."""
        if len(hosts) == 1 and hosts[0].kind == "tool" and hosts[0].name != FINISH:
            await self._take_one(hosts[0])
            return
        numbered = [(host, call_number(host.id) + 1) for host in hosts]
        self._end = next((end for host, number in numbered if (end := self._recorded_end(host, number))), None)
        if self._end is not None:
            return
        asked = [Asked(host, self._nested_key(host, number), number) for host, number in numbered]
        fresh = sum(bool(each.key) and self._performer.recorded(each.key) is None for each in asked)
        if fresh:
            # One that a process before this one has begun takes a place beside them, as it did there.
            calls = sum(bool(each.key) for each in asked)
            background = sum(bool(each.key) and each.host.name in self._means.agent.rules.tasks for each in asked)
            self._out = await self._programs.room(self._calls.pending + calls, background)
        if self._out is not None:
            return
        for each, (host, number) in zip(asked, numbered, strict=True):
            if host.kind == "clock":
                self._calls.recorded.append(Asked(host, given=Returned(self._pauses.now(host, number))))
            elif host.kind == "sleep":
                await self._pauses.begin(host, number)
            else:
                self._calls.add(each)

    async def _take_one(self, host: HostCall) -> None:
        """One call of a tool, as most steps are."""
        number = call_number(host.id) + 1
        key = keys.nested_key(self._key, number, host.name)
        if self._performer.recorded(key) is None:
            background = int(host.name in self._means.agent.rules.tasks)
            self._out = await self._programs.room(self._calls.pending + 1, background)
            if self._out is not None:
                return
        self._calls.add(Asked(host, key, number))

    def _recorded_end(self, host: HostCall, number: int) -> tuple[HostCall, str] | None:
        """The end of the turn, where this call has brought it about in a process before this one."""
        if host.kind != "tool" or host.name != FINISH:
            return None
        found = self._performer.recorded(aside_key(self._key, number, "finish"))
        outcome = None if found is None else found.outcome
        return (host, finish_of(outcome)) if isinstance(outcome, Done) else None

    def _nested_key(self, host: HostCall, number: int) -> str:
        is_tool = host.kind == "tool" and host.name != FINISH
        return keys.nested_key(self._key, number, host.name) if is_tool else ""

    def _prepared(self, asked: Asked) -> Call:
        agent, host = self._means.agent, asked.host
        name = f"{self._call.name}.{asked.number}"
        body = canonical_json(self._performer.redactor.value(host.arguments))
        ask = Ask(
            "tool_call",
            host.name,
            host.digest,
            msgspec.Raw(body) if len(body) <= MAX_ASK_BODY else ABSENT,
            cause=Cause("call", self._key, asked.number),
        )
        sent = ToolCall(name, host.name, host.arguments)
        call = self._means.carrying.prepare(sent, name, asked.key, ask, agent.tools.get(host.name), agent.tools)
        call.nested = True
        call.room = agent.program_limits.value
        return call

    async def _next(self) -> list[Result]:
        """The next answers for the program, in the order in which they were recorded; none when the turn ends here."""
        calls, pauses = self._calls, self._pauses
        while self._out is None and self._end is None:
            if pauses.open:
                for host in pauses.over():
                    calls.recorded.append(Asked(host, given=Returned(None)))
            if calls.recorded and (results := self._answers()):
                return results
            seconds = pauses.seconds
            began = await calls.begin(watched=seconds is not None)
            if isinstance(began, Asked):
                await self._finish(began.host)
            elif began:
                continue
            elif calls.running:
                await calls.until_one(seconds)
            elif seconds is not None and seconds * 1000 <= SHORT_MS:
                await self._means.around.boundary()
                await asyncio.sleep(seconds)
            else:
                crash_point("program.before_wait")
                raise Suspended(*(wait for call in calls.waiting for wait in call.waits), *pauses.waits)
        return []

    def _answers(self) -> list[Result]:
        results: list[Result] = []
        recorded = self._calls.recorded
        while recorded:
            asked = recorded[0]
            given = asked.given
            if asked.call is not None:
                outcome, result = asked.call.outcome, asked.call.result
                if outcome is None or result is None:
                    break  # its value is being read; what was recorded after it comes after it
                given = given_to(result, outcome)
                self._heard(asked.call.key, result, outcome)
                if asked.call.edited:
                    self._note_edited(asked.call.call)
            recorded.popleft()
            if given is not None:
                results.append(Result(asked.host.id, given, asked.host.digest))
        return results

    # ---- what came of it ----

    def _heard(self, key: str, result: ToolResult, outcome: Outcome) -> None:
        self._programs.heard(key, result)
        (self._unknown if isinstance(outcome, Unknown) else self._made).append(key)

    def _note_edited(self, call: ToolCall) -> None:
        self._edited += 1
        if self._edited <= NOTES:
            self._notes.append(f"{call.name}: {EDITED} {msgspec.json.encode(call.arguments).decode()[:2_000]}")
        elif self._edited == NOTES + 1:
            self._notes.append("More calls were made with arguments that a person had changed.")

    async def _finish(self, host: HostCall) -> None:
        """The program ends the turn with a value; one that does not have the right shape is an error of the program."""
        key = aside_key(self._key, call_number(host.id) + 1, "finish")
        ask = Ask("sample", FINISH, host.digest)
        self._performer.decide(key, ask, Repeat.FREE)
        output = self._means.agent.output
        text = answer_text(host.arguments["value"], typed=output is not None)
        complaint = "the answer is empty" if not text.strip() else None if output is None else output.complaint(text)
        now = self._performer.now()
        if complaint is not None:
            error = ErrorInfo("ValueError", self._performer.redactor.text(complaint))
            failed = Failed(at=now, key=key, ask=ask, error=error)
            self._means.recorder.submit([failed], patient=True)
            self._calls.recorded.append(Asked(host, given=_aside(failed)))
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
        calls, carrying, past = self._calls, self._means.carrying, self._performer.past
        await calls.drain()
        self._answers()
        now = self._performer.now()
        dropped: list[Record] = [*self.unanswered(now), *carrying.given_up(calls.waiting, now)]
        known = {*carrying.settled, *(getattr(record, "key", "") for record in dropped)}
        reads = {name for name, tool in self._means.agent.tools.items() if tool.read_only}
        dropped += left_in_program(past, self._key, known, now, reads=reads)
        self._unknown += [record.key for record in dropped if isinstance(record, Unknown)]
        if dropped:
            spent = spent_by(dropped)
            self._means.recorder.submit(dropped, patient=True, spend=spent)
            # Also when the turn is stopped before this is over: nobody records them a second time.
            carrying.settled.update(record.key for record in dropped if isinstance(record, Cancelled | Unknown))
            self._programs.used += Used(tool_calls=spent.tool_calls)
        # Whatever it has asked for before: it asks for nothing more.
        self._performer.took(name for name in past.effects if name.startswith(f"{self._key}/"))
        waits = (*(wait for call in calls.waiting for wait in call.waits), *self._pauses.timers)
        calls.waiting.clear()
        self._pauses.clear()
        for wait in waits:
            await self._means.around.close_wait(wait)

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
        self._call.beside += (msgspec.structs.replace(outcome, ms=0) if isinstance(outcome, Done) else outcome,)
        # As they are recorded: what is hidden there is hidden from the next program as well.
        self._programs.variables = decode_left(bytes(done.value)).after(self._programs.variables)

    async def _unwind(self, program: Program) -> None:
        """Nothing of it is left when it is over, however it ended."""
        self._calls.stop()  # at once: the end of a worker may take a while, and what they do is not to go on meanwhile
        try:
            await program.close()
        finally:
            await self._calls.close()

    # ---- when the turn is stopped ----

    def stopped(self, now: int) -> Record:
        """Its outcome when it is stopped now."""
        unknown = [call.key for call in self._calls.under_way if call.begun and call.alone]
        asked = self._call.asked
        return stopped_program(self._key, asked, now, self._made, [*self._unknown, *unknown])

    def unanswered(self, now: int) -> Iterator[Record]:
        """Records for questions and pauses that nobody waits for any more."""
        for call in self._calls.waiting:
            yield from (Cancelled(at=now, key=wait) for wait in call.waits if MARK in wait)
        yield from self._pauses.dropped(now)


def _aside(outcome: Outcome) -> Given:
    """What a program gets of something that is no call of a tool."""
    if isinstance(outcome, Failed):
        return Raised(outcome.error.message, "ValueError")
    if isinstance(outcome, Done):
        return Returned(msgspec.json.decode(bytes(outcome.value)))
    return Returned(None)
