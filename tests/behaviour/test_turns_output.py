"""Structured output: the answer has the type that was asked for, or the turn says that it has not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from tests.behaviour.talk import SOON
from tests.every import every

import holdfast as hf
from holdfast.testing import ScriptedModel, call, reply, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.messages import Message


class Invoice(BaseModel):
    number: int
    total: float = Field(ge=0)


class Colour(Enum):
    RED = "red"


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date
    pair: tuple[int, int]
    colour: Colour


class Aliased(BaseModel):
    number: int = Field(alias="invoiceNumber")


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


FENCES = ["```json\n{}\n```", "```\n{}\n```", "  ```json\n{}\n```  \n", "```json\n{}```", "\n{}\n"]
SCHEMA: dict[str, Any] = {
    "title": "invoice",
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
    "additionalProperties": False,
}


async def run(output: Any, script: Any, **limits: Any) -> tuple[hf.TurnOutcome, ScriptedModel]:
    model = ScriptedModel(script)
    agent = hf.Agent("agent", model=model, output=output, limits=hf.Limits(**limits))
    return await hf.run(agent, "go"), model


def always(item: Any) -> Callable[[hf.ModelRequest], Any]:
    return lambda _: item


def notes(messages: tuple[Message, ...]) -> list[str]:
    """What Holdfast told the model."""
    return [found.text for found in messages if isinstance(found, hf.UserMessage) and found.origin == "holdfast"]


# ---- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "said", "value"),
    [
        (Invoice, '{"number": 7, "total": 1.5}', Invoice(number=7, total=1.5)),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (SCHEMA, '{"number": 7}', {"number": 7}),
        (list[int], "[1, 2, 3]", [1, 2, 3]),
        (int, "7", 7),
        (bool, "true", True),
        (Literal["yes", "no"], '"yes"', "yes"),
        (Invoice | Point, '{"x": 1}', Point(1)),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Aliased, '{"invoiceNumber": 7}', Aliased(invoiceNumber=7)),
        (date, '"2026-01-02"', date(2026, 1, 2)),
    ],
    ids=str,
)
async def test_the_answer_has_the_type_that_was_asked_for(output: Any, said: str, value: Any) -> None:
    outcome, _ = await run(output, [text(said)])
    assert (outcome.status, outcome.value) == ("completed", value)


async def test_a_strict_type_takes_json_as_json() -> None:
    outcome, _ = await run(Strict, always(text('{"day": "2026-01-02", "pair": [1, 2], "colour": "red"}')))
    assert outcome.value == Strict(day=date(2026, 1, 2), pair=(1, 2), colour=Colour.RED)


async def test_the_model_is_shown_the_schema() -> None:
    _, model = await run(Invoice, [text('{"number": 7, "total": 0}')])
    spec = model.requests[0].output
    assert spec is not None
    assert (spec.name, sorted(spec.schema["properties"])) == ("Invoice", ["number", "total"])


async def test_without_an_output_there_is_no_value() -> None:
    outcome, model = await run(None, [text('{"number": 7}')])
    assert (outcome.value, outcome.text, model.requests[0].output) == (None, '{"number": 7}', None)


@pytest.mark.parametrize("fence", FENCES)
async def test_fences_around_the_answer_do_no_harm(fence: str) -> None:
    outcome, _ = await run(Point, [text(fence.replace("{}", '{"x": 1}'))])
    assert outcome.value == Point(1)


async def test_fences_inside_the_answer_are_part_of_it() -> None:
    outcome, _ = await run(dict[str, str], [text('{"code": "```json\\n{}\\n```"}')])
    assert outcome.value == {"code": "```json\n{}\n```"}


async def test_an_answer_that_the_output_limit_cut_in_two_is_one_value() -> None:
    outcome, _ = await run(Point, [reply('{"x": 1, ', finish="output_limit"), text('"y": 2}')])
    assert outcome.value == Point(1, 2)


async def test_tools_are_called_before_the_answer_takes_its_shape() -> None:
    @hf.tool(read_only=True)
    async def find() -> int:
        return 7

    model = ScriptedModel([["Looking.", call("find")], text('{"x": 7}')])
    outcome = await hf.run(hf.Agent("agent", model=model, tools=[find], policy=[hf.allow("*")], output=Point), "go")
    assert outcome.value == Point(7)


async def test_the_value_is_the_same_after_a_restart(tmp_path: Path) -> None:
    agent = hf.Agent("agent", model=ScriptedModel([text('{"x": 7}')]), output=Point)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        first = await (await runtime.session("s", agent=agent).send("go")).outcome(timeout=SOON)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        assert await runtime.session("s").turn("t1").outcome(timeout=SOON) == first


async def test_an_outcome_can_be_read_after_the_output_was_given_another_shape(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "s.db") as runtime:
        before = hf.Agent("agent", model=ScriptedModel([text('{"x": 7}')]), output=Point)
        await (await runtime.session("s", agent=before).send("go")).outcome(timeout=SOON)
    after = hf.Agent("agent", model=ScriptedModel([]), output=Invoice)
    async with hf.open(tmp_path / "s.db", agents=[after]) as runtime:
        outcome = await runtime.session("s").turn("t1").outcome(timeout=SOON)
        assert (outcome.status, outcome.text) == ("completed", '{"x": 7}')


# ---- repair ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["no json", '{"y": 1}', '{"x": "one"}', "[]", "null", '{"x": 1', '{"x": NaN}', ""])
async def test_an_answer_of_the_wrong_shape_is_sent_back_and_repaired(wrong: str) -> None:
    outcome, model = await run(Point, [text(wrong), text('{"x": 1}')])
    assert (outcome.value, outcome.steps, len(notes(model.requests[-1].messages))) == (Point(1), 2, 1)


async def test_the_model_is_told_what_is_wrong_where() -> None:
    _, model = await run(Invoice, [text('{"number": "x", "total": -1}'), text('{"number": 1, "total": 1}')])
    (note,) = notes(model.requests[-1].messages)
    assert "number: " in note
    assert "total: " in note


async def test_of_many_complaints_only_some_are_told() -> None:
    _, model = await run(list[int], [text(str(["x"] * 5_000).replace("'", '"')), text("[]")])
    (note,) = notes(model.requests[-1].messages)
    assert len(note) < 5_000


@pytest.mark.parametrize("output", [Point, SCHEMA], ids=["type", "schema"])
async def test_a_huge_wrong_answer_does_not_make_a_huge_complaint(output: Any) -> None:
    wrong = text('{"x": "' + "a" * 200_000 + '", "number": "' + "a" * 200_000 + '"}')
    _, model = await run(output, [wrong, text('{"x": 1, "number": 1}'), text('{"number": 1}')])
    assert max(len(note) for note in notes(model.requests[-1].messages)) < 20_000


async def test_repairs_are_bounded() -> None:
    outcome, model = await run(Point, always(text("no json")), repairs=2)
    assert (outcome.status, outcome.code, outcome.blame) == ("failed", "invalid_output", "model")
    assert (len(model.requests), outcome.value, outcome.text) == (3, None, "no json")


async def test_without_repairs_the_first_wrong_answer_fails_the_turn() -> None:
    outcome, model = await run(Point, always(text("no json")), repairs=0)
    assert (outcome.code, len(model.requests)) == ("invalid_output", 1)


async def test_a_validator_that_breaks_is_a_complaint_and_not_the_end_of_the_session() -> None:
    from pydantic import field_validator

    class Picky(BaseModel):
        x: int

        @field_validator("x")
        @classmethod
        def check(cls, value: int) -> int:
            if value == 0:
                raise RuntimeError("a bug in the validator")
            return value

    agent = hf.Agent("agent", model=ScriptedModel([text('{"x": 0}'), text('{"x": 1}')]), output=Picky)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        first = await (await session.send("go")).outcome(timeout=SOON)
        assert first.status in {"completed", "failed"}


async def test_a_refusal_of_a_shaped_answer_is_a_refusal_and_is_not_repaired() -> None:
    from holdfast.testing import refusal

    outcome, model = await run(Point, [refusal("I won't.")])
    assert (outcome.code, len(model.requests)) == ("refusal", 1)


# ---- bad input -------------------------------------------------------------------------------------------------------


@every(
    "output",
    [5, "Nowhere", object(), {"type": "nonsense"}, {"$ref": "#/nowhere"}, [1], ...],
    ids=["number", "text", "object", "schema", "reference", "list", "ellipsis"],
)
def test_an_output_that_has_no_shape_is_refused_when_the_agent_is_made(output: Any) -> None:
    with pytest.raises(hf.UsageError):
        hf.Agent("agent", model=ScriptedModel([]), output=output)
