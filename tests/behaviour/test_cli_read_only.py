"""Commands that look at a store change nothing, and read one that can't be written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.behaviour.shell import Shell
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.errors import StoreReadOnly
from holdfast.store import view_store

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tests.programs import Programs

LOOKS: list[list[str]] = [
    ["ps", "-a"],
    ["show", "s"],
    ["show", "s", "--history"],
    ["logs", "s"],
    ["inbox"],
    ["inbox", "--refused"],
    ["tasks"],
    ["processes"],
    ["processes", "stuck"],
    ["triggers"],
    ["rules"],
    ["notifications"],
    ["attachments", "list"],
    ["memory", "ls"],
    ["doctor"],
]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, programs: Programs) -> Generator[Shell]:
    """A store with a session, that nobody has open."""
    made = Shell(tmp_path_factory.mktemp("kept"), programs)
    assert made("run", "agents.py:echo", "hello", "--as", "s").returncode == 0
    yield made
    made.close()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_looking_at_a_store_changes_no_file_and_leaves_none(kept: Shell, command: list[str]) -> None:
    before = files(kept.folder / ".holdfast")
    done = kept(*command)
    assert (done.returncode, done.stderr) == (0, "")
    assert files(kept.folder / ".holdfast") == before


@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_looking_at_an_empty_file_leaves_it_empty(kept: Shell, command: list[str], tmp_path: Path) -> None:
    (tmp_path / "s.db").touch()
    done = kept.at(tmp_path)(*command, HOLDFAST_STORE=str(tmp_path / "s.db"))
    assert (done.returncode != 0, "empty" in done.stderr) == (True, True)
    assert files(tmp_path) == {"s.db": b""}


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
@pytest.mark.parametrize("command", [["ps", "-a"], ["show", "s"], ["memory", "ls"], ["doctor"]], ids=" ".join)
def test_a_store_where_nothing_can_be_written_is_read(kept: Shell, command: list[str]) -> None:
    looks = [sys.executable, "-P", "-m", "holdfast", *command, "--json"]
    done = subprocess.run(
        ["bwrap", "--ro-bind", "/", "/", "--chdir", str(kept.folder), *looks],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env=kept.env,
    )
    assert (done.returncode, done.stderr) == (0, "")
    json.loads(done.stdout)


def test_a_backup_that_others_can_read_and_that_has_no_key_is_read(kept: Shell, tmp_path: Path) -> None:
    backup = tmp_path / "backup.db"
    shutil.copy(kept.folder / ".holdfast" / "holdfast.db", backup)
    backup.chmod(0o444)
    assert "you said hello" in kept("show", "s", "--store", backup).stdout
    assert [path.name for path in tmp_path.iterdir()] == ["backup.db"]


def test_a_store_that_another_process_works_on_is_read_as_it_is_now(kept: Shell) -> None:
    running = kept.begin_gated("busy")
    assert {line["id"]: line["status"] for line in kept.ps()}["busy"] == "running"
    kept.open_gate()
    running.communicate(timeout=PATIENCE)


async def test_what_would_change_a_store_that_is_open_to_be_read_is_refused(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "s.db"):
        pass
    async with view_store(tmp_path / "s.db") as store:
        assert await store.journals() == []
        with pytest.raises(StoreReadOnly):
            await store.quarantine("s", "a test")
