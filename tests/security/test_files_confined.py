"""Attacks on the file tools: out of the workspace, into what others act on, and against the process itself.

Everything is tried with the kernel's confined open and with the walk that stands in for it elsewhere.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import proc
from tests.examples import examples

from holdfast.errors import HoldfastError
from holdfast.toolkits.files import (
    FileFailed,
    FileLimits,
    FileMissing,
    FileTooLarge,
    PathProtected,
    PathRefused,
    SearchStopped,
    WrongKind,
    files,
)
from holdfast.toolkits.files.search import MatcherStopped, RegexMatcher
from holdfast.toolkits.files.workspace import (
    Opener,
    choose_opener,
    open_by_kernel,
    open_by_walk,
)
from holdfast.tools import Bound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.tools import AnyTool

OUTSIDE = "what is said outside"


def _kernel_can() -> bool:
    number = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        return choose_opener(number) is open_by_kernel
    finally:
        os.close(number)


OPENERS = [
    pytest.param(open_by_kernel, marks=pytest.mark.skipif(not _kernel_can(), reason="no openat2() here"), id="kernel"),
    pytest.param(open_by_walk, id="walk"),
]


class Hands:
    """The tools of one workspace, by name."""

    def __init__(self, tools: tuple[AnyTool, ...]) -> None:
        self._tools = {tool.name: tool for tool in tools}

    def __getattr__(self, name: str) -> Callable[..., str]:
        return self._tools[name]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    place = tmp_path / "outside"
    place.mkdir()
    (place / "secret.txt").write_text(OUTSIDE, encoding="utf-8")
    return place


@pytest.fixture
def inside(tmp_path: Path, outside: Path) -> Path:
    place = tmp_path / "workspace"
    (place / "sub").mkdir(parents=True)
    (place / "sub" / "secret.txt").write_text("inside", encoding="utf-8")
    return place


def _hands(inside: Path, opener: Opener, limits: FileLimits | None = None) -> Hands:
    with patch("holdfast.toolkits.files.workspace.choose_opener", return_value=opener):
        return Hands(files(inside, limits=limits or FileLimits(seconds=2)))


@pytest.fixture(params=OPENERS)
def hands(request: pytest.FixtureRequest, inside: Path) -> Hands:
    return _hands(inside, request.param)


# ---- out of the workspace --------------------------------------------------------------------------------------------

LINKS = {
    "absolute": "{outside}/secret.txt",
    "relative": "../outside/secret.txt",
    "deep": "sub/../../outside/secret.txt",
    "dangling": "../outside/new.txt",
    "chain": "absolute",
    "proc": "/proc/self/root/etc/passwd",
    "loop": "loop",
}


@pytest.mark.parametrize("link", LINKS)
def test_a_link_that_leads_out_is_neither_read_nor_written(
    hands: Hands, inside: Path, outside: Path, link: str
) -> None:
    for name, target in LINKS.items():
        (inside / name).symlink_to(target.format(outside=outside))
    with pytest.raises(PathRefused):
        hands.read_file(path=link)
    with pytest.raises(PathRefused):
        hands.write_file(path=link, content="x")
    with pytest.raises(PathRefused):
        hands.edit_file(path=link, old="outside", new="x")
    assert [path.read_text() for path in outside.iterdir()] == [OUTSIDE]


@pytest.mark.parametrize("target", ["{outside}", "../outside", "/proc/self/cwd", "/proc/self/root", "sub/../.."])
def test_a_directory_that_is_a_link_out_is_not_entered(hands: Hands, inside: Path, outside: Path, target: str) -> None:
    (inside / "door").symlink_to(target.format(outside=outside))
    for attempt in (
        lambda: hands.read_file(path="door/secret.txt"),
        lambda: hands.list_files(path="door"),
        lambda: hands.search_files(path="door", pattern="outside"),
        lambda: hands.write_file(path="door/new.txt", content="x"),
        lambda: hands.write_file(path="door/new/new.txt", content="x"),
        lambda: hands.edit_file(path="door/secret.txt", old="outside", new="x"),
    ):
        with pytest.raises(PathRefused):
            attempt()
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]


def test_a_link_that_stays_inside_is_read(hands: Hands, inside: Path) -> None:
    (inside / "sub" / "link").symlink_to("../sub/./secret.txt")
    (inside / "door").symlink_to("sub")
    assert "inside" in hands.read_file(path="door/link")


def test_nothing_is_written_through_a_link_even_one_that_stays_inside(hands: Hands, inside: Path) -> None:
    (inside / "door").symlink_to("sub")
    (inside / "link").symlink_to("sub/secret.txt")
    for path in ("door/new.txt", "link", "door/secret.txt"):
        with pytest.raises(PathRefused):
            hands.write_file(path=path, content="x")
        with pytest.raises(PathRefused):
            hands.edit_file(path=path, old="inside", new="x")
    assert (inside / "sub" / "secret.txt").read_text() == "inside"


def test_lists_and_searches_go_past_links(hands: Hands, inside: Path, outside: Path) -> None:
    (inside / "door").symlink_to(outside)
    (inside / "file").symlink_to(outside / "secret.txt")
    assert "door (a symbolic link)" in hands.list_files(recursive=True)
    assert "outside" not in hands.list_files(recursive=True)
    assert "no match" in hands.search_files(pattern=OUTSIDE)


def test_a_hard_link_is_refused_because_its_other_names_may_be_outside(
    hands: Hands, inside: Path, outside: Path
) -> None:
    os.link(outside / "secret.txt", inside / "hard.txt")
    with pytest.raises(PathRefused, match="hard link"):
        hands.read_file(path="hard.txt")
    with pytest.raises(PathRefused, match="hard link"):
        hands.write_file(path="hard.txt", content="x")
    with pytest.raises(PathRefused, match="hard link"):
        hands.edit_file(path="hard.txt", old="outside", new="x")
    assert "1 linked elsewhere" in hands.search_files(pattern=OUTSIDE)
    assert (outside / "secret.txt").read_text() == OUTSIDE


def test_a_hard_link_that_the_host_allows_is_read_and_never_written_through(inside: Path, outside: Path) -> None:
    os.link(outside / "secret.txt", inside / "hard.txt")
    hands = Hands(files(inside, hard_links=True))
    assert OUTSIDE in hands.read_file(path="hard.txt")
    hands.write_file(path="hard.txt", content="mine")
    assert (outside / "secret.txt").read_text() == OUTSIDE


def test_the_workspace_is_the_directory_that_was_given_not_what_is_put_in_its_place(
    inside: Path, outside: Path, tmp_path: Path
) -> None:
    hands = Hands(files(inside))
    inside.rename(tmp_path / "moved")
    inside.symlink_to(outside)
    assert "secret.txt" not in hands.list_files()
    assert "inside" in hands.read_file(path="sub/secret.txt")


# ---- races -----------------------------------------------------------------------------------------------------------


class Swapper:
    """A thread that keeps putting a link to the outside in the place of a directory, and back."""

    def __init__(self, inside: Path, outside: Path) -> None:
        self._place, self._aside, self._link = inside / "sub", inside / "aside", inside / "link"
        self._outside = outside
        self._over = threading.Event()
        self.swaps = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            self._link.symlink_to(self._outside)
            self._place.rename(self._aside)
            self._link.rename(self._place)
            time.sleep(0)  # let the others run while the link is there, and while the directory is
            self._place.unlink()
            self._aside.rename(self._place)
            self.swaps += 1
            time.sleep(0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def _attempts(swapper: Swapper, done: list[str]) -> Iterator[None]:
    """Until there were many swaps, many attempts, and some that were not refused."""
    for number in itertools.count():
        if number >= 200 and swapper.swaps >= 200 and len(done) >= 5:
            return
        yield


@pytest.mark.parametrize("opener", OPENERS)
def test_no_read_escapes_while_a_directory_is_swapped_for_a_link(opener: Opener, inside: Path, outside: Path) -> None:
    hands = _hands(inside, opener)
    read: list[str] = []
    with Swapper(inside, outside) as swapper:
        for _ in _attempts(swapper, read):
            with suppress(PathRefused, FileMissing, WrongKind):
                read.append(hands.read_file(path="sub/secret.txt"))
    assert set(read) == {"     1\tinside"}


@pytest.mark.parametrize("opener", OPENERS)
def test_no_write_escapes_while_a_directory_is_swapped_for_a_link(opener: Opener, inside: Path, outside: Path) -> None:
    hands = _hands(inside, opener)
    (outside / "secret.txt").write_text("inside, changed")
    wrote: list[str] = []
    old, new = "inside", "changed"
    with Swapper(inside, outside) as swapper:
        for _ in _attempts(swapper, wrote):
            with suppress(PathRefused, FileMissing, WrongKind):
                wrote.append(hands.edit_file(path="sub/secret.txt", old=old, new=new))
                old, new = new, old
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"secret.txt": "inside, changed"}


@pytest.mark.parametrize("opener", OPENERS)
def test_no_list_escapes_while_a_directory_is_swapped_for_a_link(opener: Opener, inside: Path, outside: Path) -> None:
    (outside / "only-outside.txt").write_text("x")
    hands = _hands(inside, opener)
    lists: list[str] = []
    with Swapper(inside, outside) as swapper:
        for _ in _attempts(swapper, lists):
            lists.append(hands.list_files(recursive=True))  # noqa: PERF401  the attempts look at what was done so far
    assert not any("only-outside" in said for said in lists)


TREE = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "d/e/b")
TARGETS = (
    "a",
    "b",
    "..",
    "../a",
    "../..",
    "d",
    "d/e",
    "e",
    "e/..",
    "/etc",
    "../d/b",
    "./b/",
    "d/../../workspace/a",
    "x",
)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(st.sampled_from(("file", "dir", "none", *TARGETS)), min_size=len(TREE), max_size=len(TREE)),
    path=st.lists(st.sampled_from(("a", "b", "d", "e", "..", ".")), min_size=1, max_size=5).map("/".join),
    follow=st.booleans(),
    directory=st.booleans(),
)
@pytest.mark.skipif(not _kernel_can(), reason="no openat2() here to compare with")
def test_the_walk_opens_and_refuses_just_what_the_kernel_does(
    kinds: list[str], path: str, *, follow: bool, directory: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("walk") / "workspace"
    root.mkdir()
    for name, kind in zip(TREE, kinds, strict=True):
        place = root / name
        if not place.parent.is_dir() or place.parent.is_symlink() or kind == "none":
            continue
        if kind == "file":
            place.touch()
        elif kind == "dir":
            place.mkdir()
        else:
            place.symlink_to(kind)
    number = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    flags = os.O_RDONLY | (os.O_DIRECTORY if directory else 0)
    try:
        by_kernel = _outcome(open_by_kernel, number, path.encode(), flags, follow=follow)
        by_walk = _outcome(open_by_walk, number, path.encode(), flags, follow=follow)
    finally:
        os.close(number)
    assert by_walk == by_kernel


def _outcome(opener: Opener, root: int, path: bytes, flags: int, *, follow: bool) -> str | tuple[int, int]:
    try:
        number = opener(root, path, flags, follow=follow)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    found = os.fstat(number)
    os.close(number)
    return found.st_dev, found.st_ino


# ---- what is no file -------------------------------------------------------------------------------------------------


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        before = Path.cwd()
        os.chdir(path.parent)  # the name of a socket must be short
        try:
            one.bind(path.name)
        finally:
            os.chdir(before)


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")


@pytest.mark.parametrize("make", [_fifo, _socket, _device])
@pytest.mark.timeout(10)
def test_pipes_sockets_and_devices_are_refused_at_once(
    hands: Hands, inside: Path, make: Callable[[Path], None]
) -> None:
    make(inside / "odd")
    with pytest.raises(WrongKind):
        hands.read_file(path="odd")
    with pytest.raises(WrongKind):
        hands.write_file(path="odd", content="x")
    with pytest.raises(WrongKind):
        hands.edit_file(path="odd", old="a", new="b")
    with pytest.raises(WrongKind):
        hands.search_files(path="odd", pattern="x")
    assert "no match" in hands.search_files(pattern="x{9}")
    assert "odd (a " in hands.list_files()


# ---- protected names -------------------------------------------------------------------------------------------------

PROTECTED = [
    ".git/hooks/pre-commit",
    ".git/config",
    ".git",
    "vendor/lib/.git/config",
    ".GIT/hooks/pre-commit",
    ".git./config",
    ".bashrc",
    "home/.ZSHRC",
    ".envrc",
    ".ssh/authorized_keys",
    ".github/workflows/build.yml",
    ".vscode/tasks.json",
    ".claude/settings.json",
    ".mcp.json",
    "AGENTS.md",
    "sub/claude.md",
]


@pytest.mark.parametrize("path", PROTECTED)
def test_a_protected_name_is_not_written_where_nothing_is_there_yet(hands: Hands, inside: Path, path: str) -> None:
    before = sorted(inside.rglob("*"))
    with pytest.raises(PathProtected):
        hands.write_file(path=path, content="x")
    assert sorted(inside.rglob("*")) == before


@pytest.mark.parametrize("path", PROTECTED[:2])
def test_a_protected_file_that_is_there_is_read_and_not_changed(hands: Hands, inside: Path, path: str) -> None:
    (inside / path).parent.mkdir(parents=True, exist_ok=True)
    (inside / path).write_text("as it was")
    assert "as it was" in hands.read_file(path=path)
    with pytest.raises(PathProtected):
        hands.edit_file(path=path, old="was", new="is")
    with pytest.raises(PathProtected):
        hands.write_file(path=path, content="x")
    assert (inside / path).read_text() == "as it was"


@pytest.mark.parametrize(
    ("link", "path"), [("x", "x/hooks/pre-commit"), ("x", "x/config"), ("hooks", "hooks/pre-commit"), ("c", "c")]
)
def test_a_protected_name_is_not_written_by_way_of_a_link(hands: Hands, inside: Path, link: str, path: str) -> None:
    (inside / ".git" / "hooks").mkdir(parents=True)
    (inside / ".git" / "config").write_text("as it was")
    (inside / link).symlink_to({"x": ".git", "hooks": ".git/hooks", "c": ".git/config"}[link])
    with pytest.raises(PathRefused):
        hands.write_file(path=path, content="x")
    with pytest.raises(PathRefused):
        hands.edit_file(path=path, old="was", new="is")
    assert not any((inside / ".git" / "hooks").iterdir())
    assert (inside / ".git" / "config").read_text() == "as it was"


@pytest.mark.parametrize("root", [".", "mirror"])
def test_a_repository_is_not_written_to_whatever_its_directory_is_called(inside: Path, root: str) -> None:
    (inside / "mirror").mkdir()
    for name in ("objects", "refs", "hooks"):
        (inside / "mirror" / name).mkdir()
    (inside / "mirror" / "HEAD").write_text("ref: refs/heads/main")
    hands = Hands(files(inside / "mirror" if root == "." else inside))
    prefix = "" if root == "." else "mirror/"
    for path in ("config", "hooks/post-update", "hooks/new/file"):
        with pytest.raises(PathProtected, match="a git directory"):
            hands.write_file(path=prefix + path, content="x")
    assert not any((inside / "mirror" / "hooks").iterdir())


def test_a_protected_file_with_a_second_name_keeps_what_it_says(inside: Path) -> None:
    (inside / ".git").mkdir()
    (inside / ".git" / "config").write_text("as it was")
    os.link(inside / ".git" / "config", inside / "plain.txt")
    Hands(files(inside, hard_links=True)).write_file(path="plain.txt", content="x")
    assert (inside / ".git" / "config").read_text() == "as it was"


def test_a_workspace_that_is_only_read_has_no_tool_that_writes(inside: Path) -> None:
    assert [(tool.name, tool.read_only) for tool in files(inside, write=False)] == [
        ("list_files", True),
        ("read_file", True),
        ("search_files", True),
    ]


# ---- patterns and sizes ----------------------------------------------------------------------------------------------

CATASTROPHES = [r"(a+)+$", r"(a*)*\1b", r"(a|aa)+$", r"^(([a])+.)+[A-Z]+$"]


@pytest.mark.parametrize("pattern", CATASTROPHES)
@pytest.mark.timeout(10)
async def test_a_catastrophic_pattern_ends_at_the_deadline_and_the_event_loop_goes_on(
    inside: Path, pattern: str
) -> None:
    (inside / "long.txt").write_text("a" * 40 + "!\n")
    search = next(tool for tool in files(inside, limits=FileLimits(seconds=0.5)) if tool.name == "search_files")
    before = {*proc.descendants(os.getpid())}
    running = asyncio.create_task(search.invoke(Bound({"pattern": pattern, "glob": "long.txt"})))
    ticks = 0
    while not running.done():
        await asyncio.sleep(0.01)
        ticks += 1
    with pytest.raises(SearchStopped, match=r"took too long in long\.txt"):
        await running
    assert ticks > 5
    assert {*proc.descendants(os.getpid())} <= before


def test_what_was_found_before_a_pattern_hung_is_not_lost(inside: Path) -> None:
    (inside / "a.txt").write_text("aaa\n")
    (inside / "b.txt").write_text("a" * 40 + "!\n")
    said = Hands(files(inside, limits=FileLimits(seconds=0.5))).search_files(pattern="^(a+)+$")
    assert "a.txt:1: aaa" in said
    assert "the pattern took too long in b.txt" in said


@pytest.mark.timeout(20)
def test_the_process_that_matches_does_not_outlive_one_that_was_killed(inside: Path) -> None:
    (inside / "long.txt").write_text("a" * 60 + "!\n")
    program = (
        "import sys; from holdfast.toolkits.files import files, FileLimits;"
        "tools = {tool.name: tool for tool in files(sys.argv[1], limits=FileLimits(seconds=2))};"
        "tools['search_files'](pattern='(a+)+$')"
    )
    host = subprocess.Popen([sys.executable, "-c", program, str(inside)], stderr=subprocess.DEVNULL)
    try:
        # Killed in the middle of a match: before that, the end of its input would end it anyway.
        while not (found := proc.descendants(host.pid)) or proc.worked(found[0]) < 0.3:
            assert host.poll() is None
            time.sleep(0.005)
    finally:
        host.send_signal(signal.SIGKILL)
        host.wait()
    # It limits its own processor time, so it ends by itself; the timeout of this test is how long it may take.
    while proc.lives(found[0]):
        time.sleep(0.02)


@pytest.mark.timeout(20)
def test_a_matcher_that_takes_no_more_input_is_ended_at_the_deadline() -> None:
    before = {*proc.descendants(os.getpid())}
    with RegexMatcher("nothing", time.monotonic() + 1, ignore_case=False, context=0, chars=100) as matcher:
        (worker,) = {*proc.descendants(os.getpid())} - before
        os.kill(worker, signal.SIGSTOP)
        with pytest.raises(MatcherStopped, match="took too long"):
            matcher.find(b"foo\n" * 1_000_000, 10)  # far more than its pipe holds
    assert {*proc.descendants(os.getpid())} <= before


def test_a_pattern_that_eats_memory_is_ended(inside: Path) -> None:
    (inside / "big.txt").write_text("ab" * 4_000_000)
    hands = Hands(files(inside, limits=FileLimits(seconds=60)))
    with pytest.raises(SearchStopped, match="took too much memory"):
        hands.search_files(pattern="(?:(a)|(b))*(?:(a)|b)*c", glob="big.txt")


def test_a_file_with_a_null_byte_is_passed_over_before_it_takes_memory_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.toolkits.files.search.MATCHER_MEMORY", 160 * 1024 * 1024)
    with RegexMatcher("x", time.monotonic() + 20, ignore_case=False, context=0, chars=100) as matcher:
        # Four bytes for each character, once one does not fit into one.
        assert matcher.find(b"\0" + b"a" * 30_000_000 + "\U0001f600".encode(), 10) is None
        assert matcher.find(b"x", 10) is not None


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")
def test_a_file_is_measured_by_what_is_read_not_by_what_it_claims() -> None:
    assert Path("/proc/self/status").stat().st_size == 0
    with pytest.raises(FileTooLarge):
        Hands(files("/proc/self", write=False, limits=FileLimits(read_bytes=100))).read_file(path="status")


def test_a_file_that_claims_to_be_huge_is_refused_before_it_is_read(inside: Path) -> None:
    with (inside / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    hands = Hands(files(inside))
    for attempt in (lambda: hands.read_file(path="sparse"), lambda: hands.edit_file(path="sparse", old="a", new="b")):
        with pytest.raises(HoldfastError, match="the limit is"):
            attempt()
    assert "1 too large" in hands.search_files(pattern="x")


def test_a_directory_with_a_great_many_entries_is_listed_in_part(inside: Path) -> None:
    for number in range(300):
        (inside / f"{number}.txt").touch()
    said = Hands(files(inside, limits=FileLimits(visited=100))).list_files()
    assert "stopped after 100 entries" in said
    assert len(said.splitlines()) == 101


# ---- what an error gives away ----------------------------------------------------------------------------------------


def test_no_error_names_a_path_outside_of_the_workspace(hands: Hands, inside: Path, outside: Path) -> None:
    (inside / "link").symlink_to(outside / "secret.txt")
    for attempt in (
        lambda: hands.read_file(path="link"),
        lambda: hands.read_file(path="missing"),
        lambda: hands.write_file(path="sub", content="x"),
        lambda: hands.list_files(path="missing"),
    ):
        with pytest.raises(HoldfastError) as error:
            attempt()
        assert str(inside.parent) not in str(error.value)


def test_a_name_with_control_characters_can_not_forge_a_line_of_a_list(hands: Hands, inside: Path) -> None:
    (inside / "a\nforged.txt").touch()
    (inside / "b\u202etxt").touch()
    said = hands.list_files(glob="*txt")
    assert "a\\nforged.txt (0 bytes)" in said.splitlines()
    assert "b\\u202etxt (0 bytes)" in said.splitlines()


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(inside: Path) -> None:
    program = (
        "import resource, sys; from holdfast.toolkits.files import files, FileFailed;"
        "tools = {tool.name: tool for tool in files(sys.argv[1])};"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        "\ntry: tools['write_file'](path='sub/secret.txt', content='x' * 5000)"
        "\nexcept FileFailed as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(inside)], capture_output=True, text=True, check=True)
    assert "does not take files of this size" in done.stdout
    assert {path.name: path.read_text() for path in (inside / "sub").iterdir()} == {"secret.txt": "inside"}


def test_a_process_that_is_killed_while_it_writes_leaves_the_old_file_and_the_next_tidies_up(
    inside: Path,
) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path;"
        "from holdfast.toolkits.files import FileLimits; from holdfast.toolkits.files.workspace import open_by_walk;"
        "from holdfast.toolkits.files.workspace import Workspace, make_protection; from pathlib import PurePosixPath;"
        "from holdfast.toolkits.files.edits import FileWriter"
        "\ndef dying(*args, **more):"
        "\n    number = open_by_walk(*args, **more)"
        "\n    if more.get('mode'): os.write(number, b'half'); os.kill(os.getpid(), signal.SIGKILL)"
        "\n    return number"
        "\nworkspace = Workspace(Path(sys.argv[1]), opener=dying)"
        "\nFileWriter(workspace, make_protection(), FileLimits()).write(PurePosixPath('sub/secret.txt'), 'whole')"
    )
    done = subprocess.run([sys.executable, "-c", program, str(inside)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert sorted(path.read_text() for path in (inside / "sub").iterdir()) == ["half", "inside"]
    assert (inside / "sub" / "secret.txt").read_text() == "inside"
    Hands(files(inside)).write_file(path="sub/secret.txt", content="whole")
    assert {path.name: path.read_text() for path in (inside / "sub").iterdir()} == {"secret.txt": "whole"}


def test_a_directory_that_somebody_keeps_locked_is_told(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.toolkits.files.edits.LOCK_SECONDS", 0.05)
    number = os.open(inside, os.O_RDONLY)
    fcntl.flock(number, fcntl.LOCK_EX)
    try:
        with pytest.raises(FileFailed, match="locked"):
            Hands(files(inside)).write_file(path="x", content="x")
    finally:
        os.close(number)
