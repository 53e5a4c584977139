"""Fixtures for pytest: `holdfast_runtime`, `holdfast_clock` and `holdfast_crash`.

pytest loads this module by its entry point in every run, so it imports nothing of Holdfast before a fixture is used.
The fixtures are plain functions: they work with pytest-asyncio, with anyio, and in tests that are not async.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from holdfast.testing import CrashRunner, RuntimeFactory, VirtualClock


@pytest.fixture
def holdfast_clock() -> Generator[VirtualClock]:
    """A clock for `hf.open(clock=...)`: ``await holdfast_clock.advance(days=2)``."""
    from holdfast.testing import VirtualClock

    clock = VirtualClock()
    yield clock
    clock.restore()


@pytest.fixture
def holdfast_runtime(tmp_path: Path, holdfast_clock: VirtualClock) -> RuntimeFactory:
    """Runtimes on one store of this test; call it like `hf.open`, without a path."""
    from holdfast.testing import RuntimeFactory

    return RuntimeFactory(tmp_path / "holdfast.db", holdfast_clock)


@pytest.fixture
def holdfast_crash(tmp_path: Path, request: pytest.FixtureRequest) -> CrashRunner:
    """Runs a scenario that is killed at every crash point: ``holdfast_crash(scenario)``."""
    from holdfast.testing import CrashRunner

    return CrashRunner(tmp_path / "holdfast_crash", request.node.nodeid)
