"""What `send` returned for is accepted once, durable, and answered in order; turns of a session never overlap."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.behaviour.talk import SOON, asked
from tests.every import every

import holdfast as hf
from holdfast.errors import InboxFull, InputTooLarge, JournalConflict, JournalMissing
from holdfast.messages import Message, Text
from holdfast.testing import ScriptedModel, call, check, text

if TYPE_CHECKING:
    from pathlib import Path


def shown(value: object) -> str:
    """A value in the name of a test."""
    return ascii(value)[:24]


def echo(request: hf.ModelRequest) -> Any:
    """Says again what was said last."""
    last = request.messages[-1]
    assert isinstance(last, hf.UserMessage)
    return text(f"re: {last.text}")


def echoing() -> hf.Agent:
    return hf.Agent("agent", model=ScriptedModel(echo))


def said_by_user(messages: list[Message]) -> list[str]:
    return [found.text for found in messages if isinstance(found, hf.UserMessage)]


# ---- keys ------------------------------------------------------------------------------------------------------------


async def test_the_same_key_with_the_same_content_is_the_same_turn() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turns = [await session.send("go", key="k") for _ in range(3)]
        outcomes = [await turn.outcome(timeout=SOON) for turn in turns]
        assert ({turn.id for turn in turns}, len(asked(agent))) == ({"t1"}, 1)
        assert outcomes[0] == outcomes[1] == outcomes[2]


async def test_the_same_key_after_the_end_gives_the_outcome_again() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        first = await (await session.send("go", key="k")).outcome(timeout=SOON)
        await (await session.send("more")).outcome(timeout=SOON)
        assert await (await session.send("go", key="k")).outcome(timeout=SOON) == first


async def test_the_same_key_with_other_content_is_a_conflict_and_changes_nothing() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go", key="k")
        with pytest.raises(hf.KeyConflict) as caught:
            await session.send("something else", key="k")
        assert (caught.value.journal, caught.value.key) == ("s", "k")
        assert (await turn.outcome(timeout=SOON)).text == "re: go"
        assert said_by_user(await session.history()) == ["go"]


async def test_without_a_key_the_same_content_is_another_turn() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        assert [(await session.send("go")).id for _ in range(3)] == ["t1", "t2", "t3"]


async def test_a_key_belongs_to_its_session() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        turns = [await runtime.session(name, agent=agent).send(name, key="k") for name in ("a", "b")]
        assert [(await turn.outcome(timeout=SOON)).text for turn in turns] == ["re: a", "re: b"]


async def test_many_sends_of_one_key_at_once_are_one_turn() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turns = await asyncio.gather(*(session.send("go", key="k") for _ in range(50)))
        await turns[0].outcome(timeout=SOON)
        assert ({turn.id for turn in turns}, len(asked(agent))) == ({"t1"}, 1)


async def test_many_different_contents_under_one_key_at_once_are_one_turn_and_conflicts() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        sent = (session.send(f"go {n}", key="k") for n in range(20))
        answers = await asyncio.gather(*sent, return_exceptions=True)
        (turn,) = [answer for answer in answers if isinstance(answer, hf.Turn)]
        assert sum(isinstance(answer, hf.KeyConflict) for answer in answers) == 19
        await turn.outcome(timeout=SOON)
        assert len(said_by_user(await session.history())) == 1


async def test_many_sends_of_one_key_from_two_runtimes_are_one_turn(tmp_path: Path) -> None:
    agent = echoing()
    async with (
        hf.open(tmp_path / "s.db", agents=[agent]) as one,
        hf.open(tmp_path / "s.db", agents=[agent]) as two,
    ):
        sent = [runtime.session("s", agent=agent).send("go", key="k") for runtime in (one, two) for _ in range(10)]
        turns = await asyncio.gather(*sent)
        outcomes = [await turn.outcome(timeout=SOON) for turn in turns]
        assert ({turn.id for turn in turns}, len(asked(agent))) == ({"t1"}, 1)
        assert {outcome.text for outcome in outcomes} == {"re: go"}


async def test_after_a_restart_the_same_key_is_the_same_turn(tmp_path: Path) -> None:
    agent = echoing()
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        first = await (await runtime.session("s", agent=agent).send("go", key="k")).outcome(timeout=SOON)
    again = echoing()
    async with hf.open(tmp_path / "s.db", agents=[again]) as runtime:
        turn = await runtime.session("s", agent=again).send("go", key="k")
        assert (await turn.outcome(timeout=SOON), asked(again)) == (first, [])
        with pytest.raises(hf.KeyConflict):
            await runtime.session("s", agent=again).send("other", key="k")


async def test_metadata_does_not_reach_the_model() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go", metadata={"customer": "canary-42"})
        await turn.outcome(timeout=SOON)
        assert "canary-42" not in str(asked(agent)[0])


# ---- accepted is durable ---------------------------------------------------------------------------------------------


async def test_what_was_accepted_is_answered_after_a_restart(tmp_path: Path) -> None:
    agent = echoing()
    async with hf.open(tmp_path / "s.db", agents=[agent], drive=False) as runtime:
        turns = [await runtime.session("s", agent=agent).send(f"go {n}") for n in range(3)]
        assert [await turn.status() for turn in turns] == ["queued"] * 3
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        outcomes = [await runtime.session("s").turn(turn.id).outcome(timeout=SOON) for turn in turns]
        assert [outcome.text for outcome in outcomes] == ["re: go 0", "re: go 1", "re: go 2"]


async def test_what_another_process_accepted_is_answered_here(tmp_path: Path) -> None:
    agent = echoing()
    async with (
        hf.open(tmp_path / "s.db", agents=[agent]),
        hf.open(tmp_path / "s.db", agents=[agent], drive=False) as there,
    ):
        turn = await there.session("s", agent=agent).send("go")
        assert (await turn.outcome(timeout=SOON)).text == "re: go"


async def test_an_ended_turn_is_not_run_again_after_a_restart(tmp_path: Path) -> None:
    agent = echoing()
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await (await runtime.session("s", agent=agent).send("go")).outcome(timeout=SOON)
    for _ in range(2):
        async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
            assert (await runtime.session("s").turn("t1").outcome(timeout=SOON)).text == "re: go"
            assert await check(runtime.store) == []
    assert len(asked(agent)) == 1


async def test_a_runtime_that_is_closed_takes_nothing_new() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await runtime.close()
        with pytest.raises(hf.RuntimeStopped):
            await session.send("go")
        assert await runtime.sessions() == []


async def test_a_full_inbox_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    agent = echoing()
    limits = hf.StoreLimits(pending_inputs=3)
    async with hf.open(tmp_path / "s.db", agents=[agent], drive=False, limits=limits) as runtime:
        session = runtime.session("s", agent=agent)
        for n in range(3):
            await session.send(f"go {n}")
        with pytest.raises(InboxFull):
            await session.send("one too many")
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        assert (await runtime.session("s").turn("t3").outcome(timeout=SOON)).text == "re: go 2"


async def test_a_full_inbox_does_not_keep_a_turn_from_being_cancelled() -> None:
    reached = asyncio.Event()

    @hf.tool(read_only=True)
    async def hangs() -> str:
        reached.set()
        await asyncio.Event().wait()
        return ""

    agent = hf.Agent("agent", model=ScriptedModel(lambda _: call("hangs")), tools=[hangs], policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent], limits=hf.StoreLimits(pending_inputs=3)) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(reached.wait(), SOON)
        for n in range(3):
            await session.send(f"queued {n}")
        try:
            await turn.cancel()
            assert (await turn.outcome(timeout=SOON)).status == "cancelled"
        finally:
            await runtime.close(grace=0)


# ---- order -----------------------------------------------------------------------------------------------------------


async def test_later_inputs_are_answered_in_the_order_of_their_acceptance() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turns = [await session.send(f"go {n}") for n in range(20)]
        await turns[-1].outcome(timeout=SOON)
        assert said_by_user(await session.history()) == [f"go {n}" for n in range(20)]


async def test_each_turn_sees_the_answers_of_those_before() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turns = [await session.send(f"go {n}") for n in range(5)]
        await turns[-1].outcome(timeout=SOON)
        assert [len(request.messages) for request in asked(agent)] == [1, 3, 5, 7, 9]


class Meter:
    """A tool that knows how many of its kind run at once in a session."""

    def __init__(self) -> None:
        self.now: dict[str, int] = {}
        self.most = 0

    def tool(self) -> hf.Tool[..., Any]:
        @hf.tool(read_only=True)
        async def work(ctx: hf.Context) -> str:
            self.now[ctx.session] = self.now.get(ctx.session, 0) + 1
            self.most = max(self.most, self.now[ctx.session])
            await asyncio.sleep(0.002)
            self.now[ctx.session] -= 1
            return "worked"

        return work


def working(request: hf.ModelRequest) -> Any:
    return call("work") if isinstance(request.messages[-1], hf.UserMessage) else text("Done.")


async def test_turns_of_one_session_never_overlap() -> None:
    meter = Meter()
    agent = hf.Agent("agent", model=ScriptedModel(working), tools=[meter.tool()], policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turns = await asyncio.gather(*(session.send(f"go {n}") for n in range(20)))
        await asyncio.gather(*(turn.outcome(timeout=SOON) for turn in turns))
        assert meter.most == 1


async def test_turns_of_one_session_never_overlap_in_two_runtimes_on_one_file(tmp_path: Path) -> None:
    meter = Meter()
    agent = hf.Agent("agent", model=ScriptedModel(working), tools=[meter.tool()], policy=[hf.allow("*")])
    async with (
        hf.open(tmp_path / "s.db", agents=[agent]) as one,
        hf.open(tmp_path / "s.db", agents=[agent]) as two,
    ):
        sent = [runtime.session("s", agent=agent).send(f"go {n}") for n in range(8) for runtime in (one, two)]
        turns = await asyncio.gather(*sent)
        outcomes = await asyncio.gather(*(turn.outcome(timeout=SOON) for turn in turns))
        assert (meter.most, {outcome.text for outcome in outcomes}) == (1, {"Done."})
        assert await check(one.store) == []


async def test_sessions_do_not_wait_for_each_other() -> None:
    both = asyncio.Barrier(2)

    @hf.tool(read_only=True)
    async def meet() -> str:
        async with asyncio.timeout(SOON):
            await both.wait()
        return "met"

    agent = hf.Agent("agent", model=ScriptedModel([call("meet"), text("Done.")]), tools=[meet], policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        turns = [await runtime.session(name, agent=agent).send("go") for name in ("a", "b")]
        assert [(await turn.outcome(timeout=SOON)).text for turn in turns] == ["Done.", "Done."]


async def test_an_idle_session_is_driven_by_nobody() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        await (await runtime.session("s", agent=agent).send("go")).outcome(timeout=SOON)
        async with asyncio.timeout(SOON):
            while runtime.active:  # nobody tells
                await asyncio.sleep(0.005)


# ---- which session, which agent --------------------------------------------------------------------------------------


async def test_a_session_keeps_its_agent() -> None:
    one, two = echoing(), hf.Agent("other", model=ScriptedModel(echo))
    async with hf.open(None, agents=[one, two]) as runtime:
        await (await runtime.session("s", agent=one).send("go")).outcome(timeout=SOON)
        with pytest.raises(JournalConflict):
            await runtime.session("s", agent=two).send("go")


async def test_a_session_that_exists_needs_no_agent_to_be_named() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        await (await runtime.session("s", agent="agent").send("go")).outcome(timeout=SOON)
        assert (await (await runtime.session("s").send("more")).outcome(timeout=SOON)).text == "re: more"


async def test_a_session_that_does_not_exist_needs_an_agent() -> None:
    async with hf.open(None, agents=[echoing()]) as runtime:
        with pytest.raises(JournalMissing):
            await runtime.session("nowhere").send("go")


async def test_naming_a_session_writes_nothing() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        runtime.session("s", agent=agent)
        assert await runtime.sessions() == []


# ---- bad input -------------------------------------------------------------------------------------------------------


ODD_IDS = [None, "", 5, b"s", " s", "s\n", "../s", "a//b", "x" * 300, "\ud800", "\u202ex", True]


@pytest.mark.parametrize("id", ODD_IDS, ids=shown)
async def test_an_id_that_can_name_no_session_is_refused(id: Any) -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        with pytest.raises(hf.UsageError):
            runtime.session(id, agent=agent)


@pytest.mark.parametrize("key", ["", 5, b"k", " k", "k\n", "x" * 300, "\ud800", True], ids=shown)
async def test_a_key_that_can_be_none_is_refused_and_nothing_is_accepted(key: Any) -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        with pytest.raises(hf.UsageError):
            await runtime.session("s", agent=agent).send("go", key=key)
        assert await runtime.sessions() == []


@pytest.mark.parametrize(
    "content",
    [None, "", "  ", 5, b"go", [], ["go", 5], {}, [None], Text(""), Text(5), [Text(None)], "\ud800", {"text": "go"}],  # type: ignore[arg-type]
    ids=shown,
)
async def test_content_that_is_no_text_is_refused_and_nothing_is_accepted(content: Any) -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        with pytest.raises(hf.UsageError):
            await runtime.session("s", agent=agent).send(content)
        assert await runtime.sessions() == []


@pytest.mark.parametrize(
    "metadata",
    [5, "text", [], {"a": object()}, {5: 1}, {"a": float("nan")}, {"a": b"x"}, {"a": "\ud800"}],
    ids=["number", "text", "list", "object", "odd key", "not a number", "bytes", "surrogate"],
)
async def test_metadata_that_is_no_json_object_is_refused_and_nothing_is_accepted(metadata: Any) -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        with pytest.raises(hf.UsageError):
            await runtime.session("s", agent=agent).send("go", metadata=metadata)
        assert await runtime.sessions() == []


async def test_bad_metadata_does_not_strand_the_session() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        with suppress(hf.UsageError):
            await session.send("bad", metadata=cast("Any", 5))
        assert (await (await session.send("go")).outcome(timeout=SOON)).text == "re: go"


async def test_content_beyond_the_limit_is_refused_and_the_session_goes_on() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        with pytest.raises(InputTooLarge):
            await session.send("x" * 2_000_000)
        assert (await (await session.send("go")).outcome(timeout=SOON)).text == "re: go"


async def test_content_above_the_inline_limit_reaches_the_model_whole(tmp_path: Path) -> None:
    agent = echoing()
    huge = "ü" * 200_000
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send(huge)
        assert (await turn.outcome(timeout=SOON)).text == f"re: {huge}"
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        assert said_by_user(await runtime.session("s").history()) == [huge]


async def test_several_texts_are_one_message_with_several_parts() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        await (await runtime.session("s", agent=agent).send(["one", Text("two")])).outcome(timeout=SOON)
        assert asked(agent)[0].messages == (hf.UserMessage("t1.i1", (Text("one"), Text("two"))),)


@pytest.mark.parametrize(
    "id", [None, "", "t", "t0", "t01", "x1", 1, "t-1", "t1 ", "t\u0661", "t" + "9" * 5_000], ids=shown
)
async def test_what_can_be_no_turn_is_refused(id: Any) -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        with pytest.raises(hf.errors.TurnUnknown):
            runtime.session("s", agent=agent).turn(id)


@pytest.mark.parametrize("id", ["t2", "t99", "t" + "9" * 30])
async def test_the_outcome_of_a_turn_that_does_not_exist_is_an_error_and_no_endless_wait(id: str) -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("go")).outcome(timeout=SOON)
        with pytest.raises(hf.errors.TurnUnknown):
            await session.turn(id).outcome(timeout=0.5)


async def test_the_status_of_a_turn_that_does_not_exist_is_an_error() -> None:
    agent = echoing()
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("go")).outcome(timeout=SOON)
        with pytest.raises(hf.errors.TurnUnknown):
            await session.turn("t7").status()


async def test_a_session_that_does_not_exist_says_so_wherever_it_is_read() -> None:
    async with hf.open(None, agents=[echoing()]) as runtime:
        session = runtime.session("nowhere")
        for reading in (session.status(), session.history(), session.usage(), session.cancel(), session.fork()):
            with pytest.raises(JournalMissing):
                await reading


@every(
    "given",
    [
        {"name": None},
        {"name": ""},
        {"name": "a\nb"},
        {"model": None},
        {"model": 5},
        {"model": object()},
        {"instructions": None},
        {"instructions": b"x"},
        {"instructions": "x" * 2_000_000},
        {"instructions": "\ud800"},
        {"tools": 5},
        {"tools": [5]},
        {"tools": [None]},
        {"tools": "find"},
        {"limits": 5},
        {"limits": {}},
        {"limits": 0},
        {"limits": {"steps": 5}},
    ],
    ids=shown,
)
def test_an_agent_that_can_not_be_run_is_refused(given: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"name": "agent", "model": ScriptedModel([]), **given}
    with pytest.raises(hf.UsageError):
        hf.Agent(fields.pop("name"), **fields)


async def test_a_model_name_that_names_none_is_refused_when_the_runtime_opens() -> None:
    with pytest.raises(hf.UsageError):
        async with hf.open(None, agents=[hf.Agent("agent", model="nowhere:nothing")]):
            pass


@pytest.mark.parametrize("agents", [None, 5, ["agent"], [None], "agent"], ids=str)
async def test_what_are_no_agents_is_refused(agents: Any) -> None:
    with pytest.raises(hf.UsageError):
        async with hf.open(None, agents=agents):
            pass


async def test_two_agents_of_one_name_are_refused() -> None:
    with pytest.raises(hf.UsageError):
        async with hf.open(None, agents=[echoing(), echoing()]):
            pass


@pytest.mark.parametrize("agent", [None, "nobody", 5, object()], ids=["none", "unknown", "number", "object"])
async def test_asking_what_is_no_agent_is_refused(agent: Any) -> None:
    async with hf.open(None, agents=[echoing()]) as runtime:
        with pytest.raises(hf.UsageError):
            await runtime.run(agent, "go")


@pytest.mark.parametrize("prompt", [None, "", 5, b"go"], ids=str)
async def test_asking_nothing_is_refused(prompt: Any) -> None:
    with pytest.raises(hf.UsageError):
        await hf.run(echoing(), prompt)


@pytest.mark.parametrize("token", [None, "", 5, "bad", "x" * 100_000, "\ud800", b"bad"], ids=shown)
async def test_a_token_that_was_never_issued_is_refused(token: Any) -> None:
    async with hf.open(None, agents=[echoing()]) as runtime:
        with pytest.raises(hf.UsageError):
            await runtime.resolve(token, "yes")


@pytest.mark.parametrize("id", [None, "", 5, "\ud800"], ids=shown)
async def test_waits_of_what_can_be_no_session_are_refused(id: Any) -> None:
    async with hf.open(None, agents=[echoing()]) as runtime:
        with pytest.raises(hf.UsageError):
            await runtime.waits(id)


@pytest.mark.parametrize(
    "options", [{"lease_ms": 0}, {"lease_ms": "10"}, {"concurrency": 0}, {"concurrency": None}], ids=str
)
async def test_options_that_can_not_be_meant_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(hf.UsageError):
        async with hf.open(None, agents=[echoing()], **options):
            pass


@pytest.mark.parametrize(
    "options", [{"limit": 0}, {"limit": "x"}, {"agent": 5}, {"status": "nonsense"}, {"before": 5}], ids=str
)
async def test_a_list_of_sessions_that_can_not_be_meant_is_refused(options: dict[str, Any]) -> None:
    async with hf.open(None, agents=[echoing()]) as runtime:
        with pytest.raises(hf.UsageError):
            await runtime.sessions(**options)
