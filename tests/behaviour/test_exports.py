"""Sessions in files: a copy of one at rest, and a move of one in the middle of its work."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest
from tests.behaviour.talk import at_rest

import holdfast as hf
from holdfast.errors import (
    ApprovalUnknown,
    ExportRefused,
    JournalMoved,
    SessionFileUntrusted,
)
from holdfast.runtime.budgets import spend_of_record
from holdfast.store.audit import audit
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from pathlib import Path

KEYS: list[str] = []


@hf.tool
async def pay(ctx: hf.Context, cents: int) -> str:
    """Pay."""
    KEYS.append(ctx.idempotency_key)
    return f"paid {cents}"


def asks() -> hf.Agent:
    script = ScriptedModel([call("pay", cents=5), text("done")])
    return hf.Agent("asks", model=script, tools=[pay], policy=[hf.ask("pay")])


def echo() -> hf.Agent:
    return hf.Agent("echo", model=ScriptedModel([text("hello yourself"), text("again")]))


async def sound(runtime: hf.Runtime) -> list[str]:
    found = await runtime.store.examine(lambda reader: audit(reader, spend_of=spend_of_record))
    return [str(violation) for violation in found]


async def test_a_copy_of_a_session_goes_on_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    async with hf.open(tmp_path / "one.db", agents=[echo()], mirror=False) as runtime:
        await (await runtime.session("s", agent="echo").send("hello")).outcome()
        await runtime.memory("s").put("note", "wombat")
        before = [entry async for entry in runtime.store.read_all("s")]
        made = await runtime.export_session("s", file)
        assert (made.move, made.journals, made.records) == (False, ("s",), len(before))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    async with hf.open(tmp_path / "two.db", agents=[echo()], mirror=False) as runtime:
        found = await runtime.import_session(file, key=tmp_path / "one.db.key")
        assert (found.fresh, found.records) == (True, len(before))
        assert [entry.record async for entry in runtime.store.read_all("s")] == [entry.record for entry in before]
        assert (await runtime.memory("s").get("note")) is not None
        assert await sound(runtime) == []
        assert not (await runtime.import_session(file, key=tmp_path / "one.db.key")).fresh
        assert (await (await runtime.session("s").send("more")).outcome()).text == "again"


async def test_a_moved_session_goes_on_with_its_keys_and_is_refused_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    KEYS.clear()
    async with hf.open(tmp_path / "one.db", agents=[asks()], mirror=False) as runtime:
        await runtime.session("s", agent="asks").send("hello", key="k")
        await at_rest(runtime, "s")
        with pytest.raises(ExportRefused, match="move"):
            await runtime.export_session("s", file)
        (approval,) = await runtime.approvals()
        store = runtime.store.id
        assert (await runtime.export_session("s", file, move=True)).move
        with pytest.raises(ApprovalUnknown):
            await runtime.approve(approval.id)
        with pytest.raises(JournalMoved):
            await runtime.session("s").send("more")
        assert await runtime.approvals() == []
        assert await sound(runtime) == []
        assert len(await runtime.session("s").history()) > 0
    async with hf.open(tmp_path / "two.db", agents=[asks()], mirror=False) as runtime:
        with pytest.raises(SessionFileUntrusted):
            await runtime.import_session(file)
        await runtime.import_session(file, key=tmp_path / "one.db.key")
        (approval,) = await runtime.approvals()
        await runtime.approve(approval.id)
        turn = await runtime.session("s").send("hello", key="k")
        assert (await turn.outcome()).text == "done"
        assert await sound(runtime) == []
        from holdfast.effects.performer import idempotency_key

        assert [idempotency_key(store, "s", "t1/2.tools/1.pay")] == KEYS
