"""The decisions of the file tools: paths, globs, protected names, pages, edits, matching lines."""

from __future__ import annotations

import fnmatch
import re
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.every import every

from holdfast.errors import InvalidArgument, InvalidNumber
from holdfast.toolkits.files import PROTECTED_NAMES, FileLimits, NotText, PathRefused, PatternInvalid
from holdfast.toolkits.files.edits import EditRefusal, Replacement, replace_text, was_edited
from holdfast.toolkits.files.pages import FilePage, cut_page, decode_text, render_file_page
from holdfast.toolkits.files.regex_worker import compile_pattern, cut_line, find_lines
from holdfast.toolkits.files.search import read_glob
from holdfast.toolkits.files.workspace import (
    fold_name,
    make_protection,
    match_name,
    parse_file_path,
    parse_path,
    printable_name,
)

# ---- paths -----------------------------------------------------------------------------------------------------------


@every(
    ("given", "parts"),
    [
        (".", ()),
        ("", ()),
        ("./a//b/./c.txt", ("a", "b", "c.txt")),
        ("a/", ("a",)),
        ("...", ("...",)),
        ("x~", ("x~",)),
        ("naïve/日本.md", ("naïve", "日本.md")),
    ],
)
def test_a_path_is_read_from_the_workspace_on(given: str, parts: tuple[str, ...]) -> None:
    assert parse_path(given).parts == parts


@every(
    ("given", "why"),
    [
        ("/etc/passwd", "absolute"),
        ("//etc/passwd", "absolute"),
        ("..", "upwards"),
        ("a/../../b", "upwards"),
        ("a/..", "upwards"),
        ("..\\x", "backslash"),
        ("~/x", "home"),
        ("a\0b", "control"),
        ("a\nb", "control"),
        ("a\ud800", "surrogate"),
        ("x" * 256, "255 bytes"),
        ("é" * 128, "255 bytes"),
        ("a/" * 65, "64 directories"),
        ("a" * 5000, "4,000 bytes"),
    ],
)
def test_a_path_that_names_nothing_here_is_refused_with_the_reason(given: str, why: str) -> None:
    with pytest.raises(PathRefused, match=why):
        parse_path(given)


@pytest.mark.parametrize("given", [".", "", "./", "a/", "a/."])
def test_a_path_of_a_directory_is_not_the_path_of_a_file(given: str) -> None:
    with pytest.raises(PathRefused):
        parse_file_path(given)


def test_a_name_that_can_not_be_printed_is_shown_escaped() -> None:
    assert printable_name(b"a\nb\xff\xe2\x80\xae") == "a\\nb\\xff\\u202e"


# ---- globs -----------------------------------------------------------------------------------------------------------


@every(
    ("glob", "path", "fits"),
    [
        ("*.py", "a.py", True),
        ("*.py", "src/a.py", True),
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/b/a.py", False),
        ("src/**/*.py", "src/a.py", True),
        ("src/**/*.py", "src/b/c/a.py", True),
        ("**/b/*", "x/y/b/z", True),
        ("**", "x/y", True),
        ("*.{ts,tsx}", "a.tsx", True),
        ("*.{ts,tsx}", "a.js", False),
        ("{a,b/{c,d}}/*", "b/d/x", True),
        ("[a-c]?.md", "b1.md", True),
        ("[!a-c].md", "b.md", False),
        ("[^a-c].md", "b.md", False),
        ("[^a-c].md", "d.md", True),
        ("a[^b", "a[^b", True),
        ("a]b", "a]b", True),
        ("[]x].md", "].md", True),
        ("a[b", "a[b", True),
        ("./src/*", "src/a", True),
        ("A*", "a", False),
    ],
)
def test_a_glob_matches_what_people_expect(glob: str, path: str, *, fits: bool) -> None:
    assert read_glob(glob)(path.split("/")) is fits


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=10))
def test_a_glob_of_one_name_agrees_with_the_standard_library(pattern: str, name: str) -> None:
    assert match_name(name, pattern) == fnmatch.fnmatchcase(name, pattern)


def test_a_glob_with_many_stars_takes_no_time() -> None:
    began = time.process_time()
    assert not read_glob("*a" * 100 + "b")(["a" * 255])
    assert not read_glob("**/a/" * 60 + "b")(["a"] * 64)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("glob", ["x" * 501, "/etc/*", "../*", "{a,b}" * 7])
def test_a_glob_that_is_too_much_or_leads_out_is_refused(glob: str) -> None:
    with pytest.raises(PatternInvalid):
        read_glob(glob)


# ---- protected names -------------------------------------------------------------------------------------------------


@every("rule", PROTECTED_NAMES)
def test_every_rule_holds_at_every_depth_and_below(rule: str) -> None:
    guard = make_protection()
    path = rule.replace("*", "x").split("/")
    assert guard.rule_for(path)
    assert guard.rule_for(["deep", "er", *path])
    assert guard.rule_for([*path, "below", "it"])
    assert guard.rule_for([part.upper() for part in path])


@every(
    "name",
    [
        ".git",
        ".GIT",
        ".Git ",
        ".git.",
        ".git. . ",
        ".g\u200cit",
        ".gi\ufeff\u2060t",
        ".git\ufe0f",
        ".g\u034fit",
        "\uff0e\uff47\uff49\uff54",
        ".git::$INDEX_ALLOCATION",
        "GIT~1",
        "bare.git",
    ],
)
def test_a_name_that_some_file_system_takes_for_git_is_protected(name: str) -> None:
    assert make_protection().rule_for([name, "config"])


@pytest.mark.parametrize("name", ["git", ".gitignore", ".gitattributes", ".github/ISSUE_TEMPLATE.md", "a/header"])
def test_ordinary_names_are_not_protected(name: str) -> None:
    assert make_protection().rule_for(name.split("/")) is None


def test_the_host_can_protect_more_and_less() -> None:
    guard = make_protection(protect=("deploy/keys*", ".env"), unprotect=("AGENTS.md",))
    assert guard.rule_for(["x", "Deploy", "keys.json"])
    assert guard.rule_for([".ENV"])
    assert guard.rule_for(["AGENTS.md"]) is None


@pytest.mark.parametrize("names", ["AGENTS.md", ("",), ("a//b",), (7,)])
def test_names_to_protect_that_mean_nothing_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgument):
        make_protection(protect=names)


def test_taking_away_a_rule_that_is_not_there_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match="unprotect"):
        make_protection(unprotect=("AGENT.md",))


def test_a_rule_counts_the_directory_in_which_the_workspace_is() -> None:
    guard = make_protection(above=("/", "home", "me", ".config"))
    assert guard.rule_for(["fish", "config.fish"])


def test_a_workspace_that_is_inside_of_a_protected_directory_is_the_choice_of_the_host() -> None:
    guard = make_protection(above=("/", "repo", ".claude", "trees", "one"))
    assert guard.rule_for(["src", "a.py"]) is None


@given(st.text(max_size=20))
def test_folding_a_name_twice_changes_nothing_more(name: str) -> None:
    assert fold_name(fold_name(name)) == fold_name(name)


# ---- pages -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.text("ab\n", max_size=6), max_size=8), st.integers(1, 12), st.integers(1, 6))
def test_a_page_has_the_lines_that_it_says_however_the_text_was_cut(chunks: list[str], first: int, count: int) -> None:
    lines = "".join(chunks).split("\n")
    if lines[-1] == "":
        lines.pop()
    page = cut_page(chunks, first, count, line_chars=100, room=10_000)
    assert (list(page.lines), page.total) == (lines[first - 1 : first - 1 + count], len(lines))


def test_a_page_ends_where_its_room_ends_but_has_a_line_at_least() -> None:
    page = cut_page(["aaaa\nbbbb\ncccc\n"], 1, 10, line_chars=100, room=10)
    assert (page.lines, page.total) == (("aaaa", "bbbb"), 3)
    assert cut_page(["a" * 50 + "\nb\n"], 1, 10, line_chars=100, room=10).lines == ("a" * 50,)


def test_a_long_line_is_cut_and_says_how_much_is_missing() -> None:
    page = cut_page(["x" * 60, "x" * 60 + "\ny"], 1, 5, line_chars=100, room=1_000)
    assert page.lines == ("x" * 100 + "... (20 more characters)", "y")


def test_a_page_says_where_to_go_on() -> None:
    assert (
        render_file_page(FilePage(2, ("b", "c"), 9)) == "     2\tb\n     3\tc\n(Lines 2 to 3 of 9. Go on with start=4.)"
    )


def test_text_that_is_split_inside_of_a_character_is_whole_again() -> None:
    data = "aé€😀z".encode()
    for at in range(len(data)):
        assert "".join(decode_text([data[:at], data[at:]], "x")) == "aé€😀z"


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([b"ab\xff"], "byte 2 is 0xff"),
        ([b"ab\xe2", b"\x82", b"x"], "byte 2 is 0xe2"),
        ([b"abc", b"d\0"], "byte 4 is 0x00"),
        ([b"ab", b"c\xe2\x82"], "byte 3 is 0xe2"),
        ([b"\xff\xfea\0"], "UTF-16"),
    ],
)
def test_bytes_that_are_no_text_are_told_with_their_place(pieces: list[bytes], why: str) -> None:
    with pytest.raises(NotText, match=why):
        list(decode_text(pieces, "x"))


# ---- edits -----------------------------------------------------------------------------------------------------------


def _refusal(text: str, old: str, new: str, *, every: bool = False) -> str:
    with pytest.raises(EditRefusal) as refused:
        replace_text(text, old, new, every=every)
    return str(refused.value)


def test_the_only_place_is_replaced() -> None:
    assert replace_text("a\nb\nc\n", "b", "x\ny", every=False) == Replacement("a\nx\ny\nc\n", 1, 2)


def test_every_place_is_replaced_when_that_is_asked() -> None:
    assert replace_text("a a a", "a", "b", every=True) == Replacement("b b b", 3, 1)


def test_a_text_that_is_there_twice_is_not_replaced_and_the_lines_are_told() -> None:
    assert "line 1, 3" in _refusal("x\ny\nx\n", "x", "z")


def test_places_that_overlap_count_as_several() -> None:
    assert "several times" in _refusal("aaa", "aa", "b")


def test_a_text_that_differs_in_spaces_is_pointed_to() -> None:
    assert "Line 2 is like" in _refusal("a\n    if x:  \n", "\tif x:\n", "z")


@pytest.mark.parametrize(("old", "new"), [("", "x"), ("a", "a")])
def test_an_edit_that_says_nothing_is_refused(old: str, new: str) -> None:
    _refusal("a", old, new)


def test_lines_that_end_in_cr_lf_keep_their_ends() -> None:
    assert replace_text("a\r\nb\r\n", "a\nb", "c\nd", every=False) == Replacement("c\r\nd\r\n", 1, 1)


@every(
    ("text", "old", "new", "found"),
    [
        ("has new", "old", "new", True),
        ("has old", "old", "new", False),
        ("neither", "old", "new", False),
        ("old new", "old", "new", None),
        ("gone", "old", "", True),
        ("old", "old", "", None),
        ("x1", "x", "x1", None),
    ],
)
def test_what_a_text_says_about_an_interrupted_edit(text: str, old: str, new: str, *, found: bool | None) -> None:
    assert was_edited(text, old, new) is found


@given(st.text("ab\n", max_size=12), st.text("ab", min_size=1, max_size=3), st.text("ab", max_size=3))
def test_an_edit_that_was_made_is_never_taken_for_one_that_was_not(text: str, old: str, new: str) -> None:
    with suppress(EditRefusal):
        done = replace_text(text, old, new, every=False)
        assert was_edited(done.text, old, new) is not False
        assert was_edited(text, old, new) is not True


# ---- matching --------------------------------------------------------------------------------------------------------


def test_lines_are_matched_one_by_one_with_those_around_them() -> None:
    found = find_lines("a\nhit\r\nb\nc\n", re.compile("hit$"), context=1, room=5, chars=80)
    assert found == {"lines": [[1, False, "a"], [2, True, "hit"], [3, False, "b"]], "hits": 1, "more": False}


def test_more_matches_than_there_is_room_for_are_told() -> None:
    found = find_lines("x\nx\nx\n", re.compile("x"), context=0, room=2, chars=80)
    assert (found["hits"], found["more"]) == (2, True)


def test_a_long_line_is_shown_around_its_match() -> None:
    line = "a" * 500 + "HIT" + "b" * 500
    shown = cut_line(line, (500, 503), 80)
    assert "HIT" in shown
    assert len(shown) == 86


def test_a_pattern_that_is_none_says_where() -> None:
    assert compile_pattern("a(b", ignore_case=False) == "missing ), unterminated subpattern at character 2"


@pytest.mark.parametrize("bad", [{"entries": 0}, {"seconds": float("inf")}, {"matches": 1.5}, {"read_bytes": True}])
def test_a_limit_that_can_not_be_meant_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(InvalidNumber):
        FileLimits(**bad)
