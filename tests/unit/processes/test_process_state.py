"""A process as a fold of its records, the names of its waits, and what is told of one that is stuck."""

from __future__ import annotations

import pytest

from holdfast.errors import InvalidId
from holdfast.processes.keys import (
    attempt_of_run,
    attempt_run,
    check_process_id,
    signal_name,
    signal_number,
    signal_wait,
    wait_label,
)
from holdfast.processes.lists import process_line, why_stuck
from holdfast.processes.state import ProcessState, Registration
from holdfast.records import Ended, ErrorInfo, Opened, Parked, Resumed, Started

JOURNAL = "process/p"


def _state(*records: object) -> ProcessState:
    state = ProcessState(JOURNAL)
    for record in (Opened(at=1, kind="process", format=1, agent="f", role="process"), *records):
        state.add(record)  # pyright: ignore[reportArgumentType]
    return state


def test_the_id_of_a_process_is_that_of_its_journal_without_the_beginning() -> None:
    assert _state().id == "p"


def test_a_process_that_parked_waits() -> None:
    state = _state(Started(at=2, run="process", by="x"), Parked(at=3, run="process", waits=("process/sleep",)))
    assert (state.status, state.waits) == ("waiting", ("process/sleep",))


def test_a_process_that_was_resumed_runs() -> None:
    state = _state(
        Started(at=2, run="process", by="x"), Parked(at=3, run="process"), Resumed(at=4, run="process", by="y")
    )
    assert (state.status, state.by, state.starts) == ("running", "y", 2)


def test_an_attempt_that_failed_and_is_followed_by_another_is_not_the_end() -> None:
    failed = Ended(at=3, run="process", status="failed", error=ErrorInfo("OSError", "no"))
    state = _state(
        Started(at=2, run="process", by="x"), failed, Parked(at=3, run="process.2", waits=("process.2/~pause",))
    )
    assert (state.over, state.attempt, state.error) == (False, 2, None)


def test_an_error_of_the_kind_abandoned_is_an_end_of_its_own() -> None:
    state = _state(Ended(at=2, run="process", status="failed", error=ErrorInfo("abandoned", "who and why")))
    assert state.status == "abandoned"


def test_the_runs_of_attempts_can_be_told_from_others() -> None:
    assert [attempt_of_run(run) for run in (attempt_run(1), attempt_run(12), "t3", "process.x", "task")] == [
        1,
        12,
        None,
        None,
        None,
    ]


def test_waits_for_signals_sort_in_the_order_of_their_numbers() -> None:
    names = [signal_wait("process", "go", number) for number in (1, 2, 10, 200)]
    assert sorted(names) == names


@pytest.mark.parametrize("name", ["go", "a b", "50%", "~x", "a#2"])
def test_the_name_and_the_number_of_a_signal_can_be_read_from_its_wait(name: str) -> None:
    wait = signal_wait("process", name, 7)
    assert (signal_name(wait), signal_number(wait), wait_label(wait)) == (name, 7, f"signal {name}")


def test_an_id_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidId, match="160"):
        check_process_id("x" * 161)


def test_a_process_of_an_owner_that_is_gone_is_stuck() -> None:
    state = _state(Started(at=2, run="process", by="process 7 (x)"))
    state.registration = Registration("f", {}, "owner")
    stuck = why_stuck(state, driven=False)
    assert stuck is not None
    assert stuck.command == "holdfast processes abandon p --reason TEXT"


def test_a_process_that_somebody_drives_is_not_stuck() -> None:
    state = _state(Started(at=2, run="process", by="x"))
    assert why_stuck(state, driven=True, known=False) is None


def test_a_process_that_waits_for_a_time_is_not_stuck() -> None:
    state = _state(Parked(at=2, run="process", waits=("process/sleep",)))
    assert why_stuck(state, driven=False) is None


def test_an_error_that_stopped_it_is_told() -> None:
    stuck = why_stuck(_state(), driven=False, error=ErrorInfo("ReplayMismatch", "replay differs"))
    assert stuck is not None
    assert stuck.reason == "replay differs"


def test_a_line_names_what_a_process_waits_for() -> None:
    state = _state(Parked(at=2, run="process", waits=(signal_wait("process", "editor", 1),)))
    assert process_line(state).waits == ("signal editor",)
