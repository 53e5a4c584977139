"""Approvals with other arguments: what a person writes is what runs, within what the policy says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.approving import Shop, asked_once, ended, told

import holdfast as hf
from holdfast.testing import call, check

if TYPE_CHECKING:
    from pathlib import Path


WEEK = 7 * 86_400_000
TOO_LATE = (hf.errors.ApprovalUnknown, hf.ApprovalClosed)


@pytest.fixture
def shop() -> Shop:
    return Shop()


# ---- other arguments -------------------------------------------------------------------------------------------------


async def test_edited_arguments_run_as_they_were_edited(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        await runtime.approve(shown.id, arguments={"order": "7", "cents": 500})
        await ended(runtime)
        assert shop.done == [("7", 500)]


async def test_the_model_is_told_of_edited_arguments(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        await runtime.approve(shown.id, arguments={"order": "7", "cents": 500})
        (result,) = await told(runtime)
        assert result.content["result"] == "refunded 500"
        assert '"cents":500' in result.content["note"]


async def test_edited_arguments_may_leave_out_what_has_a_default(shop: Shop) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        await runtime.approve(shown.id, arguments={"order": "8"})
        await ended(runtime)
        assert shop.done == [("8", 100)]


async def test_all_arguments_may_be_edited_away(shop: Shop) -> None:
    agent = shop.agent(call("look", what="the cellar"), policy=[hf.ask("look")])
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        await runtime.approve(shown.id, arguments={})
        await ended(runtime)
        assert shop.done == ["stock"]


UNFIT: dict[str, Any] = {
    "wrong type": {"order": "7", "cents": "a lot"},
    "missing": {"cents": 5},
    "unknown": {"order": "7", "account": "mine"},
    "no object": ["7", 5],
    "text": '{"order": "7"}',
    "no JSON": {"order": {1, 2}},
    "no number": {"order": "7", "cents": float("nan")},
}


@pytest.mark.parametrize("arguments", UNFIT.values(), ids=UNFIT)
async def test_edited_arguments_that_do_not_fit_are_refused(shop: Shop, arguments: Any) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        with pytest.raises(hf.UsageError):
            await runtime.approve(shown.id, arguments=arguments)
        assert [each.id for each in await runtime.approvals()] == [shown.id]


async def test_edited_arguments_that_do_not_fit_are_told_to_the_model_where_nobody_could_check_them(
    shop: Shop, tmp_path: Path
) -> None:
    path = tmp_path / "s.db"
    async with hf.open(path, agents=[agent := shop.agent()]) as runtime:
        shown = await asked_once(runtime, agent)
    async with hf.open(path, drive=False) as other:
        await other.approve(shown.id, arguments={"order": "7", "cents": "a lot"})
    async with hf.open(path, agents=[agent]) as runtime:
        (result,) = await told(runtime)
        assert (result.state, shop.done) == ("error", [])


async def test_the_model_reads_that_a_person_wrote_arguments_that_do_not_fit(shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with hf.open(path, agents=[agent := shop.agent()]) as runtime:
        shown = await asked_once(runtime, agent)
    async with hf.open(path, drive=False) as other:
        await other.approve(shown.id, arguments={"order": "7", "cents": "a lot"})
    async with hf.open(path, agents=[agent]) as runtime:
        (result,) = await told(runtime)
        assert "A person" in result.content


async def test_a_call_that_fails_with_edited_arguments_says_that_they_were_edited(shop: Shop) -> None:
    @hf.tool
    async def refund(order: str, cents: int = 100) -> str:
        """Refund an order."""
        raise RuntimeError(f"no order {order}")

    agent = shop.agent(tools=[refund])
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        await runtime.approve(shown.id, arguments={"order": "8"})
        (result,) = await told(runtime)
        assert "no order 8" in str(result.content)
        assert "A person changed" in str(result.content)


async def test_edited_arguments_that_a_rule_denies_are_not_run(shop: Shop) -> None:
    limit = hf.deny("refund", when={"cents": {"above": 1_000}}, reason="never that much")
    agent = shop.agent(policy=[limit, hf.ask("refund")])
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        try:
            await runtime.approve(shown.id, arguments={"order": "7", "cents": 5_000})
        except hf.UsageError:
            pass
        else:
            await ended(runtime)
        assert shop.done == []


async def test_arguments_are_edited_once_also_over_a_restart(shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with hf.open(path, agents=[agent := shop.agent()]) as runtime:
        shown = await asked_once(runtime, agent)
    async with hf.open(path, drive=False) as other:
        await other.approve(shown.id, arguments={"order": "7", "cents": 500})
    async with hf.open(path, agents=[agent]) as runtime:
        await ended(runtime)
        assert (shop.done, await check(runtime.store)) == ([("7", 500)], [])


@pytest.mark.parametrize("by", ["", "a\nb", "x" * 5_000, 7], ids=["empty", "break", "long", "number"])
async def test_who_answers_must_have_a_name(shop: Shop, by: Any) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        with pytest.raises(hf.UsageError):
            await runtime.approve(shown.id, by=by)
        assert len(await runtime.approvals()) == 1


@pytest.mark.parametrize("reason", ["x" * 100_000, "\ud800", 7, None], ids=["long", "half", "number", "none"])
async def test_a_reason_must_be_text_that_can_be_kept(shop: Shop, reason: Any) -> None:
    agent = shop.agent()
    async with hf.open(None, agents=[agent]) as runtime:
        shown = await asked_once(runtime, agent)
        with pytest.raises(hf.UsageError):
            await runtime.deny(shown.id, reason)
        assert len(await runtime.approvals()) == 1
