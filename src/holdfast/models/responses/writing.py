"""Compaction at the provider: what is old becomes one item that only the provider can read. Pure.

The item comes back in the reply, is kept as replay data, and goes back in its place with the next requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.errors.unoffered import NotOffered

if TYPE_CHECKING:
    from holdfast.models.wire import Endpoint

_OFFERING: Final = frozenset(("openai", "azure-responses"))
"""Those that document it. Others who speak the dialect may drop the field without a word."""


def context_management(endpoint: Endpoint, model: str, at: int) -> list[dict[str, Any]]:
    """The field that asks for compaction at so many tokens."""
    if endpoint.provider not in _OFFERING:
        advice = (
            "it is known for OpenAI and Azure only; leave compact_at out, or send the field of your server with "
            "settings.extra={'context_management': [...]}"
        )
        raise NotOffered("settings.compact_at", f"{endpoint.provider}:{model}", advice)
    return [{"type": "compaction", "compact_threshold": at}]
