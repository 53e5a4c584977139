"""`holdfast run` and `resume`: every exit code, every form of output, and what is left when the process goes away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from tests.behaviour.shell import Shell


def on_terminal(shell: Shell, *arguments: str, **environment: str) -> str:
    """What a person would see."""
    seen = bytearray()
    with (
        shell.on_terminal(*arguments, **environment) as (_, screen),
        suppress(OSError),
    ):  # raised where all has been read
        while part := os.read(screen, 4096):
            seen += part
    return seen.decode().replace("\r\n", "\n")


# ---- exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "options", "code", "said"),
    [
        ("echo", [], 0, ""),
        ("fails", [], 1, "failed: billing: no credit"),
        ("asks", [], 3, "t1 waits for 'approval'"),
        ("loops", [], 5, "limit: steps"),
        ("slow", ["--deadline", "0.3"], 5, "limit: deadline"),
    ],
)
def test_the_exit_code_tells_how_the_turn_ended(
    shell: Shell, agent: str, options: list[str], code: int, said: str
) -> None:
    done = shell("run", f"agents.py:{agent}", "hello", *options)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cancelled_turn_has_exit_code_4(shell: Shell) -> None:
    running = shell.start("run", "agents.py:gated", "hello", "--as", "s")
    shell.until(shell.begun)
    assert shell("cancel", "s", "--reason", "enough").returncode == 0
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 4
    assert "cancelled: enough" in err


def test_a_turn_that_waits_says_how_to_answer_it_and_goes_on_then(shell: Shell) -> None:
    waiting = shell("run", "agents.py:asks", "hello", "--as", "s", "--store", "other.db")
    assert "holdfast resolve s approval JSON --store other.db" in waiting.stderr
    assert "holdfast resume s --store other.db" in waiting.stderr
    assert shell("resolve", "s", "approval", '"yes"', "--store", "other.db").returncode == 0
    done = shell("resume", "s", "--store", "other.db")
    assert (done.returncode, done.stdout) == (0, "Approved.\n")


def test_an_input_behind_a_turn_that_waits_does_not_hang(shell: Shell) -> None:
    shell("run", "agents.py:asks", "hello", "--as", "s")
    done = shell("run", "agents.py:asks", "and?", "--session", "s")
    assert done.returncode == 3
    assert "t1 waits for 'approval' (t2 comes after it)" in done.stderr


# ---- output ----------------------------------------------------------------------------------------------------------


def test_through_a_pipe_the_answer_is_all_that_is_printed(shell: Shell) -> None:
    done = shell("run", "agents.py:looks", "hello")
    assert (done.stdout, done.stderr) == ("A and B.\n", "")


def test_json_is_the_outcome(shell: Shell) -> None:
    outcome = json.loads(shell("run", "agents.py:looks", "hello", "-o", "json").stdout)
    assert outcome["status"] == "completed"
    assert outcome["text"] == "A and B."
    assert outcome["steps"] == 2
    assert outcome["usage"]["input"] > 0


def test_json_of_a_typed_answer_has_its_value(shell: Shell) -> None:
    assert json.loads(shell("run", "agents.py:typed", "2+2", "-o", "json").stdout)["value"] == {"total": 4}


def test_json_of_a_turn_that_waits_names_the_wait(shell: Shell) -> None:
    told = json.loads(shell("run", "agents.py:asks", "hello", "-o", "json").stdout)
    assert (told["status"], told["waits"][0]["label"]) == ("waiting", "approval")


def test_events_come_one_to_a_line_from_the_start_to_the_end(shell: Shell) -> None:
    lines = [json.loads(line) for line in shell("run", "agents.py:looks", "hello", "-o", "events").stdout.splitlines()]
    kinds = [line["event"] for line in lines]
    assert kinds[:2] == ["turn_started", "input_accepted"]
    assert kinds[-1] == "turn_completed"
    assert kinds.count("tool_call_finished") == 2
    assert "text_delta" in kinds


def test_on_a_terminal_every_word_and_every_tool_call_is_shown_once(shell: Shell) -> None:
    seen = on_terminal(shell, "run", "agents.py:looks", "hello", NO_COLOR="1")
    assert seen.count("Let me see.") == 1
    assert seen.count("A and B.") == 1
    assert '-> look {"word":"a"}\n' in seen
    assert seen.count("<- look ok") == 2


def test_a_terminal_gets_styles_unless_no_color_is_set(shell: Shell) -> None:
    assert "\x1b[" in on_terminal(shell, "run", "agents.py:looks", "hello")
    assert "\x1b[" not in on_terminal(shell, "run", "agents.py:looks", "hello", NO_COLOR="1")


def test_what_a_model_says_can_not_drive_the_terminal(shell: Shell) -> None:
    seen = on_terminal(shell, "run", "agents.py:echo", "a\x1b]0;title\x07b", NO_COLOR="1")
    assert "\x1b" not in seen
    assert "]0;title" in seen


def test_the_prompt_may_come_from_standard_input(shell: Shell) -> None:
    assert shell("run", "agents.py:echo", "-", stdin="from a pipe").stdout == "you said from a pipe\n"


# ---- sessions --------------------------------------------------------------------------------------------------------


def test_a_session_is_continued_by_a_part_of_its_id(shell: Shell) -> None:
    shell("run", "agents.py:echo", "one", "--as", "customer-42")
    shell("run", "agents.py:echo", "two", "--session", "cust")
    (line,) = shell.ps()
    assert line["id"] == "customer-42"
    assert len(json.loads(shell("show", "customer-42", "--json").stdout)["turns"]) == 2


def test_as_names_a_session_exactly_and_never_means_a_longer_one(shell: Shell) -> None:
    shell("run", "agents.py:echo", "one", "--as", "order-12")
    shell("run", "agents.py:echo", "two", "--as", "order-1")
    assert {line["id"] for line in shell.ps()} == {"order-1", "order-12"}


def test_the_same_key_is_the_same_turn(shell: Shell) -> None:
    first = shell("run", "agents.py:echo", "one", "--as", "s", "--key", "k")
    again = shell("run", "agents.py:echo", "one", "--as", "s", "--key", "k")
    assert first.stdout == again.stdout == "you said one\n"
    assert len(json.loads(shell("show", "s", "--json").stdout)["turns"]) == 1


def test_a_steering_input_enters_the_turn_of_another_process(shell: Shell) -> None:
    running = shell.start("run", "agents.py:works_on", "hello", "--as", "s")  # until it is told to hurry
    shell.until(shell.begun)
    steering = shell.start("run", "agents.py:works_on", "hurry", "--session", "s", "--steer", "-o", "json")
    out, _ = steering.communicate(timeout=PATIENCE)
    running.communicate(timeout=PATIENCE)
    assert json.loads(out)["turn"] == "t1"


def test_two_processes_work_on_one_store_at_once(shell: Shell) -> None:
    running = [shell.start("run", "agents.py:gated", "hello", "--as", f"s{number}") for number in range(2)]
    shell.until(lambda: [line["status"] for line in shell.ps()] == ["running", "running"])
    assert {line["pid"] for line in shell.ps()} == {process.pid for process in running}
    shell.open_gate()
    assert [process.communicate(timeout=PATIENCE)[0] for process in running] == ["Done.\n", "Done.\n"]


# ---- in the background -----------------------------------------------------------------------------------------------


def test_a_detached_run_returns_at_once_and_is_finished_by_another_process(shell: Shell) -> None:
    done = shell("run", "agents.py:gated", "hello", "--as", "s", "-d")
    assert (done.returncode, done.stdout) == (0, "s/t1\n")
    shell.until(shell.begun)
    (line,) = shell.ps()
    assert line["status"] == "running"
    shell.open_gate()
    shell.until(lambda: shell.ps()[0]["status"] == "completed")


def test_a_detached_run_imports_nothing_from_the_current_folder_but_the_agent(shell: Shell) -> None:
    steals = "import pathlib; pathlib.Path('stolen').touch()"
    # It is there as soon as the agent is loaded: when the detached process starts, and not before.
    code = f"import pathlib\nfrom agents import echo\npathlib.Path('typer.py').write_text({steals!r})\n"
    (shell.folder / "planted.py").write_text(code)
    shell("run", "planted.py:echo", "hello", "--as", "s", "-d")
    log, stolen = shell.folder / ".holdfast" / "holdfast.db.log", shell.folder / "stolen"
    shell.until(lambda: stolen.exists() or "t1 completed" in log.read_text())
    assert not stolen.exists()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_detached_run_whose_log_is_something_else_is_refused_and_accepts_nothing(shell: Shell, kind: str) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    log, other = shell.folder / ".holdfast" / "holdfast.db.log", shell.folder / "other"
    other.write_text("mine")
    log.symlink_to(other) if kind == "link" else os.mkfifo(log)
    done = shell("run", "agents.py:echo", "again", "--session", "s", "-d")
    assert (done.returncode, log.name in done.stderr, other.read_text()) == (2, True, "mine")
    assert len(shell.json("show", "s")["turns"]) == 1


@pytest.mark.torture
def test_a_detached_run_survives_its_terminal(shell: Shell) -> None:
    seen = on_terminal(shell, "run", "agents.py:gated", "hello", "--as", "s", "-d")  # the terminal is gone after this
    assert "s/t1" in seen
    shell.until(shell.begun)
    shell.open_gate()
    shell.until(lambda: shell.ps()[0]["status"] == "completed")


@pytest.mark.torture
def test_the_background_process_leaves_when_there_is_nothing_to_do(shell: Shell) -> None:
    pid = json.loads(shell("run", "agents.py:echo", "hello", "-d", "-o", "json").stdout)["pid"]
    shell.until(lambda: not Path(f"/proc/{pid}").exists())
    assert "t1 completed" in (shell.folder / ".holdfast" / "holdfast.db.log").read_text()


@pytest.mark.torture
def test_the_background_process_stays_for_a_timer(shell: Shell) -> None:
    shell("run", "agents.py:asks_briefly", "hello", "--as", "s", "-d")
    shell.until(lambda: shell.ps()[0]["status"] == "completed")
    assert "nobody" in shell("show", "s").stdout


# ---- interruptions ---------------------------------------------------------------------------------------------------


def test_a_killed_run_is_shown_as_interrupted_and_goes_on_where_it_was(shell: Shell) -> None:
    running = shell.start("run", "agents.py:gated", "hello", "--as", "s")
    shell.until(shell.begun)
    running.kill()
    running.wait(PATIENCE)
    assert shell.ps()[0]["status"] == "interrupted"
    assert "interrupted" in shell("show", "s").stdout
    shell.open_gate()
    done = shell("resume", "s", "-o", "json")
    outcome = json.loads(done.stdout)
    assert (done.returncode, outcome["text"], outcome["steps"]) == (0, "Done.", 2)
    assert f"pid {running.pid}" in shell("show", "s").stdout


def test_after_a_kill_a_run_with_the_same_key_finishes_the_same_turn(shell: Shell) -> None:
    running = shell.start("run", "agents.py:gated", "hello", "--as", "s", "--key", "k")
    shell.until(shell.begun)
    running.kill()
    running.wait(PATIENCE)
    shell.open_gate()
    done = shell("run", "agents.py:gated", "hello", "--as", "s", "--key", "k")
    assert (done.returncode, done.stdout) == (0, "Done.\n")


def test_ctrl_c_cancels_the_turn_and_waits_for_its_end(shell: Shell) -> None:
    running = shell.start("run", "agents.py:gated", "hello", "--as", "s")
    shell.until(shell.begun)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 4
    assert "cancelling" in err
    assert shell.ps()[0]["status"] == "cancelled"


def test_a_tool_that_can_not_be_stopped_does_not_keep_the_process(shell: Shell) -> None:
    running = shell.start("run", "agents.py:blocked", "hello", "--as", "s")
    shell.until(shell.begun)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=PATIENCE)
    assert running.returncode == 4


def test_ctrl_c_twice_leaves_at_once_and_says_how_to_go_on(shell: Shell) -> None:
    running = shell.start("run", "agents.py:gated", "hello", "--as", "s")
    shell.until(shell.begun)
    locker: Any = apsw.Connection(str(shell.folder / ".holdfast" / "holdfast.db"))
    locker.set_busy_timeout(20_000)
    locker.execute("BEGIN IMMEDIATE")  # so that the first Ctrl-C can't be carried out yet
    running.send_signal(signal.SIGINT)
    assert running.stderr is not None
    assert "cancelling" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=PATIENCE)
    locker.close()
    assert running.returncode == 130
    assert "holdfast resume s" in err


def test_a_termination_signal_leaves_the_turn_where_it_is(shell: Shell) -> None:
    running = shell.start("run", "agents.py:gated", "hello", "--as", "s")
    shell.until(shell.begun)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 143
    assert "holdfast resume s" in err
    assert shell.ps()[0]["status"] == "interrupted"


def test_a_failed_turn_is_tried_again_and_shows_so(shell: Shell) -> None:
    assert shell("run", "agents.py:flaky", "hello", "--as", "s").returncode == 1
    (shell.folder / "repaired").touch()
    done = shell("retry", "s", "--yes")
    assert (done.returncode, done.stdout) == (0, "Repaired.\n"), done.stderr
    shown = shell("show", "s").stdout
    assert "tried again as t2" in shown
    assert "retry of t1" in shown


def test_a_turn_is_done_again_from_a_step_in_a_fork(shell: Shell) -> None:
    (shell.folder / "repaired").touch()
    assert shell("run", "agents.py:flaky", "hello", "--as", "s").returncode == 0
    done = shell("retry", "s/t1", "--from", 2, "--key", "k", "--yes", "--output", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["session"].startswith("s~t1-")


def test_a_completed_turn_is_not_retried_without_a_step(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    done = shell("retry", "s")
    assert done.returncode == 2
    assert "has completed; from_step=1 (--from 1)" in done.stderr


def test_a_session_with_nothing_to_do_is_not_resumed(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    done = shell("resume", "s")
    assert (done.returncode, done.stderr) == (0, "s has nothing to do\n")


# ---- wrong calls -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("missing.py", "/missing.py' names no agent: there is no file"),
        ("missing.module:agent", "there is no module 'missing'"),
        ("agents.py", "choose one of"),
        ("agents.py:nobody", "'nobody' is not there"),
        ("agents.py:look", "'look' is a Tool"),
        ("agents.py:", "write file.py:name"),
        ("empty.py", "no holdfast.Agent"),
        ("wrong.py", "SyntaxError"),
        ("raises.py", "RuntimeError: not today (raises.py, line 1)"),
        ("exits.py", "SystemExit"),
        ("needs.py", "No module named 'nothing_like_that'"),
    ],
)
def test_an_agent_that_can_not_be_loaded_is_one_line(shell: Shell, reference: str, said: str) -> None:
    (shell.folder / "empty.py").write_text("x = 1\n")
    (shell.folder / "wrong.py").write_text("def (\n")
    (shell.folder / "raises.py").write_text("raise RuntimeError('not today')\n")
    (shell.folder / "exits.py").write_text("raise SystemExit(0)\n")
    (shell.folder / "needs.py").write_text("import nothing_like_that\n")
    done = shell("run", reference, "hello")
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (shell.folder / ".holdfast" / "holdfast.db").exists()


def test_a_module_is_found_in_the_current_folder(shell: Shell) -> None:
    assert shell("run", "agents:echo", "hello").stdout == "you said hello\n"


def test_the_only_agent_of_a_module_needs_no_name(shell: Shell) -> None:
    (shell.folder / "one.py").write_text("from agents import echo as only\n")
    assert shell("run", "one.py", "hello").stdout == "you said hello\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "agents.py:echo"],
        ["run", "agents.py:echo", ""],
        ["run", "agents.py:echo", "hello", "-o", "yaml"],
        ["run", "agents.py:echo", "hello", "--deadline", "-1"],
        ["run", "agents.py:echo", "hello", "--key", "k"],
        ["run", "agents.py:echo", "hello", "--session", "s"],
        ["run", "agents.py:echo", "hello", "--session", "s", "--as", "s"],
        ["run", "agents.py:echo", "hello", "--as", "../s"],
        ["resume", "s"],
        ["nothing"],
    ],
    ids=" ".join,
)
def test_a_wrong_call_has_exit_code_2_and_no_traceback(shell: Shell, arguments: list[str]) -> None:
    done = shell(*arguments)
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_a_session_of_another_agent_is_refused(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    assert shell("run", "agents.py:looks", "hello", "--session", "s").returncode == 2


def test_a_turn_whose_code_has_changed_is_not_waited_for(shell: Shell) -> None:
    running = shell.start("run", "agents.py:gated", "hello", "--as", "s")
    shell.until(shell.begun)
    running.kill()
    running.wait(PATIENCE)
    shell.open_gate()
    text = (shell.folder / "agents.py").read_text()
    (shell.folder / "agents.py").write_text(f"{text}\ngated = hf.Agent('gated', model=gated.model, output=Sum)\n")
    done = shell("resume", "s")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_what_nobody_has_thought_of_is_told_in_one_line(shell: Shell) -> None:
    (shell.folder / "odd.py").write_text(
        "from agents import typed\ndef load(text):\n    raise TypeError('odd')\ntyped.output.load = load\n"
    )
    done = shell("run", "odd.py", "hello")
    assert done.returncode == 1
    assert "unexpected TypeError: odd (odd.py, line 3)" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_help_names_every_command_and_is_quick(shell: Shell) -> None:
    heavy = ("pydantic", "apsw", "rich", "asyncio")
    code = f"import sys, holdfast.cli; print(*[name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert loaded.stdout.split() == []
    done = shell("--help")
    for command in (
        "run",
        "chat",
        "ps",
        "show",
        "logs",
        "resume",
        "cancel",
        "resolve",
        "fork",
        "compact",
        "replay",
        "doctor",
    ):
        assert f"  {command} " in done.stdout
