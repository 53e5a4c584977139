"""Phoenix receives our spans and must show what they are: agents, models and tools, with tokens and messages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.store import open_store
from holdfast.telemetry import Telemetry
from holdfast.telemetry.export import send_spans
from holdfast.telemetry.journals import read_trace
from holdfast.testing import ScriptedModel, call

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.judges


@hf.tool(read_only=True)
async def look(item: int) -> dict[str, int]:
    """How many there are."""
    return {"stock": item}


async def shown(address: str, session: str, count: int) -> dict[str, dict[str, Any]]:
    """The spans of a session as Phoenix shows them, by name; waits until it has them all."""
    async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as client:
        while True:
            async with client.get(f"{address}/v1/projects/default/spans", params={"limit": "100"}) as answer:
                spans: list[dict[str, Any]] = (await answer.json())["data"] if answer.ok else []
            found = [span for span in spans if span["attributes"].get("gen_ai.conversation.id") == session]
            if len(found) >= count:
                assert len(found) == count
                return {span["name"]: span for span in found}
            await asyncio.sleep(0.2)


async def test_a_turn_appears_as_an_agent_a_model_and_a_tool(phoenix: str, tmp_path: Path) -> None:
    usage = hf.Usage(input=120, output=33)
    reply = hf.ModelReply((hf.Text("Four."),), usage=usage, model="openai:gpt-5")
    model = ScriptedModel([call(look, item=4), reply], name="openai:gpt-5")
    agent = hf.Agent("clerk", model=model, tools=[look])
    telemetry = Telemetry(endpoint=phoenix, metrics=False, content=True)
    async with hf.open(tmp_path / "s.db", agents=[agent], telemetry=telemetry) as runtime:
        await runtime.run(agent, "How many?", session="judged")
    found = await shown(phoenix, "judged", 4)
    kinds = {name: span["span_kind"] for name, span in found.items()}
    assert kinds == {"invoke_agent clerk": "AGENT", "chat gpt-5": "LLM", "execute_tool look": "TOOL"}
    root = found["invoke_agent clerk"]["context"]["span_id"]
    assert {found[name]["parent_id"] for name in ("chat gpt-5", "execute_tool look")} == {root}
    assert "How many?" in str(found["invoke_agent clerk"]["attributes"])

    # The same trace once more, from the journal: nothing is doubled.
    async with open_store(tmp_path / "s.db") as store:
        assert await send_spans(phoenix, await read_trace(store, "judged"))
    await shown(phoenix, "judged", 4)
