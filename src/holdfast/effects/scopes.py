"""Where in the tree of scopes the running code is.

A key is a path, never a position in time. Code that runs on its own, one thing after the other, is one scope; its n-th
use of a name is always the same one. Code that runs beside other code is a scope of its own, and it gets its name when
its task is *created*, before anything is awaited: the order in which a parent creates its branches does not depend on
which of them the event loop runs first.

The event loop creates tasks through a factory; ours gives each task that is created inside driven code its own place.
Plain `asyncio.gather`, `TaskGroup` and `create_task` therefore just work. `asyncio.as_completed` does not: it starts
its tasks in the order of their addresses, which is another one in every process, so it is refused.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.effects.envelope import segment
from holdfast.effects.suspension import GuardedCoroutine
from holdfast.errors import OrderUnknown

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from types import FrameType


_MARK: Final = "_holdfast_branches"
_FRAMES: Final = 8
_UNORDERED: Final = ("as_completed", "_AsCompletedIterator")


class ScopeDriver(Protocol):
    """Who drives the code that runs in a place."""

    def enter_branch(self, parent: str, ordinal: int, name: str) -> None:
        """A task called `name` is about to be the `ordinal`-th branch of `parent`; raises if it was another one."""
        ...

    def adopt(self, task: asyncio.Future[Any]) -> None:
        """A task of the driven code was created."""
        ...


class EffectScope:
    """A scope: its path, and how often each name was used in it so far."""

    __slots__ = ("_branches", "_counts", "busy", "drive", "inside", "path")

    def __init__(self, drive: ScopeDriver, path: str, *, inside: bool = False) -> None:
        self.drive = drive
        self.path = path
        self.inside = inside
        """Within the code that performs an effect, which may take another way when it is performed again."""
        self.busy = False
        self._counts: dict[str, int] = {}
        self._branches = 0

    def next(self, name: str) -> str:
        """The key of the next use of `name` in this scope."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return f"{self.path}/{segment(name, count)}"

    def branch(self, name: str) -> EffectScope:
        """The place of the next task, which runs the coroutine called `name`."""
        self._branches += 1
        if not self.inside:
            self.drive.enter_branch(self.path, self._branches, segment(name))
        return EffectScope(
            self.drive, f"{self.path}/{branch_segment(self._branches, segment(name))}", inside=self.inside
        )


def branch_segment(ordinal: int, name: str) -> str:
    """The part of a path that stands for a branch; no name can look like it."""
    return f"~{ordinal}.{name}"


current_scope: Final[contextvars.ContextVar[EffectScope | None]] = contextvars.ContextVar(
    "holdfast_place", default=None
)
_made_for: Final[contextvars.ContextVar[int]] = contextvars.ContextVar("holdfast_made_for", default=0)


def install_task_factory(loop: asyncio.AbstractEventLoop) -> None:
    """Let `loop` give every task of driven code its own place. Tasks of other code are not touched."""
    previous = loop.get_task_factory()
    if getattr(previous, _MARK, False):
        return

    def create(
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,  # noqa: ANN401  whatever this Python passes to a task factory
    ) -> asyncio.Future[Any]:
        place = current_scope.get()
        given: contextvars.Context | None = options.get("context")
        # Another library may have wrapped our factory, and ours then wraps it again: one branch a task is enough.
        if place is not None and (given is None or given.get(_made_for) != id(coro)):
            context = options["context"] = _branch_context(place, coro, given)
            if not place.inside and inspect.iscoroutine(coro):
                coro = GuardedCoroutine(
                    coro, getattr(coro, "__qualname__", "a branch")
                )  # it ends also if it does not want to
                context.run(_made_for.set, id(coro))
        task: asyncio.Future[Any] = (
            asyncio.Task(coro, loop=loop, **options) if previous is None else previous(loop, coro, **options)
        )
        if place is not None and not place.inside:
            # What an effect starts may serve others too (a connection pool, say): only tasks of the code itself end
            # with the run.
            place.drive.adopt(task)
        return task

    setattr(create, _MARK, True)
    loop.set_task_factory(create)


def _branch_context(
    place: EffectScope, coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any], given: contextvars.Context | None
) -> contextvars.Context:
    """The context in which a new task runs: like the one it would have had, but in a place of its own."""
    try:
        _check_starter(inspect.currentframe())
        branch = place.branch(getattr(coro, "__name__", "task"))
    except BaseException:
        coro.close()  # it will never run, and must not complain that it was never awaited
        raise
    context = contextvars.copy_context() if given is None else given.copy()
    context.run(current_scope.set, branch)
    context.run(_made_for.set, id(coro))
    return context


def _check_starter(frame: FrameType | None) -> None:
    """Raise `OrderUnknown` if the task is being created by something that has no fixed order."""
    for _ in range(_FRAMES):
        if frame is None:
            return
        if frame.f_globals.get("__name__") == "asyncio.tasks" and frame.f_code.co_qualname.startswith(_UNORDERED):
            raise OrderUnknown
        frame = frame.f_back
