"""A fork begins where another session was at a record: nothing is copied, nothing is shared from there on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, asked, pairs_are_whole

import holdfast as hf
from holdfast.errors import ForkPointMissing, JournalConflict, JournalMissing
from holdfast.messages import ToolMessage, encode
from holdfast.testing import ScriptedModel, call, check, text

if TYPE_CHECKING:
    from pathlib import Path


def shown(value: object) -> str:
    """A value in the name of a test."""
    return ascii(value)[:24]


class Shop:
    """One tool that reads, one that acts, one that hangs."""

    def __init__(self) -> None:
        self.refunds: list[str] = []
        self.reached = asyncio.Event()

    def tools(self) -> list[hf.Tool[..., Any]]:
        @hf.tool(read_only=True)
        async def find(order: int = 1) -> int:
            return order

        @hf.tool
        async def refund(ctx: hf.Context) -> str:
            self.refunds.append(ctx.idempotency_key)
            return "refunded"

        @hf.tool
        async def hangs() -> str:
            self.reached.set()
            await asyncio.Event().wait()
            return ""

        return [find, refund, hangs]


@pytest.fixture
async def shop() -> Shop:
    return Shop()


def done(request: hf.ModelRequest) -> Any:
    return text("Done.")


SCRIPT = [[call("find"), call("refund")], text("one"), call("refund"), text("two"), text("three"), text("four")]


def agent_of(shop: Shop, script: Any = SCRIPT) -> hf.Agent:
    return hf.Agent("agent", model=ScriptedModel(script), tools=shop.tools(), policy=[hf.allow("*")])


async def answer(session: hf.Session, words: str = "go") -> hf.TurnOutcome:
    return await (await session.send(words)).outcome(timeout=SOON)


async def head_of(runtime: hf.Runtime, session: str) -> int:
    return (await runtime.store.journal(session)).head


async def test_a_fork_begins_with_all_that_was_said(shop: Shop) -> None:
    agent = agent_of(shop)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session)
        fork = await session.fork()
        assert await fork.history() == await session.history()


async def test_a_fork_goes_on_where_the_other_was(shop: Shop) -> None:
    agent = agent_of(shop)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session)
        fork = await session.fork()
        assert (await answer(fork, "more")).text == "two"


async def test_what_is_said_in_a_fork_is_not_said_in_the_other(shop: Shop) -> None:
    agent = agent_of(shop)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session)
        before = await session.history()
        fork = await session.fork()
        await answer(fork, "only in the fork")
        assert await session.history() == before


async def test_what_is_said_after_the_fork_is_not_in_it(shop: Shop) -> None:
    agent = agent_of(shop)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session)
        fork = await session.fork()
        before = await fork.history()
        await answer(session, "only in the first")
        assert await fork.history() == before


async def test_a_fork_at_an_earlier_record_is_a_rewind(shop: Shop) -> None:
    agent = agent_of(shop)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session)
        at, then = await head_of(runtime, "s"), await session.history()
        await answer(session, "a mistake")
        fork = await session.fork(at=at)
        assert await fork.history() == then == await session.history(at=at)


async def test_a_fork_performs_nothing_that_was_done_before_it(shop: Shop) -> None:
    agent = agent_of(shop)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session)
        fork = await session.fork()
        assert (len(shop.refunds), len(asked(agent))) == (1, 2)
        await answer(fork, "more")
        assert (len(shop.refunds), len(asked(agent))) == (2, 4)


async def test_a_call_in_a_fork_has_a_key_of_its_own(shop: Shop) -> None:
    agent = agent_of(shop)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session)
        forks = [await session.fork() for _ in range(2)]
        for fork in [*forks, session]:
            await answer(fork, "more")
        assert len(set(shop.refunds)) == len(shop.refunds) == 4


async def test_no_two_messages_of_a_fork_have_one_id(shop: Shop) -> None:
    agent = agent_of(shop)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session)
        fork = await session.fork()
        await answer(fork, "more")
        ids = [message.id for message in await fork.history()]
        assert len(set(ids)) == len(ids)


async def test_every_record_is_a_place_from_which_a_fork_can_go_on(shop: Shop) -> None:
    agent = agent_of(shop, done)
    first = agent_of(shop)
    async with hf.open(None, agents=[first]) as runtime:
        session = runtime.session("s", agent=first)
        await answer(session)
        await answer(session, "more")
        head = await head_of(runtime, "s")
        runtime.agents["agent"] = agent
        for at in range(1, head + 1):
            fork = await session.fork(at=at)
            assert pairs_are_whole(await fork.history())
            assert (await answer(fork, "from here")).text == "Done."
            assert pairs_are_whole(asked(agent)[-1].messages)
            assert len(asked(agent)) == at
        assert await check(runtime.store) == []


async def test_a_turn_that_was_under_way_does_not_go_on_in_the_fork(shop: Shop) -> None:
    agent = agent_of(shop, [[call("find"), call("hangs"), call("find")], text("in the fork")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(shop.reached.wait(), SOON)
        fork = await session.fork()
        assert (await answer(fork, "instead")).text == "in the fork"
        results = next(message for message in await fork.history() if isinstance(message, ToolMessage))
        assert [result.state for result in results.results][0::2] == ["ok", "unknown"]
        assert await turn.status() == "running"
        await turn.cancel()
        await turn.outcome(timeout=SOON)


async def test_a_call_that_ran_when_the_fork_was_made_is_not_told_as_never_begun(shop: Shop) -> None:
    agent = agent_of(shop, [call("hangs"), text("in the fork")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(shop.reached.wait(), SOON)
        fork = await session.fork()
        (results,) = [message for message in await fork.history() if isinstance(message, ToolMessage)]
        await turn.cancel()
        await turn.outcome(timeout=SOON)
        assert [result.state for result in results.results] == ["unknown"]


async def test_what_waits_in_the_inbox_is_not_forked(shop: Shop) -> None:
    agent = agent_of(shop, [call("hangs"), text("next")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(shop.reached.wait(), SOON)
        await session.send("queued")
        fork = await session.fork()
        await answer(fork, "instead")
        assert "queued" not in str(await fork.history())
        await turn.cancel()
        await session.turn("t2").outcome(timeout=SOON)


async def test_a_fork_of_a_fork_has_it_all(shop: Shop) -> None:
    agent = agent_of(shop)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session, "one")
        fork = await session.fork(id="second")
        await answer(fork, "two")
        third = await fork.fork(id="third")
        assert (await answer(third, "three")).text == "three"
        said = [message.text for message in await third.history() if isinstance(message, hf.UserMessage)]
        assert said == ["one", "two", "three"]


async def test_a_fork_is_there_after_a_restart(tmp_path: Path, shop: Shop) -> None:
    agent = agent_of(shop)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session)
        fork = await session.fork(id="fork")
        await answer(fork, "more")
        before = [encode(message) for message in await fork.history()]
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        assert [encode(message) for message in await runtime.session("fork").history()] == before
        assert (await answer(runtime.session("fork"), "and more")).text == "three"


async def test_the_usage_of_a_fork_tells_what_was_used(shop: Shop) -> None:
    agent = agent_of(shop)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session)
        fork = await session.fork()
        outcome = await answer(fork, "more")
        (line,) = await fork.usage()
        assert line.usage.total >= outcome.usage.total


async def test_a_key_of_the_other_session_is_free_in_the_fork(shop: Shop) -> None:
    agent = agent_of(shop)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("go", key="k")).outcome(timeout=SOON)
        fork = await session.fork()
        assert (await (await fork.send("other", key="k")).outcome(timeout=SOON)).text == "two"


async def test_the_outcome_of_a_turn_of_a_fork_is_its_own(shop: Shop) -> None:
    agent = agent_of(shop)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        first = await answer(session)
        fork = await session.fork()
        turn = await fork.send("more")
        assert (await turn.outcome(timeout=SOON)).text == "two"
        assert (await fork.turn(turn.id).outcome(timeout=SOON)).text == "two"
        assert await session.turn("t1").outcome(timeout=SOON) == first


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [10_000, -1, 2**70, "1", 1.0, True, b"", float("nan")], ids=str)
async def test_a_place_that_is_not_there_is_refused_and_no_session_appears(shop: Shop, at: Any) -> None:
    agent = agent_of(shop)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session)
        with pytest.raises(hf.UsageError):
            await session.fork(at=at)
        assert [line.id for line in await runtime.sessions()] == ["s"]


async def test_a_place_behind_the_end_is_named(shop: Shop) -> None:
    agent = agent_of(shop)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session)
        with pytest.raises(ForkPointMissing) as caught:
            await session.fork(at=999)
        assert (caught.value.at, caught.value.head) == (999, await head_of(runtime, "s"))


@pytest.mark.parametrize("id", ["", 5, "a\nb", "../x", "x" * 300, "\ud800"], ids=shown)
async def test_an_id_that_can_name_no_session_is_refused(shop: Shop, id: Any) -> None:
    agent = agent_of(shop)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await answer(session)
        with pytest.raises(hf.UsageError):
            await session.fork(id=id)


async def test_an_id_that_is_taken_is_refused_and_the_session_stays_as_it_is(shop: Shop) -> None:
    agent = agent_of(shop)
    async with hf.open(None, agents=[agent]) as runtime:
        session, other = runtime.session("s", agent=agent), runtime.session("other", agent=agent)
        await answer(session)
        await answer(other)
        before = await other.history()
        for taken in ("other", "s"):
            with pytest.raises(JournalConflict):
                await session.fork(id=taken)
        assert await other.history() == before


async def test_a_session_that_is_not_there_can_not_be_forked(shop: Shop) -> None:
    async with hf.open(None, agents=[agent_of(shop)]) as runtime:
        with pytest.raises(JournalMissing):
            await runtime.session("nowhere").fork()


async def test_a_session_with_a_long_id_can_be_forked_again_and_again(shop: Shop) -> None:
    agent = agent_of(shop, done)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("ü" * 256, agent=agent)
        await answer(session)
        for _ in range(5):
            session = await session.fork()
        assert (await answer(session, "more")).text == "Done."
