"""The names of a turn's effects. The n-th effect of a turn is always the same effect, so its key is its number.

``t3/1.model``, ``t3/2.tools/1.refund``, ``t3/3.checkpoint``; what a tool does inside hangs below its call. A program is
a call, and those that it makes have places below it that no step of a tool can have:
``t3/2.tools/1.run_program/%call-7.refund``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, NamedTuple

NESTED: Final = "/%call-"
"""What stands between the key of a program and the number of a call that it made."""
DEFERRAL: Final = "%defer"
"""What the place below a call is called in which it stands that its result is given from outside."""
RETURNED: Final = "%deferred"
"""The same, for that the tool has come to its end, and only the answer is missing."""
TAINTED: Final = "%tainted"
"""The place below a call for the record that says which tainted file it reads."""
_MADE: Final = NESTED[1:]
EffectName = Literal["model", "tools", "checkpoint"]


class EffectKey(NamedTuple):
    """A key taken apart. `call` is 0 for effects that are not tool calls."""

    run: str
    number: int
    name: str
    call: int
    inner: bool
    """Below a tool call: the tool's own steps and waits. Below a model call: what made room for it."""
    nested: int = 0
    """The number of the call that a program made, which it is or is below; 0 for all that no program did."""


def turn_id(number: int) -> str:
    """The id of the turn that begins with input `number`."""
    return f"t{number}"


def input_number(run: str) -> int | None:
    """The number of the input that began `run`; None when this is not the id of a turn."""
    return _number(run[1:]) if run[:1] == "t" and run[1:2] != "0" else None


def effect_key(run: str, number: int, name: EffectName) -> str:
    """The key of an effect, or of a batch of tool calls."""
    return f"{run}/{number}.{name}"


def call_key(run: str, number: int, call: int, tool: str) -> str:
    """The key of one call of a batch; calls count from 1. A name that no tool can have is left out."""
    return f"{run}/{number}.tools/{call}.{tool_name_in_key(tool)}"


def nested_key(program: str, call: int, tool: str) -> str:
    """The key of one call of a program, whose own key is `program`; calls count from 1."""
    return f"{program}{NESTED}{call}.{tool_name_in_key(tool)}"


def record_name(session: str, key: str) -> str:
    """The outcome of a call, as people are told of it."""
    return f"{tool_in_key(key)}, {key} of {session}" if session else f"{tool_in_key(key)}, {key}"


def tool_in_key(key: str) -> str:
    """The name of the tool in the key of a call."""
    return key.rpartition("/")[2].partition(".")[2]


@lru_cache(maxsize=1_024)
def tool_name_in_key(tool: str) -> str:
    """The name of a tool as it stands in keys: one that no tool can have is left out."""
    return tool if tool.replace("_", "").replace("-", "").isalnum() and tool.isascii() and len(tool) <= 64 else "tool"


def parse_key(key: str) -> EffectKey | None:
    """What `key` stands for; None when it is not the key of a turn's effect."""
    run, _, rest = key.partition("/")
    effect, _, below = rest.partition("/")
    number, dot, name = effect.partition(".")
    if not dot or (counted := _number(number)) is None:
        return None
    call, _, inner = below.partition("/")
    called = _number(call.partition(".")[0]) or 0
    if inner.startswith(_MADE) and called and name == "tools":
        made, _, inside = inner[len(_MADE) :].partition("/")
        nested = _number(made.partition(".")[0]) or 0
        if nested:
            return EffectKey(run, counted, name, called, bool(inside), nested)
    below_it = bool(inner) or (bool(below) and name != "tools")
    return EffectKey(run, counted, name, called, below_it)


def _number(digits: str) -> int | None:
    return int(digits) if len(digits) <= 18 and digits.isascii() and digits.isdigit() else None
