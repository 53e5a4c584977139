"""A notification may bring a JSON value for the host beside its text; the model does not see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.behaviour.background import talkative
from tests.behaviour.talk import until

import holdfast as hf
from holdfast.errors import InvalidValue, JournalCorrupt, KeyConflict, PayloadTooLarge
from holdfast.testing import check

if TYPE_CHECKING:
    from pathlib import Path

ORDER = {"order": 7, "lines": ["a", None, 1.5], "ok": True}


def agent() -> hf.Agent:
    return hf.Agent("a", model=talkative(), tools=[])


async def test_a_payload_comes_back_as_it_was_given_and_the_model_does_not_see_it() -> None:
    known = agent()
    async with hf.open(None, agents=[known]) as runtime:
        await runtime.run(known, "hi", session="s")
        made = await runtime.notify("s", "An order came", "It is large.", payload=ORDER)
        assert made.payload == ORDER
        [found] = await runtime.store.notifications("s")
        assert found.payload == ORDER

        async def is_told() -> bool:
            return "An order came" in str(await runtime.session("s").history())

        await until(is_told)
        assert "lines" not in str(await runtime.session("s").history())
        assert await check(runtime.store) == []


async def test_a_payload_outlives_a_restart_and_its_delivery(tmp_path: Path) -> None:
    known = agent()
    async with hf.open(tmp_path / "s.db", agents=[known], can_deliver=lambda _: False) as runtime:
        await runtime.run(known, "hi", session="s")
        await runtime.notify("s", "An order came", payload=[1, 2])
    async with hf.open(tmp_path / "s.db", agents=[known]) as runtime:

        async def is_acknowledged() -> bool:
            return [found.state for found in await runtime.store.notifications("s")] == ["acknowledged"]

        await until(is_acknowledged)
        assert [found.payload for found in await runtime.store.notifications("s")] == [[1, 2]]


@pytest.mark.parametrize("other", [None, {**ORDER, "order": 8}, []])
async def test_the_same_key_with_another_payload_is_a_conflict(other: Any) -> None:
    known = agent()
    async with hf.open(None, agents=[known], can_deliver=lambda _: False) as runtime:
        await runtime.run(known, "hi", session="s")
        first = await runtime.notify("s", "An order came", key="k", payload=ORDER)
        assert (
            await runtime.notify("s", "An order came", key="k", payload=dict(reversed(ORDER.items())))
        ).id == first.id
        with pytest.raises(KeyConflict):
            await runtime.notify("s", "An order came", key="k", payload=other)


async def test_a_payload_that_is_too_large_or_no_json_is_refused() -> None:
    known = agent()
    async with hf.open(None, agents=[known], can_deliver=lambda _: False) as runtime:
        await runtime.run(known, "hi", session="s")
        limit = runtime.store.limits.notification_bytes
        with pytest.raises(PayloadTooLarge):
            await runtime.notify("s", "Large", "x" * (limit // 2), payload="y" * (limit // 2))
        for wrong in ({1: 2}, float("nan"), object()):
            with pytest.raises(InvalidValue):
                await runtime.notify("s", "Odd", payload=wrong)
        assert await runtime.store.notifications("s") == []


async def test_a_secret_in_a_payload_is_hidden() -> None:
    known = agent()
    async with hf.open(None, agents=[known], can_deliver=lambda _: False) as runtime:
        runtime.redactor.register("KEY", "hunter2hunter2")
        await runtime.run(known, "hi", session="s")
        made = await runtime.notify("s", "A key", payload={"key": "hunter2hunter2"})
        assert "hunter2" not in str(made.payload)
        assert "hunter2" not in str((await runtime.store.notifications("s"))[0].payload)


@pytest.mark.parametrize("forged", ['{"order":8}', "no json"])
async def test_a_payload_that_another_program_changed_is_damage(tmp_path: Path, forged: str) -> None:
    known = agent()
    async with hf.open(tmp_path / "s.db", agents=[known], can_deliver=lambda _: False) as runtime:
        await runtime.run(known, "hi", session="s")
        made = await runtime.notify("s", "An order came", payload=ORDER)
    db: Any = apsw.Connection(str(tmp_path / "s.db"))
    with db:
        db.execute("UPDATE notifications SET payload = ? WHERE id = ?", (forged, made.id))
    async with hf.open(tmp_path / "s.db", drive=False) as runtime:
        with pytest.raises(JournalCorrupt):
            await runtime.store.notification(made.id)
