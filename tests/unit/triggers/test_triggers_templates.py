"""Texts with places: filled with what an occurrence is about, and with nothing else."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.every import every

from holdfast.errors.caller import TemplateInvalid
from holdfast.errors.world import TemplateUnfilled
from holdfast.triggers.definition import MAX_ARGUMENTS, check_template, fill_template, template_values
from holdfast.triggers.schedules import check_zone

VALUES: Final[dict[str, Any]] = template_values(
    trigger="digest",
    revision=2,
    occurrence="at/x",
    at=1_774_746_000_000,
    where=check_zone("Europe/Rome"),
    payload={"order": {"id": 7, "lines": ["a", "b"]}, "who": "Ada"},
)


@every(
    ("template", "filled"),
    [
        ("For {date} at {time}", "For 2026-03-29 at 03:00"),
        ("{datetime}", "2026-03-29T03:00:00+02:00"),
        ("{payload.order.id}", 7),
        ("Order {payload.order.id} of {payload.who}", "Order 7 of Ada"),
        ("{payload.order.lines}", ["a", "b"]),
        ("Lines: {payload.order.lines}", 'Lines: ["a","b"]'),
        ("{payload.order.lines.1}", "b"),
        ("{{date}} {trigger}", "{date} digest"),
        ("{revision}", 2),
        ("no places", "no places"),
        ({"a": ["{payload.who}", 5, None]}, {"a": ["Ada", 5, None]}),
    ],
)
def test_places_are_filled(template: Any, filled: Any) -> None:
    check_template(template)
    assert fill_template(template, VALUES) == filled


@every(
    "template",
    [
        "{",
        "}",
        "{}",
        "{nobody}",
        "{date.year}",
        "{payload.__class__.x!r}",
        "{payload[0]}",
        "{date:>10}",
        "{ date }",
        {"a": ["{x}"]},
    ],
)
def test_what_is_no_place_is_refused(template: Any) -> None:
    with pytest.raises(TemplateInvalid):
        check_template(template)


@pytest.mark.parametrize(
    "template", ["{payload.nothing}", "{payload.order.lines.9}", "{payload.who.x}", "{payload.__class__}"]
)
def test_what_an_occurrence_lacks_is_a_named_error(template: str) -> None:
    check_template(template)
    with pytest.raises(TemplateUnfilled):
        fill_template(template, VALUES)


def test_what_is_put_in_is_never_looked_at_again() -> None:
    assert fill_template("{payload} !", {"payload": "{date} {{"}) == "{date} {{ !"


def test_a_text_that_becomes_too_long_is_refused() -> None:
    with pytest.raises(TemplateUnfilled):
        fill_template("x{payload}", {"payload": "y" * MAX_ARGUMENTS})


@given(st.text(max_size=60))
def test_any_text_is_either_refused_or_filled(template: str) -> None:
    try:
        check_template(template)
    except TemplateInvalid:
        return
    try:
        fill_template(template, VALUES)
    except TemplateUnfilled:
        assert "payload." in template
