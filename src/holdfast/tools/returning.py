"""What a function says that it returns, and whether an answer from outside fits that.

This module loads pydantic, so it is imported when the first such answer comes.
"""

from __future__ import annotations

import inspect
import types
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from pydantic import TypeAdapter, ValidationError

import holdfast
from holdfast.tools.context import Context
from holdfast.tools.deferral import Deferred
from holdfast.tools.results import said_by, shorten

if TYPE_CHECKING:
    from collections.abc import Callable

_SHOWN: Final = 600


def complaint_about(function: Callable[..., Any], body: bytes) -> str | None:
    """What is wrong with the JSON in `body` as a result of `function`; None when it fits, or nobody says what would."""
    read = _reader_of(function)
    if read is None:
        return None
    try:
        read(body)
    except ValidationError as error:
        first, *rest = error.errors(include_url=False, include_context=False, include_input=False)
        place = ".".join(map(str, first["loc"]))
        more = f" (and {len(rest):,} more)" if rest else ""
        return shorten(f"{place}: {first['msg']}{more}" if place else f"{first['msg']}{more}", _SHOWN)
    except Exception as error:  # noqa: BLE001  a validator of the user's own types may raise anything
        return shorten(said_by(error), _SHOWN)
    return None


def is_annotated(function: Callable[..., Any]) -> bool:
    """Whether the function says what it returns, in a way that can be checked."""
    return _reader_of(function) is not None


@lru_cache(maxsize=1024)
def _reader_of(function: Callable[..., Any]) -> Callable[[bytes], object] | None:
    """What reads a result from JSON as its type; None where that is not said, or has no JSON form."""
    try:
        annotation = inspect.signature(function).return_annotation
        if annotation is inspect.Signature.empty:
            return None
        names = {"Context": Context, "hf": holdfast, "holdfast": holdfast}
        names |= getattr(inspect.unwrap(function), "__globals__", {})
        holder = types.SimpleNamespace(__annotations__={"return": annotation})
        wanted = answer_type(get_type_hints(holder, names, include_extras=True)["return"])
    except Exception:  # noqa: BLE001  what a function returns need not be there at run time
        return None
    return _reader(wanted)


def _reader(wanted: Any) -> Callable[[bytes], object] | None:  # noqa: ANN401
    try:
        # What is recorded is the answer as it came, so nothing is made to fit.
        return partial(TypeAdapter(wanted).validate_json, strict=True)
    except Exception:  # noqa: BLE001  a struct, or a type that has no JSON form at all
        if not (isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)):
            return None
    return msgspec.json.Decoder(wanted).decode


def answer_type(hint: Any) -> Any:  # noqa: ANN401  annotations are of any type
    """The type of the answer in ``T``, ``Deferred[T]`` or ``T | Deferred[T]``."""
    origin = get_origin(hint)
    if hint is Deferred:
        return Any
    if origin is Deferred:
        return get_args(hint)[0]
    if origin is Annotated:
        return answer_type(get_args(hint)[0])
    if origin is Union or origin is types.UnionType:
        others = [kind for kind in get_args(hint) if kind is not Deferred and get_origin(kind) is not Deferred]
        inner = [answer_type(kind) for kind in get_args(hint) if kind is Deferred or get_origin(kind) is Deferred]
        kinds = [*others, *(kind for kind in inner if kind is not Any)]
        return Union[tuple(kinds)] if kinds else Any  # noqa: UP007  the members are known only here
    return hint
