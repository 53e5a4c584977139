"""A backup of a store in use: one state of it, examined, in a file that nobody else can read."""

from __future__ import annotations

import asyncio
import stat
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import at_rest
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.errors import BackupRefused, StoreKeyMissing
from holdfast.runtime.budgets import spend_of_record
from holdfast.store.paths import key_file
from holdfast.store.sqlite import backup
from holdfast.store.sqlite.health import examine
from holdfast.testing import ScriptedModel, call, check, text

if TYPE_CHECKING:
    from pathlib import Path

    from tests.behaviour.shell import Shell


@hf.tool
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def asks() -> hf.Agent:
    script = ScriptedModel([call("pay", cents=5), text("done")])
    return hf.Agent("asks", model=script, tools=[pay], policy=[hf.ask("pay")])


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_a_restored_backup_goes_on_where_the_store_was(tmp_path: Path) -> None:
    agent = asks()
    async with hf.open(tmp_path / "store.db", agents=[agent], mirror=False) as runtime:
        await runtime.session("s", agent=agent).send("hello", key="k")
        await at_rest(runtime, "s")
        made = await runtime.backup(tmp_path / "copy.db")
        assert (made.healthy, made.journals) == (True, 1)
        (approval,) = await runtime.approvals()
        await runtime.approve(approval.id)  # the copy does not know
    async with hf.open(tmp_path / "copy.db", agents=[asks()], mirror=False) as runtime:
        (approval,) = await runtime.approvals()
        await runtime.approve(approval.id)
        turn = await runtime.session("s").send("hello", key="k")
        assert (await turn.outcome()).text == "done"
        assert await check(runtime.store) == []


async def test_a_backup_and_its_key_are_for_the_owner_alone_and_nothing_else_is_left(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "store.db", mirror=False) as runtime:
        before = names_in(tmp_path)
        made = await runtime.backup(tmp_path / "copy.db")
        assert names_in(tmp_path) - before == {"copy.db", "copy.db.key"}
        assert made.key == str(tmp_path / "copy.db.key")
        for name in ("copy.db", "copy.db.key"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


async def test_a_backup_without_its_key_opens_only_with_it(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "store.db", mirror=False) as runtime:
        made = await runtime.backup(tmp_path / "copy.db", with_key=False)
        assert (made.key, made.healthy) == (None, True)
    with pytest.raises(StoreKeyMissing):
        async with hf.open_store(tmp_path / "copy.db"):
            pass
    key_file(tmp_path / "store.db").rename(key_file(tmp_path / "copy.db"))
    async with hf.open_store(tmp_path / "copy.db") as store:
        assert await check(store) == []


async def test_a_backup_is_one_state_however_much_is_written_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "STEP_PAGES", 1)
    async with hf.open_store(tmp_path / "store.db") as store:
        for number in range(200):
            await store.accept_into(f"before-{number}", "session", "a", "x" * 2_000)
        written = 0

        async def write() -> None:
            nonlocal written
            while True:
                await store.accept_into(f"meanwhile-{written}", "session", "a", "x" * 2_000)
                written += 1

        writing = asyncio.create_task(write())
        while not written:
            await asyncio.sleep(0)
        at_first = written
        made = await store.backup(tmp_path / "copy.db", spend_of_record)
        writing.cancel()
        assert (made.healthy, made.problems) == (True, ())
        assert 200 + at_first <= made.journals <= 200 + written
        assert written > at_first, "nothing was written while the copy was made"


async def test_no_file_is_overwritten_and_none_left_after_a_refusal(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "store.db", mirror=False) as runtime:
        (tmp_path / "taken.db").write_text("mine")
        (tmp_path / "other.db.key").write_text("mine")
        before = names_in(tmp_path)
        for name in ("taken.db", "other.db", "store.db", "nowhere/copy.db"):
            with pytest.raises(BackupRefused):
                await runtime.backup(tmp_path / name)
        assert names_in(tmp_path) == before
        assert (tmp_path / "taken.db").read_text() == "mine"


async def test_a_cancelled_backup_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied, go_on = threading.Event(), threading.Event()

    def examine_later(*given: Any) -> Any:
        copied.set()
        go_on.wait(PATIENCE)
        return examine(*given)

    monkeypatch.setattr(backup, "examine", examine_later)
    async with hf.open(tmp_path / "store.db", mirror=False) as runtime:
        before = names_in(tmp_path)
        copying = asyncio.create_task(runtime.backup(tmp_path / "copy.db"))
        await asyncio.to_thread(copied.wait, PATIENCE)
        copying.cancel()
        for _ in range(5):
            await asyncio.sleep(0)  # until the cancellation has come through
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await copying
        assert names_in(tmp_path) == before


async def test_a_store_in_memory_has_no_backup(tmp_path: Path) -> None:
    async with hf.open(None) as runtime:
        with pytest.raises(BackupRefused, match="in a file"):
            await runtime.backup(tmp_path / "copy.db")


async def test_a_damaged_store_is_copied_with_a_report_of_its_problems(tmp_path: Path) -> None:
    async with hf.open_store(tmp_path / "store.db") as store:
        await store.open_journal("a")
        await store.quarantine("a", "a test")
        made = await store.backup(tmp_path / "copy.db", spend_of_record)
    assert not made.healthy
    assert made.problems == ("quarantined: a: a test",)
    assert examine(tmp_path / "copy.db").quarantined == {"a": "a test"}


def test_the_command_copies_a_store_and_says_what_is_in_it(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    done: Any = shell("backup", "copy.db")
    assert (done.returncode, "1 journal," in done.stdout, "healthy" in done.stdout) == (0, True, True)
    assert shell.json("ps", "-a", "--store", "copy.db")[0]["id"] == "s"
    again = shell("backup", "copy.db")
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
