"""Where our requests differ from the recorded ones, in which recordings (``*``: any), and why.

``+`` only ours has it, ``-`` only the recorded one has it, ``=`` the same in another form, ``~`` another value.
"""

from __future__ import annotations

_MODIFIED = "openai-responses/error-400-reasoning-without-item"
_NANO = "openai-responses/stream-multi-turn-tools-gpt5nano"

DIFFERENCES: dict[str, tuple[tuple[str, ...], str]] = {
    # ---- what every request of ours has ----
    "+prompt_cache_key": (("*",), "the requests of one conversation are to meet where its beginning is cached"),
    "+store": (("*",), "nothing is kept at the provider; left out, the API would store"),
    "+include": (("*",), "what is not stored must come back with us: encrypted reasoning is always asked for"),
    "~stream": (("*",), "we always stream; a whole body is read as well"),
    "-tool_choice": (("*",), "`auto` is what the API does by itself"),
    "-background": (("openai-responses/background-mode-polling",), "we stream instead of asking again and again"),
    # ---- tools and output ----
    "+tools.strict": (("*",), "said either way: left out, the API would make the schema strict and change it"),
    "+text.format.strict": (
        ("openai-responses/stream-structured-object",),
        "the schema keeps the rules of strict mode, so the provider can guarantee it",
    ),
    # ---- instructions and users ----
    "+instructions": (("*",), "instructions are a field of their own, not a developer message"),
    "-input.developer": (("*",), "the same"),
    "=input.user.content": (("*",), "a single text is sent as a string; the API takes both forms"),
    # ---- replies ----
    "+input.assistant.type": (("*",), "a message says that it is one; the API takes both forms"),
    "+input.assistant.id": ((_NANO, _MODIFIED), "items go back with the ids they came with, all of them or none"),
    "+input.assistant.status": ((_NANO, _MODIFIED), "the message goes back as it came"),
    "=input.assistant.content": ((_NANO,), "the message goes back as it came, with its empty list of annotations"),
    "~input.assistant.content": (
        ("openai-responses/stream-phase-gpt55", _MODIFIED),
        "the first was recorded with curly quotes made straight; the second changes the reply to provoke an error",
    ),
    "-input.assistant": ((_MODIFIED,), "it sends the reasoning as words of a message; ours goes back as reasoning"),
    "+input.reasoning": (
        ("openai-responses/stream-reasoning-tool-loop-gpt5", _MODIFIED),
        "the client dropped the reasoning it had asked for; ours goes back",
    ),
    "+input.reasoning.id": (("*",), "items go back with the ids they came with, all of them or none"),
    "+input.function_call.id": (("*",), "the same"),
    "=input.function_call.arguments": (("*",), "JSON without spaces, as the model wrote it"),
    "~input.function_call.call_id": (
        ("bedrock/mantle-responses-reused-tool-ids-stream",),
        "the client puts the response id before the provider's call id; ours is the provider's",
    ),
    "~input.function_call_output.call_id": (("bedrock/mantle-responses-reused-tool-ids-stream",), "the same"),
    "~input.function_call_output.output": (
        ("openai-responses/multimodal-tool-return-image-url",),
        "our attachments are bytes, so the image goes as a data URL and not as an address",
    ),
}
