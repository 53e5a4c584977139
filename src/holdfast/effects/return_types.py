"""The type that the function of a step declares, and recorded values of that type.

What a step gives back is the value after its way through JSON, the first time and on every replay, as the type that the
function declares to return. It is plain JSON where the annotation can't be resolved, where the value does not fit it,
and for a function without an annotation.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Union, cast, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from holdfast.effects.values import decode_value, encode_value

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_PLAIN: Final[frozenset[object]] = frozenset((None, type(None), str, int, float, bool, list, dict, Any, object))
_PLAIN_NAMES: Final = frozenset(("None", "str", "int", "float", "bool", "list", "dict", "Any", "object"))

_resolved: Final[WeakKeyDictionary[types.CodeType, Any]] = WeakKeyDictionary()


def return_type(function: Callable[..., Any]) -> Any:  # noqa: ANN401  annotations are of any type
    """The type that a function declares to return; None where that is plain JSON, or is not known."""
    while isinstance(function, partial):
        function = cast("Callable[..., Any]", function.func)
    annotations: dict[str, Any] = getattr(function, "__annotations__", None) or {}
    wanted: Any = annotations.get("return")
    if isinstance(wanted, str):
        wanted = None if wanted in _PLAIN_NAMES else _resolve(function, wanted)
    if get_origin(wanted) in {Awaitable, Coroutine}:
        wanted = get_args(wanted)[-1]
    return None if _is_plain(wanted) else wanted


def _resolve(function: Callable[..., Any], annotation: str) -> Any:  # noqa: ANN401
    inner = getattr(function, "__func__", function)
    code = getattr(inner, "__code__", None)
    if code is None:
        return None
    if code not in _resolved:
        holder = types.SimpleNamespace(__annotations__={"return": annotation})
        try:
            hints = get_type_hints(holder, getattr(inner, "__globals__", {}), include_extras=True)
        except Exception:  # noqa: BLE001  what a function returns need not be there at run time
            hints = {}
        _resolved[code] = hints.get("return")
    return _resolved[code]


def _is_plain(wanted: Any) -> bool:  # noqa: ANN401
    """Whether values of a type are what JSON gives back by itself."""
    origin, args = get_origin(wanted), get_args(wanted)
    if origin is None:
        return wanted is None or wanted is Any or (isinstance(wanted, type) and wanted in _PLAIN)
    if origin in {list, Union, types.UnionType}:
        return all(map(_is_plain, args))
    return origin is dict and args[0] is str and _is_plain(args[1])


def as_declared(value: Any, wanted: Any) -> Any:  # noqa: ANN401
    """A recorded value as the declared type; as it is where it does not fit."""
    body = encode_value(value)
    for read in (decode_value, _read_with_pydantic):
        with suppress(Exception):  # a type without a JSON form, a value that does not fit, a validator that raises
            return read(body, wanted)
    return value


def _read_with_pydantic(body: bytes, wanted: Any) -> Any:  # noqa: ANN401
    """Pydantic knows types that msgspec does not: paths, for one."""
    return _adapter(wanted).validate_json(body)


@lru_cache(maxsize=256)
def _adapter(wanted: Any) -> TypeAdapter[Any]:  # noqa: ANN401
    from pydantic import TypeAdapter  # noqa: PLC0415  only where it is needed

    return TypeAdapter(wanted)
