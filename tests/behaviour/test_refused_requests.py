"""What a provider does not take ends the turn in which it came, by name, and no other one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, pairs_are_whole

import holdfast as hf
from holdfast.runtime.replay_check import check_turns
from holdfast.testing import FakeProvider, ScriptedModel, call, check, error, reply, text

if TYPE_CHECKING:
    from pathlib import Path

WAV = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0" + bytes(30)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


def picky(*, kind: str = "bad_request") -> ScriptedModel:
    """Refuses every request in which it finds a file."""

    def say(request: hf.ModelRequest) -> Any:
        return error("could not process the image", kind=kind) if request.files else text("fine")

    return ScriptedModel(say)


async def test_a_session_goes_on_after_a_file_that_the_dialect_does_not_know(tmp_path: Path) -> None:
    async with FakeProvider([text("a"), text("b")]) as provider:
        model = hf.model("anthropic:claude", base_url=provider.url, api_key="k")
        agent = hf.Agent("a", model=model)
        async with hf.open(tmp_path / "s.db", agents=[agent], mirror=False) as runtime:
            session = runtime.session("s", agent=agent)
            first = await (await session.send(["Listen.", hf.File(WAV, "audio/wav")])).outcome(timeout=SOON)
            assert (first.status, first.code, "audio/wav" in first.message) == ("failed", "bad_request", True)
        async with hf.open(tmp_path / "s.db", agents=[agent], mirror=False) as runtime:
            session = runtime.session("s", agent=agent)
            assert (await (await session.send("And now?")).outcome(timeout=SOON)).status == "completed"
            assert [turn.verdict for turn in await check_turns(runtime.store, "s", agent)] == ["ok", "ok"]
            assert await check(runtime.store) == []


async def test_the_model_is_told_what_was_there_and_the_history_has_it() -> None:
    model = picky()
    agent = hf.Agent("a", model=model)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send(["Look.", hf.File(PNG, "image/png", name="cat.png")])).outcome(timeout=SOON)
        assert (await (await session.send("And now?")).outcome(timeout=SOON)).text == "fine"
        assert "cat.png" in str(model.requests[-1].messages)
        (said, *_) = await session.history()
        assert isinstance(said, hf.UserMessage)
        assert [type(part) for part in said.parts] == [hf.Text, hf.Attachment]


async def test_a_session_goes_on_after_a_file_of_a_tool_that_the_provider_refuses() -> None:
    @hf.tool(read_only=True)
    async def draw() -> hf.File:
        """Draw."""
        return hf.File(PNG, "image/png")

    def say(request: hf.ModelRequest) -> Any:
        return call(draw) if request.position == 0 else error("no", kind="bad_request") if request.files else text("ok")

    agent = hf.Agent("a", model=ScriptedModel(say), tools=[draw])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        assert (await (await session.send("Draw.")).outcome(timeout=SOON)).code == "bad_request"
        assert (await (await session.send("And now?")).outcome(timeout=SOON)).text == "ok"


async def test_files_of_turns_that_went_well_stay() -> None:
    def say(request: hf.ModelRequest) -> Any:
        return error("no", kind="bad_request") if len(request.files) > 1 else text("fine")

    model = ScriptedModel(say)
    agent = hf.Agent("a", model=model)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        for data in (PNG, PNG + b"2"):
            await (await session.send(["Look.", hf.File(data, "image/png")])).outcome(timeout=SOON)
        assert (await (await session.send("And now?")).outcome(timeout=SOON)).status == "completed"
        assert len(model.requests[-1].files) == 1


@pytest.mark.parametrize("kind", ["overloaded", "authentication"])
async def test_what_fails_for_another_reason_takes_no_file_away(kind: str) -> None:
    model = picky(kind=kind)
    agent = hf.Agent("a", model=model)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send(["Look.", hf.File(PNG, "image/png")])).outcome(timeout=SOON)
        await (await session.send("And now?")).outcome(timeout=SOON)
        assert len(model.requests[-1].files) == 1


# ---- the filters of providers ----------------------------------------------------------------------------------------


def prudish(request: hf.ModelRequest) -> Any:
    """Refuses every request in which it finds a word."""
    return error("your prompt was flagged", kind="content_filter") if "damn" in str(request.messages) else text("fine")


async def test_a_session_goes_on_after_words_that_a_filter_refused(tmp_path: Path) -> None:
    agent = hf.Agent("a", model=ScriptedModel(prudish))
    async with hf.open(tmp_path / "s.db", agents=[agent], mirror=False) as runtime:
        session = runtime.session("s", agent=agent)
        assert (await (await session.send("damn it")).outcome(timeout=SOON)).code == "content_filter"
    async with hf.open(tmp_path / "s.db", agents=[agent], mirror=False) as runtime:
        session = runtime.session("s", agent=agent)
        assert (await (await session.send("I am sorry.")).outcome(timeout=SOON)).text == "fine"
        assert "damn it" in str(await session.history())
        assert "damn it" not in str(await session.context())
        assert [turn.verdict for turn in await check_turns(runtime.store, "s", agent)] == ["ok", "ok"]
        assert await check(runtime.store) == []


async def test_a_session_goes_on_after_a_result_that_a_filter_refused() -> None:
    @hf.tool(read_only=True)
    async def fetch() -> str:
        """Fetch."""
        return "damn it"

    def say(request: hf.ModelRequest) -> Any:
        return call(fetch) if request.position == 0 else prudish(request)

    model = ScriptedModel(say)
    agent = hf.Agent("a", model=model, tools=[fetch])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        assert (await (await session.send("Fetch.")).outcome(timeout=SOON)).code == "content_filter"
        assert (await (await session.send("And now?")).outcome(timeout=SOON)).text == "fine"
        assert pairs_are_whole(model.requests[-1].messages[:-1])


async def test_an_answer_that_a_filter_stopped_takes_nothing_away() -> None:
    model = ScriptedModel([reply(text("half"), finish="content_filter"), text("fine")])
    agent = hf.Agent("a", model=model)
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        assert (await (await session.send("Tell me.")).outcome(timeout=SOON)).code == "content_filter"
        await (await session.send("And now?")).outcome(timeout=SOON)
        assert "Tell me." in str(model.requests[-1].messages)
