"""Work of every kind on one store: `write` stops all of it half-way, and `finish` brings it to its end.

As a script this writes a fixture with the code that is on the path, by a process that is killed in the middle::

    PYTHONPATH=OLD/src .venv/bin/python tests/stores/stories.py tests/stores/COMMIT

It makes `COMMIT.store`, a store file, and `COMMIT.log`, the acts that the killed process began. Only the public door of
Holdfast is used, so that the same stories run on the code of the commit and on the code of today.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import holdfast as hf
from holdfast.testing import ManualClock, ScriptedModel, call, check, text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

START: Final = 1_800_000_000_000
"""When the stores were written: 2027-01-15 08:00 UTC."""
HOUR: Final = 3_600_000
PATIENCE: Final = 20.0
SCRIPTS: Final[dict[str, list[list[str]]]] = {
    "answering": [],
    "reserving": [["look"], ["reserve"]],
    "shipping": [["ship"]],
    "signing": [["sign"]],
    "approving": [["pay"]],
    "deferring": [["order"]],
    "background": [["report", "confirm"]],
    "spilling": [["slow"]],
}
"""Sessions, and the tools that the model calls in each of its steps; then it says that it is done."""
BACKGROUND: Final = ("background", "spilling")
PROCESSES: Final = {"packing": "packs", "review": "reviews", "nap": "naps", "family": "has_child"}
"""Processes by id, and the function that each runs."""
CHILD: Final = "review-of-family"


class World:
    """What tools and steps begin: one line each, in a file that survives the process."""

    def __init__(self, path: Path, *, held: bool) -> None:
        self.path = path
        self.held = held
        """Whether acts that can be interrupted never end."""

    def begin(self, what: str, key: str) -> None:
        handle = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        try:
            os.write(handle, json.dumps([what, key]).encode() + b"\n")
        finally:
            os.close(handle)

    async def begin_and_hold(self, what: str, key: str) -> str:
        self.begin(what, key)
        if self.held:
            await asyncio.Event().wait()
        return what

    def acts(self) -> list[tuple[str, str]]:
        """All that was begun: what, and the idempotency key under which."""
        return [tuple(json.loads(line)) for line in self.path.read_text(encoding="utf-8").splitlines()]


def make_agent(world: World) -> hf.Agent:
    async def say(request: hf.ModelRequest) -> Any:
        position = sum(isinstance(message, hf.AssistantMessage) for message in request.messages)
        first = next(message.text for message in request.messages if isinstance(message, hf.UserMessage))
        if first == "answering":
            await world.begin_and_hold("answer", str(position))
        script = SCRIPTS.get(first, [])
        return [call(tool) for tool in script[position]] if position < len(script) else text(f"done: {first}")

    return hf.Agent("shop", model=ScriptedModel(say), tools=_make_tools(world), policy=[hf.ask("pay"), hf.allow("*")])


def _make_tools(world: World) -> list[hf.Tool[..., Any]]:
    @hf.tool(read_only=True)
    async def look(ctx: hf.Context) -> str:
        world.begin("look", ctx.idempotency_key)
        return "looked"

    @hf.tool(idempotent=True)
    async def reserve(ctx: hf.Context) -> str:
        return await world.begin_and_hold("reserve", ctx.idempotency_key)

    @hf.tool
    async def ship(ctx: hf.Context) -> str:
        return await world.begin_and_hold("ship", ctx.idempotency_key)

    @hf.tool
    async def sign(ctx: hf.Context) -> str:
        if world.held:
            world.begin("token", ctx.wait_token("signature"))  # as if it had been mailed to the person who signs
        return f"signed by {await ctx.wait('signature')}"

    @hf.tool
    async def pay(ctx: hf.Context) -> str:
        world.begin("pay", ctx.idempotency_key)
        return "paid"

    @hf.tool
    async def order(ctx: hf.Context) -> hf.Deferred[str]:
        world.begin("order", ctx.idempotency_key)
        return await ctx.defer()

    @hf.tool(idempotent=True, background=True)
    async def report(ctx: hf.Context) -> str:
        return await world.begin_and_hold("report", ctx.idempotency_key)

    @hf.tool(background=True)
    async def confirm(ctx: hf.Context) -> str:
        return f"confirmed by {await ctx.wait('confirmation')}"

    @hf.tool(idempotent=True, inline_budget=0.02)
    async def slow(ctx: hf.Context) -> str:
        return await world.begin_and_hold("slow", ctx.idempotency_key)

    return [look, reserve, ship, sign, pay, order, report, confirm, slow]


def make_processes(world: World) -> dict[str, Any]:
    def act(ctx: hf.ProcessContext, what: str) -> Callable[[], Awaitable[str]]:
        async def begin() -> str:
            return await world.begin_and_hold(what, ctx.idempotency_key)

        return begin

    def short_act(ctx: hf.ProcessContext, what: str) -> Callable[[], str]:
        def begin() -> str:
            world.begin(what, ctx.idempotency_key)
            return what

        return begin

    @hf.process
    async def packs(ctx: hf.ProcessContext) -> list[str]:
        return [await ctx.step("box", short_act(ctx, "box")), await ctx.step("pack", act(ctx, "pack"))]

    @hf.process
    async def reviews(ctx: hf.ProcessContext) -> str:
        await ctx.step("print", short_act(ctx, f"print {ctx.id}"))
        return f"reviewed by {await ctx.wait('editor')}"

    @hf.process
    async def naps(ctx: hf.ProcessContext) -> str:
        await ctx.sleep(600)
        return "awake"

    @hf.process
    async def has_child(ctx: hf.ProcessContext) -> str:
        child = await ctx.start(reviews, id=CHILD)
        return f"child {await child.result()}"

    @hf.process
    async def restocks(ctx: hf.ProcessContext, item: int) -> int:
        await ctx.step("restock", act(ctx, f"restock {item}"))
        return item

    return {made.name: made for made in (packs, reviews, naps, has_child, restocks)}


class Place:
    """One opening of the store, with all that the stories need."""

    def __init__(self, folder: Path, *, held: bool, drive: bool = True, later: int = 0) -> None:
        self.world = World(folder / "world.log", held=held)
        self.agent = make_agent(self.world)
        self.processes = make_processes(self.world)
        self.clock = ManualClock(START + later, mono=1_000_000 + later, boot=f"boot-{later}")
        self.opening = hf.open(
            folder / "store.db",
            agents=[self.agent],
            processes=list(self.processes.values()),
            clock=self.clock,
            drive=drive,
            mirror=False,
        )

    async def declare(self, runtime: hf.Runtime) -> None:
        await runtime.every("daily", hf.cron("30 8 * * *", tz="UTC"), self.agent, prompt="For {date}")
        one = hf.TriggerOptions(concurrency=1)
        await runtime.every("sold", hf.event("sale"), self.processes["restocks"], item="{payload.item}", options=one)


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # what is awaited is in the store
            await asyncio.sleep(0.005)


# ---- the first half --------------------------------------------------------------------------------------------------


async def write(folder: Path) -> None:
    """Begin everything, and be killed when each story is where it is to be stopped."""
    place = Place(folder, held=True)
    async with place.opening as runtime:
        await place.declare(runtime)
        for session in SCRIPTS:
            await runtime.session(session, agent=place.agent).send(session, key=session)
        for id, name in PROCESSES.items():
            await runtime.start(place.processes[name], id=id)
        await runtime.emit_event("sale", {"item": 1}, key="sale-1")
        await until(lambda: _has(place.world, "restock 1"))
        await runtime.emit_event("sale", {"item": 2}, key="sale-2")
        await until(lambda: _is_half_way(runtime, place.world))
        os.kill(os.getpid(), signal.SIGKILL)


async def _has(world: World, what: str) -> bool:
    return any(act == what for act, _ in world.acts())


async def _is_half_way(runtime: hf.Runtime, world: World) -> bool:
    begun = {what for what, _ in world.acts()}
    if not {"answer", "look", "reserve", "ship", "order", "report", "slow", "box", "pack", "restock 1"} <= begun:
        return False
    statuses = {session: await runtime.session(session).status() for session in SCRIPTS}
    if statuses != {
        "answering": "running",
        "reserving": "running",
        "shipping": "running",
        "signing": "waiting",
        "approving": "waiting",
        "deferring": "waiting",
        "background": "completed",
        "spilling": "completed",
    }:
        return False
    tasks = [line.status for session in BACKGROUND for line in await runtime.tasks.list(session=session)]
    if sorted(tasks) != ["running", "running", "waiting"]:
        return False
    lines = {line.id: line.status for line in await runtime.processes.list()}
    waiting = [id for id in ("review", "nap", "family", CHILD) if lines.get(id) == "waiting"]
    return len(waiting) == 4 and (await runtime.triggers.get("sold")).reserved == 1


async def leave_an_event(folder: Path) -> None:
    """A third event, accepted by a process that drives nothing: it is in the inbox of the trigger."""
    async with Place(folder, held=True, drive=False, later=1_000).opening as runtime:
        await runtime.emit_event("sale", {"item": 3}, key="sale-3")


# ---- the second half -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ending:
    """How everything ended that a store had half-way."""

    answers: dict[str, list[str]]
    """The texts of the model in each session."""
    calls: dict[str, list[str]]
    """How the calls of each session ended."""
    statuses: dict[str, str]
    """Sessions, processes and tasks."""
    results: dict[str, Any]
    """What processes returned."""
    tasks: list[str]
    told: dict[str, list[str]]
    """The notifications of each session."""
    triggers: dict[str, tuple[int, int, int, int]]
    """How often each trigger started something, failed, skipped, and how much is left."""
    restocked: list[int]
    prompts: list[str]
    """What sessions were asked that a trigger began."""
    acts: list[tuple[str, str]]
    violations: list[Any]


async def finish(folder: Path) -> Ending:
    """An hour later, with nothing that holds: answer whoever waits, and see everything end."""
    place = Place(folder, held=False, later=HOUR)
    async with place.opening as runtime:
        await place.declare(runtime)
        await _answer(runtime, dict(place.world.acts())["token"])
        await until(lambda: _is_over(runtime))
        return await _ending(runtime, place.world)


async def _answer(runtime: hf.Runtime, token: str) -> None:
    (approval,) = await runtime.approvals()
    await runtime.approve(approval.id, by="ann")
    await runtime.resolve(token, "Ann")
    tasks = await runtime.tasks.list(session="background")
    for id in ("deferring", *(task.id for task in tasks)):
        for wait in await runtime.waits(id):
            await runtime.resolve(runtime.wait_token(id, wait.name), "Ann")
    for id in ("review", CHILD):
        await runtime.signal(id, "editor", "Ann")


async def _is_over(runtime: hf.Runtime) -> bool:
    sessions = [line.id for line in await runtime.sessions(limit=100)]
    for id in sessions:
        if await runtime.session(id).status() != "completed" or await runtime.store.pending(id):
            return False
        for state in ("queued", "claimed"):
            if await runtime.store.notifications(id, state):
                return False
    tasks = [line for id in sessions for line in await runtime.tasks.list(session=id)]
    processes = await runtime.processes.list()
    triggers = [await runtime.triggers.get(name) for name in ("daily", "sold")]
    return (
        all(line.status not in {"created", "running", "waiting"} for line in (*tasks, *processes))
        and not any(trigger.reserved for trigger in triggers)
        and triggers[0].started == 1
        and triggers[1].started == 3
    )


async def _ending(runtime: hf.Runtime, world: World) -> Ending:
    sessions = [line.id for line in await runtime.sessions(limit=100)]
    histories = {id: await runtime.session(id).history() for id in sessions}
    processes = [line.id for line in await runtime.processes.list()]
    started = [id for id in processes if id not in {*PROCESSES, CHILD}]
    results = {id: await runtime.processes.handle(id).result() for id in processes}
    triggers = [await runtime.triggers.get(name) for name in ("daily", "sold")]
    return Ending(
        answers={
            id: [m.text for m in found if isinstance(m, hf.AssistantMessage) and m.text]
            for id, found in histories.items()
        },
        calls={
            id: [
                f"{result.name} {result.state}" for m in found if isinstance(m, hf.ToolMessage) for result in m.results
            ]
            for id, found in histories.items()
        },
        statuses={id: await runtime.session(id).status() for id in sessions},
        results={id: result for id, result in results.items() if id not in started},
        tasks=sorted([line.status for id in BACKGROUND for line in await runtime.tasks.list(session=id)]),
        told={id: sorted([str(notice.body) for notice in await runtime.store.notifications(id)]) for id in BACKGROUND},
        triggers={one.name: (one.started, one.failed, one.skipped, one.reserved) for one in triggers},
        restocked=sorted(results[id] for id in started),
        prompts=[
            m.text for id in sessions if id not in SCRIPTS for m in histories[id] if isinstance(m, hf.UserMessage)
        ],
        acts=world.acts(),
        violations=await check(runtime.store),
    )


def _write_fixture(target: Path) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        first = subprocess.run([sys.executable, __file__, "--write", made], check=False)
        if first.returncode != -signal.SIGKILL:
            raise SystemExit("the stories did not come half-way")
        asyncio.run(leave_an_event(folder))
        with closing(sqlite3.connect(folder / "store.db")) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        target.with_suffix(".store").write_bytes((folder / "store.db").read_bytes())
        target.with_suffix(".log").write_bytes((folder / "world.log").read_bytes())


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        asyncio.run(write(Path(sys.argv[2])))
    else:
        _write_fixture(Path(sys.argv[1]))
