"""Secrets in a stream: what is told in many pieces is put together, looked through, and taken apart again. Pure.

A password that a model writes comes a few letters at a time, each in a frame of its own. Strings that stand in the same
place of several frames are pieces of one text. Where a secret stands in it, the piece in which it begins gets the word
that replaces it, and the others lose their part; the frames stay, and can be read as before.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from holdfast.models.recorded.redaction import REDACTED, names_secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.models.recorded.redaction import Secrets

_LINE_END: Final = re.compile(r"(\r\n|\n|\r)")
_SPACE: Final = re.compile(r"\s*")
_DECODER: Final = json.JSONDecoder()
_NUMBERS: Final = ("index", "output_index", "content_index", "summary_index", "jsonPath")
"""Fields that tell the texts of one stream apart; so does the type of a frame as a whole."""
_ARGUMENTS: Final = frozenset(("arguments", "input", "partial_json"))
_ARGUMENT_FRAMES: Final = re.compile(r".*(?:arguments|input)\.delta")


class _Frame(NamedTuple):
    """One event: the lines that hold its data, and what they say."""

    lines: list[int]
    data: str
    value: Any


class _Piece(NamedTuple):
    """A string in a frame."""

    holder: Any
    key: str | int

    @property
    def text(self) -> str:
        return self.holder[self.key]

    def put(self, text: str) -> None:
        self.holder[self.key] = text


class _Place(NamedTuple):
    """Where a string stands: the same in all frames that tell pieces of one text."""

    path: tuple[str | int, ...] = ()
    numbers: tuple[tuple[str, Any], ...] = ()
    kind: str = ""
    """Whether it is told as the argument of a call, or as one that is a secret by its name."""


def stream_without_secrets(sse: str, secrets: Secrets) -> str:
    """The text of a stream of server-sent events, without secrets; frames that hold none stay as they are."""
    lines = _LINE_END.split(sse)
    try:
        frames = list(_frames(lines))
        for place, pieces in _texts(frames).items():
            _clean(place, pieces, secrets)
        for frame in frames:
            clean = secrets.json(frame.value)
            if clean != json.loads(frame.data):
                _write(lines, frame, clean)
    except RecursionError:
        pass  # too deep to look through: as any other text
    return secrets.text("".join(lines))


def _frames(lines: Sequence[str]) -> Iterator[_Frame]:
    """The events whose data is JSON. `lines` has lines and, between them, their ends."""
    held: list[int] = []
    for at in range(0, len(lines) + 1, 2):
        line = lines[at].removeprefix("\ufeff") if at < len(lines) else ""
        if line.startswith("data:"):
            held.append(at)
        elif not line and held:
            data = "\n".join(lines[each].removeprefix("\ufeff")[5:] for each in held)
            try:
                value = json.loads(data)
            except ValueError:
                value = None
            if isinstance(value, dict | list):
                yield _Frame(held, data, value)
            held = []


def _write(lines: list[str], frame: _Frame, value: Any) -> None:  # noqa: ANN401  any JSON value
    first, *others = frame.lines
    lines[first] = f"data: {json.dumps(value, separators=(',', ':'))}"
    for at in others:
        lines[at - 1] = lines[at] = ""


def _texts(frames: Sequence[_Frame]) -> dict[_Place, list[_Piece]]:
    """The strings of all frames, by where they stand."""
    found: dict[_Place, list[_Piece]] = {}
    for frame in frames:
        value = frame.value
        kind = str(cast("dict[str, Any]", value).get("type")) if isinstance(value, dict) else ""
        for place, piece in _strings(cast("Any", value), _Place((kind,))):
            found.setdefault(place, []).append(piece)
    return found


def _strings(value: Any, place: _Place) -> Iterator[tuple[_Place, _Piece]]:  # noqa: ANN401
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        numbers = place.numbers + _numbers(fields)
        for name, item in fields.items():
            inner = _Place((*place.path, name), numbers, _kind(fields, name))
            yield from _strings_below(fields, name, item, inner)
    elif isinstance(value, list):
        for at, item in enumerate(cast("list[Any]", value)):
            # One that says which it is may stand anywhere: the second call comes alone in its frame.
            step = "*" if isinstance(item, dict) and "index" in item else at
            yield from _strings_below(value, at, item, _Place((*place.path, step), place.numbers))


def _strings_below(holder: Any, key: str | int, item: Any, place: _Place) -> Iterator[tuple[_Place, _Piece]]:  # noqa: ANN401
    if isinstance(item, str):
        yield place, _Piece(holder, key)
    else:
        yield from _strings(item, place)


def _numbers(fields: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    names = _NUMBERS if "output_index" in fields else (*_NUMBERS, "item_id")
    return tuple((name, fields[name]) for name in names if isinstance(fields.get(name), int | str))


def _kind(fields: dict[str, Any], name: str) -> str:
    if name in _ARGUMENTS:
        return "arguments"
    if name == "delta" and _ARGUMENT_FRAMES.fullmatch(str(fields.get("type"))):
        return "arguments"
    called = fields.get("jsonPath")
    if name == "stringValue" and isinstance(called, str) and names_secret(called.rpartition(".")[2]):
        return "secret"
    return ""


def _clean(place: _Place, pieces: Sequence[_Piece], secrets: Secrets) -> None:
    whole = "".join(piece.text for piece in pieces)
    if place.kind == "secret":
        _replace(pieces, [(0, len(whole), REDACTED)])
    elif place.kind == "arguments":
        calls = [(start, end, secrets.arguments(whole[start:end])) for start, end in _values(whole)]
        _replace(pieces, [(start, end, clean) for start, end, clean in calls if clean != whole[start:end]])
    whole = "".join(piece.text for piece in pieces)
    _replace(pieces, secrets.places(whole))


def _values(text: str) -> Iterator[tuple[int, int]]:
    """The JSON values in a text, one after the other: not everybody numbers the calls. The last one may be cut."""
    at = 0
    while at < len(text):
        try:
            _, end = _DECODER.raw_decode(text, at)
        except ValueError:
            end = len(text)
        yield at, end
        space = _SPACE.match(text, end)
        at = end if space is None else space.end()


def _replace(pieces: Sequence[_Piece], places: Sequence[tuple[int, int, str]]) -> None:
    """Put other words into these places of the whole text, each into the piece where its place begins."""
    if not places:
        return
    begin = 0
    for piece in pieces:
        text = piece.text
        end = begin + len(text)
        kept: list[str] = []
        at = begin
        for start, stop, words in places:
            if stop <= begin or start >= end:
                continue
            kept.append(text[at - begin : max(start, begin) - begin])
            if start >= begin:
                kept.append(words)
            at = min(stop, end)
        kept.append(text[at - begin :])
        piece.put("".join(kept))
        begin = end
