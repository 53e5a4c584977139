"""Models: providers behind one contract."""

from holdfast.models.contract import Model, respond
from holdfast.models.registry import model, register

__all__ = ["Model", "model", "register", "respond"]
