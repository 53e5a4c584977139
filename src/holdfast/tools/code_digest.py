"""The digest of a function's code: an approval binds it, so that other code under the same name is asked about again.

Code is compiled code, as this process runs it: a source file may have changed since it was loaded. File names, line
numbers and comments are no part of it, so that the same source gives the same digest in every process of one Python
version. Values are no part of it either (what a closure, a module, a dict or an attribute of an object holds):
`version=` of a tool speaks for those.
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
    it names, and, for a bound method, methods and properties of its class that it names. All functions of a class of
    its own module count, where it names or closes over that class or an object of it.
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
            runs += [self.add(value, given) for value, given in _named(function, owner)]
            yield _described(function.__code__), _defaults(function), runs


def _function_of(value: object, owner: type | None) -> tuple[FunctionType | None, type | None]:
    """The function behind a method, a partial, a tool or a wrapper that names what it wraps."""
    from holdfast.tools.definition import Tool  # noqa: PLC0415  a tool asks for its digest

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


def _held(function: FunctionType) -> Iterator[object]:
    """What a function holds itself: its closure, its defaults, what it wraps; what partials and classes in it hold."""
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


def _named(function: FunctionType, owner: type | None) -> Iterator[tuple[object, type | None]]:
    """Functions and classes of its module, and methods of its class, that the code names; each with its owner."""
    module = function.__globals__.get("__name__")
    for name in sorted(set(_names(function.__code__))):
        found = function.__globals__.get(name)
        if _is_of(found, module):
            yield found, None
        for value in _functions_of_class(_class_of(found), module):
            yield value, None
        if owner is not None:
            for value in _parts(inspect.getattr_static(owner, name, None)):
                yield value, owner
    # Operators and `with` name no method.
    for value in _functions_of_class(owner, module, special=True):
        yield value, owner


def _is_of(value: object, module: object) -> bool:
    """Whether a function was written in a module. Decorators of other modules keep the name of its module."""
    function = _function_of(value, None)[0]
    return function is not None and module in {function.__module__, function.__globals__.get("__name__")}


def _class_of(value: object) -> type:
    return value if isinstance(value, type) else type(value)


def _functions_of_class(cls: type | None, module: object, *, special: bool = False) -> Iterator[object]:
    """The functions of a class, of its bases and of the classes in it, as far as they are of one module.

    They come in the order of their names. `special`: only those that Python itself calls, such as `__getitem__`.
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
            yield from (part for part in _parts(value) if _is_of(part, module))
        todo += [base for base in each.__mro__ if base not in todo]


def _parts(value: object) -> tuple[object, ...]:
    """The functions of a property; of what else a class has, itself."""
    match value:
        case property():
            return value.fget, value.fset, value.fdel
        case functools.cached_property() | functools.partialmethod() | functools.singledispatchmethod():
            return (cast("functools.cached_property[Any]", value).func,)
        case _:
            return (value,)


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
