"""What steers a turn enters it at its next safe point, or begins the next turn: never lost, exactly once, in order."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, asked, until

import holdfast as hf
from holdfast.messages import Message, ToolMessage
from holdfast.testing import ScriptedModel, call, check, text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.testing.scripted import ScriptItem


class Gate:
    """Two tools and a model reply that wait until a test lets them go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self.runs = 0

    async def pass_through(self) -> None:
        self.reached.set()
        await self.go_on.wait()

    def tools(self) -> list[hf.Tool[..., Any]]:
        @hf.tool(read_only=True)
        async def work() -> str:
            self.runs += 1
            await self.pass_through()
            return "worked"

        @hf.tool(read_only=True)
        async def quick() -> str:
            self.runs += 1
            return "quick"

        @hf.tool
        async def asks(ctx: hf.Context) -> str:
            self.runs += 1
            return str(await ctx.wait("approval"))

        return [work, quick, asks]

    def says(self, item: ScriptItem) -> ScriptItem:
        """The same reply, when the gate is open."""

        async def said(request: hf.ModelRequest) -> Any:
            await self.pass_through()
            return item

        return said


@pytest.fixture
async def gate() -> Gate:
    return Gate()


def agent_of(gate: Gate, script: list[ScriptItem], **options: Any) -> hf.Agent:
    return hf.Agent("agent", model=ScriptedModel(script), tools=gate.tools(), policy=[hf.allow("*")], **options)


def said_by_user(messages: list[Message] | tuple[Message, ...]) -> list[str]:
    return [found.text for found in messages if isinstance(found, hf.UserMessage) and found.origin == "user"]


async def is_waiting(turn: hf.Turn) -> bool:
    return await turn.status() == "waiting"


async def test_it_enters_after_the_tools_that_run(gate: Gate) -> None:
    agent = agent_of(gate, [[call("work"), call("quick")], text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(gate.reached.wait(), SOON)
        await session.send("faster", steer=True)
        gate.go_on.set()
        await turn.outcome(timeout=SOON)
        kinds = [type(message).__name__ for message in asked(agent)[-1].messages]
        assert kinds == ["UserMessage", "AssistantMessage", "ToolMessage", "UserMessage"]
        assert said_by_user(asked(agent)[-1].messages) == ["go", "faster"]


async def test_it_enters_before_a_turn_completes_and_is_answered(gate: Gate) -> None:
    agent = agent_of(gate, [gate.says(text("Almost.")), text("With the change.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(gate.reached.wait(), SOON)
        await session.send("one more thing", steer=True)
        gate.go_on.set()
        outcome = await turn.outcome(timeout=SOON)
        assert (outcome.text, outcome.steps) == ("With the change.", 2)


async def test_its_outcome_is_that_of_the_turn_it_entered(gate: Gate) -> None:
    agent = agent_of(gate, [call("work"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(gate.reached.wait(), SOON)
        steering = await session.send("faster", steer=True)
        gate.go_on.set()
        assert await steering.outcome(timeout=SOON) == await turn.outcome(timeout=SOON)


async def test_several_enter_in_the_order_of_their_acceptance(gate: Gate) -> None:
    agent = agent_of(gate, [call("work"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(gate.reached.wait(), SOON)
        for n in range(10):
            await session.send(f"steer {n}", steer=True)
        gate.go_on.set()
        await turn.outcome(timeout=SOON)
        assert said_by_user(await session.history()) == ["go", *(f"steer {n}" for n in range(10))]
        assert len(asked(agent)) == 2


async def test_an_input_that_does_not_steer_stays_in_the_queue(gate: Gate) -> None:
    agent = agent_of(gate, [call("work"), text("first"), text("second")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(gate.reached.wait(), SOON)
        queued = await session.send("later")
        await session.send("now", steer=True)
        gate.go_on.set()
        assert (await turn.outcome(timeout=SOON)).text == "first"
        assert (await queued.outcome(timeout=SOON)).text == "second"
        assert said_by_user(asked(agent)[1].messages) == ["go", "now"]


async def test_with_no_turn_under_way_it_begins_one(gate: Gate) -> None:
    agent = agent_of(gate, [text("hello")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        assert (await (await session.send("hi", steer=True)).outcome(timeout=SOON)).text == "hello"


async def test_after_the_turn_has_ended_it_begins_the_next_one(gate: Gate) -> None:
    agent = agent_of(gate, [text("one"), text("two")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        await (await session.send("go")).outcome(timeout=SOON)
        steering = await session.send("more", steer=True)
        outcome = await steering.outcome(timeout=SOON)
        assert (outcome.text, outcome.turn) == ("two", steering.id)


@pytest.mark.parametrize("seed", range(12))
async def test_none_is_lost_and_none_is_seen_twice_whenever_it_comes(gate: Gate, seed: int) -> None:
    chance = random.Random(seed)
    gate.go_on.set()

    def script(request: hf.ModelRequest) -> Any:
        return text("Done.") if isinstance(request.messages[-1], ToolMessage) else call("quick")

    agent = hf.Agent("agent", model=ScriptedModel(script), tools=gate.tools(), policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        sent = ["go"]
        turns = [await session.send("go")]
        for n in range(15):
            for _ in range(chance.randrange(40)):
                await asyncio.sleep(0)
            sent.append(f"input {n}")
            turns.append(await session.send(sent[-1], steer=chance.random() < 0.7))
        outcomes = [await turn.outcome(timeout=SOON) for turn in turns]
        assert {outcome.status for outcome in outcomes} == {"completed"}
        assert sorted(said_by_user(await session.history())) == sorted(sent)
        assert await check(runtime.store) == []


async def test_while_the_turn_waits_for_somebody_it_enters_when_the_wait_is_over(gate: Gate) -> None:
    agent = agent_of(gate, [call("asks"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await until(lambda: is_waiting(turn))
        await session.send("are you there?", steer=True)
        (wait,) = await runtime.waits("s")
        await runtime.resolve(runtime.wait_token("s", wait.name), "yes")
        await turn.outcome(timeout=SOON)
        assert said_by_user(asked(agent)[-1].messages) == ["go", "are you there?"]


async def test_a_turn_that_waits_is_not_disturbed_by_it(gate: Gate) -> None:
    agent = agent_of(gate, [call("asks"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await until(lambda: is_waiting(turn))
        await session.send("are you there?", steer=True)
        await until(lambda: _nothing_runs(runtime))
        assert (gate.runs, await turn.status(), len(await runtime.waits("s"))) == (1, "waiting", 1)


async def _nothing_runs(runtime: hf.Runtime) -> bool:
    return runtime.active == 0


async def test_one_that_was_accepted_before_a_restart_enters_after_it(tmp_path: Path, gate: Gate) -> None:
    agent = agent_of(gate, [call("work"), text("Done.")])
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(gate.reached.wait(), SOON)
        await session.send("faster", steer=True)
        await runtime.close(grace=0)
    gate.go_on.set()
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        session = runtime.session("s")
        await session.turn(turn.id).outcome(timeout=SOON)
        assert said_by_user(await session.history()) == ["go", "faster"]


async def test_the_same_key_enters_once(gate: Gate) -> None:
    agent = agent_of(gate, [call("work"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(gate.reached.wait(), SOON)
        for _ in range(5):
            await session.send("faster", steer=True, key="k")
        gate.go_on.set()
        await turn.outcome(timeout=SOON)
        await session.send("faster", steer=True, key="k")
        assert said_by_user(await session.history()) == ["go", "faster"]


async def test_one_that_was_cancelled_before_it_entered_never_enters(gate: Gate) -> None:
    agent = agent_of(gate, [call("work"), text("Done.")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(gate.reached.wait(), SOON)
        steering = await session.send("no, wait", steer=True)
        await steering.cancel("typo")
        assert (await steering.outcome(timeout=SOON)).status == "cancelled"
        gate.go_on.set()
        assert (await turn.outcome(timeout=SOON)).text == "Done."
        assert said_by_user(await session.history()) == ["go"]


async def test_cancelling_one_that_has_entered_cancels_the_turn_it_entered(gate: Gate) -> None:
    agent = agent_of(gate, [call("quick"), gate.says(text("late"))])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        steering = await session.send("go", steer=True)
        await asyncio.wait_for(gate.reached.wait(), SOON)
        await steering.cancel("stop")
        assert (await steering.outcome(timeout=SOON)).status == "cancelled"


async def test_one_that_comes_while_the_turn_is_being_cancelled_begins_the_next(gate: Gate) -> None:
    agent = agent_of(gate, [call("work"), text("next")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(gate.reached.wait(), SOON)
        steering = await session.send("do this instead", steer=True)
        await turn.cancel()
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"
        assert (await steering.outcome(timeout=SOON)).text == "next"


async def test_one_that_comes_to_a_turn_with_no_step_left_is_answered_in_the_next(gate: Gate) -> None:
    agent = agent_of(gate, [gate.says(text("answer")), text("next")], limits=hf.Limits(steps=1))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(gate.reached.wait(), SOON)
        steering = await session.send("one more thing", steer=True)
        gate.go_on.set()
        outcomes = [await one.outcome(timeout=SOON) for one in (turn, steering)]
        assert [(outcome.status, outcome.text) for outcome in outcomes] == [
            ("completed", "answer"),
            ("completed", "next"),
        ]


async def test_one_that_comes_as_the_last_step_asks_for_tools_is_answered_in_the_next(gate: Gate) -> None:
    agent = agent_of(gate, [gate.says(call("work")), text("next")], limits=hf.Limits(steps=1))
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(gate.reached.wait(), SOON)
        steering = await session.send("one more thing", steer=True)
        gate.go_on.set()
        assert (await turn.outcome(timeout=SOON)).code == "steps"
        assert (await steering.outcome(timeout=SOON)).text == "next"


async def test_one_that_comes_while_the_model_fails_is_answered_in_the_next(gate: Gate) -> None:
    agent = agent_of(gate, [gate.says(ValueError("broken")), text("next")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        turn = await session.send("go")
        await asyncio.wait_for(gate.reached.wait(), SOON)
        steering = await session.send("one more thing", steer=True)
        gate.go_on.set()
        assert (await turn.outcome(timeout=SOON)).status == "failed"
        assert (await steering.outcome(timeout=SOON)).text == "next"


async def test_one_accepted_by_another_runtime_enters_the_turn_that_runs_here(tmp_path: Path, gate: Gate) -> None:
    agent = agent_of(gate, [call("work"), text("Done."), text("Done.")])
    async with (
        hf.open(tmp_path / "s.db", agents=[agent]) as here,
        hf.open(tmp_path / "s.db", agents=[agent], drive=False) as there,
    ):
        turn = await here.session("s", agent=agent).send("go")
        await asyncio.wait_for(gate.reached.wait(), SOON)
        steering = await there.session("s").send("from elsewhere", steer=True)
        gate.go_on.set()
        assert (await steering.outcome(timeout=SOON)).text == "Done."
        await turn.outcome(timeout=SOON)
        assert sorted(said_by_user(await here.session("s").history())) == ["from elsewhere", "go"]


TIMES = 30


@pytest.fixture(params=["memory", "disk"])
def store_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "store.db" if request.param == "disk" else None


async def test_what_was_accepted_while_a_tool_ran_is_in_the_next_request_every_time(store_path: Path | None) -> None:
    heard = 0
    async with hf.open(store_path) as runtime:
        for number in range(TIMES):
            gate = Gate()
            agent = hf.Agent(
                f"agent-{number}", model=ScriptedModel([call("work"), text("Done.")]), tools=gate.tools()[:1]
            )
            session = runtime.session(f"s{number}", agent=agent)
            turn = await session.send("go")
            await asyncio.wait_for(gate.reached.wait(), SOON)
            await session.send("faster", steer=True)
            gate.go_on.set()
            await turn.outcome(timeout=SOON)
            heard += said_by_user(asked(agent)[1].messages) == ["go", "faster"]
    assert heard == TIMES


async def test_a_notification_accepted_while_a_tool_ran_is_in_the_next_request_every_time(
    store_path: Path | None,
) -> None:
    heard = 0
    async with hf.open(store_path) as runtime:
        for number in range(TIMES):
            gate = Gate()
            agent = hf.Agent(
                f"agent-{number}", model=ScriptedModel([call("work"), text("Done.")]), tools=gate.tools()[:1]
            )
            session = runtime.session(f"s{number}", agent=agent)
            turn = await session.send("go")
            await asyncio.wait_for(gate.reached.wait(), SOON)
            await runtime.notify(session.id, "the shop closes")
            gate.go_on.set()
            await turn.outcome(timeout=SOON)
            told = [found for found in asked(agent)[1].messages if isinstance(found, hf.UserMessage)]
            heard += "the shop closes" in told[-1].text
    assert heard == TIMES


STEERER = """
import asyncio, sys
import holdfast as hf

async def main() -> None:
    async with hf.open(sys.argv[1], drive=False) as runtime:
        print("open", flush=True)
        for line in sys.stdin:
            await runtime.session(line.strip()).send("faster", steer=True)
            print("accepted", flush=True)

asyncio.run(main())
"""


async def test_what_another_process_accepted_while_a_tool_ran_is_in_the_next_request(tmp_path: Path) -> None:
    path, heard = tmp_path / "store.db", 0
    async with hf.open(path) as runtime:
        other = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", STEERER, str(path)), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert other.stdin is not None
        assert other.stdout is not None
        assert await asyncio.wait_for(other.stdout.readline(), SOON) == b"open\n"  # the next commit here notices it
        for number in range(TIMES):
            gate = Gate()
            agent = hf.Agent(
                f"agent-{number}", model=ScriptedModel([call("work"), text("Done.")]), tools=gate.tools()[:1]
            )
            turn = await runtime.session(f"s{number}", agent=agent).send("go")
            await asyncio.wait_for(gate.reached.wait(), SOON)
            other.stdin.write(f"s{number}\n".encode())
            assert await asyncio.wait_for(other.stdout.readline(), SOON) == b"accepted\n"
            gate.go_on.set()
            await turn.outcome(timeout=SOON)
            heard += said_by_user(asked(agent)[1].messages) == ["go", "faster"]
        other.stdin.close()
        await asyncio.wait_for(other.wait(), SOON)
    assert heard == TIMES
