"""A turn whose hooks decide about its model and its call, by workers that can be killed anywhere.

The first question is let pass, the second is answered by a hook or denied, as the story says. Run as a script this
serves requests (folder, story, crash point) with a real process each.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forking import serve
from turn_scenario import note

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from holdfast.messages import ModelRequest
    from holdfast.policy.hooks import ModelDecision, ToolDecision

SESSION: Final = "s"
STORIES: Final = ("deny", "answer")
ENDINGS: Final = {"deny": ("failed", "denied", ""), "answer": ("completed", "", "from the hook")}


class Deciding(hf.Hooks):
    """Writes down each time that it is asked."""

    def __init__(self, folder: Path, story: str) -> None:
        self._folder = folder
        self._story = story

    async def before_model(self, asked: hf.HookRequest) -> ModelDecision | None:
        at = asked.request.position
        note(self._folder / "hook.log", at)
        await asyncio.sleep(0)
        if at == 0:
            return None
        return asked.deny("enough") if self._story == "deny" else asked.answer("from the hook")

    async def before_tool(self, call: hf.HookCall) -> ToolDecision | None:
        note(self._folder / "hook.log", call.tool)
        await asyncio.sleep(0)
        return None


def agent_in(folder: Path, story: str) -> hf.Agent:
    @hf.tool(read_only=True)
    async def look() -> str:
        """Look."""
        note(folder / "tool.log", "look")
        return "nothing"

    def say(request: ModelRequest) -> Any:
        note(folder / "model.log", request.position)
        return call(look) if request.position == 0 else text("from the model")

    return hf.Agent("a", model=ScriptedModel(say), tools=[look], hooks=[Deciding(folder, story)])


async def play(folder: Path, story: str) -> None:
    """The turn, to its end; whatever was interrupted goes on."""
    agent = agent_in(folder, story)
    async with hf.open(folder / "store.db", agents=[agent], mirror=False, lease_ms=1_000) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go", key="1")
        outcome = await turn.outcome(timeout=20)
        assert (outcome.status, outcome.code, outcome.text) == ENDINGS[story], outcome


if __name__ == "__main__":
    agent_in(Path(), STORIES[0])
    serve(lambda folder, request: asyncio.run(play(folder, request["story"])))
