"""A tool call of a turn, or of a task, on its way to its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from holdfast.effects.replay import Decision, Perform
from holdfast.tools.definition import AnyTool, Bound, Complaint
from holdfast.tools.results import error_for_complaint, error_for_malformed_call, error_for_unknown_tool
from holdfast.turns.results import result_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from holdfast.messages import ToolCall, ToolResult
    from holdfast.policy.approvals import Question
    from holdfast.records import EffectRequest, ErrorInfo, Outcome, Record
    from holdfast.tools.context import Context


class Call(msgspec.Struct, eq=False):
    """One call of a batch, on its way to a result."""

    call: ToolCall
    name: str
    """How events name it."""
    key: str
    ask: EffectRequest
    tool: AnyTool | None
    decision: Decision
    intended: bool
    alone: bool
    """Whether it must not run beside others."""
    bound: Bound | None = None
    refused: ErrorInfo | None = None
    result: ToolResult | None = None
    outcome: Outcome | None = None
    """How it ended, with its whole value."""
    waits: tuple[str, ...] = ()
    """What it waits for: a person, or somebody outside."""
    question: tuple[Question, int | None] | None = None
    """What a person was asked about it, and for how many milliseconds; None where nobody was."""
    deferred: bool = False
    """Its tool has come to its end, and only the answer of somebody outside is missing."""
    begun: bool = False
    idempotency: str | None = None
    """What makes it recognisable to the outside world, where its key does not say."""
    before: tuple[Record, ...] = ()
    """What was decided about it, to be recorded together with its intent."""
    consumes: tuple[str, ...] = ()
    """Approvals that are used up with it."""
    given: bytes | None = None
    """What comes of it, where somebody decided that it is not to be made."""
    edited: bool = False
    """A person has changed its arguments."""
    approved: bool = False
    """A person has approved it as it is."""
    nested: bool = False
    """A program made it: what it gives is for that program, whole, and no model reads it."""
    room: int | None = None
    """Longest text of its result, where that is not the tool's own limit."""
    program: bool = False
    """It is a program, which makes calls of its own: those are decided about, not this one."""
    beside: tuple[Record, ...] = ()
    """What is recorded in one commit with its outcome."""
    recorded: Callable[[], None] | None = None
    """Told when its outcome has its place in the journal."""
    stopped: Callable[[int], Record] | None = None
    """Its outcome when it is stopped at a time, where it is another one than that of other calls."""

    @property
    def fresh(self) -> bool:
        """Whether it is not known to have begun."""
        return isinstance(self.decision, Perform)

    @property
    def asked(self) -> EffectRequest | None:
        """What its outcome must say about it; nothing where its intent has."""
        return None if self.intended else self.ask

    def end(self, outcome: Outcome) -> None:
        """It has an outcome, with its whole value."""
        self.outcome = outcome
        self.result = result_of(self.call, outcome)

    def bind(self, known: Iterable[str]) -> None:
        """Fit the arguments to the tool, or say why that can't be; `known` are the names of the tools there are."""
        if self.tool is None:
            self.refused = error_for_unknown_tool(self.call.name, known)
        elif self.call.arguments is None:
            self.refused = error_for_malformed_call(self.call)
        else:
            bound = self.tool.bind(self.call.arguments)
            if isinstance(bound, Complaint):
                self.refused = error_for_complaint(bound)
            else:
                self.bound = bound

    @property
    def intends(self) -> bool:
        """Whether what it is about to do is recorded before it does it."""
        return isinstance(self.decision, Perform) and self.decision.intent


@dataclass(slots=True)
class SpillableCall:
    """A call under way in a task of its own, so that it can go on when nobody waits for it any more."""

    call: Call
    context: Context
    task: asyncio.Task[object]
    begun: float
    handed_over: bool = False
    """Somebody else sees to it from here on."""


class SpillHandler(Protocol):
    """What takes over a call that takes longer than a model waits."""

    async def __call__(self, work: SpillableCall, seconds: float) -> Outcome | None:
        """Let it go on in the background; answers what the model is told. None: it may not, and is waited for."""
        ...
