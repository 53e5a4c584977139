"""Where in the tree of scopes the running code is.

A key is a path, never a position in time. Code that runs on its own, one thing after the other, is one scope; its n-th
use of a name is always the same one. Code that runs beside other code is a scope of its own, and it gets its name when
its task is *created*, before anything is awaited: the order in which a parent creates its branches does not depend on
which of them the event loop runs first.

The event loop creates tasks through a factory; ours gives each task that is created inside driven code its own place.
Plain `asyncio.gather`, `TaskGroup` and `create_task` therefore just work.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any, Final

from holdfast.effects.envelope import segment

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

_BRANCH: Final = "~"
_MARK: Final = "_holdfast_branches"


class Place:
    """A scope: its path, and how often each name was used in it so far."""

    __slots__ = ("_counts", "drive", "path")

    def __init__(self, drive: object, path: str) -> None:
        self.drive = drive
        self.path = path
        self._counts: dict[str, int] = {}

    def next(self, name: str) -> str:
        """The key of the next use of `name` in this scope."""
        return f"{self.path}/{segment(name, self._count(name))}"

    def branch(self, name: str) -> Place:
        """The place of the next task called `name`."""
        tagged = _BRANCH + name
        return Place(self.drive, f"{self.path}/{_BRANCH}{segment(name, self._count(tagged))}")

    def _count(self, name: str) -> int:
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return count


current: Final[contextvars.ContextVar[Place | None]] = contextvars.ContextVar("holdfast_place", default=None)


def install(loop: asyncio.AbstractEventLoop) -> None:
    """Let `loop` give every task of driven code its own place. Tasks of other code are not touched."""
    previous = loop.get_task_factory()
    if getattr(previous, _MARK, False):
        return

    def create(
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,  # noqa: ANN401  whatever this Python passes to a task factory
    ) -> asyncio.Future[Any]:
        place = current.get()
        if place is not None:
            given = options.get("context")
            context = contextvars.copy_context() if given is None else given.copy()
            context.run(current.set, place.branch(getattr(coro, "__qualname__", "task")))
            options["context"] = context
        if previous is None:
            return asyncio.Task(coro, loop=loop, **options)
        return previous(loop, coro, **options)

    setattr(create, _MARK, True)
    loop.set_task_factory(create)
