"""Laws of a store that hold above its backend: arguments that `Store` refuses itself, and findings of the audit.

They run like the cases of `holdfast.testing.conformance`. A backend can't break them, so the suite does not ship them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast import errors
from holdfast.clock import boot_id
from holdfast.records import Ended, Handed, Opened, Resumed, Started
from holdfast.store import AdmissionWindow, Notify, Spend
from holdfast.store.audit import audit
from holdfast.testing import ManualClock
from holdfast.testing.conformance.suite import append_here, leased, refusal, step, unchanged

if TYPE_CHECKING:
    from holdfast.records import Record
    from holdfast.store import Lease, Store
    from holdfast.testing.conformance.suite import ClerkLease, StoreA, Stores


HANDED = Handed(at=7, run="main", key="main/x", agent="cook", by="clerk")


async def an_empty_append_is_refused(store: Store, lease: Lease) -> None:
    await refusal(errors.UsageError, store.append(lease, [], head=1))
    assert (await store.journal("a")).head == 1


async def a_second_opened_record_is_refused(store: Store, lease: Lease) -> None:
    await refusal(errors.InvalidValue, store.append(lease, [Opened(at=1, kind="session", format=1)], head=1))
    assert (await store.journal("a")).head == 1


async def a_text_is_no_list_of_journals(store: StoreA) -> None:
    await refusal(errors.InvalidArgument, store.heads("a"), store.wakes("a"))


async def a_handoff_is_the_last_record_of_its_commit(store: Store, lease: ClerkLease) -> None:
    await refusal(errors.InvalidValue, store.append(lease, [step("x"), HANDED, step("y")], head=1))
    await refusal(errors.InvalidId, store.append(lease, [step("x"), msgspec.structs.replace(HANDED, agent="")], head=1))
    assert (await store.journal("a")).head == 1


async def a_lease_is_surely_held_until_its_term_is_over_and_again_when_it_is_renewed(
    store: Store, lease: Lease, clock: ManualClock
) -> None:
    assert store.surely_holds(lease)
    clock.advance(1_000)
    assert not store.surely_holds(lease)
    await store.renew(lease)
    assert store.surely_holds(lease)
    await store.release(lease)
    assert not store.surely_holds(lease)


async def the_owner_of_a_process_that_is_gone_is_recognized(stores: Stores) -> None:
    async with stores.open(ManualClock(boot=boot_id())) as store:
        await append_here(store, await leased(store, "a"), Started(at=1, run="r"))
        (found,) = await store.work()
        assert found.holder is not None
        assert not store.owner_gone(found.holder)
        if found.holder.started:  # else this system does not tell when a process began, and nothing can be proved
            before = msgspec.structs.replace(found.holder, started=found.holder.started + 1)
            assert store.owner_gone(before)


async def a_journal_is_not_opened_when_its_input_is_refused(store: Store) -> None:
    too_large = "x" * store.limits.input_bytes
    await refusal(errors.PayloadTooLarge, store.accept_into("a", "session", None, too_large, key="k"))
    assert await store.heads(["a"]) == {}


async def an_invalid_admission_is_refused(store: StoreA) -> None:
    for bad in (AdmissionWindow(per_window=0), AdmissionWindow(window_ms=0), AdmissionWindow(duplicate_window_ms=-1)):
        await refusal(errors.InvalidNumber, store.accept("a", 1, admission=bad))
    await refusal(errors.InvalidId, store.accept("a", 1, admission=AdmissionWindow(duplicates="drop")))  # pyright: ignore[reportArgumentType]
    await refusal(errors.InvalidArgument, store.accept("a", 1, admission=2))  # pyright: ignore[reportArgumentType]
    assert await store.pending("a") == []


async def a_refusal_for_an_invalid_journal_id_is_not_kept(store: Store) -> None:
    async with unchanged(store):
        noted = store.note_refusal("", agent="a", key="k", error="RateExceeded", message="too much")
        await refusal(errors.InvalidId, noted)


async def a_resolution_over_the_limit_is_refused(store: StoreA) -> None:
    await store.open_wait("a", "w")
    token = store.wait_token("a", "w")
    await refusal(errors.PayloadTooLarge, store.resolve(token, "x" * store.limits.input_bytes))
    assert (await store.resolve(token, 1)).won


async def the_same_answer_named_twice_is_refused(store: Store, lease: Lease) -> None:
    await store.open_wait("a", "w", kind="approval", body=b"w")
    await store.answer_wait("a", "w", "yes")
    for twice in (["w", "w"], "w"):
        await refusal(errors.InvalidArgument, store.append(lease, [step("a")], head=1, consume=twice))
    assert (await store.journal("a")).head == 1


async def a_notification_over_its_limits_is_refused(store: Store, lease: Lease) -> None:
    async with unchanged(store):
        large = "é" * (store.limits.notification_bytes // 2) + "x"
        await refusal(errors.PayloadTooLarge, store.notify("a", kind="task", title="x", body=large))
        appended = store.append(lease, [step("x")], head=1, notify=[Notify("a", "task", "x", large)])
        await refusal(errors.PayloadTooLarge, appended)
        await refusal(errors.InvalidNumber, store.notify("a", kind="task", title="x", due=10, expires=10))


async def a_rule_that_is_no_json_or_too_long_is_refused(store: Store) -> None:
    async with unchanged(store):
        for bad in ("", "{", "allow", "NaN"):
            await refusal(errors.InvalidValue, store.add_rule("clerk", bad, by="ops"))
        long = '"' + "x" * store.limits.rule_bytes + '"'
        await refusal(errors.PayloadTooLarge, store.add_rule("clerk", long, by="ops"))
        for agent, by in (("", "ops"), ("clerk", ""), ("clerk", "a\nb")):
            await refusal(errors.InvalidId, store.add_rule(agent, "{}", by=by))


async def an_input_that_is_refused_counts_nothing(store: Store) -> None:
    too_large = "x" * (store.limits.input_bytes + 1)
    await refusal(errors.PayloadTooLarge, store.accept_into("a", "process", "clerk", too_large, spend=Spend(tasks=1)))
    await refusal(errors.InvalidArgument, store.accept_into("a", "process", "clerk", 1, spend=1))  # pyright: ignore[reportArgumentType]
    assert await store.spent("clerk") == Spend()


async def an_invalid_spend_is_refused(store: Store, lease: ClerkLease) -> None:
    async with unchanged(store):
        for bad in (Spend(tasks=-1), Spend(cost_micros=2**41), {-1: Spend(tasks=1)}):
            await refusal(errors.InvalidNumber, store.append(lease, [step("x")], head=1, spend=bad))
        await refusal(errors.InvalidNumber, store.spent("clerk", -1))
        await refusal(errors.InvalidArgument, store.append(lease, [step("x")], head=1, spend="much"))  # pyright: ignore[reportArgumentType]


async def a_value_over_the_limit_is_refused(store: Store) -> None:
    await refusal(errors.PayloadTooLarge, store.memory_put("s", "k", "é" * (store.limits.memory_bytes // 2) + "x"))
    assert await store.memory_list("s") == []


async def an_attachment_is_bytes_that_are_not_empty_and_not_too_many(store: Store) -> None:
    for bad in (b"", "text"):
        await refusal(errors.InvalidValue, store.put_attachment(bad, "text/plain"))  # pyright: ignore[reportArgumentType]
    most = min(store.limits.attachment_bytes, store.limits.blob_bytes)
    if most <= 1_000_000:  # else it would only take time
        await refusal(errors.PayloadTooLarge, store.put_attachment(bytes(most + 1), "text/plain"))


async def _broken_run(stores: Stores, *records: Record) -> None:
    """Assert that the audit finds the end of a run wrong."""
    async with stores.open(ManualClock()) as store:
        await append_here(store, await leased(store, "a"), *records)
        assert [violation.rule for violation in await store.examine(audit)] == ["terminal"]


async def the_audit_finds_a_started_run_that_ended_as_unstarted(stores: Stores) -> None:
    await _broken_run(stores, Started(at=1, run="r"), Ended(at=2, run="r", status="cancelled", unstarted=True))


async def the_audit_finds_an_ended_run_that_was_resumed(stores: Stores) -> None:
    ended = Ended(at=2, run="r", status="cancelled", unstarted=True)
    await _broken_run(stores, ended, Resumed(at=3, run="r", by="pid 2"))
