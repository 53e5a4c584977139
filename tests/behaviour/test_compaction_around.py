"""Around a compaction: hooks that see and forbid it, and turns that run while it is set in another way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON
from tests.behaviour.window import SUMMARY, WINDOW, Writer, agent_of, look, marks

import holdfast as hf
from holdfast.messages import Usage
from holdfast.runtime.replay_check import check_turns
from holdfast.testing import call, reply

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.messages import ModelRequest
    from holdfast.policy.hooks import Deny

# ---- hooks -----------------------------------------------------------------------------------------------------------


class Watching(hf.Hooks):
    def __init__(self, *, deny: bool = False) -> None:
        self.before: list[tuple[int, int]] = []
        self.after: list[str | None] = []
        self._deny = deny

    async def before_compaction(self, turn: hf.TurnContext, messages: int, tokens: int) -> Deny | None:
        self.before.append((messages, tokens))
        return turn.deny("not now") if self._deny else None

    async def after_compaction(self, turn: hf.TurnContext, summary: str | None) -> None:
        self.after.append(summary)


async def test_hooks_see_it_before_and_after() -> None:
    hooks = Watching()
    await hf.run(agent_of(Writer(12), hooks=[hooks]), "go")
    assert hooks.after == [SUMMARY]
    ((messages, tokens),) = hooks.before
    assert messages > 20
    assert tokens > 2_000


async def test_a_hook_can_forbid_it() -> None:
    hooks, model = Watching(deny=True), Writer(12)
    assert (await hf.run(agent_of(model, hooks=[hooks]), "go")).status == "completed"
    assert (hooks.after, len(model.asked[-1].messages)) == ([], 25)


# ---- when the agent is changed meanwhile -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        hf.Compaction(enabled=False),
        hf.Compaction(window=2 * WINDOW),
        hf.Compaction(window=WINDOW // 2),
        hf.Compaction(window=WINDOW, full=0.6, aim=0.2),
    ],
    ids=["off", "larger", "smaller", "earlier"],
)
async def test_a_running_turn_goes_on_when_its_compaction_is_changed(changed: hf.Compaction, tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def hang(asked: ModelRequest) -> Any:
        if asked.position == 25:
            reached.set()
            await asyncio.Event().wait()
        return reply(call(look, at=asked.position or 0), usage=Usage(output=1))

    agent = agent_of(Writer(say=hang))
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("go")
        async with asyncio.timeout(SOON):
            await reached.wait()
        await runtime.close(grace=0)
    model = Writer(30)
    agent = agent_of(model, compaction=changed)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        assert (await session.turn("t1").outcome(timeout=SOON)).status == "completed"
        assert marks(model.asked[0].messages) == ["summary"]
        assert [turn.verdict for turn in await check_turns(runtime.store, "s", agent)] == ["ok"]


async def test_looking_whether_turns_fit_asks_for_no_summary(tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def hang(_: ModelRequest) -> Any:
        reached.set()
        await asyncio.Event().wait()

    agent = agent_of(Writer(30, summary=hang))
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("go")
        async with asyncio.timeout(SOON):
            await reached.wait()
        await runtime.close(grace=0)
    model = Writer(30)
    async with hf.open_store(tmp_path / "s.db") as store:
        assert [turn.verdict for turn in await check_turns(store, "s", agent_of(model))] == ["ok"]
    assert model.requests == []
