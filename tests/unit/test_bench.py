from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).parents[2] / "benchmarks" / "run.py"


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, RUN, *words], check=False, capture_output=True, text=True, timeout=60)


def test_a_part_that_does_not_finish_in_its_time_is_ended_and_named() -> None:
    told = bench("--seconds", "0.05", "parked", "redrive")

    assert "FAILED parked did not finish within 0.05 s" in told.stdout
    assert "FAILED redrive did not finish within 0.05 s" in told.stdout
    assert told.returncode == 1


def test_an_unknown_part_is_refused_with_the_names_of_all_parts() -> None:
    told = bench("turnips")

    assert "there is no part turnips" in told.stderr
    assert "redrive" in told.stderr
    assert told.returncode == 2
