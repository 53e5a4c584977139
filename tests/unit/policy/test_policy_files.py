"""Policy files: they say what Python says, and an error names the file, the rule and the key."""

from __future__ import annotations

import os
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidArgument
from holdfast.errors.caller import PolicyInvalid, PolicyUnsafe, PolicyUnwritable
from holdfast.policy.files import MAX_FILE, parse_policy
from holdfast.policy.rules import Policy, allow, ask, deny, narrow, within

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = """
taint = false

[[rule]]
allow = "files.read*"

[[rule]]
ask = "refund"
when = {cents = {above = 5000, below = 1e9}, "odd key" = {one_of = ["a", 1, true]}}
expires = 3600
name = "big refunds"

[[rule]]
deny = "run"
argv = ["git", ["push", "fetch"]]
matches = [["git", "push"], "anything in a shell"]
never = [["git", "status"]]
reason = "Not from here."

[[rule]]
allow = "web"
domains = ["example.com", "*.example.org"]

[[rule]]
within = ["workspace", "/srv/data"]
tools = "files"

[[rule]]
allow = "write_file"
when = {path = {within = "out"}}
"""


def written(tmp_path: Path, text: str | bytes) -> Path:
    place = tmp_path / "policy.toml"
    place.write_bytes(text if isinstance(text, bytes) else text.encode())
    return place


def test_a_file_says_what_python_says(tmp_path: Path) -> None:
    assert Policy.load(written(tmp_path, WHOLE)) == Policy(
        (
            allow("files.read*"),
            ask(
                "refund",
                when={"cents": {"above": 5000, "below": 1e9}, "odd key": {"one_of": ["a", 1, True]}},
                expires=3600,
                name="big refunds",
            ),
            deny(
                "run",
                argv=["git", ["push", "fetch"]],
                matches=[["git", "push"], "anything in a shell"],
                never=[["git", "status"]],
                reason="Not from here.",
            ),
            allow("web", domains=["example.com", "*.example.org"]),
            within(tmp_path / "workspace", "/srv/data", tools="files"),
            allow("write_file", when={"path": {"within": str(tmp_path / "out")}}),
        ),
        taint=False,
    )


def test_an_empty_file_is_a_policy_without_rules(tmp_path: Path) -> None:
    assert Policy.load(written(tmp_path, "")) == Policy()


def test_folders_begin_at_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = written(tmp_path, '[[rule]]\nwithin = "../other"')
    monkeypatch.chdir("/")
    assert Policy.load(place) == Policy((within(tmp_path.parent / "other"),))


def test_an_agent_takes_a_policy_its_rules_or_its_file(tmp_path: Path) -> None:
    policy = Policy((allow("a"),))
    place = written(tmp_path, '[[rule]]\nallow = "a"')
    given = [policy, [allow("a")], (allow("a"),), place, str(place)]
    assert [Policy.of(one) for one in given] == [policy] * 5
    assert Policy.of(None) is None


# ---- writing ---------------------------------------------------------------------------------------------------------


def test_what_is_dumped_means_the_same(tmp_path: Path) -> None:
    policy = Policy.load(written(tmp_path, WHOLE))
    assert Policy.load(written(tmp_path, policy.dumps())) == policy


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
scalars = st.one_of(texts, st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False))


@given(texts, st.lists(texts, min_size=1, max_size=3), texts, scalars, texts)
def test_any_text_and_number_of_a_rule_comes_back_as_it_was(
    reason: str, words: list[str], argument: str, value: Any, name: str
) -> None:
    policy = Policy((deny("run", when={argument: {"equals": value}}, argv=words, reason=reason, name=name),))
    assert parse_policy(policy.dumps().encode(), "policy.toml", "/") == policy


def test_a_predicate_can_not_be_dumped() -> None:
    with pytest.raises(PolicyUnwritable, match="its predicate is Python") as raised:
        Policy((allow("a"), ask("refund", when=lambda call: call.args["cents"] > 5))).dumps()
    assert raised.value.rule == "ask refund when <lambda>"


def test_a_policy_within_another_can_not_be_dumped() -> None:
    with pytest.raises(PolicyUnwritable, match="parent"):
        narrow(Policy(), Policy()).dumps()


def test_an_example_that_toml_has_no_word_for_can_not_be_dumped() -> None:
    rule = ask("refund", when={"cents": {"above": 5}}, matches=[{"cents": None}])
    with pytest.raises(PolicyUnwritable, match="NoneType"):
        Policy((rule,)).dumps()


def test_what_is_dumped_is_made_to_be_read() -> None:
    dumped = Policy((ask("refund", when={"cents": {"above": 5000}}, expires=60), allow("*"))).dumps()
    assert dumped == (
        '[[rule]]\nask = "refund"\nwhen = {cents = {above = 5000}}\nexpires = 60\n\n[[rule]]\nallow = "*"\n'
    )
    assert len(tomllib.loads(dumped)["rule"]) == 2


# ---- what can't be meant ---------------------------------------------------------------------------------------------

FIRST = '[[rule]]\nallow = "a"\n\n[[rule]]\n'


@pytest.mark.parametrize(
    ("text", "rule", "key"),
    [
        ("[[rules]]", None, "rules"),
        ('rule = "allow"', None, "rule"),
        ("taint = 1", None, "taint"),
        ("rule = [1]", 1, None),
        ("[[rule]]\n", 1, None),
        (FIRST + 'allow = "a"\ndeny = "b"', 2, None),
        (FIRST + "allow = 7", 2, "allow"),
        (FIRST + 'deny = "a b"', 2, "deny"),
        (FIRST + 'allow = "a"\nexpires = 5', 2, "expires"),
        (FIRST + 'allow = "a"\nwhere = {}', 2, "where"),
        (FIRST + 'ask = "a"\nexpires = "1h"', 2, "expires"),
        (FIRST + 'ask = "a"\nexpires = 2026-01-01', 2, "expires"),
        (FIRST + 'ask = "a"\nwhen = "cents > 5"', 2, "when"),
        (FIRST + 'ask = "a"\nwhen = {cents = 5}', 2, "when.cents"),
        (FIRST + 'ask = "a"\nwhen = {cents = {over = 5}}', 2, "when.cents"),
        (FIRST + 'ask = "a"\nwhen = {cents = {above = "5"}}', 2, "when.cents.above"),
        (FIRST + 'ask = "a"\nwhen = {day = {equals = 2026-01-01}}', 2, "when.day.equals"),
        (FIRST + 'ask = "a"\nwhen = {path = {within = 5}}', 2, "when.path.within"),
        (FIRST + 'allow = "a"\nargv = "git status"', 2, "argv"),
        (FIRST + 'allow = "a"\nargv = ["git"]\nnever = [["git", "push"]]', 2, "never"),
        (FIRST + 'allow = "a"\ndomains = ["https://a.b"]', 2, "domains"),
        (FIRST + 'deny = "a"\nreason = 5', 2, "reason"),
        (FIRST + 'allow = "a"\nname = ""', 2, "name"),
        (FIRST + "within = []", 2, "within"),
        (FIRST + "within = 5", 2, "within"),
        (FIRST + 'within = "~/x"', 2, "within"),
        (FIRST + 'within = "x"\ntools = "a b"', 2, "tools"),
        (FIRST + 'within = "x"\nwhen = {}', 2, "when"),
    ],
)
def test_an_error_names_the_file_the_rule_and_the_key(tmp_path: Path, text: str, rule: int | None, key: str) -> None:
    place = written(tmp_path, text)
    with pytest.raises(PolicyInvalid) as raised:
        Policy.load(place)
    assert (raised.value.file, raised.value.rule, raised.value.key) == (str(place), rule, key)
    assert str(place) in str(raised.value)


@pytest.mark.parametrize("text", ["allow =", b"\xff", "a" * (MAX_FILE + 1), "x = " + "[" * 5000])
def test_what_is_no_toml_is_an_error_that_names_the_file(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(PolicyInvalid, match=r"policy\.toml"):
        Policy.load(written(tmp_path, text))


@pytest.mark.parametrize("name", ["missing.toml", "a\0b", "policy.toml/x"])
def test_a_file_that_can_not_be_read_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(PolicyInvalid, match="it can't be read"):
        Policy.load(tmp_path / name)


def test_what_is_no_path_is_an_error() -> None:
    nothing: Any = {"rule": []}
    with pytest.raises(InvalidArgument, match="a list of rules, a Policy, or the path"):
        Policy.of(nothing)


def test_a_pipe_is_no_policy_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PolicyInvalid, match="it is no file"):
        Policy.load(tmp_path / "pipe")


# ---- who could change it ---------------------------------------------------------------------------------------------


def test_a_file_that_everybody_may_write_is_not_obeyed(tmp_path: Path) -> None:
    place = written(tmp_path, WHOLE)
    place.chmod(0o666)
    with pytest.raises(PolicyUnsafe, match="chmod o-w"):
        Policy.load(place)


@pytest.mark.parametrize("root", [".", "..", "link"])
def test_a_file_in_a_folder_that_it_opens_to_the_agent_is_not_obeyed(tmp_path: Path, root: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(PolicyUnsafe, match="move it out of there"):
        Policy.load(written(tmp_path, f'[[rule]]\nwithin = "{root}"'))
