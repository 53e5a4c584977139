"""Hooks see what a model is asked outside of conversations, too: by the host, by durable functions, by tools."""
# ruff: noqa: ARG005  hooks take what they are given

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.hooking import Models, raises
from tests.behaviour.talk import SOON

import holdfast as hf
from holdfast.errors import ModelError
from holdfast.messages import Usage
from holdfast.records import Done, Failed
from holdfast.runtime.replay_check import check_turns
from holdfast.testing import ScriptedModel, call, check, reply, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.messages import ModelReply
    from holdfast.policy.hooks import Deny, ModelDecision


class Watching(hf.Hooks):
    """Writes down what it sees of direct questions."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str, str]] = []
        self.replies: list[str] = []

    async def before_model(self, asked: hf.HookRequest) -> ModelDecision | None:
        if asked.kind == "direct":
            message = asked.request.messages[0]
            said = message.text if isinstance(message, hf.UserMessage) else ""
            self.seen.append((asked.turn.session, asked.turn.agent, asked.turn.turn, said))

    async def after_model(self, asked: hf.HookRequest, reply: ModelReply) -> Deny | None:
        if asked.kind == "direct":
            self.replies.append(reply.text)


def answers(said: str = "yes") -> ScriptedModel:
    return ScriptedModel([reply(text(said), usage=Usage(input=3, output=1))] * 5)


# ---- the host --------------------------------------------------------------------------------------------------------


async def test_hooks_of_the_runtime_see_what_the_host_asks() -> None:
    hooks = Watching()
    async with hf.open(None, hooks=[hooks]) as runtime:
        assert await runtime.complete(answers(), "May I?") == "yes"
    assert (hooks.seen, hooks.replies) == ([("", "", "", "May I?")], ["yes"])


async def test_a_question_of_the_host_that_a_hook_denies_is_not_asked() -> None:
    model = answers()
    async with hf.open(None, hooks=[Models(lambda asked: asked.deny("not now"))]) as runtime:
        with pytest.raises(ModelError, match="not now") as caught:
            await runtime.complete(model, "May I?")
    assert (caught.value.kind, model.requests) == ("denied", [])


async def test_a_hook_may_answer_a_question_of_the_host() -> None:
    model = answers()
    async with hf.open(None, hooks=[Models(lambda asked: asked.answer("7"))]) as runtime:
        assert await runtime.complete(model, "How many?", output=int) == 7
        assert model.requests == []


async def test_an_answer_that_a_hook_denies_is_not_given() -> None:
    model = answers()
    async with hf.open(None, hooks=[Models(after=lambda asked, reply: asked.deny("it tells too much"))]) as runtime:
        with pytest.raises(ModelError, match="too much"):
            await runtime.complete(model, "May I?", key="q")
        entries = await runtime.store.read("direct/q")
        outcomes = [entry.record for entry in entries if isinstance(entry.record, Done | Failed)]
        assert isinstance(outcomes[-1], Failed)
        assert not any(isinstance(each, Done) and b"yes" in bytes(each.value) for each in outcomes)


async def test_what_an_answer_took_that_a_hook_denies_counts(tmp_path: Path) -> None:
    hooks = Models(after=lambda asked, reply: asked.deny("it tells too much"))
    for _ in range(2):  # the second time it is there already
        async with hf.open(tmp_path / "s.db", hooks=[hooks], mirror=False) as runtime:
            model = answers()
            with pytest.raises(ModelError, match="too much"):
                await runtime.complete(model, "May I?", key="q")
            spent = await runtime.store.spent(model.name)
            assert (spent.input_tokens, spent.output_tokens) == (3, 1)
            assert await check(runtime.store) == []


async def test_a_hook_that_raises_denies_a_question_of_the_host() -> None:
    async with hf.open(None, hooks=[Models(raises)]) as runtime:
        with pytest.raises(ModelError) as caught:
            await runtime.complete(answers(), "May I?")
        assert caught.value.kind == "denied"


async def test_a_hook_is_not_asked_about_an_answer_that_is_there(tmp_path: Path) -> None:
    hooks = Watching()
    for _ in range(2):
        async with hf.open(tmp_path / "s.db", hooks=[hooks], mirror=False) as runtime:
            assert await runtime.complete(answers(), "May I?", key="q") == "yes"
            assert await check(runtime.store) == []
    assert len(hooks.seen) == 1


# ---- durable functions -----------------------------------------------------------------------------------------------


async def test_hooks_of_the_runtime_see_what_durable_functions_ask() -> None:
    @hf.process
    async def curious(ctx: hf.ProcessContext) -> list[str]:
        return list(await asyncio.gather(*(ctx.complete(answers(), f"May I {n}?") for n in range(3))))

    hooks = Watching()
    async with hf.open(None, processes=[curious], hooks=[hooks]) as runtime:
        handle = await runtime.start(curious, session="s")
        assert await handle.result(timeout=SOON) == ["yes"] * 3
        assert sorted(hooks.seen) == [("s", "", "", f"May I {n}?") for n in range(3)]
        assert await check(runtime.store) == []


async def test_what_hooks_decided_about_a_durable_function_is_not_asked_again(tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def hangs(request: hf.ModelRequest) -> Any:
        if not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return text("yes")

    @hf.process
    async def curious(ctx: hf.ProcessContext) -> str:
        return await ctx.complete(ScriptedModel([hangs, hangs]), "May I?")

    hooks = Watching()
    async with hf.open(tmp_path / "s.db", processes=[curious], hooks=[hooks], mirror=False) as runtime:
        await runtime.start(curious, id="p")
        await asyncio.wait_for(reached.wait(), SOON)
        await runtime.close(grace=0)
    async with hf.open(tmp_path / "s.db", processes=[curious], hooks=[hooks], mirror=False) as runtime:
        assert await runtime.processes.handle("p").result(timeout=SOON) == "yes"
    assert len(hooks.seen) == 1


# ---- tools -----------------------------------------------------------------------------------------------------------


class Asking:
    """An agent whose tool asks a model by itself."""

    def __init__(self, **options: Any) -> None:
        self.hooks = Watching()
        self.runtime: Any = None
        asking = self

        @hf.tool(read_only=True, **options)
        async def ponder() -> str:
            """Ponder."""
            return await asking.runtime.complete(answers(), "Shall I?")

        script = [call(ponder), text("done"), text("heard")]
        self.agent = hf.Agent("a", model=ScriptedModel(script), tools=[ponder], hooks=[self.hooks])

    async def ran(self, **options: Any) -> None:
        async with hf.open(None, agents=[self.agent], **options) as self.runtime:
            turn = await self.runtime.session("s", agent=self.agent).send("go")
            await turn.outcome(timeout=SOON)
            while not all(line.status == "completed" for line in await self.runtime.store.journals()):
                await self.runtime.store.changed(self.runtime.store.version, SOON)


async def test_hooks_of_an_agent_see_what_its_tools_ask() -> None:
    asking = Asking()
    await asking.ran()
    assert (asking.hooks.seen, asking.hooks.replies) == ([("s", "a", "t1", "Shall I?")], ["yes"])


async def test_hooks_of_an_agent_see_what_its_tools_ask_in_the_background() -> None:
    asking = Asking(background=True)
    await asking.ran()
    assert asking.hooks.seen == [("s", "a", "t1", "Shall I?")]


async def test_hooks_of_the_runtime_and_the_agent_see_each_question_of_a_tool_once() -> None:
    asking, own = Asking(), Watching()
    await asking.ran(hooks=[own])
    assert own.seen == asking.hooks.seen == [("s", "a", "t1", "Shall I?")]


async def test_who_has_replayed_a_turn_asks_in_the_own_name_afterwards() -> None:
    asking = Asking()
    async with hf.open(None, agents=[asking.agent]) as asking.runtime:
        await (await asking.runtime.session("s", agent=asking.agent).send("go")).outcome(timeout=SOON)
        await check_turns(asking.runtime.store, "s", asking.agent)
        await asking.runtime.complete(answers(), "May I?")
    assert [said for *_, said in asking.hooks.seen] == ["Shall I?"]


async def test_what_a_tool_asks_counts_for_its_agent() -> None:
    asking = Asking()
    async with hf.open(None, agents=[asking.agent]) as runtime:
        asking.runtime = runtime
        await (await runtime.session("s", agent=asking.agent).send("go")).outcome(timeout=SOON)
        own = await runtime.session("s").total_usage()
        spent = await runtime.store.spent("a")
        assert spent.input_tokens + spent.output_tokens == own.usage.total + 4
        assert spent.model_calls == 3
        assert await check(runtime.store) == []


async def test_a_question_with_a_key_is_the_same_whoever_asks_it_first() -> None:
    answered: list[str] = []

    @hf.tool(read_only=True)
    async def ponder() -> str:
        """Ponder."""
        answered.append(await runtime.complete(answers("by the tool"), "Shall I?", key="q"))
        return "done"

    agent = hf.Agent("a", model=ScriptedModel([call(ponder), text("done")]), tools=[ponder])
    async with hf.open(None, agents=[agent]) as runtime:
        assert await runtime.complete(answers("by the host"), "Shall I?", key="q") == "by the host"
        await runtime.run(agent, "go")
    assert answered == ["by the host"]


async def test_hooks_of_an_agent_do_not_see_what_the_host_asks() -> None:
    asking = Asking()
    async with hf.open(None, agents=[asking.agent]) as runtime:
        await runtime.complete(answers(), "May I?")
    assert asking.hooks.seen == []
