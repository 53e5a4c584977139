"""Reading Python in tests."""

from __future__ import annotations

import ast
import gc


def parsed(source: str) -> ast.Module:
    """The tree of some code. Python 3.11 fails if what the collector finds runs code of its own in the middle of it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if enabled:
            gc.enable()
