"""Folds: a cache of the state of a journal, which is never ahead of the journal, and never another's."""

# ruff: noqa: D103  the name of a case is its sentence
from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import Fenced, InvalidNumber, PayloadTooLarge
from holdfast.testing.conformance.suite import Reopen, append_here, leased, refusal, step

if TYPE_CHECKING:
    from holdfast.store import Lease, Store
    from holdfast.store.folds import Fold
    from holdfast.testing.clock import ManualClock


async def _grown(store: Store, records: int) -> Lease:
    """The lease of a journal "a" with so many records."""
    lease = await leased(store, "a")
    await append_here(store, lease, *[step(f"x{n}") for n in range(1, records)])
    return lease


async def _folds(store: Store, *seqs: int) -> list[tuple[int, bytes] | None]:
    """The newest fold up to each of these records."""

    def told(fold: Fold | None) -> tuple[int, bytes] | None:
        return None if fold is None else (fold.seq, fold.body)

    return [told(await store.fold("a", upto=seq)) for seq in seqs]


async def a_saved_fold_is_found_again_after_its_record(store: Store, reopen: Reopen) -> None:
    lease = await _grown(store, 9)
    assert await store.fold("a") is None
    await store.save_fold(lease, 5, b"five")
    store = await reopen()
    assert await _folds(store, 4, 5, 9) == [None, (5, b"five"), (5, b"five")]
    assert await store.fold("a") == await store.fold("a", upto=9)


async def a_journal_is_read_with_its_newest_fold_and_the_records_after_it(store: Store) -> None:
    lease = await _grown(store, 9)
    await store.save_fold(lease, 5, b"five")
    page = await store.read_with_inbox("a")
    assert page.fold == await store.fold("a") is not None
    assert page.entries == await store.read("a", after=5)
    page = await store.read_with_inbox("a", after=2)
    assert (page.fold, page.entries) == (None, await store.read("a", after=2))


async def the_fold_before_any_record_is_found(store: Store) -> None:
    lease = await _grown(store, 40)
    for seq in range(1, 40, 4):
        await store.save_fold(lease, seq, b"%d" % seq)
    found = [fold[0] for fold in await _folds(store, *range(1, 41)) if fold is not None]
    assert found == [seq for first in range(1, 40, 4) for seq in [first] * 4]


async def a_fold_replaces_those_from_its_record_on(store: Store) -> None:
    lease = await _grown(store, 9)
    for seq, body in ((3, b"three"), (7, b"seven"), (5, b"five"), (5, b"again")):
        await store.save_fold(lease, seq, body)
    assert await _folds(store, 4, 5, 9) == [(3, b"three"), (5, b"again"), (5, b"again")]


async def a_fold_needs_a_lease_that_is_still_its_own(store: Store, clock: ManualClock) -> None:
    lease = await _grown(store, 3)
    clock.advance(20_000)
    await store.claim("a")
    await refusal(Fenced, store.save_fold(lease, 2, b"late"))
    assert await store.fold("a") is None


async def a_fold_is_of_a_record_that_is_there_and_within_its_limit(store: Store) -> None:
    lease = await _grown(store, 3)
    await refusal(InvalidNumber, store.save_fold(lease, 4, b"ahead"), store.save_fold(lease, 0, b"before"))
    await refusal(PayloadTooLarge, store.save_fold(lease, 2, bytes(store.limits.fold_bytes + 1)))
    assert await store.fold("a") is None


async def a_fold_with_a_secret_is_not_saved(store: Store) -> None:
    lease = await _grown(store, 3)
    store.redactor.register("key", "correct-horse-battery")
    await store.save_fold(lease, 2, b'{"said": "correct-horse-battery"}')
    assert await store.fold("a") is None
