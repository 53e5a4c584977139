"""A run whose code goes again over what its journal says: the same effects, in the same order, none left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.effects.divergence import Divergence, diverge
from holdfast.effects.envelope import scope_of, segment
from holdfast.effects.replay import Answer, Begin, Decision, Mismatch, Miss, decide_effect
from holdfast.effects.scopes import branch_segment
from holdfast.errors import EffectRepeated, Halted, ReplayMismatch, ReplayMiss

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.effects.replay import Past, Recorded, Repeat
    from holdfast.errors import HoldfastError
    from holdfast.records import Ask


@dataclass(frozen=True, slots=True)
class Drift:
    """A replayed effect whose content differs from its record, and whose kind keeps what was recorded."""

    key: str
    divergence: Divergence


class Halting:
    """Whether a run was stopped for good, and why. Called with a reason, it stops it; the first reason stays."""

    __slots__ = ("reason",)

    def __init__(self) -> None:
        self.reason: HoldfastError | None = None

    def __call__(self, reason: HoldfastError) -> Halted:
        if self.reason is None:
            self.reason = reason
        return Halted(self.reason)


class Retraced:
    """What of the past of a run was asked for again. Where the code asks for something else, the run is to `halt`."""

    def __init__(self, past: Past, run: str, halt: Halting, *, strict: bool) -> None:
        self.drifts: list[Drift] = []
        self._past = past
        self._run = run
        self._halt = halt
        self._strict = strict
        self._asked: set[str] = set()
        self._consumed: dict[str, int] = {}

    def decide(self, key: str, ask: Ask, repeat: Repeat) -> Decision:
        """What the journal says about an effect that is asked for."""
        if key in self._asked:
            raise EffectRepeated(key)
        self._asked.add(key)
        if key in self._past.groups:
            raise self.mismatch(key, {"effect": "a group"}, {"effect": ask.kind})
        decision = decide_effect(self._past.effects.get(key), ask, repeat, strict=self._strict)
        match decision:
            case Begin():  # as nearly always
                pass
            case Mismatch(divergence):
                raise self._halt(ReplayMismatch(key, divergence, self._code()))
            case Miss():
                raise self._halt(ReplayMiss(key))
            case Answer(drift=Divergence() as divergence):
                self.drifts.append(Drift(key, divergence))
            case _:
                pass
        return decision

    def follow(self, path: str, key: str) -> None:
        """The n-th effect of a scope is always the same one; anything else is another program.

        The code that performs an effect may take another way when it is performed again: there, only keys and
        arguments are compared.
        """
        recorded = self._past.order.get(path)
        if recorded is None:
            return
        index = self._consumed.get(path, 0)
        self._consumed[path] = index + 1
        if index < len(recorded) and recorded[index] != key:
            raise self.mismatch(key, {"effect": recorded[index]}, {"effect": key})

    def check_complete(self) -> None:
        """All that was recorded was asked for again, or this is another program."""
        prefix = f"{segment(self._run)}/"
        for key in (*self._past.effects, *self._past.groups):
            if key in self._asked or not key.startswith(prefix) or self._below_an_answer(key):
                continue
            raise self.mismatch(key, {"effect": key}, {"effect": None})

    def _below_an_answer(self, key: str) -> bool:
        """Whether `key` was asked within an effect that has an outcome: such an effect is not performed again."""
        parent = scope_of(key)
        while parent:
            found = self._past.effects.get(parent)
            if parent in self._past.abandoned or (found is not None and parent in self._asked):
                return True
            parent = scope_of(parent)
        return False

    def enter_branch(self, parent: str, ordinal: int, name: str) -> None:
        """A branch that left records must be the same one again."""
        recorded = self._past.branches.get(parent, {}).get(ordinal, name)
        if recorded != name:
            key = f"{parent}/{branch_segment(ordinal, name)}"
            raise self.mismatch(key, {"branch": recorded}, {"branch": name})

    def below(self, key: str, mark: str) -> list[Recorded]:
        """What the journal had right below `key` in places that begin with `mark`. It counts as asked for again."""
        found = [name for name in self._past.order.get(key, ()) if name.startswith(key + mark)]
        self._asked.update(found)
        return [self._past.effects[name] for name in found if name in self._past.effects]

    def settled_below(self, key: str) -> list[tuple[str, Recorded]]:
        """What the journal had right below `key` that has an outcome, in the order in which it got it."""
        past = self._past
        found = [(name, past.effects[name]) for name in past.order.get(key, ()) if name in past.effects]
        ended = [(name, each) for name, each in found if each.outcome is not None]
        return sorted(ended, key=lambda pair: past.settled[pair[0]])

    def took(self, keys: Iterable[str]) -> None:
        """What is recorded under these keys counts as asked for again."""
        self._asked.update(keys)

    def mismatch(self, key: str, recorded: dict[str, Any], asked: dict[str, Any]) -> Halted:
        """Something else is recorded than what is asked for: the run stops for good."""
        return self._halt(ReplayMismatch(key, diverge(recorded, asked), self._code()))

    def _code(self) -> str | None:
        started = self._past.started.get(self._run)
        return started.code if started else None
