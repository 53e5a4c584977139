"""The programs of one turn, in code mode: their host calls, their pauses, and how one of them may end the turn."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast import errors, eventloop, messages
from holdfast.agent import Agent, prepare
from holdfast.crashpoints import crash_point
from holdfast.effects import canonical, replay, scopes
from holdfast.errors.caller import ProgramDiverged, ProgramOver, ProgramsUnavailable
from holdfast.errors.world import SandboxFull, WorkerFailed
from holdfast.eventloop import release_call_slot
from holdfast.policy import approvals, limits, rules
from holdfast.records import ABSENT, Cancelled, Cause, Done, EffectRequest, ErrorInfo, Failed, Intended, Unknown
from holdfast.runtime import budgets, context, reconciliation
from holdfast.runtime.authorization import EDITED_NOTE, read_decisions
from holdfast.runtime.tool_call import AuthorizedCall, ParkedCall, SettledCall, settled
from holdfast.runtime.tool_execution import ToolFailure
from holdfast.sandbox import CallResult, PendingCalls, call_id, call_number, contract
from holdfast.turns import keys, programs
from holdfast.turns.results import is_background, result_of
from holdfast.turns.state import Results

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from holdfast.effects.performer import Performer
    from holdfast.records import Outcome, Record
    from holdfast.runtime.session_driver import SessionDrive
    from holdfast.runtime.tool_call import PreparedCall, ToolCallRunner, ToolCallState
    from holdfast.sandbox import HostCall, Program, ProgramStep, Sandbox


MAX_NAMED_VARIABLES: Final = 50
"""Variables that the error of a refused program lists for the model."""
MAX_PRINTED: Final = 8_000
"""Longest output of a program that is shown with its error, in characters."""
FINISHED: Final = "The program ended the turn with finish()."
SKIPPED: Final = "This call was not begun: a program before it ended the turn."
MAX_RUNNING: Final = 100
"""Calls of one program that run at once."""
MAX_WAITING: Final = 100
"""Calls of one program that wait for a person or the outside at once."""
SHORT_PAUSE_MS: Final = 2_000
"""Longest pause with the program in memory; for a longer one the turn is parked."""
MAX_WORKER_STARTS: Final = 3
"""Attempts to start a worker that does not come up."""
MAX_EDIT_NOTES: Final = 10
"""Notes to the model about calls that a person edited."""
SANDBOX_FULL_SECONDS: Final = 0.05
"""Pause before the next attempt to start a program in a full sandbox, in seconds."""
MAX_PROGRAMS: Final = 1_024
"""Programs of one runtime that run at once. Parked programs do not count."""
_KINDS: Final[dict[str, contract.ErrorKind]] = {
    "Denied": "PermissionError",
    "ToolTimeout": "TimeoutError",
    "TimeoutError": "TimeoutError",
    "InvalidArguments": "ValueError",
    "ValueError": "ValueError",
    "TypeError": "TypeError",
    "PermissionError": "PermissionError",
}


@dataclass(repr=False, eq=False)
class Programs:
    """Runs the programs of one turn, and keeps their effect on the turn."""

    host: SessionDrive
    agent: Agent
    performer: Performer
    runner: ToolCallRunner
    find_limit: Callable[[limits.Consumption, limits.Consumption], Awaitable[limits.OutOf | None]]
    """Finds the limit that leaves no room for further calls after the usage of the batch."""
    variables: dict[str, Any]
    """The variables that the programs so far have left."""
    taint: rules.Taint = rules.CLEAN
    used: limits.Consumption = limits.NOTHING
    """The usage of the batch's programs."""
    polled: bool = False
    answer: str | None = None
    """The answer with which one of them ended the turn."""
    out: limits.OutOf | None = None
    """The limit that ended the turn in one of them."""
    running: ProgramRunner | None = None
    """The last program that began."""
    _batch: Mapping[str, ToolCallState] = field(default_factory=dict[str, "ToolCallState"])

    # ---- one batch ----

    def begin_batch(self, batch: Mapping[str, ToolCallState], taint: rules.Taint) -> None:
        """Perform a batch of calls; `taint` is that of the turn so far."""
        self.taint, self.used, self.polled, self.answer, self.out = taint, limits.NOTHING, False, None, None
        self._batch = batch

    def take(self, call: PreparedCall) -> PreparedCall:
        """The call of a program, with a tool that runs it."""
        key = call.key

        async def run(source: str) -> object:
            self.running = ProgramRunner(self, call, source)
            return await self.running.run()

        def stopped(now: int, ask: EffectRequest | None) -> Record:
            if self.running is not None and self.running.key == key:
                return self.running.stopped(now, ask)
            made = reconciliation.finished_program_calls(self.performer.past, key)
            return reconciliation.stopped_program_outcome(key, ask, now, made, ())

        tool = None if call.tool is None else replace(call.tool, function=run)
        return msgspec.structs.replace(call, program=stopped, tool=tool)

    def skipped(self, call: AuthorizedCall) -> AuthorizedCall:
        """The call, refused if a program before it ended the turn."""
        if not self.over:
            return call
        refused = ErrorInfo(programs.STOPPED, SKIPPED)
        return msgspec.structs.replace(call, refused=refused, decision=replay.Perform(intent=False))

    @property
    def over(self) -> bool:
        """True if one of them ended the turn."""
        return self.answer is not None or self.out is not None

    def results(self, results: tuple[messages.ToolResult, ...]) -> Results:
        """The results of the batch, with the effect of its programs on the turn."""
        return Results(results, self.used, self.polled, self.answer, self.out)

    def recall(self, call: SettledCall) -> None:
        """Take in the recorded effect of an ended program instead of running it again."""
        found = self.performer.settled_below(call.key)
        self.performer.took(name for name, _ in found)
        for name, recorded in found:
            parsed = keys.parse_key(name)
            outcome = recorded.outcome
            if parsed is not None and parsed.nested and outcome is not None:
                result = result_of(messages.ToolCall("", keys.tool_in_key(name), {}), outcome)
                self.add_result(name, result)
                self.runner.spilled += is_background(result)
            elif isinstance(outcome, Done) and name == f"{call.key}{programs.KEPT}":
                self.variables = programs.decode_changed_variables(bytes(outcome.value)).after(self.variables)
            elif isinstance(outcome, Done) and programs.is_finish(name):
                self.answer = programs.finish_of(outcome)
        # Calls after the one that the limit ended were not begun.
        self.out = self.out or programs.limit_in_program(call.outcome)

    # ---- for the running program ----

    async def room(self, calls: int, background: int) -> limits.OutOf | None:
        """The limit without room for so many calls that run, or are about to begin, in a program."""
        ended = sum(isinstance(state, SettledCall) for state in self._batch.values())
        within = self.used + limits.Consumption(tool_calls=ended) if ended else self.used
        return await self.find_limit(within, limits.use_of_calls(calls + len(self._batch) - ended, background))

    def add_result(self, key: str, result: messages.ToolResult) -> None:
        """Count a result that a program got: the rest of the turn may depend on it."""
        agent = prepare(self.agent)
        self.used += limits.Consumption(tool_calls=1, background=int(is_background(result)))
        self.polled = self.polled or result.name in agent.rules.polling
        if agent.tracks_taint:
            self.taint = self.runner.taint_after(self.agent, self.taint, [(key, result)])


class ProgramRunner:
    """Runs one program from its start, or from the end of its records, to its end or to a wait."""

    def __init__(self, parent: Programs, call: PreparedCall, source: str) -> None:
        self.key = call.key
        self._programs = parent
        self._call = call
        self._source = source
        self._host = parent.host
        self._agent = parent.agent
        self._performer = parent.performer
        self._runner = parent.runner
        self._calls = ProgramCalls(parent, self._prepare)
        self._pauses: list[_Timer] = []
        """A heap: the pause that is over first comes first."""
        self._made: list[str] = []
        self._unknown: list[str] = []
        self._notes: list[str] = []
        self._edited = 0
        self._out: limits.OutOf | None = None
        self._end: tuple[HostCall, str] | None = None
        """The host call that ends the turn, and the answer."""

    async def run(self) -> object:
        """The report for the model. Raises `Suspended` when the program waits, `ToolFailure` when it failed."""
        release_call_slot()  # its calls need slots of their own
        token = scopes.current_scope.set(None)  # and are no effects of the program
        self._host.listen(self._calls.notify)
        try:
            try:
                program, step = await self._start()
            except ToolFailure as failure:
                # Its calls in an earlier process stay done, and are reported.
                await self._settle_all()
                if self._has_finished():
                    return _report({"finished": FINISHED}, "", self._notes)
                if not self._made and not self._unknown:
                    raise
                stopped = reconciliation.stopped_program_outcome(self.key, None, 0, self._made, self._unknown)
                why = failure.error.message.removeprefix("The program was not run: ")
                said = f"{stopped.error.message} It could not be taken up again ({why})."
                raise ToolFailure(ErrorInfo(programs.FAILED, said)) from failure
            try:
                return await self._drive(program, step)
            finally:
                self._calls.stop()  # at once: the worker may take a while to end, and calls must stop meanwhile
                try:
                    await program.close()
                finally:
                    await self._calls.close()
        except (errors.StoreError, errors.InvariantBroken) as error:  # not the program's failure, but ours
            raise self._performer.halt(error) from error
        finally:
            self._host.listen(None)
            scopes.current_scope.reset(token)

    # ---- starting ----

    async def _start(self) -> tuple[Program, ProgramStep]:
        """Start the program and feed it the recorded results, up to the first step without one."""
        failures = 0
        sandbox = self._host.context.programs.given(self._agent.sandbox)
        results: list[CallResult] | None = None
        while True:
            try:
                program = await sandbox.start(
                    self._source,
                    tools=prepare(self._agent).stubs,
                    globals=self._programs.variables,
                    limits=self._agent.program_limits,
                    seed=f"{self._host.session}/{self.key}",
                )
            except errors.InvalidArgument as error:  # variables that an earlier limit allowed
                if results is None:
                    await self._recorded_results("")  # its earlier calls count all the same
                raise ToolFailure(ErrorInfo(programs.FAILED, f"The program was not run: {error}")) from error
            except ProgramOver as over:
                raise context.RuntimeClosing from over
            if results is None:
                results = await self._recorded_results(program.digest)
            try:
                crash_point("program.before_run")
                # A program that only waited has no results yet; it was checked against the tools of its time.
                begun = not results and reconciliation.has_program_records(self._performer.past, self.key)
                run = program.run(results, begun=True) if begun else program.run(results)
                return program, await self._step(run)
            except SandboxFull:
                await program.close()
                await self._host.boundary()
                await asyncio.sleep(SANDBOX_FULL_SECONDS)
            except (WorkerFailed, ProgramsUnavailable) as error:
                await program.close()
                failures += 1
                if failures == MAX_WORKER_STARTS:
                    said = f"The program was not run: its worker did not start: {error.reason}"
                    raise ToolFailure(ErrorInfo(programs.FAILED, said)) from error
            except BaseException:
                await program.close()
                raise

    def _has_finished(self) -> bool:
        """True if a record says that the program ended the turn. It did, even if it would take other steps now."""
        for name, found in self._performer.settled_below(self.key):
            if programs.is_finish(name) and isinstance(found.outcome, Done):
                self._programs.answer = programs.finish_of(found.outcome)
        return self._programs.answer is not None

    async def _recorded_results(self, program: str) -> list[CallResult]:
        """The recorded results of its host calls, in journal order."""
        results: list[CallResult] = []
        ended = False
        for key, found in self._performer.settled_below(self.key):
            number, outcome = programs.number_of(key), found.outcome
            if not number or outcome is None:
                continue
            if programs.is_finish(key) and isinstance(outcome, Done):
                ended = True  # it did not get the results that were recorded after its end
                continue
            self._performer.took((key,))
            parsed = keys.parse_key(key)
            if parsed is None or not parsed.nested:
                given = _aside(outcome)
            else:
                call = messages.ToolCall("", keys.tool_in_key(key), {})
                result = result_of(call, outcome)
                self._count_result(key, result, outcome)
                self._runner.spilled += is_background(result)
                decided = await read_decisions(self._performer, key)
                if decided.edited:
                    self._note_edited(decided.applied_to(call))
                given = sandbox_result(result, outcome)
            if not ended:
                results.append(CallResult(call_id(program, number - 1), given, found.ask().content))
        return results

    async def _step(self, step: Awaitable[ProgramStep]) -> ProgramStep:
        try:
            return await step
        except ProgramDiverged as error:
            number = call_number(error.call) + 1
            known = {programs.number_of(name): name for name, _ in self._performer.settled_below(self.key)}
            recorded = known.get(number, f"{self.key}: nothing as number {number}")
            asked = {"call": f"number {number}: {error.asked}"}
            raise self._performer.mismatch(self.key, {"call": f"{recorded}: {error.recorded}"}, asked) from error
        except ProgramOver as error:  # the runtime is being closed
            raise context.RuntimeClosing from error

    # ---- driving ----

    async def _drive(self, program: Program, step: ProgramStep) -> object:
        while isinstance(step, PendingCalls):
            await self._take(step.calls)
            results = await self._next()
            if not results:
                return await self._end_turn(program)
            if self._performer.is_behind:
                await self._performer.settle()
            crash_point("program.before_answer")
            step = await self._step(program.answer(results))
        await self._settle_all()
        if self._has_finished():
            return _report({"finished": FINISHED}, "", self._notes)
        return await self._report_end(step)

    async def _take(self, hosts: tuple[HostCall, ...]) -> None:
        """Take in host calls of the program: start pauses, queue tool calls, check limits and the end of the turn."""
        requests = [HostRequest(host, "", call_number(host.id) + 1) for host in hosts]
        for request in requests:
            if request.host.kind != "tool":
                continue
            if request.host.name != programs.FINISH:
                request.key = keys.nested_key(self.key, request.number, request.host.name)
                continue
            found = self._performer.recorded(programs.aside_key(self.key, request.number, "finish"))
            if found is not None and isinstance(found.outcome, Done):  # it ended the turn in an earlier process
                self._end = request.host, programs.finish_of(found.outcome)
                return
        calls = [request for request in requests if request.key]
        if any(self._performer.recorded(call.key) is None for call in calls):
            # A call that an earlier process began counts together with the new ones, as it did there.
            tasks = prepare(self._agent).rules.tasks
            background = sum(call.host.name in tasks for call in calls)
            self._out = await self._programs.room(self._calls.pending + len(calls), background)
            if self._out is not None:
                return
        for request in requests:
            if request.host.kind == "clock":
                request.given = contract.CallValue(self._tell_time(request.host, request.number))
                self._calls.recorded.append(request)
            elif request.host.kind == "sleep":
                await self._begin_pause(request.host, request.number)
            else:
                self._calls.undecided.append(request)

    def _prepare(self, asked: HostRequest) -> PreparedCall:
        agent, host = self._agent, asked.host
        name, tool = f"{self._call.name}.{asked.number}", agent.tools.get(host.name)
        body = canonical.canonical_json(self._performer.redactor.value(host.arguments))
        ask = EffectRequest(
            "tool_call",
            host.name,
            host.digest,
            msgspec.Raw(body) if len(body) <= replay.MAX_ASK_BODY else ABSENT,
            cause=Cause("call", self.key, asked.number),
        )
        sent = messages.ToolCall(name, host.name, host.arguments)
        call = self._runner.prepare(sent, name, asked.key, ask, tool, agent.tools)
        if isinstance(call, SettledCall):  # a program gets its recorded results when it starts
            raise errors.InvariantBroken(f"{asked.key!r} is asked for again")
        return msgspec.structs.replace(call, nested=True, output_limit=agent.program_limits.value)

    async def _next(self) -> list[CallResult]:
        """The next results for the program, in journal order; empty when the turn ends here."""
        calls = self._calls
        while self._out is None and self._end is None:
            if self._pauses:
                self._end_pauses()
            if calls.recorded and (results := self._take_results()):
                return results
            seconds = self._pauses[0].left(self._performer.now()) / 1000 if self._pauses else None
            began = await calls.begin(watched=seconds is not None)
            if isinstance(began, HostRequest):
                await self._finish(began.host)
            elif began:
                continue
            elif calls.running:
                await calls.until_one(seconds)
            elif seconds is not None and seconds * 1000 <= SHORT_PAUSE_MS:
                await self._host.boundary()
                await asyncio.sleep(seconds)
            else:
                crash_point("program.before_wait")
                # The next timer that is due is enough to wake the turn.
                timers = [pause.key for pause in self._pauses[:1] if pause.durable]
                raise errors.Suspended(*(wait for call in calls.waiting.values() for wait in call.waits), *timers)
        return []

    def _take_results(self) -> list[CallResult]:
        results: list[CallResult] = []
        recorded = self._calls.recorded
        while recorded:
            asked = recorded[0]
            given, state = asked.given, asked.state
            if isinstance(state, SettledCall):
                given = sandbox_result(state.result, state.outcome)
                self._count_result(state.key, state.result, state.outcome)
                if state.edited:
                    self._note_edited(state.request)
            elif state is not None:
                break  # its value is being read; results that were recorded later come later
            recorded.popleft()
            if given is not None:
                results.append(CallResult(asked.host.id, given, asked.host.digest))
        return results

    # ---- results ----

    def _count_result(self, key: str, result: messages.ToolResult, outcome: Outcome) -> None:
        self._programs.add_result(key, result)
        (self._unknown if isinstance(outcome, Unknown) else self._made).append(key)

    def _note_edited(self, call: messages.ToolCall) -> None:
        self._edited += 1
        if self._edited <= MAX_EDIT_NOTES:
            self._notes.append(f"{call.name}: {EDITED_NOTE} {msgspec.json.encode(call.arguments).decode()[:2_000]}")
        elif self._edited == MAX_EDIT_NOTES + 1:
            self._notes.append("More calls were made with arguments that a person had changed.")

    async def _finish(self, host: HostCall) -> None:
        """End the turn with a value. A value of the wrong shape is an error of the program."""
        key = programs.aside_key(self.key, call_number(host.id) + 1, "finish")
        ask = EffectRequest("sample", programs.FINISH, host.digest)
        self._performer.decide(key, ask, replay.Repeat.FREE)
        output = self._agent.output
        text = programs.answer_text(host.arguments["value"], typed=output is not None)
        complaint = "the answer is empty" if not text.strip() else None if output is None else output.complaint(text)
        now = self._performer.now()
        if complaint is not None:
            error = ErrorInfo("ValueError", self._performer.redactor.text(complaint))
            failed = Failed(at=now, key=key, ask=ask, error=error)
            self._performer.submit([failed], patient=True)
            self._calls.recorded.append(HostRequest(host, given=_aside(failed)))
            return
        outcome = await self._performer.succeeded(
            key, ask, msgspec.json.encode(text), asyncio.get_running_loop().time()
        )
        crash_point("program.before_finish")
        self._performer.submit([outcome], patient=True)
        self._end = host, programs.finish_of(await self._whole(outcome))

    async def _whole(self, outcome: Outcome) -> Done:
        if not isinstance(outcome, Done):
            said = outcome.error.message if isinstance(outcome, Failed) else ""
            raise ToolFailure(ErrorInfo(programs.FAILED, f"What the program left can't be kept. {said}".rstrip()))
        return await self._performer.with_value(outcome)

    # ---- ending ----

    async def _end_turn(self, program: Program) -> object:
        """End the turn in the middle of the program: it called `finish`, or a limit leaves no room."""
        await self._settle_all()
        if self._out is not None:
            self._programs.out = self._out
            raise ToolFailure(*limit_error(self._out))
        if self._end is None:
            raise errors.InvariantBroken("a program has no answers to go on with, and no end")
        host, self._programs.answer = self._end
        printed = ""
        with suppress(errors.HoldfastError):
            last = await program.answer([CallResult(host.id, contract.CallError("", "SystemExit"), host.digest)])
            if not isinstance(last, PendingCalls):  # else it made more host calls, which get no results
                printed = last.printed
                await self._keep(getattr(last, "kept", None))
        return _report({"finished": FINISHED}, printed, self._notes)

    async def _settle_all(self) -> None:
        """Let running calls end; drop calls that have not begun, open questions and pauses."""
        calls, runner, past = self._calls, self._runner, self._performer.past
        await calls.drain()
        self._take_results()
        now = self._performer.now()
        dropped: list[Record] = [*self.unanswered(now), *runner.give_up(calls.waiting, now)]
        known = {*runner.settled, *(getattr(record, "key", "") for record in dropped)}
        reads = {name for name, tool in self._agent.tools.items() if tool.read_only}
        dropped += reconciliation.open_program_outcomes(past, self.key, known, now, reads=reads)
        self._unknown += [record.key for record in dropped if isinstance(record, Unknown)]
        if dropped:
            spent = budgets.spend_of_records(dropped)
            self._performer.submit(dropped, patient=True, spend=spent)
            # Also when the turn is stopped before this is over, they are not recorded a second time.
            runner.settled.update(record.key for record in dropped if isinstance(record, Cancelled | Unknown))
            self._programs.used += limits.Consumption(tool_calls=spent.tool_calls)
        # The program makes no more host calls, also not those that are recorded.
        self._performer.took(name for name in past.effects if name.startswith(f"{self.key}/"))
        timers = [pause.key for pause in self._pauses if pause.durable]
        waits = (*(wait for call in calls.waiting.values() for wait in call.waits), *timers)
        calls.waiting.clear()
        self._pauses.clear()
        for wait in waits:
            await self._host.waits.close(wait)

    async def _report_end(self, step: contract.ProgramEnd | contract.ProgramFailure | contract.LimitHit) -> object:
        await self._keep(getattr(step, "kept", None))
        notes = self._notes
        if isinstance(step, contract.ProgramEnd):
            variables: dict[str, Any] = {}
            if step.kept is None:
                said = "They could not be read at the end of the program, and are what they were before it."
                variables = {"variables": said}
            elif step.kept.dropped:
                variables = {"dropped": dict(step.kept.dropped)}
            return _report({"value": step.value}, step.printed, notes, variables)
        if self._unknown:
            named = ", ".join(sorted({keys.tool_in_key(key) for key in self._unknown}))
            notes = [*notes, f"Of these calls it is not known whether they took effect: {named}."]
        raise ToolFailure(program_error(step, self._programs.variables, notes))

    async def _keep(self, kept: contract.KeptVariables | None) -> None:
        """Keep the variables for the next program: their changes are committed together with the end of this one."""
        if kept is None:
            return
        changed = programs.changed_variables(self._programs.variables, kept.values)
        if not changed.set and not changed.gone:
            return
        ask = EffectRequest("sample", "variables", self._call.ask.content)
        key = f"{self.key}{programs.KEPT}"
        outcome = await self._performer.succeeded(key, ask, msgspec.json.encode(changed))
        done = await self._whole(outcome)
        beside = self._runner.beside
        beside[self.key] = (*beside.get(self.key, ()), outcome)
        # From the record: secrets that are redacted there stay hidden from the next program.
        self._programs.variables = programs.decode_changed_variables(bytes(done.value)).after(self._programs.variables)

    # ---- when the turn is stopped ----

    def stopped(self, now: int, ask: EffectRequest | None) -> Record:
        """The outcome of the program if it is stopped now."""
        ended = [key for key in self._calls.keys_running if key in self._runner.settled]
        open_calls = [self._runner.open.get(key) for key in self._calls.keys_running]
        unknown = [running.call.key for running in open_calls if running and running.begun and running.call.alone]
        made, unknown = [*self._made, *ended], [*self._unknown, *unknown]
        return reconciliation.stopped_program_outcome(self.key, ask, now, made, unknown)

    def unanswered(self, now: int) -> Iterator[Record]:
        """Outcomes for open questions and pauses when the program is abandoned."""
        for call in self._calls.waiting.values():
            yield from (Cancelled(at=now, key=wait) for wait in call.waits if approvals.MARK in wait)
        yield from (Cancelled(at=now, key=pause.key) for pause in self._pauses if pause.durable)

    # ---- clock and pauses ----

    def _tell_time(self, host: HostCall, number: int) -> float:
        """The time in seconds since 1970, recorded for replay."""
        key = programs.aside_key(self.key, number, "now")
        ask = EffectRequest("sample", "now", host.digest)
        self._performer.decide(key, ask, replay.Repeat.FREE)
        at = self._performer.now()
        done = Done(at=at, key=key, ask=ask, value=msgspec.Raw(msgspec.json.encode(at / 1000)))
        self._performer.submit([done], patient=True)
        return at / 1000

    async def _begin_pause(self, host: HostCall, number: int) -> None:
        """Begin a pause, or continue it after a restart."""
        key = programs.aside_key(self.key, number, "sleep")
        ask = EffectRequest("sleep", "sleep", host.digest)
        decision = self._performer.decide(key, ask, replay.Repeat.FREE)
        now = self._performer.now()
        due = now + round(host.arguments["seconds"] * 1000)
        if isinstance(decision, replay.Perform) and due - now <= SHORT_PAUSE_MS:
            heappush(self._pauses, _Timer(due, key, host, ask))
            return
        wait = await self._host.waits.open(key, due)
        if isinstance(decision, replay.Perform):
            self._performer.submit([Intended(at=now, key=key, ask=ask)])
        is_open = wait.state == "open" and wait.deadline is not None
        heappush(self._pauses, _Timer((wait.deadline or now) if is_open else now, key, host))

    def _end_pauses(self) -> None:
        """Record the pauses that are over, in order, and answer them."""
        now = self._performer.now()
        while self._pauses and not self._pauses[0].left(now):
            pause = heappop(self._pauses)
            self._runner.settled.add(pause.key)
            done = Done(at=now, key=pause.key, ask=pause.ask, value=msgspec.Raw(b"null"))
            self._performer.submit([done], patient=True)
            self._calls.recorded.append(HostRequest(pause.host, given=contract.CallValue(None)))


@dataclass(frozen=True, slots=True, order=True)
class _Timer:
    due: int
    key: str
    """Also the name of its durable timer."""
    host: HostCall = field(compare=False)
    ask: EffectRequest | None = field(default=None, compare=False)
    """Set for a short pause; one with a durable timer has recorded its intent."""

    @property
    def durable(self) -> bool:
        return self.ask is None

    def left(self, now: int) -> int:
        """Milliseconds until it is over; 0 for a short pause with too much time left: the clock was set back."""
        left = max(0, self.due - now)
        return 0 if not self.durable and left > SHORT_PAUSE_MS else left


# ---- the host calls of a program ----


@dataclass(slots=True)
class HostRequest:
    """A host call of a program, on its way to its answer."""

    host: HostCall
    key: str = ""
    """The key of a tool call; empty for other host calls."""
    number: int = 0
    """The number of the host call in its program, from 1."""
    state: AuthorizedCall | ParkedCall | SettledCall | None = None
    """The tool call, once it was authorized."""
    given: contract.CallOutcome | None = None
    """The answer, if it is no tool call."""


class ProgramCalls:
    """The host calls of one program that have no answer yet."""

    def __init__(self, parent: Programs, prepare_call: Callable[[HostRequest], PreparedCall]) -> None:
        self.undecided: deque[HostRequest] = deque()
        """Requests that wait for their turn: tool calls, and the end of the turn."""
        self.recorded: deque[HostRequest] = deque()
        """Requests whose answers are in the journal but not yet passed to the program, in journal order."""
        self.waiting: dict[str, ParkedCall] = {}
        """Calls that wait for a person or the outside, by their keys."""
        self.running: dict[asyncio.Task[SettledCall | ParkedCall], HostRequest] = {}
        self._programs = parent
        self._runner = parent.runner
        self._prepare_call = prepare_call
        self._queue: deque[HostRequest] = deque()
        """Calls that may begin."""
        self._alone: str | None = None
        """The key of the one call that runs alone, without a task."""
        self._ended: deque[asyncio.Task[SettledCall | ParkedCall]] = deque()
        self._news = asyncio.Event()
        self._questioned: dict[str, HostRequest] = {}
        """Calls that wait for a person's approval, by their keys."""
        self._has_news = False
        """News has come for the session: perhaps the answer to one of these questions."""

    @property
    def pending(self) -> int:
        """The number of tool calls without an outcome."""
        begun = len(self.running) + len(self.waiting)
        return begun + sum(bool(request.key) for request in (*self.undecided, *self._queue))

    @property
    def keys_running(self) -> list[str]:
        found = [request.key for request in self.running.values()]
        return found if self._alone is None else [*found, self._alone]

    def notify(self) -> None:
        """Report news of the session: perhaps the answer to a question that is still being asked."""
        self._has_news = True
        if self._questioned:
            self._news.set()

    # ---- beginning ----

    async def begin(self, *, watched: bool) -> HostRequest | bool:
        """Perform the calls that may run now; returns True if there were any, or the request that ends the turn.

        With `watched`, something else may happen before a call has ended, for example the end of a pause.
        """
        await self._authorize()
        if self._has_news:
            await self._reconsider()
        todo = self._next()
        if not todo:
            return False
        calls = [request.state for request in todo if isinstance(request.state, AuthorizedCall)]
        if not calls:
            return todo[0]
        calls = await self._runner.begin(calls)
        if len(calls) == 1 and not self.running and not watched and not self._questioned:
            # Nothing else can happen until it has ended: it runs without a task.
            self._alone = calls[0].key
            self._take_in(todo[0], await self._runner.perform(calls[0], partial(self.recorded.append, todo[0])))
            self._alone = None
            return True
        for request, call in zip(todo, calls, strict=True):
            request.state = call
            task = eventloop.spawn(self._runner.perform(call, partial(self.recorded.append, request)))
            task.add_done_callback(self._note_end)
            self.running[task] = request
        return True

    async def _authorize(self) -> None:
        """Let hooks, the policy and people decide about calls, in call order."""
        while self.undecided and len(self.waiting) < MAX_WAITING and len(self._queue) < MAX_RUNNING:
            request = self.undecided.popleft()
            if not request.key:
                self._queue.append(request)
                continue
            if self._runner.authorizer is not None:
                await self._runner.authorizer.recall((request.key,))
            [request.state] = await self._runner.authorize([self._prepare_call(request)], self._programs.taint)
            if isinstance(request.state, ParkedCall):
                self.waiting[request.key] = request.state
                self._questioned[request.key] = request
            else:
                self._queue.append(request)

    async def _reconsider(self) -> None:
        """Queue the calls that a person has meanwhile approved or denied."""
        self._has_news = False
        for key, request in tuple(self._questioned.items()):
            if not isinstance(request.state, ParkedCall) or self._runner.authorizer is None:
                continue
            request.state = await self._runner.authorizer.reconsider(request.state, self._programs.taint)
            if isinstance(request.state, ParkedCall):
                self.waiting[key] = request.state
            else:
                del self._questioned[key], self.waiting[key]
                self._queue.append(request)

    def _next(self) -> list[HostRequest]:
        """The calls that may run now: read-only calls together, any other alone."""
        todo: list[HostRequest] = []
        while self._queue and len(self.running) + len(todo) < MAX_RUNNING:
            state = self._queue[0].state
            alone = state is None or (isinstance(state, AuthorizedCall) and state.alone)
            if alone and (self.running or todo):
                break
            todo.append(self._queue.popleft())
            if alone:
                break
        return todo

    # ---- ending ----

    def _note_end(self, task: asyncio.Task[SettledCall | ParkedCall]) -> None:
        self._ended.append(task)
        self._news.set()

    async def until_one(self, seconds: float | None) -> None:
        """Wait until a call has ended, at most for so many seconds."""
        if not self._ended and not self._has_news:
            self._news.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            except TimeoutError:
                return
        while self._ended:
            task = self._ended.popleft()
            request = self.running.pop(task)
            if task.cancelled():
                self._give_up(request)
            else:
                self._take_in(request, task.result())

    def _take_in(self, request: HostRequest, state: SettledCall | ParkedCall) -> None:
        request.state = state
        if isinstance(state, ParkedCall):
            self.waiting[request.key] = state

    def _give_up(self, request: HostRequest) -> None:
        """Settle a call whose tool cancelled the task it ran in."""
        call = request.state
        for record in self._runner.give_up([request.key], self._programs.performer.now()):
            self._programs.performer.submit([record], patient=True, spend=budgets.spend_of_records([record]))
            if isinstance(record, Unknown | Cancelled) and isinstance(call, AuthorizedCall):
                request.state = settled(call, record)
                self.recorded.append(request)

    async def drain(self) -> None:
        """Let the running calls come to their ends; nothing new is begun."""
        self.undecided.clear()
        self._queue.clear()
        self._questioned.clear()
        while self.running:
            self._has_news = False
            await self.until_one(None)

    def stop(self) -> None:
        for task in self.running:
            task.cancel()

    async def close(self) -> None:
        """Stop the running calls, and wait until they have ended."""
        self.stop()
        if self.running:
            await asyncio.gather(*self.running, return_exceptions=True)


# ---- results for the program, reports for the model ----


def sandbox_result(result: messages.ToolResult, outcome: Outcome) -> contract.CallOutcome:
    """The result of a call as its program gets it: a value, or an exception with the text for the model."""
    if isinstance(outcome, Done):
        try:
            return contract.CallValue(contract.to_json(result.content, contract.MAX_BYTES)[0])
        except contract.NotJson as reason:
            said = f"{result.name} took effect, but what it gave can't be used in a program: {reason}"
            return contract.CallError(said, "ValueError")
    kind = _KINDS.get(outcome.error.kind, "RuntimeError") if isinstance(outcome, Failed) else "RuntimeError"
    return contract.CallError(str(result.content), kind)


def _report(
    head: dict[str, Any], printed: str, notes: list[str], variables: dict[str, Any] | None = None
) -> dict[str, Any]:
    output = {"printed": printed} if printed else {}
    return head | output | (variables or {}) | ({"notes": [*notes]} if notes else {})


def program_error(
    step: contract.ProgramFailure | contract.LimitHit, variables: Mapping[str, Any], notes: Iterable[str]
) -> ErrorInfo:
    """The error for the model about a program that raised, was refused, or hit its own limit."""
    said = [step.error]
    if isinstance(step, contract.ProgramFailure) and step.phase == "check":
        said[0] = f"The program was not run; nothing of it was done.\n{step.error}"
        if variables:
            more = len(variables) - MAX_NAMED_VARIABLES
            named = ", ".join(sorted(variables)[:MAX_NAMED_VARIABLES])
            said.append(f"Variables that live on: {named}{f' and {more:,} more' if more > 0 else ''}.")
    if isinstance(step, contract.ProgramFailure) and step.kept is not None and step.kept.dropped:
        said.append(f"Not kept: {'; '.join(f'{name} ({why})' for name, why in step.kept.dropped.items())}")
    said += notes
    if step.printed:
        half, left_out = MAX_PRINTED // 2, len(step.printed) - MAX_PRINTED
        shown = step.printed
        if left_out > 0:
            shown = f"{shown[:half]}\n[{left_out:,} characters left out]\n{shown[-half:]}"
        said.append(f"It had printed:\n{shown}")
    return ErrorInfo(programs.FAILED, "\n".join(said))


def limit_error(out: limits.OutOf) -> tuple[ErrorInfo, bytes]:
    """The error of a program that a limit stopped before its next calls, and the recorded form of the limit."""
    said = f"The program was stopped: {out.message}. What it had done stays done."
    return ErrorInfo(programs.LIMIT, said), msgspec.json.encode(out)


def _aside(outcome: Outcome) -> contract.CallOutcome:
    """The result of a host call that is not a tool call."""
    if isinstance(outcome, Failed):
        return contract.CallError(outcome.error.message, "ValueError")
    if isinstance(outcome, Done):
        return contract.CallValue(msgspec.json.decode(bytes(outcome.value)))
    return contract.CallValue(None)


# ---- sandboxes ----


class Sandboxes:
    """The sandboxes in which the programs of one runtime run."""

    def __init__(self) -> None:
        self._own: Sandbox | None = None

    def given(self, given: Sandbox | None) -> Sandbox:
        """The sandbox of the agent, or else the shared one of the runtime."""
        if given is not None:
            return given
        if self._own is None:
            from holdfast.sandbox import MontySandbox  # loaded with the first program

            self._own = MontySandbox(max_programs=MAX_PROGRAMS)
        return self._own

    async def close(self) -> None:
        """End all programs of the runtime's own sandbox. The host closes its own sandboxes."""
        own, self._own = self._own, None
        if own is not None:
            await own.close()
