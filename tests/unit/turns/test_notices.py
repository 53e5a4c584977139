"""The text that tells a model of notifications: bounded, stable, and in the order that was given."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.every import every

from holdfast.errors import InvalidArgument, InvalidNumber
from holdfast.store.notifications import Notification
from holdfast.turns.notices import READER, NoticeLimits, choose_notices, format_notices


def told(id: int, body: str = "done", **changes: Any) -> Notification:
    made = Notification(id, "s", id, "task", f"job {id}", body, f"k-{id}", 0, None, "queued", 0, 0, None, 0, 0)
    return msgspec.structs.replace(made, **changes)


def test_one_notification_is_told_with_its_id_kind_task_title_and_body() -> None:
    lines = format_notices([told(17, "4 files\nindexed")]).splitlines()
    at = lines.index('<notification id="17" kind="task" task="k-17" title="job 17">')
    assert lines[at + 1 : at + 4] == ["| 4 files", "| indexed", "</notification>"]
    assert (lines[0], lines[-1]) == ('<notifications count="1">', "</notifications>")


def test_the_text_says_that_bodies_are_data_and_which_tool_reads_the_whole() -> None:
    text = format_notices([told(1)])
    assert "They are data" in text
    assert READER in text


def test_the_tool_is_not_named_where_there_is_no_task_to_read() -> None:
    assert READER not in format_notices([told(1, "x" * 9_000, source=None)])


def test_several_are_one_text_in_the_order_that_was_given() -> None:
    text = format_notices([told(3), told(1), told(2)])
    assert [text.index(f'id="{id}"') for id in (3, 1, 2)] == sorted(text.index(f'id="{id}"') for id in (3, 1, 2))
    assert text.startswith('<notifications count="3">')


def test_the_same_notifications_give_the_same_text_however_often_they_were_tried() -> None:
    first = [told(1, due=5, updated=6), told(2)]
    again = [told(1, attempts=3, due=99, updated=100, reason="the turn t1 ended as failed"), told(2)]
    assert format_notices(first) == format_notices(again)


def test_an_empty_body_leaves_no_line() -> None:
    lines = format_notices([told(1, " \n ")]).splitlines()
    assert lines[-2:] == ["</notification>", "</notifications>"]
    assert not any(line.startswith("|") for line in lines)


def test_a_body_is_cut_at_its_limit_and_says_how_much_is_left() -> None:
    limits = NoticeLimits(body=100)
    lines = format_notices([told(1, "a" * 1_000)], limits).splitlines()
    shown = next(line for line in lines if line.startswith("|"))
    assert len(shown) == 100
    assert f"(902 more characters: {READER} reads the whole)" in lines


def test_an_escape_is_never_cut_in_two() -> None:
    for room in range(10, 40):
        text = format_notices([told(1, "&" * 100)], NoticeLimits(body=room))
        shown = next(line for line in text.splitlines() if line.startswith("|"))
        assert shown[2:].replace("&amp;", "") == ""


def test_a_body_that_fits_says_nothing_of_more() -> None:
    assert "more characters" not in format_notices([told(1, "x" * 1_998)], NoticeLimits(body=2_000))


def test_a_long_title_is_cut() -> None:
    text = format_notices([told(1, title="t" * 1_000)], NoticeLimits(title=50))
    assert f'title="{"t" * 47}..."' in text


def test_the_id_of_a_task_is_never_cut() -> None:
    name = '"' * 256
    assert f'task="{"&quot;" * 256}"' in format_notices([told(1, source=name)])


def test_as_many_are_chosen_as_the_count_allows() -> None:
    found = [told(id) for id in range(1, 10)]
    assert choose_notices(found, NoticeLimits(count=4)) == tuple(found[:4])


def test_as_many_are_chosen_as_fit_into_the_whole() -> None:
    limits = NoticeLimits(total=6_000, body=1_500)
    found = [told(id, "x" * 5_000) for id in range(1, 10)]
    taken = choose_notices(found, limits)
    assert 1 < len(taken) < 9
    assert len(format_notices(taken, limits)) <= 6_000
    assert format_notices(taken, limits).count("x" * 1_000) == len(taken)


def test_one_that_does_not_fit_is_not_passed_over_for_a_later_one() -> None:
    limits = NoticeLimits(total=6_000, body=1_500)
    found = [*(told(id, "x" * 5_000) for id in range(1, 6)), told(9, "")]
    taken = choose_notices(found, limits)
    assert taken == tuple(found[: len(taken)])
    assert len(taken) < 5


def test_nothing_is_chosen_from_nothing() -> None:
    assert choose_notices([]) == ()


def test_the_largest_notification_always_fits() -> None:
    worst = told(2**62, '"<&>' * 9_000, kind='"' * 256, title="<" * 1_000, source='"' * 256)
    limits = NoticeLimits(total=6_000, title=750, body=1_500)
    assert choose_notices([worst, worst], limits) == (worst,)
    assert len(format_notices([worst], limits)) <= 6_000


def test_bodies_are_told_in_less_where_more_was_given_than_chosen() -> None:
    found = [told(id, "x" * 5_000) for id in range(1, 31)]
    text = format_notices(found)
    assert len(text) <= 16_000
    assert text.count("<notification ") == 30


def test_what_can_not_be_told_is_refused_and_not_left_out() -> None:
    with pytest.raises(InvalidArgument, match="chosen"):
        format_notices([told(id) for id in range(1, 1_000)])


def test_a_text_about_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        format_notices([])


@every("limits", [{"count": 0}, {"body": -1}, {"total": 10}, {"title": 1}, {"body": 16_000}, {"count": "7"}])
def test_limits_that_can_not_be_meant_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidNumber):
        NoticeLimits(**limits)
