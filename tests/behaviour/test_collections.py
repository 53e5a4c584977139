"""How often Python looks for garbage while a runtime is open."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

import holdfast as hf

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


async def test_garbage_is_looked_for_rarely_while_a_runtime_is_open() -> None:
    async with hf.open(None):
        assert gc.get_threshold()[0] > 700


async def test_closing_the_last_runtime_brings_the_usual_thresholds_back() -> None:
    async with hf.open(None):
        async with hf.open(None):
            pass
        assert gc.get_threshold()[0] > 700
    assert gc.get_threshold() == (700, 10, 10)


async def test_thresholds_that_the_application_has_chosen_are_kept() -> None:
    gc.set_threshold(5_000, 7, 7)
    async with hf.open(None):
        assert gc.get_threshold() == (5_000, 7, 7)
    assert gc.get_threshold() == (5_000, 7, 7)
