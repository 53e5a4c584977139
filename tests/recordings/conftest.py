"""Real provider traffic, read from the folder that HOLDFAST_RECORDINGS names; the files are never copied here.

Where requests of ours differ from the recorded ones, one table for all dialects says why: ``differences.md``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TABLE = Path(__file__).with_name("differences.md")
FOLDER = Path(os.environ.get("HOLDFAST_RECORDINGS") or Path(__file__).parents[3] / "shared" / "recordings")


def recordings(*apis: str) -> list[Any]:
    """The recordings that speak one of `apis`, as test parameters; one that skips when there are none here."""
    found = [path for path in sorted(FOLDER.glob("*/*.json")) if _speaks(path, apis)]
    if not found:
        reason = f"no recordings at {FOLDER.name}; set HOLDFAST_RECORDINGS"
        return [pytest.param(None, id="none", marks=pytest.mark.skip(reason=reason))]
    return [pytest.param(path, id=f"{path.parent.name}/{path.stem}") for path in found]


def _speaks(path: Path, apis: tuple[str, ...]) -> bool:
    return bool(set(apis) & set(load(path).get("apis", ())))


def load(path: Path) -> dict[str, Any]:
    """One recording."""
    return json.loads(path.read_text(encoding="utf-8"))


# ---- errors of recordings that nobody here knows yet -----------------------------------------------------------------

_KINDS = {
    400: ("bad_request", "context_overflow", "content_filter", "billing", "authentication", "server_error"),
    401: ("authentication",),
    402: ("billing",),
    403: ("permission", "billing", "authentication"),
    404: ("not_found",),
    408: ("timeout",),
    413: ("context_overflow", "rate_limited"),
    422: ("bad_request", "context_overflow"),
    429: ("rate_limited", "billing"),
    503: ("overloaded", "server_error"),
    504: ("timeout",),
    529: ("overloaded",),
}


def may_mean(status: int, kind: str) -> bool:
    """Whether an answer with this status may be an error of this kind, whatever its words are."""
    other = ("bad_request",) if status < 500 else ("server_error", "overloaded", "timeout")
    return kind in _KINDS.get(status, other)


# ---- differences -----------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A difference that is meant."""

    recordings: tuple[str, ...]
    """Where it may be; ``*`` is anywhere."""
    reason: str


def table() -> dict[str, dict[str, Row]]:
    """The rows of the table by their names, for each dialect."""
    sections: dict[str, dict[str, Row]] = {}
    rows: dict[str, Row] = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            rows = sections.setdefault(line.removeprefix("## "), {})
        elif line.startswith("| ") and not line.startswith("| difference |"):
            name, places, reason = (cell.strip() for cell in line.strip("|").split("|"))
            assert name not in rows, f"{name} is in the table twice"
            rows[name] = Row(tuple(place.strip() for place in places.split(",")), reason)
    return sections


def unexplained(dialect: str, path: Path, found: Iterable[str]) -> list[str]:
    """The differences found in a recording that the table does not have."""
    rows = table()[dialect]
    here = {"*", f"{path.parent.name}/{path.stem}"}
    return sorted(name for name in set(found) if name not in rows or not here.intersection(rows[name].recordings))


def needless(dialect: str, cases: list[Any], found_in: Callable[[Path], Iterable[str]]) -> list[str]:
    """The rows of the table, and the recordings in them, for which there is no difference; skips without recordings."""
    paths = [case.values[0] for case in cases if case.values[0] is not None]
    if not paths:
        pytest.skip(f"no recordings at {FOLDER.name}; set HOLDFAST_RECORDINGS")
    named = {place for rows in table().values() for row in rows.values() for place in row.recordings} - {"*"}
    if not all((FOLDER / f"{place}.json").is_file() for place in named):
        pytest.skip(f"the table was not made for the recordings at {FOLDER.name}")
    seen = {(name, f"{path.parent.name}/{path.stem}") for path in paths for name in found_in(path)}
    seen |= {(name, "*") for name, _ in seen}
    wanted = [(name, place) for name, row in table()[dialect].items() for place in row.recordings]
    return [f"{name} in {place}" for name, place in wanted if (name, place) not in seen]
