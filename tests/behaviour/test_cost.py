"""What a call costs: known prices, prices of one's own, and unknown ones that never count as zero."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import genai_prices
import pytest
from genai_prices.data_snapshot import DataSnapshot, get_snapshot, set_custom_snapshot
from genai_prices.types import ClauseEquals, ModelInfo, ModelPrice, Provider
from genai_prices.types import Usage as TheirUsage
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tests.every import every

from holdfast.errors import InvalidArgument, InvalidNumber
from holdfast.messages import Usage
from holdfast.models.endpoints import ENDPOINTS
from holdfast.models.prices import PROVIDERS, Price, cost, load_prices

SONNET = "anthropic:claude-sonnet-4-6"
DAY = datetime(2026, 6, 1, 12, tzinfo=UTC)
PRICED = {provider.id: provider for provider in get_snapshot().providers}
TOKENS = st.integers(min_value=0, max_value=600_000)


def _theirs(provider: str, model: str, usage: Usage) -> float:
    counted = TheirUsage(
        input_tokens=usage.input + usage.cache_read + usage.cache_write,
        output_tokens=usage.output,
        cache_read_tokens=usage.cache_read,
        cache_write_tokens=usage.cache_write,
        output_reasoning_tokens=usage.reasoning,
    )
    found = genai_prices.calc_price(counted, model, provider_id=provider, genai_request_timestamp=DAY)
    return float(found.total_price)


def test_a_million_tokens_in_and_out_cost_what_the_price_list_says() -> None:
    rates = PRICED["anthropic"].find_model("claude-sonnet-4-6")
    assert rates is not None
    price = rates.get_prices(DAY)
    assert isinstance(price.input_mtok, Decimal)
    assert cost(SONNET, Usage(input=1_000), at=DAY) == float(price.input_mtok / 1_000)


def test_tokens_from_the_cache_are_cheaper_than_others() -> None:
    fresh = cost(SONNET, Usage(input=10_000))
    cached = cost(SONNET, Usage(cache_read=10_000))
    assert fresh is not None
    assert cached is not None
    assert 0 < cached < fresh


def test_reasoning_is_part_of_the_output_and_not_paid_twice() -> None:
    assert cost(SONNET, Usage(output=500, reasoning=400)) == cost(SONNET, Usage(output=500))


def test_no_tokens_of_a_known_model_cost_nothing() -> None:
    assert cost(SONNET, Usage()) == 0


@every(
    "name",
    [
        *("anthropic:no-such-model", "nobody:claude-sonnet-4-6", "claude-sonnet-4-6", "anthropic:", "", ":"),
        *("ollama:llama3", "vllm:gpt-5", "huggingface:org/model", "huggingface:org/model:nobody"),
    ],
)
def test_an_unknown_price_is_none(name: str) -> None:
    assert cost(name, Usage(input=10, output=10)) is None


def test_an_unknown_price_is_none_also_when_there_was_nothing_to_pay() -> None:
    assert cost("ollama:llama3", Usage()) is None


def test_a_model_whose_output_has_no_price_has_no_cost_once_it_said_something() -> None:
    assert cost("openai:text-embedding-3-small", Usage(input=10)) is not None
    assert cost("openai:text-embedding-3-small", Usage(input=10, output=10)) is None


def test_a_model_that_is_listed_without_any_price_has_no_cost() -> None:
    bare = next(
        (ours, model.id)
        for ours, theirs in PROVIDERS.items()
        for model in PRICED[theirs].models
        if isinstance(model.prices, ModelPrice) and not vars(model.prices)
    )
    assert cost(f"{bare[0]}:{bare[1]}", Usage(input=10, output=10)) is None


@given(usage=st.builds(Usage, TOKENS, TOKENS, TOKENS, TOKENS, TOKENS), data=st.data())
def test_the_sum_is_the_one_of_the_price_library(usage: Usage, data: st.DataObject) -> None:
    usage = structs.replace(usage, reasoning=min(usage.reasoning, usage.output))
    ours = data.draw(st.sampled_from(sorted(PROVIDERS)))
    model = data.draw(st.sampled_from([model.id for model in PRICED[PROVIDERS[ours]].models]))
    found = cost(f"{ours}:{model}", usage, at=DAY)
    if found is not None:
        assert found == pytest.approx(_theirs(PROVIDERS[ours], model, usage), rel=1e-12)


def test_a_long_request_costs_more_for_each_token_where_the_provider_has_tiers() -> None:
    short = cost("google:gemini-2.5-pro", Usage(input=200_000))
    long = cost("google:gemini-2.5-pro", Usage(input=400_000))
    assert short is not None
    assert long is not None
    assert long > 2 * short


def test_the_price_is_the_one_of_the_time_of_the_call() -> None:
    model = "openai:o3"
    before = cost(model, Usage(input=1_000_000), at=datetime(2025, 5, 1, tzinfo=UTC))
    after = cost(model, Usage(input=1_000_000), at=datetime(2025, 7, 1, tzinfo=UTC))
    assert before is not None
    assert after is not None
    assert after < before


def test_a_router_is_asked_for_the_price_of_who_serves() -> None:
    served = PRICED["huggingface_groq"].models[0].id
    assert cost(f"huggingface:{served}:groq", Usage(input=1_000, output=1_000)) is not None


# ---- names of providers ----------------------------------------------------------------------------------------------


@every("ours", sorted(PROVIDERS))
def test_a_provider_is_priced_under_the_name_that_the_library_has_for_it(ours: str) -> None:
    assert PRICED[PROVIDERS[ours]].models


def test_every_endpoint_that_is_known_by_name_is_priced_or_known_to_have_no_list() -> None:
    # Servers of one's own, plans with a flat rate, and providers that the library does not know.
    own = {"llamacpp", "lmstudio", "ollama", "sglang", "vllm"}
    unlisted = {"deepinfra", "nvidia", "qwen", "sambanova", "zai-coding"}
    assert set(ENDPOINTS) == {*PROVIDERS, "huggingface"} | own | unlisted


def test_a_provider_whose_name_only_looks_like_a_known_one_has_no_price() -> None:
    # The library would take it for another provider, by a word in its name.
    assert cost("huggingface:gpt-4o:openai", Usage(input=10)) is None


# ---- prices of one's own ---------------------------------------------------------------------------------------------


def test_an_own_price_goes_before_the_known_one() -> None:
    assert cost(SONNET, Usage(input=1_000_000, output=1_000_000), {SONNET: Price(input=1, output=2)}) == 3


def test_an_own_price_is_exact_to_the_digit() -> None:
    table = {"vllm:m": Price(input=0.1, output=0.2)}
    assert cost("vllm:m", Usage(input=1_000_000, output=1_000_000), table) == 0.3


def test_cached_tokens_have_their_own_price_where_one_is_given() -> None:
    table = {"vllm:m": Price(input=1, output=1, cache_read=Decimal("0.1"), cache_write=1.25)}
    assert cost("vllm:m", Usage(cache_read=1_000_000, cache_write=1_000_000), table) == 1.35


def test_cached_tokens_cost_what_other_input_costs_where_nothing_else_is_said() -> None:
    table = {"vllm:m": Price(input=3, output=1)}
    assert cost("vllm:m", Usage(cache_read=1_000_000, cache_write=1_000_000), table) == 6


def test_one_price_may_stand_for_all_models_of_a_provider() -> None:
    table = {"ollama:*": Price(input=0, output=0), "ollama:big": Price(input=1, output=1)}
    assert cost("ollama:small", Usage(input=1_000_000), table) == 0
    assert cost("ollama:big", Usage(input=1_000_000), table) == 1


def test_a_table_that_does_not_name_a_model_leaves_its_price_as_it_is() -> None:
    table = {"ollama:*": Price(input=0, output=0)}
    assert cost(SONNET, Usage(input=1_000), table) == cost(SONNET, Usage(input=1_000))


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), Decimal("-0.01")])
def test_a_price_below_zero_or_beyond_numbers_is_refused(value: Any) -> None:
    with pytest.raises(InvalidNumber, match="zero or more"):
        Price(input=1, output=value)


@pytest.mark.parametrize("value", ["3", None, True, [1]])
def test_a_price_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="US dollars"):
        Price(input=value, output=1)


def test_a_table_of_something_else_than_prices_is_refused() -> None:
    table: Any = {SONNET: 3.0}
    with pytest.raises(InvalidArgument, match="a Price"):
        cost(SONNET, Usage(input=1), table)


# ---- the data --------------------------------------------------------------------------------------------------------


def test_prices_that_the_application_refreshed_are_used_at_once() -> None:
    assert cost("anthropic:brand-new", Usage(input=1_000_000)) is None
    model = ModelInfo("brand-new", ClauseEquals("brand-new"), prices=ModelPrice(input_mtok=Decimal(7)))
    fresh = Provider("anthropic", "Anthropic", "https://api.anthropic.com", models=[model])
    set_custom_snapshot(DataSnapshot([fresh], from_auto_update=False))
    try:
        assert cost("anthropic:brand-new", Usage(input=1_000_000)) == 7
    finally:
        set_custom_snapshot(None)
    assert cost("anthropic:brand-new", Usage(input=1_000_000)) is None


def test_the_data_can_be_loaded_ahead() -> None:
    assert load_prices()


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_the_library_known_prices_are_unknown_and_own_ones_count() -> None:
    code = (
        "import sys; sys.modules['genai_prices'] = None\n"
        "from holdfast.models.prices import Price, cost, load_prices\n"
        "from holdfast.messages import Usage\n"
        f"name, usage = {SONNET!r}, Usage(input=1_000_000)\n"
        "print(load_prices(), cost(name, usage), cost(name, usage, {name: Price(input=2, output=1)}))"
    )
    assert _python(code) == "False None 2.0"


def test_the_library_is_not_loaded_before_somebody_asks_for_a_price() -> None:
    code = "import sys, holdfast, holdfast.models.prices; print('genai_prices' in sys.modules)"
    assert _python(code) == "False"
