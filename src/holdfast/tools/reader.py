"""The tool with which a model reads a kept result. It loads pydantic: import it where the tool is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Protocol

from pydantic import Field

from holdfast.tools.context import Context  # noqa: TC001  read from the signature
from holdfast.tools.decorator import tool
from holdfast.tools.definition import Reach, ToolRetry
from holdfast.tools.results import MAX_LINES, READER, page, shown

if TYPE_CHECKING:
    from holdfast.tools.definition import AnyTool


_REACH: Final = Reach(family="tasks", private=True, external=False)
"""It gives what other tools gave, whatever that was."""


class Kept(Protocol):
    """Where kept results are."""

    async def __call__(self, context: Context, id: str, /) -> bytes | None:
        """The bytes that a session may read under this id; None if there are none."""
        ...


def reader(kept: Kept) -> AnyTool:
    """The tool with which a model reads what was too long to be shown to it at once."""

    @tool(READER, read_only=True, background=False, untrusted=True, reach=_REACH)
    async def read_result(
        ctx: Context,
        id: str,
        start: Annotated[int, Field(ge=1)] = 1,
        lines: Annotated[int, Field(ge=1, le=MAX_LINES)] = 500,
        skip: Annotated[int, Field(ge=0)] = 0,
    ) -> str:
        """Read a part of a result that was too long to be shown whole.

        Args:
            ctx: The call.
            id: The id in the note that stands where something was left out.
            start: The number of the first line to read.
            lines: How many lines to read.
            skip: How many bytes of the first line to leave out, if a note says so.
        """
        data = await kept(ctx, id)
        if data is None:
            said = f"There is no result with the id {id[:80]!r}. Use an id that stands in a note of this conversation."
            raise ToolRetry(said)
        return shown(page(data, start, lines, skip), id)

    return read_result
