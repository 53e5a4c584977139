"""When to stop trying: a summariser that fails again and again is left alone for a while. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

FAILURES: Final = 3
"""So many failures in a row open the breaker."""
COOL_DOWN_MS: Final = 300_000
"""After this time one more try is allowed."""


class Breaker(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Of one session. Open: no summary is tried, the oldest messages are dropped instead. Times in milliseconds."""

    failures: int = 0
    """In a row."""
    opened_at: int | None = None

    def allows(self, now: int) -> bool:
        """Whether a summary may be tried. After the cool-down it may: what comes of that decides."""
        # A clock that was set back must not keep it open for longer.
        return self.opened_at is None or not 0 <= now - self.opened_at < COOL_DOWN_MS

    def failed(self, now: int) -> Breaker:
        """After one more failure. If it was tried after a cool-down, another one begins."""
        failures = self.failures + 1
        return Breaker(failures, now if failures >= FAILURES else None)

    def succeeded(self) -> Breaker:
        """After a summary that was accepted."""
        return Breaker()
