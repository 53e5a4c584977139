"""The contract of a model: a name, and a stream that ends with the whole reply; and the settings that models support.

Providers answer 400 to a setting that a model refuses. The rules in the second half leave out refused settings and
replace an unknown effort by the nearest known one; observers get a note. ``hf.model(..., unsupported=[...],
efforts=[...])`` overrides the rules for one model.
"""

from __future__ import annotations

import re
from contextlib import aclosing
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, get_args, runtime_checkable

from msgspec.structs import replace

from holdfast.errors import InvalidArgument, StreamCut
from holdfast.messages import Effort, ModelReply, ModelRequest, Settings, StreamEnd, StreamEvent
from holdfast.names import check_words

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence

    from holdfast.models.dialect import Endpoint


@runtime_checkable
class Model(Protocol):
    """Answers requests, or raises a `ModelError`.

    A model whose replies survive a round trip through JSON may set `faithful = True`. The runtime writes and reads the
    replies of other models once before it acts on them.
    """

    @property
    def name(self) -> str:
        """``provider:model``, as recorded."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """Stream the reply. The last event is `StreamEnd` with the whole reply."""
        ...


def stream_batches(model: Model, request: ModelRequest) -> AsyncGenerator[Sequence[StreamEvent], None]:
    """Stream a reply in batches; the caller must close the stream.

    A model with an async generator `batches` yields all events of one piece of its answer at once, which is cheaper.
    For other models, each event is a batch.
    """
    batches = getattr(model, "batches", None)
    return _single_event_batches(model, request) if batches is None else batches(request)


async def _single_event_batches(model: Model, request: ModelRequest) -> AsyncGenerator[Sequence[StreamEvent], None]:
    stream: Any = model.stream(request)
    try:
        async for event in cast("AsyncIterator[StreamEvent]", stream):
            yield (event,)
    finally:
        if close := getattr(stream, "aclose", None):
            await close()


async def flatten_batches(batches: AsyncGenerator[Sequence[StreamEvent], None]) -> AsyncGenerator[StreamEvent, None]:
    """Yield the events of batches one by one."""
    async with aclosing(batches) as stream:
        async for batch in stream:
            for event in batch:
                yield event


async def respond(model: Model, request: ModelRequest) -> ModelReply:
    """Return the whole reply."""
    async with aclosing(flatten_batches(stream_batches(model, request))) as stream:
        async for event in stream:
            if isinstance(event, StreamEnd):
                return event.reply
    raise StreamCut(model.name)


EFFORTS: Final[tuple[Effort, ...]] = get_args(Effort)
"""In ascending order."""
OPTIONAL_SETTINGS: Final = (
    *("max_output_tokens", "temperature", "top_p", "seed", "stop", "effort", "parallel_tool_calls"),
)
"""Settings that can be left out of a request."""
_SAMPLING: Final = ("temperature", "top_p")
_UP_TO_HIGH: Final[tuple[Effort, ...]] = ("none", "minimal", "low", "medium", "high")
_LOW_TO_HIGH: Final[tuple[Effort, ...]] = ("low", "medium", "high")
_CLAUDE: Final = re.compile(r"claude-(?:[a-z]+-)*?(\d+)(?:[-.](\d{1,2})(?!\d))?")
_GPT5: Final = re.compile(r"(?:\A|[/.])gpt-5(?:\.(\d+))?(?![\d.])(.*)", re.IGNORECASE)
_O_SERIES: Final = re.compile(r"(?:\A|[/.])o[134](?:-|\Z)", re.IGNORECASE)
_FIXED_SAMPLING: Final = re.compile(r"(?:\A|[/.])kimi-k(?:2\.[5-9]|[3-9])", re.IGNORECASE)
"""Moonshot models that answer 400 to any temperature but their own."""
_NO_STOP: Final = re.compile(r"(?:\A|[/.])grok-(?:4|3-mini)", re.IGNORECASE)
"""xAI models that reason, which take no stop sequences."""
_DIALECT_LACKS: Final[Mapping[str, tuple[str, ...]]] = {"anthropic": ("seed",), "responses": ("seed", "stop")}
"""Settings without a field in a dialect."""
_PROVIDER_EFFORTS: Final[Mapping[str, tuple[Effort, ...]]] = {
    "cerebras": ("none", *_LOW_TO_HIGH),
    "google-chat": _UP_TO_HIGH,
    "groq": ("none", *_LOW_TO_HIGH),
    "openrouter": ("none", "minimal", "low", "medium", "high", "xhigh"),
    "perplexity": ("minimal", *_LOW_TO_HIGH),
    "xai": _LOW_TO_HIGH,
    "xai-chat": _LOW_TO_HIGH,
}
"""Efforts that a provider documents for all its models. Other providers get the effort unchanged."""


@lru_cache(maxsize=256)
def claude_version(model: str) -> tuple[int, int]:
    """Return the version of a Claude. A name without a number is the newest; models of other makers are version 0."""
    found = _CLAUDE.search(model)
    if found is None:
        return (99, 0) if "claude" in model else (0, 0)
    return int(found[1]), int(found[2] or 0)


def settings_adjuster(
    endpoint: Endpoint, model: str, unsupported: Iterable[str] | None = None, efforts: Iterable[str] | None = None
) -> Callable[[Settings], tuple[Settings, tuple[str, ...]]]:
    """Return a function that returns the settings that the model supports, with notes on the changes.

    `unsupported` and `efforts` override the rules.
    """
    refused = None if unsupported is None else _check_names("unsupported", unsupported, OPTIONAL_SETTINGS)
    known = _known_efforts(endpoint, model) if efforts is None else _check_names("efforts", efforts, EFFORTS)

    def adjust(settings: Settings) -> tuple[Settings, tuple[str, ...]]:
        notes: list[str] = []
        changed: dict[str, object] = {}
        for name in _refused_settings(endpoint, model, settings) if refused is None else refused:
            value = getattr(settings, name)
            if value is None or value == ():
                continue
            changed[name] = () if name == "stop" else None
            notes.append(f"{name} is left out: {model} does not take it")
        effort = None if "effort" in changed else settings.effort
        if effort is not None and known is not None and effort not in known:
            # The highest known effort that is not above the wanted one; never "none" for a model that should think.
            levels = sorted(EFFORTS.index(each) for each in known if each != "none")
            lower = [level for level in levels if level <= EFFORTS.index(effort)]
            nearest = EFFORTS[lower[-1] if lower else levels[0]] if levels else known[0]
            changed["effort"] = nearest
            notes.append(f"effort {effort!r} is sent as {nearest!r}: {model} does not know it")
        return (replace(settings, **changed) if notes else settings), tuple(notes)

    return adjust


def _refused_settings(endpoint: Endpoint, model: str, settings: Settings) -> Iterable[str]:
    refused: list[str] = list(_DIALECT_LACKS.get(endpoint.dialect, ()))
    if "no_effort" in endpoint.flags and "thinking_switch" not in endpoint.flags:
        refused.append("effort")
    if "claude" in model:
        # Claude refuses sampling from 4.7 on, and `top_p` together with a temperature from 4.1 on.
        version = claude_version(model)
        if version >= (4, 7):
            refused += _SAMPLING
        elif version >= (4, 1) and settings.temperature is not None:
            refused.append("top_p")
    if _FIXED_SAMPLING.search(model) or _O_SERIES.search(model) or _gpt5_refuses_sampling(model, settings):
        refused += _SAMPLING
    if _NO_STOP.search(model):
        refused.append("stop")
    return dict.fromkeys(refused)


def _known_efforts(endpoint: Endpoint, model: str) -> tuple[str, ...] | None:
    match endpoint.dialect:
        case "anthropic":
            if "adaptive_thinking" in endpoint.flags:
                return None
            if "budget_thinking" in endpoint.flags or claude_version(model) < (4, 6):
                return _UP_TO_HIGH
            return EFFORTS if claude_version(model) >= (4, 7) else (*_UP_TO_HIGH, "max")
        case "google":
            return _UP_TO_HIGH
        case _:
            return _openai_efforts(model) or _PROVIDER_EFFORTS.get(endpoint.provider)


def _openai_efforts(model: str) -> tuple[Effort, ...] | None:
    if _O_SERIES.search(model):
        return _LOW_TO_HIGH
    found = _GPT5.search(model)
    if found is None or "chat" in found[2]:
        return None
    minor, kind = int(found[1] or 0), found[2]
    if minor == 0:
        return ("high",) if kind.startswith("-pro") else ("minimal", *_LOW_TO_HIGH)
    least: tuple[Effort, ...] = _LOW_TO_HIGH if "codex" in kind else ("none", *_LOW_TO_HIGH)
    if minor == 1:
        return (*least, "xhigh") if "codex-max" in kind else least
    return (*least, "xhigh", "max") if minor >= 6 else (*least, "xhigh")


def _gpt5_refuses_sampling(model: str, settings: Settings) -> bool:
    """OpenAI's reasoning models refuse sampling, unless reasoning is off."""
    found = _GPT5.search(model)
    if found is None or "chat" in found[2]:
        return False
    minor, kind = int(found[1] or 0), found[2]
    idle = settings.effort == "none" or (settings.effort is None and minor < 5)
    return minor == 0 or "codex" in kind or kind.startswith("-pro") or not idle


def _check_names(what: str, given: Iterable[str], choices: tuple[str, ...]) -> tuple[str, ...]:
    wanted = f"a list of {', '.join(choices)}"
    names = check_words(what, given, wanted)
    for name in names:
        if name not in choices:
            raise InvalidArgument(what, name, wanted)
    if what == "efforts" and not names:
        raise InvalidArgument(what, names, f"{wanted}; to leave out the effort, name it in unsupported")
    return names
