"""What a turn needs from whoever drives it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import Halted, Suspended

if TYPE_CHECKING:
    from holdfast.events import LiveEvent
    from holdfast.messages import ModelReply, UserMessage
    from holdfast.records import Admitted
    from holdfast.store.contract import Wait


class Surroundings(Protocol):
    """The session around a turn: who watches, what comes in, what it waits for."""

    session: str

    def show(self, kind: type[LiveEvent], run: str, fields: dict[str, Any]) -> None:
        """Show a live event to whoever watches."""
        ...

    async def steering(self) -> list[tuple[Admitted, UserMessage]]:
        """Inputs that want to enter the running turn now."""
        ...

    async def boundary(self) -> None:
        """A place between two effects: others may go first, and the drive may be stopped here."""
        ...

    async def open_wait(self, name: str, deadline: int | None) -> Wait:
        """The wait as it now is."""
        ...

    def token(self, name: str) -> str:
        """The secret that resolves a wait."""
        ...

    def price(self, reply: ModelReply, asked: str) -> float | None:
        """What a reply cost, if anybody knows: by the name of who gave it, or of who was asked."""
        ...


def passes(error: BaseException) -> bool:
    """Whether an error is not about what was called: the turn is stopped, waits, or the process is to end.

    A cancellation that nobody asked us for is: something that it awaited was cancelled.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, Halted | Suspended | KeyboardInterrupt | GeneratorExit)
