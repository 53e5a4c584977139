"""The state of a trigger: every occurrence is reserved once, whatever the clock does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.every import every
from tests.examples import examples

from holdfast.errors import HoldfastError, InvalidNumber
from holdfast.errors.caller import TemplateInvalid, TriggerInvalid
from holdfast.names import is_trigger_id
from holdfast.triggers import state as accounts
from holdfast.triggers.definition import (
    DefineCommand,
    OccurCommand,
    SwitchCommand,
    TargetName,
    TriggerDefinition,
    TriggerOptions,
    check_options,
    check_trigger,
    cron,
    decode_command,
    event,
    interval,
    make_definition,
    watch,
    webhook,
)
from holdfast.triggers.schedules import to_wall
from holdfast.triggers.state import Reservation, TriggerState, choose_starts, reserve_due, start_key, take_command

HOUR: Final = 3_600_000
START: Final = to_wall(datetime(2026, 3, 1, tzinfo=UTC))
AGENT: Final = TargetName("agent", "writer")


def _define(source: Any, options: TriggerOptions | None = None, prompt: str = "Go.") -> TriggerDefinition:
    return make_definition("digest", source, AGENT, {"prompt": prompt}, options)


def _begun(definition: TriggerDefinition, at: int = START) -> TriggerState:
    return take_command(TriggerState(), 1, "define/1", at, DefineCommand(definition)).state


def _times(found: tuple[Reservation, ...]) -> list[int]:
    return [(one.at - START) // HOUR for one in found]


def _hourly(**options: Any) -> TriggerDefinition:
    return _define(cron("0 * * * *", **options))


# ---- moments ---------------------------------------------------------------------------------------------------------


def test_nothing_is_due_before_the_first_moment_and_the_next_one_is_known() -> None:
    step = reserve_due(_begun(_hourly()), _hourly(), START + 1)
    assert step.reserved == ()
    assert step.state.next == START + HOUR


def test_a_moment_that_has_come_is_reserved_with_the_next_one_in_the_same_books() -> None:
    step = reserve_due(_begun(_hourly()), _hourly(), START + HOUR)
    assert _times(step.reserved) == [1]
    assert step.state.next == START + 2 * HOUR


def test_a_moment_is_reserved_once_however_often_time_is_looked_at() -> None:
    state = reserve_due(_begun(_hourly()), _hourly(), START + HOUR).state
    assert reserve_due(state, _hourly(), START + HOUR).reserved == ()


def test_a_clock_that_is_set_back_reserves_nothing_again() -> None:
    state = reserve_due(_begun(_hourly()), _hourly(), START + HOUR).state
    state = reserve_due(state, _hourly(), START - 5 * HOUR).state
    assert reserve_due(state, _hourly(), START + HOUR).reserved == ()


@pytest.mark.parametrize(("misfire", "kept"), [("skip", []), ("once", [5]), ("all", [1, 2, 3, 4, 5])])
def test_the_misfire_policy_decides_about_what_was_missed(misfire: Any, kept: list[int]) -> None:
    definition = _hourly(misfire=misfire)
    step = reserve_due(_begun(definition), definition, START + 5 * HOUR + HOUR // 2)
    assert _times(step.reserved) == kept
    assert step.state.skipped == 5 - len(kept)


def test_what_is_on_time_runs_under_every_policy() -> None:
    definition = _hourly(misfire="skip")
    step = reserve_due(_begun(definition), definition, START + 5 * HOUR + 30_000)
    assert _times(step.reserved) == [5]


def test_making_up_for_all_is_bounded_and_says_what_was_left_out() -> None:
    definition = _hourly(misfire="all", catch_up=3)
    step = reserve_due(_begun(definition), definition, START + 10 * HOUR)
    assert _times(step.reserved) == [8, 9, 10]
    assert "7 missed since 2026-03-01T01:00:00Z" in step.state.recent[-1].why


def test_a_full_queue_takes_no_moment_and_loses_none() -> None:
    definition = _hourly(misfire="all")
    state = _begun(definition)
    full = msgspec.structs.replace(
        state, queue=tuple(Reservation(f"fire/{n}", 0, 1, 1) for n in range(accounts.MAX_QUEUE))
    )
    assert reserve_due(full, definition, START + 2 * HOUR).state.cursor == state.cursor


@settings(max_examples=examples(60))
@given(st.lists(st.integers(-30 * HOUR, 50 * HOUR), max_size=30), st.sampled_from(["skip", "once", "all"]))
def test_no_walk_of_the_clock_reserves_a_moment_twice_or_out_of_order(jumps: list[int], misfire: Any) -> None:
    definition = _hourly(misfire=misfire, catch_up=150)
    state, now = _begun(definition), START
    seen: list[int] = []
    for jump in jumps:
        now = max(now + jump, 0)
        step = reserve_due(state, definition, now)
        seen += [one.at for one in step.reserved]
        state = msgspec.structs.replace(step.state, queue=())
    assert seen == sorted(set(seen))


@settings(max_examples=examples(40))
@given(st.lists(st.integers(1, 20 * HOUR), max_size=20))
def test_with_all_no_moment_is_missed_while_the_clock_goes_forward(steps: list[int]) -> None:
    definition = _hourly(misfire="all", catch_up=150)
    state, now = _begun(definition), START
    seen: list[int] = []
    for step_ms in steps:
        now += step_ms
        step = reserve_due(state, definition, now)
        seen += [one.at for one in step.reserved]
        state = msgspec.structs.replace(step.state, queue=())
    assert seen == list(range(START + HOUR, now + 1, HOUR))


# ---- revisions and switches ------------------------------------------------------------------------------------------


def test_the_same_definition_again_is_no_revision() -> None:
    state = _begun(_hourly())
    again = take_command(state, 2, "define/2", START + HOUR, DefineCommand(_hourly())).state
    assert again == msgspec.structs.replace(state, taken=2)


def test_another_prompt_is_a_revision_that_goes_on_where_the_schedule_was() -> None:
    changed = _define(cron("0 * * * *"), prompt="Something else.")
    state = take_command(_begun(_hourly()), 2, "define/2", START + 3 * HOUR, DefineCommand(changed)).state
    assert (state.revision, state.definition, state.cursor) == (2, 2, START)


def test_another_schedule_begins_when_it_is_declared() -> None:
    changed = _define(cron("30 * * * *"))
    state = take_command(_begun(_hourly()), 2, "define/2", START + 3 * HOUR, DefineCommand(changed)).state
    assert (state.cursor, state.since) == (START + 3 * HOUR, START + 3 * HOUR)


def test_what_was_reserved_keeps_the_definition_that_it_was_reserved_under() -> None:
    state = take_command(_begun(_define(event("paid"))), 2, "event/1", START, OccurCommand({"id": 7})).state
    state = take_command(state, 3, "define/2", START, DefineCommand(_define(event("paid"), prompt="New."))).state
    state = take_command(state, 4, "event/2", START, OccurCommand({"id": 8})).state
    assert [(one.definition, one.revision) for one in state.queue] == [(1, 1), (3, 2)]


def test_disabling_keeps_what_is_reserved_and_skips_what_comes() -> None:
    state = take_command(_begun(_define(event("paid"))), 2, "event/1", START, OccurCommand()).state
    state = take_command(state, 3, "off", START, SwitchCommand(enabled=False)).state
    step = take_command(state, 4, "event/2", START, OccurCommand())
    assert [one.id for one in step.state.queue] == ["event/1"]
    assert "disabled" in step.state.recent[-1].why


def test_moments_that_passed_while_it_was_off_are_not_made_up_for() -> None:
    definition = _hourly(misfire="all")
    state = take_command(_begun(definition), 2, "off", START, SwitchCommand(enabled=False)).state
    state = reserve_due(state, definition, START + 5 * HOUR).state
    state = take_command(state, 3, "on", START + 6 * HOUR, SwitchCommand(enabled=True)).state
    step = reserve_due(state, definition, START + 6 * HOUR + 1)
    assert step.reserved == ()
    assert step.state.next == START + 7 * HOUR


def test_a_disabled_trigger_has_no_next_moment() -> None:
    state = take_command(_begun(_hourly()), 2, "off", START, SwitchCommand(enabled=False)).state
    assert reserve_due(state, _hourly(), START).state.next is None


# ---- starting --------------------------------------------------------------------------------------------------------


def _queued(options: TriggerOptions, count: int) -> tuple[TriggerState, dict[int, TriggerDefinition]]:
    definition = _define(event("paid"), options)
    state = _begun(definition)
    for number in range(2, count + 2):
        state = take_command(state, number, f"event/{number}", START, OccurCommand()).state
    return state, {1: definition}


def test_everything_starts_in_the_order_in_which_it_came() -> None:
    state, known = _queued(TriggerOptions(), 3)
    assert [one.id for one in choose_starts(state, known, START).start] == ["event/2", "event/3", "event/4"]


def test_only_so_many_are_under_way_at_once_and_the_others_wait() -> None:
    state, known = _queued(TriggerOptions(concurrency=2), 3)
    choice = choose_starts(state, known, START)
    assert len(choice.start) == 2
    assert choice.blocked


def test_what_has_ended_makes_room() -> None:
    state, known = _queued(TriggerOptions(concurrency=1), 2)
    state = accounts.after_start(state, state.queue[0], "s/t1", known[1].terms, START)
    assert choose_starts(state, known, START).start == ()
    assert len(choose_starts(accounts.after_ends(state, ["s/t1"]), known, START).start) == 1


def test_a_rate_lets_the_next_one_start_when_the_window_has_passed() -> None:
    state, known = _queued(TriggerOptions(per_window=1, window=timedelta(hours=1)), 2)
    state = accounts.after_start(state, state.queue[0], "s/t1", known[1].terms, START)
    choice = choose_starts(state, known, START + 1)
    assert (choice.start, choice.again, choice.blocked) == ((), START + HOUR, False)
    assert len(choose_starts(state, known, START + HOUR).start) == 1


def test_what_is_too_much_is_skipped_where_that_is_wanted_and_says_why() -> None:
    state, known = _queued(TriggerOptions(concurrency=1, overflow="skip"), 3)
    choice = choose_starts(state, known, START)
    assert [(one.id, why) for one, why in choice.skip] == [
        ("event/3", "too many are under way"),
        ("event/4", "too many are under way"),
    ]


def test_a_start_that_was_refused_waits_longer_each_time_and_is_given_up_in_the_end() -> None:
    state, _ = _queued(TriggerOptions(), 1)
    given_up, tries = False, 0
    while not given_up:
        state, given_up = accounts.after_refusal(state, state.queue[0], "full", START)
        tries += 1
    assert tries == accounts.MAX_TRIES
    assert (state.queue, state.failed) == ((), 1)


def test_the_key_of_a_start_names_trigger_revision_and_occurrence() -> None:
    assert start_key("digest", Reservation("at/x", 0, 1, 3)) == "trigger/digest/3/at/x"


def test_the_key_of_a_start_is_never_too_long_and_still_its_own() -> None:
    keys = {start_key("n" * 100, Reservation(f"hook/{'a' * 100}{n}", 0, 1, 1)) for n in range(2)}
    assert len(keys) == 2
    assert max(map(len, keys)) <= 150


def test_full_books_read_back_and_are_not_large() -> None:
    state, _ = _queued(TriggerOptions(), accounts.MAX_QUEUE)
    body = msgspec.json.encode(state)
    assert accounts.decode_state(body) == state
    assert len(body) < 64 * 1024


# ---- what people write -----------------------------------------------------------------------------------------------


@every("name", ["", "a/b", "..", "-x", "a b", "x" * 101, 5, None])
def test_a_name_that_can_not_be_meant_is_refused(name: object) -> None:
    with pytest.raises(TriggerInvalid):
        check_trigger(name)


def test_the_session_of_an_occurrence_is_not_taken_for_a_trigger() -> None:
    assert is_trigger_id("trigger/digest")
    assert not is_trigger_id("trigger/digest/1/at/2026-03-01T01:00:00Z")


def test_a_place_that_nothing_can_be_put_into_is_refused_when_it_is_declared() -> None:
    with pytest.raises(TemplateInvalid, match="dat"):
        _define(cron("0 * * * *"), prompt="For {dat}")


def test_the_path_of_a_file_is_only_there_where_files_are_watched() -> None:
    _define(watch("inbox/*.pdf"), prompt="Read {path}")
    with pytest.raises(TemplateInvalid):
        _define(event("paid"), prompt="Read {path}")


@every(
    "make",
    [
        lambda: interval(timedelta(milliseconds=5)),
        lambda: interval("5"),  # type: ignore[arg-type]
        lambda: interval(every=True),
        lambda: interval(float("nan")),
        lambda: interval(1e300),
        lambda: interval(timedelta(hours=1), anchor=datetime(2026, 1, 1)),  # noqa: DTZ001
        lambda: cron("0 * * * *", misfire="never"),  # type: ignore[arg-type]
        lambda: cron("0 * * * *", catch_up=0),
        lambda: cron("0 * * * *", tz="Nowhere/Land"),
        lambda: watch("../*.pdf"),
        lambda: watch("inbox/"),
        lambda: watch("**/a/**/b"),
        lambda: watch("inbox/**"),
        lambda: webhook("gitlab"),  # type: ignore[arg-type]
        lambda: webhook("github", secret="hunter2"),  # noqa: S106
        lambda: webhook("github", signature_header="x"),
        lambda: event(""),
        lambda: make_definition("x", "hourly", AGENT, {}),
        lambda: _define(event("e"), TriggerOptions(concurrency=0)),
        lambda: _define(event("e"), TriggerOptions(overflow="lose")),  # type: ignore[arg-type]
        lambda: _define(event("e"), prompt="x" * 200_000),
        lambda: make_definition("x", event("e"), AGENT, {"prompt": object()}),
    ],
)
def test_every_bad_declaration_is_a_named_error(make: Any) -> None:
    with pytest.raises(HoldfastError):
        make()


def test_a_span_of_time_may_be_given_in_seconds() -> None:
    assert interval(90) == interval(timedelta(seconds=90))
    assert watch("a/*.pdf", settle=0, poll=1.001) == watch(
        "a/*.pdf", settle=timedelta(0), poll=timedelta(seconds=1.001)
    )
    assert cron("0 * * * *", grace=30) == cron("0 * * * *", grace=timedelta(seconds=30))
    assert webhook("github", tolerance=60) == webhook("github", tolerance=timedelta(minutes=1))
    assert check_options(TriggerOptions(window=2.5)).window_ms == 2_500


def test_the_error_about_a_secret_that_was_written_down_does_not_show_it() -> None:
    with pytest.raises(TriggerInvalid) as caught:
        webhook("github", secret="hunter2hunter2")  # noqa: S106
    assert "hunter2" not in str(caught.value)


def test_what_is_said_to_a_trigger_reads_back() -> None:
    for command in (DefineCommand(_hourly()), SwitchCommand(enabled=False, by="ops"), OccurCommand({"a": [1]})):
        assert decode_command(msgspec.json.encode(command)) == command


def test_a_window_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidNumber):
        _define(event("e"), TriggerOptions(window=timedelta()))
