"""`holdfast notifications` and `holdfast inbox`: what is to be told, and what waits for a person."""

from __future__ import annotations

import asyncio
import json
import shlex
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from holdfast.records import Admitted, Ended, Started
from holdfast.store import open_store
from holdfast.store.contract import StoreLimits
from holdfast.store.notifications import Notify

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.behaviour.shell import Shell

    from holdfast.store import Store


@asynccontextmanager
async def opened(shell: Shell, **limits: Any) -> AsyncGenerator[Store]:
    async with open_store(shell.folder / ".holdfast" / "holdfast.db", limits=StoreLimits(**limits)) as store:
        yield store


async def tell(store: Store, session: str, title: str, **said: Any) -> int:
    found, _ = await store.notify(session, kind="task", title=title, **said)
    return found.id


async def prepared(shell: Shell) -> list[int]:
    """Two sessions; two notifications for one, one for the other."""
    async with opened(shell) as store:
        for name in ("one", "two"):
            await store.open_journal(name, kind="session")
        ids = [await tell(store, "one", "first", body="a body", source="k-1"), await tell(store, "one", "second")]
        return [*ids, await tell(store, "two", "third")]


async def dead(shell: Shell, title: str = "a job ended") -> int:
    """A notification that was carried once too often."""
    async with opened(shell, max_attempts=1) as store:
        await store.open_journal("one", kind="session")
        number = await tell(store, "one", title)
        lease = await store.claim("one")
        receipt = await store.deliver_notifications(lease, [number], {"said": 1})
        assert receipt is not None
        admitted = Admitted(at=1, input=receipt.input, key=receipt.key, run="t1")
        ended = [Started(at=1, run="t1"), admitted, Ended(at=2, run="t1", status="failed")]
        await store.append(lease, ended, head=lease.head)
        await store.release(lease)
        assert (await store.notification(number)).state == "dead"
        return number


# ---- notifications ---------------------------------------------------------------------------------------------------


async def test_notifications_are_listed_newest_first_with_all_that_they_say(shell: Shell) -> None:
    ids = await prepared(shell)
    lines = shell.json("notifications")
    assert [line["id"] for line in lines] == ids[::-1]
    assert (lines[-1]["title"], lines[-1]["body"], lines[-1]["source"]) == ("first", "a body", "k-1")


async def test_notifications_as_text_are_a_plain_table(shell: Shell) -> None:
    await prepared(shell)
    head, line, *_ = shell("notifications").stdout.splitlines()
    assert head.split() == ["ID", "SESSION", "STATE", "KIND", "TRIES", "CHANGED", "TITLE"]
    assert line.split()[1:5] == ["two", "queued", "task", "0"]


async def test_notifications_of_one_session_or_one_state_are_chosen(shell: Shell) -> None:
    ids = await prepared(shell)
    assert [line["id"] for line in shell.json("notifications", "--session", "on")] == [ids[1], ids[0]]
    assert shell.json("notifications", "--state", "dead") == []
    assert len(shell.json("notifications", "--state", "queued", "--limit", "2")) == 2


async def test_more_than_a_page_of_notifications_is_listed(shell: Shell) -> None:
    async with opened(shell, notifications=5_000) as store:
        await store.open_journal("one", kind="session")
        await asyncio.gather(*(tell(store, "one", f"n{number}") for number in range(1_010)))
    assert len(shell.json("notifications", "--limit", "5000")) == 1_010


async def test_a_title_can_not_drive_the_terminal(shell: Shell) -> None:
    async with opened(shell) as store:
        await store.open_journal("one", kind="session")
        await tell(store, "one", "\x1b[2Jgone\nNOT A LINE")
    lines = shell("notifications").stdout.splitlines()
    assert len(lines) == 2
    assert "\x1b" not in lines[1]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--state", "lost"], "queued"),
        (["--session", "nobody"], "nobody"),
        (["settle", "999", "cancelled"], "999"),
        (["settle", "1", "dead"], "acknowledged"),
        (["settle", "x", "cancelled"], "'ID'"),
        (["settle", "0", "cancelled"], "'ID'"),
    ],
)
async def test_what_can_not_be_meant_is_refused(shell: Shell, arguments: list[str], word: str) -> None:
    await prepared(shell)
    done = shell("notifications", *arguments)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["notifications"], ["notifications", "settle", "1", "cancelled"], ["inbox"]])
def test_no_store_is_made(shell: Shell, command: list[str]) -> None:
    done = shell(*command)
    assert (done.returncode, "no store" in done.stderr) == (2, True)
    assert not (shell.folder / ".holdfast" / "holdfast.db").exists()


@pytest.mark.parametrize("state", ["cancelled", "acknowledged"])
async def test_a_notification_is_settled_once(shell: Shell, state: str) -> None:
    first, *_ = await prepared(shell)
    done = shell("notifications", "settle", first, state)
    assert (done.returncode, done.stdout) == (0, f"notification {first} is {state}\n")
    again = shell("notifications", "settle", first, "cancelled")
    assert again.returncode == 1
    assert "too late" in again.stderr
    assert shell.json("notifications", "--state", state)[0]["id"] == first


async def test_one_that_is_dead_can_be_tried_again(shell: Shell) -> None:
    number = await dead(shell)
    assert shell("notifications", "settle", number, "queued").returncode == 0
    [line] = shell.json("notifications", "--state", "queued")
    assert (line["id"], line["attempts"]) == (number, 0)


async def test_the_store_may_be_named_before_the_word_settle(shell: Shell) -> None:
    first, *_ = await prepared(shell)
    _move_store(shell)
    before = ("notifications", "--store", "other.db", "settle", first, "cancelled")
    assert shell(*before, HOLDFAST_STORE="third.db").returncode == 0


async def test_the_store_may_be_named_by_the_environment_or_behind_the_word_settle(shell: Shell) -> None:
    first, second, _ = await prepared(shell)
    _move_store(shell)
    assert shell("notifications", "settle", first, "cancelled", HOLDFAST_STORE="other.db").returncode == 0
    behind = ("notifications", "settle", second, "cancelled", "--store", "other.db")
    assert shell(*behind, HOLDFAST_STORE="third.db").returncode == 0


# ---- the inbox -------------------------------------------------------------------------------------------------------


def test_an_open_wait_is_shown_with_the_command_that_answers_it(shell: Shell) -> None:
    shell("run", "agents.py:asks", "hello", "--as", "s")
    [item] = shell.json("inbox")
    assert (item["kind"], item["session"], item["tool"]) == ("wait", "s", "ask")
    assert item["answer"] == "holdfast resolve s approval JSON"
    _, *arguments = shlex.split(item["answer"].replace("JSON", "true"))
    assert shell(*arguments).returncode == 0
    assert shell.json("inbox") == []


def test_the_command_names_the_store_where_that_is_not_the_usual_one(shell: Shell) -> None:
    shell("run", "agents.py:asks", "hello", "--as", "s", "--store", "other.db")
    [item] = json.loads(shell("inbox", "--json", "--store", "other.db").stdout)
    assert item["answer"] == "holdfast resolve s approval JSON --store other.db"


def test_how_long_a_wait_is_still_open_is_told(shell: Shell) -> None:
    (shell.folder / "patient.py").write_text(
        "import holdfast as hf\n"
        "from holdfast.testing import ScriptedModel, call, text\n"
        "@hf.tool\n"
        "async def ask(ctx: hf.Context) -> str:\n"
        "    '''Ask.'''\n"
        "    return str(await ctx.wait('approval', timeout=3600))\n"
        "model = ScriptedModel([call('ask'), text('ok')])\n"
        "agent = hf.Agent('patient', model=model, tools=[ask], policy=[hf.allow('*')])\n",
        encoding="utf-8",
    )
    shell("run", "patient.py", "hello", "--as", "s", "--deadline", "7200")
    [item] = shell.json("inbox")
    assert item["wait"].endswith("/approval")
    assert item["deadline"] > item["since"]
    assert "left" in shell("inbox").stdout


def test_a_session_that_has_ended_or_runs_is_not_in_the_inbox(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    shell.begin_gated("g")
    assert shell("inbox").stdout == "nothing waits for a person\n"


async def test_a_notification_that_was_given_up_is_in_the_inbox(shell: Shell) -> None:
    number = await dead(shell, "a job\nended")
    [item] = shell.json("inbox")
    assert (item["kind"], item["notification"]) == ("notification", number)
    assert item["answer"] == f"holdfast notifications settle {number} queued"
    first, second = shell("inbox").stdout.splitlines()
    assert "a job ended was not told" in first
    assert second.strip() == item["answer"]
    _, *arguments = shlex.split(item["answer"])
    assert shell(*arguments).returncode == 0
    assert shell.json("inbox") == []


async def test_one_that_can_not_be_tried_again_is_only_taken_as_read(shell: Shell) -> None:
    async with opened(shell) as store:
        await store.open_journal("one", kind="process")
        lease = await store.claim("one")
        lost = Notify("nobody", "task", "a job ended")
        await store.append(lease, [Started(at=1, run="r")], head=lease.head, notify=[lost])
    [item] = shell.json("inbox")
    assert item["session"] == "nobody"
    _, *arguments = shlex.split(item["answer"])
    assert arguments[-1] == "acknowledged"
    assert shell(*arguments).returncode == 0
    assert shell.json("inbox") == []


async def test_what_waited_for_a_session_in_quarantine_is_in_the_inbox_and_taken_as_read(shell: Shell) -> None:
    number, *_ = await prepared(shell)
    async with opened(shell) as store:
        await store.quarantine("one", "a test")
    items = [item for item in shell.json("inbox") if item["notification"] == number]
    assert ["quarantined: a test" in item["what"] for item in items] == [True]
    _, *arguments = shlex.split(items[0]["answer"])
    assert arguments[-1] == "acknowledged"
    assert shell(*arguments).returncode == 0
    assert number not in [item["notification"] for item in shell.json("inbox")]


def test_a_session_that_can_not_be_trusted_hides_no_other(shell: Shell) -> None:
    for name in ("good", "bad"):
        shell("run", "agents.py:asks", "hello", "--as", name)
    db: Any = apsw.Connection(str(shell.folder / ".holdfast" / "holdfast.db"))
    db.execute("UPDATE records SET body = x'00' WHERE journal = (SELECT no FROM journals WHERE id = 'bad') AND seq > 1")
    db.close()
    for _ in range(2):  # it is found to be damaged, and then known to be
        done = shell("inbox", "--json")
        assert [item["session"] for item in json.loads(done.stdout)] == ["good"]
        assert "bad can't be read" in done.stderr


def test_a_call_of_which_nobody_knows_the_end_is_told_as_such(shell: Shell) -> None:
    (shell.folder / "unsure.py").write_text(
        "import holdfast as hf\n"
        "from holdfast.testing import ScriptedModel, call, text\n"
        "import os\n"
        "@hf.tool(on_interrupt='ask')\n"
        "async def refund() -> str:\n"
        "    '''Refund.'''\n"
        "    os._exit(9)\n"
        "model = ScriptedModel([call('refund'), text('ok')])\n"
        "agent = hf.Agent('unsure', model=model, tools=[refund], policy=[hf.allow('*')])\n",
        encoding="utf-8",
    )
    shell("run", "unsure.py", "hello", "--as", "s")
    shell("resume", "s", "--agent", "unsure.py")
    [item] = shell.json("inbox")
    assert (item["kind"], item["tool"]) == ("unknown", "refund")
    assert "what became of refund" in shell("inbox").stdout
    assert shell("resolve", "s", "ask", '{"done": "refunded by hand"}').returncode == 0
    assert shell.json("inbox") == []


def test_two_waits_of_the_same_label_are_told_apart(shell: Shell) -> None:
    (shell.folder / "twice.py").write_text(
        "import holdfast as hf\n"
        "from holdfast.testing import ScriptedModel, call, text\n"
        "@hf.tool(read_only=True)\n"
        "async def ask(ctx: hf.Context) -> str:\n"
        "    '''Ask.'''\n"
        "    return str(await ctx.wait('approval'))\n"
        "model = ScriptedModel([[call('ask'), call('ask')], text('ok')])\n"
        "agent = hf.Agent('twice', model=model, tools=[ask], policy=[hf.allow('*')])\n",
        encoding="utf-8",
    )
    shell("run", "twice.py", "hello", "--as", "s")
    items = shell.json("inbox")
    assert len(items) == 2
    for item in items:
        _, *arguments = shlex.split(item["answer"].replace("JSON", "true"))
        assert shell(*arguments).returncode == 0
    assert shell("resume", "s").stdout == "ok\n"


def _move_store(shell: Shell) -> None:
    """Keep the store elsewhere, with its key."""
    for suffix in ("", ".key"):
        (shell.folder / ".holdfast" / f"holdfast.db{suffix}").rename(shell.folder / f"other.db{suffix}")
