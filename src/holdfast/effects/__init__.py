"""Effects: requests to the world, their decision on replay, and the performer that records them."""

from __future__ import annotations
