"""The conversation of a session, folded from its journal.

The same records always give the same messages with the same ids, also for an open turn. Every tool call of an ended
turn has a result: calls that never began get a result that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import msgspec

from holdfast import errors, messages, records
from holdfast.clock import Stopwatch
from holdfast.policy.limits import Consumption, Mandate
from holdfast.policy.rules import CLEAN, Taint
from holdfast.records import Cause, InputTaint, Parked, Record, Started
from holdfast.turns import environment, keys, machine, programs, state
from holdfast.turns.compaction.plan import Breaker, View, decode_compaction, is_compaction, without_files, without_words
from holdfast.turns.results import forked_result, is_background, is_paid, result_of, skipped_result, unknown_result

Source = Literal["turn", "direct", "child"]
TRIGGERED: Final = "trigger/"
"""Prefix of the keys of inputs that triggers send."""


class UserInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input of a session. With `steer` it enters the running turn."""

    parts: tuple[messages.Text | messages.Attachment, ...]
    steer: bool = False
    pin: bool = False
    """The input stays in the context through all compactions."""
    deadline_ms: int | None = None
    """Most milliseconds of the turn: from acceptance, or with `deadline_from_start` from its start."""
    deadline_from_start: bool = False
    metadata: dict[str, Any] | None = None
    origin: messages.Origin = "user"
    mandate: Mandate | None = None
    """The mandate of a sub-agent; only the first input of its session has one."""
    taint: InputTaint | None = None
    """The taint that it brings. None in notifications of old releases means unknown."""
    compact: bool = False
    """The turn has no input and only compacts the context."""
    retry: str = ""
    """The ended turn that this input tries again; `parts` are then a note to the model."""
    model: str | None = None
    """The name of the model of the turn; None: that of the agent."""
    settings: dict[str, Any] | None = None
    """Settings of the turn, which replace those of the agent."""
    caller: str = ""
    """The span of the caller (a W3C ``traceparent``). Inputs that differ in nothing else are the same."""


class CancelRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input of a session: the request to cancel a turn, or one tool call of it."""

    cancel: str
    reason: str = ""
    tool_call: str | None = None
    """The key of the call; None: the whole turn."""


_said: Final = msgspec.json.Decoder(UserInput).decode
_stop: Final = msgspec.json.Decoder(CancelRequest).decode


def input_blobs(said: UserInput) -> tuple[records.Blob, ...]:
    """The attachments of an input as blobs."""
    return tuple(records.Blob(part.digest, part.size) for part in said.parts if isinstance(part, messages.Attachment))


def turn_cause(number: int, key: str) -> Cause:
    """The cause of the turn that an input begins: a trigger, or the input itself."""
    return Cause("trigger", key) if key.startswith(TRIGGERED) else Cause("input", str(number))


def deadline_wait(run: str) -> str:
    """The name of the wait for the deadline of a turn."""
    return f"{run}/deadline"


def decode_input(body: bytes) -> UserInput | CancelRequest:
    """Decode an accepted input."""
    return _stop(body) if body.startswith(b'{"cancel"') else _said(body)


class HandoffUsage(msgspec.Struct, frozen=True):
    """Usage of a turn at its handoff; the next agent continues the count."""

    steps: int = 0
    usage: messages.Usage = messages.Usage()
    cost: float | None = 0.0
    used: Consumption = Consumption()


class UsageTotal(msgspec.Struct, frozen=True):
    """Usage of several model calls."""

    calls: int = 0
    usage: messages.Usage = messages.Usage()
    cost: float | None = 0.0
    """In US dollars; None where a price is not known."""

    def __add__(self, other: UsageTotal) -> UsageTotal:
        return UsageTotal(self.calls + other.calls, self.usage + other.usage, machine.added(self.cost, other.cost))


@dataclass(slots=True)
class OpenTurn:
    """A turn that has begun and not ended."""

    run: str
    started: Started
    before: state.Thread
    """The conversation before this turn as the model sees it, compacted."""
    position: int
    """Number of model calls in the session before this turn."""
    said: tuple[messages.UserMessage, ...] = ()
    """The inputs that began the turn."""
    compacts: bool = False
    """The turn only compacts the context."""
    last: str = ""
    """The turn before this one; "" if this is the first."""
    retry_of: str = ""
    """The turn that this one tries again."""
    deadline: int | None = None
    records: list[Record] = field(default_factory=list[Record])
    inputs: dict[int, messages.UserMessage] = field(default_factory=dict[int, messages.UserMessage])
    parked: Parked | None = None
    by: str | None = None
    """The process that resumed it last; None if only the first one had it."""
    batch: tuple[messages.ToolCall, ...] = ()
    batch_id: int = 0
    results: dict[int, messages.ToolResult] = field(default_factory=dict[int, messages.ToolResult])
    intended: set[int] = field(default_factory=set[int])
    told: set[int] = field(default_factory=set[int])
    """Calls of the batch with recorded taint, which replaces the taint of their tools."""
    steps: int = 0
    usage: messages.Usage = field(default_factory=messages.Usage)
    cost: float | None = 0.0
    pinned: frozenset[str] = frozenset()
    """Messages that stay in the context."""
    breaker: Breaker = Breaker()  # noqa: RUF009  frozen
    """Stops summaries after several failures."""
    used: Consumption = Consumption()  # noqa: RUF009  frozen
    """Usage of the session before this turn."""
    mandate: Mandate | None = None
    """The mandate, if this is the session of a sub-agent."""
    heard: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tools with results in the conversation before this turn, with the key of the first call of each."""
    noticed: bool = False
    """A notification without recorded taint came before this turn."""
    taints: dict[str, InputTaint] = field(default_factory=dict[str, InputTaint])
    """The taint of inputs by message id."""
    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    """Variables that programs before this turn left."""
    finished: str | None = None
    """The answer with which a program of the current batch ends the turn."""
    spent: Consumption = Consumption()  # noqa: RUF009  frozen
    """Usage of the turn itself."""
    goes_on: int = 0
    """The effect with which the next agent continues after a handoff; 0 without a handoff."""
    carried: HandoffUsage = HandoffUsage()  # noqa: RUF009  frozen
    handoffs: int = 0
    """`records` begins after the last one."""
    taint: Taint = CLEAN
    """Taint of inputs, outside answers and agents that handed the session over."""
    mode: str | None = None
    """The mode in which its agent began; None in old journals."""
    environments: dict[str, str] = field(default_factory=dict[str, str])
    """The last recorded environment of each agent, by its id."""
    cause: Cause | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """Metadata of the session and of the input that began the turn."""
    refused: str = ""
    """The error kind of the last failed model call."""
    model: str | None = None
    """The name of the model that its input asks for."""
    settings: dict[str, Any] | None = None
    """The settings that its input asks for."""

    def is_open_call(self, key: str) -> bool:
        """True if `key` is a call of the current batch that has no result yet."""
        call = keys.parse_key(key)
        if call is None or call.run != self.run or call.number != self.batch_id or call.inner or call.nested:
            return False
        return 0 < call.call <= len(self.batch) and call.call not in self.results

    def enter(self, number: int, key: str, said: UserInput, of_session: Mapping[str, Any]) -> messages.UserMessage:
        """Let an input into the turn; returns its message. `of_session` is the metadata of the session."""
        message = messages.UserMessage(f"{self.run}.i{number}", said.parts, said.origin)
        if said.compact:
            self.compacts = True
        elif not self.inputs:
            self.said = (message,)
            self.metadata = {**of_session, **(said.metadata or {})}
        if not self.inputs:
            self.cause, self.retry_of = turn_cause(number, key), said.retry
            self.model, self.settings = said.model, said.settings
        if said.taint is not None:
            self.taints[message.id] = said.taint
        if said.pin:
            self.pinned |= {message.id}
        self.mandate = self.mandate or said.mandate
        self.inputs[number] = message
        return message


_DEFERRAL: Final = f"/{keys.DEFERRAL}"
_TAINTED: Final = f"/{keys.TAINTED}"
_LEFT_OUT: Final[dict[str, Callable[[messages.Message], messages.Message]]] = {
    "bad_request": without_files,
    "content_filter": without_words,
}
"""Parts that later turns no longer show to the model, by the error kind of the refused request."""


class Conversation:
    """The messages, turns and usage of a session, folded from the records of its journal in order.

    Records of model calls and tool calls must carry large values themselves, not references to blobs.
    """

    def __init__(self, *, whole: bool = True) -> None:
        self.whole = whole
        """The fold begins at the first record; otherwise the context of the model is unknown."""
        self.thread = state.Thread()
        self.has_history = True
        """False if `thread` is only the context, after a fold or `forget_history`."""
        self.seq = 0
        """Sequence of the last record."""
        self.pos = 0
        """Position of the last record in the store; 0 if unknown."""
        self.unsaved = 0
        """Records since its newest fold."""
        self.fold_size = 0
        """Bytes of its newest fold."""
        self.position = 0
        """Number of model calls."""
        self.steps = 0
        """Number of model calls with a reply."""
        self.turn: OpenTurn | None = None
        """The turn under way."""
        self.last = ""
        """The turn that ended last, or was cut off by a fork."""
        self.agent: str | None = None
        self.handoffs = 0
        self.taint = CLEAN
        """Taint of inputs, outside answers and agents that handed the session over."""
        self.mandate: Mandate | None = None
        """The mandate of a sub-agent; the first one holds for the whole session."""
        self.endings: dict[str, machine.Ending] = {}
        self.usage: dict[tuple[str, Source], UsageTotal] = {}
        """Usage of each model, by the kind of request."""
        self.tool_calls = 0
        self.background = 0
        self.unpriced = 0
        self.watch = Stopwatch()
        """Measures the working time of its turns."""
        self._seen: View | None = None
        """The compacted context; None while the model sees the whole conversation."""
        self.pinned: set[str] = set()
        self.breaker = Breaker()
        self.heard: dict[str, str] = {}
        """Tools with results in the conversation, with the key of the first call of each."""
        self.noticed = False
        """A notification without recorded taint came."""
        self.variables: dict[str, Any] = {}
        """Variables that programs left for later programs."""
        self.environments: dict[str, str] = {}
        """The last recorded environment of each agent, by its id. Replaced, never changed."""
        self.metadata: dict[str, Any] = {}
        self._inputs: dict[str, dict[str, Any]] = {}
        """Metadata of inputs by message id."""

    def add(self, seq: int, record: Record, pos: int = 0) -> None:
        self.seq, self.pos = seq, pos
        self.unsaved += 1
        try:
            self._take(record)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise errors.RecordUnreadable(f"what record {seq} says can't be understood: {error}") from error

    def _take(self, record: Record) -> None:
        self.watch.take(record)
        match record:
            case records.Opened():
                self.agent = record.agent
                self.metadata = records.metadata_of(record)
            case Started():
                self.turn = self.opening(record)
            case records.Admitted():
                self._admit(record)
            case records.Ended():
                self._end(record)
            case Parked() | records.Resumed() if self.turn is not None:
                self.turn.parked = record if isinstance(record, Parked) else None
                self.turn.by = self.turn.by if isinstance(record, Parked) else record.by
            case records.Done() | records.Failed() | records.Unknown() | records.Cancelled():
                self._outcome(record)
            case records.Intended():
                self._intent(record)
            case records.Handed():
                self._hand(record)
            case _:
                if self.turn is not None:
                    self.turn.records.append(record)

    def opening(self, record: Started) -> OpenTurn:
        """The turn that begins with this record."""
        return OpenTurn(
            record.run,
            record,
            last=self.last,
            deadline=record.deadline,
            pinned=frozenset(self.pinned),
            used=self.used,
            mandate=self.mandate,
            mode=record.mode,
            environments=self.environments,
            metadata=self.metadata,
            **self._inherited(),
        )

    def _inherited(self) -> dict[str, Any]:
        """The fields with which a turn begins, or goes on after a handoff."""
        read = {"heard": dict(self.heard), "noticed": self.noticed, "taint": self.taint, "variables": self.variables}
        return {"before": self.context, "position": self.position, "breaker": self.breaker, **read}

    @property
    def used(self) -> Consumption:
        """Usage of the session so far."""
        tokens = sum(total.usage.total for total in self.usage.values())
        cost = sum(total.cost or 0.0 for total in self.usage.values())
        return Consumption(self.steps, tokens, cost, self.tool_calls, self.background, self.unpriced, self.watch.total)

    @property
    def context(self) -> state.Thread:
        """The conversation as the model sees it, compacted."""
        if self._seen is None:
            return self.thread
        self._seen = self._seen.follow(self.thread)
        return self._seen.thread

    @property
    def history(self) -> list[messages.Message]:
        """All messages; inputs carry their metadata."""
        if not self.has_history:
            raise errors.InvariantBroken("the history was asked of a conversation without it")
        if not self._inputs:
            return list(self.thread.messages)
        return [
            msgspec.structs.replace(message, metadata=self._inputs[message.id])
            if message.id in self._inputs
            else message
            for message in self.thread.messages
        ]

    def forget_history(self) -> None:
        """Keep only what later turns need: the context of the model instead of all messages, and no endings."""
        thread = self.context
        self.thread = thread.detach()
        self._seen, self.has_history = None, False
        self._inputs.clear()
        self.endings.clear()

    def cut(self) -> None:
        """Begin a fork here: close the open turn, which does not continue in the fork."""
        if self.turn is not None:
            self._close(self.turn, None)
            self.last, self.turn = self.turn.run, None
        self.endings.clear()  # turn ids of the parent may come again
        self.watch.stop()

    # ---- inputs ----

    def _admit(self, record: records.Admitted) -> None:
        turn = self.turn
        said = decode_input(bytes(record.body))
        if isinstance(said, UserInput) and self.mandate is None:
            self.mandate = said.mandate
        if turn is None or record.run != turn.run or isinstance(said, CancelRequest):
            return
        turn.mandate = self.mandate
        message = turn.enter(record.input, record.key, said, self.metadata)
        if said.compact:
            return
        self.noticed = self.noticed or (said.origin == "holdfast" and said.taint is None)
        if said.taint is not None:
            self._take_in(turn, Taint.of(said.taint))
        if said.pin:
            self.pinned.add(message.id)
        if said.metadata:
            self._inputs[message.id] = said.metadata
        self.thread = self.thread.add(message)

    # ---- handoffs ----

    def _hand(self, record: records.Handed) -> None:
        """Give the session to another agent, which continues the turn after the current step."""
        self.agent = record.agent
        self.handoffs += 1
        taint = Taint(record.untrusted, record.private, record.untrusted_by, record.private_by)
        self.taint = self.taint.joined(taint)
        turn = self.turn
        if turn is None or record.run != turn.run:
            return
        key = keys.parse_key(record.key)
        if key is None or turn.batch:
            raise errors.RecordUnreadable(f"{record.run!r} is handed over, but not after a step")
        self.turn = replace(
            turn,
            records=[],
            goes_on=key.number + 1,
            carried=HandoffUsage(turn.steps, turn.usage, turn.cost, turn.spent),
            handoffs=turn.handoffs + 1,
            mode=record.mode,
            **self._inherited(),
        )

    # ---- outcomes ----

    def _outcome(self, record: records.Outcome) -> None:
        turn = self.turn
        if turn is None:
            return
        turn.records.append(record)
        key = keys.parse_key(record.key)
        if key is None:
            self._environment(turn, record)
            return
        if key.run != turn.run:
            return
        match key.name, record:
            case _, records.Done() if key.inner:
                self._within(turn, record)
            case _ if key.inner:
                pass
            case _ if key.nested:
                self._nested(turn, record)
            case "model", records.Done():
                self._reply(turn, key.number, record)
            case "model", records.Failed(error=error):
                self.position += 1
                turn.refused = error.kind
            case "checkpoint", records.Done():
                self._checkpoint(turn, key.number, record)
            case "tools", _:
                self._result(turn, key.call, record)
            case _:
                pass

    def _nested(self, turn: OpenTurn, record: records.Outcome) -> None:
        """Count the call of a program. The model does not see its result, but later calls may depend on it."""
        name = keys.tool_in_key(record.key)
        background = is_background(result_of(messages.ToolCall("", name, {}), record))
        if not background and not self._tainted(turn, record):
            self.heard.setdefault(name, record.key)
        self.tool_calls += 1
        self.background += background
        turn.spent += Consumption(tool_calls=1, background=background)

    def _within(self, turn: OpenTurn, record: records.Done) -> None:
        """Take in a record below a call: taint, compactions, usage, variables, environments."""
        if record.key.endswith(_DEFERRAL):
            self._take_in(turn, answer_taint(record.key.removesuffix(_DEFERRAL)))
        elif record.key.endswith(_TAINTED):
            by = msgspec.json.decode(bytes(record.value), type=str)
            self._take_in(turn, Taint(untrusted_input=True, untrusted_by=by))
        elif is_compaction(record.key):
            made = decode_compaction(bytes(record.value))
            if made.calls:
                self._count(turn, (made.model, "direct"), UsageTotal(made.calls, made.usage, made.cost))
            self.breaker = made.breaker_after(self.breaker, record.at)
            if self.whole:  # the model sees less from here on; the history is unchanged
                self._seen = View(made.apply_to(self.context), len(self.thread))
        elif is_paid(record.key):  # a reply that was paid for and not used
            reply = messages.decode_reply(bytes(record.value))
            self._count(turn, (reply.model, "turn"), UsageTotal(1, reply.usage, reply.cost))
        elif programs.is_kept(record.key):
            self.variables = programs.decode_changed_variables(bytes(record.value)).after(self.variables)
        elif programs.is_finish(record.key):
            turn.finished = programs.finish_of(record)
        else:
            self._environment(turn, record)

    def _environment(self, turn: OpenTurn, record: records.Outcome) -> None:
        """Take in an environment, recorded below a model call or at the start of a turn."""
        if isinstance(record, records.Done) and record.ask is not None and environment.is_environment(record):
            self.environments = {**self.environments, record.ask.target: record.ask.content}
            turn.environments = self.environments

    def _intent(self, record: records.Intended) -> None:
        turn = self.turn
        if turn is None:
            return
        turn.records.append(record)
        key = keys.parse_key(record.key)
        is_call = key is not None and key.name == "tools" and not key.inner and not key.nested
        if key is not None and is_call and key.number == turn.batch_id:
            turn.intended.add(key.call)

    def _reply(self, turn: OpenTurn, number: int, record: records.Done) -> None:
        reply = messages.decode_reply(bytes(record.value))
        self.position += 1
        self.steps += 1
        turn.steps += 1
        self._count(turn, (reply.model, "turn"), UsageTotal(1, reply.usage, reply.cost), steps=1)
        message = messages.message_of_reply(reply, f"{turn.run}.{number}")
        if not message.parts:
            return
        self.thread = self.thread.add(message)
        turn.batch, turn.batch_id, turn.results, turn.intended = message.calls, number + 1, {}, set()
        turn.told = set()

    def _count(self, turn: OpenTurn, name: tuple[str, Source], total: UsageTotal, steps: int = 0) -> None:
        self.usage[name] = self.usage.get(name, UsageTotal()) + total
        self.unpriced += total.cost is None
        turn.usage += total.usage
        turn.cost = machine.added(turn.cost, total.cost)
        turn.spent += Consumption(steps, total.usage.total, total.cost or 0.0, unpriced=total.cost is None)

    def _take_in(self, turn: OpenTurn, taint: Taint) -> None:
        self.taint = turn.taint = self.taint.joined(taint)

    def _checkpoint(self, turn: OpenTurn, number: int, record: records.Done) -> None:
        note = decode_checkpoint(record).note
        if note is not None:
            said = messages.UserMessage(f"{turn.run}.{number}", (messages.Text(note),), "holdfast")
            self.thread = self.thread.add(said)

    def _result(self, turn: OpenTurn, call: int, record: records.Outcome) -> None:
        if not 1 <= call <= len(turn.batch) or (isinstance(record, records.Cancelled) and call in turn.results):
            return
        result = turn.results[call] = result_of(turn.batch[call - 1], record)
        if self._tainted(turn, record):
            turn.told.add(call)
        self.tool_calls += 1
        self.background += is_background(result)
        if len(turn.results) == len(turn.batch):
            self._answer_all(turn)

    def _tainted(self, turn: OpenTurn, record: records.Outcome) -> bool:
        """Take in the taint that an outcome records; returns False if it records none."""
        if not isinstance(record, records.Done | records.Failed) or record.taint is None:
            return False
        self._take_in(turn, Taint.of(record.taint))
        return True

    def _answer_all(self, turn: OpenTurn) -> None:
        results = tuple(turn.results[number] for number in range(1, len(turn.batch) + 1))
        for number, result in enumerate(results, 1):
            if number not in turn.told and result.state != "skipped" and not is_background(result):
                self.heard.setdefault(result.name, keys.call_key(turn.run, turn.batch_id, number, result.name))
        turn.spent += Consumption(tool_calls=len(results), background=sum(map(is_background, results)))
        self.thread = self.thread.add(messages.ToolMessage(f"{turn.run}.{turn.batch_id}", results))
        if turn.finished is not None:
            self.thread = self.thread.add(programs.answer_message(turn.run, turn.batch_id, turn.finished))
        turn.batch, turn.results, turn.told, turn.finished = (), {}, set(), None

    # ---- how it ended ----

    def _end(self, record: records.Ended) -> None:
        self.endings[record.run] = ending_of_record(record)
        if self.turn is not None and record.run == self.turn.run:
            self._close(self.turn, record.status, self.endings[record.run].message)
            left_out = _LEFT_OUT.get(self.turn.refused)
            if self.whole and left_out is not None:
                # Parts of a refused turn may be the reason, and would fail every later turn.
                seen = self.context.messages
                less = [left_out(each) if each.id.partition(".")[0] == record.run else each for each in seen]
                if any(new is not old for new, old in zip(less, seen, strict=True)):
                    self._seen = View(state.Thread().add(*less), len(self.thread))
            self.last, self.turn = record.run, None

    def _close(self, turn: OpenTurn, status: records.EndStatus | None, message: str = "") -> None:
        """Give every call of the batch a result, also calls that never began."""
        if not turn.batch:
            return
        for number, call in enumerate(turn.batch, 1):
            if number in turn.results:
                pass
            elif status is None:
                turn.results[number] = forked_result(call)
            elif number in turn.intended:
                turn.results[number] = unknown_result(call)
            else:
                turn.results[number] = skipped_result(call, status, message)
        self._answer_all(turn)


def answer_taint(key: str, session: str = "") -> Taint:
    """The taint of an outside answer to the call `key`."""
    return Taint(untrusted_input=True, untrusted_by=f"the answer from outside to {keys.record_name(session, key)}")


class CheckpointOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a checkpoint: the inputs that entered, and the note to the model."""

    inputs: tuple[int, ...] = ()
    note: str | None = None


_decode_checkpoint: Final = msgspec.json.Decoder(CheckpointOutcome).decode


def decode_checkpoint(record: records.Done) -> CheckpointOutcome:
    """The outcome of a recorded checkpoint."""
    return _decode_checkpoint(bytes(record.value))


def ending_of_record(record: records.Ended) -> machine.Ending:
    """Decode the ending of a turn from its terminal record."""
    if record.value:
        return machine.decode_ending(bytes(record.value))
    if record.error is None:
        raise errors.InvariantBroken(f"the end of {record.run!r} says nothing")
    return machine.Ending(record.status, record.error.kind, record.error.message, "code")
