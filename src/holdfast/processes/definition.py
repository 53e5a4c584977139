"""The `@process` decorator: makes a durable function."""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar, get_args, overload

import holdfast
from holdfast.deps import deps_type
from holdfast.effects.canonical import encode_value
from holdfast.errors import InvalidValue
from holdfast.errors.caller import ProcessInvalid
from holdfast.names import check_choice, check_id, check_name
from holdfast.processes.state import OnParentEnd, Recovery
from holdfast.tools.definition import ToolRetryPolicy, parse_retry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pydantic import BaseModel

    from holdfast.processes.context import ProcessContext


P = ParamSpec("P")
R = TypeVar("R")
_MAX_PROBLEMS: Final = 5
"""Most problems with arguments that one error lists."""


@dataclass(frozen=True)
class ProcessDefinition(Generic[P, R]):
    """A durable function. Start it with ``runtime.start(function, ...)``; a direct call runs it without a journal."""

    function: Callable[..., Any]
    name: str
    version: str | None
    recovery: Recovery
    retry: ToolRetryPolicy | None
    on_parent_end: OnParentEnd

    def __call__(self, ctx: ProcessContext, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Run it with a context that the caller made."""
        return self.function(ctx, *args, **kwargs)

    def __repr__(self) -> str:
        return f"Procedure({self.name!r})"

    def stored(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Check arguments and return them as plain JSON, with defaults filled in."""
        return self._checked(self.bind(*args, **kwargs))[1]

    def values(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Decode stored arguments to the types of the parameters."""
        return self._checked(stored)[0]

    def bind(self, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Bind arguments to names; refuses unknown and missing ones. The values are not checked yet."""
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise ProcessInvalid(self.name, f"it can't be called like that: {error}") from None

    def _checked(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        from pydantic import ValidationError  # only where it is needed

        unknown = sorted(set(arguments) - set(self._signature.parameters))
        if unknown:
            raise ProcessInvalid(self.name, f"it has no parameter {unknown[0]!r}")
        try:
            found = self._shape.__pydantic_validator__.validate_json(encode_value(arguments))
            plain = found.model_dump(mode="json", by_alias=True)
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False, include_input=False)[:_MAX_PROBLEMS]
            told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in details)
            raise ProcessInvalid(self.name, f"its arguments do not fit: {told}") from None
        except InvalidValue as error:
            raise ProcessInvalid(self.name, f"its arguments have no JSON form: {error}") from None
        values = {name: getattr(found, f"p{n}") for n, name in enumerate(self._signature.parameters)}
        return values, plain

    @cached_property
    def _signature(self) -> inspect.Signature:
        signature = inspect.signature(self.function)
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    @cached_property
    def deps(self) -> object:
        """The type of dependencies that the function needs in its context; None: any."""
        hint = next(iter(inspect.signature(self.function).parameters.values())).annotation
        if hint is inspect.Parameter.empty or (isinstance(hint, str) and "[" not in hint):
            return None
        return deps_type(self._resolve({"context": hint})["context"])

    @cached_property
    def _shape(self) -> type[BaseModel]:
        from pydantic import ConfigDict, Field, PydanticUserError, create_model

        fields: dict[str, Any] = {}
        for n, (name, parameter) in enumerate(self._signature.parameters.items()):
            default: Any = ... if parameter.default is parameter.empty else parameter.default
            fields[f"p{n}"] = (self._hints.get(name, Any), Field(default, alias=name))
        try:
            return create_model("Arguments", __config__=ConfigDict(arbitrary_types_allowed=False), **fields)
        except (PydanticUserError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise ProcessInvalid(self.name, f"a parameter has a type that can't be stored: {reason}") from error

    @cached_property
    def _hints(self) -> dict[str, Any]:
        hints = {
            name: parameter.annotation
            for name, parameter in self._signature.parameters.items()
            if parameter.annotation is not parameter.empty
        }
        return self._resolve(hints)

    def _resolve(self, hints: dict[str, Any]) -> dict[str, Any]:
        from holdfast.processes.context import ProcessContext  # it needs the runtime

        names = {"ProcessContext": ProcessContext, "hf": holdfast, "holdfast": holdfast}
        names |= getattr(inspect.unwrap(self.function), "__globals__", {})
        holder = type("_Holder", (), {"__annotations__": hints})
        try:
            return typing.get_type_hints(holder, names, include_extras=True)
        except Exception as error:
            reason = f"an annotation can't be resolved: {error}; define it at the top of the module"
            raise ProcessInvalid(self.name, reason) from error


AnyProcess = ProcessDefinition[..., Any]


@overload
def process(function: Callable[Concatenate[ProcessContext, P], Awaitable[R]], /) -> ProcessDefinition[P, R]: ...


@overload
def process(
    *,
    name: str | None = None,
    version: str | None = None,
    recovery: Recovery = "rerunnable",
    retry: ToolRetryPolicy | int | None = None,
    on_parent_end: OnParentEnd = "cancel",
) -> Callable[[Callable[Concatenate[ProcessContext, P], Awaitable[R]]], ProcessDefinition[P, R]]: ...


def process(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: str | None = None,
    recovery: Recovery = "rerunnable",
    retry: ToolRetryPolicy | int | None = None,
    on_parent_end: OnParentEnd = "cancel",
) -> Any:
    """Make a durable function of ``async def f(ctx: hf.ProcessContext, ...)``.

    `version` names the code in the journal. `recovery` says who continues after a crash: any runtime
    (``"rerunnable"``), only the process that began it (``"owner"``), or a system outside, which reports the end
    (``"external"``). With `retry`, a function that raised runs again from its beginning after a pause. `on_parent_end`
    says what to do when its parent ends first: cancel it, or let it go on (``"abandon"``).
    """
    if function is None:
        return partial(process, name=name, version=version, recovery=recovery, retry=retry, on_parent_end=on_parent_end)
    label = getattr(function, "__name__", repr(function)) if name is None else name
    if isinstance(function, ProcessDefinition) or not inspect.iscoroutinefunction(function):
        raise ProcessInvalid(str(label), "it must be an 'async def' function")
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in {parameters[0].POSITIONAL_ONLY, parameters[0].POSITIONAL_OR_KEYWORD}:
        raise ProcessInvalid(str(label), "its first parameter must be the context: ctx: hf.ProcessContext")
    for parameter in parameters[1:]:
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise ProcessInvalid(str(label), f"the parameter {parameter} can't be given by name; name each parameter")
    check_choice("recovery", recovery, get_args(Recovery))
    check_choice("on_parent_end", on_parent_end, get_args(OnParentEnd))
    if version is not None:
        check_id("version", version)
    return ProcessDefinition[..., Any](
        function, check_name("process name", label), version, recovery, parse_retry(retry), on_parent_end
    )
