"""Time in a program: what its clock says, and its pauses. A long pause is a durable timer, and holds no process."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.effects.replay import Begin, Repeat
from holdfast.records import Ask, Cancelled, Done, Intended
from holdfast.turns.programs import aside_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.effects.performer import Performer
    from holdfast.records import Record
    from holdfast.runtime.recording import Recorder
    from holdfast.runtime.surroundings import Surroundings
    from holdfast.sandbox import HostCall

SHORT_MS: Final = 2_000
"""A pause of so many milliseconds is made here, with the program in memory; for a longer one the turn is parked."""


@dataclass(frozen=True, slots=True)
class _Pause:
    host: HostCall
    key: str
    ask: Ask | None
    """None: it is recorded that it began."""
    due: int
    wait: str | None
    """The durable timer."""

    def left(self, now: int) -> int:
        """How many milliseconds it still takes. A short one can't take longer than short: the clock was set back."""
        left = max(0, self.due - now)
        return 0 if self.wait is None and left > SHORT_MS else left


class Pauses:
    """The clock and the pauses of one program, whose key is `program`."""

    def __init__(
        self, program: str, around: Surroundings, performer: Performer, recorder: Recorder, settled: set[str]
    ) -> None:
        self._program = program
        self._around = around
        self._performer = performer
        self._recorder = recorder
        self._open: list[tuple[int, str, _Pause]] = []
        """A heap: what is over first stands first."""
        self._settled = settled
        """The keys of what has got its outcome here."""

    def now(self, host: HostCall, number: int) -> float:
        """What the clock says, in seconds since 1970; it is recorded."""
        key = aside_key(self._program, number, "now")
        ask = Ask("sample", "now", host.digest)
        self._performer.decide(key, ask, Repeat.FREE)
        at = self._performer.now()
        seconds = at / 1000
        self._recorder.submit(
            [Done(at=at, key=key, ask=ask, value=msgspec.Raw(msgspec.json.encode(seconds)))], patient=True
        )
        return seconds

    async def begin(self, host: HostCall, number: int) -> None:
        """A pause begins, or goes on after a restart."""
        key = aside_key(self._program, number, "sleep")
        ask = Ask("sleep", "sleep", host.digest)
        decision = self._performer.decide(key, ask, Repeat.FREE)
        now = self._performer.now()
        due = now + round(host.arguments["seconds"] * 1000)
        if isinstance(decision, Begin) and due - now <= SHORT_MS:
            self._add(_Pause(host, key, ask, due, None))
            return
        wait = await self._around.open_wait(key, due)
        if isinstance(decision, Begin):
            self._recorder.submit([Intended(at=now, key=key, ask=ask)])
        over = wait.state != "open" or wait.deadline is None
        self._add(_Pause(host, key, None, now if over else wait.deadline or now, key))

    def _add(self, pause: _Pause) -> None:
        heappush(self._open, (pause.due, pause.key, pause))

    @property
    def open(self) -> bool:
        """Whether there is any."""
        return bool(self._open)

    def over(self) -> Iterator[HostCall]:
        """The pauses whose time has come, the first one first; each is recorded as it is told here."""
        now = self._performer.now()
        while self._open and not self._open[0][2].left(now):
            _, key, pause = heappop(self._open)
            self._settled.add(key)
            done = Done(at=now, key=key, ask=pause.ask, value=msgspec.Raw(b"null"))
            self._recorder.submit([done], patient=True)
            yield pause.host

    @property
    def seconds(self) -> float | None:
        """How long it is until the next one is over; None when there is none."""
        if not self._open:
            return None
        return self._open[0][2].left(self._performer.now()) / 1000

    @property
    def waits(self) -> tuple[str, ...]:
        """The durable timer that is up next: more than one need not wake the turn."""
        return () if not self._open or self._open[0][2].wait is None else (self._open[0][2].wait,)

    @property
    def timers(self) -> tuple[str, ...]:
        """All durable timers."""
        return tuple(pause.wait for _, _, pause in self._open if pause.wait is not None)

    def clear(self) -> None:
        """Nobody waits for any of them."""
        self._open.clear()

    def dropped(self, now: int) -> Iterator[Record]:
        """Records for those that nobody waits for any more."""
        return (Cancelled(at=now, key=pause.key) for _, _, pause in self._open if pause.wait is not None)
