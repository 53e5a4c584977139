"""`@tool`: a function becomes something that a model may call."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeAlias, TypeVar, cast, overload

from holdfast.effects.canonical import digest
from holdfast.effects.replay import Repeat
from holdfast.effects.values import decode_value, encode_value
from holdfast.errors import InvalidValue, ToolInvalid
from holdfast.messages import ToolSpec
from holdfast.tools.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.tools.context import Context
    from holdfast.tools.schema import Accepts

P = ParamSpec("P")
R = TypeVar("R")

_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")
_ARGS: Final = re.compile(r"(Args|Arguments|Parameters):\s*")
_ENTRY: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:(?:\s+(.*))?")


class ToolRetry(Exception):
    """Raised by a tool to ask the model for better arguments. The model reads the message as it is."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NotDone(Exception):
    """Raised by a `reconcile` function: the interrupted call had no effect, so it is safe to perform it now."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Arguments that fit: what the function is called with, apart from its context."""

    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Complaint:
    """Arguments that do not fit. `text` tells the model which one, what is wrong and what was expected."""

    text: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tool(Generic[P, R]):
    """A function that a model may call. Calling it here calls the function itself.

    `read_only`, `idempotent` and `destructive` have the meaning they have in MCP; `destructive` is None where nobody
    said. `timeout` is in seconds. `reconcile` finds out after a crash whether an interrupted call took effect.
    """

    function: Callable[P, R]
    name: str
    description: str
    parameters: dict[str, Any]
    """The JSON schema of the arguments."""
    read_only: bool
    idempotent: bool
    destructive: bool | None
    timeout: float | None
    reconcile: Callable[..., Any] | None
    spec: ToolSpec
    """The tool as the model sees it."""
    digest: str
    """Differs when the name, the description, the schema or the annotations differ."""
    accepts: Accepts = field(repr=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tool):
            return NotImplemented
        return self._identity() == cast("AnyTool", other)._identity()

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    def _identity(self) -> tuple[object, ...]:
        return self.digest, self.function, self.timeout, self.reconcile

    @property
    def repeat(self) -> Repeat:
        """What may happen to a call that was begun and has no outcome."""
        if self.read_only:
            return Repeat.FREE
        return Repeat.KEYED if self.idempotent else Repeat.NEVER

    def bind(self, arguments: dict[str, Any]) -> Bound | Complaint:
        """What the model sent, as the types that the function asks for. Never raises: what is wrong is told."""
        found = self.accepts.read(arguments)
        if isinstance(found, str):
            return Complaint(f"The arguments of {self.name} are not valid.\n{found}\nCorrect them and call it again.")
        return Bound(found)

    async def invoke(self, bound: Bound, context: Context | None = None) -> Any:  # noqa: ANN401  any JSON value
        """Call the function; what it returns comes back as plain JSON, as every replay will see it."""
        return decode_value(await self.run(bound, context))

    async def run(self, bound: Bound, context: Context | None = None) -> bytes:
        """Call the function; answers the JSON of what it returns.

        A plain function runs in a thread. A thread can't be stopped: if this is cancelled, the function goes on to its
        end and what it returns is dropped.
        """
        return self.as_json(await self.call(bound, context))

    async def call(self, bound: Bound, context: Context | None = None) -> object:
        """Call the function; answers what it returns, as it is."""
        kwargs = bound.kwargs
        if self.accepts.context is not None:
            kwargs = {**kwargs, self.accepts.context: context}
        return await _call(cast("Callable[..., Any]", self.function), kwargs)

    async def find_out(self, bound: Bound, context: Context) -> bytes:
        """Ask `reconcile` what came of an interrupted call; it raises `NotDone` when nothing did."""
        if self.reconcile is None:
            raise ToolInvalid(self.name, None, "it has no reconcile function")
        return self.as_json(await _call(self.reconcile, {"ctx": context, **bound.kwargs}))

    def as_json(self, value: object) -> bytes:
        """The JSON of what the function gave."""
        try:
            return encode_value(value)
        except InvalidValue as error:
            # Whoever reads this must not take it for a call that did nothing.
            reason = f"{error.reason} (the tool {self.name!r} ran to its end, only what it returned can't be kept)"
            raise InvalidValue(error.path, reason) from error


AnyTool: TypeAlias = Tool[..., Any]


async def _call(function: Callable[..., Any], kwargs: dict[str, Any]) -> object:
    if inspect.iscoroutinefunction(function):
        return await _guarded(function, kwargs)
    try:
        value = await in_thread(function, kwargs)
    except SystemExit as error:
        raise _asked_to_exit(error) from error
    return await value if inspect.isawaitable(value) else value


async def _guarded(function: Callable[..., Any], kwargs: dict[str, Any]) -> object:
    try:
        return await function(**kwargs)
    except SystemExit as error:
        raise _asked_to_exit(error) from error


def _asked_to_exit(error: SystemExit) -> RuntimeError:
    # One tool must not take all other sessions of the process with it.
    return RuntimeError(f"the function asked to end the process (exit code {error.code!r}); it was not ended")


# ---- the decorator ---------------------------------------------------------------------------------------------------


@overload
def tool(
    name: Callable[P, R],
    /,
    *,
    read_only: bool = False,
    idempotent: bool = False,
    destructive: bool | None = None,
    timeout: float | timedelta | None = None,
    reconcile: Callable[..., Any] | None = None,
    description: str | None = None,
) -> Tool[P, R]: ...


@overload
def tool(
    name: str | None = None,
    *,
    read_only: bool = False,
    idempotent: bool = False,
    destructive: bool | None = None,
    timeout: float | timedelta | None = None,
    reconcile: Callable[..., Any] | None = None,
    description: str | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(  # noqa: PLR0913  one keyword for each thing that can be said about a tool
    name: Callable[..., Any] | str | None = None,
    *,
    read_only: bool = False,
    idempotent: bool = False,
    destructive: bool | None = None,
    timeout: float | timedelta | None = None,
    reconcile: Callable[..., Any] | None = None,
    description: str | None = None,
) -> AnyTool | Callable[[Callable[..., Any]], AnyTool]:
    """Make a tool of a function: ``@tool``, ``@tool(read_only=True)`` or ``@tool("name")``.

    A tool that is neither `read_only` nor `idempotent` is never silently repeated. The model reads the docstring, with
    the descriptions of a Google style ``Args`` section put to the parameters they describe.
    """
    said = _Said(
        name=name if isinstance(name, str) else None,
        read_only=read_only,
        idempotent=idempotent,
        destructive=destructive,
        timeout=timeout,
        reconcile=reconcile,
        description=description,
    )
    if name is None or isinstance(name, str):
        return partial(_make, said=said)
    return _make(name, said)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What the decorator was given, unchecked."""

    name: str | None
    read_only: bool
    idempotent: bool
    destructive: bool | None
    timeout: float | timedelta | None
    reconcile: Callable[..., Any] | None
    description: str | None


def _make(function: Callable[..., Any], said: _Said) -> AnyTool:
    from holdfast.tools.schema import read_signature  # noqa: PLC0415  pydantic only when a tool is made

    label = str(getattr(function, "__name__", type(function).__name__))
    _check_function(function, label)
    name = _checked_name(said.name if said.name is not None else label, label)
    timeout = _check_said(said, label)
    documented, described = read_docstring(inspect.getdoc(function) or "")
    description = documented if said.description is None else said.description
    accepts = read_signature(function, label, described)
    annotations = {"read_only": said.read_only, "idempotent": said.idempotent, "destructive": said.destructive}
    spec = ToolSpec(name, description, accepts.parameters)
    return Tool(
        function=function,
        name=name,
        description=description,
        parameters=accepts.parameters,
        read_only=said.read_only,
        idempotent=said.idempotent,
        destructive=said.destructive,
        timeout=timeout,
        reconcile=said.reconcile,
        spec=spec,
        digest=_digest(spec, annotations, label),
        accepts=accepts,
    )


def _digest(spec: ToolSpec, annotations: dict[str, bool | None], label: str) -> str:
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


def _checked_name(name: str, label: str) -> str:
    if not _NAME.fullmatch(name):
        reason = "a name is 1 to 64 letters, digits, '_' or '-', and begins with a letter"
        raise ToolInvalid(label, None, f"it can't be called {name[:80]!r}: {reason}; give another with name=")
    return name


def _check_said(said: _Said, label: str) -> float | None:
    for what in ("read_only", "idempotent", "destructive"):
        value = getattr(said, what)
        if type(value) is not bool and not (what == "destructive" and value is None):
            raise ToolInvalid(label, None, f"{what} is True or False, not {value!r:.60}")
    if said.read_only and said.destructive:
        raise ToolInvalid(label, None, "it can't be read_only and destructive at once")
    if said.reconcile is not None and not callable(said.reconcile):
        raise ToolInvalid(label, None, f"reconcile must be a function, not a {type(said.reconcile).__name__}")
    if said.description is not None and not isinstance(said.description, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise ToolInvalid(label, None, f"description must be text, not a {type(said.description).__name__}")
    return _seconds(said.timeout, label)


def _seconds(timeout: object, label: str) -> float | None:
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ToolInvalid(label, None, f"timeout is seconds or a timedelta, not a {type(timeout).__name__}")
    if not (math.isfinite(seconds) and seconds > 0):
        raise ToolInvalid(label, None, f"timeout must be more than 0 seconds, not {seconds}; leave it out for none")
    return float(seconds)


# ---- the docstring ---------------------------------------------------------------------------------------------------


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
