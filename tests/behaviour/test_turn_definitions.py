"""Instructions by functions, tools by providers and filters, model and settings by the request: once for each turn."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.behaviour.coding import program
from tests.behaviour.talk import until
from tests.sandboxed import needs_sandbox

import holdfast as hf
from holdfast import errors
from holdfast.messages import ToolMessage
from holdfast.models import register
from holdfast.runtime.replay_check import check_turns
from holdfast.store import open_store
from holdfast.testing import ScriptedModel, call, error, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.behaviour.shell import Shell

    from holdfast.store import Store

WORD = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
EVERYTHING = (hf.allow("*"),)


@dataclass
class Shelf:
    """A provider whose list the test changes."""

    tools: Any = field(default_factory=lambda: [hf.ProvidedTool("say", "Say a word.", WORD, read_only=True)])
    name: str = "shelf"
    asked: int = 0
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])

    async def list(self, ctx: hf.TurnContext[Any]) -> Any:
        self.asked += 1
        return self.tools

    async def call(self, ctx: hf.Context[Any], tool: hf.ProvidedTool, arguments: dict[str, Any]) -> Any:
        if self.tools == []:
            raise errors.ToolGone(tool.name, self.name)
        self.calls.append((tool.name, arguments))
        return f"said {arguments['word']}"


class Told:
    """Gives other instructions each time that it is asked."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.asked = 0

    def __call__(self, turn: hf.TurnContext[Any]) -> str:
        self.asked += 1
        return self.texts.pop(0)


@hf.tool(read_only=True)
async def look(word: str) -> str:
    """Look a word up."""
    return word.upper()


@hf.tool
async def pay(word: str) -> str:
    """Pay."""
    return f"paid {word}"


def always(*_: object) -> bool:
    return True


def second(_: hf.TurnContext) -> str:
    return "Second."


def nothing(_: hf.TurnContext) -> str:
    return ""


def texts(history: Sequence[Any]) -> list[str]:
    return [message.text for message in history]


def agent_of(model: ScriptedModel, tools: Any = (), instructions: Any = "", **options: Any) -> hf.Agent:
    options.setdefault("policy", EVERYTHING)
    return hf.Agent("a", model=model, tools=list(tools), instructions=instructions, **options)


async def say(runtime: hf.Runtime, words: str = "hello", **options: Any) -> hf.TurnOutcome:
    return await (await runtime.session("s", agent="a").send(words, **options)).outcome()


def results(history: Sequence[Any]) -> list[tuple[str, str]]:
    found = [each for message in history if isinstance(message, ToolMessage) for each in message.results]
    return [(each.state, str(each.content)) for each in found]


async def asked_of(runtime: hf.Runtime, session: str = "s") -> list[Any]:
    """What the model got in each request: model, instructions, tools and settings, by the journal."""
    found = await runtime.session(session).requests()
    assert all(each.exact for each in found)
    return [
        (each.model, each.request.instructions, [tool.name for tool in each.request.tools], each.request.settings)
        for each in found
    ]


async def verdicts(store: Store, agent: hf.Agent) -> list[str]:
    return [found.verdict for found in await check_turns(store, "s", agent)]


# ---- instructions ----------------------------------------------------------------------------------------------------


async def test_a_function_gives_the_instructions_of_a_turn() -> None:
    async def instruct(turn: hf.TurnContext[int]) -> str:
        said = "" if turn.input is None else turn.input.text
        return f"{turn.agent} {turn.session} {turn.turn} {turn.deps} {turn.metadata['user']} {said}"

    model = ScriptedModel([call("look", word="a"), text("A.")])
    agent = agent_of(model, [look], instruct)
    async with hf.open(None, agents=[agent], deps=7) as runtime:
        await say(runtime, metadata={"user": "ada"})
    assert [each.instructions for each in model.requests] == ["a s t1 7 ada hello"] * 2


async def test_texts_and_functions_are_joined_in_their_order() -> None:
    model = ScriptedModel(["ok"])
    agent = agent_of(model, instructions=["First.", second, nothing, "Third."])
    async with hf.open(None, agents=[agent]) as runtime:
        await say(runtime)
    assert model.requests[0].instructions == "First.\n\nSecond.\n\nThird."
    assert agent.instructions == "First.\n\nThird."


async def test_a_plain_function_runs_in_a_thread_and_may_give_an_awaitable() -> None:
    threads: list[int] = []

    async def later() -> str:
        return "Be kind."

    def instruct(_: hf.TurnContext) -> Any:
        threads.append(threading.get_ident())
        return later()

    model = ScriptedModel(["ok"])
    async with hf.open(None, agents=[agent_of(model, instructions=instruct)]) as runtime:
        await say(runtime)
    assert model.requests[0].instructions == "Be kind."
    assert threading.get_ident() not in threads


async def test_each_turn_asks_once_and_has_its_own_answer_in_the_journal() -> None:
    told, model = Told("One.", "Two."), ScriptedModel([call("look", word="a"), text("A."), text("B.")])
    agent = agent_of(model, [look], told)
    async with hf.open(None, agents=[agent]) as runtime:
        await say(runtime)
        await say(runtime)
        assert [each[1] for each in await asked_of(runtime)] == ["One.", "One.", "Two."]
        assert await verdicts(runtime.store, agent) == ["ok", "ok"]
    assert told.asked == 2


ASKING = (hf.ask("say"), hf.ask("pay"), hf.allow("*"))
"""A person is asked about `say` and `pay`."""


async def park(store: Store, agent: hf.Agent, **options: Any) -> None:
    """A turn that waits for a person when its process ends."""
    async with hf.Runtime(store, [agent]) as runtime:
        await runtime.session("s", agent=agent).send("hello", **options)
        await until(lambda: _waits(runtime))


async def _waits(runtime: hf.Runtime) -> bool:
    return await runtime.session("s").status() == "waiting"


async def go_on(store: Store, agent: hf.Agent) -> tuple[hf.TurnOutcome, list[tuple[str, str]], list[Any]]:
    """Approve, and run the turn to its end in another process; its outcome, tool results and requests."""
    async with hf.Runtime(store, [agent]) as runtime:
        for approval in await runtime.approvals():
            await runtime.approve(approval.id, by="ann")
        outcome = await runtime.session("s").turn("t1").outcome()
        return outcome, results(await runtime.session("s").history()), await asked_of(runtime)


async def test_a_turn_that_goes_on_in_another_process_has_what_it_began_with() -> None:
    def shelf(*names: str) -> Shelf:
        return Shelf([hf.ProvidedTool(name, f"To {name}.", WORD) for name in names])

    before, after = shelf("say", "sing"), shelf("say", "dance", "jump")
    async with open_store(None) as store:
        await park(store, agent_of(ScriptedModel([call("say", word="x")]), [before], Told("Then."), policy=ASKING))
        told = Told("Now.", "Next.")
        model = ScriptedModel([text("never"), text("Done."), text("More.")])
        agent = agent_of(model, [after], told, policy=ASKING)
        outcome, said, asked = await go_on(store, agent)
        assert (outcome.status, said) == ("completed", [("ok", "said x")])
        assert after.calls == [("say", {"word": "x"})]
        assert {(told.partition("\n")[0], *tools) for _, told, tools, _ in asked} == {("Then.", "say", "sing")}
        assert (after.asked, told.asked) == (0, 0)
        assert await verdicts(store, agent) == ["ok"]
        async with hf.Runtime(store, [agent]) as runtime:
            await say(runtime)
            assert (await asked_of(runtime))[-1][2] == ["say", "dance", "jump"]


# ---- providers -------------------------------------------------------------------------------------------------------


async def test_a_provider_lists_the_tools_of_a_turn_and_runs_them() -> None:
    shelf, model = Shelf(), ScriptedModel([call("say", word="x"), text("Done.")])
    async with hf.open(None, agents=[agent_of(model, [shelf, look])]) as runtime:
        assert (await say(runtime)).text == "Done."
        assert results(await runtime.session("s").history()) == [("ok", "said x")]
    assert [tool.name for tool in model.requests[0].tools] == ["say", "look"]
    assert model.requests[0].tools[0].parameters == {**WORD, "additionalProperties": False}
    assert (shelf.asked, shelf.calls) == (1, [("say", {"word": "x"})])


async def test_arguments_that_do_not_match_the_schema_go_back_to_the_model() -> None:
    shelf, model = Shelf(), ScriptedModel([call("say", word=7), text("Done.")])
    async with hf.open(None, agents=[agent_of(model, [shelf])]) as runtime:
        await say(runtime)
        [(state, content)] = results(await runtime.session("s").history())
    assert (state, shelf.calls) == ("error", [])
    assert 'word: 7 is not of type "string"' in content


async def test_a_tool_that_is_gone_is_a_result_for_the_model() -> None:
    shelf = Shelf([hf.ProvidedTool("say", "Say.", WORD)])
    for gone in ([Shelf([])], []):  # the provider no longer has it, or the agent no longer has the provider
        async with open_store(None) as store:
            await park(store, agent_of(ScriptedModel([call("say", word="x")]), [shelf], policy=ASKING))
            model = ScriptedModel([text("never"), text("Then not.")])
            outcome, [(state, content)], _ = await go_on(store, agent_of(model, gone, policy=ASKING))
            assert (outcome.text, state) == ("Then not.", "error")
            assert "'shelf' no longer has it" in content


async def test_an_approval_is_for_the_version_that_was_listed() -> None:
    def shelf(version: str, name: str = "shelf") -> Shelf:
        return Shelf([hf.ProvidedTool("say", "Say.", WORD, version=version)], name)

    async with hf.open(
        None, agents=[agent_of(ScriptedModel(lambda _: call("say", word="x")), [one := shelf("1")], policy=ASKING)]
    ) as runtime:
        await runtime.session("s", agent="a").send("hello")
        await until(lambda: _waits(runtime))
        (approval,) = await runtime.approvals()
        first = approval.digest
    assert one.calls == []
    digests = {first}
    for other in (shelf("2"), shelf("1", "other")):
        async with hf.open(
            None, agents=[agent_of(ScriptedModel([call("say", word="x")]), [other], policy=ASKING)]
        ) as runtime:
            await runtime.session("s", agent="a").send("hello")
            await until(lambda: _waits(runtime))
            (approval,) = await runtime.approvals()
            digests.add(approval.digest)
    assert len(digests) == 3


async def test_what_an_untrusted_tool_said_taints_a_later_turn_that_no_longer_has_the_tool() -> None:
    shelf = Shelf([hf.ProvidedTool("say", "Say.", WORD, read_only=True)])

    @hf.tool(read_only=True, reach=hf.Reach(private=True))
    async def letters() -> str:
        """Read letters."""
        return "private"

    script = [[call("say", word="x"), call("letters")], text("Read."), call("pay", word="y"), text("Paid.")]
    agent = agent_of(ScriptedModel(script), [shelf, hf.toolset(letters, pay).filter(always)])
    async with hf.open(None, agents=[agent]) as runtime:
        await say(runtime)
        shelf.tools = []
        await runtime.session("s").send("pay")
        await until(lambda: _waits(runtime))
        (approval,) = await runtime.approvals()
        assert approval.rule == "taint"
        assert "say, t1/2.tools/1.say of s" in approval.why


async def test_what_a_deferred_call_read_taints_a_later_turn_that_no_longer_has_the_tool() -> None:
    keys: list[str] = []

    class Slow(Shelf):
        async def call(self, ctx: hf.Context[Any], tool: hf.ProvidedTool, arguments: dict[str, Any]) -> Any:
            deferred = await ctx.defer(timeout=60)
            keys.append(deferred.key)
            return deferred

    @hf.tool(read_only=True, untrusted=True)
    async def page() -> str:
        """Read a page."""
        return "strange"

    listed = hf.ProvidedTool("say", "Say.", WORD, read_only=True, untrusted=False, reach=hf.Reach(private=True))
    shelf = Slow([listed])
    script = [[call("say", word="x"), call("page")], text("Read."), call("pay", word="y"), text("Paid.")]
    agent = agent_of(ScriptedModel(script), [shelf, page, pay])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        await until(lambda: _waits(runtime))
        await runtime.resolve(keys[0], "a secret letter")
        await turn.outcome()
        shelf.tools = []
        await runtime.session("s").send("pay")
        await until(lambda: _waits(runtime))
        (approval,) = await runtime.approvals()
        assert (approval.tool, approval.rule) == ("pay", "taint")


async def test_taint_counts_where_only_the_provider_lists_tools_that_reach_out() -> None:
    private, outside = hf.Reach(private=True), hf.Reach(external=True)
    shelf = Shelf(
        [
            hf.ProvidedTool("say", "Say.", WORD, read_only=True, reach=private),
            hf.ProvidedTool("fetch", "Fetch.", WORD, read_only=True, reach=outside),
        ]
    )
    model = ScriptedModel([call("say", word="x"), call("fetch", word="y"), text("Done.")])
    async with hf.open(None, agents=[agent_of(model, [shelf], policy=None)]) as runtime:
        await runtime.session("s", agent="a").send("hello")
        await until(lambda: _waits(runtime))
        assert [(each.tool, each.rule) for each in await runtime.approvals()] == [("fetch", "taint")]


async def test_a_call_of_a_provider_goes_on_in_the_background_in_another_process() -> None:
    listed = [hf.ProvidedTool("say", "Say a word.", WORD, idempotent=True)]
    release = asyncio.Event()

    class Slow(Shelf):
        async def call(self, ctx: hf.Context[Any], tool: hf.ProvidedTool, arguments: dict[str, Any]) -> Any:
            await release.wait()
            return await super().call(ctx, tool, arguments)

    async with open_store(None) as store:
        model = ScriptedModel([call("say", word="x"), text("Begun.")])
        slow = Slow(listed)
        async with hf.Runtime(store, [agent_of(model, [slow], inline_budget=0.01)]) as runtime:
            assert (await say(runtime)).text == "Begun."
            await runtime.close(grace=0.1)
        after = Shelf([hf.ProvidedTool("other", "Other.", WORD)])
        agent = agent_of(ScriptedModel([text("never"), text("never"), text("I see.")]), [after])
        async with hf.Runtime(store, [agent]) as runtime:
            async for event in runtime.events(0):
                if isinstance(event, hf.TurnCompleted) and event.turn == "t2":
                    break
            (task,) = await runtime.tasks.list(session="s")
            assert (await runtime.tasks.task(task.id)).status == "succeeded"
        assert (slow.calls, after.calls) == ([], [("say", {"word": "x"})])


async def test_a_tool_of_a_provider_may_leave_its_answer_to_others() -> None:
    keys: list[str] = []

    class Later(Shelf):
        async def call(self, ctx: hf.Context[Any], tool: hf.ProvidedTool, arguments: dict[str, Any]) -> Any:
            pending = await ctx.defer()
            keys.append(pending.key)
            return pending

    async with open_store(None) as store:
        model = ScriptedModel([call("say", word="x")])
        listed = [hf.ProvidedTool("say", "Say.", WORD)]
        await park(store, agent_of(model, [Later(listed)]))
        agent = agent_of(ScriptedModel([text("never"), text("Done.")]), [Later([])])
        async with hf.Runtime(store, [agent]) as runtime:
            await runtime.resolve(keys[0], {"any": "value"})
            assert (await runtime.session("s").turn("t1").outcome()).text == "Done."
            assert results(await runtime.session("s").history()) == [("ok", "{'any': 'value'}")]


async def test_a_task_whose_provider_is_missing_is_left_to_another_process() -> None:
    listed = [hf.ProvidedTool("say", "Say a word.", WORD, idempotent=True)]

    class Stuck(Shelf):
        async def call(self, ctx: hf.Context[Any], tool: hf.ProvidedTool, arguments: dict[str, Any]) -> Any:
            await asyncio.Event().wait()

    async with open_store(None) as store:
        model = ScriptedModel([call("say", word="x"), text("Begun.")])
        async with hf.Runtime(store, [agent_of(model, [Stuck(listed)], inline_budget=0.01)]) as runtime:
            await say(runtime)
            await runtime.close(grace=0.1)
        async with hf.Runtime(store, [agent_of(ScriptedModel([]))]) as runtime:
            (task,) = await runtime.tasks.list(session="s")
            await until(lambda: _is_left(runtime))
            assert (await runtime.tasks.task(task.id)).status in {"running", "waiting"}


async def _is_left(runtime: hf.Runtime) -> bool:
    return [each.action for each in await runtime.tasks.recover()] == ["left"]


# ---- toolsets --------------------------------------------------------------------------------------------------------


async def test_toolsets_of_providers_are_prefixed_renamed_and_filtered() -> None:
    shelf = Shelf([hf.ProvidedTool(name, name, WORD, read_only=True) for name in ("say", "sing", "dance")])
    tools = (
        hf.toolset(shelf, look)
        .without("dance")
        .rename(sing="hum")
        .prefix("x_")
        .filter(lambda _, tool: tool.name != "x_look")
    )
    model = ScriptedModel([call("x_hum", word="a"), text("ok")])
    async with hf.open(None, agents=[agent_of(model, [tools])]) as runtime:
        await say(runtime)
    assert [tool.name for tool in model.requests[0].tools] == ["x_say", "x_hum"]
    assert shelf.calls == [("sing", {"word": "a"})]


async def test_a_filter_chooses_tools_for_each_turn_by_the_context() -> None:
    async def may(turn: hf.TurnContext[Any], tool: hf.Tool[..., Any]) -> bool:
        return tool.read_only or turn.metadata.get("role") == "clerk"

    model = ScriptedModel(lambda _: "ok")
    agent = agent_of(model, [hf.toolset(look, pay).filter(may)])
    async with hf.open(None, agents=[agent]) as runtime:
        await say(runtime)
        await say(runtime, metadata={"role": "clerk"})
        assert [tools for _, _, tools, _ in await asked_of(runtime)] == [["look"], ["look", "pay"]]
        assert await verdicts(runtime.store, agent) == ["ok", "ok"]
    assert list(agent.tools) == ["look", "pay"]


async def test_a_call_of_a_tool_that_the_filter_left_out_is_unknown() -> None:
    model = ScriptedModel([call("pay", word="x"), text("ok")])
    agent = agent_of(model, [hf.toolset(look, pay).filter(lambda _, tool: tool.read_only)])
    async with hf.open(None, agents=[agent]) as runtime:
        await say(runtime)
        [(state, content)] = results(await runtime.session("s").history())
    assert state == "error"
    assert "look" in content


async def test_a_toolset_that_requires_approval_asks_a_person_about_calls_that_the_policy_allows() -> None:
    shelf = Shelf([hf.ProvidedTool("say", "Say.", WORD), hf.ProvidedTool("sing", "Sing.", WORD)])
    tools = hf.toolset(shelf, look).require_approval("say", "look")
    model = ScriptedModel([[call("say", word="a"), call("sing", word="b"), call("look", word="c")], text("ok")])
    agent = agent_of(model, [tools])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        await until(lambda: _waits(runtime))
        found = await runtime.approvals()
        assert {(each.tool, each.rule) for each in found} == {("say", "toolset"), ("look", "toolset")}
        for approval in found:
            await runtime.approve(approval.id)
        assert (await turn.outcome()).text == "ok"
    assert sorted(shelf.calls) == [("say", {"word": "a"}), ("sing", {"word": "b"})]
    assert agent.decide("look", {"word": "c"}).verdict == "ask"


# ---- model and settings of a request ---------------------------------------------------------------------------------


@pytest.fixture
def played() -> ScriptedModel:
    """A model that `send(model="played:it")` names."""
    model = ScriptedModel(lambda request: "ok" if request.messages else "", name="played:it")
    register("played", lambda _: model)
    return model


async def test_a_request_names_its_model_and_settings(played: ScriptedModel) -> None:
    own = ScriptedModel(lambda _: "ok")
    agent = agent_of(own, settings=hf.Settings(temperature=0.1, seed=4))
    async with hf.open(None, agents=[agent]) as runtime:
        await say(runtime, model="played:it", settings=hf.Settings(temperature=0.9))
        await say(runtime)
        await runtime.run("a", "hi", session="s", settings=hf.Settings(seed=5))
        await (await runtime.emit(hf.EmitRequest("a", "hi", session="s", model="played:it"))).outcome()
        asked = await asked_of(runtime)
        assert await verdicts(runtime.store, agent) == ["ok"] * 4
    found = [(model, settings.temperature, settings.seed) for model, _, _, settings in asked]
    assert found == [
        ("played:it", 0.9, 4),
        (own.name, 0.1, 4),
        (own.name, 0.1, 5),
        ("played:it", 0.1, 4),
    ]
    assert (len(played.requests), len(own.requests)) == (2, 2)


async def test_the_model_of_a_request_outlives_its_process(played: ScriptedModel) -> None:
    async with open_store(None) as store:
        agent = agent_of(ScriptedModel([]), [pay], policy=ASKING)
        script = ScriptedModel([call("pay", word="x")], name="played:it")
        register("played", lambda _: script)
        await park(store, agent, model="played:it", settings=hf.Settings(seed=3))
        register("played", lambda _: played)
        outcome, _, asked = await go_on(store, agent)
        assert outcome.status == "completed"
        assert [(model, settings.seed) for model, _, _, settings in asked] == [("played:it", 3)] * 2


async def test_an_unknown_model_is_refused_before_anything_is_accepted() -> None:
    async with hf.open(None, agents=[agent_of(ScriptedModel(["ok"]))]) as runtime:
        with pytest.raises(errors.ModelUnknown):
            await say(runtime, model="nobody:knows")
        refused: list[dict[str, Any]] = [{"model": 7}, {"settings": {"seed": 1}}, {"model": "played:it", "steer": True}]
        for wrong in refused:
            with pytest.raises(errors.UsageError):
                await say(runtime, **wrong)
        assert await runtime.sessions() == []


async def test_a_retry_asks_the_model_of_the_request_again(played: ScriptedModel) -> None:
    failing = ScriptedModel(lambda _: error("overloaded", kind="bad_request"), name="played:it")
    register("played", lambda _: failing)
    async with hf.open(None, agents=[agent_of(ScriptedModel([]))]) as runtime:
        turn = await runtime.session("s", agent="a").send("hi", model="played:it", settings=hf.Settings(seed=2))
        assert (await turn.outcome()).status == "failed"
        register("played", lambda _: played)
        assert (await (await turn.retry()).outcome()).text == "ok"
    assert [request.settings.seed for request in played.requests] == [2]


async def test_the_same_key_with_another_model_is_another_request(played: ScriptedModel) -> None:
    async with hf.open(None, agents=[agent_of(ScriptedModel(["ok"]))]) as runtime:
        first = await runtime.session("s", agent="a").send("hi", key="k", model="played:it")
        assert (await runtime.session("s", agent="a").send("hi", key="k", model="played:it")).id == first.id
        with pytest.raises(errors.KeyConflict):
            await runtime.session("s", agent="a").send("hi", key="k")


async def test_settings_that_the_model_refuses_end_the_turn_and_not_the_session() -> None:
    def reply(request: hf.ModelRequest) -> Any:
        if request.settings.seed == 9:
            raise errors.ModelError("seed is not supported", kind="bad_request")
        return "ok"

    async with hf.open(None, agents=[agent_of(ScriptedModel(reply))]) as runtime:
        outcome = await say(runtime, settings=hf.Settings(seed=9))
        assert (outcome.status, outcome.code) == ("failed", "bad_request")
        assert (await say(runtime)).text == "ok"
        assert texts(await runtime.session("s").history())[0] == "hello"


# ---- sources that fail -----------------------------------------------------------------------------------------------


async def failing(agent: hf.Agent) -> hf.TurnOutcome:
    """The outcome of a turn that can't be defined; nothing is lost over it, and the model is not asked."""
    async with hf.open(None, agents=[agent]) as runtime:
        outcome = await say(runtime)
        assert outcome.status == "failed"
        assert texts(await runtime.session("s").history()) == ["hello"]
        assert await runtime.session("s").requests() == []
        assert await verdicts(runtime.store, agent) == ["ok"]
        return outcome


async def hang(_: Any) -> str:
    await asyncio.Event().wait()
    return ""


def broken(_: Any) -> str:
    raise OSError("no connection")


def count(_: Any) -> Any:
    return 7


def too_much(_: Any) -> str:
    return "x" * 1_000_001


def depend(turn: hf.TurnContext[Any]) -> str:
    return turn.deps


FAILING: list[tuple[Any, str]] = [
    (broken, "OSError: no connection"),
    (count, "gave a int"),
    (too_much, "longer than 1,000,000"),
    (depend, "DepsMissing"),
    (hang, "longer than 0.05 s"),
]


@pytest.mark.parametrize(("instruct", "reason"), FAILING)
async def test_a_function_that_gives_no_instructions_fails_the_turn(instruct: Any, reason: str) -> None:
    outcome = await failing(agent_of(ScriptedModel([]), instructions=instruct, limits=hf.Limits(definition=0.05)))
    assert outcome.code == "InstructionsFailed"
    assert reason in outcome.message


def _tool(**options: Any) -> list[Any]:
    given: dict[str, Any] = {"name": "say", "read_only": True, **options}
    return [hf.ProvidedTool(**given)]


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        (_tool() + _tool(description="other"), "two tools called 'say'"),
        (_tool(name="look"), "two tools called 'look'"),
        (_tool(parameters={"type": "nonsense"}), "no JSON schema"),
        (_tool(parameters={"type": "array"}), "not that of an object"),
        (_tool(parameters=[1]), "got `array`"),
        (_tool(name="no name"), "can't be called"),
        (_tool(parameters={"$ref": "file:///etc/passwd"}), "nothing outside the schema is read"),
        (_tool(parameters={"$ref": "http://127.0.0.1:9/schema"}), "nothing outside the schema is read"),
        (_tool(description="x" * 9_000_000), "may have 8,388,608"),
        ([hf.ProvidedTool(f"t{n}", read_only=True) for n in range(1_001)], "more than 1,000 tools"),
        (_tool(timeout=-1.0), "timeout"),
        (_tool(destructive=True), "read_only and destructive"),
        ([look], "a ProvidedTool"),
        ("say", "not a list of ProvidedTool"),
        (_tool(read_only=False), "policy"),
    ],
)
async def test_a_list_of_tools_that_is_not_valid_fails_the_turn(listed: Any, reason: str) -> None:
    outcome = await failing(agent_of(ScriptedModel([]), [Shelf(listed), look], policy=None))
    assert outcome.code == "ToolChoiceFailed"
    assert reason in outcome.message


async def test_a_provider_or_a_filter_that_raises_or_hangs_fails_the_turn() -> None:
    class Broken(Shelf):
        async def list(self, ctx: hf.TurnContext[Any]) -> Any:
            raise OSError("the server is down")

    class Hangs(Shelf):
        async def list(self, ctx: hf.TurnContext[Any]) -> Any:
            await asyncio.Event().wait()

    def choose(turn: hf.TurnContext[Any], tool: Any) -> Any:
        return None

    limits = hf.Limits(definition=0.05)
    for tools, reason in (
        ([Broken()], "'shelf': OSError: the server is down"),
        ([Hangs()], "'shelf': it took longer than 0.05 s"),
        ([hf.toolset(look).filter(choose)], "'choose': it gave a NoneType"),
    ):
        outcome = await failing(agent_of(ScriptedModel([]), tools, limits=limits))
        assert outcome.code == "ToolChoiceFailed"
        assert reason in outcome.message


async def test_a_turn_is_cancelled_while_it_is_defined() -> None:
    begun = asyncio.Event()

    async def instruct(_: hf.TurnContext) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    async with hf.open(None, agents=[agent_of(ScriptedModel([]), instructions=instruct)]) as runtime:
        turn = await runtime.session("s", agent="a").send("hello")
        await begun.wait()
        await turn.cancel("enough")
        assert (await turn.outcome()).status == "cancelled"


async def test_a_turn_that_could_not_be_defined_is_tried_again() -> None:
    works: list[bool] = []

    def instruct(turn: hf.TurnContext) -> str:
        return "Late." if works else broken(turn)

    model = ScriptedModel(["Now."])
    agent = agent_of(model, instructions=instruct)
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("hello")
        assert (await turn.outcome()).code == "InstructionsFailed"
        works.append(True)
        assert (await (await turn.retry()).outcome()).text == "Now."
    assert model.requests[0].instructions == "Late."


def test_a_definition_that_can_not_work_is_refused_at_once() -> None:
    model = ScriptedModel([])
    for wrong in (7, ["text", 7], None, ["x" * 600_000, "y" * 600_000]):
        with pytest.raises(errors.AgentInvalid):
            agent_of(model, instructions=wrong)
    with pytest.raises(errors.AgentInvalid):
        agent_of(model, [Shelf(), Shelf()])  # two providers of one name
    for tool in (Shelf, 7, type("Nameless", (), {"list": len, "call": len})()):
        with pytest.raises(errors.UsageError):
            agent_of(model, [tool])
    with pytest.raises(errors.InvalidArgument):
        hf.toolset(look).filter("look")  # pyright: ignore[reportArgumentType]
    with pytest.raises(errors.InvalidArgument):
        hf.toolset(look).require_approval("pay")


async def test_a_rule_may_name_a_tool_that_only_a_provider_lists(caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf([hf.ProvidedTool("pays", "Pay.", WORD)])
    model = ScriptedModel([call("pays", word="x"), text("Done.")])
    agent = agent_of(model, [shelf, pay], policy=[hf.ask("pays")])  # close to `pay`, and no mistake
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.session("s", agent=agent).send("hello")
        await until(lambda: _waits(runtime))
        assert [each.rule for each in await runtime.approvals()] == ["1: ask pays"]
    assert "does nothing" not in caplog.text


async def test_a_call_of_the_host_for_a_tool_of_a_provider_says_that_only_turns_have_it() -> None:
    agent = agent_of(ScriptedModel(["Hello."]), [Shelf(), look])
    async with hf.open(None, agents=[agent]) as runtime:
        await say(runtime)
        with pytest.raises(errors.ToolInvalid, match=r"providers \(shelf\) are known only within a turn"):
            await runtime.call("say", {"word": "x"}, session="s")
        with pytest.raises(errors.ToolInvalid) as refused:
            await runtime.call("nope", {}, session="s")
    assert "it has: look; the tools" in str(refused.value)


async def test_instructions_that_want_other_dependencies_are_refused_when_the_runtime_is_opened() -> None:
    class Bank:
        """A bank."""

    def instruct(turn: hf.TurnContext[Bank]) -> str:
        return str(turn.deps)

    instruct.__annotations__ = {"turn": hf.TurnContext[Bank], "return": str}
    with pytest.raises(errors.DepsMismatch):
        async with hf.open(None, agents=[agent_of(ScriptedModel([]), instructions=instruct)], deps=7):
            pass


# ---- everywhere ------------------------------------------------------------------------------------------------------


async def test_an_agent_that_takes_over_is_defined_in_the_middle_of_the_turn(played: ScriptedModel) -> None:
    shelf = Shelf()
    second = ScriptedModel([text("never"), call("say", word="x"), text("Hello.")])
    expert = hf.Agent("expert", model=second, instructions=Told("You know it."), tools=[shelf], policy=EVERYTHING)
    first = ScriptedModel([call("transfer_to_expert", reason="hard")])
    desk = agent_of(first, [hf.toolset(hf.handoff(expert), look).filter(always)], Told("Ask others."))
    async with hf.open(None, agents=[desk]) as runtime:
        assert (await say(runtime)).text == "Hello."
        asked = await asked_of(runtime)
        assert [told.partition("\n")[0] for _, told, _, _ in asked] == ["Ask others.", "You know it.", "You know it."]
        assert await verdicts(runtime.store, desk) == ["ok"]
    assert shelf.calls == [("say", {"word": "x"})]


async def test_sub_agents_and_forks_have_definitions_of_their_own() -> None:
    shelf = Shelf()
    child = hf.Agent(
        "child",
        model=ScriptedModel([call("say", word="x"), text("Child.")]),
        instructions=lambda turn: f"For {turn.session[:2]}",
        tools=[shelf],
        policy=EVERYTHING,
    )
    told = Told("One.", "Two.")
    model = ScriptedModel([call("child", prompt="do it"), text("Parent."), text("Fork.")])
    agent = agent_of(model, [hf.agent_tool(child)], told)
    assert not agent.tools["child"].read_only
    assert agent.tools["child"].untrusted
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await say(runtime)).text == "Parent."
        fork = await runtime.session("s").fork(id="f")
        assert (await (await fork.send("go on")).outcome()).text == "Fork."
        assert (await asked_of(runtime, "f"))[-1][1].startswith("Two.")
        (below,) = [line.id for line in await runtime.sessions() if line.agent == "child"]
        assert (await asked_of(runtime, below))[0][1].startswith("For s~")
    assert shelf.calls == [("say", {"word": "x"})]


@needs_sandbox
async def test_programs_call_the_tools_of_a_provider() -> None:
    shelf = Shelf([hf.ProvidedTool("say", "Say a word.", WORD, read_only=True, untrusted=False)])
    model = ScriptedModel([program("await say(word='x')"), text("Done.")])
    async with hf.open(None, agents=[agent_of(model, [shelf], Told("Program."), mode="code")]) as runtime:
        assert (await say(runtime)).text == "Done."
        assert "say" in (await asked_of(runtime))[0][1]
    assert shelf.calls == [("say", {"word": "x"})]


async def test_secrets_in_instructions_and_lists_stay_out_of_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "sk-very-secret-0123456789"  # noqa: S105
    monkeypatch.setenv("TEST_KEY", secret)
    shelf = Shelf([hf.ProvidedTool("say", f"Say {secret}.", WORD, read_only=True)])
    model = ScriptedModel([call("say", word="x"), text("ok")])
    agent = agent_of(model, [shelf], Told(f"The key is {secret}."))
    async with hf.open(None, agents=[agent], secrets={"KEY": "env:TEST_KEY"}) as runtime:
        await say(runtime)
        assert secret not in msgspec.json.encode(await asked_of(runtime)).decode()
        assert await verdicts(runtime.store, agent) == ["ok"]
    assert secret not in model.requests[0].instructions


async def recorded_environments(runtime: hf.Runtime) -> list[str]:
    keys = [getattr(entry.record, "key", "") async for entry in runtime.store.read_all("s")]
    return [key for key in keys if "%environment" in key]


async def test_a_definition_is_recorded_once_for_each_turn() -> None:
    model = ScriptedModel([call("look", word="x"), text("One."), text("Two.")])
    async with hf.open(None, agents=[agent_of(model, [look], second)]) as runtime:
        await say(runtime)
        await say(runtime)
        assert await recorded_environments(runtime) == ["t1/%environment-1", "t2/%environment-1"]


async def test_an_agent_that_is_the_same_again_for_all_turns_is_recorded_again() -> None:
    async with open_store(None) as store:
        for instructions in ("Same.", second, "Same."):
            async with hf.Runtime(
                store, [agent_of(ScriptedModel(lambda _: "ok"), instructions=instructions)]
            ) as runtime:
                await say(runtime)
        async with hf.Runtime(store, (), drive=False) as runtime:
            assert [told for _, told, _, _ in await asked_of(runtime)] == ["Same.", "Second.", "Same."]


async def test_a_person_sees_what_a_turn_was_defined_as(shell: Shell) -> None:
    agent = agent_of(ScriptedModel(lambda _: "ok"), [Shelf()], Told("One.", "Two."))
    async with hf.open(shell.folder / "s.db", agents=[agent]) as runtime:
        await say(runtime)
        await say(runtime)
    done = await asyncio.to_thread(shell, "show", "s", "--store", "s.db")
    assert done.returncode == 0, done.stderr
    assert "1 tool" in done.stdout
    assert "-One." in done.stdout
    assert "+Two." in done.stdout


async def test_an_agent_without_functions_and_providers_is_recorded_as_before() -> None:
    async with hf.open(None, agents=[agent_of(ScriptedModel(lambda _: "ok"), [look], "Be brief.")]) as runtime:
        await say(runtime)
        await say(runtime)
        assert await recorded_environments(runtime) == ["t1/1.model/%environment-1"]


# ---- tools by a JSON schema ------------------------------------------------------------------------------------------


async def test_a_tool_by_a_json_schema_gets_its_arguments_by_name() -> None:
    seen: list[Any] = []

    @hf.tool("find", schema=WORD, description="Find a word.", read_only=True)
    async def find(ctx: hf.Context, **arguments: Any) -> str:
        seen.append((ctx.session, arguments))
        return "found"

    model = ScriptedModel([call("find", word="x"), call("find", word=7), text("ok")])
    async with hf.open(None, agents=[agent_of(model, [find])]) as runtime:
        await say(runtime)
        states = [state for state, _ in results(await runtime.session("s").history())]
    assert states == ["ok", "error"]
    assert seen == [("s", {"word": "x"})]
    assert model.requests[0].tools[0].parameters == {**WORD, "additionalProperties": False}


def test_a_json_text_in_the_place_of_an_object_is_parsed() -> None:
    schema = {"properties": {"where": {"type": "object", "properties": {"city": {"type": "string"}}}}}

    @hf.tool(schema=schema)
    def go(where: dict[str, Any]) -> str:
        return str(where)

    bound = go.bind({"where": '{"city": "Rome"}'})
    assert getattr(bound, "kwargs", None) == {"where": {"city": "Rome"}}


def test_the_model_gets_the_part_of_a_schema_that_every_provider_takes() -> None:
    def find(**_: Any) -> str:
        return ""

    given = {
        "type": "object",
        "properties": {
            "place": {"$ref": "#/definitions/place"},
            "limit": {"type": ["integer", "null"], "maximum": 10, "multipleOf": 5},
        },
        "required": ["place", "limit"],
        "definitions": {"place": {"type": "string", "pattern": "^[a-z]+$"}},
    }
    made = hf.tool(schema=given)(find)
    assert made.parameters == {
        "type": "object",
        "properties": {
            "place": {"type": "string", "description": "Matches ^[a-z]+$."},
            "limit": {"type": "integer", "maximum": 10, "description": "A multiple of 5."},
        },
        "required": ["place"],
        "additionalProperties": False,
    }
    assert getattr(made.bind({"place": "rome"}), "kwargs", None) == {"place": "rome", "limit": None}
    assert "Rome" in getattr(made.bind({"place": "Rome"}), "text", "")
    odd = hf.tool(schema={"allOf": [{"properties": {"a": {}}}, {"not": {"required": ["b"]}}]})(find)
    assert odd.parameters["type"] == "object"
    assert '"allOf"' in odd.parameters["description"]
    assert "text" in dir(odd.bind({"b": 1}))


@pytest.mark.parametrize(
    "schema", [{"type": "nonsense"}, {"type": "array"}, [], "object", {"properties": 7}, {"properties": {"other": {}}}]
)
def test_a_schema_that_is_none_or_does_not_fit_the_function_is_refused(schema: Any) -> None:
    def find(word: str = "") -> str:
        return word

    with pytest.raises(errors.ToolInvalid):
        hf.tool(schema=schema)(find)
