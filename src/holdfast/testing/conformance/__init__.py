"""The store conformance suite: the contract of a backend as coroutines that need no test framework.

A backend author provides a way to open the same storage again and again, and runs each case::

    class MyStores:
        @asynccontextmanager
        async def open(self, clock: Clock) -> AsyncGenerator[Store]:
            async with Store(await MyBackend.open(self.place, clock=clock)) as store:
                yield store

    @pytest.mark.parametrize("case", cases(), ids=str)
    async def test_it_keeps_the_contract(case: Case) -> None:
        await case.run(MyStores())

Every case needs its own storage, and may open it twice at the same time.
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
from holdfast.testing.conformance.suite import Case, Stores, cases_in, contents, refusal

__all__ = ["PARTS", "Case", "Stores", "cases", "contents", "refusal"]


PARTS = (journals, lists, leases, inbox, waits, notifications, memories, rules, spending, attachments, retention)
"""The modules with the cases, one per topic."""


def cases() -> list[Case]:
    """Every case of the suite, in a fixed order."""
    return [case for part in PARTS for case in cases_in(part)]
