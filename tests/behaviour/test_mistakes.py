"""Mistakes that are easily made are told where they are made, in words that help."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.every import every
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.errors import InvalidArgument, ModelUnknown, PolicyInvalid, RuntimeUnopened, ToolInvalid
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from pathlib import Path


@hf.tool
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def agent(**options: Any) -> hf.Agent:
    given: dict[str, Any] = {
        "model": ScriptedModel([text("hello")]),
        "tools": [pay],
        "policy": [hf.allow("*")],
        **options,
    }
    return hf.Agent("a", **given)


# ---- hf.open ---------------------------------------------------------------------------------------------------------


def test_a_runtime_that_is_used_without_being_opened_says_what_is_missing() -> None:
    opening: Any = hf.open(None)
    with pytest.raises(RuntimeUnopened, match="'session' needs an open runtime"):
        opening.session("s")


def test_a_runtime_in_a_plain_with_says_what_is_missing() -> None:
    opening: Any = hf.open(None)
    with pytest.raises(RuntimeUnopened, match="async with"), opening:
        pass


# ---- agents ----------------------------------------------------------------------------------------------------------


@every("family", ["files", "memory", "plan", "project", "shell", "skills", "tasks", "timers", "web"])
def test_a_family_of_tools_that_was_not_called_is_told_when_the_agent_is_made(family: str) -> None:
    with pytest.raises(ToolInvalid, match=rf"write hf\.tools\.{family}\(\.\.\.\)"):
        agent(tools=[getattr(hf.tools, family)])


def test_a_rule_for_a_tool_that_is_not_there_is_told_when_nothing_else_is_said_about_the_one_that_was_meant() -> None:
    with pytest.raises(PolicyInvalid, match=r"no tool 'pya'; did you mean 'pay'\?"):
        agent(policy=[hf.allow("pya")])


def test_a_rule_for_a_tool_that_is_not_there_is_logged_where_another_rule_is_about_the_one_that_was_meant(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "holdfast.policy"):
        agent(policy=[hf.deny("pya"), hf.allow("*")])
    assert "did you mean 'pay'?" in caplog.text


def test_a_policy_for_several_agents_may_name_tools_that_one_of_them_lacks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast.policy"):
        agent(policy=[hf.deny("shell"), hf.ask("send_mail"), hf.allow("pay")])
    assert caplog.text == ""


@pytest.mark.parametrize("given", ["antropic:claude-sonnet-4-6", [ScriptedModel([]), "antropic:claude-sonnet-4-6"]])
def test_a_provider_that_is_not_known_is_told_when_the_agent_is_made(given: Any) -> None:
    with pytest.raises(ModelUnknown, match="did you mean 'anthropic:claude-sonnet-4-6'"):
        agent(model=given)


# ---- words -----------------------------------------------------------------------------------------------------------


async def test_an_empty_path_is_not_said_to_be_of_the_wrong_type() -> None:
    with pytest.raises(InvalidArgument) as refused:
        async with hf.open(""):
            pass
    assert "not a str" not in str(refused.value)


@pytest.mark.parametrize("limits", [hf.Limits(steps=1), hf.Limits(tool_calls=1), hf.Limits(tokens=1)], ids=str)
async def test_what_a_limit_allowed_and_what_was_used_are_of_one_kind_live_and_read(
    limits: hf.Limits, tmp_path: Path
) -> None:
    script = [call("pay", cents=1), call("pay", cents=2), text("never")]
    asked = agent(model=ScriptedModel(script), limits=limits)
    async with hf.open(tmp_path / "s.db", agents=[asked]) as runtime:
        live = await runtime.run(asked, "go", session="s")
    async with hf.open(tmp_path / "s.db", agents=[asked]) as runtime:
        read = await runtime.session("s").turn("t1").outcome()
    assert live.status == "limit"
    assert [repr(value) for value in (live.allowed, live.used)] == [repr(value) for value in (read.allowed, read.used)]


# ---- what the model reads about calls that were stopped --------------------------------------------------------------


async def results(runtime: hf.Runtime, session: str = "s") -> list[str]:
    history = await runtime.session(session).history()
    return [str(result.content) for message in history for result in getattr(message, "results", ())]


async def test_a_call_that_timed_out_says_so_to_the_model() -> None:
    @hf.tool(timeout=0.05)
    async def pay(cents: int) -> str:
        """Pay."""
        await asyncio.Event().wait()
        return ""

    asked = agent(model=ScriptedModel([call("pay", cents=1), text("done")]), tools=[pay])
    async with hf.open(None, agents=[asked]) as runtime:
        await runtime.run(asked, "go", session="s")
        (said,) = await results(runtime)
    assert said.startswith("pay did not finish within 0.05 s and was stopped. It is not known whether")


async def test_the_reason_of_a_cancel_reaches_the_model_with_each_call_that_it_stopped(tmp_path: Path) -> None:
    reached = asyncio.Event()

    @hf.tool(read_only=True)
    async def look() -> str:
        """Look."""
        reached.set()
        await asyncio.Event().wait()
        return ""

    @hf.tool
    async def act() -> str:
        """Act."""
        reached.set()
        await asyncio.Event().wait()
        return ""

    for number, name in enumerate(("look", "act")):
        reached.clear()
        script = [[call(name), call("pay", cents=1)], text("never")]
        asked = agent(model=ScriptedModel(script), tools=[look, act, pay])
        async with hf.open(tmp_path / f"{number}.db", agents=[asked]) as runtime:
            turn = await runtime.session("s", agent=asked).send("go")
            await asyncio.wait_for(reached.wait(), PATIENCE)
            await turn.cancel("the customer hung up")
            await turn.outcome(timeout=PATIENCE)
            said = await results(runtime)
        assert ["the customer hung up" in each for each in said] == [True, True]
