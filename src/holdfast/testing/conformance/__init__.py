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

from importlib import import_module
from typing import Final

from holdfast.testing.conformance.suite import Case, Stores, cases_in, contents, refusal

__all__ = ["PARTS", "Case", "Stores", "cases", "contents", "refusal"]


_TOPICS: Final = (
    *("journals", "lists", "leases", "inbox", "waits", "notifications", "pumps"),
    *("memories", "rules", "spending", "attachments", "retention", "folds"),
)
PARTS: Final = tuple(import_module(f"{__name__}.{topic}") for topic in _TOPICS)
"""The modules with the cases, one per topic."""


def cases() -> list[Case]:
    """Every case of the suite, in a fixed order."""
    return [case for part in PARTS for case in cases_in(part)]
