"""A reply in one of the four dialects: as a stream, and as one body. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.testing.dialects.anthropic import Anthropic
from holdfast.testing.dialects.chat import Chat
from holdfast.testing.dialects.cutting import Said, said
from holdfast.testing.dialects.frames import encode
from holdfast.testing.dialects.google import Google
from holdfast.testing.dialects.responses import Responses

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.messages import ModelReply, Part
    from holdfast.testing.dialects.asking import Asked, DialectName


@dataclass(frozen=True, slots=True)
class Streamed:
    """A reply on the wire: pieces to be written one by one, and the ending without which it is not whole."""

    pieces: tuple[bytes, ...]
    ending: bytes


class Voice(Protocol):
    """One reply in one dialect. The methods are asked in the order in which a stream goes out."""

    def __init__(self, asked: Asked, said: Said) -> None: ...
    def start(self) -> bytes: ...
    def opening(self, index: int, part: Part) -> bytes: ...
    def piece(self, index: int, part: Part, words: str) -> bytes: ...
    def closing(self, index: int, part: Part) -> bytes: ...
    def ending(self) -> bytes: ...
    def whole(self) -> dict[str, Any]: ...


_VOICES: Final[Mapping[DialectName, Callable[[Asked, Said], Voice]]] = {
    "anthropic": Anthropic,
    "responses": Responses,
    "chat": Chat,
    "google": Google,
}


def streamed(asked: Asked, reply: ModelReply, chunks: Sequence[str], count: int) -> Streamed:
    """A reply as a stream, in `count` pieces, or fewer where there is too little to cut."""
    cut = said(reply, chunks, count, calls_split=asked.dialect != "google")
    voice = _VOICES[asked.dialect](asked, cut)
    pieces: list[bytes] = []
    before = voice.start()
    for index, (part, words) in enumerate(cut.parts):
        before += voice.opening(index, part)
        for piece in words:
            pieces.append(before + voice.piece(index, part, piece))
            before = b""
        pieces[-1] += voice.closing(index, part)
    if before:
        pieces.append(before)
    return Streamed(_grouped(pieces, count), voice.ending())


def _grouped(pieces: list[bytes], count: int) -> tuple[bytes, ...]:
    """Neighbours together, where there are more than are wanted."""
    if len(pieces) <= count:
        return tuple(pieces)
    bounds = [len(pieces) * number // count for number in range(count + 1)]
    return tuple(b"".join(pieces[begin:end]) for begin, end in pairwise(bounds))


def whole(asked: Asked, reply: ModelReply) -> bytes:
    """A reply as one body."""
    return encode(_VOICES[asked.dialect](asked, said(reply, (), 1)).whole())
