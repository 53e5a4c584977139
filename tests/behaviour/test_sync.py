"""`hf.open_sync` and `hf.run_sync`: the whole runtime, for code that is not async."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.errors import RuntimeForked, RuntimeStopped, WaitOnLoop
from holdfast.runtime import sync
from holdfast.testing import ScriptedModel, call, stream, text

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.runtime.sync import SyncRuntime


@hf.tool
def refund(order_id: str) -> str:
    """Refund an order."""
    return f"refunded {order_id}"


@hf.process
async def double(ctx: hf.ProcessContext, number: int) -> int:
    return 2 * number + await ctx.wait("more")


hello = hf.Agent("hello", model=ScriptedModel(lambda _: stream("Hello, ", "Ada.")))
shop = hf.Agent(
    "shop",
    model=ScriptedModel([call("refund", order_id="7"), text("Done.")]),
    tools=[refund],
    policy=[hf.ask("refund")],
)


@pytest.fixture
def runtime(tmp_path: Path) -> Generator[SyncRuntime]:
    with hf.open_sync(tmp_path / "store.db", agents=[hello, shop], processes=[double]) as opened:
        yield opened


def test_a_session_answers_and_remembers(runtime: SyncRuntime) -> None:
    session = runtime.session("s", agent=hello)
    turn = session.send("I am Ada.", key="k")
    outcome = turn.outcome(timeout=PATIENCE)
    assert (outcome.ok, outcome.text, turn.session, session.id) == (True, "Hello, Ada.", "s", "s")
    assert turn.status() == "completed"
    assert len(session.history()) == 2
    assert [line.id for line in runtime.sessions()] == ["s"]
    assert session.fork(id="branch").id == "branch"
    assert runtime.run(hello, "Again.", session="s").ok


def test_events_are_a_plain_iterator(runtime: SyncRuntime) -> None:
    turn = runtime.session("s", agent=hello).send("go")
    events = list(turn.events())
    assert "".join(event.text for event in events if isinstance(event, hf.TextDelta)) == "Hello, Ada."
    assert isinstance(events[-1], hf.TurnCompleted)


def test_an_iteration_may_be_left(runtime: SyncRuntime) -> None:
    runtime.run(hello, "go", session="s")
    for event in runtime.session("s").events():
        assert event.session == "s"
        break
    assert runtime.run(hello, "go", session="s").ok


def test_approvals_are_answered(runtime: SyncRuntime) -> None:
    turn = runtime.session("s", agent=shop).send("go")
    for event in turn.events():
        if isinstance(event, hf.ApprovalRequested):
            (approval,) = runtime.approvals()
            runtime.approve(approval.id, by="ops")
    assert turn.outcome().text == "Done."


def test_processes_are_started_and_signalled(runtime: SyncRuntime) -> None:
    process = runtime.start(double, 4, id="p")
    process.signal("more", 1)
    assert process.result(timeout=PATIENCE) == 9
    assert runtime.processes.handle("p").status() == "completed"


def test_attachments_memory_and_triggers_are_there(runtime: SyncRuntime) -> None:
    kept = runtime.attachments.put(b"bytes", name="a.bin")
    assert runtime.attachments.get(kept) == b"bytes"
    assert b"".join(runtime.attachments.stream(kept)) == b"bytes"
    memory = runtime.memory("notes")
    memory.put("colour", "blue")
    entry = memory.get("colour")
    assert entry is not None
    assert entry.value == "blue"
    trigger = runtime.every("nightly", hf.cron("0 6 * * *"), hello, prompt="go")
    assert trigger.status().name == "nightly"
    assert [found.name for found in runtime.triggers.list()] == ["nightly"]


def test_a_handler_runs_in_a_thread_and_may_use_the_runtime(runtime: SyncRuntime) -> None:
    seen, came = list[Any](), threading.Event()

    def handle(event: hf.TurnCompleted) -> None:
        seen.append(runtime.session(event.session).status())
        came.set()

    subscription = runtime.on(hf.TurnCompleted, handle)
    runtime.run(hello, "go", session="s")
    assert came.wait(PATIENCE)
    assert len(seen) == 1
    subscription.stop()


def test_emitted_requests_can_be_awaited(runtime: SyncRuntime) -> None:
    receipt = runtime.emit(hf.EmitRequest(agent="hello", input="go", client_request_id="r-1"))
    assert receipt.outcome(timeout=PATIENCE).ok


def test_many_threads_may_use_it_at_once(runtime: SyncRuntime) -> None:
    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(partial(runtime.run, hello), [f"go {number}" for number in range(48)]))
    assert all(outcome.ok for outcome in outcomes)
    assert len(runtime.sessions()) == 48


async def test_it_works_where_an_event_loop_is_running(tmp_path: Path) -> None:
    with hf.open_sync(tmp_path / "store.db", agents=[hello]) as runtime:
        assert runtime.run(hello, "go").text == "Hello, Ada."
    assert hf.run_sync(hello, "go").text == "Hello, Ada."


def test_run_sync_asks_once() -> None:
    assert hf.run_sync(hello, "go").text == "Hello, Ada."


def test_errors_are_those_of_the_async_api(runtime: SyncRuntime) -> None:
    runtime.session("s", agent=hello).send("one", key="k")
    with pytest.raises(hf.KeyConflict):
        runtime.session("s").send("two", key="k")
    with pytest.raises(hf.UsageError):
        hf.open_sync("", agents=[hello, hello.replace(instructions="Other.")])
    with pytest.raises(AttributeError, match="stroe"):
        runtime.stroe  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def test_a_closed_runtime_refuses_calls_and_frees_those_who_wait(tmp_path: Path) -> None:
    runtime = hf.open_sync(tmp_path / "store.db", agents=[shop])
    turn = runtime.session("s", agent=shop).send("go")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(turn.outcome)
        until = time.monotonic() + PATIENCE
        while not runtime.approvals() and time.monotonic() < until:
            time.sleep(0.005)
        runtime.close()
        runtime.close()
        with pytest.raises(hf.HoldfastError):
            waiting.result(timeout=PATIENCE)
    with pytest.raises(RuntimeStopped):
        runtime.sessions()
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-loop"]
    with hf.open_sync(tmp_path / "store.db", agents=[shop]) as again:
        assert len(again.approvals()) == 1


def test_a_wait_on_its_own_loop_is_refused_instead_of_hanging(runtime: SyncRuntime) -> None:
    @hf.tool(read_only=True)
    async def look() -> int:
        """Uses the wrong API."""
        return len(runtime.sessions())

    model = ScriptedModel([call("look"), text("Done.")])
    agent = hf.Agent("looks", model=model, tools=[look])
    runtime.register(agent)
    assert runtime.run(agent, "go").ok
    assert WaitOnLoop.__name__ in str(model.requests[1].messages[-1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_refused_by_name(runtime: SyncRuntime) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            runtime.sessions()
        except RuntimeForked:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert runtime.sessions() == []


PROGRAM = """
import holdfast as hf
from holdfast.testing import ScriptedModel, delayed, text
slow = hf.Agent("slow", model=ScriptedModel([delayed(3600, text("late"))]))
quick = hf.Agent("quick", model=ScriptedModel([text("Hello.")]))
runtime = hf.open_sync("store.db", agents=[slow, quick])
print(runtime.run(quick, "go", session="q").text, flush=True)
{rest}
"""


def program(rest: str, folder: Path) -> subprocess.Popen[str]:
    code = PROGRAM.format(rest=rest)
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_what_is_open_at_the_end_of_the_program_is_closed(tmp_path: Path) -> None:
    said, errors = program("", tmp_path).communicate(timeout=PATIENCE)
    assert (said, errors) == ("Hello.\n", "")
    with hf.open_sync(tmp_path / "store.db") as runtime:
        assert "Hello." in str(runtime.session("q").history()[-1])


def test_ctrl_c_ends_the_wait_and_the_turn_goes_on(tmp_path: Path) -> None:
    rest = """
import sys, threading, time

def announce(main=threading.get_ident()):
    names = set()
    while "call" not in names:
        frame, names = sys._current_frames()[main], set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        time.sleep(0.005)
    print("waiting", flush=True)

try:
    turn = runtime.session("s", agent=slow).send("go")
    threading.Thread(target=announce, daemon=True).start()
    turn.outcome()
except KeyboardInterrupt:
    print(turn.status(), flush=True)
"""
    running = program(rest, tmp_path)
    assert running.stdout is not None
    assert [running.stdout.readline() for _ in range(2)] == ["Hello.\n", "waiting\n"]
    running.send_signal(signal.SIGINT)
    said, errors = running.communicate(timeout=PATIENCE)
    assert (said, running.returncode) == ("running\n", 0), errors


async def test_the_async_api_sees_the_same_store(tmp_path: Path) -> None:
    with hf.open_sync(tmp_path / "store.db", agents=[hello]) as runtime:
        await asyncio.to_thread(runtime.run, hello, "go", session="s")
    async with hf.open(tmp_path / "store.db", agents=[hello]) as other:
        assert len(await other.session("s").history()) == 2


# ---- both sides ------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
STUBS = {
    node.name: node
    for node in ast.parse((ROOT / "src/holdfast/runtime/sync.pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ClassDef)
}


def _public(kind: type) -> set[str]:
    names = {name for name in dir(kind) if not name.startswith("_")}
    return names - sync.OMITTED.get(kind.__name__, frozenset())


@pytest.mark.parametrize("kind", list(sync.FACADES), ids=lambda kind: kind.__name__)
def test_both_sides_have_the_same_methods(kind: type) -> None:
    bases = [STUBS[f"Sync{base.__name__}"] for base in kind.__mro__ if base in sync.FACADES]
    body = [node for stub in bases for node in stub.body]
    typed = {node.name for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")}
    declared = [node.target for node in body if isinstance(node, ast.AnnAssign)]
    fields = {target.id for target in declared if isinstance(target, ast.Name)}
    assert typed - {"forked"} <= _public(kind)
    assert _public(kind) <= typed | fields
    assert not any(isinstance(node, ast.AsyncFunctionDef) for node in body)


def test_everything_that_is_left_out_exists() -> None:
    kinds = {kind.__name__: kind for kind in sync.FACADES}
    attributes = {"store", "redactor", "children", "targets"}  # set by `__init__`
    for name, omitted in sync.OMITTED.items():
        assert omitted - attributes <= set(dir(kinds[name]))


def test_every_async_object_that_the_api_gives_has_a_facade() -> None:
    """A method that gives an object with async methods of its own, which no facade covers, would give it bare."""
    bare: list[str] = []
    for kind in sync.FACADES:
        for name in _public(kind):
            returned = str(getattr(getattr(kind, name), "__annotations__", {}).get("return", ""))
            for word in re.findall(r"[A-Z]\w+", returned):
                found = getattr(sys.modules[kind.__module__], word, None)
                if inspect.isclass(found) and found.__module__.startswith("holdfast") and found not in sync.FACADES:
                    bare += [f"{kind.__name__}.{name}: {word}" for one in vars(found).values() if _is_async(one)]
    assert bare == []


def _is_async(member: object) -> bool:
    return inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)


def test_the_stubs_are_those_that_the_script_writes() -> None:
    script = str(ROOT / "scripts/sync_stubs.py")
    code = f"import runpy; print(runpy.run_path({script!r})['stubs'](), end='')"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert made == (ROOT / "src/holdfast/runtime/sync.pyi").read_text(encoding="utf-8"), f"run python {script}"
