"""Programs in a turn, as recorded in the journal: their effects, variables and end. Pure.

A program is one call of a batch. Its effects are recorded below that call: its calls (`keys.nested_key`), its readings
of the time, its pauses, the answer with which it ended the turn, and its variables. Only changes of variables are
recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from holdfast import messages, records
from holdfast.effects.canonical import canonical_json
from holdfast.policy.limits import OutOf

PROGRAM: Final = "run_program"
"""The one tool of a model in code mode."""
FINISH: Final = "finish"
"""The function with which a program ends the turn."""
KEPT: Final = "/%variables"
"""Key suffix of the variables that a program left."""
Aside: TypeAlias = Literal["now", "sleep", "finish"]
"""An effect of a program that is no tool call."""
STOPPED: Final = "ProgramStopped"
"""Error kind of a program that was stopped from outside."""
LIMIT: Final = "ProgramLimit"
"""Error kind of a program that reached a limit of the turn; the detail of the record names the limit."""
FAILED: Final = "ProgramFailed"
"""Error kind of a program that raised, was refused, or reached its own limit."""
TOLD: Final = frozenset((STOPPED, LIMIT, FAILED))
_limits: Final = msgspec.json.Decoder(OutOf)
_words: Final = msgspec.json.Decoder(str)


def aside_key(program: str, number: int, what: Aside) -> str:
    """The key of an effect of a program that is no tool call; all its effects are counted from 1."""
    return f"{program}/%{what}-{number}"


def number_of(key: str) -> int:
    """The number in the key of an effect of a program; 0 for other keys."""
    digits = key.rpartition("/")[2].partition("-")[2].partition(".")[0]
    return int(digits) if len(digits) <= 18 and digits.isascii() and digits.isdigit() else 0


def is_kept(key: str) -> bool:
    """True if `key` names the variables that a program left."""
    return key.endswith(KEPT)


def is_finish(key: str) -> bool:
    """True if `key` names the value with which a program ended the turn."""
    return key.rpartition("/")[2].startswith("%finish-")


def is_pause(wait: str) -> bool:
    """True if `wait` is the pause of a program, which needs no answer."""
    return wait.rpartition("/")[2].startswith("%sleep-")


class ChangedVariables(msgspec.Struct, frozen=True, omit_defaults=True):
    """The variables that a program changed, and the names of removed ones."""

    set: dict[str, Any] = {}
    gone: tuple[str, ...] = ()

    def after(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        lost = {*self.gone}
        return {**{name: value for name, value in variables.items() if name not in lost}, **self.set}


decode_changed_variables: Final = msgspec.json.Decoder(ChangedVariables).decode


def changed_variables(before: Mapping[str, Any], after: Mapping[str, Any]) -> ChangedVariables:
    """The difference between the variables before and after a program."""
    changed = {
        name: value
        for name, value in after.items()
        if name not in before or canonical_json(before[name]) != canonical_json(value)
    }
    return ChangedVariables(changed, tuple(name for name in before if name not in after))


def limit_in_program(outcome: records.Outcome) -> OutOf | None:
    """The limit of the turn that a program reached, if it did."""
    if not isinstance(outcome, records.Failed) or outcome.error.kind != LIMIT or not outcome.detail:
        return None
    return _limits.decode(bytes(outcome.detail))


def answer_text(value: object, *, typed: bool) -> str:
    """The answer text for a value with which a program ends the turn."""
    if isinstance(value, str) and not typed:
        return value
    return msgspec.json.encode(value).decode()


def finish_of(record: records.Done) -> str:
    """Decode the answer with which a program ended the turn."""
    return _words.decode(bytes(record.value))


def answer_message(run: str, batch: int, text: str) -> messages.AssistantMessage:
    """The answer of a program as a message, after the results of its batch."""
    return messages.AssistantMessage(f"{run}.{batch}.{FINISH}", (messages.Text(text),))
