"""Models: what an agent can ask, whoever answers."""

from __future__ import annotations

from holdfast.models.contract import Model, respond
from holdfast.models.names import model

__all__ = ["Model", "model", "respond"]
