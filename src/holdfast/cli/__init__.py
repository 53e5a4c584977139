"""The command line. `app` has the list of commands; the other modules declare them."""

from __future__ import annotations

from holdfast.cli.app import main as main
