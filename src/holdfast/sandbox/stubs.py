"""Tools as functions of a program: the stubs for its type checker, and the binding of calls to arguments. Pure."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec

from holdfast.errors.caller import StubsInvalid
from holdfast.messages import OutputSpec, ToolSpec
from holdfast.tools.definition import AnyTool, tool
from holdfast.turns.programs import FINISH, PROGRAM

# ---- types from JSON schemas ----

MAX_NODES: Final = 2_000
"""Most schema nodes to read; the others become Any."""
_MAX_DEPTH: Final = 20
_MAX_CHOICES: Final = 64
_KINDS: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


@dataclass(slots=True)
class TypedDictWriter:
    """Writes the annotations of schemas, and collects the TypedDicts that they need."""

    classes: dict[str, str] = field(default_factory=dict[str, str])
    """The source of the classes by name, in order of dependency."""
    _places: int = 0

    def annotation(self, schema: object, title: str, root: dict[str, Any], depth: int = 0) -> str:
        """The type of one node. `title` names its class if it needs one, `root` has the definitions."""
        self._places += 1
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or self._places > MAX_NODES:
            return "Any"
        node = cast("dict[str, Any]", schema)
        if "$ref" in node:
            return self.annotation(_resolve_reference(node["$ref"], root), title, root, depth + 1)
        choices = [node["const"]] if "const" in node else node.get("enum")
        if isinstance(choices, list):
            return _literal(cast("list[object]", choices))
        for union in ("anyOf", "oneOf"):
            if isinstance(node.get(union), list):
                return self._union(node[union], title, root, depth)
        kind = node.get("type")
        if isinstance(kind, list):
            return self._union([{**node, "type": each} for each in cast("list[object]", kind)], title, root, depth)
        if kind == "array":
            return f"list[{self.annotation(node.get('items'), f'{title}Item', root, depth + 1)}]"
        if kind == "object" or "properties" in node:
            return self._object(node, title, root, depth)
        return _KINDS.get(kind, "Any") if isinstance(kind, str) else "Any"

    def _union(self, members: list[Any], title: str, root: dict[str, Any], depth: int) -> str:
        made = [self.annotation(each, f"{title}{n or ''}", root, depth + 1) for n, each in enumerate(members)]
        kinds = list(dict.fromkeys(made))
        return "Any" if "Any" in kinds or not kinds else " | ".join(kinds)

    def _object(self, node: dict[str, Any], title: str, root: dict[str, Any], depth: int) -> str:
        fields: object = node.get("properties")
        rest: object = node.get("additionalProperties")
        if not isinstance(fields, dict) or not fields:
            return f"dict[str, {self.annotation(cast('object', rest), f'{title}Value', root, depth + 1)}]"
        known = cast("dict[str, Any]", fields)
        # A TypedDict can't express additional keys.
        plain = all(_plain_name(name) and not name.startswith("__") for name in known)
        if isinstance(rest, dict) or rest is True or not plain:
            return "dict[str, Any]"
        required = node.get("required")
        needed = cast("list[object]", required) if isinstance(required, list) else []
        lines: list[str] = []
        for name, schema in known.items():
            kind = self.annotation(schema, title + name.title().replace("_", ""), root, depth + 1)
            lines.append(f"    {name}: {kind if name in needed else f'NotRequired[{kind}]'}\n")
        return self._class(title, "".join(lines))

    def _class(self, title: str, lines: str) -> str:
        name, number = title, 2
        while self.classes.setdefault(name, source := f"class {name}(TypedDict):\n{lines}") != source:
            name, number = f"{title}{number}", number + 1
        return name


def _literal(choices: list[object]) -> str:
    plain = all(each is None or isinstance(each, str | bool | int) for each in choices)
    if not choices or len(choices) > _MAX_CHOICES or not plain:
        return "Any"
    texts = [
        # A JSON text is a Python text, except for unusual line ends.
        msgspec.json.encode(each).decode().encode("ascii", "backslashreplace").decode()
        if isinstance(each, str)
        else repr(each)
        for each in choices
    ]
    return f"Literal[{', '.join(texts)}]"


def _resolve_reference(reference: object, root: dict[str, Any]) -> object:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: object = root
    for part in reference.removeprefix("#/").split("/"):
        if not isinstance(found, dict):
            return None
        found = cast("dict[str, object]", found).get(part.replace("~1", "/").replace("~0", "~"))
    return found


# ---- stubs ----

SINGLE_PARAMETER: Final = "arguments"
"""The only parameter of a tool with parameters that are no Python names."""
# Builtins of the sandbox unknown to its type checker.
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
    """The name of the function in programs."""
    description: str
    parameters: dict[str, Any]
    """The JSON schema of its arguments."""

    names: tuple[str, ...] = field(init=False)
    """Its parameters in positional order: required ones first."""
    needed: frozenset[str] = field(init=False)
    in_one: bool = field(init=False)
    """The arguments are one dict, because some of their names are no Python names."""

    def __post_init__(self) -> None:
        known = _properties(self.parameters)
        required = self.parameters.get("required")
        needed = frozenset(name for name in known if isinstance(required, list) and name in required)
        in_one = not all(_plain_name(name) for name in known)
        ordered = (*(name for name in known if name in needed), *(name for name in known if name not in needed))
        object.__setattr__(self, "needed", frozenset((SINGLE_PARAMETER,)) if in_one else needed)
        object.__setattr__(self, "in_one", in_one)
        object.__setattr__(self, "names", (SINGLE_PARAMETER,) if in_one else ordered)


def stubs_of(specs: Iterable[ToolSpec]) -> tuple[Stub, ...]:
    """A function for each tool; `StubsInvalid` if two tools get the same one."""
    found: dict[str, Stub] = {}
    for spec in specs:
        name = function_name(spec.name)
        if name in found:
            raise StubsInvalid(spec.name, f"programs would call it {name}, as they call {found[name].tool!r}")
        found[name] = Stub(spec.name, name, spec.description, spec.parameters)
    return tuple(found.values())


def function_name(tool: str) -> str:
    """The name of a tool in programs: its own, made a free Python name."""
    name = _ODD.sub("_", tool)
    if not name.strip("_"):
        raise StubsInvalid(tool, "nothing of its name can be a name in Python")
    name = f"tool_{name}" if name[0].isdigit() or name[0] == "_" else name
    return f"{name}_tool" if name in _RESERVED else name


def stub_source(stubs: Iterable[Stub], variables: Iterable[str] = ()) -> str:
    """The source for the type checker: these functions, and variables of any type."""
    return "".join((_PRELUDE, declarations(stubs), *(f"{name}: Any\n" for name in variables)))


def declarations(stubs: Iterable[Stub]) -> str:
    """The typed functions, also shown to the model."""
    shapes = TypedDictWriter()
    functions = [_declare(stub, shapes) for stub in stubs]
    return "".join((*shapes.classes.values(), *functions))


def _declare(stub: Stub, shapes: TypedDictWriter) -> str:
    title = "".join(part.capitalize() for part in stub.name.split("_"))
    known, parts = _properties(stub.parameters), list[str]()
    for name in stub.names:
        kind = "dict[str, Any]"
        if not stub.in_one:
            kind = shapes.annotation(known[name], title + name.title().replace("_", ""), stub.parameters)
        parts.append(f"{name}: {kind}" if name in stub.needed else f"{name}: {kind} = ...")
    words = " ".join(stub.description.split()).replace("\\", "\\\\").replace('"', '\\"')
    shown = "".join(c if c.isprintable() else "?" for c in words)
    docstring = f'\n    """{shown}"""\n   ' if shown else ""
    return f"async def {stub.name}({', '.join(parts)}) -> Any:{docstring} ...\n"


def bind_arguments(stub: Stub, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | str:
    """The arguments of the tool by name, or the error of the call in Python's words."""
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
        listed = ", ".join(f"'{name}'" for name in names if name in missing)
        return f"{stub.name}() missing required arguments: {listed}"
    if not stub.in_one:
        return given
    inside: object = given[SINGLE_PARAMETER]
    return cast("dict[str, Any]", inside) if isinstance(inside, dict) else f"{stub.name}() takes one dict"


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    found = schema.get("properties")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _plain_name(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


# ---- the tool and its instructions ----

_TOOL: Final = (
    "Run a Python program that can call the functions which your instructions declare. "
    "You read the value of its last expression, and what it printed."
)
_RULES: Final = """\
You act by writing Python programs for the tool `run_program`. The functions below are all that a program can do in \
the world. Each is async: write `await name(...)`; what they give are plain values (dicts, lists, texts, numbers). \
For calls that do not depend on each other write `await asyncio.gather(...)`. A call that fails or is not allowed \
raises an exception with the reason (PermissionError where it is not allowed), which the program may catch. The \
types are checked before anything runs. You read the value of the last expression, and what was printed.

Variables that hold plain values live on: the next program has them, also in later turns. Functions, classes and \
names that begin with `_` do not. Print or return only what you need to read.

The language is a part of Python: no files, no network, no `yield`, no inheritance, no decorators on methods, no \
`asyncio.create_task`. Of the standard library there are asyncio, collections, datetime, decimal, functools, \
itertools, json, math, random, re, time, typing and a few more. Top-level `await` is allowed."""
_FINISH: Final = "End your turn with this value as the answer. Nothing of the program runs after it."


def program_stubs(specs: Iterable[ToolSpec], output: OutputSpec | None) -> tuple[Stub, ...]:
    """The functions of programs: the tools, and the one that ends the turn."""
    schema: dict[str, Any] = {} if output is None else dict(output.schema)
    shared = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
    parameters = {"type": "object", "properties": {"value": schema}, "required": ["value"], **shared}
    return stubs_of([*specs, ToolSpec(FINISH, _FINISH, parameters)])


def program_instructions(stubs: Iterable[Stub]) -> str:
    """Instructions for a model that writes programs with these functions.

    They are not in the description of the tool because some providers accept only short ones.
    """
    return f"{_RULES}\n\n```python\n{declarations(stubs)}```"


def program_tool() -> AnyTool:
    """The tool with which a model runs programs; the turn itself performs it."""

    @tool(PROGRAM, idempotent=True, background=False, description=_TOOL)
    async def run_program(source: str) -> Any:  # any value of a program
        raise NotImplementedError(source)

    return run_program
