"""The part of the door to a store that is about its gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.names import check_id, check_string
from holdfast.store.calls import Calls
from holdfast.store.gate.contract import MAX_MESSAGE, NoteRefusal, SetTerms

if TYPE_CHECKING:
    from holdfast.store.gate.contract import Refusal


class GateCalls(Calls):
    """What agents take in, and what was refused."""

    async def note_refusal(
        self, journal: str, *, agent: str | None, key: str | None, error: str, message: str
    ) -> Refusal:
        """Keep that an input of `journal` was refused; the journal need not be there.

        The last 20 of a journal are kept, and the last 1,000 of all; a refusal tells how many there were before it.
        """
        check_id("journal id", journal)
        for what, name in (("agent", agent), ("input key", key)):
            if name is not None:
                check_id(what, name)
        said = self.redactor.text(check_string("message", message))[:MAX_MESSAGE]
        return await self._submit(NoteRefusal(journal, agent, key, check_id("error", error), said))

    async def refusals(self, journal: str | None = None, *, limit: int = 50) -> list[Refusal]:
        """Inputs that were refused, newest first; of one journal, or of all."""
        if journal is not None:
            check_id("journal id", journal)
        most = self._page(limit)
        return await self._backend.read(lambda reader: reader.gate.refusals(journal, most))

    async def set_terms(self, agent: str, body: str | None) -> None:
        """Keep what an agent takes in, as JSON, for processes that do not know the agent; None: nothing of its own."""
        check_id("agent", agent)
        await self._submit(SetTerms(agent, None if body is None else check_string("terms", body)))

    async def terms(self) -> dict[str, str]:
        """What agents take in, of all that have said something of their own."""
        return await self._backend.read(lambda reader: reader.gate.terms())
