"""The public API equals `public_api.txt`: each name of the door, with signatures and the public members of classes.

A wanted change is written into the file by ``HOLDFAST_UPDATE=1 pytest tests/unit/test_public_api.py``; the diff of the
file then shows in review what users will notice. The modules in which the names live are left out on purpose.
"""

from __future__ import annotations

import difflib
import enum
import inspect
import os
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast, get_origin

import holdfast
from holdfast import errors, events, testing

if TYPE_CHECKING:
    from collections.abc import Iterator

SNAPSHOT: Final = Path(__file__).with_name("public_api.txt")
UPDATE: Final = "HOLDFAST_UPDATE"
PLAIN: Final = (type(None), bool, int, float, str, bytes, enum.Enum)
"""Defaults of these types are written out, others as `...`."""


def test_the_public_api_is_the_one_of_the_snapshot() -> None:
    now = "".join(f"{line}\n" for module in (holdfast, events, errors, testing) for line in _module_lines(module))
    if os.environ.get(UPDATE):
        SNAPSHOT.write_text(now, encoding="utf-8")
    before = SNAPSHOT.read_text(encoding="utf-8")
    diff = difflib.unified_diff(before.splitlines(), now.splitlines(), "public_api.txt", "now", lineterm="", n=1)
    assert now == before, "\n".join(
        (
            "the public API is not the one of tests/unit/public_api.txt:",
            *diff,
            f"If you want this change: {UPDATE}=1 .venv/bin/python -m pytest tests/unit/test_public_api.py,",
            "commit the file, and tell users of it in CHANGELOG.md.",
        )
    )


def _module_lines(module: ModuleType) -> Iterator[str]:
    yield f"module {module.__name__}"
    nested: list[ModuleType] = []
    for name in sorted(module.__all__):
        value = getattr(module, name)
        if isinstance(value, ModuleType):
            nested.append(value)
        yield from _name_lines(name, value)
    yield ""
    for inner in nested:
        yield from _module_lines(inner)


def _name_lines(name: str, value: object) -> Iterator[str]:
    if isinstance(value, ModuleType):
        yield f"  module {name}"
    elif _is_type_alias(value):
        yield f"  {name}: {_words(value)}"
    elif inspect.isclass(value):
        yield from _class_lines(name, cast("type[Any]", value))
    elif callable(value):
        yield f"  {_function(name, value)}"
    elif isinstance(value, PLAIN):
        yield f"  {name} = {_default(value)}"
    else:
        yield f"  {name}: {type(value).__name__}"


def _class_lines(name: str, kind: type[Any]) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in kind.__bases__ if _is_shown(base))
    title = f"  class {name}({bases})" if bases else f"  class {name}"
    yield title if kind.__name__ == name else f"{title} is {kind.__name__}"
    if issubclass(kind, enum.Enum):
        yield from (f"    {member.name} = {member.value!r}" for member in kind)
    elif not _is_protocol(kind):
        yield f"    {_function('__init__', kind)}"
    for member, value, annotation in sorted(_members(kind), key=lambda found: found[0]):
        yield f"    {_member(member, value, annotation)}"


def _members(kind: type[Any]) -> Iterator[tuple[str, object, str | None]]:
    """The public attributes of a class and of those of its bases that are ours: name, value, annotation."""
    seen: set[str] = set()
    members = set(kind.__members__) if issubclass(kind, enum.Enum) else set[str]()
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] != "holdfast":
            continue
        notes = {name: _words(note) for name, note in inspect.get_annotations(base).items()}
        for name in {*vars(base), *notes} - seen - members:
            if _is_public(name):
                seen.add(name)
                yield name, vars(base).get(name), notes.get(name)


def _is_shown(base: type) -> bool:
    """Whether users may know a base class: bases that only share code inside Holdfast are left out."""
    return base is not object and (base.__module__ == "builtins" or base.__name__ in holdfast.__all__)


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name in {"__aenter__", "__aexit__", "__aiter__", "__await__", "__call__"}


def _member(name: str, value: object, annotation: str | None) -> str:
    if isinstance(value, property):
        return f"{name}: {_returned(value.fget)} (property)"
    if isinstance(value, classmethod | staticmethod):
        made = cast("Any", value)
        return f"{_function(name, made.__func__)} ({type(made).__name__})"
    if annotation is not None:
        return f"{name}: {annotation}"
    if inspect.isfunction(value):
        return _function(name, value)
    return f"{name} = {_default(value)}" if isinstance(value, PLAIN) else name


def _function(name: str, function: Any) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return f"{name}(...)"
    written: list[str] = []
    notes = {name: note for name, _, note in _members(function) if note} if inspect.isclass(function) else {}
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    for index, parameter in enumerate(signature.parameters.values()):
        first = index == 0 or kinds[index - 1] != parameter.kind
        if parameter.kind is parameter.KEYWORD_ONLY and first and parameter.VAR_POSITIONAL not in kinds:
            written.append("*")
        if index and kinds[index - 1] is parameter.POSITIONAL_ONLY and parameter.kind is not parameter.POSITIONAL_ONLY:
            written.append("/")
        written.append(_parameter(parameter.replace(annotation=notes.get(parameter.name, parameter.annotation))))
    prefix = "async " if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function) else ""
    result = "" if inspect.isclass(function) else f" -> {_returned(function)}"
    return f"{prefix}{name}({', '.join(written)}){result}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    noted = "" if parameter.annotation is parameter.empty else f": {_words(parameter.annotation)}"
    default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
    return f"{stars}{parameter.name}{noted}{default}"


def _returned(function: Any) -> str:
    note = inspect.signature(function).return_annotation
    return "?" if note is inspect.Signature.empty else _words(note)


def _default(value: object) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, PLAIN):
        return repr(value)
    return "()" if value == () else "..."


def _words(note: object) -> str:
    """An annotation as it is written, without the modules of its names."""
    said = note if isinstance(note, str) else note.__name__ if inspect.isclass(note) else repr(note)
    return re.sub(r"\b[a-z_][a-z_0-9]*\.(?=[A-Za-z_])", "", said)


def _is_type_alias(value: object) -> bool:
    return get_origin(value) is not None


def _is_protocol(kind: type[Any]) -> bool:
    return bool(getattr(kind, "_is_protocol", False))
