"""The keys of the effects of a turn. The n-th effect of a turn is always the same effect, so its key is its number.

``t3/1.model``, ``t3/2.tools/1.refund``, ``t3/3.checkpoint``; effects inside a tool have keys below its call. The
calls of a program have keys below it that no step of a tool can have:
``t3/2.tools/1.run_program/%call-7.refund``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, NamedTuple

from holdfast.names import is_turn_id

NESTED: Final = "/%call-"
"""Separates the key of a program from the number of a call that it made."""
DEFERRAL: Final = "%defer"
"""Key suffix of a deferral: the record that the result comes later from outside."""
RETURNED: Final = "%deferred"
"""Key suffix of the record that the tool has returned and only the outside answer is missing."""
TAINTED: Final = "%tainted"
"""Key suffix of the record that names the tainted file which a call reads."""
_MADE: Final = NESTED[1:]
EffectName = Literal["model", "tools", "checkpoint"]


class EffectKey(NamedTuple):
    """A parsed key. `call` is 0 for effects that are no tool calls."""

    run: str
    number: int
    name: str
    call: int
    inner: bool
    """The key is below a tool call (steps and waits of the tool) or a model call (compactions)."""
    nested: int = 0
    """Number of the program's call that it is or belongs to; 0 outside programs."""


def turn_id(number: int) -> str:
    """The id of the turn that begins with input `number`."""
    return f"t{number}"


def input_number(run: str) -> int | None:
    """The number of the input that began the turn `run`; None if `run` is no turn id."""
    return int(run[1:]) if is_turn_id(run) else None


def effect_key(run: str, number: int, name: EffectName) -> str:
    """The key of an effect, or of a batch of tool calls."""
    return f"{run}/{number}.{name}"


def call_key(run: str, number: int, call: int, tool: str) -> str:
    """The key of one call of a batch, counted from 1."""
    return f"{run}/{number}.tools/{call}.{tool_name_in_key(tool)}"


def nested_key(program: str, call: int, tool: str) -> str:
    """The key of one call of the program with the key `program`, counted from 1."""
    return f"{program}{NESTED}{call}.{tool_name_in_key(tool)}"


def record_name(session: str, key: str) -> str:
    """A call as people read it: tool, key and session."""
    return f"{tool_in_key(key)}, {key} of {session}" if session else f"{tool_in_key(key)}, {key}"


def tool_in_key(key: str) -> str:
    """The name of the tool in the key of a call."""
    return key.rpartition("/")[2].partition(".")[2]


@lru_cache(maxsize=1_024)
def tool_name_in_key(tool: str) -> str:
    """The name of a tool in keys; an impossible name becomes ``tool``."""
    return tool if tool.replace("_", "").replace("-", "").isalnum() and tool.isascii() and len(tool) <= 64 else "tool"


def parse_call_name(name: str) -> EffectKey | None:
    """Parse the name of a tool call in events, such as ``t3.2.1``; None for any other text.

    The calls of programs (``t3.2.1.7``) are None, too.
    """
    run, *places = name.split(".")
    numbers = [_number(place) for place in places]
    if not is_turn_id(run) or len(numbers) != 2 or not numbers[0] or not numbers[1]:
        return None
    return EffectKey(run, numbers[0], "tools", numbers[1], inner=False)


@lru_cache(maxsize=4_096)
def parse_key(key: str) -> EffectKey | None:
    """Parse the key of an effect of a turn; None for any other key."""
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
