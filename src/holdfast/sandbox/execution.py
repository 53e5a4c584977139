"""One program in one worker, from its check to its end."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import re
from collections import deque
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.effects.canonical import canonical_json, digest_of_bytes
from holdfast.effects.canonical import digest as digest_of
from holdfast.errors import InvalidArgument
from holdfast.errors.caller import AnswerRefused, ProgramDiverged
from holdfast.errors.world import WorkerFailed
from holdfast.sandbox import protocol, wire
from holdfast.sandbox.contract import (
    MOST_BYTES,
    Calls,
    Ended,
    Failed,
    HostCall,
    Kept,
    LimitHit,
    Raised,
    Returned,
    call_id,
    told,
)
from holdfast.sandbox.protocol import (
    OUT_OF_MEMORY,
    SUSPENDED,
    Called,
    Completed,
    Dumped,
    Fatal,
    Lookup,
    Ready,
    Rejected,
    System,
    Threw,
    Waits,
    event,
    unwanted,
)
from holdfast.sandbox.sealing import Place, seal
from holdfast.sandbox.stubs import bound, stub_source
from holdfast.sandbox.tracebacks import Thrown
from holdfast.sandbox.values import NotPlain, has_lookalike, plain, too_large
from holdfast.sandbox.wire import Malformed
from holdfast.sandbox.worker import RUNTIME, WorkerGone
from holdfast.toolkits.shell.run import OutputClip

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence

    from holdfast.sandbox.contract import CallKind, Limit, Outcome, Phase, ProgramLimits, Result, Sandbox, Step
    from holdfast.sandbox.protocol import Event
    from holdfast.sandbox.stubs import Stub
    from holdfast.sandbox.worker import Worker

    Ask = Callable[[str], Awaitable[Completed | Thrown]]
    """What a piece of code comes to, after the program."""


_encode: Final = msgspec.json.Encoder(order="sorted").encode
_START: Final = b"\0" * 32


def program_digest(source: str, variables: dict[str, Any], seed: str) -> str:
    """What a program is: its source, the variables it begins with, and the seed of its random numbers."""
    return digest_of("program", {"source": source, "variables": variables, "seed": seed})


def call_digest(kind: CallKind, name: str, arguments: dict[str, Any]) -> str:
    """What a call asks for; its arguments are plain JSON already."""
    return digest_of_bytes("program-call", canonical_json((kind, name, arguments)))


class Course:
    """One program's calls and results, in order."""

    __slots__ = (
        *("_by_id", "_chain", "_digests", "_given", "_linked", "_new", "_numbers", "_ordinal", "_prefix", "_queue"),
        "_waiting",
    )

    def __init__(self, program: str) -> None:
        self._prefix = call_id(program, 0)[:-1]
        self._ordinal = 0
        self._waiting: dict[int, HostCall] = {}  # in the order in which they were made
        self._numbers: dict[str, int] = {}
        self._new: list[HostCall] = []
        self._by_id: dict[str, Outcome] = {}
        self._digests: dict[str, str] = {}
        self._queue: deque[str] = deque()
        self._given: list[Result] = []
        self._chain = _START
        self._linked = 0

    # ---- calls ----

    @property
    def made(self) -> int:
        """How many calls there were."""
        return self._ordinal

    def call(self, number: int, kind: CallKind, name: str, arguments: dict[str, Any]) -> HostCall:
        """The call to which the sandbox gave `number`; `ProgramDiverged` if its record is about another one."""
        known = self._waiting.get(number)  # a snapshot was taken at this very call
        if known is not None:
            return known
        digest = call_digest(kind, name, arguments)
        made = HostCall(f"{self._prefix}{self._ordinal}", kind, name, arguments, digest)
        recorded = self._digests.pop(made.id, "")
        if recorded and recorded != made.digest:
            asked = f"{name} with arguments of the digest {made.digest[:12]}"
            raise ProgramDiverged(made.id, f"a call of the digest {recorded[:12]}", asked)
        self._ordinal += 1
        self._waiting[number] = made
        self._numbers[made.id] = number
        if made.id not in self._by_id:
            self._new.append(made)
        return made

    def waits(self, number: int) -> bool:
        """Whether the call to which the sandbox gave `number` was made and has no result."""
        return number in self._waiting

    @property
    def waiting(self) -> bool:
        """Whether any call has no result."""
        return bool(self._waiting)

    def only(self, number: int) -> bool:
        """Whether no other call waits for its result, given or not."""
        return len(self._waiting) == 1 and number in self._waiting

    # ---- results ----

    def give(self, results: Iterable[Result]) -> None:
        """Results in their order, from a record or from the host."""
        for result in results:
            if result.id in self._by_id:
                raise AnswerRefused(result.id, "it was given twice")
            if not result.id.startswith(self._prefix):
                raise AnswerRefused(result.id, "it is a call of another program")
            self._by_id[result.id] = result.outcome
            if result.digest:
                self._digests[result.id] = result.digest
            self._queue.append(result.id)
            self._given.append(result)

    @property
    def given(self) -> Sequence[Result]:
        """All results that were given, in their order."""
        return self._given

    def check_answers(self, results: Sequence[Result]) -> None:
        """`AnswerRefused` for answers to anything but calls that wait."""
        seen: set[str] = set()
        for result in results:
            number = self._numbers.get(result.id)
            if number is None or result.id in self._by_id or result.id in seen:
                raise AnswerRefused(result.id, "no such call waits for an answer")
            call = self._waiting[number]
            if result.digest and result.digest != call.digest:
                raise AnswerRefused(result.id, f"it is the answer to another call than that of {call.name}")
            check_outcome(call, result.outcome)
            check_plain(result)
            seen.add(result.id)

    def at_once(self, number: int) -> Outcome | None:
        """The result of a call that can't wait, if it was given."""
        call = self._waiting[number]
        outcome = self._by_id.pop(call.id, None)
        if outcome is not None:
            check_outcome(call, outcome)
            self._settle(number, call.id)
        return outcome

    def next(self, pending: Container[int]) -> tuple[int, Outcome] | None:
        """The next result for one of the calls that are `pending`, by the sandbox's number."""
        while self._queue:
            found = self._queue[0]
            number = self._numbers.get(found)
            if number is None and found in self._by_id and self._ordinal_of(found) >= self._ordinal:
                raise ProgramDiverged(found, "a result of this call", "nothing: the call was not made")
            self._queue.popleft()
            outcome = self._by_id.pop(found, None)
            if number is None or outcome is None:
                continue  # it was answered at once
            self._settle(number, found)
            if number in pending:  # else nobody waits for it any more
                return number, outcome
        return None

    def coming(self, after: int) -> Outcome | None:
        """The recorded result of the call that is made after so many others, if it is the next but as many as well."""
        if after >= len(self._queue):
            return None
        found = self._queue[after]
        return self._by_id.get(found) if found == f"{self._prefix}{self._ordinal + after}" else None

    def _settle(self, number: int, call: str) -> None:
        del self._waiting[number], self._numbers[call]

    def answered(self) -> bool:
        """At the end of a program: whether all of its calls have an answer, also those that nobody awaited."""
        self.next(())
        return not self._waiting

    def finish(self) -> None:
        """When a program has ended or raised; `ProgramDiverged` for results of calls that it never made."""
        for found in self._queue:
            if found in self._by_id and self._ordinal_of(found) >= self._ordinal:
                raise ProgramDiverged(found, "a result of this call", "nothing: the program ended before it")

    # ---- steps and places ----

    def ask(self) -> Calls:
        """What the host is asked for now: all new calls."""
        new, self._new = tuple(self._new), []
        return Calls(new, tuple(call.id for call in self._waiting.values() if call.id not in self._by_id))

    @property
    def settled(self) -> bool:
        """Whether every result that was given has been used: only then can the place be found again."""
        return not self._by_id

    def mark(self) -> tuple[int, int, str, dict[int, HostCall]]:
        """The number of the next call, the results given, their digest, and the calls that wait."""
        for result in self._given[self._linked :]:  # only now: without snapshots nobody needs it
            self._chain = _linked(self._chain, result)
        self._linked = len(self._given)
        return self._ordinal, self._linked, self._chain.hex(), dict(self._waiting)

    def resume(self, place: Place, results: Sequence[Result]) -> bool:
        """Go to the place of a snapshot; False, with nothing changed, if it had other results than these."""
        if place.given > len(results):
            return False
        chain = _START
        for result in results[: place.given]:
            chain = _linked(chain, result)
        if chain.hex() != place.chain:
            return False
        self._ordinal, self._chain, self._linked = place.ordinal, chain, place.given
        self._given = list(results[: place.given])
        self._waiting = dict(place.waiting)
        self._numbers = {call.id: number for number, call in place.waiting.items()}
        self.give(results[place.given :])
        self._new = [call for call in self._waiting.values() if call.id not in self._by_id]
        return True

    def _ordinal_of(self, call: str) -> int:
        number = call.removeprefix(self._prefix)
        return int(number) if number.isascii() and number.isdigit() else self._ordinal


def check_outcome(call: HostCall, outcome: Outcome) -> None:
    """`AnswerRefused` for an answer of a kind that this call does not have."""
    if call.kind != "clock" or isinstance(outcome, Raised):
        return
    value = outcome.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**33:
        raise AnswerRefused(call.id, "the clock is answered with seconds since 1970")


def check_plain(result: Result) -> None:
    """`AnswerRefused` for an answer that JSON has no word for: it could not be recorded."""
    if isinstance(result.outcome, Raised):
        return
    try:
        plain(result.outcome.value, MOST_BYTES)
    except NotPlain as reason:
        raise AnswerRefused(result.id, str(reason)) from None


def _linked(chain: bytes, result: Result) -> bytes:
    return hashlib.sha256(b"%b%b\n%b" % (chain, result.id.encode(), _encode(result.outcome))).digest()


LARGE: Final = 65536
"""A message of more bytes is read and written in a thread: that may take a while."""
_SHORT: Final = 512
"""An answer of more bytes is not sent ahead: no pipe may ever be full of them."""
_SCALARS: Final = frozenset((str, int, float, bool, type(None)))
_CONTAINERS: Final = (list, dict, tuple)


def short(number: int, outcome: Outcome) -> bytes | None:
    """The answer to a call, if it is a plain and short one."""
    if isinstance(outcome, Returned) and isinstance(outcome.value, _CONTAINERS):
        return None
    try:
        answer = protocol.settled(number, outcome)
    except TypeError:  # it is told when it is its turn
        return None
    return answer if len(answer) <= _SHORT else None


async def settled(number: int, outcome: Outcome) -> bytes:
    """The answer to a call. `AnswerRefused` for a value that no program can have."""
    try:
        if isinstance(outcome, Raised) or type(outcome.value) in _SCALARS:
            return protocol.settled(number, outcome)
        return await made(partial(protocol.settled, number, outcome), outcome.value)
    except TypeError as error:
        raise AnswerRefused(str(number), str(error)) from None


async def made(request: Callable[[], bytes], value: object) -> bytes:
    """A request with this value in it. A large one is written in a thread: that may take a while."""
    if isinstance(value, _CONTAINERS) and len(msgspec.json.encode(value)) > LARGE:
        return await asyncio.to_thread(request)
    return request()


def system_answer(asked: System, outcome: Outcome) -> bytes:
    """The answer to something of the system that can't wait."""
    number = asked.number
    if isinstance(outcome, Raised):
        return protocol.refused(number, outcome.kind, outcome.message)
    if asked.name == "sleep":
        return protocol.answered(number, None)
    seconds = float(outcome.value)
    if asked.name == "time":
        return protocol.answered(number, seconds)
    now = dt.datetime.fromtimestamp(seconds, dt.UTC)
    if asked.name == "today":
        return protocol.answered_with(number, wire.day(now.date()))
    if asked.offset is None:
        return protocol.answered_with(number, wire.moment(now.replace(tzinfo=None), None))
    there = now.astimezone(dt.timezone(dt.timedelta(seconds=asked.offset)))
    return protocol.answered_with(number, wire.moment(there, asked.zone))


MAX_NAMES: Final = 1_000
"""How many variables live on."""
_NAME: Final = 200
_TOLD: Final = 50
_PROBE: Final = "import json as _hf_json\n_hf_json.dumps({name})\n''"


async def kept_of(ask: Ask, taken: Container[str], limits: ProgramLimits) -> Kept | None:
    """The variables of a program that has ended; None if they can't be read. `taken` are the names of tools."""
    found = await ask("list(locals())")
    if isinstance(found, Thrown):
        return None
    listed = cast("list[object]", found.value) if isinstance(found.value, list) else []
    names = sorted({name for name in listed if isinstance(name, str)})
    return await _kept(ask, [name for name in names if name not in taken and _lives_on(name)], limits)


def _lives_on(name: str) -> bool:
    return not name.startswith("_") and len(name) <= _NAME and name.isidentifier()


async def _kept(ask: Ask, names: list[str], limits: ProgramLimits) -> Kept:
    values: dict[str, Any] = {}
    dropped: dict[str, str] = {}
    room = limits.variables
    for n, name in enumerate(names):
        if n >= MAX_NAMES:
            dropped["..."] = f"more than {MAX_NAMES:,} variables"
            break
        try:
            value, size = plain(await _value(ask, name, room), room)
            if has_lookalike(value):
                await _check_json(ask, name, value)
        except NotPlain as reason:
            if reason.args and len(dropped) < _TOLD:
                dropped[name] = str(reason)
            continue
        values[name] = value
        room -= size
    return Kept(values, dropped)


async def _value(ask: Ask, name: str, room: int) -> object:
    found = await ask(name)
    if isinstance(found, Thrown):
        raise NotPlain(found.summary()[:_NAME])
    if found.too_large:
        raise too_large(room)
    return found.value


async def _check_json(ask: Ask, name: str, value: object) -> None:
    """What arrived as a text may be a function: the sandbox itself knows. Nobody is told of modules."""
    if not isinstance(await ask(_PROBE.format(name=name)), Thrown):
        return
    if isinstance(value, str) and value.startswith("<module "):
        raise NotPlain
    raise NotPlain("it is or has something that is no plain value, such as a function")


START_SECONDS: Final = 20.0
"""How long a worker may take to come up."""
_GRACE: Final = 5.0
"""How long a worker may take to stop by itself what is over its time, before it is killed."""
_REPLAYING: Final = 4.0
"""How much more time a program gets when its results are recorded: this machine may be the slower one."""
_LEAVING: Final = 0.1
"""How long a worker that says nothing any more may take to end by itself, in seconds."""
_AHEAD: Final = 32
"""How many answers of a record are sent ahead of the calls."""
_NOT_THERE: Final = "NotImplementedError: The monty syntax parser does not yet support"
"""What is said of syntax that the sandbox does not have, before the program runs."""
_OUT_OF_TIME: Final = re.compile(r"TimeoutError: (\w+ )?time limit exceeded: \S+ > ")
"""What the sandbox says; the words of a tool that ran out of its own time come after a name."""


def bounds(limits: ProgramLimits, *, replaying: bool) -> protocol.Bounds:
    """The limits as a worker takes them: every one of them is set."""
    more = _REPLAYING if replaying else 1.0
    return protocol.Bounds(
        memory=limits.memory,
        recursion=limits.recursion,
        feed_seconds=limits.seconds * more,
        turn_seconds=min(limits.step_seconds, limits.seconds) * more,
        # Each call takes two, and looking up a name takes one.
        suspensions=4 * limits.calls + 1_000,
    )


def sandbox_version() -> str:
    """What programs are run by: a snapshot is good for this one only."""
    return f"monty {metadata.version(RUNTIME)}"


class Mistaken(Exception):
    """An answer was sent ahead that the program should not have got. What it has done since means nothing."""


class Execution:
    """A program at work in a worker.

    A program that is replayed mostly makes one call after the other, each of which it awaits at once. So answers of the
    record are sent `ahead` of the calls: the worker need not wait for each. What it says is looked at all the same,
    call by call, and where it asked for something else its answers are taken back.
    """

    __slots__ = (
        *("_ahead", "_clip", "_course", "_event", "_limits", "_plan", "_room", "_seconds", "_sent", "_suspended"),
        "_worker",
    )

    def __init__(self, plan: Plan, *, ahead: bool = True) -> None:
        self._plan = plan
        self._ahead = _AHEAD if ahead else 0
        self._sent: deque[int] = deque()
        """The calls whose answers were sent ahead, in their order."""
        self._limits = bounds(plan.limits, replaying=False)
        self._seconds = 0.0
        """How long the worker may take for one answer."""
        self._room = plan.limits.value
        self._course = Course(plan.digest)
        self._clip = OutputClip(plan.limits.output)
        self._worker: Worker | None = None
        self._event: Event | None = None
        self._suspended = 0

    def printed(self, text: bytes) -> None:
        """The program printed something."""
        self._clip.add(text)

    # ---- what a host asks for ----

    async def start(
        self, worker: Worker, results: Sequence[Result], opened: tuple[Place, bytes] | None, *, begun: bool = False
    ) -> Step:
        """Begin, at the place of a snapshot if it fits; recorded results are given at once."""
        self._worker = worker
        self._event = None
        if opened is not None and not self._fits(opened[0]):
            opened = None
        await self._configure(replaying=begun or bool(results) or opened is not None)
        try:
            if opened is not None and self._course.resume(opened[0], results):
                if await self._loaded(opened):
                    return await self._driven()
                self._course, self._clip = Course(self._plan.digest), OutputClip(self._plan.limits.output)
            self._course.give(results)
            # One that was begun before passed its check then.
            unchecked = begun or bool(results)
            begin = partial(protocol.feed, self._plan.source, self._plan.variables, unchecked=unchecked)
            await self._go(await made(begin, self._plan.variables))
            return await self._driven()
        except WorkerGone as gone:
            return await self._lost(gone)

    async def answer(self, results: Sequence[Result]) -> Step:
        """Go on with these results, which were checked."""
        self._course.give(results)
        try:
            return await self._driven()
        except WorkerGone as gone:
            return await self._lost(gone)

    @property
    def given(self) -> Sequence[Result]:
        """All results that it was given, in their order."""
        return self._course.given

    def check(self, results: Sequence[Result]) -> None:
        """`AnswerRefused` for answers that nobody waits for."""
        self._course.check_answers(results)

    async def sealed(self, key: bytes) -> bytes | None:
        """The program as it stands, or None where a snapshot would not be worth it."""
        shown = self._clip.shown()
        if not isinstance(self._event, SUSPENDED) or not self._course.settled or shown.left_out:
            return None
        ordinal, given, chain, waiting = self._course.mark()
        place = Place(
            program=self._plan.digest,
            sandbox=sandbox_version(),
            ordinal=ordinal,
            given=given,
            chain=chain,
            waiting=waiting,
            printed=shown.text,
        )
        try:
            dumped = await self._said(protocol.DUMP)
        except WorkerGone:  # the next answer tells
            return None
        return seal(key, place, dumped.state) if isinstance(dumped, Dumped) else None

    # ---- the beginning ----

    def _fits(self, place: Place) -> bool:
        return place.program == self._plan.digest and place.sandbox == sandbox_version()

    async def _configure(self, *, replaying: bool) -> None:
        self._limits = bounds(self._plan.limits, replaying=replaying)
        self._seconds = START_SECONDS
        stubs = stub_source(self._plan.stubs.values(), self._plan.variables)
        try:
            ready = await self._said(protocol.configure(self._limits, stubs, self._plan.seed))
        except WorkerGone as gone:
            raise WorkerFailed("it did not answer" if gone.timed_out else "it ended at once") from gone
        if not isinstance(ready, Ready):
            raise WorkerFailed(ready.message[:300] if isinstance(ready, Fatal) else "it does not want to begin")
        self._seconds = self._limits.turn_seconds + _GRACE

    async def _loaded(self, opened: tuple[Place, bytes]) -> bool:
        place, state = opened
        await self._go(protocol.load(state))
        if isinstance(self._event, Threw):  # it stands where it stood before
            return False
        if not isinstance(self._event, SUSPENDED):
            raise WorkerGone
        self._clip.add(place.printed.encode())
        return True

    # ---- on and on ----

    async def _said(self, request: bytes) -> Event:
        """What the worker says to a request."""
        if self._sent:
            await self._taken_back()
        return await self._heard(request)

    async def _taken_back(self) -> None:
        """The worker did not want what was sent ahead, and says so to each of them. `Mistaken` if it took one."""
        while self._sent:
            self._sent.popleft()
            if not unwanted(await self._heard(b"")):
                raise Mistaken

    async def _heard(self, request: bytes) -> Event:
        if self._worker is None:
            raise WorkerGone
        frame = await self._worker.ask(request, self._seconds)
        try:
            if len(frame) > LARGE:
                return await asyncio.to_thread(event, frame, 4, self._room)
            return event(frame, 4, self._room)
        except Malformed as error:
            raise WorkerGone from error

    async def _go(self, request: bytes) -> None:
        self._event = await self._said(request)

    async def _driven(self) -> Step:
        most = self._limits.suspensions
        while True:
            here = self._event
            if isinstance(here, Called):
                step = await self._tool(here)
            elif isinstance(here, Waits):
                step = await self._wait(here)
            elif isinstance(here, System):
                step = await self._system(here)
            elif isinstance(here, Lookup):
                stub = None if here.routed else self._plan.stubs.get(here.name)
                await self._go(protocol.UNDEFINED if stub is None else protocol.function(stub.name))
                step = None
            elif isinstance(here, Completed) and not self._course.answered():
                step = self._course.ask()
            else:
                return await self._over(here)
            if step is not None:
                if self._sent:  # before anybody does anything about it
                    await self._taken_back()
                return step
            self._suspended += 1
            if self._suspended > most:
                return self._too_many()

    async def _tool(self, called: Called) -> Calls | LimitHit | None:
        course, number = self._course, called.number
        if not course.waits(number):
            arguments = self._arguments(called)
            if isinstance(arguments, bytes):
                await self._go(arguments)
                return None
            course.call(number, "tool", arguments[0], arguments[1])
            if course.made > self._plan.limits.calls:
                return self._too_many()
        if not called.eager or not course.only(number):
            await self._go(protocol.deferred(number))
            return None
        return await self._eagerly(number)

    async def _eagerly(self, number: int) -> Calls | None:
        """Nothing else can happen in the program before this call is settled: its answer is all that is needed."""
        found, sent = self._course.next((number,)), self._sent
        if found is None:
            return self._course.ask()
        if sent and sent[0] == number:
            sent.popleft()
            request = b""
        else:
            if sent:
                await self._taken_back()
            request = await settled(*found)
        if self._ahead and len(sent) <= self._ahead // 2:
            request += self._more(number)
        self._event = await self._heard(request)
        return None

    def _more(self, number: int) -> bytes:
        """Answers of the record to the calls that will come, if the program goes on as it did."""
        sent, more = self._sent, b""
        while len(sent) < self._ahead:
            outcome = self._course.coming(len(sent))
            if outcome is None:
                break
            call = number + len(sent) + 1
            answer = short(call, outcome)
            if answer is None:
                break
            sent.append(call)
            more += answer
        return more

    def _arguments(self, called: Called) -> tuple[str, dict[str, Any]] | bytes:
        """The tool and its arguments, or the refusal of a call that can't be made."""
        number = called.number
        stub = self._plan.stubs.get(called.name)
        if stub is None:
            return protocol.refused(number, "NameError", f"name '{called.name}' is not defined")
        room = self._plan.limits.value
        try:
            if called.args is None:
                raise too_large(room)
            given = bound(stub, called.args, called.kwargs)
            if isinstance(given, str):
                return protocol.refused(number, "TypeError", given)
            return stub.tool, plain(given, room)[0]
        except NotPlain as reason:
            said = f"the arguments of {stub.name}() can't be sent: {reason}"
            return protocol.refused(number, "TypeError", said)

    async def _system(self, asked: System) -> Calls | LimitHit | None:
        number, course = asked.number, self._course
        paused = asked.name in {"sleep", "pause"}
        if not asked.name or (paused and not 0 <= asked.seconds < 2**33):
            wrong = protocol.refused(number, "ValueError", "a pause must be a number of seconds")
            await self._go(wrong if paused else protocol.not_handled(number))
            return None
        if paused:
            made = course.call(number, "sleep", "sleep", {"seconds": asked.seconds})
        else:
            made = course.call(number, "clock", "now", {})
        if made.kind != ("sleep" if paused else "clock"):  # the number is that of a call which waits
            raise WorkerGone
        if course.made > self._plan.limits.calls:
            return self._too_many()
        if asked.eager and course.only(number):
            return await self._eagerly(number)
        if asked.name == "pause":
            await self._go(protocol.deferred(number))
            return None
        outcome = course.at_once(number)
        if outcome is None:
            return course.ask()
        await self._go(system_answer(asked, outcome))
        return None

    async def _wait(self, waits: Waits) -> Calls | None:
        found = self._course.next(waits.pending)
        if found is None:
            if not self._course.waiting:  # nobody would ever answer
                raise WorkerGone
            return self._course.ask()
        await self._go(await settled(*found))
        return None

    # ---- the end ----

    async def _over(self, here: Event | None) -> Step:
        if isinstance(here, Completed):
            return await self._ended(here)
        if isinstance(here, Threw):
            return await self._raised(here.error)
        if isinstance(here, Rejected):
            return self._failed(here.text, "check")
        raise WorkerGone  # it says that it ends, or something that nobody has asked for

    async def _lost(self, gone: WorkerGone) -> Step:
        """The worker is gone: that is a result for whoever wrote the program."""
        which: Limit = "time" if gone.timed_out else "worker"
        worker = self._worker
        if worker is not None and not gone.timed_out and not worker.closed:
            await worker.ended(_LEAVING)
            which = "memory" if worker.status == OUT_OF_MEMORY else "worker"
        return self._stopped(which)

    async def _ended(self, completed: Completed) -> Step:
        self._course.finish()
        try:
            if completed.too_large:
                raise too_large(self._plan.limits.value)
            value, _ = plain(completed.value, self._plan.limits.value)
        except NotPlain as reason:
            said = f"The program ran to its end, but its value can't be taken: {reason}. End with a plainer one."
            return Failed(said, "run", self._printed(), await self._kept())
        return Ended(value, self._printed(), await self._kept())

    def _failed(self, text: str, phase: Phase) -> Failed:
        return Failed(self._clipped(text), phase, self._printed(), None)

    async def _raised(self, error: Thrown) -> Step:
        if error.kind == "SyntaxError":
            return self._failed(error.summary(), "check")
        which = limit_of(error.summary())
        if which is not None:
            return self._stopped(which)
        self._course.finish()
        if not self._course.made and error.summary().startswith(_NOT_THERE):
            return self._failed(error.display(), "check")
        return Failed(self._clipped(error.display()), "run", self._printed(), await self._kept())

    def _too_many(self) -> LimitHit:
        return self._stopped("calls")

    def _stopped(self, which: Limit) -> LimitHit:
        self._event = None
        return LimitHit(which, told(which, self._plan.limits), self._printed())

    async def _kept(self) -> Kept | None:
        """The variables as they are now. None if the worker can't tell any more."""
        self._event = None
        self._room = self._plan.limits.variables
        try:
            return await kept_of(self._value, self._plan.stubs, self._plan.limits)
        except WorkerGone:
            return None

    async def _value(self, code: str) -> Completed | Thrown:
        """What a piece of code comes to. It has nothing to ask for."""
        found = await self._said(protocol.feed(code, {}, unchecked=True))
        if isinstance(found, Lookup):
            found = await self._said(protocol.UNDEFINED)
        if isinstance(found, Completed):
            return found
        if isinstance(found, Threw):
            return found.error
        raise WorkerGone

    def _printed(self) -> str:
        return self._clip.shown().text

    def _clipped(self, text: str) -> str:
        clip = OutputClip(self._plan.limits.error)
        clip.add(text.encode(errors="replace"))
        return clip.shown().text.strip()


def limit_of(said: str) -> Limit | None:
    """The limit that an error of the sandbox tells of. A program that raises the same is taken at its word."""
    if _OUT_OF_TIME.match(said):
        return "time"
    if said.startswith("MemoryError: memory limit exceeded"):
        return "memory"
    if said.startswith("RuntimeError: suspension limit"):
        return "calls"
    return "recursion" if said.startswith("RecursionError") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be run."""

    source: str
    digest: str
    stubs: dict[str, Stub]
    """By what programs call them."""
    variables: dict[str, Any]
    limits: ProgramLimits
    seed: str
    """Of the random numbers."""


def planned(source: object, stubs: Sequence[Stub], variables: dict[str, Any], limits: ProgramLimits, seed: str) -> Plan:
    """The plan for a program; `InvalidArgument` for what no program can begin with."""
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
        values, _ = plain(known, limits.variables)
    except NotPlain as reason:
        raise InvalidArgument("globals", sorted(known), f"plain values within the limit ({reason})") from None
    digest = program_digest(source.encode(errors="replace").decode(), values, seed)
    return Plan(source=source, digest=digest, stubs=by_name, variables=values, limits=limits, seed=f"{digest}:{seed}")


def refusal(plan: Plan) -> Failed | LimitHit | None:
    """How a program ends that is not even begun."""
    try:
        size = len(plan.source.encode())
    except UnicodeEncodeError:
        return Failed("The program is not valid Unicode: it has half of a surrogate pair in it.", "check", "", None)
    if size > plan.limits.source:
        return LimitHit("source", told("source", plan.limits), "")
    return None


async def replay(  # noqa: PLR0913  one keyword for each thing that a program begins with
    sandbox: Sandbox,
    source: str,
    results: Sequence[Result],
    *,
    tools: Sequence[Stub] = (),
    globals: Mapping[str, Any] | None = None,
    limits: ProgramLimits | None = None,
    seed: str = "",
) -> Step:
    """The step that a program reaches with these recorded results. Nothing is performed or left running."""
    program = await sandbox.start(source, tools=tools, globals=globals, limits=limits, seed=seed)
    try:
        return await program.run(results)
    finally:
        await program.close()
