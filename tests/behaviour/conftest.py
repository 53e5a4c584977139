"""What several files of tests begin with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.behaviour.shell import Shell
from tests.behaviour.stage import Stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator
    from pathlib import Path

    from tests.programs import Programs


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    made.free.set()
    made.go_on.set()
    await asyncio.sleep(0)  # what was abandoned may end


@pytest.fixture
def shell(tmp_path: Path, programs: Programs) -> Generator[Shell]:
    made = Shell(tmp_path, programs)
    yield made
    made.close()
