"""Scopes: the branches of driven code.

Each task of driven code is a branch, a scope of its own, named when the task is created. So two branches that do the
same thing never get each other's result.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import Counter, deque
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from holdfast.effects.keys import branch_segment, segment
from holdfast.errors import OrderUnknown, SuspensionSwallowed
from holdfast.names import check_id

if TYPE_CHECKING:
    from holdfast.effects.performer import Performer


T = TypeVar("T")
_MARK: Final = "_holdfast_branches"


class EffectScope:
    """A scope: its path, and the number of uses of each name."""

    __slots__ = ("_branches", "_counts", "busy", "drive", "inside", "path")

    def __init__(self, drive: Performer, path: str, *, inside: bool = False) -> None:
        self.drive = drive
        self.path = path
        self.inside = inside
        """Inside an effect, whose code may run differently when it is performed again."""
        self.busy = False
        self._counts: dict[str, int] = {}
        self._branches = 0

    def next(self, name: str) -> str:
        """The key of the next use of `name` in this scope; the first use checks the name."""
        known = self._counts.get(name, 0) if type(name) is str else 0
        count = self._counts[name if known else check_id("effect name", name)] = known + 1
        return f"{self.path}/{segment(name, count)}"

    def branch(self, name: str) -> EffectScope:
        """The scope of the next task, which runs the coroutine `name`."""
        self._branches += 1
        part = segment(name)
        if not self.inside:
            self.drive.enter_branch(self.path, self._branches, part)
        return EffectScope(self.drive, f"{self.path}/{branch_segment(self._branches, part)}", inside=self.inside)


current_scope: Final[contextvars.ContextVar[EffectScope | None]] = contextvars.ContextVar(
    "holdfast_place", default=None
)
_made_for: Final[contextvars.ContextVar[int]] = contextvars.ContextVar("holdfast_made_for", default=0)


def install_task_factory(loop: asyncio.AbstractEventLoop) -> None:
    """Make `loop` give every task of driven code its own scope. Other tasks are not touched."""
    previous = loop.get_task_factory()
    if getattr(previous, _MARK, False):
        return

    def create(
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,  # options of newer Python versions
    ) -> asyncio.Future[Any]:
        place = current_scope.get()
        given: contextvars.Context | None = options.get("context")
        # Even if other libraries wrap our factory and ours wraps that again, each task gets one branch.
        if place is not None and (given is None or given.get(_made_for) != id(coro)):
            context = options["context"] = _branch_context(place, coro, given)
            if not place.inside and inspect.iscoroutine(coro):
                coro = GuardedCoroutine(coro, getattr(coro, "__qualname__", "a branch"))  # so that it can be ended
                context.run(_made_for.set, id(coro))
        task: asyncio.Future[Any] = (
            asyncio.Task(coro, loop=loop, **options) if previous is None else previous(loop, coro, **options)
        )
        if place is not None and not place.inside:
            # A task started by an effect may serve others too, such as a connection pool. Only tasks of the driven code
            # end with the run.
            place.drive.adopt(task)
        return task

    setattr(create, _MARK, True)
    loop.set_task_factory(create)


def _branch_context(
    place: EffectScope, coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any], given: contextvars.Context | None
) -> contextvars.Context:
    """The context of a new task: its usual one, with a scope of its own. `asyncio.as_completed` is refused."""
    frame = inspect.currentframe()
    try:
        for _ in range(8):
            if frame is None:
                break
            unordered = frame.f_code.co_qualname.startswith(("as_completed", "_AsCompletedIterator"))
            if unordered and frame.f_globals.get("__name__") == "asyncio.tasks":
                raise OrderUnknown  # closed like one that the history refuses
            frame = frame.f_back
        branch = place.branch(getattr(coro, "__name__", "task"))
    except BaseException:
        coro.close()  # avoids the warning that it was never awaited
        raise
    context = contextvars.copy_context() if given is None else given.copy()
    context.run(current_scope.set, branch)
    context.run(_made_for.set, id(coro))
    return context


# ---- suspension ----

REFUSALS: Final = 16
"""Refusals of one task of suspended code before it is held."""
REFUSALS_IN_ALL: Final = 1_000
"""Refusals of all tasks of suspended code together."""
_released_code: Final[deque[Coroutine[Any, Any, Any]]] = deque(maxlen=1_000)
"""Held code. Garbage collection would run its exception handlers once more."""


class _NeverDone(asyncio.Future[NoReturn]):
    """The future that held code awaits."""


class SuspensionGuard:
    """Refuses effects to suspended code, and holds code that keeps asking."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: Counter[int] = Counter()

    async def refuse(self, error: BaseException) -> NoReturn:
        """Raise `error` in suspended code; hold the code if it keeps asking."""
        task = id(asyncio.current_task())
        self._asked[task] += 1
        if self._asked[task] > REFUSALS or self._asked.total() > REFUSALS_IN_ALL:
            await _NeverDone()
        raise error


def release_if_held(pending: object, code: Coroutine[Any, Any, Any], name: str) -> None:
    """Raise `SuspensionSwallowed` for held code, and keep the code from garbage collection."""
    if type(pending) is _NeverDone:
        _released_code.append(code)
        raise SuspensionSwallowed(name)


class GuardedCoroutine(Coroutine[Any, Any, T], Generator[Any, Any, T]):
    """A coroutine that ends with `SuspensionSwallowed` once its code is held; the code itself never continues.

    It is its own iterator, so that an `await` calls `send` and `throw`.
    """

    def __init__(self, code: Coroutine[Any, Any, T], name: str) -> None:
        self._code = code
        self._name = name

    def __getattr__(self, name: str) -> Any:  # attributes that debuggers read
        return getattr(self._code, name)

    def send(self, value: Any, /) -> Any:
        pending = self._code.send(value)
        release_if_held(pending, self._code, self._name)
        return pending

    def throw(self, *error: Any) -> Any:
        try:
            pending = self._code.throw(*error)
        finally:
            del error  # its traceback refers to this frame: avoid a reference cycle
        release_if_held(pending, self._code, self._name)
        return pending

    def close(self) -> None:
        self._code.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self
