"""Old stores open: one that an older release wrote is brought up to date in one transaction, with all that is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw

import holdfast as hf
from holdfast.store.sqlite.schema import APPLICATION_ID, MIGRATIONS
from holdfast.testing import ScriptedModel, check, text

if TYPE_CHECKING:
    from pathlib import Path


async def _store_of_schema_1(path: Path) -> None:
    """A store as the first schema had it: a session with one input that nobody has answered."""
    async with hf.open_store(path) as store:
        await store.accept_into("s", "session", "a", {"parts": [{"type": "text", "text": "hello"}]}, key="k")
        await store.open_journal("idle", "session", "a")
    connection: Any = apsw.Connection(str(path))
    old: Any = apsw.Connection(str(path.with_suffix(".old")))
    old.execute(MIGRATIONS[0])
    for table in ("meta", "journals", "records", "inputs", "waits", "blobs", "refs"):
        columns = [row[1] for row in old.execute(f"PRAGMA table_info({table})")]
        listed, places = ", ".join(columns), ", ".join("?" * len(columns))
        for row in connection.execute(f"SELECT {listed} FROM {table}"):  # noqa: S608
            old.execute(f"INSERT INTO {table} ({listed}) VALUES ({places})", row)  # noqa: S608
    old.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1; PRAGMA journal_mode = WAL")
    old.close()
    connection.close()


async def test_a_store_of_the_first_schema_opens_and_is_sound(tmp_path: Path) -> None:
    await _store_of_schema_1(tmp_path / "store.db")
    async with hf.open_store(tmp_path / "store.old") as store:
        assert await check(store) == []
        assert {line.id for line in await store.journals()} == {"s", "idle"}


async def test_an_input_that_waited_in_a_store_of_the_first_schema_is_answered(tmp_path: Path) -> None:
    await _store_of_schema_1(tmp_path / "store.db")
    agent = hf.Agent("a", model=ScriptedModel([text("welcome")]))
    async with hf.open(tmp_path / "store.old", agents=[agent]) as runtime:
        assert (await runtime.session("s").turn("t1").outcome(timeout=10)).text == "welcome"


async def test_inputs_count_on_in_a_store_of_the_first_schema(tmp_path: Path) -> None:
    await _store_of_schema_1(tmp_path / "store.db")
    async with hf.open_store(tmp_path / "store.old") as store:
        assert (await store.accept("s", "again")).input == 2
