"""The Google generateContent dialect: Gemini on its own API, on Vertex AI, and behind gateways.

**Replay data.** Data that Google wants back is kept in `.replay` of the part it came with, and goes only to the route
that made it:

- ``{"thoughtSignature": s}`` on a `ToolCall`, and on a `Reasoning` that is a signed thought. Thoughts without a
  signature are summaries for people; they are not sent back.
- ``{"thoughtSignature": s, "of": "text"}`` on an empty `Reasoning`: the signature of the `Text` before it.
- ``{"part": {...}}`` on an empty `Reasoning`: a part of Google's own (code that ran there and its result, media that
  the model made, a signature on an empty text), sent back as it came.
- ``{"aside": {...}}`` on an empty `Reasoning`: metadata of the reply without a place in a request (grounding,
  citations), kept for the host application and never sent.

**Ids.** Gemini gives ids to its calls, but not everywhere. A call without an id, or with the id of an earlier call of
the same reply, gets one that begins with ``noid_``. Such an id never goes out; Google then matches results by name and
order.

Models whose names begin with ``gemini-1`` or ``gemini-2``, and those of an endpoint with the flag ``gemini2``, belong
to the second generation: thinking has a budget instead of a level, an answer by schema does not go together with tools
(the schema is in the instructions), media do not go inside tool results (they follow in a content of their own), and
calls of other models need no signature.
"""

from __future__ import annotations

from typing import Final

from holdfast.models.dialect import COMMON_FLAGS, Dialect
from holdfast.models.google.request import encode_request
from holdfast.models.google.response import GoogleReader, classify_error

FLAGS: Final = COMMON_FLAGS | {
    "whole_url": "the base URL holds everything before /models/...: version, project, publisher (Vertex AI)",
    "gemini2": "the models are of the second generation, whatever their names are",
}
DIALECT: Final = Dialect("google", encode_request, GoogleReader, classify_error, FLAGS, streams_json_arrays=True)
