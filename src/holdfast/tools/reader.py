"""The tool that reads a kept result. It loads pydantic: import it where the tool is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Protocol

from pydantic import Field

from holdfast.tools.context import Context  # noqa: TC001  read from the signature
from holdfast.tools.decorator import tool
from holdfast.tools.definition import Reach, ToolRetry
from holdfast.tools.results import MAX_LINES, RESULT_READER, read_page, render_page

if TYPE_CHECKING:
    from holdfast.tools.definition import AnyTool


_REACH: Final = Reach(family="tasks", private=True, external=False)


class ResultSource(Protocol):
    """Access to kept results."""

    async def __call__(self, context: Context, id: str, /) -> bytes | None:
        """The bytes that the session of the call may read under this id; None if there are none."""
        ...


def result_reader(source: ResultSource) -> AnyTool:
    """Make the tool that reads results which were too long to be shown whole."""

    @tool(RESULT_READER, read_only=True, background=False, untrusted=True, reach=_REACH)
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
        data = await source(ctx, id)
        if data is None:
            said = f"There is no result with the id {id[:80]!r}. Use an id that stands in a note of this conversation."
            raise ToolRetry(said)
        return render_page(read_page(data, start, lines, skip), id)

    return read_result
