"""mypy accepts what users write, and refuses what would fail at run time. `make types` asks basedpyright the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REFUSED = {
    "a tool that wants other dependencies than the agent has": """
        hf.Agent[Bank, str]("a", model="m", tools=[of_another])
    """,
    "a runtime without the dependencies of its agent": """
        hf.open(None, agents=[hf.Agent[Bank, str]("a", model="m", tools=[of_a_bank])], deps=Another())
    """,
    "an argument that a process does not take": """
        async def f(runtime: hf.Runtime) -> None:
            await runtime.start(bill, 7)
    """,
    "a result that is taken for another type": """
        async def g(runtime: hf.Runtime) -> None:
            total: str = await (await runtime.start(bill, "ada")).result()
    """,
    "instructions that want other dependencies than the agent has": """
        hf.Agent[Bank, str]("a", model="m", instructions=about_another)
    """,
    "a provider that wants other dependencies than the agent has": """
        hf.Agent[Bank, str]("a", model="m", tools=[of_another_provider])
    """,
    "instructions that are no text": """
        hf.Agent[Bank, str]("a", model="m", instructions=count)
    """,
    "the answer of an agent that may have none": """
        async def h(runtime: hf.Runtime, agent: hf.Agent[Bank, int]) -> int:
            return (await runtime.run(agent, "how much?")).value
    """,
}
BEGIN = """
from __future__ import annotations
import holdfast as hf

class Bank: ...
class Another: ...

@hf.tool
async def of_a_bank(ctx: hf.Context[Bank], x: str) -> str:
    return x

@hf.tool
async def of_another(ctx: hf.Context[Another], x: str) -> str:
    return x

def about_another(turn: hf.TurnContext[Another]) -> str:
    return ""

def count(turn: hf.TurnContext[Bank]) -> int:
    return 7

class Shelf:
    name = "shelf"
    async def list(self, ctx: hf.TurnContext[Another]) -> list[hf.ProvidedTool]:
        return []
    async def call(self, ctx: hf.Context[Another], tool: hf.ProvidedTool, arguments: dict[str, object]) -> object:
        return None

of_another_provider: hf.ToolProvider[Another] = Shelf()

@hf.process
async def bill(ctx: hf.ProcessContext[Bank], customer: str) -> int:
    return len(customer)

"""


def _mypy(*arguments: object, cache: Path) -> str:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(cache)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=110, check=False, env=environment
    )
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


def test_mypy_accepts_the_types_of_the_door_and_refuses_wrong_ones(cache: Path, tmp_path: Path) -> None:
    assert _mypy(HERE / "test_types_of_the_door.py", cache=cache) == ""
    program = tmp_path / "wrong.py"
    lines: dict[str, int] = {}
    text = BEGIN
    for name, wrong in REFUSED.items():
        lines[name] = text.count("\n") + 1
        text += "\n".join(line.removeprefix("        ") for line in wrong.strip("\n").splitlines()) + "\n"
    program.write_text(text)
    told = [line for line in _mypy(program, cache=cache).splitlines() if ": error: " in line]
    found = {int(line.split(":")[1]) for line in told}
    starts = [*sorted(lines.values()), text.count("\n") + 2]
    for name, start in lines.items():
        end = next(other for other in starts if other > start)
        assert any(start <= number < end for number in found), f"mypy accepts {name}:\n{text}\n{told}"
    assert min(found) >= min(lines.values()), told
