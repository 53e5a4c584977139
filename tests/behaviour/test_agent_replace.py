"""`agent.replace`: a copy of a definition with changes."""

from __future__ import annotations

import inspect

import pytest

import holdfast as hf
from holdfast import agent as definitions
from holdfast.errors import AgentInvalid, PolicyMissing
from holdfast.testing import ScriptedModel, text


@hf.tool
def refund(order_id: str) -> str:
    """Refund an order."""
    return order_id


def shop() -> hf.Agent:
    return hf.Agent(
        "shop",
        model=ScriptedModel([text("real")]),
        instructions="Sell books.",
        tools=[refund],
        policy=[hf.allow("*")],
        limits=hf.Limits(steps=7),
        output=None,
    )


async def test_a_copy_answers_by_its_own_model_and_keeps_everything_else() -> None:
    real = shop()
    copy = real.replace(model=ScriptedModel([text("scripted")]))
    assert (await hf.run(copy, "go")).text == "scripted"
    assert (await hf.run(real, "go")).text == "real"
    assert (copy.name, copy.instructions, copy.limits.steps) == ("shop", "Sell books.", 7)
    assert list(copy.tools) == ["refund"]
    assert copy.policy == real.policy
    assert copy.version == real.version


def test_changes_reach_the_version_of_the_copy_and_leave_the_original_alone() -> None:
    real = shop()
    before = real.version
    copy = real.replace(instructions="Sell flowers.", tools=[], name="florist")
    assert copy.version != before
    assert (copy.name, copy.tools) == ("florist", {})
    assert (real.version, list(real.tools)) == (before, ["refund"])


def test_a_copy_of_a_copy_keeps_the_changes_of_both() -> None:
    copy = shop().replace(instructions="Sell flowers.").replace(limits=hf.Limits(steps=3))
    assert (copy.instructions, copy.limits.steps) == ("Sell flowers.", 3)


def test_a_list_of_tools_that_changes_later_changes_no_copy() -> None:
    tools = [refund]
    real = hf.Agent("shop", model=ScriptedModel([]), tools=tools, policy=[hf.allow("*")])
    tools.clear()
    assert list(real.replace(instructions="Hello.").tools) == ["refund"]


def test_a_copy_is_checked_like_a_new_agent() -> None:
    with pytest.raises(PolicyMissing):
        shop().replace(policy=None)
    with pytest.raises(AgentInvalid, match="sandbox and program_limits"):
        shop().replace(program_limits=hf.ProgramLimits())
    with pytest.raises(TypeError, match="modle"):
        shop().replace(modle="x")  # pyright: ignore[reportCallIssue]  # a word that was mistyped


def test_everything_that_defines_an_agent_can_be_replaced() -> None:
    defined = set(inspect.signature(hf.Agent).parameters)
    assert set(definitions.AgentChanges.__annotations__) == defined
