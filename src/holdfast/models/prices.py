"""Prices: the cost of a call in US dollars. An unknown cost is None, never zero.

Prices come from `genai-prices` (the extra ``prices``), whose data is in its wheel: nothing is fetched. Your own prices
override it. Compute the cost of each call by itself: many prices depend on the length of the request.

The cost covers tokens, and the fee of a request if there is one. It does not cover tools that the provider runs.
"""

from __future__ import annotations

import math
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.errors import InvalidArgument, InvalidNumber
from holdfast.messages import total_usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, ModelPrice, TieredPrices

    from holdfast.messages import ModelReply, Usage


PROVIDERS: Final[Mapping[str, str]] = {
    "anthropic": "anthropic",
    "azure": "azure",
    "azure-deployments": "azure",
    "azure-responses": "azure",
    "cerebras": "cerebras",
    "cohere": "cohere",
    "deepseek": "deepseek",
    "fireworks": "fireworks",
    "google": "google",
    "google-chat": "google",
    "groq": "groq",
    "minimax": "minimax",
    "mistral": "mistral",
    "moonshot": "moonshotai",
    "novita": "novita",
    "openai": "openai",
    "openai-chat": "openai",
    "openrouter": "openrouter",
    "perplexity": "perplexity",
    "together": "together",
    "vertex": "google",
    "xai": "x-ai",
    "xai-chat": "x-ai",
    "zai": "zai",
}
"""Our names of providers, and those of `genai-prices`. Others have no price unless you set one."""
_ROUTER: Final = "huggingface"
"""Its models name the provider that serves them, ``org/model:groq``, and each provider has its own prices."""
_MILLION: Final = Decimal(1_000_000)
_THOUSAND: Final = Decimal(1_000)
_MAX_CACHED: Final = 1_024
Number = int | float | Decimal


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars for a million tokens. Cached tokens cost what other input costs, unless they have their own price."""

    input: Number
    output: Number
    cache_read: Number | None = None
    cache_write: Number | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            _check(name, getattr(self, name), optional=name.startswith("cache_"))


def cost(
    model_name: str, usage: Usage, overrides: Mapping[str, Price] | None = None, *, at: datetime | None = None
) -> float | None:
    """Return the cost of one call of ``provider:model`` in US dollars; None if it is not known.

    `overrides` precedes the known prices: ``{"provider:model": Price(input=3, output=15)}``; ``"provider:*"`` is for
    all other models of a provider. `at` is the time of the call, since prices change.
    """
    rates = _override(model_name, overrides) if overrides else None
    if rates is None:
        rates = _known_rates(model_name, at)
    amount = None if rates is None else _amount(rates, usage)
    return None if amount is None else float(amount)


def reply_cost(reply: ModelReply, asked: str, overrides: Mapping[str, Price] | None = None) -> float | None:
    """Return the cost of a reply with all attempts, each model run at its own price; None if one is not known.

    `asked` is the requested model. Its override counts if there is none for the model in the reply.
    """
    if not reply.raw_usage and not reply.usage.total:
        return None  # the provider reported no usage
    given = overrides or {}
    answered = asked if asked in given and reply.model not in given else reply.model or asked
    total = 0.0
    for model_name, usage in _runs(reply, answered):
        amount = cost(model_name, usage, overrides)
        if amount is None:
            return None
        total += amount
    return total


def _runs(reply: ModelReply, answered: str) -> Iterator[tuple[str, Usage]]:
    """Yield all model runs: those of the attempts, if they add up to the usage of the reply."""
    attempts = [attempt for attempt in reply.attempts if attempt.usage is not None and attempt.usage.total]
    if not attempts or total_usage(attempts) != reply.usage:
        yield answered, reply.usage
        return
    last = attempts[-1].model
    provider = answered.partition(":")[0]
    for attempt in attempts:
        name = answered if attempt.model == last else attempt.model
        if not attempt.passes and attempt.usage is not None:
            yield name, attempt.usage
        for run in attempt.passes:
            yield (f"{provider}:{run.model}" if run.model else name), run.usage


def context_window(model_name: str) -> int | None:
    """Return the context window of ``provider:model`` in tokens, if it is known."""
    if _find_priced(model_name) is None:
        return None
    library = _library()
    model = None if library is None else library.model(model_name)
    return None if model is None else model.context_window


def load_prices() -> bool:
    """Load the price data now; return whether there is any. Otherwise the first `cost` loads it, in about 0.15 s."""
    return _library() is not None


def _check(name: str, value: Number | None, *, optional: bool) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise InvalidArgument(f"the price of {name}", value, "a number of US dollars for a million tokens")
    if not math.isfinite(value) or value < 0:
        raise InvalidNumber(f"the price of {name}", value, "it must be zero or more")


class _Rates(NamedTuple):
    """Prices of a million tokens, for a request of a certain length. None: unknown."""

    input: Decimal | None
    output: Decimal | None
    cache_read: Decimal | None
    cache_write: Decimal | None
    reasoning: Decimal | None = None
    request: Decimal | None = None
    """The fee for a thousand requests."""


class _Tiered(NamedTuple):
    """Rates that depend on the length of the request."""

    price: ModelPrice

    def at(self, length: int) -> _Rates:
        price = self.price
        return _Rates(
            _tier(price.input_mtok, length),
            _tier(price.output_mtok, length),
            _tier(price.cache_read_mtok, length),
            _tier(price.cache_write_mtok, length),
            _tier(price.output_reasoning_mtok, length),
            _tier(price.requests_kcount, length),
        )


def _tier(price: Decimal | TieredPrices | None, length: int) -> Decimal | None:
    if price is None or isinstance(price, Decimal):
        return price
    found = price.base
    for tier in price.tiers:
        if length > tier.start:
            found = tier.price
    return found


def _amount(rates: _Rates | _Tiered, usage: Usage) -> Decimal | None:
    length = usage.input + usage.cache_read + usage.cache_write
    at = rates.at(length) if isinstance(rates, _Tiered) else rates
    thought = min(usage.reasoning, usage.output) if at.reasoning is not None else 0
    total = Decimal(0) if at.request is None else at.request * _MILLION / _THOUSAND
    for tokens, rate in (
        (usage.input, at.input),
        (usage.cache_read, at.input if at.cache_read is None else at.cache_read),
        (usage.cache_write, at.input if at.cache_write is None else at.cache_write),
        (usage.output - thought, at.output),
        (thought, at.reasoning),
    ):
        if tokens:
            if rate is None:
                return None
            total += tokens * rate
    if at.input is None and at.output is None:
        return None
    return total / _MILLION


def _override(name: str, overrides: Mapping[str, Price]) -> _Rates | None:
    price = overrides.get(name)
    if price is None:
        price = overrides.get(f"{name.partition(':')[0]}:*")
    if price is None:
        return None
    if not isinstance(price, Price):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise InvalidArgument(f"the price of {name}", price, "a Price")
    read, write = price.cache_read, price.cache_write
    return _Rates(
        _exact(price.input),
        _exact(price.output),
        None if read is None else _exact(read),
        None if write is None else _exact(write),
    )


def _exact(value: Number) -> Decimal:
    # By its digits: 0.3 is three tenths, not the nearest binary number.
    return value if isinstance(value, Decimal) else Decimal(str(value))


class _Library:
    """The price data, and a cache of looked-up models."""

    def __init__(self, current: Callable[[], DataSnapshot]) -> None:
        self._current = current
        self._edition = current()
        self._found: dict[str, ModelInfo | None] = {}

    def model(self, name: str) -> ModelInfo | None:
        """Look up ``provider:model``. Misses are cached too: a lookup walks all models of the provider."""
        edition = self._current()
        if edition is not self._edition or len(self._found) >= _MAX_CACHED:
            self._edition = edition
            self._found.clear()
        if name not in self._found:
            self._found[name] = _entry(edition, name)
        return self._found[name]


def _entry(edition: DataSnapshot, name: str) -> ModelInfo | None:
    found = _find_priced(name)
    if found is None:
        return None
    try:
        provider, model = edition.find_provider_model(found.model, None, found.provider, None)
    except LookupError:
        return None
    # The library also matches providers by similar names, whose prices may differ.
    return model if provider.id == found.provider else None


def _known_rates(name: str, at: datetime | None) -> _Tiered | None:
    library = None if _find_priced(name) is None else _library()
    model = None if library is None else library.model(name)
    if model is None or not model.prices:
        return None
    if not isinstance(model.prices, list):
        return _Tiered(model.prices)
    from datetime import UTC, datetime  # noqa: PLC0415

    return _Tiered(model.get_prices(at or datetime.now(UTC)))


class _PricedModel(NamedTuple):
    provider: str
    model: str


def _find_priced(name: str) -> _PricedModel | None:
    """Return the provider and model of `genai-prices`."""
    provider, _, model = name.partition(":")
    if provider == _ROUTER:
        model, _, server = model.rpartition(":")
        return _PricedModel(f"{_ROUTER}_{server}", model) if model else None
    known = PROVIDERS.get(provider)
    return _PricedModel(known, model) if known and model else None


@cache
def _library() -> _Library | None:
    try:
        from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415  heavy, and an extra
    except ImportError:
        return None
    return _Library(get_snapshot)
