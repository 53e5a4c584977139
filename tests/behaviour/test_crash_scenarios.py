"""`CrashRunner`: a scenario is killed at every crash point, resumed, and checked."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf
from holdfast.testing import CrashRunner, CrashStage, ScriptedModel, call, text

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def runner(tmp_path: Path) -> CrashRunner:
    return CrashRunner(tmp_path / "crashes", "the_test")


def shop(stage: CrashStage, pay: hf.Tool[..., Any]) -> hf.Agent:
    model = ScriptedModel([call("pay", cents=100), text("Paid.")])
    return hf.Agent("shop", model=model, tools=[pay], policy=[hf.allow("*")])


async def careful(stage: CrashStage) -> None:
    @hf.tool
    async def pay(ctx: hf.Context, cents: int) -> str:
        """Pay."""
        stage.act(ctx, f"pay {cents}")
        return "paid"

    async with hf.open(stage.path, agents=[agent := shop(stage, pay)]) as runtime:
        outcome = await runtime.run(agent, "go", session="s", key="k")
    assert outcome.ok


async def careless(stage: CrashStage) -> None:
    """Says that paying may be repeated, which is not true."""

    @hf.tool(idempotent=True)
    async def pay(ctx: hf.Context, cents: int) -> str:
        """Pay."""
        stage.act(ctx, f"pay {cents}")
        return "paid"

    async with hf.open(stage.path, agents=[agent := shop(stage, pay)]) as runtime:
        await runtime.run(agent, "go", session="s", key="k")


async def forgetful(stage: CrashStage) -> None:
    """Sends its input without a key, so the second process has a turn of its own."""
    agent = hf.Agent("a", model=ScriptedModel(lambda _: text("Hello.")))
    async with hf.open(stage.path, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        history = await runtime.session("s").history()
    assert len(history) == 2, f"{len(history)} messages"


async def unlucky(stage: CrashStage) -> None:
    raise LookupError("nothing here")


@pytest.mark.torture
def test_a_scenario_that_keeps_its_promises_survives_a_kill_at_every_point(runner: CrashRunner) -> None:
    report = runner(careful)
    assert report.killed > len(report.points) / 2
    names = {point.partition(":")[0] for point in report.points}
    assert {"tool.before_run", "tool.after_run", "store.committed"} <= names


def test_a_scenario_is_killed_where_the_seed_says(runner: CrashRunner) -> None:
    report = runner(careful, most=6)
    assert len(report.points) == 6
    assert report.killed > 2


def test_an_effect_that_happens_twice_is_found_and_says_how_to_repeat_it(
    runner: CrashRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CRASH_AT", "tool.after_run:1")
    with pytest.raises(AssertionError, match=r"repeated: .*attempted 2 times") as caught:
        runner(careless)
    assert "HOLDFAST_CRASH_AT=tool.after_run:1" in str(caught.value)
    assert "pytest 'the_test'" in str(caught.value)


def test_one_kill_can_be_repeated(
    runner: CrashRunner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_CRASH_AT", "tool.after_run:1")
    monkeypatch.setenv("HOLDFAST_CRASH_SEED", "7")
    report = runner(careful)
    assert (report.seed, report.points, report.killed) == (7, ("tool.after_run:1",), 1)
    assert "HOLDFAST_CRASH_SEED=7" in capsys.readouterr().out


def test_the_asserts_of_a_scenario_count_after_a_kill(runner: CrashRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CRASH_AT", "model.mid_stream:1")
    with pytest.raises(AssertionError, match="4 messages"):
        runner(forgetful)


def test_a_scenario_that_fails_without_a_kill_is_named(runner: CrashRunner) -> None:
    with pytest.raises(AssertionError, match=r"(?s)without a kill fails.*LookupError: nothing here"):
        runner(unlucky)


async def hanging(stage: CrashStage) -> None:
    await asyncio.Event().wait()


def test_a_scenario_that_hangs_is_ended(runner: CrashRunner) -> None:
    with pytest.raises(AssertionError, match="did not end within 1 s"):
        runner(hanging, timeout=1)


async def test_a_scenario_may_run_from_a_test_that_is_async(runner: CrashRunner) -> None:
    assert runner(careful, most=1).points
    assert os.environ.get("HOLDFAST_CRASH_AT") is None
