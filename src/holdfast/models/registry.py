"""Model names: ``provider:model`` becomes a `Model`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.errors import InvalidArgument, ModelUnknown
from holdfast.models.contract import Model
from holdfast.names import check_words, default_or_given

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from holdfast.models.credentials import ApiKey, Headers, TokenProvider
    from holdfast.models.dialect import Dialect
    from holdfast.models.limits import CallLimits
    from holdfast.models.retry import Retry
    from holdfast.models.transport import Timeouts


_makers: dict[str, Callable[[str], Model]] = {}


def register(provider: str, make: Callable[[str], Model]) -> None:
    """Let ``provider:name`` be the model `make("name")`. It overrides an endpoint of that name."""
    _makers[provider] = make


def model(
    name: str | Model | Sequence[str | Model],
    *,
    base_url: str | None = None,
    api_key: ApiKey | None = None,
    dialect: str | None = None,
    flags: Iterable[str] | None = None,
    headers: Headers | None = None,
    query: Mapping[str, str] | None = None,
    api_version: str | None = None,
    token_provider: TokenProvider | None = None,
    retry: Retry | None = None,
    timeouts: Timeouts | None = None,
    limits: CallLimits | None = None,
    stream: bool | None = None,
    unsupported: Iterable[str] | None = None,
    efforts: Iterable[str] | None = None,
) -> Model:
    """Return the model with the name ``provider:model``. A model is returned unchanged; a list becomes a `Fallback`.

    With a `base_url` the provider may have any name: it is your own endpoint. It speaks the chat dialect unless you set
    `dialect` (``anthropic``, ``responses``, ``chat`` or ``google``); `flags` describe its deviations.

    `api_key` is a key, or a function that Holdfast calls for each attempt; without it the key comes from the
    environment. `token_provider` is a function, sync or async, that returns a bearer token, such as those of Azure's
    identity library; Holdfast calls it before each attempt, and once more after a 401. `headers` go out with every
    request: a mapping, or a function, sync or async, that returns one for each attempt. `query` is added to every
    address. `api_version` is Azure's.

    With ``stream=False`` replies come whole, for endpoints that do not stream. `unsupported` names the settings that
    the model refuses, and `efforts` the efforts that it knows; they replace Holdfast's built-in knowledge of the model.
    """
    options = {option: value for option, value in locals().items() if option != "name" and value is not None}
    if not isinstance(name, str):
        _refuse_options(name, options, "a name")
        if isinstance(name, list | tuple):
            from holdfast.models.fallback import Fallback  # loaded on first use

            return Fallback([model(one) for one in cast("Sequence[str | Model]", name)])
        if not isinstance(name, Model):
            raise InvalidArgument("model", name, "a model, a list of models, or a name such as 'provider:model'")
        return name
    provider, _, rest = name.partition(":")
    check_model_name(name, own=base_url is not None)
    if provider in _makers:
        _refuse_options(name, options, "an endpoint")
        return _makers[provider](rest)
    from holdfast.models.dialect import NO_STREAM  # loaded on first use
    from holdfast.models.endpoints import resolve_endpoint
    from holdfast.models.http import HttpModel
    from holdfast.models.limits import CallLimits
    from holdfast.models.retry import Retry
    from holdfast.models.transport import Timeouts

    endpoint = resolve_endpoint(
        provider,
        base_url=base_url,
        dialect=dialect,
        headers=None if callable(headers) else headers,
        query=query,
        api_version=api_version,
        flags=None if flags is None else check_words("flags", flags),
    )
    spoken = load_dialect(endpoint.dialect)
    for flag in sorted(endpoint.flags) if flags is not None else ():
        if flag not in spoken.flags:
            choice = ", ".join(sorted(spoken.flags))
            raise InvalidArgument("the flag", flag, f"one of the {endpoint.dialect} dialect ({choice})")
    if stream is not None:
        if type(stream) is not bool:
            raise InvalidArgument("stream", stream, "True or False")
        streaming = endpoint.flags - {NO_STREAM} if stream else endpoint.flags | {NO_STREAM}
        endpoint = msgspec.structs.replace(endpoint, flags=streaming)
    return HttpModel(
        endpoint,
        rest,
        spoken,
        api_key=api_key,
        token_provider=token_provider,
        headers=headers if callable(headers) else None,
        retry=default_or_given("retry", Retry, retry, "a Retry"),
        timeouts=default_or_given("timeouts", Timeouts, timeouts, "a Timeouts"),
        limits=default_or_given("limits", CallLimits, limits, "a CallLimits"),
        unsupported=unsupported,
        efforts=efforts,
    )


def _refuse_options(name: object, options: Mapping[str, object], wanted: str) -> None:
    """Raise `InvalidArgument` if an option is set: only endpoints have options."""
    if options:
        raise InvalidArgument("model", name, f"{wanted}, where {' and '.join(options)} is set,")


def load_dialect(name: str) -> Dialect:
    """Import a dialect."""
    module: Any = import_module(f"holdfast.models.{name}")
    return module.DIALECT


def check_model_name(name: str, *, own: bool = False) -> None:
    """Raise `ModelUnknown` for an unknown provider. The endpoint of a user (`own`) may have any name."""
    from holdfast.models.endpoints import ENDPOINTS  # loaded on first use

    provider, colon, rest = name.partition(":")
    if not provider or not colon or not rest or not (own or provider in _makers or provider in ENDPOINTS):
        raise ModelUnknown(name, tuple(sorted({*_makers, *ENDPOINTS})))
