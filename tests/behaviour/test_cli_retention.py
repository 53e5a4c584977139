"""The commands that forget sessions."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.behaviour.shell import Shell


def test_rm_forgets_a_session_and_says_what_went(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello wombat", "--as", "gone")
    shell("run", "agents.py:echo", "hello", "--as", "stays")
    done = shell("rm", "go")
    assert (done.returncode, done.stdout.startswith("forgot gone: ")) == (0, True)
    assert [line["id"] for line in shell.json("ps", "-a")] == ["stays"]
    assert b"wombat" not in (shell.folder / ".holdfast" / "holdfast.db").read_bytes()


def test_rm_with_dry_run_removes_nothing(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    told = shell.json("rm", "s", "--dry-run")
    assert (told["session"], told["dry_run"]) == ("s", True)
    assert [line["id"] for line in shell.json("ps", "-a")] == ["s"]


def test_rm_names_the_forks_of_a_session_and_takes_them_when_told(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    assert shell("fork", "s", "--at", "2", "--as", "branch").returncode == 0
    refused = shell("rm", "s")
    assert (refused.returncode, "'branch'" in refused.stderr) == (2, True)
    assert shell("rm", "s", "--forks").returncode == 0
    assert shell.json("ps", "-a") == []


def test_rm_of_a_session_whose_hash_is_kept_refuses_the_id_from_then_on(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    assert shell("rm", "s", "--keep-hash").returncode == 0
    again = shell("run", "agents.py:echo", "hello", "--as", "s")
    assert (again.returncode, "was forgotten" in again.stderr) == (2, True)


def test_prune_forgets_old_sessions_and_keeps_those_that_wait(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "over")
    shell("run", "agents.py:asks", "hello", "--as", "waits")
    assert shell.json("prune", "--older-than", "1h")["pruned"] == 0
    while shell.json("prune", "--older-than", "1s", "--dry-run")["sessions"] != ["over"]:
        pass  # it ended less than a second ago
    assert shell("prune", "--older-than", "1s").stdout.startswith("forgot 1, kept 0")
    assert [line["id"] for line in shell.json("ps", "-a")] == ["waits"]


def on_terminal(shell: Shell, *arguments: str, typed: str = "") -> tuple[int | None, str]:
    """The exit code of a command that a person answers, and what it says."""
    seen = bytearray()
    with shell.on_terminal(*arguments, NO_COLOR="1") as (process, screen), suppress(OSError):  # all has been read
        os.write(screen, typed.encode())
        while part := os.read(screen, 4096):
            seen += part
    return process.poll(), seen.decode().replace("\r\n", "\n")


def test_rm_asks_on_a_terminal_and_removes_nothing_without_a_yes(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello wombat", "--as", "s")
    code, told = on_terminal(shell, "rm", "s", typed="n\n")
    assert (code, "would forget s: " in told, "nothing was removed" in told) == (4, True, True)
    assert [line["id"] for line in shell.json("ps", "-a")] == ["s"]
    code, told = on_terminal(shell, "rm", "s", typed="y\n")
    assert (code, "forgot s: " in told) == (0, True)
    assert shell.json("ps", "-a") == []


def test_rm_does_not_ask_when_it_is_told_so(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    code, told = on_terminal(shell, "rm", "s", "--yes")
    assert (code, "for good?" in told) == (0, False)
    assert shell.json("ps", "-a") == []


# ---- export and import -----------------------------------------------------------------------------------------------


def test_a_session_is_copied_into_another_store(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    done = shell("export", "s", "s.jsonl")
    assert (done.returncode, done.stdout.startswith("copied s into s.jsonl: 6 records")) == (0, True)
    refused = shell("import", "s.jsonl", "--store", "two.db")
    assert (refused.returncode, "--trust" in refused.stderr) == (2, True)
    key = shell.folder / ".holdfast" / "holdfast.db.key"
    assert shell.json("import", "s.jsonl", "--store", "two.db", "--key", key, "--dry-run")["dry_run"] is True
    assert shell.json("import", "s.jsonl", "--store", "two.db", "--key", key)["fresh"] is True
    assert "nothing was done" in shell("import", "s.jsonl", "--store", "two.db", "--key", key).stdout
    assert shell("doctor", "two.db").returncode == 0


def test_a_session_that_waits_is_moved_through_a_pipe_and_refused_where_it_was(shell: Shell) -> None:
    shell("run", "agents.py:asks", "hello", "--as", "s")
    refused = shell("export", "s", "-")
    assert (refused.returncode, refused.stdout, "--move" in refused.stderr) == (2, "", True)
    moved = shell("export", "s", "-", "--move")
    assert (moved.returncode, "moved s into -" in moved.stderr) == (0, True)
    imported = shell("import", "-", "--store", "two.db", "--trust", stdin=moved.stdout)
    assert (imported.returncode, imported.stdout.startswith("imported s")) == (0, True)
    assert [line["status"] for line in shell.json("ps", "-a")] == ["moved"]
    assert [line["status"] for line in shell.json("ps", "--store", "two.db")] == ["waiting"]
    assert [len(shell.json("inbox", "--store", store)) for store in (".holdfast/holdfast.db", "two.db")] == [0, 1]
    more = shell("run", "agents.py:asks", "more", "--session", "s")
    assert (more.returncode, "was moved away" in more.stderr) == (1, True)
    assert shell("show", "s").returncode == 0  # it can still be read
    assert shell("doctor").returncode == 0
