"""What a session takes in: what is refused has an error of its own, and leaves nothing behind but that."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.errors import DuplicateInput, EmptyInput, HoldfastError, InputTooLarge, RateExceeded
from holdfast.testing import ManualClock, ScriptedModel, text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from holdfast.store.inbox import RefusedInput


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


# ---- what an agent takes in is known to others ----------------------------------------------------------------------


async def said_by_another_process(path: Path, *words: str) -> list[str]:
    """What a process is told that knows no agent and only accepts."""
    told: list[str] = []
    async with hf.open(path, drive=False) as runtime:
        for said in words:
            try:
                await runtime.session("s").send(said)
                told.append("")
            except HoldfastError as error:
                told.append(type(error).__name__)
    return told


async def begun(path: Path, asked: hf.Agent) -> None:
    async with hf.open(path, agents=[asked]) as runtime:
        await (await runtime.session("s", agent=asked).send("begin")).outcome()


@pytest.mark.parametrize(
    ("terms", "words", "told"),
    [
        (hf.Admission(max_chars=5), ("longer",), ["InputTooLarge"]),
        (hf.Admission(duplicates="refuse", duplicate_window=60), ("a", "a"), ["", "DuplicateInput"]),
        (hf.Admission(per_window=2), ("a", "b"), ["", "RateExceeded"]),
        (hf.Admission(), (" ", "a", "a"), ["EmptyInput", "", ""]),
    ],
    ids=["size", "duplicates", "rate", "defaults"],
)
async def test_a_process_that_does_not_know_the_agent_keeps_to_its_admission(
    tmp_path: Path, terms: hf.Admission, words: tuple[str, ...], told: list[str]
) -> None:
    await begun(tmp_path / "s.db", agent(terms))
    assert await said_by_another_process(tmp_path / "s.db", *words) == told


async def test_the_last_admission_of_an_agent_is_the_one_that_others_keep_to(tmp_path: Path) -> None:
    await begun(tmp_path / "s.db", agent(hf.Admission(max_chars=5)))
    await begun(tmp_path / "s.db", agent(hf.Admission()))
    assert await said_by_another_process(tmp_path / "s.db", "longer") == [""]


async def test_an_agent_that_is_registered_later_is_known_to_others(tmp_path: Path) -> None:
    late = agent(hf.Admission(max_chars=5))
    async with hf.open(tmp_path / "s.db") as runtime:
        await (await runtime.session("s", agent=late).send("begin")).outcome()
    assert await said_by_another_process(tmp_path / "s.db", "longer") == ["InputTooLarge"]


async def test_an_agent_without_an_admission_takes_no_input_beyond_the_defaults() -> None:
    asked = hf.Agent("a", model=ScriptedModel([]))
    async with hf.open(None, agents=[asked]) as runtime:
        with pytest.raises(InputTooLarge):
            await runtime.session("s", agent=asked).send("x" * 1_000_001)


async def test_a_file_that_is_too_large_is_not_stored() -> None:
    asked = agent(hf.Admission(max_bytes=3))
    async with hf.open(None, agents=[asked]) as runtime:
        with pytest.raises(InputTooLarge):
            await runtime.session("s", agent=asked).send(["look", hf.File(b"12345", "text/plain")])
        assert await runtime.store.examine(lambda reader: list(reader.raw_blobs())) == []


# ---- refusals are kept -----------------------------------------------------------------------------------------------


def kept(refusals: Sequence[RefusedInput]) -> list[tuple[str, str | None, str, int]]:
    return [(found.journal, found.key, found.error, found.nth) for found in refusals]


async def test_each_refusal_is_kept_and_nothing_of_the_input(tmp_path: Path) -> None:
    asked = agent(hf.Admission(max_chars=50, per_window=2, duplicates="refuse"))
    async with hf.open(tmp_path / "s.db", agents=[asked]) as runtime:
        session = runtime.session("s", agent=asked)
        turn = await session.send("one", key="k")
        await turn.outcome()
        for words, key in (("", None), ("long " * 20, "l"), ("one", "o"), ("other", "k")):
            with pytest.raises(HoldfastError):
                await session.send(words, key=key)
        await (await session.send("two")).outcome()
        with pytest.raises(RateExceeded):
            await session.send("three", key="t")
    async with hf.open(tmp_path / "s.db", drive=False) as runtime:
        found = await runtime.refusals("s")
        assert kept(found) == [
            ("s", "t", "RateExceeded", 5),
            ("s", "k", "KeyConflict", 4),
            ("s", "o", "DuplicateInput", 3),
            ("s", "l", "InputTooLarge", 2),
            ("s", None, "EmptyInput", 1),
        ]
        assert "long long" not in str(found)


async def test_a_refusal_makes_no_session() -> None:
    asked = agent(hf.Admission())
    async with hf.open(None, agents=[asked]) as runtime:
        with pytest.raises(EmptyInput):
            await runtime.session("s", agent=asked).send("")
        assert (await runtime.sessions(), len(await runtime.refusals())) == ([], 1)


async def test_inbox_lists_what_was_refused(tmp_path: Path) -> None:
    asked = agent(hf.Admission(max_chars=3))
    async with hf.open(tmp_path / "s.db", agents=[asked], mirror=False) as runtime:
        with pytest.raises(InputTooLarge):
            await runtime.session("s", agent=asked).send("long")
    done = await asyncio.to_thread(CliRunner().invoke, app, ["inbox", "--refused", "--store", str(tmp_path / "s.db")])
    assert done.exit_code == 0
    assert "InputTooLarge" in done.stdout
    assert "the limit is 3" in done.stdout


# ---- clocks ----------------------------------------------------------------------------------------------------------


async def test_a_clock_that_is_set_back_a_little_does_not_open_the_gate() -> None:
    clock = ManualClock()
    asked = agent(hf.Admission(per_window=1, window=60))
    async with hf.open(None, agents=[asked], clock=clock) as runtime:
        session = runtime.session("s", agent=asked)
        await (await session.send("one")).outcome()
        clock.jump(-30_000)
        with pytest.raises(RateExceeded):
            await session.send("two")


async def test_a_clock_that_is_set_back_far_does_not_shut_the_gate() -> None:
    clock = ManualClock()
    asked = agent(hf.Admission(per_window=1, window=60))
    async with hf.open(None, agents=[asked], clock=clock) as runtime:
        session = runtime.session("s", agent=asked)
        await (await session.send("one")).outcome()
        clock.jump(-86_400_000)
        assert (await (await session.send("two")).outcome()).status == "completed"


async def test_a_duplicate_is_one_also_after_the_clock_was_set_back_a_little() -> None:
    clock = ManualClock()
    asked = agent(hf.Admission(duplicates="refuse", duplicate_window=60))
    async with hf.open(None, agents=[asked], clock=clock) as runtime:
        session = runtime.session("s", agent=asked)
        await (await session.send("one")).outcome()
        clock.jump(-30_000)
        with pytest.raises(DuplicateInput):
            await session.send("one")
