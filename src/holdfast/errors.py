"""One tree of errors; each class says who can act.

    HoldfastError
    |-- UsageError        the caller: bad input, bad order of calls, a code change under a running journal
    |-- WorldError        the outside world: an effect failed, or nobody can say what became of it
    |-- StoreError        the store: busy, full, fenced, corrupt, refused
    `-- InvariantBroken   us: a bug; stop and report it

`Halted` is not in the tree. It unwinds user code that must not go on, so it derives from `BaseException`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from holdfast.effects.divergence import Divergence
    from holdfast.messages import Attempt

Actor = Literal["caller", "world", "store", "us"]


class HoldfastError(Exception):
    """Base of every error that Holdfast raises on purpose."""

    actor: ClassVar[Actor] = "us"


class UsageError(HoldfastError):
    """The caller can act: the input or the order of calls is wrong. Nothing was written."""

    actor: ClassVar[Actor] = "caller"


class WorldError(HoldfastError):
    """The outside world decided: an effect failed, was cancelled, or its outcome is unknown."""

    actor: ClassVar[Actor] = "world"


class StoreError(HoldfastError):
    """The store can't do what was asked."""

    actor: ClassVar[Actor] = "store"


class InvariantBroken(HoldfastError):
    """Holdfast found itself in a state that must not exist. Please report it."""


class Halted(BaseException):
    """This journal can't be driven further here.

    Raised inside driven code when the lease was lost, a replay diverged or the store failed. It derives from
    `BaseException` so that `except Exception` in user code can't swallow it and go on without a journal.
    `reason` says why; whoever drives the journal catches it.
    """

    def __init__(self, reason: HoldfastError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Suspended(BaseException):
    """The running tool waits for somebody outside, and the turn is parked until then.

    It derives from `BaseException` so that `except Exception` in user code can't swallow it.
    """

    def __init__(self, wait: str) -> None:
        super().__init__(f"waiting for {wait!r}")
        self.wait = wait


# ---- the caller ------------------------------------------------------------------------------------------------------


class InvalidId(UsageError):
    """An id that can't name a journal, a key, a wait or a step."""

    def __init__(self, what: str, value: object, reason: str) -> None:
        super().__init__(f"{what} {_excerpt(value)} is not valid: {reason}")
        self.what = what
        self.value = value
        self.reason = reason


class InvalidNumber(UsageError):
    """A number that can't be meant: a time, a size, a place or a count."""

    def __init__(self, what: str, value: object, reason: str) -> None:
        super().__init__(f"{what} {_excerpt(value)} is not valid: {reason}")
        self.what = what
        self.value = value
        self.reason = reason


class InvalidArgument(UsageError):
    """Something of the wrong kind was given."""

    def __init__(self, what: str, value: object, wanted: str) -> None:
        super().__init__(f"{what} {_excerpt(value)} is not valid: {wanted} is wanted, not a {type(value).__name__}")
        self.what = what
        self.value = value
        self.wanted = wanted


class InvalidValue(UsageError):
    """A value that has no canonical JSON form."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"the value at {path} can't be recorded: {reason}; use plain JSON values")
        self.path = path
        self.reason = reason


class PayloadTooLarge(UsageError):
    """A payload over its limit."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"{what} is {size:,} bytes, the limit is {limit:,}; store it as an attachment or raise the limit"
        )
        self.what = what
        self.size = size
        self.limit = limit


class KeyConflict(UsageError):
    """An idempotency key that was used before, with other content."""

    def __init__(self, journal: str, key: str) -> None:
        super().__init__(
            f"{journal!r} already accepted other content under the key {key!r}; a new input needs a new key"
        )
        self.journal = journal
        self.key = key


class JournalMissing(UsageError):
    """No journal has this id."""

    def __init__(self, journal: str) -> None:
        super().__init__(f"there is no {journal!r} in this store; name its agent to make it, or check the id")
        self.journal = journal


class JournalConflict(UsageError):
    """The journal exists with another kind or agent."""

    def __init__(self, journal: str, recorded: str, asked: str) -> None:
        super().__init__(f"journal {journal!r} was opened as {recorded}, not as {asked}; choose another id")
        self.journal = journal
        self.recorded = recorded
        self.asked = asked


class ForkPointMissing(UsageError):
    """A fork that would begin at a record which its parent does not have."""

    def __init__(self, journal: str, at: int, head: int) -> None:
        super().__init__(f"{journal!r} has no record {at:,} to fork at; it has the records 1 to {head:,}")
        self.journal = journal
        self.at = at
        self.head = head


class WaitUnknown(UsageError):
    """The wait token is not valid.

    Tampered, never issued and revoked look the same on purpose: a bearer of a bad token learns nothing.
    """

    def __init__(self) -> None:
        super().__init__("this wait is unknown or was revoked")


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


class RunEnded(UsageError):
    """The run has ended; nothing can be done in its name any more."""

    def __init__(self, run: str) -> None:
        super().__init__(f"the run {run!r} has ended; await all of its tasks before it does")
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


class ModelUnknown(UsageError):
    """No model has this name."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        choice = f"known providers are {', '.join(known)}" if known else "no provider is registered"
        super().__init__(f"{name!r} names no model: {choice}; write 'provider:model', or pass a Model")
        self.name = name
        self.known = known


class ToolInvalid(UsageError):
    """A function that can't be a tool."""

    def __init__(self, function: str, parameter: str | None, reason: str) -> None:
        where = f"parameter {parameter!r} of the tool {function!r}" if parameter else f"the tool {function!r}"
        super().__init__(f"{where} is not valid: {reason}")
        self.function = function
        self.parameter = parameter
        self.reason = reason


class AgentInvalid(UsageError):
    """An agent that can't be run as it is defined."""

    def __init__(self, agent: str, reason: str) -> None:
        super().__init__(f"the agent {agent!r} is not valid: {reason}")
        self.agent = agent
        self.reason = reason


class AgentUnknown(UsageError):
    """No agent of this runtime has this name."""

    def __init__(self, agent: str, known: tuple[str, ...]) -> None:
        choice = ", ".join(known) or "none"
        super().__init__(f"this runtime has no agent {agent!r}; it has: {choice}. Pass it to open(agents=[...])")
        self.agent = agent
        self.known = known


class TurnUnknown(UsageError):
    """The session has no such turn."""

    def __init__(self, session: str, turn: str) -> None:
        super().__init__(f"the session {session!r} has no turn {turn!r}")
        self.session = session
        self.turn = turn


class CursorInvalid(UsageError):
    """A cursor that no event of this stream can have."""

    def __init__(self, cursor: object, reason: str) -> None:
        super().__init__(f"the cursor {_excerpt(cursor)} is not valid: {reason}; use the cursor of an event, or 0")
        self.cursor = cursor
        self.reason = reason


class ControlCancelled(UsageError):
    """The control was cancelled; nothing more is accepted under it."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this control was cancelled{f': {reason}' if reason else ''}; make another one")
        self.reason = reason


class RuntimeStopped(UsageError):
    """The runtime is being closed and takes nothing new."""

    def __init__(self) -> None:
        super().__init__("this runtime is closed or closing; open it again")


# ---- the outside world -----------------------------------------------------------------------------------------------


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


class ModelError(WorldError):
    """The model could not answer. `retryable` tells whether the same request may succeed later."""

    def __init__(  # noqa: PLR0913
        self,
        message: str,
        *,
        kind: str = "model_error",
        retryable: bool = False,
        status: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.retryable = retryable
        self.status = status
        self.request_id = request_id
        self.retry_after = retry_after
        """How long the provider asks to wait, in seconds."""
        self.attempts: tuple[Attempt, ...] = ()
        """Every try, where the model keeps a ledger."""


class StreamCut(ModelError):
    """The stream ended before the provider said that the reply is whole."""

    def __init__(self, model: str) -> None:
        super().__init__(f"the reply of {model} ended in the middle", kind="stream_cut", retryable=True)
        self.model = model


class ContextOverflow(ModelError):
    """The conversation does not fit into the model's context window."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="context_overflow")


class WaitExpired(WorldError):
    """Nobody answered in time."""

    def __init__(self, name: str) -> None:
        super().__init__(f"nobody answered {name!r} in time")
        self.name = name


class WaitEnded(WorldError):
    """The wait was cancelled or revoked: nobody can answer it any more."""

    def __init__(self, name: str, state: str) -> None:
        super().__init__(f"the wait {name!r} was {state}; nobody can answer it any more")
        self.name = name
        self.state = state


# ---- the store -------------------------------------------------------------------------------------------------------


class StoreClosed(StoreError):
    """The store was closed."""

    def __init__(self) -> None:
        super().__init__("this store is closed; open it again")


class StoreBusy(StoreError):
    """Another process held the write lock for too long, or too much is queued."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the store is busy: {reason}; try again")
        self.reason = reason


class StoreFull(StoreError):
    """No room on the disk. Nothing of this write was kept; readers go on, and so do writes when there is room."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"the store has no room to write ({detail}); nothing was written. Free some space and go on")
        self.detail = detail


class WalPinned(StoreFull):
    """A reader outside Holdfast pins the write-ahead log, which has reached its limit."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"the write-ahead log is {size:,} bytes, the limit is {limit:,}, and a long read transaction of another "
            "program keeps it from being reset; end that transaction"
        )
        self.size = size
        self.limit = limit


class StoreFailed(StoreError):
    """The store could not write. Nothing of this write was kept."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"the store could not write ({detail}); nothing was written. Check the disk, then go on")
        self.detail = detail


class CommitUnknown(StoreError):
    """A commit failed and nobody can say whether it is on the disk."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"a commit failed and it could not be established whether it took effect ({detail}); "
            "read the journal again before relying on it"
        )
        self.detail = detail


class StoreRefused(StoreError):
    """The file was not opened, and not touched."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path} was not opened: {reason}")
        self.path = path
        self.reason = reason


class StoreForeign(StoreRefused):
    """The file is not a Holdfast store."""


class StoreTooNew(StoreRefused):
    """The store was written by a newer release."""


class StoreUnsafe(StoreRefused):
    """The file system or the SQLite library can't keep the promises."""


class StoreDamaged(StoreError):
    """SQLite can't read the file."""

    def __init__(self, path: Path | str, detail: str) -> None:
        super().__init__(f"{path} is damaged ({detail}); run 'holdfast doctor {path}' and restore from a backup")
        self.path = path
        self.detail = detail


class Fenced(StoreError):
    """The lease moved on: somebody else advances this journal now. What this writer computed was dropped."""

    def __init__(self, journal: str, epoch: int, current: int, holder: str | None) -> None:
        who = f"held by {holder}" if holder else "held by nobody"
        super().__init__(
            f"the lease on {journal!r} is no longer yours: you hold epoch {epoch}, the journal is at {current}, {who}"
        )
        self.journal = journal
        self.epoch = epoch
        self.current = current
        self.holder = holder


class LeaseHeld(StoreError):
    """Somebody else advances this journal."""

    def __init__(self, journal: str, holder: str, expires_in_ms: int) -> None:
        super().__init__(
            f"{journal!r} is being advanced by {holder}; its lease ends in {expires_in_ms / 1000:.1f} s unless renewed"
        )
        self.journal = journal
        self.holder = holder
        self.expires_in_ms = expires_in_ms


class HeadConflict(StoreError):
    """The journal is not where the writer thought it was."""

    def __init__(self, journal: str, expected: int, actual: int) -> None:
        super().__init__(f"{journal!r} ends at record {actual}, the writer expected {expected}; read it again")
        self.journal = journal
        self.expected = expected
        self.actual = actual


class JournalCorrupt(StoreError):
    """A record can't be trusted. The journal is quarantined; others go on."""

    def __init__(self, journal: str, seq: int, reason: str) -> None:
        super().__init__(
            f"journal {journal!r} is corrupt at record {seq}: {reason}; it is quarantined, the others go on. "
            "Restore it from a backup"
        )
        self.journal = journal
        self.seq = seq
        self.reason = reason


class JournalQuarantined(StoreError):
    """The journal was found corrupt before and is not advanced."""

    def __init__(self, journal: str, reason: str) -> None:
        super().__init__(f"journal {journal!r} is quarantined: {reason}; restore it from a backup")
        self.journal = journal
        self.reason = reason


class InboxFull(StoreError):
    """Too many inputs wait for this journal."""

    def __init__(self, journal: str, limit: int) -> None:
        super().__init__(f"{limit:,} inputs already wait for {journal!r}; let it catch up, or raise the limit")
        self.journal = journal
        self.limit = limit


class InputTaken(StoreError):
    """The input is already in its journal."""

    def __init__(self, journal: str, number: int) -> None:
        super().__init__(f"input {number} of {journal!r} does not wait any more; read the journal again")
        self.journal = journal
        self.input = number


class BlobMissing(StoreError):
    """A record refers to bytes that are not in the store."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"the attachment {digest} is not in this store; put it before the record that refers to it")
        self.digest = digest


class BlobCorrupt(StoreError):
    """Stored bytes do not match their digest."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"the attachment {digest} does not match its digest; restore it from a backup")
        self.digest = digest


class RecordUnreadable(StoreError):
    """A record of an unknown kind or of a newer format."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the record can't be read: {reason}; it may come from a newer release")
        self.reason = reason


def _excerpt(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  an error about a bad value must not fail because the value is bad
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text):,} characters)"
