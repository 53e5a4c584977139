"""The gate in memory: the rows of a transaction and the reads of a store that keeps nothing on a disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.store.gate.contract import IN_ALL, PER_JOURNAL, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.store.gate.contract import NoteRefusal


class GateTable:
    """`GateRows` and `GateReader`."""

    def __init__(self) -> None:
        self._terms: dict[str, str] = {}
        self._refused: list[Refusal] = []
        self._last = 0

    def note(self, asked: NoteRefusal, at: int) -> Refusal:
        self._last += 1
        same = [found for found in self._refused if found.journal == asked.journal]
        nth = same[-1].nth + 1 if same else 1
        made = Refusal(self._last, asked.journal, asked.agent, asked.key, at, asked.error, asked.message, nth)
        self._refused.append(made)
        if len(same) >= PER_JOURNAL:
            self._refused.remove(same[0])
        self._refused = [found for found in self._refused if found.id > self._last - IN_ALL]
        return made

    def set_terms(self, agent: str, body: str | None, at: int) -> None:  # noqa: ARG002  part of the protocol
        if body is None:
            self._terms.pop(agent, None)
        else:
            self._terms[agent] = body

    def terms(self) -> dict[str, str]:
        return dict(self._terms)

    def refusals(self, journal: str | None, limit: int) -> list[Refusal]:
        chosen = [found for found in reversed(self._refused) if journal in (None, found.journal)]
        return chosen[:limit]

    def raw_texts(self) -> Iterator[str]:
        yield from self._terms.values()
        yield from (found.message for found in self._refused)
