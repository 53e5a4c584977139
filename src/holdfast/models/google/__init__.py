"""Google generateContent: Gemini on its own API, on Vertex AI, and behind gateways that speak the same. Pure.

**Replay data.** What Google wants back is kept in `.replay` of the part it came with, and sent to the route that made
it and to no other:

- ``{"thoughtSignature": s}`` on a `ToolCall`, and on a `Reasoning` that is a signed thought. Thoughts without a
  signature are summaries for people; they are not sent back.
- ``{"thoughtSignature": s, "of": "text"}`` on an empty `Reasoning`: the signature of the `Text` before it.
- ``{"part": {...}}`` on an empty `Reasoning`: a part of Google's own (code that ran there and its result, media that
  the model made, a signature on an empty text), sent back as it came.
- ``{"aside": {...}}`` on an empty `Reasoning`: what was said about the reply and has no place in a request (grounding,
  citations); it is kept for the host application and never sent.

**Ids.** Gemini gives ids to its calls, but not everywhere. A call without one, or with one that a call before it in the
same reply has, gets an id that begins with ``noid_``; such an id never goes out, and results are then told apart by
name and order.

**Flags** of an endpoint:

==============  =======================================================================================================
``whole_url``   The base URL holds all that stands before ``/models/...``: version, project, publisher (Vertex AI).
``gemini2``     The models are of the second generation, whatever their names are. That is assumed of names that begin
                with ``gemini-1`` or ``gemini-2``, and means: thinking is measured by a budget instead of a level, no
                answer by schema beside tools (the shape is told in the instructions), no media inside the results of
                tools (they follow in a content of their own), and calls of other models need no signature.
==============  =======================================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from holdfast.models.google.errors import refused
from holdfast.models.google.request import encoded_request
from holdfast.models.google.response import GoogleFold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.errors import ModelError
    from holdfast.messages import ModelRequest
    from holdfast.models.dialect import Endpoint, WireRequest


class Google:
    """How Google, and whoever speaks like it, is spoken to."""

    name: ClassVar[str] = "google"
    arrays: ClassVar[bool] = True

    def encode(self, endpoint: Endpoint, model: str, request: ModelRequest) -> WireRequest:
        """The request for a stream."""
        return encoded_request(endpoint, model, request)

    def fold(self, endpoint: Endpoint, model: str) -> GoogleFold:
        """A new reader for one response."""
        return GoogleFold(endpoint, model)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        """What an answer with an error status means."""
        return refused(status, headers, body)


DIALECT: Final = Google()
