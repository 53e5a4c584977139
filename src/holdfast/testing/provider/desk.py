"""Where it is decided what each request gets, for all connections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, cast

import msgspec

from holdfast.errors import ModelError
from holdfast.messages import ModelReply, ModelRequest, StreamEnd, Text, TextChunk
from holdfast.testing import dialects
from holdfast.testing.dialects import Streamed
from holdfast.testing.provider.faults import CutStream, Disconnect, HttpError
from holdfast.testing.provider.planning import Plan, as_refusal, plan, refused
from holdfast.testing.provider.requests import ProviderRequest
from holdfast.testing.scripted import Cut, Delayed, Fault, ScriptedModel

if TYPE_CHECKING:
    from holdfast.testing.dialects import Asked
    from holdfast.testing.provider.connection import Connection
    from holdfast.testing.provider.faults import FaultPlan
    from holdfast.testing.scripted import ScriptFunction, ScriptItem

_MOST_KEPT: Final = 4_096


def _listed(script: object) -> tuple[ScriptItem, ...] | None:
    """The items of a script that is a list of them; it may be one that can be read once."""
    if callable(script) or isinstance(script, str) or not isinstance(script, Iterable):
        return None
    return tuple(cast("Iterable[ScriptItem]", script))


class Desk:
    """Decides what each request gets, for all connections."""

    def __init__(
        self,
        script: Iterable[ScriptItem] | ScriptFunction,
        faults: FaultPlan,
        *,
        chunks: int,
        pace: float,
        keep: int,
    ) -> None:
        listed = _listed(script)
        self._items = listed or ()
        self._script = ScriptedModel(script if listed is None else listed, name="fake:provider", keep=0)
        self._faults = faults
        self._chunks = chunks
        self._pace = pace
        self._keep = keep
        self._number = 0
        self._kept: dict[Asked, tuple[Streamed, Plan]] = {}
        self.requests: list[ProviderRequest] = []
        self.connections = 0
        self.open: set[Connection] = set()

    def understand(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> ProviderRequest | Plan:
        """The request, or what it gets because nobody can understand it."""
        dialect = dialects.dialect_of(path)
        if dialect is None:
            return refused("chat", HttpError(404, message=f"nothing is served at {path[:200]!r}"))
        if method != "POST":
            return refused(dialect, HttpError(405, message=f"{method} is not served here"))
        try:
            asked = dialects.asked(dialect, path, body)
        except msgspec.DecodeError as error:
            return refused(dialect, HttpError(400, message=f"the body is not valid: {error}"))
        self._number += 1
        request = ProviderRequest(self._number, asked, path, headers, body)
        self.requests.append(request)
        if len(self.requests) > self._keep:
            del self.requests[0]
        return request

    def ready(self, request: ProviderRequest) -> Plan | None:
        """The plan, if it is at hand. A fault is taken here, so that requests meet faults in the order they came."""
        asked = request.asked
        try:
            request.fault = self._faults.take(request)
        except Exception as error:  # noqa: BLE001  a function of a test may raise anything
            return refused(asked.dialect, HttpError(400, message=f"the function of the faults failed: {error!r}"))
        if isinstance(request.fault, HttpError | Disconnect):
            return plan(asked, Streamed((), b""), request.fault)
        kept = self._kept.get(asked)
        if kept is None:
            return None
        answer, planned = kept
        return planned if request.fault is None else plan(asked, answer, request.fault, self._pace)

    async def plan(self, request: ProviderRequest) -> Plan:
        """The plan, after the script was asked."""
        asked = request.asked
        try:
            answer, cut = await self._answer(asked)
        except ModelError as error:
            return refused(asked.dialect, as_refusal(error))
        except Exception as error:  # noqa: BLE001  a function of the script may raise anything
            return refused(asked.dialect, HttpError(400, message=f"the script failed: {error!r}"))
        planned = plan(asked, answer, None, self._pace)
        if self._is_fixed(asked.position):
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[asked] = (answer, planned)
        met = request.fault or (CutStream(len(answer.pieces)) if cut else None)
        return planned if met is None else plan(asked, answer, met, self._pace)

    async def _answer(self, asked: Asked) -> tuple[Streamed, bool]:
        """The answer of the script, and whether it is cut off."""
        request = ModelRequest(messages=(), position=asked.position)
        events = [event async for event in self._script.stream(request)]
        words = [event.text for event in events if isinstance(event, TextChunk)]
        last = events[-1]
        cut = not isinstance(last, StreamEnd)
        reply = ModelReply((Text("".join(words)),)) if cut else last.reply
        if asked.form == "whole":
            body = dialects.whole(asked, reply)
            return Streamed((body[: len(body) // 2],), body[len(body) // 2 :]), cut
        return dialects.streamed(asked, reply, words, self._chunks), cut

    def _is_fixed(self, position: int) -> bool:
        """The answer at this position depends on nothing else, and comes at once."""
        if position >= len(self._items):
            return False
        item = self._items[position]
        return not (callable(item) or isinstance(item, Delayed | Fault | Cut | BaseException))
