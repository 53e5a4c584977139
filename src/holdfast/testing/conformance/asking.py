"""Waits that ask for something: what is asked stays, is listed over all journals, and is what an answer is about."""
# ruff: noqa: D103  the name of a case is its sentence

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from holdfast.errors import InvalidArgument, PayloadTooLarge, WaitUnknown
from holdfast.errors.rules import RulesFull
from holdfast.errors.waits import ApprovalMismatch
from holdfast.records import Ended, Started
from holdfast.store.audit import audit
from holdfast.testing.clock import ManualClock
from holdfast.testing.conformance.suite import Stores, append_here, case, contents, leased, refusal

if TYPE_CHECKING:
    from holdfast.store import Store, Wait

BODY = b'{"tool":"refund","args":{"cents":900}}'
DIGEST = hashlib.sha256(BODY).hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()
RULE = '{"allow":"refund"}'


async def _ask(store: Store, journal: str = "a", name: str = "w", deadline: int | None = None) -> Wait:
    await store.open_journal(journal)
    return await store.open_wait(journal, name, kind="approval", body=BODY, deadline=deadline)


def _places(found: list[Wait]) -> list[tuple[str, str]]:
    return [(wait.journal, wait.name) for wait in found]


@case
async def a_wait_tells_what_it_asks(stores: Stores) -> None:
    clock = ManualClock()
    now = clock.read().wall
    async with stores.open(clock) as store:
        opened = await _ask(store)
        assert (opened.kind, opened.body, opened.digest, opened.at) == ("approval", BODY, DIGEST, now)
    async with stores.open(clock) as store:
        assert await store.wait("a", "w") == opened
        assert await store.waits("a") == [opened]
        assert await store.examine(audit) == []


@case
async def the_first_question_of_a_wait_stays(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        opened = await _ask(store)
        clock.advance(1)
        assert await store.open_wait("a", "w", kind="other", body=b"other") == opened
        assert await store.open_wait("a", "w") == opened
        await store.answer_wait("a", "w", 1)
        again = await store.open_wait("a", "w", body=b"other")
        assert (again.state, again.body) == ("resolved", BODY)


@case
async def what_was_asked_stays_when_the_wait_is_settled(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        lease = await leased(store, "a")
        await append_here(store, lease, Started(at=1, run="t1"))
        for name in ("resolved", "expired", "cancelled", "t1/ended"):
            await _ask(store, name=name, deadline=clock.read().wall + 1 if name == "expired" else None)
        await store.answer_wait("a", "resolved", 1)
        await store.cancel_wait("a", "cancelled")
        clock.advance(1)
        await store.expire_wait("a", "expired")
        await append_here(store, lease, Ended(at=2, run="t1", status="cancelled"))
        found = await store.waits("a")
        assert [(wait.name, wait.state) for wait in found] == [
            *(("cancelled", "cancelled"), ("expired", "expired"), ("resolved", "resolved"), ("t1/ended", "cancelled")),
        ]
        assert {(wait.kind, wait.body) for wait in found} == {("approval", BODY)}


@case
async def a_revoked_wait_forgets_what_it_asked(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await _ask(store)
        await store.revoke_waits("a", "w")
        (found,) = await store.waits("a")
        assert (found.state, found.body) == ("revoked", None)


@case
async def a_question_over_the_limit_is_refused(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        limit = store.limits.wait_bytes
        await refusal(PayloadTooLarge, store.open_wait("a", "w", body=b"x" * (limit + 1)))
        await refusal(InvalidArgument, store.open_wait("a", "w", body="text"))  # pyright: ignore[reportArgumentType]
        assert await store.waits("a") == []
        assert (await store.open_wait("a", "w", body=b"x" * limit)).body == b"x" * limit


@case
async def waits_are_read_page_by_page(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        large = b"x" * store.limits.wait_bytes
        for n in range(20):
            await store.open_wait("a", f"w{n:02}", body=large)
        found: list[Wait] = []
        while page := await store.waits("a", after=found[-1].name if found else ""):
            found.extend(page)
        assert [wait.name for wait in found] == [f"w{n:02}" for n in range(20)]


# ---- over all journals -----------------------------------------------------------------------------------------------


@case
async def open_waits_of_a_kind_are_listed_over_all_journals_newest_first(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        for journal, name in (("b", "1"), ("a", "2"), ("b", "3")):
            await _ask(store, journal, name)
            clock.advance(1)
        await store.open_wait("a", "other", kind="question")
        await store.open_wait("a", "none")
        for journal in ("b", "a"):  # at the same moment, in the order in which the journals were made
            await _ask(store, journal, "4")
        expected = [("a", "4"), ("b", "4"), ("b", "3"), ("a", "2"), ("b", "1")]
        assert _places(await store.open_waits("approval")) == expected
        found: list[Wait] = []
        while page := await store.open_waits("approval", before=found[-1] if found else None, limit=2):
            found.extend(page)
        assert _places(found) == expected
        assert await store.open_waits("nothing") == []


@case
async def only_waits_that_can_be_answered_are_listed(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
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


# ---- answers ---------------------------------------------------------------------------------------------------------


@case
async def an_answer_about_what_is_asked_settles_it(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        for name in ("v", "w"):
            await _ask(store, name=name)
        by_token = await store.resolve(store.wait_token("a", "v"), "yes", expect_digest=DIGEST)
        by_name = await store.answer_wait("a", "w", "yes", expect_digest=DIGEST)
        assert by_token.won
        assert by_name.won
        assert (by_name.wait.state, by_name.wait.payload) == ("resolved", b'"yes"')


@case
async def an_answer_about_something_else_settles_nothing(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await _ask(store)
        await store.open_wait("a", "plain")
        before = await contents(store)
        error = await refusal(ApprovalMismatch, store.answer_wait("a", "w", "yes", expect_digest=OTHER))
        assert (error.journal, error.name, error.expected, error.actual) == ("a", "w", OTHER, DIGEST)
        await refusal(ApprovalMismatch, store.resolve(store.wait_token("a", "w"), "yes", expect_digest=OTHER))
        error = await refusal(ApprovalMismatch, store.answer_wait("a", "plain", "yes", expect_digest=DIGEST))
        assert error.actual is None
        assert await contents(store) == before


@case
async def a_late_answer_about_something_else_is_told_so(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await _ask(store)
        await store.answer_wait("a", "w", "no", expect_digest=DIGEST)
        await refusal(ApprovalMismatch, store.answer_wait("a", "w", "yes", expect_digest=OTHER))
        second = await store.answer_wait("a", "w", "yes", expect_digest=DIGEST)
        assert (second.won, second.wait.payload) == (False, b'"no"')


@case
async def an_answer_to_a_wait_that_nobody_opened_is_refused(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        await refusal(WaitUnknown, store.answer_wait("a", "w", "yes"))
        await refusal(WaitUnknown, store.resolve(store.wait_token("a", "w"), "yes", expect_digest=DIGEST))
        assert await store.waits("a") == []


@case
async def a_resolution_that_came_before_the_question_does_not_answer_it(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await store.open_journal("a")
        await store.resolve(store.wait_token("a", "w"), "yes to whatever")
        asked = await _ask(store)
        assert (asked.state, asked.payload, asked.opened) == ("open", None, True)
        assert _places(await store.open_waits("approval")) == [("a", "w")]


@case
async def an_answer_after_the_deadline_settles_nothing_and_stores_no_rule(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await _ask(store, deadline=clock.read().wall + 10)
        clock.advance(10)
        rule = store.new_rule("clerk", RULE, by="ops")
        late = await store.answer_wait("a", "w", "yes", expect_digest=DIGEST, rule=rule)
        assert (late.won, late.wait.state, late.wait.payload, late.rule) == (False, "expired", None, None)
        assert await store.rules("clerk") == []


# ---- an answer and a rule --------------------------------------------------------------------------------------------


@case
async def an_answer_may_store_a_rule_in_the_same_commit(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as store:
        await _ask(store)
        settled = await store.answer_wait("a", "w", "yes", rule=store.new_rule("clerk", RULE, by="ops"))
        assert settled.won
    async with stores.open(clock) as store:
        (rule,) = await store.rules("clerk")
        assert (rule, rule.body, rule.by) == (settled.rule, RULE, "ops")


@case
async def of_many_answers_at_once_only_the_first_stores_its_rule(stores: Stores) -> None:
    clock = ManualClock()
    async with stores.open(clock) as one, stores.open(clock) as two:
        await _ask(one)
        attempts = (
            store.answer_wait("a", "w", n, rule=store.new_rule("clerk", f"{n}", by="ops"))
            for n, store in enumerate((one, two) * 4)
        )
        answers = await asyncio.gather(*attempts)
        (winner,) = (answer for answer in answers if answer.won)
        assert [winner.rule] == await one.rules("clerk")
        assert winner.wait.payload == winner.rule.body.encode() if winner.rule else False


@case
async def a_rule_that_is_in_force_already_is_told_with_the_answer(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await _ask(store)
        rule, _ = await store.add_rule("clerk", RULE, by="boss")
        settled = await store.answer_wait("a", "w", "yes", rule=store.new_rule("clerk", RULE, by="ops"))
        assert settled.rule == rule


@case
async def an_answer_whose_rule_has_no_room_settles_nothing(stores: Stores) -> None:
    async with stores.open(ManualClock()) as store:
        await _ask(store)
        await asyncio.gather(*(store.add_rule("clerk", f"{n}", by="ops") for n in range(store.limits.rules)))
        before = await contents(store)
        more = store.new_rule("clerk", RULE, by="ops")
        await refusal(RulesFull, store.answer_wait("a", "w", "yes", rule=more))
        assert await contents(store) == before
