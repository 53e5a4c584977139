"""What tests of several folders begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.programs import Forked, Fresh

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.programs import Programs


@pytest.fixture(scope="session", params=[Forked, pytest.param(Fresh, marks=pytest.mark.torture)])
def programs(request: pytest.FixtureRequest) -> Generator[Programs]:
    """Starts programs: quickly for `make test`, and each in a new interpreter for `make torture`."""
    made: Programs = request.param()
    yield made
    made.close()
