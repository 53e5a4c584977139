"""The tool calls of a reply as far as they have come: which fragment belongs to which call, and what each is called.

Endpoints differ: some give each call an index, some give all the same; some send ids, some names alone; some repeat
both with each fragment.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.errors import ModelError
from holdfast.messages import ToolCall
from holdfast.models.chat.objects import ObjectEnd
from holdfast.models.reading import arguments_in, made_id

MAX_CALLS: Final = 1_000
"""Most tool calls in one reply."""


class OpenCall:
    """A call as far as it has come."""

    __slots__ = ("_whole", "arguments", "custom", "cut", "end", "extra", "id", "index", "name", "theirs")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.theirs = ""
        """The id that came. It may be that of another call, too."""
        self.id = ""
        """The id under which observers know the call; empty as long as they do not."""
        self.name = ""
        self.arguments: list[str] = []
        self.end = ObjectEnd()
        self.custom = False
        self.extra: Any = None
        self.cut = False
        """The limit came before its arguments: that is not a call without any."""
        self._whole: ToolCall | None = None

    def whole(self, route: str) -> ToolCall:
        """The call, after its last fragment."""
        if self._whole is None:
            self._whole = self._made(route)
        return self._whole

    def _made(self, route: str) -> ToolCall:
        text = "".join(self.arguments)
        if self.custom:
            return ToolCall(self.id, self.name, {"input": text}, None, {"custom": True}, route)
        arguments, malformed = (None, text) if self.cut else arguments_in(text)
        if self.extra is None:
            return ToolCall(self.id, self.name, arguments, malformed)
        return ToolCall(self.id, self.name, arguments, malformed, {"extra_content": self.extra}, route)


class OpenCalls:
    """All calls of a reply, in the order in which they began."""

    __slots__ = ("_ids", "all")

    def __init__(self) -> None:
        self.all: list[OpenCall] = []
        self._ids: set[str] = set()

    def addressed(self, index: int | None, id: str, name: str, came: object) -> OpenCall:
        """The call that a fragment belongs to: by its index, or by its id where everybody has the same index."""
        if index is None:
            found = next((call for call in reversed(self.all) if id and call.theirs == id), None)
            if found is None and self.all and not id and not name:
                found = self.all[-1]
        else:
            found = self._at(index)
            if found is None and came and not name:
                # A tail under an index that nobody has: of the call with its id, or of the last one.
                found = next((call for call in reversed(self.all) if not id or call.theirs == id), None)
        if found is not None and not _another(found, id, name, came):
            return found
        if len(self.all) >= MAX_CALLS:
            raise ModelError(f"the reply has more than {MAX_CALLS:,} tool calls", kind="bad_frame")
        call = OpenCall(index)
        self.all.append(call)
        return call

    def _at(self, index: int) -> OpenCall | None:
        for call in reversed(self.all):
            if call.index == index:
                return call
        return None

    def needs_id(self, call: OpenCall) -> bool:
        """Whether an id has to be made up: none came, or that of another call."""
        return not call.theirs or call.theirs in self._ids

    def identify(self, call: OpenCall, *seed: str) -> None:
        """Give a call the id that came, or one made of `seed`, which is to differ from reply to reply."""
        call.id = call.theirs
        if self.needs_id(call):
            call.id = made_id(*seed, str(self.all.index(call)), call.name, *call.arguments)
        self._ids.add(call.id)

    def settle(self) -> int:
        """Forget calls of which nothing came but their place; how many those were."""
        named = [call for call in self.all if call.name or call.arguments]
        empty = len(self.all) - len(named)
        self.all = named
        return empty


def _another(call: OpenCall, id: str, name: str, came: object) -> bool:
    """Whether a fragment begins another call, although it has the address of this one."""
    if not name:
        return False
    if id and call.theirs and id != call.theirs:
        return True
    if call.name and name != call.name:
        # A name may come in pieces, too: of a call with an id, before its first argument.
        return bool(id) or not call.theirs or bool(call.arguments)
    # The same tool again, without an id: another call when this one has all its arguments.
    return not id and bool(call.name) and bool(came) and call.end.reached(call.arguments)
