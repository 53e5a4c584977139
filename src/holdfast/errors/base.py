"""The trunk: who can act, and what unwinds code that must not go on."""

from __future__ import annotations

from typing import ClassVar, Literal

Actor = Literal["caller", "world", "store", "us"]


class HoldfastError(Exception):
    """Base of every error that Holdfast raises on purpose."""

    actor: ClassVar[Actor] = "us"


class UsageError(HoldfastError):
    """The caller can act: the input or the order of calls is wrong. Nothing was written."""

    actor: ClassVar[Actor] = "caller"


class WorldError(HoldfastError):
    """The outside world decided: an effect failed, was cancelled, or its outcome is unknown."""

    actor: ClassVar[Actor] = "world"


class StoreError(HoldfastError):
    """The store can't do what was asked."""

    actor: ClassVar[Actor] = "store"


class InvariantBroken(HoldfastError):
    """Holdfast found itself in a state that must not exist. Please report it."""


def excerpt(value: object) -> str:
    """A value as an error shows it: never too long, and never the cause of another error."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  an error about a bad value must not fail because the value is bad
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text):,} characters)"
