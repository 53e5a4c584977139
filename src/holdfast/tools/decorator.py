"""`@tool`: a function becomes something that a model may call."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from holdfast.effects.canonical import digest
from holdfast.errors import InvalidValue, ToolInvalid
from holdfast.messages import ToolSpec
from holdfast.tools.declared import (
    OnInterrupt,
    Said,
    Span,
    check_reconcile,
    checked_name,
    checked_terms,
    checked_version,
)
from holdfast.tools.definition import AnyTool, Tool
from holdfast.tools.docstring import read_docstring
from holdfast.tools.reach import Reach, check_reach

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.tools.retries import ToolRetryPolicy

P = ParamSpec("P")
R = TypeVar("R")


@overload
def tool(
    name: Callable[P, R],
    /,
    *,
    read_only: bool = False,
    idempotent: bool = False,
    destructive: bool | None = None,
    timeout: Span = None,
    inline_budget: Span = None,
    max_parallel: int | None = None,
    output_limit: int | None = None,
    retry: ToolRetryPolicy | int | None = None,
    background: bool | None = None,
    on_interrupt: OnInterrupt = "unknown",
    reconcile: Callable[..., Any] | None = None,
    untrusted: bool = False,
    polling: bool = False,
    reach: Reach | None = None,
    version: str | None = None,
    description: str | None = None,
) -> Tool[P, R]: ...


@overload
def tool(
    name: str | None = None,
    *,
    read_only: bool = False,
    idempotent: bool = False,
    destructive: bool | None = None,
    timeout: Span = None,
    inline_budget: Span = None,
    max_parallel: int | None = None,
    output_limit: int | None = None,
    retry: ToolRetryPolicy | int | None = None,
    background: bool | None = None,
    on_interrupt: OnInterrupt = "unknown",
    reconcile: Callable[..., Any] | None = None,
    untrusted: bool = False,
    polling: bool = False,
    reach: Reach | None = None,
    version: str | None = None,
    description: str | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(  # noqa: PLR0913  one keyword for each thing that can be said about a tool
    name: Callable[..., Any] | str | None = None,
    *,
    read_only: bool = False,
    idempotent: bool = False,
    destructive: bool | None = None,
    timeout: Span = None,
    inline_budget: Span = None,
    max_parallel: int | None = None,
    output_limit: int | None = None,
    retry: ToolRetryPolicy | int | None = None,
    background: bool | None = None,
    on_interrupt: OnInterrupt = "unknown",
    reconcile: Callable[..., Any] | None = None,
    untrusted: bool = False,
    polling: bool = False,
    reach: Reach | None = None,
    version: str | None = None,
    description: str | None = None,
) -> AnyTool | Callable[[Callable[..., Any]], AnyTool]:
    """Make a tool of a function: ``@tool``, ``@tool(read_only=True)`` or ``@tool("name")``.

    A tool that is neither `read_only` nor `idempotent` is never silently repeated. The model reads the docstring, with
    the descriptions of a Google style ``Args`` section put to the parameters they describe. Spans of time are seconds
    or a timedelta.

    Args:
        name: What models call it; otherwise the name of the function.
        read_only: It changes nothing. It may run beside others and be called again.
        idempotent: Called twice with the same ``ctx.idempotency_key`` it acts once.
        destructive: It may destroy something.
        timeout: How long one attempt may take before it is stopped.
        inline_budget: How long the model waits for it before it goes on in the background; the agent's default if None.
        max_parallel: How many calls of it run at once in this process.
        output_limit: Longest text of a result that the model gets, in characters; the whole is kept beside it.
        retry: How often it is tried again when it raises: a number of attempts or a `ToolRetryPolicy`. Only for tools
            that may be repeated.
        background: True: it always goes on in the background. False: it never does. None: past its `inline_budget`.
        on_interrupt: Who decides when nobody can say whether an interrupted call took effect: the model is told
            ("unknown"), or a person is asked ("ask").
        reconcile: Finds out after a crash what came of an interrupted call: called like the function, with the context
            as ``ctx``; gives the result, or raises `NotDone`.
        untrusted: What it returns was written by strangers (web pages, mails); the model gets it marked as data.
        polling: Calling it again and again with the same arguments is how it is used; the loop guard looks away.
        reach: What it touches (paths, commands, addresses, private data), for the rules of a policy.
        version: Names what it does, for approvals: one that was given for another version is not used. Without it, the
            code of the function counts.
        description: What the model reads, instead of the docstring.
    """
    said = Said(
        name=name if isinstance(name, str) else None,
        read_only=read_only,
        idempotent=idempotent,
        destructive=destructive,
        timeout=timeout,
        inline_budget=inline_budget,
        max_parallel=max_parallel,
        output_limit=output_limit,
        retry=retry,
        background=background,
        on_interrupt=on_interrupt,
        reconcile=reconcile,
        untrusted=untrusted,
        polling=polling,
        reach=reach,
        version=version,
        description=description,
    )
    if name is None or isinstance(name, str):
        return partial(_make, said=said)
    return _make(name, said)


def _make(function: Callable[..., Any], said: Said) -> AnyTool:
    from holdfast.tools.schema import read_signature  # noqa: PLC0415  pydantic only when a tool is made

    label = str(getattr(function, "__name__", type(function).__name__))
    _check_function(function, label)
    name = checked_name(said.name if said.name is not None else label, label)
    terms = checked_terms(said, label)
    documented, described = read_docstring(inspect.getdoc(function) or "")
    description = documented if said.description is None else said.description
    accepts = read_signature(function, label, described)
    check_reconcile(said.reconcile, [parameter for _, parameter in accepts.fields], label)
    reach = check_reach(said.reach, [parameter for _, parameter in accepts.fields], label)
    spec = ToolSpec(name, description, accepts.parameters)
    annotations = {"read_only": said.read_only, "idempotent": said.idempotent, "destructive": said.destructive}
    return Tool(
        function=function,
        read_only=said.read_only,
        idempotent=said.idempotent,
        destructive=said.destructive,
        reconcile=said.reconcile,
        terms=terms,
        spec=spec,
        digest=spec_digest(spec, annotations, label),
        accepts=accepts,
        reach=reach,
        version=checked_version(said.version, label),
    )


def renamed(given: AnyTool, name: str) -> AnyTool:
    """The same tool under another name."""
    if name == given.name:
        return given
    spec = ToolSpec(checked_name(name, given.name), given.description, given.parameters)
    annotations = {"read_only": given.read_only, "idempotent": given.idempotent, "destructive": given.destructive}
    return given.under(spec, spec_digest(spec, annotations, name))


def spec_digest(spec: ToolSpec, annotations: dict[str, bool | None], label: str) -> str:
    """What tells one tool from another in the eyes of a model."""
    seen = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    try:
        return digest("tool", {**seen, "annotations": annotations})
    except InvalidValue as error:
        raise ToolInvalid(label, None, f"what the model would see has no JSON form: {error}") from error


def _check_function(function: object, label: str) -> None:
    if isinstance(function, Tool):
        raise ToolInvalid(label, None, "it is a tool already; give its `function`")
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise ToolInvalid(label, None, f"a function is wanted, not a {type(function).__name__}; wrap it in one")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolInvalid(label, None, "it is a generator; return one value, or a list")
