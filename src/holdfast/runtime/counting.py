"""Spending of a store that comes from an older schema: counted once, before anything is begun on it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from holdfast.errors import StoreBusy
from holdfast.runtime.spending import spend_of

if TYPE_CHECKING:
    from holdfast.store import Store

_log: Final = logging.getLogger("holdfast")


async def count_older(store: Store) -> None:
    """Let budgets count what was recorded before the store was brought up to date."""
    try:
        await store.count_older_spending(spend_of)
    except StoreBusy as error:  # others work on it, and begin with the same; whoever opens it next tries again
        _log.warning("what was spent before the store was brought up to date is not counted yet: %s", error)
