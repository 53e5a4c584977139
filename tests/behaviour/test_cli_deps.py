"""The command line gives tools the dependencies that the agent's module names `deps`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.behaviour.shell import Shell

AGENT = '''
from contextlib import asynccontextmanager
from pathlib import Path

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text


class Bank:
    def __init__(self) -> None:
        self.refunds = []


@asynccontextmanager
async def deps():
    bank = Bank()
    yield bank
    Path("left.txt").write_text(" ".join(bank.refunds))


@hf.tool
async def refund(ctx: hf.Context[Bank], order: str) -> str:
    """Refund an order."""
    ctx.deps.refunds.append(order)
    return "refunded"


@hf.process
async def refund_all(ctx: hf.ProcessContext[Bank], orders: str) -> str:
    ctx.deps.refunds.extend(orders.split())
    return "refunded"


shop = hf.Agent(
    "shop", model=ScriptedModel([call("refund", order="7"), text("Done.")]), tools=[refund], policy=[hf.allow("*")]
)
'''


def test_run_enters_and_leaves_the_dependencies_of_the_module(shell: Shell) -> None:
    (shell.folder / "shop.py").write_text(AGENT)
    assert shell("run", "shop.py", "refund 7").stdout == "Done.\n"
    assert (shell.folder / "left.txt").read_text() == "7"


def test_a_process_gets_the_dependencies_of_its_module(shell: Shell) -> None:
    (shell.folder / "shop.py").write_text(AGENT)
    done = shell("processes", "start", "shop.py:refund_all", '{"orders": "8 9"}')
    assert done.returncode == 0, done.stderr
    assert (shell.folder / "left.txt").read_text() == "8 9"


def test_a_module_without_the_dependencies_that_its_tool_wants_is_refused_by_name(shell: Shell) -> None:
    (shell.folder / "shop.py").write_text(AGENT.replace("async def deps", "async def other"))
    done = shell("run", "shop.py", "refund 7")
    assert done.returncode != 0
    assert "the tool 'refund' of the agent 'shop' wants Bank as its dependencies" in done.stderr
