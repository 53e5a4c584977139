"""Starting tasks that belong to the runtime, not to whoever happens to be running, and stopping tasks."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

PATIENCE: Final = 0.5
"""How long what is stopped may take to unwind, in seconds; what is left then is abandoned."""


def spawn(coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task in a context of its own: a tool that causes it is not its parent."""
    return contextvars.Context().run(asyncio.get_running_loop().create_task, coro)


async def unwound(task: asyncio.Task[Any]) -> bool:
    """Cancel a task, and give it a moment to clean up; whether it has ended. One that does not listen is left alone."""
    task.cancel()
    await asyncio.wait({task}, timeout=PATIENCE)
    let_go(task)
    return task.done()


def let_go(task: asyncio.Task[Any]) -> None:
    """Nobody waits for it any more, and what it raises is told to nobody."""
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
