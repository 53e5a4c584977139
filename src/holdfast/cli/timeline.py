"""The story of a session, told from its records: its turns, their steps, and who did them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from holdfast.cli.sessions import approval_in, wait_label
from holdfast.messages import ToolCall, Usage, decode_reply
from holdfast.policy.approvals import Answer, Approved
from holdfast.records import (
    Admitted,
    Cancelled,
    Cause,
    Done,
    Ended,
    Failed,
    Handed,
    Intended,
    Opened,
    Outcome,
    Parked,
    Record,
    Resumed,
    Started,
    Unknown,
)
from holdfast.turns import keys
from holdfast.turns.answers import result_of
from holdfast.turns.conversation import Stop, checkpoint_of, ending_of, input_of, led_by
from holdfast.turns.environment import changes, described
from holdfast.turns.programs import answer_message, finish_of, is_finish

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.records import Ask
    from holdfast.turns.environment import Environment

StepKind: TypeAlias = Literal[
    "input", "cancel", "model", "tool", "note", "wait", "parked", "resumed", "handoff", "environment"
]

_answers: Final = msgspec.json.Decoder(Answer)


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened in a turn."""

    seq: int
    at: int
    kind: StepKind
    name: str = ""
    """The tool, the model or the wait."""
    state: str = ""
    """How it ended."""
    ms: int = 0
    text: str = ""
    calls: tuple[str, ...] = ()
    usage: Usage | None = None
    by: str | None = None
    """The process that did it."""
    depth: int = 0
    """1 for what a program did."""
    cause: Cause | None = None
    """What led to it."""
    iteration: int = 0
    """The step of the turn, from 1."""
    metadata: dict[str, Any] = {}
    """Of an input: what the application said about it."""
    changes: tuple[str, ...] = ()
    """Of an environment: what is different from the one before, as the lines of a diff."""
    agent: str | None = None
    """Who spoke, or called the tool; of a handoff, who has the session then."""


class TurnStory(msgspec.Struct, kw_only=True):
    """One turn. `status` is None while it has not ended."""

    turn: str
    begun: int
    ended: int | None = None
    status: str | None = None
    code: str = ""
    message: str = ""
    model_calls: int = 0
    usage: Usage = Usage()
    answer: str = ""
    agents: list[str] = msgspec.field(default_factory=list[str])
    """Who had it, one after the other."""
    children: Usage = Usage()
    """What its sub-agents used, besides."""
    children_cost: float | None = 0.0
    steps: list[Step] = msgspec.field(default_factory=list[Step])


def tell(entries: Iterable[tuple[int, Record]], told: Mapping[int, Environment]) -> list[TurnStory]:
    """The turns of a session in the order of their beginning. Large values must have been fetched before.

    `told` are the environments of model calls, by the record that tells each.
    """
    teller = _Teller(told)
    for seq, record in entries:
        teller.add(seq, record)
    return list(teller.turns.values())


class _Teller:
    def __init__(self, told: Mapping[int, Environment]) -> None:
        self._told = told
        self._environments: dict[str, Environment] = {}
        """Of each agent, as it was told last."""
        self.turns: dict[str, TurnStory] = {}
        self._by: str | None = None
        self._agent: str | None = None
        self._asks: dict[str, Ask] = {}
        """What was asked, of effects with an intent, by key."""
        self._iterations: dict[str, int] = {}
        """The steps of model calls, by key."""
        self._replies: dict[str, str] = {}

    def add(self, seq: int, record: Record) -> None:
        match record:
            case Opened():
                self._agent = record.agent
            case Handed():
                self._handed(seq, record)
            case Started():
                self._by = record.by
                self._turn(record.run, record.at)
            case Resumed():
                self._by = record.by
                self._step(record.run, Step(seq=seq, at=record.at, kind="resumed", by=record.by))
            case Parked():
                names = tuple(map(wait_label, record.waits))
                self._step(record.run, Step(seq=seq, at=record.at, kind="parked", calls=names, by=self._by))
            case Admitted():
                self._admitted(seq, record)
            case Ended():
                self._ended(record)
            case Intended():
                self._asks[record.key] = record.ask
                if record.ask.kind == "await_event":
                    self._wait(seq, record)
            case Done() | Failed() | Unknown() | Cancelled():
                self._outcome(seq, record)
            case _:
                pass

    def _turn(self, run: str, at: int) -> TurnStory:
        found = self.turns.get(run)
        if found is None:
            agents = [] if self._agent is None else [self._agent]
            found = self.turns[run] = TurnStory(turn=run, begun=at, agents=agents)
        return found

    def _why(self, record: Outcome | Intended) -> dict[str, Any]:
        """What led to an effect, and in which step."""
        ask = record.ask or self._asks.get(record.key)
        if ask is None:
            return {}
        if ask.kind == "model_call":
            self._iterations[record.key] = ask.iteration
        return {"cause": ask.cause, "iteration": ask.iteration or self._iteration_of(record.key)}

    def _iteration_of(self, key: str) -> int:
        """The step of a tool call: that of the model call before its batch."""
        called = keys.parse(key)
        return 0 if called is None else self._iterations.get(keys.effect_key(called.run, called.number - 1, "model"), 0)

    def _step(self, run: str, step: Step) -> None:
        self._turn(run, step.at).steps.append(step)

    def _handed(self, seq: int, record: Handed) -> None:
        self._agent = record.agent
        self._turn(record.run, record.at).agents.append(record.agent)
        step = Step(
            seq=seq, at=record.at, kind="handoff", text=record.reason, state="ok", by=self._by, agent=record.agent
        )
        self._step(record.run, step)

    def _admitted(self, seq: int, record: Admitted) -> None:
        said = input_of(bytes(record.body))
        if isinstance(said, Stop):
            if said.cancel in self.turns:
                self._step(said.cancel, Step(seq=seq, at=record.at, kind="cancel", text=said.reason))
        elif record.run is not None:
            words = "".join(getattr(part, "text", "") for part in said.parts)
            state = "compacts" if said.compact else "steers" if said.steer else ""
            cause = led_by(record.input, record.key)
            step = Step(
                seq=seq,
                at=record.at,
                kind="input",
                state=state,
                text=words,
                cause=cause if cause.kind == "trigger" else None,
                metadata=said.metadata or {},
            )
            self._step(record.run, step)

    def _wait(self, seq: int, record: Intended) -> None:
        key = keys.parse(record.key)
        if key is not None:
            name = wait_label(record.ask.target)
            step = Step(seq=seq, at=record.at, kind="wait", name=name, state="asked", by=self._by, **self._why(record))
            self._step(key.run, step)

    def _outcome(self, seq: int, record: Outcome) -> None:
        key = keys.parse(record.key)
        if key is None:
            return
        if seq in self._told:
            self._environment(seq, key.run, record)
        elif key.inner:
            self._inner(seq, key.run, record)
        elif key.name == "model":
            self._model(seq, key, record)
        elif key.name == "tools":
            self._tool(seq, key, record)
        elif key.name == "checkpoint" and isinstance(record, Done):
            note = checkpoint_of(record).note
            if note is not None:
                self._step(key.run, Step(seq=seq, at=record.at, kind="note", text=note, by=self._by))

    def _environment(self, seq: int, run: str, record: Outcome) -> None:
        agent = "" if record.ask is None else record.ask.target
        before, now = self._environments.get(agent), self._told[seq]
        self._environments[agent] = now
        step = Step(
            seq=seq,
            at=record.at,
            kind="environment",
            name=now.model,
            state="new" if before is None else "changed",
            text=described(now),
            changes=() if before is None else tuple(changes(before, now)),
            by=self._by,
            agent=agent,
        )
        self._step(run, step)

    def _inner(self, seq: int, run: str, record: Outcome) -> None:
        """What a tool did inside: only the answers it waited for are part of the story."""
        if is_finish(record.key) and isinstance(record, Done):
            batch = keys.parse(record.key)
            words = finish_of(record)
            self._replies[answer_message(run, 0 if batch is None else batch.number, words).id] = words
            return
        name = wait_label(record.key)
        if approval_in(record.key) is not None:
            state, text = _answered(record)
            step = Step(seq=seq, at=record.at, kind="wait", name=name, state=state, text=text, by=self._by)
            self._step(run, step)
            return
        asked = any(step.kind == "wait" and step.name == name for step in self._turn(run, record.at).steps)
        if asked:
            state = "answered" if isinstance(record, Done) else "not answered"
            shown = isinstance(record, Done) and record.blob is None and not record.key.endswith(f"/{keys.DEFERRAL}")
            text = bytes(record.value).decode() if isinstance(record, Done) and shown else ""
            step = Step(seq=seq, at=record.at, kind="wait", name=name, state=state, text=text, by=self._by)
            self._step(run, step)

    def _model(self, seq: int, key: keys.EffectKey, record: Outcome) -> None:
        if isinstance(record, Done):
            reply = decode_reply(bytes(record.value))
            self._replies[f"{key.run}.{key.number}"] = reply.text
            turn = self._turn(key.run, record.at)
            turn.model_calls += 1
            turn.usage += reply.usage
            step = Step(
                seq=seq,
                at=record.at,
                kind="model",
                name=reply.model,
                state=reply.finish,
                ms=record.ms,
                text=reply.text,
                calls=tuple(call.name for call in reply.calls),
                usage=reply.usage,
                by=self._by,
                agent=self._agent,
                **self._why(record),
            )
        else:
            text = f"{record.error.kind}: {record.error.message}" if isinstance(record, Failed) else ""
            ms = record.ms if isinstance(record, Failed) else 0
            state = "cancelled" if isinstance(record, Cancelled) else "failed"
            step = Step(
                seq=seq,
                at=record.at,
                kind="model",
                state=state,
                ms=ms,
                text=text,
                by=self._by,
                agent=self._agent,
                **self._why(record),
            )
        self._step(key.run, step)

    def _tool(self, seq: int, key: keys.EffectKey, record: Outcome) -> None:
        name, depth = keys.tool_of(record.key), int(key.nested > 0)
        result = result_of(ToolCall("", name, {}), record)
        text = result.content if isinstance(result.content, str) else msgspec.json.encode(result.content).decode()
        ms = record.ms if isinstance(record, Done | Failed) else 0
        step = Step(
            seq=seq,
            at=record.at,
            kind="tool",
            name=name,
            state=result.state,
            ms=ms,
            text=text,
            by=self._by,
            depth=depth,
            agent=self._agent,
            **self._why(record),
        )
        self._step(key.run, step)

    def _ended(self, record: Ended) -> None:
        turn = self._turn(record.run, record.at)
        ending = ending_of(record)
        turn.ended, turn.status = record.at, record.status
        turn.code, turn.message = ending.code, ending.message
        turn.answer = self._replies.get(ending.answer or "", "")


def _answered(record: Outcome) -> tuple[str, str]:
    """What was said to an approval, and by whom; nothing where that can't be told."""
    if not isinstance(record, Done) or record.blob is not None:
        return "not answered", ""
    try:
        answer = _answers.decode(bytes(record.value))
    except msgspec.DecodeError:
        return "answered", ""
    by = f"by {answer.by}" if answer.by else ""
    if isinstance(answer, Approved):
        return "approved", by if answer.arguments is None else f"{by} with changed arguments".strip()
    return "denied", ": ".join(part for part in (by, answer.reason) if part)
