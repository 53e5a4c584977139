"""Noticing that a journal has grown, whoever wrote it.

Sessions that are driven here say so themselves. For all others one look at the store, at most every few milliseconds
and only when something was committed, serves everybody who waits.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.errors import StoreClosed
from holdfast.spawning import spawn

if TYPE_CHECKING:
    from collections.abc import Collection, Generator

    from holdfast.processes.state import ProcessState
    from holdfast.store import Store
    from holdfast.turns import Ending

ANY: Final = ""
"""Stands for all journals together."""
_PAUSE: Final = 0.02


class TurnEnded(NamedTuple):
    """A turn that ended here, told to whoever waits for it: all that the journal would tell."""

    run: str
    inputs: Collection[int]
    """The inputs that entered it."""
    ending: Ending
    text: str


@dataclass(eq=False, slots=True)
class Expectation:
    """Somebody who waits for a journal, and how far that one has read it."""

    head: int
    news: asyncio.Future[TurnEnded | ProcessState | None]
    """Done when there is something to look at; with the end itself, where this process has recorded it."""


class Watch:
    """Who waits for which journal: for anything new in it, or only for the end of a turn."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[tuple[str, bool], list[Expectation]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._closed = False
        self.readers = 0
        """How many wait for more than the end of a turn."""
        self.local: set[str] = set()
        """Journals that are driven here: whoever drives them says when they have grown."""

    @contextmanager
    def until_closed(self) -> Generator[None]:
        """End what is watched here when the runtime is closed, without an error; begun after that, it is one."""
        begun = not self._closed
        try:
            yield
        except StoreClosed:
            if not begun:
                raise

    def touch(self, journal: str) -> None:
        """Something about `journal` has changed here: whoever waits for it should look again."""
        if self.readers:
            self._wake((journal, False))
            self._wake((ANY, False))

    def ended(self, journal: str, end: TurnEnded | ProcessState | None = None) -> None:
        """A turn of `journal` ended here, or the process that it is, or its drive did."""
        if self._waiting:
            self.touch(journal)
            self._wake((journal, True), end)

    def _wake(self, what: tuple[str, bool], end: TurnEnded | ProcessState | None = None) -> None:
        for found in self._waiting.pop(what, ()):
            if not found.news.done():
                found.news.set_result(end)

    @contextmanager
    def expecting(self, journal: str, head: int, *, ends: bool = False) -> Generator[Expectation]:
        """Expect records of `journal` above `head`: those that come from here on are noticed, so look inside the block.

        With `ends`, a journal that is driven here is waited for until one of its turns ends, or its drive does.
        """
        found = self._expect((journal, ends), head)
        try:
            yield found
        finally:
            self._forget((journal, ends), found)

    def _expect(self, what: tuple[str, bool], head: int) -> Expectation:
        if self._closed:
            raise StoreClosed
        found = Expectation(head, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(what, []).append(found)
        self.readers += not what[1]
        if self._looking is None or self._looking.done():
            self._looking = spawn(self._look())
        return found

    def _forget(self, what: tuple[str, bool], found: Expectation) -> None:
        self.readers -= not what[1]
        waiting = self._waiting.get(what)
        if waiting is not None and found in waiting:
            waiting.remove(found)
            if not waiting:
                del self._waiting[what]

    async def beyond(self, journal: str, head: int, version: int | None) -> None:
        """Wait until `journal` has records above `head` (for `ANY`: the store has positions above it), or is touched.

        `version` is the version of the store when the caller last looked; None for a journal that is driven here and of
        which the caller knows, at this moment, that nothing above `head` is durable: the drive touches it.
        """
        what = (journal, False)
        found = self._expect(what, head)
        try:
            if version is not None and self._store.version != version:
                await self._compare([what])  # what came between the caller's look and now
            await found.news
        finally:
            self._forget(what, found)

    async def _look(self) -> None:
        """Compare what people wait for with what is there, as long as anybody waits."""
        try:
            while self._waiting:
                version = self._store.version
                await self._compare([what for what in self._waiting if what[0] not in self.local])
                await self._store.changed(version, None)
                await asyncio.sleep(_PAUSE)
        except Exception as error:  # noqa: BLE001  whoever waits must hear of it
            self._fail(error)

    async def _compare(self, waited: list[tuple[str, bool]]) -> None:
        names = list({journal for journal, _ in waited if journal != ANY})
        heads = await self._store.heads(names) if names else {}
        if (ANY, False) in waited:
            heads[ANY] = await self._store.last_position()
        for what in waited:
            for found in list(self._waiting.get(what, ())):
                if heads.get(what[0], 0) > found.head and not found.news.done():
                    found.news.set_result(None)

    def _fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, {}
        for entries in waiting.values():
            for found in entries:
                if not found.news.done():
                    found.news.set_exception(error)

    async def close(self) -> None:
        """Nobody waits any more."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self._fail(StoreClosed())
