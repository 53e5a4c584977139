"""The demo keeps what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "shop.py"
WIDTH = 100


def _demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEMO), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


@pytest.fixture(scope="module")
def shown() -> subprocess.CompletedProcess[str]:
    return _demo("--seed", "2")


def test_the_demo_kills_its_agent_three_times(shown: subprocess.CompletedProcess[str]) -> None:
    assert shown.stdout.count("SIGKILL") == 3, shown.stdout + shown.stderr


def test_the_demo_finds_every_side_effect_exactly_once(shown: subprocess.CompletedProcess[str]) -> None:
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "6 side effects by 4 processes" in shown.stdout
    assert shown.stdout.endswith("Every side effect exactly once.\n")


def test_the_demo_prints_what_every_process_did(shown: subprocess.CompletedProcess[str]) -> None:
    for process, following in ("AB", "BC", "CD"):
        assert f"{process} was killed; {following} goes on from here" in shown.stdout


def test_the_demo_fits_a_terminal_of_100_columns(shown: subprocess.CompletedProcess[str]) -> None:
    assert [line for line in shown.stdout.splitlines() if len(line) > WIDTH] == []


def test_a_model_that_nobody_knows_is_named_in_one_line() -> None:
    done = _demo("--model", "nobody:home")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("ModelUnknown: 'nobody:home'")
