"""The coding agent of `examples/coding_agent.py`: on a terminal and in a pipe, stopped, steered, killed and resumed."""

from __future__ import annotations

import os
import pty
import random
import select
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from tests.applications import EXAMPLES, application
from tests.patience import PATIENCE
from tests.programs import Program, run

import holdfast as hf
from holdfast.store import open_store
from holdfast.testing import check
from holdfast.toolkits.shell import sandbox_problem

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tests.programs import Done, Process, Programs

pytestmark = pytest.mark.skipif(sandbox_problem() is not None, reason="no sandbox here")
FIXED = "return sum(cents) * (100 - discount) // 100"
REQUEST = "Fix the failing test.\n"
SLOW = """
import os, time
if not os.path.exists("begun"):
    open("begun", "w").close()
    time.sleep(60)
"""


@dataclass(slots=True)
class Screen:
    """A person at a terminal with the program."""

    process: Process
    leader: int
    seen: str = ""
    _read: int = field(default=0, init=False)

    def until(self, words: str) -> None:
        """Wait for words behind those that were waited for before."""
        ends = time.monotonic() + PATIENCE
        while (at := self.seen.find(words, self._read)) < 0:
            assert time.monotonic() < ends, f"{words!r} did not come:\n{self.seen}"
            if select.select([self.leader], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.leader, 65_536).decode(errors="replace").replace("\r\n", "\n")
                except OSError:  # the program has ended
                    assert words in self.seen[self._read :], f"{words!r} did not come:\n{self.seen}"
        self._read = at + len(words)

    def type(self, line: str) -> None:
        os.write(self.leader, f"{line}\n".encode())

    def leave(self) -> int:
        os.write(self.leader, b"\x04")
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        assert self.process.wait(PATIENCE) == -signal.SIGKILL


@dataclass(frozen=True, slots=True)
class Project:
    """The sample project, and the program that works on it."""

    programs: Programs
    folder: Path

    def program(self, *words: str, stdin: str = "", terminal: int | None = None) -> Program:
        environment = {name: value for name, value in os.environ.items() if name != "CODING_AGENT_MODEL"}
        path = str(EXAMPLES / "coding_agent.py")
        return Program(path, (self.folder, *words), self.folder.parent, environment, stdin, terminal)

    def pipe(self, words: str, *options: str) -> Done:
        return run(self.programs, self.program(*options, stdin=words))

    @contextmanager
    def screen(self, *options: str) -> Generator[Screen]:
        leader, follower = pty.openpty()
        try:
            process = self.programs.start(self.program(*options, terminal=follower))
        finally:
            os.close(follower)
        try:
            yield Screen(process, leader)
        finally:
            process.kill()
            process.wait(PATIENCE)
            os.close(leader)

    @property
    def store(self) -> Path:
        return self.folder / ".holdfast" / "coder.db"

    @property
    def code(self) -> str:
        return (self.folder / "prices.py").read_text(encoding="utf-8")

    async def history(self) -> list[hf.messages.Message]:
        async with hf.open(self.store, drive=False) as runtime:
            lines = await runtime.sessions()
            return await runtime.session(lines[0].id).history() if lines else []

    async def calls(self) -> list[str]:
        """The tools that did something, in order."""
        found = [one for one in await self.history() if isinstance(one, hf.ToolMessage)]
        return [result.name for message in found for result in message.results if result.state == "ok"]

    async def problems(self) -> list[str]:
        async with open_store(self.store) as store:
            return [str(each) for each in await check(store)]


@pytest.fixture
def project(programs: Programs, tmp_path: Path) -> Project:
    return Project(programs, tmp_path / "project")


# ---- in a pipe -------------------------------------------------------------------------------------------------------


def test_a_request_in_a_pipe_is_done(project: Project) -> None:
    done = project.pipe(REQUEST, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert FIXED in project.code
    assert "-> shell" in done.stdout
    assert "It is done: the tests pass.\n" in done.stdout
    assert "\033" not in done.stdout


def test_a_command_that_nobody_can_allow_is_denied_and_the_agent_does_without_it(project: Project) -> None:
    done = project.pipe(REQUEST)
    assert done.returncode == 0
    assert "nobody is at a terminal; --yes allows all commands" in done.stdout
    assert "It is done: I could not run the tests.\n" in done.stdout


def test_without_a_sandbox_the_agent_has_no_shell_and_says_so(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = application("coding_agent")
    project.folder.mkdir()
    monkeypatch.setattr(app, "sandbox_problem", lambda: "bubblewrap is not installed")
    agent = app.coder(project.folder, app.scripted())
    assert "shell" not in agent.tools
    assert capsys.readouterr().out == "The agent can't run commands here: bubblewrap is not installed\n"


def test_a_folder_that_is_not_there_is_named_in_one_line(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CODING_AGENT_MODEL", "anthropic:claude-sonnet-4-6")
    program = Program(str(EXAMPLES / "coding_agent.py"), (tmp_path / "nowhere",), tmp_path)
    done = run(project.programs, program)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "nowhere" in done.stderr


# ---- on a terminal ---------------------------------------------------------------------------------------------------


def test_a_person_allows_commands_one_by_one_and_steers(project: Project) -> None:
    with project.screen() as screen:
        screen.until("Ctrl-D leaves")
        screen.until("> ")
        screen.type("Fix the failing test.")
        screen.until("Run this?")
        screen.type("y")
        screen.until("FAILED")
        screen.type("Mind the rounding.")
        screen.until("Run this?")
        screen.type("perhaps")  # no answer: it asks again
        screen.until("Run this?")
        screen.type("yes")
        screen.until("You also said: Mind the rounding.")
        screen.until("> ")
        assert screen.leave() == 0


def test_always_allows_the_same_command_from_then_on(project: Project) -> None:
    with project.screen() as screen:
        screen.until("Ctrl-D leaves")
        screen.until("> ")
        screen.type("Fix the failing test.")
        screen.until("a(lways)")
        screen.type("a")
        screen.until("It is done: the tests pass.")
        assert screen.seen.count("Run this?") == 1
        assert screen.leave() == 0


def test_a_denied_command_is_not_run_and_the_agent_reads_why(project: Project) -> None:
    with project.screen() as screen:
        screen.until("Ctrl-D leaves")
        screen.until("> ")
        screen.type("Fix the failing test.")
        screen.until("Run this?")
        screen.type("n not today")
        screen.until("not today")
        screen.until("It is done: I could not run the tests.")


def test_ctrl_c_stops_the_turn_and_not_the_program(project: Project) -> None:
    with project.screen() as screen:
        screen.until("Ctrl-D leaves")
        screen.until("> ")
        screen.process.send_signal(signal.SIGINT)
        screen.until("(Ctrl-D leaves)")
        screen.type("Fix the failing test.")
        screen.until("Run this?")
        screen.process.send_signal(signal.SIGINT)
        screen.until("cancelled: interrupted from the terminal")
        screen.type("Go on.")
        screen.until("Run this?")
        screen.type("a")
        screen.until("It is done: the tests pass.")
        assert screen.leave() == 0


# ---- killed ----------------------------------------------------------------------------------------------------------


async def test_a_killed_agent_goes_on_and_says_with_what(project: Project) -> None:
    with project.screen() as screen:
        screen.until("Ctrl-D leaves")
        screen.until("> ")
        screen.type("Fix the failing test.")
        screen.until("a(lways)")
        screen.kill()
    with project.screen() as screen:
        screen.until("It was interrupted at 'Fix the failing test.', waiting for your answer about: shell")
        screen.until("a(lways)")
        screen.type("y")
        screen.until("a(lways)")
        assert "-> set_plan" not in screen.seen  # what was printed before is not printed again
        screen.type("y")
        screen.until("It is done: the tests pass.")
        assert screen.leave() == 0
    assert await project.calls() == ["set_plan", "read_file", "read_file", "shell", "edit_file", "shell"]
    assert await project.problems() == []


async def test_a_command_that_a_kill_interrupted_is_unknown_and_not_repeated_silently(project: Project) -> None:
    application("coding_agent").make_sample(project.folder)
    tests = project.folder / "test_prices.py"
    tests.write_text(SLOW + tests.read_text(encoding="utf-8"), encoding="utf-8")
    with project.screen("--yes") as screen:
        screen.until("Ctrl-D leaves")
        screen.until("> ")
        screen.type("Fix the failing test.")
        ends = time.monotonic() + PATIENCE
        while not (project.folder / "begun").exists():
            assert time.monotonic() < ends
            time.sleep(0.01)  # noqa: ASYNC251  nothing else runs here
        screen.kill()
    done = project.pipe("", "--yes")
    assert "in the middle of: shell" in done.stdout
    assert "<- shell: unknown" in done.stdout
    assert "It is done: the tests pass.\n" in done.stdout
    assert await project.calls() == ["set_plan", "read_file", "read_file", "shell", "edit_file", "shell"]


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
async def test_an_agent_that_is_killed_at_random_does_the_request_once(project: Project, seed: int) -> None:
    choose = random.Random(seed)
    print(f"seed {seed}")
    for _ in range(10):  # six kills in a row within one command are taken for a loop
        process = project.programs.start(project.program("--yes", stdin="" if await said(project) else REQUEST))
        time.sleep(choose.uniform(0, 2.5))  # noqa: ASYNC251  nothing else runs here
        process.kill()
        process.communicate(timeout=PATIENCE)
    done = project.pipe("" if await said(project) else REQUEST, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert await said(project) == [REQUEST.strip()]
    assert (await project.calls()).count("edit_file") <= 1
    assert FIXED in project.code
    last = (await project.history())[-1]
    assert isinstance(last, hf.AssistantMessage)
    assert last.text.startswith("It is done: the tests pass.")
    assert await project.problems() == []


async def said(project: Project) -> list[str]:
    """The requests that were accepted, also one that has not begun."""
    if not project.store.exists():
        return []
    async with hf.open(project.store, drive=False) as runtime:
        lines = await runtime.sessions()
        if not lines:
            return []
        session = runtime.session(lines[0].id)
        messages = [one for one in await session.history() if isinstance(one, hf.UserMessage)]
        texts = [one.text for one in messages if one.origin == "user"]
        turn = await session.open_turn()
        return texts or ([REQUEST.strip()] if turn is not None else [])
