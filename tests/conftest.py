"""What tests of several folders begin with."""

from __future__ import annotations

import gc
import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from tests.programs import Forked, Fresh

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.programs import Programs

# The same examples each time, however long they take: what is said about a change does not hang on chance, nor on what
# else the machine does. `--hypothesis-profile default` looks for new ones.
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # Started in the background by a shell, which has us ignore it; the programs of tests are begun as by a person.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Whatever is made here stays to the end: let the garbage collector look at none of it, now or during a test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """The command line keeps what a user has confirmed in the user's state folder: not in that of whoever tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", params=[Forked, pytest.param(Fresh, marks=pytest.mark.torture)])
def programs(request: pytest.FixtureRequest) -> Generator[Programs]:
    """Starts programs: quickly for `make test`, and each in a new interpreter for `make torture`."""
    made: Programs = request.param()
    yield made
    made.close()
