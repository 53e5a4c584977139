"""Agents that are given another mode while a turn is under way: the turn goes on as it began."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.approving import parked
from tests.behaviour.background import SESSION, results, talkative
from tests.behaviour.coding import ASKING, Shop, program
from tests.sandboxed import needs_sandbox

import holdfast as hf
from holdfast.errors import ModeUnavailable
from holdfast.runtime.replay_check import check_turns
from holdfast.testing import call, check, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.testing.scripted import ScriptItem

pytestmark = needs_sandbox
PAYS = program("a = await price('abc')\n(await refund('7', a))['cents']")
PAYS_ITSELF = call("refund", order="7", cents=3)


def shopkeeper(shop: Shop, mode: Any, *script: ScriptItem, **options: Any) -> hf.Agent:
    """The same agent in one mode or the other."""
    given: dict[str, Any] = {"tools": shop.tools(), "policy": ASKING, **options}
    return hf.Agent("shop", model=talkative(*script), mode=mode, **given)


async def wait_for_a_person(where: Path, agent: hf.Agent) -> None:
    """A turn comes to a call that is asked about, and its process ends."""
    async with hf.open(where, agents=[agent]) as runtime:
        await runtime.session(SESSION, agent=agent).send("go")
        await parked(runtime)


@pytest.mark.parametrize(
    ("began", "now", "script", "done"),
    [("code", "tools", PAYS, ["abc", ("7", 3)]), ("tools", "code", PAYS_ITSELF, [("7", 3)])],
    ids=["programs", "tools"],
)
async def test_a_turn_goes_on_in_the_mode_in_which_it_began(
    began: str, now: str, script: ScriptItem, done: list[Any], tmp_path: Path
) -> None:
    shop = Shop()
    await wait_for_a_person(tmp_path / "s.db", shopkeeper(shop, began, script, text("done")))
    agent = shopkeeper(shop, now, script, text("done"))
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        (approval,) = await runtime.approvals()
        await runtime.approve(approval.id)
        outcome = await runtime.session(SESSION).turn("t1").outcome(timeout=10)
        assert (outcome.status, outcome.text, shop.done) == ("completed", "done", done)
        assert await check(runtime.store) == []


async def test_the_next_turn_begins_in_the_mode_of_today(tmp_path: Path) -> None:
    shop = Shop()
    await wait_for_a_person(tmp_path / "s.db", shopkeeper(shop, "code", PAYS, text("done")))
    agent = shopkeeper(shop, "tools", PAYS, text("done"), call("price", title="four"), text("four"))
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        (approval,) = await runtime.approvals()
        await runtime.approve(approval.id)
        await (await runtime.session(SESSION).send("more")).outcome(timeout=10)
        assert [result.name for result in results(await runtime.session(SESSION).history())] == ["run_program", "price"]


@pytest.mark.parametrize(("began", "now"), [("code", "tools"), ("tools", "code")], ids=["programs", "tools"])
async def test_turns_that_have_ended_fit_their_records_in_another_mode(began: str, now: str) -> None:
    script = (program("await price('abc')") if began == "code" else call("price", title="abc"), text("done"))
    shop = Shop()
    async with hf.open(None, agents=[shopkeeper(shop, began, *script)]) as runtime:
        await runtime.run("shop", "go", session=SESSION)
        (checked,) = await check_turns(runtime.store, SESSION, shopkeeper(shop, now, *script))
        assert checked.verdict == "ok"


async def test_who_takes_over_goes_on_in_the_mode_in_which_it_did(tmp_path: Path) -> None:
    def agents(mode: str) -> list[hf.Agent]:
        # The desk is the first to speak; of the script of the other one its word is not needed.
        shop_agent = shopkeeper(shop, mode, text("unused"), PAYS, text("done"))
        over = call("transfer_to_shop", reason="It is about money.")
        return [hf.Agent("desk", model=talkative(over), tools=[hf.handoff(shop_agent)]), shop_agent]

    shop = Shop()
    async with hf.open(tmp_path / "s.db", agents=agents("code")) as runtime:
        await runtime.session(SESSION, agent="desk").send("go")
        await parked(runtime)
    async with hf.open(tmp_path / "s.db", agents=agents("tools")) as runtime:
        (approval,) = await runtime.approvals()
        await runtime.approve(approval.id)
        outcome = await runtime.session(SESSION).turn("t1").outcome(timeout=10)
        assert (outcome.text, shop.done) == ("done", ["abc", ("7", 3)])


async def test_a_turn_that_can_not_go_on_as_it_began_says_so_and_can_be_cancelled(tmp_path: Path) -> None:
    shop = Shop()
    await wait_for_a_person(tmp_path / "s.db", shopkeeper(shop, "code", PAYS, text("done")))

    @hf.tool("finish", read_only=True)
    async def odd() -> int:
        """No program can call this."""
        return 1

    agent = shopkeeper(shop, "tools", PAYS, text("done"), tools=[*shop.tools(), odd])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        (approval,) = await runtime.approvals()
        await runtime.approve(approval.id)
        turn = runtime.session(SESSION).turn("t1")
        with pytest.raises(ModeUnavailable, match="'finish'") as stopped:
            await turn.outcome(timeout=10)
        assert (stopped.value.turn, stopped.value.mode, shop.done) == ("t1", "code", ["abc"])
        await turn.cancel("enough")
        assert (await turn.outcome(timeout=10)).status == "cancelled"
        assert await check(runtime.store) == []
