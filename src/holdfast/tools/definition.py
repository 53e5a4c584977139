"""The definition of a tool: a function that a model may call, with its annotations and terms."""

from __future__ import annotations

import functools
import inspect
import math
import re
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from types import CodeType, FunctionType, MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    NoReturn,
    Protocol,
    TypeAlias,
    TypedDict,
    Unpack,
    cast,
    final,
    overload,
)

import msgspec
from typing_extensions import ParamSpec, TypeVar

from holdfast.deps import DepsT_contra
from holdfast.effects.canonical import decode_value, digest, digest_of_bytes, encode_value
from holdfast.effects.replay import Repeat
from holdfast.errors import InvalidArgument, InvalidValue, ToolInvalid, UsageError
from holdfast.messages import ToolSpec
from holdfast.names import check_id, check_int
from holdfast.policy.rules import Reach, Subject
from holdfast.tools.results import describe_error

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence

    from holdfast.tools.context import Context
    from holdfast.tools.json_schema import JsonParameters
    from holdfast.tools.providers import Keep, ProvidedTool, ToolProvider, TurnTools
    from holdfast.tools.schema import ParameterSchema

P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any)
D = TypeVar("D", default=Any)


# ---- subjects of calls ----


def check_reach(reach: object, parameters: Collection[str], label: str) -> Reach:
    """The reach of a tool; `ToolInvalid` if it does not fit the tool's parameters."""
    if reach is None:
        return Reach()
    if not isinstance(reach, Reach) or isinstance(reach, Subject):
        raise ToolInvalid(label, None, f"reach is a Reach, not a {type(reach).__name__}")
    try:
        reach = msgspec.convert(asdict(reach), Reach)
    except msgspec.ValidationError as error:
        raise ToolInvalid(label, None, f"its reach is not valid: {error}") from None
    for name in (*reach.paths, reach.command, reach.url):
        if name is not None and name not in parameters:
            raise ToolInvalid(label, None, f"reach names {name!r:.60}, which is no parameter of it")
    return reach


# ---- the tool ----


class ToolRetry(Exception):
    """A tool raises it to ask the model for better arguments. The model reads the message unchanged."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NotDone(Exception):
    """A `reconcile` function raises it: the interrupted call had no effect, and performing it now is safe."""


class Bound(msgspec.Struct, frozen=True):
    """Valid arguments: the keyword arguments of the function, without its context."""

    kwargs: dict[str, Any]


class Complaint(msgspec.Struct, frozen=True):
    """Invalid arguments. `text` names the argument, the error and the expected value, for the model."""

    text: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tool(Generic[P, R, DepsT_contra]):
    """A function that a model may call. Calling the tool calls the function itself.

    `read_only`, `idempotent` and `destructive` mean the same as in MCP; `destructive` is None if undeclared.
    `reconcile` finds out after a crash whether an interrupted call took effect. See `tool` for the other options.
    """

    function: Callable[P, R]
    read_only: bool
    idempotent: bool
    destructive: bool | None
    reconcile: Callable[..., Any] | None
    timeout: float | None
    """Seconds for one attempt."""
    inline_budget: float | None
    """Seconds that the model waits for a call; None: the agent's default."""
    max_parallel: int | None
    """Most calls at once in this process."""
    output_limit: int
    """Longest text of a result for the model, in characters."""
    retry: ToolRetryPolicy | None
    """The retry policy for calls that raise."""
    background: bool | None
    """True: calls run in the background. False: never. None: past the inline budget."""
    on_interrupt: OnInterrupt
    """The model or a person decides about an interrupted call of unknown effect."""
    untrusted: bool
    """True if strangers write its results."""
    polling: bool
    """True if models call it repeatedly with the same arguments."""
    spec: ToolSpec
    """The tool as the model sees it."""
    digest: str
    """Changes with the name, the description, the schema and the annotations."""
    accepts: ParameterSchema | JsonParameters = field(repr=False)
    reach: Reach = field(default_factory=Reach)
    """The things that its calls touch."""
    version: str | None = None
    """Replaces the digest of its code in approvals."""
    approval: bool = False
    """A person must approve each call that the policy allows."""
    provided: tuple[str, ProvidedTool] | None = None
    """The name of its provider, and the tool as that lists it; None for a tool of your code."""
    repeat: Repeat = field(init=False)
    """The rule for repeating a call that began and has no outcome."""
    on_loop: bool = field(init=False)
    """True if the function is async and runs on the event loop; any other runs in a thread."""

    def __post_init__(self) -> None:
        repeat = Repeat.FREE if self.read_only else Repeat.KEYED if self.idempotent else Repeat.NEVER
        object.__setattr__(self, "repeat", repeat)
        object.__setattr__(self, "on_loop", inspect.iscoroutinefunction(self.function))

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
        derived = {"spec", "accepts", "repeat", "on_loop"}
        return tuple(getattr(self, each.name) for each in fields(self) if each.name not in derived)

    @property
    def name(self) -> str:
        """The name that models call."""
        return self.spec.name

    @property
    def description(self) -> str:
        """The description that models read."""
        return self.spec.description

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return self.spec.parameters

    @property
    def implementation(self) -> str:
        """Changes with the version, or without a version, with the code. Computed anew each time."""
        if self.version is not None:
            return f"version:{self.version}"
        return f"code:{code_digest(self.function)}"

    # ---- calling it ----

    def bind(self, arguments: dict[str, Any]) -> Bound | Complaint:
        """Convert a model's arguments to the types of the function. Never raises: errors become a `Complaint`."""
        found = self.accepts.read(arguments)
        if isinstance(found, str):
            return Complaint(f"The arguments of {self.name} are not valid.\n{found}\nCorrect them and call it again.")
        return Bound(found)

    async def invoke(self, bound: Bound, context: Context | None = None) -> Any:  # any JSON value
        """Call the function; its result as plain JSON data, as every replay will see it."""
        return decode_value(await self.run(bound, context))

    async def run(self, bound: Bound, context: Context | None = None) -> bytes:
        """Call the function; its result as JSON.

        A plain function runs in a thread, which can't be stopped: after a cancellation the function runs to its end and
        its result is dropped.
        """
        return self.as_json(await self.call(bound, context))

    def call(self, bound: Bound, context: Context | None = None) -> Coroutine[Any, Any, object]:
        """Call the function; its result unchanged. An iterator is read into a list."""
        from holdfast.tools.functions import invoke_function  # only where a tool is called

        kwargs = bound.kwargs
        if self.accepts.context is not None:
            kwargs = {**kwargs, self.accepts.context: context}
        return invoke_function(self.function, kwargs, self.spec.name, on_loop=self.on_loop)

    async def find_out(self, bound: Bound, context: Context) -> bytes:
        """Ask `reconcile` about an interrupted call; it raises `NotDone` if the call had no effect."""
        from holdfast.tools.functions import invoke_function  # only where a tool is called

        if self.reconcile is None:
            raise ToolInvalid(self.name, None, "it has no reconcile function")
        kwargs, on_loop = {"ctx": context, **bound.kwargs}, inspect.iscoroutinefunction(self.reconcile)
        return self.as_json(await invoke_function(self.reconcile, kwargs, f"{self.name} (reconcile)", on_loop=on_loop))

    def as_json(self, value: object) -> bytes:
        # The error must not look like a call that did nothing.
        ran = f"the tool {self.name!r} ran to its end, only what it returned can't be kept"
        try:
            return encode_value(value)
        except InvalidValue as error:
            raise InvalidValue(error.path, f"{error.reason} ({ran})") from error
        except Exception as error:  # reading the value may run its code
            raise InvalidValue("$", f"{describe_error(error)} ({ran})") from error


AnyTool: TypeAlias = Tool[..., Any]
_REACH: Final = tuple(part.name for part in fields(Reach))


def subject_of(tool: AnyTool, arguments: dict[str, Any] | None = None) -> Subject:
    """A call of a tool as a policy sees it; without arguments, the tool alone."""
    return Subject(
        tool=tool.name,
        args={} if arguments is None else tool.accepts.resolve(arguments),
        read_only=tool.read_only,
        untrusted=tool.untrusted,
        digest=tool.digest,
        approval=tool.approval,
        **{name: getattr(tool.reach, name) for name in _REACH},
    )


# ---- deferred results ----

DEFERRAL_TIMEOUT: Final = timedelta(days=7)
"""Default time for the answer to a deferral."""


NO_DEFAULT: Final = msgspec.UNSET
"""Marks a deferral that ends in an error at its timeout."""


class Deferred(Generic[R]):
    """A result that comes later from outside; a tool that has passed on the `key` returns it.

    ``-> Verdict | hf.Deferred[Verdict]`` declares the type of the answer.
    """

    __slots__ = ("call", "default", "due", "key")

    def __init__(self, key: str, due: int, call: str, default: Any = NO_DEFAULT) -> None:
        self.key = key
        """The secret that authorizes the answer; the same after a crash."""
        self.due = due
        """Deadline in wall milliseconds."""
        self.call = call
        """The call that the deferral will answer."""
        self.default = default

    def __repr__(self) -> str:
        return f"Deferred(until {self.deadline.isoformat(timespec='seconds')})"

    @property
    def deadline(self) -> datetime:
        """The time after which an answer is too late."""
        return datetime.fromtimestamp(self.due / 1000, tz=UTC)


# ---- options of the decorator ----

MAX_ATTEMPTS: Final = 10
"""Most attempts of one call."""
MAX_PAUSE: Final = 300.0
"""Longest pause between two attempts, in seconds."""


class ToolRetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Repeats calls of a `read_only` or `idempotent` tool that raise, under the same idempotency key.

    `attempts` counts the first one. The pause before the second attempt is `pause` seconds, and `factor` times longer
    before each later one, up to `longest`. Only errors of the classes in `on` are retried; `ToolRetry` never is,
    because it asks the model for other arguments.
    """

    attempts: int = 3
    pause: float = 1.0
    factor: float = 2.0
    longest: float = 30.0
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        check_int("retry attempts", self.attempts, least=1, most=MAX_ATTEMPTS)
        for what, least, most in (("pause", 0.0, MAX_PAUSE), ("factor", 1.0, 100.0), ("longest", 0.0, MAX_PAUSE)):
            value = getattr(self, what)
            if type(value) not in (int, float) or not least <= value <= most:
                raise InvalidArgument(f"retry {what}", value, f"a number from {least:g} to {most:g}")
        if type(self.on) is not tuple or not self.on or not all(_is_error(kind) for kind in self.on):
            raise InvalidArgument("retry on", self.on, "a tuple of subclasses of Exception")

    def pause_after(self, attempt: int, error: BaseException) -> float | None:
        """Seconds before the next attempt, after attempt `attempt` (from 1) ended in `error`; None to give up."""
        if attempt >= self.attempts or isinstance(error, ToolRetry | NotDone) or not isinstance(error, self.on):
            return None
        grown = self.pause * self.factor ** (attempt - 1)
        return min(grown if math.isfinite(grown) else self.longest, self.longest)


def parse_retry(given: object) -> ToolRetryPolicy | None:
    """The policy of a `retry=` option, which may also be a number of attempts."""
    if given is None or isinstance(given, ToolRetryPolicy):
        return given
    if type(given) is not int:
        raise InvalidArgument("retry", given, "the number of attempts or a ToolRetryPolicy")
    return ToolRetryPolicy(attempts=given)


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)


OnInterrupt: TypeAlias = Literal["unknown", "ask"]
"""If the effect of an interrupted call is unknown, the model decides ("unknown"), or a person ("ask")."""
Duration: TypeAlias = "float | timedelta | None"
"""Seconds, or a timedelta; None if unset."""
OUTPUT_LIMIT: Final = 50_000
"""Default for the longest text of one result, in characters.

About 12,000 tokens: a long file or a full page of search results, and still twenty of them in one conversation.
"""
MIN_OUTPUT_LIMIT: Final = 1_000
"""The note about a cut and some text around it must fit."""
MAX_OUTPUT_LIMIT: Final = 10_000_000
_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")


def check_name(name: str, label: str) -> str:
    """The name of a tool, if every provider accepts it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        reason = "a name is 1 to 64 letters, digits, '_' or '-', and begins with a letter"
        raise ToolInvalid(label, None, f"it can't be called {str(name)[:80]!r}: {reason}; give another with name=")
    return name


def check_reconcile(reconcile: object, parameters: Iterable[str], label: str) -> None:
    """Check that `reconcile` takes the context as `ctx` and the arguments of the call by name."""
    if reconcile is None:
        return
    if not callable(reconcile):
        raise ToolInvalid(label, None, f"reconcile must be a function, not a {type(reconcile).__name__}")
    try:
        signature = inspect.signature(reconcile)
    except (TypeError, ValueError):
        return  # a function without a readable signature
    try:
        signature.bind(ctx=None, **dict.fromkeys(parameters))
    except TypeError as error:
        wanted = ", ".join(["ctx", *parameters])
        raise ToolInvalid(label, None, f"reconcile is called with ({wanted}) by name: {error}") from None


def _count(what: str, value: object, label: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ToolInvalid(label, None, f"{what} is a whole number from {least:,} to {most:,}, not {value!r:.60}")
    return value


def seconds_of(what: str, given: object, label: str) -> float | None:
    """A duration of a tool in seconds; `ToolInvalid` if it is none."""
    if given is None:
        return None
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ToolInvalid(label, None, f"{what} is seconds or a timedelta, not a {type(given).__name__}")
    if not (math.isfinite(seconds) and seconds > 0):
        raise ToolInvalid(label, None, f"{what} must be more than 0 seconds, not {seconds}; leave it out for none")
    return float(seconds)


class ToolOptions(TypedDict, total=False):
    """The options of `tool`, for type checkers."""

    read_only: bool
    idempotent: bool
    destructive: bool | None
    timeout: Duration
    inline_budget: Duration
    max_parallel: int | None
    output_limit: int | None
    retry: ToolRetryPolicy | int | None
    background: bool | None
    on_interrupt: OnInterrupt
    reconcile: Callable[..., Any] | None
    untrusted: bool
    polling: bool
    reach: Reach | None
    version: str | None
    description: str | None
    schema: dict[str, Any] | None


class ToolDecorator(Protocol):
    """The result of ``@tool(...)``: makes a tool of a function."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context[D], P], R], /
    ) -> Tool[Concatenate[Context[D], P], R, D]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Tool[P, R, object]: ...


@overload
def tool(
    name: Callable[Concatenate[Context[D], P], R], /, **options: Unpack[ToolOptions]
) -> Tool[Concatenate[Context[D], P], R, D]: ...


@overload
def tool(name: Callable[P, R], /, **options: Unpack[ToolOptions]) -> Tool[P, R, object]: ...


@overload
def tool(name: str | None = None, **options: Unpack[ToolOptions]) -> ToolDecorator: ...


def tool(
    name: Callable[..., Any] | str | None = None,
    *,
    read_only: bool = False,
    idempotent: bool = False,
    destructive: bool | None = None,
    timeout: Duration = None,
    inline_budget: Duration = None,
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
    schema: dict[str, Any] | None = None,
) -> AnyTool | Callable[[Callable[..., Any]], AnyTool]:
    """Make a tool of a function: ``@tool``, ``@tool(read_only=True)`` or ``@tool("name")``.

    The runtime never silently repeats a tool that is neither `read_only` nor `idempotent`. The model reads the
    docstring; parameters get their descriptions from it (Google, NumPy or Sphinx style), or from their annotation:
    ``Annotated[str, "text"]``. Of a `functools.partial`, the model is offered the parameters that are not bound; of an
    object with `__call__`, those of that method. Durations are seconds or a timedelta.

    Args:
        name: The name for models; by default the name of the function.
        read_only: It changes nothing. It may run beside others and be called again.
        idempotent: Called twice with the same ``ctx.idempotency_key`` it acts once.
        destructive: It may destroy something.
        timeout: Limit for one attempt, after which it is stopped.
        inline_budget: Time that the model waits before the call goes on in the background; None: the agent's default.
        max_parallel: Most calls of it at once in this process.
        output_limit: Longest text of a result for the model, in characters; a longer result is kept as an attachment.
        retry: A number of attempts or a `ToolRetryPolicy` for calls that raise. Only for tools that may be repeated.
        background: True: it always runs in the background. False: never. None: past its `inline_budget`.
        on_interrupt: Who decides when the effect of an interrupted call is unknown: the model reads about it
            ("unknown"), or the runtime asks a person ("ask").
        reconcile: Finds out after a crash whether an interrupted call took effect: called like the function, with the
            context as ``ctx``; returns the result, or raises `NotDone`.
        untrusted: Strangers write its results (web pages, mails); the model gets them marked as data.
        polling: It is meant to be called repeatedly with the same arguments; the loop guard ignores it.
        reach: The things that it touches (paths, commands, addresses, private data), for policy rules.
        version: Replaces the function's code in approvals: an approval for another version does not count.
        description: The description for the model, instead of the docstring.
        schema: The JSON schema of the arguments, an object, instead of the signature. The function gets each argument
            by name, as plain JSON; it may take ``**arguments``. Needs the extra ``schema``.
    """

    def make(function: Callable[..., Any]) -> AnyTool:
        from holdfast.tools.schema import read_signature  # pydantic only when a tool is made

        function = _as_function(function)
        label = _label_of(function)

        def refuse(reason: str) -> NoReturn:
            raise ToolInvalid(label, None, reason)

        if isinstance(inner_function(function), Tool):
            refuse("it is a tool already; give its `function`")
        if not (inspect.isfunction(inner := inner_function(function)) or inspect.ismethod(inner)):
            refuse(f"a function is wanted, not a {type(inner).__name__}; wrap it in one")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            refuse("it is a generator; return one value, or a list")
        called = check_name(name if isinstance(name, str) else label, label)
        flags: dict[str, Any] = {"read_only": read_only, "idempotent": idempotent, "untrusted": untrusted}
        flags |= {"polling": polling, "destructive": destructive, "background": background}
        for what, value in flags.items():
            if type(value) is not bool and not (value is None and what in ("destructive", "background")):
                refuse(f"{what} is True or False, not {value!r:.60}")
        if read_only and destructive:
            refuse("it can't be read_only and destructive at once")
        if description is not None and not isinstance(description, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            refuse(f"description must be text, not a {type(description).__name__}")
        if on_interrupt not in ("unknown", "ask"):
            refuse(f"on_interrupt is 'unknown' or 'ask', not {on_interrupt!r:.60}")
        if on_interrupt == "ask" and read_only:
            refuse("on_interrupt='ask' means nothing for a read_only tool: it is called again")
        if inline_budget is not None and background is not None:
            refuse(
                f"background={background} goes there {'at once' if background else 'never'}; leave inline_budget out"
            )
        if retry is not None and not (read_only or idempotent):
            refuse("retry is for tools that are read_only or idempotent; others are never repeated")
        try:
            retries, _ = parse_retry(retry), None if version is None else check_id("version", version)
        except UsageError as error:
            raise ToolInvalid(label, None, str(error)) from None
        seconds = [seconds_of(*given, label) for given in (("timeout", timeout), ("inline_budget", inline_budget))]
        most = None if max_parallel is None else _count("max_parallel", max_parallel, label, 1, 10_000)
        limit = OUTPUT_LIMIT if output_limit is None else output_limit
        documented, described = read_docstring(_docstring_of(function))
        if schema is None:
            accepts = read_signature(function, label, described)
            parameters = [parameter for _, parameter in accepts.fields]
        else:
            accepts = _read_json_schema(function, label, schema)
            parameters = list(accepts.whole_schema.get("properties", {}))
        check_reconcile(reconcile, parameters, label)
        spec = ToolSpec(called, documented if description is None else description, accepts.parameters)
        return Tool(
            function=function,
            **flags,
            reconcile=reconcile,
            timeout=seconds[0],
            inline_budget=seconds[1],
            max_parallel=most,
            output_limit=_count("output_limit", limit, label, MIN_OUTPUT_LIMIT, MAX_OUTPUT_LIMIT),
            retry=retries,
            on_interrupt=on_interrupt,
            spec=spec,
            digest=spec_digest(spec, label, read_only=read_only, idempotent=idempotent, destructive=destructive),
            accepts=accepts,
            reach=check_reach(reach, parameters, label),
            version=version,
        )

    return make if name is None or isinstance(name, str) else make(name)


def _read_json_schema(function: Callable[..., Any], label: str, schema: dict[str, Any]) -> JsonParameters:
    """The parameters by a JSON schema; `ToolInvalid` if the function does not take all of them."""
    from holdfast.tools.json_schema import json_parameters  # most tools have a signature
    from holdfast.tools.schema import read_context

    context, deps = read_context(function, label)
    accepts = json_parameters(schema, label, context=context, deps=deps)
    properties: Collection[str] = accepts.whole_schema.get("properties", {})
    if context in properties:
        raise ToolInvalid(label, context, "it is the context, and a property of the schema; rename one of them")
    try:
        names: list[str] = [*properties] if context is None else [*properties, context]
        inspect.signature(function).bind(**dict.fromkeys(names))
    except TypeError as error:
        raise ToolInvalid(label, None, f"it does not take the properties of its schema by name: {error}") from None
    return accepts


def inner_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside partials."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return function


def _as_function(given: Callable[..., Any]) -> Callable[..., Any]:
    """An object with a `__call__` of its own as that method, also inside a partial; anything else unchanged."""
    if isinstance(given, functools.partial):
        bound = cast("functools.partial[Any]", given)
        inner = _as_function(bound.func)
        return bound if inner is bound.func else functools.partial(inner, *bound.args, **bound.keywords)
    if inspect.isroutine(given) or isinstance(given, Tool | type):
        return cast("Callable[..., Any]", given)
    method: object = getattr(given, "__call__", None)  # noqa: B004
    return method if inspect.ismethod(method) else given


def _label_of(function: Callable[..., Any]) -> str:
    """The name of a function; of an object with a `__call__`, that of the object or its class."""
    inner = inner_function(function)
    owner = inner.__self__ if inspect.ismethod(inner) and inner.__name__ == "__call__" else None
    named = inner if owner is None else owner
    return str(getattr(named, "__name__", type(named).__name__))


def _docstring_of(function: Callable[..., Any]) -> str:
    inner = inner_function(function)
    if not inspect.ismethod(inner) or inner.__name__ != "__call__" or inner.__doc__:
        return inspect.getdoc(inner) or ""
    # That of a dataclass may be nothing but its signature.
    return "" if hasattr(inner.__self__, "__dataclass_fields__") else inspect.getdoc(type(inner.__self__)) or ""


def rename_tool(given: AnyTool, name: str) -> AnyTool:
    """The same tool under another name."""
    if name == given.name:
        return given
    spec = ToolSpec(check_name(name, given.name), given.description, given.parameters)
    marks = {"read_only": given.read_only, "idempotent": given.idempotent, "destructive": given.destructive}
    return replace(given, spec=spec, digest=spec_digest(spec, name, **marks))


def spec_digest(spec: ToolSpec, label: str, **annotations: bool | None) -> str:
    """The digest of a tool as models see it."""
    seen = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    try:
        return digest("tool", {**seen, "annotations": annotations})
    except InvalidValue as error:
        raise ToolInvalid(label, None, f"what the model would see has no JSON form: {error}") from error


# ---- docstrings ----

_ARGS: Final = re.compile(r"(Args|Arguments|Parameters):\s*")
_ENTRY: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:(?:\s+(.*))?")
_UNDERLINED: Final = ("Parameters", "Other Parameters")
"""Headings of NumPy style, with a line of dashes below."""
_NUMPY_ENTRY: Final = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
_FIELD: Final = re.compile(
    r":(param|parameter|arg|argument|key|keyword|type)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:(?:\s+(.*))?"
)


def read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into its text without its parameters, and the descriptions of these.

    They are in a section of Google style (``Args:``) or NumPy style (``Parameters`` over a line of dashes), or in
    fields of Sphinx (``:param name: text``).
    """
    lines = doc.splitlines()
    begin = next((n for n, line in enumerate(lines) if _ARGS.fullmatch(line)), None)
    if begin is not None:
        return _read_google_style(lines, begin)
    for read in (_read_numpy_style, _read_sphinx_style):
        text, entries = read(lines)
        if entries:
            return text, {name: " ".join(" ".join(words).split()) for name, words in entries.items()}
    return doc.strip(), {}


def _read_google_style(lines: list[str], begin: int) -> tuple[str, dict[str, str]]:
    end = next((n for n in range(begin + 1, len(lines)) if lines[n][:1].strip()), len(lines))
    before = "\n".join(lines[:begin]).rstrip()
    after = "\n".join(lines[end:]).strip()
    entries: dict[str, list[str]] = {}
    words: list[str] = []
    section = lines[begin + 1 : end]
    margin = next((_indent(line) for line in section if line.strip()), 0)
    for line in section:
        entry = _ENTRY.fullmatch(line.strip()) if _indent(line) <= margin else None
        if entry:
            words = entries[entry[1]] = [entry[2] or ""]
        else:
            words.append(line.strip())
    descriptions = {name: " ".join(" ".join(words).split()) for name, words in entries.items()}
    return "\n\n".join(part for part in (before, after) if part), descriptions


def _read_numpy_style(lines: list[str]) -> tuple[str, dict[str, list[str]]]:
    kept: list[str] = []
    entries: dict[str, list[str]] = {}
    inside, names = False, list[str]()
    for n, line in enumerate(lines):
        below = lines[n + 1].strip() if n + 1 < len(lines) else ""
        if len(below) > 2 and not below.strip("-") and line.strip():
            inside, names = line.strip() in _UNDERLINED, []
        is_rule = n > 0 and len(line.strip()) > 2 and not line.strip().strip("-")
        entry = _NUMPY_ENTRY.fullmatch(line) if inside and not is_rule and line[:1].strip() else None
        if not inside:
            kept.append(line)
        elif entry and line.strip() not in _UNDERLINED:
            names = [name.strip(" *") for name in entry[1].split(",")]
            entries.update({name: [] for name in names})
        elif names:
            for name in names:
                entries[name].append(line.strip())
    return _without_gaps(kept), entries


def _read_sphinx_style(lines: list[str]) -> tuple[str, dict[str, list[str]]]:
    kept: list[str] = []
    entries: dict[str, list[str]] = {}
    words: list[str] | None = None
    for line in lines:
        entry = _FIELD.fullmatch(line.rstrip())
        if entry:
            words = [entry[3] or ""]
            if entry[1] != "type":
                entries[entry[2]] = words
        elif words is not None and (line[:1].isspace() or not line.strip()):
            words.append(line.strip())
        else:
            words = None
            kept.append(line)
    return _without_gaps(kept), entries


def _without_gaps(lines: list[str]) -> str:
    """The text of lines, with one blank line where several are."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in lines)).strip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


# ---- toolsets ----

MAX_DEPTH: Final = 16
"""Deepest nesting of lists of tools."""
MAX_TOOLS: Final = 1_000
"""Most tools in one list."""


class ToolFunction(Protocol):
    """A plain function, for type checkers: a tool is no function, so that its dependencies are compared."""

    __code__: CodeType

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


ToolSource: TypeAlias = "Tool[..., Any, D] | FunctionType | MethodType | ToolFunction | functools.partial[Any] | Toolset | ToolProvider[D] | Sequence[ToolSource[D]]"  # noqa: E501
"""A tool, a function, a toolset, a provider of tools, or a list of these."""


@final
class Toolset:
    """An immutable, ordered group of tools. With a filter or a provider, each turn has its own choice of them."""

    __slots__ = ("sources", "tools")

    sources: tuple[AnyTool | TurnTools, ...]
    """Its tools, with those that are chosen for each turn."""
    tools: tuple[AnyTool, ...]
    """All tools that are known before a turn."""

    def __init__(self, *tools: ToolSource[Any]) -> None:
        self._fill(flatten_tools(tools))

    def _fill(self, sources: tuple[AnyTool | TurnTools, ...]) -> Toolset:
        object.__setattr__(self, "tools", _distinct(known_tools(sources)))
        plain = all(isinstance(each, Tool) for each in sources)
        object.__setattr__(self, "sources", self.tools if plain else sources)
        return self

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a toolset is not changed; make another one ({name!r})")

    def __iter__(self) -> Iterator[AnyTool]:
        return iter(self.tools)

    def __len__(self) -> int:
        return len(self.tools)

    def __contains__(self, name: object) -> bool:
        return any(name in (each, each.name) for each in self.tools)

    def __eq__(self, other: object) -> bool:
        return self.sources == other.sources if isinstance(other, Toolset) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.tools)

    def __add__(self, other: ToolSource[Any]) -> Toolset:
        return Toolset(self, other)

    def __repr__(self) -> str:
        return f"Toolset({', '.join(self.names)})"

    @property
    def names(self) -> tuple[str, ...]:
        """The names for models, in order, as far as they are known before a turn."""
        return tuple(each.name for each in self.tools)

    def only(self, *names: str) -> Toolset:
        """The tools with these names, in the order of this toolset."""
        from holdfast.tools.providers import Choice  # loaded on first use

        return self._changed(Choice(self._known("only", names), only=True))

    def without(self, *names: str) -> Toolset:
        """All tools except those with these names."""
        from holdfast.tools.providers import Choice  # loaded on first use

        return self._changed(Choice(self._known("without", names), only=False))

    def rename(self, names: Mapping[str, str] | None = None, /, **more: str) -> Toolset:
        """The same tools, some under other names: ``rename(old="new")``."""
        from holdfast.tools.providers import Renaming  # loaded on first use

        if names is not None and not isinstance(names, dict):
            raise InvalidArgument("rename", names, "a dict of old and new names")
        new = {**(names or {}), **more}
        self._known("rename", tuple(new))
        return self._changed(Renaming(new))

    def prefix(self, prefix: str) -> Toolset:
        """The same tools, all names with `prefix` before them."""
        from holdfast.tools.providers import Renaming  # loaded on first use

        if type(prefix) is not str:
            raise InvalidArgument("prefix", prefix, "text")
        return self._changed(Renaming({}, prefix))

    def require_approval(self, *names: str) -> Toolset:
        """The same tools; a person must approve each call that the policy allows: of these, or without names of all."""
        from holdfast.tools.providers import ApprovalRule  # loaded on first use

        return self._changed(ApprovalRule(self._known("require_approval", names)))

    def filter(self, keep: Keep) -> Toolset:
        """The tools for which ``keep(turn, tool)``, sync or async, is True; asked once for each turn, and recorded."""
        from holdfast.tools.providers import Filter, TurnTools  # loaded on first use

        if not callable(keep):
            raise InvalidArgument("filter", keep, "a function of a TurnContext and a Tool")
        return _toolset_of([TurnTools(self.sources, (Filter(keep),))])

    def _changed(self, change: Callable[[AnyTool], AnyTool | None]) -> Toolset:
        made = (change(each) if isinstance(each, Tool) else each.then(change) for each in self.sources)
        return _toolset_of(each for each in made if each is not None)

    def _known(self, what: str, names: Collection[str]) -> frozenset[str]:
        unknown = [name for name in names if name not in self.names]
        # A provider may list it.
        if unknown and not any(any(each.providers) for each in self.sources if not isinstance(each, Tool)):
            raise InvalidArgument(what, unknown[0], f"the name of a tool that is there ({', '.join(self.names)})")
        return frozenset(names)


def _toolset_of(sources: Iterable[AnyTool | TurnTools]) -> Toolset:
    return object.__new__(Toolset)._fill(tuple(sources))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  its own


def toolset(
    *tools: ToolSource[Any], prefix: str = "", only: Collection[str] = (), rename: Mapping[str, str] | None = None
) -> Toolset:
    """A toolset of the tools in `only` (all if empty), renamed by `rename`, with `prefix` before each name."""
    if isinstance(only, str):
        raise InvalidArgument("only", only, "a list of names")
    made = Toolset(*tools)
    made = made.only(*only) if only else made
    made = made.rename(rename) if rename is not None else made
    return made.prefix(prefix)


def known_tools(sources: Iterable[AnyTool | TurnTools]) -> tuple[AnyTool, ...]:
    """The tools of these sources that are known before a turn."""
    found: list[AnyTool] = []
    for each in sources:
        found.extend((each,) if isinstance(each, Tool) else each.candidates)
    return tuple(found)


def flatten_tools(given: object) -> tuple[AnyTool | TurnTools, ...]:
    """The tools in lists, tuples and toolsets, in order; a function becomes a tool."""
    found: list[AnyTool | TurnTools] = []

    def flatten(given: object, depth: int) -> None:
        if isinstance(given, list | tuple):
            if depth > MAX_DEPTH:
                raise InvalidArgument("tools", "...", f"lists that are nested at most {MAX_DEPTH} deep")
            for item in cast("list[object]", given):
                flatten(item, depth + 1)
        elif isinstance(given, Toolset):
            found.extend(given.sources)
        elif isinstance(given, Tool):
            found.append(cast("AnyTool", given))
        elif callable(getattr(given, "list", None)) and callable(getattr(given, "call", None)):
            from holdfast.tools.providers import tools_of_provider  # loaded on first use

            found.append(tools_of_provider(given))
        elif callable(given):
            if getattr(given, "__module__", "").startswith("holdfast.toolkits."):
                name = getattr(given, "__name__", "")
                raise ToolInvalid(name, None, f"it gives tools when it is called: write hf.tools.{name}(...)")
            found.append(tool(given))
        else:
            raise InvalidArgument("tool", given, "a function, a tool, a toolset, a tool provider or a list of these")
        if len(found) > MAX_TOOLS:
            raise InvalidArgument("tools", len(found), f"at most {MAX_TOOLS:,} tools")

    flatten(given, 0)
    return tuple(found)


def _distinct(tools: tuple[AnyTool, ...]) -> tuple[AnyTool, ...]:
    """The tools without repetitions; two different tools with one name raise `ToolInvalid`."""
    found: dict[str, AnyTool] = {}
    for each in tools:
        if found.setdefault(each.name, each) != each:
            raise ToolInvalid(each.name, None, "another tool has this name; give one of them another")
    return tuple(found.values())


# ---- the digest of a function's code ----
#
# An approval is bound to it, so that changed code needs a new approval. Code is compiled code as this process runs it:
# the source file may have changed since it was loaded. File names, line numbers and comments are not part of it, so the
# same source gives the same digest in every process of one Python version. Values in closures, modules and objects are
# not part of it either: `version=` of a tool covers those.

MAX_FUNCTIONS: Final = 500
"""Most functions in one digest; further ones are left out, always the same ones."""
_SCALARS: Final = (str, bytes, int, float, complex, bool, type(None), type(...))


def code_digest(function: Callable[..., Any]) -> str:
    """SHA-256 of the code of a function and of the functions of its module that it uses.

    These are the functions that it closes over or wraps (also inside partials), functions of its own module that it
    names, and, for a bound method, methods and properties of its class that it names. All functions of a class of its
    own module count if it names or closes over that class or an object of it. Of a partial, the values that it binds
    count as defaults do.
    """
    found: list[tuple[FunctionType, type | None]] = []
    places: dict[tuple[int, type | None], int] = {}

    def add(value: object, owner: type | None) -> int | None:
        """The index of a function in the list; None for other values, and beyond `MAX_FUNCTIONS`."""
        function, owner = _function_of(value, owner)
        if function is None or ((id(function), owner) not in places and len(found) >= MAX_FUNCTIONS):
            return None
        place = places.setdefault((id(function), owner), len(found))
        if place == len(found):
            found.append((function, owner))
        return place

    add(function, None)
    binds: tuple[object, ...] = ()
    if isinstance(function, functools.partial):
        bound = cast("functools.partial[Any]", function)
        values = [*enumerate(bound.args), *sorted(bound.keywords.items())]
        binds = tuple((name, _default(value), add(value, None)) for name, value in values)
    described: list[tuple[object, ...]] = []
    for each, owner in found:  # it grows meanwhile, in an order that depends only on the code
        runs = [add(value, None) for value in _objects_of(each)]
        runs += [add(value, given) for value, given in _names_in(each, owner)]
        defaults = (*(each.__defaults__ or ()), *sorted((each.__kwdefaults__ or {}).items()))
        described.append((_describe_code(each.__code__), list(map(_default, defaults)), runs))
    return digest_of_bytes("code", repr((described, binds) if binds else described).encode())


def _function_of(value: object, owner: type | None) -> tuple[FunctionType | None, type | None]:
    """The function behind a method, a partial, a tool or a wrapper with `__wrapped__`."""
    for _ in range(MAX_FUNCTIONS):
        match value:
            case FunctionType():
                return value, owner
            case MethodType():
                bound = value.__self__
                value, owner = value.__func__, bound if isinstance(bound, type) else type(bound)
            case functools.partial():
                value = cast("functools.partial[Any]", value).func
            case staticmethod() | classmethod():
                value = cast("staticmethod[..., Any]", value).__func__
            case Tool():
                value = cast("Tool[..., Any]", value).function
            case _:
                value = inspect.getattr_static(value, "__wrapped__", None)  # runs no code of the object
                if value is None:
                    break
    return None, owner


def _objects_of(function: FunctionType) -> Iterator[object]:
    """Objects that a function holds in its closure, its defaults and partials, and functions of classes in it."""
    module = function.__globals__.get("__name__")
    held: list[object] = [getattr(function, "__wrapped__", None)]
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # nothing is in it yet
            continue
    held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for value in held:
        yield value
        if isinstance(value, functools.partial):
            bound = cast("functools.partial[Any]", value)
            yield from (*bound.args, *bound.keywords.values())
        yield from _functions_of_class(_class_of(cast("object", value)), module)


def _names_in(function: FunctionType, owner: type | None) -> Iterator[tuple[object, type | None]]:
    """Functions and classes of the module, and methods of the class, that the code names; each with its owner."""
    module = function.__globals__.get("__name__")
    for name in sorted(set(_names_of_code(function.__code__))):
        found = function.__globals__.get(name)
        if _is_defined_in(found, module):
            yield found, None
        for value in _functions_of_class(_class_of(found), module):
            yield value, None
        if owner is not None:
            for value in _parts(inspect.getattr_static(owner, name, None)):
                yield value, owner
    # Operators and `with` name no method.
    for value in _functions_of_class(owner, module, special=True):
        yield value, owner


def _is_defined_in(value: object, module: object) -> bool:
    """True if a module defines the function. A decorator from another module keeps the name of its module."""
    function = _function_of(value, None)[0]
    return function is not None and module in {function.__module__, function.__globals__.get("__name__")}


def _class_of(value: object) -> type:
    return value if isinstance(value, type) else type(value)


def _functions_of_class(cls: type | None, module: object, *, special: bool = False) -> Iterator[object]:
    """The functions of a class, its bases and its inner classes that one module defines, sorted by name.

    `special`: only those that Python itself calls, such as `__getitem__`.
    """
    todo = [] if cls is None else [cls]
    for each in todo:  # it grows meanwhile
        if each.__dict__.get("__module__") != module:
            continue
        for name, value in sorted(each.__dict__.items()):
            if special and not (name.startswith("__") and name.endswith("__")):
                continue
            if isinstance(value, type) and value not in todo:
                todo.append(value)
            yield from (part for part in _parts(value) if _is_defined_in(part, module))
        todo += [base for base in each.__mro__ if base not in todo]


def _parts(value: object) -> tuple[object, ...]:
    match value:
        case property():
            return value.fget, value.fset, value.fdel
        case functools.cached_property() | functools.partialmethod() | functools.singledispatchmethod():
            return (cast("functools.cached_property[Any]", value).func,)
        case _:
            return (value,)


def _names_of_code(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of_code(constant)


def _describe_code(code: CodeType) -> tuple[object, ...]:
    return (
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
        code.co_code.hex(),
        code.co_exceptiontable.hex(),
        (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        [_constant(value) for value in code.co_consts],
    )


def _constant(value: object) -> tuple[object, ...]:
    if isinstance(value, CodeType):
        return _describe_code(value)
    if isinstance(value, frozenset):  # sets have no stable order
        return ("frozenset", sorted(map(repr, map(_constant, cast("Iterable[object]", value)))))
    if isinstance(value, tuple):
        return ("tuple", [_constant(part) for part in cast("Iterable[object]", value)])
    return (type(value).__name__, hex(value) if type(value) is int else repr(value))


def _default(value: object) -> object:
    """A plain default value; of another, only the type."""
    if isinstance(value, tuple):
        return [_default(part) for part in cast("Iterable[object]", value)]
    return _constant(value) if type(value) in _SCALARS else type(value).__qualname__
