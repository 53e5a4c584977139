"""Reasoning: the fields in which endpoints tell it, and ``reasoning_details``, which go back as they came. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.models.reading import UNREADABLE, listed, mapping, sound, worded

_GROWING: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""The kinds of details that come in pieces, and the field in which they grow. Encrypted ones come whole."""
_FIELDS: Final = ("reasoning_content", "reasoning", "reasoning_text", "thinking")
"""Where endpoints tell what a model thinks. Those who fill two of them repeat themselves."""
_encode: Final = msgspec.json.Encoder().encode


class Details:
    """The details of a reply, in the order in which they began."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[tuple[dict[str, Any], list[str]]] = []
        """Each without the text that grows, and the pieces of that."""

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, detail: dict[str, Any]) -> None:
        """Take a detail, or the next piece of the last one."""
        if not self._kept or not _continues(self._kept[-1][0], detail):
            self._kept.append(({}, []))
        kept, pieces = self._kept[-1]
        growing = _GROWING.get(worded(detail.get("type")))
        for field, value in detail.items():
            if field == growing and isinstance(value, str):
                pieces.append(value)
                kept[field] = ""
            elif (value is not None and not (field == growing and pieces)) or field not in kept:
                kept[field] = value

    def all(self) -> list[dict[str, Any]]:
        """The details as they came, each whole."""
        return [{**kept, _GROWING[kept["type"]]: "".join(pieces)} if pieces else kept for kept, pieces in self._kept]


def _continues(last: dict[str, Any], detail: dict[str, Any]) -> bool:
    """Whether a detail is the next piece of the last one."""
    kind = worded(detail.get("type"))
    if kind not in _GROWING or last.get("type") != kind or last.get("index") != detail.get("index"):
        return False
    return last.get("id") is None or detail.get("id") is None or last["id"] == detail["id"]


def summary_of(details: list[Any]) -> str:
    """What details say that can be read."""
    found = [mapping(detail) for detail in details]
    return "".join([worded(detail.get(_GROWING.get(worded(detail.get("type")), ""))) for detail in found])


def thought_in(said: dict[str, Any]) -> str:
    """What a message, or a piece of one, tells of the thoughts of the model."""
    return words_of(next((said[name] for name in _FIELDS if said.get(name)), ""))


def words_of(thought: Any) -> str:  # noqa: ANN401  whatever came
    """A thought that may be told as a text, as an object with one, or as a list of such."""
    if isinstance(thought, str):
        return thought
    told = mapping(thought)
    if told:
        return worded(told.get("text")) or worded(told.get("content"))
    return "".join([worded(mapping(part).get("text")) for part in listed(thought)])


def size_of(detail: dict[str, Any]) -> int:
    """How much room a detail takes, in bytes."""
    try:
        return len(_encode(detail))
    except UNREADABLE:  # half a character
        return len(_encode(sound(detail)))
