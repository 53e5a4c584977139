"""How a turn ended, as the host application is told."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec

from holdfast.errors import JournalMissing, TurnUnknown
from holdfast.messages import Usage
from holdfast.output import parse
from holdfast.records import Admitted, Ended, EndStatus
from holdfast.runtime.reading import read_page
from holdfast.runtime.watch import TurnEnded
from holdfast.turns import Conversation, Ending, keys
from holdfast.turns.conversation import Stop, input_of
from holdfast.turns.ending import Blame  # noqa: TC001  msgspec reads the annotations
from holdfast.turns.machine import added, answer_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.agent import Agent
    from holdfast.errors import HoldfastError
    from holdfast.runtime.watch import Expectation, Watch
    from holdfast.store import Store


class TurnOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended. `text` is the answer; `value` the same as the type that the agent's `output` asks for."""

    session: str
    turn: str
    status: EndStatus
    text: str = ""
    value: Any = None
    code: str = ""
    """Why it did not complete, in one word."""
    message: str = ""
    """Why it did not complete, in a sentence."""
    blame: Blame | None = None
    """Who can act: the caller, the model, a tool, the code, or whoever set the limit."""
    steps: int = 0
    usage: Usage = Usage()
    cost: float | None = None
    """In US dollars; None where no price is known."""
    allowed: int | float | None = None
    """The value of the limit that was reached, where one was."""
    used: int | float | None = None
    """How much of it was used."""
    children: Usage = Usage()
    """What sub-agents of the turn used, besides; those that go on in the background as far as they were."""
    children_cost: float | None = 0.0
    """In US dollars; None where a price is not known."""
    agent: str | None = None
    """Who had the session when the turn ended; None where nobody had begun it."""
    handoffs: int = 0
    """How often the turn was handed over to another agent."""

    @property
    def ok(self) -> bool:
        """Whether the turn completed."""
        return self.status == "completed"

    @property
    def total_usage(self) -> Usage:
        """What the turn used, with its sub-agents on all levels."""
        return self.usage + self.children

    @property
    def total_cost(self) -> float | None:
        """In US dollars, with sub-agents; None where a price is not known."""
        return added(self.cost, self.children_cost)


class TurnReader:
    """Reads a session's journal until a turn has ended. The turn is the one that input `number` entered."""

    def __init__(self, store: Store, session: str, number: int, after: int, *, known: bool) -> None:
        self.session = session
        self.run: str | None = None
        """The turn, once it is known: an input that steers may enter another one than it would have begun."""
        self._store = store
        self._number = number
        self._known = known
        self._after = after
        self._text: str | None = None
        """The words of the answer, where whoever drove the turn has told them."""

    @cached_property
    def _conversation(self) -> Conversation:
        """What was read, from where the input was accepted. Who is told of the end reads nothing."""
        conversation = Conversation(whole=self._after == 0)
        conversation.seq = self._after
        return conversation

    async def read(self) -> Ending | None:
        """What is there now: how the turn ended, or None when it has not."""
        if not self._known:
            await self._check()
        conversation = self._conversation
        while page := await read_page(self._store, self.session, conversation.seq):
            for seq, record in page:
                conversation.add(seq, record)
                if isinstance(record, Admitted) and record.input == self._number:
                    self.run = record.run
                if isinstance(record, Ended) and record.run == self.run:
                    return conversation.endings[record.run]
        return None

    async def _check(self) -> None:
        """There is a turn for everything that was said in this session, and no other."""
        try:
            found = await self._store.input(self.session, self._number)
        except JournalMissing:
            found = None
        if found is None or isinstance(input_of(found.body), Stop):
            raise TurnUnknown(self.session, keys.run_of(self._number))
        self._known = True

    async def ended_at(self) -> tuple[int, int] | None:
        """The place of the turn's last event, once it has ended: its terminal record, and the event's number there."""
        ending = await self.read()
        if ending is None:
            return None
        return self._conversation.seq, 1 if ending.code == "no_progress" else 0

    async def wait(
        self,
        watch: Watch,
        stuck: Callable[[str], HoldfastError | None],
        expected: Expectation | None = None,
        missing: Callable[[str], Awaitable[HoldfastError | None]] | None = None,
    ) -> Ending:
        """How the turn ended, as soon as it has. Whoever gives what it has expected all along need not look first.

        `missing` is asked, before anybody waits, whether the session has an agent.
        """
        if expected is not None and self.is_told(ended := await expected.news):
            return ended.ending
        while True:
            with watch.expecting(self.session, self._conversation.seq, ends=True) as found:
                ending = await self.read()
                if ending is not None:
                    return ending
                error = stuck(self.session)
                if error is None and missing is not None:
                    error = await missing(self.session)
                if error is not None:
                    raise error
                found.head = self._conversation.seq
                ended = await found.news
            if self.is_told(ended):
                return ended.ending

    def is_told(self, ended: object) -> TypeGuard[TurnEnded]:
        """Whether this is the end of the turn, told by whoever drove it: then nothing has to be read."""
        if not isinstance(ended, TurnEnded) or self._number not in ended.inputs:
            return False
        self.run, self._text = ended.run, ended.text
        return True

    def outcome(self, ending: Ending, agent: Agent | None) -> TurnOutcome:
        """The ending, with the words of the answer and the value that they stand for."""
        text = self._text
        if text is None:
            text = "" if ending.answer is None else answer_of(self._conversation.thread, ending.answer)
        value = None
        if ending.typed:
            value = _value(text, agent)
        return TurnOutcome(
            session=self.session,
            turn=self.run or keys.run_of(self._number),
            status=ending.status,
            text=text,
            value=value,
            code=ending.code,
            message=ending.message,
            blame=ending.blame,
            steps=ending.steps,
            usage=ending.usage,
            cost=ending.cost,
            allowed=ending.allowed,
            used=ending.used,
            agent=ending.agent,
            handoffs=ending.handoffs,
        )


def _value(text: str, agent: Agent | None) -> Any:  # noqa: ANN401  whatever type was asked for
    """The value of a typed answer; plain JSON where the agent is not here, or asks for another shape by now."""
    if agent is not None and agent.output is not None and agent.output.complaint(text) is None:
        return agent.output.load(text)
    return parse(text)
