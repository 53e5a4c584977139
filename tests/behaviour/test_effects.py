"""Exactly once inside, honest outside: what the effect boundary does with what is recorded."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pydantic
import pytest

import holdfast as hf
from holdfast.effects.drive import drive, replay
from holdfast.errors import ReplayMiss, StoreFull
from holdfast.records import Done, Intended, Record, Unknown
from holdfast.store import Lease, Store
from holdfast.store.transaction import PutBlob
from holdfast.testing import MemoryBackend, check

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from holdfast.effects.drive import Boundary, EffectContext
    from holdfast.store.contract import Command as StoreCommand


@pytest.fixture
async def store() -> AsyncGenerator[Store]:
    async with hf.open_store(None) as opened:
        yield opened


class Stop(BaseException):
    """The process ends here, as far as the driven code can tell."""


async def interrupted(store: Store, body: Callable[[Boundary], Awaitable[object]]) -> None:
    """Drive until the code is torn away; nothing is recorded about how it ended."""
    with pytest.raises(Stop):
        await drive(store, "j", body)


async def records(store: Store) -> list[Record]:
    return [entry.record for entry in await store.read("j")]


class Counted:
    """An effect that counts how often it was performed, and stops the process when told to."""

    def __init__(self, value: object = "done", *, stop_at: int = 0) -> None:
        self.value = value
        self.calls: list[str] = []
        self._stop_at = stop_at

    async def __call__(self, effect: EffectContext) -> object:
        await asyncio.sleep(0)
        self.calls.append(effect.idempotency_key)
        if len(self.calls) == self._stop_at:
            raise Stop
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


# ---- recorded? the journal answers -----------------------------------------------------------------------------------


async def test_a_recorded_outcome_answers_and_the_effect_is_not_performed_again(store: Store) -> None:
    first = Counted({"receipt": 7})
    second = Counted(stop_at=1)

    async def body(ctx: Boundary) -> object:
        receipt = await ctx.effect("tool_call", "pay", first)
        await ctx.effect("tool_call", "mail", second, repeat=hf.Repeat.KEYED)
        return receipt

    await interrupted(store, body)
    assert await drive(store, "j", body) == {"receipt": 7}
    assert len(first.calls) == 1


async def test_a_recorded_failure_is_raised_again_as_the_same_error(store: Store) -> None:
    broken = Counted(ValueError("no such order"))
    seen: list[tuple[str, str]] = []

    async def body(ctx: Boundary) -> object:
        try:
            await ctx.effect("tool_call", "find", broken)
        except hf.EffectFailed as error:
            seen.append((error.kind, error.message))
        await ctx.effect("step", "stop", stop, repeat=hf.Repeat.FREE)
        return None

    stop = Counted(stop_at=1)
    await interrupted(store, body)
    await drive(store, "j", body)
    assert seen == [("ValueError", "no such order")] * 2
    assert len(broken.calls) == 1


async def test_a_finished_run_only_tells_how_it_ended(store: Store) -> None:
    effect = Counted("x")
    assert await drive(store, "j", lambda ctx: ctx.effect("tool_call", "pay", effect)) == "x"
    assert await drive(store, "j", lambda ctx: ctx.effect("tool_call", "pay", effect)) == "x"
    assert len(effect.calls) == 1


async def test_a_run_that_failed_fails_the_same_for_everybody(store: Store) -> None:
    async def body(ctx: Boundary) -> object:
        await ctx.step("a", _echo, 1)
        raise LookupError("nothing there")

    for _ in range(2):
        with pytest.raises(hf.errors.RunFailed, match="LookupError: nothing there"):
            await drive(store, "j", body)


async def test_what_an_effect_gives_is_what_every_replay_will_give(store: Store) -> None:
    @dataclass
    class Order:
        number: int
        at: datetime

    async def body(ctx: Boundary) -> object:
        order = await ctx.effect(
            "tool_call", "find", Counted((Order(7, datetime(2026, 1, 2, tzinfo=UTC)), {"a": (1,)}))
        )
        seen.append(order)
        await ctx.effect("step", "stop", stop, repeat=hf.Repeat.FREE)
        return None

    seen: list[object] = []
    stop = Counted(stop_at=1)
    await interrupted(store, body)
    await drive(store, "j", body)
    assert seen == [[{"number": 7, "at": "2026-01-02T00:00:00Z"}, {"a": [1]}]] * 2


async def test_a_value_can_be_asked_for_as_a_type(store: Store) -> None:
    class Receipt(msgspec.Struct):
        number: int

    async def find(number: int) -> Receipt:
        await asyncio.sleep(0)
        return Receipt(number)

    async def body(ctx: Boundary) -> object:
        receipt: Receipt = await ctx.step("find", find, 7, returns=Receipt)
        assert isinstance(receipt, Receipt)
        return receipt.number

    assert await drive(store, "j", body) == 7


async def test_a_value_can_be_asked_for_as_types_made_with_pydantic(store: Store) -> None:
    class Receipt(pydantic.BaseModel):
        number: int

    async def find(number: int) -> list[Receipt]:
        await asyncio.sleep(0)
        return [Receipt(number=number)]

    async def body(ctx: Boundary) -> object:
        receipts: list[Receipt] = await ctx.step("find", find, 7, returns=list[Receipt])
        return receipts == [Receipt(number=7)]

    assert await drive(store, "j", body)


async def test_a_large_value_is_kept_as_a_blob_and_comes_back_whole(store: Store) -> None:
    stop = Counted(stop_at=1)
    sizes: list[int] = []

    async def body(ctx: Boundary) -> object:
        sizes.append(len(await ctx.effect("tool_call", "read", Counted("x" * 100_000))))
        await ctx.effect("step", "stop", stop, repeat=hf.Repeat.FREE)
        return "y" * 100_000

    await interrupted(store, body)
    assert await drive(store, "j", body) == "y" * 100_000
    assert await drive(store, "j", body) == "y" * 100_000
    assert sizes == [100_000] * 2
    assert all(len(msgspec.json.encode(record)) < 1_000 for record in await records(store))


# ---- not yet? intent, perform, outcome -------------------------------------------------------------------------------


async def test_an_effect_that_must_not_be_repeated_is_intended_before_it_is_performed(store: Store) -> None:
    async def act(_: EffectContext) -> str:
        kinds.extend(type(record).__name__ for record in await records(store))
        return "x"

    kinds: list[str] = []
    await drive(store, "j", lambda ctx: ctx.effect("tool_call", "pay", act))
    assert kinds[-1] == "Intended"


@pytest.mark.parametrize("repeat", [hf.Repeat.FREE, hf.Repeat.KEYED])
async def test_an_effect_that_may_be_repeated_needs_no_intent(store: Store, repeat: hf.Repeat) -> None:
    await drive(store, "j", lambda ctx: ctx.effect("tool_call", "read", Counted(), repeat=repeat))
    assert not any(isinstance(record, Intended) for record in await records(store))


async def test_an_interrupted_effect_that_must_not_be_repeated_ends_as_unknown(store: Store) -> None:
    pay = Counted(stop_at=1)

    async def body(ctx: Boundary) -> object:
        try:
            return await ctx.effect("tool_call", "pay", pay, target="bank")
        except hf.EffectUnknown as error:
            return [error.key, error.target]

    await interrupted(store, body)
    assert await drive(store, "j", body) == ["main/pay", "bank"]
    assert len(pay.calls) == 1
    assert any(isinstance(record, Unknown) for record in await records(store))


@pytest.mark.parametrize("repeat", [hf.Repeat.FREE, hf.Repeat.KEYED])
async def test_an_interrupted_effect_that_may_be_repeated_is_repeated_with_the_same_key(
    store: Store, repeat: hf.Repeat
) -> None:
    pay = Counted("paid", stop_at=1)

    async def body(ctx: Boundary) -> object:
        return await ctx.effect("tool_call", "pay", pay, repeat=repeat)

    await interrupted(store, body)
    assert await drive(store, "j", body) == "paid"
    assert len(pay.calls) == 2
    assert len(set(pay.calls)) == 1


async def test_an_intent_is_followed_by_a_repetition_when_the_effect_is_declared_repeatable_now(store: Store) -> None:
    pay = Counted("paid", stop_at=1)
    await interrupted(store, lambda ctx: ctx.effect("tool_call", "pay", pay))
    assert await drive(store, "j", lambda ctx: ctx.effect("tool_call", "pay", pay, repeat=hf.Repeat.KEYED)) == "paid"
    assert await check(store) == []


async def test_idempotency_keys_differ_between_effects_journals_and_stores(store: Store) -> None:
    keys: list[str] = []

    async def body(ctx: Boundary) -> object:
        for _ in range(2):
            effect = Counted()
            await ctx.effect("tool_call", "pay", effect)
            keys.extend(effect.calls)
        return None

    await drive(store, "j", body)
    await drive(store, "k", body)
    async with hf.open_store(None) as other:
        await drive(other, "j", body)
    assert len(set(keys)) == len(keys) == 6


async def test_a_value_that_can_not_be_recorded_is_a_recorded_failure(store: Store) -> None:
    act = Counted(object())

    async def body(ctx: Boundary) -> object:
        try:
            await ctx.effect("tool_call", "odd", act)
        except hf.EffectFailed as error:
            return error.kind
        return None

    assert await drive(store, "j", body) == "InvalidValue"
    assert len(act.calls) == 1


async def test_an_endless_error_message_is_cut(store: Store) -> None:
    async def body(ctx: Boundary) -> int:
        try:
            await ctx.effect("tool_call", "loud", Counted(ValueError("x" * 1_000_000)))
        except hf.EffectFailed as error:
            return len(error.message)
        return 0

    assert 0 < await drive(store, "j", body) < 5_000


class FullOnce(MemoryBackend):
    """A store that has no room for the first blob."""

    refusals = 1

    def submit(
        self,
        command: StoreCommand[Any],
        then: Callable[[asyncio.Future[Any]], None] | None = None,
        size: int | None = None,
    ) -> asyncio.Future[Any]:
        if isinstance(command, PutBlob) and self.refusals:
            self.refusals -= 1
            refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            refused.set_exception(StoreFull("no room"))
            return refused
        return super().submit(command, then, size)


async def test_an_error_of_the_store_is_never_recorded_as_the_outcome_of_an_effect() -> None:
    store = Store(FullOnce())
    act = Counted("x" * 100_000)

    async def body(ctx: Boundary) -> int:
        return len(await ctx.effect("tool_call", "read", act, repeat=hf.Repeat.KEYED))

    with pytest.raises(StoreFull):
        await drive(store, "j", body)
    assert (await store.journal("j")).status == "running"
    assert await drive(store, "j", body) == 100_000


async def test_an_error_of_another_journal_is_a_failure_like_any_other(store: Store) -> None:
    async def nested(_: EffectContext) -> object:
        return await drive(store, "j", body)  # this very journal is being driven: the lease is held

    async def body(ctx: Boundary) -> object:
        try:
            return await ctx.effect("tool_call", "nested", nested)
        except hf.EffectFailed as error:
            return error.kind

    assert await drive(store, "j", body) == "LeaseHeld"


# ---- sub-steps -------------------------------------------------------------------------------------------------------


async def test_a_finished_sub_step_is_not_repeated_when_its_effect_is(store: Store) -> None:
    uploads: list[int] = []
    outer = Counted(stop_at=1)

    async def upload(number: int) -> int:
        await asyncio.sleep(0)
        uploads.append(number)
        return number

    async def act(effect: EffectContext) -> object:
        numbers = [await effect.step("upload", upload, number) for number in range(3)]
        await outer(effect)
        return numbers

    async def body(ctx: Boundary) -> object:
        return await ctx.effect("tool_call", "backup", act, repeat=hf.Repeat.KEYED)

    await interrupted(store, body)
    assert await drive(store, "j", body) == [0, 1, 2]
    assert uploads == [0, 1, 2]


async def test_a_plain_function_is_a_step_too(store: Store) -> None:
    def add(left: int, right: int) -> int:
        return left + right

    assert await drive(store, "j", lambda ctx: ctx.step("add", add, 2, 3)) == 5


# ---- replay is checked -----------------------------------------------------------------------------------------------


async def _stopped_after(store: Store, body: Callable[[Boundary], Awaitable[object]]) -> None:
    async def once(ctx: Boundary) -> object:
        await body(ctx)
        raise Stop

    await interrupted(store, once)


async def _echo(value: object) -> object:
    await asyncio.sleep(0)
    return value


async def test_other_arguments_stop_the_run_and_name_both_sides(store: Store) -> None:
    await _stopped_after(store, lambda ctx: ctx.step("refund", _echo, {"order": 7, "cents": [100]}))
    performed = Counted()

    async def changed(ctx: Boundary) -> object:
        await ctx.step("refund", _echo, {"order": 7, "cents": [900]})
        return await ctx.effect("tool_call", "next", performed)

    with pytest.raises(hf.ReplayMismatch, match=r"body\[0\]\.cents\[0\]: recorded 100, asked 900"):
        await drive(store, "j", changed)
    assert performed.calls == []


async def test_an_effect_that_was_not_there_stops_the_run_before_it_is_performed(store: Store) -> None:
    async def before(ctx: Boundary) -> object:
        await ctx.step("one", _echo, 1)
        return await ctx.step("two", _echo, 2)

    await _stopped_after(store, before)
    inserted = Counted()

    async def after(ctx: Boundary) -> object:
        await ctx.step("one", _echo, 1)
        await ctx.effect("tool_call", "inserted", inserted)
        return await ctx.step("two", _echo, 2)

    with pytest.raises(hf.ReplayMismatch, match='recorded "main/two", asked "main/inserted"'):
        await drive(store, "j", after)
    assert inserted.calls == []


async def test_code_that_swallows_the_mismatch_does_not_get_further(store: Store) -> None:
    await _stopped_after(store, lambda ctx: ctx.step("one", _echo, 1))
    performed = Counted()

    async def stubborn(ctx: Boundary) -> object:
        with suppress(BaseException):  # user code can be this bad
            await ctx.step("one", _echo, 2)
        return await ctx.effect("tool_call", "next", performed)

    with pytest.raises(hf.ReplayMismatch):
        await drive(store, "j", stubborn)
    assert performed.calls == []
    assert (await store.journal("j")).status == "running"


async def test_the_mismatch_names_the_code_version_that_wrote_the_record(store: Store) -> None:
    async def first(ctx: Boundary) -> object:
        await ctx.step("one", _echo, 1)
        raise Stop

    with pytest.raises(Stop):
        await drive(store, "j", first, code="release-41")
    with pytest.raises(hf.ReplayMismatch, match="release-41"):
        await drive(store, "j", lambda ctx: ctx.step("one", _echo, 2), code="release-42")


async def test_a_model_call_with_another_prompt_keeps_its_recorded_answer_and_warns(store: Store) -> None:
    answer = Counted("the recorded answer")
    await _stopped_after(
        store, lambda ctx: ctx.effect("model_call", "ask", answer, target="model", body={"prompt": "a"})
    )
    drifts: list[tuple[str, str]] = []

    async def edited(ctx: Boundary) -> object:
        value = await ctx.effect("model_call", "ask", answer, target="model", body={"prompt": "b"})
        drifts.extend((drift.key, drift.divergence.first[0].path) for drift in ctx.performer.drifts)
        return value

    assert await drive(store, "j", edited) == "the recorded answer"
    assert len(answer.calls) == 1
    assert drifts == [("main/ask", "body.prompt")]


async def test_another_model_is_a_mismatch_even_for_a_model_call(store: Store) -> None:
    await _stopped_after(store, lambda ctx: ctx.effect("model_call", "ask", Counted(), target="small"))
    with pytest.raises(hf.ReplayMismatch, match='target: recorded "small", asked "large"'):
        await drive(store, "j", lambda ctx: ctx.effect("model_call", "ask", Counted(), target="large"))


async def test_a_check_only_replay_performs_nothing_and_writes_nothing(store: Store) -> None:
    await _stopped_after(store, lambda ctx: ctx.step("one", _echo, 1))
    before = await store.last_position()
    performed = Counted()

    async def further(ctx: Boundary) -> object:
        await ctx.step("one", _echo, 1)
        return await ctx.effect("tool_call", "two", performed)

    with pytest.raises(ReplayMiss, match="main/two"):
        await replay(store, "j", further)
    assert performed.calls == []
    assert await store.last_position() == before


async def test_a_check_only_replay_of_a_finished_run_gives_its_result(store: Store) -> None:
    async def body(ctx: Boundary) -> object:
        return [await ctx.step("one", _echo, 1), await ctx.step("two", _echo, 2)]

    result = await drive(store, "j", body)
    assert await replay(store, "j", body) == result


async def test_a_check_only_replay_finds_a_result_that_differs(store: Store) -> None:
    await drive(store, "j", lambda ctx: ctx.step("one", _echo, 1))

    async def other(ctx: Boundary) -> object:
        return await ctx.step("one", _echo, 1) + 1

    with pytest.raises(hf.ReplayMismatch, match="value: recorded 1, asked 2"):
        await replay(store, "j", other)


async def test_a_check_only_replay_does_not_settle_what_was_interrupted(store: Store) -> None:
    pay = Counted(stop_at=1)
    await interrupted(store, lambda ctx: ctx.effect("tool_call", "pay", pay))
    with pytest.raises(ReplayMiss):
        await replay(store, "j", lambda ctx: ctx.effect("tool_call", "pay", pay))


# ---- finalising is fenced --------------------------------------------------------------------------------------------


async def test_a_result_computed_under_a_lost_lease_is_dropped(store: Store) -> None:
    async def usurped(_: EffectContext) -> str:
        await store.release(Lease("j", 1, store.owner, 10_000, 0))  # as if it had expired
        await store.claim("j")
        return "too late"

    with pytest.raises(hf.errors.Fenced):
        await drive(store, "j", lambda ctx: ctx.effect("tool_call", "pay", usurped, repeat=hf.Repeat.KEYED))
    assert not any(isinstance(record, Done) for record in await records(store))
