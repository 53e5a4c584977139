"""Memory: changed meanwhile, full, damaged."""

from __future__ import annotations

from holdfast.errors.tree import StoreError, UsageError


class MemoryConflict(UsageError):
    """The entry is not in the version that was expected. `current` is 0 when there is none."""

    def __init__(self, scope: str, key: str, expected: int, current: int) -> None:
        wanted = f"version {expected} was expected" if expected else "it was expected not to exist"
        found = f"it is at version {current}" if current else "it does not exist"
        super().__init__(f"the memory {key!r} of {scope!r} has changed: {wanted}, {found}; read it again")
        self.scope = scope
        self.key = key
        self.expected = expected
        self.current = current


class MemoryFull(StoreError):
    """A scope of memory has reached its limit of entries or of bytes."""

    def __init__(self, scope: str, what: str, limit: int) -> None:
        super().__init__(f"the memory of {scope!r} has room for {limit:,} {what}; remove something, or raise the limit")
        self.scope = scope
        self.what = what
        self.limit = limit


class MemoryCorrupt(StoreError):
    """An entry of memory does not match its checksum. Others go on."""

    def __init__(self, scope: str, key: str) -> None:
        super().__init__(
            f"the memory {key!r} of {scope!r} does not match its checksum; write it anew, or restore it from a backup"
        )
        self.scope = scope
        self.key = key
