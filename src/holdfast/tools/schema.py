"""The JSON schema of a function's parameters, the check of a model's arguments, and the check of a deferred result.

This module loads pydantic, so it is imported when the first tool is made, and not before.
"""

from __future__ import annotations

import inspect
import re
import types
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

import holdfast
from holdfast.deps import deps_type
from holdfast.effects.canonical import decode_value, encode_value
from holdfast.errors import InvalidValue, ToolInvalid
from holdfast.tools.context import Context
from holdfast.tools.definition import Deferred, inner_function
from holdfast.tools.results import MAX_TEXT, describe_error, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydantic_core import ErrorDetails, core_schema

# ---- from a signature to a schema ----

_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class ParameterSchema:
    """The parameters of a function: their schema for the model, and the way from JSON to the function's types."""

    parameters: dict[str, Any]
    """The JSON schema."""
    context: str | None
    """The parameter that gets the context."""
    model: type[BaseModel]
    fields: tuple[tuple[str, str], ...]
    """Each field of `model` with its parameter."""
    types: dict[str, Any]
    """The JSON schema of `model`, with all that `parameters` says in words or leaves out."""
    deps: object = None
    """The type of the dependencies that the context must have; None: any."""
    nulls: Nulls | None = None
    """Values that a model may leave out although the function's types require them: they become null."""

    def read(self, arguments: dict[str, Any]) -> dict[str, Any] | str:
        """The keyword arguments for the function, or a text about the errors in `arguments`."""
        try:
            values = vars(self._validate(arguments))
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False)
            return _describe_problems(details, self._parse_texts(arguments), self.parameters)
        except InvalidValue as error:
            return f"- {error}"
        except Exception as error:  # a validator of the user's own types may raise anything
            return shorten(f"- they could not be checked: {describe_error(error)}", _PROBLEMS_LENGTH)
        return {parameter: values[field] for field, parameter in self.fields}

    def resolve(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments as plain JSON, with defaults filled in; unchanged if they are not valid."""
        try:
            plain: dict[str, Any] = self._validate(arguments).model_dump(mode="json")
            full = {parameter: plain[field] for field, parameter in self.fields}
        except Exception:  # types of the user's own may raise anything
            return arguments
        return full if type(self.read(full)) is dict else arguments

    def _validate(self, arguments: dict[str, Any]) -> BaseModel:
        try:
            return self._check(arguments)
        except ValidationError:
            parsed = self._parse_texts(arguments)
            if parsed == arguments:
                raise
            return self._check(parsed)

    def _check(self, arguments: dict[str, Any]) -> BaseModel:
        given = arguments if self.nulls is None else self.nulls.fill(arguments)
        return self.model.__pydantic_validator__.validate_json(encode_value(given))

    def _parse_texts(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return parse_texts(arguments, self.types)


def parse_texts(arguments: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The arguments with each JSON text parsed that is in the place of an object or list."""
    return _as_dict(_parse_texts(arguments, [schema], _as_dict(schema.get("$defs"))))


def read_signature(function: Callable[..., Any], label: str, descriptions: Mapping[str, str]) -> ParameterSchema:
    """Read the parameters of `function`; `ToolInvalid` names a parameter that no model could fill in."""
    try:
        signature = inspect.signature(function)
    except (NameError, TypeError, ValueError) as error:
        raise ToolInvalid(label, None, f"its signature can't be read: {error}") from error
    names = _names_for(function)
    # A parameter that a partial binds by place is not in its signature; one that it binds by name still is.
    bound = function.keywords if isinstance(function, partial) else {}
    offered = [parameter for name, parameter in signature.parameters.items() if name not in bound]
    parameters = [_read_parameter(parameter, label, names) for parameter in offered]
    contexts = {parameter.name: parameter.hint for parameter in parameters if _is_context(parameter.hint)}
    if len(contexts) > 1:
        context, other, *_ = contexts
        raise ToolInvalid(label, other, f"{context!r} is the context already")
    parameters = [parameter for parameter in parameters if parameter.name not in contexts]
    try:
        model, schema = _build_model(label, parameters, descriptions)
    except ToolInvalid:
        raise
    except Exception as error:  # pydantic and the user's types may raise anything here
        for parameter in parameters:
            try:
                _build_model(label, [parameter], descriptions)
            except Exception as wrong:
                hint = parameter.hint
                shown = hint.__qualname__ if isinstance(hint, type) else shorten(repr(hint), 120)
                reason = f"no JSON schema can be made of {shown}: {_first_line(wrong)}"
                raise ToolInvalid(label, parameter.name, reason) from wrong
        raise ToolInvalid(label, None, f"no schema can be made of its parameters: {_first_line(error)}") from error
    try:
        portable, nulls = _write_portable(schema)
    except _NotPortable as error:
        first, *rest = error.path or ("",)
        names_by_alias = {parameter.alias: parameter.name for parameter in parameters}
        inside = f"at {'.'.join(rest).replace('.[]', '[]')}: " if rest else ""
        raise ToolInvalid(label, names_by_alias.get(first, first) or None, inside + error.reason) from None
    fields = tuple((f"p{n}", parameter.name) for n, parameter in enumerate(parameters))
    context, deps = next(((name, deps_type(hint)) for name, hint in contexts.items()), (None, None))
    return ParameterSchema(_in_order(portable), context, model, fields, schema, deps, nulls)


def _in_order(schema: dict[str, Any]) -> dict[str, Any]:
    ordered = {key: schema[key] for key in ("type", "properties", "required", "additionalProperties") if key in schema}
    return ordered | {key: schema[key] for key in sorted(schema.keys() - ordered.keys())}


def portable_schema(schema: dict[str, Any]) -> tuple[dict[str, Any], Nulls | None]:
    """A JSON schema of an object as all providers take it, and the values that a model may leave out.

    Where that can't be written, the model reads the schema as words.
    """
    try:
        moved = encode_value(schema).replace(b'"#/definitions/', b'"#/$defs/')  # the older place
        given = _as_dict(decode_value(moved))
        given["$defs"] = {**_as_dict(given.pop("definitions", None)), **_as_dict(given.get("$defs"))}
        portable, nulls = _write_portable(given)
    except Exception:  # a schema of any form
        return {"type": "object", "description": f"It must match this JSON schema: {_json(schema)}"}, None
    return _in_order(portable), nulls


def read_context(function: Callable[..., Any], label: str) -> tuple[str | None, object]:
    """The parameter of `function` that gets the context, and the type of the dependencies that it wants."""
    names = _names_for(function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.annotation is not parameter.empty and parameter.kind not in _VARIADIC:
            hint = _read_parameter(parameter, label, names).hint
            if _is_context(hint):
                return parameter.name, deps_type(hint)
    return None, None


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    hint: Any
    default: Any

    @property
    def info(self) -> FieldInfo:
        if self.default is inspect.Parameter.empty:
            return FieldInfo.from_annotation(self.hint)
        return FieldInfo.from_annotated_attribute(self.hint, self.default)

    @property
    def alias(self) -> str:
        alias = self.info.validation_alias
        return alias if isinstance(alias, str) else self.name


def _read_parameter(parameter: inspect.Parameter, label: str, names: dict[str, Any]) -> _Parameter:
    if parameter.kind in _VARIADIC:
        raise ToolInvalid(label, str(parameter).partition(":")[0], "a model can't fill it in; name each parameter")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise ToolInvalid(label, parameter.name, "it is positional-only; arguments are given by name")
    if parameter.annotation is parameter.empty:
        hint = "; make a tool of the bound method instead" if parameter.name in {"self", "cls"} else ""
        raise ToolInvalid(label, parameter.name, f"it has no annotation{hint}")
    # One by one, so that an error names its parameter, and the return type need not exist at run time.
    try:
        resolved = _resolve_hint(parameter.annotation, names)
    except Exception as error:
        reason = f"its annotation {parameter.annotation!r:.120} can't be resolved: {_first_line(error)}"
        fix = "; import or define it at the top of the module, not under TYPE_CHECKING" * isinstance(error, NameError)
        raise ToolInvalid(label, parameter.name, reason + fix) from error
    return _Parameter(parameter.name, resolved, parameter.default)


def _names_for(function: Callable[..., Any]) -> dict[str, Any]:
    names = {"Context": Context, "hf": holdfast, "holdfast": holdfast}
    return names | getattr(inspect.unwrap(inner_function(function)), "__globals__", {})


def _resolve_hint(annotation: Any, names: dict[str, Any]) -> Any:  # annotations are of any type
    holder = types.SimpleNamespace(__annotations__={"hint": annotation})
    return get_type_hints(holder, names, include_extras=True)["hint"]


def _is_context(hint: object) -> bool:
    origin = get_origin(hint)
    if origin is Annotated:
        return _is_context(get_args(hint)[0])
    if origin is Union or origin is types.UnionType:
        kinds = [kind for kind in get_args(hint) if kind is not types.NoneType]
        return len(kinds) == 1 and _is_context(kinds[0])
    kind = origin or hint
    return isinstance(kind, type) and issubclass(kind, Context)


def _text_in(hint: object) -> str:
    """The text in ``Annotated[T, "text"]``."""
    notes: tuple[object, ...] = getattr(hint, "__metadata__", ())
    return next((note for note in notes if isinstance(note, str)), "")


def _build_model(
    label: str, parameters: Sequence[_Parameter], descriptions: Mapping[str, str]
) -> tuple[type[BaseModel], dict[str, Any]]:
    # Neutral field names with aliases: a parameter may be called `json` or `_x`, which pydantic reserves.
    fields: dict[str, Any] = {}
    aliases: set[str] = set()
    for n, parameter in enumerate(parameters):
        alias = parameter.alias
        if alias in aliases:
            raise ToolInvalid(label, parameter.name, f"another parameter is shown as {alias!r} too")
        aliases.add(alias)
        description = parameter.info.description or _text_in(parameter.hint) or descriptions.get(parameter.name) or None
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[f"p{n}"] = (Annotated[parameter.hint, Field(alias=alias, description=description)], default)
    model = create_model(label, __config__=ConfigDict(extra="forbid"), **fields)
    return model, model.model_json_schema(schema_generator=_SchemaGenerator)


class _SchemaGenerator(GenerateJsonSchema):
    # A default without a JSON form stays inside the function: the schema leaves it out.
    ignored_warning_kinds: ClassVar[set[Any]] = {"skipped-choice", "non-serializable-default"}  # pyright: ignore[reportIncompatibleVariableOverride]

    def get_title_from_name(self, name: str) -> str:
        return name  # all that says which place of a NamedTuple is which field

    def field_title_should_be_set(self, schema: object) -> bool:
        return True

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        # Pydantic takes a number or the same as text: the model sees the number.
        made = super().decimal_schema(schema)
        return next((one for one in made.get("anyOf", ()) if one.get("type") == "number"), made)


def _first_line(error: Exception) -> str:
    return shorten((str(error).strip().splitlines() or [type(error).__name__])[0], 300)


# ---- portable schemas: only keywords that every provider accepts ----

MAX_NODES: Final = 2_000
"""Largest number of nodes in a schema once its references are expanded."""
MAX_EXPANDED: Final = 60
"""Largest number of nodes for which a recursive type is written out more than once inside itself."""
_DEPTHS: Final = (3, 2, 1)
"""Numbers of times to expand a recursive type inside itself, largest first; its size decides."""
_ANY_VALUE: Final = "Any JSON value."
_SCALARS: Final[dict[type, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_HANDLED_KEYWORDS: Final = frozenset(
    (
        *("title", "description", "default", "$defs", "deprecated", "readOnly", "writeOnly", "discriminator"),
        *("type", "properties", "required", "additionalProperties", "patternProperties", "items", "prefixItems"),
        *("const", "enum"),
    )
)
"""Keywords that need no sentence in the description: others express them, or the model need not know them."""
_SENTENCES: Final = {
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
_LONGEST_SENTENCE: Final = 200
_REFERENCE: Final = "#/$defs/"
_PROPERTY_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


class _NotPortable(Exception):
    """A part of a schema that some provider does not accept; `path` is its place."""

    def __init__(self, reason: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason


class Nulls(msgspec.Struct, eq=False):
    """Properties that the model may leave out: the function's types require null there."""

    names: list[str] = []
    inside: dict[str, Nulls] = {}
    """By property; ``*`` is for the values of a map, ``[]`` for the items of a list."""

    def fill(self, value: object) -> object:
        if isinstance(value, list):
            inner = self.inside.get("[]")
            return [inner.fill(item) for item in cast("list[object]", value)] if inner else cast("object", value)
        if not isinstance(value, dict):
            return value
        filled = cast("dict[str, object]", dict.fromkeys(self.names))
        for name, item in cast("dict[str, object]", value).items():
            inner = self.inside.get(name) or self.inside.get("*")
            filled[name] = inner.fill(item) if inner else item
        return filled


_Written: TypeAlias = tuple[dict[str, Any], "Nulls | None", bool]
"""One node: its schema, the nulls in it, and True if it may be null."""


class _Scope(NamedTuple):
    """The surroundings of a node."""

    definitions: tuple[str, ...] = ()
    """Definitions around it, outermost first."""
    states_nulls: bool = False
    """The schema names null where it is possible: in a value that may be of several types, nulls can't be filled in."""


def _write_portable(schema: dict[str, Any]) -> tuple[dict[str, Any], Nulls | None]:
    """Rewrite a schema. Recursive types are written out to the greatest depth that keeps the schema small."""
    definitions = _as_dict(schema.get("$defs"))
    recursive = _recursive_definitions(definitions)
    for depth in (*_DEPTHS, 0) if recursive else (0,):
        writer = _PortableWriter(definitions, recursive, depth, MAX_EXPANDED if depth > 1 else MAX_NODES)
        try:
            return writer.write(schema, _Scope())[:2]
        except _TooLarge:
            continue
    raise _NotPortable(f"its schema has more than {MAX_NODES:,} places; use a smaller type")


def _recursive_definitions(definitions: dict[str, Any]) -> frozenset[str]:
    """The definitions that contain themselves, directly or through others."""
    named = {name: set(_references(node)) for name, node in definitions.items()}
    for middle, beyond in named.items():
        for inner in named.values():
            if middle in inner:
                inner.update(beyond)
    return frozenset(name for name, inner in named.items() if name in inner)


def _references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        target = cast("dict[str, object]", node).get("$ref")
        if isinstance(target, str):
            yield target.removeprefix(_REFERENCE)
    if isinstance(node, dict | list):
        parts = cast("dict[str, object]", node).values() if isinstance(node, dict) else cast("list[object]", node)
        for part in parts:
            yield from _references(part)


class _TooLarge(Exception):
    """The schema has more nodes than its writer may write."""


class _PortableWriter:
    """Rewrites one schema: expands references, joins unions, turns other keywords into sentences of the description.

    `depth`: how often a recursive definition is written out inside itself; 0: once in the whole schema.
    """

    def __init__(self, definitions: dict[str, Any], recursive: frozenset[str], depth: int, most: int) -> None:
        self._definitions = definitions
        self._recursive = recursive
        self._depth = depth
        self._most = most
        self._nodes = 0
        self._written: set[str] = set()
        self._nulls: dict[tuple[str, bool], Nulls] = {}
        """The nulls of each recursive definition; those inside itself are the same object."""

    def write(self, schema: object, scope: _Scope) -> _Written:
        self._nodes += 1
        if self._nodes > self._most:
            raise _TooLarge
        node, targets = self._expand(_as_dict(schema))
        recursive = [target for target in targets if target in self._recursive]
        if any(self._is_cut(target, scope) for target in recursive):
            return self._write_cut(node, recursive[-1], scope)
        self._written.update(recursive)
        written = self._write_expanded(node, scope._replace(definitions=(*scope.definitions, *targets)))
        for target in recursive:
            made = self._nulls.setdefault((target, scope.states_nulls), Nulls())
            if written[1] is not None and written[1] is not made:
                made.names, made.inside = written[1].names, written[1].inside
        return written

    def _is_cut(self, target: str, scope: _Scope) -> bool:
        return target in self._written if self._depth == 0 else scope.definitions.count(target) >= self._depth

    def _write_cut(self, node: dict[str, Any], target: str, scope: _Scope) -> _Written:
        """Words instead of one more definition inside itself."""
        made: dict[str, Any] = {"type": node["type"]} if node.get("type") in {"object", "array"} else {}
        if made.get("type") == "array":
            made["items"] = {"description": _ANY_VALUE}
        title = _as_dict(self._definitions[target]).get("title") or target
        words = f"Another {title}, of the same form as the one described before."
        bare = {key: value for key, value in node.items() if key in {"description", "default"}}
        return _describe(made, bare, [words]), self._nulls.setdefault((target, scope.states_nulls), Nulls()), False

    def _write_expanded(self, node: dict[str, Any], scope: _Scope) -> _Written:
        kinds = node.get("type")
        choices = _split_choices(node)
        if isinstance(kinds, list):
            bare = {key: value for key, value in node.items() if key not in {"description", "default"}}
            node = {**node, "anyOf": [{**bare, "type": kind} for kind in cast("list[str]", kinds)]}
        elif len(choices) > 1:
            node = {**node, "anyOf": choices}
        for union in ("anyOf", "oneOf"):
            if union in node:
                return self._write_union(node, node[union], scope)
        if _is_null(node):
            raise _NotPortable("it can only be null")
        return self._write_plain(node, scope)

    def _expand(self, node: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The node that a reference leads to, and the definitions on the way."""
        expanded: list[str] = []
        while "$ref" in node or "allOf" in node:
            target = str(node.get("$ref", "")).removeprefix(_REFERENCE)
            rest = {key: value for key, value in node.items() if key not in {"$ref", "allOf"}}
            if "allOf" in node:
                parts = cast("list[Any]", node["allOf"])
                if len(parts) != 1 or target:
                    raise _NotPortable("it must match several schemas at once, which not every provider takes")
                node = {**_as_dict(parts[0]), **rest}
                continue
            if target in expanded:
                raise _NotPortable(f"{target} contains nothing but itself")
            if target not in self._definitions:
                raise _NotPortable(f"its schema refers to {target!r}, which is not there")
            node = {**_as_dict(self._definitions[target]), **rest}
            expanded.append(target)
        return node, expanded

    def _write_union(self, node: dict[str, Any], members: list[Any], scope: _Scope) -> _Written:
        others = [member for member in members if not _is_null(_as_dict(member))]
        written = [self.write(member, scope) for member in others]
        if not written:
            raise _NotPortable("it can only be null")
        nullable = len(written) < len(members) or any(null for _, _, null in written)
        nulls = written[0][1] if len(written) == 1 else None
        joined = _join_schemas([schema for schema, _, _ in written])
        if joined is None:
            if any(inner for _, inner, _ in written):
                stated = scope._replace(states_nulls=True)
                written = [self.write(member, stated) for member in others]
            joined = _choice([schema for schema, _, _ in written])
        return _describe(joined, node, []), nulls, nullable

    def _write_plain(self, node: dict[str, Any], scope: _Scope) -> _Written:
        choices = [node["const"]] if "const" in node else node.get("enum")
        kind = node.get("type") or _type_of_choices(choices)
        if not isinstance(kind, str):
            return _describe({}, node, [_ANY_VALUE]), None, False
        made: dict[str, Any] = {"type": kind}
        sentences: list[str] = []
        if choices is not None and kind == "string" and all(choices):
            made["enum"] = choices
        elif choices is not None:  # providers accept an enum of non-empty strings; other choices become a sentence
            sentences.append(f"One of {_json(choices)}." if len(choices) > 1 else f"Always {_json(choices[0])}.")
            if kind in {"integer", "number"}:
                made |= {"minimum": min(choices), "maximum": max(choices)}
        nulls = Nulls()
        if kind == "array":
            made["items"] = self._write_items(node, scope, nulls, sentences)
        elif kind == "object" and (node.get("properties") or node.get("additionalProperties") is False):
            self._add_properties(node, made, scope, nulls)
        elif kind == "object":
            values = node.get("additionalProperties")
            patterns = _as_dict(node.get("patternProperties"))
            if len(patterns) == 1 and not isinstance(values, dict):
                ((pattern, values),) = patterns.items()
                sentences.append(f"Names match {pattern}.")
            if isinstance(values, dict) and values:
                made["additionalProperties"], _ = self._write_child("*", cast("object", values), scope, nulls)
        for key, value in node.items():
            _add_bound(key, value, made, sentences)
        return _describe(made, node, sentences), nulls if nulls.names or nulls.inside else None, False

    def _write_items(self, node: dict[str, Any], scope: _Scope, nulls: Nulls, sentences: list[str]) -> dict[str, Any]:
        members = cast("list[Any]", node.get("prefixItems", []))
        rest = node.get("items")
        if not members or (not rest and all(member == members[0] for member in members)):
            return self._write_child("[]", members[0] if members else _as_dict(rest), scope, nulls)[0]
        # No provider takes a schema for each place of a list: all places get all types, and words say the order.
        labels = [self._label(_as_dict(member)) for member in members]
        labels += [f"then any number of {self._label(_as_dict(rest))}"] if rest else []
        sentences.append(f"In order: {', '.join(labels)}.")
        places = [{key: value for key, value in _as_dict(member).items() if key != "title"} for member in members]
        choice = {"anyOf": [*places, *([rest] if rest else [])]}
        made, nullable = self._write_child("[]", choice, scope._replace(states_nulls=True), nulls)
        return _or_null(made) if nullable else made

    def _label(self, node: dict[str, Any]) -> str:
        """A place of a tuple in a few words: its name in a NamedTuple, and its type."""
        own = node.get("title")
        node, targets = self._expand({key: value for key, value in node.items() if key != "title"})
        members = [_as_dict(member) for union in ("anyOf", "oneOf") for member in node.get(union, ())]
        choices = [node["const"]] if "const" in node else node.get("enum")
        if members:
            label = " or ".join(dict.fromkeys(map(self._label, members)))
        elif isinstance(choices, list):
            label = " or ".join(map(_json, cast("list[object]", choices)))
        else:
            label = str((targets and node.get("title")) or node.get("type") or "any value")
        return f"{own} ({label})" if own else label

    def _add_properties(self, node: dict[str, Any], made: dict[str, Any], scope: _Scope, nulls: Nulls) -> None:
        properties = _as_dict(node.get("properties"))
        required = set(cast("list[str]", node.get("required", [])))
        made["properties"] = {}
        for name, schema in properties.items():
            if not _PROPERTY_NAME.fullmatch(name):
                reason = "a name that models are given is 1 to 64 of a-z, A-Z, 0-9, '_', '.' and '-'"
                raise _NotPortable(reason, (name,))
            part, nullable = self._write_child(name, schema, scope, nulls)
            stated = nullable and name in required and scope.states_nulls
            made["properties"][name] = _or_null(part) if stated else part
            if nullable and name in required and not stated:
                nulls.names.append(name)
        still_required = [name for name in properties if name in required and name not in nulls.names]
        if still_required:
            made["required"] = still_required
        made["additionalProperties"] = False

    def _write_child(self, name: str, schema: object, scope: _Scope, nulls: Nulls) -> tuple[dict[str, Any], bool]:
        """Write a part of a node, and add the nulls in it to `nulls`; the second value is True if it may be null."""
        try:
            made, within, nullable = self.write(schema, scope)
        except _NotPortable as error:
            raise _NotPortable(error.reason, (name, *error.path)) from None
        if within:
            nulls.inside[name] = within
        return made, nullable


def _add_bound(key: str, value: Any, made: dict[str, Any], sentences: list[str]) -> None:  # any JSON value
    """Turn one keyword into itself, an equivalent keyword, or a sentence."""
    whole = made["type"] == "integer" and type(value) is int
    portable = key in {"minimum", "maximum", "minItems", "maxItems"}
    if portable or (key == "format" and value in ("date-time", "date", "time")):
        made[key] = value
    elif key == "exclusiveMinimum" and whole:
        made["minimum"] = value + 1
    elif key == "exclusiveMaximum" and whole:
        made["maximum"] = value - 1
    elif key == "uniqueItems":
        sentences.append("No item twice." if value else "")
    elif key not in _HANDLED_KEYWORDS:
        text = value if isinstance(value, str) else _json(value)
        sentences.append(_SENTENCES.get(key, f"{key}: {{}}.").format(text))


def _describe(made: dict[str, Any], node: dict[str, Any], sentences: list[str]) -> dict[str, Any]:
    """`made` with its description: the author's words, then the sentences for keywords that are not portable."""
    default = _json(node.get("default"))
    if default != "null":
        sentences = [*sentences, f"Default: {default}."]
    first = str(node.get("description", "")).strip() or str(made.get("description", "")).strip()
    text = " ".join(part for part in [first, *(s for s in sentences if len(s) <= _LONGEST_SENTENCE)] if part)
    bare = {key: value for key, value in made.items() if key != "description"}
    return {**bare, "description": text} if text else bare


def _type_of_choices(choices: object) -> str | None:
    if not isinstance(choices, list) or not choices:
        return None
    kinds = {_SCALARS.get(type(choice)) for choice in cast("list[object]", choices)}
    return "number" if kinds == {"integer", "number"} else kinds.pop() if len(kinds) == 1 else None


def _split_choices(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Choices of several types as a schema for each type, in the order of their first choices."""
    choices = node.get("enum")
    if not isinstance(choices, list) or "type" in node:
        return []
    groups: dict[str | None, list[object]] = {}
    for choice in cast("list[object]", choices):
        kind = "null" if choice is None else _SCALARS.get(type(choice))
        groups.setdefault("number" if kind == "integer" and "number" in groups else kind, []).append(choice)
    if "number" in groups and "integer" in groups:
        groups["number"] = [*groups.pop("integer"), *groups["number"]]
    return [{"type": kind} if kind == "null" else {"enum": group} for kind, group in groups.items()]


def _is_null(node: dict[str, Any]) -> bool:
    return node.get("type") == "null" or node.get("const", ...) is None


def _as_dict(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


# ---- unions: one schema for all members if there is one, otherwise a choice ----


def _join_schemas(schemas: list[dict[str, Any]]) -> dict[str, Any] | None:
    """One schema without a choice that covers all members of a union; None if there is none."""
    distinct = _distinct(schemas)
    if len(distinct) == 1:
        return distinct[0]
    if any(not schema.keys() & {"type", "anyOf"} for schema in distinct):
        return {"description": _ANY_VALUE}
    kinds = {str(schema.get("type")) for schema in distinct}
    if kinds == {"integer", "number"}:
        # Every integer is a number, but the bounds of the two can't be combined.
        bounded = not _has_unbounded([schema for schema in distinct if schema["type"] == "number"])
        return None if bounded else {"type": "number"}
    if len(kinds) == 1 and kinds <= set(_SCALARS.values()):
        return _join_scalars(kinds.pop(), distinct)
    # `T | list[T]` is a list: one value is a list of one.
    lists = [schema for schema in distinct if schema.get("type") == "array"]
    others = [schema for schema in distinct if schema.get("type") != "array"]
    return lists[0] if len(lists) == 1 and others and lists[0]["items"] == _join_schemas(others) else None


def _choice(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    flat = [member for schema in schemas for member in (schema["anyOf"] if schema.keys() == {"anyOf"} else [schema])]
    return {"anyOf": _distinct(flat)}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that also takes null; one without a type does so anyway."""
    if not schema.keys() & {"type", "anyOf"}:
        return schema
    bare = {key: value for key, value in schema.items() if key != "description"}
    return _describe(_choice([bare, {"type": "null"}]), {"description": schema.get("description", "")}, [])


def _join_scalars(kind: str, schemas: list[dict[str, Any]]) -> dict[str, Any]:
    if _has_unbounded(schemas):
        return {"type": kind}
    if all("enum" in schema for schema in schemas):
        return {"type": kind, "enum": _distinct([choice for schema in schemas for choice in schema["enum"]])}
    ways: list[str] = []
    for schema in schemas:
        description = str(schema.get("description", "")).rstrip(".")
        rest = [f"{key} {value}" for key, value in schema.items() if key not in {"type", "description"}]
        ways.append(", ".join([*([description] if description else []), *rest]))
    return {"type": kind, "description": f"One of: {'; '.join(ways)}."}


def _has_unbounded(schemas: list[dict[str, Any]]) -> bool:
    return any(schema.keys() <= {"type"} for schema in schemas)


def _distinct(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if not any(type(value) is type(other) and value == other for other in found):
            found.append(value)
    return found


# ---- objects and lists that a model sends as text ----

_STRUCTURES: Final[dict[str, type]] = {"object": dict, "array": list}


def _parse_texts(value: object, schemas: Sequence[object], definitions: dict[str, Any]) -> object:
    """`value` with JSON texts parsed where a schema takes an object or a list, and none of them takes a text."""
    members = [member for schema in schemas for member in _members(_as_dict(schema), definitions)]
    if isinstance(value, str):
        wanted = tuple(_STRUCTURES[kind] for kind in _STRUCTURES if any(kind in _kinds(member) for member in members))
        if not wanted or any(not _kinds(member) or "string" in _kinds(member) for member in members):
            return value
        try:
            parsed: object = msgspec.json.decode(value)
        except (ValueError, RecursionError):
            return value
        if type(parsed) not in wanted:
            return value
        value = parsed
    if isinstance(value, dict):
        given = cast("dict[str, object]", value)
        members = _matching_members(given, members)
        return {name: _parse_texts(item, _parts(members, name), definitions) for name, item in given.items()}
    if isinstance(value, list):
        items = cast("list[object]", value)
        return [_parse_texts(item, _parts(members, place), definitions) for place, item in enumerate(items)]
    return value


def _members(node: dict[str, Any], definitions: dict[str, Any], seen: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The members of a union, with the references to them followed; of any other node, the node."""
    target = node.get("$ref")
    if isinstance(target, str):
        name = target.removeprefix(_REFERENCE)
        return [] if name in seen else _members(_as_dict(definitions.get(name)), definitions, (*seen, name))
    inner = [member for union in ("anyOf", "oneOf", "allOf") for member in node.get(union, ())]
    return [one for member in inner for one in _members(_as_dict(member), definitions, seen)] if inner else [node]


def _kinds(node: dict[str, Any]) -> set[str]:
    """The types that a node without members names; empty if it takes any value."""
    kinds = node.get("type")
    named = cast("list[str]", kinds) if isinstance(kinds, list) else [kinds] if isinstance(kinds, str) else []
    choices = cast("list[object]", [node["const"]] if "const" in node else node.get("enum", []))
    return {*named} or {_SCALARS.get(type(choice), "null") for choice in choices}


def _matching_members(value: dict[str, Any], members: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The members of a union that an object may be of, by their constants; all of them if none fits."""
    fitting: list[dict[str, Any]] = []
    for member in members:
        constants = {
            name: [part["const"]] if "const" in part else part.get("enum")
            for name, part in _as_dict(member.get("properties")).items()
        }
        if all(not choices or name not in value or value[name] in choices for name, choices in constants.items()):
            fitting.append(member)
    return fitting or members


def _parts(members: Sequence[dict[str, Any]], step: int | str) -> list[Any]:
    """The schemas of a property, or of a place in a list, in each of several schemas."""
    found: list[Any] = []
    for member in members:
        if isinstance(step, int):
            places = member.get("prefixItems", ())
            found.append(places[step] if step < len(places) else member.get("items"))
        else:
            found.append(_as_dict(member.get("properties")).get(step, member.get("additionalProperties")))
    return [part for part in found if isinstance(part, dict)]


# ---- errors in the arguments, for the model ----

_MAX_PROBLEMS: Final = 8
_PROBLEMS_LENGTH: Final = MAX_TEXT - 400
"""Characters for the problems; the rest of `MAX_TEXT` is for the words around them."""
_LONGEST_VALUE: Final = 80
_LONGEST_EXPECTED: Final = 400


def _describe_problems(details: Sequence[ErrorDetails], arguments: dict[str, Any], schema: dict[str, Any]) -> str:
    """Each problem on a line: its place, the error, the value and the expected schema."""
    lines = list(dict.fromkeys(_describe_problem(detail, arguments, schema) for detail in details))
    shown = lines[:_MAX_PROBLEMS]
    more = [f"- and {len(lines) - _MAX_PROBLEMS:,} more"] if len(lines) > _MAX_PROBLEMS else []
    return "\n".join([*(shorten(line, _PROBLEMS_LENGTH // len(shown)) for line in shown), *more])


def _describe_problem(detail: ErrorDetails, arguments: dict[str, Any], schema: dict[str, Any]) -> str:
    path, steps = _path(detail["loc"], arguments)
    where = shorten(path, _LONGEST_VALUE)
    if detail["type"] == "extra_forbidden":
        known = _subschema(schema, steps[:-1], arguments).get("properties", {})
        there = f"there are: {', '.join(known)}" if known else "it takes none" if len(steps) < 2 else "leave it out"
        return f"- {where}: there is no such argument; {there}"
    wanted = _subschema(schema, steps, arguments) if steps else {}
    bare = {key: value for key, value in wanted.items() if key != "description"}
    expected = shorten(_json_or_repr(bare), _LONGEST_EXPECTED) if bare else ""
    if detail["type"] == "missing":
        return f"- {where}: it is missing{f' (expected {expected})' if expected else ''}"
    given = shorten(_json_or_repr(detail["input"]), _LONGEST_VALUE)
    known = f"got {given}; expected {expected}" if expected else f"got {given}"
    return f"- {where}: {shorten(detail['msg'], _LONGEST_EXPECTED)} ({known})"


def _path(place: tuple[int | str, ...], arguments: object) -> tuple[str, list[int | str]]:
    """The place in the arguments, without the names that pydantic gives to the members of a union."""
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


def _subschema(schema: dict[str, Any], steps: Sequence[int | str], arguments: dict[str, Any]) -> dict[str, Any]:
    """The schema at a place in the arguments; of a union, the members that the value there may be of."""
    here, value = [schema], cast("object", arguments)
    for step in steps:
        members = [member for node in here for member in _members(node, {})]
        if isinstance(value, dict):
            given = cast("dict[str, Any]", value)
            constant = any({"const", "enum"} & part.keys() for part in _parts(members, step))
            members, value = members if constant else _matching_members(given, members), given.get(str(step))
        elif isinstance(value, list) and isinstance(step, int):
            value = cast("list[object]", value)[step] if step < len(cast("list[object]", value)) else None
        here = _distinct(_parts(members, step))
    return here[0] if len(here) == 1 else _choice(here) if here else {}


def _json_or_repr(value: object) -> str:
    try:
        return _json(value)
    except (TypeError, ValueError):
        return shorten(repr(value), _LONGEST_EXPECTED)


# ---- results from outside, against the return annotation ----

_LONGEST_COMPLAINT: Final = 600


def check_result(function: Callable[..., Any], body: bytes) -> str | None:
    """Check the JSON in `body` as a result of `function`; None if it fits, or `function` declares no type."""
    read = _result_reader(function)
    if read is None:
        return None
    try:
        read(body)
    except ValidationError as error:
        first, *rest = error.errors(include_url=False, include_context=False, include_input=False)
        place = ".".join(map(str, first["loc"]))
        more = f" (and {len(rest):,} more)" if rest else ""
        return shorten(f"{place}: {first['msg']}{more}" if place else f"{first['msg']}{more}", _LONGEST_COMPLAINT)
    except Exception as error:  # a validator of the user's own types may raise anything
        return shorten(describe_error(error), _LONGEST_COMPLAINT)
    return None


def has_result_type(function: Callable[..., Any]) -> bool:
    """True if the function declares a return type that JSON can be checked against."""
    return _result_reader(function) is not None


@lru_cache(maxsize=1024)
def _result_reader(function: Callable[..., Any]) -> Callable[[bytes], object] | None:
    try:
        annotation = inspect.signature(function).return_annotation
        if annotation is inspect.Signature.empty:
            return None
        wanted = _result_type(_resolve_hint(annotation, _names_for(function)))
    except Exception:  # a return type need not exist at run time
        return None
    try:
        # Strict: the result is recorded as it came, so nothing is converted.
        return partial(TypeAdapter(wanted).validate_json, strict=True)
    except Exception:  # a struct, or a type without any JSON form
        if not (isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)):
            return None
    return msgspec.json.Decoder(wanted).decode


def _result_type(hint: Any) -> Any:  # annotations are of any type
    """The type of the result in ``T``, ``Deferred[T]`` or ``T | Deferred[T]``."""
    origin = get_origin(hint)
    if hint is Deferred:
        return Any
    if origin is Deferred:
        return get_args(hint)[0]
    if origin is Annotated:
        return _result_type(get_args(hint)[0])
    if origin is Union or origin is types.UnionType:
        others = [kind for kind in get_args(hint) if kind is not Deferred and get_origin(kind) is not Deferred]
        inner = [_result_type(kind) for kind in get_args(hint) if kind is Deferred or get_origin(kind) is Deferred]
        kinds = [*others, *(kind for kind in inner if kind is not Any)]
        return Union[tuple(kinds)] if kinds else Any  # noqa: UP007  the members are known only here
    return hint
