"""A model provider on the loopback: it speaks the four dialects, follows a script, and misbehaves when it is told to.

Like the scripted model it answers by the position in the conversation, which it reads from the request. What a request
gets is planned without touching a socket; a connection only carries the plan out.
"""

from __future__ import annotations

from holdfast.testing.provider.faults import (
    BadFrame,
    CutStream,
    Disconnect,
    ErrorFrame,
    FaultFunction,
    Faults,
    HttpError,
    ProviderFault,
    Stall,
)
from holdfast.testing.provider.planning import Pause, Plan, plan
from holdfast.testing.provider.requests import ProviderRequest
from holdfast.testing.provider.server import FakeProvider

__all__ = [
    "BadFrame",
    "CutStream",
    "Disconnect",
    "ErrorFrame",
    "FakeProvider",
    "FaultFunction",
    "Faults",
    "HttpError",
    "Pause",
    "Plan",
    "ProviderFault",
    "ProviderRequest",
    "Stall",
    "plan",
]
