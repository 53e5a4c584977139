"""Imports point one way: data <- pure decisions <- store, models, tools <- runtime <- testing, command line."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.every import every
from tests.parsing import parsed

PACKAGE = Path(__file__).parents[2] / "src" / "holdfast"

# A module may import from its own layer and from those above it in this list, never from below.
# A dotted name gives a module another layer than its package.
LAYERS: list[tuple[str, ...]] = [
    (
        *("errors", "clock", "names", "crashpoints", "records", "messages", "media", "eventloop", "plainfiles"),
        *("deps", "logs"),
    ),
    ("secrets",),
    ("effects",),
    (
        "policy",
        "turns",
        "events",
        "processes",
        "processes.keys",
        "processes.state",
        "triggers",
        "triggers.definition",
        "triggers.schedules",
        "triggers.signatures",
        "triggers.state",
    ),
    ("store", "models", "tools", "effects.performer", "effects.drive"),
    ("profiles", "toolkits", "memory", "sandbox", "sse"),
    ("agent",),
    ("telemetry",),
    ("engine",),
    ("runtime", "processes.*", "triggers.*"),
    ("testing", "pytest_plugin"),
    ("cli", "__main__"),
]
# Imports that only annotations need, and doors that load what they offer when it is used.
ALLOWED = {
    ("engine.embedded", "runtime"),
    ("errors", "effects"),  # an error carries a divergence
    ("secrets.sources", "profiles"),
    ("tools", "toolkits"),
    ("policy.rules", "toolkits"),
    ("tools.context", "runtime"),  # a call has the runtime's services for the toolkits
    ("toolkits.agents", "agent"),
    ("toolkits.tasks", "runtime"),
    ("turns.notices", "store"),
}
# Pure modules: no clock, no randomness, no I/O, no event loop.
PURE = [
    *(f"effects/{name}.py" for name in ("canonical", "keys", "replay")),
    *(f"{name}.py" for name in ("events", "media", "messages", "names", "records")),
    *(
        f"models/{name}.py"
        for name in (
            *("anthropic", "attachments", "chat", "dialect", "errors", "google", "json_values", "redaction"),
            *("responses", "retry", "schemas", "sse"),
        )
    ),
    *(f"policy/{name}.py" for name in ("admission", "approvals", "hooks", "limits", "rules")),
    *(f"processes/{name}.py" for name in ("keys", "lists", "state")),
    *(f"sandbox/{name}.py" for name in ("contract", "protocol", "stubs")),
    *(f"secrets/{name}.py" for name in ("forms", "logs")),
    *(
        f"store/{name}.py"
        for name in (
            "audit",
            "contract",
            "inbox",
            "memories",
            "retention",
        )
    ),
    "toolkits/files/pages.py",
    *(f"toolkits/{name}.py" for name in ("tasks", "timers")),
    "toolkits/shell/policy.py",
    *(f"toolkits/web/{name}.py" for name in ("page", "urls")),
    *(f"tools/{name}.py" for name in ("definition", "results")),
    *(f"triggers/{name}.py" for name in ("definition", "schedules", "signatures", "state")),
    *(f"turns/{name}.py" for name in ("conversation", "keys", "machine", "notices", "programs", "results", "state")),
]
IMPURE_MODULES = {"asyncio", "time", "random", "os", "threading", "socket", "subprocess", "secrets", "apsw"}
HEAVY = {"apsw", "msgspec", "pydantic", "typer", "asyncio"}


@dataclass(frozen=True, slots=True)
class _Module:
    """What a file imports when it runs, what only its annotations need besides, and all names that it uses."""

    imports: frozenset[str]
    for_types: frozenset[str]
    names: frozenset[str]


@cache
def _module(path: Path) -> _Module:
    """Read a file once for all tests."""
    tree = parsed(path.read_text(encoding="utf-8"))
    imports: set[str] = set()
    for_types: set[str] = set()
    names: set[str] = set()
    typing_only = _typing_blocks(tree)
    for node in ast.walk(tree):
        found = for_types if id(node) in typing_only else imports
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "holdfast":
                found.update(f"holdfast.{alias.name}" for alias in node.names)
    return _Module(frozenset(imports), frozenset(for_types), frozenset(names))


def _typing_blocks(tree: ast.AST) -> set[int]:
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    return {id(inner) for block in blocks for inner in ast.walk(block)}


def _modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _layer(module: str) -> int | None:
    """The layer of a module: by its own name, by that of its package (`package.*`), or by that of an outer package."""
    package = module.split(".", maxsplit=1)[0]
    for name in (module, f"{package}.*", package):
        found = next((index for index, names in enumerate(LAYERS) if name in names), None)
        if found is not None and (name != f"{package}.*" or module != package):
            return found
    return None


@every("path", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_its_own_layer_and_those_below(path: Path) -> None:
    own = _layer(_name(path))
    assert own is not None, f"{_name(path)} has no layer; give it one in LAYERS"
    for module in _module(path).imports:
        if not module.startswith("holdfast."):
            continue
        target = module.removeprefix("holdfast.")
        layer = _layer(target)
        if layer is None or _allowed(_name(path), target):
            continue
        assert layer <= own, f"{_name(path)} imports {module}, which stands above it"


def _allowed(importer: str, imported: str) -> bool:
    return any(
        (importer == source or importer.startswith(f"{source}.")) and imported.split(".", maxsplit=1)[0] == package
        for source, package in ALLOWED
    )


@every("name", PURE)
def test_a_pure_module_has_no_way_to_touch_the_world(name: str) -> None:
    touched = {module.split(".")[0] for module in _module(PACKAGE / name).imports} & IMPURE_MODULES
    assert not touched, f"{name} imports {touched}"


def test_the_door_imports_nothing_heavy() -> None:
    assert not {module.split(".")[0] for module in _module(PACKAGE / "__init__.py").imports} & HEAVY


def test_nothing_in_the_package_can_revive_objects_or_run_code_from_data() -> None:
    for path in _modules():
        banned = {module.split(".")[0] for module in _module(path).imports} & {"pickle", "marshal", "shelve", "dill"}
        assert not banned, f"{path.name} imports {banned}"
        assert not _module(path).names & {"eval", "exec", "__import__"}, f"{path.name} runs code from data"
