"""`holdfast processes`: durable functions from the shell."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.behaviour.shell import Shell

FLOWS = """
import holdfast as hf


@hf.process
async def greets(ctx: hf.ProcessContext, name: str) -> str:
    return await ctx.step("greet", lambda: f"hello {name}")


@hf.process
async def asks(ctx: hf.ProcessContext) -> str:
    return await ctx.wait("editor")


@hf.process(recovery="external")
async def ships(ctx: hf.ProcessContext) -> str: ...
"""


@pytest.fixture
def flows(shell: Shell) -> Shell:
    (shell.folder / "flows.py").write_text(FLOWS)
    return shell


def test_arguments_that_have_no_names_are_refused_with_an_example(flows: Shell) -> None:
    for given in ("Ann", '"Ann"', "[1]", "{"):
        done = flows("processes", "start", "flows.py:greets", given)
        assert (done.returncode, "write the arguments by name" in done.stderr) == (2, True), given


def test_a_function_is_started_and_its_result_printed(flows: Shell) -> None:
    done = flows("processes", "start", "flows.py:greets", '{"name": "Ann"}')
    assert (done.returncode, done.stdout) == (0, '"hello Ann"\n')


def test_a_function_that_waits_says_for_what(flows: Shell) -> None:
    done = flows("processes", "start", "flows.py:asks", "--id", "a")
    assert (done.returncode, done.stdout) == (3, "a: waiting: signal editor\n")


def test_a_signal_from_the_shell_answers_a_wait(flows: Shell) -> None:
    flows("processes", "start", "flows.py:asks", "--id", "a")
    flows("processes", "signal", "a", "editor", '"yes"')
    assert flows("processes", "start", "flows.py:asks", "--id", "a").stdout == '"yes"\n'


def test_processes_are_listed_as_json(flows: Shell) -> None:
    flows("processes", "start", "flows.py:asks", "--id", "a")
    assert [(line["id"], line["status"], line["waits"]) for line in flows.json("processes")] == [
        ("a", "waiting", ["signal editor"])
    ]


def test_a_process_is_shown_by_the_beginning_of_its_id(flows: Shell) -> None:
    flows("processes", "start", "flows.py:greets", '{"name": "Ann"}', "--id", "greeting")
    shown = flows.json("processes", "gree")
    assert (shown["process"]["id"], shown["result"]) == ("greeting", "hello Ann")


def test_what_is_stuck_is_listed_with_the_command_that_helps(flows: Shell) -> None:
    flows("processes", "start", "flows.py:asks", "--id", "a")
    assert "holdfast processes signal a editor JSON" in flows("processes", "stuck").stdout


def test_a_process_whose_code_was_changed_is_listed_as_stuck_and_can_be_given_up(flows: Shell) -> None:
    flows("processes", "start", "flows.py:asks", "--id", "a")
    # Of another length: Python takes a file of the same size and second for the one that it has compiled.
    (flows.folder / "flows.py").write_text(FLOWS.replace('"editor"', '"the author"'))
    flows("processes", "signal", "a", "editor", '"yes"')
    assert "differs from its record" in flows("processes", "start", "flows.py:asks", "--id", "a").stderr
    assert "ctx.version" in flows("processes", "stuck").stdout
    assert "stuck: replay of" in flows("processes").stdout
    assert flows("processes", "abandon", "a", "--reason", "void").stdout == "abandoned a\n"
    assert flows("processes", "stuck").stdout == "nothing is stuck\n"


def test_a_process_that_nobody_runs_is_cancelled_from_the_shell(flows: Shell) -> None:
    flows("processes", "start", "flows.py:asks", "--id", "a")
    done = flows("processes", "cancel", "a", "--reason", "enough")
    assert (done.returncode, done.stdout) == (0, "cancelled a\n")


def test_a_second_cancel_is_too_late(flows: Shell) -> None:
    flows("processes", "start", "flows.py:asks", "--id", "a")
    flows("processes", "cancel", "a")
    done = flows("processes", "cancel", "a")
    assert (done.returncode, done.stdout) == (1, "too late: a had ended (cancelled)\n")


def test_a_process_is_given_to_another_session_from_the_shell(flows: Shell) -> None:
    flows("processes", "start", "flows.py:asks", "--id", "a")
    missing = flows("processes", "transfer", "a", "nobody")
    assert (missing.returncode, "'nobody'" in missing.stderr) == (2, True)
    flows("run", "agents.py:echo", "hello", "--as", "s")
    done = flows("processes", "transfer", "a", "s")
    assert (done.returncode, done.stdout) == (0, "a works for s\n")
    assert flows.json("processes", "a")["process"]["session"] == "s"
    flows("processes", "cancel", "a")
    assert flows("processes", "transfer", "a", "s").stdout == "too late: a had ended (cancelled)\n"


def test_a_process_that_is_carried_out_elsewhere_is_completed_from_the_shell(flows: Shell) -> None:
    flows("processes", "start", "flows.py:ships", "--id", "s")
    assert flows("processes", "complete", "s", '"gone"').stdout == "completed s\n"


def test_a_worker_runs_what_was_only_written_down(flows: Shell) -> None:
    started = flows("processes", "start", "flows.py:greets", '{"name": "Ann"}', "--id", "g", "--detach")
    assert started.stdout == "g\n"
    worker = flows.start("processes", "work", "flows.py")
    flows.until(lambda: flows.json("processes", "g")["process"]["status"] == "completed")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(10) == 0


def test_arguments_that_are_no_json_are_refused(flows: Shell) -> None:
    done = flows("processes", "start", "flows.py:greets", "name=Ann")
    assert done.returncode == 2
    assert "is no JSON" in done.stderr


def test_a_name_that_is_no_function_is_told_with_those_that_there_are(flows: Shell) -> None:
    done = flows("processes", "start", "flows.py:nope")
    assert done.returncode == 2
    assert "asks, greets, ships" in done.stderr


def test_an_id_that_no_process_has_is_told(flows: Shell) -> None:
    flows("processes", "start", "flows.py:asks", "--id", "a")
    done = flows("processes", "cancel", "zzz")
    assert done.returncode == 2
    assert "there is no process 'zzz'" in done.stderr


def test_processes_that_ended_are_pruned_from_the_shell(flows: Shell) -> None:
    flows("processes", "start", "flows.py:greets", '{"name": "Ann"}', "--id", "a")
    flows("processes", "start", "flows.py:asks", "--id", "b")
    assert flows("processes", "prune", "--older-than", "1h").stdout == "pruned 0, kept 0\n"
    flows.until(lambda: flows.json("processes", "prune", "--older-than", "1s", "--dry-run")["pruned"] == 1)
    assert flows("processes", "prune", "--older-than", "1s").stdout == "pruned 1, kept 0\n"
    assert [line["id"] for line in flows.json("processes")] == ["b"]
    assert "ended as completed and was pruned" in flows("processes", "a").stderr


def test_a_signal_from_the_shell_has_a_key(flows: Shell) -> None:
    flows("processes", "start", "flows.py:asks", "--id", "a")
    told = [flows("processes", "signal", "a", "other", "1", "--key", "k").stdout for _ in range(2)]
    assert told == ["signalled 'other' to a\n", "already signalled 'other' to a\n"]


# ---- ids -------------------------------------------------------------------------------------------------------------

NOT_THE_SESSION = [
    ("show",),
    ("cancel",),
    ("fork", "--at", "2"),
    ("replay", "--check"),
    ("run", "agents.py:echo", "x", "--session"),
]


@pytest.mark.parametrize("command", NOT_THE_SESSION, ids=lambda command: command[0])
def test_the_id_of_a_process_is_never_taken_for_the_beginning_of_a_session(flows: Shell, command: list[str]) -> None:
    flows("processes", "start", "flows.py:asks", "--id", "p1")
    flows("run", "agents.py:echo", "hello", "--as", "p1.writer")
    done = flows(*command, "p1")
    assert (done.returncode, "holdfast processes p1" in done.stderr) == (2, True)


def test_the_events_of_a_process_are_found_by_its_id(flows: Shell) -> None:
    flows("processes", "start", "flows.py:greets", '{"name": "Ann"}', "--id", "p1")
    flows("run", "agents.py:echo", "hello", "--as", "p1.writer")
    assert "you said hello" not in flows("logs", "p1").stdout


def test_a_wait_of_a_process_is_answered_by_its_id(flows: Shell) -> None:
    flows("processes", "start", "flows.py:asks", "--id", "p1")
    flows("run", "agents.py:echo", "hello", "--as", "p1.writer")
    assert "p1.writer" not in flows("resolve", "p1", "nothing", "1").stderr


def test_a_work_item_is_begun_reported_and_completed_from_the_shell(shell: Shell) -> None:
    id = shell("processes", "external", "Call the customer", "--tag", "phone", "--requested-by", "ada").stdout.strip()
    assert shell("processes", "progress", id, "ringing", "--fraction", "0.5").stdout == f"reported for {id}\n"
    [line] = shell.json("processes", "--tag", "phone")
    assert (line["title"], line["note"], line["fraction"], line["requested_by"]) == (
        *("Call the customer", "ringing"),
        *(0.5, "ada"),
    )
    assert shell.json("processes", "--tag", "post") == []
    assert shell("processes", "complete", id, '"yes"').stdout == f"completed {id}\n"
    assert shell("processes", "fail", id).returncode == 1
    assert shell("processes", "progress", id, "more").stdout == "too late: it has ended\n"
    assert "Call the customer" in shell("processes", id).stdout
