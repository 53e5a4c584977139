"""Closing a runtime: short work finishes, long work is left where it is, and whoever opens next goes on."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import until
from tests.patience import PATIENCE, stopwatch

import holdfast as hf
from holdfast.errors import CallAbandoned
from holdfast.policy.limits import LEASE_MS
from holdfast.records import Resumed, Started
from holdfast.testing import ScriptedModel, call, check, delayed, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PLAIN = hf.Agent("plain", model=ScriptedModel(lambda _: text("done")))


async def _leased(store: hf.Store) -> list[str]:
    return [work.journal for work in await store.work() if work.holder is not None]


class Errand:
    """A tool that takes as long as the test wants."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.runs = 0

        @hf.tool(read_only=True)
        async def errand() -> str:
            """Take a while."""
            self.runs += 1
            self.begun.set()
            await self.go_on.wait()
            return "back"

        self.agent = hf.Agent(
            "runner", model=ScriptedModel([call(errand), text("done")]), tools=[errand], policy=[hf.allow("*")]
        )


async def test_short_work_finishes_before_the_runtime_is_closed(tmp_path: Path) -> None:
    errand = Errand()
    async with hf.open_store(tmp_path / "store.db") as store:
        async with hf.Runtime(store, [errand.agent]) as runtime:
            await runtime.session("s", agent="runner").send("go")
            await errand.begun.wait()
            asyncio.get_running_loop().call_later(0.2, errand.go_on.set)
        records = [entry.record async for entry in store.read_all("s")]
    assert any(getattr(record, "key", "").startswith("t1/2.tools/") for record in records)


async def test_a_step_that_finished_while_closing_is_not_performed_again(tmp_path: Path) -> None:
    errand = Errand()
    async with hf.open(tmp_path / "store.db", agents=[errand.agent]) as runtime:
        await runtime.session("s", agent="runner").send("go")
        await errand.begun.wait()
        asyncio.get_running_loop().call_later(0.2, errand.go_on.set)
    async with hf.open(tmp_path / "store.db", agents=[errand.agent]) as runtime:
        assert (await runtime.session("s").turn("t1").outcome(timeout=PATIENCE)).text == "done"
    assert errand.runs == 1


async def test_closing_takes_no_longer_than_the_work_that_it_waits_for(tmp_path: Path) -> None:
    errand = Errand()
    async with hf.open(tmp_path / "store.db", agents=[errand.agent]) as runtime:
        await runtime.session("s", agent="runner").send("go")
        await errand.begun.wait()
        asyncio.get_running_loop().call_later(0.2, errand.go_on.set)
        async with stopwatch() as watch:
            await runtime.close()
    assert watch.seconds < 1.5


async def test_long_work_is_left_within_five_seconds_by_default() -> None:
    errand = Errand()
    async with stopwatch() as watch, hf.open(None, agents=[errand.agent]) as runtime:
        await runtime.session("s", agent="runner").send("go")
        await errand.begun.wait()
    assert watch.seconds < 5


async def test_long_work_that_was_left_goes_on_at_the_next_opening(tmp_path: Path) -> None:
    errand = Errand()
    async with hf.open(tmp_path / "store.db", agents=[errand.agent]) as runtime:
        await runtime.session("s", agent="runner").send("go")
        await errand.begun.wait()
        await runtime.close(grace=0.1)
    errand.go_on.set()
    async with hf.open(tmp_path / "store.db", agents=[errand.agent]) as runtime:
        assert (await runtime.session("s").turn("t1").outcome(timeout=PATIENCE)).text == "done"
        kinds = [type(entry.record) async for entry in runtime.store.read_all("s")]
    assert (kinds.count(Started), kinds.count(Resumed)) == (1, 1)


async def test_what_was_left_while_closing_is_not_leased_any_more(tmp_path: Path) -> None:
    errand = Errand()
    async with hf.open_store(tmp_path / "store.db") as store:
        async with hf.Runtime(store, [errand.agent]) as runtime:
            await runtime.session("s", agent="runner").send("go")
            await errand.begun.wait()
            assert await _leased(store) == ["s"]
            await runtime.close(grace=0.1)
        assert await _leased(store) == []
        assert [work.journal for work in await store.work()] == ["s"]


async def test_a_reply_that_was_streaming_when_the_runtime_closed_is_asked_for_again(tmp_path: Path) -> None:
    asked = asyncio.Event()
    script = ScriptedModel(lambda _: (asked.set(), delayed(0 if len(script.requests) > 1 else 60, text("done")))[1])
    agent = hf.Agent("slow", model=script)
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("go")
        await asked.wait()
        await runtime.close(grace=0.1)
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        assert (await runtime.session("s").turn("t1").outcome(timeout=PATIENCE)).text == "done"


async def test_inputs_that_were_still_queued_when_the_runtime_closed_are_driven_at_the_next_opening(
    tmp_path: Path,
) -> None:
    errand = Errand()
    model = ScriptedModel(lambda request: call("errand") if request.position == 0 else text("done"))
    agent = hf.Agent("runner", model=model, tools=list(errand.agent.tools.values()), policy=[hf.allow("*")])
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await session.send("first")
        await errand.begun.wait()
        await session.send("second")
        await session.send("third")
        asyncio.get_running_loop().call_later(0.1, errand.go_on.set)
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        for turn in ("t1", "t2", "t3"):
            assert (await runtime.session("s").turn(turn).outcome(timeout=PATIENCE)).text == "done"


async def test_a_queued_input_is_not_lost_when_the_turn_before_it_ends_while_the_runtime_closes(tmp_path: Path) -> None:
    """The last reply of the first turn comes while the runtime closes: there is no further step to stop before."""
    asked, answer = asyncio.Event(), asyncio.Event()

    async def reply(_: hf.ModelRequest) -> hf.Text:
        asked.set()
        await answer.wait()
        return text("done")

    agent = hf.Agent("slow", model=ScriptedModel(reply))
    async with hf.open(tmp_path / "store.db", agents=[agent], drive=False) as accepting:
        for said in ("first", "second"):
            await accepting.session("s", agent=agent).send(said)
    async with hf.open(tmp_path / "store.db", agents=[agent]):
        await asked.wait()
        asyncio.get_running_loop().call_later(0.1, answer.set)
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        assert (await runtime.session("s").turn("t1").status()) == "completed"
        assert (await runtime.session("s").turn("t2").outcome(timeout=PATIENCE)).text == "done"


async def test_sessions_that_waited_for_their_turn_are_driven_at_the_next_opening(tmp_path: Path) -> None:
    errand = Errand()
    async with hf.open(tmp_path / "store.db", agents=[errand.agent], concurrency=1) as runtime:
        for number in range(5):
            await runtime.session(f"s{number}", agent="runner").send("go")
        await errand.begun.wait()
        await runtime.close(grace=0.1)
    errand.go_on.set()
    async with hf.open(tmp_path / "store.db", agents=[errand.agent]) as runtime:
        for number in range(5):
            assert (await runtime.session(f"s{number}").turn("t1").outcome(timeout=PATIENCE)).ok


async def test_nothing_is_accepted_once_the_runtime_is_closed(tmp_path: Path) -> None:
    async with hf.open_store(tmp_path / "store.db") as store:
        async with hf.Runtime(store, [PLAIN]) as runtime:
            session = runtime.session("s", agent=PLAIN)
        with pytest.raises(hf.RuntimeStopped):
            await session.send("too late")


async def test_nothing_is_accepted_while_the_runtime_closes(tmp_path: Path) -> None:
    errand = Errand()
    async with hf.open(tmp_path / "store.db", agents=[errand.agent]) as runtime:
        session = runtime.session("s", agent="runner")
        await session.send("go")
        await errand.begun.wait()
        closing = asyncio.create_task(runtime.close())
        await asyncio.sleep(0)
        with pytest.raises(hf.RuntimeStopped):
            await session.send("too late")
        errand.go_on.set()
        await closing


async def test_whoever_waits_for_an_outcome_hears_that_the_runtime_was_closed(tmp_path: Path) -> None:
    errand = Errand()
    async with hf.open(tmp_path / "store.db", agents=[errand.agent]) as runtime:
        turn = await runtime.session("s", agent="runner").send("go")
        await errand.begun.wait()
        waiting = asyncio.create_task(turn.outcome())
        await runtime.close(grace=0.1)
        with pytest.raises(hf.HoldfastError):
            await asyncio.wait_for(waiting, PATIENCE)


async def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "store.db", agents=[PLAIN]) as runtime:
        await runtime.close()
        await runtime.close()


class Stubborn:
    """A tool that does not let itself be cancelled."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.released = asyncio.Event()

        async def hold_on() -> str:
            self.begun.set()
            while not self.released.is_set():
                try:
                    await self.released.wait()
                except asyncio.CancelledError:
                    continue
            return "never mind"

        @hf.tool(read_only=True)
        async def alone() -> str:
            """Ignore whoever wants to stop it."""
            return await hold_on()

        @hf.tool(read_only=True)
        async def with_a_task() -> str:
            """Ignore whoever wants to stop it, in a task of its own."""
            return await asyncio.create_task(hold_on())

        self.tools = {"alone": alone, "with_a_task": with_a_task}


@pytest.mark.parametrize("names", [("alone",), ("with_a_task",), ("alone", "with_a_task")], ids=" and ".join)
async def test_a_tool_that_ignores_cancellation_does_not_keep_the_runtime_open(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    stubborn = Stubborn()
    script = ScriptedModel([[call(name) for name in names], text("done")])
    agent = hf.Agent("stubborn", model=script, tools=list(stubborn.tools.values()), policy=[hf.allow("*")])
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("go")
        await stubborn.begun.wait()
        async with stopwatch() as watch:
            await asyncio.wait_for(runtime.close(grace=0.2), PATIENCE)
    stubborn.released.set()
    assert watch.seconds < 2


async def test_what_a_tool_does_after_it_was_abandoned_leaves_no_record(tmp_path: Path) -> None:
    stubborn = Stubborn()
    agent = hf.Agent(
        "stubborn",
        model=ScriptedModel([call("alone"), text("done")]),
        tools=[stubborn.tools["alone"]],
        policy=[hf.allow("*")],
    )
    async with hf.open_store(tmp_path / "store.db") as store:
        async with hf.Runtime(store, [agent]) as runtime:
            await runtime.session("s", agent=agent).send("go")
            await stubborn.begun.wait()
            await runtime.close(grace=0.1)
        head = (await store.journal("s")).head
        stubborn.released.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert (await store.journal("s")).head == head
        assert await check(store) == []


class Survivor:
    """A tool that swallows its cancellation, and then uses all that it was given."""

    def __init__(self) -> None:
        self.begun, self.released, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.met: dict[str, object] = {}

    def tool(self, **options: Any) -> hf.Tool[..., Any]:
        @hf.tool("survives", **options)
        async def survives(ctx: hf.Context) -> str:
            """Go on."""
            self.begun.set()
            while not self.released.is_set():
                with suppress(asyncio.CancelledError):
                    await self.released.wait()
            uses: dict[str, Callable[[], Any]] = {
                "step": lambda: ctx.step("late", lambda: 1),
                "wait": lambda: ctx.wait("late"),
                "defer": ctx.defer,
                "attach": lambda: ctx.attach(b"late"),
                "attachment": lambda: ctx.attachment("0" * 64),
                "secrets": lambda: ctx.secrets["TOKEN"],
                "wait_token": lambda: ctx.wait_token("late"),
                "progress": lambda: ctx.progress("late"),
                "cancelled": lambda: ctx.cancelled,
                "session": lambda: ctx.session,
            }
            for name, use in uses.items():
                self.met[name] = await _met(use)
            self.ended.set()
            return "late"

        return survives


async def _met(use: Callable[[], Any]) -> object:
    """What a use gives, or the type of the error that it raises."""
    try:
        given = use()
        return await given if inspect.isawaitable(given) else given
    except BaseException as error:  # whatever it is, the test wants to see it
        return type(error)


@pytest.mark.parametrize("options", [{}, {"timeout": 60}, {"background": True}], ids=["inline", "timed", "background"])
async def test_a_tool_that_outlives_its_runtime_meets_a_named_error_in_whatever_it_uses(
    options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    survivor, left = Survivor(), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: left.append(context))
    script = ScriptedModel([call("survives"), text("done"), text("told")])
    agent = hf.Agent("a", model=script, tools=[survivor.tool(**options)], policy=[hf.allow("*")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(survivor.begun.wait(), PATIENCE)
        await runtime.close(grace=0)
    assert "it is left alone" in caplog.text
    survivor.released.set()
    await asyncio.wait_for(survivor.ended.wait(), PATIENCE)
    named = ("step", "wait", "defer", "attach", "attachment", "secrets", "wait_token")
    assert survivor.met == {
        **dict.fromkeys(named, CallAbandoned),
        "progress": None,
        "cancelled": True,
        "session": "s",
    }
    assert "let it end when it is cancelled" in caplog.text
    for _ in range(20):
        await asyncio.sleep(0)
    gc.collect()
    assert left == []


async def test_what_is_left_of_a_turn_ends_quietly_when_its_tool_does(tmp_path: Path) -> None:
    """The task that ran it is cancelled, and does not fall over what is gone."""
    stubborn, tasks = Stubborn(), set[asyncio.Task[Any]]()
    script = ScriptedModel([call("alone"), text("done")])
    agent = hf.Agent("stubborn", model=script, tools=[stubborn.tools["alone"]], policy=[hf.allow("*")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("go")
        await stubborn.begun.wait()
        await runtime.close(grace=0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
    stubborn.released.set()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [end for end in ends if isinstance(end, Exception)] == []


async def test_a_function_in_a_thread_sees_that_its_runtime_is_closed(tmp_path: Path) -> None:
    begun, seen = threading.Event(), threading.Event()

    @hf.tool
    def listens(ctx: hf.Context) -> str:
        """Listen."""
        begun.set()
        for _ in range(1_000):
            if ctx.cancelled:
                seen.set()
                return "stopped"
            threading.Event().wait(0.005)
        return "never"

    agent = hf.Agent("a", model=ScriptedModel([call("listens"), text("ok")]), tools=[listens], policy=[hf.allow("*")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("go")
        await asyncio.to_thread(begun.wait, PATIENCE)
        await runtime.close(grace=0)
    assert await asyncio.to_thread(seen.wait, PATIENCE)


async def test_the_lease_lasts_ten_seconds_by_default(tmp_path: Path) -> None:
    errand = Errand()
    async with hf.open(tmp_path / "store.db", agents=[errand.agent]) as runtime:
        await runtime.session("s", agent="runner").send("go")
        await errand.begun.wait()
        (work,) = await runtime.store.work()
        errand.go_on.set()
    assert LEASE_MS == 10_000
    assert 5_000 < work.left_ms <= 10_000


async def test_the_lease_is_as_long_as_it_was_asked_for(tmp_path: Path) -> None:
    errand = Errand()
    async with hf.open(tmp_path / "store.db", agents=[errand.agent], lease_ms=60_000) as runtime:
        await runtime.session("s", agent="runner").send("go")
        await errand.begun.wait()
        (work,) = await runtime.store.work()
        errand.go_on.set()
    assert 50_000 < work.left_ms <= 60_000


async def test_the_lease_is_renewed_as_long_as_the_work_goes_on(tmp_path: Path) -> None:
    errand = Errand()
    async with hf.open(tmp_path / "store.db", agents=[errand.agent], lease_ms=1_200) as runtime:
        turn = await runtime.session("s", agent="runner").send("go")
        await errand.begun.wait()
        began = time.monotonic()

        async def held_long_enough() -> bool:
            assert await _leased(runtime.store) == ["s"]
            return time.monotonic() - began > 1.5

        await until(held_long_enough)
        errand.go_on.set()
        assert (await turn.outcome(timeout=PATIENCE)).ok
    assert errand.runs == 1
