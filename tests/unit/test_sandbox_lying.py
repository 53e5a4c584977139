"""A worker that says what no worker says: its program ends, and its host is never left waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tests.sandboxed import TOOLS

from holdfast.sandbox import Calls, LimitHit, ProgramLimits, Result, Returned, wire
from holdfast.sandbox.execution import Execution, planned
from holdfast.sandbox.wire import counted, framed, part, text

if TYPE_CHECKING:
    from holdfast.sandbox.worker import Worker

READY = part(10, b"")
WAITS = part(5, part(1, b"\x07"))
CLOCK = part(3, counted(1, 7) + part(26, b""))


def _call() -> bytes:
    made, _ = wire.arena(1)
    return part(2, text(1, "fetch") + part(2, b"\x00") + counted(4, 7) + part(7, made))


class _Liar:
    """Says one thing after the other, whatever it is asked."""

    closed = True
    status = None

    def __init__(self, *said: bytes) -> None:
        self.said = [framed(READY), *map(framed, said)]

    async def ask(self, _request: bytes, seconds: float) -> bytes:
        assert seconds > 0
        return self.said.pop(0)


def _begun(*said: bytes) -> tuple[Execution, Worker]:
    plan = planned("1", TOOLS, {}, ProgramLimits(), "")
    return Execution(plan), cast("Worker", _Liar(*said))


async def test_one_that_waits_for_a_call_that_it_never_made_is_at_its_end() -> None:
    execution, worker = _begun(WAITS)
    step = await execution.start(worker, (), None)
    assert isinstance(step, LimitHit)
    assert step.which == "worker"


async def test_one_that_waits_again_for_a_call_that_was_answered_is_at_its_end() -> None:
    execution, worker = _begun(_call(), WAITS, WAITS)
    asked = await execution.start(worker, (), None)
    assert isinstance(asked, Calls)
    step = await execution.answer([Result(asked.calls[0].id, Returned(1))])
    assert isinstance(step, LimitHit)


async def test_the_clock_is_not_asked_with_the_number_of_a_call_that_waits() -> None:
    execution, worker = _begun(_call(), CLOCK)
    step = await execution.start(worker, (), None)
    assert isinstance(step, LimitHit)
    assert step.which == "worker"
