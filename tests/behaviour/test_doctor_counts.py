"""`holdfast doctor`, as text: what waits to be told, what was given up, and what is remembered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.behaviour.test_cli_notifications import dead

from holdfast.store import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.behaviour.shell import Shell


@pytest.fixture
async def path(shell: Shell) -> Path:
    """A store with one notification that waits, one that was given up, and three entries in two scopes."""
    await dead(shell)
    file = shell.folder / ".holdfast" / "holdfast.db"
    async with open_store(file) as store:
        await store.notify("one", kind="host", title="hello")
        for scope, key in (("home", "a"), ("home", "b"), ("work", "a")):
            await store.memory_put(scope, key, "remembered")
    return file


def _line(told: str, name: str) -> str:
    return next(line for line in told.splitlines() if line.split()[:1] == [name])


def test_notifications_are_counted_by_state(shell: Shell, path: Path) -> None:
    assert _line(shell("doctor", path).stdout, "notifications").split(maxsplit=1)[1] == "2 (1 dead, 1 queued)"


def test_memories_are_counted_with_their_scopes(shell: Shell, path: Path) -> None:
    assert _line(shell("doctor", path).stdout, "memories").split(maxsplit=1)[1] == "3 in 2 scope(s), none damaged"


def test_an_entry_that_is_not_what_was_written_is_counted_as_damaged(shell: Shell, path: Path) -> None:
    db: Any = apsw.Connection(str(path))
    db.execute("UPDATE memories SET value = 'tampered' WHERE scope = 'work'")
    db.close()
    told = shell("doctor", path)
    assert (told.returncode, "1 DAMAGED" in _line(told.stdout, "memories")) == (1, True)
    report = json.loads(shell("doctor", path, "--json").stdout)
    assert (report["memories"], report["memory_scopes"], report["memories_damaged"]) == (3, 2, 1)


def test_an_empty_store_has_none_of_either(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello")
    told = shell("doctor").stdout
    assert [_line(told, name).split()[1:] for name in ("notifications", "memories")] == [["0"], ["0"]]
