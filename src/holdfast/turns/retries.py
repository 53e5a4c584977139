"""Retries of turns: the note for the model, and where the fork for a retry begins. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast import messages, records
from holdfast.turns import keys
from holdfast.turns.conversation import UserInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.turns.machine import Ending


def retry_input(run: str, first: UserInput, ending: Ending | None) -> UserInput:
    """The input that tries the turn `run` again, which began with `first`. Without `ending` it was cut off."""
    what = f"ended early ({ending.code})" if ending is not None and ending.status != "completed" else "is tried again"
    note = f"The turn for the last request {what}. Go on from here; the results above still count."
    return UserInput(
        parts=(messages.Text(note),),
        deadline_ms=first.deadline_ms,
        deadline_from_start=first.deadline_from_start,
        metadata=first.metadata,
        origin="holdfast",
        taint=records.InputTaint(),  # our own words
        retry=run,
        model=first.model,
        settings=first.settings,
    )


@dataclass(slots=True)
class StepsOfTurn:
    """The steps of one turn: where each begins, and which calls may have taken effect."""

    run: str
    starts: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Of each step, the number of its model call as an effect, and its first record."""
    _unknown: dict[str, int] = field(default_factory=dict[str, int])

    def take(self, found: Iterable[tuple[int, records.Record]]) -> None:
        """Take in records of the journal, each with its sequence."""
        for seq, record in found:
            if isinstance(record, records.Intended):
                self._effect(seq, record.key, known=record.ask.kind == "await_event")
            elif isinstance(record, (records.Done, records.Failed, records.Unknown, records.Cancelled)):
                self._effect(seq, record.key, known=isinstance(record, records.Done | records.Failed))

    def _effect(self, seq: int, name: str, *, known: bool) -> None:
        key = keys.parse_key(name)
        if key is None or key.run != self.run:
            return
        if key.name == "model" and (not self.starts or key.number > self.starts[-1][0]):
            self.starts.append((key.number, seq))
        if key.name == "tools" and not key.inner:
            self._unknown[name] = 0 if known else key.number

    def unknown_from(self, step: int) -> list[str]:
        """The calls with an unknown outcome in a step and all later ones."""
        return [name for name, number in self._unknown.items() if number > self.starts[step - 1][0]]
