"""The names of a turn's effects: made and taken apart without loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.every import every

from holdfast.effects.keys import segment
from holdfast.turns import keys
from holdfast.turns.keys import (
    EffectKey,
    EffectName,
    call_key,
    effect_key,
    input_number,
    nested_key,
    parse_key,
    turn_id,
)

numbers = st.integers(1, 10**9)
names: st.SearchStrategy[EffectName] = st.sampled_from(("model", "tools", "checkpoint"))
tools = st.text("abcXYZ019_-", min_size=1, max_size=64)


def test_keys_are_paths_that_people_can_read() -> None:
    assert [turn_id(3), effect_key("t3", 1, "model"), call_key("t3", 2, 1, "refund")] == [
        "t3",
        "t3/1.model",
        "t3/2.tools/1.refund",
    ]


@given(numbers)
def test_a_run_is_named_after_the_input_that_began_it(number: int) -> None:
    assert input_number(turn_id(number)) == number


@every("run", ["", "t", "t0", "t01", "3", "x3", "t3x", "t-3", "t²", "t٣", "T3", "t 3", " t3", "t3/1"])
def test_what_is_not_the_id_of_a_turn_has_no_input(run: str) -> None:
    assert input_number(run) is None


@given(st.text(max_size=30))
def test_any_text_is_the_id_of_a_turn_or_none(run: str) -> None:
    number = input_number(run)
    assert number is None or turn_id(number) == run


def test_a_number_that_no_input_can_have_is_not_the_id_of_a_turn() -> None:
    assert input_number("t" + "9" * 5_000) is None


@given(numbers, numbers, names)
def test_the_key_of_an_effect_is_taken_apart_as_it_was_made(run: int, number: int, name: EffectName) -> None:
    assert parse_key(effect_key(turn_id(run), number, name)) == EffectKey(turn_id(run), number, name, 0, inner=False)


@given(numbers, numbers, numbers, tools)
def test_the_key_of_a_call_is_taken_apart_as_it_was_made(run: int, number: int, call: int, tool: str) -> None:
    key = call_key(turn_id(run), number, call, tool)
    assert parse_key(key) == EffectKey(turn_id(run), number, "tools", call, inner=False)


@given(numbers, numbers, numbers, numbers, tools)
def test_the_key_of_a_call_of_a_program_is_taken_apart_as_it_was_made(
    run: int, number: int, call: int, nested: int, tool: str
) -> None:
    key = nested_key(call_key(turn_id(run), number, call, "run_program"), nested, tool)
    assert parse_key(key) == EffectKey(turn_id(run), number, "tools", call, inner=False, nested=nested)
    assert parse_key(f"{key}/step") == EffectKey(turn_id(run), number, "tools", call, inner=True, nested=nested)


@given(numbers, numbers, numbers, tools, st.text("%call-1.~#/a"))
def test_no_step_of_a_tool_looks_like_a_call_of_a_program(
    run: int, number: int, call: int, tool: str, step: str
) -> None:
    parsed = parse_key(f"{call_key(turn_id(run), number, call, tool)}/{segment(step)}")
    assert parsed is not None
    assert parsed.nested == 0


@given(numbers, numbers, numbers, tools, st.text("ab/~.1", min_size=1))
def test_what_a_tool_does_inside_hangs_below_its_call(run: int, number: int, call: int, tool: str, step: str) -> None:
    key = f"{call_key(turn_id(run), number, call, tool)}/{step}"
    assert parse_key(key) == EffectKey(turn_id(run), number, "tools", call, inner=True)


@given(numbers, numbers, st.text())
def test_no_name_that_a_model_makes_up_leads_to_another_call(number: int, call: int, tool: str) -> None:
    found = parse_key(call_key("t1", number, call, tool))
    assert found == EffectKey("t1", number, "tools", call, inner=False)


@every("tool", ["", "a/b", "a b", "ä", "a.b", "²", "x" * 65])
def test_a_name_that_no_tool_can_have_is_left_out(tool: str) -> None:
    assert call_key("t1", 2, 1, tool) == "t1/2.tools/1.tool"


@every("key", ["", "t1", "t1/", "t1/model", "t1/x.model", "t1/.model", "main/fetch", "cancel:t1"])
def test_a_key_of_something_else_is_none(key: str) -> None:
    assert parse_key(key) is None


@pytest.mark.parametrize("key", ["t1/².model", "t1/2.tools/².x", "t1/٣.model", "t1/2.tools/٣.x", f"t1/{'9' * 5_000}.x"])
def test_digits_that_are_no_number_of_ours_are_no_error(key: str) -> None:
    found = parse_key(key)
    assert found is None or found.call == 0


@given(st.text("t12/.model~²tols", max_size=30))
def test_taking_apart_never_fails(key: str) -> None:
    found = keys.parse_key(key)
    assert found is None or found.number >= 0
