"""The order of a program's calls and results."""

from __future__ import annotations

import pytest

from holdfast.errors.caller import AnswerRefused, ProgramDiverged
from holdfast.sandbox.contract import CallError, CallResult, CallValue
from holdfast.sandbox.monty import CallSequence, call_digest, program_digest

PROGRAM = program_digest("source", {}, "")


def result(ordinal: int, value: object = None, digest: str = "") -> CallResult:
    return CallResult(f"{PROGRAM[:16]}/{ordinal}", CallValue(value), digest)


def called(course: CallSequence, *numbers: int) -> list[str]:
    return [course.call(number, "tool", "fetch", {"n": number}).id for number in numbers]


def test_calls_are_numbered_in_the_order_in_which_they_are_made() -> None:
    assert called(CallSequence(PROGRAM), 7, 3) == [f"{PROGRAM[:16]}/0", f"{PROGRAM[:16]}/1"]


@pytest.mark.parametrize("other", [("other", {}, ""), ("source", {"x": 1}, ""), ("source", {}, "seed")])
def test_another_source_variable_or_seed_is_another_program(other: tuple[str, dict[str, object], str]) -> None:
    assert program_digest(*other) != PROGRAM


def test_results_settle_in_the_order_in_which_they_were_given() -> None:
    course = CallSequence(PROGRAM)
    called(course, 0, 1, 2)
    course.give([result(2, "c"), result(0, "a")])
    assert [course.next([0, 1, 2]), course.next([0, 1]), course.next([1])] == [
        (2, CallValue("c")),
        (0, CallValue("a")),
        None,
    ]


def test_a_call_that_can_t_wait_takes_its_result_out_of_order() -> None:
    course = CallSequence(PROGRAM)
    course.give([result(0, "a"), result(1, 5.0)])
    called(course, 0)
    course.call(1, "clock", "now", {})
    assert course.at_once(1) == CallValue(5.0)
    assert course.next([0]) == (0, CallValue("a"))
    assert course.next([]) is None


def test_a_result_that_nobody_waits_for_any_more_is_passed_over() -> None:
    course = CallSequence(PROGRAM)
    called(course, 0, 1)
    course.give([result(0, "a"), result(1, "b")])
    assert course.next([1]) == (1, CallValue("b"))


def test_only_new_calls_are_asked_for() -> None:
    course = CallSequence(PROGRAM)
    first, second = called(course, 0, 1)
    asked = course.ask()
    third = called(course, 2)[0]
    course.give([result(0)])
    course.next([0, 1, 2])
    again = course.ask()
    assert [call.id for call in asked.calls] == [first, second]
    assert ([call.id for call in again.calls], again.waiting) == ([third], (second, third))


def test_a_call_with_a_recorded_result_is_not_asked_for() -> None:
    course = CallSequence(PROGRAM)
    course.give([result(0)])
    called(course, 0)
    assert course.ask().calls == ()


def test_a_recorded_result_of_another_call_is_a_divergence() -> None:
    course = CallSequence(PROGRAM)
    course.give([result(0, digest=call_digest("tool", "fetch", {"n": 8}))])
    with pytest.raises(ProgramDiverged, match="fetch with arguments of the digest"):
        called(course, 9)


def test_a_recorded_result_of_a_call_that_is_not_made_is_a_divergence() -> None:
    course = CallSequence(PROGRAM)
    course.give([result(1)])
    called(course, 0)
    with pytest.raises(ProgramDiverged, match="the call was not made"):
        course.next([0])


def test_a_program_that_ends_before_a_recorded_call_diverged() -> None:
    course = CallSequence(PROGRAM)
    course.give([result(0)])
    with pytest.raises(ProgramDiverged, match="ended before it"):
        course.finish()


def test_a_program_may_raise_without_using_a_result() -> None:
    course = CallSequence(PROGRAM)
    called(course, 0)
    course.give([result(0)])
    course.finish()


def test_a_program_that_ends_waits_for_the_calls_that_nobody_awaited() -> None:
    course = CallSequence(PROGRAM)
    called(course, 0)
    assert not course.answered()
    course.give([result(0)])
    assert course.answered()


def test_a_call_that_can_t_wait_is_asked_for_together_with_the_others() -> None:
    course = CallSequence(PROGRAM)
    (first,) = called(course, 0)
    second = course.call(1, "clock", "now", {}).id
    assert [call.id for call in course.ask().calls] == [first, second]


@pytest.mark.parametrize("ordinal", [1, 0])
def test_an_answer_that_nobody_waits_for_is_refused(ordinal: int) -> None:
    course = CallSequence(PROGRAM)
    called(course, 0)
    course.give([result(0)])
    with pytest.raises(AnswerRefused, match="no such call waits"):
        course.check_answers([result(ordinal)])


def test_an_answer_that_comes_twice_at_a_time_is_refused() -> None:
    course = CallSequence(PROGRAM)
    called(course, 0)
    with pytest.raises(AnswerRefused, match="no such call waits"):
        course.check_answers([result(0), result(0)])


def test_an_answer_to_another_call_is_refused() -> None:
    course = CallSequence(PROGRAM)
    called(course, 0)
    with pytest.raises(AnswerRefused, match="another call than that of fetch"):
        course.check_answers([result(0, digest=call_digest("tool", "fetch", {"n": 1}))])


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), {1: 2}, "\ud800"])
def test_an_answer_that_can_t_be_recorded_is_refused(value: object) -> None:
    course = CallSequence(PROGRAM)
    called(course, 0)
    with pytest.raises(AnswerRefused):
        course.check_answers([result(0, value)])


@pytest.mark.parametrize("value", ["now", None, True, 2**40, float("nan")])
def test_the_clock_is_answered_with_a_time(value: object) -> None:
    course = CallSequence(PROGRAM)
    course.call(0, "clock", "now", {})
    with pytest.raises(AnswerRefused, match="seconds since 1970"):
        course.check_answers([result(0, value)])


def test_the_clock_may_fail() -> None:
    course = CallSequence(PROGRAM)
    course.call(0, "clock", "now", {})
    course.check_answers([CallResult(f"{PROGRAM[:16]}/0", CallError("no clock"))])


def test_a_result_of_another_program_is_refused() -> None:
    with pytest.raises(AnswerRefused, match="another program"):
        CallSequence(PROGRAM).give([CallResult("x/0", CallValue())])


def test_a_recorded_result_that_comes_twice_is_refused() -> None:
    with pytest.raises(AnswerRefused, match="given twice"):
        CallSequence(PROGRAM).give([result(0), result(0)])
