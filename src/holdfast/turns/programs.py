"""Programs in a turn, as the journal has them: the places below their call, their variables, and their end. Pure.

A program is one call of a batch. Whatever it asks for is recorded below that call: the calls that it made
(`keys.nested_key`), the times that it was told, its pauses, the value with which it ended the turn, and the variables
that it left. Variables are recorded as what has changed, so that a journal grows with what happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from holdfast.effects.canonical import canonical_json
from holdfast.messages import AssistantMessage, Text
from holdfast.policy.limits import OutOf
from holdfast.records import Failed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.records import Done, Outcome


PROGRAM: Final = "run_program"
"""What the one tool is called that a model in code mode has."""
FINISH: Final = "finish"
"""What the function is called with which a program ends the turn."""
KEPT: Final = "/%variables"
"""What is put to the key of a program to name the variables that it left."""
Aside: TypeAlias = Literal["now", "sleep", "finish"]
"""What a program asks for that is no call of a tool."""
STOPPED: Final = "ProgramStopped"
"""The kind of error with which a program ends that was stopped from outside."""
LIMIT: Final = "ProgramLimit"
"""The kind of error with which a program ends that left the turn no room; what of is in the detail of the record."""
FAILED: Final = "ProgramFailed"
"""The kind of error with which a program ends that raised, was refused, or ran into a limit of its own."""
TOLD: Final = frozenset((STOPPED, LIMIT, FAILED))
_limits: Final = msgspec.json.Decoder(OutOf)
_words: Final = msgspec.json.Decoder(str)


def aside_key(program: str, number: int, what: Aside) -> str:
    """The key of something that a program asks for besides calls; numbers count all that it asks for, from 1."""
    return f"{program}/%{what}-{number}"


def number_of(key: str) -> int:
    """The number in the key of something that a program asked for; 0 when it is no such key."""
    digits = key.rpartition("/")[2].partition("-")[2].partition(".")[0]
    return int(digits) if len(digits) <= 18 and digits.isascii() and digits.isdigit() else 0


def is_kept(key: str) -> bool:
    """Whether `key` names the variables that a program left."""
    return key.endswith(KEPT)


def is_finish(key: str) -> bool:
    """Whether `key` names the value with which a program ended the turn."""
    return key.rpartition("/")[2].startswith("%finish-")


def is_pause(wait: str) -> bool:
    """Whether `wait` is that of a program which sleeps: nobody outside has to answer it."""
    return wait.rpartition("/")[2].startswith("%sleep-")


class ChangedVariables(msgspec.Struct, frozen=True, omit_defaults=True):
    """The variables that a program changed, and the names of those that are gone."""

    set: dict[str, Any] = {}
    gone: tuple[str, ...] = ()

    def after(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """All variables, with these changes."""
        lost = {*self.gone}
        return {**{name: value for name, value in variables.items() if name not in lost}, **self.set}


decode_changed_variables: Final = msgspec.json.Decoder(ChangedVariables).decode


def changed_variables(before: Mapping[str, Any], after: Mapping[str, Any]) -> ChangedVariables:
    """What a program changed that began with one set of variables and left another one."""
    changed = {
        name: value
        for name, value in after.items()
        if name not in before or canonical_json(before[name]) != canonical_json(value)
    }
    return ChangedVariables(changed, tuple(name for name in before if name not in after))


def limit_in_program(outcome: Outcome) -> OutOf | None:
    """The limit that ended the turn in the middle of a program, where one did."""
    if not isinstance(outcome, Failed) or outcome.error.kind != LIMIT or not outcome.detail:
        return None
    return _limits.decode(bytes(outcome.detail))


def answer_text(value: object, *, typed: bool) -> str:
    """The words that a value stands for with which a program ended the turn. They are what is recorded of it."""
    if isinstance(value, str) and not typed:
        return value
    return msgspec.json.encode(value).decode()


def finish_of(record: Done) -> str:
    """The words with which a program ended the turn, from their record."""
    return _words.decode(bytes(record.value))


def answer_message(run: str, batch: int, text: str) -> AssistantMessage:
    """The answer that a program gave, as a message of the conversation: it stands behind the results of its batch."""
    return AssistantMessage(f"{run}.{batch}.{FINISH}", (Text(text),))
