"""Models: providers behind one contract."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from holdfast.models.contract import Model, respond
from holdfast.models.registry import model, register

if TYPE_CHECKING:
    from holdfast.models.fallback import Fallback as Fallback
    from holdfast.models.http import HttpModel as HttpModel
    from holdfast.models.limits import CallLimits as CallLimits
    from holdfast.models.retry import Retry as Retry
    from holdfast.models.transport import Timeouts as Timeouts


__all__ = [
    "CallLimits",
    "Fallback",
    "HttpModel",
    "Model",
    "Retry",
    "Timeouts",
    "model",
    "register",
    "respond",
]


_LAZY: Final = {
    "CallLimits": "holdfast.models.limits",
    "Fallback": "holdfast.models.fallback",
    "HttpModel": "holdfast.models.http",
    "Retry": "holdfast.models.retry",
    "Timeouts": "holdfast.models.transport",
}


def __getattr__(name: str) -> object:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)
