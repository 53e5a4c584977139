"""Threads for plain functions: one for each call, so that one that hangs keeps neither the others nor the process.

A thread can't be stopped. One that is abandoned goes on to its end, or ends with the process.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_THREADS: Final = 256
"""How many plain functions run at once; more wait for one to end."""

_slots: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]] = WeakKeyDictionary()


async def in_thread(function: Callable[..., Any], kwargs: dict[str, Any]) -> object:
    """Call a plain function off the event loop, in the context of the caller."""
    loop = asyncio.get_running_loop()
    slots = _slots.setdefault(loop, asyncio.Semaphore(MAX_THREADS))
    await slots.acquire()
    ended: asyncio.Future[object] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: object, error: BaseException | None) -> None:
        slots.release()
        if ended.done():
            return  # nobody waits any more
        if error is None:
            ended.set_result(value)
        else:
            ended.set_exception(error)

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(function, **kwargs)
        except StopIteration as stop:  # a future can't carry it: whoever awaits would wait for ever
            error = RuntimeError(f"the function raised StopIteration: {stop}")
        except BaseException as raised:  # noqa: BLE001  whoever awaits it gets it
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name=f"tool {getattr(function, '__name__', '')}", daemon=True).start()
    return await ended
