"""The sandbox of Holdfast: Monty, an interpreter without access to the system, in a worker confined by bubblewrap.

In this order: the sequence of calls and results, encoded answers, the execution of one program in one worker with its
kept variables, the plan of a program, and the sandbox with its programs.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import re
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

import msgspec

from holdfast.effects.canonical import canonical_json, digest_of_bytes
from holdfast.effects.canonical import digest as digest_of
from holdfast.errors import InvalidArgument
from holdfast.errors.caller import AnswerRefused, ProgramDiverged, ProgramOver
from holdfast.errors.world import SandboxFull, WorkerFailed
from holdfast.names import check_int
from holdfast.sandbox import contract, protocol
from holdfast.sandbox.contract import CallError, CallValue, LimitHit, NotJson, PendingCalls, ProgramFailure, to_json
from holdfast.sandbox.stubs import Stub, bind_arguments, stub_source
from holdfast.sandbox.worker import Launcher, Worker, WorkerGone, require_programs, spawn_in_thread
from holdfast.tools.results import OutputClip

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence

    from holdfast.sandbox.contract import CallKind, CallOutcome, CallResult, LimitName, ProgramStep, Sandbox


# ---- calls and results ----


def program_digest(source: str, variables: dict[str, Any], seed: str) -> str:
    """The digest of a program: source, initial variables and seed."""
    return digest_of("program", {"source": source, "variables": variables, "seed": seed})


def call_digest(kind: CallKind, name: str, arguments: dict[str, Any]) -> str:
    """The digest of a call: kind, name and arguments in plain JSON."""
    return digest_of_bytes("program-call", canonical_json((kind, name, arguments)))


class CallSequence:
    """The calls and results of one program, in order."""

    def __init__(self, program: str) -> None:
        self._prefix = contract.call_id(program, 0)[:-1]
        self.made = 0
        self.waiting: dict[int, contract.HostCall] = {}
        """The calls without a result by the sandbox's number, in the order in which they were made."""
        self._numbers: dict[str, int] = {}
        self._new: list[contract.HostCall] = []
        self._unused: OrderedDict[str, CallResult] = OrderedDict()
        self.given: list[CallResult] = []
        """All results, in order."""

    def call(self, number: int, kind: CallKind, name: str, arguments: dict[str, Any]) -> contract.HostCall:
        """The call with the sandbox's `number`; `ProgramDiverged` if it differs from its record."""
        known = self.waiting.get(number)  # a lying worker may repeat a number
        if known is not None:
            return known
        digest = call_digest(kind, name, arguments)
        made = contract.HostCall(f"{self._prefix}{self.made}", kind, name, arguments, digest)
        recorded = self._unused.get(made.id)
        if recorded is not None and recorded.digest not in ("", digest):
            asked = f"{name} with arguments of the digest {digest[:12]}"
            raise ProgramDiverged(made.id, f"a call of the digest {recorded.digest[:12]}", asked)
        self.made += 1
        self.waiting[number] = made
        self._numbers[made.id] = number
        if recorded is None:
            self._new.append(made)
        return made

    def only(self, number: int) -> bool:
        """True if no other call waits for a result, given or not."""
        return len(self.waiting) == 1 and number in self.waiting

    def give(self, results: Iterable[CallResult]) -> None:
        """Add results in order, from a record or from the host."""
        for result in results:
            if result.id in self._unused:
                raise AnswerRefused(result.id, "it was given twice")
            if not result.id.startswith(self._prefix):
                raise AnswerRefused(result.id, "it is a call of another program")
            self._unused[result.id] = result
            self.given.append(result)

    def check_answers(self, results: Sequence[CallResult]) -> None:
        """Raise `AnswerRefused` for answers to anything but waiting calls."""
        seen: set[str] = set()
        for result in results:
            number = self._numbers.get(result.id)
            if number is None or result.id in self._unused or result.id in seen:
                raise AnswerRefused(result.id, "no such call waits for an answer")
            call = self.waiting[number]
            if result.digest and result.digest != call.digest:
                raise AnswerRefused(result.id, f"it is the answer to another call than that of {call.name}")
            check_outcome(call, result.outcome)
            if isinstance(result.outcome, CallValue):
                try:
                    to_json(result.outcome.value, contract.MAX_BYTES)
                except NotJson as reason:  # it has no recordable form
                    raise AnswerRefused(result.id, str(reason)) from None
            seen.add(result.id)

    def at_once(self, number: int) -> CallOutcome | None:
        """The given result of a call that can't wait, or None."""
        call = self.waiting[number]
        given = self._unused.pop(call.id, None)
        if given is None:
            return None
        check_outcome(call, given.outcome)
        del self.waiting[number], self._numbers[call.id]
        return given.outcome

    def next(self, pending: Container[int]) -> tuple[int, CallOutcome] | None:
        """The next result for one of the `pending` calls, by the sandbox's number."""
        while self._unused:
            found = next(iter(self._unused))
            number = self._numbers.get(found)
            if number is None and self._ordinal_of(found) >= self.made:
                raise ProgramDiverged(found, "a result of this call", "nothing: the call was not made")
            given = self._unused.pop(found)
            if number is None:
                continue  # it was answered before
            del self.waiting[number], self._numbers[found]
            if number in pending:  # else the program no longer waits for it
                return number, given.outcome
        return None

    def coming(self, after: int) -> CallOutcome | None:
        """The recorded result of the call after `after` further ones, if the record is in the same order."""
        given = next(islice(self._unused.values(), after, None), None)
        return None if given is None or given.id != f"{self._prefix}{self.made + after}" else given.outcome

    def answered(self) -> bool:
        """True if all calls have an answer, also those never awaited. For the end of a program."""
        self.next(())
        return not self.waiting

    def finish(self) -> None:
        """Raise `ProgramDiverged` for results of calls that the program never made. For its end."""
        for found in self._unused:
            if self._ordinal_of(found) >= self.made:
                raise ProgramDiverged(found, "a result of this call", "nothing: the program ended before it")

    def ask(self) -> PendingCalls:
        new, self._new = tuple(self._new), []
        return PendingCalls(new, tuple(call.id for call in self.waiting.values() if call.id not in self._unused))

    def _ordinal_of(self, call: str) -> int:
        number = call.removeprefix(self._prefix)
        return int(number) if number.isascii() and number.isdigit() else self.made


def check_outcome(call: contract.HostCall, outcome: CallOutcome) -> None:
    """Raise `AnswerRefused` for an answer that does not fit this kind of call."""
    if call.kind != "clock" or isinstance(outcome, CallError):
        return
    value = outcome.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**33:
        raise AnswerRefused(call.id, "the clock is answered with seconds since 1970")


# ---- encoded answers ----

LARGE_MESSAGE: Final = 65536
"""Larger messages are encoded and decoded in a thread."""
_SHORT: Final = 512
"""Longer answers are not sent ahead, so that they never fill a pipe."""
_SCALARS: Final = frozenset((str, int, float, bool, type(None)))
_CONTAINERS: Final = (list, dict, tuple)


def encode_short_answer(number: int, outcome: CallOutcome) -> bytes | None:
    """The encoded answer to a call, if it is plain and short."""
    if isinstance(outcome, CallValue) and type(outcome.value) not in _SCALARS:
        return None
    answer = protocol.result_request(number, outcome)
    return answer if len(answer) <= _SHORT else None


async def encode_result(number: int, outcome: CallOutcome) -> bytes:
    """The encoded answer to a call; `AnswerRefused` for a value that no program can have."""
    try:
        if isinstance(outcome, CallError) or type(outcome.value) in _SCALARS:
            return protocol.result_request(number, outcome)
        return await encode_with_value(partial(protocol.result_request, number, outcome), outcome.value)
    except TypeError as error:
        raise AnswerRefused(str(number), str(error)) from None


async def encode_with_value(request: Callable[[], bytes], value: object) -> bytes:
    """A request with this value; a large one is encoded in a thread."""
    if isinstance(value, _CONTAINERS) and len(msgspec.json.encode(value)) > LARGE_MESSAGE:
        return await asyncio.to_thread(request)
    return request()


def encode_system_answer(asked: protocol.SystemCall, outcome: CallOutcome) -> bytes:
    """The encoded answer to a system call that can't wait."""
    if isinstance(outcome, CallError):
        return protocol.error_request(asked.number, outcome.kind, outcome.message)
    if asked.name in {"sleep", "time"}:
        answer = None if asked.name == "sleep" else float(outcome.value)
        return protocol.answer_request(asked.number, *protocol.encode_value(answer))
    now = dt.datetime.fromtimestamp(float(outcome.value), dt.UTC)
    if asked.name == "today":
        nodes = protocol.encode_date(now.date())
    elif asked.offset is None:
        nodes = protocol.encode_datetime(now.replace(tzinfo=None), None)
    else:
        nodes = protocol.encode_datetime(now.astimezone(dt.timezone(dt.timedelta(seconds=asked.offset))), asked.zone)
    return protocol.answer_request(asked.number, nodes)


# ---- the execution ----

START_SECONDS: Final = 20.0
_GRACE: Final = 5.0
"""Time for a worker to stop code over its limit, before it is killed."""
_REPLAY_FACTOR: Final = 4.0
"""Additional time for a replay: this machine may be slower."""
_EXIT_SECONDS: Final = 0.1
"""Time for a silent worker to end by itself."""
_MAX_AHEAD: Final = 32
"""Most recorded answers sent ahead of the calls."""
_UNSUPPORTED_SYNTAX: Final = "NotImplementedError: The monty syntax parser does not yet support"
"""The sandbox's error for unsupported syntax, before the program runs."""
MAX_NAMES: Final = 1_000
"""Most kept variables."""
_MAX_TEXT: Final = 200
_MAX_DROPPED: Final = 50
_PROBE: Final = "import json as _hf_json\n_hf_json.dumps({name})\n''"
_OUT_OF_TIME: Final = re.compile(r"TimeoutError: (\w+ )?time limit exceeded: \S+ > ")
"""The sandbox's error; that of a timed-out tool begins with a name."""


class WrongGuess(Exception):
    """The program took an answer sent ahead that was not for it. Its steps since then are void."""


class ProgramExecution:
    """A program in a worker.

    A replayed program mostly awaits one call after the other at once. So recorded answers are sent `ahead` of the
    calls, and the worker need not wait for each. Every call is still checked; if the program requested something else,
    the answers are taken back.
    """

    def __init__(self, plan: ProgramPlan, *, ahead: bool = True) -> None:
        self._plan = plan
        self._ahead = _MAX_AHEAD if ahead else 0
        self._sent: deque[int] = deque()
        """Calls with answers sent ahead, in order."""
        self._seconds = 0.0
        """Time limit for one answer of the worker."""
        self._room = plan.limits.value
        self.calls = CallSequence(plan.digest)
        self.printed = OutputClip(plan.limits.output)
        self._worker: Worker | None = None
        self._event: protocol.WorkerEvent | None = None
        self._suspended = 0

    async def start(self, worker: Worker, results: Sequence[CallResult], *, begun: bool = False) -> ProgramStep:
        """Begin, and use recorded results at once."""
        self._worker = worker
        self._event = None
        # An earlier start passed the check.
        unchecked = begun or bool(results)
        await self._configure(replaying=unchecked)
        try:
            self.calls.give(results)
            begin = partial(protocol.feed_request, self._plan.source, self._plan.variables, unchecked=unchecked)
            self._event = await self._request(await encode_with_value(begin, self._plan.variables))
            return await self._drive()
        except WorkerGone as gone:
            return await self._worker_lost(gone)

    async def answer(self, results: Sequence[CallResult]) -> ProgramStep:
        """Continue with these results, which are checked already."""
        self.calls.give(results)
        try:
            return await self._drive()
        except WorkerGone as gone:
            return await self._worker_lost(gone)

    async def _configure(self, *, replaying: bool) -> None:
        limits, more = self._plan.limits, _REPLAY_FACTOR if replaying else 1.0
        step = min(limits.step_seconds, limits.seconds) * more
        stubs = stub_source(self._plan.stubs.values(), self._plan.variables)
        request = protocol.configure_request(limits, (limits.seconds * more, step), stubs, self._plan.seed)
        self._seconds = START_SECONDS
        try:
            ready = await self._request(request)
        except WorkerGone as gone:
            raise WorkerFailed("it did not answer" if gone.timed_out else "it ended at once") from gone
        if not isinstance(ready, protocol.WorkerReady):
            said = ready.message[:300] if isinstance(ready, protocol.WorkerFatal) else "it does not want to begin"
            raise WorkerFailed(said)
        self._seconds = step + _GRACE

    async def _request(self, request: bytes) -> protocol.WorkerEvent:
        """Send a request and read the event, after taking back answers sent ahead."""
        if self._sent:
            await self._take_back()
        return await self._exchange(request)

    async def _take_back(self) -> None:
        """Read the worker's refusals of the answers sent ahead; `WrongGuess` if it took one."""
        while self._sent:
            self._sent.popleft()
            if not protocol.is_unwanted_answer(await self._exchange(b"")):
                raise WrongGuess

    async def _exchange(self, request: bytes) -> protocol.WorkerEvent:
        if self._worker is None:
            raise WorkerGone
        frame = await self._worker.ask(request, self._seconds)
        try:
            if len(frame) > LARGE_MESSAGE:
                return await asyncio.to_thread(protocol.read_event, frame, 4, self._room)
            return protocol.read_event(frame, 4, self._room)
        except protocol.MalformedMessage as error:
            raise WorkerGone from error

    async def _drive(self) -> ProgramStep:
        most = protocol.most_suspensions(self._plan.limits)
        while True:
            here = self._event
            step: PendingCalls | LimitHit | bytes | None  # a next request; None: the next event has arrived
            if isinstance(here, protocol.FunctionCall):
                step = await self._handle_call(here)
            elif isinstance(here, protocol.AllWaiting):
                step = await self._handle_wait(here)
            elif isinstance(here, protocol.SystemCall):
                step = await self._handle_system_call(here)
            elif isinstance(here, protocol.NameLookup):
                stub = None if here.routed else self._plan.stubs.get(here.name)
                step = protocol.UNDEFINED_REQUEST if stub is None else protocol.function_request(stub.name)
            elif isinstance(here, protocol.CodeCompleted):
                if self.calls.answered():
                    return await self._completed(here)
                step = self.calls.ask()
            elif isinstance(here, protocol.CodeRaised):
                return await self._code_raised(here.error)
            elif isinstance(here, protocol.CodeRejected):
                return self._refused(here.text)
            else:
                raise WorkerGone  # a fatal or unexpected event
            if isinstance(step, bytes):
                self._event = await self._request(step)
            elif step is not None:
                if self._sent:  # before the host acts on the step
                    await self._take_back()
                return step
            self._suspended += 1
            if self._suspended > most:
                return self._limit_hit("calls")

    async def _handle_call(self, called: protocol.FunctionCall) -> PendingCalls | LimitHit | bytes | None:
        course, number = self.calls, called.number
        if number not in course.waiting:
            arguments = self._arguments(called)
            if isinstance(arguments, bytes):
                return arguments
            course.call(number, "tool", arguments[0], arguments[1])
            if course.made > self._plan.limits.calls:
                return self._limit_hit("calls")
        if not called.eager or not course.only(number):
            return protocol.defer_request(number)
        return await self._answer_eagerly(number)

    async def _answer_eagerly(self, number: int) -> PendingCalls | None:
        """Answer a call before which no other code of the program can run."""
        found, sent = self.calls.next((number,)), self._sent
        if found is None:
            return self.calls.ask()
        if sent and sent[0] == number:
            sent.popleft()
            request = b""
        else:
            if sent:
                await self._take_back()
            request = await encode_result(*found)
        if self._ahead and len(sent) <= self._ahead // 2:
            request += self._answers_ahead(number)
        self._event = await self._exchange(request)
        return None

    def _answers_ahead(self, number: int) -> bytes:
        """Recorded answers to the next calls, if the program continues as before."""
        sent, more = self._sent, b""
        while len(sent) < self._ahead:
            outcome = self.calls.coming(len(sent))
            if outcome is None:
                break
            call = number + len(sent) + 1
            answer = encode_short_answer(call, outcome)
            if answer is None:
                break
            sent.append(call)
            more += answer
        return more

    def _arguments(self, called: protocol.FunctionCall) -> tuple[str, dict[str, Any]] | bytes:
        """The tool and its arguments, or the refusal of an impossible call."""
        number = called.number
        stub = self._plan.stubs.get(called.name)
        if stub is None:
            return protocol.error_request(number, "NameError", f"name '{called.name}' is not defined")
        room = self._plan.limits.value
        try:
            if called.args is None:
                raise contract.too_large(room)
            given = bind_arguments(stub, called.args, called.kwargs)
            if isinstance(given, str):
                return protocol.error_request(number, "TypeError", given)
            return stub.tool, to_json(given, room)[0]
        except NotJson as reason:
            said = f"the arguments of {stub.name}() can't be sent: {reason}"
            return protocol.error_request(number, "TypeError", said)

    async def _handle_system_call(self, asked: protocol.SystemCall) -> PendingCalls | LimitHit | bytes | None:
        number, course = asked.number, self.calls
        paused = asked.name in {"sleep", "pause"}
        if not asked.name or (paused and not 0 <= asked.seconds < 2**33):
            wrong = protocol.error_request(number, "ValueError", "a pause must be a number of seconds")
            return wrong if paused else protocol.unhandled_request(number)
        if paused:
            made = course.call(number, "sleep", "sleep", {"seconds": asked.seconds})
        else:
            made = course.call(number, "clock", "now", {})
        if made.kind != ("sleep" if paused else "clock"):  # the number is that of a waiting call
            raise WorkerGone
        if course.made > self._plan.limits.calls:
            return self._limit_hit("calls")
        if asked.eager and course.only(number):
            return await self._answer_eagerly(number)
        if asked.name == "pause":
            return protocol.defer_request(number)
        outcome = course.at_once(number)
        return course.ask() if outcome is None else encode_system_answer(asked, outcome)

    async def _handle_wait(self, waits: protocol.AllWaiting) -> PendingCalls | bytes:
        found = self.calls.next(waits.pending)
        if found is not None:
            return await encode_result(*found)
        if not self.calls.waiting:  # no answer would ever come
            raise WorkerGone
        return self.calls.ask()

    async def _worker_lost(self, gone: WorkerGone) -> ProgramStep:
        """The result for the model after the loss of the worker."""
        which: LimitName = "time" if gone.timed_out else "worker"
        worker = self._worker
        if worker is not None and not gone.timed_out and not worker.closed:
            await worker.ended(_EXIT_SECONDS)
            which = "memory" if worker.status == protocol.OUT_OF_MEMORY_STATUS else "worker"
        return self._limit_hit(which)

    async def _completed(self, completed: protocol.CodeCompleted) -> ProgramStep:
        self.calls.finish()
        try:
            if completed.too_large:
                raise contract.too_large(self._plan.limits.value)
            value, _ = to_json(completed.value, self._plan.limits.value)
        except NotJson as reason:
            said = f"The program ran to its end, but its value can't be taken: {reason}. End with a plainer one."
            return ProgramFailure(said, "run", self.printed.shown().text, await self._read_kept())
        return contract.ProgramEnd(value, self.printed.shown().text, await self._read_kept())

    def _refused(self, text: str) -> ProgramFailure:
        return ProgramFailure(self._clipped(text), "check", self.printed.shown().text, None)

    async def _code_raised(self, error: protocol.ProgramError) -> ProgramStep:
        if error.kind == "SyntaxError":
            return self._refused(error.summary())
        which = find_limit(error.summary())
        if which is not None:
            return self._limit_hit(which)
        self.calls.finish()
        if not self.calls.made and error.summary().startswith(_UNSUPPORTED_SYNTAX):
            return self._refused(error.display())
        return ProgramFailure(self._clipped(error.display()), "run", self.printed.shown().text, await self._read_kept())

    def _limit_hit(self, which: LimitName) -> LimitHit:
        self._event = None
        return LimitHit(which, contract.describe_limit(which, self._plan.limits), self.printed.shown().text)

    async def _read_kept(self) -> contract.KeptVariables | None:
        """The current variables; None if they are unreadable."""
        self._event = None
        room = self._room = self._plan.limits.variables
        values: dict[str, Any] = {}
        dropped: dict[str, str] = {}
        try:
            found = await self._value("list(locals())")
            if isinstance(found, protocol.ProgramError):
                return None
            listed = cast("list[object]", found.value) if isinstance(found.value, list) else []
            free = {name for name in listed if isinstance(name, str) and name.isidentifier() and name[:1] != "_"}
            names = sorted(name for name in free - self._plan.stubs.keys() if len(name) <= _MAX_TEXT)
            for name in names[:MAX_NAMES]:
                try:
                    kept, size = await self._read_variable(name, room)
                except NotJson as reason:
                    if len(dropped) < _MAX_DROPPED:
                        dropped[name] = str(reason)
                    continue
                if kept is not ...:
                    values[name] = kept
                    room -= size
        except WorkerGone:
            return None
        if len(names) > MAX_NAMES:
            dropped["..."] = f"more than {MAX_NAMES:,} variables"
        return contract.KeptVariables(values, dropped)

    async def _read_variable(self, name: str, room: int) -> tuple[Any, int]:
        """The value of a variable and its size; an ellipsis for a module, which is neither kept nor reported."""
        found = await self._value(name)
        if isinstance(found, protocol.ProgramError):
            raise NotJson(found.summary()[:_MAX_TEXT])
        if found.too_large:
            raise contract.too_large(room)
        value, size = to_json(found.value, room)
        # A text may be the repr of a function: check in the sandbox.
        probe = await self._value(_PROBE.format(name=name)) if contract.has_repr_text(value) else None
        if isinstance(probe, protocol.ProgramError):
            if isinstance(value, str) and value.startswith("<module "):
                return ..., 0
            raise NotJson("it is or has something that is no plain value, such as a function")
        return value, size

    async def _value(self, code: str) -> protocol.CodeCompleted | protocol.ProgramError:
        """The value of code that makes no calls."""
        found = await self._request(protocol.feed_request(code, {}, unchecked=True))
        if isinstance(found, protocol.NameLookup):
            found = await self._request(protocol.UNDEFINED_REQUEST)
        if isinstance(found, protocol.CodeCompleted):
            return found
        if isinstance(found, protocol.CodeRaised):
            return found.error
        raise WorkerGone

    def _clipped(self, text: str) -> str:
        clip = OutputClip(self._plan.limits.error)
        clip.add(text.encode(errors="replace"))
        return clip.shown().text.strip()


def find_limit(said: str) -> LimitName | None:
    """The limit in an error of the sandbox. A program that raises the same error is believed."""
    if _OUT_OF_TIME.match(said):
        return "time"
    if said.startswith("MemoryError: memory limit exceeded"):
        return "memory"
    if said.startswith("RuntimeError: suspension limit"):
        return "calls"
    return "recursion" if said.startswith("RecursionError") else None


# ---- the plan of a program ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPlan:
    """A program before its start."""

    source: str
    digest: str
    stubs: dict[str, Stub]
    """By their names in programs."""
    variables: dict[str, Any]
    limits: contract.ProgramLimits
    seed: str
    """Of its random numbers."""


def make_plan(
    source: object, stubs: Sequence[Stub], variables: dict[str, Any], limits: contract.ProgramLimits, seed: str
) -> ProgramPlan:
    """The plan for a program; `InvalidArgument` for invalid inputs."""
    if not isinstance(source, str):
        raise InvalidArgument("source", source, "the text of a program")
    by_name = {stub.name: stub for stub in stubs}
    if len(by_name) != len(stubs):
        raise InvalidArgument("tools", [stub.name for stub in stubs], "functions with different names")
    known = {name: value for name, value in variables.items() if name not in by_name}
    for name in known:
        if not name.isidentifier():
            raise InvalidArgument("globals", name, "names of variables")
    try:
        values, _ = to_json(known, limits.variables)
    except NotJson as reason:
        raise InvalidArgument("globals", sorted(known), f"plain values within the limit ({reason})") from None
    digest = program_digest(source.encode(errors="replace").decode(), values, seed)
    return ProgramPlan(
        source=source, digest=digest, stubs=by_name, variables=values, limits=limits, seed=f"{digest}:{seed}"
    )


def check_plan(plan: ProgramPlan) -> ProgramFailure | LimitHit | None:
    """The failure of a program that can't begin; None if it can."""
    try:
        size = len(plan.source.encode())
    except UnicodeEncodeError:
        said = "The program is not valid Unicode: it has half of a surrogate pair in it."
        return ProgramFailure(said, "check", "", None)
    if size > plan.limits.source:
        return LimitHit("source", contract.describe_limit("source", plan.limits), "")
    return None


# ---- the sandbox ----

MAX_PROGRAMS: Final = 64
"""Most programs of one sandbox with a process at a time."""
PARK_AFTER: Final = 0.5
"""Seconds after which a waiting program may lose its process to another: a restart takes time."""
_FULL_PAUSE: Final = 0.05
"""Seconds between attempts to get a process in a full sandbox."""
_DEFAULTS: Final = contract.ProgramLimits()


class MontySandbox:
    """Runs programs in Monty.

    Raises `ProgramsUnavailable` if programs can't be confined. Only ``unsafe=True`` runs the worker without bubblewrap;
    even then, the interpreter itself has no access to files, network or other processes.
    """

    def __init__(self, *, unsafe: bool = False, max_programs: int = MAX_PROGRAMS) -> None:
        if type(unsafe) is not bool:
            raise InvalidArgument("unsafe", unsafe, "True or False")
        self._most = check_int("max_programs", max_programs, least=1)
        require_programs(confined=not unsafe)
        self._confined = not unsafe
        self._launchers: dict[int, Launcher] = {}
        self._programs: dict[MontyProgram, None] = {}
        """Programs with a worker, in the order of its start."""
        self._leaving: set[Worker] = set()
        """Workers that have not completely ended."""
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(
        self,
        source: str,
        *,
        tools: Sequence[Stub] = (),
        globals: Mapping[str, Any] | None = None,
        limits: contract.ProgramLimits | None = None,
        seed: str = "",
    ) -> MontyProgram:
        if self._closed:
            raise ProgramOver("its sandbox was closed")
        bounds = limits or _DEFAULTS
        plan = make_plan(source, tuple(tools), dict(globals or {}), bounds, seed)
        return MontyProgram(plan, partial(self._start_worker, memory=bounds.memory), self._programs)

    async def close(self) -> None:
        self._closed = True
        for program in tuple(self._programs):
            await program.close()
        for worker in tuple(self._leaving):
            await worker.end()
        while self._launchers:
            self._launchers.popitem()[1].close()

    async def _start_worker(self, program: MontyProgram, memory: int, printed: Callable[[bytes], None]) -> Worker:
        if self._closed:
            raise ProgramOver("its sandbox was closed")
        if len(self._programs) >= self._most:
            # A program may wait for its host for long, even for the end of this new program.
            idle = max(self._programs, key=MontyProgram.waited)
            if idle.waited() < PARK_AFTER:
                raise SandboxFull(self._most)
            idle.park()
        launcher = self._launchers.get(memory)
        if launcher is None or not launcher.fits():
            launcher = self._launchers[memory] = Launcher(memory, confined=self._confined)
        self._programs[program] = None  # reserves the place while the worker starts
        try:
            made = await spawn_in_thread(launcher)
        except BaseException:
            self._programs.pop(program, None)
            raise
        worker = Worker(made, memory, printed, self._leaving.discard)
        self._leaving.add(worker)
        return worker


class MontyProgram:
    """One program in its own worker, which ends with it.

    In a full sandbox, a program that has waited for a while gives its worker up. Its next answer replays it in a new
    one.
    """

    def __init__(
        self, plan: ProgramPlan, start: Callable[..., Awaitable[Worker]], running: dict[MontyProgram, None]
    ) -> None:
        self.digest = plan.digest
        self._plan = plan
        self._start = start
        self._all = running
        self._state: Literal["new", "running", "waiting", "parked", "over"] = "new"
        self._asked: tuple[str, ...] = ()
        """Calls without a result."""
        self._since = 0.0
        """Begin of its wait."""
        self._worker: Worker | None = None
        self._execution = ProgramExecution(plan)

    async def run(self, recorded: Sequence[CallResult] = (), *, begun: bool = False) -> ProgramStep:
        self._expect("new", "it was run already")
        refused = check_plan(self._plan)
        if refused is not None:
            self._state = "over"
            return refused
        return await self._replay(recorded, begun=begun)

    async def _replay(self, recorded: Sequence[CallResult], *, begun: bool) -> ProgramStep:
        """Replay to the first step without a result."""
        try:
            return await self._begin(recorded, begun=begun)
        except WrongGuess:
            if self._worker is not None:
                await self._worker.end()
            self._check_open()
            self._state = "new"
            self._execution = ProgramExecution(self._plan, ahead=False)
            return await self._begin(recorded, begun=begun)

    async def _begin(self, recorded: Sequence[CallResult], *, begun: bool) -> ProgramStep:
        before, self._state = self._state, "running"
        try:
            worker = await self._start(self, printed=self._execution.printed.add)
        except SandboxFull:
            self._state = before
            raise
        except BaseException:
            self._state = "over"
            raise
        self._worker = worker
        if self._state != "running":  # closed meanwhile
            await self.close()
            raise ProgramOver("it was closed")
        return await self._take_step(worker, self._execution.start(worker, tuple(recorded), begun=begun))

    async def answer(self, results: Sequence[CallResult]) -> ProgramStep:
        if self._state != "parked":
            self._expect("waiting", "it does not wait for an answer")
        worker = self._require_worker()
        if not results:
            raise AnswerRefused("", "there is none")
        self._execution.calls.check_answers(results)
        if self._state == "parked":
            return await self._replay_parked(results)
        return await self._take_step(worker, self._execution.answer(results))

    def waited(self) -> float:
        """Seconds that its worker has waited for an answer; negative while it works."""
        return time.monotonic() - self._since if self._state == "waiting" else -1.0

    def park(self) -> None:
        self._state = "parked"
        self._require_worker().kill()
        self._all.pop(self, None)

    async def _replay_parked(self, results: Sequence[CallResult]) -> ProgramStep:
        """Continue in a new worker, without repeating earlier calls."""
        known = frozenset(self._asked)
        given = (*self._execution.calls.given, *results)
        self._execution = ProgramExecution(self._plan)
        self._state = "running"
        while True:
            try:
                step = await self._replay(given, begun=True)
                break
            except SandboxFull:  # another program soon ends, or can soon be parked
                await asyncio.sleep(_FULL_PAUSE)
                self._check_open()
        if not isinstance(step, PendingCalls):
            return step
        return PendingCalls(tuple(call for call in step.calls if call.id not in known), step.waiting)

    async def close(self) -> None:
        self._state = "over"
        if self._worker is not None:
            await self._worker.end()
        self._all.pop(self, None)

    async def _take_step(self, worker: Worker, going: Awaitable[ProgramStep]) -> ProgramStep:
        self._state = "running"
        try:
            step = await going
        except WrongGuess:
            self._all.pop(self, None)
            raise
        except BaseException as error:
            closed = worker.closed
            await self.close()
            if closed and isinstance(error, WorkerFailed):  # killed during its start
                raise ProgramOver("it was closed") from error
            raise
        if self._state != "running":  # closed meanwhile
            raise ProgramOver("it was closed")
        if isinstance(step, PendingCalls):
            self._state = "waiting"
            self._asked = step.waiting
            self._since = time.monotonic()
        else:
            self._state = "over"
            worker.kill()
            self._all.pop(self, None)
        return step

    def _expect(self, state: str, otherwise: str) -> None:
        if self._state == "over":
            raise ProgramOver("it has ended")
        if self._state != state:
            raise ProgramOver(otherwise if self._state != "running" else "a step of it is under way")

    def _check_open(self) -> None:
        if self._state == "over":
            raise ProgramOver("it was closed")

    def _require_worker(self) -> Worker:
        if self._worker is None:
            raise ProgramOver("it was never run")
        return self._worker


async def replay(
    sandbox: Sandbox,
    source: str,
    results: Sequence[CallResult],
    *,
    tools: Sequence[Stub] = (),
    globals: Mapping[str, Any] | None = None,
    limits: contract.ProgramLimits | None = None,
    seed: str = "",
) -> ProgramStep:
    """The step that a program reaches with these recorded results. Performs nothing and leaves nothing running."""
    program = await sandbox.start(source, tools=tools, globals=globals, limits=limits, seed=seed)
    try:
        return await program.run(results)
    finally:
        await program.close()
