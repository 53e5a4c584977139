"""The flags of each dialect: what an endpoint may do differently from the others that speak it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_STREAM: Final = "no_stream"
"""The flag that every dialect knows: the endpoint does not stream, or what is in front of it holds streams back."""
_WHOLE: Final = {NO_STREAM: "answers are asked for whole, not as a stream"}

_FLAGS: Final[Mapping[str, Mapping[str, str]]] = {
    "anthropic": {
        **_WHOLE,
        "adaptive_thinking": "effort is sent as adaptive thinking, whatever the model is called",
        "budget_thinking": "effort is sent as a budget of tokens, whatever the model is called",
        "unsigned_thinking": "thoughts are sent back also without a signature",
        "output_in_words": "there is no field for the schema of the answer: it is told in the instructions",
    },
    "responses": {
        **_WHOLE,
        "no_cache_key": "prompt_cache_key is refused and left out",
        "no_encrypted": "encrypted reasoning can't be asked for",
        "no_item_ids": "ids of items are looked up, though nothing is stored: none are sent",
        "no_strict": "strict schemas are not known",
        "no_store": "store is refused and left out",
    },
    "google": {
        **_WHOLE,
        "whole_url": "the address holds all that stands before /models/...: version, project, publisher",
        "gemini2": "the models are of the second generation, whatever their names are",
    },
}


def flags_of(dialect: str) -> Mapping[str, str]:
    """Every flag that a dialect knows, and what it says about an endpoint."""
    found = _FLAGS.get(dialect)
    if found is None:
        from holdfast.models.chat import FLAGS  # noqa: PLC0415  a dialect is imported when it is first spoken

        found = {**_WHOLE, **FLAGS}
    return found
