"""From a name to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import InvalidArgument, ModelUnknown
from holdfast.models.contract import Model

if TYPE_CHECKING:
    from collections.abc import Callable

_dialects: dict[str, Callable[[str], Model]] = {}


def register(provider: str, make: Callable[[str], Model]) -> None:
    """Let ``provider:anything`` name a model that `make("anything")` gives."""
    _dialects[provider] = make


def model(name: str | Model) -> Model:
    """The model that ``provider:model`` names; a model stands for itself."""
    if isinstance(name, Model):
        return name
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise InvalidArgument("model", name, "a model, or a name such as 'provider:model'")
    provider, colon, rest = name.partition(":")
    make = _dialects.get(provider)
    if make is None or not colon or not rest:
        raise ModelUnknown(name, tuple(sorted(_dialects)))
    return make(rest)
