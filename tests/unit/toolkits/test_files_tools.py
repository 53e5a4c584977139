"""The file tools as a model uses them."""

from __future__ import annotations

import gc
import json
import os
import stat
import threading
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf
from holdfast.errors import HoldfastError, InvalidArgument, InvalidNumber
from holdfast.messages import ToolMessage
from holdfast.testing import ScriptedModel, call, text
from holdfast.toolkits.files import (
    EditMismatch,
    FileFailed,
    FileLimits,
    FileMissing,
    FileTooLarge,
    NotText,
    PathProtected,
    PatternInvalid,
    WrongKind,
    files,
)
from holdfast.toolkits.files.edits import FileChanged, FileWriter
from holdfast.toolkits.files.workspace import Workspace, choose_opener, make_protection, open_by_walk
from holdfast.tools import Bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.tools import AnyTool


class Hands:
    """The tools of one workspace, by name."""

    def __init__(self, tools: tuple[AnyTool, ...]) -> None:
        self.tools = {tool.name: tool for tool in tools}

    def __getattr__(self, name: str) -> Callable[..., str]:
        return self.tools[name]


def _descriptors() -> list[str]:
    gc.collect()  # what tests before have left is not to be closed in the middle of this one
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


@pytest.fixture
def hands(tmp_path: Path) -> Hands:
    return Hands(files(tmp_path))


# ---- as tools --------------------------------------------------------------------------------------------------------


def test_each_tool_says_truthfully_what_it_does(hands: Hands) -> None:
    said = {name: (tool.read_only, tool.idempotent, tool.destructive) for name, tool in hands.tools.items()}
    assert said == {
        "list_files": (True, False, None),
        "read_file": (True, False, None),
        "search_files": (True, False, None),
        "write_file": (False, True, True),
        "edit_file": (False, False, True),
    }


def test_the_schemas_have_nothing_that_a_provider_refuses(hands: Hands) -> None:
    for tool in hands.tools.values():
        written = json.dumps(tool.parameters)
        assert not any(word in written for word in ("anyOf", "oneOf", "allOf", "$ref", "exclusive", 'pattern": "'))
        assert all("description" in schema for schema in tool.parameters["properties"].values())


async def test_an_agent_works_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "plan.md").write_text("# Plan\nstep one\n")
    model = ScriptedModel(
        [
            call("read_file", path="plan.md"),
            call("edit_file", path="plan.md", old="step one", new="step two"),
            call("write_file", path=".git/hooks/pre-commit", content="x"),
            text("Done."),
        ]
    )
    agent = hf.Agent("clerk", model=model, tools=files(tmp_path), policy=[hf.allow("*")])
    async with hf.open(None, agents=[agent]) as runtime:
        session = runtime.session("s", agent=agent)
        outcome = await (await session.send("Go on.")).outcome(timeout=10)
        history = await session.history()
    results = [result for message in history if isinstance(message, ToolMessage) for result in message.results]
    assert (outcome.text, [result.state for result in results]) == ("Done.", ["ok", "ok", "error"])
    assert str(results[-1].content).startswith("PathProtected: '.git/hooks/pre-commit' is refused")
    assert (tmp_path / "plan.md").read_text() == "# Plan\nstep two\n"


@pytest.mark.parametrize("root", ["missing", "file.txt"])
def test_a_workspace_that_is_no_directory_is_refused_when_it_is_given(tmp_path: Path, root: str) -> None:
    (tmp_path / "file.txt").touch()
    with pytest.raises(InvalidArgument, match="root"):
        files(tmp_path / root)


def test_a_workspace_is_closed_with_its_tools(tmp_path: Path) -> None:
    before = len(_descriptors())
    workspace = Workspace(tmp_path)
    assert len(_descriptors()) == before + 1
    del workspace
    assert len(_descriptors()) == before


def test_no_descriptor_is_left_open(hands: Hands, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("write_file", {"path": "a/b/c.txt", "content": "x"}),
        ("edit_file", {"path": "a/b/c.txt", "old": "y", "new": "z"}),
        ("read_file", {"path": "pipe"}),
        ("list_files", {"recursive": True}),
        ("search_files", {"pattern": "x"}),
        ("search_files", {"pattern": "("}),
    ]
    before = _descriptors()
    for name, arguments in calls:
        try:
            hands.tools[name](**arguments)
        except HoldfastError:
            continue
    assert _descriptors() == before


# ---- list ------------------------------------------------------------------------------------------------------------


def _tree(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def test_a_list_is_sorted_and_tells_what_is_what(hands: Hands, tmp_path: Path) -> None:
    _tree(tmp_path, "b.txt", "a/c.txt")
    assert hands.list_files() == "a/\nb.txt (5 bytes)"


def test_a_recursive_list_leaves_out_what_nobody_wants_unless_it_begins_there(hands: Hands, tmp_path: Path) -> None:
    _tree(tmp_path, "src/a.py", ".git/config", "node_modules/x/y.js")
    assert hands.list_files(recursive=True) == ".git/\nnode_modules/\nsrc/\nsrc/a.py (8 bytes)"
    assert hands.list_files(path=".git") == ".git/config (11 bytes)"


def test_a_glob_with_a_slash_looks_below(hands: Hands, tmp_path: Path) -> None:
    _tree(tmp_path, "src/a.py", "src/b/c.py", "src/b/d.js")
    assert hands.list_files(glob="src/**/*.py") == "src/a.py (8 bytes)\nsrc/b/c.py (10 bytes)"
    assert hands.list_files(path="src", glob="*.py") == "src/a.py (8 bytes)"


def test_a_list_that_is_too_long_says_so(tmp_path: Path) -> None:
    _tree(tmp_path, "a", "b", "c")
    said = Hands(files(tmp_path, limits=FileLimits(entries=2))).list_files()
    assert said == "a (1 bytes)\nb (1 bytes)\n(There are more than these 2; narrow it with path or glob.)"


def test_a_list_that_is_just_as_long_as_it_may_be_says_nothing(tmp_path: Path) -> None:
    _tree(tmp_path, "a", "b")
    assert Hands(files(tmp_path, limits=FileLimits(entries=2))).list_files() == "a (1 bytes)\nb (1 bytes)"


def test_an_empty_directory_is_told(hands: Hands) -> None:
    assert hands.list_files() == "(the directory is empty)"
    assert hands.list_files(glob="*.x") == "(nothing matches)"


@pytest.mark.parametrize(("path", "error"), [("nope", FileMissing), ("a.txt", WrongKind), ("a.txt/b", WrongKind)])
def test_what_is_no_directory_is_told(hands: Hands, tmp_path: Path, path: str, error: type[Exception]) -> None:
    _tree(tmp_path, "a.txt")
    with pytest.raises(error):
        hands.list_files(path=path)


# ---- read ------------------------------------------------------------------------------------------------------------


def test_a_file_is_read_with_numbered_lines(hands: Hands, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffeins\r\nzwei\nthrée".encode())
    assert hands.read_file(path="a.txt") == "     1\teins\n     2\tzwei\n     3\tthrée"


def test_a_file_is_read_in_pages_to_its_end(hands: Hands, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 6)))
    assert hands.read_file(path="a.txt", start=2, lines=2).endswith("(Lines 2 to 3 of 5. Go on with start=4.)")
    assert hands.read_file(path="a.txt", start=4, lines=9) == "     4\tline 4\n     5\tline 5\n(Lines 4 to 5 of 5.)"


def test_an_empty_file_is_told(hands: Hands, tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    assert hands.read_file(path="a.txt") == "(the file is empty)"


def test_no_answer_has_more_text_than_it_may(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 5_000_000 + "\n" + "y\n" * 5_000)
    hands = Hands(files(tmp_path, limits=FileLimits(page_chars=1_000, line_chars=100)))
    assert len(hands.read_file(path="a.txt")) < 12_000
    assert len(hands.read_file(path="a.txt", start=2, lines=100_000)) < 12_000


@pytest.mark.parametrize("bad", [{"start": 0}, {"start": 9}, {"lines": 0}])
def test_a_page_that_is_not_there_is_told(hands: Hands, tmp_path: Path, bad: dict[str, int]) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(InvalidNumber):
        hands.read_file(path="a.txt", **bad)


def test_a_file_that_is_no_text_is_told_as_such(hands: Hands, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    with pytest.raises(NotText, match="byte 0 is 0x89"):
        hands.read_file(path="a.png")
    with pytest.raises(NotText):
        hands.edit_file(path="a.png", old="P", new="Q")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("12345678")
    with pytest.raises(FileTooLarge, match="search_files"):
        Hands(files(tmp_path, limits=FileLimits(read_bytes=7))).read_file(path="a.txt")


# ---- write -----------------------------------------------------------------------------------------------------------


def test_a_file_is_created_with_its_directories(hands: Hands, tmp_path: Path) -> None:
    assert hands.write_file(path="a/b/c.txt", content="one\ntwo") == "Created a/b/c.txt: 2 lines, 7 bytes."
    assert (tmp_path / "a/b/c.txt").read_text() == "one\ntwo"


def test_a_file_that_is_replaced_keeps_its_permissions_but_no_other_identity(hands: Hands, tmp_path: Path) -> None:
    place = tmp_path / "run.sh"
    place.write_text("old")
    place.chmod(0o4750)
    assert hands.write_file(path="run.sh", content="new").startswith("Replaced run.sh")
    assert stat.S_IMODE(place.stat().st_mode) == 0o750
    assert [path.name for path in tmp_path.iterdir()] == ["run.sh"]


def test_a_new_file_has_the_permissions_that_the_umask_gives(hands: Hands, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        hands.write_file(path="a.txt", content="")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


def test_writing_twice_is_the_same_as_once(hands: Hands, tmp_path: Path) -> None:
    for _ in range(2):
        hands.write_file(path="a.txt", content="x")
    assert (tmp_path / "a.txt").read_text() == "x"


def test_a_text_that_is_too_large_is_not_written(tmp_path: Path) -> None:
    hands = Hands(files(tmp_path, limits=FileLimits(write_bytes=3)))
    with pytest.raises(FileTooLarge):
        hands.write_file(path="a/b.txt", content="éé")
    assert not any(tmp_path.iterdir())


def test_a_text_that_is_no_unicode_is_not_written(hands: Hands, tmp_path: Path) -> None:
    with pytest.raises(NotText):
        hands.write_file(path="a.txt", content="\ud800")
    assert not any(tmp_path.iterdir())


def test_a_file_is_not_written_over_a_directory_or_below_a_file(hands: Hands, tmp_path: Path) -> None:
    _tree(tmp_path, "d/a.txt")
    for path in ("d", "d/a.txt/x", "d/a.txt/x/y"):
        with pytest.raises(WrongKind):
            hands.write_file(path=path, content="x")


def test_a_workspace_that_was_removed_is_told(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    hands = Hands(files(root))
    root.rmdir()
    with pytest.raises(HoldfastError):
        hands.write_file(path="a.txt", content="x")


def test_the_host_may_let_a_protected_name_be_written(tmp_path: Path) -> None:
    hands = Hands(files(tmp_path, protect=["secrets"], unprotect=["AGENTS.md"]))
    hands.write_file(path="AGENTS.md", content="x")
    with pytest.raises(PathProtected, match="'secrets'"):
        hands.write_file(path="secrets/a", content="x")


# ---- edit ------------------------------------------------------------------------------------------------------------


def test_an_edit_shows_what_is_there_now(hands: Hands, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{n}\n" for n in range(1, 11)))
    said = hands.edit_file(path="a.txt", old="5\n", new="five\n")
    assert said == (
        "Edited a.txt: replaced 1 place, from line 5 on.\n"
        "     2\t2\n     3\t3\n     4\t4\n     5\tfive\n     6\t6\n     7\t7\n     8\t8\n     9\t9"
    )


def test_an_edit_keeps_the_byte_order_mark_and_the_ends_of_lines(hands: Hands, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    hands.edit_file(path="a.txt", old="one\ntwo", new="1\n2")
    assert (tmp_path / "a.txt").read_bytes() == b"\xef\xbb\xbf1\r\n2\r\n"


def test_an_edit_that_does_not_fit_changes_nothing(hands: Hands, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x x")
    for old in ("x", "y", ""):
        with pytest.raises(EditMismatch):
            hands.edit_file(path="a.txt", old=old, new="z")
    assert (tmp_path / "a.txt").read_text() == "x x"
    hands.edit_file(path="a.txt", old="x", new="z", all=True)
    assert (tmp_path / "a.txt").read_text() == "z z"


def test_edits_of_one_file_at_once_are_all_kept(tmp_path: Path) -> None:
    names = [f"<{n}>" for n in range(12)]
    (tmp_path / "a.txt").write_text("".join(names))
    workers = [
        threading.Thread(
            target=Hands(files(tmp_path)).edit_file, kwargs={"path": "a.txt", "old": name, "new": f"{name}!"}
        )
        for name in names
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (tmp_path / "a.txt").read_text() == "".join(f"{name}!" for name in names)


def test_a_file_that_somebody_else_writes_meanwhile_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "a.txt"
    place.write_text("mine")

    def intruding(root: int, path: bytes, flags: int, *, follow: bool, mode: int = 0) -> int:
        if flags & os.O_CREAT:  # the moment between reading and replacing
            place.write_text("theirs, mine")
        return open_by_walk(root, path, flags, follow=follow, mode=mode)

    writer = FileWriter(Workspace(tmp_path, opener=intruding), make_protection(), FileLimits())
    with pytest.raises(FileChanged):
        writer.edit(PurePosixPath("a.txt"), "mine", "yours", every=False)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "theirs, mine"}


@pytest.mark.parametrize(("now", "found"), [("new", "Edited a.txt."), ("old", None)])
async def test_an_interrupted_edit_finds_out_whether_it_was_made(
    hands: Hands, tmp_path: Path, now: str, found: str | None
) -> None:
    (tmp_path / "a.txt").write_text(f"it says {now}")
    edit = hands.tools["edit_file"]
    bound = Bound({"path": "a.txt", "old": "old", "new": "new", "all": False})
    looking = edit.find_out(bound, None)  # pyright: ignore[reportArgumentType]  # it needs nothing of the context
    if found is None:
        with pytest.raises(hf.NotDone):
            await looking
    else:
        assert json.loads(await looking) == found


async def test_an_interrupted_edit_that_left_no_clear_trace_stays_unknown(hands: Hands, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old new")
    bound = Bound({"path": "a.txt", "old": "old", "new": "new", "all": False})
    with pytest.raises(EditMismatch, match="can't be told"):
        await hands.tools["edit_file"].find_out(bound, None)  # pyright: ignore[reportArgumentType]  # as above


# ---- search ----------------------------------------------------------------------------------------------------------


def test_a_search_gives_lines_with_their_places(hands: Hands, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def one():\n    pass\n\ndef two():\n")
    (tmp_path / "b.md").write_text("def three\n")
    assert hands.search_files(pattern=r"^def (\w+)\(", glob="*.py") == (
        "a.py:1: def one():\na.py:4: def two():\n(2 matches in 1 file)"
    )


def test_a_search_shows_what_is_around_a_match(hands: Hands, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\nHit\n3\n4\n5\n6\nhit\n")
    assert hands.search_files(pattern="hit", ignore_case=True, context=1).splitlines() == [
        *("a.txt-1- 1", "a.txt:2: Hit", "a.txt-3- 3", "--", "a.txt-6- 6", "a.txt:7: hit", "(2 matches in 1 file)")
    ]


def test_a_search_of_one_file_and_below_one_directory(hands: Hands, tmp_path: Path) -> None:
    _tree(tmp_path, "d/x.txt", "x.txt")
    assert hands.search_files(pattern="x", path="x.txt").startswith("x.txt:1: x.txt\n")
    assert hands.search_files(pattern="x", path="d").startswith("d/x.txt:1: d/x.txt\n")


def test_a_search_passes_over_what_is_no_text_or_too_large_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"hit\xff")
    (tmp_path / "b.bin").write_bytes(b"hit\0")
    (tmp_path / "c.txt").write_text("hit" * 100)
    (tmp_path / "d.txt").write_text("hit")
    said = Hands(files(tmp_path, limits=FileLimits(search_bytes=100))).search_files(pattern="hit")
    assert said.splitlines()[0] == "d.txt:1: hit"
    assert said.endswith("(Passed over: 2 not UTF-8 text, 1 too large.)")


def test_a_search_with_more_matches_than_it_may_give_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n" * 10)
    (tmp_path / "b.txt").write_text("x\n")
    said = Hands(files(tmp_path, limits=FileLimits(matches=3))).search_files(pattern="x")
    assert "(3 matches in 1 file)\n(There are more matches" in said


@pytest.mark.parametrize("pattern", ["(", "*", "x" * 1_001, "(?P<n>a)(?P<n>b)"])
def test_a_pattern_that_is_not_valid_is_told(hands: Hands, pattern: str) -> None:
    with pytest.raises(PatternInvalid):
        hands.search_files(pattern=pattern)


@pytest.mark.parametrize("context", [-1, 11])
def test_a_context_that_is_too_much_is_told(hands: Hands, context: int) -> None:
    with pytest.raises(InvalidNumber):
        hands.search_files(pattern="x", context=context)


def test_a_search_for_something_that_is_not_there_says_how_much_was_searched(hands: Hands, tmp_path: Path) -> None:
    _tree(tmp_path, "a", "b")
    assert hands.search_files(pattern="zzz") == "(no match in 2 files)"


# ---- where the kernel does not help ----------------------------------------------------------------------------------


def test_a_system_without_a_confined_open_gets_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "plan9")
    monkeypatch.setattr("os.supports_dir_fd", set[object]())
    with pytest.raises(hf.WorldError, match="can't be confined"):
        files(tmp_path)


def test_another_system_than_linux_walks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert choose_opener(os.open(tmp_path, os.O_RDONLY)) is open_by_walk


def test_a_disk_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o555)
    with pytest.raises(FileFailed, match="permission"):
        Hands(files(tmp_path)).write_file(path="a", content="x")
