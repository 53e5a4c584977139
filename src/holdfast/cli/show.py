"""`holdfast show` and `holdfast logs`: the timeline, the messages, the requests and the events of a session."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from holdfast import errors, events, records, store
from holdfast.cli import options, output, sessions
from holdfast.cli.output import Terminal, duration, json_text, one_line, printable, stdout, table
from holdfast.messages import AssistantMessage, Message, ModelRequest, ToolCall, Usage, UserMessage, decode_reply
from holdfast.policy.approvals import Approved, decode_answer
from holdfast.processes.keys import WORK_ITEM
from holdfast.runtime.changes import cursor_tag, events_of
from holdfast.runtime.reconciliation import ATTEMPT_PREFIX
from holdfast.runtime.runtime import Runtime
from holdfast.runtime.session_records import RecordedRequest, environments_of, read_records, read_requests
from holdfast.turns import conversation, keys
from holdfast.turns.conversation import CancelRequest, decode_checkpoint, decode_input, ending_of_record, turn_cause
from holdfast.turns.environment import Environment, describe_environment, environment_changes
from holdfast.turns.programs import answer_message, finish_of, is_finish
from holdfast.turns.results import mentions, message_text, result_of, speaker


async def show(
    shell: options.Shell,
    id: options.TurnId,
    *,
    raw: Annotated[bool, options.flag("The records themselves, one JSON object to a line.", "--raw")] = False,
    history: Annotated[bool, options.flag("All messages of the conversation.", "--history")] = False,
    context: Annotated[bool, options.flag("The messages that the model sees now.", "--context")] = False,
    words: Annotated[str | None, options.option("WORDS", "Only messages with these words.", "--find")] = None,
    request: Annotated[int | None, options.option("N", "The request of the N-th call of the model.", min=1)] = None,
    failures: Annotated[
        bool, options.flag("All errors with their tracebacks; also of a process, a task or a trigger.", "--errors")
    ] = False,
) -> None:
    """Show the turns of a session: their steps, durations and processes."""
    chosen = (raw, history, context, failures, request is not None)
    if sum(chosen) > 1 or (words and (raw or failures or request is not None)):
        message = "--raw, --history, --context, --request and --errors show different things: give one of them"
        raise options.CallInvalid(message)
    if raw and shell.as_json:
        raise options.CallInvalid("--raw prints the records, --json the timeline: give one of them")
    async with sessions.view_runtime(shell.store) as runtime:
        target = await sessions.find_target(runtime.store, id, others=failures or request is not None)
        if history or context or words:
            await _show_messages(shell, runtime, target, context=context, words=words)
        elif request is not None:
            await _show_request(shell, runtime, target, request)
        elif failures:
            await _show_failures(shell, runtime, target)
        elif raw:
            async for seq, record in read_records(runtime.store, target.id):
                if _concerns(record, target.turn):
                    stdout().json({"seq": seq, "record": msgspec.Raw(records.encode(record))})
        else:
            await _show_timeline(shell, runtime, target)


# ---- the timeline ----------------------------------------------------------------------------------------------------


async def _show_timeline(shell: options.Shell, runtime: Runtime, target: sessions.TurnTarget) -> None:
    entries = [entry async for entry in read_records(runtime.store, target.id)]
    line = await sessions.read_session_line(runtime.store, target.line)
    builder = _TimelineBuilder(await environments_of(runtime.store, entries))
    for seq, record in entries:
        builder.add(seq, record)
    turns = list(builder.turns.values())
    if target.turn is not None:
        turns = [turn for turn in turns if turn.turn == target.turn]
        if not turns:
            raise errors.TurnUnknown(target.id, target.turn)
    for turn in turns if await runtime.children.any_of(target.id) else ():
        below = await runtime.children.below(target.id, turn.turn)
        turn.children, turn.children_cost = below.total.usage, below.total.cost
    journal = target.line
    items = await runtime.processes.list(name=WORK_ITEM, session=target.id)
    if target.turn is not None:
        items = [item for item in items if item.parent == f"{target.id}/{target.turn}"]

    def lines(out: Terminal) -> Iterator[str]:
        if target.turn is None:
            yield _title(out, journal, line)
        for item in items:
            yield f"  work item {item.id}: {sessions.describe_item(item)}"
        for number, turn in enumerate(turns):
            if number or target.turn is None:
                yield ""
            yield from _turn_lines(out, turn, line)

    report = {"session": line, "parent": journal.parent, "parent_seq": journal.parent_seq, "turns": turns}
    shell.print(report | {"items": items}, lines)


StepKind = Literal["input", "cancel", "model", "tool", "note", "wait", "parked", "resumed", "handoff", "environment"]


class TimelineStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a turn."""

    seq: int
    at: int
    kind: StepKind
    name: str = ""
    """The tool, the model or the wait."""
    state: str = ""
    ms: int = 0
    text: str = ""
    calls: tuple[str, ...] = ()
    usage: Usage | None = None
    by: str | None = None
    """The operating system process that did it."""
    depth: int = 0
    """1 for the calls of a program."""
    cause: records.Cause | None = None
    iteration: int = 0
    """The step of the turn, from 1."""
    metadata: dict[str, Any] = {}
    changes: tuple[str, ...] = ()
    """The difference of an environment to the one before, as the lines of a diff."""
    agent: str | None = None
    """The agent that answered or called the tool; the new one of a handoff."""


class TurnTimeline(msgspec.Struct, kw_only=True):
    """One turn. `status` is None until it has ended."""

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
    """The agents that drove it, one after the other."""
    retry_of: str = ""
    """The turn that it tries again."""
    retried_as: str = ""
    """The turn that tries it again."""
    children: Usage = Usage()
    """Usage of its sub-agents."""
    children_cost: float | None = 0.0
    steps: list[TimelineStep] = msgspec.field(default_factory=list[TimelineStep])


class _TimelineBuilder:
    """Collects the turns of a session in order of their beginning, from records with their large values.

    `environments` are those of model calls, by the sequence number of their record.
    """

    def __init__(self, environments: Mapping[int, Environment]) -> None:
        self._environments = environments
        self._last_environments: dict[str, Environment] = {}
        """By agent."""
        self.turns: dict[str, TurnTimeline] = {}
        self._seq = self._at = 0
        """The present record, and its time."""
        self._by: str | None = None
        self._agent: str | None = None
        self._requests: dict[str, records.EffectRequest] = {}
        """The requests of effects with an intent, by key."""
        self._iterations: dict[str, int] = {}
        """The steps of model calls, by key."""
        self._replies: dict[str, str] = {}

    def add(self, seq: int, record: records.Record) -> None:
        self._seq, self._at = seq, record.at
        match record:
            case records.Opened():
                self._agent = record.agent
            case records.Handed():
                self._agent = record.agent
                self._turn(record.run).agents.append(record.agent)
                self._step(record.run, "handoff", text=record.reason, state="ok", agent=record.agent)
            case records.Started():
                self._by = record.by
                self._turn(record.run)
            case records.Resumed():
                self._by = record.by
                self._step(record.run, "resumed")
            case records.Parked():
                self._step(record.run, "parked", calls=tuple(map(sessions.wait_label, record.waits)))
            case records.Admitted():
                self._admitted(record)
            case records.Ended():
                self._ended(record)
            case records.Intended():
                self._requests[record.key] = record.ask
                key = keys.parse_key(record.key)
                if record.ask.kind == "await_event" and key is not None:
                    name = sessions.wait_label(record.ask.target)
                    self._step(key.run, "wait", name=name, state="asked", **self._cause(record))
            case records.Done() | records.Failed() | records.Unknown() | records.Cancelled():
                self._outcome(record)
            case _:
                pass

    def _turn(self, run: str) -> TurnTimeline:
        found = self.turns.get(run)
        if found is None:
            agents = [] if self._agent is None else [self._agent]
            found = self.turns[run] = TurnTimeline(turn=run, begun=self._at, agents=agents)
        return found

    def _step(self, run: str, kind: StepKind, **fields: Any) -> None:  # those of a step
        """Add a step at the current record, of the current process."""
        fields.setdefault("by", self._by)
        self._turn(run).steps.append(TimelineStep(seq=self._seq, at=self._at, kind=kind, **fields))

    def _cause(self, record: records.Outcome | records.Intended) -> dict[str, Any]:
        ask = record.ask or self._requests.get(record.key)
        if ask is None:
            return {}
        if ask.kind == "model_call":
            self._iterations[record.key] = ask.iteration
        called, iteration = keys.parse_key(record.key), ask.iteration
        if not iteration and called is not None:  # a tool call: its model call is the effect before its batch
            iteration = self._iterations.get(keys.effect_key(called.run, called.number - 1, "model"), 0)
        return {"cause": ask.cause, "iteration": iteration}

    def _admitted(self, record: records.Admitted) -> None:
        taken = decode_input(bytes(record.body))
        if isinstance(taken, CancelRequest):
            if taken.cancel in self.turns:
                self._step(taken.cancel, "cancel", text=taken.reason, by=None)
        elif record.run is not None:
            cause = turn_cause(record.input, record.key)
            if taken.retry:
                self._turn(record.run).retry_of = taken.retry
                if taken.retry in self.turns:
                    self.turns[taken.retry].retried_as = record.run
            self._step(
                record.run,
                "input",
                state="compacts" if taken.compact else "steers" if taken.steer else "retries" if taken.retry else "",
                text="".join(getattr(part, "text", "") for part in taken.parts),
                cause=cause if cause.kind == "trigger" else None,
                metadata=taken.metadata or {},
                by=None,
            )

    def _outcome(self, record: records.Outcome) -> None:
        key = keys.parse_key(record.key)
        if self._seq in self._environments:
            agent = "" if record.ask is None else record.ask.target
            before, now = self._last_environments.get(agent), self._environments[self._seq]
            self._last_environments[agent] = now
            state, diff = ("new", ()) if before is None else ("changed", tuple(environment_changes(before, now)))
            fields = {"name": now.model, "state": state, "text": describe_environment(now), "changes": diff}
            self._step(record.key.partition("/")[0], "environment", agent=agent, **fields)
        elif key is None:
            return
        elif key.inner:
            self._inner(key.run, record)
        elif key.name == "model":
            self._model(key, record)
        elif key.name == "tools":
            self._tool(key, record)
        elif key.name == "checkpoint" and isinstance(record, records.Done):
            note = decode_checkpoint(record).note
            if note is not None:
                self._step(key.run, "note", text=note)

    def _inner(self, run: str, record: records.Outcome) -> None:
        """Take in an effect inside a tool: only answers to its waits become steps."""
        if is_finish(record.key) and isinstance(record, records.Done):
            batch = keys.parse_key(record.key)
            words = finish_of(record)
            self._replies[answer_message(run, 0 if batch is None else batch.number, words).id] = words
            return
        name = sessions.wait_label(record.key)
        if sessions.approval_of_wait(record.key) is not None:
            state, text = _approval_answer(record)
        elif any(step.kind == "wait" and step.name == name for step in self._turn(run).steps):
            state, text = "answered" if isinstance(record, records.Done) else "not answered", ""
            if (
                isinstance(record, records.Done)
                and record.blob is None
                and not record.key.endswith(f"/{keys.DEFERRAL}")
            ):
                text = bytes(record.value).decode()
        else:
            return
        self._step(run, "wait", name=name, state=state, text=text)

    def _model(self, key: keys.EffectKey, record: records.Outcome) -> None:
        fields: dict[str, Any]
        if isinstance(record, records.Done):
            reply = decode_reply(bytes(record.value))
            self._replies[f"{key.run}.{key.number}"] = reply.text
            turn = self._turn(key.run)
            turn.model_calls += 1
            turn.usage += reply.usage
            calls = tuple(call.name for call in reply.calls)
            fields = {"name": reply.model, "state": reply.finish, "text": reply.text, "calls": calls}
            fields |= {"usage": reply.usage, "ms": record.ms}
        elif isinstance(record, records.Failed):
            fields = {"state": "failed", "ms": record.ms, "text": f"{record.error.kind}: {record.error.message}"}
        else:
            fields = {"state": "cancelled" if isinstance(record, records.Cancelled) else "failed"}
        self._step(key.run, "model", agent=self._agent, **fields, **self._cause(record))

    def _tool(self, key: keys.EffectKey, record: records.Outcome) -> None:
        name = keys.tool_in_key(record.key)
        result = result_of(ToolCall("", name, {}), record)
        self._step(
            key.run,
            "tool",
            name=name,
            state=result.state,
            ms=record.ms if isinstance(record, records.Done | records.Failed) else 0,
            text=result.content if isinstance(result.content, str) else json_text(result.content),
            depth=int(key.nested > 0),
            agent=self._agent,
            **self._cause(record),
        )

    def _ended(self, record: records.Ended) -> None:
        turn = self._turn(record.run)
        ending = ending_of_record(record)
        turn.ended, turn.status = record.at, record.status
        turn.code, turn.message = ending.code, ending.message
        turn.answer = self._replies.get(ending.answer or "", "")


def _approval_answer(record: records.Outcome) -> tuple[str, str]:
    if not isinstance(record, records.Done) or record.blob is not None:
        return "not answered", ""
    answer = decode_answer(bytes(record.value))
    by = f"by {answer.by}" if answer.by else ""
    if isinstance(answer, Approved):
        return "approved", by if answer.arguments is None else f"{by} with changed arguments".strip()
    return "denied", ": ".join(part for part in (by, answer.reason) if part)


def _title(out: Terminal, journal: store.Journal, line: sessions.SessionLine) -> str:
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


def _turn_lines(out: Terminal, turn: TurnTimeline, line: sessions.SessionLine) -> Iterator[str]:
    parts = [f"{out.paint(turn.turn, 'bold')}  {out.status(turn.status or line.status)}"]
    if len(turn.agents) > 1 or turn.agents != [line.agent]:
        parts.append(" > ".join(one_line(name, 40) for name in turn.agents))
    if turn.model_calls:
        parts += [output.count_noun(turn.model_calls, "model call"), _tokens(turn.usage)]
    if turn.children.total:
        parts.append(f"with sub-agents {_tokens(turn.usage + turn.children)}")
    if turn.ended is not None:
        parts.append(duration(max(turn.ended - turn.begun, 0)))
    parts += [f"retry of {turn.retry_of}"] if turn.retry_of else []
    parts += [f"tried again as {turn.retried_as}"] if turn.retried_as else []
    yield ", ".join(parts)
    rows = [
        [
            out.paint(f"{step.seq:>4}", "dim"),
            f"{'  ' * step.depth}{step.kind}",
            out.status(step.state, _subject(step)),
            duration(step.ms) if step.ms or step.kind in {"model", "tool"} else "",
            _details(step),
            *(out.paint(cell, "dim") for cell in (_cause(step), step.by or "")),
        ]
        for step in turn.steps
    ]
    for step, text in zip(turn.steps, table(rows), strict=True):
        yield f"  {text}"
        yield from (f"         {output.diff_line(out, change)}" for change in step.changes)
    if turn.status is None:
        for name in line.waits:
            if name.startswith(f"{turn.turn}/") and sessions.approval_of_wait(name) is not None:
                yield f"  waits for {sessions.wait_description(name)}"
    elif turn.status != "completed":
        yield f"  {output.reason_text(out.status(turn.status), turn.status, turn.code, one_line(turn.message, 300))}"
    yield from (f"  | {text}" for text in printable(turn.answer).splitlines())


def _cause(step: TimelineStep) -> str:
    if step.cause is None:
        return ""
    kind, id, ordinal = step.cause.kind, one_line(step.cause.id, 60), step.cause.ordinal
    match kind:
        case "model" | "call" if ordinal:
            return f"call {ordinal} of {id}"
        case "input" | "trigger" | "process" | "signal":
            return f"after {kind} {id.removeprefix(conversation.TRIGGERED)}"
        case _:
            return f"after {id}"


def _subject(step: TimelineStep) -> str:
    match step.kind:
        case "tool":
            return f"{one_line(step.name, 40)} {step.state}"
        case "wait":
            return f"{one_line(step.name, 80)} {step.state}"
        case "handoff":
            return f"to {one_line(step.agent or '', 40)}"
        case _:
            return step.state


def _details(step: TimelineStep) -> str:
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


# ---- requests --------------------------------------------------------------------------------------------------------


async def _show_request(shell: options.Shell, runtime: Runtime, target: sessions.TurnTarget, number: int) -> None:
    """Print a request to the model, rebuilt from the journal."""
    found = [each for each in await read_requests(runtime.store, target.id) if _concerns(each, target.turn)]
    asked = next((each for each in found if each.number == number), None)
    if asked is None:
        message = f"{target.id} has no request {number}: those are {', '.join(str(each.number) for each in found[:20])}"
        raise options.CallInvalid(message if found else f"no model was asked anything in {target.id}")

    def lines(out: Terminal) -> Iterator[str]:
        doubt = "" if asked.exact else ", not complete: the journal is of an older release"
        title = out.paint(f"request {asked.number}", "bold")
        yield f"{title}  {asked.key}, {asked.kind}, {asked.model or asked.agent}{doubt}"
        for title, text in _request_parts(asked.request):
            yield out.paint(title, "bold")
            yield from (f"  | {line}" for line in printable(text).splitlines())

    files = {digest: len(body) for digest, body in asked.request.files.items()}
    shell.print(msgspec.structs.replace(asked, request=msgspec.structs.replace(asked.request, files=files)), lines)


def _request_parts(request: ModelRequest) -> Iterator[tuple[str, str]]:
    if request.instructions:
        yield "instructions", request.instructions
    for tool in request.tools:
        yield f"tool {tool.name}", f"{tool.description}\n{_indented_json(tool.parameters)}"
    if request.output is not None:
        yield "output", _indented_json(request.output)
    settings = msgspec.to_builtins(request.settings)
    if settings:
        yield "settings", _indented_json(settings)
    for message in request.messages:
        yield f"{speaker(message)}  {message.id}", message_text(message)


def _indented_json(value: object) -> str:
    return msgspec.json.format(json_text(value), indent=2)


def _concerns(record: records.Record | RecordedRequest, turn: str | None) -> bool:
    run: str | None = getattr(record, "run", None) or getattr(record, "key", "").partition("/")[0]
    return turn is None or run == turn


# ---- errors ----------------------------------------------------------------------------------------------------------


class FailureReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One recorded failure: of a tool call or one of its attempts, a model call, a step, or a whole turn or process."""

    seq: int
    at: int
    key: str
    """The key of the effect, or the name of the turn or of the attempt of a process."""
    what: str
    """The tool, the agent of a model call, the step, or "turn" and "process"."""
    attempt: int = 0
    """The number of the attempt of a tool, from 1; 0 for the failure itself."""
    kind: str
    message: str
    ms: int = 0
    trace: str = ""
    tries: tuple[dict[str, Any], ...] = ()
    """The attempts of a model call, with their messages."""


async def _show_failures(shell: options.Shell, runtime: Runtime, target: sessions.TurnTarget) -> None:
    """Print the failures of a journal with their tracebacks."""
    asked: dict[str, records.EffectRequest] = {}
    found: list[FailureReport] = []
    async for seq, record in read_records(runtime.store, target.id):
        if isinstance(record, records.Intended):
            asked[record.key] = record.ask
        if _concerns(record, target.turn) and (failure := _failure_of(seq, record, asked)) is not None:
            found.append(failure)

    def lines(out: Terminal, one: FailureReport) -> Iterator[str]:
        at = datetime.fromtimestamp(one.at / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        attempt = f" attempt {one.attempt}" if one.attempt else ""
        title = out.paint(f"{one_line(one.what, 60)}{attempt}", "bold")
        spent = f", {duration(one.ms)}" if one.ms else ""
        yield f"{title}  {one_line(one.key, 120)}, record {one.seq}, {at}{spent}"
        yield f"  {out.status('failed', one_line(f'{one.kind}: {one.message}', 1_000))}"
        for number, each in enumerate(one.tries, 1):
            yield f"  attempt {number}: {one_line(json_text(each), 400)}"
        yield from (f"  | {line}" for line in printable(one.trace).splitlines())

    shell.print_each(found, lines, nothing="nothing failed")


def _failure_of(seq: int, record: records.Record, asked: Mapping[str, records.EffectRequest]) -> FailureReport | None:
    if isinstance(record, records.Ended):
        error = record.error
        if record.status != "failed":
            return None
        if error is None:
            ending = ending_of_record(record)
            error = records.ErrorInfo(ending.code, ending.message)
        process = records.is_process_run(record.run) or record.run == records.TASK_RUN
        what = "process" if process else "turn"
        return FailureReport(
            seq=seq,
            at=record.at,
            key=record.run,
            what=what,
            kind=error.kind,
            message=error.message,
            trace=record.trace,
        )
    if not isinstance(record, records.Failed):
        return None
    above, _, last = record.key.rpartition("/")
    if last.startswith(ATTEMPT_PREFIX):
        key, attempt, ask = above, int(last.removeprefix(ATTEMPT_PREFIX)), asked.get(above)
    else:
        key, attempt, ask = record.key, 0, record.ask or asked.get(record.key)
    has_tries = bytes(record.detail).startswith(b"[")  # a model call; the details of a program are an object
    return FailureReport(
        seq=seq,
        at=record.at,
        key=record.key,
        what=keys.tool_in_key(key) if ask is None else ask.target,
        attempt=attempt,
        kind=record.error.kind,
        message=record.error.message,
        ms=record.ms,
        trace=record.trace,
        tries=tuple(msgspec.json.decode(record.detail, type=list[dict[str, Any]])) if has_tries else (),
    )


# ---- messages --------------------------------------------------------------------------------------------------------


async def _show_messages(
    shell: options.Shell, runtime: Runtime, target: sessions.TurnTarget, *, context: bool, words: str | None
) -> None:
    """Print the messages of a session, or those that the model sees; with `words`, only those that contain them."""
    if target.turn is not None:
        raise options.CallInvalid("messages are those of a whole session: leave the turn out")
    session = runtime.session(target.id)
    messages = await (session.context() if context else session.history())
    found = [message for message in messages if not words or mentions(message, words)]

    def lines(out: Terminal, message: Message) -> Iterator[str]:
        yield f"{out.paint(speaker(message), 'bold')}  {message.id}"
        text, shown = message_text(message), 4_000
        yield from (f"  | {line}" for line in printable(text[:shown]).splitlines())
        if len(text) > shown:
            yield f"  ... {len(text) - shown:,} more characters"

    shell.print_each(found, lines, nothing="nothing was said" if words is None else "no message has that text")


# ---- logs ------------------------------------------------------------------------------------------------------------


async def logs(
    shell: options.Shell,
    id: options.TurnId,
    *,
    follow: Annotated[bool, options.flag("Also print new events, until Ctrl-C.", "--follow", "-f")] = False,
    since: Annotated[int, options.option("SEQ", "Only events after this record.", min=0)] = 0,
) -> None:
    """Print the events of a session, one to a line.

    With --follow, text appears on a terminal while the model writes it, whichever process drives the session.
    """
    out = stdout()
    lines = _EventLines(out)
    async with sessions.view_runtime(shell.store) as runtime:
        target = await sessions.find_target(runtime.store, id, others=True)
        found = runtime.session(target.id).events(since) if follow else _read_events(runtime, target.id, since)

        async def print_events() -> None:
            async for event in found:
                if target.turn is not None and event.turn != target.turn:
                    continue
                if shell.as_json:
                    out.line(events.encode(event).decode())
                else:
                    lines.print(event)

        work = asyncio.ensure_future(print_events())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, work.cancel)
        await asyncio.wait([work])
        if not work.cancelled():
            work.result()


class _EventLines:
    """Prints events for people; on a terminal with the text that a model is writing."""

    def __init__(self, out: Terminal) -> None:
        self._out = out
        self._writing = False

    def print(self, event: events.Event) -> None:
        if isinstance(event, events.TextDelta) and self._out.live:
            begin = "" if self._writing else f"{self._place(event)} writes: "
            self._out.write(begin + printable(event.text))
            self._writing = True
        elif (text := describe_event(event)) is not None:
            if self._writing:
                self._out.line()
            self._writing = False
            self._out.line(f"{self._place(event)} {text}")

    def _place(self, event: events.Event) -> str:
        at = datetime.fromtimestamp(event.at / 1000).astimezone().strftime("%H:%M:%S")
        paint = self._out.paint
        return f"{paint(at, 'dim')} {paint(f'{event.seq:>5}', 'dim')} {event.turn or '-':<4}"


async def _read_events(runtime: Runtime, session: str, since: int) -> AsyncIterator[events.Event]:
    tag = cursor_tag(session)
    async for seq, record in read_records(runtime.store, session, after=since):
        for event in events_of(session, seq, record, str(seq), tag):
            yield event


def describe_event(event: events.Event) -> str | None:
    """An event in one line; None for events that others include."""
    match event:
        case events.TurnStarted():
            return f"started by {event.by}"
        case events.TurnResumed():
            return f"resumed by {event.by}"
        case events.HandedOff():
            return f"handed over to {one_line(event.agent, 40)}: {one_line(event.reason, 160)}"
        case events.MessageCommitted(message=UserMessage() as message):
            return f"{message.origin}: {one_line(message.text, 160)}"
        case events.MessageCommitted(message=AssistantMessage() as message) if message.text:
            return f"model: {one_line(message.text, 160)} ({duration(event.ms)})"
        case events.UsageRecorded():
            return f"used {event.usage.input:,} + {event.usage.output:,} tokens of {event.model}"
        case events.ToolCallRequested():
            return f"{_indent(event.call)}calls {one_line(event.tool, 40)} {one_line(json_text(event.arguments), 120)}"
        case events.ToolCallProgress():
            share = "" if event.fraction is None else f" {event.fraction:.0%}"
            return f"{_indent(event.call)}{one_line(event.tool, 40)}{share} {one_line(event.note or '', 120)}".rstrip()
        case events.ToolCallFinished():
            body = event.content if isinstance(event.content, str) else json_text(event.content)
            text = f"{one_line(event.tool, 40)} {event.state} in {duration(event.ms)}: {one_line(body, 120)}"
            return f"{_indent(event.call)}{text}"
        case events.ModelFailed():
            return f"model failed: {one_line(event.code, 40)}: {one_line(event.message, 200)}"
        case events.ApprovalRequested():
            return f"waits for {sessions.wait_description(event.wait)}"
        case events.TaskStarted():
            return f"task begun by {event.by}"
        case events.TaskProgressed():
            done = "" if event.fraction is None else f" {event.fraction:.0%}"
            return f"task{done}: {event.note or 'goes on'}"
        case events.TaskEnded():
            return f"task {event.status}" + (f": {event.code}: {event.message}" if event.code else "")
        case events.TurnWaiting():
            return f"parked until {', '.join(map(sessions.wait_label, event.waits))}"
        case events.TurnCompleted():
            used = f"{event.usage.input:,} + {event.usage.output:,} tokens"
            return f"completed in {output.count_noun(event.steps, 'step')}, {used}"
        case events.TurnFailed() | events.TurnCancelled() | events.TurnLimit():
            status = type(event).__name__.removeprefix("Turn").lower()
            return output.reason_text(status, status, event.code, one_line(event.message, 200))
        case events.LoopDetected():
            return f"loop detected: {one_line(event.message, 200)}"
        case _:
            return None


def _indent(call: str) -> str:
    """Indent the calls of a program, whose ids have more parts than ``t3.2.1``."""
    return "  " if call.count(".") > 2 else ""
