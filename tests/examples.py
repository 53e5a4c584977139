"""How many examples property tests try: a fifth in `make test`, and all with the profiles that `make torture` takes."""

from __future__ import annotations

from hypothesis import settings

QUICK = 20
"""As many as the quick profile tries where a test names no number."""


def examples(number: int) -> int:
    """The number for `max_examples`, of which the quick profile tries a fifth."""
    return number if settings().max_examples > QUICK else max(number // 5, 10)
