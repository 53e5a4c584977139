"""Calls: their ids, and arguments that come in pieces. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.messages import ToolCall
from holdfast.models.reading import arguments_of, listed, mapping, worded
from holdfast.models.wire import bounded

if TYPE_CHECKING:
    from collections.abc import Callable

NO_ID: Final = "noid_"
"""How the id of a call begins to which Google gave none."""

_encode: Final = msgspec.json.Encoder().encode
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d{1,6})\]|\['((?:[^'\\]|\\.)*)'\]|\[\"((?:[^\"\\]|\\.)*)\"\]")
_DEEPEST: Final = 64


class OpenCall:
    """A call whose arguments may come in pieces, each with the path of the place where it belongs."""

    def __init__(self, id: str, name: str, clean: Callable[[Any], Any]) -> None:
        self.id = id
        self._clean = clean
        """Makes values whole that may have halves of characters."""
        self._name = name
        self._signature = ""
        self._arguments: dict[str, Any] = {}
        self._malformed: str | None = None
        self._path = ""
        self._pieces: list[str] = []
        """Of the string at `_path`, which is not whole yet."""

    def add(self, call: dict[str, Any], signature: str) -> None:
        """A frame's share."""
        self._signature = signature or self._signature
        arguments, malformed = arguments_of(self._clean(call.get("args")))
        self._arguments |= arguments or {}
        self._malformed = malformed or self._malformed
        for piece in listed(call.get("partialArgs")):
            self._piece(mapping(piece))

    def made(self, route: str, *, whole: bool) -> ToolCall:
        """The call."""
        self._flush()
        self._arguments = self._clean(self._arguments)
        replay = {"thoughtSignature": self._signature} if self._signature else None
        malformed = self._malformed
        if malformed is None and not whole:
            malformed = _encode(self._arguments).decode()
        arguments = self._arguments if malformed is None else None
        return ToolCall(self.id, self._name, arguments, malformed, replay, route)

    def _piece(self, piece: dict[str, Any]) -> None:
        path = worded(piece.get("jsonPath"))
        if isinstance(text := piece.get("stringValue"), str):
            if path != self._path:
                self._flush()
                self._path = path
            self._pieces.append(text)
            if piece.get("willContinue") is not True:
                self._flush()
            return
        self._flush()
        for name in ("numberValue", "boolValue", "nullValue"):
            if name in piece:
                self._put(path, None if name == "nullValue" else piece[name])

    def _flush(self) -> None:
        if self._path:
            self._put(self._path, "".join(self._pieces))
        self._path = ""
        self._pieces = []

    def _put(self, path: str, value: Any) -> None:  # noqa: ANN401  any JSON value
        steps = _steps(path)
        if not steps or not _place(self._arguments, steps, value):
            self._malformed = bounded(f"{path}: {value}")


def _steps(path: str) -> list[str | int]:
    """The steps of a path such as ``$.orders[0]['a name']``; none where it can't be followed."""
    steps: list[str | int] = []
    position = 1 if path.startswith("$") else len(path) + 1
    while position < len(path) and len(steps) < _DEEPEST:
        found = _STEP.match(path, position)
        if found is None:
            return []
        plain, index, *quoted = found.groups()
        name = plain if plain is not None else next((text for text in quoted if text is not None), None)
        steps.append(int(index) if name is None else re.sub(r"\\(.)", r"\1", name))
        position = found.end()
    return steps if position == len(path) else []


def _place(root: dict[str, Any], steps: list[str | int], value: Any) -> bool:  # noqa: ANN401  any JSON value
    """Put `value` where `steps` lead; False where they lead nowhere. Lists grow by one element at a time."""
    here: Any = root
    for step, follows in zip(steps, [*steps[1:], None], strict=True):
        made: Any = value if follows is None else [] if isinstance(follows, int) else {}
        if isinstance(step, int):
            if not isinstance(here, list) or step > len(cast("list[Any]", here)):
                return False
            items = cast("list[Any]", here)
            if step == len(items):
                items.append(made)
            elif follows is None:
                items[step] = _joined(items[step], value)
            here = items[step]
        else:
            if not isinstance(here, dict):
                return False
            fields = cast("dict[str, Any]", here)
            fields[step] = _joined(fields.get(step), value) if follows is None else fields.get(step, made)
            here = fields[step]
    return True


def _joined(before: Any, value: Any) -> Any:  # noqa: ANN401  any JSON value
    """A string that went on after something else came in between is one string."""
    return before + value if isinstance(before, str) and isinstance(value, str) else value
