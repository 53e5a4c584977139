"""What a function accepts: the JSON schema of its parameters, and the check of what a model sent.

This module loads pydantic, so it is imported when the first tool is made, and not before.
"""

from __future__ import annotations

import inspect
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

import holdfast
from holdfast.effects.values import encode_value
from holdfast.errors import InvalidValue, ToolInvalid
from holdfast.tools.context import Context
from holdfast.tools.results import MAX_TEXT, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic_core import ErrorDetails

MAX_PROBLEMS: Final = 8
"""How many problems with its arguments a model is told at once."""

_ROOM: Final = MAX_TEXT - 400  # for the problems; the rest is for the words around them
_SHOWN: Final = 80
_EXPECTED: Final = 400
_ORDER: Final = ("type", "properties", "required", "additionalProperties")
# Schemas by name, a list of schemas, or one schema; everything else in a schema is data and stays as it is.
_NAMED: Final = frozenset(("properties", "$defs", "patternProperties", "dependentSchemas"))
_LISTED: Final = frozenset(("anyOf", "allOf", "oneOf", "prefixItems"))
_SINGLE: Final = frozenset(("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"))


class _Schema(GenerateJsonSchema):
    # A default that has no JSON form is a matter between the function and itself: the schema leaves it out.
    ignored_warning_kinds: ClassVar[set[Any]] = {"skipped-choice", "non-serializable-default"}  # pyright: ignore[reportIncompatibleVariableOverride]


@dataclass(frozen=True, slots=True)
class Accepts:
    """What a function takes: the schema for the model, and the way from JSON to its types."""

    parameters: dict[str, Any]
    context: str | None
    """The parameter that gets the context."""
    shape: type[BaseModel]
    fields: tuple[tuple[str, str], ...]
    """Each field of `shape` with the parameter it stands for."""

    def read(self, arguments: dict[str, Any]) -> dict[str, Any] | str:
        """What to call the function with, or what is wrong with the arguments."""
        try:
            found: BaseModel = self.shape.__pydantic_validator__.validate_json(encode_value(arguments))
        except ValidationError as error:
            return _problems(error, arguments, self.parameters)
        except InvalidValue as error:
            return f"- {error}"
        except Exception as error:  # noqa: BLE001  a validator of the user's own types may raise anything
            return shorten(f"- they could not be checked: {type(error).__name__}: {error}", _ROOM)
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
    fields = tuple((_field(n), parameter.name) for n, parameter in enumerate(asked))
    return Accepts(_tidy(schema), contexts[0] if contexts else None, shape, fields)


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


# ---- from the signature to a schema ----------------------------------------------------------------------------------


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
        known = _known(parameter)
        alias = known.validation_alias if isinstance(known.validation_alias, str) else parameter.name
        if alias in shown:
            raise ToolInvalid(label, parameter.name, f"another parameter is shown as {alias!r} too")
        shown.add(alias)
        description = known.description or described.get(parameter.name) or None
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[_field(n)] = (Annotated[parameter.hint, Field(alias=alias, description=description)], default)
    shape = create_model(label, __config__=ConfigDict(extra="forbid"), **fields)
    return shape, shape.model_json_schema(schema_generator=_Schema)


def _known(parameter: _Parameter) -> FieldInfo:
    if parameter.default is inspect.Parameter.empty:
        return FieldInfo.from_annotation(parameter.hint)
    return FieldInfo.from_annotated_attribute(parameter.hint, parameter.default)


def _field(n: int) -> str:
    return f"p{n}"


def _tidy(schema: dict[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = {"type": "object", "properties": {}, **_untitled(schema), "additionalProperties": False}
    first = {key: whole[key] for key in _ORDER if key in whole}
    return first | {key: whole[key] for key in sorted(whole.keys() - first.keys())}


def _untitled(schema: Any) -> Any:  # noqa: ANN401  a schema may be an object or a boolean
    if not isinstance(schema, dict):
        return schema
    items = cast("dict[str, Any]", schema).items()
    return {key: _untitled_part(key, value) for key, value in items if key != "title"}


def _untitled_part(key: str, value: Any) -> Any:  # noqa: ANN401  as above
    if key in _NAMED:
        return {name: _untitled(schema) for name, schema in value.items()}
    if key in _LISTED:
        return [_untitled(schema) for schema in value]
    return _untitled(value) if key in _SINGLE else value


def _shown_type(hint: object) -> str:
    return hint.__qualname__ if isinstance(hint, type) else shorten(repr(hint), 120)


def _first_line(error: Exception) -> str:
    return shorten((str(error).strip().splitlines() or [type(error).__name__])[0], 300)


# ---- what is wrong, for the model ------------------------------------------------------------------------------------


def _problems(error: ValidationError, arguments: dict[str, Any], schema: dict[str, Any]) -> str:
    details = error.errors(include_url=False, include_context=False)
    lines = list(dict.fromkeys(_problem(detail, arguments, schema) for detail in details))
    told = lines[:MAX_PROBLEMS]
    room = _ROOM // len(told)
    more = [f"- and {len(lines) - MAX_PROBLEMS:,} more"] if len(lines) > MAX_PROBLEMS else []
    return "\n".join([*(shorten(line, room) for line in told), *more])


def _problem(detail: ErrorDetails, arguments: dict[str, Any], schema: dict[str, Any]) -> str:
    place, properties = detail["loc"], schema["properties"]
    where = shorten(_path(place, arguments), _SHOWN)
    kind = detail["type"]
    if kind == "extra_forbidden" and len(place) == 1:
        there = f"there are: {', '.join(properties)}" if properties else "it takes none"
        return f"- {where}: there is no such argument; {there}"
    expected = _expected(properties.get(place[0]) if place else None, schema)
    if kind == "missing":
        return f"- {where}: it is missing{f' (expected {expected})' if expected else ''}"
    given = shorten(_as_json(detail["input"]), _SHOWN)
    known = f"got {given}; expected {expected}" if expected else f"got {given}"
    return f"- {where}: {shorten(detail['msg'], _EXPECTED)} ({known})"


def _path(place: tuple[int | str, ...], arguments: object) -> str:
    """Where in the arguments, without the names that pydantic gives to the members of a union."""
    path, value = "", arguments
    for n, step in enumerate(place):
        if isinstance(value, dict) and isinstance(step, str):
            inside = cast("dict[str, Any]", value)
            if step not in inside and n + 1 < len(place):
                continue
            value, path = inside.get(step), f"{path}.{step}" if path else step
        elif isinstance(value, list) and isinstance(step, int):
            items = cast("list[Any]", value)
            value, path = items[step] if step < len(items) else None, f"{path}[{step}]"
    return path or "arguments"


def _expected(wanted: dict[str, Any] | None, schema: dict[str, Any]) -> str:
    if wanted is None:
        return ""
    target = str(wanted.get("$ref", "")).removeprefix("#/$defs/")
    resolved = schema.get("$defs", {}).get(target, wanted)
    bare = {key: value for key, value in resolved.items() if key not in {"description", "default"}}
    return shorten(_as_json(bare), _EXPECTED) if bare else "any value"


def _as_json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return repr(value)
