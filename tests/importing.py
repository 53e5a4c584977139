"""For servers that fork: what they have imported, none of their children imports again."""

from __future__ import annotations

import functools
import gc
import importlib
import pkgutil
import sys
import threading
from contextlib import suppress
from typing import Any


def import_everything() -> None:
    """Import the whole package, and what it imports late. What can't be imported fails in the child that needs it."""
    import holdfast

    found = pkgutil.walk_packages(holdfast.__path__, "holdfast.", onerror=lambda _: None)
    for name in [*(module.name for module in found), "genai_prices.data", "genai_prices.data_snapshot"]:
        if not name.endswith("__main__"):
            with suppress(Exception):
                importlib.import_module(name)
    _build_commands()
    if threading.active_count() > 1:
        sys.exit("an import has started a thread, which no fork would have")
    gc.freeze()  # nothing of this is looked at again, nor copied for it


def _build_commands() -> None:
    """Build the tree of commands, which typer does anew for each run: that costs as much as most commands do."""
    import typer.main

    from holdfast.cli.app import COMMANDS, app

    typer.main.get_command = functools.cache(typer.main.get_command)
    root: Any = typer.main.get_command(app)
    for name in COMMANDS:
        root.get_command(None, name)
