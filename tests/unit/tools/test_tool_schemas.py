"""Schemas that every model dialect takes, and arguments that fit them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NotRequired, Required, TypeAlias, cast
from uuid import UUID

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from tests.every import every
from typing_extensions import TypeAliasType, TypedDict

import holdfast as hf
from holdfast.errors import ToolInvalid
from holdfast.messages import ModelRequest, Text, UserMessage
from holdfast.models.schemas import with_bare_choices
from holdfast.tools import AnyTool, Bound, Complaint, tool
from holdfast.tools.definition import subject_of
from holdfast.tools.schema import MAX_EXPANDED, MAX_NODES

if TYPE_CHECKING:
    from collections.abc import Iterator


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["kind", "name", "left", "op", "of", "x"]), inner),
    max_leaves=20,
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 3


class Address(BaseModel):
    street: str
    zip: Annotated[str, Field(pattern=r"^\d{5}$")]
    country: str | None


class Customer(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str
    home: Address
    others: list[Address] = []
    note: str | None = None


@dataclass
class Span:
    begin: date
    end: date | None = None


class Node(BaseModel):
    value: int
    children: list[Node] = []


class Left(BaseModel):
    child: Right | None = None


class Right(BaseModel):
    back: Left


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Bird(BaseModel):
    kind: Literal["bird"]
    song: str | None
    eggs: list[int]


class Song(BaseModel):
    kind: Literal["song"]
    notes: str


class Tune(BaseModel):
    kind: Literal["tune"]
    notes: list[int]


class Mixed(Enum):
    NAME = "a"
    NUMBER = 1


class Point(NamedTuple):
    x: int
    label: str = "here"


class Trip(NamedTuple):
    start: Address
    end: Address | None


class Book(TypedDict, total=False):
    title: Required[str]
    year: int | None


class Paper(TypedDict):
    title: str
    pages: NotRequired[int]


class Fork(BaseModel):
    name: str
    note: str | None
    left: Fork | None
    right: Fork | None
    rest: list[Fork] = []


class Add(BaseModel):
    op: Literal["add"]
    terms: list[Expression]


class Negate(BaseModel):
    op: Literal["negate"]
    of: Expression


Expression: TypeAlias = Annotated[Add | Negate, Field(discriminator="op")] | float
Add.model_rebuild()
Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | None")


@dataclass
class Branch:
    name: str
    twigs: list[Branch] | None = None


def of(hint: Any, default: Any = ...) -> AnyTool:
    """A tool with one parameter of this type."""

    def take(what: Any) -> None: ...

    take.__annotations__["what"] = hint
    if default is not ...:
        take.__defaults__ = (default,)
    return tool(take)


def seen(hint: Any, default: Any = ...) -> dict[str, Any]:
    """What a model sees of a parameter of this type."""
    return cast("dict[str, Any]", of(hint, default).parameters["properties"]["what"])


# Each with arguments that a model may send by the schema.
TAKEN: list[tuple[str, Any, list[Any]]] = [
    ("text", str, ["x"]),
    ("number", float, [1, 1.5]),
    ("flag", bool, [True]),
    ("optional", str | None, ["x"]),
    ("choice", Literal["a", "b"], ["a"]),
    ("one choice", Literal["a"], ["a"]),
    ("whole choices", Literal[1, 2], [2]),
    ("choice with nothing", Literal["", "a"], ["", "a"]),
    ("enum", Colour, ["red"]),
    ("whole enum", Level, [3]),
    ("always", Literal[True], [True]),
    ("list", list[str], [[], ["x"]]),
    ("list of optional", list[int | None], [[1]]),
    ("set", set[int], [[1, 2]]),
    ("pair", tuple[int, int], [[1, 2]]),
    ("any number of", tuple[int, ...], [[1, 2, 3]]),
    ("map", dict[str, int], [{"a": 1}]),
    ("map by pattern", dict[Annotated[str, Field(pattern="^x")], int], [{"xa": 1}]),
    ("anything named", dict[str, Any], [{"a": [1, None]}]),
    ("bare dict", dict, [{"a": 1}]),
    ("map of models", dict[str, Address], [{"home": {"street": "s", "zip": "12345"}}]),
    ("model", Customer, [{"name": "n", "home": {"street": "s", "zip": "12345"}}]),
    ("optional model", Customer | None, [{"name": "n", "home": {"street": "s", "zip": "12345", "country": "x"}}]),
    ("list of models", list[Address], [[{"street": "s", "zip": "12345"}]]),
    ("dataclass", Span, [{"begin": "2026-01-02"}, {"begin": "2026-01-02", "end": "2026-01-03"}]),
    ("moments", list[datetime], [["2026-01-02T03:04:05Z"]]),
    ("time", time, ["03:04:05"]),
    ("duration", timedelta, ["PT1H"]),
    ("uuid", UUID, ["6f9619ff-8b86-d011-b42d-00c04fc964ff"]),
    ("decimal", Decimal, [1.5, 2]),
    ("bytes", bytes, ["x"]),
    ("above", Annotated[int, Field(gt=0, lt=10)], [1, 9]),
    ("real above", Annotated[float, Field(gt=0)], [0.1]),
    ("step", Annotated[int, Field(multiple_of=5)], [10]),
    ("short", Annotated[str, Field(min_length=1, max_length=3)], ["abc"]),
    ("few", Annotated[list[int], Field(min_length=1, max_length=2)], [[1]]),
    ("number of any kind", int | float, [1, 1.5]),
    ("choices of two", Literal["a"] | Colour, ["a", "red"]),
    ("text or choice", Literal["a"] | str, ["a", "other"]),  # noqa: PYI051  that is the point
    ("day or moment", date | datetime, ["2026-01-02", "2026-01-02T03:04:05Z"]),
    ("one or many", str | list[str], [["a"]]),
    ("anything", Any, [None, 1, "x", [{}]]),
    ("list of anything", list[Any], [[1, "x", None]]),
    ("text or number", str | int, ["1", 1]),
    ("text, number or nothing", str | int | None, ["x", 1]),
    ("bounded number of any kind", int | Annotated[float, Field(gt=0)], [1, 0.5]),
    ("text, many or a map", str | list[str] | dict[str, int], ["x", ["x"], {"x": 1}]),
    ("lists of two kinds", list[int] | list[str], [[1], ["x"]]),
    ("one of two models", Cat | Dog, [{"kind": "cat", "lives": 9}, {"kind": "dog", "tricks": []}]),
    (
        "discriminated models",
        Annotated[Cat | Dog | Bird, Field(discriminator="kind")],
        [{"kind": "dog", "tricks": []}, {"kind": "bird", "song": None, "eggs": [1]}],
    ),
    ("list of models of two kinds", list[Cat | Bird], [[{"kind": "bird", "song": "tü", "eggs": []}]]),
    ("mixed choices", Literal["a", 1, True, None], ["a", 1, True]),  # noqa: PYI061  written like this
    ("mixed enum", Mixed, ["a", 1]),
    ("places of two kinds", tuple[int, str], [[1, "x"]]),
    ("places with nothing", tuple[int | None, str], [[None, "x"], [1, "x"]]),
    ("named places", Point, [[1], [1, "there"]]),
    ("named models", Trip, [[{"street": "s", "zip": "12345", "country": None}, None]]),
    ("typed dict", Book, [{"title": "Emma"}, {"title": "Emma", "year": 1815}]),
    ("other typed dict", Paper, [{"title": "x"}, {"title": "x", "pages": 3}]),
    ("tree", Node, [{"value": 1, "children": [{"value": 2, "children": [{"value": 3, "children": [{"value": 4}]}]}]}]),
    ("tree with nulls", Fork, [{"name": "a", "left": {"name": "b", "left": {"name": "c", "left": {"name": "d"}}}}]),
    ("each in the other", Left, [{"child": {"back": {"child": {"back": {"child": {"back": {}}}}}}}]),
    ("tree of dataclasses", Branch, [{"name": "a", "twigs": [{"name": "b", "twigs": [{"name": "c"}]}]}]),
    ("expression", Expression, [1.5, {"op": "add", "terms": [1, {"op": "negate", "of": {"op": "add", "terms": []}}]}]),
    ("any json", Json, ["x", 1, [[[["x"]]]], {"a": {"b": {"c": [None]}}}]),
    ("described", Annotated[str, "the words"], ["x"]),
]
TABLE = every(("hint", "values"), [row[1:] for row in TAKEN], ids=[row[0] for row in TAKEN])


# ---- the dialects ----------------------------------------------------------------------------------------------------

# A model of each, and where in a request the tools and their schemas are.
DIALECTS = {
    "anthropic": ("anthropic:claude-sonnet-4-6", ("tools",), ("input_schema",)),
    "chat": ("groq:llama-3.3-70b", ("tools",), ("function", "parameters")),
    "responses": ("openai:gpt-5.1", ("tools",), ("parameters",)),
    "google": ("google:gemini-3-pro", ("tools", 0, "functionDeclarations"), ("parametersJsonSchema",)),
}
# What each of them is known to take anywhere in the schema of a tool, by its documentation and by what it refuses.
WORDS = frozenset(
    (
        *("type", "description", "properties", "required", "items", "enum", "additionalProperties", "anyOf"),
        *("minimum", "maximum", "minItems", "maxItems", "format"),
    )
)
TEXT = {"type": "string"}
TYPES = {"string", "integer", "number", "boolean", "array", "object"}
NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def on_the_wire(dialect: str, *tools: AnyTool) -> list[dict[str, Any]]:
    """The schemas as the encoder of a dialect sends them."""
    name, place, schema = DIALECTS[dialect]
    model = cast("hf.HttpModel", hf.model(name, api_key="k"))
    assert model.endpoint.dialect == dialect
    request = ModelRequest(messages=(UserMessage("t1.i1", (Text("hello"),)),), tools=tuple(made.spec for made in tools))
    wire = model.dialect.encode_request(model.endpoint, model.model, request)
    return [_at(made, schema) for made in _at(msgspec.json.decode(wire.body), place)]


def _at(value: Any, place: tuple[str | int, ...]) -> Any:
    for step in place:
        value = value[step]
    return value


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    assert isinstance(schema, dict)
    found = cast("dict[str, Any]", schema)
    yield found
    inner = [*found.get("properties", {}).values(), *(found[key] for key in ("items",) if key in found)]
    inner += [member for member in found.get("anyOf", ()) if member != {"type": "null"}]
    if isinstance(found.get("additionalProperties"), dict):
        inner.append(found["additionalProperties"])
    for one in inner:
        yield from nodes(one)


@every("dialect", DIALECTS)
@TABLE
def test_a_dialect_sends_only_words_that_its_provider_takes(dialect: str, hint: Any, values: list[Any]) -> None:
    for schema in on_the_wire(dialect, of(hint)):
        for node in nodes(schema):
            assert node.keys() <= WORDS
            assert node.get("type") in TYPES or "anyOf" in node or node.keys() == {"description"}


@every("dialect", DIALECTS)
@TABLE
def test_a_dialect_sends_choices_of_types_below_the_arguments_and_of_two_types_at_least(
    dialect: str, hint: Any, values: list[Any]
) -> None:
    for schema in on_the_wire(dialect, of(hint)):
        assert "anyOf" not in schema
        for node in nodes(schema):
            if "anyOf" in node:
                assert len(node["anyOf"]) > 1
                assert node.keys() <= ({"anyOf"} if dialect == "google" else {"anyOf", "description"})


@pytest.mark.parametrize("name", ["google-chat:gemini-3-pro", "openrouter:google/gemini-3-pro"])
def test_a_model_of_google_gets_no_words_beside_a_choice_through_other_apis_either(name: str) -> None:
    model = cast("hf.HttpModel", hf.model(name, api_key="k"))
    request = ModelRequest(messages=(UserMessage("t1.i1", (Text("x"),)),), tools=(of(str | int, 1).spec,))
    wire = model.dialect.encode_request(model.endpoint, model.model, request)
    schema = msgspec.json.decode(wire.body)["tools"][0]["function"]["parameters"]["properties"]["what"]
    assert schema == {"anyOf": [{"type": "string", "description": "Default: 1."}, {"type": "integer"}]}


@every("dialect", DIALECTS)
@TABLE
def test_a_dialect_sends_closed_objects_with_names_that_its_provider_takes(
    dialect: str, hint: Any, values: list[Any]
) -> None:
    for schema in on_the_wire(dialect, of(hint)):
        for node in nodes(schema):
            if "properties" in node:
                assert node["additionalProperties"] is False
                assert set(node.get("required", ())) <= node["properties"].keys()
                assert all(NAME.fullmatch(name) for name in node["properties"])


@every("dialect", DIALECTS)
@TABLE
def test_a_dialect_sends_choices_and_formats_that_its_provider_takes(
    dialect: str, hint: Any, values: list[Any]
) -> None:
    for schema in on_the_wire(dialect, of(hint)):
        for node in nodes(schema):
            assert node.get("format") in {None, "date", "date-time", "time"}
            if "enum" in node:
                assert node["type"] == "string"
                assert all(isinstance(choice, str) and choice for choice in node["enum"])


def test_a_choice_beside_other_keywords_is_sent_as_it_is() -> None:
    schema = {"type": "object", "properties": {"a": TEXT}, "anyOf": [{"required": ["a"]}], "description": "One."}
    assert with_bare_choices(schema) == schema


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_takes_all_tools_of_the_table_at_once(dialect: str) -> None:
    tools = [tool(f"tool_{n}")(of(row[1]).function) for n, row in enumerate(TAKEN)]
    assert len(on_the_wire(dialect, *tools)) == len(TAKEN)


@TABLE
def test_what_fits_the_schema_is_accepted(hint: Any, values: list[Any]) -> None:
    made = of(hint)
    for value in values:
        jsonschema_rs.validate(made.parameters, {"what": value})
        assert isinstance(made.bind({"what": value}), Bound)


@TABLE
def test_a_schema_is_a_valid_schema(hint: Any, values: list[Any]) -> None:
    jsonschema_rs.validator_for(of(hint).parameters)


@TABLE
def test_a_schema_is_the_same_every_time(hint: Any, values: list[Any]) -> None:
    assert msgspec.json.encode(of(hint).parameters) == msgspec.json.encode(of(hint).parameters)


# ---- what becomes of a type ------------------------------------------------------------------------------------------


@every(
    ("hint", "schema"),
    [
        (str | None, {"type": "string"}),
        (Literal["a"], {"type": "string", "enum": ["a"]}),
        (Literal[1, 2], {"type": "integer", "minimum": 1, "maximum": 2, "description": "One of [1,2]."}),
        (Literal[True], {"type": "boolean", "description": "Always true."}),
        (tuple[int, int], {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}),
        (set[int], {"type": "array", "items": {"type": "integer"}, "description": "No item twice."}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (dict[str, Any], {"type": "object"}),
        (UUID, {"type": "string", "description": "Format: uuid."}),
        (date, {"type": "string", "format": "date"}),
        (Decimal, {"type": "number"}),
        (Annotated[int, Field(gt=0, lt=10)], {"type": "integer", "minimum": 1, "maximum": 9}),
        (Annotated[float, Field(gt=0)], {"type": "number", "description": "More than 0."}),
        (
            Annotated[str, Field(pattern="^a", max_length=9)],
            {"type": "string", "description": "At most 9 characters. Matches ^a."},
        ),
        (int | float, {"type": "number"}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a"] | str, {"type": "string"}),  # noqa: PYI051  that is the point
        (date | datetime, {"type": "string", "description": "One of: format date; format date-time."}),
        (str | list[str] | None, {"type": "array", "items": {"type": "string"}}),
        (str | int, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        (str | int | None, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        (
            Literal["a", 1, None],  # noqa: PYI061  written like this
            {
                "anyOf": [
                    {"type": "string", "enum": ["a"]},
                    {"type": "integer", "minimum": 1, "maximum": 1, "description": "Always 1."},
                ]
            },
        ),
        (
            tuple[int, str | None],
            {
                "type": "array",
                "items": {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]},
                "minItems": 2,
                "maxItems": 2,
                "description": "In order: integer, string or null.",
            },
        ),
        (
            Point,
            {
                "type": "array",
                "items": {
                    "anyOf": [{"type": "integer"}, {"type": "string", "description": 'Default: "here".'}],
                },
                "minItems": 1,
                "maxItems": 2,
                "description": "In order: x (integer), label (string).",
            },
        ),
        (
            Paper,
            {
                "type": "object",
                "properties": {"title": {"type": "string"}, "pages": {"type": "integer"}},
                "required": ["title"],
                "additionalProperties": False,
            },
        ),
        (Annotated[str, "the words"], {"type": "string", "description": "the words"}),
        (
            Annotated[str, "the words", Field(description="of the field")],
            {"type": "string", "description": "of the field"},
        ),
        (Any, {"description": "Any JSON value."}),
        (list, {"type": "array", "items": {"description": "Any JSON value."}}),
        (str | Any, {"description": "Any JSON value."}),
    ],
    ids=str,
)
def test_a_type_is_shown_in_plain_words(hint: Any, schema: dict[str, Any]) -> None:
    assert seen(hint) == schema


def test_what_a_field_says_comes_before_what_the_schema_can_not_say() -> None:
    hint = Annotated[str, Field(description="An id.", max_length=9)]
    assert seen(hint, "x")["description"] == 'An id. At most 9 characters. Default: "x".'


def test_a_default_of_null_is_not_told() -> None:
    assert seen(str | None, None) == {"type": "string"}


def test_a_huge_default_is_not_told() -> None:
    assert seen(str, "x" * 10_000) == {"type": "string"}


def test_a_model_that_is_used_twice_is_written_out_twice() -> None:
    shown = seen(Customer)["properties"]
    assert shown["home"] == shown["others"]["items"]


# ---- null ------------------------------------------------------------------------------------------------------------


def test_what_may_be_null_need_not_be_given() -> None:
    assert "required" not in of(str | None).parameters


def test_what_may_be_null_and_is_left_out_is_null() -> None:
    assert of(str | None).bind({}) == Bound({"what": None})


def test_null_that_is_given_is_taken() -> None:
    assert of(str | None).bind({"what": None}) == Bound({"what": None})


@pytest.mark.parametrize(
    ("hint", "sent"),
    [
        (Address, {"street": "s", "zip": "12345"}),
        (list[Address], [{"street": "s", "zip": "12345"}]),
        (dict[str, Address], {"a": {"street": "s", "zip": "12345"}}),
        (Customer, {"name": "n", "home": {"street": "s", "zip": "12345"}, "others": [{"street": "s", "zip": "12345"}]}),
    ],
    ids=str,
)
def test_what_may_be_null_deep_inside_need_not_be_given(hint: Any, sent: Any) -> None:
    assert isinstance(of(hint).bind({"what": sent}), Bound)


def test_filling_in_null_does_not_change_what_the_model_sent() -> None:
    sent: dict[str, Any] = {"what": {"street": "s", "zip": "12345"}}
    of(Address).bind(sent)
    assert sent == {"what": {"street": "s", "zip": "12345"}}


# ---- what can't be said to all of them -------------------------------------------------------------------------------


class Odd(BaseModel):
    name: Annotated[str, Field(alias="a name")]


@every(
    ("hint", "reason"),
    [
        (None, "it can only be null"),
        (Odd, "at a name: a name that models are given"),
        (list[Odd], "at [].a name: a name that models are given"),
        (Cat | Odd, "at a name: a name that models are given"),
        (list[None], "at []: it can only be null"),
    ],
    ids=str,
)
def test_a_type_that_not_every_provider_takes_is_refused_with_its_place(hint: Any, reason: str) -> None:
    with pytest.raises(ToolInvalid) as caught:
        of(hint)
    assert (caught.value.function, caught.value.parameter) == ("take", "what")
    assert reason in caught.value.reason


def test_a_parameter_with_an_alias_is_named_as_the_function_names_it() -> None:
    def take(from_: Annotated[Odd, Field(alias="from")]) -> None: ...

    with pytest.raises(ToolInvalid) as caught:
        tool(take)
    assert caught.value.parameter == "from_"


def test_a_name_that_providers_refuse_is_refused() -> None:
    def take(größe: int) -> None: ...  # noqa: PLC2401

    with pytest.raises(ToolInvalid, match="a name that models are given"):
        tool(take)


def test_references_that_grow_without_bound_are_refused() -> None:
    shape: Any = int
    for n in range(12):
        shape = type(f"Level{n}", (BaseModel,), {"__annotations__": {"a": shape, "b": shape}})
    with pytest.raises(ToolInvalid, match=f"more than {MAX_NODES:,} places"):
        of(shape)


def _mutual(count: int, fields: int) -> Any:
    """A type of `count` types, each of which contains each of them, `fields` times."""
    names = [f"Part{n}" for n in range(count)]
    parts = {f"{name.lower()}_{n}": f"{name} | None" for name in names for n in range(fields)}
    space: dict[str, Any] = {}
    for name in names:
        space[name] = type(name, (BaseModel,), {"__annotations__": parts, **dict.fromkeys(parts)})
    for made in space.values():
        made.model_rebuild(_types_namespace=space)
    return space[names[0]]


# ---- recursive types -------------------------------------------------------------------------------------------------


def _depth(schema: dict[str, Any], name: str) -> int:
    part = schema.get("properties", {}).get(name)
    return 0 if part is None else 1 + _depth(part.get("items", part), name)


def test_a_small_recursive_type_is_written_out_three_times_inside_itself() -> None:
    assert _depth(seen(Node), "children") == 3


def test_a_larger_recursive_type_is_written_out_less_often() -> None:
    assert [_depth(seen(_mutual(1, fields)), "part0_0") for fields in (1, 4, 20)] == [3, 2, 1]
    assert len([*nodes(seen(_mutual(1, 4)))]) <= MAX_EXPANDED


def test_the_innermost_place_says_in_words_what_belongs_there() -> None:
    words = "Another Node, of the same form as the one described before."
    found = [node for node in nodes(seen(Node)) if node.get("description") == words]
    assert found == [{"type": "object", "description": words}]


def test_many_types_that_contain_each_other_are_each_written_out_once() -> None:
    written = msgspec.json.encode(seen(_mutual(8, 1))).decode()
    assert written.count('"additionalProperties":false') == 8


def test_recursive_types_with_too_many_parts_are_refused() -> None:
    with pytest.raises(ToolInvalid, match=f"more than {MAX_NODES:,} places"):
        of(_mutual(40, 2))


def test_what_may_be_null_need_not_be_given_at_any_depth() -> None:
    sent: dict[str, Any] = {"name": "deepest"}
    for n in range(20):
        sent = {"name": str(n), "rest": [sent]}
    made = bound_to(of(Fork), sent)
    while made.rest:
        assert (made.note, made.left, made.right) == (None, None, None)
        (made,) = made.rest
    assert (made.name, made.left) == ("deepest", None)


# ---- unions ----------------------------------------------------------------------------------------------------------


def bound_to(made: AnyTool, what: Any) -> Any:
    found = made.bind({"what": what})
    assert isinstance(found, Bound), found
    return found.kwargs["what"]


@every(
    ("hint", "sent", "value"),
    [
        (str | int, "1", "1"),
        (str | int, 1, 1),
        (Cat | Dog, {"kind": "dog", "tricks": ["sit"]}, Dog(kind="dog", tricks=["sit"])),
        (
            Annotated[Cat | Dog | Bird, Field(discriminator="kind")],
            {"kind": "bird", "song": None, "eggs": []},
            Bird(kind="bird", song=None, eggs=[]),
        ),
        (Mixed, "a", Mixed.NAME),
        (Mixed, 1, Mixed.NUMBER),
        (tuple[int, str], [1, "x"], (1, "x")),
        (Point, [1, "there"], Point(1, "there")),
        (Point, {"x": 1}, Point(1)),
        (Book, {"title": "Emma"}, {"title": "Emma"}),
        (Branch, {"name": "a", "twigs": [{"name": "b"}]}, Branch("a", [Branch("b")])),
        (Node, {"value": 1, "children": [{"value": 2}]}, Node(value=1, children=[Node(value=2)])),
        (
            Expression,
            {"op": "negate", "of": {"op": "add", "terms": [1]}},
            Negate(op="negate", of=Add(op="add", terms=[1])),
        ),
    ],
    ids=str,
)
def test_a_value_comes_as_the_type_that_the_function_declares(hint: Any, sent: Any, value: Any) -> None:
    found = bound_to(of(hint), sent)
    assert (found, type(found)) == (value, type(value))


def test_a_model_in_a_choice_says_where_null_is_possible_and_wants_it_said() -> None:
    (_, bird) = seen(Cat | Bird)["anyOf"]
    assert bird["properties"]["song"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert bird["required"] == ["kind", "song", "eggs"]


def test_a_description_stays_beside_the_choice() -> None:
    hint = Annotated[str | int, Field(description="An id.")]
    assert seen(hint) == {"anyOf": [{"type": "string"}, {"type": "integer"}], "description": "An id."}


# ---- JSON as text ----------------------------------------------------------------------------------------------------


@every(
    ("hint", "sent", "value"),
    [
        (list[int], "[1, 2]", [1, 2]),
        (list[int] | None, "[1]", [1]),
        (set[int], "[1]", {1}),
        (tuple[int, str], '[1, "x"]', (1, "x")),
        (Point, "[3]", Point(3)),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Paper, '{"title": "x"}', {"title": "x"}),
        (Span, '{"begin": "2026-01-02"}', Span(date(2026, 1, 2))),
        (Address, '{"street": "s", "zip": "12345"}', Address(street="s", zip="12345", country=None)),
        (list[Cat], ['{"kind": "cat", "lives": 1}'], [Cat(kind="cat", lives=1)]),
        (list[Cat], '["{\\"kind\\": \\"cat\\", \\"lives\\": 1}"]', [Cat(kind="cat", lives=1)]),
        (dict[str, list[int]], {"a": "[1]"}, {"a": [1]}),
        (int | list[int], "[1]", [1]),
        (Cat | Dog, '{"kind": "dog", "tricks": []}', Dog(kind="dog", tricks=[])),
        (Cat | Bird, {"kind": "bird", "song": "[1]", "eggs": "[1]"}, Bird(kind="bird", song="[1]", eggs=[1])),
        (Node, '{"value": 1, "children": "[{\\"value\\": 2}]"}', Node(value=1, children=[Node(value=2)])),
        (tuple[int, list[int]], [1, "[2]"], (1, [2])),
    ],
    ids=str,
)
def test_an_object_or_a_list_may_come_as_text(hint: Any, sent: Any, value: Any) -> None:
    assert bound_to(of(hint), sent) == value


@every(
    ("hint", "sent"),
    [
        (str, "[1]"),
        (str | list[int], "[1]"),
        (list[int] | str, "[1]"),
        (str | Cat, '{"kind": "cat", "lives": 1}'),
        (Any, "[1]"),
        (list[str], ["[1]"]),
        (list[Any], ["[1]"]),
        (dict[str, str | list[int]], {"a": "[1]"}),
        (Json, "[1]"),
        (Json, {"a": "{}"}),
    ],
    ids=str,
)
def test_a_text_stays_a_text_where_one_is_possible(hint: Any, sent: Any) -> None:
    assert bound_to(of(hint), sent) == sent

    def take(what: Any, more: list[int]) -> None: ...

    take.__annotations__["what"] = hint
    assert tool(take).bind({"what": sent, "more": "[1]"}) == Bound({"what": sent, "more": [1]})


def test_the_constants_of_an_object_tell_whether_a_text_is_possible_in_it() -> None:
    sent = [{"kind": "song", "notes": "[1]"}, {"kind": "tune", "notes": "[1]"}]
    assert bound_to(of(list[Song | Tune]), sent) == [Song(kind="song", notes="[1]"), Tune(kind="tune", notes=[1])]


@every(
    ("hint", "sent", "said"),
    [
        (list[int], "[1", '- what: Input should be a valid array (got "[1"'),
        (list[int], '{"a": 1}', r"""- what: Input should be a valid array (got "{\"a\": 1}";"""),
        (list[int], "1", '- what: Input should be a valid array (got "1";'),
        (list[int], "[" * 5_000, "- what: Input should be a valid array"),
        (list[Cat], '[{"kind": "cat"}]', '- what[0].lives: it is missing (expected {"type":"integer"})'),
        (Address, '{"street": 1, "zip": "12345"}', "- what.street: Input should be a valid string (got 1"),
        (int, "[1]", "- what: Input should be a valid integer"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_text_that_is_no_such_object_is_a_complaint(hint: Any, sent: Any, said: str) -> None:
    assert said in complaint(of(hint), sent)


def test_a_validator_that_reads_texts_itself_gets_the_text() -> None:
    def split(value: object) -> object:
        return value.split(";") if isinstance(value, str) else value

    assert bound_to(of(Annotated[list[str], BeforeValidator(split)]), '["a"];b') == ['["a"]', "b"]


HARD = [
    of(hint) for hint in (Fork, Expression, Json, Trip, Book, Cat | Bird, list[Song | Tune], Mixed, tuple[int, str])
]


@given(json_values, st.booleans())
def test_no_value_makes_bind_raise(value: Any, as_text: bool) -> None:
    sent = msgspec.json.encode(value).decode() if as_text else value
    for made in HARD:
        assert isinstance(made.bind({"what": sent}), Bound | Complaint)
        assert type(made.accepts.resolve({"what": sent})) is dict


def test_what_a_policy_reads_of_a_text_is_what_the_function_gets() -> None:
    assert subject_of(of(list[Span]), {"what": '[{"begin": "2026-01-02"}]'}).args == {
        "what": [{"begin": "2026-01-02", "end": None}]
    }


# ---- complaints ------------------------------------------------------------------------------------------------------


def complaint(made: AnyTool, what: Any) -> str:
    found = made.bind({"what": what})
    assert isinstance(found, Complaint), found
    return found.text


@every(
    ("hint", "sent", "said"),
    [
        (list[Address], [{"street": "s"}], '- what[0].zip: it is missing (expected {"type":"string"})'),
        (
            dict[str, Address],
            {"a": {"street": 1, "zip": "12345"}},
            "- what.a.street: Input should be a valid string (got 1",
        ),
        (Customer, {"name": "n", "home": 3}, "- what.home: Input should be an object"),
        (Customer, {"name": "n", "home": {"street": "s", "zip": "1"}}, "- what.home.zip: String should match pattern"),
        (Literal[1, 2], 3, "- what: Input should be 1 or 2 (got 3"),
        (
            Cat | Bird,
            {"kind": "bird", "song": None, "eggs": ["x"]},
            'unable to parse string as an integer (got "x"; expected {"type":"integer"})',
        ),
        (
            Annotated[Cat | Bird, Field(discriminator="kind")],
            {"kind": "bird", "eggs": []},
            '- what.song: it is missing (expected {"anyOf":[{"type":"string"},{"type":"null"}]})',
        ),
        (Node, {"value": 1, "children": [{"value": "x"}]}, "- what.children[0].value: Input should be a valid integer"),
        (
            Colour | None,
            "green",
            '- what: Input should be \'red\' or \'blue\' (got "green"; expected {"type":"string","enum"',
        ),
    ],
    ids=str,
)
def test_a_complaint_names_the_place_inside_and_what_is_expected_there(hint: Any, sent: Any, said: str) -> None:
    assert said in complaint(of(hint), sent)


def test_a_missing_argument_inside_an_object_is_told_with_its_own_type() -> None:
    assert complaint(of(list[Span]), [{}]).count('(expected {"type":"string","format":"date"})') == 1


def test_what_a_closed_object_does_not_know_is_named() -> None:
    class Closed(BaseModel):
        model_config = ConfigDict(extra="forbid")
        a: int = 1

    said = complaint(of(Closed), {"b": 2})
    assert "- what.b: there is no such argument; there are: a" in said


def test_a_hostile_validator_is_a_complaint() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def refuse(value: object) -> object:
        raise Mute

    check: Callable[[object], object] = refuse
    assert "they could not be checked: Mute" in complaint(of(Annotated[int, AfterValidator(check)]), 1)
