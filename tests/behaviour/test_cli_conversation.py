"""What was said and what the model sees of it, on a shell: both, and what some words are in."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from tests.behaviour.window import Writer, agent_of
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path


async def _talk(path: Path) -> None:
    agent = agent_of(Writer(12))
    async with hf.open(path, agents=[agent], mirror=False) as runtime:
        await runtime.run(agent, "Look at every place.", session="s")
        assert len(await runtime.session("s").search("AT 3:")) == 1


@pytest.fixture
def store(tmp_path: Path) -> Path:
    asyncio.run(_talk(tmp_path / "s.db"))
    return tmp_path / "s.db"


def show(store: Path, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["show", "s", *options, "--store", str(store)])
    return done.exit_code, done.stdout


def test_history_is_all_that_was_said(store: Path) -> None:
    said = json.loads(show(store, "--history", "--json")[1])
    assert (len(said), said[0]["type"]) == (26, "user")


def test_context_is_what_the_model_sees_of_it(store: Path) -> None:
    seen = json.loads(show(store, "--context", "--json")[1])
    assert len(seen) < 26
    assert "<summary>" in seen[0]["parts"][0]["text"]


def test_words_are_found_in_what_was_compacted(store: Path) -> None:
    _, found = show(store, "--find", "at 1:")
    assert found.startswith("tools  t1.5")
    assert found.count("at 1:") == 1


def test_words_that_nobody_said_are_not_found(store: Path) -> None:
    assert show(store, "--find", "elephants") == (0, "no message has that text\n")


def test_people_read_who_said_what(store: Path) -> None:
    lines = show(store, "--history")[1].splitlines()
    assert lines[:4] == [
        "user  t1.i1",
        "  | Look at every place.",
        "assistant  t1.1",
        '  | -> look {"at":0,"words":150}',
    ]


@pytest.mark.parametrize("options", [("--raw", "--history"), ("--history", "--context")], ids=" ".join)
def test_what_can_not_be_meant_together_is_refused(store: Path, options: tuple[str, ...]) -> None:
    assert show(store, *options)[0] == 2
