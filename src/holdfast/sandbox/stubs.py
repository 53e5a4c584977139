"""The tools of a program as functions: what a type checker reads, and how calls become arguments of tools. Pure."""

from __future__ import annotations

import builtins
import keyword
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.errors.programs import StubsInvalid
from holdfast.sandbox.schemas import Shapes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.messages import ToolSpec

ONE: Final = "arguments"
"""The only parameter of a tool whose own parameters have names that Python does not take."""

# What the sandbox has, and its type checker does not know of.
_PRELUDE: Final = """\
from typing import Any, Literal, NotRequired, TypedDict
def map(function: Any, /, *iterables: Any) -> Any: ...
def filter(function: Any, iterable: Any, /) -> Any: ...
def getattr(value: Any, name: str, default: Any = ..., /) -> Any: ...
def hasattr(value: Any, name: str, /) -> bool: ...
def setattr(value: Any, name: str, to: Any, /) -> None: ...
def format(value: Any, spec: str = "", /) -> str: ...
class PermissionError(OSError): ...
class FileNotFoundError(OSError): ...
class FileExistsError(OSError): ...
class IsADirectoryError(OSError): ...
class NotADirectoryError(OSError): ...
class ImportError(Exception): ...
class ModuleNotFoundError(ImportError): ...
class UnboundLocalError(NameError): ...
class UnicodeDecodeError(ValueError): ...
class UnicodeEncodeError(ValueError): ...
"""
_RESERVED: Final = frozenset((*dir(builtins), *keyword.kwlist, *keyword.softkwlist, "typing", "asyncio"))
_ODD: Final = re.compile(r"[^a-zA-Z0-9_]")


@dataclass(frozen=True, slots=True)
class Stub:
    """A tool as a function of a program."""

    tool: str
    """The tool's own name."""
    name: str
    """What the function is called in programs."""
    description: str
    parameters: dict[str, Any]
    """The JSON schema of its arguments."""
    returns: dict[str, Any] | None = None
    """The JSON schema of what it gives, where that is known."""

    names: tuple[str, ...] = field(init=False)
    """Its parameters in the order in which a program may give them: what must be given comes first."""
    needed: frozenset[str] = field(init=False)
    """The parameters that can't be left out."""
    in_one: bool = field(init=False)
    """Whether the arguments are given as one dict, because Python does not take all of their names."""

    def __post_init__(self) -> None:
        known = _properties(self.parameters)
        needed = frozenset(_texts(self.parameters.get("required"))) & known.keys()
        in_one = not all(_plain_name(name) for name in known)
        ordered = (*(name for name in known if name in needed), *(name for name in known if name not in needed))
        object.__setattr__(self, "needed", frozenset((ONE,)) if in_one else needed)
        object.__setattr__(self, "in_one", in_one)
        object.__setattr__(self, "names", (ONE,) if in_one else ordered)


def stubs_of(specs: Iterable[ToolSpec], returns: Mapping[str, dict[str, Any]] | None = None) -> tuple[Stub, ...]:
    """A function for each tool; `StubsInvalid` for tools that would have the same one."""
    found: dict[str, Stub] = {}
    for spec in specs:
        name = function_name(spec.name)
        if name in found:
            raise StubsInvalid(spec.name, f"programs would call it {name}, as they call {found[name].tool!r}")
        shape = None if returns is None else returns.get(spec.name)
        found[name] = Stub(spec.name, name, spec.description, spec.parameters, shape)
    return tuple(found.values())


def function_name(tool: str) -> str:
    """What a tool is called in programs: its own name, where Python takes that and does not use it for itself."""
    name = _ODD.sub("_", tool)
    if not name.strip("_"):
        raise StubsInvalid(tool, "nothing of its name can be a name in Python")
    name = f"tool_{name}" if name[0].isdigit() or name[0] == "_" else name
    return f"{name}_tool" if name in _RESERVED else name


def stub_source(stubs: Iterable[Stub], variables: Iterable[str] = ()) -> str:
    """What the type checker reads: these functions, and variables of any type."""
    return "".join((_PRELUDE, declarations(stubs), *(f"{name}: Any\n" for name in variables)))


def declarations(stubs: Iterable[Stub]) -> str:
    """The functions with their types, as they are shown to a model too."""
    shapes = Shapes()
    functions = [_declared(stub, shapes) for stub in stubs]
    return "".join((*shapes.written(), *functions))


def _declared(stub: Stub, shapes: Shapes) -> str:
    title = "".join(part.capitalize() for part in stub.name.split("_"))
    returns = "Any" if stub.returns is None else shapes.annotation(stub.returns, f"{title}Result", stub.returns)
    words = _docstring(stub.description)
    return f"async def {stub.name}({_signature(stub, title, shapes)}) -> {returns}:{words} ...\n"


def _signature(stub: Stub, title: str, shapes: Shapes) -> str:
    if stub.in_one:
        return f"{ONE}: dict[str, Any]"
    known, needed = _properties(stub.parameters), stub.needed
    parts: list[str] = []
    for name in stub.names:
        kind = shapes.annotation(known[name], title + name.title().replace("_", ""), stub.parameters)
        parts.append(f"{name}: {kind}" if name in needed else f"{name}: {kind} = ...")
    return ", ".join(parts)


def _docstring(text: str) -> str:
    words = " ".join(text.split())
    if not words:
        return ""
    safe = words.replace("\\", "\\\\").replace('"', '\\"')
    return f'\n    """{"".join(c if c.isprintable() else "?" for c in safe)}"""\n   '


def bound(stub: Stub, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | str:
    """The arguments of the tool by their names, or what is wrong with the call, as Python would say it."""
    names = stub.names
    if len(args) > len(names):
        return f"{stub.name}() takes {len(names)} positional arguments but {len(args)} were given"
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name in given:
            return f"{stub.name}() got multiple values for argument '{name}'"
        if name not in names:
            return f"{stub.name}() got an unexpected keyword argument '{name}'"
        given[name] = value
    missing = stub.needed - given.keys()
    if missing:
        told = ", ".join(f"'{name}'" for name in names if name in missing)
        return f"{stub.name}() missing required arguments: {told}"
    if not stub.in_one:
        return given
    inside: object = given[ONE]
    return cast("dict[str, Any]", inside) if isinstance(inside, dict) else f"{stub.name}() takes one dict"


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    found = schema.get("properties")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _texts(value: object) -> list[str]:
    listed = cast("list[object]", value) if isinstance(value, list) else []
    return [item for item in listed if isinstance(item, str)]


def _plain_name(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
