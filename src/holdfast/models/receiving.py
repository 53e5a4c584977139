"""Reading the body of an answer: a stream to its end, whatever the end is, or all of it within a limit."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from holdfast.errors import ModelError, StreamCut
from holdfast.messages import CallStart, ReasoningChunk, TextChunk
from holdfast.models.arrays import ArraySplitter
from holdfast.models.credentials import say
from holdfast.models.sse import SseDecoder
from holdfast.models.wire import bounded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.messages import ModelReply, StreamEvent
    from holdfast.models.transport import Response
    from holdfast.models.wire import Fold, Frame

MAX_RESPONSE: Final = 256 * 1024 * 1024
"""Longest body of an answer, in bytes."""
MAX_ERROR: Final = 64 * 1024
"""How much of the body of a refusal is read."""

_BOM: Final = b"\xef\xbb\xbf"
_HEAD: Final = 64
"""So many blanks at the beginning of a body leave no doubt what it is not."""
_SAID: Final = frozenset((TextChunk, ReasoningChunk, CallStart))
_PAGE: Final = re.compile(r"<(?:!doctype\s+html|html)\b.*?(?:</html\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)
_PAGE_BEGINS: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*|<!--.*?-->\s*)*<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL
)
_EVENTS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
"""What server-sent events may begin with, and JSON never does."""


class Reading:
    """A body that is being read. Nothing but a cancellation is raised before `reply`.

    Its first bytes say what it is, whatever its headers say: server-sent events; or JSON, which is a stream as well
    where each element of an array is a frame (`arrays`), and is read at its end otherwise.
    """

    __slots__ = (
        "_arrays",
        "_chunks",
        "_decoder",
        "_failure",
        "_head",
        "_received",
        "_rest",
        "_unsure",
        "_until",
        "fold",
        "open",
    )

    def __init__(self, fold: Fold, response: Response, rest: float, *, arrays: bool = False) -> None:
        self.fold = fold
        self.open = True
        self._arrays = arrays
        self._head: bytes | None = b""
        """The first bytes, while they do not say what the body is; None afterwards."""
        self._chunks = response.chunks()
        self._rest = rest
        self._until: float | None = None
        """When nobody waits any more for what may follow the provider's last word."""
        self._unsure = False
        """More of the reply came after what was taken for its last word: only the end of the body is its end."""
        self._decoder: SseDecoder | ArraySplitter | _Whole = SseDecoder()
        self._received = 0
        self._failure: ModelError | None = None

    async def events(self) -> list[StreamEvent]:
        """What the next piece of the body means."""
        events: list[StreamEvent] = []
        try:
            if self._until is None and not self.fold.complete:
                chunk = await self._more()
            else:
                chunk = await self._rest_of()
            if self._head is not None and chunk is not None:
                chunk = self._begun(chunk)
            frames = self._decoder.close() if chunk is None else self._decoder.feed(chunk)
            feed = self.fold.feed
            for frame in frames:
                if frame.data:
                    events += feed(frame)
            if self._until is not None and not self._unsure:
                self._unsure = any(type(event) in _SAID for event in events)
        except ModelError as error:
            # Half a frame at the end is nothing but a sign that the stream was cut; `reply` will say so. And what can't
            # be read after the provider's last word takes nothing away from the reply.
            if error.kind != "bad_frame" or (self.open and not self.fold.complete):
                self._failure = error
            self.open = False
        return events

    def _begun(self, chunk: bytes) -> bytes:
        """What there is to read as soon as the form of the body is known."""
        head = (self._head or b"") + chunk
        first = head.removeprefix(_BOM).lstrip()[:1]
        if len(head) < _HEAD and (not first or _BOM.startswith(head)):
            self._head = head
            return b""
        self._head = None
        if first == b"<" and is_page({}, head):
            raise ModelError(f"the answer is {page_title(head)}", kind="web_page")
        if first in {b"{", b"["}:
            self._decoder = ArraySplitter() if self._arrays else _Whole()
        return head

    async def _rest_of(self) -> bytes | None:
        """The next piece after what was taken for the provider's last word, or None when nobody waits any more."""
        if self._unsure or not self.fold.complete:
            return await self._more()
        # One span for all that still comes: whoever only says that he is there does not hold up the reply.
        self._until = self._until or asyncio.get_running_loop().time() + self._rest
        try:
            async with asyncio.timeout_at(self._until):
                return await self._more()
        except TimeoutError:
            self.open = False
            return None

    async def _more(self) -> bytes | None:
        """The next piece, or None at the end."""
        try:
            chunk = await self._chunks.__anext__()
        except StopAsyncIteration:
            self.open = False
            return None
        except ModelError as error:
            # The reply may be whole nevertheless: its last frame was here, and what is missing is the end of the body.
            self._failure = error
            self.open = False
            return None
        self._received += len(chunk)
        if self._received > MAX_RESPONSE:
            raise _too_long(MAX_RESPONSE)
        return chunk

    @property
    def at_once(self) -> bool:
        """Whether the body can only be read at its end."""
        return type(self._decoder) is _Whole

    def reply(self) -> ModelReply:
        """The whole reply, or why there is none."""
        failure = self._failure
        if failure is not None and (self.at_once or failure.kind not in _OF_THE_WAY):
            raise failure
        try:
            return self._decoder.read(self.fold) if type(self._decoder) is _Whole else self.fold.finish()
        except StreamCut as cut:
            if failure is None:
                raise
            if failure.kind == "network":
                say(cut, f"{cut.message}: {failure.message}")
                raise
        raise failure


class _Whole:
    """A body that is read at its end."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, chunk: bytes) -> list[Frame]:
        self._pieces.append(chunk)
        return []

    def close(self) -> list[Frame]:
        return []

    def read(self, fold: Fold) -> ModelReply:
        return fold.whole(b"".join(self._pieces))


_OF_THE_WAY: Final = frozenset({"network", "timeout"})
"""Failures of what carries the bytes; others are the provider's own words, or about them."""


async def whole_body(response: Response) -> bytes:
    """A body that is no stream."""
    pieces: list[bytes] = []
    size = 0
    async for chunk in response.chunks():
        size += len(chunk)
        if size > MAX_RESPONSE:
            raise _too_long(MAX_RESPONSE)
        pieces.append(chunk)
    return b"".join(pieces)


def reply_in(fold: Fold, body: bytes) -> ModelReply:
    """The reply in a body that is said to be JSON. Some send events under that name."""
    if not body[:_HEAD].removeprefix(_BOM).lstrip().startswith(_EVENTS):
        return fold.whole(body)
    decoder = SseDecoder()
    for frame in (*decoder.feed(body), *decoder.close()):
        if frame.data:
            fold.feed(frame)
    return fold.finish()


async def refusal_body(response: Response, rest: float) -> bytes:
    """The words of a refusal, as far as they come in time and are of use."""
    body = bytearray()
    try:
        async with asyncio.timeout(rest):
            async for chunk in response.chunks():
                body += chunk
                if len(body) > MAX_ERROR:
                    break
    except (ModelError, TimeoutError):
        pass  # the status says enough
    said = bytes(body[:MAX_ERROR])
    if not said[:_HEAD].removeprefix(_BOM).lstrip().startswith(_EVENTS):
        return said
    decoder = SseDecoder()  # a stream was asked for, and some refuse in the form of one
    return next((frame.data for frame in (*decoder.feed(said), *decoder.close()) if frame.data), said)


# ---- web pages in place of answers -----------------------------------------------------------------------------------


def is_page(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether an answer is a web page, by its content type or by how it begins."""
    return "html" in headers.get("content-type", "").lower() or _PAGE_BEGINS.match(body[:MAX_ERROR]) is not None


def page_title(body: bytes) -> str:
    """A web page in a few words: its title, where it has one."""
    found = _TITLE.search(body[:MAX_ERROR].decode("utf-8", "replace"))
    title = "" if found is None else " ".join(re.sub(r"<[^>]*>", " ", found[1]).split())
    return f"a web page ({bounded(title, 100)!r})" if title else "a web page"


def without_pages(text: str) -> str:
    """A message in which each web page that somebody put into it is named and not quoted."""
    if "<" not in text:
        return text
    return _PAGE.sub(lambda found: page_title(found[0].encode("utf-8", "replace")), text)


def _too_long(limit: int) -> ModelError:
    return ModelError(f"the answer is larger than {limit:,} bytes", kind="bad_frame")
