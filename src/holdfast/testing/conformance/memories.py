"""Memory: scoped, versioned, searchable, bounded, and gone when its time is over."""

# ruff: noqa: D103  the name of a case is its sentence
from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from holdfast.errors import InvalidArgument, InvalidId, InvalidValue, MemoryConflict, MemoryFull, PayloadTooLarge
from holdfast.testing.conformance.suite import Now, Reopen, memory_entries, refusal, unchanged

if TYPE_CHECKING:
    from holdfast.store import Store
    from holdfast.testing.clock import ManualClock


_DOTS: Final = ("", ".", "..", ".hidden", "a.", "a/b", "a\\b", "/")
BAD_NAMES: Final = (*_DOTS, "x" * 201, " a", "a ", "a\nb", "a\x00b", "\ud800", "e\u0301")
GOOD_NAMES: Final = ("a", "x" * 200, "a.b", "a b", "é", "日本", "notes.md", "a:b", "'", '"', "%", "*", "-")


async def _keys(store: Store, scope: str | None, words: str) -> set[str]:
    return {found.key for found in (await store.memory_search(scope, words)).entries}


async def a_memory_survives_reopening(store: Store, clock: ManualClock, now: Now, reopen: Reopen) -> None:
    made = await store.memory_put("team", "greeting", "Grüß Gott\n☃", by="clerk")
    assert (made.scope, made.key, made.version, made.value) == ("team", "greeting", 1, "Grüß Gott\n☃")
    assert (made.created, made.updated, made.expires, made.by) == (now, now, None, "clerk")
    clock.advance(5)
    changed = await store.memory_put("team", "greeting", "", by="cook")
    assert (changed.version, changed.created, changed.updated, changed.by) == (2, now, now + 5, "cook")
    store = await reopen()
    assert await store.memory_get("team", "greeting") == changed
    assert await store.memory_get("other", "greeting") is await store.memory_get("team", "other") is None


async def a_json_value_its_summary_and_metadata_survive_reopening(store: Store, reopen: Reopen) -> None:
    value = {"sizes": [38, 38.5, None, True], "note": "Grüß\nGott\t☃"}
    made = await store.memory_put("team", "k", value, summary="sizes, ☃", metadata={"from": {"a": [1]}})
    assert (made.value, made.summary, made.metadata) == (value, "sizes, ☃", {"from": {"a": [1]}})
    store = await reopen()
    found = await store.memory_get("team", "k")
    assert found == made
    assert found is not None
    assert found.text.startswith('{\n  "sizes": [\n    38,')  # in the order in which they were written
    (change,) = await store.memory_history("team", "k")
    assert (change.value, change.summary, change.metadata) == (value, "sizes, ☃", {"from": {"a": [1]}})
    other: tuple[object, ...] = (0, False, [], {}, 1.5, "null", "{}", "")
    for number, given in enumerate(other, 2):
        again = await store.memory_put("team", "k", given)
        assert (again.version, type(again.value), again.value) == (number, type(given), given)
        assert (again.summary, again.metadata) == ("", {})
        assert await store.memory_get("team", "k") == again


async def what_no_entry_can_have_is_refused(store: Store) -> None:
    limits = store.limits
    async with unchanged(store):
        await refusal(InvalidArgument, store.memory_put("s", "k", None))
        await refusal(InvalidValue, store.memory_put("s", "k", b"x"), store.memory_put("s", "k", {"a": float("nan")}))
        await refusal(InvalidId, *(store.memory_put("s", "k", "v", summary=bad) for bad in ("a\nb", " a", "\ud800")))
        await refusal(InvalidValue, store.memory_put("s", "k", "v", metadata={"a": {1}}))
        for what in (
            store.memory_put("s", "k", ["x" * limits.memory_bytes]),
            store.memory_put("s", "k", "v", summary="é" * limits.memory_summary_bytes),
            store.memory_put("s", "k", "v", metadata={"a": "x" * limits.memory_metadata_bytes}),
        ):
            await refusal(PayloadTooLarge, what)


async def a_change_that_expects_a_version_changes_no_other(store: Store) -> None:
    early = store.memory_put("s", "k", "x", expected=1)
    await refusal(MemoryConflict, early, scope="s", key="k", expected=1, current=0)
    for expected, value in enumerate(("one", "two")):
        await store.memory_put("s", "k", value, expected=expected)
    async with unchanged(store):
        for expected in (0, 1, 3):
            put = store.memory_put("s", "k", "x", expected=expected)
            await refusal(MemoryConflict, put, store.memory_delete("s", "k", expected=expected), current=2)
    deleted = await store.memory_delete("s", "k", expected=2)
    assert deleted is not None
    assert deleted.value == "two"


async def of_two_who_change_the_same_version_one_wins(one: Store, two: Store) -> None:
    await one.memory_put("s", "k", "start")
    attempts = [store.memory_put("s", "k", "x", expected=1) for store in (one, two, one, two)]
    answers = await asyncio.gather(*attempts, return_exceptions=True)
    assert sum(isinstance(answer, MemoryConflict) for answer in answers) == 3
    found = await one.memory_get("s", "k")
    assert found is not None
    assert found.version == 2


async def versions_grow_also_over_deletion(store: Store, reopen: Reopen) -> None:
    await store.memory_put("s", "k", "one")
    await store.memory_delete("s", "k")
    assert await store.memory_get("s", "k") is await store.memory_delete("s", "k") is None
    store = await reopen()
    assert (await store.memory_put("s", "k", "two", expected=0)).version == 3
    await refusal(MemoryConflict, store.memory_put("s", "k", "x", expected=1))


async def the_history_has_every_change_newest_first(store: Store, clock: ManualClock, now: Now) -> None:
    await store.memory_put("s", "k", "one", by="a")
    clock.advance(1)
    await store.memory_put("s", "k", "two", by="b")
    await store.memory_delete("s", "k", by="c")
    await store.memory_put("s", "other", "x")
    history = await store.memory_history("s", "k")
    found = [(change.version, change.change, change.value, change.at, change.by) for change in history]
    assert found[0] == (3, "deleted", None, now + 1, "c")
    assert found[1:] == [(2, "put", "two", now + 1, "b"), (1, "put", "one", now, "a")]
    assert [change.version for change in await store.memory_history("s", "k", 1)] == [3]


async def the_history_of_an_entry_is_bounded(store: Store) -> None:
    keep = store.limits.memory_changes
    for n in range(keep + 3):
        await store.memory_put("s", "k", f"{n}")
    assert [change.version for change in await store.memory_history("s", "k")] == list(range(keep + 3, 3, -1))


async def entries_are_listed_by_key_page_by_page(store: Store) -> None:
    names = ["a", "b", "b1", "b2", "ba", "c", "é", "日本", "\U0001f600"]
    for name in reversed(names):
        await store.memory_put("s", name, name)
        await store.memory_put("other", name, "not mine")
    for prefix in ("", "b", "b1", "é", "\U0001f600", "x"):
        expected = [name for name in names if name.startswith(prefix)]
        for size in (1, 2, 50):
            assert [entry.value for entry in await memory_entries(store, "s", prefix, size)] == expected, (prefix, size)
            first = await store.memory_page("s", prefix, limit=size)
            assert ([entry.key for entry in first.entries], first.damaged) == (expected[:size], [])


async def a_search_finds_entries_with_all_the_words(store: Store) -> None:
    for scope, key, value in (
        *(("s", "invoice", "The invoice of March was paid late"), ("s", "march", "A walk in the park")),
        *(("other", "invoice", "An invoice of nobody"), ("s", "gone", "invoice")),
        *(("s", "changed", "invoice"), ("s", "changed", "nothing of that")),
    ):
        await store.memory_put(scope, key, value)
    await store.memory_delete("s", "gone")
    assert await _keys(store, "s", "INVOICE") == await _keys(store, "s", "  paid \t invoice\n") == {"invoice"}
    assert await _keys(store, "s", "march") == {"invoice", "march"}
    assert await _keys(store, "s", "paid park") == await _keys(store, "s", "  ") == set()
    assert [len((await store.memory_search(None, "invoice", limit)).entries) for limit in (50, 1)] == [2, 1]


async def a_search_finds_summaries_and_the_words_in_json(store: Store) -> None:
    await store.memory_put(
        "s", "json", {"shoes": ["wide\nfit", "a\\name", "a\\\nroad", 'quo"ted']}, summary="Ada wears"
    )
    await store.memory_put("s", "text", "a\\nothing", summary="shoes of Bob")
    assert await _keys(store, "s", "shoes") == {"json", "text"}
    for word in ("fit", "name", "road", "quo", "ted", "ada wears"):
        assert await _keys(store, "s", word) == {"json"}, word
    assert await _keys(store, "s", "nothing") == {"text"}
    await store.memory_put("s", "json", {}, summary="")
    await store.memory_delete("s", "text")
    for word in ("fit", "ada", "shoes", "bob"):
        assert await _keys(store, "s", word) == set(), word


async def the_words_of_a_search_mean_nothing_but_themselves(store: Store) -> None:
    await store.memory_put("s", "k", "apple pear")
    for words in (
        *('"', "'", '"apple', "apple OR nothing", "apple AND nothing", "NOT nothing", "NEAR(apple nothing)"),
        *("nothing*", "^nothing", "value:nothing", "key : apple", "-nothing", "(apple", "apple)", "no + apple"),
        *("a\x00b", "; DROP TABLE memories", "%nothing", "{value}: nothing", '""nothing""'),
    ):
        assert (await store.memory_search("s", words)).damaged == [], words
    for words in ("apple OR nothing", "apple AND nothing", "NOT nothing", "nothing*", "value:nothing"):
        assert await _keys(store, "s", words) == set(), words
    assert await _keys(store, "s", "apple pear") == {"k"}


async def expired_entries_are_not_found(store: Store, clock: ManualClock) -> None:
    until = clock.read().wall + 10
    await store.memory_put("s", "long", "apple")
    for scope, value in (("s", "apple secret"), ("t", "apple")):
        await store.memory_put(scope, "short", value, expires=until)
    clock.advance(9)
    assert len(await store.memory_list("s")) == 2
    clock.advance(1)
    assert await store.memory_get("s", "short") is None
    assert [entry.key for entry in await store.memory_list("s")] == ["long"]
    assert await _keys(store, None, "apple") == {"long"}
    assert [scope.scope for scope in await store.memory_scopes()] == ["s"]
    assert [change.value for change in await store.memory_history("s", "short")] == [None]
    assert await store.memory_delete("s", "short") is None
    await refusal(MemoryConflict, store.memory_put("s", "short", "x", expected=1))


async def a_purge_removes_expired_entries(store: Store, clock: ManualClock) -> None:
    until = clock.read().wall + 10
    await store.memory_put("s", "short", "the secret", expires=until)
    await store.memory_put("s", "long", "kept", expires=until + 1)
    await store.memory_put("s", "changed", "the secret", expires=until)
    await store.memory_put("s", "changed", "kept")
    assert await store.memory_purge() == 0
    clock.advance(10)
    assert [await store.memory_purge() for _ in range(2)] == [1, 0]
    kept = await store.examine(lambda reader: [body for _, body in reader.raw_bytes()])
    assert (b"kept" in kept, b"the secret" in kept) == (True, False)
    history = [(change.version, change.change) for change in await store.memory_history("s", "short")]
    assert history == [(2, "expired"), (1, "put")]
    assert [entry.key for entry in await store.memory_list("s")] == ["changed", "long"]


async def an_expired_value_takes_its_summary_and_metadata_with_it(store: Store, clock: ManualClock) -> None:
    until = clock.read().wall + 10
    await store.memory_put("s", "k", ["the secret"], summary="a secret", metadata={"a": "secret"}, expires=until)
    clock.advance(10)
    for _ in range(2):  # before and after it is removed
        (gone,) = [change for change in await store.memory_history("s", "k") if change.change == "put"]
        assert (gone.value, gone.summary, gone.metadata) == (None, "", {})
        await store.memory_purge()
    kept = await store.examine(lambda reader: [body for _, body in reader.raw_bytes()])
    assert not any(b"secret" in body for body in kept)


async def an_entry_can_be_made_anew_after_it_has_expired(store: Store, clock: ManualClock) -> None:
    await store.memory_put("s", "k", "one", expires=clock.read().wall + 10)
    clock.advance(10)
    again = await store.memory_put("s", "k", "two", expected=0)
    assert (again.version, again.created, again.expires) == (2, clock.read().wall, None)
    assert await store.memory_purge() == 0
    assert await store.memory_get("s", "k") == again


async def the_room_of_a_scope_is_limited(store: Store, clock: ManualClock) -> None:
    large = "x" * store.limits.memory_bytes
    count = store.limits.scope_bytes // (len(large) + 2)
    for n in range(count):
        await store.memory_put("s", f"{n:02}", large, expires=clock.read().wall + 10)
    before = await store.memory_scopes()
    await refusal(MemoryFull, store.memory_put("s", "more", large), scope="s", limit=store.limits.scope_bytes)
    assert await store.memory_scopes() == before
    await store.memory_put("s", "00", large)  # the bytes of the old value are free
    await store.memory_put("other", "more", large)
    clock.advance(10)
    await store.memory_put("s", "more", large)  # expired entries do not count


async def scopes_have_their_number_of_entries_and_bytes(store: Store) -> None:
    assert await store.memory_scopes() == []
    for scope, key, value in (("b", "k", "é"), ("a", "key", "xyz"), ("a", "k", ""), ("gone", "k", "")):
        await store.memory_put(scope, key, value)
    await store.memory_delete("gone", "k")
    found = [(scope.scope, scope.entries, scope.bytes) for scope in await store.memory_scopes()]
    assert found == [("a", 2, 7), ("b", 1, 3)]


async def a_name_is_one_that_a_file_can_have(store: Store) -> None:
    for bad in BAD_NAMES:
        await refusal(InvalidId, store.memory_put(bad, "k", "v"), store.memory_put("s", bad, "v"))
    assert await store.memory_scopes() == []
    for good in GOOD_NAMES:
        await store.memory_put(good, good, "v")
        assert await store.memory_get(good, good) is not None
    assert {scope.scope for scope in await store.memory_scopes()} == set(GOOD_NAMES)
