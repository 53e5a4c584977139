"""From a reference to an agent: `file.py:name`, `package.module:name`, or without a name where there is only one."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.agent import Agent
from holdfast.cli.failures import AgentBroken, AgentNotFound

if TYPE_CHECKING:
    from types import ModuleType


def load_agent(reference: str, folder: Path | None = None) -> Agent:
    """The agent that `reference` names. Its module is run, like that of any program.

    A module is looked for in `folder` first, by default in the current one.
    """
    place, name = _split(reference)
    try:
        module = load_file(reference, Path(place)) if place.endswith(".py") else load_module(reference, place, folder)
    except AgentNotFound:
        raise
    except (Exception, SystemExit) as error:
        raise AgentBroken(reference, error, _where(error)) from error
    return _only(reference, module) if name is None else _named(reference, module, name)


def _split(reference: str) -> tuple[str, str | None]:
    place, colon, name = reference.rpartition(":")
    if not colon or reference.endswith(".py"):  # a folder may have a colon in its name
        place, colon, name = reference, "", ""
    if not place or (colon and not name.isidentifier()):
        raise AgentNotFound(reference, "write file.py:name or package.module:name")
    return place, name or None


def load_file(reference: str, path: Path) -> ModuleType:
    """The module that a file holds."""
    if not path.is_file():
        raise AgentNotFound(reference, f"there is no file {path}")
    name = f"agent_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise AgentNotFound(reference, f"{path} is no Python file")
    _importable(path.resolve().parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_module(reference: str, name: str, folder: Path | None = None) -> ModuleType:
    """The module of this name, from `folder` (by default the current one) or from what is installed."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise AgentNotFound(reference, "write file.py:name or package.module:name")
    _importable(folder or Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = "; for a file write its name with .py" if Path(f"{name.replace('.', '/')}.py").is_file() else ""
            raise AgentNotFound(reference, f"there is no module {error.name!r}{hint}") from None
        raise


def _importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _agents(module: ModuleType) -> dict[str, Agent]:
    found: dict[str, Agent] = {}
    for name, value in vars(module).items():
        if isinstance(value, Agent) and not any(value is known for known in found.values()):
            found[name] = value
    return found


def _only(reference: str, module: ModuleType) -> Agent:
    agents = _agents(module)
    if not agents:
        raise AgentNotFound(reference, "the module has no holdfast.Agent")
    if len(agents) > 1:
        raise AgentNotFound(reference, f"the module has several: choose one of {', '.join(sorted(agents))}")
    return next(iter(agents.values()))


def _named(reference: str, module: ModuleType, name: str) -> Agent:
    found: object = getattr(module, name, None)
    if isinstance(found, Agent):
        return found
    agents = ", ".join(sorted(_agents(module))) or "none"
    what = "is not there" if found is None else f"is a {type(found).__name__}"
    raise AgentNotFound(reference, f"{name!r} {what}; agents of the module: {agents}")


def _where(error: BaseException) -> str:
    """The line of the agent's code that raised, if there is one."""
    if isinstance(error, SyntaxError):
        return ""  # it says so itself
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _is_ours(filename: str) -> bool:
    return filename.startswith(("<frozen", str(Path(__file__).parents[1]))) or filename == importlib.__file__
