"""Turns that a notification began, on the command line: their answer is shown, and why they began."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.behaviour.background import asked

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from tests.behaviour.shell import Shell

AGENTS = """
import asyncio
from pathlib import Path

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text


@hf.tool(background=True, read_only=True)
async def dig() -> str:
    Path("begun").touch()
    while not Path("open").exists():
        await asyncio.sleep(0.02)
    return "gold"


script = [call("dig"), text("I am digging."), text("We are rich.")]
digger = hf.Agent("digger", model=ScriptedModel(script), tools=[dig])
"""


@pytest.fixture
async def digging(shell: Shell) -> None:
    """A session whose task was begun, and is driven by nobody now."""
    (shell.folder / "digger.py").write_text(AGENTS)

    @hf.tool(background=True, read_only=True)
    async def dig() -> str:
        await asyncio.Event().wait()
        return "never"

    agent = hf.Agent("digger", model=ScriptedModel([call(dig), text("I am digging.")]), tools=[dig])
    async with hf.open(shell.folder / ".holdfast" / "holdfast.db", agents=[agent]) as runtime:
        await asked(runtime, agent, session="s")
        await runtime.close(grace=0)


RESUME = ("resume", "s", "--agent", "digger.py:digger")


@pytest.mark.usefixtures("digging")
def test_resume_shows_the_answer_of_the_turn_that_a_notification_began(shell: Shell) -> None:
    shell.open_gate()
    done = shell(*RESUME)
    assert (done.returncode, done.stdout) == (0, "We are rich.\n")


@pytest.mark.usefixtures("digging")
def test_resume_says_which_notification_began_the_turn(shell: Shell) -> None:
    shell.open_gate()
    assert "t2 began by itself: notification 1, The background call of dig has completed" in shell(*RESUME).stderr


@pytest.mark.usefixtures("digging")
def test_resume_waits_for_the_task_and_for_the_turn_that_is_told_of_it(shell: Shell) -> None:
    resuming = shell.start(*RESUME)
    shell.until(shell.begun)
    assert resuming.poll() is None
    shell.open_gate()
    assert resuming.communicate(timeout=20)[0] == "We are rich.\n"


def test_chat_says_in_one_line_why_a_turn_began_by_itself_and_shows_its_answer(shell: Shell) -> None:
    (shell.folder / "digger.py").write_text(AGENTS)
    with ThreadPoolExecutor(1) as beside:
        chatting = beside.submit(shell, "chat", "digger.py:digger", "--as", "s", stdin="go\n")
        shell.until(lambda: any((line["id"], line["status"]) == ("s", "completed") for line in shell.ps()))
        shell.open_gate()
        done = chatting.result()
    assert done.stdout == "I am digging.\nWe are rich.\n"
    assert [line for line in done.stderr.splitlines() if "began by itself" in line] == [
        "t2 began by itself: notification 1, The background call of dig has completed"
    ]


def test_what_a_person_asked_for_has_no_such_line(shell: Shell) -> None:
    done = shell("chat", "agents.py:echo", stdin="one\n")
    assert "began by itself" not in done.stderr
