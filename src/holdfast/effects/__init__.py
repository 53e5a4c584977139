"""Effects: what is asked of the world, the decision on replay, and the boundary that performs them."""

from __future__ import annotations
