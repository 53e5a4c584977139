"""Commands, hosts and examples: what is written to be misread is covered by no permission."""

from __future__ import annotations

from typing import Any

import pytest
from tests.every import every

from holdfast.errors.caller import PolicyInvalid
from holdfast.policy.rules import Policy, Subject, allow, ask, deny

STATUS = allow("run", argv=["git", ["status", "diff"]])


def run(command: Any) -> Subject:
    return Subject(tool="run", args={"command": command}, command="command")


def fetch(url: Any) -> Subject:
    return Subject(tool="fetch", family="web", args={"url": url}, url="url")


def verdict(subject: Subject, *rules: Any) -> str:
    return Policy(rules).decide(subject).verdict


# ---- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["git", "status"], ["git", "diff", "--stat"], ("git", "status")])
def test_a_command_that_begins_with_the_words_of_an_allow_is_allowed(words: Any) -> None:
    assert verdict(run(words), STATUS) == "allow"


BYPASSES: list[Any] = [
    # shell strings, whatever they begin with
    "git status",
    "git status && rm -rf /",
    "git status; rm -rf /",
    "git status | sh",
    "git status & rm x",
    "git status $(rm x)",
    "git status `rm x`",
    "git status\nrm -rf /",
    "git status\rrm x",
    "git status > /etc/passwd",
    "git status " + "&& true " * 60,
    # programs that run other programs
    ["env", "-S", "git status; rm x"],
    ["env", "git", "status"],
    ["sh", "-c", "git status"],
    ["busybox", "git", "status"],
    ["xargs", "git", "status"],
    ["sudo", "git", "status"],
    # something before the word that counts
    ["git", "-c", "core.fsmonitor=rm x", "status"],
    ["git", "--exec-path=/tmp", "status"],
    ["git", "-C", "/", "status"],
    # words that only look the same
    ["git status"],
    ["git", "status;rm x"],
    ["git", "status\n"],
    ["git", "status "],
    [" git", "status"],
    ["git\0", "status"],
    ["GIT", "status"],
    ["/srv/git", "status"],
    ["./git", "status"],
    ["git", "\u017ftatus"],
    ["", "git", "status"],
    # less than the words, or nothing that is a command
    ["git"],
    [],
    None,
    {"git": "status"},
    ["git", 7],
    [["git", "status"]],
]


@every("command", BYPASSES, ids=repr)
def test_no_other_command_is_allowed_by_the_words(command: Any) -> None:
    assert verdict(run(command), STATUS) == "deny"


def test_a_shell_string_that_an_allow_does_not_cover_is_told_apart_in_the_decision() -> None:
    decision = Policy((STATUS,)).decide(run("git status"))
    assert "only a list of words can be matched" in decision.why


@pytest.mark.parametrize("make", [ask, deny])
def test_a_shell_string_is_met_by_every_rule_that_asks_or_denies_commands(make: Any) -> None:
    rule = make("run", argv=["rm"])
    assert verdict(run("ls"), rule, allow("*")) == rule.verdict


def test_a_deny_of_some_commands_leaves_the_others_alone() -> None:
    assert verdict(run(["ls", "rm"]), deny("run", argv=["rm"]), allow("*")) == "allow"


def test_a_rule_about_commands_of_all_tools_leaves_tools_without_a_command_alone() -> None:
    assert verdict(Subject(tool="refund", args={}), deny("*", argv=["rm"]), allow("refund")) == "allow"
    assert verdict(Subject(tool="refund", args={}), deny("*", argv=["rm"]), allow("*")) == "allow"


def test_a_deny_of_commands_denies_a_tool_that_does_not_say_which_argument_is_its_command() -> None:
    assert verdict(Subject(tool="run", args={"command": ["ls"]}), deny("run", argv=["rm"]), allow("*")) == "deny"


@every("argv", [[], "git status", ["git", 7], ["git", []], [""], 7])
def test_words_that_can_not_be_meant_are_an_error(argv: Any) -> None:
    with pytest.raises(PolicyInvalid, match="'argv'"):
        allow("run", argv=argv)


# ---- hosts -----------------------------------------------------------------------------------------------------------

SITE = allow("fetch", domains=["example.com", "*.docs.example.com", "bücher.example", "192.0.2.7"])


@every(
    "url",
    [
        "https://example.com",
        "http://example.com/a?b#c",
        "https://EXAMPLE.com./",
        "https://example.com:8443/",
        "https://user:pass@example.com/",
        "https://a.docs.example.com/",
        "https://a.b.docs.example.com/",
        "https://bücher.example/",
        "https://xn--bcher-kva.example/",
        "https://BÜCHER.example./",
        "http://192.0.2.7/",
    ],
)
def test_a_url_of_an_allowed_host_is_allowed_however_it_is_written(url: str) -> None:
    assert verdict(fetch(url), SITE) == "allow"


ELSEWHERE: list[Any] = [
    "https://evil.com/",
    "https://example.com.evil.com/",
    "https://notexample.com/",
    "https://sub.example.com/",
    "https://docs.example.com/",
    "https://evildocs.example.com/",
    "https://example.com@evil.com/",
    "https://example.com:443@evil.com/",
    "https://example.com%40evil.com/",
    "https://example.com\\@evil.com/",
    "https://evil.com\\@example.com/",
    "https://a@evil.com@example.com/",
    "https://a@evil.com\\@example.com/",
    "https://a@example.com\\@evil.com/",
    "https://evil.com#@example.com/",
    "https://evil.com?@example.com/",
    "https://evil.com/@example.com/",
    "https://example.com\0.evil.com/",
    "https://evil.com\n.docs.example.com/",
    "https://example.com..",
    "https:example.com",
    "//example.com/",
    "example.com",
    "ftp://example.com/",
    "file:///etc/passwd",
    "javascript:alert(1)//example.com",
    "http://3221225991/",
    "http://0300.0.2.7/",
    "http://192.0.2.8/",
    "http://[::ffff:192.0.2.7]/",
    "",
    None,
    ["https://example.com/"],
]


@every("url", ELSEWHERE, ids=repr)
def test_no_other_url_is_allowed_by_the_hosts(url: Any) -> None:
    assert verdict(fetch(url), SITE) == "deny"


@pytest.mark.parametrize("url", ["https://a@b@evil.com/", "nonsense", None, 7])
def test_a_url_that_nobody_can_read_is_met_by_every_deny_of_hosts(url: Any) -> None:
    assert verdict(fetch(url), deny("web", domains=["evil.com"]), allow("*")) == "deny"


def test_a_deny_of_a_host_leaves_the_others_alone() -> None:
    assert verdict(fetch("https://example.com/"), deny("web", domains=["evil.com"]), allow("*")) == "allow"


@every(
    "domain",
    [
        "https://example.com",
        "example.com:443",
        "example.com/a",
        "*",
        "*.",
        "a.*.com",
        "*.192.0.2.7",
        "*.2.7",
        "*.7",
        "*.[::1]",
        "",
        7,
    ],
)
def test_what_is_no_host_is_an_error(domain: Any) -> None:
    with pytest.raises(PolicyInvalid, match="'domains'"):
        allow("fetch", domains=[domain])


# ---- examples --------------------------------------------------------------------------------------------------------


def test_a_rule_that_says_what_its_examples_say_is_made() -> None:
    allow("run", argv=["git", "status"], matches=[["git", "status", "-s"]], never=[["git", "push"], "git status; rm x"])
    allow("fetch", domains=["*.example.com"], matches=["https://a.example.com/"], never=["https://example.com/"])
    ask("refund", when={"cents": {"above": 5000}}, matches=[{"cents": 9000}, {}], never=[{"cents": 900}])
    ask("refund", when=lambda call: call.args["cents"] > 5000, matches=[{"cents": 9000}], never=[{"cents": 900}])


CONTRARY: list[tuple[str, dict[str, Any]]] = [
    ("matches", {"argv": ["git", "status"], "matches": [["git", "push"]]}),
    ("matches", {"argv": ["git", "status"], "matches": ["git status"]}),
    ("never", {"argv": ["git"], "never": [["git", "push"]]}),
    ("matches", {"domains": ["*.example.com"], "matches": ["https://example.com/"]}),
    ("never", {"domains": ["*.example.com"], "never": ["https://a.example.com/"]}),
    ("matches", {"when": {"cents": {"below": 5}}, "matches": [{"cents": 9}]}),
    ("never", {"when": bool, "never": [{"cents": 9}]}),
]


@every(("key", "given"), CONTRARY)
def test_an_example_about_which_the_rule_says_the_opposite_is_an_error(key: str, given: dict[str, Any]) -> None:
    with pytest.raises(PolicyInvalid, match=rf"'{key}': .* (is|is not) covered by the rule"):
        allow("run", **given)


def test_an_example_on_which_the_predicate_fails_is_an_error() -> None:
    with pytest.raises(PolicyInvalid, match=r"'never': .*KeyError"):
        allow("refund", when=lambda call: call.args["cents"] > 5, never=[{}])


POINTLESS: list[dict[str, Any]] = [
    {"matches": [{}]},
    {"argv": ["a"], "when": {"x": {"above": 1}}, "matches": [["a"]]},
    {"argv": ["a"], "matches": [{"command": ["a"]}]},
    {"domains": ["a.b"], "matches": [["https://a.b"]]},
    {"when": {"x": {"above": 1}}, "matches": ["x"]},
    {"argv": ["a"], "matches": "a"},
    {"argv": ["a"], "matches": 7},
]


@every("given", POINTLESS)
def test_examples_that_say_nothing_about_the_rule_are_an_error(given: dict[str, Any]) -> None:
    with pytest.raises(PolicyInvalid, match="'matches'"):
        allow("run", **given)
