"""Bad input, everywhere it can arrive: an error of ours that names it, at once, and nothing is written.

The caller's mistake is a `UsageError`. Never a bare `TypeError`, never an error of SQLite, never silence.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import pytest
from tests.every import every
from tests.patience import PATIENCE

import holdfast
from holdfast import Store, StoreLimits, open_store
from holdfast.effects.drive import drive
from holdfast.errors import BlobMissing, HoldfastError, InputTaken, UsageError, WaitUnknown
from holdfast.records import (
    Admitted,
    Blob,
    Done,
    EffectRequest,
    Ended,
    Failed,
    Grouped,
    Intended,
    Opened,
    Parked,
    Started,
)
from holdfast.store import MemoryPage, Notify
from holdfast.store.audit import audit
from holdfast.store.retention import Purged
from holdfast.testing import MemoryBackend
from holdfast.testing.conformance import contents

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

    from holdfast.effects.drive import Boundary
    from holdfast.store import Lease

LIMITS = StoreLimits(record_bytes=10_000, input_bytes=5_000, blob_bytes=20_000)

BAD_IDS: list[Any] = [
    *("", "x" * 257, "x" * 10_000, ".", "..", "a/../b", "../b", "a//b", "/", "a\\..\\b", " a", "a\n"),
    *("a\x00b", "a\x1bb", "a\x7fb", "a\u202eb", "\ud800", "a\udfff"),
    *(None, 7, 1.5, True, b"a", ["a"], {"a": 1}, {"a"}, object),
]
BAD_NUMBERS: list[Any] = ["x", "7", 1.5, float("nan"), float("inf"), [], {}, b"7", object, 2**70, -(2**70)]


def _nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def _cyclic() -> object:
    value: list[object] = []
    value.append(value)
    return value


BAD_VALUES: list[Any] = [
    *(float("nan"), [float("inf")], {"a": float("-inf")}, b"x", {"a": {1}}, object, {1: 2}, {None: 1}),
    *("\ud800", {"\ud800": 1}, [2**64], 10**5_000, _nested(65), _nested(5_000), _cyclic(), lambda: 1, 2j),
]
TOO_LARGE = "x" * 5_000


NEXT = Parked(at=1, run="main")


class Ground(NamedTuple):
    """A store with a little of everything in it."""

    store: Store
    lease: Lease
    token: str


async def _furnish(store: Store) -> Ground:
    await store.open_journal("j", agent="clerk")
    lease = await store.claim("j", ttl_ms=600_000)
    await store.append(lease, [Started(at=1, run="main")], head=1)
    await store.accept("j", "hello", key="k")
    await store.open_wait("j", "w")
    await store.put_blob(b"bytes")
    await store.notify("j", kind="task", title="done")
    await store.memory_put("s", "k", "v")
    return Ground(store, lease, store.wait_token("j", "w"))


@pytest.fixture(params=["sqlite", "memory"])
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Ground]:
    if request.param == "sqlite":
        async with open_store(tmp_path / "store.db", limits=LIMITS) as store:
            yield await _furnish(store)
        return
    backend = MemoryBackend(limits=LIMITS)
    yield await _furnish(Store(backend))
    backend.crash()  # a backend that choked on bad input would never finish an orderly close


Call: TypeAlias = "Callable[[Ground, Any], Any]"
"""Takes the bad thing; answers something, or something to await, or raises."""


async def _told(call: Callable[[], Any]) -> object:
    """What the caller is told: an answer, or an error instead of it. No answer at all is the worst."""
    try:
        answer = call()
        return await asyncio.wait_for(answer, PATIENCE) if hasattr(answer, "__await__") else answer
    except Exception as error:  # which kind it is is what we want to know
        return error


async def _all_of_it(store: Store) -> object:
    blobs = await store.examine(lambda reader: sorted(reader.raw_blobs()))
    return await contents(store), blobs, await store.examine(audit)


def _show(value: object) -> str:
    """A bad thing in an error message or a test id; some can't even be printed."""
    try:
        text = type(value).__name__ if callable(value) else ascii(value)
    except (RecursionError, ValueError):
        text = f"an unprintable {type(value).__name__}"
    return text if len(text) < 60 else f"{text[:50]}..."


async def _check_refused(ground: Ground, call: Call, bad: list[Any], kind: type[HoldfastError] = UsageError) -> None:
    """Every bad thing is refused with an error of this kind, and the store stays as it was."""
    before = await _all_of_it(ground.store)
    wrong: list[str] = []
    for value in bad:
        told = await _told(lambda value=value: call(ground, value))
        if not isinstance(told, kind):
            wrong.append(f"{_show(value)} gave {repr(told)[:200]}")
            if isinstance(told, TimeoutError):
                break  # nothing after a command that was never answered would be
    assert not wrong, "\n".join(wrong)
    assert await _all_of_it(ground.store) == before, "all were refused, but something was written"


async def _check_never_bare(ground: Ground, call: Call, bad: list[Any]) -> None:
    """A question about something that can't exist may be answered (with nothing), but never breaks."""
    before = await _all_of_it(ground.store)
    wrong: list[str] = []
    for value in bad:
        told = await _told(lambda value=value: call(ground, value))
        if isinstance(told, Exception) and not isinstance(told, HoldfastError):
            wrong.append(f"{_show(value)} gave {repr(told)[:200]}")
    assert not wrong, "\n".join(wrong)
    assert await _all_of_it(ground.store) == before


async def _read_all(store: Store, journal: Any, after: Any = 0) -> list[Any]:
    return [entry async for entry in store.read_all(journal, after=after)]


# ---- ids -------------------------------------------------------------------------------------------------------------

NAMED: dict[str, Call] = {
    "open_journal": lambda g, bad: g.store.open_journal(bad),
    "journal": lambda g, bad: g.store.journal(bad),
    "read": lambda g, bad: g.store.read(bad),
    "read_all": lambda g, bad: _read_all(g.store, bad),
    "tail": lambda g, bad: g.store.tail(bad),
    "claim": lambda g, bad: g.store.claim(bad),
    "fork": lambda g, bad: g.store.fork(bad, "j", 1),
    "fork parent": lambda g, bad: g.store.fork("new", bad, 1),
    "heads": lambda g, bad: g.store.heads([bad]),
    "accept": lambda g, bad: g.store.accept(bad, 1, key="new"),
    "accept_into": lambda g, bad: g.store.accept_into(bad, "session", None, 1, key="new"),
    "find_input": lambda g, bad: g.store.find_input(bad, "k"),
    "find_input key": lambda g, bad: g.store.find_input("j", bad),
    "pending": lambda g, bad: g.store.pending(bad),
    "open_wait": lambda g, bad: g.store.open_wait(bad, "new"),
    "open_wait name": lambda g, bad: g.store.open_wait("j", bad),
    "wait_token": lambda g, bad: g.store.wait_token(bad, "w"),
    "wait_token name": lambda g, bad: g.store.wait_token("j", bad),
    "expire_wait": lambda g, bad: g.store.expire_wait(bad, "w"),
    "expire_wait name": lambda g, bad: g.store.expire_wait("j", bad),
    "cancel_wait": lambda g, bad: g.store.cancel_wait(bad, "w"),
    "cancel_wait name": lambda g, bad: g.store.cancel_wait("j", bad),
    "revoke_waits": lambda g, bad: g.store.revoke_waits(bad, "w"),
    "wait": lambda g, bad: g.store.wait(bad, "w"),
    "wait name": lambda g, bad: g.store.wait("j", bad),
    "waits": lambda g, bad: g.store.waits(bad),
    "quarantine": lambda g, bad: g.store.quarantine(bad, "a test"),
    "notify": lambda g, bad: g.store.notify(bad, kind="task", title="x"),
    "notify kind": lambda g, bad: g.store.notify("j", kind=bad, title="x"),
    "next_notifications": lambda g, bad: g.store.next_notifications(bad),
    "append notify": lambda g, bad: g.store.append(g.lease, [NEXT], head=2, notify=[Notify(bad, "task", "x")]),
    "memory_put": lambda g, bad: g.store.memory_put(bad, "k", "v"),
    "memory_put key": lambda g, bad: g.store.memory_put("s", bad, "v"),
    "memory_get": lambda g, bad: g.store.memory_get(bad, "k"),
    "memory_get key": lambda g, bad: g.store.memory_get("s", bad),
    "memory_delete": lambda g, bad: g.store.memory_delete("s", bad),
    "memory_list": lambda g, bad: g.store.memory_list(bad),
    "memory_page": lambda g, bad: g.store.memory_page(bad),
    "memory_history": lambda g, bad: g.store.memory_history("s", bad),
    "drive": lambda g, bad: drive(g.store, bad, _nothing),
    "drive run": lambda g, bad: drive(g.store, "new", _nothing, run=bad),
}

OPTIONAL: dict[str, Call] = {
    "accept key": lambda g, bad: g.store.accept("j", 1, key=bad),
    "accept_into key": lambda g, bad: g.store.accept_into("new", "session", None, 1, key=bad),
    "accept_into agent": lambda g, bad: g.store.accept_into("new", "session", bad, 1, key="new"),
    "open_journal agent": lambda g, bad: g.store.open_journal("new", agent=bad),
    "open_journal role": lambda g, bad: g.store.open_journal("new", "process", role=bad),
    "open_journal session": lambda g, bad: g.store.open_journal("new", "process", session=bad),
    "accept_into role": lambda g, bad: g.store.accept_into("new", "process", None, 1, role=bad),
    "journals role": lambda g, bad: g.store.journals(role=bad),
    "journals session": lambda g, bad: g.store.journals(session=bad),
    "notify source": lambda g, bad: g.store.notify("j", kind="task", title="x", source=bad),
    "notify key": lambda g, bad: g.store.notify("j", kind="task", title="x", key=bad),
    "notifications": lambda g, bad: g.store.notifications(bad),
    "carry key": lambda g, bad: g.store.deliver_notifications(g.lease, [1], "x", key=bad),
    "memory_put by": lambda g, bad: g.store.memory_put("s", "k", "v", by=bad),
    "memory_search scope": lambda g, bad: g.store.memory_search(bad, "v"),
    "revoke_waits name": lambda g, bad: g.store.revoke_waits("j", bad),
    "drive agent": lambda g, bad: drive(g.store, "new", _nothing, agent=bad),
}
"""Here None has a meaning of its own."""


async def _nothing(_: Boundary) -> None:
    """A run that does nothing."""


@every("name", NAMED)
async def test_a_bad_id_is_refused(ground: Ground, name: str) -> None:
    await _check_refused(ground, NAMED[name], BAD_IDS)


@every("name", OPTIONAL)
async def test_a_bad_optional_id_is_refused(ground: Ground, name: str) -> None:
    await _check_refused(ground, OPTIONAL[name], [bad for bad in BAD_IDS if bad is not None])


async def test_a_version_of_the_code_that_is_not_a_short_text_is_refused(ground: Ground) -> None:
    bad: list[Any] = [7, 1.5, True, b"v1", ["v1"], {"v": 1}, object, "\ud800", "x" * 10_000]
    await _check_refused(ground, lambda g, bad: drive(g.store, "new", _nothing, code=bad), bad)


@every("name", ["open_journal", "accept_into", "drive"])
async def test_a_bad_kind_of_journal_is_refused(ground: Ground, name: str) -> None:
    calls: dict[str, Call] = {
        "open_journal": lambda g, bad: g.store.open_journal("new", bad),
        "accept_into": lambda g, bad: g.store.accept_into("new", bad, None, 1),
        "drive": lambda g, bad: drive(g.store, "new", _nothing, kind=bad),
    }
    await _check_refused(ground, calls[name], ["", "robot", "SESSION", None, 7, [], {}, b"session"])


# ---- numbers ---------------------------------------------------------------------------------------------------------

LIMITED: dict[str, Call] = {
    "read": lambda g, bad: g.store.read("j", limit=bad),
    "tail": lambda g, bad: g.store.tail("j", limit=bad),
    "feed": lambda g, bad: g.store.feed(limit=bad),
    "journals": lambda g, bad: g.store.journals(limit=bad),
    "work": lambda g, bad: g.store.work(limit=bad),
    "pending": lambda g, bad: g.store.pending("j", limit=bad),
    "waits": lambda g, bad: g.store.waits("j", limit=bad),
    "due": lambda g, bad: g.store.due(limit=bad),
    "next_notifications": lambda g, bad: g.store.next_notifications("j", bad),
    "notifications": lambda g, bad: g.store.notifications(limit=bad),
    "memory_list": lambda g, bad: g.store.memory_list("s", limit=bad),
    "memory_page": lambda g, bad: g.store.memory_page("s", limit=bad),
    "memory_search": lambda g, bad: g.store.memory_search("s", "v", bad),
    "purge_notifications": lambda g, bad: g.store.purge_notifications(limit=bad),
    "memory_history": lambda g, bad: g.store.memory_history("s", "k", bad),
}


@every("name", LIMITED)
async def test_a_bad_limit_is_refused(ground: Ground, name: str) -> None:
    too_many_is_fine = [bad for bad in BAD_NUMBERS if bad != 2**70]
    await _check_refused(ground, LIMITED[name], [*too_many_is_fine, 0, -1])


@every("name", LIMITED)
async def test_a_limit_above_the_page_gives_a_page(ground: Ground, name: str) -> None:
    assert isinstance(await LIMITED[name](ground, 2**70), list | MemoryPage | Purged)


CURSORS: dict[str, Call] = {
    "read": lambda g, bad: g.store.read("j", after=bad),
    "read_all": lambda g, bad: _read_all(g.store, "j", bad),
    "feed": lambda g, bad: g.store.feed(after=bad),
    "work": lambda g, bad: g.store.work(bad),
    "changed": lambda g, bad: g.store.changed(bad, 0.01),
}


@every("name", CURSORS)
async def test_a_cursor_that_is_not_a_number_is_refused(ground: Ground, name: str) -> None:
    await _check_refused(ground, CURSORS[name], ["x", "7", 1.5, [], {}, b"7", None, object])


@every("name", CURSORS)
async def test_a_cursor_from_nowhere_breaks_nothing(ground: Ground, name: str) -> None:
    await _check_never_bare(ground, CURSORS[name], [-1, -(2**70), 2**63 - 1, 2**63, 2**70])


@every("name", ["claim", "drive"])
async def test_a_bad_term_of_a_lease_is_refused(ground: Ground, name: str) -> None:
    calls: dict[str, Call] = {
        "claim": lambda g, bad: g.store.claim("other", ttl_ms=bad),
        "drive": lambda g, bad: drive(g.store, "new", _nothing, lease_ms=bad),
    }
    await ground.store.open_journal("other")
    await _check_refused(ground, calls[name], [*BAD_NUMBERS, None, 0, -1, 49])


async def test_a_bad_deadline_is_refused(ground: Ground) -> None:
    await _check_refused(ground, lambda g, bad: g.store.open_wait("j", "new", deadline=bad), BAD_NUMBERS)


async def test_a_bad_time_of_a_purge_is_refused(ground: Ground) -> None:
    await _check_refused(ground, lambda g, bad: g.store.purge_notifications(bad), [*BAD_NUMBERS, -1])


@every("name", ["due", "expires", "priority"])
async def test_a_bad_number_of_a_notification_is_refused(ground: Ground, name: str) -> None:
    await _check_refused(ground, lambda g, bad: g.store.notify("j", kind="task", title="x", **{name: bad}), BAD_NUMBERS)


@every("name", ["title", "body"])
async def test_a_notification_that_is_not_text_is_refused(ground: Ground, name: str) -> None:
    text: dict[str, Any] = {"title": "x"}
    bad = [None, 7, b"x", ["x"], object, "\ud800", *(["x" * 40_000] if name == "body" else [])]
    await _check_refused(ground, lambda g, bad: g.store.notify("j", kind="task", **(text | {name: bad})), bad)


NUMBERED: dict[str, Call] = {
    "notification": lambda g, bad: g.store.notification(bad),
    "settle_notification": lambda g, bad: g.store.settle_notification(bad, "cancelled"),
    "carry": lambda g, bad: g.store.deliver_notifications(g.lease, [1, bad], "x"),
}


@every("name", NUMBERED)
async def test_a_bad_id_of_a_notification_is_refused(ground: Ground, name: str) -> None:
    await _check_refused(ground, NUMBERED[name], [*BAD_NUMBERS, None, 0, -1, 99])


async def test_a_bad_state_of_a_notification_is_refused(ground: Ground) -> None:
    bad: list[Any] = ["", "claimed", "expired", "dead", "QUEUED", None, 7, []]
    await _check_refused(ground, lambda g, bad: g.store.settle_notification(1, bad), bad)
    await _check_refused(ground, lambda g, bad: g.store.notifications(state=bad), ["", "x", 7, []])


async def test_what_is_no_list_of_notifications_is_refused(ground: Ground) -> None:
    await _check_refused(
        ground, lambda g, bad: g.store.deliver_notifications(g.lease, bad, "x"), [None, 7, "1", object, [None]]
    )
    await _check_refused(
        ground, lambda g, bad: g.store.append(g.lease, [NEXT], head=2, notify=bad), [7, "x", object, [None], [{}]]
    )
    await _check_refused(ground, lambda g, bad: g.store.notifications(before=bad), [7, "x", object])


async def test_a_bad_version_or_time_of_memory_is_refused(ground: Ground) -> None:
    await _check_refused(
        ground, lambda g, bad: g.store.memory_put("s", "k", "v", expected=bad), [*BAD_NUMBERS, -1, 0, 2]
    )
    await _check_refused(ground, lambda g, bad: g.store.memory_delete("s", "k", expected=bad), [*BAD_NUMBERS, -1, 0, 2])
    await _check_refused(ground, lambda g, bad: g.store.memory_put("s", "k", "v", expires=bad), [*BAD_NUMBERS, -1])


async def test_a_memory_that_is_not_json_is_refused(ground: Ground) -> None:
    bad: list[Any] = [None, 7, b"x", ["x"], object, "\ud800"]
    values: list[Any] = [b"x", [b"x"], {1: "x"}, object, float("nan"), 2**70, "\ud800", ["\ud800"], "x" * 300_000]
    await _check_refused(ground, lambda g, bad: g.store.memory_put("s", "k", bad), values)
    await _check_refused(ground, lambda g, bad: g.store.memory_put("s", "k", "v", summary=bad), [*bad, "x" * 501])
    metadata: list[Any] = [7, "x", ["x"], {1: "x"}, {"k": b"x"}, {"k": "x" * 20_000}]
    await _check_refused(ground, lambda g, bad: g.store.memory_put("s", "k", "v", metadata=bad), metadata)
    await _check_refused(ground, lambda g, bad: g.store.memory_list("s", bad), bad)
    await _check_refused(ground, lambda g, bad: g.store.memory_list("s", after=bad), bad)
    await _check_refused(ground, lambda g, bad: g.store.memory_search("s", bad), bad)


async def test_a_bad_head_is_refused(ground: Ground) -> None:
    added = [Parked(at=1, run="main")]
    bad = [*BAD_NUMBERS, None, -1, 0, 1, 3]
    await _check_refused(ground, lambda g, bad: g.store.append(g.lease, added, head=bad), bad, HoldfastError)


async def test_a_bad_fork_point_is_refused(ground: Ground) -> None:
    await _check_refused(ground, lambda g, bad: g.store.fork("new", "j", bad), [*BAD_NUMBERS, None, -1, 0, 3])


async def test_a_bad_count_of_what_was_seen_is_refused(ground: Ground) -> None:
    await _check_refused(ground, lambda g, bad: g.store.release(g.lease, seen=bad), [*BAD_NUMBERS, -1, 3])


async def test_what_is_no_list_of_journals_is_refused(ground: Ground) -> None:
    await _check_refused(ground, lambda g, bad: g.store.heads(bad), [None, 7, "j", b"j", object, [None], {7: "j"}])


async def test_what_is_no_owner_is_refused(ground: Ground) -> None:
    await _check_refused(ground, lambda g, bad: g.store.owner_gone(bad), [None, 7, "pid 1", ground.lease, object])


async def test_a_bad_age_of_blobs_is_refused_and_none_is_collected(ground: Ground) -> None:
    await _check_refused(ground, lambda g, bad: g.store.collect_blobs(unused_ms=bad), [*BAD_NUMBERS, None, -1])


# ---- payloads --------------------------------------------------------------------------------------------------------

PAYLOADS: dict[str, Call] = {
    "accept": lambda g, bad: g.store.accept("j", bad, key="new"),
    "accept_into": lambda g, bad: g.store.accept_into("j", "session", "clerk", bad, key="new"),
    "resolve": lambda g, bad: g.store.resolve(g.token, bad),
}


@every("name", PAYLOADS)
async def test_a_value_without_json_form_is_refused(ground: Ground, name: str) -> None:
    await _check_refused(ground, PAYLOADS[name], BAD_VALUES)


@every("name", PAYLOADS)
async def test_a_value_over_the_limit_is_refused(ground: Ground, name: str) -> None:
    await _check_refused(ground, PAYLOADS[name], [TOO_LARGE, [TOO_LARGE], "é" * 2_500])


async def test_what_is_not_a_token_is_an_unknown_wait(ground: Ground) -> None:
    bad = [*BAD_IDS, ground.token[:-1], ground.token + "A", "x" * 1_000_000]
    await _check_refused(ground, lambda g, bad: g.store.resolve(bad, 1), bad, WaitUnknown)


async def test_a_blob_that_is_not_bytes_or_too_large_is_refused(ground: Ground) -> None:
    bad = ["text", None, 7, bytearray(b"x"), memoryview(b"x"), [b"x"], b"x" * 20_001]
    await _check_refused(ground, lambda g, bad: g.store.put_blob(bad), bad)


async def test_asking_for_a_blob_that_can_not_exist_breaks_nothing(ground: Ground) -> None:
    await _check_never_bare(ground, lambda g, bad: g.store.blob(bad), BAD_IDS)


async def test_a_reason_of_a_quarantine_that_is_not_text_is_refused(ground: Ground) -> None:
    await _check_refused(ground, lambda g, bad: g.store.quarantine("j", bad), [None, 7, b"x", ["x"], "\ud800"])


FILTERS: dict[str, Call] = {
    "kind": lambda g, bad: g.store.journals(kind=bad),
    "status": lambda g, bad: g.store.journals(status=bad),
    "agent": lambda g, bad: g.store.journals(agent=bad),
    "before": lambda g, bad: g.store.journals(before=bad),
}


@every("name", FILTERS)
async def test_a_bad_filter_of_a_list_breaks_nothing(ground: Ground, name: str) -> None:
    await _check_never_bare(ground, FILTERS[name], BAD_IDS)


# ---- records ---------------------------------------------------------------------------------------------------------

_ASK = EffectRequest("step", "s", "0" * 64)


class _Foreign(msgspec.Struct, frozen=True):
    at: int = 1


def _unchecked(kind: Callable[..., Any], **fields: Any) -> Any:
    """Structs do not look at the types of their fields; a caller without a type checker gets this far."""
    return kind(**fields)


BAD_RECORDS: dict[str, Any] = {
    "a number": 7,
    "text": "started",
    "nothing": None,
    "a dictionary": {"t": "started", "run": "main", "at": 1},
    "a foreign struct": _Foreign(),
    "a class": Started,
    "a second opening": Opened(at=1, kind="session", format=1),
    "a time that is text": _unchecked(Started, at="now", run="r"),
    "a time that is a fraction": _unchecked(Started, at=1.5, run="r"),
    "a time that is too large": Started(at=2**70, run="r"),
    "a time that is too small": Parked(at=-(2**70), run="r"),
    "a run that is a number": _unchecked(Started, at=1, run=7),
    "a run that is missing": _unchecked(Started, at=1, run=None),
    "a run with a lone surrogate": Started(at=1, run="\ud800"),
    "a status that does not exist": _unchecked(Ended, at=1, run="r", status="exploded"),
    "waits that are no list": _unchecked(Parked, at=1, run="r", waits=7),
    "an input that is text": _unchecked(Admitted, at=1, input="one", key="k"),
    "an input that is too large": Admitted(at=1, input=2**70, key="k"),
    "an effect without what was asked": _unchecked(Intended, at=1, key="k", ask=None),
    "an error that is text": _unchecked(Failed, at=1, key="k", error="boom"),
    "a blob that is text": _unchecked(Done, at=1, key="k", ask=_ASK, blob="0" * 64),
    "a blob with a bad digest": _unchecked(Done, at=1, key="k", ask=_ASK, blob=Blob(7, 1)),  # pyright: ignore[reportArgumentType]
    "a kind of group that does not exist": _unchecked(Grouped, at=1, key="k", wake="most", members=("a",)),
    "a value that is not JSON": Done(at=1, key="k", ask=_ASK, value=msgspec.Raw(b"{broken")),
    "two values": Done(at=1, key="k", ask=_ASK, value=msgspec.Raw(b"1,2")),
    "a value that smuggles a field": Done(at=1, key="k", ask=_ASK, value=msgspec.Raw(b'1,"key":"other"')),
    "a value that is bytes": _unchecked(Done, at=1, key="k", ask=_ASK, value=b"\xff"),
    "a value that has no JSON": _unchecked(Done, at=1, key="k", ask=_ASK, value={1, 2j}),
    "a record over the limit": Done(at=1, key="k", ask=_ASK, value=msgspec.Raw(b'"%b"' % (b"x" * 10_000))),
}


@every("name", BAD_RECORDS)
async def test_a_record_that_could_not_be_read_back_is_refused(ground: Ground, name: str) -> None:
    before = await _all_of_it(ground.store)
    added = [Parked(at=1, run="main"), BAD_RECORDS[name]]
    told = await _told(lambda: ground.store.append(ground.lease, added, head=2))
    # What it refers to is not there: that is a true answer too.
    assert isinstance(told, UsageError | InputTaken | BlobMissing), repr(told)
    assert await _all_of_it(ground.store) == before


async def test_what_is_not_a_list_of_records_is_refused(ground: Ground) -> None:
    bad: list[Any] = [None, 7, "text", {}, {"a": 1}, [], (), Started, Started(at=1, run="r"), object]
    await _check_refused(ground, lambda g, bad: g.store.append(g.lease, bad, head=2), bad)


async def test_records_that_can_be_looked_at_only_once_are_refused_or_kept_whole(ground: Ground) -> None:
    added: Any = (record for record in [Parked(at=1, run="main")])
    await _told(lambda: ground.store.append(ground.lease, added, head=2))
    assert await ground.store.examine(audit) == []


async def test_a_list_that_its_caller_changes_afterwards_changes_nothing(ground: Ground) -> None:
    added: list[Any] = [Parked(at=9, run="main")]
    attempt = ground.store.append(ground.lease, added, head=2)
    added[:] = [Started(at=10, run="other")]
    await attempt
    assert (await ground.store.journal("j")).status == "waiting"
    assert await ground.store.examine(audit) == []


@every("name", ["append", "renew", "release"])
async def test_what_is_not_a_lease_is_refused(ground: Ground, name: str) -> None:
    calls: dict[str, Call] = {
        "append": lambda g, bad: g.store.append(bad, [Parked(at=1, run="main")], head=2),
        "renew": lambda g, bad: g.store.renew(bad),
        "release": lambda g, bad: g.store.release(bad),
    }
    await _check_refused(ground, calls[name], [None, 7, "j", {}, [], object, ("j", 1)])


# ---- opening ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [7, 1.5, [], "a\x00b", "\ud800", ""], ids=_show)
async def test_a_bad_path_is_refused(path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HoldfastError):
        async with open_store(path):
            pytest.fail("it was opened")
    assert os.listdir(tmp_path) == []  # short, and not blocking for long


@pytest.mark.parametrize("durability", ["", "none", None, 7, [], {}], ids=_show)
async def test_a_bad_durability_is_refused(durability: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        async with open_store(tmp_path / "store.db", durability=durability):
            pytest.fail("it was opened")
    assert os.listdir(tmp_path) == []  # short, and not blocking for long


# ---- driving ---------------------------------------------------------------------------------------------------------


async def test_a_body_that_can_not_be_called_is_refused(ground: Ground) -> None:
    await _check_refused(ground, lambda g, bad: drive(g.store, "new", bad), _BAD_CALLABLES)


async def _ok(*_: object) -> str:
    return "ok"


_BAD_CALLABLES: list[Any] = [None, 7, "f", [], object()]
_BAD_REPEATS: list[Any] = ["never", "keyed", "NEVER", None, 0, True]
_BAD_EFFECT_KINDS: list[Any] = ["", "teleport", None, 7, [], {}]
_TEXT_IDS = [bad for bad in BAD_IDS if bad not in ("", None)]

INSIDE: dict[str, tuple[Callable[[Boundary, Any], Awaitable[Any]], list[Any]]] = {
    "step name": (lambda b, bad: b.step(bad, _ok), BAD_IDS),
    "step function": (lambda b, bad: b.step("s", bad), _BAD_CALLABLES),
    "step argument": (lambda b, bad: b.step("s", _ok, bad), [*BAD_VALUES, {"deep": [b"x"]}]),
    "step repeat": (lambda b, bad: b.step("s", _ok, repeat=bad), _BAD_REPEATS),
    "effect name": (lambda b, bad: b.effect("step", bad, _ok), BAD_IDS),
    "effect kind": (lambda b, bad: b.effect(bad, "s", _ok), _BAD_EFFECT_KINDS),
    "effect function": (lambda b, bad: b.effect("step", "s", bad), _BAD_CALLABLES),
    "effect target": (lambda b, bad: b.effect("step", "s", _ok, target=bad), _TEXT_IDS),
    "effect body": (lambda b, bad: b.effect("step", "s", _ok, body=bad), BAD_VALUES),
    "effect repeat": (lambda b, bad: b.effect("step", "s", _ok, repeat=bad), _BAD_REPEATS),
}


@every("name", INSIDE)
async def test_bad_input_to_the_boundary_is_refused_and_the_run_goes_on(ground: Ground, name: str) -> None:
    call, bad = INSIDE[name]

    async def body(boundary: Boundary) -> str:
        assert await boundary.step("before", _ok) == "ok"
        await _check_refused(ground, lambda _, value: call(boundary, value), bad)
        return await boundary.step("after", _ok)

    # A failed assertion inside becomes a failed run, which says so.
    assert await drive(ground.store, "run", body) == "ok"
    assert await drive(ground.store, "run", body) == "ok"


async def test_effects_outside_of_a_run_are_refused(ground: Ground) -> None:
    kept: list[Boundary] = []

    async def body(boundary: Boundary) -> None:
        kept.append(boundary)

    await drive(ground.store, "run", body)
    (boundary,) = kept
    calls: list[Any] = [
        lambda: boundary.step("s", _ok),
        lambda: boundary.effect("step", "s", _ok),
    ]
    await _check_refused(ground, lambda _, call: call(), calls)


async def test_a_result_without_json_form_is_a_failure_of_the_effect(ground: Ground) -> None:
    def give(value: object) -> Callable[[], Awaitable[object]]:
        async def function() -> object:
            return value

        return function

    async def body(boundary: Boundary) -> list[str]:
        told: list[str] = []
        for number, value in enumerate(BAD_VALUES):
            try:
                await boundary.step(f"s{number}", give(value))
            except holdfast.EffectFailed as error:
                told.append(error.kind)
        return told

    told = await drive(ground.store, "run", body)
    assert told == ["InvalidValue"] * len(BAD_VALUES)
    assert await drive(ground.store, "run", body) == told
