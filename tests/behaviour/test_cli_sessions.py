"""The commands that look at sessions and act on them from outside: plain, scriptable, and clear when they refuse."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.testing import ScriptedModel

if TYPE_CHECKING:
    from tests.behaviour.shell import Shell


# ---- ps --------------------------------------------------------------------------------------------------------------


def test_ps_shows_what_runs_or_waits_and_who_works_on_it(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "done")
    shell("run", "agents.py:asks", "hello", "--as", "waits")
    running = shell.begin_gated("runs")
    lines = {line["id"]: line for line in shell.json("ps")}
    assert set(lines) == {"runs", "waits"}
    assert (lines["runs"]["status"], lines["runs"]["pid"]) == ("running", running.pid)
    assert lines["waits"]["waits"][0].endswith("/approval")


def test_ps_with_all_lists_every_session_newest_first(shell: Shell) -> None:
    for name in ("one", "two"):
        shell("run", "agents.py:echo", "hello", "--as", name)
    assert [line["id"] for line in shell.json("ps", "-a")] == ["two", "one"]


def test_ps_as_text_is_a_plain_table(shell: Shell) -> None:
    shell("run", "agents.py:asks", "hello", "--as", "s")
    head, line = shell("ps").stdout.splitlines()
    assert head.split() == ["SESSION", "AGENT", "STATUS", "RECORDS", "CHANGED", "BY"]
    assert line.split()[:3] == ["s", "asks", "waiting"]
    assert "waits for approval" in line


def test_ps_says_that_nothing_runs(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello")
    assert "nothing runs or waits" in shell("ps").stdout


async def test_an_input_that_nobody_has_begun_is_queued(shell: Shell) -> None:
    echo = hf.Agent("echo", model=ScriptedModel([]))
    async with hf.open(shell.folder / ".holdfast" / "holdfast.db", agents=[echo], drive=False) as runtime:
        await runtime.session("s", agent=echo).send("hello")
    assert [(line["id"], line["status"]) for line in shell.json("ps")] == [("s", "queued")]


def test_the_store_may_be_named_by_the_environment(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s", HOLDFAST_STORE="other.db")
    assert (shell.folder / "other.db").exists()
    assert "s " in shell("ps", "-a", HOLDFAST_STORE="other.db").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["ps"],
        ["show", "s"],
        ["logs", "s"],
        ["fork", "s", "--at", "1"],
        ["compact", "s"],
        ["cancel", "s"],
        ["resolve", "s", "w", "1"],
        ["replay", "s", "--check"],
        ["resume", "s"],
        ["doctor"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_store_that_is_not_there_is_said_to_be_missing_and_is_not_made(shell: Shell, arguments: list[str]) -> None:
    done = shell(*arguments)
    assert done.returncode == 2
    assert "there is no store at .holdfast/holdfast.db" in done.stderr
    assert not (shell.folder / ".holdfast" / "holdfast.db").exists()


def test_a_file_that_is_no_store_is_refused_in_one_line(shell: Shell) -> None:
    (shell.folder / ".holdfast").mkdir(mode=0o700)
    (shell.folder / ".holdfast" / "holdfast.db").write_text("hello, I am a text file")
    done = shell("ps")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_doctor_falls_back_to_the_usual_store(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello")
    assert "holdfast.db: healthy" in shell("doctor").stdout


# ---- ids -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["show"], ["logs"], ["replay", "--check"]], ids=lambda command: command[0])
def test_the_beginning_of_an_id_is_enough(shell: Shell, command: list[str]) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "customer-42")
    assert shell(*command, "cus").returncode == 0


@pytest.mark.parametrize(
    "command",
    [["show"], ["logs"], ["cancel"], ["fork", "--at", "1"], ["compact"], ["resume"], ["replay", "--check"]],
    ids=lambda command: command[0],
)
def test_an_ambiguous_id_lists_the_candidates(shell: Shell, command: list[str]) -> None:
    for name in ("customer-42", "customer-43"):
        shell("run", "agents.py:echo", "hello", "--as", name)
    done = shell(*command, "cust")
    assert done.returncode == 2
    assert "customer-42" in done.stderr
    assert "customer-43" in done.stderr


def test_a_whole_id_is_never_ambiguous(shell: Shell) -> None:
    for name in ("order-1", "order-12"):
        shell("run", "agents.py:echo", "hello", "--as", name)
    assert shell("show", "order-1").stdout.startswith("order-1,")


def test_an_unknown_id_says_what_to_do_next(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello")
    done = shell("show", "zzz")
    assert done.returncode == 2
    assert "holdfast ps -a" in done.stderr


def test_a_session_id_with_a_slash_is_not_taken_for_a_turn(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "team/t1")
    assert shell("show", "team/t1").stdout.startswith("team/t1,")
    assert shell("show", "team/t1/t1").stdout.startswith("t1 ")


# ---- show, logs ------------------------------------------------------------------------------------------------------


def test_show_tells_every_step_with_its_tool_state_and_process(shell: Shell) -> None:
    shell("run", "agents.py:looks", "hello", "--as", "s")
    shown = shell("show", "s").stdout
    assert "look ok" in shown
    assert "-> look, look" in shown
    assert "pid " in shown
    assert "| A and B." in shown
    assert "\x1b" not in shown


def test_show_as_json_has_durations_and_tokens(shell: Shell) -> None:
    shell("run", "agents.py:looks", "hello", "--as", "s")
    (turn,) = shell.json("show", "s")["turns"]
    assert (turn["status"], turn["model_calls"], turn["answer"]) == ("completed", 2, "A and B.")
    assert [step["kind"] for step in turn["steps"]] == ["input", "environment", "model", "tool", "tool", "model"]
    assert all(step["usage"]["input"] for step in turn["steps"] if step["kind"] == "model")


def test_show_of_one_turn_leaves_the_others_out(shell: Shell) -> None:
    for words in ("one", "two"):
        shell("run", "agents.py:echo", words, "--as", "s")
    shown = shell("show", "s/t2").stdout
    assert "you said two" in shown
    assert "you said one" not in shown


def test_show_of_a_turn_that_is_not_there_is_refused(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    done = shell("show", "s/t9")
    assert (done.returncode, "no turn 't9'" in done.stderr) == (2, True)


def test_show_raw_prints_the_records(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    lines = [json.loads(line) for line in shell("show", "s", "--raw").stdout.splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert [line["record"]["t"] for line in lines] == ["opened", "started", "admitted", "done", "done", "ended"]


def test_show_works_while_another_process_drives_the_session(shell: Shell) -> None:
    running = shell.begin_gated("s")
    shown = shell("show", "s").stdout
    assert f"running, 5 records, pid {running.pid}" in shown


def test_logs_prints_events_as_lines(shell: Shell) -> None:
    shell("run", "agents.py:looks", "hello", "--as", "s")
    lines = shell("logs", "s").stdout.splitlines()
    assert "started by pid" in lines[0]
    assert "user: hello" in lines[1]
    assert "completed in 2 steps" in lines[-1]


def test_logs_since_a_record_leaves_out_what_came_before(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    events = [json.loads(line) for line in shell("logs", "s", "--since", "3", "--json").stdout.splitlines()]
    assert {event["seq"] for event in events} == {5, 6}


def test_logs_follows_what_another_process_does_until_ctrl_c(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    following = shell.start("logs", "-f", "s")
    assert following.stdout is not None
    shell("run", "agents.py:echo", "again", "--session", "s")
    while "you said again" not in following.stdout.readline():
        pass
    following.send_signal(signal.SIGINT)
    _, err = following.communicate(timeout=PATIENCE)
    assert (following.returncode, err) == (0, "")


def test_a_reader_that_goes_away_is_no_error_worth_a_word(shell: Shell) -> None:
    shell("run", "agents.py:looks", "hello", "--as", "s")
    reading = shell.start("logs", "-f", "s")
    assert reading.stdout is not None
    assert reading.stderr is not None
    reading.stdout.readline()
    reading.stdout.close()
    shell("run", "agents.py:echo", "hello", "--as", "other")
    shell("run", "agents.py:looks", "again", "--session", "s")
    reading.wait(PATIENCE)
    assert reading.stderr.read() == ""


# ---- compact ---------------------------------------------------------------------------------------------------------


def test_compact_is_durable_and_carried_out_by_whoever_works_on_the_session_next(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    said = shell("compact", "s").stdout
    assert said == "asked for: s/t2 is done by the next runtime that works on it ('holdfast resume s')\n"
    assert shell("resume", "s").returncode == 0
    assert [turn["status"] for turn in shell.json("show", "s")["turns"]] == ["completed", "completed"]


# ---- cancel, resolve, fork -------------------------------------------------------------------------------------------


def test_cancel_stops_a_turn_that_nobody_drives(shell: Shell) -> None:
    running = shell.begin_gated("s")
    running.kill()
    running.wait(PATIENCE)
    done = shell("cancel", "s", "--reason", "enough")
    assert (done.returncode, done.stdout) == (0, "cancelled s/t1\n")
    assert shell.json("ps", "-a")[0]["status"] == "cancelled"
    assert "enough" in shell("show", "s").stdout


def test_cancel_stops_a_turn_that_waits_for_a_person(shell: Shell) -> None:
    shell("run", "agents.py:asks", "hello", "--as", "s")
    assert shell("cancel", "s").returncode == 0


def test_cancel_of_a_call_is_carried_out_by_whoever_drives_its_session(shell: Shell) -> None:
    shell("run", "agents.py:asks", "hello", "--as", "s")
    done = shell("cancel", "s", "--call", "t1.2.1", "--reason", "enough")
    assert (done.returncode, done.stdout) == (0, "asked for: s/t1.2.1 is to stop\n")
    assert shell("resume", "s").returncode == 0
    assert shell("cancel", "s", "--call", "t1.2.1").stdout == "too late: t1.2.1 has its result\n"
    assert "enough" in shell("show", "s").stdout


async def test_resume_waits_for_a_process_that_has_the_session_before_it_cancels_a_call(shell: Shell) -> None:
    shell("run", "agents.py:asks", "hello", "--as", "s")
    shell("cancel", "s", "--call", "t1.2.1")
    async with hf.open_store(shell.folder / ".holdfast/holdfast.db") as store:
        await store.claim("s", ttl_ms=2_000)
        done = await asyncio.to_thread(shell, "resume", "s")
    assert (done.returncode, done.stdout) == (0, "Approved.\n")


def test_resume_cancels_one_call_and_waits_for_the_next(shell: Shell) -> None:
    shell("run", "agents.py:asks_twice", "hello", "--as", "s")
    shell("cancel", "s", "--call", "t1.2.1")
    assert shell("resume", "s").returncode == 3
    assert shell("resolve", "s", "approval", "true").returncode == 0
    assert shell("resume", "s").stdout == "Approved.\n"


def test_the_inbox_keeps_a_wait_whose_call_is_to_be_cancelled(shell: Shell) -> None:
    shell("run", "agents.py:asks", "hello", "--as", "s")
    before = shell.json("inbox")
    shell("cancel", "s", "--call", "t1.2.1")
    assert shell.json("inbox") == before != []


def test_cancel_stops_a_turn_that_is_queued_and_leaves_the_one_before(shell: Shell) -> None:
    shell("run", "agents.py:asks", "hello", "--as", "s")
    shell("run", "agents.py:asks", "and?", "--session", "s")
    assert shell("cancel", "s/t2").stdout == "cancelled s/t2\n"
    assert shell.json("ps")[0]["status"] == "waiting"


def test_cancel_after_the_end_is_too_late(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    for place in ("s", "s/t1"):
        done = shell("cancel", place)
        assert (done.returncode, "too late" in done.stdout) == (1, True)


def test_cancel_of_a_turn_that_is_not_there_is_refused(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    assert shell("cancel", "s/t9").returncode == 2


def test_resolve_answers_once(shell: Shell) -> None:
    shell("run", "agents.py:asks", "hello", "--as", "s")
    assert shell("resolve", "s", "approval", "true").returncode == 0
    assert shell("resolve", "s", "approval", "false").returncode == 2


@pytest.mark.parametrize(("name", "value"), [("nothing", "true"), ("approval", "not json")])
def test_resolve_refuses_what_it_can_not_mean(shell: Shell, name: str, value: str) -> None:
    shell("run", "agents.py:asks", "hello", "--as", "s")
    done = shell("resolve", "s", name, value)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def _deferred(shell: Shell) -> str:
    """The key of a call that was deferred, in a session that waits."""
    assert shell("run", "agents.py:orders", "hello", "--as", "s").returncode == 3
    return (shell.folder / "key").read_text()


def test_resolve_gives_the_result_of_a_call_by_its_key(shell: Shell) -> None:
    key = _deferred(shell)
    done = shell("resolve", key, '{"cents": 900}')
    assert (done.returncode, done.stdout) == (0, "answered 'result:order' of s\n")
    assert shell("resume", "s").returncode == 0
    assert '{"cents":900}' in shell("show", "s").stdout.replace(" ", "")


def test_resolve_by_a_key_is_told_when_it_comes_too_late(shell: Shell) -> None:
    key = _deferred(shell)
    shell("resolve", key, "{}")
    late = shell("resolve", key, "{}")
    assert (late.returncode, late.stderr) == (1, "too late: 'result:order' was resolved before\n")
    assert shell.json("resolve", key, "{}")["won"] is False


def test_resolve_can_say_that_there_is_no_answer(shell: Shell) -> None:
    _deferred(shell)
    assert shell("resolve", "s", "result:order", "--error", "sold out").returncode == 0
    shell("resume", "s")
    assert "sold out" in shell("show", "s").stdout


@pytest.mark.parametrize("given", [["KEY"], ["KEY", "1", "2"], ["KEY", "1", "--error", "no"], ["s", "1"]])
def test_resolve_wants_a_key_or_a_wait_and_one_answer(shell: Shell, given: list[str]) -> None:
    key = _deferred(shell)
    done = shell("resolve", *(key if part == "KEY" else part for part in given))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_resolve_refuses_a_key_that_was_forged(shell: Shell) -> None:
    key = _deferred(shell)
    assert shell("resolve", f"{key[:-4]}AAAA", "1").returncode == 2


def test_fork_prints_the_new_id_and_the_fork_goes_on_by_itself(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    assert shell("fork", "s", "--at", "5", "--as", "copy").stdout == "copy\n"
    shell("run", "agents.py:echo", "again", "--session", "copy")
    assert len(shell.json("show", "s")["turns"]) == 1
    assert "forked from s at 5" in shell("show", "copy").stdout


def test_fork_at_a_record_that_is_not_there_is_refused(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    assert shell("fork", "s", "--at", "99").returncode == 2


# ---- chat ------------------------------------------------------------------------------------------------------------


def test_chat_answers_lines_from_a_pipe(shell: Shell) -> None:
    done = shell("chat", "agents.py:echo", stdin="one\n\ntwo\n")
    assert (done.returncode, done.stdout) == (0, "you said one\nyou said two\n")


def test_chat_goes_on_with_a_session(shell: Shell) -> None:
    shell("run", "agents.py:echo", "before", "--as", "s")
    done = shell("chat", "agents.py:echo", "--session", "s", stdin="/history\n/quit\nnever\n")
    assert done.stdout == "you: before\nagent: you said before\n"


def test_chat_refuses_a_command_that_it_does_not_know(shell: Shell) -> None:
    done = shell("chat", "agents.py:echo", stdin="/nonsense\n/etc/hosts is a file\n")
    assert "there is no command /nonsense" in done.stderr
    assert done.stdout == "you said /etc/hosts is a file\n"


def test_chat_through_a_pipe_ends_with_the_code_of_its_last_turn(shell: Shell) -> None:
    assert shell("chat", "agents.py:fails", stdin="hello\n").returncode == 1


def test_ctrl_c_in_a_chat_stops_the_answer_and_not_the_chat(shell: Shell) -> None:
    with shell.on_terminal("chat", "agents.py:gated", TERM="dumb") as (process, screen):
        os.write(screen, b"hello\n")
        shell.until((shell.folder / "begun").exists)
        process.send_signal(signal.SIGINT)
        _read_until(screen, "cancelled")
        os.write(screen, b"again\n")
        _read_until(screen, "Done.")  # the script's second answer
        os.write(screen, b"/quit\n")
        process.wait(PATIENCE)
    assert process.returncode == 0


def test_a_chat_from_a_pipe_that_quits_before_its_end_is_no_error(shell: Shell) -> None:
    done = shell("chat", "agents.py:echo", stdin="one\n/quit\nnever\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "you said one\n", "")


SHOP = """
import holdfast as hf
from holdfast.testing import ScriptedModel, call, text

@hf.tool
async def refund(order: str) -> str:
    \"\"\"Refund an order.\"\"\"
    return "refunded"

script = [call("refund", order="7"), text("All done."), text("And more.")]
shop = hf.Agent("shop", model=ScriptedModel(script), tools=[refund], policy=[hf.ask("refund"), hf.allow("*")])
"""


@pytest.fixture
def shop(shell: Shell) -> Shell:
    (shell.folder / "shop.py").write_text(SHOP)
    return shell


@pytest.mark.parametrize(("answer", "result"), [("yes", "<- refund ok"), ("no not today", "<- refund error")])
def test_a_chat_asks_for_an_approval_where_it_is(shop: Shell, answer: str, result: str) -> None:
    with shop.on_terminal("chat", "shop.py:shop", "--as", "s", TERM="dumb") as (process, screen):
        os.write(screen, b"go\n")
        _read_until(screen, "make this call?")
        os.write(screen, f"{answer}\n".encode())
        assert result in _read_until(screen, "All done.")
        os.write(screen, b"/quit\n")
        process.wait(PATIENCE)
    assert ("not today" in shop("show", "s").stdout) is answer.startswith("no")


def test_a_chat_goes_on_when_an_approval_is_answered_elsewhere(shop: Shell) -> None:
    with shop.on_terminal("chat", "shop.py:shop", "--as", "s", TERM="dumb") as (process, screen):
        os.write(screen, b"go\n")
        _read_until(screen, "make this call?")
        shop("approve", shop.json("inbox")[0]["approval"]["id"], "--yes")
        _read_until(screen, "All done.")
        os.write(screen, b"/quit\n")
        process.wait(PATIENCE)


def test_an_approval_that_is_left_for_later_is_asked_again_by_the_next_chat(shop: Shell) -> None:
    with shop.on_terminal("chat", "shop.py:shop", "--as", "s", TERM="dumb") as (process, screen):
        os.write(screen, b"go\n")
        _read_until(screen, "make this call?")
        os.write(screen, b"later\n")
        _read_until(screen, "> ")
        os.write(screen, b"/quit\n")
        process.wait(PATIENCE)
    with shop.on_terminal("chat", "shop.py:shop", "--session", "s", TERM="dumb") as (process, screen):
        _read_until(screen, "make this call?")
        os.write(screen, b"yes\n")
        _read_until(screen, "All done.")
        os.write(screen, b"/quit\n")
        process.wait(PATIENCE)


def _read_until(leader: int, words: str) -> str:
    seen = bytearray()
    while words not in seen.decode(errors="replace"):
        seen += os.read(leader, 4096)
    return seen.decode(errors="replace")


def test_the_usual_store_lies_in_a_private_folder_that_git_leaves_alone(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    folder = shell.folder / ".holdfast"
    assert (folder.stat().st_mode & 0o777, (folder / "holdfast.db").stat().st_mode & 0o777) == (0o700, 0o600)
    assert (folder / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize(
    "command", [("ps",), ("doctor",), ("run", "agents.py:echo", "hello")], ids=lambda told: told[0]
)
def test_a_store_at_the_former_place_is_reported_with_the_command_that_moves_it(
    shell: Shell, command: tuple[str, ...]
) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s", "--store", "holdfast.db")
    done = shell(*command)
    assert (done.returncode, done.stdout) == (2, "")
    assert "mkdir -m 700 -p .holdfast && mv holdfast.db* .holdfast/" in done.stderr
    assert not (shell.folder / ".holdfast").exists()
    assert "s" in shell("ps", "-a", "--store", "holdfast.db").stdout


def test_a_store_that_was_moved_as_reported_is_found(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s", "--store", "holdfast.db")
    subprocess.run("mkdir -m 700 -p .holdfast && mv holdfast.db* .holdfast/", shell=True, cwd=shell.folder, check=True)  # noqa: S602
    assert [line["id"] for line in shell.ps()] == ["s"]
