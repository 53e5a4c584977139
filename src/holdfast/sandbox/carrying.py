"""The variables that live on from one program to the next: their values, as JSON.

They are values and nothing else, so that they can be recorded, read by people, and given to any version of the sandbox.
A function, a class or a set does not live on; whoever wrote the program is told which names were dropped, and why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import pydantic_monty as monty

from holdfast.sandbox.steps import Kept
from holdfast.sandbox.values import NotPlain, has_lookalike, plain

if TYPE_CHECKING:
    from collections.abc import Container

    from holdfast.sandbox.limits import ProgramLimits

MAX_NAMES: Final = 1_000
"""How many variables live on."""
_NAME: Final = 200
_TOLD: Final = 50
_PROBE: Final = "import json as _hf_json\n_hf_json.dumps({name})\n''"


def kept_of(session: monty.MontySession, taken: Container[str], limits: ProgramLimits) -> Kept | None:
    """The variables of a program that has ended; None if they can't be read. `taken` are the names of tools."""
    try:
        names = _names(session)
        return _kept(session, [name for name in names if name not in taken and _lives_on(name)], limits)
    except monty.MontyError:
        return None


def _lives_on(name: str) -> bool:
    return not name.startswith("_") and len(name) <= _NAME and name.isidentifier()


def _names(session: monty.MontySession) -> list[str]:
    found: object = session.feed_run("list(locals())", skip_type_check=True, print_callback=_silent)
    listed = cast("list[object]", found) if isinstance(found, list) else []
    return sorted({name for name in listed if isinstance(name, str)})


def _kept(session: monty.MontySession, names: list[str], limits: ProgramLimits) -> Kept:
    values: dict[str, Any] = {}
    dropped: dict[str, str] = {}
    room = limits.variables
    for n, name in enumerate(names):
        if n >= MAX_NAMES:
            dropped["..."] = f"more than {MAX_NAMES:,} variables"
            break
        try:
            value, size = plain(_value(session, name), room)
            if has_lookalike(value):
                _check_json(session, name, value)
        except NotPlain as reason:
            if reason.args and len(dropped) < _TOLD:
                dropped[name] = str(reason)
            continue
        values[name] = value
        room -= size
    return Kept(values, dropped)


def _value(session: monty.MontySession, name: str) -> object:
    try:
        return session.feed_run(name, skip_type_check=True, print_callback=_silent)
    except monty.MontyRuntimeError as error:
        raise NotPlain(error.display("type-msg")[:_NAME]) from None


def _check_json(session: monty.MontySession, name: str, value: object) -> None:
    """What arrived as a text may be a function: the sandbox itself knows. Nobody is told of modules."""
    try:
        session.feed_run(_PROBE.format(name=name), skip_type_check=True, print_callback=_silent)
    except monty.MontyRuntimeError:
        if isinstance(value, str) and value.startswith("<module "):
            raise NotPlain from None
        raise NotPlain("it is or has something that is no plain value, such as a function") from None


def _silent(_stream: str, _text: str) -> None:
    """Nothing that is asked here prints."""
