"""What can keep memory from being mirrored as files."""

from __future__ import annotations

from holdfast.errors import WorldError


class MirrorUnavailable(WorldError):
    """The folder can't be used at all. Memory itself goes on."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(f"memory can't be mirrored in {folder}: {reason}")
        self.folder = folder
        self.reason = reason


class MirrorBusy(WorldError):
    """Another process compares the same folder with memory, for longer than anybody waits."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"another process is at work in {folder}; try again")
        self.folder = folder


class MirrorTooLarge(WorldError):
    """More files than one look at a folder takes."""

    def __init__(self, folder: str, limit: int) -> None:
        super().__init__(f"{folder} has more than {limit:,} entries; take out what is no memory")
        self.folder = folder
        self.limit = limit
