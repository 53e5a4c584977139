"""`holdfast tasks`: the background work of a store, as people and scripts see it, and stopping it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.behaviour.background import SESSION, Held, agent_with, asked, ended_task, the_task
from tests.behaviour.talk import until
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.processes.keys import CALL_KEY, task_id
from holdfast.processes.state import TaskCall
from holdfast.store import open_store
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from pathlib import Path

    from tests.behaviour.shell import Shell
    from tests.programs import Process

AGENTS = """
import asyncio
from pathlib import Path

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text


@hf.tool(background=True)
async def gate(ctx: hf.Context) -> str:
    ctx.progress("at the gate", fraction=0.5)
    Path("begun").touch()
    while not Path("open").exists():
        await asyncio.sleep(0.02)
    return "through"


@hf.tool(read_only=True)
async def stay() -> str:
    while not Path("open").exists():
        await asyncio.sleep(0.02)
    return "stayed"


script = [[call("gate"), call("stay")], text("Done."), text("I see.")]
slow = hf.Agent("slow", model=ScriptedModel(script), tools=[gate, stay], policy=[hf.allow("*")])
"""


@pytest.fixture
def working(shell: Shell) -> Process:
    """A process that carries out a task."""
    (shell.folder / "slow.py").write_text(AGENTS)
    process = shell.start("run", "slow.py:slow", "go", "--as", SESSION)
    shell.until(shell.begun)
    shell.until(lambda: any(line["note"] for line in shell.json("tasks")))
    return process


async def finished(path: Path, *, answer: Any = "the answer", fails: bool = False) -> str:
    """A store in which a task has ended; answers the id of the task."""
    held = Held()
    held.go.set()

    @hf.tool(background=True)
    async def broken(where: str) -> str:
        message = f"no {where}"
        raise OSError(message)

    tool = broken if fails else held.tool(answer, background=True, inline_budget=None)
    script = [call(tool, **({"where": "disk"} if fails else {})), text("a"), text("b"), text("c")]
    made = hf.Agent("a", model=ScriptedModel(script), tools=[tool], policy=[hf.allow("*")])
    async with hf.open(path, agents=[made]) as runtime:
        await asked(runtime, made)
        return (await ended_task(runtime)).id


# ---- list ------------------------------------------------------------------------------------------------------------


def test_a_store_without_tasks_says_so(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello")
    assert shell("tasks").stdout == "no tasks\n"


def test_a_store_that_is_not_there_is_not_made(shell: Shell) -> None:
    for arguments in (["tasks"], ["tasks", "x"], ["tasks", "cancel", "x"]):
        done = shell(*arguments)
        assert (done.returncode, "there is no store" in done.stderr) == (2, True)
    assert not (shell.folder / ".holdfast" / "holdfast.db").exists()


def test_a_task_that_another_process_carries_out_is_listed_with_that_process(shell: Shell, working: Process) -> None:
    (line,) = shell.json("tasks")
    assert (line["tool"], line["status"], line["session"], line["agent"]) == ("gate", "running", SESSION, "slow")
    assert (line["pid"], line["note"], line["fraction"]) == (working.pid, "at the gate", 0.5)


def test_a_list_is_a_plain_table(shell: Shell, working: Process) -> None:
    head, line = shell("tasks").stdout.splitlines()
    assert head.split() == ["TASK", "TOOL", "STATUS", "SESSION", "CHANGED", "BY"]
    assert line.split()[1:4] == ["gate", "running", SESSION]
    assert line.endswith(f"pid {working.pid}")


def test_a_task_whose_process_is_gone_is_driven_by_nobody(shell: Shell, working: Process) -> None:
    working.kill()
    working.wait(PATIENCE)
    assert shell("tasks").stdout.splitlines()[1].endswith("none")


async def test_tasks_are_filtered_by_session_and_by_status(shell: Shell) -> None:
    store = shell.folder / ".holdfast" / "holdfast.db"
    good = await finished(store)
    bad = await finished_in(store, "other")
    assert [line["id"] for line in shell.json("tasks")] == [bad, good]
    assert [line["id"] for line in shell.json("tasks", "--session", "oth")] == [bad]
    assert [line["id"] for line in shell.json("tasks", "--status", "succeeded")] == [good]
    assert [line["id"] for line in shell.json("tasks", "--status", "failed")] == [bad]
    assert shell.json("tasks", "--status", "interrupted") == []
    assert [line["id"] for line in shell.json("tasks", "--limit", "1")] == [bad]


async def finished_in(path: Path, session: str) -> str:
    """A task of another session, which has failed."""

    @hf.tool(background=True)
    async def broken() -> str:
        message = "no disk"
        raise OSError(message)

    made = agent_with(broken)
    async with hf.open(path, agents=[made]) as runtime:
        await asked(runtime, made, session=session)
        return (await ended_task(runtime, session)).id


def test_a_status_that_there_is_not_is_refused(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello")
    done = shell("tasks", "--status", "nonsense")
    assert done.returncode == 2
    assert "it is one of created, running" in done.stderr


# ---- show ------------------------------------------------------------------------------------------------------------


async def test_a_task_is_shown_with_its_result(shell: Shell) -> None:
    id = await finished(shell.folder / ".holdfast" / "holdfast.db", answer="one\ntwo")
    shown = shell("tasks", id).stdout
    assert shown.startswith(f"{id}, slow, succeeded")
    assert shown.endswith("\n\none\ntwo\n")


async def test_a_task_as_json_has_its_arguments_and_the_value_that_it_gave(shell: Shell) -> None:
    id = await finished(shell.folder / ".holdfast" / "holdfast.db", answer={"sum": 3})
    found = shell.json("tasks", id)
    assert found["task"]["status"] == "succeeded"
    assert (found["arguments"], found["turn"], found["starts"]) == ({}, "t1", 1)
    assert found["result"] == {"sum": 3}


async def test_a_task_that_failed_is_shown_with_its_arguments_and_its_error(shell: Shell) -> None:
    id = await finished(shell.folder / ".holdfast" / "holdfast.db", fails=True)
    shown = shell("tasks", id).stdout
    assert 'arguments {"where":"disk"}' in shown
    assert "error     OSError: no disk" in shown


async def test_the_beginning_of_an_id_is_enough_with_and_without_its_first_word(shell: Shell) -> None:
    id = await finished(shell.folder / ".holdfast" / "holdfast.db")
    for given in (id[:10], id.removeprefix("task-"), id.removeprefix("task-")[:6]):
        assert shell.json("tasks", given)["task"]["id"] == id


@pytest.mark.parametrize("arguments", [["tasks", "zzz"], ["tasks", "cancel", "zzz"], ["tasks", SESSION]])
async def test_an_id_that_is_no_task_is_refused_in_one_line(shell: Shell, arguments: list[str]) -> None:
    await finished(shell.folder / ".holdfast" / "holdfast.db")
    done = shell(*arguments)
    assert done.returncode == 2
    assert "there is no task" in done.stderr
    assert len(done.stderr.splitlines()) == 1


async def test_an_ambiguous_id_lists_the_candidates(shell: Shell) -> None:
    one = await finished(shell.folder / ".holdfast" / "holdfast.db")
    other = await finished_in(shell.folder / ".holdfast" / "holdfast.db", "other")
    done = shell("tasks", "task-")
    assert done.returncode == 2
    assert one in done.stderr
    assert other in done.stderr


async def test_what_is_said_before_the_id_counts_for_it_also_against_the_environment(shell: Shell) -> None:
    id = await finished(shell.folder / "other.db")
    for arguments in (["--json", id], [id, "--json"]):
        done = shell("tasks", "--store", "other.db", *arguments, HOLDFAST_STORE="wrong.db")
        assert json.loads(done.stdout)["task"]["id"] == id
    assert "too late" in shell("tasks", "--store", "other.db", "cancel", id, HOLDFAST_STORE="wrong.db").stdout


# ---- cancel ----------------------------------------------------------------------------------------------------------


def test_cancel_stops_a_task_that_another_process_carries_out(shell: Shell, working: Process) -> None:
    (line,) = shell.json("tasks")
    done = shell("tasks", "cancel", line["id"], "--reason", "enough")
    assert (done.returncode, done.stdout) == (0, f"cancelled {line['id']}\n")
    (line,) = shell.json("tasks")
    assert (line["status"], line["error"], line["pid"]) == ("cancelled", "cancelled: enough", None)
    assert working.poll() is None


def test_cancel_ends_a_task_that_nobody_carries_out_and_its_session_is_told_once(
    shell: Shell, working: Process
) -> None:
    working.kill()
    working.wait(PATIENCE)
    (line,) = shell.json("tasks")
    done = shell("tasks", "cancel", line["id"])
    assert (done.returncode, done.stdout) == (0, f"cancelled {line['id']}\n")
    (notice,) = shell.json("notifications")
    assert (notice["kind"], notice["source"], notice["journal"]) == ("task_cancelled", line["id"], SESSION)


async def test_cancel_ends_a_task_that_was_never_begun(shell: Shell) -> None:
    id = task_id(SESSION, "t1/1.tools/1.pay")
    content = msgspec.to_builtins(TaskCall("pay", {"cents": 5}, "c1", "t1", "t1/1.tools/1.pay", "k"))
    async with open_store(shell.folder / ".holdfast" / "holdfast.db") as store:
        await store.open_journal(SESSION, "session", "a")
        await store.accept_into(id, "process", "a", content, key=CALL_KEY, role="task", session=SESSION)
    assert shell.json("tasks", "--status", "created")[0]["id"] == id
    assert shell("tasks", "cancel", id).returncode == 0
    assert shell.json("tasks", id)["task"]["status"] == "cancelled"


async def test_cancel_of_a_task_that_waits_for_a_person_takes_effect(shell: Shell) -> None:
    @hf.tool(background=True)
    async def asks(ctx: hf.Context) -> str:
        return str(await ctx.wait("approval"))

    made = agent_with(asks)
    async with hf.open(shell.folder / ".holdfast" / "holdfast.db", agents=[made]) as runtime:
        await asked(runtime, made)
        task = await the_task(runtime)

        async def parked() -> bool:
            return (await runtime.tasks.task(task.id)).status == "waiting"

        await until(parked)
    assert shell("tasks", task.id).stdout.splitlines()[-1].strip().startswith("waits for")
    assert shell("tasks", "cancel", task.id).returncode == 0


async def test_cancel_after_the_end_is_too_late(shell: Shell) -> None:
    id = await finished(shell.folder / ".holdfast" / "holdfast.db")
    done = shell("tasks", "cancel", id)
    assert (done.returncode, done.stdout) == (1, f"too late: {id} had ended (succeeded)\n")


async def test_a_runtime_that_does_not_know_the_agent_leaves_a_task_that_nobody_cancelled(shell: Shell) -> None:
    held = Held()
    made = agent_with(held.tool())
    path = shell.folder / ".holdfast" / "holdfast.db"
    async with hf.open(path, agents=[made]) as runtime:
        await asked(runtime, made)
        task = await the_task(runtime)
        await runtime.close(grace=0)
    async with hf.open(path, drive=False) as runtime:
        await runtime.processes.settle(task.id)
        assert (await runtime.tasks.task(task.id)).status == "running"


async def test_a_runtime_that_does_not_know_the_agent_can_cancel_its_task(shell: Shell) -> None:
    held = Held()
    made = agent_with(held.tool())
    path = shell.folder / ".holdfast" / "holdfast.db"
    async with hf.open(path, agents=[made]) as runtime:
        await asked(runtime, made)
        task = await the_task(runtime)
        await runtime.close(grace=0)
    async with hf.open(path) as runtime:
        assert await runtime.tasks.cancel(task.id, "no") == "requested"
        assert (await ended_task(runtime)).status == "cancelled"


async def test_a_task_whose_agent_is_not_known_here_is_left_in_peace(shell: Shell) -> None:
    held = Held()
    made = agent_with(held.tool())
    path = shell.folder / ".holdfast" / "holdfast.db"
    async with hf.open(path, agents=[made]) as runtime:
        await asked(runtime, made)
        task = await the_task(runtime)
        await runtime.close(grace=0)
    other = hf.Agent("other", model=ScriptedModel(lambda _: text("well")))
    async with hf.open(path, agents=[other]) as runtime:
        before = await runtime.store.claim(task.id)
        await runtime.store.release(before)
        for _ in range(5):
            await asked(runtime, other, session="elsewhere")
        assert (await runtime.store.claim(task.id)).epoch == before.epoch + 1, "somebody has claimed it in between"
