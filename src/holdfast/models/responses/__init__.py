"""The OpenAI Responses dialect, spoken by OpenAI, Azure, xAI, Bedrock and many servers.

The provider stores nothing (``store`` is false): every request carries the whole conversation, and the provider's own
data (encrypted reasoning, ids, phases, items of tools that the provider runs) goes back as it came.

The items of a response become parts in their order:

    message         `Text` and `Refusal` behind an empty `Reasoning`, whose `replay` is the item without its texts:
                    id, phase, annotations
    reasoning       `Reasoning` with the summary; `replay` is the item
    function_call   `ToolCall`; `replay` holds the fields of the item besides id, name and arguments of the call
    anything else   empty `Reasoning`; `replay` is the item: searches, code, MCP, images, patches, compaction

The API has no seed and no stop sequences; such settings are left out. `Settings.extra` overrides every field except
``input``: its ``tools`` and ``include`` come after ours, its ``text`` and ``reasoning`` are merged with ours; None or
an empty list leaves a field out. ``{"reasoning": {"summary": "auto"}}`` asks for summaries of the model's thoughts.
"""

from __future__ import annotations

from typing import Final

from holdfast.models.dialect import COMMON_FLAGS, Dialect
from holdfast.models.responses.request import encode_request
from holdfast.models.responses.response import ResponsesReader, classify_error

FLAGS: Final = COMMON_FLAGS | {
    "no_cache_key": "prompt_cache_key is refused and left out",
    "no_encrypted": "encrypted reasoning can't be asked for",
    "no_item_ids": "ids of items are looked up, though nothing is stored: none are sent",
    "no_strict": "strict schemas are not known",
    "no_store": "store is refused and left out",
}
DIALECT: Final = Dialect("responses", encode_request, ResponsesReader, classify_error, FLAGS)
