"""The pieces of texts that a stream has shown, and the items that can be made of them. Pure.

An item comes in pieces and then once more as a whole, so the pieces are of no use any more when it is done. But some
servers never send the whole: then what was shown is the reply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

from holdfast.models.reading import mapping, worded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.models.reading import Halves
    from holdfast.models.responses.items import Item

Key: TypeAlias = int | str | None
"""What an item is known by: its place in the reply, or its id where a server tells no place."""
Piece: TypeAlias = tuple[str, int]
"""Which text of an item: ``text``, ``refusal``, ``summary``, ``thought`` or ``arguments``, and its place."""


class Pieces:
    """The pieces of all texts of a reply."""

    __slots__ = ("_kept", "count")

    def __init__(self) -> None:
        self._kept: dict[Key, dict[Piece, list[str]]] = {}
        self.count = 0
        """How many texts there are."""

    def place(self, key: Key, piece: Piece) -> list[str]:
        """Where the pieces of a text are kept."""
        try:
            return self._kept[key][piece]
        except KeyError:
            self.count += 1
            return self._kept.setdefault(key, {}).setdefault(piece, [])

    def has(self, key: Key, piece: Piece) -> bool:
        """Whether something of a text was shown."""
        return piece in self._kept.get(key, ())

    def shown(self, key: Key, item: Item) -> bool:
        """Whether something of an item was shown."""
        return any(self._texts(key, item))

    def forget(self, key: Key, item: Item) -> int:
        """Let go of what is known as a whole now; how many characters that was."""
        size = 0
        for texts in self._texts(key, item):
            for kept in texts.values():
                size += sum(map(len, kept))
                kept.clear()
        return size

    def filled(self, key: Key, item: Item, halves: Halves) -> Item:
        """An item that is done, with what was shown of it where it says nothing itself: some servers send it empty."""
        said = {name: item.get(name) for name in ("content", "summary", "arguments")}
        if any(_says(value) for value in said.values()):
            return item
        grown = self._grown(key, item, halves)
        return item if grown is None else {**item, **grown}

    def items(
        self, begun: Mapping[Key, Item], found: Mapping[Key, Item], halves: Halves, *, cut: bool
    ) -> dict[Key, Item]:
        """The items that are not `found`, made of their pieces: those that were `begun`, and those nobody announced.

        `cut`: the reply was ended by a limit, perhaps in the middle of an item.
        """
        ids = {worded(item.get("id")) for item in found.values()} - {""}
        made: dict[Key, Item] = {}
        # Where as many have come as were begun, none is missing, whatever they are called.
        for key, item in begun.items() if len(found) < len(begun) else ():
            grown = None if key in found or worded(item.get("id")) in ids else self._grown(key, item, halves)
            if grown is not None:
                made[key] = {**item, **grown, "status": "incomplete" if cut else "completed"}
        ids |= {worded(item.get("id")) for item in begun.values()}
        kinds = {item["type"] for item in (*found.values(), *made.values())}
        for key in [key for key in self._kept if key not in begun and key not in found and key not in ids]:
            for kind in [kind for kind in ("reasoning", "message") if kind not in kinds]:
                grown = self._grown(key, {"type": kind}, halves)
                if grown is not None:
                    named = f"{kind} of {key}"
                    made[named] = {"type": kind, **grown}
                    self.place(named, ("text", 0))
        return made

    def _grown(self, key: Key, item: Item, halves: Halves) -> Item | None:
        """The fields of an item that grew while it was streamed; None where nothing did."""
        texts = {
            piece: "".join(kept) + halves.left((place, piece))
            for place in self._places(key, item)
            for piece, kept in sorted(self._kept[place].items())
        }
        match item["type"]:
            case "message":
                words = [*_parts(texts, "text", "output_text", "text"), *_parts(texts, "refusal", "refusal", "refusal")]
                return {"role": "assistant", "content": words} if words else None
            case "reasoning":
                summary = [*_parts(texts, "summary", "summary_text", "text")]
                content = [*_parts(texts, "thought", "reasoning_text", "text")]
                return {"summary": summary, "content": content} if summary or content else None
            case "function_call":
                arguments = texts.get(("arguments", 0))
                return {"arguments": arguments} if arguments else None
            case _:
                return None

    def _places(self, key: Key, item: Item) -> list[Key]:
        """Where the pieces of an item are: some servers tell its place with the item, and its id with the pieces."""
        id = worded(item.get("id"))
        return [place for place in dict.fromkeys((key, id or key)) if place in self._kept]

    def _texts(self, key: Key, item: Item) -> list[dict[Piece, list[str]]]:
        return [self._kept[place] for place in self._places(key, item)]


def _says(value: Any) -> bool:  # noqa: ANN401  whatever came
    """Whether there are words in what an item holds."""
    if isinstance(value, list):
        parts = [mapping(part) for part in cast("list[Any]", value)]
        return any(part.get("text") or part.get("refusal") for part in parts)
    return bool(value)


def _parts(texts: Mapping[Piece, str], kind: str, type: str, field: str) -> Iterable[dict[str, Any]]:
    return ({"type": type, field: text} for (found, _), text in texts.items() if found == kind and text)
