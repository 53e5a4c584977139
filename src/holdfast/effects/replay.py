"""Replay: the recorded history of a run, the decision about each effect, and the cursor that follows the code. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias, cast

import msgspec

from holdfast import records as kinds
from holdfast.effects.canonical import canonical, digest_of_bytes, shown_key
from holdfast.effects.keys import branch_segment, scope_of, segment
from holdfast.errors import EffectRepeated, Halted, HoldfastError, InvariantBroken, ReplayMismatch, ReplayMiss

MAX_PATHS: Final = 8
MAX_VALUE: Final = 2 * 1024
_SHOWN: Final = 200
_ABSENT: Final = msgspec.UNSET


class Difference(msgspec.Struct, frozen=True):
    """One difference between a recorded and a requested value. A long value is shown by length and digest."""

    path: str
    recorded: str
    asked: str


class Divergence(msgspec.Struct, frozen=True):
    """The first few differences between a replay and its record, and their number."""

    total: int
    first: tuple[Difference, ...]

    def describe(self) -> str:
        """One bounded line for a person."""
        shown = "; ".join(f"{d.path}: recorded {_cut(d.recorded)}, asked {_cut(d.asked)}" for d in self.first)
        more = self.total - len(self.first)
        return f"{shown} (and {more} more)" if more else shown


def diverge(recorded: Any, asked: Any) -> Divergence:  # any JSON value
    """Compare two JSON values; counts all differing paths and keeps the first eight."""
    kept: list[Difference] = []
    total = 0
    for path, left, right in _differences(recorded, asked, ""):
        total += 1
        if len(kept) < MAX_PATHS:
            kept.append(Difference(path or "$", _show(left), _show(right)))
    return Divergence(total, tuple(kept))


def _differences(recorded: Any, asked: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(recorded, dict) and isinstance(asked, dict):
        left, right = cast("dict[str, Any]", recorded), cast("dict[str, Any]", asked)
        for key in sorted(left.keys() | right.keys()):
            name = shown_key(key)
            here = f"{path}.{name}" if path else name
            yield from _differences(left.get(key, _ABSENT), right.get(key, _ABSENT), here)
    elif isinstance(recorded, list | tuple) and isinstance(asked, list | tuple):
        old, new = cast("list[Any]", recorded), cast("list[Any]", asked)
        for index in range(max(len(old), len(new))):
            before = old[index] if index < len(old) else _ABSENT
            after = new[index] if index < len(new) else _ABSENT
            yield from _differences(before, after, f"{path}[{index}]")
    elif not _same(recorded, asked):
        yield path, recorded, asked


def _same(recorded: Any, asked: Any) -> bool:
    # In Python 1 == True == 1.0 and 0.0 == -0.0, but their JSON texts differ.
    return type(recorded) is type(asked) and repr(recorded) == repr(asked)


def _show(value: Any) -> str:
    if value is _ABSENT:
        return "(absent)"
    body = canonical(value)
    if len(body) <= MAX_VALUE:
        return body.decode()
    return f"({len(body):,} bytes, sha256 {hashlib.sha256(body).hexdigest()[:16]})"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class Repeat(Enum):
    """The treatment of an effect that was begun and has no outcome."""

    FREE = "free"
    """It only reads: perform it again. No intent is recorded."""
    KEYED = "keyed"
    """It is safe to repeat with the same idempotency key. No intent is recorded."""
    NEVER = "never"
    """It must not be repeated: an intent is recorded first, and an interrupted effect becomes unknown."""


# An edited prompt must not block a running turn: these kinds keep their record and warn.
KEEPS_RECORDED: Final = frozenset(("model_call", "direct"))


MAX_ASK_BODY = 8 * 1024
"""A larger command is recorded by its digest only."""


def make_request(
    kind: kinds.EffectKind, target: str, body: bytes, cause: kinds.Cause | None, iteration: int
) -> kinds.EffectRequest:
    """The recorded request of an effect with the canonical JSON `body`; only the digest of a large one."""
    shown = kinds.ABSENT if len(body) > MAX_ASK_BODY else msgspec.Raw(body)
    return kinds.EffectRequest(kind, target, digest_of_bytes("content", body), shown, cause=cause, iteration=iteration)


@dataclass(slots=True)
class RecordedEffect:
    """Intent, outcome and request of one key."""

    intent: kinds.Intended | None = None
    outcome: kinds.Outcome | None = None
    asked: kinds.EffectRequest | None = None

    def settle(self, outcome: kinds.Outcome) -> None:
        """Add an outcome. The code never saw an outcome that a cancellation follows."""
        self.asked = getattr(outcome, "ask", None) or self.asked
        self.outcome = outcome

    def ask(self) -> kinds.EffectRequest:
        if self.intent is not None:
            return self.intent.ask
        asked = getattr(self.outcome, "ask", None) or self.asked
        if asked is None:
            message = f"{self.outcome!r} has neither an intent nor what was asked"
            raise InvariantBroken(message)
        return asked


@dataclass(slots=True)
class RunHistory:
    """The effects and runs of a journal: a fold of its records.

    `order` has the keys of each scope in order, `settled` the rank of each outcome, `branches` the name of each task
    with records.
    """

    effects: dict[str, RecordedEffect] = field(default_factory=dict[str, RecordedEffect])
    order: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    settled: dict[str, int] = field(default_factory=dict[str, int])
    branches: dict[str, dict[int, str]] = field(default_factory=dict[str, dict[int, str]])
    started: dict[str, kinds.Started] = field(default_factory=dict[str, kinds.Started])
    ended: dict[str, kinds.Ended] = field(default_factory=dict[str, kinds.Ended])
    records: int = 0

    def add(self, record: kinds.Record) -> None:
        self.records += 1
        match record:
            case kinds.Done() | kinds.Failed() | kinds.Unknown() | kinds.Cancelled():
                self._recorded(record.key).settle(record)
                self.settled.setdefault(record.key, len(self.settled))
            case kinds.Intended():
                self._recorded(record.key).intent = record
            case kinds.Started():
                self.started[record.run] = record
            case kinds.Ended():
                self.ended[record.run] = record
            case _:
                pass

    def _recorded(self, key: str) -> RecordedEffect:
        found = self.effects.get(key)
        if found is None:
            found = self.effects[key] = RecordedEffect()
            scope = scope_of(key)
            if scope not in self.order:
                self.order[scope] = []
                self._note_branches(scope)
            self.order[scope].append(key)
        return found

    def _note_branches(self, scope: str) -> None:
        parent, slash, part = scope.rpartition("/")
        if not slash:
            return
        if part.startswith("~"):
            ordinal, _, name = part[1:].partition(".")
            self.branches.setdefault(parent, {})[int(ordinal)] = name
        self._note_branches(parent)


def fold_history(records: Iterable[kinds.Record]) -> RunHistory:
    """The history of a journal."""
    past = RunHistory()
    for record in records:
        past.add(record)
    return past


@dataclass(frozen=True, slots=True)
class UseRecorded:
    """Use the recorded outcome. `drift` is set if the content differs and the kind keeps its record."""

    outcome: kinds.Outcome
    drift: Divergence | None = None


@dataclass(frozen=True, slots=True)
class Perform:
    """Nothing is recorded: perform it, after an intent if it must not be repeated."""

    intent: bool


@dataclass(frozen=True, slots=True)
class PerformAgain:
    """It was begun, has no outcome and may be repeated with the same idempotency key."""


@dataclass(frozen=True, slots=True)
class SettleAsUnknown:
    """It was begun, has no outcome and must not be repeated: record it as unknown."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Another effect is recorded under this key."""

    divergence: Divergence


@dataclass(frozen=True, slots=True)
class Miss:
    """Nothing is recorded, and this replay performs nothing."""


Decision: TypeAlias = UseRecorded | Perform | PerformAgain | SettleAsUnknown
_INTENDED: Final = Perform(intent=True)
_BEGUN: Final = Perform(intent=False)


def decide_effect(
    recorded: RecordedEffect | None, ask: kinds.EffectRequest, repeat: Repeat, *, strict: bool = False
) -> Decision | Mismatch | Miss:
    """Decide about one effect. A difference counts before its outcome."""
    if recorded is None:
        return Miss() if strict else _INTENDED if repeat is Repeat.NEVER else _BEGUN
    known = recorded.ask()
    same_identity = known.kind == ask.kind and known.target == ask.target  # the same key led to it
    same_content = same_identity and known.content == ask.content
    drift = None if same_content else diverge(_comparable(known), _comparable(ask))
    if drift is not None and not (same_identity and ask.kind in KEEPS_RECORDED):
        return Mismatch(drift)
    if recorded.outcome is not None:
        return UseRecorded(recorded.outcome, drift)
    if strict:
        return Miss()
    return SettleAsUnknown() if repeat is Repeat.NEVER else PerformAgain()


def _comparable(ask: kinds.EffectRequest) -> dict[str, object]:
    body: object = msgspec.json.decode(ask.body) if ask.body else {"sha256": ask.content}
    return {"kind": ask.kind, "target": ask.target, "body": body}


@dataclass(frozen=True, slots=True)
class Drift:
    """A replayed effect whose content differs from its record; its kind keeps the recorded outcome."""

    key: str
    divergence: Divergence


class ReplayCursor:
    """The position of a replay in the history of its run. A difference halts the run."""

    def __init__(self, past: RunHistory, run: str, *, strict: bool) -> None:
        self.drifts: list[Drift] = []
        self.halted: HoldfastError | None = None
        """The reason why the run is halted."""
        self._past = past
        self._run = run
        self._strict = strict
        self._asked: set[str] = set()
        self._consumed: dict[str, int] = {}

    def halt(self, reason: HoldfastError) -> Halted:
        """Halt the run for good; the first reason stays."""
        self.halted = self.halted or reason
        return Halted(self.halted)

    def decide(self, key: str, ask: kinds.EffectRequest, repeat: Repeat) -> Decision:
        if key in self._asked:
            raise EffectRepeated(key)
        self._asked.add(key)
        decision = decide_effect(self._past.effects.get(key), ask, repeat, strict=self._strict)
        match decision:
            case Perform():  # the usual case
                pass
            case Mismatch(divergence):
                raise self.halt(ReplayMismatch(key, divergence, self._code()))
            case Miss():
                raise self.halt(ReplayMiss(key))
            case UseRecorded(drift=Divergence() as divergence):
                self.drifts.append(Drift(key, divergence))
            case _:
                pass
        return decision

    def follow(self, path: str, key: str) -> None:
        """Check that the n-th effect of a scope is the same as before; otherwise the code has changed.

        Inside an effect that is performed again, only keys and arguments are compared.
        """
        recorded = self._past.order.get(path)
        if recorded is None:
            return
        index = self._consumed.get(path, 0)
        self._consumed[path] = index + 1
        if index < len(recorded) and recorded[index] != key:
            raise self.mismatch(key, {"effect": recorded[index]}, {"effect": key})

    def check_complete(self) -> None:
        """Halt the run if the journal has effects that the code did not request."""
        prefix = f"{segment(self._run)}/"
        for key in self._past.effects:
            if key in self._asked or not key.startswith(prefix) or self._below_an_answer(key):
                continue
            raise self.mismatch(key, {"effect": key}, {"effect": None})

    def _below_an_answer(self, key: str) -> bool:
        """True if `key` lies inside an effect with an outcome, which is not performed again."""
        parent = scope_of(key)
        while parent:
            if parent in self._past.effects and parent in self._asked:
                return True
            parent = scope_of(parent)
        return False

    def enter_branch(self, parent: str, ordinal: int, name: str) -> None:
        """Check the name of a branch with records."""
        recorded = self._past.branches.get(parent, {}).get(ordinal, name)
        if recorded != name:
            key = f"{parent}/{branch_segment(ordinal, name)}"
            raise self.mismatch(key, {"branch": recorded}, {"branch": name})

    def below(self, key: str, mark: str) -> list[RecordedEffect]:
        """The effects right below `key` whose name begins with `mark`. They count as requested again."""
        if key not in self._past.order:
            return []
        found = [name for name in self._past.order[key] if name.startswith(key + mark)]
        self._asked.update(found)
        return [self._past.effects[name] for name in found if name in self._past.effects]

    def settled_below(self, key: str) -> list[tuple[str, RecordedEffect]]:
        """The effects right below `key` with an outcome, in the order of their outcomes.

        They count as requested again only after `took`.
        """
        past = self._past
        found = [(name, past.effects[name]) for name in past.order.get(key, ()) if name in past.effects]
        ended = [(name, each) for name, each in found if each.outcome is not None]
        return sorted(ended, key=lambda pair: past.settled[pair[0]])

    def took(self, keys: Iterable[str]) -> None:
        """Count these keys as requested again."""
        self._asked.update(keys)

    def mismatch(self, key: str, recorded: dict[str, Any], asked: dict[str, Any]) -> Halted:
        """Halt the run: the code requests another effect than the recorded one."""
        return self.halt(ReplayMismatch(key, diverge(recorded, asked), self._code()))

    def _code(self) -> str | None:
        started = self._past.started.get(self._run)
        return started.code if started else None
