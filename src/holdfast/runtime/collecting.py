"""Garbage collection while a runtime is open.

Python looks for cycles whenever 700 more objects were made than freed. Hundreds of sessions that take their steps make
far more than that all the time, hardly any of it in cycles: the collector would take a seventh of the time, and stop
all of them while it looks through everything that is alive. So it looks less often, as long as a runtime is open. An
application that has chosen thresholds of its own keeps them.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator

USUAL: Final = (700, 10, 10)
"""The thresholds that Python 3.11 to 3.13 begin with."""
RARE: Final = (30_000, 20, 20)

_open = 0


@contextmanager
def rare_collections() -> Generator[None]:
    """Collect rarely until the last one who has asked for it is done."""
    global _open  # noqa: PLW0603  thresholds belong to the process, and so does this count
    if _open == 0 and gc.get_threshold() == USUAL:
        gc.set_threshold(*RARE)
    _open += 1
    try:
        yield
    finally:
        _open -= 1
        if _open == 0 and gc.get_threshold() == RARE:
            gc.set_threshold(*USUAL)
