"""The Anthropic Messages dialect: a request as bytes, and the frames of a reply as neutral events. Pure.

What only the provider understands travels in `Reasoning` parts, in the order in which it came, and goes back unchanged
to the route that made it. Elsewhere it is left out. The form of `replay` says what it is:

=============================  =========================================================================================
``{"signature": ...}``         signs the thoughts that are the text of the part
``{"citations": [...]}``       belongs to the text right before it
a block with a ``"type"``      anything else, as it came: redacted thoughts, server tools and their results, compaction
=============================  =========================================================================================

Thoughts that nobody signed are shown and not sent back. A call that a server tool makes keeps who called it, and the
container it runs in, in `ToolCall.replay`.

Flags of an endpoint:

=====================  =================================================================================================
``adaptive_thinking``  `effort` is sent as adaptive thinking, whatever the model is called
``budget_thinking``    `effort` is sent as a budget of tokens, whatever the model is called
``unsigned_thinking``  thoughts are sent back also without a signature
``output_in_words``    the schema of the answer is told in the instructions; there is no field for it
=====================  =================================================================================================

Without a flag the version in a model's name decides: budgets before Claude 4.6 and for models of other makers, schemas
in words before Claude 4.1. With a budget, Claude takes no turn in whose middle thoughts begin: one that another route
began, or a forced call, is ended without thinking.

`Settings.seed` has no counterpart here. Fields of `Settings.extra` go into the request as they are, but for ``betas``
(a header), ``tools`` (before ours), and ``output_config`` (joined with ours).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from holdfast.models.anthropic.errors import refused
from holdfast.models.anthropic.request import encoded_request
from holdfast.models.anthropic.response import AnthropicFold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.errors import ModelError
    from holdfast.messages import ModelRequest
    from holdfast.models.dialect import Endpoint, WireRequest


class Anthropic:
    """How Anthropic, and whoever speaks like it, is spoken to."""

    name: ClassVar[str] = "anthropic"
    arrays: ClassVar[bool] = False

    def encode(self, endpoint: Endpoint, model: str, request: ModelRequest) -> WireRequest:
        """The request for a stream."""
        return encoded_request(endpoint, model, request)

    def fold(self, endpoint: Endpoint, model: str) -> AnthropicFold:
        """A new reader for one response."""
        return AnthropicFold(endpoint, model)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        """What an answer with an error status means."""
        return refused(status, headers, body)


DIALECT: Final = Anthropic()
