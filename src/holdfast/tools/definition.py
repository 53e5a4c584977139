"""A tool: a function that a model may call, with what its author says about it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias, TypeVar, cast

import msgspec

from holdfast.effects.replay import Repeat
from holdfast.effects.values import decode_value, encode_value
from holdfast.errors import InvalidValue, ToolInvalid
from holdfast.tools.implementation import code_digest
from holdfast.tools.invoking import invoked
from holdfast.tools.reach import Reach
from holdfast.tools.results import said_by
from holdfast.tools.signals import NotDone, ToolRetry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from holdfast.messages import ToolSpec
    from holdfast.tools.context import Context
    from holdfast.tools.declared import OnInterrupt, Terms
    from holdfast.tools.retries import ToolRetryPolicy
    from holdfast.tools.schema import Accepts

__all__ = ["AnyTool", "Bound", "Complaint", "NotDone", "Tool", "ToolRetry"]

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
