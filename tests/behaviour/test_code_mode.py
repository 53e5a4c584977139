"""Code mode: a model writes programs that call its tools as functions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.background import SESSION, results
from tests.behaviour.coding import Shop, came_to, program, said
from tests.behaviour.talk import asked, pairs_are_whole
from tests.sandboxed import needs_sandbox

import holdfast as hf
from holdfast.errors import AgentInvalid, InvalidArgument
from holdfast.errors.caller import ProgramsUnavailable, StubsInvalid
from holdfast.messages import ToolCall
from holdfast.records import Done, Intended
from holdfast.runtime.replay_check import check_turns
from holdfast.runtime.session_records import read_conversation
from holdfast.sandbox import ProgramLimits
from holdfast.testing import call, check, text

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_sandbox


@pytest.fixture
def shop() -> Shop:
    return Shop()


# ---- what a model sees -----------------------------------------------------------------------------------------------


async def test_the_model_has_one_tool_and_instructions_that_declare_all_others(shop: Shop) -> None:
    agent = shop.agent()
    await came_to(agent)
    request = asked(agent)[0]
    assert [tool.name for tool in request.tools] == ["run_program"]
    assert "async def price(title: str) -> Any:" in request.instructions
    assert "async def finish(value: Any) -> Any:" in request.instructions


async def test_a_reply_without_a_program_is_the_answer(shop: Shop) -> None:
    async with hf.open(None, agents=[agent := shop.agent()]) as runtime:
        assert (await said(runtime, agent)).text == "word 0"


def test_two_tools_that_would_be_one_function_are_refused() -> None:
    @hf.tool("find-it", read_only=True)
    async def one() -> str:
        """Find it."""
        return ""

    @hf.tool("find_it", read_only=True)
    async def two() -> str:
        """Find it, too."""
        return ""

    with pytest.raises(StubsInvalid, match="find_it"):
        hf.Agent("a", model="openai:x", tools=[one, two], mode="code")


def test_a_tool_called_finish_is_refused() -> None:
    @hf.tool(read_only=True)
    async def finish() -> str:
        """Not the one."""
        return ""

    with pytest.raises(StubsInvalid, match="finish"):
        hf.Agent("a", model="openai:x", tools=[finish], mode="code")


@pytest.mark.parametrize(
    "given",
    [{"mode": "prose"}, {"mode": "code", "sandbox": 7}, {"mode": "code", "program_limits": 7}],
    ids=["mode", "sandbox", "limits"],
)
def test_what_can_not_be_meant_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        hf.Agent("a", model="openai:x", **given)


def test_limits_of_programs_without_programs_are_refused() -> None:
    with pytest.raises(AgentInvalid, match="mode='code'"):
        hf.Agent("a", model="openai:x", program_limits=ProgramLimits(calls=1))


async def test_where_no_program_can_run_a_runtime_is_not_opened(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*, confined: bool = True) -> None:
        raise ProgramsUnavailable(f"no bubblewrap ({confined})", "install it")

    monkeypatch.setattr("holdfast.sandbox.worker.require_programs", gone)
    with pytest.raises(ProgramsUnavailable):
        async with hf.open(None, agents=[shop.agent()]):
            pass


# ---- what programs do ------------------------------------------------------------------------------------------------


async def test_a_program_loops_over_calls_and_gives_a_value(shop: Shop) -> None:
    agent = shop.agent("total = 0\nfor t in ['a', 'bb']:\n    total += await price(t)\nprint('sum')\ntotal")
    (result,) = await came_to(agent)
    assert (result.state, result.content) == ("ok", {"value": 3, "printed": "sum\n"})


async def test_calls_that_read_run_side_by_side(shop: Shop) -> None:
    source = "import asyncio\nawait asyncio.gather(slow('a'), unblock('b'))"

    @hf.tool(read_only=True)
    async def unblock(what: str) -> str:
        """Let the slow one go on."""
        shop.go.set()
        return what

    agent = shop.agent(source, tools=[*shop.tools(), unblock])
    (result,) = await came_to(agent)
    assert result.content["value"] == ["a", "b"]


async def test_a_program_goes_on_with_the_first_answer_while_other_calls_are_open(shop: Shop) -> None:
    source = """
import asyncio
async def two():
    first = await price("abc")
    return first + await unblock("x")
await asyncio.gather(slow("a"), two())
"""

    @hf.tool(read_only=True)
    async def unblock(what: str) -> int:
        """Let the slow one go on."""
        shop.go.set()
        return len(what)

    (result,) = await came_to(shop.agent(source, tools=[*shop.tools(), unblock]))
    assert result.content["value"] == ["a", 4]


async def test_a_thousand_calls_at_once_are_made_a_few_at_a_time(shop: Shop) -> None:
    most = running = 0

    @hf.tool(read_only=True)
    async def read(n: int) -> int:
        """Read."""
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return n

    source = "import asyncio\nsum(await asyncio.gather(*[read(n) for n in range(1000)]))"
    (result,) = await came_to(shop.agent(source, tools=[read], limits=hf.Limits(tool_calls=2000)))
    assert (result.content, most <= 100) == ({"value": 499500}, True)


async def test_a_call_that_acts_runs_alone_in_its_place(shop: Shop) -> None:
    at_once: list[int] = []
    running = 0

    @hf.tool
    async def act(n: int) -> int:
        """Acts."""
        nonlocal running
        running += 1
        at_once.append(running)
        running -= 1
        return n

    source = "import asyncio\nawait asyncio.gather(*[act(n) for n in range(3)])"
    (result,) = await came_to(shop.agent(source, tools=[act]))
    assert (result.content["value"], at_once) == ([0, 1, 2], [1, 1, 1])


async def test_a_tool_that_fails_is_an_exception_that_the_program_may_catch(shop: Shop) -> None:
    source = "try:\n    await broken('tea')\nexcept RuntimeError as error:\n    said = str(error)\nsaid"
    (result,) = await came_to(shop.agent(source))
    assert result.content["value"] == "LookupError: no tea today"


async def test_a_call_that_is_denied_is_a_permission_error(shop: Shop) -> None:
    source = "try:\n    await wipe('all')\nexcept PermissionError as error:\n    said = str(error)\nsaid"
    (result,) = await came_to(shop.agent(source))
    assert "wipe is not allowed here" in result.content["value"]
    assert shop.done == []


async def test_what_a_program_does_not_catch_is_told_with_what_it_had_printed(shop: Shop) -> None:
    (result,) = await came_to(shop.agent("print('before')\nawait broken('tea')"))
    assert result.state == "error"
    assert "RuntimeError: LookupError: no tea today" in result.content
    assert "It had printed:\nbefore" in result.content


async def test_a_program_with_wrong_types_is_not_run(shop: Shop) -> None:
    (result,) = await came_to(shop.agent("await refund('7')\nawait price(7)"))
    assert result.state == "error"
    assert "nothing of it was done" in result.content
    assert "invalid-argument-type" in result.content
    assert shop.done == []


async def test_time_and_chance_are_the_same_when_a_program_is_run_again(tmp_path: Path) -> None:
    """An approval in between: the program is replayed, and must come to the same place."""
    shop = Shop()
    source = "import random, time\nn = random.randint(0, 10**12)\nt = time.time()\nawait refund('7')\n[n, t]"
    agent = shop.agent(source)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        async for event in turn.events():
            if isinstance(event, hf.TurnWaiting):
                break
        (approval,) = await runtime.approvals()
        await runtime.approve(approval.id)
        await turn.outcome(timeout=10)
        (result,) = results(await runtime.session(SESSION).history())
        assert result.state == "ok"


async def test_a_tool_unknown_to_the_model_is_told_which_one_there_is(shop: Shop) -> None:
    (result,) = await came_to(shop.agent(call("price", title="a")))
    assert (result.state, shop.done) == ("error", [])
    assert "run_program" in result.content


# ---- variables -------------------------------------------------------------------------------------------------------


async def test_variables_live_on_from_program_to_program_and_from_turn_to_turn(shop: Shop) -> None:
    agent = shop.agent("a = await price('abc')", "b = a + 1", text("done"), "[a, b]")
    told = await came_to(agent, prompts=("one", "two"))
    assert told[-1].content["value"] == [3, 4]


async def test_variables_live_on_after_a_restart(shop: Shop, tmp_path: Path) -> None:
    agent = shop.agent("a = {'n': [1, 2]}", text("done"), "a['n'][1]")
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await said(runtime, agent)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await said(runtime, agent)
        assert results(await runtime.session(SESSION).history())[-1].content == {"value": 2}


async def test_variables_live_on_in_a_fork(shop: Shop) -> None:
    agent = shop.agent("a = 7", text("done"), "a + 1", text("done"))
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        fork = await runtime.session(SESSION).fork()
        await (await fork.send("go on")).outcome(timeout=10)
        assert results(await fork.history())[-1].content == {"value": 8}


async def test_what_does_not_live_on_is_told(shop: Shop) -> None:
    (result,) = await came_to(shop.agent("def f():\n    return 1\nf()"))
    assert list(result.content["dropped"]) == ["f"]


async def test_a_program_that_raises_leaves_what_it_had_set(shop: Shop) -> None:
    told = await came_to(shop.agent("a = 1\nraise ValueError('no')", "a + 1"))
    assert told[-1].content["value"] == 2


async def test_only_what_has_changed_is_recorded(shop: Shop) -> None:
    agent = shop.agent("a = 'x' * 5000\nb = 1", "b = 2", "b")
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        entries = [entry.record async for entry in runtime.store.read_all(SESSION)]
        kept = [bytes(r.value) for r in entries if isinstance(r, Done) and r.key.endswith("/%variables")]
        assert [len(body) > 5000 for body in kept] == [True, False]
        assert kept[1] == b'{"set":{"b":2}}'


async def test_many_variables_are_kept_apart_and_come_back(shop: Shop) -> None:
    agent = shop.agent("a = ['x' * 1000] * 200", "len(a[199])")
    told = await came_to(agent)
    assert told[-1].content["value"] == 1000


# ---- results ---------------------------------------------------------------------------------------------------------


async def test_a_program_gets_the_whole_of_a_result_that_no_model_would(shop: Shop) -> None:
    @hf.tool(read_only=True)
    async def read() -> str:
        """A long text."""
        return "word " * 50_000

    (result,) = await came_to(shop.agent("len(await read())", tools=[read]))
    assert result.content["value"] == 250_000


async def test_beyond_the_limit_a_program_gets_a_reference_that_it_can_read(shop: Shop) -> None:
    @hf.tool(read_only=True)
    async def read() -> str:
        """A long text."""
        return "".join(f"line {n}\n" for n in range(5_000))

    source = """
found = await read()
id = found.split('id="')[1].split('"')[0]
page = await read_result(id, start=4000, lines=1)
[len(found) < 20000, page]
"""
    limits = ProgramLimits(value=10_000)
    agent = shop.agent(source, tools=[read, hf.tools.tasks()], program_limits=limits)
    (result,) = await came_to(agent)
    assert result.content["value"][0] is True
    assert "line 3999" in result.content["value"][1]


async def test_what_a_program_comes_to_is_bounded_like_any_result(shop: Shop) -> None:
    agent = shop.agent("'word ' * 20_000", tools=[hf.tools.tasks()])
    (result,) = await came_to(agent)
    assert len(result.content) < 60_000
    assert "read_result" in result.content


# ---- the end of a turn -----------------------------------------------------------------------------------------------


async def test_a_program_ends_the_turn_with_a_text(shop: Shop) -> None:
    agent = shop.agent("await finish('that is all')\nawait price('never')")
    async with hf.open(None, agents=[agent]) as runtime:
        outcome = await said(runtime, agent)
        assert (outcome.status, outcome.text, outcome.steps, shop.done) == ("completed", "that is all", 1, [])


async def test_a_program_ends_the_turn_with_a_value_of_the_type_that_was_asked_for(shop: Shop) -> None:
    agent = shop.agent("await finish({'a': 1})", output=dict[str, int])
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await said(runtime, agent)).value == {"a": 1}


async def test_a_value_of_another_type_is_an_error_of_the_program(shop: Shop) -> None:
    source = "try:\n    await finish(await read())\nexcept ValueError as error:\n    said = str(error)\nsaid"

    @hf.tool(read_only=True)
    async def read() -> dict[str, str]:
        """Not what is asked for."""
        return {"a": "x"}

    first, *_ = await came_to(shop.agent(source, tools=[read], output=dict[str, int]))
    assert "does not have the shape" in first.content["value"]


async def test_nothing_of_a_program_runs_after_its_end(shop: Shop) -> None:
    source = "try:\n    await finish('x')\nexcept Exception:\n    await refund('7')\nfinally:\n    await price('z')"
    async with hf.open(None, agents=[agent := shop.agent(source)]) as runtime:
        assert ((await said(runtime, agent)).text, shop.done) == ("x", [])


async def test_variables_live_on_after_the_end_of_a_turn_by_a_program(shop: Shop) -> None:
    agent = shop.agent("a = 5\nawait finish('x')", "a + 1")
    told = await came_to(agent, prompts=("one", "two"))
    assert told[-1].content["value"] == 6


async def test_what_a_program_ended_a_turn_with_is_said_in_the_conversation(shop: Shop) -> None:
    agent = shop.agent("await finish('it is done')")
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        await said(runtime, agent, "and now?")
        messages = asked(agent)[-1].messages
        assert [type(message).__name__ for message in messages] == [
            "UserMessage",
            "AssistantMessage",
            "ToolMessage",
            "AssistantMessage",
            "UserMessage",
        ]
        assert pairs_are_whole(messages)
        assert tuple(await runtime.session(SESSION).history())[:5] == tuple(messages)


async def test_calls_behind_a_program_that_ends_the_turn_are_not_begun(shop: Shop) -> None:
    agent = shop.agent([program("await finish('x')"), program("await price('never')")])
    async with hf.open(None, agents=[agent]) as runtime:
        outcome = await said(runtime, agent)
        history = await runtime.session(SESSION).history()
        assert (outcome.text, shop.done) == ("x", [])
        assert [result.state for result in results(history)] == ["ok", "error"]
        assert pairs_are_whole(history)


async def test_programs_of_one_batch_run_one_after_the_other(shop: Shop) -> None:
    told = await came_to(shop.agent([program("a = 1"), program("a + 1")]))
    assert told[1].content == {"value": 2}


# ---- what is recorded ------------------------------------------------------------------------------------------------


async def test_every_call_of_a_program_is_an_effect_of_its_own(shop: Shop) -> None:
    source = "await price('a')\nawait work('b')"
    shop.go.set()
    agent = shop.agent(source)
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        entries = [entry.record async for entry in runtime.store.read_all(SESSION)]
        assert [r.key for r in entries if isinstance(r, Done) and "/%call-" in r.key] == [
            "t1/2.tools/1.run_program/%call-1.price",
            "t1/2.tools/1.run_program/%call-2.work",
        ]
        (intent,) = [r for r in entries if isinstance(r, Intended)]
        assert bytes(intent.ask.body) == b'{"what":"b"}'
        assert await check(runtime.store) == []


async def test_the_conversation_read_again_knows_what_programs_used_and_heard(shop: Shop) -> None:
    agent = shop.agent("await price('a')\nawait price('b')")
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        conversation = await read_conversation(runtime.store, SESSION)
        assert conversation.used.tool_calls == 3
        assert set(conversation.heard) == {"run_program", "price"}
        assert (await runtime.store.spent("shop", None)).tool_calls == 3


async def test_events_name_the_calls_of_a_program_below_it(shop: Shop) -> None:
    agent = shop.agent("await price('a')")
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        await turn.outcome(timeout=10)
        seen = [event async for event in turn.events()]
        called = [(e.call, e.tool, e.arguments) for e in seen if isinstance(e, hf.ToolCallRequested)][1:]
        finished = [(e.call, e.content) for e in seen if isinstance(e, hf.ToolCallFinished)]
        assert called == [("t1.2.1.1", "price", {"title": "a"})]
        assert finished == [("t1.2.1.1", 1), ("t1.2.1", {"value": 1})]


async def test_turns_with_programs_pass_the_check_of_their_replay(shop: Shop) -> None:
    agent = shop.agent("a = await price('a')", text("done"), "await finish(a)")
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        await said(runtime, agent)
        checks = await check_turns(runtime.store, SESSION, agent)
        assert [(found.turn, found.verdict) for found in checks] == [("t1", "ok"), ("t2", "ok")]


async def test_a_program_is_a_message_like_any_other(shop: Shop) -> None:
    agent = shop.agent("1 + 1")
    async with hf.open(None, agents=[agent]) as runtime:
        await said(runtime, agent)
        calls = [part for m in await runtime.session(SESSION).history() for part in getattr(m, "parts", ())]
        assert [part.name for part in calls if isinstance(part, ToolCall)] == ["run_program"]


async def test_a_secret_that_a_tool_gives_is_hidden_from_programs_and_from_the_store(shop: Shop) -> None:
    secret = "canary-4711-of-the-shop"  # noqa: S105  it is none

    @hf.tool(read_only=True)
    async def leak(ctx: hf.Context) -> str:
        """Says too much."""
        return f"the key is {ctx.secrets['KEY']}"

    source = "said = await leak()\nprint(said)\nraise ValueError(said)"
    agent = shop.agent(source, tools=[leak])
    async with hf.open(None, agents=[agent], secrets={"KEY": lambda: secret}) as runtime:
        await said(runtime, agent)
        (result,) = results(await runtime.session(SESSION).history())
        assert "the key is" in result.content
        assert secret not in result.content
        assert await check(runtime.store, canaries=[secret.encode()]) == []
