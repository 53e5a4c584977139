"""Programs that models write: what keeps them from being run, and hosts that drive them in a wrong way."""

from __future__ import annotations

from holdfast.errors.tree import UsageError, WorldError


class ProgramsUnavailable(UsageError):
    """No program can be run on this machine, so none is. `reason` says why, `next_step` what helps."""

    def __init__(self, reason: str, next_step: str) -> None:
        super().__init__(f"programs can't be run here: {reason}; {next_step}, or leave code mode out")
        self.reason = reason
        self.next_step = next_step


class ModeUnavailable(UsageError):
    """A turn that began in a mode in which its agent, which has another one now, can't go on. It waits as it is."""

    def __init__(self, turn: str, agent: str, mode: str, reason: str) -> None:
        super().__init__(
            f"the turn {turn!r} began with mode={mode!r} and goes on in it, but {agent!r} can't: {reason}. "
            "Let the agent have what it had, or cancel the turn"
        )
        self.turn = turn
        self.agent = agent
        self.mode = mode
        self.reason = reason


class WorkerFailed(WorldError):
    """The worker for a program did not come up. Nothing of the program was run."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the program was not run, its worker did not start: {reason}; start it again")
        self.reason = reason


class SandboxFull(WorldError):
    """A sandbox has as many programs as it may, and none of them waits for long. Nothing of this one was run."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the program was not run: {limit:,} others of its sandbox are running; start it again when one of them "
            "has ended or waits for long, or give the sandbox a larger max_programs"
        )
        self.limit = limit


class StubsInvalid(UsageError):
    """Tools that a program could not tell apart, or of which no function can be made."""

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"the tool {tool!r} can't be a function in programs: {reason}; give it another name")
        self.tool = tool
        self.reason = reason


class AnswerRefused(UsageError):
    """An answer that the program did not ask for, or that it can't be given."""

    def __init__(self, call: str, reason: str) -> None:
        super().__init__(f"the answer to the call {call!r} is refused: {reason}")
        self.call = call
        self.reason = reason


class ProgramOver(UsageError):
    """A program that has ended, was closed, or was driven in a wrong order."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the program can't go on: {reason}; start it again with the recorded results")
        self.reason = reason


class ProgramDiverged(UsageError):
    """On replay, a program asked for something else than its record has. Nothing new was done."""

    def __init__(self, call: str, recorded: str, asked: str) -> None:
        super().__init__(
            f"the program diverged at the call {call!r}: the record has {recorded}, the program asks for {asked}; "
            "the program, its variables, its tools or the version of its sandbox are not those that were recorded"
        )
        self.call = call
        self.recorded = recorded
        self.asked = asked
