"""`holdfast call`: one tool call from the shell; and work items below sessions, as the lists show them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.behaviour.shell import Shell

SHOP = """
import asyncio
from pathlib import Path

import holdfast as hf
from holdfast.testing import ScriptedModel, text


@hf.tool
async def refund(ctx: hf.Context, order: str, cents: int = 5) -> dict[str, object]:
    with Path("refunds").open("a") as file:
        file.write(f"{order} {cents}\\n")
    return {"order": order, "cents": cents}


@hf.tool
async def slow(ctx: hf.Context) -> str:
    await asyncio.sleep(1)
    return "done"


@hf.tool
async def fails(ctx: hf.Context) -> str:
    raise ValueError("no paper")


@hf.tool
async def asks(ctx: hf.Context) -> object:
    return await ctx.wait("who")


shop = hf.Agent(
    "shop",
    model=ScriptedModel(lambda _: text("ok")),
    tools=[refund, slow, fails, asks],
    policy=[
        hf.ask("refund", when={"cents": {"above": 50}}),
        hf.deny("refund", when={"cents": {"above": 5000}}),
        hf.allow("*"),
    ],
)
"""


@pytest.fixture
def shop(shell: Shell) -> Shell:
    (shell.folder / "shop.py").write_text(SHOP)
    return shell


def test_a_call_prints_its_result(shop: Shell) -> None:
    done = shop("call", "shop.py", "refund", '{"order": "7", "cents": 3}')
    assert (done.returncode, json.loads(done.stdout)) == (0, {"order": "7", "cents": 3})


def test_arguments_are_given_one_by_one_and_a_text_stays_one(shop: Shell) -> None:
    done = shop("call", "shop.py", "refund", "-a", "order=7", "--arg", "cents=3", "--json")
    report = json.loads(done.stdout)
    assert (report["disposition"], report["result"]) == ("inline", {"order": "7", "cents": 3})


def test_the_same_key_is_one_call_and_another_one_a_conflict(shop: Shell) -> None:
    for _ in range(2):
        assert shop("call", "shop.py", "refund", "-a", "order=7", "--as", "s", "--key", "k").returncode == 0
    assert (shop.folder / "refunds").read_text() == "7 5\n"
    other = shop("call", "shop.py", "refund", "-a", "order=8", "--as", "s", "--key", "k")
    assert (other.returncode, "k" in other.stderr) == (2, True)
    assert shop("call", "shop.py", "refund", "-a", "order=7", "--key", "k").returncode == 2


def test_a_call_that_needs_approval_prints_the_commands_that_answer_it(shop: Shell) -> None:
    words = ("call", "shop.py", "refund", "-a", "order=7", "-a", "cents=90", "--as", "s", "--key", "k")
    asked = shop(*words)
    found = re.search(r"holdfast approve (\S+)", asked.stdout)
    assert asked.returncode == 3
    assert found is not None
    assert f"holdfast deny {found[1]}" in asked.stdout
    assert not (shop.folder / "refunds").exists()
    assert shop("approve", found[1], "--yes").returncode == 0
    assert json.loads(shop(*words).stdout) == {"order": "7", "cents": 90}
    assert (shop.folder / "refunds").read_text() == "7 90\n"


def test_a_call_that_waits_for_an_answer_prints_the_command_that_gives_it(shop: Shell) -> None:
    asked = shop("call", "shop.py", "asks", "--as", "s", "--key", "k")
    found = re.search(r"holdfast resolve (\S+) who JSON", asked.stdout)
    assert asked.returncode == 3
    assert found is not None
    shop("resolve", found[1], "who", '"me"')
    assert shop("call", "shop.py", "asks", "--as", "s", "--key", "k").stdout == '"me"\n'


def test_a_slow_call_goes_on_in_the_background_and_resume_finishes_it(shop: Shell) -> None:
    words = ("call", "shop.py", "slow", "--as", "s", "--key", "k")
    begun = json.loads(shop(*words, "--inline-budget", "0.05", "--json").stdout)
    assert (begun["disposition"], begun["answer"][0]) == ("background", "holdfast resume s")
    assert shop(*words).stdout == '"done"\n'


def test_calls_that_end_without_a_result_have_exit_codes_of_their_own(shop: Shell) -> None:
    failed = shop("call", "shop.py", "fails")
    assert (failed.returncode, failed.stdout, "ValueError: no paper" in failed.stderr) == (1, "", True)
    denied = shop("call", "shop.py", "refund", "-a", "order=7", "-a", "cents=9000")
    assert (denied.returncode, "deny refund" in denied.stderr) == (6, True)


def test_a_cancelled_call_has_an_exit_code_of_its_own(shop: Shell) -> None:
    words = ("call", "shop.py", "asks", "--as", "s", "--key", "k")
    task = shop(*words).stdout.partition(":")[0]
    assert shop("tasks", "cancel", task).returncode == 0
    done = shop(*words)
    assert (done.returncode, "cancelled" in done.stderr + done.stdout) == (4, True)


def test_wrong_arguments_are_named_as_the_schema_sees_them_and_make_no_session(shop: Shell) -> None:
    wrong = {
        ("refund", "-a", "order=7", "-a", "cents=x"): "cents: Input should be a valid integer",
        ("refund", "-a", "cents=1"): "order:",
        ("refund", "-a", "order=7", "-a", "tip=1"): "tip: there is no such argument",
        ("refund", "-a", "order"): "write NAME=VALUE",
        ("refund", "-a", "order=7", "-a", "order=8"): "there twice",
        ("refund", "[1]"): "are an object",
        ("refund", "{"): "is no JSON",
        ("refund", '{"order": "7"}', "-a", "cents=1"): "not both",
        ("pay",): "does not have it; it has: refund, slow, fails, asks",
    }
    for words, complaint in wrong.items():
        done = shop("call", "shop.py", *words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert complaint in done.stderr, done.stderr
    assert shop.json("ps", "-a") == []


def test_work_items_are_shown_below_their_session_and_its_turns(shop: Shell) -> None:
    shop("run", "shop.py", "hello", "--as", "s")
    item = shop("processes", "external", "Call Ann", "--parent", "s/t1").stdout.strip()
    shop("processes", "progress", item, "ringing", "--fraction", "0.5")
    told = "Call Ann, waiting, 50% ringing, for s/t1"
    assert f"work item {item}: {told}" in shop("show", "s").stdout
    assert told in shop("show", "s/t1").stdout
    assert [line["parent"] for line in shop.json("show", "s")["items"]] == ["s/t1"]
    assert f"`- {item}" in shop("ps", "-a", "--tree").stdout
    assert [line["id"] for line in shop.json("processes", "--parent", "s")] == [item]
    assert "parent    s/t1" in shop("processes", item).stdout
    assert shop("processes", "external", "Call Ann", "--parent", "s/t7").returncode == 2


def test_a_notification_in_a_pump_is_listed_with_it(shop: Shell) -> None:
    import asyncio

    import holdfast as hf

    shop("run", "shop.py", "hello", "--as", "s")

    async def pump() -> str:
        async with hf.open(shop.folder / ".holdfast" / "holdfast.db", drive=False) as runtime:
            await runtime.notify("s", "news")
            async for _ in runtime.notifications.pump("s"):
                return await asyncio.to_thread(lambda: shop("notifications").stdout)
        return ""

    listed = asyncio.run(pump())
    assert re.search(r"claimed .*news \(in the pump of process \d+", listed), listed
