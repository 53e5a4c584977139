"""The chat dialect: OpenAI Chat Completions, and the many who speak almost the same.

What an endpoint does differently is said by its flags, all of which are in `FLAGS`; nothing is guessed from an address
or from the name of a model. What comes back is read leniently: the fields of all known endpoints are understood
everywhere.

Reasoning goes back to the route that made it, in the field that the flags ask for; without such a flag it stays here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from holdfast.models.chat.errors import http_error
from holdfast.models.chat.request import Writer, allows_strict, fields_of, in_place, opening, path_of
from holdfast.models.chat.response import ChatFold
from holdfast.models.dialect import Once, WireRequest, encoded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.errors import ModelError
    from holdfast.messages import ModelRequest, OutputSpec, Settings, ToolSpec
    from holdfast.models.dialect import Endpoint


__all__ = ["DIALECT", "FLAGS", "Chat", "ChatFold", "allows_strict"]


FLAGS: Final[Mapping[str, str]] = {
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
"""Every flag of an endpoint that this dialect knows, and what it says about the endpoint."""


class Chat:
    """How Chat Completions is spoken."""

    name = "chat"
    arrays = False

    def encode(self, endpoint: Endpoint, model: str, request: ModelRequest) -> WireRequest:
        """The request for a stream."""
        flags = endpoint.flags
        writer = Writer(endpoint.route(model), flags, request.files)
        messages = in_place(request.messages, encoded(request, _kept_as(flags, writer.route), writer.message), flags)
        fields, first = _beginning(model, request.settings, request.tools, request.output, request.instructions, flags)
        if first is not None:
            messages.insert(0, first)
        body = b"".join((fields, b',"messages":[', b",".join(messages), b"]}"))
        return WireRequest(path_of(endpoint, model), body, dropped=writer.dropped)

    def fold(self, endpoint: Endpoint, model: str) -> ChatFold:
        """A new reader for one response."""
        return ChatFold(endpoint, model)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        """What an answer with an error status means."""
        return http_error(status, headers, body)


@lru_cache(maxsize=1_024)
def _kept_as(flags: frozenset[str], route: str) -> str:
    """What encoded messages are kept under, with the conversation."""
    return f"chat {' '.join(sorted(flags))} {route}"


def _begun(  # noqa: PLR0913, PLR0917
    model: str,
    settings: Settings,
    tools: tuple[ToolSpec, ...],
    output: OutputSpec | None,
    instructions: str,
    flags: frozenset[str],
) -> tuple[bytes, bytes | None]:
    """What all requests of an agent begin with: their fields, and the first message, if there is one."""
    return fields_of(model, settings, tools, output, flags), opening(instructions, output, flags)


_beginning: Final = Once(_begun)
DIALECT: Final = Chat()
