"""Cases that a review of policies, budgets and secrets has brought up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.behaviour.window import LONG, SHORT, Writer, agent_of, marks

import holdfast as hf
from holdfast.effects.performer import LeasedJournal
from holdfast.errors import PayloadTooLarge
from holdfast.records import Progressed
from holdfast.store import StoreLimits, open_store
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_refused_append_is_raised_and_nothing_is_put_behind_it() -> None:
    async with open_store(None, limits=StoreLimits(record_bytes=70_000)) as store:
        await store.open_journal("a")
        lease = await store.claim("a")
        journal = LeasedJournal(store, lease)
        with pytest.raises(PayloadTooLarge):
            journal.append([Progressed(at=1, run="r", note="x" * 80_000)])
        durable = journal.append([Progressed(at=1, run="r", note="short")])
        assert (await durable).seq == 2


async def test_a_secret_in_the_name_of_a_step_fails_the_call_and_not_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIN_CODE", "hunter2-canary")

    @hf.tool(idempotent=True)
    async def pay(ctx: hf.Context) -> str:
        return await ctx.step("pay-" + ctx.secrets["PIN"], lambda: "paid")

    agent = hf.Agent("a", model=ScriptedModel([call("pay"), text("Sorry.")]), tools=[pay], policy=[hf.allow("*")])
    async with hf.open(tmp_path / "s.db", agents=[agent], secrets={"PIN": "env:PIN_CODE"}) as runtime:
        outcome = await runtime.run(agent, "Pay.", session="s")
        history = await runtime.session("s").history()
        states = [result.state for message in history for result in getattr(message, "results", ())]
        assert (outcome.text, states) == ("Sorry.", ["error"])


async def test_an_input_that_steers_can_be_pinned(tmp_path: Path) -> None:
    sent: list[str] = []

    @hf.tool(read_only=True)
    async def look(at: int, words: int = SHORT) -> str:
        if not sent:
            for said in ("Never forget: blue.", "Something else.", "And more."):
                sent.append(said)
                await runtime.session("s").send(said, steer=True, pin=said.startswith("Never"))
        return f"at {at}: " + "word " * words

    agent = agent_of(Writer(60, words=LONG), tools=[look])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        assert (await runtime.run(agent, "Go.", session="s")).text == "done"
        said = [getattr(message, "text", "") for message in await runtime.session("s").context()]
        assert (marks(await runtime.session("s").context()) != [], "Never forget: blue." in said) == (True, True)
