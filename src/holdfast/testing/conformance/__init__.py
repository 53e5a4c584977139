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
    admission,
    asking,
    attachments,
    blobs,
    carrying,
    changes,
    forgetting,
    forks,
    gate,
    handoffs,
    inbox,
    journals,
    leases,
    lists,
    memories,
    notifications,
    roles,
    rules,
    spending,
    using,
    waits,
    work,
)
from holdfast.testing.conformance.suite import Case, Contents, Stores, cases, contents, refusal

__all__ = ["PARTS", "Case", "Contents", "Stores", "cases", "contents", "refusal"]

PARTS = (
    *(journals, forks, handoffs, leases, inbox, admission, waits, asking, using, work, roles, blobs, lists, changes),
    *(notifications, carrying, forgetting, memories, rules, spending, gate, attachments),
)
"""The modules that hold the cases, one a noun; importing one adds its cases to the suite."""
