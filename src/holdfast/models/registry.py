"""Model names: ``provider:model`` becomes a `Model`."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import msgspec

from holdfast.errors import InvalidArgument, ModelUnknown
from holdfast.models.contract import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.models.credentials import ApiKey, Headers, TokenProvider
    from holdfast.models.dialect import Dialect, Endpoint
    from holdfast.models.limits import CallLimits
    from holdfast.models.retry import Retry
    from holdfast.models.transport import Timeouts


T = TypeVar("T")
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
    """Return the model that ``provider:model`` names. A model is returned as it is; a list becomes a `Fallback`.

    With a `base_url` the provider may have any name: it is an endpoint of your own. It speaks the chat dialect unless
    you set `dialect` (``anthropic``, ``responses``, ``chat`` or ``google``); `flags` describe its deviations. `api_key`
    is a key, or a function that Holdfast calls for each attempt; without it the key comes from the environment.
    `token_provider` is a function, sync or async, that returns a bearer token, such as those of Azure's identity
    library; Holdfast calls it before each attempt, and once more after a 401. `headers` go out with every request: a
    mapping, or a function, sync or async, that returns one for each attempt. `query` is added to every address.
    `api_version` is Azure's. With ``stream=False`` replies come whole, for endpoints that do not stream. `unsupported`
    names the settings that the model refuses, and `efforts` the efforts that it knows; they replace Holdfast's own
    knowledge of the model.
    """
    options = _Options(
        base_url=base_url,
        api_key=api_key,
        dialect=dialect,
        flags=flags,
        headers=headers,
        query=query,
        api_version=api_version,
        token_provider=token_provider,
        retry=retry,
        timeouts=timeouts,
        limits=limits,
        stream=stream,
        unsupported=unsupported,
        efforts=efforts,
    )
    if isinstance(name, str):
        return _make_model(name, options)
    options.refuse(name, "a name")
    if isinstance(name, list | tuple):
        from holdfast.models.fallback import Fallback  # noqa: PLC0415  loaded on first use

        return Fallback([model(one) for one in cast("Sequence[str | Model]", name)])
    if not isinstance(name, Model):
        raise InvalidArgument("model", name, "a model, a list of models, or a name such as 'provider:model'")
    return name


def load_dialect(name: str) -> Dialect:
    """Import a dialect."""
    module: Any = import_module(f"holdfast.models.{name}")
    return module.DIALECT


class _Options(NamedTuple):
    """The options of `model`."""

    base_url: str | None
    api_key: ApiKey | None
    dialect: str | None
    flags: Iterable[str] | None
    headers: Headers | None
    query: Mapping[str, str] | None
    api_version: str | None
    token_provider: TokenProvider | None
    retry: Retry | None
    timeouts: Timeouts | None
    limits: CallLimits | None
    stream: bool | None
    unsupported: Iterable[str] | None
    efforts: Iterable[str] | None

    def refuse(self, name: object, wanted: str) -> None:
        """Raise `InvalidArgument` if an option is set: options are only for endpoints."""
        given = [option for option, value in zip(self._fields, self, strict=True) if value is not None]
        if given:
            raise InvalidArgument("model", name, f"{wanted}, where {' and '.join(given)} is given,")


def check_model_name(name: str, *, own: bool = False) -> None:
    """Raise `ModelUnknown` for an unknown provider. The endpoint of a user (`own`) may have any name."""
    from holdfast.models.endpoints import ENDPOINTS  # noqa: PLC0415  loaded on first use

    provider, colon, rest = name.partition(":")
    if not provider or not colon or not rest or not (own or provider in _makers or provider in ENDPOINTS):
        raise ModelUnknown(name, tuple(sorted({*_makers, *ENDPOINTS})))


def _make_model(name: str, options: _Options) -> Model:
    from holdfast.models.endpoints import resolve_endpoint  # noqa: PLC0415  loaded on first use

    provider, _, rest = name.partition(":")
    check_model_name(name, own=options.base_url is not None)
    make = _makers.get(provider)
    if make is not None:
        options.refuse(name, "an endpoint")
        return make(rest)
    from holdfast.models.http import HttpModel  # noqa: PLC0415
    from holdfast.models.limits import CallLimits  # noqa: PLC0415
    from holdfast.models.retry import Retry  # noqa: PLC0415
    from holdfast.models.transport import Timeouts  # noqa: PLC0415

    endpoint = resolve_endpoint(
        provider,
        base_url=options.base_url,
        dialect=options.dialect,
        headers=None if callable(options.headers) else options.headers,
        query=options.query,
        api_version=options.api_version,
        flags=_check_words("flags", options.flags),
    )
    if options.flags is not None:
        _check_flags(endpoint.dialect, endpoint.flags)
    if options.stream is not None:
        endpoint = _set_streaming(endpoint, options.stream)
    return HttpModel(
        endpoint,
        rest,
        load_dialect(endpoint.dialect),
        api_key=options.api_key,
        token_provider=options.token_provider,
        headers=options.headers if callable(options.headers) else None,
        retry=_check_option("retry", options.retry, Retry),
        timeouts=_check_option("timeouts", options.timeouts, Timeouts),
        limits=_check_option("limits", options.limits, CallLimits),
        unsupported=options.unsupported,
        efforts=options.efforts,
    )


def _set_streaming(endpoint: Endpoint, stream: object) -> Endpoint:
    from holdfast.models.dialect import NO_STREAM  # noqa: PLC0415

    if type(stream) is not bool:
        raise InvalidArgument("stream", stream, "True or False")
    flags = endpoint.flags - {NO_STREAM} if stream else endpoint.flags | {NO_STREAM}
    return msgspec.structs.replace(endpoint, flags=flags)


def _check_flags(dialect: str, flags: frozenset[str]) -> None:
    known = load_dialect(dialect).flags
    for flag in sorted(flags):
        if flag not in known:
            choice = ", ".join(sorted(known))
            raise InvalidArgument("the flag", flag, f"one of the {dialect} dialect ({choice})")


def _check_words(what: str, value: object) -> list[str] | None:
    """Check a list of words. One string is not a list of letters."""
    if value is None:
        return None
    if isinstance(value, Iterable) and not isinstance(value, str):
        given = list(cast("Iterable[object]", value))
        words = [word for word in given if isinstance(word, str)]
        if len(words) == len(given):
            return words
    raise InvalidArgument(what, cast("object", value), "a list of words")


def _check_option(what: str, value: T | None, kind: type[T]) -> T:
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise InvalidArgument(what, value, f"a {kind.__name__}")
    return value
