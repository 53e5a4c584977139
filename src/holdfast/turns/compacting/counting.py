"""How many tokens a message takes, without asking its provider. Pure.

The estimate leans to the high side: a request that is thought too large is compacted a little early, one that is
thought too small is refused. It counts classes of bytes, which is quick, and good enough between two numbers that a
provider reports.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from holdfast.attachments import FILES_DEPTH
from holdfast.messages import (
    AssistantMessage,
    Attachment,
    Reasoning,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    encode,
)

if TYPE_CHECKING:
    from holdfast.messages import InputPart, Message, Part

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
"""Tokens of one message, whoever counts."""
_RUN: Final = re.compile(rb"[A-Za-z0-9+/_-]{80,}")
"""Base64, digests and the like: nearly every pair of characters is a token."""
_OF_RUN: Final = 75
# In hundredths of a token for one character of a class. A class is told by the first byte of the character.
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
        # A byte that goes on with a character costs nothing.
        return next(name for below, name in ((0xC0, b"-"), (0xE0, b"2"), (0xF0, b"3"), (0x100, b"4")) if byte < below)
    sign = chr(byte)
    for found, name in ((sign.islower(), b"a"), (sign.isupper(), b"A"), (sign.isdigit(), b"0"), (sign == " ", b"s")):
        if found:
            return name
    return b"n" if byte < 0x20 or byte == 0x7F else b"p"


_TABLE: Final = b"".join(_class_of(byte) for byte in range(256))


class Counter(Protocol):
    """Says how many tokens a message takes."""

    def tokens(self, message: Message, /) -> int:
        """Its tokens, as well as one can know."""
        ...


class Estimator:
    """The counter that is used where no other is given: it needs no vocabulary, and suits every provider roughly."""

    def tokens(self, message: Message, /) -> int:
        """About how many tokens a message takes; rather too many than too few."""
        match message:
            case UserMessage():
                return MESSAGE + sum(map(_of_input, message.parts))
            case AssistantMessage():
                return MESSAGE + sum(map(_of_part, message.parts))
            case ToolMessage():
                return MESSAGE + sum(map(_of_result, message.results))


class Careful:
    """A counter of somebody's own: what it says is made a whole number, and where it fails there is an estimate."""

    __slots__ = ("_counter", "_estimator")

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._estimator = Estimator()

    def tokens(self, message: Message, /) -> int:
        """Its tokens, as somebody knows better; else about how many."""
        try:
            return min(max(math.ceil(self._counter.tokens(message)), 0), _MOST)
        except Exception:  # noqa: BLE001  a counter must never fail a turn
            return self._estimator.tokens(message)


def text_tokens(text: str) -> int:
    """About how many tokens a text takes."""
    return _of_bytes(text.encode("utf-8", "surrogatepass"))


def attachment_tokens(file: Attachment) -> int:
    """About how many tokens a file takes when it is shown to a model."""
    kind = file.media_type.strip().lower()
    if kind.startswith("image/"):
        return IMAGE
    if kind.startswith("application/pdf"):
        return max(PDF_PAGE, file.size // PDF_BYTES)
    if kind.startswith(("audio/", "video/")):
        return max(IMAGE, file.size // MEDIA_BYTES)
    if _TEXTS.match(kind):
        return file.size // TEXT_BYTES + CALL
    return CALL + min(file.size // TEXT_BYTES, IMAGE)  # most providers are only told its name


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


def _of_input(part: InputPart) -> int:
    return attachment_tokens(part) if type(part) is Attachment else text_tokens(cast("Any", part).text)


def _of_part(part: Part) -> int:
    match part:
        case Attachment():
            return attachment_tokens(part)
        case Reasoning():
            return text_tokens(part.text) + _of_replay(part.replay)
        case ToolCall():
            said = encode(part.arguments) if part.arguments is not None else (part.malformed or "").encode()
            return CALL + text_tokens(part.name) + _of_bytes(said) + _of_replay(part.replay)
        case _:
            return text_tokens(part.text)


def _of_replay(replay: object) -> int:
    return 0 if replay is None else len(encode(replay)) // REPLAY_BYTES


def _of_result(result: ToolResult) -> int:
    content = result.content
    said = text_tokens(content) if isinstance(content, str) else _of_bytes(encode(content))
    return CALL + text_tokens(result.name) + said + sum(map(attachment_tokens, files_in(result)))


def files_in(result: ToolResult) -> list[Attachment]:
    """The files that a result shows, as far as it says what they are."""
    content = result.content
    if isinstance(content, str):
        return []
    found: list[Attachment] = []
    # What speaks of no file is not walked, however large it is.
    _look(content, FILES_DEPTH if result.files else int(isinstance(content, list | tuple)), found)
    return found


def _look(value: Any, depth: int, found: list[Attachment]) -> None:  # noqa: ANN401  any JSON value
    if isinstance(value, Attachment):
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


def _attachment(value: dict[str, Any]) -> Attachment | None:
    try:
        return msgspec.convert(value, Attachment)
    except msgspec.ValidationError:
        return None
