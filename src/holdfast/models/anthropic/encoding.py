"""A request as bytes: settings, instructions and tools, and messages that are joined and not encoded again. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.messages import AssistantMessage, ToolMessage
from holdfast.models.anthropic.blocks import Writer, text_block
from holdfast.models.anthropic.schemas import narrow
from holdfast.models.anthropic.writing import betas_of, editing
from holdfast.models.flags import NO_STREAM
from holdfast.models.parameters import claude_version
from holdfast.models.reading import mapping, worded
from holdfast.models.wire import WireRequest, encoded
from holdfast.models.writing import Once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.messages import Effort, Message, ModelRequest, OutputSpec, Settings, ToolSpec
    from holdfast.models.anthropic.writing import Editing
    from holdfast.models.wire import Endpoint

VERSION: Final = "2023-06-01"
"""Of the API, as its header wants it."""
MAX_OUTPUT_TOKENS: Final = 8_192
"""For the answer, where nothing else was asked for; thinking comes on top."""
MAX_MARKED: Final = 2
"""Messages with a marker for the prompt cache; instructions and tools have one each, and the provider takes four."""

_json: Final = msgspec.json.Encoder().encode

_MARK: Final = b',"cache_control":{"type":"ephemeral"}}'
_OPEN: Final = (b'{"role":"user","content":[', b'{"role":"assistant","content":[')
_NEXT: Final = (b"]}," + _OPEN[0], b"]}," + _OPEN[1])
_OURS: Final = frozenset(("messages", "model", "stream", "system"))
_BUDGETS: Final[dict[Effort, int]] = {
    "none": 0,
    "minimal": 1_024,
    "low": 2_048,
    "medium": 8_192,
    "high": 16_384,
    "xhigh": 32_768,
    "max": 49_152,
}
_LEAST_TOP_P: Final = 0.95
"""While it thinks, a Claude takes no lower one."""
_LEAST_BUDGET: Final = 1_024
_THOUGHTS: Final = (b'{"type":"thinking"', b'{"type":"redacted_thinking"')


def _encode_tools(tools: Sequence[ToolSpec]) -> bytes:
    return b",".join(
        [_json({"name": tool.name, "description": tool.description, "input_schema": tool.parameters}) for tool in tools]
    )


def _encode_format(output: OutputSpec) -> bytes:
    """The schema as the provider takes it, or nothing where it has no form for it."""
    schema = narrow(output.schema)
    return b"" if schema is None else _json({"type": "json_schema", "schema": schema})


def _encode_words(output: OutputSpec) -> bytes:
    schema = _json(output.schema).decode()
    return text_block(f"Answer with JSON and nothing else. It must match this JSON schema:\n{schema}")


_tools: Final = Once(_encode_tools)
_format: Final = Once(_encode_format)
_words: Final = Once(_encode_words)


def encoded_request(endpoint: Endpoint, model: str, request: ModelRequest) -> WireRequest:
    """The request for a stream."""
    route = endpoint.route(model)
    writer = Writer(route, request.files)
    pieces = encoded(request, f"anthropic {route}", writer.message)
    settings = request.settings
    asked = None if settings.compact_at is None else editing(model, claude_version(model), settings.compact_at)
    marked = MAX_MARKED if settings.cache and "cache_control" not in (settings.extra or ()) else 0
    left_out: list[str] = []
    head = _json(_fields(endpoint, model, request, pieces, asked, left_out))[:-1]
    body = b"".join([head, b',"messages":[', *_joined(request.messages, pieces, marked), b"]}"])
    path = f"/v1/messages?{urlencode(endpoint.query)}" if endpoint.query else "/v1/messages"
    return WireRequest(
        path, body, _headers(endpoint, settings, betas_of(asked, pieces)), writer.dropped, tuple(left_out)
    )


def _headers(endpoint: Endpoint, settings: Settings, needed: Sequence[str]) -> dict[str, str]:
    headers = {"anthropic-version": VERSION, "content-type": "application/json"}
    betas = dict.fromkeys([*needed, *map(str, (settings.extra or {}).get("betas") or ())])
    if betas:
        standing = [value for name, value in endpoint.headers.items() if name.lower() == "anthropic-beta"]
        headers["anthropic-beta"] = ",".join([*standing, *betas])
    return headers


def _fields(  # noqa: PLR0913, PLR0917
    endpoint: Endpoint,
    model: str,
    request: ModelRequest,
    pieces: Sequence[bytes],
    asked: Editing | None,
    left_out: list[str],
) -> dict[str, Any]:
    """All but the messages: what is small first, then what is long and stays the same from step to step.

    Settings that can't be sent are told in `left_out`.
    """
    settings = request.settings
    extra = settings.extra or {}
    if taken := _OURS & extra.keys():
        raise InvalidArgument("settings.extra", sorted(taken), f"other fields than {', '.join(sorted(_OURS))}")
    mark = _MARK if settings.cache else b"}"
    fields: dict[str, Any] = {"model": model, "stream": NO_STREAM not in endpoint.flags}
    config = _thinking(endpoint, model, request, pieces, fields)
    thinks = mapping(fields.get("thinking")).get("type") not in {None, "disabled"}
    fields |= _sampling(settings, left_out, thinks=thinks)
    if settings.stop:
        fields["stop_sequences"] = settings.stop
    if container := _container(request.messages, endpoint.route(model)):
        fields["container"] = container
    if asked is not None:
        fields["context_management"] = asked.field
    form = _form(endpoint, model, request.output)
    if form:
        config["format"] = msgspec.Raw(form)
    config.update(mapping(extra.get("output_config")))
    fields.update((name, value) for name, value in extra.items() if name not in {"betas", "tools", "output_config"})
    if config:
        fields["output_config"] = config
    told = b"" if form or request.output is None else _words(request.output)
    if system := b",".join([block for block in (text_block(request.instructions), told) if block]):
        fields["system"] = msgspec.Raw(b"[%b%b]" % (system[:-1], mark))
    foreign = b",".join([_json(tool) for tool in extra.get("tools") or ()])
    own = _tools(request.tools)
    if own:
        own = own[:-1] + mark
    if foreign or own:
        fields["tools"] = msgspec.Raw(b"[%b]" % b",".join([tools for tools in (foreign, own) if tools]))
        if choice := _choice(settings):
            fields.setdefault("tool_choice", choice)
    return fields


def _sampling(settings: Settings, left_out: list[str], *, thinks: bool) -> dict[str, float]:
    fields: dict[str, float] = {}
    if settings.temperature is not None:
        if thinks:
            left_out.append("temperature is left out: the provider takes none while the model thinks")
        else:
            fields["temperature"] = settings.temperature
    if settings.top_p is not None:
        if thinks and settings.top_p < _LEAST_TOP_P:
            left_out.append(f"top_p is left out: while the model thinks the provider takes none below {_LEAST_TOP_P}")
        else:
            fields["top_p"] = settings.top_p
    return fields


def _thinking(
    endpoint: Endpoint, model: str, request: ModelRequest, pieces: Sequence[bytes], fields: dict[str, Any]
) -> dict[str, Any]:
    """Put thinking and the room for it into `fields`; what is left is for ``output_config``."""
    settings = request.settings
    effort, limit = settings.effort, settings.max_output_tokens
    fields["max_tokens"] = limit or MAX_OUTPUT_TOKENS
    if effort is None:
        return {}
    adaptive = "adaptive_thinking" in endpoint.flags or (
        "budget_thinking" not in endpoint.flags and claude_version(model) >= (4, 6)
    )
    if effort == "none":
        if adaptive:  # others don't think unless they are asked to
            fields["thinking"] = {"type": "disabled"}
        return {}
    budget = _BUDGETS[effort]
    forced = settings.tool_choice == "required"  # the provider refuses thinking before a call that is forced
    if adaptive:
        if not forced:
            fields["max_tokens"] = limit or MAX_OUTPUT_TOKENS + budget
            fields["thinking"] = {"type": "adaptive"}
        return {"effort": "low" if effort == "minimal" else effort}
    room = limit or MAX_OUTPUT_TOKENS + budget
    budget = min(budget, room - 1)
    checked = claude_version(model) > (0, 0) or "budget_thinking" in endpoint.flags
    if checked and not _thoughtful(request.messages, pieces):
        # With a budget, the turn that the request goes on with must begin with thoughts. There are none when another
        # route began it, or a call was forced; then this turn is ended without, and the next one thinks again.
        return {}
    if budget >= _LEAST_BUDGET and not forced:
        fields["max_tokens"] = room
        fields["thinking"] = {"type": "enabled", "budget_tokens": budget}
    return {}


def _thoughtful(messages: Sequence[Message], pieces: Sequence[bytes]) -> bool:
    """Whether the turn that `messages` are in the middle of has thoughts that go out, or is yet to begin.

    Some models think at the beginning of a turn alone, so later replies of it may have no thoughts.
    """
    begun = False
    answered: bool | None = None
    # Between two replies there are results of tools in the same turn, and none where another one begins.
    for message, piece in zip(reversed(messages), reversed(pieces), strict=True):
        kind = type(message)
        if kind is ToolMessage:
            answered = True
        elif not piece:
            continue
        elif kind is not AssistantMessage:
            answered = answered or False
        elif answered is False:
            break
        elif piece.startswith(_THOUGHTS):
            return True
        else:
            begun, answered = True, None
    return not begun


def _choice(settings: Settings) -> dict[str, Any]:
    if settings.tool_choice == "none":
        return {"type": "none"}
    choice = {"auto": "auto", "required": "any"}[settings.tool_choice]
    if settings.parallel_tool_calls is False:
        return {"type": choice, "disable_parallel_tool_use": True}
    return {} if choice == "auto" else {"type": choice}


def _form(endpoint: Endpoint, model: str, output: OutputSpec | None) -> bytes:
    if output is None or "output_in_words" in endpoint.flags or claude_version(model) < (4, 1):
        return b""
    return _format(output)


def _container(messages: Sequence[Message], route: str) -> str:
    """Where the code runs that waits for the results at the end of `messages`."""
    if len(messages) < 2 or type(messages[-1]) is not ToolMessage or type(messages[-2]) is not AssistantMessage:
        return ""
    found = [mapping(call.replay).get("container") for call in messages[-2].calls if call.route == route]
    return next((worded(container) for container in found if container), "")


def _joined(messages: Sequence[Message], pieces: list[bytes], marked: int) -> list[bytes]:
    """Messages as the provider wants them: neighbours of one side are one, and the last of the user's have markers."""
    pieces = _with_marks(messages, pieces, marked) if marked else pieces
    joined: list[bytes] = []
    side: bool | None = None
    for message, piece in zip(messages, pieces, strict=True):
        if not piece:
            continue
        said = type(message) is AssistantMessage
        if said is side:
            joined.append(b",")
        else:
            joined.append((_OPEN if side is None else _NEXT)[said])
            side = said
        joined.append(piece)
    if joined:
        joined.append(b"]}")
    return joined


def _with_marks(messages: Sequence[Message], pieces: list[bytes], count: int) -> list[bytes]:
    pieces = pieces.copy()
    ended = True
    for index in range(len(pieces) - 1, -1, -1):
        if not pieces[index]:
            continue
        if type(messages[index]) is AssistantMessage:
            ended = True
        elif ended:
            pieces[index] = pieces[index][:-1] + _MARK
            ended = False
            count -= 1
            if not count:
                break
    return pieces
