"""Secrets: the runtime gives them to tools, and keeps them out of everything that it writes, shows or logs."""

from __future__ import annotations
