"""The programs of one turn: what they begin with, what they left, and how one of them may end the turn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.effects.replay import Begin
from holdfast.messages import ToolCall
from holdfast.policy.limits import Used, running
from holdfast.policy.subject import CLEAN
from holdfast.records import Done, ErrorInfo
from holdfast.runtime.program_words import SKIPPED
from holdfast.runtime.stopped import made_by, stopped_program
from holdfast.turns import Results, keys
from holdfast.turns.answers import result_of
from holdfast.turns.background import started
from holdfast.turns.programs import KEPT, PROGRAM, STOPPED, decode_left, finish_of, is_finish, out_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from holdfast.agent import Agent
    from holdfast.effects.performer import Performer
    from holdfast.messages import ToolResult
    from holdfast.policy.limits import OutOf
    from holdfast.policy.subject import Taint
    from holdfast.records import Record
    from holdfast.runtime.call import Call
    from holdfast.runtime.carrying import Carrying
    from holdfast.runtime.program_run import ProgramRun
    from holdfast.runtime.recording import Recorder
    from holdfast.runtime.surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class Means:
    """What a program of a turn works with."""

    around: Surroundings
    agent: Agent
    performer: Performer
    recorder: Recorder
    carrying: Carrying
    room: Callable[[Used, Used], Awaitable[OutOf | None]]
    """The limit that leaves no room for what lies ahead, after what the batch has used."""


class Programs:
    """Runs the programs of one turn, and remembers what they mean for it."""

    def __init__(self, means: Means, variables: dict[str, Any]) -> None:
        self.variables = variables
        """What the programs so far have left."""
        self.taint: Taint = CLEAN
        self.used = Used()
        """What the programs of the batch have used."""
        self.polled = False
        self.answer: str | None = None
        """The words with which one of them ended the turn."""
        self.out: OutOf | None = None
        """The limit that ended the turn in one of them."""
        self._means = means
        self._batch: list[Call] = []
        self._running: ProgramRun | None = None

    # ---- one batch ----

    def begin(self, batch: list[Call], taint: Taint) -> None:
        """A batch begins; `taint` is what the turn has taken in before."""
        self.taint, self.used, self.polled, self.answer, self.out = taint, Used(), False, None, None
        self._batch = batch

    def take(self, call: Call) -> None:
        """Make a program of a call, if it is one."""
        if call.call.name != PROGRAM:
            return
        call.program = True
        if call.result is not None or call.tool is None:
            return
        past = self._means.performer.past
        call.stopped = lambda now: stopped_program(call.key, call.asked, now, made_by(past, call.key), ())

        async def run(source: str) -> object:
            from holdfast.runtime.program_run import ProgramRun  # noqa: PLC0415  only where it is needed

            self._running = program = ProgramRun(self._means, self, call, source)
            call.stopped = program.stopped
            return await program.run()

        call.tool = replace(call.tool, function=run)

    def pass_over(self, group: list[Call]) -> None:
        """Before a group of calls: take in what is recorded of programs, and refuse what comes after the end."""
        for call in group:
            if call.program and call.result is not None:
                self._recall(call)
            elif call.result is None and self.over:
                call.refused = ErrorInfo(STOPPED, SKIPPED)
                call.decision = Begin(intent=False)

    @property
    def over(self) -> bool:
        """Whether one of them ended the turn."""
        return self.answer is not None or self.out is not None

    def results(self, results: tuple[ToolResult, ...]) -> Results:
        """What the batch came to."""
        return Results(results, self.used, self.polled, self.answer, self.out)

    def _recall(self, call: Call) -> None:
        """A program whose end is recorded is not run again."""
        performer = self._means.performer
        found = performer.settled_below(call.key)
        performer.took(name for name, _ in found)
        for name, recorded in found:
            parsed = keys.parse(name)
            outcome = recorded.outcome
            if parsed is not None and parsed.nested and outcome is not None:
                result = result_of(ToolCall("", keys.tool_of(name), {}), outcome)
                self.heard(name, result)
                self._means.carrying.spilled += started(result)
            elif isinstance(outcome, Done) and name == f"{call.key}{KEPT}":
                self.variables = decode_left(bytes(outcome.value)).after(self.variables)
            elif isinstance(outcome, Done) and is_finish(name):
                self.answer = finish_of(outcome)
        if call.outcome is not None:
            self.out = self.out or out_of(call.outcome)  # those after the one that it ended in were not begun

    # ---- from a program under way ----

    async def room(self, calls: int, background: int) -> OutOf | None:
        """The limit that leaves no room for so many calls that are under way, or about to begin, in a program."""
        ended = sum(call.result is not None for call in self._batch)
        within = self.used + Used(tool_calls=ended) if ended else self.used
        return await self._means.room(within, running(calls + len(self._batch) - ended, background))

    def heard(self, key: str, result: ToolResult) -> None:
        """A program got this result: what comes after may depend on it."""
        agent = self._means.agent
        self.used += Used(tool_calls=1, background=int(started(result)))
        self.polled = self.polled or result.name in agent.rules.polling
        if agent.wary:
            self.taint = self._means.carrying.taint_after(agent, self.taint, [(key, result)])

    def left_over(self, now: int) -> Iterator[Record]:
        """Questions and pauses of a program under way that nobody waits for when the turn is stopped."""
        if self._running is not None:
            yield from self._running.unanswered(now)
