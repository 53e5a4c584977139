"""Settings that a model does not support, and their replacement. Pure.

Providers answer 400 to a setting that a model refuses. The rules here leave out refused settings and replace an unknown
effort by the nearest known one; observers get a note. ``hf.model(..., unsupported=[...], efforts=[...])`` overrides the
rules for one model.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, get_args

from msgspec.structs import replace

from holdfast.errors import InvalidArgument
from holdfast.messages import Effort, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from holdfast.models.dialect import Endpoint


EFFORTS: Final[tuple[Effort, ...]] = get_args(Effort)
"""All efforts, in ascending order."""
OPTIONAL_SETTINGS: Final = (
    "max_output_tokens",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "effort",
    "parallel_tool_calls",
)
"""Settings that can be left out of a request."""
_SAMPLING: Final = ("temperature", "top_p")
_UP_TO_HIGH: Final[tuple[Effort, ...]] = ("none", "minimal", "low", "medium", "high")
_LOW_TO_HIGH: Final[tuple[Effort, ...]] = ("low", "medium", "high")
_CLAUDE: Final = re.compile(r"claude-(?:[a-z]+-)*?(\d+)(?:[-.](\d{1,2})(?!\d))?")
_GPT: Final = re.compile(r"(?:\A|[/.])gpt-(5)(?:\.(\d+))?(?![\d.])(.*)", re.IGNORECASE)
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
"""Efforts that a provider documents for all its models. Other providers get the effort as it is."""


@lru_cache(maxsize=256)
def claude_version(model: str) -> tuple[int, int]:
    """Return the version of a Claude. A name without a number is the newest; other makers' models are version 0."""
    found = _CLAUDE.search(model)
    if found is None:
        return (99, 0) if "claude" in model else (0, 0)
    return int(found[1]), int(found[2] or 0)


class AdjustedSettings(NamedTuple):
    """Settings as a model supports them, with notes on the changes."""

    settings: Settings
    notes: tuple[str, ...] = ()


class ModelParameters:
    """The parameters that one model supports. `unsupported` and `efforts` override the rules."""

    __slots__ = ("_efforts", "_endpoint", "_model", "_unsupported")

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        unsupported: Iterable[str] | None = None,
        efforts: Iterable[str] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._model = model
        self._unsupported = None if unsupported is None else _check_names("unsupported", unsupported, OPTIONAL_SETTINGS)
        self._efforts = None if efforts is None else _check_names("efforts", efforts, EFFORTS)

    def adjust(self, settings: Settings) -> AdjustedSettings:
        """Return the settings to send."""
        notes: list[str] = []
        changed: dict[str, object] = {}
        for name in self._refused(settings):
            value = getattr(settings, name)
            if value is None or value == ():
                continue
            changed[name] = () if name == "stop" else None
            notes.append(f"{name} is left out: {self._model} does not take it")
        effort = None if "effort" in changed else settings.effort
        if effort is not None:
            known = self._known_efforts()
            nearest = effort if known is None or effort in known else _nearest(effort, known)
            if nearest != effort:
                changed["effort"] = nearest
                notes.append(f"effort {effort!r} is sent as {nearest!r}: {self._model} does not know it")
        return AdjustedSettings(replace(settings, **changed), tuple(notes)) if notes else AdjustedSettings(settings)

    def _refused(self, settings: Settings) -> Iterable[str]:
        if self._unsupported is not None:
            return self._unsupported
        endpoint = self._endpoint
        refused: list[str] = list(_DIALECT_LACKS.get(endpoint.dialect, ()))
        if "no_effort" in endpoint.flags and "thinking_switch" not in endpoint.flags:
            refused.append("effort")
        for refuses in _RULES:
            refused += refuses(self._model, settings)
        return dict.fromkeys(refused)

    def _known_efforts(self) -> tuple[str, ...] | None:
        if self._efforts is not None:
            return self._efforts
        endpoint = self._endpoint
        if endpoint.dialect == "anthropic":
            return _claude_efforts(endpoint, self._model)
        if endpoint.dialect == "google":
            return _UP_TO_HIGH
        return _openai_efforts(self._model) or _PROVIDER_EFFORTS.get(endpoint.provider)


def _claude_efforts(endpoint: Endpoint, model: str) -> tuple[Effort, ...] | None:
    if "adaptive_thinking" in endpoint.flags:
        return None
    if "budget_thinking" in endpoint.flags or claude_version(model) < (4, 6):
        return _UP_TO_HIGH
    return EFFORTS if claude_version(model) >= (4, 7) else (*_UP_TO_HIGH, "max")


def _openai_efforts(model: str) -> tuple[Effort, ...] | None:
    if _O_SERIES.search(model):
        return _LOW_TO_HIGH
    found = _GPT.search(model)
    if found is None or "chat" in found[3]:
        return None
    minor, kind = int(found[2] or 0), found[3]
    if minor == 0:
        return ("high",) if kind.startswith("-pro") else ("minimal", *_LOW_TO_HIGH)
    least: tuple[Effort, ...] = _LOW_TO_HIGH if "codex" in kind else ("none", *_LOW_TO_HIGH)
    if minor == 1:
        return (*least, "xhigh") if "codex-max" in kind else least
    return (*least, "xhigh", "max") if minor >= 6 else (*least, "xhigh")


def _nearest(effort: str, known: tuple[str, ...]) -> str:
    """Return the highest known effort that is not above the wanted one; never "none" for a model that should think."""
    wanted = EFFORTS.index(effort)
    levels = sorted(EFFORTS.index(each) for each in known if each != "none" or effort == "none")
    lower = [level for level in levels if level <= wanted]
    return EFFORTS[lower[-1] if lower else levels[0]] if levels else known[0]


def _refused_by_claude(model: str, settings: Settings) -> tuple[str, ...]:
    """Claude refuses sampling from 4.7 on, and `top_p` together with a temperature from 4.1 on."""
    if "claude" not in model:
        return ()
    version = claude_version(model)
    if version >= (4, 7):
        return _SAMPLING
    return ("top_p",) if version >= (4, 1) and settings.temperature is not None else ()


def _refused_by_openai(model: str, settings: Settings) -> tuple[str, ...]:
    """OpenAI's reasoning models refuse sampling, unless reasoning is off."""
    if _O_SERIES.search(model):
        return _SAMPLING
    found = _GPT.search(model)
    if found is None or "chat" in found[3]:
        return ()
    minor, kind = int(found[2] or 0), found[3]
    if minor == 0 or "codex" in kind or kind.startswith("-pro"):
        return _SAMPLING
    idle = settings.effort == "none" or (settings.effort is None and minor < 5)
    return () if idle else _SAMPLING


def _refused_by_others(model: str, settings: Settings) -> tuple[str, ...]:  # noqa: ARG001  same signature as the others
    return (*(_SAMPLING if _FIXED_SAMPLING.search(model) else ()), *(("stop",) if _NO_STOP.search(model) else ()))


_RULES: Final[tuple[Callable[[str, Settings], tuple[str, ...]], ...]] = (
    _refused_by_claude,
    _refused_by_openai,
    _refused_by_others,
)


def _check_names(what: str, given: Iterable[str], choices: tuple[str, ...]) -> tuple[str, ...]:
    wanted = f"a list of {', '.join(choices)}"
    if isinstance(given, str):
        raise InvalidArgument(what, given, wanted)
    try:
        names = tuple(given)
    except TypeError:
        raise InvalidArgument(what, given, wanted) from None
    for name in names:
        if name not in choices:
            raise InvalidArgument(what, name, wanted)
    if what == "efforts" and not names:
        raise InvalidArgument(what, names, f"{wanted}; to leave out the effort, name it in unsupported")
    return names
