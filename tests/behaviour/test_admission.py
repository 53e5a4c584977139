"""What a session takes in: what is refused has an error of its own, and leaves nothing behind but that."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import holdfast as hf
from holdfast.errors import DuplicateInput, EmptyInput, InputTooLarge, RateExceeded
from holdfast.testing import ManualClock, ScriptedModel, text

if TYPE_CHECKING:
    from pathlib import Path


def agent(admission: hf.Admission) -> hf.Agent:
    return hf.Agent("a", model=ScriptedModel([text("Hello.")] * 9), admission=admission)


async def test_an_empty_input_is_refused_and_no_session_is_made(tmp_path: Path) -> None:
    asked = agent(hf.Admission())
    async with hf.open(tmp_path / "s.db", agents=[asked]) as runtime:
        with pytest.raises(EmptyInput):
            await runtime.session("s", agent=asked).send("  ")
        assert await runtime.sessions() == []


async def test_an_input_that_is_too_long_is_refused(tmp_path: Path) -> None:
    asked = agent(hf.Admission(max_chars=3))
    async with hf.open(tmp_path / "s.db", agents=[asked]) as runtime:
        with pytest.raises(InputTooLarge, match="3"):
            await runtime.session("s", agent=asked).send("long")


async def test_what_was_said_a_moment_ago_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    asked = agent(hf.Admission(duplicates="refuse", duplicate_window=60))
    for refused in (False, True):
        async with hf.open(tmp_path / "s.db", agents=[asked]) as runtime:
            session = runtime.session("s", agent=asked)
            if refused:
                with pytest.raises(DuplicateInput):
                    await session.send("again", key="second")
            else:
                await (await session.send("again", key="first")).outcome()


async def test_a_duplicate_can_be_the_turn_of_the_first(tmp_path: Path) -> None:
    asked = agent(hf.Admission(duplicates="same_turn"))
    async with hf.open(tmp_path / "s.db", agents=[asked]) as runtime:
        session = runtime.session("s", agent=asked)
        first, second = await session.send("again", key="1"), await session.send("again", key="2")
        assert first.id == second.id


async def test_another_session_may_say_the_same(tmp_path: Path) -> None:
    asked = agent(hf.Admission(duplicates="refuse"))
    async with hf.open(tmp_path / "s.db", agents=[asked]) as runtime:
        for name in ("one", "two"):
            assert (await (await runtime.session(name, agent=asked).send("again")).outcome()).ok


async def test_more_than_may_come_in_a_window_is_refused_until_it_has_passed(tmp_path: Path) -> None:
    asked, clock = agent(hf.Admission(per_window=2, window=timedelta(minutes=1))), ManualClock()
    async with hf.open(tmp_path / "s.db", agents=[asked], clock=clock) as runtime:
        session = runtime.session("s", agent=asked)
        for number in range(2):
            await (await session.send(f"{number}")).outcome()
        with pytest.raises(RateExceeded):
            await session.send("2")
        clock.advance(61_000)
        assert (await (await session.send("2")).outcome()).ok


async def test_the_same_key_is_the_same_turn_whatever_the_rate(tmp_path: Path) -> None:
    asked = agent(hf.Admission(per_window=1))
    async with hf.open(tmp_path / "s.db", agents=[asked]) as runtime:
        session = runtime.session("s", agent=asked)
        first, again = await session.send("x", key="k"), await session.send("x", key="k")
        assert first.id == again.id
