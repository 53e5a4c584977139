"""Holdfast: a runtime for agents that can't lose their place.

Importing this module is cheap. What it offers is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.driving import drive as drive
    from holdfast.driving import replay as replay
    from holdfast.effects.boundary import Boundary as Boundary
    from holdfast.effects.boundary import Effect as Effect
    from holdfast.effects.boundary import EffectContext as EffectContext
    from holdfast.effects.replay import Repeat as Repeat
    from holdfast.errors import EffectCancelled as EffectCancelled
    from holdfast.errors import EffectFailed as EffectFailed
    from holdfast.errors import EffectUnknown as EffectUnknown
    from holdfast.errors import Fenced as Fenced
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.errors import LeaseHeld as LeaseHeld
    from holdfast.errors import NoneSucceeded as NoneSucceeded
    from holdfast.errors import ReplayMismatch as ReplayMismatch
    from holdfast.errors import RunFailed as RunFailed
    from holdfast.errors import StoreError as StoreError
    from holdfast.errors import UsageError as UsageError
    from holdfast.errors import WorldError as WorldError
    from holdfast.store import Store as Store
    from holdfast.store import StoreLimits as StoreLimits
    from holdfast.store import open_store as open_store

__version__ = "0.1.0"

_HOMES = {
    "Boundary": "holdfast.effects.boundary",
    "Effect": "holdfast.effects.boundary",
    "EffectCancelled": "holdfast.errors",
    "EffectContext": "holdfast.effects.boundary",
    "EffectFailed": "holdfast.errors",
    "EffectUnknown": "holdfast.errors",
    "Fenced": "holdfast.errors",
    "HoldfastError": "holdfast.errors",
    "LeaseHeld": "holdfast.errors",
    "NoneSucceeded": "holdfast.errors",
    "Repeat": "holdfast.effects.replay",
    "ReplayMismatch": "holdfast.errors",
    "RunFailed": "holdfast.errors",
    "Store": "holdfast.store",
    "StoreError": "holdfast.errors",
    "StoreLimits": "holdfast.store",
    "UsageError": "holdfast.errors",
    "WorldError": "holdfast.errors",
    "drive": "holdfast.driving",
    "open_store": "holdfast.store",
    "replay": "holdfast.driving",
}

__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # type checkers see the imports above, and nothing else

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            message = f"module 'holdfast' has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
