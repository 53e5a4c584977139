"""A process that opens a store, which makes or migrates it, and closes it again. `store` names another file."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from forking import serve

from holdfast import open_store

if TYPE_CHECKING:
    from pathlib import Path

STORE, OLD = "store.db", "store.old"
"""A store to be made, and one of an older schema."""


def _open(folder: Path, request: dict[str, str]) -> None:
    async def work() -> None:
        async with open_store(folder / request.get("store", STORE)):
            pass

    asyncio.run(work())


if __name__ == "__main__":
    serve(_open)
