"""What is stuck: the runtime that stopped it, a host that only looks and the lists agree, and the advice helps."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, is_now, until

import holdfast as hf
from holdfast.errors.caller import ProcessInvalid

if TYPE_CHECKING:
    from pathlib import Path


@hf.process(name="orders")
async def old(ctx: hf.ProcessContext) -> str:
    await ctx.step("reserve", lambda: 1)
    await ctx.wait("go")
    return "by the old way"


@hf.process(name="orders")
async def new(ctx: hf.ProcessContext) -> str:
    await ctx.step("charge", lambda: 1)
    await ctx.wait("go")
    return "by the new way"


@hf.process(name="orders")
async def careful(ctx: hf.ProcessContext) -> str:
    if await ctx.version("charge-first"):
        await ctx.step("charge", lambda: 1)
    else:
        await ctx.step("reserve", lambda: 1)
    await ctx.wait("go")
    return "by both ways"


@hf.process
async def other(ctx: hf.ProcessContext) -> None: ...


@hf.process
async def asks(ctx: hf.ProcessContext) -> Any:
    return await ctx.wait("editor")


async def _waiting(path: Path, function: Any) -> None:
    async with hf.open(path, processes=[function]) as runtime:
        process = await runtime.start(function, id="p")
        await until(lambda: is_now(process, "waiting"))


async def _stop(runtime: hf.Runtime) -> None:
    """Let a process go on with code that does not fit its journal."""
    process = runtime.processes.handle("p")
    await process.signal("go")
    with pytest.raises(hf.ReplayMismatch):
        await process.result(timeout=SOON)


async def _stuck(path: Path) -> None:
    """A process that its runtime has stopped."""
    await _waiting(path, old)
    async with hf.open(path, processes=[new]) as runtime:
        await _stop(runtime)


async def _told(runtime: hf.Runtime) -> tuple[list[tuple[str, str]], list[tuple[str, str | None]]]:
    """What is stuck, and what the list says about that."""
    stuck = [(one.id, one.reason) for one in await runtime.processes.stuck()]
    return stuck, [(line.id, line.stuck) for line in await runtime.processes.list() if line.stuck is not None]


async def test_a_host_that_only_looks_sees_what_another_runtime_has_stopped_and_why(tmp_path: Path) -> None:
    await _waiting(tmp_path / "s.db", old)
    async with hf.open(tmp_path / "s.db", processes=[new]) as runtime:
        await _stop(runtime)
        async with hf.open(tmp_path / "s.db", drive=False) as looking:
            await until(lambda: _agree(runtime, looking))
            ((_, reason),), _ = await _told(looking)
            assert "differs from its record" in reason


async def _agree(one: hf.Runtime, another: hf.Runtime) -> bool:
    first, second = await _told(one), await _told(another)
    return first == second and bool(first[0]) and first[0] == first[1]


async def test_what_was_stopped_is_known_when_that_runtime_is_gone(tmp_path: Path) -> None:
    await _stuck(tmp_path / "s.db")
    async with hf.open(tmp_path / "s.db", drive=False) as looking:
        stuck, listed = await _told(looking)
        assert [id for id, _ in stuck] == ["p"]
        assert stuck == listed
        assert "differs from its record" in stuck[0][1]


@pytest.mark.parametrize("how", ["looks", "has another function", "looks and has the function"])
async def test_a_process_that_nobody_runs_is_stuck_whoever_asks(tmp_path: Path, how: str) -> None:
    async with hf.open(tmp_path / "s.db", processes=[asks], drive=False) as runtime:
        await runtime.start(asks, id="p")
    given: dict[str, Any] = {
        "looks": {"drive": False},
        "has another function": {"processes": [other]},
        "looks and has the function": {"drive": False, "processes": [asks]},
    }[how]
    async with hf.open(tmp_path / "s.db", **given) as runtime:
        stuck, listed = await _told(runtime)
        assert [id for id, _ in stuck] == ["p"]
        assert stuck == listed


async def test_a_process_that_was_signalled_and_that_nobody_runs_is_not_to_be_signalled_again(tmp_path: Path) -> None:
    await _waiting(tmp_path / "s.db", asks)
    async with hf.open(tmp_path / "s.db", drive=False) as runtime:
        await runtime.signal("p", "editor", 1)
        (stuck,) = await runtime.processes.stuck()
        assert (stuck.reason, "processes work" in stuck.command) == ("no process runs it now", True)


@pytest.mark.parametrize("timeout", [None, 60.0], ids=["without a limit", "with a limit"])
async def test_the_list_says_of_a_process_that_waits_what_stuck_says(timeout: float | None) -> None:
    @hf.process
    async def waits(ctx: hf.ProcessContext) -> None:
        await ctx.wait("editor", timeout=timeout)

    async with hf.open(None, processes=[waits]) as runtime:
        process = await runtime.start(waits, id="p")
        await until(lambda: is_now(process, "waiting"))
        await until(lambda: not runtime.active)
        stuck, listed = await _told(runtime)
        assert (len(stuck), stuck) == (0 if timeout else 1, listed)


# ---- the advice ------------------------------------------------------------------------------------------------------


async def test_of_code_that_does_not_fit_it_is_said_how_to_change_it(tmp_path: Path) -> None:
    await _stuck(tmp_path / "s.db")
    async with hf.open(tmp_path / "s.db", drive=False) as looking:
        (stuck,) = await looking.processes.stuck()
        assert "ctx.version" in stuck.command
        assert "holdfast processes abandon p --reason TEXT" in stuck.command


async def test_a_process_goes_on_with_code_that_asks_for_its_version(tmp_path: Path) -> None:
    await _stuck(tmp_path / "s.db")
    async with hf.open(tmp_path / "s.db", processes=[careful]) as runtime:
        assert await runtime.processes.handle("p").result(timeout=SOON) == "by both ways"
        assert await _told(runtime) == ([], [])


async def test_a_process_that_went_on_is_not_stuck_any_more(tmp_path: Path) -> None:
    @hf.process(name="orders")
    async def longer(ctx: hf.ProcessContext) -> str:
        await ctx.step("reserve", lambda: 1)
        await ctx.wait("go")
        await ctx.sleep(60)
        return "later"

    await _stuck(tmp_path / "s.db")
    async with hf.open(tmp_path / "s.db", processes=[longer]) as runtime:
        await until(lambda: is_now(runtime.processes.handle("p"), "waiting"))
        await until(lambda: not runtime.active)
        assert await _told(runtime) == ([], [])


@pytest.mark.parametrize("where", ["in the runtime that stopped it", "from a host that only looks"])
async def test_a_process_that_was_stopped_can_be_given_up(tmp_path: Path, where: str) -> None:
    await _waiting(tmp_path / "s.db", old)
    async with hf.open(tmp_path / "s.db", processes=[new]) as runtime:
        await _stop(runtime)
        if where == "in the runtime that stopped it":
            await runtime.processes.abandon("p", "the order is void", by="ops")
        else:
            async with hf.open(tmp_path / "s.db", drive=False) as looking:
                await looking.processes.abandon("p", "the order is void", by="ops")
                await looking.processes.settle("process/p")
        await until(lambda: is_now(runtime.processes.handle("p"), "abandoned"))
        line = await runtime.processes.handle("p").line()
        assert line.error == "abandoned: ops gave it up: the order is void"
        assert await _told(runtime) == ([], [])


async def test_a_process_that_somebody_runs_is_not_given_up() -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    @hf.process
    async def works(ctx: hf.ProcessContext) -> None:
        await ctx.step("work", work)

    async with hf.open(None, processes=[works]) as runtime:
        process = await runtime.start(works, id="p")
        await begun.wait()
        with pytest.raises(ProcessInvalid, match="cancel it"):
            await runtime.processes.abandon("p")
        await process.cancel()


async def test_a_process_that_only_waits_is_not_given_up() -> None:
    async with hf.open(None, processes=[asks]) as runtime:
        process = await runtime.start(asks, id="p")
        await until(lambda: is_now(process, "waiting"))
        await until(lambda: not runtime.active)
        with pytest.raises(ProcessInvalid, match="cancel it"):
            await runtime.processes.abandon("p")
