"""Engines make sure that a journal is driven whenever it has work."""

from __future__ import annotations

from holdfast.engine.embedded import Drive, EmbeddedEngine

__all__ = ["Drive", "EmbeddedEngine"]
