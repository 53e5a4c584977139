"""Programs as a model is offered them: the one tool of an agent in code mode, and the functions that programs have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.messages import ToolSpec
from holdfast.sandbox.stubs import declarations, stubs_of
from holdfast.tools.decorator import tool
from holdfast.turns.programs import FINISH, PROGRAM

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.messages import OutputSpec
    from holdfast.sandbox.stubs import Stub
    from holdfast.tools.definition import AnyTool

_TOOL: Final = (
    "Run a Python program that can call the functions which your instructions declare. "
    "You read the value of its last expression, and what it printed."
)
_RULES: Final = """\
You act by writing Python programs for the tool `run_program`. The functions below are all that a program can do in \
the world. Each is async: write `await name(...)`; what they give are plain values (dicts, lists, texts, numbers). \
For calls that do not depend on each other write `await asyncio.gather(...)`. A call that fails or is not allowed \
raises an exception with the reason (PermissionError where it is not allowed), which the program may catch. The \
types are checked before anything runs. You read the value of the last expression, and what was printed.

Variables that hold plain values live on: the next program has them, also in later turns. Functions, classes and \
names that begin with `_` do not. Print or return only what you need to read.

The language is a part of Python: no files, no network, no `yield`, no inheritance, no decorators on methods, no \
`asyncio.create_task`. Of the standard library there are asyncio, collections, datetime, decimal, functools, \
itertools, json, math, random, re, time, typing and a few more. Top-level `await` is allowed."""
_FINISH: Final = "End your turn with this value as the answer. Nothing of the program runs after it."


def functions(specs: Iterable[ToolSpec], output: OutputSpec | None) -> tuple[Stub, ...]:
    """What programs can call: the tools, and the function that ends the turn."""
    return stubs_of([*specs, _finish(output)])


def told(stubs: Iterable[Stub]) -> str:
    """What a model must know to write programs that have these functions.

    It is for the instructions: some providers take only short descriptions of tools.
    """
    return f"{_RULES}\n\n```python\n{declarations(stubs)}```"


def program_tool() -> AnyTool:
    """The tool with which a model runs programs. Whoever runs the turn does the work."""

    @tool(PROGRAM, idempotent=True, background=False, description=_TOOL)
    async def run_program(source: str) -> Any:  # noqa: ANN401  what a program comes to
        raise NotImplementedError(source)

    return run_program


def _finish(output: OutputSpec | None) -> ToolSpec:
    schema: dict[str, Any] = {} if output is None else dict(output.schema)
    shared = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
    parameters = {"type": "object", "properties": {"value": schema}, "required": ["value"], **shared}
    return ToolSpec(FINISH, _FINISH, parameters)
