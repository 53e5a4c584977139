"""What is measured, against which bar, and how it is told."""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

import apsw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Bar:
    """One figure and what it must be. A ratio is against a baseline of the same run; `detail` has both sides."""

    name: str
    figure: float
    bar: float
    sense: Literal["at least", "at most"]
    unit: str
    detail: str

    @property
    def ok(self) -> bool:
        return self.figure >= self.bar if self.sense == "at least" else self.figure <= self.bar

    def line(self) -> str:
        verdict = "ok" if self.ok else "short"
        figure = f"{self.figure:.3g} {self.unit}".strip()
        bar = f"{self.sense} {self.bar:g} {self.unit}".strip()
        return f"{self.name:<46} {figure:>10}   {bar:<16} {verdict:<6} {self.detail}"


def median_of(rounds: int, *sides: Callable[[], float]) -> list[float]:
    """The median of each side over interleaved rounds, so that a busy moment hits all sides alike."""
    return [statistics.median(values) for values in _interleaved(rounds, sides)]


def best_of(rounds: int, *sides: Callable[[], float]) -> list[float]:
    """The least of each side over interleaved rounds: for CPU time, which others on the machine can only add to."""
    return [min(values) for values in _interleaved(rounds, sides)]


def _interleaved(rounds: int, sides: tuple[Callable[[], float], ...]) -> list[list[float]]:
    taken: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, values in zip(sides, taken, strict=True):
            values.append(side())
            print(".", end="", file=sys.stderr, flush=True)
    return taken


def report(bars: list[Bar], path: Path | None, failures: list[str]) -> int:
    """Print one line per bar and per failed part, write the results to `path`, answer the exit code."""
    for bar in bars:
        print(bar.line())
    for failure in failures:
        print(f"FAILED {failure}")
    short = [bar.name for bar in bars if not bar.ok]
    print(f"{len(bars)} bars, {len(short)} short, {len(failures)} parts failed")
    if path is not None:
        results = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "python": platform.python_version(),
            "sqlite": apsw.sqlite_lib_version(),
            "bars": [{**asdict(bar), "ok": bar.ok} for bar in bars],
            "failures": failures,
        }
        path.write_text(json.dumps(results, indent=2) + "\n")
    return 1 if short or failures else 0
