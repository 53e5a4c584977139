"""Code mode on the command line: the calls of a program stand below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sandboxed import needs_sandbox

if TYPE_CHECKING:
    from tests.behaviour.shell import Shell

pytestmark = needs_sandbox
AGENT = '''
import holdfast as hf
from holdfast.testing import ScriptedModel, call

@hf.tool(read_only=True)
async def price(title: str) -> int:
    """The price of a book."""
    return len(title)

source = "total = await price('Emma')\\nawait finish(f'it is {total}')"
agent = hf.Agent("shop", model=ScriptedModel([call("run_program", source=source)]), tools=[price], mode="code")
'''


def test_a_program_is_run_shown_logged_and_checked(shell: Shell) -> None:
    (shell.folder / "shop.py").write_text(AGENT, encoding="utf-8")
    assert shell("run", "shop.py", "go", "--as", "s").stdout.strip() == "it is 4"
    shown = shell("show", "s").stdout.splitlines()
    (inner,) = [line for line in shown if "price ok" in line]
    (outer,) = [line for line in shown if "run_program ok" in line]
    assert inner.index("tool") == outer.index("tool") + 2
    assert shown[-1].strip() == "| it is 4"
    assert "  calls price" in shell("logs", "s").stdout
    assert shell("replay", "s", "--check").stdout == "t1  ok (completed)\n"
