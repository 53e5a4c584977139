"""Waits: one-shot, first writer wins."""

# ruff: noqa: D103  the name of a case is its sentence
from __future__ import annotations

import asyncio
import hashlib
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from holdfast import errors
from holdfast.records import Admitted, Ended, Started
from holdfast.testing.conformance.suite import append_here, leased, open_each_wait, read_pages, refusal, step, unchanged

if TYPE_CHECKING:
    from holdfast.store import Lease, Settlement, Store, Wait
    from holdfast.testing.clock import ManualClock
    from holdfast.testing.conformance.suite import Now, Reopen, RunLease, StoreA


SETTLED: Final = ("resolved", "expired", "cancelled", "revoked")


async def _settled(store: Store, clock: ManualClock, prefix: str = "") -> None:
    """Open and settle a wait of the journal `a` in each way; each is named after its state."""
    for state in SETTLED:
        await store.open_wait("a", prefix + state, deadline=clock.read().wall if state == "expired" else None)
    await store.resolve(store.wait_token("a", f"{prefix}resolved"), 1)
    await store.expire_wait("a", f"{prefix}expired")
    await store.cancel_wait("a", f"{prefix}cancelled")
    await store.revoke_waits("a", f"{prefix}revoked")


async def a_wait_is_open_until_it_is_resolved(store: StoreA) -> None:
    assert await store.wait("a", "w") is None
    opened = await store.open_wait("a", "w", deadline=None)
    assert (opened.state, opened.opened, opened.payload) == ("open", True, None)
    settled = await store.resolve(store.wait_token("a", "w"), {"ok": True})
    assert settled.won
    assert (settled.wait.state, settled.wait.payload) == ("resolved", b'{"ok":true}')
    assert await store.wait("a", "w") == settled.wait


async def the_first_resolution_wins_and_the_second_learns_the_first(store: StoreA) -> None:
    await store.open_wait("a", "w")
    first, second = [await store.resolve(store.wait_token("a", "w"), name) for name in ("first", "second")]
    assert (first.won, second.won) == (True, False)
    assert second.wait == first.wait == await store.wait("a", "w")


async def of_many_resolutions_at_once_one_wins_and_all_learn_the_same(one: StoreA, two: Store) -> None:
    await one.open_wait("a", "w")
    token = one.wait_token("a", "w")
    answers = await asyncio.gather(*(store.resolve(token, n) for n, store in enumerate((one, two) * 10)))
    assert (sum(answer.won for answer in answers), len({answer.wait.payload for answer in answers})) == (1, 1)


async def a_resolution_that_comes_first_is_buffered_until_the_wait_is_opened(store: StoreA, reopen: Reopen) -> None:
    token = store.wait_token("a", "w")
    early = await store.resolve(token, "early")
    assert (early.won, early.wait.opened) == (True, False)
    assert not (await store.resolve(token, "later")).won
    store = await reopen()
    opened = await store.open_wait("a", "w", deadline=store.clock.read().wall - 1)
    assert (opened.state, opened.payload, opened.opened) == ("resolved", b'"early"', True)
    assert await store.due() == []


async def a_resolution_after_the_deadline_is_too_late(store: StoreA, clock: ManualClock) -> None:
    for name in ("v", "w"):
        await store.open_wait("a", name, deadline=clock.read().wall + 1_000)
    clock.advance(999)
    assert (await store.resolve(store.wait_token("a", "v"), 1)).won
    clock.advance(1)
    late = await store.resolve(store.wait_token("a", "w"), "late")
    assert (late.won, late.wait.state, late.wait.payload) == (False, "expired", None)
    assert await store.wait("a", "w") == late.wait


async def expiring_a_wait_that_is_not_due_does_nothing(store: StoreA, clock: ManualClock) -> None:
    await store.open_wait("a", "never")
    await store.open_wait("a", "later", deadline=clock.read().wall + 1)
    async with unchanged(store):
        for name in ("never", "later"):
            answer = await store.expire_wait("a", name)
            assert (answer.won, answer.wait.state) == (False, "open"), name
    clock.advance(1)
    answer = await store.expire_wait("a", "later")
    assert (answer.won, answer.wait.state) == (True, "expired")


async def a_cancelled_wait_cannot_be_resolved(store: StoreA) -> None:
    await store.open_wait("a", "w")
    assert (await store.cancel_wait("a", "w")).won
    answer = await store.resolve(store.wait_token("a", "w"), 1)
    assert (answer.won, answer.wait.state, answer.wait.payload) == (False, "cancelled", None)
    assert not (await store.cancel_wait("a", "w")).won
    assert (await store.open_wait("a", "w")).state == "cancelled"


async def only_a_resolution_by_token_may_come_before_its_wait(store: StoreA) -> None:
    about_a_question = store.resolve(store.wait_token("a", "w"), "yes", expect_digest=DIGEST)
    attempts = (store.expire_wait("a", "w"), store.cancel_wait("a", "w"), store.answer_wait("a", "w", "yes"))
    await refusal(errors.WaitUnknown, *attempts, about_a_question)
    assert await store.waits("a") == []


async def the_first_deadline_of_a_wait_stays(store: StoreA, clock: ManualClock) -> None:
    first = clock.read().wall + 1_000
    await store.open_wait("a", "w", deadline=first)
    for other in (None, first - 500, first + 500):
        assert (await store.open_wait("a", "w", deadline=other)).deadline == first
    assert await store.next_due() == first


async def one_wait_can_be_revoked_and_the_others_stay(store: StoreA) -> None:
    await open_each_wait(store, "v", "w")
    assert await store.revoke_waits("a", "w") == 1
    resolution = store.resolve(store.wait_token("a", "w"), 1)
    await refusal(errors.WaitUnknown, resolution, store.open_wait("a", "w"), store.cancel_wait("a", "w"))
    assert (await store.resolve(store.wait_token("a", "v"), 1)).won


async def all_waits_of_a_journal_can_be_revoked_also_those_to_come(store: StoreA, reopen: Reopen) -> None:
    await store.open_journal("b")
    await store.open_wait("a", "v", deadline=store.clock.read().wall + 1)
    await store.open_wait("a", "w")
    await store.open_wait("b", "w")
    assert await store.revoke_waits("a") == 2
    store = await reopen()
    for name in ("v", "w", "new"):
        resolution = store.resolve(store.wait_token("a", name), 1)
        await refusal(errors.WaitUnknown, resolution, store.open_wait("a", name))
    assert await store.next_due() is None
    assert (await store.resolve(store.wait_token("b", "w"), 1)).won


async def waits_and_their_tokens_survive_reopening(store: StoreA, clock: ManualClock, reopen: Reopen) -> None:
    await store.open_wait("a", "w", deadline=clock.read().wall + 1_000)
    token = store.wait_token("a", "w")
    store = await reopen()
    assert store.wait_token("a", "w") == token
    assert (await store.resolve(token, 1)).won
    store = await reopen()
    assert not (await store.resolve(token, 2)).won
    assert [(found.name, found.payload) for found in await store.waits("a")] == [("w", b"1")]


async def waits_are_listed_by_name(store: StoreA) -> None:
    await open_each_wait(store, "b", "é", "a", "Z", "😀", "ab")
    assert [found.name for found in await store.waits("a")] == ["Z", "a", "ab", "b", "é", "😀"]
    assert [found.name for found in await store.waits("a", limit=2)] == ["Z", "a"]


async def due_waits_come_longest_overdue_first(store: StoreA, clock: ManualClock, now: Now) -> None:
    await store.open_journal("b")
    assert await store.next_due() is None
    for journal, name, delay in (("a", "x", 30), ("b", "x", 10), ("a", "y", 20), ("b", "y", 40)):
        await store.open_wait(journal, name, deadline=now + delay)
    await store.open_wait("a", "never")
    assert await store.due() == []
    assert await store.next_due() == now + 10
    clock.advance(30)
    assert _places(await store.due()) == [("b", "x"), ("a", "y"), ("a", "x")]
    assert _places(await store.due(limit=1)) == [("b", "x")]
    await store.expire_wait("b", "x")
    await store.cancel_wait("a", "y")
    assert _places(await store.due()) == [("a", "x")]
    await store.expire_wait("a", "x")
    assert await store.next_due() == now + 40


async def all_bad_tokens_get_the_same_refusal(store: StoreA) -> None:
    await store.open_journal("closed")
    await open_each_wait(store, "w", "revoked")
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
    for payload in (1, float("nan"), "x" * (store.limits.input_bytes + 1)):
        told: dict[str, str] = {}  # everything that the bearer of a token can see of the refusal
        for name, token in bad.items():
            error = await refusal(errors.HoldfastError, store.resolve(token, payload))
            told[name] = f"{type(error).__name__} {error} {error.args} {vars(error)} {error.__cause__}"
        assert len(set(told.values())) == 1, told


async def _states(store: Store, journal: str = "a") -> dict[str, str]:
    return {found.name: found.state for found in await store.waits(journal)}


def _ended(run: str = "t1", *, unstarted: bool = False) -> Ended:
    return Ended(at=2, run=run, status="cancelled", unstarted=unstarted)


async def open_waits_of_a_run_are_cancelled_by_its_end(store: Store, lease: RunLease, reopen: Reopen) -> None:
    await store.open_wait("a", "t1/deadline", deadline=store.clock.read().wall + 1_000)
    await store.open_wait("a", "t1/2.tools/1.ask/go")
    await append_here(store, lease, step("x"), _ended())
    assert await store.next_due() is None
    states = await _states(store)
    assert states == {"t1/deadline": "cancelled", "t1/2.tools/1.ask/go": "cancelled"}
    store = await reopen()
    assert await _states(store) == states
    answer = await store.resolve(store.wait_token("a", "t1/2.tools/1.ask/go"), 1)
    assert (answer.won, answer.wait.state, answer.wait.payload) == (False, "cancelled", None)


async def waits_of_a_run_that_were_settled_stay_as_they_are(store: Store, lease: RunLease, clock: ManualClock) -> None:
    await _settled(store, clock, "t1/")
    await store.resolve(store.wait_token("a", "t1/early"), "before it was opened")
    before = await store.waits("a")
    await append_here(store, lease, _ended())
    assert await store.waits("a") == before


async def waits_of_other_runs_and_journals_and_of_no_run_stay_open(store: Store, lease: RunLease) -> None:
    await append_here(store, await leased(store, "b"), Started(at=1, run="t1"))
    await store.open_wait("b", "t1/go")
    names = ("t", "t1", "t10/go", "t1.x/go", "t2/go", "x/t1/go", "T1/go", "t1%2Fgo", "t1~/go", "t10")
    await open_each_wait(store, *names)
    await append_here(store, lease, _ended())
    assert await _states(store) == dict.fromkeys(names, "open")
    assert await _states(store, "b") == {"t1/go": "open"}


async def waits_of_a_run_that_ends_before_it_begins_are_cancelled(store: Store, lease: RunLease) -> None:
    await store.accept("a", 1, key="k")
    await open_each_wait(store, "t1/deadline", "t2/deadline")
    await append_here(store, lease, Admitted(at=1, input=1, key="k", run="t2"), _ended("t2", unstarted=True))
    assert await _states(store) == {"t1/deadline": "open", "t2/deadline": "cancelled"}


async def an_end_that_is_refused_ends_no_wait(store: Store, lease: RunLease) -> None:
    opened = await store.open_wait("a", "t1/go")
    await refusal(errors.HeadConflict, store.append(lease, [_ended()], head=7))
    await store.release(lease)
    await refusal(errors.Fenced, store.append(lease, [_ended()], head=2))
    assert (opened.state, await store.waits("a")) == ("open", [opened])


async def waits_are_listed_by_their_state(store: StoreA, clock: ManualClock) -> None:
    await open_each_wait(store, "z open", "open")
    await _settled(store, clock)
    for state in SETTLED:
        assert [found.name for found in await store.waits("a", state=state)] == [state]
    assert [found.name for found in await store.waits("a", state="open")] == ["open", "z open"]
    assert [found.name for found in await store.waits("a", 1, state="open")] == ["open"]


BODY = b'{"tool":"refund","args":{"cents":900}}'
DIGEST = hashlib.sha256(BODY).hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()
RULE = '{"allow":"refund"}'


async def _ask(store: Store, journal: str = "a", name: str = "w", deadline: int | None = None) -> Wait:
    await store.open_journal(journal)
    return await store.open_wait(journal, name, kind="approval", body=BODY, deadline=deadline)


def _places(found: list[Wait]) -> list[tuple[str, str]]:
    return [(wait.journal, wait.name) for wait in found]


async def a_wait_keeps_its_question(store: Store, now: Now, reopen: Reopen) -> None:
    opened = await _ask(store)
    assert (opened.kind, opened.body, opened.digest, opened.at) == ("approval", BODY, DIGEST, now)
    store = await reopen()
    assert await store.wait("a", "w") == opened
    assert await store.waits("a") == [opened]


async def the_first_question_of_a_wait_stays(store: Store, clock: ManualClock) -> None:
    opened = await _ask(store)
    clock.advance(1)
    assert await store.open_wait("a", "w", kind="other", body=b"other") == opened
    assert await store.open_wait("a", "w") == opened
    await store.answer_wait("a", "w", 1)
    again = await store.open_wait("a", "w", body=b"other")
    assert (again.state, again.body) == ("resolved", BODY)


async def a_settled_wait_keeps_its_question(store: Store, lease: RunLease, clock: ManualClock) -> None:
    for name in ("resolved", "expired", "cancelled", "t1/ended"):
        await _ask(store, name=name, deadline=clock.read().wall + 1 if name == "expired" else None)
    await store.answer_wait("a", "resolved", 1)
    await store.cancel_wait("a", "cancelled")
    clock.advance(1)
    await store.expire_wait("a", "expired")
    await append_here(store, lease, _ended())
    found = await store.waits("a")
    states = {"cancelled": "cancelled", "expired": "expired", "resolved": "resolved", "t1/ended": "cancelled"}
    assert [(wait.name, wait.state) for wait in found] == list(states.items())
    assert {(wait.kind, wait.body) for wait in found} == {("approval", BODY)}


async def a_revoked_wait_forgets_its_question_and_its_resolution(store: Store) -> None:
    await _ask(store, name="asked")
    await store.resolve(store.wait_token("a", "early"), "a secret")
    for name in ("asked", "early"):
        await store.revoke_waits("a", name)
    found = [(wait.name, wait.state, wait.body, wait.payload) for wait in await store.waits("a")]
    assert found == [("asked", "revoked", None, None), ("early", "revoked", None, None)]


async def a_question_over_the_limit_is_refused(store: StoreA) -> None:
    limit = store.limits.wait_bytes
    await refusal(errors.PayloadTooLarge, store.open_wait("a", "w", body=b"x" * (limit + 1)))
    await refusal(errors.InvalidArgument, store.open_wait("a", "w", body="text"))  # pyright: ignore[reportArgumentType]
    assert await store.waits("a") == []
    assert (await store.open_wait("a", "w", body=b"x" * limit)).body == b"x" * limit


async def waits_are_read_page_by_page(store: StoreA) -> None:
    large = b"x" * store.limits.wait_bytes
    for n in range(20):
        await store.open_wait("a", f"w{n:02}", body=large)

    found = await read_pages(partial(store.waits, "a"), store.limits.page, attrgetter("name"))
    assert [wait.name for wait in found] == [f"w{n:02}" for n in range(20)]


async def open_waits_of_a_kind_are_listed_over_all_journals_newest_first(store: Store, clock: ManualClock) -> None:
    for journal, name in (("b", "1"), ("a", "2"), ("b", "3")):
        await _ask(store, journal, name)
        clock.advance(1)
    await store.open_wait("a", "other", kind="question")
    await store.open_wait("a", "none")
    for journal in ("b", "a"):  # at the same moment, in the order in which the journals were made
        await _ask(store, journal, "4")
    expected = [("a", "4"), ("b", "4"), ("b", "3"), ("a", "2"), ("b", "1")]
    assert _places(await store.open_waits("approval")) == expected
    assert _places(await read_pages(partial(store.open_waits, "approval"), 2)) == expected
    assert await store.open_waits("nothing") == []


async def only_waits_that_can_be_answered_are_listed(store: Store, clock: ManualClock) -> None:
    for name in ("resolved", "cancelled", "revoked", "open"):
        await _ask(store, name=name)
    await _ask(store, name="late", deadline=clock.read().wall + 10)
    await _ask(store, "bad")
    await store.answer_wait("a", "resolved", 1)
    await store.cancel_wait("a", "cancelled")
    await store.revoke_waits("a", "revoked")
    await store.quarantine("bad", "a test")
    assert _places(await store.open_waits("approval")) == [("a", "open"), ("a", "late")]
    clock.advance(10)
    assert _places(await store.open_waits("approval")) == [("a", "open")]


async def an_answer_with_the_digest_of_the_question_settles_the_wait(store: Store) -> None:
    for name in ("v", "w"):
        await _ask(store, name=name)
    by_token = await store.resolve(store.wait_token("a", "v"), "yes", expect_digest=DIGEST)
    by_name = await store.answer_wait("a", "w", "yes", expect_digest=DIGEST)
    assert by_token.won is by_name.won is True
    assert (by_name.wait.state, by_name.wait.payload) == ("resolved", b'"yes"')


async def an_answer_with_another_digest_settles_nothing(store: Store) -> None:
    await _ask(store)
    await store.open_wait("a", "plain")
    async with unchanged(store):
        by_name = store.answer_wait("a", "w", "yes", expect_digest=OTHER)
        by_token = store.resolve(store.wait_token("a", "w"), "yes", expect_digest=OTHER)
        mismatch = {"journal": "a", "name": "w", "expected": OTHER, "actual": DIGEST}
        await refusal(errors.ApprovalMismatch, by_name, by_token, **mismatch)
        plain = store.answer_wait("a", "plain", "yes", expect_digest=DIGEST)
        await refusal(errors.ApprovalMismatch, plain, actual=None)


async def a_late_answer_with_another_digest_is_a_mismatch(store: Store) -> None:
    await _ask(store)
    await store.answer_wait("a", "w", "no", expect_digest=DIGEST)
    await refusal(errors.ApprovalMismatch, store.answer_wait("a", "w", "yes", expect_digest=OTHER))
    second = await store.answer_wait("a", "w", "yes", expect_digest=DIGEST)
    assert (second.won, second.wait.payload) == (False, b'"no"')


async def a_resolution_that_came_before_the_question_does_not_answer_it(store: StoreA) -> None:
    await store.resolve(store.wait_token("a", "w"), "yes to whatever")
    asked = await _ask(store)
    assert (asked.state, asked.payload, asked.opened) == ("open", None, True)
    assert _places(await store.open_waits("approval")) == [("a", "w")]


async def an_answer_after_the_deadline_settles_nothing_and_stores_no_rule(store: Store, clock: ManualClock) -> None:
    await _ask(store, deadline=clock.read().wall + 10)
    clock.advance(10)
    late = await store.answer_wait("a", "w", "yes", expect_digest=DIGEST, rule=store.new_rule("clerk", RULE, by="ops"))
    assert (late.won, late.wait.state, late.wait.payload, late.rule) == (False, "expired", None, None)
    assert await store.rules("clerk") == []


async def an_answer_may_store_a_rule_in_the_same_commit(store: Store, reopen: Reopen) -> None:
    await _ask(store)
    settled = await store.answer_wait("a", "w", "yes", rule=store.new_rule("clerk", RULE, by="ops"))
    assert settled.won
    store = await reopen()
    (rule,) = await store.rules("clerk")
    assert (rule, rule.body, rule.by) == (settled.rule, RULE, "ops")
    await _ask(store, name="v")
    again = await store.answer_wait("a", "v", "yes", rule=store.new_rule("clerk", RULE, by="boss"))
    assert (again.won, again.rule) == (True, rule)


async def of_many_answers_at_once_only_the_first_stores_its_rule(one: Store, two: Store) -> None:
    await _ask(one)
    rules = [(store, n, store.new_rule("clerk", f"{n}", by="ops")) for n, store in enumerate((one, two) * 4)]
    answers = await asyncio.gather(*(store.answer_wait("a", "w", n, rule=rule) for store, n, rule in rules))
    (winner,) = (answer for answer in answers if answer.won)
    assert [winner.rule] == await one.rules("clerk")
    assert winner.wait.payload == winner.rule.body.encode() if winner.rule else False


async def an_answer_whose_rule_has_no_room_settles_nothing(store: Store) -> None:
    await _ask(store)
    await asyncio.gather(*(store.add_rule("clerk", f"{n}", by="ops") for n in range(store.limits.rules)))
    async with unchanged(store):
        more = store.new_rule("clerk", RULE, by="ops")
        await refusal(errors.RulesFull, store.answer_wait("a", "w", "yes", rule=more))


async def _approved(store: Store, *names: str) -> Lease:
    lease = await leased(store, "a")
    for name in names:
        await store.open_wait("a", name, kind="approval", body=name.encode())
        await store.answer_wait("a", name, "yes")
    return lease


async def an_answer_is_used_by_the_record_that_names_it(store: Store, reopen: Reopen) -> None:
    lease = await _approved(store, "v", "w", "x")
    await store.append(lease, [step("a"), step("b")], head=1, consume=["v", "w"])
    store = await reopen()
    found = await store.waits("a")
    assert [(wait.name, wait.consumed) for wait in found] == [("v", 2), ("w", 2), ("x", 0)]
    assert {(wait.state, wait.payload) for wait in found} == {("resolved", b'"yes"')}


async def an_answer_is_used_once(store: Store) -> None:
    lease = await _approved(store, "v", "w")
    await store.append(lease, [step("a")], head=1, consume=["w"])
    async with unchanged(store):
        again = store.append(lease, [step("b")], head=2, consume=["v", "w"])
        await refusal(errors.WaitConsumed, again, journal="a", name="w", state="consumed")
    assert (await store.open_wait("a", "w", body=b"other")).consumed == 2
    assert not (await store.answer_wait("a", "w", "again")).won
    await refusal(errors.WaitConsumed, store.append(lease, [step("b")], head=2, consume=["w"]))


async def of_two_appends_at_once_one_uses_the_answer(store: Store) -> None:
    lease = await _approved(store, "w")
    first, again, next_one = [store.append(lease, [step("a")], head=head, consume=["w"]) for head in (1, 1, 2)]
    await refusal(errors.HeadConflict, again)
    await refusal(errors.WaitConsumed, next_one)
    assert await first == 2


async def only_a_resolution_in_the_same_journal_can_be_used(store: Store, lease: Lease, clock: ManualClock) -> None:
    await store.open_wait("a", "open")
    await _settled(store, clock)
    for name in ("open", "cancelled", "revoked", "expired", "unknown"):
        attempt = store.append(lease, [step("x")], head=1, consume=[name])
        await refusal(errors.WaitConsumed, attempt, name=name, state=name)
    assert (await store.journal("a")).head == 1
    elsewhere = store.append(await leased(store, "b"), [step("x")], head=1, consume=["resolved"])
    await refusal(errors.WaitConsumed, elsewhere, state="unknown")


async def an_append_that_is_refused_uses_nothing(store: Store) -> None:
    lease = await _approved(store, "w")
    await refusal(errors.HeadConflict, store.append(lease, [step("x")], head=7, consume=["w"]))
    await store.release(lease)
    await refusal(errors.Fenced, store.append(lease, [step("x")], head=1, consume=["w"]))
    lease = await store.claim("a")
    assert await store.append(lease, [step("x")], head=1, consume=["w"]) == 2


async def _signal(store: Store, value: object, key: str | None = None) -> Settlement:
    return await store.answer_next("a", "w/", value, most=3, key=key)


async def a_value_answers_the_first_open_wait_and_then_the_next_number(store: StoreA) -> None:
    for number in (1, 2):
        await store.open_wait("a", f"w/0000000{number}")
    names = [(await _signal(store, n)).wait.name for n in range(3)]
    assert names == ["w/00000001", "w/00000002", "w/00000003"]
    await refusal(errors.PayloadTooLarge, _signal(store, 4))


async def an_overdue_wait_is_passed_over(store: StoreA, clock: ManualClock) -> None:
    await store.open_wait("a", "w/00000001", deadline=clock.read().wall + 5)
    clock.advance(6)
    assert (await _signal(store, 1)).wait.name == "w/00000002"


async def the_same_key_answers_once_also_after_a_restart(store: StoreA, reopen: Reopen) -> None:
    assert (await _signal(store, 1, "k")).won
    store = await reopen()
    assert not (await _signal(store, 1, "k")).won
    assert [wait.name for wait in await store.waits("a") if wait.name.startswith("w/")] == ["w/00000001"]
    await refusal(errors.KeyConflict, _signal(store, 2, "k"))
    assert (await _signal(store, 1, "other")).won
