"""The names of a turn's effects. The n-th effect of a turn is always the same effect, so its key is its number.

``t3/1.model``, ``t3/2.tools/1.refund``, ``t3/3.checkpoint``; what a tool does inside hangs below its call.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, NamedTuple

DEFERRAL: Final = "%defer"
"""What the place below a call is called in which it stands that its result is given from outside."""
RETURNED: Final = "%deferred"
"""The same, for that the tool has come to its end, and only the answer is missing."""

EffectName = Literal["model", "tools", "checkpoint"]


class EffectKey(NamedTuple):
    """A key taken apart. `call` is 0 for effects that are not tool calls."""

    run: str
    number: int
    name: str
    call: int
    inner: bool
    """Below a tool call: the tool's own steps and waits. Below a model call: what made room for it."""


def run_of(number: int) -> str:
    """The id of the turn that begins with input `number`."""
    return f"t{number}"


def input_of(run: str) -> int | None:
    """The number of the input that began `run`; None when this is not the id of a turn."""
    return _number(run[1:]) if run[:1] == "t" and run[1:2] != "0" else None


def effect_key(run: str, number: int, name: EffectName) -> str:
    """The key of an effect, or of a batch of tool calls."""
    return f"{run}/{number}.{name}"


def call_key(run: str, number: int, call: int, tool: str) -> str:
    """The key of one call of a batch; calls count from 1. A name that no tool can have is left out."""
    return f"{run}/{number}.tools/{call}.{_shown(tool)}"


@lru_cache(maxsize=1_024)
def _shown(tool: str) -> str:
    return tool if tool.replace("_", "").replace("-", "").isalnum() and tool.isascii() and len(tool) <= 64 else "tool"


def parse(key: str) -> EffectKey | None:
    """What `key` stands for; None when it is not the key of a turn's effect."""
    run, _, rest = key.partition("/")
    effect, _, below = rest.partition("/")
    number, dot, name = effect.partition(".")
    if not dot or (counted := _number(number)) is None:
        return None
    call, _, inner = below.partition("/")
    below_it = bool(inner) or (bool(below) and name != "tools")
    return EffectKey(run, counted, name, _number(call.partition(".")[0]) or 0, below_it)


def _number(digits: str) -> int | None:
    return int(digits) if len(digits) <= 18 and digits.isascii() and digits.isdigit() else None
