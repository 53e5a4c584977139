"""Timers as tools: an agent is told something at a time to come, once, whatever happens to the process meanwhile."""

from __future__ import annotations

from holdfast.hands.timers.family import timers

__all__ = ["timers"]
