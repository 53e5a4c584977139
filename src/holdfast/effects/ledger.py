"""The journal of a run as those need it who perform its effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from holdfast.records import Blob, Record
    from holdfast.secrets.redactor import Redactor


class Ledger(Protocol):
    """The journal as the boundary needs it: written under a lease, in order."""

    journal: str
    store_id: str
    inline_bytes: int
    redactor: Redactor

    @property
    def behind(self) -> int:
        """How many records were submitted and are not durable yet."""
        ...

    def now(self) -> int:
        """Wall time in milliseconds."""
        ...

    def append(
        self,
        added: list[Record],
        *,
        patient: bool = False,
        notify: Sequence[Any] = (),
        consume: Sequence[str] = (),
        spend: Any = None,  # noqa: ANN401  what the store counts is no matter of this layer
    ) -> tuple[int, Awaitable[object]]:
        """Queue records now; answers the sequence of the last one, and what to await for durability.

        With `patient`, nobody awaits it soon. Into the same commit belong: `notify`, notifications; `consume`, answered
        waits that are used up; `spend`, what the records say was used.
        """
        ...

    async def confirm(self) -> None:
        """Make sure that nobody else drives this journal now; an error when somebody does."""
        ...

    async def put_blob(self, body: bytes) -> Blob:
        """Keep large bytes."""
        ...

    def queue_blob(self, body: bytes) -> Blob:
        """Keep large bytes, without waiting: what is appended after this may speak of them."""
        ...

    async def blob(self, digest: str) -> bytes | None:
        """Large bytes that were kept."""
        ...
