"""What a call costs, in US dollars. An unknown price is None, never zero.

Prices come from `genai-prices` (the extra ``prices``), whose data is in its wheel: nothing is fetched. A table of your
own goes before it. Count each call by itself: many prices depend on how long the request was.

What is counted is tokens, and the fee for a request where there is one. What a provider charges for tools that it runs
itself is not in the tokens, and not in the cost.
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
"""Our names of providers, and those of `genai-prices`. Who is not here has no price unless you give one."""
_ROUTER: Final = "huggingface"
"""Its models name who serves them, ``org/model:groq``, and each of those has its own prices."""
_MILLION: Final = Decimal(1_000_000)
_THOUSAND: Final = Decimal(1_000)
_KEPT: Final = 1_024
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
    """What one call of ``provider:model`` costs in US dollars, or None where that is not known.

    `overrides` goes before the known prices: ``{"provider:model": Price(input=3, output=15)}``; ``"provider:*"`` stands
    for all models of a provider that are not named. `at` is when the call was made; prices change.
    """
    rates = _given(model_name, overrides) if overrides else None
    if rates is None:
        rates = _known(model_name, at)
    amount = None if rates is None else _amount(rates, usage)
    return None if amount is None else float(amount)


def reply_cost(reply: ModelReply, asked: str, overrides: Mapping[str, Price] | None = None) -> float | None:
    """What a reply cost with all its tries, each run of a model by its own price; None where one is not known.

    `asked` is the name of the model that was asked; a price that is given for it counts where none is given for the
    name in the reply.
    """
    if not reply.raw_usage and not reply.usage.total:
        return None  # the provider did not say what it counted
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
    """Each run of a model with its name: those of the tries, where they are all that the reply counts."""
    tries = [line for line in reply.attempts if line.usage is not None and line.usage.total]
    if not tries or total_usage(tries) != reply.usage:
        yield answered, reply.usage
        return
    last = tries[-1].model
    provider = answered.partition(":")[0]
    for line in tries:
        name = answered if line.model == last else line.model
        if not line.passes and line.usage is not None:
            yield name, line.usage
        for run in line.passes:
            yield (f"{provider}:{run.model}" if run.model else name), run.usage


def context_window(model_name: str) -> int | None:
    """How many tokens ``provider:model`` takes in and gives out, where that is known."""
    if _place(model_name) is None:
        return None
    library = _library()
    model = None if library is None else library.model(model_name)
    return None if model is None else model.context_window


def load_prices() -> bool:
    """Read the price data now, and tell whether there is any. The first `cost` does it otherwise, in about 0.15 s."""
    return _library() is not None


def _check(name: str, value: Number | None, *, optional: bool) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise InvalidArgument(f"the price of {name}", value, "a number of US dollars for a million tokens")
    if not math.isfinite(value) or value < 0:
        raise InvalidNumber(f"the price of {name}", value, "it must be zero or more")


class _Rates(NamedTuple):
    """What a million tokens cost in a request of a certain length. None: nobody knows."""

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


def _given(name: str, overrides: Mapping[str, Price]) -> _Rates | None:
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
    # By its digits: 0.3 is three tenths, not what is nearest to it in binary.
    return value if isinstance(value, Decimal) else Decimal(str(value))


class _Library:
    """The data, and the models that were looked up in its current edition."""

    def __init__(self, current: Callable[[], DataSnapshot]) -> None:
        self._current = current
        self._edition = current()
        self._found: dict[str, ModelInfo | None] = {}

    def model(self, name: str) -> ModelInfo | None:
        """The entry of ``provider:model``. A miss is kept too: it takes a walk through all models of the provider."""
        edition = self._current()
        if edition is not self._edition or len(self._found) >= _KEPT:
            self._edition = edition
            self._found.clear()
        if name not in self._found:
            self._found[name] = _entry(edition, name)
        return self._found[name]


def _entry(edition: DataSnapshot, name: str) -> ModelInfo | None:
    place = _place(name)
    if place is None:
        return None
    try:
        provider, model = edition.find_provider_model(place.model, None, place.provider, None)
    except LookupError:
        return None
    # The library also finds providers by words that look alike; a price of somebody else is not known to be this one.
    return model if provider.id == place.provider else None


def _known(name: str, at: datetime | None) -> _Tiered | None:
    library = None if _place(name) is None else _library()
    model = None if library is None else library.model(name)
    if model is None or not model.prices:
        return None
    if not isinstance(model.prices, list):
        return _Tiered(model.prices)
    from datetime import UTC, datetime  # noqa: PLC0415

    return _Tiered(model.get_prices(at or datetime.now(UTC)))


class _Place(NamedTuple):
    provider: str
    model: str


def _place(name: str) -> _Place | None:
    """Where `genai-prices` keeps a model: its word for the provider, and the model's name."""
    provider, _, model = name.partition(":")
    if provider == _ROUTER:
        model, _, server = model.rpartition(":")
        return _Place(f"{_ROUTER}_{server}", model) if model else None
    known = PROVIDERS.get(provider)
    return _Place(known, model) if known and model else None


@cache
def _library() -> _Library | None:
    try:
        from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415  heavy, and an extra
    except ImportError:
        return None
    return _Library(get_snapshot)
