"""The digest of a function's code. An approval is bound to it, so that changed code needs a new approval.

Code is compiled code as this process runs it: the source file may have changed since it was loaded. File names, line
numbers and comments are not part of it, so the same source gives the same digest in every process of one Python
version. Values in closures, modules and objects are not part of it either: `version=` of a tool covers those.
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
"""Most functions in one digest; further ones are left out, always the same ones."""
_SCALARS: Final = (str, bytes, int, float, complex, bool, type(None), type(...))


def code_digest(function: Callable[..., Any]) -> str:
    """SHA-256 of the code of a function and of the functions that it runs and that belong to it.

    Those are the functions that it closes over or wraps (also inside partials), functions of its own module that it
    names, and, for a bound method, methods and properties of its class that it names. All functions of a class of its
    own module count, where it names or closes over that class or an object of it.
    """
    reader = _CodeWalker()
    reader.add(function, None)
    return digest_of_bytes("code", repr(list(reader.described())).encode())


class _CodeWalker:
    """Walks functions in an order that depends only on their code."""

    def __init__(self) -> None:
        self._found: list[tuple[FunctionType, type | None]] = []
        self._places: dict[tuple[int, type | None], int] = {}

    def add(self, value: object, owner: type | None) -> int | None:
        """The index of a function in the list; None for other values, and beyond `MAX_FUNCTIONS`."""
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
        """The code of each function, with the indexes of the functions that it runs."""
        for function, owner in self._found:  # it grows meanwhile
            runs = [self.add(value, None) for value in _objects_of(function)]
            runs += [self.add(value, given) for value, given in _names_in(function, owner)]
            yield _describe_code(function.__code__), _defaults(function), runs


def _function_of(value: object, owner: type | None) -> tuple[FunctionType | None, type | None]:
    """The function behind a method, a partial, a tool or a wrapper with `__wrapped__`."""
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
    for name in sorted(set(_names(function.__code__))):
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
    """Whether a module defines the function. A decorator from another module keeps the name of its module."""
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


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


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
    if isinstance(value, frozenset):  # in an order of its own
        return ("frozenset", sorted(map(repr, map(_constant, cast("Iterable[object]", value)))))
    if isinstance(value, tuple):
        return ("tuple", [_constant(part) for part in cast("Iterable[object]", value)])
    return (type(value).__name__, hex(value) if type(value) is int else repr(value))


def _defaults(function: FunctionType) -> list[object]:
    """Plain default values; of others, only the type."""
    given = [*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())]
    return [_default(value) for value in given]


def _default(value: object) -> object:
    if isinstance(value, tuple):
        return [_default(part) for part in cast("Iterable[object]", value)]
    return _constant(value) if type(value) in _SCALARS else type(value).__qualname__
