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
LAYERS: list[tuple[str, ...]] = [
    (
        "errors",
        "bounds",
        "clock",
        "names",
        "crashpoints",
        "records",
        "messages",
        "spawning",
        "perloop",
        "attachments",
        "media",
    ),
    ("secrets",),
    ("effects",),
    ("policy", "turns", "tasks", "triggers", "events", "observed", "output"),
    ("store", "models", "tools"),
    ("profiles", "secrets", "hands", "memory", "sandbox"),
    ("leasing",),
    ("driving", "agent", "processes"),
    ("engine",),
    ("runtime",),
    ("testing",),
    ("cli", "__main__"),
]
# Only for annotations: an error carries a divergence, and knows nothing else of effects.
ALLOWED = {("errors", "effects")}
# The door of tools offers what is built on them; it is loaded when it is used.
# References to secrets are those of profiles, which are loaded when a host gives some.
DOORS = {("secrets/sources.py", "profiles"), ("tools/__init__.py", "hands"), ("policy/hosts.py", "hands")}
# Pure modules: no clock, no randomness, no I/O, no event loop.
PURE = [
    *(f"secrets/{name}.py" for name in ("forms", "spans", "known", "documents", "streaming", "reserved", "recorded")),
    *("secrets/raising.py", "store/screening.py"),
    *("names.py", "records.py", "effects/canonical.py", "effects/envelope.py", "effects/divergence.py"),
    *("effects/replay.py", "effects/values.py", "effects/failures.py", "effects/ledger.py"),
    *("store/contract.py", "store/decisions.py", "store/checksum.py"),
    *("store/digests.py", "store/audit.py", "messages.py", "events.py", "observed.py", "tools/results.py"),
    *("media.py", "tools/deferral.py", "runtime/answering.py", "store/attachments/contract.py"),
    *("store/attachments/decisions.py", "store/attachments/changing.py", "store/attachments/audit.py"),
    *("store/limits.py", "store/notifications/contract.py", "store/notifications/decisions.py"),
    *(f"store/pruning/{name}.py" for name in ("contract", "decisions", "audit")),
    *("store/notifications/moving.py", "store/notifications/audit.py", "store/memories/contract.py"),
    *("store/memories/decisions.py", "store/memories/changing.py", "store/memories/audit.py"),
    *(f"models/{name}.py" for name in ("wire", "waiting", "retry", "sse", "arrays", "reading", "writing", "statuses")),
    *("models/flags.py", "models/overflow.py", "models/recorded/redaction.py", "models/recorded/comparing.py"),
    *(
        str(path.relative_to(PACKAGE))
        for name in ("anthropic", "responses", "chat", "google")
        for path in sorted((PACKAGE / "models" / name).glob("*.py"))
    ),
    *(f"hands/files/{name}.py" for name in ("paths", "globs", "protected", "limits", "pages", "edits", "errors")),
    *(f"hands/shell/{name}.py" for name in ("syscalls", "confinement", "cutting", "settings")),
    *(f"hands/web/{name}.py" for name in ("addresses", "urls", "policy", "inflating", "media", "markup", "layout")),
    *(f"hands/web/{name}.py" for name in ("page", "report")),
    *(f"sandbox/{name}.py" for name in ("steps", "limits", "values", "schemas", "stubs", "sealing", "course")),
    *(f"sandbox/{name}.py" for name in ("plans", "contract", "confining", "replaying")),
    *(f"sandbox/{name}.py" for name in ("wire", "nodes", "tracebacks", "requests", "events")),
    *("hands/moments.py", "hands/tasks/words.py", "hands/timers/times.py"),
    *("runtime/interrupted.py", "runtime/inbox.py", "runtime/admitting.py"),
    *("runtime/stopped.py", "runtime/program_words.py", "turns/programs.py"),
    *("tasks/state.py", "tasks/words.py"),
    *(f"triggers/{name}.py" for name in ("expressions", "schedules", "sources", "templates", "signatures")),
    *(f"triggers/{name}.py" for name in ("definition", "books", "forgetting")),
    *(f"processes/{name}.py" for name in ("ids", "state", "stuck", "timeline", "context", "glance", "pruning")),
    *(f"profiles/{name}.py" for name in ("profile", "references", "errors")),
    *(f"policy/{name}.py" for name in ("subject", "rules", "conditions", "deciding", "approvals", "always", "hooks")),
    *(f"policy/{name}.py" for name in ("limits", "admission", "globs", "hosts", "selecting", "spans")),
    *(f"turns/{name}.py" for name in ("machine", "thread", "keys", "answers", "ending", "conversation", "notices")),
    *(
        "turns/stopwatch.py",
        "turns/telling.py",
        "turns/unused.py",
        "store/spending/worked.py",
        "store/gate/contract.py",
    ),
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


def _layer(module: str) -> int | None:
    return next((index for index, names in enumerate(LAYERS) if module in names), None)


def _modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def _home(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@every("path", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_its_own_layer_and_those_below(path: Path) -> None:
    home = _home(path)
    own = _layer(home)
    assert own is not None, f"{home} has no layer; give it one in LAYERS"
    for module in _module(path).imports | _module(path).for_types:
        if not module.startswith("holdfast."):
            continue
        target = module.split(".")[1]
        layer = _layer(target)
        if layer is None or (home, target) in ALLOWED or (str(path.relative_to(PACKAGE)), target) in DOORS:
            continue
        assert layer <= own, f"{path.name} imports {module}, which stands above it"


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
