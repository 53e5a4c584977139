"""Engines: who makes sure that a session is driven whenever there is work for it."""

from __future__ import annotations

from holdfast.engine.embedded import Drive, EmbeddedEngine

__all__ = ["Drive", "EmbeddedEngine"]
