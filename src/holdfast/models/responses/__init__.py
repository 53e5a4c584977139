"""The OpenAI Responses dialect, as OpenAI, Azure, xAI, Bedrock and many servers speak it. Pure.

Nothing is stored at the provider (``store`` is false): every request carries the whole conversation, and what the model
needs of its own (encrypted reasoning, ids, phases, the items of tools that the provider runs) goes back as it came.

How a reply is kept: the items of a response become parts in their order.

    message         the words (`Text`, `Refusal`) behind a `Reasoning` without text, whose `replay` is the item without
                    its words: id, phase, annotations
    reasoning       `Reasoning` with the summary; `replay` is the item
    function_call   `ToolCall`; `replay` is what the item has beside id, name and arguments of the call
    anything else   `Reasoning` without text; `replay` is the item: searches, code, MCP, images, patches, compaction

Flags of an endpoint:

    no_cache_key    does not take ``prompt_cache_key``
    no_encrypted    does not take ``include: reasoning.encrypted_content``
    no_item_ids     looks up the ids of items, though nothing is stored: none are sent
    no_strict       does not know strict schemas
    no_store        does not take ``store``

The API has no seed and no stop sequences; such settings are left out. `Settings.extra` overrides every field except
``input``: its ``tools`` and ``include`` come after ours, its ``text`` and ``reasoning`` are merged with ours; None or
an empty list leaves a field out. Summaries of what the model thinks come with ``{"reasoning": {"summary": "auto"}}``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import urlencode

from holdfast.errors import ModelError
from holdfast.models.dialect import WireRequest, bounded, encoded
from holdfast.models.responses.errors import http_error
from holdfast.models.responses.request import Writer, head_of
from holdfast.models.responses.response import ResponsesFold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.messages import ModelRequest
    from holdfast.models.dialect import Endpoint


__all__ = ["DIALECT", "Responses", "ResponsesFold"]


_HEADERS: Final[Mapping[str, str]] = {"content-type": "application/json"}


class Responses:
    """How the Responses API is spoken."""

    name: ClassVar[str] = "responses"
    arrays: ClassVar[bool] = False

    def encode(self, endpoint: Endpoint, model: str, request: ModelRequest) -> WireRequest:
        """The request for a stream."""
        route = endpoint.route(model)
        named = "no_item_ids" not in endpoint.flags
        writer = Writer(route, request.files, named=named)
        try:
            pieces = encoded(request, f"responses {route}{'' if named else ' bare'}", writer.message)
            head = head_of(endpoint, model, request, pieces[0] if pieces else b"")
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ModelError(f"the request has no JSON form: {bounded(error, 200)}", kind="bad_request") from error
        # What stays the same from step to step comes first, so the beginning of a request is that of the one before.
        body = b"".join((head, b',"input":[', b",".join([piece for piece in pieces if piece]), b"]}"))
        query = f"?{urlencode(endpoint.query)}" if endpoint.query else ""
        return WireRequest(f"/responses{query}", body, _HEADERS, writer.dropped)

    def fold(self, endpoint: Endpoint, model: str) -> ResponsesFold:
        """A new reader for one response."""
        return ResponsesFold(endpoint, model)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        """What an answer with an error status means."""
        return http_error(status, headers, body)


DIALECT: Final = Responses()
