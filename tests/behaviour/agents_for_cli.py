"""Agents that the tests of the command line run: copied into the folder of each test as `agents.py`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

import holdfast as hf
from holdfast.testing import ScriptedModel, call, delayed, error, text

if TYPE_CHECKING:
    from holdfast.testing.scripted import ScriptReply


class Sum(BaseModel):
    total: int


@hf.tool(read_only=True)
async def look(word: str) -> str:
    """Look a word up."""
    return word.upper()


@hf.tool
async def ask(ctx: hf.Context) -> str:
    """Ask a person."""
    return str(await ctx.wait("approval"))


@hf.tool
async def ask_briefly(ctx: hf.Context) -> str:
    """Ask a person who has little time."""
    try:
        return str(await ctx.wait("approval", timeout=1.5))
    except hf.WaitExpired:
        return "nobody"


@hf.tool
async def order(ctx: hf.Context) -> dict[str, int] | hf.Deferred[dict[str, int]]:
    """Order something; the shop answers later."""
    pending = await ctx.defer()
    Path("key").write_text(pending.key, encoding="utf-8")  # noqa: ASYNC240
    return pending


def _leave_a_trace() -> None:
    Path("begun").touch()


@hf.tool(idempotent=True)
async def gate() -> str:
    """Leave a trace, then wait until the gate is opened."""
    _leave_a_trace()
    while not Path("open").exists():  # noqa: ASYNC240  the other side is another process
        await asyncio.sleep(0.02)
    return "through"


@hf.tool(read_only=True)
def block() -> str:
    """Block a thread that nobody can stop."""
    _leave_a_trace()
    time.sleep(60)
    return "late"


def _echo(request: hf.ModelRequest) -> str:
    said = request.messages[-1]
    return f"you said {said.text}" if isinstance(said, hf.UserMessage) else "nothing"


echo = hf.Agent("echo", model=ScriptedModel(_echo))
looks = hf.Agent(
    "looks",
    model=ScriptedModel([["Let me see. ", call("look", word="a"), call("look", word="b")], text("A and B.")]),
    tools=[look],
    policy=[hf.allow("*")],
)
asks = hf.Agent("asks", model=ScriptedModel([call("ask"), text("Approved.")]), tools=[ask], policy=[hf.allow("*")])
orders = hf.Agent(
    "orders", model=ScriptedModel([call("order"), text("Ordered.")]), tools=[order], policy=[hf.allow("*")]
)
asks_twice = hf.Agent(
    "asks-twice",
    model=ScriptedModel([[call("ask"), call("ask")], text("Approved.")]),
    tools=[ask],
    policy=[hf.allow("*")],
)
asks_briefly = hf.Agent(
    "asks-briefly",
    model=ScriptedModel([call("ask_briefly"), text("Timed out.")]),
    tools=[ask_briefly],
    policy=[hf.allow("*")],
)


@hf.tool(read_only=True)
async def tick() -> str:
    """Let a moment pass."""
    _leave_a_trace()
    await asyncio.sleep(0.02)
    return "tick"


def _until_told(request: hf.ModelRequest) -> ScriptReply:
    told = any(isinstance(said, hf.UserMessage) and said.text == "hurry" for said in request.messages)
    return "Hurried." if told else call("tick")


works_on = hf.Agent(
    "works-on", model=ScriptedModel(_until_told), tools=[tick], limits=hf.Limits(steps=None, repeats=None)
)
gated = hf.Agent(
    "gated", model=ScriptedModel([call("gate"), text("Done."), text("More.")]), tools=[gate], policy=[hf.allow("*")]
)
blocked = hf.Agent(
    "blocked", model=ScriptedModel([call("block"), text("Done.")]), tools=[block], policy=[hf.allow("*")]
)
slow = hf.Agent("slow", model=ScriptedModel([delayed(60, text("late"))]))
fails = hf.Agent("fails", model=ScriptedModel([error("no credit", kind="billing")]))
loops = hf.Agent(
    "loops",
    model=ScriptedModel([call("look", word="a")]),
    tools=[look],
    policy=[hf.allow("*")],
    limits=hf.Limits(steps=1),
)
typed = hf.Agent("typed", model=ScriptedModel([text('{"total": 4}')]), output=Sum)


def _repaired(request: hf.ModelRequest) -> ScriptReply:
    if not any(isinstance(said, hf.ToolMessage) for said in request.messages):
        return call("look", word="a")
    return text("Repaired.") if Path("repaired").exists() else error("no credit", kind="billing")


flaky = hf.Agent("flaky", model=ScriptedModel(_repaired), tools=[look])
