"""Tools as functions of a program."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from tests.every import every
from tests.parsing import parsed
from tests.sandboxed import spec
from tests.unit.tools.test_tool_schemas import TAKEN, Cat, Dog, of

from holdfast.errors.caller import StubsInvalid
from holdfast.messages import ToolSpec
from holdfast.sandbox.stubs import (
    MAX_NODES,
    Stub,
    TypedDictWriter,
    bind_arguments,
    declarations,
    function_name,
    stub_source,
    stubs_of,
)

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}


def stub(*required: str, **properties: dict[str, Any]) -> Stub:
    (made,) = stubs_of([spec("tool", required, **properties)])
    return made


def annotation(schema: object, root: dict[str, Any] | None = None) -> str:
    return TypedDictWriter().annotation(schema, "T", root or {})


@every(
    ("schema", "written"),
    [
        ({"type": "string"}, "str"),
        ({"type": "integer"}, "int"),
        ({"type": "number"}, "float"),
        ({"type": "boolean"}, "bool"),
        ({"type": "null"}, "None"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "integer"}]}, "int | str"),
        ({"oneOf": [{"type": "integer"}, {}]}, "Any"),
        ({"type": "array", "items": {"type": "number"}}, "list[float]"),
        ({"type": "array"}, "list[Any]"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "dict[str, int]"),
        ({"type": "object", "properties": {"a-b": {}}}, "dict[str, Any]"),
        ({"enum": ["a", 'b"', None, 3]}, 'Literal["a", "b\\"", None, 3]'),
        ({"const": True}, "Literal[True]"),
        ({"enum": [1.5]}, "Any"),
        ({}, "Any"),
        (True, "Any"),
        ({"$ref": "#/$defs/no"}, "Any"),
        ({"$ref": "elsewhere"}, "Any"),
    ],
)
def test_a_schema_is_written_as_a_type(schema: object, written: str) -> None:
    assert annotation(schema) == written


def test_a_reference_is_followed() -> None:
    assert annotation({"$ref": "#/$defs/a~1b"}, {"$defs": {"a/b": {"type": "integer"}}}) == "int"


def test_a_schema_that_contains_itself_ends_in_any() -> None:
    loop = {"type": "array", "items": {"$ref": "#/$defs/loop"}}
    assert annotation(loop, {"$defs": {"loop": loop}}).endswith(
        "[Any" + "]" * annotation(loop, {"$defs": {"loop": loop}}).count("[")
    )


def test_a_schema_that_doubles_at_every_level_is_cut() -> None:
    defs = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 10} for n in range(18)}
    assert annotation({"$ref": "#/$defs/d0"}, {"$defs": defs}) == "Any"
    assert MAX_NODES <= 10_000


def test_an_object_becomes_a_typed_dict() -> None:
    (made,) = stubs_of(
        [
            spec(
                "find",
                ("where",),
                where={"type": "object", "properties": {"id": NUMBER, "tag": TEXT}, "required": ["id"]},
            )
        ]
    )
    assert declarations([made]).startswith("class FindWhere(TypedDict):\n    id: int\n    tag: NotRequired[str]\n")


def test_two_objects_of_one_title_get_two_names() -> None:
    shapes = TypedDictWriter()
    first = shapes.annotation({"type": "object", "properties": {"a": NUMBER}}, "T", {})
    second = shapes.annotation({"type": "object", "properties": {"b": NUMBER}}, "T", {})
    assert (first, second) == ("T", "T2")


def test_what_must_be_given_comes_first() -> None:
    assert "async def tool(b: int, a: int = ...) -> Any: ..." in declarations([stub("b", a=NUMBER, b=NUMBER)])


@every("text", ['say """', "a\\", "new\nline", 'end"', "\x00\x1b[0m", "\u2028"])
def test_a_description_never_leaves_its_place(text: str) -> None:
    (made,) = stubs_of([ToolSpec("tool", f"Does {text}", {})])
    tree = parsed(declarations([made]))
    assert [type(node) for node in tree.body] == [ast.AsyncFunctionDef]


def test_the_whole_source_is_python() -> None:
    assert parsed(stub_source([stub("a", a=NUMBER)], ["rows"])).body


@every(
    ("tool", "name"),
    [
        ("find", "find"),
        ("find-it", "find_it"),
        ("a.b", "a_b"),
        ("3d", "tool_3d"),
        ("print", "print_tool"),
        ("if", "if_tool"),
    ],
)
def test_a_tool_has_a_name_that_python_takes(tool: str, name: str) -> None:
    assert function_name(tool) == name


def test_two_tools_that_programs_can_t_tell_apart_are_refused() -> None:
    with pytest.raises(StubsInvalid, match=r"'a\.b' can't be a function"):
        stubs_of([spec("a-b"), spec("a.b")])


def test_a_name_of_which_nothing_is_left_is_refused() -> None:
    with pytest.raises(StubsInvalid):
        function_name("--")


def test_arguments_are_bound_by_place_and_by_name() -> None:
    assert bind_arguments(stub("b", a=NUMBER, b=NUMBER), (1,), {"a": 2}) == {"b": 1, "a": 2}


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "tool() missing required arguments: 'a'"),
        ((1, 2, 3), {}, "tool() takes 2 positional arguments but 3 were given"),
        ((1,), {"a": 2}, "tool() got multiple values for argument 'a'"),
        ((1,), {"c": 2}, "tool() got an unexpected keyword argument 'c'"),
    ],
)
def test_a_call_that_does_not_fit_is_told_in_the_words_of_python(
    args: tuple[Any, ...], kwargs: dict[str, Any], said: str
) -> None:
    assert bind_arguments(stub("a", a=NUMBER, b=NUMBER), args, kwargs) == said


def test_parameters_that_python_can_t_name_are_given_in_one_dict() -> None:
    odd = stub("x-y", **{"x-y": NUMBER})
    assert "arguments: dict[str, Any]" in declarations([odd])
    assert bind_arguments(odd, ({"x-y": 1},), {}) == {"x-y": 1}


def test_something_else_in_place_of_that_dict_is_refused() -> None:
    assert bind_arguments(stub("x-y", **{"x-y": NUMBER}), (1,), {}) == "tool() takes one dict"


@every("hint", [row[1] for row in TAKEN], ids=[row[0] for row in TAKEN])
def test_every_signature_of_a_tool_is_a_function_that_python_can_read(hint: Any) -> None:
    ast.parse(stub_source(stubs_of([of(hint).spec])))


def test_a_choice_of_models_is_a_union_of_typed_dicts() -> None:
    source = declarations(stubs_of([of(Cat | Dog).spec]))
    assert "class TakeWhat(TypedDict):" in source
    assert "what: TakeWhat | TakeWhat1" in source
