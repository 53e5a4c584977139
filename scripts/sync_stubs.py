"""Write `src/holdfast/runtime/sync.pyi`: the types of `hf.open_sync`, made from the classes of the async API.

    python scripts/sync_stubs.py

Each class of the async API has a class here with the same public methods and attributes: without `async`, with plain
iterators, and with the classes of this file in place of the async ones. A test compares the file with this script.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Final

from holdfast.runtime.sync import OMITTED

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src" / "holdfast"
STUBS: Final = SOURCE / "runtime" / "sync.pyi"
HANDLES: Final = {
    "Runtime": "runtime/runtime.py",
    "Session": "runtime/session.py",
    "Turn": "runtime/turn.py",
    "Process": "processes/service.py",
    "Processes": "processes/service.py",
    "ExternalWork": "processes/work_item.py",
    "HostCall": "runtime/host_call.py",
    "Tasks": "processes/tasks.py",
    "Attachments": "runtime/attachments.py",
    "Memory": "memory/handle.py",
    "Triggers": "triggers/service.py",
    "Trigger": "triggers/service.py",
    "Subscription": "runtime/subscriptions.py",
    "Emitted": "runtime/subscriptions.py",
    "Notifications": "runtime/notifications.py",
    "PumpedNotification": "runtime/notifications.py",
}
"""The classes with a facade, and the modules in which they are defined."""
ITERATORS: Final = {"AsyncGenerator": "Iterator", "AsyncIterator": "Iterator", "AsyncIterable": "AsyncIterable"}
HEAD: Final = '''\
# Written by scripts/sync_stubs.py from the classes of the async API; change those, and run it again.
"""The types of `hf.open_sync`: the objects of the async API, with methods that wait."""

import builtins
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload
'''


class Imports:
    """The imports of the stubs. Two modules may use one name for different things: the second gets another name."""

    def __init__(self) -> None:
        known = {"collections.abc": ("Callable", "Coroutine", "Iterator"), "types": ("TracebackType",)}
        known["typing"] = ("Any", "Final", "Self", "TypeVar", "overload")
        self._names = {(module, name): name for module, names in known.items() for name in names}
        self.lines: list[str] = []

    def name(self, module: str, name: str) -> str:
        """The name in the stubs of a name of a module."""
        found = self._names.get((module, name))
        if found is None:
            taken = set(self._names.values())
            found = name if name not in taken else next(f"{name}{n}" for n in range(2, 99) if f"{name}{n}" not in taken)
            self._names[module, name] = found
            self.lines.append(f"from {module} import {name} as {found}")
        return found


class Module:
    """A module of the async API, and where its names come from."""

    def __init__(self, path: str) -> None:
        self.tree = ast.parse((SOURCE / path).read_text(encoding="utf-8"))
        self.name = "holdfast." + path.removesuffix(".py").replace("/", ".")
        self.origins: dict[str, tuple[str, str]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                self.origins.update({alias.asname or alias.name: (node.module, alias.name) for alias in node.names})
        for node in self.tree.body:
            names = [node.name] if isinstance(node, ast.ClassDef) else []
            names += [target.id for target in _targets(node) if isinstance(target, ast.Name)]
            self.origins.update({name: (self.name, name) for name in names})

    def definition(self, name: str) -> ast.ClassDef:
        return next(node for node in self.tree.body if isinstance(node, ast.ClassDef) and node.name == name)

    def function(self, name: str) -> ast.AsyncFunctionDef:
        return next(node for node in self.tree.body if isinstance(node, ast.AsyncFunctionDef) and node.name == name)


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


class Annotations(ast.NodeTransformer):
    """Rewrites annotations of a module for the stubs."""

    def __init__(self, module: Module, imports: Imports) -> None:
        self._module = module
        self._imports = imports

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if node.attr in HANDLES:
            return ast.Name(f"Sync{node.attr}")
        node.value = self.visit(node.value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in HANDLES:
            return ast.Name(f"Sync{node.id}")
        module, name = self._module.origins.get(node.id, ("", ""))
        if not module:
            return node
        if module == "collections.abc" and name in ITERATORS:
            name = ITERATORS[name]
        return ast.Name(self._imports.name(module, name))

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return self.visit(ast.parse(node.value, mode="eval").body) if isinstance(node.value, str) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == "Literal":
            node.value = self.visit(node.value)
            return node
        node.value, node.slice = self.visit(node.value), self.visit(node.slice)
        return node


def main() -> None:
    """Write the stubs."""
    STUBS.write_text(stubs(), encoding="utf-8")


def stubs() -> str:
    """The text of the stubs."""
    imports = Imports()
    modules = {path: Module(path) for path in [*HANDLES.values(), "runtime/open.py"]}
    classes = [_facade(name, modules[path], imports) for name, path in HANDLES.items()]
    opening = modules["runtime/open.py"]
    change = Annotations(opening, imports)
    functions = [
        _function(opening.function("open"), change, name="open_sync", returns="SyncRuntime"),
        _function(opening.function("run"), change, name="run_sync"),
    ]
    rest = """FACADES: Final[dict[type, type[Any]]]
OMITTED: Final[dict[str, frozenset[str]]]
_T = TypeVar("_T")
def call_on_loop(runtime: SyncRuntime, name: str, make: Callable[[], Coroutine[Any, Any, _T]]) -> _T: ..."""
    text = "\n".join([HEAD, *sorted(imports.lines), "", rest, "", *classes, *functions]) + "\n"
    return _formatted(text)


def _facade(name: str, module: Module, imports: Imports) -> str:
    definition, change = module.definition(name), Annotations(module, imports)
    omitted = OMITTED.get(name, frozenset())
    bases = ", ".join(ast.unparse(change.visit(base)) for base in definition.bases)
    lines = [f"class Sync{name}({bases}):" if bases else f"class Sync{name}:"]
    for node in definition.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == "__init__":
                lines += [f"    {line}" for line in _attributes(node, change, omitted)]
            elif not node.name.startswith("_") and node.name not in omitted:
                lines.append(_indented(_function(node, change)))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            lines.append(f"    {node.target.id}: {ast.unparse(change.visit(node.annotation))}")
    if name == "Runtime":
        lines.append("    @property\n    def forked(self) -> bool: ...")
        lines.append("    def __enter__(self) -> Self: ...")
        exits = "kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None"
        lines.append(f"    def __exit__(self, {exits}) -> None: ...")
    return "\n".join(lines) + "\n"


def _attributes(
    init: ast.FunctionDef | ast.AsyncFunctionDef, change: Annotations, omitted: frozenset[str]
) -> list[str]:
    """The public attributes that `__init__` sets."""
    given = {argument.arg: argument.annotation for argument in [*init.args.args, *init.args.kwonlyargs]}
    lines: dict[str, str] = {}
    for node in init.body:
        for target in _targets(node):
            if not (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)):
                continue
            name, annotation = target.attr, getattr(node, "annotation", None)
            if target.value.id != "self" or name.startswith("_") or name in omitted:
                continue
            value = getattr(node, "value", None)
            called = value.func if isinstance(value, ast.Call) else None
            if annotation is None and isinstance(value, ast.Name):
                annotation = given.get(value.id)
            made = getattr(called, "attr", getattr(called, "id", ""))
            plain = "str" if name in {"id", "session", "turn", "name"} else "Any"
            kind = f"Sync{made}" if made in HANDLES else plain
            lines[name] = f"{name}: {kind if annotation is None else ast.unparse(change.visit(annotation))}"
    return list(lines.values())


def _function(
    node: ast.FunctionDef | ast.AsyncFunctionDef, change: Annotations, *, name: str = "", returns: str = ""
) -> str:
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    for argument in every:
        if argument is not None and argument.annotation is not None:
            argument.annotation = change.visit(argument.annotation)
    for defaults in (arguments.defaults, arguments.kw_defaults):
        defaults[:] = [
            each if each is None or isinstance(each, ast.Constant) else ast.Constant(...) for each in defaults
        ]
    result = returns or ("None" if node.returns is None else ast.unparse(change.visit(node.returns)))
    kept = [one for one in node.decorator_list if isinstance(one, ast.Name) and one.id in {"overload", "property"}]
    head = "".join(f"@{one.id}\n" for one in kept)
    said = ast.get_docstring(node)
    body = f'\n    """{said.splitlines()[0]}"""\n    ...' if said else " ..."
    return f"{head}def {name or node.name}({ast.unparse(arguments)}) -> {result}:{body}"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _formatted(text: str) -> str:
    for arguments in (["check", "--fix", "--exit-zero", "--quiet"], ["format", "--quiet"]):
        command = [str(Path(sys.executable).with_name("ruff")), *arguments, "--stdin-filename", str(STUBS), "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT)
        text = done.stdout
    return text


if __name__ == "__main__":
    main()
