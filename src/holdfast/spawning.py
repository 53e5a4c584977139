"""Starting tasks that belong to the runtime, not to whoever happens to be running."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def spawn(coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task in a context of its own: a tool that causes it is not its parent."""
    return contextvars.Context().run(asyncio.get_running_loop().create_task, coro)
