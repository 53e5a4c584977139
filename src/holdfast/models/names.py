"""From a name to a model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from holdfast.errors import InvalidArgument, ModelUnknown
from holdfast.models.contract import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.models.http import ApiKey
    from holdfast.models.wire import Dialect

_makers: dict[str, Callable[[str], Model]] = {}


def register(provider: str, make: Callable[[str], Model]) -> None:
    """Let ``provider:anything`` name a model that `make("anything")` gives. It goes before an endpoint of that name."""
    _makers[provider] = make


def model(
    name: str | Model | Sequence[str | Model], *, base_url: str | None = None, api_key: ApiKey | None = None
) -> Model:
    """The model that ``provider:model`` names; a model stands for itself, and a list for the first that works.

    With a `base_url` the provider may be one that nobody knows: an endpoint of your own that speaks the chat dialect.
    `api_key` is a key or a function that gives one, asked at each call; without it the key is read from the
    environment.
    """
    if isinstance(name, str):
        return _named(name, base_url, api_key)
    if base_url is not None or api_key is not None:
        raise InvalidArgument("model", name, "a name, where base_url or api_key is given,")
    if isinstance(name, list | tuple):
        from holdfast.models.fallback import Fallback  # noqa: PLC0415  only a list needs it

        return Fallback([model(one) for one in cast("Sequence[str | Model]", name)])
    if not isinstance(name, Model):
        raise InvalidArgument("model", name, "a model, a list of models, or a name such as 'provider:model'")
    return name


def dialect(name: str) -> Dialect:
    """The dialect of this name, imported when it is first spoken."""
    module: Any = import_module(f"holdfast.models.{name}")
    return module.DIALECT


def _named(name: str, base_url: str | None, api_key: ApiKey | None) -> Model:
    from holdfast.models.endpoints import ENDPOINTS, endpoint  # noqa: PLC0415  a model of one's own needs none of it

    provider, colon, rest = name.partition(":")
    known = provider in _makers or provider in ENDPOINTS or base_url is not None
    if not provider or not colon or not rest or not known:
        raise ModelUnknown(name, tuple(sorted({*_makers, *ENDPOINTS})))
    make = _makers.get(provider)
    if make is not None:
        if base_url is not None or api_key is not None:
            raise InvalidArgument("model", name, "an endpoint, where base_url or api_key is given,")
        return make(rest)
    from holdfast.models.http import HttpModel  # noqa: PLC0415

    place = endpoint(provider, base_url=base_url)
    return HttpModel(place, rest, dialect(place.dialect), api_key=api_key)
