"""Threads of tools that nobody can stop: the process must not wait for one whose turn has ended."""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

P = ParamSpec("P")
T = TypeVar("T")


class ToolThreads(ThreadPoolExecutor):
    """The threads in which plain functions run, and whether one of them is still at work."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="tool")
        self._working: set[Future[Any]] = set()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = super().submit(fn, *args, **kwargs)
        self._working.add(future)
        future.add_done_callback(self._working.discard)
        return future

    def leave(self, code: int) -> None:
        """End the process if a thread would keep it: a cancelled turn has told what became of its call."""
        if self._working:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)


async def with_threads(work: Coroutine[Any, Any, int]) -> int:
    """Do the work of a command that runs tools; its exit code, which does not wait for tools that were abandoned."""
    threads = ToolThreads()
    asyncio.get_running_loop().set_default_executor(threads)
    code = await work
    threads.leave(code)
    return code
