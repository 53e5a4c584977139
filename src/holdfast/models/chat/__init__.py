"""The chat dialect: OpenAI Chat Completions, and the many providers that speak almost the same.

Flags say how an endpoint differs; nothing is guessed from an address or from the name of a model. Responses are read
leniently: the reader understands the fields of all known endpoints.

Reasoning goes back to the route that made it, in the field that a flag asks for. Without such a flag it is not sent.
"""

from __future__ import annotations

from typing import Final

from holdfast.models.chat.request import encode_request
from holdfast.models.chat.response import ChatReader, classify_error
from holdfast.models.dialect import COMMON_FLAGS, Dialect

FLAGS: Final = COMMON_FLAGS | {
    # the request
    "deployment_path": "the model is part of the path: /deployments/MODEL/chat/completions",
    "no_stream_usage": "stream_options is refused and left out (usage comes by itself, or not at all)",
    "max_tokens": "the limit of the answer is max_tokens, not max_completion_tokens",
    "random_seed": "the seed is random_seed, not seed",
    "cache_control": "the prompt cache has to be asked for, with one cache_control field for the whole request",
    # reasoning that is asked for
    "effort_object": "the effort is reasoning.effort, not reasoning_effort",
    "thinking_switch": "thinking.type says whether the model thinks at all",
    "no_effort": "the effort itself can't be said and is left out",
    # structured output and tools
    "strict_tools": "tools whose schema allows it are marked strict",
    "json_object": "there is no json_schema: the answer is asked for as json_object, the schema is in the instructions",
    "schema_in_words": "response_format does not go with streams or tools: the schema is in the instructions alone",
    # messages
    "developer": "instructions have the role developer, not system",
    "instructions_as_user": "there is no role for instructions: they are the first user message",
    "alternate": "roles must alternate: neighbouring user messages are sent as one",
    "assistant_after_tools": "a user message may not follow tool results: a short assistant message goes between",
    "refusal_field": "a refusal goes back in its own field, not as text",
    "call_ids_9": "ids of calls have nine letters and digits; others are replaced by such, always by the same",
    "call_ids_40": "ids of calls have at most 40 characters; longer ones are replaced, always by the same",
    "document_url": "PDFs are document_url parts, not file parts",
    # the reply
    "done_ends": "a stream may end with [DONE] and no reason why: it is whole then, and not cut",
    # reasoning that goes back
    "send_reasoning_details": "reasoning goes back as reasoning_details, where it came with them",
    "send_reasoning_content": "reasoning goes back as reasoning_content",
    "send_reasoning": "reasoning goes back as reasoning",
    "send_thinking_parts": "reasoning goes back as a thinking part of the content",
    "empty_reasoning_content": "assistant messages must have reasoning_content; where there is none it is empty",
    "blank_reasoning_content": "those with calls must have one that is not empty; where there is none it is a space",
}
DIALECT: Final = Dialect("chat", encode_request, ChatReader, classify_error, FLAGS)
