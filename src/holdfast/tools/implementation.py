"""The digest of a function's code: an approval binds it, so that other code under the same name is asked about again.

Code is compiled code, as this process runs it: a source file may have changed since it was loaded. File names, line
numbers and comments are no part of it, so that the same source gives the same digest in every process of one Python
version. Values are no part of it either (what a closure or a module holds): `version=` of a tool speaks for those.
"""

from __future__ import annotations

import functools
import inspect
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.effects.canonical import digest_of_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MAX_FUNCTIONS: Final = 500
"""Functions that one digest covers. Further ones are left out, always the same."""
_SCALARS: Final = (str, bytes, int, float, complex, bool, type(None), type(...))


def code_digest(function: Callable[..., Any]) -> str:
    """SHA-256 of the code of a function and of the functions that it runs, as far as they belong to it.

    Those are the functions that it closes over or wraps (also those inside partials), functions of its own module that
    it names, and, for a bound method, methods of its class that it names.
    """
    reader = _Reader()
    reader.add(function, None)
    return digest_of_bytes("code", repr(list(reader.described())).encode())


class _Reader:
    """Goes through functions in an order that depends on nothing but their code."""

    def __init__(self) -> None:
        self._found: list[tuple[FunctionType, type | None]] = []
        self._places: dict[tuple[int, type | None], int] = {}

    def add(self, value: object, owner: type | None) -> int | None:
        """The place of a function in the list; None for what is no function, and for more than can be covered."""
        function, owner = _function_of(value, owner)
        if function is None:
            return None
        key = id(function), owner
        if key not in self._places:
            if len(self._found) >= MAX_FUNCTIONS:
                return None
            self._places[key] = len(self._found)
            self._found.append((function, owner))
        return self._places[key]

    def described(self) -> Iterator[tuple[object, ...]]:
        """The code of each function, and the places of those that it runs."""
        for function, owner in self._found:  # it grows meanwhile
            runs = [self.add(value, None) for value in _held(function)]
            runs += [self.add(value, owner) for value in _named(function, owner)]
            yield _described(function.__code__), _defaults(function), runs


def _function_of(value: object, owner: type | None) -> tuple[FunctionType | None, type | None]:
    """The function behind a method, a partial, a tool or a wrapper that names what it wraps."""
    from holdfast.tools.definition import Tool  # noqa: PLC0415  a tool asks for its digest

    for _ in range(MAX_FUNCTIONS):
        match value:
            case FunctionType():
                return value, owner
            case MethodType():
                value, owner = value.__func__, type(value.__self__)
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


def _held(function: FunctionType) -> Iterator[object]:
    """What a function holds itself: its closure, its defaults, what it wraps; and what partials among these hold."""
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


def _named(function: FunctionType, owner: type | None) -> Iterator[object]:
    """Functions of the same module, and methods of the same class, that the code names."""
    for name in sorted(set(_names(function.__code__))):
        found = function.__globals__.get(name)
        if getattr(_function_of(found, None)[0], "__globals__", None) is function.__globals__:
            yield found
        if owner is not None:
            yield inspect.getattr_static(owner, name, None)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _described(code: CodeType) -> tuple[object, ...]:
    return (
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
        code.co_code.hex(),
        code.co_exceptiontable.hex(),
        (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        [_constant(value) for value in code.co_consts],
    )


def _constant(value: object) -> tuple[object, ...]:
    if isinstance(value, CodeType):
        return _described(value)
    if isinstance(value, frozenset):  # in an order of its own
        return ("frozenset", sorted(map(repr, map(_constant, cast("Iterable[object]", value)))))
    if isinstance(value, tuple):
        return ("tuple", [_constant(part) for part in cast("Iterable[object]", value)])
    return (type(value).__name__, hex(value) if type(value) is int else repr(value))


def _defaults(function: FunctionType) -> list[object]:
    """Defaults that are plain values; of others, only their types."""
    given = [*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())]
    return [_default(value) for value in given]


def _default(value: object) -> object:
    if isinstance(value, tuple):
        return [_default(part) for part in cast("Iterable[object]", value)]
    return _constant(value) if type(value) in _SCALARS else type(value).__qualname__
