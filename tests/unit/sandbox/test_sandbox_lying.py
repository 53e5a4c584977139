"""A worker that says what no worker says: its program ends, and its host is never left waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tests.sandboxed import TOOLS

from holdfast.sandbox import CallResult, CallValue, LimitHit, PendingCalls, ProgramLimits, protocol
from holdfast.sandbox.monty import ProgramExecution, make_plan
from holdfast.sandbox.protocol import bytes_field, frame_message, number_field, text_field

if TYPE_CHECKING:
    from holdfast.sandbox.worker import Worker

READY = bytes_field(10, b"")
WAITS = bytes_field(5, bytes_field(1, b"\x07"))
CLOCK = bytes_field(3, number_field(1, 7) + bytes_field(26, b""))


def _call() -> bytes:
    made, _ = protocol.encode_values(1)
    return bytes_field(2, text_field(1, "fetch") + bytes_field(2, b"\x00") + number_field(4, 7) + bytes_field(7, made))


class _Liar:
    """Says one thing after the other, whatever it is asked."""

    closed = True
    status = None

    def __init__(self, *said: bytes) -> None:
        self.said = [frame_message(READY), *map(frame_message, said)]

    async def ask(self, _request: bytes, seconds: float) -> bytes:
        assert seconds > 0
        return self.said.pop(0)


def _begun(*said: bytes) -> tuple[ProgramExecution, Worker]:
    plan = make_plan("1", TOOLS, {}, ProgramLimits(), "")
    return ProgramExecution(plan), cast("Worker", _Liar(*said))


async def test_one_that_waits_for_a_call_that_it_never_made_is_at_its_end() -> None:
    execution, worker = _begun(WAITS)
    step = await execution.start(worker, ())
    assert isinstance(step, LimitHit)
    assert step.which == "worker"


async def test_one_that_waits_again_for_a_call_that_was_answered_is_at_its_end() -> None:
    execution, worker = _begun(_call(), WAITS, WAITS)
    asked = await execution.start(worker, ())
    assert isinstance(asked, PendingCalls)
    step = await execution.answer([CallResult(asked.calls[0].id, CallValue(1))])
    assert isinstance(step, LimitHit)


async def test_the_clock_is_not_asked_with_the_number_of_a_call_that_waits() -> None:
    execution, worker = _begun(_call(), CLOCK)
    step = await execution.start(worker, ())
    assert isinstance(step, LimitHit)
    assert step.which == "worker"
