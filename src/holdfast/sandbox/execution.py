"""One program in one worker, from its check to its end."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors.programs import WorkerFailed
from holdfast.hands.shell.cutting import Clip
from holdfast.sandbox import requests
from holdfast.sandbox.answering import LARGE, made, settled, short, system_answer
from holdfast.sandbox.carrying import kept_of
from holdfast.sandbox.course import Course
from holdfast.sandbox.events import (
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
from holdfast.sandbox.launching import RUNTIME
from holdfast.sandbox.limits import told
from holdfast.sandbox.sealing import Place, seal
from holdfast.sandbox.steps import Ended, Failed, LimitHit
from holdfast.sandbox.stubs import bound, stub_source
from holdfast.sandbox.values import NotPlain, plain, too_large
from holdfast.sandbox.wire import Malformed
from holdfast.sandbox.workers import WorkerGone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.sandbox.events import Event
    from holdfast.sandbox.limits import ProgramLimits
    from holdfast.sandbox.plans import Plan
    from holdfast.sandbox.steps import Calls, Kept, Limit, Phase, Result, Step
    from holdfast.sandbox.tracebacks import Thrown
    from holdfast.sandbox.workers import Worker

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


def bounds(limits: ProgramLimits, *, replaying: bool) -> requests.Bounds:
    """The limits as a worker takes them: every one of them is set."""
    more = _REPLAYING if replaying else 1.0
    return requests.Bounds(
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
        self._clip = Clip(plan.limits.output)
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
                self._course, self._clip = Course(self._plan.digest), Clip(self._plan.limits.output)
            self._course.give(results)
            # One that was begun before passed its check then.
            unchecked = begun or bool(results)
            begin = partial(requests.feed, self._plan.source, self._plan.variables, unchecked=unchecked)
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
            dumped = await self._said(requests.DUMP)
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
            ready = await self._said(requests.configure(self._limits, stubs, self._plan.seed))
        except WorkerGone as gone:
            raise WorkerFailed("it did not answer" if gone.timed_out else "it ended at once") from gone
        if not isinstance(ready, Ready):
            raise WorkerFailed(ready.message[:300] if isinstance(ready, Fatal) else "it does not want to begin")
        self._seconds = self._limits.turn_seconds + _GRACE

    async def _loaded(self, opened: tuple[Place, bytes]) -> bool:
        place, state = opened
        await self._go(requests.load(state))
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
                await self._go(requests.UNDEFINED if stub is None else requests.function(stub.name))
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
            await self._go(requests.deferred(number))
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
            return requests.refused(number, "NameError", f"name '{called.name}' is not defined")
        room = self._plan.limits.value
        try:
            if called.args is None:
                raise too_large(room)
            given = bound(stub, called.args, called.kwargs)
            if isinstance(given, str):
                return requests.refused(number, "TypeError", given)
            return stub.tool, plain(given, room)[0]
        except NotPlain as reason:
            said = f"the arguments of {stub.name}() can't be sent: {reason}"
            return requests.refused(number, "TypeError", said)

    async def _system(self, asked: System) -> Calls | LimitHit | None:
        number, course = asked.number, self._course
        paused = asked.name in {"sleep", "pause"}
        if not asked.name or (paused and not 0 <= asked.seconds < 2**33):
            wrong = requests.refused(number, "ValueError", "a pause must be a number of seconds")
            await self._go(wrong if paused else requests.not_handled(number))
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
            await self._go(requests.deferred(number))
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
        found = await self._said(requests.feed(code, {}, unchecked=True))
        if isinstance(found, Lookup):
            found = await self._said(requests.UNDEFINED)
        if isinstance(found, Completed):
            return found
        if isinstance(found, Threw):
            return found.error
        raise WorkerGone

    def _printed(self) -> str:
        return self._clip.shown().text

    def _clipped(self, text: str) -> str:
        clip = Clip(self._plan.limits.error)
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
