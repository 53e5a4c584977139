"""An agent whose instructions and tools are other ones each time that it is asked, by workers that can be killed.

Run as a script it serves requests (folder, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forking import patiently, serve
from turn_scenario import note

import holdfast as hf
from holdfast.messages import ToolMessage
from holdfast.models import register
from holdfast.testing import ScriptedModel, World, call, text

if TYPE_CHECKING:
    from holdfast.runtime.runtime import Runtime

SESSION: Final = "golden"
WHAT: Final = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}
ACTS: Final = ("pay", "read", "send")
INPUTS: Final = {"one": None, "two": hf.Settings(seed=2)}
"""Two inputs, the second with a model and settings of its own."""


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Shelf:
    """Says in each description how often it was asked before, in all processes."""

    name = "shelf"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._world = World(folder / "world.log")

    async def list(self, turn: hf.TurnContext[Any]) -> list[hf.ProvidedTool]:
        number = len(lines(self._folder / "listed.log"))
        note(self._folder / "listed.log", turn.turn)
        await asyncio.sleep(0)
        options: dict[str, Any] = {"description": f"Edition {number}.", "parameters": WHAT, "version": str(number)}
        return [
            hf.ProvidedTool("pay", **options),
            hf.ProvidedTool("read", read_only=True, **options),
            hf.ProvidedTool("send", idempotent=True, **options),
            hf.ProvidedTool(f"edition_{number}", read_only=True, **options),
        ]

    async def call(self, ctx: hf.Context[Any], tool: hf.ProvidedTool, arguments: dict[str, Any]) -> str:
        repeats = {"pay": hf.Repeat.NEVER, "read": hf.Repeat.FREE, "send": hf.Repeat.KEYED}
        await asyncio.sleep(0.03 if tool.name == "send" else 0)
        self._world.act(SESSION, ctx, repeats[tool.name], tool.name)
        note(self._folder / "called.log", [tool.name, tool.version])
        return f"{tool.name} {arguments['what']}"


def make_agent(folder: Path) -> hf.Agent:
    def instruct(turn: hf.TurnContext[Any]) -> str:
        return f"Edition {len(lines(folder / 'listed.log'))} for {turn.turn}."

    def reply(request: hf.ModelRequest) -> Any:
        done = {each.name for found in request.messages if isinstance(found, ToolMessage) for each in found.results}
        note(folder / "asked.log", [request.position, request.instructions, [tool.name for tool in request.tools]])
        if "pay" not in done:
            return [call("pay", what="x"), call("read", what="y")]
        return text("done") if "send" in done else call("send", what="z")

    model = ScriptedModel(reply)
    register("other", lambda _: ScriptedModel(reply, name="other:model"))
    tools = hf.toolset(Shelf(folder)).require_approval("pay").filter(lambda turn, _: bool(turn.turn))
    return hf.Agent(
        "keeper", model=model, instructions=instruct, tools=[tools], policy=[hf.allow("*")], inline_budget=0.01
    )


async def _approve(runtime: Runtime) -> None:
    while True:
        version = runtime.store.version
        for approval in await runtime.approvals():
            await runtime.approve(approval.id, by="ann")
        await runtime.store.changed(version, 0.05)


async def work(folder: Path) -> None:
    """All of it, from wherever an earlier process was."""
    agent = make_agent(folder)
    async with hf.open(folder / "store.db", agents=[agent], mirror=False) as runtime:
        approving = asyncio.ensure_future(_approve(runtime))
        session = runtime.session(SESSION, agent=agent)
        for key, settings in INPUTS.items():
            model = None if settings is None else "other:model"
            outcome = await (await session.send(key, key=key, model=model, settings=settings)).outcome()
            assert outcome.status == "completed", outcome
        while not await _is_over(runtime):
            await asyncio.sleep(0.01)
        approving.cancel()


async def _is_over(runtime: Runtime) -> bool:
    """Whether every background call has ended, and the session has been told of it."""
    tasks = [await runtime.tasks.task(found.id) for found in await runtime.tasks.list(session=SESSION)]
    store = runtime.store
    left = [*await store.notifications(SESSION, "queued"), *await store.notifications(SESSION, "claimed")]
    return all(task.over for task in tasks) and not left and not runtime.active


def _once(folder: Path, request: dict[str, str]) -> None:
    asyncio.run(patiently(work(folder)))


if __name__ == "__main__":
    make_agent(Path())
    serve(_once)
