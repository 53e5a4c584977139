"""Approvals from the shell: shown as they are, answered once, edited, denied, and made into rules."""

from __future__ import annotations

import json
import os
import pwd
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.behaviour.shell import Shell

AGENTS = '''
import asyncio
from pathlib import Path

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text


@hf.tool
def refund(order: str, cents: int, note: str = "") -> str:
    """Refund an order."""
    with Path("refunded").open("a") as file:
        file.write(f"{order} {cents}\\n")
    return "refunded"


@hf.tool
def note(lines: list[str]) -> str:
    """Keep lines."""
    return "kept"


@hf.tool(idempotent=True)
async def gate() -> str:
    """Leave a trace, then wait until the gate is opened."""
    Path("begun").touch()
    while not Path("open").exists():
        await asyncio.sleep(0.02)
    return "through"


class Careful(hf.Hooks):
    async def before_tool(self, call):
        return call.ask("to be sure")


def agent(name, *calls, hooks=()):
    rules = [
        hf.ask("refund", when={"cents": {"above": 5000}}, expires=3600),
        hf.deny("refund", when={"cents": {"above": 100000}}, reason="Too much."),
        hf.ask("note"),
        hf.allow("*"),
    ]
    model = ScriptedModel([list(calls), text("Done.")])
    return hf.Agent(name, model=model, tools=[refund, note, gate], policy=rules, hooks=hooks)


big = call("refund", order="7", cents=9000)
shop = agent("shop", big)
two = agent("two", big, call("refund", order="8", cents=8000))
busy = agent("busy", big, call("gate"))
hesitates = agent("hesitates", call("refund", order="7", cents=1), hooks=[Careful()])
listed = agent("listed", call("note", lines=["a"]))
long = agent("long", call("refund", order="x" * 3000, cents=9000))
hidden = agent("hidden", call("refund", order="7\\u202e\\u200b\\u2028\\U000e0041\\x1b[2J", cents=9000))
'''
ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def shop(shell: Shell) -> Shell:
    (shell.folder / "shop.py").write_text(AGENTS, encoding="utf-8")
    return shell


def asked(shop: Shell, agent: str = "shop") -> str:
    """Let an agent ask, and leave; the id of the approval that came first."""
    done = shop("run", f"shop.py:{agent}", "hello", "--as", "s")
    assert done.returncode == 3, done.stderr
    return approvals(shop)[0]["approval"]["id"]


def approvals(shop: Shell) -> list[dict[str, Any]]:
    return [item for item in shop.json("inbox") if item["kind"] == "approval"]


def refunded(shop: Shell) -> list[str]:
    file = shop.folder / "refunded"
    return file.read_text().splitlines() if file.exists() else []


def editor(shop: Shell, text: str) -> dict[str, str]:
    """An editor that writes this text."""
    (shop.folder / "text").write_text(text, encoding="utf-8")
    script = shop.folder / "editor"
    script.write_text(f'#!/bin/sh\ncp "$1" {shop.folder}/before\ncat {shop.folder}/text > "$1"\n')
    script.chmod(0o755)
    return {"VISUAL": "", "EDITOR": str(script)}


def read_until(leader: int, words: str) -> str:
    seen = bytearray()
    while words not in seen.decode(errors="replace"):
        seen += os.read(leader, 4096)
    return seen.decode(errors="replace")


# ---- inbox -----------------------------------------------------------------------------------------------------------


def test_the_inbox_shows_the_call_the_rule_the_time_left_and_both_answers(shop: Shell) -> None:
    id = asked(shop)
    head, *lines = shop("inbox").stdout.splitlines()
    assert head.startswith("approval  s  refund (agent shop), ")
    assert head.endswith((" s left", "1 h 0 m left"))
    assert lines == [
        '  | refund {"order": "7", "cents": 9000, "note": ""}',
        "  rule     1: ask refund when cents above 5000",
        "  why      refund is meant by 'ask refund when cents above 5000'",
        f"  holdfast approve {id}",
        f"  holdfast deny {id} --reason TEXT",
    ]


def test_the_inbox_as_json_has_the_call_as_it_is(shop: Shell) -> None:
    asked(shop, "hidden")
    (item,) = approvals(shop)
    assert item["approval"]["arguments"]["order"] == "7\u202e\u200b\u2028\U000e0041\x1b[2J"


def test_characters_that_nobody_sees_are_shown_as_escapes(shop: Shell) -> None:
    asked(shop, "hidden")
    shown = shop("inbox").stdout
    assert r'"order": "7\u202e\u200b\u2028\udb40\udc41\u001b[2J"' in shown
    assert shown.isascii()


def test_an_approval_is_listed_once_and_not_as_another_wait(shop: Shell) -> None:
    asked(shop, "two")
    assert [item["kind"] for item in shop.json("inbox")] == ["approval", "approval"]


def test_a_long_call_is_cut_in_the_inbox_which_says_what_shows_the_rest(shop: Shell) -> None:
    id = asked(shop, "long")
    shown = shop("inbox").stdout
    assert "x" * 3000 not in shown
    assert f"more characters, shown by: holdfast approve {id} --show" in shown


# ---- approve ---------------------------------------------------------------------------------------------------------


def test_an_approved_call_is_made_when_the_session_goes_on(shop: Shell) -> None:
    id = asked(shop)
    done = shop("approve", id, "--yes")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"approved {id}: refund of s")
    assert "go on with: holdfast resume s" in done.stderr
    assert refunded(shop) == []
    assert shop("resume", "s").returncode == 0
    assert refunded(shop) == ["7 9000"]


def test_the_login_name_is_who_approved_where_nobody_is_named(shop: Shell) -> None:
    shop("approve", asked(shop), "--yes")
    shop("resume", "s")
    assert f"refund approved by {ME}" in " ".join(shop("show", "s").stdout.split())


def test_without_a_terminal_nothing_is_approved_unless_yes_is_said(shop: Shell) -> None:
    id = asked(shop)
    done = shop("approve", id, stdin="y\n")
    assert (done.returncode, "--yes" in done.stderr) == (2, True)
    assert len(approvals(shop)) == 1


def test_on_a_terminal_the_call_is_shown_and_a_person_is_asked(shop: Shell) -> None:
    id = asked(shop)
    with shop.on_terminal("approve", id) as (process, screen):
        assert '"cents": 9000' in read_until(screen, "[y/N]")
        os.write(screen, b"y\n")
        read_until(screen, f"approved {id}")
        assert process.wait(20) == 0


def test_anything_but_yes_approves_nothing(shop: Shell) -> None:
    id = asked(shop)
    with shop.on_terminal("approve", id) as (process, screen):
        read_until(screen, "[y/N]")
        os.write(screen, b"\n")
        read_until(screen, "still waits")
        assert process.wait(20) == 1
    assert len(approvals(shop)) == 1


def test_a_call_that_lists_cut_wants_another_word_where_nobody_is_asked(shop: Shell) -> None:
    id = asked(shop, "long")
    done = shop("approve", id, "--yes")
    assert (done.returncode, "--yes-all" in done.stderr) == (2, True)
    assert shop("approve", id, "--yes-all").returncode == 0


def test_show_shows_a_long_call_whole_and_answers_nothing(shop: Shell) -> None:
    done = shop("approve", asked(shop, "long"), "--show")
    assert (done.returncode, "x" * 3000 in done.stdout) == (0, True)
    assert len(approvals(shop)) == 1


def test_what_else_the_session_waits_for_is_told(shop: Shell) -> None:
    assert "1 more of s waits: holdfast inbox" in shop("approve", asked(shop, "two"), "--yes").stderr


def test_the_process_that_works_on_the_session_is_named_and_makes_the_call(shop: Shell) -> None:
    running = shop.start("run", "shop.py:busy", "hello", "--as", "s")
    shop.until(lambda: shop.begun() and approvals(shop))
    done = shop("approve", approvals(shop)[0]["approval"]["id"], "--yes")
    assert f"process {running.pid} works on s" in done.stderr
    shop.open_gate()
    assert running.wait(20) == 0
    assert refunded(shop) == ["7 9000"]


def test_the_agent_need_not_be_there(shop: Shell) -> None:
    id = asked(shop)
    (shop.folder / "shop.py").unlink()
    done = shop("approve", id, "--yes")
    assert (done.returncode, "agent" in done.stderr) == (0, False)


@pytest.mark.parametrize("answer", [["approve", "--yes"], ["deny"]], ids=lambda answer: answer[0])
def test_a_second_answer_is_refused_and_changes_nothing(shop: Shell, answer: list[str]) -> None:
    id = asked(shop)
    shop("deny", id)
    done = shop(*answer, id)
    assert (done.returncode, f"no approval '{id}' waits" in done.stderr) == (2, True)


@pytest.mark.parametrize("answer", [["approve", "--yes"], ["deny"]], ids=" ".join)
def test_an_unknown_id_says_where_to_look(shop: Shell, answer: list[str]) -> None:
    asked(shop)
    done = shop(*answer, "a-0123456789abcdef")
    assert (done.returncode, "holdfast inbox" in done.stderr) == (2, True)


@pytest.mark.parametrize("arguments", [["approve", "a-1"], ["deny", "a-1"], ["rules"]], ids=" ".join)
def test_a_store_that_is_not_there_is_said_to_be_missing(shop: Shell, arguments: list[str]) -> None:
    done = shop(*arguments)
    assert (done.returncode, "there is no store at .holdfast/holdfast.db" in done.stderr) == (2, True)
    assert not (shop.folder / ".holdfast" / "holdfast.db").exists()


# ---- other arguments -------------------------------------------------------------------------------------------------


def test_a_call_can_be_approved_with_other_arguments(shop: Shell) -> None:
    done = shop("approve", asked(shop), "--yes", "--arguments", '{"order": "7", "cents": 100}')
    assert '  | -"cents": 9000\n  | +"cents": 100\n' in done.stdout
    shop("resume", "s")
    assert refunded(shop) == ["7 100"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("[1]", "a JSON object"),
        ('{"order": "7", "cents": "many"}', "cents: Input should be a valid integer"),
        ('{"order": "7", "cents": 100001}', "Too much."),
    ],
)
def test_arguments_that_can_not_be_used_are_told_and_approve_nothing(shop: Shell, given: str, said: str) -> None:
    done = shop("approve", asked(shop), "--yes", "--arguments", given)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert len(approvals(shop)) == 1


def test_arguments_that_nobody_can_check_are_said_to_be_unchecked(shop: Shell) -> None:
    id = asked(shop)
    (shop.folder / "shop.py").unlink()
    done = shop("approve", id, "--yes", "--arguments", '{"order": "7", "cents": 100}')
    assert (done.returncode, "the agent is not there" in done.stderr) == (0, True)


def test_edit_opens_the_arguments_and_approves_what_was_written(shop: Shell) -> None:
    id = asked(shop)
    done = shop("approve", id, "--edit", "--yes", **editor(shop, '{"order": "9", "cents": 50, "note": ""}'))
    assert done.returncode == 0, done.stderr
    assert json.loads((shop.folder / "before").read_text()) == {"order": "7", "cents": 9000, "note": ""}
    shop("resume", "s")
    assert refunded(shop) == ["9 50"]


def test_what_an_editor_shows_hides_nothing_and_is_the_same_value(shop: Shell) -> None:
    shop("approve", asked(shop, "hidden"), "--edit", "--yes", **editor(shop, ""))
    before = (shop.folder / "before").read_text()
    assert before.isascii()
    assert json.loads(before)["order"] == "7\u202e\u200b\u2028\U000e0041\x1b[2J"


def test_an_unchanged_text_is_not_approved_without_being_asked_for(shop: Shell) -> None:
    text = '{"note": "", "cents": 9000, "order": "7"}'
    done = shop("approve", asked(shop), "--edit", "--yes", **editor(shop, text))
    assert (done.returncode, "nothing was changed" in done.stderr) == (2, True)
    assert len(approvals(shop)) == 1


def test_a_text_that_can_not_be_used_is_kept(shop: Shell) -> None:
    done = shop("approve", asked(shop), "--edit", "--yes", **editor(shop, "not JSON"))
    assert done.returncode == 2
    kept = Path(done.stderr.strip().rpartition("your text is in ")[2])
    assert kept.read_text() == "not JSON"
    shutil.rmtree(kept.parent)


def test_a_text_that_can_not_be_used_can_be_edited_again(shop: Shell) -> None:
    id = asked(shop)
    with shop.on_terminal("approve", id, "--edit", **editor(shop, "not JSON")) as (process, screen):
        read_until(screen, "Edit it again? [Y/n]")
        (shop.folder / "text").write_text('{"order": "9", "cents": 50}')
        os.write(screen, b"\n")
        read_until(screen, "with the changed arguments? [y/N]")
        os.write(screen, b"y\n")
        read_until(screen, f"approved {id}")
        assert process.wait(20) == 0


def test_an_emptied_text_approves_nothing(shop: Shell) -> None:
    done = shop("approve", asked(shop), "--edit", "--yes", **editor(shop, ""))
    assert (done.returncode, "nothing was approved" in done.stdout) == (1, True)


# ---- deny ------------------------------------------------------------------------------------------------------------


def test_a_denial_reaches_the_model_and_the_turn_goes_on(shop: Shell) -> None:
    id = asked(shop)
    done = shop("deny", id, "--reason", "not today", "--by", "anna")
    assert (done.returncode, done.stdout) == (0, f"denied {id}: refund of s\n")
    assert shop("resume", "s").stdout == "Done.\n"
    assert refunded(shop) == []
    results = [step for step in shop.json("show", "s")["turns"][0]["steps"] if step["kind"] == "tool"]
    assert "A person (anna) did not allow this call of refund: not today" in results[0]["text"]


# ---- rules -----------------------------------------------------------------------------------------------------------


def always(shop: Shell) -> None:
    done = shop("approve", asked(shop), "--always", "--yes", "--by", "anna")
    assert done.returncode == 0, done.stderr
    assert "  always   allow refund when order equals '7' and cents equals 9000" in done.stdout


def test_always_stores_a_rule_that_answers_the_same_call_from_now_on(shop: Shell) -> None:
    always(shop)
    shop("resume", "s")
    assert shop("run", "shop.py:shop", "hello", "--as", "again").returncode == 0
    assert refunded(shop) == ["7 9000", "7 9000"]


def test_rules_lists_what_was_stored_and_by_whom(shop: Shell) -> None:
    always(shop)
    (rule,) = shop.json("rules")
    assert (rule["agent"], rule["by"], json.loads(rule["body"])["allow"]) == ("shop", "anna", "refund")
    assert "allow refund when order equals '7'" in shop("rules").stdout


@pytest.mark.parametrize(("agent", "count"), [("shop", 1), ("other", 0)])
def test_rules_of_one_agent_leave_the_others_out(shop: Shell, agent: str, count: int) -> None:
    always(shop)
    assert len(json.loads(shop("rules", agent, "--json").stdout)) == count


def test_a_removed_rule_answers_nothing_and_stays_in_the_history(shop: Shell) -> None:
    always(shop)
    shop("resume", "s")
    (rule,) = shop.json("rules")
    assert shop("rules", "rm", rule["id"], "--by", "bert").returncode == 0
    assert shop.json("rules") == []
    assert [found["removed_by"] for found in shop.json("rules", "--all")] == ["bert"]
    assert shop("run", "shop.py:shop", "hello", "--as", "again").returncode == 3


def test_a_rule_is_removed_once(shop: Shell) -> None:
    always(shop)
    (rule,) = shop.json("rules")
    assert [shop("rules", "rm", rule["id"]).returncode for _ in range(2)] == [0, 1]


def test_a_rule_that_is_not_there_can_not_be_removed(shop: Shell) -> None:
    asked(shop)
    done = shop("rules", "rm", "7")
    assert (done.returncode, "there is no stored rule 7" in done.stderr) == (2, True)


def test_always_says_why_no_rule_can_be_made(shop: Shell) -> None:
    done = shop("approve", asked(shop, "listed"), "--always", "--yes")
    assert (done.returncode, "no rule can tell calls like this one from others" in done.stderr) == (2, True)
    assert len(approvals(shop)) == 1


def test_always_without_the_agent_says_what_it_needs(shop: Shell) -> None:
    id = asked(shop)
    (shop.folder / "shop.py").unlink()
    done = shop("approve", id, "--always", "--yes")
    assert (done.returncode, "--always needs the agent" in done.stderr) == (2, True)
    assert len(approvals(shop)) == 1


def test_the_rule_is_a_question_of_its_own_on_a_terminal(shop: Shell) -> None:
    with shop.on_terminal("approve", asked(shop), "--always") as (process, screen):
        assert "allow refund when order equals '7'" in read_until(screen, "Approve this call of refund? [y/N]")
        os.write(screen, b"y\n")
        read_until(screen, "Store that rule for agent shop, too? [y/N]")
        os.write(screen, b"n\n")
        read_until(screen, "approved a-")
        assert process.wait(20) == 0
    assert shop.json("rules") == []


def test_no_rule_is_stored_for_what_a_hook_wants_to_be_asked_about(shop: Shell) -> None:
    done = shop("approve", asked(shop, "hesitates"), "--always", "--yes")
    assert (done.returncode, "a hook of the program wants to be sure" in done.stderr) == (2, True)
    assert len(approvals(shop)) == 1


# ---- elsewhere -------------------------------------------------------------------------------------------------------


def test_resolve_is_refused_for_an_approval_and_points_to_approve(shop: Shell) -> None:
    id = asked(shop)
    (line,) = shop.json("ps")
    for name in (id, line["waits"][0]):
        done = shop("resolve", "s", name, "true")
        assert (done.returncode, f"holdfast approve {id}" in done.stderr) == (2, True)
    assert len(approvals(shop)) == 1


def test_run_says_which_command_approves(shop: Shell) -> None:
    done = shop("run", "shop.py:shop", "hello", "--as", "s")
    (item,) = approvals(shop)
    assert f"t1 waits for approval of refund; answer with: {item['answer']}" in done.stderr


@pytest.mark.parametrize("command", ["ps", "show", "logs"])
def test_a_waiting_approval_is_named_with_the_command_that_answers_it(shop: Shell, command: str) -> None:
    id = asked(shop)
    shown = shop(command, *([] if command == "ps" else ["s"])).stdout
    assert f"waits for approval of refund: holdfast approve {id}" in shown


def test_show_tells_who_approved_with_what(shop: Shell) -> None:
    id = asked(shop)
    shop("approve", id, "--yes", "--by", "anna", "--arguments", '{"order": "7", "cents": 1}')
    shop("resume", "s")
    steps = [step for step in shop.json("show", "s")["turns"][0]["steps"] if step["kind"] == "wait"]
    assert [(step["name"], step["state"], step.get("text", "")) for step in steps] == [
        (f"approval {id} of refund", "asked", ""),
        (f"approval {id} of refund", "approved", "by anna with changed arguments"),
    ]


def test_a_rule_is_not_made_with_code_that_the_user_never_loaded(shop: Shell) -> None:
    done = shop("approve", asked(shop), "--yes", "--always", XDG_STATE_HOME=str(shop.folder / "another user"))
    assert done.returncode == 2
    assert "which you have not loaded before" in done.stderr


# ---- ids -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [6, 10])
def test_an_approval_is_named_by_the_beginning_of_its_id(shop: Shell, length: int) -> None:
    id = asked(shop)
    assert shop("approve", id[:length], "--yes").returncode == 0
    assert approvals(shop) == []


def test_an_approval_is_named_without_what_all_their_ids_begin_with(shop: Shell) -> None:
    id = asked(shop)
    assert f"denied {id}:" in shop("deny", id.removeprefix("a-")[:8]).stdout


def test_a_beginning_that_several_approvals_have_answers_none(shop: Shell) -> None:
    asked(shop, "two")
    done = shop("approve", "a-", "--yes")
    assert (done.returncode, "may be any of" in done.stderr, len(approvals(shop))) == (2, True, 2)
