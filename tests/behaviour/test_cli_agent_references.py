"""Which code `resume`, `approve` and `replay` load: what the command line itself wrote down, and nothing else."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.agents_for_cli import asks, echo

import holdfast as hf
from holdfast.cli.options import DEFAULT_STORE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.behaviour.shell import Shell

EVIL = """
from pathlib import Path
import holdfast as hf
from holdfast.testing import ScriptedModel
Path("evil-ran").touch()
echo = hf.Agent("echo", model=ScriptedModel(lambda _: "from evil"))
asks = hf.Agent("asks", model=ScriptedModel(lambda _: "from evil"))
"""


@pytest.fixture
def evil(shell: Shell) -> Callable[[], bool]:
    """Whether the code that no person has named was run."""
    (shell.folder / "evil.py").write_text(EVIL, encoding="utf-8")
    return (shell.folder / "evil-ran").exists


def accept(shell: Shell, send: Callable[[hf.Runtime], Any]) -> None:
    """What an application does on the same store, in a process that drives nothing."""

    async def main() -> None:
        async with hf.open(shell.folder / DEFAULT_STORE, agents=[echo, asks], drive=False) as runtime:
            await send(runtime)

    asyncio.run(main())


def waiting(shell: Shell) -> Shell:
    """A session that the command line has run, with an answered wait: there is something left to do."""
    shell("run", "agents.py:asks", "hello", "--as", "s")
    shell("resolve", "s", "approval", '"yes"')
    return shell


def by_sending(runtime: hf.Runtime) -> Any:
    return runtime.session("s", agent="echo").send("hi", metadata={"agent": "evil.py:echo"})


def by_emitting(runtime: hf.Runtime) -> Any:
    return runtime.emit(hf.EmitRequest(agent="echo", input="hi", session="s", metadata={"agent": "evil.py:echo"}))


@pytest.mark.parametrize("send", [by_sending, by_emitting])
@pytest.mark.parametrize("command", [("resume", "s"), ("resume", "s", "--yes"), ("replay", "s", "--check", "--yes")])
def test_metadata_never_names_code(
    shell: Shell, evil: Callable[[], bool], command: tuple[str, ...], send: Callable[[hf.Runtime], Any]
) -> None:
    accept(shell, send)
    done = shell(*command)
    assert done.returncode == 2, done.stderr
    assert "--agent file.py:name" in done.stderr
    assert not evil()


def test_metadata_does_not_replace_what_was_recorded(shell: Shell, evil: Callable[[], bool]) -> None:
    waiting(shell)
    accept(shell, lambda runtime: runtime.session("s", agent="asks").send("hi", metadata={"agent": "evil.py:asks"}))
    assert "from evil" not in shell("resume", "s").stdout
    assert not evil()


def test_a_session_of_the_older_command_line_goes_on_with_an_agent_that_is_named(shell: Shell) -> None:
    accept(shell, lambda runtime: runtime.session("s", agent="echo").send("hi", metadata={"agent": "agents.py:echo"}))
    assert shell("resume", "s").returncode == 2
    assert shell("resume", "s", "--agent", "agents.py:echo").stdout == "you said hi\n"


def test_an_agent_that_was_named_for_resume_is_recorded(shell: Shell) -> None:
    def queue(runtime: hf.Runtime) -> Any:
        return runtime.session("s", agent="echo").send("hi")

    accept(shell, queue)
    shell("resume", "s", "--agent", "agents.py:echo")
    accept(shell, queue)
    assert shell("resume", "s").stdout == "you said hi\n"


def test_the_recorded_file_is_found_from_another_folder(shell: Shell, tmp_path: Path) -> None:
    waiting(shell)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "agents.py").write_text(EVIL, encoding="utf-8")
    done = shell.at(elsewhere)("resume", "s", "--store", shell.folder / DEFAULT_STORE)
    assert done.returncode == 0, done.stderr
    assert not (elsewhere / "evil-ran").exists()


def test_a_module_is_looked_for_where_it_was_found(shell: Shell, tmp_path: Path) -> None:
    shell("run", "agents:asks", "hello", "--as", "s")
    shell("resolve", "s", "approval", '"yes"')
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = shell.at(elsewhere)("resume", "s", "--store", shell.folder / DEFAULT_STORE)
    assert done.returncode == 0, done.stderr


def test_a_fork_has_the_code_of_the_session_it_began_in(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    shell("fork", "s", "--at", "6", "--as", "f")
    accept(shell, lambda runtime: runtime.session("f", agent="echo").send("hi"))
    assert shell("resume", "f").stdout == "you said hi\n"


# ---- code that this user has not loaded before -----------------------------------------------------------------------


def test_unknown_code_is_refused_where_nobody_can_be_asked(shell: Shell, tmp_path: Path) -> None:
    waiting(shell)
    done = shell("resume", "s", XDG_STATE_HOME=str(tmp_path / "another user"))
    assert done.returncode == 2
    assert f"{shell.folder / 'agents.py'}:asks" in done.stderr
    assert "--yes" in done.stderr


def test_unknown_code_is_loaded_with_yes(shell: Shell, tmp_path: Path) -> None:
    waiting(shell)
    other = {"XDG_STATE_HOME": str(tmp_path / "another user")}
    assert shell("resume", "s", "--yes", **other).returncode == 0
    assert shell("replay", "s", "--check", **other).returncode == 0  # it is known from then on


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 2)])
def test_unknown_code_is_shown_and_asked_about_on_a_terminal(
    shell: Shell, tmp_path: Path, answer: bytes, code: int
) -> None:
    waiting(shell)
    seen = b""
    with shell.on_terminal("resume", "s", XDG_STATE_HOME=str(tmp_path / "another user")) as (process, screen):
        while b"[y/N]" not in seen:
            seen += os.read(screen, 4096)
        os.write(screen, answer)
        while True:
            try:
                if not os.read(screen, 4096):
                    break
            except OSError:  # all has been read
                break
    assert f"{shell.folder / 'agents.py'}:asks".encode() in seen.replace(b"\r\n", b"")
    assert process.wait() == code


def test_a_record_that_others_can_write_is_refused(shell: Shell) -> None:
    waiting(shell)
    record = shell.folder / f"{DEFAULT_STORE}.agents"
    assert record.stat().st_mode & 0o777 == 0o600
    record.chmod(0o666)
    done = shell("resume", "s")
    assert done.returncode == 2
    assert f"chmod 600 {record}" in done.stderr
