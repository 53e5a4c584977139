"""The store conformance suite: what every backend must do, as plain coroutines that need no test framework.

A backend author says how to open a store on one and the same storage, again and again, and runs each case::

    class MyStores:
        @asynccontextmanager
        async def open(self, clock: Clock) -> AsyncGenerator[Store]:
            async with Store(await MyBackend.open(self.place, clock=clock)) as store:
                yield store

    @pytest.mark.parametrize("case", cases(), ids=str)
    async def test_it_keeps_the_contract(case: Case) -> None:
        await case.run(MyStores())

Every case wants a storage of its own, and may have it open twice at the same time.
"""
# ruff: noqa: D103  the name of a case is its sentence

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from holdfast.errors import (
    BlobMissing,
    Fenced,
    HeadConflict,
    HoldfastError,
    InboxFull,
    InputTaken,
    InvalidNumber,
    InvalidValue,
    JournalConflict,
    JournalMissing,
    JournalQuarantined,
    KeyConflict,
    LeaseHeld,
    PayloadTooLarge,
    StoreClosed,
    UsageError,
    WaitUnknown,
)
from holdfast.records import Admitted, Ask, Blob, Done, Ended, Opened, Parked, Started, next_status, touches_lists
from holdfast.store import Journal, Lease
from holdfast.store.audit import audit
from holdfast.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from holdfast.clock import Clock
    from holdfast.records import EndStatus, JournalKind, Record, Status
    from holdfast.store import Entry, Input, Store, Wait

    _Call: TypeAlias = Callable[[Store, Lease], Awaitable[object]]

E = TypeVar("E", bound=HoldfastError)

_PATIENCE: Final = 5.0
"""Seconds of real time after which something that should have happened did not."""


class Stores(Protocol):
    """One storage that can be opened again and again, also while it is open already."""

    def open(self, clock: Clock) -> AbstractAsyncContextManager[Store]:
        """A new opening, which sees whatever earlier ones have committed."""
        ...


class Case(NamedTuple):
    """One law of the contract: its name is a sentence, `run` raises `AssertionError` where it does not hold."""

    name: str
    run: Callable[[Stores], Awaitable[None]]

    def __str__(self) -> str:
        return self.name


_CASES: Final[list[Case]] = []


def cases() -> list[Case]:
    """Every case of the suite, in a fixed order."""
    return list(_CASES)


def _case(run: Callable[[Stores], Awaitable[None]]) -> Callable[[Stores], Awaitable[None]]:
    _CASES.append(Case(getattr(run, "__name__", "?").replace("_", " "), run))
    return run


# ---- tools -----------------------------------------------------------------------------------------------------------


class Contents(NamedTuple):
    """Everything that can be read from a store: two equal contents mean that nothing has changed."""

    position: int
    journals: list[Journal]
    records: dict[str, list[Entry]]
    pending: dict[str, list[Input]]
    waits: dict[str, list[Wait]]


async def contents(store: Store) -> Contents:
    """Read it all. The store of a test is small; pages are still followed to their end."""
    lines: list[Journal] = []
    while page := await store.journals(before=lines[-1] if lines else None, limit=store.limits.page):
        assert page[0] not in lines, "a page begins with a journal that was shown before"
        lines.extend(page)
    names = sorted(line.id for line in lines)
    return Contents(
        await store.last_position(),
        lines,
        {name: [entry async for entry in store.read_all(name)] for name in names},
        {name: await store.pending(name) for name in names},
        {name: await store.waits(name) for name in names},
    )


async def refusal(kind: type[E], attempt: Awaitable[object]) -> E:
    """The error of the wanted kind that `attempt` ends with; anything else is a failure of the case."""
    try:
        answer = await attempt
    except kind as error:
        return error
    message = f"it should have been refused with {kind.__name__}, but it answered {answer!r}"
    raise AssertionError(message)


async def _promptly(attempt: Awaitable[Any]) -> Any:  # noqa: ANN401  whatever the attempt answers
    """The answer, or a failure instead of a hanging test."""
    return await asyncio.wait_for(attempt, _PATIENCE)


def _clock() -> ManualClock:
    return ManualClock()


def _step(name: str, *, at: int = 1) -> Done:
    return Done(at=at, key=f"main/{name}", ask=Ask("step", name, "0" * 64), value=msgspec.Raw(b"1"))


def _with_blob(blob: Blob, name: str = "large") -> Done:
    return Done(at=1, key=f"main/{name}", ask=Ask("step", name, "0" * 64), blob=blob)


async def _leased(store: Store, journal: str, *, ttl_ms: int = 10_000) -> Lease:
    await store.open_journal(journal)
    return await store.claim(journal, ttl_ms=ttl_ms)


async def _append(store: Store, lease: Lease, *added: Record) -> int:
    """Append where the journal ends now."""
    return await store.append(lease, added, head=(await store.journal(lease.journal)).head)


_ON_A_JOURNAL: Final[dict[str, _Call]] = {
    "append": lambda store, lease: store.append(lease, [_step("x")], head=1),
    "claim": lambda store, lease: store.claim(lease.journal),
    "renew": lambda store, lease: store.renew(lease),
    "release": lambda store, lease: store.release(lease),
    "accept": lambda store, lease: store.accept(lease.journal, "hello", key="k"),
    "open_wait": lambda store, lease: store.open_wait(lease.journal, "w"),
    "expire_wait": lambda store, lease: store.expire_wait(lease.journal, "w"),
    "cancel_wait": lambda store, lease: store.cancel_wait(lease.journal, "w"),
    "revoke_waits": lambda store, lease: store.revoke_waits(lease.journal),
    "quarantine": lambda store, lease: store.quarantine(lease.journal, "a test"),
    "journal": lambda store, lease: store.journal(lease.journal),
    "read": lambda store, lease: store.read(lease.journal),
    "tail": lambda store, lease: store.tail(lease.journal),
    "pending": lambda store, lease: store.pending(lease.journal),
    "wait": lambda store, lease: store.wait(lease.journal, "w"),
    "waits": lambda store, lease: store.waits(lease.journal),
}
"""Every call that needs a journal."""

_ON_THE_STORE: Final[dict[str, _Call]] = {
    "open_journal": lambda store, lease: store.open_journal(f"{lease.journal}-new"),
    "put_blob": lambda store, lease: store.put_blob(lease.journal.encode()),
    "collect_blobs": lambda store, _: store.collect_blobs(),
    "blob": lambda store, _: store.blob("0" * 64),
    "feed": lambda store, _: store.feed(),
    "last_position": lambda store, _: store.last_position(),
    "journals": lambda store, _: store.journals(),
    "due": lambda store, _: store.due(),
    "next_due": lambda store, _: store.next_due(),
}
"""Every call that needs none."""

_STALE: Final = ("append", "renew", "release")
"""The calls that need a lease that is still theirs."""


# ---- journals --------------------------------------------------------------------------------------------------------


@_case
async def a_journal_begins_with_an_opened_record_at_sequence_one(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        opened = await store.open_journal("a", "process", "clerk")
        (entry,) = await store.read("a")
        assert (entry.seq, entry.pos, entry.epoch) == (1, 1, 0)
        assert isinstance(entry.record, Opened)
        assert (entry.record.kind, entry.record.agent) == ("process", "clerk")
        assert (opened.id, opened.head, opened.status) == ("a", 1, "idle")


@_case
async def opening_a_journal_again_finds_it_as_it_is(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        lease = await _leased(store, "a")
        await _append(store, lease, _step("x"))
        clock.advance(5)
        before = await contents(store)
        assert (await store.open_journal("a")).head == 2
        assert await contents(store) == before


@_case
async def one_id_belongs_to_one_kind_and_one_agent(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a", "session", "clerk")
        before = await contents(store)
        error = await refusal(JournalConflict, store.open_journal("a", "process", "clerk"))
        assert error.journal == "a"
        await refusal(JournalConflict, store.open_journal("a", "session", "cook"))
        await refusal(JournalConflict, store.open_journal("a", "session"))
        assert await contents(store) == before


@_case
async def journals_opened_at_the_same_moment_are_one_journal(stores: Stores) -> None:
    async with stores.open(_clock()) as one, stores.open(_clock()) as two:
        await asyncio.gather(*(store.open_journal("a") for store in (one, two) for _ in range(10)))
        assert await one.last_position() == await two.last_position() == 1


@_case
async def every_call_on_a_missing_journal_says_so_and_writes_nothing(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        before = await contents(store)
        ghost = Lease("ghost", lease.epoch, lease.owner, lease.ttl_ms, lease.head)
        for name, call in _ON_A_JOURNAL.items():
            error = await refusal(JournalMissing, call(store, ghost))
            assert error.journal == "ghost", name
        assert await contents(store) == before


@_case
async def sequences_are_dense_from_one(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        head = await store.append(lease, [_step("x"), _step("y")], head=1)
        assert head == 3
        assert await store.append(lease, [_step("z")], head=head) == 4
        assert [entry.seq for entry in await store.read("a")] == [1, 2, 3, 4]


@_case
async def records_come_back_as_they_were_written(stores: Stores) -> None:
    written: list[Record] = [Started(at=7, run="main", code="v1"), _step("é/☃", at=8)]
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        await store.append(lease, written, head=1)
    async with stores.open(_clock()) as store:
        assert [entry.record for entry in await store.read("a", after=1)] == written


@_case
async def an_append_at_another_head_is_refused_with_both_heads(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        before = await contents(store)
        for wrong in (0, 2, 99):
            error = await refusal(HeadConflict, store.append(lease, [_step("x")], head=wrong))
            assert (error.expected, error.actual) == (wrong, 1)
        assert await contents(store) == before


@_case
async def an_empty_append_is_refused(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        await refusal(UsageError, store.append(lease, [], head=1))
        assert (await store.journal("a")).head == 1


@_case
async def a_second_opened_record_is_refused(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        await refusal(InvalidValue, store.append(lease, [Opened(at=1, kind="session", format=1)], head=1))
        assert (await store.journal("a")).head == 1


@_case
async def a_record_over_the_limit_is_refused_and_one_at_the_limit_is_not(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        limit = store.limits.record_bytes
        around = len(msgspec.json.encode(Done(at=1, key="k", value=msgspec.Raw(b'""'))))
        fits = Done(at=1, key="k", value=msgspec.Raw(b'"%b"' % (b"x" * (limit - around))))
        too_large = Done(at=1, key="k", value=msgspec.Raw(b'"%b"' % (b"x" * (limit - around + 1))))
        before = await contents(store)
        error = await refusal(PayloadTooLarge, store.append(lease, [_step("x"), too_large], head=1))
        assert (error.size, error.limit) == (limit + 1, limit)
        assert await contents(store) == before
        assert await store.append(lease, [fits], head=1) == 2


@_case
async def reading_goes_on_from_a_cursor_with_a_limit(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        await store.append(lease, [_step(str(n)) for n in range(9)], head=1)
        assert [entry.seq for entry in await store.read("a", after=3, limit=4)] == [4, 5, 6, 7]
        assert [entry.seq for entry in await store.read("a", after=7)] == [8, 9, 10]
        assert await store.read("a", after=10) == []
        assert await store.read("a", after=1_000) == []
        await refusal(InvalidNumber, store.read("a", after=-5))
        await refusal(UsageError, store.read("a", limit=0))


@_case
async def reading_everything_follows_the_pages_to_their_end(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        total = store.limits.page + 1
        await store.append(lease, [_step(str(n)) for n in range(total - 1)], head=1)
        assert len(await store.read("a", limit=total)) == store.limits.page
        assert [entry.seq async for entry in store.read_all("a")] == list(range(1, total + 1))
        assert [entry.seq async for entry in store.read_all("a", after=total - 1)] == [total]


@_case
async def the_tail_is_the_last_records_oldest_first(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        await store.append(lease, [_step(str(n)) for n in range(9)], head=1)
        assert [entry.seq for entry in await store.tail("a", limit=3)] == [8, 9, 10]
        assert [entry.seq for entry in await store.tail("a")] == list(range(1, 11))
        assert await store.tail("a", limit=3) == (await store.read("a"))[-3:]


@_case
async def feed_positions_have_no_gaps_and_follow_the_commits_of_all_journals(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        names = [f"j{n}" for n in range(5)]
        leases = {name: await _leased(store, name) for name in names}
        for round_ in range(4):
            head = round_ + 1
            await asyncio.gather(*(store.append(leases[name], [_step("x")], head=head) for name in names))
        feed = await store.feed()
        assert [entry.pos for entry in feed] == list(range(1, len(names) * 5 + 1))
        assert await store.last_position() == feed[-1].pos
        for name in names:
            mine = [(entry.seq, entry.pos, entry.record) for entry in feed if entry.journal == name]
            assert mine == [(entry.seq, entry.pos, entry.record) for entry in await store.read(name)]
        assert await store.feed(after=7, limit=3) == feed[7:10]
        assert await store.feed(after=feed[-1].pos) == []


@_case
async def a_refused_append_leaves_no_gap_in_the_feed(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        attempts = [store.append(lease, [_step(str(n))], head=head) for n, head in enumerate((1, 7, 2, 9, 3))]
        await asyncio.gather(*attempts, return_exceptions=True)
        assert [entry.pos for entry in await store.feed()] == [1, 2, 3, 4]


@_case
async def pipelined_appends_are_carried_out_in_their_order(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        pending = [store.append(lease, [_step(str(n))], head=n + 1) for n in range(200)]
        assert await asyncio.gather(*pending) == list(range(2, 202))
        keys = [entry.record.key for entry in await store.read("a", after=1) if isinstance(entry.record, Done)]
        assert keys == [f"main/{n}" for n in range(200)]


@_case
async def when_one_pipelined_append_fails_all_after_it_fail(stores: Stores) -> None:
    missing = _with_blob(Blob("0" * 64, 1))
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        first = store.append(lease, [_step("x")], head=1)
        bad = store.append(lease, [missing], head=2)
        later = [store.append(lease, [_step(f"l{n}")], head=3 + n) for n in range(5)]
        assert await first == 2
        await refusal(BlobMissing, bad)
        for attempt in later:
            assert (await refusal(HeadConflict, attempt)).actual == 2
        assert (await store.journal("a")).head == 2


@_case
async def an_append_is_written_whole_or_not_at_all(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        before = await contents(store)
        added = [Started(at=1, run="main"), _step("x"), _with_blob(Blob("0" * 64, 1))]
        await refusal(BlobMissing, store.append(lease, added, head=1))
        assert await contents(store) == before


@_case
async def closing_finishes_what_is_queued(stores: Stores) -> None:
    clock = _clock()
    for turns in range(5):
        async with stores.open(clock) as store:
            lease = await _leased(store, f"j{turns}")
            attempt = store.append(lease, [_step("x")], head=1)
            for _ in range(turns):  # so that the close meets the append at various stages of its way
                await asyncio.sleep(0)
            await _promptly(store.close())
        done, _ = await asyncio.wait([attempt], timeout=_PATIENCE)
        assert done, f"the append was never answered when the loop turned {turns} times before the close"
        assert attempt.result() == 2
        async with stores.open(clock) as store:
            assert (await store.journal(f"j{turns}")).head == 2


@_case
async def every_call_on_a_closed_store_says_so(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        token = store.wait_token("a", "w")
    for name, call in {**_ON_A_JOURNAL, **_ON_THE_STORE}.items():
        try:
            await _promptly(call(store, lease))
        except StoreClosed:
            continue
        raise AssertionError(name)
    await refusal(StoreClosed, store.resolve(token, 1))
    await _promptly(store.close())  # a second time is harmless


@_case
async def whatever_was_acknowledged_is_there_for_the_next_opening(stores: Stores) -> None:
    clock = _clock()
    calls = {**_ON_A_JOURNAL, **_ON_THE_STORE}
    del calls["release"], calls["claim"]  # the lease itself is looked at elsewhere
    for number, (name, call) in enumerate(calls.items()):
        async with stores.open(clock) as store:
            lease = await _leased(store, f"j{number}")
            if name in ("expire_wait", "cancel_wait"):
                await store.open_wait(lease.journal, "w")
            await call(store, lease)
            before = await contents(store)
        async with stores.open(clock) as store:
            assert await contents(store) == before, name


# ---- leases ----------------------------------------------------------------------------------------------------------


@_case
async def a_claimed_lease_tells_where_the_journal_ends(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await _append(store, await _leased(store, "a"), _step("x"), _step("y"))
        await store.release(Lease("a", 1, store.owner, 10_000, 1))
        lease = await store.claim("a", ttl_ms=5_000)
        assert (lease.journal, lease.head, lease.ttl_ms, lease.owner) == ("a", 3, 5_000, store.owner)


@_case
async def a_live_lease_is_given_to_nobody_else(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        await _leased(one, "a", ttl_ms=1_000)
        clock.advance(999)
        error = await refusal(LeaseHeld, two.claim("a"))
        assert (error.journal, error.holder, error.expires_in_ms) == ("a", one.owner.describe(), 1)


@_case
async def a_live_lease_is_not_given_twice_to_its_own_holder(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await _leased(store, "a")
        await refusal(LeaseHeld, store.claim("a"))


@_case
async def of_many_claims_at_once_exactly_one_wins(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        await one.open_journal("a")
        claims = (store.claim("a") for store in (one, two) for _ in range(10))
        answers = await asyncio.gather(*claims, return_exceptions=True)
        assert sum(isinstance(answer, Lease) for answer in answers) == 1
        assert sum(isinstance(answer, LeaseHeld) for answer in answers) == 19


@_case
async def a_renewed_lease_lasts_another_term(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        lease = await _leased(store, "a", ttl_ms=1_000)
        clock.advance(900)
        await store.renew(lease)
        clock.advance(900)
        await refusal(LeaseHeld, store.claim("a"))
        clock.advance(100)
        assert (await store.claim("a")).epoch == lease.epoch + 1


@_case
async def a_released_lease_is_free_at_once_and_worth_nothing(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        await store.release(lease)
        before = await contents(store)
        for name in _STALE:
            error = await refusal(Fenced, _ON_A_JOURNAL[name](store, lease))
            assert error.holder is None, name
        assert await contents(store) == before
        assert (await store.claim("a")).epoch == lease.epoch + 1


@_case
async def an_expired_lease_can_be_taken_over_and_the_epoch_grows_by_one(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        lease = await _leased(one, "a", ttl_ms=1_000)
        clock.advance(1_000)
        taken = await two.claim("a")
        assert (taken.epoch, taken.owner) == (lease.epoch + 1, two.owner)


@_case
async def epochs_only_grow_also_over_reopening(stores: Stores) -> None:
    clock = _clock()
    epochs: list[int] = []
    for _ in range(4):
        async with stores.open(clock) as store:
            lease = await _leased(store, "a", ttl_ms=1_000)
            await _append(store, lease, _step("x"))
            epochs.append(lease.epoch)
            if lease.epoch % 2:
                await store.release(lease)
            clock.advance(1_000)
    assert epochs == [1, 2, 3, 4]
    async with stores.open(clock) as store:
        assert [entry.epoch for entry in await store.read("a")] == [0, 1, 2, 3, 4]


@_case
async def a_holder_whose_lease_expired_may_go_on_until_somebody_takes_over(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        lease = await _leased(store, "a", ttl_ms=1_000)
        clock.advance(60_000)
        assert await store.append(lease, [_step("x")], head=1) == 2
        await store.renew(lease)
        await refusal(LeaseHeld, store.claim("a"))


@_case
async def a_stale_holder_is_fenced_off_and_told_who_holds_the_lease_now(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        stale = await _leased(one, "a", ttl_ms=1_000)
        clock.advance(1_000)
        taken = await two.claim("a")
        before = await contents(one)
        for name in _STALE:
            error = await refusal(Fenced, _ON_A_JOURNAL[name](one, stale))
            assert (error.journal, error.epoch, error.current) == ("a", stale.epoch, taken.epoch), name
            assert error.holder == two.owner.describe(), name
        assert await contents(one) == before
        assert await two.append(taken, [_step("x")], head=1) == 2
        await refusal(LeaseHeld, one.claim("a"))


@_case
async def a_fenced_append_is_refused_before_its_head_is_looked_at(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        stale = await _leased(store, "a", ttl_ms=1_000)
        clock.advance(1_000)
        await store.claim("a")
        await refusal(Fenced, store.append(stale, [_step("x")], head=99))


@_case
async def a_jump_of_the_wall_clock_takes_no_lease_away_and_prolongs_none(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        await _leased(store, "a", ttl_ms=1_000)
        clock.jump(10_000_000)
        assert (await refusal(LeaseHeld, store.claim("a"))).expires_in_ms == 1_000
        clock.jump(-20_000_000)
        clock.advance(999)
        assert (await refusal(LeaseHeld, store.claim("a"))).expires_in_ms == 1
        clock.advance(1)
        assert (await store.claim("a")).epoch == 2


@_case
async def after_another_boot_a_lease_ends_by_the_wall_clock(stores: Stores) -> None:
    before, after = ManualClock(boot="first"), ManualClock(mono=0, boot="second")
    async with stores.open(before) as one, stores.open(after) as two:
        await _leased(one, "a", ttl_ms=1_000)
        after.advance(999)
        assert (await refusal(LeaseHeld, two.claim("a"))).expires_in_ms == 1
        after.advance(1)
        assert (await two.claim("a")).epoch == 2


@_case
async def closing_gives_all_leases_back_and_those_of_nobody_else(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as other:
        kept = await _leased(other, "kept")
        async with stores.open(clock) as store:
            leases = [await _leased(store, name) for name in ("a", "b")]
            await refusal(LeaseHeld, other.claim("a"))
        for lease in leases:
            assert (await refusal(Fenced, other.renew(lease))).holder is None
            assert (await other.claim(lease.journal)).epoch == lease.epoch + 1
        await other.renew(kept)


@_case
async def a_lease_on_one_journal_says_nothing_about_another(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        one, two = await _leased(store, "a"), await _leased(store, "b")
        await store.release(one)
        assert await store.append(two, [_step("x")], head=1) == 2


# ---- inbox -----------------------------------------------------------------------------------------------------------


@_case
async def the_same_input_under_the_same_key_gives_the_same_receipt(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        await store.open_journal("a")
        first = await store.accept("a", {"x": 1, "y": 2}, key="k")
        clock.advance(5)
        again = await store.accept("a", {"y": 2, "x": 1}, key="k")
        assert first.fresh
        assert not again.fresh
        assert (again.input, again.key, again.at) == (first.input, first.key, first.at)
        assert len(await store.pending("a")) == 1


@_case
async def other_content_under_the_same_key_is_a_conflict(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a")
        await store.accept("a", 1, key="k")
        before = await contents(store)
        for other in (2, 1.0, True, "1", [1], None):
            error = await refusal(KeyConflict, store.accept("a", other, key="k"))
            assert (error.journal, error.key) == ("a", "k")
        assert await contents(store) == before


@_case
async def idempotency_keys_are_remembered_over_reopening_and_after_admission(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        lease = await _leased(store, "a")
        first = await store.accept("a", "hello", key="k")
        await _append(store, lease, Admitted(at=1, input=first.input, key="k"))
    async with stores.open(clock) as store:
        again = await store.accept("a", "hello", key="k")
        assert (again.input, again.at, again.fresh) == (first.input, first.at, False)
        await refusal(KeyConflict, store.accept("a", "bye", key="k"))
        assert await store.pending("a") == []


@_case
async def of_many_inputs_with_one_key_at_once_one_is_taken(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        await one.open_journal("a")
        attempts = (store.accept("a", "hello", key="k") for store in (one, two) for _ in range(10))
        receipts = await asyncio.gather(*attempts)
        assert sum(receipt.fresh for receipt in receipts) == 1
        assert {receipt.input for receipt in receipts} == {1}
        assert len(await two.pending("a")) == 1


@_case
async def of_many_contents_with_one_key_at_once_one_is_taken_and_the_others_conflict(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a")
        answers = await asyncio.gather(*(store.accept("a", n, key="k") for n in range(10)), return_exceptions=True)
        assert sum(isinstance(answer, KeyConflict) for answer in answers) == 9
        assert [found.body for found in await store.pending("a")] == [b"0"]


@_case
async def keys_belong_to_their_journal(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a")
        await store.open_journal("b")
        assert (await store.accept("a", 1, key="k")).fresh
        assert (await store.accept("b", 2, key="k")).fresh


@_case
async def inputs_without_a_key_are_all_different(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a")
        receipts = [await store.accept("a", "hello") for _ in range(3)]
        assert [receipt.input for receipt in receipts] == [1, 2, 3]
        assert len({receipt.key for receipt in receipts}) == 3


@_case
async def pending_inputs_are_in_the_order_of_their_acceptance(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        await store.open_journal("a")
        await asyncio.gather(*(store.accept("a", n, key=f"k{9 - n}") for n in range(10)))
        assert [(found.input, found.body) for found in await store.pending("a")] == [
            (n + 1, str(n).encode()) for n in range(10)
        ]
        assert [found.input for found in await store.pending("a", limit=3)] == [1, 2, 3]


@_case
async def a_full_inbox_refuses_new_inputs_and_still_answers_old_ones(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        limit = store.limits.pending_inputs
        await asyncio.gather(*(store.accept("a", n, key=f"k{n}") for n in range(limit)))
        error = await refusal(InboxFull, store.accept("a", "one more", key="more"))
        assert error.limit == limit
        assert not (await store.accept("a", 0, key="k0")).fresh
        await _append(store, lease, Admitted(at=1, input=1, key="k0"))
        assert (await store.accept("a", "one more", key="more")).input == limit + 1


@_case
async def an_admitted_record_takes_its_input_out_in_the_same_append(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        for n in range(3):
            await store.accept("a", n, key=f"k{n}")
        head = await _append(store, lease, Admitted(at=1, input=2, key="k1", body=msgspec.Raw(b"1")), _step("x"))
        assert head == 3
        assert [found.input for found in await store.pending("a")] == [1, 3]


@_case
async def a_refused_append_admits_nothing(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        await store.accept("a", 1, key="k")
        before = await contents(store)
        admitted = Admitted(at=1, input=1, key="k")
        await refusal(HeadConflict, store.append(lease, [admitted], head=5))
        await refusal(BlobMissing, store.append(lease, [admitted, _with_blob(Blob("0" * 64, 1))], head=1))
        assert await contents(store) == before


@_case
async def an_input_is_admitted_once(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        await store.accept("a", 1, key="k")
        admitted = Admitted(at=1, input=1, key="k")
        await store.append(lease, [admitted], head=1)
        before = await contents(store)
        error = await refusal(InputTaken, store.append(lease, [_step("x"), admitted], head=2))
        assert (error.journal, error.input) == ("a", 1)
        await refusal(InputTaken, store.append(lease, [Admitted(at=1, input=7, key="never")], head=2))
        assert await contents(store) == before


@_case
async def an_input_is_not_admitted_twice_by_one_append(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        await store.accept("a", 1, key="k")
        before = await contents(store)
        admitted = Admitted(at=1, input=1, key="k")
        await refusal(InputTaken, store.append(lease, [admitted, admitted], head=1))
        assert await contents(store) == before


@_case
async def an_input_over_the_limit_is_refused(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a")
        limit = store.limits.input_bytes
        error = await refusal(PayloadTooLarge, store.accept("a", "x" * (limit - 1), key="k"))
        assert (error.size, error.limit) == (limit + 1, limit)
        assert await store.pending("a") == []
        assert (await store.accept("a", "x" * (limit - 2), key="k")).fresh


# ---- waits -----------------------------------------------------------------------------------------------------------


@_case
async def a_wait_is_open_until_it_is_resolved(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a")
        assert await store.wait("a", "w") is None
        opened = await store.open_wait("a", "w", deadline=None)
        assert (opened.state, opened.opened, opened.payload) == ("open", True, None)
        settled = await store.resolve(store.wait_token("a", "w"), {"ok": True})
        assert settled.won
        assert (settled.wait.state, settled.wait.payload) == ("resolved", b'{"ok":true}')
        assert await store.wait("a", "w") == settled.wait


@_case
async def the_first_resolution_wins_and_the_second_learns_the_first(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a")
        await store.open_wait("a", "w")
        token = store.wait_token("a", "w")
        first = await store.resolve(token, "first")
        second = await store.resolve(token, "second")
        assert (first.won, second.won) == (True, False)
        assert second.wait == first.wait == await store.wait("a", "w")


@_case
async def of_many_resolutions_at_once_one_wins_and_all_learn_the_same(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        await one.open_journal("a")
        await one.open_wait("a", "w")
        token = one.wait_token("a", "w")
        attempts = (store.resolve(token, n) for n, store in enumerate((one, two) * 10))
        answers = await asyncio.gather(*attempts)
        assert sum(answer.won for answer in answers) == 1
        assert len({answer.wait.payload for answer in answers}) == 1


@_case
async def a_resolution_that_comes_first_is_buffered_until_the_wait_is_opened(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        await store.open_journal("a")
        token = store.wait_token("a", "w")
        early = await store.resolve(token, "early")
        assert early.won
        assert not early.wait.opened
        assert not (await store.resolve(token, "later")).won
    async with stores.open(clock) as store:
        opened = await store.open_wait("a", "w", deadline=clock.read().wall - 1)
        assert (opened.state, opened.payload, opened.opened) == ("resolved", b'"early"', True)
        assert await store.due() == []


@_case
async def a_resolution_after_the_deadline_is_too_late(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        await store.open_journal("a")
        deadline = clock.read().wall + 1_000
        await store.open_wait("a", "w", deadline=deadline)
        await store.open_wait("a", "v", deadline=deadline)
        clock.advance(999)
        assert (await store.resolve(store.wait_token("a", "v"), 1)).won
        clock.advance(1)
        late = await store.resolve(store.wait_token("a", "w"), "late")
        assert not late.won
        assert (late.wait.state, late.wait.payload) == ("expired", None)
        assert await store.wait("a", "w") == late.wait


@_case
async def expiring_a_wait_that_is_not_due_does_nothing(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        await store.open_journal("a")
        await store.open_wait("a", "never")
        await store.open_wait("a", "later", deadline=clock.read().wall + 1)
        before = await contents(store)
        for name in ("never", "later"):
            answer = await store.expire_wait("a", name)
            assert (answer.won, answer.wait.state) == (False, "open"), name
        assert await contents(store) == before
        clock.advance(1)
        answer = await store.expire_wait("a", "later")
        assert (answer.won, answer.wait.state) == (True, "expired")


@_case
async def a_cancelled_wait_can_not_be_resolved(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a")
        await store.open_wait("a", "w")
        assert (await store.cancel_wait("a", "w")).won
        answer = await store.resolve(store.wait_token("a", "w"), 1)
        assert (answer.won, answer.wait.state, answer.wait.payload) == (False, "cancelled", None)
        assert not (await store.cancel_wait("a", "w")).won
        assert (await store.open_wait("a", "w")).state == "cancelled"


@_case
async def only_a_resolution_may_come_before_its_wait(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a")
        await refusal(WaitUnknown, store.expire_wait("a", "w"))
        await refusal(WaitUnknown, store.cancel_wait("a", "w"))
        assert await store.waits("a") == []


@_case
async def the_first_deadline_of_a_wait_stays(stores: Stores) -> None:
    clock = _clock()
    first = clock.read().wall + 1_000
    async with stores.open(clock) as store:
        await store.open_journal("a")
        await store.open_wait("a", "w", deadline=first)
        for other in (None, first - 500, first + 500):
            assert (await store.open_wait("a", "w", deadline=other)).deadline == first
        assert await store.next_due() == first


@_case
async def one_wait_can_be_revoked_and_the_others_stay(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a")
        for name in ("v", "w"):
            await store.open_wait("a", name)
        assert await store.revoke_waits("a", "w") == 1
        await refusal(WaitUnknown, store.resolve(store.wait_token("a", "w"), 1))
        await refusal(WaitUnknown, store.open_wait("a", "w"))
        await refusal(WaitUnknown, store.cancel_wait("a", "w"))
        assert (await store.resolve(store.wait_token("a", "v"), 1)).won


@_case
async def a_revoked_wait_forgets_its_resolution(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a")
        await store.resolve(store.wait_token("a", "w"), "a secret")
        await store.revoke_waits("a", "w")
        (found,) = await store.waits("a")
        assert (found.state, found.payload) == ("revoked", None)


@_case
async def all_waits_of_a_journal_can_be_revoked_also_those_to_come(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        await store.open_journal("a")
        await store.open_journal("b")
        await store.open_wait("a", "v", deadline=clock.read().wall + 1)
        await store.open_wait("a", "w")
        await store.open_wait("b", "w")
        assert await store.revoke_waits("a") == 2
    async with stores.open(clock) as store:
        for name in ("v", "w", "new"):
            await refusal(WaitUnknown, store.resolve(store.wait_token("a", name), 1))
            await refusal(WaitUnknown, store.open_wait("a", name))
        assert await store.next_due() is None
        assert (await store.resolve(store.wait_token("b", "w"), 1)).won


@_case
async def waits_and_their_tokens_survive_reopening(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        await store.open_journal("a")
        await store.open_wait("a", "w", deadline=clock.read().wall + 1_000)
        token = store.wait_token("a", "w")
    async with stores.open(clock) as store:
        assert store.wait_token("a", "w") == token
        assert (await store.resolve(token, 1)).won
    async with stores.open(clock) as store:
        assert not (await store.resolve(token, 2)).won
        assert [(found.name, found.payload) for found in await store.waits("a")] == [("w", b"1")]


@_case
async def waits_are_listed_by_name(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a")
        for name in ("b", "é", "a", "Z", "😀", "ab"):
            await store.open_wait("a", name)
        assert [found.name for found in await store.waits("a")] == ["Z", "a", "ab", "b", "é", "😀"]
        assert [found.name for found in await store.waits("a", limit=2)] == ["Z", "a"]


@_case
async def due_waits_come_longest_overdue_first(stores: Stores) -> None:
    clock = _clock()
    now = clock.read().wall
    async with stores.open(clock) as store:
        await store.open_journal("a")
        await store.open_journal("b")
        assert await store.next_due() is None
        for journal, name, delay in (("a", "x", 30), ("b", "x", 10), ("a", "y", 20), ("b", "y", 40)):
            await store.open_wait(journal, name, deadline=now + delay)
        await store.open_wait("a", "never")
        assert await store.due() == []
        assert await store.next_due() == now + 10
        clock.advance(30)
        overdue = [(found.journal, found.name) for found in await store.due()]
        assert overdue == [("b", "x"), ("a", "y"), ("a", "x")]
        assert [(found.journal, found.name) for found in await store.due(limit=1)] == [("b", "x")]
        await store.expire_wait("b", "x")
        await store.cancel_wait("a", "y")
        assert [(found.journal, found.name) for found in await store.due()] == [("a", "x")]
        await store.expire_wait("a", "x")
        assert await store.next_due() == now + 40


@_case
async def a_bad_token_tells_nothing(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a")
        await store.open_journal("closed")
        await store.open_wait("a", "w")
        await store.open_wait("a", "revoked")
        await store.revoke_waits("a", "revoked")
        await store.revoke_waits("closed")
        good = store.wait_token("a", "w")
        bad = {
            "tampered": good[:-2] + ("A" if good[-2] != "A" else "B") + good[-1],
            "truncated": good[:-1],
            "empty": "",
            "unknown": store.wait_token("nowhere", "w"),
            "revoked": store.wait_token("a", "revoked"),
            "revoked with all": store.wait_token("closed", "w"),
        }
        payloads: tuple[object, ...] = (1, float("nan"), "x" * (store.limits.input_bytes + 1))
        for payload in payloads:
            told = {name: await _told(store, token, payload) for name, token in bad.items()}
            assert len(set(told.values())) == 1, told


async def _told(store: Store, token: str, value: object) -> str:
    """All that the bearer of a token can see of the refusal."""
    error = await refusal(HoldfastError, store.resolve(token, value))
    return f"{type(error).__name__} {error} {error.args} {vars(error)} {error.__cause__}"


@_case
async def a_resolution_over_the_limit_is_refused(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a")
        await store.open_wait("a", "w")
        token = store.wait_token("a", "w")
        await refusal(PayloadTooLarge, store.resolve(token, "x" * store.limits.input_bytes))
        assert (await store.resolve(token, 1)).won


# ---- blobs -----------------------------------------------------------------------------------------------------------


@_case
async def the_same_bytes_are_kept_once(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        first, second = await store.put_blob(b"hello"), await store.put_blob(b"hello")
        assert first == second == Blob("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", 5)
        assert await store.blob("0" * 64) is None
    async with stores.open(clock) as store:
        assert await store.blob(first.digest) == b"hello"
        assert len(await store.examine(lambda reader: list(reader.raw_blobs()))) == 1


@_case
async def an_append_that_refers_to_a_missing_blob_is_refused(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        before = await contents(store)
        missing = Blob("0" * 64, 1)
        refers: list[Record] = [
            _with_blob(missing),
            Admitted(at=1, input=1, key="k", blob=missing),
            Ended(at=1, run="main", status="completed", blob=missing),
        ]
        for record in refers:
            error = await refusal(BlobMissing, store.append(lease, [record], head=1))
            assert error.digest == missing.digest
        assert await contents(store) == before


@_case
async def only_old_blobs_that_nothing_refers_to_are_collected(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        lease = await _leased(store, "a")
        used, unused = await store.put_blob(b"used"), await store.put_blob(b"unused")
        await store.append(lease, [_with_blob(used)], head=1)
        clock.advance(2_000)
        young = await store.put_blob(b"young")
        assert await store.collect_blobs(unused_ms=3_000) == 0
        assert await store.collect_blobs(unused_ms=1_000) == 1
        assert await store.blob(unused.digest) is None
        assert await store.blob(used.digest) == b"used"
        assert await store.blob(young.digest) == b"young"


@_case
async def putting_a_blob_again_saves_it_from_collection(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        blob = await store.put_blob(b"x")
        clock.advance(2_000)
        await store.put_blob(b"x")
        assert await store.collect_blobs(unused_ms=1_000) == 0
        clock.advance(2_000)
        assert await store.collect_blobs(unused_ms=1_000) == 1
        assert await store.blob(blob.digest) is None


@_case
async def a_collected_blob_can_be_put_again(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        lease = await _leased(store, "a")
        blob = await store.put_blob(b"x")
        clock.advance(2_000)
        await store.collect_blobs(unused_ms=1_000)
        await refusal(BlobMissing, store.append(lease, [_with_blob(blob)], head=1))
        await store.put_blob(b"x")
        assert await store.append(lease, [_with_blob(blob)], head=1) == 2


@_case
async def an_empty_blob_is_a_blob(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        blob = await store.put_blob(b"")
        assert blob.size == 0
        assert await store.blob(blob.digest) == b""


# ---- lists -----------------------------------------------------------------------------------------------------------


async def _populate(store: Store, clock: ManualClock) -> None:
    """Twelve journals of both kinds and several agents, in all states; some with the same time of change."""
    endings: tuple[EndStatus, ...] = ("completed", "failed", "cancelled", "limit")
    for n in range(12):
        name = f"j{n:02}"
        await store.open_journal(name, "process" if n % 3 == 0 else "session", ("clerk", "cook", None)[n % 3])
        if n % 2:
            clock.advance(7)
        lease = await store.claim(name)
        at = clock.read().wall
        story: list[Record] = [Started(at=at, run="r"), _step("x", at=at), Parked(at=at, run="r", waits=("w",))]
        story += [_step("y", at=at + 1), Ended(at=at + 2, run="r", status=endings[n % 4])]
        await _append(store, lease, *story[: n % 6 or 1])


@_case
async def the_status_of_a_journal_follows_its_records(stores: Stores) -> None:
    story: list[tuple[Record, Status]] = [
        (Started(at=1, run="r"), "running"),
        (_step("a"), "running"),
        (Parked(at=2, run="r"), "waiting"),
        (Admitted(at=3, input=1, key="k"), "waiting"),
        (_step("b"), "running"),
        (Parked(at=4, run="r"), "waiting"),
        (Ended(at=5, run="r", status="completed"), "completed"),
        (Started(at=6, run="s"), "running"),
        (Ended(at=7, run="s", status="failed"), "failed"),
        (Started(at=8, run="t"), "running"),
        (Ended(at=9, run="t", status="cancelled"), "cancelled"),
        (Ended(at=10, run="u", status="limit"), "limit"),
    ]
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        await store.accept("a", 1, key="k")
        assert (await store.journal("a")).status == "idle"
        for record, status in story:
            await _append(store, lease, record)
            assert (await store.journal("a")).status == status, record


@_case
async def a_batch_of_records_leaves_the_status_of_the_last(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        await _append(store, lease, Started(at=5, run="r"), Parked(at=6, run="r"), _step("x", at=9))
        line = await store.journal("a")
        assert (line.status, line.updated, line.head) == ("running", 6, 4)


@_case
async def journals_are_listed_newest_first(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        await _populate(store, clock)
        lines = await store.journals()
        assert len(lines) == 12
        order = [(line.updated, line.id) for line in lines]
        assert order == sorted(order, reverse=True)


@_case
async def lists_can_be_narrowed_by_kind_status_and_agent(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        await _populate(store, clock)
        everything = await store.journals()
        kinds: tuple[JournalKind | None, ...] = (None, "session", "process")
        statuses: tuple[Status | None, ...] = (None, "idle", "running", "waiting", "completed", "failed", "limit")
        agents = (None, "clerk", "cook", "nobody")
        for kind, status, agent in itertools.product(kinds, statuses, agents):
            expected = [
                line
                for line in everything
                if kind in (None, line.kind) and status in (None, line.status) and agent in (None, line.agent)
            ]
            assert await store.journals(kind=kind, status=status, agent=agent) == expected, (kind, status, agent)


@_case
async def pages_of_a_list_show_every_journal_once(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        await _populate(store, clock)
        everything = await store.journals()
        for size in (1, 2, 5, 12, 50):
            seen: list[Journal] = []
            while page := await store.journals(before=seen[-1] if seen else None, limit=size):
                assert len(page) <= size
                seen.extend(page)
                assert len(seen) <= len(everything), size
            assert seen == everything, size


@_case
async def the_lists_are_a_fold_of_the_records(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        await _populate(store, clock)
        found = await contents(store)
        folded: dict[str, Journal] = {}
        for entry in await store.feed():
            assert entry.record is not None
            folded[entry.journal] = _fold(folded.get(entry.journal), entry.journal, entry.seq, entry.record)
        assert {line.id: line for line in found.journals} == folded
        assert await store.examine(audit) == []


def _fold(line: Journal | None, journal: str, seq: int, record: Record) -> Journal:
    """The line of a journal after one more record."""
    if line is None:
        assert isinstance(record, Opened)
        return Journal(journal, record.kind, record.agent, "idle", seq, record.at, record.at)
    updated = record.at if touches_lists(record) else line.updated
    status = next_status(line.status, record)
    return Journal(journal, line.kind, line.agent, status, seq, line.created, updated)


# ---- changes ---------------------------------------------------------------------------------------------------------


@_case
async def the_version_grows_with_every_commit(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease = await _leased(store, "a")
        await store.open_wait("a", "w")
        calls = {name: call for name, call in {**_ON_A_JOURNAL, **_ON_THE_STORE}.items() if name in _CHANGES}
        for name, call in calls.items():
            before = store.version
            await call(store, lease)
            assert store.version > before, name


_CHANGES: Final = ("append", "renew", "accept", "open_wait", "cancel_wait", "open_journal", "put_blob")


@_case
async def whoever_waits_for_a_change_is_woken_by_it(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        seen = store.version
        waiting = asyncio.ensure_future(store.changed(seen))
        await asyncio.sleep(0)
        await store.open_journal("a")
        assert await _promptly(waiting) > seen


@_case
async def a_change_that_came_before_the_waiting_is_not_missed(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        seen = store.version
        await store.open_journal("a")
        assert await _promptly(store.changed(seen)) > seen


async def _quiet(store: Store) -> int:
    """The version when nothing is left to notice; the opening of the store itself may come late."""
    seen = store.version
    for _ in range(100):
        before, seen = seen, await store.changed(seen, 0.05)
        if seen == before:
            return seen
    raise AssertionError("the version grows although nothing is written")


@_case
async def waiting_for_a_change_ends_when_the_time_is_up(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a")
        seen = await _quiet(store)
        assert await _promptly(store.changed(seen, 0.01)) == seen


@_case
async def a_commit_of_another_opening_is_noticed(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        for n in range(3):
            seen = two.version
            await one.open_journal(f"j{n}")
            assert await _promptly(two.changed(seen)) > seen


@_case
async def an_observer_in_another_opening_misses_nothing(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as writer, stores.open(clock) as observer:
        lease = await _leased(writer, "a")

        async def observe() -> list[int]:
            seen: list[int] = []
            while len(seen) < 21:
                version = observer.version
                news = await observer.feed(after=len(seen))
                seen.extend(entry.pos for entry in news)
                if not news:
                    await observer.changed(version)
            return seen

        observing = asyncio.ensure_future(observe())
        for n in range(20):
            await writer.append(lease, [_step(str(n))], head=n + 1)
            await asyncio.sleep(0)
        try:
            assert await _promptly(observing) == list(range(1, 22))
        finally:
            observing.cancel()


@_case
async def closing_wakes_those_who_wait_for_changes(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a")
        waiting = asyncio.ensure_future(store.changed(await _quiet(store)))
        await asyncio.sleep(0)
    try:
        await _promptly(waiting)
    finally:
        waiting.cancel()


# ---- quarantine ------------------------------------------------------------------------------------------------------


@_case
async def a_quarantined_journal_is_not_advanced_and_the_others_go_on(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        lease, other = await _leased(store, "a"), await _leased(store, "b")
        await store.quarantine("a", "a test")
        before = await contents(store)
        for attempt in (
            store.append(lease, [_step("x")], head=1),
            store.claim("a"),
            store.accept("a", 1, key="k"),
        ):
            error = await refusal(JournalQuarantined, attempt)
            assert (error.journal, error.reason) == ("a", "a test")
        assert await contents(store) == before
        assert await store.append(other, [_step("x")], head=1) == 2


@_case
async def a_quarantined_journal_still_answers_inputs_it_has_accepted(stores: Stores) -> None:
    async with stores.open(_clock()) as store:
        await store.open_journal("a")
        await store.accept("a", 1, key="k")
        await store.quarantine("a", "a test")
        assert not (await store.accept("a", 1, key="k")).fresh


@_case
async def the_first_reason_of_a_quarantine_stays_also_over_reopening(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as store:
        await store.open_journal("a")
        await store.quarantine("a", "first")
        await store.quarantine("a", "second")
    async with stores.open(clock) as store:
        assert (await store.journal("a")).quarantine == "first"
        assert [line.quarantine for line in await store.journals()] == ["first"]
        await refusal(JournalQuarantined, store.claim("a"))


# ---- the store itself ------------------------------------------------------------------------------------------------


@_case
async def a_store_keeps_its_identity_and_every_opening_has_its_own(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        assert one.id == two.id
        assert one.owner.instance != two.owner.instance
        identity = one.id
    async with stores.open(clock) as again:
        assert again.id == identity


@_case
async def two_openings_see_what_the_other_has_committed(stores: Stores) -> None:
    clock = _clock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        lease = await _leased(one, "a")
        await one.append(lease, [_step("x")], head=1)
        await two.accept("a", 1, key="k")
        await two.open_wait("a", "w")
        await one.append(lease, [Admitted(at=1, input=1, key="k")], head=2)
        assert await contents(one) == await contents(two)
        assert await two.pending("a") == []
