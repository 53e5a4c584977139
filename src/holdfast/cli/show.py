"""`holdfast show`: the timeline of a session, for people and for scripts."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import msgspec

from holdfast import events, records
from holdfast.cli.options import DEFAULT_STORE, ENVIRONMENT, EXITS, INTERRUPTED, TERMINATED, WAITING, CallInvalid
from holdfast.cli.output import counted, diff_line, duration, one_line, stdout, table
from holdfast.cli.sessions import approval_in, find, looking, open_waits, read_line, wait_label, wait_told
from holdfast.errors import TurnUnknown
from holdfast.eventloop import spawn
from holdfast.events import TERMINAL, InputAccepted, TurnStarted, TurnWaiting
from holdfast.messages import AssistantMessage, ToolCall, Usage, UserMessage, decode_reply
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
from holdfast.runtime.changes import cursor_tag, events_of
from holdfast.runtime.session_records import environments_of, read_records, read_requests
from holdfast.turns import keys
from holdfast.turns.conversation import TRIGGERED, Stop, checkpoint_of, ending_of, input_of, led_by
from holdfast.turns.environment import changes, described
from holdfast.turns.programs import answer_message, finish_of, is_finish
from holdfast.turns.results import result_of, speaker, speaks_of, words_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
    from pathlib import Path

    from holdfast.cli.output import Terminal
    from holdfast.cli.run import Screen
    from holdfast.cli.sessions import Line, Target
    from holdfast.events import Event
    from holdfast.messages import Message, ModelRequest
    from holdfast.records import EffectRequest
    from holdfast.runtime import Turn, TurnOutcome
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.session_records import RecordedRequest
    from holdfast.store import Journal
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
        self._asks: dict[str, EffectRequest] = {}
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


async def show(path: Path, given: str, *, raw: bool, as_json: bool) -> int:
    """Show what happened in a session, or in one turn of it."""
    if raw and as_json:
        message = "--raw prints the records, --json the timeline: give one of them"
        raise CallInvalid(message)
    async with looking(path) as runtime:
        target = await find(runtime.store, given)
        entries = [entry async for entry in read_records(runtime.store, target.id)]
        line = await read_line(runtime.store, target.line)
        told = await environments_of(runtime.store, entries)
        turns = [] if raw else await _with_children(runtime, target, _chosen(target, tell(entries, told)))
    out = stdout()
    if raw:
        out.write("".join(f"{_raw(seq, record)}\n" for seq, record in entries if _concerns(record, target.turn)))
        return 0
    if as_json:
        told = {"session": line, "parent": target.line.parent, "parent_seq": target.line.parent_seq, "turns": turns}
        out.line(msgspec.json.encode(told).decode())
        return 0
    if target.turn is None:
        out.line(_title(out, target.line, line))
    for number, turn in enumerate(turns):
        if number or target.turn is None:
            out.line()
        out.write("".join(f"{text}\n" for text in _story(out, turn, line)))
    return 0


async def show_request(path: Path, given: str, number: int, *, as_json: bool) -> int:
    """Show what a model was asked, rebuilt from the journal."""
    async with looking(path) as runtime:
        target = await find(runtime.store, given, others=True)
        found = [each for each in await read_requests(runtime.store, target.id) if _concerns(each, target.turn)]
    asked = next((each for each in found if each.number == number), None)
    if asked is None:
        message = f"{target.id} has no request {number}: those are {', '.join(str(each.number) for each in found[:20])}"
        raise CallInvalid(message if found else f"no model was asked anything in {target.id}")
    out, request = stdout(), asked.request
    if as_json:
        files = {digest: len(body) for digest, body in request.files.items()}
        told = msgspec.structs.replace(asked, request=msgspec.structs.replace(request, files=files))
        out.line(msgspec.json.encode(told).decode())
        return 0
    doubt = "" if asked.exact else ", not complete: the journal is of an older release"
    title = out.paint(f"request {asked.number}", "bold")
    out.line(f"{title}  {asked.key}, {asked.kind}, {asked.model or asked.agent}{doubt}")
    for title, text in _told_in(request):
        out.line(out.paint(title, "bold"))
        out.write("".join(f"  | {line}\n" for line in out.clean(text).splitlines()))
    return 0


def _told_in(request: ModelRequest) -> Iterator[tuple[str, str]]:
    if request.instructions:
        yield "instructions", request.instructions
    for tool in request.tools:
        yield f"tool {tool.name}", f"{tool.description}\n{_laid_out(tool.parameters)}"
    if request.output is not None:
        yield "output", _laid_out(request.output)
    settings = msgspec.to_builtins(request.settings)
    if settings:
        yield "settings", _laid_out(settings)
    for message in request.messages:
        yield f"{speaker(message)}  {message.id}", words_of(message)


def _laid_out(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


async def _with_children(runtime: Runtime, target: Target, turns: list[TurnStory]) -> list[TurnStory]:
    """The turns, with what their sub-agents used."""
    for turn in turns if await runtime.children.any_of(target.id) else ():
        below = await runtime.children.below(target.id, turn.turn)
        turn.children, turn.children_cost = below.total, below.cost
    return turns


def _chosen(target: Target, turns: list[TurnStory]) -> list[TurnStory]:
    if target.turn is None:
        return turns
    found = [turn for turn in turns if turn.turn == target.turn]
    if not found:
        raise TurnUnknown(target.id, target.turn)
    return found


def _concerns(record: Record | RecordedRequest, turn: str | None) -> bool:
    run: str | None = getattr(record, "run", None) or getattr(record, "key", "").partition("/")[0]
    return turn is None or run == turn


def _raw(seq: int, record: Record) -> str:
    return msgspec.json.encode({"seq": seq, "record": msgspec.Raw(records.encode(record))}).decode()


def _title(out: Terminal, journal: Journal, line: Line) -> str:
    parts = [out.paint(line.id, "bold"), line.agent or "no agent", out.status(line.status), f"{line.records:,} records"]
    if line.pid is not None:
        parts.append(f"pid {line.pid}")
    if line.queued:
        parts.append(f"{line.queued} queued")
    if journal.parent is not None:
        parts.append(f"forked from {journal.parent} at {journal.parent_seq}")
    if journal.quarantine is not None:
        parts.append(one_line(journal.quarantine))
    return ", ".join(parts)


def _story(out: Terminal, turn: TurnStory, line: Line) -> list[str]:
    status = turn.status or ("waiting" if line.status == "waiting" else line.status)
    parts = [f"{out.paint(turn.turn, 'bold')}  {out.status(status)}"]
    if len(turn.agents) > 1 or turn.agents != [line.agent]:
        parts.append(" > ".join(one_line(name, 40) for name in turn.agents))
    if turn.model_calls:
        parts.append(f"{turn.model_calls} model call{'' if turn.model_calls == 1 else 's'}")
        parts.append(_tokens(turn.usage))
    if turn.children.total:
        parts.append(f"with sub-agents {_tokens(turn.usage + turn.children)}")
    if turn.ended is not None:
        parts.append(duration(max(turn.ended - turn.begun, 0)))
    lines = [", ".join(parts)]
    if turn.steps:
        rows = [_cells(step) for step in turn.steps]
        painted = [
            [
                *(out.paint(row[0], "dim"), row[1], out.status(step.state, row[2]), row[3], row[4]),
                *(out.paint(row[5], "dim"), out.paint(row[6], "dim")),
            ]
            for row, step in zip(rows, turn.steps, strict=True)
        ]
        for step, text in zip(turn.steps, table(rows, painted), strict=True):
            lines.append(f"  {text}")
            lines += [f"         {diff_line(out, change)}" for change in step.changes]
    if turn.status is None:
        waits = [name for name in line.waits if name.startswith(f"{turn.turn}/") and approval_in(name) is not None]
        lines += [f"  waits for {wait_told(name)}" for name in waits]
    if turn.status is not None and turn.status != "completed":
        why = ": ".join(part for part in (turn.code, one_line(turn.message, 300)) if part not in {"", turn.status})
        lines.append(f"  {out.status(turn.status)}{f': {why}' if why else ''}")
    if turn.answer:
        lines += [f"  | {text}" for text in out.clean(turn.answer).splitlines()]
    return lines


def _cells(step: Step) -> list[str]:
    """Sequence, what, state, duration, details, what led to it, process."""
    took = duration(step.ms) if step.ms or step.kind in {"model", "tool"} else ""
    what = f"{'  ' * step.depth}{step.kind}"
    return [f"{step.seq:>4}", what, _subject(step), took, _details(step), _led_by(step), step.by or ""]


def _led_by(step: Step) -> str:
    if step.cause is None:
        return ""
    kind, id, ordinal = step.cause.kind, one_line(step.cause.id, 60), step.cause.ordinal
    match kind:
        case "model" | "call" if ordinal:
            return f"call {ordinal} of {id}"
        case "input" | "trigger" | "process" | "signal":
            return f"after {kind} {id.removeprefix(TRIGGERED)}"
        case _:
            return f"after {id}"


def _subject(step: Step) -> str:
    match step.kind:
        case "tool":
            return f"{one_line(step.name, 40)} {step.state}"
        case "wait":
            return f"{one_line(step.name, 80)} {step.state}"
        case "handoff":
            return f"to {one_line(step.agent or '', 40)}"
        case "model":
            return step.state
        case _:
            return step.state


def _details(step: Step) -> str:
    match step.kind:
        case "model" if step.usage is not None:
            wanted = f" -> {one_line(', '.join(step.calls), 60)}" if step.calls else ""
            return f"{_tokens(step.usage)}{wanted}"
        case "parked":
            return f"until {one_line(', '.join(step.calls), 60)}"
        case _:
            return one_line(step.text, 60)


def _tokens(usage: Usage) -> str:
    cached = f" ({usage.cache_read:,} cached)" if usage.cache_read else ""
    return f"{usage.input + usage.cache_read + usage.cache_write:,}{cached} + {usage.output:,} tokens"


MOST: Final = 4_000
"""Characters of one message that are shown; --json has all of it."""


async def conversation(path: Path, given: str, *, context: bool, words: str | None, as_json: bool) -> int:
    """Show the messages of a session: all of them, or those that the model sees; those with some words alone."""
    async with looking(path) as runtime:
        target = await find(runtime.store, given)
        if target.turn is not None:
            message = "messages are those of a whole session: leave the turn out"
            raise CallInvalid(message)
        session = runtime.session(target.id)
        said = await (session.context() if context else session.history())
    found = [message for message in said if not words or speaks_of(message, words)]
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(found).decode())
        return 0
    for message in found:
        out.write("".join(f"{line}\n" for line in _lines(out, message)))
    if not found:
        out.line("nothing was said" if words is None else "nobody said that")
    return 0


def _lines(out: Terminal, message: Message) -> list[str]:
    words = words_of(message)
    shown = [f"  | {line}" for line in out.clean(words[:MOST]).splitlines()]
    if len(words) > MOST:
        shown.append(f"  ... {len(words) - MOST:,} more characters")
    return [f"{out.paint(speaker(message), 'bold')}  {message.id}", *shown]


_PLAIN: Final = 2
"""How many dots are in the name of a call that no program made: ``t3.2.1``."""


async def logs(path: Path, given: str, *, follow: bool, since: int, as_json: bool) -> int:
    """Print the events behind record `since`; with `follow`, also those to come, until Ctrl-C."""
    out = stdout()
    async with looking(path) as runtime:
        target = await find(runtime.store, given, others=True)
        found = runtime.session(target.id).events(since) if follow else _recorded(runtime, target, since)
        work = asyncio.ensure_future(_print(out, found, target.turn, as_json=as_json))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, work.cancel)
        await asyncio.wait([work])
        if not work.cancelled():
            work.result()
    return 0


async def _recorded(runtime: Runtime, target: Target, since: int) -> AsyncIterator[Event]:
    tag = cursor_tag(target.id)
    async for seq, record in read_records(runtime.store, target.id, after=since):
        for event in events_of(target.id, seq, record, str(seq), tag):
            yield event


async def _print(out: Terminal, found: AsyncIterator[Event], turn: str | None, *, as_json: bool) -> None:
    async for event in found:
        if turn is not None and event.turn != turn:
            continue
        if as_json:
            out.line(events.encode(event).decode())
        else:
            text = describe(event)
            if text is not None:
                out.line(_line(out, event, text))


def _line(out: Terminal, event: Event, text: str) -> str:
    at = datetime.fromtimestamp(event.at / 1000).astimezone().strftime("%H:%M:%S")
    return f"{out.paint(at, 'dim')} {out.paint(f'{event.seq:>5}', 'dim')} {event.turn or '-':<4} {text}"


def describe(event: Event) -> str | None:  # noqa: PLR0911, PLR0912  one line for each kind
    """An event in a few words; None for those that others say better."""
    match event:
        case events.TurnStarted():
            return f"started by {event.by}"
        case events.TurnResumed():
            return f"resumed by {event.by}"
        case events.HandedOff():
            return f"handed over to {one_line(event.agent, 40)}: {one_line(event.reason, 160)}"
        case events.MessageCommitted():
            return _said(event)
        case events.UsageRecorded():
            return f"used {event.usage.input:,} + {event.usage.output:,} tokens of {event.model}"
        case events.ToolCallRequested():
            arguments = one_line(msgspec.json.encode(event.arguments).decode(), 120)
            return f"{_indent(event.call)}calls {one_line(event.tool, 40)} {arguments}"
        case events.ToolCallFinished():
            body = event.content if isinstance(event.content, str) else msgspec.json.encode(event.content).decode()
            told = f"{one_line(event.tool, 40)} {event.state} in {duration(event.ms)}: {one_line(body, 120)}"
            return f"{_indent(event.call)}{told}"
        case events.ModelFailed():
            return f"model failed: {one_line(event.code, 40)}: {one_line(event.message, 200)}"
        case events.ApprovalRequested():
            return f"waits for {wait_told(event.wait)}"
        case events.TaskStarted():
            return f"task begun by {event.by}"
        case events.TaskProgressed():
            done = "" if event.fraction is None else f" {event.fraction:.0%}"
            return f"task{done}: {event.note or 'goes on'}"
        case events.TaskEnded():
            return f"task {event.status}" + (f": {event.code}: {event.message}" if event.code else "")
        case events.TurnWaiting():
            return f"parked until {', '.join(map(wait_label, event.waits))}"
        case events.TurnCompleted():
            return f"completed in {counted(event.steps, 'step')}, {event.usage.input:,} + {event.usage.output:,} tokens"
        case events.TurnFailed() | events.TurnCancelled() | events.TurnLimit():
            status = type(event).__name__.removeprefix("Turn").lower()
            why = ": ".join(part for part in (event.code, one_line(event.message, 200)) if part and part != status)
            return f"{status}: {why}" if why else status
        case events.LoopDetected():
            return f"loop detected: {one_line(event.message, 200)}"
        case _:
            return None


def _indent(call: str) -> str:
    """What a program does stands below it."""
    return "  " if call.count(".") > _PLAIN else ""


def _said(event: events.MessageCommitted) -> str | None:
    match event.message:
        case UserMessage() as message:
            return f"{message.origin}: {one_line(message.text, 160)}"
        case AssistantMessage() as message:
            return f"model: {one_line(message.text, 160)} ({duration(event.ms)})" if message.text else None
        case _:
            return None


_LAST_EVENTS: Final = 5.0
"""How long the last events of a turn that has ended may take to come, in seconds."""


@dataclass(slots=True)
class Followed:
    """How following a turn came out."""

    code: int
    waits: tuple[str, ...] = ()
    left: bool = False


class Follower:
    """Shows one turn. The first Ctrl-C cancels it, the second leaves at once; SIGTERM leaves it where it is."""

    def __init__(self, runtime: Runtime, turn: Turn, screen: Screen, path: Path, *, asks: bool = False) -> None:
        self._asks = asks
        """Whether a person is asked about approvals at once, and need not be told how to answer them."""
        self._runtime = runtime
        self._turn = turn
        self._screen = screen
        self._path = path
        self._number = keys.input_of(turn.id)
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cancelling: asyncio.Task[object] | None = None

    async def follow(self, after: int, run: str | None = None) -> Followed:
        """Show what happens behind record `after`. `run` is the turn, where its beginning was before that."""
        waits = await open_waits(self._runtime.store, self._turn.session)
        if waits:
            return self._waiting(waits)
        with self:
            pump = spawn(self._pump(after, run))
            outcome = spawn(self._turn.outcome())
            try:
                return await self._watch(pump, outcome)
            finally:
                tasks: list[asyncio.Task[Any]] = [
                    task for task in (pump, outcome, self._cancelling) if task is not None
                ]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, pump: asyncio.Task[tuple[str, ...]], outcome: asyncio.Task[TurnOutcome]) -> Followed:
        await asyncio.wait({pump, outcome, self._left}, return_when=asyncio.FIRST_COMPLETED)
        if self._left.done():
            self._screen.remark(f"{self._turn.id} was left where it is; go on with: {self._hint('resume')}")
            return Followed(TERMINATED, left=True)
        if pump.done() and (waits := pump.result()):
            return self._waiting(waits)
        ended = await outcome
        await asyncio.wait({pump}, timeout=_LAST_EVENTS)
        self._screen.ended(ended)
        return Followed(EXITS[ended.status])

    async def _pump(self, after: int, run: str | None) -> tuple[str, ...]:
        """Show the events of the turn until it ends; answers what the session waits for, if it was parked."""
        begun: TurnStarted | None = None
        async for event in self._runtime.session(self._turn.session).events(after):
            if run is None and isinstance(event, InputAccepted) and event.input == self._number:
                run = event.turn
                if begun is not None and begun.turn == run:
                    self._screen.event(begun)
            if isinstance(event, TurnStarted):
                begun = event
            if run is not None and event.turn in {run, None}:
                self._screen.event(event)
                if event.turn == run and isinstance(event, TERMINAL):
                    return ()
            if isinstance(event, TurnWaiting):
                waits = await open_waits(self._runtime.store, self._turn.session)
                if waits:
                    return waits
        return ()

    def _waiting(self, waits: tuple[str, ...]) -> Followed:
        session = self._turn.session
        self._screen.waiting(session, self._turn.id, waits)
        if self._asks and all(approval_in(name) is not None for name in waits):
            return Followed(WAITING, waits)
        for name in waits:
            owner = name.partition("/")[0]
            behind = "" if owner == self._turn.id else f" ({self._turn.id} comes after it)"
            asked = approval_in(name)
            if asked is None:
                what, answer = repr(wait_label(name)), self._hint("resolve", wait_label(name), "JSON")
            else:
                what, answer = f"approval of {asked.tool}", hint(self._path, "approve", asked.id)
            self._screen.remark(f"{owner} waits for {what}{behind}; answer with: {answer}")
        self._screen.remark(f"then go on with: {self._hint('resume')}")
        return Followed(WAITING, waits)

    def _hint(self, command: str, *rest: str) -> str:
        return hint(self._path, command, self._turn.session, *rest)

    # ---- signals ----

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._leave)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)

    def _interrupt(self) -> None:
        if self._cancelling is None:
            self._screen.remark("cancelling (Ctrl-C again leaves at once)")
            self._cancelling = spawn(self._turn.cancel("interrupted from the terminal"))
            return
        self._screen.remark(f"left at once; {self._turn.id} ends when the store is next opened: {self._hint('resume')}")
        sys.stdout.flush()
        os._exit(INTERRUPTED)  # whatever still runs here must not hold it up; the store bears it

    def _leave(self) -> None:
        if not self._left.done():
            self._left.set_result(None)


def hint(path: Path, command: str, *rest: str) -> str:
    """A command to type next, on the same store."""
    words = ["holdfast", command, *rest]
    if path != DEFAULT_STORE and not os.environ.get(ENVIRONMENT):
        words += ["--store", str(path)]
    return shlex.join(words)
