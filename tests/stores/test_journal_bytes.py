"""The bytes that stories leave in a store equal `journal_bytes.txt`: records, inputs, waits, notifications.

Journals on disk are for ever. A change of the file is a change of what other versions of Holdfast have to read: a new
optional field is fine, another name or another key is not. If you want the change, write it with
``HOLDFAST_UPDATE=1 pytest tests/stores/test_journal_bytes.py`` and commit the file.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import re
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.stores.stories import START, until

import holdfast as hf
from holdfast.testing import ManualClock, ScriptedModel, call, error, text

if TYPE_CHECKING:
    from collections.abc import Iterator

SNAPSHOT: Final = Path(__file__).with_name("journal_bytes.txt")
UPDATE: Final = "HOLDFAST_UPDATE"
STORE_ID: Final = 16
"""How many bytes the id of a store has."""
SCRIPTS: Final[dict[str, list[Any]]] = {
    "text": [text("Hello.")],
    "tool": [call("add", a=1, b=2), [call("add", a=3, b=4), call("fails")], text("Three.")],
    "approved": [call("pay", amount=7), text("Paid.")],
    "denied": [call("pay", amount=8), text("Not paid.")],
    "edited": [call("pay", amount=9), text("Paid less.")],
    "steps": [call("steps"), text("Stepped.")],
    "waiting": [call("sign"), text("Signed.")],
    "deferred": [call("order"), text("Ordered.")],
    "failing": [error("the model is down")],
    "background": [call("report"), text("I will tell you."), text("It is there.")],
    "spilled": [call("slow"), text("It takes a while."), text("It is there.")],
    "subagent": [call("helper", prompt="text"), text("The helper greets.")],
}
"""Sessions, and what the model says in each of its steps."""


class Gates:
    """What a tool or a step waits for, so that everything happens in one order."""

    def __init__(self) -> None:
        self.report = asyncio.Event()
        self.slow = asyncio.Event()


def _say(request: hf.ModelRequest) -> Any:
    position = sum(isinstance(message, hf.AssistantMessage) for message in request.messages)
    first = next(message.text for message in request.messages if isinstance(message, hf.UserMessage))
    script = SCRIPTS.get(first.split()[-1], [text("Done.")])
    return script[position]


def _make_agent(gates: Gates) -> hf.Agent:
    @hf.tool(read_only=True)
    def add(a: int, b: int) -> int:
        return a + b

    @hf.tool(read_only=True)
    def fails() -> str:
        raise OSError("no connection")

    @hf.tool
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    @hf.tool
    async def steps(ctx: hf.Context) -> list[str]:
        return [await ctx.step("one", lambda: "1"), await ctx.step("two", lambda: "2")]

    @hf.tool
    async def sign(ctx: hf.Context) -> str:
        return f"signed by {await ctx.wait('signature')}"

    @hf.tool
    async def order(ctx: hf.Context) -> hf.Deferred[str]:
        return await ctx.defer()

    @hf.tool(idempotent=True, background=True)
    async def report(ctx: hf.Context) -> str:
        await gates.report.wait()
        return await ctx.step("print", lambda: "printed")

    @hf.tool(inline_budget=0.01)
    async def slow() -> str:
        await gates.slow.wait()
        return "slow, but there"

    helper = hf.Agent("helper", model=ScriptedModel(_say))
    return hf.Agent(
        "shop",
        model=ScriptedModel(_say),
        tools=[add, fails, pay, steps, sign, order, report, slow, hf.agent_tool(helper)],
        policy=[hf.ask("pay"), hf.allow("*")],
    )


@hf.process(retry=hf.ToolRetryPolicy(attempts=2, pause=0))
async def packs(ctx: hf.ProcessContext) -> str:
    if ctx.attempt == 1:
        raise OSError("no boxes")
    return await ctx.step("pack", lambda: "packed")


@hf.process
async def delivers(ctx: hf.ProcessContext, item: int) -> list[Any]:
    boxed = await ctx.step("box", lambda: f"boxed {item}")
    both = await ctx.gather(ctx.step("left", lambda: "l"), ctx.step("right", lambda: "r"))
    editor = await ctx.wait("editor")
    await ctx.sleep(600)
    child = await (await ctx.start(packs, id="packing")).result()
    return [boxed, both, editor, child]


async def _tell(folder: Path) -> None:
    gates, clock = Gates(), ManualClock(START)
    agent = _make_agent(gates)
    opening = hf.open(
        folder / "store.db", agents=[agent], processes=[delivers, packs], clock=clock, mirror=False, concurrency=1
    )
    async with opening as runtime:
        for session in SCRIPTS:
            turn = await runtime.session(session, agent=agent).send(session, key=f"key-{session}")
            await until(lambda turn=turn: _rests(turn))
        await _tell_answers(runtime)
        await _tell_background(runtime, gates)
        await _tell_process(runtime, clock)
        await _tell_triggers(runtime, agent, clock)


async def _rests(turn: hf.Turn) -> bool:
    return await turn.status() in {"waiting", "completed", "failed", "cancelled"}


async def _tell_answers(runtime: hf.Runtime) -> None:
    for approval in await runtime.approvals():
        if approval.session == "denied":
            await runtime.deny(approval.id, "too much", by="ann")
        else:
            less = {"amount": 1} if approval.session == "edited" else None
            await runtime.approve(approval.id, by="ann", arguments=less)
    for session in ("waiting", "deferred"):
        (wait,) = await runtime.waits(session)
        await runtime.resolve(runtime.wait_token(session, wait.name), "Ann")
    for session in ("approved", "denied", "edited", "waiting", "deferred"):
        await runtime.session(session).turn("t1").outcome(timeout=20)


async def _tell_background(runtime: hf.Runtime, gates: Gates) -> None:
    for session, gate in (("background", gates.report), ("spilled", gates.slow)):
        gate.set()
        await until(lambda session=session: _heard(runtime, session))


async def _heard(runtime: hf.Runtime, session: str) -> bool:
    told = await runtime.store.notifications(session, "acknowledged")
    return bool(told) and await runtime.session(session).status() == "completed"


async def _tell_process(runtime: hf.Runtime, clock: ManualClock) -> None:
    process = await runtime.start(delivers, 7, id="delivery")
    await until(lambda: _waits(process))
    await process.signal("editor", "yes", key="signal-1")
    await until(lambda: _sleeps(process))
    clock.advance(600_000)
    runtime.gate_changed()
    await process.result(timeout=20)


async def _waits(process: hf.Process) -> bool:
    return await process.status() == "waiting"


async def _sleeps(process: hf.Process) -> bool:
    line = await process.line()
    return line.status == "waiting" and not any("editor" in wait for wait in line.waits)


async def _tell_triggers(runtime: hf.Runtime, agent: hf.Agent, clock: ManualClock) -> None:
    await runtime.every("hello", hf.event("greeting"), agent, prompt="{payload.name} says text")
    await until(lambda: _is_declared(runtime, "hello"))
    await runtime.emit_event("greeting", {"name": "Ann"}, key="event-1")
    await until(lambda: _started(runtime, "hello"))
    await runtime.every("daily", hf.cron("30 8 * * *", tz="UTC"), packs)
    await until(lambda: _is_declared(runtime, "daily"))
    clock.advance(3_600_000)
    runtime.gate_changed()
    await until(lambda: _started(runtime, "daily"))
    await until(lambda: _all_over(runtime))


async def _is_declared(runtime: hf.Runtime, trigger: str) -> bool:
    return not runtime.active and not await runtime.store.pending(f"trigger/{trigger}")


async def _started(runtime: hf.Runtime, trigger: str) -> bool:
    return (await runtime.triggers.get(trigger)).started == 1


async def _all_over(runtime: hf.Runtime) -> bool:
    sessions = [await runtime.session(line.id).status() for line in await runtime.sessions(limit=100)]
    processes = [line.status for line in await runtime.processes.list()]
    return set(sessions) == {"completed", "failed"} and set(processes) == {"completed"} and not runtime.active


# ---- what is in the file ---------------------------------------------------------------------------------------------

QUERIES: Final = {
    "record": "SELECT body FROM records WHERE journal = ? ORDER BY seq",
    "input": "SELECT key, body FROM inputs WHERE journal = ? ORDER BY input",
    "wait": "SELECT name, state, deadline, payload FROM waits WHERE journal = ? ORDER BY name",
}
NOTIFICATIONS: Final = (
    "SELECT kind, title, body, source, priority, key, state, attempts FROM notifications WHERE journal = ? ORDER BY no"
)


def _lines(path: Path) -> Iterator[str]:
    with closing(sqlite3.connect(path)) as db:
        journals = db.execute("SELECT no, id, kind, agent, status, role, session FROM journals ORDER BY id").fetchall()
        for number, id, *about in journals:
            yield f"journal {id} {' '.join(map(str, about))}"
            for name, query in QUERIES.items():
                for row in db.execute(query, (number,)):
                    yield f"  {name} {_written(row)}"
            for row in db.execute(NOTIFICATIONS, (id,)):
                yield f"  notification {_written(row)}"


CHANCE: Final = (
    (r'"by":"(pid|process) \d+( \([0-9a-f]+\))?"', '"by":"this process"'),
    (r',"ms":\d+', ""),
    (r'"trace":"Traceback (?:[^"\\]|\\.)*"', '"trace":"Traceback ..."'),
    (r"carry-[0-9a-f]{24}", "carry-1"),
)
"""What differs from run to run: the process, how long an effect took, the random key of a delivery, tracebacks."""


def _written(row: tuple[Any, ...]) -> str:
    line = " ".join(value.decode() if isinstance(value, bytes) else json.dumps(value) for value in row)
    for pattern, fixed in CHANCE:
        line = re.sub(pattern, fixed, line)
    return line


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The stories, in a store whose id is not random: idempotency keys hang on it."""
    folder, random_bytes = tmp_path_factory.mktemp("told"), secrets.token_bytes

    def token_bytes(size: int) -> bytes:
        return bytes(size) if size == STORE_ID else random_bytes(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_bytes", token_bytes)
        asyncio.run(_tell(folder))
    return "".join(f"{line}\n" for line in _lines(folder / "store.db"))


def test_stories_leave_the_bytes_of_the_snapshot(written: str) -> None:
    if os.environ.get(UPDATE):
        SNAPSHOT.write_text(written, encoding="utf-8")
    before = SNAPSHOT.read_text(encoding="utf-8")
    diff = difflib.unified_diff(before.splitlines(), written.splitlines(), "journal_bytes.txt", "now", lineterm="", n=0)
    assert written == before, "\n".join(
        (
            "a store holds other bytes than tests/stores/journal_bytes.txt says:",
            *diff,
            f"If stores may change so: {UPDATE}=1 .venv/bin/python -m pytest tests/stores/test_journal_bytes.py",
        )
    )


def test_the_stories_leave_records_of_every_kind_that_they_are_for(written: str) -> None:
    kinds = set(re.findall(r'record \{"t":"([a-z_]+)"', written))
    assert kinds >= {"opened", "started", "parked", "resumed", "ended", "done", "failed"}
