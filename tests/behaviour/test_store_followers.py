"""What is called when an append is durable must not keep others from their answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import holdfast as hf
from holdfast.testing.conformance.suite import leased, step

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_follower_that_raises_is_reported_and_nobody_waits_in_vain(tmp_path: Path) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def raises(_: asyncio.Future[int]) -> None:
        raise RuntimeError("not now")

    async with hf.open_store(tmp_path / "s.db") as store:
        lease = await leased(store, "a")
        first = store.append(lease, [step("x")], head=1, patient=True, then=raises)
        second = store.append(lease, [step("y")], head=2)
        assert await asyncio.wait_for(asyncio.gather(first, second), 20) == [2, 3]
    assert [str(context["exception"]) for context in reported] == ["not now"]
