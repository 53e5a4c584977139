"""A tool may do anything: every call gets a result that is true, and neither the turn nor the session is stranded."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON

import holdfast as hf
from holdfast.errors import InvariantBroken
from holdfast.messages import Message, ToolMessage, ToolResult
from holdfast.runtime.runtime import context_of
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from pathlib import Path

UNPRINTABLE = os.fsdecode(b"caf\xe9.txt")
KINDS: dict[str, dict[str, Any]] = {"acting": {}, "idempotent": {"idempotent": True}, "reading": {"read_only": True}}
STATES = [("acting", "unknown"), ("idempotent", "unknown"), ("reading", "cancelled")]
SMALL = hf.StoreLimits(inline_bytes=100, blob_bytes=1_000)


class Odd(BaseException):
    """Not an `Exception`: what some libraries use for control flow."""


def _results(history: list[Message]) -> list[ToolResult]:
    return [result for message in history if isinstance(message, ToolMessage) for result in message.results]


class Tried:
    """What came of a turn that called a tool once."""

    def __init__(self, outcome: hf.TurnOutcome, results: list[ToolResult], following: hf.TurnOutcome) -> None:
        self.outcome = outcome
        self.results = results
        self.following = following

    @property
    def result(self) -> ToolResult:
        (found,) = self.results
        return found


async def _tried(tool: hf.Tool[..., Any], path: Path | None = None, **options: Any) -> Tried:
    agent = hf.Agent(
        "a", model=ScriptedModel([call(tool), text("ok"), text("next")]), tools=[tool], policy=[hf.allow("*")]
    )
    async with hf.open(path, agents=[agent], **options) as runtime:
        session = runtime.session("s", agent=agent)
        outcome = await (await session.send("x")).outcome(timeout=SOON)
        results = _results(await session.history())
        following = await (await session.send("and now?")).outcome(timeout=SOON)
    return Tried(outcome, results, following)


# ---- errors that can't be written down -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["memory", "disk"])
async def test_an_error_with_an_unprintable_name_is_an_answer_and_the_call_is_made_once(
    kind: str, where: str, tmp_path: Path
) -> None:
    ran: list[str] = []

    @hf.tool(**KINDS[kind])
    async def reads_a_file() -> str:
        ran.append("once")
        raise ValueError(f"cannot read {UNPRINTABLE}")

    tried = await _tried(reads_a_file, tmp_path / "s.db" if where == "disk" else None)
    assert (tried.outcome.status, tried.result.state, ran) == ("completed", "error", ["once"])


async def test_a_call_beside_one_with_an_unprintable_error_keeps_its_result() -> None:
    @hf.tool(read_only=True)
    async def fails() -> str:
        raise ValueError(UNPRINTABLE)

    @hf.tool(read_only=True)
    async def works() -> str:
        return "fine"

    agent = hf.Agent(
        "a",
        model=ScriptedModel([[call("fails"), call("works")], text("ok")]),
        tools=[fails, works],
        policy=[hf.allow("*")],
    )
    async with hf.open(None, agents=[agent]) as runtime:
        await (await runtime.session("s", agent=agent).send("x")).outcome(timeout=SOON)
        assert [found.state for found in _results(await runtime.session("s").history())] == ["error", "ok"]


@pytest.mark.parametrize(
    "error",
    [ValueError("z" * 3_000_000), hf.ToolRetry("r" * 5_000_000), InvariantBroken("my own"), Odd("odd")],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_tool_raises_is_an_answer(error: BaseException) -> None:
    @hf.tool(read_only=True)
    async def raises() -> str:
        raise error

    tried = await _tried(raises)
    assert (tried.outcome.status, tried.result.state) == ("completed", "error")


async def test_a_tool_that_raises_the_end_of_a_generator_does_not_strand_the_session() -> None:
    @hf.tool(read_only=True)
    async def raises() -> str:
        raise GeneratorExit("x")

    assert (await _tried(raises)).following.status == "completed"


# ---- results that can't be kept --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_result_too_large_to_keep_is_told_as_a_call_that_took_effect(kind: str) -> None:
    @hf.tool(**KINDS[kind])
    async def gives_much() -> str:
        return "x" * 2_000

    assert "it ran to its end" in str((await _tried(gives_much, limits=SMALL)).result.content)


async def test_a_step_whose_value_is_too_large_to_keep_fails_and_says_that_it_took_effect() -> None:
    @hf.tool(read_only=True)
    async def steps(ctx: hf.Context) -> str:
        return await ctx.step("large", lambda: "x" * 2_000)

    assert "it ran to its end" in str((await _tried(steps, limits=SMALL)).result.content)


async def test_progress_that_can_not_be_shown_does_not_harm_the_call() -> None:
    @hf.tool(read_only=True)
    async def tells(ctx: hf.Context) -> str:
        note: Any = object()
        ctx.progress(note, fraction=float("nan"))
        return "ok"

    assert (await _tried(tells)).result.state == "ok"


# ---- a tool that cancels its own task --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_tool_that_cancels_its_own_task_gives_an_error_and_runs_once(kind: str) -> None:
    ran: list[str] = []

    @hf.tool(**KINDS[kind])
    async def cancels_itself() -> str:
        ran.append("once")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "x"

    tried = await _tried(cancels_itself)
    assert (tried.outcome.status, tried.result.state, ran) == ("completed", "error", ["once"])


async def test_a_session_whose_tool_cancelled_its_own_task_goes_on() -> None:
    @hf.tool(read_only=True)
    async def cancels_itself() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "x"

    assert (await _tried(cancels_itself)).following.status == "completed"


# ---- plain functions -------------------------------------------------------------------------------------------------


async def _watched() -> list[Any]:
    """The result of a plain function that waits until somebody has seen its progress."""
    go_on = threading.Event()

    @hf.tool(read_only=True)
    def works(ctx: hf.Context) -> str:
        ctx.progress("half way")
        return "done" if go_on.wait(SOON) else "nobody saw it"

    agent = hf.Agent("a", model=ScriptedModel([call("works"), text("ok")]), tools=[works], policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("x")
        async for event in turn.events():
            if isinstance(event, hf.events.ToolCallProgress):
                go_on.set()
        return [found.content for found in _results(await runtime.session("s").history())]


@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
def test_progress_of_a_plain_function_is_seen_while_it_runs(debug: bool) -> None:
    assert asyncio.run(_watched(), debug=debug) == ["done"]


async def test_plain_functions_that_hang_do_not_keep_others_from_running() -> None:
    free = threading.Event()

    @hf.tool(read_only=True, timeout=0.1)
    def hangs() -> str:
        free.wait(SOON)
        return "x"

    @hf.tool(read_only=True, timeout=SOON)
    def quick() -> str:
        return "quick"

    many = hf.Agent(
        "many", model=ScriptedModel([[call("hangs")] * 40, text("ok")]), tools=[hangs], policy=[hf.allow("*")]
    )
    one = hf.Agent("one", model=ScriptedModel([call("quick"), text("ok")]), tools=[quick], policy=[hf.allow("*")])
    async with hf.open(None, agents=[many, one]) as runtime:
        await runtime.run(many, "x")
        await runtime.run(one, "x", session="one")
        found = [result.content for result in _results(await runtime.session("one").history())]
        free.set()
        assert found == ["quick"]


def test_a_plain_function_that_hangs_does_not_keep_the_process_from_ending() -> None:
    free = threading.Event()

    @hf.tool(read_only=True, timeout=0.1)
    def hangs() -> str:
        free.wait(SOON)
        return "x"

    asyncio.run(
        hf.run(
            hf.Agent("a", model=ScriptedModel([call("hangs"), text("ok")]), tools=[hangs], policy=[hf.allow("*")]), "x"
        )
    )
    hanging = [thread for thread in threading.enumerate() if thread.name.endswith("hangs")]
    free.set()
    assert [thread.daemon for thread in hanging] == [True]


# ---- calls that were interrupted -------------------------------------------------------------------------------------


class Interrupted:
    """A tool that is in the middle of something when the turn is stopped."""

    def __init__(self, **options: Any) -> None:
        self.reached = asyncio.Event()

        @hf.tool(**options)
        async def acts() -> str:
            self.reached.set()
            await asyncio.Event().wait()
            return ""

        self.agent = hf.Agent(
            "a", model=ScriptedModel([call("acts"), text("next")]), tools=[acts], policy=[hf.allow("*")]
        )

    async def running(self) -> None:
        await asyncio.wait_for(self.reached.wait(), SOON)


@pytest.mark.parametrize(("kind", "state"), STATES)
async def test_a_call_that_was_stopped_in_the_middle_is_told_as_it_is(kind: str, state: str) -> None:
    case = Interrupted(**KINDS[kind])
    async with hf.open(None, agents=[case.agent]) as runtime:
        turn = await runtime.session("s", agent=case.agent).send("x")
        await case.running()
        await turn.cancel("no")
        await turn.outcome(timeout=SOON)
        assert [found.state for found in _results(await runtime.session("s").history())] == [state]


async def _stopped_while_nobody_drives(case: Interrupted, path: Path, agents: list[hf.Agent]) -> list[str]:
    """The states of the calls of a turn that one process left in the middle, and that the next one has to stop."""
    async with hf.open(path, agents=[case.agent]) as runtime:
        await runtime.session("s", agent=case.agent).send("x")
        await case.running()
        await runtime.close(grace=0)
    async with hf.open(path, drive=False) as runtime:
        await runtime.session("s").turn("t1").cancel("no")
    async with hf.open(path, agents=agents) as runtime:
        if not agents:
            await context_of(runtime).sessions.settle("s")
        await runtime.session("s").turn("t1").outcome(timeout=SOON)
        return [found.state for found in _results(await runtime.session("s").history())]


@pytest.mark.parametrize(("kind", "state"), [("acting", "unknown"), ("idempotent", "unknown"), ("reading", "skipped")])
async def test_a_call_that_another_process_left_in_the_middle_is_told_as_it_is(
    kind: str, state: str, tmp_path: Path
) -> None:
    case = Interrupted(**KINDS[kind])
    assert await _stopped_while_nobody_drives(case, tmp_path / "s.db", [case.agent]) == [state]


async def test_a_call_of_an_agent_that_is_not_here_may_have_taken_effect(tmp_path: Path) -> None:
    case = Interrupted(idempotent=True)
    assert await _stopped_while_nobody_drives(case, tmp_path / "s.db", []) == ["unknown"]


async def test_a_call_that_was_not_begun_when_the_turn_was_stopped_is_skipped(tmp_path: Path) -> None:
    case = Interrupted(idempotent=True)
    model = ScriptedModel([[call("acts"), call("acts")], text("next")])
    case.agent = hf.Agent("a", model=model, tools=list(case.agent.tools.values()), policy=[hf.allow("*")])
    states = await _stopped_while_nobody_drives(case, tmp_path / "s.db", [case.agent])
    assert states == ["unknown", "skipped"]


async def test_a_call_in_a_fork_that_begins_before_its_result_is_unknown() -> None:
    case = Interrupted(idempotent=True)
    async with hf.open(None, agents=[case.agent]) as runtime:
        session = runtime.session("s", agent=case.agent)
        turn = await session.send("x")
        await case.running()
        fork = await (await session.fork()).fork()
        states = [found.state for found in _results(await fork.history())]
        await turn.cancel("enough")
        await turn.outcome(timeout=SOON)
        assert states == ["unknown"]
