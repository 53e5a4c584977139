"""Secrets: tools get them from the runtime, which keeps them out of everything that it writes, shows or logs."""

from __future__ import annotations
