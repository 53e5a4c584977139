"""What a function accepts: the JSON schema of its parameters, and the check of what a model sent.

This module loads pydantic, so it is imported when the first tool is made, and not before.
"""

from __future__ import annotations

import inspect
import re
import types
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

import holdfast
from holdfast.effects.values import encode_value
from holdfast.errors import InvalidValue, ToolInvalid
from holdfast.tools.context import Context
from holdfast.tools.definition import Deferred
from holdfast.tools.results import MAX_TEXT, said_by, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import ErrorDetails, core_schema


ANYTHING: Final = "Any JSON value."
"""What is said of a place where any value fits."""
_SCALARS: Final[frozenset[str]] = frozenset(("string", "integer", "number", "boolean"))
_NUMBERS: Final = ["integer", "number"]


class NoForm(Exception):
    """A place in a schema that not every provider takes."""

    def __init__(self, place: tuple[str, ...], reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


def joined(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """One schema that stands for all: whatever fits it, fits one of them, and nothing that matters is lost."""
    distinct = _distinct(schemas)
    if len(distinct) == 1:
        return distinct[0]
    if any("type" not in schema for schema in distinct):
        return {"description": ANYTHING}
    kinds = {str(schema["type"]) for schema in distinct}
    if sorted(kinds) == _NUMBERS:
        # Every whole number is a number; the bounds of both can't be kept.
        wide = [schema for schema in distinct if schema["type"] == "number"]
        return {"type": "number"} if _open(wide) else _refused(kinds)
    if len(kinds) == 1 and kinds <= _SCALARS:
        return _of_one_kind(kinds.pop(), distinct)
    listed = _one_or_many(distinct)
    return listed if listed is not None else _refused(kinds)


def _of_one_kind(kind: str, schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """The widest of several scalars of one type."""
    if _open(schemas):
        return {"type": kind}
    if all("enum" in schema for schema in schemas):
        return {"type": kind, "enum": _distinct([choice for schema in schemas for choice in schema["enum"]])}
    # Several ways to write one type: the type is said, and the ways in words.
    ways = [_way(schema) for schema in schemas]
    return {"type": kind, "description": f"One of: {'; '.join(ways)}."}


def _way(schema: dict[str, Any]) -> str:
    rest = {key: value for key, value in schema.items() if key not in {"type", "description"}}
    said = [f"{key} {value}" for key, value in rest.items()]
    described = str(schema.get("description", "")).rstrip(".")
    return ", ".join([*([described] if described else []), *said])


def _one_or_many(schemas: list[dict[str, Any]]) -> dict[str, Any] | None:
    """`T | list[T]` is a list: one is a list of one."""
    lists = [schema for schema in schemas if schema["type"] == "array"]
    others = [schema for schema in schemas if schema["type"] != "array"]
    if len(lists) == 1 and others and lists[0]["items"] == joined(others):
        return lists[0]
    return None


def _open(schemas: list[dict[str, Any]]) -> bool:
    """Whether one of them takes every value of its type."""
    return any(schema.keys() <= {"type"} for schema in schemas)


def _distinct(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if not any(type(value) is type(other) and value == other for other in found):
            found.append(value)
    return found


def _refused(kinds: set[str]) -> dict[str, Any]:
    named = " or ".join(sorted(kinds))
    several = f"one of several {named}s" if len(kinds) == 1 else named
    reason = f"it is {several}, and not every provider takes a choice of types"
    raise NoForm((), f"{reason}; use one type, one model with optional fields, or a tool for each")


@dataclass(frozen=True, slots=True)
class Absent:
    """Where a value that may be null may also be left out, which the function's own types do not know."""

    names: tuple[str, ...]
    """Properties that are null where they are missing."""
    properties: dict[str, Absent]
    items: Absent | None = None
    values: Absent | None = None

    def filled(self, value: object) -> object:
        """`value` with null where something was left out."""
        if isinstance(value, list):
            items = cast("list[object]", value)
            return [self.items.filled(item) for item in items] if self.items else items
        if not isinstance(value, dict):
            return value
        found = cast("dict[str, object]", value)
        inside = {name: self._inner(name).filled(item) for name, item in found.items()}
        return {**dict.fromkeys(self.names), **inside}

    def _inner(self, name: str) -> Absent:
        return self.properties.get(name) or self.values or NOTHING


NOTHING: Final = Absent((), {})

MAX_NODES: Final = 2_000
"""How many places a schema may have once its references are written out."""
_KEPT: Final = ("minimum", "maximum", "minItems", "maxItems")
_FORMATS: Final = frozenset(("date-time", "date", "time"))
_SILENT: Final = frozenset(
    ("title", "description", "default", "$defs", "$ref", "deprecated", "readOnly", "writeOnly", "discriminator", "type")
)
_SHAPES: Final = frozenset(
    (
        "properties",
        "required",
        "additionalProperties",
        "items",
        "prefixItems",
        "anyOf",
        "oneOf",
        "allOf",
        "const",
        "enum",
    )
)
_PROPERTY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_LONGEST_WORDS: Final = 200
_KINDS: Final[dict[type, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Portable:
    """A schema as every provider takes it."""

    schema: dict[str, Any]
    absent: Absent | None
    """What has to be filled in before the function's types see it."""


def portable(schema: dict[str, Any]) -> Portable:
    """`schema` in the words that every provider takes; `NoForm` says which place has none, and why."""
    made, absent, _null = _Writer(schema.get("$defs", {})).written(schema, ())
    return Portable(made, absent)


class _Writer:
    """Writes one schema out, with its definitions."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._nodes = 0

    def written(self, given: object, inside: tuple[str, ...]) -> tuple[dict[str, Any], Absent | None, bool]:
        """One place: its schema, what may be absent in it, and whether it may be null. `inside`: definitions around."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise NoForm((), f"its schema has more than {MAX_NODES:,} places; use a smaller type")
        node, inside = self._resolved(_object(given), inside)
        kinds = node.get("type")
        if isinstance(kinds, list):
            node = {**node, "anyOf": [{**_typed(node), "type": kind} for kind in cast("list[str]", kinds)]}
        for union in ("anyOf", "oneOf"):
            if union in node:
                return self._union(node, node[union], inside)
        if node.get("type") == "null" or node.get("const", ...) is None:
            raise NoForm((), "it can only be null")
        return (*self._plain(node, inside), False)

    def _resolved(self, node: dict[str, Any], inside: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
        while "$ref" in node or "allOf" in node:
            target = str(node.get("$ref", "")).removeprefix("#/$defs/")
            rest = {key: value for key, value in node.items() if key not in {"$ref", "allOf"}}
            if "allOf" in node:
                parts = cast("list[Any]", node["allOf"])
                if len(parts) != 1 or target:
                    raise NoForm((), "it must match several schemas at once, which not every provider takes")
                node = {**_object(parts[0]), **rest}
                continue
            if target in inside:
                raise NoForm((), f"{target} contains itself, and no schema without references can say that")
            if target not in self._definitions:
                raise NoForm((), f"its schema refers to {target!r}, which is not there")
            node = {**_object(self._definitions[target]), **rest}
            inside = _with(inside, target)
        return node, inside

    def _union(
        self, node: dict[str, Any], members: list[Any], inside: tuple[str, ...]
    ) -> tuple[dict[str, Any], Absent | None, bool]:
        found: list[tuple[dict[str, Any], Absent | None]] = []
        null = False
        for member in members:
            if _is_null(_object(member)):
                null = True
                continue
            made, absent, also = self.written(member, inside)
            null = null or also
            found.append((made, absent))
        if not found:
            raise NoForm((), "it can only be null")
        # What may be absent inside is known for sure only where there is one way to read it.
        absent = found[0][1] if len(found) == 1 else None
        made = joined([schema for schema, _ in found])
        return _described(made, node, []), absent, null

    def _plain(self, node: dict[str, Any], inside: tuple[str, ...]) -> tuple[dict[str, Any], Absent | None]:
        choices = [node["const"]] if "const" in node else node.get("enum")
        kind = node.get("type") or _kind_of(choices)
        if not isinstance(kind, str):
            return _described({}, node, [ANYTHING]), None
        made: dict[str, Any] = {"type": kind}
        words: list[str] = []
        if choices is not None:
            _choose(choices, made, words)
        absent = None
        if kind == "object":
            absent = self._into_object(node, made, words, inside)
        elif kind == "array":
            absent = self._into_array(node, made, inside)
        for key, value in node.items():
            _bound(key, value, made, words)
        return _described(made, node, words), absent

    def _into_object(
        self, node: dict[str, Any], made: dict[str, Any], words: list[str], inside: tuple[str, ...]
    ) -> Absent | None:
        properties = _object(node.get("properties"))
        if not properties and node.get("additionalProperties") is not False:
            return self._into_map(node, made, words, inside)
        required = set(cast("list[str]", node.get("required", [])))
        made["properties"] = {}
        missing: list[str] = []
        within: dict[str, Absent] = {}
        for name, schema in properties.items():
            if not _PROPERTY.fullmatch(name):
                raise NoForm((name,), "a name that models are given is 1 to 64 of a-z, A-Z, 0-9, '_', '.' and '-'")
            made["properties"][name], absent, null = self._at(name, schema, inside)
            if absent:
                within[name] = absent
            if null and name in required:
                missing.append(name)
        asked = [name for name in properties if name in required and name not in missing]
        if asked:
            made["required"] = asked
        made["additionalProperties"] = False
        return Absent(tuple(missing), within) if missing or within else None

    def _into_map(
        self, node: dict[str, Any], made: dict[str, Any], words: list[str], inside: tuple[str, ...]
    ) -> Absent | None:
        """An object with names of the model's own choice."""
        values = node.get("additionalProperties")
        patterns = _object(node.get("patternProperties"))
        if len(patterns) == 1 and not isinstance(values, dict):
            ((pattern, values),) = patterns.items()
            words.append(f"Names match {pattern}.")
        if not isinstance(values, dict) or not values:
            return None
        made["additionalProperties"], absent, _null = self._at("*", cast("dict[str, Any]", values), inside)
        return Absent((), {}, values=absent) if absent else None

    def _into_array(self, node: dict[str, Any], made: dict[str, Any], inside: tuple[str, ...]) -> Absent | None:
        items = node.get("items")
        if "prefixItems" in node:
            members = cast("list[Any]", node["prefixItems"])
            if items not in (None, False) or not members:
                raise NoForm((), "a tuple needs items of one kind; use a list, or a model with named fields")
            if any(member != members[0] for member in members):
                raise NoForm((), "a tuple of different kinds has no schema that every provider takes; use a model")
            items = members[0]
        made["items"], absent, _null = self._at("[]", _object(items), inside)
        return Absent((), {}, items=absent) if absent else None

    def _at(self, place: str, schema: object, inside: tuple[str, ...]) -> tuple[dict[str, Any], Absent | None, bool]:
        try:
            return self.written(schema, inside)
        except NoForm as error:
            raise NoForm((place, *error.place), error.reason) from None


def _choose(choices: list[Any], made: dict[str, Any], words: list[str]) -> None:
    """Choices among texts are taken everywhere, except for one that is empty; all others are told."""
    if made["type"] == "string" and all(choices):
        made["enum"] = choices
        return
    words.append(f"One of {_json(choices)}." if len(choices) > 1 else f"Always {_json(choices[0])}.")
    if made["type"] in {"integer", "number"}:
        made |= {"minimum": min(choices), "maximum": max(choices)}


def _bound(key: str, value: Any, made: dict[str, Any], words: list[str]) -> None:  # noqa: ANN401  any JSON value
    """What a word of a schema becomes: itself, another word, or a sentence."""
    whole = made["type"] == "integer" and type(value) is int
    if key in _KEPT:
        made[key] = value
    elif key == "exclusiveMinimum" and whole:
        made["minimum"] = value + 1
    elif key == "exclusiveMaximum" and whole:
        made["maximum"] = value - 1
    elif key == "format" and value in _FORMATS:
        made[key] = value
    elif key not in _SILENT and key not in _SHAPES and key != "patternProperties":
        words.append(_sentence(key, value))


def _sentence(key: str, value: Any) -> str:  # noqa: ANN401  any JSON value
    said = {
        "exclusiveMinimum": "More than {}.",
        "exclusiveMaximum": "Less than {}.",
        "multipleOf": "A multiple of {}.",
        "minLength": "At least {} characters.",
        "maxLength": "At most {} characters.",
        "minProperties": "At least {} entries.",
        "maxProperties": "At most {} entries.",
        "pattern": "Matches {}.",
        "format": "Format: {}.",
        "examples": "For example: {}.",
    }
    if key == "uniqueItems":
        return "No item twice." if value else ""
    text = value if isinstance(value, str) else _json(value)
    return said.get(key, f"{key}: {{}}.").format(text)


def _described(made: dict[str, Any], node: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """`made` with its description: what its author said, then what the schema can't say."""
    told = [str(node.get("description", "")).strip() or str(made.get("description", "")).strip(), *words]
    default = _json(node.get("default"))
    if default != "null":
        told.append(f"Default: {default}.")
    text = " ".join(part for part in [told[0], *(word for word in told[1:] if len(word) <= _LONGEST_WORDS)] if part)
    bare = {key: value for key, value in made.items() if key != "description"}
    return {**bare, "description": text} if text else bare


def _kind_of(choices: object) -> str | None:
    if not isinstance(choices, list) or not choices:
        return None
    kinds = {_KINDS.get(type(choice)) for choice in cast("list[object]", choices)}
    if kinds == {"integer", "number"}:
        return "number"
    if len(kinds) != 1:
        raise NoForm((), "its choices are of different types; use one type for all")
    return kinds.pop()


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return (*names, name)


def _is_null(node: dict[str, Any]) -> bool:
    return node.get("type") == "null" or ("const" in node and node["const"] is None)


def _typed(node: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key not in {"description", "default"}}


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _json(value: object) -> str:
    return _encode(value).decode()


MAX_PROBLEMS: Final = 8
"""How many problems with its arguments a model is told at once."""
ROOM: Final = MAX_TEXT - 400
"""For the problems, in characters; the rest is for the words around them."""
_SHOWN: Final = 80
_EXPECTED: Final = 400


def problems(details: Sequence[ErrorDetails], arguments: dict[str, Any], schema: dict[str, Any]) -> str:
    """Each problem on a line: where it is, what is wrong, what came and what was expected."""
    lines = list(dict.fromkeys(_problem(detail, arguments, schema) for detail in details))
    told = lines[:MAX_PROBLEMS]
    room = ROOM // len(told)
    more = [f"- and {len(lines) - MAX_PROBLEMS:,} more"] if len(lines) > MAX_PROBLEMS else []
    return "\n".join([*(shorten(line, room) for line in told), *more])


def _problem(detail: ErrorDetails, arguments: dict[str, Any], schema: dict[str, Any]) -> str:
    place = detail["loc"]
    path, steps = _path(place, arguments)
    where = shorten(path, _SHOWN)
    kind = detail["type"]
    if kind == "extra_forbidden":
        known = _part(schema, steps[:-1]).get("properties", {})
        there = f"there are: {', '.join(known)}" if known else "it takes none" if len(steps) < 2 else "leave it out"
        return f"- {where}: there is no such argument; {there}"
    expected = _expected(_part(schema, steps)) if steps else ""
    if kind == "missing":
        return f"- {where}: it is missing{f' (expected {expected})' if expected else ''}"
    given = shorten(_as_json(detail["input"]), _SHOWN)
    known = f"got {given}; expected {expected}" if expected else f"got {given}"
    return f"- {where}: {shorten(detail['msg'], _EXPECTED)} ({known})"


def _path(place: tuple[int | str, ...], arguments: object) -> tuple[str, list[int | str]]:
    """Where in the arguments, without the names that pydantic gives to the members of a union."""
    path, value = "", arguments
    steps: list[int | str] = []
    for n, step in enumerate(place):
        if isinstance(value, dict) and isinstance(step, str):
            inside = cast("dict[str, Any]", value)
            if step not in inside and n + 1 < len(place):
                continue
            value, path = inside.get(step), f"{path}.{step}" if path else step
            steps.append(step)
        elif isinstance(value, list) and isinstance(step, int):
            items = cast("list[Any]", value)
            value, path = items[step] if step < len(items) else None, f"{path}[{step}]"
            steps.append(step)
    return path or "arguments", steps


def _part(schema: dict[str, Any], steps: Sequence[int | str]) -> dict[str, Any]:
    """What the schema says about one place; nothing where it does not know it."""
    here: Any = schema
    for step in steps:
        if not isinstance(here, dict):
            return {}
        found = cast("dict[str, Any]", here)
        if isinstance(step, int):
            here = found.get("items")
        else:
            here = found.get("properties", {}).get(step, found.get("additionalProperties"))
    return cast("dict[str, Any]", here) if isinstance(here, dict) else {}


def _expected(wanted: dict[str, Any]) -> str:
    bare = {key: value for key, value in wanted.items() if key != "description"}
    return shorten(_as_json(bare), _EXPECTED) if bare else ""


def _as_json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return shorten(repr(value), _EXPECTED)


_ORDER: Final = ("type", "properties", "required", "additionalProperties")


class _Schema(GenerateJsonSchema):
    # A default that has no JSON form is a matter between the function and itself: the schema leaves it out.
    ignored_warning_kinds: ClassVar[set[Any]] = {"skipped-choice", "non-serializable-default"}  # pyright: ignore[reportIncompatibleVariableOverride]

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        # A number or the same as text: a model is told of the number.
        made = super().decimal_schema(schema)
        return next((one for one in made.get("anyOf", ()) if one.get("type") == "number"), made)


@dataclass(frozen=True, slots=True)
class Accepts:
    """What a function takes: the schema for the model, and the way from JSON to its types."""

    parameters: dict[str, Any]
    context: str | None
    """The parameter that gets the context."""
    shape: type[BaseModel]
    fields: tuple[tuple[str, str], ...]
    """Each field of `shape` with the parameter it stands for."""
    absent: Absent | None = None
    """What a model may leave out although the function's types ask for it: null is meant."""

    def resolved(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments as plain JSON with the defaults of what was left out; as they are where they do not fit."""
        try:
            given = arguments if self.absent is None else self.absent.filled(arguments)
            found: BaseModel = self.shape.__pydantic_validator__.validate_json(encode_value(given))
            plain: dict[str, Any] = found.model_dump(mode="json")
            full = {parameter: plain[field] for field, parameter in self.fields}
        except Exception:  # noqa: BLE001  types of the user's own may raise anything
            return arguments
        return full if type(self.read(full)) is dict else arguments

    def read(self, arguments: dict[str, Any]) -> dict[str, Any] | str:
        """What to call the function with, or what is wrong with the arguments."""
        try:
            given = arguments if self.absent is None else self.absent.filled(arguments)
            found: BaseModel = self.shape.__pydantic_validator__.validate_json(encode_value(given))
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False)
            return problems(details, arguments, self.parameters)
        except InvalidValue as error:
            return f"- {error}"
        except Exception as error:  # noqa: BLE001  a validator of the user's own types may raise anything
            return shorten(f"- they could not be checked: {said_by(error)}", ROOM)
        values: dict[str, Any] = vars(found)
        return {parameter: values[field] for field, parameter in self.fields}


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    hint: Any
    default: Any


def read_signature(function: Callable[..., Any], label: str, described: Mapping[str, str]) -> Accepts:
    """What `function` accepts; `ToolInvalid` names the parameter that no model could fill in."""
    parameters = _parameters(function, label)
    contexts = [parameter.name for parameter in parameters if is_context(parameter.hint)]
    if len(contexts) > 1:
        raise ToolInvalid(label, contexts[1], f"{contexts[0]!r} is the context already")
    asked = [parameter for parameter in parameters if parameter.name not in contexts]
    shape, schema = _build(asked, label, described)
    made = _portable(schema, label, {_shown_as(parameter): parameter.name for parameter in asked})
    fields = tuple((_field(n), parameter.name) for n, parameter in enumerate(asked))
    return Accepts(_ordered(made.schema), contexts[0] if contexts else None, shape, fields, made.absent)


def _portable(schema: dict[str, Any], label: str, names: Mapping[str, str]) -> Portable:
    try:
        return portable(schema)
    except NoForm as error:
        first, *rest = error.place or ("",)
        inside = f"at {'.'.join(rest).replace('.[]', '[]')}: " if rest else ""
        raise ToolInvalid(label, names.get(first, first) or None, inside + error.reason) from None


def is_context(hint: object) -> bool:
    """Whether a parameter with this annotation gets the context: `Context`, or `Context | None`."""
    origin = get_origin(hint)
    if origin is Annotated:
        return is_context(get_args(hint)[0])
    if origin is Union or origin is types.UnionType:
        kinds = [kind for kind in get_args(hint) if kind is not types.NoneType]
        return len(kinds) == 1 and is_context(kinds[0])
    kind = origin or hint
    return isinstance(kind, type) and issubclass(kind, Context)


def _parameters(function: Callable[..., Any], label: str) -> list[_Parameter]:
    try:
        signature = inspect.signature(function)
    except (NameError, TypeError, ValueError) as error:
        raise ToolInvalid(label, None, f"its signature can't be read: {error}") from error
    names = {"Context": Context, "hf": holdfast, "holdfast": holdfast}
    names |= getattr(inspect.unwrap(function), "__globals__", {})
    return [_parameter(parameter, label, names) for parameter in signature.parameters.values()]


def _parameter(parameter: inspect.Parameter, label: str, names: dict[str, Any]) -> _Parameter:
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
        raise ToolInvalid(label, str(parameter).partition(":")[0], "a model can't fill it in; name each parameter")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise ToolInvalid(label, parameter.name, "it is positional-only; arguments are given by name")
    if parameter.annotation is parameter.empty:
        hint = "; make a tool of the bound method instead" if parameter.name in {"self", "cls"} else ""
        raise ToolInvalid(label, parameter.name, f"it has no annotation{hint}")
    return _Parameter(parameter.name, _resolved(parameter, label, names), parameter.default)


def _resolved(parameter: inspect.Parameter, label: str, names: dict[str, Any]) -> object:
    # One at a time, so that an error has a name, and what the function returns need not be there at run time.
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        return get_type_hints(holder, names, include_extras=True)[parameter.name]
    except Exception as error:
        reason = f"its annotation {parameter.annotation!r:.120} can't be resolved: {_first_line(error)}"
        fix = "; import or define it at the top of the module, not under TYPE_CHECKING" * isinstance(error, NameError)
        raise ToolInvalid(label, parameter.name, reason + fix) from error


def _build(
    parameters: Sequence[_Parameter], label: str, described: Mapping[str, str]
) -> tuple[type[BaseModel], dict[str, Any]]:
    try:
        return _shape(label, parameters, described)
    except ToolInvalid:
        raise
    except Exception as error:  # pydantic and the user's types may raise anything here
        for parameter in parameters:
            _check_alone(parameter, label, described)
        raise ToolInvalid(label, None, f"no schema can be made of its parameters: {_first_line(error)}") from error


def _check_alone(parameter: _Parameter, label: str, described: Mapping[str, str]) -> None:
    try:
        _shape(label, [parameter], described)
    except Exception as error:
        reason = f"no JSON schema can be made of {_shown_type(parameter.hint)}: {_first_line(error)}"
        raise ToolInvalid(label, parameter.name, reason) from error


def _shape(
    label: str, parameters: Sequence[_Parameter], described: Mapping[str, str]
) -> tuple[type[BaseModel], dict[str, Any]]:
    # Neutral field names with aliases: a parameter may be called `json` or `_x`, which pydantic keeps for itself.
    fields: dict[str, Any] = {}
    shown: set[str] = set()
    for n, parameter in enumerate(parameters):
        alias = _shown_as(parameter)
        if alias in shown:
            raise ToolInvalid(label, parameter.name, f"another parameter is shown as {alias!r} too")
        shown.add(alias)
        description = _known(parameter).description or described.get(parameter.name) or None
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[_field(n)] = (Annotated[parameter.hint, Field(alias=alias, description=description)], default)
    shape = create_model(label, __config__=ConfigDict(extra="forbid"), **fields)
    return shape, shape.model_json_schema(schema_generator=_Schema)


def _shown_as(parameter: _Parameter) -> str:
    alias = _known(parameter).validation_alias
    return alias if isinstance(alias, str) else parameter.name


def _known(parameter: _Parameter) -> FieldInfo:
    if parameter.default is inspect.Parameter.empty:
        return FieldInfo.from_annotation(parameter.hint)
    return FieldInfo.from_annotated_attribute(parameter.hint, parameter.default)


def _field(n: int) -> str:
    return f"p{n}"


def _ordered(whole: dict[str, Any]) -> dict[str, Any]:
    first = {key: whole[key] for key in _ORDER if key in whole}
    return first | {key: whole[key] for key in sorted(whole.keys() - first.keys())}


def _shown_type(hint: object) -> str:
    return hint.__qualname__ if isinstance(hint, type) else shorten(repr(hint), 120)


def _first_line(error: Exception) -> str:
    return shorten((str(error).strip().splitlines() or [type(error).__name__])[0], 300)


_ARGS: Final = re.compile(r"(Args|Arguments|Parameters):\s*")
_ENTRY: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:(?:\s+(.*))?")


def read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """What the tool does, and what its parameters mean: the text without its ``Args`` section, and that section."""
    lines = doc.splitlines()
    begin = next((n for n, line in enumerate(lines) if _ARGS.fullmatch(line)), None)
    if begin is None:
        return doc.strip(), {}
    end = next((n for n in range(begin + 1, len(lines)) if lines[n][:1].strip()), len(lines))
    before = "\n".join(lines[:begin]).rstrip()
    after = "\n".join(lines[end:]).strip()
    return "\n\n".join(part for part in (before, after) if part), _read_entries(lines[begin + 1 : end])


def _read_entries(lines: list[str]) -> dict[str, str]:
    described: dict[str, list[str]] = {}
    words: list[str] = []
    margin = next((_indent(line) for line in lines if line.strip()), 0)
    for line in lines:
        entry = _ENTRY.fullmatch(line.strip()) if _indent(line) <= margin else None
        if entry:
            words = described[entry[1]] = [entry[2] or ""]
        else:
            words.append(line.strip())
    return {name: " ".join(" ".join(said).split()) for name, said in described.items()}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


_RETURNING_SHOWN: Final = 600


def complaint_about(function: Callable[..., Any], body: bytes) -> str | None:
    """What is wrong with the JSON in `body` as a result of `function`; None when it fits, or nobody says what would."""
    read = _reader_of(function)
    if read is None:
        return None
    try:
        read(body)
    except ValidationError as error:
        first, *rest = error.errors(include_url=False, include_context=False, include_input=False)
        place = ".".join(map(str, first["loc"]))
        more = f" (and {len(rest):,} more)" if rest else ""
        return shorten(f"{place}: {first['msg']}{more}" if place else f"{first['msg']}{more}", _RETURNING_SHOWN)
    except Exception as error:  # noqa: BLE001  a validator of the user's own types may raise anything
        return shorten(said_by(error), _RETURNING_SHOWN)
    return None


def is_annotated(function: Callable[..., Any]) -> bool:
    """Whether the function says what it returns, in a way that can be checked."""
    return _reader_of(function) is not None


@lru_cache(maxsize=1024)
def _reader_of(function: Callable[..., Any]) -> Callable[[bytes], object] | None:
    """What reads a result from JSON as its type; None where that is not said, or has no JSON form."""
    try:
        annotation = inspect.signature(function).return_annotation
        if annotation is inspect.Signature.empty:
            return None
        names = {"Context": Context, "hf": holdfast, "holdfast": holdfast}
        names |= getattr(inspect.unwrap(function), "__globals__", {})
        holder = types.SimpleNamespace(__annotations__={"return": annotation})
        wanted = answer_type(get_type_hints(holder, names, include_extras=True)["return"])
    except Exception:  # noqa: BLE001  what a function returns need not be there at run time
        return None
    return _reader(wanted)


def _reader(wanted: Any) -> Callable[[bytes], object] | None:  # noqa: ANN401
    try:
        # What is recorded is the answer as it came, so nothing is made to fit.
        return partial(TypeAdapter(wanted).validate_json, strict=True)
    except Exception:  # noqa: BLE001  a struct, or a type that has no JSON form at all
        if not (isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)):
            return None
    return msgspec.json.Decoder(wanted).decode


def answer_type(hint: Any) -> Any:  # noqa: ANN401  annotations are of any type
    """The type of the answer in ``T``, ``Deferred[T]`` or ``T | Deferred[T]``."""
    origin = get_origin(hint)
    if hint is Deferred:
        return Any
    if origin is Deferred:
        return get_args(hint)[0]
    if origin is Annotated:
        return answer_type(get_args(hint)[0])
    if origin is Union or origin is types.UnionType:
        others = [kind for kind in get_args(hint) if kind is not Deferred and get_origin(kind) is not Deferred]
        inner = [answer_type(kind) for kind in get_args(hint) if kind is Deferred or get_origin(kind) is Deferred]
        kinds = [*others, *(kind for kind in inner if kind is not Any)]
        return Union[tuple(kinds)] if kinds else Any  # noqa: UP007  the members are known only here
    return hint
