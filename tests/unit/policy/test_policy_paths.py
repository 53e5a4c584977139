"""`within`: a path must really lead into a folder, whatever it is called and whatever links are on the way."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.policy.rules import Policy, Subject, allow, ask, deny, within

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A folder `proj` with a file, a folder and links, and beside it what it must not lead to."""
    project = tmp_path / "proj"
    (project / "sub").mkdir(parents=True)
    (project / "a.txt").touch()
    (tmp_path / "proj-evil").mkdir()
    (tmp_path / "secret.txt").touch()
    (project / "out").symlink_to(tmp_path)
    (project / "leak.txt").symlink_to(tmp_path / "secret.txt")
    (project / "dangling").symlink_to(tmp_path / "not-yet")
    (project / "inner").symlink_to("sub")
    (project / "loop").symlink_to("loop")
    return tmp_path


def read(path: Any, base: Path | None = None, **more: Any) -> Subject:
    place = None if base is None else str(base)
    return Subject(tool="read_file", family="files", args={"path": path, **more}, paths=("path",), base=place)


def verdict(subject: Subject, *rules: Any) -> str:
    return Policy((*rules, allow("*"))).decide(subject).verdict


@pytest.mark.parametrize("path", ["a.txt", ".", "sub/new/deep.txt", "sub/../a.txt", "inner/x", "./a.txt", "sub//x"])
def test_a_path_into_the_folder_is_left_to_the_rules(top: Path, path: str) -> None:
    assert verdict(read(path, top / "proj"), within(top / "proj")) == "allow"


@pytest.mark.parametrize(
    "path",
    [
        *("..", "../secret.txt", "../proj-evil/x", "sub/../../secret.txt", "out/secret.txt", "leak.txt", "dangling"),
        *("inner/../../secret.txt", "missing/../a.txt", "loop", "/etc/passwd", "/", "~/x", "~root", "a\0b", "\ud800"),
        *("/proc/self/root/etc/passwd", "out/proj/../secret.txt"),
    ],
)
def test_a_path_that_leads_elsewhere_is_denied(top: Path, path: str) -> None:
    assert verdict(read(path, top / "proj"), within(top / "proj")) == "deny"


def test_an_absolute_path_is_taken_as_it_is(top: Path) -> None:
    assert verdict(read(str(top / "proj" / "a.txt"), top), within(top / "proj")) == "allow"
    assert verdict(read(str(top / "proj-evil"), top / "proj"), within(top / "proj")) == "deny"


def test_a_path_that_leads_out_through_a_link_and_in_again_is_inside(top: Path) -> None:
    assert verdict(read("out/proj/a.txt", top / "proj"), within(top / "proj")) == "allow"


def test_a_folder_may_itself_be_reached_by_a_link(top: Path) -> None:
    assert verdict(read(str(top / "proj" / "sub" / "x")), within(top / "proj" / "inner")) == "allow"


def test_one_of_several_folders_is_enough(top: Path) -> None:
    assert verdict(read("x", top / "proj-evil"), within(top / "proj", top / "proj-evil")) == "allow"


def test_two_constraints_must_both_hold(top: Path) -> None:
    rules = [within(top / "proj"), within(top / "proj" / "sub")]
    assert [verdict(read(path, top / "proj"), *rules) for path in ("a.txt", "sub/x")] == ["deny", "allow"]


def test_without_a_base_paths_begin_where_the_process_is(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(top / "proj")
    assert [verdict(read(path), within(top / "proj")) for path in ("a.txt", "../secret.txt")] == ["allow", "deny"]


def test_a_folder_stays_where_it_was_when_the_rule_was_made(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(top)
    rule = within("proj/")
    monkeypatch.chdir(top / "proj-evil")
    assert verdict(read("a.txt", top / "proj"), rule) == "allow"


def test_a_link_that_is_put_there_later_is_seen(top: Path) -> None:
    rule = within(top / "proj")
    (top / "proj" / "later").symlink_to(top)
    assert verdict(read("later/secret.txt", top / "proj"), rule) == "deny"


@pytest.mark.parametrize("path", [None, "", 7, [], ["a.txt", None], {"path": "a.txt"}])
def test_a_path_that_is_missing_is_denied(top: Path, path: Any) -> None:
    assert verdict(read(path, top / "proj"), within(top / "proj")) == "deny"


def test_all_paths_of_a_list_must_lead_into_the_folder(top: Path) -> None:
    found = [verdict(read(paths, top / "proj"), within(top / "proj")) for paths in (["a.txt"], ["a.txt", "../x"])]
    assert found == ["allow", "deny"]


def test_all_paths_of_a_call_must_lead_into_the_folder(top: Path) -> None:
    args = {"source": "a.txt", "target": "../b.txt"}
    subject = Subject(tool="move", args=args, paths=("source", "target"), base=str(top / "proj"))
    decision = Policy((within(top / "proj"), allow("*"))).decide(subject)
    assert decision.verdict == "deny"
    assert "'target'" in decision.why


def test_a_constraint_is_no_permission(top: Path) -> None:
    assert Policy((within(top / "proj"), ask("shell"))).decide(read("a.txt", top / "proj")).verdict == "deny"


def test_a_constraint_denies_what_a_closer_rule_allows(top: Path) -> None:
    assert verdict(read("../x", top / "proj"), allow("files.read_file"), within(top / "proj")) == "deny"


def test_the_rule_that_denies_is_named_rather_than_the_constraint(top: Path) -> None:
    decision = Policy((deny("*"), within(top / "proj"))).decide(read("../x", top / "proj"))
    assert decision.rule == "1: deny *"


def test_a_tool_without_paths_is_not_touched_by_a_constraint_for_all_tools(top: Path) -> None:
    assert verdict(Subject(tool="refund", args={}), within(top / "proj")) == "allow"


def test_a_tool_without_paths_is_denied_by_a_constraint_that_names_it(top: Path) -> None:
    assert verdict(Subject(tool="refund", args={}), within(top / "proj", tools="refund")) == "deny"


def test_a_constraint_for_other_tools_does_not_touch_a_call(top: Path) -> None:
    assert verdict(read("../x", top / "proj"), within(top / "proj", tools="web")) == "allow"


def test_a_condition_can_ask_that_an_argument_is_a_path_in_a_folder(top: Path) -> None:
    rule = allow("read_file", when={"path": {"within": str(top / "proj")}})
    found = [Policy((rule,)).decide(read(path, top / "proj")).verdict for path in ("a.txt", "../x", "leak.txt")]
    assert found == ["allow", "deny", "deny"]


@pytest.mark.parametrize("rule", [ask, deny])
@pytest.mark.parametrize(
    "path", [["../x", "a.txt"], ["a.txt", "../x"], "loop", "missing/../x", "~/x", ["../x", "loop"], ["../x", 5], []]
)
def test_a_refusal_holds_where_any_path_is_inside_or_can_not_be_resolved(top: Path, rule: Any, path: Any) -> None:
    refusal = rule("read_file", when={"path": {"within": str(top / "proj")}})
    assert verdict(read(path, top / "proj"), refusal) == ("ask" if rule is ask else "deny")


@pytest.mark.parametrize("path", ["../x", ["../x", "/etc/passwd"], "leak.txt"])
def test_a_refusal_leaves_paths_alone_that_all_lead_elsewhere(top: Path, path: Any) -> None:
    assert verdict(read(path, top / "proj"), deny("read_file", when={"path": {"within": str(top / "proj")}})) == "allow"


@pytest.mark.parametrize("path", [["a.txt", "../x"], ["a.txt", "loop"]])
def test_a_permission_covers_no_list_with_a_path_elsewhere(top: Path, path: Any) -> None:
    rule = allow("read_file", when={"path": {"within": str(top / "proj")}})
    assert Policy((rule,)).decide(read(path, top / "proj")).verdict == "deny"


def test_deciding_does_not_look_at_the_disk_where_no_path_is_asked_about() -> None:
    def never(path: str, base: str | None) -> str:
        raise AssertionError(path, base)

    assert Policy((allow("*"),)).decide(read("a.txt"), real=never).verdict == "allow"


def test_a_working_folder_that_is_gone_denies(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = top / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(FileNotFoundError):
        os.getcwd()  # noqa: PTH109
    assert verdict(read("a.txt"), within(top / "proj")) == "deny"
