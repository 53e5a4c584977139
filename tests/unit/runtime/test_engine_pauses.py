"""How often an engine looks at a store that changes all the time."""

from __future__ import annotations

import pytest

from holdfast.engine.embedded import MAX_PAUSE, MIN_PAUSE, PAUSE_FACTOR, pause_after


@pytest.mark.parametrize("took", [0.0, 0.0001, MIN_PAUSE / PAUSE_FACTOR])
def test_an_engine_whose_looks_are_quick_looks_often(took: float) -> None:
    assert pause_after(took) == MIN_PAUSE


def test_a_look_takes_no_more_than_a_tenth_of_the_time() -> None:
    assert pause_after(0.02) == pytest.approx(0.2)


def test_an_engine_looks_again_soon_however_long_a_look_took() -> None:
    assert pause_after(60.0) == MAX_PAUSE
