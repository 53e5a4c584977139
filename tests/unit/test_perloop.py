"""One value for each event loop."""

from __future__ import annotations

import asyncio
import gc
from weakref import ref

from holdfast.eventloop import PerLoop


class _Made:
    pass


async def _here(values: PerLoop[_Made]) -> _Made:
    return values.here()


def test_a_loop_has_one_value_and_another_loop_another() -> None:
    values = PerLoop(_Made)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        one = first.run(_here(values))
        other = second.run(_here(values))
        assert one is not other
        assert first.run(_here(values)) is one
        assert second.run(_here(values)) is other


def test_a_value_is_gone_when_its_loop_is_and_another_one_is_asked_for() -> None:
    values = PerLoop(_Made)
    with asyncio.Runner() as runner:
        left = ref(runner.run(_here(values)))
    del runner
    with asyncio.Runner() as runner:
        runner.run(_here(values))
        gc.collect()
        assert left() is None
