"""What every command to a store is."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

R_co = TypeVar("R_co", covariant=True)


class Command(msgspec.Struct, Generic[R_co], frozen=True):
    """One request to change the store; `R_co` is what it answers."""

    def size(self) -> int:
        """The payload, in bytes."""
        return 0
