"""Base classes of all errors, one for each party that can act."""

from __future__ import annotations

from typing import ClassVar, Literal

Actor = Literal["caller", "world", "store", "us"]


class HoldfastError(Exception):
    """Base of every error that Holdfast raises on purpose."""

    actor: ClassVar[Actor] = "us"


class UsageError(HoldfastError):
    """The caller can act: an argument, an id, an input or the order of calls is wrong. Nothing was written."""

    actor: ClassVar[Actor] = "caller"


class WorldError(HoldfastError):
    """The outside world decided: an effect failed, was cancelled, or its outcome is unknown."""

    actor: ClassVar[Actor] = "world"


class StoreError(HoldfastError):
    """The store refused or failed."""

    actor: ClassVar[Actor] = "store"


class InvariantBroken(HoldfastError):
    """A bug in Holdfast: it reached a state that must not exist. Please report it."""


def excerpt(value: object) -> str:
    """The repr of a value for an error message, cut short; never raises."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  an error about a bad value must not fail because the value is bad
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text):,} characters)"
