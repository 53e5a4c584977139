"""A cancel is acknowledged when all that works below is stopped: from then on nothing there begins anything more."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON, is_now, until

import holdfast as hf
from holdfast.errors import ApprovalClosed, ApprovalUnknown
from holdfast.policy.limits import ROLE
from holdfast.runtime.runtime import Runtime
from holdfast.store import Store
from holdfast.testing import ScriptedModel, call, check, text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

REFUSED = (ApprovalClosed, ApprovalUnknown)


class Family:
    """Agents one below the other; the lowest one pays, which a person has to approve."""

    def __init__(self, depth: int) -> None:
        self.paid = 0
        self.depth = depth

        @hf.tool
        async def pay() -> str:
            self.paid += 1
            return "paid"

        script = [call("pay"), text("done")]
        lower = hf.Agent(f"a{depth}", model=ScriptedModel(script), tools=[pay], policy=[hf.ask("pay")])
        for level in range(depth - 1, -1, -1):
            lower = self._above(lower, level)
        self.top = lower

    def _above(self, lower: hf.Agent, level: int) -> hf.Agent:
        script = [call(lower.name, prompt="go on"), text("told")]
        tools = [hf.agent_tool(lower)]
        limits = hf.Limits(depth=self.depth)
        # A policy from above holds below as well.
        policy = [hf.ask("pay"), hf.allow("*")]
        return hf.Agent(f"a{level}", model=ScriptedModel(script), tools=tools, policy=policy, limits=limits)

    async def asked(self, runtime: hf.Runtime) -> str:
        """The id of the approval for which the lowest agent waits, when all of them rest."""

        async def waits() -> bool:
            return len(await runtime.approvals()) == 1

        await until(waits)
        (approval,) = await runtime.approvals()
        return approval.id


async def everything_is_over(runtime: hf.Runtime) -> bool:
    lines = await runtime.store.journals(kind="session")
    return not any(line.status in {"idle", "running", "waiting"} for line in lines)


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_no_approval_below_a_cancelled_turn_can_be_answered(depth: int) -> None:
    family = Family(depth)
    async with hf.open(None, agents=[family.top]) as runtime:
        turn = await runtime.session("s", agent=family.top).send("pay")
        approval = await family.asked(runtime)
        assert await turn.cancel("enough") == "requested"
        with pytest.raises(REFUSED):
            await runtime.approve(approval)
        await until(lambda: everything_is_over(runtime))
        assert family.paid == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_no_approval_below_can_be_answered_when_a_crash_follows_the_cancel(depth: int, tmp_path: Path) -> None:
    family = Family(depth)
    async with hf.open(tmp_path / "store.db", agents=[family.top]) as runtime:
        turn = await runtime.session("s", agent=family.top).send("pay")
        approval = await family.asked(runtime)
    async with hf.open(tmp_path / "store.db", agents=[family.top], drive=False) as runtime:
        # Nobody drives anything here: what the cancel itself has written is all there is.
        assert await runtime.session("s").turn(turn.id).cancel("enough") == "requested"
    async with hf.open(tmp_path / "store.db", agents=[family.top], drive=False) as runtime:
        with pytest.raises(REFUSED):
            await runtime.approve(approval)
    async with hf.open(tmp_path / "store.db", agents=[family.top]) as runtime:
        await until(lambda: everything_is_over(runtime))
        assert {line.status for line in await runtime.store.journals(role=ROLE)} == {"cancelled"}
        assert not await check(runtime.store)
    assert family.paid == 0


async def test_asking_again_stops_what_an_interrupted_request_has_left(tmp_path: Path) -> None:
    family = Family(2)
    async with hf.open(tmp_path / "store.db", agents=[family.top]) as runtime:
        turn = await runtime.session("s", agent=family.top).send("pay")
        approval = await family.asked(runtime)
    async with hf.open(tmp_path / "store.db", agents=[family.top], drive=False) as runtime:
        stop = {"cancel": turn.id, "reason": "enough"}
        await runtime.store.accept("s", stop, key=f"holdfast/cancel/{turn.id}", urgent=True)  # and the process dies
        assert await runtime.session("s").turn(turn.id).cancel("again") == "already_requested"
        with pytest.raises(REFUSED):
            await runtime.approve(approval)


async def test_an_approval_that_a_cancelled_turn_left_stores_no_rule() -> None:
    family = Family(1)
    async with hf.open(None, agents=[family.top]) as runtime:
        turn = await runtime.session("s", agent=family.top).send("pay")
        approval = await family.asked(runtime)
        (shown,) = await runtime.approvals()
        await turn.cancel("enough")
        with pytest.raises(REFUSED):
            await runtime.approve(approval, always=shown.always)
        assert await runtime.store.rules("a1") == []


async def test_a_cancelled_task_stops_the_sub_agents_below_it_before_it_is_acknowledged(tmp_path: Path) -> None:
    family = Family(1)
    tools = [hf.agent_tool(family.top, background=True)]
    script = [call("a0", prompt="go on"), text("it goes on")]
    limits = hf.Limits(depth=3)
    policy = [hf.ask("pay"), hf.allow("*")]
    chief = hf.Agent("chief", model=ScriptedModel(script), tools=tools, policy=policy, limits=limits)
    async with hf.open(tmp_path / "store.db", agents=[chief]) as runtime:
        await runtime.run(chief, "pay", session="s")
        approval = await family.asked(runtime)
    async with hf.open(tmp_path / "store.db", agents=[chief], drive=False) as runtime:
        (task,) = await runtime.tasks.list(session="s")
        assert await runtime.tasks.cancel(task.id, "enough") == "requested"
        with pytest.raises(REFUSED):
            await runtime.approve(approval)
    assert family.paid == 0


async def test_a_cancelled_process_stops_its_agents_before_it_is_acknowledged(tmp_path: Path) -> None:
    family = Family(1)

    @hf.process
    async def buys(ctx: hf.ProcessContext) -> str:
        return await ctx.run_agent(family.top, "pay")

    @hf.process
    async def orders(ctx: hf.ProcessContext) -> Any:
        child = await ctx.start(buys)
        return await child.result()

    options: dict[str, Any] = {"agents": [family.top], "processes": [buys, orders]}
    async with hf.open(tmp_path / "store.db", **options) as runtime:
        await runtime.start(orders, id="p")
        approval = await family.asked(runtime)
    async with hf.open(tmp_path / "store.db", drive=False, **options) as runtime:
        assert await runtime.processes.request_cancel("p", "enough") == "requested"
        with pytest.raises(REFUSED):
            await runtime.approve(approval)
    async with hf.open(tmp_path / "store.db", **options) as runtime:
        await until(lambda: everything_is_over(runtime))
    assert family.paid == 0


# ---- what is under way -----------------------------------------------------------------------------------------------


class Stage:
    """Two tools that act: the first one waits, so that a cancel can come between them."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        self.acts: list[str] = []

        @hf.tool
        async def first() -> str:
            self.reached.set()
            await asyncio.wait_for(self.go_on.wait(), SOON)
            self.acts.append("first")
            return "done"

        @hf.tool
        async def second() -> str:
            self.acts.append("second")
            return "done"

        self.tools = [first, second]

    @asynccontextmanager
    async def elsewhere(self, runtime: hf.Runtime) -> AsyncGenerator[hf.Runtime]:
        """Another runtime, which tells those who drive here nothing: only the store knows what it does."""
        async with Runtime(runtime.store, [], drive=False) as other:
            yield other


async def test_an_act_is_not_begun_after_a_cancel_from_elsewhere_was_acknowledged(tmp_path: Path) -> None:
    stage = Stage()
    script = [[call("first"), call("second")], text("never")]
    agent = hf.Agent("a", model=ScriptedModel(script), tools=stage.tools, policy=[hf.allow("*")])
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime, stage.elsewhere(runtime) as other:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        assert await other.session("s").turn(turn.id).cancel("enough") == "requested"
        stage.go_on.set()
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"
        assert "second" not in stage.acts


async def test_a_step_of_a_process_is_not_begun_after_a_cancel_from_elsewhere_was_acknowledged(tmp_path: Path) -> None:
    stage = Stage()

    async def first() -> None:
        stage.reached.set()
        await asyncio.wait_for(stage.go_on.wait(), SOON)

    async def second() -> None:
        stage.acts.append("second")

    @hf.process
    async def acts(ctx: hf.ProcessContext) -> None:
        await ctx.step("first", first, repeat=hf.Repeat.NEVER)
        await ctx.step("second", second, repeat=hf.Repeat.NEVER)

    async with hf.open(tmp_path / "store.db", processes=[acts]) as runtime, stage.elsewhere(runtime) as other:
        process = await runtime.start(acts, id="p")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        assert await other.processes.request_cancel("p", "enough") == "requested"
        stage.go_on.set()

        async def over() -> bool:
            return await process.status() == "cancelled"

        await until(over)
        assert stage.acts == []


async def test_no_sub_agent_is_begun_after_a_cancel_from_elsewhere_was_acknowledged(tmp_path: Path) -> None:
    stage = Stage()
    lower = hf.Agent("lower", model=ScriptedModel([call("second"), text("done")]), tools=[stage.tools[1]], policy=[])
    tools = [stage.tools[0], hf.agent_tool(lower)]
    script = [[call("first"), call("lower", prompt="go on")], text("never")]
    agent = hf.Agent("a", model=ScriptedModel(script), tools=tools, policy=[hf.allow("*")])
    async with hf.open(tmp_path / "store.db", agents=[agent]) as runtime, stage.elsewhere(runtime) as other:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(stage.reached.wait(), SOON)
        assert await other.session("s").turn(turn.id).cancel("enough") == "requested"
        stage.go_on.set()
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"
        assert await runtime.store.journals(role=ROLE) == []


async def test_a_cancel_that_comes_while_the_inbox_is_being_read_lets_no_step_of_a_process_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look at the inbox under way has read it before the cancel was accepted: another one must follow."""
    steps = 0
    reading, read = asyncio.Event(), asyncio.Event()
    slow = False
    pending = Store.pending

    async def slowly(store: Store, journal: str, **options: Any) -> Any:
        found = await pending(store, journal, **options)
        if slow:
            reading.set()
            await read.wait()
        return found

    async def step() -> int:
        nonlocal steps
        steps += 1
        await asyncio.sleep(0.001)
        return steps

    @hf.process
    async def counting(ctx: hf.ProcessContext) -> None:
        while True:
            await ctx.step("count", step)

    monkeypatch.setattr(Store, "pending", slowly)
    async with hf.open(None, processes=[counting]) as runtime:
        process = await runtime.start(counting)
        await until(lambda: steps > 2)
        slow = True
        await process.signal("anything", 1)
        await asyncio.wait_for(reading.wait(), SOON)
        slow = False
        assert await process.cancel("enough") == "requested"
        begun = steps
        read.set()
        await until(lambda: is_now(process, "cancelled"))
    assert steps == begun
