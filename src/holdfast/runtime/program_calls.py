"""The calls of one program: decided about and begun in their order, those that only read side by side.

A call that is asked about waits, and holds up nobody. How many wait or run at once is bounded: the others have their
turn when there is room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.records import Cancelled, Unknown
from holdfast.runtime.spending import spent_by
from holdfast.spawning import spawn

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.effects.performer import Performer
    from holdfast.policy.subject import Taint
    from holdfast.runtime.call import Call
    from holdfast.runtime.carrying import Carrying
    from holdfast.runtime.recording import Recorder
    from holdfast.sandbox import HostCall
    from holdfast.sandbox.steps import Outcome as Given

MOST_RUNNING: Final = 100
"""How many calls of one program run at once."""
MOST_WAITING: Final = 100
"""How many calls of one program wait for somebody at once."""


@dataclass(slots=True)
class Asked:
    """Something that a program has asked for, on its way to an answer."""

    host: HostCall
    key: str = ""
    """That of the call of a tool; empty for what is none."""
    number: int = 0
    """Which of all that the program has asked for it is, from 1."""
    call: Call | None = None
    given: Given | None = None
    """The answer, where it is not that of a tool."""


class CallQueue:
    """The calls of one program that have no answer yet."""

    def __init__(
        self,
        carrying: Carrying,
        performer: Performer,
        recorder: Recorder,
        prepare: Callable[[Asked], Call],
        taint: Callable[[], Taint],
    ) -> None:
        self.recorded: deque[Asked] = deque()
        """What has its place in the journal and was not told to the program yet, in the order of the journal."""
        self.waiting: list[Call] = []
        """Calls that wait for somebody."""
        self._carrying = carrying
        self._performer = performer
        self._recorder = recorder
        self._prepare = prepare
        self._taint = taint
        self._ahead: deque[Asked] = deque()
        """Calls that nobody has decided about."""
        self._queue: deque[Asked] = deque()
        """Calls that may begin."""
        self._running: dict[asyncio.Task[None], Asked] = {}
        self._alone: Call | None = None
        """The only call that runs, where there is nothing else to wait for."""
        self._over: deque[asyncio.Task[None]] = deque()
        self._news = asyncio.Event()
        self._held: dict[str, Asked] = {}
        """Those about which a person is asked, by their keys."""
        self._look = False
        """Something has come for the session: one of them may be decided about."""

    def add(self, asked: Asked) -> None:
        """Something that must wait for its place: a call of a tool, or the end of the turn."""
        self._ahead.append(asked)

    @property
    def pending(self) -> int:
        """How many calls have no outcome."""
        begun = len(self._running) + len(self.waiting)
        if not self._ahead and not self._queue:
            return begun
        return begun + sum(bool(asked.key) for asked in (*self._ahead, *self._queue))

    @property
    def running(self) -> bool:
        """Whether a call is under way."""
        return bool(self._running)

    @property
    def under_way(self) -> list[Call]:
        """The calls that are under way."""
        found = [asked.call for asked in self._running.values() if asked.call is not None]
        return found if self._alone is None else [*found, self._alone]

    def heard(self) -> None:
        """Something has come for the session: perhaps the answer to a question that is only just being asked."""
        self._look = True
        if self._held:
            self._news.set()

    # ---- beginning ----

    async def begin(self, *, watched: bool) -> Asked | bool:
        """Begin what may run now; whether anything was. The end of the turn is given back when it has its turn.

        With `watched`, something else may happen before a call has ended, a pause for one.
        """
        await self._decide()
        if self._look:
            await self._reconsider()
        todo = self._next()
        if not todo:
            return False
        calls = [asked.call for asked in todo if asked.call is not None]
        if not calls:
            return todo[0]
        await self._carrying.begin(calls)
        if len(calls) == 1 and not self._running and not watched and not self._held:
            calls[0].recorded = partial(self.recorded.append, todo[0])
            await self._perform_alone(calls[0])
            return True
        for asked, call in zip(todo, calls, strict=True):
            call.recorded = partial(self.recorded.append, asked)
            task = spawn(self._carrying.perform(call))
            task.add_done_callback(self._ended)
            self._running[task] = asked
        return True

    async def _decide(self) -> None:
        """Hooks, the policy and people decide about calls, in their order."""
        while self._ahead and len(self.waiting) < MOST_WAITING and len(self._queue) < MOST_RUNNING:
            asked = self._ahead.popleft()
            if not asked.key:
                self._queue.append(asked)
                continue
            await self._carrying.recall((asked.key,))
            asked.call = call = self._prepare(asked)
            await self._carrying.authorise([call], self._taint())
            if call.waits:
                self.waiting.append(call)
                self._held[call.key] = asked
            else:
                self._queue.append(asked)

    async def _reconsider(self) -> None:
        """Calls about which a person has decided meanwhile have their turn."""
        self._look = False
        for key, asked in tuple(self._held.items()):
            call = asked.call
            if call is None:
                continue
            await self._carrying.reconsider(call, self._taint())
            if not call.waits:
                del self._held[key]
                self.waiting.remove(call)
                self._queue.append(asked)

    def _next(self) -> list[Asked]:
        """Calls that may run now: those that only read beside each other, any other alone."""
        todo: list[Asked] = []
        while self._queue and len(self._running) + len(todo) < MOST_RUNNING:
            head = self._queue[0]
            alone = head.call is None or head.call.alone
            if alone and (self._running or todo):
                break
            todo.append(self._queue.popleft())
            if alone:
                break
        return todo

    async def _perform_alone(self, call: Call) -> None:
        """Nothing else can happen before it has ended: it needs no task of its own."""
        self._alone = call
        await self._carrying.perform(call)
        self._alone = None
        if call.waits:
            self.waiting.append(call)

    # ---- ending ----

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._over.append(task)
        self._news.set()

    async def until_one(self, seconds: float | None) -> None:
        """Wait until a call has ended, or for so long."""
        if not self._over and not self._look:
            self._news.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            except TimeoutError:
                return
        while self._over:
            self._take_in(self._over.popleft())

    def _take_in(self, task: asyncio.Task[None]) -> None:
        asked = self._running.pop(task)
        call = asked.call
        if call is None:
            return
        if task.cancelled():
            self._give_up(asked, call)
            return
        task.result()
        if call.waits:
            self.waiting.append(call)

    def _give_up(self, asked: Asked, call: Call) -> None:
        """A tool that has cancelled the very task that it runs in."""
        for record in self._carrying.given_up([call], self._performer.now()):
            self._recorder.submit([record], patient=True, spend=spent_by([record]))
            if isinstance(record, Unknown | Cancelled):
                call.end(record)
                self.recorded.append(asked)

    async def drain(self) -> None:
        """Let what is under way come to its end; nothing new is begun."""
        self._ahead.clear()
        self._queue.clear()
        self._held.clear()
        while self._running:
            self._look = False
            await self.until_one(None)

    def stop(self) -> None:
        """Stop what is under way."""
        for task in self._running:
            task.cancel()

    async def close(self) -> None:
        """Wait until what was stopped has ended."""
        self.stop()
        if self._running:
            await asyncio.gather(*self._running, return_exceptions=True)
