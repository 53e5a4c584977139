"""Secrets in what hooks, rules and predicates say: no model, journal, outcome, log or recording tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import holdfast as hf
from holdfast.testing import FakeProvider, ScriptedModel, call, reply, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.messages import ToolResult
    from holdfast.policy.hooks import HookCall, TurnContext
    from holdfast.policy.rules import Call

KEY = "c4n4ry-Zq7/xK2+m9PwLt55"
MARK = "[secret KEY]"


def pieces(found: str) -> list[str]:
    """Pieces of the secret that stand in a text."""
    return [KEY[at : at + 8] for at in range(len(KEY) - 7) if KEY[at : at + 8] in found]


def stored(folder: Path) -> str:
    """All that is in the files of a folder."""
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file()).decode("latin-1")


@hf.tool
async def pay(cents: int = 5) -> str:
    """Pay."""
    return "paid"


class Raises(hf.Hooks):
    """Fails after each call, with the secret in its words."""

    def __init__(self, words: str) -> None:
        self.words = words

    async def after_tool(self, call: HookCall, result: ToolResult) -> None:
        raise RuntimeError(self.words)


class DeniesCalls(hf.Hooks):
    """Denies each call."""

    async def before_tool(self, call: HookCall) -> Any:
        return call.deny(f"not with {KEY}")


class DeniesTurns(hf.Hooks):
    """Denies each turn."""

    def __init__(self, words: str) -> None:
        self.words = words

    async def before_turn(self, turn: TurnContext) -> Any:
        return turn.deny(self.words)


def failing(call: Call) -> bool:
    raise ValueError("x" * 185 + KEY)


WORDS = {"once": f"no connection with {KEY} there", **{f"cut at {n}": "x" * n + KEY * 300 for n in (0, 9, 17)}}
ALLOWED = [hf.allow("*")]
AGENTS: dict[str, dict[str, Any]] = {
    **{f"a hook after the call raises, {how}": {"hooks": [Raises(said)]} for how, said in WORDS.items()},
    **{f"a hook denies the turn, {how}": {"hooks": [DeniesTurns(said)]} for how, said in WORDS.items()},
    "a hook denies the call": {"hooks": [DeniesCalls()]},
    "a rule denies": {"policy": [hf.deny("pay", reason=f"ask for {KEY} there")]},
    "a rule denies that has it in its name": {"policy": [hf.deny("pay", name=f"rule {KEY}")]},
    "a predicate fails": {"policy": [hf.allow("pay", when=failing)]},
}


@pytest.mark.parametrize("given", AGENTS.values(), ids=AGENTS)
async def test_the_words_of_a_host_do_not_tell_it(
    given: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("KEY", KEY)
    caplog.set_level("DEBUG")
    model = ScriptedModel([call("pay"), text("Done.")])
    options: dict[str, Any] = {"policy": ALLOWED} | given
    agent = hf.Agent("a", model=model, tools=[pay], **options)
    async with hf.open(tmp_path / "s.db", agents=[agent], secrets={"KEY": "env:KEY"}) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        shown = [repr(event) async for event in turn.events()]
        outcome = await turn.outcome()
        history = repr(await runtime.session("s").history())
    asked = [msgspec.json.encode(request.messages).decode() for request in model.requests]
    files = stored(tmp_path)
    for place in (*asked, *shown, repr(outcome), history, caplog.text, files):
        assert pieces(place) == []


async def test_what_a_tool_says_about_itself_does_not_tell_it_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    @hf.tool(read_only=True, description=f"Look at https://example.com/?key={KEY}")
    async def look(place: str = KEY) -> str:
        return place

    monkeypatch.setenv("KEY", KEY)
    model = ScriptedModel([call("look"), text("Done.")])
    agent = hf.Agent("a", model=model, tools=[look])
    async with hf.open(None, agents=[agent], secrets={"KEY": "env:KEY"}) as runtime:
        assert (await runtime.run(agent, "go")).text == "Done."
    for request in model.requests:
        told = msgspec.json.encode(request.tools).decode()
        assert MARK in told
        assert pieces(told) == []


async def test_a_refusal_that_is_cut_does_not_tell_half_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", KEY)
    agent = hf.Agent("a", model=ScriptedModel([]))
    async with hf.open(None, agents=[agent], secrets={"KEY": "env:KEY"}) as runtime:
        for padding in range(960, 1_000, 8):
            said = "x" * padding + KEY
            await runtime.store.note_refusal("s", agent="a", key=None, error="InputTooLarge", message=said)
        assert [found for refusal in await runtime.refusals("s") if (found := pieces(refusal.message))] == []


# ---- recordings ----


@pytest.mark.parametrize("chunks", [1, 7])
@pytest.mark.parametrize("form", [lambda: KEY, lambda: KEY.encode().hex(":")], ids=["as it is", "as hex with colons"])
async def test_a_reply_that_is_recorded_does_not_tell_it(
    form: Callable[[], str], chunks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", KEY)
    path = tmp_path / "talk.json"

    @hf.tool(read_only=True)
    async def look() -> str:
        """Look."""
        return "seen"

    async def talk(model: hf.RecordedModel) -> list[str]:
        agent = hf.Agent("a", model=model, tools=[look])
        async with hf.open(None, agents=[agent], secrets={"KEY": "env:KEY"}) as runtime:
            await runtime.run(agent, "go", session="s")
            return [repr(message) for message in await runtime.session("s").history()]

    script = [reply(f"I use {form()}. ", call("look")), text("Done.")]
    async with FakeProvider(script, chunks=chunks) as provider:
        real = hf.model("openai-chat:model-1", base_url=f"{provider.url}/v1", api_key="k-123456789")
        recorded = await talk(hf.RecordedModel(path, real, mode="record"))
    written = path.read_text()
    assert MARK in written
    assert form()[:20] not in written
    assert pieces(written) == []
    assert await talk(hf.RecordedModel(path)) == recorded


@pytest.mark.parametrize("between", ["", ":", "-"])
async def test_a_key_that_the_provider_repeats_in_another_form_is_not_recorded(between: str, tmp_path: Path) -> None:
    key = "provider-key-5f2c9a7e41d0"
    digits = key.encode().hex(between) if between else key.encode().hex()
    async with FakeProvider([text(f"You sent {digits}.")], chunks=9) as provider:
        real = hf.model("openai-chat:model-1", base_url=f"{provider.url}/v1", api_key=key)
        await hf.run(hf.Agent("a", model=hf.RecordedModel(tmp_path / "t.json", real, mode="record")), "go")
    again = await hf.run(hf.Agent("a", model=hf.RecordedModel(tmp_path / "t.json")), "go")
    assert again.text == "You sent REDACTED."
