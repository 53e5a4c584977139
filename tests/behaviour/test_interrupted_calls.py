"""What came of an interrupted call: the tool's own finding counts, or the answer of a person, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.errors import AnswerInvalid, AskAnswerInvalid, WaitUnknown
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime

SESSION = "s"
WAIT = "t1/2.tools/1.pay/%reconcile-1/ask"


def _pays(reached: asyncio.Event) -> Callable[[], Any]:
    """A function that is interrupted when it runs for the first time."""

    async def pay() -> str:
        """Pay."""
        if not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return "paid now"

    return pay


def _agent(tool: hf.Tool[..., Any]) -> hf.Agent:
    model = ScriptedModel([call("pay"), text("Done.")])
    return hf.Agent("agent", model=model, tools=[tool], policy=[hf.allow("*")])


async def _interrupted(path: Path, tool: hf.Tool[..., Any], reached: asyncio.Event) -> None:
    """A turn that was in the middle of its call when its runtime was closed."""
    agent = _agent(tool)
    async with hf.open(path, agents=[agent]) as runtime:
        await runtime.session(SESSION, agent=agent).send("go")
        await asyncio.wait_for(reached.wait(), SOON)
        await runtime.close(grace=0)


async def _result(runtime: Runtime) -> hf.ToolResult:
    await runtime.session(SESSION).turn("t1").outcome(timeout=SOON)
    messages = await runtime.session(SESSION).history()
    (found,) = [result for message in messages if isinstance(message, hf.ToolMessage) for result in message.results]
    return found


# ---- reconcile -------------------------------------------------------------------------------------------------------


async def _finds_nothing(ctx: hf.Context) -> None:
    """Forgets to say what it found."""


async def test_reconcile_that_gives_none_for_a_tool_that_does_not_has_not_found_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reached = asyncio.Event()
    tool = hf.tool("pay", reconcile=_finds_nothing)(_pays(reached))
    await _interrupted(tmp_path / "s.db", tool, reached)
    with caplog.at_level(logging.WARNING, "holdfast.tools"):
        async with hf.open(tmp_path / "s.db", agents=[_agent(tool)]) as runtime:
            assert (await _result(runtime)).state == "unknown"
    assert "reconcile of 'pay' gave None" in caplog.text


async def test_reconcile_that_gives_none_for_a_tool_without_an_annotation_has_not_found_out(tmp_path: Path) -> None:
    reached = asyncio.Event()
    pays = _pays(reached)
    del pays.__annotations__["return"]
    tool = hf.tool("pay", reconcile=_finds_nothing)(pays)
    await _interrupted(tmp_path / "s.db", tool, reached)
    async with hf.open(tmp_path / "s.db", agents=[_agent(tool)]) as runtime:
        assert (await _result(runtime)).state == "unknown"


@pytest.mark.parametrize("returns", [None, "str | None", Any], ids=["none", "optional", "any"])
async def test_reconcile_that_gives_none_for_a_tool_that_may_has_found_that_it_was_done(
    tmp_path: Path, returns: Any
) -> None:
    reached = asyncio.Event()
    pays = _pays(reached)
    pays.__annotations__["return"] = returns
    tool = hf.tool("pay", reconcile=_finds_nothing)(pays)
    await _interrupted(tmp_path / "s.db", tool, reached)
    async with hf.open(tmp_path / "s.db", agents=[_agent(tool)]) as runtime:
        result = await _result(runtime)
        assert (result.state, result.content) == ("ok", None)


async def test_reconcile_that_has_not_found_out_leaves_it_to_a_person_where_the_tool_says_so(tmp_path: Path) -> None:
    reached = asyncio.Event()
    tool = hf.tool("pay", reconcile=_finds_nothing, on_interrupt="ask")(_pays(reached))
    await _interrupted(tmp_path / "s.db", tool, reached)
    async with hf.open(tmp_path / "s.db", agents=[_agent(tool)]) as runtime:
        await until(lambda: _asks(runtime))


# ---- a person --------------------------------------------------------------------------------------------------------


async def _asks(runtime: Runtime, name: str = WAIT) -> bool:
    return [wait.name for wait in await runtime.waits(SESSION)] == [name]


async def _asked(path: Path) -> hf.Tool[..., Any]:
    reached = asyncio.Event()
    tool = hf.tool("pay", on_interrupt="ask")(_pays(reached))
    await _interrupted(path, tool, reached)
    return tool


@pytest.mark.parametrize(
    "answer", ["done", "yes", None, True, {"done": "paid", "by": "ada"}, {"not_done": False}, ["not_done"]], ids=repr
)
async def test_an_answer_that_does_not_say_what_came_of_the_call_is_refused(tmp_path: Path, answer: Any) -> None:
    tool = await _asked(tmp_path / "s.db")
    async with hf.open(tmp_path / "s.db", agents=[_agent(tool)]) as runtime:
        await until(lambda: _asks(runtime))
        with pytest.raises(AskAnswerInvalid, match="not_done") as caught:
            await runtime.resolve(runtime.wait_token(SESSION, WAIT), answer)
        assert (caught.value.journal, caught.value.name, caught.value.value) == (SESSION, WAIT, answer)
        assert await _asks(runtime)


async def test_a_process_that_does_not_know_the_agent_refuses_it_too(tmp_path: Path) -> None:
    tool = await _asked(tmp_path / "s.db")
    async with hf.open(tmp_path / "s.db", agents=[_agent(tool)]) as runtime:
        await until(lambda: _asks(runtime))
    async with hf.open(tmp_path / "s.db", drive=False) as runtime:
        with pytest.raises(AskAnswerInvalid):
            await runtime.resolve(runtime.wait_token(SESSION, WAIT), "yes")


async def test_a_result_that_does_not_fit_the_tool_is_refused(tmp_path: Path) -> None:
    tool = await _asked(tmp_path / "s.db")
    async with hf.open(tmp_path / "s.db", agents=[_agent(tool)]) as runtime:
        await until(lambda: _asks(runtime))
        with pytest.raises(AnswerInvalid):
            await runtime.resolve(runtime.wait_token(SESSION, WAIT), {"done": 7})
        assert await _asks(runtime)


@pytest.mark.parametrize(
    ("answer", "state", "content"),
    [
        ({"done": "paid by hand"}, "ok", "paid by hand"),
        ("not_done", "ok", "paid now"),
        ({"not_done": True}, "ok", "paid now"),
        ("unknown", "unknown", None),
    ],
    ids=repr,
)
async def test_an_answer_that_says_what_came_of_the_call_counts(
    tmp_path: Path, answer: Any, state: str, content: str | None
) -> None:
    tool = await _asked(tmp_path / "s.db")
    async with hf.open(tmp_path / "s.db", agents=[_agent(tool)]) as runtime:
        await until(lambda: _asks(runtime))
        await runtime.resolve(runtime.wait_token(SESSION, WAIT), {"done": "paid"} if answer is None else answer)
        result = await _result(runtime)
        assert result.state == state
        assert content is None or result.content == content


async def test_a_person_who_says_that_there_is_no_answer_leaves_it_unknown(tmp_path: Path) -> None:
    tool = await _asked(tmp_path / "s.db")
    async with hf.open(tmp_path / "s.db", agents=[_agent(tool)]) as runtime:
        await until(lambda: _asks(runtime))
        await runtime.resolve(runtime.wait_token(SESSION, WAIT), error="the bank does not answer")
        assert (await _result(runtime)).state == "unknown"


async def test_a_wrong_answer_that_was_taken_unseen_is_asked_for_again(tmp_path: Path) -> None:
    """Written by a process that could not see what is asked."""
    tool = await _asked(tmp_path / "s.db")
    async with hf.open(tmp_path / "s.db", agents=[_agent(tool)]) as runtime:
        await until(lambda: _asks(runtime))
    async with hf.open_store(tmp_path / "s.db") as store:
        await store.resolve(store.wait_token(SESSION, WAIT), {"done": 7})
    async with hf.open(tmp_path / "s.db", agents=[_agent(tool)]) as runtime:
        await until(lambda: _asks(runtime, f"{WAIT}#2"))
        await runtime.resolve(runtime.wait_token(SESSION, f"{WAIT}#2"), {"done": "paid"})
        assert (await _result(runtime)).content == "paid"


async def test_whoever_answers_too_late_learns_that_and_not_what_is_wrong(tmp_path: Path) -> None:
    tool = await _asked(tmp_path / "s.db")
    async with hf.open(tmp_path / "s.db", agents=[_agent(tool)]) as runtime:
        await until(lambda: _asks(runtime))
        token = runtime.wait_token(SESSION, WAIT)
        await runtime.resolve(token, "unknown")
        assert not (await runtime.resolve(token, "yes")).won
        with pytest.raises(WaitUnknown):
            await runtime.resolve(f"{token[:-1]}{'a' if token[-1] != 'a' else 'b'}", "yes")
