"""What a journal tells about a tool call that has no outcome yet. Pure.

What `reconcile` does to find out about a call hangs below that call, too, apart from what the call itself has done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from holdfast.turns.keys import DEFERRAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.effects.replay import Past, Recorded

LOOK: Final = "%reconcile-"
"""What the places below a call begin with in which `reconcile` works; no name of a step or a wait can look like it."""


ASK: Final = "ask"
"""The name of the wait with which a person is asked what came of a call."""


ATTEMPT: Final = "%attempt-"
"""What the places below a call begin with in which attempts are recorded that failed and were followed by another."""


DECIDED: Final = ("/%approval-", "/%hook")
"""What the places below a call look like in which it is recorded that somebody decided about it before it began."""


def is_ask(wait: str) -> bool:
    """Whether a wait asks a person what came of an interrupted call."""
    above, _, name = wait.rpartition("/")
    return name.partition("#")[0] == ASK and above.rpartition("/")[2].startswith(LOOK)


def is_finding(answer: object) -> bool:
    """Whether an answer to such a wait says what came of the call, or that nobody can tell."""
    if isinstance(answer, dict):
        said = cast("dict[object, object]", answer)
        return set(said) == {"done"} or said in ({"not_done": True}, {"unknown": True})
    return answer in ("not_done", "unknown")


def attempts_of(past: Past, key: str) -> int:
    """How many attempts of a call are recorded below it."""
    return sum(name.startswith(f"{key}/{ATTEMPT}") for name in past.effects)


def has_outcome(past: Past, key: str) -> bool:
    """Whether it is recorded how the effect ended."""
    found = past.effects.get(key)
    return found is not None and found.outcome is not None


def left_by_itself(past: Past, key: str) -> bool:
    """Whether the call was left in order, to wait: then nothing of it was interrupted, and it may run again."""
    waiting = False
    for name, found in _below(past, key):
        apart = (f"{key}/{LOOK}", f"{key}/{DEFERRAL}", *_decided(key))
        if not name.startswith(apart) and found.ask().kind == "await_event":
            waiting = found.outcome is None
    return waiting


def only_waits(past: Past, key: str) -> bool:
    """Whether the call did nothing that is recorded but wait, and nobody has answered it."""
    apart = (f"{key}/{ATTEMPT}", *_decided(key))
    below = {name: found for name, found in _below(past, key) if not name.startswith(apart)}
    if any(name.startswith((f"{key}/{LOOK}", f"{key}/{DEFERRAL}")) for name in below):
        return False  # it was interrupted once, and somebody is finding out; or somebody outside has been asked
    waits = [found for found in below.values() if found.ask().kind == "await_event" and found.outcome is None]
    return bool(waits) and len(waits) == len(below)


def next_look(past: Past, key: str) -> str:
    """The place of the next attempt to find out what came of a call."""
    number = 1
    while has_outcome(past, f"{key}/{LOOK}{number}"):
        number += 1
    return f"{key}/{LOOK}{number}"


def _decided(key: str) -> tuple[str, ...]:
    return tuple(f"{key}{mark}" for mark in DECIDED)


def _below(past: Past, key: str) -> Iterator[tuple[str, Recorded]]:
    return ((name, found) for name, found in past.effects.items() if name.startswith(f"{key}/"))
