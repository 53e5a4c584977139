"""The commands that forget sessions."""

from __future__ import annotations

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
