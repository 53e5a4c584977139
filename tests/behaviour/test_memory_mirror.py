"""Memory as files: what others write there is memory, and no text is ever lost, whoever writes what when."""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import stat
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.behaviour.talk import until
from tests.examples import examples

from holdfast import crashpoints
from holdfast.errors import MemoryCorrupt
from holdfast.memory import Memory, MirrorBusy, MirrorUnavailable
from holdfast.memory import folder as folder_module
from holdfast.memory.decisions import INDEX_NAME, MirrorReport
from holdfast.memory.folder import MirrorFolder
from holdfast.memory.front_matter import file_text, parse_file
from holdfast.memory.mirror import Mirror
from holdfast.store import MemoryEntry, Store, StoreLimits, open_store
from holdfast.store.paths import memory_folder
from holdfast.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence

SCOPE = "notes"


class World:
    """A store, a folder, and a mirror between them that takes every change at its word."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.folder = folder
        self.memory = Memory(store, SCOPE)
        self.mirror = Mirror(store, folder, settle=0)

    def path(self, key: str, scope: str = SCOPE) -> Path:
        return self.folder / scope / f"{key}.md"

    def edit(self, key: str, text: str) -> None:
        self.path(key).parent.mkdir(parents=True, exist_ok=True)
        self.path(key).write_text(text, encoding="utf-8")

    async def value(self, key: str) -> str | None:
        entry = await self.memory.get(key)
        return None if entry is None else entry.value

    async def values(self) -> dict[str, str]:
        return {entry.key: entry.value async for entry in self.memory.entries()}

    def leftovers(self) -> list[Path]:
        return list(self.folder.glob("*/.holdfast-*"))

    def files(self) -> dict[str, str]:
        found = (self.folder / SCOPE).glob("*.md")
        return {path.name.removesuffix(".md"): path.read_bytes().decode() for path in found}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_store(None) as store:
        yield World(store, tmp_path / "m")


# ---- both ways -------------------------------------------------------------------------------------------------------


async def test_an_entry_becomes_a_file_with_its_text_to_the_last_byte(world: World) -> None:
    await world.memory.put("colours", "red\r\nblue \ud7ff")
    await world.mirror.sync()
    assert world.path("colours").read_bytes() == "red\r\nblue \ud7ff".encode()


async def test_files_and_folders_are_for_their_owner_alone(world: World) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (world.folder, world.folder / SCOPE, world.path("a"))]
    assert modes == [0o700, 0o700, 0o600]


async def test_an_edit_of_a_file_changes_its_entry(world: World) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    world.edit("a", "mine")
    report = await world.mirror.sync()
    assert (await world.value("a"), report.taken) == ("mine", ("notes/a.md",))


async def test_an_entry_that_was_edited_as_a_file_says_so(world: World) -> None:
    world.edit("a", "mine")
    await world.mirror.sync()
    entry = await world.memory.get("a")
    assert entry is not None
    assert entry.by == "mirror"


async def test_an_edit_keeps_the_time_at_which_the_entry_expires(tmp_path: Path) -> None:
    async with open_store(None, clock=ManualClock()) as store:
        world = World(store, tmp_path)
        before = await world.memory.put("a", "one", ttl=60)
        await world.mirror.sync()
        world.edit("a", "mine")
        await world.mirror.sync()
        after = await world.memory.get("a")
        assert after is not None
        assert (after.value, after.expires) == ("mine", before.expires)


async def test_a_change_of_an_entry_changes_its_file(world: World) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    await world.memory.put("a", "two")
    await world.mirror.sync()
    assert world.files() == {"a": "two"}


async def test_a_new_file_in_a_new_folder_is_a_new_entry_in_a_new_scope(world: World) -> None:
    (world.folder / "people").mkdir(parents=True)
    world.path("ada", "people").write_text("likes numbers", encoding="utf-8")
    await world.mirror.sync()
    entry = await Memory(world.store, "people").get("ada")
    assert entry is not None
    assert entry.value == "likes numbers"


async def test_a_file_that_is_removed_takes_its_entry_with_it(world: World) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    world.path("a").unlink()
    report = await world.mirror.sync()
    assert (await world.value("a"), report.dropped) == (None, ("notes/a.md",))


async def test_a_removed_file_does_not_take_a_version_with_it_that_was_never_there(world: World) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    world.path("a").unlink()
    await world.memory.put("a", "two")
    await world.mirror.sync()
    assert (await world.value("a"), world.files()) == ("two", {"a": "two"})


async def test_an_entry_that_is_removed_takes_its_file_with_it(world: World) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    await world.memory.delete("a")
    report = await world.mirror.sync()
    assert (world.files(), report.erased) == ({}, ("notes/a.md",))


async def test_an_edit_counts_more_than_a_removal_of_the_entry(world: World) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    world.edit("a", "mine")
    await world.memory.delete("a")
    await world.mirror.sync()
    assert await world.value("a") == "mine"


async def test_an_entry_that_expires_takes_its_file_with_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_store(None, clock=clock) as store:
        world = World(store, tmp_path)
        await world.memory.put("a", "one", ttl=60)
        await world.mirror.sync()
        clock.advance(60_000)
        await world.mirror.sync()
        assert world.files() == {}


async def test_a_file_with_a_byte_order_mark_is_taken_in_without_it_and_left_as_it_is(world: World) -> None:
    world.path("a").parent.mkdir(parents=True)
    world.path("a").write_bytes(b"\xef\xbb\xbftext")
    await world.mirror.sync()
    again = await world.mirror.sync()
    assert await world.value("a") == "text"
    assert world.path("a").read_bytes() == b"\xef\xbb\xbftext"
    assert again == MirrorReport()


async def test_a_json_value_a_summary_and_metadata_are_in_a_front_matter(world: World) -> None:
    await world.memory.put("a", {"shoe": 38}, summary='the "sizes"', metadata={"from": "crm"})
    await world.memory.put("b", "text", summary="short")
    await world.mirror.sync()
    head = '---\nmemory: json\nsummary: "the \\"sizes\\""\nmetadata: {"from":"crm"}\n---\n'
    assert world.files() == {
        "a": f'{head}{{\n  "shoe": 38\n}}\n',
        "b": '---\nmemory: text\nsummary: "short"\n---\ntext',
    }


async def test_an_edit_of_a_front_matter_is_taken_in_and_the_file_stays_as_it_was_written(world: World) -> None:
    await world.memory.put("a", "text")
    await world.mirror.sync()
    text = "---\r\nmemory: json\r\nsummary:   likes green \r\nmetadata: {}\r\n---\r\n\r\n[1,\r\n2]"
    world.path("a").write_bytes(b"\xef\xbb\xbf" + text.encode())
    await world.mirror.sync()
    entry = await world.memory.get("a")
    assert entry is not None
    assert (entry.value, entry.summary, entry.metadata) == ([1, 2], "likes green", {})
    assert (await world.mirror.sync()) == MirrorReport()
    assert world.path("a").read_bytes() == b"\xef\xbb\xbf" + text.encode()


async def test_a_text_that_looks_like_a_front_matter_of_memory_stays_a_text(world: World) -> None:
    await world.memory.put("a", "---\nmemory: json\n---\n{")
    await world.memory.put("b", "---\ntitle: x\n---\ntext")
    longest, too_long = (f"---{' ' * spaces}\r\nmemory: json\n---\n[" for spaces in (20, 21))
    await world.memory.put("c", longest)
    await world.memory.put("d", too_long)
    await world.memory.put("e", "---\nmemory: text\nsummary: x\n---\ntext")
    await world.mirror.sync()
    (world.folder / INDEX_NAME).unlink()
    report = await world.mirror.sync()
    assert (report.refused, report.conflicts) == ((), ())
    texts = {"a": "---\nmemory: json\n---\n{", "b": "---\ntitle: x\n---\ntext", "c": longest, "d": too_long}
    texts["e"] = "---\nmemory: text\nsummary: x\n---\ntext"
    assert await world.values() == texts
    assert world.path("b").read_text(encoding="utf-8") == "---\ntitle: x\n---\ntext"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("---\nmemory: json\n---\n{", "the text after it is no JSON"),
        ("---\nmemory: json\n---\nnull", "is null or a text"),
        ("---\nmemory: json\n---\n1e999", "no JSON that can be stored"),
        ("---\nmemory: json\n---\n" + "[" * 10_000, "no JSON that can be stored"),
        ("---\nmemory: yaml\n---\n{}", "text or json is wanted"),
        ("---\nmemory: text\nsumary: x\n---\n", "it is none of memory, summary and metadata"),
        ("---\nmemory: text\nmemory: text\n---\n", "it comes twice"),
        ("---\nmemory: text\nmetadata: [1]\n---\n", "metadata is no JSON object"),
        ("---\nmemory: text\nmetadata: {a: 1}\n---\n", "metadata is no JSON"),
        ('---\nmemory: text\nsummary: "x\n---\n', "the summary"),
        ("---\nmemory: text\nsummary: a\x07b\n---\n", "the summary"),
        ("---\nmemory: text\nsummary: x\n", "no line '---' ends it"),
        (f"---\nmemory: text\nsummary: {'x' * 501}\n---\n", "the summary is 501 bytes"),
    ],
)
async def test_a_file_that_can_t_be_read_is_refused_with_its_reason_and_nothing_is_lost(
    world: World, text: str, reason: str
) -> None:
    await world.memory.put("a", [1], summary="one")
    await world.mirror.sync()
    world.edit("a", text)
    (refused,) = (await world.mirror.sync()).refused
    assert refused.path == "notes/a.md"
    assert reason in refused.reason
    await world.memory.put("b", "goes on")
    await world.mirror.sync()
    assert world.files() == {"a": text, "b": "goes on"}
    assert await world.values() == {"a": [1], "b": "goes on"}
    world.edit("a", "mended")
    await world.mirror.sync()
    assert await world.values() == {"a": "mended", "b": "goes on"}


async def test_the_largest_entry_has_a_file(tmp_path: Path) -> None:
    async with open_store(None, limits=StoreLimits(memory_bytes=1_000)) as store:
        world = World(store, tmp_path)
        more = {"k": "x" * (store.limits.memory_metadata_bytes - 8)}
        await world.memory.put("a", "---\nmemory:" + "x" * 989, summary='"' * 500, metadata=more)
        assert (await world.mirror.sync()).refused == ()
        world.path("a").write_text(world.files()["a"].replace("xxx", "yyy", 1), encoding="utf-8")
        await world.mirror.sync()
        assert "yyy" in str(await world.memory.get("a"))


async def test_when_nothing_has_changed_nothing_is_written(world: World) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    before = (world.folder / INDEX_NAME).stat().st_mtime_ns, world.path("a").stat().st_ino
    report = await world.mirror.sync()
    assert before == ((world.folder / INDEX_NAME).stat().st_mtime_ns, world.path("a").stat().st_ino)
    assert report == MirrorReport()


async def test_a_key_that_is_too_long_for_a_file_name_comes_back_from_its_file(world: World) -> None:
    key = "長" * 200
    await world.memory.put(key, "one")
    await world.mirror.sync()
    (path,) = (world.folder / SCOPE).glob("*.md")
    path.write_text("mine", encoding="utf-8")
    await world.mirror.sync()
    assert await world.values() == {key: "mine"}


async def test_a_key_that_looks_like_a_shortened_one_has_a_file_of_its_own(world: World) -> None:
    long = "x" * 200
    await world.memory.put("長" * 200, "one")
    await world.mirror.sync()
    (path,) = (world.folder / SCOPE).glob("*.md")
    imitation = path.name.removesuffix(".md")
    await world.memory.put(imitation, "two")
    await world.memory.put(long, "three")
    await world.mirror.sync()
    assert sorted(world.files().values()) == ["one", "three", "two"]


@pytest.mark.parametrize("scope", ["a~", "#a#", "長" * 200, "x~0123456789abcdef"])
async def test_a_scope_with_an_odd_name_is_mirrored_like_any_other(world: World, scope: str) -> None:
    memory = Memory(world.store, scope)
    await memory.put("a", "one")
    await world.mirror.sync()
    (path,) = world.folder.glob("*/a.md")
    path.write_text("mine", encoding="utf-8")
    await world.mirror.sync()
    entry = await memory.get("a")
    assert entry is not None
    assert entry.value == "mine"


# ---- conflicts -------------------------------------------------------------------------------------------------------


async def test_where_both_sides_were_changed_the_entry_stays_and_the_file_is_kept_beside_it(world: World) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    world.edit("a", "mine")
    await world.memory.put("a", "two")
    report = await world.mirror.sync()
    assert await world.values() == world.files() == {"a": "two", "a.conflict-2": "mine"}
    assert report.conflicts == ("notes/a.conflict-2.md",)


async def test_a_second_conflict_does_not_overwrite_the_first(world: World) -> None:
    await world.memory.put("a", "one")
    await world.memory.put("a.conflict-2", "an old quarrel")
    await world.mirror.sync()
    world.edit("a", "mine")
    await world.memory.put("a", "two")
    await world.mirror.sync()
    assert sorted((await world.values()).values()) == ["an old quarrel", "mine", "two"]


async def test_the_conflict_of_a_long_key_has_a_key_that_can_be_stored(world: World) -> None:
    key = "k" * 200
    await world.memory.put(key, "one")
    await world.mirror.sync()
    world.edit(key, "mine")
    await world.memory.put(key, "two")
    await world.mirror.sync()
    assert sorted((await world.values()).values()) == ["mine", "two"]


async def test_both_sides_that_come_to_the_same_text_are_no_conflict(world: World) -> None:
    world.edit("a", "same")
    await world.memory.put("a", "same")
    await world.mirror.sync()
    assert await world.values() == {"a": "same"}


async def test_a_conflict_for_which_memory_has_no_room_is_kept_as_a_file(tmp_path: Path) -> None:
    async with open_store(None, limits=StoreLimits(scope_entries=1)) as store:
        world = World(store, tmp_path)
        await world.memory.put("a", "one")
        await world.mirror.sync()
        world.edit("a", "mine")
        await world.memory.put("a", "two")
        report = await world.mirror.sync()
        assert world.files() == {"a": "two", "a.conflict-2": "mine"}
        assert [refused.path for refused in report.refused] == ["notes/a.conflict-2.md"]


# ---- what is known of the past ---------------------------------------------------------------------------------------


async def test_a_folder_that_was_removed_is_written_again_and_removes_nothing(world: World) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    world.path("a").unlink()
    (world.folder / SCOPE).rmdir()
    (world.folder / INDEX_NAME).unlink()
    world.folder.rmdir()
    await world.mirror.sync()
    assert await world.values() == world.files() == {"a": "one"}


@pytest.mark.parametrize("index", [b"", b"{", b"[]", b'{"format":9,"store":"x","rows":[]}', b"\xff" * 100])
async def test_an_index_that_can_not_be_read_loses_nothing(world: World, index: bytes) -> None:
    await world.memory.put("a", "one")
    await world.memory.put("b", "one")
    await world.mirror.sync()
    (world.folder / INDEX_NAME).write_bytes(index)
    world.edit("a", "mine")
    await world.mirror.sync()
    assert sorted((await world.values()).values()) == ["mine", "one", "one"]


async def test_an_old_copy_is_no_edit_also_when_the_index_is_lost(world: World) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    await world.memory.put("a", "two")
    (world.folder / INDEX_NAME).unlink()
    await world.mirror.sync()
    assert await world.values() == world.files() == {"a": "two"}


async def test_a_folder_of_another_store_is_not_taken_for_our_own(world: World) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    async with open_store(None) as other:
        stranger = World(other, world.folder)
        await stranger.memory.put("a", "another one")
        await stranger.mirror.sync()
        assert sorted((await stranger.values()).values()) == ["another one", "one"]


async def test_an_entry_that_is_damaged_stops_its_own_scope_only(tmp_path: Path) -> None:
    async with open_store(tmp_path / "s.db") as store:
        world = World(store, tmp_path / "m")
        await world.memory.put("a", "one")
        await Memory(store, "other").put("b", "two")
        with sqlite3.connect(tmp_path / "s.db") as connection:
            connection.execute("UPDATE memories SET updated = 1 WHERE key = 'a'")
        with pytest.raises(MemoryCorrupt):
            await world.memory.get("a")
        report = await world.mirror.sync()
        assert [refused.path for refused in report.refused] == ["notes/a.md"]
        assert world.path("b", "other").read_text(encoding="utf-8") == "two"


# ---- at the same moment ----------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def at_points(react: Callable[[str], None]) -> Generator[None]:
    crashpoints.arm(react)
    try:
        yield
    finally:
        crashpoints.arm(None)


POINTS = ["mirror.looked", "mirror.decided", "mirror.taken", "mirror.noted", "mirror.filled", "mirror.complete"]


@pytest.mark.parametrize("point", POINTS)
async def test_an_edit_while_the_file_is_being_written_is_kept(world: World, point: str) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    await world.memory.put("a", "two")
    edits = iter(["mine"])

    def edit(reached: str) -> None:
        if reached == point:
            for text in edits:
                world.edit("a", text)

    with at_points(edit):
        await world.mirror.sync()
    values = await world.values()
    assert {"two", "mine"} <= set(values.values())
    assert values == world.files()


async def test_what_is_written_into_a_file_that_was_just_replaced_is_kept(world: World) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    await world.memory.put("a", "two")
    with world.path("a").open("r+", encoding="utf-8") as editor:
        await world.mirror.sync()
        editor.write("mine")
    await world.mirror.sync()
    assert sorted((await world.values()).values()) == ["mine", "two"]


async def test_an_edit_that_was_displaced_when_the_process_was_killed_is_found_again(world: World) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    await world.memory.put("a", "two")

    def react(reached: str) -> None:
        if reached == "mirror.complete":
            world.edit("a", "mine")
        elif reached == "mirror.swapped":
            raise Killed

    with at_points(react), pytest.raises(Killed):
        await world.mirror.sync()
    await world.mirror.sync()
    assert sorted((await world.values()).values()) == ["mine", "two"]


async def test_a_file_that_comes_into_being_while_its_entry_is_written_is_not_overwritten(world: World) -> None:
    await world.memory.put("a", "one")
    edits = iter(["mine"])

    def edit(reached: str) -> None:
        if reached == "mirror.filled":
            for text in edits:
                world.edit("a", text)

    with at_points(edit):
        await world.mirror.sync()
    assert sorted((await world.values()).values()) == ["mine", "one"]


async def test_an_entry_that_changes_while_an_edit_is_taken_in_is_not_overwritten(world: World) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    world.edit("a", "mine")
    changes: list[asyncio.Task[MemoryEntry]] = []

    def change(reached: str) -> None:
        if reached == "mirror.decided" and not changes:
            changes.append(asyncio.create_task(world.memory.put("a", "two")))

    with at_points(change):
        await world.mirror.sync()
    await asyncio.gather(*changes)
    await world.mirror.sync()
    assert sorted((await world.values()).values()) == ["mine", "two"]


async def test_a_file_that_an_editor_writes_anew_is_not_taken_for_removed(world: World) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    world.path("a").rename(world.folder / "aside")
    patient = Mirror(world.store, world.folder, settle=1)
    syncing = asyncio.ensure_future(patient.sync())
    await asyncio.sleep(0.1)  # the first look has come and the second has not
    (world.folder / "aside").rename(world.path("a"))
    await syncing
    assert [change.change for change in await world.memory.history("a")] == ["put"]


# ---- two processes ---------------------------------------------------------------------------------------------------


async def test_two_mirrors_of_one_folder_take_turns(world: World) -> None:
    for number in range(20):
        await world.memory.put(f"k{number}", "one")
    other = Mirror(world.store, world.folder, settle=0)
    await asyncio.gather(world.mirror.sync(), other.sync())
    assert world.files() == await world.values()


async def test_a_folder_in_which_another_process_works_for_long_is_a_named_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.memory.folder._PATIENCE", 0.05)
    held = MirrorFolder(world.folder, 1_000, {})
    with pytest.raises(MirrorBusy):
        await world.mirror.sync()
    held.close()


async def test_a_folder_that_is_a_file_is_a_named_error(world: World) -> None:
    world.folder.write_text("not a folder", encoding="utf-8")
    with pytest.raises(MirrorUnavailable):
        await world.mirror.sync()


async def test_a_text_that_loses_is_kept_once_however_often_another_process_changes_the_entry(tmp_path: Path) -> None:
    async with open_store(tmp_path / "s.db") as store, open_store(tmp_path / "s.db") as other:
        world = World(store, tmp_path / "m")
        await world.memory.put("a", "one")
        await world.mirror.sync()
        world.edit("a", "mine")
        await world.memory.put("a", "two")
        values = iter(["three", "four", "five"])
        changes: list[asyncio.Task[MemoryEntry]] = []

        def change(reached: str) -> None:
            if reached in {"mirror.kept", "mirror.taken"}:
                changes.extend(asyncio.create_task(Memory(other, SCOPE).put("a", value)) for value in values)

        for _ in range(3):
            values = iter([f"{len(changes)} by another"])
            with at_points(change):
                await world.mirror._sync_once()  # pyright: ignore[reportPrivateUsage]  one look, as when both run
            await asyncio.gather(*changes)
        await world.mirror.sync()
        assert sorted((await world.values()).values()).count("mine") == 1


async def test_a_file_that_is_set_aside_twice_with_the_same_text_is_kept_once(world: World) -> None:
    await world.memory.put("a", "one")
    await world.mirror.sync()
    for _ in range(3):
        entry = await world.memory.put("a", "changed")
        world.path(f"a.conflict-{entry.version}").write_text("mine", encoding="utf-8")
        edits = iter(["mine"])

        def edit(reached: str, edits: Iterator[str] = edits) -> None:
            if reached == "mirror.complete":
                for text in edits:
                    world.edit("a", text)

        with at_points(edit):
            await world.mirror.sync()
        assert [name for name in world.files() if name.count("-") > 1] == []


# ---- following -------------------------------------------------------------------------------------------------------


async def _until_value(world: World, key: str, value: str | None) -> None:
    async with asyncio.timeout(10):
        while await world.value(key) != value:  # as above
            await asyncio.sleep(0.01)


async def test_a_mirror_that_runs_follows_memory(world: World) -> None:
    mirror = Mirror(world.store, world.folder, settle=0.01, poll=0.05)
    mirror.start()
    await world.memory.put("a", "one")
    await until(lambda: world.files() == {"a": "one"})
    await mirror.stop()


async def test_a_mirror_that_runs_follows_the_folder(world: World) -> None:
    mirror = Mirror(world.store, world.folder, settle=0.01, poll=3_000)  # so that only the system can tell
    mirror.start()
    await world.memory.put("a", "one")
    await until(lambda: world.files() == {"a": "one"})
    world.edit("a", "mine")
    await _until_value(world, "a", "mine")
    await mirror.stop()


async def test_an_edit_right_after_another_one_is_seen_within_a_second(world: World) -> None:
    mirror = Mirror(world.store, world.folder, poll=3_000)  # so that only the system can tell
    mirror.start()
    await world.memory.put("a", "one")
    await until(lambda: world.files() == {"a": "one"})
    took: list[float] = []
    for number in range(10):  # the machine may be busy now and then
        begun = time.monotonic()
        world.edit("a", f"edit {number}")
        await _until_value(world, "a", f"edit {number}")
        took.append(time.monotonic() - begun)
        if number > 0 and took[-1] < 1:
            break
    await mirror.stop()
    assert min(took[1:]) < 1


async def test_a_file_that_can_t_be_taken_in_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    mirror = Mirror(world.store, world.folder, settle=0.01, poll=0.02)
    mirror.start()
    await world.memory.put("a", "one")
    await until(lambda: world.files() == {"a": "one"})
    world.path("bad").write_bytes(b"\xff\xfe\x00not text")
    await until(lambda: "bad.md" in caplog.text)
    seen = mirror.report
    await world.memory.put("b", "two")
    await until(lambda: mirror.report is not seen and world.path("b").exists())
    await mirror.stop()
    assert [record.levelname for record in caplog.records if "bad.md" in record.getMessage()] == ["WARNING"]


async def test_a_folder_that_can_t_be_used_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.folder.write_text("in the way", encoding="utf-8")
    mirror = Mirror(world.store, world.folder, settle=0.01, poll=0.02)
    mirror.start()
    await until(lambda: mirror.problem is not None)
    await mirror.stop()
    assert len([record for record in caplog.records if "could not be compared" in record.getMessage()]) == 1


async def test_a_mirror_that_runs_follows_what_others_write_to_the_same_file(tmp_path: Path) -> None:
    async with open_store(tmp_path / "s.db") as store, open_store(tmp_path / "s.db") as other:
        world = World(store, tmp_path / "m")
        mirror = Mirror(store, world.folder, settle=0.01, poll=3_000)
        mirror.start()
        await until(lambda: mirror.report is not None)
        await Memory(other, SCOPE).put("a", "one")
        await until(lambda: world.files() == {"a": "one"})
        await mirror.stop()


async def test_a_mirror_that_is_stopped_has_mirrored_all_that_was_there(world: World) -> None:
    mirror = Mirror(world.store, world.folder, settle=0)
    mirror.start()
    await world.memory.put("a", "one")
    await mirror.stop()
    assert world.files() == {"a": "one"}


async def test_a_mirror_that_fails_says_why_and_goes_on_when_it_can(world: World) -> None:
    world.folder.write_text("in the way", encoding="utf-8")
    mirror = Mirror(world.store, world.folder, settle=0.01, poll=0.02)
    mirror.start()
    await until(lambda: isinstance(mirror.problem, MirrorUnavailable))
    world.folder.unlink()
    await world.memory.put("a", "one")
    await until(lambda: world.files() == {"a": "one"})
    await until(lambda: mirror.problem is None)
    await mirror.stop()


def test_the_folder_stands_beside_the_store() -> None:
    assert memory_folder("data/support.db") == Path("data/support.db.memory")


# ---- the law ---------------------------------------------------------------------------------------------------------


KEYS = ("a", "b")
STEPS = st.one_of(
    st.tuples(st.sampled_from(["edit", "unlink", "put", "delete"]), st.sampled_from(KEYS)),
    st.just(("sync", "")),
    st.just(("lose the index", "")),
)
PLANS = st.lists(
    st.tuples(STEPS, st.integers(0, 25), st.sampled_from(["", "kill", "edit", "unlink", "edit, kill"])), max_size=14
)


BY_HAND = (
    "text {}",
    '---\nmemory:json\nsummary: about "it"\n---\n[\n    {}\n]',
    '---\r\nmemory: text\r\nmetadata: {{ "n": {} }}\r\n---\r\ntext\r\n',
    "---\ntitle: {}\n---\n",
)
"""Files as people write them."""


def files_as_written(world: World) -> dict[str, str]:
    """The files, as the mirror would write them."""
    return {key: parse_file(text).text for key, text in world.files().items()}


async def entries_as_written(world: World) -> dict[str, str]:
    """The entries, as the mirror would write them."""
    return {entry.key: file_text(entry) async for entry in world.memory.entries()}


class Interleaving:
    """Texts that are all different, on both sides, and what becomes of them. Some have a summary, some are JSON."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.numbers = itertools.count()
        self.given: set[str] = set()
        """Texts that somebody removed or overwrote on purpose, in the place where they were."""

    async def all_texts(self) -> set[str]:
        """Every text that is anywhere: in a file, in an entry, in a history."""
        found = set(files_as_written(self.world).values())
        folder = self.world.folder / SCOPE
        hidden = list(folder.glob(".holdfast-*.old")) if folder.exists() else []
        found |= {parse_file(path.read_bytes().decode()).text for path in hidden}
        entries = await entries_as_written(self.world)
        for key in {*KEYS, *entries}:
            changes = await self.world.memory.history(key)
            found |= {file_text(change) for change in changes if change.value is not None}
        return found | set(entries.values())

    def edit(self, key: str) -> str:
        path = self.world.path(key)
        if path.exists():
            self.given.add(parse_file(path.read_bytes().decode()).text)
        number = next(self.numbers)
        text = BY_HAND[number % len(BY_HAND)].format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name("#edited#")
        beside.write_text(text, encoding="utf-8")
        beside.rename(path)
        return parse_file(text).text

    def unlink(self, key: str) -> None:
        path = self.world.path(key)
        if path.exists():
            self.given.add(parse_file(path.read_bytes().decode()).text)
            path.unlink()

    async def step(self, what: str, key: str) -> None:
        match what:
            case "edit":
                self.edit(key)
            case "unlink":
                self.unlink(key)
            case "put":
                number = next(self.numbers)
                value = [f"text {number}", {"text": number}, f"---\nmemory: {number}"][number % 3]
                await self.world.memory.put(key, value, summary=["", f"about {number}"][number % 2])
            case "delete":
                await self.world.memory.delete(key)
            case _:
                (self.world.folder / INDEX_NAME).unlink(missing_ok=True)

    async def sync(self, at: int, event: str) -> bool:
        """Compare, with an event at the point that is reached as number `at`; answers whether it came to that."""
        before = await self.all_texts()
        added: set[str] = set()
        reached = itertools.count(1)

        def react(name: str) -> None:
            if not name.startswith("mirror."):
                return
            count = next(reached)
            if (event, count) in {("kill", at), ("edit, kill", at + 1)}:
                raise Killed
            if count != at:
                return
            if event.startswith("edit"):
                added.add(self.edit("a"))
            elif event == "unlink":
                self.unlink("a")

        with at_points(react), suppress(Killed):
            await Mirror(self.world.store, self.world.folder, settle=0).sync()
        lost = (before | added) - await self.all_texts() - self.given
        assert not lost, f"{lost} was there before, and is nowhere now"
        return next(reached) > at


async def _play(plan: Sequence[tuple[tuple[str, str], int, str]], folder: Path) -> bool:
    reached = True
    async with open_store(None) as store:
        world = World(store, folder)
        playing = Interleaving(world)
        for (what, key), at, event in plan:
            if what == "sync":
                reached = await playing.sync(at, event)
            else:
                await playing.step(what, key)
        await playing.sync(0, "")
        await playing.sync(0, "")
        assert files_as_written(world) == await entries_as_written(world), "both sides are not the same in the end"
        assert not world.leftovers()
    return reached


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PLANS)
def test_whatever_happens_on_both_sides_no_text_is_lost_and_both_become_the_same(
    plan: list[tuple[tuple[str, str], int, str]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_play(plan, Path(folder)))


def _swaps_nothing(below: int, one: bytes, other: bytes) -> bool:
    """As on a system that can't."""
    return False


BUSY: list[tuple[str, str]] = [
    ("put", "a"),
    ("put", "b"),
    ("sync", ""),
    ("edit", "a"),
    ("put", "a"),
    ("delete", "b"),
    ("put", "c"),
    ("edit", "d"),
]


@pytest.mark.parametrize(
    "event", ["unlink", "edit, kill", *(pytest.param(event, marks=pytest.mark.torture) for event in ("kill", "edit"))]
)
@pytest.mark.parametrize("swaps", [True, False], ids=["swapping", "renaming"])
def test_at_every_instant_of_a_sync_a_kill_or_an_edit_loses_nothing(
    tmp_path: Path, event: str, *, swaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not swaps:
        monkeypatch.setattr("holdfast.memory.folder.exchange_names", _swaps_nothing)
    steps = [(step, 0, "") for step in BUSY]
    points = itertools.takewhile(
        lambda at: asyncio.run(_play([*steps, (("sync", ""), at, event)], tmp_path / str(at))), itertools.count(1)
    )
    assert len(list(points)) > 15


def test_this_system_can_swap_two_names() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a", "b"):
            (Path(folder) / name).write_text(name, encoding="utf-8")
        number = os.open(folder, os.O_RDONLY)
        try:
            assert folder_module.exchange_names(number, b"a", b"b")
        finally:
            os.close(number)
        assert (Path(folder) / "a").read_text(encoding="utf-8") == "b"
