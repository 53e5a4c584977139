"""What can go wrong with files, in words that a model can act on. No message names a path outside of the workspace."""

from __future__ import annotations

from holdfast.errors import UsageError, WorldError


class ConfinementUnavailable(WorldError):
    """This system can't keep an open below a directory; the files of a workspace are not offered here."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"files can't be confined to a directory on this system: {reason}; "
            "use Linux 5.6 or newer, or a system that has openat() with O_NOFOLLOW"
        )
        self.reason = reason


class PathRefused(UsageError):
    """A path that this workspace does not open."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{shown_path(path)} is refused: {reason}")
        self.path = path
        self.reason = reason


class PathProtected(PathRefused):
    """A name that is never written, because others act on what it says."""

    def __init__(self, path: str, rule: str) -> None:
        super().__init__(
            path, f"{rule!r} is protected, because other programs act on what it says; ask a person to make this change"
        )
        self.rule = rule


class FileMissing(WorldError):
    """Nothing is there."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{shown_path(path)} does not exist; list_files shows what there is")
        self.path = path


class WrongKind(WorldError):
    """Something else is there than what was asked for: a directory, a pipe, a device, a socket."""

    def __init__(self, path: str, found: str, wanted: str) -> None:
        super().__init__(f"{shown_path(path)} is {found}, not {wanted}")
        self.path = path
        self.found = found


class NotText(WorldError):
    """The file is not UTF-8 text."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{shown_path(path)} is not UTF-8 text: {reason}; these tools work on text")
        self.path = path
        self.reason = reason


class FileTooLarge(UsageError):
    """More bytes than this workspace reads or writes."""

    def __init__(self, path: str, size: int, limit: int, advice: str) -> None:
        super().__init__(f"{shown_path(path)} has {size:,} bytes or more, the limit is {limit:,}; {advice}")
        self.path = path
        self.size = size
        self.limit = limit


class EditMismatch(UsageError):
    """The text to replace is not in the file exactly as often as it must be. Nothing was changed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{shown_path(path)} was not changed: {reason}")
        self.path = path
        self.reason = reason


class FileChanged(WorldError):
    """Somebody else wrote the file meanwhile. Nothing was changed by this call."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{shown_path(path)} was changed by somebody else meanwhile; read it again, then decide")
        self.path = path


class FileFailed(WorldError):
    """The system refused: no permission, no room, a failing disk."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{shown_path(path)} could not be used: {reason}")
        self.path = path
        self.reason = reason


class PatternInvalid(UsageError):
    """A regular expression or a glob that means nothing."""

    def __init__(self, what: str, pattern: str, reason: str) -> None:
        super().__init__(f"the {what} {pattern[:200]!r} is not valid: {reason}")
        self.pattern = pattern
        self.reason = reason


class SearchStopped(WorldError):
    """The search took longer, or more memory, than it may, and had found nothing yet."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}; nothing was found until then. Narrow it with path and glob, or use a simpler pattern"
        )
        self.reason = reason


class SearchUnavailable(WorldError):
    """Searching needs a Python process of its own, and none can be started here."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"files can't be searched here: {reason}; read_file and list_files still work")
        self.reason = reason


def shown_path(path: str) -> str:
    """A path in quotes, with what can't be printed escaped, and not longer than anybody reads."""
    return repr(path if len(path) <= 300 else f"{path[:300]}...")
