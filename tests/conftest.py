"""What tests of several folders begin with."""

from __future__ import annotations

import gc
import re
import shutil
import signal
import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, settings
from tests.examples import QUICK
from tests.programs import Forked, Fresh

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tests.programs import Programs

# The same examples each time, however long they take: what is said about a change does not hang on chance, nor on what
# else the machine does. `--hypothesis-profile default` looks for new ones; `make torture` takes all of `whole`.
settings.register_profile("whole", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("whole"), max_examples=QUICK)
settings.load_profile("quick")
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


MEMORY: Final = Path("/dev/shm")  # noqa: S108  all is below a folder that only we may enter
ENOUGH: Final = 2 << 30
FOLDERS: Final = {"behaviour", "conformance", "faults"}
ON_DISK: Final = {
    *("test_failed_commit", "test_files", "test_io_errors", "test_log", "test_power_loss", "test_slow_disk"),
}
"""What these files show depends on the file system."""


@pytest.fixture(scope="session")
def in_memory() -> Generator[Iterator[Path] | None]:
    """Names of folders in memory: on a disk, most tests wait longer for it than they work. Torture waits."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ENOUGH:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-tests-", dir=MEMORY, ignore_cleanup_errors=True) as top:
        yield (Path(top, str(number)) for number in count())


@pytest.fixture
def tmp_path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, in_memory: Iterator[Path] | None
) -> Generator[Path]:
    """A new folder: in memory for the quick tests of stores, on disk for all others."""
    node: pytest.Item = request.node
    of_stores = node.path.parent.name in FOLDERS and node.path.stem not in ON_DISK
    if in_memory is None or not of_stores or node.get_closest_marker("torture"):
        yield tmp_path_factory.mktemp(re.sub(r"\W", "_", node.name)[:30])
        return
    made = next(in_memory)
    made.mkdir(mode=0o700)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="session", params=[Forked, pytest.param(Fresh, marks=pytest.mark.torture)])
def programs(request: pytest.FixtureRequest) -> Generator[Programs]:
    """Starts programs: quickly for `make test`, and each in a new interpreter for `make torture`."""
    made: Programs = request.param()
    yield made
    made.close()
