"""The memory of a scope, as a host uses it."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pydantic
import pytest

from holdfast.errors import InvalidId, InvalidNumber, MemoryConflict, MemoryCorrupt, MemoryMisfit
from holdfast.memory import Memory
from holdfast.store import Store, StoreLimits, open_store
from holdfast.testing import ManualClock
from holdfast.toolkits.memory import MemoryCommands

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with open_store(None, clock=ManualClock(), limits=StoreLimits(page=3)) as made:
        yield made


async def test_what_was_put_is_there(store: Store) -> None:
    memory = Memory(store, "notes", by="host")
    put = await memory.put("a", "one")
    assert await memory.get("a") == put
    assert (put.version, put.by) == (1, "host")


class Sizes(msgspec.Struct):
    shoe: float


class Address(pydantic.BaseModel):
    city: str


@dataclass
class Person:
    name: str
    address: Address


async def test_a_value_is_read_as_the_type_that_is_asked_for(store: Store) -> None:
    memory = Memory(store, "notes")
    given = (Sizes(38.5), Address(city="Rome"), Person("Ada", Address(city="Rome")), [1, 2], "text", date(2026, 1, 2))
    for value in given:
        await memory.put("k", value)
        entry = await memory.get("k", returns=type(value))
        assert entry is not None
        assert (entry.value, entry.key) == (value, "k")
    assert await memory.get("nothing", returns=Sizes) is None


async def test_a_value_of_another_type_than_asked_for_is_a_named_error(store: Store) -> None:
    memory = Memory(store, "notes")
    await memory.put("k", {"shoe": "wide"})
    with pytest.raises(MemoryMisfit, match=r"the memory 'k' of 'notes' is no .*Sizes.*without `returns`") as caught:
        await memory.get("k", returns=Sizes)
    assert (caught.value.scope, caught.value.key) == ("notes", "k")
    with pytest.raises(MemoryMisfit):
        await memory.get("k", returns=int)


async def test_a_rewrite_and_a_copy_keep_summary_and_metadata_and_a_put_does_not(store: Store) -> None:
    memory = Memory(store, "notes")
    entry = await memory.put("a", {"n": 1}, summary="numbers", metadata={"from": "crm"})
    entry = await memory.rewrite(entry, {"n": 2})
    assert (entry.value, entry.summary, entry.metadata) == ({"n": 2}, "numbers", {"from": "crm"})
    entry = await memory.rewrite(entry, entry.value, summary="more numbers", metadata={})
    assert (entry.value, entry.summary, entry.metadata) == ({"n": 2}, "more numbers", {})
    copied = await memory.copy(entry, "b")
    assert (copied.value, copied.summary) == ({"n": 2}, "more numbers")
    assert (await memory.put("a", "text")).summary == ""


async def test_what_counts_against_a_scope_includes_summary_and_metadata(store: Store) -> None:
    memory = Memory(store, "notes")
    await memory.put("k", "four", summary="five5", metadata={"a": 1})
    (scope,) = await store.memory_scopes()
    assert scope.bytes == len("kfourfive5") + len('{"a":1}')


async def test_damaged_details_do_not_pass_for_sound_ones(tmp_path: Path) -> None:
    changes = ("is_json = 0", "is_json = 1, value = '{'", "summary = 'x'", "metadata = NULL", "metadata = '[]'")
    for n, change in enumerate(changes):
        path = tmp_path / f"{n}.db"
        async with open_store(path) as made:
            await Memory(made, "notes").put("a", [1], summary="one", metadata={"a": 1})
            await Memory(made, "notes").put("b", "sound")
        db = sqlite3.connect(path)
        db.execute(f"UPDATE memories SET {change} WHERE key = 'a'")
        db.commit()
        db.close()
        async with open_store(path) as opened:
            memory = Memory(opened, "notes")
            with pytest.raises(MemoryCorrupt):
                await memory.get("a")
            assert ([entry.key for entry in await memory.list()], await memory.damaged()) == (["b"], ["a"])
            assert (await memory.put("a", [2])).value == [2]


async def test_a_damaged_value_in_the_history_is_shown_as_it_is(tmp_path: Path) -> None:
    async with open_store(tmp_path / "s.db") as made:
        await Memory(made, "notes").put("a", [1])
    db = sqlite3.connect(tmp_path / "s.db")
    db.execute("UPDATE memory_changes SET value = '[1', metadata = '5'")
    db.commit()
    db.close()
    async with open_store(tmp_path / "s.db") as opened:
        (change,) = await Memory(opened, "notes").history("a")
        assert (change.value, change.metadata) == ("[1", {})


async def test_scopes_do_not_see_each_other(store: Store) -> None:
    await Memory(store, "one").put("a", "text")
    assert await Memory(store, "two").get("a") is None


async def test_a_put_that_expects_another_version_is_refused(store: Store) -> None:
    memory = Memory(store, "notes")
    await memory.put("a", "one")
    with pytest.raises(MemoryConflict):
        await memory.put("a", "two", expected=0)


@pytest.mark.parametrize("ttl", [60, 60.0, timedelta(minutes=1)])
async def test_an_entry_is_gone_after_its_time(ttl: timedelta | float) -> None:
    clock = ManualClock()
    async with open_store(None, clock=clock) as store:
        memory = Memory(store, "notes")
        await memory.put("a", "one", ttl=ttl)
        clock.advance(59_999)
        assert await memory.get("a") is not None
        clock.advance(1)
        assert await memory.get("a") is None


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), True, "60", timedelta(0)])
async def test_a_time_that_can_not_be_meant_is_refused(store: Store, ttl: Any) -> None:
    with pytest.raises(InvalidNumber):
        await Memory(store, "notes").put("a", "one", ttl=ttl)


async def test_rewriting_keeps_the_time_at_which_an_entry_expires(store: Store) -> None:
    memory = Memory(store, "notes")
    first = await memory.put("a", "one", ttl=60)
    assert (await memory.rewrite(first, "two")).expires == first.expires


async def test_rewriting_an_entry_that_has_changed_is_refused(store: Store) -> None:
    memory = Memory(store, "notes")
    first = await memory.put("a", "one")
    await memory.put("a", "two")
    with pytest.raises(MemoryConflict):
        await memory.rewrite(first, "three")


async def test_all_entries_come_over_all_pages(store: Store) -> None:
    memory = Memory(store, "notes")
    for number in range(8):
        await memory.put(f"k{number}", "text")
    assert [entry.key async for entry in memory.entries()] == [f"k{number}" for number in range(8)]


async def test_entries_are_found_by_their_words(store: Store) -> None:
    memory = Memory(store, "notes")
    await memory.put("a", "the cat sat")
    await memory.put("b", "the dog sat")
    assert [entry.key for entry in await memory.search("cat sat")] == ["a"]


async def test_the_history_has_every_change_and_who_made_it(store: Store) -> None:
    memory = Memory(store, "notes", by="one")
    await memory.put("a", "text")
    await memory.written_by("two").delete("a")
    assert [(change.change, change.by) for change in await memory.history("a")] == [("deleted", "two"), ("put", "one")]


async def test_whoever_wants_to_know_is_told_of_changes_that_were_made(store: Store) -> None:
    told: list[str] = []
    memory = Memory(store, "notes", changed=lambda: told.append("changed"))
    await memory.put("a", "one")
    await memory.delete("a")
    await memory.delete("a")
    assert len(told) == 2


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\nb", "x" * 201, ".hidden", "ends.", " a", "e\u0301"])
async def test_a_scope_or_key_that_can_not_be_a_name_is_refused(store: Store, name: str) -> None:
    with pytest.raises(InvalidId):
        Memory(store, name)
    with pytest.raises(InvalidId):
        await Memory(store, "notes").put(name, "text")


# ---- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def damaged(tmp_path: Path) -> AsyncIterator[Memory]:
    """Five entries on pages of two, of which the second and the last are not what was written."""
    async with open_store(tmp_path / "store.db", limits=StoreLimits(page=2)) as made:
        memory = Memory(made, "notes")
        for key in "abcde":
            await memory.put(key, f"text {key}")
        with sqlite3.connect(tmp_path / "store.db") as connection:
            connection.execute("UPDATE memories SET value = 'tampered' WHERE key IN ('b', 'e')")
        connection.close()
        yield memory


async def test_a_list_has_what_is_sound(damaged: Memory) -> None:
    assert [entry.key for entry in await damaged.list()] == ["a", "c"]
    assert [entry.key for entry in await damaged.list(after="c")] == ["d"]


async def test_a_search_finds_what_is_sound(damaged: Memory) -> None:
    assert [entry.key for entry in await damaged.search("text", 9)] == ["a", "c"]


async def test_damaged_entries_can_be_asked_for(damaged: Memory) -> None:
    assert await damaged.damaged() == ["b", "e"]
    assert await damaged.damaged("c") == []


async def test_whoever_goes_through_all_entries_is_told_of_damaged_ones_if_he_asks_for_it(damaged: Memory) -> None:
    told: list[str] = []
    assert [entry.key async for entry in damaged.entries(damaged=told.append)] == ["a", "c", "d"]
    assert told == ["b", "e"]


async def test_whoever_goes_through_all_entries_does_not_miss_damaged_ones(damaged: Memory) -> None:
    with pytest.raises(MemoryCorrupt, match="'b' of 'notes'"):
        _ = [entry async for entry in damaged.entries()]


async def test_an_agent_that_looks_at_a_folder_is_told_what_is_damaged(damaged: Memory) -> None:
    seen = await MemoryCommands(damaged, "somebody").view("/memories", None)
    assert "/memories/c.md" in seen
    assert "/memories/b.md is damaged" in seen
