"""What a sandbox for programs is, so that there can be others than the one that comes with this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.sandbox.limits import ProgramLimits
    from holdfast.sandbox.steps import Result, Step
    from holdfast.sandbox.stubs import Stub


@runtime_checkable
class Program(Protocol):
    """One program. It runs only between `run` or `answer` and the step that they give."""

    @property
    def digest(self) -> str:
        """What the program is; the ids of its calls follow from it (`call_id`)."""
        ...

    async def run(self, recorded: Sequence[Result] = (), *, begun: bool = False) -> Step:
        """Begin. With `recorded` results, go on to the first step that they have no answer for: that is a replay.

        So it is with `begun`, though nothing has a result yet: it was found right when it began, and is not checked.

        Raises `ProgramDiverged` when the program makes other calls than those that were recorded.
        """
        ...

    async def answer(self, results: Sequence[Result]) -> Step:
        """Go on with results of calls that wait, in the order in which they were recorded. At least one."""
        ...

    async def snapshot(self) -> bytes | None:
        """The program as it stands, sealed, to go on from without a replay. None where there is none to be had."""
        ...

    async def close(self) -> None:
        """End the program and its worker, whatever it is doing. Can be called at any time, and more than once."""
        ...


@runtime_checkable
class Sandbox(Protocol):
    """Runs programs that nobody trusts."""

    async def start(  # noqa: PLR0913  one keyword for each thing that a program begins with
        self,
        source: str,
        *,
        tools: Sequence[Stub] = (),
        globals: Mapping[str, Any] | None = None,
        limits: ProgramLimits | None = None,
        seed: str = "",
        snapshot: bytes | None = None,
    ) -> Program:
        """A program that is ready to run. `globals` are the variables that the one before left (`Ended.kept`).

        `seed` is where its random numbers come from. A `snapshot` that does not fit is ignored.
        """
        ...

    async def close(self) -> None:
        """End all programs."""
        ...
