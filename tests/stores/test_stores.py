"""Stores that older code wrote, by a process that was killed in the middle of everything, go on with the code of today.

How a fixture is written is in `stories.py`. Each one here is copied, opened an hour later, and driven to its end.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path

import pytest
from tests.stores.stories import CHILD, SCRIPTS, Ending, finish

STORES = sorted(Path(__file__).parent.glob("*.store"))
BEGUN_AGAIN = {"answer", "reserve", "report", "slow", "pack", "restock 1"}
"""The acts that were under way when the process was killed, and that may be begun again under the same key."""


@pytest.fixture(scope="module", params=STORES, ids=lambda path: path.stem)
def ending(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ending:
    folder = tmp_path_factory.mktemp("old")
    shutil.copyfile(request.param, folder / "store.db")
    (folder / "store.db").chmod(0o600)
    shutil.copyfile(request.param.with_suffix(".log"), folder / "world.log")
    return asyncio.run(finish(folder))


def test_there_is_a_store_of_74e0ab9() -> None:
    assert "74e0ab9" in {path.stem for path in STORES}


@pytest.mark.parametrize("session", SCRIPTS)
def test_every_session_of_an_old_store_answers(ending: Ending, session: str) -> None:
    assert ending.statuses[session] == "completed"
    assert set(ending.answers[session]) == {f"done: {session}"}


def test_every_call_of_an_old_store_has_one_result(ending: Ending) -> None:
    assert {session: ending.calls[session] for session in SCRIPTS} == {
        "answering": [],
        "reserving": ["look ok", "reserve ok"],
        "shipping": ["ship unknown"],
        "signing": ["sign ok"],
        "approving": ["pay ok"],
        "deferring": ["order ok"],
        "background": ["report ok", "confirm ok"],
        "spilling": ["slow ok"],
    }


def test_every_background_call_of_an_old_store_ends_and_is_told_once(ending: Ending) -> None:
    assert ending.tasks == ["completed"] * 3
    assert ending.told == {"background": ["confirmed by Ann", "report"], "spilling": ["slow"]}


def test_every_process_of_an_old_store_returns(ending: Ending) -> None:
    assert ending.results == {
        "packing": ["box", "pack"],
        "review": "reviewed by Ann",
        "nap": "awake",
        "family": "child reviewed by Ann",
        CHILD: "reviewed by Ann",
    }


def test_every_firing_of_an_old_store_starts_what_it_is_for_once(ending: Ending) -> None:
    assert ending.restocked == [1, 2, 3]
    assert ending.prompts == ["For 2027-01-15"]
    assert ending.triggers == {"daily": (1, 0, 0, 0), "sold": (3, 0, 0, 0)}


def test_nothing_of_an_old_store_is_done_twice(ending: Ending) -> None:
    acts = [(what, key) for what, key in ending.acts if what != "token"]
    assert len({what for what, _ in acts}) == len(set(acts)), "something was done again under another key"
    assert {what: count for (what, _), count in Counter(acts).items() if count > 1} == dict.fromkeys(BEGUN_AGAIN, 2)


def test_an_old_store_is_sound_at_the_end(ending: Ending) -> None:
    assert ending.violations == []
