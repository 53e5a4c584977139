"""What can go wrong with a command of the memory tool, in words that a model can act on."""

from __future__ import annotations

from holdfast.errors import UsageError, WorldError
from holdfast.hands.files.errors import shown_path


class PathInvalid(UsageError):
    """A path that names no memory."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{shown_path(path)} names no memory: {reason}. Write it like '/memories/notes.md'")
        self.path = path
        self.reason = reason


class NothingThere(WorldError):
    """There is no such file."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{shown_path(path)} does not exist; view '/memories' to see what there is")
        self.path = path


class FileExists(UsageError):
    """There is a file already. Nothing was changed."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{shown_path(path)} exists already; change it with str_replace or insert, or delete it first")
        self.path = path


class EditRefused(UsageError):
    """An edit that can't be made as it was asked for. Nothing was changed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{shown_path(path)} was not changed: {reason}")
        self.path = path
        self.reason = reason


class MemoryChanged(WorldError):
    """Somebody else changed the file meanwhile. Nothing was changed by this call."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{shown_path(path)} was changed by somebody else meanwhile; view it again, then decide")
        self.path = path


class OutcomeUnclear(WorldError):
    """Whether an interrupted command was carried out can't be told: the file was changed too often since."""

    def __init__(self, path: str) -> None:
        super().__init__(f"whether {shown_path(path)} was changed by an interrupted call can't be told; view it")
        self.path = path
