"""The room of a request, and the estimate of its used part. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, cast

import msgspec

from holdfast import errors, media, messages, names
from holdfast.turns.state import Thread

LEAST_SUMMARY: Final = 200
MOST_SUMMARY: Final = 4_000
"""Bounds of the default size of a summary, an eighth of the room."""
Why = Literal["full", "overflow", "asked"]
"""The reason for a compaction: nearly full, refused by the provider, or requested by a user."""


class ContextBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The room of a request, in tokens; shares are of the room that instructions and tools leave."""

    window: int
    """Tokens of input and output together."""
    reserve: int
    """Room for the answer."""
    fixed: int = 0
    """Tokens of instructions and tools."""
    full: float = 0.9
    """Share at which compaction begins; below 1, because estimates are not exact."""
    aim: float = 0.5
    """Share to which compaction shrinks the conversation."""
    recent: float = 0.25
    """The share of the last messages that stay as they are."""
    summary: int = 0
    """Most tokens of a summary; 0 takes an eighth of the room, from 200 to 4,000."""

    def __post_init__(self) -> None:
        names.check_int("window", self.window, least=1)
        names.check_int("reserve", self.reserve, most=self.window - 1)
        names.check_int("fixed", self.fixed)
        names.check_int("summary", self.summary)
        for name in ("full", "aim", "recent"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value <= 1:
                raise errors.InvalidArgument(name, value, "a share above 0, and 1 at most,")
        if self.aim >= self.full:
            raise errors.InvalidArgument("aim", self.aim, f"a share below {self.full}, at which compaction begins,")

    @property
    def room(self) -> int:
        """Most tokens of a request."""
        return self.window - self.reserve

    @property
    def cap(self) -> int:
        """Most tokens of a summary."""
        return self.summary or min(max((self.room - self.fixed) // 8, LEAST_SUMMARY), MOST_SUMMARY)

    def share(self, part: float, fixed: int) -> int:
        """Tokens of a request that uses this share of the room, plus `fixed`."""
        return fixed + int(max(self.room - fixed, 0) * part)


class Reported(msgspec.Struct, frozen=True):
    """The token count that the provider reported for a request, up to a message."""

    message: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Gauge:
    """Tokens of a request: the last reported count plus an estimate of the messages since."""

    counter: Counter
    fixed: int = 0
    """Tokens of instructions and tools."""
    said: int = 0
    """Tokens of the thread; with a report, of the whole request."""
    seen: Thread = field(default_factory=Thread)
    known: Reported | None = None
    """The last report, while the thread still begins with the reported messages."""

    @property
    def tokens(self) -> int:
        return self.said if self.known else self.fixed + self.said

    def read(self, thread: Thread) -> Gauge:
        """The gauge of `thread`. If it extends the last one, only new messages are counted."""
        count = len(self.seen)
        added = thread.tail(len(thread) - count) if len(thread) >= count else []
        if count and Thread(chain=self.seen.chain).add(*added).chain != thread.chain:
            return Gauge(self.counter, self.fixed).read(thread)
        more = sum(map(self.counter.tokens, added))
        return Gauge(self.counter, self.fixed, self.said + more, thread, self.known)

    def reported(self, tokens: int) -> Gauge:
        """The gauge after the provider reported the tokens of the last request."""
        last = self.seen.last
        if tokens <= 0 or last is None:  # not every provider says
            return self
        return Gauge(self.counter, self.fixed, tokens, self.seen, Reported(last.id, tokens))

    def needs(self, budget: ContextBudget) -> bool:
        """True if the conversation must be compacted before the next request."""
        return self.tokens > budget.share(budget.full, budget.fixed)


MESSAGE: Final = 6
"""Tokens around every message."""
CALL: Final = 14
"""Tokens around every call and every result: its id, and the words of the wire."""
IMAGE: Final = 1_600
"""Tokens of a picture. Providers count from 85 to about 1,600 for one of usual size."""
PDF_PAGE: Final = 3_000
"""Tokens of a page, which is sent as text and as a picture."""
PDF_BYTES: Final = 12
"""Bytes of a PDF for one token: pages are from 5 kB (text) to 500 kB (scans)."""
MEDIA_BYTES: Final = 100
"""Bytes of sound or video for one token."""
TEXT_BYTES: Final = 3
"""Bytes of a text file for one token."""
REPLAY_BYTES: Final = 3
"""Bytes of a provider's own data (signatures, encrypted thoughts) for one token."""
_MOST: Final = 2**40
"""Bound for the tokens of one message."""
_RUN: Final = re.compile(rb"[A-Za-z0-9+/_-]{80,}")
"""Base64, digests and the like: nearly every pair of characters is a token."""
_OF_RUN: Final = 75
# In hundredths of a token for one character of a class. The first byte of a character decides its class.
_COSTS: Final = {
    b"a": 26,  # small letters: about four make a token
    b"A": 60,  # large letters: names, constants, codes
    b"0": 70,
    b"s": 6,  # blanks mostly belong to the word after them
    b"n": 40,  # line breaks and other controls
    b"p": 70,  # signs: code and JSON
    b"2": 70,  # two bytes: accents, Greek, Cyrillic, Hebrew, Arabic
    b"3": 130,  # three bytes: Chinese, Japanese, Korean, Thai, the scripts of India
    b"4": 300,  # four bytes: pictures, rare signs
}
_TEXTS: Final = re.compile(r"text/|application/(?:[\w.-]+\+)?(?:json|xml|yaml|x-yaml|toml|javascript|sql|jsonl)\b")


def _class_of(byte: int) -> bytes:
    if byte >= 0x80:
        # A byte that continues a character costs nothing.
        return next(name for below, name in ((0xC0, b"-"), (0xE0, b"2"), (0xF0, b"3"), (0x100, b"4")) if byte < below)
    sign = chr(byte)
    for found, name in ((sign.islower(), b"a"), (sign.isupper(), b"A"), (sign.isdigit(), b"0"), (sign == " ", b"s")):
        if found:
            return name
    return b"n" if byte < 0x20 or byte == 0x7F else b"p"


_TABLE: Final = b"".join(_class_of(byte) for byte in range(256))


class Counter(Protocol):
    """Counts the tokens of messages."""

    def tokens(self, message: messages.Message, /) -> int: ...


class Estimator:
    """The default counter: an estimate without a vocabulary, roughly right for every provider."""

    def tokens(self, message: messages.Message, /) -> int:
        """Estimated tokens of a message, rather too many than too few."""
        match message:
            case messages.UserMessage() | messages.AssistantMessage():
                return MESSAGE + sum(map(_of_part, message.parts))
            case messages.ToolMessage():
                return MESSAGE + sum(map(_of_result, message.results))


ESTIMATOR: Final = Estimator()


@dataclass(frozen=True, slots=True)
class Careful:
    """Wraps a custom counter: rounds its results, and estimates when it fails."""

    counter: Counter

    def tokens(self, message: messages.Message, /) -> int:
        """The tokens of a message by the custom counter, or an estimate."""
        try:
            return min(max(math.ceil(self.counter.tokens(message)), 0), _MOST)
        except Exception:  # a counter must never fail a turn
            return ESTIMATOR.tokens(message)


def text_tokens(text: str) -> int:
    """Estimated tokens of a text."""
    return _of_bytes(text.encode("utf-8", "surrogatepass"))


def attachment_tokens(file: messages.Attachment) -> int:
    """Estimated tokens of a file that a model sees."""
    kind = file.media_type.strip().lower()
    if kind.startswith("image/"):
        return IMAGE
    if kind.startswith("application/pdf"):
        return max(PDF_PAGE, file.size // PDF_BYTES)
    if kind.startswith(("audio/", "video/")):
        return max(IMAGE, file.size // MEDIA_BYTES)
    if _TEXTS.match(kind):
        return file.size // TEXT_BYTES + CALL
    return CALL + min(file.size // TEXT_BYTES, IMAGE)  # most providers get only its name


def _of_bytes(data: bytes) -> int:
    cost = 0
    if len(data) >= 80:
        runs = _RUN.findall(data)
        if runs:
            cost = _OF_RUN * sum(map(len, runs))
            data = _RUN.sub(b"", data)
    classes = data.translate(_TABLE)
    cost += sum([classes.count(name) * each for name, each in _COSTS.items()])
    return -(-cost // 100)


def _of_part(part: messages.Part) -> int:
    match part:
        case messages.Attachment():
            return attachment_tokens(part)
        case messages.Reasoning():
            return text_tokens(part.text) + _of_replay(part.replay)
        case messages.ToolCall():
            said = messages.encode(part.arguments) if part.arguments is not None else (part.malformed or "").encode()
            return CALL + text_tokens(part.name) + _of_bytes(said) + _of_replay(part.replay)
        case _:
            return text_tokens(part.text)


def _of_replay(replay: object) -> int:
    return 0 if replay is None else len(messages.encode(replay)) // REPLAY_BYTES


def _of_result(result: messages.ToolResult) -> int:
    content = result.content
    said = text_tokens(content) if isinstance(content, str) else _of_bytes(messages.encode(content))
    return CALL + text_tokens(result.name) + said + sum(map(attachment_tokens, files_in(result)))


def files_in(result: messages.ToolResult) -> list[messages.Attachment]:
    """The attachments in the content of a result."""
    content = result.content
    if isinstance(content, str):
        return []
    found: list[messages.Attachment] = []
    # Results without files are not searched, however large they are.
    _look(content, media.FILES_DEPTH if result.files else int(isinstance(content, list | tuple)), found)
    return found


def _look(value: Any, depth: int, found: list[messages.Attachment]) -> None:  # any JSON value
    if isinstance(value, messages.Attachment):
        found.append(value)
    elif isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        if items.get("type") == "attachment" and (file := _attachment(items)) is not None:
            found.append(file)
        elif depth:
            for item in items.values():
                _look(item, depth - 1, found)
    elif depth and isinstance(value, list | tuple):
        for item in cast("list[Any]", value):
            _look(item, depth - 1, found)


def _attachment(value: dict[str, Any]) -> messages.Attachment | None:
    try:
        return msgspec.convert(value, messages.Attachment)
    except msgspec.ValidationError:
        return None


_MEASURING_MOST: Final = 2
"""Largest correction factor for the estimate of messages; the rest counts as fixed tokens."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Tokens of messages, corrected by the last reported count."""

    counter: Counter
    weights: tuple[int, ...]
    fixed: int
    """Tokens outside of messages: instructions, tools and other tokens that the provider counts."""
    top: int = 1
    bottom: int = 1
    """The correction is `top` / `bottom`."""

    @property
    def total(self) -> int:
        return self.fixed + sum(self.weights)

    def of(self, message: messages.Message) -> int:
        return self.correct(self.counter.tokens(message))

    def correct(self, tokens: int) -> int:
        """An estimate, corrected."""
        return _scale(tokens, self.top, self.bottom)


def measure_messages(
    shown: Sequence[messages.Message], budget: ContextBudget, counter: Counter, known: Reported | None, why: Why
) -> Measure:
    """Measure the messages. If `why` is ``overflow``, the provider refused them as too long."""
    weights = [counter.tokens(message) for message in shown]
    fixed, top, bottom = budget.fixed, 1, 1
    if known is not None and known.tokens > 0:
        for at, message in enumerate(shown, 1):
            if message.id == known.message:
                top, bottom = known.tokens, max(fixed + sum(weights[:at]), 1)
                if top > bottom * _MEASURING_MOST:
                    top, bottom = _MEASURING_MOST, 1
                elif bottom > top * _MEASURING_MOST:
                    top, bottom = 1, _MEASURING_MOST
                weights = [_scale(weight, top, bottom) for weight in weights]
                fixed = max(known.tokens - sum(weights[:at]), 0)
                break
    total, over = max(fixed + sum(weights), 1), budget.room + 1
    if why == "overflow" and total < over:  # the estimate was too low by at least this much
        weights = [_scale(weight, over, total) for weight in weights]
        fixed, top, bottom = _scale(fixed, over, total), top * over, bottom * total
    return Measure(counter, tuple(weights), fixed, top, bottom)


def _scale(tokens: int, top: int, bottom: int) -> int:
    return -(-tokens * top // bottom)


MOST_RESERVE: Final = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """Settings for fitting a conversation into the model's window. The history is never changed.

    Shares are of the room that instructions and tools leave.
    """

    enabled: bool = True
    """False: only when the provider says that a request does not fit."""
    window: int | None = None
    """Tokens of input and output that fit into the model; None: the known window.

    An unknown one is found out when a request does not fit.
    """
    reserve: int | None = None
    """Tokens for the answer; None: a quarter of the window, 16,000 at most."""
    full: float = 0.9
    """Share at which compaction begins."""
    aim: float = 0.5
    """Share to which it shrinks the conversation."""
    recent: float = 0.25
    """The share of the last messages that stay as they are."""
    summary: int = 0
    """Most tokens of a summary; 0: an eighth of the room, from 200 to 4,000."""
    model: Any = None
    """The model that writes summaries, or its name; None: the model of the agent."""
    counter: Counter | None = None
    """Counts the tokens of a message; None: an estimate."""

    def __post_init__(self) -> None:
        if type(self.enabled) is not bool:
            raise errors.InvalidArgument("compaction enabled", self.enabled, "True or False")
        if self.window is not None:
            names.check_int("compaction window", self.window, least=1_000)
        if self.reserve is not None:
            names.check_int("compaction reserve", self.reserve, most=(self.window or names.MAX_INT) - 1)
        self.room(self.window or 100_000, 0)
        if self.model is not None and type(self.model) not in {str, list, tuple} and not hasattr(self.model, "stream"):
            raise errors.InvalidArgument("compaction model", self.model, "a model, or a name such as 'provider:model',")
        if self.counter is not None and not callable(getattr(self.counter, "tokens", None)):
            raise errors.InvalidArgument("compaction counter", self.counter, "something with tokens(message)")

    def room(self, window: int, fixed: int) -> ContextBudget:
        """The room of a request in a window of this size."""
        reserve = min(window // 4, MOST_RESERVE) if self.reserve is None else self.reserve
        same = {name: getattr(self, name) for name in ("full", "aim", "recent", "summary")}
        return ContextBudget(window=window, reserve=min(reserve, window - 1), fixed=fixed, **same)
