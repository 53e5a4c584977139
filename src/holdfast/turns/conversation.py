"""The conversation of a session, as a fold of its journal.

The same facts always give the same messages with the same ids, also for a turn that is still under way, and every tool
call of a turn that has ended has a result: calls that were never begun get one that says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from holdfast.errors import InvariantBroken, RecordUnreadable
from holdfast.messages import (
    Attachment,
    InputPart,
    Origin,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
    decode_reply,
    message_of_reply,
)
from holdfast.policy.limits import Consumption
from holdfast.policy.mandates import Mandate  # noqa: TC001  msgspec reads the annotations
from holdfast.policy.rules import CLEAN, Taint
from holdfast.records import (
    Admitted,
    Blob,
    Cancelled,
    Cause,
    Done,
    Ended,
    EndStatus,
    Failed,
    Handed,
    InputTaint,
    Intended,
    Opened,
    Outcome,
    Parked,
    Record,
    Resumed,
    Started,
    Unknown,
    metadata_of,
)
from holdfast.turns import keys
from holdfast.turns.compaction.apply import View, decode_compaction, is_compaction
from holdfast.turns.compaction.plan import Breaker, without_files, without_words
from holdfast.turns.environment import is_environment
from holdfast.turns.machine import Ending, added, decode_ending
from holdfast.turns.programs import answer_message, decode_changed_variables, finish_of, is_finish, is_kept
from holdfast.turns.results import forked_result, is_background, is_paid, result_of, skipped_result, unknown_result
from holdfast.turns.state import Stopwatch, Thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.messages import Message


_parts: Final[Callable[[Any], tuple[InputPart, ...]]] = msgspec.json.Decoder(tuple[Text | Attachment, ...]).decode
Source = Literal["turn", "direct", "child"]
TRIGGERED: Final = "trigger/"
"""How the keys of inputs begin that occurrences of triggers have started."""


class UserInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input of a session: something said. `steer` asks to enter the turn that runs."""

    parts: tuple[Text | Attachment, ...]
    steer: bool = False
    pin: bool = False
    """It stays in the context of the model, however long the conversation becomes."""
    deadline_ms: int | None = None
    """How long the turn may take, from the moment of acceptance, or from its start with `deadline_from_start`."""
    deadline_from_start: bool = False
    metadata: dict[str, Any] | None = None
    origin: Origin = "user"
    mandate: Mandate | None = None
    """On whose behalf the session works; only the first input of one has it."""
    taint: InputTaint | None = None
    """What it brings with it. None in notifications of releases that did not record it: then nobody knows."""
    compact: bool = False
    """Nothing is said: the turn makes room in the context of the model, and ends."""


class CancelRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input of a session: the request to cancel a turn."""

    cancel: str
    reason: str = ""


_said: Final = msgspec.json.Decoder(UserInput).decode
_stop: Final = msgspec.json.Decoder(CancelRequest).decode


def input_blobs(said: UserInput) -> tuple[Blob, ...]:
    """The blobs that an input speaks of."""
    return tuple(Blob(part.digest, part.size) for part in said.parts if isinstance(part, Attachment))


def turn_cause(number: int, key: str) -> Cause:
    """What led to the turn that begins with an input: the occurrence of a trigger, or else the input itself."""
    return Cause("trigger", key) if key.startswith(TRIGGERED) else Cause("input", str(number))


def deadline_wait(run: str) -> str:
    """The name of the wait that wakes a turn when its time is up."""
    return f"{run}/deadline"


def decode_input(body: bytes) -> UserInput | CancelRequest:
    """What an accepted input is."""
    return _stop(body) if body.startswith(b'{"cancel"') else _said(body)


class HandoffUsage(msgspec.Struct, frozen=True):
    """What a turn had used when it was handed over: with this the next agent goes on."""

    steps: int = 0
    usage: Usage = Usage()
    cost: float | None = 0.0
    used: Consumption = Consumption()


@dataclass(slots=True)
class OpenTurn:
    """A turn that has begun and not ended."""

    run: str
    started: Started
    before: Thread
    """All that was said before this turn, as the model sees it: what was compacted is."""
    position: int
    """Model calls of the conversation before this turn."""
    said: tuple[UserMessage, ...] = ()
    """What the turn began with."""
    compacts: bool = False
    """It makes room in the context of the model, and does nothing else."""
    deadline: int | None = None
    records: list[Record] = field(default_factory=list[Record])
    inputs: dict[int, UserMessage] = field(default_factory=dict[int, UserMessage])
    parked: Parked | None = None
    batch: tuple[ToolCall, ...] = ()
    batch_id: int = 0
    results: dict[int, ToolResult] = field(default_factory=dict[int, ToolResult])
    intended: set[int] = field(default_factory=set[int])
    told: set[int] = field(default_factory=set[int])
    """Calls of the batch whose outcomes say what they bring: what their tools may read does not count."""
    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = 0.0
    pinned: frozenset[str] = frozenset()
    """Messages that stay in the context."""
    breaker: Breaker = Breaker()  # noqa: RUF009  frozen
    """Whether summaries may be tried."""
    used: Consumption = Consumption()  # noqa: RUF009  frozen
    """What the session had used before this turn."""
    mandate: Mandate | None = None
    """On whose behalf the session works, where it is that of a sub-agent."""
    heard: Mapping[str, str] = field(default_factory=dict[str, str])
    """The tools whose results were told before this turn, with the key of the first call of each."""
    noticed: bool = False
    """Whether a notification was told before this turn of which it is not recorded what it brought."""
    taints: dict[str, InputTaint] = field(default_factory=dict[str, InputTaint])
    """What inputs have brought with them, by the ids of their messages."""
    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    """What programs before this turn have left."""
    finished: str | None = None
    """The words with which a program of the batch under way ends the turn."""
    spent: Consumption = Consumption()  # noqa: RUF009  frozen
    """What the turn itself has used."""
    goes_on: int = 0
    """The effect with which the agent goes on that has taken the turn over; 0: nobody has."""
    carried: HandoffUsage = HandoffUsage()  # noqa: RUF009  frozen
    """What it had used by then."""
    handoffs: int = 0
    """How often the turn was handed over. What is recorded here comes after the last time."""
    taint: Taint = CLEAN
    """What came with inputs, in answers from outside, and to agents that have handed the session over."""
    mode: str | None = None
    """How its model works: as it did when the agent that has it began. None: nobody knows."""
    environments: dict[str, str] = field(default_factory=dict[str, str])
    """The last recorded environment of each agent, by its id."""
    cause: Cause | None = None
    """What led to it."""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the host said about the session and about the input with which the turn began."""
    refused: str = ""
    """The kind of the error with which the provider refused the last request."""


_DEFERRAL: Final = f"/{keys.DEFERRAL}"
_TAINTED: Final = f"/{keys.TAINTED}"
_LEFT_OUT: Final[dict[str, Callable[[Message], Message]]] = {
    "bad_request": without_files,
    "content_filter": without_words,
}
"""What later turns do not see any more of one whose request was refused, by the kind of the error."""


class Conversation:
    """What was said in a session, and where its turns are. Fed with the records of its journal, in order.

    Records of model calls and tool calls whose value is large must carry the value itself, not a reference.
    """

    def __init__(self, *, whole: bool = True) -> None:
        self._whole = whole
        """Whether it is fed from the first record on: else nobody knows what the model sees of it."""
        self.thread = Thread()
        self.seq = 0
        """The last record that was taken into account."""
        self.position = 0
        """Model calls so far."""
        self.steps = 0
        """Those among them that were answered."""
        self.turn: OpenTurn | None = None
        """The turn under way."""
        self.agent: str | None = None
        """Who has the session."""
        self.handoffs = 0
        """How often it was handed over."""
        self.taint = CLEAN
        """What came with inputs, in answers from outside, and to agents that have handed it over."""
        self.mandate: Mandate | None = None
        """On whose behalf the session works; the first one holds for all of it."""
        self.endings: dict[str, Ending] = {}
        self.usage: dict[tuple[str, Source], Usage] = {}
        self.calls: dict[tuple[str, Source], int] = {}
        self.costs: dict[tuple[str, Source], float | None] = {}
        self.tool_calls = 0
        self.background = 0
        self.unpriced = 0
        self.watch = Stopwatch()
        """How long its turns were worked on."""
        self._seen: View | None = None
        """What the model sees of the conversation, if that is not all of it."""
        self._pinned: set[str] = set()
        self._breaker = Breaker()
        self._heard: dict[str, str] = {}
        self._noticed = False
        self.variables: dict[str, Any] = {}
        """What programs have left for those that come after them."""
        self.environments: dict[str, str] = {}
        """The last recorded environment of each agent, by its id. Replaced, never changed."""
        self.metadata: dict[str, Any] = {}
        """What the host said about the session."""
        self._inputs: dict[str, dict[str, Any]] = {}
        """What it said about inputs, by the message that each became."""

    def add(self, seq: int, record: Record) -> None:
        """Take the next record into account."""
        self.seq = seq
        try:
            self._take(record)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RecordUnreadable(f"what record {seq} says can't be understood: {error}") from error

    def _take(self, record: Record) -> None:
        self.watch.take(record)
        match record:
            case Opened():
                self.agent = record.agent
                self.metadata = metadata_of(record)
            case Started():
                self._start(record)
            case Admitted():
                self._admit(record)
            case Ended():
                self._end(record)
            case Parked() | Resumed():
                if self.turn is not None:
                    self.turn.parked = record if isinstance(record, Parked) else None
            case Done() | Failed() | Unknown() | Cancelled():
                self._outcome(record)
            case Intended():
                self._intent(record)
            case Handed():
                self._hand(record)
            case _:
                if self.turn is not None:
                    self.turn.records.append(record)

    def _start(self, record: Started) -> None:
        self.turn = self.opening(record)

    def opening(self, record: Started) -> OpenTurn:
        """The turn that begins with this record, after all that was said and used before."""
        return OpenTurn(
            record.run,
            record,
            self.context,
            self.position,
            deadline=record.deadline,
            pinned=frozenset(self._pinned),
            breaker=self._breaker,
            used=self.used,
            mandate=self.mandate,
            heard=self.heard,
            noticed=self._noticed,
            variables=self.variables,
            taint=self.taint,
            mode=record.mode,
            environments=self.environments,
            metadata=self.metadata,
        )

    @property
    def heard(self) -> Mapping[str, str]:
        """The tools whose results are in the conversation, with the key of the first call of each."""
        return dict(self._heard)

    @property
    def noticed(self) -> bool:
        """Whether it was told of background work, and it is not recorded what that had read."""
        return self._noticed

    @property
    def used(self) -> Consumption:
        """What the session has used so far."""
        tokens = sum(usage.total for usage in self.usage.values())
        cost = sum(cost or 0.0 for cost in self.costs.values())
        return Consumption(self.steps, tokens, cost, self.tool_calls, self.background, self.unpriced, self.watch.total)

    @property
    def context(self) -> Thread:
        """The conversation as the model sees it: what was compacted is."""
        if self._seen is None:
            return self.thread
        self._seen = self._seen.follow(self.thread)
        return self._seen.thread

    @property
    def history(self) -> list[Message]:
        """All that was said, each input with what the host said about it."""
        if not self._inputs:
            return list(self.thread.messages)
        return [self._with_metadata(message) for message in self.thread.messages]

    def _with_metadata(self, message: Message) -> Message:
        metadata = self._inputs.get(message.id)
        return message if metadata is None else msgspec.structs.replace(message, metadata=metadata)

    def cut(self) -> None:
        """A fork begins here: a turn that was under way does not go on in it."""
        if self.turn is not None:
            self._close(self.turn, None)
            self.turn = None
        self.watch.stop()

    # ---- what came in ----

    def _admit(self, record: Admitted) -> None:
        turn = self.turn
        said = decode_input(bytes(record.body))
        if isinstance(said, UserInput) and self.mandate is None:
            self.mandate = said.mandate
        if turn is None or record.run != turn.run or isinstance(said, CancelRequest):
            return
        turn.mandate = self.mandate
        message = UserMessage(f"{turn.run}.i{record.input}", said.parts, said.origin)
        if said.compact:
            turn.inputs[record.input] = message
            turn.compacts = True
            return
        self._noticed = self._noticed or (said.origin == "holdfast" and said.taint is None)
        if said.taint is not None:
            turn.taints[message.id] = said.taint
            self.taint = turn.taint = self.taint.joined(Taint.of(said.taint))
        if said.pin:
            self._pinned.add(message.id)
            turn.pinned |= {message.id}
        if said.metadata:
            self._inputs[message.id] = said.metadata
        if not turn.inputs:
            turn.said = (message,)
            turn.cause = turn_cause(record.input, record.key)
            turn.metadata = {**self.metadata, **(said.metadata or {})}
        turn.inputs[record.input] = message
        self.thread = self.thread.add(message)

    # ---- who has it ----

    def _hand(self, record: Handed) -> None:
        """Another agent has the session. It goes on with the turn after the step, and looks at nothing before that."""
        self.agent = record.agent
        self.handoffs += 1
        taint = Taint(record.untrusted, record.private, record.untrusted_by, record.private_by)
        self.taint = self.taint.joined(taint)
        turn = self.turn
        if turn is None or record.run != turn.run:
            return
        key = keys.parse_key(record.key)
        if key is None or turn.batch:
            message = f"{record.run!r} is handed over, but not after a step"
            raise RecordUnreadable(message)
        self.turn = replace(
            turn,
            before=self.context,
            position=self.position,
            records=[],
            breaker=self._breaker,
            heard=self.heard,
            noticed=self._noticed,
            goes_on=key.number + 1,
            carried=HandoffUsage(turn.steps, turn.usage, turn.cost, turn.spent),
            handoffs=turn.handoffs + 1,
            taint=self.taint,
            variables=self.variables,
            mode=record.mode,
        )

    # ---- what came of it ----

    def _outcome(self, record: Outcome) -> None:
        turn = self.turn
        if turn is None:
            return
        turn.records.append(record)
        key = keys.parse_key(record.key)
        if key is None or key.run != turn.run:
            return
        if key.inner:
            if isinstance(record, Done) and record.key.endswith(_DEFERRAL):
                answered = record.key.removesuffix(_DEFERRAL)
                self.taint = turn.taint = self.taint.joined(answer_taint(answered))
            elif isinstance(record, Done) and record.key.endswith(_TAINTED):
                by = msgspec.json.decode(bytes(record.value), type=str)
                self.taint = turn.taint = self.taint.joined(Taint(untrusted_input=True, untrusted_by=by))
            if isinstance(record, Done):
                self._within(turn, record)
            return
        if key.nested:
            self._nested(turn, record)
            return
        match key.name, record:
            case "model", Done():
                self._reply(turn, key.number, record)
            case "model", Failed(error=error):
                self.position += 1
                turn.refused = error.kind
            case "checkpoint", Done():
                self._checkpoint(turn, key.number, record)
            case "tools", _:
                self._result(turn, key.call, record)
            case _:
                pass

    def _nested(self, turn: OpenTurn, record: Outcome) -> None:
        """A program got this: no model reads it, but it was used, and what comes after may depend on it."""
        name = keys.tool_in_key(record.key)
        background = is_background(result_of(ToolCall("", name, {}), record))
        if not background and not self._tainted(turn, record):
            self._heard.setdefault(name, record.key)
        self.tool_calls += 1
        self.background += background
        turn.spent += Consumption(tool_calls=1, background=background)

    def _within(self, turn: OpenTurn, record: Done) -> None:
        """What was done below a call: little of it is part of the conversation."""
        if is_compaction(record.key):
            self._compacted(turn, record)
        elif is_paid(record.key):
            self._unused(turn, record)
        elif is_kept(record.key):
            self.variables = decode_changed_variables(bytes(record.value)).after(self.variables)
        elif is_finish(record.key):
            turn.finished = finish_of(record)
        elif record.ask is not None and is_environment(record):
            self.environments = {**self.environments, record.ask.target: record.ask.content}
            turn.environments = self.environments

    def _intent(self, record: Intended) -> None:
        turn = self.turn
        if turn is None:
            return
        turn.records.append(record)
        key = keys.parse_key(record.key)
        if key is None or key.inner or key.nested:
            return
        if key.name == "tools" and key.number == turn.batch_id:
            turn.intended.add(key.call)

    def _reply(self, turn: OpenTurn, number: int, record: Done) -> None:
        reply = decode_reply(bytes(record.value))
        self.position += 1
        self.steps += 1
        turn.steps += 1
        turn.usage += reply.usage
        turn.cost = added(turn.cost, reply.cost)
        turn.spent += Consumption(1, reply.usage.total, reply.cost or 0.0, unpriced=reply.cost is None)
        self._count((reply.model, "turn"), 1, reply.usage, reply.cost)
        message = message_of_reply(reply, f"{turn.run}.{number}")
        if not message.parts:
            return
        self.thread = self.thread.add(message)
        turn.batch, turn.batch_id, turn.results, turn.intended = message.calls, number + 1, {}, set()
        turn.told = set()

    def _count(self, name: tuple[str, Source], calls: int, usage: Usage, cost: float | None) -> None:
        self.usage[name] = self.usage.get(name, Usage()) + usage
        self.calls[name] = self.calls.get(name, 0) + calls
        self.costs[name] = added(self.costs.get(name, 0.0), cost)
        self.unpriced += cost is None

    def _compacted(self, turn: OpenTurn, record: Done) -> None:
        """The model sees less from here on. The history stays as it is."""
        made = decode_compaction(bytes(record.value))
        if made.calls:
            self._count((made.model, "direct"), made.calls, made.usage, made.cost)
            turn.usage += made.usage
            turn.cost = added(turn.cost, made.cost)
            turn.spent += Consumption(0, made.usage.total, made.cost or 0.0, unpriced=made.cost is None)
        self._breaker = made.judged(self._breaker, record.at)
        if self._whole:
            self._seen = View(made.applied(self.context), len(self.thread))

    def _unused(self, turn: OpenTurn, record: Done) -> None:
        """A reply was paid for and not used."""
        reply = decode_reply(bytes(record.value))
        turn.usage += reply.usage
        turn.cost = added(turn.cost, reply.cost)
        turn.spent += Consumption(0, reply.usage.total, reply.cost or 0.0, unpriced=reply.cost is None)
        self._count((reply.model, "turn"), 1, reply.usage, reply.cost)

    def _checkpoint(self, turn: OpenTurn, number: int, record: Done) -> None:
        note = decode_checkpoint(record).note
        if note is not None:
            self.thread = self.thread.add(UserMessage(f"{turn.run}.{number}", (Text(note),), "holdfast"))

    def _result(self, turn: OpenTurn, call: int, record: Outcome) -> None:
        if not 1 <= call <= len(turn.batch) or (isinstance(record, Cancelled) and call in turn.results):
            return
        result = turn.results[call] = result_of(turn.batch[call - 1], record)
        if self._tainted(turn, record):
            turn.told.add(call)
        self.tool_calls += 1
        self.background += is_background(result)
        if len(turn.results) == len(turn.batch):
            self._answer_all(turn)

    def _tainted(self, turn: OpenTurn, record: Outcome) -> bool:
        """Whether an outcome itself says what it brings; then that is taken in."""
        if not isinstance(record, Done | Failed) or record.taint is None:
            return False
        self.taint = turn.taint = self.taint.joined(Taint.of(record.taint))
        return True

    def _answer_all(self, turn: OpenTurn) -> None:
        results = tuple(turn.results[number] for number in range(1, len(turn.batch) + 1))
        for number, result in enumerate(results, 1):
            if number not in turn.told and result.state != "skipped" and not is_background(result):
                self._heard.setdefault(result.name, keys.call_key(turn.run, turn.batch_id, number, result.name))
        turn.spent += Consumption(tool_calls=len(results), background=sum(map(is_background, results)))
        self.thread = self.thread.add(ToolMessage(f"{turn.run}.{turn.batch_id}", results))
        if turn.finished is not None:
            self.thread = self.thread.add(answer_message(turn.run, turn.batch_id, turn.finished))
        turn.batch, turn.results, turn.told, turn.finished = (), {}, set(), None

    # ---- how it ended ----

    def _end(self, record: Ended) -> None:
        self.endings[record.run] = ending_of_record(record)
        if self.turn is not None and record.run == self.turn.run:
            self._close(self.turn, record.status, self.endings[record.run].message)
            left_out = _LEFT_OUT.get(self.turn.refused)
            if self._whole and left_out is not None:
                self._leave_out(record.run, left_out)
            self.turn = None

    def _leave_out(self, run: str, left_out: Callable[[Message], Message]) -> None:
        """The provider refused a request: what came with the turn may be why, and would end every later one."""
        seen = self.context
        messages = [left_out(message) if message.id.partition(".")[0] == run else message for message in seen.messages]
        if any(new is not old for new, old in zip(messages, seen.messages, strict=True)):
            self._seen = View(Thread().add(*messages), len(self.thread))

    def _close(self, turn: OpenTurn, status: EndStatus | None, message: str = "") -> None:
        """Every call gets a result, also one that was never begun."""
        if not turn.batch:
            return
        for number, call in enumerate(turn.batch, 1):
            if number in turn.results:
                continue
            if status is None:
                turn.results[number] = forked_result(call)
            else:
                found = unknown_result(call) if number in turn.intended else skipped_result(call, status, message)
                turn.results[number] = found
        self._answer_all(turn)


def answer_taint(key: str, session: str = "") -> Taint:
    """What the result of the call `key` brings that somebody outside gave."""
    return Taint(untrusted_input=True, untrusted_by=f"the answer from outside to {keys.record_name(session, key)}")


class CheckpointOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a checkpoint: what Holdfast had to say, and which inputs entered."""

    inputs: tuple[int, ...] = ()
    note: str | None = None


_entered: Final = msgspec.json.Decoder(CheckpointOutcome).decode


def decode_checkpoint(record: Done) -> CheckpointOutcome:
    """What entered at a recorded checkpoint."""
    return _entered(bytes(record.value))


def ending_of_record(record: Ended) -> Ending:
    """How the turn ended, from its terminal record."""
    if record.value:
        return decode_ending(bytes(record.value))
    if record.error is None:
        message = f"the end of {record.run!r} says nothing"
        raise InvariantBroken(message)
    return Ending(record.status, record.error.kind, record.error.message, "code")
