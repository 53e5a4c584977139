"""Effects: how they ended, and code that asks for others than its journal has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors.tree import UsageError, WorldError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.effects.divergence import Divergence


class ScopeBusy(UsageError):
    """Two effects at once in one scope: their order would be a matter of luck."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"two effects run at once in the scope {path!r}; start each branch as a task, or use all(), any() or race()"
        )
        self.path = path


class OrderUnknown(UsageError):
    """Tasks that are started in an order which is another one in every process."""

    def __init__(self) -> None:
        super().__init__(
            "asyncio.as_completed starts its coroutines in no fixed order, so their branches could not be told apart "
            "on replay; create the tasks first, in order, and pass those"
        )


class SuspensionSwallowed(UsageError):
    """Code was told to stop at a wait, caught that, and went on. It was stopped for good; `name` says which code."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} went on after it was suspended and was stopped: it catches everything around a wait or a step. "
            "Catch Exception there instead of BaseException, or raise again what is not an Exception"
        )
        self.name = name


class RunEnded(UsageError):
    """The run has ended; nothing can be done in its name any more."""

    def __init__(self, run: str) -> None:
        super().__init__(f"the run {run!r} has ended; await all of its tasks before it does")
        self.run = run


class CallAbandoned(UsageError):
    """A function goes on although its turn, task or process is over here: it did not end when it was cancelled."""

    def __init__(self, run: str) -> None:
        super().__init__(
            f"{run!r} is over here: it was stopped, or its runtime was closed. What this function asks for is not "
            "done; let it end when it is cancelled"
        )
        self.run = run


class EffectRepeated(UsageError):
    """One replay key was asked for twice in one drive."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the effect {key!r} was already performed in this drive; a key is good for one effect")
        self.key = key


class GroupInvalid(UsageError):
    """A group of effects that can't be opened."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"the group {key!r} is not valid: {reason}")
        self.key = key
        self.reason = reason


class ReplayMismatch(UsageError):
    """The code asked for another effect than the journal has. Nothing new was done."""

    def __init__(self, key: str, divergence: Divergence, code: str | None = None) -> None:
        wrote = f" (recorded by code version {code})" if code else ""
        super().__init__(f"replay of {key!r} differs from its record{wrote}: {divergence.describe()}")
        self.key = key
        self.divergence = divergence
        self.code = code


class ReplayMiss(UsageError):
    """A check-only replay asked for an effect that was never recorded."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the effect {key!r} is not in the journal and this replay must not perform anything")
        self.key = key


class EffectFailed(WorldError):
    """The effect ended in an error. The same one is raised again on every replay."""

    def __init__(self, key: str, kind: str, message: str) -> None:
        super().__init__(f"{key} failed: {kind}: {message}" if message else f"{key} failed: {kind}")
        self.key = key
        self.kind = kind
        self.message = message


class EffectUnknown(WorldError):
    """The effect was begun and its outcome was never recorded; it was not repeated."""

    def __init__(self, key: str, target: str) -> None:
        super().__init__(
            f"nobody can say whether {key} ({target}) took effect: it was interrupted, and it is not safe to repeat; "
            "find out, then go on"
        )
        self.key = key
        self.target = target


class EffectCancelled(WorldError):
    """The effect lost a race and was cancelled."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} was cancelled: another member of its group was first")
        self.key = key


class NoneSucceeded(WorldError):
    """Every member of an `any` group failed."""

    def __init__(self, key: str, failures: Sequence[WorldError]) -> None:
        super().__init__(f"none of the {len(failures)} effects of {key} succeeded; the first said: {failures[0]}")
        self.key = key
        self.failures = tuple(failures)


class RunFailed(WorldError):
    """The driven code raised. The same error is raised for everybody who asks again."""

    def __init__(self, journal: str, run: str, kind: str, message: str) -> None:
        super().__init__(f"{run} of {journal!r} failed: {kind}: {message}")
        self.journal = journal
        self.run = run
        self.kind = kind
        self.message = message
