"""One program in one worker, from its check to its end. Blocks: it runs in the worker's own thread.

Only this package's threads import this module, because it loads `pydantic_monty`.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any, Final, cast

import pydantic_monty as monty
from pydantic_monty import FunctionSnapshot as _FunctionSnapshot
from pydantic_monty import FutureSnapshot as _FutureSnapshot
from pydantic_monty import NameLookupSnapshot as _NameLookupSnapshot

from holdfast.errors.programs import WorkerFailed
from holdfast.hands.shell.cutting import Clip
from holdfast.sandbox.carrying import kept_of
from holdfast.sandbox.course import Course
from holdfast.sandbox.limits import told
from holdfast.sandbox.sealing import Place, seal
from holdfast.sandbox.steps import Ended, Failed, LimitHit, Raised
from holdfast.sandbox.stubs import bound, stub_source
from holdfast.sandbox.values import NotPlain, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.sandbox.limits import ProgramLimits
    from holdfast.sandbox.plans import Plan
    from holdfast.sandbox.steps import Calls, Kept, Limit, Outcome, Phase, Result, Step

VERSION: Final = f"monty {monty.__version__}"
_FUTURE: Final[monty.ExternalFuture] = {"future": ...}
_REPLAYING: Final = 4.0
"""How much more time a program gets when its results are recorded: this machine may be the slower one."""
_PAUSES: Final = frozenset(("time.sleep", "asyncio.sleep"))
_NOT_THERE: Final = "NotImplementedError: The monty syntax parser does not yet support"
"""What is said of syntax that the sandbox does not have, before the program runs."""
_OUT_OF_TIME: Final = re.compile(r"TimeoutError: (\w+ )?time limit exceeded: \S+ > ")
"""What the sandbox says; the words of a tool that ran out of its own time come after a name."""
_CLOCKS: Final = frozenset(("time.time", "datetime.now", "date.today"))


def resource_limits(limits: ProgramLimits, *, replaying: bool) -> monty.ResourceLimits:
    """The limits as the sandbox takes them: every one of them is set."""
    more = _REPLAYING if replaying else 1.0
    return {
        "max_feed_duration_secs": limits.seconds * more,
        "max_turn_duration_secs": min(limits.step_seconds, limits.seconds) * more,
        "max_memory": limits.memory,
        "max_recursion_depth": limits.recursion,
        # Each call takes two, and looking up a name takes one.
        "max_suspensions": 4 * limits.calls + 1_000,
        "max_total_sleep_secs": 0.0,
    }


_OS_POLICY: Final[monty.OSPolicy] = {
    "datetime": "call_host",
    "timezone": "utc",
    "sleep": "call_host",
    "process_time": "zero",
}


class Execution:
    """A program at work in a worker."""

    __slots__ = ("_clip", "_course", "_plan", "_pool", "_session", "_snapshot", "_watch")

    def __init__(self, pool: monty.Monty, plan: Plan, watch: Callable[[int | None], None]) -> None:
        self._pool = pool
        self._watch = watch
        self._plan = plan
        self._course = Course(plan.digest)
        self._clip = Clip(plan.limits.output)
        self._session: monty.MontySession | None = None
        self._snapshot: monty.SyncSnapshot | None = None

    # ---- what a host asks for ----

    def start(self, results: Sequence[Result], opened: tuple[Place, bytes] | None, *, begun: bool = False) -> Step:
        """Begin, at the place of a snapshot if it fits; recorded results are given at once."""
        if opened is not None and self._fits(opened[0]) and self._course.resume(opened[0], results):
            loaded = self._loaded(opened)
            if loaded:
                return self._drive()
            self._course, self._clip = Course(self._plan.digest), Clip(self._plan.limits.output)
        self._course.give(results)
        return self._guarded(lambda: self._begin(replaying=begun or bool(results)))

    def answer(self, results: Sequence[Result]) -> Step:
        """Go on with these results, which were checked."""
        self._course.give(results)
        return self._drive()

    def check(self, results: Sequence[Result]) -> None:
        """`AnswerRefused` for answers that nobody waits for."""
        self._course.check_answers(results)

    def sealed(self, key: bytes) -> bytes | None:
        """The program as it stands, or None where a snapshot would not be worth it."""
        snapshot, shown = self._snapshot, self._clip.shown()
        if snapshot is None or isinstance(snapshot, monty.MontyComplete) or not self._course.settled or shown.left_out:
            return None
        ordinal, given, chain, waiting = self._course.mark()
        place = Place(
            program=self._plan.digest,
            sandbox=VERSION,
            ordinal=ordinal,
            given=given,
            chain=chain,
            waiting=waiting,
            printed=shown.text,
        )
        try:
            state = snapshot.dump()
        except monty.MontyError:  # the worker is gone; the next answer tells
            return None
        return seal(key, place, state)

    def close(self) -> None:
        """Give the worker back. It is not used again."""
        session, self._session, self._snapshot = self._session, None, None
        if session is not None:
            session.__exit__(None, None, None)

    # ---- the beginning ----

    def _fits(self, place: Place) -> bool:
        return place.program == self._plan.digest and place.sandbox == VERSION

    def _loaded(self, opened: tuple[Place, bytes]) -> bool:
        place, state = opened
        try:
            session = self._checkout(replaying=True)
            self._snapshot = session.load_snapshot(state, print_callback=self._print)
        except (monty.MontyError, RuntimeError, ValueError):
            self.close()
            return False
        self._clip.add(place.printed.encode())
        return True

    def _begin(self, *, replaying: bool) -> None:
        session = self._checkout(replaying=replaying)
        self._snapshot = session.feed_start(
            self._plan.source,
            inputs=self._plan.variables,
            print_callback=self._print,
            skip_type_check=replaying,  # it passed when it began
        )

    def _checkout(self, *, replaying: bool) -> monty.MontySession:
        policy: monty.OSPolicy = {**_OS_POLICY, "random_start": {"seed": self._plan.seed}}
        session = self._pool.checkout(
            script_name="program.py",
            limits=resource_limits(self._plan.limits, replaying=replaying),
            type_check=True,
            type_check_stubs=stub_source(self._plan.stubs.values(), self._plan.variables),
            type_check_format="concise",
            os_policy=policy,
        )
        try:
            self._session = session.__enter__()
        except (monty.MontyError, OSError, RuntimeError) as error:
            raise WorkerFailed(str(error)[:300]) from error
        self._watch(session.worker_pid)
        return self._session

    def _print(self, _stream: str, text: str) -> None:
        self._clip.add(text.encode(errors="replace"))

    # ---- on and on ----

    def _drive(self) -> Step:
        return self._guarded(lambda: None)

    def _guarded(self, first: Callable[[], None]) -> Step:
        try:
            first()
            return self._driven()
        except monty.MontyTypingError as error:
            return self._failed(error.display(), "check")
        except monty.MontySyntaxError as error:
            return self._failed(error.display("type-msg"), "check")
        except monty.MontyCrashedError as error:
            if error.timed_out:
                return self._stopped("time", told("time", self._plan.limits))
            return self._stopped("worker", told("worker", self._plan.limits))
        except monty.MontyRuntimeError as error:
            return self._raised(error)

    def _driven(self) -> Step:
        while True:
            snapshot = self._snapshot
            if isinstance(snapshot, _FunctionSnapshot):
                step = self._system(snapshot) if snapshot.is_os_function else self._tool(snapshot)
            elif isinstance(snapshot, _FutureSnapshot):
                step = self._wait(snapshot)
            elif isinstance(snapshot, _NameLookupSnapshot):
                step = self._name(snapshot)
            elif not self._course.answered():
                return self._course.ask()
            else:
                return self._ended(cast("monty.MontyComplete", snapshot).output)
            if step is not None:
                return step

    def _tool(self, snapshot: monty.FunctionSnapshot) -> LimitHit | None:
        stub = self._plan.stubs.get(snapshot.function_name)
        if stub is None:
            self._refuse(snapshot, "NameError", f"name '{snapshot.function_name}' is not defined")
            return None
        given = bound(stub, snapshot.args, snapshot.kwargs)
        if isinstance(given, str):
            self._refuse(snapshot, "TypeError", given)
            return None
        try:
            arguments, _ = plain(given, self._plan.limits.value)
        except NotPlain as reason:
            self._refuse(snapshot, "TypeError", f"the arguments of {stub.name}() can't be sent: {reason}")
            return None
        self._course.call(snapshot.call_id, "tool", stub.tool, arguments)
        if self._course.made > self._plan.limits.calls:
            return self._too_many()
        self._snapshot = snapshot.resume(_FUTURE)
        return None

    def _system(self, snapshot: monty.FunctionSnapshot) -> Calls | LimitHit | None:
        name, number = str(snapshot.function_name), snapshot.call_id
        if name in _PAUSES:
            seconds = float(snapshot.args[0])
            if not 0 <= seconds < 2**33:
                self._refuse(snapshot, "ValueError", "a pause must be a number of seconds")
                return None
            self._course.call(number, "sleep", "sleep", {"seconds": seconds})
        elif name in _CLOCKS:
            self._course.call(number, "clock", "now", {})
        else:
            self._snapshot = snapshot.resume_not_handled()
            return None
        if self._course.made > self._plan.limits.calls:
            return self._too_many()
        if name == "asyncio.sleep":
            self._snapshot = snapshot.resume(_FUTURE)
            return None
        outcome = self._course.at_once(number)
        if outcome is None:
            return self._course.ask()
        self._snapshot = snapshot.resume(_system_answer(name, snapshot.args, outcome))
        return None

    def _wait(self, snapshot: monty.FutureSnapshot) -> Calls | None:
        found = self._course.next(snapshot.pending_call_ids)
        if found is None:
            return self._course.ask()
        number, outcome = found
        self._snapshot = snapshot.resume({number: _answer(outcome)})
        return None

    def _name(self, snapshot: monty.NameLookupSnapshot) -> None:
        stub = self._plan.stubs.get(snapshot.variable_name)
        if stub is None or snapshot.object_id is not None:
            self._snapshot = snapshot.resume()
        else:
            self._snapshot = snapshot.resume(value=_Named(stub.name))

    def _refuse(self, snapshot: monty.FunctionSnapshot, kind: monty.ExcType, message: str) -> None:
        self._snapshot = snapshot.resume({"exc_type": kind, "message": message})

    # ---- the end ----

    def _ended(self, output: object) -> Step:
        self._course.finish()
        try:
            value, _ = plain(output, self._plan.limits.value)
        except NotPlain as reason:
            said = f"The program ran to its end, but its value can't be taken: {reason}. End with a plainer one."
            return Failed(said, "run", self._printed(), self._kept())
        return Ended(value, self._printed(), self._kept())

    def _failed(self, text: str, phase: Phase) -> Failed:
        return Failed(self._clipped(text), phase, self._printed(), None)

    def _raised(self, error: monty.MontyRuntimeError) -> Step:
        which = limit_of(error.display("type-msg"))
        if which is not None:
            return self._stopped(which, told(which, self._plan.limits))
        self._course.finish()
        if not self._course.made and error.display("type-msg").startswith(_NOT_THERE):
            return self._failed(error.display(), "check")
        return Failed(self._clipped(error.display()), "run", self._printed(), self._kept())

    def _too_many(self) -> LimitHit:
        return self._stopped("calls", told("calls", self._plan.limits))

    def _stopped(self, which: Limit, text: str) -> LimitHit:
        self._snapshot = None
        return LimitHit(which, text, self._printed())

    def _kept(self) -> Kept | None:
        """The variables as they are now. None if the worker can't tell any more."""
        session = self._session
        self._snapshot = None
        if session is None:
            return None
        return kept_of(session, self._plan.stubs, self._plan.limits)

    def _printed(self) -> str:
        return self._clip.shown().text

    def _clipped(self, text: str) -> str:
        clip = Clip(self._plan.limits.error)
        clip.add(text.encode(errors="replace"))
        return clip.shown().text.strip()


class _Named:
    """Stands for a tool that a program handles as a value. It is never called here."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.__qualname__ = name

    def __call__(self, *_: object) -> None:
        raise AssertionError(self.__name__)


def limit_of(said: str) -> Limit | None:
    """The limit that an error of the sandbox tells of. A program that raises the same is taken at its word."""
    if _OUT_OF_TIME.match(said):
        return "time"
    if said.startswith("MemoryError: memory limit exceeded"):
        return "memory"
    if said.startswith("RuntimeError: suspension limit"):
        return "calls"
    return "recursion" if said.startswith("RecursionError") else None


def _answer(outcome: Outcome) -> monty.ExternalSettledResult:
    if isinstance(outcome, Raised):
        return {"exc_type": outcome.kind, "message": outcome.message}
    return {"return_value": outcome.value}


def _system_answer(name: str, args: tuple[Any, ...], outcome: Outcome) -> monty.ExternalSettledResult:
    if isinstance(outcome, Raised):
        return {"exc_type": outcome.kind, "message": outcome.message}
    if name == "time.sleep":
        return {"return_value": None}
    seconds = float(outcome.value)
    if name == "time.time":
        return {"return_value": seconds}
    zone = args[0] if args else None
    now = dt.datetime.fromtimestamp(seconds, dt.UTC)
    if name == "date.today":
        return {"return_value": now.date()}
    return {"return_value": now.replace(tzinfo=None) if zone is None else now.astimezone(zone)}
