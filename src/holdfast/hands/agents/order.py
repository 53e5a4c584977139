"""What a parent asks of a sub-agent, and where the answer will come from. Data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.effects.canonical import digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from holdfast.records import InputTaint

_SESSION: Final = 160
_AGENT: Final = 32
_DIGEST: Final = 20


@dataclass(frozen=True, slots=True)
class Order:
    """One piece of work for a sub-agent."""

    agent: str
    prompt: str
    budget: float
    """The share of what is left to the parent."""
    session: str
    """The session of the parent."""
    turn: str
    key: str
    call: str
    """The idempotency key of the parent's call."""
    deadline: datetime | None = None
    by: str | None = None
    """The agent that asks; None: whoever has the session."""
    metadata: Mapping[str, Any] | None = None
    """What the host said about the session and the turn that ask."""

    @property
    def child(self) -> str:
        """The session in which it is done: the same for every attempt of the call, and for no other call.

        The prompt is part of it: a reply that was lost in a crash may be another one when the model is asked again.
        """
        told = digest("sub-agent", [self.call, self.agent, self.prompt])[:_DIGEST]
        return f"{self.session[:_SESSION]}~{self.agent[:_AGENT]}~{told}"


@dataclass(frozen=True, slots=True)
class Child:
    """The turn of a sub-agent."""

    session: str
    input: int
    agent: str


class Answered(Protocol):
    """How the turn of a sub-agent ended."""

    status: Any
    text: str
    value: Any
    code: str
    message: str


class Children(Protocol):
    """The runtime, as far as sub-agents need it."""

    async def delegate(self, order: Order) -> Child:
        """The turn that carries out an order: begun now, or found."""
        ...

    async def outcome(self, child: Child) -> Answered | None:
        """How it ended; None when it takes longer than anybody should wait in memory."""
        ...

    async def taint(self, child: Child) -> InputTaint:
        """What its session has read."""
        ...

    def tell(self, child: Child, token: str) -> None:
        """Answer the wait that `token` stands for as soon as it has ended."""
        ...
