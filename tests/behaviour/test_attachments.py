"""Files that go with what is said: kept once, durable with the input, and there when the model is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf
from holdfast.testing import ManualClock, ScriptedModel, call, check, text

if TYPE_CHECKING:
    from pathlib import Path

PICTURE = b"\x89PNG not really"


def _agent(*replies: str) -> tuple[hf.Agent, ScriptedModel]:
    model = ScriptedModel([text(reply) for reply in replies])
    return hf.Agent("a", model=model), model


async def test_a_file_reaches_the_model_with_its_bytes() -> None:
    agent, model = _agent("A picture.")
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send(["What is this?", hf.File(PICTURE, "image/png")])
        await turn.outcome(timeout=5)
    (request,) = model.requests
    (message,) = request.messages
    assert isinstance(message, hf.UserMessage)
    (attachment,) = [part for part in message.parts if isinstance(part, hf.Attachment)]
    assert (attachment.media_type, attachment.size) == ("image/png", len(PICTURE))
    assert request.files[attachment.digest] == PICTURE


async def test_a_file_of_an_earlier_turn_is_there_in_a_later_one(tmp_path: Path) -> None:
    for reply in ("One.", "Two."):
        agent, model = _agent("One.", "Two.")
        async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
            said: list[Any] = ["Look.", hf.File(PICTURE, "image/png")] if reply == "One." else ["And now?"]
            turn = await runtime.session("s", agent=agent).send(said)
            assert (await turn.outcome(timeout=5)).text == reply
            assert PICTURE in model.requests[-1].files.values()


async def test_the_same_file_is_kept_once(tmp_path: Path) -> None:
    agent, _ = _agent("One.", "Two.")
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        for _ in range(2):
            turn = await runtime.session("s", agent=agent).send(hf.File(PICTURE, "image/png"))
            await turn.outcome(timeout=5)
        assert await runtime.store.examine(lambda reader: len(list(reader.raw_blobs()))) == 1
        assert await check(runtime.store) == []


async def test_a_file_is_not_swept_away_while_its_input_waits() -> None:
    agent, _ = _agent("One.")
    clock = ManualClock()
    async with hf.open(None, agents=[agent], drive=False, clock=clock) as runtime:
        await runtime.session("s", agent=agent).send(hf.File(PICTURE, "image/png"))
        clock.advance(10 * 86_400_000)
        assert await runtime.store.collect_blobs() == 0


def test_a_file_is_read_with_the_media_type_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "invoice.pdf"
    path.write_bytes(b"%PDF-")
    found = hf.File.read(path)
    assert (found.media_type, found.name, found.data) == ("application/pdf", "invoice.pdf", b"%PDF-")


@pytest.mark.parametrize(
    ("data", "kind"), [(b"", "image/png"), ("text", "image/png"), (b"x", "png"), (b"x", "image/"), (b"x", "image/ü")]
)
def test_bytes_or_media_types_that_make_no_sense_are_refused(data: Any, kind: str) -> None:
    with pytest.raises(hf.UsageError):
        hf.File(data, kind)


def test_a_file_that_is_not_there_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(hf.UsageError, match="can be read"):
        hf.File.read(tmp_path / "missing.png")


def test_the_bytes_of_a_file_are_not_in_its_repr() -> None:
    assert "PNG" not in repr(hf.File(PICTURE, "image/png"))


async def test_a_file_that_a_tool_returns_reaches_the_model_with_its_bytes(tmp_path: Path) -> None:
    @hf.tool(read_only=True)
    async def photograph() -> list[Any]:
        """Take a picture."""
        return ["here it is", hf.File(PICTURE, "image/png", name="cat.png")]

    model = ScriptedModel([call("photograph"), text("A cat.")])
    agent = hf.Agent("a", model=model, tools=[photograph], policy=[hf.allow("*")])
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime:
        await (await runtime.session("s", agent=agent).send("What is there?")).outcome(timeout=5)
        assert await check(runtime.store) == []
        assert await runtime.store.collect_blobs(unused_ms=0) == 0
    message = model.requests[-1].messages[-1]
    assert isinstance(message, hf.ToolMessage)
    (result,) = message.results
    assert result.content[1]["media_type"] == "image/png"
    assert model.requests[-1].files[result.content[1]["digest"]] == PICTURE


async def test_a_file_in_a_large_result_reaches_the_model_too() -> None:
    @hf.tool(read_only=True)
    async def photograph() -> list[Any]:
        """Take a picture."""
        return ["x" * 100_000, hf.File(PICTURE, "image/png")]

    model = ScriptedModel([call("photograph"), text("A cat."), text("Still a cat.")])
    agent = hf.Agent("a", model=model, tools=[photograph], policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        for said in ("What is there?", "And now?"):
            await (await session.send(said)).outcome(timeout=5)
            assert PICTURE in model.requests[-1].files.values()
        assert model.requests[1].messages[-1] in model.requests[2].messages  # the same in the turn and from the journal
