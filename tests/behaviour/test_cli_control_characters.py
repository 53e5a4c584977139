"""Nothing that the command line prints can drive a terminal, also where it is piped and as JSON."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from tests.behaviour.shell import Shell

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tests.programs import Programs

HOSTILE = "a\x1b]0;t\x07b\x7fc\x9b2Jd\x85e\u202ef\u2066g\u200fh\u061ci\rj"
"""ESC, BEL, DEL, two of C1, bidi and a return without a new line."""
DRIVES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, programs: Programs) -> Generator[Shell]:
    """A store in which a session, its answer and an entry of memory are hostile."""
    folder: Path = tmp_path_factory.mktemp("told")
    made = Shell(folder, programs)
    made("run", "agents.py:echo", HOSTILE, "--as", "s")
    made("memory", "set", "notes", "k", HOSTILE)
    yield made
    made.close()


COMMANDS: dict[str, list[str]] = {
    "run": ["run", "agents.py:echo", HOSTILE],
    "run as json": ["run", "agents.py:echo", HOSTILE, "-o", "json"],
    "run as events": ["run", "agents.py:echo", HOSTILE, "-o", "events"],
    "show": ["show", "s"],
    "show as json": ["show", "s", "--json"],
    "history": ["show", "s", "--history"],
    "context": ["show", "s", "--context", "--json"],
    "logs": ["logs", "s"],
    "logs as json": ["logs", "s", "--json"],
    "ps": ["ps", "-a"],
    "memory": ["memory", "ls", "notes"],
    "memory as json": ["memory", "get", "notes", "k", "--json"],
    "export": ["memory", "export"],
    "an id that is not there": ["show", HOSTILE],
    "a file that is not there": ["run", f"{HOSTILE}.py", "hello"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_no_command_prints_what_a_terminal_would_obey(told: Shell, command: list[str]) -> None:
    done = told(*command)
    assert DRIVES.findall(done.stdout + done.stderr) == []
    assert done.stdout or done.stderr


def test_json_that_is_printed_is_json_of_the_same_text(told: Shell) -> None:
    assert json.loads(told("run", "agents.py:echo", HOSTILE, "-o", "json").stdout)["text"] == f"you said {HOSTILE}"
    assert told.json("memory", "get", "notes", "k")["value"] == HOSTILE


def test_an_entry_of_memory_that_a_program_reads_is_the_entry_to_the_byte(told: Shell) -> None:
    assert told("memory", "get", "notes", "k").stdout == HOSTILE.replace("\r", "\n")  # as text mode reads it
