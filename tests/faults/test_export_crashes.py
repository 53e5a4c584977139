"""SIGKILL anywhere while a session is moved to another store: it is whole on one side, and acts there alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import export_scenario as scenario
import pytest
from forking import error_in
from killing import OneAct, one_of_each

import holdfast as hf
from holdfast.effects.performer import idempotency_key
from holdfast.runtime.budgets import spend_of_record
from holdfast.store.audit import audit

if TYPE_CHECKING:
    from pathlib import Path

    from forking import Forks


async def _wrong(folder: Path) -> list[str]:
    """The laws, whatever was killed."""
    found: list[str] = []
    standing: dict[str, tuple[str, bool]] = {}
    store = ""
    for name in ("store.db", "other.db"):
        async with hf.open(folder / name, agents=[scenario.agent(folder)], drive=False, mirror=False) as runtime:
            violations = await runtime.store.examine(lambda reader: audit(reader, spend_of=spend_of_record))
            found += [f"{name}: {violation}" for violation in violations]
            line = await runtime.store.journal(scenario.SESSION)
            standing[name] = (line.status, line.moved)
            store = store or runtime.store.id
            if await runtime.memory(scenario.SESSION).get("note") is None:
                found.append(f"{name}: the memory is not there")
    # A kill may come before it is parked; then it is moved as it is.
    if not standing["store.db"][1] or standing["other.db"] != ("completed", False):
        found.append(f"standing: {standing}")
    paid = set(_lines(folder / "paid"))
    ours = {idempotency_key(store, scenario.SESSION, f"t1/{number}.tools/1.pay") for number in range(9)}
    if len(paid) != 1 or not paid <= ours:
        found.append(f"paid under the keys {paid}")
    return found


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


STORY: Final = OneAct("EXPORT_CRASH", __file__, _wrong)
POINTS: Final = ("export.", "import.")


async def test_without_a_kill_the_session_is_moved(workers: Forks, tmp_path: Path) -> None:
    assert workers.run(tmp_path / "golden") == 0, error_in(tmp_path / "golden")
    assert await _wrong(tmp_path / "golden") == []


def test_the_scenario_reaches_the_crash_points_of_a_move(points: list[str]) -> None:
    wanted = ("export.moved", "export.written", "export.named", "import.read", "import.blob", "import.written")
    assert {f"{name}:1" for name in wanted} <= set(points)


async def test_a_kill_around_a_move_leaves_the_session_on_one_side(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    before = points[points.index("export.moved:1") - 4 :]  # the commit of the mark
    around = [point for point in before if point.startswith((*POINTS, "store.committed", "store.before_answer"))]
    await STORY.try_all(workers, [(point,) for point in one_of_each(around)], tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(3600)
async def test_a_kill_at_every_single_point_leaves_the_session_on_one_side(
    workers: Forks, points: list[str], tmp_path: Path
) -> None:
    await STORY.try_all(workers, [(point,) for point in points], tmp_path)


@pytest.mark.skipif("EXPORT_CRASH" not in os.environ, reason="repeats the case in EXPORT_CRASH")
async def test_a_case_can_be_repeated(workers: Forks, tmp_path: Path) -> None:
    await STORY.try_all(workers, [STORY.repeated()], tmp_path)
