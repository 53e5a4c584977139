"""Hands for an agent: families of tools, each within its bounds.

They touch files, run commands, read the web, remember, watch tasks and timers, and read skills and the instructions of
a project when these are needed.
"""

from __future__ import annotations
