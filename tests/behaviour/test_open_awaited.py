"""``runtime = await hf.open(...)``: for notebooks, where a block can't span several cells."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import holdfast as hf
from holdfast.errors import StoreClosed
from holdfast.testing import ScriptedModel, text

if TYPE_CHECKING:
    from pathlib import Path

agent = hf.Agent("a", model=ScriptedModel(lambda _: text("Hello.")))


async def test_awaiting_gives_an_open_runtime(tmp_path: Path) -> None:
    runtime = await hf.open(tmp_path / "store.db", agents=[agent])
    try:
        assert (await runtime.run(agent, "go")).text == "Hello."
    finally:
        await runtime.close()


async def test_closing_it_closes_the_store_as_well(tmp_path: Path) -> None:
    runtime = await hf.open(tmp_path / "store.db", agents=[agent])
    await runtime.run(agent, "go", session="s")
    await runtime.close()
    await runtime.close()  # once more does nothing
    with pytest.raises(StoreClosed):
        await runtime.store.journal("s")


async def test_it_may_be_given_to_a_block_as_well(tmp_path: Path) -> None:
    async with await hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        assert (await runtime.run(agent, "go", session="s")).ok
    with pytest.raises(StoreClosed):
        await runtime.store.journal("s")


async def test_a_block_on_a_runtime_of_ones_own_leaves_the_store_open() -> None:
    async with hf.open_store(None) as store:
        async with hf.Runtime(store, [agent]) as runtime:
            await runtime.run(agent, "go", session="s")
        assert (await store.journal("s")).id == "s"


async def test_what_it_was_given_is_checked_before_it_opens(tmp_path: Path) -> None:
    with pytest.raises(hf.UsageError):
        await hf.open(tmp_path / "store.db", agents=[agent, agent.replace(instructions="Others.")])
    async with hf.open(tmp_path / "store.db") as runtime:
        assert await runtime.sessions() == []


OPENED = """
import asyncio
import holdfast as hf

async def main():
    runtime = await hf.open("store.db")
    {end}

asyncio.run(main())
"""


def test_a_runtime_that_was_not_closed_is_named_at_exit(tmp_path: Path) -> None:
    def said(end: str) -> str:
        command = [sys.executable, "-c", OPENED.format(end=end)]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stderr

    assert "was not closed" in (warned := said("pass"))
    assert "store.db" in warned
    assert said("await runtime.close()") == ""
