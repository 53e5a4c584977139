"""From a name to a model."""

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
    """Let ``provider:anything`` name a model that `make("anything")` gives. It goes before an endpoint of that name."""
    _makers[provider] = make


def model(  # noqa: PLR0913  one for each thing that may be another
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
    """The model that ``provider:model`` names; a model stands for itself, and a list for the first that works.

    With a `base_url` the provider may be one that nobody knows: an endpoint of your own. It speaks the chat dialect
    unless `dialect` says otherwise (``anthropic``, ``responses``, ``chat`` or ``google``), and `flags` say what it does
    differently. `api_key` is a key or a function that gives one, asked at each call; without it the key is read from
    the environment. `token_provider` is a function, sync or async, that gives a bearer token, such as those of Azure's
    identity library; it is asked before each try, and once more after a 401. `headers` go out with every request: a
    mapping, or a function, sync or async, that gives one for each try. `query` is put to every address. `api_version`
    is Azure's. With ``stream=False`` replies are asked for whole: for what does not stream, or where nobody watches.
    `unsupported` names the settings that the model refuses, and `efforts` the efforts that it knows; they replace what
    Holdfast knows of the model. What is not given is as it is known for the name.
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
        return _named(name, options)
    options.refuse(name, "a name")
    if isinstance(name, list | tuple):
        from holdfast.models.fallback import Fallback  # noqa: PLC0415  only a list needs it

        return Fallback([model(one) for one in cast("Sequence[str | Model]", name)])
    if not isinstance(name, Model):
        raise InvalidArgument("model", name, "a model, a list of models, or a name such as 'provider:model'")
    return name


def load_dialect(name: str) -> Dialect:
    """The dialect of this name, imported when it is first spoken."""
    module: Any = import_module(f"holdfast.models.{name}")
    return module.DIALECT


class _Options(NamedTuple):
    """What may be said beside a name. The fields are the arguments of `model`."""

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
        """Options are for an endpoint. What is none of ours has been set up by whoever made it."""
        given = [option for option, value in zip(self._fields, self, strict=True) if value is not None]
        if given:
            raise InvalidArgument("model", name, f"{wanted}, where {' and '.join(given)} is given,")


def check_model_name(name: str, *, own: bool = False) -> None:
    """`ModelUnknown` if `name` is no provider and model; of an endpoint of one's `own`, the provider may be any."""
    from holdfast.models.endpoints import ENDPOINTS  # noqa: PLC0415  a model of one's own needs none of it

    provider, colon, rest = name.partition(":")
    if not provider or not colon or not rest or not (own or provider in _makers or provider in ENDPOINTS):
        raise ModelUnknown(name, tuple(sorted({*_makers, *ENDPOINTS})))


def _named(name: str, options: _Options) -> Model:
    from holdfast.models.endpoints import resolve_endpoint  # noqa: PLC0415  a model of one's own needs none of it

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

    place = resolve_endpoint(
        provider,
        base_url=options.base_url,
        dialect=options.dialect,
        headers=None if callable(options.headers) else options.headers,
        query=options.query,
        api_version=options.api_version,
        flags=_words("flags", options.flags),
    )
    if options.flags is not None:
        _check_flags(place.dialect, place.flags)
    if options.stream is not None:
        place = _streaming(place, options.stream)
    return HttpModel(
        place,
        rest,
        load_dialect(place.dialect),
        api_key=options.api_key,
        token_provider=options.token_provider,
        headers=options.headers if callable(options.headers) else None,
        retry=_one("retry", options.retry, Retry),
        timeouts=_one("timeouts", options.timeouts, Timeouts),
        limits=_one("limits", options.limits, CallLimits),
        unsupported=options.unsupported,
        efforts=options.efforts,
    )


def _streaming(place: Endpoint, stream: object) -> Endpoint:
    from holdfast.models.dialect import NO_STREAM  # noqa: PLC0415

    if type(stream) is not bool:
        raise InvalidArgument("stream", stream, "True or False")
    flags = place.flags - {NO_STREAM} if stream else place.flags | {NO_STREAM}
    return msgspec.structs.replace(place, flags=flags)


def _check_flags(spoken: str, given: frozenset[str]) -> None:
    known = load_dialect(spoken).flags
    for flag in sorted(given):
        if flag not in known:
            choice = ", ".join(sorted(known))
            raise InvalidArgument("the flag", flag, f"one of the {spoken} dialect ({choice})")


def _words(what: str, value: object) -> list[str] | None:
    """Some words. One string is not meant as the letters it is made of."""
    if value is None:
        return None
    if isinstance(value, Iterable) and not isinstance(value, str):
        given = list(cast("Iterable[object]", value))
        words = [word for word in given if isinstance(word, str)]
        if len(words) == len(given):
            return words
    raise InvalidArgument(what, cast("object", value), "a list of words")


def _one(what: str, value: T | None, kind: type[T]) -> T:
    """What was given, or else the defaults."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise InvalidArgument(what, value, f"a {kind.__name__}")
    return value
