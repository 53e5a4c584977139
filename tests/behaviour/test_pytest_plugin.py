"""The plugin for pytest: in a pytest of its own, with pytest-asyncio, with anyio, and with neither."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SCHEDULE: Final = """
import datetime, pytest
import holdfast as hf
from holdfast.testing import ScriptedModel, text

@hf.process
async def nap(ctx: hf.ProcessContext) -> str:
    await ctx.sleep(datetime.timedelta(days=2))
    return "rested"

agent = hf.Agent("a", model=ScriptedModel(lambda _: text("Hello.")))

{mark}
async def test_days_pass_and_the_next_runtime_goes_on(holdfast_runtime, holdfast_clock):
    async with holdfast_runtime(agents=[agent], processes=[nap]) as runtime:
        process = await runtime.start(nap, id="nap")
        assert (await runtime.run(agent, "go", session="s")).text == "Hello."
    async with holdfast_runtime(agents=[agent], processes=[nap]) as runtime:
        await holdfast_clock.advance(days=3)
        assert await runtime.processes.handle("nap").result(timeout=30) == "rested"
        assert len(await runtime.sessions()) == 1
    async with holdfast_runtime(memory=True) as runtime:
        assert await runtime.sessions() == []
"""
SYNC: Final = """
import datetime
import holdfast as hf

@hf.process
async def nap(ctx: hf.ProcessContext) -> str:
    await ctx.sleep(datetime.timedelta(days=2))
    return "rested"

def test_days_pass(holdfast_runtime, holdfast_clock):
    with holdfast_runtime.sync(processes=[nap]) as runtime:
        process = runtime.start(nap, id="nap")
        holdfast_clock.advance_sync(runtime, days=1)
        assert process.status() != "completed"
    with holdfast_runtime.sync(processes=[nap]) as runtime:
        holdfast_clock.advance_sync(runtime, days=2)
        assert runtime.processes.handle("nap").result(timeout=30) == "rested"
"""
CRASH: Final = """
import holdfast as hf
from holdfast.testing import ScriptedModel, call, text

async def scenario(stage):
    @hf.tool
    async def pay(ctx: hf.Context) -> str:
        "Pay."
        stage.act(ctx)
        return "paid"

    model = ScriptedModel([call("pay"), text("Paid.")])
    agent = hf.Agent("shop", model=model, tools=[pay], policy=[hf.allow("*")])
    async with hf.open(stage.path, agents=[agent]) as runtime:
        assert (await runtime.run(agent, "go", session="s", key="k")).ok

def test_nothing_is_paid_twice(holdfast_crash):
    assert holdfast_crash(scenario, most=2).points
"""
LAZY: Final = """
import sys

def test_nothing_was_loaded():
    assert "holdfast.testing" not in sys.modules
    assert "holdfast.runtime.runtime" not in sys.modules
    assert not {"apsw", "pydantic", "msgspec"} & set(sys.modules)
"""


def run(folder: Path, code: str, *plugins: str) -> str:
    if "pytest_asyncio.plugin" in plugins:
        folder.joinpath("pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    folder.joinpath("test_it.py").write_text(code, encoding="utf-8")
    loaded = [word for name in ("holdfast.pytest_plugin", *plugins) for word in ("-p", name)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", *loaded, "test_it.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("plugin", "mark"),
    [
        ("pytest_asyncio.plugin", "@pytest.mark.asyncio"),
        ("anyio.pytest_plugin", "@pytest.mark.parametrize('anyio_backend', ['asyncio'])\n@pytest.mark.anyio"),
    ],
)
def test_runtime_and_clock_work_with_each_plugin_for_async_tests(plugin: str, mark: str, tmp_path: Path) -> None:
    assert "1 passed" in run(tmp_path, SCHEDULE.format(mark=mark), plugin)


def test_runtime_and_clock_work_in_a_test_that_is_not_async(tmp_path: Path) -> None:
    assert "1 passed" in run(tmp_path, SYNC)


def test_a_scenario_is_killed_in_a_test_that_is_not_async(tmp_path: Path) -> None:
    assert "1 passed" in run(tmp_path, CRASH)


def test_the_plugin_loads_nothing_before_a_fixture_is_used(tmp_path: Path) -> None:
    assert "1 passed" in run(tmp_path, LAZY)


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"holdfast": "holdfast.pytest_plugin"}
