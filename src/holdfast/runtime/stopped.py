"""What is left of a program that is stopped from outside: the calls that it had under way, and its own end. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.policy.approvals import MARK
from holdfast.records import Cancelled, ErrorInfo, Failed, Unknown
from holdfast.runtime.interrupted import has_outcome, only_waits
from holdfast.turns import keys
from holdfast.turns.programs import STOPPED

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from holdfast.effects.replay import Past
    from holdfast.records import Ask


def is_program(past: Past, key: str) -> bool:
    """Whether the call `key` has asked for anything as only a program does."""
    return any(_asked_by(name, key) for name in past.effects)


def left_in_program(
    past: Past, key: str, known: Container[str], now: int, *, reads: Container[str] = ()
) -> Iterator[Unknown | Cancelled]:
    """Outcomes for what a program had begun in a process before this one and nobody can say the end of.

    `reads` are the names of tools that only read: nothing could have taken effect.
    """
    for name, found in past.effects.items():
        if not _asked_by(name, key) or found.outcome is not None or found.intent is None or name in known:
            continue
        call = _call_of(name, key)
        if call != name and (call in known or has_outcome(past, call)):
            continue  # what it asked or waited for was answered on the way to its end
        acts = found.intent.ask.kind == "tool_call" and found.intent.ask.target not in reads
        if MARK in name or not acts or only_waits(past, name):
            yield Cancelled(at=now, key=name)  # a question that nobody has answered, a pause, a wait
        else:
            yield Unknown(at=now, key=name)


def stopped_program(  # noqa: PLR0913
    key: str, ask: Ask | None, now: int, done: Iterable[str], unknown: Iterable[str], *, perhaps: bool = False
) -> Failed:
    """The end of a program that was stopped; `done` and `unknown` are the keys of the calls that it had made.

    `perhaps`: calls that are safe to repeat leave no record before their end, and one may have been under way.
    """
    said = ["The program was stopped before its end. Its variables are what they were before it."]
    if told := _counted(done):
        said.append(f"What it had done stays done: {told}.")
    if told := _counted(unknown):
        said.append(f"Of these calls it is not known whether they took effect: {told}.")
    if perhaps:
        said.append("The call that came next may have taken effect, too: nobody knows. Find out before you repeat it.")
    return Failed(at=now, key=key, ask=ask, error=ErrorInfo(STOPPED, " ".join(said)))


def unknown_in(left: Iterable[Unknown | Cancelled], key: str) -> list[str]:
    """The calls of a program that may have taken effect, by what is left of it.

    Of a call that was deferred by an older release only that may be known.
    """
    ended = {record.key: record for record in left}
    outside = f"/{keys.DEFERRAL}"
    found = (name for name, record in ended.items() if isinstance(record, Unknown) or name.endswith(outside))
    calls = dict.fromkeys(_call_of(name, key) for name in found)
    return [call for call in calls if not isinstance(ended.get(call), Cancelled)]


def made_by(past: Past, key: str) -> list[str]:
    """The calls of a program that have an outcome."""
    return [name for name, found in past.effects.items() if found.outcome is not None and _is_call(name, key)]


def _counted(names: Iterable[str]) -> str:
    counted = Counter(map(keys.tool_of, names))
    return ", ".join(f"{name} ({count})" if count > 1 else name for name, count in sorted(counted.items()))


def _asked_by(name: str, key: str) -> bool:
    """Whether a program asked for it; what else may be below a call has other marks, or none."""
    if not name.startswith(f"{key}/%"):
        return False
    return name.startswith((f"{key}{keys.NESTED}", f"{key}/%now-", f"{key}/%sleep-", f"{key}/%finish-"))


def _call_of(name: str, key: str) -> str:
    """The key of the call that `name` is, or is below; `name` itself where it is neither."""
    return name[: len(key) + 1] + name[len(key) + 1 :].partition("/")[0]


def _is_call(name: str, key: str) -> bool:
    return name.startswith(f"{key}{keys.NESTED}") and _call_of(name, key) == name
