"""The parameters of a tool as a JSON schema that the host wrote or a provider listed, and the check of arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, cast

from holdfast.effects.canonical import decode_value, encode_value
from holdfast.errors import InvalidValue, ToolInvalid, UsageError
from holdfast.tools.results import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.tools.schema import Nulls


class _Validator(Protocol):
    """What `jsonschema_rs.validator_for` makes."""

    def iter_errors(self, instance: Any, /) -> Iterable[Any]: ...


_MAX_PROBLEMS: Final = 10
_MAX_PROBLEM: Final = 300


@dataclass(frozen=True, slots=True)
class JsonParameters:
    """Parameters given as a JSON schema."""

    parameters: dict[str, Any]
    context: str | None
    """The parameter of the function that gets the context."""
    whole: str | None = None
    """The parameter that gets all arguments as one object; None: each goes to the parameter of its name."""
    deps: object = None
    """The type of the dependencies that the context must have; None: any."""
    whole_schema: dict[str, Any] = field(kw_only=True, repr=False)
    """The schema as it was given; models get the part that every provider takes."""
    nulls: Nulls | None = field(kw_only=True, repr=False, compare=False)
    """Values that a model may leave out although the schema requires them: they become null."""
    validator: _Validator = field(kw_only=True, repr=False, compare=False)

    def read(self, arguments: dict[str, Any]) -> dict[str, Any] | str:
        """The keyword arguments for the function, or a text about the errors in `arguments`."""
        arguments = arguments if self.nulls is None else cast("dict[str, Any]", self.nulls.fill(arguments))
        problems = self._problems(arguments)
        if problems:
            parsed = self._with_texts_parsed(arguments)
            if parsed == arguments or self._problems(parsed):
                return "\n".join(problems)
            arguments = parsed
        return arguments if self.whole is None else {self.whole: arguments}

    def resolve(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments as the function gets them; unchanged if they are not valid."""
        found = self.read(arguments)
        return arguments if isinstance(found, str) else found if self.whole is None else found[self.whole]

    def _problems(self, arguments: dict[str, Any]) -> list[str]:
        try:
            found = list(self.validator.iter_errors(arguments))
        except Exception as error:  # a value that JSON does not know
            return [f"- {shorten(str(error), _MAX_PROBLEM)}"]
        said: list[str] = []
        for error in found[:_MAX_PROBLEMS]:
            place = ".".join(map(str, error.instance_path))
            said.append(shorten(f"- {place}: {error.message}" if place else f"- {error.message}", _MAX_PROBLEM))
        return said if len(found) <= _MAX_PROBLEMS else [*said, f"- and {len(found) - _MAX_PROBLEMS} more"]

    def _with_texts_parsed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        from holdfast.tools.schema import parse_texts  # only where a model has made a mistake

        return parse_texts(arguments, self.whole_schema)


def _refuse_to_fetch(address: str) -> NoReturn:
    """A schema from outside must not make this process read files or ask servers."""
    raise ValueError(f"it refers to {address!r:.200}, and nothing outside the schema is read")


def json_parameters(
    schema: object, label: str, *, context: str | None, whole: str | None = None, deps: object = None
) -> JsonParameters:
    """The parameters of a tool by their JSON schema; `ToolInvalid` if it is none, or not that of an object."""
    try:
        import jsonschema_rs  # an extra
    except ImportError:
        raise UsageError("tools with a JSON schema need the extra 'schema': pip install 'holdfast[schema]'") from None
    if type(schema) is not dict:
        raise ToolInvalid(label, None, f"its schema is a JSON object, not a {type(schema).__name__}")
    try:
        copy = cast("dict[str, Any]", decode_value(encode_value(cast("dict[str, Any]", schema))))
        kind = copy.setdefault("type", "object")
        validator = jsonschema_rs.validator_for(copy, retriever=_refuse_to_fetch)
    except (InvalidValue, ValueError, TypeError) as error:
        reason = shorten(str(error).splitlines()[0], _MAX_PROBLEM)
        raise ToolInvalid(label, None, f"its schema is no JSON schema: {reason}") from error
    if kind != "object" or type(copy.get("properties", {})) is not dict:
        raise ToolInvalid(label, None, "its schema is not that of an object: the arguments of a call are one")
    from holdfast.tools.schema import portable_schema  # pydantic only where a tool is made

    portable, nulls = portable_schema(copy)
    return JsonParameters(portable, context, whole, deps, whole_schema=copy, nulls=nulls, validator=validator)
