"""A world that remembers its effects, to be compared with the journals."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast import records
from holdfast.errors import RecordUnreadable
from holdfast.runtime.budgets import spend_of_record
from holdfast.store.audit import Violation, audit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.effects.drive import EffectContext
    from holdfast.effects.replay import Repeat
    from holdfast.store import Store
    from holdfast.store.contract import Reader


class EffectAttempt(msgspec.Struct, frozen=True):
    """One arrival of an effect in the world."""

    journal: str
    key: str
    idempotency_key: str
    repeat: str
    what: str


class World:
    """Remembers attempts in memory, or in a file that survives the process."""

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._attempts: list[EffectAttempt] = []

    def act(self, journal: str, effect: EffectContext, repeat: Repeat, what: str = "") -> None:
        """Perform `what` for an effect."""
        attempt = EffectAttempt(journal, effect.key, effect.idempotency_key, repeat.value, what)
        if self.path is None:
            self._attempts.append(attempt)
        else:
            handle = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            try:
                os.write(handle, msgspec.json.encode(attempt) + b"\n")  # one write: a kill leaves a whole line or none
            finally:
                os.close(handle)

    def done(self) -> list[str]:
        """Return the effects in a world that honours idempotency keys: a repetition adds nothing."""
        return list({attempt.idempotency_key: attempt.what for attempt in self.attempts()}.values())

    def attempts(self) -> list[EffectAttempt]:
        if self.path is None:
            return list(self._attempts)
        if not self.path.exists():
            return []
        return [msgspec.json.decode(line, type=EffectAttempt) for line in self.path.read_bytes().splitlines()]


async def check(store: Store, world: World | None = None, *, canaries: Sequence[bytes] = ()) -> list[Violation]:
    """Return every violated invariant.

    Store: no gaps, right checksums, outcomes only after a required intent, one outcome for each key, one terminal for
    each run, no dangling blob, epochs that never go back; lists, notifications, memories and spending that follow from
    the records. World: an effect that must not be repeated was attempted at most once, all attempts of an effect have
    one idempotency key, no two effects share a key, and every effect recorded as done reached the world. `canaries` are
    secrets that must not be stored anywhere.
    """

    def examine(reader: Reader) -> list[Violation]:
        found = audit(reader, spend_of=spend_of_record)
        if world is not None:
            found.extend(_compare_with_world(reader, world.attempts()))
        for where, body in reader.raw_bytes():
            found.extend(Violation("secret", where, "a secret is stored") for canary in canaries if canary in body)
        return found

    return await store.examine(examine)


def _compare_with_world(reader: Reader, attempts: list[EffectAttempt]) -> Iterator[Violation]:
    by_key: dict[tuple[str, str], list[EffectAttempt]] = defaultdict(list)
    for attempt in attempts:
        by_key[attempt.journal, attempt.key].append(attempt)
    for (journal, key), found in by_key.items():
        if len(found) > 1 and any(attempt.repeat == "never" for attempt in found):
            yield Violation("repeated", f"{journal}/{key}", f"attempted {len(found)} times, once is allowed")
    yield from _shared_keys(attempts)
    intended, done = _recorded_calls(reader)
    for journal, key in done:
        if (journal, key) not in by_key:
            yield Violation("lost", f"{journal}/{key}", "recorded as done, but it never reached the world")
    for (journal, key), found in by_key.items():
        if found[0].repeat == "never" and (journal, key) not in intended:
            yield Violation("intent", f"{journal}/{key}", "reached the world, but was never intended")


def _shared_keys(attempts: list[EffectAttempt]) -> Iterator[Violation]:
    owners: dict[str, tuple[str, str]] = {}
    names: dict[tuple[str, str], str] = {}
    for attempt in attempts:
        effect = (attempt.journal, attempt.key)
        if owners.setdefault(attempt.idempotency_key, effect) != effect:
            yield Violation("key", f"{attempt.journal}/{attempt.key}", "shares its idempotency key with another effect")
        if names.setdefault(effect, attempt.idempotency_key) != attempt.idempotency_key:
            yield Violation("key", f"{attempt.journal}/{attempt.key}", "two attempts bear different idempotency keys")


def _recorded_calls(reader: Reader) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return all intended effects, and all completed tool calls, by journal and key."""
    intended: set[tuple[str, str]] = set()
    tools: set[tuple[str, str]] = set()
    done: set[tuple[str, str]] = set()
    for row in reader.raw_journals():
        for raw in reader.raw_records(row.id):
            try:
                record = records.decode(raw.body)
            except RecordUnreadable:
                continue
            if isinstance(record, records.Intended):
                intended.add((row.id, record.key))
            ask = getattr(record, "ask", None)
            if ask is not None and ask.kind == "tool_call":
                tools.add((row.id, getattr(record, "key", "")))
            if isinstance(record, records.Done):
                done.add((row.id, record.key))
    return intended, done & tools
