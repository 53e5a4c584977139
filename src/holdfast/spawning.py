"""Starting tasks that belong to the runtime, not to whoever happens to be running, and stopping tasks."""

from __future__ import annotations

import asyncio
import contextvars
import types
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

T = TypeVar("T")

PATIENCE: Final = 0.5
"""How long what is stopped may take to unwind, in seconds; what is left then is abandoned."""


def spawn(coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task in a context of its own: a tool that causes it is not its parent."""
    return contextvars.Context().run(asyncio.get_running_loop().create_task, coro)


@types.coroutine
def watched(coro: Coroutine[Any, Any, T], waits: Callable[[], None]) -> Generator[Any, Any, T]:
    """What `coro` gives; `waits` is called when it has to wait for the first time, if it does."""
    try:
        pending = coro.send(None)
        waits()
        while True:
            try:
                given = yield pending
            except BaseException as error:  # noqa: BLE001  whatever it is, it is meant for the one that waits
                pending = coro.throw(error)
            else:
                pending = coro.send(given)
    except StopIteration as ended:
        return ended.value


async def unwound(task: asyncio.Task[Any]) -> bool:
    """Cancel a task, and give it a moment to clean up; whether it has ended. One that does not listen is left alone."""
    task.cancel()
    await asyncio.wait({task}, timeout=PATIENCE)
    let_go(task)
    return task.done()


def let_go(task: asyncio.Task[Any]) -> None:
    """Nobody waits for it any more, and what it raises is told to nobody."""
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
