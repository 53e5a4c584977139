"""The part of the door to a store that is about the inbox of a journal."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.bounds import check_int
from holdfast.effects.canonical import canonical
from holdfast.errors import HoldfastError, PayloadTooLarge
from holdfast.names import check_choice, check_id
from holdfast.records import JOURNAL_KINDS
from holdfast.store.admission import checked_admission
from holdfast.store.calls import Calls, refused
from holdfast.store.contract import Accept, OpenJournal
from holdfast.store.digests import input_digest
from holdfast.store.spending.calls import checked
from holdfast.store.spending.contract import MAX_SPEND

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from holdfast.records import Blob, JournalKind
    from holdfast.store.admission import Admission
    from holdfast.store.contract import Input, Receipt
    from holdfast.store.spending.contract import Spend


class InboxCalls(Calls):
    """The inbox: what was accepted, once per key, and waits to be admitted."""

    async def accept(
        self,
        journal: str,
        content: object,
        *,
        key: str | None = None,
        urgent: bool = False,
        admission: Admission | None = None,
    ) -> Receipt:
        """Take an input in. The same key with the same content gives the same receipt, other content `KeyConflict`.

        What is `urgent` (a request to stop, say) comes in also when the inbox is full. Under an `admission`, what is
        too much is a `RateExceeded`, and what came a moment ago may be a `DuplicateInput`, or the same receipt.
        """
        check_id("journal id", journal)
        accept = self._accept(journal, content, key, None, admission)
        return await self._submit(replace(accept, urgent=True) if urgent else accept)

    def accept_into(  # noqa: PLR0913
        self,
        journal: str,
        kind: JournalKind,
        agent: str | None,
        content: object,
        *,
        key: str | None = None,
        refs: Sequence[Blob] = (),
        patient: bool = False,
        role: str | None = None,
        session: str | None = None,
        admission: Admission | None = None,
        youngest: str | None = None,
        spend: Spend | None = None,
        under: tuple[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> asyncio.Future[Receipt]:
        """Open the journal and take an input in, both or neither. Refused as `open_journal` and `accept` are.

        `refs` are blobs that the content speaks of; they stay as long as the journal does. `patient`: another command
        follows at once. `youngest` is what `youngest` said before it was decided what to begin: `SiblingBegun` when
        another journal of this role for this session was made since. `spend` is counted for the agent if this makes the
        journal, and not again otherwise. `under` is on whose behalf this comes: a journal, and the key of the request
        to stop it. `StopRequested` once that request was accepted, unless the input was accepted before. `metadata` is
        kept with the journal that is made; one that is there must have been made with the same.
        """
        try:
            opened = opening(journal, kind, agent, role, session)
            if metadata is not None:
                opened = replace(opened, metadata=self._metadata(metadata))
            accept = self._accept(journal, content, key, opened, admission)
            digests = tuple(blob.digest for blob in refs)
            counted = None if spend is None else checked(spend, MAX_SPEND)
            said = replace(accept, refs=digests, patient=patient, youngest=youngest, spend=counted, under=under)
            return self._submit(said)
        except HoldfastError as refusal:
            return refused(refusal)

    def _metadata(self, given: dict[str, Any]) -> bytes:
        body, limit = canonical(given), self._backend.limits.inline_bytes
        if len(body) > limit:
            raise PayloadTooLarge("the metadata of the session", len(body), limit)
        return body

    async def youngest(self, role: str, session: str) -> str:
        """The journal of this role for this session that was made last; "" when there is none."""
        check_id("role", role)
        check_id("session", session)
        return await self._backend.read(lambda reader: reader.youngest(role, session))

    def _accept(
        self, journal: str, content: object, key: str | None, made: OpenJournal | None, admission: Admission | None
    ) -> Accept:
        named = f"auto-{secrets.token_hex(12)}" if key is None else check_id("input key", key)
        body = canonical(content)
        limit = self._backend.limits.input_bytes
        if len(body) > limit:
            raise PayloadTooLarge("the input", len(body), limit)
        accept = Accept(journal, named, input_digest(body), body, made, unnamed=key is None)
        return accept if admission is None else replace(accept, admission=checked_admission(admission))

    async def find_input(self, journal: str, key: str) -> Receipt | None:
        """The receipt of the input that was accepted under `key`; None when there is none."""
        check_id("journal id", journal)
        check_id("input key", key)
        return await self._backend.read(lambda reader: reader.receipt(journal, key))

    async def pending(self, journal: str, limit: int | None = None, *, after: int = 0) -> list[Input]:
        """Accepted inputs above `after` that are not in the journal yet, in the order of their acceptance."""
        check_id("journal id", journal)
        check_int("cursor", after)
        page = self._page(limit)
        return await self._guarded(journal, lambda reader: reader.pending(journal, after, page))

    async def input(self, journal: str, number: int) -> Input | None:
        """An input that was accepted, whether it still waits or not; None when there is none with this number."""
        check_id("journal id", journal)
        check_int("input", number)
        return await self._guarded(journal, lambda reader: reader.input(journal, number))


def opening(journal: str, kind: JournalKind, agent: str | None, role: str | None, session: str | None) -> OpenJournal:
    """The command that opens a journal, or the error that says what is wrong with it."""
    check_id("journal id", journal)
    check_choice("journal kind", kind, JOURNAL_KINDS)
    for what, name in (("agent", agent), ("role", role), ("session", session)):
        if name is not None:
            check_id(what, name)
    return OpenJournal(journal, kind, agent, role, session)
