"""Dependencies: the value that a host gives its tools, hooks and processes, as `ctx.deps`. It is never stored."""

from __future__ import annotations

import inspect
import types
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    TypeAlias,
    Union,
    cast,
    final,
    get_args,
    get_origin,
    get_type_hints,
)

from typing_extensions import TypeVar

from holdfast.errors.caller import DepsMismatch, DepsMissing, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    DepsSource: TypeAlias = (
        "T | AbstractAsyncContextManager[T] | Callable[[], T | Awaitable[T] | AbstractAsyncContextManager[T]]"
    )

T = TypeVar("T")
DepsT = TypeVar("DepsT", default=Any)
DepsT_contra = TypeVar("DepsT_contra", default=Any, contravariant=True)


@final
class _NoDeps:
    def __repr__(self) -> str:
        return "NO_DEPS"


NO_DEPS: Final[Any] = _NoDeps()
"""Marks a runtime without dependencies: None may be a value."""


@asynccontextmanager
async def provide_deps(given: object) -> AsyncGenerator[object]:
    """The value of `hf.open(deps=...)`: a value, an async context manager, or a function that gives one of them.

    A context manager is entered, and left when the runtime is closed.
    """
    made = given
    if inspect.isroutine(given) or isinstance(given, type | partial):
        make = cast("Callable[[], object]", given)
        try:
            inspect.signature(make).bind()
        except TypeError as error:
            raise InvalidArgument("deps", make, f"a function without required arguments ({error})") from None
        made = make()
        if inspect.isawaitable(made):
            made = await made
    if isinstance(made, AbstractAsyncContextManager):
        async with cast("AbstractAsyncContextManager[object]", made) as value:
            yield value
    else:
        yield made


def check_deps(deps: object, wanted: object, who: str) -> None:
    """Raise `DepsMissing` or `DepsMismatch` unless `deps` can be the `wanted` type; None: `who` wants none."""
    if wanted is None:
        return
    name = getattr(wanted, "__qualname__", None) or str(wanted)
    if deps is NO_DEPS:
        raise DepsMissing(who, name)
    if not _fits(deps, wanted):
        raise DepsMismatch(who, name, type(deps).__qualname__)


def deps_type(hint: object) -> object:
    """The type of the dependencies in an annotation such as ``Context[Deps]``; None if it names none."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in {Union, types.UnionType}:
        return next((found for found in map(deps_type, args) if found is not None), None)
    if origin is Annotated:
        return deps_type(args[0])
    return None if not args or args[0] is Any or isinstance(args[0], TypeVar) else args[0]


def deps_of_context(function: Callable[..., object]) -> object:
    """The type of the dependencies in the annotation of the first parameter, a context; None if it names none."""
    called: Any = getattr(function, "func", function)  # that of a partial
    if not inspect.isroutine(cast("object", called)):
        called = type(called).__call__
    try:
        hints = get_type_hints(called)
        first = next(iter(inspect.signature(function).parameters), "")
    except Exception:  # a name that is only there for type checkers, or no signature
        return None
    return deps_type(hints.get(first))


def _fits(deps: object, wanted: object) -> bool:
    """False if `deps` is certainly not of the `wanted` type: type parameters and plain protocols can't be checked."""
    origin = get_origin(wanted) or wanted
    if origin in {Union, types.UnionType}:
        return any(_fits(deps, each) for each in get_args(wanted))
    if origin is Annotated:
        return _fits(deps, get_args(wanted)[0])
    if wanted is None:
        return deps is None
    if not isinstance(origin, type):
        return True
    try:
        return isinstance(deps, origin)
    except TypeError:  # a protocol that is not checked at run time, or a TypedDict
        return True
