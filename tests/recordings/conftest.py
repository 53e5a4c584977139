"""Real provider traffic, read from the folder that HOLDFAST_RECORDINGS names; the files are never copied here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

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
