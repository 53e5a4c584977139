"""The applications of `examples/` as modules, for tests that look inside, and the programs that are killed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any, Final

EXAMPLES: Final = Path(__file__).parents[1] / "examples"


def application(name: str) -> Any:  # a module whose names only its reader knows
    """Load `examples/NAME.py` as a module."""
    known = sys.modules.get(f"examples.{name}")
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(f"examples.{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
