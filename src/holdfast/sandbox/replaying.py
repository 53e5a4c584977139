"""Where a program stands, given what was recorded of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.sandbox.contract import Sandbox
    from holdfast.sandbox.limits import ProgramLimits
    from holdfast.sandbox.steps import Result, Step
    from holdfast.sandbox.stubs import Stub


async def replay(  # noqa: PLR0913  one keyword for each thing that a program begins with
    sandbox: Sandbox,
    source: str,
    results: Sequence[Result],
    *,
    tools: Sequence[Stub] = (),
    globals: Mapping[str, Any] | None = None,
    limits: ProgramLimits | None = None,
    seed: str = "",
) -> Step:
    """The step that a program reaches with these recorded results. Nothing is performed or left running."""
    program = await sandbox.start(source, tools=tools, globals=globals, limits=limits, seed=seed)
    try:
        return await program.run(results)
    finally:
        await program.close()
