"""Prices: the cost of a call in US dollars. An unknown cost is None, never zero.

Prices come from `genai-prices` (the extra ``prices``), which has its data in the wheel: nothing is fetched. Your own
prices override it. Compute the cost of each call separately: many prices depend on the length of the request. The cost
covers tokens, and the fee of a request if there is one. It does not cover tools that the provider runs.
"""

from __future__ import annotations

import math
from contextlib import suppress
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.errors import InvalidArgument, InvalidNumber
from holdfast.messages import ModelReply, Usage, total_usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, TieredPrices


_SAME_NAME: Final = (
    *("anthropic", "azure", "cerebras", "cohere", "deepseek", "fireworks", "google", "groq", "minimax", "mistral"),
    *("novita", "openai", "openrouter", "perplexity", "together", "zai"),
)
PROVIDERS: Final[Mapping[str, str]] = {
    **{name: name for name in _SAME_NAME},
    "azure-deployments": "azure",
    "azure-responses": "azure",
    "google-chat": "google",
    "moonshot": "moonshotai",
    "openai-chat": "openai",
    "vertex": "google",
    "xai": "x-ai",
    "xai-chat": "x-ai",
}
"""Our names of providers, and those of `genai-prices`. Others have no price unless you set one."""
_ROUTER: Final = "huggingface"
"""Its models name the provider that serves them, ``org/model:groq``, and each provider has its own prices."""
_MILLION: Final = Decimal(1_000_000)
_MAX_CACHED: Final = 1_024
Number = int | float | Decimal


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars for a million tokens. Cached tokens cost the same as other input, unless they have their own price."""

    input: Number
    output: Number
    cache_read: Number | None = None
    cache_write: Number | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None and name.startswith("cache_"):
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
                raise InvalidArgument(f"the price of {name}", value, "a number of US dollars for a million tokens")
            if not math.isfinite(value) or value < 0:
                raise InvalidNumber(f"the price of {name}", value, "it must be zero or more")


def cost(
    model_name: str, usage: Usage, overrides: Mapping[str, Price] | None = None, *, at: datetime | None = None
) -> float | None:
    """Return the cost of one call of ``provider:model`` in US dollars; None if it is unknown.

    `overrides` precedes the known prices: ``{"provider:model": Price(input=3, output=15)}``; ``"provider:*"`` is for
    all other models of a provider. `at` is the time of the call, since prices change.
    """
    length = usage.input + usage.cache_read + usage.cache_write
    rates = (_override(model_name, overrides) if overrides else None) or _known_rates(model_name, length, at)
    if rates is None or (rates.input is None and rates.output is None):
        return None
    thought = min(usage.reasoning, usage.output) if rates.reasoning is not None else 0
    total = Decimal(0) if rates.request is None else rates.request * _MILLION / 1_000
    for tokens, rate in (
        (usage.input, rates.input),
        (usage.cache_read, rates.input if rates.cache_read is None else rates.cache_read),
        (usage.cache_write, rates.input if rates.cache_write is None else rates.cache_write),
        (usage.output - thought, rates.output),
        (thought, rates.reasoning),
    ):
        if tokens:
            if rate is None:
                return None
            total += tokens * rate
    return float(total / _MILLION)


def reply_cost(reply: ModelReply, asked: str, overrides: Mapping[str, Price] | None = None) -> float | None:
    """Return the cost of a reply with all attempts, each model run at its own price; None if a price is unknown.

    `asked` is the requested model. Its override counts if the model of the reply has none.
    """
    if not reply.raw_usage and not reply.usage.total:
        return None  # the provider reported no usage
    given = overrides or {}
    answered = asked if asked in given and reply.model not in given else reply.model or asked
    attempts = [attempt for attempt in reply.attempts if attempt.usage is not None and attempt.usage.total]
    if not attempts or total_usage(attempts) != reply.usage:
        return cost(answered, reply.usage, overrides)
    total = 0.0
    provider = answered.partition(":")[0]
    for attempt in attempts:
        name = answered if attempt.model == attempts[-1].model else attempt.model
        runs = [(f"{provider}:{run.model}" if run.model else name, run.usage) for run in attempt.passes]
        for model_name, usage in runs or [(name, attempt.usage or reply.usage)]:
            amount = cost(model_name, usage, overrides)
            if amount is None:
                return None
            total += amount
    return total


def context_window(model_name: str) -> int | None:
    """Return the context window of ``provider:model`` in tokens, if it is known."""
    model = _find_model(model_name)
    return None if model is None else model.context_window


def load_prices() -> bool:
    """Load the price data now; returns False if there is none. Otherwise the first `cost` loads it, in about 0.15 s."""
    return _price_data() is not None


class _Rates(NamedTuple):
    """Prices of a million tokens, for a request of a certain length. None: unknown."""

    input: Decimal | None
    output: Decimal | None
    cache_read: Decimal | None
    cache_write: Decimal | None
    reasoning: Decimal | None = None
    request: Decimal | None = None
    """The fee for a thousand requests."""


def _override(name: str, overrides: Mapping[str, Price]) -> _Rates | None:
    price = overrides.get(name)
    if price is None:
        price = overrides.get(f"{name.partition(':')[0]}:*")
    if price is None:
        return None
    if not isinstance(price, Price):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise InvalidArgument(f"the price of {name}", price, "a Price")
    # By its digits: 0.3 is three tenths, not the nearest binary number.
    values = (price.input, price.output, price.cache_read, price.cache_write)
    return _Rates(*[None if value is None else Decimal(str(value)) for value in values])


def _known_rates(name: str, length: int, at: datetime | None) -> _Rates | None:
    model = _find_model(name)
    if model is None or not model.prices:
        return None
    price = model.prices
    if isinstance(price, list):
        from datetime import UTC, datetime

        price = model.get_prices(at or datetime.now(UTC))

    def tier(price: Decimal | TieredPrices | None) -> Decimal | None:
        if price is None or isinstance(price, Decimal):
            return price
        return next((tier.price for tier in reversed(price.tiers) if length > tier.start), price.base)

    given = (price.input_mtok, price.output_mtok, price.cache_read_mtok, price.cache_write_mtok)
    return _Rates(*[tier(each) for each in (*given, price.output_reasoning_mtok, price.requests_kcount)])


class _PriceData:
    """The price data, and a cache of looked-up models."""

    def __init__(self, current: Callable[[], DataSnapshot]) -> None:
        self.current = current
        self.edition = current()
        self.found: dict[str, ModelInfo | None] = {}


def _find_model(name: str) -> ModelInfo | None:
    """Look up ``provider:model``. Misses are cached too: a lookup walks all models of the provider."""
    provider, _, model = name.partition(":")
    priced = PROVIDERS.get(provider)
    if provider == _ROUTER:
        model, _, server = model.rpartition(":")
        priced = f"{_ROUTER}_{server}"
    data = _price_data() if priced and model else None
    if data is None:
        return None
    edition = data.current()
    if edition is not data.edition or len(data.found) >= _MAX_CACHED:
        data.edition = edition
        data.found.clear()
    if name not in data.found:
        data.found[name] = None
        with suppress(LookupError):
            owner, info = edition.find_provider_model(model, None, priced, None)
            # The library also matches providers with similar names, which may have other prices.
            data.found[name] = info if owner.id == priced else None
    return data.found[name]


@cache
def _price_data() -> _PriceData | None:
    try:
        from genai_prices.data_snapshot import get_snapshot  # heavy, and an extra
    except ImportError:
        return None
    return _PriceData(get_snapshot)
