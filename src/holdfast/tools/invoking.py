"""Calling a function that may do anything: off the event loop where it is plain, and never ending the process."""

from __future__ import annotations

import asyncio
import inspect
import io
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.tools.processes import Spawned
from holdfast.tools.threads import in_thread
from holdfast.tools.watchdog import calls_here

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MAX_ITEMS: Final = 100_000
"""How many items are read from an iterator that a function returns."""
_PLAIN: Final = frozenset((dict, list, tuple, str, int, float, bool, bytes, type(None)))
"""What most functions return: nothing that has to be waited for or read to its end."""


async def invoked(function: Callable[..., Any], kwargs: dict[str, Any], name: str, *, on_loop: bool) -> object:
    """What `function` returns. An iterator is read to its end, where the function ran. Logs call it `name`.

    `on_loop`: it is an async one. If this is cancelled, the processes that the function has started are ended, once it
    has had its say.
    """
    with Spawned(name) as spawned:
        running = calls_here()
        try:
            if on_loop:
                running[spawned] = name, function
                value = await function(**kwargs)
            else:
                value = await in_thread(_listed, {"function": function, "kwargs": kwargs}, name=name)
                if not _has_more(value):
                    return value
                running[spawned] = name, function  # it is an async function behind a plain one
                value = await cast("Awaitable[object]", value) if inspect.isawaitable(value) else value
            return value if type(value) in _PLAIN else await _collected(value, name)
        except SystemExit as error:
            # One tool must not take all other sessions of the process with it.
            said = f"the function asked to end the process (exit code {error.code!r:.60}); it was not ended"
            raise RuntimeError(said) from error
        except asyncio.CancelledError:
            if _is_cancelled():  # otherwise it was something that the function awaited
                spawned.stop()
            raise
        finally:
            running.pop(spawned, None)


def _is_cancelled() -> bool:
    """Whether the current task is being cancelled. No frame of the caller keeps the task: that would be a cycle."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _has_more(value: object) -> bool:
    return inspect.isawaitable(value) or isinstance(value, AsyncIterator)


def _listed(function: Callable[..., Any], kwargs: dict[str, Any]) -> object:
    value = function(**kwargs)
    return _read(value) if _is_iterator(value) else value


async def _collected(value: object, name: str) -> object:
    if isinstance(value, AsyncIterator):
        found: list[object] = []
        async for item in cast("AsyncIterator[object]", value):
            found.append(item)
            _check_count(len(found))
        return found
    if _is_iterator(value):  # what comes out of it is made as it is read: not on the event loop
        return await in_thread(_read, {"items": value}, name=name)
    return value


def _is_iterator(value: object) -> bool:
    return isinstance(value, Iterator) and not isinstance(value, io.IOBase)


def _read(items: Iterator[object]) -> list[object]:
    found = list(islice(items, MAX_ITEMS + 1))
    _check_count(len(found))
    return found


def _check_count(count: int) -> None:
    if count > MAX_ITEMS:
        said = f"the function ran, but the iterator it returned has more than {MAX_ITEMS:,} items; return a list"
        raise ValueError(said)
