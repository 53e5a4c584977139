"""Turns that do all that a turn can do, by workers that can be killed anywhere.

A story is a golden run: a list of acts, each a process of its own on the same store. Run as a script this serves
requests (folder, story, act, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from forking import patiently, serve

import holdfast as hf
from holdfast.messages import TextChunk, ToolMessage, UserMessage
from holdfast.runtime.runtime import context_of
from holdfast.testing import ScriptedModel, World, call, stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from typing import Any

    from holdfast.messages import ModelRequest, StreamEvent
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.session import Session
    from holdfast.runtime.turn import Turn
    from holdfast.testing.scripted import ScriptedStream, ScriptItem

SESSION: Final = "golden"
ORDER: Final = "Order item 7, please."
STEER: Final = "And wrap it as a gift."
FINAL_YIELDS: Final = 3
"""How often the last words let other tasks go first: time for a race with the end."""

Kind = Literal["read_only", "idempotent", "never", "waiting", "reconciled", "asking"]
"""`waiting`: never repeated, waits for somebody. `asking`: the same, and can find out what came of it."""
TOOLS: Final[dict[str, Kind]] = {
    "stock": "read_only",
    "price": "read_only",
    "reserve": "idempotent",
    "pay": "never",
    "sign": "waiting",
    "ship": "reconciled",
    "publish": "asking",
}


# ---- what survives a process -----------------------------------------------------------------------------------------


def note(path: Path, line: object) -> None:
    """Write one line at once: a kill leaves all of it or nothing."""
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        os.write(handle, json.dumps(line).encode() + b"\n")
    finally:
        os.close(handle)


def notes(path: Path) -> list[Any]:
    """Every line that any process wrote."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# ---- the agent -------------------------------------------------------------------------------------------------------


class Moments:
    """What has been reached in this process, and what holds until something else has happened."""

    def __init__(self) -> None:
        self.reading = asyncio.Event()
        self.paying = asyncio.Event()
        self.speaking = asyncio.Event()
        self.may_read = asyncio.Event()
        self.may_pay = asyncio.Event()


class LoggedModel:
    """Follows a script, and writes down each time that it is really asked."""

    def __init__(self, script: Sequence[ScriptItem], log: Path, moments: Moments) -> None:
        self.name = "scripted:logged"
        self._script = ScriptedModel(script, name=self.name)
        self._log = log
        self._moments = moments

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        note(self._log, request.position)
        async for event in self._script.stream(request):
            yield event
            if isinstance(event, TextChunk) and request.position:
                self._moments.speaking.set()
                for _ in range(FINAL_YIELDS):
                    await asyncio.sleep(0)


def closing(request: ModelRequest) -> ScriptedStream:
    """The last words tell how every call ended and what was said meanwhile."""
    results = [result for message in request.messages if isinstance(message, ToolMessage) for result in message.results]
    calls = ", ".join(f"{result.name} {result.state}" for result in results)
    said = [message.text for message in request.messages if isinstance(message, UserMessage)]
    return stream(f"{calls}. ", " ".join(said[1:]) or "Done.")


def make_tools(folder: Path, moments: Moments) -> dict[str, Callable[..., Any]]:
    """One tool of every kind, each of which leaves its trace in the world."""
    world = World(folder / "world.log")

    async def draft() -> str:
        note(folder / "draft.log", "draft")
        await asyncio.sleep(0)
        return "draft"

    async def read(ctx: hf.Context) -> str:
        world.act(SESSION, ctx, hf.Repeat.FREE, ctx.tool)
        moments.reading.set()
        await moments.may_read.wait()
        return ctx.tool

    @hf.tool(read_only=True)
    async def stock(ctx: hf.Context) -> str:
        return await read(ctx)

    @hf.tool(read_only=True)
    async def price(ctx: hf.Context) -> str:
        return await read(ctx)

    @hf.tool(idempotent=True)
    async def reserve(ctx: hf.Context) -> str:
        world.act(SESSION, ctx, hf.Repeat.KEYED, "reserve")
        await asyncio.sleep(0)
        return "reserved"

    @hf.tool
    async def pay(ctx: hf.Context, cents: int) -> str:
        world.act(SESSION, ctx, hf.Repeat.NEVER, f"pay {cents}")
        moments.paying.set()
        await moments.may_pay.wait()
        return "paid"

    @hf.tool
    async def sign(ctx: hf.Context) -> str:
        await ctx.step("draft", draft)
        by = await ctx.wait("signature")
        world.act(SESSION, ctx, hf.Repeat.NEVER, f"signed by {by}")
        await asyncio.sleep(0)
        return f"signed by {by}"

    async def shipped(ctx: hf.Context, what: str = "") -> str:
        await asyncio.sleep(0)
        if any(attempt.idempotency_key == ctx.idempotency_key for attempt in world.attempts()):
            return "found"
        raise hf.NotDone

    @hf.tool(reconcile=shipped)
    async def ship(ctx: hf.Context) -> str:
        world.act(SESSION, ctx, hf.Repeat.NEVER, "ship")
        await asyncio.sleep(0)
        return "shipped"

    @hf.tool(reconcile=shipped)
    async def publish(ctx: hf.Context, what: str) -> str:
        await ctx.step("draft", draft)
        by = await ctx.wait("editor")
        world.act(SESSION, ctx, hf.Repeat.NEVER, f"publish {what} for {by}")
        await asyncio.sleep(0)
        return "published"

    return {made.name: made for made in (stock, price, reserve, pay, sign, ship, publish)}


# ---- acts: what one process does -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stage:
    """What an act works with."""

    folder: Path
    runtime: Runtime
    session: Session
    moments: Moments

    async def order(self) -> Turn:
        """The first input; a process that comes later sends it again, and gets the same turn."""
        return await self.session.send(ORDER, key="order")

    async def reached(self, moment: asyncio.Event, turn: Turn) -> None:
        """Until the moment has come, or the turn has ended without it."""
        reaching, ending = asyncio.ensure_future(moment.wait()), asyncio.ensure_future(turn.outcome())
        await asyncio.wait({reaching, ending}, return_when=asyncio.FIRST_COMPLETED)
        for task in (reaching, ending):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def check_not_stuck(self) -> None:
        """A session that can't be driven is told by nothing that is committed."""
        error = context_of(self.runtime).sessions.stuck(SESSION)
        if error is not None:
            raise error

    async def tell(self, turn: Turn) -> None:
        """Wait for the end, and write down what this process was told."""
        outcome = await turn.outcome()
        note(self.folder / "told.log", [outcome.turn, outcome.status, outcome.text])


Act: TypeAlias = "Callable[[Stage], Coroutine[Any, Any, None]]"


async def wait_for_the_end(stage: Stage) -> None:
    await stage.tell(await stage.order())


async def steer_while_tools_run(stage: Stage) -> None:
    turn = await stage.order()
    await stage.reached(stage.moments.reading, turn)
    await stage.session.send(STEER, key="steer", steer=True)
    stage.moments.may_read.set()
    await stage.tell(turn)


async def steer_at_the_last_moment(stage: Stage) -> None:
    turn = await stage.order()
    await stage.reached(stage.moments.speaking, turn)
    late = await stage.session.send(STEER, key="steer", steer=True)
    await stage.tell(turn)
    await stage.tell(late)


async def cancel_while_paying(stage: Stage) -> None:
    turn = await stage.order()
    await stage.reached(stage.moments.paying, turn)
    answer = await turn.cancel("no longer wanted")
    stage.moments.may_pay.set()
    note(stage.folder / "cancel.log", answer)
    await stage.tell(turn)


async def cancel_at_the_last_moment(stage: Stage) -> None:
    turn = await stage.order()
    await stage.reached(stage.moments.speaking, turn)
    note(stage.folder / "cancel.log", await turn.cancel("no longer wanted"))
    await stage.tell(turn)


async def work_until_parked(stage: Stage) -> None:
    turn = await stage.order()
    store = stage.runtime.store
    while True:
        version = store.version
        if await turn.status() not in {"queued", "running"}:
            return
        stage.check_not_stuck()
        await store.changed(version, 0.2)


async def answer_all(stage: Stage) -> None:
    """Somebody else, in a process that drives nothing."""
    for wait in await stage.runtime.waits(SESSION):
        await stage.runtime.resolve(stage.runtime.wait_token(SESSION, wait.name), "Ann")


async def withdraw(stage: Stage) -> None:
    """Somebody else calls the turn off, in a process that drives nothing."""
    note(stage.folder / "cancel.log", await stage.session.turn("t1").cancel("no longer wanted"))


async def settle(stage: Stage) -> None:
    """One more process, after the end: it finds nothing to do but what came too late, and is told the same."""
    store = stage.runtime.store
    while True:
        version = store.version
        if not await store.pending(SESSION) and await stage.session.status() not in {"running", "waiting"}:
            break
        stage.check_not_stuck()
        await store.changed(version, 0.2)
    await stage.tell(stage.session.turn("t1"))


# ---- the stories -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Story:
    """A golden run. What is held goes on only when the act lets it."""

    tools: tuple[str, ...]
    acts: tuple[Act, ...]
    """What is to be killed. The last act is `settle`, which is not."""
    hold_reading: bool = False
    hold_paying: bool = False

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(TOOLS[name] for name in self.tools)


_ALL: Final = ("stock", "price", "reserve", "pay")
STORIES: Final[dict[str, Story]] = {
    "steer": Story(_ALL, (steer_while_tools_run, settle), hold_reading=True),
    "late-steer": Story(_ALL, (steer_at_the_last_moment, settle)),
    "cancel-tool": Story(_ALL, (cancel_while_paying, settle), hold_paying=True),
    "cancel-reply": Story(_ALL, (cancel_at_the_last_moment, settle)),
    "wait": Story(("stock", "sign"), (work_until_parked, answer_all, wait_for_the_end, settle)),
    "withdraw": Story(("sign",), (work_until_parked, withdraw, wait_for_the_end, settle)),
    "reconcile": Story(("ship", "publish"), (work_until_parked, answer_all, wait_for_the_end, settle)),
}
PASSIVE: Final = (answer_all, withdraw)
_ARGUMENTS: Final[dict[str, dict[str, Any]]] = {"pay": {"cents": 1_200}, "publish": {"what": "the news"}}


def make_agent(story: Story, folder: Path, moments: Moments) -> hf.Agent:
    made = make_tools(folder, moments)
    calls = [call(name, **_ARGUMENTS.get(name, {})) for name in story.tools]
    script: list[ScriptItem] = [[stream("Let me ", "see."), *calls], closing, closing]
    tools = [made[name] for name in story.tools]
    return hf.Agent(
        "shop", model=LoggedModel(script, folder / "model.log", moments), tools=tools, policy=[hf.allow("*")]
    )


async def play(folder: Path, story: Story, act: Act) -> None:
    """One act, to its end."""
    moments = Moments()
    if not story.hold_reading:
        moments.may_read.set()
    if not story.hold_paying:
        moments.may_pay.set()
    agent = make_agent(story, folder, moments)
    async with hf.open(folder / "store.db", agents=[agent], drive=act not in PASSIVE) as runtime:
        await act(Stage(folder, runtime, runtime.session(SESSION, agent=agent), moments))


def _act(folder: Path, request: dict[str, str]) -> None:
    story = STORIES[request["story"]]
    asyncio.run(patiently(play(folder, story, story.acts[int(request["act"])])))


def _make_all() -> None:
    """What is made here once is made quickly by every child."""
    for story in STORIES.values():
        make_agent(story, Path(), Moments())


if __name__ == "__main__":
    _make_all()
    serve(_act)
