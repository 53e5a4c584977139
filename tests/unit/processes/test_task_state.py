"""A task as its journal tells it, and what is said about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from holdfast.processes.keys import task_id, task_key
from holdfast.processes.state import (
    INTERRUPTED_ERROR,
    MAX_NOTICE,
    TASK_TERMINAL_STATUSES,
    ProcessState,
    TaskCall,
    background_answer,
    task_end_text,
    task_end_title,
    task_start_records,
)
from holdfast.records import (
    TASK_RUN,
    Blob,
    Cancelled,
    Done,
    EffectRequest,
    Ended,
    ErrorInfo,
    Failed,
    Intended,
    Opened,
    Parked,
    Progressed,
    Resumed,
    Started,
    Unknown,
)

if TYPE_CHECKING:
    from holdfast.records import EndStatus, Record

CALL = TaskCall("pay", {"cents": 5}, "call_0_0", "t1", "t1/2.tools/1.pay", "key-1")
KEY = task_key("pay")
OPENED = Opened(at=1, format=1, kind="process", agent="a", role="task", session="s")
ADMITTED, INTENDED = task_start_records(CALL, 1, 2)
STARTED = Started(at=3, run=TASK_RUN, by="pid 1")
DONE = Done(at=5, key=KEY, value=msgspec.Raw(b'"paid"'))


def _state(*records: Record) -> ProcessState:
    state = ProcessState("task-x")
    for record in records:
        state.add(record)
    return state


def _ended(status: EndStatus = "completed", error: ErrorInfo | None = None, at: int = 6) -> Ended:
    return Ended(at=at, run=TASK_RUN, status=status, error=error)


def test_a_task_that_was_only_written_down_is_created() -> None:
    state = _state(OPENED, ADMITTED, INTENDED)
    assert (state.status, state.call, state.session, state.name) == ("created", CALL, "s", "a")


def test_a_task_that_somebody_carries_out_runs() -> None:
    state = _state(OPENED, ADMITTED, INTENDED, STARTED)
    assert (state.status, state.by, state.starts, state.started) == ("running", "pid 1", 1, 3)


def test_a_task_that_was_taken_over_keeps_the_time_of_its_first_start() -> None:
    state = _state(OPENED, ADMITTED, INTENDED, STARTED, Resumed(at=9, run=TASK_RUN, by="pid 2"))
    assert (state.status, state.by, state.starts, state.started) == ("running", "pid 2", 2, 3)


def test_a_task_that_waits_says_for_what() -> None:
    state = _state(OPENED, ADMITTED, INTENDED, STARTED, Parked(at=4, run=TASK_RUN, waits=("w",)))
    assert (state.status, state.waits) == ("waiting", ("w",))


def test_a_task_that_goes_on_waits_for_nothing() -> None:
    state = _state(
        OPENED,
        ADMITTED,
        INTENDED,
        STARTED,
        Parked(at=4, run=TASK_RUN, waits=("w",)),
        Resumed(at=5, run=TASK_RUN, by="pid 1"),
    )
    assert (state.status, state.waits) == ("running", ())


def test_the_newest_report_and_their_number_are_known() -> None:
    reports = [Progressed(at=4, run=TASK_RUN, note=f"{number}") for number in range(3)]
    state = _state(OPENED, ADMITTED, INTENDED, STARTED, *reports)
    assert (state.progress, state.reports) == (reports[-1], 3)


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        ("completed", None, "succeeded"),
        ("failed", ErrorInfo("ValueError", "boom"), "failed"),
        ("failed", ErrorInfo(INTERRUPTED_ERROR, "its process ended"), "interrupted"),
        ("cancelled", ErrorInfo("cancelled", "no longer wanted"), "cancelled"),
        ("limit", None, "failed"),
    ],
)
def test_how_a_task_ended_is_its_status(status: EndStatus, error: ErrorInfo | None, expected: str) -> None:
    state = _state(OPENED, ADMITTED, INTENDED, STARTED, _ended(status, error))
    assert (state.status, state.over, state.ended, state.error) == (expected, True, 6, error)


@pytest.mark.parametrize("later", [_ended("failed", ErrorInfo("x", "y"), at=9), _ended("cancelled", at=9)])
def test_the_first_end_counts(later: Ended) -> None:
    state = _state(OPENED, ADMITTED, INTENDED, STARTED, DONE, _ended(), later)
    assert (state.status, state.ended, state.error) == ("succeeded", 6, None)


@pytest.mark.parametrize(
    "late",
    [STARTED, Resumed(at=9, run=TASK_RUN, by="pid 2"), Parked(at=9, run=TASK_RUN, waits=("w",))],
    ids=lambda record: type(record).__name__,
)
def test_nothing_brings_a_task_back_that_has_ended(late: Record) -> None:
    assert _state(OPENED, ADMITTED, INTENDED, STARTED, DONE, _ended(), late).status == "succeeded"


def test_the_outcome_of_the_call_is_not_that_of_a_step() -> None:
    step = Done(at=4, key=f"{KEY}/one", ask=EffectRequest("step", "one", "0" * 64), value=msgspec.Raw(b"1"))
    assert _state(OPENED, ADMITTED, INTENDED, STARTED, step).outcome is None
    assert _state(OPENED, ADMITTED, INTENDED, STARTED, step, DONE).outcome == DONE


def test_an_intent_that_is_no_call_does_not_spoil_the_task() -> None:
    """The journal of a session, or one that a later release wrote."""
    other = Intended(
        at=2, key="t1/2.tools/1.pay", ask=EffectRequest("tool_call", "pay", "0" * 64, msgspec.Raw(b'{"x":1}'))
    )
    assert _state(OPENED, other).call is None


def test_the_id_of_a_task_depends_on_its_session_and_its_call() -> None:
    ids = {task_id("s", "t1/2.tools/1.pay"), task_id("s", "t1/2.tools/2.pay"), task_id("r", "t1/2.tools/1.pay")}
    assert len(ids) == 3
    assert task_id("s", "t1/2.tools/1.pay") in ids


@pytest.mark.parametrize("status", sorted(TASK_TERMINAL_STATUSES))
def test_every_end_has_a_title_of_its_own(status: Any) -> None:
    titles = {task_end_title(CALL, other) for other in TASK_TERMINAL_STATUSES}
    assert len(titles) == len(TASK_TERMINAL_STATUSES)
    assert "pay" in task_end_title(CALL, status)


@pytest.mark.parametrize(("seconds", "said"), [(0.3, "300 ms"), (1.0, "1 s"), (2.5, "2.5 s"), (90.0, "90 s")])
def test_the_answer_says_how_long_the_call_was_waited_for(seconds: float, said: str) -> None:
    assert f"longer than {said}." in background_answer("task-x", "pay", seconds)["message"]


@pytest.mark.parametrize("length", [0, MAX_NOTICE, MAX_NOTICE + 1, 1_000_000])
def test_a_body_is_bounded(length: int) -> None:
    assert len(task_end_text(DONE, "x" * length)) <= MAX_NOTICE + 50


def test_a_body_that_was_cut_says_how_long_the_whole_is() -> None:
    assert "1,000,000 characters in all" in task_end_text(DONE, "x" * 1_000_000)


def test_the_body_of_a_failure_is_bounded() -> None:
    failed = Failed(at=5, key=KEY, error=ErrorInfo("ValueError", "z" * 100_000))
    assert len(task_end_text(failed, "")) <= MAX_NOTICE


def test_of_an_unknown_outcome_nobody_says_that_it_did_not_happen() -> None:
    said = task_end_text(Unknown(at=5, key=KEY), "")
    assert "not known" in said
    assert said != task_end_text(Cancelled(at=5, key=KEY), "")


def test_a_result_by_reference_is_an_outcome() -> None:
    stored = Done(at=5, key=KEY, value=msgspec.Raw(b""), blob=Blob("0" * 64, 5_000_000))
    assert _state(OPENED, ADMITTED, INTENDED, STARTED, stored, _ended()).outcome == stored
