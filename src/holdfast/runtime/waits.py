"""Waits: the one path on which a turn, a background call or a process waits for an outside answer, perhaps for days.

`JournalWaits` opens, reads and closes the waits of one journal. Approvals, deferrals, reconciliation, pauses of
programs and `ctx.wait` of tools (`ToolWaits`) all go through it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.effects import keys, replay
from holdfast.effects.canonical import decode_value, digest_of_bytes
from holdfast.errors import InvalidArgument, Suspended, WaitEnded, WaitExpired, WaitFailed, WaitUnknown
from holdfast.names import check_id, check_text
from holdfast.policy.rules import milliseconds
from holdfast.records import Cause, Done, EffectRequest, ErrorInfo, Failed, Intended, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from holdfast.effects.performer import Performer
    from holdfast.store import Store, contract


FAILURE_KEY: Final = "$holdfast.error"
"""The only key of an answer that is an error."""
MAX_FAILURE: Final = 2_000
"""Longest error, in characters."""
FAILED_STATE: Final = "failed"
"""The kind of error of a wait that was answered with an error."""


class DeferralSuspended(Suspended):
    """The tool has returned its deferral, and the call waits for the result from outside."""


class JournalWaits:
    """The waits of one journal, in its store."""

    def __init__(self, store: Store, journal: str) -> None:
        self._store = store
        self._journal = journal

    @property
    def journal(self) -> str:
        return self._journal

    async def find(self, name: str) -> contract.Wait | None:
        """The wait of this name; None without one."""
        return await self._store.wait(self._journal, name)

    async def open(
        self, name: str, deadline: int | None, *, kind: str | None = None, body: bytes | None = None
    ) -> contract.Wait:
        """Open a wait, or return the existing one. An overdue one is expired first."""
        wait = await self._store.open_wait(self._journal, name, deadline=deadline, kind=kind, body=body)
        if self._is_overdue(wait):
            wait = (await self._store.expire_wait(self._journal, name)).wait
        return wait

    async def close(self, name: str) -> None:
        """Cancel a wait if it is open."""
        with suppress(WaitUnknown):  # it was never opened, or revoked
            await self._store.cancel_wait(self._journal, name)

    async def close_below(self, key: str) -> None:
        """Cancel all open waits of the effect `key`."""
        prefix = f"{key}/"
        while page := await self._store.waits(self._journal, state="open", after=prefix):
            found = [wait.name for wait in page if wait.name.startswith(prefix)]
            for name in found:
                await self.close(name)
            if len(found) < self._store.limits.page:
                return

    def token(self, name: str) -> str:
        """The secret with which a wait is resolved."""
        return self._store.wait_token(self._journal, name)

    async def any_ended(self, names: Iterable[str]) -> bool:
        """True if one of these waits was answered, closed, or is overdue."""
        for name in names:
            wait = await self._store.wait(self._journal, name)
            if wait is None or wait.state != "open" or self._is_overdue(wait):
                return True
        return False

    def _is_overdue(self, wait: contract.Wait) -> bool:
        return wait.state == "open" and wait.deadline is not None and wait.deadline <= self._store.clock.read().wall


class ToolWaits:
    """`ctx.wait` for the tools of one turn, or of one background call."""

    def __init__(self, waits: JournalWaits, performer: Performer) -> None:
        self._waits = waits
        self._performer = performer

    def token(self, key: str, name: str, occurrence: int) -> str:
        """The secret with which a wait of a tool is resolved."""
        return self._waits.token(wait_name(_wait_key(key, name, occurrence)))

    async def wait(self, key: str, name: str, occurrence: int, timeout: timedelta | float | None) -> Any:
        """The answer of a wait. Without one, raises `Suspended`; the call runs again once it is answered."""
        await self._performer.admit()
        below = _wait_key(key, name, occurrence)
        known = wait_name(below)
        cause, step = Cause("call", key), self._performer.iteration or 0
        ask = EffectRequest("await_event", known, digest_of_bytes("wait", known.encode()), cause=cause, iteration=step)
        decision = self._performer.decide(below, ask, replay.Repeat.FREE)
        if isinstance(decision, replay.UseRecorded):
            return await self._answer(name, decision.outcome)
        deadline = None if timeout is None else self._performer.now() + milliseconds(timeout)
        wait = await self._waits.open(known, deadline)
        if wait.state == "open":
            self._performer.leave(key)  # steps that are cancelled from here on are performed again
            if isinstance(decision, replay.Perform):
                self._performer.submit([Intended(at=self._performer.now(), key=below, ask=ask)])
            raise Suspended(known)
        asked = ask if isinstance(decision, replay.Perform) else None
        failure = failure_reason(wait.payload)
        if failure is None and wait.state == "resolved":
            outcome = await self._performer.succeeded(below, asked, wait.payload or b"null")
        else:
            state = wait.state if failure is None else FAILED_STATE
            info = ErrorInfo(state, f"the wait was {state}" if failure is None else failure)
            outcome = Failed(at=self._performer.now(), key=below, ask=asked, error=info)
        self._performer.submit([outcome])
        # From here on the tool may act on the answer: an interruption no longer suspends it.
        await self._performer.settle()
        return await self._answer(name, outcome)

    async def _answer(self, name: str, outcome: Outcome) -> Any:  # any JSON value
        if isinstance(outcome, Done):
            return decode_value(await self._performer.read_value(outcome))
        state = outcome.error.kind if isinstance(outcome, Failed) else "cancelled"
        if state == "expired":
            raise WaitExpired(name)
        if isinstance(outcome, Failed) and state == FAILED_STATE:
            raise WaitFailed(name, outcome.error.message)
        raise WaitEnded(name, state)


def _wait_key(key: str, name: str, occurrence: int) -> str:
    return f"{key}/{keys.segment(check_id('wait', name), occurrence)}"


def wait_name(below: str) -> str:
    """The name in the store of the wait with this key: the key itself, unless it is too long."""
    return below if len(below) <= 200 else f"{below[:150]}~{digest_of_bytes('wait', below.encode())[:40]}"


# ---- answers ----


def answer_payload(value: object, error: str | None) -> object:
    """The answer in its stored form, for a value or an error; not both."""
    if error is not None:
        if value is not None:
            raise InvalidArgument("error", error, "an answer is a value or an error, not both")
        if not check_text("error", error, MAX_FAILURE).strip():
            raise InvalidArgument("error", error, "words that say why there is no answer")
        return {FAILURE_KEY: error}
    if _failure(value) is not None:
        raise InvalidArgument(
            "value", value, f"something else than an object with the key {FAILURE_KEY!r}; give error="
        )
    return value


def failure_reason(payload: bytes | None) -> str | None:
    """The error in an answer; None if the answer is a value."""
    if payload is None or FAILURE_KEY.encode() not in payload[: len(FAILURE_KEY) + 16]:
        return None
    return _failure(msgspec.json.decode(payload))


def _failure(value: object) -> str | None:
    if not isinstance(value, dict) or len(cast("dict[Any, Any]", value)) != 1:
        return None
    said: object = cast("dict[Any, Any]", value).get(FAILURE_KEY)
    return said if isinstance(said, str) else None
