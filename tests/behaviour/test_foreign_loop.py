"""A runtime used from another event loop than its own refuses that, begins nothing, and closes as always."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.talk import SOON

import holdfast as hf
from holdfast.errors import ForeignLoop
from holdfast.testing import ScriptedModel, text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


@hf.process
async def nothing(ctx: hf.ProcessContext) -> None:
    await ctx.step("nothing", int)


USES: dict[str, Callable[[hf.Runtime], Awaitable[Any]]] = {
    "send": lambda runtime: runtime.session("s", agent="a").send("hello"),
    "run": lambda runtime: runtime.run("a", "hello", session="s"),
    "emit": lambda runtime: runtime.emit(hf.EmitRequest(agent="a", input="hello", session="s")),
    "start": lambda runtime: runtime.start(nothing),
    "notify": lambda runtime: runtime.notify("s", "hello"),
    "close": lambda runtime: runtime.close(),
}


@pytest.fixture(params=["memory", "disk"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "store.db" if request.param == "disk" else None


@pytest.mark.parametrize("use", USES)
async def test_it_is_refused_and_nothing_is_begun(path: Path | None, use: str) -> None:
    agent = hf.Agent("a", model=ScriptedModel([text("hello")]))
    async with hf.open(path, agents=[agent], processes=[nothing]) as runtime:

        async def elsewhere() -> None:
            with pytest.raises(ForeignLoop):
                await USES[use](runtime)

        await asyncio.wait_for(asyncio.to_thread(asyncio.run, elsewhere()), SOON)
        assert runtime.active == 0
        assert await runtime.sessions() == []
        assert (await runtime.run(agent, "hello")).text == "hello"
