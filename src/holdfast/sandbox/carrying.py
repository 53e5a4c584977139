"""The variables that live on from one program to the next: their values, as JSON.

They are values and nothing else, so that they can be recorded, read by people, and given to any version of the sandbox.
A function, a class or a set does not live on; whoever wrote the program is told which names were dropped, and why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.sandbox.steps import Kept
from holdfast.sandbox.tracebacks import Thrown
from holdfast.sandbox.values import NotPlain, has_lookalike, plain, too_large

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container

    from holdfast.sandbox.events import Completed
    from holdfast.sandbox.limits import ProgramLimits

    Ask = Callable[[str], Awaitable[Completed | Thrown]]
    """What a piece of code comes to, after the program."""

MAX_NAMES: Final = 1_000
"""How many variables live on."""
_NAME: Final = 200
_TOLD: Final = 50
_PROBE: Final = "import json as _hf_json\n_hf_json.dumps({name})\n''"


async def kept_of(ask: Ask, taken: Container[str], limits: ProgramLimits) -> Kept | None:
    """The variables of a program that has ended; None if they can't be read. `taken` are the names of tools."""
    found = await ask("list(locals())")
    if isinstance(found, Thrown):
        return None
    listed = cast("list[object]", found.value) if isinstance(found.value, list) else []
    names = sorted({name for name in listed if isinstance(name, str)})
    return await _kept(ask, [name for name in names if name not in taken and _lives_on(name)], limits)


def _lives_on(name: str) -> bool:
    return not name.startswith("_") and len(name) <= _NAME and name.isidentifier()


async def _kept(ask: Ask, names: list[str], limits: ProgramLimits) -> Kept:
    values: dict[str, Any] = {}
    dropped: dict[str, str] = {}
    room = limits.variables
    for n, name in enumerate(names):
        if n >= MAX_NAMES:
            dropped["..."] = f"more than {MAX_NAMES:,} variables"
            break
        try:
            value, size = plain(await _value(ask, name, room), room)
            if has_lookalike(value):
                await _check_json(ask, name, value)
        except NotPlain as reason:
            if reason.args and len(dropped) < _TOLD:
                dropped[name] = str(reason)
            continue
        values[name] = value
        room -= size
    return Kept(values, dropped)


async def _value(ask: Ask, name: str, room: int) -> object:
    found = await ask(name)
    if isinstance(found, Thrown):
        raise NotPlain(found.summary()[:_NAME])
    if found.too_large:
        raise too_large(room)
    return found.value


async def _check_json(ask: Ask, name: str, value: object) -> None:
    """What arrived as a text may be a function: the sandbox itself knows. Nobody is told of modules."""
    if not isinstance(await ask(_PROBE.format(name=name)), Thrown):
        return
    if isinstance(value, str) and value.startswith("<module "):
        raise NotPlain
    raise NotPlain("it is or has something that is no plain value, such as a function")
