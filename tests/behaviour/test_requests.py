"""What models were asked is rebuilt from the journal, in a process that does not have the agent's code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from tests.behaviour.window import SHORT, Writer, agent_of

import holdfast as hf
from holdfast.errors import JournalMissing
from holdfast.messages import encode
from holdfast.records import Admitted, Done, EffectRequest, Started
from holdfast.runtime.replay_check import check_turns
from holdfast.store import open_store
from holdfast.testing import ScriptedModel, call, text
from holdfast.turns.environment import is_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.store import Store


@hf.tool(read_only=True)
async def look(word: str) -> str:
    """Look a word up."""
    return word.upper()


def shown(request: hf.ModelRequest) -> Any:
    """All of a request that a provider can get to see."""
    told = [request.messages, request.instructions, request.tools, request.output, request.settings, request.position]
    return msgspec.json.decode(encode(told)), dict(request.files)


async def rebuilt(store: Store, session: str) -> list[Any]:
    """The requests of a session, by a runtime that knows no agent."""
    async with hf.Runtime(store, (), drive=False) as runtime:
        found = await runtime.session(session).requests()
    assert all(each.exact for each in found)
    return [shown(each.request) for each in found]


def received(*models: ScriptedModel) -> list[Any]:
    return [shown(request) for model in models for request in model.requests]


async def talk(store: Store, agents: Sequence[hf.Agent], *said: Any) -> None:
    async with hf.Runtime(store, agents) as runtime:
        for words in said:
            turn = await runtime.session("s", agent=None if await known(store) else agents[0]).send(words)
            outcome = await turn.outcome()
            assert outcome.status == "completed", outcome


async def known(store: Store) -> bool:
    try:
        await store.journal("s")
    except JournalMissing:
        return False
    return True


class Answer(msgspec.Struct):
    total: int


async def test_every_request_of_a_session_is_rebuilt_from_its_journal() -> None:
    async with open_store(None) as store:
        model = ScriptedModel([call("look", word="a"), text("A."), call("look", word="b"), text("B.")])
        agent = hf.Agent(
            "a",
            model=model,
            tools=[look],
            instructions="Be brief. " * 100,
            settings=hf.Settings(temperature=0.5, stop=("END",)),
        )
        await talk(store, [agent], "hello", [hf.Text("and this"), hf.File(b"%PDF-1.4 x", "application/pdf")])
        assert await rebuilt(store, "s") == received(model)
        assert len(model.requests) == 4


async def test_requests_have_the_instructions_and_tools_of_their_time() -> None:
    async with open_store(None) as store:
        first = ScriptedModel([text("One.")])
        await talk(store, [hf.Agent("a", model=first, instructions="Old.")], "hello")
        script = [text("never"), call("look", word="a"), text("Two.")]
        second = ScriptedModel(script, name="scripted:other")
        await talk(store, [hf.Agent("a", model=second, instructions="New.", tools=[look])], "again")
        assert await rebuilt(store, "s") == received(first, second)


async def test_requests_of_a_fork_go_on_from_those_of_its_parent() -> None:
    async with open_store(None) as store:
        model = ScriptedModel([text("One."), text("Two.")])
        agent = hf.Agent("a", model=model, instructions="Be brief.")
        await talk(store, [agent], "hello")
        async with hf.Runtime(store, [agent]) as runtime:
            fork = await runtime.session("s").fork(id="f")
            await (await fork.send("again")).outcome()
        assert await rebuilt(store, "f") == received(model)[1:]


async def test_requests_after_a_handoff_are_those_of_the_agent_that_has_the_session() -> None:
    async with open_store(None) as store:
        second = ScriptedModel([text("never"), text("Hello from the expert.")])
        expert = hf.Agent("expert", model=second, instructions="You know it all.")
        first = ScriptedModel([call("transfer_to_expert", reason="hard")])
        desk = hf.Agent("desk", model=first, instructions="Ask others.", tools=[hf.handoff(expert)])
        await talk(store, [desk], "hello")
        assert await rebuilt(store, "s") == received(first, second)


async def test_the_requests_for_summaries_are_rebuilt_too() -> None:
    async with open_store(None) as store:
        model = Writer(30, words=SHORT)
        await talk(store, [agent_of(model)], "go")
        assert model.summarised
        async with hf.Runtime(store, (), drive=False) as runtime:
            found = await runtime.session("s").requests()
        told = [shown(each.request) for each in found]
        assert all(each.exact for each in found)
        assert [each.kind for each in found].count("summary") == len(model.summarised)
        assert told == received(model)


async def test_a_long_direct_question_is_rebuilt_from_the_journal_of_its_own() -> None:
    async with open_store(None) as store:
        model = ScriptedModel(['{"total": 4}'])
        prompt = "How much is it? " * 1_000
        async with hf.Runtime(store, ()) as runtime:
            await runtime.complete(model, prompt, instructions="Count.", output=dict[str, int], key="k")
            (found,) = await runtime.requests("direct/k")
        assert found.exact
        assert shown(found.request) == received(model)[0]


async def test_an_environment_is_recorded_once_and_not_for_each_turn() -> None:
    async with open_store(None) as store:
        agent = hf.Agent("a", model=ScriptedModel(lambda _: "ok"), instructions="Be brief.")
        await talk(store, [agent], *["hello"] * 5)
        await talk(store, [agent], "after a restart")
        asked = [getattr(entry.record, "ask", None) for entry in [each async for each in store.read_all("s")]]
        assert [ask.kind for ask in asked if ask is not None].count("sync_environment") == 1


# ---- journals of older releases --------------------------------------------------------------------------------------


async def left_by_an_older_release(store: Store, agent: hf.Agent) -> None:
    """A session whose process died after its first model call, as a release without environments has recorded it."""
    async with open_store(None) as other:
        await talk(other, [agent], "hello")
        entries = [entry async for entry in other.read_all("s")]
    said = first_input(entries)
    await store.accept_into("s", "session", "a", said, key="k")
    lease = await store.claim("s")
    kept = [entry.record for entry in entries if isinstance(entry.record, Started | Admitted | Done)]
    older = [replaced(record) for record in kept if not is_environment(record)][:3]
    await store.append(lease, older, head=lease.head)
    await store.release(lease)


def first_input(entries: list[Any]) -> Any:
    (admitted,) = [entry.record for entry in entries if isinstance(entry.record, Admitted)]
    return msgspec.json.decode(admitted.body)


def replaced(record: Any) -> Any:
    """A record without what older releases did not write."""
    if isinstance(record, Admitted):
        return msgspec.structs.replace(record, key="k")
    if isinstance(record, Done) and record.ask is not None:
        return msgspec.structs.replace(
            record, ask=EffectRequest(record.ask.kind, record.ask.target, record.ask.content)
        )
    return record


def looking_agent() -> hf.Agent:
    return hf.Agent("a", model=ScriptedModel([call("look", word="a"), text("A.")]), tools=[look], instructions="Go.")


async def test_a_turn_that_an_older_release_began_goes_on() -> None:
    async with open_store(None) as store:
        await left_by_an_older_release(store, looking_agent())
        async with hf.Runtime(store, [agent := looking_agent()]) as runtime:
            outcome = await runtime.session("s").turn("t1").outcome()
            assert (outcome.status, outcome.text, outcome.steps) == ("completed", "A.", 2)
        assert [found.verdict for found in await check_turns(store, "s", agent)] == ["ok"]


async def test_what_an_older_release_did_not_record_is_not_made_up() -> None:
    async with open_store(None) as store:
        await left_by_an_older_release(store, looking_agent())
        async with hf.Runtime(store, (), drive=False) as runtime:
            (found,) = await runtime.session("s").requests()
    assert (found.exact, found.model, found.request.instructions) == (False, "", "")
    assert [message.text for message in found.request.messages if isinstance(message, hf.UserMessage)] == ["hello"]
