"""Suspending code that may not want to be suspended.

A run is suspended by an exception that unwinds its code. Code that catches everything and goes on asking would meet
that exception again and again, without ever letting the event loop go on. So it is refused a few times, as clean-up
code may need, and then held: what it awaits never comes, and whoever runs it as `Guarded` lets go of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from holdfast.errors import SuspensionSwallowed

if TYPE_CHECKING:
    from collections.abc import Generator


T = TypeVar("T")
REFUSALS: Final = 16
"""How often one task of suspended code is told so; then it is held."""
REFUSALS_IN_ALL: Final = 1_000
"""How often all tasks of suspended code together are told so."""
_released_code: Final[deque[Coroutine[Any, Any, Any]]] = deque(maxlen=1_000)
"""Code that was let go of. Python would run its handlers once more if it were collected."""


class _NeverDone(asyncio.Future[NoReturn]):
    """What held code waits for."""


class SuspensionGuard:
    """Counts how often suspended code asks for more."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: Counter[int] = Counter()

    async def refuse(self, error: BaseException) -> NoReturn:
        """Raise `error` in code that asks for something although it is suspended; hold it if it keeps asking."""
        task = id(asyncio.current_task())
        self._asked[task] += 1
        if self._asked[task] > REFUSALS or self._asked.total() > REFUSALS_IN_ALL:
            await _NeverDone()
        raise error


def release_if_held(pending: object, code: Coroutine[Any, Any, Any], name: str) -> None:
    """Let go of code that waits because it is held, with `SuspensionSwallowed`: it never goes on."""
    if type(pending) is _NeverDone:
        _released_code.append(code)
        raise SuspensionSwallowed(name)


class GuardedCoroutine(Coroutine[Any, Any, T]):
    """A coroutine that ends with `SuspensionSwallowed` once its code is held: that is let go of, and never goes on."""

    def __init__(self, code: Coroutine[Any, Any, T], name: str) -> None:
        self._code = code
        self._name = name

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  what a debugger asks of a coroutine
        return getattr(self._code, name)

    def send(self, value: Any, /) -> Any:  # noqa: ANN401
        """Go on with the code."""
        pending = self._code.send(value)
        release_if_held(pending, self._code, self._name)
        return pending

    def throw(self, *error: Any) -> Any:  # noqa: ANN401
        """Go on with the code, which is told of an error."""
        try:
            pending = self._code.throw(*error)
        finally:
            del error  # its traceback knows this frame: what is over must not wait for the collector
        release_if_held(pending, self._code, self._name)
        return pending

    def close(self) -> None:
        """End the code."""
        self._code.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return _awaited(self)


def _awaited(code: GuardedCoroutine[T]) -> Generator[Any, Any, T]:
    try:
        pending = code.send(None)
        while True:
            try:
                given = yield pending
            except BaseException as error:  # noqa: BLE001  whatever it is, it is meant for the code
                pending = code.throw(error)
            else:
                pending = code.send(given)
    except StopIteration as ended:
        return ended.value
