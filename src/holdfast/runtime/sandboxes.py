"""The sandbox of one runtime: made when the first program is run, closed with the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.sandbox import Sandbox

MAX_PROGRAMS: Final = 1_024
"""How many programs of one runtime may be under way at once. One that only waits is none of them."""


class Sandboxes:
    """Where the programs of one runtime run."""

    def __init__(self) -> None:
        self._own: Sandbox | None = None

    def given(self, given: Sandbox | None) -> Sandbox:
        """The sandbox that an agent was given, or the runtime's own."""
        if given is not None:
            return given
        if self._own is None:
            from holdfast.sandbox import MontySandbox  # noqa: PLC0415  loaded with the first program

            self._own = MontySandbox(max_programs=MAX_PROGRAMS)
        return self._own

    async def close(self) -> None:
        """End all programs of the runtime's own sandbox. Whoever gave another one closes it."""
        own, self._own = self._own, None
        if own is not None:
            await own.close()
