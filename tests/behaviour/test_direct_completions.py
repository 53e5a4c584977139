"""`runtime.complete`: one question to a model, recorded once for each key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

import holdfast as hf
from holdfast.errors import InvalidArgument
from holdfast.testing import ScriptedModel, check, text

if TYPE_CHECKING:
    from pathlib import Path


class Answer(BaseModel):
    number: int


class Other(BaseModel):
    words: str


def model() -> tuple[ScriptedModel, list[str]]:
    asked: list[str] = []

    def says(request: Any) -> Any:
        asked.append(request.messages[-1].text)
        return text('{"number": 42}')

    return ScriptedModel(says), asked


async def test_the_same_key_gives_the_recorded_answer_in_another_process(tmp_path: Path) -> None:
    asks, asked = model()
    for _ in range(2):
        async with hf.open(tmp_path / "s.db") as runtime:
            assert await runtime.complete(asks, "How many?", output=Answer, key="q") == Answer(number=42)
    assert asked == ["How many?"]


@pytest.mark.parametrize(
    ("prompt", "given"),
    [("How few?", {"output": Answer}), ("How many?", {"output": Other}), ("How many?", {"instructions": "Be brief."})],
    ids=["prompt", "output", "instructions"],
)
async def test_another_question_under_the_same_key_is_a_conflict(prompt: str, given: dict[str, Any]) -> None:
    asks, asked = model()
    async with hf.open(None) as runtime:
        await runtime.complete(asks, "How many?", output=Answer, key="q")
        with pytest.raises(hf.KeyConflict):
            await runtime.complete(asks, prompt, key="q", **given)
        assert await runtime.complete(asks, "How many?", output=Answer, key="q") == Answer(number=42)
        assert asked == ["How many?"]
        assert await check(runtime.store) == []


async def test_another_model_under_the_same_key_is_a_conflict() -> None:
    asks, _ = model()
    other = ScriptedModel([text("never")], name="other")
    async with hf.open(None) as runtime:
        await runtime.complete(asks, "How many?", key="q")
        with pytest.raises(hf.KeyConflict):
            await runtime.complete(other, "How many?", key="q")


async def test_nothing_is_asked_without_a_question() -> None:
    asks, asked = model()
    async with hf.open(None) as runtime:
        with pytest.raises(InvalidArgument, match="prompt"):
            await runtime.complete(asks, " \n")
    assert asked == []
