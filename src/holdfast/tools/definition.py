"""A tool: a function that a model may call, with what its author says about it."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeAlias, TypeVar, cast

import msgspec

from holdfast.effects.replay import Repeat
from holdfast.effects.values import decode_value, encode_value
from holdfast.errors import InvalidArgument, InvalidValue, ToolInvalid, UsageError
from holdfast.names import check_id, check_int
from holdfast.tools.code_digest import code_digest
from holdfast.tools.functions import invoked
from holdfast.tools.results import said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable

    from holdfast.messages import ToolSpec
    from holdfast.tools.context import Context
    from holdfast.tools.schema import Accepts


_TEXTS: Final = ("family", "base", "command", "url", "sandbox")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What calls of a tool touch: for rules about paths, commands and addresses, and for what makes a turn ask.

    `paths`, `command` and `url` are names of parameters.
    """

    family: str | None = None
    """A name that rules may use for several tools together."""
    private: bool = False
    """What it returns is not meant for everybody."""
    external: bool | None = None
    """It reaches somebody outside, who may learn from it or be acted upon. None: it does unless it is `read_only`."""
    paths: tuple[str, ...] = ()
    base: str | None = None
    """The folder to which relative paths belong."""
    command: str | None = None
    url: str | None = None
    sandbox: str | None = None
    """How it is confined, in one line: part of what is approved."""
    workspaces: tuple[str, ...] = ()
    """Real paths of the folders in which calls read or write. A runtime refuses a tool that can reach its store."""
    hides_store: bool = False
    """Calls can't reach the folder ``.holdfast`` at the top of a workspace, so the store may lie in there."""


def check_reach(reach: object, parameters: Collection[str], label: str) -> Reach:
    """What was said about the reach of a tool, if it fits its parameters."""
    if reach is None:
        return Reach()
    if not isinstance(reach, Reach):
        raise ToolInvalid(label, None, f"reach is a Reach, not a {type(reach).__name__}")
    fields: dict[str, Any] = {name: getattr(reach, name) for name in _TEXTS}
    wrong = [name for name, value in fields.items() if value is not None and type(value) is not str]
    wrong += [name for name in ("paths", "workspaces") if not _names(getattr(reach, name))]
    if wrong:
        raise ToolInvalid(label, None, f"reach.{wrong[0]} is of the wrong type")
    for name in (*reach.paths, reach.command, reach.url):
        if name is not None and name not in parameters:
            raise ToolInvalid(label, None, f"reach names {name!r:.60}, which is no parameter of it")
    return reach


def _names(value: object) -> bool:
    return type(value) is tuple and all(type(name) is str for name in cast("tuple[object, ...]", value))


class ToolRetry(Exception):
    """Raised by a tool to ask the model for better arguments. The model reads the message as it is."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NotDone(Exception):
    """Raised by a `reconcile` function: the interrupted call had no effect, so it is safe to perform it now."""


P = ParamSpec("P")
R = TypeVar("R")
_NOWHERE = Reach()


class Bound(msgspec.Struct, frozen=True):
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
    said. `reconcile` finds out after a crash whether an interrupted call took effect. `terms` say how calls are
    carried out.
    """

    function: Callable[P, R]
    read_only: bool
    idempotent: bool
    destructive: bool | None
    reconcile: Callable[..., Any] | None
    terms: Terms
    spec: ToolSpec
    """The tool as the model sees it."""
    digest: str
    """Differs when the name, the description, the schema or the annotations differ."""
    accepts: Accepts = field(repr=False)
    reach: Reach = field(default=_NOWHERE)
    """What it touches."""
    version: str | None = None
    """Names what it does in the place of its code, for approvals."""
    repeat: Repeat = field(init=False)
    """What may happen to a call that was begun and has no outcome."""
    on_loop: bool = field(init=False)
    """Whether it is an async function, which runs on the event loop; any other runs in a thread."""

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
        return self.digest, self.function, self.terms, self.reconcile, self.reach, self.version

    # ---- what was said about it ----

    @property
    def name(self) -> str:
        """What models call it."""
        return self.spec.name

    @property
    def description(self) -> str:
        """What models read about it."""
        return self.spec.description

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return self.spec.parameters

    @property
    def timeout(self) -> float | None:
        """Seconds that one attempt may take."""
        return self.terms.timeout

    @property
    def inline_budget(self) -> float | None:
        """Seconds that a model waits for it; None where the agent's default applies."""
        return self.terms.inline_budget

    @property
    def max_parallel(self) -> int | None:
        """How many calls of it run at once in this process."""
        return self.terms.max_parallel

    @property
    def output_limit(self) -> int:
        """Longest text of a result that a model gets, in characters."""
        return self.terms.output_limit

    @property
    def retry(self) -> ToolRetryPolicy | None:
        """Whether and how it is tried again when it raises."""
        return self.terms.retry

    @property
    def background(self) -> bool | None:
        """Whether it always or never goes on in the background; None: past its budget."""
        return self.terms.background

    @property
    def on_interrupt(self) -> OnInterrupt:
        """Who is told of a call of which nobody knows whether it took effect."""
        return self.terms.on_interrupt

    @property
    def untrusted(self) -> bool:
        """Whether what it returns was written by strangers."""
        return self.terms.untrusted

    @property
    def polling(self) -> bool:
        """Whether repeating a call is how it is used."""
        return self.terms.polling

    @property
    def implementation(self) -> str:
        """Differs when its version differs; without a version, when its code does. Looked up anew each time."""
        if self.version is not None:
            return f"version:{self.version}"
        return f"code:{code_digest(self.function)}"

    def under(self, spec: ToolSpec, digest: str) -> Tool[P, R]:
        """The same function, shown to models in another way."""
        return replace(self, spec=spec, digest=digest)

    # ---- calling it ----

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

    def call(self, bound: Bound, context: Context | None = None) -> Coroutine[Any, Any, object]:
        """Call the function; answers what it returns, as it is. An iterator is read to its end, into a list."""
        kwargs = bound.kwargs
        if self.accepts.context is not None:
            kwargs = {**kwargs, self.accepts.context: context}
        return invoked(self.function, kwargs, self.spec.name, on_loop=self.on_loop)

    async def find_out(self, bound: Bound, context: Context) -> bytes:
        """Ask `reconcile` what came of an interrupted call; it raises `NotDone` when nothing did."""
        if self.reconcile is None:
            raise ToolInvalid(self.name, None, "it has no reconcile function")
        kwargs, on_loop = {"ctx": context, **bound.kwargs}, inspect.iscoroutinefunction(self.reconcile)
        return self.as_json(await invoked(self.reconcile, kwargs, f"{self.name} (reconcile)", on_loop=on_loop))

    def as_json(self, value: object) -> bytes:
        """The JSON of what the function gave."""
        try:
            return encode_value(value)
        except InvalidValue as error:
            # Whoever reads this must not take it for a call that did nothing.
            raise InvalidValue(error.path, f"{error.reason} ({self._ran()})") from error
        except Exception as error:  # what it gave may run code of its own when it is read
            raise InvalidValue("$", f"{said_by(error)} ({self._ran()})") from error

    def _ran(self) -> str:
        return f"the tool {self.name!r} ran to its end, only what it returned can't be kept"


AnyTool: TypeAlias = Tool[..., Any]

LONGEST: Final = timedelta(days=7)
"""How long a call waits for its answer where the tool does not say."""


class NoDefault:
    """The mark of a deferral that ends as an error when nobody answers."""

    def __repr__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT: Final = NoDefault()


class Deferred(Generic[R]):
    """A result that somebody outside gives later; a tool that has passed on the `key` returns it.

    ``-> Verdict | hf.Deferred[Verdict]`` says what the answer must be.
    """

    __slots__ = ("call", "default", "due", "key")

    def __init__(self, key: str, due: int, call: str, default: Any = NO_DEFAULT) -> None:  # noqa: ANN401
        self.key = key
        """What whoever answers has to show; the same after a crash. It is a secret like a password."""
        self.due = due
        """When it is too late, in wall milliseconds."""
        self.call = call
        """The call whose result it is."""
        self.default = default

    def __repr__(self) -> str:
        return f"Deferred(until {self.deadline.isoformat(timespec='seconds')})"

    @property
    def deadline(self) -> datetime:
        """When it is too late to answer."""
        return datetime.fromtimestamp(self.due / 1000, tz=UTC)


MAX_ATTEMPTS: Final = 10
"""Most attempts of one call."""
MAX_PAUSE: Final = 300.0
"""Longest pause between two attempts, in seconds."""


class ToolRetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What happens when a tool that is `read_only` or `idempotent` raises: it is tried again, under the same key.

    `attempts` counts the first one. The pause before the second attempt is `pause` seconds, and `factor` times longer
    before each that follows, up to `longest`. Only errors of the kinds in `on` are tried again; `ToolRetry` never is,
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
        """How many seconds to wait before the next attempt, when number `attempt` (from 1) ended so; None: no other."""
        if attempt >= self.attempts or isinstance(error, ToolRetry | NotDone) or not isinstance(error, self.on):
            return None
        grown = self.pause * self.factor ** (attempt - 1)
        return min(grown if math.isfinite(grown) else self.longest, self.longest)


def retry_policy(given: object) -> ToolRetryPolicy | None:
    """What `retry=` means: a policy, the number of attempts, or none."""
    if given is None or isinstance(given, ToolRetryPolicy):
        return given
    if type(given) is not int:
        raise InvalidArgument("retry", given, "the number of attempts or a ToolRetryPolicy")
    return ToolRetryPolicy(attempts=given)


def _is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)


OnInterrupt: TypeAlias = Literal["unknown", "ask"]
"""Who is told when nobody can say whether an interrupted call took effect: the model, or a person."""
Span: TypeAlias = "float | timedelta | None"
"""Seconds, or a timedelta; None where nothing is said."""
OUTPUT_LIMIT: Final = 50_000
"""Longest text of one result that a model gets, in characters, where a tool says nothing else.

About 12,000 tokens: a long file or a full page of search results, and still twenty of them in one conversation.
"""
LEAST_OUTPUT: Final = 1_000
"""Smallest limit that can be set: a marker and something around it must fit."""
MOST_OUTPUT: Final = 10_000_000
MOST_PARALLEL: Final = 10_000
_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")
_FLAGS: Final = ("read_only", "idempotent", "untrusted", "polling", "destructive", "background")
_OPEN: Final = frozenset(("destructive", "background"))  # nobody need say


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the decorator was given, unchecked."""

    name: str | None
    read_only: bool
    idempotent: bool
    destructive: bool | None
    timeout: Span
    inline_budget: Span
    max_parallel: int | None
    output_limit: int | None
    retry: ToolRetryPolicy | int | None
    background: bool | None
    on_interrupt: OnInterrupt
    reconcile: Callable[..., Any] | None
    untrusted: bool
    polling: bool
    reach: object
    version: str | None
    description: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How the calls of a tool are carried out. See `tool` for what each of them means."""

    timeout: float | None = None
    inline_budget: float | None = None
    max_parallel: int | None = None
    output_limit: int = OUTPUT_LIMIT
    retry: ToolRetryPolicy | None = None
    background: bool | None = None
    on_interrupt: OnInterrupt = "unknown"
    untrusted: bool = False
    polling: bool = False


def checked_terms(said: Said, label: str) -> Terms:
    """What was said, if it can be meant; otherwise `ToolInvalid`, which names what can't."""
    for what in _FLAGS:
        value = getattr(said, what)
        if type(value) is not bool and not (what in _OPEN and value is None):
            raise ToolInvalid(label, None, f"{what} is True or False, not {value!r:.60}")
    if said.read_only and said.destructive:
        raise ToolInvalid(label, None, "it can't be read_only and destructive at once")
    if said.description is not None and not isinstance(said.description, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise ToolInvalid(label, None, f"description must be text, not a {type(said.description).__name__}")
    _check_interrupt(said, label)
    limit = OUTPUT_LIMIT if said.output_limit is None else said.output_limit
    parallel = said.max_parallel
    return Terms(
        timeout=_seconds("timeout", said.timeout, label),
        inline_budget=_budget(said, label),
        max_parallel=None if parallel is None else _count("max_parallel", parallel, label, 1, MOST_PARALLEL),
        output_limit=_count("output_limit", limit, label, LEAST_OUTPUT, MOST_OUTPUT),
        retry=_retry(said, label),
        background=said.background,
        on_interrupt=said.on_interrupt,
        untrusted=said.untrusted,
        polling=said.polling,
    )


def checked_name(name: str, label: str) -> str:
    """A name that every provider takes."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        reason = "a name is 1 to 64 letters, digits, '_' or '-', and begins with a letter"
        raise ToolInvalid(label, None, f"it can't be called {str(name)[:80]!r}: {reason}; give another with name=")
    return name


def checked_version(version: str | None, label: str) -> str | None:
    """The version, if it is a text that can be one."""
    if version is None:
        return None
    try:
        return check_id("version", version)
    except UsageError as error:
        raise ToolInvalid(label, None, str(error)) from None


def check_reconcile(reconcile: object, parameters: Iterable[str], label: str) -> None:
    """It is called with the context as `ctx` and with the arguments of the call, by their names."""
    if reconcile is None:
        return
    if not callable(reconcile):
        raise ToolInvalid(label, None, f"reconcile must be a function, not a {type(reconcile).__name__}")
    try:
        signature = inspect.signature(reconcile)
    except (TypeError, ValueError):
        return  # a function that does not show what it takes
    try:
        signature.bind(ctx=None, **dict.fromkeys(parameters))
    except TypeError as error:
        wanted = ", ".join(["ctx", *parameters])
        raise ToolInvalid(label, None, f"reconcile is called with ({wanted}) by name: {error}") from None


def _check_interrupt(said: Said, label: str) -> None:
    if said.on_interrupt not in ("unknown", "ask"):
        raise ToolInvalid(label, None, f"on_interrupt is 'unknown' or 'ask', not {said.on_interrupt!r:.60}")
    if said.on_interrupt == "ask" and said.read_only:
        raise ToolInvalid(label, None, "on_interrupt='ask' means nothing for a read_only tool: it is called again")


def _budget(said: Said, label: str) -> float | None:
    if said.inline_budget is not None and said.background is not None:
        always = "at once" if said.background else "never"
        raise ToolInvalid(label, None, f"background={said.background} goes there {always}; leave inline_budget out")
    return _seconds("inline_budget", said.inline_budget, label)


def _retry(said: Said, label: str) -> ToolRetryPolicy | None:
    if said.retry is not None and not (said.read_only or said.idempotent):
        raise ToolInvalid(label, None, "retry is for tools that are read_only or idempotent; others are never repeated")
    try:
        return retry_policy(said.retry)
    except UsageError as error:
        raise ToolInvalid(label, None, str(error)) from None


def _count(what: str, value: object, label: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ToolInvalid(label, None, f"{what} is a whole number from {least:,} to {most:,}, not {value!r:.60}")
    return value


def _seconds(what: str, given: object, label: str) -> float | None:
    if given is None:
        return None
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ToolInvalid(label, None, f"{what} is seconds or a timedelta, not a {type(given).__name__}")
    if not (math.isfinite(seconds) and seconds > 0):
        raise ToolInvalid(label, None, f"{what} must be more than 0 seconds, not {seconds}; leave it out for none")
    return float(seconds)
