"""While a runtime is open, a tool that blocks the event loop is named."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text
from holdfast.tools import functions

if TYPE_CHECKING:
    import pytest

THREAD = "holdfast watchdog"


def watchers() -> int:
    return sum(thread.name == THREAD for thread in threading.enumerate())


async def none_left() -> None:
    end = time.monotonic() + 5
    while watchers():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def test_a_tool_that_blocks_the_event_loop_of_a_runtime_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(functions, "MAX_SILENCE", 0.1)
    monkeypatch.setattr(functions, "PROBE_INTERVAL", 0.02)
    named = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "blocks the event loop" in record.getMessage():
                named.set()

    @hf.tool
    async def stubborn() -> bool:
        return await asyncio.sleep(0.1, None) or named.wait(5)

    logging.getLogger("holdfast.tools").addHandler(listener := Listener())
    try:
        agent = hf.Agent(
            "a", model=ScriptedModel([call(stubborn), text("ok")]), tools=[stubborn], policy=[hf.allow("*")]
        )
        async with hf.open(None, agents=[agent]) as runtime:
            await runtime.run(agent, "go")
    finally:
        logging.getLogger("holdfast.tools").removeHandler(listener)
    assert "the tool 'stubborn' blocks the event loop" in caplog.text


async def test_the_watch_ends_with_the_last_runtime_of_an_event_loop() -> None:
    await none_left()  # those of tests before
    async with hf.open(None), hf.open(None):
        assert watchers() == 1
    await none_left()
