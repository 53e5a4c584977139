"""The pages of the applications: their shell sessions run as they stand, and their excerpts are in the examples."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
PAGES = {"refund-desk.md": "refund_desk.py", "chat-service.md": "chat_service.py"}
SESSION = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXCERPT = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)
PRINTS = re.compile(r"^# -> (.*)", re.MULTILINE)
PORT = re.compile(r"\b800\d\b")


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


def _on_free_ports(text: str) -> str:
    free = {port: str(_free_port()) for port in PORT.findall(text)}
    return PORT.sub(lambda found: free[found[0]], text)


@pytest.mark.parametrize("page", PAGES)
def test_a_shell_session_of_a_page_runs_and_prints_what_it_says(page: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    session = _on_free_ports("export PORT=8000\n" + "".join(SESSION.findall(text)))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    log = tmp_path / "log"
    with log.open("wb") as errors:
        shell = subprocess.Popen(
            ["bash", "-eu", "-c", session],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = shell.communicate(timeout=2 * PATIENCE)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, said + log.read_text(encoding="utf-8")
    lines = iter([line.strip() for line in said.splitlines()])
    missing = [wanted for wanted in PRINTS.findall(session) if wanted not in lines]  # in this order
    assert missing == [], said


@pytest.mark.parametrize(("page", "example"), PAGES.items())
def test_an_excerpt_on_a_page_is_in_the_example(page: str, example: str) -> None:
    excerpts = EXCERPT.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    code = (ROOT / "examples" / example).read_text(encoding="utf-8")
    assert excerpts
    assert [excerpt for excerpt in excerpts if excerpt not in code] == []
