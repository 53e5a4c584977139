"""`holdfast policy`: a call is tried without being made, and the rules are shown as they are tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.behaviour.shell import Shell

AGENTS = '''
import holdfast as hf
from holdfast.policy.rules import Policy, allow, ask, deny, within
from holdfast.testing import ScriptedModel, text
from holdfast.tools.definition import Reach


@hf.tool(read_only=True)
def find_order(email: str) -> str:
    """Find an order."""
    return email


@hf.tool(reach=Reach(external=True))
def refund(cents: int, currency: str = "EUR") -> str:
    """Refund an order."""
    raise SystemExit("it was called")


@hf.tool(read_only=True, reach=Reach(family="files", paths=("path",)))
def list_files(path: str = ".") -> str:
    """List files."""
    return path


answer = ScriptedModel([text("Hello.")])
shop = hf.Agent(
    "shop",
    model=answer,
    tools=[find_order, refund, list_files],
    policy=[
        allow("*"),
        ask("refund", when={"cents": {"above": 5000}}, expires=3600, name="big refunds"),
        within("workspace"),
        deny("refund", when={"currency": {"equals": "USD"}}, reason="Only in euros."),
        deny("shel"),
    ],
)
reader = hf.Agent("reader", model=answer, tools=[find_order])
'''


@pytest.fixture
def shop(shell: Shell) -> Shell:
    (shell.folder / "shop.py").write_text(AGENTS, encoding="utf-8")
    return shell


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        ('refund {"cents": 900}', 0, "allow"),
        ('refund {"cents": 9000}', 3, "ask"),
        ('refund {"cents": 9000, "currency": "USD"}', 6, "deny"),
        ('list_files {"path": "/etc"}', 6, "deny"),
    ],
)
def test_a_call_is_decided_and_the_exit_code_says_how(shop: Shell, call: str, code: int, said: str) -> None:
    done = shop("policy", "check", "shop.py:shop", call)
    assert (done.returncode, done.stdout.split()[0]) == (code, said), done.stdout + done.stderr


def test_the_decision_is_shown_with_its_rule_and_its_reason(shop: Shell) -> None:
    done = shop("policy", "check", "shop.py:shop", 'refund {"cents": 9000}')
    assert done.stdout.splitlines() == [
        'ask   refund {"cents":9000,"currency":"EUR"}',
        "rule  2: big refunds",
        "why   refund is meant by 'ask refund when cents above 5000'",
        "open  1 h 0 m, then it is denied",
    ]


def test_the_decision_can_be_had_as_json(shop: Shell) -> None:
    found = shop.json("policy", "check", "shop.py:shop", 'refund {"cents": 1, "currency": "USD"}')
    assert found == {
        "tool": "refund",
        "args": {"cents": 1, "currency": "USD"},
        "decision": {
            "verdict": "deny",
            "rule": "4: deny refund when currency equals 'USD'",
            "why": "Only in euros.",
            "expires_ms": None,
            "tainted": False,
        },
    }


@pytest.mark.parametrize(("taint", "code"), [("untrusted", 0), ("private", 0), ("untrusted,private", 3)])
def test_a_call_can_be_tried_in_a_tainted_turn(shop: Shell, taint: str, code: int) -> None:
    assert shop("policy", "check", "shop.py:shop", 'refund {"cents": 1}', "--taint", taint).returncode == code


def test_a_policy_file_can_be_tried_instead(shop: Shell) -> None:
    (shop.folder / "strict.toml").write_text('[[rule]]\nallow = "find*"\n', encoding="utf-8")
    done = shop("policy", "check", "shop.py:shop", 'refund {"cents": 1}', "--policy", "strict.toml")
    assert done.returncode == 6
    assert "no rule allows it" in done.stdout


def test_an_agent_without_a_policy_may_read(shop: Shell) -> None:
    assert shop("policy", "check", "shop.py:reader", 'find_order {"email": "a@b.c"}').returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pay {}"], "'shop' has no tool 'pay'; it has: find_order, refund, list_files"),
        ([""], "has no tool ''"),
        (["refund {"], "are no JSON"),
        (["refund [1]"], "are no JSON object"),
        (['refund {"cents": "many"}'], "cents"),
        (["refund"], "cents"),
        (['refund {"cents": 1}', "--taint", "evil"], "--taint is untrusted, private"),
        (['refund {"cents": 1}', "--policy", "none.toml"], "none.toml: it can't be read"),
    ],
)
def test_a_call_that_can_not_be_meant_is_told_in_one_line(shop: Shell, arguments: list[str], said: str) -> None:
    done = shop("policy", "check", "shop.py:shop", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_the_rules_are_shown_in_the_order_in_which_they_are_tried(shop: Shell) -> None:
    found = shop.json("policy", "show", "shop.py:shop")
    assert [(line["number"], line["says"], line["reaches"]) for line in found["rules"]] == [
        (4, "deny", ["refund"]),
        (2, "ask", ["refund"]),
        (1, "allow", ["find_order", "refund", "list_files"]),
        (3, "within", ["list_files"]),
        (5, "deny", []),
    ]


def test_a_rule_about_no_tool_of_the_agent_is_marked(shop: Shell) -> None:
    shown = shop("policy", "show", "shop.py:shop").stdout.splitlines()
    assert [line for line in shown if "no tool of this agent" in line] == [
        line for line in shown if line.startswith("5 ")
    ]
    assert shown[-2:] == [
        "otherwise: denied (there are rules, and none holds)",
        "taint: external effects ask after untrusted input and private data",
    ]


def test_an_agent_without_a_policy_is_shown_as_one_that_may_read(shop: Shell) -> None:
    assert shop("policy", "show", "shop.py:reader").stdout.startswith("otherwise: allowed where it only reads")


PROVIDERS = """
import holdfast as hf
from holdfast.testing import ScriptedModel, call, text


class Shelf:
    name = "shelf"

    async def list(self, turn):
        return [hf.ProvidedTool("say", "Say.", {"type": "object", "properties": {"word": {"type": "string"}}})]

    async def call(self, ctx, tool, arguments):
        return f"said {arguments['word']}"


answer = ScriptedModel([call("say", word="x"), text("Hello.")])
reader = hf.Agent("reader", model=answer, tools=[Shelf()], policy=[hf.ask("say"), hf.allow("*")])
"""


def test_rules_about_tools_that_only_a_turn_knows_are_shown_as_such(shell: Shell) -> None:
    (shell.folder / "shelf.py").write_text(PROVIDERS, encoding="utf-8")
    assert "no tool known before a turn" in shell("policy", "show", "shelf.py:reader").stdout
    refused = shell("policy", "check", "shelf.py:reader", 'say {"word": "x"}')
    assert (refused.returncode, "providers (shelf) are known only within a turn" in refused.stderr) == (2, True)


def test_changed_arguments_of_a_tool_of_the_turn_are_taken_with_a_remark(shell: Shell) -> None:
    (shell.folder / "shelf.py").write_text(PROVIDERS, encoding="utf-8")
    asked = shell("run", "shelf.py:reader", "hello", "--as", "s")
    id = next(word for word in (asked.stdout + asked.stderr).split() if word.startswith("a-"))
    always = shell("approve", id, "--always", "--yes")
    assert (always.returncode, "with the tool in its code" in always.stderr) == (2, True)
    changed = shell("approve", id, "--arguments", '{"word": "y"}', "--yes")
    assert (changed.returncode, "a tool of the turn" in changed.stderr) == (0, True)
    assert shell("resume", "s").returncode == 0
    assert r"{\"word\":\"y\"}" in shell("logs", "s").stdout
