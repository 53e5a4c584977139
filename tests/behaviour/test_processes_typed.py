"""What a step or an agent gives back to a durable function has the type that was declared, and on replay too."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import date
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pydantic import BaseModel
from tests.behaviour.talk import SOON

import holdfast as hf
from holdfast.testing import ScriptedModel, text

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Order:
    number: int
    day: date


class Invoice(BaseModel):
    number: int
    cents: int


class Parcel(msgspec.Struct):
    weight: float


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


async def an_order() -> Order:
    return Order(7, date(2026, 11, 15))


def an_invoice() -> Invoice:
    return Invoice(number=7, cents=100)


async def a_parcel() -> Parcel:
    return Parcel(1.5)


async def orders() -> list[Order]:
    return [await an_order()]


async def perhaps(*, there: bool = False) -> Order | None:
    return await an_order() if there else None


async def a_pair() -> tuple[int, str]:
    return 1, "a"


async def a_size() -> Size:
    return Size.LARGE


async def a_file() -> Path:
    return Path("a") / "b.txt"


ORDER = Order(7, date(2026, 11, 15))
DECLARED: dict[str, tuple[Callable[..., Any], Any]] = {
    "dataclass": (an_order, ORDER),
    "pydantic": (an_invoice, Invoice(number=7, cents=100)),
    "struct": (a_parcel, Parcel(1.5)),
    "list": (orders, [ORDER]),
    "none": (perhaps, None),
    "optional": (partial(perhaps, there=True), ORDER),
    "tuple": (a_pair, (1, "a")),
    "enum": (a_size, Size.LARGE),
    "path": (a_file, Path("a") / "b.txt"),
}


async def _seen(path: Path, step: Callable[[hf.ProcessContext], Any], **options: Any) -> list[Any]:
    """What a process gets in its first run, and again in a runtime that replays it."""
    seen: list[Any] = []

    @hf.process
    async def looks(ctx: hf.ProcessContext) -> int:
        seen.append(await step(ctx))
        await ctx.wait("go")
        return len(seen)

    async with hf.open(path, processes=[looks], **options) as runtime:
        process = await runtime.start(looks, id="p")
        async with asyncio.timeout(SOON):
            while not seen or await process.status() != "waiting":
                await asyncio.sleep(0.005)
    async with hf.open(path, processes=[looks], **options) as runtime:
        await runtime.signal("p", "go")
        await runtime.processes.handle("p").result(timeout=SOON)
    return seen


@pytest.mark.parametrize("kind", DECLARED)
async def test_a_step_gives_the_type_that_its_function_declares(tmp_path: Path, kind: str) -> None:
    function, value = DECLARED[kind]
    first, replayed = await _seen(tmp_path / "s.db", lambda ctx: ctx.step("a", function))
    assert (first, type(first)) == (value, type(value))
    assert (replayed, type(replayed)) == (value, type(value))


async def test_a_step_whose_function_declares_nothing_gives_plain_json(tmp_path: Path) -> None:
    first, replayed = await _seen(tmp_path / "s.db", lambda ctx: ctx.step("a", lambda: ORDER))
    assert first == replayed == {"number": 7, "day": "2026-11-15"}


async def test_the_type_that_is_asked_for_goes_before_the_declared_one(tmp_path: Path) -> None:
    first, replayed = await _seen(tmp_path / "s.db", lambda ctx: ctx.step("a", an_order, returns=dict[str, object]))
    assert first == replayed == {"number": 7, "day": "2026-11-15"}


async def test_a_value_that_does_not_fit_what_its_function_declares_is_plain_json(tmp_path: Path) -> None:
    async def lies() -> Order:
        return {"anything": "else"}  # pyright: ignore[reportReturnType]

    first, replayed = await _seen(tmp_path / "s.db", lambda ctx: ctx.step("a", lies))
    assert first == replayed == {"anything": "else"}


async def test_an_annotation_that_can_not_be_resolved_changes_nothing(tmp_path: Path) -> None:
    @dataclass
    class Local:
        number: int

    async def local() -> Local:
        return Local(1)

    first, replayed = await _seen(tmp_path / "s.db", lambda ctx: ctx.step("a", local))
    assert first == replayed == {"number": 1}


async def test_a_step_of_a_tool_gives_the_type_that_its_function_declares() -> None:
    seen: list[Any] = []

    @hf.tool(read_only=True)
    async def looks(ctx: hf.Context) -> str:
        """Look."""
        seen.append(await ctx.step("a", an_order))
        return "seen"

    from holdfast.testing import call

    agent = hf.Agent("a", model=ScriptedModel([call(looks), text("ok")]), tools=[looks], policy=[hf.allow("*")])
    await hf.run(agent, "go")
    assert seen == [ORDER]


# ---- agents ----------------------------------------------------------------------------------------------------------


def _biller(output: Any = Invoice) -> hf.Agent:
    return hf.Agent("biller", model=ScriptedModel([text('{"number": 7, "cents": 100}')]), output=output)


async def test_an_agent_gives_a_value_of_its_output_type(tmp_path: Path) -> None:
    biller = _biller()
    found = await _seen(tmp_path / "s.db", lambda ctx: ctx.run_agent(biller, "bill it"), agents=[biller])
    assert found == [Invoice(number=7, cents=100)] * 2


async def test_an_agent_that_is_named_gives_a_value_of_its_output_type(tmp_path: Path) -> None:
    found = await _seen(tmp_path / "s.db", lambda ctx: ctx.run_agent("biller", "bill it"), agents=[_biller()])
    assert found == [Invoice(number=7, cents=100)] * 2


async def test_an_agent_without_an_output_type_gives_text(tmp_path: Path) -> None:
    biller = _biller(None)
    found = await _seen(tmp_path / "s.db", lambda ctx: ctx.run_agent(biller, "bill it"), agents=[biller])
    assert found == ['{"number": 7, "cents": 100}'] * 2


async def test_an_answer_that_does_not_fit_the_output_type_any_more_is_plain_json(tmp_path: Path) -> None:
    seen: list[Any] = []

    @hf.process
    async def bills(ctx: hf.ProcessContext) -> int:
        seen.append(await ctx.run_agent("biller", "bill it"))
        await ctx.wait("go")
        return len(seen)

    path = tmp_path / "s.db"
    async with hf.open(path, processes=[bills], agents=[_biller()]) as runtime:
        process = await runtime.start(bills, id="p")
        async with asyncio.timeout(SOON):
            while not seen or await process.status() != "waiting":
                await asyncio.sleep(0.005)
    async with hf.open(path, processes=[bills], agents=[_biller(Order)]) as runtime:
        await runtime.signal("p", "go")
        await runtime.processes.handle("p").result(timeout=SOON)
    assert seen == [Invoice(number=7, cents=100), {"number": 7, "cents": 100}]
