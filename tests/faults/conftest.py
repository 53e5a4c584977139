"""What the tests beside it share: helpers that can be imported, though modules are loaded one by one, and fixtures.

A module of crash tests imports its story as `scenario`, and gets `workers` that play it, and the `points` it reaches.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

_HERE = str(Path(__file__).parent)
if _HERE not in sys.path:
    sys.path.insert(0, _HERE)

from forking import Forks, ForkServer, error_in, reached_in  # noqa: E402  it is beside this file

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType


@pytest.fixture(scope="session")
def fork_server() -> Generator[ForkServer]:
    """The process that forks the workers of all modules."""
    started = ForkServer()
    yield started
    started.close()


@pytest.fixture(scope="module")
def workers(request: pytest.FixtureRequest, fork_server: ForkServer) -> Forks:
    """Processes that play the scenario of the module."""
    scenario = cast("ModuleType", getattr(request, "module").scenario)  # noqa: B009  pytest does not say what it is
    return Forks(fork_server, scenario.__file__ or "")


@pytest.fixture(scope="module")
def points(workers: Forks, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every crash point that the scenario reaches, each with how often it was reached until then."""
    folder = tmp_path_factory.mktemp("count")
    assert workers.run(folder, HOLDFAST_CRASH_TRACE=str(folder / "trace.txt")) == 0, error_in(folder)
    return reached_in(folder / "trace.txt")
