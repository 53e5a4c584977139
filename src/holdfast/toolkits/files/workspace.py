"""A workspace: one directory, opened once, through which all file tools reach the disk.

In this order: errors, protected names, confined opens, the directory and its files, path names, walks, limits.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import fnmatch
import math
import os
import platform
import re
import stat
import struct
import sys
import time
import unicodedata
import weakref
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from typing import ClassVar, Final, Protocol, TypeAlias

from holdfast.errors import HoldfastError, InvalidArgument, InvalidNumber, UsageError, WorldError
from holdfast.errors.fields import ErrorFields
from holdfast.store.paths import FOLDER, in_store_folder

# ---- errors ----


class ConfinementUnavailable(ErrorFields, WorldError):
    """This system can't keep opens below a directory, so there are no file tools here."""

    reason: str
    _message = """files can't be confined to a directory on this system: {reason}; use Linux 5.6 or newer, or a system
        that has openat() with O_NOFOLLOW"""


class PathError(HoldfastError):
    """An error about one path. `text` is its message."""

    text: ClassVar[str]

    def __init__(self, path: str, reason: str = "") -> None:
        super().__init__(self.text.format(path=quote_path(path), reason=reason))
        self.path = path
        self.reason = reason


class PathRefused(PathError, UsageError):
    """This workspace does not open the path."""

    text = "{path} is refused: {reason}"


class PathProtected(PathRefused):
    """The name is never written, because other programs act on the file."""

    def __init__(self, path: str, rule: str) -> None:
        super().__init__(
            path, f"{rule!r} is protected, because other programs act on what it says; ask a person to make this change"
        )
        self.rule = rule


class FileMissing(PathError, WorldError):
    """The file does not exist."""

    text = "{path} does not exist; list_files shows what there is"


class WrongKind(PathError, WorldError):
    """The path leads to another kind of file: a directory, a pipe, a device, a socket."""

    text = "{path} is {reason}"

    def __init__(self, path: str, found: str, wanted: str) -> None:
        super().__init__(path, f"{found}, not {wanted}")
        self.found = found


class NotText(PathError, WorldError):
    """The file is not UTF-8 text."""

    text = "{path} is not UTF-8 text: {reason}; these tools work on text"


class FileTooLarge(PathError, UsageError):
    """The file has more bytes than this workspace reads or writes."""

    text = "{path} has {reason}"

    def __init__(self, path: str, size: int, limit: int, advice: str) -> None:
        super().__init__(path, f"{size:,} bytes or more, the limit is {limit:,}; {advice}")
        self.size = size
        self.limit = limit


class FileFailed(PathError, WorldError):
    """The system refused: no permission, no room, a failing disk."""

    text = "{path} could not be used: {reason}"


def quote_path(path: str) -> str:
    """A path in quotes, escaped and at most 300 characters long."""
    return repr(path if len(path) <= 300 else f"{path[:300]}...")


# ---- protected names ----

PROTECTED_NAMES: Final[tuple[str, ...]] = (
    # Version control: hooks and configuration run programs. A `.git` file points to a directory that does, and git
    # takes a directory with a HEAD for a repository without a working tree.
    *(".git", "*.git", "git~*", "HEAD", ".gitconfig", ".gitmodules", ".config/git", ".hg", ".hgrc", ".svn", ".jj"),
    *(".bzr", ".husky", ".pre-commit-config.yaml", "lefthook.yml", "lefthook.yaml", "lefthook.y*ml", ".lefthook.yml"),
    ".lefthook*",
    # Files that a shell reads when it starts or enters a directory.
    *(".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".bash_*", ".bashrc", ".profile", ".zshrc"),
    *(".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".mkshrc", ".cshrc", ".tcshrc", ".login", ".logout"),
    *(".inputrc", ".envrc", ".direnv", ".config/fish", ".config/direnv", ".xinitrc", ".xprofile", ".xsession*"),
    *(".xsessionrc", ".pam_environment", ".config/environment.d", ".config/autostart", ".config/systemd", ".local/bin"),
    # Files that other programs read when they start, and run.
    *(".ssh", ".gnupg", ".netrc", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pypirc", "pip.conf", ".condarc", ".ripgreprc"),
    *(".vimrc", ".gvimrc", ".exrc", ".nvimrc", ".nvim.lua", ".emacs", ".emacs.d", ".dir-locals.el", ".config/nvim"),
    *(".gdbinit", ".lldbinit", ".pdbrc", ".pythonrc", ".cargo/config", ".cargo/config.toml", ".cargo/config*"),
    *(".vscode", ".idea", ".zed", ".fleet", ".devcontainer", ".devcontainer.json"),
    # Files that run elsewhere, with the keys of others.
    *(".github/workflows", ".github/actions", ".github/dependabot.yml", ".github/dependabot.yaml", "CODEOWNERS"),
    *(".gitea", ".forgejo", ".gitlab-ci.yml", ".gitlab", ".circleci", ".travis.yml", ".drone.yml", ".woodpecker"),
    *(".woodpecker.yml", ".woodpecker*", ".buildkite", "Jenkinsfile", "azure-pipelines.yml", "bitbucket-pipelines.yml"),
    ".teamcity",
    # Permissions and instructions of agents.
    *("AGENTS.md", "AGENTS.*.md", "CLAUDE.md", "CLAUDE.local.md", "CLAUDE.*.md", "GEMINI.md", ".mcp.json", "mcp.json"),
    *(".claude", ".claude.json", ".codex", ".cursor", ".cursorrules", ".gemini", ".windsurf", ".windsurfrules"),
    *(".continue", ".cline", ".clinerules", ".roo", ".roomodes", ".kiro", ".opencode", "opencode.json"),
    *("opencode.jsonc", "opencode.json*", ".goose", ".goosehints", ".aider.conf.yml", ".aider*", ".agents", ".amp"),
    *(".junie", ".qwen", ".github/copilot-instructions.md", ".github/copilot-*", ".github/instructions"),
    *(".github/agents", ".github/prompts", ".github/chatmodes", ".holdfast", "holdfast.toml", "holdfast.db"),
    "holdfast.db-*",
)
"""Names that are never written, unless the host unprotects one."""
NameMatcher: TypeAlias = "Callable[[str], re.Match[str] | None]"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~*?\[\]@+-]*[A-Za-z0-9_~*?\[\]@+-]|")
# Code points that file systems ignore when they compare names, in addition to the category Cf.
_IGNORED: Final = (
    *((0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x3164, 0x3164), (0xFE00, 0xFE0F)),
    *((0xFFA0, 0xFFA0), (0xE0000, 0xE0FFF)),
)


def match_name(name: str, pattern: str) -> bool:
    """True if one name matches ``*``, ``?`` and ``[...]``."""
    return _name_matcher(pattern)(name) is not None


@lru_cache(maxsize=1_024)
def _name_matcher(pattern: str) -> NameMatcher:
    # `[^...]` means `[!...]`; a bracket that is never closed is a plain character.
    return re.compile(fnmatch.translate(re.sub(r"(?s)\[\^(?=.+\])", "[!", pattern))).match


class Protection:
    """The protected names of one workspace. `above` is the path of the workspace itself."""

    def __init__(self, rules: Collection[str], above: Sequence[str] = ()) -> None:
        self._above = tuple(map(fold_name, above))
        self._exact_rules: dict[str, str] = {}
        self._patterns: list[tuple[NameMatcher, str]] = []
        self._path_rules: list[tuple[list[NameMatcher], str]] = []
        self.repositories: Final = "*.git" in rules
        """True if every git repository is protected, under any name."""
        literals: list[tuple[str, ...]] = []
        for rule in rules:
            parts = tuple(rule.split("/"))
            plain = tuple(map(fold_name, parts))
            is_literal = not re.search(r"[*?\[]", rule)
            if len(parts) > 1:
                self._path_rules.append(([_name_matcher(part) for part in plain], rule))
            elif is_literal:
                self._exact_rules.setdefault(plain[0], rule)
            else:
                self._patterns.append((_name_matcher(plain[0]), rule))
            if is_literal:
                above = self._above
                literals += (parts[at:] for at in range(len(parts)) if not at or above[-at:] == plain[:at])
        self.literals: Final = tuple(dict.fromkeys(literals))
        """The paths at the top of the workspace in rules without a pattern."""

    def rule_for(self, parts: Sequence[str]) -> str | None:
        """The rule that protects this path; None if it may be written."""
        return next((rule for at, name in enumerate(parts) if (rule := self.rule_at(parts[:at], name))), None)

    def rule_at(self, folder: Sequence[str], name: str) -> str | None:
        """The rule for `name` itself, in a folder that no rule protects."""
        plain = fold_name(name)
        found = self._exact_rules.get(plain) or next((rule for fits, rule in self._patterns if fits(plain)), None)
        if found is None and self.depends_on_folder(name):
            names = (*self._above, *map(fold_name, folder), plain)
            for steps, rule in self._path_rules:
                last = names[-len(steps) :]
                if len(last) == len(steps) and all(fits(each) for fits, each in zip(steps, last, strict=True)):
                    return rule
        return found

    def depends_on_folder(self, name: str) -> bool:
        """True if a rule might hold for `name` in one folder and not in another."""
        plain = fold_name(name)
        return any(steps[-1](plain) for steps, _ in self._path_rules)


def make_protection(
    protect: Iterable[str] = (), unprotect: Iterable[str] = (), above: Sequence[str] = ()
) -> Protection:
    """The default rules, with the host's additions and without its exceptions."""
    added, taken = _protected_names("protect", protect), _protected_names("unprotect", unprotect)
    for name in taken:
        if name not in PROTECTED_NAMES:
            raise InvalidArgument("unprotect", name, "one of holdfast.toolkits.files.PROTECTED_NAMES")
    # Unprotecting a pattern also removes the listed names that it matches.
    kept = [rule for rule in PROTECTED_NAMES if not any(rule == name or match_name(rule, name) for name in taken)]
    return Protection((*kept, *added), above)


def fold_name(name: str) -> str:
    """A name as the most lenient file system compares it."""
    if _PLAIN.fullmatch(name):  # nearly all names of nearly all workspaces
        return name.lower()
    visible = "".join(
        char
        for char in unicodedata.normalize("NFKC", name).casefold()
        if unicodedata.category(char) not in {"Cf", "Cc"}
        and not any(low <= ord(char) <= high for low, high in _IGNORED)
    )
    # On Windows, text after a colon names a stream of the same file, and trailing spaces and dots are ignored.
    return unicodedata.normalize("NFKC", visible).partition(":")[0].rstrip(" .")


def _protected_names(what: str, given: Iterable[str]) -> tuple[str, ...]:
    wanted = "a sequence of names such as ('.env', 'deploy/keys')"
    if isinstance(given, str):
        raise InvalidArgument(what, given, wanted)
    names = tuple(given)
    for name in names:
        if type(name) is not str or not all(fold_name(part) for part in name.split("/")):
            raise InvalidArgument(what, name, wanted)
    return names


# ---- confined opens: below a directory, even while others rename or link ----

MAX_LINKS: Final = 40
_TRIES: Final = 64
# Non-blocking: a pipe without a writer, or a device without a medium, must not keep the thread for ever.
_ALWAYS: Final = os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_PASSING: Final = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


class Opener(Protocol):
    """Opens `path` below the directory `root`. With `follow`, links are followed while they stay below it."""

    def __call__(self, root: int, path: bytes, flags: int, *, follow: bool, mode: int = 0) -> int:
        """A new descriptor; `OSError` with EXDEV if the path leads out."""
        ...


def choose_opener(root: int) -> Opener:
    """The strictest opener that works here; `ConfinementUnavailable` if none does."""
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):  # an old kernel, or a sandbox that does not know the call
            os.close(open_by_kernel(root, b".", os.O_RDONLY | os.O_DIRECTORY, follow=False))
            return open_by_kernel
    missing = [name for name in ("O_NOFOLLOW", "O_DIRECTORY") if not hasattr(os, name)]
    missing += [call.__name__ for call in (os.open, os.readlink, os.stat) if call not in os.supports_dir_fd]
    if missing:
        raise ConfinementUnavailable(f"there is neither openat2() nor {', '.join(missing)} for directories")
    return open_by_walk


class StoreFolder(OSError):
    """The path leads into a folder in which stores are kept."""

    def __init__(self) -> None:
        super().__init__(errno.EACCES, os.strerror(errno.EACCES))


def refuse_store(opener: Opener) -> Opener:
    """Wrap an opener: it raises `StoreFolder` for every path into a store folder, also by a link."""

    def open_outside(root: int, path: bytes, flags: int, *, follow: bool, mode: int = 0) -> int:
        if _leads_to_store(os.fsdecode(path)):
            raise StoreFolder
        number = opener(root, path, flags, follow=follow, mode=mode)
        try:
            if follow and _leads_to_store(_real_path(number)):
                raise StoreFolder
        except OSError:
            os.close(number)
            raise
        return number

    return open_outside


def _leads_to_store(path: str) -> bool:
    if path.isascii() and FOLDER not in path.lower():
        return False  # nearly all paths; folding names is slow
    return in_store_folder("/".join(fold_name(name) for name in path.split("/")))


def _real_path(number: int) -> str:
    """The path of an open file, with links resolved.

    Raises `StoreFolder` if the system can't say: it might be one.
    """
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
    try:
        return os.fsdecode(fcntl.fcntl(number, getattr(fcntl, "F_GETPATH", 50), bytes(1024)).rstrip(b"\0"))
    except OSError:
        raise StoreFolder from None


def open_by_kernel(root: int, path: bytes, flags: int, *, follow: bool, mode: int = 0) -> int:
    """Open by openat2(): the kernel resolves the path below `root` in one step, which no rename can disturb."""
    resolve = 0x08 | 0x02 | (0 if follow else 0x04)  # RESOLVE_BENEATH, NO_MAGICLINKS and NO_SYMLINKS
    how = struct.pack("=QQQ", flags | _ALWAYS, mode, resolve)  # struct open_how
    call = ctypes.c_long(547 if platform.machine() == "alpha" else 437)  # the same everywhere else
    given = ctypes.c_int(root), ctypes.c_char_p(path), ctypes.c_char_p(how), ctypes.c_size_t(len(how))
    for _ in range(_TRIES):
        number = int(_libc().syscall(call, *given))
        if number >= 0:
            return number
        failed = ctypes.get_errno()
        # EAGAIN: a directory on the way was renamed just now, so the kernel can't vouch for a '..' in a link.
        if failed not in {errno.EAGAIN, errno.EINTR}:
            raise OSError(failed, os.strerror(failed))
    raise OSError(errno.EAGAIN, "the directories on the way do not keep still")


@cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return library


def open_by_walk(root: int, path: bytes, flags: int, *, follow: bool, mode: int = 0) -> int:
    """Open name by name, from one open directory to the next, never through a link that the system follows."""
    if path.startswith(b"/"):
        raise _leaves_root()
    folders = [root]
    links = 0
    todo = deque(_names(path))
    try:
        while todo:
            name, here = todo.popleft(), folders[-1]
            if name == b"..":
                # Back to the directory the walk came from, not to the system's current parent.
                if len(folders) == 1:
                    raise _leaves_root()
                os.close(folders.pop())
                continue
            # O_NOFOLLOW: a link is noticed at the moment of its use.
            wanted = _PASSING | os.O_CLOEXEC if todo else flags | _ALWAYS | os.O_NOFOLLOW
            try:
                number = os.open(name, wanted, mode, dir_fd=here)
            except OSError as error:
                if error.errno not in {errno.ELOOP, errno.EMLINK, errno.ENOTDIR}:
                    raise
                links += 1
                todo.extendleft(reversed(_link_target(here, name, error, follow=follow and links <= MAX_LINKS)))
                if links > MAX_LINKS:
                    raise
            else:
                if not todo:
                    return number
                folders.append(number)
        return os.open(b".", flags | _ALWAYS, mode, dir_fd=folders[-1])
    finally:
        for folder in folders[1:]:
            os.close(folder)


def _link_target(folder: int, name: bytes, error: OSError, *, follow: bool) -> list[bytes]:
    """The names to which a link leads; its own name if a directory has just replaced it."""
    try:
        target = os.readlink(name, dir_fd=folder)
    except OSError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise error from None
        return [name]
    if not follow:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if target.startswith(b"/"):
        raise _leaves_root()
    return _names(target)


def _names(path: bytes) -> list[bytes]:
    names = [name for name in path.split(b"/") if name not in {b"", b"."}]
    # A path that ends in a slash must be a directory.
    return [*names, b"."] if names and path.endswith((b"/", b"/.")) else names


def _leaves_root() -> OSError:
    return OSError(errno.EXDEV, os.strerror(errno.EXDEV))


# ---- the workspace and its files ----

_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link",
}
_REASONS: Final = {
    errno.EACCES: "there is no permission",
    errno.EPERM: "there is no permission",
    errno.EROFS: "this file system can only be read",
    errno.ENOSPC: "there is no room on the disk",
    errno.EDQUOT: "there is no room left for this user",
    errno.EFBIG: "the file system does not take files of this size",
    errno.EIO: "the disk failed",
    errno.EMFILE: "too many files are open; try again",
    errno.ENFILE: "too many files are open; try again",
    errno.EAGAIN: "the directories on the way are being renamed; try again",
    errno.ENAMETOOLONG: "the path is too long",
    errno.ENOTEMPTY: "a directory is there",
}


class Workspace:
    """One directory of the host, opened once, so that no other can take its place later.

    With `own` it belongs to Holdfast itself, such as the mirror of memory, and may be in a store folder.
    """

    def __init__(
        self, root: Path | str, *, opener: Opener | None = None, hard_links: bool = False, own: bool = False
    ) -> None:
        if not isinstance(root, (str, Path)):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("root", root, "the path of a directory")
        root = Path(root)
        try:
            self.path: Final = os.path.realpath(root)
            """Its real path when it was opened."""
            self.root: Final = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            wanted = f"a directory that exists and can be read ({error.strerror})"
            raise InvalidArgument("root", str(root), wanted) from error
        if in_store_folder(self.path) and not own:
            os.close(self.root)
            raise InvalidArgument("root", str(root), f"a directory outside of {FOLDER}, where stores are kept")
        self.close: Final = weakref.finalize(self, os.close, self.root)
        """Closes the directory; nothing can be opened through it any more."""
        self._hard_links: Final = hard_links
        opener = choose_opener(self.root) if opener is None else opener
        self.opener: Final = opener if own else refuse_store(opener)

    @contextmanager
    def file(self, path: bytes, label: str, *, below: int | None = None, follow: bool = True) -> Generator[int]:
        """A regular file, open for reading."""
        with self._open(path, label, os.O_RDONLY, below, follow=follow) as number:
            with translate_errors(label):
                self.check_file(os.fstat(number), label)
            yield number

    def directory(
        self, path: bytes, label: str, *, below: int | None = None, follow: bool = True
    ) -> AbstractContextManager[int]:
        """A directory, open for reading."""
        return self._open(path, label, os.O_RDONLY | os.O_DIRECTORY, below, follow=follow)

    @contextmanager
    def _open(self, path: bytes, label: str, flags: int, below: int | None, *, follow: bool) -> Generator[int]:
        with translate_errors(label):
            number = self.opener(self.root if below is None else below, path, flags, follow=follow)
        try:
            yield number
        finally:
            os.close(number)

    def check_file(self, found: os.stat_result, label: str) -> None:
        """Refuse all but regular files, and files with other names, which may be elsewhere."""
        if not stat.S_ISREG(found.st_mode):
            raise WrongKind(label, describe_kind(found.st_mode), "a file")
        if found.st_nlink > 1 and not self._hard_links:
            raise PathRefused(label, "it is a hard link: the same file has other names, which may be elsewhere")


def describe_kind(mode: int) -> str:
    """The kind of a path that is not a file, in words for a model."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")


def read_bytes(number: int, label: str, limit: int, advice: str) -> bytes:
    """The whole file, if it is within `limit`."""
    return b"".join(read_chunks(number, label, limit, advice))


def read_chunks(number: int, label: str, limit: int, advice: str) -> Iterator[bytes]:
    """The file in chunks. It may grow meanwhile, so the bytes read count against `limit`, not the size."""
    with translate_errors(label):
        size = os.fstat(number).st_size
        if size > limit:
            raise FileTooLarge(label, size, limit, advice)
        seen = 0
        while chunk := os.read(number, 256 * 1024):
            seen += len(chunk)
            if seen > limit:
                raise FileTooLarge(label, seen, limit, advice)
            yield chunk


@contextmanager
def translate_errors(label: str) -> Generator[None]:
    """Turn errors of the system into errors with words for a model."""
    try:
        yield
    except OSError as error:
        raise _as_holdfast_error(error, label) from error


def _as_holdfast_error(error: OSError, label: str) -> HoldfastError:
    if isinstance(error, StoreFolder):
        return PathRefused(label, f"it leads into {FOLDER}, where stores are kept")
    match error.errno:
        case errno.ENOENT:
            return FileMissing(label)
        case errno.ENOTDIR:
            return WrongKind(label, "a file, or below a file", "a directory")
        case errno.EISDIR:
            return WrongKind(label, "a directory", "a file")
        case errno.ENXIO | errno.ENODEV | errno.EOPNOTSUPP:
            return WrongKind(label, "a pipe, a socket or a device", "a file")
        case errno.EXDEV:
            return PathRefused(label, "it leads out of the workspace")
        case errno.ELOOP | errno.EMLINK:
            return PathRefused(label, "there is a symbolic link in it which is not followed; name the real path")
        case number:
            return FileFailed(label, _REASONS.get(number or 0, error.strerror or "the system refused"))


# ---- paths ----

MAX_DEPTH: Final = 64
MAX_NAME: Final = 255
MAX_PATH: Final = 4_000


def parse_path(given: str) -> PurePosixPath:
    """Parse a path of a model, ``.`` for the workspace itself; `PathRefused` if it leads out or is invalid."""
    try:
        size = len(given.encode())
    except UnicodeEncodeError:
        raise PathRefused(given, "it has half a surrogate pair, which no path here can have") from None
    parts = tuple(part for part in given.split("/") if part not in {"", "."})
    for is_wrong, reason in (
        (size > MAX_PATH, f"it has more than {MAX_PATH:,} bytes"),
        (any(unicodedata.category(char) == "Cc" for char in given[:MAX_PATH]), "it has control characters"),
        ("\\" in given, "it has a backslash; directories are separated by '/'"),
        (given.startswith("/"), "it is absolute; paths begin at the workspace, so write it without the leading '/'"),
        (len(parts) > MAX_DEPTH, f"it is more than {MAX_DEPTH} directories deep"),
        (any(len(part.encode()) > MAX_NAME for part in parts), f"a name in it has more than {MAX_NAME} bytes"),
        (".." in parts, "'..' leads upwards; write the path from the workspace on, without '..'"),
        (parts[:1] == ("~",), "there is no home directory here; paths begin at the workspace"),
    ):
        if is_wrong:
            raise PathRefused(given, reason)
    return PurePosixPath(*parts)


def parse_file_path(given: str) -> PurePosixPath:
    """Parse the path of a file: not the workspace itself, and not a path that ends like a directory."""
    place = parse_path(given)
    if not place.parts:
        raise PathRefused(given, "it is the workspace itself; name a file in it")
    if given.endswith(("/", "/.")):
        raise PathRefused(given, "it ends like a directory; name a file")
    return place


def printable_name(name: bytes) -> str:
    """A name on the disk as text; bytes that are not UTF-8 or not printable are escaped."""
    text = name.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


# ---- walks ----

SKIPPED: Final[tuple[str, ...]] = (
    *(".git", ".hg", ".svn", ".jj", "node_modules", "__pycache__", ".venv", ".tox", ".nox"),
    *(".mypy_cache", ".ruff_cache", ".pytest_cache"),
)
"""Directories that a walk does not enter unless it begins there."""


@dataclass(frozen=True, slots=True)
class WalkEntry:
    """An entry of a directory. `path` opens it from the beginning of the walk."""

    path: bytes
    shown: str
    mode: int
    """With the kind of the entry."""
    size: int


class DirectoryWalk:
    """A walk down from one open directory, within a limit of time and of entries."""

    def __init__(self, workspace: Workspace, skip: Collection[str], seconds: float, entries: int) -> None:
        self._workspace = workspace
        self._skip = {name.encode() for name in skip}
        self._seconds = seconds
        self.until: Final = time.monotonic() + seconds
        self._most = self._left = entries
        self.over: str | None = None
        """The limit that ended the walk."""
        self.unread = 0
        """Directories that could not be opened."""

    def entries(self, below: int, *, recursive: bool) -> Iterator[WalkEntry]:
        """Every entry below a directory, each directory before its contents, sorted by name."""
        todo = [iter(self._inside(below, b"."))]
        while todo:
            entry = next(todo[-1], None)
            if entry is None:
                todo.pop()
                continue
            yield entry
            enters = stat.S_ISDIR(entry.mode) and entry.path.rpartition(b"/")[2] not in self._skip
            if recursive and enters and len(todo) < MAX_DEPTH:
                todo.append(iter(self._inside(below, entry.path)))

    def _inside(self, below: int, path: bytes) -> list[WalkEntry]:
        prefix = b"" if path == b"." else path + b"/"
        try:
            # From the beginning of the walk, without links: a directory that became a link meanwhile is not entered.
            with self._workspace.directory(path, printable_name(path), below=below, follow=False) as number:
                return sorted(self._scan(number, prefix), key=lambda entry: entry.path)
        except HoldfastError:
            if path == b".":
                raise
            self.unread += 1
            return []

    def _scan(self, number: int, prefix: bytes) -> Iterator[WalkEntry]:
        with translate_errors(printable_name(prefix) or "."), os.scandir(number) as scan:
            for item in scan:
                if self._left <= 0:
                    self.over = f"it stopped after {self._most:,} entries"
                elif time.monotonic() > self.until:
                    self.over = f"it stopped after {self._seconds:g} seconds"
                if self.over is not None:
                    return
                self._left -= 1
                try:
                    found = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # it was removed meanwhile
                if not in_store_folder(item.name):
                    path = prefix + os.fsencode(item.name)
                    yield WalkEntry(path, printable_name(path), found.st_mode, found.st_size)


# ---- limits ----


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """The limits of the file tools."""

    read_bytes: int = 64 * 1024 * 1024
    """Largest file that is read in pages."""
    write_bytes: int = 4 * 1024 * 1024
    """Largest file that is written or edited."""
    search_bytes: int = 16 * 1024 * 1024
    """Largest file that is searched."""
    page_lines: int = 1_000
    """Most lines of one answer."""
    page_chars: int = 60_000
    """Most characters of one answer."""
    line_chars: int = 2_000
    """Longest line shown; the rest is cut."""
    entries: int = 500
    """Most entries of one list."""
    visited: int = 100_000
    """Most entries that one list or search visits."""
    matches: int = 200
    """Most matches of one search."""
    seconds: float = 5.0
    """Longest time of one list or search."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            whole = field.name != "seconds"
            kinds = (int,) if whole else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value) or value <= 0:
                raise InvalidNumber(field.name, value, f"a {'whole ' if whole else ''}number above 0 is wanted")


# ---- git repositories ----

HEAD: Final = "HEAD"


def is_repository(directory: int) -> bool:
    """True if git accepts this open directory as a repository, without any `.git` around it.

    HEAD may be a dangling link, and objects and refs may be links: git accepts that.
    """
    if not _exists(directory, HEAD, folder=False):
        return False
    # The file `commondir` names the directory with objects and refs.
    return _exists(directory, "commondir") or (_exists(directory, "objects") and _exists(directory, "refs"))


def _exists(directory: int, name: str, *, folder: bool = True) -> bool:
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return folder or not stat.S_ISDIR(found.st_mode)
