"""The demo keeps what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "kill_the_worker.py"


def test_the_demo_kills_its_worker_and_finds_every_effect_exactly_once() -> None:
    arguments = ["--orders", "10", "--kills", "3", "--seed", "4711"]
    done = subprocess.run(
        [sys.executable, str(DEMO), *arguments], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("killed with SIGKILL") == 3
    assert "30 effects by" in done.stdout
    assert "0 lost, 0 done twice" in done.stdout
    assert "Every effect exactly once." in done.stdout
