"""What a function accepts: the JSON schema of its parameters, and the check of what a model sent.

This module loads pydantic, so it is imported when the first tool is made, and not before.
"""

from __future__ import annotations

import inspect
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

import holdfast
from holdfast.effects.values import encode_value
from holdfast.errors import InvalidValue, ToolInvalid
from holdfast.tools.complaints import ROOM, problems
from holdfast.tools.context import Context
from holdfast.tools.portable import Portable, portable
from holdfast.tools.results import said_by, shorten
from holdfast.tools.unions import NoForm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import core_schema

    from holdfast.tools.absent import Absent

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
