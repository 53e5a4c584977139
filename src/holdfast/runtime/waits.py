"""What the tools of one turn wait for from outside: an approval, a webhook, another system. It may take days."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.effects.canonical import digest_of_bytes
from holdfast.effects.envelope import segment
from holdfast.effects.replay import Perform, Repeat, UseRecorded
from holdfast.effects.values import decode_value
from holdfast.errors import InvalidArgument, Suspended, WaitEnded, WaitExpired, WaitFailed, WaitUnknown
from holdfast.names import check_id, check_text
from holdfast.policy.rules import milliseconds
from holdfast.records import Cause, Done, EffectRequest, ErrorInfo, Failed, Intended

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from holdfast.effects.performer import Performer
    from holdfast.records import Outcome
    from holdfast.runtime.recorder import Recorder
    from holdfast.store import Store
    from holdfast.store.contract import Wait


FAILURE_KEY: Final = "$holdfast.error"
"""The one key of an answer that says why there is none."""
MAX_FAILURE: Final = 2_000
"""Longest reason, in characters."""


def answer_payload(value: object, error: str | None) -> object:
    """The answer to write down, for a value or for an error; not for both."""
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
    """Why there is no answer, if that is what the answer says."""
    if payload is None or FAILURE_KEY.encode() not in payload[: len(FAILURE_KEY) + 16]:
        return None
    return _failure(msgspec.json.decode(payload))


def _failure(value: object) -> str | None:
    if not isinstance(value, dict) or len(cast("dict[Any, Any]", value)) != 1:
        return None
    said: object = cast("dict[Any, Any]", value).get(FAILURE_KEY)
    return said if isinstance(said, str) else None


FAILED_STATE: Final = "failed"
"""How a wait is recorded to which somebody answered that there is no answer."""


class DeferralSuspended(Suspended):
    """The tool has returned its deferral, and the call waits for the result from outside."""


class JournalWaits:
    """The waits of one journal, in its store."""

    def __init__(self, store: Store, journal: str) -> None:
        self._store = store
        self._journal = journal

    async def open_wait(
        self, name: str, deadline: int | None, *, kind: str | None = None, body: bytes | None = None
    ) -> Wait:
        """The wait as it now is; one whose time is up is ended first."""
        wait = await self._store.open_wait(self._journal, name, deadline=deadline, kind=kind, body=body)
        if self._is_overdue(wait):
            wait = (await self._store.expire_wait(self._journal, name)).wait
        return wait

    async def find(self, name: str) -> Wait | None:
        """The wait as the store has it; None where there is none. One whose seal is broken quarantines the journal."""
        return await self._store.wait(self._journal, name)

    async def close_wait(self, name: str) -> None:
        """Nobody can answer it any more, if nobody has."""
        with suppress(WaitUnknown):  # it was never opened, or revoked
            await self._store.cancel_wait(self._journal, name)

    def token(self, name: str) -> str:
        """The secret that resolves it."""
        return self._store.wait_token(self._journal, name)

    async def answered(self, names: Iterable[str]) -> bool:
        """Whether one of these is over."""
        for name in names:
            wait = await self._store.wait(self._journal, name)
            if wait is None or wait.state != "open" or self._is_overdue(wait):
                return True
        return False

    def _is_overdue(self, wait: Wait) -> bool:
        return wait.state == "open" and wait.deadline is not None and wait.deadline <= self._store.clock.read().wall


class ToolWaits:
    """The waits of one turn, or of one task."""

    def __init__(self, waits: JournalWaits, performer: Performer, recorder: Recorder) -> None:
        self._waits = waits
        self._performer = performer
        self._recorder = recorder

    def token(self, key: str, name: str, occurrence: int) -> str:
        """What whoever answers the wait has to show."""
        return self._waits.token(_names(key, name, occurrence)[1])

    async def wait(self, key: str, name: str, occurrence: int, timeout: timedelta | float | None) -> Any:  # noqa: ANN401
        """The answer, if it is there; otherwise the call is left here, and runs again when it is."""
        await self._performer.admit()
        below, known = _names(key, name, occurrence)
        cause, step = Cause("call", key), self._performer.iteration or 0
        ask = EffectRequest("await_event", known, digest_of_bytes("wait", known.encode()), cause=cause, iteration=step)
        decision = self._performer.decide(below, ask, Repeat.FREE)
        if isinstance(decision, UseRecorded):
            return await self._answer(name, decision.outcome)
        deadline = None if timeout is None else self._performer.now() + milliseconds(timeout)
        wait = await self._waits.open_wait(known, deadline)
        if wait.state == "open":
            self._performer.leave(key)  # what is cancelled in the call from here on was not: it runs again
            if isinstance(decision, Perform):
                self._recorder.submit([Intended(at=self._performer.now(), key=below, ask=ask)])
            raise Suspended(known)
        asked = ask if isinstance(decision, Perform) else None
        failure = failure_reason(wait.payload)
        if failure is not None:
            outcome = Failed(at=self._performer.now(), key=below, ask=asked, error=ErrorInfo(FAILED_STATE, failure))
        elif wait.state == "resolved":
            begun = asyncio.get_running_loop().time()
            outcome = await self._performer.succeeded(below, asked, wait.payload or b"null", begun)
        else:
            info = ErrorInfo(wait.state, f"the wait was {wait.state}")
            outcome = Failed(at=self._performer.now(), key=below, ask=asked, error=info)
        self._recorder.submit([outcome])
        # From here on the tool may act on the answer: if it is interrupted now, it was not left by itself.
        await self._recorder.settle()
        return await self._answer(name, outcome)

    async def _answer(self, name: str, outcome: Outcome) -> Any:  # noqa: ANN401  whatever somebody outside answered
        if isinstance(outcome, Done):
            body = bytes(outcome.value) if outcome.blob is None else await self._performer.large(outcome.blob)
            return decode_value(body)
        state = outcome.error.kind if isinstance(outcome, Failed) else "cancelled"
        if state == "expired":
            raise WaitExpired(name)
        if isinstance(outcome, Failed) and state == FAILED_STATE:
            raise WaitFailed(name, outcome.error.message)
        raise WaitEnded(name, state)


def _names(key: str, name: str, occurrence: int) -> tuple[str, str]:
    """The key of a wait, and the name under which the store knows it."""
    below = f"{key}/{segment(check_id('wait', name), occurrence)}"
    return below, wait_name(below)


def wait_name(below: str) -> str:
    """The name under which the store knows the wait with this key."""
    return below if len(below) <= 200 else f"{below[:150]}~{digest_of_bytes('wait', below.encode())[:40]}"
