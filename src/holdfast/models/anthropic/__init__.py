"""The Anthropic Messages dialect, spoken by Anthropic and compatible endpoints.

Data that only the provider understands travels in `Reasoning` parts, in its original order, and goes back unchanged to
the route that made it. Other routes do not get it. The form of `replay` says what it is:

=============================  =========================================================================================
``{"signature": ...}``         the signature of the thoughts in the text of the part
``{"citations": [...]}``       citations of the text right before it
a block with a ``"type"``      other blocks, as they came: redacted thoughts, server tools and their results, compaction
=============================  =========================================================================================

Thoughts without a signature are shown and not sent back. A call that a server tool makes keeps its caller, and the
container it runs in, in `ToolCall.replay`.

Without a flag the version in a model's name decides: thinking budgets before Claude 4.6 and for other makers' models,
schemas in the instructions before Claude 4.1. With a budget, Claude refuses a turn whose thoughts begin in the middle:
a turn that another route began, or that a forced call began, ends without thinking.

`Settings.seed` has no counterpart. Fields of `Settings.extra` go into the request as they are, except ``betas`` (a
header), ``tools`` (before ours), and ``output_config`` (merged with ours).
"""

from __future__ import annotations

from typing import Final

from holdfast.models.anthropic.request import encode_request
from holdfast.models.anthropic.response import AnthropicReader, classify_error
from holdfast.models.dialect import COMMON_FLAGS, Dialect

FLAGS: Final = COMMON_FLAGS | {
    "adaptive_thinking": "effort is sent as adaptive thinking, whatever the model is called",
    "budget_thinking": "effort is sent as a budget of tokens, whatever the model is called",
    "unsigned_thinking": "thoughts are sent back also without a signature",
    "output_in_words": "there is no field for the schema of the answer: it goes into the instructions",
}
DIALECT: Final = Dialect("anthropic", encode_request, AnthropicReader, classify_error, FLAGS)
