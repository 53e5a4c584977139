"""The store conformance suite: what every backend must do, as plain coroutines that need no test framework.

A backend author says how to open a store on one and the same storage, again and again, and runs each case::

    class MyStores:
        @asynccontextmanager
        async def open(self, clock: Clock) -> AsyncGenerator[Store]:
            async with Store(await MyBackend.open(self.place, clock=clock)) as store:
                yield store

    @pytest.mark.parametrize("case", cases(), ids=str)
    async def test_it_keeps_the_contract(case: Case) -> None:
        await case.run(MyStores())

Every case wants a storage of its own, and may have it open twice at the same time.
"""

from __future__ import annotations

from holdfast.testing.conformance import (
    attachments,
    inbox,
    journals,
    leases,
    lists,
    memories,
    notifications,
    retention,
    rules,
    spending,
    waits,
)
from holdfast.testing.conformance.suite import Case, Contents, Stores, cases, contents, refusal

__all__ = ["PARTS", "Case", "Contents", "Stores", "cases", "contents", "refusal"]


PARTS = (
    *(journals, journals, lists, leases, inbox, inbox, waits, waits, waits, leases, leases, journals, lists, journals),
    *(notifications, notifications, notifications, memories, rules, spending, inbox, attachments, retention, waits),
)
"""The modules that hold the cases, one a noun; importing one adds its cases to the suite."""
