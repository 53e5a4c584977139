"""Retries: which effects of an ended process its retry repeats, and which results it reuses. Pure.

A retry is a fork: its history begins with that of the old process. The effects to repeat are left out of that history,
with all later effects of their scope. Effects in other branches keep their results.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec

from holdfast.effects.keys import scope_of, segment
from holdfast.records import Blob, Cancelled, Done, Failed, Intended, Unknown
from holdfast.runtime.waits import wait_name
from holdfast.turns.keys import DEFERRAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.processes.state import Retry
    from holdfast.records import EffectRequest, ErrorInfo, Outcome, Record

_WAITS: Final = frozenset(("await_event", "sleep"))
_OUTCOMES: Final = (Done, Failed, Unknown, Cancelled)


@dataclass(slots=True)
class InheritedHistory:
    """The history with which a retry begins."""

    origin: str
    """The journal of the first run."""
    records: list[Record] = field(default_factory=list["Record"])
    """The reused intents and outcomes."""
    journals: dict[str, str] = field(default_factory=dict[str, str])
    """Repeated effects, each with the journal of the retry that did it last."""
    birthplaces: dict[str, str] = field(default_factory=dict[str, str])
    """The store in which each of the older runs was made."""

    @property
    def results(self) -> int:
        """The number of reused outcomes."""
        return sum(not isinstance(record, Intended) for record in self.records)

    def journal_of(self, key: str) -> str:
        """The journal in the idempotency key of an effect.

        An effect that the old run did not do, or whose outcome is unknown, keeps its key.
        """
        return self.journals.get(key, self.origin)


@dataclass(slots=True)
class _Effect:
    first: int
    """The position of its first record."""
    last: int
    ask: EffectRequest | None = None
    intended: bool = False
    outcome: Outcome | None = None


class RunEffects:
    """The effects of one attempt of a process, by key, in order of their beginning."""

    def __init__(self, records: Iterable[Record], run: str, bodies: Mapping[str, bytes] | None = None) -> None:
        self._prefix = f"{segment(run)}/"
        self._bodies = bodies or {}
        self.found: dict[str, _Effect] = {}
        for position, record in enumerate(records):
            if isinstance(record, (Intended, *_OUTCOMES)) and record.key.startswith(self._prefix):
                effect = self.found.setdefault(record.key, _Effect(position, position))
                effect.last = position
                if isinstance(record, Intended):
                    effect.ask, effect.intended = record.ask, True
                else:
                    effect.ask, effect.outcome = record.ask or effect.ask, record
        self._ranks = {key: rank for rank, key in enumerate(self.found)}

    def ended_badly(self, error: ErrorInfo | None) -> list[str]:
        """The effects that made the function fail: the one that `error` names, and those without a later effect."""
        said = "" if error is None or error.kind != "EffectFailed" else error.message
        return [
            key
            for key, effect in self.found.items()
            if self._is_bad(effect) and not self._is_inside(key)
            if not self._has_later(key, effect) or said.startswith(f"{key} failed:")
        ]

    def named(self, step: str) -> list[str]:
        """The effects with this name or key, in order."""
        if step in self.found:
            return [step]
        return [key for key in self.found if unquote(key.rpartition("/")[2]) == step and not self._is_inside(key)]

    def begun_elsewhere(self) -> Iterable[tuple[str, str, dict[str, Any]]]:
        """Children, agent turns and deferrals of the attempt: key, target, and recorded value."""
        answered = {
            effect.ask.target
            for effect in self.found.values()
            if effect.ask is not None and effect.ask.kind == "process" and isinstance(effect.outcome, Done)
        }
        for key, effect in self.found.items():
            ask, outcome = effect.ask, effect.outcome
            if ask is None or ask.kind != "process" or not isinstance(outcome, Done):
                continue
            if ask.target in {"start", "agent"}:
                yield key, ask.target, msgspec.json.decode(self._value(outcome))
            elif ask.target == "defer" and wait_name(f"{key}/{DEFERRAL}") not in answered:
                yield key, "defer", {}

    def left_out(self, again: Iterable[str], *, whole: bool) -> set[str]:
        """The effects to repeat: those in `again`, and all later ones of their scope (of the process, with `whole`)."""
        gone: set[str] = set()
        for start in again:
            later = islice(self.found, self._ranks[start], None)
            gone.update(key for key in later if whole or key == start or self._follows(key, start))
        return gone

    def unknown(self, gone: Iterable[str]) -> list[str]:
        """The effects among `gone` whose outcome is unknown."""
        return [key for key in gone if self._may_have_happened(self.found[key]) and not self._is_inside(key)]

    def was_done(self, key: str) -> bool:
        """True if the effect has a known outcome. Repeating it makes a new effect, with a new idempotency key."""
        return isinstance(self.found[key].outcome, Done | Failed)

    def _may_have_happened(self, effect: _Effect) -> bool:
        if isinstance(effect.outcome, Unknown):
            return True
        stopped = effect.outcome is None or isinstance(effect.outcome, Cancelled)
        return stopped and effect.intended and effect.ask is not None and effect.ask.kind not in _WAITS

    def _is_bad(self, effect: _Effect) -> bool:
        if not isinstance(effect.outcome, Done):
            return True
        ask = effect.ask
        if ask is None or ask.kind != "process" or ask.target not in {"await", "turn", "outside"}:
            return False
        told = msgspec.json.decode(self._value(effect.outcome))
        return "error" in told if ask.target == "outside" else told.get("status") != "completed"

    def _is_inside(self, key: str) -> bool:
        """True if the effect is part of another one that succeeded, which decides."""
        above = scope_of(key)
        while len(above) > len(self._prefix):
            effect = self.found.get(above)
            if effect is not None and isinstance(effect.outcome, Done):
                return True
            above = scope_of(above)
        return False

    def _has_later(self, key: str, effect: _Effect) -> bool:
        """True if the function went on after this effect, so it handled the failure."""
        return any(other.first > effect.last and self._follows(name, key) for name, other in self.found.items())

    def _follows(self, key: str, start: str) -> bool:
        """True if the code orders `key` after `start`: they are not in parallel branches.

        A branch with effects before `start` runs in parallel to it.
        """
        its, scope = scope_of(key), scope_of(start)
        if its == scope or scope.startswith(f"{its}/") or key.startswith(f"{start}/"):
            return True
        if not its.startswith(f"{scope}/"):
            return False
        branch = f"{scope}/{its[len(scope) + 1 :].partition('/')[0]}/"
        return not any(name.startswith(branch) for name in islice(self.found, self._ranks[start]))

    def _value(self, outcome: Done) -> bytes:
        return bytes(outcome.value) if outcome.blob is None else self._bodies[outcome.blob.digest]


def large_values(records: Iterable[Record]) -> list[Blob]:
    """The blobs that a retry reads: ends of children, of turns, and of external work."""
    return [
        record.blob
        for record in records
        if isinstance(record, Done) and record.blob is not None and record.ask is not None
        if record.ask.kind == "process"
    ]


def inherited_history(
    journal: str, retry: Retry, old: str, run: str, records: list[Record], above: InheritedHistory | None
) -> InheritedHistory:
    """The initial history of the retry `journal` of the process `old`. `above` is that of `old`, if that is a retry
    too.
    """
    whole = [*(() if above is None else above.records), *records]
    effects = RunEffects(whole, run)
    gone = effects.left_out(retry.again, whole=retry.step is not None)
    kept = [record for record in whole if isinstance(record, (Intended, *_OUTCOMES))]
    used: list[Record] = [record for record in kept if record.key in effects.found and record.key not in gone]
    journals = {} if above is None else dict(above.journals)
    journals |= {key: journal for key in gone if effects.was_done(key)}
    return InheritedHistory(old if above is None else above.origin, used, journals)
