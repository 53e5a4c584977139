"""Waits: one-shot durable promises, the only way anything suspends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from holdfast.effects.canonical import canonical
from holdfast.errors import InvalidArgument, JournalMissing, PayloadTooLarge, WaitUnknown
from holdfast.names import check_choice, check_id, check_int, check_string
from holdfast.store import decisions
from holdfast.store.calls import Calls
from holdfast.store.contract import (
    WAIT_STATES,
    OpenWait,
    Quarantine,
    RevokeWaits,
    SettleNext,
    SettleWait,
    Wait,
    WaitFilter,
)
from holdfast.store.rules import AddRule, checked_rule

if TYPE_CHECKING:
    from holdfast.store.contract import Settlement, WaitState


_LOOK_AGAIN_MS: Final = 30_000


class WaitCalls(Calls):
    """Waits: one-shot durable promises, the only way anything suspends."""

    async def open_wait(
        self,
        journal: str,
        name: str,
        *,
        deadline: int | None = None,
        kind: str | None = None,
        body: bytes | None = None,
    ) -> Wait:
        """Make the wait exist, with a deadline in wall milliseconds. If it exists, the first deadline stays.

        `body` is what is asked, `kind` what sort of question it is; those of a wait that exists stay. A resolution that
        came before a wait with a body does not count: nobody can have answered what was not asked.
        """
        check_id("journal id", journal)
        check_id("wait", name)
        if deadline is not None:
            check_int("deadline", deadline)
        if kind is not None:
            check_id("wait kind", kind)
        if body is not None:
            _check_body(body, self._backend.limits.wait_bytes)
        return await self._submit(OpenWait(journal, name, deadline, kind, body))

    def wait_token(self, journal: str, name: str) -> str:
        """The bearer token of a wait. Whoever has it can resolve the wait, once, also before it is opened."""
        return decisions.mint_token(self._backend.secret, check_id("journal id", journal), check_id("wait", name))

    def wait_of(self, token: str) -> tuple[str, str]:
        """Journal and name of the wait that `token` stands for; `WaitUnknown` when it is not one of this store."""
        return decisions.verify_token(self._backend.secret, token)

    async def resolve(self, token: str, value: object, *, expect_digest: str | None = None) -> Settlement:
        """Resolve the wait that `token` stands for; the first one decides, and everybody learns the same.

        With `expect_digest`, only if that is the digest of what the wait asks, else `ApprovalMismatch`.
        """
        # First the value: what is wrong with it must not depend on whether the token is good.
        body = self._resolution(value)
        _check_digest(expect_digest)
        journal, name = decisions.verify_token(self._backend.secret, token)
        early = expect_digest is None
        settle = SettleWait(journal, name, "resolved", body, early=early, expect_digest=expect_digest)
        try:
            return await self._submit(settle)
        except JournalMissing:
            raise WaitUnknown from None

    def _resolution(self, value: object) -> bytes:
        body = canonical(value)
        limit = self._backend.limits.input_bytes
        if len(body) > limit:
            raise PayloadTooLarge("the resolution", len(body), limit)
        return body

    async def answer_wait(
        self,
        journal: str,
        name: str,
        value: object,
        *,
        expect_digest: str | None = None,
        rule: AddRule | None = None,
    ) -> Settlement:
        """Resolve a wait that was opened, as its keeper and without a token; the first answer decides.

        `expect_digest` is as in `resolve`. `rule` (see `new_rule`) is stored in the same commit if this answer decides,
        and told in the settlement; if it can't be stored, nothing is settled.
        """
        check_id("journal id", journal)
        check_id("wait", name)
        body = self._resolution(value)
        _check_digest(expect_digest)
        if rule is not None:
            if not isinstance(rule, AddRule):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
                raise InvalidArgument("rule", rule, "a rule that new_rule has made")
            rule = checked_rule(rule.agent, rule.body, rule.by, self._backend.limits)
        return await self._submit(SettleWait(journal, name, "resolved", body, False, expect_digest, rule))  # noqa: FBT003

    async def answer_next(
        self, journal: str, prefix: str, value: object, *, most: int, key: str | None = None
    ) -> Settlement:
        """Resolve the first of numbered waits that can be: one that is open, or the one behind the last (up to `most`).

        The same value under the same `key` again settles nothing (`won` is False), another one is a `KeyConflict`.
        """
        check_id("journal id", journal)
        check_id("prefix", f"{prefix}1")
        check_int("most", most, least=1)
        if key is not None:
            check_id("key", key)
        return await self._submit(SettleNext(journal, prefix, most, self._resolution(value), key))

    async def expire_wait(self, journal: str, name: str) -> Settlement:
        """End a wait whose deadline has passed; one that is not due stays open."""
        check_id("journal id", journal)
        check_id("wait", name)
        return await self._submit(SettleWait(journal, name, "expired"))

    async def cancel_wait(self, journal: str, name: str) -> Settlement:
        """End a wait that nobody needs any more."""
        check_id("journal id", journal)
        check_id("wait", name)
        return await self._submit(SettleWait(journal, name, "cancelled"))

    async def revoke_waits(self, journal: str, name: str | None = None) -> int:
        """Make one wait worthless, or all of the journal's for ever; their tokens look as if they never existed."""
        check_id("journal id", journal)
        if name is not None:
            check_id("wait", name)
        return await self._submit(RevokeWaits(journal, name))

    async def wait(self, journal: str, name: str) -> Wait | None:
        """The wait as it is now; None when nobody opened or resolved it."""
        check_id("journal id", journal)
        check_id("wait", name)
        return await self._guarded(journal, lambda reader: reader.wait(journal, name))

    async def waits(
        self, journal: str, limit: int | None = None, *, state: WaitState | None = None, after: str = ""
    ) -> list[Wait]:
        """The waits of a journal (in one state, if it is given), by name. Pass the last name as `after` for more."""
        check_id("journal id", journal)
        check_string("cursor", after)
        if state is not None:
            check_choice("wait state", state, WAIT_STATES)
        page = self._page(limit)
        return await self._guarded(journal, lambda reader: reader.waits(journal, state, after, page))

    async def open_waits(self, kind: str, *, before: Wait | None = None, limit: int = 50) -> list[Wait]:
        """Waits of this kind, of all journals, that can be answered now; those opened last come first.

        Pass the last one as `before` for the next page.
        """
        check_id("wait kind", kind)
        if before is not None and not isinstance(before, Wait):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise InvalidArgument("before", before, "the last wait of the page before")
        cursor = None if before is None else (before.at, before.journal, before.name)
        where, page = WaitFilter(kind, self._wall(), cursor), self._page(limit)
        found, damaged = await self._backend.read(lambda reader: reader.asked(where, page))
        await self._quarantine_waits(damaged)
        return found

    async def due(self, limit: int | None = None) -> list[Wait]:
        """Open waits whose deadline has passed, longest overdue first. Timers are waits that nobody resolves."""
        now = self._backend.clock.read().wall
        page = self._page(limit)
        due, damaged = await self._backend.read(lambda reader: reader.due(now, page))
        await self._quarantine_waits(damaged)
        return due

    async def _quarantine_waits(self, journals: set[str]) -> None:
        """One damaged wait must neither stop the timers of all others nor hide what they ask."""
        for journal in sorted(journals):
            await self._submit(Quarantine(journal, "a wait does not match its checksum or its seal"))

    async def next_due(self) -> int | None:
        """When something becomes due, in wall milliseconds: the deadline of an open wait, or a notification.

        Waits are for `due` and `expire_wait`, notifications (also those that expire) for `ripen`.
        """
        return await self._backend.read(lambda reader: reader.next_due())

    async def until(self, due: int) -> None:
        """Wait until the wall clock says `due`.

        The waiting itself is by the monotonic clock. A wall clock set forward is noticed within half a minute; one set
        back delays the moment. Neither makes it come twice.
        """
        check_int("time", due)
        while (left := due - self._backend.clock.read().wall) > 0:  # noqa: ASYNC110  no event tells that a clock was set
            await asyncio.sleep(min(left, _LOOK_AGAIN_MS) / 1000)


def _check_body(body: object, limit: int) -> None:
    if type(body) is not bytes:
        raise InvalidArgument("wait body", body, "bytes")
    if len(body) > limit:
        raise PayloadTooLarge("the question", len(body), limit)


def _check_digest(digest: object) -> None:
    if digest is not None:
        check_id("digest", digest)
