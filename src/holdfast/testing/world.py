"""A world that remembers what was done to it, to be compared with what the journal says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from holdfast.effects.boundary import EffectContext
    from holdfast.effects.replay import Repeat


class Attempt(msgspec.Struct, frozen=True):
    """One time that an effect reached the world."""

    journal: str
    key: str
    idempotency_key: str
    repeat: str
    what: str


class World:
    """Remembers attempts: in memory, or in a file that survives the process."""

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._attempts: list[Attempt] = []

    def act(self, journal: str, effect: EffectContext, repeat: Repeat, what: str = "") -> None:
        """Do `what` to the world, on behalf of an effect."""
        attempt = Attempt(journal, effect.key, effect.idempotency_key, repeat.value, what)
        if self.path is None:
            self._attempts.append(attempt)
        else:
            handle = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            try:
                os.write(handle, msgspec.json.encode(attempt) + b"\n")  # one write: a kill leaves a whole line or none
            finally:
                os.close(handle)

    def done(self) -> list[str]:
        """What came of it, in a world that honours idempotency keys: a repetition under the same key adds nothing."""
        return list({attempt.idempotency_key: attempt.what for attempt in self.attempts()}.values())

    def attempts(self) -> list[Attempt]:
        """Everything that ever reached this world, in order."""
        if self.path is None:
            return list(self._attempts)
        if not self.path.exists():
            return []
        return [msgspec.json.decode(line, type=Attempt) for line in self.path.read_bytes().splitlines()]
